//! Commands of this program for the user to run.

use std::fmt::Display;

use evenkeel_model::shell::Line;

use crate::{Etc, StateDirectory};

/// Returns a command of this program, from a template as in [`Line::new`]. The command sets the
/// variables that name the directories of this process: otherwise it would look for the journal
/// elsewhere. An operand at the end of the template may begin with `-`.
#[must_use]
pub fn printed_command(template: &'static str, words: &[&dyn Display]) -> Line {
    let state = StateDirectory::is_named().then(|| StateDirectory::from_environment().path().to_owned());
    let mut line = Line::new("", &[]);
    if let Some(path) = state {
        line = line.with("EVENKEEL_STATE_DIR={} ", &[&path.to_string_lossy()]);
    }
    if let Some(path) = Etc::named() {
        line = line.with("EVENKEEL_ETC_DIR={} ", &[&path.to_string_lossy()]);
    }
    match (template.strip_suffix(" {}"), words.split_last()) {
        (Some(command), Some((operand, words))) => line.with(command, words).on(*operand, "", &[]),
        _ => line.with(template, words),
    }
}
