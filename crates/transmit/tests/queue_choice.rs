//! Properties of the queue choice, tested with the C code that the kernel runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Barrier;

use evenkeel_transmit::{FlowWord, MAX_QUEUES, Outcome, Policy, Pool, QueueWeights, Segment, raw};
use proptest::prelude::*;

/// A flow as the host sees it: its outstanding segments, and its state in the queue choice.
#[derive(Default)]
struct Flow {
    word: FlowWord,
    outstanding: u32,
    queue: Option<u32>,
    weight: u32,
    hash: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Acknowledge(usize),
    Complete(usize),
    /// A qdisc drops a segment, so there is no completion.
    Drop(usize),
    /// The flow is released by age, even if it has segments outstanding.
    Age(usize),
}

fn steps(flows: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0..flows, 0..100_u32).prop_map(|(flow, kind)| match kind {
        0..45 => Step::Send(flow),
        45..50 => Step::Acknowledge(flow),
        50..92 => Step::Complete(flow),
        92..96 => Step::Drop(flow),
        _ => Step::Age(flow),
    });
    proptest::collection::vec(step, 1..400)
}

/// Returns the expected weights: for each queue, the sum of the weights that flows have charged to the queue.
fn expected_weights(flows: &[Flow]) -> Vec<u32> {
    let mut weights = vec![0; MAX_QUEUES];
    for flow in flows {
        let word = flow.word.read();
        if let Some(queue) = word.queue() {
            weights[queue as usize] += word.charged_weight();
        }
    }
    weights
}

fn check_weights(queues: &QueueWeights, flows: &[Flow]) {
    for (queue, expected) in expected_weights(flows).into_iter().enumerate() {
        assert_eq!(queues.weight(queue as u32), expected, "weight of queue {queue}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A queue's weight must always equal the sum of the weights of its active flows, and must be 0 at the
    /// end. No other allowed queue has a smaller weight than the chosen queue. A flow with data outstanding
    /// keeps its queue.
    #[test]
    fn a_host_keeps_its_weights(
        steps in steps(20),
        first in 0..200_u32,
        count in 1..=56_u32,
        held_by_kernel in any::<bool>(),
        weights in proptest::collection::vec(1..1000_u32, 20),
        hashes in proptest::collection::vec(any::<u32>(), 20),
    ) {
        let pool = Pool { first, count };
        let queues = QueueWeights::new();
        let mut flows: Vec<Flow> = weights
            .iter()
            .zip(&hashes)
            .map(|(&weight, &hash)| Flow { weight, hash, ..Flow::default() })
            .collect();
        for step in steps {
            match step {
                Step::Send(index) | Step::Acknowledge(index) => {
                    let data = matches!(step, Step::Send(_));
                    let flow = &flows[index];
                    let idle = flow.outstanding == 0;
                    let segment = Segment {
                        pool, policy: Policy::Dqa, hash: flow.hash, weight: flow.weight, idle,
                        held_on: flow.queue.filter(|_| held_by_kernel), wanted: None, data,
                    };
                    let others: Vec<u32> = (first..first + count)
                        .map(|queue| {
                            let word = flow.word.read();
                            let own = if word.queue() == Some(queue) { word.charged_weight() } else { 0 };
                            queues.weight(queue) - own
                        })
                        .collect();
                    let before = flow.word.read();
                    let choice = queues.choose(&flow.word, &segment);
                    prop_assert!((first..first + count).contains(&choice.queue));
                    if data {
                        let lightest = others.iter().min().unwrap();
                        match choice.outcome {
                            Outcome::Picked => prop_assert_eq!(others[(choice.queue - first) as usize], *lightest),
                            Outcome::Kept | Outcome::Recharged => prop_assert_eq!(Some(choice.queue), flow.queue),
                            other => panic!("unexpected {other:?}"),
                        }
                        if !idle {
                            prop_assert_eq!(Some(choice.queue), flow.queue, "moved with data outstanding");
                        }
                        prop_assert_eq!(flow.word.read().charged_weight(), flow.weight);
                        let flow = &mut flows[index];
                        flow.queue = Some(choice.queue);
                        flow.outstanding += 1;
                    } else {
                        prop_assert_eq!(choice.outcome, Outcome::Uncharged);
                        prop_assert_eq!(flow.word.read(), before);
                        if !idle { prop_assert_eq!(Some(choice.queue), flow.queue); }
                    }
                }
                Step::Complete(index) => {
                    let flow = &mut flows[index];
                    let seen = flow.word.read();
                    flow.outstanding = flow.outstanding.saturating_sub(1);
                    if flow.outstanding == 0 {
                        let charged = seen.charged_weight() > 0;
                        prop_assert_eq!(queues.release(&flow.word, seen, false), charged);
                        prop_assert!(!queues.release(&flow.word, seen, false), "released twice");
                    }
                }
                Step::Drop(index) => flows[index].outstanding = flows[index].outstanding.saturating_sub(1),
                Step::Age(index) => {
                    let _ = queues.release(&flows[index].word, flows[index].word.read(), true);
                }
            }
            check_weights(&queues, &flows);
        }
        // All flows become idle. Ageing releases flows with dropped segments.
        for flow in &flows {
            let _ = queues.release(&flow.word, flow.word.read(), true);
        }
        prop_assert_eq!(queues.total(), 0);
    }

    /// The kernel's loop and the vectorized search must find the same queue: of the queues with the
    /// smallest weight, the first queue in circular order from the preferred queue.
    #[test]
    fn both_ways_find_the_lightest_queue(
        weights in prop_oneof![
            proptest::collection::vec(any::<u32>(), MAX_QUEUES),
            proptest::collection::vec(0..3_u32, MAX_QUEUES),
            proptest::collection::vec(1..4_u32, MAX_QUEUES),
        ],
        (first, count) in (0..MAX_QUEUES as u32).prop_flat_map(|first| (Just(first), 1..=MAX_QUEUES as u32 - first)),
        preferred in any::<prop::sample::Index>(),
    ) {
        let preferred = preferred.index(count as usize) as u32;
        let round = (preferred..count).chain(0..preferred).map(|offset| first + offset);
        // `min_by_key` returns the first of equal elements.
        let expected = round.min_by_key(|&queue| weights[queue as usize]).unwrap();
        let pool = raw::ek_pool { first, count };
        let mut least = [0; 2];
        // SAFETY: the functions read all weights, as many as they may read, and write the number to the last
        // pointer.
        let found = unsafe {
            [
                raw::ek_shim_least_by_steps(weights.as_ptr(), pool, first + preferred, &raw mut least[0]),
                raw::ek_shim_least_at_once(weights.as_ptr(), pool, first + preferred, &raw mut least[1]),
            ]
        };
        prop_assert_eq!(found, [expected; 2]);
        prop_assert_eq!(least, [weights[expected as usize]; 2]);
    }

    /// The numbers of equal, active flows on two queues must differ by at most one.
    #[test]
    fn equal_flows_spread_evenly(count in 1..=256_u32, flows in 1..600_usize, seed in any::<u32>()) {
        let queues = QueueWeights::new();
        let words: Vec<FlowWord> = (0..flows).map(|_| FlowWord::new()).collect();
        for (index, word) in words.iter().enumerate() {
            let hash = seed.wrapping_mul(2_654_435_761).wrapping_add((index as u32).wrapping_mul(0x9e37_79b9));
            let choice = queues.choose(word, &Segment {
                pool: Pool { first: 0, count }, policy: Policy::Dqa, hash, ..Segment::default()
            });
            prop_assert_eq!(choice.outcome, Outcome::Picked);
        }
        let loads: Vec<u32> = (0..count).map(|queue| queues.weight(queue)).collect();
        prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{:?}", loads);
    }

    /// Hashing must use the kernel's reciprocal_scale and charge the chosen queue.
    #[test]
    fn hash_is_the_kernels(hash in any::<u32>(), first in 0..128_u32, count in 1..=128_u32) {
        let queues = QueueWeights::new();
        let flow = FlowWord::new();
        let choice = queues.choose(&flow, &Segment { pool: Pool { first, count }, hash, ..Segment::default() });
        prop_assert_eq!(u64::from(choice.queue), u64::from(first) + ((u64::from(hash) * u64::from(count)) >> 32));
        prop_assert_eq!(queues.weight(choice.queue), 1);
    }
}

#[test]
fn a_tie_keeps_the_previous_queue() {
    let queues = QueueWeights::new();
    let flow = FlowWord::new();
    let segment = Segment {
        pool: Pool { first: 0, count: 8 },
        policy: Policy::Dqa,
        hash: u32::MAX,
        ..Segment::default()
    };
    for _ in 0..5 {
        assert_eq!(queues.choose(&flow, &segment).queue, 7);
        assert!(queues.release(&flow, flow.read(), false));
    }
}

#[test]
fn a_completion_that_raced_with_a_new_segment_releases_nothing() {
    let queues = QueueWeights::new();
    let flow = FlowWord::new();
    let segment = Segment { pool: Pool { first: 0, count: 8 }, policy: Policy::Dqa, ..Segment::default() };
    let queue = queues.choose(&flow, &segment).queue;
    let seen = flow.read();
    assert_eq!(queues.choose(&flow, &Segment { idle: false, ..segment }).outcome, Outcome::Kept);
    assert!(!queues.release(&flow, seen, false), "the second segment is still queued");
    assert_eq!(queues.weight(queue), 1);
}

#[test]
fn a_flow_that_the_kernel_holds_is_followed() {
    let queues = QueueWeights::new();
    let flow = FlowWord::new();
    let segment = Segment { pool: Pool { first: 0, count: 8 }, policy: Policy::Dqa, ..Segment::default() };
    let own = queues.choose(&flow, &segment).queue;
    // The driver chose another queue, so the charge moves to the flow's real queue.
    let elsewhere = (own + 3) % 8;
    let choice = queues.choose(&flow, &Segment { idle: false, held_on: Some(elsewhere), ..segment });
    assert_eq!((choice.queue, choice.outcome), (elsewhere, Outcome::Recharged));
    assert_eq!((queues.weight(own), queues.weight(elsewhere)), (0, 1));
}

#[test]
fn a_flow_takes_the_wanted_queue_only_when_it_may_move() {
    let queues = QueueWeights::new();
    let (flow, other) = (FlowWord::new(), FlowWord::new());
    let segment = Segment { pool: Pool { first: 0, count: 8 }, policy: Policy::Dqa, ..Segment::default() };
    let own = queues.choose(&flow, &segment).queue;
    let wanted = (own + 3) % 8;
    // An idle flow takes the wanted queue, although this queue has another flow and other queues are empty. A
    // flow that is not idle keeps its queue.
    assert_eq!(queues.choose(&other, &Segment { hash: wanted << 29, ..segment }).queue, wanted);
    let asking = Segment { wanted: Some(wanted), ..segment };
    let choice = queues.choose(&flow, &Segment { idle: false, ..asking });
    assert_eq!((choice.queue, choice.outcome), (own, Outcome::Kept));
    let choice = queues.choose(&flow, &asking);
    assert_eq!((choice.queue, choice.outcome), (wanted, Outcome::Picked));
    assert_eq!((queues.weight(own), queues.weight(wanted)), (0, 2));
    // A wanted queue outside the pool is ignored. The flow takes the queue of the pool with the
    // smallest weight.
    let pool = Pool { first: 0, count: wanted.max(1) };
    assert!(
        queues.choose(&flow, &Segment { pool, wanted: Some(wanted.max(1)), ..asking }).queue < pool.count
    );
}

/// Cores that choose, send and complete concurrently must neither lose nor create weight.
#[test]
fn threads_conserve_weight() {
    const THREADS: usize = 4;
    const ROUNDS: u32 = 20_000;
    let queues = QueueWeights::new();
    // Only one thread sends a flow, because the kernel holds the socket lock. All threads complete the flow.
    let flows: Vec<FlowWord> = (0..THREADS * 4).map(|_| FlowWord::new()).collect();
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (queues, flows, start) = (&queues, &flows, &start);
            scope.spawn(move || {
                start.wait();
                let mut random = thread as u32 + 1;
                for round in 0..ROUNDS {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let own = &flows[thread * 4 + (random >> 8) as usize % 4];
                    let segment = Segment {
                        pool: Pool { first: 0, count: 5 },
                        policy: Policy::Dqa,
                        hash: random,
                        weight: 1 + round % 3,
                        idle: random & 1 == 0,
                        ..Segment::default()
                    };
                    let _ = queues.choose(own, &segment);
                    let other = &flows[(random >> 16) as usize % flows.len()];
                    let _ = queues.release(other, other.read(), random & 2 == 0);
                }
            });
        }
    });
    let charged: u64 = flows.iter().map(|flow| u64::from(flow.read().charged_weight())).sum();
    assert_eq!(queues.total(), charged);
    for flow in &flows {
        let _ = queues.release(flow, flow.read(), false);
    }
    assert_eq!(queues.total(), 0);
}
