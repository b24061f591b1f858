//! Decides when the worker of an interface starts again after its end. Pure: the caller provides the
//! time.

use std::time::{Duration, Instant};

/// First pause before a restart. The pause doubles up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// A run of at least this time is good: the next pause is [`SHORTEST`].
const GOOD_RUN: Duration = Duration::from_secs(60);
/// The service gives up after this number of equal changes by another program.
const MOST_CHANGES: usize = 3;
/// Only changes within this time count. One change a day is no conflict.
const DISPUTE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The interface has changed, for example its name or its number of queues.
    Device,
    /// Another program changed a setting. The value is the reason that the session reported.
    Foreign(String),
    /// The session cannot run on this interface (exit codes 2 and 3).
    Refused,
    /// A failure, a signal, or an end without a reason.
    Failed,
}

/// The next step after a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Start a worker after this time.
    After(Duration),
    GiveUp,
}

/// The past ends of an interface's workers.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// Number of ends since the last good run.
    ends: u32,
    changes: Vec<(Instant, String)>,
}

impl Course {
    /// Records the end of a worker that ran for `ran`. Returns the next step.
    pub fn next(&mut self, ending: &Ending, ran: Duration, now: Instant) -> Next {
        if ran >= GOOD_RUN {
            self.ends = 0;
        }
        let pause = SHORTEST.saturating_mul(1 << self.ends.min(6)).min(LONGEST);
        self.ends = self.ends.saturating_add(1);
        self.changes.retain(|(at, _)| now.saturating_duration_since(*at) < DISPUTE);
        if let Ending::Foreign(reason) = ending {
            let kind = without_numbers(reason);
            self.changes.push((now, kind.clone()));
            if self.changes.iter().filter(|(_, other)| *other == kind).count() >= MOST_CHANGES {
                return Next::GiveUp;
            }
        }
        Next::After(pause)
    }

    /// Clears the history. Called if the configuration or the interface's name has changed, or if an operator
    /// requests another attempt.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Replaces handles and words that contain a digit by `#`, because equal changes have different handles and
/// ids.
fn without_numbers(reason: &str) -> String {
    let mut text = String::new();
    for word in reason.split_inclusive(|character: char| !character.is_ascii_alphanumeric()) {
        // A handle is hexadecimal, for example `8001:` and `a:`.
        let is_handle = word
            .strip_suffix(':')
            .is_some_and(|handle| !handle.is_empty() && handle.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let is_number = is_handle || word.bytes().any(|byte| byte.is_ascii_digit());
        match word.chars().last().filter(|last| !last.is_ascii_alphanumeric()) {
            Some(last) if is_number => text.extend(['#', last]),
            None if is_number => text.push('#'),
            _ => text.push_str(word),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(5);

    #[test]
    fn pauses_double_to_a_minute_and_begin_again_after_a_good_run() {
        let mut course = Course::default();
        let now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let Next::After(pause) = course.next(&Ending::Failed, SHORT, now) else { return };
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(course.next(&Ending::Failed, GOOD_RUN, now), Next::After(SHORTEST));
        assert_eq!(course.next(&Ending::Refused, SHORT, now), Next::After(SHORTEST * 2));
    }

    #[test]
    fn the_third_equal_change_within_an_hour_is_a_dispute() {
        let now = Instant::now();
        let change = |id: u32| Ending::Foreign(format!("another process attached a program: p (id {id})"));
        let other =
            Ending::Foreign("another program replaced the root qdisc: mq before, pfifo now".to_owned());
        let mut course = Course::default();
        for ending in [change(7), other.clone(), Ending::Device, change(8), other] {
            assert_ne!(course.next(&ending, SHORT, now), Next::GiveUp, "{ending:?}");
        }
        assert_eq!(course.clone().next(&change(9), SHORT, now), Next::GiveUp);
        assert_ne!(course.clone().next(&change(9), SHORT, now + DISPUTE), Next::GiveUp);
        course.forget();
        assert_eq!(course.next(&change(9), SHORT, now), Next::After(SHORTEST));
    }

    #[test]
    fn numbers_do_not_distinguish_changes() {
        let one = "another program changed xps_cpus of queue 3 (8002: now, id 12)";
        assert_eq!(without_numbers(one), "another program changed xps_cpus of queue # (#: now, id #)");
        assert_eq!(without_numbers("4001"), "#");
        assert_eq!(
            without_numbers("root qdisc: mq 9: before, mq a: now"),
            "root qdisc: mq #: before, mq #: now"
        );
    }
}
