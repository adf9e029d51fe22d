// SPDX-License-Identifier: GPL-2.0

//! The patch series: kept as new files (the overlay), diffs and changelogs; see `docs/series.md`.
//!
//! [`compose`] puts it on the base to build it, [`tree`] makes a tree to edit it, [`fold`] writes
//! the edits back, and [`emit`] makes the patches to mail.

mod compose;
mod emit;
mod git;
mod source;
#[cfg(test)]
mod tests;
mod tree;

use std::path::PathBuf;

use anyhow::Result;

use crate::{base::Base, paths::Paths};
use compose::{Author, beside, sync};
pub use emit::emit;
pub use tree::{Folded, fold, tree};

const AUTHOR: Author<'static> = Author {
    who: git::IDENTITY,
    args: &[],
};

/// What [`compose`] did.
pub struct Composed {
    /// How many patches the series has.
    pub patches: usize,
    /// How many files of the tree were written or removed; none when it was up to date.
    pub changed: usize,
}

/// Makes `base.tree` the base with the series. The caller holds the lock of the cache.
///
/// # Errors
///
/// When the series breaks a rule, or a diff does not apply; the tree is then as before.
pub fn compose(paths: &Paths, base: &Base) -> Result<Composed> {
    let source = source::Source::load(&paths.repo, base)?;
    let commits = compose::build(&source, base, &AUTHOR)?;
    Ok(Composed {
        patches: source.patches.len(),
        changed: sync(base, &commits.files)?,
    })
}

/// Makes the tree of the lab's kernel, of which the result is the base: the base with the series
/// and with `host/lab/*.diff`, which suit only the simulated machine. The caller holds the lock of
/// the cache.
///
/// # Errors
///
/// As [`compose`].
pub fn compose_lab(paths: &Paths, base: &Base) -> Result<Base> {
    let source = source::Source::load(&paths.repo, base)?;
    let mut commits = compose::build(&source, base, &AUTHOR)?;
    compose::add(&mut commits, base, &source::lab(&paths.repo)?)?;
    let lab = lab_base(base)?;
    sync(&lab, &commits.files)?;
    Ok(lab)
}

/// `base` with the place of the lab's tree.
pub(crate) fn lab_base(base: &Base) -> Result<Base> {
    Ok(Base {
        tree: beside(&base.tree, "-lab")?,
        ..base.clone()
    })
}

/// What `base.tree` differs in from the base, as a list next to it.
pub(crate) fn manifest(base: &Base) -> Result<PathBuf> {
    beside(&base.tree, ".manifest")
}
