#![allow(clippy::expect_used, clippy::panic)]

use evenkeel_model::qdisc::{Catalogue, Surroundings};
use evenkeel_model::units::{BitRate, ByteSize};

use super::super::{Classifier, Dequeued, Qdisc, testing};
use super::*;
use crate::segment::Segment;
use crate::time::Time;

const BULK: u32 = 4;
const PROBES: u32 = 2;

fn surroundings() -> Surroundings {
    Surroundings {
        rate: BitRate::from_bits_per_second(1_000_000_000),
        bulk_flows: BULK,
        probes: PROBES,
        queues: 8,
        largest_segment: ByteSize::from_bytes(65_536 + 14),
        mtu: ByteSize::from_bytes(1500),
    }
}

fn flows() -> Vec<FlowKey> {
    let bulk = (0..BULK as u16).map(|number| FlowKey { port: BULK_PORT + number, priority: 0 });
    bulk.chain((0..PROBES as u16).map(|number| FlowKey { port: PROBE_PORT + number, priority: 6 })).collect()
}

fn disciplines(catalogue: &Catalogue, name: &str) -> Result<Disciplines, TreeError> {
    let setup = catalogue.get(name).expect("there");
    build(&setup.resolve(&surroundings()).expect("fits"), &flows(), 8, 1500)
}

/// Builds a setup from steps in the format of a user's file.
fn written(steps: &[&str]) -> Result<Disciplines, TreeError> {
    let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
    let text = format!("schema = 1\n[setup.mine]\nsummary = \"mine\"\nsteps = [{}]\n", steps.join(", "));
    disciplines(&Catalogue::parse(&text, "mine.toml").expect("parses"), "mine")
}

fn segment(flow: u32, sequence: u64) -> Segment {
    let band = u8::from(flow < BULK);
    Segment { band, ..testing::segment(flow, sequence, 1448) }
}

#[test]
fn every_bundled_setup_builds_and_lets_all_flows_through() {
    let catalogue = Catalogue::bundled();
    assert!(catalogue.names().count() >= 20);
    for name in catalogue.names() {
        let built = disciplines(&catalogue, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (queue, kind) in built.queues.iter().enumerate() {
            let mut qdisc = Qdisc::new(kind, 1).expect("valid");
            for flow in 0..BULK + PROBES {
                let path = &built.paths[queue][flow as usize];
                assert!(!path.is_empty() && path.iter().all(|hop| (hop.qdisc as usize) < built.qdiscs.len()));
                assert_eq!(qdisc.enqueue(Time::ZERO, segment(flow, 0)), None, "{name} {flow}");
            }
            let (mut now, mut sent) = (Time::ZERO, 0);
            loop {
                match qdisc.dequeue(now) {
                    Dequeued::Segment(_) => sent += 1,
                    Dequeued::Wait(until) => now = until,
                    Dequeued::Empty => break,
                }
            }
            assert_eq!(sent, BULK + PROBES, "{name}");
            let shapers = built.qdiscs.iter().filter(|qdisc| qdisc.shaper.is_some()).count();
            assert_eq!(qdisc.overlimits().len(), shapers, "{name}");
        }
    }
}

#[test]
fn priorities_and_roles_come_first() {
    let catalogue = Catalogue::bundled();
    for name in ["pfifo_fast", "prio", "sfq-prio", "ets-priority", "htb-priority"] {
        let built = disciplines(&catalogue, name).expect("builds");
        let mut qdisc = Qdisc::new(&built.queues[0], 1).expect("valid");
        for flow in 0..=BULK {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(flow, 0)), None);
        }
        let Dequeued::Segment(first) = qdisc.dequeue(Time::ZERO) else { panic!("{name}") };
        assert_eq!(first.flow, BULK, "{name}");
    }
}

#[test]
fn each_flow_has_a_class_of_its_own_and_one_filter() {
    let built = disciplines(&Catalogue::bundled(), "htb").expect("builds");
    let Kind::Htb(config) = &built.queues[0] else { panic!() };
    let Classifier::Table(table) = &config.classifier else { panic!() };
    let distinct: std::collections::BTreeSet<u32> = table.iter().copied().collect();
    assert_eq!(distinct.len(), (BULK + PROBES) as usize);
    let root = &built.paths[0][0][0];
    assert_eq!((root.qdisc, root.filters.get(&qdisc::Classifier::Bpf)), (0, Some(&1)));
    assert_eq!(built.paths[0][0].len(), 2);
    assert_eq!(built.qdiscs[0].classes, 2 + BULK + PROBES);
}

#[test]
fn mq_has_a_discipline_for_each_queue() {
    let built = disciplines(&Catalogue::bundled(), "mq-fq_codel").expect("builds");
    assert_eq!((built.queues.len(), built.qdiscs.len()), (8, 9));
    let hops = |queue: usize| built.paths[queue][0].iter().map(|hop| hop.qdisc).collect::<Vec<_>>();
    assert_eq!((hops(0), hops(7)), (vec![0, 1], vec![0, 8]));
}

/// With one pair of hosts, all flows would share a queue.
#[test]
fn isolation_of_hosts_by_cake_is_refused() {
    for isolation in ["srchost", "dsthost", "hosts", "flowblind"] {
        let refused = written(&[&format!("qdisc root handle 1: cake {isolation}")]).expect_err("is refused");
        assert!(refused.to_string().contains(&format!("has no option {isolation}")), "{refused}");
    }
    written(&["qdisc root handle 1: cake dual-dsthost"]).expect("separates flows");
}

#[test]
fn ports_and_defaults_of_ones_own_setup() {
    let built = written(&[
        "qdisc root handle 1: htb default 20",
        "class parent 1: classid 1:1 htb rate 100%",
        "class parent 1:1 classid 1:10 htb rate 10% ceil 100%",
        "class parent 1:1 classid 1:20 htb rate 90%",
        "qdisc parent 1:20 handle 20: tbf rate 10mbit burst 100KiB limit 1MiB",
        "qdisc parent 20:1 handle 30: sfq perturb 10",
    ]);
    // The timer of `perturb` changes which flows share a queue. The simulator does not model it.
    let error = built.expect_err("has an option that is not simulated").to_string();
    assert_eq!(
        error,
        "the simulator's sfq (30:0) has no option perturb; run the scenario on a kernel (--on netns)"
    );
}

#[test]
fn sfq_has_no_more_than_its_limits_allow() {
    // Options, and the expected limit, depth and number of flows, as in `sfq_change`.
    for (options, limit, depth, flows) in [
        ("", 127, 127, 128),
        (" limit 50", 50, 127, 50),
        (" limit 10000", 10_000, 127, 128),
        (" limit 100000", 127 * 128, 127, 128),
        (" depth 100 flows 10 limit 5000", 1000, 100, 10),
        (" divisor 64", 127, 127, 64),
    ] {
        let built = written(&[&format!("qdisc root handle 1: sfq{options}")]).expect("is simulated");
        let Kind::Sfq(found) = &built.queues[0] else { panic!("{:?}", built.queues[0]) };
        assert_eq!((found.limit, found.depth, found.flows), (limit, depth, flows), "{options}");
    }
}

#[test]
fn what_is_lacking_is_named() {
    for (steps, expected) in [
        (&["qdisc root handle 1: codel"][..], "the simulator has no codel (1:0)"),
        (&["qdisc root handle 1: red"], "the simulator has no red (1:0)"),
        (&["qdisc root handle 1: cake bandwidth 50%"], "the simulator's cake (1:0) has no option bandwidth"),
        (&["qdisc root handle 1: fq maxrate 1mbit"], "the simulator's fq (1:0) has no option maxrate"),
        (
            &["qdisc root handle 1: drr", "class parent 1: classid 1:2 drr"],
            "the simulator does not support this setup of drr (1:0): packets to port 5201 have no class",
        ),
    ] {
        let error = written(steps).expect_err("lacks it").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
