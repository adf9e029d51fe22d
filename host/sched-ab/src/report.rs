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
    guest::Topo,
    picture::{Panel, svg},
    stats::{ALPHA, Modes, Summary, fewest_pairs, holm, modes, rank_sum, smallest_p},
    workload::{Better, Metric, TIME, Value, Workload},
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
    /// `kvm`, `tcg` or `sim`.
    pub accel: String,
    /// How many times a guest booted.
    pub boots: usize,
    /// In a simulated machine, by how much its slowest CPU is slower than its fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_spread_pct: Option<f64>,
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

impl Topology {
    /// What is measured of a simulated machine: all but the first LLC, which is for housekeeping.
    pub fn measured(hello: &Hello, topo: Topo) -> Self {
        Self {
            llcs: topo.llcs as usize,
            cores: topo.cores,
            threads: hello.threads,
            cpus: topo.cpus(),
            llc_cpus: hello.llcs.iter().skip(1).cloned().collect(),
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
    /// The results of each metric in the order of the rounds.
    pub results: Vec<(Metric, Vec<f64>)>,
    /// By how much the kernel's counters rose in all counted runs; empty if it has none.
    pub counters: Counters,
    /// The same of the scheduler's own statistics, if they were read.
    pub schedstat: Counters,
}

impl Side {
    /// Adds what a run gave.
    ///
    /// # Errors
    ///
    /// When it gave other metrics than the one before.
    pub fn add(&mut self, values: Vec<Value>) -> Result<()> {
        if self.results.is_empty() {
            let metrics = values
                .iter()
                .map(|value| (value.metric.clone(), Vec::new()));
            self.results = metrics.collect();
        }
        ensure!(
            values.len() == self.results.len(),
            "{} results of {}, but {} before",
            values.len(),
            self.name,
            self.results.len()
        );
        for (value, (metric, samples)) in values.into_iter().zip(&mut self.results) {
            ensure!(
                value.metric == *metric,
                "a result {} of {} instead of {}",
                value.metric.name,
                self.name,
                metric.name
            );
            samples.push(value.value);
        }
        Ok(())
    }
}

/// What one workload gave.
#[derive(Clone, Debug)]
pub struct Measured {
    workload: String,
    args: String,
    /// The base first.
    sides: Vec<Side>,
}

impl Measured {
    /// The results of `workload` with `args`; the first of `sides` is the base.
    pub fn new(workload: &Workload, args: &[String], sides: Vec<Side>) -> Self {
        Self {
            workload: workload.name.to_owned(),
            args: shell_words::join(args),
            sides,
        }
    }
}

impl Measured {
    /// For each side that `with` has as well, one whose base is ours, and whose other side is that
    /// of `with`, called `name`; none if `with` is another workload.
    pub fn against(&self, with: &Self, name: &str) -> Vec<Self> {
        if (&self.workload, &self.args) != (&with.workload, &with.args) {
            return Vec::new();
        }
        let both = self.sides.iter().filter_map(|base| {
            let other = with.sides.iter().find(|other| other.name == base.name)?;
            Some((base, other))
        });
        let pair = |(base, other): (&Side, &Side)| Self {
            workload: self.workload.clone(),
            args: format!("{}, {}", self.args, base.name),
            sides: vec![
                Side {
                    name: BASE.to_owned(),
                    ..base.clone()
                },
                Side {
                    name: name.to_owned(),
                    ..other.clone()
                },
            ],
        };
        both.map(pair).collect()
    }
}

/// A comparison of some workloads.
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
    workload: String,
    args: String,
    metric: String,
    unit: String,
    better: Better,
    samples: Pair<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Pair<Counters>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedstat: Option<Pair<Counters>>,
    change_pct: f64,
    p: f64,
    significant: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    modes: Option<RowModes>,
    #[serde(skip)]
    summary: Pair<Summary>,
}

impl Row {
    /// The workload with its arguments.
    fn title(&self) -> String {
        format!("{} {}", self.workload, self.args).trim().to_owned()
    }

    fn same_workload(&self, other: &Self) -> bool {
        (&self.workload, &self.args) == (&other.workload, &other.args)
    }

    fn same_metric(&self, other: &Self) -> bool {
        self.same_workload(other) && self.metric == other.metric
    }
}

/// Two modes that the samples of one side have, of that side where they are farthest apart.
#[derive(Debug, Serialize)]
struct RowModes {
    cut: f64,
    ashman_d: f64,
    /// How many samples of each side are in the worse one.
    worse: Pair<usize>,
}

impl RowModes {
    fn new(modes: Modes, better: Better, samples: &Pair<Vec<f64>>) -> Self {
        let Modes { cut, ashman_d } = modes;
        let worse = |samples: &[f64]| {
            let is_worse = |sample: &&f64| match better {
                Better::Lower => **sample > cut,
                Better::Higher => **sample < cut,
            };
            samples.iter().filter(is_worse).count()
        };
        Self {
            cut,
            ashman_d,
            worse: Pair::new(&samples.name, worse(&samples.base), worse(&samples.with)),
        }
    }
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

/// How much better `with` is than `base`, in percent.
fn gain_pct(better: Better, base: f64, with: f64) -> f64 {
    match better {
        Better::Lower => 100.0 * (base - with) / base,
        Better::Higher => 100.0 * (with - base) / base,
    }
}

/// How a table shows values about as large as `value`: by what they are multiplied, their decimals,
/// and their unit.
fn scale(value: f64, unit: &str) -> (f64, usize, String) {
    match unit {
        "s" if value < 0.01 => (1e6, 1, "us".to_owned()),
        "1/s" if value >= 1e6 => (1e-6, 2, "M/s".to_owned()),
        "1/s" if value >= 1e4 => (1e-3, 2, "k/s".to_owned()),
        _ if value >= 1000.0 => (1.0, 0, unit.to_owned()),
        _ => (1.0, 4, unit.to_owned()),
    }
}

impl Report {
    /// Compares each side with the base of its workload; `commands` repeat the measurement.
    ///
    /// # Errors
    ///
    /// When samples are missing, not numbers, or too many for an exact test.
    pub fn new(setting: Setting, measured: &[Measured], commands: Vec<String>) -> Result<Self> {
        let mut rows = Vec::new();
        for Measured {
            workload,
            args,
            sides,
        } in measured
        {
            let (base, sides) = sides.split_first().context("there are no sides")?;
            for (index, (metric, base_samples)) in base.results.iter().enumerate() {
                let base_summary = Summary::new(base_samples)?;
                ensure!(base_summary.median > 0.0, "the base took no time");
                // Two sides that differ are no two modes: one side must have both.
                let found = sides.iter().filter_map(|side| side.results.get(index));
                let found = found.map(|(_, samples)| modes(samples));
                let found = found.collect::<Result<Vec<_>>>()?;
                let found = [&[modes(base_samples)?], &found[..]].concat();
                let distance = |a: &Modes, b: &Modes| a.ashman_d.total_cmp(&b.ashman_d);
                let modes = found.into_iter().flatten().max_by(distance);
                for side in sides {
                    let samples = match side.results.get(index) {
                        Some((other, samples)) if other == metric => samples,
                        _ => bail!("{} has no {} of {workload}", side.name, metric.name),
                    };
                    let summary = Pair::new(&side.name, base_summary, Summary::new(samples)?);
                    let (base_median, median) = (summary.base.median, summary.with.median);
                    let samples = Pair::new(&side.name, base_samples.clone(), samples.clone());
                    rows.push(Row {
                        workload: workload.clone(),
                        args: args.clone(),
                        metric: metric.name.clone(),
                        unit: metric.unit.clone(),
                        better: metric.better,
                        counters: Pair::counters(&side.name, &base.counters, &side.counters),
                        schedstat: Pair::counters(&side.name, &base.schedstat, &side.schedstat),
                        change_pct: gain_pct(metric.better, base_median, median),
                        p: rank_sum(&samples.base, &samples.with)?,
                        significant: false,
                        modes: modes.map(|m| RowModes::new(m, metric.better, &samples)),
                        samples,
                        summary,
                    });
                }
            }
        }
        let p = holm(&rows.iter().map(|row| row.p).collect::<Vec<_>>());
        for (row, p) in rows.iter_mut().zip(p) {
            row.p = p;
            row.significant = p <= ALPHA;
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

    /// All samples as a picture.
    ///
    /// # Errors
    ///
    /// When they cannot be drawn.
    pub fn svg(&self) -> Result<String> {
        let panels = self.rows.chunk_by(Row::same_metric).filter_map(|rows| {
            let first = rows.first()?;
            let (factor, _, unit) = scale(first.summary.base.median, &first.unit);
            let side = |name: &str, samples: &[f64], summary: &Summary| {
                let samples = samples.iter().map(|sample| sample * factor).collect();
                (name.to_owned(), samples, summary.median * factor)
            };
            let mut sides = vec![side(BASE, &first.samples.base, &first.summary.base)];
            sides.extend(
                rows.iter()
                    .map(|row| side(&row.samples.name, &row.samples.with, &row.summary.with)),
            );
            Some(Panel {
                title: [first.title(), first.metric.clone()],
                unit: format!("{unit}, {} is better", first.better.name()),
                sides,
            })
        });
        svg(&panels.collect::<Vec<_>>())
    }

    /// The table, in the form of mmtests' `compare-mmtests`.
    pub fn text(&self) -> String {
        let mut text = self.head() + &self.summary();
        for workload in self.rows.chunk_by(Row::same_workload) {
            let metrics: Vec<_> = workload.chunk_by(Row::same_metric).collect();
            for rows in metrics.iter().flat_map(|rows| rows.chunks(COLUMNS)) {
                text += "\n";
                text += &table(rows);
            }
            // They are the same for all metrics of a run.
            for rows in metrics[0].chunks(COLUMNS) {
                text += &counters("Counters", &RATES, rows, |row| row.counters.as_ref());
            }
            for rows in metrics[0].chunks(COLUMNS) {
                text += &counters("schedstat", &WASTED, rows, |row| row.schedstat.as_ref());
            }
        }
        text
    }

    /// A line for each metric, if there are several: the change of the median and, behind it, the
    /// coefficient of variation of each side, as AMD's developers post them.
    fn summary(&self) -> String {
        let metrics: Vec<_> = self.rows.chunk_by(Row::same_metric).collect();
        let [first, _, ..] = metrics[..] else {
            return String::new();
        };
        let mut lines = vec![vec![
            "[pct imp](CV)".to_owned(),
            String::new(),
            BASE.to_owned(),
        ]];
        lines[0].extend(first.iter().map(|row| row.samples.name.clone()));
        let cv = |cv: Option<f64>| cv.map_or("-".to_owned(), |cv| format!("{cv:.1}"));
        for rows in metrics {
            let [row, ..] = rows else { continue };
            let (factor, decimals, unit) = scale(row.summary.base.median, &row.unit);
            let median = row.summary.base.median * factor;
            let mut line = vec![
                row.title(),
                row.metric.clone(),
                format!(
                    "{median:.decimals$} {unit} ({})",
                    cv(row.summary.base.cv_pct)
                ),
            ];
            line.extend(rows.iter().map(|row| {
                let star = if row.significant { "*" } else { " " };
                let with = cv(row.summary.with.cv_pct);
                format!("{star}[{:.1}]({with})", row.change_pct)
            }));
            lines.push(line);
        }
        format!("\n{}", columns(&lines))
    }

    fn head(&self) -> String {
        let Setting {
            kernel,
            accel,
            boots,
            speed_spread_pct,
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
                "runs    {}, {}, sides in turn, after one uncounted run of each side",
                plural(pairs, "pair"),
                if *boots == 1 {
                    "one boot".to_owned()
                } else {
                    format!("{boots} boots")
                },
            ),
            String::new(),
        ];
        if let Some(spread) = speed_spread_pct {
            lines.push(format!(
                "Simulated time: the same on any host. The slowest CPU is {spread:.1} % slower than the fastest."
            ));
        } else if *cpus as usize > *host_cpus {
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

impl Pair<Counters> {
    /// Nothing if there are none.
    fn counters(name: &str, base: &Counters, with: &Counters) -> Option<Self> {
        (!with.is_empty()).then(|| Self::new(name, base.clone(), with.clone()))
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
    let (factor, decimals, unit) = scale(first.summary.base.median, &first.unit);
    let show = |value: f64| format!("{:.decimals$}", value * factor);
    let mut lines = vec![vec![String::new(), BASE.to_owned()]];
    lines[0].extend(rows.iter().map(|row| row.samples.name.clone()));
    for (label, value) in [
        ("Amean", (|summary| summary.mean) as fn(&Summary) -> f64),
        ("Median", |summary| summary.median),
    ] {
        let base = value(&first.summary.base);
        let mut line = vec![label.to_owned(), format!("{} ({:7.2}%)", show(base), 0.0)];
        for row in rows {
            let with = value(&row.summary.with);
            let (open, close) = if row.significant {
                ('*', '*')
            } else {
                ('(', ')')
            };
            let gain = gain_pct(row.better, base, with);
            line.push(format!("{} {open}{gain:7.2}%{close}", show(with)));
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
    if let Some(modes) = &first.modes {
        let of = |count: usize, samples: &[f64]| format!("{count} of {}  ", samples.len());
        let mut line = vec![
            "Worse mode".to_owned(),
            of(modes.worse.base, &first.samples.base),
        ];
        line.extend(rows.iter().filter_map(|row| {
            let modes = row.modes.as_ref()?;
            Some(of(modes.worse.with, &row.samples.with))
        }));
        lines.push(line);
    }
    let metric = match first.metric.as_str() {
        TIME => String::new(),
        metric => format!("   {metric}"),
    };
    format!(
        "{}{metric}   ({unit}, {} is better)\n{}",
        first.title(),
        first.better.name(),
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

/// The same of idle CPUs beside tasks that wait.
const WASTED: [(&str, &str, &str); 2] = [
    ("wasted idle", "wasted_idle_ns", "wasted_cpu_ns"),
    ("wasted idle after 50 us", "wasted_late_ns", "wasted_cpu_ns"),
];

/// A block of counters of `rows`, empty when there are none.
fn counters(
    title: &str,
    rates: &[(&str, &str, &str)],
    rows: &[Row],
    of: impl Fn(&Row) -> Option<&Pair<Counters>>,
) -> String {
    let sides: Vec<_> = rows.iter().filter_map(of).collect();
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
    for &(name, part, whole) in rates {
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
    format!("\n{title}, sum of the counted runs\n{}", columns(&lines))
}

/// The time in UTC as a name, to the second.
pub fn timestamp() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now());
    time.to_string().replace(':', "")
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
        let time = timestamp();
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

    fn time() -> Metric {
        Metric {
            name: TIME.to_owned(),
            unit: "s".to_owned(),
            better: Better::Lower,
        }
    }

    fn side(name: &str, samples: &[f64], pulled: Option<u64>) -> Side {
        Side {
            name: name.to_owned(),
            results: vec![(time(), samples.to_vec())],
            schedstat: Counters::new(),
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
            boots: 1,
            speed_spread_pct: None,
        };
        let args = ["-g", "4"].map(str::to_owned);
        let workload = Workload::find("hackbench").unwrap();
        let commands = vec!["qemu".to_owned()];
        let sides = [&[base.clone()], sides].concat();
        let measured = Measured::new(workload, &args, sides);
        Report::new(setting, &[measured], commands).unwrap()
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
    fn several_metrics_are_summed_up_and_modes_counted() {
        let metric = |name: &str, unit: &str, better| Metric {
            name: name.to_owned(),
            unit: unit.to_owned(),
            better,
        };
        let side = |name: &str, slow: usize| {
            let late = (0..10).map(|i| if i < slow { 2e-5 } else { 1e-5 } + i as f64 * 1e-8);
            Side {
                name: name.to_owned(),
                results: vec![
                    (metric("late", "s", Better::Lower), late.collect()),
                    (
                        metric("rate", "1/s", Better::Higher),
                        vec![1000.0 + slow as f64; 10],
                    ),
                ],
                ..Side::default()
            }
        };
        let mut report = report(2, &super::tests::side(BASE, &SLOW, None), &[]);
        let workload = Workload::find("mix").unwrap();
        let measured = Measured::new(workload, &[], vec![side(BASE, 8), side("A", 2)]);
        report = Report::new(report.setting.clone(), &[measured], vec!["x".to_owned()]).unwrap();
        let text = report.text();
        for part in [
            "mix            late  20.0 us (23.2)  *[49.7](34.8)",
            "mix            rate  1008 1/s (0.0)   *[-0.6](0.0)",
            "mix   late   (us, lower is better)",
            "mix   rate   (1/s, higher is better)",
            "Worse mode        8 of 10          2 of 10",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(
            json["rows"][0]["modes"]["worse"],
            json!({"base": 8, "A": 2})
        );
        assert!(schema().is_valid(&json));
    }

    #[test]
    fn values_have_digits_that_tell() {
        for (value, unit, expected) in [
            (0.000_012_3, "s", (1e6, 1, "us")),
            (0.01, "s", (1.0, 4, "s")),
            (2500.0, "s", (1.0, 0, "s")),
            (9999.0, "1/s", (1.0, 0, "1/s")),
            (12_345.0, "1/s", (1e-3, 2, "k/s")),
            (6.9e8, "1/s", (1e-6, 2, "M/s")),
        ] {
            let (factor, decimals, unit) = scale(value, unit);
            assert_eq!((factor, decimals, unit.as_str()), expected);
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
            let base = side(BASE, &base.results[0].1[..n], None);
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
