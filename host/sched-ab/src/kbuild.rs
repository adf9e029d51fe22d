// SPDX-License-Identifier: GPL-2.0

//! Configures and builds the composed kernel.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use crate::{
    base::{self, Base},
    exec,
    paths::Paths,
    progress::Step,
    series,
    toolchain::Toolchain,
};

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flavor {
    /// The one that is measured.
    Release,
    /// The one that is tested.
    Debug,
    /// The one that the lab runs in a simulated machine, with changes of its own.
    Lab,
}

impl Flavor {
    /// The name of its fragment in `host/config` and of its logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Debug => "debug",
            Self::Lab => "lab",
        }
    }

    /// How many lines a build from nothing prints, for its progress only.
    fn lines(self) -> u64 {
        match self {
            Self::Release => 2020,
            Self::Debug => 2150,
            Self::Lab => 2100,
        }
    }
}

/// A kernel that was built.
#[derive(Clone, Debug)]
pub struct Image {
    /// The image to boot.
    pub bzimage: PathBuf,
    /// What `uname -r` says.
    pub release: String,
    /// The build folder.
    pub obj: PathBuf,
    /// The configuration.
    pub config: PathBuf,
}

/// Waits until no other process composes or builds in this cache, and keeps them out as long as the
/// result lives.
pub fn lock(paths: &Paths) -> Result<Flock<File>> {
    let file = paths.cache_dir("")?.join("lock");
    let open = || File::create(&file).with_context(|| format!("cannot write {}", file.display()));
    Flock::lock(open()?, FlockArg::LockExclusiveNonblock).or_else(|_| {
        eprintln!("waiting for another build ({} is locked)", file.display());
        Flock::lock(open()?, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .with_context(|| format!("cannot lock {}", file.display()))
    })
}

/// Gets the base kernel, composes the tree, hands it to `check`, and builds `flavor` of it, all
/// that is not done yet.
pub fn image(
    paths: &Paths,
    kernel_src: Option<&Path>,
    flavor: Flavor,
    jobs: Option<usize>,
    check: impl FnOnce(&Path) -> Result<()>,
) -> Result<Image> {
    let base = base::ensure(paths, kernel_src)?;
    let _lock = lock(paths)?;
    let base = match flavor {
        Flavor::Lab => series::compose_lab(paths, &base)?,
        Flavor::Release | Flavor::Debug => {
            series::compose(paths, &base)?;
            base
        }
    };
    check(&base.tree)?;
    build(paths, &base, flavor, jobs)
}

/// Builds `flavor` of the composed tree. The caller holds [`lock`].
///
/// # Errors
///
/// When an option that was asked for did not survive, or the build fails; the log is named.
pub fn build(paths: &Paths, base: &Base, flavor: Flavor, jobs: Option<usize>) -> Result<Image> {
    let tools = Toolchain::find(paths)?;
    let config = Config::new(paths, flavor, tools.inline_helpers)?;
    let obj = config.obj(paths, base, &tools);
    let log = paths.out.join(format!("log/kernel-{}.log", flavor.name()));
    let _ = fs::remove_file(&log);
    config.apply(&tools, &base.tree, &obj, &log)?;

    let bzimage = obj.join("arch/x86/boot/bzImage");
    // What is left of an incremental build is not known.
    let total = if bzimage.exists() { 0 } else { flavor.lines() };
    let mut step = Step::new(&format!("kernel ({})", flavor.name()), total);
    let mut make = tools.make(&base.tree, &obj);
    make.arg(format!("-j{}", jobs.unwrap_or_else(cpus)))
        .arg("bzImage");
    let mut lines = 0;
    run(&mut make, &log, |line| {
        if line.starts_with("  ") {
            lines += 1;
            step.at(lines, line.trim());
        }
    })?;
    let release = fs::read_to_string(obj.join("include/config/kernel.release"))?;
    let release = release.trim().to_owned();
    step.done(&release);
    Ok(Image {
        bzimage,
        release,
        config: obj.join(".config"),
        obj,
    })
}

/// The build folder of `flavor` as it is configured now.
pub(crate) fn obj(
    paths: &Paths,
    base: &Base,
    tools: &Toolchain,
    flavor: Flavor,
) -> Result<PathBuf> {
    Ok(Config::new(paths, flavor, tools.inline_helpers)?.obj(paths, base, tools))
}

/// Opens the options of the release kernel in the composed tree, and keeps what was changed in
/// `host/config/local.config`, which later builds use. The caller holds [`lock`].
pub fn menuconfig(paths: &Paths, base: &Base) -> Result<()> {
    let tools = Toolchain::find(paths)?;
    let config = Config::new(paths, Flavor::Release, tools.inline_helpers)?;
    let obj = config.obj(paths, base, &tools);
    let log = paths.out.join("log/menuconfig.log");
    let _ = fs::remove_file(&log);
    config.apply(&tools, &base.tree, &obj, &log)?;
    let before = fs::read_to_string(obj.join(".config"))?;
    let status = tools.make(&base.tree, &obj).arg("menuconfig").status()?;
    if !status.success() {
        bail!("make menuconfig failed ({status})");
    }
    let after = fs::read_to_string(obj.join(".config"))?;
    let changed = changes(&before, &after);
    if changed.is_empty() {
        return Ok(());
    }
    let local = paths.repo.join(LOCAL);
    let text = fs::read_to_string(&local).unwrap_or_default() + &changed;
    let temp = local.with_extension("tmp");
    fs::write(&temp, text)?;
    fs::rename(temp, &local)?;
    println!(
        "{} has now, until you remove it:\n{changed}",
        local.display()
    );
    Ok(())
}

/// Options of one user; not in the repository.
const LOCAL: &str = "host/config/local.config";

/// The lines of `after` that set an option to something else than `before` does.
fn changes(before: &str, after: &str) -> String {
    let before = settings(before);
    settings(after)
        .iter()
        .filter(|(name, value)| before.get(*name).map_or("n", String::as_str) != **value)
        .flat_map(|(name, value)| ["CONFIG_", name.as_str(), "=", value.as_str(), "\n"])
        .collect()
}

/// Runs a `make` and, when it fails, names the first line that looks like the cause.
pub(crate) fn run(make: &mut Command, log: &Path, mut line: impl FnMut(&str)) -> Result<()> {
    let mut cause = None;
    exec::logged(make, log, |text| {
        let is_cause = ["error:", "error[", "Error:", "undefined symbol", "*** "]
            .iter()
            .any(|mark| text.contains(mark));
        if is_cause && cause.is_none() {
            cause = Some(text.trim().to_owned());
        }
        line(text);
    })
    .map_err(|error| match cause {
        Some(cause) => {
            anyhow::anyhow!("the kernel build failed: {cause}\n  log: {}", log.display())
        }
        None => error,
    })
}

/// All CPUs of the host.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A configuration as asked for: fragments on top of `tinyconfig`, a later one wins.
pub(crate) struct Config {
    name: String,
    fragments: Vec<(String, String)>,
}

impl Config {
    fn new(paths: &Paths, flavor: Flavor, inline_helpers: bool) -> Result<Self> {
        let own = format!("host/config/{}.config", flavor.name());
        let mut files = vec![
            "host/config/guest.config",
            &own,
            "kernel/configs/sched_llc.config",
        ];
        if flavor == Flavor::Release && paths.repo.join(LOCAL).exists() {
            eprintln!("kernel (release): with the options of {LOCAL}");
            files.push(LOCAL);
        }
        let mut config = Self::read(paths, flavor.name(), &files)?;
        if inline_helpers {
            config.add("the toolchain", "CONFIG_RUST_INLINE_HELPERS=y\n");
        }
        Ok(config)
    }

    /// The configuration `name` of the fragments `files`, named from the root of the checkout.
    pub(crate) fn read(paths: &Paths, name: &str, files: &[&str]) -> Result<Self> {
        let mut fragments = Vec::new();
        for file in files {
            let text = fs::read_to_string(paths.repo.join(file))
                .with_context(|| format!("cannot read {file}"))?;
            fragments.push(((*file).to_owned(), text));
        }
        Ok(Self {
            name: name.to_owned(),
            fragments,
        })
    }

    pub(crate) fn add(&mut self, origin: &str, text: &str) {
        self.fragments.push((origin.to_owned(), text.to_owned()));
    }

    /// The build folder, whose name has everything that a build depends on but the sources.
    pub(crate) fn obj(&self, paths: &Paths, base: &Base, tools: &Toolchain) -> PathBuf {
        let (base, tools, name, key) = (&base.id, &tools.id, &self.name, self.key());
        paths.cache.join(format!("obj/{base}-{tools}-{name}-{key}"))
    }

    /// Differs when a value that is asked for differs.
    fn key(&self) -> String {
        let mut hash = Sha256::new();
        for (name, (value, _)) in self.wanted() {
            hash.update(format!("{name}={value}\n"));
        }
        format!("{:x}", hash.finalize())[..8].to_owned()
    }

    /// Configures `obj` and checks what became of it.
    pub(crate) fn apply(
        &self,
        tools: &Toolchain,
        tree: &Path,
        obj: &Path,
        log: &Path,
    ) -> Result<()> {
        fs::create_dir_all(obj).with_context(|| format!("cannot make {}", obj.display()))?;
        let step = Step::new(&format!("configuration ({})", self.name), 0);
        let make = |target| run(tools.make(tree, obj).arg(target), log, |_| {});
        make("tinyconfig")?;
        let file = obj.join(".config");
        let mut text = fs::read_to_string(&file)?;
        for (_, fragment) in &self.fragments {
            text += fragment;
        }
        fs::write(&file, text)?;
        make("olddefconfig")?;
        let lost = self.lost(&fs::read_to_string(&file)?);
        if let Some((name, value, origin)) = lost.first() {
            let why = match name.as_str() {
                "RUST" => rust_available(&mut tools.make(tree, obj)),
                _ => why(tree, name, &fs::read_to_string(&file)?)?,
            };
            bail!(
                "CONFIG_{name}={value}, which {origin} asks for, did not survive: {why}{}",
                match lost.len() - 1 {
                    0 => String::new(),
                    more => format!(" (and {more} more: {})", names(&lost[1..])),
                }
            );
        }
        step.done("as asked for");
        Ok(())
    }

    /// The value of each option and who asks for it.
    fn wanted(&self) -> BTreeMap<String, (String, &String)> {
        let mut wanted = BTreeMap::new();
        for (origin, text) in &self.fragments {
            for (name, value) in settings(text) {
                wanted.insert(name, (value, origin));
            }
        }
        wanted
    }

    /// What was asked for and is not so in `config`: name, value, origin; Rust first, since others
    /// depend on it.
    fn lost(&self, config: &str) -> Vec<(String, String, String)> {
        let found = settings(config);
        let mut lost: Vec<_> = self
            .wanted()
            .into_iter()
            .filter(|(name, (value, _))| found.get(name).map_or("n", String::as_str) != value)
            .map(|(name, (value, origin))| (name, value, origin.clone()))
            .collect();
        lost.sort_by_key(|(name, ..)| name != "RUST");
        lost
    }
}

fn names(lost: &[(String, String, String)]) -> String {
    let names: Vec<_> = lost.iter().map(|(name, ..)| name.as_str()).collect();
    names.join(", ")
}

/// The options that `text` sets, without `CONFIG_`; one that is not set is `n`.
fn settings(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| {
            if let Some(rest) = line.strip_prefix("# CONFIG_") {
                return Some((rest.strip_suffix(" is not set")?, "n"));
            }
            line.strip_prefix("CONFIG_")?.split_once('=')
        })
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Says what the kernel's own check finds missing for Rust.
fn rust_available(make: &mut Command) -> String {
    let output = match make.arg("rustavailable").output() {
        Ok(output) => output,
        Err(error) => return error.to_string(),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("***"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    match lines.is_empty() {
        true => "make rustavailable finds nothing wrong".to_owned(),
        false => lines.join(" "),
    }
}

/// Says why the option `name` is not set in `config`, as far as its own entry tells.
fn why(tree: &Path, name: &str, config: &str) -> Result<String> {
    let mut left = vec![tree.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                left.push(path);
            } else if entry.file_name().to_string_lossy().starts_with("Kconfig") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                if let Some(unmet) = unmet(&text, name, config) {
                    let file = path.strip_prefix(tree).unwrap_or(&path).display();
                    return Ok(format!("{unmet} in {file}"));
                }
            }
        }
    }
    Ok("no Kconfig file of the tree defines it".to_owned())
}

/// The dependencies of option `name` in one Kconfig file, and which of them are not set.
fn unmet(kconfig: &str, name: &str, config: &str) -> Option<String> {
    let is_start = |line: &str| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("config" | "menuconfig")) && words.next() == Some(name)
    };
    let mut lines = kconfig.lines().skip_while(|line| !is_start(line));
    lines.next()?;
    let depends: Vec<_> = lines
        .take_while(|line| line.is_empty() || line.starts_with([' ', '\t', '#']))
        .filter_map(|line| line.trim().strip_prefix("depends on "))
        .collect();
    let found = settings(config);
    let unset: Vec<_> = depends
        .iter()
        .flat_map(|rule| rule.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')))
        .filter(|word| word.chars().next().is_some_and(|c| c.is_ascii_uppercase()))
        .filter(|word| found.get(*word).is_none_or(|value| value == "n"))
        .collect();
    Some(match (depends.is_empty(), unset.is_empty()) {
        (true, _) => "see its entry, or the menu around it,".to_owned(),
        (_, true) => format!("it depends on {}", depends.join(" && ")),
        (_, false) => format!(
            "it depends on {}, of which {} is not set,",
            depends.join(" && "),
            unset.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KCONFIG: &str = "config OTHER\n\tbool \"x\"\n\tdepends on NOT_MINE\n\n\
                           config MINE\n\tbool \"y\"\n\tdepends on SMP && RUST\n\
                           \tdepends on NET\n\thelp\n\t  Text.\n\nconfig LAST\n\tbool \"z\"\n";

    fn config(fragments: &[(&str, &str)]) -> Config {
        let mut config = Config {
            name: "test".to_owned(),
            fragments: Vec::new(),
        };
        for (origin, text) in fragments {
            config.add(origin, text);
        }
        config
    }

    #[test]
    fn lost_options_are_found() {
        let config = config(&[
            ("a", "CONFIG_A=y\nCONFIG_B=y\nCONFIG_RUST=y\nCONFIG_N=4\n"),
            ("b", "# CONFIG_B is not set\nCONFIG_D=n\n# a comment\n"),
        ]);
        let all = "CONFIG_A=y\nCONFIG_RUST=y\nCONFIG_N=4\n# CONFIG_B is not set\n";
        assert!(config.lost(all).is_empty());
        let lost = config.lost("CONFIG_B=y\nCONFIG_N=5\nCONFIG_D=y\n");
        assert_eq!(names(&lost), "RUST, A, B, D, N");
        assert_eq!(lost[2], ("B".into(), "n".into(), "b".into()));
    }

    #[test]
    fn values_make_the_key_and_comments_do_not() {
        let key = |text| config(&[("a", text)]).key();
        let wanted = key("CONFIG_A=y\nCONFIG_B=n\n");
        assert_eq!(key("# Text.\n# CONFIG_B is not set\nCONFIG_A=y\n"), wanted);
        assert_ne!(key("CONFIG_A=y\nCONFIG_B=y\n"), wanted);
        assert_ne!(key("CONFIG_A=y\n"), wanted);
    }

    #[test]
    fn unmet_dependencies_are_named() {
        let config = "CONFIG_SMP=y\n# CONFIG_RUST is not set\nCONFIG_NET=y\n";
        assert_eq!(
            unmet(KCONFIG, "MINE", config).unwrap(),
            "it depends on SMP && RUST && NET, of which RUST is not set,"
        );
        assert_eq!(
            unmet(
                KCONFIG,
                "MINE",
                "CONFIG_SMP=y\nCONFIG_RUST=y\nCONFIG_NET=y\n"
            )
            .unwrap(),
            "it depends on SMP && RUST && NET"
        );
        assert!(
            unmet(KCONFIG, "LAST", config)
                .unwrap()
                .contains("the menu around it")
        );
        assert_eq!(unmet(KCONFIG, "ABSENT", config), None);
    }

    #[test]
    fn an_option_is_looked_for_in_the_whole_tree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("kernel")).unwrap();
        fs::write(dir.path().join("kernel/Kconfig.llc"), KCONFIG).unwrap();
        let found = why(dir.path(), "MINE", "").unwrap();
        assert!(
            found.contains("SMP, RUST, NET is not set, in kernel/Kconfig.llc"),
            "{found}"
        );
        let absent = why(dir.path(), "ABSENT", "").unwrap();
        assert!(absent.contains("no Kconfig file"));
    }

    #[test]
    fn only_changes_are_kept() {
        let before = "CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n";
        let after = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=y\n# CONFIG_D is not set\n";
        assert_eq!(changes(before, after), "CONFIG_B=n\nCONFIG_C=y\n");
    }

    #[test]
    fn a_failed_build_names_the_first_error() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo a.c:1: error: broken; for i in 1 2 3 4 5 6; do echo $i; done; false",
        ]);
        let error = run(&mut command, &log, |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("a.c:1: error: broken") && error.contains("log: "),
            "{error}"
        );
    }

    #[test]
    fn the_lock_keeps_others_out() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        let held = lock(&paths).unwrap();
        let file = File::open(dir.path().join("lock")).unwrap();
        assert!(Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err());
        drop(held);
        lock(&paths).unwrap();
    }

    #[test]
    fn a_missing_fragment_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        let error = Config::new(&paths, Flavor::Release, true).err().unwrap();
        assert!(error.to_string().contains("host/config/guest.config"));
    }

    #[test]
    fn rust_available_shows_what_is_needed() {
        let mut make = Command::new("sh");
        make.args([
            "-c",
            "printf '***\\n*** Rust compiler is too old.\\n***   Minimum version: 1.85.0\\n' >&2",
        ]);
        assert_eq!(
            rust_available(&mut make),
            "Rust compiler is too old. Minimum version: 1.85.0"
        );
    }
}
