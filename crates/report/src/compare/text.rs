//! Describes changes in words.

use evenkeel_metrics::{Change, Interval, Scale};
use evenkeel_model::record::Record;
use evenkeel_model::text::{counted, excerpt};

use super::{Comparison, MetricComparison, VariantComparison};
use crate::catalogue::{Description, describe};
use crate::format::{self, kernel, number, rate, seconds, signed, trimmed};

/// From this ratio on, a change is displayed as a factor, not in per cent.
const FACTOR: f64 = 3.0;
/// Maximum number of figures per variant in the answer.
const SPELT_OUT: usize = 3;
const VARIANTS_SPELT_OUT: usize = 2;

#[must_use]
pub fn scale_name(scale: Scale) -> &'static str {
    match scale {
        Scale::Ratio => "ratio",
        Scale::Difference => "difference",
    }
}

/// Returns a change in words: `NFM 1s lower by 12 % (8 to 16 %)`.
#[must_use]
pub fn change_text(description: &Description, change: &Change) -> String {
    let label = description.label();
    let turned = change.change < 0.0;
    let sign = if turned { -1.0 } else { 1.0 };
    // For a decrease, list the smaller change first.
    let ends = change.interval.map(|Interval { low, high }| if turned { (-high, -low) } else { (low, high) });
    let size = change.change * sign;
    match change.scale {
        Scale::Ratio if size + 1.0 >= FACTOR => {
            let interval =
                ends.map(|(low, high)| format!(" ({} to {})", short(low + 1.0), short(high + 1.0)));
            format!("{label} {} times as high{}", short(size + 1.0), interval.unwrap_or_default())
        }
        Scale::Ratio => {
            let interval = ends.map(|(low, high)| format!(" ({} to {})", plain_percent(low), percent(high)));
            let way = if turned { "lower" } else { "higher" };
            format!("{label} {way} by {}{}", percent(size), interval.unwrap_or_default())
        }
        Scale::Difference => {
            let description = description.resolving(size).into_difference();
            let show = |value: f64| trimmed(description.show(value));
            let interval = ends.map(|(low, high)| format!(" ({} to {})", show(low), show(high)));
            let way = if turned { "lower" } else { "higher" };
            format!("{label} {way} by {}{}", description.show_with_unit(size), interval.unwrap_or_default())
        }
    }
}

/// Returns the change for a table cell: `+12 %`, `×4.5`, or in the metric's unit.
pub(crate) fn change_cell(description: &Description, change: &Change) -> String {
    one(description, change.scale, change.change, change.change)
}

/// Returns the interval for a table cell: `+8 to +16 %`.
pub(crate) fn interval_cell(description: &Description, change: &Change) -> Option<String> {
    let Interval { low, high } = change.interval?;
    let end = |value| one(description, change.scale, value, change.change);
    let low = end(low);
    Some(format!("{} to {}", low.trim_end_matches(" %"), end(high)))
}

/// Returns `value` as a change. `size` determines the format, so that the two ends of an interval have
/// the same format.
fn one(description: &Description, scale: Scale, value: f64, size: f64) -> String {
    match scale {
        Scale::Ratio if size + 1.0 >= FACTOR => format!("×{}", short(value + 1.0)),
        Scale::Ratio => format!("{} %", signed(plain_percent(value))),
        Scale::Difference => signed(trimmed(description.resolving(size).show(value))),
    }
}

fn short(value: f64) -> String {
    trimmed(number(value, 2))
}

fn plain_percent(share: f64) -> String {
    format::percent(share, 2)
}

fn percent(share: f64) -> String {
    format!("{} %", plain_percent(share))
}

pub(super) fn figures(count: usize) -> String {
    if count == 1 { "1 figure".to_owned() } else { format!("{count} figures") }
}

/// Returns a record's description: `titan-12-flows on sim, kernel 4.4, 10 Gbit/s, 5 repeats of 5 s, seed 1`.
pub(super) fn setup(record: &Record) -> String {
    let mut text = format!(
        "{} on {}, kernel {}, {}, {}",
        excerpt(&record.scenario),
        excerpt(&record.world),
        excerpt(&kernel(&record.kernel)),
        rate(record.rate_bps),
        format::repeats(record)
    );
    if record.duration_s > 0.0 {
        text.push_str(&format!(" of {}", seconds(record.duration_s)));
    }
    text.push_str(&format!(", seed {}", record.seed));
    if record.quick {
        text.push_str(", quick");
    }
    text
}

/// Returns the lines of the answer. The first two variants that differ have a line each. Further lines
/// summarize the other variants.
pub(crate) fn answer(comparison: &Comparison) -> Vec<String> {
    if let Some(margin) = comparison.question.within {
        return vec![same_within(comparison, margin)];
    }
    let judged = |variant: &VariantComparison| {
        variant.metrics.iter().filter(|metric| metric.change.interval.is_some()).count()
    };
    let all: usize = comparison.variants.iter().map(judged).sum();
    if all == 0 {
        let why = too_few(comparison.figures().map(|(_, metric)| metric));
        return vec![format!("No difference shown: {why}.")];
    }
    let undecided = comparison
        .variants
        .iter()
        .filter(|variant| judged(variant) == 0)
        .map(|variant| format!("{} is undecided: {}.", variant.name, too_few(variant.metrics.iter())));
    let differing: Vec<&VariantComparison> = comparison
        .variants
        .iter()
        .filter(|variant| variant.metrics.iter().any(|metric| metric.verdict.is_difference()))
        .collect();
    if differing.is_empty() {
        let named = comparison.variants.iter().filter(|variant| judged(variant) > 0);
        let names: Vec<&str> = named.map(|variant| variant.name.as_str()).collect();
        let mut text = format!("No difference shown: {} of {}", figures(all), list(&names));
        let ranges = headline_ranges(comparison);
        if !ranges.is_empty() {
            text.push_str(&format!(". {}: {}", names[0], ranges.join(", ")));
        }
        return [text + "."].into_iter().chain(undecided).collect();
    }
    let mut lines: Vec<String> =
        differing.iter().take(VARIANTS_SPELT_OUT).map(|variant| of_variant(variant)).collect();
    let left = differing.len().saturating_sub(VARIANTS_SPELT_OUT);
    if left > 0 {
        let variants = if left == 1 { "variant differs" } else { "variants differ" };
        lines.push(format!("{left} more {variants}: see the table."));
    }
    let alike: Vec<&str> = comparison
        .variants
        .iter()
        .filter(|variant| judged(variant) > 0 && !differing.iter().any(|other| other.name == variant.name))
        .map(|variant| variant.name.as_str())
        .collect();
    if !alike.is_empty() {
        lines.push(format!("{}: no difference shown.", list(&alike)));
    }
    lines.extend(undecided);
    lines
}

/// Returns the reason why the figures have no interval.
fn too_few<'m>(metrics: impl Iterator<Item = &'m MetricComparison>) -> String {
    let least = metrics.map(|metric| metric.change.n.0.min(metric.change.n.1)).max().unwrap_or(0);
    let needed = evenkeel_metrics::LEAST_REPEATS;
    if least >= needed {
        return "its figures have no interval".to_owned();
    }
    let s = if least == 1 { "" } else { "s" };
    format!("with {least} repeat{s} in a record there is no interval; {needed} are needed in each")
}

fn list(names: &[&str]) -> String {
    const MOST: usize = 4;
    if names.len() > MOST { format!("{} variants", names.len()) } else { names.join(", ") }
}

fn of_variant(variant: &VariantComparison) -> String {
    let mut shown: Vec<&MetricComparison> =
        variant.metrics.iter().filter(|metric| metric.verdict.is_difference()).collect();
    shown.sort_by_key(|metric| describe(&metric.key).importance);
    let spelt: Vec<String> = shown
        .iter()
        .take(SPELT_OUT)
        .map(|metric| change_text(&describe(&metric.key), &metric.change))
        .collect();
    let mut text = format!("{}: {}", variant.name, spelt.join("; "));
    if shown.len() > SPELT_OUT {
        text.push_str(&format!("; {} more differ", figures(shown.len() - SPELT_OUT)));
    }
    let open = variant.metrics.iter().filter(|metric| metric.verdict == super::Verdict::NotShown).count();
    match open {
        0 => text + ".",
        1 => text + "; no difference shown in 1 other.",
        _ => format!("{text}; no difference shown in {open} others."),
    }
}

/// Returns the intervals of the changes of the main figures, for the first variant that has an interval.
/// An interval shows how large an undetected change can be.
fn headline_ranges(comparison: &Comparison) -> Vec<String> {
    let has_interval = |metric: &&MetricComparison| metric.change.interval.is_some();
    let judged = |variant: &&VariantComparison| variant.metrics.iter().any(|metric| has_interval(&metric));
    let Some(variant) = comparison.variants.iter().find(judged) else { return Vec::new() };
    let mut metrics: Vec<&MetricComparison> = variant.metrics.iter().filter(has_interval).collect();
    metrics.sort_by_key(|metric| describe(&metric.key).importance);
    metrics
        .into_iter()
        .take(SPELT_OUT)
        .filter_map(|metric| {
            let description = describe(&metric.key);
            Some(format!("{} {}", description.label(), interval_cell(&description, &metric.change)?))
        })
        .collect()
}

/// Returns the user's margin in per cent, with all digits: `0.0001 %`.
pub(super) fn stated(margin: f64) -> String {
    const DIGITS: f64 = 1e9;
    format!("{} %", (margin * 100.0 * DIGITS).round() / DIGITS)
}

fn same_within(comparison: &Comparison, margin: f64) -> String {
    let count = |verdict| comparison.figures().filter(|(_, metric)| metric.within == verdict).count();
    let (same, beyond, open) = (count(Some(true)), count(Some(false)), count(None));
    let margin = stated(margin);
    if beyond + open == 0 && comparison.is_complete() {
        return format!("The same within {margin}: {}.", figures(same));
    }
    let mut parts = Vec::new();
    match comparison.missing_variants() {
        0 => {}
        variants => parts.push(format!("{} not compared", counted(variants, "variant"))),
    }
    if comparison.missing_figures > 0 {
        parts.push(format!("{} missing", figures(comparison.missing_figures)));
    }
    if !comparison.incomplete.is_empty() {
        parts.push("the figures are incomplete".to_owned());
    }
    if beyond > 0 {
        parts.push(format!("{} beyond it", figures(beyond)));
    }
    if open > 0 {
        let few = comparison.figures().filter(|(_, metric)| metric.change.interval.is_none()).count();
        let why = if few == open {
            format!("too few repeats, {} are needed", evenkeel_metrics::LEAST_REPEATS)
        } else if comparison.question.within.is_some_and(|margin| margin <= 0.0) {
            "no number of repeats decides a margin of 0".to_owned()
        } else {
            "more repeats would decide".to_owned()
        };
        parts.push(format!("{} not decided ({why})", figures(open)));
    }
    format!("Not shown to be the same within {margin}: {}; {} within it.", parts.join(", "), figures(same))
}
