//! Text from files, hosts and devices, made fit for a message: on one line, without control characters.

use std::borrow::Cow;

/// Characters of a foreign text that a message shows.
const EXCERPT: usize = 48;

/// The beginning of `text`, with everything escaped that could steer a terminal.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let mut characters = text.chars();
    let mut excerpt: String = characters.by_ref().take(EXCERPT).flat_map(escape).collect();
    if characters.next().is_some() {
        excerpt.push('…');
    }
    excerpt
}

/// All of `text` on one line, with everything escaped that could steer a terminal: for names and values that others have
/// chosen.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().flat_map(escape).collect()
}

/// A whole output, with everything escaped that could steer a terminal but line feeds, tabs and, where `styles` are used,
/// colours (ECMA-48: SGR). Escapes are those of JSON, so a document stays the same one.
#[must_use]
pub fn terminal_output(text: &str, styles: bool) -> Cow<'_, str> {
    let stays = |character: char| matches!(character, '\n' | '\t') || !is_invisible(character);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let length = if styles { style_length(rest) } else { 0 };
        if length > 0 {
            output.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if stays(character) {
            output.push(character);
        } else {
            output.extend(escape(character));
        }
        rest = &rest[character.len_utf8()..];
    }
    Cow::Owned(output)
}

/// Length of the style that a text begins with; 0 if it begins with none.
fn style_length(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    let digits = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if parameters.as_bytes().get(digits) == Some(&b'm') { "\u{1b}[".len() + digits + 1 } else { 0 }
}

/// A character as JSON writes it (RFC 8259, section 7) if it is invisible, else itself.
fn escape(character: char) -> impl Iterator<Item = char> {
    let escaped = match character {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        _ if is_invisible(character) => {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
        _ => String::from(character),
    };
    escaped.chars().collect::<Vec<_>>().into_iter()
}

/// Control characters, and those that reorder or hide the text around them (Unicode's general categories Cc and Cf, and the
/// separators of lines and paragraphs).
#[must_use]
pub fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}')
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(character, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the known name that `name` is most likely a misspelling of: at most one edit in three letters, and two
/// names of one or two letters are never near.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    /// Longer names are no misspellings, and the distance takes quadratic time.
    const LONGEST: usize = 64;
    let length = name.chars().take(LONGEST + 1).count();
    if length > LONGEST {
        return None;
    }
    let name = name.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&name, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= length / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns `did you mean 'a'? known: a, b, c`, or the known names alone.
pub fn suggestion<'k>(name: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    match nearest(name, known.clone()) {
        Some(nearest) => format!("did you mean '{}'? known: {}", excerpt(nearest), list(known)),
        None => format!("known: {}", list(known)),
    }
}

/// `a, b, c`, cut when there are very many.
pub fn list<'k>(names: impl IntoIterator<Item = &'k str>) -> String {
    const SHOWN: usize = 30;
    let names: Vec<String> = names.into_iter().map(excerpt).collect();
    if names.len() <= SHOWN {
        names.join(", ")
    } else {
        format!("{} and {} more", names[..SHOWN].join(", "), names.len() - SHOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_short_and_cannot_steer_a_terminal() {
        assert_eq!(excerpt("plain µ text"), "plain µ text");
        assert_eq!(excerpt("a\u{1b}[2Jb\n"), "a\\u001b[2Jb\\n");
        assert_eq!(excerpt("\u{202e}abc"), "\\u202eabc");
        assert_eq!(excerpt(&"x".repeat(48)), "x".repeat(48));
        assert_eq!(excerpt(&"x".repeat(49)), format!("{}…", "x".repeat(48)));
    }

    #[test]
    fn an_output_keeps_its_lines_and_its_own_styles() {
        for (text, plain, styled) in [
            ("a\tb\n", "a\tb\n", "a\tb\n"),
            ("\u{1b}[1;31mx\u{1b}[0m", "\\u001b[1;31mx\\u001b[0m", "\u{1b}[1;31mx\u{1b}[0m"),
            ("\u{1b}[2J\u{9b}m\r", "\\u001b[2J\\u009bm\\r", "\\u001b[2J\\u009bm\\r"),
            ("\u{1b}]0;title\u{7}", "\\u001b]0;title\\u0007", "\\u001b]0;title\\u0007"),
            ("\u{e0041}\u{1b}", "\\udb40\\udc41\\u001b", "\\udb40\\udc41\\u001b"),
        ] {
            assert_eq!(terminal_output(text, false), plain);
            assert_eq!(terminal_output(text, true), styled);
        }
        let name = "\u{202e}\u{7f}\u{e0041}";
        let json = serde_json::json!({ "name": name }).to_string();
        let shown: serde_json::Value =
            serde_json::from_str(&terminal_output(&json, true)).unwrap_or_default();
        assert_eq!(shown["name"], name, "it is the same document");
    }

    #[test]
    fn the_nearest_name_is_close_or_none() {
        let known = ["rate", "mtu", "queues"];
        assert_eq!(nearest("queuess", known), Some("queues"));
        assert_eq!(nearest("Queues", known), Some("queues"));
        assert_eq!(nearest("mut", known), Some("mtu"));
        assert_eq!(nearest("mt", known), None);
        assert_eq!(nearest("nope", ["steal", "node"]), Some("node"));
        assert_eq!(nearest("nope", ["steal"]), None);
        assert_eq!(nearest("description", known), None);
        assert_eq!(nearest(&"queues".repeat(1000), known), None);
    }
}
