//! Models of NICs.

use evenkeel_model::scenario::ScenarioError;

use super::graph::{Graph, NodeKind};
use super::program::{Program, Step};
use super::read::read;
use super::rss::Rss;
use super::table::FilterTable;
use crate::filter::{FilterMatch, QueueId, TableId};
use crate::key::Pattern;
use crate::packet::Header;

/// An error in a NIC model: file, line, column, key, and remedy.
pub type ModelError = ScenarioError;

/// The built-in models, by name.
const BUILT_IN: [(&str, &str); 5] = [
    ("i82599", include_str!("../../models/i82599.toml")),
    ("ntuple", include_str!("../../models/ntuple.toml")),
    ("rss-only", include_str!("../../models/rss-only.toml")),
    ("sfc9020", include_str!("../../models/sfc9020.toml")),
    ("xdp-cpumap", include_str!("../../models/xdp-cpumap.toml")),
];

/// A parsed model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) source: String,
    pub(super) drivers: Vec<String>,
    pub(super) queues: u16,
    pub(super) tables: Vec<FilterTable>,
    pub(super) rss: Option<Rss>,
    pub(super) graph: Graph,
    pub(super) program: Program,
}

/// A NIC: its tables, hash and queues, and the order in which a packet passes them.
///
/// Parsing has proved that every packet ends in exactly one queue under any configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicModel(Parts);

impl NicModel {
    /// Parses a model. `origin` names the text in errors.
    ///
    /// # Errors
    /// The first error in the text, with line and column.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ModelError> {
        read(text, origin).map(Self)
    }

    /// Returns the names of the built-in models.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> + Clone {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns the text of a built-in model.
    #[must_use]
    pub fn built_in_text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// Returns a built-in model.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        // Tests check that each of them can be parsed.
        Self::parse(Self::built_in_text(name)?, name).ok()
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// One-line description.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.0.title
    }

    /// Sources of the facts.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Linux drivers of its devices.
    #[must_use]
    pub fn drivers(&self) -> &[String] {
        &self.0.drivers
    }

    /// The unconfigured graph.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.0.graph
    }

    /// The filter tables, in the order of the file.
    #[must_use]
    pub fn tables(&self) -> &[FilterTable] {
        &self.0.tables
    }

    /// The tables with their ids.
    pub fn table_ids(&self) -> impl Iterator<Item = (TableId, &FilterTable)> + Clone {
        (0..).map(TableId).zip(&self.0.tables)
    }

    /// A table by its name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<TableId> {
        self.table_ids().find(|(_, table)| table.name == name).map(|(id, _)| id)
    }

    /// The same NIC with `capacity` rows for a table and those that share its rows; none if the table does not
    /// exist.
    #[must_use]
    pub fn with_table_size(mut self, table: &str, capacity: usize) -> Option<Self> {
        let rows = self.0.tables[self.table(table)?.index()].rows;
        for table in self.0.tables.iter_mut().filter(|table| table.rows == rows) {
            table.capacity = capacity;
        }
        Some(self)
    }

    /// Its hash, if it has one.
    #[must_use]
    pub fn rss(&self) -> Option<Rss> {
        self.0.rss
    }

    /// Maximum of receive queues.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.0.queues
    }

    /// The least number of queues that includes all queues of the graph.
    #[must_use]
    pub fn queues_least(&self) -> u16 {
        let number = |kind: &NodeKind| if let NodeKind::Queue(queue) = kind { queue.0 + 1 } else { 1 };
        self.0.graph.nodes().iter().map(|node| number(&node.kind)).max().unwrap_or(1)
    }

    /// Returns whether a filter of this table can have this match, and such packets reach the table: if the
    /// graph sends only IPv4 to a table, it accepts no filters for IPv6. Other filters and the capacity are
    /// checked elsewhere.
    #[must_use]
    pub fn supports(&self, table: TableId, matches: &FilterMatch) -> bool {
        self.takes(table, matches) && Pattern::of(matches).is_some()
    }

    /// As [`Self::supports`], for a match that does not contradict itself.
    pub(super) fn takes(&self, table: TableId, matches: &FilterMatch) -> bool {
        let takes = |description: &FilterTable| description.fields.support(matches);
        self.0.tables.get(table.index()).is_some_and(takes) && self.0.program.brings(matches, table)
    }

    /// The configuration nodes that may steer a kind of packet, by precedence, and the queue if none does.
    #[must_use]
    pub fn way(&self, header: &Header) -> (Vec<&str>, QueueId) {
        let chain = self.0.program.chain(header);
        let name = |step: &Step| {
            let is_it = |kind: &NodeKind| match step {
                Step::Table(table) => *kind == NodeKind::Table(*table),
                Step::Rss => *kind == NodeKind::Rss,
            };
            let node = self.0.graph.nodes().iter().find(|node| is_it(&node.kind))?;
            Some(node.name.as_str())
        };
        (chain.steps.iter().filter_map(name).collect(), chain.default)
    }

    pub(super) fn program(&self) -> &Program {
        &self.0.program
    }
}
