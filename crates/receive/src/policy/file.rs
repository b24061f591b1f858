//! Policy files: TOML. The parser accepts no unknown keys and reports errors with line and column.
//!
//! The smallest file is one line:
//!
//! ```toml
//! policy = "balance"
//! ```

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_model::scenario::document::{Complaints, Field, Spelling, Table, document};
use evenkeel_model::scenario::{ScenarioError, ScenarioErrorKind};
use evenkeel_model::units::Nanoseconds;

use super::bind::REST;
use super::script::{Script, ScriptSource};
use super::{Selector, Weight};
use crate::filter::AddressMatch;
use crate::{QueueId, Transport};

/// Maximum number of classes in a file, without the rest.
const MOST_CLASSES: usize = 64;
/// Maximum number of terms of a pool; bounds the time of a search, which computes each term for each flow.
const MOST_TERMS: usize = 16;
/// Default share of the queues for high-priority flows, per cent: 4 of 10 queues, as in Dragonet's
/// experiments (section 4.3).
const ISOLATED_SHARE: f64 = 40.0;
/// Longest name of a process, bytes (`TASK_COMM_LEN` without the final 0, include/linux/sched.h).
const LONGEST_PROCESS: usize = 15;
/// Labels of the class that the policy `isolation` creates if the file has no class.
const HIGH_PRIORITY: [&str; 4] = ["high", "hp", "high-priority", "high_priority"];

#[derive(Clone, Debug)]
pub enum TermKind {
    /// Equal numbers of flows on the queues.
    Balance,
    /// Equal rates on the queues.
    BalanceRate,
    /// Flows on the queues of their readers' CPUs.
    Locality,
    /// Flows on their previous queues.
    FewestChanges,
    Script(Arc<Script>),
}

#[derive(Clone, Debug)]
pub struct TermSpec {
    pub kind: TermKind,
    pub weight: Weight,
}

#[derive(Clone, Debug, PartialEq)]
pub enum QueueShare {
    /// The queues that the class shares with the flows of no class.
    Shared,
    /// A number of queues for exclusive use.
    Count(u16),
    /// A share of all queues in per cent, at least one queue, for exclusive use.
    Percent(f64),
    /// A list of queues for exclusive use.
    Own(Vec<QueueId>),
    /// A list of queues that other flows may also use.
    Pinned(Vec<QueueId>),
}

#[derive(Clone, Debug)]
pub struct ClassSpec {
    pub name: String,
    pub selector: Selector,
    pub queues: QueueShare,
    /// Terms for the class's exclusive queues. If empty, the file's terms apply.
    pub terms: Vec<TermSpec>,
}

#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// Name of the policy, derived from its terms.
    pub name: String,
    /// Terms of each pool that has no terms of its own.
    pub terms: Vec<TermSpec>,
    /// Classes in the order of the file. A flow belongs to the first class that selects it.
    pub classes: Vec<ClassSpec>,
    /// Names of the script files, as the caller gave them ([`ScriptSource::origin`]).
    pub script_files: Vec<String>,
    /// Remarks on classes that get no flows, or only flows that name them, each with file and line.
    pub remarks: Vec<String>,
    pub(super) origin: String,
}

/// Returns the script at a path that a policy names (`script-file`), or the reason why it cannot be read.
pub type ReadScript<'r> = &'r dyn Fn(&str) -> Result<ScriptSource, String>;

const POLICIES: [&str; 6] = ["balance", "balance-rate", "isolation", "locality", "fewest-changes", "script"];

impl PolicyFile {
    /// Parses a file whose scripts are part of its text. `origin` names the file in errors.
    ///
    /// # Errors
    /// Returns an error if the text is invalid: its first mistake, with line and column.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        Self::parse_with_scripts(text, origin, &|_| Err("files cannot be named here".to_owned()))
    }

    /// Parses a file. `scripts` reads its script files.
    ///
    /// # Errors
    /// Returns an error if the text or a script is invalid: its first mistake, with line and column.
    pub fn parse_with_scripts(
        text: &str,
        origin: &str,
        scripts: ReadScript<'_>,
    ) -> Result<Self, ScenarioError> {
        let tree = document(text, origin)?;
        let complaints = Complaints::new(text, origin);
        let (files, remarks) = (RefCell::default(), RefCell::default());
        let reader = Reader { text, origin, complaints: &complaints, scripts, files, remarks };
        let mut root = Table::root(tree.get_ref(), &complaints);
        let file = reader.file(&mut root);
        root.finish();
        complaints.into_error().map_or(Ok(file), Err)
    }

    /// Returns a built-in policy; `None` if the name is unknown, or the policy needs a file.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        if name == "script" || !POLICIES.contains(&name) {
            return None;
        }
        Self::parse(&format!("policy = \"{name}\""), name).ok()
    }

    #[must_use]
    pub fn names() -> &'static [&'static str] {
        &POLICIES
    }
}

/// The policy of a file or of a term, before its script is read.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Balance,
    BalanceRate,
    Isolation,
    Locality,
    FewestChanges,
    Script,
}

const KINDS: [Spelling<Kind>; 6] = [
    ("balance", Kind::Balance),
    ("balance-rate", Kind::BalanceRate),
    ("isolation", Kind::Isolation),
    ("locality", Kind::Locality),
    ("fewest-changes", Kind::FewestChanges),
    ("script", Kind::Script),
];

struct Reader<'r> {
    text: &'r str,
    origin: &'r str,
    complaints: &'r Complaints<'r>,
    scripts: ReadScript<'r>,
    files: RefCell<Vec<String>>,
    remarks: RefCell<Vec<String>>,
}

impl Reader<'_> {
    fn file(&self, root: &mut Table<'_>) -> PolicyFile {
        let policy = root.take("policy");
        let list = root.take("term");
        let class_list = root.take("class");
        let script = self.script(root);
        let mut isolates = false;
        let (name, terms) = match (&policy, &list) {
            (Some(policy), Some(list)) => {
                let advice = "remove 'policy' or the terms; a term can have any policy except isolation";
                list.at_key().complain(
                    ScenarioErrorKind::BadValue,
                    "a file cannot have both 'policy' and terms",
                    advice,
                );
                let _ = policy;
                (String::new(), Vec::new())
            }
            (Some(policy), None) => {
                let kind = policy.one_of(&KINDS);
                isolates = kind == Some(Kind::Isolation);
                let name = kind.map_or("", |kind| spelling(kind)).to_owned();
                (name, self.term(policy, kind, script, Weight::ONE).into_iter().collect())
            }
            (None, Some(list)) => {
                self.refuse_script(script, "move the script to the term with policy = \"script\"");
                self.terms(list)
            }
            (None, None) => {
                if script.is_none() && class_list.is_none() {
                    root.missing("policy", "for example policy = \"balance\"");
                }
                self.refuse_script(script, "write policy = \"script\" above the script");
                let balance = TermSpec { kind: TermKind::Balance, weight: Weight::ONE };
                ("balance".to_owned(), vec![balance])
            }
        };
        let mut classes = Vec::new();
        if let Some(list) = class_list {
            let elements = list.list("tables, each [[class]]").unwrap_or_default();
            if elements.len() > MOST_CLASSES {
                let problem = format!("the policy has {} classes", elements.len());
                let advice = format!("use at most {MOST_CLASSES}");
                list.complain(ScenarioErrorKind::BadValue, problem, advice);
            }
            for element in elements.iter().take(MOST_CLASSES) {
                let class = element.table().and_then(|table| self.class(element, table, &classes, isolates));
                classes.extend(class);
            }
        }
        if isolates && classes.is_empty() {
            classes.push(ClassSpec {
                name: HIGH_PRIORITY[0].to_owned(),
                selector: Selector {
                    labels: HIGH_PRIORITY.map(str::to_owned).to_vec(),
                    ..Selector::default()
                },
                queues: QueueShare::Percent(ISOLATED_SHARE),
                terms: Vec::new(),
            });
        }
        let (script_files, remarks) = (self.files.take(), self.remarks.take());
        PolicyFile { name, terms, classes, script_files, remarks, origin: self.origin.to_owned() }
    }

    fn terms(&self, list: &Field<'_>) -> (String, Vec<TermSpec>) {
        let elements = list.list("tables, each [[term]]").unwrap_or_default();
        if elements.is_empty() || elements.len() > MOST_TERMS {
            let advice = format!("write 1 to {MOST_TERMS} terms");
            list.complain(ScenarioErrorKind::BadValue, format!("{} terms", elements.len()), advice);
            return (String::new(), Vec::new());
        }
        let mut names = Vec::new();
        let mut terms = Vec::new();
        for element in &elements {
            let Some(mut table) = element.table() else { continue };
            let policy = table.require("policy", "for example policy = \"balance\"");
            let weight = table.take("weight").map_or(Some(Weight::ONE), |field| weight(&field));
            let script = self.script(&mut table);
            table.finish();
            let Some(policy) = policy else { continue };
            let kind = policy.one_of(&KINDS);
            if kind == Some(Kind::Isolation) {
                let advice = "for isolation, give a class 'queues'";
                policy.complain(ScenarioErrorKind::BadValue, "isolation is not a term", advice);
                continue;
            }
            names.extend(kind.map(spelling));
            terms.extend(weight.and_then(|weight| self.term(&policy, kind, script, weight)));
        }
        (names.join(" + "), terms)
    }

    fn term(
        &self,
        policy: &Field<'_>,
        kind: Option<Kind>,
        script: Option<ScriptField<'_>>,
        weight: Weight,
    ) -> Option<TermSpec> {
        let kind = kind?;
        if kind != Kind::Script {
            self.refuse_script(script, "write policy = \"script\", or remove the script");
        } else {
            let Some(script) = script else {
                let advice = "write script = '''fn queue_cost(queue) { queue.flows * queue.flows }''', or name its \
                              file: script-file = \"policy.rhai\"";
                policy.complain(ScenarioErrorKind::MissingKey, "the policy has no script", advice);
                return None;
            };
            let kind = TermKind::Script(self.compile(&script)?);
            return Some(TermSpec { kind, weight });
        }
        let kind = match kind {
            Kind::Balance | Kind::Isolation | Kind::Script => TermKind::Balance,
            Kind::BalanceRate => TermKind::BalanceRate,
            Kind::Locality => TermKind::Locality,
            Kind::FewestChanges => TermKind::FewestChanges,
        };
        Some(TermSpec { kind, weight })
    }

    fn script<'t>(&self, table: &mut Table<'t>) -> Option<ScriptField<'t>> {
        let time = table.take("script-time");
        let (text, file) = (table.take("script"), table.take("script-file"));
        if let (Some(_), Some(file)) = (&text, &file) {
            file.at_key().complain(
                ScenarioErrorKind::BadValue,
                "'script' and 'script-file' exclude each other",
                "remove one of the two",
            );
        }
        let is_file = text.is_none();
        let script = text.or(file);
        let range = Nanoseconds::new(1_000_000)..=Nanoseconds::new(60_000_000_000);
        // `quantity` reports an invalid time limit. Continue with the default, so that the script is also
        // checked.
        let limit = time.as_ref().and_then(|field| field.quantity(range, "2s"));
        let limit = limit.unwrap_or(Nanoseconds::new(2_000_000_000));
        if let (Some(time), None) = (&time, &script) {
            time.at_key().complain(
                ScenarioErrorKind::BadValue,
                "this key needs a script",
                "write a script, or remove this key",
            );
        }
        Some(ScriptField { field: script?, is_file, limit: Duration::from_nanos(limit.as_u64()) })
    }

    fn refuse_script(&self, script: Option<ScriptField<'_>>, advice: &str) {
        if let Some(script) = script {
            script.field.at_key().complain(ScenarioErrorKind::BadValue, "no policy uses this script", advice);
        }
    }

    /// Compiles a script file. The place of an error is the key in the policy file; the text of the error
    /// contains the position in the script file.
    fn compile_file(&self, script: &ScriptField<'_>) -> Option<Arc<Script>> {
        let path = script.field.string("the path of a script")?;
        let source = (self.scripts)(path);
        source.iter().for_each(|source| self.files.borrow_mut().push(source.origin.clone()));
        let compiled = source
            .and_then(|source| Script::compile(source, script.limit).map_err(|error| error.to_string()));
        match compiled {
            Ok(script) => Some(Arc::new(script)),
            Err(problem) => {
                self.complain_of(script, script.field.span().start, &problem);
                None
            }
        }
    }

    fn complain_of(&self, script: &ScriptField<'_>, place: usize, problem: &str) {
        let problem: String = problem.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let (kind, path) = (ScenarioErrorKind::BadValue, script.field.path());
        self.complaints.push(kind, &(place..place), path, problem, "");
    }

    /// Compiles a script from the policy file or from a script file. The place of an error in a script of the
    /// policy file is its line and column there.
    fn compile(&self, script: &ScriptField<'_>) -> Option<Arc<Script>> {
        if script.is_file {
            return self.compile_file(script);
        }
        let text = script.field.string("a script")?;
        let span = script.field.span();
        let raw = self.text.get(span.clone()).unwrap_or_default();
        let quotes = if raw.starts_with("'''") || raw.starts_with("\"\"\"") { 3 } else { 1 };
        let after = raw.get(quotes..).unwrap_or_default();
        // In TOML, a line break right after the opening quotes is not part of the string.
        let skipped = match after {
            _ if quotes == 1 => 0,
            _ if after.starts_with("\r\n") => 2,
            _ if after.starts_with('\n') => 1,
            _ => 0,
        };
        let begin = span.start + quotes + skipped;
        let above = self.text.get(..begin).unwrap_or_default();
        let line_start = above.rfind('\n').map_or(0, |newline| newline + 1);
        let source = ScriptSource {
            text: text.to_owned(),
            origin: self.origin.to_owned(),
            lines_above: above.matches('\n').count(),
            columns_before: above[line_start..].chars().count(),
        };
        match Script::compile(source, script.limit) {
            Ok(script) => Some(Arc::new(script)),
            Err(error) => {
                let place = offset(self.text, error.line, error.column).clamp(span.start, span.end);
                self.complain_of(script, place, &excerpt(&error.problem));
                None
            }
        }
    }

    fn class(
        &self,
        element: &Field<'_>,
        mut table: Table<'_>,
        before: &[ClassSpec],
        isolates: bool,
    ) -> Option<ClassSpec> {
        let name = table.require("name", "for example name = \"high\"");
        let name_field = name.as_ref();
        let name = name_field.and_then(|field| field.name("a name", "-_."));
        if let (Some(field), Some(name)) = (name_field, &name) {
            refuse_known(field, name, before);
        }
        let label_field = table.take("label");
        let label = label_field.as_ref().and_then(|field| field.prose(64, false));
        if let (Some(field), Some(label)) = (&label_field, &label) {
            refuse_known(field, label, before);
        }
        let mut selector = Selector {
            labels: label.or_else(|| name.clone()).into_iter().collect(),
            transport: table.take("protocol").and_then(|field| protocol(&field)),
            source: table.take("source").and_then(|field| network(&field)),
            source_port: table.take("source-port").and_then(|field| field.ports()),
            destination: table.take("destination").and_then(|field| network(&field)),
            destination_port: table.take("destination-port").and_then(|field| field.ports()),
            process: table.take("process").and_then(|field| field.prose(64, false)),
            cgroup: table.take("cgroup").and_then(|field| field.cgroup()),
        };
        if let (Some(source), Some(destination)) = (selector.source, selector.destination)
            && source.address().is_ipv4() != destination.address().is_ipv4()
        {
            element.complain(
                ScenarioErrorKind::BadValue,
                "source and destination have different IP versions; write two IPv4 or two IPv6 networks",
                "",
            );
            selector.source = None;
        }
        let (queues, pin) = (table.take("queues"), table.take("pin"));
        let terms = match table.take("policy") {
            Some(policy) => {
                let script = self.script(&mut table);
                let kind = policy.one_of(&KINDS);
                if kind == Some(Kind::Isolation) {
                    policy.complain(
                        ScenarioErrorKind::BadValue,
                        "isolation cannot be the policy of a class",
                        "name another policy for the flows of the class",
                    );
                }
                self.term(&policy, kind, script, Weight::ONE).into_iter().collect()
            }
            None => Vec::new(),
        };
        let has_terms = !terms.is_empty();
        let share = match (&queues, &pin) {
            (Some(_), Some(pin)) => {
                let advice = "remove one of the two: other flows may use the queues in 'pin', but not the queues in \
                              'queues'";
                pin.at_key().complain(
                    ScenarioErrorKind::BadValue,
                    "a class cannot have both 'pin' and 'queues'",
                    advice,
                );
                None
            }
            (Some(queues), None) => own_queues(queues),
            (None, Some(pin)) => queue_list(pin).map(QueueShare::Pinned),
            (None, None) => Some(QueueShare::Shared),
        };
        // On queues that a class shares with others, no placement could keep the classes apart (Algorithm 2
        // of the paper).
        if isolates && matches!(share, Some(QueueShare::Shared | QueueShare::Pinned(_))) {
            let at = pin.as_ref().map_or_else(|| element.clone(), Field::at_key);
            let advice = "reserve queues for the class: queues = 4, queues = \"40%\" or queues = [6, 7]";
            at.complain(ScenarioErrorKind::BadValue, "isolation needs queues", advice);
        }
        if has_terms && matches!(share, Some(QueueShare::Shared | QueueShare::Pinned(_))) {
            element.complain(
                ScenarioErrorKind::BadValue,
                "a class without queues of its own cannot have a policy",
                "give the class 'queues', or remove its policy",
            );
        }
        table.finish();
        let class = ClassSpec { name: name?, selector, queues: share?, terms };
        self.remarks.borrow_mut().extend(self.remark(element, &class, before));
        Some(class)
    }

    /// Returns a remark on a class that gets no flow, or only flows that name it.
    fn remark(&self, element: &Field<'_>, class: &ClassSpec, before: &[ClassSpec]) -> Option<String> {
        let ClassSpec { name, selector, .. } = class;
        let above = self.text.get(..element.span().start).unwrap_or_default();
        let place = format!("{}:{}", self.origin, above.matches('\n').count() + 1);
        if selector.process.as_ref().is_some_and(|process| process.len() > LONGEST_PROCESS) {
            return Some(format!(
                "{place}: class {name} can match no flow: the kernel shortens names of processes to \
                 {LONGEST_PROCESS} bytes; shorten the name"
            ));
        }
        let why = match before.iter().find(|other| other.selector.covers(selector)) {
            Some(other) => format!("class {} above it matches all of these flows first", other.name),
            None => {
                let others = selector.covered_by(before, |class: &ClassSpec| &class.selector);
                let names: Vec<&str> = others.into_iter().map(|class| class.name.as_str()).collect();
                if names.is_empty() {
                    return None;
                }
                format!("classes {} above it match all of these flows first", names.join(", "))
            }
        };
        Some(format!(
            "{place}: class {name} can match no flow: {why}; move {name} up, change the conditions, or remove it"
        ))
    }
}

/// Refuses a name or label that an earlier class has, because a flow with this name could belong to
/// either class.
fn refuse_known(field: &Field<'_>, name: &str, before: &[ClassSpec]) {
    let is_it = |known: &str| known.eq_ignore_ascii_case(name);
    let named = before.iter().map(|class| class.name.as_str()).chain([REST]).find(|known| is_it(known));
    let labelled = before.iter().find(|class| class.selector.labels.iter().any(|label| is_it(label)));
    let problem = match (named, labelled) {
        (Some(REST), _) => format!("{REST} is the class of the flows without a class"),
        (Some(known), _) => format!("another class has the name {known}"),
        (None, Some(class)) => format!("class {} already has the label {name}", class.name),
        (None, None) => return,
    };
    field.complain(
        ScenarioErrorKind::Duplicate,
        problem,
        "choose another one, because a flow that names a class must belong to one class only",
    );
}

struct ScriptField<'t> {
    field: Field<'t>,
    /// Whether the key's value is a path instead of the script's text.
    is_file: bool,
    limit: Duration,
}

fn spelling(kind: Kind) -> &'static str {
    KINDS.iter().find(|(_, other)| *other == kind).map_or("", |(name, _)| name)
}

/// Returns the byte offset of a line and a column, both counted from 1.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let rest = text.get(start..).unwrap_or_default();
    start + rest.chars().take(column - 1).map(char::len_utf8).sum::<usize>()
}

fn excerpt(text: &str) -> String {
    const LONGEST: usize = 160;
    text.chars().take(LONGEST).collect()
}

fn weight(field: &Field<'_>) -> Option<Weight> {
    let advice = "write a weight from 0.001 to 1000";
    let figure = field.figure_or(advice)?;
    let weight = Weight::new(figure);
    if weight.is_none() {
        field.complain(ScenarioErrorKind::BadValue, format!("the weight {figure} is out of range"), advice);
    }
    weight
}

fn protocol(field: &Field<'_>) -> Option<Transport> {
    field.one_of(&[("tcp", Transport::Tcp), ("udp", Transport::Udp)])
}

/// Parses an address, or a network as `address/length`.
fn network(field: &Field<'_>) -> Option<AddressMatch> {
    let text = field.string("an address such as \"10.0.0.1\", or a network such as \"10.0.0.0/8\"")?;
    let parsed = match text.split_once('/') {
        None => text.parse().ok().map(AddressMatch::exact),
        Some((address, length)) => address.parse::<std::net::IpAddr>().ok().and_then(|address| {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse::<u8>().ok().filter(|length| digits && *length <= bits)?;
            let network = AddressMatch::prefix(address, length);
            // Bits set after the prefix are an error.
            (network.address() == address).then_some(network)
        }),
    };
    if parsed.is_none() {
        let problem = format!("'{}' is neither an address nor a network", excerpt(text).escape_debug());
        let advice = "write \"10.0.0.1\" or \"10.0.0.0/8\", with no bit set after the prefix";
        field.complain(ScenarioErrorKind::BadValue, problem, advice);
    }
    parsed
}

/// Parses a number of queues, a share in per cent, or a list of queues.
fn own_queues(field: &Field<'_>) -> Option<QueueShare> {
    const MOST: u32 = 65_535;
    if field.is_list() {
        return queue_list(field).map(QueueShare::Own);
    }
    if !field.is_string() {
        return field.integer(1..=MOST).and_then(|count| u16::try_from(count).ok()).map(QueueShare::Count);
    }
    let text = field.string("a share such as \"40%\"")?;
    let digits = text.strip_suffix('%').filter(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    });
    let share =
        digits.and_then(|digits| digits.parse::<f64>().ok()).filter(|share| *share > 0.0 && *share < 100.0);
    if share.is_none() {
        let problem = format!("'{}' is not a share of the queues", excerpt(text).escape_debug());
        let advice = "write a number such as 4, a share such as \"40%\", or a list such as [6, 7]";
        field.complain(ScenarioErrorKind::BadValue, problem, advice);
    }
    share.map(QueueShare::Percent)
}

/// Parses distinct queue numbers, at least one. A single number is a list of one.
fn queue_list(field: &Field<'_>) -> Option<Vec<QueueId>> {
    let queue = |field: &Field<'_>| {
        field.integer(0..=65_534).and_then(|queue| u16::try_from(queue).ok()).map(QueueId)
    };
    if !field.is_list() {
        return queue(field).map(|queue| vec![queue]);
    }
    let mut list = Vec::new();
    for element in field.list("numbers of queues")? {
        let queue = queue(&element)?;
        if list.contains(&queue) {
            element.complain(
                ScenarioErrorKind::Duplicate,
                format!("queue {queue} appears twice"),
                "name it once",
            );
            return None;
        }
        list.push(queue);
    }
    if list.is_empty() {
        field.complain(ScenarioErrorKind::BadValue, "the list names no queue", "name at least one queue");
        return None;
    }
    list.sort_unstable();
    Some(list)
}
