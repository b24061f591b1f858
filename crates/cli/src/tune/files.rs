//! Writes files that restore settings after a reboot.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_apply::{Etc, Lasting};
use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::HostFacts;
use evenkeel_model::text::path_text;
use evenkeel_placement::tune::persist::{self, Files, Kind, Place};

use super::Prepared;
use crate::arguments::{PersistChoice, TuneOptions};
use crate::exit::{Exit, Failure};
use crate::live::say;

fn kinds(options: &TuneOptions) -> Vec<Kind> {
    let kind = |choice: &PersistChoice| match choice {
        PersistChoice::Sysctl => Kind::Sysctl,
        PersistChoice::Systemd => Kind::Systemd,
        PersistChoice::Udev => Kind::Udev,
    };
    options.persist.iter().map(kind).collect()
}

/// Returns the action name of each interrupt. Leaves out interrupts whose name is not unique.
fn actions(facts: &HostFacts) -> BTreeMap<u32, String> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for interrupt in &facts.interrupts {
        *count.entry(interrupt.action.as_str()).or_insert(0) += 1;
    }
    let alone = facts.interrupts.iter().filter(|interrupt| count.get(interrupt.action.as_str()) == Some(&1));
    alone.map(|interrupt| (interrupt.number, interrupt.action.clone())).collect()
}

fn place(options: &TuneOptions) -> Place<'_> {
    Place { interface: &options.interface, namespace: Etc::namespace() }
}

/// Returns an error in another network namespace than the initial one: the host reads the files at
/// boot, in the initial namespace.
pub fn check_namespace(options: &TuneOptions) -> Result<(), Failure> {
    if options.persist.is_empty() || options.from.is_some() {
        return Ok(());
    }
    match Etc::named() {
        Some(etc) if etc.to_str().is_none() => {
            let message =
                format!("EVENKEEL_ETC_DIR: {} is not UTF-8; name another directory", path_text(&etc));
            return Err(Failure::new(Exit::Usage, message));
        }
        None if Etc::namespace().is_some() => {}
        _ => return Ok(()),
    }
    let message = "--persist: the host applies these files at boot in the initial network namespace, but \
                   this command runs in another network namespace; run `evenkeel tune` from the program that \
                   creates this namespace, or name another directory with EVENKEEL_ETC_DIR";
    Err(Failure::new(Exit::Unable, message))
}

pub fn planned(options: &TuneOptions, prepared: &Prepared) -> Result<Files, Failure> {
    let settings: Vec<(Knob, Value)> =
        prepared.ready.iter().map(|ready| (ready.change.knob.clone(), ready.change.to.clone())).collect();
    let kinds = kinds(options);
    if kinds.is_empty() {
        return Ok(Files::default());
    }
    Ok(persist::files(place(options), &settings, &kinds, &actions(&prepared.facts)))
}

/// Writes the files for all kept changes, including those of previous commands.
pub fn write(options: &TuneOptions, facts: &HostFacts, lasting: &mut Lasting) -> Result<Files, Failure> {
    let kinds = kinds(options);
    if kinds.is_empty() {
        return Ok(Files::default());
    }
    let files = persist::files(place(options), &lasting.kept(), &kinds, &actions(facts));
    let etc = Etc::from_environment();
    etc.remove_drafts();
    if let Some(named) = Etc::named().as_deref().and_then(Path::to_str) {
        lasting.note_files(named).map_err(|error| Failure::with_causes(Exit::Failed, &error))?;
    }
    for file in &files.files {
        say(&format!("{}:\n{}", path_text(&etc.path(&file.path)), Etc::marked(&file.text)));
        etc.write(&file.path, &file.text).map_err(|error| Failure::with_causes(Exit::Failed, &error))?;
        if let Some((link, to)) = &file.link {
            etc.link(link, to).map_err(|error| Failure::with_causes(Exit::Failed, &error))?;
        }
    }
    Ok(files)
}
