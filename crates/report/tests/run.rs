//! Tests of the table and the JSON of a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;

use evenkeel_model::record::{DatapathCost, RepeatRecord, SimCost};
use evenkeel_report::table::TableOptions;
use evenkeel_report::{json, table};
use serde_json::{Value, json};
use support::{assert_golden, map, record, variant};

fn render(width: Option<usize>) -> String {
    table::render(&record(), TableOptions { width, colour: false })
}

#[test]
fn table_at_120_columns() {
    assert_golden("run-120.txt", &render(Some(120)));
}

#[test]
fn table_at_80_columns() {
    assert_golden("run-80.txt", &render(Some(80)));
}

#[test]
fn table_with_everything() {
    assert_golden("run-all.txt", &render(None));
}

#[test]
fn table_in_colour() {
    let options = TableOptions { width: Some(100), colour: true };
    assert_golden("run-100-colour.txt", &table::render(&record(), options));
}

#[test]
fn json_of_a_run() {
    let found = json::run(&record(), Some(Path::new("records/one")));
    assert_golden("run.json", &format!("{found:#}\n"));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in 60..150 {
        for line in render(Some(width)).lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn colour_changes_nothing_but_colour() {
    let options = TableOptions { width: Some(100), colour: true };
    let coloured = table::render(&record(), options);
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((text, escape)) = rest.split_once('\u{1b}') {
        plain.push_str(text);
        rest = escape.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    let without_trailing =
        |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(without_trailing(&plain), without_trailing(&render(Some(100))));
}

#[test]
fn a_hostile_record_cannot_steer_the_terminal() {
    let mut record = record();
    let attack = "\u{1b}]0;title\u{7}\r\u{202e}x\ny";
    record.scenario = attack.to_owned();
    record.started = attack.to_owned();
    record.windows = map(&[(attack, 1.0)]);
    record.refused[0].name = attack.to_owned();
    record.refused[0].why = attack.to_owned();
    record.expectations[0].variant = attack.to_owned();
    record.expectations[0].metric = attack.to_owned();
    record.expectations[0].statistic = attack.to_owned();
    record.paper.as_mut().unwrap().source = attack.to_owned();
    // The text must also be harmless as the name of the baseline of a ratio.
    record.variants.remove(1);
    record.variants[0].name = attack.to_owned();
    record.variants[0].notes = vec![attack.to_owned()];
    record.variants[0].repeats[0].metrics.insert(attack.to_owned(), 1.0);
    record.variants[0].repeats[0].counters.insert(attack.to_owned(), 1.0);
    for width in [None, Some(60)] {
        let text = table::render(&record, TableOptions { width, colour: false });
        assert!(!text.contains(['\u{1b}', '\u{7}', '\r', '\u{202e}']), "{text:?}");
    }
}

#[test]
fn an_empty_record_has_a_table_and_json() {
    let mut record = record();
    record.variants.clear();
    record.paper = None;
    record.refused.clear();
    record.expectations.clear();
    let text = table::render(&record, TableOptions::default());
    assert!(text.contains("Nothing was measured."), "{text}");
    assert!(!text.contains("Expectations"), "{text}");
    let found = json::run(&record, None);
    assert_eq!(found["variants"], json!([]));
    assert_eq!(found["paired"], json!([]));
    assert_eq!(found.get("paper"), None);
    assert_eq!(found.get("record"), None);
}

#[test]
fn what_was_not_measured_is_absent_and_not_zero() {
    let mut record = record();
    record.variants = vec![variant("single", "nfm.2.5ms", &[0.5])];
    let found = &json::run(&record, None)["variants"][0];
    let summary = json!({"mean": 0.5, "median": 0.5, "min": 0.5, "max": 0.5, "n": 1});
    assert_eq!(found["metrics"], json!({"nfm": {"2.5ms": summary}}));
    for absent in ["sim", "datapath", "counters"] {
        assert_eq!(found.get(absent), None, "{absent}");
    }
    assert_eq!(found["queues"], json!([]));
    assert_eq!(found["notes"], json!([]));
}

#[test]
fn costs_are_summed_over_the_repeats() {
    let repeat = |packets, cpu_seconds, run_time_ns, segments| RepeatRecord {
        sim: Some(SimCost { packets, simulated_s: 8.0, cpu_seconds }),
        datapath: Some(DatapathCost { run_time_ns, completion_ns: run_time_ns / 4, segments }),
        ..RepeatRecord::default()
    };
    let mut record = record();
    record.variants = vec![variant("summed", "", &[]), variant("idle", "", &[])];
    record.variants[0].repeats = vec![repeat(10, 0.25, 1_000, 10), repeat(20, 0.5, 500, 20)];
    record.variants[1].repeats = vec![repeat(0, 0.0, 0, 0)];
    let found = json::run(&record, None);
    assert_eq!(found["variants"][0]["sim"], json!({"packets": 30, "simulated_s": 16.0, "cpu_seconds": 0.75}));
    assert_eq!(
        found["variants"][0]["datapath"],
        json!({"ns_per_segment": 62.5, "choice_ns_per_segment": 50.0, "completion_ns_per_segment": 12.5, "segments": 30})
    );
    assert_eq!(found["variants"][1]["datapath"], json!({"segments": 0}));
}

#[test]
fn ratios_pair_repeat_with_repeat() {
    let mut record = record();
    let mut baseline = variant("cmax", "cpu_pct", &[10.0, 20.0, 40.0]);
    // The baseline's second repeat lacks the figure. The pairs must not shift.
    baseline.repeats[1].metrics.clear();
    record.variants = vec![
        variant("first", "nfm.1s", &[1.0]),
        variant("dqa", "cpu_pct", &[11.0, 99.0, 44.0, 7.0]),
        baseline,
    ];
    let paired = &json::run(&record, None)["paired"];
    assert_eq!(paired.as_array().unwrap().len(), 1);
    assert_eq!(paired[0]["variant"], "dqa");
    assert_eq!(paired[0]["baseline"], "cmax");
    assert_eq!(paired[0]["cpu_ratio"]["n"], 2);
    assert!((paired[0]["cpu_ratio"]["mean"].as_f64().unwrap() - 1.1).abs() < 1e-12);
    assert_eq!(paired[0]["cpu_ratio"].get("low"), None::<&Value>);
    assert_eq!(paired[0].get("throughput_ratio"), None);
    let table = table::render(&record, TableOptions { width: Some(100), colour: false });
    assert!(table.contains("2 of 3 pairs"), "{table}");
}

#[test]
fn the_first_variant_is_the_baseline_without_cmax_and_one_pair_has_no_interval() {
    let mut record = record();
    record.variants = vec![variant("hash", "cpu_pct", &[10.0]), variant("dqa", "cpu_pct", &[12.0])];
    let paired = &json::run(&record, None)["paired"];
    assert_eq!((&paired[0]["baseline"], &paired[0]["cpu_ratio"]["n"]), (&json!("hash"), &json!(1)));
    assert!((paired[0]["cpu_ratio"]["mean"].as_f64().unwrap() - 1.2).abs() < 1e-12);
    assert_eq!(paired[0]["cpu_ratio"].get("low"), None::<&Value>);
}

#[test]
fn keys_that_are_also_prefixes_do_no_harm() {
    let mut record = record();
    record.variants = vec![variant("odd", "nfm", &[1.0])];
    record.variants[0].repeats[0].metrics.extend(map(&[
        ("nfm.1s", 2.0),
        (".", 3.0),
        ("", 4.0),
        ("a..b", 5.0),
    ]));
    let found = json::run(&record, None);
    assert_eq!(found["variants"][0]["metrics"]["nfm"]["1s"]["mean"], 2.0);
    assert_eq!(found["variants"][0]["metrics"]["a"][".b"]["mean"], 5.0);
    let text = table::render(&record, TableOptions::default());
    assert!(text.contains("odd"), "{text}");
}

#[test]
fn the_json_has_the_shape_that_scripts_rely_on() {
    let found = json::run(&record(), None);
    assert_eq!(found["schema"], 1);
    for key in ["scenario", "world", "kernel"] {
        assert!(found[key].is_string(), "{key}");
    }
    for key in ["rate_bps", "seed", "duration_s", "warmup_s"] {
        assert!(found[key].is_number(), "{key}");
    }
    assert_eq!(found["windows"], json!({"1ms": 0.005, "1s": 5.0}));
    let dqa = &found["variants"][2];
    assert_eq!(dqa["name"], "dqa");
    assert_eq!(dqa["repeats"], 3);
    for path in ["throughput_bps", "cpu_pct", "latency_us/p999", "nfm/1ms", "nfm_max/1s", "jain_packets"] {
        let summary = dqa.pointer(&format!("/metrics/{path}")).unwrap();
        let keys: Vec<&String> = summary.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["mean", "median", "min", "max", "n"], "{path}");
    }
    assert_eq!(dqa["queues"][1], json!({"flows": 1, "bytes": 1_250_000}));
    assert_eq!(
        dqa["datapath"],
        json!({"ns_per_segment": 262.5, "choice_ns_per_segment": 175.0, "completion_ns_per_segment": 87.5, "segments": 48_000})
    );
    assert_eq!(found["refused"][0]["name"], "dqa+dqwa+dsos");
    assert_eq!(found["paper"]["variants"]["dqa"]["nfm"]["1s"], 0.78);
    assert_eq!(found["expectations"][3].get("value"), None::<&Value>);
}

/// Returns a record of the baseline and two variants, with `n` repeats of CPU and NFM.
fn run_of(n: usize) -> evenkeel_model::record::Record {
    let mut record = record();
    let with = |name: &str, nfm: f64, cpu: f64| {
        let mut made = variant(name, "nfm.1s", &vec![nfm; n]);
        for (number, repeat) in made.repeats.iter_mut().enumerate() {
            let drift = 1.0 + 0.1 * (number % 3) as f64;
            repeat.metrics.insert("cpu_pct".to_owned(), cpu * drift * (1.0 + 0.01 * (number % 2) as f64));
        }
        made
    };
    record.variants = vec![with("cmax", 1.62, 50.0), with("dqa", 0.75, 52.5), with("dqa+dqwa", 0.002, 55.0)];
    record.rate_bps = record.nominal_rate_bps;
    record.windows = map(&[("1s", 1.0)]);
    record.expectations.clear();
    record
}

#[test]
fn points_of_a_sweep_are_compared_with_their_own_workload() {
    let point = |name: &str, latency: f64| variant(name, "latency_us.mean", &[latency; 5]);
    let mut record = evenkeel_model::record::Record {
        scenario: "tc-latency".to_owned(),
        variants: vec![
            point("pfifo probes=1 message=1KiB", 30.0),
            point("pfifo probes=1 message=1MiB", 400.0),
            point("htb probes=1 message=1MiB", 200.0),
            point("htb probes=2 message=1MiB", 10.0),
        ],
        paper: None,
        ..record()
    };
    for variant in &mut record.variants {
        for repeat in &mut variant.repeats {
            repeat.metrics.insert("cpu_pct".to_owned(), 50.0);
        }
    }
    let answer = evenkeel_report::answer(&record);
    let found = answer.last().unwrap();
    assert!(found.starts_with("With probes=1 message=1MiB: htb has the lowest latency"), "{found}");
    assert!(found.contains("200 µs against 400 µs for pfifo"), "{found}");
    assert!(found.ends_with(". 2 other workloads below."), "{found}");
    let json = json::run(&record, None);
    let costs: Vec<(&Value, &Value)> =
        json["paired"].as_array().unwrap().iter().map(|cost| (&cost["variant"], &cost["baseline"])).collect();
    assert_eq!(
        costs,
        [(&json!("htb probes=1 message=1MiB"), &json!("pfifo probes=1 message=1MiB"))],
        "only one pair has the same workload"
    );
    record.variants.drain(1..3);
    let alone = evenkeel_report::answer(&record);
    assert!(alone.last().unwrap().starts_with("pfifo probes=1 message=1KiB: latency"), "{alone:?}");
}

#[test]
fn the_answer_comes_first() {
    let text = table::render(&run_of(6), TableOptions { width: Some(200), colour: false });
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "dqa+dqwa is fairest over 1 s (NFM 1s 0.002 against 1.62 for cmax, -99.9 to -99.9 %), CPU +10 % (+10 to +10 %)."
    );
    assert!(!text.contains("window ="), "{text}");
}

#[test]
fn two_repeats_and_quick_runs_claim_nothing() {
    let mut two = run_of(2);
    two.quick = true;
    let text = table::render(&two, TableOptions { width: Some(200), colour: false });
    assert!(text.starts_with("Quick run: 2 repeats, no interval; a claim needs 5 or more.\n"), "{text}");
    assert!(text.contains("Cost: ratios to cmax, repeat by repeat (2 repeats: no interval)"), "{text}");
    assert_eq!(json::run(&two, None)["paired"][0]["cpu_ratio"].get("low"), None::<&Value>);
}

#[test]
fn what_is_not_better_is_not_called_the_best() {
    let mut noisy = run_of(5);
    let values = [[1.0, 2.0, 0.5, 1.5, 1.2], [1.1, 1.2, 0.9, 1.4, 0.8], [1.4, 1.3, 1.6, 1.2, 1.9]];
    for (variant, values) in noisy.variants.iter_mut().zip(values) {
        for (repeat, value) in variant.repeats.iter_mut().zip(values) {
            repeat.metrics.insert("nfm.1s".to_owned(), value);
        }
    }
    let text = table::render(&noisy, TableOptions { width: Some(200), colour: false });
    assert!(text.starts_with("No difference in NFM 1s shown: dqa 1.08 against 1.24 for cmax, -"), "{text}");
}

#[test]
fn a_shuffle_shows_its_completion_times_first() {
    let mut record = record();
    record.duration_s = 0.0;
    for (number, variant) in record.variants.iter_mut().enumerate() {
        for repeat in &mut variant.repeats {
            repeat.metrics.retain(|key, _| key == "throughput_bps" || key == "cpu_pct");
            repeat.metrics.extend(map(&[("fct_s.spread", 0.9 - 0.2 * number as f64), ("fct_s.mean", 8.0)]));
        }
    }
    let text = table::render(&record, TableOptions { width: Some(80), colour: false });
    assert!(text.contains("xps:dqa completes its flows closest together"), "{text}");
    let head = text.lines().find(|line| line.trim_start().starts_with("variant")).unwrap();
    assert!(head.find("completion").unwrap() < head.find("throughput").unwrap(), "{head}");
}

/// The answer names a best variant only if the figures differ, and by an amount that the answer can display.
#[test]
fn equal_figures_have_no_winner() {
    let of = |key: &str, base: [f64; 5], other: [f64; 5]| {
        let mut record = run_of(5);
        record.duration_s = if key == "fct_s.spread" { 0.0 } else { 5.0 };
        record.variants.truncate(2);
        for (variant, values) in record.variants.iter_mut().zip([base, other]) {
            for (repeat, value) in variant.repeats.iter_mut().zip(values) {
                repeat.metrics = map(&[(key, value)]);
                if key == "fct_s.spread" {
                    repeat.metrics.insert("fct_s.mean".to_owned(), 0.85);
                }
            }
        }
        evenkeel_report::answer(&record).join(" ")
    };
    let same = |key: &str, base, other| of(key, base, other).starts_with("No difference in ");
    assert_eq!(of("nfm.1s", [0.0; 5], [0.0; 5]), "No difference in NFM 1s shown: dqa 0 against 0 for cmax.");
    assert_eq!(
        of("fct_s.mean", [0.00183; 5], [0.00183; 5]),
        "No difference in completion mean shown: dqa 1.83 ms against 1.83 ms for cmax, 0 to 0 %."
    );
    // The simulator's repeats can be constant: the interval then has no width.
    assert!(same("lost_capacity", [0.0; 5], [1.8e-6; 5]));
    assert!(same("lost_capacity", [1.8e-6; 5], [0.0; 5]));
    assert!(same("fct_s.spread", [0.0; 5], [1e-9; 5]));
    assert!(same("latency_us.mean", [283.0001; 5], [283.0; 5]));
    // The baseline has the best mean, by chance.
    assert!(same("nfm.1s", [0.5, 0.6, 0.7, 0.6, 0.55], [0.7, 0.5, 0.65, 0.6, 0.6]));
    assert!(same("nfm.1s", [0.0, 0.02, 0.0, 0.03, 0.0], [0.03, 0.0, 0.01, 0.0, 0.04]));

    assert!(of("nfm.1s", [0.0; 5], [0.02; 5]).starts_with("cmax is fairest"));
    assert!(of("nfm.1s", [0.02; 5], [0.0; 5]).starts_with("dqa is fairest"));
    assert!(of("latency_us.mean", [283.0; 5], [280.0; 5]).starts_with("dqa has the lowest latency"));
    assert!(of("fct_s.spread", [0.1; 5], [0.0; 5]).starts_with("dqa completes its flows closest"));
}

/// Repeats without a figure are often the slow repeats. The other repeats must not rank the variants.
#[test]
fn a_variant_that_lacks_values_in_some_repeats_ranks_nothing() {
    let mut record = run_of(6);
    record.variants.truncate(2);
    for variant in &mut record.variants {
        for (repeat, latency) in variant.repeats.iter_mut().zip(1..) {
            repeat.metrics.insert("latency_us.mean".to_owned(), f64::from(latency));
        }
    }
    record.variants[1].repeats[0].metrics.retain(|key, _| key != "latency_us.mean");
    let answer = evenkeel_report::answer(&record).join(" ");
    assert!(answer.starts_with("dqa is fairest") && !answer.contains("latency"), "{answer}");
    record.variants[0].repeats[4].metrics.retain(|key, _| key != "nfm.1s");
    assert_eq!(
        evenkeel_report::answer(&record),
        ["No variant is best in NFM 1s: 1 of 6 repeats of cmax have none."]
    );
}
