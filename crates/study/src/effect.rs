//! Compares two groups of setups: a ratio, paired by repeat, with its confidence interval.
//!
//! The two groups are measured in the same *cells*: combinations of values on the other axes. For each
//! cell and repeat, the mean over one group is divided by the mean over the other group. Means of
//! ratios are geometric, so that the mean of 2 and 1/2 is 1.
//!
//! Repeat *i* of every point runs in the same round, and the points of a cell run consecutively. Slow
//! drift of the machine therefore cancels, and only the variation between repeats remains.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::{Interval, MeanInterval, mean_ratio};

use crate::results::{Point, Results, lack};

/// A mean ratio of two groups of setups.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    pub mean: MeanInterval,
    /// Number of cells in the mean.
    pub cells: usize,
    /// The setups in the numerator that were measured.
    pub subjects: BTreeSet<String>,
    /// The setups in the denominator that were measured.
    pub others: BTreeSet<String>,
}

impl Effect {
    /// Returns whether the whole interval is above a value; false without an interval.
    #[must_use]
    pub fn is_above(&self, value: f64) -> bool {
        self.mean.interval.is_some_and(|interval| interval.low > value)
    }

    /// Returns whether the whole interval is below a value; false without an interval.
    #[must_use]
    pub fn is_below(&self, value: f64) -> bool {
        self.mean.interval.is_some_and(|interval| interval.high < value)
    }

    /// Returns whether the whole interval is within `margin` of 1; false without an interval.
    #[must_use]
    pub fn is_near_one(&self, margin: f64) -> bool {
        self.is_above(1.0 - margin) && self.is_below(1.0 + margin)
    }

    #[must_use]
    pub fn interval(&self) -> Option<Interval> {
        self.mean.interval
    }
}

type Cell<'r> = (Vec<&'r Point>, Vec<&'r Point>);

/// The reason why there is no figure. `Some`: measured points lack the metric, or it is 0 in a repeat.
/// `None`: no cell has points of the two groups, or the points have no common repeats.
pub type Lack = Option<String>;

/// Returns the ratio of a metric, `subjects` to `others`, over the cells that `keep` selects. Setups
/// without measurements are omitted.
///
/// # Errors
/// Returns the reason if a measured point lacks the metric, if the metric is 0 in a repeat, if no cell has
/// points of the two groups, or if the points have no common repeats.
pub fn effect(
    results: &Results,
    scenario: &str,
    metric: &str,
    subjects: &[&str],
    others: &[&str],
    keep: impl Fn(&Point) -> bool,
) -> Result<Effect, Lack> {
    let is_in = |point: &&Point| {
        let setup = point.setup.as_str();
        keep(point) && (subjects.contains(&setup) || others.contains(&setup))
    };
    let points: Vec<&Point> = results.measured(scenario).filter(is_in).collect();
    if let Some(lack) = lack(&points, metric) {
        return Err(Some(lack));
    }
    let mut cells: BTreeMap<&[(String, String)], Cell<'_>> = BTreeMap::new();
    for point in points {
        let cell = cells.entry(&point.axes).or_default();
        if subjects.contains(&point.setup.as_str()) {
            cell.0.push(point);
        } else {
            cell.1.push(point);
        }
    }
    cells.retain(|_, (subjects, others)| !subjects.is_empty() && !others.is_empty());
    let by_cell = cells.values().map(|(subjects, others)| {
        logarithms(&mean_by_repeat(subjects, metric), &mean_by_repeat(others, metric), metric)
    });
    let by_cell: Vec<BTreeMap<u32, f64>> = by_cell.collect::<Result<_, Lack>>()?;
    Ok(Effect {
        mean: mean_ratio(&in_all_cells(by_cell.into_iter())).ok_or(None)?,
        cells: cells.len(),
        subjects: cells.values().flat_map(|(points, _)| points).map(|point| point.setup.clone()).collect(),
        others: cells.values().flat_map(|(_, points)| points).map(|point| point.setup.clone()).collect(),
    })
}

/// Returns the logarithms of the ratios of common repeats.
///
/// # Errors
/// Returns the reason if a value is 0 in a common repeat: a ratio over the other repeats would leave out the
/// worst repeats.
pub fn logarithms(
    first: &BTreeMap<u32, f64>,
    second: &BTreeMap<u32, f64>,
    metric: &str,
) -> Result<BTreeMap<u32, f64>, Lack> {
    let pairs = first.iter().filter_map(|(repeat, value)| Some((*repeat, *value, *second.get(repeat)?)));
    let logarithm = |(repeat, first, second): (u32, f64, f64)| {
        let logarithm = (first / second).ln();
        let why = || Some(format!("{metric} is 0 in a repeat, so it has no ratio"));
        if logarithm.is_finite() { Ok((repeat, logarithm)) } else { Err(why()) }
    };
    pairs.map(logarithm).collect()
}

/// Returns a metric's mean over points, for each repeat that all points have.
#[must_use]
pub fn mean_by_repeat(points: &[&Point], metric: &str) -> BTreeMap<u32, f64> {
    let values: Vec<BTreeMap<u32, f64>> = points.iter().map(|point| point.values(metric)).collect();
    let Some((first, rest)) = values.split_first() else { return BTreeMap::new() };
    first
        .iter()
        .filter_map(|(repeat, value)| {
            let others: Option<Vec<f64>> = rest.iter().map(|values| values.get(repeat).copied()).collect();
            let sum = value + others?.iter().sum::<f64>();
            Some((*repeat, sum / values.len() as f64))
        })
        .collect()
}

/// Returns the mean over cells, for each repeat that all cells have.
#[must_use]
pub fn in_all_cells(cells: impl Iterator<Item = BTreeMap<u32, f64>>) -> Vec<f64> {
    let cells: Vec<BTreeMap<u32, f64>> = cells.collect();
    let Some((first, rest)) = cells.split_first() else { return Vec::new() };
    first
        .iter()
        .filter_map(|(repeat, value)| {
            let others: Option<Vec<f64>> = rest.iter().map(|values| values.get(repeat).copied()).collect();
            Some((value + others?.iter().sum::<f64>()) / cells.len() as f64)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_value_of_0_has_no_ratio() {
        let values = |last: f64| BTreeMap::from([(0, 2.0), (1, last)]);
        assert_eq!(
            logarithms(&values(2.0), &values(2.0), "x").unwrap(),
            BTreeMap::from([(0, 0.0), (1, 0.0)])
        );
        for (first, second) in [(0.0, 2.0), (2.0, 0.0), (0.0, 0.0)] {
            let lack = logarithms(&values(first), &values(second), "x").unwrap_err();
            assert_eq!(lack.unwrap(), "x is 0 in a repeat, so it has no ratio");
        }
    }
}
