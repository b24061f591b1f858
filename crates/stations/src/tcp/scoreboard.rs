//! The retransmission queue with its SACK marks.

use std::collections::VecDeque;

use super::Block;
use crate::time::{Span, Time};

/// A SACK block reports the packets as received (`TCPCB_SACKED_ACKED`).
const SACKED: u8 = 1;
/// Marked lost (`TCPCB_LOST`).
const LOST: u8 = 2;
/// Retransmitted, and the retransmission is in flight (`TCPCB_SACKED_RETRANS`).
const RETRANSMITTED: u8 = 4;
/// Retransmitted at least once (`TCPCB_EVER_RETRANS`).
const EVER_RETRANSMITTED: u8 = 8;

const INITIAL_CAPACITY: usize = 8;
/// Largest length of a merged entry, bytes. The limit prevents an overflow of the length's type.
const LARGEST_MERGED: u32 = 1 << 30;

#[derive(Clone, Copy, Debug)]
struct Entry {
    sequence: u64,
    /// When the segment was last sent.
    sent_at: Time,
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

    /// Returns whether the entry is lost and must be retransmitted.
    fn is_due(&self) -> bool {
        self.marks & (LOST | RETRANSMITTED) == LOST
    }
}

/// Transmission time of a packet, and the first byte after it. The order of the values is the order of
/// transmission (RFC 8985, `RACK_sent_after`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentOrder {
    pub sent_at: Time,
    pub end: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Packets acknowledged cumulatively for the first time.
    pub acknowledged: u32,
    /// Packets newly delivered, cumulatively or by SACK.
    pub delivered: u32,
    /// Packets SACKed for the first time.
    pub sacked: u32,
    /// Transmission time of the first cumulatively acknowledged packet that was neither SACKed before nor
    /// ever retransmitted.
    pub first_sent: Option<Time>,
    /// Transmission time of the last cumulatively acknowledged packet that was neither SACKed before nor ever
    /// retransmitted.
    pub last_sent: Option<Time>,
    /// Transmission time of the first newly SACKed packet that was never retransmitted.
    pub first_sacked: Option<Time>,
    /// Transmission time of the last newly SACKed packet that was never retransmitted.
    pub last_sacked: Option<Time>,
    /// Whether a retransmitted packet was acknowledged cumulatively.
    pub retransmission_acknowledged: bool,
    /// The most recently sent of the delivered packets that were never retransmitted.
    pub newest: SentOrder,
    /// The most recently sent of the delivered packets that were retransmitted.
    pub newest_retransmitted: SentOrder,
    /// First byte of the data that the network delivered after later data. Such data is a sign of
    /// reordering.
    pub reordered_from: Option<u64>,
}

impl Progress {
    /// Returns the transmission times of the first and the last packets that give RTT samples; `None` if no
    /// packet gives a sample.
    pub fn round_trips(&self) -> (Option<Time>, Option<Time>) {
        let (mut first, mut last) = (self.first_sent, self.last_sent);
        if self.retransmission_acknowledged {
            // Karn's rule: an acknowledgement that covers a retransmitted packet gives no cumulative sample.
            (first, last) = (None, None);
        }
        (first.or(self.first_sacked), self.last_sacked.or(last))
    }
}

/// Information from an acknowledgement of packets that were sent once and arrived in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub packets: u32,
    pub first_sent: Time,
    /// Transmission order of the last packet.
    pub newest: SentOrder,
}

/// A rule that finds lost packets by their transmission time.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeRule {
    /// The delivered packet that was sent last.
    pub newest: SentOrder,
    /// A packet is lost if it was sent at least `slack` before this time.
    pub limit: Time,
    /// Delay that reordering may cause.
    pub slack: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LostPackets {
    pub packets: u32,
    /// When the packets were last sent.
    pub sent_at: Time,
    /// First byte after the packets.
    pub end: u64,
    /// Number of packets found lost so far, including these packets.
    pub lost_ever: u64,
}

/// The retransmission queue and its sums in packets, with the kernel's names in brackets.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    /// Entries in order of sequence, without gaps. SACKed neighbours are merged. A hole therefore needs
    /// two entries, regardless of the amount of SACKed data above it.
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
    /// Packets marked lost so far, including lost retransmissions (`tcp_sock.lost`).
    lost_ever: u64,
    /// End of the highest SACKed packet.
    highest_sacked: u64,
    /// [`Self::judge_by_count`] has checked the data below this byte.
    judged_to: u64,
    /// Data below this byte is not due for retransmission.
    due_from: u64,
    /// Data from this byte on has no mark.
    marked_to: u64,
    /// Packets found lost since the last [`Self::take_losses`]; `None` if the board does not record
    /// losses.
    losses: Option<Vec<LostPackets>>,
}

impl Scoreboard {
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

    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    pub fn lost(&self) -> u32 {
        self.lost
    }

    pub fn lost_ever(&self) -> u64 {
        self.lost_ever
    }

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

    /// Returns whether no packet is SACKed, lost or retransmitted.
    pub fn is_clean(&self) -> bool {
        self.sacked | self.lost | self.retransmitted == 0
    }

    /// Returns whether the outstanding data has no marks. The sender has then sent it once, and no SACK
    /// block covers it. The data begins at `unacknowledged`.
    #[inline]
    pub fn is_plain(&self, unacknowledged: u64) -> bool {
        unacknowledged >= self.marked_to
    }

    /// Returns when the oldest segment was last sent.
    pub fn oldest_sent_at(&self) -> Option<Time> {
        self.entries.front().map(|entry| entry.sent_at)
    }

    /// Returns the earliest transmission time of all packets that are not SACKed.
    pub fn earliest_sent_at(&self) -> Option<Time> {
        self.entries.iter().filter(|entry| !entry.has(SACKED)).map(|entry| entry.sent_at).min()
    }

    pub fn take_losses(&mut self) -> Vec<LostPackets> {
        self.losses.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the number of entries: segments or parts of segments.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn push(&mut self, now: Time, sequence: u64, payload: u32, packets: u32) {
        self.entries.push_back(Entry { sequence, sent_at: now, payload, packets, marks: 0 });
        self.outstanding += packets;
    }

    /// Removes the newest segment if it begins at `sequence`, has this payload and has no marks.
    /// Returns whether it was removed.
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

    /// Marks a retransmission as due again after it failed to leave the host.
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

    /// Fast path of [`Self::acknowledge`], for outstanding data for which [`Self::is_plain`] is true.
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
                // The difference is less than the entry's payload, so it fits 32 bits.
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
        // The difference is less than the entry's payload, so it fits 32 bits.
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

    /// Handles a SACK block inside the outstanding data (`tcp_sacktag_walk`).
    pub fn sack(&mut self, block: Block, progress: &mut Progress) {
        let mut index = self.first_ending_above(block.start);
        // Update `highest_sacked` after the loop: the block's own data shows no reordering.
        let mut highest = self.highest_sacked;
        while let Some(&entry) = self.entries.get(index) {
            if entry.sequence >= block.end {
                break;
            }
            if entry.has(SACKED) {
                index = self.merge(index);
                continue;
            }
            // Only whole packets count: round the start up and the end down.
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

    /// Merges a SACKed entry into the previous entry, if the previous entry is SACKed, too, and the merged
    /// entry has at most [`LARGEST_MERGED`] bytes. Returns the index of the next entry.
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

    /// Marks data as lost if at least `threshold` packets above it are SACKed (RFC 6675, `IsLost`).
    /// Returns whether it marked any data.
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

    /// Marks data as lost that was sent long enough before delivered data (RFC 8985, section 6.2, step
    /// 5; `tcp_rack_detect_loss`). Returns whether it marked any data, and the time until the last
    /// undecided packet would be lost.
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
                // The remaining entries were sent later. Only a tail loss probe retransmits an entry above an
                // entry that is not lost, and the probe was sent later, too.
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

    /// Marks data as lost that is not SACKed: the first entry, and entries sent at or before
    /// `sent_before` (`tcp_timeout_mark_lost`).
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

    /// Returns the first byte and the length of the first due data, at most `most_packets` packets; `None` if
    /// no data is due.
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

    /// Returns the first byte and the length of the last packet, if it is not SACKed and no retransmission of
    /// it is in flight. A flow without new data sends this packet as its tail loss probe.
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

    /// Records the retransmission of the entry that begins at `sequence`. Returns the number of its
    /// packets.
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

    /// Returns the number of packets between `from` and the end of the highest SACKed packet.
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

    /// Splits an entry in two. The first part has `bytes` bytes.
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

    /// Returns whether the sums match the entries, the entries cover the outstanding data without a gap, and
    /// no entry from `marked_to` on has a mark.
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
