// SPDX-License-Identifier: GPL-2.0

//! The workloads that a comparison can run.

use anyhow::{Context, Result, bail};

/// A program in the guest that measures something; of its results the lower one is better.
#[derive(Debug)]
pub struct Workload {
    /// What `WORKLOAD=` names, and the program.
    pub name: &'static str,
    /// Debian's package that has the program.
    pub package: &'static str,
    /// The unit of a result.
    pub unit: &'static str,
    /// The arguments when none are given.
    args: &'static str,
    /// Finds the result in what the program printed.
    parse: fn(&str) -> Option<f64>,
}

/// All of them.
pub const WORKLOADS: &[Workload] = &[Workload {
    name: "hackbench",
    package: "rt-tests",
    unit: "s",
    args: "-g 4 -f 20 -l 60",
    parse: hackbench,
}];

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

    /// The result in what a run printed.
    pub fn result(&self, output: &str) -> Result<f64> {
        (self.parse)(output)
            .filter(|value| value.is_finite() && *value > 0.0)
            .with_context(|| {
                format!(
                    "no result above 0 in what {} printed: {}",
                    self.name,
                    output.trim().replace('\n', "; ")
                )
            })
    }
}

/// `Time: 1.234` on a line of its own.
fn hackbench(output: &str) -> Option<f64> {
    let mut times = output.lines().filter_map(|line| line.strip_prefix("Time:"));
    times.next_back()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hackbench_output_is_read() {
        let hackbench = Workload::find("hackbench").unwrap();
        let good = "Running in process mode with 4 groups using 40 file descriptors each \
                    (== 160 tasks)\nEach sender will pass 100 messages of 100 bytes\nTime: 1.234\n";
        assert_eq!(hackbench.result(good).unwrap(), 1.234);
        for bad in [
            "",
            "fork(): no memory\n",
            "Time: \n",
            "Time: NaN",
            "Time: 0.000",
        ] {
            let error = hackbench.result(bad).unwrap_err().to_string();
            assert!(error.contains("hackbench printed") && error.contains(bad.trim()));
        }
    }

    #[test]
    fn an_unknown_workload_lists_the_known() {
        let error = Workload::find("hackbensh").unwrap_err().to_string();
        assert_eq!(error, "unknown workload 'hackbensh'; known: hackbench");
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
}
