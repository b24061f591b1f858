#![allow(clippy::expect_used)]

use super::super::testing::{Saturated, drain, segment};
use super::super::{Kind, Qdisc};
use super::*;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

const MEGABIT: u64 = 1_000_000;

fn flat(rate: u64) -> Option<ServiceCurve> {
    Some(ServiceCurve { first: rate * MEGABIT, delay: 0, second: rate * MEGABIT })
}

fn leaf(real_time: Option<ServiceCurve>, link_share: u64, upper_limit: Option<ServiceCurve>) -> HfscClass {
    let link_share = flat(link_share).filter(|curve| curve.second > 0);
    HfscClass { real_time, link_share, upper_limit, content: HfscContent::Leaf(1000) }
}

fn inner(link_share: u64, upper_limit: Option<ServiceCurve>, children: Vec<HfscClass>) -> HfscClass {
    HfscClass { content: HfscContent::Inner(children), ..leaf(None, link_share, upper_limit) }
}

fn hfsc(classes: Vec<HfscClass>) -> Qdisc {
    Qdisc::new(&Kind::Hfsc(HfscConfig { classifier: Classifier::Flow, classes }), 0).expect("valid")
}

/// Returns the rates in Mbit/s of backlogged flows with segments of 1448 bytes, after ten seconds.
fn rates(classes: Vec<HfscClass>, flows: u32) -> Vec<f64> {
    let templates: Vec<Segment> = (0..flows).map(|flow| segment(flow, 0, 1448)).collect();
    Saturated::new(hfsc(classes), &templates, 4).rates_after(Time(10 * SECOND))
}

fn assert_rates(found: &[f64], expected: &[f64]) {
    let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 0.01 * expected + 0.02;
    assert!(found.iter().zip(expected).all(close), "{found:?} are not {expected:?}");
}

#[test]
fn a_limited_parent_is_shared_by_the_link_share_curves() {
    let tree =
        |first, second| vec![inner(10, flat(10), vec![leaf(None, first, None), leaf(None, second, None)])];
    assert_rates(&rates(tree(2, 6), 2), &[2.5, 7.5]);
    assert_rates(&rates(tree(2, 6), 1), &[10.0]);
}

#[test]
fn an_upper_limit_leaves_the_rest_to_the_others() {
    let tree = vec![inner(10, flat(10), vec![leaf(None, 5, flat(2)), leaf(None, 5, None)])];
    assert_rates(&rates(tree, 2), &[2.0, 8.0]);
}

#[test]
fn a_real_time_curve_is_kept_whatever_the_shares() {
    // By its link share, the first class would get a hundredth of 10 Mbit/s.
    let tree = vec![inner(10, flat(10), vec![leaf(flat(4), 1, None), leaf(None, 99, None)])];
    let found = rates(tree, 2);
    // Service by the real-time criterion counts against the class's share of the rest.
    assert_rates(&found, &[4.0, 6.0]);
}

#[test]
fn a_real_time_curve_alone_is_a_shaper() {
    assert_rates(&rates(vec![leaf(flat(3), 0, None)], 1), &[3.0]);
}

/// Checks the purpose of a concave curve (section 2 of the paper): a flow with a low rate has a low delay.
#[test]
fn delay_is_not_coupled_to_rate() {
    // A flow of 100 kbit/s with 1514 bytes within 5 ms, next to 9.9 Mbit/s.
    let quick = ServiceCurve { first: 1514 * 8 * 200, delay: 5 * MILLISECOND, second: 100_000 };
    for (curve, most) in [(Some(quick), 7 * MILLISECOND), (flat(1), 30 * MILLISECOND)] {
        let tree = vec![inner(10, flat(10), vec![leaf(curve, 1, None), leaf(None, 99, None)])];
        let mut qdisc = hfsc(tree);
        for sequence in 0..500 {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, sequence, 1448)), None);
        }
        let (mut now, mut asked, mut longest) = (Time::ZERO, None, 0);
        while now < Time(SECOND / 3) {
            if asked.is_none() {
                assert_eq!(qdisc.enqueue(now, segment(0, 0, 100)), None);
                asked = Some(now);
            }
            match qdisc.dequeue(now) {
                Dequeued::Segment(sent) if sent.flow == 0 => {
                    longest = longest.max(now.since(asked.take().expect("asked")));
                    now += 20 * MILLISECOND;
                }
                Dequeued::Segment(_) => {}
                Dequeued::Wait(until) => now = until,
                Dequeued::Empty => break,
            }
        }
        assert!(longest <= most, "{} µs", longest / MICROSECOND);
    }
}

#[test]
fn who_was_silent_gets_no_more_than_its_share() {
    let mut qdisc = hfsc(vec![leaf(None, 1, None), leaf(None, 1, None)]);
    for sequence in 0..100 {
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(0, sequence, 1448)), None);
    }
    for _ in 0..50 {
        assert!(matches!(qdisc.dequeue(Time(SECOND)), Dequeued::Segment(_)));
    }
    for sequence in 0..20 {
        assert_eq!(qdisc.enqueue(Time(SECOND), segment(1, sequence, 1448)), None);
    }
    let next: Vec<u32> = drain(&mut qdisc, Time(SECOND))[..20].iter().map(|sent| sent.0).collect();
    let of_newcomer = next.iter().filter(|flow| **flow == 1).count();
    assert!((9..=11).contains(&of_newcomer), "{next:?}");
}

#[test]
fn rejects_what_makes_no_tree() {
    let make = |classes| Qdisc::new(&Kind::Hfsc(HfscConfig { classifier: Classifier::Flow, classes }), 0);
    assert!(make(Vec::new()).is_err());
    assert!(make(vec![leaf(None, 0, None)]).is_err());
    assert!(make(vec![inner(1, None, Vec::new())]).is_err());
    let deep = (0..20).fold(leaf(None, 1, None), |below, _| inner(1, None, vec![below]));
    assert!(make(vec![deep]).is_err());
}
