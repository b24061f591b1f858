//! Packet headers packed into machine words, so that a match is a mask and a comparison.

use std::net::IpAddr;

use crate::filter::{AddressMatch, FilterMatch};
use crate::flow::FlowTuple;
use crate::packet::Packet;

/// IPv4 in the Ethernet header (`ETH_P_IP`, include/uapi/linux/if_ether.h).
pub(crate) const ETHER_TYPE_IPV4: u16 = 0x0800;
/// IPv6 in the Ethernet header (`ETH_P_IPV6`).
pub(crate) const ETHER_TYPE_IPV6: u16 = 0x86dd;

pub(crate) const fn is_ip(ether_type: u16) -> bool {
    ether_type == ETHER_TYPE_IPV4 || ether_type == ETHER_TYPE_IPV6
}

/// The headers of a packet, or a mask over them.
///
/// - `source` and `destination`: IPv4 addresses use the low 32 bits
/// - `link`: the Ethernet type in the low 16 bits, and above it the destination's hardware address
/// - `transport`, from the lowest bit: source port, destination port, IP protocol, and the bit of a
///   connection request
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) source: u128,
    pub(crate) destination: u128,
    pub(crate) link: u64,
    pub(crate) transport: u64,
}

/// Positions in [`Key::transport`].
pub(crate) const DESTINATION_PORT_SHIFT: u32 = 16;
pub(crate) const PROTOCOL_SHIFT: u32 = 32;
pub(crate) const CONNECTION_REQUEST: u64 = 1 << 40;
/// Position in [`Key::link`].
pub(crate) const MAC_SHIFT: u32 = 16;

impl Key {
    pub(crate) fn of(flow: &FlowTuple) -> Self {
        let (source, _) = bits(flow.source);
        let (destination, ether_type) = bits(flow.destination);
        Self {
            source,
            destination,
            link: u64::from(ether_type),
            transport: u64::from(flow.source_port)
                | u64::from(flow.destination_port) << DESTINATION_PORT_SHIFT
                | u64::from(flow.transport.number()) << PROTOCOL_SHIFT,
        }
    }

    pub(crate) fn of_packet(packet: &Packet) -> Self {
        let header = &packet.header;
        Self {
            source: bits(packet.source).0,
            destination: bits(packet.destination).0,
            link: u64::from(header.ether_type)
                | mac_number(packet.mac_destination.unwrap_or_default()) << MAC_SHIFT,
            transport: u64::from(packet.source_port)
                | u64::from(packet.destination_port) << DESTINATION_PORT_SHIFT
                | u64::from(header.protocol) << PROTOCOL_SHIFT
                | if header.connection_request { CONNECTION_REQUEST } else { 0 },
        }
    }

    pub(crate) fn bit_count(&self) -> u32 {
        self.source.count_ones()
            + self.destination.count_ones()
            + self.link.count_ones()
            + self.transport.count_ones()
    }

    #[inline]
    pub(crate) fn and(&self, mask: &Self) -> Self {
        Self {
            source: self.source & mask.source,
            destination: self.destination & mask.destination,
            link: self.link & mask.link,
            transport: self.transport & mask.transport,
        }
    }
}

fn mac_number(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns an address as a number, and the Ethernet type of its packets.
pub(crate) const fn bits(address: IpAddr) -> (u128, u16) {
    match address {
        IpAddr::V4(address) => (address.to_bits() as u128, ETHER_TYPE_IPV4),
        IpAddr::V6(address) => (address.to_bits(), ETHER_TYPE_IPV6),
    }
}

/// A conjunction of masked fields. A packet matches if its masked bits equal `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    pub(crate) value: Key,
    pub(crate) mask: Key,
}

impl Pattern {
    /// Returns the pattern of a match; `None` if the addresses and the Ethernet type name different IP
    /// versions, or the hardware address is 0.
    pub(crate) fn of(matches: &FilterMatch) -> Option<Self> {
        let (mut value, mut mask) = (Key::default(), Key::default());
        let mut ether_type = matches.ether_type;
        let mut address = |wanted: Option<AddressMatch>| {
            let Some(wanted) = wanted else { return Some((0, 0)) };
            let (bits, version) = bits(wanted.address());
            if *ether_type.get_or_insert(version) != version {
                return None;
            }
            Some((bits, wanted.mask()))
        };
        (value.source, mask.source) = address(matches.source)?;
        (value.destination, mask.destination) = address(matches.destination)?;
        if let Some(ether_type) = ether_type {
            value.link |= u64::from(ether_type);
            mask.link |= u64::from(u16::MAX);
        }
        if let Some(mac) = matches.mac_destination {
            // The address 0 represents the interface's own address here. No packet has the address 0.
            if mac == [0; 6] {
                return None;
            }
            value.link |= mac_number(mac) << MAC_SHIFT;
            mask.link |= !u64::from(u16::MAX);
        }
        if let Some(port) = matches.source_port {
            value.transport |= u64::from(port.port());
            mask.transport |= u64::from(port.mask());
        }
        if let Some(port) = matches.destination_port {
            value.transport |= u64::from(port.port()) << DESTINATION_PORT_SHIFT;
            mask.transport |= u64::from(port.mask()) << DESTINATION_PORT_SHIFT;
        }
        if let Some(transport) = matches.transport {
            value.transport |= u64::from(transport.number()) << PROTOCOL_SHIFT;
            mask.transport |= 0xff << PROTOCOL_SHIFT;
        }
        if let Some(request) = matches.connection_request {
            value.transport |= if request { CONNECTION_REQUEST } else { 0 };
            mask.transport |= CONNECTION_REQUEST;
        }
        Some(Self { value, mask })
    }

    pub(crate) fn matches(&self, key: &Key) -> bool {
        key.and(&self.mask) == self.value
    }

    /// Returns the pattern of packets that match both patterns; `None` if there are no such packets.
    pub(crate) fn and(&self, other: &Self) -> Option<Self> {
        let both = |one: &Key, other: &Key| Key {
            source: one.source | other.source,
            destination: one.destination | other.destination,
            link: one.link | other.link,
            transport: one.transport | other.transport,
        };
        self.overlaps(other)
            .then(|| Self { value: both(&self.value, &other.value), mask: both(&self.mask, &other.mask) })
    }

    /// Returns whether a packet can match both: the patterns are equal in all bits that both fix.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let both = self.mask.and(&other.mask);
        self.value.and(&both) == other.value.and(&both)
    }
}
