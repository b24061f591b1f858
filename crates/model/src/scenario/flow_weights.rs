//! Flow weights: a table in a separate file.
//!
//! ```toml
//! schema = 1
//! default = 1          # weight of the flows that no rule matches; 1 if left out
//!
//! [[rule]]             # the first rule that matches decides
//! weight = 4
//! cgroup = "/system.slice/nginx.service"
//!
//! [[rule]]
//! weight = 2
//! protocol = "tcp"
//! destination-port = "8000-8099"
//! ```

use std::ops::RangeInclusive;

use super::error::ScenarioErrorKind::{BadValue, Duplicate, MissingKey};
use super::parse::{document, read_schema};
use super::toml_table::{Complaints, Field, Table};
use super::value::Spelling;
use super::{MAX_FLOW_WEIGHT, ScenarioError};
use crate::text::excerpt;

/// Maximum number of rules. For a new flow, the queue choice tries the rules in order, then uses the default.
pub const MOST_RULES: usize = 63;
/// Longest path of a cgroup, bytes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

pub(super) const PROTOCOLS: [Spelling<u8>; 2] = [("tcp", 6), ("udp", 17)];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowWeights {
    /// In the order of the file: the first match decides.
    pub rules: Vec<FlowRule>,
    /// Weight of flows that match no rule.
    pub default: u32,
}

/// A weight for the flows that match every given field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowRule {
    /// 1 to [`MAX_FLOW_WEIGHT`].
    pub weight: u32,
    /// IP protocol number.
    pub protocol: Option<u8>,
    pub source_port: Option<RangeInclusive<u16>>,
    pub destination_port: Option<RangeInclusive<u16>>,
    /// `skb->mark`, and its mask.
    pub mark: Option<(u32, u32)>,
    /// `skb->priority`, as `SO_PRIORITY` sets it.
    pub priority: Option<u32>,
    /// Path of a version-2 cgroup below the root of the hierarchy, beginning with `/`. The rule also matches
    /// the cgroups below it.
    pub cgroup: Option<String>,
}

impl FlowWeights {
    /// Parses a file. `origin` names the text in errors.
    ///
    /// # Errors
    /// Returns the first error in the text, with line and column.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let document = document(text, origin)?;
        let complaints = Complaints::new(text, origin);
        let mut root = Table::root(document.get_ref(), &complaints);
        let mut weights = Self { rules: Vec::new(), default: 1 };
        if read_schema(&mut root) {
            if let Some(default) = root.take("default").and_then(|field| field.integer(WEIGHTS)) {
                weights.default = default;
            }
            if let Some(rules) = root.take("rule").and_then(|field| read_rules(&field)) {
                weights.rules = rules;
            }
            root.finish();
        }
        complaints.into_error().map_or(Ok(weights), Err)
    }
}

const WEIGHTS: RangeInclusive<u32> = 1..=MAX_FLOW_WEIGHT;

fn read_rules(field: &Field<'_>) -> Option<Vec<FlowRule>> {
    let elements = field.list("tables, each [[rule]]")?;
    if elements.len() > MOST_RULES {
        let problem = format!("the file has {} rules", elements.len());
        field.complain(BadValue, problem, format!("write at most {MOST_RULES} rules"));
        return None;
    }
    let rules: Vec<Option<FlowRule>> =
        elements.iter().map(|element| read_rule(element, element.table()?)).collect();
    for (number, rule) in rules.iter().enumerate() {
        let Some(rule) = rule else { continue };
        let covers =
            |earlier: &Option<FlowRule>| earlier.as_ref().is_some_and(|earlier| earlier.covers(rule));
        if let Some(earlier) = rules[..number].iter().position(covers) {
            elements[number].complain(
                Duplicate,
                format!("this rule has no effect, because rule[{earlier}] above it matches all of its flows"),
                "remove one of the two rules, or move the more specific rule up",
            );
        }
    }
    rules.into_iter().collect()
}

impl FlowRule {
    /// Returns whether this rule matches every flow that `other` matches.
    fn covers(&self, other: &Self) -> bool {
        fn all<T>(own: Option<&T>, other: Option<&T>, contains: impl Fn(&T, &T) -> bool) -> bool {
            own.is_none_or(|own| other.is_some_and(|other| contains(own, other)))
        }
        let ports = |own: &RangeInclusive<u16>, other: &RangeInclusive<u16>| {
            own.start() <= other.start() && other.end() <= own.end()
        };
        // A rule matches the cgroup and all cgroups below it.
        let below = |own: &String, other: &String| {
            other.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mark = |own: &(u32, u32), other: &(u32, u32)| own.1 & !other.1 == 0 && other.0 & own.1 == own.0;
        all(self.protocol.as_ref(), other.protocol.as_ref(), u8::eq)
            && all(self.source_port.as_ref(), other.source_port.as_ref(), ports)
            && all(self.destination_port.as_ref(), other.destination_port.as_ref(), ports)
            && all(self.mark.as_ref(), other.mark.as_ref(), mark)
            && all(self.priority.as_ref(), other.priority.as_ref(), u32::eq)
            && all(self.cgroup.as_ref(), other.cgroup.as_ref(), below)
    }
}

fn read_rule(element: &Field<'_>, mut table: Table<'_>) -> Option<FlowRule> {
    let weight = table.require("weight", "for example weight = 4").and_then(|field| field.integer(WEIGHTS));
    let names_nothing = table.entries().count() == 1;
    let mut take = |key| table.take(key);
    let rule = FlowRule {
        weight: weight.unwrap_or(1),
        protocol: take("protocol").and_then(|field| field.one_of(&PROTOCOLS)),
        source_port: take("source-port").and_then(|field| ports(&field)),
        destination_port: take("destination-port").and_then(|field| ports(&field)),
        mark: take("mark").and_then(|field| mark(&field)),
        priority: take("priority").and_then(|field| field.integer(0..=u32::MAX)),
        cgroup: take("cgroup").and_then(|field| cgroup(&field)),
    };
    table.finish();
    weight?;
    if names_nothing {
        element.complain(
            MissingKey,
            "the rule has no condition, so it matches every flow",
            "add a condition (protocol, source-port, destination-port, mark, priority, cgroup), or write default = \
             ... above the rules",
        );
        return None;
    }
    Some(rule)
}

/// Returns a port, or a range of ports as `first-last`.
pub(super) fn ports(field: &Field<'_>) -> Option<RangeInclusive<u16>> {
    use toml::de::DeValue;

    if let DeValue::Integer(_) = field.value {
        let port = u16::try_from(field.integer(1..=65_535)?).ok()?;
        return Some(port..=port);
    }
    let text = field.string("a port such as 443, or a range such as \"8000-8099\"")?;
    if let Some(port) = port(text) {
        let problem = format!("the port {port} is in quotes");
        field.complain(BadValue, problem, format!("write a port without quotes: {port}"));
        return None;
    }
    let range = text.split_once('-').and_then(|(first, last)| Some((port(first)?, port(last)?)));
    match range {
        Some((first, last)) if first <= last => Some(first..=last),
        _ => {
            let problem = format!("'{}' is not a range of ports from 1 to 65535", excerpt(text));
            field.complain(BadValue, problem, "write the first and the last port, for example \"8000-8099\"");
            None
        }
    }
}

fn port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

/// Returns a mark, or `mark/mask`, in decimal or hexadecimal.
fn mark(field: &Field<'_>) -> Option<(u32, u32)> {
    use toml::de::DeValue;

    if let DeValue::Integer(_) = field.value {
        return Some((field.integer(0..=u32::MAX)?, u32::MAX));
    }
    let text = field.string("a mark such as 0x10, or with a mask, such as \"0x10/0xff\"")?;
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => text.parse().ok().filter(|_| !text.starts_with('+')),
    };
    let both = match text.split_once('/') {
        Some((mark, mask)) => number(mark).zip(number(mask)),
        None => number(text).map(|mark| (mark, u32::MAX)),
    };
    match both {
        Some((_, 0)) => {
            let advice = "remove mark, or write a mask of the bits to compare, for example \"0x10/0xff\"";
            field.complain(BadValue, "the mask 0 matches every mark", advice);
            None
        }
        Some((mark, mask)) if mark & !mask == 0 => Some((mark, mask)),
        Some((mark, mask)) => {
            let problem = format!("the mark {mark:#x} has bits outside the mask {mask:#x}");
            field.complain(BadValue, problem, "no packet would match; remove these bits from the mark");
            None
        }
        None => {
            let problem = format!("'{}' is not a mark", excerpt(text));
            field.complain(BadValue, problem, "write it as \"0x10\" or \"0x10/0xff\"");
            None
        }
    }
}

pub(super) fn cgroup(field: &Field<'_>) -> Option<String> {
    let path = field.string("a cgroup's path, such as \"/system.slice/nginx.service\"")?;
    let fault = if path.len() > LONGEST_PATH {
        "too long for a path"
    } else if !path.starts_with('/') || path.bytes().all(|byte| byte == b'/') {
        "not a path below the root of the cgroup hierarchy"
    } else if path.split('/').any(|part| matches!(part, "." | "..")) || path.contains('\0') {
        "a path with '.', '..' or a null byte"
    } else {
        let parts = path.split('/').filter(|part| !part.is_empty());
        return Some(parts.flat_map(|part| ["/", part]).collect());
    };
    field.complain(BadValue, fault, "write the whole path, as /proc/PID/cgroup shows it after '0::'");
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn fails(text: &str) -> String {
        FlowWeights::parse(text, "weights.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_whole_file() {
        let text = "schema = 1\ndefault = 2\n[[rule]]\nweight = 4\ncgroup = \"/system.slice/nginx.service/\"\n\
                    [[rule]]\nweight = 3\nprotocol = \"udp\"\nsource-port = 53\ndestination-port = \"8000-8099\"\n\
                    mark = \"0x10/0xff\"\npriority = 6\n[[rule]]\nweight = 65535\nmark = 16\n";
        let weights = FlowWeights::parse(text, "weights.toml").unwrap();
        assert_eq!(weights.default, 2);
        assert_eq!(weights.rules[0].cgroup.as_deref(), Some("/system.slice/nginx.service"));
        let second = FlowRule {
            weight: 3,
            protocol: Some(17),
            source_port: Some(53..=53),
            destination_port: Some(8000..=8099),
            mark: Some((0x10, 0xff)),
            priority: Some(6),
            cgroup: None,
        };
        assert_eq!(weights.rules[1], second);
        assert_eq!((weights.rules[2].weight, weights.rules[2].mark), (65_535, Some((16, u32::MAX))));
        assert_eq!(
            FlowWeights::parse("schema = 1", "x").unwrap(),
            FlowWeights { rules: Vec::new(), default: 1 }
        );
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, wanted) in [
            ("[[rule]]\nweight = 1\nmark = 1", "weights.toml:1:1: schema: missing"),
            ("schema = 1\n[[rule]]\npriority = 1", "weights.toml:2:1: rule[0].weight: missing"),
            (
                "schema = 1\n[[rule]]\nweight = 2",
                "weights.toml:2:1: rule[0]: the rule has no condition, so it matches every flow",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 0\nmark = 1",
                "weights.toml:3:10: rule[0].weight: 0 is out of range",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\nsource-port = \"9-8\"",
                "weights.toml:4:15: rule[0].source-port: '9-8'",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\nsource-port = \"443\"",
                "weights.toml:4:15: rule[0].source-port: the port 443 is in quotes",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\nsource-port = 0",
                "weights.toml:4:15: rule[0].source-port: 0 is",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\nmark = \"0x1ff/0xff\"",
                "weights.toml:4:8: rule[0].mark: the mark 0x1ff",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\nmark = \"ten\"",
                "weights.toml:4:8: rule[0].mark: 'ten' is not a mark",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\ncgroup = \"nginx\"",
                "weights.toml:4:10: rule[0].cgroup: not a path",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\ncgroup = \"//\"",
                "weights.toml:4:10: rule[0].cgroup: not a path",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\ncgroup = \"/a/./b\"",
                "weights.toml:4:10: rule[0].cgroup: a path with",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 2\nmark = \"0/0\"\n[[rule]]\nweight = 3\nprotocol = \"tcp\"",
                "weights.toml:4:8: rule[0].mark: the mask 0 matches every mark; remove mark",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\ncgroup = \"/a/../b\"",
                "weights.toml:4:10: rule[0].cgroup: a path with",
            ),
            (
                "schema = 1\n[[rule]]\nweight = 1\nprotocol = \"sctp\"",
                "weights.toml:4:12: rule[0].protocol: ",
            ),
            ("schema = 1\n[[rule]]\nweight = 1\nport = 1", "weights.toml:4:1: rule[0].port: unknown key"),
            ("schema = 1\nrule = 3", "weights.toml:2:8: rule: "),
            ("schema = 9", "weights.toml:1:10: schema: the file has schema 9"),
            ("schema = ", "weights.toml:1:10: not TOML"),
        ] {
            let found = fails(text);
            assert!(found.starts_with(wanted), "{text:?}: {found}\nwanted {wanted}");
        }
        let many = "[[rule]]\nweight = 1\nmark = 1\n".repeat(64);
        assert!(fails(&format!("schema = 1\n{many}")).contains("64 rules"));
    }

    #[test]
    fn a_rule_that_never_decides_is_refused() {
        let parse = |first: &str, second: &str| {
            let rule = |text: &str| format!("[[rule]]\nweight = 2\n{text}\n");
            FlowWeights::parse(&format!("schema = 1\n{}{}", rule(first), rule(second)), "w.toml")
        };
        for (first, second) in [
            ("mark = 7", "mark = 7"),
            ("destination-port = 80", "destination-port = \"80-80\""),
            ("source-port = \"80-90\"", "source-port = 85\nprotocol = \"tcp\""),
            ("mark = \"0x10/0xf0\"", "mark = 0x13"),
            ("cgroup = \"/a\"", "cgroup = \"/a/b\""),
            ("cgroup = \"/a/b\"", "cgroup = \"/a//b\""),
        ] {
            let error = parse(first, second).unwrap_err().to_string();
            assert!(error.contains("rule[1]: this rule has no effect, because rule[0]"), "{error}");
        }
        for (first, second) in [
            ("mark = 7", "mark = 8"),
            ("source-port = 85\nprotocol = \"tcp\"", "source-port = \"80-90\""),
            ("source-port = 80", "destination-port = 80"),
            ("mark = 0x13", "mark = \"0x10/0xf0\""),
            ("cgroup = \"/a\"", "cgroup = \"/ab\""),
            ("cgroup = \"/a/b\"", "cgroup = \"/a\""),
            ("protocol = \"tcp\"", "protocol = \"udp\""),
        ] {
            parse(first, second).unwrap();
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = FlowWeights::parse(&text, "x");
            let _ = FlowWeights::parse(&format!("schema = 1\n[[rule]]\nweight = 1\nsource-port = \"{text}\""), "x");
            let _ = FlowWeights::parse(&format!("schema = 1\n[[rule]]\nweight = 1\nmark = '{text}'"), "x");
        }
    }
}
