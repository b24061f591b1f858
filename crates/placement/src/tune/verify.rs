//! Judges whether a change reduced losses: lost packets per million carried packets, before and after.
//!
//! Counters are compared over two intervals, one before the changes and one after. Traffic differs
//! between the intervals, so losses are divided by the packets carried: losses of an interface by its
//! own packets, losses of the host by the packets of all interfaces. A difference must exceed three
//! standard deviations of two Poisson counts.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{HostFacts, Interface, SaturatingSum, Unknown};
use serde::Serialize;

use crate::loss_path::{Place, losses, unread};

/// Minimum number of packets for a conclusion; with fewer, the share of lost packets is mostly chance.
const FEWEST_PACKETS: u64 = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Packets that the interface received or sent.
    pub packets: u64,
    /// Packets that the interface and each interface below it received or sent.
    carried: BTreeMap<String, u64>,
    /// Packets that all interfaces received or sent.
    on_host: u64,
    /// Packets lost, by place and subject.
    pub lost: BTreeMap<(Place, String), u64>,
    /// The rules that explain the losses.
    pub rules: BTreeSet<&'static str>,
    /// The loss counters that could not be read.
    not_read: BTreeSet<Unknown>,
}

impl Stretch {
    /// Returns the traffic and losses between two readings, of an interface, the interfaces below it, and the host.
    #[must_use]
    pub fn between(first: &HostFacts, second: &HostFacts, interface: &str) -> Self {
        let own = second.down_from(interface);
        let packets = |interface: &Interface| {
            let all = |found: &Interface| found.received_packets().saturating_add(found.sent_packets());
            all(interface).saturating_sub(first.same_interface(interface).map_or(0, all))
        };
        let carried: BTreeMap<String, u64> = own
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), packets(second.interface(name)?))))
            .collect();
        let (mut lost, mut rules) = (BTreeMap::new(), BTreeSet::new());
        for loss in losses(first, second) {
            let elsewhere = !own.contains(loss.subject.as_str()) && second.interface(&loss.subject).is_some();
            if !elsewhere {
                rules.insert(loss.rule);
                let sum = lost.entry((loss.place, loss.subject)).or_insert(0_u64);
                *sum = sum.saturating_add(loss.packets);
            }
        }
        let is_elsewhere = |gap: &&Unknown| {
            let name = gap.source.strip_prefix("/sys/class/net/").and_then(|path| path.split('/').next());
            name.is_some_and(|name| !own.contains(name))
        };
        Self {
            packets: carried.get(interface).copied().unwrap_or(0),
            carried,
            on_host: second.interfaces.iter().map(packets).saturating_sum(),
            lost,
            rules,
            not_read: unread(first, second).filter(|gap| !is_elsewhere(gap)).cloned().collect(),
        }
    }

    /// Returns the packets among which those of a subject were lost.
    fn packets_at(&self, subject: &str) -> u64 {
        self.carried.get(subject).copied().unwrap_or(self.on_host)
    }
}

/// The comparison of two intervals at one place.
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
    /// Lost packets per million packets of the interface or host, before.
    pub before_ppm: f64,
    /// Lost packets per million packets of the interface or host, after.
    pub after_ppm: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Watched {
    #[serde(flatten)]
    pub effect: Effect,
    /// The loss counters that could not be read before or after.
    pub not_read: BTreeSet<Unknown>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Too few packets before or after for a conclusion.
    NoTraffic { before: u64, after: u64 },
    /// The losses at each place with at least one loss; empty if no packet was lost.
    Losses(Vec<Compared>),
}

#[must_use]
pub fn compare(before: &Stretch, after: &Stretch) -> Watched {
    Watched { effect: effect(before, after), not_read: &before.not_read | &after.not_read }
}

fn effect(before: &Stretch, after: &Stretch) -> Effect {
    if before.packets < FEWEST_PACKETS || after.packets < FEWEST_PACKETS {
        return Effect::NoTraffic { before: before.packets, after: after.packets };
    }
    let mut places: Vec<&(Place, String)> = before.lost.keys().chain(after.lost.keys()).collect();
    places.sort_unstable();
    places.dedup();
    let at = |stretch: &Stretch, place: &(Place, String)| {
        let lost = stretch.lost.get(place).copied().unwrap_or(0);
        // A device that drops all packets carries none.
        let packets = stretch.packets_at(&place.1).max(lost).max(1) as f64;
        (lost as f64 / packets, lost.max(1) as f64 / packets.powi(2))
    };
    let compared = places.into_iter().map(|place| {
        let ((old, old_variance), (new, new_variance)) = (at(before, place), at(after, place));
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
    use evenkeel_model::host::{Interface, LossCounters};

    fn stretch(packets: u64, lost: u64) -> Stretch {
        let carried = [("eth0".to_owned(), packets)].into();
        let mut stretch = Stretch { packets, carried, on_host: packets, ..Stretch::default() };
        if lost > 0 {
            stretch.lost.insert((Place::ReceiveRing, "eth0".to_owned()), lost);
        }
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

    #[test]
    fn without_traffic_nothing_is_said() {
        let quiet = compare(&stretch(10, 0), &stretch(1_000_000, 9));
        assert_eq!(quiet.effect, Effect::NoTraffic { before: 10, after: 1_000_000 });
        assert!(!quiet.is_worse());
        assert_eq!(effect(&stretch(5000, 0), &stretch(5000, 0)), Effect::Losses(Vec::new()));
    }

    fn at(name: &str, packets: u64, ring: u64) -> Interface {
        Interface {
            name: name.to_owned(),
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
        let stretch = Stretch::between(&first, &second, "eth0");
        assert_eq!(stretch.packets, 5000);
        assert_eq!(stretch.rules, ["rx-ring-drops"].into());
        assert_eq!(stretch.lost, [((Place::ReceiveRing, "eth0".to_owned()), 7)].into());
    }

    #[test]
    fn the_ports_of_a_bond_are_part_of_it() {
        let over = |bond: Interface, port: Interface| {
            let other = at("eth9", 0, 0);
            host(vec![Interface { lower: vec!["eth0".to_owned()], ..bond }, port, other])
        };
        let first = over(at("bond0", 0, 0), at("eth0", 0, 0));
        let mut second = over(at("bond0", 10_000, 0), at("eth0", 50_000, 500));
        second.unknown = ["eth9", "eth0"]
            .map(|name| Unknown::new(format!("/sys/class/net/{name}/statistics"), name))
            .into();
        let stretch = Stretch::between(&first, &second, "bond0");
        assert_eq!(stretch.lost, [((Place::ReceiveRing, "eth0".to_owned()), 500)].into());
        let watched = compare(&stretch, &stretch);
        let Effect::Losses(compared) = &watched.effect else { panic!("{watched:?}") };
        assert_eq!(compared[0].before_ppm, 10_000.0, "of the port's packets");
        assert_eq!(watched.not_read.iter().map(|gap| gap.why.as_str()).collect::<Vec<_>>(), ["eth0"]);
    }

    /// The traffic of another interface loses the same share of its packets, and grows after the changes.
    #[test]
    fn losses_of_the_host_count_by_the_packets_of_all_interfaces() {
        let stretch = |loopback: u64| {
            let reading = |eth0: u64, loopback: u64| {
                let mut host = host(vec![at("eth0", eth0, 0), at("lo", loopback, 0)]);
                host.counters.insert("TcpExt.TCPBacklogDrop".to_owned(), loopback / 100);
                host
            };
            Stretch::between(&reading(0, 0), &reading(2000, loopback), "eth0")
        };
        let watched = compare(&stretch(1_000_000), &stretch(4_000_000));
        let Effect::Losses(compared) = &watched.effect else { panic!("{watched:?}") };
        assert!(compared[0].after_ppm < 10_001.0 && !watched.is_worse(), "{watched:?}");
    }
}
