// SPDX-License-Identifier: GPL-2.0

//! Runs one program of the guest and, as PID 1, reaps and kills what it leaves behind.

use std::{
    fs::{File, OpenOptions},
    io::Read,
    os::fd::{AsFd, FromRawFd, OwnedFd, RawFd},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc,
    poll::{PollFd, PollFlags, poll},
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, pipe2},
};
use sched_ab_protocol::{Event, HEARTBEAT_S, Status};

use crate::{Port, place::Place};

/// How long killed processes may take to go: much longer than exiting takes under TCG.
const KILL: Duration = Duration::from_secs(60);
/// How often orphans are reaped while a program runs, in milliseconds: often enough that a storm
/// of them does not use up the process numbers.
const REAP_MS: u16 = 1000;
/// A line longer than this is handed on in pieces.
const LINE: usize = 8192;

/// How a program ran.
pub struct Run {
    /// How it ended.
    pub status: Status,
    /// Wall time in seconds from before its start to its end.
    pub wall: f64,
}

/// Where a program's input and output go.
#[derive(Clone, Copy, PartialEq)]
pub enum Io {
    /// No input; each line of output (both streams) to the callback.
    Lines,
    /// The console.
    Console,
}

/// Runs `command`, at `place` if there is one, until it ends or `timeout` has passed. When it
/// returns, no process is left but the agent.
pub fn run(
    port: &mut Port,
    command: &[String],
    place: Option<&Place>,
    timeout: Option<Duration>,
    stdio: Io,
    mut line: impl FnMut(&mut Port, &str) -> Result<()>,
) -> Result<Run> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    let mut output = Lines {
        pipe: Some(File::from(reader)),
        partial: Vec::new(),
    };
    let start = Instant::now();
    let child = spawn(command, place, stdio, writer)?;
    let exit = pidfd(child)?;
    let mut told = start;
    let mut timed_out = false;
    let status = loop {
        let mut fds = vec![PollFd::new(exit.as_fd(), PollFlags::POLLIN)];
        if let Some(pipe) = &output.pipe {
            fds.push(PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, REAP_MS) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("poll"),
        }
        let readable = fds.get(1).is_some_and(|fd| fd.any() == Some(true));
        let reaped = reap(child)?;
        let wall = start.elapsed();
        if let Some(status) = reaped {
            let status = if timed_out { Status::TimedOut } else { status };
            break Run {
                status,
                wall: wall.as_secs_f64(),
            };
        }
        if readable {
            output.read(|text| line(port, text))?;
        }
        if !timed_out && timeout.is_some_and(|timeout| wall > timeout) {
            timed_out = true;
            // Blocked tasks into the log; a kernel without sysrq has no such file.
            let _ = std::fs::write("/proc/sysrq-trigger", "w");
            kill(child, Signal::SIGKILL)?;
        }
        if timed_out && timeout.is_some_and(|timeout| wall > timeout + KILL) {
            bail!("{} cannot be killed", command.join(" "));
        }
        if told.elapsed().as_secs() >= HEARTBEAT_S {
            told = Instant::now();
            port.send(&Event::Alive)?;
        }
    };
    kill_leftovers()?;
    // No writer is left, so this reads to the end.
    while output.pipe.is_some() {
        output.read(|text| line(port, text))?;
    }
    Ok(status)
}

fn spawn(command: &[String], place: Option<&Place>, stdio: Io, output: OwnedFd) -> Result<Pid> {
    let (name, arguments) = command.split_first().context("an empty command")?;
    let mut program = Command::new(name);
    program
        .args(arguments)
        .env_clear()
        .envs([("PATH", "/bin"), ("HOME", "/"), ("TERM", "linux")]);
    match stdio {
        Io::Lines => program
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output),
        Io::Console => {
            let console = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/ttyS0")
                .context("cannot open the console /dev/ttyS0")?;
            program
                .stdin(console.try_clone()?)
                .stdout(console.try_clone()?)
                .stderr(console)
        }
    };
    if let Some(place) = place {
        place.put(&mut program)?;
    }
    let child = program
        .spawn()
        .with_context(|| format!("cannot start {name} in the guest"))?;
    Ok(Pid::from_raw(i32::try_from(child.id())?))
}

/// A descriptor that becomes readable when `child`, which is not yet reaped, ends.
fn pidfd(child: Pid) -> Result<OwnedFd> {
    // SAFETY: The system call takes no pointer.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.as_raw(), 0) };
    let fd = RawFd::try_from(Errno::result(fd).context("pidfd_open")?)?;
    // SAFETY: The call succeeded, so `fd` is open and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reaps what has ended and returns the status of `child` if it has.
fn reap(child: Pid) -> Result<Option<Status>> {
    let mut status = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => status = Some(Status::Exit(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                status = Some(Status::Signal(signal as i32));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waitpid"),
        }
    }
}

/// Kills every other process and waits until all are gone.
fn kill_leftovers() -> Result<()> {
    let start = Instant::now();
    loop {
        // As PID 1 this spares only the agent; orphans of what dies become its children.
        match kill(Pid::from_raw(-1), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).context("kill"),
        }
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return Ok(()),
            Ok(WaitStatus::StillAlive) if start.elapsed() > KILL => {
                bail!("processes that a program left behind cannot be killed");
            }
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(10)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waitpid"),
        }
    }
}

/// The lines that come out of a pipe.
struct Lines {
    /// `None` once it has ended.
    pipe: Option<File>,
    partial: Vec<u8>,
}

impl Lines {
    /// Reads once and hands on what is complete.
    fn read(&mut self, mut line: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let mut buffer = [0; LINE];
        let count = pipe.read(&mut buffer).context("cannot read output")?;
        self.partial.extend_from_slice(&buffer[..count]);
        let ended = count == 0;
        if ended {
            self.pipe = None;
        }
        loop {
            let end = match self.partial.iter().position(|&byte| byte == b'\n') {
                Some(end) => end + 1,
                None if self.partial.is_empty() => return Ok(()),
                None if ended || self.partial.len() >= LINE => self.partial.len(),
                None => return Ok(()),
            };
            let text: Vec<u8> = self.partial.drain(..end).collect();
            line(String::from_utf8_lossy(&text).trim_end_matches(['\r', '\n']))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_whole_and_the_last_needs_no_end() {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut writer = File::from(writer);
        let mut lines = Lines {
            pipe: Some(File::from(reader)),
            partial: Vec::new(),
        };
        let mut seen = Vec::new();
        for piece in ["one\ntw", "o\r\n", "\nthree"] {
            writer.write_all(piece.as_bytes()).unwrap();
            lines
                .read(|line| {
                    seen.push(line.to_owned());
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(seen, ["one", "two", ""]);
        drop(writer);
        lines
            .read(|line| {
                seen.push(line.to_owned());
                Ok(())
            })
            .unwrap();
        assert_eq!(seen[3..], ["three"]);
        assert!(lines.pipe.is_none());
    }
}
