// SPDX-License-Identifier: GPL-2.0

//! Says what is installed and what is missing.

use std::{fs::File, path::Path, process::Command};

use anyhow::{Result, bail};
use nix::sys::statvfs::statvfs;

use crate::{clean, paths::Paths, toolchain};

/// A program, the option that makes it print its version, what that must contain, and the package.
type Tool = (&'static str, &'static str, &'static str, &'static str);

const TOOLS: [Tool; 18] = [
    ("busybox", "--help", "", "busybox-static"),
    ("bc", "--version", "", "bc"),
    ("bison", "--version", "", "bison"),
    ("clang-19", "--version", "19.", "clang-19"),
    ("cpio", "--version", "", "cpio"),
    ("curl", "--version", "", "curl"),
    ("flex", "--version", "", "flex"),
    ("gcc", "--version", "", "gcc"),
    ("git", "--version", "", "git"),
    ("hackbench", "--help", "", "rt-tests"),
    ("ld.lld-19", "--version", "19.", "lld-19"),
    ("llvm-objdump-19", "--version", "19.", "llvm-19"),
    ("make", "--version", "", "make"),
    ("patch", "--version", "", "patch"),
    ("perl", "-v", "", "perl"),
    ("pkg-config", "--version", "", "pkg-config"),
    ("python3", "--version", "", "python3"),
    ("xz", "--version", "", "xz-utils"),
];

/// Prints a line for each tool, then what is known of KVM, the disk and the cache.
///
/// # Errors
///
/// When a tool is missing or has another version than needed.
pub fn run(paths: &Paths) -> Result<()> {
    let mut missing = Vec::new();
    for (name, option, needed, package) in TOOLS {
        missing.extend(tool(Path::new(name), option, needed, package));
    }
    let rust = toolchain::rust_bin(paths);
    // rustfmt has a version of its own.
    for (name, needed) in [
        ("rustc", "1.85."),
        ("cargo", "1.85."),
        ("rustfmt", ""),
        ("cargo-clippy", "1.85"),
    ] {
        missing.extend(tool(
            &rust.join(name),
            "--version",
            needed,
            "host/bootstrap",
        ));
    }
    let (bindgen, qemu) = (toolchain::bindgen(paths), toolchain::qemu(paths));
    missing.extend(tool(&bindgen, "--version", "0.72.1", "host/bootstrap"));
    missing.extend(tool(&qemu, "--version", "", "qemu-system-x86"));

    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => {
            println!("KVM      /dev/kvm opens; make ab boots a kernel to see whether it works")
        }
        Err(error) => println!("KVM      /dev/kvm: {error}; make ab uses TCG"),
    }
    let disk = statvfs(&paths.cache)?;
    let free = disk.blocks_available() * disk.fragment_size();
    println!(
        "disk     {} free; a first build needs 8 GiB",
        clean::gib(free)
    );
    let used = clean::size(&paths.cache);
    println!("cache    {} in {}", clean::gib(used), paths.cache.display());
    if !missing.is_empty() {
        bail!("missing: {}", missing.join(", "));
    }
    Ok(())
}

/// Prints what is found of one tool; returns what has to be installed.
fn tool(program: &Path, option: &str, needed: &str, package: &str) -> Option<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    // Some print on standard error, and some exit with 1 after their help.
    let found = Command::new(program)
        .arg(option)
        .output()
        .ok()
        .map(|output| {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.lines()
                .find(|line| !line.trim().is_empty())
                .unwrap_or_default()
                .trim()
                .to_owned()
        });
    let (mark, line) = match &found {
        Some(line) if line.contains(needed) => ("ok", &**line),
        Some(line) => ("WRONG", &**line),
        None => ("MISSING", ""),
    };
    let needed = match needed {
        "" => String::new(),
        needed => format!(", needed: {needed}"),
    };
    println!("{mark:<8} {name}: {line}{needed} ({package})");
    (mark != "ok").then(|| format!("{name} ({package})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_wrong_tools_are_named() {
        assert_eq!(tool(Path::new("sh"), "-c", "", "dash"), None);
        assert_eq!(
            tool(Path::new("/no/such-tool"), "--version", "", "some-package").unwrap(),
            "such-tool (some-package)"
        );
        assert_eq!(
            tool(Path::new("make"), "--version", "no such version", "make").unwrap(),
            "make (make)"
        );
    }
}
