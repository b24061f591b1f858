//! Tests a repeat with tenants on this kernel: the figures are plausible, and no kernel objects remain.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::single_range_in_vec_init)]

mod support;

use evenkeel_model::qdisc::{Catalogue, Classifier, FilterRules};
use evenkeel_model::scenario::Sets;
use evenkeel_model::units::BitRate;
use evenkeel_model::world::{RawRepeat, World};
use evenkeel_testbed::{NetnsWorld, TestbedError};

use support::leftovers::{Holdings, interfaces, open_descriptors};
use support::tenants::{
    BOTH, ONE_PROBE, Watch, bulk, job, line, lost, payload, quantile, run, scenario, scenario_of, tenants,
    wire_bytes,
};

/// Asserts that `found` differs from `expected` by at most a share of `expected`.
fn assert_near(found: f64, expected: f64, share: f64, what: &str) {
    assert!((found - expected).abs() <= share * expected, "{what}: {found}, expected {expected}");
}

/// Asserts conditions that hold for every repeat.
fn assert_sane(raw: &RawRepeat, millis: u64) {
    assert!(raw.counters["meter_vs_iperf3_max_error"] <= 0.02, "{:?}", raw.counters);
    assert_eq!(raw.counters["meter_overflow"], 0.0);
    let tenants = tenants(raw);
    // Each CPU's busy time is at most the elapsed time. The sum over the CPUs is the total busy time.
    let busy: f64 = tenants
        .processors
        .iter()
        .map(|processor| {
            let busy = processor.user + processor.system + processor.softirq;
            assert!(busy + processor.wait <= 1.01 && processor.user >= 0.0, "{processor:?}");
            busy
        })
        .sum();
    assert!((busy - raw.busy_cores.unwrap()).abs() < 1e-6, "{busy} {:?}", raw.busy_cores);
    let seconds = millis as f64 / 1e3;
    let traffic: f64 = tenants.processes.iter().map(|process| process.user_s + process.system_s).sum();
    assert!(
        traffic > 0.0 && traffic <= seconds * (busy + 0.1),
        "traffic had {traffic} s of {busy} processors"
    );
    let disturbance = tenants.disturbance.unwrap();
    assert!((0.0..=tenants.processors.len() as f64 + 0.2).contains(&disturbance), "{disturbance}");
    for flow in &raw.flows {
        let on_wire: u64 = flow.bytes.iter().sum();
        assert!(flow.payload_bytes <= on_wire && flow.bytes.len() == millis as usize, "{}", flow.name);
    }
}

/// Without a line, the CPUs limit the payload. Flows and processes are in the order of their tenants.
#[test]
fn without_a_line_the_processors_are_the_bottleneck() {
    let mixed = format!(
        "{BOTH}[[workload.bulk]]\nshare = \"50%\"\nlength = \"64KiB\"\n[[workload.bulk]]\nshare = \"50%\"\nlength = \"1KiB\"\n{ONE_PROBE}"
    );
    let scenario = scenario(false, &mixed, &["pfifo"], 8);
    let raw = &run(&scenario, 500)[0];
    assert_sane(raw, 500);
    assert!(tenants(raw).line.is_none());
    assert_eq!(raw.flows.len(), 8);
    for (number, flow) in raw.flows.iter().enumerate() {
        assert!(flow.name.ends_with(&format!("-{}", 5201 + number)), "{}", flow.name);
        assert_eq!(flow.backlogged, [0..500]);
        assert!(flow.payload_bytes > 0 && flow.retransmits.is_some());
    }
    // Only the CPUs' capacity limits the payload. It is more than twice the payload of a line at the
    // link's rate.
    assert!(payload(raw) * 8 * 2 > 2 * 200_000_000, "{}", payload(raw));
    let names: Vec<&str> = tenants(raw).processes.iter().map(|process| process.name.as_str()).collect();
    assert_eq!((names.len(), names[0], names[15]), (18, "bulk 0 client", "bulk 7 server"));
    assert_eq!(names[16..], ["probe 0 client", "probe 0 server"]);
    assert!(raw.latency_us.len() > 10 && quantile(raw, 0.0) > 1.0, "{:?}", raw.latency_us.len());
    let qdisc = &tenants(raw).qdiscs[0];
    assert_eq!((qdisc.kind.as_str(), qdisc.handle.as_str()), ("pfifo", "1:"));
    assert_near(qdisc.bytes as f64, wire_bytes(raw) as f64, 0.1, "bytes of the qdisc");
}

#[test]
fn offloads_are_as_the_scenario_says() {
    // Returns the mean payload of a buffer that TCP receives.
    let buffer = |segmentation: bool, aggregation: bool| {
        let workload = format!(
            "offloads = {{ segmentation = {segmentation}, aggregation = {aggregation} }}\n{}",
            bulk("64KiB")
        );
        let raw = &run(&scenario(false, &workload, &["pfifo"], 1), 300)[0];
        payload(raw) as f64 / raw.counters["received_buffers"]
    };
    let whole = buffer(true, true);
    assert!(whole > 10_000.0, "segments pass whole: {whole}");
    for (segmentation, aggregation) in [(true, false), (false, false), (false, true)] {
        // Even with GRO, a veth merges few of the packets that arrive one by one.
        let cut = buffer(segmentation, aggregation);
        assert!((1000.0..whole / 2.0).contains(&cut), "{segmentation} {aggregation}: {cut}");
        assert!(aggregation || cut <= 1500.0, "packets as they are: {cut}");
    }
}

#[test]
fn a_line_is_kept_full_and_leaves_a_trace() {
    let workload = format!("{BOTH}{}{ONE_PROBE}", bulk("16KiB"));
    for raw in run(&scenario(true, &workload, &["pfifo", "htb"], 6), 1000) {
        assert_sane(&raw, 1000);
        let line = line(&raw);
        assert_eq!((line.bytes.len(), line.backlog_bytes.len()), (1000, 1000));
        assert_eq!(line.capacity_bytes, 25_000.0);
        let total: u64 = line.bytes.iter().sum();
        // The line is a token bucket. It holds two segments, which it may send in addition to the rate.
        assert!(total as f64 <= 25_000.0 * 1000.0 + 300_000.0, "{total}");
        assert!(total >= wire_bytes(&raw));
        assert_near(wire_bytes(&raw) as f64, total as f64, 0.02, "bytes of the bulk flows");
        assert!(lost(line) < 0.05, "{}", lost(line));
        assert!(line.backlog_bytes.iter().filter(|bytes| **bytes > 0).count() > 900);
        assert!(raw.counters["line_bins_sampled"] > 800.0, "{:?}", raw.counters);
        // The qdiscs of the line belong to the test bed, so the results do not list them.
        assert!(tenants(&raw).qdiscs.iter().all(|qdisc| !qdisc.handle.starts_with("fff")));
    }
}

#[test]
fn priorities_at_least_halve_the_latency_under_load() {
    let workload = format!("{BOTH}{}{ONE_PROBE}", bulk("64KiB"));
    let results = run(&scenario(true, &workload, &["htb-two-classes", "htb-priority"], 8), 1500);
    for share in [0.5, 0.9] {
        let (without, with) = (quantile(&results[0], share), quantile(&results[1], share));
        assert!(with <= without / 2.0, "quantile {share}: {with} us with priorities, {without} us without");
    }
    let (without, with) = (payload(&results[0]) as f64, payload(&results[1]) as f64);
    assert_near(with, without, 0.05, "the bulk flows' share");
}

/// A class with and without borrowing: one of two clients is silent half of the time. The other client
/// uses the silent client's share only if the class may borrow.
#[test]
fn a_capped_class_leaves_the_line_idle_and_one_that_borrows_does_not() {
    let workload = format!(
        "{BOTH}[[workload.bulk]]\nshare = \"50%\"\nlength = \"16KiB\"\n[[workload.bulk]]\nshare = \"50%\"\n\
         length = \"16KiB\"\non = \"100ms\"\noff = \"100ms\"\n"
    );
    let results = run(&scenario(true, &workload, &["htb", "htb-capped"], 2), 1000);
    for raw in &results {
        assert_sane(raw, 1000);
        let [always, in_turns] = &raw.flows[..] else { panic!("{:?}", raw.flows) };
        assert_eq!(always.backlogged, [0..1000]);
        assert_eq!(in_turns.backlogged, [0..100, 200..300, 400..500, 600..700, 800..900]);
        // The client is silent after its last segments have left.
        let sent_in = |from: usize, to: usize| -> u64 {
            (0..5).flat_map(|turn| &in_turns.bytes[turn * 200 + from..turn * 200 + to]).sum()
        };
        let (on, late) = (sent_in(0, 100), sent_in(150, 200));
        assert!(on > 2_000_000 && late < on / 20, "{on} bytes while on, {late} long after");
    }
    let (borrowing, capped) = (lost(line(&results[0])), lost(line(&results[1])));
    assert!(borrowing < 0.05, "borrowing: {borrowing}");
    assert!(capped > 0.15, "capped: {capped}");
}

#[test]
fn very_many_probes_alone() {
    let workload = format!("{BOTH}{}[workload.probes]\ncount = 96\nmessage = \"1KiB\"\n", bulk("1KiB"));
    let raw = &run(&scenario(false, &workload, &["pfifo"], 0), 500)[0];
    assert_sane(raw, 500);
    assert!(raw.flows.is_empty());
    assert_eq!(tenants(raw).processes.len(), 192);
    assert!(raw.latency_us.len() > 2 * 96, "{}", raw.latency_us.len());
}

#[test]
fn very_many_bulk_clients_behind_idle_rules() {
    let mut scenario = scenario(true, &format!("{BOTH}{}", bulk("4KiB")), &["htb"], 48);
    let rules = FilterRules { classifier: Classifier::U32, rules: 50 };
    let Sets::Tenants(point) = &mut scenario.variants[0].sets else { panic!("a point of a sweep") };
    point.filter_rules = Some(rules);
    let raw = &run(&scenario, 1000)[0];
    assert_sane(raw, 1000);
    assert_eq!(raw.flows.len(), 48);
    assert!(raw.flows.iter().all(|flow| flow.payload_bytes > 0), "{:?}", raw.flows);
}

#[test]
fn what_this_kernel_lacks_is_named() {
    let mine = "schema = 1\n[setup.mine]\nsummary = \"unknown to this kernel\"\nsteps = [\"qdisc root handle 1: evk_none\"]\n";
    let catalogue = Catalogue::bundled().extended(Catalogue::parse(mine, "mine").unwrap());
    let names: Vec<&str> = catalogue.names().collect();
    let scenario = scenario_of(&catalogue, true, &format!("{BOTH}{}", bulk("4KiB")), &names, 2);
    let world = NetnsWorld::new(None).unwrap();
    for variant in &scenario.variants {
        let name = &variant.tenants().unwrap().qdisc.name;
        match world.assess(&scenario, variant) {
            Ok(assessment) => {
                assert_ne!(name, "mine");
                assert_eq!(assessment.settings["qdisc"], *name);
            }
            Err(why) => {
                println!("{name}: {why}");
                assert!(why.starts_with("this kernel lacks the qdisc "), "{why}");
                assert!(name != "mine" || why.contains("the qdisc evk_none;"), "{why}");
                assert!(!["pfifo", "bfifo", "pfifo_fast", "htb", "tbf"].contains(&name.as_str()), "{why}");
            }
        }
    }
}

#[test]
fn the_rate_of_a_line_is_one_that_the_processors_carry() {
    let mut world = NetnsWorld::new(None).unwrap();
    let watch = Watch::default();
    let mut settle = |line: bool, nominal: u64, wanted: Option<u64>| {
        let mut scenario = scenario(line, &format!("{BOTH}{}", bulk("64KiB")), &["pfifo"], 2);
        scenario.link.rate = BitRate::from_bits_per_second(nominal);
        let wanted = wanted.map(BitRate::from_bits_per_second);
        world.settle_rate(&scenario, wanted, &watch).map(BitRate::bits_per_second)
    };
    const GBIT: u64 = 1_000_000_000;
    assert_eq!(settle(false, 100 * GBIT, None).unwrap(), 100 * GBIT, "nothing to settle");
    assert_eq!(settle(true, GBIT / 20, None).unwrap(), GBIT / 20);
    let settled = settle(true, 100_000 * GBIT, None).unwrap();
    assert!(settled <= 100 * GBIT, "{settled}");
    let refused = settle(true, 100_000 * GBIT, Some(50_000 * GBIT)).unwrap_err();
    assert!(matches!(refused, TestbedError::Unable { .. }), "{refused}");
}

#[test]
fn an_interruption_leaves_nothing() {
    let workload = format!(
        "{BOTH}[[workload.bulk]]\nshare = \"50%\"\nlength = \"16KiB\"\n[[workload.bulk]]\nshare = \"50%\"\n\
         length = \"16KiB\"\non = \"50ms\"\noff = \"50ms\"\n{ONE_PROBE}"
    );
    let scenario = scenario(true, &workload, &["htb"], 4);
    let mut world = NetnsWorld::new(None).unwrap();
    let (links, descriptors) = (interfaces(), open_descriptors());
    for activity in ["setting up", "warming up", "measuring", "finishing"] {
        let before = Holdings::of(std::process::id());
        let watch = Watch { until: Some(activity), ..Watch::default() };
        let error = world.repeat(&job(&scenario, &scenario.variants[0], 500), &watch).unwrap_err();
        assert!(matches!(error, TestbedError::Interrupted), "{activity}: {error}");
        let made = watch.held.into_inner().unwrap().since(&before);
        if activity != "setting up" {
            assert!(
                made.children.len() == 4 && made.namespaces.len() == 2 && !made.maps.is_empty(),
                "{made:?}"
            );
        }
        made.assert_gone();
        assert_eq!((interfaces(), open_descriptors()), (links.clone(), descriptors), "{activity}");
    }
}
