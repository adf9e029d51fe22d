// SPDX-License-Identifier: GPL-2.0

//! Between the two forms of the series: from files of this repository to commits, and back.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::{
    git::Git,
    source::{self, Diff, File, OVERLAY, Source, exists, message_file, slug, subject},
};
use crate::base::Base;

/// The series as commits: the first one holds the files of the base that the series changes, each
/// later one is a patch. Files that the series does not touch are not in it.
pub(super) struct Commits {
    pub git: Git,
    /// The base and the patches, oldest first.
    pub ids: Vec<String>,
    /// What the series leaves behind: all files it changes or adds, and those it removes (`None`).
    pub files: BTreeMap<String, Option<File>>,
    _dir: TempDir,
}

/// How commits are made.
pub(super) struct Author<'a> {
    /// Name and mail.
    pub who: (&'a str, &'a str),
    /// Arguments that `git commit` gets for each patch.
    pub args: &'a [&'a str],
}

/// Makes the commits of `source` on `base`.
pub(super) fn build(source: &Source, base: &Base, author: &Author<'_>) -> Result<Commits> {
    let dir = temp()?;
    let git = Git::init(dir.path())?;
    let edited = source.edited();
    base_commit(&git, base, &edited)?;
    let mut states = states(source)?;
    let mut ids = vec![git.text(&["rev-parse", "HEAD"])?];
    for patch in &source.patches {
        let what = format!(
            "the base {} at patch {:04} ({})",
            base.version,
            patch.number,
            patch.subject()
        );
        if let Some(diff) = &patch.diff {
            apply(&git, diff, &["--index"]).map_err(|cause| diff.refused(&what, &cause))?;
        }
        let files = states.remove(&patch.number).unwrap_or_default();
        for (path, file) in &files {
            file.write(&git.dir.join(path))?;
        }
        let paths: Vec<_> = files.into_keys().collect();
        git.each(&["add", "-f", "--"], &paths)?;
        ids.push(git.commit(&patch.message, patch.number, author.who, author.args)?);
    }
    let mut files = BTreeMap::new();
    for path in edited.into_iter().chain(source.added()) {
        let there = git.dir.join(&path);
        let file = exists(&there).then(|| File::read(&there)).transpose()?;
        files.insert(path, file);
    }
    Ok(Commits {
        git,
        ids,
        files,
        _dir: dir,
    })
}

/// Adds `diffs`, each in files of `base` or of the series, to what `commits` leave behind.
pub(super) fn add(commits: &mut Commits, base: &Base, diffs: &[Diff]) -> Result<()> {
    let git = &commits.git;
    for diff in diffs {
        for path in &diff.paths {
            let there = git.dir.join(path);
            let pristine = base.dir.join(path);
            if !exists(&there) && exists(&pristine) {
                File::read(&pristine)?.write(&there)?;
            }
        }
        let what = format!("the base {} with the series", base.version);
        apply(git, diff, &[]).map_err(|cause| diff.refused(&what, &cause))?;
        for path in &diff.paths {
            let file = File::read(&git.dir.join(path))?;
            commits.files.insert(path.clone(), Some(file));
        }
    }
    Ok(())
}

/// A temporary folder of ours.
pub(super) fn temp() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("sched-ab-").tempdir();
    dir.context("cannot make a temporary folder")
}

/// Commits the files `paths` of the base.
pub(super) fn base_commit(git: &Git, base: &Base, paths: &BTreeSet<String>) -> Result<String> {
    for path in paths {
        File::read(&base.dir.join(path))?.write(&git.dir.join(path))?;
    }
    let paths: Vec<_> = paths.iter().cloned().collect();
    git.each(&["add", "-f", "--"], &paths)?;
    let message = format!("Linux {} ({})\n", base.version, base.id);
    git.commit(&message, 0, super::git::IDENTITY, &[])
}

fn apply(git: &Git, diff: &Diff, args: &[&str]) -> Result<()> {
    let file = diff.file.to_str().context("a path is not UTF-8")?;
    let mut all = vec!["apply", "--whitespace=nowarn"];
    all.extend(args);
    all.push(file);
    git.run(&all).map(drop)
}

/// Each patch's new text of the overlay files that it adds or changes. The overlay holds the last
/// one; taking back the patches' diffs, last first, gives the others.
fn states(source: &Source) -> Result<HashMap<usize, BTreeMap<String, File>>> {
    let dir = temp()?;
    let git = Git::init(dir.path())?;
    let growing = |path: &String| {
        let mut grows = source
            .patches
            .iter()
            .filter_map(|patch| patch.grow.as_ref());
        grows.any(|diff| diff.paths.contains(path))
    };
    for path in source.added().iter().filter(|path| growing(path)) {
        File::read(&source.root.join(path))?.write(&git.dir.join(path))?;
    }
    let mut states = HashMap::new();
    for patch in source.patches.iter().rev() {
        let mut files = BTreeMap::new();
        for path in &patch.overlay {
            let early = git.dir.join(path);
            let file = if early.is_file() {
                early
            } else {
                source.root.join(path)
            };
            files.insert(path.clone(), File::read(&file)?);
        }
        if let Some(diff) = &patch.grow {
            for path in &diff.paths {
                files.insert(path.clone(), File::read(&git.dir.join(path))?);
            }
            apply(&git, diff, &["-R"])
                .map_err(|cause| diff.refused("the overlay in reverse", &cause))?;
        }
        states.insert(patch.number, files);
    }
    Ok(states)
}

/// Turns the commits after `base_id` up to HEAD of `git`, whose work tree is clean, into the files
/// that this repository keeps, by path. `slugs` has the file names of known subjects.
pub(super) fn generate(
    git: &Git,
    base: &Base,
    base_id: &str,
    slugs: &HashMap<String, String>,
) -> Result<BTreeMap<String, File>> {
    let hooks = source::folder(base);
    let mut files = BTreeMap::new();
    let mut owner: HashMap<String, usize> = HashMap::new();
    let mut subjects = BTreeSet::new();
    let range = format!("{base_id}..HEAD");
    let mut parent = base_id.to_owned();
    for (index, id) in git
        .lines(&["rev-list", "--reverse", &range])?
        .into_iter()
        .enumerate()
    {
        let number = index + 1;
        let message = git.text(&["log", "-1", "--format=%B", &id])?;
        let subject = subject(&message).to_owned();
        let at = |text: String| format!("patch {number:04} ({subject}) {text}");
        ensure!(
            subjects.insert(subject.clone()),
            "two patches have the subject `{subject}`"
        );
        let changes = git.items(&[
            "diff-tree",
            "-r",
            "-z",
            "--no-renames",
            "--name-status",
            &parent,
            &id,
        ])?;
        let (mut overlay, mut diff, mut grow) = (Vec::new(), Vec::new(), Vec::new());
        for change in changes.chunks(2) {
            let [kind, path] = change else {
                bail!(at("changes something git cannot name".into()));
            };
            match kind.as_str() {
                _ if exists(&base.dir.join(path)) => diff.push(path.clone()),
                "A" if !OVERLAY
                    .iter()
                    .any(|top| path.starts_with(&format!("{top}/"))) =>
                {
                    bail!(at(format!(
                        "adds {path}: new files live in {}",
                        OVERLAY.join(", ")
                    )));
                }
                "A" => {
                    overlay.push(path.clone());
                    owner.insert(path.clone(), number);
                    files.insert(path.clone(), File::read(&git.dir.join(path))?);
                }
                "M" => grow.push(path.clone()),
                "D" => bail!(at(format!("removes {path}, which an earlier patch adds"))),
                kind => bail!(at(format!("makes a change of type {kind} to {path}"))),
            }
        }
        ensure!(!changes.is_empty(), at("changes nothing".into()));
        let name = slugs.get(&subject).cloned();
        let name = name.unwrap_or_else(|| slug(&subject));
        files.insert(
            format!("series/{number:04}-{name}.msg"),
            File::plain(message_file(&message, &overlay)),
        );
        for (paths, name) in [
            (diff, format!("{hooks}/{number:04}.diff")),
            (grow, format!("series/{number:04}.grow.diff")),
        ] {
            if !paths.is_empty() {
                let text = diff_text(git, &parent, &id, &paths)?;
                files.insert(name, File::plain(text));
            }
        }
        parent = id;
    }
    Ok(files)
}

/// The diff of `paths` between two commits, without blob ids: these would change in each later
/// patch when an earlier one is edited.
fn diff_text(git: &Git, from: &str, to: &str, paths: &[String]) -> Result<Vec<u8>> {
    let mut args = vec![
        "diff-tree",
        "-r",
        "-p",
        "--no-renames",
        "--no-color",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        from,
        to,
        "--",
    ];
    args.extend(paths.iter().map(String::as_str));
    let text = git.run(&args)?;
    // A line of a hunk starts with a blank, `+`, `-`, `\` or `@`.
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    Ok(lines
        .filter(|line| !line.starts_with(b"index "))
        .collect::<Vec<_>>()
        .concat())
}

/// Makes `tree` hold `files` on top of the base: writes what differs and brings back what an
/// earlier call changed. Returns how many files it wrote or removed.
///
/// `tree` starts as hard links to the base, so that no file is ever changed in place. A file that
/// comes back gets a new time too: its old one would be older than the objects built from the
/// edited text, and make would keep these.
pub(super) fn sync(base: &Base, files: &BTreeMap<String, Option<File>>) -> Result<usize> {
    let manifest = super::manifest(base)?;
    if !base.tree.is_dir() {
        let temp = beside(&base.tree, ".new")?;
        copy(&base.dir, &temp, "-al")?;
        fs::rename(&temp, &base.tree)?;
    }
    let earlier: BTreeSet<String> = if manifest.is_file() {
        fs::read_to_string(&manifest)?
            .lines()
            .map(str::to_owned)
            .collect()
    } else {
        BTreeSet::new()
    };
    let now: BTreeSet<String> = files.keys().cloned().collect();
    // Named before anything changes, so that the next call sees to what a killed one left.
    write_list(&manifest, earlier.union(&now))?;
    let mut changed = 0;
    for path in earlier.union(&now) {
        let there = base.tree.join(path);
        let pristine = base.dir.join(path);
        let wanted = match files.get(path) {
            Some(file) => file.clone(),
            None if exists(&pristine) => Some(File::read(&pristine)?),
            None => None,
        };
        match wanted {
            Some(file) => {
                if exists(&there) && File::read(&there)? == file {
                    continue;
                }
                file.write(&there)?;
            }
            None if exists(&there) => remove_in(&base.tree, path)?,
            None => continue,
        }
        changed += 1;
    }
    write_list(&manifest, now.iter())?;
    Ok(changed)
}

fn write_list<'a>(file: &Path, list: impl Iterator<Item = &'a String>) -> Result<()> {
    let text: String = list.flat_map(|path| [path.as_str(), "\n"]).collect();
    File::plain(text).write(file)
}

/// The path of `tree` with `end` added to its name; an id has dots, so it is no extension.
pub(super) fn beside(tree: &Path, end: &str) -> Result<std::path::PathBuf> {
    let name = tree.file_name().context("a tree has a name")?;
    Ok(tree.with_file_name(format!("{}{end}", name.to_string_lossy())))
}

/// Copies the folder `from` to `to`, which it replaces.
pub(super) fn copy(from: &Path, to: &Path, how: &str) -> Result<()> {
    if to.is_dir() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut command = std::process::Command::new("cp");
    crate::exec::output(command.args([how, "--reflink=auto", "--"]).args([from, to]))?;
    Ok(())
}

fn remove(file: &Path) -> Result<()> {
    if exists(file) {
        fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(())
}

/// Removes `root/path` and the folders that it leaves empty.
pub(super) fn remove_in(root: &Path, path: &str) -> Result<()> {
    remove(&root.join(path))?;
    for dir in Path::new(path).ancestors().skip(1) {
        if dir.as_os_str().is_empty() || fs::remove_dir(root.join(dir)).is_err() {
            break;
        }
    }
    Ok(())
}
