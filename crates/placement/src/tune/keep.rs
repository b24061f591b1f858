//! Settings that an administrator keeps as they are.
//!
//! ```toml
//! keep = ["sysctl net.core.*", "mtu"]      # on every interface, and of the host
//! rules = ["irqbalance-runs"]              # rules whose findings stay unfixed
//!
//! [interface.eth0]
//! keep = ["ring *", "irq 45"]
//! rules = ["mtu-standard"]
//! ```

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_model::change::Knob;
use evenkeel_model::host::{HostFacts, IdleState, Interface};
use evenkeel_model::scenario::ScenarioError;
use evenkeel_model::scenario::ScenarioErrorKind::{UnknownName, WrongType};
use evenkeel_model::scenario::document::{Complaints, Field, Table, document};
use evenkeel_model::text::{nearest, suggestion};

use crate::rules::rules;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    name: String,
    everywhere: Kept,
    interfaces: BTreeMap<String, Kept>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kept {
    keep: Vec<String>,
    rules: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason<'a> {
    /// This entry of the file keeps the setting.
    Setting(&'a str),
    /// This entry of the file keeps the rule's findings unfixed.
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
    /// Parses a file's text. Errors name it as `file`.
    ///
    /// # Errors
    /// Returns an error if the text is not TOML of this form, or if an entry names no setting or rule.
    pub fn parse(text: &str, file: &str) -> Result<Self, ScenarioError> {
        let tree = document(text, file)?;
        let complaints = Complaints::new(text, file);
        let mut root = Table::root(tree.get_ref(), &complaints);
        let everywhere = read_kept(&mut root);
        let interfaces = root.take("interface").map(|field| read_interfaces(&field)).unwrap_or_default();
        root.finish();
        let keep = Self { name: file.to_owned(), everywhere, interfaces };
        complaints.into_error().map_or(Ok(keep), Err)
    }

    /// Returns a sentence for each entry or interface that the host lacks, because the name is likely
    /// misspelled.
    #[must_use]
    pub fn remarks(&self, facts: &HostFacts) -> Vec<String> {
        let of_host = host_names(facts);
        let of_interface = |interface: &Interface| -> Vec<String> {
            interface_names(interface).into_iter().chain(of_host.iter().cloned()).collect()
        };
        let mut remarks =
            self.unmatched(&self.everywhere, facts.interfaces.iter().flat_map(of_interface).collect());
        for (name, kept) in &self.interfaces {
            match facts.interface(name) {
                Some(interface) => remarks.extend(self.unmatched(kept, of_interface(interface))),
                None => {
                    let hint =
                        suggestion(name, facts.interfaces.iter().map(|interface| interface.name.as_str()));
                    remarks.push(format!("{}: this host has no interface '{name}'; {hint}", self.name));
                }
            }
        }
        remarks
    }

    /// Returns a sentence for each entry that matches none of these names.
    fn unmatched(&self, kept: &Kept, names: Vec<String>) -> Vec<String> {
        let is_unmatched = |entry: &&String| !names.iter().any(|name| matches(entry, name));
        let sentence = |entry: &String| {
            let nearest = nearest(entry, names.iter().map(String::as_str));
            let hint = nearest.map(|nearest| format!("; did you mean '{nearest}'?")).unwrap_or_default();
            format!("{}: '{entry}' matches no setting that tune can change here{hint}", self.name)
        };
        kept.keep.iter().filter(is_unmatched).map(sentence).collect()
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether `tune` leaves the findings of a rule unfixed on an interface.
    #[must_use]
    pub fn keeps_rule(&self, interface: &str, rule: &str) -> bool {
        let lists = [Some(&self.everywhere), self.interfaces.get(interface)];
        lists.into_iter().flatten().any(|kept| kept.rules.iter().any(|kept| kept == rule))
    }

    /// Returns the reason for not making a rule's change of a knob; `None` if the change is allowed.
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

fn read_interfaces(field: &Field<'_>) -> BTreeMap<String, Kept> {
    const FORM: &str = "write [interface.eth0] on a line, and keep = [...] below it";
    let wrong = |field: &Field<'_>| field.complain(WrongType, "expected a table", FORM);
    if !field.is_table() {
        wrong(field);
    }
    let Some(interfaces) = field.table() else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    for (name, field) in interfaces.entries() {
        if !field.is_table() {
            wrong(&field);
        }
        let Some(mut table) = field.table() else { continue };
        all.insert(name.to_owned(), read_kept(&mut table));
        table.finish();
    }
    all
}

fn read_kept(table: &mut Table<'_>) -> Kept {
    let mut names = |key, form: &str, check: &dyn Fn(&Field<'_>, &str)| -> Vec<String> {
        let elements = table.take(key).and_then(|field| field.list(&format!("names, as in {form}")));
        let name = |element: Field<'_>| {
            let name = element.string(&format!("a name, as in {form}"))?;
            check(&element, name);
            Some(name.to_owned())
        };
        elements.into_iter().flatten().filter_map(name).collect()
    };
    let keep = names("keep", "keep = [\"ring rx\", \"sysctl net.core.*\"]", &|element, name| {
        if let Err(reason) = check_name(name) {
            element.complain(UnknownName, reason, "");
        }
    });
    let rules = names("rules", "rules = [\"irqbalance-runs\"]", &|element, name| {
        if rules().all(|rule| rule.name != name) {
            element.unknown_name("rule", name, rules().map(|rule| rule.name));
        }
    });
    Kept { keep, rules }
}

/// The part of a knob's name after its first word.
#[derive(Clone, Copy)]
enum Rest {
    Nothing,
    Number,
    Text,
    OneOf(&'static [&'static str]),
}

/// The first words of the names of knobs ([`Knob::name`]) that rules can change, and the kind of text after
/// each.
const KINDS: [(&str, Rest); 15] = [
    ("sysctl", Rest::Text),
    ("gso-max-size", Rest::Nothing),
    ("gro-max-size", Rest::Nothing),
    ("file", Rest::Text),
    ("qdisc", Rest::Nothing),
    ("rss", Rest::Nothing),
    ("irq", Rest::Number),
    ("ring", Rest::OneOf(&["rx", "rx-mini", "rx-jumbo", "tx"])),
    ("channels", Rest::OneOf(&["rx", "tx", "other", "combined"])),
    (
        "coalescing",
        Rest::OneOf(&["rx-usecs", "rx-frames", "tx-usecs", "tx-frames", "adaptive-rx", "adaptive-tx"]),
    ),
    ("feature", Rest::Text),
    ("hash", Rest::Text),
    ("mtu", Rest::Nothing),
    ("txqueuelen", Rest::Nothing),
    ("cpu", Rest::Text),
];

fn check_name(entry: &str) -> Result<(), String> {
    let mut words = entry.split_ascii_whitespace();
    let kind = words.next().unwrap_or_default();
    if kind.contains('*') {
        return Ok(());
    }
    let Some((_, rest)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        let hint = suggestion(kind, KINDS.iter().map(|(name, _)| *name));
        return Err(format!("'{entry}' names no kind of setting; {hint}"));
    };
    let more = words.collect::<Vec<_>>().join(" ");
    match rest {
        Rest::Nothing if !more.is_empty() => {
            Err(format!("'{entry}': '{kind}' takes no further word; leave out '{more}'"))
        }
        Rest::Nothing => Ok(()),
        _ if more.is_empty() => {
            Err(format!("'{entry}' names no setting; '{kind} *' names all settings of this kind"))
        }
        Rest::Number if !more.bytes().all(|byte| byte.is_ascii_digit() || byte == b'*') => {
            Err(format!("'{entry}': '{more}' is not a number, as in '{kind} 45' or '{kind} *'"))
        }
        Rest::OneOf(known) if !known.iter().any(|word| matches(&more, word)) => Err(format!(
            "'{entry}': there is no {kind} '{more}'; {}",
            suggestion(&more, known.iter().copied())
        )),
        Rest::Number | Rest::OneOf(_) | Rest::Text => Ok(()),
    }
}

/// Returns the names of the host's knobs that rules can change.
fn host_names(facts: &HostFacts) -> Vec<String> {
    let sysctls = facts.sysctls.keys().map(|path| Knob::Sysctl(path.clone()).name());
    let interrupts =
        facts.interrupts.iter().map(|interrupt| Knob::InterruptAffinity(interrupt.number).name());
    let processors = facts.processors.iter().flat_map(|processor| {
        let number = processor.number;
        let disable = move |state: &IdleState| format!("cpu{number}/cpuidle/state{}/disable", state.number);
        let governor = std::iter::once(format!("cpu{number}/cpufreq/scaling_governor"));
        governor.chain(processor.idle_states.iter().map(disable)).map(|file| Knob::ProcessorFile(file).name())
    });
    sysctls.chain(interrupts).chain(processors).collect()
}

/// Returns the names of an interface's knobs that rules can change.
fn interface_names(interface: &Interface) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (kind, rest) in KINDS {
        match rest {
            Rest::Nothing => names.push(kind.to_owned()),
            Rest::OneOf(words) => names.extend(words.iter().map(|word| format!("{kind} {word}"))),
            Rest::Number | Rest::Text => {}
        }
    }
    names.extend(interface.features.keys().map(|name| Knob::Feature(name.clone()).name()));
    let hashed = interface.rss.iter().flat_map(|rss| rss.hash_fields.keys());
    names.extend(hashed.map(|flow| Knob::FlowHash(flow.clone()).name()));
    let queue_files = |direction: &str, queues: usize, files: &[&str]| -> Vec<String> {
        let of_queue = |queue| files.iter().map(move |file| format!("queues/{direction}-{queue}/{file}"));
        (0..queues).flat_map(of_queue).collect()
    };
    let of_device = ["napi_defer_hard_irqs", "gro_flush_timeout", "bonding/xmit_hash_policy"];
    let files = of_device
        .map(str::to_owned)
        .into_iter()
        .chain(queue_files("rx", interface.receive_queues.len(), &["rps_cpus", "rps_flow_cnt"]))
        .chain(queue_files(
            "tx",
            interface.transmit_queues.len(),
            &["xps_cpus", "xps_rxqs", "tx_maxrate", "byte_queue_limits/limit_max"],
        ));
    names.extend(files.map(|file| Knob::InterfaceFile(file).name()));
    names
}

/// Returns whether a name matches a pattern, in which `*` matches any text.
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
    use evenkeel_model::change::{Channels, Coalescing, Ring};
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
    fn mistakes_are_named_by_place() {
        for (text, words) in [
            ("keep = [\"mtu\"]\nkept = 1\n", "f:2:1: kept: unknown key; known keys: keep, rules, interface"),
            ("keep = 5\n", "f:1:8: keep: expected a list of names, as in keep = [\"ring rx\""),
            ("keep = [5]\n", "f:1:9: keep[0]: expected a name, as in keep = [\"ring rx\""),
            ("rules = \"sack-off\"\n", "f:1:9: rules: expected a list of names, as in rules = ["),
            ("interface = \"x\"", "f:1:13: interface: expected a table; write [interface.eth0] on a line"),
            (
                "[interface]\neth0 = \"mtu\"",
                "f:2:8: interface.eth0: expected a table; write [interface.eth0]",
            ),
            ("[interface.eth0]\nkep = [\"mtu\"]", "f:2:1: interface.eth0.kep: unknown key; "),
            (
                "\nkeep = [\"rings rx\"]\n",
                "f:2:9: keep[0]: 'rings rx' names no kind of setting; did you mean 'ring'?",
            ),
            (
                "keep = [\n\"ring rx\",\n\"ring rx-min\"]",
                "f:3:1: keep[1]: 'ring rx-min': there is no ring 'rx-min'; did you mean 'rx-mini'?",
            ),
            (
                "keep = [\"ring zz\"]",
                "f:1:9: keep[0]: 'ring zz': there is no ring 'zz'; known: rx, rx-mini, rx-jumbo, tx",
            ),
            ("keep = [\"ring\"]", "f:1:9: keep[0]: 'ring' names no setting; 'ring *'"),
            ("keep = [\"mtu 9000\"]", "f:1:9: keep[0]: 'mtu 9000': 'mtu' takes no further word"),
            ("keep = [\"irq eth0\"]", "f:1:9: keep[0]: 'irq eth0': 'eth0' is not a number"),
            ("keep = [", "f:1:9: not TOML"),
            (
                "keep = []\nrules = [\"sack-off\", \"sack-of\"]\n",
                "f:2:22: rules[1]: unknown rule 'sack-of'; did you mean 'sack-off'?",
            ),
            (
                "[interface.eth0]\n\nrules = [\"no-such\"]\n",
                "f:3:10: interface.eth0.rules[0]: unknown rule 'no-such'",
            ),
        ] {
            let error = Keep::parse(text, "f").unwrap_err().to_string();
            assert!(error.starts_with(words), "{text}: {error}");
        }
        assert_eq!(Keep::parse("", "").unwrap(), Keep::default());
    }

    #[test]
    fn names_that_a_host_does_not_have_are_remarked() {
        let mut facts = HostFacts::default();
        facts.sysctls.insert("net/core/netdev_max_backlog".to_owned(), "1000".to_owned());
        facts.interfaces.push(Interface { name: "eth0".to_owned(), ..Interface::default() });
        let remarks = |text: &str| Keep::parse(text, "f").unwrap().remarks(&facts);
        assert_eq!(
            remarks(
                "keep = [\"sysctl net.core.netdev_max_backlgo\", \"sysctl [\"]\n[interface.eth1]\nkeep = [\"mtu\"]"
            ),
            [
                "f: 'sysctl net.core.netdev_max_backlgo' matches no setting that tune can change here; did you mean \
                 'sysctl net.core.netdev_max_backlog'?",
                "f: 'sysctl [' matches no setting that tune can change here",
                "f: this host has no interface 'eth1'; did you mean 'eth0'? known: eth0",
            ]
        );
        let none: [&str; 0] = [];
        assert_eq!(
            remarks("keep = [\"sysctl net.core.*\", \"mtu\"]\n[interface.eth0]\nkeep = [\"ring *\"]"),
            none
        );
    }

    #[test]
    fn every_kind_can_be_kept() {
        let text = || "x".to_owned();
        for knob in [
            Knob::Sysctl("net/ipv4/x".to_owned()),
            Knob::GsoSizes,
            Knob::GroSizes,
            Knob::InterfaceFile(text()),
            Knob::RootQdisc,
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
            assert_eq!(check_name(&name), Ok(()), "{name}");
            let keep = Keep::parse(&format!("keep = [{name:?}]"), "f").unwrap();
            assert!(keep.reason("eth0", "", &knob).is_some(), "{name}");
        }
    }

    /// The reference lists the kinds with their words.
    #[test]
    fn the_reference_has_every_kind() {
        let page = include_str!("../../../../docs/reference/tune.md");
        let names = page.split("The names are:").nth(1).unwrap().split("\n## ").next().unwrap();
        let names = names.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let mut listed: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        for (kind, rest) in KINDS {
            let is_of_kind = |name: &&str| match rest {
                Rest::Nothing => *name == kind,
                Rest::OneOf(words) => **name == format!("{kind} {}", words.join("|")),
                Rest::Number => **name == format!("{kind} NUMBER"),
                Rest::Text => name.strip_prefix(kind).is_some_and(|more| more.starts_with(' ')),
            };
            let at = listed.iter().position(is_of_kind).unwrap_or_else(|| panic!("{kind}"));
            listed.remove(at);
        }
        // The remaining words explain the kinds.
        assert_eq!(listed, ["rx-gro", "/sys/class/net/IFACE", "/sys/devices/system/cpu"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,80}") {
            let _ = Keep::parse(&text, "f");
        }

        #[test]
        fn stars_stand_for_anything(parts in prop::collection::vec("[a-z. ]{0,4}", 1..5), between in "[a-z.]{0,3}") {
            prop_assert!(matches(&parts.join("*"), &parts.join(&between).split_ascii_whitespace().collect::<Vec<_>>().join(" ")) ||
                parts.iter().any(|part| part.contains(' ')));
        }
    }
}
