//! Rules about transmit losses, losses of virtual interfaces, and the health that a NIC reports.

use std::collections::BTreeSet;

use evenkeel_model::change::{Knob, Ring, Value};
use evenkeel_model::host::{Interface, InterfaceKind, SaturatingSum};
use evenkeel_model::text::counted;

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "tx-drops",
        looks_at: "packets that a NIC or its driver dropped when sending (tx_dropped, tx_errors, tx_carrier_errors, \
                   driver counters)",
        fires_when: "low: from 100 and one in a million sent packets; medium: from one in 10,000; high: from one in \
                     100",
        why: "These packets passed the qdisc but never left the host: the ring was full, the link down, or driver or \
              NIC refused them.",
        fix: "by counter: a larger transmit ring (tx_dropped, tx_fifo_errors, driver's drops), a stable link in full \
              duplex, a current driver",
        source: "Documentation/networking/statistics.rst (struct rtnl_link_stats64: tx_dropped, tx_errors, tx_carrier_errors, tx_fifo_errors)",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: transmit_drops,
    },
    Rule {
        name: "virtual-drops",
        looks_at: "packets that TAP, veth, VLAN, tunnel and bridge interfaces dropped (tunnels: also tx_errors, \
                   rx_errors and tx_carrier_errors)",
        fires_when: "low: from 1,000 and one in 10,000 packets (bridges: only low); medium: from one in 1,000; high: \
                     from one in 20 (TAP, veth)",
        why: "A guest or a peer's namespace does not take the packets of its TAP or veth in time. No counter of the \
              NIC shows these drops.",
        fix: "TAP: more queues, a longer ring (vhost-net) and processors for the guest; veth: the peer's backlog and \
              processors",
        source: "drivers/net/tun.c (tun_net_xmit); drivers/net/veth.c (veth_xmit); Documentation/networking/tuntap.rst; \
                 iptunnel_xmit_stats, include/net/ip_tunnels.h; wg_xmit, drivers/net/wireguard/device.c",
        needs: &[needs::STATISTICS],
        check: virtual_drops,
    },
    Rule {
        name: "pcie-errors",
        looks_at: "errors of the NIC's PCI Express link (signal integrity of mlx5 and bnxt, recoveries)",
        fires_when: "medium: from 100 errors",
        why: "The link repeats damaged transfers: the bus loses bandwidth and time, and may retrain at a lower speed.",
        fix: "reseat the NIC; another slot, riser or NIC; pcie_aspm=off",
        source: "Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst (rx_pci_signal_integrity)",
        needs: &[needs::DRIVER_STATISTICS],
        check: pcie_errors,
    },
    Rule {
        name: "frames-too-long",
        looks_at: "received frames longer than the MTU allows (rx_oversize..., rx_long_length_errors, packets over \
                   the MRU)",
        fires_when: "medium: from 1,000 and one in a million received packets",
        why: "Another host sends larger frames than this NIC accepts: the NIC drops them, and that host's \
              connections hang.",
        fix: "the same MTU on all hosts and switches of the network",
        source: "Documentation/networking/statistics.rst (rx_length_errors); RFC 4821, section 1",
        needs: &[needs::DRIVER_STATISTICS, needs::MTU, needs::STATISTICS],
        check: too_long,
    },
    Rule {
        name: "legacy-receive",
        looks_at: "private flags of drivers: legacy-rx (Intel), rx_striding_rq (mlx5_core, from 50 Gbit/s)",
        fires_when: "low: legacy-rx is on, or rx_striding_rq off; medium: with load, from 10 Gbit/s",
        why: "The driver's older receive path allocates or copies for each packet, and uses more of the bus.",
        fix: "the flag's default",
        source: "Documentation/networking/device_drivers/ethernet/intel/i40e.rst; Documentation/networking/device_drivers/ethernet/mellanox/mlx5",
        needs: &[needs::PRIVATE_FLAGS, needs::DRIVER_STATISTICS, needs::STATISTICS],
        check: legacy_receive,
    },
];

const FEWEST: u64 = 100;

/// Returns the largest counters of a driver for whose names `is_named` holds: `tx_dropped 12, tx_errors 3`.
fn largest(nic: &Interface, is_named: impl Fn(&str) -> bool) -> Vec<String> {
    let mut named: Vec<(&str, u64)> = nic
        .driver_statistics
        .iter()
        .filter(|(name, value)| **value > 0 && is_named(&name.to_ascii_lowercase()))
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    named.sort_by_key(|(name, value)| (std::cmp::Reverse(*value), *name));
    named.iter().take(4).map(|(name, value)| format!("{name} {}", count(*value))).collect()
}

fn transmit_drops(view: &View<'_>) -> Vec<Found> {
    const FIELDS: [&str; 4] = ["tx_carrier_errors", "tx_fifo_errors", "tx_aborted_errors", "tx_errors"];
    let mut found = Vec::new();
    for nic in view.counted_nics() {
        let field = |name: &str| nic.statistics.get(name).copied().unwrap_or(0);
        let lost = nic.losses.transmit.unwrap_or(0).max(FIELDS.into_iter().map(field).max().unwrap_or(0));
        let sent = nic.sent_packets();
        let is_one_in = |limit: u64| lost.saturating_mul(limit) >= sent.saturating_add(lost);
        if lost < FEWEST || !is_one_in(1_000_000) {
            continue;
        }
        let mut text = format!(
            "{} of {} packets were dropped when sending ({}{})",
            count(lost),
            count(sent.saturating_add(lost)),
            per_cent(lost as f64 / sent.saturating_add(lost) as f64),
            view.rate_words(lost)
        );
        let mut names: Vec<String> = FIELDS
            .into_iter()
            .chain(["tx_dropped", "collisions"])
            .filter(|name| field(name) > 0)
            .map(|name| format!("{name} {}", count(field(name))))
            .collect();
        let is_loss = |name: &str| {
            name.contains("tx")
                && ["drop", "discard", "err", "busy", "no_mem"].iter().any(|kind| name.contains(kind))
        };
        names.extend(largest(nic, is_loss));
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        text += &format!("; {}", names.join(", "));
        let stops = nic.losses.transmit_stops.filter(|stops| *stops >= FEWEST);
        if let Some(stops) = stops {
            text += &format!("; its queues stopped {} times", count(stops));
        }
        let severity = if is_one_in(100) {
            High
        } else if is_one_in(10_000) {
            Medium
        } else {
            Low
        };
        let mut entry =
            Found::measured(severity, &nic.name, text, "packets passed the qdisc and never left the host")
                .on(&nic.name);
        let carrier = field("tx_carrier_errors").saturating_mul(2) >= lost;
        let mut advice = Vec::new();
        if carrier || nic.carrier_changes.is_some_and(|changes| changes >= 20) {
            advice.push(
                "the link was down or lost its carrier: check cable, transceiver, the other side's port",
            );
        }
        if field("collisions") >= FEWEST {
            advice.push("collisions: let both ends negotiate full duplex");
        }
        // A longer ring prevents only losses at a full ring, not errors of the wire.
        let wire = ["tx_carrier_errors", "tx_aborted_errors", "tx_window_errors", "tx_heartbeat_errors"];
        let wire: u64 = wire.into_iter().map(field).fold(0, u64::saturating_add);
        let at_ring = field("tx_dropped").max(field("tx_fifo_errors")).max(nic.losses.transmit.unwrap_or(0));
        let is_at_ring = at_ring >= FEWEST && wire.saturating_mul(2) < lost;
        if is_at_ring && let Some(rings) = nic.rings.filter(|rings| rings.tx > 0 && rings.tx < rings.tx_max) {
            entry.evidence += &format!("; the transmit ring has {} of {} entries", rings.tx, rings.tx_max);
            entry = entry.change(Knob::Ring(Ring::Tx), Value::Number(rings.tx_max));
        }
        advice.push("check the kernel's log, and update driver or firmware if the driver refuses packets");
        found.push(entry.advice(advice.join("; ")));
    }
    found
}

fn virtual_drops(view: &View<'_>) -> Vec<Found> {
    const LEAST: u64 = 1000;
    let mut found = Vec::new();
    for interface in view.facts.interfaces.iter().filter(|interface| interface.up) {
        if !matches!(interface.kind, InterfaceKind::Virtual | InterfaceKind::Veth | InterfaceKind::Bridge) {
            continue;
        }
        let field = |name: &str| interface.statistics.get(name).copied().unwrap_or(0);
        let is_tap = interface.driver.as_deref() == Some("tun")
            || ["tap", "vnet", "macvtap"].iter().any(|start| interface.name.starts_with(start));
        // A bridge also drops received frames that have no destination (blocked ports, unknown groups), so
        // only its drops when sending count.
        let ways = [("tx", "towards it"), ("rx", "from it")];
        let ways =
            ways.into_iter().filter(|(way, _)| *way == "tx" || interface.kind != InterfaceKind::Bridge);
        let losses = &interface.losses;
        let lost = |way: &str| {
            let received = [losses.other, losses.wire, losses.nic, losses.ring, losses.driver];
            let counted = match way {
                "tx" => losses.transmit.unwrap_or(0),
                _ => received.into_iter().flatten().saturating_sum(),
            };
            counted.max(field(&format!("{way}_dropped")))
        };
        let worst = ways.map(|(way, words)| (lost(way), field(&format!("{way}_packets")), words, way)).max();
        let Some((lost, passed, words, way)) = worst else { continue };
        let is_one_in = |limit: u64| lost.saturating_mul(limit) >= passed.saturating_add(lost);
        if lost < LEAST || !is_one_in(10_000) {
            continue;
        }
        let mut text = format!(
            "{} of {} packets {words} were dropped since it was created ({})",
            count(lost),
            count(passed.saturating_add(lost)),
            per_cent(lost as f64 / passed.saturating_add(lost) as f64)
        );
        let errors = interface
            .statistics
            .iter()
            .filter(|(name, errors)| **errors > 0 && name.starts_with(way) && name.ends_with("_errors"));
        let errors: Vec<String> = errors.map(|(name, errors)| format!("{name} {}", count(*errors))).collect();
        if !errors.is_empty() && lost > field(&format!("{way}_dropped")) {
            text += &format!("; {}", errors.join(", "));
        }
        if let Some(length) = interface.tx_queue_len.filter(|length| *length > 0) {
            text += &format!(
                "; txqueuelen is {length}, with {}",
                counted(interface.transmit_queues.len().max(1), "queue")
            );
        }
        let is_pair = is_tap || interface.kind == InterfaceKind::Veth;
        let severity = match interface.kind {
            InterfaceKind::Bridge => Low,
            _ if is_pair && is_one_in(20) => High,
            _ if is_one_in(1000) => Medium,
            _ => Low,
        };
        let name = &interface.name;
        let advice = if is_tap {
            format!(
                "the guest does not fetch them in time: queues for its vCPUs (libvirt `<driver name='vhost' \
                 queues='N' rx_queue_size='1024'/>`), `ip link set dev {name} txqueuelen 10000`, separate processors \
                 for vhost and vCPUs"
            )
        } else if interface.kind == InterfaceKind::Veth && words == "from it" {
            "an XDP program on it (`ip link show`) drops them, or this namespace does not take them in time: a longer \
             net.core.netdev_max_backlog, RPS on the veth, more processors for softirqs"
                .to_owned()
        } else if interface.kind == InterfaceKind::Veth {
            "its peer's namespace does not take them in time: a longer net.core.netdev_max_backlog, RPS on the veth, \
             more processors (quota) for the pod; or an XDP program or filter drops them"
                .to_owned()
        } else {
            format!(
                "`ip -s -s link show {name}` and `tc -s qdisc show dev {name}` show the kind of drop; compare its MTU and state with those below it"
            )
        };
        found.push(
            Found::measured(
                severity,
                name,
                text,
                "packets are lost between this host and its guests or tunnels",
            )
            .advice(advice),
        );
    }
    // A host with many pods may have many findings: keep only the most severe ones.
    found.sort_by_key(|entry| std::cmp::Reverse(entry.severity));
    found.truncate(5);
    found
}

fn pcie_errors(view: &View<'_>) -> Vec<Found> {
    const KINDS: [&str; 2] = ["pci_signal_integrity", "pcie_recovery"];
    let is_error = |name: &str| {
        KINDS.iter().any(|kind| name.contains(kind))
            || name.starts_with("pcie_") && name.ends_with("signal_integrity")
    };
    let mut found = Vec::new();
    for nic in view.nics() {
        let errors: u64 = nic
            .driver_statistics
            .iter()
            .filter(|(name, _)| is_error(name))
            .map(|(_, value)| *value)
            .fold(0, u64::saturating_add);
        if errors < FEWEST {
            continue;
        }
        let text = format!(
            "{} errors of its PCI Express link ({}{})",
            count(errors),
            largest(nic, is_error).join(", "),
            view.rate_words(errors)
        );
        found.push(Found::measured(Medium, &nic.name, text, "the link repeats transfers: the bus loses bandwidth and time").advice(
            "reseat the NIC, use another slot or riser, or replace the NIC; pcie_aspm=off on the kernel's command \
             line if errors come after idle times; `lspci -vv` shows the link's errors",
        ));
    }
    found
}

fn is_too_long(name: &str) -> bool {
    let kinds = ["oversize", "ovrsz", "long_length", "over_mru", "too_long", "toolong", "giant"];
    !name.starts_with("tx") && kinds.iter().any(|kind| name.contains(kind))
}

/// Returns the largest counter of received frames that were longer than the MTU allows. Drivers count these
/// frames in total, or for each queue.
pub(super) fn frames_too_long(nic: &Interface) -> u64 {
    let named = nic.driver_statistics.iter().filter(|(name, _)| is_too_long(&name.to_ascii_lowercase()));
    named.map(|(_, value)| *value).max().unwrap_or(0)
}

fn too_long(view: &View<'_>) -> Vec<Found> {
    const LEAST: u64 = 1000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let frames = frames_too_long(nic);
        let all = nic.received_packets().saturating_add(frames);
        if frames < LEAST || frames.saturating_mul(1_000_000) < all {
            continue;
        }
        let text = format!(
            "{} of {} frames were longer than its MTU of {} allows ({}{}; {})",
            count(frames),
            count(all),
            nic.mtu.map_or("?".to_owned(), |mtu| mtu.to_string()),
            per_cent(frames as f64 / all as f64),
            view.rate_words(frames),
            largest(nic, is_too_long).join(", ")
        );
        found.push(Found::measured(Medium, &nic.name, text, "large frames of other hosts are dropped, and their connections hang").advice(format!(
            "give all hosts and switches of this network the same MTU: `ip link set dev {} mtu 9000` if they use \
             jumbo frames, else 1500 on the hosts that send them",
            nic.name
        )));
    }
    found
}

fn legacy_receive(view: &View<'_>) -> Vec<Found> {
    const STRIDING_FROM_BPS: u64 = 50_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let flag = |name: &str| nic.private_flags.get(name).copied();
        let fast = || view.needed_speed(nic).is_some_and(|speed| speed >= STRIDING_FROM_BPS);
        let (name, wanted) = if flag("legacy-rx") == Some(true) {
            ("legacy-rx", "off")
        } else if nic.driver.as_deref() == Some("mlx5_core")
            && flag("rx_striding_rq") == Some(false)
            && fast()
        {
            ("rx_striding_rq", "on")
        } else {
            continue;
        };
        let severity = if view.is_loaded(nic) { super::by_speed(nic, Medium, Low) } else { Low };
        let now = if wanted == "on" { "off" } else { "on" };
        let text = format!(
            "the private flag {name} is {now}, and the NIC received {} packets",
            count(nic.received_packets())
        );
        found.push(
            Found::setting(
                severity,
                &nic.name,
                text,
                "the driver's older receive path: a copy or an allocation for each packet",
            )
            .advice(format!("`ethtool --set-priv-flags {} {name} {wanted}`", nic.name)),
        );
    }
    found
}
