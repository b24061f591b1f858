//! Saves the files read from a host as a tree that can be read again.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use evenkeel_model::host::LATENCY_SERVERS;

use super::interfaces::{nic_directory, recorded_place};
use super::sockets::hexadecimal_address;
use super::tree::{ANSWERS, Tree};
use crate::HostError;

/// Metadata of a recording: `evenkeel/about.json`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct About {
    pub(super) format: u32,
    /// Size of a memory page, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) page_bytes: Option<u64>,
    /// Whether addresses and process names were replaced.
    #[serde(default)]
    pub(super) anonymised: bool,
    /// Files for which the kernel had no value, such as the duplex mode of a link that is down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) without_value: Vec<String>,
    /// Sysctls that no program could set, by their path below `/proc/sys`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) read_only: Vec<String>,
    /// Sources that could not be read when the recording was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unknown: Vec<evenkeel_model::host::Unknown>,
}

/// Version of the layout of a recording. Recordings of other versions cannot be read.
pub(super) const FORMAT: u32 = 1;

/// Words of the kernel's command line about CPUs, memory, interrupts, PCI and the IOMMU. Other words are
/// not saved, because they may contain names.
pub(super) const COMMAND_LINE: &[&str] = &[
    "iommu",
    "isolcpus",
    "nohz_full",
    "nohz",
    "idle",
    "intel_idle",
    "processor",
    "mitigations",
    "nosmt",
    "numa_balancing",
    "pci",
    "pcie_aspm",
    "pcie_port_pm",
    "irqaffinity",
    "rcu_nocbs",
    "threadirqs",
    "cpufreq",
    "intel_pstate",
    "amd_pstate",
    "amd_iommu",
    "intel_iommu",
    "skew_tick",
    "tsc",
    "transparent_hugepage",
];

pub(super) fn kept_words(command_line: &str) -> Vec<String> {
    let is_kept = |word: &&str| {
        let key = word.split(['=', '.']).next().unwrap_or_default();
        COMMAND_LINE.contains(&key)
    };
    command_line.split_ascii_whitespace().filter(is_kept).map(str::to_owned).collect()
}

/// The entry of a recording that is written last.
pub(super) const LAST: &str = "evenkeel";

/// Writes a recording into an empty directory. Returns the number of files.
///
/// # Errors
/// Returns an error if the directory cannot be written.
pub(super) fn write(tree: Tree, directory: &Path, anonymise: bool) -> Result<usize, HostError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| HostError::Write { path, source }
    };
    let recording = tree.into_recording();
    let mut names = Names::default();
    let links: std::collections::BTreeMap<String, String> =
        recording.links.into_iter().filter(|(link, _)| link.ends_with("/device")).collect();
    for (link, name) in &links {
        let place = directory.join(link.trim_start_matches('/'));
        let target = format!("../../..{}", nic_directory(link).trim_start_matches("/sys"));
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        let nic = directory.join(nic_directory(link).trim_start_matches('/')).join(name);
        fs::create_dir_all(&nic).map_err(failed(&nic))?;
        std::os::unix::fs::symlink(format!("{target}/{name}"), &place).map_err(failed(&place))?;
    }
    let mut written = 0;
    for (path, text) in &recording.files {
        let text = match path.as_str() {
            "/proc/cmdline" => kept_words(text).join(" "),
            _ if anonymise => names.anonymised(path, text),
            _ => text.clone(),
        };
        let place = directory.join(recorded_place(path, &links).strip_prefix("/").unwrap_or(Path::new(path)));
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        fs::write(&place, text + "\n").map_err(failed(&place))?;
        written += 1;
    }
    Ok(written)
}

/// Replacements for addresses and process names. The same input always gets the same replacement.
#[derive(Default)]
struct Names {
    addresses: HashMap<String, String>,
    processes: HashMap<String, String>,
}

impl Names {
    fn anonymised(&mut self, path: &str, text: &str) -> String {
        let file = path.rsplit('/').next().unwrap_or_default();
        match file {
            _ if path == format!("{ANSWERS}/sockets.json") => self.sockets(text),
            _ if path == format!("{ANSWERS}/ports.json") => self.ports(text),
            "udp" | "udp6" | "raw" | "raw6" => self.udp(text),
            "comm" => self.process(text),
            "stat" if path != "/proc/stat" => match (text.split_once('('), text.rsplit_once(')')) {
                (Some((number, rest)), Some((_, fields))) => {
                    let name = rest.rsplit_once(')').map_or("", |(name, _)| name);
                    format!("{number}({}){fields}", self.process(name))
                }
                _ => String::new(),
            },
            "status" => {
                let is_kept =
                    |line: &&str| line.starts_with("Cpus_allowed") || line.starts_with("Mems_allowed");
                text.lines().filter(is_kept).collect::<Vec<_>>().join("\n")
            }
            _ => text.to_owned(),
        }
    }

    /// Maps an address to a private or unique local address, because there are too few documentation
    /// addresses (RFC 5737, RFC 3849). Maps an IPv4 loopback address to another loopback address. Keeps
    /// 127.0.0.1, ::1, unspecified addresses, and a text that is not an address.
    fn address(&mut self, address: &str) -> String {
        let Ok(found) = address.parse::<IpAddr>() else { return address.to_owned() };
        if found.is_unspecified()
            || [Ipv4Addr::LOCALHOST.into(), IpAddr::from(Ipv6Addr::LOCALHOST)].contains(&found)
        {
            return address.to_owned();
        }
        let number = self.addresses.len() + 1;
        // Start at 127.0.0.2, because only 127.0.0.1 may map to 127.0.0.1.
        let (network, number_v4) = if found.is_loopback() { (127, number + 1) } else { (10, number) };
        let [high, middle, low] = [number_v4 >> 16 & 255, number_v4 >> 8 & 255, number_v4 & 255];
        let other = if found.is_ipv4() {
            format!("{network}.{high}.{middle}.{low}")
        } else {
            format!("fd00::{number:x}")
        };
        self.addresses.entry(address.to_owned()).or_insert(other).clone()
    }

    fn end(&mut self, end: &str) -> String {
        match end.parse::<std::net::SocketAddr>() {
            Ok(found) => {
                let address = self.address(&found.ip().to_string());
                if found.is_ipv6() {
                    format!("[{address}]:{}", found.port())
                } else {
                    format!("{address}:{}", found.port())
                }
            }
            Err(_) => String::new(),
        }
    }

    /// Maps a process name. Keeps the names that rules use to recognise a program.
    fn process(&mut self, name: &str) -> String {
        if name == "irqbalance" || LATENCY_SERVERS.contains(&name) {
            return name.to_owned();
        }
        let number = self.processes.len() + 1;
        self.processes.entry(name.to_owned()).or_insert_with(|| format!("process-{number}")).clone()
    }

    fn sockets(&mut self, text: &str) -> String {
        let Ok(mut sockets) = serde_json::from_str::<Vec<evenkeel_model::host::SocketFacts>>(text) else {
            return String::new();
        };
        for socket in &mut sockets {
            socket.local = self.end(&socket.local);
            if !socket.remote.is_empty() {
                socket.remote = self.end(&socket.remote);
            }
        }
        serde_json::to_string_pretty(&sockets).unwrap_or_default()
    }

    fn ports(&mut self, text: &str) -> String {
        let Ok(mut ports) = serde_json::from_str::<Option<evenkeel_model::host::PortUse>>(text) else {
            return String::new();
        };
        if let Some(ports) = &mut ports {
            ports.local = self.address(&ports.local);
            ports.remote = self.end(&ports.remote);
        }
        serde_json::to_string_pretty(&ports).unwrap_or_default()
    }

    /// Replaces both addresses of each socket in `/proc/net/udp`, `udp6`, `raw` or `raw6`, in the kernel's
    /// notation.
    fn udp(&mut self, text: &str) -> String {
        let mut lines = text.lines();
        let mut kept = vec![lines.next().unwrap_or_default().to_owned()];
        for line in lines {
            let mut fields: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
            for field in fields.iter_mut().skip(1).take(2) {
                let Some(found) = hexadecimal_address(field) else { continue };
                let width = field.split(':').next().map_or(8, str::len);
                let other: Option<IpAddr> = self.address(&found.ip().to_string()).parse().ok();
                let bytes = match other {
                    Some(IpAddr::V4(address)) if width == 8 => address.octets().to_vec(),
                    Some(IpAddr::V4(address)) => address.to_ipv6_mapped().octets().to_vec(),
                    Some(IpAddr::V6(address)) => address.octets().to_vec(),
                    None => continue,
                };
                let words: Vec<String> = bytes
                    .chunks_exact(4)
                    .map(|word| format!("{:08X}", u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
                    .collect();
                *field = format!("{}:{:04X}", words.concat(), found.port());
            }
            kept.push(fields.join(" "));
        }
        kept.join("\n")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn names_and_addresses_are_replaced_the_same_way_everywhere() {
        let mut names = Names::default();
        assert_eq!(names.end("192.0.2.7:80"), "10.0.0.1:80");
        assert_eq!(names.end("[2001:db8::1]:443"), "[fd00::2]:443");
        assert_eq!(names.end("127.0.0.1:53"), "127.0.0.1:53");
        assert_eq!(names.end("127.9.8.7:53"), "127.0.0.4:53");
        // 192.0.2.7 in the notation of /proc/net/udp.
        let udp = names.udp("  sl  local_address\n 1: 070200C0:0035 00000000:0000 07");
        assert_eq!(udp, "  sl  local_address\n1: 0100000A:0035 00000000:0000 07");
        assert_eq!(names.anonymised("/proc/7/comm", "payroll"), "process-1");
        assert_eq!(names.anonymised("/proc/7/stat", "7 (payroll) S 1 2"), "7 (process-1) S 1 2");
        for kept in ["irqbalance", "redis-server", "memcached"] {
            assert_eq!(names.anonymised("/proc/8/comm", kept), kept);
        }
        assert_eq!(
            names.anonymised("/proc/7/status", "Name:\tpayroll\nCpus_allowed_list:\t0-3"),
            "Cpus_allowed_list:\t0-3"
        );
    }

    /// 127.0.0.1 is kept, so no other address may map to 127.0.0.1.
    #[test]
    fn no_address_becomes_one_that_is_kept() {
        let mut names = Names::default();
        let ends = ["127.0.0.5:53", "127.0.0.1:53", "127.0.0.2:53", "10.0.0.1:53"].map(|end| names.end(end));
        let different: std::collections::BTreeSet<&String> = ends.iter().collect();
        assert!(different.len() == ends.len() && ends[1] == "127.0.0.1:53", "{ends:?}");
    }

    #[test]
    fn the_command_line_keeps_what_concerns_processors() {
        let words = kept_words(
            "BOOT_IMAGE=/vmlinuz root=UUID=1234 intel_iommu=on isolcpus=2-5 intel_idle.max_cstate=1 ip=10.0.0.1 pci=nomsi,noaer",
        );
        assert_eq!(words, ["intel_iommu=on", "isolcpus=2-5", "intel_idle.max_cstate=1", "pci=nomsi,noaer"]);
    }
}
