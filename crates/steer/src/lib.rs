//! Receive steering on a live interface: which queue, and so which processor, takes a flow.
//!
//! ```text
//!   sockets ─┐                                                      ┌─ XDP and CPU maps (any driver with XDP)
//!            ├─▶ observed flows ─▶ search (crate receive) ─▶ back end ─┤
//!   program ─┘   who came, who went, rates                          ├─ n-tuple rules and RSS table (ethtool)
//!                                                                   └─ RPS and RFS (sysfs): no filters
//! ```
//!
//! A [`Session`] watches the flows of an interface, searches when they change, and has a [`Backend`] make the NIC
//! what the search found, as a minimal difference. New flows go where the NIC's default puts them until then. What
//! a back end changes goes with the process (BPF links) or through the journal of the crate `apply`.

mod backend;
mod error;
mod interface;
mod ntuple;
mod observe;
mod planned;
mod rps;
mod session;
mod xdp;

pub use backend::{Applied, Backend, Placement, QueueCount, Traffic};
pub use error::SteerError;
pub use interface::Interface;
pub use ntuple::{NtupleBackend, live_ntuple};
pub use observe::{FlowSource, ObserveOptions, Observer};
pub use planned::Planned;
pub use rps::{RpsBackend, live_rps};
pub use session::{FlowView, QueueView, Session, SessionOptions, Status, Step};
pub use xdp::{XdpBackend, XdpMode};
