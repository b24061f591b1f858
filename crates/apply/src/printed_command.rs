//! Commands of this program for the user to run.

use std::fmt::Display;

use evenkeel_model::shell::Line;

use crate::{Etc, StateDirectory};

/// Returns a command of this program, from a template as in [`Line::new`]. The command sets the
/// variables that name the directories of this process: otherwise it would look for the journal
/// elsewhere. An operand at the end of the template may begin with `-`.
#[must_use]
pub fn printed_command(template: &'static str, words: &[&dyn Display]) -> Line {
    let line = directories();
    match (template.strip_suffix(" {}"), words.split_last()) {
        (Some(command), Some((operand, words))) => line.with(command, words).on(*operand, "", &[]),
        _ => line.with(template, words),
    }
}

/// Returns the advice of a rule, with the variables of [`printed_command`] before each command. The rules
/// themselves do not know the directories.
#[must_use]
pub fn printed_advice(advice: &str) -> String {
    with_directories(advice, &directories().to_string())
}

/// Adds the directories to each command in backticks. A text of two words, such as `evenkeel steer`, only
/// names a command.
fn with_directories(advice: &str, directories: &str) -> String {
    let is_command = |part: &&str| part.starts_with("evenkeel ") && part.split(' ').count() > 2;
    let parts = advice.split('`').enumerate().map(|(at, part)| match Some(part).filter(is_command) {
        Some(command) if at % 2 == 1 => format!("{directories}{command}"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Returns the beginning of a command: the variables that name the directories of this process.
fn directories() -> Line {
    let state = StateDirectory::is_named().then(|| StateDirectory::from_environment().path().to_owned());
    let mut line = Line::new("", &[]);
    if let Some(path) = state {
        line = line.with("EVENKEEL_STATE_DIR={} ", &[&path.to_string_lossy()]);
    }
    if let Some(path) = Etc::named() {
        line = line.with("EVENKEEL_ETC_DIR={} ", &[&path.to_string_lossy()]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advice_has_the_directories_before_its_commands() {
        let advice =
            "`evenkeel steer eth0` or `ip link`: `evenkeel steer` puts flows on queues; `evenkeel fair eth0`";
        assert_eq!(
            with_directories(advice, "A=b "),
            "`A=b evenkeel steer eth0` or `ip link`: `evenkeel steer` puts flows on queues; `A=b evenkeel fair eth0`"
        );
        assert_eq!(with_directories("evenkeel steer eth0 is text", "A=b "), "evenkeel steer eth0 is text");
    }
}
