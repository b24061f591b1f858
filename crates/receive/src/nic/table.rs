//! Filter tables, as a model describes them.

use std::ops::RangeInclusive;

use crate::filter::{AddressMatch, FilterMatch, PortMatch, TableId};

/// How the filters of a table match a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FieldMatch {
    /// Not at all: a filter must leave it open.
    #[default]
    Ignored,
    /// Whole: a filter must give it.
    Exact,
    /// Whole, or masked altogether.
    Optional,
    /// The first bits, or masked altogether.
    Prefix,
    /// Any bits.
    Masked,
    /// Any bits, but the same ones in all filters of the table.
    GlobalMask,
}

/// How much of a field a filter gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Nothing,
    Whole,
    FirstBits,
    SomeBits,
}

impl FieldMatch {
    fn takes(self, given: Given) -> bool {
        match self {
            Self::Ignored => given == Given::Nothing,
            Self::Exact => given == Given::Whole,
            Self::Optional => matches!(given, Given::Nothing | Given::Whole),
            Self::Prefix => given != Given::SomeBits,
            Self::Masked | Self::GlobalMask => true,
        }
    }

    /// Whether a filter may give the whole field.
    #[must_use]
    pub fn takes_whole(self) -> bool {
        self.takes(Given::Whole)
    }

    /// Whether a filter may leave the field open.
    #[must_use]
    pub fn takes_nothing(self) -> bool {
        self.takes(Given::Nothing)
    }
}

fn whole<T>(field: Option<T>) -> Given {
    if field.is_some() { Given::Whole } else { Given::Nothing }
}

fn address(field: Option<AddressMatch>) -> Given {
    match field {
        None => Given::Nothing,
        Some(address) if address.is_exact() => Given::Whole,
        Some(address) if address.prefix_length().is_some() => Given::FirstBits,
        Some(_) => Given::SomeBits,
    }
}

fn port(field: Option<PortMatch>) -> Given {
    match field {
        None => Given::Nothing,
        Some(port) if port.is_exact() => Given::Whole,
        Some(port) if port.mask().leading_ones() + port.mask().trailing_zeros() == u16::BITS => {
            Given::FirstBits
        }
        Some(_) => Given::SomeBits,
    }
}

/// How the filters of a table match each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FilterFields {
    /// Of [`FilterMatch::transport`].
    pub transport: FieldMatch,
    /// Of [`FilterMatch::source`].
    pub source: FieldMatch,
    /// Of [`FilterMatch::source_port`].
    pub source_port: FieldMatch,
    /// Of [`FilterMatch::destination`].
    pub destination: FieldMatch,
    /// Of [`FilterMatch::destination_port`].
    pub destination_port: FieldMatch,
    /// Of [`FilterMatch::ether_type`].
    pub ether_type: FieldMatch,
    /// Of [`FilterMatch::mac_destination`].
    pub mac_destination: FieldMatch,
    /// Of [`FilterMatch::connection_request`].
    pub connection_request: FieldMatch,
}

impl FilterFields {
    /// Each field with the name that files and commands give it.
    #[must_use]
    pub fn named(&self) -> [(&'static str, FieldMatch); 8] {
        [
            ("ether-type", self.ether_type),
            ("mac", self.mac_destination),
            ("protocol", self.transport),
            ("src", self.source),
            ("src-port", self.source_port),
            ("dst", self.destination),
            ("dst-port", self.destination_port),
            ("connection-request", self.connection_request),
        ]
    }

    /// Whether filters can match so.
    #[must_use]
    pub fn support(&self, matches: &FilterMatch) -> bool {
        self.transport.takes(whole(matches.transport))
            && self.source.takes(address(matches.source))
            && self.source_port.takes(port(matches.source_port))
            && self.destination.takes(address(matches.destination))
            && self.destination_port.takes(port(matches.destination_port))
            && self.ether_type.takes(whole(matches.ether_type))
            && self.mac_destination.takes(whole(matches.mac_destination))
            && self.connection_request.takes(whole(matches.connection_request))
    }

    /// Whether a filter can hold one whole five-tuple.
    #[must_use]
    pub fn take_flows(&self) -> bool {
        let five = [self.transport, self.source, self.source_port, self.destination, self.destination_port];
        let others = [self.ether_type, self.mac_destination, self.connection_request];
        five.iter().all(|field| field.takes_whole()) && others.iter().all(|field| field.takes_nothing())
    }

    /// Whether all filters of the table have one mask.
    #[must_use]
    pub fn share_mask(&self) -> bool {
        self.named().iter().any(|(_, field)| *field == FieldMatch::GlobalMask)
    }

    /// Whether no two filters of the table can match the same packet unless they are the same.
    pub(super) fn never_overlap(&self) -> bool {
        let one_mask = |field: FieldMatch| {
            matches!(field, FieldMatch::Ignored | FieldMatch::Exact | FieldMatch::GlobalMask)
        };
        self.named().iter().all(|(_, field)| one_mask(*field))
    }
}

/// Which of a table's filters decides when several match a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precedence {
    /// None needs to: all filters have the same mask, and no two the same value. [`crate::Filter::priority`]
    /// is 0.
    Unique,
    /// The one of the highest priority, from 1 to `levels`; of equal ones the one at the lowest location.
    Priority {
        /// How many there are.
        levels: u32,
    },
    /// The one at the lowest location, which is what [`crate::Filter::priority`] holds: from 0, below the
    /// capacity, and no two at the same (`struct ethtool_rx_flow_spec`, `location`,
    /// include/uapi/linux/ethtool.h).
    Location,
}

/// A table of filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterTable {
    /// Name, unique in the model.
    pub name: String,
    /// Filters that fit.
    pub capacity: usize,
    /// What its filters can match.
    pub fields: FilterFields,
    /// Which filter decides.
    pub precedence: Precedence,
    /// Whether a filter can leave the choice of the queue to RSS ([`crate::Filter::spread`]).
    pub spread: bool,
    /// A filter's queue must be a multiple of this: pools have so many queues, and a filter names the first.
    pub queue_multiple: u16,
    /// The table in whose rows the filters of this one stand: another one, or itself. The capacity is for all
    /// filters of these tables together.
    pub rows: TableId,
    /// A table that must be empty while this one is not, and the other way round.
    pub excludes: Option<TableId>,
    /// Whether the hardware keeps a hash of the five-tuple in place of it: a packet of another flow with the
    /// same hash matches as well (Intel 82599 datasheet, section 7.1.2.7).
    pub signature: bool,
}

impl FilterTable {
    /// Whether a filter can hold one whole five-tuple.
    #[must_use]
    pub fn takes_flows(&self) -> bool {
        self.fields.take_flows()
    }

    /// Values of [`crate::Filter::priority`] that its filters may have.
    #[must_use]
    pub fn priorities(&self) -> RangeInclusive<u32> {
        match self.precedence {
            Precedence::Unique => 0..=0,
            Precedence::Priority { levels } => 1..=levels,
            Precedence::Location => 0..=u32::try_from(self.capacity.saturating_sub(1)).unwrap_or(u32::MAX),
        }
    }
}
