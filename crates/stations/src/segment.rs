//! A GSO segment that TCP passes to the device and the NIC splits into packets.

use evenkeel_model::units::ByteSize;

use crate::time::Time;

/// Headers of a TCP packet with timestamps over IPv4 and Ethernet, bytes (`skb->len` counts them).
pub const HEADER_BYTES: u32 = 14 + 20 + 32;
/// Wire bytes of a packet that `skb->len` does not count: preamble and start 8, frame check 4, gap between
/// frames 12 (IEEE 802.3, clauses 3 and 4).
pub const FRAMING_BYTES: u32 = 24;
/// Smallest frame without its check sequence, bytes. Shorter frames are padded.
pub const SMALLEST_FRAME_BYTES: u32 = 60;

/// Memory that the kernel charges for a segment in addition to its payload, bytes (`SKB_TRUESIZE`,
/// x86-64). It consists of a head of 1 KiB, which includes 320 bytes for `skb_shared_info`, and 256
/// bytes for `sk_buff`.
pub(crate) const SKB_OVERHEAD: u32 = 1280;
/// Flow number that marks the segments of the latency probe.
pub const PROBE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub flow: u32,
    /// The flow's hash (`skb->hash`), for qdiscs that hash flows.
    pub hash: u32,
    pub sequence: u64,
    /// TCP payload, bytes; 0 is a pure ACK.
    pub payload: u32,
    /// Largest payload of one packet, bytes.
    pub mss: u32,
    /// Band of the qdisc; 0 is served first.
    pub band: u8,
    pub retransmit: bool,
}

impl Segment {
    /// Returns the number of packets of the segment; at least 1.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        if self.payload <= self.mss { 1 } else { self.payload.div_ceil(self.mss) }
    }

    /// Returns `skb->len`: the payload and one set of headers.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.payload + HEADER_BYTES
    }

    /// Returns the frame bytes of all packets, without framing: `skb->len` plus the headers of each
    /// packet after the first. BQL, qdisc statistics and the meter count these bytes.
    #[must_use]
    pub const fn frame_bytes(&self) -> u32 {
        self.payload + self.packets() * HEADER_BYTES
    }

    #[must_use]
    pub const fn packet(&self, index: u32) -> Self {
        let sequence = self.sequence + index as u64 * self.mss as u64;
        Self { sequence, payload: self.packet_payload(index), ..*self }
    }

    #[must_use]
    pub const fn packet_payload(&self, index: u32) -> u32 {
        if index + 1 < self.packets() { self.mss } else { self.payload - index * self.mss }
    }
}

/// A data packet on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When the packet's last bit leaves the previous station, or arrives at the destination.
    pub at: Time,
    pub sequence: u64,
    /// Flow number. Inside the host it is the host's number, after that the cluster's number.
    pub flow: u32,
    /// TCP payload, bytes.
    pub payload: u32,
}

/// Returns the memory that the kernel charges to the socket for a segment with this payload, bytes
/// (`skb->truesize`).
#[must_use]
pub const fn truesize(payload: u32) -> u32 {
    payload + SKB_OVERHEAD
}

/// Returns the payload of a full packet, bytes, at least 1. The MTU includes the IP header.
pub fn mss_of(mtu: ByteSize) -> u32 {
    u32::try_from(mtu.bytes()).unwrap_or(u32::MAX).saturating_sub(HEADER_BYTES - 14).max(1)
}

/// Returns the wire bytes of a packet with this payload, framing included.
#[must_use]
pub const fn wire_bytes(payload: u32) -> u32 {
    let frame = payload + HEADER_BYTES;
    let padded = if frame < SMALLEST_FRAME_BYTES { SMALLEST_FRAME_BYTES } else { frame };
    padded + FRAMING_BYTES
}
