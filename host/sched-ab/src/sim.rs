// SPDX-License-Identifier: GPL-2.0

//! The simulated machine: a deterministic guest whose CPUs all run at one speed.
//!
//! `docs/sim.md` says why each of its options is there, and what was measured.

use anyhow::{Context, Result, ensure};

use crate::guest::Topo;

/// CPUs of the housekeeping LLC. QEMU treats the first two of its list worse than the others.
const HOUSEKEEPING: u32 = 2;

/// How many CPUs are declared for each that runs, at least: the more, the finer the turns and the
/// more even the speeds.
const DECLARED: u32 = 3;
/// The time between two virtual timers for each CPU that is declared, in microseconds: how long a
/// turn is. The longer, the more even the speeds; a wakeup on another CPU takes up to a turn.
const TURN_US: u32 = 15;

/// What a CPU is made of: nothing that differs from run to run.
const CPU: &str = "rdrand=off,rdseed=off,monitor=off";

/// The measured CPUs have the topology `topo`; one more LLC is for housekeeping.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    topo: Topo,
}

impl Machine {
    /// A machine with the LLCs, cores and threads of `topo` to measure.
    pub fn new(topo: Topo) -> Self {
        Self { topo }
    }

    /// Refuses what cannot be simulated.
    ///
    /// # Errors
    ///
    /// When an LLC is too small for the housekeeping, or there are too many CPUs to number.
    pub fn check(self) -> Result<()> {
        ensure!(
            self.per_socket() >= HOUSEKEEPING,
            "topology {}: a simulated LLC has at least {HOUSEKEEPING} CPUs",
            self.topo
        );
        let whole: Result<Topo> = self.whole().to_string().parse();
        whole
            .map(drop)
            .with_context(|| format!("topology {}, with what a simulated machine adds", self.topo))
    }

    /// The CPUs that run, those for housekeeping included. Their numbers come first.
    pub fn cpus(self) -> u32 {
        HOUSEKEEPING + self.topo.cpus()
    }

    /// The CPUs that are measured.
    pub fn measured(self) -> Vec<u32> {
        (HOUSEKEEPING..self.cpus()).collect()
    }

    /// CPUs of a socket: all have as many, though not all of the first exist.
    fn per_socket(self) -> u32 {
        self.topo.cores * self.topo.threads
    }

    /// Sockets with CPUs that are declared and never started.
    fn surplus(self) -> u32 {
        ((DECLARED - 1) * self.cpus()).div_ceil(self.per_socket())
    }

    /// All CPUs that are declared.
    fn declared(self) -> u32 {
        self.cpus() + self.surplus() * self.per_socket()
    }

    /// The largest topology that QEMU has to number: the housekeeping LLC, the measured ones, and
    /// those that are never started.
    fn whole(self) -> Topo {
        Topo {
            llcs: 1 + self.topo.llcs + self.surplus(),
            ..self.topo
        }
    }

    /// QEMU's options.
    pub fn options(self) -> Vec<String> {
        let Topo {
            llcs,
            cores,
            threads,
        } = self.whole();
        let mut options = vec![
            "-cpu".to_owned(),
            format!("max,{CPU}"),
            "-smp".to_owned(),
            format!(
                "1,maxcpus={},sockets={llcs},cores={cores},threads={threads}",
                llcs * cores * threads
            ),
        ];
        // The first CPU is there already.
        let housekeeping = (1..HOUSEKEEPING).map(|cpu| (0, cpu));
        let others = (1..llcs).flat_map(|s| (0..self.per_socket()).map(move |cpu| (s, cpu)));
        for (socket, cpu) in housekeeping.chain(others) {
            let (core, thread) = (cpu / threads, cpu % threads);
            options.push("-device".to_owned());
            options.push(format!(
                "max-x86_64-cpu,socket-id={socket},die-id=0,module-id=0,core-id={core},\
                 thread-id={thread},{CPU}"
            ));
        }
        let interval = self.declared() * TURN_US;
        let more = [
            "-icount",
            "shift=0,sleep=off",
            "-rtc",
            "base=2026-01-01,clock=vm",
            "-netdev",
            "hubport,hubid=0,id=n0",
            "-object",
            &format!("filter-buffer,netdev=n0,id=f0,interval={interval}"),
        ];
        options.extend(more.map(str::to_owned));
        options
    }

    /// For the kernel's command line.
    pub fn append(self) -> String {
        let cpus = self.cpus();
        format!(
            "nr_cpus={cpus} tsc_early_khz={cpus}000000 tsc=reliable idle=halt nokaslr norandmaps \
             random.trust_cpu=off cpu_init_udelay=0 cpuhp.parallel=0 schedstats=enable"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(topo: &str) -> Machine {
        Machine::new(topo.parse().unwrap())
    }

    #[test]
    fn each_cpu_is_declared_once() {
        for (topo, runs, declared) in [
            ("1x8x1", 10, 34),
            ("2x8x1", 18, 58),
            ("4x4x1", 18, 54),
            ("1x4x2", 10, 34),
        ] {
            let machine = machine(topo);
            assert_eq!((machine.cpus(), machine.declared()), (runs, declared));
            let options = machine.options();
            let mut devices: Vec<_> = options
                .iter()
                .filter(|option| option.starts_with("max-x86_64-cpu"))
                .collect();
            assert_eq!(devices.len() as u32, declared - 1, "{topo}");
            devices.sort();
            devices.dedup();
            assert_eq!(devices.len() as u32, declared - 1, "{topo}");
            // What QEMU and the kernel can number.
            assert!(machine.whole().to_string().parse::<Topo>().is_ok());
        }
    }

    #[test]
    fn what_cannot_be_simulated_is_refused() {
        for (topo, cause) in [
            ("4x1x1", "a simulated LLC has at least 2 CPUs"),
            ("1x60x1", "too large"),
        ] {
            let error = format!("{:#}", machine(topo).check().unwrap_err());
            assert!(error.contains(cause), "{error}");
        }
        for topo in ["1x8x1", "2x8x1", "4x4x1", "1x32x1", "1x1x2"] {
            machine(topo).check().unwrap();
        }
    }

    #[test]
    fn siblings_of_housekeeping_share_a_core_as_others_do() {
        let options = machine("1x4x2").options().join(" ");
        assert!(options.contains("socket-id=0,die-id=0,module-id=0,core-id=0,thread-id=1"));
        let options = machine("1x4x1").options().join(" ");
        assert!(options.contains("socket-id=0,die-id=0,module-id=0,core-id=1,thread-id=0"));
    }

    #[test]
    fn time_is_dilated_by_the_cpus_that_run() {
        let machine = machine("2x4x1");
        assert_eq!(machine.measured(), [2, 3, 4, 5, 6, 7, 8, 9]);
        let append = machine.append();
        assert!(append.starts_with("nr_cpus=10 tsc_early_khz=10000000 "));
    }
}
