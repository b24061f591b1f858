//! Measures the simulator's speed (delivered data packets per second of CPU time, on one core) and its
//! memory. Arguments select rows: a row ("SCENARIO VARIANT") runs if it contains one of the arguments.

mod memory;
mod simulate;

use std::error::Error;
use std::process::ExitCode;

use evenkeel_model::record::SimCost;
use evenkeel_model::scenario::{Scenario, WorkloadKind, bundled::variant_tables, parse};
use evenkeel_model::units::ByteSize;

/// Rows with bundled scenarios of bulk flows: scenario and variant.
const BUNDLED: [(&str, &str); 7] = [
    ("titan-12-flows", "cmax"),
    ("titan-12-flows", "dqa+dqwa"),
    ("titan-12-flows", "dqa+dqwa+dsos"),
    ("titan-48-flows", "cmax"),
    ("titan-48-flows", "dqa+dqwa"),
    ("titan-48-flows", "dqa+dqwa+dsos"),
    ("titan-192-flows", "cmax"),
];

const FLOWS: [u32; 5] = [12, 48, 192, 1_000, 10_000];
const SCALED_VARIANT: &str = "dqa+dqwa";
/// Number of packets measured in each generated scenario.
const SCALED_PACKETS: u64 = 4_000_000;
/// Rate of each flow, bit/s: that of 192 flows at 10 Gbit/s in total.
const RATE_PER_FLOW: u64 = 10_000_000_000 / 192;
/// Number of flows per queue and core while there are at most [`MOST_QUEUES`] queues; as in titan-192-flows.
const FLOWS_PER_QUEUE: u32 = 24;
const MOST_QUEUES: u32 = 256;

/// Durations, in simulated seconds. The cost per simulated second should be equal for all of them.
const DURATIONS: [u32; 3] = [1, 4, 16];

/// The largest bundled scenario, with a tenth of its bytes. The number of bytes does not affect the
/// memory use.
const SHUFFLE: (&str, &str, u64) = ("shuffle-24", "dqa", 100_000_000);
/// Memory limit of [`SHUFFLE`], MB.
const SHUFFLE_MEGABYTES: f64 = 64.0;

/// Returns a scenario for any number of flows, in which every flow has the same rate, and every queue
/// about the same number of flows. So all segments have the same size, and the cost per packet depends only
/// on the number of flows. At a fixed rate of 10 Gbit/s, ten thousand flows would send less than a
/// packet per round trip, and timeouts and drops would dominate.
///
/// As in titan-192-flows, there are half as many receive queues as transmit queues: the cores of four
/// receive queues can handle the acknowledgements for at most 10 Gbit/s. More than 6,144 flows share
/// the maximum of 256 transmit queues.
fn scaled(flows: u32) -> Result<Scenario, Box<dyn Error>> {
    let rate = u64::from(flows) * RATE_PER_FLOW;
    let queues = flows.div_ceil(FLOWS_PER_QUEUE).min(MOST_QUEUES);
    let receive_queues = queues.div_ceil(2);
    // A packet of 1500 bytes takes 1538 bytes on the wire.
    let microseconds = SCALED_PACKETS * 1538 * 8 * 1_000_000 / rate;
    let text = format!(
        r#"
schema = 1
name = "flows-{flows}"
title = "{flows} flows, each with its share of 10 Gbit/s among 192"
variant-table = "titan"
variants = ["{SCALED_VARIANT}"]
[link]
rate = "{rate}bit"
queues = {queues}
receive-queues = {receive_queues}
[hosts]
sending-cores = {queues}
[workload]
flows = {flows}
[measure]
warmup = "100ms"
long-windows = 1
[measure.windows]
all = "{microseconds}us"
"#
    );
    Ok(parse(&text, "generated", variant_tables())?)
}

fn cost(scenario: &Scenario, variant: &str) -> Result<SimCost, Box<dyn Error>> {
    let record = simulate::simulate(scenario, &[variant.to_owned()], 1)?;
    let repeat = record.variants.first().and_then(|variant| variant.repeats.first());
    Ok(repeat.and_then(|repeat| repeat.sim).ok_or("no cost in the record")?)
}

/// Returns whether the command line selects a row. Without arguments, it selects all rows.
fn is_wanted(row: &str) -> bool {
    let mut parts = std::env::args().skip(1).peekable();
    parts.peek().is_none() || parts.any(|part| row.contains(&part))
}

/// Runs a variant and prints a line: name, packets, time, speed, memory. Returns the peak memory in MB, or 0
/// for a row that is not selected.
fn measure(what: &str, scenario: &Scenario, variant: &str) -> Result<f64, Box<dyn Error>> {
    if !is_wanted(&format!("{what} {variant}")) {
        return Ok(0.0);
    }
    memory::forget_peak();
    let cost = cost(scenario, variant)?;
    let million = cost.packets as f64 / cost.cpu_seconds / 1e6;
    let peak = memory::peak_megabytes()?;
    println!(
        "{what:<24} {variant:<14} {:>12} {:>12.3} {million:>10.1} {:>10.1} {peak:>9.1}",
        cost.packets,
        cost.cpu_seconds,
        1e3 / million,
    );
    Ok(peak)
}

fn heading(text: &str) {
    println!(
        "\n{text}\n{:<24} {:<14} {:>12} {:>12} {:>10} {:>10} {:>9}",
        "scenario", "variant", "packets", "CPU seconds", "million/s", "ns/packet", "peak MB"
    );
}

fn run() -> Result<bool, Box<dyn Error>> {
    // Measure this scenario first: memory that a run has freed may stay with the process.
    heading("Several hosts");
    let (name, variant, bytes) = SHUFFLE;
    let mut shuffle = simulate::scenario(name)?;
    shuffle.workload.kind = WorkloadKind::Shuffle { bytes_per_flow: ByteSize::from_bytes(bytes) };
    let small = measure(name, &shuffle, variant)? < SHUFFLE_MEGABYTES;
    if !small {
        println!("{name} takes {SHUFFLE_MEGABYTES} MB or more");
    }

    heading("Bundled bulk scenarios");
    for (name, variant) in BUNDLED {
        measure(name, &simulate::scenario(name)?, variant)?;
    }
    heading("Flows of 52 Mbit/s each, 24 on a queue (39 where 10,000 share 256 queues)");
    for flows in FLOWS {
        measure(&format!("{flows} flows"), &scaled(flows)?, SCALED_VARIANT)?;
    }
    heading("Simulated duration");
    for seconds in DURATIONS {
        let mut scenario = simulate::scenario("titan-12-flows")?;
        scenario.measure.long_windows = seconds;
        measure(&format!("titan-12-flows, {seconds} s"), &scenario, SCALED_VARIANT)?;
    }
    Ok(small)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim-speed: {error}");
            ExitCode::from(4)
        }
    }
}
