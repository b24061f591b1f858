//! Compares rates and latencies with results computed by hand.

use evenkeel_model::scenario::ByteQueueLimit;
use evenkeel_model::units::ByteSize;
use evenkeel_sim::host::{Account, Simulation};
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::random::{Component, Generator};
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::time::{MICROSECOND, MILLISECOND, SECOND, Time};
use evenkeel_transmit::Policy;

use crate::settings::{GIGABIT, STARTS_WITHIN, base, simulation};

/// Returns the payload in bytes that each flow delivers in `measured` milliseconds after `warmup`
/// milliseconds, and the flow's account at the end.
fn delivered(simulation: &mut Simulation, warmup: u64, measured: u64) -> Vec<(f64, Account)> {
    simulation.run(Time(warmup * MILLISECOND)).unwrap();
    let before = simulation.accounts();
    simulation.run(Time((warmup + measured) * MILLISECOND)).unwrap();
    let after = simulation.accounts();
    let difference =
        |(before, after): (Account, Account)| ((after.delivered - before.delivered) as f64, after);
    before.into_iter().zip(after).map(difference).collect()
}

fn started(settings: &Settings, seed: u64) -> Simulation {
    let mut simulation = simulation(settings, Profile::Linux4_4, seed);
    simulation.start(seed, STARTS_WITHIN);
    simulation
}

fn assert_near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() <= tolerance, "{found} is not near {expected}");
}

/// Checks the rate of a flow. A full packet carries 1448 bytes and takes 1538 bytes on the wire.
#[test]
fn a_flow_alone_fills_the_line() {
    for (gigabits, profile) in [(1, Profile::Linux4_4), (10, Profile::Linux4_4), (10, Profile::Linux6_18)] {
        let settings = Settings { rate: gigabits * GIGABIT, flows: 1, ..base() };
        let mut simulation = simulation(&settings, profile, 1);
        simulation.start(1, STARTS_WITHIN);
        let flow = delivered(&mut simulation, 30, 60)[0].0;
        let line = settings.rate as f64 / 8.0 * 0.060;
        assert_near(flow, line * 1448.0 / 1538.0, 0.005);
    }
}

#[test]
fn two_flows_on_different_queues_share_evenly() {
    let settings = Settings { rate: 10 * GIGABIT, queues: 2, flows: 2, policy: Policy::Dqa, ..base() };
    let mut simulation = started(&settings, 1);
    let flows = delivered(&mut simulation, 30, 60);
    assert_ne!(flows[0].1.queue, flows[1].1.queue);
    assert_near(flows[0].0, flows[1].0, 0.01);
}

/// Returns settings with a slow line, so that windows soon exceed the ring. Small queues are off, so
/// every flow always has data in the qdisc. The qdisc therefore determines the shares.
fn slow() -> Settings {
    Settings {
        rate: GIGABIT / 10,
        queues: 2,
        flows: 3,
        byte_queue_limit: ByteQueueLimit::Fixed(ByteSize::from_kib(16)),
        small_queue_limit: None,
        ..base()
    }
}

/// Returns the payloads of three flows on two queues, so that two of the flows share a queue. The flow
/// alone on its queue comes first.
fn two_against_one(settings: &Settings) -> [f64; 3] {
    let shared = (1..100).find_map(|seed| {
        let mut simulation = started(settings, seed);
        simulation.run(Time(MILLISECOND)).unwrap();
        let on_first = simulation.accounts().iter().filter(|account| account.queue == 0).count();
        let lone = match on_first {
            1 => 0,
            2 => 1,
            _ => return None,
        };
        Some((simulation, lone))
    });
    let (mut simulation, lone) = shared.unwrap();
    let (alone, together): (Vec<_>, Vec<_>) =
        delivered(&mut simulation, 2_000, 2_000).into_iter().partition(|(_, account)| account.queue == lone);
    [alone[0].0, together[0].0, together[1].0]
}

#[test]
fn two_flows_on_a_queue_get_half_as_much_each_as_one_alone() {
    let [alone, first, second] = two_against_one(&slow());
    assert_near(alone, first + second, 0.01);
    assert_near(first, second, 0.03);
}

#[test]
fn with_queue_weights_two_flows_get_twice_as_much_as_one() {
    let settings = Settings { queue_weights: true, ..slow() };
    let [alone, first, second] = two_against_one(&settings);
    assert_near(first + second, 2.0 * alone, 0.01);
    assert_near(first, second, 0.03);
}

/// Checks the time of a single packet. It takes 12.304 µs at 1 Gbit/s, and its acknowledgement arrives after
/// two latencies of 2 µs. Both interrupts are immediate, because neither end had an interrupt within the
/// interval. Exception: a packet that arrives in the first 50 µs waits until these 50 µs end.
#[test]
fn a_packet_alone_is_acknowledged_without_delay() {
    let settings = Settings { flows: 1, ..base() };
    let parameters = Parameters {
        line_latency: 2 * MICROSECOND,
        sink_interrupt_interval: 50 * MICROSECOND,
        ..Parameters::default()
    };
    for seed in 1..20 {
        let start = Generator::new(seed, Component::Starts).below(MILLISECOND);
        let arrival = (start + 12_304_000).max(50 * MICROSECOND);
        let done = arrival + 4 * MICROSECOND;
        let mut simulation =
            Simulation::new(settings.clone(), parameters.clone(), seed, Time::ZERO, MILLISECOND, 1).unwrap();
        simulation.start_transfers(seed, MILLISECOND, 1448);
        simulation.run(Time(done - 1)).unwrap();
        assert_eq!(simulation.accounts()[0].unfinished, 1448, "seed {seed}");
        simulation.run(Time(done)).unwrap();
        assert_eq!(simulation.accounts()[0].unfinished, 0, "seed {seed}");
    }
}

/// Checks the latency of a probe. 64 bytes of payload are 154 bytes on the wire, 1.232 µs at 1 Gbit/s. Half a
/// round trip consists of half of this time, one latency of 2 µs, and 40 µs in an application. The round trip
/// exceeds the interrupt interval.
#[test]
fn a_probe_alone_measures_the_latencies_of_line_and_applications() {
    let settings = Settings { flows: 0, probe_bytes: Some(64), ..base() };
    let parameters = Parameters {
        line_latency: 2 * MICROSECOND,
        application_latency: 40 * MICROSECOND,
        sink_interrupt_interval: 50 * MICROSECOND,
        ..Parameters::default()
    };
    let mut simulation = Simulation::new(settings, parameters, 1, Time::ZERO, MILLISECOND, 1).unwrap();
    simulation.start_probe();
    simulation.run(Time(SECOND / 100)).unwrap();
    let latencies = simulation.take_latencies();
    assert!(latencies.len() > 100);
    // The interrupt intervals begin at the start of the simulation. The first request may have to wait
    // for the end of an interval.
    for latency in &latencies[1..] {
        assert_eq!(*latency, 1.232 / 2.0 + 2.0 + 40.0);
    }
}
