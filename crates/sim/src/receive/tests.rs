//! Compares the receive path with closed forms, and checks its invariants for any workload.
#![allow(clippy::unwrap_used)]

use evenkeel_model::scenario::{ReceiveKnobs, ReceiveNic, ReceivePolicy, ServerKind, Supplied};
use evenkeel_model::units::{BitRate, ByteSize, Nanoseconds};
use proptest::prelude::*;

use super::messages::Transaction;
use super::steering::{Steering, tuple_of};
use super::*;
use crate::costs::queue_pairs::ReceiveCosts;
use crate::time::{MILLISECOND, NANOSECOND, SECOND, Span, Time};

const RATE: BitRate = BitRate::from_bits_per_second(10_000_000_000);
const BEGIN: Time = Time(50 * MILLISECOND);
const END: Time = Time(550 * MILLISECOND);

fn knobs(policy: ReceivePolicy) -> ReceiveKnobs {
    ReceiveKnobs {
        nic: ReceiveNic::I82599,
        policy,
        isolated_queues: 4,
        message: ByteSize::from_bytes(1024),
        ring: 512,
        reaction: Nanoseconds::from_millis(100),
    }
}

fn client(group: usize, flows: u32, outstanding: u32) -> ClientSpec {
    ClientSpec {
        group,
        host: 0,
        flows,
        outstanding,
        high_priority: group == 0,
        from: Time::ZERO,
        until: Time::NEVER,
    }
}

fn setting(knobs: &ReceiveKnobs, queues: u32, server: ServerKind) -> Setting<'_> {
    let set_percent = if server == ServerKind::Memcached { 10 } else { 0 };
    Setting { knobs, queues, rate: RATE, server, set_percent, timeout: None, groups: 1, measured: BEGIN..END }
}

fn simulation(
    knobs: &ReceiveKnobs,
    queues: u32,
    server: ServerKind,
    clients: Vec<ClientSpec>,
    seed: u64,
) -> ReceiveSimulation {
    let groups = clients.iter().map(|client| client.group + 1).max().unwrap();
    let setting = Setting { groups, ..setting(knobs, queues, server) };
    ReceiveSimulation::new(&setting, clients, ReceiveCosts::DRAGONET, seed).unwrap()
}

/// Returns a group's answered requests per second, and their mean response time in nanoseconds.
fn figures(simulation: &ReceiveSimulation, group: usize) -> (f64, f64) {
    let of_group = simulation.clients().filter(|(spec, ..)| spec.group == group);
    let (requests, sum) = of_group.fold((0, 0), |(requests, sum), (_, counts, ns, _)| {
        (requests + counts.iter().sum::<u64>(), sum + ns.iter().sum::<u128>())
    });
    let seconds = END.since(BEGIN) as f64 / SECOND as f64;
    (requests as f64 / seconds, sum as f64 / requests as f64)
}

fn run_echo(queues: u32, clients: Vec<ClientSpec>) -> ReceiveSimulation {
    let mut simulation = simulation(&knobs(ReceivePolicy::Balance), queues, ServerKind::Echo, clients, 1);
    simulation.run(END).unwrap();
    simulation
}

fn echo() -> Transaction {
    Transaction::of(ServerKind::Echo, ByteSize::from_bytes(1024), RATE)
}

/// Returns the time that a client's thread takes to send the request and to read the response.
fn client_work(costs: &ReceiveCosts, transaction: &Transaction) -> Span {
    costs.handling(&transaction.request) + costs.handling(&transaction.response)
}

fn queue_work(costs: &ReceiveCosts, transaction: &Transaction) -> Span {
    costs.receiving(&transaction.request) + costs.transmitting(&transaction.response)
}

/// Returns a queue pair's mean time for memcached's transactions with values of 1024 B and 10 % sets.
fn memcached_queue_work(costs: &ReceiveCosts) -> f64 {
    let value = ByteSize::from_bytes(1024);
    let ask = queue_work(costs, &Transaction::of(ServerKind::Memcached, value, RATE));
    let set = queue_work(costs, &Transaction::set(value, RATE));
    0.9 * ask as f64 + 0.1 * set as f64
}

fn unloaded(costs: &ReceiveCosts) -> Span {
    let echo = echo();
    let wires = echo.request.wire + echo.response.wire + 2 * costs.line_latency;
    let server = queue_work(costs, &echo) + costs.answering(ServerKind::Echo, &echo);
    client_work(costs, &echo) + wires + server
}

fn close(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() < share, "{found} is not {expected}");
}

#[test]
fn a_lone_request_takes_the_sum_of_all_costs() {
    let costs = ReceiveCosts::DRAGONET;
    let (rate, took) = figures(&run_echo(1, vec![client(0, 1, 1)]), 0);
    let expected = unloaded(&costs);
    assert_eq!(took, (expected / NANOSECOND) as f64);
    close(rate, SECOND as f64 / expected as f64, 1e-3);
}

#[test]
fn a_client_cannot_do_more_than_its_thread() {
    let costs = ReceiveCosts::DRAGONET;
    let (rate, took) = figures(&run_echo(1, vec![client(0, 1, 16)]), 0);
    // The client's time exceeds the server's time. All 16 requests are always present, and the client
    // handles them one after the other.
    let work = client_work(&costs, &echo());
    close(rate, SECOND as f64 / work as f64, 1e-3);
    close(took, 16.0 * (work / NANOSECOND) as f64, 1e-3);
}

#[test]
fn a_queue_cannot_do_more_than_its_thread() {
    let costs = ReceiveCosts::DRAGONET;
    let simulation = run_echo(1, (0..4).map(|_| client(0, 1, 16)).collect());
    let work = queue_work(&costs, &echo());
    let (rate, took) = figures(&simulation, 0);
    close(rate, SECOND as f64 / work as f64, 1e-3);
    close(took, 64.0 * (work / NANOSECOND) as f64, 2e-3);
    // Ten queues serve ten times as many requests if all queues have flows.
    let ten = run_echo(10, (0..40).map(|_| client(0, 1, 16)).collect());
    close(figures(&ten, 0).0, 10.0 * SECOND as f64 / work as f64, 1e-3);
}

#[test]
fn the_line_is_a_limit_too() {
    let echo = Transaction::of(ServerKind::Echo, ByteSize::from_bytes(1024), RATE);
    // Twenty queues can serve 1.6 times as many requests as the line carries.
    let simulation = run_echo(20, (0..100).map(|_| client(0, 1, 16)).collect());
    close(figures(&simulation, 0).0, SECOND as f64 / echo.request.wire as f64, 1e-3);
}

#[test]
fn queues_of_their_own_help_some_and_cost_the_others() {
    let clients = || {
        let high = (0..2).map(|_| client(0, 16, 1));
        high.chain((0..18).map(|_| client(1, 16, 1))).collect::<Vec<_>>()
    };
    let of = |policy| {
        let mut simulation = simulation(&knobs(policy), 10, ServerKind::Memcached, clients(), 1);
        simulation.run(END).unwrap();
        let queues: Vec<u32> = simulation.queues().map(|(flows, _)| flows).collect();
        ([figures(&simulation, 0), figures(&simulation, 1)], queues)
    };
    let (balance, queues) = of(ReceivePolicy::Balance);
    assert_eq!(queues, [32; 10]);
    let (isolation, queues) = of(ReceivePolicy::Isolation);
    assert_eq!(queues, [48, 48, 48, 48, 48, 48, 8, 8, 8, 8]);
    assert!(isolation[0].0 > 1.2 * balance[0].0, "{isolation:?} {balance:?}");
    assert!(isolation[0].1 < 0.8 * balance[0].1);
    assert!(isolation[1].0 < 0.8 * balance[1].0);
    // With balancing, all queues are busy, and no client has an advantage.
    let work = memcached_queue_work(&ReceiveCosts::DRAGONET);
    close(balance[0].0 + balance[1].0, 10.0 * SECOND as f64 / work, 0.02);
    close(balance[0].0 / 2.0, balance[1].0 / 18.0, 0.05);
}

#[test]
fn what_isolation_gains_follows_from_the_clients_own_work() {
    let clients = || {
        let high = (0..2).map(|_| client(0, 16, 1));
        high.chain((0..18).map(|_| client(1, 16, 1))).collect::<Vec<_>>()
    };
    let rate_with = |policy, work| {
        let knobs = knobs(policy);
        let setting = Setting { groups: 2, ..setting(&knobs, 10, ServerKind::Memcached) };
        let defaults = ReceiveCosts::DRAGONET;
        let bytes = 1190 * defaults.byte;
        let costs = ReceiveCosts { client: work - bytes, ..defaults };
        let mut simulation = ReceiveSimulation::new(&setting, clients(), costs, 1).unwrap();
        simulation.run(END).unwrap();
        figures(&simulation, 0).0
    };
    // See docs/explanation/simulator.md for the gains. With balancing, the queues are the limit. With
    // isolation, the client is the limit.
    let balanced = 10.0 * SECOND as f64 / memcached_queue_work(&ReceiveCosts::DRAGONET) / 20.0;
    for work in [12_000, 15_240, 20_000].map(|nanoseconds| nanoseconds * NANOSECOND) {
        let gain = SECOND as f64 / work as f64 / balanced;
        let found = rate_with(ReceivePolicy::Isolation, work) / rate_with(ReceivePolicy::Balance, work);
        close(found, gain, 0.03);
    }
}

#[test]
fn work_of_the_application_beside_the_narrowest_place_matters_little() {
    let clients = || (0..20).map(|_| client(0, 16, 1)).collect::<Vec<_>>();
    let rate_with = |memcached| {
        let knobs = knobs(ReceivePolicy::Balance);
        let setting = setting(&knobs, 10, ServerKind::Memcached);
        let costs = ReceiveCosts { memcached, ..ReceiveCosts::DRAGONET };
        let mut simulation = ReceiveSimulation::new(&setting, clients(), costs, 1).unwrap();
        simulation.run(END).unwrap();
        figures(&simulation, 0).0
    };
    close(rate_with(5_000 * NANOSECOND), rate_with(500 * NANOSECOND), 0.02);
}

#[test]
fn the_same_seed_gives_the_same_and_another_one_another() {
    let of = |seed| {
        let clients = (0..6).map(|_| client(0, 8, 1)).collect();
        let mut simulation =
            simulation(&knobs(ReceivePolicy::Balance), 4, ServerKind::Memcached, clients, seed);
        simulation.run(END).unwrap();
        let counts: Vec<Vec<u128>> = simulation.clients().map(|(_, _, ns, _)| ns.to_vec()).collect();
        (counts, simulation.responses(0).collect::<Vec<_>>(), simulation.account())
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn a_client_that_goes_leaves_nothing_behind() {
    let gone = Time(200 * MILLISECOND);
    let leaving = ClientSpec { until: gone, ..client(1, 16, 1) };
    let mut simulation = simulation(
        &knobs(ReceivePolicy::Balance),
        10,
        ServerKind::Memcached,
        vec![client(0, 16, 1), leaving],
        1,
    );
    simulation.run(gone).unwrap();
    assert_eq!(simulation.queues().map(|(flows, _)| flows).sum::<u32>(), 32);
    simulation.run(END).unwrap();
    let account = simulation.account();
    assert_eq!((account.sent - account.answered, account.under_way), (16, 16));
    assert_eq!(simulation.queues().map(|(flows, _)| flows).sum::<u32>(), 16);
    let (_, counts, ..) = simulation.clients().nth(1).unwrap();
    // The client was present for 150 ms of the measured 500 ms.
    close(counts.iter().sum::<u64>() as f64, 0.15 * figures(&simulation, 0).0, 0.02);
}

#[test]
fn new_flows_lie_where_the_hash_puts_them_until_the_nic_is_configured() {
    let mut steering = Steering::new(&knobs(ReceivePolicy::Balance), 10).unwrap();
    (0..64).for_each(|flow| steering.declare(tuple_of(flow % 4, flow / 4), false));
    let loads = |steering: &Steering, flows: std::ops::Range<u32>| {
        let mut loads = [0_u32; 10];
        flows.for_each(|flow| loads[usize::from(steering.queue(flow))] += 1);
        loads
    };
    (0..40).for_each(|flow| steering.arrive(flow));
    // For UDP, the NIC hashes only the addresses, and there are four addresses.
    assert!(loads(&steering, 0..40).iter().filter(|load| **load > 0).count() <= 4);
    steering.configure().unwrap();
    assert_eq!(loads(&steering, 0..40), [4; 10]);
    (40..64).for_each(|flow| steering.arrive(flow));
    assert_eq!(loads(&steering, 0..40), [4; 10]);
    assert!(loads(&steering, 40..64).iter().filter(|load| **load > 0).count() <= 4);
    steering.configure().unwrap();
    let all = loads(&steering, 0..64);
    assert!(all.iter().all(|load| (6..=7).contains(load)), "{all:?}");
    let filters = steering.filters();
    steering.leave(0..20);
    assert_eq!((steering.filters(), steering.misplaced()), (filters, 0));
}

/// Returns a simulation whose rings are too short for the backlog.
fn overflowing(timeout: Option<Span>) -> ReceiveSimulation {
    let knobs = ReceiveKnobs { ring: 8, ..knobs(ReceivePolicy::Balance) };
    let setting = Setting { timeout, ..setting(&knobs, 1, ServerKind::Echo) };
    let clients = (0..4).map(|_| client(0, 1, 16)).collect();
    let mut simulation = ReceiveSimulation::new(&setting, clients, ReceiveCosts::DRAGONET, 1).unwrap();
    simulation.run(END).unwrap();
    simulation
}

#[test]
fn what_a_ring_cannot_hold_is_lost_and_given_up_after_the_time_for_that() {
    // Without a timeout, clients do not replace lost requests. The rest of the 64 requests remains in
    // progress.
    let never = overflowing(None);
    let account = never.account();
    assert_eq!((account.lost > 20, account.given_up), (true, 0), "{account:?}");
    assert_eq!(account.sent, account.answered + account.under_way + account.lost);
    assert_eq!(account.under_way, 64 - account.lost);
    // With a timeout, the client creates another request after each loss, and the queue is fully busy.
    let retrying = overflowing(Some(5 * MILLISECOND));
    let account = retrying.account();
    assert!(account.lost > 200 && account.lost - account.given_up <= 64, "{account:?}");
    assert_eq!(account.sent, account.answered + account.under_way + account.lost);
    let work = queue_work(&ReceiveCosts::DRAGONET, &echo());
    close(figures(&retrying, 0).0, SECOND as f64 / work as f64, 0.01);
    // A ring that holds all requests loses no request.
    assert_eq!(run_echo(1, (0..4).map(|_| client(0, 1, 16)).collect()).account().lost, 0);
}

#[test]
fn who_works_is_busy() {
    let costs = ReceiveCosts::DRAGONET;
    let simulation = run_echo(2, (0..8).map(|_| client(0, 1, 16)).collect());
    // Both queues are always busy, but their application threads are not.
    let work = queue_work(&costs, &echo());
    let application = costs.answering(ServerKind::Echo, &echo()) as f64 / work as f64;
    close(simulation.busy_cores(), 2.0 * (1.0 + application), 0.01);
    let lone = run_echo(2, vec![client(0, 1, 1)]);
    let share = (work + costs.answering(ServerKind::Echo, &echo())) as f64 / unloaded(&costs) as f64;
    close(lone.busy_cores(), share, 0.01);
}

#[test]
fn smaller_messages_cost_what_their_bytes_save() {
    let rate_of = |bytes| {
        let knobs = ReceiveKnobs { message: ByteSize::from_bytes(bytes), ..knobs(ReceivePolicy::Balance) };
        let clients = (0..4).map(|_| client(0, 1, 16)).collect();
        let mut simulation = simulation(&knobs, 1, ServerKind::Echo, clients, 1);
        simulation.run(END).unwrap();
        figures(&simulation, 0).0
    };
    let costs = ReceiveCosts::DRAGONET;
    let saved = 2 * 960 * costs.byte;
    let work = queue_work(&costs, &echo());
    close(rate_of(64) / rate_of(1024), work as f64 / (work - saved) as f64, 1e-3);
}

#[test]
fn a_nic_and_a_policy_of_ones_own_are_taken_and_their_mistakes_told() {
    let own = |origin: &str, text: &str| Supplied { origin: origin.to_owned(), text: Some(text.to_owned()) };
    let model =
        include_str!("../../../receive/models/rss-only.toml").replace("entries = 128", "entries = 64");
    let policy = "policy = \"balance\"\n[[class]]\nname = \"high\"\nqueues = [1]\n";
    let knobs = |nic: &str, policy: &str| ReceiveKnobs {
        nic: ReceiveNic::Own(own("mine.toml", nic)),
        policy: ReceivePolicy::Own(own("policy.toml", policy)),
        ..knobs(ReceivePolicy::None)
    };
    assert!(Steering::new(&knobs(&model, policy), 4).is_ok());
    let filters = include_str!("../../../receive/models/ntuple.toml");
    let mut steering = Steering::new(&knobs(filters, policy), 4).unwrap();
    (0..16).for_each(|flow| steering.declare(tuple_of(flow % 4, flow / 4), flow < 4));
    (0..16).for_each(|flow| steering.arrive(flow));
    steering.configure().unwrap();
    assert!((0..16).all(|flow| (steering.queue(flow) == 1) == (flow < 4)));
    let told = |nic: &str, policy: &str| Steering::new(&knobs(nic, policy), 4).err().unwrap();
    assert!(told(filters, "policy = \"fare\"").starts_with("policy.toml:1:10: "));
    assert!(told("schema = 1\nfoo = 2\n", policy).starts_with("mine.toml:"));
    let unread = ReceiveNic::Own(Supplied { origin: "mine.toml".to_owned(), text: None });
    let error = Steering::new(&ReceiveKnobs { nic: unread, ..knobs("", policy) }, 4).err().unwrap();
    assert_eq!(error, "mine.toml was not read");
}

#[test]
fn every_nic_of_a_scenario_has_a_model() {
    for nic in ReceiveNic::all() {
        for policy in [ReceivePolicy::None, ReceivePolicy::Balance, ReceivePolicy::Isolation] {
            let named = format!("{nic} {policy}");
            let knobs = ReceiveKnobs { nic: nic.clone(), ..knobs(policy) };
            assert!(Steering::new(&knobs, 10).is_ok(), "{named}");
        }
    }
    let error = Steering::new(&knobs(ReceivePolicy::Balance), 1_000).err().unwrap();
    assert!(error.contains("128"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_is_lost_and_no_limit_is_passed(
        shape in prop::collection::vec((1_u32..6, 1_u32..6, 0_usize..2, 0_u64..40, 1_u64..60), 1..8),
        queues in 5_u32..12,
        ring in 1_u32..40,
        isolate: bool,
        memcached: bool,
        seed: u64,
    ) {
        let clients: Vec<ClientSpec> = shape
            .iter()
            .enumerate()
            .map(|(number, (flows, outstanding, group, from, stay))| ClientSpec {
                host: number as u32 % 3,
                from: Time(from * MILLISECOND),
                until: Time((from + stay) * MILLISECOND),
                ..client(*group, *flows, *outstanding)
            })
            .collect();
        let policy = if isolate { ReceivePolicy::Isolation } else { ReceivePolicy::Balance };
        let server = if memcached { ServerKind::Memcached } else { ServerKind::Echo };
        let knobs = ReceiveKnobs { ring, reaction: Nanoseconds::from_millis(7), ..knobs(policy) };
        let mut simulation = simulation(&knobs, queues, server, clients.clone(), seed);
        let most_waiting: u64 = clients.iter().map(|spec| u64::from(spec.flows * spec.outstanding)).sum();
        for at in [1, 10, 20, 33, 50, 70] {
            simulation.run(Time(at * MILLISECOND)).unwrap();
            let account = simulation.account();
            prop_assert_eq!(account.sent, account.answered + account.under_way + account.lost);
            prop_assert!(account.given_up <= account.lost);
            let most: u64 = clients.iter().map(|spec| u64::from(spec.flows * spec.outstanding)).sum();
            prop_assert!(account.under_way <= most);
        }
        // A ring loses requests only if more requests can be outstanding than the ring holds.
        let lost = simulation.account().lost;
        prop_assert!(lost == 0 || most_waiting > u64::from(ring));
        let costs = ReceiveCosts::DRAGONET;
        for (spec, counts, ..) in simulation.clients() {
            let present = spec.until.min(END).since(spec.from.max(BEGIN));
            let work = if memcached { costs.client } else { client_work(&costs, &echo()) };
            prop_assert!(counts.iter().sum::<u64>() <= present / work + 1);
        }
        let all: u64 = simulation.clients().map(|(_, counts, ..)| counts.iter().sum::<u64>()).sum();
        let work = costs.receive + costs.transmit;
        let most: u64 = clients.iter().map(|spec| u64::from(spec.flows * spec.outstanding)).sum();
        // A client may read responses that were queued before the measurement began.
        prop_assert!(all <= u64::from(queues) * (END.since(BEGIN) / work + 1) + most);
        // Each queue has its own thread and an application thread.
        prop_assert!(simulation.busy_cores() <= 2.0 * f64::from(queues));
        simulation.run(END).unwrap();
        prop_assert_eq!(simulation.account().under_way, 0);
        prop_assert_eq!(simulation.configuration().1, 0);
    }
}
