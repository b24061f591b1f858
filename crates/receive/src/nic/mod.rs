//! Models of NICs, and their configurations.

mod configured;
mod filled;
mod graph;
mod model;
mod predicate;
mod program;
mod reach;
mod read;
mod read_table;
mod rss;
mod signature;
mod table;

pub use configured::{ConfigureError, ConfiguredNic, FilterId, InsertError};
pub use graph::{Graph, Node, NodeId, NodeKind, Operand, Port};
pub use model::{ModelError, NicModel};
pub use predicate::Predicate;
pub(crate) use reach::covered;
pub(crate) use read_table::read_hashed_ports;
pub(crate) use rss::hexadecimal_bytes;
pub use rss::{HashedPorts, Rss, RssKey};
pub(crate) use signature::signature;
pub use table::{FieldMatch, FilterFields, FilterTable, Precedence};

#[cfg(test)]
mod tests;
