//! Short simulations of points from the bundled scenarios.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_model::qdisc::{Catalogue, Classifier, FilterRules};
use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{
    BulkTenants, Offloads, OnOff, Probes, Scenario, Sets, TenantPoint, Variant, parse,
};
use evenkeel_model::units::{BitRate, ByteSize, Nanoseconds};
use evenkeel_model::world::{Job, Observer, RawLine, RawRepeat, RawTenants, World};

use proptest::prelude::*;

use crate::tcp::Profile;
use crate::world::SimWorld;

const GIGABIT: u64 = 1_000_000_000;

struct Unobserved;

impl Observer for Unobserved {
    fn progress(&self, _: f64, _: &str) {}
    fn remark(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

fn scenario(name: &str) -> Scenario {
    let (_, text) = bundled().iter().find(|(found, _)| *found == name).unwrap();
    parse(text, name, variant_tables()).unwrap()
}

fn bulk(count: u32, length: u64) -> BulkTenants {
    BulkTenants { count, length: ByteSize::from_bytes(length), on_off: None }
}

fn point(setup: &str, bulk: &[BulkTenants]) -> TenantPoint {
    TenantPoint {
        qdisc: Catalogue::bundled().get(setup).unwrap(),
        coordinates: Vec::new(),
        bulk: bulk.to_vec(),
        probes: None,
        filter_rules: None,
        offloads: Offloads { segmentation: true, aggregation: false },
        pinned: false,
    }
}

fn with_probes(point: TenantPoint, count: u32, message: u64) -> TenantPoint {
    TenantPoint { probes: Some(Probes { count, message: ByteSize::from_bytes(message), slo: None }), ..point }
}

/// Runs a repeat of 200 ms in bins of 1 ms, behind a line of this rate in bit/s, or without a line.
fn repeat(point: &TenantPoint, line: Option<u64>, seed: u64) -> RawRepeat {
    repeat_for(point, line, seed, 200)
}

fn repeat_for(point: &TenantPoint, line: Option<u64>, seed: u64, milliseconds: u64) -> RawRepeat {
    let scenario = scenario(if line.is_some() { "tc-priority" } else { "tc-clients" });
    let variant = Variant { sets: Sets::Tenants(Box::new(point.clone())), ..scenario.variants[0].clone() };
    let mut world = SimWorld::new(Profile::Linux6_18);
    world.assess(&scenario, &variant).unwrap();
    let job = Job {
        scenario: &scenario,
        variant: &variant,
        repeat: 0,
        seed,
        rate: BitRate::from_bits_per_second(line.unwrap_or(100 * GIGABIT)),
        warmup: Nanoseconds::from_millis(milliseconds / 2),
        duration: Nanoseconds::from_millis(milliseconds),
        bin: Nanoseconds::from_millis(1),
    };
    World::repeat(&mut world, &job, &Unobserved).unwrap()
}

fn payload(raw: &RawRepeat) -> f64 {
    raw.flows.iter().map(|flow| flow.payload_bytes as f64).sum()
}

fn jain(raw: &RawRepeat) -> f64 {
    let squares: f64 = raw.flows.iter().map(|flow| (flow.payload_bytes as f64).powi(2)).sum();
    payload(raw).powi(2) / squares / raw.flows.len() as f64
}

fn tenants(raw: &RawRepeat) -> &RawTenants {
    raw.tenants.as_ref().unwrap()
}

fn line(raw: &RawRepeat) -> &RawLine {
    tenants(raw).line.as_ref().unwrap()
}

fn used(raw: &RawRepeat) -> f64 {
    let line = line(raw);
    line.bytes.iter().sum::<u64>() as f64 / (line.capacity_bytes * line.bytes.len() as f64)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn the_same_seed_gives_the_same_and_another_one_not() {
    let point = with_probes(point("fq_codel", &[bulk(5, 4096)]), 2, 3000);
    for line in [Some(GIGABIT), None] {
        let (first, again) = (repeat(&point, line, 7), repeat(&point, line, 7));
        assert_eq!(first, again);
        assert_ne!(first.flows, repeat(&point, line, 8).flows);
    }
}

/// Checks that the bytes of the flows, the qdisc and the line agree, and that all fields are set.
#[test]
fn bytes_are_conserved_in_every_setup() {
    for name in Catalogue::bundled().names() {
        let raw =
            repeat(&with_probes(point(name, &[bulk(3, 4096), bulk(2, 65_536)]), 1, 64), Some(GIGABIT), 1);
        let found = tenants(&raw);
        let of_line: u64 = line(&raw).bytes.iter().sum();
        let of_root = found.qdiscs[0].bytes;
        let of_flows: u64 = raw.flows.iter().flat_map(|flow| &flow.bytes).sum();
        // The root also counts segments that the line has begun to send, and probes.
        assert!(of_root.abs_diff(of_line) <= 65_000, "{name}: {of_root} {of_line}");
        let probes = of_line - of_flows;
        assert!(of_flows <= of_line && probes < of_line / 20, "{name}: {of_flows} of {of_line}");
        let leaves: u64 = found.qdiscs[1..].iter().map(|qdisc| qdisc.bytes).sum();
        assert!(leaves <= 2 * of_root, "{name}");
        assert_eq!(found.processes.len(), 2 * 6, "{name}");
        assert_eq!((found.processors.len(), raw.flows.len()), (2, 5), "{name}");
        let processes: f64 = found.processes.iter().map(|process| process.user_s + process.system_s).sum();
        let processors: f64 = found.processors.iter().map(|it| it.user + it.system).sum();
        assert!((processes / 0.2 - processors).abs() < 1e-3, "{name}: {processes} {processors}");
        for it in &found.processors {
            assert!((0.0..=1.0001).contains(&(it.user + it.system + it.softirq + it.wait)), "{name}: {it:?}");
        }
        assert!(!raw.latency_us.is_empty(), "{name}");
        for flow in &raw.flows {
            assert_eq!(flow.backlogged, std::iter::once(0..200).collect::<Vec<_>>(), "{name}");
        }
        // The difference is payload that has left the device, but that the receiver's TCP has not delivered.
        let packets: u64 = raw.flows.iter().flat_map(|flow| &flow.packets).sum();
        assert!((of_flows - packets * 66).abs_diff(payload(&raw) as u64) < 5 * 200_000, "{name}");
    }
}

/// Checks flows with their own class or queue, with writes of 1 to 8 KiB (S1 of the study).
#[test]
fn fair_disciplines_share_by_bytes_whatever_the_writes() {
    let mixed = [bulk(8, 4096), bulk(4, 1024), bulk(4, 8192)];
    for name in ["fq", "fq_codel", "drr", "qfq", "htb", "hfsc", "cake"] {
        let found = jain(&repeat(&point(name, &mixed), Some(GIGABIT), 3));
        assert!(found >= 0.95, "{name}: {found}");
    }
}

#[test]
fn who_claims_to_conserve_work_keeps_the_line_busy_and_a_cap_does_not() {
    let on_off = OnOff { on: Nanoseconds::from_millis(50), off: Nanoseconds::from_millis(50) };
    let demands = [bulk(4, 65_536), BulkTenants { on_off: Some(on_off), ..bulk(4, 65_536) }];
    for name in ["pfifo", "fq", "fq_codel", "sfq", "drr", "qfq", "htb", "hfsc", "ets", "prio", "cake"] {
        let raw = repeat(&point(name, &demands), Some(GIGABIT), 1);
        assert!(used(&raw) > 0.99, "{name}: {}", used(&raw));
        assert!(line(&raw).backlog_bytes.iter().all(|backlog| *backlog > 0), "{name}");
        let busy: usize = raw.flows[7].backlogged.iter().map(ExactSizeIterator::len).sum();
        assert!((90..=160).contains(&busy), "{name}: {busy}");
    }
    let capped = repeat(&point("htb-capped", &demands), Some(GIGABIT), 1);
    assert!(used(&capped) < 0.9, "{}", used(&capped));
    let line = line(&capped);
    let half = (line.capacity_bytes / 2.0) as u64;
    let idle =
        line.bytes.iter().zip(&line.backlog_bytes).filter(|(sent, waits)| **sent < half && **waits > 0);
    assert!(idle.count() > 10);
    assert!(tenants(&capped).qdiscs[0].overlimits > 10);

    let shaped = repeat(&point("tbf", &demands), Some(GIGABIT), 1);
    assert!((used(&shaped) - 0.8).abs() < 0.01, "{}", used(&shaped));
}

#[test]
fn a_priority_halves_the_latency_under_load() {
    let under_load = |name| {
        mean(&repeat(&with_probes(point(name, &[bulk(8, 65_536)]), 1, 64), Some(GIGABIT), 1).latency_us)
    };
    let without = under_load("htb-two-classes");
    for name in ["htb-priority", "prio", "pfifo_fast", "sfq-prio", "ets-priority"] {
        let with = under_load(name);
        assert!(with <= without / 2.0, "{name}: {with} of {without}");
    }
    assert!(under_load("pfifo") > without);
}

#[test]
fn messages_of_several_segments_and_many_probes() {
    let half_round_trip = |count, message| {
        let raw = repeat(&with_probes(point("pfifo", &[]), count, message), None, 1);
        assert!(raw.flows.is_empty());
        (raw.latency_us.len(), mean(&raw.latency_us))
    };
    let ((many, short), (few, long)) = (half_round_trip(1, 64), half_round_trip(1, 256 << 10));
    assert!(many > 2000 && few > 100, "{many} {few}");
    // Sixteen pairs of programs wait for two processors, but the processors are always awake.
    let (_, crowded) = half_round_trip(16, 64);
    assert!(long > 5.0 * short && crowded > 2.0 * short, "{short} {long} {crowded}");
}

#[test]
fn the_processors_bound_what_no_line_does() {
    let rate = |point: &TenantPoint| {
        let raw = repeat(point, None, 1);
        assert!(tenants(&raw).line.is_none());
        payload(&raw) * 8.0 / 0.2 / GIGABIT as f64
    };
    let of_length = |length| rate(&point("pfifo", &[bulk(1, length)]));
    let (short, medium, long) = (of_length(1024), of_length(4096), of_length(65_536));
    assert!(2.0 * short < medium && 2.0 * medium < long, "{short} {medium} {long}");
    // With one client, the processors are idle at times. With four clients, they are not. Ninety-six
    // clients are no faster.
    let of_clients = |count| rate(&point("pfifo", &[bulk(count, 65_536)]));
    let (four, many) = (of_clients(4), of_clients(96));
    assert!(four > 1.2 * long && many < 1.1 * four, "{long} {four} {many}");
    // Rules cost time. The expensive classifier costs more.
    let of_rules = |classifier, rules| {
        let filter_rules = Some(FilterRules { classifier, rules });
        rate(&TenantPoint { filter_rules, ..point("htb", &[bulk(4, 65_536)]) })
    };
    let (one, u32_rules) = (of_rules(Classifier::U32, 1), of_rules(Classifier::U32, 1000));
    let bpf_rules = of_rules(Classifier::Bpf, 1000);
    assert!(u32_rules < 0.97 * one && bpf_rules < 0.8 * u32_rules, "{one} {u32_rules} {bpf_rules}");
    // Without offloads each packet is expensive; aggregation reduces the receiver's work.
    let without = |aggregation| {
        let offloads = Offloads { segmentation: false, aggregation };
        rate(&TenantPoint { offloads, ..point("pfifo", &[bulk(1, 65_536)]) })
    };
    assert!(
        without(false) < long / 2.0 && without(true) >= without(false),
        "{} {}",
        without(false),
        without(true)
    );
}

#[test]
fn what_the_simulator_lacks_is_refused_with_its_name() {
    let text = "schema = 1\n[setup.mine]\nsummary = \"mine\"\nsteps = [\"qdisc root handle 1: codel\"]\n";
    let catalogue = Catalogue::parse(text, "mine.toml").unwrap();
    let scenario = scenario("tc-priority");
    let mine = TenantPoint { qdisc: catalogue.get("mine").unwrap(), ..point("pfifo", &[bulk(1, 4096)]) };
    let variant = Variant { sets: Sets::Tenants(Box::new(mine)), ..scenario.variants[0].clone() };
    let refusal = SimWorld::new(Profile::Linux6_18).assess(&scenario, &variant).unwrap_err();
    assert!(refusal.contains("codel"), "{refusal}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Checks for any point that the run ends, no client exceeds the line rate, and all received data was
    /// sent.
    #[test]
    fn any_point_ends_and_adds_up(
        setup in 0usize..20,
        groups in prop::collection::vec((1u32..6, 1u64..200_000, any::<bool>()), 0..3),
        probes in 0u32..4,
        message in 1u64..300_000,
        offloads in any::<(bool, bool)>(),
        rate in prop::option::of(10_000_000u64..20_000_000_000),
        seed in any::<u64>(),
    ) {
        let names: Vec<String> = Catalogue::bundled().names().map(str::to_owned).collect();
        let on_off = OnOff { on: Nanoseconds::from_millis(7), off: Nanoseconds::from_millis(3) };
        let groups: Vec<BulkTenants> = groups
            .into_iter()
            .map(|(count, length, stops)| BulkTenants { on_off: stops.then_some(on_off), ..bulk(count, length) })
            .collect();
        let mut point = point(&names[setup % names.len()], &groups);
        point.offloads = Offloads { segmentation: offloads.0, aggregation: offloads.1 };
        prop_assume!(probes > 0 || !groups.is_empty());
        if probes > 0 {
            point = with_probes(point, probes, message);
        }
        let raw = repeat_for(&point, rate, seed, 20);
        if rate.is_some() {
            let line = line(&raw);
            for sent in &line.bytes {
                // The tolerance is one packet, because a packet may span two bins.
                prop_assert!(*sent as f64 <= line.capacity_bytes + 1514.0, "{sent} of {}", line.capacity_bytes);
            }
        }
        for flow in &raw.flows {
            prop_assert_eq!(flow.bytes.len(), 20);
            prop_assert!(flow.backlogged.iter().all(|range| range.end <= 20));
        }
        for it in &tenants(&raw).processors {
            prop_assert!(it.user + it.system + it.softirq <= 1.0001);
        }
    }
}
