//! Errors of the collector.

use evenkeel_host::{HostError, there_is};
use evenkeel_netlink::NetlinkError;

/// Reasons why a host cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("there is no interface '{name}' here; {}", there_is(.others))]
    NoInterface { name: String, others: Vec<String> },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(
        "cannot start the thread that observes flows: {source}; raise the limit on processes (`ulimit -u`, or `pids.max` \
         of the cgroup)"
    )]
    Thread { source: std::io::Error },
}

impl MonitorError {
    /// Returns whether the next sample may succeed: the host's interfaces or qdiscs changed while the kernel
    /// listed them.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Host(HostError::Netlink(NetlinkError::Unsteady { .. })))
    }
}
