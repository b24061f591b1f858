//! Selects the flows of a class.

use std::ops::RangeInclusive;

use crate::filter::{AddressMatch, FilterMatch, PortMatch};
use crate::flows::ObservedFlow;
use crate::key::{ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, Pattern};
use crate::nic::covered;
use crate::{FlowTuple, Transport};

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];
/// Maximum number of mask pairs that [`Selector::covered_by`] compares, which bounds the time. With
/// more pairs, the class counts as not covered.
const MOST_PAIRS: usize = 4_000;

/// Conditions for a class. A flow must meet all conditions that are set. A flow that names the class
/// needs to meet no other condition. A flow that names another class does not match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Names by which a flow declares its class; upper and lower case are equal.
    pub labels: Vec<String>,
    pub transport: Option<Transport>,
    /// The peer's address or network.
    pub source: Option<AddressMatch>,
    /// The peer's port.
    pub source_port: Option<RangeInclusive<u16>>,
    /// This host's address or network.
    pub destination: Option<AddressMatch>,
    /// This host's port.
    pub destination_port: Option<RangeInclusive<u16>>,
    pub process: Option<String>,
    /// Path of a cgroup v2; its descendants also match.
    pub cgroup: Option<String>,
}

impl Selector {
    /// Returns whether the selector has no condition other than a name.
    #[must_use]
    pub fn is_by_name_only(&self) -> bool {
        let nothing = Self { labels: self.labels.clone(), ..Self::default() };
        *self == nothing
    }

    #[must_use]
    pub fn selects(&self, flow: &ObservedFlow) -> bool {
        self.selects_with(flow, false)
    }

    /// Returns whether the selector selects a flow if its unknown process or cgroup meets the conditions.
    #[must_use]
    pub fn may_select(&self, flow: &ObservedFlow) -> bool {
        self.selects_with(flow, !flow.is_unowned)
    }

    /// Returns whether the selector selects a flow. `unknown` is the result of a condition on a process or
    /// cgroup that is unknown.
    fn selects_with(&self, flow: &ObservedFlow, unknown: bool) -> bool {
        if let Some(class) = &flow.class {
            return self.labels.iter().any(|label| label.eq_ignore_ascii_case(class));
        }
        let is_process = |process: &String| flow.process.as_ref().map_or(unknown, |own| own == process);
        let is_in = |cgroup: &String| {
            let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
            let own = flow.cgroup.as_ref();
            own.map_or(unknown, |path| path.strip_prefix(cgroup.as_str()).is_some_and(is_below))
        };
        !self.is_by_name_only()
            && self.selects_tuple(&flow.tuple)
            && self.process.as_ref().is_none_or(is_process)
            && self.cgroup.as_ref().is_none_or(is_in)
    }

    /// Returns whether every flow that meets the conditions of another class also meets these
    /// conditions.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let takes_all = |taken: &Option<RangeInclusive<u16>>, ports: &Option<RangeInclusive<u16>>| {
            let (taken, ports) =
                (taken.clone().unwrap_or(0..=u16::MAX), ports.clone().unwrap_or(0..=u16::MAX));
            taken.contains(ports.start()) && taken.contains(ports.end())
        };
        self.covers_sockets_of(other)
            && self.addresses().covers(&other.addresses())
            && takes_all(&self.source_port, &other.source_port)
            && takes_all(&self.destination_port, &other.destination_port)
    }

    /// Returns whether the conditions on the process and the cgroup hold for every flow of another class.
    /// Returns false if one of the two classes has no condition other than a name.
    fn covers_sockets_of(&self, other: &Self) -> bool {
        let cgroup = |cgroup: &String| {
            let below = other.cgroup.as_ref().and_then(|path| path.strip_prefix(cgroup.as_str()));
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        !self.is_by_name_only()
            && !other.is_by_name_only()
            && self.process.as_ref().is_none_or(|process| other.process.as_ref() == Some(process))
            && self.cgroup.as_ref().is_none_or(cgroup)
    }

    /// Returns the earlier classes that have flows in common with this class, if together they take all
    /// of its flows. Otherwise, or if there are too many masks to compare, returns an empty list.
    pub(super) fn covered_by<'c, T>(&self, before: &'c [T], selector: impl Fn(&T) -> &Self) -> Vec<&'c T> {
        let own = self.patterns();
        let parts: Vec<Pattern> = own.iter().flat_map(parts).collect();
        let (mut sharing, mut cover) = (Vec::new(), Vec::new());
        for class in before.iter().filter(|class| selector(class).covers_sockets_of(self)) {
            let patterns = selector(class).patterns();
            if own.len() * patterns.len() > MOST_PAIRS {
                return Vec::new();
            }
            if patterns.iter().any(|pattern| own.iter().any(|part| pattern.and(part).is_some())) {
                sharing.push(class);
                cover.extend(patterns);
            }
        }
        let is_small = parts.len() * cover.len() <= MOST_PAIRS;
        match is_small && !parts.is_empty() && parts.iter().all(|part| covered(part, &cover)) {
            true => sharing,
            false => Vec::new(),
        }
    }

    /// Returns the part of a match that the conditions on headers take, as masks. With only a name, or with
    /// a condition on the process or the cgroup, the list is empty: headers do not show whether a packet
    /// belongs to the class.
    pub(super) fn part_of(&self, matches: &FilterMatch) -> Vec<Pattern> {
        let Some(whole) = Pattern::of(matches).filter(|_| self.is_by_headers()) else { return Vec::new() };
        self.patterns().iter().filter_map(|pattern| pattern.and(&whole)).collect()
    }

    /// Returns whether the headers of a packet decide whether its flow belongs to the class.
    fn is_by_headers(&self) -> bool {
        !self.is_by_name_only() && self.process.is_none() && self.cgroup.is_none()
    }

    /// Returns the conditions on headers as masks. The list is empty if no packet has such headers.
    fn patterns(&self) -> Vec<Pattern> {
        let destinations = prefixes(self.destination_port.as_ref());
        let matches = prefixes(self.source_port.as_ref()).into_iter().flat_map(|source_port| {
            let with = move |destination_port: &Option<PortMatch>| FilterMatch {
                source_port,
                destination_port: *destination_port,
                ..self.addresses()
            };
            destinations.iter().map(with).collect::<Vec<_>>()
        });
        matches.filter_map(|matches| Pattern::of(&matches)).collect()
    }

    fn addresses(&self) -> FilterMatch {
        FilterMatch {
            transport: self.transport,
            source: self.source,
            destination: self.destination,
            ..FilterMatch::ANY
        }
    }

    fn selects_tuple(&self, tuple: &FlowTuple) -> bool {
        let holds = |range: &Option<RangeInclusive<u16>>, port: u16| {
            range.as_ref().is_none_or(|range| range.contains(&port))
        };
        self.addresses().matches(tuple)
            && holds(&self.source_port, tuple.source_port)
            && holds(&self.destination_port, tuple.destination_port)
    }

    /// Returns the class as the match of one filter; `None` if one filter cannot express it.
    #[must_use]
    pub fn as_match(&self) -> Option<FilterMatch> {
        if !self.is_by_headers() {
            return None;
        }
        let port = |range: &Option<RangeInclusive<u16>>| match range {
            None => Some(None),
            Some(range) => port_match(range).map(Some),
        };
        Some(FilterMatch {
            transport: self.transport,
            source: self.source,
            source_port: port(&self.source_port)?,
            destination: self.destination,
            destination_port: port(&self.destination_port)?,
            ..FilterMatch::ANY
        })
    }
}

/// Splits a pattern by transport protocol and IP version, so that each part has only packets of flows.
fn parts(pattern: &Pattern) -> Vec<Pattern> {
    let ether_types = [ETHER_TYPE_IPV4, ETHER_TYPE_IPV6];
    let kinds = TRANSPORTS.iter().flat_map(|transport| ether_types.map(|version| (*transport, version)));
    let kind = |(transport, version): (Transport, u16)| FilterMatch {
        transport: Some(transport),
        ether_type: Some(version),
        ..FilterMatch::ANY
    };
    kinds.filter_map(|of| Pattern::of(&kind(of))?.and(pattern)).collect()
}

/// Returns whether every flow of a pattern matches one of the other patterns. Returns false if the limits on
/// patterns and splits do not allow a decision.
pub(super) fn is_covered(pattern: &Pattern, others: &[Pattern]) -> bool {
    others.len() <= MOST_PAIRS && parts(pattern).iter().all(|part| covered(part, others))
}

/// Returns a range of ports as masked ports; `None` matches any port.
fn prefixes(range: Option<&RangeInclusive<u16>>) -> Vec<Option<PortMatch>> {
    let Some(range) = range else { return vec![None] };
    let (mut first, last) = (u32::from(*range.start()), u32::from(*range.end()));
    let mut found = Vec::new();
    while first <= last {
        // The largest block that begins here and ends within the range.
        let fits = |bits: &u32| first.is_multiple_of(1 << bits) && first + (1 << bits) - 1 <= last;
        let bits = (0..=16).rev().find(fits).unwrap_or(0);
        // Cannot fail: the range ends at 65,535.
        let port = u16::try_from(first).unwrap_or(u16::MAX);
        found.push(Some(PortMatch::masked(port, !(((1_u32 << bits) - 1) as u16))));
        first += 1 << bits;
    }
    found
}

/// Returns a range of ports as a masked port; `None` if the range is not exactly one prefix.
fn port_match(range: &RangeInclusive<u16>) -> Option<PortMatch> {
    let (first, last) = (*range.start(), *range.end());
    let free = first ^ last;
    let aligned = free & free.wrapping_add(1) == 0 && first & free == 0;
    aligned.then(|| PortMatch::masked(first, !free))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn flow(source: &str, destination_port: u16) -> ObservedFlow {
        ObservedFlow::new(FlowTuple {
            transport: Transport::Tcp,
            source: source.parse().unwrap(),
            source_port: 40_000,
            destination: "10.9.0.1".parse().unwrap(),
            destination_port,
        })
    }

    #[test]
    fn the_prefixes_of_a_range_are_exactly_its_ports() {
        for range in [0..=u16::MAX, 0..=0, 65_535..=65_535, 1..=65_534, 80..=443, 1024..=2047] {
            let masks: Vec<PortMatch> = prefixes(Some(&range)).into_iter().flatten().collect();
            assert!(masks.len() <= 30, "{range:?}");
            for port in 0..=u16::MAX {
                let matching = masks.iter().filter(|mask| (port ^ mask.port()) & mask.mask() == 0);
                assert_eq!(matching.count(), usize::from(range.contains(&port)), "{range:?}: {port}");
            }
        }
        assert_eq!(prefixes(None), [None]);
    }

    #[test]
    fn all_that_is_given_must_hold() {
        let selector = Selector {
            labels: vec!["web".to_owned()],
            source: Some(AddressMatch::prefix("10.1.0.0".parse().unwrap(), 16)),
            destination_port: Some(80..=81),
            ..Selector::default()
        };
        assert!(selector.selects(&flow("10.1.2.3", 80)));
        assert!(!selector.selects(&flow("10.2.2.3", 80)) && !selector.selects(&flow("10.1.2.3", 82)));
        // The class that a flow declares takes precedence over the conditions.
        let named = |name: &str| ObservedFlow { class: Some(name.to_owned()), ..flow("10.2.2.3", 1) };
        assert!(selector.selects(&named("WEB")) && !selector.selects(&named("other")));
    }

    #[test]
    fn a_cgroup_holds_those_below_it() {
        let selector = Selector { cgroup: Some("/a/b".to_owned()), ..Selector::default() };
        let within = |cgroup: &str| ObservedFlow { cgroup: Some(cgroup.to_owned()), ..flow("10.1.2.3", 80) };
        assert!(selector.selects(&within("/a/b")) && selector.selects(&within("/a/b/c")));
        assert!(!selector.selects(&within("/a/bc")) && !selector.selects(&within("/a")));
        assert!(!selector.selects(&flow("10.1.2.3", 80)), "no cgroup is known");
        assert_eq!(selector.as_match(), None);
    }

    #[test]
    fn an_unknown_process_may_meet_the_condition() {
        let by_process = Selector { process: Some("nginx".to_owned()), ..Selector::default() };
        let at_port = Selector { destination_port: Some(80..=80), ..by_process.clone() };
        let unknown = flow("10.1.2.3", 80);
        assert!(by_process.may_select(&unknown) && at_port.may_select(&unknown));
        assert!(!at_port.may_select(&flow("10.1.2.3", 81)));
        let known =
            |process: &str| ObservedFlow { process: Some(process.to_owned()), ..flow("10.1.2.3", 80) };
        assert!(at_port.may_select(&known("nginx")) && !at_port.may_select(&known("sshd")));
        assert!(!by_process.may_select(&ObservedFlow { is_unowned: true, ..unknown.clone() }));
        assert!(!by_process.may_select(&ObservedFlow { class: Some("high".to_owned()), ..unknown }));
    }

    #[test]
    fn nothing_selects_nothing() {
        assert!(!Selector::default().selects(&flow("10.1.2.3", 80)));
    }

    proptest! {
        #[test]
        fn a_match_has_the_flows_of_the_class(first: u16, length in 0_u32..16, port: u16) {
            let first = first & !((1 << length) - 1);
            let range = first..=first | ((1 << length) - 1);
            let selector =
                Selector { destination_port: Some(range.clone()), ..Selector::default() };
            let matches = selector.as_match().unwrap();
            prop_assert_eq!(matches.matches(&flow("10.1.2.3", port).tuple), range.contains(&port));
        }

        #[test]
        fn a_range_that_is_no_prefix_takes_more_than_a_filter(first: u16, last: u16) {
            prop_assume!(first <= last);
            if let Some(matches) = port_match(&(first..=last)) {
                let count = 1_u32 << matches.mask().count_zeros();
                prop_assert_eq!(count, u32::from(last - first) + 1);
            }
        }
    }
}
