// SPDX-License-Identifier: GPL-2.0

//! Prunes the cache to what the next command needs.

use std::{collections::HashSet, fs, os::unix::fs::MetadataExt, path::Path};

use anyhow::{Context, Result};

use crate::{
    base,
    kbuild::{self, Flavor},
    offtest,
    paths::Paths,
    series,
    toolchain::Toolchain,
};

/// Folders of the cache that have one entry for each base, configuration or input.
const PRUNED: [&str; 5] = ["base", "tree", "obj", "deb", "guest"];

/// Removes downloads, what interrupted commands left, what is made again in seconds, and bases,
/// trees and builds of other versions and configurations than the present ones; prints what and
/// how much.
pub fn run(paths: &Paths) -> Result<()> {
    let _lock = kbuild::lock(paths)?;
    let mut keep = Vec::new();
    if let Some(base) = base::in_cache(paths)? {
        keep.push(base.dir.clone());
        for base in [base.clone(), series::lab_base(&base)?] {
            keep.push(series::manifest(&base)?);
            keep.push(base.tree);
        }
        let tools = Toolchain::find(paths)?;
        for flavor in [Flavor::Release, Flavor::Debug, Flavor::Lab] {
            keep.push(kbuild::obj(paths, &base, &tools, flavor)?);
        }
        keep.extend(offtest::objs(paths, &base, &tools)?);
    }
    let mut total = 0;
    for name in PRUNED.iter().copied().chain([""]) {
        let Ok(entries) = fs::read_dir(paths.cache.join(name)) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            let left_over = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(".tmp"));
            if keep.contains(&path) || (name.is_empty() && !left_over) {
                continue;
            }
            let bytes = size(&path);
            let remove = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            remove.with_context(|| format!("cannot remove {}", path.display()))?;
            println!("removed {} ({})", path.display(), gib(bytes));
            total += bytes;
        }
    }
    println!(
        "{} removed, {} left in {}",
        gib(total),
        gib(size(&paths.cache)),
        paths.cache.display()
    );
    Ok(())
}

/// The space that a file or folder takes; a file with several names in it counts once.
pub(crate) fn size(path: &Path) -> u64 {
    fn add(path: &Path, seen: &mut HashSet<(u64, u64)>) -> u64 {
        let Ok(meta) = path.symlink_metadata() else {
            return 0;
        };
        if meta.nlink() > 1 && !meta.is_dir() && !seen.insert((meta.dev(), meta.ino())) {
            return 0;
        }
        let entries = match meta.is_dir() {
            true => fs::read_dir(path).ok(),
            false => None,
        };
        let inside = entries.into_iter().flatten().flatten();
        meta.blocks() * 512 + inside.map(|entry| add(&entry.path(), seen)).sum::<u64>()
    }
    add(path, &mut HashSet::new())
}

pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_needed_goes() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        for name in [
            "obj/old-1",
            "tree/old",
            "base/.tmp123",
            ".tmp-x",
            "rust-1.85/bin",
            "guest/selftests-1",
        ] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), [1; 5000]).unwrap();
        }
        fs::create_dir_all(dir.path().join("deb")).unwrap();
        fs::write(dir.path().join("deb/a.deb"), "x").unwrap();
        run(&paths).unwrap();
        for gone in [
            "obj/old-1",
            "tree/old",
            "base/.tmp123",
            ".tmp-x",
            "deb/a.deb",
            "guest/selftests-1",
        ] {
            assert!(!dir.path().join(gone).exists(), "{gone}");
        }
        for kept in ["rust-1.85/bin/file", "lock"] {
            assert!(dir.path().join(kept).exists(), "{kept}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/b"), [1; 10_000]).unwrap();
        assert!(
            (10_000..60_000).contains(&size(dir.path())),
            "{}",
            size(dir.path())
        );
        let before = size(dir.path());
        fs::hard_link(dir.path().join("a/b"), dir.path().join("a/c")).unwrap();
        assert_eq!(size(dir.path()), before);
        assert_eq!(gib(3 << 29), "1.5 GiB");
    }
}
