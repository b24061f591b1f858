//! TCP as in Linux: the state machines of the sender and of the receiver.
//!
//! The state machines do not schedule events. The host calls them with the time, and performs the
//! returned actions:
//!
//! | when | the host calls |
//! |---|---|
//! | the application writes | [`Sender::write`], then the loop below |
//! | an acknowledgement arrives | [`Sender::on_ack`], then the loop |
//! | [`Sender::deadline`] is reached | [`Sender::on_deadline`], then the loop |
//! | the device frees a segment | [`Sender::freed`], then the loop if `freed` returns true |
//! | the qdisc refuses a segment | [`Sender::refused`], and the loop ends |
//! | the loop | [`Sender::next_segment`] until it returns a reason to stop |
//! | data arrive | [`Receiver::on_data`], then [`Receiver::acknowledgement`] if `on_data` returns [`Reply::Now`] |
//! | [`Receiver::deadline`] is reached | [`Receiver::on_deadline`], then [`Receiver::acknowledgement`] if `on_deadline` returns true |
//!
//! # Kernels
//!
//! The two [`Profile`]s differ in the limits of a flow's data below TCP, in the size of its segments,
//! and in loss recovery:
//!
//! | | [`Profile::Linux4_4`] | [`Profile::Linux6_18`] |
//! |---|---|---|
//! | segment size (`tcp_tso_autosize`) | 1/1024 s at the pacing rate, at least 2 packets | the size of 4.4 plus `gso_max_size >> (minimum RTT / 512 µs)` |
//! | short remainders in the send queue | sent alone | filled up from the next skb (`tcp_grow_skb`) |
//! | small queue (TSQ) limit | max(2 skbs, 1/1024 s), at most `tcp_limit_output_bytes` (256 KiB) | the limit of 4.4 with 4 MiB in place of 256 KiB; doubled for retransmissions; always one more skb while at most one skb is unacknowledged |
//! | waiting for more window (`tcp_tso_should_defer`) | if the oldest skb is older than RTT/2 | if the ACK of the oldest skb is due within min(RTT/2, 1 ms) |
//! | window growth needs (`tcp_is_cwnd_limited`) | slow start: window < 2 · most packets out; otherwise `is_cwnd_limited` of this window | `is_cwnd_limited`; in slow start also window < 2 · most packets out |
//! | a round of HyStart begins | while the window limits the flow | always |
//! | HyStart clock | milliseconds; delays in 1/8 ms | microseconds, and an allowance for aggregation |
//! | loss | 3 packets SACKed above (early retransmit: 1); lost retransmissions by time sent, 1 ms slack | RACK with reordering timer |
//! | a retransmission is | one packet | a segment |
//! | PRR (`tcp_cwnd_reduction`) below the threshold | conservative; slow start after a delivered retransmission | slow start; one more packet when the head advances |
//! | after a timeout | all packets are lost, window 1 | packets sent at least an RTT ago are lost, window is packets in flight + 1 |
//! | tail loss probe after | max(2 RTT, 10 ms); for a single packet max(2 RTT, 1.5 RTT + 200 ms) | 2 RTT + 2 ms; for a single packet 2 RTT + [`SenderConfig::minimum_timeout`] |
//!
//! Equal in the two profiles: CUBIC with its constants, Reno, RTT and timeout estimation, PRR above the
//! threshold (RFC 6937), D-SACK undo, restart after idle, and the pacing rate. The pacing rate sizes
//! segments even without pacing.
//!
//! # Deliberate simplifications
//!
//! - Sequence numbers are 64-bit stream offsets from 0. There is no handshake
//!   ([`SenderConfig::handshake_rtt`] replaces its RTT sample), no FIN and no Nagle's algorithm
//!   (`TCP_NODELAY`). Only DCTCP uses ECN.
//! - Times are picoseconds; the kernel uses microseconds or jiffies. Exceptions, where the coarse clock
//!   matters, are HyStart and `tcp_tso_should_defer` in 4.4, and CUBIC's update once per jiffy. A jiffy
//!   is 4 ms.
//! - The minimum RTT is that of the whole connection; the kernel's expires after 300 s.
//! - Linux 4.4 detects loss as in RFC 6675, without its FACK heuristic.
//! - Not modelled: F-RTO, undo by timestamps, adaptive RACK windows, window reduction after a
//!   successful tail loss probe, the check for an original that is still in a queue of the host, ACK
//!   compression at the receiver.
//! - The receive window and the send buffer have no automatic tuning. The host can move the window
//!   ([`Sender::set_window_end`]) and size the buffer ([`Sender::buffered_packets`]).
//! - Every buffer is charged 1280 bytes in addition to its payload. In Linux 4.4 the head holds the
//!   first 1424 bytes of an application's write, so the first buffer of a write costs 400 bytes less.
//!   This does not change Table 3 of the Titan paper.
//! - Acknowledged retransmissions give no RTT samples from timestamps. After out-of-order data the
//!   receiver does not return to immediate acknowledgements.

mod bbr;
mod bbr3;
mod congestion;
mod cubic;
mod dctcp;
mod delivery_rate;
mod in_flight;
mod lola;
mod rate_control;
mod receiver;
mod round_trip;
mod scoreboard;
mod sender;
#[cfg(test)]
mod tests;

pub use bbr::BbrKernel;
pub use congestion::CongestionAlgorithm;
pub use receiver::{Receiver, ReceiverConfig, Reply};
pub use sender::{Blocked, Counters, Sender, SenderConfig, State};

use crate::time::{MILLISECOND, Span};

/// A timer tick of the kernel: 1/HZ with HZ = 250, as in the configuration of Titan's kernel and of most
/// distributions.
const JIFFY: Span = 4 * MILLISECOND;

/// The modelled kernel. The table of this module lists the differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Linux 4.4 (2016), the kernel of the evaluation in the Titan paper.
    #[default]
    Linux4_4,
    Linux6_18,
}

#[derive(Clone, Copy, Debug, Default)]
pub enum CongestionControl {
    /// CUBIC with HyStart (RFC 9438, `net/ipv4/tcp_cubic.c`), Linux's default.
    #[default]
    Cubic,
    /// NewReno (RFC 5681, `net/ipv4/tcp_cong.c`).
    Reno,
    /// BBR version 1 (`net/ipv4/tcp_bbr.c`). The sender paces its packets regardless of
    /// [`SenderConfig::pacing`].
    Bbr(BbrKernel),
    /// BBR version 3 (the branch `v3` of google/bbr), without ECN. The sender always paces its packets.
    Bbr3,
    /// DCTCP (RFC 8257, `net/ipv4/tcp_dctcp.c`): reduces the window by half of the share of packets with ECN
    /// marks.
    Dctcp,
    /// TCP LoLa, with or without reaction to loss (`evenkeel_transmit::lola`).
    Lola { loss_reaction: bool },
    /// An algorithm of the caller. The function creates its state for a new flow.
    Other(fn() -> Box<dyn CongestionAlgorithm>),
}

impl CongestionControl {
    /// The simulated algorithms by name. A name is the name in `tcp_congestion_control`, with a suffix
    /// for a variant.
    pub const NAMED: [(&'static str, Self); 8] = [
        ("cubic", Self::Cubic),
        ("reno", Self::Reno),
        ("bbr", Self::Bbr(BbrKernel::Linux6_18)),
        ("bbr-4.15", Self::Bbr(BbrKernel::Linux4_15)),
        ("bbr3", Self::Bbr3),
        ("dctcp", Self::Dctcp),
        ("lola", Self::Lola { loss_reaction: true }),
        ("lola-no-loss", Self::Lola { loss_reaction: false }),
    ];

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    /// Returns whether the algorithm itself paces packets (`SK_PACING_NEEDED`).
    #[must_use]
    pub fn paces(self) -> bool {
        matches!(self, Self::Bbr(_) | Self::Bbr3)
    }
}

/// A range of the stream, bytes, from `start` (inclusive) to `end` (exclusive). Empty by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub start: u64,
    pub end: u64,
}

impl Block {
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Sequence below which all bytes have been received in order.
    pub cumulative: u64,
    /// Data received above `cumulative`, most recently changed block first (RFC 2018, section 4).
    /// Unused entries at the end are empty.
    ///
    /// The first block may instead report a duplicate (D-SACK, RFC 2883). A duplicate is below
    /// `cumulative` or inside the second block. Besides timestamps, the TCP header has room for three
    /// blocks.
    pub sack: [Block; 3],
}
