//! The options of the commands that judge and tune a host.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Format, StatedSpeed, parse_speed, parse_watch};

#[derive(Debug, Args)]
pub struct CheckOptions {
    /// Check this interface and the host-wide settings [default: every interface]
    pub interface: Option<String>,
    /// Count losses for this time, such as 10s (at least 100ms), and show where they occur
    #[arg(long, value_name = "TIME", value_parser = parse_watch, allow_hyphen_values = true, conflicts_with_all = ["save", "from", "explain", "speeds"])]
    pub watch: Option<Duration>,
    /// Record this host as a tree of files in a new or empty directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from", "explain"])]
    pub save: Option<PathBuf>,
    /// With --save: replace addresses and process names in the recording; interface names stay
    #[arg(long, requires = "save", conflicts_with_all = ["from", "watch", "explain"])]
    pub anonymise: bool,
    /// Check a host that was recorded with --save, or written by hand (docs/reference/check.md)
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Explain a rule and show its findings on this host; `all` describes every rule
    #[arg(long, value_name = "RULE", conflicts_with = "format")]
    pub explain: Option<String>,
    /// Simulate the receiving host before and after the fix of each finding, and show the gain;
    /// takes up to about 20 s on two cores
    #[arg(long, conflicts_with_all = ["watch", "explain"])]
    pub simulate: bool,
    /// Machine profile with the costs of the model: a built-in name (kit-2014, xeon-6128), or a file, as `evenkeel
    /// calibrate` writes it [default: the built-in profile that is nearest to the host's processor]
    #[arg(long, value_name = "FILE|NAME", requires = "simulate")]
    pub machine: Option<String>,
    /// Speed of a NIC's link if the driver reports no speed or a wrong one, as cloud drivers do: IFACE=25gbit; once for
    /// each NIC
    #[arg(long = "speed", value_name = "IFACE=RATE", value_parser = parse_speed, allow_hyphen_values = true)]
    pub speeds: Vec<StatedSpeed>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct TuneOptions {
    /// Interface whose settings to change
    pub interface: String,
    /// Print every change and its undo as shell lines, and change nothing; the default
    #[arg(long, conflicts_with = "apply")]
    pub print: bool,
    /// Make all changes, or only the changes of these rules, named as in --print; the changes stay until `evenkeel
    /// revert` or a reboot
    #[arg(long, value_name = "RULE", num_args = 0..)]
    pub apply: Option<Vec<String>>,
    /// More rules for --apply, written after another option
    #[arg(value_name = "RULE", hide = true, requires = "apply")]
    pub further: Vec<String>,
    /// TOML file of settings that `tune` must not change [default: /etc/evenkeel/keep.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    /// Also write files that apply the settings after a reboot, or print these files without --apply; `evenkeel revert`
    /// removes them. Separate several kinds by commas
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    pub persist: Vec<PersistChoice>,
    /// How long to count losses before the changes, and again after the changes; at least 100ms
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_watch, allow_hyphen_values = true, requires = "apply", conflicts_with_all = ["from", "print"])]
    pub watch: Duration,
    /// Do not count losses before and after the changes
    #[arg(long, requires = "apply", conflicts_with_all = ["watch", "from", "print"])]
    pub no_watch: bool,
    /// Plan for the host that `evenkeel check --save` recorded in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "apply")]
    pub from: Option<PathBuf>,
    /// Simulate the receiving host without changes, with all changes, with each rule alone, and with each rule left
    /// out; takes up to about 20 s on two cores
    #[arg(long, conflicts_with = "apply")]
    pub simulate: bool,
    /// Machine profile with the costs of the model: a built-in name (kit-2014, xeon-6128), or a file, as `evenkeel
    /// calibrate` writes it [default: the built-in profile that is nearest to the host's processor]
    #[arg(long, value_name = "FILE|NAME", requires = "simulate")]
    pub machine: Option<String>,
    /// Speed of a NIC's link if the driver reports no speed or a wrong one, as cloud drivers do: IFACE=25gbit; once for
    /// each NIC
    #[arg(long = "speed", value_name = "IFACE=RATE", value_parser = parse_speed, allow_hyphen_values = true)]
    pub speeds: Vec<StatedSpeed>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

impl TuneOptions {
    /// Returns the rules whose changes `tune` makes; empty: all rules.
    pub fn rules(&self) -> Vec<String> {
        self.apply.iter().flatten().chain(&self.further).cloned().collect()
    }
}

/// A kind of file that makes settings again after a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PersistChoice {
    /// /etc/sysctl.d: sysctls
    Sysctl,
    /// A systemd unit: all settings that a shell line can set
    Systemd,
    /// udev rules: settings of the interface, applied when it appears
    Udev,
}
