//! Putting back what a run changed, and nothing else.

use std::fmt;

use crate::error::KnobError;
use crate::journal::Entry;
use crate::kernel::Kernel;
use crate::knob::{Knob, Ours, Value};

/// A knob that somebody else changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// The knob.
    pub knob: Knob,
    /// Its value now, which stays.
    pub found: Value,
    /// What the run had given it.
    pub ours: Vec<Ours>,
    /// What it was before the run.
    pub from: Value,
}

/// What became of each knob.
#[derive(Debug, Default)]
pub struct Report {
    /// Put back, with the value.
    pub restored: Vec<(Knob, Value)>,
    /// Had their value from before already.
    pub unchanged: Vec<Knob>,
    /// Changed by somebody else since: left as they are.
    pub left_alone: Vec<LeftAlone>,
    /// Not there any more.
    pub gone: Vec<Knob>,
    /// Could not be put back.
    pub failed: Vec<(Knob, KnobError)>,
}

impl Report {
    /// Whether nothing is left to try: every knob is as it was, or as somebody else wants it, or gone.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.failed.is_empty()
    }

    /// What a person should know, a line for each knob that is not simply as it was before.
    #[must_use]
    pub fn remarks(&self, interface: &str) -> Vec<String> {
        let left = self.left_alone.iter().map(|left| left.describe(interface));
        let gone =
            self.gone.iter().map(|knob| format!("{} is gone: nothing to put back", knob.on(interface)));
        let failed = self
            .failed
            .iter()
            .map(|(knob, error)| format!("{} is not put back: {error}", knob.on(interface)));
        left.chain(gone).chain(failed).collect()
    }
}

impl LeftAlone {
    fn describe(&self, interface: &str) -> String {
        let ours: Vec<String> = self.ours.iter().map(ToString::to_string).collect();
        let by_how_much = match self.knob.difference(&self.found, &self.from) {
            Some(difference) => format!(" ({difference:+} from before)"),
            None => String::new(),
        };
        format!(
            "{} is left as somebody else set it since: {}{by_how_much}; evenkeel had set {}, and before it was {}",
            self.knob.on(interface),
            self.found,
            ours.join(" or "),
            self.from
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let restored = self.restored.len();
        let plural = if restored == 1 { "" } else { "s" };
        write!(formatter, "{restored} setting{plural} put back")?;
        for (count, what) in [
            (self.unchanged.len(), "as before already"),
            (self.left_alone.len(), "left as somebody else set them"),
            (self.gone.len(), "gone"),
            (self.failed.len(), "not put back"),
        ] {
            if count > 0 {
                write!(formatter, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// Puts every knob back, the last one first. It may be cut short anywhere and begun again.
pub fn roll_back(kernel: &mut dyn Kernel, entries: &[Entry]) -> Report {
    let mut report = Report::default();
    for entry in entries.iter().rev() {
        let knob = entry.knob.clone();
        match restore(kernel, entry) {
            Ok(Outcome::Restored) => report.restored.push((knob, entry.from.clone())),
            Ok(Outcome::Unchanged) => report.unchanged.push(knob),
            Ok(Outcome::LeftAlone(found)) => report.left_alone.push(LeftAlone {
                knob,
                found,
                ours: entry.ours.clone(),
                from: entry.from.clone(),
            }),
            Err(KnobError::Gone { .. }) => report.gone.push(knob),
            Err(error) => report.failed.push((knob, error)),
        }
    }
    report
}

enum Outcome {
    Restored,
    Unchanged,
    LeftAlone(Value),
}

fn restore(kernel: &mut dyn Kernel, entry: &Entry) -> Result<Outcome, KnobError> {
    let found = kernel.read(&entry.knob)?;
    if entry.knob.same(&found, &entry.from) {
        return Ok(Outcome::Unchanged);
    }
    if !entry.is_ours(&found) {
        return Ok(Outcome::LeftAlone(found));
    }
    kernel.write(&entry.knob, &entry.from)?;
    let found = kernel.read(&entry.knob)?;
    if entry.knob.same(&found, &entry.from) {
        kernel.after_restoring(&entry.knob);
        return Ok(Outcome::Restored);
    }
    Err(KnobError::NotRestorable {
        what: format!("the value {}", entry.from),
        reason: format!("the kernel took it and shows {found}"),
    })
}
