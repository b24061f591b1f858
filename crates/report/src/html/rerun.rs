//! The command that repeats a run, from its record.

use std::collections::BTreeSet;

use evenkeel_model::record::Record;
use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{Scenario, Topology, WorkloadKind, parse, qdisc_files};
use evenkeel_model::shell::quote;
use evenkeel_model::text::list;
use evenkeel_model::units::BitRate;

pub(super) struct Rerun {
    /// `None` if a name cannot be an argument.
    pub command: Option<String>,
    pub remarks: Vec<String>,
}

impl Rerun {
    pub(super) fn of(record: &Record) -> Self {
        let is_bundled =
            bundled().iter().any(|(name, text)| *name == record.scenario && *text == record.scenario_text);
        let mut remarks = Vec::new();
        let mut words = vec!["evenkeel".to_owned(), "run".to_owned()];
        if is_bundled {
            words.push(record.scenario.clone());
        } else {
            words.push("scenario.toml".to_owned());
            remarks.push("First save the scenario's file, below, as scenario.toml.".to_owned());
        }
        words.extend(["--on".to_owned(), record.world.clone()]);
        let scenario = parse(&record.scenario_text, "the record", variant_tables()).ok();
        let scenario = scenario.map(|scenario| if record.quick { scenario.quickened() } else { scenario });
        let files = qdisc_files(&record.scenario_text);
        if !files.is_empty() {
            remarks.push(format!(
                "The scenario names files of qdisc setups: save {} next to scenario.toml. The record does not contain \
                 these files, so the command may lack an option.",
                list(files.iter().map(String::as_str))
            ));
        } else if scenario.is_none() {
            remarks.push(
                "This version of Evenkeel cannot read the scenario, so the command may lack an option."
                    .to_owned(),
            );
        }
        let names = || {
            let measured = record.variants.iter().map(|variant| variant.name.as_str());
            measured.chain(record.refused.iter().map(|refusal| refusal.name.as_str()))
        };
        let is_all = scenario.as_ref().is_some_and(|scenario| {
            let mut listed: Vec<&str> =
                scenario.variants.iter().map(|variant| variant.name.as_str()).collect();
            let mut run: Vec<&str> = names().collect();
            listed.sort_unstable();
            run.sort_unstable();
            listed == run
        });
        if !is_all {
            words.extend(names().flat_map(|name| ["--variant".to_owned(), name.to_owned()]));
        }
        let own = scenario.as_ref().map(|scenario| own_setups(scenario, names())).unwrap_or_default();
        if !own.is_empty() {
            words.extend(["--qdiscs".to_owned(), "setups.toml".to_owned()]);
            remarks.push(format!(
                "The run needs the file of setups that defines {}: save it as setups.toml. The record does not contain \
                 this file.",
                list(own)
            ));
        }
        words.extend(times(record, scenario.as_ref()));
        if record.world == "sim" {
            words.extend(simulator(record));
        } else if record.world == "netns" {
            words.extend(topology(record, scenario.as_ref()));
            remarks.push(
                "On a kernel, a run needs root, and its figures differ from run to run and from machine to machine."
                    .to_owned(),
            );
        }
        let quoted: Option<Vec<String>> = words.iter().map(|word| quote(word)).collect();
        if quoted.is_none() {
            remarks.push("A name in the record cannot be an argument of a command.".to_owned());
        }
        Self { command: quoted.map(|words| words.join(" ")), remarks }
    }
}

/// Returns the setups of variants that the scenario does not have. A file of setups (`--qdiscs`) defined
/// them.
fn own_setups<'n>(scenario: &Scenario, names: impl Iterator<Item = &'n str>) -> BTreeSet<&'n str> {
    let is_own = |name: &&str| scenario.all_variants().all(|variant| variant.name != *name);
    let setup = |name: &'n str| name.split(' ').next().unwrap_or(name);
    if scenario.workload.tenants().is_none() {
        BTreeSet::new()
    } else {
        names.filter(is_own).map(setup).collect()
    }
}

/// Returns the option for a topology that is not the scenario's.
fn topology(record: &Record, scenario: Option<&Scenario>) -> Vec<String> {
    let of_scenario = scenario.map(|scenario| match scenario.link.topology {
        Topology::SoftNic => "soft-nic",
        Topology::Mq => "mq",
    });
    let used = record.variants.iter().find_map(|variant| variant.settings.get("topology"));
    match used.filter(|used| of_scenario != Some(used.as_str())) {
        Some(used) => vec!["--topology".to_owned(), used.clone()],
        None => Vec::new(),
    }
}

/// Returns the options for rate, repeats and length that the scenario accepts.
fn times(record: &Record, scenario: Option<&Scenario>) -> Vec<String> {
    let mut words = Vec::new();
    let takes_rate = scenario.is_none_or(|scenario| {
        scenario.workload.tenants().is_none_or(|tenants| tenants.line)
            && !matches!(scenario.workload.kind, WorkloadKind::Transfers)
    });
    if takes_rate && (record.rate_bps != record.nominal_rate_bps || record.world != "sim") {
        words.extend(["--rate".to_owned(), BitRate::from_bits_per_second(record.rate_bps).to_string()]);
    }
    let repeats = record.variants.iter().map(|variant| variant.repeats.len()).max().unwrap_or(1);
    words.extend(["--repeat".to_owned(), repeats.to_string()]);
    if record.quick {
        words.push("--quick".to_owned());
        return words;
    }
    let longest = record.windows.values().copied().fold(0.0, f64::max);
    let windows = (record.duration_s / longest).round();
    let takes_windows = scenario.is_some_and(|scenario| {
        scenario.workload.tenants().is_none()
            && scenario.measure.length.is_none()
            && scenario.workload.shuffled_bytes().is_none()
            && f64::from(scenario.measure.long_windows) != windows
    });
    if takes_windows && windows >= 1.0 && windows.is_finite() {
        words.extend(["--long-windows".to_owned(), windows.to_string()]);
    }
    words
}

fn simulator(record: &Record) -> Vec<String> {
    let mut words = vec!["--seed".to_owned(), record.seed.to_string()];
    words.extend(["--profile".to_owned(), record.kernel.clone()]);
    // The simulator of the test bed writes `soft, on N processors`.
    if let Some(soft) = record.host.get("nic").and_then(|nic| nic.strip_prefix("soft")) {
        words.extend(["--nic".to_owned(), "soft".to_owned()]);
        if let Some(processors) = soft.split(' ').find(|word| word.parse::<u32>().is_ok()) {
            words.extend(["--processors".to_owned(), processors.to_owned()]);
        }
    }
    let is_exact = |settings: &std::collections::BTreeMap<String, String>| {
        settings.get("exact").is_some_and(|value| value == "true")
    };
    if record.variants.iter().any(|variant| is_exact(&variant.settings)) {
        words.push("--exact".to_owned());
    }
    words
}
