//! The layout of all terminal output: text, labelled lines, tables and shell lines that fit the
//! terminal.
//!
//! Text wraps between words and keeps its indent or label. A table first drops its least important
//! columns, then wraps its cells. A shell line never wraps, because readers copy it.

use evenkeel_model::text::printable;

use crate::format::{text_width, wrapped};
use crate::grid::{Cell, Column, Grid};
use crate::table::TableOptions;

#[derive(Clone, Copy, Debug)]
pub struct Heading {
    text: &'static str,
    importance: u32,
    is_text: bool,
}

impl Heading {
    #[must_use]
    pub const fn text(text: &'static str) -> Self {
        Self { text, importance: 0, is_text: true }
    }

    #[must_use]
    pub const fn number(text: &'static str) -> Self {
        Self { text, importance: 0, is_text: false }
    }

    /// Allows the table to drop the column. The table drops the column with the largest `importance` first.
    #[must_use]
    pub const fn dropped(self, importance: u32) -> Self {
        Self { importance, ..self }
    }
}

/// Emphasis on a terminal. A terminal without colours shows no emphasis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Strong,
    Good,
    Warning,
    Bad,
}

/// Prefixes of script comments that hold a command or a line of a file.
const COPIED: [&str; 5] = ["undo", "apply ", "to keep it stopped after a reboot: ", "tc ", FILE_LINE];
/// Prefix of a comment that holds a line of a file.
pub const FILE_LINE: &str = "| ";

#[derive(Clone, Debug)]
pub struct Page {
    text: String,
    options: TableOptions,
}

impl Page {
    #[must_use]
    pub fn new(options: TableOptions) -> Self {
        Self { text: String::new(), options }
    }

    /// Adds a line. Continuation lines are indented to the start of the line's text. The text starts
    /// after the first gap of two or more spaces, if the label before the gap takes at most half of the
    /// width. Otherwise, the text starts after the line's indentation.
    pub fn line(&mut self, line: &str) {
        let (label, text) = label_of(line, self.options.text_width());
        self.labelled(label, text);
    }

    pub fn lines(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(line));
    }

    /// Adds a label, including the spaces after it, and its text.
    pub fn labelled(&mut self, label: &str, text: &str) {
        self.toned(label, Tone::Plain, text);
    }

    pub fn toned(&mut self, label: &str, tone: Tone, text: &str) {
        let (label, text) = (plain(label), plain(text));
        let whole = format!("{label}{text}");
        let lines = if text_width(&whole) <= self.options.text_width() {
            format!("{}\n", whole.trim_end())
        } else {
            wrapped(&label, &text, self.options.text_width())
        };
        let word = label.trim();
        let styled = match tone {
            _ if word.is_empty() => None,
            Tone::Plain => None,
            Tone::Strong => Some(self.options.strong(word)),
            Tone::Good => Some(self.options.good(word)),
            Tone::Warning => Some(self.options.warning(word)),
            Tone::Bad => Some(self.options.bad(word)),
        };
        match styled {
            Some(styled) => self.text.push_str(&lines.replacen(word, &styled, 1)),
            None => self.text.push_str(&lines),
        }
    }

    pub fn answer(&mut self, text: &str) {
        for line in wrapped("", &plain(text), self.options.text_width()).lines() {
            self.text.push_str(&self.options.strong(line));
            self.text.push('\n');
        }
    }

    pub fn gap(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    pub fn heading(&mut self, text: &str) {
        self.gap();
        self.answer(text);
    }

    /// Adds a shell line, which is never wrapped.
    pub fn shell(&mut self, indent: usize, line: &str) {
        self.text.push_str(&" ".repeat(indent));
        self.text.push_str(&printable(line));
        self.text.push('\n');
    }

    /// Adds a script. Comments wrap as comments. Other lines do not wrap, nor do comments that readers
    /// copy.
    pub fn script(&mut self, script: &str) {
        for line in script.lines() {
            let is_copied =
                |comment: &str| COPIED.iter().any(|start| comment.trim_start().starts_with(start));
            let comment = line.strip_prefix('#').filter(|comment| !is_copied(comment));
            match comment {
                Some(comment) if !comment.trim().is_empty() => {
                    let width = self.options.text_width().saturating_sub(1);
                    let (label, text) = label_of(comment, width);
                    for line in wrapped(label, text, width).lines() {
                        self.text.push('#');
                        self.text.push_str(line);
                        self.text.push('\n');
                    }
                }
                _ => self.shell(0, line),
            }
        }
    }

    pub fn table(&mut self, columns: &[Heading], rows: &[Vec<String>]) {
        let columns = columns.iter().map(|heading| Column {
            heading: heading.text.to_owned(),
            importance: heading.importance,
            text: heading.is_text,
        });
        let cells = |row: &Vec<String>| row.iter().map(|cell| Cell::plain(plain(cell))).collect();
        let grid = Grid { columns: columns.collect(), rows: rows.iter().map(cells).collect() };
        self.text.push_str(&grid.draw(self.options).text);
    }

    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

/// Returns text on one line, with all terminal controls escaped.
fn plain(text: &str) -> String {
    printable(&text.replace(['\n', '\t'], " "))
}

/// Splits a line into its label, including the spaces after it, and its text.
fn label_of(line: &str, width: usize) -> (&str, &str) {
    let indent = line.len() - line.trim_start().len();
    let second = line[indent..].find("  ").map(|at| {
        let from = indent + at;
        line.len() - line[from..].trim_start().len()
    });
    let is_short = |at: &usize| text_width(&line[..*at]) <= width / 2;
    let at = second.filter(is_short).unwrap_or(indent);
    line.split_at(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(width: usize, colour: bool) -> Page {
        Page::new(TableOptions { width: Some(width), colour })
    }

    #[test]
    fn text_follows_its_label_or_its_indent() {
        let mut shown = page(24, false);
        shown.line("  costs   one two three four five");
        shown.line("  plain text that is rather long");
        assert_eq!(
            shown.finish(),
            "  costs   one two three\n          four five\n  plain text that is\n  rather long\n"
        );
    }

    #[test]
    fn a_shell_line_stays_whole_and_a_comment_stays_a_comment() {
        let mut shown = page(20, false);
        let copied = "ethtool -L eth0 combined 16 rx 4\n# undo: ethtool -L eth0 combined 4\n\
                      # undo, after the channels: tc qdisc\n# apply only gro-off: evenkeel tune eth0 --apply gro-off\n\
                      #   | ExecStart=/usr/sbin/ethtool -L eth0 combined 16\n";
        shown.script(&format!("# a comment of some length\n{copied}"));
        assert_eq!(shown.finish(), format!("# a comment of some\n# length\n{copied}"));
    }

    #[test]
    fn no_line_but_a_shell_line_is_longer_than_the_terminal() {
        let word = "/sys/class/net/eth0/queues/rx-0/rps_cpus".repeat(3);
        for width in 20..60 {
            let mut shown = page(width, false);
            shown.line(&format!("    label  {word} and more text"));
            shown.table(
                &[Heading::text("name"), Heading::number("packets").dropped(1), Heading::text("why")],
                &[vec!["one".into(), "12".into(), "a reason that takes some room ".repeat(4)]],
            );
            let text = shown.finish();
            assert!(text.lines().all(|line| text_width(line) <= width), "{width}\n{text}");
        }
    }

    #[test]
    fn a_tone_adds_nothing_but_colour() {
        let draw = |colour| {
            let mut shown = page(40, colour);
            shown.toned("HIGH  ", Tone::Bad, "something");
            shown.finish()
        };
        assert_eq!(draw(false), "HIGH  something\n");
        assert_eq!(draw(true), "\u{1b}[1;31mHIGH\u{1b}[0m  something\n");
    }
}
