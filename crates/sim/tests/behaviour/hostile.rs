//! Tests with extreme settings.

use evenkeel_sim::error::SimulationError;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::CongestionControl;
use evenkeel_sim::time::{MICROSECOND, MILLISECOND, Time};
use evenkeel_transmit::Policy;
use proptest::prelude::*;

use crate::settings::{STARTS_WITHIN, base, limits, profiles};

prop_compose! {
    fn hosts()(
        queues in prop_oneof![Just(1_u32), Just(256), 1_u32..=256],
        processors in prop_oneof![Just(0_u32), Just(1), 1_u32..=1024],
        flows in prop_oneof![Just(0_u32), 0_u32..60],
        mss in prop_oneof![0_u32..3, 1_u32..9000, Just(65_483)],
        reno in any::<bool>(),
        dqa in any::<bool>(),
        xps_pool in prop_oneof![Just(None), (0_u32..=300).prop_map(Some)],
        queue_weights in any::<bool>(),
        shared_segment in prop_oneof![Just(None), (0_u32..=65_536).prop_map(Some)],
        transmit_batching in any::<bool>(),
        fair_queueing in any::<bool>(),
    ) -> Settings {
        Settings {
            queues,
            processors,
            flows,
            mss,
            congestion: if reno { CongestionControl::Reno } else { CongestionControl::Cubic },
            policy: if dqa { Policy::Dqa } else { Policy::Hash },
            xps_pool,
            queue_weights,
            shared_segment,
            transmit_batching,
            fair_queueing,
            ..base()
        }
    }
}

prop_compose! {
    fn settings()(
        settings in hosts(),
        rate in prop_oneof![
            Just(1_000_000_u64),
            Just(400_000_000_000),
            1_000_000_u64..400_000_000_000,
        ],
        small_queue_limit in prop_oneof![Just(None), Just(Some(0)), (0_u32..300_000).prop_map(Some)],
        byte_queue_limit in limits(),
        interval_ns in prop_oneof![Just(0_u64), 0_u64..3_000_000],
        gso_bytes in prop_oneof![0_u32..2_000, 0_u32..=65_536],
        offload in any::<bool>(),
        interleaving in any::<bool>(),
        probe_bytes in prop_oneof![Just(None), (0_u32..=65_536).prop_map(Some)],
    ) -> Settings {
        Settings {
            rate,
            small_queue_limit,
            byte_queue_limit,
            interrupt_interval: interval_ns * 1_000,
            gso_bytes,
            offload,
            interleaving,
            probe_bytes,
            ..settings
        }
    }
}

prop_compose! {
    fn parameters()(
        profile in profiles(),
        receive_queues in 1_u32..20,
        ring_descriptors in prop_oneof![Just(64_u32), 64_u32..4096],
        sfq_depth in prop_oneof![Just(1_u32), 1_u32..300],
        line_latency in 0_u64..MILLISECOND,
        handshake_rtt in 0_u64..MILLISECOND,
        sink_interval in MICROSECOND..MILLISECOND,
        weight_latency in 0_u64..MILLISECOND,
        largest_queue_weight in 0_u32..2_000,
        application_latency in 0_u64..MILLISECOND,
    ) -> Parameters {
        Parameters {
            profile,
            receive_queues,
            ring_descriptors,
            sfq_depth,
            line_latency,
            handshake_rtt,
            sink_interrupt_interval: sink_interval,
            weight_latency,
            largest_queue_weight,
            application_latency,
            ..Parameters::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nothing_panics(settings in settings(), parameters in parameters(), seed in any::<u64>()) {
        let mut simulation =
            Simulation::new(settings, parameters, seed, Time(MILLISECOND), 100 * MICROSECOND, 5).unwrap();
        simulation.start(seed, STARTS_WITHIN);
        simulation.start_probe();
        for half_ms in 1..=3 {
            simulation.run(Time(half_ms * MILLISECOND / 2)).unwrap();
        }
        for account in simulation.accounts() {
            let places = account.received + account.dropped + account.in_qdisc + account.in_ring;
            prop_assert_eq!(account.memory_below, account.memory_counted);
            prop_assert_eq!(account.sent, places + account.at_sink);
        }
    }
}

fn refusal(settings: Settings, parameters: Parameters) -> String {
    match Simulation::new(settings, parameters, 1, Time::ZERO, MILLISECOND, 1) {
        Ok(_) => "none".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_not_simulated_is_refused() {
    let usual = Parameters::default;
    for queues in [0, 257] {
        let found = refusal(Settings { queues, ..base() }, usual());
        assert_eq!(found, format!("the number of queues must be 1 to 256, not {queues}"));
    }
    let found = refusal(base(), Parameters { receive_queues: 0, ..usual() });
    assert_eq!(found, "the number of receive queues must be at least 1, not 0");
    let found = refusal(base(), Parameters { ring_descriptors: 63, ..usual() });
    assert_eq!(found, "the number of descriptors must be at least 64, not 63");
    let found =
        refusal(Settings { gso_bytes: 1 << 19, ..base() }, Parameters { ring_descriptors: 64, ..usual() });
    assert!(found.starts_with("the number of descriptors for segments of this size"), "{found}");
    let found = refusal(base(), Parameters { sfq_depth: 0, ..usual() });
    assert_eq!(found, "sfq: limit must be at least 1, not 0");
    let found = refusal(base(), Parameters { sink_interrupt_interval: 0, ..usual() });
    assert_eq!(found, "the receiver's interrupt interval, ps, must be at least a microsecond, not 0");
}

#[test]
fn a_line_without_a_rate_carries_nothing() {
    let settings = Settings { rate: 0, ..base() };
    let mut simulation =
        Simulation::new(settings, Parameters::default(), 1, Time::ZERO, MILLISECOND, 1).unwrap();
    simulation.start(1, STARTS_WITHIN);
    simulation.run(Time(1_000 * MILLISECOND)).unwrap();
    assert_eq!(simulation.observation().packets, 0);
}

/// Checks that an idle simulation and a simulation with completed transfers end without an error.
#[test]
fn an_empty_simulation_runs_to_its_end() -> Result<(), SimulationError> {
    for flows in [0, 3] {
        let settings = Settings { flows, ..base() };
        let mut simulation = Simulation::new(settings, Parameters::default(), 1, Time::ZERO, MILLISECOND, 1)?;
        simulation.run(Time(MILLISECOND))?;
        simulation.start_transfers(1, STARTS_WITHIN, 10_000);
        simulation.run(Time(1_000 * MILLISECOND))?;
        assert!(simulation.accounts().iter().all(|account| account.delivered == 10_000));
        simulation.run(Time(2_000 * MILLISECOND))?;
    }
    Ok(())
}
