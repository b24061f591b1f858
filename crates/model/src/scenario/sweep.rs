//! Reads the workload of tenants and its sweeps. Every combination of a qdisc setup and of a value on each
//! axis is a point, and a variant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::error::ScenarioErrorKind::{BadValue, Duplicate, UnknownName};
use super::knobs::spelled;
use super::parse::{LONGEST_DESCRIPTION, LONGEST_TITLE, document};
use super::results::{check_metric, metric_keys, read_expectations};
use super::sections::{
    Kind, NOT_TENANTS, SHUFFLE, default_hosts, or_default, read_link, read_tenants_measure,
};
use super::toml_table::{Complaints, Field, Table};
use super::traffic::{LENGTHS, MESSAGES, PROCESSES, Traffic};
use super::value::Spelling;
use super::{
    Axis, BulkGroup, BulkTenants, GroupCount, Plot, Probes, Scenario, Sets, TenantPoint, Tenants, Variant,
    Workload, WorkloadKind,
};
use crate::qdisc::{Catalogue, Classifier, FilterRules, QdiscSetup};
use crate::text::{counted, excerpt, suggestion};
use crate::units::ByteSize;

const RULES: RangeInclusive<u32> = 0..=10_000;
// Maximum numbers of sweeps, values per axis, points and plots. They bound the work for a hostile file.
const MOST_SWEEPS: usize = 16;
const MOST_VALUES: usize = 128;
const MOST_POINTS: usize = 10_000;
const MOST_PLOTS: usize = 64;
/// Maximum number of setup files that a scenario may name; bounds the work for a hostile file.
const MOST_FILES: usize = 16;
const LONGEST_PATH: usize = 1000;
const LONGEST_PLOT_TITLE: usize = 100;

const SETUP_NAMES: &str = "names of qdisc setups";
const QDISC: &str = "qdisc";

const CLASSIFIERS: [Spelling<Classifier>; 3] =
    [("u32", Classifier::U32), ("flower", Classifier::Flower), ("bpf", Classifier::Bpf)];

impl fmt::Display for Classifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &CLASSIFIERS))
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Setups<'a> {
    /// Setups that the scenario can name; `None` for the bundled setups.
    pub catalogue: Option<&'a Catalogue>,
    /// Names of the user's setups, which are added to every sweep.
    pub further: &'a [String],
}

/// Returns the files of setups in a scenario's `qdisc-files`. The list is empty for an invalid text;
/// [`super::parse_with`] reports the reason.
#[must_use]
pub fn qdisc_files(text: &str) -> Vec<String> {
    let Ok(document) = document(text, "") else { return Vec::new() };
    let complaints = Complaints::new(text, "");
    Table::root(document.get_ref(), &complaints)
        .take("qdisc-files")
        .and_then(|field| read_files(&field))
        .unwrap_or_default()
}

fn read_files(field: &Field<'_>) -> Option<Vec<String>> {
    let elements = field.list("paths")?;
    if elements.len() > MOST_FILES {
        let problem = format!("the list has {} files", elements.len());
        field.complain(BadValue, problem, format!("name at most {MOST_FILES} files"));
        return None;
    }
    elements.iter().map(|element| element.prose(LONGEST_PATH, false)).collect()
}

/// Reads a scenario of tenants, or returns `None` after errors.
pub(super) fn read_scenario(
    mut root: Table<'_>,
    setups: Setups<'_>,
    complaints: &Complaints<'_>,
) -> Option<Scenario> {
    // The caller has read this key.
    root.take("schema");
    let name = root.require("name", "name the scenario, for example name = \"my-scenario\"");
    let name = name.and_then(|field| field.name("a name", "-"));
    let title = root.require("title", "say in one line what the scenario compares");
    let title = title.and_then(|field| field.prose(LONGEST_TITLE, false));
    let description = root.take("description").and_then(|field| field.prose(LONGEST_DESCRIPTION, true));
    if let Some(files) = root.take("qdisc-files") {
        read_files(&files);
    }
    let link =
        root.require("link", "add a [link] table").and_then(|field| read_link(field.table()?, Kind::Tenants));
    let measure = root.require("measure", "add a [measure] table");
    let traffic = root.require("workload", "add a [workload] table");
    let traffic = traffic.and_then(|field| Traffic::read(field.table()?));
    let has_line = traffic.as_ref().is_none_or(|traffic| traffic.line);
    let measure = measure.and_then(|field| read_tenants_measure(field.table()?, has_line));
    let bundled;
    let catalogue = match setups.catalogue {
        Some(catalogue) => catalogue,
        None => {
            bundled = Catalogue::bundled();
            &bundled
        }
    };
    let sweeps = root.require("sweep", "add a [[sweep]] with qdiscs = [\"pfifo\"]");
    let place = sweeps.clone();
    let sweeps = sweeps.and_then(|field| read_sweeps(&field, traffic.as_ref(), catalogue, setups.further));
    let axes = sweeps.as_deref().map(axes);
    let points = sweeps.as_deref().zip(traffic.as_ref()).map(|(sweeps, traffic)| points(sweeps, traffic));
    let names: Option<BTreeSet<&str>> =
        points.as_ref().map(|points| points.iter().map(|(variant, _)| variant.name.as_str()).collect());
    let idle = points.iter().flatten().find(|(variant, _)| {
        variant.tenants().is_some_and(|point| point.bulk_flows() + point.probe_count() == 0)
    });
    if let Some(((idle, _), place)) = idle.zip(place) {
        let problem = format!("{} has no traffic", idle.name);
        place.complain(BadValue, problem, "give every point a client or a probe");
    }
    let most_flows = points.iter().flatten().filter_map(|(variant, _)| variant.tenants());
    let most_flows = most_flows.map(TenantPoint::bulk_flows).max().unwrap_or(0);
    let workload = |tenants: Tenants, traffic: &Traffic| Workload {
        kind: WorkloadKind::Tenants(tenants),
        flows: most_flows,
        congestion_control: traffic.congestion_control.clone(),
        priority: 0,
        latency: None,
    };
    let tenants = |plots| {
        let traffic = traffic.as_ref()?;
        Some(Tenants {
            line: traffic.line,
            axes: axes.clone()?,
            bulk: traffic.bulk.clone(),
            probes: traffic.probes,
            quick: measure.as_ref()?.1,
            plots,
        })
    };
    let metrics = tenants(Vec::new()).zip(measure.as_ref()).zip(traffic.as_ref());
    let metrics =
        metrics.map(|((tenants, (measure, _)), traffic)| metric_keys(measure, &workload(tenants, traffic)));
    let plots = match root.take("plot") {
        Some(field) => read_plots(&field, axes.as_deref(), metrics.as_ref()),
        None => Some(Vec::new()),
    };
    let expectations = root.take("expect");
    let expectations =
        expectations.and_then(|field| read_expectations(&field, names.as_ref(), metrics.as_ref()));
    root.finish_except(&[
        ("switch", SHUFFLE),
        ("hosts", "bulk, shuffle or fetch"),
        ("variants", NOT_TENANTS),
        ("variant", NOT_TENANTS),
        ("variant-table", NOT_TENANTS),
        ("groups", NOT_TENANTS),
        ("paper", NOT_TENANTS),
    ]);
    if !complaints.is_empty() {
        return None;
    }
    let build = || {
        let link = link?;
        let workload = workload(tenants(plots?)?, traffic.as_ref()?);
        let points = points?;
        let groups = groups(&points);
        let (variants, further): (Vec<_>, Vec<_>) = points.into_iter().partition(|(_, quick)| *quick);
        Some(Scenario {
            name: name?,
            title: title?,
            description: description.unwrap_or_default(),
            hosts: default_hosts(&link),
            link,
            switch: None,
            workload,
            measure: measure.clone()?.0,
            variants: variants.into_iter().map(|(variant, _)| variant).collect(),
            further_variants: further.into_iter().map(|(variant, _)| variant).collect(),
            groups,
            paper: None,
            expectations: expectations.unwrap_or_default(),
        })
    };
    build()
}

fn groups(points: &[(Variant, bool)]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |group: &str, variant: &Variant| {
        groups.entry(group.to_owned()).or_default().push(variant.name.clone());
    };
    for (variant, _) in points {
        add("full", variant);
        if let Some(setup) = variant.tenants().map(|point| &point.qdisc.name).filter(|name| *name != "full") {
            add(setup, variant);
        }
    }
    groups
}

impl Traffic {
    /// Returns whether a sweep must define the axis because the workload does not set the value.
    fn needs(&self, axis: AxisKind) -> bool {
        match axis {
            AxisKind::Clients => self.bulk.iter().any(|group| matches!(group.count, GroupCount::Share(_))),
            AxisKind::Length => self.bulk.iter().any(|group| group.length.is_none()),
            AxisKind::Probes => self.probes.is_some_and(|probes| probes.count.is_none()),
            AxisKind::Message => self.probes.is_some_and(|probes| probes.message.is_none()),
            AxisKind::Rules | AxisKind::Classifier => false,
        }
    }
}

/// Axes besides the qdisc, in the order in which the name of a point lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AxisKind {
    Clients,
    Probes,
    Length,
    Message,
    Classifier,
    Rules,
}

const AXES: [Spelling<AxisKind>; 6] = [
    ("clients", AxisKind::Clients),
    ("probes", AxisKind::Probes),
    ("length", AxisKind::Length),
    ("message", AxisKind::Message),
    ("classifier", AxisKind::Classifier),
    ("rules", AxisKind::Rules),
];

impl AxisKind {
    fn name(self) -> &'static str {
        spelled(self, &AXES)
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Clients => "clients = [1, 8, 48]",
            Self::Probes => "probes = [1, 8]",
            Self::Length => "length = [\"4KiB\"]",
            Self::Message => "message = [\"64B\"]",
            Self::Classifier => "classifier = [\"u32\", \"bpf\"]",
            Self::Rules => "rules = [0, 100]",
        }
    }

    fn read(self, field: &Field<'_>) -> Option<AxisValue> {
        match self {
            Self::Clients | Self::Probes => field.integer(PROCESSES).map(AxisValue::Count),
            Self::Rules => field.integer(RULES).map(AxisValue::Count),
            Self::Length => field.quantity(LENGTHS, "4KiB").map(AxisValue::Size),
            Self::Message => field.quantity(MESSAGES, "64B").map(AxisValue::Size),
            Self::Classifier => field.one_of(&CLASSIFIERS).map(AxisValue::Classifier),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AxisValue {
    Count(u32),
    Size(ByteSize),
    Classifier(Classifier),
}

/// The values of an axis in a sweep: each value, its spelling, and whether a quick run includes it.
type Values = Vec<(AxisValue, String, bool)>;

/// A sweep: its setups and its values on every axis. The flag of a setup or a value states whether a
/// quick run includes it.
#[derive(Clone, Debug)]
struct Sweep {
    setups: Vec<(Arc<QdiscSetup>, bool)>,
    axes: Vec<(AxisKind, Values)>,
}

fn read_sweeps(
    field: &Field<'_>,
    traffic: Option<&Traffic>,
    catalogue: &Catalogue,
    further: &[String],
) -> Option<Vec<Sweep>> {
    let elements = field.list("tables, each [[sweep]]")?;
    if elements.is_empty() || elements.len() > MOST_SWEEPS {
        let problem = format!("the scenario has {} sweeps", elements.len());
        field.complain(BadValue, problem, format!("write 1 to {MOST_SWEEPS} sweeps"));
        return None;
    }
    let mut sweeps: Vec<Sweep> = Vec::with_capacity(elements.len());
    let mut points = 0_usize;
    for element in &elements {
        let sweep = read_sweep(element.table()?, traffic, catalogue, further)?;
        let kinds = |sweep: &Sweep| sweep.axes.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        if element.complaints.is_empty() && sweeps.first().is_some_and(|first| kinds(first) != kinds(&sweep))
        {
            let problem = "the axes differ from the axes of the first sweep";
            element.complain(
                BadValue,
                problem,
                "name the same axes in each sweep; an axis may have a single value",
            );
            return None;
        }
        let own =
            sweep.axes.iter().map(|(_, values)| values.len()).fold(sweep.setups.len(), usize::saturating_mul);
        points = points.saturating_add(own);
        if points > MOST_POINTS {
            element.complain(
                BadValue,
                format!("the sweeps up to here have {points} points"),
                format!("use at most {MOST_POINTS} points"),
            );
            return None;
        }
        sweeps.push(sweep);
    }
    Some(sweeps)
}

fn read_sweep(
    mut table: Table<'_>,
    traffic: Option<&Traffic>,
    catalogue: &Catalogue,
    further: &[String],
) -> Option<Sweep> {
    let names = table.require("qdiscs", "name the setups, for example qdiscs = [\"pfifo\", \"htb\"]");
    let setups = names.as_ref().and_then(|field| read_setups(field, catalogue));
    let fields: Vec<(AxisKind, Option<Field<'_>>)> =
        AXES.iter().map(|(name, kind)| (*kind, table.take(name))).collect();
    let full_only = or_default(table.take("full-only"), false, |field| field.boolean());
    let quick = table.take("quick");
    if let (Some(true), Some(quick)) = (full_only, &quick) {
        quick.at_key().complain(
            BadValue,
            "a sweep with full-only has no quick run",
            "remove 'quick' or 'full-only'",
        );
    }
    for (kind, field) in &fields {
        let needed = traffic.map(|traffic| traffic.needs(*kind));
        let filters = matches!(kind, AxisKind::Rules | AxisKind::Classifier);
        match (needed, field) {
            (Some(true), None) => table.missing(
                kind.name(),
                &format!(
                    "the workload does not set this value, so the sweep must, for example {}",
                    kind.advice()
                ),
            ),
            (Some(false), Some(field)) if !filters => {
                let problem = "no part of the workload depends on this axis";
                field.at_key().complain(
                    BadValue,
                    problem,
                    "remove the axis, or remove the value from the workload",
                );
            }
            _ => {}
        }
    }
    let clients = fields.iter().find(|(kind, _)| *kind == AxisKind::Clients);
    if let Some((clients, traffic)) = clients.and_then(|(_, field)| field.as_ref()).zip(traffic) {
        check_shares(clients, traffic);
    }
    let has = |kind: AxisKind| fields.iter().any(|(known, field)| *known == kind && field.is_some());
    match (has(AxisKind::Rules), has(AxisKind::Classifier)) {
        (true, false) => table
            .missing("classifier", "name the classifier of the rules, for example classifier = [\"u32\"]"),
        (false, true) => table.missing("rules", "write the numbers of rules, for example rules = [0, 100]"),
        _ => {}
    }
    table.finish();

    let mut quick = match &quick {
        Some(field) => Some(field.table()?),
        None => None,
    };
    let in_quick = !full_only?;
    let read_axis = |(kind, field): (AxisKind, Option<Field<'_>>)| {
        let chosen = quick.as_mut().and_then(|quick| quick.take(kind.name()));
        let Some(field) = field else {
            if let Some(chosen) = chosen.filter(|_| !traffic.is_some_and(|traffic| traffic.needs(kind))) {
                chosen.at_key().complain(BadValue, "the sweep has no such axis", "remove the key");
            }
            return None;
        };
        Some(read_axis(kind, &field, chosen.as_ref(), in_quick))
    };
    let axes: Vec<Option<(AxisKind, Values)>> = fields.into_iter().filter_map(read_axis).collect();
    let has_rules = axes.iter().flatten().any(|(kind, values)| {
        *kind == AxisKind::Rules && values.iter().any(|(value, ..)| *value != AxisValue::Count(0))
    });
    if let (true, Some(field), Some(setups)) = (has_rules, &names, &setups) {
        for (element, setup) in field.list(SETUP_NAMES)?.iter().zip(setups) {
            if let Some((problem, advice)) = setup.without_rules() {
                element.complain(BadValue, problem, advice);
            }
        }
    }
    let chosen = match quick.as_mut().and_then(|quick| quick.take("qdiscs")) {
        Some(field) => {
            let chosen = read_setups(&field, catalogue)?;
            let known = |setup: &QdiscSetup| setups.iter().flatten().any(|known| known.name == setup.name);
            if let Some(stranger) = chosen.iter().find(|setup| setups.is_some() && !known(setup)) {
                not_in_the_sweep(&field, &stranger.name);
                return None;
            }
            Some(chosen)
        }
        None => None,
    };
    if let Some(quick) = quick {
        quick.finish();
    }
    let mut setups: Vec<(Arc<QdiscSetup>, bool)> = setups?
        .into_iter()
        .map(|setup| {
            let quick =
                chosen.as_ref().is_none_or(|chosen| chosen.iter().any(|known| known.name == setup.name));
            (setup, quick && in_quick)
        })
        .collect();
    for name in further {
        if let Some(setup) =
            catalogue.get(name).filter(|setup| setups.iter().all(|(own, _)| own.name != setup.name))
        {
            setups.push((setup, in_quick));
        }
    }
    Some(Sweep { setups, axes: axes.into_iter().collect::<Option<_>>()? })
}

fn not_in_the_sweep(field: &Field<'_>, value: &str) {
    let problem = format!("{} is not among the values of the sweep", excerpt(value));
    field.complain(BadValue, problem, "use values of the sweep, or add this value to the sweep");
}

/// Reports a number of clients for which a group with a share gets no client. Zero clients are valid.
fn check_shares(clients: &Field<'_>, traffic: &Traffic) {
    for element in clients.list("values").unwrap_or_default() {
        let Some(count) = element.integer(PROCESSES).filter(|count| *count > 0) else { continue };
        let counts = BulkGroup::counts(&traffic.bulk, count);
        let Some(empty) = counts.iter().position(|count| *count == 0) else { continue };
        let clients = counted(count as usize, "client");
        let problem = format!("with {clients}, the share of workload.bulk[{empty}] is less than one client");
        element.complain(BadValue, problem, "write more clients, or change the shares");
    }
}

/// Reads one axis of a sweep. `chosen` lists the values of a quick run; `None` means all values.
fn read_axis(
    kind: AxisKind,
    field: &Field<'_>,
    chosen: Option<&Field<'_>>,
    in_quick: bool,
) -> Option<(AxisKind, Values)> {
    let values = read_values(field, kind)?;
    let quick = match chosen {
        Some(field) => {
            let chosen = read_values(field, kind)?;
            let stranger = chosen.iter().find(|(value, _)| !values.iter().any(|(known, _)| known == value));
            if let Some((_, stranger)) = stranger {
                not_in_the_sweep(field, stranger);
                return None;
            }
            Some(chosen)
        }
        None => None,
    };
    let is_quick = |value: &AxisValue| {
        in_quick && quick.as_ref().is_none_or(|quick| quick.iter().any(|(known, _)| known == value))
    };
    let values = values.into_iter().map(|(value, text)| (value, text, is_quick(&value)));
    Some((kind, values.collect()))
}

fn read_setups(field: &Field<'_>, catalogue: &Catalogue) -> Option<Vec<Arc<QdiscSetup>>> {
    let mut setups: Vec<Arc<QdiscSetup>> = Vec::new();
    for element in listed(field, SETUP_NAMES)? {
        let name = element.string("the name of a qdisc setup")?;
        let Some(setup) = catalogue.get(name) else {
            let advice = suggestion(name, catalogue.names());
            element.complain(UnknownName, format!("unknown qdisc setup '{}'", excerpt(name)), advice);
            return None;
        };
        if setups.iter().any(|known| known.name == setup.name) {
            element.complain(Duplicate, format!("'{}' appears twice", excerpt(name)), "name it once");
            return None;
        }
        setups.push(setup);
    }
    Some(setups)
}

fn read_values(field: &Field<'_>, kind: AxisKind) -> Option<Vec<(AxisValue, String)>> {
    let mut values: Vec<(AxisValue, String)> = Vec::new();
    for element in listed(field, "values")? {
        let value = kind.read(&element)?;
        if values.iter().any(|(known, _)| *known == value) {
            element.complain(Duplicate, "this value appears above already", "name it once");
            return None;
        }
        let spelt = match value {
            AxisValue::Count(count) => count.to_string(),
            AxisValue::Size(_) | AxisValue::Classifier(_) => element.text()?.to_owned(),
        };
        values.push((value, spelt));
    }
    Some(values)
}

fn listed<'t>(field: &Field<'t>, of: &str) -> Option<Vec<Field<'t>>> {
    let elements = field.list(of)?;
    if elements.is_empty() || elements.len() > MOST_VALUES {
        let problem = format!("the list has {} values", elements.len());
        field.complain(BadValue, problem, format!("write 1 to {MOST_VALUES} values"));
        return None;
    }
    Some(elements)
}

fn axes(sweeps: &[Sweep]) -> Vec<Axis> {
    fn add(axis: &mut Axis, value: &str, quick: bool) {
        if !axis.values.iter().any(|known| known == value) {
            axis.values.push(value.to_owned());
        }
        if quick && !axis.quick.iter().any(|known| known == value) {
            axis.quick.push(value.to_owned());
        }
    }
    let mut axes: Vec<Axis> = Vec::new();
    let empty = |name: &str| Axis { name: name.to_owned(), values: Vec::new(), quick: Vec::new() };
    for sweep in sweeps {
        if axes.is_empty() {
            axes.push(empty(QDISC));
            axes.extend(sweep.axes.iter().map(|(kind, _)| empty(kind.name())));
        }
        for (setup, quick) in &sweep.setups {
            add(&mut axes[0], &setup.name, *quick);
        }
        for (axis, (_, values)) in axes[1..].iter_mut().zip(&sweep.axes) {
            values.iter().for_each(|(_, text, quick)| add(axis, text, *quick));
        }
    }
    axes
}

/// A value on each axis of a sweep, with its spelling.
type Combination<'s> = Vec<(AxisKind, AxisValue, &'s str)>;

/// Returns every point without duplicates, and whether a quick run includes the point. Within a sweep, the
/// points of a setup are consecutive.
fn points(sweeps: &[Sweep], traffic: &Traffic) -> Vec<(Variant, bool)> {
    let mut points: Vec<(Variant, bool)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for sweep in sweeps {
        for (setup, setup_quick) in &sweep.setups {
            let mut combinations: Vec<(Combination<'_>, bool)> = vec![(Vec::new(), *setup_quick)];
            for (kind, values) in &sweep.axes {
                combinations = combinations
                    .iter()
                    .flat_map(|(before, quick)| {
                        values.iter().map(move |(value, text, own)| {
                            let mut combination = before.clone();
                            combination.push((*kind, *value, text.as_str()));
                            (combination, *quick && *own)
                        })
                    })
                    .collect();
            }
            for (combination, quick) in combinations {
                let variant = point(setup, &combination, traffic);
                match places.get(&variant.name) {
                    Some(place) => points[*place].1 |= quick,
                    None => {
                        places.insert(variant.name.clone(), points.len());
                        points.push((variant, quick));
                    }
                }
            }
        }
    }
    points
}

fn point(setup: &Arc<QdiscSetup>, combination: &[(AxisKind, AxisValue, &str)], traffic: &Traffic) -> Variant {
    let value = |kind| combination.iter().find(|(known, ..)| *known == kind).map(|(_, value, _)| *value);
    let count = |kind| match value(kind) {
        Some(AxisValue::Count(count)) => Some(count),
        _ => None,
    };
    let size = |kind| match value(kind) {
        Some(AxisValue::Size(size)) => Some(size),
        _ => None,
    };
    let counts = BulkGroup::counts(&traffic.bulk, count(AxisKind::Clients).unwrap_or(0));
    let bulk = traffic.bulk.iter().zip(counts).map(|(group, count)| BulkTenants {
        count,
        length: group.length.or(size(AxisKind::Length)).unwrap_or(*LENGTHS.start()),
        on_off: group.on_off,
    });
    let bulk: Vec<BulkTenants> = bulk.collect();
    let probes = traffic.probes.map(|probes| Probes {
        count: probes.count.or(count(AxisKind::Probes)).unwrap_or(0),
        message: probes.message.or(size(AxisKind::Message)).unwrap_or(*MESSAGES.start()),
        slo: probes.slo,
    });
    let classifier = match value(AxisKind::Classifier) {
        Some(AxisValue::Classifier(classifier)) => Some(classifier),
        _ => None,
    };
    let rules = count(AxisKind::Rules).filter(|rules| *rules > 0);
    let filter_rules = classifier.zip(rules).map(|(classifier, rules)| FilterRules { classifier, rules });
    let mut name = setup.name.clone();
    let mut coordinates = vec![(QDISC.to_owned(), setup.name.clone())];
    for (kind, _, text) in combination {
        name.push_str(&format!(" {}={text}", kind.name()));
        coordinates.push((kind.name().to_owned(), (*text).to_owned()));
    }
    Variant {
        name,
        base: None,
        summary: setup.summary.clone(),
        sets: Sets::Tenants(Box::new(TenantPoint {
            qdisc: Arc::clone(setup),
            coordinates,
            bulk: bulk.into_iter().filter(|tenants| tenants.count > 0).collect(),
            probes: probes.filter(|probes| probes.count > 0),
            filter_rules,
            offloads: traffic.offloads,
            pinned: traffic.pinned,
        })),
    }
}

fn read_plots(
    field: &Field<'_>,
    axes: Option<&[Axis]>,
    metrics: Option<&BTreeSet<String>>,
) -> Option<Vec<Plot>> {
    let elements = field.list("tables, each [[plot]]")?;
    if elements.len() > MOST_PLOTS {
        let problem = format!("the scenario has {} plots", elements.len());
        field.complain(BadValue, problem, format!("write at most {MOST_PLOTS} plots"));
        return None;
    }
    let mut plots: Vec<Plot> = Vec::with_capacity(elements.len());
    for element in &elements {
        let mut table = element.table()?;
        let name =
            table.require("name", "name the file, for example name = \"bandwidth\"").and_then(|field| {
                let name = field.name("a name", "-")?;
                if plots.iter().any(|plot| plot.name == name) {
                    field.complain(
                        Duplicate,
                        format!("'{}' appears above already", excerpt(&name)),
                        "give the plot another name",
                    );
                }
                Some(name)
            });
        let title = table.require("title", "say in one line what the plot shows");
        let title = title.and_then(|field| field.prose(LONGEST_PLOT_TITLE, false));
        let metric = table.require("metric", "for example metric = \"throughput_bps\"").and_then(|field| {
            let key = field.string("the key of a metric")?;
            check_metric(key, &field, metrics);
            Some(key.to_owned())
        });
        let across = table.require("across", "for example across = \"clients\"");
        let across = across.and_then(|field| axis_name(&field, axes));
        let panels = or_default(table.take("panels"), None, |field| {
            let name = axis_name(field, axes)?;
            if across.as_deref() == Some(name.as_str()) {
                field.complain(
                    BadValue,
                    "'across' has the same axis",
                    "name another axis, or remove the key",
                );
            }
            Some(Some(name))
        });
        let logarithmic = or_default(table.take("logarithmic"), false, |field| field.boolean());
        table.finish();
        plots.push(Plot {
            name: name?,
            title: title?,
            metric: metric?,
            across: across?,
            panels: panels?,
            logarithmic: logarithmic?,
        });
    }
    Some(plots)
}

fn axis_name(field: &Field<'_>, axes: Option<&[Axis]>) -> Option<String> {
    let name = field.string("the name of an axis")?;
    if let Some(axes) = axes.filter(|axes| axes.iter().all(|axis| axis.name != name)) {
        field.unknown_name("axis", name, axes.iter().map(|axis| axis.name.as_str()));
    }
    Some(name.to_owned())
}
