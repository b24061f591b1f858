//! Tests `evenkeel tune` in the virtual machine, with faults of a NIC and with losses at the backlog.
//! Evenkeel finds, fixes and reverts them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use std::process::{Command, Stdio};

use support::{Ended, end, evenkeel};

fn shell(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn interface_of(driver: &str) -> String {
    let of_driver = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path().join("device/driver")).is_ok_and(|found| found.ends_with(driver))
    };
    let entry = std::fs::read_dir("/sys/class/net").unwrap().map(Result::unwrap).find(of_driver).unwrap();
    entry.file_name().into_string().unwrap()
}

/// Returns the settings of an interface, as ethtool, sysfs and tc show them.
fn seen(name: &str) -> String {
    let mut text = shell(&["ethtool", "-k", name]);
    for flags in ["-g", "-c", "-l"] {
        text += &shell(&["ethtool", flags, name]);
    }
    text += &std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap();
    text += &shell(&["tc", "qdisc", "show", "dev", name]);
    text
}

#[test]
fn faults_of_a_nic_are_fixed_and_put_back() {
    guest::require();
    let name = interface_of("igb");
    let state = tempfile::tempdir().unwrap();
    let command = |arguments: &[&str]| -> Ended {
        let mut command = evenkeel(arguments);
        command.env("EVENKEEL_STATE_DIR", state.path()).env("EVENKEEL_ETC_DIR", state.path().join("etc"));
        end(command)
    };
    for port in std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name()) {
        // Set both ends up, so that the link has a carrier.
        let _ = Command::new("ip").args(["link", "set", "dev", port.to_str().unwrap(), "up"]).status();
    }
    let carrier = format!("/sys/class/net/{name}/carrier");
    for _ in 0..600 {
        if std::fs::read_to_string(&carrier).is_ok_and(|text| text.trim() == "1") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    shell(&["ethtool", "-K", &name, "gro", "off", "tso", "off"]);
    shell(&["sysctl", "-w", "net.ipv4.tcp_sack=0"]);
    let before = seen(&name);

    let plan = command(&["tune", &name]);
    assert_eq!(plan.code, 0, "{plan:?}");
    for line in [
        format!("ethtool -K {name} rx-gro on"),
        format!("# undo: ethtool -K {name} rx-gro off"),
        format!("ethtool -K {name} tx-tcp-segmentation on"),
        "sysctl -w net.ipv4.tcp_sack=1".to_owned(),
    ] {
        assert!(plan.stdout.contains(&line), "{line}: {}", plan.stdout);
    }
    assert_eq!(seen(&name), before);

    let applied = command(&["tune", &name, "--apply", "--watch", "500ms"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    let features = shell(&["ethtool", "-k", &name]);
    for words in ["generic-receive-offload: on", "tcp-segmentation-offload: on"] {
        assert!(features.contains(words), "{words}: {features}");
    }
    let again = command(&["tune", &name]);
    assert!(again.stdout.contains("nothing to change"), "{again:?}");
    let reverted = command(&["revert", &name]);
    assert_eq!(reverted.code, 0, "{reverted:?}");
    assert_eq!(seen(&name), before);
    shell(&["sysctl", "-w", "net.ipv4.tcp_sack=1"]);
    shell(&["ethtool", "-K", &name, "gro", "on", "tso", "on"]);
}

/// A thread on CPU 0 that sends datagrams to this host until the value is dropped. It sends bursts, with
/// enough time between them to process the datagrams.
struct Flood {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Number of datagrams in a burst. It exceeds the shortest backlog, and is below the backlog that
/// `tune` sets.
const BURST: usize = 700;

impl Flood {
    fn start() -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let own = stop.clone();
        let send = move || {
            let mut processors = nix::sched::CpuSet::new();
            processors.set(0).unwrap();
            nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &processors).unwrap();
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            while !own.load(Relaxed) {
                for _ in 0..BURST {
                    // No program listens on this port. The test needs only the packets.
                    let _ = socket.send_to(&[7; 20], "127.0.0.1:9");
                }
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        };
        Self { stop, threads: vec![std::thread::spawn(send)] }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The kernel drops packets at a backlog that is too short. `tune` makes the backlog longer and reports
/// that the losses stopped. Another `tune` does not extend the backlog because of the old losses.
#[test]
fn losses_are_seen_to_go() {
    guest::require();
    let state = tempfile::tempdir().unwrap();
    let command = |arguments: &[&str]| -> Ended {
        let mut command = evenkeel(arguments);
        command.env("EVENKEEL_STATE_DIR", state.path()).env("EVENKEEL_ETC_DIR", state.path().join("etc"));
        end(command)
    };
    let backlog = || shell(&["sysctl", "-n", "net.core.netdev_max_backlog"]).trim().to_owned();
    shell(&["ip", "link", "set", "dev", "lo", "up"]);
    let was = backlog();
    // Read the value back, because a kernel may use a larger value.
    shell(&["sysctl", "-w", "net.core.netdev_max_backlog=2"]);
    let short = backlog();
    // Steer the packets to another CPU, so that they wait in its backlog.
    std::fs::write("/sys/class/net/lo/queues/rx-0/rps_cpus", "8").unwrap();
    let flood = Flood::start();
    std::thread::sleep(std::time::Duration::from_secs(3));

    // While packets are lost, each call makes the backlog four times as long.
    let mut better = false;
    for _ in 0..3 {
        let before = backlog();
        let applied = command(&["tune", "lo", "--apply", "backlog-drops", "--watch", "5s"]);
        assert_eq!(applied.code, 0, "{applied:?}");
        if backlog() == before {
            break;
        }
        assert!(applied.stdout.contains("the sysctl net.core.netdev_max_backlog: '"), "{applied:?}");
        let mut lines = applied.stdout.lines();
        let line = lines.find(|line| line.starts_with("lost at the softnet backlog")).unwrap();
        better |= line.ends_with(": better");
    }
    assert!(better);
    let raised = backlog();
    assert_ne!(raised, short);

    let again = command(&["tune", "lo", "--apply", "backlog-drops", "--watch", "2s"]);
    assert!(again.code == 0 && again.stdout.contains("already raised this setting"), "{again:?}");
    assert_eq!(backlog(), raised);
    drop(flood);
    assert_eq!(command(&["revert", "lo"]).code, 0);
    assert_eq!(backlog(), short);
    std::fs::write("/sys/class/net/lo/queues/rx-0/rps_cpus", "0").unwrap();
    shell(&["sysctl", "-w", &format!("net.core.netdev_max_backlog={was}")]);
}
