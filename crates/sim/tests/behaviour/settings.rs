//! Fixed and random settings of simulations.

use evenkeel_model::scenario::ByteQueueLimit;
use evenkeel_model::units::ByteSize;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::{NicModel, Settings};
use evenkeel_sim::tcp::{CongestionControl, Profile};
use evenkeel_sim::time::{MICROSECOND, MILLISECOND, Time};
use evenkeel_transmit::Policy;
use proptest::prelude::*;

pub const STARTS_WITHIN: u64 = 20 * MICROSECOND;
pub const GIGABIT: u64 = 1_000_000_000;

/// Returns Titan's baseline: SFQ, 256 KiB in each ring, at most one interrupt every 50 µs.
pub fn base() -> Settings {
    Settings {
        rate: GIGABIT,
        queues: 4,
        processors: 4,
        flows: 4,
        mss: 1448,
        congestion: CongestionControl::Cubic,
        policy: Policy::Hash,
        xps_pool: None,
        priorities: Vec::new(),
        priority: 0,
        probe_priority: 0,
        clients: Vec::new(),
        queue_weights: false,
        shared_segment: None,
        transmit_batching: false,
        fair_queueing: true,
        small_queue_limit: Some(256 << 10),
        byte_queue_limit: ByteQueueLimit::Fixed(ByteSize::from_kib(256)),
        interrupt_interval: 50 * MICROSECOND,
        gso_bytes: 65_536,
        offload: true,
        interleaving: true,
        probe_bytes: None,
        nic: NicModel::Hardware,
        exact: false,
    }
}

/// Creates a simulation with bins of 1 ms from the start on.
pub fn simulation(settings: &Settings, profile: Profile, seed: u64) -> Simulation {
    let parameters = Parameters { profile, ..Parameters::default() };
    Simulation::new(settings.clone(), parameters, seed, Time::ZERO, MILLISECOND, 10_000).unwrap()
}

pub fn profiles() -> impl Strategy<Value = Profile> {
    prop_oneof![Just(Profile::Linux4_4), Just(Profile::Linux6_18)]
}

pub fn limits() -> impl Strategy<Value = ByteQueueLimit> {
    prop_oneof![
        Just(ByteQueueLimit::Off),
        Just(ByteQueueLimit::Dynamic),
        (0_u64..=256).prop_map(|kib| ByteQueueLimit::Fixed(ByteSize::from_kib(kib))),
    ]
}

prop_compose! {
    /// Generates the host's part of settings that a scenario may have.
    fn hosts()(
        queues in 1_u32..=16,
        processors in 1_u32..=8,
        flows in 1_u32..=40,
        reno in any::<bool>(),
        dqa in any::<bool>(),
        xps_pool in prop_oneof![Just(None), (1_u32..=16).prop_map(Some)],
        queue_weights in any::<bool>(),
        shared_segment in prop_oneof![Just(None), Just(Some(16 << 10)), Just(Some(32 << 10))],
        transmit_batching in any::<bool>(),
        fair_queueing in any::<bool>(),
    ) -> Settings {
        Settings {
            queues,
            processors,
            flows,
            congestion: if reno { CongestionControl::Reno } else { CongestionControl::Cubic },
            policy: if dqa { Policy::Dqa } else { Policy::Hash },
            xps_pool: xps_pool.filter(|size| *size <= queues),
            queue_weights,
            shared_segment,
            transmit_batching,
            fair_queueing,
            ..base()
        }
    }
}

prop_compose! {
    pub fn scenarios()(
        settings in hosts(),
        rate in prop_oneof![Just(GIGABIT / 10), Just(GIGABIT), Just(3 * GIGABIT), Just(10 * GIGABIT)],
        mss in prop_oneof![4 => Just(1448_u32), 1 => 500_u32..9000],
        small_queue_limit in prop_oneof![Just(None), Just(Some(64 << 10)), Just(Some(256 << 10))],
        byte_queue_limit in limits(),
        interval_us in 0_u64..=100,
        gso_kib in 16_u32..=64,
        offload in prop_oneof![4 => Just(true), 1 => Just(false)],
        interleaving in any::<bool>(),
        probe_bytes in prop_oneof![Just(None), Just(Some(64))],
        test_bed in prop_oneof![3 => Just(None), 1 => (1_u32..=4).prop_map(Some)],
    ) -> Settings {
        let settings = Settings {
            rate,
            mss,
            small_queue_limit,
            byte_queue_limit,
            interrupt_interval: interval_us * MICROSECOND,
            gso_bytes: gso_kib << 10,
            offload,
            interleaving,
            probe_bytes,
            ..settings
        };
        match test_bed {
            Some(processors) => settings.on_test_bed(processors),
            None => settings,
        }
    }
}
