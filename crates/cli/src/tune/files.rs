//! Writes files that restore settings after a reboot.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use evenkeel_apply::{Etc, InterfaceIdentity, Lasting, PersistError, Removal, StateDirectory, in_force};
use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::HostFacts;
use evenkeel_model::text::path_text;
use evenkeel_placement::tune::persist::{self, Files, Kind, Place};

use super::Prepared;
use crate::arguments::{PersistChoice, TuneOptions};
use crate::exit::{Exit, Failure};
use crate::live::say;
use crate::revert::{identity, persisted_names};

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

fn place(interface: &str) -> Place<'_> {
    Place { interface, namespace: Etc::namespace() }
}

/// Returns an error for `--persist` in another network namespace than the initial one: the host reads the
/// files at boot, in the initial namespace. A directory in `EVENKEEL_ETC_DIR` is allowed in every namespace,
/// but its path must be UTF-8.
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

/// A file that an earlier command wrote and no user edited.
struct Written {
    kind: Kind,
    path: String,
    /// The paths of the file and of its link, if any.
    all: Vec<String>,
}

/// Returns the files that earlier commands wrote under the interface's present and earlier names. Omits files
/// that a user edited.
fn written(options: &TuneOptions, etc: &Etc) -> Result<Vec<Written>, PersistError> {
    let mut written = Vec::new();
    for name in names(&options.interface) {
        for (kind, path) in persist::paths_by_kind(place(&name)) {
            if etc.is_unedited(&path)? {
                written.push(Written { kind, path, all: persist::paths_of(place(&name), kind) });
            }
        }
    }
    Ok(written)
}

/// Returns the names under which earlier commands may have written files for an interface.
fn names(interface: &str) -> BTreeSet<String> {
    // Without permission to read journals, assume that no previous command changed a setting.
    let kept = evenkeel_apply::kept_journals(&StateDirectory::from_environment()).unwrap_or_default();
    let now = identity(interface);
    let is_own = |then: &InterfaceIdentity| {
        then.device.is_some() && now.as_ref().is_some_and(|now| then.device == now.device)
    };
    let own = kept.iter().map(|journal| &journal.header).find(|header| is_own(&header.interface));
    let etc = Etc::named();
    let etc = etc.as_deref().and_then(Path::to_str);
    own.map(|header| persisted_names(header, etc))
        .into_iter()
        .flatten()
        .chain([interface.to_owned()])
        .collect()
}

/// Returns the files of the kinds that the user chose, and of the kinds that earlier commands wrote. Without
/// `--persist`, an error counts as no earlier files.
fn files(
    options: &TuneOptions,
    etc: &Etc,
    settings: &[(Knob, Value)],
    facts: &HostFacts,
) -> Result<Files, PersistError> {
    let mut kinds = kinds(options);
    let written = match written(options, etc) {
        Err(_) if kinds.is_empty() => return Ok(Files::default()),
        written => written?,
    };
    kinds.extend(written.iter().map(|written| written.kind));
    let mut files = match kinds.is_empty() {
        true => Files::default(),
        false => persist::files(place(&options.interface), settings, &kinds, &actions(facts)),
    };
    let is_stale = |written: &Written| !files.files.iter().any(|file| file.path == written.path);
    files.stale = written.into_iter().filter(is_stale).flat_map(|written| written.all).collect();
    files.not_kept.extend(edited(options, etc, settings, facts, &kinds)?);
    Ok(files)
}

/// Returns a message for each edited file of an earlier command that has settings which no file of `kinds`
/// has.
fn edited(
    options: &TuneOptions,
    etc: &Etc,
    settings: &[(Knob, Value)],
    facts: &HostFacts,
    kinds: &[Kind],
) -> Result<Vec<String>, PersistError> {
    let place = place(&options.interface);
    let mut edited = Vec::new();
    for (kind, path) in persist::paths_by_kind(place) {
        let whole = etc.path(&path);
        if kinds.contains(&kind) || std::fs::symlink_metadata(&whole).is_err() || etc.is_unedited(&path)? {
            continue;
        }
        let files = persist::files(place, settings, &[kinds, &[kind]].concat(), &actions(facts));
        if files.files.iter().any(|file| file.path == path) {
            edited.push(format!(
                "settings for {}, which was edited; move the file away, and repeat the command with --persist",
                path_text(&whole)
            ));
        }
    }
    Ok(edited)
}

/// Returns the files that `--apply` would write: with the kept changes of previous commands, and the changes
/// of the plan. With `--from`, the files contain only the changes of the plan.
pub fn planned(options: &TuneOptions, prepared: &Prepared) -> Result<Files, Failure> {
    let etc = Etc::from_environment();
    if options.persist.is_empty() && options.from.is_some() {
        return Ok(Files::default());
    }
    let planned = prepared.ready.iter().map(|ready| (ready.change.knob.clone(), ready.change.to.clone()));
    let planned: Vec<(Knob, Value)> = planned.collect();
    if options.from.is_some() {
        return Ok(persist::files(
            place(&options.interface),
            &planned,
            &kinds(options),
            &actions(&prepared.facts),
        ));
    }
    let mut settings = kept(options, &prepared.facts)?;
    settings.retain(|(knob, _)| !planned.iter().any(|(own, _)| own == knob));
    settings.extend(planned);
    files(options, &etc, &settings, &prepared.facts).map_err(|error| failure(&error))
}

/// Returns the changes of previous commands that are in force.
fn kept(options: &TuneOptions, facts: &HostFacts) -> Result<Vec<(Knob, Value)>, Failure> {
    let Some(index) = facts.interface(&options.interface).and_then(|interface| interface.index) else {
        return Ok(Vec::new());
    };
    // Without permission to read journals, assume that no previous command changed a setting.
    let kept = evenkeel_apply::kept(&StateDirectory::from_environment()).unwrap_or_default();
    let own = kept.iter().filter(|(identity, _)| identity.index == index).map(|(_, entry)| entry);
    Ok(in_force(&mut super::look(index, &options.interface)?, own))
}

fn failure(error: &PersistError) -> Failure {
    Failure::with_causes(Exit::Failed, error)
}

/// Writes the files for all kept changes, including those of previous commands. Removes the files that are no
/// longer needed. Does nothing if no command had `--persist`.
pub fn write(options: &TuneOptions, facts: &HostFacts, lasting: &mut Lasting) -> Result<Files, Failure> {
    let etc = Etc::from_environment();
    let mut files = files(options, &etc, &lasting.kept(), facts).map_err(|error| failure(&error))?;
    if options.persist.is_empty() && files.files.is_empty() && files.stale.is_empty() {
        return Ok(files);
    }
    etc.remove_drafts();
    let named = Etc::named();
    let noted = lasting.note_files(named.as_deref().and_then(Path::to_str));
    noted.map_err(|error| Failure::with_causes(Exit::Failed, &error))?;
    for file in &files.files {
        say(&format!("{}:\n{}", path_text(&etc.path(&file.path)), Etc::marked(&file.text)));
        etc.write(&file.path, &file.text).map_err(|error| failure(&error))?;
        if let Some((link, to)) = &file.link {
            etc.link(link, to).map_err(|error| failure(&error))?;
        }
    }
    let removals = etc.remove(&files.stale).map_err(|error| failure(&error))?;
    files.stale.retain(|path| removals.contains(&Removal::Removed(etc.path(path))));
    Ok(files)
}
