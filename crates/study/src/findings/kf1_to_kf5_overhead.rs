//! Key findings KF1 to KF5, from the experiments of section 5.2: bandwidth and processor time of qdiscs. KN
//! is the negative result of section 7.1.

use std::collections::BTreeMap;

use evenkeel_metrics::{MeanInterval, mean_ratio};
use evenkeel_model::record::metric;

use super::{
    ALL, CLASSLESS, DEFAULT, Draft, Finding, HTB, NOT_HTB, THESIS, Verdict, against_bound, shown, undecided,
    unmeasured, with_whom,
};
use crate::effect::{Effect, Lack, effect, in_all_cells, logarithms};
use crate::results::{Point, Results, lack};

const LENGTHS: &str = "tc-packet-length";
const CLIENTS: &str = "tc-clients";
const KIB: f64 = 1024.0;

fn cpu_per_gb() -> String {
    metric::part(metric::CPU_PER_GB, "busy")
}

fn cores() -> String {
    metric::part(metric::CORES, "busy")
}

fn has_length(point: &Point, kib: f64) -> bool {
    point.number("length") == Some(kib * KIB)
}

pub(super) fn kf1(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KF1",
        "HTB takes between 5 % and 30 % more processor time than the other qdiscs, with one client and writes of more than 1 KB.",
        "One client, every length above 1 KiB: processor time for each GB with htb over that with the others; the interval \
         of the paired ratio lies above 1.025.",
    );
    let long = |point: &Point| point.number("length").is_some_and(|length| length > KIB);
    let found = match effect(results, LENGTHS, &cpu_per_gb(), &[HTB], &NOT_HTB, long) {
        Ok(found) => found,
        Err(lack) => return draft.missing(results, LENGTHS, &[HTB, "pfifo"], lack),
    };
    draft.ratio("cpu_per_gb_ratio", &found);
    if let Ok(busy) = effect(results, LENGTHS, &cores(), &[HTB], &NOT_HTB, long) {
        draft.ratio("busy_cores_ratio", &busy);
    }
    if let Ok(bandwidth) = effect(results, LENGTHS, metric::THROUGHPUT, &[HTB], &NOT_HTB, long) {
        draft.ratio("throughput_ratio", &bandwidth);
    }
    let reason = format!(
        "{}: {} times the processor time for each GB, over {} lengths; {}",
        with_whom(&found, &ALL),
        shown(&found.mean),
        found.cells,
        against_bound(&found, 1.025)
    );
    draft.judged(found.is_above(1.025), reason, &unmeasured(results, LENGTHS, &THESIS, long))
}

pub(super) fn kf2(results: &Results) -> Finding {
    const MARGIN: f64 = 0.05;
    let mut draft = Draft::new(
        "KF2",
        "With writes of 1 KB, packet processing further in the stack limits bandwidth, and not the qdisc.",
        "Writes of 1 KiB, every number of clients: bandwidth with each qdisc over that with pfifo; the interval of every \
         paired ratio lies within 5 % of 1.",
    );
    let short = |point: &Point| has_length(point, 1.0);
    let others = ALL.iter().filter(|setup| **setup != "pfifo");
    let mut found: Vec<(&str, Effect)> = Vec::new();
    for setup in others {
        match effect(results, CLIENTS, metric::THROUGHPUT, &[setup], &["pfifo"], short) {
            Ok(ratio) => found.push((*setup, ratio)),
            Err(None) => {}
            Err(lack) => return draft.missing(results, CLIENTS, &["pfifo", HTB], lack),
        }
    }
    if found.is_empty() {
        return draft.missing(results, CLIENTS, &["pfifo", HTB], None);
    }
    for (setup, ratio) in &found {
        draft.ratio(&format!("throughput_ratio.{setup}"), ratio);
    }
    let parts: Vec<String> =
        found.iter().map(|(setup, ratio)| format!("{setup} {}", shown(&ratio.mean))).collect();
    let apart = found.iter().find(|(_, ratio)| ratio.is_above(1.0 + MARGIN) || ratio.is_below(1.0 - MARGIN));
    let confirmed = found.iter().all(|(_, ratio)| ratio.is_near_one(MARGIN));
    let end = match (confirmed, apart) {
        (true, _) => "alike".to_owned(),
        (_, Some((setup, _))) => format!("{setup} differs from pfifo"),
        _ => undecided(
            found.iter().map(|(_, ratio)| &ratio.mean),
            "the intervals are too wide to show that they are alike",
        ),
    };
    let reason = format!("bandwidth over that of pfifo: {}; {end}", parts.join(", "));
    draft.judged(confirmed, reason, &unmeasured(results, CLIENTS, &THESIS, short))
}

pub(super) fn kf3(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KF3",
        "Classful qdiscs (HTB and DRR) take 5 % more processor time under a moderate load of 4 KB.",
        "Writes of 4 KiB, every number of clients: processor time for each GB with htb and drr over that with the \
         classless ones; the interval of the paired ratio lies above 1.025.",
    );
    let moderate = |point: &Point| has_length(point, 4.0);
    let found = match effect(results, CLIENTS, &cpu_per_gb(), &[HTB, "drr"], &CLASSLESS, moderate) {
        Ok(found) => found,
        Err(lack) => return draft.missing(results, CLIENTS, &[HTB, "pfifo"], lack),
    };
    draft.ratio("cpu_per_gb_ratio", &found);
    if let Ok(busy) = effect(results, CLIENTS, &cores(), &[HTB, "drr"], &CLASSLESS, moderate) {
        draft.ratio("busy_cores_ratio", &busy);
    }
    let setups = [HTB, "drr", "pfifo", DEFAULT];
    let reason = format!(
        "{}: {} times the processor time for each GB; {}",
        with_whom(&found, &setups),
        shown(&found.mean),
        against_bound(&found, 1.025)
    );
    draft.judged(found.is_above(1.025), reason, &unmeasured(results, CLIENTS, &setups, moderate))
}

pub(super) fn kf4(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KF4",
        "HTB's tokens are a bottleneck from 4 clients with writes of 64 KB on: 12 % to 17 % less bandwidth.",
        "Writes of 64 KiB, 4 clients and more: bandwidth with htb over that with the others; the interval of the paired \
         ratio lies below 0.94.",
    );
    let large = |point: &Point| {
        has_length(point, 64.0) && point.number("clients").is_some_and(|clients| clients >= 4.0)
    };
    let found = match effect(results, CLIENTS, metric::THROUGHPUT, &[HTB], &NOT_HTB, large) {
        Ok(found) => found,
        Err(lack) => return draft.missing(results, CLIENTS, &[HTB, "pfifo"], lack),
    };
    draft.ratio("throughput_ratio", &found);
    let reason = format!(
        "{}: {} times the bandwidth; {}",
        with_whom(&found, &ALL),
        shown(&found.mean),
        against_bound(&found, 0.94)
    );
    draft.judged(found.is_below(0.94), reason, &unmeasured(results, CLIENTS, &THESIS, large))
}

pub(super) fn kf5(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KF5",
        "mq+fq_codel and pfifo scale better: their processor utilisation is steadier as clients are added, at 1, 4 and 64 KB.",
        "Coefficient of variation of busy processors over the numbers of clients, mean of the lengths: that of pfifo, and \
         that of mq-fq_codel, over the mean of htb, drr and qfq; the intervals of both paired ratios lie below 1.",
    );
    const SCALABLE: [&str; 2] = ["pfifo", DEFAULT];
    const OTHERS: [&str; 3] = [HTB, "drr", "qfq"];
    let is_in = |point: &&Point| SCALABLE.iter().chain(&OTHERS).any(|setup| **setup == *point.setup);
    let points: Vec<&Point> = results.measured(CLIENTS).filter(is_in).collect();
    if let Some(lack) = lack(&points, &cores()) {
        return draft.missing(results, CLIENTS, &["pfifo", HTB], Some(lack));
    }
    let variation = |setup: &str| variation_over_clients(results, setup);
    let others: Vec<BTreeMap<u32, f64>> =
        OTHERS.iter().map(|setup| variation(setup)).filter(|by_repeat| !by_repeat.is_empty()).collect();
    let mean_of_others: BTreeMap<u32, f64> = others.first().map_or_else(BTreeMap::new, |first| {
        let mean = |repeat: &u32| {
            let values: Option<Vec<f64>> =
                others.iter().map(|by_repeat| by_repeat.get(repeat).copied()).collect();
            values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
        };
        first.keys().filter_map(|repeat| Some((*repeat, mean(repeat)?))).collect()
    });
    let mut found: Vec<(&str, MeanInterval)> = Vec::new();
    for setup in SCALABLE {
        let own = variation(setup);
        let ratios = match logarithms(&own, &mean_of_others, "the variation of cores.busy") {
            Ok(ratios) => ratios,
            Err(lack) => return draft.missing(results, CLIENTS, &SCALABLE, lack),
        };
        let Some(mean) = mean_ratio(&ratios.into_values().collect::<Vec<f64>>()) else { continue };
        draft.mean(&format!("variation_ratio.{setup}"), &mean);
        found.push((setup, mean));
    }
    if found.is_empty() {
        return draft.missing(results, CLIENTS, &["pfifo", HTB], None);
    }
    let parts: Vec<String> = found.iter().map(|(setup, mean)| format!("{setup} {}", shown(mean))).collect();
    let reason = format!("variation of busy processors over that of the classful ones: {}", parts.join(", "));
    let is_below = |mean: &MeanInterval| mean.interval.is_some_and(|interval| interval.high < 1.0);
    let is_above = |mean: &MeanInterval| mean.interval.is_some_and(|interval| interval.low > 1.0);
    let all_below = found.iter().all(|(_, mean)| is_below(mean));
    if found.len() < SCALABLE.len() && all_below {
        let missing = super::why_missing(results, CLIENTS, &SCALABLE);
        return draft
            .done(Verdict::NotMeasurable, format!("{reason}; but the finding is about both, and {missing}"));
    }
    let end = match (all_below, found.iter().find(|(_, mean)| is_above(mean))) {
        (true, _) => "both are steadier".to_owned(),
        (_, Some((setup, _))) => format!("{setup} is less steady"),
        _ => {
            undecided(found.iter().map(|(_, mean)| mean), "an interval contains 1, so the finding stays open")
        }
    };
    draft.judged(all_below, format!("{reason}; {end}"), &unmeasured(results, CLIENTS, &THESIS, |_| true))
}

/// Returns the coefficient of variation of busy processors over the numbers of clients, by repeat. The
/// value is the mean over the lengths of writes.
fn variation_over_clients(results: &Results, setup: &str) -> BTreeMap<u32, f64> {
    let key = cores();
    let mut lengths: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
    for point in results.measured(CLIENTS).filter(|point| point.setup == setup) {
        lengths.entry(point.axis("length").unwrap_or_default()).or_default().push(point);
    }
    let variation = |points: &Vec<&Point>| -> BTreeMap<u32, f64> {
        let values: Vec<BTreeMap<u32, f64>> = points.iter().map(|point| point.values(&key)).collect();
        let Some(first) = values.first().filter(|_| values.len() > 1) else { return BTreeMap::new() };
        first
            .keys()
            .filter_map(|repeat| {
                let of: Option<Vec<f64>> = values.iter().map(|values| values.get(repeat).copied()).collect();
                let of = of?;
                let mean = of.iter().sum::<f64>() / of.len() as f64;
                let variance =
                    of.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (of.len() as f64 - 1.0);
                Some((*repeat, variance.sqrt() / mean))
            })
            .collect()
    };
    let cells: Vec<BTreeMap<u32, f64>> = lengths.values().map(variation).collect();
    let Some(first) = cells.first() else { return BTreeMap::new() };
    let repeats: Vec<u32> =
        first.keys().copied().filter(|repeat| cells.iter().all(|cell| cell.contains_key(repeat))).collect();
    repeats.into_iter().zip(in_all_cells(cells.into_iter())).collect()
}

pub(super) fn negative(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KN",
        "Bandwidth falls as clients are added, and the cause is not known.",
        "Bandwidth with the most clients over that with the fewest, and over that with 4 (when all processors have work), \
         each length, mean over the setups of the thesis: the interval of a paired ratio lies below 1 for a length. Why: by \
         the profile of processor time.",
    );
    let points: Vec<&Point> =
        results.measured(CLIENTS).filter(|point| ALL.contains(&point.setup.as_str())).collect();
    if let Some(lack) = lack(&points, metric::THROUGHPUT) {
        return draft.missing(results, CLIENTS, &["pfifo", HTB], Some(lack));
    }
    let mut lengths: Vec<&str> = Vec::new();
    for point in &points {
        if let Some(length) = point.axis("length").filter(|length| !lengths.contains(length)) {
            lengths.push(length);
        }
    }
    let (mut falls, mut parts, mut means) = (Vec::new(), Vec::new(), Vec::new());
    for length in lengths {
        let own: Vec<&Point> =
            points.iter().copied().filter(|point| point.axis("length") == Some(length)).collect();
        let fewest = own.iter().filter_map(|point| point.number("clients")).fold(f64::INFINITY, f64::min);
        for from in [fewest, BUSY_CLIENTS] {
            if from == BUSY_CLIENTS && fewest >= BUSY_CLIENTS {
                continue;
            }
            let Some(grown) = Growth::of(&own, metric::THROUGHPUT, from) else { continue };
            let Some(mean) = mean_ratio(&grown.logarithms) else { continue };
            draft.mean(&format!("throughput_ratio_from_{from}.{length}"), &mean);
            let has_fallen = mean.interval.is_some_and(|interval| interval.high < 1.0);
            parts.push(format!("{length}: {} with {} clients over {from}", shown(&mean), grown.most));
            means.push(mean);
            if has_fallen {
                falls.push((length, from, own.clone()));
            }
        }
    }
    if parts.is_empty() {
        return draft.missing(results, CLIENTS, &["pfifo", HTB], None);
    }
    let mut reason = parts.join("; ");
    for (length, from, points) in &falls {
        reason.push_str(&format!(". {}", profile(length, *from, points, &mut draft)));
    }
    if falls.is_empty() {
        let has_risen = |mean: &MeanInterval| mean.interval.is_some_and(|interval| interval.low > 1.0);
        let end = match means.iter().all(has_risen) {
            true => "bandwidth does not fall here".to_owned(),
            false => undecided(&means, "no fall beyond the spread"),
        };
        reason.push_str(&format!("; {end}"));
    }
    draft.judged(!falls.is_empty(), reason, &unmeasured(results, CLIENTS, &THESIS, |_| true))
}

/// This number of clients keeps every processor of a small machine busy.
const BUSY_CLIENTS: f64 = 4.0;

/// A metric with the largest number of clients divided by the metric with fewer clients, by repeat, as
/// a logarithm. The value is the mean over the setups.
struct Growth {
    most: f64,
    logarithms: Vec<f64>,
}

impl Growth {
    fn of(points: &[&Point], key: &str, from: f64) -> Option<Self> {
        let clients = |point: &&Point| point.number("clients");
        let most = points.iter().filter_map(clients).fold(0.0, f64::max);
        if most <= from {
            return None;
        }
        let mut setups: Vec<&str> = points.iter().map(|point| point.setup.as_str()).collect();
        setups.sort_unstable();
        setups.dedup();
        let at = |setup: &str, clients: f64| {
            points.iter().find(|point| point.setup == setup && point.number("clients") == Some(clients))
        };
        let cells = setups.iter().filter_map(|setup| {
            let (few, many) = (at(setup, from)?.values(key), at(setup, most)?.values(key));
            Some(logarithms(&many, &few, key))
        });
        let cells: Vec<BTreeMap<u32, f64>> = cells.collect::<Result<_, Lack>>().ok()?;
        let logarithms = in_all_cells(cells.into_iter());
        (!logarithms.is_empty()).then_some(Self { most, logarithms })
    }
}

/// Describes how processor time per GB grows with the number of clients, by mode.
fn profile(length: &str, fewest: f64, points: &[&Point], draft: &mut Draft) -> String {
    let mut parts = Vec::new();
    let mut most: Option<(&str, f64)> = None;
    let clients = |point: &&&Point| point.number("clients");
    let largest = points.iter().filter_map(|point| clients(&point)).fold(0.0, f64::max);
    let mean_at = |key: &str, clients: f64| {
        let at = points.iter().filter(|point| point.number("clients") == Some(clients));
        let at: Option<Vec<f64>> = at.map(|point| Some(point.mean(key)?.mean)).collect();
        let at = at?;
        (!at.is_empty()).then(|| at.iter().sum::<f64>() / at.len() as f64)
    };
    for part in ["user", "system", "softirq"] {
        let key = metric::part(metric::CPU_PER_GB, part);
        let Some((before, after)) = mean_at(&key, fewest).zip(mean_at(&key, largest)) else { continue };
        parts.push(format!("{part} {before:.3} to {after:.3} s"));
        draft.figures.insert(
            format!("cpu_s_per_gb.{part}.{length}.from_{fewest}"),
            serde_json::json!([before, after]),
        );
        if most.is_none_or(|(_, growth)| after - before > growth) {
            most = Some((part, after - before));
        }
    }
    let busy = mean_at(&cores(), fewest).zip(mean_at(&cores(), largest));
    let Some((part, _)) = most.filter(|(_, growth)| *growth > 0.0) else {
        let cores = busy.map(|(before, after)| format!(" ({before:.2} to {after:.2} processors busy)"));
        return format!(
            "At {length} no GB takes more processor time with more clients{}: the cause is not in the processors",
            cores.unwrap_or_default()
        );
    };
    let cores =
        busy.map_or(String::new(), |(before, after)| format!(", {before:.2} to {after:.2} processors busy"));
    format!(
        "Why, at {length}: each GB takes more processor time ({}{cores}); most of the growth is in {part}",
        parts.join(", ")
    )
}
