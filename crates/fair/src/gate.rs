//! The gate between the controller and the journal.
//!
//! The controller sets weights and sizes whenever flows start or end. Each setting has one journal
//! entry with all its possible values. The journal restores the setting, because only the journal
//! detects whether another program has changed it. The gate refuses a value that is not in the journal,
//! because the journal could not restore the setting. A class of Evenkeel's own root qdisc has no entry:
//! the journal contains the root as a whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_apply::{Entry, Knob, Ours, Run, Value};
use evenkeel_control::{ControlError, Gate, Setting};
use evenkeel_netlink::GsoSizes;

use crate::error::FairError;

pub(crate) const OUTPUT_LIMIT: &str = "net/ipv4/tcp_limit_output_bytes";

pub(crate) fn max_rate_knob(queue: u32) -> Knob {
    Knob::InterfaceFile(format!("queues/tx-{queue}/tx_maxrate"))
}

pub(crate) fn sizes(GsoSizes { all, ipv4 }: GsoSizes) -> Value {
    Value::Sizes { all, ipv4 }
}

#[derive(Default)]
pub(crate) struct JournalGate {
    settings: Mutex<BTreeMap<Knob, Passage>>,
    /// Major numbers of Evenkeel's own root qdiscs, which are created and removed with their classes.
    roots: Mutex<Vec<u16>>,
}

struct Passage {
    entry: Entry,
    /// The value that the controller last set, at first the original value; `None` if unknown.
    last: Option<Value>,
}

/// Blocks the controller's writes, except of class quanta, until this value is dropped.
pub(crate) struct Stopped<'a> {
    _settings: MutexGuard<'a, BTreeMap<Knob, Passage>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JournalGate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds to the journal every value of a knob that the controller may set, and admits these values.
    pub(crate) fn admit(&self, run: &mut Run, knob: &Knob, ours: Ours) -> Result<(), FairError> {
        run.allow(knob, ours)?;
        if let Some(entry) = run.entries().iter().find(|entry| entry.knob == *knob) {
            let passage = Passage { entry: entry.clone(), last: Some(entry.from.clone()) };
            lock(&self.settings).insert(knob.clone(), passage);
        }
        Ok(())
    }

    /// Admits the classes below Evenkeel's own roots; the journal contains each root as a whole.
    pub(crate) fn admit_classes(&self, run: &Run) {
        let roots = run.entries().iter().filter(|entry| entry.knob == Knob::RootQdisc);
        let values = roots.flat_map(|entry| &entry.ours).filter_map(|ours| match ours {
            Ours::These(values) => Some(values),
            _ => None,
        });
        let majors = values.flatten().filter_map(|value| match value {
            Value::Qdiscs(tree) => tree.first().map(|root| root.handle.0.major),
            _ => None,
        });
        lock(&self.roots).extend(majors);
    }

    /// Blocks the controller's writes, except of class quanta. Passes the controller's last values to the
    /// run, so that the run recognizes them as its own.
    pub(crate) fn stop(&self, run: &mut Run) -> Stopped<'_> {
        let settings = lock(&self.settings);
        for (knob, passage) in settings.iter() {
            run.has_set(knob, passage.last.clone());
        }
        Stopped { _settings: settings }
    }
}

/// Returns the journal's knob and value; `None` for a setting without its own entry.
fn journalled(setting: Setting) -> Option<(Knob, Value)> {
    match setting {
        Setting::SegmentSizes(found) => Some((Knob::GsoSizes, sizes(found))),
        Setting::OutputLimit(bytes) => {
            Some((Knob::Sysctl(OUTPUT_LIMIT.to_owned()), Value::Text(bytes.to_string())))
        }
        Setting::QueueWeight { queue, weight } => Some((Knob::QueueWeight(queue), Value::Weight(weight))),
        Setting::HighestRate { queue, megabits } => {
            Some((max_rate_knob(queue), Value::Text(megabits.to_string())))
        }
        Setting::ClassQuantum { .. } => None,
    }
}

impl Gate for JournalGate {
    fn pass(
        &self,
        setting: Setting,
        write: &mut dyn FnMut() -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let refused = Err(ControlError::Refused { setting });
        if let Setting::ClassQuantum { class, .. } = setting {
            return if lock(&self.roots).contains(&class.major) { write() } else { refused };
        }
        let Some((knob, value)) = journalled(setting) else { return refused };
        // Hold the lock during the write, so that a check sees the setting either before or after the
        // write.
        let mut settings = lock(&self.settings);
        let Some(passage) = settings.get_mut(&knob).filter(|passage| passage.entry.allows(&value)) else {
            return refused;
        };
        let before = passage.last.take();
        match write() {
            Ok(()) => passage.last = Some(value),
            // The setting had another program's value, so the controller wrote nothing.
            Err(error @ ControlError::SetByOthers { .. }) => {
                passage.last = before;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
impl JournalGate {
    pub(crate) fn with(knobs: impl IntoIterator<Item = (Knob, Value, Ours)>) -> Arc<Self> {
        let gate = Self::new();
        for (knob, from, ours) in knobs {
            let entry = Entry {
                knob: knob.clone(),
                from,
                ours: vec![ours],
                theirs: false,
                with_channels: false,
                service: false,
            };
            lock(&gate.settings).insert(knob, Passage { entry, last: None });
        }
        gate
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_netlink::tc::Handle;

    fn gate_with(knob: Knob, from: Value, ours: Ours) -> Arc<JournalGate> {
        JournalGate::with([(knob, from, ours)])
    }

    fn passes(gate: &JournalGate, setting: Setting) -> bool {
        let mut written = false;
        let result = gate.pass(setting, &mut || {
            written = true;
            Ok(())
        });
        assert_eq!(result.is_ok(), written, "{result:?}");
        written
    }

    #[test]
    fn a_value_that_the_journal_lacks_is_not_written() {
        let size = |all| GsoSizes { all, ipv4: all };
        let ours = Ours::These(vec![sizes(size(16_384))]);
        let gate = gate_with(Knob::GsoSizes, sizes(size(65_536)), ours);
        assert!(passes(&gate, Setting::SegmentSizes(size(16_384))));
        assert!(passes(&gate, Setting::SegmentSizes(size(65_536))), "what it was before");
        assert!(!passes(&gate, Setting::SegmentSizes(size(24_576))));
        for other in [
            Setting::OutputLimit(1),
            Setting::QueueWeight { queue: 0, weight: Some(1) },
            Setting::HighestRate { queue: 0, megabits: 1 },
            Setting::ClassQuantum { class: Handle::new(1, 0x10), bytes: 1 },
        ] {
            assert!(!passes(&gate, other), "{other} is not in the journal at all");
        }
    }

    #[test]
    fn weights_pass_within_their_range_and_classes_below_our_root() {
        let range = Ours::NumberBetween { least: 1, most: 9 };
        let gate = gate_with(Knob::QueueWeight(1), Value::Weight(None), range);
        for (queue, weight, is_let) in
            [(1, Some(9), true), (1, None, true), (1, Some(10), false), (2, Some(1), false)]
        {
            assert_eq!(passes(&gate, Setting::QueueWeight { queue, weight }), is_let, "{queue} {weight:?}");
        }
        lock(&gate.roots).push(0x4001);
        assert!(passes(&gate, Setting::ClassQuantum { class: Handle::new(0x4001, 0x10), bytes: 1 }));
        assert!(!passes(&gate, Setting::ClassQuantum { class: Handle::new(1, 0x10), bytes: 1 }));
    }

    #[test]
    fn a_write_that_fails_leaves_the_value_unknown_and_a_strangers_value_stays_a_strangers() {
        let limit = Knob::Sysctl(OUTPUT_LIMIT.to_owned());
        let text = |text: &str| Value::Text(text.to_owned());
        let gate = gate_with(limit.clone(), text("100"), Ours::NumberBetween { least: 1, most: 100 });
        let last = || lock(&gate.settings)[&limit].last.clone();
        assert!(passes(&gate, Setting::OutputLimit(50)));
        assert_eq!(last(), Some(text("50")));
        let foreign = || ControlError::SetByOthers { what: String::new(), found: String::new() };
        gate.pass(Setting::OutputLimit(60), &mut || Err(foreign())).unwrap_err();
        assert_eq!(last(), Some(text("50")));
        let failed = || ControlError::ReadBack { what: String::new(), set: 60, found: String::new() };
        gate.pass(Setting::OutputLimit(60), &mut || Err(failed())).unwrap_err();
        assert_eq!(last(), None);
    }
}
