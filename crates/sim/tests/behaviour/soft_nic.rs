//! The simulated test bed: the shares follow only from the placement of flows.

use evenkeel_model::scenario::{Scenario, bundled, parse};
use evenkeel_model::units::{BitRate, Nanoseconds};
use evenkeel_model::world::{Job, Observer, RawRepeat, World};
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::world::SimWorld;

const RATE: u64 = 2_000_000_000;
const SECONDS: u64 = 2;

struct Unobserved;

impl Observer for Unobserved {
    fn progress(&self, _fraction: f64, _activity: &str) {}
    fn remark(&self, _text: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

fn twelve_flows() -> Scenario {
    let (_, text) = bundled::bundled().iter().find(|(name, _)| *name == "titan-12-flows").unwrap();
    parse(text, "titan-12-flows", bundled::variant_tables()).unwrap()
}

/// Runs a variant of `titan-12-flows` at 2 Gbit/s for two seconds, after a warm-up of one second.
fn run(variant: &str, seed: u64) -> RawRepeat {
    let mut scenario = twelve_flows();
    if let Some(probe) = &mut scenario.workload.latency {
        probe.duration = Nanoseconds::from_millis(200);
    }
    let variant = scenario.select(&[variant.to_owned()]).unwrap()[0];
    let job = Job {
        scenario: &scenario,
        variant,
        repeat: 0,
        seed,
        rate: BitRate::from_bits_per_second(RATE),
        warmup: Nanoseconds::from_millis(1000),
        duration: Nanoseconds::from_millis(1000 * SECONDS),
        bin: Nanoseconds::from_millis(10),
    };
    SimWorld::of_test_bed(Profile::Linux6_18, 2).repeat(&job, &Unobserved).unwrap()
}

/// Returns the bytes that each busy queue carries with equal service.
fn share(raw: &RawRepeat) -> f64 {
    let busy = raw.queues.iter().filter(|queue| queue.flows > 0).count();
    (RATE / 8 * SECONDS) as f64 / busy as f64
}

/// Checks that busy queues get equal service whatever the number of their flows, that the line is full, and
/// that no packet is lost.
#[test]
fn queues_share_the_line_evenly() {
    for (variant, seed) in [("dqa", 1), ("cmax", 1), ("cmax", 2), ("single-queue", 1)] {
        let raw = run(variant, seed);
        assert_eq!(raw.queues.iter().map(|queue| queue.flows).sum::<u32>(), 12);
        for queue in raw.queues.iter().filter(|queue| queue.flows > 0) {
            let found = queue.bytes as f64 / share(&raw);
            // The shares differ slightly, because a flow alone on its queue sometimes has no segment ready.
            assert!((0.97..1.03).contains(&found), "{variant}: {:?}", raw.queues);
        }
        // Tokens count frames without preamble and gap: 1514 bytes for 1448 bytes of payload.
        let payload: u64 = raw.flows.iter().map(|flow| flow.payload_bytes).sum();
        let expected = (RATE / 8 * SECONDS) as f64 * 1448.0 / 1514.0;
        assert!((payload as f64 / expected - 1.0).abs() < 0.005, "{variant}: {payload}");
        assert_eq!((raw.retransmits, raw.counters["queue_drops"]), (Some(0), 0.0), "{variant}");
        assert!(raw.flows.iter().all(|flow| flow.out_of_order == Some(0)), "{variant}");
        assert!(!raw.latency_us.is_empty());
        assert_eq!(raw.busy_cores, None, "it would be the sender's alone");
    }
}

/// Checks that, with DQA, flows that share a queue get half of the throughput of other flows.
#[test]
fn dqa_leaves_one_and_two_on_a_queue() {
    let raw = run("dqa", 3);
    let mut layout: Vec<u32> = raw.queues.iter().map(|queue| queue.flows).collect();
    layout.sort_unstable();
    assert_eq!(layout, [1, 1, 1, 1, 2, 2, 2, 2]);
    for flow in &raw.flows {
        let neighbours = raw.flows.iter().filter(|other| other.queue == flow.queue).count();
        let found = flow.bytes.iter().sum::<u64>() as f64 * neighbours as f64 / share(&raw);
        assert!((0.9..1.1).contains(&found), "{}: {found} of its share, with {neighbours}", flow.name);
    }
}

#[test]
fn what_the_test_bed_cannot_do_is_refused_and_what_it_lacks_is_said() {
    let scenario = twelve_flows();
    let world = SimWorld::of_test_bed(Profile::Linux6_18, 2);
    let assess = |name: &str| world.assess(&scenario, scenario.select(&[name.to_owned()]).unwrap()[0]);
    assert!(assess("dqa+dqwa").unwrap_err().contains("queue weights"));
    let notes = assess("cmax").unwrap().notes;
    assert!(notes[0].contains("BQL") && notes[0].contains("pfifo leaves"), "{notes:?}");
    assert!(notes[1].contains("CPU use is not simulated"), "{notes:?}");
    assert!(assess("xps:dqa").unwrap().notes.iter().any(|note| note.contains("2 pools")));
    assert!(assess("no-tsq").unwrap().notes.iter().any(|note| note.contains("TCP small queues")));
    assert_eq!((world.kernel().as_str(), world.name()), ("6.18", "sim"));

    let (_, text) = bundled::bundled().iter().find(|(name, _)| *name == "shuffle-6").unwrap();
    let shuffle = parse(text, "shuffle-6", bundled::variant_tables()).unwrap();
    assert!(world.assess(&shuffle, &shuffle.variants[0]).unwrap_err().contains("without --nic soft"));
}
