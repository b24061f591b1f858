//! Tests of comparisons of two records.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use evenkeel_model::record::{Record, VariantRecord};
use evenkeel_report::compare::{
    CompareError, Comparison, MetricComparison, Question, Verdict, compare, json, render,
};
use evenkeel_report::table::TableOptions;
use proptest::prelude::*;
use support::{assert_golden, map, record, variant};

const NAMES: [&str; 2] = ["records/before", "records/after"];

fn with(metric: &str, values: &[f64]) -> Record {
    Record { variants: vec![variant("dqa", metric, values)], ..record() }
}

fn differ(first: &Record, second: &Record) -> Comparison {
    compare(first, second, &Question::default()).unwrap()
}

fn compared(metric: &str, first: &[f64], second: &[f64]) -> MetricComparison {
    differ(&with(metric, first), &with(metric, second)).variants.remove(0).metrics.remove(0)
}

fn text(comparison: &Comparison, all: bool) -> String {
    render(comparison, NAMES, all, TableOptions { width: Some(100), colour: false })
}

fn of_six() -> Record {
    let mut record = record();
    for variant in &mut record.variants {
        variant.repeats = variant.repeats.iter().cycle().take(6).cloned().collect();
        for (number, repeat) in variant.repeats.iter_mut().enumerate() {
            for value in repeat.metrics.values_mut() {
                *value *= 1.0 + 0.001 * number as f64;
            }
        }
    }
    record
}

/// Returns the record `of_six` with changes. It has higher latencies, is fairer over long windows, and has
/// a renamed variant.
fn changed() -> Record {
    let mut record = of_six();
    record.world = "sim".to_owned();
    record.rate_bps = 5_000_000_000;
    record.seed = 8;
    record.evenkeel = "0.2.0".to_owned();
    record.host.insert("cpu".to_owned(), "Example 9001".to_owned());
    record.host.insert("memory".to_owned(), "8 GiB".to_owned());
    record.variants[2].settings.insert("qdisc".to_owned(), "fq".to_owned());
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
fn a_record_shows_no_difference_to_itself() {
    let comparison = differ(&of_six(), &of_six());
    let same_run = format!("both are records of the same run, which started at {}", of_six().started);
    assert_eq!(comparison.warnings, [same_run]);
    assert!(comparison.only_in_first.is_empty() && comparison.only_in_second.is_empty());
    assert!(comparison.variants.iter().all(|variant| !variant.metrics.is_empty()));
    for metric in comparison.variants.iter().flat_map(|variant| &variant.metrics) {
        assert_eq!((metric.verdict, metric.change.change), (Verdict::NotShown, 0.0), "{metric:?}");
    }
    let text = text(&comparison, false);
    assert!(text.starts_with("No difference shown: 56 figures of cvanilla, cmax, dqa, xps:dqa."), "{text}");
    assert!(text.contains(NAMES[0]) && text.contains(NAMES[1]), "{text}");
}

#[test]
fn what_one_record_lacks_is_named_with_the_record() {
    let (first, mut second) = (of_six(), of_six());
    for variant in &mut second.variants {
        for repeat in &mut variant.repeats {
            repeat.metrics.remove("jain_bytes");
        }
    }
    second.variants[1].repeats.truncate(5);
    second.variants[2].repeats[0].metrics.remove("cpu_pct");
    let comparison = differ(&first, &second);
    assert_eq!(
        comparison.lacking,
        [
            "1 repeat of cmax in the second",
            "cpu_pct in 1 of 6 repeats of dqa in the second",
            "jain_bytes in the second"
        ]
    );
    let shown = text(&comparison, false);
    assert!(shown.contains("Missing: 1 repeat of cmax in the second; cpu_pct"), "{shown}");
    assert_eq!(json(&comparison)["lacking"][2], "jain_bytes in the second");
    assert_eq!(differ(&second, &first).lacking[2], "jain_bytes in the first");
    assert!(differ(&first, &first).lacking.is_empty());
}

/// Checks that two records count as the same only if both have every figure and variant.
#[test]
fn what_is_missing_is_not_the_same() {
    let within = |first: &Record, second: &Record| {
        let question = Question { within: Some(0.9), ..Question::default() };
        let comparison = compare(first, second, &question).unwrap();
        (comparison.agrees(), text(&comparison, false))
    };
    let whole = of_six();
    assert!(within(&whole, &whole).0);
    let mut without_figure = of_six();
    for repeat in &mut without_figure.variants[0].repeats {
        repeat.metrics.remove("throughput_bps");
    }
    let mut without_variant = of_six();
    without_variant.variants.remove(0);
    let mut without_repeats = of_six();
    without_repeats.variants[0].repeats.clear();
    for (other, why) in [
        (without_figure, "1 figure missing"),
        (without_variant, "1 variant not compared"),
        (without_repeats, "1 variant not compared"),
    ] {
        for (agrees, shown) in [within(&whole, &other), within(&other, &whole)] {
            assert!(!agrees && shown.starts_with("Not shown to be the same within 90 %: "), "{shown}");
            assert!(shown.contains(why), "{shown}");
        }
    }
}

/// Checks that two records that lack the same figure, or in which some repeats measured nothing, do not count
/// as the same.
#[test]
fn what_both_records_lack_is_not_the_same() {
    let within = |record: &Record, metrics: &[&str]| {
        let metrics = metrics.iter().map(|key| (*key).to_owned()).collect();
        let comparison = compare(record, record, &Question { within: Some(0.9), metrics }).unwrap();
        (comparison.agrees(), text(&comparison, false))
    };
    let name = of_six().variants[1].name.clone();
    let noted = |note: &str| {
        let mut record = of_six();
        record.variants[1].notes.push(note.to_owned());
        record
    };
    let silent = noted("nothing was measured in 2 of 6 repeats: none of 6 flows delivered a byte in 10us");
    let unanswered = noted("no probe was answered in 1s, so a repeat has no latency; set a longer time");
    for (record, metrics, cause) in [
        (&silent, &[][..], "nothing was measured in 2 of 6 repeats"),
        (&silent, &["throughput_bps"], "nothing was measured in 2 of 6 repeats"),
        (&unanswered, &[], "no probe was answered in 1s"),
    ] {
        let (agrees, shown) = within(record, metrics);
        assert!(!agrees && shown.contains("the figures are incomplete"), "{shown}");
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(&format!("{name} in the first ({cause})")), "{shown}");
    }
    assert!(within(&unanswered, &["throughput_bps"]).0);
    let mut without = of_six();
    for repeat in &mut without.variants[1].repeats {
        repeat.metrics.remove("throughput_bps");
    }
    assert!(within(&without, &["nfm.1s"]).0);
    let (agrees, shown) = within(&without, &["throughput_bps"]);
    assert!(!agrees && shown.contains("1 figure missing"), "{shown}");
    assert!(shown.contains(&format!("throughput_bps of {name} in both")), "{shown}");
}

#[test]
fn repeats_with_the_same_seed_are_named() {
    let (first, mut second) = (of_six(), of_six());
    second.seed = first.seed + 2;
    let warnings = |world: &str, second: &Record| {
        let [mut first, mut second] = [first.clone(), second.clone()];
        (first.world, second.world) = (world.to_owned(), world.to_owned());
        differ(&first, &second).warnings.join("; ")
    };
    let told = format!(
        "4 repeats have the same seed in both records, so the records are not independent: repeat 3 of seed {} is repeat 1 \
         of seed {}",
        first.seed, second.seed
    );
    assert!(warnings("sim", &second).contains(&told), "{}", warnings("sim", &second));
    assert!(
        warnings("netns", &second).contains("both are records of the same run"),
        "{}",
        warnings("netns", &second)
    );
    // The warning also appears if the scenarios differ.
    let mut changed = second.clone();
    changed.scenario_text.push('\n');
    assert!(warnings("sim", &changed).contains(&told), "{}", warnings("sim", &changed));
    second.started.push('1');
    let (mut last, mut zero) = (first.clone(), first.clone());
    (last.seed, zero.seed) = (u64::MAX, 0);
    (last.world, zero.world) = ("sim".to_owned(), "sim".to_owned());
    let told = differ(&last, &zero).warnings.join("; ");
    assert!(told.contains("repeat 2 of seed 18446744073709551615 is repeat 1 of seed 0"), "{told}");
    assert_eq!(warnings("netns", &second).find("same run"), None);
}

/// Checks that a wide interval around a difference near 0 does not show that the records are the same.
#[test]
fn noise_is_not_called_the_same() {
    let (first, second) = ([1.0, 9.0, 2.0, 8.0, 5.0], [8.0, 2.0, 1.0, 9.0, 4.0]);
    let found = compared("latency_us.mean", &first, &second);
    assert_eq!(found.verdict, Verdict::NotShown);
    let comparison = differ(&with("latency_us.mean", &first), &with("latency_us.mean", &second));
    let text = text(&comparison, true);
    assert!(text.starts_with("No difference shown") && !text.contains("The same"), "{text}");
}

#[test]
fn better_is_up_for_throughput_and_down_for_latency() {
    let (low, high) = ([10.0, 10.1, 9.9, 10.0, 10.05], [20.0, 20.1, 19.9, 20.0, 20.05]);
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
fn a_variant_with_too_few_repeats_is_undecided() {
    let mut short = of_six();
    short.variants[2].repeats.truncate(3);
    let comparison = differ(&of_six(), &short);
    let text = text(&comparison, false);
    assert!(text.starts_with("No difference shown: 42 figures of cvanilla, cmax, xps:dqa."), "{text}");
    assert!(
        text.contains("dqa is undecided: with 3 repeats in a record there is no interval; 5 are"),
        "{text}"
    );
}

#[test]
fn fewer_than_five_repeats_decide_nothing() {
    let found = compared("nfm.1s", &[1.0; 4], &[0.01, 0.011, 0.012, 0.01, 0.01]);
    assert_eq!((found.verdict, found.change.interval), (Verdict::Undecided, None));
    assert!(found.change.change < -0.98);
    let comparison = differ(&with("nfm.1s", &[1.0, 2.0]), &with("nfm.1s", &[3.0, 4.0]));
    let text = text(&comparison, false);
    assert!(
        text.starts_with("No difference shown: with 2 repeats in a record there is no interval; 5"),
        "{text}"
    );
}

#[test]
fn a_figure_that_some_repeats_lack_is_undecided() {
    let values = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98];
    let (first, mut second) = (with("nfm.1s", &values), with("nfm.1s", &values.map(|value| value * 2.0)));
    assert_eq!(differ(&first, &second).variants[0].metrics[0].verdict, Verdict::Worse);
    second.variants[0].repeats[3].metrics.clear();
    let comparison = differ(&first, &second);
    assert_eq!(comparison.variants[0].metrics[0].verdict, Verdict::Undecided);
    assert!(text(&comparison, false).contains("Missing: nfm.1s in 1 of 6 repeats"), "{comparison:?}");
}

#[test]
fn repeats_without_any_noise_differ_by_anything() {
    assert_eq!(compared("retransmits", &[0.0; 5], &[0.0; 5]).verdict, Verdict::NotShown);
    assert_eq!(compared("retransmits", &[0.0; 5], &[1.0; 5]).verdict, Verdict::Worse);
}

#[test]
fn the_answer_comes_first_in_words() {
    let first: Vec<f64> = (0..10).map(|step| 1.0 + 0.001 * f64::from(step)).collect();
    let scaled = |factor: f64| first.iter().map(|value| value * factor).collect::<Vec<f64>>();
    let answer = |factor: f64| {
        let comparison = differ(&with("nfm.1s", &first), &with("nfm.1s", &scaled(factor)));
        text(&comparison, false).lines().next().unwrap().to_owned()
    };
    assert_eq!(answer(0.88), "dqa: NFM 1s lower by 12 % (11.7 to 12.3 %).");
    assert_eq!(answer(1.5), "dqa: NFM 1s higher by 50 % (49.5 to 50.5 %).");
    assert_eq!(answer(50.0), "dqa: NFM 1s 50 times as high (49.8 to 50.2).");
    let tiny = |values: [f64; 5]| with("nfm.1s", &values.map(|value| value * 1e-6));
    let tiny = differ(&tiny([0.0, 1.0, 0.0, 1.0, 0.0]), &tiny([90.0, 91.0, 90.0, 91.0, 92.0]));
    let tiny = text(&tiny, false);
    assert!(tiny.starts_with("dqa: NFM 1s higher by 0.0001 (0.0001 to 0.0001)"), "{tiny}");
    let counts = differ(
        &with("retransmits", &[0.0, 1.0, 0.0, 1.0, 0.0]),
        &with("retransmits", &[90.0, 91.0, 90.0, 91.0, 92.0]),
    );
    assert!(
        text(&counts, false).starts_with("dqa: retransmits higher by 90.4 segments (8"),
        "{}",
        text(&counts, false)
    );
}

/// A change of a share is a difference, not a ratio: CPU falls by 49.8 % of a core, to 0.
#[test]
fn a_difference_of_percentages_is_in_percentage_points() {
    let some = [49.7, 49.8, 49.9, 49.8, 49.8];
    let cpu = text(&differ(&with("cpu_pct", &some), &with("cpu_pct", &[0.0; 5])), false);
    assert!(cpu.starts_with("dqa: CPU lower by 49.8 percentage points ("), "{cpu}");
    let half = [0.749, 0.75, 0.751, 0.75, 0.75];
    let lost = text(&differ(&with("lost_capacity", &[0.0; 5]), &with("lost_capacity", &half)), false);
    assert!(lost.starts_with("dqa: lost capacity higher by 75 percentage points ("), "{lost}");
    let relative = text(&differ(&with("cpu_pct", &some), &with("cpu_pct", &some.map(|x| x / 2.0))), false);
    assert!(relative.starts_with("dqa: CPU lower by 50 % ("), "{relative}");
}

#[test]
fn what_only_one_has_is_listed_or_left_out() {
    let comparison = differ(&of_six(), &changed());
    assert_eq!(comparison.only_in_first, ["xps:dqa"]);
    assert_eq!(comparison.only_in_second, ["xps:dqa+dqwa"]);
    assert!(comparison.variants.iter().all(|variant| !variant.name.starts_with("xps")));
    let metrics = comparison.variants.iter().flat_map(|variant| &variant.metrics);
    assert!(metrics.map(|metric| &metric.key).all(|key| key != "queue_switches"));
}

#[test]
fn what_differs_in_the_set_up_is_said_first() {
    let mut second = changed();
    second.scenario_text.push_str("# changed\n");
    second.kernel = "4.4".to_owned();
    second.duration_s = 8.0;
    second.quick = true;
    second.windows = map(&[("1s", 2.0), ("1ms", 0.002)]);
    let warnings = differ(&of_six(), &second).warnings.join("\n");
    for expected in [
        "world differs: netns and sim",
        "kernel differs: 6.18.44 and 4.4",
        "rate differs: 2 Gbit/s and 5 Gbit/s",
        "length of a repeat differs: 20 s and 8 s",
        "effort differs: full and quick",
        "version differs: 0.1.0 and 0.2.0",
        "seed differs: 1 and 8",
        "windows differ",
        "the scenario's text differs",
        "settings of dqa differ: qdisc",
        "facts about the host differ: cpu, memory",
    ] {
        assert!(warnings.contains(expected), "{expected:?} in {warnings}");
    }
    second.scenario = "titan-6-flows".to_owned();
    let warnings = differ(&of_six(), &second).warnings;
    assert_eq!(warnings[0], "scenario differs: titan-12-flows and titan-6-flows");
    assert!(!warnings.iter().any(|warning| warning.contains("text differs")));
}

#[test]
fn table_of_a_comparison() {
    let comparison = differ(&of_six(), &changed());
    for width in [120, 80] {
        let text = render(&comparison, NAMES, false, TableOptions { width: Some(width), colour: false });
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert_golden(&format!("compare-{width}.txt"), &text);
    }
    let all = render(&comparison, NAMES, true, TableOptions { width: Some(80), colour: false });
    assert!(all.lines().count() > 40 && all.lines().all(|line| line.chars().count() <= 80), "{all}");
    assert!(text(&comparison, false).lines().count() <= 30);
}

#[test]
fn json_of_a_comparison() {
    let found = json(&differ(&of_six(), &changed()));
    assert_golden("compare.json", &format!("{found:#}\n"));
}

#[test]
fn records_with_nothing_in_common_are_refused() {
    let first = with("nfm.1s", &[1.0]);
    let refused = |second: &Record| compare(&first, second, &Question::default()).unwrap_err();
    let reasons = |reason: &str| CompareError::NoMetric { reasons: vec![reason.to_owned()] };
    assert_eq!(refused(&with("cpu_pct", &[1.0])), reasons("dqa has no metric in common"));
    assert_eq!(refused(&with("nfm.1s", &[])), reasons("dqa has no repeats in the second record"));
    let none = refused(&Record { variants: Vec::new(), ..record() }).to_string();
    assert!(
        none.contains("nothing to compare")
            && none.contains("variants of the first: dqa; of the second: none"),
        "{none}"
    );
}

/// Checks that a variant without repeats does not count as unchanged.
#[test]
fn a_variant_without_repeats_is_not_compared() {
    let mut second = of_six();
    second.variants[0].repeats.clear();
    let name = second.variants[0].name.clone();
    let comparison = differ(&of_six(), &second);
    assert!(comparison.variants.iter().all(|variant| variant.name != name));
    let shown = text(&comparison, false);
    assert!(shown.contains(&format!("Not compared: {name} has no repeats in the second record.")), "{shown}");
    assert!(shown.lines().next().is_some_and(|line| !line.contains(&format!("of {name}"))), "{shown}");
    assert_eq!(json(&comparison)["not_compared"][0], format!("{name} has no repeats in the second record"));
    let question = Question { within: Some(0.5), ..Question::default() };
    assert!(compare(&of_six(), &of_six(), &question).unwrap().agrees());
    assert!(!compare(&of_six(), &second, &question).unwrap().agrees());
}

#[test]
fn the_same_is_a_whole_interval_within_the_margin() {
    let judged = |first: &[f64], second: &[f64], share: f64| {
        let question = Question { within: Some(share), ..Question::default() };
        let comparison = compare(&with("nfm.1s", first), &with("nfm.1s", second), &question).unwrap();
        let metric = &comparison.variants[0].metrics[0];
        assert_eq!(comparison.agrees(), metric.within == Some(true));
        assert_eq!(metric.verdict == Verdict::Same, metric.within == Some(true));
        metric.within
    };
    let exact = |value: f64| [value, value * 1.01, value * 0.99, value, value];
    assert_eq!(judged(&exact(1.0), &exact(1.05), 0.1), Some(true));
    assert_eq!(judged(&exact(1.0), &exact(1.3), 0.1), Some(false));
    assert_eq!(judged(&exact(1.0), &exact(1.1), 0.1), None);
    // Noisy repeats show neither sameness nor difference.
    assert_eq!(judged(&[1.0, 3.0, 2.0, 5.0, 1.0], &[1.0, 3.0, 2.0, 5.0, 1.0], 0.1), None);
    // A margin relative to zero is zero. Two repeats are too few for an interval.
    assert_eq!(judged(&[0.0; 5], &[0.0; 5], 0.3), Some(true));
    assert_eq!(judged(&[0.0; 5], &[1e-9; 5], 0.3), Some(false));
    assert_eq!(judged(&[1.0; 2], &[1.0; 2], 0.3), None);
}

#[test]
fn only_what_is_asked_for_is_judged() {
    let ask = |keys: &[&str], within| {
        let metrics = keys.iter().map(|key| (*key).to_owned()).collect();
        let (mut first, mut second) = (of_six(), changed());
        first.variants.retain(|variant| second.variants.iter().any(|other| other.name == variant.name));
        second.variants.retain(|variant| first.variants.iter().any(|other| other.name == variant.name));
        compare(&first, &second, &Question { metrics, within })
    };
    let error = ask(&["nfm.3s"], None).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "no variant has the metric 'nfm.3s' in both records; both records have: throughput_bps, "
        ),
        "{error}"
    );
    let keys = ["cpu_pct", "retransmits"];
    let open = ask(&keys, None).unwrap();
    assert!(open.agrees() && open.variants.iter().all(|variant| variant.metrics.len() == 2));
    // Processor time varies by about 10 %.
    assert!(ask(&keys, Some(0.2)).unwrap().agrees());
    let apart = ask(&keys, Some(0.005)).unwrap();
    assert!(!apart.agrees());
    let shown = text(&apart, false);
    assert!(shown.starts_with("Not shown to be the same within 0.5 %: "), "{shown}");
    assert!(shown.contains("not decided") && shown.contains(" yes"), "{shown}");
    let close = text(&ask(&keys, Some(0.000_001)).unwrap(), false);
    assert!(close.starts_with("Not shown to be the same within 0.0001 %: "), "{close}");
}

/// Returns a record of noise: correlated figures of two variants, some of them skewed, some mostly 0.
fn run_of_noise(draw: &mut Draw, n: usize, spread: f64) -> Record {
    let variant = |draw: &mut Draw, name: &str| {
        let mut variant: VariantRecord = variant(name, "throughput_bps", &vec![1e9; n]);
        for repeat in &mut variant.repeats {
            let (shared, own) = (draw.normal(), draw.normal());
            let noisy = |at: f64, share: f64| at * (share * spread).exp();
            repeat.metrics = map(&[
                ("throughput_bps", noisy(1.9e9, draw.normal() * 0.01)),
                ("cpu_pct", noisy(37.0, draw.normal())),
                ("latency_us.mean", noisy(600.0, shared)),
                ("latency_us.p50", noisy(550.0, shared + 0.2 * draw.normal())),
                ("latency_us.p99", noisy(1200.0, shared + own)),
                ("nfm.1ms", noisy(1.5, draw.normal())),
                ("nfm.1s", if draw.uniform() < 0.3 { noisy(0.75, own) } else { noisy(0.001, own) }),
                ("jain_bytes", 1.0 - 0.1 * draw.uniform()),
                ("retransmits", if draw.uniform() < 0.8 { 0.0 } else { (draw.uniform() * 9.0).floor() }),
            ]);
        }
        variant
    };
    Record { variants: vec![variant(draw, "cmax"), variant(draw, "dqa")], ..record() }
}

/// The SplitMix64 generator (Steele, Lea, Flood 2014), and normal deviates by the Box-Muller method.
struct Draw(u64);

impl Draw {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Checks a small number of cases; `bench/src/compare_power.rs` tests more cases, and also records of the
/// simulator.
#[test]
fn records_of_the_same_thing_show_no_difference_and_ten_percent_are_found() {
    let (mut alarms, mut found) = (0, 0);
    for seed in 0..100 {
        let mut draw = Draw(seed);
        let (first, mut second) = (run_of_noise(&mut draw, 5, 0.03), run_of_noise(&mut draw, 5, 0.03));
        let differing = |second: &Record| {
            let comparison = differ(&first, second);
            let metrics: Vec<_> =
                comparison.variants.into_iter().flat_map(|variant| variant.metrics).collect();
            metrics.into_iter().filter(|metric| metric.verdict.is_difference()).collect::<Vec<_>>()
        };
        alarms += u32::from(!differing(&second).is_empty());
        second = run_of_noise(&mut draw, 10, 0.03);
        let long = run_of_noise(&mut draw, 10, 0.03);
        for repeat in &mut second.variants[0].repeats {
            *repeat.metrics.get_mut("cpu_pct").unwrap() *= 1.1;
        }
        let comparison = differ(&long, &second);
        let cpu = comparison.variants[0].metrics.iter().find(|metric| metric.key == "cpu_pct").unwrap();
        found += u32::from(cpu.verdict == Verdict::Worse);
    }
    assert!(alarms <= 5, "{alarms} of 100 records of the same thing differ");
    assert!(found >= 90, "10 % found in {found} of 100");
}

proptest! {
    /// Checks that any figures can be compared and displayed, and that every interval is valid.
    #[test]
    fn no_figures_bring_the_comparison_down(
        first in proptest::collection::vec(proptest::num::f64::ANY, 0..8),
        second in proptest::collection::vec(proptest::num::f64::ANY, 0..8),
        key in "(cpu_pct|nfm\\.1s|zeta|[a-z.]{0,6})",
        within in proptest::option::of(0.0..2.0_f64),
    ) {
        let question = Question { within, ..Question::default() };
        if let Ok(comparison) = compare(&with(&key, &first), &with(&key, &second), &question) {
            for all in [false, true] {
                let _ = text(&comparison, all);
            }
            let _ = json(&comparison);
            for metric in &comparison.variants[0].metrics {
                if let Some(interval) = metric.change.interval {
                    prop_assert!(interval.low.is_finite() && interval.low <= interval.high, "{interval:?}");
                }
            }
        }
    }
}

/// Changes one number of a JSON document, selected by index, or removes one element of an array or an object.
/// Returns whether the document was changed.
fn mutate(value: &mut serde_json::Value, left: &mut usize, to: &serde_json::Value, take_out: bool) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match value {
        Number(_) => {
            if *left == 0 {
                *value = to.clone();
                return true;
            }
            *left -= 1;
            false
        }
        Array(list) => {
            if take_out && *left == 0 && !list.is_empty() {
                list.remove(0);
                return true;
            }
            list.iter_mut().any(|value| mutate(value, left, to, take_out))
        }
        Object(map) => {
            if take_out && *left == 0 && !map.is_empty() {
                let key = map.keys().next().cloned().unwrap();
                map.remove(&key);
                return true;
            }
            map.values_mut().any(|value| mutate(value, left, to, take_out))
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Checks that a record with some changed numbers or missing parts is refused, or is compared and
    /// displayed.
    #[test]
    fn mutated_records_are_refused_or_compared(
        changes in proptest::collection::vec(
            (0_usize..900, prop_oneof![
                Just(1e308), Just(-1e308), Just(f64::MIN_POSITIVE), Just(5e-324), Just(0.0), Just(-0.0), Just(-1.0),
                Just(1e15), Just(1e-300), proptest::num::f64::NORMAL,
            ], proptest::bool::weighted(0.2)),
            1..6,
        ),
    ) {
        let good = of_six();
        let mut value = serde_json::to_value(&good).unwrap();
        for (which, to, take_out) in changes {
            mutate(&mut value, &mut which.clone(), &serde_json::json!(to), take_out);
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record.json");
        std::fs::write(&path, value.to_string()).unwrap();
        if let Ok(record) = evenkeel_report::store::read(&path) {
            let shown = TableOptions { width: Some(80), colour: false };
            let _ = evenkeel_report::table::render(&record, shown);
            let _ = evenkeel_report::json::run(&record, None);
            for (first, second) in [(&good, &record), (&record, &good), (&record, &record)] {
                if let Ok(comparison) = compare(first, second, &Question::default()) {
                    let _ = render(&comparison, NAMES, true, shown);
                    let _ = json(&comparison);
                }
            }
        }
    }
}
