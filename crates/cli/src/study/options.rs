//! The command line of `evenkeel study`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_model::units::BitRate;

use crate::arguments::{Format, Place, parse_line_rate, whole_number};
use crate::examples;

#[derive(Debug, Subcommand)]
pub enum StudyCommand {
    /// Measure how qdiscs behave, what they cost, and which qdisc suits which need: every tc-* scenario as one study
    ///
    /// Every finished repeat is stored at once. Start the same command again to resume an interrupted or killed
    /// study. The result is a page (study.md), JSON (study-result.json) and charts (SVG) in its directory.
    #[command(after_help = examples::STUDY_TC)]
    Tc(TcOptions),
}

#[derive(Debug, Args)]
pub struct TcOptions {
    /// Run the short version: only the quick points of each scenario, with short times: minutes instead of hours
    #[arg(long)]
    pub quick: bool,
    /// Where to run [default: netns]
    #[arg(long = "on", value_enum)]
    pub place: Option<Place>,
    /// Resume the study in this directory, with the settings of that study
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["out", "quick", "place", "scenarios", "setups", "qdiscs", "repeats", "rate", "seed"]
    )]
    pub resume: Option<PathBuf>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Directory for the study; if it holds an unfinished study, that study is resumed [default: one below
    /// ./evenkeel-records]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run only this scenario, by its bundled name or by a path; may be given several times [default: every tc-*
    /// scenario]
    #[arg(long = "scenario", value_name = "NAME")]
    pub scenarios: Vec<String>,
    /// Run only this qdisc setup; may be given several times [default: all]
    #[arg(long = "qdisc", value_name = "NAME")]
    pub setups: Vec<String>,
    /// File with your own qdisc setups, to compare in every scenario (docs/reference/qdisc-setups.md)
    #[arg(long, value_name = "FILE")]
    pub qdiscs: Option<PathBuf>,
    /// Repeats of every point [default: as each scenario states]
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=1000), allow_negative_numbers = true)]
    pub repeats: Option<u32>,
    /// Line rate of the scenarios that have a line, such as 1gbit [default: as each scenario
    /// states, but with --on netns at most what the processors carry]
    #[arg(long, value_name = "RATE", value_parser = parse_line_rate, allow_hyphen_values = true)]
    pub rate: Option<BitRate>,
    /// Seed of the order of repeats, and of the simulator [default: 1]
    #[arg(long, value_name = "S", value_parser = whole_number::<u64>(0..=u64::MAX), allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Print the result as a Markdown table of all qdisc setups with their main figures
    #[arg(long, conflicts_with = "format")]
    pub qdisc_table: bool,
    /// Print no progress and no remarks on standard error
    #[arg(long)]
    pub quiet: bool,
}
