//! Sockets and the processes that own them.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketFacts {
    #[serde(default)]
    pub kind: SocketKind,
    #[serde(default)]
    pub local: String,
    /// Empty if not connected.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remote: String,
    /// The interface with the local address, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// A process that has the socket open, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Unread bytes. For a listener, the number of connections that wait for accept(2).
    pub receive_queue: u64,
    /// Unsent and unacknowledged bytes. For a listener, the backlog limit.
    pub send_queue: u64,
    /// Current receive buffer, bytes (`sk_rcvbuf`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u64>,
    /// Current send buffer, bytes (`sk_sndbuf`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<u64>,
    /// Packets dropped at the socket (`sk_drops`).
    #[serde(default)]
    pub drops: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpFacts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketKind {
    #[default]
    Tcp,
    TcpListen,
    Udp,
    /// A raw socket (`raw(7)`). In place of a port, [`SocketFacts::local`] has the protocol's number.
    Raw,
}

/// TCP's state of a connection (`struct tcp_info`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpFacts {
    /// Smoothed round-trip time, µs.
    pub rtt_us: u64,
    /// Minimum round-trip time, µs; 0 before the first sample.
    pub min_rtt_us: u64,
    /// Congestion window, segments.
    pub cwnd: u64,
    /// Maximum segment size, bytes.
    pub mss: u64,
    /// Path MTU, bytes.
    pub pmtu: u64,
    /// Bytes sent and acknowledged.
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segments_out: u64,
    pub segments_in: u64,
    pub retransmitted: u64,
    /// Congestion control; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub congestion: String,
    /// Time limited by the receiver's window, µs (`tcpi_rwnd_limited`).
    pub receiver_limited_us: u64,
    /// Time limited by the sender's buffer, µs (`tcpi_sndbuf_limited`).
    pub sender_limited_us: u64,
    /// Time with data to send, µs (`tcpi_busy_time`).
    pub busy_us: u64,
}

impl SocketFacts {
    /// Returns the payload of both directions, bytes; 0 without TCP's state.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tcp.as_ref().map_or(0, |tcp| tcp.bytes_acked.saturating_add(tcp.bytes_received))
    }
}

/// The local address and the destination with the most outgoing connections between them. Each connection
/// uses one local port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortUse {
    pub local: String,
    pub remote: String,
    /// Number of established connections from the local address to the destination.
    pub connections: u64,
}

/// Servers that answer small requests from memory. The documentation of these servers recommends tuning
/// for low latency.
pub const LATENCY_SERVERS: [&str; 6] =
    ["redis-server", "valkey-server", "keydb-server", "memcached", "nats-server", "asd"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    pub number: u32,
    /// Process name, at most 15 bytes.
    pub name: String,
    pub arguments: Vec<String>,
    /// CPU on which the process last ran.
    pub processor: Option<u32>,
    /// Allowed CPUs (`Cpus_allowed_list`); empty if unknown.
    pub allowed: Vec<u32>,
    /// Allowed memory nodes (`Mems_allowed_list`); empty if unknown.
    pub memory_nodes: Vec<u32>,
}
