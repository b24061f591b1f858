//! Relations of completion times.

use std::collections::BTreeSet;

use evenkeel_model::record::metric;
use evenkeel_model::scenario::WorkloadKind;
use evenkeel_model::units::ByteSize;

use super::{Checked, Facts, ROUNDING, against, at_least, at_most, same};

/// Upper limit of the delay between the last packet of a shuffle's flow and the interrupt that passes the
/// packet to TCP, in seconds.
const LAST_INTERRUPT: f64 = 1e-3;
/// All flows of a shuffle start within this time, in seconds.
const STARTS_WITHIN: f64 = 1e-3;

/// Checks the mean, the percentiles and the spread (longest minus shortest time) against each other. In a
/// shuffle, also checks them against the payload and the throughput of the flows.
pub(super) fn spread(facts: &Facts<'_>) -> Checked {
    let of = |part| facts.part(metric::COMPLETION, part);
    let (Some(mean), Some(p50), Some(p80), Some(p99), Some(spread)) =
        (of("mean"), of("p50"), of("p80"), of("p99"), of("spread"))
    else {
        return Ok(());
    };
    let key = |part: &str| metric::part(metric::COMPLETION, part);
    at_least(&key("spread"), spread, p99 - p50, ROUNDING, "the distance of fct_s.p99 from fct_s.p50")?;
    // A shuffle has one time per flow. For fetches, the record does not state the number of values.
    let elapsed = facts.elapsed();
    let count = elapsed.map(|_| facts.repeat.flows.len());
    // The 99th percentile is the longest time if its rank is the number of times.
    let is_longest = count.is_some_and(|count| rank(count, 99) == count);
    if let Some(elapsed) = elapsed.map(|elapsed| elapsed + LAST_INTERRUPT) {
        at_most(&key("p99"), p99, elapsed, ROUNDING, "the payload of the flows by throughput_bps")?;
        at_most(&key("spread"), spread, elapsed, ROUNDING, "the payload of the flows by throughput_bps")?;
    }
    if let Some(elapsed) = elapsed {
        // The longest time is at most the median plus the spread.
        let longest = if is_longest { p99 } else { p50 + spread };
        if longest < elapsed - STARTS_WITHIN - LAST_INTERRUPT {
            let what = format!(
                "the payload of the flows by throughput_bps, which end {elapsed} s after the first start"
            );
            return Err(against(&key("p99"), p99, what));
        }
    }
    let (least, most) = match count {
        Some(count) if count > 0 => mean_of(count, [p50, p80, p99], spread),
        _ => {
            let tail = (p50 + spread).max(p99);
            (
                0.5 * (p99 - spread).max(0.0) + 0.3 * p50 + 0.19 * p80 + 0.01 * p99,
                0.5 * p50 + 0.3 * p80 + 0.19 * p99 + 0.01 * tail,
            )
        }
    };
    at_least(&key("mean"), mean, least, ROUNDING, "the percentiles and the spread")?;
    at_most(&key("mean"), mean, most, ROUNDING, "the percentiles and the spread")?;
    if is_longest {
        at_most(&key("spread"), spread, p99, ROUNDING, "fct_s.p99, the longest time")?;
    }
    Ok(())
}

/// Returns the rank of a percentile of `count` values, from 1 (nearest-rank method).
fn rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100).max(1)
}

/// Returns the bounds of the mean of `count` values with these percentiles and this spread.
fn mean_of(count: usize, [p50, p80, p99]: [f64; 3], spread: f64) -> (f64, f64) {
    let ranks = [rank(count, 50), rank(count, 80), rank(count, 99)];
    let is_longest = ranks[2] == count;
    let least_value = (p99 - spread).max(0.0);
    let (mut least, mut most) = (0.0, 0.0);
    for place in 1..=count {
        let below = ranks.iter().rposition(|rank| *rank <= place);
        let above = ranks.iter().position(|rank| *rank >= place);
        least += below.map_or(least_value, |at| [p50, p80, p99][at]);
        most += match above {
            Some(_) if place == 1 && is_longest => least_value,
            Some(at) => [p50, p80, p99][at],
            None => (p50 + spread).max(p99),
        };
    }
    (least / count as f64, most / count as f64)
}

/// Checks the times of each size against the times of all sizes. A mean or percentile of all sizes lies
/// between the values of the sizes.
pub(super) fn sizes(facts: &Facts<'_>) -> Checked {
    let sizes: BTreeSet<&str> = facts
        .repeat
        .metrics
        .keys()
        .filter_map(|key| key.strip_prefix(metric::COMPLETION)?.strip_prefix('.')?.rsplit_once('.'))
        .map(|(size, _)| size)
        .collect();
    let longest = facts.part(metric::COMPLETION, "p50").zip(facts.part(metric::COMPLETION, "spread"));
    for size in &sizes {
        let prefix = metric::part(metric::COMPLETION, size);
        let of = |part| facts.part(&prefix, part);
        if let (Some(mean), Some(p50), Some(p99), Some((median, spread))) =
            (of("mean"), of("p50"), of("p99"), longest)
        {
            let most = 0.5 * p50 + 0.49 * p99 + 0.01 * (median + spread).max(p99);
            let source = "the percentiles of this size and the longest time of all";
            at_most(&metric::part(&prefix, "mean"), mean, most, ROUNDING, source)?;
        }
    }
    for part in metric::SIZE_PARTS {
        let values: Option<Vec<f64>> =
            sizes.iter().map(|size| facts.part(&metric::part(metric::COMPLETION, size), part)).collect();
        let (Some(all), Some(values)) = (facts.part(metric::COMPLETION, part), values) else { continue };
        let key = metric::part(metric::COMPLETION, part);
        if let [value] = values[..] {
            same(&key, all, value, "the time of its only size")?;
        } else if !values.is_empty() {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            at_least(&key, all, least, ROUNDING, "the times of each size")?;
            at_most(&key, all, most, ROUNDING, "the times of each size")?;
        }
    }
    Ok(())
}

/// Checks the times of a simulation. A time is at least the time that the bytes of a flow or of a fetched
/// value take on the line, and at most the warm-up plus the measured time.
pub(super) fn line(facts: &Facts<'_>) -> Checked {
    let (Some(run), Some((scenario, _))) = (facts.run.filter(|_| facts.is_simulated()), facts.known) else {
        return Ok(());
    };
    let smallest = match &scenario.workload.kind {
        WorkloadKind::Shuffle { bytes_per_flow } => Some(*bytes_per_flow),
        WorkloadKind::Fetch { clients } => {
            clients.iter().filter(|group| group.timed).flat_map(|group| group.sizes.iter().copied()).min()
        }
        _ => None,
    };
    let Some(smallest) = smallest else { return Ok(()) };
    for (key, value) in &facts.repeat.metrics {
        let Some(part) = key.strip_prefix(metric::COMPLETION).and_then(|part| part.strip_prefix('.')) else {
            continue;
        };
        let size =
            part.rsplit_once('.').and_then(|(size, _)| size.parse::<ByteSize>().ok()).unwrap_or(smallest);
        if part != "spread" {
            let rate = run.rate_bps;
            let source = format!("{size} at {rate} bit/s");
            at_least(key, *value, size.bytes() as f64 * 8.0 / rate as f64, ROUNDING, &source)?;
        }
        if run.seconds > 0.0 {
            at_most(key, *value, run.warmup + run.seconds, ROUNDING, "the warm-up and the measured time")?;
        }
    }
    Ok(())
}
