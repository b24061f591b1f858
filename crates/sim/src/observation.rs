//! What is measured on the wire: bytes and packets per flow in bins of time.

use crate::time::{Span, Time};

/// A flow's bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    /// Bytes on the wire (frames, as `skb->len` counts them, headers of every packet included).
    pub bytes: Vec<u64>,
    /// Packets.
    pub packets: Vec<u64>,
}

/// One bin of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    bytes: u64,
    packets: u64,
}

/// Counts packets by flow and bin.
#[derive(Clone, Debug)]
pub struct Observation {
    begin: Time,
    bin: Span,
    flows: Vec<Vec<Cell>>,
    /// Begin and end of the bin that was counted in last, and its number: nearly always the next one.
    present: (Time, Time, usize),
    /// Data packets since the start of the simulation.
    pub packets: u64,
}

impl Observation {
    /// `bins` bins of length `bin` from `begin` on, for each flow.
    #[must_use]
    pub fn new(flows: usize, begin: Time, bin: Span, bins: usize) -> Self {
        let flows = vec![vec![Cell::default(); bins]; flows];
        Self { begin, bin: bin.max(1), flows, present: (Time::ZERO, Time::ZERO, 0), packets: 0 }
    }

    /// `packets` packets of `bytes` bytes in all have left; the last bit of the first one at
    /// `first`, of the last one at `last`. Where they do not all belong to one bin, `each` is asked
    /// when a packet, by its index, had left, and how many bytes it has.
    #[inline]
    pub fn count(
        &mut self,
        flow: usize,
        packets: u32,
        bytes: u64,
        (first, last): (Time, Time),
        each: impl Fn(u32) -> (Time, u64),
    ) {
        self.packets += u64::from(packets);
        if last < self.begin {
            return;
        }
        if !self.is_present(first, last) {
            self.turn_to(last);
            if !self.is_present(first, last) {
                self.count_apart(flow, packets, each);
                return;
            }
        }
        self.add(flow, bytes, packets);
    }

    fn is_present(&self, first: Time, last: Time) -> bool {
        self.present.0 <= first && last < self.present.1
    }

    /// Makes the bin of a time, not before the first bin, the present one.
    #[cold]
    fn turn_to(&mut self, at: Time) {
        let index = at.since(self.begin) / self.bin;
        let begin = self.begin + index * self.bin;
        self.present = (begin, begin + self.bin, index as usize);
    }

    /// Counts in the present bin.
    fn add(&mut self, flow: usize, bytes: u64, packets: u32) {
        if let Some(cell) = self.flows[flow].get_mut(self.present.2) {
            cell.bytes += bytes;
            cell.packets += u64::from(packets);
        }
    }

    #[cold]
    fn count_apart(&mut self, flow: usize, packets: u32, each: impl Fn(u32) -> (Time, u64)) {
        for packet in 0..packets {
            let (at, bytes) = each(packet);
            if at >= self.begin {
                self.turn_to(at);
                self.add(flow, bytes, 1);
            }
        }
    }

    /// The bins of a flow.
    #[must_use]
    pub fn flow(&self, flow: usize) -> Bins {
        Bins {
            bytes: self.flows[flow].iter().map(|cell| cell.bytes).collect(),
            packets: self.flows[flow].iter().map(|cell| cell.packets).collect(),
        }
    }

    /// The bins of all flows.
    #[must_use]
    pub fn into_flows(mut self) -> Vec<Bins> {
        (0..self.flows.len())
            .map(|flow| {
                let bins = self.flow(flow);
                // There may be many: no two copies of all.
                self.flows[flow] = Vec::new();
                bins
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_across_a_boundary_is_split_by_its_packets() {
        let mut observation = Observation::new(1, Time(100), 10, 3);
        // Ends at 98, 102, 106, 110, and, as it is short, 111.
        let each =
            |packet| if packet == 4 { (Time(111), 20) } else { (Time(98 + 4 * u64::from(packet)), 100) };
        observation.count(0, 5, 420, (Time(98), Time(111)), each);
        let nobody_asks = |_| (Time::NEVER, 0);
        observation.count(0, 2, 7, (Time(121), Time(123)), nobody_asks);
        observation.count(0, 1, 50, (Time(500), Time(500)), nobody_asks);
        assert_eq!(observation.packets, 8);
        let bins = &observation.flow(0);
        assert_eq!(
            (bins.bytes.as_slice(), bins.packets.as_slice()),
            ([200, 120, 7].as_slice(), [2, 2, 2].as_slice())
        );
    }
}
