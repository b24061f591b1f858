//! `evenkeel calibrate`.

use std::path::Path;

use evenkeel_calibrate::{
    CalibrateError, Packets, Places, Plan, Quantity, Report, calibrate as measure, choose, profile,
};
use evenkeel_files::NewFile;
use evenkeel_forecast::Topology;
use evenkeel_host::Host;
use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::host::HostFacts;
use evenkeel_model::machine::{Figure, MachineProfile};
use evenkeel_model::text::{excerpt, path_text, printable};
use evenkeel_model::world::Observer;
use evenkeel_report::page::{Heading, Page};
use serde_json::{Value, json};

use crate::arguments::{CalibrateOptions, Format};
use crate::exit::{Exit, Failure, print, print_page, say};
use crate::progress::{Progress, page};
use crate::run::bed_failure;

const MODE: u32 = 0o644;
/// Name of the profile, in its file and in a forecast.
const NAME: &str = "this-host";
const CLOCK: &str = "Times are differences of CLOCK_MONOTONIC; cycles are those of the measured clock. Each figure is the \
                     median over rounds, with the 95 % interval of the median.";
const VIRTUAL: &str = "This host is a virtual machine: wakeups include exits to the hypervisor, and other virtual \
                       machines change every figure.";
const VETH: &str = "The packets cross a veth pair, with their data in the cache and without a driver: this cost is a lower \
                    bound for a NIC.";

pub fn calibrate(options: &CalibrateOptions) -> Result<Exit, Failure> {
    let is_output = options.out.as_deref() == Some(Path::new("-"));
    if is_output && options.format == Format::Json {
        return Err(Failure::new(
            Exit::Usage,
            "-o - and --format json both write to standard output; use one of them",
        ));
    }
    let facts = read_facts(&Tree::live()).map_err(|error| crate::check::failure(&error))?;
    let places = choose(&facts.processors, options.cores).map_err(|error| failure(&error))?;
    let progress = Progress::new(false)?;
    // Claim the file first, so that an error appears before the long measurement.
    let file =
        options.out.as_deref().filter(|_| !is_output).map(|path| NewFile::claim(path, MODE)).transpose()?;
    let plan = Plan { places, time: options.time };
    let result = measure(&plan, &progress);
    progress.finish();
    let report = result.map_err(|error| failure(&error))?;
    if progress.interrupted() {
        return Err(failure(&CalibrateError::Interrupted));
    }
    let topology = Topology::of(&facts);
    let base = MachineProfile::nearest(facts.processor_model.as_deref().unwrap_or_default());
    let cores = (topology.packages.max(1), topology.cores_per_package.max(1));
    let (mut found, packets) = profile(&report, &base, NAME, cores, options.packets);
    found.description = description(&facts, options);
    let result =
        Outcome { options, facts: &facts, places: &plan.places, report: &report, profile: &found, packets };
    if is_output {
        print(&found.to_string())?;
        return Ok(Exit::Done);
    }
    if let (Some(file), Some(path)) = (file, &options.out) {
        file.finish(found.to_string().as_bytes())?;
        say(&format!("machine profile: {}", path_text(path)));
    }
    match options.format {
        Format::Table => print_page(result.page())?,
        Format::Json => print(&format!("{:#}\n", result.json()))?,
    }
    Ok(Exit::Done)
}

fn failure(error: &CalibrateError) -> Failure {
    let exit = match error {
        CalibrateError::Interrupted => Exit::Interrupted,
        CalibrateError::Cores(_) => Exit::Usage,
        CalibrateError::System { .. } => Exit::Failed,
        CalibrateError::Bed(error) => return bed_failure(error),
    };
    Failure::new(exit, error)
}

/// Returns the description of the measurement, for the file.
fn description(facts: &HostFacts, options: &CalibrateOptions) -> String {
    let processor = facts.processor_model.as_deref().unwrap_or("an unknown processor");
    let kernel = Host::live().kernel_release().unwrap_or_else(|_| "unknown".to_owned());
    let kind = if facts.virtual_machine { ", a virtual machine" } else { "" };
    format!(
        "Measured in {} s on {}{kind}, Linux {}, by evenkeel {}",
        options.time.as_secs_f64(),
        printable(&excerpt(processor)),
        printable(&excerpt(&kernel)),
        env!("CARGO_PKG_VERSION")
    )
}

struct Outcome<'a> {
    options: &'a CalibrateOptions,
    facts: &'a HostFacts,
    places: &'a Places,
    report: &'a Report,
    profile: &'a MachineProfile,
    packets: Option<Packets>,
}

fn built_in() -> Vec<MachineProfile> {
    MachineProfile::built_in_texts().iter().filter_map(|(name, _)| MachineProfile::built_in(name)).collect()
}

/// Formats a number: at least three digits from 1 on, and four decimals below 1.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        medium if medium >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Returns the unit in which a figure is shown, and the divisor that converts a profile's value to this unit.
fn unit(key: &str) -> (&'static str, f64) {
    match key {
        key if key.ends_with("-clock") => ("GHz", 1e9),
        key if key.starts_with("copy.") => ("cycles per byte", 1.0),
        _ => ("cycles", 1.0),
    }
}

impl Outcome<'_> {
    /// Returns the figures of the profile, each with the same figure of the built-in profiles.
    fn figures(&self) -> Vec<(String, Figure, Vec<f64>)> {
        let others: Vec<Vec<(String, Figure)>> = built_in().iter().map(MachineProfile::figures).collect();
        let beside = |at: usize| others.iter().filter_map(|figures| Some(figures.get(at)?.1.value)).collect();
        self.profile
            .figures()
            .into_iter()
            .enumerate()
            .map(|(at, (key, figure))| (key, figure, beside(at)))
            .collect()
    }

    fn page(&self) -> Page {
        const COLUMNS: [Heading; 7] = [
            Heading::text("figure of the profile"),
            Heading::text("unit").dropped(1),
            Heading::number("this host"),
            Heading::number("95 % interval"),
            Heading::number("n"),
            Heading::number("kit-2014").dropped(3),
            Heading::number("xeon-6128").dropped(2),
        ];
        const MEASURED: [Heading; 6] = [
            Heading::text("measured"),
            Heading::text("unit"),
            Heading::number("median"),
            Heading::number("95 % interval"),
            Heading::number("min to max").dropped(1),
            Heading::number("n"),
        ];
        let mut page = page();
        let range = |low: f64, high: f64| format!("{} to {}", number(low), number(high));
        let rows = self.report.quantities.iter().map(|found: &Quantity| {
            let (unit, scale) = if found.unit == "Hz" { ("GHz", 1e9) } else { (found.unit, 1.0) };
            let of = |low: f64, high: f64| range(low / scale, high / scale);
            vec![
                found.name.clone(),
                unit.to_owned(),
                number(found.median / scale),
                found.interval.map_or_else(|| "-".to_owned(), |interval| of(interval.low, interval.high)),
                of(found.min, found.max),
                found.n.to_string(),
            ]
        });
        page.table(&MEASURED, &rows.collect::<Vec<_>>());
        page.gap();
        let from = self.profile.based_on.as_deref().unwrap_or_default();
        let rows = self.figures().into_iter().map(|(key, figure, others)| {
            let (unit, scale) = unit(&key);
            let (interval, n) = match figure.measured {
                Some(found) => (range(found.low / scale, found.high / scale), found.n.to_string()),
                None => ("not measured".to_owned(), String::new()),
            };
            let mut row = vec![key, unit.to_owned(), number(figure.value / scale), interval, n];
            row.extend(others.into_iter().map(|value| number(value / scale)));
            row
        });
        page.table(&COLUMNS, &rows.collect::<Vec<_>>());
        page.gap();
        page.line(CLOCK);
        page.line(&format!("A figure that was not measured comes from the profile {from}; clocks and the remote copy are scaled in proportion to the measured clock and copy."));
        if let Some(Packets { measured, base }) = self.packets {
            let use_of_it = match self.options.packets {
                true => format!("The profile contains this cost, divided among the operations as in {from}."),
                false => format!(
                    "The profile keeps the cost of {from}; --packets replaces it by the measured cost."
                ),
            };
            page.line(&format!(
                "Without GRO, each additional TCP packet costs {} cycles ({from}: {}). {VETH} {use_of_it}",
                number(measured.value),
                number(base)
            ));
        }
        if self.facts.virtual_machine {
            page.line(VIRTUAL);
        }
        for (what, why) in &self.report.gaps {
            page.line(&format!("Not measured: {what}: {why}."));
        }
        if self.options.out.is_none() {
            page.line("No file was written: name one with -o FILE.");
        }
        page
    }

    fn json(&self) -> Value {
        let names: Vec<String> = built_in().into_iter().map(|profile| profile.name).collect();
        let figure = |(key, figure, others): (String, Figure, Vec<f64>)| {
            let built_in: serde_json::Map<String, Value> =
                names.iter().cloned().zip(others.into_iter().map(Value::from)).collect();
            let unit = if key.ends_with("-clock") { "Hz" } else { unit(&key).0 };
            json!({
                "key": key,
                "unit": unit,
                "value": figure.value,
                "measured": figure.measured.is_some(),
                "interval": figure.measured.map(|found| [found.low, found.high]),
                "n": figure.measured.map(|found| found.n),
                "built_in": built_in,
            })
        };
        let quantity = |found: &Quantity| {
            json!({
                "name": found.name,
                "unit": found.unit,
                "median": found.median,
                "interval": found.interval.map(|interval| [interval.low, interval.high]),
                "min": found.min,
                "max": found.max,
                "n": found.n,
            })
        };
        let gap = |(what, why): &(String, String)| json!({ "what": what, "why": why });
        let Places { core, other, node, remote_nodes } = self.places;
        json!({
            "profile": self.profile.name,
            "based_on": self.profile.based_on,
            "description": self.profile.description,
            "file": self.options.out.as_deref().map(path_text),
            "clock": "CLOCK_MONOTONIC",
            "virtual_machine": self.facts.virtual_machine,
            "processors": [core, other],
            "node": node,
            "remote_nodes": remote_nodes,
            "figures": self.figures().into_iter().map(figure).collect::<Vec<_>>(),
            "measurements": self.report.quantities.iter().map(quantity).collect::<Vec<_>>(),
            "not_measured": self.report.gaps.iter().map(gap).collect::<Vec<_>>(),
        })
    }
}
