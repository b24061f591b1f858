//! Queueing disciplines, from the kernel or, in a recorded tree, from a file in the format of `tc -s -j
//! qdisc show`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::QdiscFacts;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::Handle;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::distinct::{repeated, second};
use super::qdisc_options::{has_own_options, shown};
use super::ranges::{COUNT, COUNT_OF_32_BITS};
use super::tree::Tree;
use crate::HostError;

/// A qdisc in the output of `tc -s -j qdisc show`, reduced to the fields that this crate uses. tc prints the
/// fields with a default or an `Option` for some qdiscs only.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct QdiscLine {
    kind: String,
    #[serde(default)]
    handle: String,
    dev: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(default)]
    options: BTreeMap<String, Value>,
    bytes: u64,
    packets: u64,
    drops: u64,
    #[serde(default)]
    overlimits: u64,
    requeues: u64,
    backlog: u64,
    #[serde(default)]
    qlen: u64,
    /// Only fq has this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    flows_plimit: Option<u64>,
}

impl QdiscLine {
    /// Returns the first impossible field, and the reason.
    fn impossible(&self) -> Option<(&'static str, String)> {
        /// Bytes of the smallest packet, a header of Ethernet (`ETH_HLEN`, include/uapi/linux/if_ether.h). A
        /// qdisc counts the header (`qdisc_pkt_len_init`, net/core/dev.c).
        const LEAST_BYTES: u64 = 14;
        let of_32_bits = [("drops", self.drops), ("requeues", self.requeues), ("backlog", self.backlog)];
        if let Some((field, value)) = of_32_bits.into_iter().find(|(_, value)| !COUNT_OF_32_BITS.has(*value))
        {
            return Some((field, COUNT_OF_32_BITS.refusal(value)));
        }
        let of_64_bits = [("bytes", self.bytes), ("packets", self.packets)];
        if let Some((field, value)) = of_64_bits.into_iter().find(|(_, value)| !COUNT.has(*value)) {
            return Some((field, COUNT.refusal(value)));
        }
        (self.packets > self.bytes / LEAST_BYTES).then(|| {
            let (packets, bytes) = (self.packets, self.bytes);
            (
                "packets",
                format!("{packets} is impossible: {bytes} bytes, and a packet has at least {LEAST_BYTES}"),
            )
        })
    }

    /// Returns the parent, or `root`.
    fn place(&self) -> String {
        match (&self.root, &self.parent) {
            (Some(true), _) | (_, None) => "root".to_owned(),
            (_, Some(parent)) => parent.clone(),
        }
    }

    fn facts(&self, mtu: Option<u64>) -> QdiscFacts {
        let line = self;
        // The rate of netem is nested one level deeper.
        let rate = line.options.get("rate").map(|rate| rate.get("rate").unwrap_or(rate));
        QdiscFacts {
            kind: line.kind.clone(),
            handle: line.handle.clone(),
            parent: line.place(),
            bytes: line.bytes,
            packets: line.packets,
            drops: line.drops,
            requeues: line.requeues,
            backlog_bytes: line.backlog,
            // tc prints rates in bytes per second.
            rate_bps: rate.and_then(Value::as_u64).and_then(|rate| rate.checked_mul(8)),
            limit_packets: line.options.get("limit").and_then(Value::as_u64),
            impairments: impairments(&line.options),
            // The kernel never changes a qdisc with handle 0, but replaces it (tc_modify_qdisc,
            // net/sched/sch_api.c). So such a qdisc has the default options.
            has_own_options: line.handle != "0:" && has_own_options(&line.kind, &line.options, mtu),
            flow_limit: line.options.get("flow_limit").and_then(Value::as_u64),
            flow_limit_drops: line.flows_plimit.unwrap_or(0),
        }
    }
}

/// Returns the options of netem that delay or drop packets. tc prints seconds and fractions of 1, some
/// of them nested one level deeper.
fn impairments(options: &BTreeMap<String, Value>) -> String {
    let figure = |name: &str, key: &str| {
        let value = options.get(name)?;
        value.as_f64().or_else(|| value.get(key)?.as_f64()).filter(|figure| *figure > 0.0)
    };
    let of = |value: f64, unit: f64| format!("{}", (value * unit * 1000.0).round() / 1000.0);
    let mut words = Vec::new();
    words.extend(figure("delay", "delay").map(|delay| format!("delay {} ms", of(delay, 1000.0))));
    words.extend(figure("delay", "jitter").map(|jitter| format!("jitter {} ms", of(jitter, 1000.0))));
    let loss = figure("loss-random", "loss").or_else(|| figure("loss", "loss"));
    words.extend(loss.map(|loss| format!("loss {} %", of(loss, 100.0))));
    words.join(", ")
}

/// Name of the source for rules that need qdiscs.
pub(super) const SOURCE: &str = "netlink/qdiscs";

pub(super) fn qdiscs(
    tree: &Tree,
    names: &BTreeMap<u32, String>,
) -> Result<BTreeMap<String, Vec<QdiscFacts>>, HostError> {
    let mut lines = if tree.is_live() {
        let asked = Netlink::open().and_then(|mut netlink| netlink.all_qdiscs());
        let found = asked.unwrap_or_else(|error| {
            tree.note(SOURCE, format!("qdiscs: {error}"));
            Vec::new()
        });
        let lines: Vec<QdiscLine> = found
            .into_iter()
            .filter_map(|found| {
                let name = |handle: Option<Handle>| handle.map(|handle| tc_name(&handle)).unwrap_or_default();
                let is_root = found.parent == Some(Handle::ROOT);
                Some(QdiscLine {
                    options: shown(&found),
                    kind: found.kind,
                    handle: name(found.handle),
                    dev: names.get(&found.interface)?.clone(),
                    root: is_root.then_some(true),
                    parent: (!is_root).then(|| name(found.parent)),
                    bytes: found.bytes,
                    packets: found.packets,
                    drops: found.drops.into(),
                    overlimits: found.overlimits.into(),
                    requeues: found.requeues.into(),
                    backlog: found.backlog_bytes.into(),
                    qlen: found.queue_length.into(),
                    flows_plimit: None,
                })
            })
            .collect();
        tree.keep_answers("qdiscs.json", &lines);
        lines
    } else {
        match tree.answers("qdiscs.json")? {
            Some(lines) => lines,
            None => {
                tree.note(SOURCE, "the recording has no evenkeel/qdiscs.json");
                Vec::new()
            }
        }
    };
    // On a device, handles are unique, and each parent has one qdisc. Default qdiscs of the kernel
    // share the handle "0:".
    let handle = |line: &QdiscLine| {
        let is_own = !matches!(line.handle.as_str(), "" | "0:");
        is_own.then(|| (line.dev.clone(), format!("handle {}", line.handle)))
    };
    let parent = |line: &QdiscLine| (line.dev.clone(), format!("parent {}", line.place()));
    let twice = repeated(lines.iter().filter_map(handle)).or_else(|| repeated(lines.iter().map(parent)));
    if let Some((_, (dev, place))) = twice {
        tree.note(SOURCE, format!("evenkeel/qdiscs.json: {} of {dev}", second(&place)));
        lines.clear();
    }
    if !tree.is_live() {
        note_lost_rows(tree, &lines);
    }
    let mut found: BTreeMap<String, Vec<QdiscFacts>> = BTreeMap::new();
    let mut mtus: BTreeMap<&str, Option<u64>> = BTreeMap::new();
    for line in &lines {
        let QdiscLine { kind, dev, .. } = line;
        if let Some((field, why)) = line.impossible() {
            tree.note(SOURCE, format!("evenkeel/qdiscs.json: {kind} of {dev}: {field}: {why}"));
            continue;
        }
        // Read the MTU once per device, because a device may have thousands of qdiscs.
        let mtu = *mtus
            .entry(dev.as_str())
            .or_insert_with(|| tree.read_number(&format!("/sys/class/net/{dev}/mtu")));
        found.entry(line.dev.clone()).or_default().push(line.facts(mtu));
    }
    for list in found.values_mut() {
        list.sort_by_key(|qdisc| !qdisc.is_root());
    }
    Ok(found)
}

/// Notes a queue of mq without a qdisc, and a qdisc whose parent is missing. The kernel gives each queue in use
/// a qdisc (`mq_init`, net/sched/sch_mq.c), and lists no qdisc for a queue that lost its qdisc and drops all
/// packets (`noop_qdisc`). Before Linux 5.15, a queue that is taken into use later has no listed qdisc
/// (`mq_change_real_num_tx`).
fn note_lost_rows(tree: &Tree, lines: &[QdiscLine]) {
    for root in lines.iter().filter(|line| line.kind == "mq") {
        // The default root has the handle 0, which tc does not print.
        let major = if root.handle == "0:" { ":" } else { &root.handle };
        let number =
            |line: &QdiscLine| usize::from_str_radix(line.parent.as_deref()?.strip_prefix(major)?, 16).ok();
        let queues: BTreeSet<usize> =
            lines.iter().filter(|line| line.dev == root.dev).filter_map(number).collect();
        let listed = queues.last().copied().unwrap_or(0);
        let in_use = match tree.kernel() {
            Some(version) if version >= (5, 15) => {
                tree.list_names(&format!("/sys/class/net/{}/queues", root.dev), "tx-").len()
            }
            _ => 0,
        };
        if let Some(queue) = (1..=listed.max(in_use)).find(|queue| !queues.contains(queue)) {
            let why = format!("evenkeel/qdiscs.json has no qdisc of {major}{queue:x} of {}", root.dev);
            tree.note(SOURCE, why);
        }
    }
    // `ingress` and `clsact` have a parent that is no qdisc (TC_H_INGRESS).
    const INGRESS: &str = "ffff";
    for line in lines {
        let Some((major, _)) = line.parent.as_deref().and_then(|parent| parent.split_once(':')) else {
            continue;
        };
        let is_parent = |other: &QdiscLine| match major {
            "" => other.root == Some(true),
            major => other.handle.strip_suffix(':') == Some(major),
        };
        if major != INGRESS && !lines.iter().any(|other| other.dev == line.dev && is_parent(other)) {
            let QdiscLine { kind, dev, .. } = line;
            let why =
                format!("evenkeel/qdiscs.json has no parent of the {kind} at {} of {dev}", line.place());
            tree.note(SOURCE, why);
        }
    }
}

/// Formats a handle like tc, which omits a number of 0, as in `8001:` and `:1`.
fn tc_name(handle: &Handle) -> String {
    match (handle.major, handle.minor) {
        (major, 0) => format!("{major:x}:"),
        (0, minor) => format!(":{minor:x}"),
        (major, minor) => format!("{major:x}:{minor:x}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn what_tc_prints_is_understood() {
        let text = r#"[{"kind":"mq","handle":"0:","dev":"eth0","root":true,"options":{},"bytes":10,"packets":1,"drops":3,
                        "overlimits":0,"requeues":2,"backlog":0,"qlen":0},
                       {"kind":"tbf","handle":"8002:","dev":"eth0","parent":":1","options":{"rate":125000,"burst":1600},
                        "bytes":0,"packets":0,"drops":0,"requeues":0,"backlog":0},
                       {"kind":"netem","handle":"8003:","dev":"eth1","root":true,"options":{"limit":1000,"rate":{"rate":1000}},
                        "bytes":0,"packets":0,"drops":0,"requeues":0,"backlog":0}]"#;
        let lines: Vec<QdiscLine> = serde_json::from_str(text).unwrap();
        let facts: Vec<QdiscFacts> = lines.iter().map(|line| line.facts(None)).collect();
        assert!(facts[0].is_root() && facts[0].drops == 3 && facts[0].requeues == 2);
        assert_eq!((facts[1].parent.as_str(), facts[1].rate_bps), (":1", Some(1_000_000)));
        assert_eq!((facts[2].limit_packets, facts[2].rate_bps), (Some(1000), Some(8000)));
        assert_eq!(
            [false, true, true],
            [facts[0].has_own_options, facts[1].has_own_options, facts[2].has_own_options]
        );
        assert_eq!(tc_name(&Handle::new(0x8001, 0)), "8001:");
        assert_eq!(
            (tc_name(&Handle::new(0, 1)), tc_name(&Handle::new(1, 0x10))),
            (":1".into(), "1:10".into())
        );
    }
}
