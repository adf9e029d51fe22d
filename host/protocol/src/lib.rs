// SPDX-License-Identifier: GPL-2.0

//! Messages between the host tool and the agent in the guest.
//!
//! The host puts one [`Plan`] as JSON into the guest's `/plan.json`. The agent answers with one
//! [`Event`] a line, as JSON, on its second serial port. The last event is [`Event::Done`] or
//! [`Event::Error`]; a guest that stops without one of them failed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where the agent finds its plan.
pub const PLAN: &str = "/plan.json";

/// The agent sends an event at least this often, in seconds, whatever it waits for.
pub const HEARTBEAT_S: u64 = 5;

/// What the agent does after boot. Whatever it is, the guest powers off at the end.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "plan", rename_all = "snake_case", deny_unknown_fields)]
pub enum Plan {
    /// Lets the kernel settle, so that its log shows what a boot alone prints.
    Boot {
        /// How long, in seconds.
        settle_s: u64,
    },
    /// Runs a command in turn under each combination of features, `rounds` times: A B A B.
    Compare {
        /// The scheduler features under test; each is set before each run.
        features: Vec<String>,
        /// For each side the features that are on; the first, normally empty, is the base.
        combos: Vec<Vec<String>>,
        /// How many samples each side gives, after one run of each that only warms up.
        rounds: u32,
        /// The program and its arguments.
        command: Vec<String>,
        /// The name of the workload, for messages.
        workload: String,
        /// After this many seconds a run has failed.
        timeout_s: u64,
        /// In a simulated machine, which does the same again and again: what differs by round.
        seeds: Option<Seeds>,
    },
    /// Runs test programs that print TAP.
    Tests {
        /// Each program with its arguments; the test's name is the program's file name, with the
        /// arguments if it has some.
        commands: Vec<Vec<String>>,
        /// Scheduler features to switch on before, for example `WARN_DOUBLE_CLOCK`.
        features_on: Vec<String>,
        /// After this many seconds a test is killed.
        timeout_s: u64,
    },
    /// An interactive shell on the console.
    Shell,
}

/// How the rounds in a simulated machine differ. A seed gives the CPU that a run starts on and how
/// long it waits before; all sides of a round have the same.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Seeds {
    /// The seed of the first round, at least 1; the next round has the next one. The warm-up has
    /// seed 0.
    pub first: u32,
    /// The CPUs that runs may use. The agent stays on the others.
    pub cpus: Vec<u32>,
}

/// What the agent tells.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The first event: the machine as the guest sees it.
    Hello(Hello),
    /// Nothing new, but the agent runs.
    Alive,
    /// What a fixed loop took, in nanoseconds, on some CPUs that ran it at once: the first ones, in
    /// the order of [`Seeds::cpus`]. Comes before the first run, with 1, 2, half and all CPUs.
    Speed {
        /// One for each.
        nanoseconds: Vec<u64>,
    },
    /// A run before the first round, which is not counted: the first run pays for cold caches,
    /// and under TCG for the translation of every block it executes.
    Warmup {
        /// The features that were on.
        combo: Vec<String>,
        /// The wall time of the command in seconds.
        wall: f64,
    },
    /// One measurement.
    Sample(Sample),
    /// `/sys/kernel/debug/sched/{shared_runq,sis_filter}/stats`, what the kernel has of them, one
    /// after the other. The counters go on counting: a run's share is the difference.
    Stats {
        /// The features that were on.
        combo: Vec<String>,
        /// Read before a counted run, with its features switched.
        before: String,
        /// Read after it.
        after: String,
        /// By how much the scheduler's own statistics rose on the measured CPUs, with seeds only.
        #[serde(default)]
        schedstat: BTreeMap<String, u64>,
    },
    /// A line of a test's output. The results of the kernel's own KUnit suites, which ran at boot,
    /// come first, each suite as the test `kunit/<suite>`.
    Tap {
        /// The test.
        test: String,
        /// The line.
        line: String,
    },
    /// A test program ended.
    TestDone {
        /// The test.
        test: String,
        /// How.
        status: Status,
    },
    /// The plan failed; the guest powers off.
    Error {
        /// One line of cause.
        message: String,
    },
    /// The plan is done; the guest powers off.
    Done,
}

/// The machine as the guest sees it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The kernel's release, as `uname -r`.
    pub release: String,
    /// The CPUs that are online.
    pub cpus: u32,
    /// The CPU list of each last-level cache, in order of its first CPU.
    pub llcs: Vec<String>,
    /// Cores in all.
    pub cores: u32,
    /// The most threads that a core has.
    pub threads: u32,
    /// `/sys/kernel/debug/sched/features`: every feature's name, with `NO_` in front when it is
    /// off.
    pub features: String,
}

/// One measurement.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The round, from 1; with seeds, the seed.
    pub round: u32,
    /// The features that were on.
    pub combo: Vec<String>,
    /// The result in seconds: what the command printed as `Time: x`, else `wall`.
    pub value: f64,
    /// The wall time of the command in seconds, fork and exec included.
    pub wall: f64,
    /// The end of what the command printed.
    pub output: String,
}

/// How a test program ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// With this exit status: 0 is a pass, 4 a skip.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It ran into the time-out and was killed.
    TimedOut,
}
