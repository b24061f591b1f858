//! Settings that an administrator keeps as they are.
//!
//! ```toml
//! keep = ["sysctl net.core.*", "mtu"]      # on every interface, and of the host
//! rules = ["irqbalance-runs"]              # rules that nothing is done about
//!
//! [interface.eth0]
//! keep = ["ring *", "irq 45"]
//! rules = ["mtu-small"]
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use evenkeel_model::change::Knob;
use evenkeel_model::text::suggestion;
use serde::Deserialize;

use crate::rules::rules;

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    name: String,
    everywhere: Kept,
    interfaces: BTreeMap<String, Kept>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Kept {
    keep: Vec<String>,
    rules: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    keep: Vec<String>,
    rules: Vec<String>,
    interface: BTreeMap<String, Kept>,
}

/// The file is none that lists settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{file}:{line}: {reason}; a file that lists settings to keep looks like `keep = [\"ring rx\", \"sysctl net.core.*\"]`"
)]
pub struct KeepError {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

/// Why a change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason<'a> {
    /// The setting is kept, by this entry.
    Setting(&'a str),
    /// Nothing is done about the rule.
    Rule(&'a str),
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(entry) => write!(formatter, "'{entry}'"),
            Self::Rule(rule) => write!(formatter, "what {rule} finds"),
        }
    }
}

impl Keep {
    /// Reads a file's text.
    ///
    /// # Errors
    /// When it is no TOML of this form, or an entry names no kind of setting.
    pub fn parse(text: &str, file: &str) -> Result<Self, KeepError> {
        let line_of = |span: Option<Range<usize>>| {
            let at = span.map_or(0, |span| span.start).min(text.len());
            text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
        };
        let document: Document = toml::from_str(text).map_err(|error| KeepError {
            file: file.to_owned(),
            line: line_of(error.span()),
            reason: evenkeel_model::text::plain_words(error.message()),
        })?;
        let keep = Self {
            name: file.to_owned(),
            everywhere: Kept { keep: document.keep, rules: document.rules },
            interfaces: document.interface,
        };
        let all = std::iter::once(&keep.everywhere).chain(keep.interfaces.values());
        if let Some(entry) = all.clone().flat_map(|kept| &kept.keep).find(|entry| !names_a_kind(entry)) {
            let at = text.find(entry.as_str()).map(|start| start..start);
            return Err(KeepError {
                file: file.to_owned(),
                line: line_of(at),
                reason: format!("'{entry}' names no kind of setting: there is {}", KINDS.join(", ")),
            });
        }
        let is_known = |name: &String| rules().any(|rule| rule.name == name);
        if let Some(name) = all.flat_map(|kept| &kept.rules).find(|name| !is_known(name)) {
            let hint = suggestion(name, rules().map(|rule| rule.name));
            // In quotes: a name may be a part of another one.
            let at = text.find(&format!("\"{name}\"")).or_else(|| text.find(name.as_str()));
            return Err(KeepError {
                file: file.to_owned(),
                line: line_of(at.map(|start| start..start)),
                reason: format!("there is no rule '{name}'; {hint}"),
            });
        }
        Ok(keep)
    }

    /// The file's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether nothing is done about a rule's findings.
    #[must_use]
    pub fn keeps_rule(&self, interface: &str, rule: &str) -> bool {
        let lists = [Some(&self.everywhere), self.interfaces.get(interface)];
        lists.into_iter().flatten().any(|kept| kept.rules.iter().any(|kept| kept == rule))
    }

    /// Why a rule's change of a knob is not made; none: it may be.
    #[must_use]
    pub fn reason(&self, interface: &str, rule: &str, knob: &Knob) -> Option<Reason<'_>> {
        let name = knob.name();
        let lists = [Some(&self.everywhere), self.interfaces.get(interface)];
        for kept in lists.into_iter().flatten() {
            if let Some(entry) = kept.keep.iter().find(|entry| matches(entry, &name)) {
                return Some(Reason::Setting(entry));
            }
            if let Some(rule) = kept.rules.iter().find(|kept| *kept == rule) {
                return Some(Reason::Rule(rule));
            }
        }
        None
    }
}

/// The first words of the names of knobs ([`Knob::name`]).
const KINDS: [&str; 18] = [
    "sysctl",
    "gso-max-size",
    "gro-max-size",
    "file",
    "htb-quantum",
    "queue-weight",
    "qdisc",
    "ntuple",
    "rss",
    "irq",
    "ring",
    "channels",
    "coalescing",
    "feature",
    "hash",
    "mtu",
    "txqueuelen",
    "cpu",
];

fn names_a_kind(entry: &str) -> bool {
    let word = entry.split_ascii_whitespace().next().unwrap_or_default();
    word.contains('*') || KINDS.contains(&word)
}

/// Whether a name is one of a pattern, in which `*` is anything.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern = pattern.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::change::{Channels, ClassHandle, Coalescing, Handle, Ring};
    use proptest::prelude::*;

    #[test]
    fn what_is_kept_is_found_by_name_and_pattern() {
        let keep = Keep::parse(
            "keep = [\"sysctl net.core.*\", \"mtu\"]\nrules = [\"sack-off\"]\n[interface.eth0]\nkeep = [\"ring rx\"]\n",
            "keep.toml",
        )
        .unwrap();
        let kept = |interface, rule, knob: &Knob| {
            keep.reason(interface, rule, knob).map(|reason| reason.to_string())
        };
        let sysctl = |path: &str| Knob::Sysctl(path.to_owned());
        assert_eq!(kept("eth1", "x", &sysctl("net/core/rmem_max")).unwrap(), "'sysctl net.core.*'");
        assert_eq!(kept("eth1", "x", &sysctl("net/ipv4/tcp_rmem")), None);
        assert_eq!(kept("eth1", "sack-off", &sysctl("net/ipv4/tcp_rmem")).unwrap(), "what sack-off finds");
        assert_eq!(kept("eth0", "x", &Knob::Ring(Ring::Rx)).unwrap(), "'ring rx'");
        assert_eq!(kept("eth1", "x", &Knob::Ring(Ring::Rx)), None);
        assert_eq!(kept("eth0", "x", &Knob::Ring(Ring::Tx)), None);
        assert!(kept("eth0", "x", &Knob::Mtu).is_some());
    }

    #[test]
    fn mistakes_are_named_by_line() {
        for (text, words) in [
            ("keep = [\"mtu\"]\nkept = 1\n", "f:2: unknown field 'kept'"),
            ("keep = 5\n", "f:1: 5 in place of a list"),
            ("\nkeep = [\"rings rx\"]\n", "f:2: 'rings rx' names no kind of setting"),
            ("keep = [", "f:1: "),
            ("keep = []\nrules = [\"sack-off\", \"sack-of\"]\n", "f:2: there is no rule 'sack-of'"),
            ("[interface.eth0]\n\nrules = [\"no-such\"]\n", "f:3: there is no rule 'no-such'"),
        ] {
            let error = Keep::parse(text, "f").unwrap_err().to_string();
            assert!(error.starts_with(words), "{text}: {error}");
        }
        assert_eq!(Keep::parse("", "").unwrap(), Keep::default());
    }

    /// Every kind of knob has a name that a file may list.
    #[test]
    fn every_kind_can_be_kept() {
        let text = || "x".to_owned();
        let class = ClassHandle(Handle::new(1, 2));
        for knob in [
            Knob::Sysctl("net/ipv4/x".to_owned()),
            Knob::GsoSizes,
            Knob::GroSizes,
            Knob::InterfaceFile(text()),
            Knob::HtbQuantum(class),
            Knob::QueueWeight(1),
            Knob::RootQdisc,
            Knob::NtupleRule(1),
            Knob::RssTable,
            Knob::InterruptAffinity(1),
            Knob::Ring(Ring::Rx),
            Knob::Channels(Channels::Combined),
            Knob::Coalescing(Coalescing::RxUsecs),
            Knob::Feature(text()),
            Knob::FlowHash(text()),
            Knob::Mtu,
            Knob::TransmitQueueLength,
            Knob::ProcessorFile(text()),
        ] {
            let name = knob.name();
            assert!(names_a_kind(&name), "{name}");
            let keep = Keep::parse(&format!("keep = [{name:?}]"), "f").unwrap();
            assert!(keep.reason("eth0", "", &knob).is_some(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,80}") {
            let _ = Keep::parse(&text, "f");
        }

        /// A pattern with parts of a name replaced by stars has the name.
        #[test]
        fn stars_stand_for_anything(parts in prop::collection::vec("[a-z. ]{0,4}", 1..5), between in "[a-z.]{0,3}") {
            prop_assert!(matches(&parts.join("*"), &parts.join(&between).split_ascii_whitespace().collect::<Vec<_>>().join(" ")) ||
                parts.iter().any(|part| part.contains(' ')));
        }
    }
}
