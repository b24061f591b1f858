//! The TCP receiver: reassembly, delayed acknowledgements, SACK.

use super::{Ack, Block};
use crate::time::{MILLISECOND, Span, Time};

const INITIAL_CAPACITY: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub struct ReceiverConfig {
    pub mss: u32,
    /// Number of acknowledgements at the start that are not delayed (`TCP_MAX_QUICKACKS`).
    pub quick_acks: u32,
    /// Longest delay of an acknowledgement (`TCP_ATO_MIN`).
    pub delay: Span,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self { mss: 1448, quick_acks: 16, delay: 40 * MILLISECOND }
    }
}

/// When the receiver acknowledges data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Immediately: call [`Receiver::acknowledgement`].
    Now,
    /// At this time, unless an earlier event causes an acknowledgement.
    Delayed(Time),
    /// At the time of the last [`Self::Delayed`], which is unchanged.
    Unchanged,
}

/// The receiving end of a flow (net/ipv4/tcp_input.c, `tcp_data_queue` and `__tcp_ack_snd_check`).
///
/// ```
/// use evenkeel_stations::tcp::{Receiver, ReceiverConfig, Reply};
/// use evenkeel_stations::time::Time;
///
/// let mut receiver = Receiver::new(&ReceiverConfig { quick_acks: 0, ..ReceiverConfig::default() });
/// assert!(matches!(receiver.on_data(Time(0), 0, 1448, 1), Reply::Delayed(_)));
/// // Every second full packet is acknowledged at once.
/// assert_eq!(receiver.on_data(Time(9), 1448, 1448, 1), Reply::Now);
/// assert_eq!(receiver.acknowledgement().cumulative, 2896);
/// ```
#[derive(Clone, Debug)]
// The fields for in-order data come first. With thousands of flows, each saved cache line counts.
#[repr(C)]
pub struct Receiver {
    /// First byte not received in order (`rcv_nxt`).
    next: u64,
    /// Sequence of the last acknowledgement (`rcv_wup`).
    acknowledged: u64,
    /// When an acknowledgement is due; `Time::NEVER` if none is due.
    deadline: Time,
    mss: u32,
    quick_acks: u16,
    /// Whether no data is out of order and the next acknowledgement has no SACK blocks.
    is_plain: bool,
    delay: Span,
    /// Ranges received out of order: sorted, with gaps between them.
    ranges: Vec<Block>,
    /// The most recently changed ranges, newest first (`selective_acks`).
    recent: [Block; 3],
    /// A duplicate to report (D-SACK); empty if there is none.
    duplicate: Block,
    out_of_order_packets: u64,
    duplicate_bytes: u64,
}

impl Receiver {
    #[must_use]
    pub fn new(config: &ReceiverConfig) -> Self {
        Self {
            next: 0,
            acknowledged: 0,
            deadline: Time::NEVER,
            mss: config.mss,
            quick_acks: u16::try_from(config.quick_acks).unwrap_or(u16::MAX),
            is_plain: true,
            delay: config.delay,
            ranges: Vec::with_capacity(INITIAL_CAPACITY),
            recent: [Block::default(); 3],
            duplicate: Block::default(),
            out_of_order_packets: 0,
            duplicate_bytes: 0,
        }
    }

    /// Handles a run of `packets` packets with `bytes` bytes in sequence, which GRO may have merged.
    #[inline]
    pub fn on_data(&mut self, now: Time, sequence: u64, bytes: u32, packets: u32) -> Reply {
        if self.is_plain && sequence == self.next && bytes > 0 {
            self.next += u64::from(bytes);
            return self.reply(now);
        }
        let reply = self.on_any_data(now, sequence, bytes, packets);
        self.look_for_plain();
        reply
    }

    fn on_any_data(&mut self, now: Time, sequence: u64, bytes: u32, packets: u32) -> Reply {
        let block = Block { start: sequence, end: sequence + u64::from(bytes) };
        if block.end <= self.next {
            self.note_duplicate(block);
            return Reply::Now;
        }
        if block.start > self.next {
            self.out_of_order_packets += u64::from(packets);
            self.queue(block);
            return Reply::Now;
        }
        if block.start < self.next {
            self.note_duplicate(Block { start: block.start, end: self.next });
        }
        self.next = block.end;
        if !self.ranges.is_empty() {
            self.close_gap();
            return Reply::Now;
        }
        if !self.duplicate.is_empty() {
            return Reply::Now;
        }
        self.reply(now)
    }

    fn look_for_plain(&mut self) {
        self.is_plain = self.ranges.is_empty() && self.recent[0].is_empty() && self.duplicate.is_empty();
    }

    #[inline]
    fn reply(&mut self, now: Time) -> Reply {
        if self.next - self.acknowledged > u64::from(self.mss) || self.quick_acks > 0 {
            return Reply::Now;
        }
        if self.deadline != Time::NEVER {
            return Reply::Unchanged;
        }
        self.deadline = now + self.delay;
        Reply::Delayed(self.deadline)
    }

    fn note_duplicate(&mut self, block: Block) {
        self.duplicate_bytes += block.end - block.start;
        self.duplicate = block;
    }

    /// Queues a range above a gap (`tcp_data_queue_ofo`).
    fn queue(&mut self, block: Block) {
        let first = self.ranges.partition_point(|range| range.end < block.start);
        let mut merged = block;
        let mut last = first;
        while let Some(range) = self.ranges.get(last).filter(|range| range.start <= block.end) {
            let both = Block { start: range.start.max(block.start), end: range.end.min(block.end) };
            if !both.is_empty() {
                self.duplicate_bytes += both.end - both.start;
                self.duplicate = both;
            }
            merged = Block { start: merged.start.min(range.start), end: merged.end.max(range.end) };
            last += 1;
        }
        if first == last {
            self.ranges.insert(first, merged);
        } else {
            self.ranges[first] = merged;
            self.ranges.drain(first + 1..last);
        }
        self.promote(merged);
    }

    /// Moves a range to the front of the reported ranges. Removes the reported ranges that it contains.
    fn promote(&mut self, block: Block) {
        let mut reported = [block, Block::default(), Block::default()];
        let mut count = 1;
        for &old in &self.recent {
            let absorbed = old.start >= block.start && old.end <= block.end;
            if count < reported.len() && !old.is_empty() && !absorbed {
                reported[count] = old;
                count += 1;
            }
        }
        self.recent = reported;
    }

    /// Moves out-of-order ranges to the in-order data after a gap has closed (`tcp_ofo_queue`).
    fn close_gap(&mut self) {
        let mut taken = 0;
        while let Some(range) = self.ranges.get(taken).filter(|range| range.start <= self.next) {
            let both = Block { start: range.start, end: range.end.min(self.next) };
            if !both.is_empty() {
                self.duplicate_bytes += both.end - both.start;
                self.duplicate = both;
            }
            self.next = self.next.max(range.end);
            taken += 1;
        }
        self.ranges.drain(..taken);
        let old = std::mem::take(&mut self.recent);
        for (slot, block) in self.recent.iter_mut().zip(old.into_iter().filter(|block| block.end > self.next))
        {
            *slot = block;
        }
    }

    #[inline]
    pub fn acknowledgement(&mut self) -> Ack {
        self.acknowledged = self.next;
        self.deadline = Time::NEVER;
        self.quick_acks = self.quick_acks.saturating_sub(1);
        let sack = if self.is_plain { <[Block; 3]>::default() } else { self.selective() };
        Ack { cumulative: self.next, sack }
    }

    fn selective(&mut self) -> [Block; 3] {
        let mut sack = self.recent;
        if !self.duplicate.is_empty() {
            sack = [std::mem::take(&mut self.duplicate), sack[0], sack[1]];
        }
        self.look_for_plain();
        sack
    }

    /// Returns when a delayed acknowledgement is due; `Time::NEVER` if none is due.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns whether the delay is over. The host must then send [`Self::acknowledgement`].
    #[must_use]
    pub fn on_deadline(&self, now: Time) -> bool {
        self.deadline <= now
    }

    /// Returns the number of bytes received in order, which the application can read.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.next
    }

    /// Returns the number of bytes received above a gap.
    #[must_use]
    pub fn out_of_order_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the number of packets that arrived above a gap (`TCPOFOQueue`).
    #[must_use]
    pub fn out_of_order_packets(&self) -> u64 {
        self.out_of_order_packets
    }

    /// Returns the number of bytes that were received more than once.
    #[must_use]
    pub fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u32 = 1448;

    fn receiver(quick_acks: u32) -> Receiver {
        Receiver::new(&ReceiverConfig { mss: MSS, quick_acks, ..ReceiverConfig::default() })
    }

    fn block(start: u64, end: u64) -> Block {
        Block { start, end }
    }

    #[test]
    fn the_first_acknowledgements_are_quick() {
        let mut receiver = receiver(2);
        for packet in 0..2 {
            assert_eq!(receiver.on_data(Time(0), packet * 100, 100, 1), Reply::Now);
            receiver.acknowledgement();
        }
        let deadline = Time(40 * MILLISECOND);
        assert_eq!(receiver.on_data(Time(0), 200, 100, 1), Reply::Delayed(deadline));
        assert_eq!(receiver.on_data(Time(5), 300, 100, 1), Reply::Unchanged);
        assert!(!receiver.on_deadline(Time(5)));
        assert!(receiver.on_deadline(deadline));
        assert_eq!(receiver.acknowledgement().cumulative, 400);
        assert_eq!(receiver.deadline(), Time::NEVER);
    }

    #[test]
    fn a_merged_run_is_acknowledged_at_once() {
        let mut receiver = receiver(0);
        assert_eq!(receiver.on_data(Time(0), 0, 16 * MSS, 16), Reply::Now);
        assert_eq!(receiver.acknowledgement().cumulative, u64::from(16 * MSS));
    }

    #[test]
    fn gaps_are_reported_newest_first_and_closed() {
        let mut receiver = receiver(0);
        for start in [10, 30, 50, 70] {
            assert_eq!(receiver.on_data(Time(0), start, 10, 1), Reply::Now);
        }
        assert_eq!(receiver.acknowledgement().sack, [block(70, 80), block(50, 60), block(30, 40)]);
        receiver.on_data(Time(0), 20, 10, 1);
        assert_eq!(receiver.acknowledgement().sack, [block(10, 40), block(70, 80), block(50, 60)]);
        assert_eq!(receiver.on_data(Time(0), 0, 10, 1), Reply::Now);
        let ack = receiver.acknowledgement();
        assert_eq!((ack.cumulative, ack.sack), (40, [block(70, 80), block(50, 60), Block::default()]));
        assert_eq!(receiver.on_data(Time(0), 40, 40, 4), Reply::Now);
        let ack = receiver.acknowledgement();
        // This run contained two duplicates. The receiver reports the last duplicate.
        assert_eq!((ack.cumulative, ack.sack), (80, [block(70, 80), Block::default(), Block::default()]));
        assert_eq!(receiver.out_of_order_packets(), 5);
        assert_eq!(receiver.duplicate_bytes(), 20);
    }

    #[test]
    fn duplicates_are_reported_once() {
        let mut receiver = receiver(0);
        receiver.on_data(Time(0), 0, 100, 1);
        receiver.on_data(Time(0), 200, 100, 1);
        assert_eq!(receiver.on_data(Time(0), 0, 100, 1), Reply::Now);
        assert_eq!(receiver.acknowledgement().sack, [block(0, 100), block(200, 300), Block::default()]);
        assert_eq!(receiver.acknowledgement().sack[0], block(200, 300));
        receiver.on_data(Time(0), 220, 30, 1);
        assert_eq!(receiver.acknowledgement().sack[..2], [block(220, 250), block(200, 300)]);
        assert_eq!(receiver.duplicate_bytes(), 130);
    }

    proptest! {
        #[test]
        fn it_delivers_what_a_set_of_bytes_would(
            runs in prop::collection::vec((0_u64..120, 1_u32..20), 1..80)
        ) {
            let mut receiver = receiver(0);
            let mut received = [false; 140];
            let mut duplicates = 0;
            for (start, bytes) in runs {
                let reply = receiver.on_data(Time(0), start, bytes, 1);
                for byte in &mut received[start as usize..(start + u64::from(bytes)) as usize] {
                    duplicates += u64::from(*byte);
                    *byte = true;
                }
                let in_order = received.iter().take_while(|byte| **byte).count() as u64;
                prop_assert_eq!(receiver.delivered(), in_order);
                prop_assert_eq!(receiver.duplicate_bytes(), duplicates);
                if reply == Reply::Now {
                    let ack = receiver.acknowledgement();
                    for block in ack.sack {
                        prop_assert!((block.start..block.end).all(|byte| received[byte as usize]));
                    }
                }
                for pair in receiver.ranges.windows(2) {
                    prop_assert!(pair[0].end < pair[1].start);
                }
                prop_assert!(receiver.ranges.first().is_none_or(|range| range.start > receiver.next));
            }
        }
    }
}
