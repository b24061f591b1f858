//! Errors of the collector.

use evenkeel_host::{HostError, there_is};

/// Reasons why a host cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("there is no interface '{name}' here; {}", there_is(.others))]
    NoInterface { name: String, others: Vec<String> },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("cannot start the thread that observes flows: {source}")]
    Thread { source: std::io::Error },
}
