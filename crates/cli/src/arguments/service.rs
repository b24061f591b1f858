//! The options of `evenkeel service` and `evenkeel status`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_service::DEFAULT_SOCKET;

use super::{Format, SessionFormat};
use crate::examples;

#[derive(Debug, Args)]
pub struct ServiceOptions {
    #[command(subcommand)]
    pub command: Option<ServiceCommand>,
    /// The configuration: which interface gets which options
    #[arg(long, value_name = "FILE", default_value = "/etc/evenkeel/evenkeel.toml")]
    pub config: PathBuf,
    /// Check a configuration and print which present interface gets which options; change nothing
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub check: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Restore the settings of an interface, and do not manage it until `resume`
    #[command(after_help = examples::SERVICE_PAUSE)]
    Pause {
        /// The interface [default: all]
        interface: Option<String>,
        #[command(flatten)]
        place: ServicePlace,
    },
    /// Manage a paused interface again, or retry an interface that the service gave up
    #[command(after_help = examples::SERVICE_RESUME)]
    Resume {
        /// The interface [default: all]
        interface: Option<String>,
        #[command(flatten)]
        place: ServicePlace,
    },
    /// Reload the configuration; if the file is invalid, keep the current configuration and exit with 2
    #[command(after_help = examples::SERVICE_RELOAD)]
    Reload {
        #[command(flatten)]
        place: ServicePlace,
    },
}

/// Where the service answers.
#[derive(Debug, Args)]
pub struct ServicePlace {
    /// Control socket of the service, as in its configuration
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

#[derive(Debug, Args)]
pub struct StatusOptions {
    /// Show only this interface
    pub interface: Option<String>,
    #[command(flatten)]
    pub place: ServicePlace,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct MaintainOptions {
    pub interface: String,
    /// A rule of `check` whose changes to make
    #[arg(long = "rule", value_name = "RULE")]
    pub rules: Vec<String>,
    /// Whether the changes stay after SIGTERM
    #[arg(long, value_enum, default_value_t = AtEnd::Revert)]
    pub at_end: AtEnd,
    /// Overwrite the values that other programs have set since an earlier worker changed the settings
    #[arg(long)]
    pub afresh: bool,
    /// Undo the changes of an earlier worker, and those to interfaces that do not exist anymore
    #[arg(long, requires = "index")]
    pub undo: bool,
    /// Index of the interface, which may be gone
    #[arg(long)]
    pub index: Option<u32>,
    #[arg(long, value_enum, default_value_t = SessionFormat::Jsonl)]
    pub format: SessionFormat,
}

/// What a worker of the service does with its changes at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtEnd {
    Revert,
    Keep,
}
