//! Text for messages: escapes control characters of untrusted text, suggests names, and rewords errors of
//! parsers.

use std::borrow::Cow;
use std::path::Path;

/// Maximum number of characters of an excerpt, before escaping.
const EXCERPT: usize = 48;

/// Returns the beginning of `text`, with terminal controls escaped, and `…` if `text` is longer.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let mut characters = text.chars();
    let mut excerpt: String = characters.by_ref().take(EXCERPT).flat_map(escape).collect();
    if characters.next().is_some() {
        excerpt.push('…');
    }
    excerpt
}

/// Returns all of `text` on one line, with terminal controls escaped. It is for names and values that are not
/// trusted.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().flat_map(escape).collect()
}

#[must_use]
pub fn path_text(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// Returns a name from the kernel, with each byte that is not UTF-8 escaped as two hexadecimal digits, such
/// as `\xff`.
#[must_use]
pub fn name_text(name: &[u8]) -> String {
    let part = |part: std::str::Utf8Chunk<'_>| {
        let bytes: String = part.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
        part.valid().to_owned() + &bytes
    };
    name.utf8_chunks().map(part).collect()
}

/// Returns a complete output with terminal controls escaped. Line feeds and tabs remain, and colours
/// (ECMA-48: SGR) remain if `styles`. The escapes are JSON's, so a JSON document keeps its meaning.
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

fn style_length(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    let digits = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if parameters.as_bytes().get(digits) == Some(&b'm') { "\u{1b}[".len() + digits + 1 } else { 0 }
}

/// Returns an invisible character as JSON writes it (RFC 8259, section 7), and any other character unchanged.
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

/// Returns whether a character is a control character, or reorders or hides the text around it. These are the
/// general category Cc and most of Cf in Unicode, the separators of lines and paragraphs, and U+E0000 to
/// U+E0FFF.
#[must_use]
pub fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}')
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(character, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the known name that `name` most likely misspells, with at most one edit per three characters of
/// `name`. A name of one or two characters matches only if all differences are of case.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    /// Longer names are unlikely to be misspellings, and the distance takes quadratic time.
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

/// Returns `did you mean 'a'? known: a, b, c`, or only the known names (`known: none` without any). Of more
/// than 30 names, it lists the three closest.
pub fn suggestion<'k>(name: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    const CLOSEST: usize = 3;
    let mut names: Vec<&str> = known.clone().collect();
    let shown = if names.len() > SHOWN {
        let name = excerpt(name).to_lowercase();
        names.sort_by_cached_key(|known| strsim::damerau_levenshtein(&name, &known.to_lowercase()));
        format!("{} and {} more", list(names[..CLOSEST].iter().copied()), names.len() - CLOSEST)
    } else {
        list(names)
    };
    if shown.is_empty() {
        return "known: none".to_owned();
    }
    match nearest(name, known) {
        Some(nearest) => format!("did you mean '{}'? known: {shown}", excerpt(nearest)),
        None => format!("known: {shown}"),
    }
}

const SHOWN: usize = 30;

/// Returns `a, b, c`; after 30 names, only the number of further names.
pub fn list<'k>(names: impl IntoIterator<Item = &'k str>) -> String {
    let names: Vec<String> = names.into_iter().map(excerpt).collect();
    if names.len() <= SHOWN {
        names.join(", ")
    } else {
        format!("{} and {} more", names[..SHOWN].join(", "), names.len() - SHOWN)
    }
}

/// Returns a number with its noun, in the plural unless the number is 1: `1 queue`, `2 queues`, `1,500
/// entries`.
#[must_use]
pub fn counted(number: usize, noun: &str) -> String {
    let digits = thousands(number);
    if number == 1 {
        return format!("{digits} {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{digits} {stem}ies"),
        _ if noun.ends_with(['s', 'x']) || noun.ends_with("ch") => format!("{digits} {noun}es"),
        _ => format!("{digits} {noun}s"),
    }
}

#[must_use]
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Replaces Rust's type names in a message of a JSON, TOML or CSV reader: `expected u32` becomes a whole
/// number, `expected struct Ring` an object. Also rewords the reader's messages about fields and truncated
/// texts, and adds a hint to some system errors, such as the limit that a write exceeds. Other messages are
/// unchanged.
#[must_use]
pub fn plain_words(message: &str) -> String {
    for mark in ["invalid type: ", "invalid value: "] {
        let Some((before, rest)) = message.split_once(mark) else { continue };
        let Some((found, wanted)) = rest.rsplit_once(", expected ") else { continue };
        let (wanted, place) = split_place(wanted);
        return match beyond(found, wanted) {
            Some(words) => format!("{before}{words}{place}"),
            None => format!("{before}{} in place of {}{place}", found_words(found), wanted_words(wanted)),
        };
    }
    if let Some((before, rest)) = message.split_once("invalid length ")
        && let Some((found, wanted)) = rest.split_once(", expected ")
    {
        let (wanted, place) = split_place(wanted);
        return format!("{before}a list of {found} in place of {}{place}", wanted_words(wanted));
    }
    if let Some((before, rest)) = message.split_once("data did not match any variant of untagged enum ") {
        let (_, place) = split_place(rest);
        return format!("{before}it has none of the known forms{place}");
    }
    for (mark, kind) in [("unknown field `", "unknown field"), ("unknown variant `", "unknown word")] {
        let Some((before, rest)) = message.split_once(mark) else { continue };
        let Some((name, rest)) = rest.split_once('`') else { continue };
        let (known, place) = split_place(rest);
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let hint = suggestion(name, known.iter().copied());
        return format!("{before}{kind} '{}'{place}; {hint}", excerpt(name));
    }
    for (mark, then) in [("missing field `", "is missing"), ("duplicate field `", "appears twice")] {
        let Some((before, rest)) = message.split_once(mark) else { continue };
        let Some((name, rest)) = rest.split_once('`') else { continue };
        return format!("{before}the field '{}' {then}{rest}", excerpt(name));
    }
    for (theirs, ours) in [
        ("EOF while parsing a value at line 1 column 0", "it is empty"),
        ("EOF while parsing a value", "it ends where a value is needed,"),
        ("EOF while parsing a string", "it ends within a string,"),
        ("EOF while parsing a list", "it ends within a list,"),
        ("EOF while parsing an object", "it ends within an object,"),
        ("expected value at line", "no JSON at line"),
        ("expected ident at line", "no JSON at line"),
        ("trailing characters at line", "more text after the end at line"),
        (
            "control character (\\u0000-\\u001F) found while parsing a string",
            "a control character within a string",
        ),
        // EFBIG: file systems also have limits, far above the size of Evenkeel's files.
        ("File too large (os error 27)", "File too large (`ulimit -f` limits the size of files)"),
        ("Too many open files (os error 24)", "Too many open files (`ulimit -n` limits them)"),
        (
            "No space left on device (os error 28)",
            "No space left on device (free some, or use another file system)",
        ),
        (
            "Disk quota exceeded (os error 122)",
            "Disk quota exceeded (free some space, or use another file system)",
        ),
        (
            "Read-only file system (os error 30)",
            "Read-only file system (mount it for writing, or use another file system)",
        ),
        ("Cannot allocate memory (os error 12)", "Cannot allocate memory (free some, or raise `ulimit -v`)"),
        // The JSON reader and two TOML readers use these texts.
        ("recursion limit exceeded", "it is nested too deeply"),
        ("cannot recurse further; max recursion depth met", "it is nested too deeply"),
        ("recursion limit", "it is nested too deeply"),
    ] {
        if message.contains(theirs) {
            return message.replace(theirs, ours);
        }
    }
    message.to_owned()
}

/// Puts the field's name before a JSON reader's error about a value at a line and column. Within an
/// internally tagged enum, the reader reports no position (line 0). The function then adds the name
/// only if exactly one field has the value.
#[must_use]
pub fn name_field<E: serde::de::Error>((line, column): (usize, usize), error: E, text: &[u8]) -> E {
    let message = error.to_string();
    if !["type: ", "value: ", "length "].iter().any(|kind| message.starts_with(&format!("invalid {kind}"))) {
        return error;
    }
    let before = text.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1));
    let end = before.map(<[u8]>::len).sum::<usize>() + column;
    let found =
        message.split(": ").nth(1).and_then(|rest| rest.rsplit_once(", expected ")).map(|(found, _)| found);
    let value = found.map(|found| found.split(' ').next_back().unwrap_or(found).trim_matches('`').as_bytes());
    let field = if line > 0 {
        fields(text.get(..end).unwrap_or(text)).0
    } else {
        let mut same = fields(text).1.into_iter().filter(|(_, other)| Some(*other) == value);
        same.next().filter(|_| same.next().is_none()).map(|(field, _)| field)
    };
    match field {
        Some(field) => {
            let field = excerpt(&String::from_utf8_lossy(field));
            E::custom(format!("{field}: {message}"))
        }
        None => error,
    }
}

type Field<'t> = (&'t [u8], &'t [u8]);

/// Returns the innermost field that is open at the end of a (truncated) JSON text, and all fields whose value
/// is a string, a number or a keyword.
fn fields(text: &[u8]) -> (Option<&[u8]>, Vec<Field<'_>>) {
    let (mut open, mut all, mut at): (Vec<Option<&[u8]>>, Vec<Field<'_>>, usize) =
        (vec![None], Vec::new(), 0);
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let length = match byte {
            b'"' => {
                let mut escaped = false;
                let end = rest[1..].iter().position(|byte| {
                    let ends = *byte == b'"' && !escaped;
                    escaped = *byte == b'\\' && !escaped;
                    ends
                });
                end.map_or(rest.len(), |end| end + 2)
            }
            byte if is_word(byte) => rest.iter().take_while(|byte| is_word(byte)).count(),
            _ => 1,
        };
        let token = &rest[..length];
        let is_key = rest[length..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
        match byte {
            b'{' => open.push(None),
            b'}' => drop(open.pop()),
            b'"' if is_key => {
                if let Some(field) = open.last_mut() {
                    *field = token.get(1..length - 1);
                }
            }
            byte if *byte == b'"' || is_word(byte) => {
                all.extend(open.last().copied().flatten().map(|field| (field, token)));
            }
            _ => {}
        }
        at += length;
    }
    (open.into_iter().rev().flatten().next(), all)
}

/// Splits the position off the end of a message.
fn split_place(text: &str) -> (&str, &str) {
    text.rfind(" at line ").map_or((text, ""), |at| text.split_at(at))
}

/// Describes a number that does not fit into 64 bits, which the reader stores as floating point. Returns
/// `None` for anything else.
fn beyond(found: &str, wanted: &str) -> Option<String> {
    let (least, most) = match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => (0, u64::MAX),
        "i8" | "i16" | "i32" | "i64" | "isize" => (i64::MIN, i64::MAX.unsigned_abs()),
        _ => return None,
    };
    let number: f64 = found.strip_prefix("floating point ")?.trim_matches('`').parse().ok()?;
    let kind = if number >= most as f64 && number.is_finite() {
        format!("too large a number (about {number:.2e}, at most {most})")
    } else if least < 0 && number < least as f64 && number.is_finite() {
        format!("too small a number (about {number:.2e}, at least {least})")
    } else {
        return None;
    };
    Some(kind)
}

fn found_words(found: &str) -> String {
    let inner = |prefix: &str| found.strip_prefix(prefix).map(|rest| rest.trim_matches(['`', '"']));
    if let Some(text) = inner("string ") {
        return format!("the text '{}'", excerpt(text));
    }
    let number = inner("integer ").or_else(|| inner("floating point ")).or_else(|| inner("boolean "));
    match (number, found) {
        (Some(value), _) => excerpt(value),
        (None, "map") => "an object".to_owned(),
        (None, "sequence") => "a list".to_owned(),
        (None, "null" | "unit value" | "Option value") => "null".to_owned(),
        (None, other) => excerpt(other),
    }
}

fn wanted_words(wanted: &str) -> String {
    let words = match wanted {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "u128" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" | "string" | "a borrowed string" | "str" => "a text",
        "a boolean" | "bool" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "unit" => "null",
        "variant identifier" | "string or map" => "a known word",
        _ => "",
    };
    if !words.is_empty() {
        return words.to_owned();
    }
    let length = wanted.rsplit(' ').next().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    let begins = |words: &[&str]| words.iter().any(|word| wanted.starts_with(word));
    match length {
        Some(length) if begins(&["a tuple of ", "an array of "]) => format!("a list of {length}"),
        _ if begins(&["struct ", "internally tagged", "adjacently tagged"]) => "an object".to_owned(),
        _ if begins(&["tuple ", "a tuple ", "an array "]) => "a list".to_owned(),
        _ if begins(&["enum "]) => "a known word".to_owned(),
        _ => wanted.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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

    #[test]
    fn of_many_names_the_closest_are_suggested() {
        let names: Vec<String> = (10..60).map(|number| format!("rule-{number}")).collect();
        let suggested = |name| suggestion(name, names.iter().map(String::as_str));
        assert_eq!(
            suggested("rule-37x"),
            "did you mean 'rule-37'? known: rule-37, rule-17, rule-27 and 47 more"
        );
        assert_eq!(suggestion("eth0", [].into_iter()), "known: none");
        assert!(suggested("7").starts_with("known: rule-17, rule-27, rule-37 and 47"), "{}", suggested("7"));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        assert_eq!(name_text(b"\xff\xfez\xc3\xa9"), "\\xff\\xfezé");
    }

    #[test]
    fn a_plural_has_its_ending() {
        assert_eq!(counted(1, "variant"), "1 variant");
        assert_eq!(counted(0, "variant"), "0 variants");
        assert_eq!(counted(1_048_575, "time"), "1,048,575 times");
        assert_eq!(counted(2, "entry"), "2 entries");
        assert_eq!(counted(2, "process"), "2 processes");
        assert_eq!(counted(2, "switch"), "2 switches");
        assert_eq!(counted(3, "day"), "3 days");
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_named_by_its_field() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(tag = "what", rename_all = "lowercase")]
        #[allow(dead_code)]
        enum Tagged {
            Done { repeat: u32, ends: Vec<u8> },
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Plain {
            repeat: u32,
            ends: Vec<u8>,
            inner: Option<Box<Plain>>,
        }
        let said = |error: serde_json::Error, text: &str| {
            name_field((error.line(), error.column()), error, text.as_bytes()).to_string()
        };
        let plain = |text: &str| said(serde_json::from_str::<Plain>(text).unwrap_err(), text);
        let tagged = |text: &str| said(serde_json::from_str::<Tagged>(text).unwrap_err(), text);
        for (text, words) in [
            (
                "{\"ends\": [7],\n \"repeat\": -1}",
                "repeat: invalid value: integer `-1`, expected u32 at line 2 column 13",
            ),
            ("{\"repeat\": 1, \"ends\": [1, \"\\\"a\": \"]}", "ends: invalid type"),
            ("{\"repeat\": 1, \"ends\": {\"x\": 1}}", "ends: invalid type"),
            ("{\"repeat\": 1, \"ends\": [], \"inner\": {\"ends\": 7}}", "ends: invalid type"),
            (
                "{\"repeat\": 1, \"ends\": [], \"inner\": {\"ends\": [], \"repeat\": []}}",
                "repeat: invalid type",
            ),
            ("[]", "invalid length"),
            ("7", "invalid type"),
            ("{\"repeat\": 1}", "missing field"),
        ] {
            assert!(plain(text).starts_with(words), "{text}: {}", plain(text));
        }
        for (text, words) in [
            ("{\"what\": \"done\", \"repeat\": -1, \"ends\": []}", "repeat: invalid value: integer `-1`"),
            ("{\"what\": \"done\", \"repeat\": \"x\", \"ends\": []}", "repeat: invalid type: string \"x\""),
            ("{\"what\": \"done\", \"repeat\": -1, \"ends\": [-1]}", "invalid value: integer `-1`"),
        ] {
            assert!(tagged(text).starts_with(words), "{text}: {}", tagged(text));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_trips_the_search_for_fields(text in "[\\[\\]{}\":,\\\\a1-]{0,40}") {
            fields(text.as_bytes());
        }
    }

    #[test]
    fn messages_of_readers_lose_the_names_of_types() {
        for (theirs, ours) in [
            (
                "invalid type: floating point `1.8446744073709552e+19`, expected u64 at line 4 column 2",
                "too large a number (about 1.84e19, at most 18446744073709551615) at line 4 column 2",
            ),
            (
                "invalid type: floating point `1.5`, expected u64",
                "1.5 in place of a whole number that is not negative",
            ),
            (
                "invalid type: string \"x\", expected u32 at line 1 column 5",
                "the text 'x' in place of a whole number from 0 to 4294967295 at line 1 column 5",
            ),
            ("invalid type: integer `5`, expected a string", "5 in place of a text"),
            (
                "invalid type: sequence, expected struct Version at line 1 column 0",
                "a list in place of an object at line 1 column 0",
            ),
            (
                "invalid value: integer `-1`, expected u64",
                "-1 in place of a whole number that is not negative",
            ),
            ("invalid type: map, expected a sequence", "an object in place of a list"),
            ("invalid type: null, expected f64", "null in place of a number"),
            ("invalid length 2, expected a tuple of size 3", "a list of 2 in place of a list of 3"),
            (
                "a.json:2: unknown field `qeue`, expected one of `queue`, `rings` at line 2 column 9",
                "a.json:2: unknown field 'qeue' at line 2 column 9; did you mean 'queue'? known: queue, rings",
            ),
            ("missing field `schema` at line 1 column 2", "the field 'schema' is missing at line 1 column 2"),
            ("data did not match any variant of untagged enum Text", "it has none of the known forms"),
            ("expected value at line 1 column 1", "no JSON at line 1 column 1"),
            ("EOF while parsing a value at line 1 column 0", "it is empty"),
            (
                "EOF while parsing a value at line 2 column 0",
                "it ends where a value is needed, at line 2 column 0",
            ),
            (
                "control character (\\u0000-\\u001F) found while parsing a string at line 5 column 9",
                "a control character within a string at line 5 column 9",
            ),
            ("recursion limit exceeded at line 1 column 128", "it is nested too deeply at line 1 column 128"),
            (
                "m.toml:2:1: cannot recurse further; max recursion depth met",
                "m.toml:2:1: it is nested too deeply",
            ),
            ("m.toml:1:1: recursion limit", "m.toml:1:1: it is nested too deeply"),
            (
                "cannot write to 1-3.journal: File too large (os error 27)",
                "cannot write to 1-3.journal: File too large (`ulimit -f` limits the size of files)",
            ),
            ("no interface eth9", "no interface eth9"),
        ] {
            assert_eq!(plain_words(theirs), ours);
        }
    }
}
