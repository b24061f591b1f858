//! The receive path: the queue that a NIC chooses for a received packet or a flow.
//!
//! - [`NicModel`]: a *physical resource graph* (Dragonet, TRIOS 2015, section 3.1), read from a data
//!   file.
//! - [`ConfiguredNic`]: a model with filters, RSS key and indirection table. For a five-tuple, it
//!   returns the exact queue. For a class, it returns a superset of the queues.
//! - [`FlowMap`]: the queue of every flow. A change moves only the flows that it affects.
//!
//! All functions are pure: they read neither files nor kernel state.

#![forbid(unsafe_code)]

mod configuration;
mod configured_graph;
mod draw;
mod filter;
mod flow;
mod flow_map;
pub mod flows;
mod key;
mod nic;
mod packet;
pub mod policy;
mod probe;
mod queue_set;
pub mod search;

pub use configured_graph::{ConfiguredGraph, ConfiguredKind, ConfiguredNode};
pub use draw::Drawing;
pub use filter::{AddressMatch, ContextId, Filter, FilterMatch, PortMatch, QueueId, TableId};
pub use flow::{FlowTuple, Transport};
pub use flow_map::{Change, FlowIndex, FlowMap, Move};
pub use nic::{
    ConfigureError, ConfiguredNic, FieldMatch, FilterFields, FilterId, FilterTable, Graph, HashedPorts,
    InsertError, ModelError, NicModel, Node, NodeId, NodeKind, Operand, Port, Precedence, Predicate, Rss,
    RssKey,
};
pub use packet::{Header, Packet};
pub use probe::{DeviceFacts, Probed, probe};
pub use queue_set::QueueSet;
