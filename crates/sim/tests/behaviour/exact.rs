//! Compares the closed form with the computation by one event per packet.

use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::time::{MICROSECOND, Time};
use evenkeel_transmit::Policy;
use proptest::prelude::*;

use crate::random::{bulk, repeat, shuffle};
use crate::settings::{GIGABIT, STARTS_WITHIN, base, profiles, scenarios};

/// Runs both computations and compares accounts, bins and latencies. Bins are so short that most trains
/// of packets span several bins.
fn compare(settings: &Settings, profile: Profile, seed: u64, end: Time) -> Result<(), TestCaseError> {
    let run = |exact| {
        let settings = Settings { exact, ..settings.clone() };
        let parameters = Parameters { profile, ..Parameters::default() };
        let mut simulation =
            Simulation::new(settings, parameters, seed, Time::ZERO, 30 * MICROSECOND, 500).unwrap();
        simulation.start(seed, STARTS_WITHIN);
        simulation.start_probe();
        simulation.run(end).unwrap();
        simulation
    };
    let (mut exact, mut fast) = (run(true), run(false));
    prop_assert_eq!(exact.accounts(), fast.accounts());
    prop_assert_eq!(exact.observation().packets, fast.observation().packets);
    for flow in 0..settings.flows as usize {
        prop_assert_eq!(exact.observation().flow(flow), fast.observation().flow(flow), "flow {}", flow);
    }
    prop_assert_eq!(exact.take_latencies(), fast.take_latencies());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Compares whole repeats of a scenario: bins, latencies, queues, counters, processors.
    #[test]
    fn a_scenario_gives_the_same_figures(
        scenario in prop_oneof![3 => bulk(), 1 => shuffle()],
        profile in profiles(),
        seed in any::<u64>(),
        packets in 50_u64..1_500,
    ) {
        let run = |exact| repeat(&scenario, profile, seed, packets, exact);
        prop_assert_eq!(run(true), run(false));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_gives_the_same_result(
        settings in scenarios(),
        profile in profiles(),
        seed in any::<u64>(),
        end_us in 1_000_u64..12_000,
    ) {
        compare(&settings, profile, seed, Time(end_us * MICROSECOND))?;
    }

    /// Checks packet sizes that divide a turn's credit, so that a turn sends several packets.
    #[test]
    fn it_gives_the_same_result_with_several_packets_a_turn(
        seed in any::<u64>(),
        flows in 1_u32..12,
        shared in any::<bool>(),
        packet in prop_oneof![Just(256_u32), Just(384), Just(768)],
    ) {
        let settings = Settings {
            rate: GIGABIT,
            flows,
            mss: packet - 90,
            policy: Policy::Dqa,
            queue_weights: true,
            shared_segment: shared.then_some(16 << 10),
            ..base()
        };
        compare(&settings, Profile::Linux4_4, seed, Time(5_000 * MICROSECOND))?;
    }
}
