//! Reads a host's kernel, CPUs, privileges, interfaces and tools. Changes no setting.
//!
//! The paths of a [`Host`] are below a root that the caller sets: `/` on a live machine, a directory with
//! recorded files in a test. An error of a file names the file, and the line if the contents are wrong.

pub mod counters;
mod cpu;
mod error;
mod ethtool;
pub mod facts;
mod flows;
mod identity;
mod interface;
mod namespaces;
mod owner;
mod privilege;
mod process_time;
mod queue_interrupts;
mod socket_name;
mod sysfs;
mod tool;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

pub use cpu::{CpuShares, CpuTimes};
pub use error::HostError;
pub use ethtool::{Channels, Ethtool, RuleTable};
pub use flows::{Flow, FlowReader, FlowTuple, Listener, Reading};
pub use identity::{NamespaceIdentity, ProcessIdentity};
pub use interface::{XpsKey, XpsMap, mask_members, name_of, there_is};
pub use namespaces::{NetworkNamespace, Scope, is_process_number};
pub use owner::{Owner, Owners};
pub use privilege::Capability;
pub use process_time::{ProcessTime, TICKS_PER_SECOND, others_ticks};
pub use queue_interrupts::QueueInterrupt;
pub use socket_name::{DEFAULT_SOCKET, NameHolder, SERVICE_NAME, SocketName, service_socket};
pub use sysfs::Sysfs;
pub use tool::{find_tool, tool_version};

/// A host, as the files below a root describe it.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    #[must_use]
    pub fn live() -> Self {
        Self::at("/")
    }

    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the location of a file of the host, given by its absolute path.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns a file's text without surrounding white space.
    pub fn read(&self, path: &str) -> Result<String, HostError> {
        let path = self.path(path);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(source) => Err(HostError::Read { path, source }),
        }
    }

    /// Returns the kernel release, such as `6.18.44`.
    pub fn kernel_release(&self) -> Result<String, HostError> {
        self.read("/proc/sys/kernel/osrelease")
    }

    /// Returns the memory available without swapping, bytes (`MemAvailable` of proc(5)); `None` if the kernel
    /// does not report it, or if the file cannot be read.
    #[must_use]
    pub fn available_memory(&self) -> Option<u64> {
        let text = self.read("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Checks that the file systems in `mounts` (`/proc` or `/sys`) are mounted. Without them, a host
    /// cannot be read.
    ///
    /// # Errors
    /// Returns [`HostError::NotMounted`] for the first file system that is not mounted.
    pub fn require_mounted(&self, mounts: &[&'static str]) -> Result<(), HostError> {
        let is_missing = |mount: &&&str| {
            let file = if **mount == "/proc" { "/proc/self/stat" } else { "/sys/class/net" };
            !self.path(file).exists()
        };
        mounts.iter().find(is_missing).map_or(Ok(()), |mount| Err(HostError::NotMounted { mount }))
    }

    #[must_use]
    pub fn has_sysfs(&self) -> bool {
        self.path("/sys/kernel").is_dir()
    }

    /// Returns whether the kernel has BTF type information, which CO-RE programs need. A sandbox may mount an
    /// empty file over the kernel's file.
    #[must_use]
    pub fn has_btf(&self) -> bool {
        /// `BTF_MAGIC` (include/uapi/linux/btf.h).
        const MAGIC: u16 = 0xeb9f;
        let path = self.path("/sys/kernel/btf/vmlinux");
        let mut magic = [0; 2];
        let mut read = || File::open(&path)?.read_exact(&mut magic);
        path.is_file() && read().is_ok() && u16::from_ne_bytes(magic) == MAGIC
    }

    /// Returns the congestion controls that are available in the kernel. Sockets without privileges may
    /// choose only some of them (`tcp_allowed_congestion_control`).
    pub fn congestion_controls(&self) -> Result<Vec<String>, HostError> {
        let text = self.read("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }

    /// Returns the facts for a record. Omits facts that cannot be read, because they are not essential.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<String, String> {
        let mut facts = BTreeMap::new();
        let mut note = |name: &str, value: Option<String>| {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                facts.insert(name.to_owned(), value);
            }
        };
        note("kernel", self.kernel_release().ok());
        note("cpu", self.line_value("/proc/cpuinfo", "model name"));
        note("memory", self.line_value("/proc/meminfo", "MemTotal"));
        note("cpus", self.cpu_times().ok().map(|times| times.cpus().to_string()));
        note("distribution", self.distribution());
        note(
            "clocksource",
            self.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").ok(),
        );
        note("governor", self.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok());
        facts
    }

    fn distribution(&self) -> Option<String> {
        let text = self.read("/etc/os-release").ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix("PRETTY_NAME=")?.trim_matches('"').to_owned()))
    }

    /// Returns the value of the first line `key : value` with this key; `None` if the file has no such line
    /// or cannot be read.
    fn line_value(&self, path: &str, key: &str) -> Option<String> {
        let text = self.read(path).ok()?;
        text.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == key).then(|| value.trim().to_owned())
        })
    }
}
