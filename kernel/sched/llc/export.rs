// SPDX-License-Identifier: GPL-2.0

//! What C calls of the shared runqueue.
//!
//! C header: [`kernel/sched/llc/export.h`](srctree/kernel/sched/llc/export.h)

use kernel::{
    bindings,
    interrupt::LocalInterruptDisabled,
    prelude::*, //
};

use crate::{
    geometry,
    pull,
    shard::{
        self,
        Node,
        Shard, //
    }, //
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
pub(crate) unsafe extern "C" fn shared_runq_place(
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
pub(crate) unsafe extern "C" fn shared_runq_push(
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
pub(crate) unsafe extern "C" fn shared_runq_unlink(node: *mut bindings::shared_runq_node) {
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
pub(crate) unsafe extern "C" fn shared_runq_pull(
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
pub(crate) unsafe extern "C" fn shared_runq_drain(shard: *mut bindings::shared_runq_shard) -> bool {
    let irq = kernel::interrupt::local_interrupt_disable();
    // SAFETY: Shards are never freed.
    let shard = unsafe { Shard::from_raw(shard) };

    shard.lock(&irq).drain()
}
