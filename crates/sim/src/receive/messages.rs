//! Payload, transmission time and processing time of requests and responses.

use evenkeel_model::scenario::ServerKind;
use evenkeel_model::units::{BitRate, ByteSize};

use crate::costs::queue_pairs::ReceiveCosts;
use crate::time::{SECOND, Span};

impl ReceiveCosts {
    /// Returns the time that a queue pair's thread takes for a request.
    pub(super) fn receiving(&self, request: &Message) -> Span {
        self.receive + self.byte * request.payload
    }

    /// Returns the time that a queue pair's thread takes for a response.
    pub(super) fn transmitting(&self, response: &Message) -> Span {
        self.transmit + self.byte * response.payload
    }

    /// Returns the time that a client's thread takes for one message of a transaction.
    pub(super) fn handling(&self, message: &Message) -> Span {
        self.client / 2 + self.byte * message.payload
    }

    /// Returns the time that the application takes for a transaction.
    pub(super) fn answering(&self, server: ServerKind, transaction: &Transaction) -> Span {
        let fixed = match server {
            ServerKind::Echo => self.echo,
            ServerKind::Memcached => self.memcached,
        };
        fixed + self.byte * (transaction.request.payload + transaction.response.payload)
    }
}

/// Ethernet overhead of an IP packet: header and checksum; smallest frame; preamble and gap (IEEE 802.3).
const FRAME_OVERHEAD: u64 = 18;
const LEAST_FRAME: u64 = 64;
const LINE_OVERHEAD: u64 = 20;
/// Headers of IPv4 and UDP (RFC 791, RFC 768).
const PACKET_HEADERS: u64 = 28;
/// The frame header of memcached's UDP protocol (memcached, doc/protocol.txt).
const UDP_FRAME: u64 = 8;
/// memaslap's default length of a key.
const KEY: u64 = 64;
/// `get KEY\r\n`.
const GET: u64 = UDP_FRAME + KEY + 6;
/// `VALUE KEY FLAGS BYTES\r\n` and `\r\nEND\r\n`, around the value.
const VALUE: u64 = UDP_FRAME + KEY + 23;
/// `set KEY FLAGS TIME BYTES\r\n` and `\r\n`, around the value.
const SET: u64 = UDP_FRAME + KEY + 17;
/// `STORED\r\n`.
const STORED: u64 = UDP_FRAME + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// In bytes.
    pub payload: u64,
    pub wire: Span,
}

impl Message {
    fn new(payload: u64, rate: BitRate) -> Self {
        let bytes = (payload + PACKET_HEADERS + FRAME_OVERHEAD).max(LEAST_FRAME) + LINE_OVERHEAD;
        let bits = u128::from(bytes) * 8 * u128::from(SECOND);
        // The result fits: the slowest line takes one second per bit.
        let wire = bits / u128::from(rate.bits_per_second().max(1));
        Self { payload, wire: u64::try_from(wire).unwrap_or(Span::MAX) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transaction {
    pub request: Message,
    pub response: Message,
}

impl Transaction {
    /// Returns a transaction whose request has no value: an echo, or a get of memcached.
    pub(super) fn of(server: ServerKind, message: ByteSize, rate: BitRate) -> Self {
        let (request, response) = match server {
            ServerKind::Echo => (message.bytes(), message.bytes()),
            ServerKind::Memcached => (GET, VALUE + message.bytes()),
        };
        Self { request: Message::new(request, rate), response: Message::new(response, rate) }
    }

    pub(super) fn set(message: ByteSize, rate: BitRate) -> Self {
        Self { request: Message::new(SET + message.bytes(), rate), response: Message::new(STORED, rate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::queue_pairs::MEMCACHED_1024;
    use crate::time::NANOSECOND;

    #[test]
    fn the_costs_of_the_papers_messages_are_the_papers() {
        let rate = BitRate::from_bits_per_second(10_000_000_000);
        let costs = ReceiveCosts::DRAGONET;
        let work = |bytes| {
            let echo = Transaction::of(ServerKind::Echo, ByteSize::from_bytes(bytes), rate);
            costs.receiving(&echo.request) + costs.transmitting(&echo.response)
        };
        assert_eq!(work(1024), 10_800 * NANOSECOND);
        // The difference is 960 bytes in each direction.
        assert_eq!(work(1024) - work(64), 384 * NANOSECOND);
    }

    #[test]
    fn time_on_the_wire_is_that_of_the_frame() {
        let rate = BitRate::from_bits_per_second(10_000_000_000);
        let echo = Transaction::of(ServerKind::Echo, ByteSize::from_bytes(1024), rate);
        // 1024 + 8 UDP + 20 IP + 14 Ethernet + 4 checksum + 20 preamble and gap, at 0.8 ns per byte.
        assert_eq!(echo.request.wire, 1090 * 800);
        assert_eq!(echo.request, echo.response);
        let tiny = Transaction::of(ServerKind::Echo, ByteSize::from_bytes(1), rate);
        assert_eq!(tiny.request.wire, 84 * 800);
        let get = Transaction::of(ServerKind::Memcached, ByteSize::from_bytes(1024), rate);
        assert_eq!((get.request.payload, get.response.payload), (78, 1119));
        let asking = get.request.payload + get.response.payload;
        let set = Transaction::set(ByteSize::from_bytes(1024), rate);
        assert_eq!((set.request.payload, set.response.payload), (1113, 16));
        // The mean with 10 % sets.
        let setting = set.request.payload + set.response.payload;
        assert_eq!((9 * asking + setting) / 10, MEMCACHED_1024);
    }
}
