//! TCP as in Linux: the state machines of the sender and of the receiver.
//!
//! Neither schedules events. The host calls them with the time, and performs the returned actions:
//!
//! | when | the host calls |
//! |---|---|
//! | the application writes | [`Sender::write`], then the loop below |
//! | an acknowledgement arrives | [`Sender::on_ack`], then the loop |
//! | [`Sender::deadline`] is reached | [`Sender::on_deadline`], then the loop |
//! | the device frees a segment | [`Sender::freed`], then the loop if it returns true |
//! | the qdisc refuses a segment | [`Sender::refused`], and the loop ends |
//! | the loop | [`Sender::next_segment`] until it returns a reason to stop |
//! | data arrive | [`Receiver::on_data`], then [`Receiver::acknowledgement`] if it returns [`Reply::Now`] |
//! | [`Receiver::deadline`] is reached | [`Receiver::on_deadline`], then [`Receiver::acknowledgement`] if it returns true |
//!
//! # Kernels
//!
//! The two [`Profile`]s differ in the limits of a flow's data below TCP, and in the size of its segments:
//!
//! | | [`Profile::Linux4_4`] | [`Profile::Linux6_18`] |
//! |---|---|---|
//! | segment size (`tcp_tso_autosize`) | 1/1024 s at the pacing rate, 2 packets at least | the same, and `gso_max_size >> (minimum RTT / 512 µs)` more |
//! | short remainders in the send queue | sent alone | filled up from the next skb (`tcp_grow_skb`) |
//! | small queue (TSQ) limit | max(2 skbs, 1/1024 s), at most `tcp_limit_output_bytes` (256 KiB) | the same with 4 MiB; doubled for retransmissions; with at most one skb unacknowledged always one more |
//! | waiting for more window (`tcp_tso_should_defer`) | if the oldest skb is older than RTT/2 | if its ACK is due within min(RTT/2, 1 ms) |
//! | window growth needs (`tcp_is_cwnd_limited`) | slow start: window < 2 · most packets out; else the flag of this window | the flag, or in slow start the same |
//! | a round of HyStart begins | while the window limits the flow | always |
//! | HyStart clock | milliseconds; delays in 1/8 ms | microseconds, and an allowance for aggregation |
//! | loss | 3 packets SACKed above (early retransmit: 1); lost retransmissions by time sent, 1 ms slack | RACK with reordering timer |
//! | a retransmission is | one packet | a segment |
//! | PRR (`tcp_cwnd_reduction`) below the threshold | conservative, and slow start after a delivered retransmission | slow start, one more when the head advances |
//! | after a timeout | everything lost, window 1 | what was sent an RTT ago lost, window in flight + 1 |
//! | tail loss probe after | max(2 RTT, 10 ms) | 2 RTT + 2 ms |
//!
//! Equal in both: CUBIC with its constants, Reno, RTT and timeout estimation, PRR above the threshold (RFC
//! 6937), D-SACK undo, restart after idle. So is the pacing rate, which sizes segments even without pacing.
//!
//! # Deliberate simplifications
//!
//! - Sequence numbers are 64-bit stream offsets from 0. There is no handshake
//!   ([`SenderConfig::handshake_rtt`] replaces its RTT sample), no FIN, no Nagle's algorithm (`TCP_NODELAY`),
//!   and ECN only with DCTCP.
//! - Times are picoseconds where the kernel has microseconds or jiffies, except where the coarse clock
//!   matters (HyStart 4.4, CUBIC's update once per jiffy; a jiffy is 4 ms).
//! - The minimum RTT is that of the whole connection; the kernel's expires after 300 s.
//! - Linux 4.4 detects loss as in RFC 6675, without its FACK heuristic.
//! - Not modelled: F-RTO, undo by timestamps, adaptive RACK windows, window reduction after a successful tail
//!   loss probe, the test whether the original is still in a queue of the host, ACK compression at the
//!   receiver.
//! - The receive window and the send buffer never shrink or grow.
//! - Every buffer is charged 1280 bytes in addition to its payload. In Linux 4.4 the first 1424 bytes of an
//!   application's write are in the head, so its first piece costs 400 less; this does not change Table 3.
//! - Acknowledged retransmissions give no RTT samples from timestamps. After out-of-order data the receiver
//!   does not return to immediate acknowledgements.

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

/// The modelled kernel; the module's table lists the differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Linux 4.4 (2016), the kernel of Titan's evaluation.
    #[default]
    Linux4_4,
    /// Linux 6.18 (2025).
    Linux6_18,
}

#[derive(Clone, Copy, Debug, Default)]
pub enum CongestionControl {
    /// CUBIC with HyStart (RFC 9438, `net/ipv4/tcp_cubic.c`), Linux's default.
    #[default]
    Cubic,
    /// NewReno's window (RFC 5681, `net/ipv4/tcp_cong.c`).
    Reno,
    /// BBR version 1 (`net/ipv4/tcp_bbr.c`). Its packets are paced, whatever [`SenderConfig::pacing`] says.
    Bbr(BbrKernel),
    /// BBR version 3 (the branch `v3` of google/bbr), without ECN. Its packets are paced, too.
    Bbr3,
    /// DCTCP (RFC 8257, `net/ipv4/tcp_dctcp.c`): reduces the window by the share of packets with marks (ECN).
    Dctcp,
    /// TCP LoLa, with or without reaction to loss (`evenkeel_transmit::lola`).
    Lola { loss_reaction: bool },
    /// An algorithm that is not modelled here. The function creates its state for a new flow.
    Other(fn() -> Box<dyn CongestionAlgorithm>),
}

impl CongestionControl {
    /// The simulated algorithms by name: that in `tcp_congestion_control`, with a suffix for another behaviour.
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

    /// Returns the algorithm with this name in [`Self::NAMED`].
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

/// A range of the stream, bytes: `start` is in it, `end` is not. Empty by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub start: u64,
    /// First byte after the block.
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
    /// All bytes below this one have been received in order.
    pub cumulative: u64,
    /// Data received above `cumulative`, most recently changed first (RFC 2018, section 4). Unused entries at
    /// the end are empty.
    ///
    /// The first block may instead report a duplicate (D-SACK, RFC 2883): it is then below `cumulative` or
    /// inside the second block. Besides timestamps, the TCP header has room for three blocks.
    pub sack: [Block; 3],
}
