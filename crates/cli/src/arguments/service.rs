//! The options of `evenkeel service` and `evenkeel status`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_service::DEFAULT_SOCKET;

use super::Format;
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
