// SPDX-License-Identifier: GPL-2.0

//! Progress on standard error: a bar on a terminal, a line now and then elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a log without a terminal gets a line.
const QUIET: Duration = Duration::from_secs(20);

/// One step of a command, for example a kernel build.
pub struct Step {
    name: String,
    bar: Option<ProgressBar>,
    total: u64,
    start: Instant,
    last: Instant,
}

impl Step {
    /// Starts the step `name` of `total` units; 0 means that the number is not known.
    pub fn new(name: &str, total: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let template = if total == 0 {
                "{spinner} {prefix}  {elapsed}  {msg}"
            } else {
                "{spinner} {prefix}  {bar:30} {percent:>3} %  {elapsed}, {eta} left  {msg}"
            };
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        if bar.is_none() {
            eprintln!("{name} ...");
        }
        let now = Instant::now();
        Self {
            name: name.to_owned(),
            bar,
            total,
            start: now,
            last: now,
        }
    }

    /// `done` units are done now; `message` says what is being worked on.
    pub fn at(&mut self, done: u64, message: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(done.min(self.total.max(done)));
                bar.set_message(message.to_owned());
            }
            None if self.last.elapsed() >= QUIET => {
                self.last = Instant::now();
                let spent = self.start.elapsed();
                match (self.total, done) {
                    (0, _) | (_, 0) => eprintln!("  {} s  {message}", spent.as_secs()),
                    (total, done) => {
                        let left = spent.mul_f64(total.saturating_sub(done) as f64 / done as f64);
                        eprintln!(
                            "  {:>3} %  {} s, about {} s left  {message}",
                            (100 * done / total).min(100),
                            spent.as_secs(),
                            left.as_secs(),
                        );
                    }
                }
            }
            None => {}
        }
    }

    /// Prints a line that stays.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    /// Ends the step with a line that stays.
    pub fn done(self, message: &str) {
        let line = format!(
            "{}: {message} ({} s)",
            self.name,
            self.start.elapsed().as_secs()
        );
        match self.bar {
            Some(bar) => {
                bar.finish_and_clear();
                eprintln!("{line}");
            }
            None => eprintln!("{line}"),
        }
    }
}
