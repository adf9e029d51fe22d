// SPDX-License-Identifier: GPL-2.0

//! The steps of `make test`.

use std::{fmt::Write, fs, path::Path, process::Command, time::Instant};

use anyhow::{Result, bail};
use clap::Parser;

use crate::{
    ab, base, check, exec,
    kbuild::{self, Flavor},
    lab, offtest,
    paths::Paths,
    selftest, series, toolchain,
};

/// Runs the steps one after the other; `all` adds those that take long, and a result file.
///
/// # Errors
///
/// When a step failed.
pub fn run(paths: &Paths, kernel_src: Option<&Path>, jobs: Option<usize>, all: bool) -> Result<()> {
    let mut steps = Steps::default();
    steps.run("base kernel", || Ok(base::ensure(paths, kernel_src)?.id));
    steps.run("static checks", || {
        check::run(paths).map(|()| String::new())
    });
    steps.run("host tests", || host(paths));
    steps.run("series: git am gives the composed tree", || {
        let base = base::ensure(paths, kernel_src)?;
        series::emit(paths, &base, None)?;
        Ok(String::new())
    });
    for (name, flavor) in [
        ("release kernel builds", Flavor::Release),
        ("debug kernel builds", Flavor::Debug),
    ] {
        steps.run(name, || {
            Ok(kbuild::image(paths, kernel_src, flavor, jobs, |_| Ok(()))?.release)
        });
    }
    steps.run("option not set: instructions as in the base", || {
        offtest::run(paths, kernel_src, jobs).map(|()| "fair.o, core.o".to_owned())
    });
    let selftests = |guests| Ok(selftest::run(paths, kernel_src, jobs, guests)?.to_string());
    let ab = |topo, rounds| -> Result<_> {
        let features = ["ab", "--features", "SHARED_RUNQ SIS_FILTER"];
        let machine = ["--topo", topo, "--rounds", rounds];
        let Ab { options } = Ab::try_parse_from(features.iter().chain(&machine))?;
        let report = ab::run(paths, &options, kernel_src, jobs)?;
        report.check_counters()?;
        Ok((
            format!("both features, {topo}, rounds: {rounds}"),
            report.text(),
        ))
    };
    steps.run("KUnit and selftests on the debug kernel", || {
        selftests(selftest::SHORT)
    });
    steps.run("make ab", || Ok(ab("2x4x1", "1")?.0));
    steps.run("lab: a simulated machine", || {
        lab::smoke(paths, kernel_src, jobs)
    });
    if all {
        let mut tables = Vec::new();
        steps.run("KUnit and selftests, long", || selftests(selftest::LONG));
        for topo in ["2x4x1", "1x8x1", "4x2x1", "1x4x2"] {
            steps.run("make ab, long", || {
                let (about, table) = ab(topo, "10")?;
                tables.push(table);
                Ok(about)
            });
        }
        let date = exec::output(Command::new("date").args(["-u", "+%Y-%m-%d-%H%M%S"]))?;
        let dir = paths.out.join("test");
        fs::create_dir_all(&dir)?;
        let file = dir.join(format!("{}.txt", date.trim()));
        fs::write(&file, format!("{}\n{}", steps.text, tables.join("\n")))?;
        println!("result: {}", file.display());
    }
    steps.finish()
}

#[derive(Parser)]
struct Ab {
    #[command(flatten)]
    options: ab::Options,
}

/// The tests and lints of the host's programs.
fn host(paths: &Paths) -> Result<String> {
    let log = paths.out.join("log/host.log");
    let _ = fs::remove_file(&log);
    let mut passed = 0;
    exec::logged(
        toolchain::cargo(paths).args(["test", "--locked", "--workspace"]),
        &log,
        |line| passed += counted(line),
    )?;
    let clippy = ["clippy", "--locked", "--workspace", "--all-targets"];
    exec::logged(
        toolchain::cargo(paths)
            .args(clippy)
            .args(["--", "-D", "warnings"]),
        &log,
        |_| {},
    )?;
    Ok(format!("{passed} tests"))
}

/// How many tests passed, if `line` is a summary of cargo's.
fn counted(line: &str) -> u32 {
    line.strip_prefix("test result: ok. ")
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

/// Steps that ran.
#[derive(Default)]
struct Steps {
    passed: usize,
    failed: Vec<&'static str>,
    /// A line for each, and the causes.
    text: String,
}

impl Steps {
    /// Runs the step `name`, which returns what to say of it, and counts it. Later steps run even
    /// if it fails.
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<String>) {
        eprintln!("== {name}");
        let start = Instant::now();
        let result = step();
        let seconds = start.elapsed().as_secs();
        let line = match result {
            Ok(about) => {
                self.passed += 1;
                let about = if about.is_empty() {
                    about
                } else {
                    format!(": {about}")
                };
                format!("ok      {name} ({seconds} s){about}")
            }
            Err(error) => {
                self.failed.push(name);
                format!("FAILED  {name} ({seconds} s): {error:#}")
            }
        };
        println!("{line}");
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// Prints the summary.
    fn finish(self) -> Result<()> {
        println!("{} passed, {} failed", self.passed, self.failed.len());
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_counted_and_later_ones_run() {
        let mut steps = Steps::default();
        steps.run("one", || Ok("fine".to_owned()));
        steps.run("two", || bail!("broken"));
        steps.run("three", || Ok(String::new()));
        assert_eq!((steps.passed, &*steps.failed), (2, &["two"][..]));
        assert!(steps.text.contains("one (0 s): fine") && steps.text.contains("broken"));
        assert_eq!(steps.finish().unwrap_err().to_string(), "failed: two");
        Steps::default().finish().unwrap();
    }

    #[test]
    fn tests_are_counted() {
        assert_eq!(counted("test result: ok. 12 passed; 0 failed"), 12);
        assert_eq!(counted("test result: FAILED. 12 passed; 1 failed"), 0);
    }
}
