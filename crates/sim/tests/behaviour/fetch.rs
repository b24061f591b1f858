//! Tests of clients that fetch values from the sending host.

use evenkeel_model::scenario::ClientGroup;
use evenkeel_model::units::ByteSize;
use evenkeel_sim::host::Fetched;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::time::{MICROSECOND, MILLISECOND, NANOSECOND, SECOND, Time};
use evenkeel_transmit::Policy;
use proptest::prelude::*;

use crate::settings::{GIGABIT, STARTS_WITHIN, base, profiles};

fn group(count: u32, sizes: &[u64], timed: bool) -> ClientGroup {
    let sizes = sizes.iter().map(|bytes| ByteSize::from_bytes(*bytes)).collect();
    ClientGroup { count, sizes, timed, priority: 0 }
}

/// Returns settings with these clients and eight processors.
fn fetching(clients: Vec<ClientGroup>) -> Settings {
    let flows = clients.iter().map(|group| group.count).sum();
    Settings { processors: 8, flows, clients, ..base() }
}

fn started(settings: &Settings, parameters: Parameters, seed: u64) -> Simulation {
    let mut simulation =
        Simulation::new(settings.clone(), parameters, seed, Time::NEVER, MILLISECOND, 0).unwrap();
    simulation.start_fetches(seed, STARTS_WITHIN);
    simulation
}

fn fetched_by(settings: &Settings, parameters: Parameters, seed: u64, until: Time) -> Vec<Fetched> {
    let mut simulation = started(settings, parameters, seed);
    simulation.run(until).unwrap();
    simulation.take_fetched()
}

#[test]
fn a_value_of_one_packet_takes_what_its_stations_take() {
    let settings = fetching(vec![group(1, &[1448], true)]);
    let parameters = Parameters::default();
    // The time has four parts: the request's latency, the server's program, a frame of 1538 bytes at 1
    // Gbit/s, and the latency of the response. The clients' clock lags by one latency. No other packet
    // is in flight, so no interrupt is moderated.
    let expected = 2 * parameters.line_latency + parameters.application_latency + 12_304 * NANOSECOND;
    let fetched = fetched_by(&settings, parameters, 1, Time(10 * MILLISECOND));
    assert_eq!(fetched.len() as u64, (10 * MILLISECOND - 70 * MICROSECOND) / expected);
    // Skip the first value: its request waits for the interrupt interval that begins with the simulation.
    for &value in &fetched[1..] {
        assert_eq!(value, Fetched { client: 0, bytes: 1448, took: expected });
    }
}

#[test]
fn sizes_come_in_turn_and_only_timed_clients_are_told() {
    let settings = fetching(vec![group(2, &[50_000], false), group(1, &[1, 3_000, 20_000], true)]);
    let fetched = fetched_by(&settings, Parameters::default(), 3, Time(20 * MILLISECOND));
    assert!(fetched.len() > 10, "{}", fetched.len());
    for (value, bytes) in fetched.iter().zip([1, 3_000, 20_000].into_iter().cycle()) {
        assert_eq!((value.client, value.bytes), (2, bytes));
    }
}

#[test]
fn a_value_larger_than_the_send_buffer_arrives_whole() {
    let settings = fetching(vec![group(1, &[10 << 20], true)]);
    let mut simulation = started(&settings, Parameters::default(), 1);
    simulation.run(Time(SECOND / 2)).unwrap();
    let fetched = simulation.take_fetched();
    // 10 MiB take 89 ms on the wire.
    assert_eq!(fetched.len(), 5);
    let account = simulation.accounts()[0];
    assert!(account.delivered >= 5 * (10 << 20) && account.delivered < 6 * (10 << 20));
}

/// Checks that a connection restarts with its initial window after an idle time longer than its timeout
/// (`tcp_slow_start_after_idle`). After a shorter idle time, the window must stay.
#[test]
fn slow_start_follows_a_long_silence_and_not_a_short_one() {
    for profile in [Profile::Linux4_4, Profile::Linux6_18] {
        let took = |silence| {
            let settings = Settings { rate: 10 * GIGABIT, ..fetching(vec![group(1, &[512 << 10], true)]) };
            let parameters = Parameters {
                profile,
                line_latency: MILLISECOND,
                application_latency: silence,
                ..Parameters::default()
            };
            let fetched = fetched_by(&settings, parameters, 1, Time(20 * SECOND));
            let last = fetched.last().unwrap();
            (last.took - silence) / MILLISECOND
        };
        let (short, long) = (took(100 * MICROSECOND), took(3 * SECOND));
        // A round trip takes 2 ms. 363 packets in windows of 10, 20, 40, ... take six round trips.
        assert!(short <= 4, "{profile:?}: {short} ms");
        assert!(long >= 10, "{profile:?}: {long} ms");
    }
}

#[test]
fn an_idle_connection_chooses_its_queue_anew() {
    let clients = vec![group(3, &[3_000, 300_000], true)];
    let queues_of = |policy| {
        let settings = Settings { queues: 2, policy, ..fetching(clients.clone()) };
        let mut simulation = started(&settings, Parameters::default(), 5);
        let mut used = [[false; 2]; 3];
        let mut idle = 0;
        for step in 1..=2_000 {
            simulation.run(Time(step * 50 * MICROSECOND)).unwrap();
            let accounts = simulation.accounts();
            for (used, account) in used.iter_mut().zip(&accounts) {
                // A flow adds weight to its queue only while it has data below TCP.
                assert_eq!(account.weight, u32::from(account.memory_counted > 0));
                idle += 1 - account.weight;
                if account.sent > 0 {
                    used[account.queue as usize] = true;
                }
            }
            let weights: u32 = accounts.iter().map(|account| account.weight).sum();
            assert_eq!(simulation.queue_weight(0) + simulation.queue_weight(1), weights);
        }
        assert!(idle > 100, "{idle}");
        used
    };
    for used in queues_of(Policy::Hash) {
        assert_ne!(used[0], used[1], "a hash names one queue");
    }
    assert!(queues_of(Policy::Dqa).iter().any(|used| used[0] && used[1]));
}

/// Runs a short version of Titan's experiment (USENIX ATC 2017, section 6.1).
#[test]
fn queues_of_their_own_spare_small_values_the_wait_behind_large_ones() {
    let clients = vec![group(6, &[512 << 10], false), group(1, &[2 << 10, 64 << 10], true)];
    let mean_us = |policy| {
        let settings = Settings { rate: 10 * GIGABIT, queues: 8, policy, ..fetching(clients.clone()) };
        let times: Vec<u64> = (0..10)
            .flat_map(|seed| fetched_by(&settings, Parameters::default(), seed, Time(100 * MILLISECOND)))
            .map(|value| value.took / MICROSECOND)
            .collect();
        times.iter().sum::<u64>() as f64 / times.len() as f64
    };
    let (hashed, assigned) = (mean_us(Policy::Hash), mean_us(Policy::Dqa));
    assert!(assigned < hashed, "{assigned} µs, and {hashed} µs with hashing");
}

#[test]
fn clients_and_flows_are_the_same_number() {
    let settings = Settings { flows: 2, ..fetching(vec![group(3, &[1], true)]) };
    let error =
        Simulation::new(settings, Parameters::default(), 1, Time::ZERO, MILLISECOND, 1).err().unwrap();
    assert_eq!(error.to_string(), "the number of clients must be the number of flows, not 3");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks that, without loss, no value waits for a TCP timer, and that every byte is accounted for.
    #[test]
    fn values_of_any_size_arrive(
        sizes in prop::collection::vec(1_u64..200_000, 1..6),
        count in 1_u32..12,
        queues in 1_u32..6,
        dqa in any::<bool>(),
        weights in any::<bool>(),
        profile in profiles(),
        seed in any::<u64>(),
    ) {
        let settings = Settings {
            rate: 10 * GIGABIT,
            queues,
            policy: if dqa { Policy::Dqa } else { Policy::Hash },
            queue_weights: weights,
            ..fetching(vec![group(count, &sizes, true)])
        };
        let parameters = Parameters { profile, ..Parameters::default() };
        let mut simulation = started(&settings, parameters, seed);
        simulation.run(Time(30 * MILLISECOND)).unwrap();
        let fetched = simulation.take_fetched();
        // Eleven values of 200 kB take at most 2 ms. A delayed acknowledgement takes 40 ms.
        for client in 0..count {
            let own: Vec<u64> =
                fetched.iter().filter(|value| value.client == client).map(|value| value.bytes).collect();
            prop_assert!(own.len() >= 3, "client {} has {} values", client, own.len());
            prop_assert!(own.iter().zip(sizes.iter().cycle()).all(|(found, wanted)| found == wanted));
            let complete: u64 = own.iter().sum();
            let account = simulation.accounts()[client as usize];
            prop_assert!(account.delivered >= complete);
            prop_assert!(account.delivered < complete + sizes[own.len() % sizes.len()]);
        }
        for account in simulation.accounts() {
            let places = account.received + account.dropped + account.in_qdisc + account.in_ring;
            prop_assert_eq!(account.memory_below, account.memory_counted);
            prop_assert_eq!(account.sent, places + account.at_sink);
        }
        for value in fetched {
            prop_assert!(value.took < 10 * MILLISECOND, "{value:?}");
        }
    }
}
