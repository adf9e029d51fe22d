// SPDX-License-Identifier: GPL-2.0

//! The workloads that a comparison can run.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::{initramfs, paths::Paths};

/// A program in the guest that measures something.
#[derive(Debug)]
pub struct Workload {
    /// What `WORKLOAD=` names.
    pub name: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// The arguments when none are given.
    args: &'static str,
    /// Finds the results in what the program printed.
    parse: fn(&str) -> Option<Vec<Value>>,
}

/// Where a program comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// A package of Debian's; the program has the workload's name.
    Package(&'static str),
    /// `host/twins`; the workload's name is its first argument.
    Twin,
}

/// What a result is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Metric {
    /// For example `wakeup_p99`.
    pub name: String,
    /// For example `s`.
    pub unit: String,
    /// Whether the lower or the higher one is better.
    pub better: Better,
}

/// Which of two results is the better one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// As of times.
    Lower,
    /// As of rates.
    Higher,
}

impl Better {
    /// `lower` or `higher`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Higher => "higher",
        }
    }
}

/// A result.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Of what.
    pub metric: Metric,
    /// How much; above 0.
    pub value: f64,
}

/// The metric of programs that have only one.
pub const TIME: &str = "time";

/// All of them.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "hackbench",
        source: Source::Package("rt-tests"),
        args: "-g 4 -f 20 -l 60",
        parse: hackbench,
    },
    Workload {
        name: "wakeups",
        source: Source::Twin,
        args: "",
        parse: twin,
    },
    Workload {
        name: "pairs",
        source: Source::Twin,
        args: "--protocol udp",
        parse: twin,
    },
    Workload {
        name: "build",
        source: Source::Twin,
        args: "",
        parse: twin,
    },
    Workload {
        name: "mix",
        source: Source::Twin,
        args: "",
        parse: twin,
    },
];

impl Workload {
    /// The workload `name`.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists those there are.
    pub fn find(name: &str) -> Result<&'static Self> {
        let Some(found) = WORKLOADS.iter().find(|workload| workload.name == name) else {
            let known: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
            bail!("unknown workload '{name}'; known: {}", known.join(", "));
        };
        Ok(found)
    }

    /// The arguments of a run: `args`, split into words as a shell does, or the default when there
    /// are none.
    pub fn args(&self, args: &str) -> Result<Vec<String>> {
        let args = if args.trim().is_empty() {
            self.args
        } else {
            args
        };
        shell_words::split(args).with_context(|| format!("bad arguments '{args}'"))
    }

    /// The name of its program's file.
    fn file(&self) -> &'static str {
        match self.source {
            Source::Package(_) => self.name,
            Source::Twin => TWINS,
        }
    }

    /// What the guest executes.
    pub fn command(&self, args: &[String]) -> Vec<String> {
        let mut command = vec![self.file().to_owned()];
        if self.source == Source::Twin {
            command.push(self.name.to_owned());
        }
        command.extend_from_slice(args);
        command
    }

    /// The results in what a run printed.
    ///
    /// # Errors
    ///
    /// When there are none.
    pub fn results(&self, output: &str) -> Result<Vec<Value>> {
        (self.parse)(output)
            .filter(|values| {
                let good = |value: &Value| value.value.is_finite() && value.value > 0.0;
                !values.is_empty() && values.iter().all(good)
            })
            .with_context(|| {
                format!(
                    "no result above 0 in what {} printed: {}",
                    self.name,
                    output.trim().replace('\n', "; ")
                )
            })
    }
}

/// The programs of `workloads` on the host, each once.
///
/// # Errors
///
/// When a package is not installed, or a twin does not build.
pub fn programs<'a>(
    paths: &Paths,
    workloads: impl IntoIterator<Item = &'a Workload>,
) -> Result<Vec<PathBuf>> {
    let files = workloads.into_iter().map(|w| (w.file(), w.source));
    let each: BTreeMap<_, _> = files.collect();
    let programs = each.into_iter().map(|(file, source)| match source {
        Source::Package(package) => initramfs::program(file, package),
        Source::Twin => initramfs::build(paths, file),
    });
    programs.collect()
}

/// The package and the program of the twins.
const TWINS: &str = "sched-ab-twins";

/// A workload with its arguments.
#[derive(Clone, Debug)]
pub struct Case {
    /// What `--workloads` and the files of a run call it.
    pub name: String,
    /// The program.
    pub workload: &'static Workload,
    /// Its arguments.
    pub args: Vec<String>,
}

/// A number that depends on that of the CPUs.
type Count = fn(u32) -> u32;

/// What stands for numbers of CPUs in the arguments of cases.
const COUNTS: [(&str, Count); 7] = [
    ("{cpus/8}", |cpus| cpus.div_ceil(8)),
    ("{cpus/4}", |cpus| cpus.div_ceil(4)),
    ("{cpus/2}", |cpus| cpus.div_ceil(2)),
    ("{cpus-1}", |cpus| cpus - 1),
    ("{cpus}", |cpus| cpus),
    ("{2cpus}", |cpus| 2 * cpus),
    ("{6cpus}", |cpus| 6 * cpus),
];

/// The lab's cases: name, workload, arguments. Each run takes some ten milliseconds of the guest.
/// `docs/workloads.md` says what each stands for, and how it can lose.
#[rustfmt::skip]
const CASES: &[(&str, &str, &str)] = &[
    ("hackbench-1", "hackbench", "-g 1 -f 10 -l 400"),
    ("hackbench-2", "hackbench", "-g 2 -f 10 -l 200"),
    ("hackbench-4", "hackbench", "-g 4 -f 10 -l 100"),
    ("hackbench-8", "hackbench", "-g 8 -f 10 -l 50"),
    ("hackbench-16", "hackbench", "-g 16 -f 10 -l 25"),
    ("hackbench-pipe-1", "hackbench", "-p -g 1 -f 10 -l 400"),
    ("hackbench-pipe-4", "hackbench", "-p -g 4 -f 10 -l 100"),
    ("hackbench-pipe-16", "hackbench", "-p -g 16 -f 10 -l 25"),
    ("hackbench-thread-1", "hackbench", "-T -g 1 -f 10 -l 400"),
    ("hackbench-thread-4", "hackbench", "-T -g 4 -f 10 -l 100"),
    ("hackbench-thread-pipe-1", "hackbench", "-T -p -g 1 -f 10 -l 400"),
    ("hackbench-thread-pipe-4", "hackbench", "-T -p -g 4 -f 10 -l 100"),
    ("wakeups", "wakeups", "-m 2 -w {cpus/4}"),
    ("wakeups-many", "wakeups", "-m 4 -w {cpus/2}"),
    ("udp-8th", "pairs", "--protocol udp -p {cpus/8}"),
    ("udp-4th", "pairs", "--protocol udp -p {cpus/4}"),
    ("udp-half", "pairs", "--protocol udp -p {cpus/2}"),
    ("udp-full", "pairs", "--protocol udp -p {cpus}"),
    ("udp-double", "pairs", "--protocol udp -p {2cpus}"),
    ("tcp-8th", "pairs", "--protocol tcp -p {cpus/8}"),
    ("tcp-4th", "pairs", "--protocol tcp -p {cpus/4}"),
    ("tcp-half", "pairs", "--protocol tcp -p {cpus/2}"),
    ("tcp-full", "pairs", "--protocol tcp -p {cpus}"),
    ("tcp-double", "pairs", "--protocol tcp -p {2cpus}"),
    ("build", "build", "-j {cpus} -t {6cpus}"),
    ("mix", "mix", "-s {2cpus} --hogs {cpus/2}"),
    ("hogs", "mix", "-s {cpus/2} --hogs {cpus-1}"),
];

/// Those of `make lab`.
pub const DEFAULT: &str = "hackbench-1,hackbench-4,hackbench-16,hackbench-thread-pipe-1,wakeups,\
                           udp-half,tcp-half,build,mix,hogs";

impl Case {
    /// The cases of a list with commas: each a name, or a workload with arguments, for a machine
    /// of `cpus`.
    ///
    /// # Errors
    ///
    /// When there is no such case; the error lists those there are.
    pub fn list(text: &str, cpus: u32) -> Result<Vec<Self>> {
        let mut cases: Vec<Self> = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let case = Self::find(entry, cpus)?;
            ensure!(
                cases.iter().all(|other| other.name != case.name),
                "{entry} is named twice"
            );
            cases.push(case);
        }
        ensure!(!cases.is_empty(), "no workload is named");
        Ok(cases)
    }

    fn find(entry: &str, cpus: u32) -> Result<Self> {
        if let Some((name, workload, args)) = CASES.iter().find(|(name, ..)| *name == entry) {
            let workload = Workload::find(workload)?;
            let args = COUNTS
                .iter()
                .fold((*args).to_owned(), |args, (name, count)| {
                    args.replace(name, &count(cpus).to_string())
                });
            return Ok(Self {
                name: (*name).to_owned(),
                workload,
                args: workload.args(&args)?,
            });
        }
        let Some((name, args)) = entry.split_once(' ') else {
            let known: Vec<_> = CASES.iter().map(|(name, ..)| *name).collect();
            bail!(
                "unknown workload '{entry}'; known: {}; or a program with arguments, as in \
                 'hackbench -g 3'",
                known.join(", ")
            );
        };
        let workload = Workload::find(name)?;
        let args = workload.args(args)?;
        // It becomes a file's name.
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        Ok(Self {
            name: entry.chars().map(plain).collect(),
            workload,
            args,
        })
    }
}

/// `Time: 1.234` on a line of its own.
fn hackbench(output: &str) -> Option<Vec<Value>> {
    let mut times = output.lines().filter_map(|line| line.strip_prefix("Time:"));
    let value = times.next_back()?.trim().parse().ok()?;
    let metric = Metric {
        name: TIME.to_owned(),
        unit: "s".to_owned(),
        better: Better::Lower,
    };
    Some(vec![Value { metric, value }])
}

/// A line for each: name, value, unit, and `lower` or `higher`.
fn twin(output: &str) -> Option<Vec<Value>> {
    let value = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let &[name, value, unit, better] = &words[..] else {
            return None;
        };
        let directions = [Better::Lower, Better::Higher];
        let better = directions.into_iter().find(|b| b.name() == better)?;
        let metric = Metric {
            name: name.to_owned(),
            unit: unit.to_owned(),
            better,
        };
        Some(Value {
            metric,
            value: value.parse().ok()?,
        })
    };
    output.lines().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hackbench_output_is_read() {
        let hackbench = Workload::find("hackbench").unwrap();
        let good = "Running in process mode with 4 groups using 40 file descriptors each \
                    (== 160 tasks)\nEach sender will pass 100 messages of 100 bytes\nTime: 1.234\n";
        let values = hackbench.results(good).unwrap();
        assert_eq!((values.len(), values[0].value), (1, 1.234));
        for bad in [
            "",
            "fork(): no memory\n",
            "Time: \n",
            "Time: NaN",
            "Time: 0.000",
        ] {
            let error = hackbench.results(bad).unwrap_err().to_string();
            assert!(error.contains("hackbench printed") && error.contains(bad.trim()));
        }
    }

    #[test]
    fn an_unknown_workload_lists_the_known() {
        let error = Workload::find("hackbensh").unwrap_err().to_string();
        assert!(error.starts_with("unknown workload 'hackbensh'; known: hackbench, wakeups"));
    }

    #[test]
    fn arguments_are_split_as_a_shell_does() {
        let hackbench = Workload::find("hackbench").unwrap();
        assert_eq!(
            hackbench.args(" -g 1  'a b' ").unwrap(),
            ["-g", "1", "a b"].map(str::to_owned)
        );
        assert_eq!(hackbench.args(" ").unwrap()[0], "-g");
        assert!(
            hackbench
                .args("-g '1")
                .unwrap_err()
                .to_string()
                .contains("-g '1")
        );
    }

    #[test]
    fn output_of_twins_is_read() {
        let mix = Workload::find("mix").unwrap();
        let values = mix
            .results("late_p50 0.000012300 s lower\nwakeups 1250.5 1/s higher\n")
            .unwrap();
        let found: Vec<_> = values
            .iter()
            .map(|v| (v.metric.name.as_str(), v.value, v.metric.better))
            .collect();
        assert_eq!(
            found,
            [
                ("late_p50", 0.000_012_3, Better::Lower),
                ("wakeups", 1250.5, Better::Higher)
            ]
        );
        for bad in [
            "",
            "late 1 s\n",
            "late 1 s best\n",
            "late x s lower\n",
            "late 0 s lower\n",
        ] {
            assert!(mix.results(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cases_are_found_by_name_or_made_of_arguments() {
        let cases = Case::list("udp-4th, hogs, hackbench -g 3,mix -s 2", 16).unwrap();
        let found: Vec<_> = cases
            .iter()
            .map(|case| {
                (
                    case.name.as_str(),
                    case.workload.command(&case.args).join(" "),
                )
            })
            .collect();
        let command = |text: &str| text.to_owned();
        assert_eq!(
            found,
            [
                (
                    "udp-4th",
                    command("sched-ab-twins pairs --protocol udp -p 4")
                ),
                ("hogs", command("sched-ab-twins mix -s 8 --hogs 15")),
                ("hackbench_-g_3", command("hackbench -g 3")),
                ("mix_-s_2", command("sched-ab-twins mix -s 2")),
            ]
        );
        for (list, cause) in [
            (" , ", "no workload is named"),
            ("build,build", "build is named twice"),
            ("udq", "unknown workload 'udq'; known: hackbench-1, "),
            ("udq -x", "unknown workload 'udq'; known: hackbench, "),
            ("mix 'a", "bad arguments"),
        ] {
            let error = Case::list(list, 8).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        }
        assert_eq!(Case::list(DEFAULT, 8).unwrap().len(), 10);
        for (name, ..) in CASES {
            let args = &Case::list(name, 8).unwrap()[0].args;
            assert!(args.iter().all(|arg| !arg.contains('{')), "{name}");
        }
    }
}
