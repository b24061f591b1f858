//! A managed interface: one end of a veth pair with several queues, in a namespace created for the
//! test.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_host::Sysfs;
use evenkeel_netlink::{Netlink, VethOptions};
use evenkeel_testbed::{Namespace, Process, ProcessOptions, TestbedError};
use nix::sys::signal::Signal;

use super::evenkeel;
use super::leftovers::children;
use super::running::Running;

pub const NAME: &str = "evk0";
const PEER: &str = "evk1";
const OWN_ADDRESS: &str = "198.18.0.1";
const PEER_ADDRESS: &str = "198.18.0.2";
/// Message of a session when it manages the interface.
pub const AT_WORK: &str = "managed now";
/// Time limit for an operation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// XPS maps that a driver might have set: CPU 0 uses queue 0, CPU 1 uses queue 1, and no CPU uses queues 2
/// and 3.
pub const DRIVERS_MAPS: [&str; 4] = ["1", "2", "0", "0"];

pub struct Managed {
    pub host: Namespace,
    pub peer: Namespace,
    pub netlink: Netlink,
    pub index: u32,
    pub state: tempfile::TempDir,
}

impl Managed {
    /// Creates an interface with four queues and the root `mq`, which counts packets per queue.
    pub fn new() -> Self {
        let (host, peer) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        // Disable IPv6: its link-local address and route would appear later, at a random time.
        if Path::new("/proc/sys/net/ipv6").exists() {
            host.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        }
        let mut netlink = host.netlink().unwrap();
        let pair =
            VethOptions { name: NAME, peer_name: PEER, peer_namespace: peer.as_fd(), queues: 4, mtu: 1500 };
        netlink.add_veth(&pair).unwrap();
        let index = netlink.link_index(NAME).unwrap();
        let mut far = peer.netlink().unwrap();
        let far_index = far.link_index(PEER).unwrap();
        netlink.add_address(index, OWN_ADDRESS.parse().unwrap(), 24).unwrap();
        far.add_address(far_index, PEER_ADDRESS.parse().unwrap(), 24).unwrap();
        netlink.set_up(index).unwrap();
        far.set_up(far_index).unwrap();
        let managed = Self { host, peer, netlink, index, state: tempfile::tempdir().unwrap() };
        // The carrier appears shortly after both ends are up. Wait for it, so that tests do not see
        // this change.
        wait_for("a carrier", PATIENCE, || {
            managed.shell(&["ip", "link", "show", NAME]).contains(" state UP ")
        });
        managed.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "7:", "mq"]);
        managed
    }

    /// Creates an interface as [`Self::new`] does, with XPS maps that a driver might have set.
    pub fn with_maps() -> Self {
        let managed = Self::new();
        for (queue, map) in (0..).zip(DRIVERS_MAPS) {
            managed.set_map(queue, map);
        }
        managed
    }

    pub fn set_map(&self, queue: u32, map: &str) {
        let file = format!("class/net/{NAME}/queues/tx-{queue}/xps_cpus");
        self.host.write_sysfs(&[(file, map.to_owned())]).unwrap();
    }

    pub fn maps(&self) -> Vec<String> {
        self.sysfs(|sysfs| {
            (0..4)
                .map(|queue| {
                    sysfs
                        .read(&format!("class/net/{NAME}/queues/tx-{queue}/xps_cpus"))
                        .unwrap_or_else(|_| "none".to_owned())
                })
                .collect()
        })
    }

    fn sysfs<T: Send>(&self, look: impl FnOnce(&Sysfs) -> T + Send) -> T {
        let look = || Ok::<_, TestbedError>(look(&Sysfs::of_namespace().unwrap()));
        self.host.run(look).unwrap()
    }

    pub fn enter(&self, command: Command) -> Command {
        inside(&self.host, command)
    }

    /// Runs a tool that must succeed. Returns its output.
    pub fn shell(&self, words: &[&str]) -> String {
        tool(&self.host, words)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = evenkeel(arguments);
        command.env("EVENKEEL_STATE_DIR", self.state.path());
        self.enter(command)
    }

    /// Creates an interface with the rate limit `rate`, such as "50mbit", on each of its four queues, so that
    /// packets must wait.
    pub fn shaped(rate: &str) -> Self {
        let managed = Self::new();
        for queue in 1..=4 {
            let (parent, handle) = (format!("7:{queue}"), format!("1{queue}:"));
            managed.shell(&[
                "tc", "qdisc", "replace", "dev", NAME, "parent", &parent, "handle", &handle, "tbf", "rate",
                rate, "burst", "70k", "limit", "1m",
            ]);
        }
        managed
    }

    /// Starts a session of `evenkeel fair`, and waits until it manages the interface.
    pub fn session(&self, arguments: &[&str]) -> Running {
        let mut running = Running::start(self.command(&[&["fair", NAME], arguments].concat()));
        running.wait_for_activity(AT_WORK);
        running
    }

    /// Starts a session of `evenkeel steer`, and waits until it manages the interface.
    pub fn steering(&self, arguments: &[&str]) -> Running {
        let mut running = Running::start(self.command(&[&["steer", NAME], arguments].concat()));
        running.wait_for_activity("steered now");
        running
    }

    /// Returns settings that a session could change, as procfs, sysfs and the usual tools show them. Leaves
    /// out RPS masks and filters of clsact.
    pub fn seen(&self) -> String {
        let maps = self.maps().join(" ");
        let receive = self.sysfs(|sysfs| {
            (0..4)
                .flat_map(|queue| [format!("tx-{queue}/xps_rxqs"), format!("rx-{queue}/rps_cpus")])
                .map(|file| {
                    sysfs
                        .read(&format!("class/net/{NAME}/queues/{file}"))
                        .unwrap_or_else(|_| "none".to_owned())
                })
                .collect::<Vec<_>>()
        });
        [
            self.host.run(|| Ok(sysctls(Path::new("/proc/sys/net")))).unwrap(),
            self.shell(&["tc", "qdisc", "show"]),
            self.shell(&["tc", "class", "show", "dev", NAME]),
            self.shell(&["tc", "filter", "show", "dev", NAME]),
            self.shell(&["ip", "-d", "link"]),
            self.shell(&["ip", "route", "show", "table", "all"]),
            maps,
            receive.join(" "),
        ]
        .join("\n")
    }

    /// Sends datagrams over the loopback to a port without a socket, so that `udp-no-port` has a finding. No
    /// command fixes the finding.
    pub fn send_to_closed_port(&self) {
        self.shell(&["ip", "link", "set", "lo", "up"]);
        let send = || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            (0..20_000).for_each(|_| drop(socket.send_to(b"x", "127.0.0.1:9")));
            Ok::<_, TestbedError>(())
        };
        self.host.run(send).unwrap();
    }

    /// Moves the interface to the namespace of its peer and back. Each namespace has another interface with its
    /// index, so the interface returns with another index. Returns this index.
    pub fn leave_and_return(&self) -> u32 {
        let index = self.leave();
        self.come_back(index)
    }

    /// Moves the interface to the namespace of its peer. Returns its index there.
    pub fn leave(&self) -> u32 {
        let before = self.host.netlink().unwrap().link_index(NAME).unwrap();
        self.host.netlink().unwrap().move_link(before, self.peer.as_fd()).unwrap();
        let index = self.peer.netlink().unwrap().link_index(NAME).unwrap();
        assert_ne!(index, before);
        index
    }

    /// Moves the interface from the namespace of its peer, where it has this index, to its own.
    pub fn come_back(&self, index: u32) -> u32 {
        self.peer.netlink().unwrap().move_link(index, self.host.as_fd()).unwrap();
        let mut netlink = self.host.netlink().unwrap();
        let index = netlink.link_index(NAME).unwrap();
        netlink.set_up(index).unwrap();
        wait_for("a carrier", PATIENCE, || self.shell(&["ip", "link", "show", NAME]).contains(" state UP "));
        self.shell(&["tc", "qdisc", "replace", "dev", NAME, "root", "handle", "7:", "mq"]);
        index
    }

    pub fn journals(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.state.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub fn wait_for_maps(&self, maps: &[&str], limit: Duration) {
        wait_for(&format!("the maps {maps:?}"), limit, || self.maps() == maps);
    }

    /// Starts iperf3 over the interface. `rate` is the rate per stream.
    pub fn load(&self, streams: u32, rate: &str, seconds: u32) -> Load<'_> {
        let duration = Duration::from_secs(seconds.into());
        let (streams, seconds) = (streams.to_string(), seconds.to_string());
        let server = start(&self.peer, &["--server", "--one-off", "--port", "5201", "--bind", PEER_ADDRESS]);
        wait_for("iperf3 listens", PATIENCE, || {
            self.peer.listens(PEER_ADDRESS.parse().unwrap(), 5201).unwrap()
        });
        let client = start(
            &self.host,
            &[
                "--client",
                PEER_ADDRESS,
                "--port",
                "5201",
                "--json",
                "--congestion",
                "cubic",
                "--parallel",
                &streams,
                "--bitrate",
                rate,
                "--time",
                &seconds,
            ],
        );
        wait_for("every stream is connected", PATIENCE, || {
            // iperf3's control connection is an additional connection.
            let connected = self.host.connections_to(PEER_ADDRESS.parse().unwrap(), 5201).unwrap();
            connected > streams.parse::<usize>().unwrap()
        });
        Load { client, duration, _server: server, _place: self }
    }
}

fn start(namespace: &Namespace, arguments: &[&str]) -> Process {
    Process::start(ProcessOptions {
        program: "iperf3",
        arguments: arguments.iter().map(Into::into).collect(),
        namespace,
        cpu: None,
        inherit: None,
    })
    .unwrap()
}

/// Running traffic. Dropping the value ends the traffic.
pub struct Load<'a> {
    client: Process,
    duration: Duration,
    _server: Process,
    _place: &'a Managed,
}

impl Load<'_> {
    pub fn is_running(&mut self) -> bool {
        !self.client.has_ended().unwrap()
    }

    /// Waits until the traffic ends. Checks that iperf3 reports no error, and reports the received bytes.
    pub fn finish(mut self) {
        let limit = self.duration + Duration::from_secs(120);
        wait_for("iperf3 ends", limit, || self.client.has_ended().unwrap());
        let text = self.client.output_text().unwrap();
        assert!(!text.contains("\"error\""), "{text}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(report["end"]["sum_received"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{text}");
    }
}

/// Returns the readable sysctls below a directory, in the calling thread's namespace. Leaves out the lists of
/// congestion controls.
fn sysctls(directory: &Path) -> String {
    let mut entries: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    // The kernel lists the congestion controls of the whole machine, including those of other tests.
    entries.retain(|path| {
        !path.ends_with("tcp_available_congestion_control")
            && !path.ends_with("tcp_allowed_congestion_control")
    });
    let text = entries.iter().map(|path| match std::fs::read_to_string(path) {
        _ if path.is_dir() => sysctls(path),
        Ok(text) => format!("{} = {}\n", path.display(), text.trim()),
        // Some sysctls are write-only.
        Err(_) => String::new(),
    });
    text.collect()
}

pub fn wait_for(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(POLL);
    }
}

pub fn inside(space: &Namespace, mut command: Command) -> Command {
    let namespace = space.as_fd().as_raw_fd();
    // SAFETY: the closure makes one system call, on a descriptor that the fork has copied.
    unsafe {
        command.pre_exec(move || {
            if libc::setns(namespace, libc::CLONE_NEWNET) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command
}

/// Makes a command run with a `/sys` of its network namespace, as `ip netns exec` mounts it.
pub fn with_own_sysfs(mut command: Command) -> Command {
    let mount = |source: Option<&CStr>, target: &CStr, kind: Option<&CStr>, flags| {
        let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the strings end with 0, and the data pointer is null.
        match unsafe { libc::mount(pointer(source), target.as_ptr(), pointer(kind), flags, std::ptr::null()) }
        {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure only makes system calls, on strings that are part of the program.
    unsafe {
        command.pre_exec(move || {
            if libc::unshare(libc::CLONE_NEWNS) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            mount(None, c"/", None, libc::MS_REC | libc::MS_SLAVE)?;
            mount(Some(c"sysfs"), c"/sys", Some(c"sysfs"), 0)
        });
    }
    command
}

/// Runs a tool, which must succeed, in a namespace. Returns its output.
pub fn tool(space: &Namespace, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    let output = inside(space, command).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Kills a run and its guardians before any of them can react.
pub fn kill_both(mut running: Running) {
    let guardians = children(running.id());
    // Stop the run first, so that it starts no new guardian while the old guardian is killed.
    running.signal(Signal::SIGSTOP);
    for guardian in guardians {
        kill_process(guardian.id);
    }
    running.kill();
}

pub fn kill_process(id: u32) {
    // SAFETY: the call takes a process id and a signal.
    unsafe { libc::kill(id.cast_signed(), libc::SIGKILL) };
}

pub fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

/// Checks that two results of [`Managed::seen`] are equal. Names the lines that differ.
pub fn assert_same(now: &str, before: &str, what: &str) {
    let missing = |of: &str, from: &str| {
        let lines: std::collections::BTreeSet<&str> = from.lines().collect();
        of.lines().filter(|line| !lines.contains(line)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(now == before, "{what}: came: {:#?}\nwent: {:#?}", missing(now, before), missing(before, now));
}
