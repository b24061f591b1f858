//! A host's facts, with values that several rules derive from them.

use std::cell::{Cell, LazyCell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_model::host::{
    HostFacts, Interface, InterfaceKind, Interrupt, SaturatingSum, SocketFacts, SocketKind,
};

use crate::plan::interrupt_processors;
use crate::rules::{Alternative, Found, running_balancer};
use crate::{Basis, Severity};

/// Assumed round-trip time if no socket has enough traffic, µs: two hosts of a site, with some queueing.
pub const ASSUMED_RTT_US: u64 = 1000;
/// Bytes that a connection must have carried for its round-trip time to count.
const BULK_BYTES: u64 = 10_000_000;
/// Bytes of a frame on the wire in addition to its MTU: header, checksum, preamble, gap.
const FRAME_OVERHEAD: f64 = 38.0;
/// Smallest number of interrupts from which the processors that serve them are inferred.
pub const ENOUGH_INTERRUPTS: u64 = 10_000;

#[derive(Debug)]
pub struct View<'a> {
    pub facts: &'a HostFacts,
    /// Interfaces whose facts are too incomplete for a rule to judge.
    hidden: BTreeSet<&'a str>,
    /// The planned processors of each NIC's interrupts, computed for all NICs on first use.
    placements: OnceCell<BTreeMap<String, Vec<u32>>>,
    /// The findings of rules that other rules quote, by rule.
    reported: RefCell<BTreeMap<String, Rc<[Found]>>>,
    /// Whether the rule that runs now has asked for the NICs to judge.
    judges_nics: Cell<bool>,
    /// The unknown facts that the rule that runs now has asked for.
    lacks: RefCell<Lacks>,
    /// The host with other values of facts that could not be read.
    pub(crate) alternatives: &'a [Alternative<'a>],
}

/// Unknown facts that a rule asked for, and that its needs do not list, because the rule needs these facts
/// only for a part of its verdicts.
#[derive(Debug, Default)]
pub(crate) struct Lacks {
    /// The time since boot, for a rate.
    pub(crate) time: bool,
    /// The speeds of these NICs.
    pub(crate) speeds: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RoundTrip {
    pub us: u64,
    /// The peer of the connection that shows the time; `None` if the time is assumed.
    pub peer: Option<String>,
}

impl RoundTrip {
    #[must_use]
    pub fn words(&self) -> String {
        let time = milliseconds(self.us);
        match &self.peer {
            Some(peer) => format!("{time} to {peer}"),
            None => format!("{time}; RTT assumed, no busy connection"),
        }
    }

    /// Returns the basis of a finding that depends on this time: an assumption if no connection shows
    /// the time, else `otherwise`.
    #[must_use]
    pub const fn basis(&self, otherwise: Basis) -> Basis {
        if self.peer.is_some() { otherwise } else { Basis::Assumed }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Receive,
    Send,
}

impl Direction {
    #[must_use]
    pub fn bytes(self, socket: &SocketFacts) -> u64 {
        socket.tcp.as_ref().map_or(0, |tcp| match self {
            Self::Receive => tcp.bytes_received,
            Self::Send => tcp.bytes_acked,
        })
    }
}

impl<'a> View<'a> {
    #[must_use]
    pub fn new(facts: &'a HostFacts) -> Self {
        Self::without(facts, BTreeSet::new())
    }

    /// Creates the view of a host on which rules cannot judge the interfaces `hidden`.
    #[must_use]
    pub fn without(facts: &'a HostFacts, hidden: BTreeSet<&'a str>) -> Self {
        Self {
            facts,
            hidden,
            placements: OnceCell::new(),
            reported: RefCell::default(),
            judges_nics: Cell::new(false),
            lacks: RefCell::default(),
            alternatives: &[],
        }
    }

    /// Returns the view with alternatives, which have other values of facts that could not be read.
    #[must_use]
    pub(crate) const fn beside(mut self, alternatives: &'a [Alternative<'a>]) -> Self {
        self.alternatives = alternatives;
        self
    }

    /// Notes that a rate is unknown because the time since boot is unknown.
    pub(crate) fn note_lack_of_time(&self) {
        self.lacks.borrow_mut().time = true;
    }

    /// Returns a NIC's speed, bit/s, for a finding that depends only on the speed now. If the speed is
    /// unknown, notes that the rule lacks this fact.
    pub(crate) fn needed_speed(&self, nic: &Interface) -> Option<u64> {
        if nic.speed_bps.is_none() {
            self.lacks.borrow_mut().speeds.insert(nic.name.clone());
        }
        nic.speed_bps
    }

    /// Runs a rule's check. Also returns the unknown facts that the rule asked for.
    pub(crate) fn run<R>(&self, check: impl FnOnce() -> R) -> (R, Lacks) {
        let before = self.lacks.take();
        let result = check();
        (result, self.lacks.replace(before))
    }

    /// Returns the findings of a rule, which `judge` computes on first use.
    pub(crate) fn reported(&self, rule: &str, judge: impl FnOnce() -> Vec<Found>) -> Rc<[Found]> {
        if let Some(found) = self.reported.borrow().get(rule) {
            return Rc::clone(found);
        }
        // The rule may quote other rules, so the cell must not be borrowed here.
        let judges_nics = self.judges_nics.get();
        let found: Rc<[Found]> = judge().into();
        self.judges_nics.set(judges_nics);
        self.reported.borrow_mut().insert(rule.to_owned(), Rc::clone(&found));
        found
    }

    /// Returns the processors that should take a NIC's receive interrupts, for its current number of
    /// queues. The list is empty if the NIC is down or has no such interrupts.
    #[must_use]
    pub fn planned_processors(&self, nic: &Interface) -> &[u32] {
        let judges_nics = self.judges_nics.get();
        let placements = self.placements.get_or_init(|| interrupt_processors(self));
        self.judges_nics.set(judges_nics);
        placements.get(&nic.name).map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn judges_nics(&self) -> bool {
        self.judges_nics.get()
    }

    /// Notes that the present rule finds nothing on a host without NICs.
    pub(crate) fn needs_nics(&self) {
        self.judges_nics.set(true);
    }

    /// Returns the NICs that are up and not hidden, for a rule that judges NICs only.
    pub fn nics(&self) -> impl Iterator<Item = &'a Interface> {
        self.needs_nics();
        self.all_nics()
    }

    /// Returns the NICs that are up, without the hidden NICs.
    pub(crate) fn all_nics(&self) -> impl Iterator<Item = &'a Interface> {
        let is_nic = |interface: &&Interface| interface.kind == InterfaceKind::Device && interface.up;
        let is_shown = |interface: &&Interface| !self.hidden.contains(interface.name.as_str());
        self.facts.interfaces.iter().filter(is_nic).filter(is_shown)
    }

    /// Returns the NICs whose losses count: all except the hidden ones. A NIC that is down may have carried
    /// traffic.
    pub fn counted_nics(&self) -> impl Iterator<Item = &'a Interface> {
        self.needs_nics();
        let is_nic = |interface: &&Interface| interface.kind == InterfaceKind::Device;
        let is_shown = |interface: &&Interface| !self.hidden.contains(interface.name.as_str());
        self.facts.interfaces.iter().filter(is_nic).filter(is_shown)
    }

    /// Returns the fastest NIC's speed, bit/s; `None` if no NIC reports a speed.
    #[must_use]
    pub fn fastest_bps(&self) -> Option<u64> {
        self.all_nics().filter_map(|nic| nic.speed_bps).max()
    }

    /// Returns the processors on a NIC's memory node; all processors if the NIC has no node, or the node has
    /// no processors.
    #[must_use]
    pub fn local_processors(&self, nic: &Interface) -> Vec<u32> {
        let local = nic.node.map(|node| self.facts.processors_of(node)).unwrap_or_default();
        if local.is_empty() {
            self.facts.processors.iter().map(|processor| processor.number).collect()
        } else {
            local
        }
    }

    /// Returns one processor of each core among [`Self::local_processors`], without isolated processors.
    #[must_use]
    pub fn local_cores(&self, nic: &Interface) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let local = self.local_processors(nic);
        local
            .into_iter()
            .filter(|number| {
                self.facts.processor(*number).is_some_and(|processor| {
                    !processor.isolated && seen.insert((processor.node, processor.package, processor.core))
                })
            })
            .collect()
    }

    /// Returns the interrupts of a NIC that announce received packets of a queue.
    #[must_use]
    pub fn receive_interrupts(&self, nic: &Interface) -> Vec<&'a Interrupt> {
        let facts = self.facts;
        let of_nic = facts.interrupts.iter().filter(|interrupt| interrupt.interface == nic.name);
        of_nic.filter(|interrupt| interrupt.queue.is_some() && interrupt.receives).collect()
    }

    /// Returns how often each processor served a NIC's receive interrupts.
    #[must_use]
    pub fn served_by(&self, nic: &Interface) -> BTreeMap<u32, u64> {
        let mut found = BTreeMap::new();
        for interrupt in self.receive_interrupts(nic) {
            for (processor, count) in &interrupt.served {
                let sum = found.entry(*processor).or_insert(0_u64);
                *sum = sum.saturating_add(*count);
            }
        }
        found
    }

    /// Returns the processors that serve at least a hundredth of a NIC's receive interrupts. If too few
    /// interrupts were counted, returns the processors of the interrupts that are directed to a single
    /// processor; none if irqbalance moves the interrupts.
    #[must_use]
    pub fn interrupt_processors(&self, nic: &Interface) -> BTreeSet<u32> {
        let served = self.served_by(nic);
        let total = served.values().saturating_sum();
        if total >= ENOUGH_INTERRUPTS {
            return served
                .into_iter()
                .filter(|(_, count)| count.saturating_mul(100) >= total)
                .map(|(processor, _)| processor)
                .collect();
        }
        if self.is_balanced(nic) { BTreeSet::new() } else { self.interrupt_targets(nic) }
    }

    /// Returns whether a NIC's interrupts are left to irqbalance, which can move them every ten seconds. This
    /// is the case only for ena, for which AWS advises irqbalance.
    #[must_use]
    pub fn is_balanced(&self, nic: &Interface) -> bool {
        nic.driver.as_deref() == Some("ena") && running_balancer(self.facts).is_some()
    }

    /// Returns the processors of those receive interrupts of a NIC that are directed to a single processor.
    #[must_use]
    pub fn interrupt_targets(&self, nic: &Interface) -> BTreeSet<u32> {
        let targets = self.receive_interrupts(nic).into_iter().map(Interrupt::target);
        targets.filter(|target| target.len() == 1).flatten().copied().collect()
    }

    /// Returns the TCP connections through a NIC. Sockets that name no interface belong to the fastest NIC,
    /// unless their local address is a loopback address.
    #[must_use]
    pub fn connections(&self, nic: &Interface) -> Vec<&'a SocketFacts> {
        let is_default = LazyCell::new(|| self.is_default(nic));
        let facts = self.facts;
        let is_through = |socket: &&SocketFacts| match &socket.interface {
            Some(name) => {
                *name == nic.name
                    || facts.interface(name).is_some_and(|upper| upper.lower.contains(&nic.name))
            }
            None => !is_loopback(&socket.local) && *is_default,
        };
        facts.sockets.iter().filter(|socket| socket.kind == SocketKind::Tcp).filter(is_through).collect()
    }

    /// Returns the TCP connections with an address of this interface, without connections of a bond or
    /// VLAN above it. Sockets that name no interface belong to the fastest NIC, unless their local address
    /// is a loopback address.
    #[must_use]
    pub fn own_connections(&self, interface: &Interface) -> Vec<&'a SocketFacts> {
        let is_default = LazyCell::new(|| self.is_default(interface));
        let is_own = |socket: &&SocketFacts| match &socket.interface {
            Some(name) => *name == interface.name,
            None => !is_loopback(&socket.local) && *is_default,
        };
        let facts = self.facts;
        facts.sockets.iter().filter(|socket| socket.kind == SocketKind::Tcp).filter(is_own).collect()
    }

    /// Returns whether an interface is the fastest NIC, to which sockets without an interface belong. Of
    /// several NICs, the fastest one is unknown if one of them reports no speed.
    fn is_default(&self, interface: &Interface) -> bool {
        if self.all_nics().nth(1).is_some() {
            self.all_nics().for_each(|nic| _ = self.needed_speed(nic));
        }
        let fastest = self.all_nics().max_by_key(|nic| (nic.speed_bps, std::cmp::Reverse(&nic.name)));
        fastest.is_some_and(|fastest| fastest.name == interface.name)
    }

    /// Returns the connections through a NIC that have carried much data in a direction.
    #[must_use]
    pub fn bulk(&self, nic: &Interface, direction: Direction) -> Vec<&'a SocketFacts> {
        let mut found = self.connections(nic);
        found.retain(|socket| direction.bytes(socket) >= BULK_BYTES);
        found
    }

    /// Returns a connection's smallest round-trip time, µs, which queueing does not inflate. If the kernel
    /// reports no smallest time, returns the smoothed time; `None` without either.
    #[must_use]
    pub fn round_trip_of(socket: &SocketFacts) -> Option<u64> {
        let tcp = socket.tcp.as_ref()?;
        let us = if tcp.min_rtt_us > 0 { tcp.min_rtt_us } else { tcp.rtt_us };
        (us > 0).then_some(us)
    }

    /// Returns the longest round-trip time of the connections through a NIC that have carried much data.
    /// Without such a connection, the time is assumed.
    #[must_use]
    pub fn round_trip(&self, nic: &Interface) -> RoundTrip {
        longest_round_trip(self.connections(nic).into_iter().filter(|socket| socket.bytes() >= BULK_BYTES))
    }

    /// Returns the NIC with the largest bandwidth-delay product of connections that carried much data in a
    /// direction, with the product in bytes and the round-trip time; `None` if no NIC reports a speed. A NIC
    /// with a measured round-trip time takes precedence over all NICs with an assumed time.
    #[must_use]
    pub fn largest_product(&self, direction: Direction) -> Option<(&'a Interface, u64, RoundTrip)> {
        let products = self.all_nics().filter_map(|nic| {
            let time = longest_round_trip(self.bulk(nic, direction).into_iter());
            let bytes = u128::from(nic.speed_bps?) * u128::from(time.us) / 8_000_000;
            Some((nic, u64::try_from(bytes).unwrap_or(u64::MAX), time))
        });
        products.max_by_key(|(_, bytes, time)| (time.peer.is_some(), *bytes))
    }

    /// Returns the time in which packets of full size at line rate fill a NIC's receive ring, µs; `None` if
    /// the ring size, the speed or the MTU is unknown.
    #[must_use]
    pub fn ring_time_us(nic: &Interface) -> Option<f64> {
        let rings = nic.rings.filter(|rings| rings.rx > 0)?;
        Some(f64::from(rings.rx) * Self::packet_time_us(nic)?)
    }

    /// Returns the transmission time of a packet of full size at line rate, µs; `None` if the speed or the
    /// MTU is unknown.
    #[must_use]
    pub fn packet_time_us(nic: &Interface) -> Option<f64> {
        let speed = nic.speed_bps.filter(|speed| *speed > 0)?;
        Some((f64::from(nic.mtu?) + FRAME_OVERHEAD) * 8.0 * 1e6 / speed as f64)
    }

    /// Returns the rate that a TCP flow can reach at a loss ratio, bit/s, for a NIC's round-trip time and
    /// segment size; `None` without an MTU. The formula: M. Mathis et al., "The macroscopic behavior of the
    /// TCP congestion avoidance algorithm" (1997).
    #[must_use]
    pub fn rate_at_loss(&self, nic: &Interface, ratio: f64) -> Option<f64> {
        Self::flow_rate_at_loss(nic, ratio, self.round_trip(nic).us)
    }

    fn flow_rate_at_loss(nic: &Interface, ratio: f64, us: u64) -> Option<f64> {
        let segment = f64::from(nic.mtu?.saturating_sub(52)) * 8.0;
        Some(segment / (us as f64 / 1e6) * 1.22 / ratio.max(1e-12).sqrt())
    }

    /// Describes the rate that a Reno-like flow can reach at a loss ratio; `None` without an MTU.
    #[must_use]
    pub fn cost_of_loss(&self, nic: &Interface, ratio: f64) -> Option<String> {
        let rate = self.rate_at_loss(nic, ratio)?.min(nic.speed_bps.unwrap_or(u64::MAX) as f64);
        Some(format!("a Reno-like flow reaches about {}", gigabits(rate)))
    }

    /// Returns the rate that all connections with much data through a NIC can reach together at a loss ratio,
    /// bit/s.
    fn rate_of_all_at_loss(&self, nic: &Interface, ratio: f64) -> f64 {
        let busy = self.connections(nic).into_iter().filter(|socket| socket.bytes() >= BULK_BYTES);
        busy.filter_map(Self::round_trip_of).filter_map(|us| Self::flow_rate_at_loss(nic, ratio, us)).sum()
    }

    /// Returns the severity and the cost of packets lost at a NIC; `None` if too few packets, or too small a
    /// share of the packets, were lost. The severity is high from one lost packet in ten thousand. The
    /// severity is also high if the connections with known round-trip times cannot reach half of the link's
    /// rate together at this loss.
    ///
    /// The severity is low if one flow still fills the link. On a router or a name server, this criterion
    /// shows nothing, because the round-trip times of the flows are unknown. There, the severity is medium
    /// from one lost packet in 100,000, as for datagrams that sockets drop.
    #[must_use]
    pub fn judge_loss(&self, nic: &Interface, lost: u64, of: u64) -> Option<(Severity, String)> {
        const FEWEST: u64 = 100;
        const RATIO: f64 = 1e-6;
        const GRAVE_RATIO: f64 = 1e-4;
        const RATIO_OF_OTHERS: f64 = 1e-5;
        /// Round-trip time of a path to another city, µs.
        const FAR_US: u64 = 20_000;
        if lost < FEWEST {
            return None;
        }
        let ratio = lost as f64 / (lost as f64 + of as f64);
        if ratio < RATIO {
            return None;
        }
        let Some(rate) = self.rate_at_loss(nic, ratio) else {
            let severity = if ratio >= GRAVE_RATIO { Severity::High } else { Severity::Medium };
            return Some((severity, "lost packets make TCP send less".to_owned()));
        };
        let time = self.round_trip(nic);
        let known = time.peer.is_some();
        let speed = nic.speed_bps.map(|speed| speed as f64);
        let severity = match speed {
            _ if ratio >= GRAVE_RATIO => Severity::High,
            Some(speed) if known && self.rate_of_all_at_loss(nic, ratio) < speed / 2.0 => Severity::High,
            Some(speed) if rate >= speed && (self.carries_tcp() || ratio < RATIO_OF_OTHERS) => Severity::Low,
            _ => Severity::Medium,
        };
        let of_link = |rate: f64| match speed {
            Some(speed) if rate >= speed => "still reaches the line rate".to_owned(),
            Some(speed) => format!("reaches about {} of {}", gigabits(rate), gigabits(speed)),
            None => format!("reaches about {}", gigabits(rate)),
        };
        let far = Self::flow_rate_at_loss(nic, ratio, FAR_US).filter(|_| !known && !self.carries_tcp());
        let effect = match far {
            Some(far) => format!(
                "few of the packets are TCP of this host: at this loss a Reno-like flow through it {} with a round trip of {}, and lost datagrams \
                 are not retransmitted",
                of_link(far),
                milliseconds(FAR_US)
            ),
            None => {
                format!(
                    "at this loss a Reno-like TCP flow {} (round trip {}){}",
                    of_link(rate),
                    time.words(),
                    self.datagram_words()
                )
            }
        };
        Some((severity, effect))
    }

    /// Describes the cost for datagrams. The text is empty if less than half of the received packets are
    /// datagrams.
    fn datagram_words(&self) -> String {
        let datagrams =
            self.facts.counter("Udp.InDatagrams").saturating_add(self.facts.counter("Snmp6.Udp6InDatagrams"));
        let packets =
            self.facts.counter("Ip.InReceives").saturating_add(self.facts.counter("Snmp6.Ip6InReceives"));
        if datagrams == 0 || datagrams.saturating_mul(2) < packets {
            return String::new();
        }
        format!(
            "; UDP is {} of the packets, and lost datagrams are not retransmitted",
            per_cent(datagrams as f64 / packets.max(datagrams) as f64)
        )
    }

    /// Returns the processors to which a process is pinned; `None` if the process is unknown or not pinned.
    #[must_use]
    pub fn pinned(&self, process: u32) -> Option<Vec<u32>> {
        let process = self.facts.process(process)?;
        let online = self.facts.processors.len();
        (!process.allowed.is_empty() && process.allowed.len() < online).then(|| process.allowed.clone())
    }

    /// Returns `processors` and all other processors of their cores.
    #[must_use]
    pub fn with_siblings(&self, processors: &[u32]) -> BTreeSet<u32> {
        let siblings = |number: &u32| {
            let found =
                self.facts.processor(*number).map(|processor| processor.siblings.clone()).unwrap_or_default();
            found.into_iter().chain([*number])
        };
        processors.iter().flat_map(siblings).collect()
    }
}

/// Returns the smallest power of two that is at least `number`; `u64::MAX` if a `u64` cannot hold it.
#[must_use]
pub fn power_of_two(number: u64) -> u64 {
    number.checked_next_power_of_two().unwrap_or(u64::MAX)
}

/// Returns the longest of the connections' smallest round-trip times; an assumed time if no connection has
/// one. A window must hold the data of one round trip without queueing.
fn longest_round_trip<'s>(connections: impl Iterator<Item = &'s SocketFacts>) -> RoundTrip {
    let times = connections.filter_map(|socket| {
        Some(RoundTrip { us: View::round_trip_of(socket)?, peer: Some(socket.remote.clone()) })
    });
    times.max_by_key(|time| time.us).unwrap_or(RoundTrip { us: ASSUMED_RTT_US, peer: None })
}

pub(crate) fn is_loopback(end: &str) -> bool {
    end.starts_with("127.") || end.starts_with("[::1]")
}

/// Formats a rate: `12 Gbit/s`, `2.5 Gbit/s`, `300 Mbit/s`.
#[must_use]
pub fn gigabits(bps: f64) -> String {
    if bps >= 9.95e9 {
        format!("{:.0} Gbit/s", bps / 1e9)
    } else if bps >= 1e9 {
        format!("{:.1} Gbit/s", bps / 1e9).replace(".0 ", " ")
    } else {
        format!("{:.0} Mbit/s", bps / 1e6)
    }
}

/// Formats a size: `12.5 MB`, `87 kB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Formats a time: `0.12 ms`, `30 ms`.
#[must_use]
pub fn milliseconds(us: u64) -> String {
    if us < 10_000 { format!("{:.2} ms", us as f64 / 1e3) } else { format!("{:.0} ms", us as f64 / 1e3) }
}

/// Formats a number: `1,234,567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a share: `12 %`, `0.003 %`.
#[must_use]
pub fn per_cent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 {
        format!("{percent:.0} %")
    } else if percent >= 0.1 {
        format!("{percent:.1} %")
    } else if percent > 0.0 {
        // Decimal places up to the first digit that is not 0, at most 9.
        let digits = (-percent.log10()).ceil().clamp(2.0, 9.0) as usize;
        format!("{percent:.digits$} %")
    } else {
        "0 %".to_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn figures_are_written_for_people() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(999), "999");
        assert_eq!(
            (gigabits(1e11), gigabits(2.5e9), gigabits(3e8)),
            ("100 Gbit/s".into(), "2.5 Gbit/s".into(), "300 Mbit/s".into())
        );
        assert_eq!((bytes(212_992), bytes(12_500_000)), ("213 kB".into(), "12.5 MB".into()));
        let shares = [0.5, 0.0123, 0.000_687, 0.000_033, 0.000_001_2, 0.0];
        assert_eq!(shares.map(per_cent), ["50 %", "1.2 %", "0.07 %", "0.003 %", "0.0001 %", "0 %"]);
        assert_eq!((milliseconds(120), milliseconds(30_000)), ("0.12 ms".into(), "30 ms".into()));
    }
}
