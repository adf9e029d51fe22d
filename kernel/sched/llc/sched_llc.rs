// SPDX-License-Identifier: GPL-2.0

//! A shared runqueue for each last level cache (LLC).
//!
//! A task that becomes runnable on a busy CPU stays queued there, in the tree of its runqueue,
//! and is also linked in a *shard*, a FIFO that a handful of CPUs of the LLC share. A CPU that is
//! about to go idle looks at the shards of its LLC and pulls the first task that may run on it.
//! The runqueue owns the task: a task that nobody pulls runs where and when it would have run
//! without a shard.
//!
//! ```text
//!   enqueue, wakeup of a delayed task,          dequeue, set as next
//!   put back while still runnable                      |
//!            | push                                    | unlink
//!            v                                         v
//!   rq->shared_runq -> [shard 0: A B C] -next-> [shard 1: D] -next-> back to shard 0
//!                             |
//!                             | pull: own shard first, then around the ring
//!                             v
//!            sched_balance_newidle() of a CPU of the same LLC
//! ```
//!
//! # Lock order
//!
//! 1. `task_struct::pi_lock`: never taken here.
//! 2. The lock of a runqueue.
//! 3. The lock of a shard, with interrupts off. It is a leaf: all that is tried inside it is
//!    `raw_spin_rq_trylock()` on the runqueue of a linked task, which cannot wait.
//!
//! No path holds two runqueue locks or two shard locks.
//!
//! # Invariants
//!
//! 1. `node.shard` is not `NULL` exactly while `node.list` is linked in that shard. Both change
//!    under the lock of that shard; linking also needs the lock of the task's runqueue.
//! 2. A linked task is a fair task queued on its runqueue that is neither delayed nor throttled.
//!    While it is linked and the lock of its shard is held, it cannot leave its runqueue, change
//!    its affinity, class or group, or be freed, since all of these unlink it first.
//! 3. The gate of all unlink hooks is open while any task may be linked.
//! 4. Shards are never freed, so a pointer to one is always good, however stale. A runqueue
//!    changes its home shard under its own lock, after it unlinked its tasks.
//! 5. A task is unlinked for a pull only with the lock of its runqueue held and its move certain.
//!
//! # Worst cases
//!
//! | under | work |
//! |---|---|
//! | a runqueue lock | one shard lock section: a list operation on push and unlink |
//! | a shard lock | [`pull::SCAN_MAX`] tasks looked at, or [`shard::DRAIN_MAX`] unlinked |
//! | a pull, no lock | one such scan for each shard of the LLC |

use kernel::{
    bindings,
    interrupt::LocalInterruptDisabled,
    prelude::*, //
};

mod geometry;
mod pull;
mod shard;

use shard::{
    Node,
    Shard, //
};

/// Finds the home shard of `cpu`, and enters the shard of `cpu` itself into the ring of its LLC
/// if it is one of them.
///
/// Returns `NULL` if `cpu` is not in `llc`.
///
/// # Safety
///
/// - `llc` is valid for reading, and `cpu` is a possible CPU.
/// - The caller holds the sched domains mutex.
#[export]
pub unsafe extern "C" fn shared_runq_place(
    cpu: u32,
    llc: *const bindings::cpumask,
) -> *mut bindings::shared_runq_shard {
    // SAFETY: `llc` is valid for reading by the safety requirements.
    let cpus = unsafe { shard::Cpus::new(llc) };
    let Some(place) = geometry::place(cpu, cpus) else {
        return core::ptr::null_mut();
    };

    if place.home == cpu {
        // SAFETY: All of these are possible CPUs, since they are in `llc`.
        unsafe { shard::enter(place) };
    }
    // SAFETY: `place.home` is in `llc`, and so is a possible CPU.
    unsafe { bindings::shared_runq_shard_of(place.home) }
}

/// Links the task of `node` at the end of `shard`.
///
/// # Safety
///
/// - `shard` is a shard, and `node` that of a valid task.
/// - The lock of the task's runqueue is held, with interrupts off.
/// - The task is queued there, waiting, and fulfils invariant 2 of the crate.
#[export]
pub unsafe extern "C" fn shared_runq_push(
    shard: *mut bindings::shared_runq_shard,
    node: *mut bindings::shared_runq_node,
) {
    // SAFETY:
    // - Shards are never freed, and the task of `node` is valid during the call.
    // - Interrupts are off by the safety requirements.
    let (shard, node, irq) = unsafe {
        (
            Shard::from_raw(shard),
            Node::from_raw(node),
            LocalInterruptDisabled::assume_disabled(),
        )
    };

    shard.lock(irq).push(node);
}

/// Unlinks the task of `node` from the shard that it is in, if it is in one.
///
/// # Safety
///
/// - `node` is that of a valid task.
/// - The lock of the task's runqueue is held, with interrupts off.
#[export]
pub unsafe extern "C" fn shared_runq_unlink(node: *mut bindings::shared_runq_node) {
    // SAFETY:
    // - The task of `node` is valid during the call.
    // - Interrupts are off by the safety requirements.
    let (node, irq) = unsafe {
        (
            Node::from_raw(node),
            LocalInterruptDisabled::assume_disabled(),
        )
    };

    node.unlink(irq);
}

/// Looks for a task that `this_rq` can run, first in `home`, then in the other shards of its LLC.
///
/// Returns the node of a task that is unlinked and whose runqueue is locked, or `NULL`.
///
/// # Safety
///
/// - `home` is a shard, and `this_rq` is the runqueue of this CPU.
/// - No runqueue or shard lock is held, and interrupts are off, until the caller has released the
///   lock of the task's runqueue.
#[export]
pub unsafe extern "C" fn shared_runq_pull(
    home: *mut bindings::shared_runq_shard,
    this_rq: *mut bindings::rq,
) -> *mut bindings::shared_runq_node {
    // SAFETY:
    // - Shards are never freed.
    // - Interrupts are off by the safety requirements.
    // - `this_rq` is a runqueue, and no runqueue lock is held.
    let (home, irq, mut source) = unsafe {
        (
            Shard::from_raw(home),
            LocalInterruptDisabled::assume_disabled(),
            pull::Runqueue::new(this_rq),
        )
    };

    match pull::pull(home, &mut source, irq) {
        Some(node) => node.as_raw(),
        None => core::ptr::null_mut(),
    }
}

/// Unlinks some tasks of `shard`. Returns whether it may hold more.
///
/// # Safety
///
/// `shard` is a shard, and the caller holds no shard lock.
#[export]
pub unsafe extern "C" fn shared_runq_drain(shard: *mut bindings::shared_runq_shard) -> bool {
    let irq = kernel::interrupt::local_interrupt_disable();
    // SAFETY: Shards are never freed.
    let shard = unsafe { Shard::from_raw(shard) };

    shard.lock(&irq).drain()
}
