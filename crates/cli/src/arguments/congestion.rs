//! The options of `evenkeel congestion`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_model::units::Nanoseconds;

use super::{Format, parse_time, whole_number};
use crate::examples;

#[derive(Debug, Subcommand)]
pub enum CongestionCommand {
    /// List the congestion controls of this host and, as root, the flows of those that Evenkeel has loaded
    #[command(after_help = examples::CONGESTION_LIST)]
    List {
        /// How to print the result
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// Load a congestion control until interrupted, or with --pin until `unload`; flows that use it keep it until they end
    #[command(after_help = examples::CONGESTION_LOAD)]
    Load(LoadOptions),
    /// Unload a congestion control that was loaded with --pin
    #[command(after_help = examples::CONGESTION_UNLOAD)]
    Unload(UnloadOptions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// TCP LoLa (IEEE LCN 2017): keeps a small queueing delay, and shares equally between its flows
    Lola,
}

#[derive(Debug, Args)]
pub struct LoadOptions {
    #[arg(value_enum)]
    pub algorithm: Algorithm,
    /// Name by which programs select the congestion control: 1 to 15 letters, digits, `_` and `.`
    #[arg(long, default_value = "lola")]
    pub name: String,
    /// Queueing delay that flows keep, 100us to 1s
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_microseconds, allow_hyphen_values = true)]
    pub target: u32,
    /// Queueing delay above which flows balance their shares: from 10us, and below --target
    #[arg(long, value_name = "TIME", default_value = "500us", value_parser = parse_microseconds, allow_hyphen_values = true)]
    pub balance: u32,
    /// Queueing delay that ends slow start, 10us to 1s
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_microseconds, allow_hyphen_values = true)]
    pub slow_start: u32,
    /// Time for which flows hold their windows at the target (--target), at most 10s
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = parse_microseconds, allow_hyphen_values = true)]
    pub hold: u32,
    /// Minimum duration of a measurement of the round-trip time, 1ms to 1s; shorter in slow start
    #[arg(long, value_name = "TIME", default_value = "40ms", value_parser = parse_microseconds, allow_hyphen_values = true)]
    pub window: u32,
    /// Minimum number of samples in a measurement of the round-trip time (--window); fewer in slow start
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole_number::<u32>(1..=1000), allow_negative_numbers = true)]
    pub samples: u32,
    /// φ of fair flow balancing: t ms after the phase began, each flow keeps (t/φ)^3 bytes in the queue; smaller is faster
    #[arg(long, value_name = "N", default_value_t = 75, value_parser = whole_number::<u32>(1..=10_000), allow_negative_numbers = true)]
    pub curve: u32,
    /// Measure the base RTT again after this many decreases of the window in a row without a queueing delay of --balance or less
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole_number::<u32>(1..=65_535), allow_negative_numbers = true)]
    pub base_decreases: u32,
    /// Factor γ of the decrease after a hold, in units of 1/1024
    #[arg(long, value_name = "N", default_value_t = 927, value_parser = whole_number::<u32>(1..=1024), allow_negative_numbers = true)]
    pub gamma: u32,
    /// CUBIC's factor β after a loss, in units of 1/1024
    #[arg(long, value_name = "N", default_value_t = 717, value_parser = whole_number::<u32>(1..=1024), allow_negative_numbers = true)]
    pub beta: u32,
    /// CUBIC's C, in units of 10/1024 packets per second cubed; 41 is C = 0.4 (RFC 9438)
    #[arg(long, value_name = "N", default_value_t = 41, value_parser = whole_number::<u32>(1..=1024), allow_negative_numbers = true)]
    pub cubic: u32,
    /// Do not reduce the window after a loss: for paths on which a loss does not mean congestion, such as to a
    /// slow receiver
    #[arg(long)]
    pub no_loss_reaction: bool,
    /// Make the congestion control the default of new connections in this network namespace; restore the previous
    /// default at the end
    #[arg(long)]
    pub default: bool,
    /// Keep the congestion control loaded after this command, until `unload` or a reboot
    #[arg(long, conflicts_with_all = ["default", "time"])]
    pub pin: bool,
    /// End after this time, such as 10s [default: when interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct UnloadOptions {
    /// Name under which the congestion control was loaded
    #[arg(default_value = "lola")]
    pub name: String,
}

/// Parses a time such as `5ms` as microseconds; refuses a bare number and fractions of a microsecond.
fn parse_microseconds(text: &str) -> Result<u32, String> {
    let time: Nanoseconds = text.parse().map_err(|error| format!("{error}"))?;
    let nanoseconds = time.as_u64();
    let microseconds = u32::try_from(nanoseconds / 1000).ok().filter(|_| nanoseconds.is_multiple_of(1000));
    microseconds.ok_or_else(|| "give a time in whole microseconds, at most 60min".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_microseconds() {
        assert_eq!(parse_microseconds("5ms"), Ok(5000));
        assert_eq!(parse_microseconds("500us"), Ok(500));
        for wrong in ["5", "1500ns", "2h", "-5ms", ""] {
            assert!(parse_microseconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_algorithm() {
        use clap::Parser;
        let parsed = crate::arguments::Arguments::try_parse_from(["evenkeel", "congestion", "load", "lola"]);
        let Ok(crate::arguments::Arguments {
            command: crate::arguments::Command::Congestion(CongestionCommand::Load(options)),
        }) = parsed
        else {
            unreachable!("the command line is valid")
        };
        assert_eq!(crate::congestion::settings(&options), evenkeel_congestion::Settings::default());
    }
}
