//! Acknowledgements in flight to the sender's NIC.

use std::collections::VecDeque;

use crate::tcp::{Ack, Block};
use crate::time::Time;

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Time,
    cumulative: u64,
    flow: u32,
    /// Whether the receiver has data above a gap or duplicates to report. The SACK blocks are then in
    /// `sacks`.
    has_sack: bool,
}

impl Arrival {
    #[inline]
    fn new(at: Time, flow: u32, ack: &Ack) -> Self {
        Self { at, cumulative: ack.cumulative, flow, has_sack: !ack.sack[0].is_empty() }
    }
}

/// Acknowledgements in order of arrival. Few acknowledgements have SACK blocks. A separate queue for
/// SACK blocks keeps the entries small.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    arrivals: VecDeque<Arrival>,
    /// SACK blocks of the acknowledgements that have SACK blocks, in the same order as the
    /// acknowledgements.
    sacks: VecDeque<[Block; 3]>,
}

impl Arrivals {
    /// Returns the time of the first arrival.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.arrivals.front().map(|arrival| arrival.at)
    }

    #[inline]
    pub(crate) fn flows(&self, most: usize) -> impl Iterator<Item = u32> {
        self.arrivals.iter().take(most).map(|arrival| arrival.flow)
    }

    /// Removes the first acknowledgement, if it arrives at `by` or earlier. Copies the acknowledgement
    /// to `ack` and returns its flow.
    ///
    /// Returning both in an `Option` takes 10 % of a simulation's time: the copies defeat the
    /// processor's store forwarding.
    #[inline]
    pub(crate) fn take(&mut self, by: Time, ack: &mut Ack) -> Option<u32> {
        let arrival = *self.arrivals.front().filter(|arrival| arrival.at <= by)?;
        self.arrivals.pop_front();
        ack.cumulative = arrival.cumulative;
        ack.sack =
            if arrival.has_sack { self.sacks.pop_front().unwrap_or_default() } else { Default::default() };
        Some(arrival.flow)
    }

    /// Inserts an acknowledgement of a flow, behind all acknowledgements that arrive at the same time
    /// or earlier.
    #[inline]
    pub(crate) fn insert(&mut self, at: Time, flow: u32, ack: &Ack) {
        if self.arrivals.back().is_some_and(|last| last.at > at) {
            self.insert_before(at, flow, ack);
            return;
        }
        let arrival = Arrival::new(at, flow, ack);
        self.arrivals.push_back(arrival);
        if arrival.has_sack {
            self.sacks.push_back(ack.sack);
        }
    }

    /// Inserts an acknowledgement before later ones. Paths with different latencies can change the
    /// order.
    #[cold]
    fn insert_before(&mut self, at: Time, flow: u32, ack: &Ack) {
        let arrival = Arrival::new(at, flow, ack);
        let later = self.arrivals.iter().rev().take_while(|later| later.at > arrival.at);
        let (behind, sacks_behind) =
            later.fold((0, 0), |(all, sacks), later| (all + 1, sacks + usize::from(later.has_sack)));
        self.arrivals.insert(self.arrivals.len() - behind, arrival);
        if arrival.has_sack {
            self.sacks.insert(self.sacks.len() - sacks_behind, ack.sack);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares the queue with a list that is sorted stably by time.
        #[test]
        fn they_come_in_the_order_of_time(steps in prop::collection::vec((0_u64..20, 0_u64..3), 1..60)) {
            let mut arrivals = Arrivals::default();
            let mut list: Vec<(Time, u32, Ack)> = Vec::new();
            for (number, (at, block)) in (0_u32..).zip(steps) {
                let start = 100 * u64::from(number);
                let sack = [Block { start, end: start + block }, Block::default(), Block::default()];
                let sack = if block == 0 { Default::default() } else { sack };
                let ack = Ack { cumulative: u64::from(number), sack };
                arrivals.insert(Time(at), number, &ack);
                list.push((Time(at), number, ack));
            }
            list.sort_by_key(|entry| entry.0);
            for (at, flow, ack) in list {
                prop_assert_eq!(arrivals.next(), Some(at));
                let mut taken = Ack::default();
                if let Some(before) = at.0.checked_sub(1) {
                    prop_assert_eq!(arrivals.take(Time(before), &mut taken), None);
                }
                prop_assert_eq!(arrivals.take(at, &mut taken), Some(flow));
                prop_assert_eq!(taken, ack);
            }
            prop_assert_eq!(arrivals.next(), None);
        }
    }
}
