//! Loss detection and recovery (net/ipv4/tcp_input.c, `tcp_fastretrans_alert`; net/ipv4/tcp_recovery.c).

use super::super::rate_control::Loss;
use super::super::scoreboard::TimeRule;
use super::super::{Block, Profile};
use super::{INITIAL_REORDERING, Sender, State, Timer};
use crate::time::{MILLISECOND, Span, Time};

/// Smallest RACK window of Linux 4.4: a packet is lost if it was sent before a delivered packet by more than
/// the window. Reordering may make the window longer.
const OLD_SLACK: Span = MILLISECOND;
/// Margin of the timer for undecided packets (`TCP_TIMEOUT_MIN_US`).
const REORDER_TIMER_MARGIN: Span = 2 * MILLISECOND;

impl Sender {
    /// Handles SACKed or lost data: finds losses and changes the state. Returns whether it found
    /// losses.
    pub(super) fn react(&mut self, now: Time, advanced: bool) -> bool {
        // A reduction without a loss lasts until a byte above its end is acknowledged.
        let end = self.recovery_end + u64::from(self.state == State::Reduction);
        if advanced && self.state >= State::Reduction && self.unacknowledged >= end {
            self.finish_recovery(now);
        }
        let lost = self.find_losses(now);
        if lost {
            self.report_losses(now);
        }
        if self.state < State::Recovery {
            if self.board.lost() > 0 {
                self.begin_recovery(now);
            } else if self.state < State::Reduction {
                self.state = if self.board.sacked() > 0 { State::Disorder } else { State::Open };
            }
        }
        lost
    }

    fn finish_recovery(&mut self, now: Time) {
        // After a timeout, slow start continues.
        if self.state != State::Loss && self.rates.is_none() {
            self.window.packets = self.window.threshold.max(1);
            self.window_full_at = now;
        }
        self.state = State::Open;
    }

    fn find_losses(&mut self, now: Time) -> bool {
        if self.board.outstanding() == 0 {
            return false;
        }
        match self.profile {
            Profile::Linux4_4 => {
                let counted = self.board.judge_by_count(self.loss_threshold());
                if self.state < State::Recovery && self.board.lost() == 0 {
                    return counted;
                }
                let slack = if self.reordering_seen {
                    OLD_SLACK.max(self.round_trip.minimum() / 4)
                } else {
                    OLD_SLACK
                };
                // A packet is lost if it was sent before the newest delivered packet by more than the
                // slack.
                let limit = Time(self.newest.sent_at.0.saturating_sub(1));
                let (timed, _) = self.board.judge_by_time(TimeRule { newest: self.newest, limit, slack });
                counted | timed
            }
            Profile::Linux6_18 => {
                let limit = Time(now.0.saturating_sub(self.newest_rtt));
                let rule = TimeRule { newest: self.newest, limit, slack: self.reordering_slack() };
                let (lost, wait) = self.board.judge_by_time(rule);
                if wait > 0 {
                    self.timer = Timer::Reorder;
                    self.deadline = now + wait + REORDER_TIMER_MARGIN;
                }
                lost
            }
        }
    }

    /// Reports newly lost packets to an algorithm that records them (`tcp_notify_skb_loss_event`).
    fn report_losses(&mut self, now: Time) {
        let Some(rates) = &self.rates else { return };
        for lost in self.board.take_losses() {
            let loss = Loss {
                now,
                packets: lost.packets,
                flight: rates.flight(lost.sent_at, lost.end, lost.lost_ever, self.mss),
                delivered_ever: self.counters.delivered_packets,
                mss: self.mss,
            };
            self.window.on_loss(&loss, &mut self.pacing_rate);
        }
    }

    /// Returns the number of SACKed packets above a packet that make this packet lost in Linux 4.4. The
    /// number is 1 if few packets are outstanding, the flow has no new data and no retransmitted packets, and
    /// no reordering was seen (early retransmit, RFC 5827). The kernel's delay of RTT/4 is not modelled.
    fn loss_threshold(&self) -> u32 {
        let few = self.board.outstanding() <= INITIAL_REORDERING && self.next == self.written;
        if few && !self.reordering_seen && self.board.retransmitted() == 0 { 1 } else { self.reordering }
    }

    /// Returns the delay that reordering may cause (RFC 8985, section 6.2, step 4; `tcp_rack_reo_wnd`).
    /// Returns 0 before the first RTT sample. Also returns 0 if no reordering was seen, and the sender is in
    /// recovery or `reordering` packets are SACKed.
    fn reordering_slack(&self) -> Span {
        if !self.reordering_seen && (self.state >= State::Recovery || self.board.sacked() >= self.reordering)
        {
            return 0;
        }
        match self.round_trip.minimum() {
            Span::MAX => 0,
            minimum => (minimum / 4).min(self.round_trip.smoothed()),
        }
    }

    fn begin_recovery(&mut self, now: Time) {
        if self.state != State::Reduction {
            self.remember_for_undo();
            self.begin_reduction(now);
        }
        self.window.enter_recovery();
        self.recovery_end = self.next;
        self.state = State::Recovery;
        self.counters.recoveries += 1;
    }

    fn begin_reduction(&mut self, now: Time) {
        self.reduction_delivered = 0;
        self.reduction_sent = 0;
        self.probe_end = None;
        self.window.reduce(now);
    }

    fn remember_for_undo(&mut self) {
        self.can_undo = true;
        self.undo_from = self.unacknowledged;
        self.undo_packets = Some(self.board.retransmitted()).filter(|packets| *packets > 0);
        self.prior_window = self.window.packets;
        self.prior_threshold = self.window.remembered_threshold();
    }

    /// Handles a drop by the host's own queue (`NET_XMIT_CN`).
    pub fn local_congestion(&mut self, now: Time) {
        self.enter_reduction(now);
    }

    /// Reduces the window without a retransmission (`tcp_enter_cwr`).
    pub(super) fn enter_reduction(&mut self, now: Time) {
        if self.state < State::Reduction {
            self.can_undo = false;
            self.prior_window = self.window.packets;
            self.begin_reduction(now);
            self.recovery_end = self.next;
            self.state = State::Reduction;
        }
    }

    /// Handles the retransmission timeout (`tcp_retransmit_timer`, `tcp_enter_loss`).
    pub(super) fn time_out(&mut self, now: Time) {
        if self.board.outstanding() == 0 {
            return;
        }
        self.counters.timeouts += 1;
        self.probe_due = false;
        let anew = self.state == State::Loss && self.backoff == 0;
        if self.state <= State::Disorder || self.unacknowledged >= self.recovery_end || anew {
            self.remember_for_undo();
            self.window.reduce(now);
        }
        if self.state <= State::Disorder && self.board.sacked() >= self.reordering {
            // Disorder that lasts until a timeout is a loss, not reordering.
            self.reordering = self.reordering.min(INITIAL_REORDERING);
        }
        let packets = match self.profile {
            Profile::Linux4_4 => {
                self.board.judge_all_lost(Time::NEVER);
                1
            }
            Profile::Linux6_18 => {
                self.board.judge_all_lost(Time(now.0.saturating_sub(self.newest_rtt)));
                self.board.in_flight() + 1
            }
        };
        self.report_losses(now);
        self.window.time_out(now, self.next, packets);
        self.state = State::Loss;
        self.recovery_end = self.next;
        self.backoff += 1;
        self.timer = Timer::Retransmit;
        self.deadline = now + self.round_trip.timeout(self.backoff);
    }

    /// Handles a D-SACK: the receiver got the bytes of `block` twice. If duplicates explain all
    /// retransmissions since the reduction, no packet was lost. The sender then undoes the reduction,
    /// even after recovery (`tcp_try_undo_dsack`).
    pub(super) fn on_duplicate(&mut self, block: Block) {
        let Some(left) = self.undo_packets.filter(|_| self.can_undo && block.end > self.undo_from) else {
            return;
        };
        let packets = (block.end - block.start).div_ceil(u64::from(self.mss));
        let left = u64::from(left).saturating_sub(packets) as u32;
        self.undo_packets = Some(left);
        if left > 0 {
            return;
        }
        self.can_undo = false;
        if self.state == State::Recovery {
            self.state = State::Disorder;
        }
        self.window.undo(self.prior_window, self.prior_threshold);
        self.counters.undone += 1;
    }
}
