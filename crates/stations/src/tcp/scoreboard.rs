//! The retransmission queue with its SACK marks.

use std::collections::VecDeque;

use super::Block;
use crate::time::{Span, Time};

/// Received out of order, according to a SACK block (`TCPCB_SACKED_ACKED`).
const SACKED: u8 = 1;
/// Marked lost (`TCPCB_LOST`).
const LOST: u8 = 2;
/// Retransmitted, and that retransmission is in flight (`TCPCB_SACKED_RETRANS`).
const RETRANSMITTED: u8 = 4;
/// Retransmitted at least once (`TCPCB_EVER_RETRANS`).
const EVER_RETRANSMITTED: u8 = 8;

/// Capacity of a new flow's queue, entries.
const INITIAL_CAPACITY: usize = 8;
/// Larger entries are not merged, so that the length fits its type, bytes.
const LARGEST_MERGED: u32 = 1 << 30;

/// A sent segment, or a part of one.
#[derive(Clone, Copy, Debug)]
struct Entry {
    sequence: u64,
    /// When it was last sent.
    sent_at: Time,
    /// Payload, bytes.
    payload: u32,
    /// Number of packets after segmentation (`tcp_skb_pcount`).
    packets: u32,
    /// A set of `SACKED`, `LOST`, `RETRANSMITTED` and `EVER_RETRANSMITTED`.
    marks: u8,
}

impl Entry {
    fn end(&self) -> u64 {
        self.sequence + u64::from(self.payload)
    }

    fn has(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }

    /// Returns whether it is lost and must be retransmitted.
    fn is_due(&self) -> bool {
        self.marks & (LOST | RETRANSMITTED) == LOST
    }
}

/// Transmission time and end of a delivered packet. Their order is that of transmission (RFC 8985,
/// `RACK_sent_after`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentOrder {
    pub sent_at: Time,
    /// First byte after the packet.
    pub end: u64,
}

/// Information from one acknowledgement.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Packets acknowledged cumulatively for the first time.
    pub acknowledged: u32,
    /// Packets newly delivered, cumulatively or by SACK.
    pub delivered: u32,
    /// Packets SACKed for the first time.
    pub sacked: u32,
    /// Transmission time of the first cumulatively acknowledged packet that was never retransmitted.
    pub first_sent: Option<Time>,
    /// Transmission time of the last such packet.
    pub last_sent: Option<Time>,
    /// Transmission time of the first newly SACKed packet that was never retransmitted.
    pub first_sacked: Option<Time>,
    /// Transmission time of the last such packet.
    pub last_sacked: Option<Time>,
    /// A retransmitted packet was acknowledged cumulatively.
    pub retransmission_acknowledged: bool,
    /// The most recently sent of the delivered packets that were never retransmitted.
    pub newest: SentOrder,
    /// The most recently sent of the delivered packets that were retransmitted.
    pub newest_retransmitted: SentOrder,
    /// First byte of the data that the network delivered after later data (reordering).
    pub reordered_from: Option<u64>,
}

impl Progress {
    /// Returns the transmission times of the first and the last packets that give RTT samples.
    pub fn round_trips(&self) -> (Option<Time>, Option<Time>) {
        let (mut first, mut last) = (self.first_sent, self.last_sent);
        if self.retransmission_acknowledged {
            // Karn's rule.
            (first, last) = (None, None);
        }
        (first.or(self.first_sacked), self.last_sacked.or(last))
    }
}

/// Information from an acknowledgement of packets that were sent once and arrived in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    /// Packets acknowledged, at least 1.
    pub packets: u32,
    /// Transmission time of the first packet.
    pub first_sent: Time,
    /// Transmission order of the last packet.
    pub newest: SentOrder,
}

/// The rule that marks a packet lost by its transmission time.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeRule {
    /// The most recently sent packet of those delivered.
    pub newest: SentOrder,
    /// Packets sent `slack` before this are lost.
    pub limit: Time,
    /// Delay that reordering may cause.
    pub slack: Span,
}

/// Packets found lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LostPackets {
    pub packets: u32,
    /// When they were last sent.
    pub sent_at: Time,
    /// First byte after them.
    pub end: u64,
    /// Packets found lost up to and including these.
    pub lost_ever: u64,
}

/// The retransmission queue and its sums in packets, with the kernel's names in brackets.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    /// Ordered by sequence, without gaps. SACKed neighbours are merged: a hole needs two entries, however
    /// much SACKed data is above it.
    entries: VecDeque<Entry>,
    mss: u32,
    /// Unacknowledged packets (`packets_out`).
    outstanding: u32,
    /// SACKed packets (`sacked_out`).
    sacked: u32,
    /// Packets marked lost (`lost_out`).
    lost: u32,
    /// Retransmissions in flight (`retrans_out`).
    retransmitted: u32,
    /// Packets marked lost whose retransmission is not in flight.
    due: u32,
    /// Packets marked lost so far, lost retransmissions included (`tcp_sock.lost`).
    lost_ever: u64,
    /// End of the highest SACKed packet.
    highest_sacked: u64,
    /// Data below this byte has been checked by [`Self::judge_by_count`].
    judged_to: u64,
    /// Data below this byte is not due.
    due_from: u64,
    /// Data from this byte on has no mark.
    marked_to: u64,
    /// Packets found lost since the last [`Self::take_losses`]; `None` if not recorded.
    losses: Option<Vec<LostPackets>>,
}

impl Scoreboard {
    /// Creates a board that records which packets it finds lost.
    pub fn recording_losses(mss: u32) -> Self {
        Self { losses: Some(Vec::new()), ..Self::new(mss) }
    }

    pub fn new(mss: u32) -> Self {
        Self {
            entries: VecDeque::with_capacity(INITIAL_CAPACITY),
            mss,
            outstanding: 0,
            sacked: 0,
            lost: 0,
            retransmitted: 0,
            due: 0,
            lost_ever: 0,
            highest_sacked: 0,
            judged_to: 0,
            due_from: 0,
            marked_to: 0,
            losses: None,
        }
    }

    /// Returns the number of unacknowledged packets.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns the number of SACKed packets.
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Returns the number of packets marked lost.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns how many packets were marked lost so far.
    pub fn lost_ever(&self) -> u64 {
        self.lost_ever
    }

    /// Returns the number of retransmitted packets in flight.
    pub fn retransmitted(&self) -> u32 {
        self.retransmitted
    }

    /// Returns the number of packets that must be retransmitted.
    pub fn due(&self) -> u32 {
        self.due
    }

    /// Returns the number of packets in flight (`tcp_packets_in_flight`).
    pub fn in_flight(&self) -> u32 {
        self.outstanding - self.sacked - self.lost + self.retransmitted
    }

    /// Returns whether recovery has no work.
    pub fn is_clean(&self) -> bool {
        self.sacked | self.lost | self.retransmitted == 0
    }

    /// Returns whether the outstanding data, which begins at `unacknowledged`, has no marks: all of it was
    /// sent once, and no SACK block covers it.
    #[inline]
    pub fn is_plain(&self, unacknowledged: u64) -> bool {
        unacknowledged >= self.marked_to
    }

    /// Returns when the oldest segment was last sent.
    pub fn oldest_sent_at(&self) -> Option<Time> {
        self.entries.front().map(|entry| entry.sent_at)
    }

    /// Returns when the earliest packet was last sent of those that may still arrive.
    pub fn earliest_sent_at(&self) -> Option<Time> {
        self.entries.iter().filter(|entry| !entry.has(SACKED)).map(|entry| entry.sent_at).min()
    }

    /// Returns the recorded losses, which it forgets.
    pub fn take_losses(&mut self) -> Vec<LostPackets> {
        self.losses.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the number of entries: segments or parts of segments.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a segment that has just been sent.
    pub fn push(&mut self, now: Time, sequence: u64, payload: u32, packets: u32) {
        self.entries.push_back(Entry { sequence, sent_at: now, payload, packets, marks: 0 });
        self.outstanding += packets;
    }

    /// Removes the newest segment, if it is this one and has no marks. Returns whether it did.
    pub fn unsend(&mut self, sequence: u64, payload: u32) -> bool {
        match self.entries.back() {
            Some(last) if last.sequence == sequence && last.payload == payload && last.marks == 0 => {
                self.outstanding -= last.packets;
                self.entries.pop_back();
                true
            }
            _ => false,
        }
    }

    /// Marks a retransmission that did not leave the host as due again.
    pub fn undo_retransmission(&mut self, sequence: u64) {
        let index = self.first_ending_above(sequence);
        if self.entries.get(index).is_some_and(|entry| entry.has(RETRANSMITTED)) {
            self.change(index, |entry| entry.marks &= !RETRANSMITTED);
            self.due_from = self.due_from.min(sequence);
        }
    }

    /// Removes all data below `cumulative`, which has arrived.
    pub fn acknowledge(&mut self, cumulative: u64, progress: &mut Progress) {
        while let Some(&entry) = self.entries.front() {
            if entry.end() > cumulative {
                if entry.sequence < cumulative {
                    self.trim(cumulative, progress);
                }
                return;
            }
            self.entries.pop_front();
            if entry.marks == 0 {
                self.outstanding -= entry.packets;
            } else {
                self.count_out(&entry);
            }
            self.credit(&entry, entry.packets, progress);
        }
    }

    /// Handles the same as [`Self::acknowledge`] if [`Self::is_plain`] holds for the outstanding data.
    /// Returns `None` if less than a packet was acknowledged.
    #[inline]
    pub fn acknowledge_plain(&mut self, cumulative: u64) -> Option<Delivery> {
        let mut delivery: Option<Delivery> = None;
        while let Some(entry) = self.entries.front_mut() {
            let (sent_at, mut end, mut packets) = (entry.sent_at, entry.end(), entry.packets);
            let is_whole = end <= cumulative;
            if is_whole {
                self.entries.pop_front();
            } else if entry.sequence < cumulative {
                // Less than the entry's payload, so it fits.
                entry.payload = (end - cumulative) as u32;
                entry.packets = entry.payload.div_ceil(self.mss).min(packets);
                entry.sequence = cumulative;
                packets -= entry.packets;
                end = cumulative;
            } else {
                break;
            }
            if packets > 0 {
                self.outstanding -= packets;
                let before = delivery.map_or((0, sent_at), |before| (before.packets, before.first_sent));
                delivery = Some(Delivery {
                    packets: before.0 + packets,
                    first_sent: before.1,
                    newest: SentOrder { sent_at, end },
                });
            }
            if !is_whole {
                break;
            }
        }
        delivery
    }

    /// Removes the acknowledged part of the front segment (`tcp_tso_acked`).
    fn trim(&mut self, cumulative: u64, progress: &mut Progress) {
        let Some(&entry) = self.entries.front() else { return };
        // Less than the entry's payload, so it fits.
        let bytes = (cumulative - entry.sequence) as u32;
        let rest = entry.payload - bytes;
        let packets = rest.div_ceil(self.mss).min(entry.packets);
        self.change(0, |entry| {
            entry.sequence = cumulative;
            entry.payload = rest;
            entry.packets = packets;
        });
        if packets < entry.packets {
            self.credit(&Entry { payload: bytes, ..entry }, entry.packets - packets, progress);
        }
    }

    /// Records a cumulative acknowledgement of `packets` packets of an entry.
    fn credit(&self, entry: &Entry, packets: u32, progress: &mut Progress) {
        progress.acknowledged += packets;
        progress.retransmission_acknowledged |= entry.has(EVER_RETRANSMITTED);
        if entry.has(SACKED) {
            return;
        }
        progress.delivered += packets;
        self.note_delivery(entry, progress);
        if !entry.has(EVER_RETRANSMITTED) {
            progress.first_sent.get_or_insert(entry.sent_at);
            progress.last_sent = Some(entry.sent_at);
        }
    }

    fn note_delivery(&self, entry: &Entry, progress: &mut Progress) {
        let order = SentOrder { sent_at: entry.sent_at, end: entry.end() };
        if entry.has(EVER_RETRANSMITTED) {
            progress.newest_retransmitted = progress.newest_retransmitted.max(order);
            return;
        }
        progress.newest = progress.newest.max(order);
        if entry.sequence < self.highest_sacked {
            let from = progress.reordered_from.get_or_insert(entry.sequence);
            *from = (*from).min(entry.sequence);
        }
    }

    /// Handles a SACK block (`tcp_sacktag_walk`). The caller has checked that it is inside the outstanding
    /// data.
    pub fn sack(&mut self, block: Block, progress: &mut Progress) {
        let mut index = self.first_ending_above(block.start);
        // SACKed data above this block shows reordering.
        let mut highest = self.highest_sacked;
        while let Some(&entry) = self.entries.get(index) {
            if entry.sequence >= block.end {
                break;
            }
            if entry.has(SACKED) {
                index = self.merge(index);
                continue;
            }
            // Only whole packets count: the start is rounded up, the end down.
            let skipped = block.start.saturating_sub(entry.sequence).div_ceil(u64::from(self.mss))
                * u64::from(self.mss);
            if skipped > 0 {
                if skipped < u64::from(entry.payload) {
                    self.split(index, skipped as u32);
                }
                index += 1;
                continue;
            }
            if entry.end() > block.end {
                let covered = (block.end - entry.sequence) as u32 / self.mss * self.mss;
                if covered == 0 {
                    break;
                }
                self.split(index, covered);
            }
            let entry = self.entries[index];
            self.note_delivery(&entry, progress);
            progress.sacked += entry.packets;
            progress.delivered += entry.packets;
            if !entry.has(EVER_RETRANSMITTED) {
                progress.first_sacked.get_or_insert(entry.sent_at);
                progress.last_sacked = Some(entry.sent_at);
            }
            highest = highest.max(entry.end());
            self.change(index, |entry| {
                entry.marks = (entry.marks | SACKED) & !(LOST | RETRANSMITTED);
            });
            index = self.merge(index);
        }
        self.highest_sacked = highest;
    }

    /// Merges a SACKED entry into the previous one, if that is SACKED too. Returns the index of the next one.
    fn merge(&mut self, index: usize) -> usize {
        let entry = self.entries[index];
        let Some(before) = index.checked_sub(1) else { return index + 1 };
        let previous = &mut self.entries[before];
        if !previous.has(SACKED) || previous.payload + entry.payload > LARGEST_MERGED {
            return index + 1;
        }
        previous.payload += entry.payload;
        previous.packets += entry.packets;
        previous.marks |= entry.marks;
        self.entries.remove(index);
        index
    }

    /// Marks data with at least `threshold` SACKed packets above it as lost (RFC 6675, `IsLost`). Returns
    /// whether it marked any.
    pub fn judge_by_count(&mut self, threshold: u32) -> bool {
        if self.sacked < threshold.max(1) {
            return false;
        }
        let mut index = self.first_ending_above(self.highest_sacked);
        let mut above = 0;
        while index > 0 && above < threshold {
            index -= 1;
            let entry = &self.entries[index];
            if entry.has(SACKED) {
                above += entry.packets;
            }
        }
        let mut any = false;
        let from = self.first_ending_above(self.judged_to);
        for candidate in from..index {
            if !self.entries[candidate].has(SACKED | LOST) {
                self.take_for_lost(candidate);
                any = true;
            }
        }
        if let Some(entry) = self.entries.get(index) {
            self.judged_to = self.judged_to.max(entry.sequence);
        }
        any
    }

    /// Marks data as lost that was sent long enough before delivered data (RFC 8985, section 6.2, step 5;
    /// `tcp_rack_detect_loss`). Returns whether it marked any, and the time until the last undecided packet
    /// would be lost.
    pub fn judge_by_time(&mut self, rule: TimeRule) -> (bool, Span) {
        let (mut any, mut wait) = (false, 0);
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            if entry.has(SACKED) || entry.is_due() {
                continue;
            }
            if rule.newest <= (SentOrder { sent_at: entry.sent_at, end: entry.end() }) {
                if entry.has(EVER_RETRANSMITTED) {
                    continue;
                }
                // Entries from here on were sent later, or were marked lost and retransmitted. A
                // retransmitted entry is never above one that is not lost.
                break;
            }
            let remaining = (entry.sent_at + rule.slack).since(rule.limit);
            if remaining == 0 {
                self.take_for_lost(index);
                any = true;
            } else {
                wait = wait.max(remaining);
            }
        }
        (any, wait)
    }

    /// Marks data that is not SACKed as lost: always the first entry, and others sent before `sent_before`
    /// (`tcp_timeout_mark_lost`).
    pub fn judge_all_lost(&mut self, sent_before: Time) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if !entry.has(SACKED) && !entry.is_due() && (index == 0 || entry.sent_at <= sent_before) {
                self.take_for_lost(index);
            }
        }
    }

    fn take_for_lost(&mut self, index: usize) {
        let Entry { packets, sent_at, .. } = self.entries[index];
        self.lost_ever += u64::from(packets);
        if let Some(losses) = &mut self.losses {
            let end = self.entries[index].end();
            losses.push(LostPackets { packets, sent_at, end, lost_ever: self.lost_ever });
        }
        self.change(index, |entry| entry.marks = (entry.marks | LOST) & !RETRANSMITTED);
        self.due_from = self.due_from.min(self.entries[index].sequence);
    }

    /// Returns the first due data, at most this many packets: its first byte and its length.
    pub fn first_due(&mut self, most_packets: u32) -> Option<(u64, u32)> {
        if self.due == 0 {
            return None;
        }
        let from = self.first_ending_above(self.due_from);
        let index = (from..self.entries.len()).find(|&index| self.entries[index].is_due())?;
        let most = self.mss.saturating_mul(most_packets);
        if self.entries[index].payload > most {
            self.split(index, most);
        }
        let entry = &self.entries[index];
        self.due_from = entry.sequence;
        Some((entry.sequence, entry.payload))
    }

    /// Returns the last packet, if it is neither SACKed nor retransmitted: its first byte and its length. A
    /// flow without new data sends it as the tail loss probe.
    pub fn last_packet(&mut self) -> Option<(u64, u32)> {
        let last = self.entries.back()?;
        if last.has(SACKED | RETRANSMITTED) {
            return None;
        }
        let before = (last.packets - 1) * self.mss;
        if last.packets > 1 && before < last.payload {
            self.split(self.entries.len() - 1, before);
        }
        let last = self.entries.back()?;
        Some((last.sequence, last.payload))
    }

    /// Records the retransmission of the entry that begins at this byte. Returns the number of its packets.
    pub fn retransmit(&mut self, now: Time, sequence: u64) -> u32 {
        let index = self.first_ending_above(sequence);
        if index >= self.entries.len() {
            return 0;
        }
        self.change(index, |entry| {
            entry.marks |= RETRANSMITTED | EVER_RETRANSMITTED;
            entry.sent_at = now;
        });
        self.entries[index].packets
    }

    /// Returns the number of packets between this byte and the end of the highest SACKed packet.
    pub fn distance_to_highest(&self, from: u64) -> u32 {
        let packets = self.highest_sacked.saturating_sub(from).div_ceil(u64::from(self.mss));
        u32::try_from(packets).unwrap_or(u32::MAX)
    }

    fn first_ending_above(&self, sequence: u64) -> usize {
        match self.entries.front() {
            Some(front) if front.end() <= sequence => {
                self.entries.partition_point(|entry| entry.end() <= sequence)
            }
            _ => 0,
        }
    }

    /// Splits an entry in two; the first part has `bytes` bytes.
    fn split(&mut self, index: usize, bytes: u32) {
        let entry = self.entries[index];
        let rest = entry.payload - bytes;
        let second = Entry {
            sequence: entry.sequence + u64::from(bytes),
            payload: rest,
            packets: rest.div_ceil(self.mss),
            ..entry
        };
        let packets = bytes.div_ceil(self.mss);
        self.change(index, |entry| {
            entry.payload = bytes;
            entry.packets = packets;
        });
        self.count_in(&second);
        self.entries.insert(index + 1, second);
    }

    /// Changes an entry and updates the sums.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Entry)) {
        let mut entry = self.entries[index];
        self.count_out(&entry);
        change(&mut entry);
        self.count_in(&entry);
        if entry.marks != 0 {
            self.marked_to = self.marked_to.max(entry.end());
        }
        self.entries[index] = entry;
    }

    fn count_in(&mut self, entry: &Entry) {
        let packets = entry.packets;
        let counted = |marks| if entry.has(marks) { packets } else { 0 };
        self.outstanding += packets;
        self.sacked += counted(SACKED);
        self.lost += counted(LOST);
        self.retransmitted += counted(RETRANSMITTED);
        self.due += if entry.is_due() { packets } else { 0 };
    }

    fn count_out(&mut self, entry: &Entry) {
        let packets = entry.packets;
        let counted = |marks| if entry.has(marks) { packets } else { 0 };
        self.outstanding -= packets;
        self.sacked -= counted(SACKED);
        self.lost -= counted(LOST);
        self.retransmitted -= counted(RETRANSMITTED);
        self.due -= if entry.is_due() { packets } else { 0 };
    }

    /// Returns whether the sums match the entries, and the entries have no gap.
    #[cfg(test)]
    pub fn is_consistent(&self, unacknowledged: u64, next: u64) -> bool {
        let mut fresh = Self::new(self.mss);
        let mut expected = unacknowledged;
        for entry in &self.entries {
            if entry.sequence != expected || entry.payload == 0 || entry.packets == 0 {
                return false;
            }
            expected = entry.end();
            fresh.count_in(entry);
        }
        let sums =
            |board: &Self| (board.outstanding, board.sacked, board.lost, board.retransmitted, board.due);
        let is_plain = |entry: &Entry| entry.sequence < self.marked_to || entry.marks == 0;
        expected == next && sums(&fresh) == sums(self) && self.entries.iter().all(is_plain)
    }
}

#[cfg(test)]
mod tests;
