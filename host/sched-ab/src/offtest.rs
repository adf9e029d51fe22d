// SPDX-License-Identifier: GPL-2.0

//! Proves that the series changes nothing for those who do not switch it on: with its options not
//! set, `fair.o` and `core.o` disassemble as those of the base.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{
    base::{self, Base},
    exec,
    kbuild::{self, Config},
    paths::Paths,
    progress::Step,
    series,
    toolchain::{LLVM, Toolchain},
};

const OBJECTS: [&str; 2] = ["kernel/sched/fair.o", "kernel/sched/core.o"];

/// The names of the two configurations, which are the same.
const NAMES: [&str; 2] = ["off-base", "off-tree"];

/// On top of the release kernel: what the series needs or adds is off, and core scheduling, which
/// it looks at, is on.
const FRAGMENT: &str = "CONFIG_RUST=n\nCONFIG_SCHED_CORE=y\n";

/// Builds both objects from the base and from the composed tree, and compares them.
///
/// # Errors
///
/// When they differ, or cannot be built.
pub fn run(paths: &Paths, kernel_src: Option<&Path>, jobs: Option<usize>) -> Result<()> {
    let base = &base::ensure(paths, kernel_src)?;
    let _lock = kbuild::lock(paths)?;
    series::compose(paths, base)?;
    let tools = Toolchain::find(paths)?;
    let log = paths.out.join("log/offtest.log");
    let _ = fs::remove_file(&log);
    let build = |name: &str, tree: &Path| -> Result<PathBuf> {
        let config = config(paths, name)?;
        let obj = config.obj(paths, base, &tools);
        config.apply(&tools, tree, &obj, &log)?;
        let mut step = Step::new(&format!("objects ({name})"), 0);
        let mut make = tools.make(tree, &obj);
        make.arg(format!("-j{}", jobs.unwrap_or_else(kbuild::cpus)));
        kbuild::run(make.args(OBJECTS), &log, |line| step.at(0, line.trim()))?;
        step.done("built");
        Ok(obj)
    };
    let theirs = build(NAMES[0], &base.dir)?;
    let ours = build(NAMES[1], &base.tree)?;
    for object in OBJECTS {
        compare(&theirs.join(object), &ours.join(object))?;
    }
    Ok(())
}

fn config(paths: &Paths, name: &str) -> Result<Config> {
    let files = ["host/config/guest.config", "host/config/release.config"];
    let mut config = Config::read(paths, name, &files)?;
    config.add("this test", FRAGMENT);
    Ok(config)
}

/// The build folders as they are configured now.
pub(crate) fn objs(paths: &Paths, base: &Base, tools: &Toolchain) -> Result<Vec<PathBuf>> {
    let obj = |name: &&str| Ok(config(paths, name)?.obj(paths, base, tools));
    NAMES.iter().map(obj).collect()
}

/// Compares the instructions and relocations of two objects. Line numbers are data of their own
/// sections in this configuration, which are not looked at.
fn compare(base: &Path, ours: &Path) -> Result<()> {
    let disassemble = |object: &Path| {
        exec::output(
            Command::new(format!("llvm-objdump{LLVM}"))
                .args(["-dr", "--no-show-raw-insn"])
                .arg(object),
        )
    };
    let (theirs, mine) = (disassemble(base)?, disassemble(ours)?);
    // The first line of output names the file.
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.contains("file format"));
        lines.map(str::to_owned).collect()
    };
    let (theirs, mine) = (lines(&theirs), lines(&mine));
    if !theirs.iter().any(|line| line.contains("ret")) {
        bail!("{} has no code to compare", base.display());
    }
    let end = String::from("its end");
    let at = |lines: &[String], index: usize| lines.get(index).unwrap_or(&end).trim().to_owned();
    for index in 0..theirs.len().max(mine.len()) {
        if theirs.get(index) != mine.get(index) {
            let function = theirs[..index.min(theirs.len())]
                .iter()
                .rev()
                .find(|line| line.ends_with(">:"))
                .map_or("", |line| line.split_once(' ').map_or("", |(_, name)| name));
            bail!(
                "{} differs from the base in {function} base has `{}`, ours has `{}`",
                ours.display(),
                at(&theirs, index),
                at(&mine, index),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(dir: &Path, name: &str, source: &str) -> PathBuf {
        let (file, object) = (dir.join(name), dir.join(name).with_extension("o"));
        fs::write(&file, source).unwrap();
        exec::output(
            Command::new(format!("clang{LLVM}"))
                .args(["-O2", "-c", "-o"])
                .args([&object, &file]),
        )
        .unwrap();
        object
    }

    #[test]
    fn a_difference_is_found_and_lines_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let same = "int g(int);\nint f(int a) { return g(a) + 1; }\n";
        let base = object(dir.path(), "base.c", same);
        let moved = object(dir.path(), "moved.c", &format!("\n\n\n{same}"));
        compare(&base, &moved).unwrap();

        let value = object(dir.path(), "value.c", &same.replace("+ 1", "+ 2"));
        let error = compare(&base, &value).unwrap_err().to_string();
        assert!(
            error.contains("value.o") && error.contains("in <f>:"),
            "{error}"
        );
        // Another callee is a difference in relocations only.
        let callee = object(dir.path(), "callee.c", &same.replace('g', "h"));
        let error = compare(&base, &callee).unwrap_err().to_string();
        assert!(error.contains("callee.o") && error.contains('h'), "{error}");
        let longer = object(
            dir.path(),
            "longer.c",
            &format!("{same}int e(void) {{ return 3; }}\n"),
        );
        assert!(
            compare(&base, &longer)
                .unwrap_err()
                .to_string()
                .contains("its end")
        );
        assert!(compare(&longer, &base).is_err());
    }

    #[test]
    fn an_object_without_code_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let empty = object(dir.path(), "empty.c", "int a;\n");
        assert!(
            compare(&empty, &empty)
                .unwrap_err()
                .to_string()
                .contains("no code")
        );
    }
}
