//! Judges whether an interface got worse after its worker began. Compares the shares of retransmitted
//! segments and of dropped packets before and after. Pure: the caller provides counters and times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time before the start that the comparison covers.
const BEFORE: Duration = Duration::from_secs(60);
/// Time after the start in which a change counts as an effect of the start.
const TRIAL: Duration = Duration::from_secs(60);
/// Length of the window before each sample of a trial.
const WINDOW: Duration = Duration::from_secs(4);
/// Number of consecutive seconds in which the window must be worse. A burst of losses within a second is in
/// four windows or fewer, so a burst is not enough. With [`WINDOW`], the service undoes a lasting change
/// within ten seconds.
const LASTING: u32 = 5;
/// A share is worse if it is above this value and more than [`MOST_GROWTH`] times the share before the start.
/// At a loss of 1 %, a TCP window has some ten segments (RFC 9438, section 5).
const MOST: f64 = 0.01;
/// Above the largest ratio of retransmissions measured for repeated starts of `fair` (8.67,
/// docs/reference/fair.md).
const MOST_GROWTH: f64 = 10.0;
/// Minimum number of segments or packets: before the start, and in a window.
const LEAST_BEFORE: u64 = 5000;
const LEAST: u64 = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Segments of TCP in the network namespace; `None` if the table cannot be read.
    pub(crate) segments: Option<Count>,
    /// Packets of the interface; `None` if its counters cannot be read.
    pub(crate) packets: Option<Count>,
}

/// Two counters that count no packet twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// `OutSegs`, which excludes retransmissions (`__tcp_transmit_skb`, net/ipv4/tcp_output.c), or the
    /// interface's packet counter, which excludes dropped packets.
    pub(crate) good: u64,
    /// `RetransSegs`, or dropped packets.
    pub(crate) bad: u64,
}

impl Count {
    const fn total(self) -> u64 {
        self.good.saturating_add(self.bad)
    }

    const fn since(self, before: Self) -> Self {
        Self { good: self.good.saturating_sub(before.good), bad: self.bad.saturating_sub(before.bad) }
    }

    fn share(self) -> f64 {
        self.bad as f64 / self.total().max(1) as f64
    }
}

impl Counts {
    const fn at(&self, place: usize) -> Option<Count> {
        if place == SEGMENTS { self.segments } else { self.packets }
    }
}

const SEGMENTS: usize = 0;
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
    /// Shares before the start. `None` if too few packets were sent, or the counters could not be read.
    before: [Option<f64>; 2],
    /// Consecutive seconds in which a share was worse. A second without counters does not change the number.
    worse: [u32; 2],
    /// Whether the counters could not be read at the start, and [`Effect::unread`] has not reported this yet.
    is_unread: [bool; 2],
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
        for place in [0, 1] {
            let (Some(before), Some(last)) = (trial.before[place], counts.at(place)) else { continue };
            let recent = self.samples.iter().filter(|(at, _)| is_recent(at));
            let Some(first) = recent.filter_map(|(_, counts)| counts.at(place)).next() else { continue };
            let since = last.since(first);
            let share = since.share();
            let is_worse = since.total() >= LEAST && share > MOST && share > before * MOST_GROWTH;
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
        let share = |count: Count| (count.total() >= LEAST_BEFORE).then(|| count.share());
        let before = [0, 1].map(|place| {
            let last = last.at(place)?;
            let first = self.samples.iter().find_map(|(_, counts)| counts.at(place))?;
            share(last.since(first)).or_else(|| share(last))
        });
        let is_unread = [0, 1].map(|place| last.at(place).is_none());
        self.trial = Some(Trial { began: now, before, worse: [0; 2], is_unread });
    }

    /// Returns the names of the shares that the trial does not judge, because their counters could not be
    /// read at the start. Returns the names only once.
    pub(crate) fn unread(&mut self) -> Option<String> {
        let unread = std::mem::take(&mut self.trial.as_mut()?.is_unread);
        let words: Vec<&str> =
            WORDS.iter().zip(unread).filter(|(_, unread)| *unread).map(|((what, _), _)| *what).collect();
        (!words.is_empty()).then(|| words.join(" and "))
    }

    pub(crate) fn end(&mut self) {
        self.trial = None;
    }
}

/// Returns `OutSegs` and `RetransSegs` from `/proc/net/snmp`: a line of names, then a line of values.
pub(crate) fn tcp_counts(table: &str) -> Option<Count> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let at = names.split(' ').position(|name| name == wanted)?;
        values.split(' ').nth(at)?.parse().ok()
    };
    Some(Count { good: value("OutSegs")?, bad: value("RetransSegs")? })
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
            let segments = start.1.segments.get_or_insert_default();
            (segments.good, segments.bad) = (segments.good + 10_000 - lost, segments.bad + lost);
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
        // A second of losses makes four windows worse.
        assert_eq!(verdict(&mut effect, &mut at, &[5, 5, 5, 2000, 5, 5, 5, 5, 5, 5]), None);
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
        let idle = Counts { segments: Some(Count::default()), packets: None };
        effect.sample(start, idle);
        effect.begin(start);
        assert_eq!(verdict(&mut effect, &mut (start, idle), &[900; 20]), None);
        // Without traffic in the minute before, the trial compares with the share since boot.
        let (mut effect, counts) = (Effect::default(), of_segments(1_000_000, 0));
        effect.sample(start, counts);
        effect.begin(start);
        assert!(verdict(&mut effect, &mut (start, counts), &[900; 20]).is_some());
    }

    fn of_segments(good: u64, bad: u64) -> Counts {
        Counts { segments: Some(Count { good, bad }), packets: None }
    }

    fn of_packets(good: u64, bad: u64) -> Counts {
        Counts { segments: None, packets: Some(Count { good, bad }) }
    }

    #[test]
    fn drops_of_the_interface_are_judged_too() {
        // The second case is a total loss: the counter of sent packets does not change.
        for (good, words) in [(4500, "10.00 % of packets"), (0, "100.00 % of packets")] {
            let (mut effect, start) = (Effect::default(), Instant::now());
            effect.sample(start, of_packets(1_000_000, 10));
            effect.begin(start);
            let found = (1..10).find_map(|second| {
                let counts = of_packets(1_000_000 + good * u64::from(second), 10 + 500 * u64::from(second));
                effect.sample(start + SECOND * second, counts)
            });
            assert_eq!(found.unwrap(), format!("drops rose from 0.00 % to {words}"));
        }
    }

    #[test]
    fn counters_that_restart_are_no_losses() {
        let (mut effect, now) = (Effect::default(), Instant::now());
        effect.sample(now, of_packets(1_000_000, 900));
        effect.begin(now);
        for second in 1..10 {
            assert_eq!(effect.sample(now + SECOND * second, of_packets(0, 0)), None);
        }
    }

    /// The counters since boot have 30 % of drops, but no drop is new.
    #[test]
    fn counters_that_cannot_be_read_are_no_zeros() {
        let (unread, boot) = (Counts::default(), of_packets(700_000, 300_000));
        for (before, after) in [(unread, boot), (boot, unread)] {
            let (mut effect, start) = (Effect::default(), Instant::now());
            effect.sample(start, before);
            effect.sample(start + SECOND, after);
            effect.begin(start + SECOND);
            for second in 2..10 {
                let counts = if second % 4 == 2 { unread } else { boot };
                assert_eq!(effect.sample(start + SECOND * second, counts), None);
            }
        }
        let (mut effect, start) = (Effect::default(), Instant::now());
        effect.sample(start, of_packets(0, 0));
        effect.begin(start);
        assert_eq!(effect.unread().as_deref(), Some("retransmissions"));
        assert_eq!(effect.unread(), None, "said once");
        effect.sample(start + SECOND, unread);
        effect.begin(start + SECOND);
        assert_eq!(effect.unread().as_deref(), Some("retransmissions and drops"));
        assert_eq!(Effect::default().unread(), None);
    }

    #[test]
    fn the_table_of_the_kernel_is_read_by_name() {
        let table = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm InSegs OutSegs RetransSegs\nTcp: 1 7 1000 12\n";
        assert_eq!(tcp_counts(table), Some(Count { good: 1000, bad: 12 }));
        assert_eq!(tcp_counts("Tcp: OutSegs\nTcp: x\n"), None);
        assert_eq!(tcp_counts(""), None);
    }
}
