//! The receiving end of a connection: its queues, its lock and its window.
//!
//! While the application reads, it owns the socket. Buffers from the softirq then wait in the backlog
//! (`tcp_add_backlog`). The application processes them when it releases the socket (`__release_sock`).

use std::collections::VecDeque;

use super::receive_queue::Buffer;
use crate::tcp::Receiver;
use crate::time::{MILLISECOND, Span, Time};

/// Bytes that iperf3 reads per call.
pub const REQUEST: u32 = 128 << 10;
/// Memory that the kernel charges per byte of payload. The window is half of the buffer
/// (`tcp_adv_win_scale` 1).
const OVERHEAD: u64 = 2;
/// Space of the backlog beyond the socket's buffers in bytes (`tcp_add_backlog`).
const BACKLOG_SLACK: u64 = 64 << 10;
/// Memory of a packet beyond its payload in bytes (`SKB_TRUESIZE` with the longest header).
const PACKET_MEMORY: u64 = 896;
/// Initial receive buffer in bytes (`tcp_rmem`).
const INITIAL_BUFFER: u64 = 87_380;

#[derive(Clone, Copy, Debug)]
struct Readable {
    bytes: u32,
    packets: u32,
    written_before: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    pub bytes: u32,
    /// Packets and buffers that are completely read.
    pub packets: u32,
    pub buffers: u32,
    /// The smallest [`Buffer::written_before`] of the copied data.
    pub written_before: u64,
}

#[derive(Clone, Debug)]
pub struct Socket {
    pub receiver: Receiver,
    pub owned: bool,
    pub sleeping: bool,
    /// Bytes of the present read that are still missing.
    pub wanted: u32,
    readable: VecDeque<Readable>,
    readable_bytes: u64,
    backlog: Vec<Buffer>,
    backlog_bytes: u64,
    /// `sk_rcvbuf` and its limit in bytes.
    buffer: u64,
    limit: u64,
    /// `sk_sndbuf`, which is part of the backlog's limit.
    send_buffer: u64,
    /// End of the window that the peer knows.
    advertised: u64,
    pub copied: u64,
    /// State of the buffer's growth (`tcp_rcv_space_adjust`).
    space: u64,
    space_from: u64,
    space_since: Time,
    /// Whether acknowledgements report a mark (`TCP_ECN_DEMAND_CWR`, as DCTCP sets it).
    pub echoes_mark: bool,
    /// Packets dropped at a full backlog, and packets dropped at a full receive buffer.
    pub backlog_drops: u64,
    pub pruned: u64,
    /// Packets and bytes that reached TCP, including duplicates.
    pub received_packets: u64,
    pub received_bytes: u64,
}

impl Socket {
    /// Creates a socket. Its receive buffer grows up to `limit` bytes (the last value of `tcp_rmem`).
    #[must_use]
    pub fn new(receiver: Receiver, limit: u64, send_buffer: u64, mss: u32) -> Self {
        // `tcp_default_init_rwnd`, `tcp_fixup_rcvbuf`: eight times the memory of an initial receive window.
        let window = u64::from(if mss > 1460 { (1460 * 20 / mss).max(2) } else { 20 });
        let packet = u64::from(mss) + PACKET_MEMORY;
        let buffer = (8 * window * packet).max(INITIAL_BUFFER).min(limit).max(u64::from(4 * mss));
        Self {
            receiver,
            owned: false,
            sleeping: true,
            wanted: 0,
            readable: VecDeque::new(),
            readable_bytes: 0,
            backlog: Vec::new(),
            backlog_bytes: 0,
            buffer,
            limit: limit.max(buffer),
            send_buffer,
            advertised: buffer / OVERHEAD,
            copied: 0,
            space: window * u64::from(mss),
            space_from: 0,
            space_since: Time::ZERO,
            echoes_mark: false,
            backlog_drops: 0,
            pruned: 0,
            received_packets: 0,
            received_bytes: 0,
        }
    }

    /// Returns the in-order payload in bytes that waits for the application.
    #[must_use]
    pub fn readable_bytes(&self) -> u64 {
        self.readable_bytes
    }

    #[must_use]
    pub fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    #[must_use]
    pub fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    #[must_use]
    pub fn backlog_packets(&self) -> u64 {
        self.backlog.iter().map(|buffer| u64::from(buffer.packets)).sum()
    }

    /// Adds a buffer to the backlog, or drops its packets if the backlog is full.
    pub fn defer(&mut self, buffer: Buffer) {
        let limit = self.buffer + self.send_buffer + BACKLOG_SLACK;
        if OVERHEAD * (self.backlog_bytes + self.readable_bytes) > limit {
            self.backlog_drops += u64::from(buffer.packets);
            return;
        }
        self.backlog_bytes += u64::from(buffer.bytes);
        self.backlog.push(buffer);
    }

    pub fn take_backlog(&mut self) -> Vec<Buffer> {
        self.backlog_bytes = 0;
        std::mem::take(&mut self.backlog)
    }

    /// Passes received packets to TCP and returns the reply. If the receive buffer is full, drops the packets
    /// and returns `None`.
    pub fn receive(&mut self, now: Time, buffer: &Buffer) -> Option<crate::tcp::Reply> {
        let queued = self.readable_bytes + self.receiver.out_of_order_bytes();
        // The last admitted buffer may exceed the limit (`tcp_try_rmem_schedule`).
        if OVERHEAD * queued > self.buffer.max(OVERHEAD * u64::from(buffer.bytes)) {
            self.pruned += u64::from(buffer.packets);
            return None;
        }
        self.received_packets += u64::from(buffer.packets);
        self.received_bytes += u64::from(buffer.bytes);
        let before = self.receiver.delivered();
        let reply = self.receiver.on_data(now, buffer.sequence, buffer.bytes, buffer.packets);
        let new = self.receiver.delivered() - before;
        if new > 0 {
            let packet = (buffer.bytes / buffer.packets.max(1)).max(1);
            self.readable_bytes += new;
            self.readable.push_back(Readable {
                bytes: u32::try_from(new).unwrap_or(u32::MAX),
                packets: u32::try_from(new.div_ceil(u64::from(packet))).unwrap_or(u32::MAX),
                written_before: buffer.written_before,
            });
        }
        Some(reply)
    }

    /// Returns the end of the window to advertise. The window never shrinks.
    pub fn advertise(&mut self) -> u64 {
        let queued = self.readable_bytes + self.backlog_bytes + self.receiver.out_of_order_bytes();
        let window = (self.buffer / OVERHEAD).saturating_sub(queued);
        self.advertised = self.advertised.max(self.receiver.delivered() + window);
        self.advertised
    }

    /// Returns whether the window has opened enough to inform the peer (`tcp_cleanup_rbuf`).
    #[must_use]
    pub fn is_update_due(&self, mss: u32) -> bool {
        let queued = self.readable_bytes + self.backlog_bytes + self.receiver.out_of_order_bytes();
        let window = (self.buffer / OVERHEAD).saturating_sub(queued);
        let known = self.advertised.saturating_sub(self.receiver.delivered());
        window >= 2 * known.max(u64::from(mss))
    }

    /// Returns the next piece of the application's read, at most `most` bytes, without removing it.
    #[must_use]
    pub fn chunk(&self, most: u32) -> Chunk {
        let mut chunk = Chunk { written_before: u64::MAX, ..Chunk::default() };
        let most = most.min(self.wanted);
        for part in &self.readable {
            let room = most - chunk.bytes;
            if room == 0 {
                break;
            }
            chunk.written_before = chunk.written_before.min(part.written_before);
            if part.bytes > room {
                chunk.bytes = most;
                break;
            }
            chunk.bytes += part.bytes;
            chunk.packets += part.packets;
            chunk.buffers += 1;
        }
        chunk
    }

    pub fn read(&mut self, now: Time, chunk: Chunk, rtt: Span) {
        let mut left = chunk.bytes;
        while let Some(part) = self.readable.front_mut().filter(|_| left > 0) {
            if part.bytes > left {
                part.bytes -= left;
                break;
            }
            left -= part.bytes;
            self.readable.pop_front();
        }
        self.readable_bytes -= u64::from(chunk.bytes);
        self.copied += u64::from(chunk.bytes);
        self.wanted -= chunk.bytes;
        self.adjust(now, rtt);
    }

    /// Grows the receive buffer if the application read more data in a round trip than before. The new window
    /// is two to four times this data (`tcp_rcv_space_adjust`, Linux 4.15).
    fn adjust(&mut self, now: Time, rtt: Span) {
        // The receiver measures the round trip with timestamps, whose unit is 1 ms (`TCP_TS_HZ`).
        if now.since(self.space_since) < rtt.max(MILLISECOND) {
            return;
        }
        let copied = self.copied - self.space_from;
        if copied > self.space {
            let mut window = 2 * copied;
            if copied >= self.space + self.space / 2 {
                window *= 2;
            } else if copied >= self.space + self.space / 4 {
                window += window / 2;
            }
            self.buffer = self.buffer.max((window * OVERHEAD).min(self.limit));
            self.space = copied;
        }
        (self.space_from, self.space_since) = (self.copied, now);
    }
}
