// SPDX-License-Identifier: GPL-2.0

//! The guest's root file system: the agent as `/init`, programs with their libraries, the plan.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use cpio::newc::{self, Builder, ModeFileType};
use sched_ab_protocol::{PLAN, Plan};

use crate::{exec, paths::Paths, toolchain};

/// The dynamic loader, at the path that programs for x86-64 name.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// The target that the agent is built for; named explicitly so that its flags do not reach the
/// host's own build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The package and the program of the agent.
const AGENT: &str = "sched-ab-agent";

/// Builds the agent, static, and returns its path.
///
/// # Errors
///
/// When the build fails.
pub fn agent(paths: &Paths) -> Result<PathBuf> {
    build(paths, AGENT)
}

/// Builds a program of this workspace, static, and returns its path.
///
/// # Errors
///
/// When the build fails.
pub fn build(paths: &Paths, package: &str) -> Result<PathBuf> {
    let mut command = toolchain::cargo(paths);
    command
        .args(["build", "--release", "--locked", "--target", TARGET])
        .args(["--package", package])
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    let log = paths.cache_dir("guest")?.join(format!("{package}.log"));
    exec::logged(&mut command, &log, |_| {}).with_context(|| format!("cannot build {package}"))?;
    let dir = paths.cache.join("target").join(TARGET).join("release");
    Ok(dir.join(package))
}

/// Finds a program in `PATH`; `package` is the Debian package that has it, for the error.
///
/// # Errors
///
/// When it is not there.
pub fn program(name: &str, package: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("{name} is missing; Debian's package {package} has it"))
}

/// The archive with the agent as `/init` and each program, with its libraries, in `/bin`.
///
/// The same files give the same bytes.
///
/// # Errors
///
/// When a file cannot be read or a library is not found.
pub fn archive(agent: &Path, programs: &[PathBuf]) -> Result<Vec<u8>> {
    let mut files = BTreeMap::from([("init".to_owned(), agent.to_owned())]);
    for program in programs {
        let name = program
            .file_name()
            .with_context(|| format!("{} is no program", program.display()))?;
        files.insert(format!("bin/{}", name.to_string_lossy()), program.clone());
        for library in libraries(program)? {
            files.insert(library.trim_start_matches('/').to_owned(), library.into());
        }
    }
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "tmp"] {
        archive.dir(dir)?;
    }
    // The kernel opens it as init's standard streams before there is a devtmpfs.
    let console = Builder::new("dev/console").rdev_major(5).rdev_minor(1);
    archive.entry(console, ModeFileType::Char, 0o600, &[])?;
    for (name, path) in files {
        let data = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        archive.file(&name, &data)?;
    }
    archive.end()
}

/// `archive` with the plan appended as an archive of its own, so that one serves many plans.
///
/// # Errors
///
/// When the plan cannot be written as JSON.
pub fn with_plan(archive: &[u8], plan: &Plan) -> Result<Vec<u8>> {
    let mut second = Archive::default();
    second.file(PLAN.trim_start_matches('/'), &serde_json::to_vec(plan)?)?;
    Ok([archive, &second.end()?].concat())
}

/// The shared libraries of a program, the loader included; none if it is static.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let loader = |option| {
        let mut command = Command::new(LOADER);
        command.arg(option).arg(program);
        command
    };
    let dynamic = loader("--verify").output();
    if !dynamic.is_ok_and(|output| output.status.success()) {
        return Ok(Vec::new());
    }
    let list = exec::output(&mut loader("--list"))?;
    let mut libraries = Vec::new();
    for line in list.lines().map(str::trim) {
        // `name => path (address)`, `path (address)`, or `linux-vdso.so.1 (address)`.
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        if path == "not found" {
            bail!("{}: {line}", program.display());
        }
        let path = path.split_once(" (").map_or(path, |(path, _)| path);
        if path.starts_with('/') {
            libraries.push(path.to_owned());
        }
    }
    Ok(libraries)
}

/// A cpio archive whose entries have no owner, no time and numbers in order.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    names: Vec<String>,
}

impl Archive {
    /// Adds a folder and the ones above it, each once.
    fn dir(&mut self, name: &str) -> Result<()> {
        if name.is_empty() || self.names.iter().any(|known| known == name) {
            return Ok(());
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.dir(parent)?;
        }
        self.names.push(name.to_owned());
        self.entry(Builder::new(name), ModeFileType::Directory, 0o755, &[])
    }

    /// Adds an executable file and the folders above it.
    fn file(&mut self, name: &str, data: &[u8]) -> Result<()> {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.dir(parent)?;
        }
        self.names.push(name.to_owned());
        self.entry(Builder::new(name), ModeFileType::Regular, 0o755, data)
    }

    fn entry(&mut self, entry: Builder, kind: ModeFileType, mode: u32, data: &[u8]) -> Result<()> {
        let number = u32::try_from(self.names.len())?;
        let mut writer = entry
            .ino(number)
            .mode(mode)
            .set_mode_file_type(kind)
            .write(&mut self.bytes, u32::try_from(data.len())?);
        writer.write_all(data)?;
        writer.finish()?;
        Ok(())
    }

    fn end(mut self) -> Result<Vec<u8>> {
        newc::trailer(&mut self.bytes)?;
        // The kernel looks for a further archive at a multiple of 4.
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, modes and sizes as `cpio -t` would list them.
    fn list(mut bytes: &[u8]) -> Vec<(String, u32, u32)> {
        let mut entries = Vec::new();
        loop {
            let reader = newc::Reader::new(bytes).unwrap();
            let entry = reader.entry();
            if entry.is_trailer() {
                return entries;
            }
            entries.push((entry.name().to_owned(), entry.mode(), entry.file_size()));
            bytes = reader.finish().unwrap();
        }
    }

    #[test]
    fn a_program_brings_its_libraries_and_the_bytes_are_the_same() {
        let shell = [PathBuf::from("/bin/sh")];
        let first = archive(Path::new("/bin/true"), &shell).unwrap();
        let entries = list(&first);
        let find = |name: &str| entries.iter().position(|entry| entry.0 == name);
        assert_eq!(entries[find("dev/console").unwrap()].1, 0o020_600);
        assert_eq!(entries[find("init").unwrap()].1, 0o100_755);
        assert!(find("bin/sh").is_some());
        assert!(find(LOADER.trim_start_matches('/')).is_some());
        // A folder comes once, and before what is in it.
        assert!(find("lib64").unwrap() < find(LOADER.trim_start_matches('/')).unwrap());
        let mut names: Vec<_> = entries.iter().map(|entry| &entry.0).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), entries.len());
        assert_eq!(first, archive(Path::new("/bin/true"), &shell).unwrap());
    }

    #[test]
    fn the_plan_is_a_second_archive() {
        let first = Archive::default().end().unwrap();
        let both = with_plan(&first, &Plan::Boot { settle_s: 3 }).unwrap();
        assert_eq!(first.len() % 4, 0);
        let entries = list(&both[first.len()..]);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].0, "plan.json");
        let text = String::from_utf8_lossy(&both);
        assert!(text.contains(r#"{"plan":"boot","settle_s":3}"#));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = program("no-such-program", "rt-tests").unwrap_err();
        assert!(error.to_string().contains("package rt-tests"));
    }
}
