//! Traffic: command lines and outputs of the tools that make it, and one load of our own.
//!
//! [`iperf3`] sends the bulk TCP flows, [`sockperf`] measures request-response latency while they
//! run. These two modules are pure: options in, argument vector out; text in, typed figures out. Starting,
//! placing and ending the processes is not done here.
//!
//! [`memcached`] is no tool: it makes the load on a memcached server itself, because none that is packaged is an open
//! loop.
//!
//! A tool's output is outside input: it can be cut short by a signal or a full disk, and iperf3
//! reports a failed run with exit code 0. So a parser either returns complete figures or says where
//! the text is wrong; it never fills a gap with zero.

pub mod iperf3;
pub mod memcached;
pub(crate) mod on_off;
pub(crate) mod request_response;
pub mod sockperf;
pub(crate) mod worker;

/// An option that a traffic tool would refuse, or would take for something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tool} {option}: {detail}")]
pub struct ArgumentError {
    /// Tool, such as `iperf3`.
    pub tool: &'static str,
    /// The tool's own name for the option, such as `--parallel`.
    pub option: &'static str,
    /// The value given, and what is allowed.
    pub detail: String,
}

/// Checks a numeric option against the limits that the tool has compiled in.
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
