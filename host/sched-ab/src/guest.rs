// SPDX-License-Identifier: GPL-2.0

//! Boots an image in QEMU, hands it a plan and follows its events.
//!
//! The guest's first serial port is its console and goes to a log file; the second carries the
//! events and is QEMU's standard output.

use std::{
    fmt, fs,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    iter,
    os::{
        fd::AsRawFd,
        unix::{fs::FileExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    str::FromStr,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::{
    errno::Errno,
    sys::{prctl::set_pdeathsig, signal::Signal},
    unistd::{Pid, getppid},
};
use sched_ab_protocol::{Event, Hello, Plan};
use sha2::{Digest, Sha256};

use crate::{exec, initramfs, paths::Paths, sim::Machine};

const KVM: &str = "/dev/kvm";

/// The first version of QEMU whose TCG may run CPUs in parallel. In 7.2 a CPU can go on with a
/// stale translation of code that another one has patched: switching a static key under load
/// ended in `Oops: int3` after some hundred times, also on an unpatched kernel. In 10.0 it takes
/// far more, see [`Accel::in_turn`].
const PARALLEL_TCG: u32 = 10;
/// An APIC identifier must stay below it: 255 means all CPUs, and more would need an interrupt
/// remapping unit.
const APIC_IDS: u32 = 255;
/// Memory of the guest in MiB; untouched memory costs the host nothing.
const MEMORY_MIB: u32 = 2048;
/// How long a guest may be silent. The agent sends something every few seconds; this is what the
/// slowest stretch of a boot under TCG needs, with a margin.
const QUIET: Duration = Duration::from_secs(120);
/// How long a boot may take: the largest guest under TCG on a small host, with a margin.
const BOOT: Duration = Duration::from_secs(900);
/// How long the probe of KVM may take: such a guest boots in two seconds.
const PROBE: Duration = Duration::from_secs(20);
/// How long a guest may take to power off.
const POWER_OFF: Duration = Duration::from_secs(60);
/// The longest line on the port for events: far more than an event has.
const LINE: u64 = 1 << 20;

/// A topology of last-level caches, cores in each, and threads of each core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Topo {
    /// Sockets: QEMU makes each the domain of one last-level cache.
    pub llcs: u32,
    /// Cores of a socket.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl Topo {
    /// CPUs in all.
    pub fn cpus(self) -> u32 {
        self.llcs * self.cores * self.threads
    }
}

impl fmt::Display for Topo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.llcs, self.cores, self.threads)
    }
}

impl FromStr for Topo {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<u32>> = text.split('x').map(|part| part.parse().ok()).collect();
        let Some(&[llcs, cores, threads]) = numbers.as_deref() else {
            bail!("{text:?} is no topology: LLCs x cores x threads, for example 2x4x1");
        };
        // A part of an APIC identifier has as many bits as the largest number in it needs.
        let bits = |n: u32| u64::from(n).next_power_of_two();
        ensure!(
            [llcs, cores, threads].iter().all(|&n| n >= 1),
            "topology {text}: each of LLCs, cores and threads must be 1 or more"
        );
        let last = u64::from(llcs - 1)
            .saturating_mul(bits(cores))
            .saturating_add(u64::from(cores - 1))
            .saturating_mul(bits(threads))
            .saturating_add(u64::from(threads - 1));
        ensure!(
            last < u64::from(APIC_IDS),
            "topology {text} is too large: QEMU would number its CPUs up to {last} (cores and \
             threads count as the next power of two), and at most {} is possible",
            APIC_IDS - 1
        );
        Ok(Self {
            llcs,
            cores,
            threads,
        })
    }
}

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// QEMU's translator.
    Tcg {
        /// One thread for each of the guest's CPUs; else one thread runs them in turn.
        parallel: bool,
    },
    /// QEMU's translator as the deterministic machine of [`crate::sim`].
    Sim,
}

impl Accel {
    /// The name in a report: `kvm`, `tcg` or `sim`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg { .. } => "tcg",
            Self::Sim => "sim",
        }
    }

    /// The same, but TCG runs the guest's CPUs in turn: for guests that patch their code hundreds
    /// of times under load, which ended in `Oops: int3` in QEMU 10.0, too.
    pub fn in_turn(self) -> Self {
        match self {
            Self::Kvm | Self::Sim => self,
            Self::Tcg { .. } => Self::Tcg { parallel: false },
        }
    }

    /// QEMU's option.
    fn option(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg { parallel: true } => "tcg,thread=multi",
            Self::Tcg { parallel: false } => "tcg,thread=single",
            // Each of many CPUs ends its turns at any instruction, for which QEMU translates anew.
            Self::Sim => "tcg,thread=single,tb-size=1024",
        }
    }

    /// TCG as this QEMU can do it. Prints a line if that is not in parallel.
    fn tcg(qemu: &Path) -> Result<Self> {
        let version = exec::output(Command::new(qemu).arg("--version"))?;
        let version = version
            .split_once("version ")
            .map_or("", |(_, rest)| rest)
            .split_whitespace()
            .next()
            .unwrap_or_default();
        let major = version.split('.').next().and_then(|n| n.parse().ok());
        let parallel = major >= Some(PARALLEL_TCG);
        if !parallel {
            eprintln!(
                "TCG of QEMU {version} runs the guest's CPUs in turn; from version {PARALLEL_TCG} \
                 on it can run them in parallel"
            );
        }
        Ok(Self::Tcg { parallel })
    }

    /// KVM if it runs this very image, else TCG. Prints a line that says why it is TCG.
    ///
    /// `/dev/kvm` may be there and still not run a kernel, so this boots the image; the result is
    /// remembered for this image, host kernel and QEMU.
    ///
    /// # Errors
    ///
    /// When the image or the cache cannot be used.
    pub fn choose(paths: &Paths, qemu: &Path, image: &Path, archive: &[u8]) -> Result<Self> {
        if let Err(error) = File::options().read(true).write(true).open(KVM) {
            eprintln!("TCG is used: {KVM} cannot be opened: {error}");
            return Self::tcg(qemu);
        }
        let mut key = Sha256::new();
        key.update(fs::read(image).with_context(|| format!("cannot read {}", image.display()))?);
        key.update(fs::read("/proc/version")?);
        key.update(exec::output(Command::new(qemu).arg("--version"))?);
        let key = format!("{:x}", key.finalize());
        let dir = paths.cache_dir("guest")?;
        let known = dir.join(format!("kvm-{}", &key[..16]));
        let log = dir.join(format!("kvm-{}.log", &key[..16]));
        // Empty: KVM works. Else why it does not.
        let reason = match fs::read_to_string(&known) {
            Ok(reason) => reason,
            Err(_) => {
                let topo = Topo {
                    llcs: 1,
                    cores: 2,
                    threads: 1,
                };
                let mut vm = Vm::new(qemu, image, archive, topo, Self::Kvm, &log);
                vm.boot = PROBE;
                let probe = vm.run(&Plan::Boot { settle_s: 0 }, |_| Ok(()));
                let reason = match probe {
                    Ok(_) => String::new(),
                    Err(error) => format!("{error:#}")
                        .lines()
                        .next()
                        .unwrap_or("?")
                        .to_owned(),
                };
                let mut file = tempfile::NamedTempFile::new_in(&dir)?;
                file.write_all(reason.as_bytes())?;
                file.persist(&known)?;
                reason
            }
        };
        if reason.is_empty() {
            return Ok(Self::Kvm);
        }
        let log = log.display();
        eprintln!("TCG is used: a guest under KVM did not boot: {reason} (log: {log})");
        Self::tcg(qemu)
    }
}

/// A guest to boot.
pub struct Vm<'a> {
    /// The program to run as QEMU.
    pub qemu: PathBuf,
    /// The kernel.
    pub image: &'a Path,
    /// The root file system without the plan, from [`initramfs::archive`].
    pub archive: &'a [u8],
    /// The machine; of a simulated one, what is measured.
    pub topo: Topo,
    /// What executes it.
    pub accel: Accel,
    /// Where the console goes: the whole kernel log. A file that is there is replaced.
    pub log: &'a Path,
    /// More for the kernel's command line.
    pub append: String,
    /// How many CPUs must be online: all, unless `append` says otherwise.
    pub online: u32,
    /// How long the guest may be silent before it counts as hung.
    pub quiet: Duration,
    /// How long it may take until its first event.
    pub boot: Duration,
}

impl<'a> Vm<'a> {
    /// A guest with the usual limits.
    pub fn new(
        qemu: &Path,
        image: &'a Path,
        archive: &'a [u8],
        topo: Topo,
        accel: Accel,
        log: &'a Path,
    ) -> Self {
        Self {
            qemu: qemu.to_owned(),
            image,
            archive,
            topo,
            accel,
            log,
            append: String::new(),
            online: match accel {
                Accel::Sim => Machine::new(topo).cpus(),
                _ => topo.cpus(),
            },
            quiet: QUIET,
            boot: BOOT,
        }
    }

    /// Boots the guest, hands each event to `on`, waits for power-off, and returns what the guest
    /// said of itself. An error from `on` ends the guest.
    ///
    /// # Errors
    ///
    /// When the guest reports an error, panics, hangs, sends garbage, has not the CPUs it was
    /// given or ends before its plan is done. The error has one line of cause and the log's path.
    /// No QEMU is left running, whatever happens to this process.
    pub fn run(&self, plan: &Plan, on: impl FnMut(&Event) -> Result<()>) -> Result<Hello> {
        self.try_run(plan, on)
            .map_err(|error| anyhow!("{error:#}\n  log: {}", self.log.display()))
    }

    fn try_run(&self, plan: &Plan, on: impl FnMut(&Event) -> Result<()>) -> Result<Hello> {
        ensure!(
            self.image.is_file(),
            "there is no kernel {}",
            self.image.display()
        );
        if let Some(dir) = self.log.parent() {
            fs::create_dir_all(dir)?;
        }
        // An old log must not explain a new failure.
        File::create(self.log).context("cannot write the log")?;
        // It has no name, so nothing is left of it when this process is killed; QEMU opens it
        // through this process's descriptor.
        let mut initrd = tempfile::tempfile().context("cannot make a temporary file")?;
        initrd.write_all(&initramfs::with_plan(self.archive, plan)?)?;
        let initrd_path = format!("/proc/{}/fd/{}", process::id(), initrd.as_raw_fd());
        if *plan == Plan::Shell {
            return self.interactive(&initrd_path, on);
        }
        let mut qemu = Qemu::start(
            self.batch(&initrd_path)
                .stdin(Stdio::null())
                .stdout(Stdio::piped()),
        )?;
        let stdout = qemu.child.stdout.take().context("QEMU has no output")?;
        let mut follow = Follow::new(self.online, on);
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            while let Some(line) = read_line(&mut reader).transpose() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let start = Instant::now();
        let mut heard = start;
        let mut console = 0;
        loop {
            match events.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => {
                    heard = Instant::now();
                    follow.line(&line?)?;
                    if follow.done {
                        break;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let why = qemu.wait(POWER_OFF)?;
                    return Err(self.cause(&why));
                }
                Err(RecvTimeoutError::Timeout) if follow.hello.is_none() => {
                    let size = fs::metadata(self.log).map_or(0, |log| log.len());
                    if size != console {
                        console = size;
                        heard = Instant::now();
                    }
                }
                // From the first event on only events count: a hung kernel may repeat forever on
                // the console that it hangs.
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(error) = qemu.kvm_error() {
                bail!("{error}");
            }
            if heard.elapsed() > self.quiet {
                let silent = self.quiet.as_secs();
                return Err(self.cause(&format!("the guest hangs: silent for {silent} s")));
            }
            if follow.hello.is_none() && start.elapsed() > self.boot {
                let limit = self.boot.as_secs();
                return Err(self.cause(&format!("the guest did not boot within {limit} s")));
            }
        }
        qemu.wait(POWER_OFF)
            .map_err(|error| self.cause(&error.to_string()))?;
        follow.end()
    }

    /// The console is the user's terminal; events are read afterwards.
    fn interactive(&self, initrd: &str, on: impl FnMut(&Event) -> Result<()>) -> Result<Hello> {
        let events = tempfile::NamedTempFile::new()?;
        let console = format!("stdio,id=console,signal=off,logfile={}", escape(self.log));
        let mut qemu = Qemu::start(
            self.command(initrd)
                .args(["-chardev", &console, "-chardev"])
                .arg(format!("file,id=events,path={}", escape(events.path()))),
        )?;
        let why = qemu.wait(Duration::MAX)?;
        let mut follow = Follow::new(self.online, on);
        let mut reader = BufReader::new(events.reopen()?);
        while let Some(line) = read_line(&mut reader)? {
            follow.line(&line)?;
        }
        if !follow.done {
            return Err(self.cause(&why));
        }
        follow.end()
    }

    /// QEMU's command, for a reader to repeat; the initramfs, which has no name, is called
    /// `initramfs.cpio` in it.
    pub fn command_line(&self) -> String {
        let command = self.batch("initramfs.cpio");
        let words = iter::once(command.get_program()).chain(command.get_args());
        shell_words::join(words.map(|word| word.to_string_lossy()))
    }

    /// QEMU with the console in the log and the events on its standard output.
    fn batch(&self, initrd: &str) -> Command {
        let mut command = self.command(initrd);
        command
            .arg("-chardev")
            .arg(format!("file,id=console,path={}", escape(self.log)))
            .args(["-chardev", "file,id=events,path=/dev/stdout"]);
        command
    }

    fn command(&self, initrd: &str) -> Command {
        let Topo {
            llcs,
            cores,
            threads,
        } = self.topo;
        // A busy host can be late with the ticks that the check of the timer counts, and a kernel
        // that misses them panics. Under KVM the kernel skips the check by itself. The same ticks
        // time the delay loop on each CPU, again and again when late; a value given instead, for
        // a TSC of 4 GHz, only makes the few delays of a boot longer on a slower one.
        let mut append =
            "console=ttyS0 ignore_loglevel panic=-1 oops=panic no_timer_check".to_owned();
        let machine = match self.accel {
            Accel::Sim => {
                let machine = Machine::new(self.topo);
                append.push_str(" lpj=1000000 ");
                append.push_str(&machine.append());
                machine.options()
            }
            _ => {
                append.push_str(" lpj=4000000");
                let smp = format!(
                    "{},sockets={llcs},cores={cores},threads={threads}",
                    self.topo.cpus()
                );
                ["-cpu", "max", "-smp", &smp].map(str::to_owned).to_vec()
            }
        };
        if !self.append.is_empty() {
            append.push(' ');
            append.push_str(&self.append);
        }
        let mut command = Command::new(&self.qemu);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            // With `panic=-1` a panic reboots at once, which here ends QEMU.
            .args(["-no-reboot", "-machine", "q35"])
            .args(["-accel", self.accel.option()])
            .args(["-m", &MEMORY_MIB.to_string()])
            .args(machine)
            .arg("-kernel")
            .arg(self.image)
            .args(["-initrd", initrd, "-append", &append])
            .args(["-serial", "chardev:console", "-serial", "chardev:events"]);
        command
    }

    /// The error for a guest that failed: its log may explain more than `otherwise`.
    fn cause(&self, otherwise: &str) -> anyhow::Error {
        let log = fs::read(self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let after = |text| {
            let (_, rest) = log.split_once(text)?;
            rest.lines().next().map(str::trim)
        };
        if let Some(panic) = after("Kernel panic - not syncing: ") {
            anyhow!("the guest's kernel panicked: {panic}")
        } else if let Some(message) = after("sched-ab-agent: ") {
            // It had no port for events.
            anyhow!("the guest reports: {message}")
        } else {
            anyhow!("{otherwise}")
        }
    }
}

/// One line for people: what the guest sees.
pub fn describe(hello: &Hello) -> String {
    let llcs = match hello.llcs.as_slice() {
        [] => "no last-level cache".to_owned(),
        [one] => format!("1 LLC ({one})"),
        many => format!("{} LLCs ({})", many.len(), many.join(" | ")),
    };
    format!(
        "Linux {}, {} CPUs: {llcs}, {} cores, threads per core: {}",
        hello.release, hello.cpus, hello.cores, hello.threads
    )
}

/// A comma in a path must be doubled in QEMU's options.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Reads a line, `None` at the end.
fn read_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(LINE).read_until(b'\n', &mut line)?;
    Ok((!line.is_empty()).then_some(line))
}

/// What the events say so far.
struct Follow<F> {
    online: u32,
    on: F,
    hello: Option<Hello>,
    done: bool,
}

impl<F: FnMut(&Event) -> Result<()>> Follow<F> {
    fn new(online: u32, on: F) -> Self {
        Self {
            online,
            on,
            hello: None,
            done: false,
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        let Ok(event) = serde_json::from_slice(line) else {
            let start: String = String::from_utf8_lossy(line).chars().take(80).collect();
            bail!("the guest sent garbage instead of an event: {start:?}");
        };
        match &event {
            Event::Hello(hello) => {
                ensure!(
                    hello.cpus == self.online,
                    "the guest has {} CPUs online, not {}",
                    hello.cpus,
                    self.online
                );
                self.hello = Some(hello.clone());
            }
            Event::Error { message } => bail!("the guest reports: {message}"),
            Event::Done => self.done = true,
            _ => {}
        }
        (self.on)(&event)
    }

    fn end(self) -> Result<Hello> {
        self.hello.context("the guest did not introduce itself")
    }
}

/// A running QEMU that does not outlive this value, nor this process.
struct Qemu {
    child: Child,
    /// What it prints as errors; a file, since nobody reads it while QEMU runs.
    stderr: File,
}

impl Qemu {
    fn start(command: &mut Command) -> Result<Self> {
        let stderr = tempfile::tempfile().context("cannot make a temporary file")?;
        command.stderr(stderr.try_clone()?);
        let parent = Pid::this();
        // SAFETY: Between fork and exec the closure only makes system calls, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                set_pdeathsig(Signal::SIGKILL)?;
                // The parent may have died before the line above.
                if getppid() != parent {
                    return Err(Errno::ESRCH.into());
                }
                Ok(())
            });
        }
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, stderr })
    }

    /// What it printed as errors so far.
    fn complaints(&self) -> String {
        let mut bytes = vec![0; 4096];
        let count = self.stderr.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    /// The error on which KVM stops a guest for good while QEMU goes on.
    fn kvm_error(&self) -> Option<String> {
        let complaints = self.complaints();
        let line = complaints
            .lines()
            .find(|line| line.starts_with("KVM internal error"))?;
        Some(line.trim().to_owned())
    }

    /// Waits until QEMU ends and says how it did.
    fn wait(&mut self, limit: Duration) -> Result<String> {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(start.elapsed() < limit, "the guest does not power off");
            thread::sleep(Duration::from_millis(20));
        };
        if status.success() {
            return Ok("the guest ended before its plan was done".to_owned());
        }
        let complaints = self.complaints();
        let line = complaints.trim().lines().last().unwrap_or_default();
        Ok(format!("QEMU failed ({status}) {line}").trim().to_owned())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only if QEMU has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// A guest whose QEMU is a script that behaves as `case` says, and the folder of its log.
    fn fake(case: &str, check: impl FnOnce(&Vm<'_>, &Path)) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a, b/dmesg");
        let image = dir.path().join("bzImage");
        fs::write(&image, "").unwrap();
        let topo = "1x2x1".parse().unwrap();
        let qemu = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fake-qemu.sh");
        let accel = Accel::Tcg { parallel: true };
        let mut vm = Vm::new(&qemu, &image, b"", topo, accel, &log);
        vm.append = format!("fake={case}");
        vm.quiet = Duration::from_secs(1);
        check(&vm, dir.path());
    }

    fn error(case: &str) -> String {
        let mut text = String::new();
        fake(case, |vm, _| {
            let error = vm.run(&Plan::Boot { settle_s: 0 }, |_| Ok(())).unwrap_err();
            let log = format!("\n  log: {}", vm.log.display());
            text = error.to_string();
            assert!(text.ends_with(&log) && text.lines().count() == 2, "{text}");
            text = text.lines().next().unwrap().to_owned();
        });
        text
    }

    #[test]
    fn a_plan_that_is_done_gives_its_events_and_log() {
        fake("good", |vm, _| {
            let mut events = Vec::new();
            let hello = vm
                .run(&Plan::Boot { settle_s: 0 }, |event| {
                    events.push(event.clone());
                    Ok(())
                })
                .unwrap();
            assert_eq!(hello.release, "7.3.4");
            assert_eq!(events[1..], [Event::Alive, Event::Done]);
            assert_eq!(
                describe(&hello),
                "Linux 7.3.4, 2 CPUs: 1 LLC (0-1), 2 cores, threads per core: 1"
            );
            assert_eq!(fs::read_to_string(vm.log).unwrap(), "booting\n");
        });
    }

    #[test]
    fn each_failure_has_its_cause() {
        for (case, cause) in [
            (
                "garbage",
                r#"the guest sent garbage instead of an event: "\u{1}\u{2}garbage\n""#,
            ),
            ("hang", "the guest hangs: silent for 1 s"),
            ("chatty", "the guest hangs: silent for 1 s"),
            (
                "panic",
                "the guest's kernel panicked: Attempted to kill init!",
            ),
            ("early", "the guest ended before its plan was done"),
            ("failed", "QEMU failed (exit status: 1) no such machine"),
            ("error", "the guest reports: no feature X"),
            ("noport", "the guest reports: cannot open /dev/ttyS1"),
            ("cpus", "the guest has 1 CPUs online, not 2"),
            ("kvm", "KVM internal error. Suberror: 1"),
        ] {
            assert_eq!(error(case), cause, "{case}");
        }
    }

    #[test]
    fn a_boot_that_only_prints_ends() {
        fake("printing", |vm, _| {
            let vm = Vm {
                boot: Duration::from_secs(2),
                // On a busy host it may be silent for more than a second.
                quiet: Duration::from_secs(60),
                append: vm.append.clone(),
                qemu: vm.qemu.clone(),
                ..*vm
            };
            let error = vm.run(&Plan::Boot { settle_s: 0 }, |_| Ok(())).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with("the guest did not boot within 2 s")
            );
        });
    }

    #[test]
    fn the_callers_error_ends_the_guest() {
        fake("hang", |vm, _| {
            let error = vm
                .run(&Plan::Boot { settle_s: 0 }, |_| bail!("enough"))
                .unwrap_err();
            assert!(error.to_string().starts_with("enough\n  log: "));
        });
    }

    #[test]
    fn no_qemu_is_left_when_a_guest_hangs() {
        fake("hang", |vm, dir| {
            let start = Instant::now();
            vm.run(&Plan::Boot { settle_s: 0 }, |_| Ok(())).unwrap_err();
            // Killed, not waited for.
            assert!(start.elapsed() < Duration::from_secs(30));
            let pid = fs::read_to_string(dir.join("a, b/pid")).unwrap();
            assert!(!Path::new("/proc").join(pid.trim()).exists());
        });
    }

    #[test]
    fn qemu_dies_with_its_parent_thread() {
        fake("hang", |vm, dir| {
            // The signal comes when the thread that started QEMU ends, as when a process is killed.
            let mut command = vm.command("/dev/null");
            command.arg("-chardev").arg(format!(
                "file,id=console,path={}",
                escape(&dir.join("dmesg"))
            ));
            let mut child = thread::spawn(move || {
                let qemu = Qemu::start(command.stdout(Stdio::null())).unwrap();
                std::mem::ManuallyDrop::new(qemu)
            })
            .join()
            .unwrap();
            let status = child.child.wait().unwrap();
            assert_eq!(status.to_string(), "signal: 9 (SIGKILL)");
        });
    }

    #[test]
    fn a_missing_kernel_or_qemu_is_named() {
        fake("good", |vm, dir| {
            let qemu = Path::new("no-such-qemu");
            let mut vm = Vm::new(qemu, vm.image, b"", vm.topo, vm.accel, vm.log);
            let error = vm.run(&Plan::Shell, |_| Ok(())).unwrap_err().to_string();
            assert!(error.starts_with("cannot start no-such-qemu"), "{error}");
            let image = dir.join("none");
            vm.image = &image;
            let error = vm.run(&Plan::Shell, |_| Ok(())).unwrap_err().to_string();
            assert!(error.starts_with("there is no kernel"), "{error}");
        });
    }

    #[test]
    fn topologies() {
        for (text, cpus) in [("1x1x1", 1), ("2x4x1", 8), ("2x2x2", 8), ("255x1x1", 255)] {
            let topo: Topo = text.parse().unwrap();
            assert_eq!((topo.cpus(), topo.to_string().as_str()), (cpus, text));
        }
        for (text, cause) in [
            ("", "is no topology"),
            ("2x4", "is no topology"),
            ("2x4x1x1", "is no topology"),
            ("2x-4x1", "is no topology"),
            ("axbxc", "is no topology"),
            ("99999999999x1x1", "is no topology"),
            ("0x4x1", "must be 1 or more"),
            ("2x4x0", "must be 1 or more"),
            ("256x1x1", "too large"),
            // 195 CPUs, but 65 cores take 7 bits.
            ("3x65x1", "too large"),
            ("4294967295x4294967295x4294967295", "too large"),
        ] {
            let error = text.parse::<Topo>().unwrap_err().to_string();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }
}
