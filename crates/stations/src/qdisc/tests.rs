//! Invariants of most disciplines, and theoretical bounds of some disciplines.

#![allow(clippy::expect_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::testing::{Saturated, segment};
use super::*;
use crate::time::{MICROSECOND, MILLISECOND, Span};

/// Returns disciplines that dequeue whenever they have a segment, with limits that the tests reach.
fn work_conserving() -> Vec<Kind> {
    let sfq = SfqConfig { limit: 30, depth: 12, flows: 6, ..SfqConfig::default() };
    let fq_codel = FqCodelConfig { limit: 25, flows: 16, ..FqCodelConfig::default() };
    let qfq = QfqConfig { limit: 9, ..QfqConfig::weighted(&[1, 1, 1, 7, 1024]) };
    vec![
        Kind::Pfifo { limit: 20 },
        Kind::Bfifo { limit: 400_000 },
        Kind::PfifoFast { limit: 20 },
        Kind::Sfq(sfq.clone()),
        Kind::Sfq(SfqConfig { head_drop: true, ..sfq.clone() }),
        Kind::sfq_prio(sfq.clone(), 8),
        Kind::FqCodel(fq_codel.clone()),
        Kind::FqCodel(FqCodelConfig { target: 1, interval: 1000, ..fq_codel.clone() }),
        Kind::Fq(FqConfig { limit: 20, flow_limit: 6, ..FqConfig::default() }),
        Kind::Drr(DrrConfig { limit: 9, quanta: vec![1, 300, 1514, 70_000], ..DrrConfig::equal(0) }),
        Kind::Ets(EtsConfig { classifier: Classifier::Band, strict: 1, quanta: vec![1000, 3000], limit: 9 }),
        Kind::Qfq(qfq.clone()),
        Kind::Qfq(QfqConfig { classifier: Classifier::Hash, ..qfq }),
        Kind::Prio {
            classifier: Classifier::Band,
            bands: vec![Kind::FqCodel(fq_codel), Kind::Sfq(sfq), Kind::Pfifo { limit: 3 }],
        },
    ]
}

/// Returns disciplines that may wait although they have a segment.
fn shaping() -> Vec<Kind> {
    let sfq = SfqConfig { limit: 30, depth: 12, flows: 6, ..SfqConfig::default() };
    let class = |rate, priority, content| HtbClass {
        rate,
        ceiling: 8 * rate,
        burst: 3000,
        ceiling_burst: 70_000,
        priority,
        quantum: Some(1514),
        content,
    };
    let fast_codel = FqCodelConfig { target: 1, interval: 1000, ..FqCodelConfig::default() };
    let tbf = TbfConfig::new(100_000_000, 5000, Kind::Sfq(sfq.clone()));
    let leaves = vec![
        class(10_000_000, 0, HtbContent::Leaf(Kind::Sfq(sfq))),
        class(20_000_000, 7, HtbContent::Leaf(Kind::FqCodel(fast_codel.clone()))),
        class(1_000_000, 3, HtbContent::Leaf(Kind::Tbf(tbf.clone()))),
        class(1_000_000, 3, HtbContent::Leaf(Kind::Pfifo { limit: 5 })),
    ];
    let roots = vec![
        class(50_000_000, 0, HtbContent::Inner(leaves)),
        class(10_000_000, 1, HtbContent::Leaf(Kind::Bfifo { limit: 90_000 })),
    ];
    let peak = TbfPeak { rate: 1_000_000_000, burst: 2000 };
    vec![
        Kind::Htb(HtbConfig::new(Classifier::Flow, roots)),
        Kind::Tbf(TbfConfig {
            peak: Some(peak),
            ..TbfConfig::new(9_000_000, 4000, Kind::FqCodel(fast_codel))
        }),
        Kind::Prio { classifier: Classifier::Band, bands: vec![Kind::Tbf(tbf), Kind::Pfifo { limit: 10 }] },
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue { flow: u32, payload: u32 },
    Dequeue,
    Pass(Span),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let payload =
        prop_oneof![3 => 0u32..1449, 2 => 1449u32..65_161, 1 => Just(65_160u32), 1 => Just(100_000)];
    let step = prop_oneof![
        5 => (0u32..10, payload).prop_map(|(flow, payload)| Step::Enqueue { flow, payload }),
        4 => Just(Step::Dequeue),
        1 => (0..30 * MILLISECOND).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..250)
}

/// Generates class trees, including trees that no operator would use.
fn trees() -> impl Strategy<Value = Vec<HtbClass>> {
    let limits = (1u64..50, 1u64..100, 0u32..20_000, 0u32..20_000, 0u8..9, prop::option::of(1u32..50_000));
    let class = |limits: (u64, u64, u32, u32, u8, Option<u32>), content| {
        let (rate, ceiling, burst, ceiling_burst, priority, quantum) = limits;
        let (rate, ceiling) = (rate * 1_000_000, ceiling * 1_000_000);
        HtbClass { rate, ceiling, burst, ceiling_burst, priority, quantum, content }
    };
    let queue = prop_oneof![
        Just(Kind::Pfifo { limit: 6 }),
        Just(Kind::FqCodel(FqCodelConfig { target: 1, interval: 1000, ..FqCodelConfig::default() })),
        Just(Kind::Sfq(SfqConfig { limit: 4, ..SfqConfig::default() })),
    ];
    let leaf = (limits.clone(), queue).prop_map(move |(limits, kind)| class(limits, HtbContent::Leaf(kind)));
    let tree = leaf.prop_recursive(3, 12, 4, move |below| {
        (limits.clone(), prop::collection::vec(below, 1..4))
            .prop_map(move |(limits, below)| class(limits, HtbContent::Inner(below)))
    });
    prop::collection::vec(tree, 1..3)
}

/// Packets and bytes in the qdisc, and the last dequeued sequence number of each flow.
#[derive(Default)]
struct Ledger {
    packets: u64,
    bytes: u64,
    last: BTreeMap<u32, u64>,
}

impl Ledger {
    fn settle(&mut self, segment: &Segment) {
        self.packets -= u64::from(segment.packets());
        self.bytes -= u64::from(segment.frame_bytes());
    }
}

/// Runs steps, and checks that no segment is lost, duplicated or reordered within a flow.
fn run(kind: &Kind, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut qdisc = Qdisc::new(kind, 5).expect("valid");
    let conserving = work_conserving().contains(kind);
    let mut ledger = Ledger::default();
    let (mut now, mut sequence) = (Time::ZERO, 0);
    let dequeue = |qdisc: &mut Qdisc, ledger: &mut Ledger, now: Time| -> Result<Dequeued, TestCaseError> {
        let dequeued = qdisc.dequeue(now);
        while let Some(dropped) = qdisc.pop_dropped() {
            ledger.settle(&dropped);
        }
        if let Dequeued::Segment(segment) = dequeued {
            ledger.settle(&segment);
            let last = ledger.last.insert(segment.flow, segment.sequence);
            prop_assert!(last.is_none_or(|last| last < segment.sequence), "{kind:?}: reordered");
        } else if conserving || qdisc.is_empty() {
            prop_assert_eq!(dequeued, Dequeued::Empty);
            prop_assert_eq!(qdisc.len(), 0);
        }
        if let Dequeued::Wait(time) = dequeued {
            prop_assert!(time > now);
        }
        Ok(dequeued)
    };
    for step in steps {
        match *step {
            Step::Enqueue { flow, payload } => {
                sequence += 200_000;
                let band = (flow % 4) as u8;
                let segment = Segment { band, ..segment(flow, sequence, payload) };
                ledger.packets += u64::from(segment.packets());
                ledger.bytes += u64::from(segment.frame_bytes());
                let mut dropped = qdisc.enqueue(now, segment);
                while let Some(segment) = dropped {
                    ledger.settle(&segment);
                    dropped = qdisc.pop_dropped();
                }
            }
            Step::Dequeue => {
                dequeue(&mut qdisc, &mut ledger, now)?;
            }
            Step::Pass(span) => now += span,
        }
        prop_assert_eq!(qdisc.backlog_bytes(), ledger.bytes, "{:?}", kind);
        prop_assert!(qdisc.len() as u64 <= ledger.packets);
        prop_assert_eq!(qdisc.is_empty(), ledger.packets == 0);
    }
    for _ in 0..100_000 {
        match dequeue(&mut qdisc, &mut ledger, now)? {
            Dequeued::Segment(_) => {}
            Dequeued::Wait(time) => now = time,
            Dequeued::Empty => break,
        }
    }
    prop_assert_eq!((qdisc.len(), ledger.packets, ledger.bytes), (0, 0, 0), "{:?}", kind);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost_or_reordered(steps in steps()) {
        for kind in work_conserving().iter().chain(&shaping()) {
            run(kind, &steps)?;
        }
    }

    #[test]
    fn any_tree_lets_everything_out(roots in trees(), steps in steps(), by_hash in any::<bool>()) {
        let classifier = if by_hash { Classifier::Hash } else { Classifier::Flow };
        run(&Kind::Htb(HtbConfig::new(classifier, roots)), &steps)?;
    }

    /// Checks that a band is served only while all bands before it are empty.
    #[test]
    fn bands_are_strict(steps in steps()) {
        for kind in [
            Kind::PfifoFast { limit: 1000 },
            Kind::Prio { classifier: Classifier::Band, bands: vec![Kind::Pfifo { limit: 1000 }, Kind::Sfq(SfqConfig::default()), Kind::Fq(FqConfig::default())] },
            Kind::Ets(EtsConfig { classifier: Classifier::Band, strict: 2, quanta: vec![500], limit: 1000 }),
        ] {
            let mut qdisc = Qdisc::new(&kind, 0).expect("valid");
            let mut waiting = [0u32; 3];
            for step in &steps {
                match *step {
                    Step::Enqueue { flow, payload } => {
                        let band = (flow % 3) as u8;
                        waiting[usize::from(band)] += 1;
                        if let Some(dropped) = qdisc.enqueue(Time::ZERO, Segment { band, ..segment(flow, 0, payload) }) {
                            waiting[usize::from(dropped.band)] -= 1;
                        }
                    }
                    _ => if let Dequeued::Segment(segment) = qdisc.dequeue(Time::ZERO) {
                        let band = usize::from(segment.band);
                        prop_assert!(waiting[..band].iter().all(|count| *count == 0), "{:?}", kind);
                        waiting[band] -= 1;
                    }
                }
            }
        }
    }

    /// Checks Shreedhar and Varghese, theorem 2. Between backlogged classes, over any interval,
    /// services per quantum differ by at most one round and one longest segment of each class.
    #[test]
    fn drr_is_fair(
        quanta in prop::collection::vec(200u32..5000, 2..6),
        payloads in prop::collection::vec(1u32..30_000, 6..7),
    ) {
        let config = DrrConfig { quanta: quanta.clone(), ..DrrConfig::equal(0) };
        let qdisc = Qdisc::new(&Kind::Drr(config), 0).expect("valid");
        let templates: Vec<Segment> =
            (0..quanta.len()).map(|flow| segment(flow as u32, 0, payloads[flow])).collect();
        let mut saturated = Saturated::new(qdisc, &templates, 3);
        let mut extremes = BTreeMap::new();
        for _ in 0..300 {
            saturated.send();
            for (i, quantum) in quanta.iter().enumerate() {
                for (j, other) in quanta.iter().enumerate() {
                    let service = |flow: usize, quantum: u32| saturated.sent[&(flow as u32)] as f64 / f64::from(quantum);
                    let difference = service(i, *quantum) - service(j, *other);
                    let (low, high) = extremes.entry((i, j)).or_insert((0f64, 0f64));
                    *low = low.min(difference);
                    *high = high.max(difference);
                    let longest = |flow: usize, quantum: u32| f64::from(templates[flow].frame_bytes()) / f64::from(quantum);
                    let bound = 1.0 + longest(i, *quantum) + longest(j, *other);
                    prop_assert!(*high - *low <= bound + 1e-9, "{} > {bound}", *high - *low);
                }
            }
        }
    }

    /// Checks Checconi, Rizzo and Valente, theorem 2: the worst-case fair index of a class is at most three
    /// slots of its group and two longest segments. A group's slot is less than twice the group's longest
    /// budget. An aggregate of n classes has a budget of n segments and serves its classes round robin.
    #[test]
    fn qfq_is_fair(
        weights in prop::collection::vec(prop_oneof![Just(1u32), Just(8), 1u32..200], 2..12),
        payloads in prop::collection::vec(500u32..65_160, 12..13),
        equal in any::<bool>(),
    ) {
        let payload = |flow: usize| payloads[if equal { 0 } else { flow }];
        let templates: Vec<Segment> =
            (0..weights.len()).map(|flow| segment(flow as u32, 0, payload(flow))).collect();
        let longest = templates.iter().map(Segment::frame_bytes).max().map_or(0.0, f64::from);
        let qdisc = Qdisc::new(&Kind::Qfq(QfqConfig::weighted(&weights)), 0).expect("valid");
        let mut saturated = Saturated::new(qdisc, &templates, 3);
        let sum: f64 = weights.iter().copied().map(f64::from).sum();
        let mut total = 0.0;
        for _ in 0..600 {
            total += f64::from(saturated.send().frame_bytes());
            for (flow, weight) in weights.iter().enumerate() {
                let share = f64::from(*weight) / sum;
                let of_same = weights.iter().filter(|other| *other == weight).count().min(8) as f64;
                let lag = total * share - saturated.sent[&(flow as u32)] as f64;
                let own = f64::from(templates[flow].frame_bytes()).max(1514.0);
                let bound = 6.0 * of_same * own + 2.0 * longest + own;
                prop_assert!(lag <= bound, "class {flow} lags by {lag}, bound {bound}");
            }
        }
    }

    /// Checks that, from the start to any later time, a backlogged bucket passes at least the rate, and at
    /// most the rate plus a burst.
    #[test]
    fn tbf_keeps_its_rate(
        megabits in 1u64..5000,
        burst in 2000u32..200_000,
        payloads in prop::collection::vec(1u32..65_160, 1..4),
    ) {
        let rate = megabits * 1_000_000;
        let kind = Kind::Tbf(TbfConfig::new(rate, burst, Kind::Pfifo { limit: 10_000 }));
        let mut qdisc = Qdisc::new(&kind, 0).expect("valid");
        let mut now = Time::ZERO;
        let (mut sent, mut segments) = (0u64, 0);
        for payload in payloads.iter().cycle().take(60) {
            prop_assert_eq!(qdisc.enqueue(now, segment(0, 0, *payload)), None);
            loop {
                match qdisc.dequeue(now) {
                    Dequeued::Segment(segment) => {
                        sent += u64::from(segment.frame_bytes());
                        // Each transmission time is rounded down to a picosecond.
                        segments += 1;
                        let allowed = f64::from(burst) + rate as f64 / 8.0 * (now + segments).seconds();
                        prop_assert!(sent as f64 <= allowed * (1.0 + 1e-9));
                    }
                    Dequeued::Wait(time) => now = time,
                    Dequeued::Empty => break,
                }
            }
        }
        // No tokens were lost: every wait was only for the missing tokens of the next segment.
        let least = rate as f64 / 8.0 * now.seconds();
        prop_assert!(sent as f64 >= least * (1.0 - 1e-9) - 1.0);
    }

    /// Checks the rates and ceilings of `htb` classes. A class may overdraw its tokens by one segment.
    #[test]
    fn htb_keeps_its_ceilings(
        megabits in prop::collection::vec(1u64..200, 3..6),
        payload in 1u32..20_000,
        priorities in prop::collection::vec(0u8..3, 6..7),
    ) {
        let total = 300_000_000;
        let class = |rate, ceiling, priority, content| HtbClass {
            rate, ceiling, burst: 4000, ceiling_burst: 4000, priority, quantum: None, content,
        };
        let leaf = |(index, megabits): (usize, &u64)| {
            let rate = megabits * 1_000_000;
            class(rate, 2 * rate, priorities[index], HtbContent::Leaf(Kind::Pfifo { limit: 100 }))
        };
        let leaves = megabits.iter().enumerate().map(leaf).collect();
        let roots = vec![class(total, total, 0, HtbContent::Inner(leaves))];
        let kind = Kind::Htb(HtbConfig::new(Classifier::Flow, roots));
        let templates: Vec<Segment> = (0..megabits.len()).map(|flow| segment(flow as u32, 0, payload)).collect();
        let mut saturated = Saturated::new(Qdisc::new(&kind, 0).expect("valid"), &templates, 3);
        let length = f64::from(templates[0].frame_bytes());
        let assured: u64 = megabits.iter().sum();
        for _ in 0..400 {
            saturated.send();
            let allowed = |rate: u64| 4000.0 + length + rate as f64 / 8.0 * saturated.now.seconds();
            for (flow, megabits) in megabits.iter().enumerate() {
                let sent = saturated.sent[&(flow as u32)] as f64;
                prop_assert!(sent <= allowed(2_000_000 * megabits) + 1.0);
                let least = allowed(1_000_000 * megabits) - 4000.0 - 2.0 * length;
                prop_assert!(sent >= least - 1.0, "class {flow}: {sent} < {least}");
            }
            if assured <= 300 {
                // The root enforces its ceiling if the sum of the leaves' rates is at most this
                // ceiling.
                let sent: u64 = saturated.sent.values().sum();
                let depth = megabits.len() as f64 * (4000.0 + length);
                prop_assert!(sent as f64 <= allowed(total) + depth);
            }
        }
    }
}

#[test]
fn wait_times_are_exact() {
    let kind = Kind::Tbf(TbfConfig::new(8_000_000, 100, Kind::Pfifo { limit: 9 }));
    let mut qdisc = Qdisc::new(&kind, 0).expect("valid");
    for _ in 0..2 {
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(0, 0, 1)), None);
    }
    assert!(matches!(qdisc.dequeue(Time::ZERO), Dequeued::Segment(_)));
    // The next segment needs 67 bytes at 1 MB/s; 33 bytes of tokens are available.
    assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Wait(Time(34 * MICROSECOND)));
}
