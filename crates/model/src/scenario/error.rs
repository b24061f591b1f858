//! The error of reading a scenario: position, problem, remedy.

use crate::text::{excerpt, printable};

/// The reason why the text of a scenario, a policy or another TOML file is invalid.
///
/// Displays as one line: `scenarios/x.toml:12:7: link.queuess: unknown key; did you mean 'queues'? known
/// keys: rate, mtu, queues, topology, priorities`. Text from the file is shortened, without control
/// characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {}{problem}{}", printable(.origin), prefix(.key), suffix(.advice))]
pub struct ScenarioError {
    pub kind: ScenarioErrorKind,
    /// Name of the file, as the caller gave it.
    pub origin: String,
    /// From 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Path of the key, such as `link.queues`; empty if the error does not concern a single key.
    pub key: String,
    pub problem: String,
    /// May be empty.
    pub advice: String,
}

fn prefix(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!("{key}: ") }
}

fn suffix(advice: &str) -> String {
    if advice.is_empty() { String::new() } else { format!("; {advice}") }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScenarioErrorKind {
    /// Not TOML, not UTF-8, or too large to be a scenario.
    Syntax,
    /// Another version of the format.
    Schema,
    UnknownKey,
    MissingKey,
    /// A value of the wrong type, such as a number without a unit.
    WrongType,
    /// An impossible value, or a value that contradicts another value.
    BadValue,
    /// An unknown name, for example of a variant, a metric, a rule or a setting.
    UnknownName,
    Duplicate,
    /// Variants whose bases form a cycle.
    Cycle,
}

/// Returns one key of a path in the file's notation, shortened.
pub(super) fn key_segment(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if bare { excerpt(key) } else { format!("\"{}\"", excerpt(key)) }
}

/// Returns line and column of a byte offset, both from 1. Columns are counted in characters, without a
/// byte order mark at the start of the text, because editors hide the mark.
pub(super) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let in_line = &before[start..];
    let in_line = in_line.strip_prefix("\u{feff}".as_bytes()).filter(|_| start == 0).unwrap_or(in_line);
    // Count characters by their first bytes, because an offset may be inside a character.
    let column = in_line.iter().filter(|byte| **byte & 0b1100_0000 != 0b1000_0000).count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        assert_eq!(line_and_column("", 0), (1, 1));
        assert_eq!(line_and_column("a = 1\n", 6), (2, 1));
        assert_eq!(line_and_column("x = 1\r\nµ = 'ä', b", "x = 1\r\nµ = 'ä', ".len()), (2, 10));
        assert_eq!(line_and_column("\u{feff}a", 3), (1, 1));
        assert_eq!(line_and_column("ab", 99), (1, 3));
    }

    #[test]
    fn paths_are_written_as_in_the_file() {
        assert_eq!(key_segment("xps-pool"), "xps-pool");
        assert_eq!(key_segment("dqa+dqwa"), "\"dqa+dqwa\"");
        assert_eq!(key_segment(""), "\"\"");
        assert_eq!(key_segment("a\u{7}b"), "\"a\\u0007b\"");
    }
}
