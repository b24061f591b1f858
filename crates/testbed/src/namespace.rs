//! Unnamed network namespaces, entered with setns(2).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use evenkeel_netlink::Netlink;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::TestbedError;

/// A network namespace. It exists as long as this value or a process inside it.
#[derive(Debug)]
pub struct Namespace {
    descriptor: File,
}

impl Namespace {
    /// Creates a namespace with its loopback interface up.
    pub fn new() -> Result<Self, TestbedError> {
        // unshare(2) moves the calling thread, so use a temporary thread.
        let namespace = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|error| TestbedError::system("make a network namespace")(error.into()))?;
            let descriptor = File::open("/proc/thread-self/ns/net")
                .map_err(TestbedError::system("open the new network namespace"))?;
            Ok(Self { descriptor })
        })?;
        namespace.netlink()?.set_up(1)?;
        Ok(namespace)
    }

    /// Runs `work` inside the namespace on a temporary thread, because setns(2) would move the caller's
    /// thread.
    pub fn run<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, TestbedError> + Send,
    ) -> Result<T, TestbedError> {
        on_own_thread(|| {
            setns(&self.descriptor, CloneFlags::CLONE_NEWNET)
                .map_err(|error| TestbedError::system("enter a network namespace")(error.into()))?;
            work()
        })
    }

    pub fn netlink(&self) -> Result<Netlink, TestbedError> {
        self.run(|| Ok(Netlink::open()?))
    }

    /// Sets a sysctl of the namespace, such as `net/ipv4/tcp_limit_output_bytes`.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), TestbedError> {
        self.run(|| {
            let path = format!("/proc/sys/{name}");
            std::fs::write(&path, value).map_err(TestbedError::system(format!("write '{value}' to {path}")))
        })
    }

    /// Writes files of the namespace's sysfs. Paths are relative to `/sys`.
    pub fn write_sysfs(&self, files: &[(String, String)]) -> Result<(), TestbedError> {
        self.in_sysfs(|| {
            for (path, value) in files {
                let path = format!("/sys/{path}");
                std::fs::write(&path, value)
                    .map_err(TestbedError::system(format!("write '{value}' to {path}")))?;
            }
            Ok(())
        })
    }

    /// Reads files of the namespace's sysfs, without surrounding white space. Paths are relative to `/sys`.
    pub fn read_sysfs(&self, files: &[String]) -> Result<Vec<String>, TestbedError> {
        let read = |path: &String| {
            let path = format!("/sys/{path}");
            let text =
                std::fs::read_to_string(&path).map_err(TestbedError::system(format!("read {path}")))?;
            Ok(text.trim().to_owned())
        };
        self.in_sysfs(|| files.iter().map(read).collect())
    }

    /// Runs `work` with the namespace's `/sys`. A sysfs shows the devices of the namespace in which it
    /// was mounted. This function therefore mounts a sysfs in a mount namespace that ends with the
    /// thread.
    fn in_sysfs<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, TestbedError> + Send,
    ) -> Result<T, TestbedError> {
        const NOTHING: Option<&str> = None;
        self.run(|| {
            let system = |action: &str| {
                let action = action.to_owned();
                move |error: nix::Error| TestbedError::system(action)(error.into())
            };
            unshare(CloneFlags::CLONE_NEWNS).map_err(system("make a mount namespace"))?;
            mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING)
                .map_err(system("make mounts private"))?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), NOTHING)
                .map_err(system("mount sysfs"))?;
            work()
        })
    }

    /// Reads a file below `/proc/thread-self/net`.
    pub fn read_proc_net(&self, name: &str) -> Result<String, TestbedError> {
        self.run(|| {
            let path = format!("/proc/thread-self/net/{name}");
            std::fs::read_to_string(&path).map_err(TestbedError::system(format!("read {path}")))
        })
    }

    /// Returns the number of established TCP connections from the namespace to a port. `address` only selects
    /// the IP version.
    pub fn connections_to(&self, address: IpAddr, port: u16) -> Result<usize, TestbedError> {
        let file = if address.is_ipv4() { "tcp" } else { "tcp6" };
        Ok(established_to(&self.read_proc_net(file)?, port))
    }

    pub(crate) fn listening_ports(&self) -> Result<HashSet<u16>, TestbedError> {
        Ok(ports(&self.read_proc_net("tcp")?, LISTEN, LOCAL_END).collect())
    }

    /// Returns the number of the namespace's established IPv4 TCP connections for each remote port.
    pub(crate) fn connections_by_port(&self) -> Result<HashMap<u16, usize>, TestbedError> {
        let mut found = HashMap::new();
        for port in ports(&self.read_proc_net("tcp")?, ESTABLISHED, FAR_END) {
            *found.entry(port).or_default() += 1;
        }
        Ok(found)
    }

    pub fn listens(&self, address: IpAddr, port: u16) -> Result<bool, TestbedError> {
        let file = if address.is_ipv4() { "tcp" } else { "tcp6" };
        Ok(lists_listener(&self.read_proc_net(file)?, port))
    }
}

/// States of sockets and column numbers in a table like `/proc/net/tcp` (proc_pid_net(5)).
const ESTABLISHED: &str = "01";
const LISTEN: &str = "0A";
const LOCAL_END: usize = 1;
const FAR_END: usize = 2;

/// Returns the local or remote ports of the sockets in a state.
fn ports<'t>(table: &'t str, state: &'static str, end: usize) -> impl Iterator<Item = u16> + 't {
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
        if fields.get(3) != Some(&state) {
            return None;
        }
        fields.get(end)?.rsplit(':').next()?.parse_hex()
    })
}

fn established_to(table: &str, port: u16) -> usize {
    ports(table, ESTABLISHED, FAR_END).filter(|found| *found == port).count()
}

fn lists_listener(table: &str, port: u16) -> bool {
    ports(table, LISTEN, LOCAL_END).any(|found| found == port)
}

trait ParseHex {
    fn parse_hex(&self) -> Option<u16>;
}

impl ParseHex for str {
    fn parse_hex(&self) -> Option<u16> {
        u16::from_str_radix(self, 16).ok()
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T, TestbedError> + Send) -> Result<T, TestbedError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work);
        let thread = thread.map_err(TestbedError::system("start a thread"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_listeners_only() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n   \
                     1: 0100007F:1452 0100007F:9999 01 00000000:00000000 00:00000000 00000000\n";
        assert_eq!((established_to(table, 0x9999), established_to(table, 0x1452)), (1, 0));
        assert_eq!((established_to("", 1), established_to("header\nshort\n", 1)), (0, 0));
        assert!(lists_listener(table, 0x1451));
        assert!(!lists_listener(table, 0x1452));
        assert!(!lists_listener("", 1));
        assert!(!lists_listener("header\nshort\n", 1));
    }
}
