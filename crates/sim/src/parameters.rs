//! Parameters of the simulated hosts, each with its source.
//!
//! A value is the same for every variant and every row of a result. A scenario can set only the number of
//! receive queues. [`Parameters::on_test_bed`] replaces some values. There are three kinds of values:
//!
//! - *Sourced* values are from a data sheet, a driver, the kernel or the section of the paper on its
//!   method.
//! - *Calibrated* values have no such source. They were fitted to Titan's Table 3.
//!   `docs/explanation/fidelity.md` lists them.
//! - *Estimated* values have no source and were not fitted. They give an order of magnitude.

use crate::costs::sender::Costs;
use crate::tcp::Profile;
use crate::time::{MICROSECOND, Span};

/// From this number of flows on, their state exceeds the lower-level caches of a core. The simulator
/// then prefetches the next flows. Prefetching changes no result.
pub(crate) const MANY_FLOWS: usize = 1000;

/// Bytes that an application keeps in the send buffer. Sourced: the default limit of `tcp_wmem`.
pub(crate) const SEND_BUFFER_BYTES: u64 = 4 << 20;

/// Time from the soft NIC's class to the peer's IP input: a softirq on the processor that receive packet
/// steering selects. Estimated: the usual time of an inter-processor interrupt with a softirq.
const HAND_OVER: Span = 5 * MICROSECOND;
/// Time from the arrival of a packet until its program has read and answered it. Estimated: the usual time of
/// a wake-up with two system calls.
const APPLICATION_LATENCY: Span = 10 * MICROSECOND;
/// Smallest simulated interval. A veth does not moderate receive interrupts.
const NO_MODERATION: Span = MICROSECOND;

#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    pub profile: Profile,
    /// Receive queues of a host. Sourced: 4, the RSS queues of the Intel 82599 in VMDq mode, which Titan used
    /// (section 4).
    pub receive_queues: u32,
    /// One-way latency from NIC to NIC: cables and one switch. Sourced: store and forward of a full frame at
    /// 10 Gbit/s (1.2 µs), and about a microsecond in the switch.
    pub line_latency: Span,
    /// Round-trip time that TCP's handshake measures. Estimated.
    pub handshake_rtt: Span,
    /// Shortest time between two interrupts of one vector of the receiver. Sourced: 50 µs, since the
    /// receiver "always uses configuration Cmax" (Titan, section 5).
    pub sink_interrupt_interval: Span,
    /// Shortest time between two interrupts of one vector of the sender, if the variant uses the driver's
    /// default. Sourced: ixgbe 4.4.6 moderates bulk traffic to 12,000 interrupts per second
    /// (`IXGBE_12K_ITR`).
    pub default_interrupt_interval: Span,
    /// Descriptors in a transmit ring. Sourced: ixgbe's default (`IXGBE_DEFAULT_TXD`).
    pub ring_descriptors: u32,
    /// Number of flows of SFQ, which is also its packet limit. Sourced: Titan raised this number from 127 to
    /// 250.
    pub sfq_depth: u32,
    /// Delay from the change of a queue's weight to the NIC's use of it. Sourced: order of a posted PCIe
    /// write.
    pub weight_latency: Span,
    /// Largest weight of a queue, in frames per turn. Sourced: the 14 bits of the 82599's credit register
    /// hold 1365 times half an MTU.
    pub largest_queue_weight: u32,
    /// Time from the interrupt of a packet until its program has read and answered it. Calibrated with
    /// the latency of three flows under DQA, where the probe has its own queue.
    pub application_latency: Span,
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
    /// Describes the values as text, for a record. The text omits the profile and the costs.
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
            // Receive packet steering uses all processors.
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
