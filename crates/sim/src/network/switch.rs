//! A switch: output queues that share one buffer.

use super::rate::Rate;
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Buffer in bytes that all output queues share.
    pub buffer_bytes: u64,
    /// Exponent of alpha: alpha is 2 to the power of this exponent, as in switching chips. A queue accepts a
    /// packet while it holds less than alpha times the free buffer, and the packet fits into the free buffer
    /// (dynamic thresholds; Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    /// switches", IEEE/ACM Transactions on Networking 6(2), 1998).
    pub alpha_exponent: i8,
}

#[derive(Clone, Copy, Debug)]
struct Port {
    rate: Rate,
    /// Time from the departure of the last bit to its arrival at the other end.
    latency: Span,
    /// Time at which the last queued bit departs.
    free_at: Time,
    drops: u64,
}

/// A switch with FIFO output queues.
///
/// When a queue accepts a packet, its departure is known: the packet begins when the previous packet
/// ends. The switch therefore stores only the time at which a queue becomes empty. Time and rate give
/// the queue's length. Sizes are wire bytes including framing. The sent part of a packet counts as
/// free.
#[derive(Clone, Debug)]
pub struct Switch {
    config: SwitchConfig,
    ports: Vec<Port>,
    /// Upper bound of the bytes in all queues: the last exact sum, plus the bytes accepted since.
    most_held: u64,
}

impl Switch {
    #[must_use]
    pub fn new(config: SwitchConfig) -> Self {
        Self { config, ports: Vec::new(), most_held: 0 }
    }

    /// Adds a port with this rate in bits per second and this link latency. Returns the number of the
    /// port.
    pub fn add_port(&mut self, rate_bps: u64, latency: Span) -> u32 {
        self.ports.push(Port { rate: Rate::new(rate_bps), latency, free_at: Time::ZERO, drops: 0 });
        self.ports.len() as u32 - 1
    }

    /// Handles a packet of `bytes` wire bytes for an output port. The packet is complete at `now`.
    /// Returns the time when its last bit arrives at the other end of the port's link, or `None` if the
    /// switch drops it. Calls must be in order of time.
    #[inline]
    pub fn forward(&mut self, port: u32, now: Time, bytes: u32) -> Option<Time> {
        let output = &self.ports[port as usize];
        let queued = output.rate.bytes_in(output.free_at.since(now));
        // Compute the exact sum over all queues only if its upper bound is too large.
        if !self.takes(self.most_held, queued, bytes) {
            self.most_held = self.held(now);
            if !self.takes(self.most_held, queued, bytes) {
                self.ports[port as usize].drops += 1;
                return None;
            }
        }
        self.most_held += u64::from(bytes);
        let output = &mut self.ports[port as usize];
        output.free_at = output.free_at.max(now) + output.rate.time_of(bytes);
        Some(output.free_at + output.latency)
    }

    /// Returns whether a queue that holds `queued` bytes accepts another packet of `bytes` bytes, if all
    /// queues together hold `held` bytes.
    #[inline]
    fn takes(&self, held: u64, queued: u64, bytes: u32) -> bool {
        let free = self.config.buffer_bytes.saturating_sub(held);
        let exponent = self.config.alpha_exponent;
        let threshold = if exponent < 0 {
            free.checked_shr(exponent.unsigned_abs().into()).unwrap_or(0)
        } else {
            free.saturating_mul(1_u64.checked_shl(exponent.unsigned_abs().into()).unwrap_or(u64::MAX))
        };
        queued < threshold && u64::from(bytes) <= free
    }

    #[must_use]
    pub fn held(&self, now: Time) -> u64 {
        self.ports.iter().map(|port| port.rate.bytes_in(port.free_at.since(now))).sum()
    }

    #[must_use]
    pub fn drops(&self, port: u32) -> u64 {
        self.ports[port as usize].drops
    }

    #[must_use]
    pub fn all_drops(&self) -> u64 {
        self.ports.iter().map(|port| port.drops).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{MICROSECOND, NANOSECOND};
    use proptest::prelude::*;

    /// 10 Gbit/s: 0.8 ns per byte, 1 µs per 1250 bytes.
    const RATE: u64 = 10_000_000_000;

    #[test]
    fn a_queue_departs_back_to_back_and_the_link_adds_its_latency() {
        let mut switch = Switch::new(SwitchConfig { buffer_bytes: 1 << 20, alpha_exponent: 0 });
        let port = switch.add_port(RATE, 300 * NANOSECOND);
        let other = switch.add_port(4 * RATE, 0);
        let at = |ns: u64| Some(Time(ns * NANOSECOND));
        assert_eq!(switch.forward(port, Time(0), 1250), at(1300));
        assert_eq!(switch.forward(port, Time(500 * NANOSECOND), 1250), at(2300));
        assert_eq!(switch.forward(other, Time(600 * NANOSECOND), 1250), at(850));
        // At 1 µs, the first packet has left and the second packet is complete. The other port is idle.
        assert_eq!(switch.held(Time(MICROSECOND)), 1250);
        assert_eq!(switch.forward(port, Time(5 * MICROSECOND), 1250), at(6300));
    }

    #[test]
    fn one_queue_may_hold_alpha_over_one_plus_alpha_of_the_buffer() {
        // In steady state q = alpha (B - q): half of the buffer for alpha 1, a third for 1/2, two thirds for
        // 2.
        for (alpha_exponent, packets) in [(0, 50), (-1, 34), (1, 67)] {
            let mut switch = Switch::new(SwitchConfig { buffer_bytes: 100_000, alpha_exponent });
            let port = switch.add_port(RATE, 0);
            let taken = (0..200).filter(|_| switch.forward(port, Time(0), 1000).is_some()).count();
            assert_eq!((taken, switch.drops(port)), (packets, 200 - packets as u64));
        }
    }

    #[test]
    fn others_queues_lower_the_threshold() {
        let mut switch = Switch::new(SwitchConfig { buffer_bytes: 90_000, alpha_exponent: 0 });
        let ports = [switch.add_port(RATE, 0), switch.add_port(RATE, 0)];
        let mut taken = [0, 0];
        for turn in 0..400 {
            taken[turn % 2] += u32::from(switch.forward(ports[turn % 2], Time(0), 1000).is_some());
        }
        // Each of the two queues has q = B - 2 q.
        assert_eq!(taken, [30, 30]);
        // Sent bytes do not count. After 16 µs, each queue has sent 20,000 bytes.
        let later = Time(16 * MICROSECOND);
        let again = (0..100).filter(|_| switch.forward(ports[0], later, 1000).is_some()).count();
        // q = 90 - 10 - q gives 40, which is 30 more than the remaining 10.
        assert_eq!(again, 30);
    }

    proptest! {
        /// Compares the switch with queues of packets that leave the buffer bit by bit.
        #[test]
        fn it_is_what_lists_of_packets_say(
            alpha_exponent in -3_i8..4,
            steps in prop::collection::vec((0_u32..3, 0_u64..2_000, 64_u32..1539), 1..300),
        ) {
            let config = SwitchConfig { buffer_bytes: 20_000, alpha_exponent };
            let mut switch = Switch::new(config);
            let mut queues: Vec<Vec<(u64, u64)>> = vec![Vec::new(); 3];
            for _ in 0..3 {
                switch.add_port(RATE, 0);
            }
            let mut now = 0;
            for (port, pause, bytes) in steps {
                // With 800 ps per byte, whole bytes avoid rounding.
                now += pause * 800;
                let left = |queue: &[(u64, u64)]| -> u64 {
                    queue.iter().map(|&(begin, bytes)| {
                        (begin + bytes * 800).saturating_sub(now.max(begin)) / 800
                    }).sum()
                };
                let held: u64 = queues.iter().map(|queue| left(queue)).sum();
                let queue = &mut queues[port as usize];
                let free = 20_000_u64.saturating_sub(held);
                let threshold = free as f64 * 2_f64.powi(i32::from(alpha_exponent));
                let takes = left(queue) < threshold.floor() as u64 && u64::from(bytes) <= free;
                let arrival = switch.forward(port, Time(now), bytes);
                prop_assert_eq!(arrival.is_some(), takes);
                if let Some(arrival) = arrival {
                    let begin = queue.last().map_or(now, |&(begin, bytes)| now.max(begin + bytes * 800));
                    prop_assert_eq!(arrival, Time(begin + u64::from(bytes) * 800));
                    queue.push((begin, bytes.into()));
                }
            }
        }
    }
}
