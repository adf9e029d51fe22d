// SPDX-License-Identifier: GPL-2.0

//! The base kernel: Debian's source package, else kernel.org's tarball, or what `KERNEL_SRC` names.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{
    apt::{self, Apt},
    exec,
    paths::Paths,
    progress::Step,
};

/// The release that the series is for.
pub const SERIES: &str = "7.3";
/// The version that is preferred.
const WANTED: &str = "7.3.4";
const PACKAGE: &str = "linux-source-7.3";
/// Where the tarball of last resort is; `SCHED_AB_KERNEL_ORG` names another place.
const KERNEL_ORG: &str = "https://cdn.kernel.org/pub/linux/kernel/v7.x";

/// A base kernel in the cache.
#[derive(Clone, Debug)]
pub struct Base {
    /// Names the folders made from it, for example `7.3.4-debian-1~bpo13+1`.
    pub id: String,
    /// For example `7.3.4`.
    pub version: String,
    /// The pristine tree. Nothing may write here.
    pub dir: PathBuf,
    /// The composed tree.
    pub tree: PathBuf,
}

/// Returns the base kernel, and fetches it when it is not in the cache. `kernel_src` is a tree or a
/// tarball to use instead; it is copied.
///
/// # Errors
///
/// When it cannot be fetched or is not a 7.3 kernel.
pub fn ensure(paths: &Paths, kernel_src: Option<&Path>) -> Result<Base> {
    let home = paths.cache_dir("base")?;
    let id = match kernel_src {
        Some(source) => from_source(&home, source)?,
        None => match cached(&home)? {
            Some(id) => id,
            None => fetch(paths, &home)?,
        },
    };
    Base::open(paths, &home, id)
}

/// The base kernel that [`ensure`] returns without a network and without `KERNEL_SRC`, if any.
pub fn in_cache(paths: &Paths) -> Result<Option<Base>> {
    let home = paths.cache_dir("base")?;
    let id = cached(&home)?;
    id.map(|id| Base::open(paths, &home, id)).transpose()
}

impl Base {
    fn open(paths: &Paths, home: &Path, id: String) -> Result<Self> {
        let dir = home.join(&id);
        Ok(Self {
            version: version(&dir)?,
            tree: paths.cache_dir("tree")?.join(&id),
            dir,
            id,
        })
    }
}

/// The best base that is complete in the cache already.
fn cached(home: &Path) -> Result<Option<String>> {
    let mut ids: Vec<String> = fs::read_dir(home)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|id| id.contains("-debian-") || id.ends_with("-kernel.org"))
        .filter(|id| id.starts_with(&format!("{SERIES}.")))
        .collect();
    ids.sort();
    let wanted = |id: &&String| id.starts_with(&format!("{WANTED}-"));
    let best = ids.iter().rfind(wanted).or(ids.last());
    if let Some(id) = best.filter(|id| !wanted(id)) {
        eprintln!("base: Linux {WANTED} was not to be had, using {id}");
    }
    Ok(best.cloned())
}

fn fetch(paths: &Paths, home: &Path) -> Result<String> {
    let debian = match from_debian(paths, home) {
        Ok(id) => return Ok(id),
        Err(error) => error,
    };
    eprintln!("base: not from Debian ({debian:#}), trying kernel.org");
    let place = env::var("SCHED_AB_KERNEL_ORG").unwrap_or_else(|_| KERNEL_ORG.to_owned());
    from_kernel_org(paths, home, &place)
        .with_context(|| format!("no base kernel: Debian: {debian:#}; kernel.org"))
}

/// Picks the version of the source package: 7.3.4 by preference, else the newest 7.3.y.
fn pick(versions: &[String]) -> Option<&String> {
    let starts = |start: String| versions.iter().find(|version| version.starts_with(&start));
    starts(format!("{WANTED}-")).or_else(|| starts(format!("{SERIES}.")))
}

fn from_debian(paths: &Paths, home: &Path) -> Result<String> {
    let step = Step::new("base kernel: Debian's source package", 0);
    let apt = Apt::open(paths)?;
    apt.update()?;
    let versions = apt.versions(PACKAGE)?;
    let package = pick(&versions).with_context(|| format!("no package {PACKAGE}"))?;
    if !package.starts_with(&format!("{WANTED}-")) {
        eprintln!("base: Debian has no Linux {WANTED} any more, using {package}");
    }
    let deb = apt.download(PACKAGE, package)?;
    let temp = tempfile::tempdir_in(home)?;
    apt::unpack(&deb, temp.path())?;
    let tarball = temp.path().join(format!("usr/src/{PACKAGE}.tar.xz"));
    let tree = unpack(&tarball, temp.path())?;
    let id = package.replacen('-', "-debian-", 1);
    keep(&tree, home, &id)?;
    // The tree is all that is needed from now on.
    fs::remove_file(deb)?;
    step.done(package);
    Ok(id)
}

/// Fetches the tarball from `place` and checks it against the `sha256sums.asc` next to it. The
/// signature of that file is not checked: it is as good as the connection.
fn from_kernel_org(paths: &Paths, home: &Path, place: &str) -> Result<String> {
    let name = format!("linux-{WANTED}.tar.xz");
    let step = Step::new("base kernel: kernel.org's tarball", 0);
    let temp = tempfile::tempdir_in(home)?;
    let curl = |name: &str| {
        let file = temp.path().join(name);
        exec::output(
            Command::new("curl")
                .args(["-fsSL", "--retry", "2", "--connect-timeout", "20", "-o"])
                .arg(&file)
                .arg(format!("{place}/{name}")),
        )
        .with_context(|| format!("cannot fetch {place}/{name} (no network?)"))?;
        Ok::<_, anyhow::Error>(file)
    };
    let sums = fs::read_to_string(curl("sha256sums.asc")?)?;
    let wanted = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .find_map(|(sum, file)| (file == name).then_some(sum))
        .with_context(|| format!("{place}/sha256sums.asc does not name {name}"))?;
    let tarball = curl(&name)?;
    let found = hash_file(&tarball)?;
    if found != wanted {
        bail!("{place}/{name} has the checksum {found}, not {wanted}");
    }
    let id = format!("{WANTED}-kernel.org");
    keep(&unpack(&tarball, temp.path())?, home, &id)?;
    step.done(&paths.cache.join("base").join(&id).display().to_string());
    Ok(id)
}

/// Copies the tree or tarball `source` into the cache, under a name made from its content.
fn from_source(home: &Path, source: &Path) -> Result<String> {
    let step = Step::new("base kernel: KERNEL_SRC", 0);
    let temp = tempfile::tempdir_in(home)?;
    let known = |hash: &str| -> Result<Option<String>> {
        let end = format!("-src-{}", &hash[..12]);
        Ok(fs::read_dir(home)?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .find(|id| id.ends_with(&end)))
    };
    let (hash, tree) = if source.is_dir() {
        version(source)?;
        let files = files(source)?;
        let hash = hash_tree(source, &files)?;
        if let Some(id) = known(&hash)? {
            return Ok(id);
        }
        let tree = temp.path().join("tree");
        copy_tree(source, &files, &tree)?;
        (hash, tree)
    } else if source.is_file() {
        let hash = hash_file(source)?;
        if let Some(id) = known(&hash)? {
            return Ok(id);
        }
        (hash, unpack(source, temp.path())?)
    } else {
        bail!("KERNEL_SRC={}: no such tree or tarball", source.display());
    };
    let version = version(&tree).with_context(|| format!("KERNEL_SRC={}", source.display()))?;
    // A tree that was built in place cannot be built elsewhere before it is cleaned.
    if tree.join(".config").exists() || tree.join("include/config").exists() {
        exec::output(Command::new("make").arg("-C").arg(&tree).arg("mrproper"))?;
    }
    let id = format!("{version}-src-{}", &hash[..12]);
    keep(&tree, home, &id)?;
    step.done(&id);
    Ok(id)
}

/// The version of the kernel tree `dir`.
///
/// # Errors
///
/// When it is not a kernel tree, or not of the release that the series is for.
pub fn version(dir: &Path) -> Result<String> {
    let makefile = fs::read_to_string(dir.join("Makefile")).unwrap_or_default();
    let value = |name: &str| {
        makefile.lines().take(20).find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let (Some(major), Some(minor)) = (value("VERSION"), value("PATCHLEVEL")) else {
        bail!("{} is not a Linux source tree", dir.display());
    };
    let found = format!("{major}.{minor}");
    let sub = value("SUBLEVEL").unwrap_or_default();
    let extra = value("EXTRAVERSION").unwrap_or_default();
    if found != SERIES {
        bail!(
            "{} is Linux {found}.{sub}{extra}, and the series is for {SERIES}",
            dir.display()
        );
    }
    Ok(format!("{found}.{sub}{extra}"))
}

/// Unpacks `tarball` in `temp` and returns the tree.
fn unpack(tarball: &Path, temp: &Path) -> Result<PathBuf> {
    let tree = temp.join("tree");
    fs::create_dir(&tree)?;
    exec::output(
        Command::new("tar")
            .arg("-xf")
            .arg(tarball)
            .args(["--strip-components=1", "--no-same-owner", "-C"])
            .arg(&tree),
    )
    .with_context(|| format!("cannot unpack {}", tarball.display()))?;
    Ok(tree)
}

/// Moves a complete tree to its place; whoever came first wins.
fn keep(tree: &Path, home: &Path, id: &str) -> Result<()> {
    version(tree)?;
    let target = home.join(id);
    fs::rename(tree, &target).or_else(|error| match target.is_dir() {
        true => Ok(()),
        false => Err(error).with_context(|| format!("cannot make {}", target.display())),
    })
}

/// The source files of a tree, sorted: what git knows or would add, else everything.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if dir.join(".git").exists() {
        let output = Command::new("git")
            .arg("-C")
            .arg(dir)
            .args(["ls-files", "-z", "-co", "--exclude-standard"])
            .output()
            .context("cannot start git")?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("git ls-files in {}: {}", dir.display(), error.trim());
        }
        for name in output.stdout.split(|byte| *byte == 0) {
            let name = PathBuf::from(OsString::from_vec(name.to_vec()));
            // A file that was deleted and not committed is still listed.
            if !name.as_os_str().is_empty() && dir.join(&name).symlink_metadata().is_ok() {
                files.push(name);
            }
        }
    } else {
        let mut left = vec![PathBuf::new()];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(dir.join(&folder))? {
                let entry = entry?;
                let name = folder.join(entry.file_name());
                match entry.file_type()?.is_dir() {
                    true => left.push(name),
                    false => files.push(name),
                }
            }
        }
    }
    files.sort();
    Ok(files)
}

fn hash_tree(dir: &Path, files: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    for name in files {
        let path = dir.join(name);
        let meta = path.symlink_metadata()?;
        hash.update(name.as_os_str().as_encoded_bytes());
        if meta.is_symlink() {
            hash.update(b"\0link\0");
            hash.update(fs::read_link(&path)?.as_os_str().as_encoded_bytes());
        } else {
            let mode = meta.permissions().mode() & 0o111;
            hash.update(format!("\0{mode:o} {}\0", meta.len()));
            io::copy(&mut File::open(&path)?, &mut hash)?;
        }
    }
    Ok(format!("{:x}", hash.finalize()))
}

fn hash_file(file: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let mut input = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match input.read(&mut buffer)? {
            0 => return Ok(format!("{:x}", hash.finalize())),
            len => hash.update(&buffer[..len]),
        }
    }
}

fn copy_tree(source: &Path, files: &[PathBuf], target: &Path) -> Result<()> {
    for name in files {
        let (from, to) = (source.join(name), target.join(name));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        if from.symlink_metadata()?.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
        thread,
    };

    use super::*;

    fn fake_tree(dir: &Path, version: &str) {
        let mut part = version.split('.');
        let mut next = || part.next().unwrap();
        fs::create_dir_all(dir.join("kernel")).unwrap();
        fs::write(
            dir.join("Makefile"),
            format!(
                "# SPDX\nVERSION = {}\nPATCHLEVEL = {}\nSUBLEVEL = {}\nEXTRAVERSION =\n\
                 mrproper:\n\trm -f .config\n",
                next(),
                next(),
                next()
            ),
        )
        .unwrap();
        fs::write(dir.join("kernel/a.c"), "int a;\n").unwrap();
        let _ = std::os::unix::fs::symlink("a.c", dir.join("kernel/link"));
    }

    fn tarball(dir: &Path, version: &str, file: &Path) {
        let name = format!("linux-{version}");
        fake_tree(&dir.join(&name), version);
        exec::output(
            Command::new("tar")
                .arg("-cJf")
                .arg(file)
                .arg("-C")
                .arg(dir)
                .arg(&name),
        )
        .unwrap();
    }

    /// Serves the files of `dir` until the test ends.
    fn serve(dir: PathBuf) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                let name = line.split(' ').nth(1).unwrap().trim_start_matches('/');
                let (status, body) = match fs::read(dir.join(name)) {
                    Ok(body) => ("200 OK", body),
                    Err(_) => ("404 Not Found", Vec::new()),
                };
                let head = format!(
                    "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(&[head.into_bytes(), body].concat());
            }
        });
        place
    }

    fn nothing_left(home: &Path) {
        assert_eq!(fs::read_dir(home).unwrap().count(), 0);
    }

    #[test]
    fn picks_the_preferred_version() {
        let all = ["7.4.1-1", "7.3.5-1", "7.3.4-1~bpo13+1"].map(str::to_owned);
        assert_eq!(pick(&all).unwrap(), "7.3.4-1~bpo13+1");
        assert_eq!(pick(&all[..2]).unwrap(), "7.3.5-1");
        assert_eq!(pick(&all[..1]), None);
    }

    #[test]
    fn debian_package_is_unpacked_and_reused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = apt::tests::repository(dir.path(), &[(PACKAGE, "7.3.5-1")], |root| {
            fs::create_dir_all(root.join("usr/src")).unwrap();
            let temp = tempfile::tempdir().unwrap();
            let file = root.join(format!("usr/src/{PACKAGE}.tar.xz"));
            tarball(temp.path(), "7.3.5", &file);
        });
        let base = ensure(&paths, None).unwrap();
        assert_eq!((&*base.id, &*base.version), ("7.3.5-debian-1", "7.3.5"));
        assert!(base.dir.join("kernel/a.c").is_file());
        // No network is needed any more.
        fs::remove_dir_all(dir.path().join("apt")).unwrap();
        assert_eq!(ensure(&paths, None).unwrap().id, base.id);
        // The preferred version wins once it is there.
        fake_tree(&dir.path().join("base/7.3.4-kernel.org"), "7.3.4");
        assert_eq!(ensure(&paths, None).unwrap().id, "7.3.4-kernel.org");
    }

    #[test]
    fn tarball_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let www = dir.path().join("www");
        let home = dir.path().join("base");
        fs::create_dir_all(&www).unwrap();
        fs::create_dir_all(&home).unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        let place = serve(www.clone());
        let try_it = || from_kernel_org(&paths, &home, &place);

        let error = format!("{:#}", try_it().unwrap_err());
        assert!(
            error.contains("cannot fetch") && error.contains("sha256sums.asc"),
            "{error}"
        );
        fs::write(www.join("sha256sums.asc"), "00  linux-7.3.3.tar.xz\n").unwrap();
        let error = format!("{:#}", try_it().unwrap_err());
        assert!(
            error.contains("does not name linux-7.3.4.tar.xz"),
            "{error}"
        );

        let file = www.join("linux-7.3.4.tar.xz");
        tarball(dir.path(), "7.3.4", &file);
        let sum = hash_file(&file).unwrap();
        let sums = |sum: &str| {
            let text = format!("-----BEGIN\n00  linux-7.3.4.tar.gz\n{sum}  linux-7.3.4.tar.xz\n");
            fs::write(www.join("sha256sums.asc"), text).unwrap();
        };
        sums(&sum.replace(|c: char| c.is_ascii_digit(), "0"));
        let error = format!("{:#}", try_it().unwrap_err());
        assert!(error.contains("has the checksum"), "{error}");
        nothing_left(&home);

        sums(&sum);
        assert_eq!(try_it().unwrap(), "7.3.4-kernel.org");
        assert!(home.join("7.3.4-kernel.org/kernel/a.c").is_file());
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
    }

    #[test]
    fn kernel_src_is_copied_and_keyed_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        let source = dir.path().join("mine");
        fake_tree(&source, "7.3.9");
        fs::write(source.join(".config"), "").unwrap();
        let first = ensure(&paths, Some(&source)).unwrap();
        assert!(first.id.starts_with("7.3.9-src-"), "{}", first.id);
        assert!(!first.dir.join(".config").exists() && source.join(".config").exists());
        assert!(first.dir.join("kernel/link").is_symlink());
        assert_eq!(ensure(&paths, Some(&source)).unwrap().id, first.id);
        fs::write(source.join("kernel/a.c"), "int b;\n").unwrap();
        assert_ne!(ensure(&paths, Some(&source)).unwrap().id, first.id);

        let file = dir.path().join("mine.tar.xz");
        tarball(dir.path(), "7.3.8", &file);
        let packed = ensure(&paths, Some(&file)).unwrap();
        assert_eq!(packed.version, "7.3.8");
        assert_eq!(ensure(&paths, Some(&file)).unwrap().id, packed.id);
    }

    #[test]
    fn kernel_src_of_git_leaves_out_what_git_ignores() {
        let dir = tempfile::tempdir().unwrap();
        fake_tree(dir.path(), "7.3.4");
        fs::write(dir.path().join(".gitignore"), "*.o\n").unwrap();
        fs::write(dir.path().join("kernel/a.o"), "").unwrap();
        exec::output(Command::new("git").arg("init").arg("-q").arg(dir.path())).unwrap();
        let names = files(dir.path()).unwrap();
        assert!(names.contains(&PathBuf::from("kernel/a.c")));
        assert!(
            !names
                .iter()
                .any(|name| name.ends_with("a.o") || name.starts_with(".git/"))
        );
    }

    #[test]
    fn a_wrong_kernel_src_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        let error = |source: &Path| format!("{:#}", ensure(&paths, Some(source)).unwrap_err());

        let source = dir.path().join("old");
        fake_tree(&source, "6.12.1");
        assert!(error(&source).contains("is Linux 6.12.1, and the series is for 7.3"));
        fs::create_dir(dir.path().join("empty")).unwrap();
        assert!(error(&dir.path().join("empty")).contains("is not a Linux source tree"));
        assert!(error(&dir.path().join("absent")).contains("no such tree or tarball"));
        let file = dir.path().join("broken.tar.xz");
        fs::write(&file, "no tarball").unwrap();
        assert!(error(&file).contains("cannot unpack"));
        nothing_left(&dir.path().join("base"));
    }

    #[test]
    fn without_a_network_both_sources_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        let home = paths.cache_dir("base").unwrap();
        assert!(from_debian(&paths, &home).is_err());
        let error = from_kernel_org(&paths, &home, "http://127.0.0.1:1").unwrap_err();
        assert!(format!("{error:#}").contains("no network?"));
        nothing_left(&home);
    }
}
