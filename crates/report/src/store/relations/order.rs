//! Checks figures of the same values against each other: percentiles are in order, a mean fits the
//! percentiles, and no part exceeds its total.

use std::collections::BTreeSet;

use evenkeel_model::record::metric;

use super::{Checked, Facts, HISTOGRAM, ROUNDING, against, at_least, at_most, is_part};
use crate::store::plausible::Implausible;

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p80", 0.8), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

/// Checks figures of the same values against each other. Percentiles must be in order. Times are never
/// negative, and a share of at least 1 - q of them is not below percentile q. Their mean is therefore
/// at least this share of percentile q (Markov's inequality).
pub(super) fn order(facts: &Facts<'_>) -> Checked {
    let metrics = &facts.repeat.metrics;
    let at_most = |lower: &str, factor: f64, upper: &str, rounding: f64| {
        let (Some(value), Some(bound)) = (metrics.get(lower), metrics.get(upper)) else { return Ok(()) };
        if value * factor <= bound * (1.0 + rounding) + ROUNDING {
            return Ok(());
        }
        let (field, other) = (lower.to_owned(), upper.to_owned());
        Err(Implausible::Order { field, value: *value, other, bound: *bound })
    };
    for key in metrics.keys() {
        let Some((group, part)) = key.rsplit_once('.') else { continue };
        match group.split('.').next().unwrap_or_default() {
            metric::NFM => at_most(key, 1.0, &metric::part(metric::NFM_MAX, part), ROUNDING)?,
            // A waiting processor is not busy.
            metric::CORES | metric::CPU_PER_GB if part != "wait" => {
                at_most(key, 1.0, &metric::part(group, metric::CORES_PARTS[0]), ROUNDING)?;
            }
            // Another relation checks recorded clients more closely.
            metric::REQUESTS if part == "client_median" && facts.repeat.clients.is_empty() => {
                at_most(key, 1.0, &metric::part(group, "total"), ROUNDING)?;
            }
            metric::LATENCY | metric::COMPLETION | metric::RESPONSE => {
                let Some(at) = PERCENTILES.iter().position(|(name, _)| *name == part) else { continue };
                for (higher, _) in &PERCENTILES[at + 1..] {
                    at_most(key, 1.0, &metric::part(group, higher), HISTOGRAM)?;
                }
                at_most(key, 1.0 - PERCENTILES[at].1, &metric::part(group, "mean"), HISTOGRAM)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks means against all percentiles of the same values: the values between two percentiles are not
/// below the lower percentile.
pub(super) fn mean(facts: &Facts<'_>) -> Checked {
    let groups: BTreeSet<&str> = facts
        .repeat
        .metrics
        .keys()
        .filter_map(|key| key.strip_suffix(".mean"))
        .filter(|group| {
            let prefix = group.split('.').next().unwrap_or_default();
            [metric::LATENCY, metric::COMPLETION, metric::RESPONSE].contains(&prefix)
        })
        .collect();
    for group in groups {
        let Some(mean) = facts.part(group, "mean") else { continue };
        let known: Vec<(f64, f64)> =
            PERCENTILES.iter().filter_map(|(name, share)| Some((*share, facts.part(group, name)?))).collect();
        let ends = known.iter().skip(1).map(|(share, _)| *share).chain([1.0]);
        let least: f64 = known.iter().zip(ends).map(|((share, value), end)| (end - share) * value).sum();
        at_least(&metric::part(group, "mean"), mean, least, HISTOGRAM, "the percentiles of the same values")?;
    }
    Ok(())
}

/// Checks the share of late requests against the percentiles: a share of at least q of the values is
/// not above percentile q.
pub(super) fn objective(facts: &Facts<'_>) -> Checked {
    let slo = facts.known.and_then(|(_, variant)| variant.tenants()?.probes?.slo);
    let (Some(slo), Some(late)) = (slo, facts.of(metric::SLO_VIOLATIONS)) else { return Ok(()) };
    let slo_us = slo.as_u64() as f64 / 1e3;
    for (name, share) in PERCENTILES {
        let Some(value) = facts.part(metric::LATENCY, name) else { continue };
        let above = value > slo_us * (1.0 + HISTOGRAM) && late < 1.0 - share - ROUNDING;
        let below = value < slo_us * (1.0 - HISTOGRAM) && late > 1.0 - share + ROUNDING;
        if above || below {
            let other = metric::part(metric::LATENCY, name);
            return Err(against(
                metric::SLO_VIOLATIONS,
                late,
                format!("{other}, {value}, and the slo of {slo}"),
            ));
        }
    }
    Ok(())
}

/// Checks half round trips against half of the time in which they were measured. In the simulator, also
/// checks them against half of the time that the probe's request takes on the line.
pub(super) fn round_trips(facts: &Facts<'_>) -> Checked {
    let (Some(run), Some((scenario, _))) = (facts.run, facts.known) else { return Ok(()) };
    let probe = scenario.workload.latency.as_ref();
    // The test bed rounds the time of a probe up to full seconds, and waits for the last answer.
    let real = |seconds: f64| seconds.ceil() + 1.0;
    let seconds = match probe {
        Some(probe) => probe.duration.as_secs_f64(),
        None => run.warmup + run.seconds,
    };
    let seconds = if facts.is_simulated() { seconds } else { real(seconds) };
    let message = probe.map(|probe| probe.message);
    // A value between two percentiles is at most the upper percentile. The last thousandth is at most
    // the whole time.
    let percentiles: Option<Vec<f64>> =
        ["p50", "p90", "p99", "p999"].into_iter().map(|part| facts.part(metric::LATENCY, part)).collect();
    if let (Some(mean), Some([p50, p90, p99, p999])) =
        (facts.part(metric::LATENCY, "mean"), percentiles.as_deref())
    {
        let tail = p999.max(seconds * 1e6 / 2.0);
        let most = 0.5 * p50 + 0.4 * p90 + 0.09 * p99 + 0.009 * p999 + 0.001 * tail;
        let source = "the percentiles and the measured time";
        at_most(&metric::part(metric::LATENCY, "mean"), mean, most, HISTOGRAM, source)?;
    }
    for (key, value) in facts.repeat.metrics.iter().filter(|(key, _)| is_part(key, metric::LATENCY)) {
        at_most(key, *value, seconds * 1e6 / 2.0, HISTOGRAM, "half of the time in which it was measured")?;
        if let Some(message) = message.filter(|_| facts.is_simulated()) {
            let rate = run.rate_bps;
            let least = message.bytes() as f64 * 8e6 / rate as f64 / 2.0;
            at_least(key, *value, least, HISTOGRAM, &format!("half of {message} at {rate} bit/s"))?;
        }
    }
    Ok(())
}
