//! Checks that every byte that TCP sends is accounted for, and that a queue's weight is the sum of its
//! flows' weights.

use evenkeel_sim::host::{Account, Simulation};
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::time::{MICROSECOND, MILLISECOND, SECOND, Time};
use evenkeel_transmit::Policy;
use proptest::prelude::*;

use crate::settings::{GIGABIT, STARTS_WITHIN, base, profiles, scenarios, simulation};

/// Bytes of a packet's headers that bins count.
const HEADERS: u64 = 66;

/// Checks every flow's account and the queues' weights. Returns the accounts.
pub fn balance(simulation: &Simulation, settings: &Settings) -> Result<Vec<Account>, TestCaseError> {
    let accounts = simulation.accounts();
    let no_drops = accounts.iter().all(|account| account.dropped == 0);
    for (flow, account) in accounts.iter().enumerate() {
        let Account { received, dropped, in_qdisc, in_ring, at_sink, .. } = *account;
        let places = received + dropped + in_qdisc + in_ring + at_sink;
        prop_assert_eq!(account.sent, places, "flow {}: {:?}", flow, account);
        let bins = simulation.observation().flow(flow);
        let (frames, packets) = (bins.bytes.iter().sum::<u64>(), bins.packets.iter().sum::<u64>());
        prop_assert_eq!(frames, received + at_sink + HEADERS * packets, "flow {} on the wire", flow);
        prop_assert_eq!(account.memory_below, account.memory_counted, "flow {}: {:?}", flow, account);
        prop_assert_eq!(account.weight > 0, account.memory_counted > 0, "flow {}: {:?}", flow, account);
        if no_drops {
            prop_assert_eq!(account.out_of_order_packets, 0, "flow {}: {:?}", flow, account);
        }
    }
    let mut probe = 0;
    for queue in 0..settings.queues {
        let flows = accounts.iter().filter(|account| account.queue == queue);
        let weight: u32 = flows.map(|account| account.weight).sum();
        prop_assert!(simulation.queue_weight(queue) >= weight, "queue {}", queue);
        probe += simulation.queue_weight(queue) - weight;
    }
    prop_assert!(probe <= u32::from(settings.probe_bytes.is_some()));
    Ok(accounts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_are_conserved(
        settings in scenarios(),
        profile in profiles(),
        seed in any::<u64>(),
        pauses_us in prop::collection::vec(1_u64..8_000, 1..4),
    ) {
        let mut simulation = simulation(&settings, profile, seed);
        simulation.start(seed, STARTS_WITHIN);
        simulation.start_probe();
        let mut now = Time::ZERO;
        for pause in pauses_us {
            now += pause * MICROSECOND;
            simulation.run(now).unwrap();
            balance(&simulation, &settings)?;
        }
    }

    /// Checks that transfers end after any drops, and that all queues are then empty.
    #[test]
    fn transfers_end(
        settings in scenarios(),
        profile in profiles(),
        seed in any::<u64>(),
        kib in 1_u64..400,
    ) {
        let settings = Settings { probe_bytes: None, ..settings };
        let mut simulation = simulation(&settings, profile, seed);
        simulation.start_transfers(seed, STARTS_WITHIN, kib << 10);
        let mut now = Time::ZERO;
        for _ in 0..20 {
            now += SECOND;
            simulation.run(now).unwrap();
            if balance(&simulation, &settings)?.iter().all(|account| account.unfinished == 0) {
                break;
            }
        }
        // Spurious retransmissions may still be in flight.
        simulation.run(now + SECOND).unwrap();
        for account in balance(&simulation, &settings)? {
            prop_assert_eq!((account.delivered, account.unfinished), (kib << 10, 0));
            prop_assert_eq!((account.memory_counted, account.weight), (0, 0));
        }
        for queue in 0..settings.queues {
            prop_assert_eq!(simulation.queue_weight(queue), 0);
        }
    }
}

/// Checks that drops happen, so that the tests above cover drops. A limit of a thousand one-packet
/// segments is less than forty windows.
#[test]
fn a_full_qdisc_drops_and_the_account_says_so() {
    for fair_queueing in [false, true] {
        let settings = Settings {
            queues: 1,
            flows: 40,
            policy: Policy::Dqa,
            fair_queueing,
            offload: false,
            small_queue_limit: None,
            transmit_batching: true,
            ..base()
        };
        let mut simulation = simulation(&settings, Profile::Linux4_4, 1);
        simulation.start_transfers(1, STARTS_WITHIN, 400 << 10);
        let mut dropped = 0;
        for step in 1..=400 {
            simulation.run(Time(step * 5 * MILLISECOND)).unwrap();
            let accounts = balance(&simulation, &settings).unwrap();
            dropped = accounts.iter().map(|account| account.dropped).sum();
        }
        assert!(dropped > 0, "fair queueing {fair_queueing}");
        assert!(simulation.accounts().iter().all(|account| account.unfinished == 0));
    }
}

/// Checks an SFQ with a limit below the sum of all small queues. The SFQ drops segments of other flows,
/// and these flows may then send.
#[test]
fn a_drop_lets_a_flow_go_on_that_small_queues_hold_back() {
    let settings = Settings {
        queues: 1,
        flows: 40,
        small_queue_limit: Some(64 << 10),
        transmit_batching: true,
        ..base()
    };
    let parameters = Parameters { sfq_depth: 24, ..Parameters::default() };
    let mut simulation =
        Simulation::new(settings.clone(), parameters, 1, Time::ZERO, MILLISECOND, 10_000).unwrap();
    simulation.start_transfers(1, STARTS_WITHIN, 300 << 10);
    for step in 1..=400 {
        simulation.run(Time(step * 10 * MILLISECOND)).unwrap();
        balance(&simulation, &settings).unwrap();
    }
    let accounts = simulation.accounts();
    assert!(accounts.iter().map(|account| account.dropped).sum::<u64>() > 0);
    assert!(accounts.iter().all(|account| account.unfinished == 0));
}

/// Checks that data arrives in order although flows change queues. The line has such a long latency
/// that windows do not fill it. Flows wait for acknowledgements without data below TCP, and then choose
/// a queue again.
#[test]
fn queues_are_changed_without_reordering() {
    let settings = Settings {
        queues: 8,
        flows: 24,
        policy: Policy::Dqa,
        rate: 10 * GIGABIT,
        transmit_batching: true,
        ..base()
    };
    let parameters = Parameters { line_latency: 500 * MICROSECOND, ..Parameters::default() };
    let mut simulation =
        Simulation::new(settings.clone(), parameters, 3, Time::ZERO, MILLISECOND, 1_000).unwrap();
    simulation.start(3, STARTS_WITHIN);
    let mut changes = 0;
    let mut before: Vec<u32> = Vec::new();
    for step in 1..=150 {
        simulation.run(Time(step * 100 * MICROSECOND)).unwrap();
        let accounts = balance(&simulation, &settings).unwrap();
        let queues: Vec<u32> = accounts.iter().map(|account| account.queue).collect();
        changes += before.iter().zip(&queues).filter(|(before, now)| before != now).count();
        before = queues;
    }
    assert!(changes > 12, "{changes}");
    for account in simulation.accounts() {
        assert_eq!((account.dropped, account.out_of_order_packets), (0, 0));
        assert!(account.delivered > 0);
    }
}
