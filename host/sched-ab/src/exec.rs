// SPDX-License-Identifier: GPL-2.0

//! Runs programs: output goes to a log, a failure names the cause and the log.

use std::{
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// How many lines of a failed program's output an error repeats.
const TAIL: usize = 5;

/// Runs `command`, appends its output (both streams, in order) to `log`, and hands each line to
/// `line` for progress.
///
/// # Errors
///
/// When the program cannot be started or does not exit with 0; the error shows its last lines and
/// the path of the log.
pub fn logged(command: &mut Command, log: &Path, mut line: impl FnMut(&str)) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    if let Some(dir) = log.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    writeln!(file, "+ {command:?}")?;
    let (reader, writer) = os_pipe::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let child = command.spawn();
    // The writing ends must be closed here, or the reader never sees the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.with_context(|| format!("cannot start {name}"))?;
    let mut tail = Vec::new();
    for text in BufReader::new(reader).split(b'\n') {
        let text = String::from_utf8_lossy(&text?).into_owned();
        writeln!(file, "{text}")?;
        line(&text);
        if tail.len() == TAIL {
            tail.remove(0);
        }
        tail.push(text);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!(
            "{name} failed ({status}):\n  {}\n  log: {}",
            tail.join("\n  "),
            log.display()
        );
    }
    Ok(())
}

/// Runs `command` and returns what it printed on standard output.
///
/// # Errors
///
/// When the program cannot be started or does not exit with 0; the error shows what it printed on
/// standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed ({}): {}", output.status, error.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_cause_and_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        let mut lines = Vec::new();
        let error = logged(
            Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]),
            &log,
            |line| lines.push(line.to_owned()),
        )
        .unwrap_err()
        .to_string();
        assert_eq!(lines, ["one", "two"]);
        assert!(
            error.contains("exit status: 3") && error.contains("two") && error.contains("a.log")
        );
        assert!(fs::read_to_string(&log).unwrap().contains("one\ntwo\n"));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut Command::new("no-such-program")).unwrap_err();
        assert!(error.to_string().contains("no-such-program"));
    }
}
