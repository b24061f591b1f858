//! A study's settings, from the command line or from the directory of a resumed study.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::SystemTime;

use evenkeel_model::qdisc::Catalogue;
use evenkeel_model::scenario::bundled::bundled;
use evenkeel_model::scenario::qdisc_files;
use evenkeel_model::text::path_text;
use evenkeel_model::units::BitRate;
use evenkeel_model::world::World;
use evenkeel_study::journal::{self, SCHEMA, Settings};
use evenkeel_study::plan::{Extent, StudyScenario, timed};

use crate::arguments::Place;
use crate::exit::{Exit, Failure};
use crate::scenario::{Files, Loaded, OwnSetups, load_with, parse_loaded};

use super::journal_failure;
use super::options::TcOptions;

fn own_setups(settings: &Settings) -> Result<Option<OwnSetups>, Failure> {
    settings.setups_text.as_ref().map(|text| OwnSetups::parse(text, "the study's setups")).transpose()
}

/// Parses the scenarios of a study. Leaves out scenarios that name further files without a text in
/// `study.json`, because these files may no longer exist.
///
/// # Errors
/// Returns an error that names the study's file and the scenario.
pub fn scenarios(directory: &Path, settings: &Settings) -> Result<Vec<StudyScenario>, Failure> {
    let own = own_setups(settings)?;
    let has_files = |name: &String, text: &str| {
        let kept = settings.qdisc_files.get(name);
        qdisc_files(text).iter().all(|file| kept.is_some_and(|kept| kept.contains_key(file)))
    };
    let whole = settings.scenarios.iter().filter(|(name, text)| has_files(name, text));
    whole
        .map(|(name, text)| {
            let origin = format!("{}/study.json: scenarios.{name}", path_text(directory));
            let Loaded { scenario, qdisc_files, .. } =
                parse_loaded(text, &origin, kept(settings, name), own.as_ref())?;
            if scenario.name != *name {
                let text = format!(
                    "{origin} contains the scenario {}; restore study.json, or begin a new study (--out DIR)",
                    scenario.name
                );
                return Err(Failure::new(Exit::Usage, text));
            }
            Ok(StudyScenario { scenario, text: text.clone(), qdisc_files })
        })
        .collect()
}

/// Returns the source of the files of a study's scenario: their texts in `study.json`. Studies of older
/// versions have no texts: their files are read from the working directory.
fn kept<'s>(settings: &'s Settings, scenario: &str) -> Files<'s> {
    Files { directory: Path::new(""), kept: settings.qdisc_files.get(scenario) }
}

pub struct Wanted {
    pub place: Place,
    pub scenarios: Vec<StudyScenario>,
    pub extent: Extent,
    pub rate: Option<BitRate>,
    pub seed: u64,
    setups_text: Option<String>,
}

const DEFAULT_SEED: u64 = 1;
/// Prefix of the bundled scenarios that a study runs by default.
const PREFIX: &str = "tc-";

impl Wanted {
    /// Returns the study that the command line describes, or the study in the directory that the
    /// command line names.
    pub fn of(options: &TcOptions) -> Result<Self, Failure> {
        match &options.resume {
            Some(directory) => Self::resumed(directory),
            None => Self::new(options),
        }
    }

    fn new(options: &TcOptions) -> Result<Self, Failure> {
        let own = options.qdiscs.as_deref().map(OwnSetups::read).transpose()?;
        let scenarios = if options.scenarios.is_empty() {
            let names = bundled().iter().map(|(name, _)| *name).filter(|name| name.starts_with(PREFIX));
            names.map(|name| load_with(name, own.as_ref())).collect::<Result<Vec<Loaded>, Failure>>()?
        } else {
            let loaded = options.scenarios.iter().map(|name| load_with(name, own.as_ref()));
            loaded.collect::<Result<Vec<Loaded>, Failure>>()?
        };
        let extent =
            Extent { quick: options.quick, repeats: options.repeats, setups: options.setups.clone() };
        Self::with(
            options.place.unwrap_or(Place::Netns),
            scenarios,
            extent,
            options.rate,
            options.seed.unwrap_or(DEFAULT_SEED),
            own.map(|own| own.text),
        )
    }

    pub fn resumed(directory: &Path) -> Result<Self, Failure> {
        let found = journal::read_settings(directory).map_err(|error| journal_failure(&error))?;
        let place = match found.world.as_str() {
            "sim" => Place::Sim,
            "netns" => Place::Netns,
            other => {
                let place = path_text(directory);
                return Err(Failure::unknown(
                    "world",
                    other,
                    ["netns", "sim"],
                    &format!("see {place}/study.json"),
                ));
            }
        };
        let own = own_setups(&found)?;
        let mut scenarios = Vec::with_capacity(found.scenarios.len());
        // The file sorts the scenarios by name. Use the bundled order, then add the user's scenarios.
        let place_of =
            |name: &str| bundled().iter().position(|(known, _)| *known == name).unwrap_or(usize::MAX);
        let mut texts: Vec<(&String, &String)> = found.scenarios.iter().collect();
        texts.sort_by_key(|(name, _)| place_of(name));
        for (name, text) in texts {
            scenarios.push(parse_loaded(text, name, kept(&found, name), own.as_ref())?);
        }
        let extent = Extent { quick: found.quick, repeats: found.repeats, setups: found.setups.clone() };
        let rate = found.rate_bps.map(BitRate::from_bits_per_second);
        Self::with(place, scenarios, extent, rate, found.seed, found.setups_text.clone())
    }

    fn with(
        place: Place,
        scenarios: Vec<Loaded>,
        extent: Extent,
        rate: Option<BitRate>,
        seed: u64,
        setups_text: Option<String>,
    ) -> Result<Self, Failure> {
        let mut names: Vec<&str> = Vec::new();
        for Loaded { scenario, .. } in &scenarios {
            if scenario.workload.tenants().is_none() {
                let text = format!(
                    "the scenario {} does not compare qdiscs: its workload is not of the kind \"tenants\"; use a tc-* \
                     scenario, or `evenkeel run`",
                    scenario.name
                );
                return Err(Failure::new(Exit::Usage, text));
            }
            if names.contains(&scenario.name.as_str()) {
                let text = format!("two scenarios have the name {}; leave one of them out", scenario.name);
                return Err(Failure::new(Exit::Usage, text));
            }
            names.push(&scenario.name);
        }
        let known = || {
            let variants = scenarios.iter().flat_map(|loaded| loaded.scenario.all_variants());
            variants.filter_map(|variant| Some(variant.tenants()?.qdisc.name.as_str()))
        };
        if let Some(name) = extent.setups.iter().find(|name| known().all(|setup| setup != *name)) {
            let names: BTreeSet<&str> = known().collect();
            if Catalogue::bundled().get(name).is_some() {
                let used = names.into_iter().collect::<Vec<_>>().join(", ");
                let text = format!(
                    "the study's scenarios do not use the qdisc setup {name}; they use {used}; add {name} to \
                     'qdiscs' in a copy of a scenario (scenario show), and name the copy with --scenario"
                );
                return Err(Failure::new(Exit::Usage, text));
            }
            return Err(Failure::unknown(
                "qdisc setup",
                name,
                names,
                "add your own setups with --qdiscs FILE",
            ));
        }
        if extent.quick {
            require_quick_points(&scenarios, &extent.setups)?;
        }
        let scenarios = scenarios
            .into_iter()
            .map(|Loaded { scenario, text, qdisc_files, .. }| StudyScenario { scenario, text, qdisc_files })
            .collect();
        Ok(Self { place, scenarios: timed(scenarios, &extent), extent, rate, seed, setups_text })
    }

    pub fn settings<W: World>(&self, world: &W) -> Settings {
        let (scenarios, files) = (self.scenarios.iter(), self.scenarios.iter());
        let scenarios: BTreeMap<String, String> =
            scenarios.map(|study| (study.scenario.name.clone(), study.text.clone())).collect();
        Settings {
            schema: SCHEMA,
            evenkeel: env!("CARGO_PKG_VERSION").to_owned(),
            world: world.name().to_owned(),
            kernel: world.kernel(),
            quick: self.extent.quick,
            seed: self.seed,
            rate_bps: self.rate.map(BitRate::bits_per_second),
            repeats: self.extent.repeats,
            setups: self.extent.setups.clone(),
            setups_text: self.setups_text.clone(),
            scenarios,
            qdisc_files: files
                .filter(|study| !study.qdisc_files.is_empty())
                .map(|study| (study.scenario.name.clone(), study.qdisc_files.clone()))
                .collect(),
            host: world.facts(),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }
}

/// Returns an error if a quick study would have no points, or if a setup has no quick point.
fn require_quick_points(scenarios: &[Loaded], setups: &[String]) -> Result<(), Failure> {
    let points = scenarios.iter().flat_map(|loaded| &loaded.scenario.variants);
    let quick: BTreeSet<&str> =
        points.filter_map(|point| Some(point.tenants()?.qdisc.name.as_str())).collect();
    let of = match scenarios {
        [only] => only.scenario.name.as_str(),
        _ => "these scenarios",
    };
    let text = if quick.is_empty() {
        format!("no quick point in {of}; leave out --quick")
    } else if let Some(left_out) = setups.iter().find(|setup| !quick.contains(setup.as_str())) {
        let quick: Vec<&str> = quick.into_iter().collect();
        format!(
            "{left_out} is not among the quick points of {of}; leave out --quick, or choose from {}",
            quick.join(", ")
        )
    } else {
        return Ok(());
    };
    Err(Failure::new(Exit::Usage, text))
}
