//! Patterns for interfaces: `*` matches any number of characters, `?` matches one.

use crate::Interface;

/// A pattern matches a whole name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// Returns the only name that the pattern matches; `None` if the pattern can match several names.
    #[must_use]
    pub fn exact(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(self.0.as_str())
    }

    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) = (self.0.chars().collect(), text.chars().collect());
        let (mut at, mut seen) = (0, 0);
        // The last `*`, and the end of the text that this `*` matches.
        let mut star: Option<(usize, usize)> = None;
        while seen < text.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, seen));
                    at += 1;
                }
                Some(wanted) if *wanted == '?' || *wanted == text[seen] => (at, seen) = (at + 1, seen + 1),
                _ => {
                    let Some((place, end)) = star else { return false };
                    star = Some((place, end + 1));
                    (at, seen) = (place + 1, end + 1);
                }
            }
        }
        pattern[at..].iter().all(|rest| *rest == '*')
    }
}

/// The interfaces of a rule. All given patterns must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    pub name: Option<Pattern>,
    pub driver: Option<Pattern>,
    pub path: Option<Pattern>,
    /// In lower case.
    pub mac: Option<Pattern>,
}

impl Match {
    #[must_use]
    pub fn matches(&self, interface: &Interface) -> bool {
        let fits = |pattern: &Option<Pattern>, text: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text)))
        };
        fits(&self.name, Some(&interface.name))
            && fits(&self.driver, interface.driver.as_deref())
            && fits(&self.path, interface.path.as_deref())
            && fits(&self.mac, Some(&interface.mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match_whole_names() {
        for (pattern, text) in [
            ("eth*", "eth0"),
            ("eth*", "eth"),
            ("*", ""),
            ("**0", "eth0"),
            ("e?h0", "eth0"),
            ("*a*b", "xaxbxab"),
            ("pci-0000:03:00.*", "pci-0000:03:00.1"),
        ] {
            assert!(Pattern::new(pattern).matches(text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("eth", "eth0"),
            ("eth?", "eth"),
            ("", "x"),
            ("*a*b", "xbxa"),
            ("Eth0", "eth0"),
            ("eth0", "veth0"),
        ] {
            assert!(!Pattern::new(pattern).matches(text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_long_pattern_of_stars_ends() {
        let pattern = Pattern::new(&"*a".repeat(200));
        assert!(!pattern.matches(&"a".repeat(199)) && pattern.matches(&"a".repeat(200)));
    }

    #[test]
    fn all_given_keys_must_match() {
        let interface = Interface {
            index: 2,
            name: "eth0".to_owned(),
            mac: "52:54:00:12:34:56".to_owned(),
            driver: Some("mlx5_core".to_owned()),
            path: None,
        };
        let pattern = |text: &str| Some(Pattern::new(text));
        let both = Match { name: pattern("eth*"), mac: pattern("52:54:*"), ..Match::default() };
        assert!(both.matches(&interface));
        assert!(!Match { driver: pattern("ice"), ..both.clone() }.matches(&interface));
        // An unknown path matches no pattern.
        assert!(!Match { path: pattern("*"), ..both }.matches(&interface));
    }
}
