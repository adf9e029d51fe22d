// SPDX-License-Identifier: GPL-2.0

//! The scan of the shards for a task to pull.

use kernel::{
    bindings,
    interrupt::LocalInterruptDisabled, //
};

use crate::shard::{
    Locked,
    Node,
    Shard,
    Stat, //
};

/// How many tasks of a shard a scan looks at.
///
/// Each costs a few loads and, if its affinity allows, a trylock: a hold time of the shard lock
/// of some microseconds. What is behind the bound comes to the front for the next scan, so that
/// tasks that may not run here cannot hide others for good.
pub(crate) const SCAN_MAX: usize = 16;

/// Who decides whether a task may be pulled.
pub(crate) trait Source {
    /// Tries to get hold of the task of `node`, which is linked in a shard whose lock is held.
    ///
    /// Returns [`Stat::PULLED`] with the runqueue of the task locked, else why not, without.
    fn try_take(&mut self, node: &Node) -> Stat;
}

/// The runqueue of this CPU, as the destination of a pull.
///
/// # Invariants
///
/// The pointer is that of the runqueue of this CPU, whose lock is not held.
pub(crate) struct Runqueue(*mut bindings::rq);

impl Runqueue {
    /// Wraps the runqueue of this CPU.
    ///
    /// # Safety
    ///
    /// `rq` is the runqueue of this CPU, and no runqueue lock is held while this exists.
    pub(crate) unsafe fn new(rq: *mut bindings::rq) -> Self {
        // INVARIANT: By the safety requirements.
        Self(rq)
    }
}

impl Source for Runqueue {
    #[inline]
    fn try_take(&mut self, node: &Node) -> Stat {
        // SAFETY: The node is linked and the lock of its shard is held, so that the task is
        // valid; the runqueue is by the type invariants.
        Stat::from_raw(unsafe { bindings::shared_runq_try_source(node.as_raw(), self.0) })
    }
}

/// What a scan of one shard came to.
enum Scan<'a> {
    /// This one, unlinked, with its runqueue locked.
    Task(&'a Node),
    /// There is no need to look further: a task came to this CPU meanwhile.
    Stop,
    /// Nothing that may be pulled was found.
    Nothing,
}

/// Scans one shard, from the front, up to [`SCAN_MAX`] tasks.
fn scan<'a>(mut shard: Locked<'a>, source: &mut impl Source) -> Scan<'a> {
    let mut at = None;
    for _ in 0..SCAN_MAX {
        at = shard.after(at);
        let Some(node) = at else {
            return Scan::Nothing;
        };
        shard.count(Stat::SCANNED);
        let verdict = source.try_take(node);
        shard.count(verdict);
        match verdict {
            Stat::PULLED => {
                shard.unlink(node);
                return Scan::Task(node);
            }
            Stat::REFUSED_OWN => return Scan::Stop,
            _ => {}
        }
    }
    if let Some(node) = shard.after(at) {
        shard.count(Stat::SCAN_LIMIT);
        shard.rotate_to(node);
    }
    Scan::Nothing
}

/// Looks for a task in the shards of an LLC, `home` first and then around the ring.
///
/// Returns the node of a task that is unlinked and whose runqueue is locked.
pub(crate) fn pull<'a>(
    home: &'a Shard,
    source: &mut impl Source,
    irq: &'a LocalInterruptDisabled,
) -> Option<&'a Node> {
    let mut shard = home;
    for _ in 0..home.ring_len() {
        if !shard.is_empty() {
            match scan(shard.lock(irq), source) {
                Scan::Task(node) => return Some(node),
                Scan::Stop => return None,
                Scan::Nothing => {}
            }
        }
        shard = shard.next();
    }
    None
}

#[cfg(CONFIG_SCHED_LLC_KUNIT_TEST)]
#[kernel::macros::kunit_tests(sched_llc_pull)]
mod tests {
    use super::*;
    use crate::shard::fake::Llc;
    use kernel::{
        // For one statement: an assertion that fails ends the thread, and must find them enabled.
        interrupt::local_interrupt_disable as irq,
        prelude::*, //
    };

    /// Takes the nodes that `verdict` says, and notes the order that it was asked in.
    struct Fake<'a, F> {
        llc: &'a Llc,
        verdict: F,
        asked: [Option<usize>; 64],
        nr: usize,
    }

    impl<'a, F: Fn(usize) -> Stat> Fake<'a, F> {
        fn new(llc: &'a Llc, verdict: F) -> Self {
            Self {
                llc,
                verdict,
                asked: [None; 64],
                nr: 0,
            }
        }
    }

    impl<F: Fn(usize) -> Stat> Source for Fake<'_, F> {
        fn try_take(&mut self, node: &Node) -> Stat {
            let Some(i) = self.llc.index(node) else {
                return Stat::REFUSED_OWN;
            };
            if let Some(slot) = self.asked.get_mut(self.nr) {
                *slot = Some(i);
            }
            self.nr += 1;
            (self.verdict)(i)
        }
    }

    /// Links `nodes` nodes: node i in shard i % `shards`.
    fn fill(llc: &Llc, shards: usize, nodes: usize) {
        for i in 0..nodes {
            llc.shard(i % shards).lock(&irq()).push(llc.node(i));
        }
    }

    #[test]
    fn first_that_may_run_is_taken_and_unlinked() -> Result {
        let llc = Llc::new(1, 4)?;
        fill(&llc, 1, 4);
        let mut source = Fake::new(&llc, |i| {
            if i == 2 {
                Stat::PULLED
            } else {
                Stat::REFUSED_RUNNING
            }
        });
        let taken = pull(llc.shard(0), &mut source, &irq()).and_then(|node| llc.index(node));
        assert_eq!(taken, Some(2));
        assert_eq!(source.nr, 3);
        assert_eq!(llc.tasks(0, &irq()), [Some(0), Some(1), Some(3), None]);
        assert_eq!(llc.stat(0, Stat::SCANNED), 3);
        assert_eq!(llc.stat(0, Stat::PULLED), 1);
        assert_eq!(llc.stat(0, Stat::REFUSED_RUNNING), 2);
        Ok(())
    }

    #[test]
    fn refused_tasks_stay_linked() -> Result {
        let llc = Llc::new(1, 3)?;
        fill(&llc, 1, 3);
        let mut source = Fake::new(&llc, |_| Stat::REFUSED_RUNNING);
        assert!(pull(llc.shard(0), &mut source, &irq()).is_none());
        assert_eq!(llc.tasks(0, &irq()), [Some(0), Some(1), Some(2), None]);
        Ok(())
    }

    #[test]
    fn own_shard_first_then_the_ring_once() -> Result {
        let llc = Llc::new(3, 3)?;
        fill(&llc, 3, 3);
        let mut source = Fake::new(&llc, |_| Stat::REFUSED_RUNNING);
        assert!(pull(llc.shard(1), &mut source, &irq()).is_none());
        assert_eq!(source.nr, 3);
        assert_eq!(source.asked[..3], [Some(1), Some(2), Some(0)]);
        Ok(())
    }

    #[test]
    fn own_task_ends_the_search() -> Result {
        let llc = Llc::new(2, 4)?;
        fill(&llc, 2, 4);
        let mut source = Fake::new(&llc, |_| Stat::REFUSED_OWN);
        assert!(pull(llc.shard(0), &mut source, &irq()).is_none());
        assert_eq!(source.nr, 1);
        Ok(())
    }

    #[test]
    fn scan_is_bounded_and_comes_to_all() -> Result {
        let nodes = 2 * SCAN_MAX + 3;
        let llc = Llc::new(1, nodes)?;
        fill(&llc, 1, nodes);
        let last = nodes - 1;
        let mut scans = 0;
        loop {
            let mut source = Fake::new(&llc, |i| {
                if i == last {
                    Stat::PULLED
                } else {
                    Stat::REFUSED_RUNNING
                }
            });
            let taken = pull(llc.shard(0), &mut source, &irq()).is_some();
            assert!(source.nr <= SCAN_MAX);
            scans += 1;
            if taken || scans > 3 {
                break;
            }
        }
        assert_eq!(scans, 3);
        assert_eq!(llc.stat(0, Stat::SCAN_LIMIT), 2);
        Ok(())
    }
}
