// SPDX-License-Identifier: GPL-2.0

//! Runs the series' KUnit suites and selftests in guests with the debug kernel.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::Write,
    iter,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail, ensure};
use sched_ab_protocol::{Event, Plan, Status};
use sha2::{Digest, Sha256};

use crate::{
    base, dmesg, exec,
    guest::{self, Accel, Topo, Vm},
    initramfs,
    kbuild::{self, Flavor},
    paths::Paths,
    progress::Step,
    spread::{lock, spread},
    toolchain::{self, LLVM},
};

/// A guest and what runs in it.
#[derive(Clone, Copy)]
pub struct Guest {
    topo: Topo,
    /// More for the kernel's command line.
    append: &'static str,
    /// How many times it boots.
    boots: usize,
    /// The selftests; none named means all.
    only: &'static [&'static str],
}

/// What `make test` runs. After two LLCs with one shard each come an LLC with two shards and
/// siblings, and a machine without any LLC.
pub const SHORT: (&str, &[Guest]) = (
    "short",
    &[
        guest(2, 4, 1),
        guest(1, 4, 2).only(&["domains", "files", "hotplug", "pull", "sis_filter"]),
        guest(1, 1, 1).only(&["files"]),
    ],
);

/// What `make test-all` runs: other races at each boot, other shapes of LLCs and shards, and CPUs
/// without an LLC domain or a tick.
pub const LONG: (&str, &[Guest]) = (
    "long",
    &[
        guest(2, 4, 1).boots(5),
        guest(1, 4, 2).boots(5),
        guest(1, 8, 1).boots(3),
        // Too few CPUs in an LLC for the partitions of `domains`.
        guest(4, 2, 1).boots(3).only(&[
            "affinity",
            "files",
            "hotplug",
            "pull",
            "sis_filter",
            "toggle",
        ]),
        guest(2, 3, 2).boots(3),
        guest(1, 24, 1),
        guest(2, 4, 1)
            .append("isolcpus=domain,3 nohz_full=2,6")
            .only(&["hotplug", "pull", "sis_filter", "toggle"]),
        guest(1, 1, 1).boots(3).only(&["files"]),
    ],
);

const fn guest(llcs: u32, cores: u32, threads: u32) -> Guest {
    Guest {
        topo: Topo {
            llcs,
            cores,
            threads,
        },
        append: "",
        boots: 1,
        only: &[],
    }
}

impl Guest {
    const fn append(self, append: &'static str) -> Self {
        Self { append, ..self }
    }

    const fn boots(self, boots: usize) -> Self {
        Self { boots, ..self }
    }

    const fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }

    /// What to run of all `programs`.
    fn commands(&self, programs: &[PathBuf]) -> Vec<Vec<String>> {
        programs
            .iter()
            .map(|program| program.file_name().unwrap_or_default().to_string_lossy())
            .filter(|name| self.only.is_empty() || self.only.contains(&name.as_ref()))
            .map(|name| vec![format!("/bin/{name}")])
            .collect()
    }
}

/// A feature of the scheduler that makes it warn of a clock that is updated twice.
const FEATURES_ON: [&str; 1] = ["WARN_DOUBLE_CLOCK"];

/// A CPU whose stopper has not run for twice these 30 s is a soft lockup. That is as long as RCU
/// waits in this kernel, and as a single wait of a test. Hardware's 20 s are too few for eight CPUs
/// that take turns on one of the host, with spinlocks that are not fair in a guest: one CPU once
/// was 33 s late, in a run whose tests all passed. Usual are less than 2 s.
const LIMITS: &str = "watchdog_thresh=30";

/// A test that takes this long, in seconds, hangs. Each has its own, shorter limits, which tell
/// more.
const TIMEOUT_S: u64 = 1500;
/// How many guests run side by side at most, for the sake of the host's memory.
const AT_ONCE: usize = 4;

const SELFTESTS: &str = "tools/testing/selftests";
const OURS: &str = "tools/testing/selftests/sched_llc";
/// Where the series has KUnit suites: its folder, and files outside.
const SERIES: &str = "kernel/sched/llc";
const OUTSIDE: [&str; 2] = [
    "rust/kernel/interop/list.rs",
    "rust/kernel/sync/lock/raw_spinlock.rs",
];

/// What passed.
#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    guests: usize,
    suites: usize,
    cases: usize,
    tests: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            guests,
            suites,
            cases,
            tests,
        } = self;
        write!(
            f,
            "{guests} guests, {cases} KUnit cases of {suites} suites, {tests} selftests"
        )
    }
}

/// Builds the debug kernel and the selftests, and runs them in each guest. `name` is that of the
/// list `guests`, for the logs. A guest whose CPUs run in turn leaves the other CPUs of the host to
/// other guests.
///
/// # Errors
///
/// When a test fails, is skipped or does not run, or when a kernel complains.
pub fn run(
    paths: &Paths,
    kernel_src: Option<&Path>,
    jobs: Option<usize>,
    (name, guests): (&str, &[Guest]),
) -> Result<Counts> {
    let image = kbuild::image(paths, kernel_src, Flavor::Debug, jobs, |_| Ok(()))?.bzimage;
    let tree = base::ensure(paths, kernel_src)?.tree;
    let suites = suites(&tree)?;
    let programs = build(paths, &tree)?;
    let archive = initramfs::archive(&initramfs::agent(paths)?, &programs)?;
    let qemu = toolchain::qemu(paths);
    let accel = Accel::choose(paths, &qemu, &image, &archive)?.in_turn();
    let at_once = match accel {
        Accel::Kvm => 1,
        Accel::Tcg { .. } | Accel::Sim => jobs.unwrap_or_else(kbuild::cpus).min(AT_ONCE),
    };

    let boots: Vec<_> = guests
        .iter()
        .flat_map(|guest| iter::repeat_n(guest, guest.boots))
        .map(|guest| (guest, guest.commands(&programs)))
        .collect();
    let total: usize = boots.iter().map(|(_, commands)| commands.len()).sum();
    let shared = Mutex::new(Shared {
        step: Step::new("selftests", u64::try_from(total)?),
        ended: 0,
        counts: Counts::default(),
    });
    spread(at_once, &boots, |n, (guest, commands)| {
        let topo = guest.topo;
        let log = format!("log/selftest-{name}-{}-{topo}.dmesg", n + 1);
        let log = paths.out.join(log);
        let mut vm = Vm::new(&qemu, &image, &archive, topo, accel, &log);
        vm.append = format!("{LIMITS} {}", guest.append);
        let tap = log.with_extension("tap");
        let (cases, tests) = boot(&vm, commands, &tap, &shared)?
            .judge(&suites)
            .with_context(|| format!("in the guest {topo} (log: {})", tap.display()))?;
        dmesg::check(paths, &log)?;
        let counts = &mut lock(&shared).counts;
        counts.guests += 1;
        counts.suites = suites.len();
        counts.cases += cases;
        counts.tests += tests;
        Ok(())
    })?;
    let Shared { step, counts, .. } = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    step.done(&counts.to_string());
    Ok(counts)
}

/// What the guests of a run tell.
struct Shared {
    step: Step,
    /// Programs of tests that have ended.
    ended: u64,
    counts: Counts,
}

/// Runs the plan in one guest and keeps all lines of the tests in `tap`.
fn boot(
    vm: &Vm<'_>,
    commands: &[Vec<String>],
    tap: &Path,
    shared: &Mutex<Shared>,
) -> Result<Results> {
    fs::create_dir_all(tap.parent().context("the log has no folder")?)?;
    let mut file = File::create(tap).context("cannot write the log of the tests")?;
    let mut results = Results {
        programs: commands.iter().map(|command| name(command)).collect(),
        ..Results::default()
    };
    let plan = Plan::Tests {
        commands: commands.to_vec(),
        features_on: FEATURES_ON.map(str::to_owned).to_vec(),
        timeout_s: TIMEOUT_S,
    };
    let hello = vm.run(&plan, |event| {
        let mut shared = lock(shared);
        let Shared { step, ended, .. } = &mut *shared;
        match event {
            Event::Tap { test, line } => {
                writeln!(file, "{test}: {line}")?;
                step.at(*ended, &format!("{} {test}: {line}", vm.topo));
            }
            Event::TestDone { .. } => *ended += 1,
            _ => {}
        }
        results.event(event);
        Ok(())
    })?;
    lock(shared).step.say(&guest::describe(&hello));
    Ok(results)
}

/// The name of a test as the agent gives it.
fn name(command: &[String]) -> String {
    let program = command.first().map(String::as_str).unwrap_or_default();
    program.rsplit('/').next().unwrap_or(program).to_owned()
}

/// What the tests of one guest printed, and how they ended.
#[derive(Default)]
struct Results {
    programs: Vec<String>,
    taps: BTreeMap<String, Tap>,
    ended: BTreeMap<String, Status>,
}

impl Results {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Tap { test, line } => self.taps.entry(test.clone()).or_default().line(line),
            Event::TestDone { test, status } => {
                self.ended.insert(test.clone(), *status);
            }
            _ => {}
        }
    }

    /// How many cases of KUnit and how many selftests passed, if all did.
    fn judge(&self, suites: &[String]) -> Result<(usize, usize)> {
        let passed = |test: &str| match self.taps.get(test) {
            Some(tap) => tap.judge().with_context(|| test.to_owned()),
            None => bail!("{test}: did not run"),
        };
        let mut cases = 0;
        for suite in suites {
            cases += passed(&format!("kunit/{suite}"))?;
        }
        let mut tests = 0;
        for program in &self.programs {
            tests += passed(program)?;
            match self.ended.get(program) {
                Some(Status::Exit(0)) => {}
                status => bail!("{program}: all its tests passed, but it ended with {status:?}"),
            }
        }
        Ok((cases, tests))
    }
}

/// The output of one test in TAP. KUnit puts a suite into a level of its own inside that of the
/// whole, indented; anything deeper is a part of one case.
#[derive(Debug, Default)]
struct Tap {
    levels: [Level; 2],
}

#[derive(Debug, Default)]
struct Level {
    planned: Option<usize>,
    passed: usize,
    /// The lines of those that failed or were skipped.
    bad: Vec<String>,
}

impl Tap {
    fn line(&mut self, line: &str) {
        let (level, text) = match line.strip_prefix("    ") {
            None => (&mut self.levels[0], line),
            Some(inner) => (&mut self.levels[1], inner),
        };
        if let Some(planned) = text.strip_prefix("1..") {
            level.planned = planned.trim().parse().ok();
        } else if text.starts_with("not ok ") || is_skip(text) {
            level.bad.push(text.trim().to_owned());
        } else if text.starts_with("ok ") {
            level.passed += 1;
        }
    }

    /// How many tests passed, if that is all that were planned, and there were some.
    fn judge(&self) -> Result<usize> {
        let mut tests = 0;
        // The inner one first: it says more.
        for level in self.levels.iter().rev() {
            ensure!(level.bad.is_empty(), "{}", level.bad.join("; "));
            let Some(planned) = level.planned else {
                // Only KUnit has an inner level.
                ensure!(level.passed == 0 && tests == 0, "it printed no plan");
                continue;
            };
            ensure!(planned > 0, "it planned no test");
            ensure!(
                level.passed == planned,
                "{} of {planned} planned tests ran",
                level.passed
            );
            tests = tests.max(planned);
        }
        ensure!(tests > 0, "it printed no plan");
        Ok(tests)
    }
}

/// Whether a test was skipped: a directive after `#`, in any case.
fn is_skip(line: &str) -> bool {
    line.starts_with("ok ")
        && line.split_once('#').is_some_and(|(_, directive)| {
            let directive = directive.trim_start().as_bytes();
            directive.len() >= 4 && directive[..4].eq_ignore_ascii_case(b"skip")
        })
}

/// The names of the series' KUnit suites; each of [`OUTSIDE`] has one, and its folder some.
fn suites(tree: &Path) -> Result<Vec<String>> {
    let mut suites = Vec::new();
    let outside = OUTSIDE.iter().map(|file| tree.join(file));
    for file in files(&tree.join(SERIES))?.into_iter().chain(outside) {
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let text = String::from_utf8_lossy(&text);
        suites.extend(text.split("kunit_tests(").skip(1).filter_map(|rest| {
            let (name, _) = rest.split_once(')')?;
            Some(name.to_owned())
        }));
    }
    ensure!(
        suites.len() > OUTSIDE.len(),
        "the composed tree lacks KUnit suites of the series"
    );
    Ok(suites)
}

/// The files of a folder, without those below it, in order.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Builds the selftests, static, if the cache has not got them, and returns them in order.
fn build(paths: &Paths, tree: &Path) -> Result<Vec<PathBuf>> {
    let source = tree.join(OURS);
    let clang = format!("clang{LLVM}");
    let mut key = Sha256::new();
    key.update(exec::output(Command::new(clang).arg("--version"))?);
    let shared = ["lib.mk", "kselftest.h", "kselftest_harness.h"];
    let shared = shared.map(|name| tree.join(SELFTESTS).join(name));
    for file in files(&source)?.iter().chain(&shared) {
        key.update(fs::read(file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    let key = format!("{:x}", key.finalize());
    let guest = paths.cache_dir("guest")?;
    let dir = guest.join(format!("selftests-{}", &key[..16]));
    if !dir.is_dir() {
        let temp = tempfile::Builder::new()
            .prefix(".tmp")
            .tempdir_in(&guest)
            .context("cannot make a folder in the cache")?;
        let log = paths.out.join("log/selftests-build.log");
        let _ = fs::remove_file(&log);
        let mut make = Command::new("make");
        make.arg("-C")
            .arg(&source)
            .arg(format!("LLVM={LLVM}"))
            .arg(format!("OUTPUT={}", temp.path().display()))
            .args(["USERCFLAGS=-Werror", "USERLDFLAGS=-static"]);
        exec::logged(&mut make, &log, |_| {}).context("cannot build the selftests")?;
        fs::rename(temp.keep(), &dir)?;
    }
    files(&dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> Result<usize> {
        let mut tap = Tap::default();
        text.lines().for_each(|line| tap.line(line));
        tap.judge()
    }

    const GOOD: &str = "TAP version 13\n1..2\n#  RUN   a.one ...\nok 1 a.one\nok 2 a.two\n\
        # Totals: pass:2 fail:0 xfail:0 xpass:0 skip:0 error:0\n";
    const KUNIT: &str = "KTAP version 1\n1..1\n    KTAP version 1\n    # Subtest: s\n    1..2\n\
        \x20   ok 1 one\n        # one: a line\n        ok 1 deeper\n    ok 2 two\n\
        # s: pass:2 fail:0 skip:0 total:2\nok 1 s\n";

    #[test]
    fn what_passes() {
        assert_eq!(judge(GOOD).unwrap(), 2);
        assert_eq!(judge(KUNIT).unwrap(), 2);
        assert_eq!(judge("1..1\nok 1 skips # and more\n").unwrap(), 1);
    }

    #[test]
    fn what_fails() {
        for (text, cause) in [
            (String::new(), "it printed no plan"),
            (GOOD.replace("1..2", "#"), "it printed no plan"),
            (KUNIT.replace("    1..2", "    #"), "it printed no plan"),
            (GOOD.replace("ok 2", "not ok 2"), "not ok 2 a.two"),
            (KUNIT.replace("ok 2", "not ok 2"), "not ok 2 two"),
            (KUNIT.replace("\nok 1 s", "\nnot ok 1 s"), "not ok 1 s"),
            (GOOD.replace("ok 2 a.two", ""), "1 of 2 planned tests ran"),
            (KUNIT.replace("ok 1 one", ""), "1 of 2 planned tests ran"),
            (KUNIT.replace("\nok 1 s", ""), "0 of 1 planned tests ran"),
            (GOOD.replace("1..2", "1..1"), "2 of 1 planned tests ran"),
            ("1..0\n".to_owned(), "it planned no test"),
            ("1..0 # SKIP no reason\n".to_owned(), "it printed no plan"),
            (
                "1..2\nok 1 a # SKIP needs root\nok 2 b # skip\n".to_owned(),
                "ok 1 a # SKIP needs root; ok 2 b # skip",
            ),
        ] {
            let error = judge(&text).unwrap_err().to_string();
            assert_eq!(error, cause, "{text}");
        }
    }

    #[test]
    fn all_must_run_and_end_well() {
        let mut results = Results {
            programs: vec!["toggle".to_owned()],
            ..Results::default()
        };
        let suites = ["s".to_owned()];
        let tell = |results: &mut Results, test: &str, text: &str| {
            for line in text.lines() {
                let (test, line) = (test.to_owned(), line.to_owned());
                results.event(&Event::Tap { test, line });
            }
        };
        let error = |results: &Results| format!("{:#}", results.judge(&suites).unwrap_err());
        assert_eq!(error(&results), "kunit/s: did not run");
        tell(&mut results, "kunit/s", KUNIT);
        assert_eq!(error(&results), "toggle: did not run");
        tell(&mut results, "toggle", GOOD);
        assert!(error(&results).ends_with("it ended with None"));
        let end = |status| Event::TestDone {
            test: "toggle".to_owned(),
            status,
        };
        results.event(&end(Status::Signal(11)));
        assert!(error(&results).ends_with("it ended with Some(Signal(11))"));
        results.event(&end(Status::Exit(0)));
        assert_eq!(results.judge(&suites).unwrap(), (2, 2));
        tell(&mut results, "toggle", "not ok 3 late");
        assert_eq!(error(&results), "toggle: not ok 3 late");
    }

    #[test]
    fn suites_are_found_in_the_source() {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("kernel/sched/llc/a.rs", "");
        write(OUTSIDE[0], "#[macros::kunit_tests(one)]\nmod tests {}\n");
        assert!(suites(tree.path()).is_err());
        write(OUTSIDE[1], "#[kunit_tests(two)]\nmod tests {}\n");
        assert!(suites(tree.path()).is_err());
        write("kernel/sched/llc/a.rs", "#[kunit_tests(llc)]\n");
        assert_eq!(suites(tree.path()).unwrap(), ["llc", "one", "two"]);
    }
}
