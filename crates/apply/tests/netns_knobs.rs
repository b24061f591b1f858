//! Changes and restores the knobs of a veth pair on the running kernel, in a private network namespace.
//! Compares the settings before and after byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use evenkeel_apply::{
    ApplyError, Change, ClassHandle, Entry, Header, JournalError, JournalWriter, Kernel, Knob, KnobError,
    Lasting, LiveKernel, Made, Ours, QdiscSnapshot, RevertOutcome, Run, StateDirectory, Storage, Value,
    revert,
};
use evenkeel_host::Sysfs;
use evenkeel_model::change::{Channels, Ring, root_qdisc};
use evenkeel_netlink::tc::{Handle, HtbClass, Qdisc};
use evenkeel_netlink::{Netlink, VethOptions};
use nix::sched::{CloneFlags, unshare};

const NAME: &str = "evk0";

struct Place {
    netlink: Netlink,
    index: u32,
    directory: tempfile::TempDir,
}

impl Place {
    fn run(&self) -> Run {
        Run::begin(&StateDirectory::at(self.directory.path()), self.index, NAME, "test", None).unwrap().0
    }

    /// Returns the interface's link, qdiscs, classes, features, channels and maps of queues, and two sysctls.
    fn seen(&self) -> String {
        let output = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        [
            output("ip", &["-d", "link", "show", "dev", NAME]),
            output("tc", &["qdisc", "show", "dev", NAME]),
            output("tc", &["class", "show", "dev", NAME]),
            output("ethtool", &["-k", NAME]),
            output("ethtool", &["-l", NAME]),
            self.files("queues"),
            ["tcp_tso_rtt_log", "tcp_wmem"]
                .map(|name| {
                    let value = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap();
                    format!("{name} = {}\n", value.trim())
                })
                .concat(),
        ]
        .join("\n")
    }

    fn files(&self, directory: &str) -> String {
        let sysfs = Sysfs::of_namespace().unwrap();
        let mut text = String::new();
        let directory = format!("class/net/{NAME}/{directory}");
        for queue in sysfs.list(&directory).unwrap() {
            for file in ["xps_cpus", "rps_cpus", "rps_flow_cnt"] {
                let path = format!("{directory}/{queue}/{file}");
                if let Ok(value) = sysfs.read(&path) {
                    text += &format!("{path} = {value}\n");
                }
            }
        }
        text
    }

    fn journals(&self) -> usize {
        StateDirectory::at(self.directory.path()).journals().unwrap().len()
    }
}

fn in_a_namespace(work: impl FnOnce(&mut Place) + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let own = File::open("/proc/thread-self/ns/net").unwrap();
            // The kernel's router solicitations would change the counters at random times.
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            let mut netlink = Netlink::open().unwrap();
            netlink
                .add_veth(&VethOptions {
                    name: NAME,
                    peer_name: "evk1",
                    peer_namespace: own.as_fd(),
                    queues: 4,
                    mtu: 1500,
                })
                .unwrap();
            let index = netlink.link_index(NAME).unwrap();
            netlink.set_up(index).unwrap();
            let mut place = Place { netlink, index, directory: tempfile::tempdir().unwrap() };
            work(&mut place);
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

fn sizes(all: u32, ipv4: u32) -> Value {
    Value::Sizes { all, ipv4 }
}

fn xps(queue: u32) -> Knob {
    Knob::InterfaceFile(format!("queues/tx-{queue}/xps_cpus"))
}

fn htb_root() -> Value {
    let root = QdiscSnapshot {
        kind: "htb".to_owned(),
        handle: ClassHandle(Handle::new(1, 0)),
        parent: ClassHandle(Handle::ROOT),
        // struct tc_htb_glob in TCA_HTB_INIT: version 3, rate2quantum 10, no default class.
        options: "1800020003000000".to_owned() + "0a000000" + "00000000" + "00000000" + "00000000",
    };
    Value::Qdiscs(vec![root])
}

#[test]
fn every_kind_is_changed_and_put_back() {
    in_a_namespace(|place| {
        let before = place.seen();
        let mut run = place.run();
        let changes = [
            Change::new(Knob::Sysctl("net/ipv4/tcp_tso_rtt_log".to_owned()), text("0")),
            Change::new(Knob::Sysctl("net/ipv4/tcp_wmem".to_owned()), text("4096 16384 1000000")),
            Change::new(Knob::GsoSizes, sizes(16_384, 16_384)),
            Change::new(Knob::GroSizes, sizes(30_000, 30_000)),
            Change::new(xps(0), text("1")),
            Change::new(xps(3), text("3")),
            Change::new(Knob::InterfaceFile("queues/rx-1/rps_cpus".to_owned()), text("3")),
            Change::new(Knob::InterfaceFile("queues/rx-1/rps_flow_cnt".to_owned()), text("256")),
            Change::new(Knob::Mtu, Value::Bytes(9000)),
            Change::new(Knob::TransmitQueueLength, Value::Number(500)),
            Change::new(Knob::Feature("tx-tcp-segmentation".to_owned()), Value::Switch(false)),
            Change::new(Knob::Feature("rx-gro".to_owned()), Value::Switch(true)),
            Change::new(Knob::RootQdisc, htb_root()),
        ];
        for change in &changes {
            run.change(change).unwrap();
            assert!(run.disturbances().unwrap().is_empty(), "{change:?}");
        }
        let changed = place.seen();
        for words in ["gso_max_size 16384", "gro_max_size 30000", "qdisc htb 1: root", "tcp_tso_rtt_log = 0"]
            .into_iter()
            .chain(["mtu 9000", "qlen 500", "tx-tcp-segmentation: off", "generic-receive-offload: on"])
        {
            assert!(changed.contains(words), "{words}: {changed}");
        }
        let report = run.finish().unwrap();
        assert_eq!(report.restored.len(), changes.len(), "{report:?}");
        assert_eq!(place.seen(), before);
        assert_eq!(place.journals(), 0);
    });
}

#[test]
fn sizes_of_big_tcp_come_back_as_the_pair_they_were() {
    in_a_namespace(|place| {
        let mut run = place.run();
        // Set values as an administrator would: large IPv6 segments, and another IPv4 limit.
        run.kernel().write(&Knob::GsoSizes, &sizes(131_072, 70_000)).unwrap();
        run.change(&Change::new(Knob::GsoSizes, sizes(16_384, 16_384))).unwrap();
        run.allow(&Knob::GsoSizes, Ours::These(vec![sizes(32_768, 32_768)])).unwrap();
        run.set(&Knob::GsoSizes, &sizes(32_768, 32_768)).unwrap();
        run.verify(&Knob::GsoSizes).unwrap();
        run.finish().unwrap();
        assert_eq!(place.run().kernel().read(&Knob::GsoSizes).unwrap(), sizes(131_072, 70_000));
    });
}

#[test]
fn an_administrators_qdisc_comes_back_with_its_options() {
    in_a_namespace(|place| {
        let (index, netlink) = (place.index, &mut place.netlink);
        netlink.replace_qdisc(index, Handle::ROOT, Handle::new(0x11, 0), &Qdisc::Mq).unwrap();
        let shaper = Qdisc::Tbf { rate_bps: 80_000_000, burst_bytes: 70_000, limit_bytes: 300_000 };
        netlink.replace_qdisc(index, Handle::new(0x11, 2), Handle::new(0x22, 0), &shaper).unwrap();
        let short = Qdisc::Pfifo { limit_packets: 7 };
        netlink.replace_qdisc(index, Handle::new(0x11, 3), Handle::new(0x33, 0), &short).unwrap();
        let before = place.seen();
        let mut run = place.run();
        run.change(&Change::new(Knob::RootQdisc, htb_root())).unwrap();
        assert!(place.seen().contains("qdisc htb 1: root"));
        run.finish().unwrap();
        assert_eq!(place.seen(), before);
    });
}

#[test]
fn a_qdisc_that_could_not_be_put_back_is_not_replaced() {
    in_a_namespace(|place| {
        let index = place.index;
        let root = Qdisc::Htb { default_class: 0x10 };
        place.netlink.replace_qdisc(index, Handle::ROOT, Handle::new(5, 0), &root).unwrap();
        let before = place.seen();
        let mut run = place.run();
        let error = run.change(&Change::new(Knob::RootQdisc, htb_root())).unwrap_err();
        assert!(matches!(error, ApplyError::Knob(KnobError::NotRestorable { .. })), "{error}");
        assert!(error.to_string().contains("htb"), "{error}");
        assert!(run.entries().is_empty());
        run.finish().unwrap();
        assert_eq!(place.seen(), before);
    });
}

#[test]
fn parts_of_a_qdisc_that_no_options_bring_back_are_noticed() {
    let leaf = ["qdisc", "add", "dev", NAME, "parent", "11:1", "handle", "22:"];
    for (beside, words) in [
        (&["stab", "overhead", "10"][..], "a size table"),
        (&["estimator", "1sec", "4sec"], "a rate estimator"),
    ] {
        in_a_namespace(|place| {
            let mq = Handle::new(0x11, 0);
            place.netlink.replace_qdisc(place.index, Handle::ROOT, mq, &Qdisc::Mq).unwrap();
            place.run().kernel().check_restorable(&Knob::RootQdisc).unwrap();
            let output = Command::new("tc").args([&leaf[..], beside, &["pfifo"]].concat()).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let before = place.seen();
            let error = place.run().change(&Change::new(Knob::RootQdisc, htb_root())).unwrap_err();
            assert!(error.to_string().contains(words), "{words}: {error}");
            assert_eq!(place.seen(), before);
        });
    }
}

/// A run must not replace a tree with a deleted leaf, because it could not restore the tree: a new `mq` or
/// TBF has a default leaf in place of the deleted leaf.
#[test]
fn a_tree_with_a_deleted_leaf_is_not_replaced() {
    let tc = |words: &str| {
        let output = Command::new("tc").args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
    };
    let mq = "qdisc replace dev evk0 root handle 11: mq";
    let tbf = "qdisc replace dev evk0 root handle 11: tbf rate 1gbit burst 100kb limit 1mb";
    for (root, leaf) in [(mq, "11:2"), (tbf, "11:1")] {
        in_a_namespace(|place| {
            tc(root);
            place.run().kernel().check_restorable(&Knob::RootQdisc).unwrap();
            tc(&format!("qdisc add dev evk0 parent {leaf} handle 22: pfifo limit 3"));
            place.run().kernel().check_restorable(&Knob::RootQdisc).unwrap();
            tc(&format!("qdisc del dev evk0 parent {leaf}"));
            let before = place.seen();
            let error = place.run().change(&Change::new(Knob::RootQdisc, htb_root())).unwrap_err();
            assert!(error.to_string().contains(&format!("the leaf at {leaf} was deleted")), "{error}");
            assert_eq!(place.seen(), before);
        });
    }
}

#[test]
fn a_quantum_changes_nothing_else_of_its_class() {
    in_a_namespace(|place| {
        let index = place.index;
        let root = Qdisc::Htb { default_class: 0x10 };
        place.netlink.replace_qdisc(index, Handle::ROOT, Handle::new(1, 0), &root).unwrap();
        let class = HtbClass {
            rate_bps: 8_000_000,
            ceil_bps: 40_000_000_000,
            burst_bytes: 100_000,
            quantum_bytes: 60_000,
        };
        place.netlink.replace_htb_class(index, Handle::new(1, 0), Handle::new(1, 1), &class).unwrap();
        place.netlink.replace_htb_class(index, Handle::new(1, 1), Handle::new(1, 0x10), &class).unwrap();
        let before = place.seen();
        let mut run = place.run();
        let knob = Knob::HtbQuantum(ClassHandle(Handle::new(1, 0x10)));
        run.allow(&knob, Ours::BytesBetween { least: 65_536, most: 655_360 }).unwrap();
        let size = std::fs::metadata(run.journal().unwrap()).unwrap().len();
        for quantum in [65_536, 131_072, 655_360] {
            run.set(&knob, &Value::Bytes(quantum)).unwrap();
            run.verify(&knob).unwrap();
        }
        assert_eq!(std::fs::metadata(run.journal().unwrap()).unwrap().len(), size, "journalled once");
        assert!(run.set(&knob, &Value::Bytes(1)).is_err());
        run.finish().unwrap();
        assert_eq!(place.seen(), before);
        let missing = Knob::HtbQuantum(ClassHandle(Handle::new(1, 0x99)));
        let error = place.run().allow(&missing, Ours::BytesBetween { least: 1, most: 2 }).unwrap_err();
        assert!(error.to_string().contains("1:99"), "{error}");
    });
}

#[test]
fn what_the_administrator_sets_meanwhile_stays() {
    in_a_namespace(|place| {
        let mut run = place.run();
        run.change(&Change::new(Knob::GsoSizes, sizes(16_384, 16_384))).unwrap();
        run.change(&Change::new(xps(1), text("1"))).unwrap();
        place.netlink.set_gso_max_size(place.index, 20_000).unwrap();
        let disturbances = run.disturbances().unwrap();
        assert_eq!(disturbances.len(), 1, "{disturbances:?}");
        assert!(disturbances[0].to_string().contains("20000 bytes"), "{disturbances:?}");
        let refused = run.change(&Change::new(Knob::GsoSizes, sizes(32_768, 32_768))).unwrap_err();
        assert!(matches!(refused, ApplyError::Disturbed(_)), "{refused}");
        let report = run.finish().unwrap();
        assert_eq!((report.restored.len(), report.left_alone.len()), (1, 1), "{report:?}");
        assert_eq!(place.run().kernel().read(&Knob::GsoSizes).unwrap(), sizes(20_000, 20_000));
        assert_eq!(place.run().kernel().read(&xps(1)).unwrap(), text("0"));
    });
}

#[test]
fn an_interface_that_is_renamed_is_found_and_one_that_is_removed_is_gone() {
    in_a_namespace(|place| {
        let sysctl = Knob::Sysctl("net/ipv4/tcp_tso_rtt_log".to_owned());
        let original = place.run().kernel().read(&sysctl).unwrap();
        let mut run = place.run();
        run.change(&Change::new(xps(0), text("1"))).unwrap();
        run.change(&Change::new(sysctl.clone(), text("3"))).unwrap();
        place.netlink.rename(place.index, "other").unwrap();
        let report = run.restore();
        assert_eq!(report.restored.len(), 2, "{report:?}");
        run.change(&Change::new(xps(0), text("1"))).unwrap();
        run.change(&Change::new(sysctl.clone(), text("3"))).unwrap();
        place.netlink.delete_link(place.index).unwrap();
        assert_eq!(run.disturbances().unwrap()[0].found, None);
        let report = run.finish().unwrap();
        assert_eq!((report.gone.as_slice(), report.restored.len()), (&[xps(0)][..], 1), "{report:?}");
        assert_eq!(place.run().kernel().read(&sysctl).unwrap(), original);
        assert_eq!(place.journals(), 0);
    });
}

#[test]
fn a_knob_that_the_kernel_does_not_have_is_an_error_and_nothing_is_journalled() {
    in_a_namespace(|place| {
        let mut run = place.run();
        let missing = Knob::Sysctl("net/ipv4/no_such_thing".to_owned());
        let error = run.change(&Change::new(missing, text("1"))).unwrap_err();
        assert!(error.to_string().contains("no_such_thing does not exist"), "{error}");
        assert!(run.entries().is_empty());
        // The kernel refuses the value: the run journals the change, but the knob is unchanged.
        let error = run.change(&Change::new(xps(0), text("zz"))).unwrap_err();
        assert!(
            error.to_string().contains("write 'zz' to /sys/class/net/evk0/queues/tx-0/xps_cpus"),
            "{error}"
        );
        assert_eq!(run.finish().unwrap().unchanged, [xps(0)]);
    });
}

#[test]
fn channels_are_fewer_for_a_while() {
    in_a_namespace(|place| {
        // Set the peer up, too: the link needs a carrier, and a change of channels turns the carrier
        // off and on.
        let peer = place.netlink.link_index("evk1").unwrap();
        place.netlink.set_up(peer).unwrap();
        let carrier = || Sysfs::of_namespace().unwrap().read(&format!("class/net/{NAME}/operstate")).unwrap();
        for _ in 0..1000 {
            if carrier() == "up" {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let before = place.seen();
        let mut run = place.run();
        run.change(&Change::new(Knob::Channels(Channels::Rx), Value::Number(1))).unwrap();
        run.change(&Change::new(Knob::Channels(Channels::Tx), Value::Number(2))).unwrap();
        run.change(&Change::new(xps(1), text("3"))).unwrap();
        let queues = place.files("queues");
        assert!(queues.contains("tx-1/xps_cpus = 3") && !queues.contains("tx-2/"), "{queues}");
        let gone = run.change(&Change::new(xps(3), text("1"))).unwrap_err().to_string();
        assert!(gone.contains("tx-3/xps_cpus does not exist"), "{gone}");
        assert_eq!(run.finish().unwrap().restored.len(), 3);
        assert_eq!(place.seen(), before);
    });
}

/// A root with a leaf per queue replaces the kernel's default tree. When the run ends, the kernel recreates
/// its default tree.
#[test]
fn a_root_with_leaves_is_made_and_taken_away() {
    in_a_namespace(|place| {
        let before = place.seen();
        let mut run = place.run();
        run.change(&Change::new(Knob::RootQdisc, Value::Qdiscs(root_qdisc("pfifo_fast", 4)))).unwrap();
        let changed = place.seen();
        for words in ["qdisc mq 4e00: root", "qdisc pfifo_fast 4e04: parent 4e00:4"] {
            assert!(changed.contains(words), "{words}: {changed}");
        }
        run.finish().unwrap();
        assert_eq!(place.seen(), before);
    });
}

/// Simulates default trees that the kernel created before `net.core.default_qdisc` changed. A veth pair's
/// default is `noqueue`, so every tree with `bfifo` differs from the default.
#[test]
fn default_qdiscs_come_back_with_the_kind_that_they_had() {
    in_a_namespace(|place| {
        let default = |root: u16| {
            let leaf =
                |queue| QdiscSnapshot::with_defaults("bfifo", Handle::new(root, queue), Handle::new(0, 0));
            let root = QdiscSnapshot::with_defaults("mq", Handle::ROOT, Handle::new(root, 0));
            std::iter::once(root).chain((1..=4).map(leaf)).collect::<Vec<_>>()
        };
        let alone = vec![QdiscSnapshot::with_defaults("bfifo", Handle::ROOT, Handle::new(0, 0))];
        for from in [default(0x11), default(0), alone] {
            let mut run = place.run();
            run.change(&Change::new(Knob::RootQdisc, Value::Qdiscs(root_qdisc("pfifo", 4)))).unwrap();
            run.kernel().write(&Knob::RootQdisc, &Value::Qdiscs(from.clone())).unwrap();
            let Value::Qdiscs(now) = run.kernel().read(&Knob::RootQdisc).unwrap() else { panic!() };
            let kinds = |tree: &[QdiscSnapshot]| -> Vec<(String, u16)> {
                tree.iter().map(|qdisc| (qdisc.kind.clone(), qdisc.parent.0.minor)).collect()
            };
            assert_eq!(kinds(&now), kinds(&from));
            run.kernel().write(&Knob::RootQdisc, &Value::Qdiscs(root_qdisc("pfifo", 4))).unwrap();
            run.finish().unwrap();
        }
    });
}

/// Tests a CPU file whose change has no effect while the CPU does not sleep. A machine without cpuidle tests
/// only a file in a made-up sysfs.
#[test]
fn a_file_of_a_processor_is_written_and_put_back() {
    let file = "cpu0/cpuidle/state1/disable";
    if !std::path::Path::new("/sys/devices/system/cpu").join(file).exists() {
        return governor_of_a_recorded_machine();
    }
    governor_of_a_recorded_machine();
    in_a_namespace(|place| {
        let knob = Knob::ProcessorFile(file.to_owned());
        let before = place.run().kernel().read(&knob).unwrap();
        let other = if before == text("0") { "1" } else { "0" };
        let mut run = place.run();
        run.change(&Change::new(knob.clone(), text(other))).unwrap();
        let path = format!("/sys/devices/system/cpu/{file}");
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), other);
        run.finish().unwrap();
        assert_eq!(place.run().kernel().read(&knob).unwrap(), before);
    });
}

/// Tests with a made-up sysfs, for machines without cpufreq.
fn governor_of_a_recorded_machine() {
    let sysfs = tempfile::tempdir().unwrap();
    let policy = sysfs.path().join("devices/system/cpu/cpufreq/policy0");
    std::fs::create_dir_all(&policy).unwrap();
    std::fs::write(policy.join("scaling_governor"), "powersave\n").unwrap();
    let kernel = LiveKernel::with_sysfs(1, "lo", Sysfs::at(sysfs.path())).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let knob = Knob::ProcessorFile("cpufreq/policy0/scaling_governor".to_owned());
    let mut run = Run::with(kernel, Disk(directory.path().join("journal")), "lo");
    run.change(&Change::new(knob.clone(), text("performance"))).unwrap();
    let governor = || std::fs::read_to_string(policy.join("scaling_governor")).unwrap();
    assert_eq!(governor(), "performance");
    assert!(std::fs::read_to_string(directory.path().join("journal")).unwrap().contains("powersave"));
    run.finish().unwrap();
    assert_eq!(governor(), "powersave");
    assert!(!directory.path().join("journal").exists());
}

struct Disk(std::path::PathBuf);

impl Storage for Disk {
    fn append(&mut self, entry: &Entry) -> Result<(), JournalError> {
        std::fs::write(&self.0, format!("{entry:?}")).unwrap();
        Ok(())
    }

    fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.0).unwrap();
        Ok(())
    }
}

fn written(path: &std::path::Path, header: &Header, entries: &[Entry]) {
    let file = path.file_name().unwrap().to_str().unwrap();
    let (mut writer, mut bytes) = JournalWriter::begin(header, file);
    for entry in entries {
        bytes.extend(writer.entry(entry));
        let count = writer.count();
        bytes[..count.len()].copy_from_slice(&count);
    }
    std::fs::write(path, bytes).unwrap();
}

fn lasting(place: &Place) -> Lasting {
    Lasting::begin(&StateDirectory::at(place.directory.path()), place.index, NAME, "tune").unwrap().0
}

/// Kept changes outlive their process, do not count as changes of a killed run, and end with a revert.
#[test]
fn what_is_kept_stays_until_it_is_reverted() {
    in_a_namespace(|place| {
        let state = StateDirectory::at(place.directory.path());
        let before = place.seen();
        let mut kept = lasting(place);
        assert_eq!(
            kept.change(&Change::new(Knob::Mtu, Value::Bytes(9000))).unwrap(),
            Made::Changed(Value::Bytes(1500))
        );
        assert_eq!(kept.change(&Change::new(Knob::Mtu, Value::Bytes(9000))).unwrap(), Made::AsBefore);
        let refused = Run::begin(&state, place.index, NAME, "fair", None).err().unwrap().to_string();
        assert!(refused.contains("evenkeel tune manages evk0 already"), "{refused}");
        kept.keep().unwrap();
        let tuned = place.seen();
        assert_ne!(tuned, before);

        // A run finds the kept value, changes it, and restores it.
        let (mut run, leftover) = Run::begin(&state, place.index, NAME, "fair", None).unwrap();
        assert!(leftover.is_none());
        run.change(&Change::new(Knob::Mtu, Value::Bytes(2000))).unwrap();
        let [kept_journal] = state.journals().unwrap().try_into().map(|[_, kept]: [_; 2]| [kept]).unwrap();
        let busy = revert(&kept_journal, &mut |_| true).unwrap_err().to_string();
        assert!(busy.contains("evenkeel fair manages evk0 already"), "{busy}");
        run.finish().unwrap();
        assert_eq!(place.seen(), tuned);

        // The second `Lasting` continues, and still knows the values from before all changes.
        let mut kept = lasting(place);
        kept.change(&Change::new(Knob::Mtu, Value::Bytes(8000))).unwrap();
        kept.change(&Change::new(Knob::TransmitQueueLength, Value::Number(77))).unwrap();
        kept.keep().unwrap();
        let [journal] = state.journals().unwrap().try_into().unwrap();
        let outcome = revert(&journal, &mut |_| true).unwrap();
        assert!(
            matches!(&outcome, RevertOutcome::RolledBack(leftover) if leftover.report.restored.len() == 2),
            "{outcome:?}"
        );
        assert_eq!(place.seen(), before);
        assert_eq!(place.journals(), 0);
    });
}

#[test]
fn the_service_does_not_change_what_tune_has_in_force() {
    in_a_namespace(|place| {
        let state = StateDirectory::at(place.directory.path());
        let change = |kept: &mut Lasting, bytes| kept.change(&Change::new(Knob::Mtu, Value::Bytes(bytes)));
        let by_service = |place: &Place| {
            let mut kept = lasting(place);
            kept.by_service();
            kept
        };
        let is_of_service = || {
            let [(_, entry)]: [_; 1] = evenkeel_apply::kept(&state).unwrap().try_into().unwrap();
            entry.service
        };
        let mut kept = lasting(place);
        change(&mut kept, 9000).unwrap();
        kept.keep().unwrap();
        let mut kept = by_service(place);
        let refused = change(&mut kept, 8000).unwrap_err().to_string();
        assert!(
            refused.contains("`evenkeel tune` has set the MTU of evk0 to 9000")
                && refused.contains("evenkeel revert evk0"),
            "{refused}"
        );
        kept.keep().unwrap();
        assert!(!is_of_service() && place.seen().contains("mtu 9000"));
        // The user has undone the change by hand.
        let status = Command::new("ip").args(["link", "set", "dev", NAME, "mtu", "1500"]).status().unwrap();
        assert!(status.success());
        let mut kept = by_service(place);
        change(&mut kept, 8000).unwrap();
        kept.keep().unwrap();
        assert!(is_of_service());
        let mut kept = lasting(place);
        change(&mut kept, 7000).unwrap();
        kept.keep().unwrap();
        assert!(!is_of_service());
    });
}

#[test]
fn what_the_kernel_does_not_take_is_as_before_and_the_administrators_stays() {
    in_a_namespace(|place| {
        let before = place.seen();
        let mut kept = lasting(place);
        for (change, words) in [
            (Change::new(Knob::Mtu, Value::Bytes(1_000_000)), "mtu"),
            (Change::new(Knob::Channels(Channels::Combined), Value::Number(3)), "combined"),
            (Change::new(Knob::Feature("rx-hashing".to_owned()), Value::Switch(true)), "rx-hashing"),
            (Change::new(Knob::Ring(Ring::Rx), Value::Number(4096)), "rx ring"),
            (Change::new(Knob::FlowHash("udp4".to_owned()), text("sdfn")), "hash fields for udp4"),
        ] {
            let error = kept.change(&change).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        drop(kept);
        assert_eq!(place.seen(), before);

        let mut kept = lasting(place);
        kept.change(&Change::new(Knob::TransmitQueueLength, Value::Number(77))).unwrap();
        kept.keep().unwrap();
        place.run().kernel().write(&Knob::TransmitQueueLength, &Value::Number(88)).unwrap();
        let mut kept = lasting(place);
        let error = kept.change(&Change::new(Knob::TransmitQueueLength, Value::Number(99))).unwrap_err();
        assert!(matches!(error, ApplyError::Disturbed(_)), "{error}");
        kept.keep().unwrap();
        let [journal] = StateDirectory::at(place.directory.path()).journals().unwrap().try_into().unwrap();
        let RevertOutcome::RolledBack(leftover) = revert(&journal, &mut |_| true).unwrap() else { panic!() };
        assert_eq!(leftover.report.left_alone.len(), 1, "{leftover:?}");
        assert_eq!(place.run().kernel().read(&Knob::TransmitQueueLength).unwrap(), Value::Number(88));
    });
}

/// A reboot has reset the settings, so the journal from the previous boot does not apply.
#[test]
fn what_was_kept_before_a_restart_is_forgotten() {
    in_a_namespace(|place| {
        let state = StateDirectory::at(place.directory.path());
        let mut kept = lasting(place);
        kept.change(&Change::new(Knob::Mtu, Value::Bytes(9000))).unwrap();
        kept.keep().unwrap();
        assert_eq!(evenkeel_apply::kept(&state).unwrap().len(), 1);
        let [journal] = state.journals().unwrap().try_into().unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let earlier = |path: &std::path::Path| {
            let contents = StateDirectory::read(path).unwrap().unwrap();
            let mut header = contents.header.unwrap();
            assert_eq!(header.interface.boot, boot.trim());
            header.interface.boot = "00000000-0000-0000-0000-000000000000".to_owned();
            written(path, &header, &contents.entries);
        };
        let text = std::fs::read(&journal).unwrap();
        earlier(&journal);
        assert!(evenkeel_apply::kept(&state).unwrap().is_empty());
        assert!(matches!(revert(&journal, &mut |_| true).unwrap(), RevertOutcome::Void(_)));
        assert_eq!(place.journals(), 0);
        std::fs::write(&journal, text).unwrap();
        earlier(&journal);
        let mut kept = lasting(place);
        assert_eq!(kept.kept(), []);
        kept.change(&Change::new(Knob::Mtu, Value::Bytes(3000))).unwrap();
        kept.keep().unwrap();
        revert(&journal, &mut |_| true).unwrap();
        assert_eq!(place.run().kernel().read(&Knob::Mtu).unwrap(), Value::Bytes(9000));
        assert_eq!(place.journals(), 0);
    });
}
