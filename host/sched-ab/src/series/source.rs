// SPDX-License-Identifier: GPL-2.0

//! The series as files of this repository, and the rules that they keep.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::git::Git;
use crate::base::Base;

/// Folders that are named like the kernel's and hold the files that the series adds.
pub(super) const OVERLAY: [&str; 5] = ["kernel", "include", "rust", "tools", "Documentation"];

/// The cover letter, which is no patch.
pub(super) const COVER: &str = "series/0000-cover-letter.msg";

/// Where the diffs of the lab are.
const LAB: &str = "host/lab";

/// The start of a line that names a file that a patch adds.
const LINE: &str = "Overlay: ";

/// One patch as it is kept here.
pub(super) struct Patch {
    /// Its place, from 1.
    pub number: usize,
    /// What its file is called after the number.
    pub slug: String,
    /// The changelog: subject, empty line, body.
    pub message: String,
    /// Files that it adds whole.
    pub overlay: Vec<String>,
    /// Edits to files of the base.
    pub diff: Option<Diff>,
    /// Edits to files that an earlier patch adds.
    pub grow: Option<Diff>,
}

impl Patch {
    /// The first line of the changelog.
    pub fn subject(&self) -> &str {
        subject(&self.message)
    }
}

/// A diff in the repository.
pub(super) struct Diff {
    /// Where it is.
    pub file: PathBuf,
    /// Its path from the root of the repository, for messages.
    pub name: String,
    /// The files that it changes.
    pub paths: Vec<String>,
}

impl Diff {
    fn load(root: &Path, name: String) -> Result<Self> {
        let file = root.join(&name);
        let argument = file.to_str().context("a path is not UTF-8")?;
        let list = Git::at(root)
            .items(&["apply", "--numstat", "-z", argument])
            .with_context(|| name.clone())?;
        let paths = list
            .iter()
            .filter_map(|item| item.splitn(3, '\t').nth(2).map(str::to_owned))
            .collect();
        Ok(Self { file, name, paths })
    }

    /// The error for `cause`, which git gave when the diff was applied to `what`.
    pub fn refused(&self, what: &str, cause: &anyhow::Error) -> anyhow::Error {
        let cause = cause.to_string();
        let place = cause.split("; ").find_map(|line| {
            let (file, line) = line.strip_prefix("patch failed: ")?.rsplit_once(':')?;
            let start = format!("@@ -{line}");
            let text = fs::read(&self.file).ok()?;
            let hunk = String::from_utf8_lossy(&text)
                .lines()
                .skip_while(|line| line.strip_prefix("+++ b/") != Some(file))
                .find(|line| {
                    let rest = line.strip_prefix(&start);
                    rest.is_some_and(|rest| rest.starts_with([',', ' ']))
                })?
                .to_owned();
            Some(format!("{file}, hunk `{hunk}`"))
        });
        let place = place.unwrap_or(cause);
        anyhow::anyhow!("{} does not apply to {what}: {place}", self.name)
    }
}

/// Changes that only the lab's kernel has, in the order of their names.
pub(super) fn lab(root: &Path) -> Result<Vec<Diff>> {
    let diffs = names(&root.join(LAB))?.into_iter();
    diffs
        .map(|name| {
            ensure!(name.ends_with(".diff"), "{LAB}/{name} is no .diff");
            Diff::load(root, format!("{LAB}/{name}"))
        })
        .collect()
}

/// The whole series.
pub(super) struct Source {
    /// The root of the repository.
    pub root: PathBuf,
    /// The patches in order.
    pub patches: Vec<Patch>,
}

impl Source {
    /// Reads the series for `base` from the repository `root` and checks its rules.
    pub fn load(root: &Path, base: &Base) -> Result<Self> {
        let hooks = folder(base);
        let mut messages = BTreeMap::new();
        let mut grows = BTreeMap::new();
        let mut diffs = BTreeMap::new();
        for name in names(&root.join("series"))? {
            let path = format!("series/{name}");
            if root.join(&path).is_dir() {
                continue;
            }
            match numbered(&name) {
                Some((_, _)) if path == COVER => {}
                Some((number, rest)) if number > 0 && rest == ".grow.diff" => {
                    grows.insert(number, path);
                }
                Some((number, rest)) if number > 0 && slug_of(rest).is_some() => {
                    let slug = slug_of(rest).unwrap_or_default().to_owned();
                    if let Some((_, first)) = messages.insert(number, (slug, path.clone())) {
                        bail!("{first} and {path} have the same number");
                    }
                }
                _ => bail!("{path} is neither NNNN-slug.msg nor NNNN.grow.diff"),
            }
        }
        for name in names(&root.join(&hooks))? {
            match numbered(&name) {
                Some((number, ".diff")) if number > 0 => {
                    diffs.insert(number, format!("{hooks}/{name}"));
                }
                _ if name == "BASE" => {}
                _ => bail!("{hooks}/{name} is neither NNNN.diff nor BASE"),
            }
        }
        let mut patches = Vec::new();
        for (number, (slug, path)) in messages {
            let next = patches.len() + 1;
            ensure!(
                number == next,
                "{path} follows patch {:04}: {next:04} is missing",
                next - 1
            );
            let (message, overlay) = parse(&root.join(&path)).with_context(|| path.clone())?;
            let load = |map: &mut BTreeMap<usize, String>| {
                map.remove(&number)
                    .map(|name| Diff::load(root, name))
                    .transpose()
            };
            let (diff, grow) = (load(&mut diffs)?, load(&mut grows)?);
            ensure!(
                !overlay.is_empty() || diff.is_some() || grow.is_some(),
                "{path} has neither an `{LINE}` line nor a diff: the patch would be empty"
            );
            patches.push(Patch {
                number,
                slug,
                message,
                overlay,
                diff,
                grow,
            });
        }
        if let Some(name) = diffs.values().chain(grows.values()).next() {
            bail!("{name} has no series/NNNN-slug.msg of its number");
        }
        let source = Self {
            root: root.to_owned(),
            patches,
        };
        source.check(base)?;
        Ok(source)
    }

    /// Checks who adds and who changes which file.
    fn check(&self, base: &Base) -> Result<()> {
        let mut owner = HashMap::new();
        for patch in &self.patches {
            for path in patch.grow.iter().flat_map(|diff| &diff.paths) {
                ensure!(
                    owner.contains_key(path),
                    "series/{:04}.grow.diff changes {path}, which no earlier patch adds",
                    patch.number
                );
            }
            for path in &patch.overlay {
                if let Some(first) = owner.insert(path, patch.number) {
                    bail!(
                        "{path} is added by patch {first:04} and by patch {:04}",
                        patch.number
                    );
                }
                ensure!(
                    in_overlay(path),
                    "patch {:04} adds {path}: new files live in {}",
                    patch.number,
                    OVERLAY.join(", ")
                );
                ensure!(
                    self.root.join(path).is_file(),
                    "patch {:04} adds {path}, which does not exist",
                    patch.number
                );
                ensure!(
                    !exists(&base.dir.join(path)),
                    "patch {:04} adds {path}, which the base {} has already",
                    patch.number,
                    base.version
                );
            }
            for diff in patch.diff.iter() {
                for path in &diff.paths {
                    ensure!(
                        exists(&base.dir.join(path)),
                        "{} changes {path}, which the base {} does not have",
                        diff.name,
                        base.version
                    );
                }
            }
        }
        for folder in OVERLAY {
            for path in walk(&self.root, folder)? {
                ensure!(
                    owner.contains_key(&path),
                    "{path} is in no patch: no series/*.msg has `{LINE}{path}`"
                );
            }
        }
        Ok(())
    }

    /// Files of the base that the series changes.
    pub fn edited(&self) -> BTreeSet<String> {
        let diffs = self.patches.iter().filter_map(|patch| patch.diff.as_ref());
        diffs.flat_map(|diff| diff.paths.iter().cloned()).collect()
    }

    /// Files that the series adds.
    pub fn added(&self) -> Vec<String> {
        let lists = self.patches.iter().map(|patch| &patch.overlay);
        lists.flatten().cloned().collect()
    }
}

/// The folder of the diffs for `base`: `series/v7.3` for 7.3.4.
pub(super) fn folder(base: &Base) -> String {
    let mut parts = base.version.splitn(3, '.');
    let (major, minor) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    format!("series/v{major}.{minor}")
}

/// The folders of the diffs for bases other than `base`.
pub(super) fn other_bases(root: &Path, base: &Base) -> Result<Vec<String>> {
    let mut folders = Vec::new();
    for name in names(&root.join("series"))? {
        let path = format!("series/{name}");
        if root.join(&path).is_dir() && path != folder(base) {
            folders.push(path);
        }
    }
    Ok(folders)
}

/// Writes a message as its file holds it.
pub(super) fn message_file(message: &str, overlay: &[String]) -> String {
    let mut text = message.trim().to_owned() + "\n";
    if !overlay.is_empty() {
        text.push('\n');
    }
    for path in overlay {
        text.push_str(&format!("{LINE}{path}\n"));
    }
    text
}

/// Reads a message file: the changelog, and the files that the patch adds.
pub(super) fn parse(file: &Path) -> Result<(String, Vec<String>)> {
    let text = fs::read_to_string(file)?;
    let mut lines: Vec<_> = text.trim().lines().collect();
    let mut overlay = Vec::new();
    while let Some(path) = lines.last().and_then(|line| line.strip_prefix(LINE)) {
        overlay.push(path.trim().to_owned());
        lines.pop();
    }
    overlay.reverse();
    let message = lines.join("\n").trim().to_owned() + "\n";
    ensure!(
        !subject(&message).is_empty(),
        "the first line must be the subject"
    );
    ensure!(
        message.lines().nth(1).is_none_or(str::is_empty),
        "the line after the subject must be empty"
    );
    ensure!(
        !message.lines().any(|line| line.starts_with(LINE)),
        "`{LINE}` lines go to the end, after the changelog"
    );
    Ok((message, overlay))
}

/// The first line of a message.
pub(super) fn subject(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

/// What the file of a patch is called, from its subject.
pub(super) fn slug(subject: &str) -> String {
    let mut slug = String::new();
    for word in subject
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
    {
        if slug.len() + word.len() > 50 {
            break;
        }
        if !slug.is_empty() {
            slug.push('-');
        }
        slug.push_str(&word.to_ascii_lowercase());
    }
    if slug.is_empty() {
        slug.push_str("patch");
    }
    slug
}

fn numbered(name: &str) -> Option<(usize, &str)> {
    let (digits, rest) = name.split_at_checked(4)?;
    let digit = digits.bytes().all(|byte| byte.is_ascii_digit());
    digit.then_some(())?;
    Some((digits.parse().ok()?, rest))
}

fn slug_of(rest: &str) -> Option<&str> {
    rest.strip_prefix('-')?.strip_suffix(".msg")
}

fn in_overlay(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next().is_some_and(|top| OVERLAY.contains(&top)) && parts.all(|part| part != "..")
}

/// Whether there is something at `path`, be it a broken link.
pub(super) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The names in `dir`, sorted; none when it does not exist.
fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    if dir.is_dir() {
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// All files under `root/folder`, named from `root`.
pub(super) fn walk(root: &Path, folder: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for name in names(&root.join(folder))? {
        let path = format!("{folder}/{name}")
            .trim_start_matches('/')
            .to_owned();
        if root.join(&path).symlink_metadata()?.is_dir() {
            files.extend(walk(root, &path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// A file's content and whether it can be executed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct File {
    pub bytes: Vec<u8>,
    pub exec: bool,
}

impl File {
    /// A plain file.
    pub fn plain(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            bytes: bytes.into(),
            exec: false,
        }
    }

    /// Reads `path`.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let exec = path.metadata()?.permissions().mode() & 0o100 != 0;
        Ok(Self { bytes, exec })
    }

    /// Writes `path` by way of a file beside it, so that what shares its inode stays as it is.
    pub fn write(&self, path: &Path) -> Result<()> {
        let dir = path.parent().context("a file has a folder")?;
        fs::create_dir_all(dir)?;
        let name = path.file_name().context("a file has a name")?;
        let temp = dir.join(format!(".{}.new", name.to_string_lossy()));
        let written = fs::write(&temp, &self.bytes)
            .and_then(|()| {
                let mode = if self.exec { 0o755 } else { 0o644 };
                fs::set_permissions(&temp, fs::Permissions::from_mode(mode))
            })
            .and_then(|()| fs::rename(&temp, path));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temp);
        }
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}
