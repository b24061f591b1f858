//! The command line of `evenkeel report`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct ReportOptions {
    /// A record's directory, its record.json, or `-` for standard input; or a study's directory
    pub record: PathBuf,
    /// Another record: the page also shows what differs between the two
    pub second: Option<PathBuf>,
    /// File to write, which must not exist yet; `-` for standard output
    #[arg(short = 'o', long = "out", value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
}
