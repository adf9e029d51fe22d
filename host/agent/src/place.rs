// SPDX-License-Identifier: GPL-2.0

//! Where and when runs in a simulated machine start, and how fast its CPUs are.

use std::{
    hint::black_box,
    os::unix::process::CommandExt,
    panic::resume_unwind,
    process::Command,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use sched_ab_protocol::Seeds;

/// A run waits less than this many microseconds.
const DELAY_US: u64 = 1000;
/// Turns of the loop that measures speed: some milliseconds.
const TURNS: u64 = 500_000;

/// What a seed means.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The seed.
    pub seed: u32,
    /// How long the run waits.
    pub delay: Duration,
    /// The CPU that it starts on.
    start: u32,
    /// Those it may use from then on.
    pub cpus: Vec<u32>,
}

impl Place {
    /// That of a round, in which 0 is the warm-up.
    pub fn new(seeds: &Seeds, round: u32) -> Self {
        let seed = if round == 0 {
            0
        } else {
            seeds.first + round - 1
        };
        let mut random = fastrand::Rng::with_seed(u64::from(seed));
        Self {
            seed,
            delay: Duration::from_micros(random.u64(..DELAY_US)),
            start: random.choice(&seeds.cpus).copied().unwrap_or_default(),
            cpus: seeds.cpus.clone(),
        }
    }

    /// Lets `program` start there.
    pub fn put(&self, program: &mut Command) -> Result<()> {
        let (start, all) = (set(&[self.start])?, set(&self.cpus)?);
        // SAFETY: Between fork and exec the closure only makes system calls, and allocates nothing.
        unsafe {
            program.pre_exec(move || {
                sched_setaffinity(Pid::from_raw(0), &start)?;
                // It stays where it is until the scheduler moves it.
                sched_setaffinity(Pid::from_raw(0), &all)?;
                Ok(())
            });
        }
        Ok(())
    }
}

fn set(cpus: &[u32]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(usize::try_from(cpu)?)
            .with_context(|| format!("CPU {cpu} is out of range"))?;
    }
    Ok(set)
}

/// Keeps this process off the CPUs that are measured.
pub fn keep_off(measured: &[u32]) -> Result<()> {
    let mut rest = nix::sched::sched_getaffinity(Pid::from_raw(0))?;
    for &cpu in measured {
        rest.unset(usize::try_from(cpu)?)?;
    }
    sched_setaffinity(Pid::from_raw(0), &rest).context("no CPU is left for housekeeping")
}

/// Runs a fixed loop on each of `cpus` at once; the nanoseconds that each took.
pub fn speed(cpus: &[u32]) -> Result<Vec<u64>> {
    let barrier = Barrier::new(cpus.len());
    let measure = |cpu: u32| -> Result<u64> {
        let pinned = set(&[cpu]).and_then(|set| Ok(sched_setaffinity(Pid::from_raw(0), &set)?));
        // All wait for all, also when one failed.
        barrier.wait();
        pinned.with_context(|| format!("cannot run on CPU {cpu}"))?;
        let start = Instant::now();
        let mut sum = 0_u64;
        for turn in 0..TURNS {
            sum = black_box(sum.wrapping_add(turn));
        }
        Ok(u64::try_from(start.elapsed().as_nanos())?)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| scope.spawn(move || measure(cpu)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(first: u32) -> Seeds {
        let cpus = vec![2, 3, 4, 5];
        Seeds { first, cpus }
    }

    #[test]
    fn a_seed_means_the_same_in_any_round() {
        assert_eq!(Place::new(&seeds(1), 5), Place::new(&seeds(5), 1));
        assert_eq!(Place::new(&seeds(1), 0), Place::new(&seeds(9), 0));
        let places: Vec<_> = (1..=40).map(|round| Place::new(&seeds(1), round)).collect();
        for cpu in 2..=5 {
            assert!(places.iter().any(|place| place.start == cpu));
        }
        assert!(places.iter().all(|p| p.delay < Duration::from_millis(1)));
        assert!(places[1..].iter().any(|p| p.delay != places[0].delay));
    }

    #[test]
    fn a_program_may_use_what_it_is_given() {
        let seeds = Seeds {
            first: 1,
            cpus: vec![0],
        };
        let mut program = Command::new("sh");
        program.args(["-c", "grep Cpus_allowed_list /proc/self/status"]);
        Place::new(&seeds, 1).put(&mut program).unwrap();
        let output = String::from_utf8(program.output().unwrap().stdout).unwrap();
        assert_eq!(output, "Cpus_allowed_list:\t0\n");
    }

    #[test]
    fn the_loop_takes_time_on_each_cpu() {
        assert!(speed(&[0]).unwrap()[0] > 1000);
        assert!(
            speed(&[1 << 20])
                .unwrap_err()
                .to_string()
                .contains("CPU 1048576")
        );
    }
}
