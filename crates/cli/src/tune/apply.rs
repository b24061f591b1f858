//! `evenkeel tune --apply`.

use std::collections::BTreeSet;
use std::time::Instant;

use evenkeel_apply::{
    ApplyError, Disturbance, Entry, Etc, JournalError, KnobError, Lasting, Line, Made, StateDirectory,
    printed_command,
};
use evenkeel_host::Capability;
use evenkeel_model::change::{Change, Knob, Value};
use evenkeel_model::host::HostFacts;
use evenkeel_placement::tune::Keep;
use evenkeel_placement::tune::verify::{Stretch, Watched, compare};

use super::{Prepared, Ready, files, prepare, show};
use crate::arguments::{Format, TuneOptions};
use crate::exit::{Exit, Failure, flush, print, print_page};
use crate::live::{require, say, unsettled};
use crate::output;
use crate::progress::{page, wait_with};
use crate::revert::tell_leftover;
use crate::signals::Signals;

/// Maximum number of rounds of changes. A change of the number of channels requires another round, because it
/// recreates interrupts and queues.
const MOST_ROUNDS: usize = 3;
/// Number of parts of a watch. Each part ends with a reading. Losses in bursts differ from part to part.
const WATCH_PARTS: u32 = 10;

pub struct Done {
    pub rule: &'static str,
    pub knob: Knob,
    pub from: Value,
    pub to: Value,
}

#[derive(Default)]
pub struct Outcome {
    pub done: Vec<Done>,
    /// Commands that restore the settings of queues, to be run after the undo of the channels.
    pub undo_of_queues: Vec<Line>,
    /// Changes that the kernel refused, or that another program prevented or replaced. Each of these settings
    /// has its previous value, or the other program's value.
    pub refused: Vec<(&'static str, Change, String)>,
    /// Result of a watch; `None` without a watch.
    pub watched: Option<Watched>,
}

/// Counts losses, makes the changes of a plan, and counts losses again. An interruption undoes the
/// changes of this command.
pub fn apply(
    options: &TuneOptions,
    keep: &Keep,
    prepared: Prepared,
    signals: &Signals,
) -> Result<Exit, Failure> {
    require(&[Capability::NetAdmin], "--apply")?;
    if !options.persist.is_empty() {
        let etc = Etc::from_environment().require_directory();
        etc.map_err(|error| Failure::with_causes(Exit::Usage, &error))?;
    }
    output::detach();
    let index = prepared.facts.interface(&options.interface).and_then(|interface| interface.index);
    let index = index.ok_or_else(|| {
        let interface = &options.interface;
        Failure::new(Exit::Unable, format!("cannot read the index of {interface} from /sys/class/net"))
    })?;
    let asked_for = options.rules();
    let looks = !prepared.ready.is_empty() || prepared.wants_a_look;
    let unchanged = |failure: Failure| failure.and("nothing was changed");
    let before = if looks { watch(options, signals).map_err(unchanged)? } else { None };
    let losing = before.as_ref().map(|before| before.rules.clone()).unwrap_or_default();
    let mut prepared =
        if prepared.wants_a_look { prepare(options, keep, &asked_for, &losing)? } else { prepared };
    leave_to_balancer(&mut prepared);
    let state = StateDirectory::from_environment();
    signals.hold();
    let (lasting, leftover) =
        Lasting::begin(&state, index, &options.interface, "tune").map_err(|error| cannot_begin(&error))?;
    leftover.iter().for_each(tell_leftover);

    let mut outcome = Outcome::default();
    let made = make_all(options, keep, prepared, signals, lasting, before, &mut outcome);
    made.map_err(|error| staying(error, &options.interface, &outcome))
}

/// Adds to an error the changes that remain in effect.
fn staying(error: Failure, interface: &str, outcome: &Outcome) -> Failure {
    if outcome.done.is_empty() {
        return error;
    }
    let names: Vec<String> = outcome.done.iter().map(|done| done.knob.on(interface).to_string()).collect();
    let revert = printed_command("evenkeel revert {}", &[&interface]);
    let message = format!(
        "{}; the changes made before stay ({}): `{revert}` undoes them",
        error.message(),
        names.join(", ")
    );
    Failure::new(Exit::Failed, message)
}

fn make_all(
    options: &TuneOptions,
    keep: &Keep,
    mut prepared: Prepared,
    signals: &Signals,
    mut lasting: Lasting,
    before: Option<Stretch>,
    outcome: &mut Outcome,
) -> Result<Exit, Failure> {
    let mut losing = before.as_ref().map(|before| before.rules.clone()).unwrap_or_default();
    make_rounds(options, keep, &mut prepared, &losing, signals, &mut lasting, outcome)?;
    if signals.came() {
        return interrupted(lasting, options, outcome);
    }

    // The interface stays locked, so that no other run of Evenkeel changes it during the comparison.
    if !outcome.done.is_empty()
        && let Some(before) = before
        && let Some(after) = watch(options, signals)?
    {
        outcome.watched = Some(compare(&before, &after));
        losing = after.rules;
    }
    if signals.came() {
        return interrupted(lasting, options, outcome);
    }
    refuse_disturbed(&mut lasting, outcome);
    let asked_for = options.rules();
    let unfixed = match asked_for.is_empty() {
        true => Vec::new(),
        false => {
            let after = prepare(options, keep, &asked_for, &losing)?;
            super::unfixed(&options.interface, keep, &after)
        }
    };
    let files = files::write(options, &prepared.facts, &mut lasting)?;
    if let Some(rewritten) = lasting.keep().map_err(|error| failure(&error))? {
        say(&rewritten.to_string());
    }
    match options.format {
        Format::Table => {
            let mut page = page();
            page.lines(&show::outcome(&options.interface, &prepared, outcome, &files));
            print_page(page)?;
        }
        Format::Json => {
            print(&format!("{:#}\n", show::outcome_json(&options.interface, &prepared, outcome, &files)))?
        }
    }
    // If the result cannot be written, the error names the changes.
    flush()?;
    let worse = outcome.watched.as_ref().is_some_and(Watched::is_worse);
    let left = !outcome.refused.is_empty() || prepared.is_left_to_session || !unfixed.is_empty();
    Ok(if worse || left { Exit::Unmet } else { Exit::Done })
}

/// Makes the changes of a plan, and those of further plans for the queues that the changes add, until a signal comes.
pub fn make_rounds(
    options: &TuneOptions,
    keep: &Keep,
    prepared: &mut Prepared,
    losing: &BTreeSet<&'static str>,
    signals: &Signals,
    lasting: &mut Lasting,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let asked_for = options.rules();
    for round in 1.. {
        let earlier = outcome.done.len();
        let planned = prepared.ready.iter();
        let planned = planned.filter_map(|ready| Some((ready.change.knob.clone(), ready.from.clone()?)));
        lasting.plan_from(planned);
        // Skip the settings of queues that the channels add. The driver sets up these queues, then the next
        // round reads their settings and plans the changes.
        let mut owned = Vec::new();
        for ready in prepared.ready.iter().filter(|ready| ready.from.is_some()) {
            if signals.came() {
                return Ok(());
            }
            if let Some(owner) = make(lasting, ready, outcome)? {
                owned.push((ready.change.knob.clone(), owner));
            }
        }
        owned.iter().for_each(|(knob, owner)| prepared.leave_to(knob, &options.interface, owner));
        let made = outcome.done[earlier..].iter().map(|done| Change::new(done.knob.clone(), done.to.clone()));
        let channels: Vec<Change> = made.filter(|change| matches!(change.knob, Knob::Channels(_))).collect();
        let lines = show::undo_of_queues(&prepared.facts, &options.interface, &channels);
        // The commands of the first round are last, because they restore the values from before all changes.
        outcome.undo_of_queues.splice(..0, lines);
        if channels.is_empty() || round >= MOST_ROUNDS {
            break;
        }
        let again = prepare(options, keep, &[], losing)?;
        let is_new = |ready: &Ready| {
            let asked = asked_for.is_empty() || asked_for.iter().any(|item| item == ready.rule);
            asked && !outcome.refused.iter().any(|(_, change, _)| change.knob == ready.change.knob)
        };
        let ready = again.ready.iter().filter(|ready| is_new(ready)).cloned().collect();
        let unable = std::mem::take(&mut prepared.unable);
        *prepared = Prepared { ready, unable, ..again };
        leave_to_balancer(prepared);
    }
    Ok(())
}

/// Moves changes from the made changes to the refused changes if another program has replaced their
/// values, for example during the watch.
pub fn refuse_disturbed(lasting: &mut Lasting, outcome: &mut Outcome) {
    for (knob, why) in lasting.set_since() {
        let Some(at) = outcome.done.iter().position(|done| done.knob == knob) else { continue };
        let Done { rule, to, .. } = outcome.done.remove(at);
        outcome.refused.push((rule, Change::new(knob, to), why.to_string()));
    }
}

/// Skips interrupts that irqbalance would move again.
pub fn leave_to_balancer(prepared: &mut Prepared) {
    if prepared.stops_balancer().is_none() {
        return;
    }
    for ready in std::mem::take(&mut prepared.ready) {
        if matches!(ready.change.knob, Knob::InterruptAffinity(_)) {
            let why = "irqbalance would move the interrupt again; stop irqbalance first (systemctl stop irqbalance)";
            prepared.unable.push((ready.rule, ready.change, why.to_owned()));
        } else {
            prepared.ready.push(ready);
        }
    }
}

/// Makes a change. Returns the other interface for which `tune` has set another value since the plan, if there is one.
fn make(lasting: &mut Lasting, ready: &Ready, outcome: &mut Outcome) -> Result<Option<String>, Failure> {
    let Change { knob, to } = &ready.change;
    let mut done = |from: Value, to: Value| {
        outcome.done.push(Done { rule: ready.rule, knob: knob.clone(), from, to });
    };
    let made = lasting.change(&ready.change);
    if let Err(ApplyError::Disturbed(Disturbance { interface, found: Some(found), .. })) = &made
        && !knob.is_of_interface()
        && let Some(owner) = keeper(knob, found).filter(|owner| owner != interface)
    {
        return Ok(Some(owner));
    }
    match made {
        Ok(Made::AsBefore) => {
            // A change of an interface can change other settings: a change of the channels can reset XPS
            // maps. A sysctl changes only itself.
            let is_ours = outcome.done.iter().any(|done| done.knob == *knob || done.knob.is_of_interface());
            let is_new = ready.from.as_ref().is_some_and(|from| !knob.same(from, to));
            if !is_ours && is_new && keeper(knob, to).is_none() {
                let why = format!("another program has set it to {to} since the plan");
                outcome.refused.push((ready.rule, ready.change.clone(), why));
            }
        }
        Ok(Made::Changed(from)) => done(from, to.clone()),
        Ok(Made::Rounded { from, to }) => done(from, to),
        Err(error @ ApplyError::Journal(_)) if !error.is_owned() => return Err(failure(&error)),
        // Another run owns the setting, and `tune` already keeps the same value.
        Err(error) if error.is_owned() && keeper(knob, to).is_some() => {}
        Err(error) => outcome.refused.push((ready.rule, ready.change.clone(), error.to_string())),
    }
    Ok(None)
}

/// Returns the interface for which `tune` keeps this value in effect already.
fn keeper(knob: &Knob, value: &Value) -> Option<String> {
    let kept = evenkeel_apply::kept(&StateDirectory::from_environment()).unwrap_or_default();
    let keeps = |entry: &Entry| entry.knob == *knob && entry.is_ours(value);
    kept.into_iter().find(|(_, entry)| keeps(entry)).map(|(interface, _)| interface.name)
}

/// Undoes this command's changes. Changes of previous commands stay.
fn interrupted(lasting: Lasting, options: &TuneOptions, outcome: &mut Outcome) -> Result<Exit, Failure> {
    outcome.done.clear();
    let report = lasting.undo().map_err(|error| failure(&error))?;
    report.remarks(&options.interface).iter().for_each(|remark| say(remark));
    if let Some(unsettled) = unsettled(&options.interface, &report) {
        return Err(unsettled.after(&format!("interrupted: {report}")));
    }
    match report.left_alone.is_empty() && report.gone.is_empty() && !report.anew {
        true => say("interrupted: everything is as before"),
        false => say(&format!("interrupted: {report}")),
    }
    Ok(Exit::Interrupted)
}

/// Counts traffic and losses for the time of `--watch`. Returns `None` with `--no-watch`.
fn watch(options: &TuneOptions, signals: &Signals) -> Result<Option<Stretch>, Failure> {
    if options.no_watch {
        return Ok(None);
    }
    let first: HostFacts = super::read(None)?;
    let (mut last, mut stretch) = (first.clone(), Stretch::default());
    let mut add = |next: HostFacts| -> Result<(), Failure> {
        let name = &options.interface;
        crate::check::require_same_interface(&first, &next, Some(name), "while losses were counted")?;
        stretch.add(&last, &next, name);
        last = next;
        Ok(())
    };
    let part = options.watch / WATCH_PARTS;
    let (started, mut next, mut added) = (Instant::now(), part, Ok(()));
    wait_with(options.watch, "counting losses", signals, || {
        let elapsed = started.elapsed();
        // The reading after the wait ends the last part.
        if elapsed >= next && elapsed + part / 2 < options.watch {
            next = elapsed + part;
            added = super::read(None).and_then(&mut add);
        }
        added.is_ok()
    });
    added?;
    super::read(None).and_then(add)?;
    Ok(Some(stretch))
}

fn failure(error: &ApplyError) -> Failure {
    Failure::with_causes(Exit::Failed, error)
}

/// Creates the error for a command that changed nothing because it could not begin: another run is active, a
/// directory or a privilege is missing, or a journal is damaged or unfinished.
fn cannot_begin(error: &ApplyError) -> Failure {
    let exit = match error {
        ApplyError::Journal(JournalError::Damaged(_) | JournalError::Unfinished { .. }) => Exit::Failed,
        _ => Exit::Unable,
    };
    let failure = Failure::with_causes(exit, error);
    match error {
        ApplyError::Knob(KnobError::Host(_)) => {
            failure.and("run the command as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN")
        }
        _ => failure,
    }
}
