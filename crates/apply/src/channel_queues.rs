//! Settings of queues that a change of the number of channels resets.
//!
//! When the number of channels shrinks, the kernel frees the maps of the removed queues
//! (`netif_reset_xps_queues_gt`, `rx_queue_release` in net/core). An added queue has the driver's
//! defaults. Some drivers also reset the other queues. So a change of the channels journals these
//! settings first, in one write:
//!
//! ```text
//!   journal: any value is ours ─▶ change the channels ─▶ journal: the values found now are ours
//!   rollback: journal: any value is ours ─▶ restore the channels ─▶ restore the settings
//! ```
//!
//! Between the two journal writes, every new value counts as the driver's. A value that another program
//! sets at any other time is neither *from* nor *ours*, so rollback keeps it.

use evenkeel_model::change::{Knob, Value};

use crate::error::{ApplyError, KnobError};
use crate::journal::{Entry, fold};
use crate::kernel::Kernel;
use crate::ours::Ours;
use crate::run::Run;
use crate::storage::Storage;

/// Reads the settings of all queues, and the RSS table. Skips a setting that cannot be read.
fn queue_settings(kernel: &mut dyn Kernel) -> Vec<(Knob, Value)> {
    /// More queues than an interface can have (`TC_H_MIN`).
    const MOST: usize = 1 << 16;
    let mut found = Vec::new();
    for of_queue in [Knob::of_receive_queue, Knob::of_transmit_queue] {
        for queue in 0..MOST {
            let before = found.len();
            found.extend(of_queue(queue).into_iter().filter_map(|knob| read(kernel, knob)));
            if found.len() == before {
                break;
            }
        }
    }
    found.extend(read(kernel, Knob::RssTable));
    found
}

fn read(kernel: &mut dyn Kernel, knob: Knob) -> Option<(Knob, Value)> {
    let value = kernel.read(&knob).ok()?;
    Some((knob, value))
}

/// Returns the values that a setting may have on a queue that the kernel adds, if the driver sets no value.
/// Returns no values if they are unknown.
fn fresh(knob: &Knob) -> Vec<Ours> {
    match knob {
        Knob::InterfaceFile(file) if !file.contains("byte_queue_limits") => {
            vec![Ours::These(vec![Value::Text("0".to_owned())])]
        }
        _ => Vec::new(),
    }
}

impl<K: Kernel, S: Storage> Run<K, S> {
    /// Journals the settings that a change of the channels may reset. Call this function before the
    /// change.
    pub(crate) fn journal_queues(&mut self) -> Result<(), ApplyError> {
        let found = queue_settings(&mut self.kernel);
        // Settings of removed queues: the change may add these queues again.
        let is_gone = |entry: &&Entry| !found.iter().any(|(knob, _)| *knob == entry.knob);
        let known = self.entries.iter().filter(|entry| entry.with_channels && !entry.theirs);
        let again = known.filter(is_gone).map(|entry| Entry { ours: vec![Ours::Anything], ..entry.clone() });
        let mut entries: Vec<Entry> = again.collect();
        for (knob, found) in found {
            let known = self.entry(&knob);
            let from = match known {
                // The run itself has set this setting, or another program has: the existing entry stays
                // valid.
                Some(known) if !known.with_channels || known.theirs => continue,
                Some(known) if known.allows(&found) => known.from.clone(),
                // There is no entry yet, or another program has set the present value.
                _ => found,
            };
            entries.push(Entry {
                knob,
                from,
                ours: vec![Ours::Anything],
                theirs: false,
                with_channels: true,
                service: self.by_service,
            });
        }
        self.journal_all(entries)
    }

    /// Restores the settings if the number of channels is as before the run, and journals the values
    /// found. Call this function after a change of the channels. Ignores errors: the journal then still
    /// allows any value.
    pub(crate) fn settle_queues(&mut self) {
        let entries: Vec<Entry> =
            self.entries().iter().filter(|entry| entry.knob.is_of_queues()).cloned().collect();
        if self.channels_are_back() {
            for Entry { knob, from, .. } in
                entries.iter().filter(|entry| entry.with_channels && !entry.theirs)
            {
                if self.kernel.read(knob).is_ok_and(|found| !knob.same(&found, from)) {
                    let _ = self.kernel.write(knob, from);
                }
            }
        }
        let mut settled = Vec::new();
        for entry in entries {
            let ours = match self.kernel.read(&entry.knob) {
                Ok(found) if entry.knob.same(&found, &entry.from) => Vec::new(),
                Ok(found) => vec![Ours::These(vec![found])],
                Err(KnobError::Gone { .. }) => fresh(&entry.knob),
                Err(_) => continue,
            };
            if !entry.with_channels {
                self.last_set.remove(&entry.knob);
                if ours.is_empty() || ours.iter().all(|ours| entry.ours.contains(ours)) {
                    continue;
                }
            }
            settled.push(Entry { ours, ..entry });
        }
        let _ = self.journal_all(settled);
    }

    fn channels_are_back(&mut self) -> bool {
        let mut channels = self.entries.iter().filter(|entry| entry.is_channels());
        channels.all(|entry| {
            self.kernel.read(&entry.knob).is_ok_and(|found| entry.knob.same(&found, &entry.from))
        })
    }

    fn journal_all(&mut self, entries: Vec<Entry>) -> Result<(), ApplyError> {
        let mut lines = Vec::new();
        for entry in entries {
            // As in `journal_entry`, a line repeats everything known about the knob.
            let mut whole: Vec<Entry> = self.entry(&entry.knob).cloned().into_iter().collect();
            fold(&mut whole, entry);
            lines.append(&mut whole);
        }
        if let Some(storage) = self.storage.as_mut()
            && !lines.is_empty()
        {
            storage.append_all(&lines)?;
        }
        lines.into_iter().for_each(|line| fold(&mut self.entries, line));
        Ok(())
    }
}
