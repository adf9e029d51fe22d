// SPDX-License-Identifier: GPL-2.0

//! What a comparison found: the table, `report.json`, and the folder that holds them.
//!
//! `docs/report.md` says how to read them, `docs/report.schema.json` is the schema of the JSON.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail, ensure};
use sched_ab_protocol::Hello;
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{
    stats::{ALPHA, Summary, fewest_pairs, holm, rank_sum, smallest_p},
    workload::Workload,
};

/// The version of the JSON.
const SCHEMA: u32 = 1;

/// The name of the side with all features under test off.
pub const BASE: &str = "base";

/// So many sides are put next to the base in a table; further ones follow below.
const COLUMNS: usize = 3;

/// A coefficient of variation above this, in percent, gets a warning.
const NOISY_PCT: f64 = 5.0;

/// Where and how a comparison ran.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The release of the kernel.
    pub kernel: String,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// The CPUs of the host that QEMU may use.
    pub host_cpus: usize,
    /// The CPUs as the guest sees them.
    pub topology: Topology,
    /// The features under test.
    pub features: Vec<String>,
}

/// The CPUs as the guest sees them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// Last-level caches.
    pub llcs: usize,
    /// Cores of each.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
    /// The online CPUs in all.
    pub cpus: u32,
    /// The CPU list of each last-level cache.
    pub llc_cpus: Vec<String>,
}

impl From<&Hello> for Topology {
    fn from(hello: &Hello) -> Self {
        let llcs = hello.llcs.len();
        Self {
            llcs,
            cores: hello.cores / llcs.max(1) as u32,
            threads: hello.threads,
            cpus: hello.cpus,
            llc_cpus: hello.llcs.clone(),
        }
    }
}

/// Kernel counters by name.
pub type Counters = BTreeMap<String, u64>;

/// What one side of a comparison gave.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// The features that were on, [`BASE`] when none.
    pub name: String,
    /// The results in the order of the rounds.
    pub samples: Vec<f64>,
    /// By how much the kernel's counters rose in all counted runs; empty if it has none.
    pub counters: Counters,
}

/// A comparison of one workload.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    #[serde(flatten)]
    setting: Setting,
    rows: Vec<Row>,
    commands: Vec<String>,
}

/// One combination of features against the base.
#[derive(Debug, Serialize)]
struct Row {
    workload: &'static str,
    args: String,
    unit: &'static str,
    better: &'static str,
    samples: Pair<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Pair<Counters>>,
    change_pct: f64,
    p: f64,
    significant: bool,
    #[serde(skip)]
    summary: Pair<Summary>,
}

/// Something of the base and of one combination; in JSON a map with the base first.
#[derive(Debug)]
struct Pair<T> {
    name: String,
    base: T,
    with: T,
}

impl<T: Serialize> Serialize for Pair<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(BASE, &self.base)?;
        map.serialize_entry(&self.name, &self.with)?;
        map.end()
    }
}

/// How much better `with` is than `base`, in percent, where lower is better.
fn gain_pct(base: f64, with: f64) -> f64 {
    100.0 * (base - with) / base
}

impl Report {
    /// Compares each of `sides` with `base`; `commands` repeat the measurement.
    ///
    /// # Errors
    ///
    /// When samples are missing, not numbers, or too many for an exact test.
    pub fn new(
        setting: Setting,
        workload: &'static Workload,
        args: &[String],
        base: &Side,
        sides: &[Side],
        commands: Vec<String>,
    ) -> Result<Self> {
        let base_summary = Summary::new(&base.samples)?;
        ensure!(base_summary.median > 0.0, "the base took no time");
        let p = sides
            .iter()
            .map(|side| rank_sum(&base.samples, &side.samples));
        let p = holm(&p.collect::<Result<Vec<_>>>()?);
        let mut rows = Vec::new();
        for (side, p) in sides.iter().zip(p) {
            let summary = Pair::new(&side.name, base_summary, Summary::new(&side.samples)?);
            rows.push(Row {
                workload: workload.name,
                args: shell_words::join(args),
                unit: workload.unit,
                better: "lower",
                samples: Pair::new(&side.name, base.samples.clone(), side.samples.clone()),
                counters: (!side.counters.is_empty())
                    .then(|| Pair::new(&side.name, base.counters.clone(), side.counters.clone())),
                change_pct: gain_pct(summary.base.median, summary.with.median),
                p,
                significant: p <= ALPHA,
                summary,
            });
        }
        Ok(Self {
            schema: SCHEMA,
            setting,
            rows,
            commands,
        })
    }

    /// Checks that the features were off on the base and at work on each other side, as far as
    /// the kernel's counters tell.
    ///
    /// # Errors
    ///
    /// When a counter rose on the base, or none did on another side, or there are none.
    pub fn check_counters(&self) -> Result<()> {
        for row in &self.rows {
            let Pair { name, base, with } = row
                .counters
                .as_ref()
                .context("the kernel has no counters")?;
            if let Some((counter, _)) = base.iter().find(|&(_, &count)| count > 0) {
                bail!("the counter {counter} rose with the features off");
            }
            ensure!(
                with.values().any(|&count| count > 0),
                "no counter rose with {name}"
            );
        }
        Ok(())
    }

    /// The JSON, as `docs/report.schema.json` has it.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The table, in the form of mmtests' `compare-mmtests`.
    pub fn text(&self) -> String {
        let mut text = self.head();
        for rows in self.rows.chunks(COLUMNS) {
            text += "\n";
            text += &table(rows);
        }
        for rows in self.rows.chunks(COLUMNS) {
            text += &counters(rows);
        }
        text
    }

    fn head(&self) -> String {
        let Setting {
            kernel,
            accel,
            host_cpus,
            topology,
            features,
        } = &self.setting;
        let Topology {
            llcs,
            cores,
            threads,
            cpus,
            llc_cpus,
        } = topology;
        let pairs = self.rows.first().map_or(0, |row| row.samples.base.len());
        let mut lines = vec![
            format!("{} off and on", features.join(", ")),
            String::new(),
            format!("kernel  {kernel}"),
            format!("accel   {}", accel.to_uppercase()),
            format!(
                "guest   {} x {} x {} = {}, by LLC: {}",
                plural(*llcs, "LLC"),
                plural(*cores as usize, "core"),
                plural(*threads as usize, "thread"),
                plural(*cpus as usize, "vCPU"),
                llc_cpus.join(" "),
            ),
            format!("host    {}", plural(*host_cpus, "core")),
            format!(
                "runs    {}, one boot, sides in turn, after one uncounted run of each side",
                plural(pairs, "pair")
            ),
            String::new(),
        ];
        if *cpus as usize > *host_cpus {
            lines.push(format!(
                "{} on {}: times then measure total work, not parallel speed.",
                plural(*cpus as usize, "vCPU"),
                plural(*host_cpus, "host core"),
            ));
        }
        let rows = self.rows.len();
        if rows as f64 * smallest_p(pairs, pairs) > ALPHA {
            lines.push(format!(
                "With {} of {} no significance is possible: it takes {} pairs.",
                plural(rows, "row"),
                plural(pairs, "pair"),
                fewest_pairs(rows),
            ));
        }
        let cv = |row: &Row| [row.summary.base.cv_pct, row.summary.with.cv_pct];
        if self
            .rows
            .iter()
            .flat_map(cv)
            .flatten()
            .any(|cv| cv > NOISY_PCT)
        {
            lines.push(format!(
                "A CoeffVar is above {NOISY_PCT} %: claim nothing from means, add rounds."
            ));
        }
        lines.push(format!(
            "Percent: positive = better than {BASE}. *...* = significant: exact rank-sum test, \
             two-sided,\np <= {ALPHA} after Holm over {}.",
            plural(rows, "row"),
        ));
        lines.join("\n") + "\n"
    }
}

impl<T> Pair<T> {
    fn new(name: &str, base: T, with: T) -> Self {
        let name = name.to_owned();
        Self { name, base, with }
    }
}

fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Lays out `lines` of cells: the first column to the left, the others to the right.
fn columns(lines: &[Vec<String>]) -> String {
    let mut text = String::new();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    for line in lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = width(column);
            // Writing to a string cannot fail.
            let _ = match column {
                0 => write!(row, "{cell:width$}"),
                _ => write!(row, "  {cell:>width$}"),
            };
        }
        text += row.trim_end();
        text += "\n";
    }
    text
}

/// The table of `rows`, which share the base.
fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let mut lines = vec![vec![String::new(), BASE.to_owned()]];
    lines[0].extend(rows.iter().map(|row| row.samples.name.clone()));
    for (label, value) in [
        ("Amean", (|summary| summary.mean) as fn(&Summary) -> f64),
        ("Median", |summary| summary.median),
    ] {
        let base = value(&first.summary.base);
        let mut line = vec![label.to_owned(), format!("{base:.4} ({:7.2}%)", 0.0)];
        for row in rows {
            let with = value(&row.summary.with);
            let (open, close) = if row.significant {
                ('*', '*')
            } else {
                ('(', ')')
            };
            let gain = gain_pct(base, with);
            line.push(format!("{with:.4} {open}{gain:7.2}%{close}"));
        }
        lines.push(line);
    }
    let cv = |cv: Option<f64>| cv.map_or("-".to_owned(), |cv| format!("{cv:.2}% "));
    let mut line = vec!["CoeffVar".to_owned(), cv(first.summary.base.cv_pct)];
    line.extend(rows.iter().map(|row| cv(row.summary.with.cv_pct)));
    lines.push(line);
    let mut line = vec!["p (Holm)".to_owned(), String::new()];
    line.extend(rows.iter().map(|row| format!("{:.4}  ", row.p)));
    lines.push(line);
    format!(
        "{} {}   ({}, {} is better)\n{}",
        first.workload,
        first.args,
        first.unit,
        first.better,
        columns(&lines)
    )
}

/// What two counters say together: a name, and which part of what it is. The terms are those of
/// the discussions of `select_idle_sibling()`.
const RATES: [(&str, &str, &str); 3] = [
    ("SIS success rate", "found", "searches"),
    ("SIS efficiency", "found", "visited"),
    ("SIS candidates left", "left", "candidates"),
];

/// The block of counters of `rows`, empty when the kernel has none.
fn counters(rows: &[Row]) -> String {
    let sides: Vec<_> = rows
        .iter()
        .filter_map(|row| row.counters.as_ref())
        .collect();
    let Some(first) = sides.first() else {
        return String::new();
    };
    let mut lines = vec![vec![String::new(), BASE.to_owned()]];
    lines[0].extend(sides.iter().map(|side| side.name.clone()));
    for name in first.with.keys() {
        let rose = |counters: &Counters| counters.get(name).is_some_and(|&count| count > 0);
        if !sides
            .iter()
            .any(|side| rose(&side.base) || rose(&side.with))
        {
            continue;
        }
        let of = |counters: &Counters| counters.get(name).copied().unwrap_or(0).to_string();
        let mut line = vec![name.clone(), of(&first.base)];
        line.extend(sides.iter().map(|side| of(&side.with)));
        lines.push(line);
    }
    for (name, part, whole) in RATES {
        let of = |counters: &Counters| match (counters.get(part), counters.get(whole)) {
            (Some(&part), Some(&whole)) if whole > 0 => {
                format!("{:.1}%", 100.0 * part as f64 / whole as f64)
            }
            _ => "-".to_owned(),
        };
        if sides
            .iter()
            .any(|side| side.with.get(whole).is_some_and(|&count| count > 0))
        {
            let mut line = vec![name.to_owned(), of(&first.base)];
            line.extend(sides.iter().map(|side| of(&side.with)));
            lines.push(line);
        }
    }
    format!("\nCounters, sum of the counted runs\n{}", columns(&lines))
}

/// The folder of one comparison's results. Until [`Folder::finish`] its name starts with
/// `unfinished-`, so that a log survives a failure under the name that an error gave, and a folder
/// without that prefix is complete.
#[derive(Debug)]
pub struct Folder {
    unfinished: PathBuf,
    finished: PathBuf,
}

impl Folder {
    /// Makes the folder in `parent`, named by the time in UTC.
    pub fn new(parent: &Path) -> Result<Self> {
        let time = humantime::format_rfc3339_seconds(SystemTime::now());
        let time = time.to_string().replace(':', "");
        let unfinished = parent.join(format!("unfinished-{time}"));
        fs::create_dir_all(parent)
            .and_then(|()| fs::create_dir(&unfinished))
            .with_context(|| format!("cannot make {}", unfinished.display()))?;
        Ok(Self {
            unfinished,
            finished: parent.join(time),
        })
    }

    /// Where the guest's log goes.
    pub fn dmesg(&self) -> PathBuf {
        self.unfinished.join("dmesg.txt")
    }

    /// `text` with the folder's present name replaced by its final one.
    pub fn final_name(&self, text: &str) -> String {
        text.replace(
            &*self.unfinished.to_string_lossy(),
            &self.finished.to_string_lossy(),
        )
    }

    /// Writes the report and gives the folder its final name, which is returned.
    ///
    /// # Errors
    ///
    /// When that fails; no part of the report is then left.
    pub fn finish(self, report: &Report) -> Result<PathBuf> {
        let files = ["report.txt", "report.json"].map(|name| self.unfinished.join(name));
        let write = || {
            fs::write(&files[0], report.text())?;
            fs::write(&files[1], report.json()?)?;
            ensure!(!self.finished.exists(), "it exists");
            fs::rename(&self.unfinished, &self.finished)?;
            Ok(())
        };
        write()
            .inspect_err(|_| {
                for file in &files {
                    let _ = fs::remove_file(file);
                }
            })
            .with_context(|| format!("cannot write {}", self.finished.display()))?;
        Ok(self.finished)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const FAST: [f64; 5] = [0.91, 0.92, 0.93, 0.94, 0.95];
    const SLOW: [f64; 5] = [1.0, 1.01, 1.0, 1.02, 0.99];

    fn side(name: &str, samples: &[f64], pulled: Option<u64>) -> Side {
        Side {
            name: name.to_owned(),
            samples: samples.to_vec(),
            counters: pulled
                .map(|n| ("pulled".to_owned(), n))
                .into_iter()
                .collect(),
        }
    }

    fn report(host_cpus: usize, base: &Side, sides: &[Side]) -> Report {
        let topology = Topology::from(&Hello {
            release: String::new(),
            cpus: 8,
            llcs: vec!["0-3".to_owned(), "4-7".to_owned()],
            cores: 8,
            threads: 1,
            features: String::new(),
        });
        let setting = Setting {
            kernel: "7.3.4".to_owned(),
            accel: "tcg".to_owned(),
            host_cpus,
            topology,
            features: vec!["SHARED_RUNQ".to_owned()],
        };
        let args = ["-g", "4"].map(str::to_owned);
        let workload = Workload::find("hackbench").unwrap();
        let commands = vec!["qemu".to_owned()];
        Report::new(setting, workload, &args, base, sides, commands).unwrap()
    }

    #[test]
    fn the_table_has_the_form_of_mmtests() {
        let sides = [side("SHARED_RUNQ", &FAST, Some(1234))];
        let text = report(2, &side(BASE, &SLOW, Some(0)), &sides).text();
        let expected = "\
SHARED_RUNQ off and on

kernel  7.3.4
accel   TCG
guest   2 LLCs x 4 cores x 1 thread = 8 vCPUs, by LLC: 0-3 4-7
host    2 cores
runs    5 pairs, one boot, sides in turn, after one uncounted run of each side

8 vCPUs on 2 host cores: times then measure total work, not parallel speed.
Percent: positive = better than base. *...* = significant: exact rank-sum test, two-sided,
p <= 0.05 after Holm over 1 row.

hackbench -g 4   (s, lower is better)
                       base        SHARED_RUNQ
Amean     1.0040 (   0.00%)  0.9300 *   7.37%*
Median    1.0000 (   0.00%)  0.9300 *   7.00%*
CoeffVar             1.14%              1.70%
p (Holm)                              0.0079

Counters, sum of the counted runs
        base  SHARED_RUNQ
pulled     0         1234
";
        assert_eq!(text, expected);
    }

    #[test]
    fn counters_tell_whether_features_were_at_work() {
        for (base, with, wanted) in [
            (Some(0), Some(3), None),
            (
                Some(1),
                Some(3),
                Some("the counter pulled rose with the features off"),
            ),
            (Some(0), Some(0), Some("no counter rose with A")),
            (None, None, Some("the kernel has no counters")),
        ] {
            let report = report(2, &side(BASE, &SLOW, base), &[side("A", &FAST, with)]);
            let cause = report.check_counters().err().map(|error| error.to_string());
            assert_eq!(cause.as_deref(), wanted);
        }
    }

    #[test]
    fn rates_follow_their_counters() {
        let counted = |name, counters: &[(&str, u64)]| {
            let mut side = side(name, &FAST, None);
            let counters = counters
                .iter()
                .map(|&(name, count)| (name.to_owned(), count));
            side.counters = counters.collect();
            side
        };
        let off = ["searches", "found", "visited", "candidates", "left"].map(|name| (name, 0));
        let on = [
            ("searches", 8),
            ("found", 1),
            ("visited", 16),
            ("candidates", 0),
            ("left", 0),
        ];
        let text = report(2, &counted(BASE, &off), &[counted("SIS_FILTER", &on)]).text();
        for (name, wanted) in [
            ("SIS success rate", &["-", "12.5%"][..]),
            ("SIS efficiency", &["-", "6.2%"]),
            ("searches", &["0", "8"]),
            // What did not rise on any side is left out.
            ("left", &[]),
            ("SIS candidates left", &[]),
        ] {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let found: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
            assert_eq!(found, wanted, "{name}");
        }
    }

    #[test]
    fn a_loss_is_negative_and_noise_has_no_star() {
        let slow = side("A", &SLOW.map(|x| x * 1.1), None);
        let same = side("B", &SLOW, None);
        let text = report(8, &side(BASE, &SLOW, None), &[slow, same]).text();
        assert!(text.contains("1.1000 * -10.00%*"), "{text}");
        assert!(text.contains("1.0000 (   0.00%)\n"), "{text}");
        assert!(
            !text.contains("total work") && !text.contains("Counters"),
            "{text}"
        );
        assert!(text.contains("Holm over 2 rows"), "{text}");
    }

    #[test]
    fn too_few_pairs_and_noise_are_said() {
        let base = side(BASE, &SLOW, None);
        let text = |n: usize, rows: usize| {
            let with = side("A", &FAST[..n], None);
            let base = side(BASE, &base.samples[..n], None);
            report(8, &base, &vec![with; rows]).text()
        };
        let impossible = "no significance is possible";
        let three = text(3, 1);
        assert!(three.contains("With 1 row of 3 pairs no significance is possible: it takes 4"));
        assert!(!three.contains("%*"), "{three}");
        assert!(!text(4, 1).contains(impossible));
        // 0.029 is below 0.05, but twice that for the 2 rows of Holm is not.
        assert!(text(4, 1).contains("%*") && !text(4, 2).contains("%*"));
        assert!(text(4, 2).contains("With 2 rows of 4 pairs") && !text(5, 2).contains(impossible));
        assert!(!three.contains("CoeffVar is above"));
        let noisy = report(8, &base, &[side("A", &[0.5, 1.0, 0.7, 0.9, 0.8], None)]).text();
        assert!(noisy.contains("A CoeffVar is above 5 %"), "{noisy}");
    }

    #[test]
    fn many_combinations_are_put_below_one_another() {
        let names = ["A", "B", "A+B", "C"];
        let sides = names.map(|name| side(name, &FAST, None));
        let text = report(8, &side(BASE, &SLOW, None), &sides).text();
        assert_eq!(text.matches("hackbench -g 4").count(), 2, "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    fn schema() -> jsonschema::Validator {
        let schema = include_str!("../../../docs/report.schema.json");
        let schema: Value = serde_json::from_str(schema).unwrap();
        assert!(jsonschema::meta::is_valid(&schema));
        jsonschema::draft202012::new(&schema).unwrap()
    }

    #[test]
    fn the_json_is_as_its_schema_says() {
        let schema = schema();
        let base = side(BASE, &SLOW, Some(0));
        for report in [
            report(2, &base, &[side("SHARED_RUNQ", &FAST, Some(1))]),
            report(
                2,
                &base,
                &[side("A", &FAST, None), side("A+B", &[2.0], None)],
            ),
        ] {
            let json: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
            let errors: Vec<_> = schema.iter_errors(&json).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{errors:?}");
        }
        let report = report(2, &base, &[side("SHARED_RUNQ", &FAST, Some(1))]);
        let good: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert!((good["rows"][0]["change_pct"].as_f64().unwrap() - 7.0).abs() < 1e-9);
        assert_eq!(good["rows"][0]["significant"], json!(true));
        assert_eq!(good["topology"]["cores"], json!(4));
        assert_eq!(
            good["rows"][0]["counters"]["SHARED_RUNQ"]["pulled"],
            json!(1)
        );
        for (pointer, bad) in [
            ("/schema", json!(2)),
            ("/accel", json!("TCG")),
            ("/features", json!([])),
            ("/rows/0/samples", json!({"base": [1.0]})),
            ("/rows/0/samples/base", json!([])),
            ("/rows/0/change_pct", json!(null)),
            ("/rows/0/counters/base", json!({"pulled": -1})),
            ("/topology", json!({"llcs": 2})),
        ] {
            let mut json = good.clone();
            *json.pointer_mut(pointer).unwrap() = bad;
            assert!(!schema.is_valid(&json), "{pointer}");
        }
    }

    #[test]
    fn the_json_has_the_base_first() {
        let sides = [side("SHARED_RUNQ", &FAST, None)];
        let json = report(2, &side(BASE, &SLOW, None), &sides).json().unwrap();
        assert!(json.find("\"base\"").unwrap() < json.rfind("\"SHARED_RUNQ\"").unwrap());
    }

    #[test]
    fn a_folder_is_whole_or_unfinished() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let report = report(2, &side(BASE, &SLOW, None), &[side("A", &FAST, None)]);
        let folder = Folder::new(dir.path()).unwrap();
        fs::write(folder.dmesg(), "boot").unwrap();
        assert!(names()[0].starts_with("unfinished-") && names().len() == 1);
        let command = format!("qemu {}", folder.dmesg().display());
        let command = folder.final_name(&command);
        let done = folder.finish(&report).unwrap();
        assert_eq!(command, format!("qemu {}/dmesg.txt", done.display()));
        assert_eq!(names(), [done.file_name().unwrap().to_str().unwrap()]);
        assert_eq!(
            fs::read_to_string(done.join("report.txt")).unwrap(),
            report.text()
        );
        assert_eq!(
            fs::read_to_string(done.join("report.json")).unwrap(),
            report.json().unwrap()
        );
        fs::remove_dir_all(&done).unwrap();

        // The final name is taken: the log stays, the report goes.
        let folder = Folder::new(dir.path()).unwrap();
        fs::write(folder.dmesg(), "boot").unwrap();
        fs::create_dir(&folder.finished).unwrap();
        let kept = folder.unfinished.clone();
        let error = folder.finish(&report).unwrap_err();
        assert!(format!("{error:#}").contains(dir.path().to_str().unwrap()));
        let left: Vec<_> = fs::read_dir(kept)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["dmesg.txt"]);
    }
}
