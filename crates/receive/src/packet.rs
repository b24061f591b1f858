//! A received packet, with the fields that NICs use.

use std::net::{IpAddr, Ipv4Addr};

use crate::flow::{FlowTuple, Transport};
use crate::key::{bits, is_ip};

/// The headers of a received packet.
///
/// A missing field is 0, for example the ports of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// The destination's hardware address, unless it is the interface's own.
    pub mac_destination: Option<[u8; 6]>,
    /// Fields that the function nodes of a graph use.
    pub header: Header,
    pub source: IpAddr,
    pub source_port: u16,
    pub destination: IpAddr,
    pub destination_port: u16,
}

impl Packet {
    #[must_use]
    pub fn of(flow: &FlowTuple) -> Self {
        Self {
            mac_destination: None,
            header: Header::of(flow),
            source: flow.source,
            source_port: flow.source_port,
            destination: flow.destination,
            destination_port: flow.destination_port,
        }
    }

    /// Returns the packet's flow; `None` for fragments, and for protocols other than TCP and UDP.
    #[must_use]
    pub fn flow(&self) -> Option<FlowTuple> {
        let transports = [Transport::Tcp, Transport::Udp];
        let transport =
            transports.into_iter().find(|transport| transport.number() == self.header.protocol)?;
        let flow = FlowTuple {
            transport,
            source: self.source,
            source_port: self.source_port,
            destination: self.destination,
            destination_port: self.destination_port,
        };
        (is_ip(self.header.ether_type) && !self.header.fragment).then_some(flow)
    }

    /// Creates a packet that is not IP, such as ARP.
    #[must_use]
    pub fn of_type(ether_type: u16) -> Self {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            mac_destination: None,
            header: Header { ether_type, ..Header::default() },
            source: nowhere,
            source_port: 0,
            destination: nowhere,
            destination_port: 0,
        }
    }
}

/// The kind of a packet: the fields that the function nodes of a graph use. Addresses and ports are only used
/// by filter tables and the RSS hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Header {
    /// The Ethernet type, after a VLAN tag if there is one.
    pub ether_type: u16,
    /// The protocol in the IP header; 0 if the packet is not IP.
    pub protocol: u8,
    /// Whether the packet is an IP fragment. The NIC cannot read the ports of a fragment.
    pub fragment: bool,
    /// Whether the group bit of the destination's hardware address is set.
    pub multicast: bool,
    /// Whether the packet requests a connection: SYN without ACK (RFC 9293, section 3.1).
    pub connection_request: bool,
}

impl Header {
    #[must_use]
    pub fn of(flow: &FlowTuple) -> Self {
        let (_, ether_type) = bits(flow.destination);
        Self { ether_type, protocol: flow.transport.number(), ..Self::default() }
    }
}
