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

use anyhow::Result;

use crate::{base::Base, paths::Paths};
use compose::Author;
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
        changed: compose::sync(base, &commits.files)?,
    })
}
