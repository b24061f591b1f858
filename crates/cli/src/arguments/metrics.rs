//! The options of `evenkeel metrics`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use evenkeel_monitor::Endpoint;

use super::parse_time;

#[derive(Debug, Args)]
pub struct MetricsOptions {
    /// Interfaces to export [default: NICs and veths that are up]
    #[arg(value_name = "IFACE")]
    pub interfaces: Vec<String>,
    /// Serve /metrics at this address until interrupted: ADDRESS:PORT or unix:PATH [default: without --textfile, print
    /// the series once]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "textfile")]
    pub listen: Option<Endpoint>,
    /// Write this file until interrupted, then remove it; for node_exporter's textfile collector: the name must end in .prom
    #[arg(long, value_name = "FILE", value_parser = parse_textfile)]
    pub textfile: Option<PathBuf>,
    /// Time between two writes of the --textfile, 1s to 60min
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_interval, requires = "textfile", conflicts_with = "listen", allow_hyphen_values = true)]
    pub interval: Duration,
    /// Write the --textfile once, then end; the file stays
    #[arg(long, requires = "textfile", conflicts_with_all = ["interval", "listen"])]
    pub once: bool,
    /// Attach no BPF meter: export no series about busy flows and fairness, and need no root
    #[arg(long)]
    pub no_flows: bool,
}

/// Parses the path of the file. The collector reads only names that end in `.prom`.
fn parse_textfile(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|extension| extension == "prom") {
        true => Ok(path),
        false => Err("node_exporter reads only files whose name ends in .prom".to_owned()),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    let is_possible = (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&time);
    if is_possible { Ok(time) } else { Err("give a time from 1s to 60min".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_textfile_is_one_that_is_read_and_an_interval_is_bounded() {
        assert!(parse_textfile("/a/evenkeel.prom").is_ok() && parse_textfile("/a/evenkeel.txt").is_err());
        assert_eq!(parse_interval("15s"), Ok(Duration::from_secs(15)));
        for wrong in ["15", "500ms", "2h", "-1s", ""] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }
}
