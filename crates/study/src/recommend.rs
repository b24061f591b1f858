//! Recommends a qdisc for each need, from the figures alone.

use std::collections::BTreeMap;

use evenkeel_metrics::{LEAST_REPEATS, MeanInterval, mean_interval};
use evenkeel_model::record::metric;
use evenkeel_model::text::counted;

use crate::effect::in_all_cells;
use crate::results::{Point, Results};

/// Smallest difference that matters for a choice. A difference is relative to the mean of all setups,
/// or absolute for an index or share.
const MATERIAL: f64 = 0.01;

struct Need {
    name: &'static str,
    scenario: &'static str,
    metric: String,
    what: &'static str,
    higher_is_better: bool,
    /// Whether to compare values as shares of the mean over all setups. Every cell then has the same weight.
    relative: bool,
}

fn needs() -> [Need; 5] {
    let need = |name, scenario, metric, what, higher_is_better, relative| Need {
        name,
        scenario,
        metric,
        what,
        higher_is_better,
        relative,
    };
    [
        need(
            "throughput",
            "tc-clients",
            metric::THROUGHPUT.to_owned(),
            "bandwidth of all clients where only the processors limit it",
            true,
            true,
        ),
        need(
            "latency under load",
            "tc-priority",
            metric::part(metric::LATENCY, "p99"),
            "99th percentile of the sensitive client's latency, together with bulk clients",
            false,
            true,
        ),
        need(
            "priority",
            "tc-priority",
            metric::SLO_VIOLATIONS.to_owned(),
            "share of the sensitive client's requests beyond the objective",
            false,
            false,
        ),
        need(
            "fairness",
            "tc-fairness-mixed",
            metric::JAIN_BYTES.to_owned(),
            "Jain's index over bytes, clients with mixed lengths of writes",
            true,
            false,
        ),
        need(
            "processor time",
            "tc-clients",
            metric::part(metric::CPU_PER_GB, "busy"),
            "processor time for each GB",
            false,
            true,
        ),
    ]
}

#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    pub need: &'static str,
    pub scenario: &'static str,
    pub metric: String,
    pub what: &'static str,
    /// The best setup, and the setups whose score differs from the best score by less than 0.01 or not
    /// significantly. Empty with too few repeats to tell setups apart.
    pub best: Vec<String>,
    /// All setups with measurements in every cell, the best first.
    pub ranking: Vec<Ranked>,
    /// Setups of the scenario that lack the measurements of at least one cell.
    pub missing: Vec<String>,
    pub n: usize,
}

impl Recommendation {
    /// Returns the best setups as text, or why the setups are not ranked.
    #[must_use]
    pub fn answer(&self) -> String {
        if !self.is_judged() {
            let repeats = counted(self.n, "repeat");
            return format!("not judged: {repeats}, {LEAST_REPEATS} are needed ({})", self.figures());
        }
        let tie = if self.best.len() > 1 { " (a tie)" } else { "" };
        format!("{}{tie}", self.best.join(", "))
    }

    /// Returns whether the repeats are enough to tell setups apart.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.n >= LEAST_REPEATS
    }

    /// Returns each setup with its figure and unit, the best first.
    #[must_use]
    pub fn figures(&self) -> String {
        let description = evenkeel_report::describe(&self.metric);
        let figure =
            |ranked: &Ranked| format!("{} {}", ranked.setup, description.show_with_unit(ranked.value));
        self.ranking.iter().map(figure).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    pub setup: String,
    /// Mean of the metric over the setup's points.
    pub value: f64,
    /// The figure that ranks the setups: the value, or its share of the mean over all setups.
    pub score: MeanInterval,
    /// Difference to the best setup's score, paired by repeat; `None` for the best setup.
    pub behind: Option<MeanInterval>,
    /// Whether this is the best setup, or its score differs from the best score by less than 0.01 or not
    /// significantly. With too few repeats, `false` for every setup.
    pub tie: bool,
}

#[must_use]
pub fn recommendations(results: &Results) -> Vec<Recommendation> {
    needs().into_iter().filter_map(|need| recommend(results, need)).collect()
}

fn recommend(results: &Results, need: Need) -> Option<Recommendation> {
    let of_scenario: Vec<&Point> = results
        .points
        .iter()
        // The qdisc does not affect a client without competitors.
        .filter(|point| point.scenario == need.scenario && point.number("clients") != Some(0.0))
        .collect();
    let mut setups: Vec<&str> = Vec::new();
    let mut cells: Vec<&[(String, String)]> = Vec::new();
    for point in &of_scenario {
        if !setups.contains(&point.setup.as_str()) {
            setups.push(&point.setup);
        }
        if !cells.contains(&point.axes.as_slice()) && !point.repeats.is_empty() {
            cells.push(&point.axes);
        }
    }
    let values = |setup: &str, cell: &[(String, String)]| -> BTreeMap<u32, f64> {
        let point = of_scenario.iter().find(|point| point.setup == setup && point.axes == cell);
        point.map(|point| point.values(&need.metric)).unwrap_or_default()
    };
    // A setup must be measured in all cells. Without a difficult cell, its mean would be too good.
    let is_whole = |setup: &str, cell: &[(String, String)]| {
        let point = of_scenario.iter().find(|point| point.setup == setup && point.axes == cell);
        point.is_some_and(|point| !point.repeats.is_empty() && !point.lacks(&need.metric))
    };
    let (candidates, missing): (Vec<&str>, Vec<&str>) =
        setups.into_iter().partition(|setup| cells.iter().all(|cell| is_whole(setup, cell)));
    if candidates.len() < 2 || cells.is_empty() {
        return None;
    }
    let mut scores: Vec<(&str, f64, BTreeMap<u32, f64>)> = candidates
        .iter()
        .map(|setup| {
            let by_cell = cells.iter().map(|cell| {
                let own = values(setup, cell);
                if !need.relative {
                    return own;
                }
                let share = |(repeat, value): (&u32, &f64)| {
                    let all: Option<Vec<f64>> =
                        candidates.iter().map(|other| values(other, cell).get(repeat).copied()).collect();
                    let all = all?;
                    let share = value * all.len() as f64 / all.iter().sum::<f64>();
                    share.is_finite().then_some((*repeat, share))
                };
                own.iter().filter_map(share).collect()
            });
            let by_cell: Vec<BTreeMap<u32, f64>> = by_cell.collect();
            let repeats: Vec<u32> = by_cell[0]
                .keys()
                .copied()
                .filter(|repeat| by_cell.iter().all(|cell| cell.contains_key(repeat)))
                .collect();
            let score = repeats.into_iter().zip(in_all_cells(by_cell.into_iter())).collect();
            let means: Vec<f64> = cells
                .iter()
                .filter_map(|cell| mean_interval(&values(setup, cell).into_values().collect::<Vec<_>>()))
                .map(|mean| mean.mean)
                .collect();
            (*setup, means.iter().sum::<f64>() / means.len().max(1) as f64, score)
        })
        .filter(|(_, _, score): &(_, _, BTreeMap<u32, f64>)| !score.is_empty())
        .collect();
    let mean = |score: &BTreeMap<u32, f64>| score.values().sum::<f64>() / score.len() as f64;
    scores.sort_by(|first, second| {
        let order = mean(&first.2).total_cmp(&mean(&second.2));
        if need.higher_is_better { order.reverse() } else { order }
    });
    let best = scores.first()?.2.clone();
    let mut ranking: Vec<Ranked> = scores
        .iter()
        .enumerate()
        .filter_map(|(place, (setup, value, score))| {
            let differences: Vec<f64> =
                score.iter().filter_map(|(repeat, own)| Some(own - best.get(repeat)?)).collect();
            let behind = mean_interval(&differences).filter(|_| place > 0);
            let tie = behind.is_none_or(|behind| {
                behind.mean.abs() < MATERIAL || behind.interval.is_none_or(|interval| interval.contains(0.0))
            });
            let score = mean_interval(&score.values().copied().collect::<Vec<_>>())?;
            Some(Ranked { setup: (*setup).to_owned(), value: *value, score, behind, tie })
        })
        .collect();
    let n = ranking.iter().map(|ranked| ranked.score.n).min().unwrap_or(0);
    if n < LEAST_REPEATS {
        ranking.iter_mut().for_each(|ranked| ranked.tie = false);
    }
    Some(Recommendation {
        need: need.name,
        scenario: need.scenario,
        metric: need.metric,
        what: need.what,
        best: ranking.iter().filter(|ranked| ranked.tie).map(|ranked| ranked.setup.clone()).collect(),
        missing: missing.into_iter().map(str::to_owned).collect(),
        n,
        ranking,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::results::Values;

    fn point(setup: &str, clients: &str, values: &[f64]) -> Point {
        // Use the values twice, because an interval needs more repeats.
        let repeats = values.iter().chain(values).enumerate();
        let repeats =
            repeats.map(|(repeat, value)| (repeat as u32, Values::from([("jain_bytes".to_owned(), *value)])));
        Point {
            scenario: "tc-fairness-mixed".to_owned(),
            name: format!("{setup} clients={clients}"),
            setup: setup.to_owned(),
            axes: vec![("clients".to_owned(), clients.to_owned())],
            repeats: repeats.collect(),
            ..Point::default()
        }
    }

    #[test]
    fn too_few_repeats_rank_no_setup() {
        let mut points = vec![point("fair", "8", &[0.99, 0.98]), point("unfair", "8", &[0.5, 0.51])];
        let found = |points: &[Point]| {
            recommendations(&Results { points: points.to_vec(), ..Results::default() }).remove(0)
        };
        assert!(found(&points).best.is_empty());
        let answer = found(&points).answer();
        assert!(answer.starts_with("not judged: 4 repeats, 5 are needed (fair 0.985"), "{answer}");
        points = vec![point("fair", "8", &[0.99, 0.98, 0.99]), point("unfair", "8", &[0.5, 0.51, 0.5])];
        assert_eq!(found(&points).answer(), "fair");
    }

    #[test]
    fn the_best_is_told_with_its_ties_and_what_was_not_measured_everywhere() {
        let results = Results {
            points: vec![
                point("fair", "8", &[0.99, 0.98, 0.99]),
                point("fair", "48", &[0.99, 0.98, 0.99]),
                point("noisy", "8", &[0.95, 1.0, 0.96]),
                point("noisy", "48", &[0.95, 1.0, 0.96]),
                point("close", "8", &[0.985, 0.975, 0.985]),
                point("close", "48", &[0.985, 0.975, 0.985]),
                point("unfair", "8", &[0.5, 0.51, 0.5]),
                point("unfair", "48", &[0.7, 0.71, 0.7]),
                // This setup is the best setup in its only measured cell, which is the easy cell.
                point("half", "8", &[1.0, 1.0, 1.0]),
                point("half", "48", &[]),
            ],
            ..Results::default()
        };
        let found = recommendations(&results);
        assert_eq!(found.len(), 1);
        let Recommendation { need, best, missing, ranking, n, .. } = &found[0];
        assert_eq!((*need, *n, missing.as_slice()), ("fairness", 6, &["half".to_owned()][..]));
        let mut ties = best.clone();
        ties.sort();
        assert_eq!((best[0].as_str(), ties.join(" ").as_str()), ("fair", "close fair noisy"));
        let last = ranking.last().unwrap();
        assert_eq!((last.setup.as_str(), last.tie), ("unfair", false));
        assert!((last.behind.unwrap().mean + 0.3833).abs() < 1e-3, "{last:?}");
    }

    #[test]
    fn a_single_setup_is_no_choice() {
        let results = Results { points: vec![point("fair", "8", &[0.9, 0.9])], ..Results::default() };
        assert!(recommendations(&results).is_empty());
    }
}
