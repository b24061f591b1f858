//! The link: its speed, its errors, its MTU.

use evenkeel_model::host::{Interface, InterfaceKind};

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::view::{count, gigabits, per_cent};
use crate::{Severity, View};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "link-half-duplex",
        looks_at: "the duplex mode of each link",
        fires_when: "when it is half",
        why: "Both sides wait for each other, and collide if one of them believes in full duplex: the mark of a failed negotiation.",
        fix: "negotiation on both ends, or the same fixed mode",
        source: "IEEE 802.3, clause 28; ethtool(8)",
        needs: &[needs::DUPLEX],
        check: half_duplex,
    },
    Rule {
        name: "link-slow",
        looks_at: "the link's speed against the fastest that the NIC supports",
        fires_when: "when it is a tenth or less; low on an idle NIC",
        why: "A damaged cable, a wrong transceiver or a slow port on the other side: everything else can be tuned in vain.",
        fix: "cable, transceiver, the other side's port",
        source: "ethtool(8), supported link modes",
        needs: &[needs::SPEED, needs::LINK_MODES, needs::STATISTICS],
        check: slow,
    },
    Rule {
        name: "link-flaps",
        looks_at: "how often the carrier came or went",
        fires_when: "low from 20 changes on, medium from 100 and four a day on",
        why: "Each time routes, neighbours and connections start anew.",
        fix: "cable, transceiver, the other side's port",
        source: "Documentation/ABI/testing/sysfs-class-net (carrier_changes)",
        needs: &[needs::CARRIER_CHANGES],
        check: flaps,
    },
    Rule {
        name: "wire-errors",
        looks_at: "packets that arrived damaged: checksum, symbol, length errors",
        fires_when: "from 100 packets and one in ten million on; high from one in a hundred thousand on",
        why: "TCP takes a damaged packet for congestion. A good link has fewer than one in a hundred million (bit error ratio 1e-12).",
        fix: "clean or change cable and transceiver",
        source: "IEEE 802.3, clause 1.1.3 (bit error ratio); Documentation/networking/statistics.rst",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: wire_errors,
    },
    Rule {
        name: "pause-sent",
        looks_at: "pause frames that this NIC sent, of the link and of priorities (priority flow control)",
        fires_when: "from 1,000 and one in 100,000 received packets on; high from one in ten on, or when the NIC itself saw a storm \
                     (tx_pause_storm_warning_events of mlx5)",
        why: "The NIC's buffer was full and it stopped the switch, which holds up other hosts as well: the same cause as drops in the \
              ring, shown elsewhere.",
        fix: "what keeps the ring from being emptied: its size, interrupts, queues",
        source: "IEEE 802.3, annex 31B; the paper, section IV; \
                 Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: pause_sent,
    },
    Rule {
        name: "pause-received",
        looks_at: "pause frames that the other side sent, of the link and of priorities (priority flow control)",
        fires_when: "from 1,000 and one in 100,000 sent packets on; medium from one in a hundred on, high from one in ten on: a storm",
        why: "The switch or the peer stopped this host: its queues wait for somebody else's receiver.",
        fix: "the switch's or the peer's end; no setting of this host",
        source: "IEEE 802.3, annex 31B",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: pause_received,
    },
    Rule {
        name: "mtu-standard",
        looks_at: "the MTU of links that are faster than what one processor receives in packets of 1,500 bytes",
        fires_when: "above 25 Gbit/s, with an MTU of 1,500 or less",
        why: "Work is by the packet: one flow of the paper's hosts reached 25 Gbit/s with 1,500 bytes and 43 with 9,000. Not every path \
              carries jumbo frames; towards the Internet 1,500 is right.",
        fix: "9,000 bytes on every host and switch of the same network, with MTU probing for what lies beyond",
        source: "the paper, section II-A, figure 5, and Table I (Maximum Transmission Unit)",
        needs: &[needs::SPEED, needs::MTU],
        check: standard_mtu,
    },
    Rule {
        name: "mtu-mismatch",
        looks_at: "the MTU of bonds, bridges and VLANs against that of the interfaces below, and of a bridge's ports against each other, with the \
                   packets that the smaller ones dropped",
        fires_when: "when a packet that fits above does not fit below",
        why: "Large packets vanish or are fragmented while small ones pass: connections that hang as soon as they carry data.",
        fix: "the same MTU from top to bottom",
        source: "RFC 4821, section 1; Documentation/networking/bridge.rst; __is_skb_forwardable, include/linux/netdevice.h",
        needs: &[needs::MTU, needs::STATISTICS],
        check: mtu_mismatch,
    },
];

fn half_duplex(view: &View<'_>) -> Vec<Found> {
    let half = view.nics().filter(|nic| nic.duplex.as_deref() == Some("half"));
    half.map(|nic| {
        let collisions = nic.statistics.get("collisions").copied().filter(|collisions| *collisions > 0);
        let collisions = collisions.map(|collisions| format!("; {} collisions", count(collisions)));
        Found::limit(
            High,
            &nic.name,
            format!("the link is in half duplex{}", collisions.unwrap_or_default()),
            "collisions and waiting: a fraction of the rate",
        )
        .advice("let both ends negotiate, or fix both to the same mode")
    })
    .collect()
}

fn slow(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(speed), Some(supported)) = (nic.speed_bps, nic.supported_bps) else { continue };
        if speed.saturating_mul(10) <= supported {
            let text = format!(
                "the link runs at {}, the NIC supports {}",
                gigabits(speed as f64),
                gigabits(supported as f64)
            );
            let effect = format!("at most {} of the NIC's rate", per_cent(speed as f64 / supported as f64));
            let severity = if view.is_idle(nic) { Low } else { Medium };
            found.push(
                Found::limit(severity, &nic.name, text, effect)
                    .advice("look at cable, transceiver and the other side's port"),
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
    for nic in view.nics() {
        if let Some(changes) = nic.carrier_changes.filter(|changes| *changes >= MANY) {
            let a_day = view.per_second(changes).map_or(f64::MAX, |rate| rate * 86_400.0);
            let severity = if changes >= VERY_MANY && a_day >= A_DAY { Medium } else { Low };
            let text =
                format!("the carrier came or went {} times since the interface was made", count(changes));
            found.push(
                Found::measured(severity, &nic.name, text, "connections stall while the link is away")
                    .advice("look at cable, transceiver and the other side's port"),
            );
        }
    }
    found
}

fn wire_errors(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 100;
    const RATIO: f64 = 1e-7;
    const GRAVE_RATIO: f64 = 1e-5;
    let mut found = Vec::new();
    for nic in view.nics() {
        let errors = nic.losses.wire.unwrap_or(0);
        let packets = nic.received_packets();
        let all = packets.saturating_add(errors);
        let ratio = errors as f64 / all.max(1) as f64;
        if errors < FEWEST || ratio < RATIO {
            continue;
        }
        let text = format!("{} of {} packets arrived damaged", count(errors), count(all));
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

/// Pause frames of the link and of its priorities, where they are many, and how grave that is: high is a storm of one for ten
/// packets. A frame stops its side for up to 65,535 times 512 bits (annex 31B).
fn many_pauses(link: Option<u64>, priorities: Option<u64>, packets: u64) -> Option<(String, Severity)> {
    // mlx5 counts frames of priorities among those of the link, too.
    let link = link.filter(|frames| Some(*frames) != priorities);
    let all = link.unwrap_or(0).saturating_add(priorities.unwrap_or(0));
    if all < 1000 || all.saturating_mul(100_000) < packets {
        return None;
    }
    let of = |frames: Option<u64>, kind: &str| {
        frames.filter(|frames| *frames > 0).map(|frames| format!("{} {kind}", count(frames)))
    };
    let kinds = [of(link, "pause frames"), of(priorities, "pause frames of priorities")];
    let words: Vec<String> = kinds.into_iter().flatten().collect();
    let one_in = |limit: u64| all.saturating_mul(limit) >= packets;
    let severity = match (one_in(10), one_in(100)) {
        (true, _) => High,
        (_, true) => Medium,
        _ => Low,
    };
    Some((words.join(" and "), severity))
}

fn pause_sent(view: &View<'_>) -> Vec<Found> {
    /// The NIC paused its side for a long time (mlx5, counters.rst).
    const STORMS: &str = "tx_pause_storm_warning_events";
    let mut found = Vec::new();
    for nic in view.nics() {
        let packets = nic.received_packets();
        let losses = &nic.losses;
        if let Some((frames, severity)) = many_pauses(losses.pause_sent, losses.priority_pause_sent, packets)
        {
            let mut text = format!("it sent {frames} while it received {} packets", count(packets));
            let effect = "its buffer was full: the switch waits, and other hosts with it";
            let stalls = nic.driver_statistics.get(STORMS).copied().unwrap_or(0);
            let severity = if stalls > 0 { High } else { severity.max(Medium) };
            if stalls > 0 {
                text += &format!("; {} times for so long that the NIC saw a storm ({STORMS})", count(stalls));
            }
            found.push(Found::measured(severity, &nic.name, text, effect).advice(
                "see the findings about its slot, ring, interrupts and queues: the NIC is emptied too slowly; until that is fixed no pause \
                 on a shared fabric, or a watchdog of the switch",
            ));
        }
    }
    found
}

fn pause_received(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let packets = nic.sent_packets();
        let losses = &nic.losses;
        if let Some((frames, severity)) =
            many_pauses(losses.pause_received, losses.priority_pause_received, packets)
        {
            let text = format!("it received {frames} while it sent {} packets", count(packets));
            let effect = "the other side stops this host";
            found.push(
                Found::measured(severity, &nic.name, text, effect).advice(
                    "find the port of the switch that sends them, and the receiver behind it that cannot keep up; a watchdog of \
                     the switch ends storms of priority pauses",
                ),
            );
        }
    }
    found
}

fn standard_mtu(view: &View<'_>) -> Vec<Found> {
    const ABOVE_BPS: u64 = 25_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(speed), Some(mtu)) = (nic.speed_bps, nic.mtu) else { continue };
        if speed <= ABOVE_BPS || mtu > 1500 {
            continue;
        }
        let packets = speed as f64 / 8.0 / 1538.0;
        let text = format!(
            "MTU {} at {}: {:.1} million packets a second at line rate, with 9,000 bytes {:.1}",
            mtu,
            gigabits(speed as f64),
            packets / 1e6,
            packets / 1e6 * 1538.0 / 9038.0
        );
        let effect = "one flow of the paper's hosts reached 25 Gbit/s with 1,500 bytes, 43 with 9,000";
        let advice = format!(
            "if every host and switch of this network can do it: `ip link set dev {} mtu 9000`; otherwise leave it",
            nic.name
        );
        found.push(Found::setting(Low, &nic.name, text, effect).advice(advice));
    }
    found
}

/// An interface's MTU, and what it dropped on the way out: among that is what was too large for it.
fn mtu_words(interface: &Interface, mtu: u32) -> String {
    const FEWEST: u64 = 100;
    let dropped = interface.losses.transmit.filter(|dropped| *dropped >= FEWEST);
    let dropped = dropped.map(|dropped| format!(" and dropped {} packets on sending", count(dropped)));
    format!("{} has {mtu}{}", interface.name, dropped.unwrap_or_default())
}

fn mtu_mismatch(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let is_layer = |interface: &&Interface| {
        interface.up && interface.kind != InterfaceKind::Veth && !interface.lower.is_empty()
    };
    for upper in view.facts.interfaces.iter().filter(is_layer) {
        let Some(mtu) = upper.mtu else { continue };
        let lower: Vec<(&Interface, u32)> = upper
            .lower
            .iter()
            .filter_map(|name| view.facts.interface(name).filter(|below| below.up))
            .filter_map(|below| Some((below, below.mtu?)))
            .collect();
        let below = |limit: u32| -> Vec<String> {
            let small = lower.iter().filter(|(_, mtu)| *mtu < limit);
            small.map(|(below, mtu)| mtu_words(below, *mtu)).collect()
        };
        let too_small = below(mtu);
        let largest = lower.iter().map(|(_, mtu)| *mtu).max().unwrap_or(mtu);
        let small_ports = if upper.kind == InterfaceKind::Bridge { below(largest) } else { Vec::new() };
        let text = if !too_small.is_empty() {
            format!("its MTU is {mtu}, and {} below it", too_small.join(", "))
        } else if !small_ports.is_empty() {
            format!("its ports differ in MTU: {}, others have {largest}", small_ports.join(", "))
        } else {
            continue;
        };
        let effect = "large packets are lost or fragmented where small ones pass";
        found.push(Found::setting(Medium, &upper.name, text, effect).advice("give all of them the same MTU"));
    }
    found
}
