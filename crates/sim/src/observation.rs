//! Measurements on the wire: bytes and packets per flow and time bin.

use crate::time::{Span, Time};

/// Memory of the two counters of a flow and bin, bytes.
pub(crate) const BIN_BYTES: u64 = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    /// Frame bytes without framing: `skb->len`, plus the headers of each packet of a segment after the first.
    pub bytes: Vec<u64>,
    pub packets: Vec<u64>,
}

impl Bins {
    fn of(bins: usize) -> Self {
        Self { bytes: vec![0; bins], packets: vec![0; bins] }
    }

    /// Adds `cell` to the bin `number`. The first addition allocates `bins` bins. Ignores an empty cell, and
    /// a number beyond the last bin.
    fn add(&mut self, number: usize, bins: usize, cell: Cell) {
        if number >= bins || cell.packets == 0 {
            return;
        }
        if self.bytes.is_empty() {
            *self = Self::of(bins);
        }
        self.bytes[number] += cell.bytes;
        self.packets[number] += cell.packets;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    bytes: u64,
    packets: u64,
}

impl Cell {
    #[inline]
    fn add(&mut self, bytes: u64, packets: u32) {
        self.bytes += bytes;
        self.packets += u64::from(packets);
    }
}

/// Counts packets by flow and bin.
///
/// Nearly all packets belong to the newest bin. The newest bins of all flows are adjacent in memory.
/// When a new bin begins, they move to the other bins of their flows. Counting therefore accesses
/// little memory for any number of bins.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    begin: Time,
    bin: Span,
    bins: usize,
    /// The older bins of each flow. Empty until a packet is counted there.
    flows: Vec<Bins>,
    newest: Vec<Cell>,
    /// Number, begin and end of the newest bin.
    present: (usize, Time, Time),
    pub packets: u64,
}

impl Observation {
    /// Creates an observation with `bins` bins of length `bin` for each flow. The first bin starts at
    /// `begin`.
    #[must_use]
    pub fn new(flows: usize, begin: Time, bin: Span, bins: usize) -> Self {
        let bin = bin.max(1);
        Self {
            begin,
            bin,
            bins,
            flows: vec![Bins::default(); flows],
            newest: vec![Cell::default(); flows],
            present: (0, begin, begin + bin),
            packets: 0,
        }
    }

    /// Counts the departure of `packets` packets with `bytes` bytes in total. The last bit of the first
    /// packet leaves at `first`, and the last bit of the last packet at `last`. If the packets are not all in
    /// one bin, `each` returns departure and bytes of a packet by its index.
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
        let (_, begin, end) = self.present;
        if begin <= first && last < end {
            self.newest[flow].add(bytes, packets);
        } else if last >= self.begin {
            self.count_elsewhere(flow, packets, bytes, (first, last), each);
        }
    }

    /// Counts packets of which at least one is outside the newest bin.
    #[cold]
    fn count_elsewhere(
        &mut self,
        flow: usize,
        packets: u32,
        bytes: u64,
        (first, last): (Time, Time),
        each: impl Fn(u32) -> (Time, u64),
    ) {
        if first >= self.begin && self.number_of(first) == self.number_of(last) {
            self.add(flow, first, Cell { bytes, packets: packets.into() });
            return;
        }
        for packet in 0..packets {
            let (at, bytes) = each(packet);
            if at >= self.begin {
                self.add(flow, at, Cell { bytes, packets: 1 });
            }
        }
    }

    /// Returns the number of the bin of a time. The time must not be before the first bin.
    fn number_of(&self, at: Time) -> u64 {
        at.since(self.begin) / self.bin
    }

    /// Adds `cell` to a flow's bin at a time. The time must not be before the first bin. Ignores times after
    /// the last bin.
    fn add(&mut self, flow: usize, at: Time, cell: Cell) {
        if at >= self.present.2 {
            self.turn_to(at);
        }
        let number = self.number_of(at) as usize;
        if number == self.present.0 {
            let newest = &mut self.newest[flow];
            newest.bytes += cell.bytes;
            newest.packets += cell.packets;
        } else {
            self.flows[flow].add(number, self.bins, cell);
        }
    }

    /// Starts the bin of a time as the newest bin. The time must be after the present newest bin.
    fn turn_to(&mut self, at: Time) {
        let number = self.present.0;
        for (bins, newest) in self.flows.iter_mut().zip(&mut self.newest) {
            // Late packets of the previous bin are added individually.
            bins.add(number, self.bins, std::mem::take(newest));
        }
        let number = self.number_of(at);
        let begin = self.begin + number * self.bin;
        self.present = (number as usize, begin, begin + self.bin);
    }

    /// Returns the bins of a flow: `bins` plus the newest bin.
    fn whole(&self, flow: usize, mut bins: Bins) -> Bins {
        bins.add(self.present.0, self.bins, self.newest[flow]);
        if bins.bytes.is_empty() { Bins::of(self.bins) } else { bins }
    }

    #[must_use]
    pub fn flow(&self, flow: usize) -> Bins {
        self.whole(flow, self.flows[flow].clone())
    }

    #[must_use]
    pub fn into_flows(mut self) -> Vec<Bins> {
        let flows = std::mem::take(&mut self.flows);
        flows.into_iter().enumerate().map(|(flow, bins)| self.whole(flow, bins)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_run_across_a_boundary_is_split_by_its_packets() {
        let mut observation = Observation::new(1, Time(100), 10, 3);
        // The packets end at 98, 102, 106, 110 and 111. The last packet is short.
        let each =
            |packet| if packet == 4 { (Time(111), 20) } else { (Time(98 + 4 * u64::from(packet)), 100) };
        observation.count(0, 5, 420, (Time(98), Time(111)), each);
        let not_called = |_| (Time::NEVER, 0);
        observation.count(0, 2, 7, (Time(121), Time(123)), not_called);
        observation.count(0, 1, 50, (Time(500), Time(500)), not_called);
        assert_eq!(observation.packets, 8);
        let bins = &observation.into_flows()[0];
        assert_eq!(
            (bins.bytes.as_slice(), bins.packets.as_slice()),
            ([200, 120, 7].as_slice(), [2, 2, 2].as_slice())
        );
    }

    /// Checks packets that are reported late: the trains of several rings are not reported in order of
    /// time.
    #[test]
    fn late_packets_go_to_their_own_bin() {
        let mut observation = Observation::new(2, Time(100), 10, 3);
        let not_called = |_| (Time::NEVER, 0);
        let mut count = |flow, bytes, first, last| {
            observation.count(flow, 1, bytes, (Time(first), Time(last)), not_called);
        };
        count(0, 1, 105, 105);
        count(0, 20, 125, 129);
        count(1, 2, 104, 109);
        count(0, 4, 100, 100);
        count(1, 30, 113, 113);
        count(1, 7, 129, 129);
        // Count two packets after the last bin, and then a late packet of the last bin.
        count(1, 50, 150, 150);
        count(1, 60, 131, 132);
        count(1, 8, 128, 128);
        let flows = observation.into_flows();
        assert_eq!(flows[0].bytes, [5, 0, 20]);
        assert_eq!(flows[1].bytes, [2, 30, 15]);
        assert_eq!(flows[1].packets, [1, 1, 2]);
    }
}
