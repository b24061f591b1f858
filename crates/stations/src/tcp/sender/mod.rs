//! The sender: `tcp_sock` with the code of `tcp_output.c`, `tcp_input.c` and `tcp_timer.c`.

mod input;
mod output;
mod recovery;

use super::congestion::Window;
use super::round_trip::RoundTrip;
use super::scoreboard::{Scoreboard, SentOrder};
use super::{Block, CongestionControl, Profile};
use crate::segment::{SKB_OVERHEAD, Segment, truesize};
use crate::time::{MILLISECOND, SECOND, Span, Time};

/// Bytes that the kernel reserves for headers in a segment (`MAX_TCP_HEADER + 1`, x86-64).
const HEADER_RESERVE: u32 = 321;
/// Least packets in a segment with enough data (`tcp_min_tso_segs`).
const LEAST_TSO_PACKETS: u32 = 2;
/// Time worth of data in a segment and in a small queue: 2^-10 s (`sk_pacing_shift`).
const PACING_SHIFT: u32 = 10;
/// 6.18 halves the allowance for near peers for every 2^9 µs of RTT (`tcp_tso_rtt_log`).
const TSO_RTT_UNIT: Span = 512 * crate::time::MICROSECOND;
/// Reordering that recovery expects at first, packets (`tcp_reordering`).
const INITIAL_REORDERING: u32 = 3;

/// The configuration of a sender. Names in brackets are the kernel's.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The modelled kernel.
    pub profile: Profile,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Largest payload of a packet, bytes: 1448 in an Ethernet frame of 1514 with timestamps.
    pub mss: u32,
    /// Largest `skb->len` of a segment, bytes, headers included (`gso_max_size`).
    pub gso_max_bytes: u32,
    /// Whether segments have several packets; otherwise each has one.
    pub tso: bool,
    /// Limit of the memory of the flow's segments below TCP, bytes (`tcp_limit_output_bytes`; TCP small
    /// queues); `None` disables small queues.
    pub small_queue_limit: Option<u32>,
    /// Whether even a slow flow may have two segments below TCP. Disabled in Titan's kernel, where the small
    /// queue limit depends only on the pacing rate.
    pub small_queue_floor: bool,
    /// Whether packets are spaced at the pacing rate, as `fq` does it or, from Linux 4.13, TCP itself.
    pub pacing: bool,
    /// Window at the start and after idle times, packets (RFC 6928).
    pub initial_window: u32,
    /// Least that the retransmission timeout adds to the smoothed RTT (`TCP_RTO_MIN`).
    pub minimum_timeout: Span,
    /// Round-trip time that the handshake measured; 0 is unknown, and the pacing rate unlimited until the
    /// first acknowledgement.
    pub handshake_rtt: Span,
    /// Bytes that the receiver has room for. It never changes.
    pub receive_window: u64,
}

impl SenderConfig {
    /// The kernel's defaults.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            congestion: CongestionControl::Cubic,
            mss: 1448,
            gso_max_bytes: 65_536,
            tso: true,
            small_queue_limit: Some(match profile {
                Profile::Linux4_4 => 256 << 10,
                Profile::Linux6_18 => 4 << 20,
            }),
            small_queue_floor: true,
            pacing: false,
            initial_window: 10,
            minimum_timeout: 200 * MILLISECOND,
            handshake_rtt: 0,
            receive_window: u64::MAX / 4,
        }
    }
}

/// The reason why the sender may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Everything that the application has written is sent.
    NoData,
    /// The congestion window or the receiver's is full. An acknowledgement changes it.
    Window,
    /// The flow has too much data below TCP. [`Sender::freed`] returns when to continue.
    SmallQueue,
    /// Not before this time.
    Pacing(Time),
    /// Waiting for acknowledgements to make room for a larger segment (`tcp_tso_should_defer`).
    Deferred,
}

/// State of loss recovery (`icsk_ca_state`), in the order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// All is well.
    Open,
    /// Some data is SACKed, none is lost.
    Disorder,
    /// The window is being reduced because the host's queues overflowed.
    Reduction,
    /// Fast recovery.
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// Action at the deadline (`icsk_pending`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// No action.
    Idle,
    /// Retransmission timeout.
    Retransmit,
    /// Tail loss probe (RFC 8985, section 7).
    Probe,
    /// Packets in doubt are lost now (RFC 8985, section 6.3).
    Reorder,
    /// Retry the segment that the qdisc refused when no other data was in flight.
    Retry,
}

/// A flow's sending end.
///
/// ```
/// use evenkeel_stations::tcp::{Ack, Blocked, Profile, Sender, SenderConfig};
/// use evenkeel_stations::time::{MICROSECOND, Time};
///
/// let config = SenderConfig { handshake_rtt: 100 * MICROSECOND, ..SenderConfig::new(Profile::Linux6_18) };
/// let mut sender = Sender::new(&config, 0, 0x1234);
/// sender.write(100_000);
/// // The initial window, in at least two segments.
/// let segment = sender.next_segment(Time::ZERO).unwrap();
/// assert_eq!((segment.sequence, segment.payload), (0, 5 * 1448));
/// assert_eq!(sender.next_segment(Time::ZERO).unwrap().payload, 5 * 1448);
/// assert_eq!(sender.next_segment(Time::ZERO), Err(Blocked::Window));
/// // Slow start: ten more for each ten that are acknowledged.
/// let now = Time(100 * MICROSECOND);
/// sender.on_ack(now, &Ack { cumulative: 10 * 1448, ..Ack::default() });
/// assert_eq!(sender.window_packets(), 20);
/// ```
#[derive(Clone, Debug)]
// In this order: fields that every acknowledgement accesses are adjacent, and fields of recovery are
// separate. With thousands of flows, each saved cache line counts.
#[repr(C)]
pub struct Sender {
    // Touched for every acknowledgement and segment.
    /// First unacknowledged byte (`snd_una`).
    unacknowledged: u64,
    /// First byte not yet sent (`snd_nxt`).
    next: u64,
    /// End of the data that the application has written (`write_seq`).
    written: u64,
    /// End of the first skb in the send queue, if enough is written.
    head_end: u64,
    /// End of the skb that it was cut from.
    skb_end: u64,
    /// `sk_pacing_rate`, bytes a second.
    pacing_rate: u64,
    /// Memory of the segments below TCP, bytes (`sk_wmem_alloc`).
    bytes_below: u64,
    /// Packets that a segment should have (`tcp_tso_autosize`).
    goal: u32,
    mss: u32,
    deadline: Time,
    /// When data were sent last (`lsndtime`).
    last_sent: Time,
    /// Departure of the last segment (`tcp_wstamp_ns`): in the future only if paced.
    departure: Time,
    receive_window: u64,
    small_queue_limit: Option<u32>,
    small_queue_floor: bool,
    timer: Timer,
    state: State,
    profile: Profile,
    tso: bool,
    pacing: bool,
    /// Small queues hold the flow back (`TSQ_THROTTLED`).
    throttled: bool,
    /// The window held the flow back within the last round trip (`is_cwnd_limited`).
    window_limited: bool,
    /// The window held the flow back in the present loop of [`Sender::next_segment`].
    limited_now: bool,
    /// Something was sent in this loop.
    sent_now: bool,
    /// A tail loss probe is to be sent.
    probe_due: bool,
    /// The state before the last reduction is stored, so it can be undone.
    can_undo: bool,
    /// Reordering was detected (`reord_seen`).
    reordering_seen: bool,
    /// The application waits for room in the send buffer (`SOCK_NOSPACE`).
    buffer_full: bool,
    /// Packets in the largest segment.
    largest: u32,
    /// Timeouts in a row (`icsk_backoff`).
    backoff: u32,
    board: Scoreboard,
    round_trip: RoundTrip,
    window: Window,

    // Bookkeeping of the window's use (`tcp_cwnd_validate`).
    /// Most packets outstanding in this round (`max_packets_out`).
    most_outstanding: u32,
    /// Most packets outstanding since the window was last full (`snd_cwnd_used`).
    window_used: u32,
    /// The round ends when this is acknowledged (`cwnd_usage_seq`).
    usage_end: u64,
    /// When it was last full (`snd_cwnd_stamp`).
    window_full_at: Time,

    /// The most recently sent packet of those delivered (`rack.mstamp`, `rack.end_seq`).
    newest: SentOrder,
    /// Its round-trip time (`rack.rtt_us`).
    newest_rtt: Span,
    /// No second tail loss probe by retransmission until this is acknowledged (`tlp_high_seq`).
    probe_end: Option<u64>,
    counters: Counters,

    // Loss recovery.
    /// Recovery ends when this is acknowledged (`high_seq`).
    recovery_end: u64,
    /// Least packets SACKed above a lost packet (`reordering`).
    reordering: u32,
    /// Window before the reduction, packets (`prior_cwnd`).
    prior_window: u32,
    /// Threshold before it, packets (`prior_ssthresh`).
    prior_threshold: u32,
    /// Packets delivered since it began (`prr_delivered`).
    reduction_delivered: u32,
    /// Packets sent since it began (`prr_out`).
    reduction_sent: u32,
    /// Retransmitted packets that no duplicate has been reported for (`undo_retrans`); `None` before the
    /// first retransmission.
    undo_packets: Option<u32>,
    /// Duplicates below were retransmitted for an earlier loss (`undo_marker`).
    undo_from: u64,

    // Constants that are rarely needed.
    flow: u32,
    hash: u32,
    gso_max_bytes: u32,
    initial_window: u32,
    minimum_timeout: Span,
}

/// Counters of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments sent, retransmissions included.
    pub segments: u64,
    /// Packets of these.
    pub packets: u64,
    /// Payload of these, bytes.
    pub bytes: u64,
    /// Retransmitted segments.
    pub retransmitted_segments: u64,
    /// Packets of these.
    pub retransmitted_packets: u64,
    /// Packets delivered according to acknowledgements.
    pub delivered_packets: u64,
    /// Times that fast recovery began.
    pub recoveries: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Reductions that were undone.
    pub undone: u64,
    /// Segments that the qdisc refused.
    pub refused_segments: u64,
}

impl Sender {
    /// A connection just established. `flow` and `hash` mark its segments.
    #[must_use]
    pub fn new(config: &SenderConfig, flow: u32, hash: u32) -> Self {
        let mss = config.mss.max(1);
        let largest = if config.tso {
            (config.gso_max_bytes.saturating_sub(HEADER_RESERVE) / mss).clamp(1, 65_535)
        } else {
            1
        };
        let mut sender = Self {
            unacknowledged: 0,
            next: 0,
            written: 0,
            head_end: 0,
            skb_end: 0,
            pacing_rate: u64::MAX,
            departure: Time::ZERO,
            last_sent: Time::ZERO,
            deadline: Time::NEVER,
            bytes_below: 0,
            goal: largest,
            mss,
            largest,
            timer: Timer::Idle,
            state: State::Open,
            profile: config.profile,
            tso: config.tso,
            pacing: config.pacing,
            throttled: false,
            window_limited: false,
            limited_now: false,
            sent_now: false,
            probe_due: false,
            can_undo: false,
            reordering_seen: false,
            buffer_full: false,
            window: Window::new(config.congestion, config.profile, config.initial_window),
            round_trip: RoundTrip::new(config.minimum_timeout),
            board: Scoreboard::new(mss),
            most_outstanding: 0,
            usage_end: 0,
            window_used: 0,
            window_full_at: Time::ZERO,
            recovery_end: 0,
            probe_end: None,
            reordering: INITIAL_REORDERING,
            newest: SentOrder::default(),
            newest_rtt: 0,
            prior_window: 0,
            prior_threshold: 0,
            reduction_delivered: 0,
            reduction_sent: 0,
            undo_packets: None,
            undo_from: 0,
            backoff: 0,
            flow,
            hash,
            gso_max_bytes: config.gso_max_bytes,
            initial_window: config.initial_window.max(1),
            small_queue_limit: config.small_queue_limit,
            small_queue_floor: config.small_queue_floor,
            // Less than a packet would be a window that never opens.
            receive_window: config.receive_window.max(u64::from(mss)),
            minimum_timeout: config.minimum_timeout,
            counters: Counters::default(),
        };
        sender.start_skb();
        if config.handshake_rtt > 0 {
            sender.round_trip.sample(config.handshake_rtt, 0, 0);
            sender.round_trip.sample_minimum(config.handshake_rtt);
            sender.update_pacing_rate();
        }
        sender
    }

    /// Adds this many bytes of the application; `u64::MAX / 2` is a bulk transfer without end.
    pub fn write(&mut self, bytes: u64) {
        if self.next == self.written {
            // Data appended to a non-empty send queue fills its last skb.
            self.start_skb();
        }
        self.written = self.written.saturating_add(bytes);
    }

    /// Whether the application has more to write and waits for room in the send buffer (`SOCK_NOSPACE`,
    /// which `poll` and a blocking write set). While it does, a window that is not used up is not the
    /// application's doing, and does not shrink. Not so at first.
    pub fn set_buffer_full(&mut self, full: bool) {
        self.buffer_full = full;
    }

    /// Splits a segment into this many pieces before the qdisc; each has its own buffer and is freed
    /// separately.
    pub fn cut(&mut self, pieces: u32) {
        self.bytes_below += u64::from(pieces.saturating_sub(1)) * u64::from(SKB_OVERHEAD);
    }

    /// The device has freed a segment: it must be one as [`Self::next_segment`] gave it, however it
    /// was cut since. Answers whether small queues held the flow back, so that it may send now
    /// (`tcp_wfree` and the TSQ tasklet).
    pub fn freed(&mut self, segment: &Segment) -> bool {
        self.bytes_below = self.bytes_below.saturating_sub(u64::from(truesize(segment.payload)));
        std::mem::take(&mut self.throttled)
    }

    /// When [`Self::on_deadline`] is to be called; `Time::NEVER` is never. It changes with every call of
    /// the sender.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Smoothed round-trip time; 0 before the first sample.
    #[must_use]
    pub fn smoothed_rtt(&self) -> Span {
        self.round_trip.smoothed()
    }

    /// Retransmission timeout, backoff included.
    #[must_use]
    pub fn retransmission_timeout(&self) -> Span {
        self.round_trip.timeout(self.backoff)
    }

    /// Congestion window, packets (`snd_cwnd`).
    #[must_use]
    pub fn window_packets(&self) -> u32 {
        self.window.packets
    }

    /// Slow-start threshold, packets (`snd_ssthresh`); 2^31 − 1 before any loss.
    #[must_use]
    pub fn slow_start_threshold(&self) -> u32 {
        self.window.threshold
    }

    /// Pacing rate, bytes a second; `u64::MAX` before the first RTT sample.
    #[must_use]
    pub fn pacing_rate(&self) -> u64 {
        self.pacing_rate
    }

    /// Packets that a segment should have now.
    #[must_use]
    pub fn segment_goal(&self) -> u32 {
        self.goal
    }

    /// Memory of the flow's segments below TCP, bytes (`sk_wmem_alloc`): payload and 1280 for each.
    #[must_use]
    pub fn bytes_below(&self) -> u64 {
        self.bytes_below
    }

    /// Returns the packets in flight (`tcp_packets_in_flight`).
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.board.in_flight()
    }

    /// Bytes acknowledged in order.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.unacknowledged
    }

    /// Bytes written and not yet sent.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.written - self.next
    }

    /// Returns the bytes written and not yet acknowledged: the content of the send buffer.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.written - self.unacknowledged
    }

    /// State of loss recovery.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Pacing rate and segment size after the window or the RTT has changed (`tcp_update_pacing_rate`,
    /// `tcp_tso_autosize`): twice the delivery rate in early slow start, 1.2 times it later.
    fn update_pacing_rate(&mut self) {
        let percent = if self.window.packets < self.window.threshold / 2 { 200 } else { 120 };
        let packets = self.window.packets.max(self.board.outstanding());
        // Nanoseconds, so that the product fits: 2^64 are 9 GB in flight.
        let rtt = (self.round_trip.smoothed() / 1000).max(1);
        self.pacing_rate =
            (u64::from(self.mss) * percent * (SECOND / 1000 / 100)).saturating_mul(u64::from(packets)) / rtt;
        if !self.tso {
            return;
        }
        let mut bytes = self.pacing_rate >> PACING_SHIFT;
        if self.profile == Profile::Linux6_18 {
            let shift = self.round_trip.minimum() / TSO_RTT_UNIT;
            if shift < 32 {
                bytes += u64::from(self.gso_max_bytes.saturating_sub(HEADER_RESERVE) >> shift);
            }
        }
        // The largest segment bounds the quotient, so that it fits.
        let most = u64::from(self.largest) * u64::from(self.mss);
        let packets = bytes.min(most) as u32 / self.mss;
        self.goal = packets.max(LEAST_TSO_PACKETS).min(self.largest);
    }

    /// Sets the congestion window, packets.
    #[cfg(test)]
    pub(super) fn window_for_test(&mut self, packets: u32) {
        self.window.packets = packets;
    }

    /// Checks sums and order of the outstanding data.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        self.board.is_consistent(self.unacknowledged, self.next)
            && self.unacknowledged <= self.next
            && self.next <= self.written
            && self.window.packets > 0
            && self.head_end > self.next
            && self.skb_end >= self.head_end
    }
}

/// Whether the first SACK block reports a duplicate (RFC 2883, section 4; `tcp_check_dsack`).
fn is_duplicate_report(first: Block, second: Block, cumulative: u64) -> bool {
    !first.is_empty()
        && (first.end <= cumulative
            || (!second.is_empty() && first.start >= second.start && first.end <= second.end))
}
