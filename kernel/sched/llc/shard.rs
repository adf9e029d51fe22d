// SPDX-License-Identifier: GPL-2.0

//! The shards: FIFOs of runnable tasks, each under a raw spinlock of its own.
//!
//! C header: [`kernel/sched/llc/export.h`](srctree/kernel/sched/llc/export.h)

use core::ptr;

use kernel::{
    bindings,
    interop::list::CListHead,
    interrupt::LocalInterruptDisabled,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        RawSpinLock,
        RawSpinLockGuard, //
    },
    types::Opaque, //
};

use crate::geometry::Place;

/// How many tasks a drain unlinks before it lets go of the lock.
///
/// Each takes a few writes: a hold time of about a microsecond.
pub(crate) const DRAIN_MAX: usize = 32;

/// A counter of a shard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat(bindings::shared_runq_stat);

impl Stat {
    pub(crate) const PUSHED: Self = Self(bindings::shared_runq_stat_SHARED_RUNQ_PUSHED);
    pub(crate) const PULLED: Self = Self(bindings::shared_runq_stat_SHARED_RUNQ_PULLED);
    pub(crate) const SCANNED: Self = Self(bindings::shared_runq_stat_SHARED_RUNQ_SCANNED);
    pub(crate) const SCAN_LIMIT: Self = Self(bindings::shared_runq_stat_SHARED_RUNQ_SCAN_LIMIT);
    pub(crate) const LOCK_CONTENDED: Self =
        Self(bindings::shared_runq_stat_SHARED_RUNQ_LOCK_CONTENDED);
    pub(crate) const REFUSED_OWN: Self = Self(bindings::shared_runq_stat_SHARED_RUNQ_REFUSED_OWN);
    #[cfg(CONFIG_SCHED_LLC_KUNIT_TEST)]
    pub(crate) const REFUSED_RUNNING: Self =
        Self(bindings::shared_runq_stat_SHARED_RUNQ_REFUSED_RUNNING);

    /// The counter that C names.
    pub(crate) fn from_raw(stat: bindings::shared_runq_stat) -> Self {
        Self(stat)
    }
}

/// A task's place in a shared runqueue.
///
/// # Invariants
///
/// - `list` is initialised, and linked in the shard that `shard` points at; in none if `NULL`.
/// - `shard` is `NULL` or points at a [`Shard`].
#[repr(transparent)]
pub(crate) struct Node(Opaque<bindings::shared_runq_node>);

impl Node {
    /// Makes a reference to the node of a task.
    ///
    /// # Safety
    ///
    /// `node` is the node of a task that stays valid for `'a`, initialised by
    /// `shared_runq_init_task()`.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(node: *mut bindings::shared_runq_node) -> &'a Self {
        // SAFETY: The node is valid for `'a`.
        // CAST: `Self` is a transparent wrapper.
        unsafe { &*node.cast() }
    }

    /// Obtains the raw pointer.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::shared_runq_node {
        self.0.get()
    }

    /// The node whose list head is `list`.
    ///
    /// # Safety
    ///
    /// `list` is the `list` of a node.
    #[inline]
    unsafe fn from_list(list: &CListHead) -> &Self {
        // SAFETY: By the safety requirements this stays within the node, which is valid for as
        // long as its list head is.
        unsafe { &*kernel::container_of!(list.as_raw(), bindings::shared_runq_node, list).cast() }
    }

    #[inline]
    fn list(&self) -> &CListHead {
        // SAFETY: The list head is initialised by the type invariants, and is changed by
        // `CListHead` alone once the task exists.
        unsafe { CListHead::from_raw(&raw mut (*self.as_raw()).list) }
    }

    /// The pointer to the shard.
    ///
    /// It is written under the lock of the shard, and tested by the hooks in C without it, as a
    /// hint. Who acts on it takes the lock and reads it again.
    #[inline]
    fn shard(&self) -> &Atomic<*mut bindings::shared_runq_shard> {
        // SAFETY: The field is valid for as long as `self` is, and all writes to it are atomic
        // once the task exists; C reads it with `READ_ONCE()`.
        unsafe { Atomic::from_ptr(&raw mut (*self.as_raw()).shard) }
    }

    /// Unlinks the task from the shard that it is in, if any.
    #[inline]
    pub(crate) fn unlink(&self, irq: &LocalInterruptDisabled) {
        let shard = self.shard().load(Relaxed);
        if shard.is_null() {
            return;
        }
        // SAFETY: By the type invariants, this is a shard.
        let mut shard = unsafe { Shard::from_raw(shard) }.lock(irq);
        // A drain may have been faster; nobody else is, since the caller holds the runqueue lock.
        if self.shard().load(Relaxed) == shard.as_raw() {
            shard.unlink(self);
        }
    }
}

/// A FIFO of runnable tasks that some CPUs of an LLC share.
///
/// # Invariants
///
/// - It is initialised by `shared_runq_init()`, and never freed.
/// - `nr` is the number of nodes linked in `tasks`, and these nodes point back at it.
/// - `llc` points at a `struct shared_runq_llc` that is never freed, whose `nr_busy` counts this
///   shard while `nr` is not 0.
/// - `next` points at a shard.
#[repr(transparent)]
pub(crate) struct Shard(Opaque<bindings::shared_runq_shard>);

impl Shard {
    /// Makes a reference to a shard.
    ///
    /// # Safety
    ///
    /// `shard` points at a shard that is valid for `'a`, for which the invariants hold.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(shard: *mut bindings::shared_runq_shard) -> &'a Self {
        // SAFETY: The shard is valid for `'a`.
        // CAST: `Self` is a transparent wrapper.
        unsafe { &*shard.cast() }
    }

    /// Takes the lock, and counts when it had to wait for it.
    #[inline]
    pub(crate) fn lock<'a>(&'a self, _irq: &'a LocalInterruptDisabled) -> Locked<'a> {
        // SAFETY: The lock is initialised by the type invariants.
        let lock = unsafe { RawSpinLock::from_raw(&raw mut (*self.0.get()).lock) };
        if let Some(guard) = lock.try_lock() {
            return Locked {
                shard: self,
                _guard: guard,
            };
        }
        let mut locked = Locked {
            shard: self,
            _guard: lock.lock(),
        };
        locked.count(Stat::LOCK_CONTENDED);
        locked
    }

    /// The number of linked tasks.
    ///
    /// It is written under the lock. Without it, it is a hint: who reads 0 while a task is being
    /// linked misses that task, as if it had looked a moment earlier.
    #[inline]
    fn nr(&self) -> &Atomic<u32> {
        // SAFETY: The field is valid for as long as `self` is, and all accesses are atomic; C
        // reads it with `READ_ONCE()`.
        unsafe { Atomic::from_ptr(&raw mut (*self.0.get()).nr) }
    }

    /// Whether no task is linked, as a hint.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.nr().load(Relaxed) == 0
    }

    #[inline]
    fn next_ptr(&self) -> &Atomic<*mut bindings::shared_runq_shard> {
        // SAFETY: The field is valid for as long as `self` is, and all accesses are atomic.
        unsafe { Atomic::from_ptr(&raw mut (*self.0.get()).next) }
    }

    /// The next shard of the LLC.
    ///
    /// While domains are rebuilt it may be one of another LLC. The walk is bounded by
    /// [`Shard::ring_len`], and what it finds is checked like any other task.
    #[inline]
    pub(crate) fn next(&self) -> &Self {
        // SAFETY: By the type invariants, this is a shard; shards are never freed.
        unsafe { Self::from_raw(self.next_ptr().load(Relaxed)) }
    }

    #[inline]
    fn llc_ptr(&self) -> &Atomic<*mut bindings::shared_runq_llc> {
        // SAFETY: The field is valid for as long as `self` is, and all accesses are atomic; C
        // reads it with `READ_ONCE()`.
        unsafe { Atomic::from_ptr(&raw mut (*self.0.get()).llc) }
    }

    /// How many shards the ring has.
    #[inline]
    pub(crate) fn ring_len(&self) -> u32 {
        let llc = self.llc_ptr().load(Relaxed);
        // SAFETY: By the type invariants, `llc` is valid; all accesses to the field are atomic.
        unsafe { Atomic::from_ptr(&raw mut (*llc).nr_shards) }.load(Relaxed)
    }
}

/// A shard whose lock is held.
#[must_use = "the lock is released at once when this is unused"]
pub(crate) struct Locked<'a> {
    shard: &'a Shard,
    _guard: RawSpinLockGuard<'a, ()>,
}

impl<'a> Locked<'a> {
    #[inline]
    fn as_raw(&self) -> *mut bindings::shared_runq_shard {
        self.shard.0.get()
    }

    /// Adds one to a counter.
    #[inline]
    pub(crate) fn count(&mut self, stat: Stat) {
        // SAFETY: The field is valid, and only written with the lock held, which `self` proves; C
        // reads it with `READ_ONCE()`.
        let stats = unsafe { &mut *(&raw mut (*self.as_raw()).stats) };
        if let Some(count) = stats.get_mut(stat.0 as usize) {
            *count = count.wrapping_add(1);
        }
    }

    /// The head of the list of tasks.
    #[inline]
    fn tasks(&self) -> &'a CListHead {
        // SAFETY: The list head is initialised by the type invariants of `Shard`, and the lock is
        // held, so that the list is changed by `self` alone.
        unsafe { CListHead::from_raw(&raw mut (*self.as_raw()).tasks) }
    }

    /// Sets the number of tasks, and tells the LLC whether the shard has one.
    #[inline]
    fn set_nr(&mut self, nr: u32) {
        let was = self.shard.nr().load(Relaxed);
        // INVARIANT: `nr_busy` of the LLC follows, below.
        self.shard.nr().store(nr, Relaxed);
        match (was, nr) {
            (0, 1..) => self.add_busy(1),
            (1.., 0) => self.add_busy(-1),
            _ => {}
        }
    }

    #[inline]
    fn add_busy(&mut self, change: i32) {
        let llc = self.shard.llc_ptr().load(Relaxed);
        // SAFETY: By the type invariants of `Shard`, `llc` is valid; all accesses to the field
        // are atomic.
        unsafe { Atomic::<i32>::from_ptr(&raw mut (*llc).nr_busy.counter) }.add(change, Relaxed);
    }

    /// Links `node` at the end. A node that is linked already stays where it is.
    #[inline]
    pub(crate) fn push(&mut self, node: &Node) {
        if !node.shard().load(Relaxed).is_null() {
            return;
        }
        // SAFETY: The node is in no list by its type invariants; it stays valid until it is
        // unlinked, since a task is dequeued before it is freed; and the lock is held.
        unsafe { self.tasks().add_tail(node.list()) };
        // INVARIANT: The node is linked here.
        node.shard().store(self.as_raw(), Relaxed);
        let nr = self.shard.nr().load(Relaxed);
        // INVARIANT: One node more is linked.
        self.set_nr(nr.wrapping_add(1));
        self.count(Stat::PUSHED);
    }

    /// Unlinks `node`, which is linked here.
    #[inline]
    pub(crate) fn unlink(&mut self, node: &Node) {
        // SAFETY: The lock of the shard that the node is linked in is held.
        unsafe { node.list().del_init() };
        // INVARIANT: The node is linked nowhere.
        node.shard().store(ptr::null_mut(), Relaxed);
        let nr = self.shard.nr().load(Relaxed);
        // INVARIANT: One node less is linked.
        self.set_nr(nr.wrapping_sub(1));
    }

    /// The node behind `node`, or the first one.
    #[inline]
    pub(crate) fn after(&self, node: Option<&'a Node>) -> Option<&'a Node> {
        let tasks = self.tasks();
        let next = node.map_or(tasks, |node| node.list()).next();
        // SAFETY: All list heads in the list but the first are those of nodes.
        (next != tasks).then(|| unsafe { Node::from_list(next) })
    }

    /// Makes `node`, which is linked here, the first one; those before it become the last ones.
    #[inline]
    pub(crate) fn rotate_to(&mut self, node: &Node) {
        let tasks = self.tasks();
        // SAFETY: The lock is held. What is moved is the head: it leaves a ring of nodes, and
        // enters it again before `node`.
        unsafe {
            tasks.del_init();
            node.list().add_tail(tasks);
        }
    }

    /// Unlinks up to [`DRAIN_MAX`] tasks. Returns whether there may be more.
    pub(crate) fn drain(mut self) -> bool {
        for _ in 0..DRAIN_MAX {
            let Some(node) = self.after(None) else {
                return false;
            };
            self.unlink(node);
        }
        true
    }

    /// Makes the shard part of the LLC `llc`, with `next` behind it.
    fn join(
        &mut self,
        llc: *mut bindings::shared_runq_llc,
        next: *mut bindings::shared_runq_shard,
    ) {
        let busy = !self.shard.is_empty();
        // INVARIANT: A shard with tasks is counted by the LLC that it is in.
        if busy {
            self.add_busy(-1);
        }
        self.shard.llc_ptr().store(llc, Relaxed);
        if busy {
            self.add_busy(1);
        }
        self.shard.next_ptr().store(next, Relaxed);
    }
}

/// Enters the shard named after `place.home` into the ring of its LLC.
///
/// # Safety
///
/// `place` names possible CPUs.
pub(crate) unsafe fn enter(place: Place) {
    let irq = kernel::interrupt::local_interrupt_disable();
    // SAFETY: These are possible CPUs by the safety requirements.
    let (shard, next, llc) = unsafe {
        (
            Shard::from_raw(bindings::shared_runq_shard_of(place.home)),
            bindings::shared_runq_shard_of(place.next),
            bindings::shared_runq_llc_of(place.llc),
        )
    };
    let shards = u32::try_from(place.shards).unwrap_or(u32::MAX);
    // SAFETY: LLCs are never freed; all accesses to the field are atomic.
    unsafe { Atomic::from_ptr(&raw mut (*llc).nr_shards) }.store(shards, Relaxed);
    shard.lock(&irq).join(llc, next);
}

/// The CPUs of an LLC, each with the CPU that stands for its core.
///
/// # Invariants
///
/// `llc` is valid for reading while this exists.
#[derive(Clone)]
pub(crate) struct Cpus {
    llc: *const bindings::cpumask,
    last: i32,
}

impl Cpus {
    /// The CPUs in `llc`.
    ///
    /// # Safety
    ///
    /// `llc` stays valid for reading while this exists.
    pub(crate) unsafe fn new(llc: *const bindings::cpumask) -> Self {
        // INVARIANT: By the safety requirements.
        Self { llc, last: -1 }
    }
}

impl Iterator for Cpus {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        // SAFETY: `llc` is valid by the type invariants.
        let cpu = unsafe { bindings::shared_runq_next_cpu(self.last, self.llc) };
        if cpu >= kernel::cpu::nr_cpu_ids() {
            return None;
        }
        self.last = i32::try_from(cpu).ok()?;
        // SAFETY: `llc` is valid by the type invariants, and `cpu` is in it.
        let core = unsafe { bindings::shared_runq_core_of(cpu, self.llc) };
        Some((cpu, core))
    }
}

/// Shards and nodes that no scheduler knows, for tests.
#[cfg(CONFIG_SCHED_LLC_KUNIT_TEST)]
pub(crate) mod fake {
    use super::*;
    use kernel::static_lock_class;

    /// A ring of shards in one LLC, and nodes.
    pub(crate) struct Llc {
        shards: KVec<KBox<bindings::shared_runq_shard>>,
        nodes: KVec<KBox<bindings::shared_runq_node>>,
        llc: KBox<bindings::shared_runq_llc>,
    }

    impl Llc {
        pub(crate) fn new(shards: usize, nodes: usize) -> Result<Self> {
            let mut this = Self {
                shards: KVec::new(),
                nodes: KVec::new(),
                llc: KBox::new(pin_init::zeroed(), GFP_KERNEL)?,
            };
            this.llc.nr_shards = shards as u32;
            for _ in 0..shards {
                let shard = KBox::new(
                    pin_init::zeroed::<bindings::shared_runq_shard>(),
                    GFP_KERNEL,
                )?;
                this.shards.push(shard, GFP_KERNEL)?;
            }
            for i in 0..shards {
                let next = &raw mut *this.shards[(i + 1) % shards];
                let shard = &mut *this.shards[i];
                // SAFETY: The lock and the list head are valid for writing, name and class are
                // static.
                unsafe {
                    bindings::raw_spin_lock_init(
                        &raw mut shard.lock,
                        c"fake_shard".as_char_ptr(),
                        static_lock_class!().as_ptr(),
                    );
                    bindings::INIT_LIST_HEAD(&raw mut shard.tasks);
                }
                shard.llc = &raw mut *this.llc;
                shard.next = next;
            }
            for _ in 0..nodes {
                let node = KBox::new(pin_init::zeroed::<bindings::shared_runq_node>(), GFP_KERNEL)?;
                this.nodes.push(node, GFP_KERNEL)?;
            }
            for node in &mut this.nodes {
                // SAFETY: The list head is valid for writing.
                unsafe { bindings::INIT_LIST_HEAD(&raw mut node.list) };
            }
            Ok(this)
        }

        pub(crate) fn shard(&self, i: usize) -> &Shard {
            // SAFETY: The shard is initialised by `new()`, and lives as long as `self`.
            unsafe { Shard::from_raw((&raw const *self.shards[i]).cast_mut()) }
        }

        pub(crate) fn node(&self, i: usize) -> &Node {
            // SAFETY: The node is initialised by `new()`, and lives as long as `self`.
            unsafe { Node::from_raw((&raw const *self.nodes[i]).cast_mut()) }
        }

        /// Which node this is.
        pub(crate) fn index(&self, node: &Node) -> Option<usize> {
            self.nodes
                .iter()
                .position(|other| ptr::eq(&raw const **other, node.as_raw()))
        }

        /// The indices of the nodes in a shard, in order.
        pub(crate) fn tasks(
            &self,
            shard: usize,
            irq: &LocalInterruptDisabled,
        ) -> [Option<usize>; 4] {
            let locked = self.shard(shard).lock(irq);
            let mut tasks = [None; 4];
            let mut at = None;
            for slot in &mut tasks {
                at = locked.after(at);
                let Some(node) = at else {
                    break;
                };
                *slot = self.index(node);
            }
            tasks
        }

        pub(crate) fn stat(&self, shard: usize, stat: Stat) -> u64 {
            self.shards[shard].stats[stat.0 as usize]
        }

        pub(crate) fn nr_busy(&self) -> i32 {
            self.llc.nr_busy.counter
        }
    }
}

#[cfg(CONFIG_SCHED_LLC_KUNIT_TEST)]
#[kunit_tests(sched_llc_shard)]
mod tests {
    use super::*;
    // For one statement: an assertion that fails ends the thread, and must find them enabled.
    use kernel::interrupt::local_interrupt_disable as irq;

    #[test]
    fn push_keeps_order_and_counts() -> Result {
        let llc = fake::Llc::new(2, 3)?;
        for i in 0..3 {
            llc.shard(0).lock(&irq()).push(llc.node(i));
        }
        assert_eq!(llc.tasks(0, &irq()), [Some(0), Some(1), Some(2), None]);
        assert_eq!(llc.shard(0).nr().load(Relaxed), 3);
        assert_eq!(llc.stat(0, Stat::PUSHED), 3);
        assert_eq!(llc.nr_busy(), 1);
        assert!(llc.shard(1).is_empty());
        Ok(())
    }

    #[test]
    fn second_push_changes_nothing() -> Result {
        let llc = fake::Llc::new(2, 2)?;
        llc.shard(0).lock(&irq()).push(llc.node(0));
        llc.shard(0).lock(&irq()).push(llc.node(1));
        llc.shard(0).lock(&irq()).push(llc.node(0));
        llc.shard(1).lock(&irq()).push(llc.node(0));
        assert_eq!(llc.tasks(0, &irq()), [Some(0), Some(1), None, None]);
        assert!(llc.shard(1).is_empty());
        assert_eq!(llc.stat(0, Stat::PUSHED), 2);
        Ok(())
    }

    #[test]
    fn unlink_first_middle_last_and_twice() -> Result {
        let llc = fake::Llc::new(1, 3)?;
        for i in 0..3 {
            llc.shard(0).lock(&irq()).push(llc.node(i));
        }
        llc.node(1).unlink(&irq());
        assert_eq!(llc.tasks(0, &irq()), [Some(0), Some(2), None, None]);
        llc.node(1).unlink(&irq());
        assert_eq!(llc.shard(0).nr().load(Relaxed), 2);
        llc.node(0).unlink(&irq());
        assert_eq!(llc.nr_busy(), 1);
        llc.node(2).unlink(&irq());
        assert!(llc.shard(0).is_empty());
        assert_eq!(llc.nr_busy(), 0);
        Ok(())
    }

    #[test]
    fn drain_in_bounded_steps() -> Result {
        let llc = fake::Llc::new(1, 2 * DRAIN_MAX + 1)?;
        for i in 0..2 * DRAIN_MAX + 1 {
            llc.shard(0).lock(&irq()).push(llc.node(i));
        }
        assert!(llc.shard(0).lock(&irq()).drain());
        assert_eq!(llc.shard(0).nr().load(Relaxed) as usize, DRAIN_MAX + 1);
        assert!(llc.shard(0).lock(&irq()).drain());
        assert_eq!(llc.nr_busy(), 1);
        assert!(!llc.shard(0).lock(&irq()).drain());
        assert!(llc.shard(0).is_empty());
        assert_eq!(llc.nr_busy(), 0);
        Ok(())
    }

    #[test]
    fn rotate_keeps_all() -> Result {
        let llc = fake::Llc::new(1, 3)?;
        for i in 0..3 {
            llc.shard(0).lock(&irq()).push(llc.node(i));
        }
        llc.shard(0).lock(&irq()).rotate_to(llc.node(2));
        assert_eq!(llc.tasks(0, &irq()), [Some(2), Some(0), Some(1), None]);
        llc.shard(0).lock(&irq()).rotate_to(llc.node(2));
        assert_eq!(llc.tasks(0, &irq()), [Some(2), Some(0), Some(1), None]);
        Ok(())
    }

    #[test]
    fn busy_shard_changes_its_llc() -> Result {
        let old = fake::Llc::new(1, 1)?;
        let new = fake::Llc::new(1, 0)?;
        old.shard(0).lock(&irq()).push(old.node(0));
        let llc = new.shard(0).llc_ptr().load(Relaxed);
        let next = new.shard(0).0.get();
        old.shard(0).lock(&irq()).join(llc, next);
        assert_eq!((old.nr_busy(), new.nr_busy()), (0, 1));
        assert!(ptr::eq(old.shard(0).next(), new.shard(0)));
        old.node(0).unlink(&irq());
        assert_eq!((old.nr_busy(), new.nr_busy()), (0, 0));
        Ok(())
    }
}
