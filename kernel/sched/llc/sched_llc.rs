// SPDX-License-Identifier: GPL-2.0

//! What the scheduler does inside a last-level cache (LLC): a shared runqueue, and a filter of
//! overloaded CPUs.
//!
//! # Shared runqueue
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
//!
//! # Filter
//!
//! Each LLC has a mask of CPUs with more than one task to run. A wakeup that looks for an idle CPU
//! in the LLC leaves these out.
//!
//! ```text
//!   tick, load balancer, pull, going idle        wakeup: select_idle_cpu()
//!             | overloaded or not any more                 | span & allowed & ~mask
//!             v                                            v
//!            [mask of the LLC, in sched_domain_shared] --> search, or nothing to find
//! ```
//!
//! A bit is written under the lock of its CPU's runqueue, which is all that orders it: no lock is
//! taken for the mask. It is a hint, and late by up to a tick. A CPU that is idle is not in it.
//! Worst case: an atomic operation on a bit, two full barriers and two passes over the words.

#[cfg(CONFIG_SCHED_SHARED_RUNQ)]
mod export;
#[cfg(CONFIG_SCHED_SHARED_RUNQ)]
mod geometry;
#[cfg(CONFIG_SCHED_SHARED_RUNQ)]
mod pull;
#[cfg(CONFIG_SCHED_SHARED_RUNQ)]
mod shard;

#[cfg(CONFIG_SCHED_SIS_FILTER)]
mod filter;
#[cfg(CONFIG_SCHED_SIS_FILTER)]
mod overload;
