//! Key findings KF9 to KF12, from the experiments of section 6.3: fairness with equal and with mixed lengths
//! of writes.

use std::collections::BTreeMap;

use evenkeel_metrics::{MeanInterval, mean_interval, mean_ratio};
use evenkeel_model::record::metric;

use super::{ALL, CONTAINS_BOUND, Draft, Finding, HTB, THESIS, shown, undecided, unmeasured};
use crate::effect::{Lack, in_all_cells, logarithms, mean_by_repeat};
use crate::results::{Point, Results, lack};

const EQUAL: &str = "tc-fairness";
const MIXED: &str = "tc-fairness-mixed";
const KIB: f64 = 1024.0;

fn of_thesis(point: &Point) -> bool {
    ALL.contains(&point.setup.as_str())
}

fn over_cells(
    results: &Results,
    scenario: &str,
    setup: &str,
    key: &str,
    keep: impl Fn(&Point) -> bool,
) -> Result<MeanInterval, Lack> {
    let points = results.measured(scenario).filter(|point| point.setup == setup && keep(point));
    let points: Vec<&Point> = points.collect();
    match lack(&points, key) {
        Some(lack) => Err(Some(lack)),
        None => mean_interval(&in_all_cells(points.iter().map(|point| point.values(key)))).ok_or(None),
    }
}

/// Returns the first metric at the first point of a pair divided by the second metric at the second point, by
/// common repeat. The result is the geometric mean over the pairs.
fn ratio_of_pairs(pairs: &[(&Point, &Point)], keys: (&str, &str)) -> Result<MeanInterval, Lack> {
    let (first, second): (Vec<&Point>, Vec<&Point>) = pairs.iter().copied().unzip();
    if let Some(lack) = lack(&first, keys.0).or_else(|| lack(&second, keys.1)) {
        return Err(Some(lack));
    }
    let cells =
        pairs.iter().map(|(first, second)| logarithms(&first.values(keys.0), &second.values(keys.1), keys.0));
    let cells: Vec<BTreeMap<u32, f64>> = cells.collect::<Result<_, Lack>>()?;
    mean_ratio(&in_all_cells(cells.into_iter())).ok_or(None)
}

fn is_below(mean: &MeanInterval, bound: f64) -> bool {
    mean.interval.is_some_and(|interval| interval.high < bound)
}

fn is_above(mean: &MeanInterval, bound: f64) -> bool {
    mean.interval.is_some_and(|interval| interval.low > bound)
}

pub(super) fn kf9(results: &Results) -> Finding {
    const PERFECT: f64 = 0.98;
    let mut draft = Draft::new(
        "KF9",
        "With equal writes of 1 KB and 4 KB all qdiscs are perfectly fair: Jain's index is 1.",
        "Equal writes of 1 and 4 KiB, every number of clients: Jain's index over bytes; with each qdisc the whole interval \
         lies above 0.98.",
    );
    let small =
        |point: &Point| point.number("length").is_some_and(|length| length == KIB || length == 4.0 * KIB);
    let mut found: Vec<(&str, MeanInterval)> = Vec::new();
    for setup in ALL {
        match over_cells(results, EQUAL, setup, metric::JAIN_BYTES, small) {
            Ok(mean) => found.push((setup, mean)),
            Err(None) => {}
            Err(lack) => return draft.missing(results, EQUAL, &["pfifo", HTB], lack),
        }
    }
    if found.is_empty() {
        return draft.missing(results, EQUAL, &["pfifo", HTB], None);
    }
    for (setup, mean) in &found {
        draft.mean(&format!("jain_bytes.{setup}"), mean);
    }
    let parts: Vec<String> = found.iter().map(|(setup, mean)| format!("{setup} {}", shown(mean))).collect();
    let unfair: Vec<&str> =
        found.iter().filter(|(_, mean)| is_below(mean, PERFECT)).map(|(setup, _)| *setup).collect();
    let confirmed = found.iter().all(|(_, mean)| is_above(mean, PERFECT));
    // With only some of the qdiscs, the figures can refute the finding, but cannot confirm it.
    if unfair.is_empty() && found.len() < ALL.len() {
        return draft.missing(results, EQUAL, &ALL, None);
    }
    let end = match (confirmed, unfair.is_empty()) {
        (true, _) => "all fair".to_owned(),
        (_, false) => format!("not fair with {}", unfair.join(", ")),
        _ => undecided(
            found.iter().map(|(_, mean)| mean),
            "an interval contains the bound, so the finding stays open",
        ),
    };
    let reason = format!("{}; {end}", parts.join(", "));
    draft.judged(confirmed, reason, &unmeasured(results, EQUAL, &THESIS, small))
}

pub(super) fn kf10(results: &Results) -> Finding {
    const BOUND: f64 = 0.975;
    let mut draft = Draft::new(
        "KF10",
        "From 40 clients on, HTB's fairness is 5 % lower with writes of 64 KiB than with writes of 4 KiB.",
        "40 clients and more, htb: Jain's index over bytes with equal writes of 64 KiB over that with 4 KiB; the interval of \
         the paired ratio lies below 0.975.",
    );
    let of_htb: Vec<&Point> = results
        .measured(EQUAL)
        .filter(|point| point.setup == HTB && point.number("clients").is_some_and(|clients| clients >= 40.0))
        .collect();
    let at = |kib: f64, clients: Option<f64>| {
        of_htb
            .iter()
            .find(|point| point.number("length") == Some(kib * KIB) && point.number("clients") == clients)
    };
    let large = of_htb.iter().filter(|point| point.number("length") == Some(64.0 * KIB));
    let pairs: Vec<(&Point, &Point)> =
        large.filter_map(|large| Some((*large, *at(4.0, large.number("clients"))?))).collect();
    let found = match ratio_of_pairs(&pairs, (metric::JAIN_BYTES, metric::JAIN_BYTES)) {
        Ok(found) => found,
        Err(lack) => return draft.missing(results, EQUAL, &[HTB], lack),
    };
    draft.mean("jain_ratio", &found);
    let end = match (is_below(&found, BOUND), is_above(&found, BOUND)) {
        (true, _) => "it drops".to_owned(),
        (_, true) => "it drops by less, or not at all".to_owned(),
        _ => undecided([&found], CONTAINS_BOUND),
    };
    let crowded = |point: &Point| {
        let length = point.number("length");
        point.number("clients").is_some_and(|clients| clients >= 40.0)
            && (length == Some(4.0 * KIB) || length == Some(64.0 * KIB))
    };
    let reason = format!("64 KiB over 4 KiB: {}; {end}", shown(&found));
    draft.judged(is_below(&found, BOUND), reason, &unmeasured(results, EQUAL, &[HTB], crowded))
}

pub(super) fn kf11(results: &Results) -> Finding {
    const BOUND: f64 = 0.9;
    let mut draft = Draft::new(
        "KF11",
        "With mixed lengths of writes (S1), fairness by packets drops by 20 % against equal ones (S0).",
        "Each setup and number of clients: Jain's index over packets in S1 over that in S0 with 4 KiB; the interval of the \
         paired ratio, mean over the setups of the thesis, lies below 0.9.",
    );
    let equal = |mixed: &Point| {
        results.measured(EQUAL).find(|point| {
            point.setup == mixed.setup
                && point.number("length") == Some(4.0 * KIB)
                && point.number("clients") == mixed.number("clients")
        })
    };
    let pairs: Vec<(&Point, &Point)> = results
        .measured(MIXED)
        .filter(|point| of_thesis(point))
        .filter_map(|mixed| Some((mixed, equal(mixed)?)))
        .collect();
    let found = match ratio_of_pairs(&pairs, (metric::JAIN_PACKETS, metric::JAIN_PACKETS)) {
        Ok(found) => found,
        Err(lack) => return draft.missing(results, MIXED, &["pfifo", HTB], lack),
    };
    draft.mean("jain_packets_ratio", &found);
    let end = match (is_below(&found, BOUND), is_above(&found, BOUND)) {
        (true, _) => "it drops".to_owned(),
        (_, true) => {
            "it drops by less, or not at all: TCP makes full packets of writes of any length while a flow has a backlog"
                .to_owned()
        }
        _ => undecided([&found], CONTAINS_BOUND),
    };
    let setups: std::collections::BTreeSet<&str> =
        pairs.iter().map(|(mixed, _)| mixed.setup.as_str()).collect();
    let setups: Vec<&str> = setups.into_iter().collect();
    let reason = format!("S1 over S0 with {}: {}; {end}", setups.join(", "), shown(&found));
    let mixed = |other: &Point| {
        let is_equal =
            |point: &Point| point.scenario == MIXED && point.number("clients") == other.number("clients");
        other.number("length") == Some(4.0 * KIB) && results.points.iter().any(is_equal)
    };
    let missing =
        [unmeasured(results, MIXED, &THESIS, |_| true), unmeasured(results, EQUAL, &THESIS, mixed)].concat();
    draft.judged(is_below(&found, BOUND), reason, &missing)
}

pub(super) fn kf12(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KF12",
        "Even where fairness by bytes is close to ideal, flows are treated less fairly by packets.",
        "S1, the setups of the thesis: the interval of Jain's index over bytes lies above 0.9, and that of the paired ratio of \
         the index over packets to the one over bytes lies below 0.95.",
    );
    let points: Vec<&Point> = results.measured(MIXED).filter(|point| of_thesis(point)).collect();
    let pairs: Vec<(&Point, &Point)> = points.iter().map(|point| (*point, *point)).collect();
    let bytes: Vec<f64> = mean_by_repeat(&points, metric::JAIN_BYTES).into_values().collect();
    let ratio = ratio_of_pairs(&pairs, (metric::JAIN_PACKETS, metric::JAIN_BYTES));
    let both = ratio.and_then(|ratio| mean_interval(&bytes).map(|bytes| (bytes, ratio)).ok_or(None));
    let (bytes, ratio) = match both {
        Ok(both) => both,
        Err(lack) => return draft.missing(results, MIXED, &["pfifo", HTB], lack),
    };
    draft.mean("jain_bytes", &bytes);
    draft.mean("packets_over_bytes", &ratio);
    let (ideal, less) = (is_above(&bytes, 0.9), is_below(&ratio, 0.95));
    let end = match (ideal, less) {
        (true, true) => "fair by bytes and less so by packets".to_owned(),
        _ if is_below(&bytes, 0.9) => "not close to ideal by bytes".to_owned(),
        _ if is_above(&ratio, 0.95) => "as fair by packets as by bytes".to_owned(),
        _ => undecided([&bytes, &ratio], "an interval contains the bound, so the finding stays open"),
    };
    let reason = format!("bytes {}, packets over bytes {}; {end}", shown(&bytes), shown(&ratio));
    draft.judged(ideal && less, reason, &unmeasured(results, MIXED, &THESIS, |_| true))
}
