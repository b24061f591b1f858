//! The result tables of a scenario: the paper's figures and the expectations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::de::DeValue;

use super::error::ScenarioErrorKind::{BadValue, Duplicate};
use super::knobs::spelled;
use super::sections::REPEATS;
use super::toml_table::{Field, Table};
use super::value::Spelling;
use super::{
    Expectation, LEAST_REPEATS, Measure, Paper, Scenario, Statistic, Variant, Workload, WorkloadKind,
};
use crate::record::metric;
use crate::text::excerpt;

const LONGEST_SOURCE: usize = 200;

const STATISTICS: [Spelling<Statistic>; 2] = [("mean", Statistic::Mean), ("share", Statistic::Share)];

impl fmt::Display for Statistic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &STATISTICS))
    }
}

/// Returns the keys of all metrics that a scenario with this `[measure]` and this `[workload]` can use.
pub(super) fn metric_keys(measure: &Measure, workload: &Workload) -> BTreeSet<String> {
    let windows = || measure.windows.iter().map(|window| window.name.as_str());
    // Requests have no TCP connections, so no retransmissions. For shuffles and fetches, the bytes are not
    // counted per flow.
    let plain: &[&str] = match workload.kind {
        WorkloadKind::Bulk | WorkloadKind::Tenants(_) => &metric::PLAIN,
        WorkloadKind::Transfers => {
            &[metric::THROUGHPUT, metric::CPU, metric::JAIN_BYTES, metric::JAIN_PACKETS, metric::RETRANSMITS]
        }
        WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } => {
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

/// Reads `[paper]`. `variants` and `metrics` are the known names, or `None` if the names could not be
/// read.
pub(super) fn read_paper(
    mut table: Table<'_>,
    variants: Option<&BTreeSet<&str>>,
    metrics: Option<&BTreeSet<String>>,
) -> Option<Paper> {
    let source = table.require("source", "name the source of the figures, for example \"Titan, Table 3\"");
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
/// The TOML parser limits the depth of tables, and so the depth of this recursion.
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
        check_range(figure, &key, &field);
        if figures.insert(key, figure).is_some() {
            field.at_key().complain(
                Duplicate,
                "appears twice",
                "write it with a dot or as a table, not both",
            );
        }
    }
}

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

fn check_range(figure: f64, key: &str, field: &Field<'_>) {
    let (least, most) = metric::range(key);
    if figure > most {
        let problem = format!("{} is never {figure}", excerpt(key));
        field.complain(BadValue, problem, format!("it lies between {least} and {most}"));
    }
}

pub(super) fn read_expectations(
    field: &Field<'_>,
    variants: Option<&BTreeSet<&str>>,
    metrics: Option<&BTreeSet<String>>,
) -> Option<Vec<Expectation>> {
    let mut expectations = Vec::new();
    let mut seen = BTreeSet::new();
    for element in field.list("tables, each [[expect]]")? {
        let Some(table) = element.table() else { continue };
        let Some(expectation) = read_expectation(table, variants, metrics) else { continue };
        let statistic = expectation.statistic.to_string();
        let relative_to = expectation.relative_to.clone();
        if !seen.insert((expectation.variant.clone(), expectation.metric.clone(), statistic, relative_to)) {
            element.complain(
                Duplicate,
                "an expectation above has the same variant, metric and statistic",
                "merge the two expectations",
            );
        }
        expectations.push(expectation);
    }
    Some(expectations)
}

/// Reports the metrics of a valid scenario that cannot be measured: in expectations, those that no repeat of
/// the named variants can have, and in plots, those that no variant can have.
pub(super) fn check_measured(mut root: Table<'_>, scenario: &Scenario) {
    fn elements<'t>(field: Option<Field<'t>>) -> Vec<Field<'t>> {
        field.and_then(|field| field.list("tables")).unwrap_or_default()
    }
    for (element, expectation) in elements(root.take("expect")).iter().zip(&scenario.expectations) {
        let Some(mut table) = element.table() else { continue };
        let names = [(table.take("metric"), Some(&expectation.variant))];
        let names = names.into_iter().chain([(table.take("relative-to"), expectation.relative_to.as_ref())]);
        for (field, name) in names {
            let variant = name.and_then(|name| scenario.variant(name));
            let found = variant.and_then(|variant| unmeasured(scenario, variant, &expectation.metric));
            if let Some(((problem, advice), field)) = found.zip(field) {
                field.complain(BadValue, problem, advice);
            }
        }
    }
    let plots = scenario.workload.tenants().map(|tenants| tenants.plots.as_slice()).unwrap_or_default();
    for (element, plot) in elements(root.take("plot")).iter().zip(plots) {
        let mut reasons = scenario.all_variants().map(|variant| unmeasured(scenario, variant, &plot.metric));
        let Some(first) = reasons.next().flatten().filter(|_| reasons.all(|reason| reason.is_some())) else {
            continue;
        };
        if let Some(field) = element.table().and_then(|mut table| table.take("metric")) {
            field.complain(BadValue, first.0, first.1);
        }
    }
}

/// Returns the problem and the advice if no repeat of `variant` can have the metric, although this kind
/// of workload has the metric.
fn unmeasured(scenario: &Scenario, variant: &Variant, key: &str) -> Option<(String, String)> {
    let is = |prefix: &str| key.split('.').next() == Some(prefix);
    let is_fairness = is(metric::NFM) || is(metric::NFM_MAX);
    let name = excerpt(&variant.name);
    let reason = |problem: String, advice: &str| Some((problem, advice.to_owned()));
    match &scenario.workload.kind {
        WorkloadKind::Bulk if is(metric::LATENCY) && scenario.workload.latency.is_none() => {
            reason("no latency is measured".to_owned(), "add a [workload.latency] table")
        }
        WorkloadKind::Bulk if is_fairness && scenario.workload.flows < 2 => {
            reason("fairness needs at least two flows".to_owned(), "set workload.flows to 2 or more")
        }
        WorkloadKind::Fetch { clients }
            if is(metric::COMPLETION) && clients.iter().all(|group| !group.timed) =>
        {
            reason(
                "no group of clients has a measured completion time".to_owned(),
                "remove timed = false from a group",
            )
        }
        WorkloadKind::Requests(requests) if is(metric::RESPONSE) || is(metric::REQUESTS) => {
            let group = key.split('.').nth(1)?;
            let has_it = requests.clients_with(&variant.name).any(|clients| clients.name == group);
            if has_it || group == metric::ALL_CLIENTS {
                return None;
            }
            let problem = format!("the clients '{}' do not run in {name}", excerpt(group));
            reason(problem, "name another group, or add the variant to the group's variants")
        }
        WorkloadKind::Transfers => {
            let switch = metric::part(metric::DROPS, metric::DROPS_PARTS[0]);
            if key != switch || variant.transfers()?.switch_buffer.is_some() {
                return None;
            }
            reason(format!("{name} has no switch"), "set switch-buffer in the variant")
        }
        WorkloadKind::Tenants(tenants) => {
            let point = variant.tenants()?;
            let (flows, probes) = (point.bulk_flows(), point.probes);
            let of_probes = [metric::TRANSACTIONS, metric::SLO_VIOLATIONS].contains(&key);
            let of_line = [metric::LOST_CAPACITY, metric::IDLE_WHILE_BACKLOGGED].contains(&key);
            let of_bulk = [
                metric::THROUGHPUT,
                metric::CPU_PER_GB,
                metric::JAIN_BYTES,
                metric::JAIN_PACKETS,
                metric::OUT_OF_ORDER,
            ];
            if probes.is_none() && (is(metric::LATENCY) || of_probes) {
                let mut points = scenario.all_variants().filter_map(Variant::tenants);
                if points.all(|point| point.probes.is_none()) {
                    return reason("no latency is measured".to_owned(), "add a [workload.probes] table");
                }
                return reason(format!("{name} has no probe"), "name a point with probes");
            }
            if key == metric::SLO_VIOLATIONS && probes.is_some_and(|probes| probes.slo.is_none()) {
                let advice = "state workload.probes.slo, for example slo = \"1ms\"";
                return reason("no service level objective is stated".to_owned(), advice);
            }
            if of_line && !tenants.line {
                let advice = "set workload.line = true, or name another metric";
                return reason("no line limits the senders".to_owned(), advice);
            }
            if flows == 0 && of_bulk.iter().any(|metric| is(metric)) {
                return reason(format!("{name} has no bulk sender"), "name a point with bulk senders");
            }
            (flows < 2 && is_fairness).then(|| {
                let count = if flows == 0 { "no bulk sender" } else { "a single bulk sender" };
                (format!("{name} has {count}"), "name a point with at least 2 bulk senders".to_owned())
            })
        }
        WorkloadKind::Bulk | WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } => None,
        WorkloadKind::Requests(_) => None,
    }
}

fn read_expectation(
    mut table: Table<'_>,
    variants: Option<&BTreeSet<&str>>,
    metrics: Option<&BTreeSet<String>>,
) -> Option<Expectation> {
    let variant =
        table.require("variant", "name the variant that the expectation is about").and_then(|field| {
            let name = field.string("the name of a variant")?;
            if let Some(known) = variants.filter(|known| !known.contains(name)) {
                field.unknown_name("variant", name, known.iter().copied());
            }
            Some(name.to_owned())
        });
    let metric = table.require("metric", "for example metric = \"nfm.1s\"").and_then(|field| {
        let key = field.string("the key of a metric, for example \"nfm.1s\"")?;
        check_metric(key, &field, metrics);
        Some(key.to_owned())
    });
    let relative_to = match table.take("relative-to") {
        Some(field) => {
            let name = field.string("the name of a variant")?;
            if let Some(known) = variants.filter(|known| !known.contains(name)) {
                field.unknown_name("variant", name, known.iter().copied());
            } else if variant.as_deref() == Some(name) {
                field.complain(
                    BadValue,
                    "a variant cannot be compared with itself",
                    "name a different variant for the comparison",
                );
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
        table.missing("at-most", "write at-least, at-most or both");
    }
    let at_least = least.as_ref().map(Field::figure);
    let at_most = most.as_ref().map(Field::figure);
    if let (Some(Some(least_allowed)), Some(Some(most_allowed)), Some(field)) = (at_least, at_most, &least)
        && least_allowed > most_allowed
    {
        let problem = format!("at-least is {least_allowed}, and at-most is {most_allowed}");
        field.complain(BadValue, problem, "at-least must not be above at-most");
    }
    // A ratio may exceed the metric's own range.
    if let (Some(metric), None) = (&metric, &relative_to) {
        for (bound, field) in [(at_least, &least), (at_most, &most)] {
            if let (Some(Some(bound)), Some(field)) = (bound, field) {
                check_range(bound, metric, field);
            }
        }
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
    let share = field.figure_or("write a number above 0 and below 1")?;
    if share <= 0.0 || share >= 1.0 {
        let hint = "the more repeats there are, the more likely one of them fails; use for example 0.9";
        field.complain(BadValue, format!("{share} is not above 0 and below 1"), hint);
    }
    Some(share)
}
