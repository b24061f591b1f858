//! Tests of service balancing in a simple model with queues of equal rate. The flows of a queue get
//! equal shares.
#![allow(clippy::unwrap_used)]

use evenkeel_transmit::service::{Move, ServiceBalancer, ServiceOptions, ServiceSample};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// Bytes per millisecond of a queue at 250 Mbit/s.
const QUEUE_BYTES: u64 = 31_250;
const OPTIONS: ServiceOptions = ServiceOptions {
    time_constant_ns: 10_000 * MS,
    least_gap_bytes: 131_072,
    least_interval_ns: 20 * MS,
    patience_ns: 500 * MS,
};

/// Flows on queues of equal rate. A queue's backlogged flows get equal shares.
struct Toy {
    queues: u32,
    flows: Vec<ServiceSample>,
    now_ns: u64,
}

impl Toy {
    fn new(queues: u32, places: &[u32]) -> Self {
        let flows = places.iter().zip(100..).map(|(queue, flow)| ServiceSample {
            flow,
            queue: *queue,
            weight: 1,
            served_bytes: Some(0),
            backlogged: true,
            movable: true,
        });
        Self { queues, flows: flows.collect(), now_ns: 0 }
    }

    fn serve(&mut self, milliseconds: u64) {
        self.now_ns += milliseconds * MS;
        for queue in 0..self.queues {
            let sharing = |flow: &&mut ServiceSample| flow.queue == queue && flow.backlogged;
            let count = self.flows.iter_mut().filter(sharing).count() as u64;
            for flow in self.flows.iter_mut().filter(sharing) {
                flow.served_bytes = flow.served_bytes.map(|bytes| bytes + milliseconds * QUEUE_BYTES / count);
            }
        }
    }

    /// Serves in steps of 10 ms. A move takes 20 ms. Returns the number of moves.
    fn balance(&mut self, balancer: &mut ServiceBalancer, milliseconds: u64) -> usize {
        let mut pending: Option<(u64, Move)> = None;
        let mut moves = 0;
        for _ in 0..milliseconds / 10 {
            self.serve(10);
            balancer.sample(self.now_ns, &self.flows);
            match pending {
                Some((at, chosen)) if self.now_ns >= at => {
                    let flow = self.flows.iter_mut().find(|flow| flow.flow == chosen.flow).unwrap();
                    assert_eq!(flow.queue, chosen.from);
                    flow.queue = chosen.to;
                    pending = None;
                }
                Some(_) => {}
                None => {
                    pending = balancer.next_move(self.now_ns).map(|chosen| (self.now_ns + 20 * MS, chosen))
                }
            }
            moves += usize::from(pending.is_some_and(|(at, _)| at == self.now_ns + 20 * MS));
        }
        moves
    }

    fn served(&self) -> Vec<u64> {
        self.flows.iter().filter_map(|flow| flow.served_bytes).collect()
    }

    /// Returns the normalised fairness metric of the service since `before`: the largest difference divided
    /// by the mean.
    fn unfairness_since(&self, before: &[u64]) -> f64 {
        let gains: Vec<u64> = self.served().iter().zip(before).map(|(now, before)| now - before).collect();
        let mean = gains.iter().sum::<u64>() as f64 / gains.len() as f64;
        (gains.iter().max().unwrap() - gains.iter().min().unwrap()) as f64 / mean
    }
}

/// Twelve flows on eight queues, as dynamic queue assignment places them.
const TWELVE_ON_EIGHT: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3];

#[test]
fn twelve_flows_on_eight_queues_take_turns() {
    let mut toy = Toy::new(8, &TWELVE_ON_EIGHT);
    toy.serve(5000);
    let unfair = toy.unfairness_since(&[0; 12]);
    assert!((unfair - 0.75).abs() < 0.01, "without balancing it is a lone flow's advantage: {unfair}");

    let mut toy = Toy::new(8, &TWELVE_ON_EIGHT);
    let mut balancer = ServiceBalancer::new(8, OPTIONS);
    let moves = toy.balance(&mut balancer, 5000);
    let unfair = toy.unfairness_since(&[0; 12]);
    assert!(unfair < 0.1, "{unfair} with {moves} moves");
    assert!(moves <= 5000 / 20, "at most one in an interval");
}

#[test]
fn the_flow_that_leads_on_a_shared_queue_joins_the_one_that_leads_alone() {
    let mut toy = Toy::new(3, &[0, 0, 1, 2]);
    let mut balancer = ServiceBalancer::new(3, OPTIONS);
    balancer.sample(0, &toy.flows);
    // Flow 100 leads its neighbour. Flow 103 leads the other flow with its own queue.
    for (flow, bytes) in toy.flows.iter_mut().zip([2_000_000, 1_000_000, 3_000_000, 4_000_000]) {
        flow.served_bytes = Some(bytes);
    }
    balancer.sample(100 * MS, &toy.flows);
    assert_eq!(balancer.next_move(100 * MS), Some(Move { flow: 100, from: 0, to: 2 }));
    assert_eq!(balancer.next_move(110 * MS), None, "one in an interval");
}

#[test]
fn what_is_not_worth_it_is_left() {
    let mut toy = Toy::new(3, &[0, 0, 1, 2]);
    let mut balancer = ServiceBalancer::new(3, OPTIONS);
    balancer.sample(0, &toy.flows);
    for (flow, bytes) in toy.flows.iter_mut().zip([0, 0, 0, OPTIONS.least_gap_bytes - 1]) {
        flow.served_bytes = Some(bytes);
    }
    balancer.sample(10 * MS, &toy.flows);
    assert_eq!(balancer.next_move(10 * MS), None);
    toy.flows[3].served_bytes = Some(2 * OPTIONS.least_gap_bytes);
    balancer.sample(20 * MS, &toy.flows);
    assert!(balancer.next_move(20 * MS).is_some());
}

#[test]
fn an_empty_queue_is_taken_by_the_one_that_lags_most_in_the_largest_crowd() {
    let mut toy = Toy::new(3, &[0, 0, 1, 1, 1]);
    let mut balancer = ServiceBalancer::new(3, OPTIONS);
    balancer.sample(0, &toy.flows);
    for (flow, bytes) in toy.flows.iter_mut().zip([10, 0, 30, 20, 40]) {
        flow.served_bytes = Some(bytes);
    }
    balancer.sample(10 * MS, &toy.flows);
    assert_eq!(balancer.next_move(10 * MS), Some(Move { flow: 103, from: 1, to: 2 }));
}

#[test]
fn a_flow_that_could_not_be_moved_is_left_alone_for_a_while() {
    let mut toy = Toy::new(2, &[0, 0, 1]);
    let mut balancer = ServiceBalancer::new(2, OPTIONS);
    balancer.sample(0, &toy.flows);
    toy.serve(200);
    balancer.sample(toy.now_ns, &toy.flows);
    let first = balancer.next_move(toy.now_ns).unwrap();
    balancer.refused(toy.now_ns, first.flow);
    toy.serve(20);
    balancer.sample(toy.now_ns, &toy.flows);
    let second = balancer.next_move(toy.now_ns).unwrap();
    assert_ne!(first.flow, second.flow);
    balancer.refused(toy.now_ns, second.flow);
    toy.serve(20);
    balancer.sample(toy.now_ns, &toy.flows);
    assert_eq!(balancer.next_move(toy.now_ns), None, "both are left alone");
    toy.serve(500);
    balancer.sample(toy.now_ns, &toy.flows);
    assert!(balancer.next_move(toy.now_ns).is_some());
}

#[test]
fn a_flow_that_does_not_take_its_share_is_owed_nothing() {
    let mut toy = Toy::new(2, &[0, 0, 1]);
    // Flow 102, alone on its queue, sends almost no data.
    toy.flows[2].backlogged = false;
    let mut balancer = ServiceBalancer::new(2, OPTIONS);
    toy.balance(&mut balancer, 1000);
    assert_eq!(balancer.lead(102), Some(0.0));
    // Each of the other two flows has its own queue, because flow 102's queue counts as empty.
    assert_ne!(toy.flows[0].queue, toy.flows[1].queue);
}

#[test]
fn a_flow_that_cannot_be_moved_takes_part_without_moving() {
    let mut toy = Toy::new(2, &[0, 0, 1]);
    toy.flows[0].movable = false;
    toy.flows[0].served_bytes = None;
    let mut balancer = ServiceBalancer::new(2, OPTIONS);
    toy.balance(&mut balancer, 3000);
    assert_eq!(toy.flows[0].queue, 0);
    let (second, third) = (toy.flows[1].served_bytes.unwrap(), toy.flows[2].served_bytes.unwrap());
    assert!(second.abs_diff(third) < third / 10, "{second} and {third}");
}

#[test]
fn weights_are_what_service_is_divided_by() {
    // A flow of weight 2 alone on a queue gets its share, next to two flows of weight 1 on the other
    // queue.
    let mut toy = Toy::new(2, &[0, 0, 1]);
    toy.flows[2].weight = 2;
    let mut balancer = ServiceBalancer::new(2, OPTIONS);
    assert_eq!(toy.balance(&mut balancer, 3000), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_run_shares_even_out(
        queues in 1..=10_u32,
        places in proptest::collection::vec(any::<u32>(), 1..30),
    ) {
        let places: Vec<u32> = places.iter().map(|place| place % queues).collect();
        let mut toy = Toy::new(queues, &places);
        let mut balancer = ServiceBalancer::new(queues, OPTIONS);
        toy.balance(&mut balancer, 20_000);
        let before = toy.served();
        toy.balance(&mut balancer, 10_000);
        let unfair = toy.unfairness_since(&before);
        prop_assert!(unfair < 0.15, "{} over 10 s", unfair);
        let occupied = (0..queues).filter(|queue| toy.flows.iter().any(|flow| flow.queue == *queue)).count();
        prop_assert_eq!(occupied, places.len().min(queues as usize), "an empty queue while another is shared");
    }

    #[test]
    fn even_queues_are_left_alone(
        queues in 1..=8_u32,
        each in 1..=4_u32,
        served in proptest::collection::vec(0..1_u64 << 40, 32),
    ) {
        let places: Vec<u32> = (0..queues * each).map(|flow| flow % queues).collect();
        let mut toy = Toy::new(queues, &places);
        let mut balancer = ServiceBalancer::new(queues, OPTIONS);
        balancer.sample(0, &toy.flows);
        for (flow, bytes) in toy.flows.iter_mut().zip(&served) {
            flow.served_bytes = Some(*bytes);
        }
        balancer.sample(100 * MS, &toy.flows);
        prop_assert_eq!(balancer.next_move(100 * MS), None);
    }

    #[test]
    fn leads_add_up_to_nothing(places in proptest::collection::vec(0..5_u32, 1..20)) {
        let mut toy = Toy::new(5, &places);
        let mut balancer = ServiceBalancer::new(5, OPTIONS);
        toy.balance(&mut balancer, 1000);
        let sum: f64 = toy.flows.iter().filter_map(|flow| balancer.lead(flow.flow)).sum();
        prop_assert!(sum.abs() < 1.0, "{}", sum);
    }
}
