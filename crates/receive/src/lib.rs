//! The receive path: what a NIC can do with a packet that arrives, and which queue a flow reaches.
//!
//! A [`NicModel`] is a *physical resource graph* (Dragonet, TRIOS 2015, section 3.1), read from a data
//! file. A [`ConfiguredNic`] is a model with its filters, RSS key and indirection table filled in; it says
//! which queue a flow reaches, exactly for a whole five-tuple and soundly for a part of one. A [`FlowMap`]
//! keeps the queue of every flow while the configuration changes, and moves only what a change touches.
//!
//! Everything here is a pure function of its input: no file is read, and no kernel is asked.

#![warn(missing_docs)]

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
