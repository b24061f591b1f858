//! The sender's device: its qdiscs, the line behind them, and all counters.

use evenkeel_model::qdisc::FilterRules;
use evenkeel_model::units::Nanoseconds;
use evenkeel_model::world::{RawLine, RawQdisc};

use crate::costs::qdiscs::QdiscCosts;
use crate::qdisc::tree::{Disciplines, TreeError};
use crate::qdisc::{Dequeued, Qdisc};
use crate::segment::Segment;
use crate::time::{NANOSECOND, SECOND, Span, Time};

/// A line that sends segments one after the other, packet by packet. It counts frames without preamble and
/// gap, like the shaper of the test bed's line.
#[derive(Debug)]
struct Line {
    rate: u64,
    sending: Option<Segment>,
    free_at: Time,
    /// Bytes sent in each bin, and the smallest backlog in each bin.
    bytes: Vec<u64>,
    least: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bins {
    pub(super) begin: Time,
    pub(super) length: Span,
    pub(super) count: usize,
}

impl Bins {
    pub(super) fn of(&self, at: Time) -> Option<usize> {
        let index = (at >= self.begin).then(|| at.since(self.begin) / self.length)? as usize;
        (index < self.count).then_some(index)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    bytes: u64,
    packets: u64,
    drops: u64,
    backlog: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    Segment(u32, Segment),
    /// This queue has no segment before this time.
    Wait(u32, Time),
}

#[derive(Debug)]
pub(super) struct Device {
    tree: Disciplines,
    qdiscs: Vec<Qdisc>,
    /// Costs of enqueue and dequeue for a segment of each flow, by queue.
    costs: Vec<Vec<(Span, Span)>>,
    counts: Vec<Count>,
    before: (Vec<Count>, Vec<u64>),
    line: Option<Line>,
    /// The queue that the device serves next, round robin.
    turn: usize,
    bins: Bins,
    backlog: u64,
    backlog_bin: usize,
}

impl Device {
    pub(super) fn new(
        tree: Disciplines,
        seed: u64,
        rate: Option<u64>,
        costs: &QdiscCosts,
        ahead: Option<&FilterRules>,
        bins: Bins,
    ) -> Result<Self, TreeError> {
        let seeds = (seed..=u64::MAX).chain(0..seed);
        let qdiscs = tree.queues.iter().zip(seeds).map(|(kind, seed)| Qdisc::new(kind, seed));
        let qdiscs = qdiscs.collect::<Result<Vec<_>, _>>()?;
        let cost = |path: &Vec<_>| costs.of_path(&tree, path, ahead);
        let costs = tree.paths.iter().map(|paths| paths.iter().map(cost).collect()).collect();
        let counts = vec![Count::default(); tree.qdiscs.len()];
        let line = rate.map(|rate| Line {
            rate: rate.max(1),
            sending: None,
            free_at: Time::ZERO,
            bytes: vec![0; bins.count],
            least: vec![u64::MAX; bins.count],
        });
        Ok(Self {
            qdiscs,
            costs,
            before: (counts.clone(), vec![0; tree.qdiscs.len()]),
            counts,
            tree,
            line,
            turn: 0,
            bins,
            backlog: 0,
            backlog_bin: 0,
        })
    }

    pub(super) fn queues(&self) -> usize {
        self.qdiscs.len()
    }

    pub(super) fn cost(&self, queue: u32, flow: u32) -> (Span, Span) {
        self.costs[queue as usize][flow as usize]
    }

    /// Enqueues a segment. Adds the segments that the qdisc drops to `dropped`. Returns the number of pieces
    /// into which the qdisc split the segment.
    pub(super) fn enqueue(
        &mut self,
        now: Time,
        queue: u32,
        segment: Segment,
        dropped: &mut Vec<Segment>,
    ) -> u32 {
        let qdisc = &mut self.qdiscs[queue as usize];
        let before = qdisc.len();
        let first = dropped.len();
        let mut victim = qdisc.enqueue(now, segment);
        while let Some(lost) = victim {
            dropped.push(lost);
            victim = qdisc.pop_dropped();
        }
        let pieces = (qdisc.len() + dropped.len() - first).saturating_sub(before) as u32;
        self.count(queue, &segment, |count, bytes, _| count.backlog += bytes);
        self.count_drops(queue, &dropped[first..]);
        self.note_backlog(now);
        pieces
    }

    fn count(&mut self, queue: u32, segment: &Segment, change: impl Fn(&mut Count, u64, u64)) {
        let (bytes, packets) = (u64::from(segment.frame_bytes()), u64::from(segment.packets()));
        for hop in &self.tree.paths[queue as usize][segment.flow as usize] {
            change(&mut self.counts[hop.qdisc as usize], bytes, packets);
        }
    }

    fn count_drops(&mut self, queue: u32, dropped: &[Segment]) {
        for segment in dropped {
            // Count one per segment, like the kernel.
            self.count(queue, segment, |count, bytes, _| {
                count.drops += 1;
                count.backlog = count.backlog.saturating_sub(bytes);
            });
        }
    }

    /// Returns the next segment of the device, or the time at which the device may have one. Returns `None`
    /// if the device is empty, or while the line sends a segment (see [`Self::line_free_at`]).
    pub(super) fn next(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Option<Offer> {
        if self.line.as_ref().is_some_and(|line| line.sending.is_some()) {
            return None;
        }
        let mut wait = None;
        for _ in 0..self.qdiscs.len() {
            let queue = self.turn;
            self.turn = (self.turn + 1) % self.qdiscs.len();
            let qdisc = &mut self.qdiscs[queue];
            if qdisc.is_empty() {
                continue;
            }
            let first = dropped.len();
            let dequeued = qdisc.dequeue(now);
            dropped.extend(std::iter::from_fn(|| qdisc.pop_dropped()));
            let queue = queue as u32;
            self.count_drops(queue, &dropped[first..]);
            match dequeued {
                Dequeued::Segment(segment) => {
                    self.count(queue, &segment, |count, bytes, packets| {
                        count.bytes += bytes;
                        count.packets += packets;
                        count.backlog = count.backlog.saturating_sub(bytes);
                    });
                    self.note_backlog(now);
                    self.send(now, segment);
                    return Some(Offer::Segment(queue, segment));
                }
                Dequeued::Wait(until) => {
                    let earlier = wait.is_none_or(|(_, earliest)| until < earliest);
                    wait = if earlier { Some((queue, until)) } else { wait };
                }
                Dequeued::Empty => self.note_backlog(now),
            }
        }
        wait.map(|(queue, until)| Offer::Wait(queue, until))
    }

    fn send(&mut self, now: Time, segment: Segment) {
        let Some(line) = &mut self.line else { return };
        let time = |bytes: u64| (u128::from(bytes) * u128::from(8 * SECOND) / u128::from(line.rate)) as Span;
        let mut sent = 0;
        for packet in 0..segment.packets() {
            let bytes = u64::from(segment.packet(packet).frame_bytes());
            sent += bytes;
            if let Some(bin) = self.bins.of(now + time(sent)) {
                line.bytes[bin] += bytes;
            }
        }
        line.free_at = now + time(sent);
        line.sending = Some(segment);
    }

    /// Returns the time at which packet `index` of a segment left. The segment left at `end`.
    pub(super) fn packet_left_at(&self, segment: &Segment, index: u32, end: Time) -> Time {
        let Some(line) = &self.line else { return end };
        let later: u64 = (index + 1..segment.packets())
            .map(|packet| u64::from(segment.packet(packet).frame_bytes()))
            .sum();
        let span = (u128::from(later) * u128::from(8 * SECOND) / u128::from(line.rate)) as Span;
        Time(end.0.saturating_sub(span))
    }

    /// Returns the time at which the line will have sent its segment. Returns `None` without a line or
    /// with an idle line.
    pub(super) fn line_free_at(&self) -> Option<Time> {
        self.line.as_ref().filter(|line| line.sending.is_some()).map(|line| line.free_at)
    }

    pub(super) fn take_sent(&mut self) -> Option<Segment> {
        self.line.as_mut().and_then(|line| line.sending.take())
    }

    fn note_backlog(&mut self, now: Time) {
        let Some(line) = &mut self.line else { return };
        let backlog: u64 = self.qdiscs.iter().map(Qdisc::backlog_bytes).sum();
        let number = now.since(self.bins.begin) / self.bins.length.max(1);
        let bin = if now < self.bins.begin { 0 } else { (number as usize).min(self.bins.count) };
        if now >= self.bins.begin {
            // Since the last change, the backlog was constant, so it is the backlog of all bins in between.
            for least in line.least.iter_mut().take(bin + 1).skip(self.backlog_bin) {
                *least = (*least).min(self.backlog);
            }
            if let Some(least) = line.least.get_mut(bin) {
                *least = (*least).min(backlog);
            }
            self.backlog_bin = bin;
        }
        self.backlog = backlog;
    }

    pub(super) fn begin_count(&mut self) {
        self.before = (self.counts.clone(), self.overlimits());
    }

    fn overlimits(&self) -> Vec<u64> {
        let found: Vec<Vec<u64>> = self.qdiscs.iter().map(Qdisc::overlimits).collect();
        let of = |qdisc: &crate::qdisc::tree::TreeQdisc| {
            let shapers = qdisc.shaper.and_then(|shaper| found[qdisc.queue as usize].get(shaper as usize));
            shapers.copied().unwrap_or(0)
        };
        self.tree.qdiscs.iter().map(of).collect()
    }

    pub(super) fn qdiscs(&self) -> Vec<RawQdisc> {
        let overlimits = self.overlimits();
        let rows = self.tree.qdiscs.iter().enumerate().map(|(index, qdisc)| {
            let (now, then) = (self.counts[index], self.before.0[index]);
            RawQdisc {
                handle: format!("{:x}:", qdisc.handle.major),
                kind: qdisc.kind.clone(),
                bytes: now.bytes - then.bytes,
                packets: now.packets - then.packets,
                drops: now.drops - then.drops,
                overlimits: overlimits[index] - self.before.1[index],
                requeues: 0,
                backlog_bytes: now.backlog,
            }
        });
        rows.collect()
    }

    pub(super) fn drops(&self) -> u64 {
        let roots = self.tree.paths.iter().filter_map(|paths| Some(paths.first()?.first()?.qdisc as usize));
        let roots: std::collections::BTreeSet<usize> = roots.collect();
        roots.into_iter().map(|root| self.counts[root].drops - self.before.0[root].drops).sum()
    }

    /// Returns the line's trace at the end of the measurement; `None` without a line.
    pub(super) fn trace(&mut self, end: Time) -> Option<RawLine> {
        self.note_backlog(end);
        let bins = self.bins;
        let line = self.line.as_ref()?;
        Some(RawLine {
            bin: Nanoseconds::new(bins.length / NANOSECOND),
            capacity_bytes: line.rate as f64 / 8.0 * bins.length as f64 / SECOND as f64,
            bytes: line.bytes.clone(),
            backlog_bytes: line
                .least
                .iter()
                .map(|least| if *least == u64::MAX { 0 } else { *least })
                .collect(),
        })
    }
}
