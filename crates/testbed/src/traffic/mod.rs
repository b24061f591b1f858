//! Traffic: command lines and outputs of traffic tools, and Evenkeel's own sources.
//!
//! [`iperf3`] sends the bulk TCP flows, [`sockperf`] measures request-response latency while they run. These
//! two modules are pure: options to arguments, text to typed figures. Other modules start, place and end the
//! processes.
//!
//! [`memcached`] creates the load on a memcached server itself, because no packaged tool is an open loop.
//!
//! A tool's output is not trusted: a signal or a full disk can truncate it, and iperf3 reports a failed run
//! with exit code 0. A parser either returns complete figures or names the fault; it never fills a gap with
//! zero.

pub mod iperf3;
pub mod memcached;
pub(crate) mod on_off;
pub(crate) mod request_response;
pub mod sockperf;
pub(crate) mod worker;

/// An option that a traffic tool would refuse or misinterpret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tool} {option}: {detail}")]
pub struct ArgumentError {
    /// Such as `iperf3`.
    pub tool: &'static str,
    /// The tool's name for the option, such as `--parallel`.
    pub option: &'static str,
    /// The given value, and the allowed ones.
    pub detail: String,
}

/// Checks a numeric option against the tool's compiled-in limits.
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
