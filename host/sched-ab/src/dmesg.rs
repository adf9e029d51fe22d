// SPDX-License-Identifier: GPL-2.0

//! Judges a guest's console log: what the kernel complains about fails a run, unless the
//! repository argues why it may.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::paths::Paths;

/// The argued list, in the checkout.
const ALLOWED: &str = "docs/dmesg-allowed.txt";

/// How many lines of the log an error repeats, from the first complaint on: a trace and what led
/// to it, also for who has only the error.
const SHOWN: usize = 60;

/// What the kernel's complaints contain.
const COMPLAINTS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "kernel BUG at",
    "Oops",
    "Kernel panic",
    "general protection fault",
    "unable to handle",
    "Call Trace:",
    // Lockdep and its kin.
    "INFO: possible",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "Invalid wait context",
    "lock held when returning to user space",
    "sleeping function called from invalid context",
    "scheduling while atomic",
    "DEBUG_LOCKS_WARN_ON",
    "bad unlock balance",
    // Stalls.
    "INFO: task ",
    "blocked for more than",
    "rcu: INFO:",
    "self-detected stall",
    "detected stalls on",
    "soft lockup",
    "hard LOCKUP",
    "workqueue lockup",
    // Memory and data structures.
    "list_add corruption",
    "list_del corruption",
    "corrupted stack end",
    "refcount_t:",
    "KASAN:",
    "KCSAN:",
    "UBSAN:",
    "Out of memory",
    "page allocation failure",
    // The agent's own last words.
    "sched-ab-agent:",
];

/// Fails when the console log `log` contains a complaint that is not in the argued list.
///
/// # Errors
///
/// When it does: the error shows the log from there on; or when a file cannot be read.
pub fn check(paths: &Paths, log: &Path) -> Result<()> {
    let list = paths.repo.join(ALLOWED);
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {ALLOWED}"))?;
    let allowed = parse(&text).with_context(|| ALLOWED.to_owned())?;
    let text = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let complaints = complaints(&text, &allowed);
    let Some(&(first, _)) = complaints.first() else {
        return Ok(());
    };
    let shown: Vec<_> = text.lines().map(str::trim_end).skip(first).collect();
    bail!(
        "the guest's kernel complains ({} lines):\n  {}\n  log: {}",
        complaints.len(),
        shown[..shown.len().min(SHOWN)].join("\n  "),
        log.display()
    );
}

/// The lines of `log`, by number from 0, with a complaint that `allowed` does not have.
fn complaints<'a>(log: &'a str, allowed: &[String]) -> Vec<(usize, &'a str)> {
    log.lines()
        .map(str::trim_end)
        .enumerate()
        .filter(|(_, line)| COMPLAINTS.iter().any(|text| line.contains(text)))
        .filter(|(_, line)| !allowed.iter().any(|entry| line.contains(entry)))
        .collect()
}

/// Reads the argued list: a text at the start of a line, which allows the lines that contain it,
/// then the reason on indented lines. Empty lines and those with `#` in front are comments.
fn parse(list: &str) -> Result<Vec<String>> {
    let mut entries: Vec<(String, bool)> = Vec::new();
    for line in list.lines() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match (line.starts_with(' '), entries.last_mut()) {
            (true, Some((_, argued))) => *argued = true,
            (true, None) => bail!("a reason without an entry: {}", line.trim()),
            (false, _) => entries.push((line.trim_end().to_owned(), false)),
        }
    }
    if let Some((text, _)) = entries.iter().find(|(_, argued)| !argued) {
        bail!("no reason is given for: {text}");
    }
    Ok(entries.into_iter().map(|(text, _)| text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "[    0.0] Linux version 7.3.4\r\n\
        [    1.0] WARNING: CPU: 1 PID: 7 at kernel/sched/fair.c:1 f+0x1/0x2\r\n\
        [    1.1] Call Trace:\r\n\
        [    2.0] rcu: INFO: rcu_preempt self-detected stall on CPU\n\
        [    3.0] INFO: task init:1 blocked for more than 120 seconds.\n\
        [    4.0] rcu: Hierarchical RCU implementation.\n";

    #[test]
    fn complaints_are_found() {
        let found = complaints(LOG, &[]);
        assert_eq!(found.len(), 4);
        assert_eq!(found[1], (2, "[    1.1] Call Trace:"));
        assert!(complaints("[ 0.0] BUG: x", &[]).len() == 1);
        assert!(complaints("[ 0.0] Run /init as init process", &[]).is_empty());
    }

    #[test]
    fn an_argued_line_passes_and_only_that() {
        let allowed = parse("# comment\n\nWARNING: CPU: 1\n    Because.\n").unwrap();
        let found = complaints(LOG, &allowed);
        assert_eq!(found.len(), 3);
        assert!(found[0].1.contains("Call Trace"));
    }

    #[test]
    fn every_entry_needs_its_reason() {
        let error = parse("one\n  Because.\ntwo\n").err().unwrap();
        assert!(error.to_string().contains("no reason is given for: two"));
        assert!(parse("  Because.\n").is_err());
    }

    #[test]
    fn the_repository_has_a_list_and_a_bad_log_fails() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(&repo, dir.path());
        let log = dir.path().join("dmesg");
        fs::write(&log, "[ 0.0] fine\n").unwrap();
        check(&paths, &log).unwrap();
        fs::write(&log, LOG).unwrap();
        let error = check(&paths, &log).unwrap_err().to_string();
        assert!(error.contains("(4 lines)") && error.contains("fair.c:1"));
        // From the first complaint on, and what is none as well.
        assert!(!error.contains("Linux version") && error.contains("Hierarchical"));
        assert!(error.contains(&log.display().to_string()));
    }
}
