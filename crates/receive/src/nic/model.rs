//! Models of NICs.

use crate::filter::{FilterMatch, QueueId, TableId};

use super::rss::Rss;

/// Why a text is no model of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}:{column}: {problem}")]
pub struct ModelError {
    /// Name of the file, as the caller gave it.
    pub origin: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub problem: String,
}

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

/// Which of a table's filters decides when several match a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precedence {
    /// None needs to: the filters match whole keys, and no two have the same.
    Unique,
    /// The one of the highest priority, from 1 to `levels`; of equal ones the one that stands first.
    Priority {
        /// How many there are.
        levels: u32,
    },
    /// The one at the lowest location, which is what [`crate::Filter::priority`] holds: from 0, below the
    /// capacity, and no two at the same (ethtool, `struct ethtool_rx_flow_spec`, `location`).
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
}

/// A NIC: which tables, which hash, which queues it has, and in which order a packet meets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicModel {
    name: String,
    tables: Vec<FilterTable>,
    rss: Option<Rss>,
    queues: u16,
    default_queue: QueueId,
}

impl NicModel {
    /// The models that come with Evenkeel.
    pub const BUILT_IN: [&str; 5] = ["i82599", "sfc9020", "ntuple", "rss-only", "xdp-cpumap"];

    /// A model that comes with Evenkeel.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        (name == "i82599").then(|| {
            let optional = FilterFields {
                transport: FieldMatch::Optional,
                source: FieldMatch::Optional,
                source_port: FieldMatch::Optional,
                destination: FieldMatch::Optional,
                destination_port: FieldMatch::Optional,
                ..FilterFields::default()
            };
            let exact = FilterFields {
                transport: FieldMatch::Exact,
                source: FieldMatch::GlobalMask,
                source_port: FieldMatch::GlobalMask,
                destination: FieldMatch::GlobalMask,
                destination_port: FieldMatch::GlobalMask,
                ..FilterFields::default()
            };
            Self {
                name: name.to_owned(),
                tables: vec![
                    FilterTable {
                        name: "five-tuple".to_owned(),
                        capacity: 128,
                        fields: optional,
                        precedence: Precedence::Priority { levels: 7 },
                        spread: false,
                    },
                    FilterTable {
                        name: "flow-director".to_owned(),
                        capacity: 8192,
                        fields: exact,
                        precedence: Precedence::Unique,
                        spread: false,
                    },
                ],
                rss: Some(Rss { entries: 128, queues: 16 }),
                queues: 128,
                default_queue: QueueId(0),
            }
        })
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tables, in the order in which a packet meets them.
    #[must_use]
    pub fn tables(&self) -> &[FilterTable] {
        &self.tables
    }

    /// A table by its name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<TableId> {
        let position = self.tables.iter().position(|table| table.name == name)?;
        u16::try_from(position).ok().map(TableId)
    }

    /// The same NIC with room for `capacity` filters in a table; none if it has no such table.
    #[must_use]
    pub fn with_table_size(mut self, table: &str, capacity: usize) -> Option<Self> {
        self.tables.iter_mut().find(|candidate| candidate.name == table)?.capacity = capacity;
        Some(self)
    }

    /// Its hash, if it has one.
    #[must_use]
    pub fn rss(&self) -> Option<Rss> {
        self.rss
    }

    /// Receive queues at most.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// The queue of packets that nothing steers.
    #[must_use]
    pub fn default_queue(&self) -> QueueId {
        self.default_queue
    }

    /// Whether a filter of this table can match so, apart from what its other filters and its size permit.
    #[must_use]
    pub fn supports(&self, table: TableId, matches: &FilterMatch) -> bool {
        let Some(table) = self.tables.get(table.index()) else { return false };
        let fields = &table.fields;
        /// What a filter gives of a field.
        #[derive(PartialEq)]
        enum Given {
            Nothing,
            Whole,
            Prefix,
            Bits,
        }
        use Given::{Bits, Nothing, Prefix, Whole};
        let whole = |given: bool| if given { Whole } else { Nothing };
        let address = |address: Option<crate::AddressMatch>| match address {
            None => Nothing,
            Some(address) if address.is_exact() => Whole,
            Some(address) if address.prefix_length().is_some() => Prefix,
            Some(_) => Bits,
        };
        let port = |port: Option<crate::PortMatch>| match port {
            None => Nothing,
            Some(port) if port.is_exact() => Whole,
            Some(_) => Bits,
        };
        let fits = |field: FieldMatch, given: Given| match field {
            FieldMatch::Ignored => given == Nothing,
            FieldMatch::Exact => given == Whole,
            FieldMatch::Optional => matches!(given, Nothing | Whole),
            FieldMatch::Prefix => given != Bits,
            FieldMatch::Masked | FieldMatch::GlobalMask => true,
        };
        fits(fields.transport, whole(matches.transport.is_some()))
            && fits(fields.source, address(matches.source))
            && fits(fields.source_port, port(matches.source_port))
            && fits(fields.destination, address(matches.destination))
            && fits(fields.destination_port, port(matches.destination_port))
            && fits(fields.ether_type, whole(matches.ether_type.is_some()))
            && fits(fields.mac_destination, whole(matches.mac_destination.is_some()))
            && fits(fields.connection_request, whole(matches.connection_request.is_some()))
    }
}
