//! Links, addresses, queueing disciplines, queue weights, receive steering and sockets over netlink and ethtool, with
//! the kernel's own error text.
//!
//! A [`Netlink`] speaks for the network namespace in which it was opened, wherever it is used
//! afterwards. Requests are synchronous; a refusal carries the kernel's extended acknowledgement
//! (`NETLINK_EXT_ACK`), which says in words what `EINVAL` does not. Framing and parsing are the
//! `netlink-packet-*` crates'; what they lack (the options of HTB, TBF and the FIFOs) is encoded in
//! [`tc`] after `include/uapi/linux/pkt_sched.h`. [`tc_state`] reads qdiscs and classes as bytes, so that
//! they can be put back as they were.
//!
//! A device whose hardware serves its transmit queues by weight is told so in one of several ways:
//!
//! | module | what it sets | interface |
//! |---|---|---|
//! | [`shaper`] | the weight of each queue | generic netlink, `net-shaper` |
//! | [`dcb`] | the share of each traffic class ([`tc::Qdisc::Mqprio`]) | dcbnl, IEEE 802.1Qaz ETS |
//! | [`tx_maxrate`] | no weight: the highest rate of each queue | sysfs |

pub mod dcb;
mod departure;
pub mod ethtool;
pub mod generic;
mod link;
mod namespace_ids;
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
pub use transport::{Netlink, NetlinkError};
