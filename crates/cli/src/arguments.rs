//! The command line. Man pages and completions are generated from it.

mod calibrate;
mod congestion;
mod host;
mod metrics;
mod report;
mod service;
mod top;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand, ValueEnum};
use evenkeel_model::scenario::LINE_RATES;
use evenkeel_model::units::{BitRate, ByteSize, Nanoseconds, UnitError};
use evenkeel_receive::flows::MOST_FLOWS;

use crate::examples;
use crate::study::StudyCommand;

pub use calibrate::CalibrateOptions;
pub use congestion::{CongestionCommand, LoadOptions, UnloadOptions};
pub use host::{CheckOptions, PersistChoice, TuneOptions};
pub use metrics::MetricsOptions;
pub use report::ReportOptions;
pub use service::{AtEnd, MaintainOptions, ServiceCommand, ServiceOptions, ServicePlace, StatusOptions};
pub use top::{TopFormat, TopOptions};

/// Version, commit and required kernels, for bug reports.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("EVENKEEL_COMMIT").unwrap_or("unknown (not built with ./dev)");
    format!(
        "{}\ncommit: {commit}\nfair: Linux 6.1 or newer with BTF\n\
         steer, congestion load, run --on netns: Linux 6.6 or newer with BTF\n\
         other commands: Linux 4.18 or newer",
        env!("CARGO_PKG_VERSION")
    )
});

/// Manage the queues of a Linux host's NIC as one resource, and measure the effect
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, long_version = LONG_VERSION.as_str(), propagate_version = true)]
#[command(after_help = examples::ALL)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a scenario (an experiment), and compare its variants
    #[command(after_help = examples::RUN)]
    Run(RunOptions),
    /// List, show or check scenarios
    #[command(subcommand, after_help = examples::SCENARIO)]
    Scenario(ScenarioCommand),
    /// Keep flows through an interface fair until interrupted; restore every setting at the end
    #[command(after_help = examples::FAIR)]
    Fair(FairOptions),
    /// Run `fair`, `steer` and changes of `tune` on the interfaces that a configuration file lists, under a service manager;
    /// or control that service
    #[command(after_help = examples::SERVICE, args_conflicts_with_subcommands = true)]
    Service(ServiceOptions),
    /// Show the state of each interface of the service; exit with 1 unless each is as configured or paused
    #[command(after_help = examples::STATUS)]
    Status(StatusOptions),
    /// Show queues, flows, processors and losses of this host live; change nothing
    #[command(after_help = examples::TOP)]
    Top(TopOptions),
    /// Print or make the changes that `check` proposes for an interface; the changes stay until `revert` or a reboot
    #[command(after_help = examples::TUNE)]
    Tune(TuneOptions),
    /// Restore the settings that `tune` or a killed run changed
    #[command(after_help = examples::REVERT)]
    Revert(RevertOptions),
    /// Watch a run and restore its settings when it dies (started by the run itself)
    #[command(hide = true)]
    Guard(GuardOptions),
    /// Make changes of `tune`, and undo them at the end (started by `evenkeel service`)
    #[command(hide = true)]
    Maintain(MaintainOptions),
    /// List and show NIC models, or pick the model for an interface
    #[command(subcommand, after_help = examples::NIC)]
    Nic(NicCommand),
    /// Compute the NIC filters that send flows to queues by a policy
    #[command(subcommand, after_help = examples::SEARCH)]
    Search(SearchCommand),
    /// Steer received flows to queues by a policy until interrupted; restore every setting at the end
    #[command(after_help = examples::STEER)]
    Steer(SteerOptions),
    /// Load a congestion control for TCP, list those that this host has, or unload one
    #[command(subcommand, after_help = examples::CONGESTION)]
    Congestion(CongestionCommand),
    /// Find what slows this host's network: evidence, cost and fix of each finding; change nothing
    #[command(after_help = examples::CHECK)]
    Check(CheckOptions),
    /// Export what `check` and `fair --observe` count, for Prometheus; change nothing
    #[command(after_help = examples::METRICS)]
    Metrics(MetricsOptions),
    /// Measure what this host's processors and its network stack cost, as a machine profile; change nothing
    #[command(after_help = examples::CALIBRATE)]
    Calibrate(CalibrateOptions),
    /// Measure qdiscs in every tc-* scenario, and recommend a qdisc for each need
    #[command(subcommand, after_help = examples::STUDY)]
    Study(StudyCommand),
    /// Compare two records or two studies: show what differs by more than the spread of the repeats
    #[command(after_help = examples::COMPARE)]
    Compare(CompareOptions),
    /// Write a record as one self-contained HTML page with plots, tables and every setting, to send or to keep
    #[command(after_help = examples::REPORT)]
    Report(ReportOptions),
    /// Write man pages or shell completions
    #[command(after_help = examples::GENERATE)]
    Generate(GenerateOptions),
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// A bundled scenario's name (see `evenkeel scenario list`), or a path to a TOML file; `-` for standard input
    pub scenario: String,
    /// Where to run
    #[arg(long = "on", value_enum, default_value_t = Place::Netns)]
    pub place: Place,
    /// Variant or group to run; may be given several times [default: the scenario's `variants`; of a tc-* scenario: its quick points]
    #[arg(long = "variant", value_name = "NAME")]
    pub variants: Vec<String>,
    /// Line rate, such as 2gbit; `auto`: the scenario's, but with --on netns at most what the processors carry
    #[arg(long, value_name = "RATE|auto", default_value = "auto", value_parser = parse_rate, allow_hyphen_values = true)]
    pub rate: Rate,
    /// Repeats of each variant [default: the scenario's]
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=1000), allow_negative_numbers = true)]
    pub repeat: Option<u32>,
    /// Length of a repeat, as a multiple of the scenario's longest window [default: the scenario's measure.long-windows]
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=1000), allow_negative_numbers = true)]
    pub long_windows: Option<u32>,
    /// Run a short version: at most two repeats (or --repeat), each of two long windows unless the scenario sets the length;
    /// a tc-* scenario has its own short times and repeats. Too short for a claim: the run judges no expectation
    #[arg(long, conflicts_with = "long_windows")]
    pub quick: bool,
    /// File with your own qdisc setups, to compare in a tc-* scenario (docs/reference/qdisc-setups.md)
    #[arg(long, value_name = "FILE")]
    pub qdiscs: Option<PathBuf>,
    /// How the test bed emulates the NIC [default: the scenario's topology]
    #[arg(long, value_enum)]
    pub topology: Option<TopologyChoice>,
    /// Kernel version that the simulator models [default: 4.4; 6.18 with --nic soft and for transfers]
    #[arg(long, value_enum)]
    pub profile: Option<ProfileChoice>,
    /// NIC that the simulator models [default: hardware]
    #[arg(long, value_enum)]
    pub nic: Option<NicChoice>,
    /// Number of simulated processors, with --nic soft [default: 2]
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=1024), allow_negative_numbers = true)]
    pub processors: Option<u32>,
    /// With `--on sim`: simulate the NIC packet by packet, not by a closed form: slower, with the same result
    #[arg(long)]
    pub exact: bool,
    /// Seed of the simulator's random numbers; no effect with --on netns
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = whole_number::<u64>(0..=u64::MAX), allow_negative_numbers = true)]
    pub seed: u64,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Directory for the record [default: a new one below ./evenkeel-records]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print no progress and no remarks on standard error
    #[arg(long)]
    pub quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// This machine's kernel, in new network namespaces; needs root
    Netns,
    /// The simulator: any machine, no privileges, the same result for the same seed
    Sim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProfileChoice {
    /// Linux 4.4, the kernel of the Titan paper
    #[value(name = "4.4")]
    Linux4_4,
    /// Linux 6.18
    #[value(name = "6.18")]
    Linux6_18,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NicChoice {
    /// A multiqueue NIC with the variant's settings
    Hardware,
    /// The emulated NIC and the hosts of the test bed (--on netns), to compare the simulator with the kernel
    Soft,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopologyChoice {
    /// HTB classes as hardware queues, served by deficit round robin at line rate
    SoftNic,
    /// The device's own transmit queues under an mq root, each shaped to its share
    Mq,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable table
    Table,
    /// JSON and nothing else
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// The highest rate that leaves the NIC the bottleneck.
    Auto,
    Fixed(BitRate),
}

/// Returns a parser for whole numbers within a range. The messages of clap and the standard library name Rust types.
pub fn whole_number<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + Display + PartialOrd + Clone + Send + Sync + 'static,
{
    move |text| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && range.contains(number));
        number.ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Removes a misleading tip of clap: for an unexpected `-1` it suggests `-- -1`, which would be a scenario's name.
pub fn plain(mut error: clap::Error) -> clap::Error {
    let is_number = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(argument))
        if argument.strip_prefix('-').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit())));
    if is_number {
        error.remove(ContextKind::Suggested);
    }
    error
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "auto" { Ok(Rate::Auto) } else { parse_line_rate(text).map(Rate::Fixed) }
}

/// The speed of an interface's link.
#[derive(Clone, Debug)]
pub struct StatedSpeed {
    pub interface: String,
    pub bits_per_second: u64,
}

fn parse_speed(text: &str) -> Result<StatedSpeed, String> {
    let (interface, rate) = text
        .split_once('=')
        .ok_or_else(|| "name the interface and its speed, as in eth0=25gbit".to_owned())?;
    let rate = parse_line_rate(rate)?;
    Ok(StatedSpeed { interface: interface.to_owned(), bits_per_second: rate.bits_per_second() })
}

pub fn parse_line_rate(text: &str) -> Result<BitRate, String> {
    let rate: BitRate = text.parse().map_err(|error| format!("{error}"))?;
    if !LINE_RATES.contains(&rate) {
        return Err(format!("a line rate must be between {} and {}", LINE_RATES.start(), LINE_RATES.end()));
    }
    Ok(rate)
}

fn parse_segments(text: &str) -> Result<Segments, String> {
    // At the minimum, a segment fills less than three packets. The maximum is the kernel's without BIG TCP.
    const LEAST: u64 = 4096;
    const MOST: u64 = 65_536;
    match text {
        "off" => return Ok(Segments::Off),
        "auto" => return Ok(Segments::Auto),
        _ => {}
    }
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    if !(LEAST..=MOST).contains(&size.bytes()) {
        return Err("a segment size must be between 4KiB and 64KiB".to_owned());
    }
    Ok(Segments::Fixed(size))
}

/// Parses a time such as `10s`; refuses a bare number.
fn parse_time(text: &str) -> Result<Duration, String> {
    let time: Nanoseconds = text.parse().map_err(|error: UnitError| error.with_example("30s").to_string())?;
    if time == Nanoseconds::new(0) {
        return Err("give a time above 0, such as 10s".to_owned());
    }
    Ok(Duration::from_nanos(time.as_u64()))
}

/// Parses the time of a watch. Refuses a very short one, which would report no losses because it sees none.
fn parse_watch(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(100);
    parse_time(text)
        .and_then(|time| if time < LEAST { Err("give a time of 100ms or more".to_owned()) } else { Ok(time) })
}

/// Parses a share such as `30%`; refuses a bare number.
fn parse_share(text: &str) -> Result<f64, String> {
    const MOST: f64 = 1000.0;
    let number = text.strip_suffix('%').ok_or("write a share with its unit, such as 30%")?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let percent: f64 = plain
        .then(|| digits.parse().ok())
        .flatten()
        .ok_or("write a number with a per cent sign, such as 30%")?;
    if percent > MOST || number != digits {
        return Err("a share must be between 0% and 1000%".to_owned());
    }
    Ok(percent / 100.0)
}

#[derive(Debug, Subcommand)]
pub enum ScenarioCommand {
    /// List the bundled scenarios
    #[command(after_help = examples::SCENARIO_LIST)]
    List,
    /// Show a scenario: its settings, and what each variant changes
    #[command(after_help = examples::SCENARIO_SHOW)]
    Show {
        /// A bundled scenario's name, or a path to a TOML file
        scenario: String,
        /// Print the scenario's file
        #[arg(long)]
        toml: bool,
    },
    /// Check scenario files; report the first error of each with line and column
    #[command(after_help = examples::SCENARIO_CHECK)]
    Check {
        /// Paths to TOML files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub enum NicCommand {
    /// List the NIC models
    #[command(after_help = examples::NIC_LIST)]
    List {
        #[command(flatten)]
        source: NicSource,
    },
    /// Show a model: filter tables, RSS hash, and the order in which they decide; or draw it as a graph
    #[command(after_help = examples::NIC_SHOW)]
    Show(NicShowOptions),
    /// Pick the model for an interface, and give the reasons
    #[command(after_help = examples::NIC_PROBE)]
    Probe {
        /// Interface whose NIC the model must fit
        interface: String,
        #[command(flatten)]
        source: NicSource,
    },
}

/// Additional sources of NIC models.
#[derive(Clone, Debug, Default, Args)]
pub struct NicSource {
    /// Directory of further NIC models, one TOML file each; such a model replaces the bundled model of the same
    /// name [default: EVENKEEL_NIC_DIR, if it is set]
    #[arg(long, value_name = "DIR")]
    nic_dir: Option<PathBuf>,
}

impl NicSource {
    /// Returns whether the command line names a directory.
    pub fn is_given(&self) -> bool {
        self.nic_dir.is_some()
    }

    /// Returns the directory. An empty variable counts as unset.
    pub fn directory(&self) -> Option<ModelDirectory> {
        const VARIABLE: &str = "EVENKEEL_NIC_DIR";
        let variable = || std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let given = self.nic_dir.clone().map(|path| ModelDirectory { path, named_by: "--nic-dir" });
        given.or_else(|| Some(ModelDirectory { path: variable()?, named_by: VARIABLE }))
    }
}

/// A directory of NIC models, and the option or variable that names it.
pub struct ModelDirectory {
    pub path: PathBuf,
    pub named_by: &'static str,
}

#[derive(Debug, Args)]
pub struct NicShowOptions {
    /// A model's name (see `evenkeel nic list`), or a path to a TOML file
    pub name: String,
    /// Print the graph in DOT (Graphviz)
    #[arg(long, conflicts_with = "svg")]
    pub dot: bool,
    /// Print the graph as SVG
    #[arg(long)]
    pub svg: bool,
    /// Show the NIC as this TOML file configures it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub source: NicSource,
}

#[derive(Debug, Subcommand)]
pub enum SearchCommand {
    /// Find the filters for a list of flows, and the queue of each flow
    #[command(after_help = examples::SEARCH_SOLVE)]
    Solve(SolveOptions),
    /// Measure the time of a search, and compare it with Table 1 of the Dragonet paper
    #[command(after_help = examples::SEARCH_BENCH)]
    Bench(BenchOptions),
}

/// Flows from a trace or a generator instead of an observation.
#[derive(Clone, Debug, Default, Args)]
pub struct ListedFlows {
    /// File with the flows, as CSV: protocol, src, src_port, dst, dst_port, and optional columns; `-` for standard input
    #[arg(long, value_name = "FILE", group = "listed")]
    pub flows: Option<PathBuf>,
    /// Generate this many flows instead of reading a file: UDP to one port, 16 per client; every tenth client is in
    /// the policy's first class
    #[arg(long, value_name = "N", group = "listed", value_parser = whole_number::<u32>(1..=MOST_FLOWS as u32), allow_negative_numbers = true)]
    pub generate: Option<u32>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("listed").required(true)))]
pub struct SolveOptions {
    /// The NIC: a model's name (see `evenkeel nic list`), or a path to a TOML file
    #[arg(long, value_name = "NIC")]
    pub nic: String,
    /// Number of receive queues in use
    #[arg(long, value_name = "N", value_parser = whole_number::<u16>(1..=u16::MAX), allow_negative_numbers = true)]
    pub queues: u16,
    #[command(flatten)]
    pub listed: ListedFlows,
    /// The policy: a TOML file, or the name of a built-in policy, such as balance
    #[arg(long, value_name = "FILE")]
    pub policy: String,
    /// Size of a filter table of the NIC, such as full=131072; once for each table [default: the model's size]
    #[arg(long = "table-size", value_name = "TABLE=N", value_parser = parse_table_size, allow_hyphen_values = true)]
    pub table_sizes: Vec<TableSize>,
    /// Let one filter spread a class over its queues by an RSS context, if the model has contexts
    #[arg(long)]
    pub contexts: bool,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    #[command(flatten)]
    pub source: NicSource,
}

#[derive(Debug, Args)]
pub struct BenchOptions {
    /// The NIC: a model's name (see `evenkeel nic list`), or a path to a TOML file
    #[arg(long, value_name = "NIC", default_value = "i82599")]
    pub nic: String,
    /// Number of flows [default: each size of Dragonet's Table 1]
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=MOST_FLOWS as u32), allow_negative_numbers = true)]
    pub flows: Option<u32>,
    /// Number of receive queues in use
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole_number::<u16>(1..=u16::MAX), allow_negative_numbers = true)]
    pub queues: u16,
    /// The policy: a TOML file, or the name of a built-in policy
    #[arg(long, value_name = "POLICY", default_value = "balance")]
    pub policy: String,
    /// Turn RSS off, as in the Dragonet paper: flows without a filter go to the default queue
    #[arg(long)]
    pub no_rss: bool,
    /// Maximum number of repeats of each measurement; slow measurements are repeated less often
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole_number::<u32>(1..=10_000), allow_negative_numbers = true)]
    pub repeat: u32,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    #[command(flatten)]
    pub source: NicSource,
}

/// A filter table and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSize {
    pub table: String,
    pub capacity: usize,
}

fn parse_table_size(text: &str) -> Result<TableSize, String> {
    const MOST: usize = 1 << 24;
    let split = text.split_once('=').filter(|(table, _)| !table.is_empty());
    let (table, number) = split.ok_or("write the table and its size, such as full=131072")?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let capacity = number.parse().ok().filter(|capacity| digits && (1..=MOST).contains(capacity));
    let capacity = capacity.ok_or_else(|| format!("write a table size from 1 to {MOST} filters"))?;
    Ok(TableSize { table: table.to_owned(), capacity })
}

#[derive(Debug, Args)]
pub struct CompareOptions {
    /// A record's directory, or its record.json; or a study's directory
    pub first: PathBuf,
    /// The other record or study
    pub second: PathBuf,
    /// Compare only this metric of two records, by its key, such as nfm.1s; may be given several times
    #[arg(long = "metric", value_name = "KEY")]
    pub metrics: Vec<String>,
    /// Judge whether two records are equal within this share: the whole 95 % confidence interval of each change must
    /// lie within it; exit with 1 unless both records have every figure, and every interval does
    #[arg(long, value_name = "N%", value_parser = parse_share, allow_hyphen_values = true)]
    pub within: Option<f64>,
    /// Show every figure of two records, not only those that differ
    #[arg(long)]
    pub all: bool,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct FairOptions {
    /// The interface; for a bond, VLAN, bridge or macvlan, `fair` manages the devices below it
    pub interface: String,
    /// Observe only: show flows, queues, collisions and shares; change no setting (before Linux 6.6: add a counting filter)
    #[arg(long, conflicts_with_all = ["plan", "xps", "queue_weights", "balance", "batching", "segments", "weights"])]
    pub observe: bool,
    /// Print every change and its undo as shell lines, and change nothing
    #[arg(long, conflicts_with_all = ["time", "format"])]
    pub plan: bool,
    /// Flow weights: a TOML file with rules by cgroup, protocol, port, mark or priority; it is read again when it changes
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// How to handle XPS maps, which override the queue choice
    #[arg(long, value_enum, default_value_t = XpsChoice::Auto)]
    pub xps: XpsChoice,
    /// How to serve queues by the weights of their flows
    #[arg(long, value_enum, default_value_t = QueueWeightsChoice::Off)]
    pub queue_weights: QueueWeightsChoice,
    /// With `--queue-weights htb` (required): rate of the HTB root, slightly below the capacity of the link, such as 900mbit.
    /// With `max-rate`: the rate that the queues share [default for max-rate: the speed of the link]
    #[arg(long, value_name = "RATE", value_parser = parse_line_rate, allow_hyphen_values = true, required_if_eq("queue_weights", "htb"))]
    pub rate: Option<BitRate>,
    /// Service balancing: move flows between shared queues periodically; not with queue weights or pools of queues
    #[arg(long, value_enum, default_value_t = BalanceChoice::Off)]
    pub balance: BalanceChoice,
    /// Transmit batching: a BPF qdisc at each queue (Linux 6.16) collects a burst before the queue is served.
    /// It replaces the device's leaf qdiscs with FIFOs that hold a segment for up to 10 us
    #[arg(long, value_enum, default_value_t = BatchingChoice::Off)]
    pub batching: BatchingChoice,
    /// Limit the size of segments while flows share queues: 4KiB to 64KiB, or `auto`: the largest size that meets the
    /// fairness goal. A smaller size is fairer over short times, and costs processor time
    #[arg(long, value_name = "off|auto|SIZE", default_value = "off", value_parser = parse_segments, allow_hyphen_values = true)]
    pub segments: Segments,
    /// Attach by filters of clsact, as on a kernel without tcx hooks; for tests
    #[arg(long = "clsact", hide = true)]
    pub filters: bool,
    /// End after this time, such as 10s [default: when interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = SessionFormat::Table)]
    pub format: SessionFormat,
}

/// Output of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SessionFormat {
    /// Human-readable table
    Table,
    /// One JSON object at the end, and nothing else
    Json,
    /// One JSON object per line: the start, the status each second, messages, the end
    Jsonl,
}

/// Whether flows alternate on shared queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BalanceChoice {
    /// Keep flows on their queues
    Off,
    /// Move flows, except with queue weights, with pools of queues, or on a kernel that does not allow moves
    Auto,
    /// Move flows; refused with queue weights, with pools of queues, or on a kernel that does not allow moves
    On,
}

/// Whether a burst is enqueued before its queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BatchingChoice {
    /// Keep the leaf qdiscs of the device
    Off,
    /// Collect bursts; refused with --queue-weights htb, without BPF qdiscs, or if the root qdisc could not be restored
    On,
}

#[derive(Debug, Args)]
pub struct SteerOptions {
    /// The interface whose received packets are steered; not needed for a plan for another host's NIC (--plan
    /// with --model, and --flows or --generate)
    #[arg(required_unless_present = "model")]
    pub interface: Option<String>,
    /// The policy: a TOML file, which is read again when it changes, or a built-in policy's name, such as balance
    #[arg(long, value_name = "FILE")]
    pub policy: String,
    /// Search once and keep the result, instead of following the flows
    #[arg(long, conflicts_with_all = ["watch", "interval"])]
    pub once: bool,
    /// Search again when flows begin or end, or when a fact such as a flow's rate changes; the default
    #[arg(long)]
    pub watch: bool,
    /// Print the result of the search, and change nothing
    #[arg(long, conflicts_with_all = ["time", "once", "watch", "interval"])]
    pub plan: bool,
    #[command(flatten)]
    pub listed: ListedFlows,
    /// How to apply the result of the search
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub backend: BackendChoice,
    /// NIC model, for n-tuple rules or a plan: a name (see `evenkeel nic list`) or a path [default: the back end's model]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Number of receive queues to use; with XDP and RPS, of processors [default: all queues, or all online processors;
    /// with --plan and --model: all online processors, or with --flows or --generate, all queues of the model]
    #[arg(long, value_name = "N", value_parser = whole_number::<u16>(1..=u16::MAX), allow_negative_numbers = true)]
    pub queues: Option<u16>,
    /// Also read the sockets of another network namespace: a name, a PID or a path; `all`: all namespaces;
    /// may be given several times
    #[arg(
        long = "netns",
        value_name = "NAME",
        conflicts_with = "listed",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub namespaces: Vec<String>,
    /// Measure a baseline for comparison (XDP only): run the program, but do not send packets to the policy's processors
    #[arg(long, value_enum, value_name = "hash|pass", conflicts_with = "plan")]
    pub baseline: Option<BaselineChoice>,
    /// Minimum time between two searches
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_time, allow_hyphen_values = true)]
    pub interval: Duration,
    /// Remove the filter of a flow that receives nothing for this time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time, allow_hyphen_values = true, conflicts_with = "listed")]
    pub idle: Duration,
    /// End after this time, such as 10s [default: when interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = SessionFormat::Table)]
    pub format: SessionFormat,
    #[command(flatten)]
    pub source: NicSource,
}

/// How the search's result is applied to the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// N-tuple rules if the driver supports them, else XDP
    Auto,
    /// N-tuple rules and the RSS table of the NIC, through ethtool
    Ntuple,
    /// An XDP program that sends packets to processors; any driver with XDP
    Xdp,
    /// RPS over the processors that no class reserves; RFS if the policy is locality
    Rps,
}

/// A baseline for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BaselineChoice {
    /// Send packets to processors by hash, as RSS does
    Hash,
    /// Run the XDP program, but leave each packet on the processor that received it
    Pass,
}

/// How queues are served by the weights of their flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueWeightsChoice {
    /// Leave the scheduling of the queues to the device
    Off,
    /// Set weights in the device if it supports them (net-shaper), otherwise leave the scheduling to it
    Auto,
    /// Put an HTB root qdisc with eight classes in front of the device, which may have any number of queues
    Htb,
    /// Set weights in the device (net-shaper); refused if it does not support them
    NetShaper,
    /// Set a maximum rate for each queue (tx_maxrate): no other queue can use an unused share
    MaxRate,
}

/// Segment sizes while flows share queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// Unchanged.
    Off,
    /// The largest that meets the fairness goal.
    Auto,
    Fixed(ByteSize),
}

/// Handling of XPS maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XpsChoice {
    /// Empty the maps if they are the driver's own; refuse to run if another program set them
    Auto,
    /// Keep the maps; refuse to run if the device has any
    Respect,
    /// Empty the maps: every processor may use every queue
    Off,
    /// Empty the maps, and use only the queues of the processor's pool or NUMA node
    Pools,
}

#[derive(Debug, Args)]
pub struct RevertOptions {
    /// Restore only this interface and the devices below it [default: all interfaces of this network namespace]
    pub interface: Option<String>,
}

#[derive(Debug, Args)]
pub struct GuardOptions {
    /// The run's journal
    pub journal: PathBuf,
    /// The run's process id
    pub worker: u32,
    /// When the run's process started, clock ticks since boot
    pub worker_start: u64,
}

#[derive(Debug, Args)]
pub struct GenerateOptions {
    /// Kind of files to write
    #[arg(value_enum)]
    pub what: Generated,
    /// Directory to write to; replaces existing files of the same names
    pub directory: PathBuf,
}

/// Files generated from the command line's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    /// Man pages
    Man,
    /// Completions for bash, fish and zsh
    Completions,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_number_out_of_range_is_refused_in_plain_words() {
        for wrong in ["-1", "0", "1001", "x", "", "1.5", "+7", " 7", "99999999999999999999"] {
            let argument = format!("--repeat={wrong}");
            let error =
                Arguments::try_parse_from(["evenkeel", "run", "s", &argument]).unwrap_err().to_string();
            assert!(error.contains("a whole number from 1 to 1000"), "{error}");
        }
        let error =
            Arguments::try_parse_from(["evenkeel", "run", "s", "--repeat", "-1"]).unwrap_err().to_string();
        assert!(error.contains("'-1'") && error.contains("from 1 to 1000"), "{error}");
        assert!(Arguments::try_parse_from(["evenkeel", "run", "s", "--repeat", "1000"]).is_ok());
    }

    #[test]
    fn shares_need_a_unit() {
        assert_eq!((parse_share("30%"), parse_share("0%")), (Ok(0.3), Ok(0.0)));
        assert_eq!(parse_share("-5%"), Err("a share must be between 0% and 1000%".to_owned()));
        assert_eq!(parse_share("2.5%"), Ok(0.025));
        for wrong in ["30", "0.3", "%", "-1%", "nan%", "inf%", "1e2%", "1001%", "3 %", "1.2.3%", ""] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_need_a_unit_and_a_sensible_size() {
        assert_eq!(parse_rate("auto").unwrap(), Rate::Auto);
        assert_eq!(parse_rate("2gbit").unwrap(), Rate::Fixed(BitRate::from_bits_per_second(2_000_000_000)));
        for wrong in ["2", "2gb", "-1gbit", "0gbit", "1bit", "9999999gbit", "", "nangbit"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
