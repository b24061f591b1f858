//! Shared code of the benchmarks: bundled scenarios, and running one in the simulator.

#![allow(dead_code)]

use std::error::Error;

use evenkeel_experiment::{Request, conduct};
use evenkeel_model::record::Record;
use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{Scenario, parse};
use evenkeel_model::world::Observer;
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::world::SimWorld;

pub struct Quiet;

impl Observer for Quiet {
    fn progress(&self, _fraction: f64, _activity: &str) {}

    fn remark(&self, text: &str) {
        eprintln!("{text}");
    }

    fn interrupted(&self) -> bool {
        false
    }
}

pub fn scenario(name: &str) -> Result<Scenario, Box<dyn Error>> {
    let (_, text) =
        bundled().iter().find(|(known, _)| *known == name).ok_or_else(|| format!("no scenario {name}"))?;
    Ok(parse(text, name, variant_tables())?)
}

/// Runs variants of a scenario in the simulator, with the TCP of Linux 4.4 and from seed 1.
pub fn simulate(scenario: &Scenario, variants: &[String], repeats: u32) -> Result<Record, Box<dyn Error>> {
    let request = Request {
        scenario,
        scenario_text: "",
        variants: scenario.select(variants)?,
        repeats,
        long_windows: None,
        rate: None,
        seed: 1,
        quick: false,
        version: env!("CARGO_PKG_VERSION"),
    };
    Ok(conduct(&mut SimWorld::new(Profile::Linux4_4), &request, None, &Quiet)?)
}
