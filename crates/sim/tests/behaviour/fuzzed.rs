//! Checks for any valid scenario that the run ends without a panic, and that every byte is accounted
//! for.

use evenkeel_model::scenario::Scenario;
use evenkeel_sim::error::SimulationError;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::time::{NANOSECOND, Time};
use evenkeel_sim::world::SimError;
use proptest::prelude::*;

use crate::conservation::balance;
use crate::random::{bulk, repeat, shuffle, time_of_packets};
use crate::settings::{STARTS_WITHIN, profiles};

/// Returns the wire bytes of a full packet of the scenario, including framing.
fn full_packet(scenario: &Scenario) -> u64 {
    scenario.link.mtu.bytes() + 38
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bulk_flows_run_and_are_accounted_for(
        scenario in bulk(),
        profile in profiles(),
        seed in any::<u64>(),
        packets in 50_u64..1_500,
    ) {
        let parameters = Parameters { profile, ..Parameters::default() };
        let settings = Settings::new(&scenario, &scenario.variants[0], scenario.link.rate, &parameters);
        let step = time_of_packets(&scenario, packets) / 4 * NANOSECOND;
        let mut simulation = Simulation::new(settings.clone(), parameters, seed, Time::ZERO, step, 5).unwrap();
        simulation.start(seed, STARTS_WITHIN);
        simulation.start_probe();
        for number in 1..=4 {
            simulation.run(Time(number * step)).unwrap();
            balance(&simulation, &settings)?;
        }
        // The line must not carry more than its rate allows.
        let sent = simulation.observation().packets;
        let most = (4 * step / NANOSECOND) as f64 * scenario.link.rate.bits_per_second() as f64 / 8e9;
        let bytes: u64 = (0..settings.flows as usize)
            .map(|flow| simulation.observation().flow(flow).bytes.iter().sum::<u64>())
            .sum();
        prop_assert!((bytes + 24 * sent) as f64 <= most * 1.000_001, "{} + 24 * {} > {}", bytes, sent, most);
    }

    /// Checks that a shuffle delivers all data, or ends with an error if the switch is too small for any
    /// packet.
    #[test]
    fn shuffles_end(scenario in shuffle(), profile in profiles(), seed in any::<u64>()) {
        let bytes = scenario.workload.shuffled_bytes().unwrap().bytes();
        let buffer = scenario.switch.as_ref().unwrap().buffer.bytes();
        match repeat(&scenario, profile, seed, 1, false) {
            Ok(raw) => {
                let hosts = scenario.hosts.count as usize;
                prop_assert_eq!(raw.flows.len(), hosts * (hosts - 1));
                prop_assert!(raw.flows.iter().all(|flow| flow.payload_bytes == bytes));
                // The queues send at least the payload of all flows, and the headers of one packet per flow.
                // Retransmissions count again.
                let sent: u64 = raw.queues.iter().map(|queue| queue.bytes).sum();
                let least: u64 = raw.flows.iter().map(|flow| flow.payload_bytes + 66).sum();
                prop_assert!(sent >= least, "{} < {}", sent, least);
            }
            Err(SimError::Failed { source: SimulationError::NoProgress { .. }, .. }) => {
                prop_assert!(buffer < 8 * full_packet(&scenario), "{} bytes of buffer", buffer);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
