//! TCP and UDP sockets from the kernel's `sock_diag` interface, which `ss` uses
//! (`include/uapi/linux/inet_diag.h`, sock_diag(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};

use crate::transport::{Connection, NetlinkError, RawMessage};

/// `NETLINK_SOCK_DIAG`.
const PROTOCOL: isize = 4;
/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states and a `struct inet_diag_sockid`.
const REQUEST_LENGTH: usize = 56;
/// `struct inet_diag_msg`.
const MESSAGE_LENGTH: usize = 72;
/// `INET_DIAG_INFO`, `INET_DIAG_CONG`, `INET_DIAG_SKMEMINFO`, `INET_DIAG_CGROUP_ID`.
const ATTRIBUTE_INFO: u16 = 2;
const ATTRIBUTE_CONGESTION: u16 = 4;
const ATTRIBUTE_MEMORY: u16 = 7;
const ATTRIBUTE_CGROUP: u16 = 21;
/// `INET_DIAG_NOCOOKIE`, in both words of the request's cookie.
const NO_COOKIE: u32 = u32::MAX;
/// Offsets in `struct tcp_info` (`include/uapi/linux/tcp.h`) of `tcpi_bytes_acked`, `tcpi_bytes_received`,
/// `tcpi_segs_out` and `tcpi_segs_in`.
const INFO_BYTES_ACKED: usize = 120;
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_SEGMENTS_OUT: usize = 136;
const INFO_SEGMENTS_IN: usize = 140;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketProtocol {
    Tcp,
    Udp,
}

impl SocketProtocol {
    const fn number(self) -> u8 {
        match self {
            Self::Tcp => libc::IPPROTO_TCP as u8,
            Self::Udp => libc::IPPROTO_UDP as u8,
        }
    }
}

/// State of a socket (`include/net/tcp_states.h`); a connected UDP socket is `TCP_ESTABLISHED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketState(pub u8);

impl SocketState {
    pub const ESTABLISHED: Self = Self(1);
    /// `TCP_CLOSE`, which is also the state of an unconnected UDP socket.
    pub const CLOSE: Self = Self(7);
    pub const LISTEN: Self = Self(10);

    const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// Counters of a TCP socket since it was connected (`struct tcp_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounters {
    /// Payload sent and acknowledged, bytes (`tcpi_bytes_acked`).
    pub bytes_acked: u64,
    /// Payload received in order, bytes (`tcpi_bytes_received`).
    pub bytes_received: u64,
    /// Segments sent (`tcpi_segs_out`), modulo 2^32.
    pub segments_out: u32,
    /// Segments received (`tcpi_segs_in`), modulo 2^32.
    pub segments_in: u32,
}

/// Buffers and TCP state of a socket (`struct tcp_info`, `sk_get_meminfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketDetail {
    /// TCP: unsent and unacknowledged bytes; for a listener, the backlog limit. UDP: memory of unsent
    /// packets, bytes.
    pub send_queue: u32,
    /// `sk_rcvbuf`, bytes.
    pub receive_buffer: Option<u32>,
    /// `sk_sndbuf`, bytes.
    pub send_buffer: Option<u32>,
    /// Packets dropped at the socket (`sk_drops`).
    pub drops: u32,
    pub congestion: Option<String>,
    /// Smoothed round-trip time, µs.
    pub rtt_us: u32,
    /// Minimum round-trip time, µs; `u32::MAX` before the first measurement.
    pub min_rtt_us: u32,
    pub cwnd: u32,
    /// Maximum segment size, bytes.
    pub mss: u32,
    /// Path MTU, bytes.
    pub pmtu: u32,
    pub retransmitted: u32,
    /// Time with data to send, µs.
    pub busy_us: u64,
    /// Time limited by the receiver's window, µs.
    pub receiver_limited_us: u64,
    /// Time limited by the send buffer, µs.
    pub sender_limited_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketRecord {
    pub protocol: SocketProtocol,
    pub state: SocketState,
    /// Local address and port. An IPv4-mapped IPv6 address (`::ffff:a.b.c.d`) is converted to IPv4, like the
    /// addresses of its packets.
    pub local: SocketAddr,
    /// Remote address and port; unspecified with port 0 if not connected.
    pub remote: SocketAddr,
    /// Index of the interface to which the socket is bound; 0 if the socket is not bound.
    pub interface: u32,
    /// `sk->sk_cookie`, unique since boot.
    pub cookie: u64,
    /// TCP: unread bytes; for a listener, connections waiting for accept(2). UDP: memory of unread packets,
    /// bytes.
    pub receive_queue: u32,
    pub uid: u32,
    /// Inode of the socket's file, as in the links of `/proc/PID/fd`; 0 if no process has the socket
    /// open.
    pub inode: u32,
    /// Id of the socket's version-2 cgroup, which is the inode of the cgroup's directory; `None` if the
    /// kernel does not report it (Linux before 5.8, sockets in the state TIME-WAIT).
    pub cgroup: Option<u64>,
    pub counters: Option<SocketCounters>,
}

/// Queries the sockets of the network namespace in which it was opened.
pub struct SocketDiagnosis {
    connection: Connection,
}

impl SocketDiagnosis {
    /// Opens a socket in the current network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { connection: Connection::open(PROTOCOL)? })
    }

    /// Returns the sockets of a protocol, IPv4 and IPv6, in one of the given states.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks `inet_diag`.
    pub fn sockets(
        &mut self,
        protocol: SocketProtocol,
        states: &[SocketState],
    ) -> Result<Vec<SocketRecord>, NetlinkError> {
        self.list(protocol, states, extension(ATTRIBUTE_INFO), parse)
    }

    /// Returns the sockets like [`Self::sockets`], with the details of each socket.
    pub fn sockets_in_detail(
        &mut self,
        protocol: SocketProtocol,
        states: &[SocketState],
    ) -> Result<Vec<(SocketRecord, SocketDetail)>, NetlinkError> {
        self.list(protocol, states, DETAILS, in_detail)
    }

    /// Returns the TCP connection with these ends over an interface, with its details; `None` if this
    /// host has no such socket. For a few of many connections, this function costs less than
    /// [`Self::sockets_in_detail`].
    pub fn connection_in_detail(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        interface: u32,
    ) -> Result<Option<(SocketRecord, SocketDetail)>, NetlinkError> {
        const ACTION: &str = "find a socket";
        let payload = request_of_connection(local, remote, interface);
        let message = RawMessage { kind: BY_FAMILY, payload };
        let answers = match self.connection.exchange(message, NLM_F_REQUEST | NLM_F_ACK, ACTION) {
            Err(error) if error.refusal_code() == Some(libc::ENOENT) => return Ok(None),
            answers => answers?,
        };
        let Some(answer) = answers.first() else { return Ok(None) };
        let (record, detail) = in_detail(&answer.payload, SocketProtocol::Tcp)
            .ok_or_else(|| too_short(ACTION, answer.payload.len()))?;
        // Without a connection, the kernel returns a listener (`__inet_lookup`,
        // include/net/inet_hashtables.h).
        let is_same = record.local == local && record.remote == remote;
        Ok(is_same.then_some((record, detail)))
    }

    fn list<T>(
        &mut self,
        protocol: SocketProtocol,
        states: &[SocketState],
        extensions: u8,
        parse: impl Fn(&[u8], SocketProtocol) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        const ACTION: &str = "list sockets";
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let payload = request(family as u8, protocol, states, extensions);
            let message = RawMessage { kind: BY_FAMILY, payload };
            let answers = self.connection.exchange(message, NLM_F_REQUEST | NLM_F_DUMP, ACTION)?;
            for answer in answers {
                found.push(
                    parse(&answer.payload, protocol)
                        .ok_or_else(|| too_short(ACTION, answer.payload.len()))?,
                );
            }
        }
        Ok(found)
    }
}

/// Returns the bit that requests an attribute.
const fn extension(attribute: u16) -> u8 {
    1 << (attribute - 1)
}

const DETAILS: u8 = extension(ATTRIBUTE_INFO) | extension(ATTRIBUTE_CONGESTION) | extension(ATTRIBUTE_MEMORY);

fn request(family: u8, protocol: SocketProtocol, states: &[SocketState], extensions: u8) -> Vec<u8> {
    let mut bytes = vec![family, protocol.number(), extensions, 0];
    let mask = states.iter().fold(0, |mask, state| mask | state.bit());
    bytes.extend(mask.to_ne_bytes());
    bytes.resize(REQUEST_LENGTH - 8, 0);
    bytes.extend(NO_COOKIE.to_ne_bytes());
    bytes.extend(NO_COOKIE.to_ne_bytes());
    bytes
}

fn request_of_connection(local: SocketAddr, remote: SocketAddr, interface: u32) -> Vec<u8> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = vec![family as u8, SocketProtocol::Tcp.number(), DETAILS, 0];
    bytes.extend(u32::MAX.to_ne_bytes());
    // struct inet_diag_sockid
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        let start = bytes.len();
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
        bytes.resize(start + 16, 0);
    }
    bytes.extend(interface.to_ne_bytes());
    bytes.extend(NO_COOKIE.to_ne_bytes());
    bytes.extend(NO_COOKIE.to_ne_bytes());
    bytes
}

fn in_detail(payload: &[u8], protocol: SocketProtocol) -> Option<(SocketRecord, SocketDetail)> {
    Some((parse(payload, protocol)?, detail(payload, protocol)?))
}

fn too_short(action: &str, length: usize) -> NetlinkError {
    NetlinkError::Answer { action: action.to_owned(), reason: format!("a socket of {length} bytes") }
}

/// Reads numbers at offsets of a structure.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const LENGTH: usize>(&self, at: usize) -> Option<[u8; LENGTH]> {
        self.0.get(at..at.checked_add(LENGTH)?)?.try_into().ok()
    }

    fn u16_network(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }
}

fn parse(payload: &[u8], protocol: SocketProtocol) -> Option<SocketRecord> {
    let fields = Fields(payload);
    let family = i32::from(*payload.first()?);
    let address = |at| {
        if family == libc::AF_INET {
            fields.array::<4>(at).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)))
        } else {
            fields.array::<16>(at).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical())
        }
    };
    let mut record = SocketRecord {
        protocol,
        state: SocketState(*payload.get(1)?),
        local: SocketAddr::new(address(8)?, fields.u16_network(4)?),
        remote: SocketAddr::new(address(24)?, fields.u16_network(6)?),
        interface: fields.u32(40)?,
        cookie: u64::from(fields.u32(44)?) | u64::from(fields.u32(48)?) << 32,
        receive_queue: fields.u32(56)?,
        uid: fields.u32(64)?,
        inode: fields.u32(68)?,
        cgroup: None,
        counters: None,
    };
    each_attribute(payload, |kind, value| match kind {
        ATTRIBUTE_CGROUP => record.cgroup = value.u64(0),
        ATTRIBUTE_INFO if protocol == SocketProtocol::Tcp => record.counters = counters(value),
        _ => {}
    })?;
    Some(record)
}

/// Passes each attribute to `take`. Returns `None` if the message or an attribute is truncated.
fn each_attribute(payload: &[u8], mut take: impl FnMut(u16, &Fields<'_>)) -> Option<()> {
    let mut rest = payload.get(MESSAGE_LENGTH..)?;
    while rest.len() >= 4 {
        let header = Fields(rest);
        let (length, kind) = (usize::from(header.u16(0)?), header.u16(2)?);
        take(kind, &Fields(rest.get(4..length)?));
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    Some(())
}

fn detail(payload: &[u8], protocol: SocketProtocol) -> Option<SocketDetail> {
    let mut detail = SocketDetail { send_queue: Fields(payload).u32(60)?, ..SocketDetail::default() };
    each_attribute(payload, |kind, value| match kind {
        // sk_get_meminfo: rmem_alloc, rcvbuf, wmem_alloc, sndbuf, fwd_alloc, wmem_queued, optmem, backlog,
        // drops
        ATTRIBUTE_MEMORY => {
            (detail.receive_buffer, detail.send_buffer) = (value.u32(4), value.u32(12));
            detail.drops = value.u32(32).unwrap_or(0);
        }
        ATTRIBUTE_CONGESTION => {
            let name = value.0.split(|byte| *byte == 0).next().unwrap_or_default();
            detail.congestion = Some(String::from_utf8_lossy(name).into_owned());
        }
        ATTRIBUTE_INFO if protocol == SocketProtocol::Tcp => {
            let word = |at| value.u32(at).unwrap_or(0);
            let long = |at| value.u64(at).unwrap_or(0);
            (detail.mss, detail.pmtu, detail.rtt_us) = (word(16), word(60), word(68));
            (detail.cwnd, detail.retransmitted, detail.min_rtt_us) = (word(80), word(100), word(148));
            detail.busy_us = long(168);
            (detail.receiver_limited_us, detail.sender_limited_us) = (long(176), long(184));
        }
        _ => {}
    })?;
    Some(detail)
}

/// Returns the counters, or `None` if the structure ends before the counters, as on kernels before 4.2.
fn counters(info: &Fields<'_>) -> Option<SocketCounters> {
    Some(SocketCounters {
        bytes_acked: info.u64(INFO_BYTES_ACKED)?,
        bytes_received: info.u64(INFO_BYTES_RECEIVED)?,
        segments_out: info.u32(INFO_SEGMENTS_OUT)?,
        segments_in: info.u32(INFO_SEGMENTS_IN)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    fn inode(descriptor: &impl AsRawFd) -> u32 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap();
        let text = link.to_str().unwrap().strip_prefix("socket:[").unwrap().strip_suffix(']').unwrap();
        text.parse().unwrap()
    }

    fn find(sockets: &[SocketRecord], inode: u32) -> &SocketRecord {
        sockets.iter().find(|socket| socket.inode == inode).expect("the socket is listed")
    }

    #[test]
    fn a_connection_is_listed_with_what_it_has_carried() {
        // This is an IPv4 connection to an IPv6 listener.
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1234]).unwrap();
        let mut diagnosis = SocketDiagnosis::open().unwrap();
        let sockets =
            diagnosis.sockets(SocketProtocol::Tcp, &[SocketState::ESTABLISHED, SocketState::LISTEN]).unwrap();
        let found = find(&sockets, inode(&server));
        assert_eq!(found.local, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        assert_eq!(found.remote, client.local_addr().unwrap());
        assert_eq!(found.state, SocketState::ESTABLISHED);
        assert_eq!(found.receive_queue, 1234);
        assert_eq!(found.counters.unwrap().bytes_received, 1234);
        assert!(found.counters.unwrap().segments_in >= 2);
        assert_ne!(found.cookie, 0);
        let sent = find(&sockets, inode(&client)).counters.unwrap();
        assert!(sent.bytes_acked >= 1234 && sent.segments_out >= 2, "{sent:?}");
        assert_eq!(find(&sockets, inode(&listener)).state, SocketState::LISTEN);
        let connected = diagnosis.sockets(SocketProtocol::Tcp, &[SocketState::ESTABLISHED]).unwrap();
        assert!(connected.iter().all(|socket| socket.state == SocketState::ESTABLISHED));
    }

    #[test]
    fn a_socket_tells_how_it_fares() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1234]).unwrap();
        let mut diagnosis = SocketDiagnosis::open().unwrap();
        let sockets = diagnosis
            .sockets_in_detail(SocketProtocol::Tcp, &[SocketState::ESTABLISHED, SocketState::LISTEN])
            .unwrap();
        let find = |wanted| &sockets.iter().find(|(record, _)| record.inode == wanted).unwrap().1;
        let detail = find(inode(&client));
        assert!(detail.rtt_us > 0 && detail.min_rtt_us <= detail.rtt_us && detail.cwnd > 0, "{detail:?}");
        assert!(detail.pmtu >= 1280 && detail.mss > 0 && detail.send_buffer.unwrap() > 0, "{detail:?}");
        assert!(!detail.congestion.clone().unwrap().is_empty() && detail.retransmitted == 0, "{detail:?}");
        assert!(find(inode(&server)).receive_buffer.unwrap() > 0);
        assert!(find(inode(&listener)).send_queue > 0, "a listener's backlog");
    }

    #[test]
    fn a_connection_is_found_by_its_ends() {
        let mut diagnosis = SocketDiagnosis::open().unwrap();
        // The second case is IPv4 between an IPv4 socket and an IPv6 socket.
        for (listens_at, address) in [("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let listener = TcpListener::bind(listens_at).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((address, port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (one, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            for (socket, local, remote) in [(&client, one, other), (&server, other, one)] {
                let (record, detail) = diagnosis.connection_in_detail(local, remote, 1).unwrap().unwrap();
                assert_eq!((record.inode, record.local, record.remote), (inode(socket), local, remote));
                assert!(detail.cwnd > 0 && detail.congestion.is_some(), "{detail:?}");
            }
            // For a port without a connection, the kernel returns the listener, which the function must
            // ignore.
            let closed = SocketAddr::new(one.ip(), 1);
            assert_eq!(diagnosis.connection_in_detail(other, closed, 1).unwrap(), None);
            assert_eq!(diagnosis.connection_in_detail(closed, closed, 1).unwrap(), None);
        }
    }

    #[test]
    fn udp_sockets_are_connected_or_not() {
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let connected = UdpSocket::bind("[::1]:0").unwrap();
        connected.connect("[::1]:9").unwrap();
        let mut diagnosis = SocketDiagnosis::open().unwrap();
        let sockets =
            diagnosis.sockets(SocketProtocol::Udp, &[SocketState::ESTABLISHED, SocketState::CLOSE]).unwrap();
        assert_eq!(find(&sockets, inode(&connected)).remote, "[::1]:9".parse().unwrap());
        assert_eq!(find(&sockets, inode(&connected)).state, SocketState::ESTABLISHED);
        assert_eq!(find(&sockets, inode(&bound)).state, SocketState::CLOSE);
        assert_eq!(find(&sockets, inode(&bound)).counters, None);
    }

    #[test]
    fn what_is_cut_short_is_no_socket() {
        let whole = {
            let mut bytes = vec![0; MESSAGE_LENGTH];
            bytes[0] = libc::AF_INET as u8;
            bytes.extend([12, 0, ATTRIBUTE_CGROUP as u8, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
            bytes
        };
        assert_eq!(parse(&whole, SocketProtocol::Tcp).unwrap().cgroup, Some(5));
        for length in 0..MESSAGE_LENGTH {
            assert_eq!(parse(&whole[..length], SocketProtocol::Tcp), None, "{length}");
        }
        let mut endless = whole.clone();
        endless[MESSAGE_LENGTH] = 2;
        assert_eq!(parse(&endless, SocketProtocol::Tcp), None);
        let mut beyond = whole;
        beyond[MESSAGE_LENGTH] = 200;
        assert_eq!(parse(&beyond, SocketProtocol::Tcp), None);
    }
}
