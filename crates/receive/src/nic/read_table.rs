//! Reads the filter tables and RSS of a model.

use evenkeel_model::scenario::ScenarioErrorKind::{BadValue, MissingKey};
use evenkeel_model::scenario::document::{Field, Spelling, Table};

use super::rss::{HashedPorts, Rss};
use super::table::{FieldMatch, FilterFields, FilterTable, Precedence};
use crate::filter::TableId;

/// Maximum number of filters in a table, which bounds the memory.
const MOST_FILTERS: u32 = 1 << 20;
/// Maximum number of indirection table entries, which bounds the memory.
const MOST_ENTRIES: u32 = 1 << 16;

/// Ways in which a table's filters match a field; see [`FieldMatch`].
const BITS: [Spelling<FieldMatch>; 5] = [
    ("exact", FieldMatch::Exact),
    ("optional", FieldMatch::Optional),
    ("prefix", FieldMatch::Prefix),
    ("masked", FieldMatch::Masked),
    ("global-mask", FieldMatch::GlobalMask),
];
/// Like [`BITS`], for fields that a filter cannot match in part.
const WHOLE: [Spelling<FieldMatch>; 2] = [("exact", FieldMatch::Exact), ("optional", FieldMatch::Optional)];

/// A table, with references to earlier tables as indices.
pub(super) struct TableDraft {
    pub(super) name: String,
    table: FilterTable,
    rows: Option<usize>,
    excludes: Option<usize>,
}

pub(super) fn read<'t>(
    name: &str,
    field: &Field<'t>,
    mut table: Table<'t>,
    earlier: &[&str],
    queues: u32,
) -> Option<TableDraft> {
    let reference = |field: Option<Field<'t>>| {
        let field = field?;
        let wanted = field.string("the name of a table")?;
        let position = earlier.iter().position(|name| *name == wanted);
        if position.is_none() {
            field.unknown_name("table above this one", wanted, earlier.iter().copied());
        }
        position
    };
    let rows_given = table.take("rows-of");
    let shares = rows_given.is_some();
    let rows = reference(rows_given);
    let capacity = match table.take("capacity") {
        Some(capacity) if shares => {
            capacity.complain(
                BadValue,
                "the table uses the rows of the table in 'rows-of'",
                "remove this key",
            );
            None
        }
        Some(capacity) => capacity.integer(1..=MOST_FILTERS),
        None if shares => Some(0),
        None => {
            table.missing("capacity", "write the maximum number of filters: capacity = 128");
            None
        }
    };
    let excludes = reference(table.take("excludes"));
    let fields = table
        .require("match", "write the header fields that filters match: match = { src = \"exact\", ... }");
    let fields = fields.and_then(|field| field.table()).map(read_fields);
    let precedence = read_precedence(&mut table);
    let spread = table.take("spread").and_then(|field| field.boolean());
    let signature = table.take("signature").and_then(|field| field.boolean());
    let multiple = table.take("queue-multiple").and_then(|field| field.integer(1..=queues));
    table.finish();
    let (fields, precedence) = (fields?, precedence?);
    let signature = signature.unwrap_or(false);
    if precedence == Precedence::Unique && !fields.never_overlap() {
        let advice = "match each field as \"exact\" or \"global-mask\", or use another precedence";
        field.at_key().complain(
            BadValue,
            "two filters could match the same packet, but \"unique\" defines no order",
            advice,
        );
        return None;
    }
    let only_flows = fields.take_flows() && fields.never_overlap() && !fields.share_mask();
    if signature && !(only_flows && precedence == Precedence::Unique) {
        let advice = "match the five-tuple as \"exact\" and no other field, and use precedence = \"unique\"";
        field.at_key().complain(BadValue, "a signature hashes the whole five-tuple", advice);
        return None;
    }
    let table = FilterTable {
        name: name.to_owned(),
        capacity: capacity? as usize,
        fields,
        precedence,
        spread: spread.unwrap_or(false),
        queue_multiple: multiple.and_then(|multiple| u16::try_from(multiple).ok()).unwrap_or(1),
        rows: TableId(0),
        excludes: None,
        signature,
    };
    Some(TableDraft { name: name.to_owned(), table, rows, excludes })
}

fn read_fields(mut table: Table<'_>) -> FilterFields {
    let mut take = |key: &'static str, spellings: &[Spelling<FieldMatch>]| {
        table.take(key).and_then(|field| field.one_of(spellings)).unwrap_or_default()
    };
    let fields = FilterFields {
        transport: take("protocol", &WHOLE),
        source: take("src", &BITS),
        source_port: take("src-port", &BITS),
        destination: take("dst", &BITS),
        destination_port: take("dst-port", &BITS),
        ether_type: take("ether-type", &WHOLE),
        mac_destination: take("mac", &WHOLE),
        connection_request: take("connection-request", &WHOLE),
        one_version: take("ip-version", &WHOLE[..1]) == FieldMatch::Exact,
    };
    table.finish();
    fields
}

#[derive(Clone, Copy)]
enum Rule {
    Unique,
    Priority,
    Location,
}

const RULES: [Spelling<Rule>; 3] =
    [("unique", Rule::Unique), ("priority", Rule::Priority), ("location", Rule::Location)];

fn read_precedence(table: &mut Table<'_>) -> Option<Precedence> {
    let rule = table.require(
        "precedence",
        "write which of several matching filters wins: \"unique\", \"priority\" or \"location\"",
    );
    let rule = rule.and_then(|field| field.one_of(&RULES));
    let priorities = table.take("priorities");
    match (rule?, priorities) {
        (Rule::Unique, None) => Some(Precedence::Unique),
        (Rule::Location, None) => Some(Precedence::Location),
        (Rule::Priority, Some(field)) => {
            field.integer(1..=u32::from(u16::MAX)).map(|levels| Precedence::Priority { levels })
        }
        (Rule::Priority, None) => {
            table.missing("priorities", "write the number of priorities: priorities = 7");
            None
        }
        (_, Some(field)) => {
            let problem = "only a table with precedence = \"priority\" has priorities";
            field.complain(MissingKey, problem, "remove this key");
            None
        }
    }
}

/// Returns the tables, with references to earlier tables resolved.
pub(super) fn resolve(drafts: &[TableDraft]) -> Vec<FilterTable> {
    // No truncation: there are fewer tables than nodes.
    let id = |index: usize| TableId(index as u16);
    let mut tables: Vec<FilterTable> = Vec::new();
    for (index, draft) in drafts.iter().enumerate() {
        let mut table = draft.table.clone();
        table.rows = draft.rows.map_or(id(index), |earlier| tables[earlier].rows);
        if let Some(earlier) = draft.rows {
            table.capacity = tables[earlier].capacity;
        }
        table.excludes = draft.excludes.map(id);
        if let Some(earlier) = draft.excludes {
            tables[earlier].excludes = Some(id(index));
        }
        tables.push(table);
    }
    tables
}

const FLOW_KINDS: [Spelling<usize>; 4] = [("tcp-ipv4", 0), ("udp-ipv4", 1), ("tcp-ipv6", 2), ("udp-ipv6", 3)];

pub(super) fn read_rss(mut table: Table<'_>, queues: u32) -> Option<Rss> {
    let entries = table.require("entries", "write the length of the indirection table: entries = 128");
    let entries = entries.and_then(|field| {
        let entries = field.integer(1..=MOST_ENTRIES)?;
        if !entries.is_power_of_two() {
            field.complain(BadValue, format!("{entries} is not a power of two"), "write for example 128");
            return None;
        }
        Some(entries)
    });
    let named = table.take("queues").map(|field| field.integer(1..=queues));
    let ports = table.take("ports").map(|field| read_hashed_ports(&field));
    let contexts = table.take("contexts").map(|field| field.integer(0..=MOST_CONTEXTS));
    table.finish();
    let most = named.unwrap_or(Some(queues))?;
    Some(Rss {
        entries: entries? as usize,
        queues: u16::try_from(most).unwrap_or(u16::MAX),
        ports: ports.unwrap_or(Some(HashedPorts::ALL))?,
        // No truncation: at most `MOST_CONTEXTS`.
        contexts: contexts.unwrap_or(Some(0))? as u16,
    })
}

/// Maximum number of RSS contexts, more than any NIC has.
const MOST_CONTEXTS: u32 = 1024;

pub(crate) fn read_hashed_ports(field: &Field<'_>) -> Option<HashedPorts> {
    let mut ports = HashedPorts::default();
    for element in field.list("kinds of flows, such as \"tcp-ipv4\"")? {
        ports.0[element.one_of(&FLOW_KINDS)?] = true;
    }
    Some(ports)
}
