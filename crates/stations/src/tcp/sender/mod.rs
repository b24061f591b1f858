//! The sender: `tcp_sock` with the code of `tcp_output.c`, `tcp_input.c` and `tcp_timer.c`.

mod input;
mod output;
mod recovery;

use super::congestion::Window;
use super::delivery_rate::DeliveryRate;
use super::round_trip::RoundTrip;
use super::scoreboard::{Scoreboard, SentOrder};
use super::{Block, CongestionControl, Profile};
use crate::segment::{SKB_OVERHEAD, Segment, truesize};
use crate::time::{MILLISECOND, SECOND, Span, Time};

/// Bytes that the kernel reserves for headers in a segment (`MAX_TCP_HEADER + 1`, x86-64).
const HEADER_RESERVE: u32 = 321;
/// A segment and a small queue hold the data that the pacing rate sends in 2^-10 s (`sk_pacing_shift`).
const PACING_SHIFT: u32 = 10;
/// Unit of the RTT in the segment size of 6.18. Each unit of 2^9 µs halves the allowance for short RTTs
/// (`tcp_tso_rtt_log`).
const TSO_RTT_UNIT: Span = 512 * crate::time::MICROSECOND;
/// Reordering that recovery expects at first, packets (`tcp_reordering`).
const INITIAL_REORDERING: u32 = 3;

/// The configuration of a sender, with the kernel's names in brackets.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    pub profile: Profile,
    pub congestion: CongestionControl,
    /// Largest payload of a packet, bytes: 1448 in an Ethernet frame of 1514 with timestamps.
    pub mss: u32,
    /// Largest `skb->len` of a segment, bytes, including headers (`gso_max_size`).
    pub gso_max_bytes: u32,
    /// Whether segments may have several packets.
    pub tso: bool,
    /// Limit of the memory of the flow's segments below TCP, bytes (`tcp_limit_output_bytes`; TCP small
    /// queues); `None` disables small queues.
    pub small_queue_limit: Option<u32>,
    /// Whether even a slow flow may have two segments below TCP. The kernel of the Titan paper disables
    /// this: its small queue limit depends only on the pacing rate.
    pub small_queue_floor: bool,
    /// Whether packets are sent at the pacing rate, by `fq` or, since Linux 4.13, by TCP. BBR always paces.
    pub pacing: bool,
    /// Window at the start, packets (RFC 6928). Idle time does not reduce a window below it.
    pub initial_window: u32,
    /// Smallest margin of the retransmission timeout above the smoothed RTT (`TCP_RTO_MIN`).
    pub minimum_timeout: Span,
    /// Round-trip time of the handshake; 0: unknown. Then the pacing rate is unlimited until the first
    /// acknowledgement, but BBR assumes a round-trip time of 1 ms.
    pub handshake_rtt: Span,
    /// Receive window, bytes; at least one packet. It is constant unless the caller uses
    /// [`Sender::set_window_end`].
    pub receive_window: u64,
}

impl SenderConfig {
    /// Creates the kernel's default configuration.
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

/// The reason why the sender must not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The sender has sent all data that the application has written.
    NoData,
    /// The congestion window or the receive window is full until an acknowledgement arrives.
    Window,
    /// The flow has too much data below TCP. It may continue when [`Sender::freed`] returns true.
    SmallQueue,
    /// Pacing allows the next segment at this time.
    Pacing(Time),
    /// The sender waits for acknowledgements, which make room for a larger segment
    /// (`tcp_tso_should_defer`).
    Deferred,
}

/// State of loss recovery (`icsk_ca_state`), in order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No data is SACKed or lost.
    Open,
    /// Some data is SACKed; no data is lost.
    Disorder,
    /// The sender reduces the window because the host's qdisc refused a segment, or because of an ECN mark.
    Reduction,
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// Action at the deadline (`icsk_pending`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Idle,
    Retransmit,
    /// Tail loss probe (RFC 8985, section 7).
    Probe,
    /// The waiting time of undecided packets is over, so they are lost (RFC 8985, section 6.3).
    Reorder,
    /// Retry the segment that the qdisc refused when no other data was in flight.
    Retry,
}

/// The sending end of a flow.
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
// The fields that every acknowledgement accesses are adjacent; the fields of recovery are separate.
// With thousands of flows, each saved cache line counts.
#[repr(C)]
pub struct Sender {
    // Fields that every acknowledgement and segment accesses.
    /// First unacknowledged byte (`snd_una`).
    unacknowledged: u64,
    /// First byte not yet sent (`snd_nxt`).
    next: u64,
    /// End of the data that the application has written (`write_seq`).
    written: u64,
    /// End of the first skb in the send queue. The application may have written less.
    head_end: u64,
    /// End of the original skb, from which the first skb was cut.
    skb_end: u64,
    /// `sk_pacing_rate`, bytes per second.
    pacing_rate: u64,
    /// Memory of the segments below TCP, bytes (`sk_wmem_alloc`).
    bytes_below: u64,
    /// Packets that a segment should have (`tcp_tso_autosize`).
    goal: u32,
    mss: u32,
    deadline: Time,
    /// When data was last sent (`lsndtime`).
    last_sent: Time,
    /// Earliest departure time of the next segment (`tcp_wstamp_ns`). Without pacing, this is the time at
    /// which the last segment was sent.
    departure: Time,
    receive_window: u64,
    small_queue_limit: Option<u32>,
    small_queue_floor: bool,
    timer: Timer,
    state: State,
    profile: Profile,
    tso: bool,
    pacing: bool,
    /// Small queues block the flow (`TSQ_THROTTLED`).
    throttled: bool,
    /// The window limited the flow within the last round trip (`is_cwnd_limited`).
    window_limited: bool,
    /// The window limited the flow in the present loop of [`Sender::next_segment`].
    limited_now: bool,
    /// The present loop has sent a segment.
    sent_now: bool,
    /// The sender must send a tail loss probe.
    probe_due: bool,
    /// The next segment must be a single packet, because the qdisc refused the last segment
    /// (`tcp_write_wakeup`).
    wakeup_due: bool,
    /// Whether the last reduction can be undone: the previous window and threshold are stored.
    can_undo: bool,
    /// Reordering was detected (`reord_seen`).
    reordering_seen: bool,
    /// The application waits for room in the send buffer (`SOCK_NOSPACE`).
    buffer_full: bool,
    /// Upper limit of a segment's packets.
    largest: u32,
    /// Consecutive timeouts (`icsk_backoff`).
    backoff: u32,
    board: Scoreboard,
    round_trip: RoundTrip,
    window: Window,
    /// Samples of the delivery rate, for an algorithm that sets window and pacing rate
    /// (`cong_control`).
    rates: Option<Box<DeliveryRate>>,

    // Use of the window (`tcp_cwnd_validate`).
    /// Most packets outstanding in this round (`max_packets_out`).
    most_outstanding: u32,
    /// Most packets outstanding since the window was last full (`snd_cwnd_used`).
    window_used: u32,
    /// The byte whose acknowledgement ends the round (`cwnd_usage_seq`).
    usage_end: u64,
    /// Start of the time in which the window was not full (`snd_cwnd_stamp`). Deliveries outside a reduction,
    /// the end of recovery and idle time also restart it.
    window_full_at: Time,

    /// The delivered packet that was sent last (`rack.mstamp`, `rack.end_seq`).
    newest: SentOrder,
    /// Round-trip time of `newest` (`rack.rtt_us`).
    newest_rtt: Span,
    /// Until this byte is acknowledged, the sender does not probe by another retransmission
    /// (`tlp_high_seq`).
    probe_end: Option<u64>,
    counters: Counters,

    /// The byte whose acknowledgement ends recovery (`high_seq`).
    recovery_end: u64,
    /// Number of SACKed packets above a packet that make this packet lost (`reordering`).
    reordering: u32,
    /// Window before the reduction, packets (`prior_cwnd`).
    prior_window: u32,
    /// Slow-start threshold before the reduction, packets (`prior_ssthresh`).
    prior_threshold: u32,
    /// Packets delivered since the reduction began (`prr_delivered`).
    reduction_delivered: u32,
    /// Packets sent since the reduction began (`prr_out`).
    reduction_sent: u32,
    /// Retransmitted packets for which the receiver has not reported a duplicate (`undo_retrans`); `None` if
    /// no packet was retransmitted since the reduction began.
    undo_packets: Option<u32>,
    /// Retransmissions below this byte belong to an earlier loss (`undo_marker`).
    undo_from: u64,

    // Rarely needed constants.
    flow: u32,
    hash: u32,
    gso_max_bytes: u32,
    initial_window: u32,
    minimum_timeout: Span,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments sent, including retransmissions.
    pub segments: u64,
    /// Packets in `segments`.
    pub packets: u64,
    /// Payload of `segments`, bytes.
    pub bytes: u64,
    pub retransmitted_segments: u64,
    pub retransmitted_packets: u64,
    pub delivered_packets: u64,
    pub recoveries: u64,
    pub timeouts: u64,
    pub probes: u64,
    /// Window reductions that were undone.
    pub undone: u64,
    pub refused_segments: u64,
}

impl Sender {
    /// Creates the sender of a newly established connection. `flow` and `hash` mark its segments.
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
            pacing: config.pacing || config.congestion.paces(),
            throttled: false,
            window_limited: false,
            limited_now: false,
            sent_now: false,
            probe_due: false,
            wakeup_due: false,
            can_undo: false,
            reordering_seen: false,
            buffer_full: false,
            window: Window::new(config, hash),
            rates: match config.congestion {
                CongestionControl::Bbr(_) => Some(Box::default()),
                CongestionControl::Bbr3 => Some(Box::new(DeliveryRate::with_flights())),
                _ => None,
            },
            round_trip: RoundTrip::new(config.minimum_timeout),
            board: match config.congestion {
                CongestionControl::Bbr3 => Scoreboard::recording_losses(mss),
                _ => Scoreboard::new(mss),
            },
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
            // A window smaller than a packet would never allow a packet.
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
        if let Some((control, _)) = sender.window.controlled(&mut sender.pacing_rate) {
            control.handshake(sender.round_trip.minimum());
            let rtt = sender.round_trip.smoothed();
            sender.pacing_rate = control.initial_pacing_rate(config.initial_window, rtt, mss);
            sender.update_goal();
        }
        sender
    }

    /// Appends data of the application. `u64::MAX / 2` bytes are an endless bulk transfer.
    pub fn write(&mut self, bytes: u64) {
        if self.next == self.written {
            // Data appended to a non-empty send queue fills its last skb.
            self.start_skb();
        }
        if let Some(rates) = &mut self.rates
            && self.written - self.next < u64::from(self.mss)
            && self.bytes_below == 0
            && self.board.in_flight() < self.window.packets
            && self.board.due() == 0
        {
            // `tcp_rate_check_app_limited`
            rates.limit_by_application(
                (self.counters.delivered_packets + u64::from(self.board.in_flight())).max(1),
            );
        }
        self.written = self.written.saturating_add(bytes);
    }

    /// Sets the end of the receive window. If the window moves, call this after [`Self::on_ack`] with
    /// the end that the acknowledgement advertises.
    pub fn set_window_end(&mut self, end: u64) {
        self.receive_window = end.saturating_sub(self.unacknowledged);
    }

    /// Sets whether the application waits for room in the send buffer (`SOCK_NOSPACE`; set by `poll` and by a
    /// blocking write). The initial value is false. While the application waits, the host limits the flow
    /// (send buffer or TCP small queues), not the application. So an unused window does not shrink
    /// (`tcp_cwnd_application_limited`).
    pub fn set_buffer_full(&mut self, full: bool) {
        self.buffer_full = full;
    }

    /// Accounts for the split of a segment into `pieces` before the qdisc. Each piece has its own
    /// buffer, which the device frees separately.
    pub fn cut(&mut self, pieces: u32) {
        self.bytes_below += u64::from(pieces.saturating_sub(1)) * u64::from(SKB_OVERHEAD);
    }

    /// Handles a segment that the device has freed (`tcp_wfree` and the TSQ tasklet). Returns whether
    /// small queues blocked the flow. If they did, the flow may now send.
    ///
    /// The segment must be a result of [`Self::next_segment`]. If it was split ([`Self::cut`]), also call
    /// this once for each further piece, with a payload of 0.
    pub fn freed(&mut self, segment: &Segment) -> bool {
        self.bytes_below = self.bytes_below.saturating_sub(u64::from(truesize(segment.payload)));
        std::mem::take(&mut self.throttled)
    }

    /// Returns when to call [`Self::on_deadline`], or `Time::NEVER`. Every call of the sender can
    /// change this time.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns the smoothed RTT; 0 before the first sample.
    #[must_use]
    pub fn smoothed_rtt(&self) -> Span {
        self.round_trip.smoothed()
    }

    /// Returns the RTT of the delivered packet that was sent last; 0 before the first delivery.
    #[must_use]
    pub fn newest_rtt(&self) -> Span {
        self.newest_rtt
    }

    /// Returns the retransmission timeout, including backoff.
    #[must_use]
    pub fn retransmission_timeout(&self) -> Span {
        self.round_trip.timeout(self.backoff)
    }

    /// Returns the congestion window, packets (`snd_cwnd`).
    #[must_use]
    pub fn window_packets(&self) -> u32 {
        self.window.packets
    }

    /// Returns the number of packets for which the send buffer has room (`tcp_sndbuf_expand`).
    #[must_use]
    pub fn buffered_packets(&self) -> u64 {
        self.window.buffered_packets()
    }

    /// Returns the slow-start threshold, packets (`snd_ssthresh`). The initial value is 2^31 − 1.
    #[must_use]
    pub fn slow_start_threshold(&self) -> u32 {
        self.window.threshold
    }

    /// Returns the pacing rate, bytes per second. Before the first RTT sample, it is `u64::MAX` except for
    /// BBR.
    #[must_use]
    pub fn pacing_rate(&self) -> u64 {
        self.pacing_rate
    }

    /// Returns the number of packets that the next segment should have (`tcp_tso_autosize`).
    #[must_use]
    pub fn segment_goal(&self) -> u32 {
        self.goal
    }

    /// Returns the memory of the flow's segments below TCP, bytes (`sk_wmem_alloc`): the payload, and 1280
    /// per segment, or per piece of a segment that was split ([`Self::cut`]).
    #[must_use]
    pub fn bytes_below(&self) -> u64 {
        self.bytes_below
    }

    /// Returns the packets in flight (`tcp_packets_in_flight`).
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.board.in_flight()
    }

    /// Returns the bytes acknowledged in order.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.unacknowledged
    }

    /// Returns the bytes written and not yet sent.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.written - self.next
    }

    /// Returns the content of the send buffer: the bytes written and not yet acknowledged.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.written - self.unacknowledged
    }

    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Recomputes the pacing rate and the segment size after a change of the window or the RTT
    /// (`tcp_update_pacing_rate`). In early slow start, the pacing rate is two windows per RTT. Later it
    /// is 1.2 windows per RTT.
    fn update_pacing_rate(&mut self) {
        let percent = if self.window.packets < self.window.threshold / 2 { 200 } else { 120 };
        let packets = self.window.packets.max(self.board.outstanding());
        // In nanoseconds, the product overflows only above 9 GB in flight.
        let rtt = (self.round_trip.smoothed() / 1000).max(1);
        self.pacing_rate =
            (u64::from(self.mss) * percent * (SECOND / 1000 / 100)).saturating_mul(u64::from(packets)) / rtt;
        self.update_goal();
    }

    /// Computes the segment size for the pacing rate (`tcp_tso_autosize`).
    fn update_goal(&mut self) {
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
        // The quotient is limited to the largest segment, so it fits 32 bits.
        let most = u64::from(self.largest) * u64::from(self.mss);
        let packets = bytes.min(most) as u32 / self.mss;
        self.goal = packets.max(self.window.least_segment(self.pacing_rate)).min(self.largest);
    }

    #[cfg(test)]
    pub(super) fn window_for_test(&mut self, packets: u32) {
        self.window.packets = packets;
    }

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

/// Returns whether the first SACK block reports a duplicate (RFC 2883, section 4; `tcp_check_dsack`).
fn is_duplicate_report(first: Block, second: Block, cumulative: u64) -> bool {
    !first.is_empty()
        && (first.end <= cumulative
            || (!second.is_empty() && first.start >= second.start && first.end <= second.end))
}
