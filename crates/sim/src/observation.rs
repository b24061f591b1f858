//! What is measured on the wire: bytes and packets per flow in bins of time.

use crate::time::{Span, Time};

/// A flow's bins.
#[derive(Clone, Debug, Default)]
pub struct Bins {
    /// Bytes on the wire (frames, as `skb->len` counts them, headers of every packet included).
    pub bytes: Vec<u64>,
    /// Packets.
    pub packets: Vec<u64>,
}

/// Counts packets by flow and bin.
#[derive(Clone, Debug)]
pub struct Observation {
    begin: Time,
    bin: Span,
    flows: Vec<Bins>,
    /// Data packets since the start of the simulation.
    pub packets: u64,
}

impl Observation {
    /// `bins` bins of length `bin` from `begin` on, for each flow.
    #[must_use]
    pub fn new(flows: usize, begin: Time, bin: Span, bins: usize) -> Self {
        let empty = Bins { bytes: vec![0; bins], packets: vec![0; bins] };
        Self { begin, bin: bin.max(1), flows: vec![empty; flows], packets: 0 }
    }

    /// `packets` packets of `bytes` bytes in all have left; the last bit of the first one at
    /// `first`, of the last one at `last`, the others evenly between.
    #[inline]
    pub fn count(&mut self, flow: usize, packets: u32, bytes: u64, first: Time, last: Time) {
        self.packets += u64::from(packets);
        if last < self.begin {
            return;
        }
        let bins = &mut self.flows[flow];
        let of = |time: Time| (time.since(self.begin) / self.bin) as usize;
        let (from, to) = (of(first), of(last));
        if from == to && first >= self.begin {
            if let Some(bin) = bins.bytes.get_mut(to) {
                *bin += bytes;
                bins.packets[to] += u64::from(packets);
            }
            return;
        }
        let spacing = last.since(first) / u64::from(packets.max(2) - 1);
        for packet in 0..packets {
            let at = first + spacing * u64::from(packet);
            if at < self.begin {
                continue;
            }
            let index = of(at);
            // What does not divide goes to the first packets.
            let share =
                bytes / u64::from(packets) + u64::from(u64::from(packet) < bytes % u64::from(packets));
            if let Some(bin) = bins.bytes.get_mut(index) {
                *bin += share;
                bins.packets[index] += 1;
            }
        }
    }

    /// The bins of all flows.
    #[must_use]
    pub fn into_flows(self) -> Vec<Bins> {
        self.flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_across_a_boundary_is_split_by_its_packets() {
        let mut observation = Observation::new(1, Time(100), 10, 3);
        // Ends at 98, 102, 106, 110, 114.
        observation.count(0, 5, 500, Time(98), Time(114));
        observation.count(0, 2, 7, Time(121), Time(123));
        observation.count(0, 1, 50, Time(500), Time(500));
        let bins = &observation.flows[0];
        assert_eq!(
            (bins.bytes.as_slice(), bins.packets.as_slice()),
            ([200, 200, 7].as_slice(), [2, 2, 2].as_slice())
        );
        assert_eq!(observation.packets, 8);
    }
}
