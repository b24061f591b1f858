//! Flows, identified by the headers of received packets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Transport protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
}

impl Transport {
    /// Protocol number in the IP header (IANA, Assigned Internet Protocol Numbers).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// Name in policy files and in `search solve`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A five-tuple of received packets: the source is the peer.
///
/// A flow's packets carry data: IP packets without VLAN tag, to the interface's own hardware address, and
/// neither fragments nor connection requests (SYN). Other fields of [`crate::FilterMatch`] have the values of
/// such packets.
///
/// Both addresses have one IP version. Otherwise no filter with a five-tuple matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowTuple {
    /// Transport protocol.
    pub transport: Transport,
    /// The peer's address.
    pub source: IpAddr,
    /// The peer's port.
    pub source_port: u16,
    /// This host's address.
    pub destination: IpAddr,
    /// This host's port.
    pub destination_port: u16,
}

impl FlowTuple {
    /// UDP over IPv4, with addresses as numbers.
    #[must_use]
    pub const fn udp4(source: u32, source_port: u16, destination: u32, destination_port: u16) -> Self {
        Self {
            transport: Transport::Udp,
            source: IpAddr::V4(Ipv4Addr::from_bits(source)),
            source_port,
            destination: IpAddr::V4(Ipv4Addr::from_bits(destination)),
            destination_port,
        }
    }
}

impl fmt::Display for FlowTuple {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = SocketAddr::new(self.source, self.source_port);
        let destination = SocketAddr::new(self.destination, self.destination_port);
        write!(formatter, "{} {source} > {destination}", self.transport)
    }
}
