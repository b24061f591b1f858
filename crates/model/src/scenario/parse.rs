//! Parses a [`Scenario`]: TOML with positions, the top level of the file, and its version.

use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ScenarioErrorKind::{Schema, Syntax};
use super::error::{ScenarioError, line_and_column};
use super::results::{check_measured, metric_keys, read_expectations, read_paper};
use super::sections::{
    Kind, SHUFFLE, TENANTS, default_hosts, kind_of, read_fetch_measure, read_groups, read_hosts, read_link,
    read_measure, read_shuffle_measure, read_switch, read_workload,
};
use super::toml_table::{Complaints, Located, Table};
use super::variants::VariantSet;
use super::{Measure, Scenario, Setups, sweep};
use crate::text::printable;
use crate::units::{ByteSize, Nanoseconds};

/// Version of the scenario format that this code reads.
pub const SCHEMA: u32 = 1;

pub(super) const LONGEST_DESCRIPTION: usize = 4000;
/// Maximum length of a title, characters.
pub(super) const LONGEST_TITLE: usize = 100;
/// Maximum size of a TOML file, bytes. The limit bounds the work for a hostile file.
const LARGEST_FILE: usize = 1 << 20;

fn too_large(origin: &str) -> ScenarioError {
    let problem = format!("larger than {}", ByteSize::from_bytes(LARGEST_FILE as u64));
    syntax_error(origin, (1, 1), &problem, "name a scenario file")
}

fn syntax_error(origin: &str, (line, column): (usize, usize), problem: &str, advice: &str) -> ScenarioError {
    ScenarioError {
        kind: Syntax,
        origin: origin.to_owned(),
        line,
        column,
        key: String::new(),
        problem: problem.to_owned(),
        advice: advice.to_owned(),
    }
}

/// Parses a TOML document, with the position of every key and value.
pub fn document<'t>(text: &'t str, origin: &str) -> Result<Spanned<DeTable<'t>>, ScenarioError> {
    if text.len() > LARGEST_FILE {
        return Err(too_large(origin));
    }
    DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or_else(|| line_with_spanless_error(text), |span| span.start);
        let problem = format!("not TOML: {}", printable(error.message()));
        syntax_error(origin, line_and_column(text, offset), &problem, "")
    })
}

/// Returns the offset of the line where the parser fails without a position.
///
/// The parser omits the position only for keys with very many parts (`a.b.c...`). The text after such a
/// key does not matter, so bisection finds the line.
fn line_with_spanless_error(text: &str) -> usize {
    let ends: Vec<usize> = text
        .split_inclusive('\n')
        .scan(0, |end, line| {
            *end += line.len();
            Some(*end)
        })
        .collect();
    let is_before =
        |end: &usize| DeTable::parse(&text[..*end]).err().is_none_or(|error| error.span().is_some());
    let line = ends.partition_point(is_before);
    line.checked_sub(1).and_then(|previous| ends.get(previous)).copied().unwrap_or(0)
}

/// Returns file, line and column of the value of a key such as `workload.flows`, or `None` if the text lacks
/// the key or is not TOML.
#[must_use]
pub fn place_of(text: &str, origin: &str, key: &str) -> Option<String> {
    let tree = document(text, origin).ok()?;
    let (path, last) = key.rsplit_once('.').map_or((None, key), |(path, last)| (Some(path), last));
    let mut table = tree.get_ref();
    for key in path.iter().flat_map(|path| path.split('.')) {
        let DeValue::Table(inner) = table.get(key)?.get_ref() else { return None };
        table = inner;
    }
    let (line, column) = line_and_column(text, table.get(last)?.span().start);
    Some(format!("{}:{line}:{column}", printable(origin)))
}

/// Reads `schema`, and records an error if the key is missing, invalid or has another version. Returns
/// false only for another version, because the rest of the file cannot be checked then.
pub fn read_schema(table: &mut Table<'_>) -> bool {
    let Some(field) = table.require("schema", &format!("add the line schema = {SCHEMA}")) else {
        return true;
    };
    match field.integer(0..=u32::MAX) {
        Some(schema) if schema != SCHEMA => {
            let problem = format!("the file has schema {schema}, and this evenkeel reads schema {SCHEMA}");
            field.complain(
                Schema,
                problem,
                format!(
                    "convert the file to schema {SCHEMA}, or use the version of evenkeel that it was written for"
                ),
            );
            false
        }
        _ => true,
    }
}

/// Parses a scenario.
///
/// `origin` names the text in errors. `tables` are the names and texts of the variant tables that the
/// scenario may inherit from, usually [`super::bundled::variant_tables`].
///
/// # Errors
/// Returns the first error in the text, or in the variant table that the text names.
pub fn parse(text: &str, origin: &str, tables: &[(&str, &str)]) -> Result<Scenario, ScenarioError> {
    parse_with(text, origin, tables, Setups::default())
}

/// Parses a scenario like [`parse`], with further qdisc setups for scenarios of tenants.
pub fn parse_with(
    text: &str,
    origin: &str,
    tables: &[(&str, &str)],
    setups: Setups<'_>,
) -> Result<Scenario, ScenarioError> {
    let document = document(text, origin)?;
    let complaints = Complaints::new(text, origin);
    let root = || Table::root(document.get_ref(), &complaints);
    let mut head = root();
    // With an unknown version or kind, the rest of the file would cause misleading errors.
    let kind = if read_schema(&mut head) { kind_of(head.take("workload")) } else { None };
    let scenario = match kind {
        Some(Kind::Tenants) => sweep::read_scenario(root(), setups, &complaints),
        Some(kind) => read_scenario(root(), kind, tables, &complaints)?,
        None => None,
    };
    if let Some(scenario) = scenario.as_ref().filter(|_| complaints.is_empty()) {
        check_measured(root(), scenario);
    }
    match (complaints.into_error(), scenario) {
        (None, Some(scenario)) => Ok(scenario),
        (Some(error), _) => Err(error),
        // Fallback: every reader that returns `None` has recorded an error.
        (None, None) => Err(syntax_error(origin, (1, 1), "not a complete scenario", "")),
    }
}

/// Reads a scenario of any kind except tenants. Returns `None` if errors are recorded, and an error if the
/// variant table is invalid.
fn read_scenario(
    mut root: Table<'_>,
    kind: Kind,
    tables: &[(&str, &str)],
    complaints: &Complaints<'_>,
) -> Result<Option<Scenario>, ScenarioError> {
    // The caller has read this key.
    root.take("schema");
    let name = root.require("name", "name the scenario, for example name = \"my-scenario\"");
    let name = name.and_then(|field| field.name("a name", "-"));
    let title = root.require("title", "say in one line what the scenario compares");
    let title = title.and_then(|field| field.prose(LONGEST_TITLE, false));
    let description = root.take("description").and_then(|field| field.prose(LONGEST_DESCRIPTION, true));
    let workload = root.require("workload", "add a [workload] table");
    let link = root.require("link", "add a [link] table").and_then(|field| read_link(field.table()?, kind));
    let (hosts, switch, measure) = match kind {
        Kind::Bulk | Kind::Tenants => {
            let hosts = root.take("hosts").and_then(|field| read_hosts(field.table()?, kind));
            let measure = root.require("measure", "add a [measure] table");
            (hosts, None, measure.and_then(|field| read_measure(field.table()?)))
        }
        Kind::Requests | Kind::Transfers => {
            let measure = root.require("measure", "add a [measure] table");
            (None, None, measure.and_then(|field| read_fetch_measure(field.table()?)))
        }
        Kind::Fetch => {
            let hosts = root.take("hosts").and_then(|field| read_hosts(field.table()?, kind));
            let measure = root.require("measure", "add a [measure] table");
            (hosts, None, measure.and_then(|field| read_fetch_measure(field.table()?)))
        }
        Kind::Shuffle => {
            let hosts = root.require("hosts", "write the number of hosts, for example count = 24");
            let hosts = hosts.and_then(|field| read_hosts(field.table()?, kind));
            let switch = root.require("switch", "a shuffle needs a switch, for example buffer = \"12MB\"");
            let switch = switch.and_then(|field| read_switch(field.table()?, link.as_ref()));
            let measure = match root.take("measure") {
                Some(field) => field.table().and_then(|table| read_shuffle_measure(Some(table))),
                None => read_shuffle_measure(None),
            };
            (hosts, switch, measure)
        }
    };
    let set = VariantSet::read(&mut root, tables, kind, complaints)?;
    let names = set.names();
    let workload = workload.and_then(|field| {
        read_workload(field.table()?, link.as_ref(), measure.as_ref(), hosts.as_ref(), names.as_ref())
    });

    let listed =
        root.require("variants", "list the variants to compare, for example variants = [\"cmax\", \"dqa\"]");
    let listed = listed.and_then(|field| field.names("variant", names.as_ref())).unwrap_or_default();
    let groups = root.take("groups").and_then(|field| Some(read_groups(&field.table()?, names.as_ref())));
    let groups = groups.unwrap_or_default();
    // Without a valid measurement, the check reports no flow that starts too late.
    let length = measure.as_ref().map_or(Nanoseconds::new(u64::MAX), Measure::whole);
    if let Some(link) = &link {
        set.check(link, length, listed.iter().chain(groups.values().flatten()), complaints);
    }

    let metrics: Option<BTreeSet<String>> =
        measure.as_ref().zip(workload.as_ref()).map(|(measure, workload)| metric_keys(measure, workload));
    let paper =
        root.take("paper").and_then(|field| read_paper(field.table()?, names.as_ref(), metrics.as_ref()));
    let expectations = root.take("expect");
    let expectations =
        expectations.and_then(|field| read_expectations(&field, names.as_ref(), metrics.as_ref()));
    root.finish_except(&[
        ("switch", SHUFFLE),
        ("hosts", "bulk, shuffle or fetch"),
        ("sweep", TENANTS),
        ("plot", TENANTS),
        ("qdisc-files", TENANTS),
    ]);
    if !complaints.is_empty() {
        return Ok(None);
    }

    let build = || {
        let link = link?;
        let (variants, further_variants) = set.finish(&link, length, &listed);
        let values = |names: Vec<_>| names.into_iter().map(|name: Located<String>| name.value).collect();
        Some(Scenario {
            name: name?,
            title: title?,
            description: description.unwrap_or_default(),
            hosts: hosts.unwrap_or_else(|| default_hosts(&link)),
            link,
            switch,
            workload: workload?,
            measure: measure?,
            variants,
            further_variants,
            groups: groups.into_iter().map(|(name, members)| (name, values(members))).collect(),
            paper,
            expectations: expectations.unwrap_or_default(),
        })
    };
    Ok(build())
}
