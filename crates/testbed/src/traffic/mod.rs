//! Traffic: command lines and outputs of traffic tools, and Evenkeel's own sources.
//!
//! [`iperf3`] sends the bulk TCP flows, and [`sockperf`] measures request-response latency during these
//! flows. The two modules are pure: they convert options to arguments, and text to typed figures. Other
//! modules start, place and end the processes.
//!
//! [`memcached`] creates the load on a memcached server itself, in an open loop if a rate is given.
//!
//! Parsers do not trust the output of a tool: a signal or a full disk can truncate it, and iperf3
//! reports a failed run with exit code 0. A parser returns complete figures, or an error that names the
//! fault.

pub mod iperf3;
pub mod memcached;
pub(crate) mod on_off;
pub(crate) mod request_response;
pub mod sockperf;
pub mod stall;
pub(crate) mod worker;

/// The error for an option that a traffic tool would refuse or misinterpret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tool} {option}: {detail}")]
pub struct ArgumentError {
    pub tool: &'static str,
    /// The tool's name for the option, such as `--parallel`.
    pub option: &'static str,
    /// The given value and the allowed values.
    pub detail: String,
}

/// Checks a numeric option against the tool's limits.
fn in_range(
    tool: &'static str,
    option: &'static str,
    value: u32,
    allowed: std::ops::RangeInclusive<u32>,
) -> Result<(), ArgumentError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let (least, most) = allowed.into_inner();
    let detail = format!("{value} is outside of {least} to {most}");
    Err(ArgumentError { tool, option, detail })
}
