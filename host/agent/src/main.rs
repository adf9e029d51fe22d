// SPDX-License-Identifier: GPL-2.0

//! The init process of a test guest: carries out the plan, tells the host, powers off.
//!
//! As PID 1 it must not end, or the kernel panics; so every error, a panic included, becomes an
//! event and a power-off.

mod machine;
mod place;
mod run;
mod schedstat;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    panic,
    path::Path,
    process, thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::{
        reboot::{RebootMode, reboot},
        termios::{SetArg, cfmakeraw, tcdrain, tcgetattr, tcsetattr},
    },
    unistd::sync,
};
use sched_ab_protocol::{Event, HEARTBEAT_S, PLAN, Plan, Sample, Status};

use crate::{
    place::Place,
    run::{Io, Run},
    schedstat::Counters,
};

/// The counters of the shared runqueues and of the filter.
const STATS: [&str; 2] = [
    "/sys/kernel/debug/sched/shared_runq/stats",
    "/sys/kernel/debug/sched/sis_filter/stats",
];
/// The results of the KUnit suites, a folder each.
const KUNIT: &str = "/sys/kernel/debug/kunit";
/// How much of a command's output goes into a sample or an error.
const TAIL: usize = 2000;

/// The serial port to the host.
pub struct Port(File);

impl Port {
    /// Opens the second serial port, raw: a terminal would change line ends and echo.
    fn open() -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/ttyS1")
            .context("cannot open the second serial port /dev/ttyS1")?;
        let mut raw = tcgetattr(&file)?;
        cfmakeraw(&mut raw);
        tcsetattr(&file, SetArg::TCSANOW, &raw)?;
        Ok(Self(file))
    }

    /// Sends one event.
    pub fn send(&mut self, event: &Event) -> Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0
            .write_all(&line)
            .context("cannot write to the second serial port")
    }
}

fn main() {
    if process::id() != 1 {
        eprintln!("this is the init process of a test guest: it powers the machine off");
        process::exit(1);
    }
    panic::set_hook(Box::new(|info| {
        let message = format!("the agent failed: {info}").replace('\n', " ");
        fail(&message);
        power_off();
    }));
    if let Err(error) = agent() {
        fail(&format!("{error:#}").replace('\n', " "));
    }
    power_off();
}

/// Tells the host and the console that the plan failed.
fn fail(message: &str) {
    eprintln!("sched-ab-agent: {message}");
    if let Ok(mut port) = Port::open() {
        let message = message.to_owned();
        let _ = port.send(&Event::Error { message });
        let _ = tcdrain(&port.0);
    }
}

/// Does not return.
fn power_off() -> ! {
    sync();
    loop {
        // It returns only on an error, and PID 1 must not end.
        let _ = reboot(RebootMode::RB_POWER_OFF);
        thread::sleep(Duration::from_secs(1));
    }
}

fn agent() -> Result<()> {
    machine::mount_all()?;
    let mut port = Port::open()?;
    let plan = fs::read(PLAN).with_context(|| format!("no plan in {PLAN}"))?;
    let plan = serde_json::from_slice(&plan).with_context(|| format!("{PLAN} is no plan"))?;
    machine::loopback_up()?;
    machine::raise_limits()?;
    port.send(&Event::Hello(machine::hello()?))?;
    match plan {
        Plan::Boot { settle_s } => {
            for second in 0..settle_s {
                if second % HEARTBEAT_S == 0 {
                    port.send(&Event::Alive)?;
                }
                thread::sleep(Duration::from_secs(1));
            }
        }
        Plan::Compare {
            features,
            combos,
            rounds,
            command,
            workload,
            timeout_s,
            seeds,
        } => {
            if let Some(seeds) = &seeds {
                place::keep_off(&seeds.cpus)?;
                let all = seeds.cpus.len();
                for busy in [1, 2, all / 2, all] {
                    let nanoseconds = place::speed(&seeds.cpus[..busy.min(all)])?;
                    port.send(&Event::Speed { nanoseconds })?;
                }
            }
            for round in 0..=rounds {
                let place = seeds.as_ref().map(|seeds| Place::new(seeds, round));
                for combo in &combos {
                    for feature in &features {
                        machine::set_feature(feature, combo.contains(feature))?;
                    }
                    let run = Compared {
                        round,
                        combo,
                        command: &command,
                        workload: &workload,
                        timeout_s,
                        place: place.as_ref(),
                    };
                    run.run(&mut port)?;
                }
            }
        }
        Plan::Tests {
            commands,
            features_on,
            timeout_s,
        } => {
            for feature in &features_on {
                machine::set_feature(feature, true)?;
            }
            kunit(&mut port)?;
            for command in &commands {
                test(&mut port, command, timeout_s)?;
            }
        }
        Plan::Shell => shell(&mut port)?,
    }
    port.send(&Event::Done)?;
    tcdrain(&port.0)?;
    Ok(())
}

/// One run of the workload; in round 0 it only warms up.
struct Compared<'a> {
    round: u32,
    combo: &'a [String],
    command: &'a [String],
    workload: &'a str,
    timeout_s: u64,
    place: Option<&'a Place>,
}

impl Compared<'_> {
    fn run(&self, port: &mut Port) -> Result<()> {
        let Self {
            round,
            combo,
            command,
            workload,
            timeout_s,
            place,
        } = *self;
        let mut output = String::new();
        let timeout = Some(Duration::from_secs(timeout_s));
        if let Some(place) = place {
            thread::sleep(place.delay);
        }
        let measured = place.map(|place| &place.cpus[..]);
        let before = stats()?;
        let mut schedstat = Counters::new();
        if let Some(cpus) = measured {
            schedstat = schedstat::read(cpus)?;
            schedstat::reset_wasted()?;
        }
        let Run { status, wall } =
            run::run(port, command, place, timeout, Io::Lines, |_, line| {
                output.push_str(line);
                output.push('\n');
                if output.len() > 2 * TAIL {
                    output = tail(&output).to_owned();
                }
                Ok(())
            })?;
        let output = tail(&output);
        let when = match round {
            0 => "when warming up".to_owned(),
            round => format!("in round {round}"),
        };
        match status {
            Status::Exit(0) => {}
            Status::TimedOut => bail!("{workload} ran for more than {timeout_s} s {when}"),
            Status::Exit(code) => {
                bail!(
                    "{workload} failed with status {code} {when}: {}",
                    output.trim()
                );
            }
            Status::Signal(signal) => bail!("{workload} was killed by signal {signal} {when}"),
        }
        if let Some(cpus) = measured {
            let wasted = schedstat::wasted()?;
            schedstat = schedstat::rise(&schedstat, &schedstat::read(cpus)?);
            schedstat.extend(wasted);
        }
        let after = stats()?;
        let combo = combo.to_vec();
        if round == 0 {
            return port.send(&Event::Warmup { combo, wall });
        }
        port.send(&Event::Sample(Sample {
            round: place.map_or(round, |place| place.seed),
            combo: combo.clone(),
            value: reported_time(output).unwrap_or(wall),
            wall,
            output: output.to_owned(),
        }))?;
        if !after.is_empty() {
            port.send(&Event::Stats {
                combo,
                before,
                after,
                schedstat,
            })?;
        }
        Ok(())
    }
}

/// The kernel's counters, as it prints them; nothing if it has none.
fn stats() -> Result<String> {
    STATS
        .into_iter()
        .filter(|file| Path::new(file).exists())
        .map(|file| fs::read_to_string(file).with_context(|| format!("cannot read {file}")))
        .collect()
}

/// The end of `text`.
fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(TAIL);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// The seconds that hackbench prints as `Time: 0.123`.
fn reported_time(output: &str) -> Option<f64> {
    output
        .lines()
        .rev()
        .find_map(|line| line.trim().strip_prefix("Time:"))?
        .trim()
        .parse()
        .ok()
}

/// Sends what KUnit suites found at boot.
fn kunit(port: &mut Port) -> Result<()> {
    let Ok(suites) = fs::read_dir(KUNIT) else {
        return Ok(());
    };
    let mut suites: Vec<_> = suites.collect::<Result<_, _>>()?;
    suites.sort_by_key(fs::DirEntry::file_name);
    for suite in suites {
        let test = format!("kunit/{}", suite.file_name().to_string_lossy());
        let results = suite.path().join("results");
        let results = fs::read_to_string(&results)
            .with_context(|| format!("cannot read {}", results.display()))?;
        for line in results.lines() {
            let (test, line) = (test.clone(), line.to_owned());
            port.send(&Event::Tap { test, line })?;
        }
    }
    Ok(())
}

/// One test program.
fn test(port: &mut Port, command: &[String], timeout_s: u64) -> Result<()> {
    let program = command.first().context("a test has no program")?;
    let name = Path::new(program).file_name().unwrap_or_default();
    let mut test = name.to_string_lossy().into_owned();
    for argument in &command[1..] {
        test.push(' ');
        test.push_str(argument);
    }
    let timeout = Some(Duration::from_secs(timeout_s));
    let Run { status, .. } = run::run(port, command, None, timeout, Io::Lines, |port, line| {
        let (test, line) = (test.clone(), line.to_owned());
        port.send(&Event::Tap { test, line })
    })?;
    port.send(&Event::TestDone { test, status })
}

/// A shell on the console, until it ends.
fn shell(port: &mut Port) -> Result<()> {
    let steps: [(&[&str], _); 2] = [
        (&["--install", "-s", "/bin"], Io::Lines),
        (&["setsid", "-c", "/bin/busybox", "sh"], Io::Console),
    ];
    for (arguments, stdio) in steps {
        let command = [&["/bin/busybox"], arguments].concat();
        let command: Vec<_> = command.into_iter().map(str::to_owned).collect();
        run::run(port, &command, None, None, stdio, |_, _| Ok(()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_hackbench_prints_is_found() {
        let output = "Running in process mode\nTime: 1\nTime: 0.125\n";
        assert_eq!(reported_time(output), Some(0.125));
        assert_eq!(reported_time("Time: soon\n"), None);
        assert_eq!(reported_time("nothing\n"), None);
    }

    #[test]
    fn a_tail_starts_at_a_character() {
        let text = "é".repeat(TAIL);
        assert_eq!(tail(&text).len(), TAIL);
        let text = format!("{text}x");
        assert_eq!(tail(&text).len(), TAIL - 1);
        assert_eq!(tail("short"), "short");
    }
}
