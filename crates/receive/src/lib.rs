//! The receive path: the queue that a NIC chooses for a received packet or a flow.
//!
//! A [`NicModel`] is a *physical resource graph* (Dragonet, TRIOS 2015, section 3.1), read from a data file. A
//! [`ConfiguredNic`] is a model with filters, RSS key and indirection table. It returns the queue of a flow,
//! exactly for a five-tuple, and as a superset for a class. A [`FlowMap`] has the queue of every flow, and
//! moves only the flows that a change affects.
//!
//! Everything here is a pure function: it reads no file and no kernel state.

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
