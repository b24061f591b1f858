//! Restores a run's changes, and no other settings.

use std::fmt;

use evenkeel_model::change::{Knob, QdiscSnapshot, Value};

use crate::error::{ApplyError, JournalError, KnobError};
use crate::journal::{Entry, fold};
use crate::kernel::Kernel;
use crate::ours::Ours;
use crate::printed_command::printed_command;
use crate::qdisc::{as_defaults, difference, for_queues_of, is_part_of};

/// A knob that rollback does not restore: another program changed it after the run set it, or `evenkeel
/// tune` keeps it for another interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    pub knob: Knob,
    /// The current value. Rollback keeps it.
    pub found: Value,
    /// The values that the run may have set; empty for a knob that only a change of the channels may
    /// have set.
    pub ours: Vec<Ours>,
    pub from: Value,
    /// The interface for which `evenkeel tune` keeps the current value, and the value that its revert
    /// restores.
    pub keeper: Option<(String, Value)>,
}

#[derive(Debug, Default)]
pub struct Report {
    pub restored: Vec<(Knob, Value)>,
    pub unchanged: Vec<Knob>,
    pub left_alone: Vec<LeftAlone>,
    /// Settings of other programs that the kernel removed when a setting was restored.
    pub lost: Vec<String>,
    pub gone: Vec<Knob>,
    /// The root qdisc, if the kernel removed it when the interface moved (`dev_shutdown` in
    /// `__dev_change_net_namespace`, net/core/dev.c). `gone` contains its knob, too.
    pub dropped: Option<LeftAlone>,
    /// A sentence about the deletion of the interface, if it was deleted.
    pub deleted: Option<String>,
    pub failed: Vec<(Knob, KnobError)>,
    /// The other network namespace where the interface's settings were restored.
    pub moved_to: Option<String>,
    /// Whether restoring the channels may have made the driver request its interrupts again.
    pub anew: bool,
}

impl Report {
    /// Returns whether no further attempt is needed, because no knob failed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.failed.is_empty()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { restored, unchanged, left_alone, gone, failed, .. } = self;
        restored.is_empty()
            && unchanged.is_empty()
            && left_alone.is_empty()
            && gone.is_empty()
            && failed.is_empty()
    }

    /// Returns marked entries of the knobs that need no further attempt, for a journal that stays
    /// because of other knobs. A later rollback does not change the marked knobs, regardless of their
    /// values.
    pub(crate) fn settled(&self, entries: &[Entry]) -> Vec<Entry> {
        let known = self.restored.iter().map(|(knob, _)| knob).chain(&self.unchanged);
        let known: Vec<&Knob> = known.chain(self.left_alone.iter().map(|left| &left.knob)).collect();
        // A later restore of the channels may make the driver reset a queue's setting again.
        let resets = self.failed.iter().any(|(knob, _)| matches!(knob, Knob::Channels(_)));
        let is_settled = |entry: &&Entry| {
            known.contains(&&entry.knob) && !entry.with_channels && !(resets && entry.knob.is_of_queues())
        };
        entries.iter().filter(is_settled).map(|entry| Entry { theirs: true, ..entry.clone() }).collect()
    }

    /// Creates the error for a journal that could not be removed after this rollback.
    pub(crate) fn journal_stays(&self, interface: &str, source: JournalError) -> ApplyError {
        ApplyError::JournalStays { rolled_back: self.summary(interface), source: Box::new(source) }
    }

    pub(crate) fn summary(&self, interface: &str) -> String {
        let all = std::iter::once(format!("{interface}: {self}")).chain(self.remarks(interface));
        all.collect::<Vec<_>>().join("; ")
    }

    /// Returns remarks that explain this rollback to the user, one line each.
    #[must_use]
    pub fn remarks(&self, interface: &str) -> Vec<String> {
        let moved = self.moved_to.iter().map(|to| {
            format!("another program moved {interface} to {to}: evenkeel restored its settings there")
        });
        let left = self.left_alone.iter().map(|left| left.describe(interface));
        let dropped = self.dropped.iter().map(|dropped| {
            let LeftAlone { knob, from, .. } = dropped;
            let had_set = dropped.had_set();
            format!(
                "{} is not restored, because the kernel drops it when an interface moves: {had_set}the old value \
                 was {from}",
                knob.on(interface)
            )
        });
        let went_along = |knob: &&Knob| self.deleted.is_some() && knob.is_of_interface();
        let count = self.gone.iter().filter(went_along).count();
        let deleted = self.deleted.iter().filter(|_| count > 0).map(move |deleted| match count {
            1 => format!("{deleted}: the kernel removed 1 setting with it"),
            _ => format!("{deleted}: the kernel removed {count} settings with it"),
        });
        let lost = (!self.lost.is_empty()).then(|| {
            format!(
                "the kernel removed settings of another program with evenkeel's own root qdisc of {interface}: {}",
                self.lost.join(", ")
            )
        });
        let is_dropped = |knob: &&Knob| self.dropped.as_ref().is_some_and(|dropped| dropped.knob == **knob);
        let gone = self.gone.iter().filter(move |knob| !went_along(knob) && !is_dropped(knob));
        let gone = gone.map(|knob| format!("{} no longer exists: nothing to restore", knob.on(interface)));
        let failed = by_cause(&self.failed, interface);
        let anew = self.anew.then(|| {
            format!(
                "{interface} may have new interrupts, because its channels changed: the driver chose the \
                 affinity of these interrupts, and evenkeel does not restore it; `{}` compares the affinity \
                 with the queues",
                printed_command("evenkeel check {}", &[&interface])
            )
        });
        moved
            .chain(left)
            .chain(lost)
            .chain(dropped)
            .chain(deleted)
            .chain(gone)
            .chain(failed)
            .chain(anew)
            .collect()
    }
}

/// Describes settings that could not be restored: a line for each cause.
fn by_cause(failed: &[(Knob, KnobError)], interface: &str) -> Vec<String> {
    let mut causes: Vec<(String, Vec<String>)> = Vec::new();
    for (knob, error) in failed {
        let (cause, name) = (error.to_string(), knob.on(interface).to_string());
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, names)) => names.push(name),
            None => causes.push((cause, vec![name])),
        }
    }
    let line = |(cause, names): (String, Vec<String>)| {
        let are = if names.len() == 1 { "is" } else { "are" };
        format!("{} {are} not restored: {cause}", names.join(", "))
    };
    causes.into_iter().map(line).collect()
}

impl LeftAlone {
    fn had_set(&self) -> String {
        let ours: Vec<String> = self.ours.iter().map(ToString::to_string).collect();
        match ours.as_slice() {
            [] => String::new(),
            [value] if matches!(&self.ours[..], [Ours::These(values)] if values.len() == 1) => {
                format!("evenkeel had set {value}; ")
            }
            // The journal lists every value that the run was allowed to set.
            values => format!("evenkeel may have set {}; ", values.join(" or ")),
        }
    }

    /// Returns whether the interface has only the kernel's default qdiscs.
    fn is_default_qdisc(&self) -> bool {
        matches!(&self.found, Value::Qdiscs(found) if found.iter().all(QdiscSnapshot::is_default))
    }

    fn describe(&self, interface: &str) -> String {
        let (knob, had_set) = (self.knob.on(interface), self.had_set());
        let Self { found, from, .. } = self;
        match &self.keeper {
            Some((keeper, before)) => format!(
                "{knob} is left, because evenkeel tune on {keeper} has also set it: {found}; {had_set}the old value was \
                 {from}; `{}` restores {before}",
                printed_command("evenkeel revert {}", &[keeper])
            ),
            None => {
                format!(
                    "{knob} is left as another program set it: {found}; {had_set}the old value was {from}"
                )
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let restored = self.restored.len();
        let plural = if restored == 1 { "" } else { "s" };
        write!(formatter, "{restored} setting{plural} restored")?;
        let kept = self.left_alone.iter().filter(|left| left.keeper.is_some()).count();
        for (count, what) in [
            (self.unchanged.len(), "already as before"),
            (kept, "kept for another interface"),
            (self.left_alone.len() - kept, "left as set by another program"),
            (self.gone.len(), "gone"),
            (self.failed.len(), "not restored"),
        ] {
            if count > 0 {
                write!(formatter, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// Returns the rank of a knob in the order of restoration, lower first.
fn turn(knob: &Knob) -> u8 {
    match knob {
        // The kernel derives its default qdisc from the default kind and the MTU (quantum in
        // `fq_codel_init`, `fq_init`). Restore both before removing a root.
        Knob::Mtu => 0,
        Knob::Sysctl(name) if name == "net/core/default_qdisc" => 0,
        // Restore contexts after the rules that refer to them.
        Knob::RssContext(_) => 2,
        // Restore the length after the root qdisc: creating a root qdisc replaces a length of 0
        // (`Run::change`).
        Knob::TransmitQueueLength => 2,
        _ => 1,
    }
}

/// Restores every knob that no other program has changed, in the order of [`turn`], and within one rank the
/// last change first. A rollback may be interrupted anywhere and repeated.
///
/// A change of channels recreates queues, so rollback restores the settings of queues again afterwards.
/// Before rollback restores any channels, it passes the entries of these settings to `journal`: from then on
/// the driver may set them to any value.
pub fn roll_back(kernel: &mut dyn Kernel, entries: &[Entry], journal: &mut dyn FnMut(&[Entry])) -> Report {
    let mut entries: Vec<Entry> = relevant(entries).cloned().collect();
    let with_channels = with_channels(kernel, &entries);
    if let Some(changing) = with_channels.as_ref().filter(|changing| !changing.is_empty()) {
        journal(changing);
        changing.iter().for_each(|entry| fold(&mut entries, entry.clone()));
    }
    let mut last_first: Vec<&Entry> = entries.iter().rev().collect();
    last_first.sort_by_key(|entry| turn(&entry.knob));
    let mut outcomes: Vec<(&Entry, Result<Outcome, KnobError>)> = Vec::new();
    for entry in last_first.iter().filter(|entry| with_channels.is_none() || !entry.with_channels) {
        outcomes.push((entry, restore(kernel, entry)));
    }
    for entry in last_first.iter().filter(|entry| with_channels.is_some() && entry.knob.is_of_queues()) {
        let again = restore(kernel, entry);
        match outcomes.iter_mut().find(|(earlier, _)| earlier.knob == entry.knob) {
            // Keep the outcome from before the channels: restoring the channels did not change the knob, or
            // removed its queue.
            Some((_, Ok(_))) if matches!(again, Ok(Outcome::Unchanged) | Err(KnobError::Gone { .. })) => {}
            Some((_, outcome)) => *outcome = again,
            None => outcomes.push((entry, again)),
        }
    }
    let mut report = Report::default();
    for (entry, outcome) in outcomes {
        let knob = entry.knob.clone();
        match outcome {
            // The run has not set this knob, so without a difference there is nothing to report.
            Ok(Outcome::Unchanged) | Err(KnobError::Gone { .. }) if entry.with_channels => {}
            Ok(Outcome::Restored { lost }) => {
                report.restored.push((knob, entry.from.clone()));
                report.lost.extend(lost);
            }
            Ok(Outcome::Failed { error: KnobError::Gone { .. }, .. }) => report.gone.push(knob),
            Ok(Outcome::Failed { error, lost }) => {
                report.failed.push((knob, error));
                report.lost.extend(lost);
            }
            Ok(Outcome::Unchanged) => report.unchanged.push(knob),
            Ok(Outcome::LeftAlone(found)) => report.left_alone.push(LeftAlone {
                knob,
                found,
                ours: if entry.with_channels { Vec::new() } else { entry.ours.clone() },
                from: entry.from.clone(),
                keeper: None,
            }),
            Err(KnobError::Gone { .. }) => report.gone.push(knob),
            Err(error) => report.failed.push((knob, error)),
        }
    }
    report.anew = with_channels.is_some() && kernel.has_interrupts();
    report.moved_to = kernel.moved_to();
    report.deleted = kernel.deleted();
    if report.moved_to.is_some() {
        let dropped = report.left_alone.iter().position(LeftAlone::is_default_qdisc);
        report.dropped = dropped.map(|at| report.left_alone.remove(at));
        report.gone.extend(report.dropped.iter().map(|dropped| dropped.knob.clone()));
    }
    report
}

enum Outcome {
    /// `lost`: settings of other programs that the restore removed.
    Restored {
        lost: Vec<String>,
    },
    Failed {
        error: KnobError,
        lost: Vec<String>,
    },
    Unchanged,
    LeftAlone(Value),
}

/// Returns whether a previous rollback stopped in the middle of a qdisc tree.
fn is_put_back_in_part(found: &Value, from: &Value) -> bool {
    match (found, from) {
        (Value::Qdiscs(found), Value::Qdiscs(from)) => is_part_of(found, from),
        _ => false,
    }
}

/// Returns whether a knob has its previous value, limited to the queues that the interface still has.
fn is_restored(knob: &Knob, found: &Value, from: &Value) -> bool {
    match (found, from) {
        (Value::Qdiscs(found), Value::Qdiscs(from)) => {
            let possible = Value::Qdiscs(for_queues_of(found, from));
            let found_as_defaults = as_defaults(found, from);
            knob.same(&Value::Qdiscs(found.clone()), &possible)
                || found_as_defaults == for_queues_of(&found_as_defaults, from)
        }
        _ => knob.same(found, from),
    }
}

/// Returns the entries whose knobs a rollback would change, as far as this is known. Changes no knob.
pub(crate) fn would_be_restored<'e>(kernel: &mut dyn Kernel, entries: &'e [Entry]) -> Vec<&'e Entry> {
    relevant(entries).filter(|entry| is_left(kernel, entry)).collect()
}

/// Returns the entries without the settings of queues that the run cannot have changed. A run that died after
/// it journalled the queues and before it journalled the channels has not changed the channels.
fn relevant(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    let has_channels = entries.iter().any(Entry::is_channels);
    entries.iter().filter(move |entry| has_channels || !entry.with_channels)
}

fn is_left(kernel: &mut dyn Kernel, entry: &Entry) -> bool {
    match kernel.read(&entry.knob) {
        _ if entry.theirs => false,
        Ok(found) if is_restored(&entry.knob, &found, &entry.from) => false,
        Ok(found) => entry.is_ours(&found) || is_put_back_in_part(&found, &entry.from),
        Err(KnobError::Gone { .. }) => false,
        Err(_) => true,
    }
}

fn restore(kernel: &mut dyn Kernel, entry: &Entry) -> Result<Outcome, KnobError> {
    let found = kernel.read(&entry.knob)?;
    if is_restored(&entry.knob, &found, &entry.from) {
        return Ok(Outcome::Unchanged);
    }
    if entry.theirs || (!entry.is_ours(&found) && !is_put_back_in_part(&found, &entry.from)) {
        return Ok(Outcome::LeftAlone(found));
    }
    let lost = if entry.is_ours(&found) { lost_with(kernel, entry) } else { Vec::new() };
    let written = kernel.write(&entry.knob, &entry.from).and_then(|()| kernel.read(&entry.knob));
    let error = match written {
        Ok(now) if is_restored(&entry.knob, &now, &entry.from) => {
            kernel.after_restoring(&entry.knob);
            return Ok(Outcome::Restored { lost });
        }
        Ok(now) => KnobError::NotRestorable {
            what: format!("the value {}", entry.from),
            reason: match (&now, &entry.from) {
                (Value::Qdiscs(now), Value::Qdiscs(from)) => {
                    format!("the kernel accepted the tree, but shows {}", difference(now, from))
                }
                _ => format!("the kernel accepted the value, but shows {now}"),
            },
        },
        Err(error) => error,
    };
    let is_unchanged = kernel.read(&entry.knob).is_ok_and(|now| now == found);
    Ok(Outcome::Failed { error, lost: if is_unchanged { Vec::new() } else { lost } })
}

/// Returns the settings of other programs that the kernel removes with a knob's value.
fn lost_with(kernel: &mut dyn Kernel, entry: &Entry) -> Vec<String> {
    let Value::Qdiscs(from) = &entry.from else { return Vec::new() };
    let ours = entry.ours.iter().filter_map(|ours| match ours {
        Ours::These(values) => Some(values),
        _ => None,
    });
    let trees = ours.flatten().filter_map(|value| match value {
        Value::Qdiscs(tree) => Some(tree),
        _ => None,
    });
    let known: Vec<QdiscSnapshot> = trees.flatten().chain(from).cloned().collect();
    kernel.lost_with(&entry.knob, &known).unwrap_or_else(|error| vec![format!("unknown, because {error}")])
}

/// Returns the entries to journal before a rollback restores channels: from then on the driver may set
/// the settings of the queues to any value. Leaves out settings of other programs. Returns `None` if
/// the rollback will not restore channels.
fn with_channels(kernel: &mut dyn Kernel, entries: &[Entry]) -> Option<Vec<Entry>> {
    let mut is_ours = |entry: &Entry| match kernel.read(&entry.knob) {
        _ if entry.theirs => Some(false),
        Ok(found) if entry.knob.same(&found, &entry.from) => None,
        Ok(found) => Some(entry.is_ours(&found)),
        Err(KnobError::Gone { .. }) => None,
        Err(_) => Some(false),
    };
    if !entries.iter().filter(|entry| entry.is_channels()).any(|entry| is_ours(entry) == Some(true)) {
        return None;
    }
    let of_queues = entries.iter().filter(|entry| entry.knob.is_of_queues());
    let changing = of_queues.filter(|entry| is_ours(entry) != Some(false)).cloned();
    Some(changing.map(anything).collect())
}

fn anything(mut entry: Entry) -> Entry {
    if !entry.ours.contains(&Ours::Anything) {
        entry.ours.push(Ours::Anything);
    }
    entry
}

impl ApplyError {
    /// Gives [`Self::JournalStays`] the summary of a rollback before the end of the run, if no knob failed.
    /// Returns other errors unchanged.
    #[must_use]
    pub fn after(self, report: &Report, interface: &str) -> Self {
        match self {
            Self::JournalStays { source, .. } if report.is_settled() => {
                Self::JournalStays { rolled_back: report.summary(interface), source }
            }
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use evenkeel_model::change::{ClassHandle, Handle, QdiscSnapshot};

    fn qdisc(kind: &str, major: u16, parent: Handle) -> QdiscSnapshot {
        let handle = ClassHandle(Handle::new(major, 0));
        QdiscSnapshot { kind: kind.to_owned(), handle, parent: ClassHandle(parent), options: String::new() }
    }

    /// A kernel that refuses a write of a qdisc tree after `left` steps. The first step creates the root, and
    /// each further step creates a leaf.
    struct Cut {
        now: Vec<QdiscSnapshot>,
        left: usize,
    }

    impl Kernel for Cut {
        fn read(&mut self, _: &Knob) -> Result<Value, KnobError> {
            Ok(Value::Qdiscs(self.now.clone()))
        }

        fn lost_with(&mut self, _: &Knob, known: &[QdiscSnapshot]) -> Result<Vec<String>, KnobError> {
            let lost = self.now.iter().skip(1).filter(|part| !known.contains(part));
            Ok(lost.map(|part| part.kind.clone()).collect())
        }

        fn write(&mut self, _: &Knob, value: &Value) -> Result<(), KnobError> {
            let Value::Qdiscs(wanted) = value else { panic!("{value}") };
            for (number, part) in wanted.iter().enumerate() {
                if number == self.left {
                    return Err(KnobError::NotRestorable {
                        what: String::new(),
                        reason: "refused".to_owned(),
                    });
                }
                if part.is_root() {
                    // The new root has the kernel's default leaves.
                    let leaf = |below: &QdiscSnapshot| qdisc("pfifo_fast", 0, below.parent.0);
                    self.now = wanted[1..].iter().map(leaf).collect();
                    self.now.insert(0, part.clone());
                } else {
                    self.now[number] = part.clone();
                }
            }
            Ok(())
        }
    }

    fn entry() -> Entry {
        let leaf = |kind, major, minor| qdisc(kind, major, Handle::new(7, minor));
        let from = vec![qdisc("mq", 7, Handle::ROOT), leaf("fq", 2, 1), leaf("tbf", 3, 2)];
        let ours = Value::Qdiscs(vec![qdisc("htb", 0x4001, Handle::ROOT)]);
        Entry {
            knob: Knob::RootQdisc,
            from: Value::Qdiscs(from),
            ours: vec![Ours::These(vec![ours])],
            theirs: false,
            with_channels: false,
            service: false,
        }
    }

    #[test]
    fn a_tree_that_was_put_back_in_part_is_put_back_whole() {
        for left in 0..3 {
            let mut kernel = Cut { now: vec![qdisc("htb", 0x4001, Handle::ROOT)], left };
            for _ in 0..2 {
                let report = roll_back(&mut kernel, &[entry()], &mut |_| {});
                assert!(!report.is_settled(), "{left} of 3: {report:?}");
            }
            kernel.left = 3;
            let report = roll_back(&mut kernel, &[entry()], &mut |_| {});
            assert_eq!(report.restored.len(), 1, "{left} of 3: {report:?}");
            assert_eq!(Value::Qdiscs(kernel.now), entry().from);
        }
    }

    #[test]
    fn the_difference_of_a_restored_tree_is_named() {
        let Value::Qdiscs(from) = entry().from else { panic!() };
        let without_leaf = from[..2].to_vec();
        let more_leaf = [&from[..], &[qdisc("pfifo_fast", 0, Handle::new(7, 3))]].concat();
        let mut options = from.clone();
        options[1].options = "00".to_owned();
        let mut kind = from.clone();
        kind[2].kind = "sfq".to_owned();
        for (found, words) in [
            (without_leaf, "no tbf at 7:2"),
            (more_leaf, "pfifo_fast at 7:3, which the old tree does not have"),
            (options, "fq at 7:1 with other options"),
            (kind, "sfq at 7:2 instead of tbf"),
        ] {
            assert_eq!(difference(&found, &from), words);
        }
    }

    /// The journal contains the range before the run sets a value in the range.
    #[test]
    fn a_range_of_possible_values_is_not_said_to_have_been_set() {
        let value = |text: &str| Value::Text(text.to_owned());
        let left = |ours: Vec<Ours>| LeftAlone {
            knob: Knob::Sysctl("net/ipv4/tcp_limit_output_bytes".to_owned()),
            found: value("7"),
            ours,
            from: value("9"),
            keeper: None,
        };
        let range = left(vec![Ours::NumberBetween { least: 1, most: 555_555 }]).describe("x");
        assert!(range.contains("evenkeel may have set a value from 1 to 555555; "), "{range}");
        let one = left(vec![Ours::These(vec![value("8")])]).describe("x");
        assert!(one.contains("evenkeel had set '8'; "), "{one}");
    }

    #[test]
    fn only_leaves_of_other_programs_are_lost_with_a_root() {
        let tree = |leaf: &str, number| {
            vec![qdisc("mq", 0x4e00, Handle::ROOT), qdisc(leaf, number, Handle::new(0x4e00, 1))]
        };
        let own = tree("fq", 0x4e01);
        let mut entry = entry();
        entry.ours = vec![Ours::These(vec![Value::Qdiscs(own.clone())])];
        for (now, left, lost) in [
            (own.clone(), 3, &[][..]),
            (tree("sfq", 9), 3, &["sfq"]),
            // Nothing was written, so nothing is lost.
            (tree("sfq", 9), 0, &[]),
        ] {
            let report = roll_back(&mut Cut { now, left }, &[entry.clone()], &mut |_| {});
            assert_eq!(
                (report.lost.as_slice(), report.failed.is_empty()),
                (&lost.iter().map(ToString::to_string).collect::<Vec<_>>()[..], left > 0)
            );
        }
        // A previous rollback stopped after the first leaf of the original tree.
        let Value::Qdiscs(from) = &entry.from else { panic!() };
        let part = [&from[..2], &[qdisc("pfifo_fast", 0, Handle::new(7, 2))]].concat();
        let report = roll_back(&mut Cut { now: part, left: 3 }, &[entry.clone()], &mut |_| {});
        assert_eq!((report.lost, report.restored.len()), (Vec::<String>::new(), 1));
    }

    struct Values(Vec<(Knob, Value)>);

    impl Kernel for Values {
        fn read(&mut self, knob: &Knob) -> Result<Value, KnobError> {
            let found = self.0.iter().find(|(known, _)| known == knob).map(|(_, value)| value.clone());
            found.ok_or_else(|| KnobError::Gone { what: String::new() })
        }

        fn write(&mut self, knob: &Knob, value: &Value) -> Result<(), KnobError> {
            let known = self.0.iter_mut().find(|(known, _)| known == knob);
            known.unwrap().1 = value.clone();
            Ok(())
        }
    }

    /// A rollback was interrupted after it restored the channels, and before it restored the map of a queue.
    #[test]
    fn settings_of_queues_remain_after_the_channels_are_restored() {
        let map = Knob::InterfaceFile("queues/tx-1/xps_cpus".to_owned());
        let text = |text: &str| Value::Text(text.to_owned());
        let entry = |knob: Knob, from, ours, with_channels| Entry {
            knob,
            from,
            ours: vec![Ours::These(vec![ours])],
            with_channels,
            ..entry()
        };
        let channels = Knob::Channels(evenkeel_model::change::Channels::Combined);
        let of_map = entry(map.clone(), text("2"), text("0"), true);
        let entries = [entry(channels.clone(), Value::Number(4), Value::Number(2), false), of_map.clone()];
        let mut kernel = Values(vec![(channels, Value::Number(4)), (map, text("0"))]);
        assert_eq!(would_be_restored(&mut kernel, &entries), [&of_map]);
        // Without an entry of the channels, the run has not changed them.
        assert!(would_be_restored(&mut kernel, &entries[1..]).is_empty());
        assert_eq!(roll_back(&mut kernel, &entries, &mut |_| {}).restored.len(), 1);
        assert!(would_be_restored(&mut kernel, &entries).is_empty());
    }

    #[test]
    fn a_tree_that_another_program_made_of_it_is_left_alone() {
        let Value::Qdiscs(from) = entry().from else { panic!() };
        let other_leaf = [&from[..2], &[qdisc("sfq", 9, Handle::new(7, 2))]].concat();
        let other_root = [&[qdisc("mq", 8, Handle::ROOT)], &from[1..]].concat();
        for now in [other_leaf, other_root, vec![qdisc("pfifo_fast", 0, Handle::ROOT)]] {
            let mut kernel = Cut { now: now.clone(), left: 3 };
            let report = roll_back(&mut kernel, &[entry()], &mut |_| {});
            assert_eq!((report.left_alone.len(), kernel.now), (1, now));
        }
    }
}
