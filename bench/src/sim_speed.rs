//! The simulator's speed: delivered data packets per second of processor time, on one core.
//!
//! `sim-speed [SECONDS]`, simulated seconds in each run.

mod common;

use std::error::Error;
use std::process::ExitCode;

/// Bulk scenarios, and the variant whose path has most to do.
const RUNS: [(&str, &str); 6] = [
    ("titan-12-flows", "cmax"),
    ("titan-12-flows", "dqa+dqwa"),
    ("titan-12-flows", "dqa+dqwa+dsos"),
    ("titan-48-flows", "cmax"),
    ("titan-48-flows", "dqa+dqwa"),
    ("titan-192-flows", "cmax"),
];

fn run() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<16} {:<16} {:>12} {:>14} {:>12}",
        "scenario", "variant", "packets", "CPU seconds", "million/s"
    );
    for (name, variant) in RUNS {
        let scenario = common::scenario(name)?;
        let record = common::simulate(&scenario, &[variant.to_owned()], 1)?;
        for variant in &record.variants {
            for cost in variant.repeats.iter().filter_map(|repeat| repeat.sim) {
                println!(
                    "{:<16} {:<16} {:>12} {:>14.3} {:>12.1}",
                    name,
                    variant.name,
                    cost.packets,
                    cost.cpu_seconds,
                    cost.packets as f64 / cost.cpu_seconds / 1e6
                );
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim-speed: {error}");
            ExitCode::from(4)
        }
    }
}
