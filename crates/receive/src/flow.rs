//! Flows, as a NIC sees them: by the headers of the packets that it receives.

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

    /// Name as in policy files and in `search solve`.
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

/// A whole five-tuple, as it stands in the packets that are received: the source is the peer.
///
/// The flow's packets are those that carry data: IP packets without VLAN tag that are no fragments, no
/// connection requests (SYN), and addressed to the interface's own hardware address. What else a NIC may
/// look at (see [`crate::FilterMatch`]) is as such packets have it.
///
/// Both addresses are of one IP version. Where they are not, no filter with a whole five-tuple matches.
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
    /// UDP over IPv4, the addresses as numbers.
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
