//! Rules about the NIC: its slot, its rings, its interrupt moderation.

use std::collections::BTreeMap;

use evenkeel_model::change::{Coalescing, Knob, Ring, Value};
use evenkeel_model::host::{Interface, LossCounters, PcieLink, SaturatingSum, Unknown};

use super::{FAST, Found, Rule, by_speed, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "pcie-narrow",
        looks_at: "width and speed of each NIC's PCI Express link against its line rate (not in virtual machines)",
        fires_when: "high: lanes x speed x encoding - 1 Gbit/s is less than the line rate",
        why: "The bus is the bottleneck: the NIC's own buffer overflows at rates that the network delivers.",
        fix: "another slot, or the slot's settings in the firmware",
        source: "the paper, section III-A (formula of the PCIe bandwidth)",
        needs: &[
            needs::SPEED,
            needs::LINK_SPEED,
            needs::LINK_WIDTH,
            needs::BEST_SPEED,
            needs::BEST_WIDTH,
            needs::CPUINFO,
        ],
        check: pcie_narrow,
    },
    Rule {
        name: "pcie-shared",
        looks_at: "ports of one NIC that are up, and the PCI Express link that they share",
        fires_when: "low: their total rate exceeds the link's, and no single port's does",
        why: "Each port reaches its rate alone, but not all at the same time.",
        fix: "a faster slot, or ports on two NICs",
        source: "the paper, section III-A (formula of the PCIe bandwidth)",
        needs: &[needs::SPEED, needs::LINK_SPEED, needs::LINK_WIDTH, needs::CPUINFO],
        check: pcie_shared,
    },
    Rule {
        name: "rx-ring-drops",
        looks_at: "packets without a receive descriptor, or lost in the NIC in front of the ring or in the driver \
                   (driver statistics)",
        fires_when: "medium: from 100 packets and one in a million; high: from one in 10,000, or a loss at which all \
                     busy connections together cannot reach half of the line rate; low: a loss at which one flow \
                     still reaches the line rate (with under 5 % TCP packets: only below one in 100,000)",
        why: "The receive ring is below TCP's flow control. A larger one bridges longer pauses of its processor; the \
              paper saw fewer losses with the largest.",
        fix: "the largest ring; at that size, the fix for the slow processor; for losses in front of the ring, the \
              fix for bus or RDMA",
        source: "the paper, section IV, figure 12 and section III-C, Table I (RX-Ring)",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: ring_drops,
    },
    Rule {
        name: "rx-ring-short",
        looks_at: "the receive ring against its maximum, in time at line rate",
        fires_when: "low: from 10 Gbit/s, it is below its maximum, full after less than 200 µs of full-sized \
                     packets, and without losses (rx-ring-drops)",
        why: "A processor leaves its ring for a whole round of softirqs or a wake-up. On slower links the default \
              ring lasts long enough.",
        fix: "the largest ring that the NIC has",
        source: "the paper, section III-C, Table I (RX-Ring)",
        needs: &[needs::SPEED, needs::RINGS, needs::MTU, needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: ring_short,
    },
    Rule {
        name: "tx-ring-stops",
        looks_at: "how often a transmit queue stopped because its ring was full",
        fires_when: "low: from 1,000 stops and one in 1,000 packets, with a ring below its maximum",
        why: "While a queue is stopped, packets wait in the qdisc: bursts grow, and completions become uneven.",
        fix: "a larger transmit ring",
        source: "the paper, section IV, figure 12; Documentation/networking/driver.rst",
        needs: &[needs::RINGS, needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: transmit_stops,
    },
    Rule {
        name: "coalescing-long",
        looks_at: "how long the NIC waits before it interrupts, against its ring and its link",
        fires_when: "low: half of the ring can fill at line rate in that time, or it is at least 250 µs, without \
                     adaptive coalescing; medium: half of the ring, from 10 Gbit/s",
        why: "The ring fills before the interrupt, and each round trip grows by the wait.",
        fix: "a shorter wait, or adaptive coalescing",
        source: "Documentation/networking/statistics.rst; ethtool(8), -C; the paper, section IV",
        needs: &[needs::SPEED, needs::COALESCING, needs::RINGS, needs::MTU],
        check: coalescing_long,
    },
    Rule {
        name: "coalescing-off",
        looks_at: "whether the NIC interrupts for each packet (not in virtual machines, and not with an application \
                   that waits for answers)",
        fires_when: "low: from 10 Gbit/s, or 5,000 interrupts per second and one for two packets, of at least a \
                     million; medium: both",
        why: "At line rate the NIC can raise hundreds of thousands of interrupts a second, and each takes processor \
              time. Only a host that needs low latency wants this.",
        fix: "a wait of microseconds that the ring bridges easily",
        source: "ethtool(8), -C; Documentation/networking/napi.rst",
        needs: &[
            needs::SPEED,
            needs::COALESCING,
            needs::INTERRUPTS,
            needs::STATISTICS,
            needs::CPUINFO,
            needs::SOCKETS,
            needs::SOCKET_OWNERS,
            needs::PROCESSES,
        ],
        check: coalescing_off,
    },
    Rule {
        name: "iommu-translates",
        looks_at: "how the IOMMU group of a NIC of at least 40 Gbit/s translates addresses",
        fires_when: "medium: it maps and unmaps each buffer, strictly (DMA); low: lazily (DMA-FQ), from 100 Gbit/s",
        why: "Mapping costs processor time for each packet, and strict flushing stalls all queues on one lock.",
        fix: "iommu=pt on the kernel's command line, if the devices are trusted",
        source: "Documentation/ABI/testing/sysfs-kernel-iommu_groups; Documentation/admin-guide/kernel-parameters.txt (iommu, iommu.strict)",
        needs: &[needs::SPEED, needs::IOMMU],
        check: iommu,
    },
    Rule {
        name: "emulated-nic",
        looks_at: "the driver of a virtual machine's NIC",
        fires_when: "medium: the hypervisor emulates a hardware NIC (e1000, 8139cp, 8139too, pcnet32, ne2k-pci, \
                     tulip)",
        why: "Every access of the driver to a register is an exit to the hypervisor, and such NICs have one queue.",
        fix: "a paravirtual NIC: virtio-net, vmxnet3, or the cloud's own",
        source: "Documentation/networking/device_drivers/ethernet; virtio 1.2, section 5.1",
        needs: &[needs::DRIVER, needs::CPUINFO],
        check: emulated,
    },
];

/// Returns the PCI Express link of a NIC; `None` if it is unknown, or in a virtual machine, where the
/// hypervisor emulates the bus.
fn pcie_link(view: &View<'_>, nic: &Interface) -> Option<PcieLink> {
    nic.pcie.filter(|_| !view.facts.virtual_machine)
}

fn link_words(link: &PcieLink) -> String {
    format!("x{} at {} GT/s", link.width, link.speed_gts)
}

fn pcie_narrow(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(link), Some(speed)) = (pcie_link(view, nic), nic.speed_bps) else { continue };
        if link.current_bps() >= speed as f64 {
            continue;
        }
        let text = format!(
            "its PCI Express link, {}, carries {} of {}",
            link_words(&link),
            gigabits(link.current_bps()),
            gigabits(speed as f64)
        );
        let effect = format!("at most {} of the line rate", per_cent(link.current_bps() / speed as f64));
        let best = PcieLink {
            speed_gts: link.max_speed_gts.unwrap_or(link.speed_gts),
            width: link.max_width.unwrap_or(link.width),
            ..link
        };
        let (slow, narrow) = (link.speed_gts < best.speed_gts, link.width < best.width);
        let text =
            if slow || narrow { format!("{text}; the NIC supports {}", link_words(&best)) } else { text };
        let advice = match (slow, narrow) {
            (true, true) => {
                "put the NIC into a slot with its lanes and speed, or check the slot's settings in the firmware (bifurcation, PCIe generation)"
            }
            (true, false) => {
                "all lanes are in use, at a lower speed: set the slot's PCIe generation in the firmware to the NIC's \
                 or to automatic, reseat the NIC, replace a riser, or use another slot"
            }
            (false, true) => {
                "put the NIC into a slot with more lanes, reseat it, or check the slot's settings in the firmware (bifurcation)"
            }
            (false, false) => "neither NIC nor slot supports more: spread the traffic over two NICs",
        };
        found.push(Found::limit(High, &nic.name, text, effect).advice(advice));
    }
    found
}

fn pcie_shared(view: &View<'_>) -> Vec<Found> {
    let mut ports: BTreeMap<&str, Vec<&Interface>> = BTreeMap::new();
    for nic in view.nics() {
        if let Some((slot, _)) = nic.bus.as_deref().and_then(|bus| bus.rsplit_once('.')) {
            ports.entry(slot).or_default().push(nic);
        }
    }
    let mut found = Vec::new();
    for (slot, nics) in ports {
        let Some(link) = nics.first().and_then(|nic| pcie_link(view, nic)) else { continue };
        let sum: u64 = nics.iter().filter_map(|nic| nic.speed_bps).saturating_sum();
        let alone =
            nics.iter().all(|nic| nic.speed_bps.is_none_or(|speed| speed as f64 <= link.current_bps()));
        if nics.len() > 1 && alone && sum as f64 > link.current_bps() {
            let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
            let text = format!(
                "{} ports of {slot} have {} in total, and their PCI Express link, {}, carries {}",
                nics.len(),
                gigabits(sum as f64),
                link_words(&link),
                gigabits(link.current_bps())
            );
            let effect = "the ports cannot all be used at their rate at the same time";
            found.push(
                Found::limit(Low, &names.join(", "), text, effect)
                    .advice("ports on two NICs, or a faster slot"),
            );
        }
    }
    found
}

/// Returns the packets lost between the wire and the stack: in the NIC before the ring, at the ring, in the
/// driver. Each packet is counted once.
pub(super) fn ring_losses(losses: &LossCounters) -> u64 {
    [losses.ring, losses.nic, losses.driver].into_iter().flatten().fold(0, u64::saturating_add)
}

/// Rules that explain why a NIC loses packets, in the order of their fixes. The rules about the bus and
/// about RDMA explain losses in the NIC before the ring.
const BUS: [&str; 3] = ["pcie-narrow", "pcie-stalled", "iommu-translates"];
const RDMA: [&str; 1] = ["rdma-lossy"];
const EMPTIED_SLOWLY: [&str; 11] = [
    "msi-off",
    "irq-remote-node",
    "irq-one-processor",
    "rss-table-narrow",
    "rss-hash-fields",
    "queues-few",
    "queues-share-interrupts",
    "rss-skew",
    "rps-one-processor",
    "rps-missing",
    "coalescing-long",
];

fn first_of(view: &View<'_>, nic: &Interface, rules: &[&'static str]) -> Option<(&'static str, Found)> {
    rules.iter().find_map(|name| {
        let found = super::reported(view, name);
        let mut found = found.iter().filter(|found| found.severity >= Medium && found.subject == nic.name);
        Some((*name, found.next()?.clone()))
    })
}

/// Returns the finding that the bus of a NIC is too slow.
pub(super) fn slow_bus(view: &View<'_>, nic: &Interface) -> Option<(&'static str, Found)> {
    first_of(view, nic, &BUS)
}

/// Returns whether a NIC lost at least half of its lost packets in its own memory, in front of the ring.
fn loses_in_front(nic: &Interface) -> bool {
    nic.losses.nic.unwrap_or(0).saturating_mul(2) >= ring_losses(&nic.losses)
}

/// Returns the finding of a rule that explains losses in front of the ring, which a longer ring does
/// not prevent. The rules of [`EMPTIED_SLOWLY`] do not count, because behind a full ring the NIC's
/// memory also overflows.
fn explained_in_front(view: &View<'_>, nic: &Interface) -> Option<(&'static str, Found)> {
    let found = || slow_bus(view, nic).or_else(|| first_of(view, nic, &RDMA));
    loses_in_front(nic).then(found).flatten()
}

/// Returns the finding of another rule that explains a NIC's losses, of at least medium severity.
pub(super) fn explained_by(view: &View<'_>, nic: &Interface) -> Option<(&'static str, Found)> {
    explained_in_front(view, nic).or_else(|| first_of(view, nic, &EMPTIED_SLOWLY))
}

/// Returns the fix of the finding that explains another finding, as text.
pub(super) fn first_fix(rule: &str, other: &Found) -> String {
    let line = other.remedy.lines().into_iter().next().map(|line| format!("`{line}`"));
    let fix: Vec<String> = line.into_iter().chain(other.remedy.advice.clone()).collect();
    format!("first the cause ({rule}): {}", fix.join("; "))
}

/// Returns the packets to which a NIC's losses are compared. The port also discards packets of RDMA,
/// which the kernel does not count as received.
fn packets_of_losses(nic: &Interface) -> u64 {
    if loses_in_front(nic) { super::rdma::received_with_rdma(nic) } else { nic.received_packets() }
}

fn ring_drops(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.counted_nics() {
        let lost = ring_losses(&nic.losses);
        let received = packets_of_losses(nic);
        let Some((severity, effect)) = view.judge_loss(nic, lost, received) else { continue };
        let parts = [
            ("without a receive descriptor", nic.losses.ring),
            ("in the NIC, in front of the ring", nic.losses.nic),
            ("in the driver", nic.losses.driver),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter_map(|(where_to, lost)| {
                lost.filter(|lost| *lost > 0).map(|lost| format!("{} {where_to}", count(lost)))
            })
            .collect();
        let mut text =
            format!("lost {} of {} packets", parts.join(" and "), count(received.saturating_add(lost)));
        let share = lost as f64 / received.saturating_add(lost) as f64;
        text += &format!(" ({}{})", per_cent(share), view.rate_words(lost));
        let in_front = explained_in_front(view, nic).is_some();
        let cause = explained_by(view, nic);
        if let Some((rule, other)) = &cause {
            text += &format!("; {rule}: {}", other.evidence);
        }
        let cause = cause.map(|(rule, other)| first_fix(rule, &other));
        // A longer ring does not prevent losses in front of the ring.
        let rings = nic.rings.filter(|rings| !in_front && rings.rx > 0 && rings.rx < rings.rx_max);
        let mut entry;
        if let Some(rings) = rings {
            text += &format!(
                "; the receive ring has {} of {} entries{}",
                rings.rx,
                rings.rx_max,
                View::ring_time_us(nic)
                    .map(|time| format!(" ({time:.0} µs at line rate)"))
                    .unwrap_or_default()
            );
            entry = Found::measured(severity, &nic.name, text, effect)
                .on(&nic.name)
                .change(Knob::Ring(Ring::Rx), Value::Number(rings.rx_max));
            if let Some(cause) = cause {
                entry = entry.advice(cause);
            }
        } else if let Some(cause) = cause {
            entry = Found::measured(severity, &nic.name, text, effect).advice(cause);
        } else {
            entry = Found::measured(severity, &nic.name, text, effect);
            let squeezed: u64 =
                view.facts.softnet.iter().map(|processor| processor.squeezed).saturating_sum();
            let ring = if nic.rings.is_some() {
                "the ring has its maximum size"
            } else {
                "the size of the ring is not known"
            };
            entry = entry.advice(if squeezed > 1000 {
                format!(
                    "{ring}: the processors do not empty it in time (softirq squeezes show it); see the findings about interrupts, queues, hash \
                     fields and softnet"
                )
            } else {
                format!(
                    "{ring}: spread the packets over more queues and cores (interrupts, hash fields), and check idle \
                     states, the bus and interrupt coalescing"
                )
            });
        }
        found.push(entry);
    }
    found
}

/// Returns whether a finding about the receive ring enlarges the ring.
pub(super) fn lengthens_ring(view: &View<'_>, nic: &Interface) -> bool {
    let is_of = |found: &Found| found.subject == nic.name && !found.remedy.changes.is_empty();
    ["rx-ring-drops", "rx-ring-short"].iter().any(|rule| super::reported(view, rule).iter().any(is_of))
}

/// Returns whether counters that [`ring_losses`] uses are missing.
fn lacks_loss_counters(view: &View<'_>, nic: &Interface) -> bool {
    let is_own = |gap: &&Unknown| gap.interface() == Some(nic.name.as_str());
    let mut gaps = view.facts.unknown.iter().filter(is_own);
    gaps.any(|gap| gap.concerns(needs::DRIVER_STATISTICS) || gap.concerns(needs::STATISTICS))
}

fn ring_short(view: &View<'_>) -> Vec<Found> {
    const SHORT_US: f64 = 200.0;
    let mut found = Vec::new();
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let (Some(rings), Some(time), Some(mtu)) = (nic.rings, View::ring_time_us(nic), nic.mtu) else {
            continue;
        };
        // A loss whose counter is missing may be large (rx-ring-drops).
        if lacks_loss_counters(view, nic) {
            continue;
        }
        let has_drops = view.judge_loss(nic, ring_losses(&nic.losses), packets_of_losses(nic)).is_some();
        if rings.rx < rings.rx_max && time < SHORT_US && !has_drops {
            let text = format!(
                "the receive ring has {} of {} entries, {time:.0} µs of packets of {} bytes at line rate",
                rings.rx, rings.rx_max, mtu
            );
            let effect = "if the processor does not poll for longer, packets are lost that TCP's flow control cannot stop";
            let entry = Found::setting(Low, &nic.name, text, effect).on(&nic.name);
            found.push(entry.change(Knob::Ring(Ring::Rx), Value::Number(rings.rx_max)));
        }
    }
    found
}

fn transmit_stops(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let (Some(stops), Some(rings)) = (nic.losses.transmit_stops, nic.rings) else { continue };
        let packets = nic.sent_packets();
        if stops >= FEWEST && packets > 0 && stops.saturating_mul(1000) >= packets && rings.tx < rings.tx_max
        {
            let text = format!(
                "transmit queues stopped {} times in {} packets ({}{}); the ring has {} of {} entries",
                count(stops),
                count(packets),
                per_cent(stops as f64 / packets as f64),
                view.rate_words(stops),
                rings.tx,
                rings.tx_max
            );
            let entry =
                Found::measured(Low, &nic.name, text, "packets wait in the qdisc while the ring is full")
                    .on(&nic.name);
            found.push(entry.change(Knob::Ring(Ring::Tx), Value::Number(rings.tx_max)));
        }
    }
    found
}

/// Returns the coalescing time in which packets at line rate fill a quarter of the ring, from 4 to 50 µs.
/// Returns 50 µs, 20,000 interrupts per second, if the time to fill the ring is unknown.
fn suitable_wait_us(nic: &Interface) -> u32 {
    let quarter = View::ring_time_us(nic).map_or(50.0, |time| time / 4.0);
    quarter.clamp(4.0, 50.0) as u32
}

fn coalescing_long(view: &View<'_>) -> Vec<Found> {
    const LONG_US: u32 = 250;
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(coalescing) =
            nic.coalescing.filter(|coalescing| !coalescing.adaptive_rx && coalescing.rx_usecs > 0)
        else {
            continue;
        };
        let wait = f64::from(coalescing.rx_usecs);
        // If the NIC also counts frames, the frame limit can end the coalescing time early.
        let frames = View::packet_time_us(nic).map(|time| time * f64::from(coalescing.rx_frames));
        let wait = frames.filter(|time| *time > 0.0).map_or(wait, |time| time.min(wait));
        let share = View::ring_time_us(nic).map_or(0.0, |time| wait / time);
        let fills = share >= 0.5;
        if !fills && coalescing.rx_usecs < LONG_US {
            continue;
        }
        let wait_text = format!("it waits up to {} µs before it interrupts", coalescing.rx_usecs);
        let text = match nic.rings.filter(|_| fills) {
            Some(rings) => format!(
                "{wait_text}, in which {} of its {} receive descriptors fill at line rate",
                per_cent(share.min(1.0)),
                rings.rx
            ),
            None => wait_text,
        };
        let effect = if fills {
            "the ring overflows before the interrupt"
        } else {
            "each round trip grows by the wait"
        };
        let severity = if fills { by_speed(nic, Medium, Low) } else { Low };
        let entry = Found::setting(severity, &nic.name, text, effect).on(&nic.name);
        found.push(entry.change(Knob::Coalescing(Coalescing::RxUsecs), Value::Number(suitable_wait_us(nic))));
    }
    found
}

/// Drivers that adapt the coalescing time to the traffic with `rx-usecs 3` (`igb_set_coalesce`,
/// `e1000_set_coalesce`).
const SELF_TUNING: [&str; 3] = ["igb", "igc", "e1000e"];
const SELF_TUNED: u32 = 3;

fn coalescing_off(view: &View<'_>) -> Vec<Found> {
    // An application that waits for answers needs interrupts without a wait.
    if view.latency_bound().is_some() {
        return Vec::new();
    }
    const MANY: u64 = 1_000_000;
    /// Interrupt rate from which even a slow NIC costs noticeable processor time.
    const RATE: f64 = 5000.0;
    let mut found = Vec::new();
    if view.facts.virtual_machine {
        return found;
    }
    for nic in view.nics() {
        let Some(coalescing) = nic.coalescing else { continue };
        if coalescing.adaptive_rx || coalescing.rx_usecs > 0 || coalescing.rx_frames > 1 {
            continue;
        }
        let interrupts: u64 = view.served_by(nic).values().saturating_sum();
        let packets = nic.received_packets();
        let shows = packets >= MANY && interrupts.saturating_mul(2) >= packets;
        let rate = view.per_second(interrupts).unwrap_or(0.0);
        let costs = shows && rate >= RATE;
        let fast = nic.speed_bps.is_some_and(|speed| speed >= FAST);
        if !fast && !costs {
            continue;
        }
        let text = format!(
            "it interrupts without a wait (rx-usecs 0, not adaptive){}",
            if shows {
                format!(
                    ": {} interrupts for {} packets, {} per second since boot",
                    count(interrupts),
                    count(packets),
                    count(rate as u64)
                )
            } else {
                String::new()
            }
        );
        let effect = "an interrupt for almost every packet costs processor time that receives nothing";
        let severity = if costs && fast { Medium } else { Low };
        let entry = Found::setting(severity, &nic.name, text, effect).on(&nic.name);
        let by_itself = nic.driver.as_deref().is_some_and(|driver| SELF_TUNING.contains(&driver));
        let wait = if by_itself { SELF_TUNED } else { suitable_wait_us(nic).min(16) };
        found.push(entry.change(Knob::Coalescing(Coalescing::RxUsecs), Value::Number(wait)));
    }
    found
}

fn iommu(view: &View<'_>) -> Vec<Found> {
    const FROM_BPS: u64 = 40_000_000_000;
    const LAZY_FROM_BPS: u64 = 100_000_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let Some(speed) = nic.speed_bps.filter(|speed| *speed >= FROM_BPS) else { continue };
        let severity = match nic.iommu.as_deref() {
            Some("DMA") => Medium,
            Some("DMA-FQ") if speed >= LAZY_FROM_BPS => Low,
            _ => continue,
        };
        let kind = nic.iommu.as_deref().unwrap_or_default();
        let text = format!(
            "its IOMMU group is of type {kind}: every buffer is mapped and unmapped, with {}",
            gigabits(speed as f64)
        ) + &view.work_words(nic);
        let effect = "processor time for each packet, and a lock that all queues share";
        found.push(Found::setting(severity, &nic.name, text, effect).advice(
            "iommu=pt on the kernel's command line, and a restart; only if the devices of this host are trusted",
        ));
    }
    found
}

fn emulated(view: &View<'_>) -> Vec<Found> {
    const EMULATED: [&str; 6] = ["e1000", "8139cp", "8139too", "pcnet32", "ne2k-pci", "tulip"];
    if !view.facts.virtual_machine {
        return Vec::new();
    }
    let nics = view.nics().filter_map(|nic| Some((nic, nic.driver.as_deref()?)));
    nics.filter(|(_, driver)| EMULATED.contains(driver))
        .map(|(nic, driver)| {
            let text = format!("the driver is {driver}: the hypervisor emulates a hardware NIC")
                + &view.work_words(nic);
            Found::setting(
                Medium,
                &nic.name,
                text,
                "an exit to the hypervisor for every access to the NIC, and a single queue",
            )
            .advice("give the machine a paravirtual NIC (virtio-net with several queues, vmxnet3)")
        })
        .collect()
}
