// SPDX-License-Identifier: GPL-2.0

//! The series as a tree to edit, and the edits written back.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    AUTHOR,
    compose::{Commits, beside, build, copy, generate, remove_in, temp},
    git::Git,
    source::{self, File, Source, exists, subject, walk},
};
use crate::{base::Base, paths::Paths};

/// Where the tree keeps what it was made from: the last commit, and the id of the base.
const COMPOSED: &str = "refs/series/composed";
const BASE_ID: &str = ".git/series-base";

/// The tag of the commit under the patches.
const BASE_TAG: &str = "base";

fn place(paths: &Paths) -> PathBuf {
    paths.out.join("tree")
}

/// Makes `out/tree`: a copy of the base with the series as commits on the branch `series`.
///
/// # Errors
///
/// When the tree has edits that are not folded.
pub fn tree(paths: &Paths, base: &Base) -> Result<PathBuf> {
    let dir = place(paths);
    let commits = build(&Source::load(&paths.repo, base)?, base, &AUTHOR)?;
    if dir.is_dir() {
        let git = Git::at(&dir);
        ensure!(
            git.run(&["rev-parse", "-q", "--verify", COMPOSED]).is_ok(),
            "{} was not made by `make tree`: move it away",
            dir.display()
        );
        check_base(&dir, base)?;
        if let Some(edit) = unfolded(&git, base)? {
            bail!(
                "{} has edits that are not folded ({edit}): run `make fold`, or remove the folder \
                 to drop them",
                dir.display()
            );
        }
        checkout(&git, base, &commits)?;
        return Ok(dir);
    }
    let new = beside(&dir, ".new")?;
    copy(&base.dir, &new, "-a")?;
    if exists(&new.join(".git")) {
        fs::remove_dir_all(new.join(".git"))?;
    }
    let git = Git::init(&new)?;
    fs::write(new.join(BASE_ID), &base.id)?;
    let (name, mail) = super::git::IDENTITY;
    git.run(&["config", "user.name", name])?;
    git.run(&["config", "user.email", mail])?;
    checkout(&git, base, &commits)?;
    fs::rename(&new, &dir)?;
    Ok(dir)
}

/// Fails when the tree in `dir` was made from another base.
fn check_base(dir: &Path, base: &Base) -> Result<()> {
    let file = dir.join(BASE_ID);
    let from =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(
        from == base.id,
        "{} was made from the base {from}, not from {}: name that base, or remove the folder",
        dir.display(),
        base.id
    );
    Ok(())
}

/// Puts `commits` into the tree `git`; files that they no longer touch are the base's again.
fn checkout(git: &Git, base: &Base, commits: &Commits) -> Result<()> {
    let earlier = git.items(&["ls-files", "-z"])?;
    let from = commits.git.dir.to_str().context("a path is not UTF-8")?;
    let refspec = format!("+HEAD:{COMPOSED}");
    git.run(&["fetch", "-q", "--no-tags", from, &refspec])?;
    git.run(&["tag", "-f", BASE_TAG, &commits.ids[0]])?;
    git.run(&["checkout", "-q", "-f", "-B", "series", COMPOSED])?;
    for path in earlier {
        let pristine = base.dir.join(&path);
        if !commits.files.contains_key(&path) && exists(&pristine) {
            File::read(&pristine)?.write(&git.dir.join(&path))?;
        }
    }
    Ok(())
}

/// Something in the tree that is not in the series yet.
fn unfolded(git: &Git, base: &Base) -> Result<Option<String>> {
    if git.text(&["rev-parse", "HEAD"])? != git.text(&["rev-parse", COMPOSED])? {
        return Ok(Some("new commits".into()));
    }
    let mut edits = git.items(&["diff", "--name-only", "-z", "--no-renames", "HEAD"])?;
    if edits.is_empty() {
        edits = strays(git, base)?;
    }
    Ok(edits.into_iter().next())
}

/// Files of the tree that git does not track and that differ from the base; what the kernel's own
/// `.gitignore` names is build output.
fn strays(git: &Git, base: &Base) -> Result<Vec<String>> {
    let mut strays = git.items(&[
        "ls-files",
        "-z",
        "--others",
        "--exclude-per-directory=.gitignore",
    ])?;
    strays.retain(|path| !exists(&base.dir.join(path)));
    let tracked: BTreeSet<_> = git.items(&["ls-files", "-z"])?.into_iter().collect();
    for path in walk(&base.dir, "")? {
        if tracked.contains(&path) || path.starts_with(".git/") {
            continue;
        }
        let (ours, pristine) = (git.dir.join(&path), base.dir.join(&path));
        let (Ok(a), Ok(b)) = (ours.symlink_metadata(), pristine.symlink_metadata()) else {
            strays.push(path);
            continue;
        };
        // The copy kept the times, so most files need no reading.
        let same = a.len() == b.len() && a.modified()? == b.modified()?;
        if !same && a.is_file() && fs::read(&ours)? != fs::read(&pristine)? {
            strays.push(path);
        }
    }
    Ok(strays)
}

/// What [`fold`] did.
pub struct Folded {
    /// Files of this repository that it wrote.
    pub written: Vec<String>,
    /// Files of this repository that it removed.
    pub removed: Vec<String>,
}

/// Writes the edits in `out/tree` back: commits after the series become patches, `fixup!` commits
/// go to the patch they name, and edits that are not committed to the only patch that touches
/// their file. Nothing is written unless the new files give the tree's commits again.
///
/// # Errors
///
/// When an edit has no patch or more than one, or when the series changed since `make tree`.
pub fn fold(paths: &Paths, base: &Base) -> Result<Folded> {
    let dir = place(paths);
    ensure!(
        dir.is_dir(),
        "{} does not exist: run `make tree`",
        dir.display()
    );
    let tree = Git::at(&dir);
    check_base(&dir, base)?;
    for busy in ["rebase-merge", "rebase-apply", "CHERRY_PICK_HEAD"] {
        ensure!(
            !dir.join(".git").join(busy).exists(),
            "{} is in the middle of a rebase or cherry-pick: end it first",
            dir.display()
        );
    }
    let source = Source::load(&paths.repo, base)?;
    let old = build(&source, base, &AUTHOR)?;
    ensure!(
        tree.text(&["rev-parse", COMPOSED])? == *old.ids.last().context("no commits")?,
        "the series changed since `make tree`: see your edits with `git -C {} diff {COMPOSED}`, \
         then remove the folder and run `make tree`",
        dir.display()
    );
    if let Some(path) = strays(&tree, base)?.first() {
        bail!(
            "{path} is edited but in no commit: `git add -f` and commit it in {} (its own commit \
             makes a new patch, --fixup=<commit> adds to one)",
            dir.display()
        );
    }

    let work = Work::new(&tree, base)?;
    work.take_edits(&tree)?;
    let slugs = source.patches.iter();
    let slugs: HashMap<_, _> = slugs
        .map(|patch| (patch.subject().to_owned(), patch.slug.clone()))
        .collect();
    let new = generate(&work.git, base, &work.base_id, &slugs)?;
    let mut current = generate(&old.git, base, &old.ids[0], &slugs)?;

    // A file that means the same keeps its bytes, however its author laid it out.
    let mut keep = BTreeMap::new();
    for (path, file) in &new {
        let same = current.get(path) == Some(file);
        let on_disk = paths.repo.join(path);
        let file = if same {
            File::read(&on_disk)?
        } else {
            file.clone()
        };
        keep.insert(path.clone(), file);
    }
    let check = temp()?;
    for (path, file) in &keep {
        file.write(&check.path().join(path))?;
    }
    let result = Source::load(check.path(), base)?;
    let commits = build(&result, base, &AUTHOR)?;
    ensure!(
        generate(&commits.git, base, &commits.ids[0], &slugs)? == new,
        "the files made from {} do not give its commits again; nothing was written",
        dir.display()
    );

    // The diffs for other bases follow their patches to new numbers.
    for patch in &source.patches {
        let mut now = result.patches.iter();
        let moved = now
            .clone()
            .find(|other| other.subject() == patch.subject())
            // Or it has a new subject.
            .or_else(|| {
                now.find(|other| {
                    other.number == patch.number && !slugs.contains_key(other.subject())
                })
            });
        for folder in source::other_bases(&paths.repo, base)? {
            let path = format!("{folder}/{:04}.diff", patch.number);
            if !exists(&paths.repo.join(&path)) {
                continue;
            }
            let file = File::read(&paths.repo.join(&path))?;
            if let Some(patch) = moved {
                keep.insert(format!("{folder}/{:04}.diff", patch.number), file.clone());
            }
            current.insert(path, file);
        }
    }

    let mut folded = Folded {
        written: Vec::new(),
        removed: Vec::new(),
    };
    for path in current.into_keys().filter(|path| !keep.contains_key(path)) {
        remove_in(&paths.repo, &path)?;
        folded.removed.push(path);
    }
    for (path, file) in keep {
        let on_disk = paths.repo.join(&path);
        if !exists(&on_disk) || File::read(&on_disk)? != file {
            file.write(&on_disk)?;
            folded.written.push(path);
        }
    }
    checkout(&tree, base, &commits)?;
    Ok(folded)
}

/// More files of the base than a series touches: a whole folder was added by mistake, each file of
/// which would cost some runs of git.
const LATE_MAX: usize = 200;

/// A scratch repository with the tree's commits, so that the tree stays as it is when fold fails.
struct Work {
    git: Git,
    base_id: String,
    _dir: tempfile::TempDir,
}

impl Work {
    /// Takes the commits of `tree` and completes them: a file of the base that only a new commit
    /// touches is missing in those before it.
    fn new(tree: &Git, base: &Base) -> Result<Self> {
        let dir = temp()?;
        let git = Git::init(dir.path())?;
        let from = tree.dir.to_str().context("a path is not UTF-8")?;
        git.run(&["fetch", "-q", "--no-tags", from, "HEAD"])?;
        git.run(&["reset", "-q", "--hard", "FETCH_HEAD"])?;
        let ids = git.lines(&["rev-list", "--reverse", "HEAD"])?;
        let merges = git.lines(&["rev-list", "--min-parents=2", "HEAD"])?;
        let first = tree.text(&["rev-list", "--max-parents=0", COMPOSED])?;
        ensure!(
            merges.is_empty() && ids[0] == first,
            "{} must have commits in a line on the tag {BASE_TAG}",
            tree.dir.display()
        );
        let mut known: BTreeSet<_> = git
            .items(&["ls-tree", "-r", "-z", "--name-only", &ids[0]])?
            .into_iter()
            .collect();
        // Files of the base, by the first commit that touches them.
        let mut late = Vec::new();
        for (index, id) in ids.iter().enumerate().skip(1) {
            for path in git.items(&["diff-tree", "-r", "-z", "--name-only", &ids[index - 1], id])? {
                if exists(&base.dir.join(&path)) && known.insert(path.clone()) {
                    late.push((index, path));
                }
            }
        }
        ensure!(
            late.len() <= LATE_MAX,
            "commits in {} add {} files of the base, {} and others: `git add -f` only what you \
             change, not whole folders",
            tree.dir.display(),
            late.len(),
            late[0].1
        );
        let mut work = Self {
            git,
            base_id: ids[0].clone(),
            _dir: dir,
        };
        if !late.is_empty() {
            work.complete(&ids, base, &late)?;
        }
        Ok(work)
    }

    fn complete(&mut self, ids: &[String], base: &Base, late: &[(usize, String)]) -> Result<()> {
        let git = &self.git;
        let mut parent: Option<String> = None;
        for (index, id) in ids.iter().enumerate() {
            git.run(&["read-tree", id])?;
            for (_, path) in late.iter().filter(|(first, _)| index < *first) {
                let pristine = base.dir.join(path);
                let file = pristine.to_str().context("a path is not UTF-8")?;
                let blob = git.text(&["hash-object", "-w", "--no-filters", file])?;
                let exec = File::read(&pristine)?.exec;
                let mode = if exec { "100755" } else { "100644" };
                let entry = format!("{mode},{blob},{path}");
                git.run(&["update-index", "--add", "--cacheinfo", &entry])?;
            }
            let tree = git.text(&["write-tree"])?;
            let message = git.dir.join(".git/MESSAGE");
            fs::write(&message, git.run(&["log", "-1", "--format=%B", id])?)?;
            let mut args = vec!["commit-tree", &tree, "-F", ".git/MESSAGE"];
            if let Some(parent) = &parent {
                args.extend(["-p", parent]);
            }
            let new = git.text(&args)?;
            if index == 0 {
                self.base_id = new.clone();
            }
            parent = Some(new);
        }
        let head = parent.context("no commits")?;
        git.run(&["reset", "-q", "--hard", &head])?;
        Ok(())
    }

    /// Commits the edits of `tree` that are not committed there, and squashes all fixups.
    fn take_edits(&self, tree: &Git) -> Result<()> {
        let git = &self.git;
        let range = format!("{}..HEAD", self.base_id);
        let mut fixups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in tree.items(&["diff", "--name-only", "-z", "--no-renames", "HEAD"])? {
            let owners: BTreeSet<_> = git
                .lines(&["log", "--format=%s", &range, "--", &path])?
                .iter()
                .map(|subject| target(subject).0.to_owned())
                .collect();
            let mut names = owners.into_iter();
            match (names.next(), names.next()) {
                (Some(owner), None) => fixups.entry(owner).or_default().push(path),
                (None, _) => bail!(
                    "{path} is in no commit: commit it in {} (its own commit makes a new patch, \
                     --fixup=<commit> adds to one)",
                    tree.dir.display()
                ),
                (Some(one), Some(two)) => bail!(
                    "{path} is edited and belongs to more than one patch (`{one}`, `{two}`): \
                     commit the edit in {} with `git commit --fixup=<commit>`",
                    tree.dir.display()
                ),
            }
        }
        for (owner, paths) in &fixups {
            for path in paths {
                let edited = tree.dir.join(path);
                if exists(&edited) {
                    File::read(&edited)?.write(&git.dir.join(path))?;
                } else {
                    remove_in(&git.dir, path)?;
                }
            }
            git.each(&["add", "-f", "-A", "--"], paths)?;
            git.commit(&format!("fixup! {owner}\n"), 0, super::git::IDENTITY, &[])?;
        }
        let subjects = || git.lines(&["log", "--format=%s", &range]);
        if subjects()?.iter().any(|subject| target(subject).1) {
            let rebase = git.run(&["rebase", "-q", "-i", "--autosquash", &self.base_id]);
            rebase.with_context(|| {
                format!(
                    "the fixups do not apply to their patches; run `git rebase -i --autosquash \
                     {BASE_TAG}` in {}",
                    tree.dir.display()
                )
            })?;
        }
        if let Some(lost) = subjects()?.iter().find(|subject| target(subject).1) {
            bail!("the commit `{lost}` names no patch");
        }
        Ok(())
    }
}

/// The subject that `subject` is a fixup of, and whether it is one.
fn target(full: &str) -> (&str, bool) {
    let mut rest = subject(full);
    while let Some(next) = ["fixup! ", "squash! ", "amend! "]
        .iter()
        .find_map(|kind| rest.strip_prefix(kind))
    {
        rest = next;
    }
    (rest, rest.len() != full.len())
}
