//! Rules about the link: its speed, its errors, its pauses.

use std::collections::BTreeSet;

use evenkeel_model::change::{Knob, Ring, Value};
use evenkeel_model::host::Interface;

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::view::{count, gigabits, per_cent};
use crate::{Severity, View};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "link-half-duplex",
        looks_at: "the duplex mode of each link",
        fires_when: "high: it is half",
        why: "Both sides wait for each other, and collide if one uses full duplex. The usual cause is a failed \
              negotiation.",
        fix: "negotiation on both ends, or the same fixed mode",
        source: "IEEE 802.3, clause 28; ethtool(8)",
        needs: &[needs::DUPLEX],
        check: half_duplex,
    },
    Rule {
        name: "link-slow",
        looks_at: "the link's speed against the fastest that the NIC supports",
        fires_when: "low: it is half or less, in full duplex; medium: a tenth or less, on a NIC that is not idle \
                     (100 packets/s)",
        why: "A damaged cable, a wrong transceiver or a slow port on the other side limits the link.",
        fix: "cable, transceiver, the other side's port",
        source: "ethtool(8), supported link modes",
        needs: &[needs::SPEED, needs::LINK_MODES, needs::STATISTICS],
        check: slow,
    },
    Rule {
        name: "link-flaps",
        looks_at: "how often the carrier was lost or restored, also on a NIC that is down now",
        fires_when: "low: from 20 changes; medium: from 100, and four a day since boot",
        why: "With each change, routes, neighbours and connections start again.",
        fix: "cable, transceiver, the other side's port",
        source: "Documentation/ABI/testing/sysfs-class-net (carrier_changes)",
        needs: &[needs::CARRIER_CHANGES],
        check: flaps,
    },
    Rule {
        name: "wire-errors",
        looks_at: "packets that arrived damaged: checksum, symbol, length errors",
        fires_when: "medium: from 100 packets and one in ten million; high: from one in 100,000",
        why: "TCP takes a damaged packet for congestion. A link with the permitted bit error ratio (1e-12) damages \
              about one packet of 1,500 bytes in 80 million.",
        fix: "clean or change cable and transceiver",
        source: "IEEE 802.3, clause 1.1.3 (bit error ratio); Documentation/networking/statistics.rst",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: wire_errors,
    },
    Rule {
        name: "pause-sent",
        looks_at: "pause frames that this NIC sent, of the link and of priorities (priority flow control)",
        fires_when: "medium: from 1,000, and one for 100,000 received packets or 1 % of the uptime; high: 10 % of \
                     the uptime (if not counted: one for ten packets), or a storm (tx_pause_storm_warning_events of \
                     mlx5)",
        why: "The NIC's buffer was full, and it paused the switch, which holds up other hosts, too. The cause is \
              that of drops in the ring.",
        fix: "remove the reason why the ring is not emptied: its size, interrupts, queues",
        source: "IEEE 802.3, annex 31B; the paper, section IV; \
                 Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: pause_sent,
    },
    Rule {
        name: "pause-received",
        looks_at: "pause frames that the other side sent, of the link and of priorities (priority flow control)",
        fires_when: "low: from 1,000 and one for 100,000 sent packets; medium: pauses took 1 % of the uptime (if not \
                     counted: one for 100 packets); high: 10 % (if not counted: one for ten)",
        why: "The switch or the peer paused this host: its queues wait for another host's receiver.",
        fix: "at the switch or the peer; no setting of this host helps",
        source: "IEEE 802.3, annex 31B",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: pause_received,
    },
];

fn half_duplex(view: &View<'_>) -> Vec<Found> {
    let half = view.nics().filter(|nic| nic.duplex.as_deref() == Some("half"));
    half.map(|nic| {
        let collisions = nic.statistics.get("collisions").copied().filter(|collisions| *collisions > 0);
        let collisions = collisions.map(|collisions| format!("; {} collisions", count(collisions)));
        let slow = slow_words(nic).map(|slow| format!("; {slow}")).unwrap_or_default();
        Found::limit(
            High,
            &nic.name,
            format!("the link is in half duplex{slow}{}", collisions.unwrap_or_default()),
            "collisions and waiting: a fraction of the rate",
        )
        .advice("let both ends negotiate, or fix both to the same mode")
    })
    .collect()
}

/// Returns a text with the link's speed and the NIC's highest speed, if the link runs at half of it or less.
fn slow_words(nic: &Interface) -> Option<String> {
    let (speed, supported) = (nic.speed_bps?, nic.supported_bps?);
    (speed.saturating_mul(2) <= supported).then(|| {
        format!(
            "the link runs at {}, the NIC supports {}",
            gigabits(speed as f64),
            gigabits(supported as f64)
        )
    })
}

fn slow(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(speed), Some(supported)) = (nic.speed_bps, nic.supported_bps) else { continue };
        // In half duplex, the usual cause is a failed autonegotiation, which link-half-duplex reports.
        if let Some(text) = slow_words(nic).filter(|_| nic.duplex.as_deref() != Some("half")) {
            let effect = format!("at most {} of the NIC's rate", per_cent(speed as f64 / supported as f64));
            // A NIC that supports several speeds often runs at a lower speed on purpose.
            let is_fault = speed.saturating_mul(10) <= supported && !view.is_idle(nic);
            let severity = if is_fault { Medium } else { Low };
            found.push(
                Found::limit(severity, &nic.name, text, effect)
                    .advice("check cable, transceiver and the other side's port"),
            );
        }
    }
    found
}

fn flaps(view: &View<'_>) -> Vec<Found> {
    const MANY: u64 = 20;
    const VERY_MANY: u64 = 100;
    const A_DAY: f64 = 4.0;
    let mut found = Vec::new();
    // Include NICs whose link is down now, because a link that flaps may be down.
    for nic in view.counted_nics() {
        if let Some(changes) = nic.carrier_changes.filter(|changes| *changes >= MANY) {
            let a_day = view.per_second(changes).map_or(f64::MAX, |rate| rate * 86_400.0);
            let severity = if changes >= VERY_MANY && a_day >= A_DAY { Medium } else { Low };
            let mut text = format!(
                "the carrier was lost or restored {} times since the interface was created{}{}",
                count(changes),
                if nic.up { "" } else { ", and the link is down now" },
                view.per_second(changes)
                    .map(|rate| format!(" ({:.1} a day)", rate * 86_400.0))
                    .unwrap_or_default()
            );
            for name in ["mac_local_faults", "mac_remote_faults", "link_down_events_phy"] {
                let faults =
                    nic.driver_statistics.iter().find(|(full, value)| full.contains(name) && **value > 0);
                text +=
                    &faults.map(|(full, value)| format!("; {full} {}", count(*value))).unwrap_or_default();
            }
            found.push(
                Found::measured(severity, &nic.name, text, "connections stall while the link is down")
                    .advice("check cable, transceiver and the other side's port"),
            );
        }
    }
    found
}

/// Returns the driver's error counters of the wire: wrong frame checksums, and blocks that forward error
/// correction could not repair.
fn named_errors(nic: &Interface) -> Vec<(&str, u64)> {
    const KINDS: [&str; 3] = ["crc_err", "fcs_err", "fec_uncorrectable"];
    let is_named = |name: &str| KINDS.iter().any(|kind| name.contains(kind)) && !name.starts_with("tx");
    let named = nic.driver_statistics.iter().filter(|(name, errors)| is_named(name) && **errors > 0);
    let mut named: Vec<(&str, u64)> = named.map(|(name, errors)| (name.as_str(), *errors)).collect();
    named.sort_by_key(|(name, errors)| (std::cmp::Reverse(*errors), *name));
    named.truncate(3);
    named
}

fn wire_errors(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 100;
    const RATIO: f64 = 1e-7;
    const GRAVE_RATIO: f64 = 1e-5;
    let mut found = Vec::new();
    for nic in view.counted_nics() {
        let named = named_errors(nic);
        let largest = named.iter().map(|(_, errors)| *errors).max().unwrap_or(0);
        let total = nic.losses.wire.unwrap_or(0);
        // Some drivers' totals include packets that the NIC missed, which rx-ring-drops counts.
        let missed = nic.losses.nic.unwrap_or(0);
        let errors = if missed > 0 && total == largest.saturating_add(missed) { largest } else { total };
        // Frames that are too long are not damaged: frames-too-long counts them.
        let errors = errors.saturating_sub(super::devices::frames_too_long(nic));
        let packets = nic.received_packets();
        let all = packets.saturating_add(errors);
        let ratio = errors as f64 / all.max(1) as f64;
        if errors < FEWEST || ratio < RATIO {
            continue;
        }
        let mut text = format!(
            "{} of {} packets arrived damaged ({}{})",
            count(errors),
            count(all),
            per_cent(ratio),
            view.rate_words(errors)
        );
        let names: Vec<String> =
            named.iter().map(|(name, errors)| format!("{name} {}", count(*errors))).collect();
        if !names.is_empty() {
            text += &format!(" ({})", names.join(", "));
        }
        let cost = view.cost_of_loss(nic, ratio).unwrap_or_else(|| "it sends less".to_owned());
        let effect = format!("TCP takes them for congestion: {cost}");
        let severity = if ratio >= GRAVE_RATIO { High } else { Medium };
        found.push(
            Found::measured(severity, &nic.name, text, effect)
                .advice("clean or change cable and transceiver; ethtool -m shows a module's levels"),
        );
    }
    found
}

struct Pauses {
    words: String,
    severity: Severity,
}

/// Returns the priority number in a counter's name, such as `rx_prio3_pause`, `rx_priority_3_xoff` or
/// `mac_rx_pfc_pri3_pkt_num`.
fn priority_of(name: &str) -> Option<u8> {
    let behind = name.split_once("pri")?.1;
    let digits =
        behind.trim_start_matches(|character: char| character.is_ascii_alphabetic() || character == '_');
    let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Returns text such as `priorities 3, 5`: the priorities with counted pauses in a direction, `rx` or `tx`.
fn paused_priorities(nic: &Interface, direction: &str) -> Option<String> {
    const KINDS: [&str; 4] = ["pause", "xoff", "pfc", "pxoff"];
    let of_direction = |name: &str| name.split(['_', '.']).any(|word| word == direction);
    let counts = nic.driver_statistics.iter().filter(|(name, value)| {
        **value > 0 && of_direction(name) && KINDS.iter().any(|kind| name.contains(kind))
    });
    let priorities: BTreeSet<u8> = counts.filter_map(|(name, _)| priority_of(name)).collect();
    let words: Vec<String> = priorities.iter().map(u8::to_string).collect();
    match words.len() {
        0 => None,
        1 => Some(format!("priority {}", words[0])),
        _ => Some(format!("priorities {}", words.join(", "))),
    }
}

/// Returns the longest pause time in a direction, `rx` or `tx`, s. mlx5 counts pause time in µs for the
/// link and for each priority
/// (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst).
fn paused_s(nic: &Interface, direction: &str) -> Option<f64> {
    let is_time = |name: &str| {
        name.strip_prefix(direction)
            .is_some_and(|rest| rest.starts_with('_') && rest.ends_with("_pause_duration"))
    };
    let times = nic.driver_statistics.iter().filter(|(name, _)| is_time(name)).map(|(_, us)| *us);
    times.max().filter(|us| *us > 0).map(|us| us as f64 / 1e6)
}

/// Returns the pause frames of the link and of its priorities if there are many, and their severity. If
/// the NIC counts pause time, the time decides. Otherwise one pause frame per ten packets is a storm: a
/// frame stops the sender for up to 65,535 times 512 bits (annex 31B).
fn many_pauses(
    view: &View<'_>,
    nic: &Interface,
    direction: &str,
    (link, priorities): (Option<u64>, Option<u64>),
    packets: u64,
) -> Option<Pauses> {
    const SHARE: f64 = 0.01;
    const GRAVE_SHARE: f64 = 0.1;
    // mlx5 counts the frames of priorities also as frames of the link. If both counters are equal, all
    // frames were those of priorities.
    let link = link.filter(|frames| Some(*frames) != priorities);
    let all = link.unwrap_or(0).saturating_add(priorities.unwrap_or(0));
    let time = paused_s(nic, direction).and_then(|paused| Some((paused, paused / view.needed_uptime_s()?)));
    let long = time.is_some_and(|(_, share)| share >= SHARE);
    if all < 1000 || all.saturating_mul(100_000) < packets && !long {
        return None;
    }
    let of = |frames: Option<u64>, kind: &str| {
        frames.filter(|frames| *frames > 0).map(|frames| format!("{} {kind}", count(frames)))
    };
    let of_priorities = match paused_priorities(nic, direction) {
        Some(which) => format!("pause frames of {which}"),
        None => "pause frames of priorities".to_owned(),
    };
    let kinds = [of(link, "pause frames"), of(priorities, &of_priorities)];
    let mut words = kinds.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    if let Some((paused, share)) = time {
        words += &format!(
            ", with {} s of pause time ({} of the uptime),",
            count(paused.round() as u64),
            per_cent(share)
        );
    }
    let one_in = |limit: u64| all.saturating_mul(limit) >= packets;
    let severity = match time {
        Some((_, share)) if share >= GRAVE_SHARE => High,
        Some(_) if long => Medium,
        Some(_) => Low,
        None if one_in(10) => High,
        None if one_in(100) => Medium,
        None => Low,
    };
    Some(Pauses { words, severity })
}

/// Returns a size of the receive ring that bridges longer delays of its processor. Returns `None` if the
/// size of the ring is unknown or already that large, or if another rule enlarges the ring.
fn longer_ring(view: &View<'_>, nic: &Interface) -> Option<u32> {
    const ENTRIES: u32 = 8192;
    let rings = nic.rings?;
    let wanted = rings.rx_max.min(ENTRIES);
    (rings.rx > 0 && rings.rx < wanted && !super::nic::lengthens_ring(view, nic)).then_some(wanted)
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn pause_sent(view: &View<'_>) -> Vec<Found> {
    /// Number of times that the NIC paused the sender for a long time (mlx5, counters.rst).
    const STORMS: &str = "tx_pause_storm_warning_events";
    let mut found = Vec::new();
    for nic in view.nics() {
        let packets = nic.received_packets();
        let frames = (nic.losses.pause_sent, nic.losses.priority_pause_sent);
        let Some(pauses) = many_pauses(view, nic, "tx", frames, packets) else { continue };
        let mut text = format!("it sent {} while it received {} packets", pauses.words, count(packets));
        let effect = "its buffer was full: the switch waits, and so do other hosts";
        let stalls = nic.driver_statistics.get(STORMS).copied().unwrap_or(0);
        let severity = if stalls > 0 { High } else { pauses.severity.max(Medium) };
        if stalls > 0 {
            text += &format!("; {} times for so long that the NIC saw a storm ({STORMS})", count(stalls));
        }
        let mut entry = Found::measured(severity, &nic.name, text, effect).on(&nic.name);
        if let (Some(wanted), Some(rings)) = (longer_ring(view, nic), nic.rings) {
            entry.evidence += &format!("; the receive ring has {} of {} entries", rings.rx, rings.rx_max);
            entry = entry.change(Knob::Ring(Ring::Rx), Value::Number(wanted));
        }
        let mut advice = Vec::new();
        if let Some((rule, other)) = super::nic::explained_by(view, nic) {
            entry.evidence += &format!("; {rule}: {}", other.evidence);
            advice.push(super::nic::first_fix(rule, &other));
        }
        let is_link =
            frames.0.is_some_and(|frames| frames > 0 && Some(frames) != nic.losses.priority_pause_sent);
        if is_link && nic.pause.is_none_or(|pause| pause.tx || pause.autonegotiate) {
            if let Some(pause) = nic.pause {
                entry.evidence += &format!(
                    "; flow control is {} for sending and {} for receiving",
                    on_off(pause.tx),
                    on_off(pause.rx)
                );
            }
            advice.push(format!(
                "switch flow control off if TCP or a router should see the loss: `ethtool -A {} autoneg off rx off tx off`, and at the switch's port",
                nic.name
            ));
        }
        advice.push(
            "the NIC is emptied too slowly: more queues, interrupts on its own node, a slot that carries the line rate; until then a watchdog of the \
             switch"
                .to_owned(),
        );
        found.push(entry.advice(advice.join("; ")));
    }
    found
}

fn pause_received(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let packets = nic.sent_packets();
        let frames = (nic.losses.pause_received, nic.losses.priority_pause_received);
        let Some(pauses) = many_pauses(view, nic, "rx", frames, packets) else { continue };
        let text = format!("it received {} while it sent {} packets", pauses.words, count(packets));
        let advice = if nic.losses.priority_pause_received.is_some_and(|frames| frames > 0) {
            "find the port of the switch that sends the pause frames, and the receiver behind it that cannot keep up; ECN \
             with DCQCN slows senders before the switch pauses them, and a watchdog of the switch ends storms of priority pauses"
        } else {
            "find the port of the switch that sends the pause frames, and the receiver or the slower port behind it; if TCP \
             should see the loss instead: `ethtool -A DEV autoneg off rx off`"
        };
        let advice = advice.replace("DEV", &nic.name);
        found.push(
            Found::measured(pauses.severity, &nic.name, text, "the other side stops this host")
                .advice(advice),
        );
    }
    found
}
