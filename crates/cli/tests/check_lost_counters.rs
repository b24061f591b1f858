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
