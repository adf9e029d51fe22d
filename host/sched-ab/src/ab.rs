// SPDX-License-Identifier: GPL-2.0

//! Compares the series' features off and on in one boot.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::available_parallelism,
};

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use sched_ab_protocol::Plan;

use crate::{
    compare::{Clock, Collect, Features, in_source, progress},
    guest::{Accel, Topo, Vm},
    initramfs,
    kbuild::{self, Flavor},
    paths::Paths,
    progress::Step,
    report::{Folder, Measured, Report, Setting, Topology},
    stats::MAX_POOLED,
    toolchain,
    workload::{self, WORKLOADS, Workload},
};

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
    let programs = workload::programs(paths, [workload])?;
    let archive = initramfs::archive(&initramfs::agent(paths)?, &programs)?;
    let qemu = toolchain::qemu(paths);
    let accel = Accel::choose(paths, &qemu, &image, &archive)?;
    let folder = Folder::new(&paths.out.join("ab"))?;
    let log = folder.dmesg();
    let vm = Vm::new(&qemu, &image, &archive, topo, accel, &log);
    let command = workload.command(&args);
    let plan = Plan::Compare {
        features: features.0.clone(),
        combos: features.combos(),
        rounds: *rounds,
        command: command.clone(),
        workload: workload.name.to_owned(),
        timeout_s: RUN_TIMEOUT_S,
        seeds: None,
    };
    let combos = features.combos();
    let mut collect = Collect::new(features, workload, Clock::Printed);
    let mut step = Step::new("compare", combos.len() as u64 * (u64::from(*rounds) + 1));
    step.at(0, "booting");
    let mut runs = 0;
    let hello = vm.run(&plan, |event| {
        if let Some(message) = progress(event) {
            runs += 1;
            step.at(runs, &message);
        }
        collect.event(event)
    })?;
    collect.complete(*rounds as usize)?;
    step.done(&format!("{rounds} rounds"));

    let setting = Setting {
        kernel: hello.release.clone(),
        accel: accel.name().to_owned(),
        host_cpus: available_parallelism()?.get(),
        boots: 1,
        speed_spread_pct: None,
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
    let measured = Measured::new(workload, &args, collect.sides);
    let report = Report::new(setting, &[measured], commands)?;
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
    programs.extend(workload::programs(paths, WORKLOADS)?);
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
}
