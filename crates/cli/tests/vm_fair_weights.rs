//! Tests `evenkeel fair --queue-weights` on devices of the virtual machine: netdevsim supports weights, igb
//! does not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_netlink::Netlink;
use evenkeel_netlink::shaper::{Shaper, Shapers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::{Ended, end, ended, evenkeel};

const BUS: &str = "/sys/bus/netdevsim";
const QUEUES: u32 = 4;
const LIMIT: Duration = Duration::from_secs(60);

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A simulated device with a shaper on one of its queues. Dropping the value removes the device.
struct Simulated {
    id: u32,
    name: String,
    index: u32,
    shapers: Shapers,
    before: BTreeMap<u32, Shaper>,
    state: tempfile::TempDir,
}

impl Simulated {
    fn new(id: u32) -> Self {
        assert!(Command::new("modprobe").arg("netdevsim").status().unwrap().success());
        fs::write(format!("{BUS}/new_device"), format!("{id} 1 {QUEUES}")).unwrap();
        let entry = fs::read_dir(format!("{BUS}/devices/netdevsim{id}/net")).unwrap().next().unwrap();
        let name = entry.unwrap().file_name().into_string().unwrap();
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link_index(&name).unwrap();
        netlink.set_up(index).unwrap();
        let mut shapers = Shapers::open().unwrap().expect("this kernel has net-shaper");
        let limited = Shaper { weight: 9, bandwidth_max: 10_000_000_000, ..Shaper::default() };
        shapers.restore_queue(index, 2, Some(&limited)).unwrap();
        let before = shapers.queues(index).unwrap();
        assert_eq!(before, BTreeMap::from([(2, limited)]));
        Self { id, name, index, shapers, before, state: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = evenkeel(&[&["fair", &self.name], arguments].concat());
        command.env("EVENKEEL_STATE_DIR", self.state.path());
        command
    }

    /// Starts a run. Waits until every queue has the initial weight of a queue without flows.
    fn managed(&mut self, weights: &str) -> Child {
        let mut command = self.command(&["--queue-weights", weights, "--format", "json"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("every queue has a weight of ours", || {
            let shapers = self.shapers.queues(self.index).unwrap();
            shapers.len() == QUEUES as usize && shapers.values().all(|shaper| shaper.weight == 1)
        });
        let rate = self.shapers.queue(self.index, 2).unwrap().unwrap().bandwidth_max;
        assert_eq!(rate, self.before[&2].bandwidth_max, "the rest of a shaper stays");
        child
    }

    fn assert_as_before(&mut self) {
        assert_eq!(self.shapers.queues(self.index).unwrap(), self.before);
        let left: Vec<_> = fs::read_dir(self.state.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let _ = fs::write(format!("{BUS}/del_device"), self.id.to_string());
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

fn finish(child: Child) -> Ended {
    ended(child.wait_with_output().unwrap())
}

#[test]
fn weights_come_with_a_run_and_go_with_it() {
    guest::require();
    let mut device = Simulated::new(91);
    for weights in ["net-shaper", "auto"] {
        let running = device.managed(weights);
        signal(&running, Signal::SIGTERM);
        let ended = finish(running);
        assert_eq!(ended.code, 0, "{ended:?}");
        let seen: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let status = &seen["devices"][0]["status"];
        assert_eq!(status["queue_weights"], "net-shaper", "{status}");
        assert!(status["weight_updates"].as_u64().unwrap() >= 1, "{status}");
        assert_eq!(seen["devices"][0]["settings"]["put_back"], QUEUES, "{seen}");
        device.assert_as_before();
    }
}

#[test]
fn weights_of_a_killed_run_are_put_back() {
    guest::require();
    let mut device = Simulated::new(92);
    let mut running = device.managed("net-shaper");
    signal(&running, Signal::SIGKILL);
    running.wait().unwrap();
    let Simulated { shapers, index, before, .. } = &mut device;
    wait_for("the guardian has restored the weights", || shapers.queues(*index).unwrap() == *before);
    let state = device.state.path().to_owned();
    wait_for("the journal is gone", || fs::read_dir(&state).unwrap().next().is_none());
    device.assert_as_before();
}

#[test]
fn a_weight_that_another_program_sets_stays() {
    guest::require();
    let mut device = Simulated::new(93);
    let running = device.managed("net-shaper");
    device.shapers.set_queue_weight(device.index, 1, 70_000).unwrap();
    let ended = finish(running);
    assert_eq!(ended.code, 4, "{ended:?}");
    let words = format!("another program set the shaper weight of queue 1 of {} to 70000", device.name);
    assert!(ended.stderr.contains(&words), "{ended:?}");
    let mut expected = device.before.clone();
    expected.insert(1, Shaper { weight: 70_000, ..Shaper::default() });
    assert_eq!(device.shapers.queues(device.index).unwrap(), expected);
}

#[test]
fn the_plan_has_every_weight_with_its_undo_and_changes_none() {
    guest::require();
    let mut device = Simulated::new(94);
    let ended = end(device.command(&["--queue-weights", "net-shaper", "--plan"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(
        ended.stdout.matches("\nynl --family net-shaper --do set").count(),
        QUEUES as usize,
        "{ended:?}"
    );
    assert_eq!(ended.stdout.matches("undo: ynl --family net-shaper --do delete").count(), 3, "{ended:?}");
    assert!(ended.stdout.contains(r#""id": 2}, "weight": 9}'"#), "{ended:?}");
    device.assert_as_before();
}

#[test]
fn a_device_that_takes_no_weights_is_refused_or_left_alone() {
    guest::require();
    let of_igb = |entry: &fs::DirEntry| {
        fs::read_link(entry.path().join("device/driver")).is_ok_and(|driver| driver.ends_with("igb"))
    };
    let found = || fs::read_dir("/sys/class/net").unwrap().map(Result::unwrap).find(of_igb);
    wait_for("an interface of igb", || found().is_some());
    let name = found().unwrap().file_name().into_string().unwrap();
    let mut netlink = Netlink::open().unwrap();
    let index = netlink.link_index(&name).unwrap();
    netlink.set_up(index).unwrap();
    let fair = |arguments: &[&str]| end(evenkeel(&[&["fair", &name, "--plan"], arguments].concat()));

    let refused = fair(&["--queue-weights", "net-shaper"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.stderr.contains("(driver igb) does not support queue weights"), "{refused:?}");
    let refused = fair(&["--queue-weights", "max-rate", "--rate", "1gbit"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(
        refused.stderr.contains("(igb) does not support a maximum rate per queue (tx_maxrate)"),
        "{refused:?}"
    );
    let left_alone = fair(&["--queue-weights", "auto"]);
    assert_eq!(left_alone.code, 0, "{left_alone:?}");
    for words in [
        "does not support queue weights (net-shaper): the device schedules its queues without weights",
        "no setting is changed",
    ] {
        assert!(left_alone.stdout.contains(words), "{words}: {left_alone:?}");
    }
}
