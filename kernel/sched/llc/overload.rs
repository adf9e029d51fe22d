// SPDX-License-Identifier: GPL-2.0

//! Which CPUs are overloaded, and what that leaves of a search for an idle one.

/// Whether a CPU has a task that waits for another one: more than one that is not of idle policy.
///
/// `running`, `queued`, `runnable` and `idle` are `rq->nr_running` and the `h_nr_*` of its
/// `cfs_rq`. What is queued and not runnable are delayed tasks, which run only to be dequeued.
/// `idle` counts tasks of idle policy and all tasks of groups with `cpu.idle`; it counts a delayed
/// one of these as well, which is subtracted twice then.
#[inline]
pub(crate) fn overloaded(running: u32, queued: u32, runnable: u32, idle: u32) -> bool {
    let delayed = queued.saturating_sub(runnable);

    running.saturating_sub(delayed).saturating_sub(idle) > 1
}

/// The same word of the masks of a search.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    /// The CPUs of the LLC.
    pub(crate) span: usize,
    /// The CPUs that the task may use.
    pub(crate) allowed: usize,
    /// The overloaded ones.
    pub(crate) overloaded: usize,
}

/// How many CPUs there are to search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// CPUs of the LLC that the task may use.
    pub(crate) candidates: u32,
    /// Those of them that are not overloaded.
    pub(crate) left: u32,
}

/// Fewer than one in so many left, in whole numbers, are few.
///
/// From the 2022 version of the filter, which took the part of the whole LLC instead of what the
/// task may use.
const FEW: u32 = 16;

impl Counts {
    /// Whether so few are left that it is not likely that one of them is idle.
    #[inline]
    pub(crate) fn few(self) -> bool {
        self.left < self.candidates / FEW
    }
}

/// Hands the CPUs to search to `left`, word by word, and counts them.
#[inline]
pub(crate) fn narrow(words: impl Iterator<Item = Word>, mut left: impl FnMut(usize)) -> Counts {
    let mut counts = Counts::default();
    for word in words {
        let candidates = word.span & word.allowed;
        let rest = candidates & !word.overloaded;
        counts.candidates = counts.candidates.wrapping_add(candidates.count_ones());
        counts.left = counts.left.wrapping_add(rest.count_ones());
        left(rest);
    }
    counts
}

#[cfg(any(test, CONFIG_SCHED_LLC_KUNIT_TEST))]
#[cfg_attr(not(test), kernel::macros::kunit_tests(sched_llc_overload))]
mod tests {
    use super::*;

    #[test]
    fn one_task_that_waits_is_overload() {
        // running, queued, runnable, idle
        for (counters, wanted) in [
            ([0, 0, 0, 0], false),
            ([1, 1, 1, 0], false),
            ([2, 2, 2, 0], true),
            // A real-time task in front of a fair one; two real-time tasks.
            ([2, 1, 1, 0], true),
            ([2, 0, 0, 0], true),
            // One of two is delayed; one of three.
            ([2, 2, 1, 0], false),
            ([3, 3, 2, 0], true),
            // Tasks of idle policy do not keep anybody waiting.
            ([2, 2, 2, 1], false),
            ([3, 3, 3, 1], true),
            ([9, 9, 9, 9], false),
            // All delayed and of idle policy: subtracted twice.
            ([2, 2, 0, 2], false),
            ([3, 3, 1, 3], false),
            // A snapshot that does not fit together.
            ([0, 0, 5, 0], false),
            ([u32::MAX, 0, 0, 0], true),
            ([0, u32::MAX, 0, u32::MAX], false),
        ] {
            let [running, queued, runnable, idle] = counters;
            assert_eq!(overloaded(running, queued, runnable, idle), wanted);
        }
    }

    const BITS: u32 = usize::BITS;
    const WORDS: usize = 130usize.div_ceil(BITS as usize);

    /// A xorshift generator: masks that differ, and the same at each run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        /// A mask of `cpus` CPUs, of which each is set with a probability of `eighths` / 8.
        fn mask(&mut self, cpus: u32, eighths: u64) -> [usize; WORDS] {
            let mut mask = [0; WORDS];
            for cpu in 0..cpus {
                if (self.next() >> 40) & 7 < eighths {
                    mask[(cpu / BITS) as usize] |= 1 << (cpu % BITS);
                }
            }
            mask
        }
    }

    fn has(mask: &[usize; WORDS], cpu: u32) -> bool {
        (mask[(cpu / BITS) as usize] >> (cpu % BITS)) & 1 == 1
    }

    #[test]
    fn narrow_is_and_and_not() {
        let mut random = Random(0x5eed);
        for cpus in 1..=130 {
            for round in 0..16 {
                let span = random.mask(cpus, 7);
                let allowed = random.mask(cpus, 8 - round % 3);
                let overloaded = random.mask(cpus, round % 9);
                let mut left = [0; WORDS];
                let mut out = left.iter_mut();
                let words = (0..cpus.div_ceil(BITS) as usize).map(|i| Word {
                    span: span[i],
                    allowed: allowed[i],
                    overloaded: overloaded[i],
                });
                let counts = narrow(words, |word| {
                    if let Some(slot) = out.next() {
                        *slot = word;
                    }
                });
                let mut naive = Counts::default();
                for cpu in 0..cpus {
                    let candidate = has(&span, cpu) && has(&allowed, cpu);
                    let keep = candidate && !has(&overloaded, cpu);
                    naive.candidates += u32::from(candidate);
                    naive.left += u32::from(keep);
                    assert_eq!(has(&left, cpu), keep);
                }
                assert_eq!(counts, naive);
            }
        }
    }

    #[test]
    fn few_are_less_than_one_in_sixteen() {
        for (candidates, left, few) in [
            (0, 0, false),
            (8, 0, false),
            (8, 1, false),
            (16, 0, true),
            (31, 1, false),
            (32, 1, true),
            (32, 2, false),
            (48, 2, true),
            (96, 5, true),
            (96, 6, false),
            (8192, 511, true),
            (8192, 8192, false),
        ] {
            assert_eq!(Counts { candidates, left }.few(), few);
        }
    }
}
