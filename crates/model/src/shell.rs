//! Builds shell lines from quoted words.
//!
//! Interface names, qdisc kinds and values come from the host and are not trusted. A [`Line`] is built only
//! from a template, which is part of the program, and from words, which are quoted. Lines are written for
//! POSIX sh (XCU 2.2, Quoting).

use std::fmt::{self, Display, Write};

use serde::{Serialize, Serializer};

use crate::text::{is_invisible, printable};

/// A line of a script: a command, or a comment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    text: String,
    is_command: bool,
    /// States which part of a change the command does not make; appended as a comment.
    remark: Option<String>,
}

/// Placeholder of a word in a template.
const PLACE: &str = "{}";

impl Line {
    /// Creates a command: each `{}` of the template is replaced by the next word, quoted. A word with a
    /// NUL or a final line feed cannot be written on a line. The line is then a comment that states the
    /// problem.
    #[must_use]
    pub fn new(template: &'static str, words: &[&dyn Display]) -> Self {
        Self { text: String::new(), is_command: true, remark: None }.with(template, words)
    }

    /// Appends text to the command, by a template as in [`Line::new`].
    #[must_use]
    pub fn with(mut self, template: &'static str, words: &[&dyn Display]) -> Self {
        debug_assert_eq!(template.matches(PLACE).count(), words.len(), "{template}");
        if !self.is_command {
            return self;
        }
        let mut parts = template.split(PLACE);
        self.text.push_str(parts.next().unwrap_or_default());
        for (part, word) in parts.zip(words) {
            let word = word.to_string();
            let Some(quoted) = quote(&word) else {
                return Self::comment(format_args!("no shell line can hold '{word}'"));
            };
            self.text.push_str(&quoted);
            self.text.push_str(part);
        }
        self
    }

    /// Appends an operand and options, by a template as in [`Line::new`]. An operand that begins with `-`
    /// would be an option (XBD 12.2, Guideline 10): the line then has the options first, and `--` before the
    /// operand.
    #[must_use]
    pub fn on(self, operand: &dyn Display, options: &'static str, words: &[&dyn Display]) -> Self {
        if operand.to_string().starts_with('-') {
            self.with(options, words).with(" -- {}", &[operand])
        } else {
            self.with(" {}", &[operand]).with(options, words)
        }
    }

    #[must_use]
    pub fn comment(text: impl Display) -> Self {
        let text = format!("# {}", printable(&text.to_string()));
        Self { text: text.trim_end().to_owned(), is_command: false, remark: None }
    }

    #[must_use]
    pub fn empty() -> Self {
        Self { text: String::new(), is_command: false, remark: None }
    }

    /// Creates the line that writes a text to a file in sysfs; a comment if the path contains `..`.
    #[must_use]
    pub fn write(text: &str, path: &str) -> Self {
        // A part `..` would escape the directory.
        if path.split('/').any(|part| part == "..") {
            return Self::comment(format_args!("{path}: '{text}'"));
        }
        // `echo` has options, and expands backslashes in some shells.
        let is_plain = !text.starts_with('-') && !text.contains('\\');
        let template = if is_plain { "echo {} > {}" } else { r"printf '%s\n' {} > {}" };
        Self::new(template, &[&text, &path])
    }

    /// Creates a line that runs this command, and runs `next` if this command succeeds. If one of them is a
    /// comment, the new line is a comment.
    #[must_use]
    pub fn and(mut self, next: Self) -> Self {
        if !self.is_command || !next.is_command {
            return Self::comment(format_args!("{self}; {next}"));
        }
        let _ = write!(self.text, " && {}", next.text);
        self.remark = self.remark.or(next.remark);
        self
    }

    #[must_use]
    pub fn remark(mut self, remark: impl Display) -> Self {
        self.remark = Some(printable(&remark.to_string()));
        self
    }

    /// Returns the command, or `None` for a comment, an empty line or a line with a remark.
    #[must_use]
    pub fn command(&self) -> Option<&str> {
        (self.is_command && self.remark.is_none()).then_some(self.text.as_str())
    }
}

impl Display for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)?;
        match &self.remark {
            Some(remark) => write!(formatter, "  # {remark}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PartialEq<&str> for Line {
    fn eq(&self, other: &&str) -> bool {
        let rest = other.strip_prefix(self.text.as_str());
        match &self.remark {
            Some(remark) => rest.and_then(|rest| rest.strip_prefix("  # ")) == Some(remark),
            None => rest == Some(""),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script(Vec<Line>);

impl Script {
    pub fn push(&mut self, line: Line) {
        self.0.push(line);
    }

    /// Adds a comment, on several lines if the text has line feeds; the caller must escape names.
    pub fn comment(&mut self, text: &str) {
        self.0.extend(text.lines().map(Line::comment));
    }

    pub fn extend(&mut self, lines: impl IntoIterator<Item = Line>) {
        self.0.extend(lines);
    }
}

impl IntoIterator for Script {
    type Item = Line;
    type IntoIter = std::vec::IntoIter<Line>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Display for Script {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(formatter, "{line}"))
    }
}

/// Returns a word quoted for a shell, or `None` if no quoted text can represent the word. Control characters
/// and other invisible characters become octal escapes of `printf`.
#[must_use]
pub fn quote(word: &str) -> Option<String> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "._-@/=:,+".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Some(word.to_owned());
    }
    if !word.contains(is_invisible) {
        return Some(format!("'{}'", word.replace('\'', r"'\''")));
    }
    // A command substitution removes final line feeds, and no argument can contain a NUL.
    if word.contains('\0') || word.ends_with('\n') {
        return None;
    }
    let mut format = String::new();
    let mut bytes = [0; 4];
    for (at, character) in word.chars().enumerate() {
        match character {
            '%' => format.push_str("%%"),
            '\\' => format.push_str(r"\\"),
            // A format that begins with `-` would be an option.
            '-' if at > 0 => format.push('-'),
            '\'' | '-' => push_octal(&mut format, character.encode_utf8(&mut bytes)),
            _ if is_invisible(character) => push_octal(&mut format, character.encode_utf8(&mut bytes)),
            _ => format.push(character),
        }
    }
    Some(format!(r#""$(printf '{format}')""#))
}

fn push_octal(text: &mut String, bytes: &str) {
    for byte in bytes.bytes() {
        // Writing to a string cannot fail.
        let _ = write!(text, r"\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_they_need() {
        for (word, quoted) in [
            ("eth0.7", "eth0.7"),
            ("", "''"),
            ("a;>PWN;", "'a;>PWN;'"),
            ("it's $(b)", r"'it'\''s $(b)'"),
            ("*", "'*'"),
            ("~root", "'~root'"),
            ("#", "'#'"),
            ("e\u{1b}[2J", r#""$(printf 'e\033[2J')""#),
            ("-n\n%\\'", r#""$(printf '\055n\012%%\\\047')""#),
            ("\u{202e}", r#""$(printf '\342\200\256')""#),
        ] {
            assert_eq!(Line::new("x {}", &[&word]), format!("x {quoted}").as_str());
        }
        for none in ["a\0b", "a\n"] {
            let line = Line::new("x {}", &[&none]);
            assert!(line.command().is_none() && line.to_string().starts_with("# "), "{line}");
            assert!(!line.to_string().contains(is_invisible), "{line}");
        }
    }

    #[test]
    fn an_operand_is_no_option() {
        let line = |name: &str| Line::new("x y", &[]).on(&name, " --apply {}", &[&"a b"]);
        assert_eq!(line("eth0"), "x y eth0 --apply 'a b'");
        assert_eq!(line("-x"), "x y --apply 'a b' -- -x");
        assert_eq!(Line::new("x", &[]).on(&"-x;", "", &[]), "x -- '-x;'");
    }

    #[test]
    fn comments_stay_comments() {
        let line = Line::comment("a\nreboot\r\u{1b}");
        assert_eq!(line, r"# a\nreboot\r\u001b");
        let line = Line::new("tc {}", &[&"x"]).remark("a\nreboot");
        assert_eq!(line, r"tc x  # a\nreboot");
        assert_eq!(line.command(), None, "it leaves something out");
        let both = Line::comment("no").and(Line::new("reboot", &[]));
        assert_eq!(both, "# # no; reboot");
        assert_eq!(Line::new("a", &[]).and(Line::new("b {}", &[&1])), "a && b 1");
    }

    #[test]
    fn files_are_written_as_they_are_meant() {
        assert_eq!(Line::write("3", "/sys/x"), "echo 3 > /sys/x");
        assert_eq!(Line::write("-n", "/sys/x"), r"printf '%s\n' -n > /sys/x");
        assert_eq!(Line::write(r"a\c", "/sys/x"), r"printf '%s\n' 'a\c' > /sys/x");
        assert_eq!(Line::write("3", "/sys/../etc/x"), "# /sys/../etc/x: '3'");
    }
}
