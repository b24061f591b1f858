//! Adds a scheduler to the NIC, strict priority with the lowest queue first, and compares it with round
//! robin.
//!
//! cargo run --release --package evenkeel-sim --example `nic_scheduler`

use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::parse;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::nic::{Scheduler, Waiting};
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::time::{MILLISECOND, SECOND, Time};

/// Serves a queue only while all lower queues are empty.
#[derive(Clone, Debug)]
struct StrictPriority;

impl Scheduler for StrictPriority {
    fn choose(&mut self, waiting: &[Waiting]) -> usize {
        let lowest = waiting.iter().enumerate().min_by_key(|(_, ring)| ring.queue);
        lowest.map_or(0, |(index, _)| index)
    }

    fn boxed_clone(&self) -> Box<dyn Scheduler> {
        Box::new(self.clone())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = "titan-6-flows";
    let (_, text) = bundled().iter().find(|(other, _)| *other == name).ok_or("no such scenario")?;
    let scenario = parse(text, name, variant_tables())?;
    let variant = scenario.variants.iter().find(|variant| variant.name == "dqa").ok_or("no such variant")?;
    let parameters = Parameters::default();
    for own in [false, true] {
        let settings = Settings::new(&scenario, variant, scenario.link.rate, &parameters);
        // One bin: the second from 1 s to 2 s.
        let mut simulation = Simulation::new(settings, parameters.clone(), 1, Time(SECOND), SECOND, 1)?;
        if own {
            simulation.set_nic_scheduler(Box::new(StrictPriority));
        }
        simulation.start(1, MILLISECOND);
        simulation.run(Time(2 * SECOND))?;
        println!("{}: Gbit/s by flow", if own { "strict priority" } else { "round robin" });
        for flow in simulation.observation().clone().into_flows() {
            println!("  {:.2}", flow.bytes[0] as f64 * 8.0 / 1e9);
        }
    }
    Ok(())
}
