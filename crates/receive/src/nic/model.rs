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

const BUILT_IN: [(&str, &str); 5] = [
    ("i82599", include_str!("../../models/i82599.toml")),
    ("ntuple", include_str!("../../models/ntuple.toml")),
    ("rss-only", include_str!("../../models/rss-only.toml")),
    ("sfc9020", include_str!("../../models/sfc9020.toml")),
    ("xdp-cpumap", include_str!("../../models/xdp-cpumap.toml")),
];

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

/// A NIC model: tables, RSS and queues, and the order in which a packet passes them.
///
/// The parser has proved that every packet ends in exactly one queue under any configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicModel(Parts);

impl NicModel {
    /// Parses a model. `origin` names the text in errors.
    ///
    /// # Errors
    /// Returns an error if the text is invalid: its first mistake, with line and column.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ModelError> {
        read(text, origin).map(Self)
    }

    pub fn built_in_names() -> impl Iterator<Item = &'static str> + Clone {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    #[must_use]
    pub fn built_in_text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        // Parsing cannot fail, because the tests parse each built-in model.
        Self::parse(Self::built_in_text(name)?, name).ok()
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    #[must_use]
    pub fn title(&self) -> &str {
        &self.0.title
    }

    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.source
    }

    #[must_use]
    pub fn drivers(&self) -> &[String] {
        &self.0.drivers
    }

    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.0.graph
    }

    /// Returns the filter tables, in the order of the file.
    #[must_use]
    pub fn tables(&self) -> &[FilterTable] {
        &self.0.tables
    }

    pub fn table_ids(&self) -> impl Iterator<Item = (TableId, &FilterTable)> + Clone {
        (0..).map(TableId).zip(&self.0.tables)
    }

    #[must_use]
    pub fn table(&self, name: &str) -> Option<TableId> {
        self.table_ids().find(|(_, table)| table.name == name).map(|(id, _)| id)
    }

    /// Sets the number of rows of a table and of the tables that share its rows. Returns `None` if the
    /// table does not exist.
    #[must_use]
    pub fn with_table_size(mut self, table: &str, capacity: usize) -> Option<Self> {
        let rows = self.0.tables[self.table(table)?.index()].rows;
        for table in self.0.tables.iter_mut().filter(|table| table.rows == rows) {
            table.capacity = capacity;
        }
        Some(self)
    }

    #[must_use]
    pub fn rss(&self) -> Option<Rss> {
        self.0.rss
    }

    #[must_use]
    pub fn queues(&self) -> u16 {
        self.0.queues
    }

    /// Returns the smallest number of queues that includes all queues of the graph.
    #[must_use]
    pub fn queues_least(&self) -> u16 {
        let number = |kind: &NodeKind| if let NodeKind::Queue(queue) = kind { queue.0 + 1 } else { 1 };
        self.0.graph.nodes().iter().map(|node| number(&node.kind)).max().unwrap_or(1)
    }

    /// Returns whether a filter of this table can have this match, and such packets reach the table. A
    /// table that receives only IPv4 packets accepts no filters for IPv6. The function does not check
    /// existing filters and the capacity.
    #[must_use]
    pub fn supports(&self, table: TableId, matches: &FilterMatch) -> bool {
        self.takes(table, matches) && Pattern::of(matches).is_some()
    }

    /// Returns the result of [`Self::supports`], for a match that does not contradict itself.
    pub(super) fn takes(&self, table: TableId, matches: &FilterMatch) -> bool {
        let takes = |description: &FilterTable| description.fields.support(matches);
        self.0.tables.get(table.index()).is_some_and(takes) && self.0.program.brings(matches, table)
    }

    /// Returns the configuration nodes that may steer a kind of packet, by precedence, and the queue
    /// for packets that no node steers.
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
