//! Receive steering on a live interface: assigns flows to queues, and so to CPUs.
//!
//! ```text
//!   sockets ─┐                                                         ┌─ XDP and CPU maps (any XDP driver)
//!            ├─▶ observed flows ─▶ search (crate receive) ─▶ back end ─┤
//!   program ─┘   new, ended, rates                                     ├─ n-tuple rules, RSS table (ethtool)
//!                                                                      └─ RPS and RFS (sysfs): no filters
//! ```
//!
//! A [`Session`] watches the flows of an interface, and searches for a placement when the flows change. A
//! [`Backend`] applies the result with the fewest changes. Until then, the present configuration chooses the
//! queue of a new flow: the rule of its class, or the RSS table. The process owns the BPF links of a back
//! end. The journal of the crate `apply` records the other settings.

#![forbid(unsafe_code)]

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
pub use interface::{Interface, lacks_xdp};
pub use ntuple::{NtupleBackend, live_ntuple};
pub use observe::{FlowSource, ObserveOptions, Observer};
pub use planned::Planned;
pub use rps::{RpsBackend, check_rps, live_rps};
pub use session::{FlowView, QueueView, Session, SessionOptions, Status, Step};
pub use xdp::{XdpBackend, XdpMode};
