//! Parameters of the simulated hosts that a scenario does not set, each with its source.
//!
//! Three kinds. *Sourced* ones come from a data sheet, a driver, the kernel or the paper's section on its
//! method. *Calibrated* ones have no such source and were fitted to Titan's Table 3;
//! `docs/explanation/fidelity.md` lists the rows. *Estimated* ones have neither and give an order of
//! magnitude. All are the same for every scenario, variant and row.

use crate::costs::sender::Costs;
use crate::tcp::Profile;
use crate::time::{MICROSECOND, Span};

/// This many flows exceed the nearer caches of a core: from here on, the next flows are prefetched, so that
/// their cache misses overlap. It changes no result.
pub(crate) const MANY_FLOWS: usize = 1000;

/// Bytes that an application keeps in the send buffer. Sourced: the default limit of `tcp_wmem`.
pub(crate) const SEND_BUFFER_BYTES: u64 = 4 << 20;

/// From a class to the peer's IP input: a softirq on the processor that receive packet steering names.
/// Estimated: the usual order of an inter-processor interrupt with a softirq.
const HAND_OVER: Span = 5 * MICROSECOND;
/// From a packet's arrival until its program has read it and answered. Estimated: the usual order of a
/// wake-up with two system calls.
const APPLICATION_LATENCY: Span = 10 * MICROSECOND;
/// A veth's receive interrupts are not moderated. This is the least that is simulated.
const NO_MODERATION: Span = MICROSECOND;

/// The numbers of the two hosts and of the line between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The sender's kernel.
    pub profile: Profile,
    /// Receive queues over which a host spreads arrivals. Sourced: 4, the RSS queues of the Intel 82599 in
    /// VMDq mode, which Titan used (section 4).
    pub receive_queues: u32,
    /// One way from NIC to NIC: cables and one switch. Sourced: store and forward of a full frame at
    /// 10 Gbit/s (1.2 µs) and about a microsecond in the switch.
    pub line_latency: Span,
    /// Round trip that TCP's handshake measures. Estimated.
    pub handshake_rtt: Span,
    /// Shortest time between two interrupts of one vector of the receiver. Sourced: 50 µs, since the
    /// receiver "always uses configuration Cmax" (Titan, section 5).
    pub sink_interrupt_interval: Span,
    /// The same at the sender where the variant leaves it to the driver. Sourced: ixgbe 4.4.6 moderates
    /// bulk traffic to 12,000 interrupts a second (`IXGBE_12K_ITR`).
    pub default_interrupt_interval: Span,
    /// Descriptors in a transmit ring. Sourced: ixgbe's default (`IXGBE_DEFAULT_TXD`).
    pub ring_descriptors: u32,
    /// SFQ's number of flows, and its packet limit. Sourced: Titan raised it from 127 to 250.
    pub sfq_depth: u32,
    /// A queue's credits are changed this long after its weight. Sourced: order of a posted PCIe write.
    pub weight_latency: Span,
    /// Largest weight of a queue, in frames per turn. Sourced: the 14 bits of the 82599's credit
    /// register hold 1365 times half an MTU.
    pub largest_queue_weight: u32,
    /// From a packet's interrupt until its program has read it and answered. Calibrated: on the latency
    /// of three flows under DQA, where the probe has a queue for itself.
    pub application_latency: Span,
    /// Processor time of work.
    pub costs: Costs,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            profile: Profile::Linux4_4,
            receive_queues: 4,
            line_latency: 2 * MICROSECOND,
            handshake_rtt: 100 * MICROSECOND,
            sink_interrupt_interval: 50 * MICROSECOND,
            default_interrupt_interval: 83 * MICROSECOND,
            ring_descriptors: 512,
            sfq_depth: 250,
            weight_latency: MICROSECOND,
            largest_queue_weight: 682,
            application_latency: 110 * MICROSECOND,
            costs: Costs::XEON_E5_1410,
        }
    }
}

impl Parameters {
    /// The figures in words, for a record.
    #[must_use]
    pub fn words(&self) -> String {
        let us = |span: Span| format!("{} µs", span as f64 / MICROSECOND as f64);
        let figures = [
            ("receive queues", self.receive_queues.to_string()),
            ("line latency", us(self.line_latency)),
            ("handshake round trip", us(self.handshake_rtt)),
            ("receiver's interrupt interval", us(self.sink_interrupt_interval)),
            ("sender's interrupt interval", us(self.default_interrupt_interval)),
            ("transmit ring", self.ring_descriptors.to_string()),
            ("SFQ flows", self.sfq_depth.to_string()),
            ("weight latency", us(self.weight_latency)),
            ("largest queue weight", self.largest_queue_weight.to_string()),
            ("application latency", us(self.application_latency)),
        ];
        figures.map(|(name, figure)| format!("{name} {figure}")).join(", ")
    }

    /// Returns the parameters of both ends of a test bed on a machine with this many processors.
    #[must_use]
    pub fn on_test_bed(self, processors: u32) -> Self {
        Self {
            // Receive packet steering over all of them.
            receive_queues: processors.max(1),
            line_latency: HAND_OVER,
            sink_interrupt_interval: NO_MODERATION,
            application_latency: APPLICATION_LATENCY,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_figures_with_their_units() {
        let words = Parameters::default().words();
        assert!(
            words.starts_with("receive queues 4, line latency 2 µs, handshake round trip 100 µs,"),
            "{words}"
        );
        assert!(!words.contains('{'), "{words}");
    }
}
