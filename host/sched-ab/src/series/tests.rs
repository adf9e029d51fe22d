// SPDX-License-Identifier: GPL-2.0

//! The series on a base of a few lines, with real git.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread::sleep,
    time::Duration,
};

use super::{
    compose, compose_lab, emit, fold,
    git::Git,
    source::{slug, walk},
    tree,
};
use crate::{base::Base, paths::Paths};

const HOOK: &str = "kernel/sched/fair.c";
const ROOT: &str = "kernel/sched/llc/llc.rs";
const POLICY: &str = "kernel/sched/llc/policy.rs";

struct Lab {
    paths: Paths,
    base: Base,
    _dir: tempfile::TempDir,
}

/// Numbered lines, of which some are the same, as in real sources.
fn text(lines: usize) -> String {
    (1..=lines).fold(String::new(), |text, n| {
        text + &format!("line {n}\n{{\n}}\n\n")
    })
}

fn put(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

fn get(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

/// Replaces text in a file.
fn edit(root: &Path, path: &str, from: &str, to: &str) {
    let old = get(root, path);
    assert!(old.contains(from), "{path} has no `{from}`");
    put(root, path, &old.replacen(from, to, 1));
}

/// All files under `root` with what they hold, without git's own.
fn snapshot(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for path in walk(root, "").unwrap() {
        if !path.starts_with(".git/") && !path.starts_with("out/") {
            let bytes = fs::read(root.join(&path)).unwrap();
            files.insert(path, bytes);
        }
    }
    files
}

fn error<T>(result: anyhow::Result<T>) -> String {
    let text = format!("{:#}", result.err().expect("must fail"));
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

impl Lab {
    fn at(dir: tempfile::TempDir) -> Self {
        let (repo, cache) = (dir.path().join("repo"), dir.path().join("cache"));
        Self {
            paths: Paths::new(&repo, &cache),
            base: Base {
                id: "7.3.4-test".into(),
                version: "7.3.4".into(),
                tree: cache.join("tree/7.3.4-test"),
                dir: cache.join("base/7.3.4-test"),
            },
            _dir: dir,
        }
    }

    /// A base kernel and no series.
    fn empty() -> Self {
        let lab = Self::at(tempfile::tempdir().unwrap());
        let (repo, pristine) = (lab.paths.repo.clone(), lab.base.dir.clone());
        put(&pristine, HOOK, &text(40));
        put(&pristine, "kernel/sched/core.c", &text(20));
        put(
            &pristine,
            "kernel/sched/Makefile",
            "obj-y += fair.o core.o\n",
        );
        put(&pristine, "Makefile", "VERSION = 7\n");
        put(&pristine, ".gitignore", ".*\n*.o\n");
        put(&pristine, ".gitattributes", "*.c text eol=crlf\n");
        put(&pristine, "scripts/run.sh", "#!/bin/sh\n");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(pristine.join("scripts/run.sh"), mode).unwrap();
        fs::create_dir_all(repo.join("series/v7.3")).unwrap();
        put(&repo, "series/v7.3/BASE", "7.3.4\n");
        lab
    }

    /// Three patches made in the tree: the crate root grows in each, the hook in two.
    fn new() -> Self {
        static MODEL: OnceLock<Lab> = OnceLock::new();
        let model = MODEL.get_or_init(Self::three_patches);
        let dir = tempfile::tempdir().unwrap();
        for name in ["repo", "cache"] {
            let from = model.paths.repo.with_file_name(name);
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(from).arg(dir.path());
            assert!(copy.status().unwrap().success());
        }
        Self::at(dir)
    }

    fn three_patches() -> Self {
        let lab = Self::empty();
        let tree = lab.tree();
        put(&tree, ROOT, "//! Crate.\n//!\n//! Why.\n\nmod a;\n");
        put(&tree, "rust/helpers/llc.c", "// helper\n");
        lab.commit(
            "sched: Add a crate\n\nIt has:\n# one line\n\nNumbers: 1",
            &[ROOT, "rust/helpers/llc.c"],
        );
        put(&tree, POLICY, "fn policy() {}\n");
        edit(&tree, ROOT, "mod a;\n", "mod a;\nmod policy;\n");
        edit(&tree, HOOK, "line 20\n", "line 20\nhook();\n");
        edit(&tree, "scripts/run.sh", "sh\n", "sh\nexit 0\n");
        lab.commit(
            "sched/fair: Hook it up",
            &[POLICY, ROOT, HOOK, "scripts/run.sh"],
        );
        edit(&tree, ROOT, "mod policy;\n", "mod policy;\nmod stats;\n");
        edit(&tree, HOOK, "line 30\n", "line 30\ncount();\n");
        lab.commit("sched/fair: Count\n\nÄ body.", &[ROOT, HOOK]);
        lab.fold();
        put(
            &lab.paths.repo,
            "series/0000-cover-letter.msg",
            "sched: Share runqueues\n\nWhy and what.\n",
        );
        lab
    }

    fn tree(&self) -> PathBuf {
        tree(&self.paths, &self.base).unwrap()
    }

    fn fold(&self) -> Vec<String> {
        let folded = fold(&self.paths, &self.base).unwrap();
        [folded.written, folded.removed].concat()
    }

    fn compose(&self) -> usize {
        compose(&self.paths, &self.base).unwrap().changed
    }

    /// What a user does in the tree, with his own git.
    fn git(&self, args: &[&str]) {
        let dir = self.paths.out.join("tree");
        let mut command = Command::new("git");
        command
            .current_dir(dir)
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        let output = command.args(args).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {output:?}");
    }

    fn commit(&self, message: &str, paths: &[&str]) {
        self.git(&[&["add", "-f"], paths].concat());
        self.git(&["commit", "-q", "--cleanup=whitespace", "-m", message]);
    }

    fn repo_edit(&self, path: &str, from: &str, to: &str) {
        edit(&self.paths.repo, path, from, to);
    }
}

#[test]
fn commits_in_the_tree_become_patches() {
    let lab = Lab::new();
    let repo = &lab.paths.repo;
    let files: Vec<_> = snapshot(repo).into_keys().collect();
    assert_eq!(
        files,
        [
            ROOT,
            POLICY,
            "rust/helpers/llc.c",
            "series/0000-cover-letter.msg",
            "series/0001-sched-add-a-crate.msg",
            "series/0002-sched-fair-hook-it-up.msg",
            "series/0002.grow.diff",
            "series/0003-sched-fair-count.msg",
            "series/0003.grow.diff",
            "series/v7.3/0002.diff",
            "series/v7.3/0003.diff",
            "series/v7.3/BASE",
        ]
    );
    assert_eq!(
        get(repo, "series/0001-sched-add-a-crate.msg"),
        "sched: Add a crate\n\nIt has:\n# one line\n\nNumbers: 1\n\n\
         Overlay: kernel/sched/llc/llc.rs\nOverlay: rust/helpers/llc.c\n"
    );
    let diff = get(repo, "series/v7.3/0002.diff");
    assert!(diff.contains("+++ b/kernel/sched/fair.c\n@@ -75,6 +75,7 @@"));
    assert!(!diff.contains("index "));
    assert_eq!(
        get(repo, ROOT),
        "//! Crate.\n//!\n//! Why.\n\nmod a;\nmod policy;\nmod stats;\n"
    );
}

#[test]
fn the_round_trip_changes_nothing() {
    let lab = Lab::new();
    // Not as fold writes them, and yet the same series.
    let msg = "series/0001-sched-add-a-crate.msg";
    lab.repo_edit(msg, "Overlay: kernel", "\nOverlay: kernel");
    lab.repo_edit("series/v7.3/0002.diff", "diff --git", "Why.\n\ndiff --git");
    let before = snapshot(&lab.paths.repo);
    for _ in 0..2 {
        lab.tree();
        assert_eq!(lab.fold(), [""; 0]);
        assert!(snapshot(&lab.paths.repo) == before);
    }
    // A tree made anew holds what the composed one holds.
    fs::remove_dir_all(lab.paths.out.join("tree")).unwrap();
    let tree = lab.tree();
    lab.compose();
    assert!(snapshot(&tree) == snapshot(&lab.base.tree));
}

#[test]
fn composing_touches_only_what_differs() {
    let lab = Lab::new();
    let pristine = snapshot(&lab.base.dir);
    assert_eq!(lab.compose(), 5);
    let tree = &lab.base.tree;
    assert!(get(tree, HOOK).contains("line 20\nhook();\n"));
    assert!(get(tree, HOOK).contains("line 30\ncount();\n"));
    assert_eq!(get(tree, "rust/helpers/llc.c"), "// helper\n");
    let mode = |path: &str| fs::metadata(tree.join(path)).unwrap().mode() & 0o777;
    assert_eq!((mode("scripts/run.sh"), mode(HOOK)), (0o755, 0o644));
    let inode = |root: &Path, path: &str| fs::metadata(root.join(path)).unwrap().ino();
    let core = "kernel/sched/core.c";
    assert_eq!(inode(tree, core), inode(&lab.base.dir, core));

    let time = |path: &str| fs::metadata(tree.join(path)).unwrap().modified().unwrap();
    let before = [HOOK, ROOT, POLICY, core].map(time);
    sleep(Duration::from_millis(20));
    assert_eq!(lab.compose(), 0);
    lab.repo_edit(POLICY, "policy", "rule");
    assert_eq!(lab.compose(), 1);
    let after = [HOOK, ROOT, POLICY, core].map(time);
    let same: Vec<_> = before.iter().zip(&after).map(|(a, b)| a == b).collect();
    assert_eq!(same, [true, true, false, true]);
    assert!(snapshot(&lab.base.dir) == pristine);
}

#[test]
fn what_the_series_leaves_is_the_bases_again() {
    let lab = Lab::new();
    lab.compose();
    let hook = lab.base.tree.join(HOOK);
    let built = fs::metadata(&hook).unwrap().modified().unwrap();
    sleep(Duration::from_millis(20));
    let repo = &lab.paths.repo;
    for path in walk(repo, "").unwrap() {
        if path.ends_with(".msg") || path.ends_with(".diff") || !path.starts_with("series/") {
            fs::remove_file(repo.join(path)).unwrap();
        }
    }
    assert_eq!(lab.compose(), 5);
    assert!(snapshot(&lab.base.tree) == snapshot(&lab.base.dir));
    assert!(!lab.base.tree.join("kernel/sched/llc").exists());
    // An object built from the edited text must look out of date.
    assert!(fs::metadata(&hook).unwrap().modified().unwrap() > built);
}

#[test]
fn a_killed_compose_is_made_good() {
    let lab = Lab::new();
    lab.compose();
    // The list names what was about to change, and half of it is done.
    let manifest = lab.base.tree.with_file_name("7.3.4-test.manifest");
    put(&lab.base.tree, "kernel/sched/llc/gone.rs", "half");
    let list = fs::read_to_string(&manifest).unwrap() + "kernel/sched/llc/gone.rs\n";
    fs::write(&manifest, list).unwrap();
    assert_eq!(lab.compose(), 1);
    assert!(!lab.base.tree.join("kernel/sched/llc/gone.rs").exists());
}

#[test]
fn offsets_are_taken_and_fuzz_is_not() {
    let lab = Lab::new();
    let old = text(40);
    put(&lab.base.dir, HOOK, &format!("new\nlines\n{old}"));
    lab.compose();
    assert!(get(&lab.base.tree, HOOK).contains("line 20\nhook();\n"));

    // One line of context differs, the outermost, which patch(1) would forgive.
    let before = snapshot(&lab.base.tree);
    put(
        &lab.base.dir,
        HOOK,
        &old.replace("line 29\n{\n}\n", "line 29\n{\n)\n"),
    );
    let text = error(compose(&lab.paths, &lab.base));
    for part in [
        "series/v7.3/0003.diff does not apply to the base 7.3.4",
        "patch 0003 (sched/fair: Count)",
        "kernel/sched/fair.c, hunk `@@ -116,6 +116,7 @@",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(snapshot(&lab.base.tree) == before);
}

#[test]
fn a_grown_file_must_still_give_its_earlier_states() {
    let lab = Lab::new();
    // An offset is fine.
    lab.repo_edit(ROOT, "//! Crate.\n", "//! Crate.\n//! More.\n");
    lab.compose();
    lab.repo_edit(ROOT, "mod stats;\n", "mod statistics;\n");
    let text = error(compose(&lab.paths, &lab.base));
    assert!(
        text.contains("series/0003.grow.diff does not apply to the overlay in reverse")
            && text.contains("kernel/sched/llc/llc.rs, hunk `@@ -4,3 +4,4 @@"),
        "{text}"
    );
}

#[test]
fn rules_are_enforced() {
    let msg = "series/0002-sched-fair-hook-it-up.msg";
    let append = |lab: &Lab, path: &str, more: &str| {
        let old = get(&lab.paths.repo, path);
        put(&lab.paths.repo, path, &format!("{old}{more}"));
    };
    let remove = |lab: &Lab, path: &str| fs::remove_file(lab.paths.repo.join(path)).unwrap();
    type Break<'a> = &'a dyn Fn(&Lab);
    let cases: [(Break<'_>, &str); 14] = [
        (
            &|lab| put(&lab.base.dir, POLICY, "there already"),
            "adds kernel/sched/llc/policy.rs, which the base 7.3.4 has already",
        ),
        (
            &|lab| append(lab, msg, "Overlay: rust/helpers/llc.c\n"),
            "rust/helpers/llc.c is added by patch 0001 and by patch 0002",
        ),
        (
            &|lab| put(&lab.paths.repo, "include/linux/new.h", ""),
            "include/linux/new.h is in no patch",
        ),
        (
            &|lab| append(lab, msg, "Overlay: rust/none.c\n"),
            "patch 0002 adds rust/none.c, which does not exist",
        ),
        (
            &|lab| append(lab, msg, "Overlay: host/Cargo.toml\n"),
            "patch 0002 adds host/Cargo.toml: new files live in kernel, include",
        ),
        (
            &|lab| put(&lab.paths.repo, "series/v7.3/0004.diff", ""),
            "series/v7.3/0004.diff has no series/NNNN-slug.msg of its number",
        ),
        (
            &|lab| put(&lab.paths.repo, "series/0004-x.msg", "Subject\n"),
            "series/0004-x.msg has neither an `Overlay: ` line nor a diff",
        ),
        (
            &|lab| remove(lab, "series/0001-sched-add-a-crate.msg"),
            "series/0002-sched-fair-hook-it-up.msg follows patch 0000: 0001 is missing",
        ),
        (
            &|lab| put(&lab.paths.repo, "series/0002-again.msg", "Subject\n"),
            "have the same number",
        ),
        (
            &|lab| put(&lab.paths.repo, "series/notes", ""),
            "series/notes is neither NNNN-slug.msg nor NNNN.grow.diff",
        ),
        (
            &|lab| lab.repo_edit("series/v7.3/0002.diff", " line 20\n", ""),
            "series/v7.3/0002.diff: corrupt patch at line",
        ),
        (
            &|lab| {
                let old = get(&lab.paths.repo, "series/0003.grow.diff");
                put(&lab.paths.repo, "series/0001.grow.diff", &old);
            },
            "series/0001.grow.diff changes kernel/sched/llc/llc.rs, which no earlier patch adds",
        ),
        (
            &|lab| fs::remove_file(lab.base.dir.join(HOOK)).unwrap(),
            "series/v7.3/0002.diff changes kernel/sched/fair.c, which the base 7.3.4 does not have",
        ),
        (
            &|lab| lab.repo_edit(msg, "up\n", "up\nno empty line\n"),
            "series/0002-sched-fair-hook-it-up.msg: the line after the subject must be empty",
        ),
    ];
    for (damage, expected) in cases {
        let lab = Lab::new();
        damage(&lab);
        let text = error(compose(&lab.paths, &lab.base));
        assert!(text.contains(expected), "{text}\nis not\n{expected}");
        assert!(!lab.base.tree.exists());
    }
}

#[test]
fn edits_go_to_the_patch_that_owns_the_file() {
    let lab = Lab::new();
    let tree = lab.tree();
    put(&tree, POLICY, "fn rule() {}\n");
    assert_eq!(lab.fold(), [POLICY]);
    assert_eq!(get(&lab.paths.repo, POLICY), "fn rule() {}\n");
    // The rewritten commit keeps a line of its changelog that looks like a comment.
    let helper = "rust/helpers/llc.c";
    put(&tree, helper, "// other\n");
    assert_eq!(lab.fold(), [helper]);
    edit(&tree, helper, "other", "another");
    lab.commit("squash! sched: Add a crate\n\n# More.", &[helper]);
    assert_eq!(lab.fold(), [helper, "series/0001-sched-add-a-crate.msg"]);
    let msg = get(&lab.paths.repo, "series/0001-sched-add-a-crate.msg");
    assert!(
        msg.contains("\n# one line\n") && msg.contains("\n# More.\n"),
        "{msg}"
    );
    // Folded, so that a new tree may be made.
    lab.tree();
    assert_eq!(lab.fold(), [""; 0]);
}

#[test]
fn edits_of_a_shared_file_need_a_fixup() {
    let lab = Lab::new();
    let tree = lab.tree();
    let before = snapshot(&lab.paths.repo);
    edit(&tree, HOOK, "hook();\n", "hook(1);\n");
    let text = error(fold(&lab.paths, &lab.base));
    assert!(
        text.contains(
            "belongs to more than one patch (`sched/fair: Count`, `sched/fair: Hook it up`)"
        ),
        "{text}"
    );
    assert!(snapshot(&lab.paths.repo) == before);
    lab.git(&["commit", "-q", "-a", "--fixup=:/Hook it up"]);
    assert_eq!(lab.fold(), ["series/v7.3/0002.diff"]);
    assert!(get(&lab.paths.repo, "series/v7.3/0002.diff").contains("+hook(1);\n"));

    // Growth at the earliest patch moves through the later states.
    edit(&tree, ROOT, "mod a;\n", "mod a;\nmod b;\n");
    lab.git(&["commit", "-q", "-a", "--fixup=:/Hook it up"]);
    assert_eq!(
        lab.fold(),
        [ROOT, "series/0002.grow.diff", "series/0003.grow.diff"]
    );
    assert!(get(&lab.paths.repo, "series/0002.grow.diff").contains("+mod b;\n+mod policy;\n"));
}

#[test]
fn edits_that_no_patch_names_are_refused() {
    let lab = Lab::new();
    let tree = lab.tree();
    put(&tree, "kernel/sched/llc/new.rs", "");
    put(&tree, "kernel/sched/core.o", "");
    let text = error(fold(&lab.paths, &lab.base));
    assert!(text.contains("kernel/sched/llc/new.rs is edited but in no commit"));
    lab.git(&["add", "-f", "kernel/sched/llc/new.rs"]);
    let text = error(fold(&lab.paths, &lab.base));
    assert!(text.contains("kernel/sched/llc/new.rs is in no commit"));
    lab.git(&["commit", "-q", "--fixup=:/Hook it up"]);
    lab.fold();
    let msg = get(&lab.paths.repo, "series/0002-sched-fair-hook-it-up.msg");
    assert!(msg.contains("Overlay: kernel/sched/llc/new.rs\n"));

    edit(&tree, "kernel/sched/core.c", "line 1\n", "line one\n");
    let text = error(fold(&lab.paths, &lab.base));
    assert!(text.contains("kernel/sched/core.c is edited but in no commit"));
    lab.commit("fixup! sched/fair: Hook it up", &["kernel/sched/core.c"]);
    assert_eq!(lab.fold(), ["series/v7.3/0002.diff"]);
    assert!(get(&lab.paths.repo, "series/v7.3/0002.diff").contains("+line one\n"));

    put(&tree, "host.txt", "");
    lab.commit("Out of place", &["host.txt"]);
    let text = error(fold(&lab.paths, &lab.base));
    assert!(text.contains("patch 0004 (Out of place) adds host.txt: new files live in"));
}

#[test]
fn a_folder_of_the_base_in_a_commit_is_refused() {
    let lab = Lab::three_patches();
    let tree = lab.tree();
    for n in 0..=200 {
        put(&lab.base.dir, &format!("drivers/{n:03}.c"), "int n;\n");
        put(&tree, &format!("drivers/{n:03}.c"), "int n;\n");
    }
    lab.commit("drivers: Add all by mistake", &["drivers"]);
    let before = snapshot(&lab.paths.repo);
    let error = error(fold(&lab.paths, &lab.base));
    assert!(
        error.contains("add 201 files of the base, drivers/000.c and others"),
        "{error}"
    );
    assert_eq!(snapshot(&lab.paths.repo), before);
}

#[test]
fn a_tree_with_edits_is_not_replaced() {
    let lab = Lab::new();
    let tree = lab.tree();
    let refused = |what: &str| {
        let text = error(super::tree(&lab.paths, &lab.base));
        assert!(
            text.contains("has edits that are not folded") && text.contains(what),
            "{text}"
        );
    };
    put(&tree, POLICY, "fn rule() {}\n");
    refused(POLICY);
    lab.git(&["commit", "-q", "-a", "-m", "sched: Rule"]);
    refused("new commits");
    lab.fold();
    edit(&tree, "Makefile", "7", "8");
    refused("Makefile");
    edit(&tree, "Makefile", "8", "7");
    lab.tree();
    let mut other = lab.base.clone();
    other.id = "7.3.5-test".into();
    for text in [
        error(super::tree(&lab.paths, &other)),
        error(fold(&lab.paths, &other)),
    ] {
        assert!(text.contains("was made from the base 7.3.4-test, not from 7.3.5-test"));
    }
}

#[test]
fn a_fold_over_a_changed_series_is_refused() {
    let lab = Lab::new();
    let tree = lab.tree();
    lab.repo_edit(POLICY, "policy", "rule");
    put(&tree, POLICY, "fn other() {}\n");
    let text = error(fold(&lab.paths, &lab.base));
    assert!(text.contains("the series changed since `make tree`"));
    assert_eq!(get(&lab.paths.repo, POLICY), "fn rule() {}\n");
    // Without edits the tree follows the series.
    lab.git(&["checkout", "-q", "-f", "HEAD"]);
    lab.tree();
    assert_eq!(get(&tree, POLICY), "fn rule() {}\n");
}

#[test]
fn patches_can_be_dropped_and_moved() {
    let lab = Lab::new();
    let repo = &lab.paths.repo;
    for number in 1..=3 {
        let path = format!("series/v7.4/000{number}.diff");
        put(repo, &path, &format!("of patch {number}\n"));
    }
    let tree = lab.tree();
    lab.git(&["reset", "-q", "--hard", "HEAD~1"]);
    lab.git(&["tag", "crate", "HEAD~1"]);
    edit(&tree, HOOK, "line 5\n", "line five\n");
    lab.commit("sched: Five", &[HOOK]);
    lab.git(&["rebase", "-q", "--onto", "base", "HEAD~1"]);
    lab.git(&["cherry-pick", "crate"]);
    lab.fold();
    let files: Vec<_> = snapshot(repo).into_keys().collect();
    assert_eq!(
        files,
        [
            ROOT,
            "rust/helpers/llc.c",
            "series/0000-cover-letter.msg",
            "series/0001-sched-five.msg",
            "series/0002-sched-add-a-crate.msg",
            "series/v7.3/0001.diff",
            "series/v7.3/BASE",
            "series/v7.4/0002.diff",
        ]
    );
    assert_eq!(get(repo, "series/v7.4/0002.diff"), "of patch 1\n");
    // A new subject renames only the changelog's file.
    lab.git(&["commit", "-q", "--amend", "-m", "sched: A crate"]);
    assert_eq!(
        lab.fold(),
        [
            "series/0002-sched-a-crate.msg",
            "series/0002-sched-add-a-crate.msg"
        ]
    );
    // What no patch touches now is the base's.
    let script = "scripts/run.sh";
    assert_eq!(get(&tree, script), get(&lab.base.dir, script));
    lab.tree();
}

#[test]
fn the_mails_give_the_composed_files() {
    let lab = Lab::new();
    let dir = emit(&lab.paths, &lab.base, None).unwrap();
    let first = snapshot(&dir);
    let names: Vec<_> = first.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "0000-cover-letter.patch",
            "0001-sched-Add-a-crate.patch",
            "0002-sched-fair-Hook-it-up.patch",
            "0003-sched-fair-Count.patch",
            "series.mbox",
        ]
    );
    let cover = get(&dir, "0000-cover-letter.patch");
    for part in [
        "Subject: [PATCH 0/3] sched: Share runqueues\n",
        "Why and what.\n",
        "applies to Linux 7.3.4 (7.3.4-test).\n",
        "kernel/sched/fair.c        | 2 ++",
    ] {
        assert!(cover.contains(part), "{cover}");
    }
    assert!(!get(&dir, "series.mbox").contains("Signed-off-by"));
    sleep(Duration::from_millis(1100));
    emit(&lab.paths, &lab.base, None).unwrap();
    assert!(snapshot(&dir) == first);

    // As a user does it, on a repository of the whole base.
    let clone = tempfile::tempdir().unwrap();
    let git = Git::init(clone.path()).unwrap();
    let tracked = snapshot(&lab.base.dir);
    for path in tracked.keys() {
        let copy = clone.path().join(path);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(lab.base.dir.join(path), copy).unwrap();
    }
    let paths: Vec<_> = tracked.into_keys().collect();
    git.each(&["add", "-f"], &paths).unwrap();
    git.run(&["commit", "-q", "-m", "base"]).unwrap();
    git.run(&["am", "-q", dir.join("series.mbox").to_str().unwrap()])
        .unwrap();
    lab.compose();
    assert!(snapshot(clone.path()) == snapshot(&lab.base.tree));
}

#[test]
fn only_who_asks_signs_off() {
    let lab = Lab::new();
    let dir = emit(&lab.paths, &lab.base, Some("A. Example <ada@example.org>")).unwrap();
    let patch = get(&dir, "0001-sched-Add-a-crate.patch");
    assert!(
        patch.contains("From: \"A. Example\" <ada@example.org>\n"),
        "{patch}"
    );
    assert!(patch.contains("\nSigned-off-by: A. Example <ada@example.org>\n---\n"));
    for bad in ["Ada", "<a@b>", "Ada <a>", "Ada <a@b> x"] {
        let text = error(emit(&lab.paths, &lab.base, Some(bad)));
        assert!(text.contains("SIGNOFF must be `Name <mail>`"), "{text}");
    }
}

#[test]
fn what_mail_would_change_is_refused() {
    let lab = Lab::new();
    let before = emit(&lab.paths, &lab.base, None).map(|dir| snapshot(&dir));
    let msg = "series/0003-sched-fair-count.msg";
    lab.repo_edit(msg, "Ä body.\n", "Ä body.\n---\nlost\n");
    let text = error(emit(&lab.paths, &lab.base, None));
    assert!(text.contains("git am does not give"), "{text}");
    lab.repo_edit(msg, "---\nlost\n", "");
    put(&lab.paths.repo, "rust/helpers/llc.c", "// helper\r\n");
    let text = error(emit(&lab.paths, &lab.base, None));
    assert!(text.contains("git am does not give"), "{text}");
    let dir = lab.paths.out.join("series/7.3.4");
    assert!(snapshot(&dir) == before.unwrap());
    fs::remove_file(lab.paths.repo.join("series/0000-cover-letter.msg")).unwrap();
    let text = error(emit(&lab.paths, &lab.base, None));
    assert!(text.contains("series/0000-cover-letter.msg: "), "{text}");
}

#[test]
fn slugs_are_short_and_plain() {
    for (subject, expected) in [
        ("sched/fair: Add `hooks`", "sched-fair-add-hooks"),
        ("…", "patch"),
        (
            "a subject of many words that goes on and on until it is far too long",
            "a-subject-of-many-words-that-goes-on-and-on-until",
        ),
    ] {
        assert_eq!(slug(subject), expected);
    }
}

#[test]
fn the_lab_has_a_tree_of_its_own() {
    let lab = Lab::new();
    let core = "kernel/sched/core.c";
    let diff = |path: &str, line: &str| {
        format!("Why.\n\n--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n-{line}\n+lab\n {{\n")
    };
    let repo = &lab.paths.repo;
    put(repo, "host/lab/core.diff", &diff(core, "line 1"));
    put(repo, "host/lab/hook.diff", &diff(HOOK, "line 1"));
    lab.compose();
    let (pristine, composed) = (snapshot(&lab.base.dir), snapshot(&lab.base.tree));
    let tree = compose_lab(&lab.paths, &lab.base).unwrap().tree;
    assert_ne!(tree, lab.base.tree);
    assert!(get(&tree, core).starts_with("lab\n{\n"));
    let hook = get(&tree, HOOK);
    assert!(hook.starts_with("lab\n{\n") && hook.contains("line 20\nhook();\n"));
    assert!(snapshot(&lab.base.dir) == pristine && snapshot(&lab.base.tree) == composed);

    fs::remove_file(repo.join("host/lab/core.diff")).unwrap();
    compose_lab(&lab.paths, &lab.base).unwrap();
    assert!(get(&tree, core) == get(&lab.base.dir, core));

    put(repo, "host/lab/hook.diff", &diff(HOOK, "line 7"));
    let refused = error(compose_lab(&lab.paths, &lab.base));
    assert!(
        refused.starts_with("host/lab/hook.diff does not apply to the base 7.3.4 with the series")
    );
    put(repo, "host/lab/README", "");
    assert!(error(compose_lab(&lab.paths, &lab.base)).contains("host/lab/README is no .diff"));
}
