//! Checks the key findings of the TC performance study.
//!
//! Each finding is a function of the points alone. It consists of the thesis' statement and a criterion
//! in words and numbers. The criterion was fixed before any measurement.
//!
//! **The rule**:
//! - An effect of size X in the thesis is confirmed if the 95 % confidence interval of the paired ratio
//!   lies beyond half of X.
//! - *No difference* is confirmed if the interval lies within a stated margin of 1.
//! - Every other result is not confirmed, so noise confirms no finding. The reason states whether the
//!   figures contradict the finding or are inconclusive.
//!
//! Source: the TC performance thesis, sections 5.4 (KF1 to KF7), 6.4 (KF8 to KF12) and 7.1 (the
//! negative result KN).

mod kf1_to_kf5_overhead;
mod kf6_to_kf8_latency;
mod kf9_to_kf12_fairness;

use evenkeel_metrics::{LEAST_REPEATS, MeanInterval};
use serde_json::{Map, Value, json};

use crate::effect::{Effect, Lack};
use crate::results::{Point, Results};

/// The thesis' classless setups, and pfifo_fast. The thesis omits pfifo_fast because it behaves like
/// pfifo.
const CLASSLESS: [&str; 3] = ["pfifo", "pfifo_fast", "mq-fq_codel"];
/// All setups of the thesis except HTB. Also pfifo_fast.
const NOT_HTB: [&str; 5] = ["pfifo", "pfifo_fast", "mq-fq_codel", "drr", "qfq"];
const ALL: [&str; 6] = ["pfifo", "pfifo_fast", "mq-fq_codel", "drr", "qfq", "htb"];
/// The setups that a finding on all qdiscs needs: the setups of the thesis.
const THESIS: [&str; 5] = ["pfifo", "mq-fq_codel", "drr", "qfq", "htb"];
const HTB: &str = "htb";
const DEFAULT: &str = "mq-fq_codel";

/// Groups of scenarios that findings compare with each other. The links of a group should have the same
/// rate.
pub const COMPARED: [&[&str]; 1] = [&["tc-fairness", "tc-fairness-mixed"]];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Confirmed,
    /// The figures contradict the finding, or are inconclusive.
    NotConfirmed,
    /// A setup or point was not measured, or the measured points do not suffice for a figure.
    NotMeasurable,
}

impl Verdict {
    /// Returns the verdict's name on pages and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::NotConfirmed => "not confirmed",
            Self::NotMeasurable => "not measurable",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// `KF1` to `KF12`, or `KN`.
    pub id: &'static str,
    pub statement: &'static str,
    pub criterion: &'static str,
    pub verdict: Verdict,
    /// Ratios and means with their intervals, by name. KN also has processor times without intervals.
    pub figures: Map<String, Value>,
    /// Smallest number of repeats of the figures.
    pub n: usize,
    pub reason: String,
}

/// Returns all findings in order, and then the negative result.
#[must_use]
pub fn findings(results: &Results) -> Vec<Finding> {
    vec![
        kf1_to_kf5_overhead::kf1(results),
        kf1_to_kf5_overhead::kf2(results),
        kf1_to_kf5_overhead::kf3(results),
        kf1_to_kf5_overhead::kf4(results),
        kf1_to_kf5_overhead::kf5(results),
        kf6_to_kf8_latency::kf6(results),
        kf6_to_kf8_latency::kf7(results),
        kf6_to_kf8_latency::kf8(results),
        kf9_to_kf12_fairness::kf9(results),
        kf9_to_kf12_fairness::kf10(results),
        kf9_to_kf12_fairness::kf11(results),
        kf9_to_kf12_fairness::kf12(results),
        kf1_to_kf5_overhead::negative(results),
    ]
}

/// A finding without its verdict.
struct Draft {
    id: &'static str,
    statement: &'static str,
    criterion: &'static str,
    figures: Map<String, Value>,
    n: Option<usize>,
}

impl Draft {
    fn new(id: &'static str, statement: &'static str, criterion: &'static str) -> Self {
        Self { id, statement, criterion, figures: Map::new(), n: None }
    }

    fn ratio(&mut self, name: &str, effect: &Effect) {
        self.mean(name, &effect.mean);
    }

    fn mean(&mut self, name: &str, mean: &MeanInterval) {
        self.n = Some(self.n.map_or(mean.n, |n| n.min(mean.n)));
        self.figures.insert(name.to_owned(), with_interval(mean));
    }

    fn done(self, verdict: Verdict, reason: String) -> Finding {
        let Self { id, statement, criterion, figures, n } = self;
        Finding { id, statement, criterion, verdict, figures, n: n.unwrap_or(0), reason }
    }

    /// Returns the finding with its verdict. `unmeasured` are the finding's setups without measurement, each
    /// with the reason: the other setups can refute a finding, but not confirm it.
    fn judged(self, confirmed: bool, reason: String, unmeasured: &[String]) -> Finding {
        match (confirmed, unmeasured) {
            (false, _) => self.done(Verdict::NotConfirmed, reason),
            (true, []) => self.done(Verdict::Confirmed, reason),
            (true, missing) => {
                let reason =
                    format!("{reason}; but setups of the finding are missing: {}", missing.join("; "));
                self.done(Verdict::NotMeasurable, reason)
            }
        }
    }

    /// Returns the finding as not measurable. The reason is `lack` or, if it is `None`, that setups or points
    /// are missing.
    fn missing(self, results: &Results, scenario: &str, setups: &[&str], lack: Lack) -> Finding {
        let reason = lack.unwrap_or_else(|| why_missing(results, scenario, setups));
        self.done(Verdict::NotMeasurable, reason)
    }
}

/// Returns `{"mean", "low", "high", "n"}`. With too few repeats, `low` and `high` are missing.
pub(crate) fn with_interval(mean: &MeanInterval) -> Value {
    let mut value = json!({"mean": mean.mean, "n": mean.n});
    if let Some(interval) = mean.interval {
        value["low"] = interval.low.into();
        value["high"] = interval.high.into();
    }
    value
}

/// Returns the note for a mean without an interval, such as `2 repeats: no interval`.
pub(crate) fn no_interval(n: usize) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} repeat{s}: no interval")
}

/// Returns a mean with its interval, such as `1.120 (1.080 to 1.160)`.
pub(crate) fn shown(mean: &MeanInterval) -> String {
    match mean.interval {
        Some(interval) => format!("{:.3} ({:.3} to {:.3})", mean.mean, interval.low, interval.high),
        None => format!("{:.3} ({})", mean.mean, no_interval(mean.n)),
    }
}

const CONTAINS_BOUND: &str = "the interval contains the bound, so the finding stays open";

/// Returns the reason why the figures are inconclusive: too few repeats for an interval, or else
/// `reason`.
fn undecided<'m>(means: impl IntoIterator<Item = &'m MeanInterval>, reason: &str) -> String {
    match means.into_iter().any(|mean| mean.n < LEAST_REPEATS) {
        true => format!("too few repeats, {LEAST_REPEATS} are needed"),
        false => reason.to_owned(),
    }
}

/// States whether a ratio is beyond a bound in the expected direction, short of the bound, or
/// undecided.
fn against_bound(effect: &Effect, bound: f64) -> String {
    let (met, against) = if bound >= 1.0 {
        (effect.is_above(bound), effect.is_below(bound))
    } else {
        (effect.is_below(bound), effect.is_above(bound))
    };
    match (met, against) {
        (true, _) => "beyond the bound".to_owned(),
        (_, true) => "short of the bound".to_owned(),
        _ => undecided([&effect.mean], CONTAINS_BOUND),
    }
}

fn why_missing(results: &Results, scenario: &str, setups: &[&str]) -> String {
    if !results.points.iter().any(|point| point.scenario == scenario) {
        return format!("the scenario {scenario} did not run");
    }
    let reasons = unmeasured(results, scenario, setups, |_| true);
    if reasons.is_empty() {
        return format!(
            "{scenario} has no repeats in which all of {} were measured together",
            setups.join(", ")
        );
    }
    reasons.join("; ")
}

/// Returns the setups that lack a measurement at a point that `keep` selects, each with the reason.
fn unmeasured(
    results: &Results,
    scenario: &str,
    setups: &[&str],
    keep: impl Fn(&Point) -> bool,
) -> Vec<String> {
    let reason = |setup: &&str| {
        let is_of = |point: &&Point| point.scenario == scenario && point.setup == *setup && keep(point);
        let own: Vec<&Point> = results.points.iter().filter(is_of).collect();
        let lacking: Vec<&Point> = own.iter().copied().filter(|point| point.repeats.is_empty()).collect();
        let at = match own.len() {
            all if lacking.len() < all => format!(" at {} of {all} points", lacking.len()),
            _ => String::new(),
        };
        match lacking.first() {
            None if own.is_empty() => Some(format!("{setup} was not requested")),
            None => None,
            Some(Point { refused: Some(why), .. }) => Some(format!("{setup}{at}: {why}")),
            Some(Point { failures, .. }) => Some(match failures.first() {
                Some(why) => format!("{setup} failed{at}: {why}"),
                None => format!("{setup} has no repeat yet{at}"),
            }),
        }
    };
    setups.iter().filter_map(reason).collect()
}

/// Names the setups of a figure, and the setups of `all` that the figure lacks.
fn with_whom(effect: &Effect, all: &[&str]) -> String {
    let missing: Vec<&str> = all
        .iter()
        .filter(|setup| !effect.subjects.contains(**setup) && !effect.others.contains(**setup))
        .copied()
        .collect();
    let names =
        |setups: &std::collections::BTreeSet<String>| setups.iter().cloned().collect::<Vec<_>>().join(", ");
    let mut text = format!("{} against {}", names(&effect.subjects), names(&effect.others));
    if !missing.is_empty() {
        text.push_str(&format!(" (not measured: {})", missing.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests;
