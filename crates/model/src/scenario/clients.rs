//! The clients of a fetch workload.

use std::ops::RangeInclusive;

use super::error::ScenarioErrorKind::{BadValue, Duplicate};
use super::sections::{FLOWS, read_priority};
use super::toml_table::{Field, Table};
use super::{ClientGroup, Link};
use crate::units::ByteSize;

/// Permitted sizes of values. The maximum is far above the size of a value in a cache.
const SIZES: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(1 << 20);
/// Maximum number of sizes per group of clients, because each size has its own figures.
const MOST_SIZES: usize = 32;
const MOST_GROUPS: usize = 32;

pub(super) fn read_clients(field: &Field<'_>, link: Option<&Link>) -> Option<Vec<ClientGroup>> {
    let elements = field.list("tables, each [[workload.clients]]")?;
    if elements.is_empty() || elements.len() > MOST_GROUPS {
        let problem = format!("the workload has {} groups of clients", elements.len());
        field.complain(BadValue, problem, format!("write 1 to {MOST_GROUPS} groups"));
        return None;
    }
    let groups: Vec<Option<ClientGroup>> =
        elements.iter().map(|element| read_group(element.table()?, link)).collect();
    let groups: Vec<ClientGroup> = groups.into_iter().collect::<Option<_>>()?;
    let total: u32 = groups.iter().map(|group| group.count).sum();
    if !FLOWS.contains(&total) {
        let problem = format!("the groups have {total} clients in total");
        field.complain(BadValue, problem, format!("use at most {}", FLOWS.end()));
        return None;
    }
    Some(groups)
}

fn read_group(mut table: Table<'_>, link: Option<&Link>) -> Option<ClientGroup> {
    let count = table.require("count", "for example count = 6").and_then(|field| field.integer(FLOWS));
    let sizes = table.require("sizes", "for example sizes = [\"512KiB\"]");
    let sizes = sizes.and_then(|field| read_sizes(&field));
    let timed = table.take("timed").map_or(Some(true), |field| field.boolean());
    let priority = read_priority(table.take("priority"), link);
    table.finish();
    Some(ClientGroup { count: count?, sizes: sizes?, timed: timed?, priority: priority? })
}

fn read_sizes(field: &Field<'_>) -> Option<Vec<ByteSize>> {
    let elements = field.list("sizes, each a string with a unit")?;
    if elements.is_empty() || elements.len() > MOST_SIZES {
        let problem = format!("the group has {} sizes", elements.len());
        field.complain(BadValue, problem, format!("write 1 to {MOST_SIZES} sizes"));
        return None;
    }
    let mut sizes = Vec::with_capacity(elements.len());
    for element in elements {
        let size = element.quantity(SIZES, "512KiB")?;
        if sizes.contains(&size) {
            element.complain(Duplicate, format!("{size} appears twice"), "name it once");
            return None;
        }
        sizes.push(size);
    }
    Some(sizes)
}
