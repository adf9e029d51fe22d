// SPDX-License-Identifier: GPL-2.0

//! `/proc/schedstat`, summed over the CPUs that are measured, and wasted idle.
//!
//! The format of the former is described in `Documentation/scheduler/sched-stats.rst`; this reads version 17.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, ensure};

const FILE: &str = "/proc/schedstat";
const VERSION: &str = "version 17";
/// Of the lab's kernel: CPUs that idle while tasks of their LLC wait.
const WASTED: &str = "/sys/kernel/debug/sched/wasted_idle";

/// Fields of a line of a CPU, after its name.
const OF_CPU: [(usize, &str); 5] = [
    (3, "went_idle"),
    (4, "wakeups"),
    (5, "wakeups_local"),
    (7, "wait_ns"),
    (8, "timeslices"),
];
/// Fields of a line of a domain, after its name and mask. Eleven for each kind of balancing: busy,
/// idle, newly idle.
const OF_DOMAIN: [(usize, &str); 7] = [
    (7, "busy_gained"),
    (11, "idle_attempts"),
    (18, "idle_gained"),
    (22, "newidle_attempts"),
    (24, "newidle_failed"),
    (29, "newidle_gained"),
    (42, "wakeups_remote"),
];

/// Counters by name; those of a domain have its name behind a dot.
pub type Counters = BTreeMap<String, u64>;

/// Reads the file.
pub fn read(cpus: &[u32]) -> Result<Counters> {
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    sum(&text, cpus).with_context(|| format!("{FILE} is not as documented"))
}

/// Lets the kernel count wasted idle from here on.
pub fn reset_wasted() -> Result<()> {
    fs::write(WASTED, "0").with_context(|| format!("cannot write {WASTED}"))
}

/// What it has counted since.
pub fn wasted() -> Result<Counters> {
    let text = fs::read_to_string(WASTED).with_context(|| format!("cannot read {WASTED}"))?;
    let counter = |line: &str| {
        let (name, value) = line.split_once(' ').context("no value in wasted_idle")?;
        Ok((format!("wasted_{name}"), value.parse()?))
    };
    text.lines().map(counter).collect()
}

/// By how much each counter rose; the kernel's own may wrap.
pub fn rise(before: &Counters, after: &Counters) -> Counters {
    let before = |name: &str| before.get(name).copied().unwrap_or(0);
    let rise = |(name, value): (&String, &u64)| (name.clone(), value.wrapping_sub(before(name)));
    after.iter().map(rise).collect()
}

fn sum(text: &str, cpus: &[u32]) -> Result<Counters> {
    let mut lines = text.lines();
    ensure!(lines.next() == Some(VERSION), "it is not {VERSION}");
    let mut counters = Counters::new();
    let mut add = |fields: &[&str], wanted: &[(usize, &str)], suffix: &str| -> Result<()> {
        for &(index, name) in wanted {
            let field = fields.get(index).context("a line is too short")?;
            *counters.entry(format!("{name}{suffix}")).or_default() += field.parse::<u64>()?;
        }
        Ok(())
    };
    let mut measured = false;
    for line in lines {
        let fields: Vec<_> = line.split_whitespace().collect();
        match fields[..] {
            [name, ref fields @ ..] if name.starts_with("cpu") => {
                measured = cpus.contains(&name["cpu".len()..].parse()?);
                if measured {
                    add(fields, &OF_CPU, "")?;
                }
            }
            [domain, name, _, ref fields @ ..] if measured && domain.starts_with("domain") => {
                add(fields, &OF_DOMAIN, &format!(".{name}"))?;
            }
            _ => {}
        }
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two CPUs with a domain, and one without; the values tell their index, plus 100 for CPU 1.
    fn text() -> String {
        let fields = |n: usize, plus: usize| {
            let values = (0..n).map(|i| (i + plus).to_string());
            values.collect::<Vec<_>>().join(" ")
        };
        format!(
            "version 17\ntimestamp 4294\ncpu0 {}\ndomain0 MC 03 {}\ncpu1 {}\ndomain0 MC 03 {}\n\
             cpu2 {}\n",
            fields(9, 0),
            fields(45, 0),
            fields(9, 100),
            fields(45, 100),
            fields(9, 1000)
        )
    }

    #[test]
    fn measured_cpus_are_summed() {
        let counters = sum(&text(), &[0, 1]).unwrap();
        assert_eq!(counters["wait_ns"], 7 + 107);
        assert_eq!(counters["timeslices"], 8 + 108);
        assert_eq!(counters["newidle_attempts.MC"], 22 + 122);
        assert_eq!(counters["wakeups_remote.MC"], 42 + 142);
        assert_eq!(sum(&text(), &[1]).unwrap()["newidle_gained.MC"], 129);
        let bare = sum(&text(), &[2]).unwrap();
        assert_eq!((bare["wakeups"], bare.len()), (1004, OF_CPU.len()));
    }

    #[test]
    fn another_format_is_refused() {
        for bad in [
            text().replace("17", "16"),
            text().replace(" 7 8\n", "\n"),
            text().replace(" 7 8\n", " x 8\n"),
            String::new(),
        ] {
            assert!(sum(&bad, &[0]).is_err());
        }
    }

    #[test]
    fn a_counter_may_wrap() {
        let one = |value| Counters::from([("a".to_owned(), value)]);
        assert_eq!(rise(&one(5), &one(8)), one(3));
        assert_eq!(rise(&one(u64::MAX), &one(1)), one(2));
        assert_eq!(rise(&Counters::new(), &one(2)), one(2));
    }
}
