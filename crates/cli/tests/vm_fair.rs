//! `evenkeel fair` on drivers of real multi-queue devices, in the virtual machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_netlink::Netlink;
use evenkeel_testbed::{Namespace, Process, ProcessOptions};

use support::{Ended, end, evenkeel};

const NEAR: &str = "198.18.0.1";
const FAR: &str = "198.18.0.2";
/// What an emulated link may take: igb negotiates.
const LIMIT: Duration = Duration::from_secs(60);

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn shell(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn interfaces_of(driver: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir("/sys/class/net")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let of = std::fs::read_link(entry.path().join("device/driver")).ok()?;
            (of.file_name()? == driver).then(|| entry.file_name().into_string().unwrap())
        })
        .collect();
    names.sort();
    names
}

/// The two interfaces of a driver, back to back: one here, to be managed as on any host, the other far away.
struct Pair {
    name: String,
    far: Namespace,
    state: tempfile::TempDir,
}

impl Pair {
    fn take(driver: &str) -> Self {
        assert!(
            Path::new("/run/evenkeel/guest").exists(),
            "this test takes network devices: run it with ./dev test --tier vm"
        );
        // The devices of an earlier test come back when the kernel has ended its namespaces.
        wait_for("both interfaces of the driver", || interfaces_of(driver).len() == 2);
        let names = interfaces_of(driver);
        let far = Namespace::new().unwrap();
        let mut here = Netlink::open().unwrap();
        let index = here.link_index(&names[1]).unwrap();
        here.move_link(index, far.as_fd()).unwrap();
        let mut there = far.netlink().unwrap();
        let far_index = there.link_index(&names[1]).unwrap();
        there.add_address(far_index, FAR.parse().unwrap(), 24).unwrap();
        there.set_up(far_index).unwrap();
        let index = here.link_index(&names[0]).unwrap();
        here.add_address(index, NEAR.parse().unwrap(), 24).unwrap();
        here.set_up(index).unwrap();
        let carrier = format!("/sys/class/net/{}/carrier", names[0]);
        wait_for("the link is up", || std::fs::read_to_string(&carrier).is_ok_and(|text| text.trim() == "1"));
        Self { name: names[0].clone(), far, state: tempfile::tempdir().unwrap() }
    }

    fn fair(&self, arguments: &[&str]) -> Ended {
        let mut command = evenkeel(&[&["fair", &self.name], arguments].concat());
        command.env("EVENKEEL_STATE_DIR", self.state.path());
        end(command)
    }

    /// Four flows at 20 Mbit/s each, for as long as the value lives; two minutes at most.
    fn load(&self) -> Load {
        // It ends with the test's thread, and after its one client.
        let server = Process::start(ProcessOptions {
            program: "iperf3",
            arguments: ["--server", "--one-off", "--bind", FAR].iter().map(Into::into).collect(),
            namespace: &self.far,
            cpu: None,
            inherit: None,
        })
        .unwrap();
        wait_for("iperf3 listens", || self.far.listens(FAR.parse().unwrap(), 5201).unwrap());
        let mut client = Command::new("iperf3");
        client.args([
            "--client",
            FAR,
            "--parallel",
            "4",
            "--bitrate",
            "20M",
            "--congestion",
            "cubic",
            "--time",
            "120",
        ]);
        let client = client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("every stream is connected", || {
            // The control connection is one more.
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            table.lines().filter(|line| line.contains(":1451 01 ")).count() > 4
        });
        Load { client, _server: server }
    }

    fn seen(&self) -> String {
        let queues = format!("/sys/class/net/{}/queues", self.name);
        let maps: String = (0..4)
            .map(|queue| std::fs::read_to_string(format!("{queues}/tx-{queue}/xps_cpus")).unwrap())
            .collect();
        let link = shell(&["ip", "-d", "link", "show", "dev", &self.name]);
        maps + &link + &shell(&["tc", "qdisc", "show", "dev", &self.name])
    }
}

struct Load {
    client: Child,
    _server: Process,
}

impl Drop for Load {
    fn drop(&mut self) {
        // Both fail only when it is already gone.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["address", "flush", "dev", &self.name]).status();
    }
}

fn status(ended: &Ended) -> serde_json::Value {
    let seen: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    seen["devices"][0]["status"].clone()
}

#[test]
fn the_maps_of_virtio_net_are_refused_then_taken_over_and_put_back() {
    let pair = Pair::take("virtio_net");
    let before = pair.seen();
    assert!(before.starts_with("1\n2\n4\n8\n"), "{before}");
    let refused = pair.fair(&["--for", "1s"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    for words in ["driver virtio_net", "one queue to each processor", "--xps off"] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    let _load = pair.load();
    let ended = pair.fair(&["--xps", "off", "--for", "10s", "--format", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let status = status(&ended);
    assert_eq!(status["driver"], "virtio_net");
    assert!(status["proof"].as_str().unwrap().contains("follow the choices"), "{status}");
    assert_eq!(pair.seen(), before);
}

#[test]
fn igb_follows_the_choice_and_a_soft_nic_gives_its_qdiscs_back() {
    let pair = Pair::take("igb");
    let before = pair.seen();
    let _load = pair.load();
    let ended = pair.fair(&["--for", "10s", "--format", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let found = status(&ended);
    assert!(found["proof"].as_str().unwrap().contains("follow the choices"), "{found}");
    assert_eq!(pair.seen(), before);
    let arguments = ["--queue-weights", "htb", "--rate", "50mbit", "--for", "12s", "--format", "json"];
    let ended = pair.fair(&arguments);
    assert_eq!(ended.code, 0, "{ended:?}");
    let found = status(&ended);
    assert!(found["proof"].as_str().unwrap().contains("follow the choices"), "{found}");
    assert_eq!(pair.seen(), before);
}
