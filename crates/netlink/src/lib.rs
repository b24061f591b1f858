//! Links, addresses, queueing disciplines, queue weights, receive steering and sockets over netlink and
//! ethtool. Errors contain the kernel's text.
//!
//! A [`Netlink`] acts on the network namespace in which it was opened, even if the calling thread is in
//! another namespace. Requests are synchronous. A refusal includes the kernel's extended
//! acknowledgement (`NETLINK_EXT_ACK`), which explains an `EINVAL` in words.
//!
//! The `netlink-packet-*` crates do framing and parsing. These crates lack the options of HTB, TBF and
//! the FIFOs, which [`tc`] encodes after `include/uapi/linux/pkt_sched.h`. [`tc_state`] keeps qdiscs
//! and classes as bytes, to restore them exactly.
//!
//! Two modules configure how hardware serves its transmit queues. [`shaper`] sets the weight of each
//! queue (generic netlink, `net-shaper`). [`tx_maxrate`] sets the maximum rate of each queue (sysfs).

mod departure;
pub mod ethtool;
mod filter;
pub mod generic;
mod link;
mod link_statistics;
mod local_addresses;
mod namespace_ids;
mod netdev;
pub mod qdisc_tree;
pub mod settings;
pub mod shaper;
pub mod sock_diag;
pub mod tc;
mod tc_options;
pub mod tc_overview;
pub mod tc_state;
mod transport;
pub mod tx_maxrate;

pub use departure::{Departure, DepartureWatch};
pub use link::{GsoSizes, Link, VethOptions};
pub use link_statistics::LinkStatistics;
pub use local_addresses::{AddressOwner, LocalAddresses};
pub use netdev::redirects_by_xdp;
pub use transport::{Netlink, NetlinkError};
