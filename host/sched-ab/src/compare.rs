// SPDX-License-Identifier: GPL-2.0

//! The sides of a comparison, and what a guest's events say of them.

use std::{collections::BTreeSet, fmt, str::FromStr};

use anyhow::{Context, Result, bail, ensure};
use sched_ab_protocol::Event;

use crate::{
    report::{BASE, Counters, Side},
    workload::{TIME, Workload},
};

/// More features would give more than 16 sides, each of which runs `ROUNDS` times.
const MAX_FEATURES: usize = 4;

/// Names of scheduler features, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Features(pub Vec<String>);

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

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

impl Features {
    /// The sides of a comparison: none on, then each combination.
    pub fn combos(&self) -> Vec<Vec<String>> {
        let on = |bits: usize| {
            let names = self.0.iter().enumerate();
            names.filter(move |(index, _)| bits & (1 << index) != 0)
        };
        (0..1 << self.0.len())
            .map(|bits| on(bits).map(|(_, name)| name.clone()).collect())
            .collect()
    }

    /// Refuses a feature that is not one of `known`.
    pub fn check(&self, known: &[&str]) -> Result<()> {
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
pub fn in_source(text: &str) -> Vec<&str> {
    let entries = text
        .lines()
        .filter_map(|line| line.strip_prefix("SCHED_FEAT("));
    let names: BTreeSet<_> = entries
        .filter_map(|entry| Some(entry.split_once(',')?.0.trim()))
        .collect();
    names.into_iter().collect()
}

/// The names in debugfs' `sched/features`, which has `NO_` in front of those that are off.
pub fn in_debugfs(text: &str) -> Vec<&str> {
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

/// What an event says of the progress of a comparison, if it ends a run.
pub fn progress(event: &Event) -> Option<String> {
    match event {
        Event::Warmup { combo, .. } => Some(format!("warm-up of {}", side_name(combo))),
        Event::Sample(sample) => {
            let name = side_name(&sample.combo);
            Some(format!("round {}: {name}", sample.round))
        }
        _ => None,
    }
}

/// In the name of what is no count: of several runs the largest holds.
const WORST: &str = "worst";

/// Which of its times a run is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clock {
    /// What the program printed.
    Printed,
    /// From before its start to its end: programs round to milliseconds, which is much where a run
    /// takes few of them.
    Wall,
}

/// Makes sides of a guest's events.
pub struct Collect<'a> {
    features: &'a Features,
    workload: &'static Workload,
    clock: Clock,
    /// In the order of [`Features::combos`].
    pub sides: Vec<Side>,
}

impl<'a> Collect<'a> {
    /// With no samples yet.
    pub fn new(features: &'a Features, workload: &'static Workload, clock: Clock) -> Self {
        let side = |combo: &Vec<String>| Side {
            name: side_name(combo),
            ..Side::default()
        };
        Self {
            features,
            workload,
            clock,
            sides: features.combos().iter().map(side).collect(),
        }
    }

    fn side(&mut self, combo: &[String]) -> Result<&mut Side> {
        let name = side_name(combo);
        let side = self.sides.iter_mut().find(|side| side.name == name);
        side.with_context(|| format!("the guest ran {name}, which was not asked for"))
    }

    /// Takes an event.
    ///
    /// # Errors
    ///
    /// When it is not what the comparison asks for.
    pub fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Hello(hello) => self.features.check(&in_debugfs(&hello.features))?,
            Event::Sample(sample) => {
                let mut values = self.workload.results(&sample.output)?;
                if self.clock == Clock::Wall {
                    let times = values.iter_mut().filter(|v| v.metric.name == TIME);
                    times.for_each(|value| value.value = sample.wall);
                }
                self.side(&sample.combo)?.add(values)?;
            }
            Event::Stats {
                combo,
                before,
                after,
                schedstat,
            } => {
                let before = counters(before)?;
                let side = self.side(combo)?;
                for (name, rise) in schedstat {
                    let sum = side.schedstat.entry(name.clone()).or_default();
                    *sum = match name.contains(WORST) {
                        true => (*sum).max(*rise),
                        false => *sum + rise,
                    };
                }
                for (name, after) in counters(after)? {
                    let rise = after.checked_sub(before.get(&name).copied().unwrap_or(0));
                    let rise = rise.with_context(|| format!("the counter {name} fell"))?;
                    *side.counters.entry(name).or_default() += rise;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that each side has `rounds` samples.
    ///
    /// # Errors
    ///
    /// When one has not.
    pub fn complete(&self, rounds: usize) -> Result<()> {
        for Side { name, results, .. } in &self.sides {
            let found = results.first().map_or(0, |(_, samples)| samples.len());
            ensure!(
                found == rounds,
                "the guest gave {found} results of {name}, not {rounds}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sched_ab_protocol::{Hello, Sample};

    use super::*;

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
            schedstat: Counters::from([
                ("wait_ns".to_owned(), 7),
                ("wasted_worst_ns".to_owned(), after),
            ]),
        }
    }

    /// Feeds events to a comparison of `A` in 2 rounds.
    fn collect(events: &[Event]) -> Result<Vec<Side>> {
        let features = Features::from_str("A").unwrap();
        let workload = Workload::find("hackbench").unwrap();
        let mut collect = Collect::new(&features, workload, Clock::Printed);
        for event in events {
            collect.event(event)?;
            if *event == Event::Done {
                collect.complete(2)?;
            }
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
            (base.name.as_str(), &base.results[0].1[..]),
            ("base", &[1.5, 1.625][..])
        );
        assert_eq!(
            (with.name.as_str(), &with.results[0].1[..]),
            ("A", &[1.25, 1.125][..])
        );
        assert_eq!((base.counters["pushed"], with.counters["pushed"]), (0, 28));
        assert_eq!(base.schedstat["wait_ns"], 14);
        assert_eq!(base.schedstat["wasted_worst_ns"], 231);
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
