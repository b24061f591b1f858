//! The configuration file: which interface gets which options.
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
//! tune = ["gro-off"]                     # rules of `evenkeel check`
//! steer = { policy = "balance" }         # options of `evenkeel steer`
//! ```

use std::path::PathBuf;

use evenkeel_host::DEFAULT_SOCKET;
use evenkeel_model::scenario::ScenarioError;
use evenkeel_model::scenario::ScenarioErrorKind::{BadValue, Duplicate, MissingKey, WrongType};
use evenkeel_model::scenario::document::{Complaints, Field, Table, document, read_schema};

use crate::{Interface, Kind, Match, Pattern};

pub const DEFAULT_GROUP: &str = "evenkeel";
/// The options of `fair` that a rule may have.
pub const FAIR_KEYS: [&str; 7] =
    ["weights", "xps", "queue-weights", "rate", "balance", "batching", "segments"];
/// The options of `steer` that a rule may have.
pub const STEER_KEYS: [&str; 8] =
    ["policy", "backend", "model", "queues", "netns", "interval", "idle", "nic-dir"];
/// Options whose values are paths. A value of `policy` or `model` is a name if it has neither `/` nor the
/// suffix `.toml`.
const FILES: [&str; 4] = ["weights", "policy", "model", "nic-dir"];
/// The argument of a `tune` worker whose changes stay at the end.
pub(crate) const KEEPS: &str = "--at-end=keep";
/// Longest path of a socket in bytes (`struct sockaddr_un`).
const LONGEST_SOCKET: usize = 107;
/// Longest string in bytes: a group's name (`LOGIN_NAME_MAX`), a pattern, an option or a rule's name.
const LONGEST: usize = 256;
const MOST_RULES: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub matches: Match,
    /// Arguments of `evenkeel fair`, such as `--balance=auto`. `None` for no such worker.
    pub fair: Option<Vec<String>>,
    /// Arguments of `evenkeel steer`. `None` for no such worker.
    pub steer: Option<Vec<String>>,
    /// Rules of `evenkeel check`. `None` for no such worker.
    pub tune: Option<Vec<String>>,
    /// Whether the changes of `tune` stay when the service ends.
    pub keeps_tune: bool,
    /// Whether the service ends a worker if losses rise after its start.
    pub watch_effect: bool,
}

impl Rule {
    /// Returns the arguments of a worker; `None` if the rule wants no such worker.
    #[must_use]
    pub fn arguments(&self, kind: Kind) -> Option<Vec<String>> {
        match kind {
            Kind::Fair => self.fair.clone(),
            Kind::Steer => self.steer.clone(),
            Kind::Tune => {
                let rules = self.tune.as_ref()?.iter().map(|rule| format!("--rule={rule}"));
                Some(rules.chain(self.keeps_tune.then(|| KEEPS.to_owned())).collect())
            }
        }
    }

    /// Returns the kinds of workers that the rule wants.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(|kind| match kind {
            Kind::Tune => self.tune.is_some(),
            Kind::Fair => self.fair.is_some(),
            Kind::Steer => self.steer.is_some(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub socket: PathBuf,
    /// `None` selects [`DEFAULT_GROUP`] if the group exists, otherwise root only.
    pub group: Option<String>,
    pub rules: Vec<Rule>,
}

/// A wrong option of a worker, or a wrong rule of `tune`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The key, if only one option is wrong.
    pub key: Option<String>,
    pub problem: String,
    pub advice: String,
}

/// Checks arguments of `fair` or `steer` as their command lines do, or the name of a rule of `tune`.
pub type CheckOptions<'a> = &'a dyn Fn(Kind, &[String]) -> Result<(), OptionError>;

impl Configuration {
    /// Parses a file. `origin` names the text in errors; `check` checks the options of the workers.
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
    let problem = if text.is_empty() {
        "empty"
    } else if text.len() > LONGEST {
        "longer than 256 bytes"
    } else if text.chars().any(char::is_control) {
        "contains a control character"
    } else {
        return Some(text.to_owned());
    };
    field.complain(BadValue, problem, "write 1 to 256 bytes without control characters");
    None
}

fn read_rules(field: &Field<'_>, check: CheckOptions<'_>) -> Option<Vec<Rule>> {
    let elements = field.list("tables, each [[interface]]")?;
    if elements.len() > MOST_RULES {
        field.complain(
            BadValue,
            format!("the file has {} [[interface]] tables", elements.len()),
            format!("use at most {MOST_RULES}"),
        );
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
    let fair = table.take("fair").map(|field| (read_session(&field, Kind::Fair, &FAIR_KEYS, check), field));
    let steer =
        table.take("steer").map(|field| (read_session(&field, Kind::Steer, &STEER_KEYS, check), field));
    let tune = table.take("tune").map(|field| read_tune(&field, check));
    let at_end = table.take("tune-at-end");
    let watch_effect = table.take("watch-effect").map(|field| field.boolean());
    table.finish();
    if fair.is_none() && steer.is_none() && tune.is_none() {
        let advice = "write fair = {} for the default options of fair, fair = false to leave the interface alone, or tune \
                      or steer";
        element.complain(MissingKey, "the rule has none of fair, steer and tune", advice);
        return None;
    }
    let keeps_tune = at_end.map_or(Some(false), |field| read_at_end(&field, tune.is_some()));
    if let (Some((Some(Some(_)), _)), Some((Some(Some(options)), field))) = (&fair, &steer)
        && !options.iter().any(|option| option == "--backend=xdp")
    {
        let problem = "fair and steer share an interface only if steer has the back end XDP: for n-tuple rules and RPS, steer needs \
             the interface for itself";
        field.complain(BadValue, problem, "add backend = \"xdp\", or remove fair or steer from this rule");
        return None;
    }
    let session = |read: Option<(Option<Option<Vec<String>>>, _)>| read.map_or(Some(None), |(read, _)| read);
    Some(Rule {
        matches: matches?,
        fair: session(fair)?,
        steer: session(steer)?,
        tune: tune.map_or(Some(None), |rules| rules.map(Some))?,
        keeps_tune: keeps_tune?,
        watch_effect: watch_effect.unwrap_or(Some(true))?,
    })
}

/// Reads whether the changes of `tune` stay when the service ends.
fn read_at_end(field: &Field<'_>, has_tune: bool) -> Option<bool> {
    let value = field.string("\"revert\" or \"keep\"")?;
    if !has_tune {
        field.complain(BadValue, "has an effect only with tune", "remove it, or add tune");
        return None;
    }
    match value {
        "revert" => Some(false),
        "keep" => Some(true),
        _ => {
            field.complain(BadValue, "not a value of tune-at-end", "use \"revert\" or \"keep\"");
            None
        }
    }
}

fn read_tune(field: &Field<'_>, check: CheckOptions<'_>) -> Option<Vec<String>> {
    let elements = field.list("a list of rules, such as [\"gro-off\"]")?;
    if elements.is_empty() {
        field.complain(BadValue, "names no rule", "name rules of `evenkeel check`, or remove tune");
        return None;
    }
    let mut rules: Vec<String> = Vec::new();
    let mut is_wrong = false;
    for element in &elements {
        let Some(rule) = word(element, "the name of a rule, such as \"gro-off\"") else {
            is_wrong = true;
            continue;
        };
        if rules.contains(&rule) {
            element.complain(Duplicate, format!("{rule} is already in the list"), "remove it");
            is_wrong = true;
        } else if let Err(OptionError { problem, advice, .. }) =
            check(Kind::Tune, std::slice::from_ref(&rule))
        {
            element.complain(BadValue, problem, advice);
            is_wrong = true;
        }
        rules.push(rule);
    }
    (!is_wrong).then_some(rules)
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
            "give name, driver, path or mac; name = \"*\" matches every interface",
        );
        return None;
    }
    Some(matches)
}

/// Reads the options of a session. The outer `Option` is `None` after an error, and the inner `Option` for
/// the value `false`.
fn read_session(
    field: &Field<'_>,
    kind: Kind,
    keys: &[&'static str],
    check: CheckOptions<'_>,
) -> Option<Option<Vec<String>>> {
    if !field.is_table() {
        if field.boolean()? {
            let example = match kind {
                Kind::Steer => "steer = { policy = \"balance\" }, or another policy",
                Kind::Fair | Kind::Tune => "fair = {} for the default options",
            };
            field.complain(WrongType, "expected a table or false", format!("write {example}"));
            return None;
        }
        return Some(None);
    }
    let mut table = field.table()?;
    let mut arguments = Vec::new();
    let mut fields = Vec::new();
    let mut is_wrong = false;
    for key in keys.iter().copied() {
        let value = match key {
            "policy" => table.require(key, "name a policy, such as policy = \"balance\""),
            _ => table.take(key),
        };
        let Some(value) = value else {
            is_wrong |= key == "policy";
            continue;
        };
        match word(&value, "a string, as on the command line") {
            Some(text) if is_relative(key, &text) => {
                value.complain(
                    BadValue,
                    "not an absolute path",
                    "write a path that begins with /: the service does not run in your directory",
                );
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
    if let Err(OptionError { key, problem, advice }) = check(kind, &arguments) {
        let wrong = fields.iter().find(|(known, _)| key.as_deref() == Some(*known));
        wrong.map_or(field, |(_, field)| field).complain(BadValue, problem, advice);
        return None;
    }
    Some(Some(arguments))
}

/// Returns whether the value of an option is a relative path of a file. A policy or model may also be a name.
fn is_relative(key: &str, text: &str) -> bool {
    let is_named = matches!(key, "policy" | "model") && !text.contains('/') && !text.ends_with(".toml");
    FILES.contains(&key) && !is_named && !text.starts_with('/')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Configuration, String> {
        let check = |kind: Kind, arguments: &[String]| {
            let wrong = arguments.iter().find(|argument| argument.ends_with("=wrong"));
            let unknown = arguments.iter().find(|rule| kind == Kind::Tune && *rule == "no-rule");
            wrong.or(unknown).map_or(Ok(()), |argument| {
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
            (
                rule("match.name = \"a\""),
                "e.toml:2:1: interface[0]: the rule has none of fair, steer and tune; write fair = {}",
            ),
            (rule("match.name = \"a\"\ntune = []"), "e.toml:4:8: interface[0].tune: names no rule"),
            (rule("match.name = \"a\"\ntune = [1]"), "expected the name of a rule"),
            (
                rule("match.name = \"a\"\ntune = [\"x\", \"no-rule\"]"),
                "e.toml:4:14: interface[0].tune[1]: wrong value",
            ),
            (rule("match.name = \"a\"\ntune = [\"x\", \"x\"]"), "x is already in the list"),
            (rule("match.name = \"a\"\nfair = {}\ntune-at-end = \"keep\""), "has an effect only with tune"),
            (
                rule("match.name = \"a\"\ntune = [\"x\"]\ntune-at-end = \"stay\""),
                "e.toml:5:15: interface[0].tune-at-end: ",
            ),
            (rule("match.name = \"a\"\nsteer = true"), "write steer = { policy = "),
            (rule("match.name = \"a\"\nsteer = {}"), "interface[0].steer.policy: missing; name a policy"),
            (
                rule("match.name = \"a\"\nsteer = { policy = \"p.toml\" }"),
                "steer.policy: not an absolute path",
            ),
            (
                rule("match.name = \"a\"\nsteer = { policy = \"balance\", once = \"\" }"),
                "steer.once: unknown key",
            ),
            (
                rule("match.name = \"a\"\nfair = {}\nsteer = { policy = \"balance\" }"),
                "e.toml:5:9: interface[0].steer: fair and steer share an interface only if steer has the back end XDP",
            ),
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

    #[test]
    fn a_rule_may_have_three_kinds_of_workers() {
        let text = "schema = 1\n[[interface]]\nmatch.name = \"a\"\nfair = {}\ntune = [\"x\", \"y\"]\ntune-at-end = \"keep\"\n\
                    steer = { backend = \"xdp\", policy = \"/etc/p.toml\" }\n\
                    [[interface]]\nmatch.name = \"b\"\nfair = false\nsteer = { policy = \"balance\" }\n";
        let found = parse(text).unwrap();
        let of = |rule: usize, kind| found.rules[rule].arguments(kind).map(|arguments| arguments.join(" "));
        assert_eq!(of(0, Kind::Tune).as_deref(), Some("--rule=x --rule=y --at-end=keep"));
        assert_eq!(of(0, Kind::Steer).as_deref(), Some("--policy=/etc/p.toml --backend=xdp"));
        assert_eq!(of(0, Kind::Fair).as_deref(), Some(""));
        assert_eq!((of(1, Kind::Tune), of(1, Kind::Fair)), (None, None));
        assert_eq!(found.rules[1].kinds().collect::<Vec<_>>(), [Kind::Steer]);
    }

    const VALID: &str = "schema = 1\n[service]\nsocket = \"/run/x\"\n[[interface]]\nmatch = { name = \"e*\" }\n\
                         fair = { xps = \"off\" }\nwatch-effect = false\ntune = [\"x\"]\n\
                         tune-at-end = \"keep\"\nsteer = { policy = \"balance\", backend = \"xdp\" }\n";

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
