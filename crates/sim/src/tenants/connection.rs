//! A TCP connection between two programs of the test bed. It consists of the send buffer with Nagle's
//! algorithm and automatic corking, the sender, and the receiver with its unread data.

use crate::segment::{Segment, truesize};
use crate::tcp::{Blocked, Receiver, ReceiverConfig, Sender, SenderConfig};
use crate::time::Time;

/// Largest send buffer in bytes (`tcp_wmem`).
const LARGEST_SEND_BUFFER: u64 = 4 << 20;
/// Send buffer memory in bytes per packet of the congestion window: twice the memory of a full packet
/// (`tcp_sndbuf_expand`: 2048 for the packet and its head, 256 for `sk_buff`).
const SEND_BUFFER_PER_PACKET: u64 = 2 * (2048 + 256);
/// Initial size of the send buffer in packets (`TCP_INIT_CWND`).
const INITIAL_PACKETS: u64 = 10;
/// Unread bytes that a receiver accepts: half of the largest buffer (`tcp_rmem`).
const RECEIVE_WINDOW: u64 = 3 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    mss: u64,
    /// Segment size in bytes that corking waits for (`size_goal`).
    goal: u64,
    /// Whether small packets are sent immediately (`TCP_NODELAY`).
    no_delay: bool,
    /// Bytes written by the program, and bytes passed to the sender. The difference waits for a full
    /// packet, for an acknowledgement, or for space in the receive window.
    written: u64,
    given: u64,
    /// End of the last small packet in the stream (`snd_sml`).
    small_end: u64,
    /// Whether the connection waits until one of its segments leaves the host (`TSQ_THROTTLED` by
    /// `tcp_should_autocork`).
    corked: bool,
    buffer: u64,
    low_water: u64,
    pub(super) read: u64,
    /// Whether the written data exceeds the space in the receive window.
    pub(super) window_full: bool,
    pub(super) writer: u32,
    pub(super) reader: u32,
    /// The opposite direction, if it carries data.
    pub(super) reverse: Option<u32>,
}

impl Connection {
    pub(super) fn new(config: &SenderConfig, flow: u32, hash: u32, no_delay: bool) -> Self {
        // A program that responds immediately sends acknowledgements with its responses.
        let quick_acks = if no_delay { 0 } else { ReceiverConfig::default().quick_acks };
        let receiver = ReceiverConfig { mss: config.mss, quick_acks, ..ReceiverConfig::default() };
        let goal = if config.tso {
            u64::from(config.gso_max_bytes / config.mss * config.mss)
        } else {
            config.mss.into()
        };
        Self {
            sender: Sender::new(config, flow, hash),
            receiver: Receiver::new(&receiver),
            mss: u64::from(config.mss),
            goal,
            no_delay,
            written: 0,
            given: 0,
            small_end: 0,
            corked: false,
            buffer: INITIAL_PACKETS * SEND_BUFFER_PER_PACKET,
            low_water: u64::MAX,
            read: 0,
            window_full: false,
            writer: 0,
            reader: 0,
            reverse: None,
        }
    }

    pub(super) fn between(self, writer: u32, reader: u32, reverse: Option<u32>) -> Self {
        Self { writer, reader, reverse, ..self }
    }

    pub(super) fn is_probe(&self) -> bool {
        self.reverse.is_some()
    }

    /// Sets the number of unsent bytes at which the program stops writing (`TCP_NOTSENT_LOWAT`).
    pub(super) fn with_low_water(self, bytes: u64) -> Self {
        Self { low_water: bytes, ..self }
    }

    /// Returns the number of bytes that the program may write: the space in the send buffer, or 0 if the
    /// unsent bytes have reached the low-water mark.
    pub(super) fn room(&mut self) -> u64 {
        let wanted = u64::from(self.sender.window_packets()) * SEND_BUFFER_PER_PACKET;
        self.buffer = self.buffer.max(wanted.min(LARGEST_SEND_BUFFER));
        let room = self.buffer.saturating_sub(self.written - self.sender.delivered());
        if self.unsent() < self.low_water { room } else { 0 }
    }

    /// Returns whether to wake a program that waits for buffer space. A third of the buffer must be
    /// free, and less than half of the low-water mark may be unsent (`sk_stream_write_space`).
    pub(super) fn has_space(&mut self) -> bool {
        self.room() >= self.buffer / 3 && self.unsent() < self.low_water / 2
    }

    pub(super) fn write(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Returns the number of bytes that are written but not sent.
    pub(super) fn unsent(&self) -> u64 {
        self.written - self.given + self.sender.unsent()
    }

    /// Returns the number of bytes that are received but not read.
    pub(super) fn readable(&self) -> u64 {
        self.receiver.delivered() - self.read
    }

    /// Returns whether the receiver sends a window update: the window was full, and at least half of the
    /// window is free.
    pub(super) fn opens_window(&mut self) -> bool {
        let opens = self.window_full && self.readable() <= RECEIVE_WINDOW / 2;
        self.window_full &= !opens;
        opens
    }

    /// Sets whether the program waits for space in the send buffer.
    pub(super) fn set_waiting(&mut self, waiting: bool) {
        self.sender.set_buffer_full(waiting);
    }

    /// Passes data to the sender: whole packets, and a small packet only if Minshall's variant of
    /// Nagle's algorithm allows it (`tcp_minshall_check`: one unacknowledged small packet at a time).
    fn give(&mut self) {
        let room = (self.read + RECEIVE_WINDOW).saturating_sub(self.given);
        let wanted = self.written - self.given;
        self.window_full = wanted > room;
        let waiting = wanted.min(room);
        if waiting == 0 {
            return;
        }
        let unsent = self.sender.unsent() + waiting;
        let tail = unsent % self.mss;
        let small_is_out = self.small_end > self.sender.delivered();
        let give = if tail == 0 || self.no_delay || !small_is_out {
            if tail > 0 {
                self.small_end = self.given + waiting;
            }
            waiting
        } else {
            waiting.saturating_sub(tail)
        };
        if give > 0 {
            self.given += give;
            self.sender.write(give);
        }
    }

    /// Handles the end of a write. Returns whether the last segment waits for more data because another
    /// segment of the flow is still in the host (`tcp_should_autocork`).
    pub(super) fn corks(&mut self) -> bool {
        let tail = self.unsent();
        let below = self.sender.bytes_below();
        let corks = tail < self.goal
            && below > u64::from(truesize(tail as u32))
            && self.sender.in_flight() > 0
            && !self.no_delay;
        self.corked |= corks;
        corks
    }

    /// Returns the next segment, or the reason why no segment may be sent.
    pub(super) fn next_segment(&mut self, now: Time) -> Result<Segment, Blocked> {
        self.give();
        self.sender.next_segment(now)
    }

    /// Handles a segment that has left the host. Returns whether this segment had blocked the flow and
    /// the flow may send.
    pub(super) fn freed(&mut self, segment: &Segment) -> bool {
        let throttled = self.sender.freed(segment);
        std::mem::take(&mut self.corked) || throttled
    }

    /// Returns the next deadline: the sender's timers, or the end of pacing, which is `until`.
    pub(super) fn deadline(&self, until: Option<Time>) -> Time {
        self.sender.deadline().min(until.unwrap_or(Time::NEVER))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::tcp::{Ack, Profile};
    use crate::time::MICROSECOND;

    fn connection(no_delay: bool) -> Connection {
        let config =
            SenderConfig { handshake_rtt: 50 * MICROSECOND, ..SenderConfig::new(Profile::Linux6_18) };
        Connection::new(&config, 0, 1, no_delay)
    }

    /// Sends all segments that may be sent, and returns their payloads.
    fn sent(connection: &mut Connection) -> Vec<u32> {
        std::iter::from_fn(|| connection.next_segment(Time::ZERO).ok())
            .map(|segment| segment.payload)
            .collect()
    }

    #[test]
    fn one_small_packet_at_a_time() {
        let mut nagle = connection(false);
        nagle.write(100);
        assert_eq!(sent(&mut nagle), [100]);
        nagle.write(200);
        assert!(sent(&mut nagle).is_empty());
        nagle.write(1448);
        assert_eq!(sent(&mut nagle), [1448]);
        nagle.sender.on_ack(Time(50 * MICROSECOND), &Ack { cumulative: 100, ..Ack::default() });
        assert_eq!(sent(&mut nagle), [200]);
        assert_eq!(nagle.unsent(), 0);

        let mut direct = connection(true);
        for _ in 0..2 {
            direct.write(100);
            assert_eq!(sent(&mut direct), [100]);
        }
    }

    #[test]
    fn what_the_program_does_not_read_holds_the_sender_up() {
        let mut connection = connection(true);
        connection.write(RECEIVE_WINDOW + 5000);
        connection.give();
        assert!(connection.window_full);
        assert_eq!(connection.unsent() - connection.sender.unsent(), 5000);
        connection.read = 4000;
        connection.give();
        assert_eq!(connection.unsent() - connection.sender.unsent(), 1000);
    }

    #[test]
    fn a_short_segment_waits_while_a_long_one_is_in_the_host() {
        let mut connection = connection(false);
        connection.write(10_000);
        assert!(!connection.corks());
        let first = connection.next_segment(Time::ZERO).unwrap();
        connection.write(1000);
        assert!(connection.corks());
        assert!(connection.freed(&first));
        assert!(!connection.freed(&first));
    }
}
