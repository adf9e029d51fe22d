// SPDX-License-Identifier: GPL-2.0

//! Which CPUs of an LLC share a shard.

/// How many CPUs share a shard, about.
///
/// A shard of this size keeps its lock within reach of few CPUs; measured for the C ancestor of
/// this code, where a queue for a whole LLC of 36 CPUs spent 200 times as long waiting for its
/// lock as one for every 6 CPUs.
pub(crate) const CPUS_PER_SHARD: usize = 6;

/// The place of a CPU in its LLC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The first CPU of those that share the CPU's shard; the shard is named after it.
    pub(crate) home: u32,
    /// The same for the next shard, around the ring.
    pub(crate) next: u32,
    /// The first CPU of the LLC.
    pub(crate) llc: u32,
    /// How many shards the LLC has.
    pub(crate) shards: usize,
}

/// Finds the place of `cpu` in an LLC, given as its CPUs in ascending order, each with the CPU
/// that stands for its core: the lowest of its siblings in the LLC.
///
/// The LLC has one shard for every [`CPUS_PER_SHARD`] CPUs, at least one, at most one for each
/// core. The shards have the same number of cores, give or take one, in the order of the cores,
/// so that siblings share a shard whatever their numbers are.
///
/// Returns `None` if `cpu` is not in the LLC.
pub(crate) fn place(cpu: u32, llc: impl Iterator<Item = (u32, u32)> + Clone) -> Option<Place> {
    let (first, _) = llc.clone().next()?;
    let (_, core) = llc.clone().find(|(other, _)| *other == cpu)?;

    let cores = llc
        .clone()
        .filter(|(cpu, core)| cpu == core)
        .map(|(cpu, _)| cpu);
    let nr_cores = cores.clone().count();
    let rank = cores.clone().position(|other| other == core)?;
    let shards = llc.count().div_ceil(CPUS_PER_SHARD).min(nr_cores);

    // The number of CPUs is at most 2^13, so that none of these overflows.
    let shard = rank.wrapping_mul(shards).checked_div(nr_cores)?;
    let leader = |shard: usize| {
        let rank = shard.wrapping_mul(nr_cores).div_ceil(shards.max(1));
        cores.clone().nth(rank)
    };
    let next = shard.wrapping_add(1);
    Some(Place {
        home: leader(shard)?,
        next: leader(if next < shards { next } else { 0 })?,
        llc: first,
        shards,
    })
}

#[cfg(any(test, CONFIG_SCHED_LLC_KUNIT_TEST))]
#[cfg_attr(not(test), kernel::macros::kunit_tests(sched_llc_geometry))]
mod tests {
    use super::*;

    /// `cpus` CPUs of one thread a core, from `first` on.
    fn flat(first: u32, cpus: u32) -> impl Iterator<Item = (u32, u32)> + Clone {
        (first..first + cpus).map(|cpu| (cpu, cpu))
    }

    /// `cpus` CPUs where the siblings of a core are `cpus / threads` apart, as on most x86.
    fn spread(cpus: u32, threads: u32) -> impl Iterator<Item = (u32, u32)> + Clone {
        (0..cpus).map(move |cpu| (cpu, cpu % (cpus / threads)))
    }

    /// `cpus` CPUs where the siblings of a core follow each other.
    fn packed(cpus: u32, threads: u32) -> impl Iterator<Item = (u32, u32)> + Clone {
        (0..cpus).map(move |cpu| (cpu, cpu / threads * threads))
    }

    /// Checks what must hold in every LLC, and returns the number of shards.
    fn check(llc: impl Iterator<Item = (u32, u32)> + Clone) -> usize {
        let nr = llc.clone().count();
        let first = llc.clone().next().map(|(cpu, _)| cpu);
        let cores = llc.clone().filter(|(cpu, core)| cpu == core).count();
        let mut leaders = 0;
        let mut shards = 0;
        for (cpu, core) in llc.clone() {
            let Some(place) = place(cpu, llc.clone()) else {
                return 0;
            };
            shards = place.shards;
            assert_eq!(Some(place.llc), first);
            // Siblings share a shard.
            assert_eq!(super::place(core, llc.clone()), Some(place));
            // A shard is led by one of its own CPUs, the lowest.
            let home = super::place(place.home, llc.clone());
            assert_eq!(home.map(|p| p.home), Some(place.home));
            assert!(place.home <= cpu);
            if place.home != cpu {
                continue;
            }
            leaders += 1;
            // The shards are even: none has more than its part of the cores, rounded up.
            let served = llc.clone().filter(|(other, core)| {
                other == core
                    && super::place(*other, llc.clone()).map(|p| p.home) == Some(place.home)
            });
            assert!(served.count() <= cores.div_ceil(shards));
            // The ring visits every shard before it comes back.
            let mut at = place;
            let mut steps = 0;
            while steps <= shards {
                steps += 1;
                let Some(next) = super::place(at.next, llc.clone()) else {
                    return 0;
                };
                assert_eq!(next.home, at.next);
                at = next;
                if at.home == place.home {
                    break;
                }
            }
            assert_eq!(steps, shards);
        }
        assert_eq!(leaders, shards);
        assert_eq!(shards, nr.div_ceil(6).min(cores));
        shards
    }

    #[test]
    fn number_of_shards() {
        for (cpus, shards) in [(1, 1), (2, 1), (6, 1), (7, 2), (12, 2), (13, 3), (64, 11)] {
            assert_eq!(check(flat(0, cpus)), shards);
            assert_eq!(check(flat(24, cpus)), shards);
        }
        assert_eq!(check(flat(0, 128)), 22);
    }

    #[test]
    fn siblings_share_a_shard() {
        for cpus in [2, 4, 8, 12, 16, 64, 128] {
            check(spread(cpus, 2));
            check(packed(cpus, 2));
        }
        assert_eq!(check(spread(16, 4)), 3);
        assert_eq!(check(packed(16, 8)), 2);
    }

    #[test]
    fn odd_smt() {
        // A core of 8 threads has more than CPUS_PER_SHARD CPUs, and still one shard.
        assert_eq!(check(packed(8, 8)), 1);
        // Three threads a core; and a core that lost one of its siblings to another partition.
        assert_eq!(check(packed(9, 3)), 2);
        let cores = [(0, 0), (1, 1), (2, 2), (3, 3), (8, 0), (10, 2), (11, 3)];
        assert_eq!(check(cores.into_iter()), 2);
    }

    #[test]
    fn not_in_the_llc() {
        assert!(place(8, flat(0, 8)).is_none());
        assert!(place(0, flat(8, 8)).is_none());
        assert!(place(0, flat(0, 0)).is_none());
    }
}
