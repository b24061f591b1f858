#![allow(clippy::expect_used)]

use super::super::testing::{Saturated, drain, segment};
use super::super::{Kind, Qdisc, TbfConfig};
use super::*;
use crate::time::{MICROSECOND, MILLISECOND};

const MEGABIT: u64 = 1_000_000;

fn class(rate: u64, ceiling: u64, content: HtbContent) -> HtbClass {
    HtbClass {
        rate: rate * MEGABIT,
        ceiling: ceiling * MEGABIT,
        burst: 3000,
        ceiling_burst: 3000,
        priority: 0,
        quantum: None,
        content,
    }
}

fn leaf(rate: u64, ceiling: u64) -> HtbClass {
    class(rate, ceiling, HtbContent::Leaf(Kind::Pfifo { limit: 1000 }))
}

fn htb(roots: Vec<HtbClass>) -> Qdisc {
    Qdisc::new(&Kind::Htb(HtbConfig::new(Classifier::Flow, roots)), 0).expect("valid")
}

/// Returns the rates in Mbit/s of flows that are always backlogged with segments of this payload, after
/// ten seconds.
fn rates(roots: Vec<HtbClass>, flows: u32, payload: u32) -> Vec<f64> {
    let templates: Vec<Segment> = (0..flows).map(|flow| segment(flow, 0, payload)).collect();
    Saturated::new(htb(roots), &templates, 4).rates_after(Time(10 * SECOND))
}

fn assert_rates(found: &[f64], expected: &[f64]) {
    let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 0.01 * expected + 0.02;
    assert!(found.iter().zip(expected).all(close), "{found:?} are not {expected:?}");
}

#[test]
fn a_class_by_itself_has_a_burst_and_its_rate() {
    // The rate is 1 MB/s. The class may send a segment while its tokens are not negative.
    let mut qdisc = htb(vec![leaf(8, 8)]);
    for sequence in 0..6 {
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(0, sequence, 934)), None);
    }
    // Before the first four segments, the class has 3000, 2000, 1000 and 0 bytes of tokens.
    assert_eq!(drain(&mut qdisc, Time::ZERO).len(), 4);
    assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Wait(Time(1000 * MICROSECOND)));
    assert_eq!(drain(&mut qdisc, Time(999 * MICROSECOND)), []);
    assert_eq!(drain(&mut qdisc, Time(1000 * MICROSECOND)), [(0, 4)]);
    assert_eq!(drain(&mut qdisc, Time(2000 * MICROSECOND)), [(0, 5)]);
    assert_eq!(qdisc.dequeue(Time(3000 * MICROSECOND)), Dequeued::Empty);
}

#[test]
fn a_ceiling_below_the_rate_counts() {
    let mut qdisc = htb(vec![leaf(800, 8)]);
    for sequence in 0..5 {
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(0, sequence, 934)), None);
    }
    assert_eq!(drain(&mut qdisc, Time::ZERO).len(), 4);
    assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Wait(Time(1000 * MICROSECOND)));
}

#[test]
fn what_is_left_is_shared_by_quanta() {
    // The quanta are a tenth of the rates in byte/s: 25 000 and 50 000. The remaining 4 Mbit/s are
    // shared as one third and two thirds.
    let tree = || vec![class(10, 10, HtbContent::Inner(vec![leaf(2, 10), leaf(4, 10)]))];
    assert_rates(&rates(tree(), 2, 1448), &[2.0 + 4.0 / 3.0, 4.0 + 8.0 / 3.0]);
    // A flow without competitors gets the full rate.
    assert_rates(&rates(tree(), 1, 1448), &[10.0]);
}

#[test]
fn a_ceiling_bounds_borrowing() {
    // The quanta are small: a class that reaches its ceiling within a turn must wait for its next turn.
    let first = HtbClass { quantum: Some(1514), ..leaf(2, 3) };
    let second = HtbClass { quantum: Some(3028), ..leaf(4, 10) };
    let tree = vec![class(10, 10, HtbContent::Inner(vec![first, second]))];
    assert_rates(&rates(tree, 2, 1448), &[3.0, 7.0]);
}

#[test]
fn the_lower_priority_number_borrows_first() {
    let urgent = HtbClass { priority: 0, ..leaf(2, 10) };
    let patient = HtbClass { priority: 3, ..leaf(2, 10) };
    let tree = vec![class(10, 10, HtbContent::Inner(vec![patient, urgent]))];
    assert_rates(&rates(tree, 2, 1448), &[2.0, 8.0]);
}

#[test]
fn quanta_weight_the_queues_of_a_soft_nic() {
    // The leaves have a negligible rate, the root has line rate, and segments are whole GSO segments.
    let queue = |weight: u32| HtbClass {
        rate: 8000,
        ceiling: 1000 * MEGABIT,
        ceiling_burst: 70_000,
        quantum: Some(weight * 70_000),
        ..leaf(1, 1)
    };
    let root = HtbClass {
        burst: 70_000,
        ceiling_burst: 70_000,
        ..class(1000, 1000, HtbContent::Inner(vec![queue(1), queue(2), queue(3)]))
    };
    let found = rates(vec![root], 3, 65_160);
    assert_rates(&found, &[1000.0 / 6.0, 1000.0 / 3.0, 500.0]);
}

#[test]
fn levels_borrow_through_each_other() {
    // Two departments have rates of 6 and 4 Mbit/s. The leaves of the first department may use its
    // whole rate. The department may borrow only up to 7 of the 10 Mbit/s.
    let first = class(6, 7, HtbContent::Inner(vec![leaf(1, 10), leaf(1, 10)]));
    let second = class(4, 10, HtbContent::Inner(vec![leaf(1, 10)]));
    let tree = || vec![class(10, 10, HtbContent::Inner(vec![first.clone(), second.clone()]))];
    // Leaves 0 and 1 alone reach the ceiling of their department.
    assert_rates(&rates(tree(), 2, 1448), &[3.5, 3.5]);
    assert_rates(&rates(tree(), 3, 1448), &[3.0, 3.0, 4.0]);
}

#[test]
fn separate_roots_do_not_lend() {
    assert_rates(&rates(vec![leaf(2, 10), leaf(3, 3)], 2, 1448), &[2.0, 3.0]);
}

#[test]
fn a_shaper_below_does_not_block_its_siblings() {
    let shaper = TbfConfig::new(MEGABIT, 3000, Kind::Pfifo { limit: 1000 });
    let shaped = class(5, 10, HtbContent::Leaf(Kind::Tbf(shaper)));
    let tree = vec![class(10, 10, HtbContent::Inner(vec![shaped, leaf(5, 10)]))];
    assert_rates(&rates(tree, 2, 1448), &[1.0, 9.0]);
}

#[test]
fn tokens_while_idle_end_at_the_burst() {
    let mut qdisc = htb(vec![leaf(8, 8)]);
    let later = Time(500 * MILLISECOND);
    for sequence in 0..6 {
        assert_eq!(qdisc.enqueue(later, segment(0, sequence, 934)), None);
    }
    assert_eq!(drain(&mut qdisc, later).len(), 4);
}

#[test]
fn rejects_what_makes_no_tree() {
    let nested =
        |depth: usize| (0..depth).fold(leaf(1, 1), |below, _| class(1, 1, HtbContent::Inner(vec![below])));
    let make = |root| Qdisc::new(&Kind::Htb(HtbConfig::new(Classifier::Flow, vec![root])), 0);
    assert!(make(nested(7)).is_ok());
    assert!(make(nested(8)).is_err());
    assert!(make(class(1, 1, HtbContent::Inner(Vec::new()))).is_err());
    assert!(make(leaf(0, 1)).is_err());
    assert!(
        make(class(1, 1, HtbContent::Leaf(Kind::Prio { classifier: Classifier::Band, bands: Vec::new() })))
            .is_err()
    );
}

#[test]
fn what_has_no_class_goes_directly_and_first() {
    let classifier = Classifier::Table([0, u32::MAX].into());
    let config = HtbConfig { direct_limit: 2, ..HtbConfig::new(classifier, vec![leaf(8, 8)]) };
    let mut qdisc = Qdisc::new(&Kind::Htb(config), 0).expect("valid");
    for sequence in 0..6 {
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(0, sequence, 934)), None);
    }
    // The direct queue holds two segments. Flow 1 has no class. Flow 7 is not in the table and has no
    // class.
    assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, 0, 934)), None);
    assert_eq!(qdisc.enqueue(Time::ZERO, segment(7, 0, 934)), None);
    assert!(qdisc.enqueue(Time::ZERO, segment(1, 1, 934)).is_some());
    assert_eq!((qdisc.len(), qdisc.backlog_bytes()), (8, 8000));
    let order = drain(&mut qdisc, Time::ZERO);
    assert_eq!(order, [(1, 0), (7, 0), (0, 0), (0, 1), (0, 2), (0, 3)]);
    assert_eq!(qdisc.overlimits(), [1]);
}

#[test]
fn hysteresis_lets_the_tokens_of_a_class_become_negative() {
    let config = |hysteresis| HtbConfig { hysteresis, ..HtbConfig::new(Classifier::Flow, vec![leaf(8, 8)]) };
    let burst = |hysteresis| {
        let mut qdisc = Qdisc::new(&Kind::Htb(config(hysteresis)), 0).expect("valid");
        for sequence in 0..20 {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(0, sequence, 934)), None);
        }
        drain(&mut qdisc, Time::ZERO).len()
    };
    // The class has 3000 bytes of tokens. It sends a segment of 1000 bytes while its tokens are at
    // least 0, or at least -3000 with hysteresis.
    assert_eq!((burst(false), burst(true)), (4, 7));
}
