//! `evenkeel scenario`, and how a scenario is found by name or path.

use std::fmt::Write;
use std::path::Path;

use evenkeel_files::{Kind, Text, shown};
use evenkeel_model::qdisc::Catalogue;
use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{Scenario, Setups, parse_with, qdisc_files};
use evenkeel_receive::NicModel;
use evenkeel_receive::policy::PolicyFile;

use crate::arguments::ScenarioCommand;
use crate::exit::{Exit, Failure, print};
use crate::input;

/// A scenario and the text that it was read from.
pub struct Loaded {
    pub scenario: Scenario,
    pub text: String,
}

/// A file of qdisc setups that are somebody's own.
pub struct OwnSetups {
    pub text: String,
    catalogue: Catalogue,
}

impl OwnSetups {
    /// Reads a file of setups.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let Text { text, origin } = input::read(path, Kind::QdiscSetups)?;
        Self::parse(&text, &origin)
    }

    /// Reads a text, which `origin` names in errors.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Failure> {
        let catalogue = Catalogue::parse(text, origin).map_err(|error| Failure::new(Exit::Usage, error))?;
        Ok(Self { text: text.to_owned(), catalogue })
    }
}

/// Finds a scenario by its bundled name, or by its path.
pub fn load(name: &str) -> Result<Loaded, Failure> {
    load_with(name, None)
}

/// As [`load`], with qdisc setups of one's own for a scenario of qdiscs.
pub fn load_with(name: &str, own: Option<&OwnSetups>) -> Result<Loaded, Failure> {
    if let Some((_, text)) = bundled().iter().find(|(bundled, _)| *bundled == name) {
        return parse_loaded(text, name, Path::new(""), own);
    }
    if !input::is_path(name) {
        let names: Vec<&str> = bundled().iter().map(|(name, _)| *name).collect();
        return Err(Failure::unknown("scenario", name, names, "or give a path to a TOML file"));
    }
    load_file(Path::new(name), own)
}

fn load_file(path: &Path, own: Option<&OwnSetups>) -> Result<Loaded, Failure> {
    let Text { text, origin } = input::read(path, Kind::Scenario)?;
    parse_loaded(&text, &origin, input::beside(path), own)
}

/// Reads a scenario and the files that it names, which lie `beside` it.
pub fn parse_loaded(
    text: &str,
    origin: &str,
    beside: &Path,
    own: Option<&OwnSetups>,
) -> Result<Loaded, Failure> {
    let within = |place: &str, failure: &Failure| {
        Failure::new(failure.exit(), format!("{origin}: {place}: {}", failure.message()))
    };
    let mut catalogue = Catalogue::bundled();
    for file in qdisc_files(text) {
        let setups =
            OwnSetups::read(&beside.join(&file)).map_err(|failure| within("qdisc-files", &failure))?;
        catalogue = catalogue.extended(setups.catalogue);
    }
    let mut further = Vec::new();
    if let Some(own) = own {
        further = own.catalogue.names().map(str::to_owned).collect();
        catalogue = catalogue.extended(own.catalogue.clone());
    }
    let setups = Setups { catalogue: Some(&catalogue), further: &further };
    let mut scenario = parse_with(text, origin, variant_tables(), setups)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    for (variant, supplied) in scenario.supplied().filter(|(_, supplied)| supplied.text.is_none()) {
        let path = beside.join(&supplied.origin);
        let text = input::read(&path, Kind::ScenarioPart)
            .map_err(|failure| within(&format!("variant.{variant}"), &failure))?;
        supplied.text = Some(text.text);
    }
    for variant in scenario.all_variants() {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Usage, format!("{origin}: variant.{}: {error}", variant.name))
        };
        let Some(knobs) = &variant.receive else { continue };
        if let Some((own, text)) = knobs.nic.own().and_then(|own| Some((own, own.text.as_ref()?))) {
            NicModel::parse(text, &own.origin).map_err(|error| wrong(&error))?;
        }
        if let Some((own, text)) = knobs.policy.own().and_then(|own| Some((own, own.text.as_ref()?))) {
            PolicyFile::parse(text, &own.origin).map_err(|error| wrong(&error))?;
        }
    }
    Ok(Loaded { scenario, text: text.to_owned() })
}

/// Runs `evenkeel scenario`.
pub fn scenario(command: &ScenarioCommand) -> Result<Exit, Failure> {
    match command {
        ScenarioCommand::List => list(),
        ScenarioCommand::Show { scenario } => show(scenario),
        ScenarioCommand::Check { files } => check(files),
    }
}

fn list() -> Result<Exit, Failure> {
    let mut text = String::new();
    let widest = bundled().iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, _) in bundled() {
        let title = load(name)?.scenario.title;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:widest$}  {title}");
    }
    print(&text)?;
    Ok(Exit::Done)
}

fn show(name: &str) -> Result<Exit, Failure> {
    let Loaded { scenario, text } = load(name)?;
    let mut shown = text.trim_end().to_owned();
    shown.push_str("\n\n# Its variants, with every setting:\n");
    let mut shown_setups: Vec<String> = Vec::new();
    for variant in scenario.all_variants() {
        let base = variant.base.as_ref().map(|base| format!(" (base: {base})")).unwrap_or_default();
        let _ = writeln!(shown, "#\n# {}{base}: {}", variant.name, variant.summary);
        // What a point is stands in its name; what its qdisc is, once.
        if let Some(point) = &variant.tenants {
            if !shown_setups.contains(&point.qdisc.name) {
                shown_setups.push(point.qdisc.name.clone());
                for line in point.qdisc.lines() {
                    let _ = writeln!(shown, "#   {line}");
                }
            }
            continue;
        }
        for (key, value) in variant.settings() {
            let _ = writeln!(shown, "#   {key} = {value}");
        }
    }
    print(&shown)?;
    Ok(Exit::Done)
}

fn check(files: &[std::path::PathBuf]) -> Result<Exit, Failure> {
    let mut exit = Exit::Done;
    for file in files {
        match load_file(file, None) {
            Ok(loaded) => print(&format!(
                "{}: {} is a valid scenario with {} variants\n",
                shown(file),
                loaded.scenario.name,
                loaded.scenario.variants.len()
            ))?,
            Err(failure) if failure.exit() == Exit::Interrupted => return Err(failure),
            Err(failure) => exit = failure.tell(),
        }
    }
    Ok(exit)
}
