//! Golden runs: compare the results with stored results.

use std::fmt::Write;
use std::path::Path;

use evenkeel_model::scenario::{bundled, parse};
use evenkeel_model::units::Nanoseconds;
use evenkeel_model::world::{Job, Observer, RawRepeat, World};
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::world::SimWorld;

const SCENARIO: &str = r#"
schema = 1
name = "small"
title = "Six flows on four queues"
variant-table = "titan"
variants = ["cvanilla", "dqa", "dqa+dqwa+dsos"]

[link]
rate = "10gbit"
queues = 4

[workload]
flows = 6

[workload.latency]
duration = "20ms"

[measure]
repeats = 1

[measure.windows]
long = "10ms"
"#;

struct Unobserved;

impl Observer for Unobserved {
    fn progress(&self, _fraction: f64, _activity: &str) {}
    fn remark(&self, _text: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

/// Describes the results of a repeat: one line per flow, queue and counter, then the latency and the busy
/// cores.
fn describe(name: &str, raw: &RawRepeat) -> String {
    let mut text = format!("{name}\n");
    for flow in &raw.flows {
        let (bytes, packets): (u64, u64) = (flow.bytes.iter().sum(), flow.packets.iter().sum());
        let _ = writeln!(
            text,
            "  {} queue {:?}: {bytes} bytes in {packets} packets, {} delivered, {:?} retransmits, {:?} out of order",
            flow.name, flow.queue, flow.payload_bytes, flow.retransmits, flow.out_of_order
        );
    }
    for (number, queue) in raw.queues.iter().enumerate() {
        let _ = writeln!(text, "  queue {number}: {} flows, {} bytes", queue.flows, queue.bytes);
    }
    for (name, value) in &raw.counters {
        let _ = writeln!(text, "  {name}: {value}");
    }
    let sum: f64 = raw.latency_us.iter().sum();
    let _ = writeln!(text, "  latency: {} samples, {sum:.3} us in all", raw.latency_us.len());
    let _ = writeln!(text, "  busy cores: {:.6}", raw.busy_cores.unwrap_or_default());
    text
}

/// Compares `found` with `tests/golden/NAME`. With `EVENKEEL_BLESS=1` in the environment, it writes the
/// file instead. Review the difference before you commit it.
fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("EVENKEEL_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, found).unwrap();
        return;
    }
    let expected =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(expected == found, "{name} differs (EVENKEEL_BLESS=1 rewrites it). Found:\n{found}");
}

#[test]
fn the_figures_are_as_they_were() {
    let scenario = parse(SCENARIO, "small.toml", bundled::variant_tables()).unwrap();
    for (profile, file) in [(Profile::Linux4_4, "small-4.4.txt"), (Profile::Linux6_18, "small-6.18.txt")] {
        let mut world = SimWorld::new(profile);
        let mut text = String::new();
        for variant in &scenario.variants {
            let job = Job {
                scenario: &scenario,
                variant,
                repeat: 0,
                seed: 1,
                rate: scenario.link.rate,
                warmup: Nanoseconds::from_millis(10),
                duration: Nanoseconds::from_millis(20),
                bin: Nanoseconds::from_millis(1),
            };
            text += &describe(&variant.name, &world.repeat(&job, &Unobserved).unwrap());
        }
        assert_golden(file, &text);
    }
}
