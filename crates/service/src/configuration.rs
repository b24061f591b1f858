//! The configuration file: the options for each interface.
//!
//! ```toml
//! schema = 1
//!
//! [service]
//! socket = "/run/evenkeel/control.sock"
//! group = "evenkeel"
//!
//! [[interface]]                          # the first that matches decides
//! match = { name = "eth*", driver = "mlx5_core" }
//! fair = { balance = "auto" }            # options of `evenkeel fair`; false leaves the interface alone
//! ```

use std::path::PathBuf;

use evenkeel_model::scenario::ScenarioError;
use evenkeel_model::scenario::ScenarioErrorKind::{BadValue, Duplicate, MissingKey, WrongType};
use evenkeel_model::scenario::document::{Complaints, Field, Table, document, read_schema};

use crate::{Interface, Match, Pattern};

pub const DEFAULT_SOCKET: &str = "/run/evenkeel/control.sock";
pub const DEFAULT_GROUP: &str = "evenkeel";
/// The options of `fair` that a rule may have.
pub const FAIR_KEYS: [&str; 7] =
    ["weights", "xps", "queue-weights", "rate", "balance", "batching", "segments"];
/// Longest path of a socket in bytes (`struct sockaddr_un`).
const LONGEST_SOCKET: usize = 107;
/// Longest name of a group (`LOGIN_NAME_MAX`) or pattern in bytes.
const LONGEST: usize = 256;
const MOST_RULES: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub matches: Match,
    /// Arguments of `evenkeel fair`, such as `--balance=auto`. `None` leaves the interface unmanaged.
    pub fair: Option<Vec<String>>,
    /// Whether the service ends a worker if losses rise after its start.
    pub watch_effect: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub socket: PathBuf,
    /// `None` selects [`DEFAULT_GROUP`] if the group exists, otherwise root only.
    pub group: Option<String>,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The key, if only one option is wrong.
    pub key: Option<String>,
    pub problem: String,
    pub advice: String,
}

/// Checks arguments of `fair`, as the command line does.
pub type CheckOptions<'a> = &'a dyn Fn(&[String]) -> Result<(), OptionError>;

impl Configuration {
    /// Parses a file. `origin` names the text in errors; `check` checks the options of `fair`.
    ///
    /// # Errors
    /// Returns the first error in the text, with line and column.
    pub fn parse(text: &str, origin: &str, check: CheckOptions<'_>) -> Result<Self, ScenarioError> {
        let document = document(text, origin)?;
        let complaints = Complaints::new(text, origin);
        let mut root = Table::root(document.get_ref(), &complaints);
        let mut configuration =
            Self { socket: PathBuf::from(DEFAULT_SOCKET), group: None, rules: Vec::new() };
        if read_schema(&mut root) {
            if let Some(service) = root.take("service").and_then(|field| field.table()) {
                configuration.read_service(service);
            }
            if let Some(rules) = root.take("interface").and_then(|field| read_rules(&field, check)) {
                configuration.rules = rules;
            }
            root.finish();
        }
        complaints.into_error().map_or(Ok(configuration), Err)
    }

    fn read_service(&mut self, mut service: Table<'_>) {
        if let Some(field) = service.take("socket")
            && let Some(path) = field.string("an absolute path")
        {
            if !path.starts_with('/') || path.len() > LONGEST_SOCKET || path.contains('\0') {
                field.complain(
                    BadValue,
                    "not the path of a socket",
                    format!("give an absolute path of at most {LONGEST_SOCKET} bytes"),
                );
            }
            self.socket = PathBuf::from(path);
        }
        self.group = service.take("group").and_then(|field| word(&field, "the name of a group"));
        service.finish();
    }

    /// Returns the first rule that matches an interface, and the number of the rule from 0.
    #[must_use]
    pub fn rule_of(&self, interface: &Interface) -> Option<(usize, &Rule)> {
        self.rules_of(interface).next()
    }

    /// Returns all rules that match an interface. The first rule decides.
    pub fn rules_of<'a>(&'a self, interface: &Interface) -> impl Iterator<Item = (usize, &'a Rule)> {
        self.rules.iter().enumerate().filter(|(_, rule)| rule.matches.matches(interface))
    }
}

/// Reads a short string without control characters.
fn word(field: &Field<'_>, wanted: &str) -> Option<String> {
    let text = field.string(wanted)?;
    if text.is_empty() || text.len() > LONGEST || text.chars().any(char::is_control) {
        field.complain(BadValue, "empty, longer than 256 bytes, or with a control character", "");
        return None;
    }
    Some(text.to_owned())
}

fn read_rules(field: &Field<'_>, check: CheckOptions<'_>) -> Option<Vec<Rule>> {
    let elements = field.list("tables, each [[interface]]")?;
    if elements.len() > MOST_RULES {
        field.complain(BadValue, format!("{} rules", elements.len()), format!("at most {MOST_RULES}"));
        return None;
    }
    let rules: Vec<Option<Rule>> = elements.iter().map(|element| read_rule(element, check)).collect();
    for (number, rule) in rules.iter().enumerate() {
        let is_same = |earlier: &Option<Rule>| {
            earlier.as_ref().zip(rule.as_ref()).is_some_and(|(one, two)| one.matches == two.matches)
        };
        if let Some(earlier) = rules[..number].iter().position(is_same) {
            let problem =
                format!("this rule has no effect, because interface[{earlier}] above it has the same match");
            elements[number].complain(Duplicate, problem, "remove one of the two rules");
        }
    }
    rules.into_iter().collect()
}

fn read_rule(element: &Field<'_>, check: CheckOptions<'_>) -> Option<Rule> {
    let mut table = element.table()?;
    let matches = table.require("match", "such as match = { name = \"eth*\" }");
    let matches = matches.and_then(|field| read_match(&field));
    let fair = table.require("fair", "write fair = {} for the default options, or fair = false");
    let fair = fair.and_then(|field| read_fair(&field, check));
    let watch_effect = table.take("watch-effect").map(|field| field.boolean());
    table.finish();
    Some(Rule { matches: matches?, fair: fair?, watch_effect: watch_effect.unwrap_or(Some(true))? })
}

fn read_match(field: &Field<'_>) -> Option<Match> {
    let mut table = field.table()?;
    let mut pattern = |key| {
        let text = table.take(key).and_then(|field| word(&field, "a pattern, such as \"eth*\""))?;
        Some(Pattern::new(&if key == "mac" { text.to_lowercase() } else { text }))
    };
    let matches = Match {
        name: pattern("name"),
        driver: pattern("driver"),
        path: pattern("path"),
        mac: pattern("mac"),
    };
    let is_empty = table.is_empty();
    table.finish();
    if is_empty {
        field.complain(
            MissingKey,
            "matches nothing",
            "give name, driver, path or mac; name = \"*\" matches all",
        );
        return None;
    }
    Some(matches)
}

/// Reads the options of `fair`. The outer `Option` is `None` after an error.
fn read_fair(field: &Field<'_>, check: CheckOptions<'_>) -> Option<Option<Vec<String>>> {
    if !field.is_table() {
        if field.boolean()? {
            field.complain(WrongType, "expected a table or false", "write fair = {} for the default options");
            return None;
        }
        return Some(None);
    }
    let mut table = field.table()?;
    let mut arguments = Vec::new();
    let mut fields = Vec::new();
    let mut is_wrong = false;
    for key in FAIR_KEYS {
        let Some(value) = table.take(key) else { continue };
        match word(&value, "a string, as on the command line") {
            Some(text) if key == "weights" && !text.starts_with('/') => {
                value.complain(BadValue, "not an absolute path", "a service has no current directory");
                is_wrong = true;
            }
            Some(text) => {
                arguments.push(format!("--{key}={text}"));
                fields.push((key, value));
            }
            None => is_wrong = true,
        }
    }
    table.finish();
    if is_wrong {
        return None;
    }
    if let Err(OptionError { key, problem, advice }) = check(&arguments) {
        let wrong = fields.iter().find(|(known, _)| key.as_deref() == Some(*known));
        wrong.map_or(field, |(_, field)| field).complain(BadValue, problem, advice);
        return None;
    }
    Some(Some(arguments))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Configuration, String> {
        let check = |arguments: &[String]| {
            let wrong = arguments.iter().find(|argument| argument.ends_with("=wrong"));
            wrong.map_or(Ok(()), |argument| {
                let key = argument.trim_start_matches('-').split('=').next().map(str::to_owned);
                Err(OptionError { key, problem: "wrong value".to_owned(), advice: "use another".to_owned() })
            })
        };
        Configuration::parse(text, "e.toml", &check).map_err(|error| error.to_string())
    }

    fn interface(name: &str) -> Interface {
        let mac = "52:54:00:00:00:01".to_owned();
        Interface { index: 2, name: name.to_owned(), mac, driver: None, path: None }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let found = parse(
            "schema = 1\n[service]\nsocket = \"/run/x\"\ngroup = \"wheel\"\n\
             [[interface]]\nmatch = { name = \"eth9\" }\nfair = false\n\
             [[interface]]\nmatch = { name = \"eth*\", mac = \"52:54:00:00:00:0?\" }\n\
             fair = { segments = \"auto\", balance = \"auto\" }\n\
             [[interface]]\nmatch.name = \"*\"\nfair = {}\n",
        )
        .unwrap();
        assert_eq!((found.socket.to_str(), found.group.as_deref()), (Some("/run/x"), Some("wheel")));
        let options = |name: &str| {
            let (number, rule) = found.rule_of(&interface(name)).unwrap();
            (number, rule.fair.clone().map(|fair| fair.join(" ")))
        };
        assert_eq!(options("eth9"), (0, None));
        assert_eq!(options("eth0"), (1, Some("--balance=auto --segments=auto".to_owned())));
        assert_eq!(options("wlan0"), (2, Some(String::new())));
    }

    #[test]
    fn errors_name_the_line_and_the_nearest_key() {
        let rule = |inside: &str| format!("schema = 1\n[[interface]]\n{inside}\n");
        for (text, words) in [
            ("schema = 2\n".to_owned(), "e.toml:1:10: schema: "),
            ("[service]\n".to_owned(), "schema: missing"),
            ("schema = 1\n[servce]\n".to_owned(), "e.toml:2:2: servce: unknown key; did you mean 'service'?"),
            ("schema = 1\n[service]\nsocket = \"x\"\n".to_owned(), "e.toml:3:10: service.socket: "),
            (rule("fair = {}"), "interface[0].match: missing"),
            (rule("match.name = \"a\""), "interface[0].fair: missing; write fair = {}"),
            (rule("match = {}\nfair = {}"), "matches nothing"),
            (
                rule("match.nme = \"a\"\nfair = {}"),
                "e.toml:3:7: interface[0].match.nme: unknown key; did you mean 'name'?",
            ),
            (rule("match.name = 1\nfair = {}"), "expected a pattern"),
            (rule("match.name = \"a\"\nfair = true"), "expected a table or false"),
            (rule("match.name = \"a\"\nfair = { observe = \"on\" }"), "fair.observe: unknown key"),
            (
                rule("match.name = \"a\"\nfair = { xps = \"wrong\" }"),
                "e.toml:4:16: interface[0].fair.xps: wrong value; use another",
            ),
            (rule("match.name = \"a\"\nfair = { weights = \"w.toml\" }"), "not an absolute path"),
            (
                rule("match.name = \"a\"\nfair = {}\n[[interface]]\nmatch.name = \"a\"\nfair = {}"),
                "interface[0] above it",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    const VALID: &str = "schema = 1\n[service]\nsocket = \"/run/x\"\n[[interface]]\nmatch = { name = \"e*\" }\n\
                         fair = { xps = \"off\" }\nwatch-effect = false\n";

    proptest::proptest! {
        /// Checks that any text gives a configuration or a one-line error.
        #[test]
        fn no_text_is_a_panic(text in ".{0,200}", at in 0..VALID.len(), cut in 0..40_usize) {
            let mut mutated = VALID.to_owned();
            let end = (at + cut).min(mutated.len());
            mutated.replace_range(at..end, &text);
            for text in [text, mutated] {
                if let Err(error) = parse(&text) {
                    proptest::prop_assert!(error.starts_with("e.toml:") && !error.contains('\n'), "{error}");
                }
            }
        }
    }
}
