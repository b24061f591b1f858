#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use super::*;
use crate::results::Values;

/// Returns a point whose repeats have these values of one metric. Three or four values are used twice,
/// because an interval needs more values.
fn point(scenario: &str, setup: &str, axes: &[(&str, &str)], metric: &str, values: &[f64]) -> Point {
    let repeats = if (3..5).contains(&values.len()) { 2 * values.len() } else { values.len() };
    let repeats: BTreeMap<u32, Values> = values
        .iter()
        .cycle()
        .take(repeats)
        .enumerate()
        .map(|(repeat, value)| (repeat as u32, Values::from([(metric.to_owned(), *value)])))
        .collect();
    let axes: Vec<(String, String)> =
        axes.iter().map(|(axis, value)| ((*axis).to_owned(), (*value).to_owned())).collect();
    let name = axes.iter().fold(setup.to_owned(), |name, (axis, value)| format!("{name} {axis}={value}"));
    Point { scenario: scenario.to_owned(), name, setup: setup.to_owned(), axes, repeats, ..Point::default() }
}

fn results(points: Vec<Point>) -> Results {
    Results { world: "netns".to_owned(), points, ..Results::default() }
}

/// Adds the missing setups of the thesis, with the values of pfifo.
fn with_all_setups(mut results: Results) -> Results {
    let pfifo: Vec<Point> = results.points.iter().filter(|point| point.setup == "pfifo").cloned().collect();
    for point in pfifo {
        for setup in THESIS {
            let name = point.name.replacen("pfifo", setup, 1);
            let is_there = |other: &Point| other.scenario == point.scenario && other.name == name;
            if !results.points.iter().any(is_there) {
                results.points.push(Point { name, setup: setup.to_owned(), ..point.clone() });
            }
        }
    }
    results
}

fn verdict(finding: &Finding) -> Verdict {
    assert!(!finding.reason.is_empty() && !finding.criterion.is_empty());
    finding.verdict
}

const CPU: &str = "cpu_s_per_gb.busy";

/// Returns results with these ratios of HTB's processor time to pfifo's, by repeat, for writes of 4 KiB and
/// 64 KiB.
fn with_htb_at(ratios: &[f64]) -> Results {
    let mut points = Vec::new();
    for (length, base) in [("4KiB", 1.0), ("64KiB", 0.2)] {
        let axes = [("length", length)];
        // Each repeat costs a tenth more of the base than the previous repeat. This drift of the machine
        // cancels in paired ratios.
        let pfifo: Vec<f64> = (0..ratios.len()).map(|repeat| base * (1.0 + 0.1 * repeat as f64)).collect();
        let htb: Vec<f64> = pfifo.iter().zip(ratios).map(|(pfifo, ratio)| pfifo * ratio).collect();
        points.push(point("tc-packet-length", "pfifo", &axes, CPU, &pfifo));
        points.push(point("tc-packet-length", "htb", &axes, CPU, &htb));
    }
    // The finding does not cover writes of 1 KiB.
    points.push(point("tc-packet-length", "htb", &[("length", "1KiB")], CPU, &[9.0; 5]));
    points.push(point("tc-packet-length", "pfifo", &[("length", "1KiB")], CPU, &[1.0; 5]));
    results(points)
}

#[test]
fn an_effect_is_confirmed_when_its_interval_is_beyond_the_bound() {
    let two = with_htb_at(&[1.10, 1.11, 1.09, 1.10, 1.10]);
    let found = kf1_to_kf5_overhead::kf1(&with_all_setups(two.clone()));
    assert_eq!((verdict(&found), found.n), (Verdict::Confirmed, 5));
    let found = kf1_to_kf5_overhead::kf1(&two);
    assert_eq!((verdict(&found), found.n), (Verdict::NotMeasurable, 5));
    assert!(
        found.reason.contains("setups of the finding are missing: mq-fq_codel was not"),
        "{}",
        found.reason
    );
    let ratio = &found.figures["cpu_per_gb_ratio"];
    let geometric = (1.10_f64.powi(3) * 1.11 * 1.09).powf(0.2);
    assert!(
        (ratio["mean"].as_f64().unwrap() - geometric).abs() < 1e-9 && ratio["low"].as_f64().unwrap() > 1.09
    );
    assert!(found.reason.contains("htb against pfifo"), "{}", found.reason);
    assert!(found.reason.contains("not measured: pfifo_fast, mq-fq_codel, drr, qfq"), "{}", found.reason);
}

#[test]
fn twice_and_half_are_one_in_the_mean() {
    let found = kf1_to_kf5_overhead::kf1(&with_htb_at(&[2.0, 0.5, 2.0, 0.5]));
    let ratio = &found.figures["cpu_per_gb_ratio"];
    assert!((ratio["mean"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{ratio}");
    let ends = ratio["low"].as_f64().unwrap() * ratio["high"].as_f64().unwrap();
    assert!((ends - 1.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn noise_and_small_effects_confirm_nothing() {
    // The mean is 1.1, but the values are noisy.
    let noisy = kf1_to_kf5_overhead::kf1(&with_htb_at(&[0.9, 1.3, 0.8, 1.4, 1.1]));
    assert_eq!(verdict(&noisy), Verdict::NotConfirmed);
    assert!(noisy.reason.contains("stays open"), "{}", noisy.reason);
    let small = kf1_to_kf5_overhead::kf1(&with_htb_at(&[1.01, 1.01, 1.011, 1.01, 1.01]));
    assert_eq!(verdict(&small), Verdict::NotConfirmed);
    assert!(small.reason.contains("short of the bound"), "{}", small.reason);
    let single = kf1_to_kf5_overhead::kf1(&with_htb_at(&[1.3]));
    assert_eq!(verdict(&single), Verdict::NotConfirmed);
}

#[test]
fn what_was_not_measured_is_named() {
    let mut without = with_htb_at(&[1.1, 1.1, 1.1]);
    for point in without.points.iter_mut().filter(|point| point.setup == "htb") {
        point.repeats.clear();
        point.refused = Some("this kernel has no sch_htb".to_owned());
    }
    let found = kf1_to_kf5_overhead::kf1(&without);
    assert_eq!((verdict(&found), found.n), (Verdict::NotMeasurable, 0));
    assert_eq!(found.reason, "htb: this kernel has no sch_htb");
    assert!(findings(&results(Vec::new())).iter().all(|finding| finding.verdict == Verdict::NotMeasurable));
}

#[test]
fn every_finding_is_there_once() {
    let all = findings(&results(Vec::new()));
    let ids: Vec<&str> = all.iter().map(|finding| finding.id).collect();
    let expected: Vec<String> =
        (1..=12).map(|number| format!("KF{number}")).chain(["KN".to_owned()]).collect();
    assert_eq!(ids, expected);
}

fn bandwidth(setup: &str, clients: &str, length: &str, values: &[f64]) -> Point {
    point("tc-clients", setup, &[("clients", clients), ("length", length)], "throughput_bps", values)
}

#[test]
fn alike_means_that_every_interval_lies_within_the_margin() {
    let with = |htb: &[f64]| {
        with_all_setups(results(vec![
            bandwidth("pfifo", "1", "1KiB", &[1e9, 1.01e9, 0.99e9]),
            bandwidth("htb", "1", "1KiB", htb),
        ]))
    };
    assert_eq!(verdict(&kf1_to_kf5_overhead::kf2(&with(&[1e9, 1.01e9, 0.99e9]))), Verdict::Confirmed);
    let apart = kf1_to_kf5_overhead::kf2(&with(&[0.8e9, 0.81e9, 0.79e9]));
    assert_eq!(verdict(&apart), Verdict::NotConfirmed);
    assert!(apart.reason.contains("htb differs from pfifo"), "{}", apart.reason);
    let open = kf1_to_kf5_overhead::kf2(&with(&[0.9e9, 1.1e9, 1.0e9]));
    assert!(open.reason.contains("too wide"), "{}", open.reason);
}

#[test]
fn htb_loses_bandwidth_from_four_clients_on() {
    let with = |share: f64| {
        let mut points = Vec::new();
        for clients in ["4", "16"] {
            let pfifo = [20e9, 21e9, 19e9, 20e9];
            points.push(bandwidth("pfifo", clients, "64KiB", &pfifo));
            points.push(bandwidth("htb", clients, "64KiB", &pfifo.map(|value| value * share)));
        }
        // The ratio with a single client is different, but the finding ignores it.
        points.push(bandwidth("pfifo", "1", "64KiB", &[20e9; 4]));
        points.push(bandwidth("htb", "1", "64KiB", &[40e9; 4]));
        with_all_setups(results(points))
    };
    assert_eq!(verdict(&kf1_to_kf5_overhead::kf4(&with(0.85))), Verdict::Confirmed);
    assert_eq!(verdict(&kf1_to_kf5_overhead::kf4(&with(0.97))), Verdict::NotConfirmed);
}

#[test]
fn half_of_a_finding_can_refute_it_and_not_confirm_it() {
    let cores = |setup: &str, clients: &str, values: &[f64]| {
        point("tc-clients", setup, &[("clients", clients), ("length", "4KiB")], "cores.busy", values)
    };
    let htb = || [cores("htb", "1", &[1.0, 1.01, 1.0]), cores("htb", "16", &[2.0, 2.01, 2.0])];
    // pfifo has less variation than HTB, but mq-fq_codel was not measured.
    let mut steady = vec![cores("pfifo", "1", &[1.5, 1.51, 1.5]), cores("pfifo", "16", &[1.6, 1.61, 1.6])];
    steady.extend(htb());
    let found = kf1_to_kf5_overhead::kf5(&results(steady));
    assert_eq!(verdict(&found), Verdict::NotMeasurable);
    assert!(found.reason.contains("mq-fq_codel was not requested"), "{}", found.reason);
    let mut unsteady = vec![cores("pfifo", "1", &[0.5, 0.51, 0.5]), cores("pfifo", "16", &[2.0, 2.01, 2.0])];
    unsteady.extend(htb());
    assert_eq!(verdict(&kf1_to_kf5_overhead::kf5(&results(unsteady))), Verdict::NotConfirmed);
}

#[test]
fn fairness_of_all_qdiscs_needs_all_qdiscs() {
    let fair = |setups: &[&str], value: f64| {
        let points = setups.iter().map(|setup| {
            let axes = [("clients", "16"), ("length", "4KiB")];
            point("tc-fairness", setup, &axes, "jain_bytes", &[value, value + 0.001, value - 0.001])
        });
        kf9_to_kf12_fairness::kf9(&results(points.collect()))
    };
    assert_eq!(verdict(&fair(&ALL, 0.995)), Verdict::Confirmed);
    let part = fair(&["pfifo", "htb"], 0.995);
    assert_eq!(verdict(&part), Verdict::NotMeasurable);
    assert!(part.reason.contains("qfq was not requested"), "{}", part.reason);
    assert_eq!(verdict(&fair(&["pfifo"], 0.9)), Verdict::NotConfirmed);
}

#[test]
fn priority_is_judged_where_it_is_crowded() {
    let latency = |setup: &str, clients: &str, values: &[f64]| {
        point("tc-priority", setup, &[("clients", clients)], "latency_us.mean", values)
    };
    let found = kf6_to_kf8_latency::kf8(&results(vec![
        latency("htb-two-classes", "8", &[100.0; 3]),
        latency("htb-priority", "8", &[100.0; 3]),
        latency("htb-two-classes", "48", &[1000.0, 1100.0, 900.0]),
        latency("htb-priority", "48", &[300.0, 340.0, 280.0]),
    ]));
    assert_eq!(verdict(&found), Verdict::Confirmed);
    assert!(found.reason.contains("at most half"), "{}", found.reason);
    assert_eq!(found.figures["latency_ratio_below_40_clients"]["mean"], 1.0);
}

#[test]
fn fairness_by_packets_is_held_against_that_with_equal_lengths() {
    let fairness = |scenario: &str, length: Option<&str>, metric: &str, values: &[f64]| {
        let mut axes = vec![("clients", "48")];
        axes.extend(length.map(|length| ("length", length)));
        point(scenario, "pfifo", &axes, metric, values)
    };
    let equal = fairness("tc-fairness", Some("4KiB"), "jain_packets", &[1.0, 0.99, 0.98]);
    let with = |packets: &[f64]| {
        let mixed = fairness("tc-fairness-mixed", None, "jain_packets", packets);
        with_all_setups(results(vec![equal.clone(), mixed]))
    };
    assert_eq!(verdict(&kf9_to_kf12_fairness::kf11(&with(&[0.8, 0.79, 0.78]))), Verdict::Confirmed);
    let not = kf9_to_kf12_fairness::kf11(&with(&[0.99, 0.98, 0.98]));
    assert_eq!(verdict(&not), Verdict::NotConfirmed);
    assert!(not.reason.contains("full packets"), "{}", not.reason);

    let both = |bytes: &[f64], packets: &[f64]| {
        let mut mixed = fairness("tc-fairness-mixed", None, "jain_packets", packets);
        for (values, value) in mixed.repeats.values_mut().zip(bytes.iter().cycle()) {
            values.insert("jain_bytes".to_owned(), *value);
        }
        kf9_to_kf12_fairness::kf12(&with_all_setups(results(vec![mixed])))
    };
    assert_eq!(verdict(&both(&[0.97, 0.96, 0.97], &[0.8, 0.79, 0.8])), Verdict::Confirmed);
    assert!(both(&[0.97, 0.96, 0.97], &[0.97, 0.96, 0.97]).reason.contains("as fair by packets"));
    assert!(both(&[0.5, 0.51, 0.5], &[0.3, 0.31, 0.3]).reason.contains("not close to ideal"));
    let open = both(&[0.95, 0.85, 0.9], &[0.7, 0.6, 0.65]).reason;
    assert!(open.ends_with("an interval contains the bound, so the finding stays open"), "{open}");
}

#[test]
fn perfect_fairness_and_its_drop() {
    let equal = |setup: &str, length: &str, values: &[f64]| {
        point("tc-fairness", setup, &[("clients", "48"), ("length", length)], "jain_bytes", values)
    };
    let found = kf9_to_kf12_fairness::kf9(&results(vec![equal("pfifo", "1KiB", &[0.9, 0.91, 0.9])]));
    assert!(
        found.verdict == Verdict::NotConfirmed && found.reason.contains("not fair with pfifo"),
        "{}",
        found.reason
    );
    let drop = |large: &[f64]| {
        kf9_to_kf12_fairness::kf10(&results(vec![
            equal("htb", "4KiB", &[0.99, 0.99, 0.98]),
            equal("htb", "64KiB", large),
        ]))
    };
    assert_eq!(verdict(&drop(&[0.93, 0.94, 0.93])), Verdict::Confirmed);
    assert_eq!(verdict(&drop(&[0.99, 0.98, 0.99])), Verdict::NotConfirmed);
}

#[test]
fn the_negative_result_comes_with_a_profile() {
    let with = |many: &[f64], softirq: (f64, f64)| {
        let mut few = bandwidth("pfifo", "1", "64KiB", &[20e9, 21e9, 20e9]);
        let mut crowd = bandwidth("pfifo", "16", "64KiB", many);
        for (point, softirq) in [(&mut few, softirq.0), (&mut crowd, softirq.1)] {
            for values in point.repeats.values_mut() {
                values.insert("cpu_s_per_gb.user".to_owned(), 0.1);
                values.insert("cpu_s_per_gb.softirq".to_owned(), softirq);
                values.insert("cores.busy".to_owned(), 2.0);
            }
        }
        kf1_to_kf5_overhead::negative(&with_all_setups(results(vec![few, crowd])))
    };
    let found = with(&[15e9, 16e9, 15e9], (0.2, 0.5));
    assert_eq!(verdict(&found), Verdict::Confirmed);
    assert!(found.reason.contains("most of the growth is in softirq"), "{}", found.reason);
    let elsewhere = with(&[15e9, 16e9, 15e9], (0.2, 0.2));
    assert!(elsewhere.reason.contains("not in the processors"), "{}", elsewhere.reason);
    let risen = with(&[25e9, 26e9, 25e9], (0.2, 0.2));
    assert_eq!(verdict(&risen), Verdict::NotConfirmed);
    assert!(risen.reason.contains("does not fall"), "{}", risen.reason);
}

#[test]
fn latency_without_load_is_compared_at_the_lengths_of_the_thesis() {
    let found = kf6_to_kf8_latency::kf6(&with_all_setups(results(vec![
        point(
            "tc-latency",
            "pfifo",
            &[("probes", "1"), ("message", "256KiB")],
            "cores.busy",
            &[1.0, 1.0, 1.01],
        ),
        point(
            "tc-latency",
            "mq-fq_codel",
            &[("probes", "1"), ("message", "256KiB")],
            "cores.busy",
            &[0.9, 0.91, 0.9],
        ),
    ])));
    assert_eq!(verdict(&found), Verdict::Confirmed);
    let latency = |setup: &str, values: &[f64]| {
        let axes = [("probes", "1"), ("message", "1KiB")];
        let mut point = point("tc-latency", setup, &axes, "latency_us.mean", values);
        for values in point.repeats.values_mut() {
            values.insert("cores.busy".to_owned(), 1.0);
        }
        point
    };
    let two = results(vec![latency("pfifo", &[30.0, 31.0, 30.0]), latency("htb", &[30.5, 31.0, 30.0])]);
    assert_eq!(verdict(&kf6_to_kf8_latency::kf7(&with_all_setups(two.clone()))), Verdict::Confirmed);
    let alike = kf6_to_kf8_latency::kf7(&two);
    assert_eq!(verdict(&alike), Verdict::NotMeasurable);
    assert!(alike.reason.contains("qfq was not requested"), "{}", alike.reason);
    // A setup that lacks one of the finding's points is missing too.
    let mut partial = with_all_setups(two);
    let mut unmeasured = partial.points.last().unwrap().clone();
    unmeasured.axes[1].1 = "4KiB".to_owned();
    unmeasured.repeats.clear();
    unmeasured.failures = vec!["no answer".to_owned()];
    let setup = unmeasured.setup.clone();
    partial.points.push(unmeasured);
    let found = kf6_to_kf8_latency::kf7(&partial);
    assert_eq!(verdict(&found), Verdict::NotMeasurable);
    let reason = format!("{setup} failed at 1 of 2 points: no answer");
    assert!(found.reason.ends_with(&reason), "{}", found.reason);
}

/// Returns a study in which every finding has its figures.
fn whole() -> Results {
    type Axes = [(&'static str, &'static str)];
    let scenarios: [(&str, &[&str], &[&Axes]); 6] = [
        ("tc-packet-length", &ALL, &[&[("length", "4KiB")], &[("length", "64KiB")]]),
        (
            "tc-clients",
            &ALL,
            &[
                &[("clients", "1"), ("length", "1KiB")],
                &[("clients", "8"), ("length", "1KiB")],
                &[("clients", "1"), ("length", "4KiB")],
                &[("clients", "8"), ("length", "4KiB")],
                &[("clients", "1"), ("length", "64KiB")],
                &[("clients", "8"), ("length", "64KiB")],
            ],
        ),
        (
            "tc-latency",
            &ALL,
            &[&[("probes", "1"), ("message", "256KiB")], &[("probes", "1"), ("message", "1KiB")]],
        ),
        ("tc-priority", &["htb-priority", "htb-two-classes"], &[&[("clients", "48")]]),
        (
            "tc-fairness",
            &ALL,
            &[
                &[("clients", "48"), ("length", "1KiB")],
                &[("clients", "48"), ("length", "4KiB")],
                &[("clients", "48"), ("length", "64KiB")],
            ],
        ),
        ("tc-fairness-mixed", &ALL, &[&[("clients", "48")]]),
    ];
    const METRICS: [&str; 6] =
        [CPU, "cores.busy", "throughput_bps", "latency_us.mean", "jain_bytes", "jain_packets"];
    let mut points = Vec::new();
    for (scenario, setups, cells) in scenarios {
        for setup in setups {
            for (at, axes) in cells.iter().enumerate() {
                let values = [1.0, 1.001, 0.999].map(|value| value * (1.0 + at as f64));
                let mut point = point(scenario, setup, axes, METRICS[0], &values);
                for values in point.repeats.values_mut() {
                    let value = values[METRICS[0]];
                    values.extend(METRICS[1..].iter().map(|metric| ((*metric).to_owned(), value)));
                }
                points.push(point);
            }
        }
    }
    results(points)
}

/// Removes one metric from one repeat of one point at a time. Each finding then stays the same, or it is
/// not measurable and names the metric and the point. The recommendations for the metric list the setup as
/// missing.
#[test]
fn a_verdict_needs_all_of_its_figures() {
    let whole = whole();
    let before = findings(&whole);
    assert!(before.iter().all(|finding| finding.verdict != Verdict::NotMeasurable), "{before:#?}");
    let mut lost = std::collections::BTreeSet::new();
    for at in 0..whole.points.len() {
        let metrics: Vec<String> = whole.points[at].metrics().into_iter().map(str::to_owned).collect();
        for metric in metrics {
            let mut damaged = whole.clone();
            damaged.points[at].repeats.get_mut(&0).unwrap().remove(&metric);
            for (before, after) in before.iter().zip(findings(&damaged)) {
                if before.reason == after.reason && before.verdict == after.verdict {
                    continue;
                }
                let point = &damaged.points[at];
                assert_eq!(after.verdict, Verdict::NotMeasurable, "{} without {metric}", point.name);
                let reason = format!("{metric} is missing at 1 of ");
                assert!(after.reason.contains(&reason), "{}", after.reason);
                assert!(after.reason.contains(&point.name), "{}", after.reason);
                lost.insert(after.id);
            }
            for recommendation in crate::recommend::recommendations(&damaged) {
                let is_of =
                    recommendation.scenario == damaged.points[at].scenario && recommendation.metric == metric;
                let expected: &[String] = if is_of { &[damaged.points[at].setup.clone()] } else { &[] };
                assert_eq!(recommendation.missing, expected, "{metric}");
            }
        }
    }
    assert_eq!(lost.len(), before.len(), "{lost:?}");
}

/// If every setup lacks a metric in the same cells, the recommendations must not use the other cells alone.
#[test]
fn half_of_the_cells_recommend_nothing() {
    let mut half = whole();
    let is_large =
        |point: &&mut Point| point.scenario == "tc-clients" && point.number("clients") == Some(8.0);
    for values in half.points.iter_mut().filter(is_large).flat_map(|point| point.repeats.values_mut()) {
        values.remove(CPU);
    }
    let needs: Vec<&str> =
        crate::recommend::recommendations(&half).into_iter().map(|found| found.need).collect();
    assert!(!needs.contains(&"processor time") && needs.contains(&"throughput"), "{needs:?}");
}

/// Without an interval, no reason may mention an interval.
#[test]
fn a_single_repeat_is_too_few_for_every_finding() {
    let mut points = Vec::new();
    for scenario in
        ["tc-packet-length", "tc-clients", "tc-latency", "tc-priority", "tc-fairness", "tc-fairness-mixed"]
    {
        for setup in ALL.into_iter().chain(["htb-priority", "htb-two-classes"]) {
            for (clients, length) in ["1", "4", "48"]
                .into_iter()
                .flat_map(|clients| ["1KiB", "4KiB", "64KiB"].map(|length| (clients, length)))
            {
                let message = if length == "64KiB" { "256KiB" } else { length };
                let axes = [("clients", clients), ("length", length), ("message", message), ("probes", "1")];
                points.push(point(scenario, setup, &axes, "throughput_bps", &[1e9]));
            }
        }
    }
    for (number, point) in points.iter_mut().enumerate() {
        let values = point.repeats.get_mut(&0).unwrap();
        for metric in [CPU, "latency_us.mean", "latency_us.p99", "jain_bytes", "jain_packets"] {
            values.insert(metric.to_owned(), 0.5);
        }
        // Let the busy processors vary with the clients.
        values.insert("cores.busy".to_owned(), 1.0 + number as f64 / 100.0);
    }
    for finding in findings(&results(points)) {
        assert_eq!(
            (finding.verdict, finding.n),
            (Verdict::NotConfirmed, 1),
            "{}: {}",
            finding.id,
            finding.reason
        );
        assert!(
            finding.reason.ends_with("too few repeats, 5 are needed"),
            "{}: {}",
            finding.id,
            finding.reason
        );
    }
}
