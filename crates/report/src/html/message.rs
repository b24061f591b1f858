//! The message of a plot: the variant with the best mean of a metric and the baseline, or that no
//! difference is shown.

use evenkeel_metrics::LEAST_REPEATS;
use evenkeel_model::record::{Record, VariantRecord};

use super::axes::ends;
use crate::answer::{differ, incomplete, mean, short_name};
use crate::catalogue::{Direction, describe};
use crate::format::clean;
use crate::{paired, summaries};

/// Returns the record's result for a metric as a sentence without a full stop. For a sweep, it uses the
/// workload with the most variants.
pub(super) fn of_metric(record: &Record, key: &str) -> String {
    let measured = record.variants.iter().filter(|variant| mean(variant, key).is_some());
    let groups = paired::by_workload(measured);
    let most = groups.iter().map(|(_, group)| group.len()).max().unwrap_or(0);
    let Some((workload, group)) = groups.iter().find(|(_, group)| group.len() == most) else {
        return format!("{} was not measured", describe(key).label());
    };
    let message = incomplete(group, key)
        .map(|text| text.trim_end_matches('.').to_owned())
        .or_else(|| in_group(group, key))
        .unwrap_or_else(|| describe(key).label());
    clean(&if workload.is_empty() || group.len() < 2 {
        message
    } else {
        format!("With {workload}: {message}")
    })
}

/// Returns whether two variants differ. With too few repeats for an interval, their ranges must not
/// overlap either.
fn is_shown(first: &VariantRecord, second: &VariantRecord, key: &str) -> bool {
    let [first_values, second_values] = [first, second].map(|variant| summaries::values(variant, key));
    let ranges = [&first_values, &second_values].map(|values| ends(values.iter().copied()));
    let is_apart = ranges[0].1 < ranges[1].0 || ranges[1].1 < ranges[0].0;
    let has_interval = first_values.len().min(second_values.len()) >= LEAST_REPEATS;
    differ(first, second, key) && (has_interval || is_apart)
}

fn in_group(variants: &[&VariantRecord], key: &str) -> Option<String> {
    let description = describe(key);
    let label = description.label();
    let show = |value: f64| description.show_with_unit(value);
    let means: Vec<(&VariantRecord, f64)> =
        variants.iter().filter_map(|variant| Some((*variant, mean(variant, key)?))).collect();
    let least = *means.iter().min_by(|one, other| one.1.total_cmp(&other.1))?;
    let most = *means.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    if means.len() == 1 {
        return Some(format!("{}: {label} {}", short_name(least.0), show(least.1)));
    }
    if !is_shown(least.0, most.0, key) {
        let values = if show(least.1) == show(most.1) {
            show(most.1)
        } else {
            format!("{} to {}", description.show(least.1), show(most.1))
        };
        // With few repeats, the answer states the means. The message must not contradict the answer.
        return Some(if differ(least.0, most.0, key) {
            format!(
                "{label}: {} with {}, {} with {}; their repeats overlap",
                show(least.1),
                short_name(least.0),
                show(most.1),
                short_name(most.0)
            )
        } else {
            format!("No difference in {label} is shown: {values}")
        });
    }
    let base = paired::baseline(variants)?;
    let base_mean = mean(base, key)?;
    let (best, worst, verbs) = match description.direction {
        Direction::LowerIsBetter => (least, most, ("keeps", " at ")),
        Direction::HigherIsBetter => (most, least, ("reaches", " ")),
        Direction::Neutral => {
            return Some(format!(
                "{label} is from {} ({}) to {} ({})",
                show(least.1),
                short_name(least.0),
                show(most.1),
                short_name(most.0)
            ));
        }
    };
    // The baseline may be as good as the best variant. Then compare with the worst variant.
    let (other, other_mean) = if is_shown(best.0, base, key) { (base, base_mean) } else { worst };
    Some(format!(
        "{} {} {label}{}{}; {} has {}",
        short_name(best.0),
        verbs.0,
        verbs.1,
        show(best.1),
        short_name(other),
        show(other_mean)
    ))
}
