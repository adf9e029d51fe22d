// SPDX-License-Identifier: GPL-2.0

//! Twins: short workloads with the pattern of a well-known benchmark, for a machine in which a
//! second of the guest takes minutes. Each prints its results as lines of name, value, unit and
//! which direction is better, for example `wakeup_p99 0.000123 s lower`.
//!
//! None claims to give the numbers of the benchmark whose pattern it has.

mod patterns;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

/// Short workloads with the patterns of well-known benchmarks.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    pattern: Pattern,
}

#[derive(Subcommand)]
enum Pattern {
    /// As schbench: message threads wake workers, which compute, sleep and compute.
    Wakeups {
        /// Message threads.
        #[arg(short, long, default_value_t = 2)]
        messages: usize,
        /// Workers of each.
        #[arg(short, long, default_value_t = 4)]
        workers: usize,
        /// How long, in milliseconds.
        #[arg(long, default_value_t = 40)]
        ms: u64,
        /// What a worker computes before and after its sleep, in thousands of turns of a loop.
        #[arg(long, default_value_t = 10)]
        work: u64,
        /// How long it sleeps, in microseconds.
        #[arg(long, default_value_t = 30)]
        sleep_us: u64,
    },
    /// As netperf's UDP_RR and TCP_RR: a client sends a byte and waits for the answer.
    Pairs {
        /// Over which protocol.
        #[arg(long, value_enum)]
        protocol: Protocol,
        /// Pairs of a client and a server.
        #[arg(short, long, default_value_t = 4)]
        pairs: usize,
        /// How long, in milliseconds.
        #[arg(long, default_value_t = 30)]
        ms: u64,
    },
    /// As a build: so many jobs at once, each a process that is started, computes and ends.
    Build {
        /// At once.
        #[arg(short, long, default_value_t = 8)]
        jobs: usize,
        /// In all.
        #[arg(short, long, default_value_t = 64)]
        tasks: usize,
        /// What each computes, in thousands of turns of a loop.
        #[arg(long, default_value_t = 200)]
        work: u64,
    },
    /// As a database: many tasks that sleep, wake and compute a little, beside a few that compute.
    Mix {
        /// Tasks that sleep.
        #[arg(short, long, default_value_t = 16)]
        sleepers: usize,
        /// Tasks that compute.
        #[arg(long, default_value_t = 4)]
        hogs: usize,
        /// How long, in milliseconds.
        #[arg(long, default_value_t = 40)]
        ms: u64,
        /// What a sleeper computes when it wakes, in thousands of turns of a loop.
        #[arg(long, default_value_t = 5)]
        work: u64,
    },
    /// A task of a build.
    #[command(hide = true)]
    Work { thousands: u64 },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    Udp,
    Tcp,
}

/// A result.
#[derive(Debug, PartialEq)]
struct Metric {
    name: String,
    value: f64,
    unit: &'static str,
    better: &'static str,
}

impl Metric {
    fn new(name: &str, value: f64, unit: &'static str, better: &'static str) -> Self {
        let name = name.to_owned();
        Self {
            name,
            value,
            unit,
            better,
        }
    }

    /// Seconds, of which fewer are better.
    fn time(name: &str, time: Duration) -> Self {
        Self::new(name, time.as_secs_f64(), "s", "lower")
    }

    /// Something in a second, of which more is better.
    fn rate(name: &str, count: u64, time: Duration) -> Self {
        Self::new(name, count as f64 / time.as_secs_f64(), "1/s", "higher")
    }

    /// The percentiles of `latencies` in nanoseconds, by the nearest rank, as seconds.
    fn percentiles(name: &str, mut latencies: Vec<u64>) -> Vec<Self> {
        latencies.sort_unstable();
        [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)]
            .into_iter()
            .filter_map(|(suffix, part)| {
                let rank = (latencies.len() as f64 * part).ceil() as usize;
                let value = *latencies.get(rank.max(1) - 1)?;
                Some(Self::time(
                    &format!("{name}_{suffix}"),
                    Duration::from_nanos(value),
                ))
            })
            .collect()
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().pattern) {
        Ok(metrics) => {
            for Metric {
                name,
                value,
                unit,
                better,
            } in metrics
            {
                println!("{name} {value:.9} {unit} {better}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("twins: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(pattern: Pattern) -> Result<Vec<Metric>> {
    let ms = Duration::from_millis;
    match pattern {
        Pattern::Wakeups {
            messages,
            workers,
            ms: time,
            work,
            sleep_us,
        } => {
            let sleep = Duration::from_micros(sleep_us);
            patterns::wakeups(messages, workers, ms(time), work, sleep)
        }
        Pattern::Pairs {
            protocol: Protocol::Udp,
            pairs,
            ms: time,
        } => patterns::pairs(patterns::udp, pairs, ms(time)),
        Pattern::Pairs {
            protocol: Protocol::Tcp,
            pairs,
            ms: time,
        } => patterns::pairs(patterns::tcp, pairs, ms(time)),
        Pattern::Build { jobs, tasks, work } => patterns::build(jobs, tasks, work),
        Pattern::Mix {
            sleepers,
            hogs,
            ms: time,
            work,
        } => patterns::mix(sleepers, hogs, ms(time), work),
        Pattern::Work { thousands } => {
            patterns::compute(thousands);
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// numpy.percentile(range(1, n + 1), [50, 99, 99.9], method='inverted_cdf'), but for the last of
    /// 2000: 0.999 * 2000 is 1998, which numpy rounds up.
    #[test]
    fn percentiles_are_nearest_ranks() {
        for (n, expected) in [
            (1, [1, 1, 1]),
            (2, [1, 2, 2]),
            (100, [50, 99, 100]),
            (1001, [501, 991, 1000]),
            (2000, [1000, 1980, 1998]),
        ] {
            let latencies = (1..=n).rev().map(|x| x * 1_000_000_000).collect();
            let values: Vec<_> = Metric::percentiles("x", latencies)
                .iter()
                .map(|metric| metric.value as u64)
                .collect();
            assert_eq!(values, expected, "{n}");
        }
        assert_eq!(Metric::percentiles("x", Vec::new()), []);
    }

    /// Names and values of a run.
    fn results(arguments: &[&str]) -> Vec<(String, f64)> {
        let cli = Cli::try_parse_from([&["twins"], arguments].concat()).unwrap();
        let metrics = run(cli.pattern).unwrap();
        metrics.into_iter().map(|m| (m.name, m.value)).collect()
    }

    #[test]
    fn each_pattern_gives_its_metrics() {
        for (arguments, names) in [
            (
                &["wakeups", "--ms", "30", "-w", "2"][..],
                &[
                    "wakeup_p50",
                    "wakeup_p99",
                    "wakeup_p99.9",
                    "request_p50",
                    "request_p99",
                    "request_p99.9",
                    "requests",
                ][..],
            ),
            (
                &["pairs", "--protocol", "udp", "-p", "2"],
                &["trips", "trip_p50", "trip_p99", "trip_p99.9"],
            ),
            (
                &["pairs", "--protocol", "tcp", "-p", "2"],
                &["trips", "trip_p50", "trip_p99", "trip_p99.9"],
            ),
            (
                &["mix", "-s", "3", "--hogs", "1"],
                &["late_p50", "late_p99", "late_p99.9", "wakeups", "hog_turns"],
            ),
        ] {
            let results = results(arguments);
            let found: Vec<_> = results.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(found, names);
            assert!(results.iter().all(|(_, value)| *value > 0.0), "{results:?}");
        }
    }

    #[test]
    fn more_work_takes_more_requests_time() {
        let p50 = |work: &str| results(&["wakeups", "--work", work, "--ms", "50"])[3].1;
        assert!(p50("400") > p50("1"));
    }
}
