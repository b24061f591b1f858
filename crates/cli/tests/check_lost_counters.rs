//! Tests `evenkeel check` on recorded hosts that lost a counter, a feature or a hash field of a NIC. A fact
//! that the driver always reports does not count as 0 or off.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/recorded.rs"]
mod recorded;

use std::path::Path;

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_placement::{Judgement, judge};
use serde_json::{Map, Value};

struct Host(tempfile::TempDir);

impl Host {
    fn new(name: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts").join(format!("{name}.host"));
        let directory = tempfile::tempdir().unwrap();
        recorded::unpack(&std::fs::read_to_string(file).unwrap(), directory.path()).unwrap();
        Self(directory)
    }

    /// Edits a part of ethtool's answers.
    fn edit(&self, nic: &str, part: &str, edit: impl FnOnce(&mut Map<String, Value>)) {
        let file = self.0.path().join(format!("evenkeel/ethtool/{nic}.json"));
        let mut answers: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        edit(answers.pointer_mut(part).unwrap().as_object_mut().unwrap());
        std::fs::write(file, answers.to_string()).unwrap();
    }

    fn remove(&self, nic: &str, part: &str, keys: &[&str]) {
        self.edit(nic, part, |table| {
            for key in keys {
                assert!(table.remove(*key).is_some(), "{key}");
            }
        });
    }

    fn write(&self, nic: &str, file: &str, value: u64) {
        let path = self.0.path().join(format!("sys/class/net/{nic}/{file}"));
        std::fs::write(path, format!("{value}\n")).unwrap();
    }

    fn judged(&self) -> Judgement {
        judge(&read_facts(&Tree::recorded(self.0.path()).unwrap()).unwrap())
    }

    /// Returns the reason why a rule is not judged, in whole or in part.
    fn reason(&self, rule: &str) -> Option<String> {
        self.judged().incomplete().find(|missed| missed.rule == rule).map(|missed| missed.why.clone())
    }

    fn finds(&self, rule: &str, nic: &str) -> bool {
        self.judged().findings.iter().any(|found| found.rule == rule && found.subject == nic)
    }
}

const COUNTERS: &str = "/statistics";

#[test]
fn a_lost_loss_counter_is_not_0() {
    for (name, nic, lost, rule, shown) in [
        ("router-i40e", "enp2s0f0", &["port.rx_dropped"][..], "rx-ring-drops", "port.rx_discards"),
        ("cdn-edge-mlx5", "enp65s0f0np0", &["rx_out_of_buffer"], "rx-ring-drops", "rx_out_of_buffer"),
        ("cdn-edge-mlx5", "enp65s0f0np0", &["rx_out_of_buffer"], "queues-few", "rx_out_of_buffer"),
        ("cdn-edge-mlx5", "enp65s0f0np0", &["rx_discards_phy"], "rx-ring-drops", "rx_discards_phy"),
        ("isp-router-ixgbe", "enp5s0f0", &["rx_no_dma_resources"], "queues-few", "rx_no_dma_resources"),
        ("aws-ena-web", "eth0", &["conntrack_allowance_exceeded"], "cloud-allowance", "conntrack_"),
    ] {
        let host = Host::new(name);
        assert_eq!(host.reason(rule), None, "{name}");
        host.remove(nic, COUNTERS, lost);
        let reason = host.reason(rule).expect(name);
        assert!(reason.contains(shown), "{name}: {reason}");
    }
}

/// The kernel's counter shows the losses of a counter that was lost.
#[test]
fn the_kernel_counts_losses_whose_counter_was_lost() {
    let host = Host::new("router-i40e");
    host.remove("enp2s0f0", COUNTERS, &["port.rx_dropped"]);
    host.write("enp2s0f0", "statistics/rx_missed_errors", 600_000_000);
    assert!(host.finds("rx-ring-drops", "enp2s0f0"));
}

/// The rule about short rings needs to know that the NIC loses nothing.
#[test]
fn a_short_ring_with_unknown_losses_is_not_judged() {
    let (name, nic) = ("xeon-mlx5-100g-tuned", "ens5np0");
    let host = Host::new(name);
    host.edit(nic, "/rings", |rings| {
        rings.insert("rx".to_owned(), 256.into());
    });
    assert!(host.finds("rx-ring-short", nic));
    host.remove(nic, COUNTERS, &["rx_out_of_buffer"]);
    assert!(!host.finds("rx-ring-short", nic));
    assert!(host.reason("rx-ring-short").unwrap().contains("rx_out_of_buffer"));
}

/// The losses of `ena` are in a counter of the kernel.
#[test]
fn a_lost_counter_of_the_kernel_hides_no_overload() {
    let host = Host::new("aws-ena-web");
    host.write("eth0", "speed", 25_000);
    assert_eq!(host.reason("queues-few"), None);
    std::fs::remove_file(host.0.path().join("sys/class/net/eth0/statistics/rx_dropped")).unwrap();
    assert!(host.reason("queues-few").unwrap().contains("rx_dropped is missing"));
}

#[test]
fn a_lost_counter_of_a_queue_is_not_0() {
    let (name, nic) = ("cdn-edge-mlx5", "enp65s0f0np0");
    for (counter, rule, queue) in [
        ("rx0_packets", "rss-skew", "receive queue 0"),
        ("rx31_packets", "rss-skew", "receive queue 31"),
        ("tx0_packets", "tx-one-queue", "transmit queue 0"),
        ("tx31_packets", "tx-one-queue", "transmit queue 31"),
    ] {
        let host = Host::new(name);
        assert_eq!(host.reason(rule), None);
        host.remove(nic, COUNTERS, &[counter]);
        let reason = host.reason(rule).expect(counter);
        assert!(reason.contains(&format!("the packet counter of {queue} is missing")), "{reason}");
    }
}

#[test]
fn a_lost_feature_or_hash_field_is_not_off() {
    let (name, nic) = ("router-i40e", "enp2s0f0");
    let host = Host::new(name);
    host.edit(nic, "/features", |features| {
        for feature in ["rx-gro-hw", "tx-checksum-ipv6", "vlan-challenged"] {
            features.insert(feature.to_owned(), "off [fixed]".into());
        }
    });
    assert_eq!(host.reason("tso-off"), None);
    host.remove(nic, "/features", &["tx-tcp-segmentation", "tcp-segmentation-offload"]);
    assert!(host.reason("tso-off").unwrap().contains("features has no tx-tcp-segmentation"));

    let host = Host::new(name);
    assert_eq!(host.reason("rss-hash-fields"), None);
    host.edit(nic, "/rss/hash_fields", |fields| {
        fields.insert("tcp4".to_owned(), Value::Null);
    });
    assert_eq!(host.reason("rss-hash-fields"), None, "the driver does not report these fields");
    host.remove(nic, "/rss/hash_fields", &["tcp4"]);
    assert!(host.reason("rss-hash-fields").unwrap().contains("has no 'rss.hash_fields.tcp4'"));
}

#[test]
fn packets_that_contradict_their_bytes_are_unknown() {
    let (name, nic) = ("router-i40e", "enp2s0f0");
    for (file, value) in [
        ("statistics/tx_packets", 0),
        ("statistics/tx_packets", 1_000),
        ("statistics/tx_packets", 1 << 50),
        ("statistics/tx_bytes", 0),
    ] {
        let host = Host::new(name);
        assert_eq!(host.reason("tx-ring-stops"), None);
        host.write(nic, "statistics/tx_dropped", 3_000_000);
        host.write(nic, file, value);
        let reason = host.reason("tx-ring-stops").expect(file);
        assert!(reason.contains("are impossible: a packet has at "), "{reason}");
        assert!(!host.finds("tx-drops", nic), "{file} {value}");
    }
}
