// SPDX-License-Identifier: GPL-2.0

//! Runs git the same way everywhere: no configuration, hooks or variables of the user take part.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// Who commits; a series carries no personal data until somebody signs it off.
pub(super) const IDENTITY: (&str, &str) = ("sched/llc series", "series@sched-ab.invalid");

/// The date of the first commit, 2026-01-01; each later one is a minute younger.
const EPOCH: u64 = 1_767_225_600;

const CONFIG: &[&str] = &[
    "core.abbrev=12",
    "core.attributesFile=/dev/null",
    "core.autocrlf=false",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",
    // Changelogs may have lines that start with `#`.
    "core.commentChar=\u{1}",
    "commit.gpgSign=false",
    "advice.detachedHead=false",
    "gc.auto=0",
];

/// Attributes outrank those of a kernel tree's own files, so that a diff reads the same whether or
/// not these are around.
const ATTRIBUTES: &str = "* -text -eol -ident -filter -working-tree-encoding\n\
                          *.[ch] diff=cpp\n*.rs diff=rust\n";

/// One git repository and its work tree.
pub(super) struct Git {
    pub dir: PathBuf,
}

impl Git {
    /// A repository that exists.
    pub fn at(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// A new repository, with everything excluded that is not added by name.
    pub fn init(dir: &Path) -> Result<Self> {
        let git = Self::at(dir);
        git.run(&["init", "-q", "-b", "series", "--template="])?;
        let info = dir.join(".git/info");
        fs::create_dir_all(&info)?;
        fs::write(info.join("attributes"), ATTRIBUTES)?;
        fs::write(info.join("exclude"), "*\n")?;
        Ok(git)
    }

    /// git with `args`, ready to run.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("git");
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("GIT_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(&self.dir)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            // A repository around this folder must not be taken for ours.
            .env(
                "GIT_CEILING_DIRECTORIES",
                self.dir.parent().unwrap_or(&self.dir),
            )
            .env("GIT_EDITOR", ":")
            .env("GIT_SEQUENCE_EDITOR", ":")
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .stdin(Stdio::null());
        identify(&mut command, IDENTITY, 0);
        for setting in CONFIG {
            command.args(["-c", setting]);
        }
        command.arg("--literal-pathspecs").args(args);
        command
    }

    /// Runs git and returns what it printed.
    pub fn run(&self, args: &[&str]) -> Result<Vec<u8>> {
        run(self.command(args))
    }

    /// Runs git and returns what it printed, as text without the last line end.
    pub fn text(&self, args: &[&str]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.run(args)?).trim_end().into())
    }

    /// Runs git, whose output is a list of lines.
    pub fn lines(&self, args: &[&str]) -> Result<Vec<String>> {
        Ok(self.text(args)?.lines().map(str::to_owned).collect())
    }

    /// Runs git, whose output is a list that ends each item with NUL.
    pub fn items(&self, args: &[&str]) -> Result<Vec<String>> {
        let list = self.run(args)?;
        let text = std::str::from_utf8(&list).context("a file name is not UTF-8")?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// Runs git on `args` followed by `paths`, in several runs when there are many.
    pub fn each(&self, args: &[&str], paths: &[String]) -> Result<()> {
        for some in paths.chunks(500) {
            let mut all = args.to_vec();
            all.extend(some.iter().map(String::as_str));
            self.run(&all)?;
        }
        Ok(())
    }

    /// Commits the index as commit number `number` (0 is the base) by `author`.
    pub fn commit(
        &self,
        message: &str,
        number: usize,
        author: (&str, &str),
        args: &[&str],
    ) -> Result<String> {
        let file = self.dir.join(".git/MESSAGE");
        fs::write(&file, message)?;
        let mut command = self.command(&["commit", "-q", "--allow-empty", "-F", ".git/MESSAGE"]);
        identify(&mut command, author, number);
        command.args(args);
        run(command)?;
        self.text(&["rev-parse", "HEAD"])
    }
}

/// Pins who and when.
pub(super) fn identify(command: &mut Command, (name, mail): (&str, &str), number: usize) {
    let date = format!("@{} +0000", EPOCH + 60 * number as u64);
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), name)
            .env(format!("GIT_{role}_EMAIL"), mail)
            .env(format!("GIT_{role}_DATE"), &date);
    }
}

/// Runs `command`; the error is what git complains about, in one line.
pub(super) fn run(mut command: Command) -> Result<Vec<u8>> {
    let output = command.output().context("cannot start git")?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<_> = said
        .lines()
        .filter_map(|line| {
            ["error: ", "fatal: ", "CONFLICT "]
                .iter()
                .find_map(|kind| line.strip_prefix(kind))
        })
        .collect();
    match lines.as_slice() {
        [] => bail!("git failed ({}): {}", output.status, said.trim()),
        lines => bail!("{}", lines.join("; ")),
    }
}
