//! The result tables of a scenario: the paper's figures and the expectations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::de::DeValue;

use super::error::ScenarioErrorKind::{BadValue, Duplicate};
use super::knobs::spelled;
use super::sections::REPEATS;
use super::toml_table::{Field, Table};
use super::value::Spelling;
use super::{Expectation, LEAST_REPEATS, Measure, Paper, Statistic, Workload, WorkloadKind};
use crate::record::metric;
use crate::text::excerpt;

/// Longest source of a paper's figures.
const LONGEST_SOURCE: usize = 200;

const STATISTICS: [Spelling<Statistic>; 2] = [("mean", Statistic::Mean), ("share", Statistic::Share)];

impl fmt::Display for Statistic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &STATISTICS))
    }
}

/// Returns the keys of all metrics that a scenario with these windows and sizes can use.
pub(super) fn metric_keys(measure: &Measure, workload: &Workload) -> BTreeSet<String> {
    let windows = || measure.windows.iter().map(|window| window.name.as_str());
    // Requests have no connections, and nothing counts the bytes and the order of fetches by flow.
    let plain: &[&str] = match workload.kind {
        WorkloadKind::Bulk | WorkloadKind::Shuffle { .. } | WorkloadKind::Tenants(_) => &metric::PLAIN,
        WorkloadKind::Transfers => {
            &[metric::THROUGHPUT, metric::CPU, metric::JAIN_BYTES, metric::JAIN_PACKETS, metric::RETRANSMITS]
        }
        WorkloadKind::Fetch { .. } => {
            &[metric::THROUGHPUT, metric::CPU, metric::RETRANSMITS, metric::OUT_OF_ORDER]
        }
        WorkloadKind::Requests(_) => &[metric::THROUGHPUT, metric::CPU],
    };
    let has_probe = matches!(workload.kind, WorkloadKind::Bulk | WorkloadKind::Tenants(_));
    let has_ends = matches!(workload.kind, WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. });
    let parts = [
        (metric::LATENCY, if has_probe { metric::LATENCY_PARTS.to_vec() } else { Vec::new() }),
        (metric::COMPLETION, if has_ends { metric::COMPLETION_PARTS.to_vec() } else { Vec::new() }),
        (metric::NFM, windows().collect()),
        (metric::NFM_MAX, windows().collect()),
    ];
    let plain = plain.iter().map(|key| (*key).to_owned());
    let with_parts =
        parts.iter().flat_map(|(prefix, parts)| parts.iter().map(|part| metric::part(prefix, part)));
    let timed = workload.clients().iter().filter(|group| group.timed);
    let by_size = timed
        .flat_map(|group| &group.sizes)
        .flat_map(|size| metric::SIZE_PARTS.map(|part| metric::completion_of(*size, part)));
    let groups = workload.requests().into_iter().flat_map(|requests| &requests.clients);
    let groups =
        groups.map(|group| group.name.as_str()).chain(workload.requests().map(|_| metric::ALL_CLIENTS));
    let by_group = groups.flat_map(|group| {
        let response = metric::RESPONSE_PARTS.map(|part| metric::of_clients(metric::RESPONSE, group, part));
        let requests = metric::REQUESTS_PARTS.map(|part| metric::of_clients(metric::REQUESTS, group, part));
        response.into_iter().chain(requests)
    });
    let of_tenants = workload.tenants().into_iter().flat_map(|_| metric::of_tenants());
    let transfers = matches!(workload.kind, WorkloadKind::Transfers).then(metric::of_transfers);
    plain
        .chain(with_parts)
        .chain(by_size)
        .chain(by_group)
        .chain(of_tenants)
        .chain(transfers.into_iter().flatten())
        .collect()
}

/// Reads `[paper]`. `variants` and `metrics` are the known names; none if they could not be read.
pub(super) fn read_paper(
    mut table: Table<'_>,
    variants: Option<&BTreeSet<&str>>,
    metrics: Option<&BTreeSet<String>>,
) -> Option<Paper> {
    let source = table.require("source", "say where the figures stand, for example \"Titan, Table 3\"");
    let source = source.and_then(|field| field.prose(LONGEST_SOURCE, false));
    let figures = table.require("variants", "add for example [paper.variants.dqa]");
    let figures = figures.and_then(|field| field.table()).map(|table| {
        let read_one = |(name, field): (&str, Field<'_>)| {
            if let Some(known) = variants.filter(|known| !known.contains(name)) {
                field.at_key().unknown_name("variant", name, known.iter().copied());
            }
            let mut figures = BTreeMap::new();
            read_figures(&field.table()?, "", metrics, &mut figures);
            Some((name.to_owned(), figures))
        };
        table.entries().filter_map(read_one).collect()
    });
    table.finish();
    Some(Paper { source: source?, variants: figures? })
}

/// Reads figures into `figures`: `nfm.1s = 0.78`, `"nfm.1s" = 0.78` and `nfm = { 1s = 0.78 }` are equivalent.
/// The TOML parser limits the depth.
fn read_figures(
    table: &Table<'_>,
    prefix: &str,
    metrics: Option<&BTreeSet<String>>,
    figures: &mut BTreeMap<String, f64>,
) {
    for (name, field) in table.entries() {
        let key = if prefix.is_empty() { name.to_owned() } else { metric::part(prefix, name) };
        if let DeValue::Table(_) = field.value
            && let Some(table) = field.table()
        {
            read_figures(&table, &key, metrics, figures);
            continue;
        }
        check_metric(&key, &field.at_key(), metrics);
        let Some(figure) = field.figure() else { continue };
        if figures.insert(key, figure).is_some() {
            field.at_key().complain(
                Duplicate,
                "appears twice",
                "write it with a dot or as a table, not both",
            );
        }
    }
}

/// Reports a metric that this workload does not measure.
pub(super) fn check_metric(key: &str, field: &Field<'_>, metrics: Option<&BTreeSet<String>>) {
    let Some(known) = metrics.filter(|known| !known.contains(key)) else { return };
    let prefix = |key: &str| key.split('.').next().unwrap_or_default().to_owned();
    let prefixes: BTreeSet<String> = known.iter().map(|key| prefix(key)).collect();
    if metric::is_known(&prefix(key)) && !prefixes.contains(&prefix(key)) {
        let advice = format!("it has {}", prefixes.into_iter().collect::<Vec<_>>().join(", "));
        field.complain(BadValue, format!("this workload does not measure '{}'", excerpt(key)), advice);
    } else {
        field.unknown_name("metric", key, known.iter().map(String::as_str));
    }
}

/// Reads the `[[expect]]` tables.
pub(super) fn read_expectations(
    field: &Field<'_>,
    variants: Option<&BTreeSet<&str>>,
    metrics: Option<&BTreeSet<String>>,
    no_probe: Option<&str>,
) -> Option<Vec<Expectation>> {
    let mut expectations = Vec::new();
    let mut seen = BTreeSet::new();
    for element in field.list("tables, each [[expect]]")? {
        let Some(table) = element.table() else { continue };
        let Some(expectation) = read_expectation(table, variants, metrics, no_probe) else { continue };
        let statistic = expectation.statistic.to_string();
        let relative_to = expectation.relative_to.clone();
        if !seen.insert((expectation.variant.clone(), expectation.metric.clone(), statistic, relative_to)) {
            element.complain(
                Duplicate,
                "the same variant, metric and statistic as above",
                "merge the bounds",
            );
        }
        expectations.push(expectation);
    }
    Some(expectations)
}

/// Reports a probe's metric in a workload without a probe; `no_probe` is then the advice.
pub(super) fn check_probe(key: &str, field: &Field<'_>, no_probe: Option<&str>) {
    let is_latency = key.strip_prefix(metric::LATENCY).is_some_and(|part| part.starts_with('.'));
    if let Some(advice) = no_probe
        && (is_latency || [metric::TRANSACTIONS, metric::SLO_VIOLATIONS].contains(&key))
    {
        field.complain(BadValue, "no latency is measured", advice);
    }
}

fn read_expectation(
    mut table: Table<'_>,
    variants: Option<&BTreeSet<&str>>,
    metrics: Option<&BTreeSet<String>>,
    no_probe: Option<&str>,
) -> Option<Expectation> {
    let variant = table.require("variant", "name the variant that it describes").and_then(|field| {
        let name = field.string("the name of a variant")?;
        if let Some(known) = variants.filter(|known| !known.contains(name)) {
            field.unknown_name("variant", name, known.iter().copied());
        }
        Some(name.to_owned())
    });
    let metric = table.require("metric", "for example metric = \"nfm.1s\"").and_then(|field| {
        let key = field.string("the key of a metric, for example \"nfm.1s\"")?;
        check_probe(key, &field, no_probe);
        check_metric(key, &field, metrics);
        Some(key.to_owned())
    });
    let relative_to = match table.take("relative-to") {
        Some(field) => {
            let name = field.string("the name of a variant")?;
            if let Some(known) = variants.filter(|known| !known.contains(name)) {
                field.unknown_name("variant", name, known.iter().copied());
            } else if variant.as_deref() == Some(name) {
                field.complain(BadValue, "the variant itself", "name the one to compare it with");
            }
            Some(name.to_owned())
        }
        None => None,
    };
    let statistic = table.require("statistic", "for example statistic = \"mean\"");
    let statistic = statistic.and_then(|field| field.one_of(&STATISTICS));
    let share = match statistic {
        Some(Statistic::Share) => Some(read_share(&mut table)),
        _ => None,
    };
    let least = table.take("at-least");
    let most = table.take("at-most");
    if least.is_none() && most.is_none() {
        table.missing("at-most", "an expectation has a bound: at-least, at-most or both");
    }
    let at_least = least.as_ref().map(Field::figure);
    let at_most = most.as_ref().map(Field::figure);
    if let (Some(Some(least_allowed)), Some(Some(most_allowed)), Some(field)) = (at_least, at_most, &least)
        && least_allowed > most_allowed
    {
        let problem = format!("{least_allowed} is above at-most, which is {most_allowed}");
        field.complain(BadValue, problem, "no value can meet both");
    }
    let repeats = match table.take("repeats") {
        Some(field) => field.integer(LEAST_REPEATS..=*REPEATS.end()),
        None => Some(LEAST_REPEATS),
    };
    table.finish();
    Some(Expectation {
        variant: variant?,
        metric: metric?,
        statistic: statistic?,
        share: match share {
            Some(read) => Some(read?),
            None => None,
        },
        relative_to,
        at_least: at_least.flatten(),
        at_most: at_most.flatten(),
        repeats: repeats?,
    })
}

/// Reads the required share of repeats within the bounds.
fn read_share(table: &mut Table<'_>) -> Option<f64> {
    let field = table
        .require("share", "the share of the repeats that must lie within the bounds, for example 0.8")?;
    let share = field.figure()?;
    if share <= 0.0 || share >= 1.0 {
        let hint = "the more repeats there are, the more likely one of them fails; use for example 0.9";
        field.complain(BadValue, format!("{share} is not between 0 and 1"), hint);
    }
    Some(share)
}
