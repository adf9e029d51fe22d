// SPDX-License-Identifier: GPL-2.0

//! The guest's machine: file systems, limits, topology, scheduler features.

use std::{
    collections::BTreeMap,
    fs,
    os::{fd::AsRawFd, unix::net::UnixDatagram},
    path::Path,
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    libc,
    mount::{MsFlags, mount},
    sys::resource::{Resource, setrlimit},
};
use sched_ab_protocol::Hello;

const FEATURES: &str = "/sys/kernel/debug/sched/features";
const CPUS: &str = "/sys/devices/system/cpu";

/// Open files that a process may have: hackbench needs 40 for each group.
const OPEN_FILES: u64 = 65536;

/// What is mounted where, and whether the kernel may lack it.
const MOUNTS: [(&str, &str, bool); 8] = [
    ("proc", "/proc", false),
    ("sysfs", "/sys", false),
    ("devtmpfs", "/dev", false),
    ("debugfs", "/sys/kernel/debug", false),
    ("tracefs", "/sys/kernel/tracing", true),
    ("cgroup2", "/sys/fs/cgroup", true),
    ("tmpfs", "/tmp", false),
    ("tmpfs", "/dev/shm", false),
];

/// Mounts the kernel's file systems.
pub fn mount_all() -> Result<()> {
    for (kind, target, optional) in MOUNTS {
        // A kernel without tracing or cgroups does not have their folders in sysfs either.
        if !Path::new(target).exists() && fs::create_dir(target).is_err() && optional {
            continue;
        }
        match mount(
            Some(kind),
            target,
            Some(kind),
            MsFlags::empty(),
            None::<&str>,
        ) {
            // The kernel mounts debugfs's tracing folder and, as configured, devtmpfs itself.
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(Errno::ENODEV) if optional => {}
            Err(error) => bail!("cannot mount {kind} on {target}: {}", error.desc()),
        }
    }
    Ok(())
}

nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);

/// Brings the loopback interface up, which also gives it its address.
pub fn loopback_up() -> Result<()> {
    let socket = UnixDatagram::unbound().context("the kernel has no sockets")?;
    // SAFETY: An `ifreq` is plain integers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: The request is a whole `ifreq` whose name ends with a zero, as the call expects.
    unsafe { set_interface_flags(socket.as_raw_fd(), &request) }
        .context("cannot bring the loopback interface up")?;
    Ok(())
}

/// Lets the programs open as many files as the workloads need.
pub fn raise_limits() -> Result<()> {
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES)
        .context("cannot raise the number of open files")
}

/// What the guest sees.
pub fn hello() -> Result<Hello> {
    let online = parse_list(&read(&format!("{CPUS}/online"))?)?;
    let mut llcs = BTreeMap::new();
    let mut cores = BTreeMap::new();
    for cpu in &online {
        if let Some(list) = llc(*cpu)? {
            llcs.insert(parse_list(&list)?, list);
        }
        let core = read(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"))?;
        cores.insert(parse_list(&core)?, ());
    }
    Ok(Hello {
        release: read("/proc/sys/kernel/osrelease")?,
        cpus: u32::try_from(online.len())?,
        llcs: llcs.into_values().collect(),
        cores: u32::try_from(cores.len())?,
        threads: u32::try_from(cores.keys().map(Vec::len).max().unwrap_or(0))?,
        features: read(FEATURES)?,
    })
}

/// The CPU list of the last-level cache of `cpu`, if the machine tells of caches.
fn llc(cpu: u32) -> Result<Option<String>> {
    let Ok(caches) = fs::read_dir(format!("{CPUS}/cpu{cpu}/cache")) else {
        return Ok(None);
    };
    let mut last = None;
    for cache in caches {
        let cache = cache?.path();
        let Ok(level) = fs::read_to_string(cache.join("level")) else {
            continue;
        };
        let list = read(&cache.join("shared_cpu_list").to_string_lossy())?;
        last = last.max(Some((level.trim().parse::<u32>()?, list)));
    }
    Ok(last.map(|(_, list)| list))
}

/// Reads a small file without the white space around it.
fn read(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

/// The CPUs of a list as `0-3,8`.
fn parse_list(list: &str) -> Result<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse()?, last.parse()?);
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Switches a scheduler feature and reads back that it took.
pub fn set_feature(name: &str, on: bool) -> Result<()> {
    if state(&read(FEATURES)?, name)? == on {
        return Ok(());
    }
    let text = if on {
        name.to_owned()
    } else {
        format!("NO_{name}")
    };
    fs::write(FEATURES, &text).with_context(|| format!("cannot write {text} to {FEATURES}"))?;
    if state(&read(FEATURES)?, name)? != on {
        bail!("the kernel took {text} but did not switch the feature");
    }
    Ok(())
}

/// Whether the feature `name` is on according to the kernel's list.
fn state(features: &str, name: &str) -> Result<bool> {
    let mut names = Vec::new();
    for word in features.split_whitespace() {
        let (feature, on) = match word.strip_prefix("NO_") {
            Some(feature) => (feature, false),
            None => (word, true),
        };
        if feature == name {
            return Ok(on);
        }
        names.push(feature);
    }
    bail!(
        "this kernel has no scheduler feature {name}; it has {}",
        names.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_list("0-3,8").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("5").unwrap(), [5]);
        assert!(parse_list("").unwrap().is_empty());
        assert!(parse_list("0-x").is_err());
    }

    #[test]
    fn features_are_found_or_listed() {
        let list = "PLACE_LAG NO_HRTICK NONTASK_CAPACITY";
        assert!(state(list, "PLACE_LAG").unwrap());
        assert!(!state(list, "HRTICK").unwrap());
        assert!(state(list, "NONTASK_CAPACITY").unwrap());
        let error = state(list, "SHARED").unwrap_err().to_string();
        assert!(error.contains("no scheduler feature SHARED; it has PLACE_LAG, HRTICK"));
    }
}
