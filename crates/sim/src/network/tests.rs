//! Tests of clusters: results computed by hand, slices of different lengths, and arbitrary transfers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::parse;
use proptest::prelude::*;

use super::*;
use crate::error::{SimulationError, TopologyError};
use crate::host::Simulation;
use crate::parameters::Parameters;
use crate::settings::Settings;
use crate::time::{MICROSECOND, MILLISECOND, NANOSECOND, SECOND, Time};

const RATE: u64 = 10_000_000_000;
const LATENCY: u64 = MICROSECOND;
/// Transmission time of a full packet of 1538 bytes at 10 Gbit/s.
const PACKET: u64 = 1_230_400;
const SWITCH: SwitchConfig = SwitchConfig { buffer_bytes: 12_000_000, alpha_exponent: 0 };

fn settings(variant: &str) -> Settings {
    let (_, text) = bundled().iter().find(|(name, _)| *name == "shuffle-6").unwrap();
    let scenario = parse(text, "test", variant_tables()).unwrap();
    let variant = scenario.variant(variant).unwrap();
    Settings::new(&scenario, variant, scenario.link.rate, &Parameters::default())
}

fn transfer(from: u32, to: u32, bytes: u64) -> Transfer {
    Transfer { from, to, bytes }
}

fn cluster(topology: &Topology, variant: &str, transfers: &[Transfer], seed: u64) -> Cluster {
    let mut cluster =
        Cluster::new(topology, &settings(variant), &Parameters::default(), transfers, seed).unwrap();
    cluster.start(seed, MILLISECOND);
    cluster
}

fn star(hosts: u32, switch: SwitchConfig) -> Topology {
    Topology::star(hosts, switch, RATE, LATENCY)
}

fn shuffle(hosts: u32, bytes: u64) -> Vec<Transfer> {
    let others = |from: u32| (0..hosts).filter(move |to| *to != from);
    (0..hosts).flat_map(|from| others(from).map(move |to| transfer(from, to, bytes))).collect()
}

fn outcome(cluster: &Cluster) -> Vec<(Time, Time, u64)> {
    (0..cluster.flows())
        .map(|flow| {
            let (start, completed) = cluster.times(flow);
            (start, completed, cluster.received(flow).0)
        })
        .chain([(Time(cluster.packets()), Time(cluster.payload()), cluster.drops())])
        .collect()
}

#[test]
fn a_packet_takes_every_transmission_and_every_latency() {
    let topology = star(2, SWITCH);
    // Start after the first interrupt interval, so that the first interrupt is immediate.
    let seed = (1..100)
        .find(|seed| {
            cluster(&topology, "cmax", &[transfer(0, 1, 1448)], *seed).times(0).0.0 > 100 * MICROSECOND
        })
        .unwrap();
    let mut one_hop = cluster(&topology, "cmax", &[transfer(0, 1, 1448)], seed);
    assert_eq!(one_hop.run(Time(10 * MILLISECOND)), Ok(true));
    let (start, completed) = one_hop.times(0);
    assert_eq!(completed.since(start), 2 * (PACKET + LATENCY));

    let links = vec![
        Link { from: Node::Host(0), to: 0, rate_bps: RATE, latency: 700 * NANOSECOND },
        Link { from: Node::Switch(0), to: 1, rate_bps: 4 * RATE, latency: 5 * MICROSECOND },
        Link { from: Node::Host(1), to: 1, rate_bps: RATE, latency: 900 * NANOSECOND },
    ];
    let topology = Topology { hosts: 2, switches: vec![SWITCH; 2], links };
    for (from, to) in [(0, 1), (1, 0)] {
        let mut two_hops = cluster(&topology, "cmax", &[transfer(from, to, 1448)], seed);
        assert_eq!(two_hops.run(Time(10 * MILLISECOND)), Ok(true));
        let (start, completed) = two_hops.times(0);
        assert!(start.0 > 60 * MICROSECOND);
        assert_eq!(completed.since(start), 2 * PACKET + PACKET / 4 + 6_600 * NANOSECOND, "{from} to {to}");
    }
}

#[test]
fn a_flow_that_is_alone_is_as_fast_as_between_two_hosts() {
    let bytes = 60_000_000;
    let mut cluster = cluster(&star(2, SWITCH), "cmax", &[transfer(0, 1, bytes)], 3);
    assert_eq!(cluster.run(Time(SECOND)), Ok(true));
    let (start, completed) = cluster.times(0);
    assert_eq!((cluster.packets(), cluster.drops()), (bytes.div_ceil(1448), 0));
    assert_eq!((cluster.payload(), cluster.received(0)), (bytes, (bytes, 0)));

    let settings = Settings { flows: 1, ..settings("cmax") };
    let mut two = Simulation::new(settings, Parameters::default(), 3, Time::NEVER, 1, 0).unwrap();
    two.start(3, 1);
    two.run(Time(completed.since(start))).unwrap();
    let between_two = two.snapshot().flows[0].0;
    assert!(between_two.abs_diff(bytes) < bytes / 50, "{between_two}");
}

#[test]
fn the_length_of_a_slice_changes_nothing() {
    for variant in ["cvanilla", "cmax", "dqa+dqwa"] {
        // Make the buffer overflow, so that the test covers loss recovery.
        let switch = SwitchConfig { buffer_bytes: 300_000, ..SWITCH };
        let run = |parts: u64| {
            let mut cluster = cluster(&star(4, switch), variant, &shuffle(4, 700_000), 5);
            cluster.divide_slice(parts);
            assert_eq!(cluster.run(Time(30 * SECOND)), Ok(true));
            assert!(cluster.drops() > 0);
            outcome(&cluster)
        };
        let whole = run(1);
        assert_eq!(run(3), whole, "{variant}");
        assert_eq!(run(1), whole, "{variant}");
    }
}

#[test]
fn seeds_differ() {
    let run = |seed| {
        let mut cluster = cluster(&star(3, SWITCH), "cmax", &shuffle(3, 200_000), seed);
        assert_eq!(cluster.run(Time(SECOND)), Ok(true));
        outcome(&cluster)
    };
    assert_ne!(run(1), run(2));
}

#[test]
fn an_incast_shares_the_port_and_fills_it() {
    let bytes = 2_000_000;
    let transfers: Vec<Transfer> = (1..6).map(|from| transfer(from, 0, bytes)).collect();
    let mut cluster = cluster(&star(6, SWITCH), "cmax", &transfers, 1);
    assert_eq!(cluster.run(Time(10 * SECOND)), Ok(true));
    let last = (0..5).map(|flow| cluster.times(flow).1).max().unwrap();
    let wire = cluster.packets() * PACKET;
    // Slow start and at most two interrupt intervals add to the port's transmission time.
    assert!(last.0 >= wire && last.0 < wire + 3 * MILLISECOND, "{last:?} {wire}");
    assert!((0..5).all(|flow| cluster.received(flow).0 == bytes));
}

#[test]
fn what_never_arrives_is_an_error() {
    let nothing_fits = SwitchConfig { buffer_bytes: 1000, ..SWITCH };
    let mut cluster = cluster(&star(2, nothing_fits), "cmax", &[transfer(0, 1, 10_000)], 1);
    let error = cluster.run(Time(10_000 * SECOND)).unwrap_err();
    assert!(
        matches!(error, SimulationError::NoProgress { unfinished: 1, wait_s: 240, at_us } if at_us >= 240_000_000),
        "{error}"
    );
}

/// Checks that duplicates of a flow's last, short packet do not count as progress. The full packets do
/// not fit into the switch's buffer.
#[test]
fn what_arrives_again_and_again_is_no_progress() {
    let only_short_ones_fit = SwitchConfig { buffer_bytes: 1000, ..SWITCH };
    let mut cluster = cluster(&star(2, only_short_ones_fit), "cmax", &[transfer(0, 1, 5 * 1448 + 300)], 1);
    let error = cluster.run(Time(10_000 * SECOND)).unwrap_err();
    assert!(matches!(error, SimulationError::NoProgress { unfinished: 1, .. }), "{error}");
    assert_eq!((cluster.received(0).0, cluster.distinct_bytes()), (0, 300));
}

/// Checks a rate at which one packet takes minutes. Timeouts precede acknowledgements, but the run
/// makes progress.
#[test]
fn a_slow_line_is_no_standstill() {
    let settings = Settings { rate: 100, ..settings("cmax") };
    let topology = Topology::star(2, SWITCH, settings.rate, LATENCY);
    let transfers = [transfer(0, 1, 20_000), transfer(1, 0, 20_000)];
    let mut cluster = Cluster::new(&topology, &settings, &Parameters::default(), &transfers, 1).unwrap();
    cluster.start(1, MILLISECOND);
    assert_eq!(cluster.run(Time(100_000 * SECOND)), Ok(true));
    assert_eq!(cluster.distinct_bytes(), 40_000);
}

#[test]
fn transfers_need_hosts_and_paths() {
    let make = |transfers: &[Transfer]| {
        Cluster::new(&star(2, SWITCH), &settings("cmax"), &Parameters::default(), transfers, 1).err()
    };
    for (from, to) in [(0, 0), (0, 2), (2, 0)] {
        let error = make(&[transfer(from, to, 1)]);
        assert_eq!(error, Some(SimulationError::Topology(TopologyError::Transfer { from, to })));
    }
    assert_eq!(make(&[]), None);
}

/// Creates leaves with two hosts each. Each leaf has one link to each of two spines.
fn leaf_spine(leaves: u32, spine_rate: u64, buffer_bytes: u64) -> Topology {
    let hosts = (0..2 * leaves).map(|host| Link {
        from: Node::Host(host),
        to: host / 2,
        rate_bps: RATE,
        latency: LATENCY * u64::from(1 + host % 2),
    });
    let spines = (0..2 * leaves).map(|number| Link {
        from: Node::Switch(number / 2),
        to: leaves + number % 2,
        rate_bps: spine_rate,
        latency: LATENCY / 2,
    });
    Topology {
        hosts: 2 * leaves,
        switches: vec![SwitchConfig { buffer_bytes, alpha_exponent: 1 }; leaves as usize + 2],
        links: hosts.chain(spines).collect(),
    }
}

/// Runs transfers `(from, distance, bytes)` between four hosts on two leaves, with slices divided into
/// `parts`. Checks that all transfers complete, and returns the outcome.
fn through_spines(
    pairs: &[(u32, u32, u64)],
    buffer_bytes: u64,
    spine_rate: u64,
    seed: u64,
    parts: u64,
) -> Vec<(Time, Time, u64)> {
    let transfers: Vec<Transfer> =
        pairs.iter().map(|&(from, distance, bytes)| transfer(from, (from + distance) % 4, bytes)).collect();
    let mut cluster = cluster(&leaf_spine(2, spine_rate, buffer_bytes), "dqa", &transfers, seed);
    cluster.divide_slice(parts);
    assert_eq!(cluster.run(Time(200 * SECOND)), Ok(true));
    assert_eq!(cluster.distinct_bytes(), transfers.iter().map(|transfer| transfer.bytes).sum::<u64>());
    outcome(&cluster)
}

/// Checks packets of two hosts that reach a full switch in the same picosecond: the slices do not
/// determine which packet is dropped.
#[test]
fn packets_that_arrive_at_once_have_an_order() {
    let pairs = [
        (3, 1, 85_100),
        (0, 1, 1),
        (3, 1, 116_087),
        (2, 3, 79_640),
        (2, 2, 17_377),
        (0, 1, 1),
        (2, 1, 1),
        (3, 1, 44_889),
    ];
    let run = |parts| through_spines(&pairs, 111_136, RATE / 3, 288, parts);
    assert_eq!(run(1), run(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks transfers over two leaves and two spines with different rates and buffers. All transfers
    /// must complete despite drops, and the length of the slices must not change the result.
    #[test]
    fn everything_arrives(
        pairs in prop::collection::vec((0_u32..4, 1_u32..4, 1_u64..150_000), 1..12),
        buffer_bytes in 30_000_u64..400_000,
        spine_rate in prop::sample::select(vec![RATE, RATE / 3, 7 * RATE]),
        seed in 0_u64..1000,
    ) {
        let run = |parts: u64| through_spines(&pairs, buffer_bytes, spine_rate, seed, parts);
        let whole = run(1);
        let mut sorted = pairs.clone();
        sorted.sort_by_key(|&(from, ..)| from);
        for (&(_, _, bytes), seen) in sorted.iter().zip(&whole) {
            prop_assert_eq!(seen.2, bytes);
            let least = bytes * 800 + 2 * LATENCY;
            prop_assert!(seen.1.since(seen.0) >= least, "{:?}", seen);
        }
        prop_assert_eq!(run(2), whole);
    }
}
