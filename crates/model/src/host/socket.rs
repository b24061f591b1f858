//! Sockets and the processes that own them.

use serde::{Deserialize, Serialize};

/// A socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SocketFacts {
    /// What it is.
    pub kind: SocketKind,
    /// Its own end, address and port.
    pub local: String,
    /// The other end; empty if it is not connected.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote: String,
    /// The interface that has its address, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The process that has it open, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Bytes that wait to be read; of a listener, connections that wait to be accepted.
    pub receive_queue: u64,
    /// Bytes that wait to be sent or acknowledged; of a listener, connections that may wait.
    pub send_queue: u64,
    /// Largest receive buffer now, bytes (`sk_rcvbuf`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u64>,
    /// Largest send buffer now, bytes (`sk_sndbuf`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<u64>,
    /// Packets dropped at the socket (`sk_drops`).
    pub drops: u64,
    /// What TCP tells of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpFacts>,
}

/// What a socket is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketKind {
    /// A TCP connection.
    #[default]
    Tcp,
    /// A TCP socket that accepts connections.
    TcpListen,
    /// A UDP socket.
    Udp,
}

/// What TCP tells of a connection (`struct tcp_info`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpFacts {
    /// Smoothed round-trip time, µs.
    pub rtt_us: u64,
    /// Smallest round-trip time seen, µs; 0: none yet.
    pub min_rtt_us: u64,
    /// Congestion window, segments.
    pub cwnd: u64,
    /// Largest segment it sends, bytes.
    pub mss: u64,
    /// Path MTU, bytes.
    pub pmtu: u64,
    /// Bytes sent and acknowledged.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Segments sent.
    pub segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Congestion control; empty where it is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub congestion: String,
    /// Whether it had to wait for the receiver's window, µs of its life (`tcpi_rwnd_limited`).
    pub receiver_limited_us: u64,
    /// Whether it had to wait for its own send buffer, µs of its life (`tcpi_sndbuf_limited`).
    pub sender_limited_us: u64,
    /// Time during which it had data to send, µs (`tcpi_busy_time`).
    pub busy_us: u64,
}

impl SocketFacts {
    /// Payload carried, both directions, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tcp.as_ref().map_or(0, |tcp| tcp.bytes_acked.saturating_add(tcp.bytes_received))
    }
}

/// The destination that takes the most local ports of outgoing connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortUse {
    /// The address of this host.
    pub local: String,
    /// Address and port of the destination.
    pub remote: String,
    /// Connections to it that are established.
    pub connections: u64,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Its number.
    pub number: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Words of its command line behind its name.
    pub arguments: Vec<String>,
    /// The processor that it ran on last.
    pub processor: Option<u32>,
    /// Processors that it may run on (`Cpus_allowed_list`); empty where that is not known.
    pub allowed: Vec<u32>,
    /// Memory nodes that it may allocate from (`Mems_allowed_list`); empty where that is not known.
    pub memory_nodes: Vec<u32>,
}
