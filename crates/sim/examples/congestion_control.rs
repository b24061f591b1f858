//! Adds a congestion control algorithm: Scalable TCP (Kelly, *Scalable TCP: improving performance in
//! highspeed wide area networks*, CCR 33(2), 2003; `net/ipv4/tcp_scalable.c`), and compares it with CUBIC.
//!
//! cargo run --release --package evenkeel-sim --example `congestion_control`

use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::parse;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::qdisc::{Kind, Qdisc};
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::{CongestionAlgorithm, CongestionControl};
use evenkeel_sim::time::{MILLISECOND, SECOND, Time};

/// Grows the window by 1/100 of the acknowledged packets; a window below 100 packets grows by one packet per
/// window. Reduces the window by an eighth after a loss.
#[derive(Clone, Debug)]
struct Scalable;

/// Upper limit of the acknowledged packets per packet of growth (`TCP_SCALABLE_AI_CNT`).
const PACKETS_PER_GROWTH: u32 = 100;

impl CongestionAlgorithm for Scalable {
    fn packets_per_growth(&mut self, _now: Time, window: u32, _acknowledged: u32) -> u32 {
        window.min(PACKETS_PER_GROWTH)
    }

    fn threshold_after_loss(&mut self, window: u32) -> u32 {
        window - window / 8
    }

    fn boxed_clone(&self) -> Box<dyn CongestionAlgorithm> {
        Box::new(self.clone())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = "titan-6-flows";
    let (_, text) = bundled().iter().find(|(other, _)| *other == name).ok_or("no such scenario")?;
    let scenario = parse(text, name, variant_tables())?;
    let variant = scenario.variants.iter().find(|variant| variant.name == "cmax").ok_or("no such variant")?;
    let parameters = Parameters::default();
    let algorithms =
        [("cubic", CongestionControl::Cubic), ("scalable", CongestionControl::Other(|| Box::new(Scalable)))];
    for (name, congestion) in algorithms {
        let settings = Settings {
            congestion,
            small_queue_limit: None,
            ..Settings::new(&scenario, variant, scenario.link.rate, &parameters)
        };
        // One bin: the second from 1 s to 2 s.
        let mut simulation = Simulation::new(settings, parameters.clone(), 1, Time(SECOND), SECOND, 1)?;
        // Use short queues, so that losses limit the growth of the window.
        for queue in 0..scenario.link.queues {
            simulation.set_qdisc(queue, Qdisc::new(&Kind::Pfifo { limit: 10 }, 0)?);
        }
        simulation.start(1, MILLISECOND);
        simulation.run(Time(2 * SECOND))?;
        println!("{name}: Gbit/s by flow");
        for flow in simulation.observation().clone().into_flows() {
            println!("  {:.2}", flow.bytes[0] as f64 * 8.0 / 1e9);
        }
    }
    Ok(())
}
