//! Handling of acknowledgements (net/ipv4/tcp_input.c, `tcp_ack`).

use super::super::cubic::DelaySample;
use super::super::rate_control::{Acknowledged, FlightSample};
use super::super::scoreboard::Progress;
use super::super::{Ack, Block, Profile};
use super::{INITIAL_REORDERING, Sender, State, Timer, is_duplicate_report};
use crate::time::{Span, Time};

/// Upper limit of the detected reordering, packets (`tcp_max_reordering`).
const MOST_REORDERING: u32 = 300;

impl Sender {
    /// Handles an acknowledgement. Ignores an acknowledgement of data that was never sent.
    #[inline]
    pub fn on_ack(&mut self, now: Time, ack: &Ack) {
        if ack.cumulative > self.next {
            return;
        }
        let is_plain = self.state == State::Open
            && ack.cumulative > self.unacknowledged
            && ack.sack[0].is_empty()
            && self.rates.is_none()
            && self.board.is_plain(self.unacknowledged);
        if is_plain {
            self.on_plain_ack(now, ack.cumulative);
        } else {
            self.on_any_ack(now, ack);
        }
    }

    /// Handles an acknowledgement. `is_marked`: whether it has the flag ECE.
    pub fn on_ack_with_mark(&mut self, now: Time, ack: &Ack, is_marked: bool) {
        let before = self.counters.delivered_packets;
        self.on_ack(now, ack);
        let delivered = self.counters.delivered_packets - before;
        if self.window.on_mark_report(is_marked, delivered, self.unacknowledged, self.next) {
            self.enter_reduction(now);
        }
    }

    /// Returns whether switches may mark the flow's packets (ECN).
    #[must_use]
    pub fn uses_ecn(&self) -> bool {
        self.window.uses_ecn()
    }

    /// Fast path of [`Self::on_any_ack`]: the acknowledgement covers new data, and no outstanding data is
    /// SACKed, lost or retransmitted.
    #[inline]
    fn on_plain_ack(&mut self, now: Time, cumulative: u64) {
        self.unacknowledged = cumulative;
        let delivery = self.board.acknowledge_plain(cumulative);
        self.backoff = 0;
        if self.probe_end.is_some_and(|end| cumulative >= end) {
            self.probe_end = None;
        }
        if let Some(delivery) = delivery {
            self.measure(now, Some(delivery.first_sent), Some(delivery.newest.sent_at));
        }
        self.arm_timer(now, true);
        if let Some(delivery) = delivery {
            self.counters.delivered_packets += u64::from(delivery.packets);
            if delivery.newest > self.newest {
                self.newest = delivery.newest;
                self.newest_rtt = now.since(self.newest.sent_at);
            }
            self.grow_window(now, delivery.packets);
        }
        self.update_pacing_rate();
    }

    fn on_any_ack(&mut self, now: Time, ack: &Ack) {
        let cumulative = ack.cumulative.max(self.unacknowledged);
        let advanced = cumulative > self.unacknowledged;
        let (in_flight_before, lost_before) = (self.board.in_flight(), self.board.lost_ever());
        let mut progress = Progress::default();
        self.unacknowledged = cumulative;
        if advanced {
            self.board.acknowledge(cumulative, &mut progress);
            self.backoff = 0;
        }
        if !ack.sack[0].is_empty() {
            self.take_sack(ack, cumulative, &mut progress);
        }
        if advanced && self.probe_end.is_some_and(|end| cumulative >= end) {
            self.probe_end = None;
        }
        let (first, last) = progress.round_trips();
        self.measure(now, first, last);
        if advanced {
            self.arm_timer(now, true);
        }
        self.counters.delivered_packets += u64::from(progress.delivered);

        let mut lost = false;
        let was_recovering = self.state == State::Recovery;
        if self.state != State::Open || !self.board.is_clean() {
            self.note_newest(now, &progress);
            self.note_reordering(&progress);
            lost = self.react(now, advanced);
        } else if progress.delivered > 0 {
            self.note_newest(now, &progress);
        }
        if self.rates.is_some() {
            self.control(now, last, in_flight_before, self.board.lost_ever() - lost_before, &progress);
        } else if self.is_reducing() {
            self.reduce_in_proportion(advanced, lost, !was_recovering, &progress);
        } else {
            // Without reordering, only cumulative progress counts (`tcp_may_raise_cwnd`).
            let may_grow = advanced || (self.reordering > INITIAL_REORDERING && progress.delivered > 0);
            let packets = match self.profile {
                Profile::Linux4_4 => progress.acknowledged,
                Profile::Linux6_18 => progress.delivered,
            };
            self.grow_window(now, if may_grow { packets } else { 0 });
        }
        if self.rates.is_none() && (advanced || progress.delivered > 0) {
            self.update_pacing_rate();
        }
    }

    /// Lets the algorithm set window and pacing rate (`tcp_rate_gen`, `tcp_cong_control`). `last` is
    /// the transmission time of the last packet with an RTT sample.
    fn control(
        &mut self,
        now: Time,
        last: Option<Time>,
        in_flight_before: u32,
        lost: u64,
        progress: &Progress,
    ) {
        let Some(rates) = &mut self.rates else { return };
        let delivered_ever = self.counters.delivered_packets;
        let newest = progress.newest.max(progress.newest_retransmitted);
        let rate = if progress.delivered > 0 {
            rates.on_delivery(now, newest.sent_at, delivered_ever, self.round_trip.minimum())
        } else {
            None
        };
        let ack = Acknowledged {
            now,
            rate,
            rtt: last.map(|sent| now.since(sent)),
            delivered: progress.delivered,
            delivered_ever,
            lost: u32::try_from(lost).unwrap_or(u32::MAX),
            in_flight_before,
            in_flight: self.board.in_flight(),
            state: self.state,
            departure: self.departure,
            smoothed_rtt: self.round_trip.smoothed(),
            mss: self.mss,
        };
        // Without a delivery, `newest` has no stamp.
        let flight = rates.flight(newest.sent_at, newest.end, self.board.lost_ever(), self.mss);
        let sample = FlightSample {
            flight: flight.filter(|_| progress.delivered > 0).unwrap_or_default(),
            is_window_limited: self.window_limited,
        };
        if rates.has_many_flights() {
            rates.remove_flights_before(self.board.earliest_sent_at().unwrap_or(now));
        }
        if self.window.control(&ack, &sample, &mut self.pacing_rate) {
            rates.limit_by_application((delivered_ever + u64::from(ack.in_flight)).max(1));
        }
        self.update_goal();
    }

    fn take_sack(&mut self, ack: &Ack, cumulative: u64, progress: &mut Progress) {
        let mut blocks = ack.sack;
        if is_duplicate_report(blocks[0], blocks[1], cumulative) {
            self.on_duplicate(blocks[0]);
            blocks[0] = blocks[2];
            blocks[2] = Block::default();
        }
        // Handle the blocks in order of sequence. If a higher block came first, a lower block would
        // look reordered.
        blocks.sort_unstable_by_key(|block| block.start);
        for block in blocks {
            if !block.is_empty() && block.end > cumulative && block.end <= self.next {
                self.board.sack(block, progress);
            }
        }
    }

    /// Adds RTT samples from the transmission times of the first and the last acknowledged packets
    /// (`tcp_ack_update_rtt`, `pkts_acked`).
    #[inline]
    fn measure(&mut self, now: Time, first: Option<Time>, last: Option<Time>) {
        if let Some(sent) = last {
            let rtt = now.since(sent);
            self.round_trip.sample_minimum(rtt);
            self.window.on_delay(now, rtt, |window| DelaySample {
                now,
                window,
                unacknowledged: self.unacknowledged,
                next: self.next,
                pacing_rate: self.pacing_rate,
                paced: self.pacing,
                gso_max_bytes: self.gso_max_bytes,
            });
        }
        if let Some(sent) = first {
            self.round_trip.sample(now.since(sent), self.unacknowledged, self.next);
        }
    }

    /// Records the delivered packet that was sent last (RFC 8985, section 6.2, step 2;
    /// `tcp_rack_advance`).
    fn note_newest(&mut self, now: Time, progress: &Progress) {
        if progress.newest > self.newest {
            self.newest = progress.newest;
            self.newest_rtt = now.since(self.newest.sent_at);
        }
        let again = progress.newest_retransmitted;
        // An acknowledgement that arrives sooner than the minimum RTT after the retransmission is for the
        // original packet.
        if again > self.newest && now.since(again.sent_at) >= self.minimum_for_retransmissions() {
            self.newest = again;
            self.newest_rtt = now.since(again.sent_at);
        }
    }

    fn minimum_for_retransmissions(&self) -> Span {
        match self.round_trip.minimum() {
            Span::MAX => 0,
            minimum => minimum,
        }
    }

    /// Raises the number of SACKed packets that loss detection requires, if packets arrived after
    /// packets that were sent later (`tcp_check_sack_reordering`).
    fn note_reordering(&mut self, progress: &Progress) {
        if let Some(from) = progress.reordered_from {
            let distance = self.board.distance_to_highest(from);
            self.reordering = self.reordering.max(distance.min(MOST_REORDERING));
            self.reordering_seen = true;
        }
    }

    /// Returns whether proportional rate reduction is active (`tcp_in_cwnd_reduction`).
    fn is_reducing(&self) -> bool {
        matches!(self.state, State::Reduction | State::Recovery)
    }

    /// Grows the window for `packets` acknowledged packets, if the window limits the flow
    /// (`tcp_cong_avoid`).
    #[inline]
    fn grow_window(&mut self, now: Time, packets: u32) {
        if packets == 0 {
            return;
        }
        // The kernel sets `snd_cwnd_stamp` even if the window does not limit the flow.
        self.window_full_at = now;
        if self.is_window_limited() {
            self.window.begin_round(now, self.unacknowledged, self.next);
            self.window.grow(now, packets);
        } else {
            self.window.pass(now, packets);
        }
    }

    /// Reduces the window in proportion to the delivered packets (PRR: RFC 6937; `tcp_cwnd_reduction`).
    ///
    /// While the packets in flight exceed the threshold, the sender may send a fixed share of the delivered
    /// packets. The window then ends at the threshold. At or below the threshold, the sender may send at
    /// least the delivered packets, and more in slow start, up to the threshold. `entered`: whether the flow
    /// was not in recovery before this acknowledgement.
    fn reduce_in_proportion(&mut self, advanced: bool, lost: bool, entered: bool, progress: &Progress) {
        let delivered = progress.delivered;
        if delivered == 0 || self.prior_window == 0 {
            return;
        }
        self.reduction_delivered += delivered;
        let in_flight = self.board.in_flight();
        let threshold = self.window.threshold;
        let outpaced = self.reduction_delivered.saturating_sub(self.reduction_sent);
        let room = threshold.saturating_sub(in_flight);
        let allowed = if in_flight > threshold {
            let share = u64::from(threshold) * u64::from(self.reduction_delivered);
            let share = share.div_ceil(u64::from(self.prior_window));
            share.saturating_sub(u64::from(self.reduction_sent)) as u32
        } else {
            let slow_start = match self.profile {
                Profile::Linux4_4 => progress.retransmission_acknowledged && !lost,
                Profile::Linux6_18 => true,
            };
            let one_more = match self.profile {
                Profile::Linux4_4 => slow_start,
                Profile::Linux6_18 => advanced && !lost,
            };
            let allowed = if slow_start { outpaced.max(delivered) } else { delivered };
            room.min(allowed + u32::from(one_more))
        };
        // The sender always sends the first retransmission.
        let first = match self.profile {
            Profile::Linux4_4 => entered && self.state == State::Recovery,
            Profile::Linux6_18 => self.reduction_sent == 0,
        };
        let allowed = allowed.max(u32::from(first));
        self.window.packets = (in_flight + allowed).max(1);
    }

    /// Handles the deadline (`tcp_write_timer_handler`). An early call has no effect.
    pub fn on_deadline(&mut self, now: Time) {
        if now < self.deadline {
            return;
        }
        let timer = std::mem::replace(&mut self.timer, Timer::Idle);
        self.deadline = Time::NEVER;
        match timer {
            Timer::Idle => {}
            Timer::Retry => self.wakeup_due = true,
            Timer::Probe => {
                self.probe_due = true;
                self.timer = Timer::Retransmit;
                self.deadline = now + self.round_trip.timeout(self.backoff);
            }
            Timer::Reorder => {
                self.arm_timer(now, false);
                self.react(now, false);
            }
            Timer::Retransmit => self.time_out(now),
        }
    }
}
