//! Helpers of the tenant tests: they build scenarios, run one repeat per qdisc setup, and read the results.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_model::qdisc::Catalogue;
use evenkeel_model::scenario::bundled::variant_tables;
use evenkeel_model::scenario::{Scenario, Setups, Variant, parse_with};
use evenkeel_model::units::Nanoseconds;
use evenkeel_model::world::{Job, Observer, RawLine, RawRepeat, RawTenants, World};
use evenkeel_testbed::NetnsWorld;

use super::leftovers::Holdings;

/// An observer that interrupts the run when the activity `until` begins. It records the kernel objects that
/// this process holds at this time.
#[derive(Default)]
pub struct Watch {
    pub until: Option<&'static str>,
    pub interrupted: AtomicBool,
    pub held: Mutex<Holdings>,
}

impl Observer for Watch {
    fn progress(&self, _: f64, activity: &str) {
        if self.until == Some(activity) && !self.interrupted.load(Ordering::Relaxed) {
            *self.held.lock().unwrap() = Holdings::of(std::process::id());
            self.interrupted.store(true, Ordering::Relaxed);
        }
    }

    fn remark(&self, text: &str) {
        println!("{text}");
    }

    fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

pub const BOTH: &str = "offloads = { segmentation = true, aggregation = true }\n";
pub const ONE_PROBE: &str = "[workload.probes]\ncount = 1\nmessage = \"64B\"\n";

pub fn bulk(length: &str) -> String {
    format!("[[workload.bulk]]\nlength = \"{length}\"\n")
}

/// Returns a scenario with one point per setup.
pub fn scenario_of(
    catalogue: &Catalogue,
    line: bool,
    workload: &str,
    setups: &[&str],
    clients: u32,
) -> Scenario {
    let setups: Vec<String> = setups.iter().map(|name| format!("\"{name}\"")).collect();
    let setups = setups.join(", ");
    let text = format!(
        r#"schema = 1
name = "test"
title = "test"

[link]
rate = "200mbit"
queues = 1

[workload]
kind = "tenants"
congestion-control = "cubic"
line = {line}
{workload}
[[sweep]]
qdiscs = [{setups}]
clients = [{clients}]
quick = {{ qdiscs = [{setups}], clients = [{clients}] }}

[measure]
warmup = "200ms"
duration = "1s"
repeats = 1
quick = {{ warmup = "200ms", duration = "1s", repeats = 1 }}
"#
    );
    let setups = Setups { catalogue: Some(catalogue), further: &[] };
    parse_with(&text, "test.toml", variant_tables(), setups).unwrap()
}

pub fn scenario(line: bool, workload: &str, setups: &[&str], clients: u32) -> Scenario {
    scenario_of(&Catalogue::bundled(), line, workload, setups, clients)
}

pub fn job<'a>(scenario: &'a Scenario, variant: &'a Variant, millis: u64) -> Job<'a> {
    Job {
        scenario,
        variant,
        repeat: 0,
        seed: 1,
        rate: scenario.link.rate,
        warmup: Nanoseconds::from_millis(200),
        duration: Nanoseconds::from_millis(millis),
        bin: Nanoseconds::from_millis(1),
    }
}

pub fn run(scenario: &Scenario, millis: u64) -> Vec<RawRepeat> {
    let mut world = NetnsWorld::new(None).unwrap();
    let mut results = Vec::new();
    for variant in &scenario.variants {
        world.assess(scenario, variant).unwrap();
        let raw = world.repeat(&job(scenario, variant, millis), &Watch::default()).unwrap();
        println!(
            "{}: {:.1} Mbit/s, latency p50 {:.0} p99 {:.0} us of {}, busy {:.2}, others {:.2}, took {:.2} s; {:?} {:?}",
            variant.name,
            payload(&raw) as f64 * 8.0 / 1e3 / millis as f64,
            quantile(&raw, 0.5),
            quantile(&raw, 0.99),
            raw.latency_us.len(),
            raw.busy_cores.unwrap(),
            tenants(&raw).disturbance.unwrap(),
            raw.counters["took_s"],
            raw.counters,
            raw.notes
        );
        results.push(raw);
    }
    results
}

pub fn tenants(raw: &RawRepeat) -> &RawTenants {
    raw.tenants.as_ref().unwrap()
}

pub fn line(raw: &RawRepeat) -> &RawLine {
    tenants(raw).line.as_ref().unwrap()
}

pub fn payload(raw: &RawRepeat) -> u64 {
    raw.flows.iter().map(|flow| flow.payload_bytes).sum()
}

pub fn wire_bytes(raw: &RawRepeat) -> u64 {
    raw.flows.iter().flat_map(|flow| &flow.bytes).sum()
}

/// Returns a quantile of latency, µs; NaN without samples.
pub fn quantile(raw: &RawRepeat, share: f64) -> f64 {
    let mut sorted = raw.latency_us.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

/// Returns the share of the line's capacity that was lost in bins with a backlog.
pub fn lost(line: &RawLine) -> f64 {
    let bins = || line.bytes.iter().zip(&line.backlog_bytes).filter(|(_, backlog)| **backlog > 0);
    let sent: u64 = bins().map(|(bytes, _)| bytes).sum();
    1.0 - sent as f64 / (line.capacity_bytes * bins().count() as f64)
}
