//! The card: its slot, its rings, when it interrupts.

use std::collections::BTreeMap;

use evenkeel_model::change::{Coalescing, Knob, Ring, Value};
use evenkeel_model::host::{Interface, LossCounters, PcieLink, SaturatingSum};

use super::{FAST, Found, Rule, by_speed, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, gigabits, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "pcie-narrow",
        looks_at: "width and speed of each card's PCI Express link against its line rate",
        speaks: "when lanes x speed x encoding - 1 Gbit/s is less than the line rate",
        why: "The bus is the bottleneck: the card's own buffer overflows at rates that the network delivers.",
        mends: "another slot, or the slot's settings in the firmware",
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
        looks_at: "the ports of one card that are up, and the PCI Express link that they share",
        speaks: "when together they are faster than it, and each alone is not",
        why: "Each port reaches its rate alone, but not all at the same time.",
        mends: "a faster slot, or ports on two cards",
        source: "the paper, section III-A (formula of the PCIe bandwidth)",
        needs: &[needs::SPEED, needs::LINK_SPEED, needs::LINK_WIDTH, needs::CPUINFO],
        check: pcie_shared,
    },
    Rule {
        name: "rx-ring-drops",
        looks_at: "packets that found no receive descriptor, or were lost in the card in front of the ring (driver statistics by common names)",
        speaks: "from 100 packets and one in a million on; high from one in ten thousand on, or where busy connections would get less than half of \
                 the line rate together at this loss",
        why: "The receive ring is below TCP's flow control, which cannot keep it from overflowing. A larger ring bridges longer pauses \
              of the processor that empties it; the paper saw fewer losses with the largest.",
        mends: "the largest ring that this card has; where it has that already, what keeps the processor from emptying it",
        source: "the paper, section IV, figure 12 and section III-C, Table I (RX-Ring)",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: ring_drops,
    },
    Rule {
        name: "rx-ring-short",
        looks_at: "the receive ring against its maximum, in time at line rate",
        speaks: "when it is below its maximum and full after less than 200 µs of full-sized packets, from 10 Gbit/s on",
        why: "A processor is away from its ring for a whole round of softirqs or a wake-up from idleness. Rings of slower links last \
              longer: there the default is enough.",
        mends: "the largest ring that this card has",
        source: "the paper, section III-C, Table I (RX-Ring)",
        needs: &[needs::SPEED, needs::RINGS, needs::MTU, needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: ring_short,
    },
    Rule {
        name: "tx-ring-stops",
        looks_at: "how often a transmit queue stopped because its ring was full",
        speaks: "from one stop in a thousand packets on, with a ring below its maximum",
        why: "While a queue is stopped packets wait in the qdisc; they are not lost, but bursts grow and completions become uneven.",
        mends: "a larger transmit ring",
        source: "the paper, section IV, figure 12; Documentation/networking/driver.rst",
        needs: &[needs::RINGS, needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: transmit_stops,
    },
    Rule {
        name: "coalescing-long",
        looks_at: "how long the card waits before it interrupts, against its ring and its link",
        speaks: "when half of the ring can fill at line rate in that time, or it is 250 µs and more, without adaption",
        why: "The ring fills while nobody is told, and each round trip grows by the wait.",
        mends: "a shorter wait, or adaption by the driver",
        source: "Documentation/networking/statistics.rst; ethtool(8), -C; the paper, section IV",
        needs: &[needs::SPEED, needs::COALESCING, needs::RINGS, needs::MTU],
        check: coalescing_long,
    },
    Rule {
        name: "coalescing-off",
        looks_at: "whether the card interrupts for each packet",
        speaks: "low, from 10 Gbit/s on; medium when it shows in the counts (one interrupt for two packets or fewer)",
        why: "At line rate that is hundreds of thousands of interrupts a second, each with a switch of context. On a host whose only \
              aim is latency this is wanted.",
        mends: "a wait of microseconds that the ring bridges easily",
        source: "ethtool(8), -C; Documentation/networking/napi.rst",
        needs: &[needs::SPEED, needs::COALESCING, needs::INTERRUPTS, needs::STATISTICS, needs::CPUINFO],
        check: coalescing_off,
    },
    Rule {
        name: "iommu-translates",
        looks_at: "how the IOMMU group of a card of 40 Gbit/s and more translates addresses",
        speaks: "when each buffer is mapped and unmapped: strict (DMA) medium, lazy (DMA-FQ) low from 100 Gbit/s on",
        why: "Mapping costs processor time for each packet, and strict flushing stalls all queues on one lock.",
        mends: "iommu=pt on the kernel's command line, where the devices are trusted",
        source: "Documentation/ABI/testing/sysfs-kernel-iommu_groups; Documentation/admin-guide/kernel-parameters.txt (iommu, iommu.strict)",
        needs: &[needs::SPEED, needs::IOMMU],
        check: iommu,
    },
    Rule {
        name: "emulated-card",
        looks_at: "the driver of a virtual machine's card",
        speaks: "when the hypervisor emulates a card of hardware that never had several queues or cheap interrupts",
        why: "Every register that the driver touches is an exit to the hypervisor.",
        mends: "a paravirtual card: virtio-net, vmxnet3, or what the cloud has",
        source: "Documentation/networking/device_drivers/ethernet; virtio 1.2, section 5.1",
        needs: &[needs::DRIVER, needs::CPUINFO],
        check: emulated,
    },
];

/// In a virtual machine the bus is the hypervisor's invention.
fn pcie_link(view: &View<'_>, card: &Interface) -> Option<PcieLink> {
    card.pcie.filter(|_| !view.facts.virtual_machine)
}

fn link_words(link: &PcieLink) -> String {
    format!("x{} at {} GT/s", link.width, link.speed_gts)
}

fn pcie_narrow(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for card in view.cards() {
        let (Some(link), Some(speed)) = (pcie_link(view, card), card.speed_bps) else { continue };
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
        let advice = if link.best_bps() >= speed as f64 {
            "the card itself can do more: put it into a slot with more lanes, seat it again, or look at the slot's settings in the firmware"
        } else {
            "neither card nor slot can do more: spread the traffic over two cards"
        };
        found.push(Found::limit(High, &card.name, text, effect).advice(advice));
    }
    found
}

fn pcie_shared(view: &View<'_>) -> Vec<Found> {
    let mut ports: BTreeMap<&str, Vec<&Interface>> = BTreeMap::new();
    for card in view.cards() {
        if let Some((slot, _)) = card.bus.as_deref().and_then(|bus| bus.rsplit_once('.')) {
            ports.entry(slot).or_default().push(card);
        }
    }
    let mut found = Vec::new();
    for (slot, cards) in ports {
        let Some(link) = cards.first().and_then(|card| pcie_link(view, card)) else { continue };
        let sum: u64 = cards.iter().filter_map(|card| card.speed_bps).saturating_sum();
        let alone =
            cards.iter().all(|card| card.speed_bps.is_none_or(|speed| speed as f64 <= link.current_bps()));
        if cards.len() > 1 && alone && sum as f64 > link.current_bps() {
            let names: Vec<&str> = cards.iter().map(|card| card.name.as_str()).collect();
            let text = format!(
                "{} ports of {slot} have {} together, and their PCI Express link, {}, carries {}",
                cards.len(),
                gigabits(sum as f64),
                link_words(&link),
                gigabits(link.current_bps())
            );
            let effect = "the ports cannot all be used at their rate at the same time";
            found.push(
                Found::limit(Low, &names.join(", "), text, effect)
                    .advice("ports on two cards, or a faster slot"),
            );
        }
    }
    found
}

/// Packets lost between the wire and the stack: in front of the ring, at the ring, in the driver. Each counts once.
pub(super) fn ring_losses(losses: &LossCounters) -> u64 {
    [losses.ring, losses.card, losses.driver].into_iter().flatten().fold(0, u64::saturating_add)
}

fn ring_drops(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for card in view.cards() {
        let lost = ring_losses(&card.losses);
        let Some((severity, effect)) = view.judge_loss(card, lost, card.received_packets()) else { continue };
        let parts = [
            ("without a receive descriptor", card.losses.ring),
            ("in the card, in front of the ring", card.losses.card),
            ("in the driver", card.losses.driver),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter_map(|(where_to, lost)| {
                lost.filter(|lost| *lost > 0).map(|lost| format!("{} {where_to}", count(lost)))
            })
            .collect();
        let mut text = format!(
            "lost {} of {} packets",
            parts.join(" and "),
            count(card.received_packets().saturating_add(lost))
        );
        let rings = card.rings.filter(|rings| rings.rx > 0 && rings.rx < rings.rx_max);
        let mut entry;
        if let Some(rings) = rings {
            text += &format!(
                "; the receive ring has {} of {} entries{}",
                rings.rx,
                rings.rx_max,
                View::ring_time_us(card)
                    .map(|time| format!(" ({time:.0} µs at line rate)"))
                    .unwrap_or_default()
            );
            entry = Found::measured(severity, &card.name, text, effect)
                .on(&card.name)
                .change(Knob::Ring(Ring::Rx), Value::Number(rings.rx_max));
        } else {
            entry = Found::measured(severity, &card.name, text, effect);
            let squeezed: u64 =
                view.facts.softnet.iter().map(|processor| processor.squeezed).saturating_sum();
            let ring = if card.rings.is_some() {
                "the ring is as large as it gets"
            } else {
                "the driver shows no ring"
            };
            entry = entry.advice(if squeezed > 1000 {
                format!(
                    "{ring}: the processors do not empty it in time (softirq squeezes show it); see the findings about interrupts, queues, hash \
                     fields and softnet"
                )
            } else {
                format!(
                    "{ring}: spread the packets over more queues and cores (interrupts, hash fields), and look at idle states, the bus and \
                     interrupt coalescing"
                )
            });
        }
        found.push(entry);
    }
    found
}

fn ring_short(view: &View<'_>) -> Vec<Found> {
    const SHORT_US: f64 = 200.0;
    let mut found = Vec::new();
    for card in view.cards().filter(|card| card.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let (Some(rings), Some(time), Some(mtu)) = (card.rings, View::ring_time_us(card), card.mtu) else {
            continue;
        };
        let has_drops = view.judge_loss(card, ring_losses(&card.losses), card.received_packets()).is_some();
        if rings.rx < rings.rx_max && time < SHORT_US && !has_drops {
            let text = format!(
                "the receive ring has {} of {} entries, {time:.0} µs of packets of {} bytes at line rate",
                rings.rx, rings.rx_max, mtu
            );
            let effect =
                "a processor that is away for longer loses packets that TCP's flow control cannot hold back";
            let entry = Found::setting(Low, &card.name, text, effect).on(&card.name);
            found.push(entry.change(Knob::Ring(Ring::Rx), Value::Number(rings.rx_max)));
        }
    }
    found
}

fn transmit_stops(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 1000;
    let mut found = Vec::new();
    for card in view.cards() {
        let (Some(stops), Some(rings)) = (card.losses.transmit_stops, card.rings) else { continue };
        let packets = card.sent_packets();
        if stops >= FEWEST && packets > 0 && stops.saturating_mul(1000) >= packets && rings.tx < rings.tx_max
        {
            let text = format!(
                "transmit queues stopped {} times in {} packets; the ring has {} of {} entries",
                count(stops),
                count(packets),
                rings.tx,
                rings.tx_max
            );
            let entry =
                Found::measured(Low, &card.name, text, "packets wait in the qdisc while the ring is full")
                    .on(&card.name);
            found.push(entry.change(Knob::Ring(Ring::Tx), Value::Number(rings.tx_max)));
        }
    }
    found
}

/// A wait that a quarter of the ring bridges at line rate and that makes at most 20,000 interrupts a second, µs.
fn suitable_wait_us(card: &Interface) -> u32 {
    let quarter = View::ring_time_us(card).map_or(50.0, |time| time / 4.0);
    quarter.clamp(4.0, 50.0) as u32
}

fn coalescing_long(view: &View<'_>) -> Vec<Found> {
    const LONG_US: u32 = 250;
    let mut found = Vec::new();
    for card in view.cards() {
        let Some(coalescing) =
            card.coalescing.filter(|coalescing| !coalescing.adaptive_rx && coalescing.rx_usecs > 0)
        else {
            continue;
        };
        let wait = f64::from(coalescing.rx_usecs);
        // Frames end the wait early where the card counts them.
        let frames = View::packet_time_us(card).map(|time| time * f64::from(coalescing.rx_frames));
        let wait = frames.filter(|time| *time > 0.0).map_or(wait, |time| time.min(wait));
        let share = View::ring_time_us(card).map_or(0.0, |time| wait / time);
        let fills = share >= 0.5;
        if !fills && coalescing.rx_usecs < LONG_US {
            continue;
        }
        let wait_text = format!("it waits up to {} µs before it interrupts", coalescing.rx_usecs);
        let text = match card.rings.filter(|_| fills) {
            Some(rings) => format!(
                "{wait_text}, in which {} of its {} receive descriptors fill at line rate",
                per_cent(share.min(1.0)),
                rings.rx
            ),
            None => wait_text,
        };
        let effect = if fills {
            "the ring overflows before the processor is told"
        } else {
            "each round trip grows by the wait"
        };
        let severity = if fills { by_speed(card, Medium, Low) } else { Low };
        let entry = Found::setting(severity, &card.name, text, effect).on(&card.name);
        found
            .push(entry.change(Knob::Coalescing(Coalescing::RxUsecs), Value::Number(suitable_wait_us(card))));
    }
    found
}

fn coalescing_off(view: &View<'_>) -> Vec<Found> {
    // Beside an application that waits for answers it is wanted.
    if view.latency_bound().is_some() {
        return Vec::new();
    }
    const MANY: u64 = 1_000_000;
    let mut found = Vec::new();
    if view.facts.virtual_machine {
        return found;
    }
    for card in view.cards().filter(|card| card.speed_bps.is_some_and(|speed| speed >= FAST)) {
        let Some(coalescing) = card.coalescing else { continue };
        if coalescing.adaptive_rx || coalescing.rx_usecs > 0 || coalescing.rx_frames > 1 {
            continue;
        }
        let interrupts: u64 = view.served_by(card).values().saturating_sum();
        let packets = card.received_packets();
        let shows = packets >= MANY && interrupts.saturating_mul(2) >= packets;
        let text = format!(
            "it interrupts without a wait (rx-usecs 0, no adaption){}",
            if shows {
                format!(": {} interrupts for {} packets", count(interrupts), count(packets))
            } else {
                String::new()
            }
        );
        let effect = "an interrupt for almost every packet: processor time that receives nothing";
        let entry = Found::setting(if shows { Medium } else { Low }, &card.name, text, effect).on(&card.name);
        found.push(
            entry
                .change(Knob::Coalescing(Coalescing::RxUsecs), Value::Number(suitable_wait_us(card).min(16))),
        );
    }
    found
}

fn iommu(view: &View<'_>) -> Vec<Found> {
    const FROM_BPS: u64 = 40_000_000_000;
    const LAZY_FROM_BPS: u64 = 100_000_000_000;
    let mut found = Vec::new();
    for card in view.cards() {
        let Some(speed) = card.speed_bps.filter(|speed| *speed >= FROM_BPS) else { continue };
        let severity = match card.iommu.as_deref() {
            Some("DMA") => Medium,
            Some("DMA-FQ") if speed >= LAZY_FROM_BPS => Low,
            _ => continue,
        };
        let kind = card.iommu.as_deref().unwrap_or_default();
        let text = format!(
            "its IOMMU group is of type {kind}: every buffer is mapped and unmapped, with {}",
            gigabits(speed as f64)
        );
        let effect = "processor time for each packet, and a lock that all queues share";
        found.push(Found::setting(severity, &card.name, text, effect).advice(
            "iommu=pt on the kernel's command line, and a restart; only where the devices of this host are trusted",
        ));
    }
    found
}

fn emulated(view: &View<'_>) -> Vec<Found> {
    const EMULATED: [&str; 6] = ["e1000", "8139cp", "8139too", "pcnet32", "ne2k-pci", "tulip"];
    if !view.facts.virtual_machine {
        return Vec::new();
    }
    let cards = view.cards().filter_map(|card| Some((card, card.driver.as_deref()?)));
    cards
        .filter(|(_, driver)| EMULATED.contains(driver))
        .map(|(card, driver)| {
            let text = format!("the driver is {driver}: the hypervisor emulates a card of hardware");
            Found::setting(
                Medium,
                &card.name,
                text,
                "an exit to the hypervisor for every access to the card, and a single queue",
            )
            .advice("give the machine a paravirtual card (virtio-net with several queues, vmxnet3)")
        })
        .collect()
}
