//! Changes knobs that only NICs have, on igb and netdevsim. Checks with ethtool, tc and sysfs that the
//! changes are restored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;

use std::fs;
use std::process::Command;

use evenkeel_apply::{
    Change, Kernel, Knob, Lasting, Made, RevertOutcome, Run, StateDirectory, Value, revert,
};
use evenkeel_model::change::{Channels, Coalescing, Ring, root_qdisc};
use evenkeel_netlink::Netlink;

struct Nic {
    name: String,
    index: u32,
    directory: tempfile::TempDir,
}

impl Nic {
    fn of_driver(driver: &str) -> Self {
        let of_driver = |entry: &fs::DirEntry| {
            fs::read_link(entry.path().join("device/driver")).is_ok_and(|found| found.ends_with(driver))
        };
        let entry = fs::read_dir("/sys/class/net").unwrap().map(Result::unwrap).find(of_driver).unwrap();
        Self::named(&entry.file_name().into_string().unwrap())
    }

    fn named(name: &str) -> Self {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link_index(name).unwrap();
        netlink.set_up(index).unwrap();
        Self { name: name.to_owned(), index, directory: tempfile::tempdir().unwrap() }
    }

    fn run(&self) -> Run {
        Run::begin(&StateDirectory::at(self.directory.path()), self.index, &self.name, "test", None)
            .unwrap()
            .0
    }

    fn lasting(&self) -> Lasting {
        Lasting::begin(&StateDirectory::at(self.directory.path()), self.index, &self.name, "tune").unwrap().0
    }

    /// Returns the output of ethtool and tc, the MTU, the transmit queue length, and the affinity of the
    /// interrupts.
    fn seen(&self) -> String {
        let mut text = String::new();
        for flags in ["-g", "-l", "-c", "-k", "-x"] {
            let output = Command::new("ethtool").args([flags, &self.name]).output().unwrap();
            text += &String::from_utf8_lossy(&output.stdout);
        }
        for flows in ["tcp4", "udp4", "udp6"] {
            let output =
                Command::new("ethtool").args(["-n", &self.name, "rx-flow-hash", flows]).output().unwrap();
            text += &String::from_utf8_lossy(&output.stdout);
        }
        for arguments in [["qdisc", "show"], ["class", "show"]] {
            let output = Command::new("tc").args(arguments).args(["dev", &self.name]).output().unwrap();
            text += &String::from_utf8_lossy(&output.stdout);
        }
        for file in ["mtu", "tx_queue_len"] {
            let path = format!("/sys/class/net/{}/{file}", self.name);
            text += &format!("{file} {}", fs::read_to_string(path).unwrap());
        }
        for interrupt in self.interrupts() {
            let path = format!("/proc/irq/{interrupt}/smp_affinity_list");
            text += &format!("{interrupt}: {}", fs::read_to_string(path).unwrap());
        }
        text
    }

    fn interrupts(&self) -> Vec<u32> {
        let directory = format!("/sys/class/net/{}/device/msi_irqs", self.name);
        let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut found: Vec<u32> = names.map(|name| name.parse().unwrap()).collect();
        found.sort_unstable();
        found
    }
}

/// Makes the changes one by one, checks each change, and undoes all changes.
fn changed_and_put_back(nic: &Nic, changes: &[(Change, &str)]) {
    let before = nic.seen();
    let mut run = nic.run();
    for (change, words) in changes {
        assert!(!nic.seen().contains(words), "{words} already: {before}");
        run.change(change).unwrap();
        let others: Vec<String> = run.disturbances().unwrap().iter().map(ToString::to_string).collect();
        assert!(others.is_empty(), "{change:?}: {others:?}");
        let seen = nic.seen();
        assert!(seen.contains(words), "{words}: {seen}");
    }
    let report = run.finish().unwrap();
    assert!(report.is_settled() && report.left_alone.is_empty(), "{report:?}");
    assert_eq!(nic.seen(), before);
}

#[test]
fn what_igb_has_is_changed_and_put_back() {
    guest::require();
    let nic = Nic::of_driver("igb");
    let interrupt = *nic.interrupts().last().unwrap();
    let number = |knob, value| Change::new(knob, Value::Number(value));
    let text = |knob, value: &str| Change::new(knob, Value::Text(value.to_owned()));
    // Change the channels before the indirection table: the kernel refuses fewer queues than a user-set table
    // uses.
    changed_and_put_back(&nic, &[(number(Knob::Channels(Channels::Combined), 2), "Combined:\t2")]);
    changed_and_put_back(
        &nic,
        &[
            (number(Knob::Ring(Ring::Rx), 1024), "RX:\t\t1024"),
            (number(Knob::Ring(Ring::Tx), 2048), "TX:\t\t2048"),
            (number(Knob::Coalescing(Coalescing::RxUsecs), 77), "rx-usecs: 77"),
            (text(Knob::InterruptAffinity(interrupt), "2"), &format!("{interrupt}: 2\n")),
            (
                Change::new(Knob::RssTable, Value::Table((0..128).map(|entry| entry / 64).collect())),
                "  120:      1     1     1     1     1     1     1     1",
            ),
            (
                text(Knob::FlowHash("udp4".to_owned()), "sdfn"),
                "UDP over IPV4 flows use these fields for computing Hash flow key:\nIP SA\nIP DA\nL4 bytes 0 & 1",
            ),
            (
                Change::new(Knob::Feature("tx-tcp-segmentation".to_owned()), Value::Switch(false)),
                "tx-tcp-segmentation: off",
            ),
            (Change::new(Knob::Mtu, Value::Bytes(9000)), "mtu 9000"),
            (
                Change::new(Knob::RootQdisc, Value::Qdiscs(root_qdisc("fq", 4))),
                "qdisc fq 4e04: parent 4e00:4",
            ),
        ],
    );
    // Restore the default table for later tests in this boot: igb builds its own table, which differs
    // from the kernel's default.
    for arguments in [
        &["-X", &nic.name, "default"][..],
        &["-L", &nic.name, "combined", "2"],
        &["-L", &nic.name, "combined", "4"],
    ] {
        assert!(Command::new("ethtool").args(arguments).status().unwrap().success(), "{arguments:?}");
    }
}

/// A rollback restores a table in the kernel's default form as the kernel's default.
#[test]
fn the_kernels_own_table_is_put_back_as_its_own() {
    guest::require();
    let nic = Nic::of_driver("igb");
    let ethtool = |arguments: &[&str]| {
        let status = Command::new("ethtool").args(arguments).status().unwrap();
        assert!(status.success(), "{arguments:?}");
    };
    ethtool(&["-X", &nic.name, "default"]);
    changed_and_put_back(
        &nic,
        &[(
            Change::new(Knob::RssTable, Value::Table((0..128).map(|entry| entry / 64).collect())),
            "  120:      1     1     1     1     1     1     1     1",
        )],
    );
    // The kernel would refuse this command with a user-set table.
    ethtool(&["-L", &nic.name, "combined", "2"]);
    ethtool(&["-L", &nic.name, "combined", "4"]);
}

/// igb rounds ring sizes to multiples of eight. Evenkeel recognizes and restores the rounded value.
#[test]
fn a_rounded_ring_is_known_again() {
    guest::require();
    let nic = Nic::of_driver("igb");
    let before = nic.seen();
    let knob = Knob::Ring(Ring::Rx);
    let mut kept = nic.lasting();
    let was = kept.kernel().read(&knob).unwrap();
    let made = kept.change(&Change::new(knob.clone(), Value::Number(1001))).unwrap();
    assert_eq!(made, Made::Rounded { from: was, to: Value::Number(1008) });
    // The kernel refuses a number above the maximum. The error contains the kernel's text.
    let error =
        kept.change(&Change::new(Knob::Ring(Ring::Tx), Value::Number(1_000_000))).unwrap_err().to_string();
    assert!(error.contains("maximum"), "{error}");
    kept.keep().unwrap();
    assert!(nic.seen().contains("1008"));
    let [journal] = StateDirectory::at(nic.directory.path()).journals().unwrap().try_into().unwrap();
    let RevertOutcome::RolledBack(leftover) = revert(&journal, &mut |_| true).unwrap() else { panic!() };
    assert!(leftover.report.is_settled() && leftover.report.left_alone.is_empty(), "{leftover:?}");
    assert_eq!(nic.seen(), before);
}

#[test]
fn adaptive_coalescing_of_netdevsim_is_switched_and_put_back() {
    guest::require();
    assert!(Command::new("modprobe").arg("netdevsim").status().unwrap().success());
    fs::write("/sys/bus/netdevsim/new_device", "73 1 4").unwrap();
    let entry = fs::read_dir("/sys/bus/netdevsim/devices/netdevsim73/net").unwrap().next().unwrap();
    let nic = Nic::named(entry.unwrap().file_name().to_str().unwrap());
    let coalescing = |parameter, to| Change::new(Knob::Coalescing(parameter), to);
    changed_and_put_back(
        &nic,
        &[
            (coalescing(Coalescing::AdaptiveRx, Value::Switch(true)), "Adaptive RX: on"),
            (coalescing(Coalescing::TxUsecs, Value::Number(33)), "tx-usecs: 33"),
            (coalescing(Coalescing::RxFrames, Value::Number(44)), "rx-frames: 44"),
            (coalescing(Coalescing::TxFrames, Value::Number(55)), "tx-frames: 55"),
        ],
    );
    fs::write("/sys/bus/netdevsim/del_device", "73").unwrap();
}
