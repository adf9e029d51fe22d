// SPDX-License-Identifier: GPL-2.0

//! Where things live: the checkout, the cache and the results.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// The folders that every command works in.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The root of this checkout.
    pub repo: PathBuf,
    /// `$SCHED_AB_CACHE`, else `$XDG_CACHE_HOME/sched-ab`, else `~/.cache/sched-ab`.
    pub cache: PathBuf,
    /// `out/` of the checkout: what a user reads.
    pub out: PathBuf,
}

impl Paths {
    /// Finds the folders from the environment; `repo` is the current folder or a parent of it.
    pub fn discover() -> Result<Self> {
        let cwd = env::current_dir()?;
        let Some(repo) = cwd
            .ancestors()
            .find(|dir| dir.join("series").is_dir() && dir.join("host/sched-ab").is_dir())
        else {
            bail!("{} is not inside a checkout of this project", cwd.display());
        };
        let set = |name| {
            env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let cache = set("SCHED_AB_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("sched-ab")))
            .or_else(|| set("HOME").map(|dir| dir.join(".cache/sched-ab")))
            .context("neither SCHED_AB_CACHE, XDG_CACHE_HOME nor HOME is set")?;
        Ok(Self::new(repo, &cache))
    }

    /// The folders of the checkout `repo` with the cache in `cache`.
    pub fn new(repo: &Path, cache: &Path) -> Self {
        Self {
            repo: repo.to_owned(),
            cache: cache.to_owned(),
            out: repo.join("out"),
        }
    }

    /// A folder in the cache, made when missing.
    pub fn cache_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.cache.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }
}
