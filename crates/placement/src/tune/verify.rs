//! Judges whether a change reduced losses: lost packets per million packets, before and after.
//!
//! Counters are compared over two watches, one before the changes and one after. Traffic differs
//! between the watches, so losses are divided by packets: losses of an interface by its own packets,
//! losses of the host by the packets of all interfaces. The divisor also contains the lost packets that
//! the counters of packets lack, such as drops of a qdisc. A difference must exceed three standard
//! deviations. Losses come in bursts, so the deviation is the larger of that of Poisson counts and that
//! of the parts of a watch.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{HostFacts, Interface, SaturatingSum, Unknown};
use serde::Serialize;

use crate::loss_path::{Place, losses, unread};
use crate::replaced_qdiscs::replaced_qdiscs;

/// Minimum number of packets for a conclusion; with fewer, the share of lost packets is mostly chance.
const FEWEST_PACKETS: u64 = 1000;

/// Traffic and losses of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Packets that the interface received or sent.
    pub packets: u64,
    parts: Vec<Part>,
    /// The rules that explain the losses.
    pub rules: BTreeSet<&'static str>,
    /// The loss counters that could not be read.
    not_read: BTreeSet<Unknown>,
}

/// Traffic and losses between two consecutive readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    /// Packets that the interface and each interface below it received or sent.
    carried: BTreeMap<String, u64>,
    /// Packets that all interfaces received or sent.
    on_host: u64,
    /// Packets lost, by place and subject.
    lost: BTreeMap<(Place, String), u64>,
}

impl Stretch {
    /// Adds the traffic and losses between two readings, of an interface, the interfaces below it, and the
    /// host.
    pub fn add(&mut self, first: &HostFacts, second: &HostFacts, interface: &str) {
        let own = second.down_from(interface);
        let packets = |interface: &Interface| {
            let all = |found: &Interface| found.received_packets().saturating_add(found.sent_packets());
            all(interface).saturating_sub(first.same_interface(interface).map_or(0, all))
        };
        let carried: BTreeMap<String, u64> = own
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), packets(second.interface(name)?))))
            .collect();
        let mut lost = BTreeMap::new();
        for loss in losses(first, second) {
            let elsewhere = !own.contains(loss.subject.as_str()) && second.interface(&loss.subject).is_some();
            if !elsewhere {
                self.rules.insert(loss.rule);
                let sum = lost.entry((loss.place, loss.subject)).or_insert(0_u64);
                *sum = sum.saturating_add(loss.packets);
            }
        }
        let is_elsewhere = |gap: &Unknown| {
            let name = gap.source.strip_prefix("/sys/class/net/").and_then(|path| path.split('/').next());
            name.is_some_and(|name| !own.contains(name))
        };
        let gaps = unread(first, second).cloned().chain(replaced_qdiscs(first, second));
        self.not_read.extend(gaps.filter(|gap| !is_elsewhere(gap)));
        self.packets = self.packets.saturating_add(carried.get(interface).copied().unwrap_or(0));
        let on_host = second.interfaces.iter().map(packets).saturating_sum();
        self.parts.push(Part { carried, on_host, lost });
    }

    fn places(&self) -> impl Iterator<Item = &(Place, String)> {
        self.parts.iter().flat_map(|part| part.lost.keys())
    }

    /// Returns the share of lost packets at a place, and its variance.
    fn at(&self, place: &(Place, String)) -> (f64, f64) {
        let parts: Vec<(f64, f64)> = self.parts.iter().map(|part| part.at(place)).collect();
        let lost: f64 = parts.iter().map(|(lost, _)| lost).sum();
        let packets = parts.iter().map(|(_, packets)| packets).sum::<f64>().max(lost).max(1.0);
        let share = lost / packets;
        // The variance of a ratio estimate (Cochran, Sampling Techniques, section 6.3).
        let count = parts.len() as f64;
        let residuals: f64 = parts.iter().map(|(lost, packets)| (lost - share * packets).powi(2)).sum();
        let of_parts = if parts.len() < 2 { 0.0 } else { residuals * count / (count - 1.0) };
        (share, of_parts.max(lost).max(1.0) / packets.powi(2))
    }

    /// Returns the packets of the interface, with the lost packets that its counters lack.
    fn offered(&self) -> u64 {
        let lost = self.parts.iter().flat_map(|part| &part.lost);
        let missing = lost.filter(|((place, _), _)| !place.is_among_packets());
        missing.map(|(_, lost)| *lost).fold(self.packets, u64::saturating_add)
    }
}

impl Part {
    /// Returns the packets lost at a place, and the packets among which they were lost.
    fn at(&self, place: &(Place, String)) -> (f64, f64) {
        let lost = self.lost.get(place).copied().unwrap_or(0);
        let packets = self.carried.get(&place.1).copied().unwrap_or(self.on_host);
        let missing = if place.0.is_among_packets() { 0 } else { lost };
        (lost as f64, packets.saturating_add(missing).max(lost) as f64)
    }
}

/// The effect of the changes on the losses at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Better,
    Worse,
    /// The difference can be due to chance.
    Same,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub place: Place,
    pub subject: String,
    /// Lost packets per million packets of the interface or host, lost packets included, before the changes.
    pub before_ppm: f64,
    /// Lost packets per million packets, as in `before_ppm`, after the changes.
    pub after_ppm: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Watched {
    #[serde(flatten)]
    pub effect: Effect,
    /// The loss counters that could not be read before or after the changes, and the counters of qdiscs that
    /// were replaced during a watch.
    pub not_read: BTreeSet<Unknown>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Too few packets before or after the changes for a conclusion. The numbers include lost packets.
    NoTraffic { before: u64, after: u64 },
    /// The losses at each place with at least one loss; empty if no packet was lost.
    Losses(Vec<Compared>),
}

#[must_use]
pub fn compare(before: &Stretch, after: &Stretch) -> Watched {
    Watched { effect: effect(before, after), not_read: &before.not_read | &after.not_read }
}

fn effect(before: &Stretch, after: &Stretch) -> Effect {
    let offered = [before, after].map(Stretch::offered);
    if offered.iter().any(|packets| *packets < FEWEST_PACKETS) {
        return Effect::NoTraffic { before: offered[0], after: offered[1] };
    }
    let places: BTreeSet<&(Place, String)> = before.places().chain(after.places()).collect();
    let compared = places.into_iter().map(|place| {
        let ((old, old_variance), (new, new_variance)) = (before.at(place), after.at(place));
        let chance = 3.0 * (old_variance + new_variance).sqrt();
        let verdict = match new - old {
            difference if difference > chance => Verdict::Worse,
            difference if -difference > chance => Verdict::Better,
            _ => Verdict::Same,
        };
        let (place, subject) = place.clone();
        Compared { place, subject, before_ppm: old * 1e6, after_ppm: new * 1e6, verdict }
    });
    Effect::Losses(compared.collect())
}

impl Watched {
    #[must_use]
    pub fn is_worse(&self) -> bool {
        match &self.effect {
            Effect::NoTraffic { .. } => false,
            Effect::Losses(compared) => compared.iter().any(|one| one.verdict == Verdict::Worse),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::host::{Interface, InterfaceKind, LossCounters, QdiscFacts};

    fn part(packets: u64, lost: u64) -> Part {
        let lost = (lost > 0).then(|| ((Place::ReceiveRing, "eth0".to_owned()), lost));
        let carried = [("eth0".to_owned(), packets)].into();
        Part { carried, on_host: packets, lost: lost.into_iter().collect() }
    }

    fn stretch(packets: u64, lost: u64) -> Stretch {
        Stretch { packets, parts: vec![part(packets, lost)], ..Stretch::default() }
    }

    fn between(first: &HostFacts, second: &HostFacts, interface: &str) -> Stretch {
        let mut stretch = Stretch::default();
        stretch.add(first, second, interface);
        stretch
    }

    fn verdict(before: Stretch, after: Stretch) -> Verdict {
        match effect(&before, &after) {
            Effect::Losses(compared) => compared[0].verdict,
            other @ Effect::NoTraffic { .. } => panic!("{other:?}"),
        }
    }

    #[test]
    fn losses_count_by_the_packets_carried_and_beyond_chance() {
        assert_eq!(verdict(stretch(1_000_000, 5000), stretch(1_000_000, 0)), Verdict::Better);
        assert_eq!(verdict(stretch(1_000_000, 0), stretch(1_000_000, 5000)), Verdict::Worse);
        assert_eq!(verdict(stretch(1_000_000, 5000), stretch(2_000_000, 10_000)), Verdict::Same);
        assert_eq!(verdict(stretch(1_000_000, 5), stretch(1_000_000, 3)), Verdict::Same, "chance");
        assert_eq!(verdict(stretch(1_000_000, 0), stretch(1_000_000, 2)), Verdict::Same, "chance");
        assert!(compare(&stretch(5000, 0), &stretch(5000, 4000)).is_worse());
    }

    /// Two watches of 10 parts with one burst of losses each can differ by chance, even if one burst has
    /// twice the size.
    #[test]
    fn bursts_are_not_poisson() {
        let watch = |lost: [u64; 10]| {
            let parts = lost.map(|lost| part(100_000, lost)).into();
            Stretch { packets: 1_000_000, parts, ..Stretch::default() }
        };
        let burst = |lost| watch([0, 0, lost, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(verdict(burst(1000), burst(2000)), Verdict::Same);
        assert_eq!(verdict(burst(1000), watch([1000; 10])), Verdict::Worse);
        assert_eq!(
            verdict(watch([1000, 900, 1100, 1000, 950, 1050, 1000, 900, 1100, 1000]), burst(900)),
            Verdict::Better
        );
    }

    /// The counters of packets lack packets that a ring dropped, and contain those that a full receive buffer
    /// dropped.
    #[test]
    fn a_total_loss_is_traffic_and_a_ratio_of_one() {
        assert!(compare(&stretch(5000, 0), &stretch(0, 5000)).is_worse());
        let ppm = |after: Stretch| match effect(&stretch(5000, 0), &after) {
            Effect::Losses(compared) => compared[0].after_ppm,
            other @ Effect::NoTraffic { .. } => panic!("{other:?}"),
        };
        assert_eq!(ppm(stretch(0, 5000)), 1e6);
        assert_eq!(ppm(stretch(5000, 5000)), 5e5);
        let mut at_socket = stretch(5000, 0);
        at_socket.parts[0].lost.insert((Place::ReceiveQueue, "UDP 0.0.0.0:53".to_owned()), 5000);
        assert_eq!(ppm(at_socket), 1e6);
        let mut idle = stretch(10, 0);
        idle.parts[0].lost.insert((Place::ReceiveQueue, "UDP 0.0.0.0:53".to_owned()), 5000);
        let quiet = Effect::NoTraffic { before: 5000, after: 10 };
        assert_eq!(effect(&stretch(5000, 0), &idle), quiet, "of other interfaces");
    }

    #[test]
    fn without_traffic_nothing_is_said() {
        let quiet = compare(&stretch(10, 0), &stretch(1_000_000, 9));
        assert_eq!(quiet.effect, Effect::NoTraffic { before: 10, after: 1_000_009 });
        assert!(!quiet.is_worse());
        assert_eq!(effect(&stretch(5000, 0), &stretch(5000, 0)), Effect::Losses(Vec::new()));
    }

    fn at(name: &str, packets: u64, ring: u64) -> Interface {
        Interface {
            name: name.to_owned(),
            kind: InterfaceKind::Device,
            statistics: [("rx_packets".to_owned(), packets)].into(),
            losses: LossCounters { ring: Some(ring), ..LossCounters::default() },
            ..Interface::default()
        }
    }

    fn host(interfaces: Vec<Interface>) -> HostFacts {
        HostFacts { interfaces, ..HostFacts::default() }
    }

    #[test]
    fn a_stretch_is_of_the_interface_and_its_host() {
        let first = host(vec![at("eth0", 100, 1), at("eth1", 0, 0)]);
        let second = host(vec![at("eth0", 5100, 8), at("eth1", 9, 9)]);
        let stretch = between(&first, &second, "eth0");
        assert_eq!(stretch.packets, 5000);
        assert_eq!(stretch.rules, ["rx-ring-drops"].into());
        assert_eq!(stretch.parts[0].lost, [((Place::ReceiveRing, "eth0".to_owned()), 7)].into());
    }

    #[test]
    fn the_ports_of_a_bond_are_part_of_it() {
        let over = |bond: Interface, port: Interface| {
            let other = at("eth9", 0, 0);
            host(vec![Interface { lower: vec!["eth0".to_owned()], ..bond }, port, other])
        };
        let first = over(at("bond0", 0, 0), at("eth0", 0, 0));
        let mut second = over(at("bond0", 10_000, 0), at("eth0", 49_500, 500));
        second.unknown = ["eth9", "eth0"]
            .map(|name| Unknown::new(format!("/sys/class/net/{name}/statistics"), name))
            .into();
        let stretch = between(&first, &second, "bond0");
        assert_eq!(stretch.parts[0].lost, [((Place::ReceiveRing, "eth0".to_owned()), 500)].into());
        let watched = compare(&stretch, &stretch);
        let Effect::Losses(compared) = &watched.effect else { panic!("{watched:?}") };
        assert_eq!(compared[0].before_ppm, 10_000.0, "of the port's packets");
        assert_eq!(watched.not_read.iter().map(|gap| gap.why.as_str()).collect::<Vec<_>>(), ["eth0"]);
    }

    /// Another interface loses 1 % of its packets before and after the changes. Its traffic grows, so it
    /// loses more packets, but not a larger share.
    #[test]
    fn losses_of_the_host_count_by_the_packets_of_all_interfaces() {
        let stretch = |loopback: u64| {
            let reading = |eth0: u64, loopback: u64| {
                let mut host = host(vec![at("eth0", eth0, 0), at("lo", loopback, 0)]);
                host.counters.insert("TcpExt.TCPBacklogDrop".to_owned(), loopback / 100);
                host
            };
            between(&reading(0, 0), &reading(2000, loopback), "eth0")
        };
        let watched = compare(&stretch(1_000_000), &stretch(4_000_000));
        let Effect::Losses(compared) = &watched.effect else { panic!("{watched:?}") };
        assert!(compared[0].after_ppm < 10_001.0 && !watched.is_worse(), "{watched:?}");
    }

    #[test]
    fn a_replaced_qdisc_is_named_for_its_interface() {
        let with_qdisc = |kind: &str| {
            let qdisc =
                QdiscFacts { kind: kind.to_owned(), parent: "root".to_owned(), ..QdiscFacts::default() };
            host(vec![Interface { qdiscs: vec![qdisc], ..at("eth0", 0, 0) }, at("eth1", 0, 0)])
        };
        let (before, after) = (with_qdisc("fq"), with_qdisc("pfifo"));
        let named = |interface: &str| between(&before, &after, interface).not_read.len();
        assert_eq!((named("eth0"), named("eth1")), (1, 0));
    }
}
