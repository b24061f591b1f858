//! Checks that a record's figures are possible.
//!
//! A record may come from another host, and all later code divides, squares and compares its figures. An
//! impossible figure is refused with its name, so later code needs no checks.

use evenkeel_model::record::{Record, RepeatRecord, metric};

/// Larger than any possible figure in any unit: 10¹⁵ bit/s, 10¹⁵ packets, 30 million years in µs.
const MOST: f64 = 1e15;
/// Tolerance for a share above 1, due to rounding.
const ROUNDING: f64 = 1e-6;

/// An impossible figure.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}, which cannot have been measured: {reason}")]
pub struct Implausible {
    /// The figure's name.
    pub field: String,
    pub value: f64,
    pub reason: &'static str,
}

pub(super) fn check(record: &Record) -> Result<(), Implausible> {
    let positive = [("duration_s", record.duration_s), ("warmup_s", record.warmup_s)];
    for (field, value) in positive {
        check_one(value, 0.0, MOST, || field.to_owned())?;
    }
    for (name, length) in &record.windows {
        check_one(*length, 0.0, MOST, || format!("the window {name}"))?;
    }
    for rate in [record.rate_bps, record.nominal_rate_bps] {
        check_one(rate as f64, 0.0, MOST, || "the line rate".to_owned())?;
    }
    for variant in &record.variants {
        for (number, repeat) in variant.repeats.iter().enumerate() {
            check_repeat(repeat).map_err(|wrong| Implausible {
                field: format!("{} of {}, repeat {number},", wrong.field, variant.name),
                ..wrong
            })?;
        }
    }
    for (variant, figures) in record.paper.iter().flat_map(|paper| &paper.variants) {
        for (key, value) in figures {
            check_metric(key, *value)
                .map_err(|wrong| Implausible { field: format!("the paper's {key} of {variant}"), ..wrong })?;
        }
    }
    for expectation in &record.expectations {
        let figures = [expectation.at_least, expectation.at_most, expectation.value];
        for value in figures.into_iter().flatten() {
            check_one(value, -MOST, MOST, || {
                format!("expected {} of {}", expectation.metric, expectation.variant)
            })?;
        }
    }
    Ok(())
}

/// Checks every figure of a repeat.
///
/// # Errors
/// When one is impossible.
pub fn check_repeat(repeat: &RepeatRecord) -> Result<(), Implausible> {
    for (key, value) in &repeat.metrics {
        check_metric(key, *value)?;
    }
    for (key, value) in &repeat.counters {
        check_one(*value, 0.0, MOST, || format!("the counter {key}"))?;
    }
    for (field, value) in repeat
        .sim
        .iter()
        .flat_map(|sim| [("sim.simulated_s", sim.simulated_s), ("sim.cpu_seconds", sim.cpu_seconds)])
    {
        check_one(value, 0.0, MOST, || field.to_owned())?;
    }
    Ok(())
}

fn check_metric(key: &str, value: f64) -> Result<(), Implausible> {
    let (prefix, _) = key.split_once('.').unwrap_or((key, ""));
    let (least, most) = match prefix {
        metric::JAIN_BYTES
        | metric::JAIN_PACKETS
        | metric::SLO_VIOLATIONS
        | metric::IDLE_WHILE_BACKLOGGED => (0.0, 1.0 + ROUNDING),
        // A line may carry slightly more than its nominal rate.
        metric::LOST_CAPACITY => (-MOST, 1.0 + ROUNDING),
        metric::THROUGHPUT
        | metric::CPU
        | metric::LATENCY
        | metric::NFM
        | metric::NFM_MAX
        | metric::RETRANSMITS
        | metric::OUT_OF_ORDER
        | metric::COMPLETION
        | metric::RESPONSE
        | metric::REQUESTS
        | metric::CORES
        | metric::CPU_PER_GB
        | metric::TRANSACTIONS
        | metric::QDISC
        | metric::DISTURBANCE => (0.0, MOST),
        // A metric of a later version: only check that it is a sane number.
        _ => (-MOST, MOST),
    };
    check_one(value, least, most, || key.to_owned())
}

fn check_one(value: f64, least: f64, most: f64, field: impl Fn() -> String) -> Result<(), Implausible> {
    let reason = if !value.is_finite() {
        "it is not a finite number"
    } else if value < least && least == 0.0 {
        "it is negative"
    } else if value > most && most < MOST {
        "it is above 1"
    } else if value > most || value < least {
        "it is too large"
    } else {
        return Ok(());
    };
    Err(Implausible { field: field(), value, reason })
}
