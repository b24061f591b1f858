//! Links, addresses and queueing disciplines over rtnetlink, with the kernel's own error text.
//!
//! A [`Netlink`] speaks for the network namespace in which it was opened, wherever it is used
//! afterwards. Requests are synchronous; a refusal carries the kernel's extended acknowledgement
//! (`NETLINK_EXT_ACK`), which says in words what `EINVAL` does not. Framing and parsing are the
//! `netlink-packet-*` crates'; what they lack (the options of HTB, TBF and the FIFOs) is encoded in
//! [`tc`] after `include/uapi/linux/pkt_sched.h`. [`tc_state`] reads qdiscs and classes as bytes, so that
//! they can be put back as they were.

mod link;
pub mod tc;
pub mod tc_state;
mod transport;

pub use link::{GsoSizes, Link, VethOptions};
pub use transport::{Netlink, NetlinkError};
