// SPDX-License-Identifier: GPL-2.0

//! Debian packages from a private apt state in the cache: the system's apt sources are never
//! edited, and no root is needed.
//!
//! `host/bootstrap` writes that state's configuration, since it needs it before this program can
//! be built.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{exec, paths::Paths};

/// The private apt state.
pub struct Apt {
    conf: PathBuf,
    deb: PathBuf,
}

impl Apt {
    /// Opens the state that `host/bootstrap` made.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn open(paths: &Paths) -> Result<Self> {
        let conf = paths.cache.join("apt/apt.conf");
        if !conf.is_file() {
            bail!("{} is missing: run host/bootstrap", conf.display());
        }
        Ok(Self {
            conf,
            deb: paths.cache_dir("deb")?,
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(&self.conf).env("LC_ALL", "C");
        command
    }

    /// Fetches the package lists.
    ///
    /// # Errors
    ///
    /// When one of them cannot be fetched, for example without a network.
    pub fn update(&self) -> Result<()> {
        exec::output(self.command("apt-get").args([
            "-qq",
            "-o",
            "APT::Update::Error-Mode=any",
            "update",
        ]))
        .context("cannot fetch Debian's package lists (no network?)")?;
        Ok(())
    }

    /// The versions of `package` in the lists, the newest first.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        let table = exec::output(self.command("apt-cache").args(["madison", package]))?;
        Ok(table
            .lines()
            .filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned()))
            .collect())
    }

    /// Downloads `package` in `version` unless it is there already, and returns the file.
    ///
    /// # Errors
    ///
    /// When it cannot be fetched; apt leaves no file then.
    pub fn download(&self, package: &str, version: &str) -> Result<PathBuf> {
        let find = || {
            let start = format!("{package}_{}_", version.replace(':', "%3a"));
            fs::read_dir(&self.deb)
                .ok()?
                .flatten()
                .map(|entry| entry.path())
                .find(|path| {
                    path.extension().is_some_and(|end| end == "deb")
                        && path
                            .file_name()
                            .is_some_and(|name| name.to_string_lossy().starts_with(&start))
                })
        };
        if let Some(file) = find() {
            return Ok(file);
        }
        // apt checks size and hash, and names the file when it is complete; a download elsewhere
        // and a rename keep a broken one out of the cache all the same.
        let temp = tempfile::tempdir_in(&self.deb)?;
        exec::output(
            self.command("apt-get")
                .args(["-qq", "download", &format!("{package}={version}")])
                .current_dir(temp.path()),
        )
        .with_context(|| format!("cannot download the package {package} {version}"))?;
        for entry in fs::read_dir(temp.path())? {
            let entry = entry?;
            fs::rename(entry.path(), self.deb.join(entry.file_name()))?;
        }
        find().with_context(|| format!("apt left no file of {package} {version}"))
    }
}

/// Unpacks the package `deb` into the folder `dir`.
pub fn unpack(deb: &Path, dir: &Path) -> Result<()> {
    exec::output(Command::new("dpkg-deb").arg("-x").arg(deb).arg(dir))?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A cache whose apt state knows one local repository with the named packages; each holds
    /// what `fill` puts into its root.
    pub(crate) fn repository(
        cache: &Path,
        packages: &[(&str, &str)],
        fill: impl Fn(&Path),
    ) -> Paths {
        let repo = cache.join("repo");
        let apt = cache.join("apt");
        for dir in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(apt.join(dir)).unwrap();
        }
        fs::create_dir_all(&repo).unwrap();
        let mut index = String::new();
        for (name, version) in packages {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("DEBIAN")).unwrap();
            let control = format!(
                "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody\n\
                 Description: test\n"
            );
            fs::write(root.path().join("DEBIAN/control"), &control).unwrap();
            fill(root.path());
            let file = format!("{name}_{version}_all.deb");
            exec::output(
                Command::new("dpkg-deb")
                    .arg("-b")
                    .arg(root.path())
                    .arg(repo.join(&file)),
            )
            .unwrap();
            let size = fs::metadata(repo.join(&file)).unwrap().len();
            let sum = exec::output(Command::new("sha256sum").arg(repo.join(&file))).unwrap()[..64]
                .to_owned();
            index += &format!("{control}Filename: ./{file}\nSize: {size}\nSHA256: {sum}\n\n");
        }
        fs::write(repo.join("Packages"), index).unwrap();
        fs::write(
            apt.join("sources.list"),
            format!("deb [trusted=yes] file:{} ./\n", repo.display()),
        )
        .unwrap();
        fs::write(
            apt.join("apt.conf"),
            format!(
                "Dir::State \"{0}/state\"; Dir::Cache \"{0}/cache\"; Dir::Etc::sourceparts \"-\";\n\
                 Dir::Etc::sourcelist \"{0}/sources.list\"; APT::Sandbox::User \"root\";\n",
                apt.display()
            ),
        )
        .unwrap();
        Paths::new(cache, cache)
    }

    #[test]
    fn finds_downloads_and_unpacks() {
        let dir = tempfile::tempdir().unwrap();
        let paths = repository(
            dir.path(),
            &[("tiny", "1.0"), ("tiny", "2.0~a+1")],
            |root| {
                fs::write(root.join("hello"), "hi").unwrap();
            },
        );
        let apt = Apt::open(&paths).unwrap();
        apt.update().unwrap();
        assert_eq!(apt.versions("tiny").unwrap(), ["2.0~a+1", "1.0"]);
        assert!(apt.versions("absent").unwrap().is_empty());
        let deb = apt.download("tiny", "2.0~a+1").unwrap();
        unpack(&deb, &dir.path().join("root")).unwrap();
        assert_eq!(fs::read(dir.path().join("root/hello")).unwrap(), b"hi");
        // A second time it comes from the cache.
        fs::remove_dir_all(dir.path().join("repo")).unwrap();
        assert_eq!(apt.download("tiny", "2.0~a+1").unwrap(), deb);
        let error = format!("{:#}", apt.download("tiny", "1.0").unwrap_err());
        assert!(
            error.contains("cannot download the package tiny 1.0"),
            "{error}"
        );
        let error = format!("{:#}", apt.update().unwrap_err());
        assert!(error.contains("no network?"), "{error}");
    }

    #[test]
    fn a_missing_state_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Apt::open(&Paths::new(dir.path(), dir.path()))
            .err()
            .unwrap();
        assert!(error.to_string().contains("host/bootstrap"));
    }
}
