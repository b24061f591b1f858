//! The load of a host since boot, and its applications that wait for each answer.

use evenkeel_model::host::{
    Interface, LATENCY_SERVERS, ProcessFacts, ProcessorTime, SocketFacts, SocketKind, processor_list,
};

use crate::Basis;
use crate::view::{View, is_loopback, milliseconds};

/// Average traffic of a NIC since boot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Received packets per second.
    pub packets: f64,
    /// Rate of the direction with more traffic, bit/s.
    pub bps: f64,
    /// Sent traffic, bit/s.
    pub sent_bps: f64,
}

/// An application that waits for each answer, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyBound {
    pub words: String,
    /// Shortest round-trip time of its connections within the site, µs.
    pub rtt_us: Option<u64>,
    /// Whether processors are isolated for the application: an administrator configured the host for
    /// latency.
    pub isolated: bool,
}

impl<'a> View<'a> {
    /// Returns the time since boot, s: from `/proc/uptime`, else from the ticks of a processor.
    #[must_use]
    pub fn uptime_s(&self) -> Option<f64> {
        const TICKS_PER_SECOND: f64 = 100.0;
        let ticks = || {
            let totals = self.facts.processors.iter().filter_map(|processor| Some(processor.time?.total));
            totals.max().map(|total| total as f64 / TICKS_PER_SECOND)
        };
        let is_known = |seconds: &f64| *seconds >= 1.0;
        let told = self.facts.uptime_s.map(|seconds| seconds as f64);
        told.filter(is_known).or_else(ticks).filter(is_known)
    }

    /// Returns the time since the counters of the network namespace began, s. Returns `None` for a namespace
    /// that was made after boot, because its age is unknown.
    fn time_of_counters_s(&self) -> Option<f64> {
        self.uptime_s().filter(|_| !self.facts.is_later_namespace)
    }

    /// Returns [`Self::uptime_s`] for a rule's verdict. Without an uptime, the function notes that the
    /// rule lacks this fact.
    pub(crate) fn needed_uptime_s(&self) -> Option<f64> {
        let uptime = self.uptime_s();
        if uptime.is_none() {
            self.note_lack_of_time();
        }
        uptime
    }

    #[must_use]
    pub fn per_second(&self, count: u64) -> Option<f64> {
        Some(count as f64 / self.needed_uptime_s()?)
    }

    /// Returns text such as `, 3.2 per second since boot`, or a rate per hour; an empty text if the time is
    /// unknown or the rate is below 0.1 per hour.
    #[must_use]
    pub fn rate_words(&self, count: u64) -> String {
        let rate = self.time_of_counters_s().map(|time| count as f64 / time);
        match rate.filter(|rate| *rate > 0.0) {
            Some(rate) if rate >= 10.0 => {
                format!(", {} per second since boot", crate::view::count(rate.round() as u64))
            }
            Some(rate) if rate >= 0.1 => format!(", {rate:.1} per second since boot"),
            Some(rate) if rate * 3600.0 >= 0.1 => format!(", {:.1} per hour since boot", rate * 3600.0),
            _ => String::new(),
        }
    }

    /// Returns text such as `; it received 1,200,000 packets per second since boot and sent 800,000,
    /// and processors 0-7 spend 29 % of their time in softirqs`. The text shows the cost of a setting
    /// that takes processor time for each packet.
    #[must_use]
    pub fn work_words(&self, nic: &Interface) -> String {
        const FEWEST: u64 = 100;
        let uptime = self.time_of_counters_s();
        // Omit a counter that could not be read.
        let rate = |counter: &str| {
            let rate = *nic.statistics.get(counter)? as f64 / uptime?;
            Some(rate.round() as u64)
        };
        let (received, sent) = (rate("rx_packets"), rate("tx_packets"));
        let words = |verb: &str, rate: u64| {
            format!("; it {verb} {} packets per second since boot", crate::view::count(rate))
        };
        let text = match (received, sent) {
            (received, sent) if received.max(sent).is_none_or(|most| most < FEWEST) => String::new(),
            (Some(received), Some(sent)) => {
                format!("{} and sent {}", words("received", received), crate::view::count(sent))
            }
            (Some(received), None) => words("received", received),
            (None, Some(sent)) => words("sent", sent),
            (None, None) => String::new(),
        };
        text + &self.softirq_words(nic)
    }

    /// Returns text such as `; processors 0-7 spend 29 % of their time in softirqs`. The text lists the
    /// processors that serve a NIC's interrupts, if their mean share is at least 5 %. If these processors are
    /// unknown, the text lists every processor with a share of at least 25 %. For threaded NAPI, the text
    /// says that polls do not count as softirq time.
    #[must_use]
    pub fn softirq_words(&self, nic: &Interface) -> String {
        const LEAST: f64 = 0.05;
        let mut servers: Vec<u32> = self.interrupt_processors(nic).into_iter().collect();
        if servers.is_empty() {
            let share = |number: u32| self.softirq_share(number).unwrap_or(0.0);
            let all = self.facts.processors.iter().map(|processor| processor.number);
            servers.extend(all.filter(|number| share(*number) >= 5.0 * LEAST));
        }
        let share = self.mean_softirq_share(|number| servers.contains(&number)).unwrap_or(0.0);
        if nic.threaded_napi {
            return "; kernel threads poll it (threaded), whose time does not count as softirq time"
                .to_owned();
        }
        if share < LEAST {
            return String::new();
        }
        let share = crate::view::per_cent(share);
        format!("; processors {} spend {share} of their time in softirqs", processor_list(&servers))
    }

    #[must_use]
    pub fn load(&self, nic: &Interface) -> Option<Load> {
        let bytes = |name: &str| nic.statistics.get(name).copied().unwrap_or(0);
        Some(Load {
            packets: self.per_second(*nic.statistics.get("rx_packets")?)?,
            bps: self.per_second(bytes("rx_bytes").max(bytes("tx_bytes")))? * 8.0,
            sent_bps: self.per_second(bytes("tx_bytes"))? * 8.0,
        })
    }

    /// Returns whether a NIC is loaded. Any of these values can show load: packets per second since
    /// boot, share of the link's rate, softirq time of a processor that serves the NIC's interrupts, or
    /// packets lost at the NIC.
    #[must_use]
    pub fn is_loaded(&self, nic: &Interface) -> bool {
        const PACKETS: f64 = 10_000.0;
        const LINK_SHARE: f64 = 0.01;
        const SOFTIRQ_SHARE: f64 = 0.1;
        let busy_link = self.load(nic).is_some_and(|load| {
            let share = nic.speed_bps.map_or(0.0, |speed| load.bps / speed as f64);
            load.packets >= PACKETS || share >= LINK_SHARE
        });
        busy_link || Self::loses(nic) || self.serves_with(nic, SOFTIRQ_SHARE)
    }

    /// Returns whether counters show that a NIC is almost idle. The settings of an idle NIC have no
    /// cost at present.
    #[must_use]
    pub fn is_idle(&self, nic: &Interface) -> bool {
        const PACKETS: f64 = 100.0;
        !self.is_loaded(nic) && self.load(nic).is_some_and(|load| load.packets < PACKETS)
    }

    /// Returns whether receiving keeps processors busy: by the softirq time of a processor that serves a
    /// NIC's interrupts, or by losses at the NIC.
    #[must_use]
    pub fn is_busy(&self, nic: &Interface) -> bool {
        const SOFTIRQ_SHARE: f64 = 0.3;
        self.serves_with(nic, SOFTIRQ_SHARE) || Self::loses(nic)
    }

    /// Returns whether a processor that serves a NIC's interrupts spends at least the share `least` of its
    /// time in softirqs. If no interrupt names the NIC, any processor counts.
    fn serves_with(&self, nic: &Interface, least: f64) -> bool {
        let mut servers = self.interrupt_processors(nic);
        if servers.is_empty() && self.receive_interrupts(nic).is_empty() {
            servers = self.facts.processors.iter().map(|processor| processor.number).collect();
        }
        servers.into_iter().any(|server| self.softirq_share(server).is_some_and(|share| share >= least))
    }

    fn loses(nic: &Interface) -> bool {
        const LOST: u64 = 10_000;
        nic.losses.ring.unwrap_or(0).max(nic.losses.nic.unwrap_or(0)) >= LOST
    }

    /// Returns the basis of a finding about a setting that costs processor time for each packet. The basis is
    /// measured only if receiving keeps processors busy.
    #[must_use]
    pub fn cost_basis(&self, nic: &Interface) -> Basis {
        if self.is_busy(nic) { Basis::Measured } else { self.load_basis(nic).min(Basis::Setting) }
    }

    /// Returns the basis of a finding about a NIC's slot or settings: measured if counters show load, assumed
    /// if the NIC is idle, because the setting then has no cost yet, and otherwise the setting.
    #[must_use]
    pub fn load_basis(&self, nic: &Interface) -> Basis {
        if self.is_loaded(nic) {
            Basis::Measured
        } else if self.is_idle(nic) {
            Basis::Assumed
        } else {
            Basis::Setting
        }
    }

    /// Returns whether this host's own TCP connections carry, or may carry, part of its traffic. On a
    /// router or a name server, TCP connections carry almost no traffic, so limits of TCP have no cost.
    #[must_use]
    pub fn carries_tcp(&self) -> bool {
        const ENOUGH: u64 = 1_000_000;
        const ONE_IN: u64 = 20;
        let of = |nic: &Interface| nic.received_packets().saturating_add(nic.sent_packets());
        let packets = self.all_nics().map(of).fold(0, u64::saturating_add);
        let is_known = self.facts.counters.contains_key("Tcp.InSegs");
        let segments = self.facts.counter("Tcp.InSegs").saturating_add(self.sent_segments());
        !is_known || packets < ENOUGH || segments.saturating_mul(ONE_IN) >= packets
    }

    /// Returns the number of segments that TCP sent, retransmitted segments included. The kernel's `OutSegs`
    /// does not count retransmitted data (`__tcp_transmit_skb`, net/ipv4/tcp_output.c).
    #[must_use]
    pub fn sent_segments(&self) -> u64 {
        self.facts.counter("Tcp.OutSegs").saturating_add(self.retransmitted_segments())
    }

    #[must_use]
    pub fn retransmitted_segments(&self) -> u64 {
        self.facts.counter("Tcp.RetransSegs")
    }

    /// Returns the share of retransmitted segments of all segments that TCP sent.
    #[must_use]
    pub fn retransmitted_share(&self) -> f64 {
        self.retransmitted_segments() as f64 / self.sent_segments().max(1) as f64
    }

    #[must_use]
    pub fn softirq_share(&self, processor: u32) -> Option<f64> {
        let time = self.facts.processor(processor)?.time.filter(|time| time.total > 0)?;
        Some(softirq_share(&time))
    }

    /// Returns the mean share of time in softirqs of the processors for which `is_named` holds; `None` if no
    /// times are known.
    #[must_use]
    pub fn mean_softirq_share(&self, is_named: impl Fn(u32) -> bool) -> Option<f64> {
        let named = self.facts.processors.iter().filter(|processor| is_named(processor.number));
        let shares: Vec<f64> = named.filter_map(|processor| self.softirq_share(processor.number)).collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }

    /// Returns whether a processor is in another package (socket) than a NIC; false if a package is unknown.
    /// Nodes of one package (sub-NUMA clustering, AMD's NPS) do not count as other packages: the paper
    /// measured the interconnect between packages.
    #[must_use]
    pub fn is_other_package(&self, nic: &Interface, processor: u32) -> bool {
        let Some(node) = nic.node else { return false };
        let package = |number: u32| self.facts.processor(number).map(|processor| processor.package);
        let mut own = self.facts.processors_of(node).into_iter().filter_map(package).peekable();
        match package(processor) {
            Some(package) if own.peek().is_some() => !own.any(|of_nic| of_nic == package),
            _ => false,
        }
    }

    /// Returns the processors that can each serve a queue, without isolated processors: one per core of the
    /// NIC's node. In a virtual machine every processor of the node counts, because the guest does not see
    /// which processors share a core.
    #[must_use]
    pub fn queue_places(&self, nic: &Interface) -> Vec<u32> {
        if !self.facts.virtual_machine {
            return self.local_cores(nic);
        }
        let is_free =
            |number: &u32| self.facts.processor(*number).is_some_and(|processor| !processor.isolated);
        self.local_processors(nic).into_iter().filter(is_free).collect()
    }

    /// Returns the kernel's version, such as `(6, 12)`.
    #[must_use]
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut parts = self.facts.kernel.as_deref()?.split(|character: char| !character.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Returns an application that waits for each answer, found by its connections, else by its name or its
    /// isolated processors.
    #[must_use]
    pub fn latency_bound(&self) -> Option<LatencyBound> {
        let isolated =
            |number: &u32| self.facts.processor(*number).is_some_and(|processor| processor.isolated);
        let is_isolated =
            |process: &ProcessFacts| !process.allowed.is_empty() && process.allowed.iter().all(isolated);
        let chats: Vec<&SocketFacts> =
            self.facts.sockets.iter().filter(|socket| exchanges_requests(socket)).collect();
        let rtt = |socket: &&SocketFacts| socket.tcp.as_ref().map(|tcp| tcp.min_rtt_us);
        if let Some(shortest) = chats.iter().copied().min_by_key(rtt) {
            let rtt_us = rtt(&shortest);
            let of = shortest.process.and_then(|number| self.facts.process(number));
            let words = format!(
                "{} connections{} exchange small requests and answers, the fastest in {}",
                chats.len(),
                of.map(|process| format!(" of {}", process.name)).unwrap_or_default(),
                milliseconds(rtt_us.unwrap_or(0))
            );
            return Some(LatencyBound { words, rtt_us, isolated: of.is_some_and(is_isolated) });
        }
        let sockets_of =
            |number: u32| self.facts.sockets.iter().filter(move |socket| socket.process == Some(number));
        let servers =
            self.facts.processes.iter().filter(|process| sockets_of(process.number).next().is_some());
        let found = servers.filter_map(|process| {
            let name = format!("{} (process {})", process.name, process.number);
            let isolated = is_isolated(process);
            let words = if LATENCY_SERVERS.contains(&process.name.as_str()) {
                format!("{name} answers requests here")
            } else if isolated {
                format!("{name} runs on isolated processors")
            } else {
                return None;
            };
            let rtt_us = sockets_of(process.number).filter_map(rtt_within_site).min();
            let words = match rtt_us {
                Some(us) => format!("{words}, its fastest peer in {}", milliseconds(us)),
                None => words,
            };
            Some(LatencyBound { words, rtt_us, isolated })
        });
        found.min_by(|one, other| one.words.cmp(&other.words))
    }
}

fn softirq_share(time: &ProcessorTime) -> f64 {
    time.softirq as f64 / time.total as f64
}

/// Returns the smallest round-trip time of a connection, µs, if both ends are within one site.
fn rtt_within_site(socket: &SocketFacts) -> Option<u64> {
    const RTT_US: u64 = 1000;
    let tcp =
        socket.tcp.as_ref().filter(|_| socket.kind == SocketKind::Tcp && !is_loopback(&socket.local))?;
    (1..=RTT_US).contains(&tcp.min_rtt_us).then_some(tcp.min_rtt_us)
}

/// Returns whether a connection carries small requests and answers within one site.
fn exchanges_requests(socket: &SocketFacts) -> bool {
    const SEGMENTS: u64 = 100_000;
    const FEW_SEGMENTS: u64 = 10_000;
    const SEGMENT_BYTES: u64 = 1000;
    /// With a smaller mean payload, most segments are acknowledgements and not requests.
    const LEAST_BYTES: u64 = 50;
    /// Maximum ratio of answer bytes to request bytes. Longer answers are limited by the rate, not by
    /// latency.
    const ANSWER: u64 = 16;
    let Some(tcp) = socket.tcp.as_ref().filter(|_| socket.kind == SocketKind::Tcp) else { return false };
    let is_small =
        |bytes: u64, segments: u64| segments >= SEGMENTS && bytes <= segments.saturating_mul(SEGMENT_BYTES);
    let carries = tcp.bytes_acked > 0 && tcp.bytes_received > 0;
    let both_small =
        is_small(tcp.bytes_acked, tcp.segments_out) && is_small(tcp.bytes_received, tcp.segments_in);
    // The segments of the requests are small, and the answers are short.
    let requests = |(bytes, segments): (u64, u64), answers: u64| {
        let per_segment = bytes / segments.max(1);
        segments >= FEW_SEGMENTS
            && (LEAST_BYTES..=SEGMENT_BYTES).contains(&per_segment)
            && answers <= bytes.saturating_mul(ANSWER)
    };
    let sent = (tcp.bytes_acked, tcp.segments_out);
    let received = (tcp.bytes_received, tcp.segments_in);
    let asks = if sent.0 < received.0 { requests(sent, received.0) } else { requests(received, sent.0) };
    carries && (both_small || asks) && rtt_within_site(socket).is_some()
}
