//! Compares two records of the same scenario: before and after a change, on two machines or kernels.
//!
//! The comparison of a metric is a [change](evenkeel_metrics::Change): a ratio or a difference of means with
//! its confidence interval. The intervals of a comparison are simultaneous: two records of the same set-up
//! show a difference in at most 2 of 100 comparisons on average, for any number of figures.
//!
//! With a margin, the comparison tests whether the two records are the *same* within the margin. They
//! are the same if the whole interval lies within the margin (two one-sided tests). Each interval then
//! has a confidence of 95 % by itself, because all intervals must lie within the margin.

mod json;
pub(crate) mod table;
pub(crate) mod text;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::{Change, Confidence, changes};
use evenkeel_model::record::{LACKS_FIGURE, NOTHING_MEASURED, Record, RepeatRecord, VariantRecord};
use evenkeel_model::text::{counted, excerpt, list};

use crate::catalogue::{self, Direction};
use crate::{format, summaries};

pub use json::json;
pub use table::render;
pub use text::{change_text, scale_name};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// Metric keys to compare. Empty for all keys.
    pub metrics: Vec<String>,
    /// A share. If set, test whether the records are the same within this share, instead of whether
    /// they differ.
    pub within: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub setups: [String; 2],
    /// Differences between the set-ups, such as scenario, world, rate, seed or machine.
    pub warnings: Vec<String>,
    /// Common variants in the order of the first record.
    pub variants: Vec<VariantComparison>,
    pub only_in_first: Vec<String>,
    pub only_in_second: Vec<String>,
    /// Common variants without repeats in a record, or without a common metric. Each entry has the reason.
    pub not_compared: Vec<String>,
    /// Figures and repeats of common variants that one record lacks, and requested figures that both lack.
    /// Each entry names the record.
    pub lacking: Vec<String>,
    /// Number of figures of common variants that one record lacks, or that were requested and both lack.
    pub missing_figures: usize,
    /// Common variants whose figures are incomplete by the record's own counters. Each entry names the
    /// record.
    pub incomplete: Vec<String>,
    pub question: Question,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    #[error("no variant has the metric '{key}' in both records; both records have: {known}")]
    UnknownMetric { key: String, known: String },
    #[error(
        "nothing to compare: the records have no variant in common; variants of the first: {first}; of the second: \
         {second}"
    )]
    NoVariant { first: String, second: String },
    #[error("nothing to compare: {}", .reasons.join("; "))]
    NoMetric { reasons: Vec<String> },
}

impl Comparison {
    pub(crate) fn figures(&self) -> impl Iterator<Item = (&VariantComparison, &MetricComparison)> {
        self.variants.iter().flat_map(|variant| variant.metrics.iter().map(move |metric| (variant, metric)))
    }

    /// Returns whether every figure of every variant of both records is the same within the margin.
    /// Returns true if no margin is set.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let is_same = || self.figures().all(|(_, metric)| metric.within == Some(true));
        self.question.within.is_none() || (self.is_complete() && is_same())
    }

    /// Returns whether both records have every figure and every variant, and no variant is in `incomplete`.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing_figures == 0 && self.missing_variants() == 0 && self.incomplete.is_empty()
    }

    pub(crate) fn missing_variants(&self) -> usize {
        self.not_compared.len() + self.only_in_first.len() + self.only_in_second.len()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct VariantComparison {
    pub name: String,
    pub metrics: Vec<MetricComparison>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MetricComparison {
    /// Metric key, see [`evenkeel_model::record::metric`].
    pub key: String,
    pub direction: Direction,
    pub change: Change,
    pub verdict: Verdict,
    /// With a margin: true if the whole interval is within the margin, false if the whole interval is
    /// outside. `None` otherwise.
    pub within: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval includes "no change".
    NotShown,
    /// The whole interval is within the margin.
    Same,
    Better,
    Worse,
    /// The metric has changed, but neither direction is better.
    Different,
    /// No interval: too few repeats, or some repeats lack the metric.
    Undecided,
}

impl Verdict {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotShown => "no_difference_shown",
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Different => "different",
            Self::Undecided => "undecided",
        }
    }

    fn of(direction: Direction, change: &Change) -> Self {
        match direction {
            _ if change.interval.is_none() => Self::Undecided,
            _ if !change.is_shown() => Self::NotShown,
            Direction::Neutral => Self::Different,
            Direction::HigherIsBetter if change.change > 0.0 => Self::Better,
            Direction::LowerIsBetter if change.change < 0.0 => Self::Better,
            Direction::HigherIsBetter | Direction::LowerIsBetter => Self::Worse,
        }
    }

    #[must_use]
    pub fn is_difference(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Different)
    }
}

pub fn compare(first: &Record, second: &Record, question: &Question) -> Result<Comparison, CompareError> {
    let mut common: Vec<(&VariantRecord, &VariantRecord)> =
        first.variants.iter().filter_map(|variant| Some((variant, find(second, &variant.name)?))).collect();
    if common.is_empty() {
        return Err(CompareError::NoVariant { first: names(first), second: names(second) });
    }
    let mut not_compared = Vec::new();
    common.retain(|(before, after)| {
        let reason = obstacle(before, after);
        not_compared.extend(reason.clone());
        reason.is_none()
    });
    if common.is_empty() {
        return Err(CompareError::NoMetric { reasons: not_compared });
    }
    let keys: Vec<Vec<String>> =
        common.iter().map(|(before, after)| metrics(before, after, &first.windows)).collect();
    let known: BTreeSet<&String> = keys.iter().flatten().collect();
    if let Some(key) = question.metrics.iter().find(|key| !known.contains(key)) {
        let known = catalogue::in_order(known.into_iter().cloned().collect(), &first.windows);
        return Err(CompareError::UnknownMetric { key: key.clone(), known: known.join(", ") });
    }
    let asked = |key: &String| question.metrics.is_empty() || question.metrics.contains(key);
    let (mut lacking, mut missing_figures) = lacking(&common, asked, &first.windows);
    for key in &question.metrics {
        let has = |variant: &VariantRecord| summaries::of_metrics(variant).contains_key(key);
        let without = common.iter().filter(|(before, after)| !has(before) && !has(after));
        let without: Vec<&str> = without.map(|(before, _)| before.name.as_str()).collect();
        if !without.is_empty() {
            missing_figures += without.len();
            lacking.push(format!("{key} of {} in both", list(without)));
        }
    }
    let keys: Vec<Vec<String>> =
        keys.into_iter().map(|keys| keys.into_iter().filter(asked).collect()).collect();

    let pairs: Vec<(Vec<f64>, Vec<f64>)> = common
        .iter()
        .zip(&keys)
        .flat_map(|((before, after), keys)| {
            keys.iter().map(|key| (summaries::values(before, key), summaries::values(after, key)))
        })
        .collect();
    let confidence = if question.within.is_some() { Confidence::Each } else { Confidence::Together };
    let mut changes = changes(&pairs, confidence).into_iter();
    let mut changed = |key: String, of: [&VariantRecord; 2]| {
        let mut change = changes.next()??;
        if of.iter().any(|variant| summaries::gaps(variant, &key) > 0) {
            change.interval = None;
        }
        Some(judged(key, change, question.within))
    };
    let variants = common
        .iter()
        .zip(keys)
        .map(|((before, after), keys)| VariantComparison {
            name: before.name.clone(),
            metrics: keys.into_iter().filter_map(|key| changed(key, [before, after])).collect(),
        })
        .collect();
    let missing = |of: &Record, other: &Record| -> Vec<String> {
        let missing = of.variants.iter().filter(|variant| find(other, &variant.name).is_none());
        missing.map(|variant| variant.name.clone()).collect()
    };
    Ok(Comparison {
        setups: [text::setup(first), text::setup(second)],
        warnings: warnings(first, second),
        variants,
        only_in_first: missing(first, second),
        only_in_second: missing(second, first),
        not_compared,
        lacking,
        missing_figures,
        incomplete: incomplete(&common, question),
        question: question.clone(),
    })
}

fn names(record: &Record) -> String {
    let names: Vec<&str> = record.variants.iter().map(|variant| variant.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn find<'r>(record: &'r Record, name: &str) -> Option<&'r VariantRecord> {
    record.variants.iter().find(|variant| variant.name == name)
}

fn obstacle(first: &VariantRecord, second: &VariantRecord) -> Option<String> {
    let name = &first.name;
    match (first.repeats.is_empty(), second.repeats.is_empty()) {
        (true, true) => return Some(format!("{name} has no repeats")),
        (true, false) => return Some(format!("{name} has no repeats in the first record")),
        (false, true) => return Some(format!("{name} has no repeats in the second record")),
        (false, false) => {}
    }
    let is_empty = metrics(first, second, &BTreeMap::new()).is_empty();
    is_empty.then(|| format!("{name} has no metric in common"))
}

/// Returns the common metrics of a variant, in display order.
fn metrics(first: &VariantRecord, second: &VariantRecord, windows: &BTreeMap<String, f64>) -> Vec<String> {
    let (before, after) = (summaries::of_metrics(first), summaries::of_metrics(second));
    catalogue::in_order(before.into_keys().filter(|key| after.contains_key(key)).collect(), windows)
}

/// Returns the figures and repeats of common variants that one record lacks, and the number of such
/// figures.
fn lacking(
    common: &[(&VariantRecord, &VariantRecord)],
    asked: impl Fn(&String) -> bool,
    windows: &BTreeMap<String, f64>,
) -> (Vec<String>, usize) {
    let (mut lacking, mut missing_figures) = (Vec::new(), 0);
    for (which, is_first) in [("first", true), ("second", false)] {
        // Group the variants by the figures that they lack. Usually all variants lack the same figures.
        let mut figures: Vec<(Vec<String>, Vec<&str>)> = Vec::new();
        for (before, after) in common {
            let (own, other) = if is_first { (before, after) } else { (after, before) };
            let known = summaries::of_metrics(own);
            let missing = summaries::of_metrics(other).into_keys().filter(|key| !known.contains_key(key));
            let missing = catalogue::in_order(missing.filter(&asked).collect(), windows);
            missing_figures += missing.len();
            match figures.iter_mut().find(|(keys, _)| *keys == missing) {
                Some((_, variants)) => variants.push(&own.name),
                None => figures.push((missing, vec![&own.name])),
            }
            for (key, summary) in known.into_iter().filter(|(key, _)| asked(key)) {
                let (n, all) = (summary.n, own.repeats.len());
                if n < all {
                    lacking.push(format!(
                        "{key} in {} of {all} repeats of {} in the {which}",
                        all - n,
                        own.name
                    ));
                }
            }
            if own.repeats.len() < other.repeats.len() {
                let repeats = counted(other.repeats.len() - own.repeats.len(), "repeat");
                lacking.push(format!("{repeats} of {} in the {which}", own.name));
            }
        }
        for (keys, variants) in figures.into_iter().filter(|(keys, _)| !keys.is_empty()) {
            let keys = list(keys.iter().map(String::as_str));
            let of = if variants.len() == common.len() {
                String::new()
            } else {
                format!(" of {}", list(variants))
            };
            lacking.push(format!("{keys}{of} in the {which}"));
        }
    }
    (lacking, missing_figures)
}

/// Returns the variants with packets that the meter did not count, or with a note that nothing was measured
/// or that a figure is missing. If both records have such a note, equal figures do not show agreement.
fn incomplete(common: &[(&VariantRecord, &VariantRecord)], question: &Question) -> Vec<String> {
    let is_incomplete = |repeat: &&RepeatRecord| repeat.meter_overflowed();
    let cause = |note: &String| -> Option<String> {
        if note.starts_with(NOTHING_MEASURED) {
            return Some(note.split_once(':').map_or(note.as_str(), |(cause, _)| cause).to_owned());
        }
        // If the user asked for some metrics, `lacking` counts those that are missing. The note may be about
        // another metric.
        let (cause, _) = note.split_once(LACKS_FIGURE).filter(|_| question.metrics.is_empty())?;
        Some(cause.to_owned())
    };
    let of_record = |which: &'static str, variant: &VariantRecord| {
        let (count, all) = (variant.repeats.iter().filter(is_incomplete).count(), variant.repeats.len());
        let name = &variant.name;
        let overflow = (count > 0)
            .then(|| format!("{name} in {count} of {all} repeats of the {which} (meter_overflow)"));
        let noted = variant.notes.iter().filter_map(cause);
        let noted = noted.map(|cause| format!("{name} in the {which} ({cause})"));
        overflow.into_iter().chain(noted).collect::<Vec<String>>()
    };
    let pairs = common.iter();
    pairs
        .flat_map(|(before, after)| [of_record("first", before), of_record("second", after)])
        .flatten()
        .collect()
}

fn judged(key: String, change: Change, margin: Option<f64>) -> MetricComparison {
    let direction = catalogue::describe(&key).direction;
    let within = margin.and_then(|margin| {
        let interval = change.interval?;
        let bound = match change.scale {
            evenkeel_metrics::Scale::Ratio => margin,
            evenkeel_metrics::Scale::Difference => margin * change.first.abs(),
        };
        match (interval.lies_within(-bound, bound), interval.lies_outside(-bound, bound)) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    });
    let verdict = if within == Some(true) { Verdict::Same } else { Verdict::of(direction, &change) };
    MetricComparison { key, direction, change, verdict, within }
}

fn warnings(first: &Record, second: &Record) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut differs = |what: &str, first: &str, second: &str| {
        if first != second {
            warnings.push(format!("{what} differs: {} and {}", excerpt(first), excerpt(second)));
        }
    };
    let effort = |record: &Record| if record.quick { "quick" } else { "full" };
    differs("scenario", &first.scenario, &second.scenario);
    differs("world", &first.world, &second.world);
    differs("kernel", &first.kernel, &second.kernel);
    differs("rate", &format::rate(first.rate_bps), &format::rate(second.rate_bps));
    differs("length of a repeat", &format::seconds(first.duration_s), &format::seconds(second.duration_s));
    differs("warm-up", &format::seconds(first.warmup_s), &format::seconds(second.warmup_s));
    differs("effort", effort(first), effort(second));
    differs("version", &first.evenkeel, &second.evenkeel);
    differs("seed", &first.seed.to_string(), &second.seed.to_string());
    if let Some(shared) = shared_repeats(first, second) {
        let (of_first, of_second) = shared.first;
        warnings.push(format!(
            "{} have the same seed in both records, so the records are not independent: repeat {of_first} of seed {} is repeat \
             {of_second} of seed {}",
            counted(shared.count, "repeat"),
            first.seed,
            second.seed
        ));
    } else if first.world != "sim" && first.world == second.world && first.started == second.started {
        warnings.push(format!("both are records of the same run, which started at {}", first.started));
    }
    if first.windows != second.windows {
        warnings.push("windows differ: the fairness metrics are over other lengths of time".to_owned());
    }
    if first.scenario == second.scenario && first.scenario_text != second.scenario_text {
        warnings.push("the scenario's text differs".to_owned());
    }
    for (variant, other) in
        first.variants.iter().filter_map(|variant| Some((variant, find(second, &variant.name)?)))
    {
        for (which, own, other) in [("first", variant, other), ("second", other, variant)] {
            let only_here = own.notes.iter().filter(|note| !other.notes.contains(note));
            warnings.extend(only_here.map(|note| format!("{} in the {which}: {note}", own.name)));
        }
        let changed = differing(&variant.settings, &other.settings);
        if !changed.is_empty() {
            warnings.push(format!("settings of {} differ: {}", variant.name, changed.join(", ")));
        }
    }
    let changed = differing(&first.host, &second.host);
    if !changed.is_empty() {
        warnings.push(format!("facts about the host differ: {}", changed.join(", ")));
    }
    warnings
}

/// Repeats that have the same seed in two records.
struct Shared {
    count: usize,
    /// The number of the first shared repeat in each record, from 1.
    first: (u64, u64),
}

/// Returns the repeats that have the same seed in two records of the simulator: the n-th repeat of seed S has
/// seed S + n - 1.
fn shared_repeats(first: &Record, second: &Record) -> Option<Shared> {
    if first.world != "sim" || second.world != "sim" || first.scenario != second.scenario {
        return None;
    }
    let repeats = |record: &Record| {
        record.variants.iter().map(|variant| variant.repeats.len() as u64).max().unwrap_or(0)
    };
    // Seeds wrap around.
    let (ahead, behind) = (second.seed.wrapping_sub(first.seed), first.seed.wrapping_sub(second.seed));
    let (count, numbers) = if ahead < repeats(first) {
        ((repeats(first) - ahead).min(repeats(second)), (ahead + 1, 1))
    } else if behind < repeats(second) {
        ((repeats(second) - behind).min(repeats(first)), (1, behind + 1))
    } else {
        return None;
    };
    (count > 0).then(|| Shared { count: usize::try_from(count).unwrap_or(usize::MAX), first: numbers })
}

/// Returns the keys with different values, and the keys that only one of the two maps has.
fn differing<'r>(first: &'r BTreeMap<String, String>, second: &'r BTreeMap<String, String>) -> Vec<&'r str> {
    let keys: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    keys.into_iter().filter(|key| first.get(*key) != second.get(*key)).map(String::as_str).collect()
}
