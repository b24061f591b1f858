//! The options of `evenkeel top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::parse_time;

#[derive(Debug, Args)]
pub struct TopOptions {
    /// Interfaces to show [default: NICs and veths that are up]
    #[arg(value_name = "IFACE")]
    pub interfaces: Vec<String>,
    /// Time between samples, 200ms to 60min
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval, allow_hyphen_values = true)]
    pub interval: Duration,
    /// End after this time, such as 10s [default: when interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// Record each sample in this new file, as JSON lines, for --replay
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record: Option<PathBuf>,
    /// Show a recording instead of this host (on the screen: one sample per --interval); needs no privileges
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Print plain lines, one block for each sample, as without a terminal
    #[arg(long, conflicts_with = "format")]
    pub plain: bool,
    /// How to print the samples
    #[arg(long, value_enum, default_value_t = TopFormat::Table)]
    pub format: TopFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopFormat {
    /// A screen on a terminal, otherwise plain lines
    Table,
    /// JSON lines: one sample on each line, as in a recording
    Json,
}

/// Parses the time between samples.
fn parse_interval(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(200);
    const MOST: Duration = Duration::from_secs(3600);
    let time = parse_time(text)?;
    if !(LEAST..=MOST).contains(&time) {
        return Err("an interval must be between 200ms and 60min".to_owned());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_limits() {
        assert_eq!(parse_interval("200ms"), Ok(Duration::from_millis(200)));
        for wrong in ["1", "199ms", "61min", "0s", "-1s", ""] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }
}
