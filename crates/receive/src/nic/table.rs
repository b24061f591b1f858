use std::ops::RangeInclusive;

use crate::filter::{AddressMatch, FilterMatch, PortMatch, TableId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FieldMatch {
    /// Not supported: a filter must leave the field open.
    #[default]
    Ignored,
    /// A filter must match the whole field.
    Exact,
    /// A filter matches the whole field, or leaves it open.
    Optional,
    /// A filter matches a prefix, or leaves the field open.
    Prefix,
    /// A filter may use any mask.
    Masked,
    /// A filter may use any mask, but all filters of the table have the same mask.
    GlobalMask,
}

/// The part of a field that a filter sets.
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

    #[must_use]
    pub fn takes_whole(self) -> bool {
        self.takes(Given::Whole)
    }

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

/// How the filters of a table match each field of [`FilterMatch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FilterFields {
    pub transport: FieldMatch,
    pub source: FieldMatch,
    pub source_port: FieldMatch,
    pub destination: FieldMatch,
    pub destination_port: FieldMatch,
    pub ether_type: FieldMatch,
    pub mac_destination: FieldMatch,
    pub connection_request: FieldMatch,
    /// Whether a filter must give an address, at least an address with a mask of zero bits. Each filter
    /// is then for one IP version (`TCP_V4_FLOW` and others, include/uapi/linux/ethtool.h).
    pub one_version: bool,
}

impl FilterFields {
    /// Returns each field with its name in files and commands.
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

    /// Returns whether filters of the table can have this match.
    #[must_use]
    pub fn support(&self, matches: &FilterMatch) -> bool {
        !self.lacks_version(matches) && self.with(matches).iter().all(|(_, field, given)| field.takes(*given))
    }

    fn lacks_version(&self, matches: &FilterMatch) -> bool {
        self.one_version && matches.source.is_none() && matches.destination.is_none()
    }

    /// Returns why filters of the table cannot have this match: a missing IP version, and a reason for each
    /// field whose match the table does not support.
    #[must_use]
    pub fn obstacles(&self, matches: &FilterMatch) -> Vec<String> {
        let version = self.lacks_version(matches).then(|| {
            "each of its filters is for one IP version: give src or dst (0.0.0.0/0 or ::/0 is any address)"
                .to_owned()
        });
        let refused = self.with(matches).into_iter().filter(|(_, field, given)| !field.takes(*given));
        let fields = refused.map(|(name, field, given)| match (field, given) {
            (FieldMatch::Ignored, _) => format!("it does not match on {name}"),
            (_, Given::Nothing) => format!("it needs {name}"),
            (FieldMatch::Prefix, _) => format!("it takes {name} whole or as a prefix"),
            _ => format!("it takes {name} only whole, without a mask"),
        });
        version.into_iter().chain(fields).collect()
    }

    /// Returns each field with its name, and the part of it that a filter sets.
    fn with(&self, matches: &FilterMatch) -> [(&'static str, FieldMatch, Given); 8] {
        let given = [
            whole(matches.ether_type),
            whole(matches.mac_destination),
            whole(matches.transport),
            address(matches.source),
            port(matches.source_port),
            address(matches.destination),
            port(matches.destination_port),
            whole(matches.connection_request),
        ];
        let named = self.named();
        std::array::from_fn(|field| (named[field].0, named[field].1, given[field]))
    }

    /// Returns whether a filter of the table can match a five-tuple.
    #[must_use]
    pub fn take_flows(&self) -> bool {
        let five = [self.transport, self.source, self.source_port, self.destination, self.destination_port];
        let others = [self.ether_type, self.mac_destination, self.connection_request];
        five.iter().all(|field| field.takes_whole()) && others.iter().all(|field| field.takes_nothing())
    }

    /// Returns whether at least one field has the same mask in all filters of the table.
    #[must_use]
    pub fn share_mask(&self) -> bool {
        self.named().iter().any(|(_, field)| *field == FieldMatch::GlobalMask)
    }

    /// Returns whether two filters of the table with different matches never match the same packet.
    pub(super) fn never_overlap(&self) -> bool {
        let one_mask = |field: FieldMatch| {
            matches!(field, FieldMatch::Ignored | FieldMatch::Exact | FieldMatch::GlobalMask)
        };
        self.named().iter().all(|(_, field)| one_mask(*field))
    }
}

/// The rule that picks the deciding filter if several match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precedence {
    /// No rule is needed: all filters have the same mask and different values. [`crate::Filter::priority`] is
    /// 0.
    Unique,
    /// The highest priority, from 1 to `levels`; for equal priorities the lowest location.
    Priority { levels: u32 },
    /// The lowest location. [`crate::Filter::priority`] is the location: unique, from 0, below the capacity
    /// (`location` in `struct ethtool_rx_flow_spec`, include/uapi/linux/ethtool.h).
    Location,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterTable {
    /// Name of the table, unique in the model.
    pub name: String,
    pub capacity: usize,
    pub fields: FilterFields,
    pub precedence: Precedence,
    /// Whether RSS can choose the queue of a filter ([`crate::Filter::spread`]).
    pub spread: bool,
    /// A filter's queue must be a multiple of this number: a filter names the first queue of a pool of this
    /// size.
    pub queue_multiple: u16,
    /// The table whose rows this table uses: itself, or another table with which it shares the
    /// capacity.
    pub rows: TableId,
    /// A table that must be empty while this table is in use, and vice versa.
    pub excludes: Option<TableId>,
    /// Whether the hardware stores a hash of the five-tuple instead of the five-tuple. A packet of another
    /// flow with the same hash then also matches (Intel 82599 datasheet, section 7.1.2.7).
    pub signature: bool,
}

impl FilterTable {
    #[must_use]
    pub fn priorities(&self) -> RangeInclusive<u32> {
        match self.precedence {
            Precedence::Unique => 0..=0,
            Precedence::Priority { levels } => 1..=levels,
            Precedence::Location => 0..=u32::try_from(self.capacity.saturating_sub(1)).unwrap_or(u32::MAX),
        }
    }
}
