// SPDX-License-Identifier: GPL-2.0

//! Runs workloads with features off and on in many boots of a simulated machine, which can be
//! stopped and resumed, and reports what is there.
//!
//! A run has a folder. It holds `run.json`, what was asked for, and for each boot that is done a
//! file of the guest's events, one a line, and one of its kernel log. A boot is done as a whole or
//! not at all, and does not depend on the others, so a resumed run ends with the bytes of one that
//! was not stopped.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread::available_parallelism,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};
use sched_ab_protocol::{Event, Hello, Plan, Seeds};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    compare::{Clock, Collect, Features, progress},
    dmesg,
    guest::{Accel, Topo, Vm},
    initramfs,
    kbuild::{self, Flavor},
    paths::Paths,
    progress::Step,
    report::{Measured, Report, Setting, Topology, timestamp},
    sim::Machine,
    spread::{lock, spread},
    stats::MAX_POOLED,
    toolchain,
    workload::{self, Case, DEFAULT},
};

/// Rounds of a boot: its start costs as much as some of them, and a stopped run loses as many.
const ROUNDS_A_BOOT: u32 = 10;
/// More would be more samples of a pair than the exact test takes.
const MAX_ROUNDS: i64 = MAX_POOLED as i64 / 2;
/// A run that takes this long, in seconds of the guest, hangs: they take milliseconds.
const RUN_TIMEOUT_S: u64 = 20;
/// How long a guest may be silent: its seconds take minutes, and it has few to run in.
const QUIET: Duration = Duration::from_secs(1800);
/// A machine whose CPUs differ by more, in percent, measures their speeds and not the scheduler.
const MAX_SPREAD_PCT: f64 = 10.0;

/// What to run.
#[derive(Args, Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Options {
    /// Scheduler features: all off, then each combination of them on
    #[arg(long, env = "FEATURES", default_value = "SHARED_RUNQ")]
    #[serde(with = "text")]
    features: Features,
    /// What runs in the guest: names with commas between, or `hackbench -g 3`
    #[arg(long, env = "WORKLOADS", default_value = DEFAULT)]
    workloads: String,
    /// How many times each side runs, each with a seed of its own
    #[arg(long, env = "ROUNDS", default_value_t = 20, value_parser = value_parser!(u32).range(1..=MAX_ROUNDS))]
    rounds: u32,
    /// The CPUs that are measured: LLCs x cores x threads
    #[arg(long, env = "TOPO", default_value = "2x8x1")]
    #[serde(with = "text")]
    topo: Topo,
}

/// In JSON as on the command line.
mod text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'a, T: FromStr<Err: Display>, D: Deserializer<'a>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What was asked for, and of which kernel: `run.json`.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Asked {
    options: Options,
    /// SHA-256 of the kernel and of the guest's programs.
    image: String,
    programs: String,
}

/// Some rounds of a case in one boot.
#[derive(Clone, Debug)]
struct Boot {
    case: Case,
    first: u32,
    rounds: u32,
}

impl Boot {
    /// Those of `rounds` rounds of each case.
    fn all(cases: &[Case], rounds: u32) -> Vec<Self> {
        let boots = cases.iter().flat_map(|case| {
            let firsts = (1..=rounds).step_by(ROUNDS_A_BOOT as usize);
            firsts.map(move |first| Self {
                case: case.clone(),
                first,
                rounds: ROUNDS_A_BOOT.min(rounds + 1 - first),
            })
        });
        boots.collect()
    }

    /// The file of its events in a run's folder.
    fn events(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}-{}.jsonl", self.case.name, self.first))
    }
}

/// What the boots of a run have in common.
struct Lab<'a> {
    paths: &'a Paths,
    options: &'a Options,
    cases: Vec<Case>,
    qemu: PathBuf,
    image: PathBuf,
    archive: Vec<u8>,
}

impl<'a> Lab<'a> {
    /// Builds the kernel and what runs in the guest.
    fn new(
        paths: &'a Paths,
        options: &'a Options,
        kernel_src: Option<&Path>,
        jobs: Option<usize>,
    ) -> Result<Self> {
        let cases = Case::list(&options.workloads, options.topo.cpus())?;
        Machine::new(options.topo).check()?;
        let image = kbuild::image(paths, kernel_src, Flavor::Lab, jobs, |_| Ok(()))?.bzimage;
        let programs = workload::programs(paths, cases.iter().map(|case| case.workload))?;
        Ok(Self {
            paths,
            options,
            cases,
            qemu: toolchain::qemu(paths),
            image,
            archive: initramfs::archive(&initramfs::agent(paths)?, &programs)?,
        })
    }

    /// What identifies the run.
    fn asked(&self) -> Result<Asked> {
        Ok(Asked {
            options: self.options.clone(),
            image: format!("{:x}", Sha256::digest(fs::read(&self.image)?)),
            programs: format!("{:x}", Sha256::digest(&self.archive)),
        })
    }

    /// Does `boot` and keeps its files in `dir`; `on` sees each event.
    fn boot(&self, boot: &Boot, dir: &Path, mut on: impl FnMut(&Event)) -> Result<()> {
        let Options { features, topo, .. } = self.options;
        let plan = Plan::Compare {
            features: features.0.clone(),
            combos: features.combos(),
            rounds: boot.rounds,
            command: boot.case.workload.command(&boot.case.args),
            workload: boot.case.name.clone(),
            timeout_s: RUN_TIMEOUT_S,
            seeds: Some(Seeds {
                first: boot.first,
                cpus: Machine::new(*topo).measured(),
            }),
        };
        let events = boot.events(dir);
        let log = events.with_extension("dmesg");
        let mut vm = Vm::new(
            &self.qemu,
            &self.image,
            &self.archive,
            *topo,
            Accel::Sim,
            &log,
        );
        vm.quiet = QUIET;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        let mut collect = Collect::new(features, boot.case.workload, Clock::Wall);
        let mut speed = Speed::default();
        vm.run(&plan, |event| {
            let mut line = serde_json::to_vec(event)?;
            line.push(b'\n');
            file.write_all(&line)?;
            speed.event(event)?;
            collect.event(event)?;
            on(event);
            Ok(())
        })?;
        collect.complete(boot.rounds as usize)?;
        dmesg::check(self.paths, &log)?;
        file.persist(events)?;
        Ok(())
    }
}

/// Builds the lab's kernel and runs what is missing in `resume`, or a new run; prints and saves the
/// report, and returns the folder.
///
/// # Errors
///
/// When the options are wrong, a boot fails, or the machine's CPUs are not equally fast. Boots that
/// are done stay.
pub fn run(
    paths: &Paths,
    options: &Options,
    resume: Option<&Path>,
    kernel_src: Option<&Path>,
    jobs: Option<usize>,
) -> Result<PathBuf> {
    let begun = match resume {
        Some(dir) => Some((dir, read_asked(dir)?)),
        None => None,
    };
    let options = begun.as_ref().map_or(options, |(_, asked)| &asked.options);
    let lab = Lab::new(paths, options, kernel_src, jobs)?;
    let asked = lab.asked()?;
    let dir = match &begun {
        Some((dir, before)) => {
            ensure!(
                *before == asked,
                "{} was begun with another kernel or other programs",
                dir.display()
            );
            dir.to_path_buf()
        }
        None => {
            let dir = paths.out.join("lab").join(timestamp());
            fs::create_dir_all(&dir)?;
            let json = serde_json::to_string_pretty(&asked)? + "\n";
            fs::write(dir.join("run.json"), json)?;
            dir
        }
    };
    let missing: Vec<_> = Boot::all(&lab.cases, options.rounds)
        .into_iter()
        .filter(|boot| !boot.events(&dir).exists())
        .collect();
    let sides = options.features.combos().len();
    let runs: usize = missing
        .iter()
        .map(|boot| sides * (boot.rounds as usize + 1))
        .sum();
    let shared = Mutex::new((Step::new("lab", runs as u64), 0));
    lock(&shared).0.at(0, "booting");
    spread(jobs.unwrap_or_else(kbuild::cpus), &missing, |_, boot| {
        lab.boot(boot, &dir, |event| {
            if let Some(message) = progress(event) {
                let (step, done) = &mut *lock(&shared);
                *done += 1;
                step.at(*done, &format!("{}: {message}", boot.case.name));
            }
        })
        .with_context(|| format!("what is done is in {}", dir.display()))
    })?;
    let (step, _) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    step.done(&format!("{} rounds", options.rounds));
    let text = report(&dir)?.text;
    print!("{text}");
    eprintln!("\nsaved in {}", dir.display());
    Ok(dir)
}

/// Two small boots, side by side, must give the same bytes, from CPUs of one speed and with the
/// features at work.
///
/// # Errors
///
/// When they do not.
pub fn smoke(paths: &Paths, kernel_src: Option<&Path>, jobs: Option<usize>) -> Result<String> {
    let options = Options {
        features: "SHARED_RUNQ SIS_FILTER".parse()?,
        workloads: "hackbench -g 2 -f 5 -l 20".to_owned(),
        rounds: 2,
        topo: "1x8x1".parse()?,
    };
    let lab = Lab::new(paths, &options, kernel_src, jobs)?;
    let asked = serde_json::to_string(&lab.asked()?)?;
    let boots = Boot::all(&lab.cases, options.rounds);
    let boot = boots.first().context("there is no boot")?;
    let dirs = ["lab/smoke-1", "lab/smoke-2"].map(|name| paths.out.join(name));
    spread(dirs.len(), &dirs, |_, dir| {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("run.json"), &asked)?;
        lab.boot(boot, dir, |_| {})
    })?;
    for kind in ["jsonl", "dmesg"] {
        let files = dirs
            .each_ref()
            .map(|dir| boot.events(dir).with_extension(kind));
        let [first, second] = files.each_ref().map(fs::read);
        ensure!(
            first? == second?,
            "two boots gave different bytes: {} and {}",
            files[0].display(),
            files[1].display()
        );
    }
    let Reported { report, spread, .. } = report(&dirs[0])?;
    report.check_counters()?;
    Ok(format!(
        "two boots, the same bytes; CPUs within {spread:.1} %"
    ))
}

/// What [`report`] found.
pub struct Reported {
    /// For people.
    pub text: String,
    /// For programs.
    pub report: Report,
    /// By how much the slowest CPU is slower than the fastest, in percent.
    pub spread: f64,
}

/// What the boots that are done in a run's folder gave.
struct Results {
    asked: Asked,
    setting: Setting,
    spread: f64,
    measured: Vec<Measured>,
    /// How many boots there are once the run is done.
    boots: usize,
}

impl Results {
    fn read(dir: &Path) -> Result<Self> {
        let asked = read_asked(dir)?;
        let options = &asked.options;
        let mut speed = Speed::default();
        let mut hello: Option<Hello> = None;
        let mut measured = Vec::new();
        let cases = Case::list(&options.workloads, options.topo.cpus())?;
        let all = Boot::all(&cases, options.rounds);
        let is_done = |boot: &&Boot| boot.events(dir).exists();
        let done: Vec<_> = all.iter().filter(is_done).collect();
        for boots in done.chunk_by(|a, b| a.case.name == b.case.name) {
            let Case { workload, args, .. } = &boots[0].case;
            let mut collect = Collect::new(&options.features, workload, Clock::Wall);
            for boot in boots {
                for event in read_events(&boot.events(dir))? {
                    speed.event(&event)?;
                    collect.event(&event)?;
                    if let Event::Hello(said) = event {
                        hello = Some(said);
                    }
                }
            }
            measured.push(Measured::new(workload, args, collect.sides));
        }
        let hello = hello.with_context(|| format!("no boot is done in {}", dir.display()))?;
        let spread = speed.spread_pct()?;
        let setting = Setting {
            kernel: hello.release.clone(),
            accel: Accel::Sim.name().to_owned(),
            boots: done.len(),
            speed_spread_pct: Some(spread),
            host_cpus: available_parallelism()?.get(),
            topology: Topology::measured(&hello, options.topo),
            features: options.features.0.clone(),
        };
        Ok(Self {
            setting,
            spread,
            measured,
            boots: all.len(),
            asked,
        })
    }
}

/// What the boots that are done in `dir` say together: writes `report.txt`, `report.json` and
/// `report.svg` there.
///
/// # Errors
///
/// When there are none, or a file is damaged.
pub fn report(dir: &Path) -> Result<Reported> {
    let Results {
        asked: Asked { options, .. },
        setting,
        spread,
        measured,
        boots,
    } = Results::read(dir)?;
    let done = setting.boots;
    let make = format!(
        "make lab FEATURES='{}' WORKLOADS={} ROUNDS={} TOPO={}",
        options.features,
        shell_words::quote(&options.workloads),
        options.rounds,
        options.topo,
    );
    let report = Report::new(setting, &measured, vec![make])?;
    let mut text = report.text();
    if done < boots {
        text.push_str(&format!(
            "\nThe run was stopped: {done} of {boots} boots are done.\n"
        ));
    }
    fs::write(dir.join("report.txt"), &text)?;
    fs::write(dir.join("report.json"), report.json()?)?;
    fs::write(dir.join("report.svg"), report.svg()?)?;
    Ok(Reported {
        text,
        report,
        spread,
    })
}

/// Compares each side of two runs, of two kernels for example, and returns the text. The first
/// is the base, the other one is called as its folder.
///
/// # Errors
///
/// When they have no workload and side in common, or were not run on the same machine.
pub fn compare(dirs: [&Path; 2]) -> Result<String> {
    let [first, second] = [Results::read(dirs[0])?, Results::read(dirs[1])?];
    ensure!(
        first.setting.topology == second.setting.topology,
        "the runs are of different machines: {} and {}",
        first.asked.options.topo,
        second.asked.options.topo
    );
    let name = |dir: &Path| match dir.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => dir.display().to_string(),
    };
    let other = name(dirs[1]);
    let pairs = first.measured.iter().flat_map(|base| {
        let others = second.measured.iter();
        others.flat_map(|with| base.against(with, &other))
    });
    let measured: Vec<_> = pairs.collect();
    ensure!(
        !measured.is_empty(),
        "the runs have no workload and side in common"
    );
    let boots = first.setting.boots + second.setting.boots;
    let setting = Setting {
        boots,
        speed_spread_pct: Some(first.spread.max(second.spread)),
        ..first.setting
    };
    let report = Report::new(setting, &measured, Vec::new())?;
    Ok(format!(
        "base is {} ({}), the other {} ({})\n\n{}",
        name(dirs[0]),
        &first.asked.image[..12.min(first.asked.image.len())],
        name(dirs[1]),
        &second.asked.image[..12.min(second.asked.image.len())],
        report.text()
    ))
}

fn read_asked(dir: &Path) -> Result<Asked> {
    let path = dir.join("run.json");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("no run was begun in {}", dir.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
}

fn read_events(path: &Path) -> Result<Vec<Event>> {
    let damaged = || format!("{} is damaged: remove it and resume", path.display());
    let lines = BufReader::new(File::open(path)?).lines();
    let events = lines
        .map(|line| Ok(serde_json::from_str(&line?)?))
        .collect::<Result<Vec<_>>>()
        .with_context(damaged)?;
    ensure!(events.last() == Some(&Event::Done), damaged());
    Ok(events)
}

/// How fast the CPUs of a machine are.
#[derive(Debug, Default)]
struct Speed {
    nanoseconds: Vec<u64>,
}

impl Speed {
    /// Takes an event, and refuses the machine with the first one after the speeds if these are too
    /// far apart.
    fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Speed { nanoseconds } => self.nanoseconds.extend(nanoseconds),
            Event::Warmup { .. } => {
                let spread = self.spread_pct()?;
                ensure!(
                    spread <= MAX_SPREAD_PCT,
                    "the slowest CPU is {spread:.1} % slower than the fastest, at most \
                     {MAX_SPREAD_PCT} % are allowed"
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// By how much the slowest CPU is slower than the fastest, however many are busy, in percent.
    fn spread_pct(&self) -> Result<f64> {
        match (self.nanoseconds.iter().min(), self.nanoseconds.iter().max()) {
            (Some(&min), Some(&max)) if min > 0 => Ok(100.0 * (max - min) as f64 / min as f64),
            _ => bail!("the guest did not measure its CPUs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sched_ab_protocol::Sample;

    use super::*;

    #[test]
    fn each_round_is_in_one_boot() {
        let boots = |rounds| {
            let cases = Case::list("udp-half,tcp-half", 8).unwrap();
            let boots = Boot::all(&cases, rounds);
            let of = |boot: &Boot| (boot.case.name.clone(), boot.first, boot.rounds);
            boots.iter().map(of).collect::<Vec<_>>()
        };
        let (udp, tcp) = (|| "udp-half".to_owned(), || "tcp-half".to_owned());
        assert_eq!(boots(1), [(udp(), 1, 1), (tcp(), 1, 1)]);
        assert_eq!(boots(10), [(udp(), 1, 10), (tcp(), 1, 10)]);
        assert_eq!(
            boots(25)[..4],
            [
                (udp(), 1, 10),
                (udp(), 11, 10),
                (udp(), 21, 5),
                (tcp(), 1, 10)
            ]
        );
    }

    #[test]
    fn unequal_cpus_are_refused() {
        let mut speed = Speed::default();
        let warm_up = Event::Warmup {
            combo: Vec::new(),
            wall: 1.0,
        };
        let error = speed.event(&warm_up).unwrap_err().to_string();
        assert!(error.contains("did not measure"));
        for (nanoseconds, spread) in [(vec![1000], 0.0), (vec![1020, 1100], 10.0)] {
            speed.event(&Event::Speed { nanoseconds }).unwrap();
            assert_eq!(speed.spread_pct().unwrap(), spread);
            speed.event(&warm_up).unwrap();
        }
        let nanoseconds = vec![990];
        speed.event(&Event::Speed { nanoseconds }).unwrap();
        let error = speed.event(&warm_up).unwrap_err().to_string();
        assert!(error.contains("11.1 % slower"), "{error}");
    }

    /// A folder in which the boots of `firsts` are done.
    fn folder(firsts: &[u32]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            features: "A".parse().unwrap(),
            workloads: "hackbench -g 1".to_owned(),
            rounds: 20,
            topo: "1x4x1".parse().unwrap(),
        };
        let asked = Asked {
            options,
            image: String::new(),
            programs: String::new(),
        };
        let json = serde_json::to_string(&asked).unwrap();
        fs::write(dir.path().join("run.json"), json).unwrap();
        for &first in firsts {
            let mut events = vec![
                Event::Hello(Hello {
                    release: "7.3.4".to_owned(),
                    cpus: 6,
                    llcs: vec!["0-1".to_owned(), "2-5".to_owned()],
                    cores: 6,
                    threads: 1,
                    features: "NO_A".to_owned(),
                }),
                Event::Speed {
                    nanoseconds: vec![1000, 1050],
                },
            ];
            for round in first..first + ROUNDS_A_BOOT {
                for (combo, wall) in [(vec![], 2.0), (vec!["A".to_owned()], 1.5)] {
                    events.push(Event::Sample(Sample {
                        round,
                        combo,
                        value: 1.0,
                        wall: wall + f64::from(round) / 1000.0,
                        output: "Time: 1.000\n".to_owned(),
                    }));
                }
            }
            events.push(Event::Done);
            let lines = events
                .iter()
                .map(|e| serde_json::to_string(e).unwrap() + "\n");
            let path = dir.path().join(format!("hackbench_-g_1-{first}.jsonl"));
            fs::write(path, lines.collect::<String>()).unwrap();
        }
        dir
    }

    fn failure(dir: &Path) -> String {
        format!("{:#}", report(dir).err().unwrap())
    }

    #[test]
    fn what_is_done_is_reported() {
        let error = failure(folder(&[]).path());
        assert!(error.contains("no boot is done"), "{error}");
        let dir = folder(&[11]);
        let text = report(dir.path()).unwrap().text;
        for part in [
            "1 LLC x 4 cores x 1 thread = 4 vCPUs, by LLC: 2-5",
            "10 pairs, one boot",
            "5.0 % slower",
            "1.5155 *  24.8",
            "stopped: 1 of 2 boots are done",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(
            fs::read_to_string(dir.path().join("report.txt")).unwrap(),
            text
        );
        let text = report(folder(&[1, 11]).path()).unwrap().text;
        assert!(text.contains("20 pairs, 2 boots") && !text.contains("stopped"));
    }

    /// A boot of one round of `A` whose QEMU prints `events` and ends; the files in the folder then.
    fn boot(events: &[&str], dmesg: &str) -> (Result<()>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        fs::create_dir(&out).unwrap();
        let qemu = dir.path().join("qemu");
        let script = format!(
            "#!/bin/sh\nfor arg; do case $arg in file,id=console,path=*) log=${{arg#*path=}};; esac; \
             done\necho '{dmesg}' >\"$log\"\ncat <<'END'\n{}\nEND\n",
            events.join("\n")
        );
        fs::write(&qemu, script).unwrap();
        fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).unwrap();
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let paths = Paths::new(&repo, dir.path());
        let options = Options {
            features: "A".parse().unwrap(),
            workloads: "hackbench -g 1".to_owned(),
            rounds: 1,
            topo: "1x2x1".parse().unwrap(),
        };
        let lab = Lab {
            paths: &paths,
            options: &options,
            cases: Case::list(&options.workloads, 2).unwrap(),
            image: qemu.clone(),
            qemu,
            archive: Vec::new(),
        };
        let boots = Boot::all(&lab.cases, 1);
        let result = lab.boot(&boots[0], &out, |_| {});
        let files = fs::read_dir(&out).unwrap();
        let mut names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        (result, names)
    }

    #[test]
    fn a_boot_is_done_as_a_whole_or_not_at_all() {
        let hello = r#"{"event":"hello","release":"7","cpus":4,"llcs":["0-1","2-3"],"cores":4,"threads":1,"features":"NO_A"}"#;
        let speed = r#"{"event":"speed","nanoseconds":[1000,1001]}"#;
        let uneven = r#"{"event":"speed","nanoseconds":[1000,1200]}"#;
        let warm_up = r#"{"event":"warmup","combo":[],"wall":0.5}"#;
        let base =
            r#"{"event":"sample","round":1,"combo":[],"value":1,"wall":0.5,"output":"Time: 0.5"}"#;
        let with = r#"{"event":"sample","round":1,"combo":["A"],"value":1,"wall":0.5,"output":"Time: 0.5"}"#;
        let silent =
            r#"{"event":"sample","round":1,"combo":[],"value":1,"wall":0.5,"output":"oops"}"#;
        let done = r#"{"event":"done"}"#;
        let (result, files) = boot(&[hello, speed, warm_up, base, with, done], "fine");
        result.unwrap();
        assert_eq!(files, ["hackbench_-g_1-1.dmesg", "hackbench_-g_1-1.jsonl"]);
        for (events, dmesg, cause) in [
            (&[hello, uneven, warm_up][..], "fine", "20.0 % slower"),
            (&[hello, warm_up], "fine", "did not measure its CPUs"),
            (&[hello, speed, base, done], "fine", "0 results of A, not 1"),
            (&[hello, speed, silent], "fine", "printed: oops"),
            (
                &[hello, speed, base],
                "fine",
                "ended before its plan was done",
            ),
            (&[hello, "garbage"], "fine", "sent garbage"),
            (
                &[hello, speed, base, with, done],
                "BUG: soft lockup",
                "the guest's kernel complains",
            ),
        ] {
            let (result, files) = boot(events, dmesg);
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.contains(cause), "{cause}: {error}");
            assert_eq!(files, ["hackbench_-g_1-1.dmesg"], "{cause}");
        }
    }

    #[test]
    fn runs_are_compared_side_by_side() {
        let (first, second) = (folder(&[1]), folder(&[1, 11]));
        let text = compare([first.path(), second.path()]).unwrap();
        for part in [
            "base is ",
            "hackbench -g 1, base ",
            "hackbench -g 1, A ",
            "3 boots",
            "after Holm over 2 rows",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("%*"), "{text}");
        let other = folder(&[1]);
        let path = other.path().join("run.json");
        let json = fs::read_to_string(&path).unwrap();
        fs::write(&path, json.replace("1x4x1", "1x5x1")).unwrap();
        let error = compare([first.path(), other.path()]).unwrap_err();
        assert!(error.to_string().contains("1x4x1 and 1x5x1"), "{error}");
        fs::write(&path, json.replace("hackbench -g 1", "hogs")).unwrap();
        assert!(compare([first.path(), other.path()]).is_err());
    }

    #[test]
    fn damaged_folders_are_named() {
        let empty = tempfile::tempdir().unwrap();
        let error = failure(empty.path());
        assert!(error.contains("no run was begun in"), "{error}");
        let dir = folder(&[1]);
        let path = dir.path().join("hackbench_-g_1-1.jsonl");
        let whole = fs::read_to_string(&path).unwrap();
        let done = whole.rfind('{').unwrap();
        for text in [&whole[..done], &whole[..done - 9], "", "garbage\n"] {
            fs::write(&path, text).unwrap();
            let error = failure(dir.path());
            assert!(
                error.contains("hackbench_-g_1-1.jsonl is damaged"),
                "{error}"
            );
        }
        fs::write(dir.path().join("run.json"), "{}").unwrap();
        let error = failure(dir.path());
        assert!(error.contains("run.json is damaged"), "{error}");
    }
}
