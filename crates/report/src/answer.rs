//! Summarises a run in one or two sentences: which variant is best by the scenario's main metric,
//! compared with the baseline, with uncertainty and cost.

use evenkeel_metrics::{Confidence, Interval, LEAST_REPEATS, MeanInterval, Scale, changes, mean_interval};
use evenkeel_model::record::{self, Record, VariantRecord, metric};
use evenkeel_model::text::counted;

use crate::catalogue::{Description, Direction, describe};
use crate::format::{self, clean, repeats, seconds, signed};
use crate::{paired, summaries};

/// A scenario's main metric, and the phrase that describes the best variant.
pub(crate) struct Subject {
    pub key: String,
    superlative: String,
}

/// Selects the main metric among the measured metrics. Metrics that few scenarios have come first.
pub(crate) fn subject(record: &Record) -> Option<Subject> {
    let has = |key: &str| {
        record
            .variants
            .iter()
            .flat_map(|variant| &variant.repeats)
            .any(|repeat| repeat.metrics.contains_key(key))
    };
    let of = |key: String, superlative: &str| {
        has(&key).then(|| Subject { key, superlative: superlative.to_owned() })
    };
    let clients = |prefix: &str, group: &str, part: &str| metric::of_clients(prefix, group, part);
    let completion = |part: &str| metric::part(metric::COMPLETION, part);
    let longest = || {
        let with_nfm = record.windows.iter().filter(|(name, _)| has(&metric::part(metric::NFM, name)));
        let (name, length) = with_nfm.max_by(|first, second| first.1.total_cmp(second.1))?;
        let over = if record.rate_bps == record.nominal_rate_bps { seconds(*length) } else { name.clone() };
        of(metric::part(metric::NFM, name), &format!("is fairest over {over}"))
    };
    let is_about_fairness = record.scenario.contains("fairness");
    // Flows of the same size complete at the same time if the qdisc treats them alike.
    (record.duration_s == 0.0)
        .then(|| of(completion("spread"), "completes its flows closest together"))
        .flatten()
        .or_else(|| of(completion("mean"), "completes soonest"))
        .or_else(|| {
            of(
                clients(metric::RESPONSE, "high", "client_median"),
                "answers the clients of high priority soonest",
            )
        })
        .or_else(|| of(clients(metric::REQUESTS, metric::ALL_CLIENTS, "total"), "answers the most requests"))
        .or_else(longest)
        .or_else(|| of(metric::LOST_CAPACITY.to_owned(), "loses the least of the line while packets wait"))
        .or_else(|| {
            if is_about_fairness { of(metric::JAIN_BYTES.to_owned(), "is fairest by bytes") } else { None }
        })
        .or_else(|| of(metric::part(metric::LATENCY, "mean"), "has the lowest latency"))
        .or_else(|| of(metric::THROUGHPUT.to_owned(), "has the highest throughput"))
}

#[must_use]
pub fn answer(record: &Record) -> Vec<String> {
    let mut sentences = Vec::new();
    let n = record.variants.iter().map(|variant| variant.repeats.len()).min().unwrap_or(0);
    if record.quick || n < LEAST_REPEATS {
        let quick = if record.quick { "Quick run: " } else { "" };
        let why = if n < LEAST_REPEATS {
            format!("{}, no interval; a claim needs {LEAST_REPEATS} or more", repeats(record))
        } else {
            "no expectation of the scenario is judged".to_owned()
        };
        sentences.push(format!("{quick}{why}."));
    }
    sentences.extend(finding(record).map(|text| clean(&text)));
    let silent = |variant: &VariantRecord| {
        let note = variant.notes.iter().find_map(|note| note.strip_prefix(record::NOTHING_MEASURED))?;
        // `part` is empty, or ` in N of M repeats`.
        let (part, _) = note.split_once(':')?;
        Some(if part.is_empty() {
            variant.name.clone()
        } else {
            format!("{} ({})", variant.name, part.trim())
        })
    };
    let silent: Vec<String> = record.variants.iter().filter_map(silent).collect();
    if let Some(first) = silent.first() {
        let more = match silent.len() - 1 {
            0 => String::new(),
            more => format!(" and {}", counted(more, "other variant")),
        };
        sentences.push(clean(&format!("Nothing was measured with {first}{more}: see the notes.")));
    }
    sentences
}

fn finding(record: &Record) -> Option<String> {
    let subject = subject(record)?;
    let measured = record.variants.iter().filter(|variant| mean(variant, &subject.key).is_some());
    // Compare only variants with the same workload. The answer uses the first of the workloads with the
    // most variants.
    let groups = paired::by_workload(measured);
    let most = groups.iter().map(|(_, group)| group.len()).max()?;
    let (workload, group) = groups.iter().find(|(_, group)| group.len() == most)?;
    let mut found = incomplete(group, &subject.key).or_else(|| finding_in(group, &subject))?;
    if !workload.is_empty() && group.len() > 1 {
        found = format!("With {workload}: {found}");
    }
    if groups.len() > 1 {
        found.push_str(&format!(" {} below.", counted(groups.len() - 1, "other workload")));
    }
    Some(found)
}

/// Returns the sentence that no variant is best because variants lack the metric in some repeats.
pub(crate) fn incomplete(variants: &[&VariantRecord], key: &str) -> Option<String> {
    let lacking = variants.iter().filter(|variant| summaries::gaps(variant, key) > 0);
    let lacking: Vec<String> = lacking
        .map(|variant| {
            format!(
                "{} of {} repeats of {}",
                summaries::gaps(variant, key),
                variant.repeats.len(),
                short_name(variant)
            )
        })
        .collect();
    let label = describe(key).label();
    (!lacking.is_empty()).then(|| format!("No variant is best in {label}: {} have none.", lacking.join(", ")))
}

/// Returns a variant's name without its workload.
pub(crate) fn short_name(variant: &VariantRecord) -> &str {
    variant.name.strip_suffix(paired::workload(variant)).unwrap_or(&variant.name).trim_end()
}

pub(crate) fn mean(variant: &VariantRecord, key: &str) -> Option<f64> {
    Some(mean_interval(&summaries::values(variant, key))?.mean)
}

fn finding_in(variants: &[&VariantRecord], subject: &Subject) -> Option<String> {
    let description = describe(&subject.key);
    let higher = description.direction == Direction::HigherIsBetter;
    let better = |first: f64, second: f64| if higher { first > second } else { first < second };
    let measured: Vec<(&VariantRecord, f64)> =
        variants.iter().filter_map(|variant| Some((*variant, mean(variant, &subject.key)?))).collect();
    let (best, best_mean) =
        *measured.iter().reduce(|best, next| if better(next.1, best.1) { next } else { best })?;
    // If the highest mean is 0, all means are 0 and no variant is best.
    if higher && best_mean == 0.0 {
        return Some(match subject.key.as_str() {
            metric::THROUGHPUT => "Nothing was transferred in the measured time.".to_owned(),
            _ => format!("All variants have a {} of 0.", description.label()),
        });
    }
    if measured.len() == 1 {
        return Some(alone(best, &description, &subject.key));
    }
    let base = paired::baseline(variants)?;
    let base_mean = mean(base, &subject.key)?;
    let show = |value: f64| description.show_with_unit(value);
    let others = || measured.iter().filter(|(variant, _)| variant.name != best.name);
    let (differing, alike): (Vec<_>, Vec<_>) =
        others().partition(|(variant, _)| differ(best, variant, &subject.key));
    // If the baseline has the best mean, compare the next best variant with the baseline.
    let (rival, rival_mean) = if best.name == base.name {
        *others().reduce(|best, next| if better(next.1, best.1) { next } else { best })?
    } else {
        (best, best_mean)
    };
    let interval = paired::ratio(base, rival, &subject.key).and_then(|ratio| ratio.interval);
    let sure = interval.map(|interval| format!(", {}", range(interval))).unwrap_or_default();
    let costs = costs(base, rival, &subject.key);
    let is_alike = |variant: &VariantRecord| alike.iter().any(|(other, _)| other.name == variant.name);
    if differing.is_empty() || is_alike(base) {
        return Some(format!(
            "No difference in {} shown: {} {} against {} for {}{sure}{costs}.",
            description.label(),
            short_name(rival),
            show(rival_mean),
            show(base_mean),
            short_name(base),
        ));
    }
    let alike: Vec<&str> = alike.iter().map(|(variant, _)| short_name(variant)).collect();
    let alike = match alike.as_slice() {
        [] => String::new(),
        [one] => format!("; no difference shown to {one}"),
        more => format!("; no difference shown to {} other variants", more.len()),
    };
    if best.name == base.name {
        return Some(format!(
            "{} {} ({} {}): no other variant has a better mean{alike}.",
            short_name(best),
            subject.superlative,
            description.label(),
            show(best_mean)
        ));
    }
    Some(format!(
        "{} {} ({} {} against {} for {}{sure}){costs}{alike}.",
        short_name(best),
        subject.superlative,
        description.label(),
        show(best_mean),
        show(base_mean),
        short_name(base),
    ))
}

/// The answer names no best variant for a smaller difference, however narrow the interval. A difference
/// is relative to [`whole`], or else to the larger mean. The answer displays three digits.
const NEGLIGIBLE: f64 = 0.001;

/// Returns whether two variants differ in a metric: the interval excludes "no difference" and is not
/// within [`NEGLIGIBLE`] of "no difference". Without an interval, the means decide.
pub(crate) fn differ(first: &VariantRecord, second: &VariantRecord, key: &str) -> bool {
    let values = [first, second].map(|variant| summaries::values(variant, key));
    let [Some(first_mean), Some(second_mean)] = [first, second].map(|variant| mean(variant, key)) else {
        return false;
    };
    let margin = NEGLIGIBLE * whole(first, key).unwrap_or(first_mean.abs().max(second_mean.abs()));
    let all_positive = values.iter().flatten().all(|value| *value > 0.0);
    if all_positive && let Some(interval) = paired::ratio(first, second, key).and_then(|ratio| ratio.interval)
    {
        let share = margin / first_mean;
        return !interval.contains(1.0) && !interval.lies_within(1.0 - share, 1.0 + share);
    }
    // Use the difference, because a ratio to 0 is undefined.
    let [of_first, of_second] = values;
    let change = changes(&[(of_first, of_second)], Confidence::Each).pop().flatten();
    match change.filter(|change| change.scale == Scale::Difference).and_then(|change| change.interval) {
        Some(interval) => !interval.contains(0.0) && !interval.lies_within(-margin, margin),
        None => (first_mean - second_mean).abs() > margin,
    }
}

/// Returns the reference value of a metric: 1 for an index or share, the mean completion time for the
/// spread of completion times. Returns `None` for other metrics.
fn whole(variant: &VariantRecord, key: &str) -> Option<f64> {
    let (prefix, part) = key.split_once('.').unwrap_or((key, ""));
    match prefix {
        metric::NFM
        | metric::JAIN_BYTES
        | metric::JAIN_PACKETS
        | metric::LOST_CAPACITY
        | metric::IDLE_WHILE_BACKLOGGED => Some(1.0),
        metric::COMPLETION if part == "spread" => mean(variant, &metric::part(metric::COMPLETION, "mean")),
        _ => None,
    }
}

/// Returns the cost compared with the baseline: processor time even without a difference, throughput and
/// latency only if they differ. Omits the main metric, and metrics that are missing in some repeats.
fn costs(base: &VariantRecord, best: &VariantRecord, subject: &str) -> String {
    let latency = metric::part(metric::LATENCY, "mean");
    let mut text = String::new();
    for key in [metric::CPU, metric::THROUGHPUT, &latency] {
        if key == subject || [base, best].iter().any(|variant| summaries::gaps(variant, key) > 0) {
            continue;
        }
        let Some(ratio) = paired::ratio(base, best, key) else { continue };
        let is_shown = ratio.interval.is_some_and(|interval| !interval.contains(1.0));
        let is_large = ratio.interval.is_none() && (ratio.mean - 1.0).abs() > WORTH_SAYING;
        if key == metric::CPU || is_shown || is_large {
            text.push_str(&format!(", {} {}", describe(key).label(), change(&ratio)));
        }
    }
    text
}

/// The answer omits a smaller change of throughput or latency that has no confidence interval.
const WORTH_SAYING: f64 = 0.05;

/// Returns a ratio as a change: `+10 % (-2 to +22 %)`.
fn change(ratio: &MeanInterval) -> String {
    let interval = ratio.interval.map(|interval| format!(" ({})", range(interval)));
    format!("{} %{}", percent(ratio.mean), interval.unwrap_or_default())
}

/// Returns the interval of a ratio as a change: `-2 to +22 %`.
fn range(interval: Interval) -> String {
    format!("{} to {} %", percent(interval.low), percent(interval.high))
}

fn percent(ratio: f64) -> String {
    let change = ratio - 1.0;
    signed(format::percent(change, if change.abs() < 0.1 { 1 } else { 0 }))
}

fn alone(variant: &VariantRecord, subject: &Description, key: &str) -> String {
    let mut parts = vec![figure(subject, &summaries::values(variant, key))];
    if key != metric::THROUGHPUT {
        let throughput = summaries::values(variant, metric::THROUGHPUT);
        parts.push(figure(&describe(metric::THROUGHPUT), &throughput));
    }
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{}: {}.", variant.name, parts.join(", "))
}

/// Returns a metric's label, mean and interval: `NFM 1s 0.757 (0.74 to 0.77)`.
fn figure(description: &Description, values: &[f64]) -> Option<String> {
    let found = mean_interval(values)?;
    let interval = found.interval.map(|interval| {
        format!(" ({} to {})", description.show(interval.low), description.show(interval.high))
    });
    Some(format!(
        "{} {}{}",
        description.label(),
        description.show_with_unit(found.mean),
        interval.unwrap_or_default()
    ))
}
