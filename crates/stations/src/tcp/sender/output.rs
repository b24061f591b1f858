//! Decides when to send, how much to send, and the size of segments (net/ipv4/tcp_output.c).

use super::super::{JIFFY, Profile};
use super::{Blocked, PACING_SHIFT, Sender, State, Timer};
use crate::segment::{Segment, truesize};
use crate::time::{MILLISECOND, SECOND, Time};

/// Divisor of the window. A segment of at least this part of the window is sent without deferral
/// (`tcp_tso_win_divisor`).
const DEFER_DIVISOR: u64 = 3;
/// 6.18 defers only if it has sent data within this time, and expects an acknowledgement within this time, or
/// within half a round trip if that is shorter.
const DEFER_HORIZON: u64 = MILLISECOND;
/// Number of packets at the start of a connection that are not paced (`tcp_update_skb_after_send`).
const UNPACED_PACKETS: u64 = 10;

impl Sender {
    /// Returns the next segment, if window, small queue and pacing allow a segment (`tcp_write_xmit`,
    /// `tcp_xmit_retransmit_queue`).
    ///
    /// The host calls this function until it returns a reason to stop. The sender then records whether the
    /// window limited the flow.
    ///
    /// # Errors
    /// Returns the reason to stop.
    #[inline]
    pub fn next_segment(&mut self, now: Time) -> Result<Segment, Blocked> {
        if self.throttled && self.is_still_throttled() {
            return Err(Blocked::SmallQueue);
        }
        let result = if self.probe_due {
            self.loss_probe(now)
        } else if self.board.due() > 0 {
            self.retransmission(now)
        } else {
            self.new_segment(now)
        };
        if result.is_err() {
            self.end_loop(now);
        }
        result
    }

    /// Handles a segment that the qdisc refused (`NET_XMIT_DROP`). The host calls this right after
    /// [`Self::next_segment`], and ends the loop.
    ///
    /// The segment stays in the send queue and counts as freed. The sender reduces the window
    /// (`tcp_enter_cwr`), because the host's queue is congested.
    pub fn refused(&mut self, now: Time, segment: &Segment) {
        self.bytes_below = self.bytes_below.saturating_sub(u64::from(truesize(segment.payload)));
        self.counters.refused_segments += 1;
        let packets = segment.packets();
        if segment.retransmit {
            self.board.undo_retransmission(segment.sequence);
            self.undo_packets = self.undo_packets.map(|undo| undo.saturating_sub(packets));
        } else if self.board.unsend(segment.sequence, segment.payload) {
            self.next = segment.sequence;
            self.head_end = segment.sequence + u64::from(segment.payload);
            self.skb_end = self.skb_end.max(self.head_end);
        }
        self.reduction_sent = self.reduction_sent.saturating_sub(packets);
        self.local_congestion(now);
        self.end_loop(now);
        if self.board.outstanding() == 0 {
            // No acknowledgement will restart the loop (`tcp_check_probe_timer`).
            self.timer = Timer::Retry;
            self.deadline = now + self.round_trip.timeout(0);
        }
    }

    fn new_segment(&mut self, now: Time) -> Result<Segment, Blocked> {
        if self.next == self.written {
            return Err(Blocked::NoData);
        }
        if self.pacing && self.departure > now {
            return Err(Blocked::Pacing(self.departure));
        }
        if self.board.outstanding() == 0 {
            self.restart_after_idle(now);
        }
        let in_flight = self.board.in_flight();
        if in_flight >= self.window.packets {
            return Err(Blocked::Window);
        }
        let room = self.window.packets - in_flight;
        // A segment is at most half of the window, so that at least two segments are in flight
        // (`tcp_cwnd_test`).
        let is_wakeup = std::mem::take(&mut self.wakeup_due);
        let quota = if is_wakeup { 1 } else { room.min((self.window.packets / 2).max(1)).min(self.goal) };
        let most = quota * self.mss;
        if self.profile == Profile::Linux6_18 {
            self.grow_head(most);
        }
        let window_end = self.unacknowledged.saturating_add(self.receive_window);
        let head = self.head_end.min(self.written) - self.next;
        if self.next + head.min(u64::from(self.mss)) > window_end {
            return Err(Blocked::Window);
        }
        let receive_room = window_end - self.next;
        let mut payload = head.min(u64::from(self.mss));
        if head > u64::from(self.mss) {
            if !is_wakeup && self.should_defer(now, room, receive_room, head) {
                return Err(Blocked::Deferred);
            }
            // `tcp_mss_split_point` with Nagle's algorithm off.
            payload = head.min(receive_room).min(u64::from(most));
        }
        // `payload` is at most `quota` packets, so it fits 32 bits.
        let payload = payload as u32;
        self.check_small_queue(payload, 0).inspect_err(|_| {
            // The kernel cuts the skb before this check, so the skb stays cut.
            self.head_end = self.next + u64::from(payload);
        })?;

        let sequence = self.next;
        let packets = if payload <= self.mss { 1 } else { payload.div_ceil(self.mss) };
        self.board.push(now, sequence, payload, packets);
        self.next += u64::from(payload);
        if self.next >= self.head_end {
            if self.skb_end > self.next {
                self.head_end = self.skb_end;
            } else {
                self.start_skb();
            }
        }
        Ok(self.send(now, sequence, payload, packets, false))
    }

    /// Retransmits the first lost data: one packet with 4.4; with 6.18, as many packets as the window and the
    /// segment size allow.
    fn retransmission(&mut self, now: Time) -> Result<Segment, Blocked> {
        if self.pacing && self.departure > now {
            return Err(Blocked::Pacing(self.departure));
        }
        let in_flight = self.board.in_flight();
        if in_flight >= self.window.packets {
            return Err(Blocked::Window);
        }
        let most = match self.profile {
            Profile::Linux4_4 => 1,
            Profile::Linux6_18 => (self.window.packets - in_flight).min(self.goal),
        };
        let Some((sequence, payload)) = self.board.first_due(most) else { return self.new_segment(now) };
        if self.profile == Profile::Linux6_18 {
            self.check_small_queue(payload, 1)?;
        }
        let packets = self.board.retransmit(now, sequence);
        let segment = self.send(now, sequence, payload, packets, true);
        if sequence == self.unacknowledged && self.timer != Timer::Reorder {
            self.timer = Timer::Retransmit;
            self.deadline = now + self.round_trip.timeout(self.backoff);
        }
        Ok(segment)
    }

    /// Returns a packet of new data regardless of the congestion window. Without new data, returns the last
    /// packet (`tcp_send_loss_probe`).
    fn loss_probe(&mut self, now: Time) -> Result<Segment, Blocked> {
        self.probe_due = false;
        let head = self.head_end.min(self.written) - self.next;
        let payload = head.min(u64::from(self.mss));
        if payload > 0 {
            if self.next + payload > self.unacknowledged.saturating_add(self.receive_window) {
                return Err(Blocked::Window);
            }
            // A probe may exceed the congestion window, but not the other limits. If small queues block
            // the probe, the retransmission timer runs.
            self.check_small_queue(payload as u32, 0)?;
            let sequence = self.next;
            self.board.push(now, sequence, payload as u32, 1);
            self.next += payload;
            if self.next >= self.head_end {
                self.start_skb();
            }
            self.counters.probes += 1;
            let segment = self.send(now, sequence, payload as u32, 1, false);
            // A flow sends only one probe, so the retransmission timer stays unchanged.
            self.sent_now = false;
            return Ok(segment);
        }
        if self.probe_end.is_some() {
            return Err(Blocked::NoData);
        }
        let Some((sequence, payload)) = self.board.last_packet() else { return Err(Blocked::NoData) };
        let packets = self.board.retransmit(now, sequence);
        self.probe_end = Some(self.next);
        self.counters.probes += 1;
        Ok(self.send(now, sequence, payload, packets, true))
    }

    /// Accounts for a segment that is passed to the qdisc.
    fn send(&mut self, now: Time, sequence: u64, payload: u32, packets: u32, retransmit: bool) -> Segment {
        self.bytes_below += u64::from(truesize(payload));
        self.counters.segments += 1;
        self.counters.packets += u64::from(packets);
        self.counters.bytes += u64::from(payload);
        if retransmit {
            self.counters.retransmitted_segments += 1;
            self.counters.retransmitted_packets += u64::from(packets);
            *self.undo_packets.get_or_insert(0) += packets;
        } else {
            self.sent_now = true;
            self.last_sent = now;
        }
        if self.state != State::Open {
            self.reduction_sent += packets;
        }
        if let Some(rates) = &mut self.rates {
            let was_idle = !retransmit && self.board.outstanding() == packets;
            rates.on_send(now, was_idle, self.counters.delivered_packets);
            let end = sequence + u64::from(payload);
            rates.stamp_flight(now, end, self.board.in_flight(), self.board.lost_ever());
        }
        let before = self.departure;
        self.departure = before.max(now);
        if self.pacing && self.pacing_rate != u64::MAX && self.counters.packets > UNPACED_PACKETS {
            // A late segment advances its successor by at most half of its own transmission time.
            let span = u64::from(payload) * SECOND / self.pacing_rate.max(1);
            self.departure += span - (span / 2).min(self.departure.since(before));
        }
        Segment { flow: self.flow, hash: self.hash, sequence, payload, mss: self.mss, band: 0, retransmit }
    }

    /// Returns whether small queues certainly still block the flow, so that another attempt would have the
    /// same result. This is the common case after an acknowledgement. If cheap checks cannot show this,
    /// returns false.
    #[inline]
    fn is_still_throttled(&self) -> bool {
        // If the result is true, no check would split the first skb, so only the small queue limit matters.
        let head = self.head_end.min(self.written) - self.next;
        let limit = self.small_queue_limit_for(head as u32).unwrap_or(u64::MAX);
        if self.bytes_below < limit.max(1) || head == 0 || head > u64::from(self.goal * self.mss) {
            return false;
        }
        let packets = self.window.packets;
        let room = packets.saturating_sub(self.board.in_flight()).min(packets / 2);
        head <= u64::from(room) * u64::from(self.mss)
            && self.next + head <= self.unacknowledged.saturating_add(self.receive_window)
            && self.board.outstanding() > 0
            && self.board.due() == 0
            // 6.18 also records a full window after a loop without a segment.
            && !(self.sent_now || self.pacing || self.probe_due || self.profile == Profile::Linux6_18)
    }

    /// Returns whether another attempt to send would change no state; `None` unless
    /// [`Self::is_still_throttled`] returns true.
    #[cfg(test)]
    pub(in super::super) fn trying_again_is_idle(&self, now: Time) -> Option<bool> {
        if !(self.throttled && self.is_still_throttled()) {
            return None;
        }
        let mut again = self.clone();
        let result = again.new_segment(now);
        again.end_loop(now);
        let is_blocked = matches!(result, Err(Blocked::SmallQueue | Blocked::Deferred));
        Some(is_blocked && format!("{again:?}") == format!("{self:?}"))
    }

    /// Returns the limit of the data below TCP before a segment with `payload` bytes; `None` without a limit.
    #[inline]
    fn small_queue_limit_for(&self, payload: u32) -> Option<u64> {
        let cap = self.small_queue_limit?;
        let floor = if self.small_queue_floor { 2 * u64::from(truesize(payload)) } else { 0 };
        Some(floor.max(self.pacing_rate >> PACING_SHIFT).min(u64::from(cap)))
    }

    /// Checks the limit of TCP small queues, multiplied by 2 to the power of `doublings`
    /// (`tcp_small_queue_check`).
    fn check_small_queue(&mut self, payload: u32, doublings: u32) -> Result<(), Blocked> {
        let Some(limit) = self.small_queue_limit_for(payload) else { return Ok(()) };
        // `sk_wmem_alloc` is 1 higher (`sk_alloc`), so two skbs of this size exceed a limit of two skbs. With
        // no data below TCP, no completion would restart the flow.
        if self.bytes_below == 0 || self.bytes_below < limit << doublings {
            return Ok(());
        }
        if self.profile == Profile::Linux6_18 && self.board.len() <= 1 {
            return Ok(());
        }
        self.throttled = true;
        Err(Blocked::SmallQueue)
    }

    /// Returns whether the sender should wait for acknowledgements, so that the segment becomes larger
    /// (`tcp_tso_should_defer`). The windows have room for `room` packets and `receive_room` bytes. The
    /// first skb has `head` bytes.
    fn should_defer(&mut self, now: Time, room: u32, receive_room: u64, head: u64) -> bool {
        if self.state >= State::Recovery {
            return false;
        }
        let mss = u64::from(self.mss);
        let congestion_room = u64::from(room) * mss;
        let limit = congestion_room.min(receive_room);
        // This check comes first because it decides the most common case.
        if limit >= u64::from(self.goal) * mss {
            return false;
        }
        let recent = match self.profile {
            Profile::Linux4_4 => now.0 / JIFFY <= self.last_sent.0 / JIFFY,
            Profile::Linux6_18 => now.since(self.departure) <= DEFER_HORIZON,
        };
        if !recent {
            return false;
        }
        let is_last = self.next + head == self.written;
        if !is_last && limit >= head {
            return false;
        }
        let window = self.receive_window.min(u64::from(self.window.packets) * mss);
        if limit >= window / DEFER_DIVISOR {
            return false;
        }
        let Some(oldest) = self.board.oldest_sent_at() else { return false };
        let rtt = self.round_trip.smoothed();
        let soon = match self.profile {
            Profile::Linux4_4 => now.since(oldest) >= rtt / 2,
            Profile::Linux6_18 => (oldest + rtt).since(now) <= (rtt / 2).min(DEFER_HORIZON),
        };
        if soon && congestion_room < receive_room && congestion_room <= head {
            self.limited_now = true;
        }
        soon
    }

    /// Fills up a short first skb from the next skb (`tcp_grow_skb`).
    fn grow_head(&mut self, most: u32) {
        let target = self.next + u64::from(most);
        let end = self.head_end.min(self.written);
        if end >= target || end == self.written {
            return;
        }
        let next_end = if self.head_end < self.skb_end { self.skb_end } else { end + self.skb_bytes() };
        self.head_end = target.min(next_end);
        if self.head_end > self.skb_end {
            self.skb_end = next_end;
        }
    }

    /// Starts a new skb at the next byte (`tcp_sendmsg`, `tcp_xmit_size_goal`).
    pub(super) fn start_skb(&mut self) {
        self.head_end = self.next + self.skb_bytes();
        self.skb_end = self.head_end;
    }

    fn skb_bytes(&self) -> u64 {
        u64::from(self.largest) * u64::from(self.mss)
    }

    /// Ends a loop of [`Self::next_segment`]. Records whether the window limited the flow, and arms the
    /// timer.
    fn end_loop(&mut self, now: Time) {
        self.limited_now |= self.board.in_flight() >= self.window.packets;
        if self.sent_now || (self.limited_now && self.profile == Profile::Linux6_18) {
            self.validate_window(now);
        }
        if self.sent_now && self.timer != Timer::Reorder {
            self.arm_timer(now, false);
        }
        self.sent_now = false;
        self.limited_now = false;
    }

    /// Records the use of the window (`tcp_cwnd_validate`).
    fn validate_window(&mut self, now: Time) {
        let outstanding = self.board.outstanding();
        let new_round = self.unacknowledged >= self.usage_end;
        let note = match self.profile {
            Profile::Linux4_4 => new_round || outstanding > self.most_outstanding,
            Profile::Linux6_18 => {
                new_round || self.limited_now || (!self.window_limited && outstanding > self.most_outstanding)
            }
        };
        if note {
            self.window_limited = self.limited_now;
            self.most_outstanding = outstanding;
            self.usage_end = self.next;
        }
        if self.is_window_limited() {
            self.window_used = 0;
            self.window_full_at = now;
        } else {
            self.window_used = self.window_used.max(outstanding);
            if now.since(self.window_full_at) >= self.round_trip.timeout(self.backoff) {
                self.shrink_unused_window(now);
            }
        }
    }

    /// Returns whether the window may grow (`tcp_is_cwnd_limited`).
    pub(super) fn is_window_limited(&self) -> bool {
        let in_slow_start = self.window.in_slow_start();
        let used = self.window.packets < self.most_outstanding.saturating_mul(2);
        match self.profile {
            Profile::Linux4_4 if in_slow_start => used,
            Profile::Linux4_4 => self.window_limited,
            Profile::Linux6_18 => self.window_limited || (in_slow_start && used),
        }
    }

    /// Shrinks the window if the flow has not used it during a timeout (RFC 2861;
    /// `tcp_cwnd_application_limited`). If the send buffer is full, the window stays, because the host limits
    /// the flow, not the application.
    fn shrink_unused_window(&mut self, now: Time) {
        if self.state == State::Open && !self.buffer_full && self.rates.is_none() {
            let used = self.window_used.max(self.initial_window);
            if used < self.window.packets {
                self.window.threshold = self.window.remembered_threshold();
                self.window.packets = (self.window.packets + used) / 2;
            }
            self.window_used = 0;
        }
        self.window_full_at = now;
    }

    /// Handles the start of sending after idle time (`tcp_slow_start_after_idle_check`, `CA_EVENT_TX_START`).
    fn restart_after_idle(&mut self, now: Time) {
        if self.counters.packets == 0 {
            // The time before the application's first write is not idle time of the flow.
            self.window_full_at = now;
            return;
        }
        let idle = now.since(self.last_sent);
        let timeout = self.round_trip.timeout(self.backoff);
        if idle > timeout && self.rates.is_none() {
            self.window.restart(idle, timeout, self.initial_window);
            self.window_full_at = now;
            self.window_used = 0;
        }
        if self.rates.as_ref().is_some_and(|rates| rates.is_app_limited())
            && let Some((control, mut controls)) = self.window.controlled(&mut self.pacing_rate)
        {
            control.on_restart(now, self.mss, &mut controls);
        }
        self.window.resume(now, idle);
        // Count the idle time only once, even if the loop runs several times before it sends a segment.
        self.last_sent = now;
    }

    /// Sets the timer of the outstanding data: the retransmission timeout or, before it, a tail loss probe
    /// (`tcp_rearm_rto`, `tcp_schedule_loss_probe`). `advanced`: whether an acknowledgement of new data
    /// caused the call.
    pub(super) fn arm_timer(&mut self, now: Time, advanced: bool) {
        if self.board.outstanding() == 0 {
            self.timer = Timer::Idle;
            self.deadline = Time::NEVER;
            return;
        }
        let timeout = self.round_trip.timeout(self.backoff);
        // An acknowledgement of new data restarts the timer at the present time (RFC 6298, section 5.3). This
        // case also avoids access to the oldest entry, which may not be in the CPU cache.
        let from = if advanced { now } else { self.board.oldest_sent_at().unwrap_or(now) };
        self.timer = Timer::Retransmit;
        self.deadline = (from + timeout).max(now);
        if self.state != State::Open || self.backoff > 0 {
            return;
        }
        // Linux 4.4 probes only if the window or the application limits the flow.
        let has_room = self.window.packets > self.board.in_flight() && self.next < self.written;
        if has_room && self.profile == Profile::Linux4_4 {
            return;
        }
        let rtt = self.round_trip.smoothed();
        let alone = self.board.outstanding() == 1;
        let probe = match (rtt, self.profile) {
            (0, _) => SECOND,
            // Linux 4.4 allows for the receiver's longest delay of an acknowledgement, 200 ms.
            (_, Profile::Linux4_4) if alone => (rtt + rtt / 2 + 200 * MILLISECOND).max(2 * rtt),
            (_, Profile::Linux4_4) => (2 * rtt).max(10 * MILLISECOND),
            (_, Profile::Linux6_18) if alone => 2 * rtt + self.minimum_timeout,
            (_, Profile::Linux6_18) => 2 * rtt + 2 * MILLISECOND,
        };
        if now + probe < self.deadline || self.deadline == now {
            self.deadline = now + probe.min(timeout);
        }
        self.timer = Timer::Probe;
    }
}
