// SPDX-License-Identifier: GPL-2.0

//! Static checks of the checkout; they take seconds and build no kernel.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{base, exec, paths::Paths, series, toolchain};

/// Folders whose files go into the kernel tree.
const OVERLAY: [&str; 5] = ["Documentation/", "include/", "kernel/", "rust/", "tools/"];

/// Runs all checks and prints what each finds.
///
/// # Errors
///
/// When one of them finds something.
pub fn run(paths: &Paths) -> Result<()> {
    let files = files(&paths.repo)?;
    let mut found = Vec::new();
    found.extend(licences(&paths.repo, &files)?);
    let rust: Vec<_> = files
        .iter()
        .filter(|file| file.ends_with(".rs") && OVERLAY.iter().any(|dir| file.starts_with(dir)))
        .collect();
    for file in &rust {
        let text = fs::read_to_string(paths.repo.join(file))?;
        found.extend(boundary(file, &text));
    }
    found.extend(format(paths, &rust)?);
    match base::in_cache(paths)? {
        Some(base) => match series::emit(paths, &base, None) {
            Ok(dir) => found.extend(checkpatch(&base, &dir)?),
            Err(error) => found.push(format!("series: {error:#}")),
        },
        None => eprintln!("check: no base kernel in the cache yet, so checkpatch did not run"),
    }
    if found.is_empty() {
        println!("check: {} files, nothing found", files.len());
        return Ok(());
    }
    for line in &found {
        println!("{line}");
    }
    bail!("{} findings", found.len());
}

/// The files of the checkout that git has or would add.
fn files(repo: &Path) -> Result<Vec<String>> {
    let list = exec::output(Command::new("git").arg("-C").arg(repo).args([
        "ls-files",
        "-co",
        "--exclude-standard",
    ]))?;
    // A file that was removed and not committed is still listed.
    Ok(list
        .lines()
        .filter(|file| repo.join(file).exists())
        .map(str::to_owned)
        .collect())
}

/// Files that neither name their licence nor are named in `REUSE.toml`.
fn licences(repo: &Path, files: &[String]) -> Result<Vec<String>> {
    let toml = fs::read_to_string(repo.join("REUSE.toml")).context("cannot read REUSE.toml")?;
    // Of the quoted strings, those that are no paths match no file.
    let named: Vec<_> = toml.split('"').skip(1).step_by(2).collect();
    let covered = |file: &str| {
        named.iter().any(|path| match path.strip_suffix("**") {
            Some(dir) => file.starts_with(dir),
            None => *path == file,
        })
    };
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !covered(file)) {
        let bytes = fs::read(repo.join(file))?;
        let text = String::from_utf8_lossy(&bytes);
        let mut head = text.lines().take(5);
        if !head.any(|line| line.contains("SPDX-License-Identifier: GPL-2.0")) {
            found.push(format!(
                "{file}:1: no SPDX-License-Identifier of GPL-2.0, and not in REUSE.toml"
            ));
        }
    }
    Ok(found)
}

/// What must not be in Rust code of the kernel: exports without a checked declaration, and
/// `unsafe` without a reason.
fn boundary(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if line.starts_with("//") {
            continue;
        }
        let mut say = |what: &str| found.push(format!("{file}:{}: {what}", index + 1));
        if line.contains("no_mangle") {
            say("no_mangle; use #[export], which checks the C declaration");
        }
        if line.contains("extern \"C\" {") {
            say("a hand-written extern block; let bindgen make the declarations");
        }
        let needs = match () {
            () if line.contains("unsafe fn ") => "# Safety",
            () if line.contains("unsafe {") || line.contains("unsafe impl") => "SAFETY:",
            () => continue,
        };
        // The comment is above the statement that the line belongs to.
        let reason = lines[..index]
            .iter()
            .rev()
            .take_while(|above| {
                above.starts_with("//") || !(above.is_empty() || above.ends_with([';', '{', '}']))
            })
            .any(|above| above.starts_with("//") && above.contains(needs));
        // A function type and a trait's function that is implemented are explained elsewhere.
        let declared_elsewhere = needs == "# Safety" && !line.contains("pub");
        if !reason && !declared_elsewhere {
            say(&format!("unsafe without a `{needs}` comment"));
        }
    }
    found
}

/// Files that rustfmt would change: those of the series as the kernel's, edition 2021, and the
/// host's as their own workspace says.
fn format(paths: &Paths, overlay: &[&String]) -> Result<Vec<String>> {
    let mut host = toolchain::cargo(paths);
    host.args(["fmt", "--all", "--check", "--", "-l"]);
    let mut series = Command::new(toolchain::rust_bin(paths).join("rustfmt"));
    series
        .args(["--check", "-l", "--edition", "2021"])
        .args(overlay)
        .current_dir(&paths.repo);
    let mut found = Vec::new();
    let mut commands = vec![host];
    if !overlay.is_empty() {
        commands.push(series);
    }
    for mut command in commands {
        let output = command.output().context("cannot start rustfmt")?;
        let files = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && files.trim().is_empty() {
            bail!("rustfmt failed: {}", errors.trim());
        }
        found.extend(files.lines().map(|file| {
            let file = Path::new(file);
            let file = file.strip_prefix(&paths.repo).unwrap_or(file);
            format!("{}: rustfmt would change it", file.display())
        }));
    }
    // A file is listed with its crate and by itself.
    found.sort();
    found.dedup();
    Ok(found)
}

/// What checkpatch says of the patches in `series`.
fn checkpatch(base: &base::Base, series: &Path) -> Result<Vec<String>> {
    let mut patches: Vec<_> = fs::read_dir(series)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "patch"))
        // The cover letter has no diff.
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| !name.as_encoded_bytes().starts_with(b"0000"))
        })
        .collect();
    patches.sort();
    if patches.is_empty() {
        bail!("no patches in {}", series.display());
    }
    let output = Command::new(base.dir.join("scripts/checkpatch.pl"))
        .args(["--strict", "--no-signoff", "--ignore", "FILE_PATH_CHANGES"])
        .args(["--terse", "--show-types", "--quiet", "--no-summary"])
        .args(&patches)
        .current_dir(&base.dir)
        .output()
        .context("cannot start checkpatch")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && text.trim().is_empty() {
        bail!("checkpatch failed: {}", errors.trim());
    }
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_licence_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let toml = "[[annotations]]\npath = [\"a.lock\", \"data/**\"]\n";
        let files = ["a.lock", "data/b", "c.rs", "d.rs", "REUSE.toml"].map(str::to_owned);
        fs::create_dir(dir.path().join("data")).unwrap();
        for file in &files {
            fs::write(dir.path().join(file), "text\n").unwrap();
        }
        fs::write(
            dir.path().join("c.rs"),
            "// SPDX-License-Identifier: GPL-2.0\n",
        )
        .unwrap();
        fs::write(
            dir.path().join("REUSE.toml"),
            format!("# SPDX-License-Identifier: GPL-2.0\n{toml}"),
        )
        .unwrap();
        let found = licences(dir.path(), &files).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("d.rs:1: no SPDX"));
    }

    #[test]
    fn unsafe_needs_its_reason() {
        let good = "// SAFETY: Held.\nlet a = unsafe { f() };\n\n\
                    // SAFETY: Pinned.\n#[inline]\nlet b =\n    unsafe { g() };\n\
                    /// # Safety\n///\n/// Held.\npub unsafe fn h() {}\n\
                    // unsafe { } in a comment\n";
        assert_eq!(boundary("a.rs", good), Vec::<String>::new());
        let lines = |text: &str| -> Vec<String> {
            let found = boundary("a.rs", text);
            found
                .iter()
                .map(|line| line.split(": ").next().unwrap().to_owned())
                .collect()
        };
        assert_eq!(lines("let a = unsafe { f() };\n"), ["a.rs:1"]);
        // A comment belongs to one statement only.
        assert_eq!(
            lines("// SAFETY: x\nlet a = unsafe { f() };\nlet b = unsafe { g() };\n"),
            ["a.rs:3"]
        );
        assert_eq!(
            lines("// SAFETY: x\n\nunsafe impl Send for A {}\n"),
            ["a.rs:3"]
        );
        assert_eq!(lines("/// Text.\npub unsafe fn h() {}\n"), ["a.rs:2"]);
    }

    #[test]
    fn only_checked_exports() {
        let found = boundary("a.rs", "#[no_mangle]\nextern \"C\" {\n    fn f();\n}\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("a.rs:1") && found[1].contains("a.rs:2"));
    }
}
