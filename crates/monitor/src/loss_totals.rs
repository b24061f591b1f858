//! Losses since the collector began, summed over the samples.

use std::borrow::Cow;
use std::collections::BTreeMap;

use evenkeel_model::host::HostFacts;
use evenkeel_placement::loss_path::{self, Place, keep_unread};

use crate::sample::{Interval, Loss};

/// Number of listed losses from which on a new socket or processor is listed as `others`. Sockets come and
/// go, so the number of subjects has no other bound. Losses of an interface keep their subject.
const MOST: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct LossTotals {
    /// Lost packets and the rule of `check`, by place, subject and counter.
    found: BTreeMap<(Place, String, String), (u64, &'static str)>,
    /// The last reading, with the previous values of counters that could not be read; `None` if all counters
    /// were read.
    filled: Option<HostFacts>,
}

impl LossTotals {
    /// Adds the losses between two readings. Returns all losses since the start, in path order. An interface
    /// that is new in the second reading has no losses, because its counters may come from another network
    /// namespace. The growth of a counter that the second reading lacks is part of the next comparison.
    pub(crate) fn add(&mut self, before: &HostFacts, now: &HostFacts) -> Vec<Loss> {
        let mut before = self.filled.take().map_or(Cow::Borrowed(before), Cow::Owned);
        self.filled = (!now.unknown.is_empty()).then(|| {
            let mut filled = now.clone();
            keep_unread(&before, &mut filled);
            filled
        });
        for interface in &now.interfaces {
            if before.same_interface(interface).is_none() {
                before.to_mut().interfaces.push(interface.clone());
            }
        }
        let mut grown: BTreeMap<(Place, String, String), u64> = BTreeMap::new();
        for loss in loss_path::losses(&before, now) {
            let mut key = (loss.place, loss.subject, loss.counter);
            let is_of_interface = now.interface(&key.1).is_some();
            if !is_of_interface && self.found.len() >= MOST && !self.found.contains_key(&key) {
                key.1 = "others".to_owned();
            }
            let sum = self.found.entry(key.clone()).or_insert((0, loss.rule));
            sum.0 = sum.0.saturating_add(loss.packets);
            let growth = grown.entry(key).or_default();
            *growth = growth.saturating_add(loss.packets);
        }
        let entry = |(key, (total, rule)): (&(Place, String, String), &(u64, &str))| Loss {
            place: key.0.words().to_owned(),
            subject: key.1.clone(),
            packets: Interval { total: *total, delta: grown.get(key).copied().unwrap_or(0) },
            counter: key.2.clone(),
            rule: (*rule).to_owned(),
        };
        self.found.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;
    use evenkeel_model::host::{
        Interface, InterfaceKind, QdiscFacts, SocketFacts, SocketKind, Softnet, Unknown,
    };

    fn host(index: u32, drops: u64) -> HostFacts {
        let qdisc =
            QdiscFacts { kind: "pfifo".into(), parent: "root".into(), drops, ..QdiscFacts::default() };
        let interface = Interface {
            name: "eth0".into(),
            index: Some(index),
            kind: InterfaceKind::Device,
            qdiscs: vec![qdisc],
            ..Interface::default()
        };
        HostFacts { interfaces: vec![interface], ..HostFacts::default() }
    }

    #[test]
    fn losses_add_up_and_a_new_interface_begins_at_its_counters() {
        let mut totals = LossTotals::default();
        assert_eq!(totals.add(&host(1, 5), &host(1, 5)), []);
        let found = totals.add(&host(1, 5), &host(1, 8));
        assert_eq!((found.len(), found[0].packets), (1, Interval { total: 3, delta: 3 }));
        let found = totals.add(&host(1, 8), &host(2, 100));
        assert_eq!(found[0].packets, Interval { total: 3, delta: 0 });
        let found = totals.add(&host(2, 100), &host(2, 101));
        assert_eq!(found[0].packets, Interval { total: 4, delta: 1 });
    }

    #[test]
    fn sockets_that_come_and_go_do_not_grow_the_list() {
        let mut totals = LossTotals::default();
        let mut lost = 0;
        for port in 0..2000_u64 {
            let socket = SocketFacts {
                kind: SocketKind::Udp,
                local: format!("0.0.0.0:{port}"),
                drops: 2,
                ..SocketFacts::default()
            };
            let now = HostFacts { sockets: vec![socket], ..HostFacts::default() };
            let found = totals.add(&HostFacts::default(), &now);
            lost = found.iter().map(|loss| loss.packets.total).sum();
            assert!(found.len() <= MOST + 1);
        }
        assert_eq!(lost, 4000);
        let found = totals.add(&host(1, 5), &host(1, 8));
        assert!(found.iter().any(|loss| loss.subject == "eth0" && loss.packets.total == 3), "{found:?}");
    }

    #[test]
    fn a_counter_that_could_not_be_read_has_no_growth_until_it_is_read_again() {
        let reading = |dropped: Option<u64>| {
            let line = |dropped| Softnet { processor: 0, dropped, ..Softnet::default() };
            let counters = dropped.map(|dropped| ("TcpExt.ListenDrops".to_owned(), dropped));
            let gap = Unknown { source: "/proc/net/softnet_stat".into(), why: "damaged".into() };
            HostFacts {
                unknown: if dropped.is_none() { vec![gap] } else { Vec::new() },
                softnet: dropped.map(line).into_iter().collect(),
                counters: counters.into_iter().collect(),
                ..HostFacts::default()
            }
        };
        let mut totals = LossTotals::default();
        let unread = reading(None);
        assert_eq!(totals.add(&unread, &reading(Some(8_000_000))), [], "since boot");
        assert_eq!(totals.add(&reading(Some(8_000_000)), &unread), []);
        let found = totals.add(&unread, &reading(Some(8_000_003)));
        assert_eq!(found.iter().map(|loss| loss.packets.total).collect::<Vec<_>>(), [3, 3]);
    }
}
