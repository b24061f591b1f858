//! Flows, identified by the packet headers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
}

impl Transport {
    /// Returns the protocol number in the IP header (IANA, Assigned Internet Protocol Numbers).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// Returns the name in policy files and in `search solve`.
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
/// A flow consists of its data packets: IP packets without VLAN tag, to the interface's own hardware
/// address. Fragments and connection requests (SYN) do not belong to a flow. Fields of
/// [`crate::FilterMatch`] that are not in the five-tuple have the values of data packets.
///
/// Both addresses have the same IP version. Otherwise no filter with a five-tuple matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowTuple {
    pub transport: Transport,
    pub source: IpAddr,
    pub source_port: u16,
    pub destination: IpAddr,
    pub destination_port: u16,
}

impl FlowTuple {
    /// Creates a UDP flow over IPv4, with the addresses as numbers.
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
