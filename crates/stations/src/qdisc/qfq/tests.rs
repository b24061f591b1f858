#![allow(clippy::expect_used)]

use super::super::testing::{drain, segment};
use super::super::{Kind, Qdisc};
use super::schedule::{MIN_SLOT_SHIFT, after, group_index};
use super::*;
use crate::time::Time;

#[test]
fn groups_by_longest_segment_over_weight() {
    // A slot of group 0 is 2^26 of virtual time: 1/16 byte at weight 1.
    assert_eq!(MIN_SLOT_SHIFT, 26);
    assert_eq!(group_index(ONE, 1 << LONGEST_SHIFT), 21);
    assert_eq!(group_index(ONE, (1 << 16) + 1), 21);
    assert_eq!(group_index(ONE / 1024, 1 << 10), 4);
    assert_eq!(group_index(ONE / 1024, 512), 3);
    assert_eq!(group_index(1, 1 << 20), 0);
}

#[test]
fn equal_classes_alternate() {
    let mut qdisc = Qdisc::new(&Kind::Qfq(QfqConfig::weighted(&[1, 1])), 0).expect("valid");
    for sequence in 0..3 {
        for flow in [0, 1] {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(flow, sequence, 1448)), None);
        }
    }
    assert_eq!(drain(&mut qdisc, Time::ZERO), [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
}

#[test]
fn weights_share_the_service_smoothly() {
    let mut qdisc = Qdisc::new(&Kind::Qfq(QfqConfig::weighted(&[4, 1])), 0).expect("valid");
    for sequence in 0..40 {
        for flow in [0, 1] {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(flow, sequence, 1448)), None);
        }
    }
    let order: Vec<u32> = drain(&mut qdisc, Time::ZERO).into_iter().map(|(flow, _)| flow).collect();
    // Before the heavy flow is empty, any five consecutive segments contain one or two of the light flow.
    for window in order[..40].windows(5) {
        let light: u32 = window.iter().sum();
        assert!((1..=2).contains(&light), "{order:?}");
    }
}

#[test]
fn coming_and_going_gains_nothing() {
    let mut qfq = Qfq::new(&QfqConfig::weighted(&[7, 1]));
    let mut dropped = Vec::new();
    for sequence in 0..3 {
        qfq.enqueue(segment(0, sequence, 1448), &mut dropped);
    }
    let mut sent = [0u32; 2];
    let mut came_early = 0;
    let light = segment(1, 0, 1448);
    for _ in 0..800 {
        if let Dequeued::Segment(segment) = qfq.dequeue() {
            sent[segment.flow as usize] += 1;
            // The light class gets its next segment only after the qdisc has served another class.
            if segment.flow == 0 {
                qfq.enqueue(segment, &mut dropped);
                if qfq.len() == 3 {
                    let (finish, virtual_time) =
                        (qfq.schedule.aggregates[1].finish, qfq.schedule.virtual_time);
                    qfq.enqueue(light, &mut dropped);
                    let early = after(finish, virtual_time);
                    let start = if early { finish } else { virtual_time };
                    assert_eq!(qfq.schedule.aggregates[1].start, start);
                    came_early += u32::from(early);
                }
            }
        }
    }
    assert!(came_early > 50, "{came_early}");
    assert!((98..=102).contains(&sent[1]), "{sent:?}");
}

#[test]
fn virtual_time_wraps() {
    let mut qfq = Qfq::new(&QfqConfig::weighted(&[1, 3]));
    qfq.schedule.virtual_time = u64::MAX - (1 << 44);
    let mut dropped = Vec::new();
    for sequence in 0..3 {
        for flow in [0, 1] {
            qfq.enqueue(segment(flow, sequence, 14_480), &mut dropped);
        }
    }
    let mut sent = [0; 2];
    for _ in 0..400 {
        if let Dequeued::Segment(segment) = qfq.dequeue() {
            sent[segment.flow as usize] += 1;
            qfq.enqueue(segment, &mut dropped);
        }
    }
    assert!(qfq.schedule.virtual_time < 1 << 60, "{}", qfq.schedule.virtual_time);
    assert!((97..=103).contains(&sent[0]) && sent[0] + sent[1] == 400, "{sent:?}");
}

#[test]
fn a_longer_segment_moves_its_class() {
    let mut qfq = Qfq::new(&QfqConfig::weighted(&[1, 1, 1]));
    let mut dropped = Vec::new();
    assert_eq!(qfq.schedule.aggregates.len(), 1);
    qfq.enqueue(segment(0, 0, 1448), &mut dropped);
    qfq.enqueue(segment(1, 0, 1448), &mut dropped);
    qfq.enqueue(segment(0, 1, 64_000), &mut dropped);
    qfq.enqueue(segment(2, 0, 64_000), &mut dropped);
    let classes: Vec<u32> = qfq.schedule.aggregates.iter().map(|aggregate| aggregate.classes).collect();
    assert_eq!(classes, [1, 2]);
    let mut count = 0;
    while let Dequeued::Segment(_) = qfq.dequeue() {
        count += 1;
    }
    assert_eq!((count, qfq.len(), qfq.backlog_bytes()), (4, 0, 0));
    qfq.enqueue(Segment { mss: 200_000, ..segment(0, 2, 200_000) }, &mut dropped);
    assert_eq!(dropped.len(), 1);
}
