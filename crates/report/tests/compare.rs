//! Two records against one another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use evenkeel_model::record::Record;
use evenkeel_report::compare::{MetricComparison, Verdict, compare, json, render};
use evenkeel_report::table::TableOptions;
use support::{assert_golden, map, record, variant};

/// A record with one variant that has one metric.
fn with(metric: &str, values: &[f64]) -> Record {
    Record { variants: vec![variant("dqa", metric, values)], ..record() }
}

fn compared(metric: &str, first: &[f64], second: &[f64]) -> MetricComparison {
    compare(&with(metric, first), &with(metric, second)).variants.remove(0).metrics.remove(0)
}

/// The record of [`record`] after a change: slower, fairer in the long run, one variant renamed.
fn changed() -> Record {
    let mut record = record();
    record.world = "sim".to_owned();
    record.rate_bps = 5_000_000_000;
    record.host.insert("cpu".to_owned(), "Example 9001".to_owned());
    record.host.insert("memory".to_owned(), "8 GiB".to_owned());
    record.variants[3].name = "xps:dqa+dqwa".to_owned();
    for repeat in record.variants.iter_mut().flat_map(|variant| &mut variant.repeats) {
        for (key, factor) in [("cpu_pct", 1.01), ("latency_us.mean", 1.25), ("nfm.1s", 0.125)] {
            *repeat.metrics.get_mut(key).unwrap() *= factor;
        }
        repeat.metrics.insert("queue_switches".to_owned(), 1.0);
    }
    record
}

#[test]
fn a_record_is_the_same_as_itself() {
    let comparison = compare(&record(), &record());
    assert_eq!(comparison.warnings, [""; 0]);
    assert!(comparison.only_in_first.is_empty() && comparison.only_in_second.is_empty());
    let metrics: Vec<_> = comparison.variants.iter().flat_map(|variant| &variant.metrics).collect();
    assert!(!metrics.is_empty());
    for metric in metrics {
        let expected = if metric.first.n == 1 { Verdict::Undecided } else { Verdict::Same };
        assert_eq!(metric.verdict, expected, "{metric:?}");
        assert_eq!(metric.difference, 0.0);
    }
}

#[test]
fn noise_is_the_same() {
    let found = compared("nfm.1s", &[1.0, 1.4, 1.2], &[1.1, 1.5, 1.3]);
    assert_eq!(found.verdict, Verdict::Same);
    assert!((found.difference - 0.1).abs() < 1e-12);
    assert!((found.relative.unwrap() - 0.1 / 1.2).abs() < 1e-12);
}

#[test]
fn better_is_up_for_throughput_and_down_for_latency() {
    let (low, high) = ([10.0, 10.1, 9.9], [20.0, 20.1, 19.9]);
    assert_eq!(compared("throughput_bps", &low, &high).verdict, Verdict::Better);
    assert_eq!(compared("throughput_bps", &high, &low).verdict, Verdict::Worse);
    assert_eq!(compared("latency_us.p99", &low, &high).verdict, Verdict::Worse);
    assert_eq!(compared("latency_us.p99", &high, &low).verdict, Verdict::Better);
    assert_eq!(compared("jain_packets", &low, &high).verdict, Verdict::Better);
    for metric in ["cpu_pct", "nfm.1s", "nfm_max.1ms", "retransmits", "out_of_order", "fct_s.spread"] {
        assert_eq!(compared(metric, &low, &high).verdict, Verdict::Worse, "{metric}");
    }
    assert_eq!(compared("unheard_of", &low, &high).verdict, Verdict::Different);
}

#[test]
fn a_single_repeat_decides_nothing() {
    let found = compared("nfm.1s", &[1.0], &[0.01, 0.011, 0.012]);
    assert_eq!(found.verdict, Verdict::Undecided);
    assert_eq!(found.interval, None);
    assert!(found.difference < -0.98);
}

#[test]
fn repeats_without_any_noise_differ_by_anything() {
    assert_eq!(compared("retransmits", &[0.0; 3], &[0.0; 3]).verdict, Verdict::Same);
    let found = compared("retransmits", &[0.0; 3], &[1.0; 3]);
    assert_eq!(found.verdict, Verdict::Worse);
    assert_eq!(found.relative, None);
}

#[test]
fn what_only_one_has_is_listed_or_left_out() {
    let comparison = compare(&record(), &changed());
    assert_eq!(comparison.only_in_first, ["xps:dqa"]);
    assert_eq!(comparison.only_in_second, ["xps:dqa+dqwa"]);
    assert!(comparison.variants.iter().all(|variant| !variant.name.starts_with("xps")));
    let metrics = comparison.variants.iter().flat_map(|variant| &variant.metrics);
    assert!(metrics.map(|metric| &metric.key).all(|key| key != "queue_switches"));
}

#[test]
fn what_makes_records_hard_to_compare_is_said_first() {
    let mut second = changed();
    second.scenario_text.push_str("# changed\n");
    second.kernel = "4.4".to_owned();
    second.duration_s = 8.0;
    second.windows = map(&[("1s", 2.0), ("1ms", 0.002)]);
    let warnings = compare(&record(), &second).warnings.join("\n");
    for expected in [
        "world differs: netns and sim",
        "kernel differs: 6.18.44 and 4.4",
        "rate differs: 2 Gbit/s and 5 Gbit/s",
        "length of a repeat differs: 20 s and 8 s",
        "windows differ",
        "the scenario was changed",
        "facts about the host differ: cpu, memory",
    ] {
        assert!(warnings.contains(expected), "{expected:?} in {warnings}");
    }
    second.scenario = "titan-6-flows".to_owned();
    let warnings = compare(&record(), &second).warnings;
    assert_eq!(warnings[0], "scenario differs: titan-12-flows and titan-6-flows");
    assert!(!warnings.iter().any(|warning| warning.contains("was changed")));
}

#[test]
fn table_of_a_comparison() {
    let comparison = compare(&record(), &changed());
    for width in [120, 80] {
        let text = render(&comparison, TableOptions { width: Some(width), colour: false });
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert_golden(&format!("compare-{width}.txt"), &text);
    }
}

#[test]
fn json_of_a_comparison() {
    let found = json(&compare(&record(), &changed()));
    assert_golden("compare.json", &format!("{found:#}\n"));
}

#[test]
fn records_with_nothing_in_common_are_told() {
    let first = with("nfm.1s", &[1.0]);
    for second in [with("cpu_pct", &[1.0]), Record { variants: Vec::new(), ..record() }] {
        let text = render(&compare(&first, &second), TableOptions::default());
        assert!(text.contains("no metric of the same variant in common"), "{text}");
    }
}

#[test]
fn a_tolerance_is_a_share_of_the_first_mean() {
    let judged = |first: &[f64], second: &[f64], share: f64| {
        let mut comparison = compare(&with("nfm.1s", first), &with("nfm.1s", second));
        comparison.judge(share);
        let within = comparison.variants[0].metrics[0].within;
        assert_eq!(within, Some(comparison.agrees()));
        comparison.agrees()
    };
    assert!(judged(&[0.5, 1.5], &[1.25], 0.25));
    assert!(!judged(&[0.5, 1.5], &[1.26], 0.25));
    assert!(judged(&[0.5, 1.5], &[0.75], 0.25));
    // It is not the same the other way round.
    assert!(!judged(&[1.0], &[1.4], 0.3) && judged(&[1.4], &[1.0], 0.3));
    // Of nothing there is no share.
    assert!(judged(&[0.0], &[0.0], 0.3) && !judged(&[0.0], &[1e-9], 0.3));
}

#[test]
fn only_what_is_asked_for_is_judged() {
    let mut comparison = compare(&record(), &changed());
    assert!(comparison.agrees(), "nothing is judged yet");
    let error = comparison.keep(&["nfm.3s".to_owned()]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no variant has the metric nfm.3s in both records; they have: throughput_bps, ")
    );
    comparison.keep(&["cpu_pct".to_owned(), "retransmits".to_owned()]).unwrap();
    assert!(comparison.variants.iter().all(|variant| variant.metrics.len() == 2));
    comparison.judge(0.02);
    assert!(comparison.agrees());
    comparison.judge(0.005);
    assert!(!comparison.agrees());
    let text = render(&comparison, TableOptions { width: Some(100), colour: false });
    assert!(text.contains("0.5 %") && text.contains(" no") && text.contains(" yes"), "{text}");

    let mut nothing = compare(&with("nfm.1s", &[1.0]), &with("cpu_pct", &[1.0]));
    nothing.judge(10.0);
    assert!(!nothing.agrees(), "records with nothing in common do not agree");
}
