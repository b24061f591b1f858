//! `evenkeel run`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use evenkeel_experiment::{ConductError, Request, at_a_time, conduct};
use evenkeel_model::record::Record;
use evenkeel_model::scenario::{Scenario, Topology, WorkloadKind, place_of};
use evenkeel_model::text::{counted, path_text};
use evenkeel_model::world::{Observer, World};
use evenkeel_report::Timing;
use evenkeel_report::store::{StoreError, Writer};
use evenkeel_report::{json, table};
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::world::{SimError, SimWorld};
use evenkeel_testbed::{Failure as BedFailure, NetnsWorld, TestbedError, beyond_one_kernel};

use crate::arguments::{Format, NicChoice, Place, ProfileChoice, Rate, RunOptions, TopologyChoice};
use crate::exit::{Exit, Failure, print};
use crate::memory;
use crate::progress::{Progress, table_options};
use crate::scenario::{Loaded, OwnSetups, load_with};

const QUICK_LONG_WINDOWS: u32 = 2;
const RECORDS: &str = "evenkeel-records";
/// Default number of CPUs of a simulated test bed.
const PROCESSORS: u32 = 2;

pub fn run(options: &RunOptions) -> Result<Exit, Failure> {
    refuse_ignored(options)?;
    if options.scenario == "-" && options.qdiscs.as_deref() == Some(Path::new("-")) {
        return Err(Failure::new(Exit::Usage, "the scenario and --qdiscs cannot both be standard input"));
    }
    let own = options.qdiscs.as_deref().map(OwnSetups::read).transpose()?;
    let Loaded { scenario, text, origin, .. } = load_with(&options.scenario, own.as_ref())?;
    refuse_ignored_by(&scenario, options)?;
    let scenario = if options.quick { scenario.quickened() } else { scenario };
    let variants = scenario.select(&options.variants).map_err(|error| Failure::new(Exit::Usage, error))?;
    if variants.is_empty() {
        let text = format!(
            "{} has no point for a quick run; choose points with --variant, for example --variant full (all \
             points)",
            scenario.name
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    let directory = options.out.clone().unwrap_or_else(|| default_directory(&scenario.name, options.place));
    // Claim the directory before a run, because a run takes minutes.
    let writer = Writer::claim(&directory).map_err(|error| {
        let failure = Failure::from(error);
        if options.out.is_none() {
            failure.and("name a directory for the record with --out DIR")
        } else {
            failure
        }
    })?;
    let request = Request {
        scenario: &scenario,
        scenario_text: &text,
        variants,
        repeats: options.repeat.unwrap_or_else(|| {
            let repeats = scenario.measure.repeats;
            let shorten = options.quick && scenario.workload.tenants().is_none();
            if shorten { repeats.min(QUICK_REPEATS) } else { repeats }
        }),
        long_windows: options.long_windows.or(options.quick.then_some(QUICK_LONG_WINDOWS)),
        rate: match options.rate {
            Rate::Auto => None,
            Rate::Fixed(rate) => Some(rate),
        },
        seed: options.seed,
        quick: options.quick,
        version: env!("CARGO_PKG_VERSION"),
    };
    let progress = Progress::new(options.quiet)?;
    // Only the world detects some invalid settings. Add the location in the file to such an error.
    let at = |key: Option<&str>, failure: Failure| match key.and_then(|key| place_of(&text, &origin, key)) {
        Some(place) => Failure::new(failure.exit(), format!("{place}: {}", failure.message())),
        None => failure,
    };
    let unrecorded = match options.place {
        Place::Netns => {
            let topology = options.topology.map(|choice| match choice {
                TopologyChoice::SoftNic => Topology::SoftNic,
                TopologyChoice::Mq => Topology::Mq,
            });
            // Check this before the privileges, because more privileges would not help.
            if let Some(why) = beyond_one_kernel(&scenario) {
                return Err(Failure::new(
                    Exit::Unable,
                    format!("the test bed (--on netns) cannot run {}: {why}", scenario.name),
                ));
            }
            let mut world = NetnsWorld::new(topology).map_err(|error| bed_failure(&error))?;
            conduct_in(&mut world, &request, &writer, &progress, |error| at(error.key(), bed_failure(error)))
        }
        Place::Sim => {
            check_memory(&request, &progress, |error| at(error.key(), simulation_failure(error)))?;
            let mut world = simulator(options, &scenario.workload.kind).exact(options.exact);
            conduct_in(&mut world, &request, &writer, &progress, |error| {
                at(error.key(), simulation_failure(error))
            })
        }
    }?;

    let written = writer.finish(&unrecorded);
    if matches!(written, Err(StoreError::Interrupted)) {
        return Err(Failure::with_causes(Exit::Interrupted, &StoreError::Interrupted));
    }
    let (record, kept) = match &written {
        Ok(record) => (record, Some(directory.as_path())),
        // Show the result even if the directory cannot be written.
        Err(_) => (&unrecorded, None),
    };
    let printed = match options.format {
        Format::Table => print(&table::render(record, table_options())),
        Format::Json => print(&format!("{:#}\n", json::run(record, kept))),
    };
    let place = path_text(&directory);
    match (&written, printed) {
        (Ok(_), printed) => printed.map_err(|failure| failure.and(&format!("the record is in {place}")))?,
        (Err(error), printed) => {
            let failure = Failure::with_causes(Exit::Failed, error);
            return Err(match printed {
                Ok(()) => failure.and("the result was printed, but no record was written"),
                Err(unprinted) => failure.and(unprinted.message()),
            });
        }
    }
    progress.remark(&format!("record: {place}"));
    let met = record.expectations.iter().all(|expectation| expectation.met != Some(false));
    Ok(if met { Exit::Done } else { Exit::Unmet })
}

/// Refuses options that the world would ignore.
fn refuse_ignored(options: &RunOptions) -> Result<(), Failure> {
    let of_simulator = [
        ("--exact", options.exact),
        ("--profile", options.profile.is_some()),
        ("--nic", options.nic.is_some()),
        ("--processors", options.processors.is_some()),
    ];
    let given = of_simulator.iter().find(|(_, is_given)| *is_given);
    let message = match (options.place, given) {
        (Place::Netns, Some((option, _))) => format!("{option} is for the simulator; use it with --on sim"),
        (Place::Sim, _) if options.topology.is_some() => {
            "--topology is for the test bed; use it with --on netns".to_owned()
        }
        (Place::Sim, _) if options.processors.is_some() && options.nic != Some(NicChoice::Soft) => {
            "--processors is for a simulated test bed; use it with --nic soft".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Failure::new(Exit::Usage, message))
}

/// Refuses options that this scenario would ignore.
fn refuse_ignored_by(scenario: &Scenario, options: &RunOptions) -> Result<(), Failure> {
    let name = &scenario.name;
    let tenants = scenario.workload.tenants();
    let has_length = tenants.is_some() || scenario.measure.length.is_some();
    let message = if options.qdiscs.is_some() && tenants.is_none() {
        format!(
            "--qdiscs is for scenarios that compare qdiscs (tc-*); {name} does not compare qdiscs; leave out \
             --qdiscs"
        )
    } else if options.long_windows.is_some() && has_length {
        format!("--long-windows has no effect: {name} states how long a repeat is; leave the option out")
    } else if options.long_windows.is_some() && scenario.workload.shuffled_bytes().is_some() {
        format!(
            "--long-windows has no effect: a repeat of {name} ends with its last flow; leave the option out"
        )
    } else if options.rate != Rate::Auto && tenants.is_some_and(|tenants| !tenants.line) {
        format!("--rate has no effect: {name} has no line that limits its senders; leave the option out")
    } else if options.rate != Rate::Auto && matches!(scenario.workload.kind, WorkloadKind::Transfers) {
        format!("--rate has no effect: the variants of {name} state the rates of ports; leave the option out")
    } else {
        return Ok(());
    };
    Err(Failure::new(Exit::Usage, message))
}

/// Estimates the memory of a simulation. Returns an error if the simulation needs more memory than is
/// available or allowed.
fn check_memory(
    request: &Request<'_>,
    progress: &Progress,
    failure: impl Fn(&SimError) -> Failure,
) -> Result<(), Failure> {
    const WORTH_SAYING: u64 = 256_000_000;
    let scenario = request.scenario;
    let repeats = request.variants.len() * request.repeats as usize;
    let long_windows = request.long_windows.unwrap_or(scenario.measure.long_windows);
    let Timing { duration, bin, .. } =
        Timing::new(scenario, request.rate.unwrap_or(scenario.link.rate), long_windows);
    let (mut running, mut kept) = (0, 0_u64);
    for variant in &request.variants {
        evenkeel_sim::world::check_memory(scenario, variant, duration, bin)
            .map_err(|error| failure(&error))?;
        let memory = evenkeel_sim::world::memory(scenario, variant, duration, bin);
        running = memory.running.max(running);
        kept = kept.saturating_add(memory.kept.saturating_mul(u64::from(request.repeats)));
    }
    let at_a_time = at_a_time(repeats, running, kept);
    // At the end, the record holds a second copy of the results.
    let needed = running.saturating_mul(at_a_time as u64).max(kept).saturating_add(kept);
    if needed >= WORTH_SAYING {
        progress.remark(&format!(
            "{}, {at_a_time} at a time, need up to about {} of memory",
            counted(repeats, "repeat"),
            memory::size(needed)
        ));
    }
    memory::require_within_limit(
        needed,
        "this run",
        "simulate fewer flows or hosts, or run fewer repeats (--repeat) or variants (--variant) at once",
    )
}

/// Returns the default simulator for tenants: a current kernel on the machine of a test bed.
pub fn simulator_of_tenants() -> SimWorld {
    SimWorld::of_test_bed(Profile::Linux6_18, PROCESSORS)
}

fn simulator(options: &RunOptions, workload: &WorkloadKind) -> SimWorld {
    // The default is the kernel of the Titan paper. Scenarios of transfers use a later kernel.
    let usual =
        if matches!(workload, WorkloadKind::Transfers) { Profile::Linux6_18 } else { Profile::Linux4_4 };
    let profile = options.profile.map(|profile| match profile {
        ProfileChoice::Linux4_4 => Profile::Linux4_4,
        ProfileChoice::Linux6_18 => Profile::Linux6_18,
    });
    match options.nic.unwrap_or(NicChoice::Hardware) {
        NicChoice::Hardware => SimWorld::new(profile.unwrap_or(usual)),
        // By default, a simulated test bed has a current kernel.
        NicChoice::Soft => SimWorld::of_test_bed(
            profile.unwrap_or(Profile::Linux6_18),
            options.processors.unwrap_or(PROCESSORS),
        ),
    }
}

fn conduct_in<W: World>(
    world: &mut W,
    request: &Request<'_>,
    writer: &Writer,
    progress: &Progress,
    failure: impl Fn(&W::Error) -> Failure,
) -> Result<Record, Failure> {
    let result = conduct(world, request, Some(writer), progress);
    progress.finish();
    result.map_err(|error| match error {
        ConductError::World(error) => failure(&error),
        nothing @ ConductError::NothingToRun { .. } => Failure::new(Exit::Unable, nothing),
    })
}

pub fn simulation_failure(error: &SimError) -> Failure {
    let exit = match error {
        SimError::Unable(_) | SimError::Setting { .. } => Exit::Unable,
        SimError::Input { .. } => Exit::Usage,
        SimError::Failed { .. } => Exit::Failed,
        SimError::Interrupted => Exit::Interrupted,
    };
    Failure::new(exit, error)
}

pub fn bed_failure(error: &TestbedError) -> Failure {
    let exit = match error.failure() {
        BedFailure::Unable => Exit::Unable,
        BedFailure::Failed => Exit::Failed,
        BedFailure::Interrupted => Exit::Interrupted,
    };
    Failure::new(exit, error)
}

/// Returns a unique name from scenario, world, start time and process id.
fn default_directory(scenario: &str, place: Place) -> PathBuf {
    let world = match place {
        Place::Netns => "netns",
        Place::Sim => "sim",
    };
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let started: String = started.chars().filter(char::is_ascii_alphanumeric).collect();
    Path::new(RECORDS).join(format!("{scenario}-{world}-{started}-{}", std::process::id()))
}

/// Maximum number of repeats in a quick run without `--repeat`; a sweep of qdiscs keeps its number. Two
/// repeats show a spread, but are too few for an interval.
const QUICK_REPEATS: u32 = 2;
