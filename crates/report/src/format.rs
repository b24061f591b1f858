//! Formats numbers and text for a terminal.

use evenkeel_model::record::Record;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns `value` with three significant digits, at most `decimals` decimals, and all digits of its integer
/// part: 1.88, 52.1, 912, 3881. A value below 1 has `decimals` decimals: 0.002. If `decimals` is above 3, a
/// value below 10 also has `decimals` decimals.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    let whole_digits = match value.abs() {
        below if below < 9.995 => 1,
        below if below < 99.95 => 2,
        _ => 3,
    };
    // Values below 1 use all decimals: a leading 0 is not a significant digit.
    let wanted = if value.abs() < 0.9995 { decimals } else { 3 - whole_digits };
    let text = if decimals > 3 && value.abs() < 9.995 {
        format!("{value:.decimals$}")
    } else {
        format!("{value:.0$}", wanted.min(decimals))
    };
    match text.strip_prefix('-') {
        Some(rest) if rest.bytes().all(|byte| matches!(byte, b'0' | b'.')) => rest.to_owned(),
        _ => text,
    }
}

/// Returns `value` as [`number`] does with 3 decimals, without trailing zeros: 2, 0.05, 2.5.
pub(crate) fn short(value: f64) -> String {
    trimmed(number(value, 3))
}

pub(crate) fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Returns a share in per cent, without the unit. A share below 1 is not rounded to 100, if 9 decimals
/// suffice: 99.97. A share that is nearer to 1 differs from 1 only by the rounding of its parts.
pub(crate) fn percent(share: f64, decimals: usize) -> String {
    let value = share * 100.0;
    let text = trimmed(number(value, decimals));
    if share.abs() >= 1.0 || !matches!(text.as_str(), "100" | "-100") {
        return text;
    }
    let longer = (1..=9).map(|decimals| format!("{value:.decimals$}"));
    longer.into_iter().find(|longer| !longer.contains("100")).unwrap_or(text)
}

/// Adds a plus sign to a positive number, unless the number is displayed as 0.
pub(crate) fn signed(text: String) -> String {
    if text.starts_with('-') || text.bytes().all(|byte| matches!(byte, b'0' | b'.')) {
        text
    } else {
        format!("+{text}")
    }
}

pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn rate(bits_per_second: u64) -> String {
    let value = bits_per_second as f64;
    match bits_per_second {
        0..1_000 => format!("{bits_per_second} bit/s"),
        1_000..1_000_000 => format!("{} kbit/s", short(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} Mbit/s", short(value / 1e6)),
        _ => format!("{} Gbit/s", short(value / 1e9)),
    }
}

/// Returns a kernel release without the builder's suffix: `6.18.44` of `6.18.44-custom-17`, `6.8.0-45` of
/// `6.8.0-45-generic`.
pub(crate) fn kernel(release: &str) -> String {
    let is_version = |part: &&str| part.starts_with(|c: char| c.is_ascii_digit()) || part.starts_with("rc");
    let mut parts = release.split('-');
    let first = parts.next().unwrap_or_default();
    let kept: Vec<&str> = std::iter::once(first).chain(parts.take_while(is_version)).collect();
    kept.join("-")
}

/// Returns the number of repeats: `5 repeats`, or `4 to 5 repeats` if a variant has fewer.
pub(crate) fn repeats(record: &Record) -> String {
    let numbers = || record.variants.iter().map(|variant| variant.repeats.len());
    match (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0)) {
        (1, 1) => "1 repeat".to_owned(),
        (least, most) if least == most => format!("{most} repeats"),
        (least, most) => format!("{least} to {most} repeats"),
    }
}

pub(crate) fn seconds(value: f64) -> String {
    match value.abs() {
        0.0 => "0 s".to_owned(),
        below if below < 1e-6 => format!("{} ns", short(value * 1e9)),
        below if below < 1e-3 => format!("{} µs", short(value * 1e6)),
        below if below < 1.0 => format!("{} ms", short(value * 1e3)),
        _ => format!("{} s", short(value)),
    }
}

/// Returns `text` on one line, without control characters. Text from another host's record must not
/// control the terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\n' | '\t' => ' ',
            // Also replace bidirectional controls, which can disguise text.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            other if other.is_control() => '\u{fffd}',
            other => other,
        })
        .collect()
}

pub(crate) fn text_width(text: &str) -> usize {
    text.width()
}

/// Returns the width of a text, or some width above `limit` if the text is wider. This bounds the time,
/// because a very long word is measured once per line.
fn width_up_to(text: &str, limit: usize) -> usize {
    let mut width = 0;
    for character in text.chars() {
        width += character.width().unwrap_or(0);
        if width > limit {
            break;
        }
    }
    width
}

/// Returns `text`, cleaned and wrapped to `width` between words. The first line starts with `indent`,
/// further lines with spaces of the same width. A word longer than a line breaks after a punctuation mark
/// if possible. A command in backquotes never breaks, nor does a command in parentheses that fits one line.
#[must_use]
pub fn wrapped(indent: &str, text: &str, width: usize) -> String {
    /// Minimum width for text. If the indent leaves less, further lines are indented by 2.
    const LEAST_ROOM: usize = 12;
    let hang = Some(text_width(indent)).filter(|hang| hang + LEAST_ROOM <= width).unwrap_or(2);
    let hanging = " ".repeat(hang);
    let mut result = String::new();
    let mut line = indent.to_owned();
    let mut line_has_word = false;
    let mut end_line = |line: &mut String| {
        result.push_str(line.trim_end());
        result.push('\n');
        line.clone_from(&hanging);
    };
    let text = joined_commands(&clean(text), width.saturating_sub(hang));
    // Search a word for a command only once, because a very long word breaks into many lines.
    let mut words: Vec<(&str, bool)> =
        text.split_whitespace().rev().map(|word| (word, word.contains(JOINT))).collect();
    while let Some((word, is_command)) = words.pop() {
        let word_width = width_up_to(word, width);
        let needed = text_width(&line) + usize::from(line_has_word) + word_width;
        if line_has_word && needed > width {
            end_line(&mut line);
            line_has_word = false;
        }
        let room = width.saturating_sub(text_width(&line));
        if !line_has_word && word_width > room && room >= LEAST_ROOM && !is_command {
            let (first, rest) = word.split_at(break_of(word, room));
            line.push_str(first);
            end_line(&mut line);
            words.push((rest, is_command));
            continue;
        }
        if !line_has_word && word_width > room && !line.trim().is_empty() {
            // A label that leaves no space for text is on its own line.
            end_line(&mut line);
            words.push((word, is_command));
            continue;
        }
        if line_has_word {
            line.push(' ');
        }
        line.push_str(word);
        line_has_word = true;
    }
    end_line(&mut line);
    result.replace(JOINT, " ")
}

/// A placeholder for a space at which a line must not break. It is in Unicode's private use area.
const JOINT: char = '\u{e000}';

/// Replaces the spaces of commands by [`JOINT`], because users copy a command from one line. Commands are in
/// backquotes, or in parentheses if they fit one line.
fn joined_commands(text: &str, room: usize) -> String {
    /// A printed command may begin with environment variables of this process, such as `EVENKEEL_STATE_DIR`.
    const BEGINNINGS: [&str; 7] =
        ["EVENKEEL_", "ethtool ", "evenkeel ", "ip ", "sysctl ", "systemctl ", "tc "];
    let mut joined = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find(['`', '(']) {
        let (before, from) = rest.split_at(open);
        joined.push_str(before);
        // Parentheses may also contain prose, so search only one line's length for their end.
        let (close, most) = if from.starts_with('`') { ('`', usize::MAX) } else { (')', room) };
        let end = from.char_indices().skip(1).take(most).find(|(_, letter)| *letter == close);
        let end = end.map(|(at, _)| at + 1);
        let is_command = |command: &&str| {
            let is_short = || most == usize::MAX || text_width(command) < most;
            BEGINNINGS.iter().any(|start| command[1..].starts_with(start)) && is_short()
        };
        match end.map(|end| &from[..end]).filter(is_command) {
            Some(command) => {
                joined.extend(command.chars().map(|letter| if letter == ' ' { JOINT } else { letter }));
                rest = &from[command.len()..];
            }
            None => {
                joined.push_str(&from[..1]);
                rest = &from[1..];
            }
        }
    }
    joined.push_str(rest);
    joined
}

/// Returns where to break a word that is wider than `room`: after its last punctuation mark that fits,
/// otherwise after its last character that fits.
fn break_of(word: &str, room: usize) -> usize {
    let mut width = 0;
    let mut last_mark = None;
    let mut end = 0;
    for (at, character) in word.char_indices() {
        width += character.width().unwrap_or(0);
        if width > room {
            break;
        }
        end = at + character.len_utf8();
        if matches!(character, '/' | ',' | ';' | ':' | '_' | '-' | '.') {
            last_mark = Some(end);
        }
    }
    let first = word.chars().next().map_or(0, char::len_utf8);
    last_mark.unwrap_or(end).max(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_matter() {
        for (value, decimals, expected) in [
            (1.8836, 3, "1.88"),
            (9.996, 3, "10.0"),
            (52.13, 3, "52.1"),
            (99.97, 3, "100"),
            (912.4, 3, "912"),
            (3881.2, 3, "3881"),
            (0.0021, 3, "0.002"),
            (0.99964, 3, "1.00"),
            (0.0, 3, "0.000"),
            (-0.0001, 3, "0.000"),
            (-0.25, 3, "-0.250"),
            (0.99987, 4, "0.9999"),
            (1.0, 4, "1.0000"),
            (0.0, 1, "0.0"),
            (4.25, 1, "4.2"),
        ] {
            assert_eq!(number(value, decimals), expected, "{value} with {decimals} decimals");
        }
    }

    #[test]
    fn differences_carry_their_sign() {
        assert_eq!(signed(number(1.5, 3)), "+1.50");
        assert_eq!(signed(number(-1.5, 3)), "-1.50");
        assert_eq!(signed(number(-0.0001, 3)), "0.000");
    }

    #[test]
    fn less_than_the_whole_does_not_read_as_the_whole() {
        assert_eq!(percent(0.99965, 2), "99.97");
        assert_eq!(percent(-0.99965, 0), "-99.97");
        assert_eq!((percent(1.0, 2).as_str(), percent(0.122, 0).as_str()), ("100", "12"));
        assert_eq!(percent(0.999_999_999, 0), "99.9999999");
        assert_eq!(percent(1.0 - 1e-12, 2), "100");
    }

    #[test]
    fn rates_times_and_counts_have_units() {
        assert_eq!(rate(2_000_000_000), "2 Gbit/s");
        assert_eq!(rate(2_500_000_000), "2.5 Gbit/s");
        assert_eq!(rate(800_000), "800 kbit/s");
        assert_eq!(rate(7), "7 bit/s");
        assert_eq!(seconds(0.005), "5 ms");
        assert_eq!(seconds(5.0), "5 s");
        assert_eq!(seconds(50e-6), "50 µs");
        assert_eq!(seconds(200.0), "200 s");
        assert_eq!(seconds(0.0), "0 s");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(123), "123");
    }

    #[test]
    fn a_kernel_s_release_is_shown_without_its_builder_s_words() {
        for (release, shown) in [
            ("6.18.44-custom-v657", "6.18.44"),
            ("6.8.0-45-generic", "6.8.0-45"),
            ("6.19.0-rc2-next", "6.19.0-rc2"),
            ("4.4", "4.4"),
            ("", ""),
        ] {
            assert_eq!(kernel(release), shown);
        }
    }

    #[test]
    fn text_cannot_steer_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\nc\u{202e}d"), "a\u{fffd}[31mb c\u{fffd}d");
    }

    #[test]
    fn lines_break_between_words_and_hang() {
        assert_eq!(wrapped("- ", "one two three", 9), "- one two\n  three\n");
        assert_eq!(wrapped("", "one (ethtool -L eth0 tx 4) two", 24), "one\n(ethtool -L eth0 tx 4)\ntwo\n");
        assert_eq!(wrapped("", "ab `tc qdisc` (b", 12), "ab\n`tc qdisc`\n(b\n");
        // A command is copied as one line, also if it is longer than the line.
        let command = "`EVENKEEL_STATE_DIR=/one/two evenkeel revert eth0`";
        assert_eq!(
            wrapped("  by hand: ", &format!("{command} undoes it"), 24),
            format!("  by hand:\n           {command}\n           undoes it\n")
        );
        assert_eq!(wrapped("", "unbreakable", 4), "unbreakable\n");
        assert_eq!(wrapped("", "a /one/two/three/four", 14), "a\n/one/two/\nthree/four\n");
        assert_eq!(wrapped("  ", "", 4), "\n");
        // The words of another host's record can be longer than any line. The code must measure each
        // part only once.
        for text in ["y".repeat(1 << 20), "(".repeat(1 << 20)] {
            assert_eq!(wrapped("", &text, 80).lines().count(), (1 << 20) / 80 + 1);
        }
    }
}
