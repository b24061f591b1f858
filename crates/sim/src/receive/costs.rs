//! What everything costs on the receive path: one set of figures for all scenarios and variants.

use evenkeel_model::scenario::ServerKind;
use evenkeel_model::units::{BitRate, ByteSize};

use crate::time::{MICROSECOND, NANOSECOND, SECOND, Span};

/// Work, and time on the wire. `docs/receive-simulation.md` has the reasons at length.
///
/// Work on a message is a fixed part and one for its bytes. Where an experiment gives the sum of both, the fixed part is
/// what is left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveCosts {
    /// Work of the thread that serves a queue pair on a request, without its bytes: from the ring to the application.
    ///
    /// Half of a transaction's work on that thread. Dragonet (TRIOS 2015), section 4.2: the median of 20 echo
    /// clients is 46.3 k transactions/s with two of them on each of 10 queues, so a queue serves 92.6 k/s, 10.8 µs each, with
    /// 1024 B either way.
    pub receive: Span,
    /// Work of the same thread on the response: from the application to the ring. The other half.
    pub transmit: Span,
    /// Work of an echo server on a request. An assumption: a system call's worth, on a core that is never the
    /// narrowest place.
    pub echo: Span,
    /// Work of memcached on a request. An assumption: parsing and one look-up, on a core that is never the narrowest
    /// place.
    pub memcached: Span,
    /// Work of a client's thread on a transaction, without its bytes: it reads a response, and makes and sends the next
    /// request.
    ///
    /// Calibrated: the largest throughput that the paper tells of any client is 65.6 k transactions/s (section 4.3), and
    /// its latency says that the time is not spent in the server. This is 15.24 µs with values of 1024 B.
    pub client: Span,
    /// Work of any thread that handles a message, for each byte of its payload: one copy. The estimate of the transmit
    /// side's simulation ([`crate::Parameters`]), 5 GB/s. Checksums cost nothing: both NICs compute them.
    pub byte: Span,
    /// From a NIC to the other host's NIC and into its memory, without the time on the wire: that of the transmit
    /// side's simulation.
    pub line_latency: Span,
}

impl Default for ReceiveCosts {
    fn default() -> Self {
        let byte = NANOSECOND / 5;
        Self {
            receive: 5_400 * NANOSECOND - ECHO * byte,
            transmit: 5_400 * NANOSECOND - ECHO * byte,
            echo: 500 * NANOSECOND,
            memcached: 2 * MICROSECOND,
            client: 15_240 * NANOSECOND - MEMCACHED_1024 * byte,
            byte,
            line_latency: 2 * MICROSECOND,
        }
    }
}

impl ReceiveCosts {
    /// Work of a queue pair's thread on a request.
    pub(super) fn receiving(&self, request: &Message) -> Span {
        self.receive + self.byte * request.payload
    }

    /// Work of a queue pair's thread on a response.
    pub(super) fn transmitting(&self, response: &Message) -> Span {
        self.transmit + self.byte * response.payload
    }

    /// Work of a client's thread on one message of a transaction.
    pub(super) fn handling(&self, message: &Message) -> Span {
        self.client / 2 + self.byte * message.payload
    }

    /// Work of the application on a transaction.
    pub(super) fn answering(&self, server: ServerKind, transaction: &Transaction) -> Span {
        let fixed = match server {
            ServerKind::Echo => self.echo,
            ServerKind::Memcached => self.memcached,
        };
        fixed + self.byte * (transaction.request.payload + transaction.response.payload)
    }
}

/// Payload of the echo whose throughput gives the work of a queue pair, bytes either way.
const ECHO: u64 = 1024;
/// Payload of a transaction of memcached with values of 1024 B and 10 % sets, both ways together, bytes: the mean.
const MEMCACHED_1024: u64 = ((GET + VALUE + 1024) * 9 + (SET + 1024 + STORED)) / 10;

/// Ethernet around an IP packet: header and checksum; the least frame; preamble and gap (IEEE 802.3).
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

/// What a request or a response takes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Bytes of UDP payload.
    pub payload: u64,
    /// Time on the wire.
    pub wire: Span,
}

impl Message {
    fn new(payload: u64, rate: BitRate) -> Self {
        let bytes = (payload + PACKET_HEADERS + FRAME_OVERHEAD).max(LEAST_FRAME) + LINE_OVERHEAD;
        let bits = u128::from(bytes) * 8 * u128::from(SECOND);
        // A second for a bit is the slowest line: it fits.
        let wire = bits / u128::from(rate.bits_per_second().max(1));
        Self { payload, wire: u64::try_from(wire).unwrap_or(Span::MAX) }
    }
}

/// What a transaction takes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transaction {
    pub request: Message,
    pub response: Message,
}

impl Transaction {
    /// That which asks: an echo, or a get.
    pub(super) fn of(server: ServerKind, message: ByteSize, rate: BitRate) -> Self {
        let (request, response) = match server {
            ServerKind::Echo => (message.bytes(), message.bytes()),
            ServerKind::Memcached => (GET, VALUE + message.bytes()),
        };
        Self { request: Message::new(request, rate), response: Message::new(response, rate) }
    }

    /// A set.
    pub(super) fn set(message: ByteSize, rate: BitRate) -> Self {
        Self { request: Message::new(SET + message.bytes(), rate), response: Message::new(STORED, rate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_costs_of_the_papers_messages_are_the_papers() {
        let rate = BitRate::from_bits_per_second(10_000_000_000);
        let costs = ReceiveCosts::default();
        let work = |bytes| {
            let echo = Transaction::of(ServerKind::Echo, ByteSize::from_bytes(bytes), rate);
            costs.receiving(&echo.request) + costs.transmitting(&echo.response)
        };
        assert_eq!(work(1024), 10_800 * NANOSECOND);
        // What 960 bytes less save, both ways.
        assert_eq!(work(1024) - work(64), 384 * NANOSECOND);
    }

    #[test]
    fn time_on_the_wire_is_that_of_the_frame() {
        let rate = BitRate::from_bits_per_second(10_000_000_000);
        let echo = Transaction::of(ServerKind::Echo, ByteSize::from_bytes(1024), rate);
        // 1024 + 8 UDP + 20 IP + 14 Ethernet + 4 checksum + 20 preamble and gap, at 0.8 ns a byte.
        assert_eq!(echo.request.wire, 1090 * 800);
        assert_eq!(echo.request, echo.response);
        let tiny = Transaction::of(ServerKind::Echo, ByteSize::from_bytes(1), rate);
        assert_eq!(tiny.request.wire, 84 * 800);
        let get = Transaction::of(ServerKind::Memcached, ByteSize::from_bytes(1024), rate);
        assert_eq!((get.request.payload, get.response.payload), (78, 1119));
        assert_eq!(MEMCACHED_1024, 1190);
        let set = Transaction::set(ByteSize::from_bytes(1024), rate);
        assert_eq!((set.request.payload, set.response.payload), (1113, 16));
    }
}
