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
        for packet in 0..packets {
            let (at, bytes) = each(packet);
            if at < self.begin {
                continue;
            }
            let index = of(at);
            if let Some(bin) = bins.bytes.get_mut(index) {
                *bin += bytes;
                bins.packets[index] += 1;
            }
        }
    }

    /// The bins of a flow.
    #[must_use]
    pub fn flow(&self, flow: usize) -> &Bins {
        &self.flows[flow]
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
        // Ends at 98, 102, 106, 110, and, as it is short, 111.
        let each =
            |packet| if packet == 4 { (Time(111), 20) } else { (Time(98 + 4 * u64::from(packet)), 100) };
        observation.count(0, 5, 420, (Time(98), Time(111)), each);
        let nobody_asks = |_| (Time::NEVER, 0);
        observation.count(0, 2, 7, (Time(121), Time(123)), nobody_asks);
        observation.count(0, 1, 50, (Time(500), Time(500)), nobody_asks);
        let bins = &observation.flows[0];
        assert_eq!(
            (bins.bytes.as_slice(), bins.packets.as_slice()),
            ([200, 120, 7].as_slice(), [2, 2, 2].as_slice())
        );
        assert_eq!(observation.packets, 8);
    }
}
