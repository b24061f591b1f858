//! Tests `evenkeel fair` on drivers of multi-queue devices, in the virtual machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_netlink::Netlink;
use evenkeel_testbed::{Namespace, Process, ProcessOptions};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::managed::kill_both;
use support::running::Running;
use support::{Ended, end, ended, evenkeel};

const NEAR: &str = "198.18.0.1";
const FAR: &str = "198.18.0.2";
/// Time limit for an emulated link. It is long because igb negotiates the link.
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

/// The two connected interfaces of a driver: one is managed, the other is in another namespace.
struct Pair {
    name: String,
    far_name: String,
    far: Namespace,
    state: tempfile::TempDir,
}

impl Pair {
    fn take(driver: &str) -> Self {
        wait_for("both interfaces of the driver", || interfaces_of(driver).len() == 2);
        let names: [String; 2] = interfaces_of(driver).try_into().unwrap();
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
        let [name, far_name] = names;
        Self { name, far_name, far, state: tempfile::tempdir().unwrap() }
    }

    fn fair(&self, arguments: &[&str]) -> Ended {
        let mut command = evenkeel(&[&["fair", &self.name], arguments].concat());
        command.env("EVENKEEL_STATE_DIR", self.state.path());
        end(command)
    }

    fn start_batching(&self, arguments: &[&str]) -> Child {
        let mut command = evenkeel(&[&["fair", &self.name, "--batching", "on"], arguments].concat());
        command.env("EVENKEEL_STATE_DIR", self.state.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts a session with batching, and waits until Evenkeel's qdisc is at every queue.
    fn batching(&self, arguments: &[&str]) -> Child {
        let mut child = self.start_batching(arguments);
        wait_for("every queue has a leaf of ours", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            self.leaves().iter().filter(|kind| is_our_leaf(kind, child.id())).count() == QUEUES
        });
        child
    }

    fn leaves(&self) -> Vec<String> {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link_index(&self.name).unwrap();
        let qdiscs = netlink.qdiscs(index).unwrap();
        qdiscs.into_iter().skip(1).map(|qdisc| qdisc.kind).collect()
    }

    fn has_changes(&self) -> bool {
        std::fs::read_dir(self.state.path()).unwrap().any(|entry| {
            // Another process may have removed the journal. A journal without entries has two lines.
            std::fs::read_to_string(entry.unwrap().path()).is_ok_and(|text| text.lines().count() > 2)
        })
    }

    fn sent(&self) -> u64 {
        let file = format!("/sys/class/net/{}/statistics/tx_bytes", self.name);
        std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Starts four flows at 20 Mbit/s each. They run until the value is dropped, but at most two
    /// minutes.
    fn load(&self) -> Load {
        // The server ends after its only client, or with the test's thread.
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
            // iperf3's control connection is an additional connection.
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
        // Leave out packet counts, which are not settings: IPv6 may send a packet at any time.
        let qdiscs = shell(&["tc", "qdisc", "show", "dev", &self.name]);
        let is_count = |word: &str, last: &str| last == "direct_packets_stat" && word.parse::<u64>().is_ok();
        let words: Vec<&str> = qdiscs.split(' ').collect();
        let settings = words
            .iter()
            .enumerate()
            .map(|(at, word)| if at > 0 && is_count(word, words[at - 1]) { "COUNT" } else { word });
        let filters =
            ["egress", "ingress"].map(|hook| shell(&["tc", "filter", "show", "dev", &self.name, hook]));
        maps + &link + &settings.collect::<Vec<_>>().join(" ") + &filters.join("")
    }

    /// Returns the bytes that each queue has sent, from igb's own counters.
    fn sent_by_queue(&self) -> [u64; QUEUES] {
        let statistics = shell(&["ethtool", "-S", &self.name]);
        std::array::from_fn(|queue| {
            let name = format!("tx_queue_{queue}_bytes:");
            let line = statistics.lines().find_map(|line| line.trim().strip_prefix(&name));
            line.unwrap().trim().parse().unwrap()
        })
    }

    fn session(&self) -> Running {
        let mut command = evenkeel(&["fair", &self.name]);
        command.env("EVENKEEL_STATE_DIR", self.state.path());
        let mut running = Running::start(command);
        running.wait_for_activity("managed now");
        running
    }
}

const QUEUES: usize = 4;

fn is_our_leaf(kind: &str, process: u32) -> bool {
    kind.strip_prefix(&format!("evk_{process}_")).is_some_and(|number| number.parse::<u32>().is_ok())
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

fn finish(child: Child) -> Ended {
    ended(child.wait_with_output().unwrap())
}

struct Load {
    client: Child,
    _server: Process,
}

impl Drop for Load {
    fn drop(&mut self) {
        // Ignore errors: both calls fail only if the client has already ended.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["address", "flush", "dev", &self.name]).status();
        // A connection without a peer keeps its namespace until it times out, which takes minutes. The
        // namespace keeps the far interface, so move the interface back.
        let Ok(home) = std::fs::File::open("/proc/thread-self/ns/net") else { return };
        let Ok(mut there) = self.far.netlink() else { return };
        if let Ok(index) = there.link_index(&self.far_name) {
            let _ = there.move_link(index, home.as_fd());
        }
    }
}

fn status(ended: &Ended) -> serde_json::Value {
    let seen: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    seen["devices"][0]["status"].clone()
}

/// `fair` without options runs on the maps that virtio_net itself sets. It refuses to run on the maps
/// of another program.
#[test]
fn the_maps_of_virtio_net_are_taken_over_and_put_back() {
    guest::require();
    let pair = Pair::take("virtio_net");
    let before = pair.seen();
    assert!(before.starts_with("1\n2\n4\n8\n"), "{before}");
    let respected = pair.fair(&["--xps", "respect", "--for", "1s"]);
    assert_eq!(respected.code, 3, "{respected:?}");
    for words in ["driver virtio_net", "one queue to each processor", "--xps off"] {
        assert!(respected.stderr.contains(words), "{words}: {respected:?}");
    }
    let _load = pair.load();
    let ended = pair.fair(&["--for", "10s", "--format", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("those that the driver (virtio_net) sets by itself"), "{ended:?}");
    let status = status(&ended);
    assert_eq!(status["driver"], "virtio_net");
    assert!(status["proof"].as_str().unwrap().contains("follow the choices"), "{status}");
    assert_eq!(pair.seen(), before);
    let map = format!("/sys/class/net/{}/queues/tx-1/xps_cpus", pair.name);
    std::fs::write(&map, "3").unwrap();
    let refused = pair.fair(&["--for", "1s"]);
    std::fs::write(&map, "2").unwrap();
    assert_eq!(refused.code, 3, "{refused:?}");
    for words in ["another program set the XPS maps", "queue 1 has 2 processors, where virtio_net sets 1"] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
}

#[test]
fn igb_follows_the_choice_and_a_soft_nic_gives_its_qdiscs_back() {
    guest::require();
    let pair = Pair::take("igb");
    let before = pair.seen();
    let _load = pair.load();
    // The proof takes three seconds with 1 MB each. A busy machine emulates Linux 6.1 slowly.
    let ended = pair.fair(&["--for", "20s", "--format", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let found = status(&ended);
    assert!(found["proof"].as_str().unwrap().contains("follow the choices"), "{found}");
    assert_eq!(pair.seen(), before);
    let arguments = ["--queue-weights", "htb", "--rate", "50mbit", "--for", "20s", "--format", "json"];
    let ended = pair.fair(&arguments);
    assert_eq!(ended.code, 0, "{ended:?}");
    let found = status(&ended);
    assert!(found["proof"].as_str().unwrap().contains("follow the choices"), "{found}");
    assert_eq!(pair.seen(), before);
}

/// On kernels without tcx hooks, the programs are filters. Filters stay attached when the process is
/// killed.
#[test]
fn every_flow_has_a_queue_of_igb_and_a_killed_session_is_undone() {
    guest::require();
    let pair = Pair::take("igb");
    let before = pair.seen();
    let running = pair.session();
    let _load = pair.load();
    let first = pair.sent_by_queue();
    // Each of the four flows sends 20 Mbit/s (2.5 MB/s).
    wait_for("every queue has sent the bytes of one flow", || {
        let now = pair.sent_by_queue();
        (0..QUEUES).all(|queue| now[queue] > first[queue] + SOME_BYTES)
    });
    let (start, from) = (Instant::now(), pair.sent_by_queue());
    while start.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let sent: Vec<u64> = pair.sent_by_queue().iter().zip(from).map(|(now, from)| now - from).collect();
    let (least, most) = (*sent.iter().min().unwrap(), *sent.iter().max().unwrap());
    assert!(least * 2 > most, "one flow on each queue: {sent:?}");
    running.kill();
    wait_for("the guardian has restored everything", || pair.seen() == before);
    assert_traffic_flows(&pair);

    kill_both(pair.session());
    let mut command = evenkeel(&["revert", &pair.name]);
    command.env("EVENKEEL_STATE_DIR", pair.state.path());
    let reverted = end(command);
    assert_eq!(reverted.code, 0, "{reverted:?}");
    assert_eq!(pair.seen(), before);
    assert!(std::fs::read_dir(pair.state.path()).unwrap().next().is_none());
}

/// Bytes on a queue that show a flow of the load: acknowledgements alone are fewer. The load sends 10 MB per
/// second.
const SOME_BYTES: u64 = 3_000_000;

fn assert_traffic_flows(pair: &Pair) {
    let before = pair.sent();
    wait_for("traffic flows", || pair.sent() > before + SOME_BYTES);
}

#[test]
fn batching_stands_at_every_queue_and_the_tree_comes_back() {
    guest::require();
    let pair = Pair::take("igb");
    // The administrator's leaves have options. The session restores the leaves under their handles.
    shell(&["tc", "qdisc", "replace", "dev", &pair.name, "root", "handle", "7:", "mq"]);
    let leaf = |parent: &str, handle: &str, words: &[&str]| {
        let place = ["tc", "qdisc", "replace", "dev", &pair.name, "parent", parent, "handle", handle];
        shell(&[&place[..], words].concat());
    };
    leaf("7:1", "71:", &["fq", "limit", "5000", "flow_limit", "50"]);
    leaf("7:2", "72:", &["sfq", "perturb", "10"]);
    leaf("7:3", "73:", &["fq_codel", "target", "7ms", "ce_threshold", "3ms"]);
    leaf("7:4", "74:", &["fq_pie", "target", "11ms"]);
    let before = pair.seen();
    let _load = pair.load();

    let running = pair.batching(&["--format", "json"]);
    assert_traffic_flows(&pair);
    // The session needs some seconds of traffic to prove that packets follow its queue choices.
    std::thread::sleep(Duration::from_secs(8));
    signal(&running, Signal::SIGTERM);
    let ended = finish(running);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("transmit batching: each queue of"), "{ended:?}");
    let found = status(&ended);
    assert!(found["proof"].as_str().unwrap().contains("follow the choices"), "{found}");
    let count = |name: &str| found["batching"][name].as_u64().unwrap();
    assert!(count("held") > 0 && count("batches") <= count("held"), "{found}");
    assert_eq!(count("dropped"), 0, "{found}");
    assert_eq!(pair.seen(), before);
    assert_traffic_flows(&pair);

    // The qdisc outlives its process, and traffic continues, until the guardian has restored the tree.
    let started = Instant::now();
    let mut running = pair.batching(&[]);
    let until_there = started.elapsed();
    signal(&running, Signal::SIGKILL);
    running.wait().unwrap();
    wait_for("the guardian has restored the tree", || pair.seen() == before);
    assert_traffic_flows(&pair);

    // Kill also at moments around the change. A kill before the change leaves a journal without changes.
    for eighths in 5..=8 {
        let mut running = pair.start_batching(&[]);
        std::thread::sleep(until_there * eighths / 8);
        signal(&running, Signal::SIGKILL);
        assert_eq!(running.wait().unwrap().code(), None, "it was at work until it was killed");
        wait_for("the guardian has restored the tree", || pair.seen() == before && !pair.has_changes());
    }
    let mut command = evenkeel(&["revert", &pair.name]);
    command.env("EVENKEEL_STATE_DIR", pair.state.path());
    let reverted = end(command);
    assert_eq!(reverted.code, 0, "{reverted:?}");
    assert!(std::fs::read_dir(pair.state.path()).unwrap().next().is_none());
    assert_eq!(pair.seen(), before);
    shell(&["tc", "qdisc", "del", "dev", &pair.name, "root"]);
}

#[test]
fn another_programs_leaf_ends_batching_and_the_kernels_tree_comes_back() {
    guest::require();
    let pair = Pair::take("virtio_net");
    let before = pair.seen();
    let root = |qdiscs: &str| qdiscs.split_whitespace().nth(2).unwrap().trim_end_matches(':').to_owned();
    let running = pair.batching(&["--xps", "off"]);
    let major = root(&shell(&["tc", "qdisc", "show", "dev", &pair.name]));
    shell(&["tc", "qdisc", "replace", "dev", &pair.name, "parent", &format!("{major}:2"), "fq"]);
    let ended = finish(running);
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(
        ended.stderr.contains(&format!("another program replaced the qdisc at {major}:2: fq now")),
        "{ended:?}"
    );
    assert_eq!(pair.seen(), before);

    let plan = pair.fair(&["--xps", "off", "--batching", "on", "--plan"]);
    assert_eq!(plan.code, 0, "{plan:?}");
    assert!(plan.stdout.contains(":4 handle 103: evk_PROCESS_NUMBER\n"), "{plan:?}");
    assert!(plan.stdout.contains(&format!("undo: tc qdisc del dev {} root", pair.name)), "{plan:?}");
    assert_eq!(pair.seen(), before);

    // The session does not replace a root that it could not restore.
    shell(&["tc", "qdisc", "replace", "dev", &pair.name, "root", "handle", "7:", "htb"]);
    let with_htb = pair.seen();
    let refused = pair.fair(&["--xps", "off", "--batching", "on", "--for", "1s"]);
    let after = pair.seen();
    shell(&["tc", "qdisc", "del", "dev", &pair.name, "root"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.stderr.contains("cannot be restored exactly"), "{refused:?}");
    assert_eq!(after, with_htb);
}
