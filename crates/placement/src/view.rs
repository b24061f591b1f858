//! A host's facts with what rules compute from them again and again.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{
    HostFacts, Interface, InterfaceKind, Interrupt, SaturatingSum, SocketFacts, SocketKind,
};

use crate::plan::interrupt_processors;
use crate::rules::running_balancer;
use crate::{Basis, Severity};

/// Round trip that is assumed where no socket with enough traffic shows one, µs: two hosts of a site, with queues between
/// them.
pub const ASSUMED_RTT_US: u64 = 1000;
/// A connection that has carried so much shows a round trip that matters, bytes.
const BULK_BYTES: u64 = 10_000_000;
/// Bytes of a frame on the wire beside its MTU: header, checksum, preamble, gap.
const FRAME_OVERHEAD: f64 = 38.0;
/// Interrupts below which nothing is concluded from where they were served.
pub const ENOUGH_INTERRUPTS: u64 = 10_000;

/// A host, seen by a rule.
#[derive(Debug)]
pub struct View<'a> {
    /// Its facts.
    pub facts: &'a HostFacts,
    /// Interfaces whose facts a rule cannot judge.
    hidden: BTreeSet<&'a str>,
    /// Where the planner puts the interrupts of each NIC; found when it is first asked for, for all NICs at once.
    placements: OnceCell<BTreeMap<String, Vec<u32>>>,
}

/// A round-trip time and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTrip {
    /// µs.
    pub us: u64,
    /// The peer of the connection that shows it; none: it is assumed.
    pub peer: Option<String>,
}

impl RoundTrip {
    /// Words for evidence.
    #[must_use]
    pub fn words(&self) -> String {
        let time = milliseconds(self.us);
        match &self.peer {
            Some(peer) => format!("{time} to {peer}"),
            None => format!("{time}; RTT assumed, no busy connection"),
        }
    }

    /// What a finding that needs it rests on: a round trip that no connection shows is an assumption.
    #[must_use]
    pub const fn basis(&self, otherwise: Basis) -> Basis {
        if self.peer.is_some() { otherwise } else { Basis::Assumed }
    }
}

/// The direction of a connection's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by this host.
    Receive,
    /// Sent by this host.
    Send,
}

impl Direction {
    /// Payload of a connection in this direction, bytes.
    #[must_use]
    pub fn bytes(self, socket: &SocketFacts) -> u64 {
        socket.tcp.as_ref().map_or(0, |tcp| match self {
            Self::Receive => tcp.bytes_received,
            Self::Send => tcp.bytes_acked,
        })
    }
}

impl<'a> View<'a> {
    /// Of a host.
    #[must_use]
    pub fn new(facts: &'a HostFacts) -> Self {
        Self::without(facts, BTreeSet::new())
    }

    /// Of a host, some interfaces of which cannot be judged.
    #[must_use]
    pub fn without(facts: &'a HostFacts, hidden: BTreeSet<&'a str>) -> Self {
        Self { facts, hidden, placements: OnceCell::new() }
    }

    /// Processors that should take a NIC's receive interrupts with the queues that it has; none of a NIC without any.
    #[must_use]
    pub fn planned_processors(&self, nic: &Interface) -> &[u32] {
        let placements = self.placements.get_or_init(|| interrupt_processors(self));
        placements.get(&nic.name).map(Vec::as_slice).unwrap_or_default()
    }

    /// NICs that carry traffic.
    pub fn nics(&self) -> impl Iterator<Item = &'a Interface> {
        let is_nic = |interface: &&Interface| interface.kind == InterfaceKind::Device && interface.up;
        let is_shown = |interface: &&Interface| !self.hidden.contains(interface.name.as_str());
        self.facts.interfaces.iter().filter(is_nic).filter(is_shown)
    }

    /// The fastest NIC's speed, bit/s; none if no NIC tells.
    #[must_use]
    pub fn fastest_bps(&self) -> Option<u64> {
        self.nics().filter_map(|nic| nic.speed_bps).max()
    }

    /// Processors on a NIC's memory node; all of a NIC that has none.
    #[must_use]
    pub fn local_processors(&self, nic: &Interface) -> Vec<u32> {
        let local = nic.node.map(|node| self.facts.processors_of(node)).unwrap_or_default();
        if local.is_empty() {
            self.facts.processors.iter().map(|processor| processor.number).collect()
        } else {
            local
        }
    }

    /// One processor of each core on a NIC's node, those that are isolated left out.
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

    /// Interrupts of a NIC that announce received packets of a queue.
    #[must_use]
    pub fn receive_interrupts(&self, nic: &Interface) -> Vec<&'a Interrupt> {
        let facts = self.facts;
        let of_nic = facts.interrupts.iter().filter(|interrupt| interrupt.interface == nic.name);
        of_nic.filter(|interrupt| interrupt.queue.is_some() && interrupt.receives).collect()
    }

    /// How often each processor served a NIC's receive interrupts.
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

    /// Processors that serve at least a hundredth of a NIC's receive interrupts; where too few were counted, those that the
    /// interrupts go to.
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

    /// Whether a NIC's interrupts are left to irqbalance, which moves them every ten seconds: AWS advises that for ena.
    #[must_use]
    pub fn is_balanced(&self, nic: &Interface) -> bool {
        nic.driver.as_deref() == Some("ena") && running_balancer(self.facts).is_some()
    }

    /// Processors that a NIC's receive interrupts go to now, of those that go to one.
    #[must_use]
    pub fn interrupt_targets(&self, nic: &Interface) -> BTreeSet<u32> {
        let targets = self.receive_interrupts(nic).into_iter().map(Interrupt::target);
        targets.filter(|target| target.len() == 1).flatten().copied().collect()
    }

    /// TCP connections through a NIC. Sockets that name no interface are those of the only NIC, else of the fastest.
    #[must_use]
    pub fn connections(&self, nic: &Interface) -> Vec<&'a SocketFacts> {
        let is_default = self.default_nic().is_some_and(|default| default == nic.name);
        let facts = self.facts;
        let is_through = |socket: &&SocketFacts| match &socket.interface {
            Some(name) => {
                *name == nic.name
                    || facts.interface(name).is_some_and(|upper| upper.lower.contains(&nic.name))
            }
            None => is_default && !is_loopback(&socket.local),
        };
        facts.sockets.iter().filter(|socket| socket.kind == SocketKind::Tcp).filter(is_through).collect()
    }

    fn default_nic(&self) -> Option<String> {
        self.nics()
            .max_by_key(|nic| (nic.speed_bps, std::cmp::Reverse(&nic.name)))
            .map(|nic| nic.name.clone())
    }

    /// Connections through a NIC that have carried much in a direction.
    #[must_use]
    pub fn bulk(&self, nic: &Interface, direction: Direction) -> Vec<&'a SocketFacts> {
        let mut found = self.connections(nic);
        found.retain(|socket| direction.bytes(socket) >= BULK_BYTES);
        found
    }

    /// A connection's smallest round trip, µs, which queues do not inflate.
    #[must_use]
    pub fn round_trip_of(socket: &SocketFacts) -> Option<u64> {
        let tcp = socket.tcp.as_ref()?;
        let us = if tcp.min_rtt_us > 0 { tcp.min_rtt_us } else { tcp.rtt_us };
        (us > 0).then_some(us)
    }

    /// The longest round trip of a connection through a NIC that has carried much.
    #[must_use]
    pub fn round_trip(&self, nic: &Interface) -> RoundTrip {
        longest_round_trip(self.connections(nic).into_iter().filter(|socket| socket.bytes() >= BULK_BYTES))
    }

    /// The NIC whose product of bandwidth and delay is the largest for connections that carried much in a direction: bytes
    /// in flight, and the round trip.
    #[must_use]
    pub fn largest_product(&self, direction: Direction) -> Option<(&'a Interface, u64, RoundTrip)> {
        let products = self.nics().filter_map(|nic| {
            let time = longest_round_trip(self.bulk(nic, direction).into_iter());
            let bytes = u128::from(nic.speed_bps?) * u128::from(time.us) / 8_000_000;
            Some((nic, u64::try_from(bytes).unwrap_or(u64::MAX), time))
        });
        // A round trip that is known counts more than one that is assumed.
        products.max_by_key(|(_, bytes, time)| (time.peer.is_some(), *bytes))
    }

    /// Time for which a NIC's receive ring holds packets of full size at line rate, µs.
    #[must_use]
    pub fn ring_time_us(nic: &Interface) -> Option<f64> {
        let rings = nic.rings.filter(|rings| rings.rx > 0)?;
        Some(f64::from(rings.rx) * Self::packet_time_us(nic)?)
    }

    /// Time of one packet of full size at line rate, µs.
    #[must_use]
    pub fn packet_time_us(nic: &Interface) -> Option<f64> {
        let speed = nic.speed_bps.filter(|speed| *speed > 0)?;
        Some((f64::from(nic.mtu?) + FRAME_OVERHEAD) * 8.0 * 1e6 / speed as f64)
    }

    /// What a TCP flow can have at a loss ratio, bit/s: M. Mathis et al., "The macroscopic behavior of the TCP congestion
    /// avoidance algorithm" (1997), for the round trip and segment size of a NIC. None without an MTU.
    #[must_use]
    pub fn rate_at_loss(&self, nic: &Interface, ratio: f64) -> Option<f64> {
        Self::flow_rate_at_loss(nic, ratio, self.round_trip(nic).us)
    }

    fn flow_rate_at_loss(nic: &Interface, ratio: f64, us: u64) -> Option<f64> {
        let segment = f64::from(nic.mtu?.saturating_sub(52)) * 8.0;
        Some(segment / (us as f64 / 1e6) * 1.22 / ratio.max(1e-12).sqrt())
    }

    /// The cost of a loss ratio in words.
    #[must_use]
    pub fn cost_of_loss(&self, nic: &Interface, ratio: f64) -> Option<String> {
        let rate = self.rate_at_loss(nic, ratio)?.min(nic.speed_bps.unwrap_or(u64::MAX) as f64);
        Some(format!("a Reno-like flow reaches about {}", gigabits(rate)))
    }

    /// What the connections through a NIC that carried much can have together at a loss ratio, bit/s; 0 without any.
    fn rate_of_all_at_loss(&self, nic: &Interface, ratio: f64) -> f64 {
        let busy = self.connections(nic).into_iter().filter(|socket| socket.bytes() >= BULK_BYTES);
        busy.filter_map(Self::round_trip_of).filter_map(|us| Self::flow_rate_at_loss(nic, ratio, us)).sum()
    }

    /// The severity of a number of packets that a NIC lost, and their cost; none if they are too few. High from one in ten thousand
    /// on, or where the connections whose round trips are known cannot reach half of the link together at this loss.
    #[must_use]
    pub fn judge_loss(&self, nic: &Interface, lost: u64, of: u64) -> Option<(Severity, String)> {
        const FEWEST: u64 = 100;
        const RATIO: f64 = 1e-6;
        const GRAVE_RATIO: f64 = 1e-4;
        if lost < FEWEST {
            return None;
        }
        if of == 0 {
            return Some((Severity::Medium, "lost packets make TCP send less".to_owned()));
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
            Some(speed) if rate >= speed => Severity::Low,
            _ => Severity::Medium,
        };
        let of_link = match speed {
            Some(speed) if rate >= speed => "still reaches the line rate".to_owned(),
            Some(speed) => format!("reaches about {} of {}", gigabits(rate), gigabits(speed)),
            None => format!("reaches about {}", gigabits(rate)),
        };
        Some((severity, format!("at this loss a Reno-like TCP flow {of_link} (round trip {})", time.words())))
    }

    /// Processors that a process is kept to, of one that is kept to some.
    #[must_use]
    pub fn pinned(&self, process: u32) -> Option<Vec<u32>> {
        let process = self.facts.process(process)?;
        let online = self.facts.processors.len();
        (!process.allowed.is_empty() && process.allowed.len() < online).then(|| process.allowed.clone())
    }

    /// Processors of the same cores, themselves included.
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

/// The next power of two, or the largest number.
#[must_use]
pub fn power_of_two(number: u64) -> u64 {
    number.checked_next_power_of_two().unwrap_or(u64::MAX)
}

/// The longest round trip of connections: windows have to hold what is in flight for that long. Smallest values seen are
/// taken, as queues make no window necessary.
fn longest_round_trip<'s>(connections: impl Iterator<Item = &'s SocketFacts>) -> RoundTrip {
    let times = connections.filter_map(|socket| {
        Some(RoundTrip { us: View::round_trip_of(socket)?, peer: Some(socket.remote.clone()) })
    });
    times.max_by_key(|time| time.us).unwrap_or(RoundTrip { us: ASSUMED_RTT_US, peer: None })
}

/// Whether a socket's end stays on the host.
pub(crate) fn is_loopback(end: &str) -> bool {
    end.starts_with("127.") || end.starts_with("[::1]")
}

/// `12.3 Gbit/s`, `300 Mbit/s`.
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

/// `1.25 MB`, `87 kB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// `0.12 ms`, `30 ms`.
#[must_use]
pub fn milliseconds(us: u64) -> String {
    if us < 10_000 { format!("{:.2} ms", us as f64 / 1e3) } else { format!("{:.0} ms", us as f64 / 1e3) }
}

/// `1,234,567`.
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

/// `12 %`, `0.003 %`.
#[must_use]
pub fn per_cent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 {
        format!("{percent:.0} %")
    } else if percent >= 0.1 {
        format!("{percent:.1} %")
    } else if percent > 0.0 {
        // The first digit that is not 0.
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
