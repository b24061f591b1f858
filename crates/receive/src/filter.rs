//! Filters: a match of packet headers, and the queue for matching packets.

use std::fmt;
use std::net::IpAddr;

use crate::flow::{FlowTuple, Transport};
use crate::key::{Key, Pattern};

/// A receive queue of a NIC, numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

impl QueueId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A filter table of a NIC: an index into [`crate::NicModel::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

impl TableId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An RSS context: an additional indirection table for the filters that refer to it (`ethtool -X IFACE
/// context new`). An index into [`crate::ConfiguredNic::contexts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub u16);

impl ContextId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressMatch {
    address: IpAddr,
    /// Big-endian bytes, because a `u128` would align every filter to 16 bytes.
    mask: [u8; 16],
}

impl AddressMatch {
    #[must_use]
    pub const fn exact(address: IpAddr) -> Self {
        Self { address, mask: Self::full(address).to_be_bytes() }
    }

    /// Matches addresses with the first `length` bits of `address`; 0 matches all addresses of the IP
    /// version.
    #[must_use]
    pub const fn prefix(address: IpAddr, length: u8) -> Self {
        let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
        let masked = bits.saturating_sub(length);
        let low = if masked >= 128 { u128::MAX } else { (1 << masked) - 1 };
        Self::masked(address, Self::full(address) & !low)
    }

    /// Matches addresses that equal `address` in the bits of `mask`. For IPv4, the low 32 bits of `mask`
    /// count.
    #[must_use]
    pub const fn masked(address: IpAddr, mask: u128) -> Self {
        let mask = mask & Self::full(address);
        let address = match address {
            IpAddr::V4(address) => IpAddr::V4(std::net::Ipv4Addr::from_bits(address.to_bits() & mask as u32)),
            IpAddr::V6(address) => IpAddr::V6(std::net::Ipv6Addr::from_bits(address.to_bits() & mask)),
        };
        Self { address, mask: mask.to_be_bytes() }
    }

    const fn full(address: IpAddr) -> u128 {
        if address.is_ipv4() { u32::MAX as u128 } else { u128::MAX }
    }

    /// Returns the address. Bits outside of the mask are 0.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the mask; for IPv4 in the low 32 bits.
    #[must_use]
    pub const fn mask(self) -> u128 {
        u128::from_be_bytes(self.mask)
    }

    /// Returns whether the mask covers the whole address.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        self.mask() == Self::full(self.address)
    }

    /// Returns the length of the prefix, or `None` if the mask is not a prefix.
    #[must_use]
    pub const fn prefix_length(self) -> Option<u8> {
        let bits: u32 = if self.address.is_ipv4() { 32 } else { 128 };
        let ones = self.mask().count_ones();
        let is_prefix = ones + self.mask().trailing_zeros() == bits || ones == 0;
        // No truncation: at most 128.
        if is_prefix { Some(ones as u8) } else { None }
    }
}

impl fmt::Display for AddressMatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix_length() {
            _ if self.is_exact() => self.address.fmt(formatter),
            Some(length) => write!(formatter, "{}/{length}", self.address),
            None => write!(formatter, "{}&{:#x}", self.address, self.mask()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortMatch {
    port: u16,
    mask: u16,
}

impl PortMatch {
    #[must_use]
    pub const fn exact(port: u16) -> Self {
        Self { port, mask: u16::MAX }
    }

    /// Matches ports that equal `port` in the bits of `mask`.
    #[must_use]
    pub const fn masked(port: u16, mask: u16) -> Self {
        Self { port: port & mask, mask }
    }

    /// Returns the port. Bits outside of the mask are 0.
    #[must_use]
    pub const fn port(self) -> u16 {
        self.port
    }

    #[must_use]
    pub const fn mask(self) -> u16 {
        self.mask
    }

    /// Returns whether the mask covers the whole port.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        self.mask == u16::MAX
    }
}

impl fmt::Display for PortMatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_exact() {
            self.port.fmt(formatter)
        } else {
            write!(formatter, "{}&{:#x}", self.port, self.mask)
        }
    }
}

/// A match of packet headers. `None` matches anything.
///
/// A match describes a flow, a class of flows (a listening socket, a client's network) or the match of
/// a filter. In Dragonet's terms, a match is a *predicate*, restricted to a conjunction of masked
/// fields, as in the filters of NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FilterMatch {
    pub transport: Option<Transport>,
    /// The peer's address; it also determines the IP version.
    pub source: Option<AddressMatch>,
    /// The peer's port.
    pub source_port: Option<PortMatch>,
    /// This host's address; it also determines the IP version.
    pub destination: Option<AddressMatch>,
    /// This host's port.
    pub destination_port: Option<PortMatch>,
    /// The Ethernet type (IANA, IEEE 802 Numbers).
    pub ether_type: Option<u16>,
    pub mac_destination: Option<[u8; 6]>,
    /// Whether the packet requests a connection: SYN without ACK (RFC 9293, section 3.1).
    pub connection_request: Option<bool>,
}

impl FilterMatch {
    pub const ANY: Self = Self {
        transport: None,
        source: None,
        source_port: None,
        destination: None,
        destination_port: None,
        ether_type: None,
        mac_destination: None,
        connection_request: None,
    };

    #[must_use]
    pub const fn exact(flow: &FlowTuple) -> Self {
        Self {
            transport: Some(flow.transport),
            source: Some(AddressMatch::exact(flow.source)),
            source_port: Some(PortMatch::exact(flow.source_port)),
            destination: Some(AddressMatch::exact(flow.destination)),
            destination_port: Some(PortMatch::exact(flow.destination_port)),
            ..Self::ANY
        }
    }

    /// Matches packets to an address and port of this host, as a listening socket does.
    #[must_use]
    pub const fn to(transport: Transport, destination: IpAddr, port: u16) -> Self {
        Self {
            transport: Some(transport),
            destination: Some(AddressMatch::exact(destination)),
            destination_port: Some(PortMatch::exact(port)),
            ..Self::ANY
        }
    }

    /// Returns the flow if the match is a complete five-tuple and nothing else.
    #[must_use]
    pub fn as_flow(&self) -> Option<FlowTuple> {
        let (source, destination) = (self.source?, self.destination?);
        let (source_port, destination_port) = (self.source_port?, self.destination_port?);
        let exact = source.is_exact()
            && destination.is_exact()
            && source_port.is_exact()
            && destination_port.is_exact()
            && self.ether_type.is_none()
            && self.mac_destination.is_none()
            && self.connection_request.is_none()
            // No packet has addresses of two IP versions.
            && source.address().is_ipv4() == destination.address().is_ipv4();
        let flow = FlowTuple {
            transport: self.transport?,
            source: source.address(),
            source_port: source_port.port(),
            destination: destination.address(),
            destination_port: destination_port.port(),
        };
        exact.then_some(flow)
    }

    #[must_use]
    pub fn matches(&self, flow: &FlowTuple) -> bool {
        Pattern::of(self).is_some_and(|pattern| pattern.matches(&Key::of(flow)))
    }

    /// Returns whether every packet that matches another match matches this one.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (Pattern::of(self), Pattern::of(other)) {
            (Some(one), Some(other)) => one.and(&other) == Some(other),
            (_, other) => other.is_none(),
        }
    }

    /// Returns whether some packet matches this match and the other match.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        match (Pattern::of(self), Pattern::of(other)) {
            (Some(one), Some(other)) => one.overlaps(&other),
            // A match that contradicts itself overlaps nothing.
            _ => false,
        }
    }
}

impl fmt::Display for FilterMatch {
    /// Writes each field that is set, with its name in `search solve`. Writes `any` if no field is set.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut field = |name: &str, value: Option<&dyn fmt::Display>| {
            let Some(value) = value else { return Ok(()) };
            write!(formatter, "{separator}{name} {value}")?;
            separator = " ";
            Ok(())
        };
        let mac = self.mac_destination.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
        let ether_type = self.ether_type.map(|number| format!("{number:#06x}"));
        let request = self.connection_request;
        field("mac", mac.as_ref().map(|value| value as _))?;
        field("ether-type", ether_type.as_ref().map(|value| value as _))?;
        field("protocol", self.transport.as_ref().map(|value| value as _))?;
        field("src", self.source.as_ref().map(|value| value as _))?;
        field("src-port", self.source_port.as_ref().map(|value| value as _))?;
        field("dst", self.destination.as_ref().map(|value| value as _))?;
        field("dst-port", self.destination_port.as_ref().map(|value| value as _))?;
        field("connection-request", request.as_ref().map(|value| value as _))?;
        if *self == Self::ANY { formatter.write_str("any") } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    pub table: TableId,
    /// Rank among the matching filters of the same table, see [`crate::Precedence`]; 0 in tables without
    /// priorities.
    pub priority: u32,
    pub matches: FilterMatch,
    /// Queue for matching packets. With `spread`, the NIC adds this number to the queue that RSS
    /// chooses.
    pub queue: QueueId,
    /// Whether RSS spreads matching packets over the queues of the indirection table. Not every table
    /// supports this.
    pub spread: bool,
    /// RSS context whose indirection table is used; `None` for the NIC's own table.
    pub context: Option<ContextId>,
}

impl Filter {
    /// Creates a filter that steers matching packets to one queue.
    #[must_use]
    pub const fn new(table: TableId, priority: u32, matches: FilterMatch, queue: QueueId) -> Self {
        Self { table, priority, matches, queue, spread: false, context: None }
    }

    /// Returns the filter with RSS over the queues of a context.
    #[must_use]
    pub const fn over(self, context: ContextId) -> Self {
        Self { queue: QueueId(0), spread: true, context: Some(context), ..self }
    }
}
