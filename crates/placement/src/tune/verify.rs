//! Judges whether a change reduced losses: lost packets per million carried packets, before and after.
//!
//! Counters are compared over two intervals, one before the changes and one after. Traffic differs
//! between the intervals, so losses are divided by the packets carried. A difference must exceed three
//! standard deviations of two Poisson counts.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::HostFacts;
use serde::Serialize;

use crate::loss_path::{Place, losses};

/// Minimum number of packets for a conclusion; with fewer, the share of lost packets is mostly chance.
const FEWEST_PACKETS: u64 = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// Packets that the interface received or sent.
    pub packets: u64,
    /// Packets lost, by place and subject.
    pub lost: BTreeMap<(Place, String), u64>,
    /// The rules that explain the losses.
    pub rules: BTreeSet<&'static str>,
}

impl Stretch {
    /// Returns the traffic and losses between two readings, of an interface and its host.
    #[must_use]
    pub fn between(first: &HostFacts, second: &HostFacts, interface: &str) -> Self {
        let carried = |facts: &HostFacts| {
            facts
                .interface(interface)
                .map_or(0, |found| found.received_packets().saturating_add(found.sent_packets()))
        };
        let (mut lost, mut rules) = (BTreeMap::new(), BTreeSet::new());
        for loss in losses(first, second) {
            let elsewhere = loss.subject != interface && second.interface(&loss.subject).is_some();
            if !elsewhere {
                rules.insert(loss.rule);
                let sum = lost.entry((loss.place, loss.subject)).or_insert(0_u64);
                *sum = sum.saturating_add(loss.packets);
            }
        }
        Self { packets: carried(second).saturating_sub(carried(first)), lost, rules }
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
    /// Lost packets per million carried packets, before.
    pub before_ppm: f64,
    /// Lost packets per million carried packets, after.
    pub after_ppm: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watched {
    /// Too few packets before or after for a conclusion.
    NoTraffic { before: u64, after: u64 },
    /// The losses at each place with at least one loss; empty if no packet was lost.
    Losses(Vec<Compared>),
}

#[must_use]
pub fn compare(before: &Stretch, after: &Stretch) -> Watched {
    if before.packets < FEWEST_PACKETS || after.packets < FEWEST_PACKETS {
        return Watched::NoTraffic { before: before.packets, after: after.packets };
    }
    let mut places: Vec<&(Place, String)> = before.lost.keys().chain(after.lost.keys()).collect();
    places.sort_unstable();
    places.dedup();
    let at = |stretch: &Stretch, place: &(Place, String)| {
        let lost = stretch.lost.get(place).copied().unwrap_or(0) as f64;
        (lost / stretch.packets as f64, lost.max(1.0) / (stretch.packets as f64).powi(2))
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
    Watched::Losses(compared.collect())
}

impl Watched {
    #[must_use]
    pub fn is_worse(&self) -> bool {
        match self {
            Self::NoTraffic { .. } => false,
            Self::Losses(compared) => compared.iter().any(|one| one.verdict == Verdict::Worse),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::host::{Interface, LossCounters};

    fn stretch(packets: u64, lost: u64) -> Stretch {
        let mut stretch = Stretch { packets, ..Stretch::default() };
        if lost > 0 {
            stretch.lost.insert((Place::ReceiveRing, "eth0".to_owned()), lost);
        }
        stretch
    }

    fn verdict(before: Stretch, after: Stretch) -> Verdict {
        match compare(&before, &after) {
            Watched::Losses(compared) => compared[0].verdict,
            other @ Watched::NoTraffic { .. } => panic!("{other:?}"),
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
        assert_eq!(quiet, Watched::NoTraffic { before: 10, after: 1_000_000 });
        assert!(!quiet.is_worse());
        assert_eq!(compare(&stretch(5000, 0), &stretch(5000, 0)), Watched::Losses(Vec::new()));
    }

    #[test]
    fn a_stretch_is_of_the_interface_and_its_host() {
        let at = |name: &str, packets: u64, ring: u64| Interface {
            name: name.to_owned(),
            statistics: [("rx_packets".to_owned(), packets)].into(),
            losses: LossCounters { ring: Some(ring), ..LossCounters::default() },
            ..Interface::default()
        };
        let host = |interfaces: Vec<Interface>| HostFacts { interfaces, ..HostFacts::default() };
        let first = host(vec![at("eth0", 100, 1), at("eth1", 0, 0)]);
        let second = host(vec![at("eth0", 5100, 8), at("eth1", 9, 9)]);
        let stretch = Stretch::between(&first, &second, "eth0");
        assert_eq!(stretch.packets, 5000);
        assert_eq!(stretch.rules, ["rx-ring-drops"].into());
        assert_eq!(stretch.lost, [((Place::ReceiveRing, "eth0".to_owned()), 7)].into());
    }
}
