// SPDX-License-Identifier: GPL-2.0

//! The series as patches to mail.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{
    AUTHOR,
    compose::{Author, base_commit, beside, build, temp},
    git::Git,
    source::{COVER, Source, parse},
};
use crate::{base::Base, paths::Paths};

/// Writes `out/series/<version>`: a cover letter, numbered patches, and one mbox of the patches
/// that `git am` was seen to turn into exactly the composed files.
///
/// `signoff` (`Name <mail>`) is named as author and signs each patch off; without it nobody does.
///
/// # Errors
///
/// When there is no cover letter or `git am` gives other files or changelogs.
pub fn emit(paths: &Paths, base: &Base, signoff: Option<&str>) -> Result<PathBuf> {
    let trailer = signoff.map(|who| format!("--trailer=Signed-off-by: {who}"));
    let args: Vec<_> = trailer.iter().map(String::as_str).collect();
    let who = signoff.map(person).transpose()?.unwrap_or(AUTHOR.who);
    let author = Author { who, args: &args };
    let source = Source::load(&paths.repo, base)?;
    ensure!(!source.patches.is_empty(), "the series has no patches");
    let (cover, overlay) = parse(&paths.repo.join(COVER)).context(COVER)?;
    ensure!(overlay.is_empty(), "{COVER} is no patch and adds no files");
    let commits = build(&source, base, &author)?;
    let git = &commits.git;
    let cover = format!(
        "{cover}\nThe series applies to Linux {} ({}).\n",
        base.version, base.id
    );
    git.run(&["config", "branch.series.description", &cover])?;

    let dir = paths.out.join("series").join(&base.version);
    let new = beside(&dir, ".new")?;
    if new.is_dir() {
        fs::remove_dir_all(&new)?;
    }
    fs::create_dir_all(&new)?;
    let target = new.to_str().context("a path is not UTF-8")?;
    let range = format!("{}..HEAD", commits.ids[0]);
    let mut format = git.command(&[
        "format-patch",
        "-q",
        "-n",
        "--zero-commit",
        "--no-signature",
        "--no-renames",
        "--cover-letter",
        "--cover-from-description=subject",
        "-o",
        target,
        &range,
    ]);
    super::git::identify(&mut format, who, 0);
    super::git::run(format)?;
    let mut names: Vec<_> = fs::read_dir(&new)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    names.sort();
    let mut mbox = Vec::new();
    // `git am` stops at a mail without a patch, so that the cover letter stays out.
    for patch in &names[1..] {
        mbox.extend(fs::read(patch)?);
    }
    let file = new.join("series.mbox");
    fs::write(&file, mbox)?;

    let check = temp()?;
    let applied = Git::init(check.path())?;
    base_commit(&applied, base, &source.edited())?;
    let mbox = file.to_str().context("a path is not UTF-8")?;
    applied
        .run(&["am", "-q", mbox])
        .context("git am does not take the series")?;
    for format in ["--format=%T", "--format=%B%x00"] {
        if applied.run(&["log", format])? != git.run(&["log", format])? {
            bail!("git am does not give the composed commits: {target} differs in {format}");
        }
    }
    if dir.is_dir() {
        fs::remove_dir_all(&dir)?;
    }
    fs::rename(&new, &dir)?;
    Ok(dir)
}

/// Splits `Name <mail>`.
fn person(who: &str) -> Result<(&str, &str)> {
    let parts = who
        .strip_suffix('>')
        .and_then(|rest| rest.split_once(" <"))
        .filter(|(name, mail)| {
            !name.trim().is_empty() && mail.contains('@') && !mail.contains(['<', '>', ' '])
        });
    parts.with_context(|| format!("SIGNOFF must be `Name <mail>`, not `{who}`"))
}
