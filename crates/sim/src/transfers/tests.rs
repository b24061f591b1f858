#![allow(clippy::unwrap_used, clippy::panic)]

use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{TransferKnobs, parse};
use evenkeel_model::units::{ByteSize, Nanoseconds};

use super::settings::{ReceiverCores, Settings};
use super::simulation::{Simulation, Snapshot};
use crate::tcp::{CongestionControl, Profile};
use crate::time::{MICROSECOND, MILLISECOND, SECOND, Time};

fn settings(scenario: &str, variant: &str, change: impl FnOnce(&mut TransferKnobs)) -> Settings {
    let (_, text) = bundled().iter().find(|(name, _)| *name == scenario).unwrap();
    let scenario = parse(text, "test", variant_tables()).unwrap();
    let variant = scenario.all_variants().find(|found| found.name == variant).unwrap();
    let mut knobs = variant.transfers().unwrap().clone();
    change(&mut knobs);
    Settings::new(&knobs, scenario.link.rate, vec![CongestionControl::Cubic], Profile::Linux6_18).unwrap()
}

fn measure(settings: Settings, seed: u64, warmup: u64, milliseconds: u64) -> (Snapshot, Snapshot) {
    let begin = Time(warmup * MILLISECOND);
    let mut simulation = Simulation::new(settings, seed, begin, SECOND, 0);
    simulation.run(begin).unwrap();
    let before = simulation.snapshot();
    simulation.run(begin + milliseconds * MILLISECOND).unwrap();
    (before, simulation.snapshot())
}

fn gbps((before, after): &(Snapshot, Snapshot)) -> f64 {
    let bytes: u64 = after.read.iter().zip(&before.read).map(|(after, before)| after - before).sum();
    bytes as f64 * 8.0 / 1e9 / (after.at.seconds() - before.at.seconds())
}

fn busy_cores((before, after): &(Snapshot, Snapshot)) -> f64 {
    let busy: u64 = after.busy.iter().zip(&before.busy).map(|(after, before)| after - before).sum();
    busy as f64 / after.at.since(before.at) as f64
}

fn assert_within(found: f64, expected: f64, share: f64, what: &str) {
    assert!((found / expected - 1.0).abs() <= share, "{what}: {found:.2} instead of {expected}");
}

/// Checks that the costs reproduce the figures that calibrated them.
#[test]
fn calibrated_figures_hold() {
    for (variant, expected) in [("none", 4.8), ("tso-gro+jumbo+arfs", 41.2)] {
        let found = measure(settings("host-stack", variant, |_| {}), 1, 300, 300);
        assert_within(gbps(&found) / busy_cores(&found), expected, 0.05, variant);
    }
    let found = measure(settings("tcp100g-mtu", "mtu-9000", |_| {}), 1, 300, 300);
    assert_within(gbps(&found), 43.0, 0.05, "one flow with MTU 9000");
}

/// Checks predictions of figures that were not used for calibration.
#[test]
fn published_figures_are_predicted() {
    let found = measure(settings("host-stack", "tso-gro", |_| {}), 1, 300, 300);
    assert_within(gbps(&found) / busy_cores(&found), 15.0, 0.25, "TSO and GRO");
    let found = measure(settings("tcp100g-mtu", "mtu-1500", |_| {}), 1, 300, 300);
    assert_within(gbps(&found), 25.0, 0.2, "one flow with MTU 1500");
    let found = measure(settings("tcp100g-cores", "distribution-2", |_| {}), 1, 500, 300);
    assert_within(gbps(&found), 100.0, 0.05, "three flows");
}

/// Checks a reader on the other node. The interconnect limits the reader, and flow control prevents
/// losses.
#[test]
fn a_remote_reader_is_slowed_down_without_loss() {
    let found = measure(settings("tcp100g-placement", "case-3", |_| {}), 1, 500, 300);
    let gbps = gbps(&found);
    assert!((40.0..70.0).contains(&gbps), "{gbps}");
    assert_eq!(found.1.drops_since(&found.0), Default::default());
}

/// TCP's flow control does not protect a ring: a small ring overflows, and the application continues to
/// read.
#[test]
fn a_small_ring_overflows() {
    let drops = |ring| {
        let change = |knobs: &mut TransferKnobs| (knobs.ring, knobs.pacing) = (ring, false);
        let found = measure(settings("tcp100g-cores", "distribution-3", change), 2, 0, 500);
        assert!(gbps(&found) > 1.0, "ring {ring}");
        let drops = found.1.drops_since(&found.0);
        let retransmitted: u64 = found.1.retransmitted.iter().sum();
        assert_eq!(
            drops.total() > 0,
            retransmitted > 0,
            "ring {ring}: {drops:?}, {retransmitted} sent again"
        );
        drops.ring
    };
    assert!(drops(64) > drops(8192));
}

const TWO_CORES: &str = "tcp100g-two-cores";

/// Checks that the work of the application limits the throughput. Only in the variant `same`, the
/// application shares a core with the packet processing.
#[test]
fn the_application_s_work_limits_the_throughput() {
    let gbps = |variant| gbps(&measure(settings(TWO_CORES, variant, |_| {}), 1, 200, 500));
    // 3 ms for each MiB.
    let work_alone = 8.0 * f64::from(1 << 20) / 3e6;
    let (same, apart) = (gbps("same"), gbps("apart"));
    assert!((0.4 * work_alone..work_alone).contains(&apart), "{apart} Gbit/s");
    assert!(same < apart, "{same} and {apart} Gbit/s");
}

/// Each read returns at most 128 KiB, and takes at least 20 ms.
#[test]
fn an_application_that_sleeps_in_a_read_reads_once_per_sleep() {
    let found = measure(settings(TWO_CORES, "stall", |_| {}), 1, 200, 500);
    let most = 8.0 * f64::from(128 << 10) / 20e6;
    let gbps = gbps(&found);
    assert!(gbps > 0.0 && gbps <= 1.05 * most, "{gbps} Gbit/s, at most {most}");
    assert!(busy_cores(&found) < 0.2, "the core is free during the sleep");
}

/// GRO cannot merge packets that are as long as its limit.
#[test]
fn the_largest_mtu_is_received() {
    let mtu = ByteSize::from_bytes(65_535);
    let found = measure(settings("tcp100g-mtu", "mtu-9000", |knobs| knobs.mtu = mtu), 1, 50, 50);
    assert!(gbps(&found) > 10.0);
}

#[test]
fn equal_seeds_give_equal_results() {
    let run = |seed| {
        let found = measure(settings("tcp100g-placement", "case-1", |_| {}), seed, 50, 50);
        (found.1.read, found.1.retransmitted, found.1.packets)
    };
    assert_eq!(run(3), run(3));
}

/// Checks listed cores in place of names: the first three cores of the second node read, and all of its
/// cores serve interrupts.
#[test]
fn listed_cores_do_the_work_of_named_ones() {
    let named = settings("tcp100g-placement", "case-1", |_| {});
    let cores = ReceiverCores {
        queues: (8..16).collect(),
        indirection: (0..8).collect(),
        readers: (8..11).collect(),
    };
    let listed = Settings { receiver_cores: Some(cores), ..named.clone() };
    let run = |settings: Settings| measure(settings, 3, 50, 50).1.read;
    assert_eq!(run(named.clone()), run(listed.clone()));
    // The table's only entry selects the core of the first reader.
    let queues = ReceiverCores { queues: vec![8], indirection: vec![0], readers: vec![8] };
    let slow = Settings { receiver_cores: Some(queues), ..listed };
    assert!(gbps(&measure(slow, 3, 50, 50)) < 0.7 * gbps(&measure(named, 3, 50, 50)));
}

/// Packets in flight to another node do not delay the readers of that node if the acknowledgements take
/// most of the round-trip time.
#[test]
fn a_long_round_trip_does_not_hold_up_readers_on_another_node() {
    let change = |knobs: &mut TransferKnobs| knobs.round_trip = Nanoseconds::from_millis(1);
    let far = settings("tcp100g-placement", "case-2", change);
    let late = Settings { forward: 5 * MICROSECOND, ..far.clone() };
    assert!(gbps(&measure(late, 1, 200, 200)) > 5.0 * gbps(&measure(far, 1, 200, 200)));
}

/// Checks that the series have a row for each bin, and that the figures agree with the state of TCP.
/// Without the knob, there are no series.
#[test]
fn the_state_of_tcp_is_recorded_in_bins() {
    let run = |tcp_series| {
        let change = |knobs: &mut TransferKnobs| {
            (knobs.tcp_series, knobs.reverse_delay) = (tcp_series, Nanoseconds::from_millis(2));
        };
        let settings = settings("tcp100g-mtu", "mtu-9000", change);
        let begin = Time(20 * MILLISECOND);
        let mut simulation = Simulation::new(settings, 1, begin, 10 * MILLISECOND, 3);
        simulation.run(Time(100 * MILLISECOND)).unwrap();
        simulation.take_tcp_bins()
    };
    assert_eq!(run(false).len(), 0);
    let flows = run(true);
    assert_eq!(flows.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    for bin in &flows[0] {
        assert!(bin.rtt_ns >= 2_040_000 && bin.rtt_most_ns >= bin.rtt_ns, "{bin:?}");
        assert!(bin.window >= bin.in_flight && bin.in_flight > 0 && bin.pacing_bps > 0, "{bin:?}");
    }
}

/// Checks that slow senders limit a connection even with a fast receiver.
#[test]
fn senders_may_have_another_machine() {
    let settings = settings("tcp100g-mtu", "mtu-9000", |_| {});
    let mut sender = settings.machine.clone();
    (sender.turbo_hz, sender.all_cores_hz) = (sender.turbo_hz / 10.0, sender.all_cores_hz / 10.0);
    let slow = Settings { sender: Some(sender), ..settings.clone() };
    assert!(gbps(&measure(slow, 1, 100, 100)) < 0.5 * gbps(&measure(settings, 1, 100, 100)));
}
