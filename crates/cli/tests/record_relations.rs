//! Tests which changed figures of a record are refused, with records of simulated runs. Each metric of a
//! record is in one of three lists. Reading a record refuses either every tested change of the metric, or
//! at least one of them, or none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use evenkeel_report::store;

struct Workload {
    scenario: &'static str,
    /// Every tested change is refused: half of the value, twice the value and 0. A value of 0 is changed to
    /// 1.
    identical: &'static [&'static str],
    /// At least one tested change is refused. The tested changes are those of `identical`, a thousandth of
    /// the value and a thousand times the value.
    bounded: &'static [&'static str],
    /// No tested change is refused, because no other figure depends on the metric.
    free: &'static [&'static str],
}

const BULK: Workload = Workload {
    scenario: r#"
variant-table = "titan"
variants = ["cmax"]
[link]
rate = "1gbit"
queues = 4
[workload]
flows = 5
latency = { duration = "20ms" }
[measure]
warmup = "100ms"
repeats = 2
long-windows = 2
windows = { 10ms = "10ms", 100ms = "100ms" }
"#,
    identical: &["jain_bytes", "jain_packets", "out_of_order", "retransmits", "throughput_bps"],
    bounded: &[
        "cpu_pct",
        "latency_us.mean",
        "latency_us.p50",
        "latency_us.p90",
        "latency_us.p99",
        "latency_us.p999",
        "nfm.100ms",
        "nfm.10ms",
        "nfm_max.100ms",
        "nfm_max.10ms",
    ],
    free: &[],
};

const SHUFFLE: Workload = Workload {
    scenario: r#"
variant-table = "titan"
variants = ["cmax"]
[link]
rate = "10gbit"
queues = 4
[hosts]
count = 4
sending-cores = 4
[switch]
buffer = "1MB"
[workload]
kind = "shuffle"
bytes-per-flow = "4MB"
[measure]
repeats = 2
"#,
    identical: &["out_of_order", "retransmits", "throughput_bps"],
    bounded: &["cpu_pct", "fct_s.mean", "fct_s.p50", "fct_s.p80", "fct_s.p99", "fct_s.spread"],
    free: &[],
};

const ONE_SIZE: Workload = Workload {
    scenario: r#"
variant-table = "titan"
variants = ["cmax"]
[link]
rate = "1gbit"
queues = 4
[workload]
kind = "fetch"
[[workload.clients]]
count = 4
sizes = ["300kB"]
[measure]
warmup = "50ms"
duration = "300ms"
repeats = 2
"#,
    identical: &[
        "fct_s.300kB.mean",
        "fct_s.300kB.p50",
        "fct_s.300kB.p99",
        "fct_s.mean",
        "fct_s.p50",
        "fct_s.p99",
        "out_of_order",
        "retransmits",
        "throughput_bps",
    ],
    bounded: &["cpu_pct", "fct_s.p80", "fct_s.spread"],
    free: &[],
};

const SIZES: Workload = Workload {
    scenario: r#"
variant-table = "titan"
variants = ["cmax"]
[link]
rate = "1gbit"
queues = 4
[workload]
kind = "fetch"
[[workload.clients]]
count = 4
sizes = ["2KiB", "1MB"]
[measure]
warmup = "50ms"
duration = "300ms"
repeats = 2
"#,
    identical: &["out_of_order", "retransmits", "throughput_bps"],
    bounded: &[
        "cpu_pct",
        "fct_s.1MB.mean",
        "fct_s.1MB.p50",
        "fct_s.1MB.p99",
        "fct_s.2KiB.mean",
        "fct_s.2KiB.p50",
        "fct_s.2KiB.p99",
        "fct_s.mean",
        "fct_s.p50",
        "fct_s.p80",
        "fct_s.p99",
        "fct_s.spread",
    ],
    free: &[],
};

const ECHO: Workload = Workload {
    scenario: r#"
variants = ["balance"]
[link]
rate = "10gbit"
queues = 4
[workload]
kind = "requests"
server = "echo"
client-hosts = 2
[[workload.clients]]
name = "many"
count = 7
outstanding = 4
[[workload.clients]]
name = "few"
count = 3
[measure]
warmup = "10ms"
duration = "50ms"
repeats = 2
[variant.balance]
summary = "balanced"
nic = "sfc9020"
policy = "balance"
isolated-queues = 1
message = "64B"
reaction = "1ms"
"#,
    identical: &[
        "requests_per_s.all.total",
        "requests_per_s.few.client_median",
        "requests_per_s.few.total",
        "requests_per_s.many.client_median",
        "requests_per_s.many.total",
        "response_us.all.mean",
        "response_us.few.client_median",
        "response_us.few.mean",
        "response_us.many.client_median",
        "response_us.many.mean",
        "throughput_bps",
    ],
    bounded: &[
        "cpu_pct",
        "requests_per_s.all.client_median",
        "response_us.all.client_median",
        "response_us.all.p50",
        "response_us.all.p90",
        "response_us.all.p99",
        "response_us.all.p999",
        "response_us.few.p50",
        "response_us.few.p90",
        "response_us.few.p99",
        "response_us.few.p999",
        "response_us.many.p50",
        "response_us.many.p90",
        "response_us.many.p99",
        "response_us.many.p999",
    ],
    free: &[],
};

const TENANTS: Workload = Workload {
    scenario: r#"
[link]
rate = "100mbit"
queues = 1
[workload]
kind = "tenants"
line = true
[[workload.bulk]]
length = "64KiB"
count = 3
[workload.probes]
count = 2
message = "64B"
slo = "1ms"
[[sweep]]
qdiscs = ["fq_codel"]
[measure]
warmup = "100ms"
duration = "500ms"
repeats = 2
windows = { 100ms = "100ms" }
"#,
    identical: &[
        "cores.busy",
        "cores.softirq",
        "cores.system",
        "cores.user",
        "cores.wait",
        "cpu_pct",
        "cpu_s_per_gb.busy",
        "cpu_s_per_gb.softirq",
        "cpu_s_per_gb.system",
        "cpu_s_per_gb.user",
        "cpu_s_per_gb.wait",
        "jain_bytes",
        "jain_packets",
        "out_of_order",
        "qdisc.backlog_bytes",
        "qdisc.drops",
        "qdisc.overlimits",
        "qdisc.requeues",
        "retransmits",
        "throughput_bps",
    ],
    bounded: &[
        "latency_us.mean",
        "latency_us.p50",
        "latency_us.p90",
        "latency_us.p99",
        "latency_us.p999",
        "nfm.100ms",
        "nfm_max.100ms",
        "slo_violation_share",
        "transactions_per_s",
    ],
    free: &["disturbance", "idle_while_backlogged", "lost_capacity"],
};

const TRANSFERS: Workload = Workload {
    scenario: r#"
variant-table = "tcp100g"
variants = ["default"]
[link]
rate = "100gbit"
[workload]
kind = "transfers"
[measure]
warmup = "20ms"
duration = "100ms"
repeats = 2
"#,
    identical: &[
        "cpu_pct",
        "cpu_share.copy",
        "cpu_share.lock",
        "cpu_share.memory",
        "cpu_share.netdev",
        "cpu_share.other",
        "cpu_share.sched",
        "cpu_share.skb",
        "cpu_share.tcp_ip",
        "jain_bytes",
        "jain_packets",
        "retransmits",
        "retransmits_per_s",
        "throughput_bps",
        "throughput_per_core_bps",
    ],
    bounded: &["retransmission_events_per_s"],
    free: &["drops.nic", "drops.pruned", "drops.ring", "drops.socket_backlog"],
};

fn record(directory: &Path, scenario: &str) -> serde_json::Value {
    let file = directory.join("scenario.toml");
    std::fs::write(&file, format!("schema = 1\nname = \"related\"\ntitle = \"Related\"\n{scenario}"))
        .unwrap();
    let out = directory.join("record");
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["run", file.to_str().unwrap(), "--on", "sim", "--quiet", "--out", out.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&std::fs::read_to_string(out.join("record.json")).unwrap()).unwrap()
}

/// Returns whether reading refuses the record after `change` was applied, in every repeat, to the metrics
/// that `is_changed` selects.
fn is_refused(
    path: &Path,
    record: &serde_json::Value,
    is_changed: impl Fn(&str) -> bool,
    change: impl Fn(f64) -> f64,
) -> bool {
    let mut changed = record.clone();
    for variant in changed["variants"].as_array_mut().unwrap() {
        for repeat in variant["repeats"].as_array_mut().unwrap() {
            for (_, value) in
                repeat["metrics"].as_object_mut().unwrap().iter_mut().filter(|(key, _)| is_changed(key))
            {
                *value = change(value.as_f64().unwrap()).into();
            }
        }
    }
    std::fs::write(path, changed.to_string()).unwrap();
    store::read(path).is_err()
}

fn check(workload: &Workload) {
    let place = tempfile::tempdir().unwrap();
    let record = record(place.path(), workload.scenario);
    let path = place.path().join("changed.json");
    std::fs::write(&path, record.to_string()).unwrap();
    store::read(&path).unwrap();
    // The scenario and the line rate determine the times.
    for time in ["warmup_s", "duration_s"].into_iter().filter(|time| record[time].as_f64() != Some(0.0)) {
        for factor in [1.01, 0.0] {
            let mut changed = record.clone();
            changed[time] = (record[time].as_f64().unwrap() * factor).into();
            std::fs::write(&path, changed.to_string()).unwrap();
            let error = store::read(&path).unwrap_err().to_string();
            assert!(error.contains(time), "{error}");
        }
    }
    // By default, serde keeps the last value of a key that occurs twice. The reader must refuse such a key.
    let twice =
        record.to_string().replacen(r#""metrics":{"#, r#""metrics":{"cpu_pct":1.5,"cpu_pct":2.5,"#, 1);
    std::fs::write(&path, twice).unwrap();
    let error = format!("{:?}", store::read(&path).unwrap_err());
    assert!(error.contains("cpu_pct' is given twice"), "{error}");
    let metrics = record["variants"][0]["repeats"][0]["metrics"].as_object().unwrap();
    let measured: BTreeSet<&str> = metrics.keys().map(String::as_str).collect();
    let lists = [workload.identical, workload.bounded, workload.free].concat();
    let listed: BTreeSet<&str> = lists.iter().copied().collect();
    assert_eq!((listed.len(), listed), (lists.len(), measured), "each metric is in one list");
    let means = ["latency_us.mean", "fct_s.mean", "response_us.all.mean"];
    for mean in means.into_iter().filter(|mean| metrics.contains_key(*mean)) {
        assert!(is_refused(&path, &record, |key| key == mean, |value| value * 30.0), "{mean} by 30");
    }
    let refused = |key: &str, factors: &[f64]| -> Vec<bool> {
        if metrics[key].as_f64() == Some(0.0) {
            return vec![is_refused(&path, &record, |other| other == key, |value| value + 1.0)];
        }
        factors
            .iter()
            .map(|factor| is_refused(&path, &record, |other| other == key, |value| value * factor))
            .collect()
    };
    // If one factor changes all times, they fit each other, but not the line rate and the measured
    // time.
    for times in ["fct_s.", "latency_us.", "response_us."] {
        if metrics.keys().any(|key| key.starts_with(times)) {
            for factor in [1e-6, 1e6] {
                let is_time = |key: &str| key.starts_with(times);
                assert!(is_refused(&path, &record, is_time, |value| value * factor), "{times}* by {factor}");
            }
        }
    }
    for key in workload.identical {
        assert!(!refused(key, &[0.5, 2.0, 0.0]).contains(&false), "{key}");
    }
    for key in workload.bounded {
        assert!(refused(key, &[0.5, 2.0, 0.0, 0.001, 1000.0]).contains(&true), "{key}");
    }
    for key in workload.free {
        assert!(!refused(key, &[0.5, 2.0, 0.0]).contains(&true), "{key}");
    }
}

#[test]
fn changed_figures_of_bulk_flows_are_refused() {
    check(&BULK);
}

#[test]
fn changed_figures_of_a_shuffle_are_refused() {
    check(&SHUFFLE);
}

#[test]
fn changed_figures_of_values_are_refused() {
    check(&ONE_SIZE);
    check(&SIZES);
}

#[test]
fn changed_figures_of_requests_are_refused() {
    check(&ECHO);
}

#[test]
fn changed_figures_of_tenants_are_refused() {
    check(&TENANTS);
}

#[test]
fn changed_figures_of_transfers_are_refused() {
    check(&TRANSFERS);
}
