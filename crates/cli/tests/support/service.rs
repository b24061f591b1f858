//! A running service on two interfaces of a namespace.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use evenkeel_netlink::VethOptions;
use evenkeel_service::{Command as Wanted, Request, ask};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::fd::AsFd;

use super::file;
use super::leftovers::children;
use super::managed::{DRIVERS_MAPS, Managed, NAME, kill_process, wait_for};
use super::running::Running;

/// The second interface. Its peer is `evk3`.
pub const OTHER: &str = "evk2";
/// Time limit of an operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Place {
    pub managed: Managed,
    directory: tempfile::TempDir,
}

impl Place {
    /// Creates the interfaces `evk0`, with XPS maps, and `evk2`.
    pub fn new() -> Self {
        let mut managed = Managed::with_maps();
        add_other(&mut managed);
        Self { managed, directory: tempfile::tempdir().unwrap() }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    pub fn file(&self) -> PathBuf {
        self.directory.path().join("evenkeel.toml")
    }

    /// Writes a configuration with these rules.
    pub fn write(&self, rules: &str) {
        let socket = self.socket();
        let text = format!("schema = 1\n[service]\nsocket = \"{}\"\n{rules}\n", socket.to_str().unwrap());
        file(self.directory.path(), "evenkeel.toml", text);
    }

    pub fn command(&self) -> Command {
        let mut command = self.managed.command(&["service", "--config"]);
        command.arg(self.file());
        command
    }

    /// Starts the service, and waits until it is ready.
    pub fn start(&self) -> Running {
        let mut service = Running::start(self.command());
        service.wait_for_activity("ready: ");
        service
    }

    /// Returns a client command for the service.
    pub fn client(&self, words: &[&str]) -> Command {
        let mut command = self.managed.command(words);
        command.arg("--socket").arg(self.socket());
        command
    }

    pub fn status(&self) -> Value {
        ask(&self.socket(), &Request { command: Wanted::Status, interface: None }).unwrap()
    }

    /// Returns the status of one interface; null if it is not managed.
    pub fn interface(&self, name: &str) -> Value {
        let status = self.status();
        let all = status["interfaces"].as_array().unwrap();
        all.iter().find(|interface| interface["name"] == name).cloned().unwrap_or_default()
    }

    pub fn process(&self, name: &str) -> u32 {
        self.interface(name)["process"].as_u64().unwrap_or_default().try_into().unwrap()
    }

    pub fn wait_for(&self, name: &str, state: &str) {
        wait_for(&format!("{name} is {state}, not {}", self.status()), PATIENCE, || {
            self.interface(name)["state"] == state
        });
    }

    /// Waits until an interface is fair in a process other than `before`. Returns the new process.
    pub fn wait_for_restart(&self, name: &str, before: u32) -> u32 {
        wait_for(&format!("{name} has a new worker"), PATIENCE, || {
            let interface = self.interface(name);
            interface["state"] == "fair" && interface["process"] != before
        });
        self.process(name)
    }

    /// Ends the service by SIGTERM. Checks that everything is restored. Returns the messages of the
    /// service.
    pub fn end(&self, mut service: Running) -> String {
        service.signal(Signal::SIGTERM);
        let ended = service.end();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(self.managed.journals(), Vec::<String>::new(), "{ended:?}");
        assert!(!self.socket().exists());
        ended.stderr
    }

    /// With `are_empty`, waits until the XPS maps of `evk0` are empty. Otherwise waits until they are
    /// the driver's.
    pub fn wait_for_maps(&self, are_empty: bool) {
        let maps = if are_empty { ["0"; 4] } else { DRIVERS_MAPS };
        self.managed.wait_for_maps(&maps, PATIENCE);
    }

    pub fn shell(&self, line: &str) -> String {
        self.managed.shell(&line.split(' ').collect::<Vec<_>>())
    }

    pub fn add_other(&mut self) {
        add_other(&mut self.managed);
    }
}

/// Kills the worker of `evk0` with its guardian while the supervisor is stopped, and calls `change` before
/// the supervisor continues.
pub fn lose_worker(place: &Place, service: &mut Running, change: impl FnOnce()) {
    let supervisor = Pid::from_raw(service.id().cast_signed());
    let worker = place.process(FIRST);
    kill(supervisor, Signal::SIGSTOP).unwrap();
    // Stop the worker, so that it starts no new guardian.
    kill(Pid::from_raw(worker.cast_signed()), Signal::SIGSTOP).unwrap();
    children(worker).iter().for_each(|guardian| kill_process(guardian.id));
    kill_process(worker);
    change();
    kill(supervisor, Signal::SIGCONT).unwrap();
}

fn add_other(managed: &mut Managed) {
    let pair = VethOptions {
        name: OTHER,
        peer_name: "evk3",
        peer_namespace: managed.peer.as_fd(),
        queues: 4,
        mtu: 1500,
    };
    managed.netlink.add_veth(&pair).unwrap();
    let index = managed.netlink.link_index(OTHER).unwrap();
    managed.netlink.set_up(index).unwrap();
    let mut far = managed.peer.netlink().unwrap();
    let far_index = far.link_index("evk3").unwrap();
    far.set_up(far_index).unwrap();
    wait_for("a carrier", PATIENCE, || managed.shell(&["ip", "link", "show", OTHER]).contains(" state UP "));
    managed.shell(&["tc", "qdisc", "replace", "dev", OTHER, "root", "handle", "7:", "mq"]);
}

/// A rule for both interfaces.
pub const BOTH: &str = "[[interface]]\nmatch = { name = \"evk?\" }\nfair = { xps = \"off\" }";
/// Returns a rule for one interface.
pub fn only(name: &str) -> String {
    format!("[[interface]]\nmatch = {{ name = \"{name}\" }}\nfair = {{ xps = \"off\" }}")
}

pub const FIRST: &str = NAME;
