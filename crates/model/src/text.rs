//! Text from a file, made fit for a message: short, on one line, without control characters.

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

/// All of `text`, with everything escaped that could steer a terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().flat_map(escape).collect()
}

fn escape(character: char) -> impl Iterator<Item = char> {
    let (escaped, plain) = if is_invisible(character) {
        (Some(character.escape_default()), None)
    } else {
        (None, Some(character))
    };
    escaped.into_iter().flatten().chain(plain)
}

/// Control characters, and those that reorder or hide the text around them.
#[must_use]
pub fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}')
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
        assert_eq!(excerpt("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(excerpt("\u{202e}abc"), "\\u{202e}abc");
        assert_eq!(excerpt(&"x".repeat(48)), "x".repeat(48));
        assert_eq!(excerpt(&"x".repeat(49)), format!("{}…", "x".repeat(48)));
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
