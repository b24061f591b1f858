//! `evenkeel revert`, and the guardian, which restores settings after its run dies.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use evenkeel_apply::guardian::{Arguments, Watch, guard as watch};
use evenkeel_apply::{
    Absence, ApplyError, Cause, Damaged, Etc, Header, InterfaceIdentity, JournalError, KeptJournal, Leftover,
    PersistError, Remains, Removal, Renamed, RevertOutcome, StateDirectory, absence, check_elsewhere,
    check_unmanaged, check_unsteered, copies, exclude_sessions, finished_copies, how_to_enter, kept_journals,
    printed_command, remains, revert as revert_journal, revert_here, run_in_roll_back,
};
use evenkeel_fair::{FairError, StrayRoot, stray_roots};
use evenkeel_host::{Capability, NetworkNamespace, Sysfs};
use evenkeel_model::text::path_text;
use evenkeel_placement::tune::persist::{self, Place};

use crate::arguments::{BackendChoice, Command, GuardOptions, RevertOptions};
use crate::exit::{Exit, Failure, print, say};
use crate::live::require;
use crate::output;
use crate::signals::Signals;

fn failure(error: &ApplyError) -> Failure {
    let exit = if error.cause() == Cause::Unable { Exit::Unable } else { Exit::Failed };
    Failure::with_causes(exit, error)
}

/// Removes the files of `evenkeel tune --persist` for one interface, or for all interfaces of a network
/// namespace.
fn remove_files(etc: &Etc, interface: Option<&str>, namespace: Option<u64>) -> Result<Vec<Removal>, Failure> {
    let failed = |error: PersistError| Failure::with_causes(Exit::Failed, &error);
    etc.remove_drafts();
    let of_interface = |path: &String| {
        interface.is_none_or(|interface| persist::paths(Place { interface, namespace }).contains(path))
    };
    let is_chosen = |path: &String| persist::is_of_namespace(path, namespace) && of_interface(path);
    let chosen: Vec<String> = etc.written().map_err(failed)?.into_iter().filter(is_chosen).collect();
    etc.remove(&chosen).map_err(failed)
}

/// Returns the names under which `evenkeel tune --persist` may have written files for a journal's interface: the
/// names that the journal recorded, the interface's first name, unless another interface has this name now, and
/// its present name. Leaves out the names that another interface's journal recorded for the same directory
/// (`None`: `/etc`), because that interface's files have replaced the files of this one.
pub fn persisted_names(header: &Header, etc: Option<&str>) -> BTreeSet<String> {
    let interface = &header.interface;
    let then = &interface.name;
    let is_own = |found: &InterfaceIdentity| is_same_device(header, found);
    let has_now = |name: &String| identity(name).is_some_and(|found| is_own(&found));
    let is_here = |found: &InterfaceIdentity| found.same_boot(interface) && found.same_namespace(interface);
    let is_of_another =
        identity(then).is_some_and(|found| interface.device.is_some() && is_here(&found) && !is_own(&found));
    let then = Some(then.clone()).filter(|_| !is_of_another);
    let mut names: BTreeSet<String> = all_interfaces().into_iter().filter(has_now).chain(then).collect();
    names.extend(header.names.iter().cloned());
    // Ignore the error: the revert of an unreadable journal reports it.
    for KeptJournal { header: other, .. } in
        kept_journals(&StateDirectory::from_environment()).unwrap_or_default()
    {
        let is_another = is_here(&other.interface) && !other.interface.same_interface(interface);
        if is_another && etc.is_none_or(|etc| other.etc.iter().any(|other| other == etc)) {
            names.retain(|name| !other.names.contains(name));
        }
    }
    names
}

/// Returns the network namespace in the names of the files of `tune --persist`; `None` for the initial
/// namespace. The namespace of a journal may no longer exist.
fn namespace_of_files(interface: &InterfaceIdentity) -> Option<u64> {
    let is_here = NetworkNamespace::own().is_ok_and(|own| own.inode == interface.namespace);
    if is_here { Etc::namespace() } else { Some(interface.namespace) }
}

/// Reports removals and kept files. Adds each kept file to `left`, and reports it only once.
fn tell_removals(removals: &[Removal], left: &mut BTreeSet<PathBuf>) -> Result<(), Failure> {
    for removal in removals {
        match removal {
            Removal::Removed(path) => print(&format!("{}: removed\n", path_text(path)))?,
            Removal::Edited(path) => {
                if left.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                    let why = match path.is_symlink() {
                        true => {
                            "it is a symbolic link that evenkeel did not make; if you do not need it, remove it by hand"
                        }
                        false => "it was edited; save your edits, then remove the file by hand",
                    };
                    say(&format!("{} is not removed, because {why}", path_text(path)));
                }
            }
        }
    }
    Ok(())
}

pub fn revert(options: &RevertOptions) -> Result<Exit, Failure> {
    // A signal in the middle would leave some settings changed. So finish the revert first.
    Signals::catch()?.hold();
    output::detach();
    require(&[Capability::NetAdmin], "revert")?;
    // Remove the files and revert the settings, even if one of the two fails.
    let mut files = Vec::new();
    let settings = revert_settings(options.interface.as_deref(), &mut files).map_err(|error| error.tell());
    files.push(remove_files(&Etc::from_environment(), options.interface.as_deref(), Etc::namespace()));
    let (mut removed, mut failed, mut told, mut left) = (false, None, BTreeSet::new(), BTreeSet::new());
    for removals in files {
        removed |= removals.as_ref().is_ok_and(|removals| !removals.is_empty());
        // A journal may name the same directory as the environment. Report an error of a directory once.
        if let Err(error) = removals.and_then(|removals| tell_removals(&removals, &mut left))
            && told.insert(error.message().to_owned())
        {
            failed = Some(error.tell());
        }
    }
    let (exit, any) = match (settings, failed) {
        (Err(exit), _) | (Ok((Exit::Done, _)), Some(exit)) => return Ok(exit),
        (Ok((exit, any)), _) => {
            if removed && !any {
                say(
                    "no journal has the settings of the persisted files: the settings keep their present values, because \
                     no values from before are recorded; `sysctl -w`, `ethtool` or `tc` changes them",
                );
            }
            (exit, any || removed)
        }
    };
    if any || exit != Exit::Done {
        return Ok(exit);
    }
    if let Some(name) = &options.interface
        && !exists(name)?
    {
        let message =
            format!("there is no interface '{name}' and no journal of it; `ip link` lists the interfaces");
        return Err(Failure::new(Exit::Usage, message));
    }
    let state = StateDirectory::from_environment();
    if StateDirectory::is_named() && !state.path().exists() {
        let directory = path_text(state.path());
        print(&format!(
            "there is no state directory {directory}, which EVENKEEL_STATE_DIR names: no changed settings are recorded there\n"
        ))?;
        return Ok(Exit::Done);
    }
    print("nothing to restore\n")?;
    Ok(Exit::Done)
}

/// Restores the settings of all journals, or of the journals for an interface and the devices below it
/// that `evenkeel fair` manages. Returns the exit code and, for [`Exit::Done`], whether the function reported
/// anything. Adds to `files` the results of removing files in the journals' directories.
fn revert_settings(
    interface: Option<&str>,
    files: &mut Vec<Result<Vec<Removal>, Failure>>,
) -> Result<(Exit, bool), Failure> {
    let state = StateDirectory::from_environment();
    let journals = state.remove_drafts().and_then(|()| state.journals());
    let journals = journals.map_err(|error| failure(&error.into()))?;
    let names = interface.map(with_devices_below);
    let mut chosen = Vec::new();
    let mut exit = Exit::Done;
    let named = interface.and_then(identity);
    let mut any = false;
    for remains in remains(&state).map_err(|error| failure(&error))? {
        match remains {
            Remains::Absent(damaged, header) => {
                let is_about = names.as_ref().is_none_or(|names| is_of(&damaged, names));
                if is_about && !tell_absent(&damaged, header.as_deref()) {
                    // Use the same exit code as for an intact journal of another namespace.
                    let same = |named| header.as_ref().is_none_or(|header| is_same_device(header, named));
                    if exit == Exit::Done && interface.is_some() && named.as_ref().is_none_or(same) {
                        exit = Exit::Unable;
                    }
                    any = true;
                }
            }
            remains => exit = tell_remains(remains, names.as_deref()).unwrap_or(exit),
        }
    }
    let renamed = evenkeel_apply::renamed(&state).map_err(|error| failure(&error))?;
    for found in renamed.iter().filter(|found| concerns(found, names.as_deref())) {
        exit = Failure::with_causes(Exit::Failed, found).tell();
        any = true;
    }
    let copies = copies(&state).map_err(|error| failure(&error))?;
    for path in journals.into_iter().filter(|path| !copies.contains(path)) {
        match &names {
            None => chosen.push(path),
            Some(names) => match is_about(&path, names) {
                Ok(true) => chosen.push(path),
                Ok(false) => {}
                // This journal may belong to any interface: report it, and continue with the other
                // journals.
                Err(error) => exit = error.tell(),
            },
        }
    }
    let mut own = BTreeMap::new();
    let header = |path: &PathBuf| Some((path.clone(), StateDirectory::read(path).ok()??.header?));
    let headers: BTreeMap<PathBuf, Header> = chosen.iter().filter_map(header).collect();
    // An interface that left its namespace and returned may have two run journals. The newer run found the
    // values that the older one had set.
    chosen.sort_by_key(|path| {
        headers.get(path).map(|header| (header.kept, Reverse(header.process.start_ticks)))
    });
    // An interface has two journals, and a live session excludes a revert of both journals. Report the
    // session once.
    let mut told = BTreeSet::new();
    let mut tell_once = |error: &ApplyError| {
        let failure = failure(error);
        if told.insert(failure.message().to_owned()) { failure.tell() } else { failure.exit() }
    };
    for identity in names.clone().unwrap_or_else(all_interfaces).iter().filter_map(|name| identity(name)) {
        let journals = [state.journal_of(&identity), state.kept_journal_of(&identity)];
        let is_own = |path: &PathBuf| {
            let found = headers.get(path).is_some_and(|header| header.interface.same_interface(&identity));
            found || journals.contains(path)
        };
        match exclude_sessions(&state, &identity) {
            Ok(_) => {
                own.extend(
                    chosen.iter().filter(|path| is_own(path)).map(|path| (path.clone(), identity.clone())),
                );
            }
            Err(error) => {
                exit = exit.or(tell_once(&error.into()));
                chosen.retain(|path| !is_own(path));
                any = true;
            }
        }
    }
    for path in chosen {
        // Exclude the sessions of one interface at a time, because this holds a socket: a host may have more
        // interfaces than the number of sockets that this process may open.
        let sole = own.get(&path).map_or(Ok(None), |identity| exclude_sessions(&state, identity));
        let _sole = match sole {
            Ok(sole) => sole,
            Err(error) => {
                exit = exit.or(tell_once(&error.into()));
                any = true;
                continue;
            }
        };
        let ended = revert_journal(&path, &mut |header| {
            let Header { interface, etc, .. } = header;
            let namespace = namespace_of_files(interface);
            let remove = |etc: &String| {
                let names = persisted_names(header, Some(etc)).into_iter();
                names.map(|name| remove_files(&Etc::at(etc), Some(&name), namespace)).collect::<Vec<_>>()
            };
            let removals: Vec<_> = etc.iter().flat_map(remove).collect();
            let are_gone = removals.iter().all(Result::is_ok);
            files.extend(removals);
            are_gone
        });
        if let Ok(RevertOutcome::RolledBack(leftover)) = &ended
            && leftover.header.kept
        {
            let (etc, header) = (Etc::from_environment(), &leftover.header);
            let namespace = namespace_of_files(&header.interface);
            let names = persisted_names(header, Etc::named().as_deref().and_then(Path::to_str));
            files.extend(names.iter().map(|name| remove_files(&etc, Some(name), namespace)));
        }
        // Continue with the other journals after a failure.
        match ended {
            // The journal's run has already restored everything, or changed nothing.
            Ok(RevertOutcome::Nothing) => continue,
            Ok(outcome) => match (tell(&outcome).unwrap_or_else(|error| error.tell()), &outcome) {
                (Exit::Done, RevertOutcome::OtherNamespace { header, .. }) => {
                    // The revert did not cover the requested interface, unless a different interface of
                    // this namespace has the requested name. A previous failure takes precedence.
                    let is_of_another = named.as_ref().is_some_and(|named| !is_same_device(header, named));
                    if exit == Exit::Done && interface.is_some() && !is_of_another {
                        exit = Exit::Unable;
                    }
                }
                (Exit::Done, _) => {}
                (failed, _) => exit = failed,
            },
            Err(error) => exit = tell_once(&error),
        }
        any = true;
    }
    for found in finished_copies(&state).map_err(|error| failure(&error))? {
        if concerns(&found, names.as_deref()) {
            exit = remove_finished(&found)?.unwrap_or(exit);
            any = true;
        }
    }
    for stray in stray(interface).map_err(|error| Failure::with_causes(Exit::Failed, &error))? {
        exit = Failure::with_causes(Exit::Failed, &FairError::from(stray)).tell();
    }
    Ok((exit, any))
}

/// Returns the root qdiscs that dead sessions left without a journal, on an interface and the devices
/// below it, or on all interfaces.
pub fn stray(interface: Option<&str>) -> Result<Vec<StrayRoot>, FairError> {
    let mut found = stray_roots(&StateDirectory::from_environment())?;
    let names = interface.map(with_devices_below);
    found.retain(|stray| names.as_ref().is_none_or(|names| names.contains(&stray.interface)));
    Ok(found)
}

/// Returns the interface, and the devices below it that a session on the interface manages.
pub fn with_devices_below(interface: &str) -> Vec<String> {
    let mut names = evenkeel_fair::managed_devices(interface).unwrap_or_default();
    if !names.iter().any(|name| name == interface) {
        names.push(interface.to_owned());
    }
    names
}

/// Returns whether `interface` is the interface of a journal, regardless of its current name and
/// namespace. Returns false if the journal does not identify its device.
fn is_same_device(header: &Header, interface: &InterfaceIdentity) -> bool {
    let InterfaceIdentity { device, .. } = &header.interface;
    header.interface.same_boot(interface) && device.is_some() && *device == interface.device
}

/// Identifies an interface of this namespace; `None` if it cannot be read.
pub fn identity(name: &str) -> Option<InterfaceIdentity> {
    let index = Sysfs::of_namespace().ok()?.read(&format!("class/net/{name}/ifindex")).ok()?;
    InterfaceIdentity::current(index.parse().ok()?, name).ok()
}

/// Reports a damaged journal that was set aside, if it belongs to one of the interfaces. Removes a damaged
/// journal of a previous boot. Returns an exit code if settings may still be changed, or if a journal cannot
/// be read or removed.
fn tell_remains(remains: Remains, names: Option<&[String]>) -> Option<Exit> {
    let is_about = |damaged: &Damaged| names.is_none_or(|names| is_of(damaged, names));
    match remains {
        Remains::Present(damaged) => is_about(&damaged).then(|| tell_damaged(&damaged)),
        Remains::Absent(..) => None,
        Remains::Unreadable(error) => Some(failure(&error.into()).tell()),
        Remains::Void(path) => match std::fs::remove_file(&path) {
            Ok(()) => None,
            Err(error) => Some(
                Failure::new(Exit::Failed, format!("cannot remove {}: {error}", path_text(&path))).tell(),
            ),
        },
    }
}

/// Reports a damaged journal whose interface is not in this network namespace. Returns whether the
/// interface was deleted.
fn tell_absent(damaged: &Damaged, header: Option<&Header>) -> bool {
    let path = path_text(&damaged.path);
    let rest = format!("{path} is the rest of a damaged journal, whose interface");
    let absence = absence(header);
    say(&match &absence {
        Absence::Deleted => format!("{rest} was deleted: remove the file"),
        Absence::Moved { name, namespace } => format!(
            "{rest} is in another network namespace, as {name}, and may still have changed settings: run `{}` \
             there{}",
            printed_command("evenkeel revert", &[]),
            how_to_enter(Some(namespace))
        ),
        Absence::Unknown => format!(
            "{rest} is not in this network namespace, and may still have changed settings: run `{}` in its network \
             namespace, or remove the file if that interface no longer exists",
            printed_command("evenkeel revert", &[])
        ),
    });
    matches!(absence, Absence::Deleted)
}

/// Removes a renamed or copied journal of a finished run. Returns the exit code if the journal cannot
/// be removed.
fn remove_finished(found: &Renamed) -> Result<Option<Exit>, Failure> {
    let (path, run) = (path_text(&found.path), whose(&found.header));
    match std::fs::remove_file(&found.path) {
        Ok(()) => print(&format!(
            "{path}: removed, because nothing is left to restore from this renamed journal of {run}\n"
        ))
        .map(|()| None),
        Err(error) => {
            let message = format!(
                "cannot remove {path}: {error}; nothing is left to restore from this renamed journal of {run}"
            );
            Ok(Some(Failure::new(Exit::Failed, message).tell()))
        }
    }
}

/// Returns whether a damaged journal belongs to one of these interfaces. If its interface is unknown,
/// the journal may belong to any interface.
fn is_of(damaged: &Damaged, names: &[String]) -> bool {
    damaged.interface.is_none()
        || [&damaged.interface, &damaged.former].into_iter().flatten().any(|name| names.contains(name))
}

/// Returns whether a renamed journal belongs to one of these interfaces, or has the name of one of
/// their journals. `None` means all interfaces.
fn concerns(found: &Renamed, names: Option<&[String]>) -> bool {
    let state = StateDirectory::from_environment();
    let is_of = |interface: &InterfaceIdentity| {
        let journals = [state.journal_of(interface), state.kept_journal_of(interface)];
        is_same_device(&found.header, interface) || journals.contains(&found.path)
    };
    names.is_none_or(|names| {
        names.contains(&found.header.interface.name)
            || names.iter().filter_map(|name| identity(name)).any(|interface| is_of(&interface))
    })
}

/// Returns the renamed journals of killed runs on an interface and the devices below it, or on all
/// interfaces.
pub fn renamed(interface: Option<&str>) -> Vec<Renamed> {
    // Ignore the error: a user without read access to the directory cannot restore anything either.
    let mut found = evenkeel_apply::renamed(&StateDirectory::from_environment()).unwrap_or_default();
    if !found.is_empty() {
        let names = interface.map(with_devices_below);
        found.retain(|found| concerns(found, names.as_deref()));
    }
    found
}

/// Returns the killed runs in this network namespace whose changes are still in force: those on an interface and
/// the devices below it, those whose command named the interface, or all. Returns none if this user may not
/// read the journals.
pub fn dead_runs(interface: Option<&str>) -> Vec<Header> {
    let Some(name) = interface else { return dead_runs_on(&|_| true) };
    let own = identities_below(name);
    dead_runs_on(&|header| {
        let is_on = |own: &InterfaceIdentity| header.interface.same_interface(own);
        own.iter().any(is_on) || header.named.as_deref() == Some(name)
    })
}

fn dead_runs_on(is_wanted: &dyn Fn(&Header) -> bool) -> Vec<Header> {
    let journals = StateDirectory::from_environment().journals().unwrap_or_default();
    let found = journals.iter().filter_map(|journal| Some(evenkeel_apply::unfinished(journal).ok()??.0));
    found.filter(|header| !header.kept && is_wanted(header)).collect()
}

/// Identifies an interface and the devices below it. Leaves out those that cannot be read.
fn identities_below(interface: &str) -> Vec<InterfaceIdentity> {
    with_devices_below(interface).iter().filter_map(|name| identity(name)).collect()
}

/// Describes settings that a killed run left changed on an interface or the devices below it, and the
/// remedy. If this is unknown, returns the reason. Returns `None` if there are no such settings.
pub fn left(index: u32, name: &str) -> Option<String> {
    if let Some(reason) = unreadable() {
        return Some(reason);
    }
    if let Some(damaged) = damaged(Some(name)).iter().find(|damaged| !damaged.is_kept()) {
        return Some(damaged.to_string());
    }
    if let Some(renamed) = renamed(Some(name)).iter().find(|renamed| !renamed.header.kept) {
        return Some(renamed.to_string());
    }
    let below = identities_below(name);
    let has_index = below.iter().any(|below| below.index == index);
    let is_own = |interface: &InterfaceIdentity| {
        // The interface may have left this namespace.
        let has_left = !has_index && interface.index == index;
        has_left || below.iter().any(|below| interface.same_interface(below))
    };
    let dead = dead_runs_on(&|header| is_own(&header.interface) || header.named.as_deref() == Some(name));
    if let Some(header) = dead.first() {
        return Some(unfinished(header));
    }
    let state = StateDirectory::from_environment();
    if let Some(header) = run_in_roll_back(&state, &is_own) {
        let whose = whose(&header);
        return Some(format!(
            "{whose} has ended, and another process that has its journal may restore its changes"
        ));
    }
    match stray(Some(name)) {
        Ok(stray) => stray.first().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the reason why the journals cannot be read; `None` if they can be read, or if there are no
/// journals.
pub fn unreadable() -> Option<String> {
    let error = StateDirectory::from_environment().journals().err()?;
    Some(format!("cannot find out which settings killed runs left changed: {error}"))
}

/// Reports settings that killed runs left changed, if the command itself does not report them. The program
/// calls this function before each command.
pub fn remind(command: &Command) {
    match command {
        // Without `--observe`, the command itself refuses stray root qdiscs, renamed journals, and
        // damaged journals that it reads.
        Command::Fair(options) => {
            let devices = if options.observe { Vec::new() } else { with_devices_below(&options.interface) };
            remind_of_damaged(Some(&options.interface), &run_journals(&devices));
            if options.observe {
                remind_of_renamed(&options.interface);
                remind_of_elsewhere(&with_devices_below(&options.interface));
            }
        }
        Command::Steer(options) => {
            let Some(interface) = &options.interface else { return };
            let has_journal = matches!(options.backend, BackendChoice::Ntuple | BackendChoice::Rps);
            let read =
                if has_journal && !options.plan { run_journals(from_ref(interface)) } else { Vec::new() };
            remind_of_damaged(Some(interface), &read);
            remind_of_stray(Some(interface));
            if options.plan {
                remind_of_renamed(interface);
                remind_of_elsewhere(from_ref(interface));
                remind_of_unfinished(interface);
            }
        }
        Command::Tune(options) if options.from.is_none() => {
            let mut read = Vec::new();
            if options.apply.is_some() {
                let kept = identity(&options.interface)
                    .map(|identity| StateDirectory::from_environment().kept_journal_of(&identity));
                read.extend(run_journals(from_ref(&options.interface)).into_iter().chain(kept));
            }
            remind_of_damaged(Some(&options.interface), &read);
            remind_of_stray(Some(&options.interface));
            if options.apply.is_none() {
                remind_of_renamed(&options.interface);
                remind_of_elsewhere(from_ref(&options.interface));
                remind_of_unfinished(&options.interface);
                unreadable().iter().for_each(|reason| say(reason));
            }
        }
        Command::Check(options) if options.from.is_none() && options.explain.is_none() => {
            remind_of_damaged(options.interface.as_deref(), &[]);
            remind_of_elsewhere(
                &options.interface.as_deref().map_or_else(all_interfaces, with_devices_below),
            );
        }
        _ => {}
    }
}

/// Returns the paths of the journals that runs on these interfaces have. A journal may not exist.
fn run_journals(interfaces: &[String]) -> Vec<PathBuf> {
    let state = StateDirectory::from_environment();
    let identities = interfaces.iter().filter_map(|name| identity(name));
    // Ignore the error: the command itself reports a directory that cannot be read.
    identities.flat_map(|identity| state.run_journals_of(&identity).unwrap_or_default()).collect()
}

/// Reports damaged journals, except those that the command reads and reports itself.
fn remind_of_damaged(interface: Option<&str>, read: &[PathBuf]) {
    let found = damaged(interface);
    found
        .iter()
        .filter(|damaged| !read.contains(&damaged.path))
        .for_each(|damaged| say(&damaged.to_string()));
}

fn remind_of_renamed(interface: &str) {
    renamed(Some(interface)).iter().for_each(|renamed| say(&renamed.to_string()));
}

/// Reports interfaces that were moved here with the settings of a run in another network namespace.
fn remind_of_elsewhere(names: &[String]) {
    let state = StateDirectory::from_environment();
    for interface in names.iter().filter_map(|name| identity(name)) {
        // Ignore other errors: `evenkeel revert` reports them.
        if let Err(error @ ApplyError::Journal(JournalError::ElsewhereFirst { .. })) =
            check_elsewhere(&state, &interface)
        {
            say(&error.to_string());
        }
    }
}

fn remind_of_unfinished(interface: &str) {
    dead_runs(Some(interface)).iter().for_each(tell_unfinished);
}

fn remind_of_stray(interface: Option<&str>) {
    // Ignore the error: if an interface cannot be read, the command itself reports it.
    stray(interface).unwrap_or_default().iter().for_each(|stray| say(&stray.to_string()));
}

/// Returns the damaged journals of previous runs on an interface and the devices below it, or on all
/// interfaces.
pub fn damaged(interface: Option<&str>) -> Vec<Damaged> {
    let state = StateDirectory::from_environment();
    // Ignore the error: a user without read access to the directory cannot restore anything either.
    let mut found = evenkeel_apply::damaged(&state).unwrap_or_default();
    if !found.is_empty()
        && let Some(names) = interface.map(with_devices_below)
    {
        found.retain(|damaged| is_of(damaged, &names));
    }
    found
}

/// Returns the names of this namespace's interfaces. Returns none without permission to list them.
fn all_interfaces() -> Vec<String> {
    Sysfs::of_namespace().and_then(|sysfs| sysfs.list("class/net")).unwrap_or_default()
}

fn exists(interface: &str) -> Result<bool, Failure> {
    let names = Sysfs::of_namespace().and_then(|sysfs| sysfs.list("class/net"));
    let names = names.map_err(|error| Failure::with_causes(Exit::Unable, &error))?;
    Ok(names.iter().any(|name| name == interface))
}

/// Returns whether a journal belongs to one of these interfaces, by the interface's name at the start
/// of the run or its current name.
fn is_about(path: &Path, names: &[String]) -> Result<bool, Failure> {
    let contents = match StateDirectory::read(path) {
        Err(JournalError::Damaged(damaged)) => return Ok(is_of(&damaged, names)),
        read => read.map_err(|error| failure(&error.into()))?,
    };
    // The journal was removed: its run has ended, or a guardian has rolled it back.
    let Some(contents) = contents else { return Ok(false) };
    let is_named = |header: &Header| names.iter().any(|name| header.is_about(name));
    if contents.header.as_ref().is_some_and(is_named) {
        return Ok(true);
    }
    let state = StateDirectory::from_environment();
    Ok(names.iter().filter_map(|name| identity(name)).any(|interface| {
        // The journal's interface may have been renamed and moved to this namespace: compare the device. If
        // every line of the journal is damaged, only the file's name identifies the interface.
        contents.header.as_ref().is_some_and(|header| is_same_device(header, &interface))
            || [state.journal_of(&interface), state.kept_journal_of(&interface)].iter().any(|own| own == path)
    }))
}

fn whose(header: &Header) -> String {
    let Header { command, interface, named, process, started, .. } = header;
    let named = named.as_ref().map(|named| format!(" {named}")).unwrap_or_default();
    format!("evenkeel {command}{named} on {} (process {}, since {started})", interface.name, process.id)
}

fn tell(outcome: &RevertOutcome) -> Result<Exit, Failure> {
    match outcome {
        RevertOutcome::Nothing => {}
        RevertOutcome::Void(header) => {
            print(&format!(
                "{}: nothing to restore after a reboot, or without its network namespace\n",
                whose(header)
            ))?;
        }
        RevertOutcome::OtherNamespace { header, alive: true, .. } => say(&format!(
            "{} still runs in another network namespace (net:[{}]); revert does not change its settings; to undo \
             its changes, end it; if changes remain, run `{}` there",
            whose(header),
            header.interface.namespace,
            printed_command("evenkeel revert", &[])
        )),
        RevertOutcome::OtherNamespace { header, path, journal, .. } => say(&format!(
            "{} ran in another network namespace (net:[{}]); revert does not change its settings: run `{}` \
             there{}, or remove {} if that namespace no longer exists",
            whose(header),
            header.interface.namespace,
            printed_command("evenkeel revert", &[]),
            how_to_enter(path.as_deref()),
            path_text(journal)
        )),
        RevertOutcome::Unreadable(damaged) => return Ok(tell_damaged(damaged)),
        RevertOutcome::RolledBack(leftover) => {
            let printed = print(&format!("{}: {}\n", whose(&leftover.header), leftover.report));
            let exit = tell_remarks(leftover);
            return printed.map(|()| exit);
        }
    }
    Ok(Exit::Done)
}

fn tell_damaged(damaged: &Damaged) -> Exit {
    Failure::with_causes(Exit::Failed, damaged).tell()
}

/// Reports remarks for the user. Returns the exit code, which shows whether the user must act.
fn tell_remarks(leftover: &Leftover) -> Exit {
    let then = &leftover.header.interface.name;
    if let Some(now) = leftover.name.as_ref().filter(|now| *now != then) {
        say(&format!("the interface {then} is now called {now}"));
    }
    for remark in leftover.report.remarks(leftover.name.as_deref().unwrap_or(then)) {
        say(&remark);
    }
    if let Some(path) = &leftover.supplanted {
        say(&JournalError::Supplanted { path: path.clone() }.to_string());
    }
    let damaged = leftover.damaged.as_ref().map(tell_damaged);
    let settled = if leftover.report.is_settled() { Exit::Done } else { Exit::Failed };
    damaged.unwrap_or(settled)
}

pub fn tell_leftover(leftover: &Leftover) {
    say_leftover(leftover);
}

fn say_leftover(leftover: &Leftover) -> Exit {
    // A command with kept changes, such as `tune`, ended normally.
    let died = if leftover.header.kept { "" } else { " had died" };
    say(&format!("{}{died}: {}", whose(&leftover.header), leftover.report));
    tell_remarks(leftover)
}

/// Reports that a run would be refused, because a session manages the interface. A command calls this
/// function before it prints a plan. `plan` is the part of the message about the plan.
pub fn tell_managed(interface: &str, plan: &str) {
    // Ignore an interface that cannot be read: the plan reports it.
    let Some(identity) = identity(interface) else { return };
    let unmanaged = check_unmanaged(&StateDirectory::from_environment(), &identity);
    if let Err(error) = unmanaged.and_then(|()| check_unsteered(&identity)) {
        say(&format!("{error}; evenkeel refuses a run while that session lasts, and {plan}"));
    }
}

/// Reports a killed run whose changes are still in force.
pub fn tell_unfinished(header: &Header) {
    say(&unfinished(header));
}

/// Describes a run that ended without undoing its changes, with the command that undoes them.
pub fn unfinished(header: &Header) -> String {
    let interface = &header.interface;
    let (ended, name) = (format!("{} ended before it restored its changes", whose(header)), &interface.name);
    let fix = printed_command("evenkeel revert {}", &[name]);
    if identity(name).is_some_and(|found| found.same_interface(interface)) {
        return format!("{ended}: `{fix}` restores them");
    }
    let own = std::fs::metadata("/proc/thread-self/ns/net").map(|namespace| namespace.ino());
    if own.is_ok_and(|own| own == interface.namespace) {
        if let Some(now) = new_name(header) {
            let fix = printed_command("evenkeel revert {}", &[&now]);
            return format!("{ended}, and {name} is now called {now}: `{fix}` restores them");
        }
        return format!(
            "{ended}, and {name} is no longer in this network namespace: {} restores them",
            revert_here(name)
        );
    }
    format!("{ended}: `{fix}` restores them in its network namespace, net:[{}]", interface.namespace)
}

/// Returns the present name of an interface that was renamed in this namespace.
fn new_name(header: &Header) -> Option<String> {
    let is_own = |name: &String| identity(name).is_some_and(|found| is_same_device(header, &found));
    all_interfaces().into_iter().find(is_own)
}

pub fn guard(options: &GuardOptions) -> Result<Exit, Failure> {
    output::detach();
    let arguments = Arguments {
        journal: options.journal.clone(),
        worker: options.worker,
        worker_start: options.worker_start,
    };
    match watch(&arguments).map_err(|error| failure(&error))? {
        Watch::Released => {}
        Watch::WorkerDied(outcome) => match *outcome {
            RevertOutcome::RolledBack(leftover) => return Ok(say_leftover(&leftover)),
            RevertOutcome::Unreadable(damaged) => return Ok(tell_damaged(&damaged)),
            RevertOutcome::Nothing | RevertOutcome::Void(_) | RevertOutcome::OtherNamespace { .. } => {}
        },
    }
    Ok(Exit::Done)
}
