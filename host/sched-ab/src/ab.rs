// SPDX-License-Identifier: GPL-2.0

//! Compares the series' features off and on in one boot.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    thread::available_parallelism,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};
use sched_ab_protocol::{Event, Plan};

use crate::{
    guest::{Accel, Topo, Vm},
    initramfs,
    kbuild::{self, Flavor},
    paths::Paths,
    progress::Step,
    report::{BASE, Counters, Folder, Report, Setting, Side, Topology},
    stats::MAX_POOLED,
    toolchain,
    workload::{WORKLOADS, Workload},
};

/// More features would give more than 16 sides, each of which runs `ROUNDS` times.
const MAX_FEATURES: usize = 4;

/// More rounds would be more samples of a pair than the exact test takes.
const MAX_ROUNDS: i64 = MAX_POOLED as i64 / 2;

/// A run that takes this long, in seconds, hangs: the default takes seconds even under TCG.
const RUN_TIMEOUT_S: u64 = 1200;

/// What to compare.
#[derive(Args, Debug)]
pub struct Options {
    /// Scheduler features: all off, then each combination of them on
    #[arg(long, env = "FEATURES", default_value = "SHARED_RUNQ")]
    features: Features,
    /// What runs in the guest
    #[arg(long, env = "WORKLOAD", default_value = "hackbench")]
    workload: String,
    /// Its arguments; empty for the workload's default
    #[arg(
        long,
        env = "ARGS",
        default_value = "",
        allow_hyphen_values = true,
        hide_default_value = true
    )]
    args: String,
    /// How many times each side runs
    #[arg(long, env = "ROUNDS", default_value_t = 5, value_parser = value_parser!(u32).range(1..=MAX_ROUNDS))]
    rounds: u32,
    /// The guest's CPUs: LLCs x cores x threads
    #[command(flatten)]
    machine: Machine,
}

/// The machine to boot.
#[derive(Args, Debug)]
pub struct Machine {
    /// The guest's CPUs: LLCs x cores x threads
    #[arg(long, env = "TOPO", default_value = "2x4x1")]
    topo: Topo,
    /// Boot this kernel instead of building one
    #[arg(long, value_name = "BZIMAGE")]
    image: Option<PathBuf>,
}

impl Machine {
    /// The kernel; if it is built here, `check` sees the tree before.
    fn image(
        &self,
        paths: &Paths,
        kernel_src: Option<&Path>,
        jobs: Option<usize>,
        check: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        match &self.image {
            Some(image) => Ok(image.clone()),
            None => Ok(kbuild::image(paths, kernel_src, Flavor::Release, jobs, check)?.bzimage),
        }
    }
}

/// Names of scheduler features, at least one.
#[derive(Clone, Debug, PartialEq)]
struct Features(Vec<String>);

impl FromStr for Features {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let names = text.split([' ', ',']).filter(|name| !name.is_empty());
        let names: Vec<_> = names.map(str::to_owned).collect();
        ensure!(!names.is_empty(), "no feature is named");
        ensure!(
            names.len() <= MAX_FEATURES,
            "{} features have too many combinations: at most {MAX_FEATURES} are possible",
            names.len()
        );
        for (index, name) in names.iter().enumerate() {
            ensure!(
                name.starts_with(|c: char| c.is_ascii_uppercase())
                    && name
                        .chars()
                        .all(|c| matches!(c, 'A'..='Z' | '0'..='9' | '_')),
                "'{name}' is no feature: names are in capitals, as in SHARED_RUNQ"
            );
            ensure!(
                !name.starts_with("NO_"),
                "'{name}': name the feature without NO_, it is switched off and on"
            );
            ensure!(!names[..index].contains(name), "{name} is named twice");
        }
        Ok(Self(names))
    }
}

impl Features {
    /// The sides of a comparison: none on, then each combination.
    fn combos(&self) -> Vec<Vec<String>> {
        let on = |bits: usize| {
            let names = self.0.iter().enumerate();
            names.filter(move |(index, _)| bits & (1 << index) != 0)
        };
        (0..1 << self.0.len())
            .map(|bits| on(bits).map(|(_, name)| name.clone()).collect())
            .collect()
    }

    /// Refuses a feature that is not one of `known`.
    fn check(&self, known: &[&str]) -> Result<()> {
        match self.0.iter().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => bail!(
                "unknown feature {name}; the kernel has {}",
                known.join(", ")
            ),
        }
    }
}

/// The names in the kernel's `kernel/sched/features.h`, in order. Some have an entry for each of
/// two configurations.
fn in_source(text: &str) -> Vec<&str> {
    let entries = text
        .lines()
        .filter_map(|line| line.strip_prefix("SCHED_FEAT("));
    let names: BTreeSet<_> = entries
        .filter_map(|entry| Some(entry.split_once(',')?.0.trim()))
        .collect();
    names.into_iter().collect()
}

/// The names in debugfs' `sched/features`, which has `NO_` in front of those that are off.
fn in_debugfs(text: &str) -> Vec<&str> {
    let names = text.split_whitespace();
    names
        .map(|name| name.strip_prefix("NO_").unwrap_or(name))
        .collect()
}

/// How a table names the side with `combo` on.
fn side_name(combo: &[String]) -> String {
    if combo.is_empty() {
        BASE.to_owned()
    } else {
        combo.join("+")
    }
}

/// Sums the counters of `sched/{shared_runq,sis_filter}/stats` over the LLCs, without `linked`,
/// which counts what is there now.
fn counters(text: &str) -> Result<Counters> {
    let mut counters = Counters::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(' ')) {
        let (name, value) = line
            .split_once(' ')
            .and_then(|(name, value)| Some((name, value.trim().parse::<u64>().ok()?)))
            .with_context(|| format!("'{line}' in the kernel's counters has no value"))?;
        if name != "linked" {
            *counters.entry(name.to_owned()).or_default() += value;
        }
    }
    Ok(counters)
}

/// Makes sides of a guest's events.
struct Collect<'a> {
    features: &'a Features,
    workload: &'static Workload,
    rounds: u32,
    sides: Vec<Side>,
    step: Step,
    runs: u64,
}

impl<'a> Collect<'a> {
    fn new(features: &'a Features, workload: &'static Workload, rounds: u32) -> Self {
        let side = |combo: &Vec<String>| Side {
            name: side_name(combo),
            ..Side::default()
        };
        let sides: Vec<_> = features.combos().iter().map(side).collect();
        let runs = sides.len() as u64 * (u64::from(rounds) + 1);
        let mut step = Step::new("compare", runs);
        step.at(0, "booting");
        Self {
            features,
            workload,
            rounds,
            sides,
            step,
            runs: 0,
        }
    }

    fn side(&mut self, combo: &[String]) -> Result<&mut Side> {
        let name = side_name(combo);
        let side = self.sides.iter_mut().find(|side| side.name == name);
        side.with_context(|| format!("the guest ran {name}, which was not asked for"))
    }

    fn ran(&mut self, round: u32, combo: &[String]) {
        self.runs += 1;
        let name = side_name(combo);
        let message = match round {
            0 => format!("warm-up of {name}"),
            round => format!("round {round} of {}: {name}", self.rounds),
        };
        self.step.at(self.runs, &message);
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Hello(hello) => self.features.check(&in_debugfs(&hello.features))?,
            Event::Warmup { combo, .. } => self.ran(0, combo),
            Event::Sample(sample) => {
                let result = self.workload.result(&sample.output)?;
                self.side(&sample.combo)?.samples.push(result);
                self.ran(sample.round, &sample.combo);
            }
            Event::Stats {
                combo,
                before,
                after,
            } => {
                let before = counters(before)?;
                let side = self.side(combo)?;
                for (name, after) in counters(after)? {
                    let rise = after.checked_sub(before.get(&name).copied().unwrap_or(0));
                    let rise = rise.with_context(|| format!("the counter {name} fell"))?;
                    *side.counters.entry(name).or_default() += rise;
                }
            }
            Event::Done => {
                let rounds = self.rounds as usize;
                let short = self.sides.iter().find(|side| side.samples.len() != rounds);
                if let Some(Side { name, samples, .. }) = short {
                    bail!(
                        "the guest gave {} results of {name}, not {rounds}",
                        samples.len()
                    );
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Builds the kernel if no image is given, boots it, compares, and prints and saves the report.
///
/// # Errors
///
/// When the options are wrong, or the measurement cannot be completed; a slower kernel is a result.
pub fn run(
    paths: &Paths,
    options: &Options,
    kernel_src: Option<&Path>,
    jobs: Option<usize>,
) -> Result<Report> {
    let Options {
        features,
        rounds,
        machine,
        ..
    } = options;
    let topo = machine.topo;
    let workload = Workload::find(&options.workload)?;
    let args = workload.args(&options.args)?;
    let image = machine.image(paths, kernel_src, jobs, |tree| {
        let file = tree.join("kernel/sched/features.h");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        features.check(&in_source(&text))
    })?;
    let program = initramfs::program(workload.name, workload.package)?;
    let archive = initramfs::archive(&initramfs::agent(paths)?, &[program])?;
    let qemu = toolchain::qemu(paths);
    let accel = Accel::choose(paths, &qemu, &image, &archive)?;
    let folder = Folder::new(&paths.out.join("ab"))?;
    let log = folder.dmesg();
    let vm = Vm::new(&qemu, &image, &archive, topo, accel, &log);
    let command = [&[workload.name.to_owned()], &args[..]].concat();
    let plan = Plan::Compare {
        features: features.0.clone(),
        combos: features.combos(),
        rounds: *rounds,
        command: command.clone(),
        workload: workload.name.to_owned(),
        timeout_s: RUN_TIMEOUT_S,
    };
    let mut collect = Collect::new(features, workload, *rounds);
    let hello = vm.run(&plan, |event| collect.event(event))?;
    collect.step.done(&format!("{rounds} rounds"));

    let (base, sides) = collect.sides.split_first().context("there are no sides")?;
    let setting = Setting {
        kernel: hello.release.clone(),
        accel: accel.name().to_owned(),
        host_cpus: available_parallelism()?.get(),
        topology: Topology::from(&hello),
        features: features.0.clone(),
    };
    let make = format!(
        "make ab FEATURES='{}' WORKLOAD={} ARGS={} ROUNDS={rounds} TOPO={topo}",
        features.0.join(" "),
        workload.name,
        shell_words::quote(&shell_words::join(&args)),
    );
    let qemu = folder.final_name(&vm.command_line());
    let commands = vec![make, qemu, shell_words::join(&command)];
    let report = Report::new(setting, workload, &args, base, sides, commands)?;
    let dir = folder.finish(&report)?;
    print!("{}", report.text());
    eprintln!("\nsaved in {}", dir.display());
    Ok(report)
}

/// A shell in the kernel that [`run`] boots, with the workloads at hand; it ends with the shell.
pub fn shell(
    paths: &Paths,
    machine: &Machine,
    kernel_src: Option<&Path>,
    jobs: Option<usize>,
) -> Result<()> {
    let mut programs = vec![initramfs::program("busybox", "busybox-static")?];
    for workload in WORKLOADS {
        programs.push(initramfs::program(workload.name, workload.package)?);
    }
    let image = machine.image(paths, kernel_src, jobs, |_| Ok(()))?;
    let archive = initramfs::archive(&initramfs::agent(paths)?, &programs)?;
    let qemu = toolchain::qemu(paths);
    let accel = Accel::choose(paths, &qemu, &image, &archive)?;
    let log = paths.out.join("log/shell.log");
    Vm::new(&qemu, &image, &archive, machine.topo, accel, &log).run(&Plan::Shell, |_| Ok(()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sched_ab_protocol::{Hello, Sample};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn bad_options_are_refused_with_what_is_allowed() {
        for (option, value, cause) in [
            ("--rounds", "0", "1..=64"),
            ("--rounds", "65", "1..=64"),
            ("--rounds", "", "invalid"),
            ("--rounds", "five", "invalid"),
            ("--features", " , ", "no feature is named"),
            (
                "--features",
                "shared_runq",
                "in capitals, as in SHARED_RUNQ",
            ),
            ("--features", "1A", "in capitals"),
            ("--features", "NO_SHARED_RUNQ", "without NO_"),
            ("--features", "A B,A", "A is named twice"),
            ("--features", "A B C D E", "at most 4"),
            ("--topo", "2x4", "no topology"),
            ("--topo", "0x4x1", "1 or more"),
        ] {
            let error = Cli::try_parse_from(["ab", &format!("{option}={value}")]).unwrap_err();
            assert!(
                error.to_string().contains(cause),
                "{option} {value}: {error}"
            );
        }
        let good = [
            "ab",
            "--features=A, B_2",
            "--rounds=64",
            "--args=-g 1",
            "--topo=1x1x1",
        ];
        let Options { features, args, .. } = Cli::try_parse_from(good).unwrap().options;
        assert_eq!(
            (features.0, args.as_str()),
            (vec!["A".to_owned(), "B_2".to_owned()], "-g 1")
        );
    }

    #[test]
    fn sides_are_all_combinations_with_the_base_first() {
        let names = |features: &str| {
            let combos = Features::from_str(features).unwrap().combos();
            combos
                .iter()
                .map(|combo| side_name(combo))
                .collect::<Vec<_>>()
        };
        assert_eq!(names("A"), ["base", "A"]);
        assert_eq!(names("A B"), ["base", "A", "B", "A+B"]);
        assert_eq!(names("A B C D").len(), 16);
    }

    #[test]
    fn an_unknown_feature_is_refused_with_the_known() {
        let source = "/* SCHED_FEAT(NO, true) */\nSCHED_FEAT(NONTASK_CAPACITY , true)\n\
                      #ifdef X\nSCHED_FEAT(A, true)\n#else\nSCHED_FEAT(A, false)\n#endif\n";
        assert_eq!(in_source(source), ["A", "NONTASK_CAPACITY"]);
        assert_eq!(
            in_debugfs("A NO_B NONTASK_CAPACITY\n"),
            ["A", "B", "NONTASK_CAPACITY"]
        );
        let features = Features::from_str("A C").unwrap();
        let error = features.check(&in_source(source)).unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown feature C; the kernel has A, NONTASK_CAPACITY"
        );
        assert!(features.check(&["C", "A"]).is_ok());
    }

    #[test]
    fn counters_are_summed_over_llcs() {
        let text = "llc 0 cpus 0-3\n pushed 3\n pulled 1\n linked 2\nllc 4 cpus 4-7\n pushed 4\n";
        let expected = [("pulled".to_owned(), 1), ("pushed".to_owned(), 7)];
        assert_eq!(counters(text).unwrap(), Counters::from(expected));
        for bad in [" pushed\n", " pushed x\n", " pushed -1\n"] {
            assert!(counters(bad).is_err(), "{bad}");
        }
    }

    fn sample(round: u32, combo: &[&str], time: &str) -> Event {
        Event::Sample(Sample {
            round,
            combo: combo.iter().map(|&name| name.to_owned()).collect(),
            value: 0.0,
            wall: 9.0,
            output: format!("Time: {time}\n"),
        })
    }

    fn stats(combo: &[&str], before: u64, after: u64) -> Event {
        let text = |pushed| format!("llc 0 cpus 0-3\n pushed {pushed}\n");
        Event::Stats {
            combo: combo.iter().map(|&name| name.to_owned()).collect(),
            before: text(before),
            after: text(after),
        }
    }

    /// Feeds events to a comparison of `A` in 2 rounds.
    fn collect(events: &[Event]) -> Result<Vec<Side>> {
        let features = Features::from_str("A").unwrap();
        let workload = Workload::find("hackbench").unwrap();
        let mut collect = Collect::new(&features, workload, 2);
        for event in events {
            collect.event(event)?;
        }
        Ok(collect.sides)
    }

    #[test]
    fn events_become_sides() {
        let warm_up = |combo: &[&str]| Event::Warmup {
            combo: combo.iter().map(|&name| name.to_owned()).collect(),
            wall: 7.0,
        };
        let sides = collect(&[
            warm_up(&[]),
            warm_up(&["A"]),
            sample(1, &[], "1.5"),
            stats(&[], 200, 200),
            sample(1, &["A"], "1.25"),
            stats(&["A"], 205, 230),
            sample(2, &[], "1.625"),
            stats(&[], 231, 231),
            sample(2, &["A"], "1.125"),
            stats(&["A"], 231, 234),
            Event::Done,
        ])
        .unwrap();
        let [base, with] = &sides[..] else {
            panic!("{sides:?}")
        };
        assert_eq!(
            (base.name.as_str(), &base.samples[..]),
            ("base", &[1.5, 1.625][..])
        );
        assert_eq!(
            (with.name.as_str(), &with.samples[..]),
            ("A", &[1.25, 1.125][..])
        );
        assert_eq!((base.counters["pushed"], with.counters["pushed"]), (0, 28));
    }

    #[test]
    fn a_guest_that_does_not_do_as_asked_is_an_error() {
        let hello = Hello {
            release: String::new(),
            cpus: 1,
            llcs: Vec::new(),
            cores: 1,
            threads: 1,
            features: "NO_B".to_owned(),
        };
        for (events, cause) in [
            (
                vec![Event::Hello(hello)],
                "unknown feature A; the kernel has B",
            ),
            (
                vec![sample(1, &["B"], "1")],
                "ran B, which was not asked for",
            ),
            (
                vec![sample(1, &[], "soon")],
                "hackbench printed: Time: soon",
            ),
            (
                vec![sample(1, &[], "1"), Event::Done],
                "1 results of base, not 2",
            ),
            (vec![stats(&[], 5, 4)], "the counter pushed fell"),
        ] {
            let error = collect(&events).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        }
    }
}
