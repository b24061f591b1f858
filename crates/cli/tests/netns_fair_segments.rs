//! Tests segment sizes of managed interfaces. At any size, the end of a run restores the original size.
//! Runs in one namespace do not disturb each other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_netlink::VethOptions;
use nix::sys::signal::Signal;

use support::managed::{AT_WORK, Managed, NAME, assert_same, wait_for};
use support::running::Running;

/// Number of runs that the test ends under load. `EVENKEEL_ROUNDS` overrides it.
const ROUNDS: u32 = 2;

fn segment_size(managed: &Managed) -> u32 {
    let text = managed.shell(&["ip", "-d", "link", "show", "dev", NAME]);
    let mut words = text.split_whitespace().skip_while(|word| *word != "gso_max_size");
    words.nth(1).unwrap().parse().unwrap()
}

/// Sets a rate limit on each queue, so that packets must wait.
fn shape(managed: &Managed) {
    for queue in 1..=4 {
        let (parent, handle) = (format!("7:{queue}"), format!("1{queue}:"));
        managed.shell(&[
            "tc", "qdisc", "replace", "dev", NAME, "parent", &parent, "handle", &handle, "tbf", "rate",
            "40mbit", "burst", "70k", "limit", "1m",
        ]);
    }
}

/// A load that keeps every CPU busy until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn new() -> Self {
        let end = Arc::new(AtomicBool::new(false));
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            let end = Arc::clone(&end);
            std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(end)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// With thirteen flows on four queues and busy CPUs, the session increases the segment size in steps.
#[test]
fn a_run_that_ends_at_any_segment_size_leaves_the_first_one() {
    let rounds = std::env::var("EVENKEEL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let managed = Managed::new();
    shape(&managed);
    let _busy = Busy::new();
    let mut seen = Vec::new();
    for round in 0..rounds.unwrap_or(ROUNDS) {
        let load = managed.load(13, "30M", 40);
        let before = managed.seen();
        let mut running = managed.session(&["--segments", "16KiB"]);
        wait_for("smaller segments", Duration::from_secs(20), || segment_size(&managed) < 65_536);
        wait_for("larger ones again", Duration::from_secs(20), || segment_size(&managed) > 16_384);
        // End the runs at different sizes, the first run soon after its first increase.
        std::thread::sleep(Duration::from_millis(u64::from(round % 4) * 1500));
        seen.push(segment_size(&managed));
        running.signal(Signal::SIGTERM);
        let ended = running.end();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(!ended.stderr.contains("as another program set it"), "{seen:?}: {ended:?}");
        assert_same(&managed.seen(), &before, &format!("round {round}, sizes {seen:?}"));
        assert_eq!(managed.journals(), Vec::<String>::new());
        drop(load);
    }
}

/// Both runs set segment sizes. Only the first run sets `tcp_limit_output_bytes` of the namespace.
#[test]
fn the_end_of_a_run_does_not_disturb_another_one_in_the_namespace() {
    let mut managed = Managed::new();
    let pair = VethOptions {
        name: "evk2",
        peer_name: "evk3",
        peer_namespace: managed.peer.as_fd(),
        queues: 4,
        mtu: 1500,
    };
    managed.netlink.add_veth(&pair).unwrap();
    let other = managed.netlink.link_index("evk2").unwrap();
    managed.netlink.set_up(other).unwrap();
    let mut far = managed.peer.netlink().unwrap();
    let far_other = far.link_index("evk3").unwrap();
    far.set_up(far_other).unwrap();
    wait_for("a carrier", Duration::from_secs(20), || {
        managed.shell(&["ip", "link", "show", "evk2"]).contains(" state UP ")
    });
    managed.shell(&["tc", "qdisc", "replace", "dev", "evk2", "root", "handle", "8:", "mq"]);
    shape(&managed);
    let limit = || managed.shell(&["sysctl", "-n", "net.ipv4.tcp_limit_output_bytes"]);
    let (load, first_limit) = (managed.load(13, "50M", 15), limit());
    let before = managed.seen();

    let mut first = managed.session(&["--segments", "16KiB"]);
    wait_for("a lower limit", Duration::from_secs(20), || limit() != first_limit);
    let mut second = Running::start(managed.command(&["fair", "evk2", "--segments", "16KiB"]));
    second.wait_for_activity(AT_WORK);
    first.signal(Signal::SIGTERM);
    let ended = first.end();
    assert_eq!((ended.code, limit()), (0, first_limit), "{ended:?}");
    // Wait longer than two check intervals.
    std::thread::sleep(Duration::from_millis(1200));
    second.signal(Signal::SIGTERM);
    let ended = second.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_same(&managed.seen(), &before, "after both");
    drop(load);
}
