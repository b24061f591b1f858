//! A hand-made record, and the comparison with golden files.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_model::record::{
    DatapathCost, ExpectationRecord, FlowRecord, PaperRecord, QueueRecord, Record, Refusal, RepeatRecord,
    SCHEMA, VariantRecord,
};

/// Compares `found` with `tests/golden/NAME`. With `EVENKEEL_BLESS=1` in the environment, it writes the
/// file instead. Review the difference before you commit it.
pub fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("EVENKEEL_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, found).unwrap();
        return;
    }
    let expected =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(expected == found, "{name} differs (EVENKEEL_BLESS=1 rewrites it). Found:\n{found}");
}

pub fn map<V: Clone>(pairs: &[(&str, V)]) -> BTreeMap<String, V> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// Returns a variant with these values of one metric, one value per repeat.
pub fn variant(name: &str, metric: &str, values: &[f64]) -> VariantRecord {
    let repeat = |value: &f64| RepeatRecord { metrics: map(&[(metric, *value)]), ..RepeatRecord::default() };
    VariantRecord {
        name: name.to_owned(),
        settings: BTreeMap::new(),
        notes: Vec::new(),
        repeats: values.iter().map(repeat).collect(),
    }
}

const DURATION_S: f64 = 20.0;

fn repeat(figures: [f64; 8], flows: [u32; 8], datapath: Option<(u64, u64)>) -> RepeatRecord {
    let [throughput, cpu, mean, p99, short, long, longest, jain] = figures;
    // Two flows whose shares have the Jain index `jain`.
    let tilt = 2.0 * jain - 1.0;
    let share = (1.0 - (1.0 - tilt * tilt).sqrt()) / tilt;
    let payload = (throughput * 1e9 * DURATION_S / 8.0).round() as u64;
    let flow = |name: &str, queue, share: f64, payload_bytes| FlowRecord {
        name: name.to_owned(),
        queue: Some(queue),
        bytes: (share * 4e9).round() as u64,
        packets: (share * 4e8).round() as u64,
        payload_bytes,
        retransmits: Some(1),
        out_of_order: None,
    };
    RepeatRecord {
        tenants: None,
        clients: Vec::new(),
        metrics: map(&[
            ("throughput_bps", throughput * 1e9),
            ("cpu_pct", cpu),
            ("latency_us.mean", mean),
            ("latency_us.p50", mean * 0.875),
            ("latency_us.p90", mean * 1.5),
            ("latency_us.p99", p99),
            ("latency_us.p999", p99 * 1.25),
            ("nfm.1ms", short),
            ("nfm.1s", long),
            ("nfm_max.1ms", short * 2.0),
            ("nfm_max.1s", longest),
            ("jain_bytes", jain),
            ("jain_packets", jain),
            ("retransmits", 12.0),
        ]),
        queues: flows.map(|flows| QueueRecord { flows, bytes: u64::from(flows) * 1_250_000 }).into(),
        flows: vec![
            flow("5201-40000", 3, 1.0, payload / 2),
            flow("5201-40002", 4, share, payload - payload / 2),
        ],
        sim: None,
        datapath: datapath.map(|(run_time_ns, segments)| DatapathCost {
            run_time_ns,
            completion_ns: run_time_ns / 2,
            segments,
        }),
        counters: map(&[("false_releases", 0.0), ("meter_vs_iperf3_max_error", long / 512.0)]),
        series: None,
    }
}

fn variant_of(name: &str, notes: &[&str], repeats: Vec<RepeatRecord>) -> VariantRecord {
    VariantRecord {
        name: name.to_owned(),
        settings: map(&[("qdisc", "pfifo".to_owned())]),
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
        repeats,
    }
}

/// Returns a record of four variants, of which one has a single repeat. It uses every field of a record.
pub fn record() -> Record {
    const QDISC: &str = "no SFQ, BQL or interrupt interval in this kernel: pfifo leaves";
    const POOLS: &str = "two pools of four queues, emulated by the classifier";
    Record {
        schema: SCHEMA,
        evenkeel: "0.1.0".to_owned(),
        scenario: "titan-12-flows".to_owned(),
        scenario_text: "name = \"titan-12-flows\"\n".to_owned(),
        world: "netns".to_owned(),
        kernel: "6.18.44".to_owned(),
        started: "2026-01-05T10:15:00Z".to_owned(),
        host: map(&[("cpu", "Example 9000".to_owned()), ("cores", "2".to_owned())]),
        rate_bps: 2_000_000_000,
        nominal_rate_bps: 10_000_000_000,
        seed: 1,
        quick: false,
        duration_s: DURATION_S,
        warmup_s: 2.0,
        windows: map(&[("1s", 5.0), ("1ms", 0.005)]),
        variants: vec![
            variant_of(
                "cvanilla",
                &[],
                vec![repeat([1.88, 50.0, 900.0, 2400.0, 2.0, 1.25, 1.5, 0.875], [3, 0, 2, 1, 2, 1, 2, 1], None)],
            ),
            variant_of(
                "cmax",
                &[QDISC],
                vec![
                    repeat([1.88, 50.0, 880.0, 2400.0, 2.0, 1.25, 1.5, 0.875], [3, 0, 2, 1, 2, 1, 2, 1], Some((2_000_000, 16_000))),
                    repeat([1.89, 54.0, 912.0, 2500.0, 2.125, 1.5, 1.75, 0.75], [4, 0, 2, 1, 2, 1, 1, 1], Some((2_100_000, 16_000))),
                    repeat([1.88, 52.0, 904.0, 2450.0, 1.75, 1.125, 1.25, 0.9375], [2, 2, 2, 2, 2, 1, 1, 0], Some((1_900_000, 16_000))),
                ],
            ),
            variant_of(
                "dqa",
                &[QDISC],
                vec![
                    repeat([1.88, 51.0, 656.0, 1200.0, 1.25, 0.75, 0.75, 0.9], [2, 2, 2, 2, 1, 1, 1, 1], Some((2_700_000, 16_000))),
                    repeat([1.88, 55.0, 664.0, 1250.0, 1.375, 0.7525, 0.755, 0.9], [2, 1, 2, 2, 2, 1, 1, 1], Some((2_800_000, 16_000))),
                    repeat([1.89, 52.5, 648.0, 1225.0, 1.25, 0.751, 0.752, 0.9], [2, 1, 2, 1, 2, 1, 2, 1], Some((2_900_000, 16_000))),
                ],
            ),
            variant_of(
                "xps:dqa",
                &[QDISC, POOLS],
                vec![
                    repeat([1.87, 49.0, 656.0, 1300.0, 1.25, 0.75, 0.75, 0.9], [2, 2, 2, 2, 1, 1, 1, 1], Some((2_750_000, 16_000))),
                    repeat([1.88, 52.0, 640.0, 1310.0, 1.5, 0.75, 0.75, 0.9], [2, 2, 2, 2, 1, 1, 1, 1], Some((2_850_000, 16_000))),
                ],
            ),
        ],
        refused: vec![Refusal {
            name: "dqa+dqwa+dsos".to_owned(),
            why: "the segment size of running flows cannot be changed here: the route cache of the namespace is \
                  shared with another run; start it alone"
                .to_owned(),
        }],
        paper: Some(PaperRecord {
            source: "Stephens et al., Titan, USENIX ATC 2017, table 3".to_owned(),
            variants: map(&[
                ("cmax", paper(9.4, 55.0, 912.0, 1.79, 1.39)),
                ("dqa", paper(9.4, 66.0, 657.0, 1.17, 0.78)),
            ]),
        }),
        expectations: vec![
            expectation("dqa", "nfm.1s", "mean", (Some(0.70), Some(0.80)), Some(0.751_166), true),
            expectation("dqa", "nfm.1ms", "mean", (None, Some(1.0)), Some(1.375), false),
            expectation("cmax", "throughput_bps", "mean", (Some(1.84e9), None), Some(1.88e9), true),
            expectation("dqa+dqwa+dsos", "nfm.1s", "mean", (None, Some(0.25)), None, false),
        ],
    }
}

fn paper(throughput: f64, cpu: f64, latency: f64, short: f64, long: f64) -> BTreeMap<String, f64> {
    map(&[
        ("throughput_bps", throughput * 1e9),
        ("cpu_pct", cpu),
        ("latency_us.mean", latency),
        ("nfm.1ms", short),
        ("nfm.1s", long),
    ])
}

fn expectation(
    variant: &str,
    metric: &str,
    statistic: &str,
    (at_least, at_most): (Option<f64>, Option<f64>),
    value: Option<f64>,
    met: bool,
) -> ExpectationRecord {
    ExpectationRecord {
        variant: variant.to_owned(),
        metric: metric.to_owned(),
        statistic: statistic.to_owned(),
        share: None,
        relative_to: None,
        at_least,
        at_most,
        value,
        interval: value.map(|value| (value * 0.98, value * 1.02)),
        repeats: 5,
        met: Some(met),
        open: None,
    }
}
