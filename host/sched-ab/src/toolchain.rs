// SPDX-License-Identifier: GPL-2.0

//! The compilers of the kernel and of the guest's programs, and how they are called; and QEMU.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{exec, paths::Paths};

/// The folder in the cache where `host/bootstrap` unpacked rustc.
const RUST: &str = "rust-1.85";
const BINDGEN: &str = "bindgen-0.72.1";
/// The folder in the cache where it unpacked a QEMU, if that of the system is too old.
const QEMU: &str = "qemu-10";
/// The suffix of clang, lld and the LLVM tools.
pub const LLVM: &str = "-19";

/// The compilers of the kernel.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// Names what was built with it, for example `clang19.1.7-rustc1.85.0`.
    pub id: String,
    /// Whether rustc and clang have the same LLVM, so that helpers written in C can be inlined.
    pub inline_helpers: bool,
    rustc: PathBuf,
    bindgen: PathBuf,
}

impl Toolchain {
    /// Finds the compilers. `SCHED_AB_RUSTC`, which `host/bootstrap` makes from `RUSTC`, names
    /// another rustc.
    ///
    /// # Errors
    ///
    /// When one of them is missing.
    pub fn find(paths: &Paths) -> Result<Self> {
        let own = env::var_os("SCHED_AB_RUSTC").map(PathBuf::from);
        let rustc = own.unwrap_or_else(|| rust_bin(paths).join("rustc"));
        let missing = "run host/bootstrap";
        let about =
            exec::output(Command::new(&rustc).args(["--version", "--verbose"])).context(missing)?;
        let clang = format!("clang{LLVM}");
        let clang = exec::output(Command::new(&clang).arg("--version")).context(missing)?;
        let this = Self::from_versions(&about, &clang)
            .with_context(|| format!("{} names no version", rustc.display()))?;
        if !this.inline_helpers {
            eprintln!(
                "toolchain: {} has another LLVM than clang{LLVM}: no inline helpers in Rust code",
                rustc.display()
            );
        }
        Ok(Self {
            rustc,
            bindgen: bindgen(paths),
            ..this
        })
    }

    /// Reads what `rustc --version --verbose` and `clang --version` print.
    fn from_versions(rustc: &str, clang: &str) -> Option<Self> {
        let field = |name| rustc.lines().find_map(|line| line.strip_prefix(name));
        let release = field("release: ")?;
        let clang = clang.split("clang version ").nth(1)?;
        let clang = clang.split([' ', '\n', '-', '+']).next()?;
        let major = |version: &str| version.split('.').next().map(str::to_owned);
        Some(Self {
            id: format!("clang{clang}-rustc{release}"),
            inline_helpers: major(field("LLVM version: ")?) == major(clang),
            rustc: PathBuf::new(),
            bindgen: PathBuf::new(),
        })
    }

    /// A `make` of the kernel tree `tree` that builds in `obj`. Nothing of the caller's
    /// environment gets in, and nothing of the machine gets into the result.
    pub fn make(&self, tree: &Path, obj: &Path) -> Command {
        let mut command = Command::new("make");
        let assign = |name: &str, path: &Path| format!("{name}={}", path.display());
        let tool = |name: &str| self.rustc.with_file_name(name);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .env("LIBCLANG_PATH", format!("/usr/lib/llvm{LLVM}/lib"))
            .envs(env::vars_os().filter(|(name, _)| name == "HOME" || name == "TERM"))
            .arg("-C")
            .arg(tree)
            .arg(assign("O", obj))
            .arg(format!("LLVM={LLVM}"))
            .arg(assign("RUSTC", &self.rustc))
            .arg(assign("HOSTRUSTC", &self.rustc))
            .arg(assign("RUSTDOC", &tool("rustdoc")))
            .arg(assign("RUSTFMT", &tool("rustfmt")))
            .arg(assign("CLIPPY_DRIVER", &tool("clippy-driver")))
            .arg(assign("BINDGEN", &self.bindgen))
            .args([
                "KBUILD_BUILD_TIMESTAMP=Thu Jan  1 00:00:00 UTC 1970",
                "KBUILD_BUILD_USER=sched-ab",
                "KBUILD_BUILD_HOST=sched-ab",
                "KBUILD_BUILD_VERSION=1",
            ]);
        command
    }
}

/// The program that makes Rust declarations from C headers.
pub fn bindgen(paths: &Paths) -> PathBuf {
    paths.cache.join(BINDGEN).join("bin/bindgen")
}

/// The program that runs guests.
pub fn qemu(paths: &Paths) -> PathBuf {
    let name = "qemu-system-x86_64";
    let own = paths.cache.join(QEMU).join("bin").join(name);
    if own.exists() { own } else { name.into() }
}

/// Where `rustc`, `cargo` and `rustfmt` are.
pub fn rust_bin(paths: &Paths) -> PathBuf {
    paths.cache.join(RUST).join("bin")
}

/// A `cargo` for this workspace that finds no other rustc, with its target folder in the cache.
pub fn cargo(paths: &Paths) -> Command {
    let bin = rust_bin(paths);
    let path = env::var_os("PATH").unwrap_or_default();
    let all = [bin.clone()].into_iter().chain(env::split_paths(&path));
    let mut command = Command::new(bin.join("cargo"));
    command
        .current_dir(paths.repo.join("host"))
        .env("PATH", env::join_paths(all).unwrap_or(path.clone()))
        .env("RUSTC", bin.join("rustc"))
        .env("RUSTC_WRAPPER", "")
        .env("CARGO_TARGET_DIR", paths.cache.join("target"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const RUSTC: &str = "rustc 1.85.0 (4d91de4e4 2025-02-17)\nbinary: rustc\nrelease: 1.85.0\n\
                         LLVM version: 19.1.7\n";
    const CLANG: &str = "Debian clang version 19.1.7 (3~deb12u1)\nTarget: x86_64-pc-linux-gnu\n";

    #[test]
    fn the_same_llvm_allows_inline_helpers() {
        let same = Toolchain::from_versions(RUSTC, CLANG).unwrap();
        assert_eq!(same.id, "clang19.1.7-rustc1.85.0");
        assert!(same.inline_helpers);
        let newer = RUSTC.replace("19.1.7", "22.1.0");
        assert!(
            !Toolchain::from_versions(&newer, CLANG)
                .unwrap()
                .inline_helpers
        );
        assert!(Toolchain::from_versions("gibberish", CLANG).is_none());
    }

    #[test]
    fn an_unpacked_qemu_is_preferred() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        assert_eq!(qemu(&paths), Path::new("qemu-system-x86_64"));
        let own = dir.path().join("qemu-10/bin/qemu-system-x86_64");
        fs::create_dir_all(own.parent().unwrap()).unwrap();
        fs::write(&own, "").unwrap();
        assert_eq!(qemu(&paths), own);
    }

    #[test]
    fn missing_compilers_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Toolchain::find(&Paths::new(dir.path(), dir.path())).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("host/bootstrap") && error.contains("rustc"),
            "{error}"
        );
    }
}
