//! The options of `calibrate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Format, parse_time};

#[derive(Debug, Args)]
pub struct CalibrateOptions {
    /// Write the machine profile to this file, which must not exist yet; `-`: print only the profile [default: print only
    /// the figures]
    #[arg(short, long = "out", value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Processors to measure on: the first does the work, the second is woken [default: two cores of one memory node]
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    pub cores: Option<(u32, u32)>,
    /// How long to measure, 2s to 10min. The set-up takes additional time; a busy machine takes up to 1.5 times as long
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = parse_length, allow_hyphen_values = true)]
    pub time: Duration,
    /// Also write the cost of a TCP packet over veth into the profile (needs root). It is a lower bound for packets of a
    /// NIC: veth has no driver, and the data stays in the cache
    #[arg(long)]
    pub packets: bool,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

fn parse_cores(text: &str) -> Result<(u32, u32), String> {
    const ADVICE: &str = "name two different processors, such as 2,3";
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let (first, second) = text.split_once(',').ok_or(ADVICE)?;
    let both: (u32, u32) = number(first).zip(number(second)).ok_or(ADVICE)?;
    if both.0 == both.1 {
        return Err(ADVICE.to_owned());
    }
    Ok(both)
}

/// Parses the length of the measurement.
fn parse_length(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(2);
    const MOST: Duration = Duration::from_secs(600);
    let time = parse_time(text)?;
    if !(LEAST..=MOST).contains(&time) {
        return Err("give a time from 2s to 10min".to_owned());
    }
    Ok(time)
}
