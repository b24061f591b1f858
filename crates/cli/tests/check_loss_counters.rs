//! Compares the counters of the network stack that make a rule fire with the counters of `check --watch`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/recorded.rs"]
mod recorded;

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::HostFacts;
use evenkeel_placement::judge;
use evenkeel_placement::loss_path::losses;

/// Counters that make a rule fire and that are no losses, with the reason.
const NO_LOSSES: &[(&str, &str)] = &[
    ("Arp.entries", "entries of a table"),
    ("Ndisc.entries", "entries of a table"),
    ("Conntrack.early_drop", "connections that were evicted, not packets"),
    ("Conntrack.invalid", "filters decide whether these packets pass"),
    ("Ip.FragCreates", "fragments that were sent"),
    ("Snmp6.Ip6FragCreates", "fragments that were sent"),
    ("Snmp6.Ip6InTooBigErrors", "Ip6FragFails counts the same packets (ip6_forward)"),
    ("Icmp.InDestUnreachs", "messages of routers, and Tcp.RetransSegs counts the packets"),
    ("Tcp.AttemptFails", "connections, not packets"),
    ("Tcp.ActiveOpens", "connections"),
    ("Tcp.PassiveOpens", "connections"),
    ("TcpExt.TCPReqQFullDoCookies", "requests that were answered"),
    ("TcpExt.PAWSActive", "old segments, which are duplicates unless a peer's clock is wrong"),
    ("TcpExt.PAWSEstab", "old segments, which are duplicates unless a peer's clock is wrong"),
    ("TcpExt.TSEcrRejected", "old segments, which are duplicates unless a peer's clock is wrong"),
    ("TcpExt.PruneCalled", "events: TCPRcvQDrop and TCPOFODrop count the packets"),
    ("TcpExt.TCPAbortOnMemory", "connections, not packets"),
    ("TcpExt.TCPMemoryPressures", "events"),
    ("TcpExt.TCPTimeWaitOverflow", "connections, not packets"),
    ("TcpExt.TCPSynRetrans", "Tcp.RetransSegs counts the same segments"),
    ("TcpExt.TCPTimeouts", "events: Tcp.RetransSegs counts the segments"),
    ("TcpExt.TCPOFOQueue", "segments that arrived"),
    ("TcpExt.TCPSACKReorder", "events"),
    ("TcpExt.TCPTSReorder", "events"),
    ("TcpExt.TCPRenoReorder", "events"),
    ("TcpExt.TCPFACKReorder", "events"),
    ("TcpExt.TCPRenoRecovery", "events"),
    ("TcpExt.TCPToZeroWindowAdv", "events"),
    ("TcpExt.TCPWantZeroWindowAdv", "events"),
];

/// Counters of traffic, without which rules about shares of packets do not fire.
const TRAFFIC: [&str; 7] = [
    "Ip.InReceives",
    "Ip.OutRequests",
    "Ip.ForwDatagrams",
    "Snmp6.Ip6OutForwDatagrams",
    "Tcp.InSegs",
    "Tcp.OutSegs",
    "Udp.InDatagrams",
];

fn host(name: &str) -> HostFacts {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts").join(name);
    let directory = tempfile::tempdir().unwrap();
    recorded::unpack(&std::fs::read_to_string(file).unwrap(), directory.path()).unwrap();
    read_facts(&Tree::recorded(directory.path()).unwrap()).unwrap()
}

#[test]
fn each_loss_counter_of_a_rule_is_watched_or_has_a_reason() {
    let mut fired = BTreeSet::new();
    let mut missing = Vec::new();
    // The counters of the running kernel, and those of a recorded host with Linux 5.10.
    let live = read_facts(&Tree::live()).unwrap().counters;
    let names = live.keys().cloned().chain(host("border-router-mlx4-rpf.host").counters.into_keys());
    let names: BTreeSet<String> = names
        .chain(["Arp", "Ndisc"].map(|table| format!("{table}.unresolved_discards")))
        .chain(["drop", "insert_failed"].map(|counter| format!("Conntrack.{counter}")))
        .filter(|name| !name.starts_with("Vmstat.") && !name.starts_with("Sockstat."))
        .filter(|name| !TRAFFIC.contains(&name.as_str()))
        .collect();
    for name in ["border-router-mlx4-rpf.host", "dns-udp-socket-drops.host"] {
        let mut facts = host(name);
        facts.counters.retain(|name, _| name.starts_with("Vmstat.") || name.starts_with("Sockstat."));
        for name in TRAFFIC {
            facts.counters.insert(name.to_owned(), 1_000_000);
        }
        let rules = |facts: &HostFacts| {
            judge(facts).findings.into_iter().map(|finding| finding.rule).collect::<BTreeSet<_>>()
        };
        let before = rules(&facts);
        for counter in &names {
            facts.counters.insert(counter.clone(), 0);
            let earlier = facts.clone();
            facts.counters.insert(counter.clone(), 1_000_000_000);
            let new: Vec<_> = rules(&facts).difference(&before).copied().collect();
            let is_lost = losses(&earlier, &facts).iter().any(|loss| new.contains(&loss.rule));
            let has_reason = NO_LOSSES.iter().any(|(name, _)| name == counter);
            if !new.is_empty() {
                fired.insert(counter.clone());
                if is_lost == has_reason {
                    missing.push(format!("{counter}: {new:?}, watched: {is_lost}"));
                }
            }
            facts.counters.remove(counter);
        }
    }
    for counter in ["TcpExt.IPReversePathFilter", "Ip.OutDiscards", "Ip.InHdrErrors", "Udp.NoPorts"] {
        assert!(fired.contains(counter), "{counter} makes a rule fire: {fired:?}");
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
