// SPDX-License-Identifier: GPL-2.0

//! What `host/bootstrap` says when the machine lacks something. Programs that would look at or
//! change this machine are replaced.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    time::SystemTime,
};

/// Runs `host/bootstrap` with an empty cache, the given programs (name and shell script) in front
/// of all others, and the given environment; returns its one line on standard error.
fn bootstrap(programs: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for (name, script) in [ENOUGH].iter().chain(programs) {
        let file = bin.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../bootstrap"))
        .arg("doctor")
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("SCHED_AB_CACHE", dir.path().join("cache"))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    // Nothing half-written stays: the apt state is complete before it has this name.
    let left: Vec<_> = fs::read_dir(dir.path().join("cache"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("bootstrap.") && name != "apt" && name != "deb")
        .collect();
    assert_eq!(left, [""; 0]);
    String::from_utf8(output.stderr).unwrap()
}

const ENOUGH: (&str, &str) = ("df", "echo Avail; echo 100");
const NOTHING: (&str, &str) = ("dpkg-query", "exit 1");
const ALL: (&str, &str) = (
    "dpkg-query",
    "shift 3; for name; do echo \"installed $name\"; done",
);
const USER: (&str, &str) = ("id", "echo 1000");
const ROOT: (&str, &str) = ("id", "echo 0");
const NO_NETWORK: (&str, &str) = ("apt-get", "echo 'Could not resolve'; exit 100");

#[test]
fn a_full_disk() {
    let line = bootstrap(&[("df", "echo Avail; echo '    7'")], &[]);
    assert!(
        line.contains("has 7 GiB free, a first build needs 8"),
        "{line}"
    );
}

#[test]
fn packages_without_root() {
    let line = bootstrap(&[NOTHING, USER], &[]);
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("as root: apt-get install"), "{line}");
    assert!(
        line.contains(" clang-19 ") && line.contains(" qemu-system-x86 "),
        "{line}"
    );
}

#[test]
fn packages_without_a_network() {
    let line = bootstrap(&[NOTHING, ROOT, NO_NETWORK], &[]);
    assert!(
        line.contains("package lists (no network?); log: "),
        "{line}"
    );
}

#[test]
fn no_package_lists_and_no_root() {
    // Without lists apt knows no mirror.
    let line = bootstrap(&[ALL, USER, ("apt-get", "")], &[]);
    assert!(line.contains("as root: apt-get update"), "{line}");
}

#[test]
fn rustc_without_a_network() {
    let codename = "$(. /etc/os-release; echo $VERSION_CODENAME)";
    let apt = format!(
        "[ \"$1\" = indextargets ] || exit 100\necho \"{codename} main http://mirror.invalid/\""
    );
    let line = bootstrap(&[ALL, USER, ("apt-get", &apt)], &[]);
    assert!(
        line.contains("package lists (no network?); log: "),
        "{line}"
    );
}

#[test]
fn wrong_variables() {
    let line = bootstrap(&[ALL], &[("KERNEL_SRC", "/no/such/tree")]);
    assert_eq!(
        line,
        "sched-ab: KERNEL_SRC=/no/such/tree: no such tree or tarball\n"
    );
    let line = bootstrap(&[ALL], &[("RUSTC", "no-such-rustc")]);
    assert_eq!(line, "sched-ab: RUSTC=no-such-rustc: no such program\n");
}

/// Two checkouts share the cache. Cargo would take the other one's program for up to date if the
/// sources of this one are older.
#[test]
fn another_checkout() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    for installed in ["rust-1.85/bin", "qemu-10", "bindgen-0.72.1/bin"] {
        fs::create_dir_all(cache.join(installed)).unwrap();
    }
    let program = |path: &Path, script: &str| {
        fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program(&cache.join("bindgen-0.72.1/bin/bindgen"), "");
    // Space and packages are there, and cargo fails.
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for (name, script) in [ENOUGH, ALL, ("cargo", "exit 1")] {
        program(&bin.join(name), script);
    }
    for name in ["a", "b"] {
        fs::create_dir_all(dir.path().join(name).join("host")).unwrap();
        let bootstrap = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bootstrap");
        fs::copy(bootstrap, dir.path().join(name).join("host/bootstrap")).unwrap();
    }
    // Whether the sources look new to cargo after a run.
    let built = |name: &str| {
        let host = dir.path().join(name).join("host");
        let source = host.join("main.rs");
        let old = SystemTime::UNIX_EPOCH;
        File::create(&source).unwrap().set_modified(old).unwrap();
        let output = Command::new(host.join("bootstrap"))
            .arg("doctor")
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("SCHED_AB_CACHE", &cache)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("cannot build sched-ab"), "{error}");
        source.metadata().unwrap().modified().unwrap() > old
    };
    assert_eq!(
        ["a", "a", "b", "b", "a"].map(built),
        [true, false, true, false, true]
    );
}
