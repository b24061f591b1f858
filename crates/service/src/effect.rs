//! Judges whether an interface got worse after its worker began. It compares the shares of
//! retransmitted segments and of dropped packets before and after. Pure: the caller provides counters
//! and times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time before the start that the comparison covers.
const BEFORE: Duration = Duration::from_secs(60);
/// Time after the start in which a change counts as an effect of the start.
const TRIAL: Duration = Duration::from_secs(60);
/// Length of the window after the start.
const WINDOW: Duration = Duration::from_secs(4);
/// Number of consecutive seconds in which the window must be worse. With [`WINDOW`], the service undoes a
/// lasting change within ten seconds.
const LASTING: u32 = 4;
/// A share is worse if it is above this value and has grown by more than [`MOST_GROWTH`]. At a loss of
/// 1 %, a TCP window has some ten segments (RFC 9438, section 5).
const MOST: f64 = 0.01;
/// Above the largest ratio of retransmissions measured for repeated starts of `fair` (8.67,
/// docs/reference/fair.md).
const MOST_GROWTH: f64 = 10.0;
/// Minimum number of segments or packets: before the start, and in a window.
const LEAST_BEFORE: u64 = 5000;
const LEAST: u64 = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// `OutSegs` and `RetransSegs` of TCP in the network namespace.
    pub(crate) segments: u64,
    pub(crate) retransmitted: u64,
    /// Sent and dropped packets of the interface.
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
}

impl Counts {
    /// Returns events and totals since `before`: first retransmissions, then drops.
    fn since(&self, before: &Self) -> [(u64, u64); 2] {
        [
            (
                self.retransmitted.saturating_sub(before.retransmitted),
                self.segments.saturating_sub(before.segments),
            ),
            (self.dropped.saturating_sub(before.dropped), self.packets.saturating_sub(before.packets)),
        ]
    }
}

const WORDS: [(&str, &str); 2] = [("retransmissions", "segments"), ("drops", "packets")];

/// The samples of an interface, one per second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effect {
    samples: VecDeque<(Instant, Counts)>,
    trial: Option<Trial>,
}

#[derive(Clone, Debug)]
struct Trial {
    began: Instant,
    /// Shares before the start. `None` if too few packets were sent.
    before: [Option<f64>; 2],
    /// Consecutive seconds in which a share was worse.
    worse: [u32; 2],
}

impl Effect {
    /// Records the counters. During a trial, returns the reason if the interface has got worse.
    pub(crate) fn sample(&mut self, now: Instant, counts: Counts) -> Option<String> {
        while self.samples.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > BEFORE) {
            self.samples.pop_front();
        }
        self.samples.push_back((now, counts));
        let trial = self.trial.as_mut()?;
        if now.saturating_duration_since(trial.began) > TRIAL {
            self.trial = None;
            return None;
        }
        // Use the oldest sample of the window. The window begins after the start of the trial.
        let is_recent = |at: &Instant| *at >= trial.began && now.saturating_duration_since(*at) <= WINDOW;
        let (_, first) = self.samples.iter().find(|(at, _)| is_recent(at))?;
        for (place, (events, total)) in counts.since(first).into_iter().enumerate() {
            let Some(before) = trial.before[place] else { continue };
            let share = events as f64 / total.max(1) as f64;
            let is_worse = total >= LEAST && share > MOST && share > before * MOST_GROWTH;
            trial.worse[place] = if is_worse { trial.worse[place] + 1 } else { 0 };
            if trial.worse[place] >= LASTING {
                let (what, of) = WORDS[place];
                self.trial = None;
                return Some(format!(
                    "{what} rose from {:.2} % to {:.2} % of {of}",
                    before * 100.0,
                    share * 100.0
                ));
            }
        }
        None
    }

    /// Begins a trial when the worker manages the interface. Compares with the minute before. If too
    /// few packets were sent in that minute, compares with the time since the counters began.
    pub(crate) fn begin(&mut self, now: Instant) {
        let Some((_, last)) = self.samples.back() else { return };
        let first = self.samples.front().map_or(*last, |(_, first)| *first);
        let (minute, all) = (last.since(&first), last.since(&Counts::default()));
        let share = |(events, total): (u64, u64)| {
            (total >= LEAST_BEFORE).then(|| events as f64 / total.max(1) as f64)
        };
        let before = [0, 1].map(|place| share(minute[place]).or_else(|| share(all[place])));
        self.trial = Some(Trial { began: now, before, worse: [0; 2] });
    }

    pub(crate) fn end(&mut self) {
        self.trial = None;
    }
}

/// Returns `OutSegs` and `RetransSegs` from `/proc/net/snmp`: a line of names, then a line of values.
pub(crate) fn tcp_counts(table: &str) -> Option<(u64, u64)> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let at = names.split(' ').position(|name| name == wanted)?;
        values.split(' ').nth(at)?.parse().ok()
    };
    Some((value("OutSegs")?, value("RetransSegs")?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Sends 10,000 segments per second and retransmits `lost` of them. Returns the second of the
    /// verdict.
    fn verdict(effect: &mut Effect, start: &mut (Instant, Counts), lost: &[u64]) -> Option<(usize, String)> {
        for (second, lost) in lost.iter().enumerate() {
            start.0 += SECOND;
            start.1.segments += 10_000;
            start.1.retransmitted += lost;
            if let Some(reason) = effect.sample(start.0, start.1) {
                return Some((second + 1, reason));
            }
        }
        None
    }

    fn begun(before: u64) -> (Effect, (Instant, Counts)) {
        let (mut effect, mut at) = (Effect::default(), (Instant::now(), Counts::default()));
        assert_eq!(verdict(&mut effect, &mut at, &[before; 70]), None);
        effect.begin(at.0);
        (effect, at)
    }

    #[test]
    fn a_lasting_loss_is_a_verdict_within_ten_seconds() {
        let (mut effect, mut at) = begun(5);
        let (second, reason) = verdict(&mut effect, &mut at, &[300; 20]).unwrap();
        assert!(second <= 10, "{second}");
        assert_eq!(reason, "retransmissions rose from 0.05 % to 3.00 % of segments");
        // After a verdict, the trial is over.
        assert_eq!(verdict(&mut effect, &mut at, &[300; 20]), None);
    }

    #[test]
    fn bursts_small_shares_and_what_was_there_before_are_no_verdict() {
        let (mut effect, mut at) = begun(5);
        // With one second of losses, no window exceeds 1 %.
        assert_eq!(verdict(&mut effect, &mut at, &[5, 5, 5, 350, 5, 5, 5, 5, 5, 5]), None);
        let (mut effect, mut at) = begun(0);
        assert_eq!(verdict(&mut effect, &mut at, &[90; 40]), None, "below 1 %");
        let (mut effect, mut at) = begun(40);
        assert_eq!(verdict(&mut effect, &mut at, &[380; 40]), None, "less than ten times as many");
        let (mut effect, mut at) = begun(0);
        assert_eq!(verdict(&mut effect, &mut at, &[0; 61]), None);
        assert_eq!(verdict(&mut effect, &mut at, &[900; 20]), None, "the trial is over");
    }

    #[test]
    fn without_traffic_before_nothing_is_judged() {
        let (mut effect, start) = (Effect::default(), Instant::now());
        effect.sample(start, Counts::default());
        effect.begin(start);
        assert_eq!(verdict(&mut effect, &mut (start, Counts::default()), &[900; 20]), None);
        // Without traffic in the minute before, the counters since boot count.
        let (mut effect, counts) = (Effect::default(), Counts { segments: 1_000_000, ..Counts::default() });
        effect.sample(start, counts);
        effect.begin(start);
        assert!(verdict(&mut effect, &mut (start, counts), &[900; 20]).is_some());
    }

    #[test]
    fn drops_of_the_interface_are_judged_too() {
        let (mut effect, mut now) = (Effect::default(), Instant::now());
        let mut counts = Counts { packets: 1_000_000, dropped: 10, ..Counts::default() };
        effect.sample(now, counts);
        effect.begin(now);
        let mut found = None;
        for _ in 0..10 {
            now += SECOND;
            (counts.packets, counts.dropped) = (counts.packets + 5000, counts.dropped + 500);
            found = found.or(effect.sample(now, counts));
        }
        assert!(found.unwrap().starts_with("drops rose from 0.00 % to 10.00 % of packets"));
    }

    #[test]
    fn counters_that_restart_are_no_losses() {
        let (mut effect, now) = (Effect::default(), Instant::now());
        let counts = Counts { packets: 1_000_000, dropped: 900, ..Counts::default() };
        effect.sample(now, counts);
        effect.begin(now);
        for second in 1..10 {
            assert_eq!(effect.sample(now + SECOND * second, Counts::default()), None);
        }
    }

    #[test]
    fn the_table_of_the_kernel_is_read_by_name() {
        let table = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm InSegs OutSegs RetransSegs\nTcp: 1 7 1000 12\n";
        assert_eq!(tcp_counts(table), Some((1000, 12)));
        assert_eq!(tcp_counts("Tcp: OutSegs\nTcp: x\n"), None);
        assert_eq!(tcp_counts(""), None);
    }
}
