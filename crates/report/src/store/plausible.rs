//! Checks that a record's figures are possible.
//!
//! A record may come from another host, and later code divides, squares and compares its figures. This
//! module refuses an impossible figure by name, so later code needs no checks.

use std::collections::BTreeSet;

use evenkeel_model::record::{Record, RepeatRecord, VariantRecord, metric};
use evenkeel_model::scenario::bundled::variant_tables;
use evenkeel_model::scenario::{LINE_RATES, parse};
use evenkeel_model::text::excerpt;
use evenkeel_model::units::BitRate;

use super::consistent::{Run, check_expectations, check_in_run, check_settings};
use super::relations::{self, Facts};

/// Above any possible figure: 10¹⁵ bit/s, 10¹⁵ packets, 32 years in µs.
const MOST: f64 = 1e15;
/// Rounding can raise a share above 1, by less than this.
const ROUNDING: f64 = 1e-6;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Implausible {
    #[error("{field} is {}, which cannot have been measured: {reason}", figure(*.value))]
    Figure { field: String, value: f64, reason: &'static str },
    #[error("{field} is {value}, which cannot have been measured: {other} is only {bound}")]
    Order { field: String, value: f64, other: String, bound: f64 },
    #[error("{field} is {}, which contradicts {what}", figure(*.value))]
    Contradiction { field: String, value: f64, what: String },
    #[error("{field} is {rate_bps} bit/s, which cannot be the rate of a line: a line has a rate from {} to {}", LINE_RATES.start(), LINE_RATES.end())]
    LineRate { field: &'static str, rate_bps: u64 },
    #[error("the world is '{}'; it can be sim or netns", excerpt(world))]
    World { world: String },
    #[error("two repeats name the same series file, {}", excerpt(file))]
    SeriesTwice { file: String },
    #[error("a variant has no name")]
    NoName,
    #[error("two variants have the name {name}")]
    NameTwice { name: String },
}

impl Implausible {
    /// Adds a place, such as the variant, to the figure's name.
    fn within(self, place: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Figure { field, value, reason } => Self::Figure { field: place(field), value, reason },
            Self::Order { field, value, other, bound } => {
                Self::Order { field: place(field), value, other, bound }
            }
            Self::Contradiction { field, value, what } => {
                Self::Contradiction { field: place(field), value, what }
            }
            other => other,
        }
    }
}

/// Formats a number. A number above [`MOST`], or near 0, has an exponent, so that it stays short: `1e308`.
fn figure(value: f64) -> String {
    const LEAST: f64 = 1e-6;
    let is_short = value == 0.0 || (LEAST..=MOST).contains(&value.abs());
    if is_short { value.to_string() } else { format!("{value:e}") }
}

pub(super) fn check(record: &Record) -> Result<(), Implausible> {
    check_names(record)?;
    if !["sim", "netns"].contains(&record.world.as_str()) {
        return Err(Implausible::World { world: record.world.clone() });
    }
    check_series(record)?;
    let positive = [("duration_s", record.duration_s), ("warmup_s", record.warmup_s)];
    for (field, value) in positive {
        check_one(value, 0.0, MOST, || field.to_owned())?;
    }
    for (name, length) in &record.windows {
        check_above_zero(*length, || format!("the window {name}"))?;
    }
    let rates = [("the line rate", record.rate_bps), ("the nominal line rate", record.nominal_rate_bps)];
    for (field, rate) in rates {
        check_above_zero(rate as f64, || field.to_owned())?;
        check_rate(rate, field)?;
    }
    // A scenario of another version, or with qdisc setups of the user, gives no bounds.
    let scenario = parse(&record.scenario_text, "", variant_tables()).ok();
    if let Some(scenario) = &scenario {
        check_settings(record, scenario)?;
    }
    let run = Run::of(record);
    for variant in &record.variants {
        let known = scenario.as_ref().and_then(|scenario| {
            Some((scenario, scenario.all_variants().find(|known| known.name == variant.name)?))
        });
        for (number, repeat) in variant.repeats.iter().enumerate() {
            check_repeat(repeat).and_then(|()| check_in_run(repeat, &run, known)).map_err(|wrong| {
                wrong.within(|field| format!("{field} of {}, repeat {number},", variant.name))
            })?;
        }
    }
    if let Some(scenario) = &scenario {
        check_expectations(record, scenario)?;
    }
    for (variant, figures) in record.paper.iter().flat_map(|paper| &paper.variants) {
        for (key, value) in figures {
            check_metric(key, *value)
                .map_err(|wrong| wrong.within(|_| format!("the paper's {key} of {variant}")))?;
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

/// Checks that no two variants have the same name. Later code would compare them as one variant.
fn check_names(record: &Record) -> Result<(), Implausible> {
    let mut names = BTreeSet::new();
    for VariantRecord { name, .. } in &record.variants {
        if name.is_empty() {
            return Err(Implausible::NoName);
        }
        if !names.insert(name) {
            return Err(Implausible::NameTwice { name: name.clone() });
        }
    }
    Ok(())
}

/// Checks that each repeat has its own series. A repeat with another repeat's series is a copy.
fn check_series(record: &Record) -> Result<(), Implausible> {
    let mut files = BTreeSet::new();
    let all = record.variants.iter().flat_map(|variant| &variant.repeats);
    match all.filter_map(|repeat| repeat.series.as_ref()).find(|file| !files.insert(*file)) {
        Some(file) => Err(Implausible::SeriesTwice { file: file.clone() }),
        None => Ok(()),
    }
}

pub fn check_rate(rate_bps: u64, field: &'static str) -> Result<(), Implausible> {
    let is_possible = LINE_RATES.contains(&BitRate::from_bits_per_second(rate_bps));
    if is_possible { Ok(()) } else { Err(Implausible::LineRate { field, rate_bps }) }
}

pub fn check_repeat(repeat: &RepeatRecord) -> Result<(), Implausible> {
    for (key, value) in &repeat.metrics {
        check_metric(key, *value)?;
    }
    relations::check(&Facts { repeat, run: None, known: None })?;
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
    let (least, most) = metric::range(key);
    check_one(value, least.max(-MOST), (most * (1.0 + ROUNDING)).min(MOST), || key.to_owned())
}

fn check_above_zero(value: f64, field: impl Fn() -> String) -> Result<(), Implausible> {
    if value == 0.0 {
        return Err(Implausible::Figure { field: field(), value, reason: "it is zero" });
    }
    check_one(value, 0.0, MOST, field)
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
    Err(Implausible::Figure { field: field(), value, reason })
}
