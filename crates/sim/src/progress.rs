//! Limits that end a simulation without progress.
//!
//! The simulator detects three conditions without progress, and ends the run with its own error for each:
//!
//! | condition | detected by |
//! |---|---|
//! | no event is pending, but transfers are incomplete | the calendar is empty |
//! | events continue, but time does not advance or hardly does | [`EventLimit`]: too many events between two packets |
//! | time advances, but no new data of a finite transfer arrives | [`Patience`]: too long without a new byte |
//!
//! A run that makes progress reaches no limit, although its retransmission timers double up to two minutes
//! (`TCP_RTO_MAX`). The checks cost one decrement per event, and one comparison per time slice of a
//! cluster.

use crate::time::{Span, Time};

/// Limit of events per source (a timer, an interrupt line) without a packet on the wire. A
/// retransmission timer that backs off to two minutes (`TCP_RTO_MAX`) reaches this limit after more
/// than a day.
const EVENTS_PER_SOURCE: u64 = 1_000;
/// Minimum of the total limit. This number of events takes less than a second to compute.
const LEAST_EVENTS: u64 = 1_000_000;

/// Ends a simulation in which events continue without departures.
///
/// It counts events. Each time the limit is reached, it checks whether a packet has left since the previous
/// check. It therefore detects an endless loop after at most two limits.
#[derive(Clone, Debug)]
pub(crate) struct EventLimit {
    limit: u64,
    left: u64,
    /// Number of departures at the last check.
    sent: Option<u64>,
}

impl EventLimit {
    pub(crate) fn new(sources: usize) -> Self {
        Self::of_events((sources as u64).saturating_mul(EVENTS_PER_SOURCE).max(LEAST_EVENTS))
    }

    /// Creates a limit of this many events, at least 1.
    pub(crate) fn of_events(limit: u64) -> Self {
        let limit = limit.max(1);
        Self { limit, left: limit, sent: None }
    }

    /// Counts an event. Returns whether to check departures ([`Self::is_stuck`]).
    #[inline]
    pub(crate) fn count(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// Returns whether no packet has left since the last call; false in the first call. `sent` is a counter
    /// that grows with every departure.
    #[cold]
    pub(crate) fn is_stuck(&mut self, sent: u64) -> bool {
        self.left = self.limit;
        self.sent.replace(sent) == Some(sent)
    }

    pub(crate) fn events(&self) -> u64 {
        self.limit
    }
}

/// Longest time without a new byte at any receiver: twice the longest retransmission timeout (`TCP_RTO_MAX`).
const LONGEST_WAIT: Span = 240 * crate::time::SECOND;
/// Number of transmission times of a full packet that are added to [`LONGEST_WAIT`]. If a packet takes
/// minutes, timeouts precede acknowledgements.
const PACKETS_OF_WAIT: u64 = 1_000;

/// Ends transfers that make no progress: no new data has arrived for a long time.
///
/// Duplicates do not count: a flow whose next byte is always lost may retransmit other bytes forever.
/// Transfers are finite, so a transfer that makes progress ends.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    wait: Span,
    look_at: Time,
    /// Bytes that had arrived by the last check.
    arrived: u64,
}

impl Patience {
    /// Creates the limit for a network in which a full packet takes the time `packet` on the slowest
    /// link.
    pub(crate) fn new(packet: Span) -> Self {
        let wait = LONGEST_WAIT.saturating_add(packet.saturating_mul(PACKETS_OF_WAIT));
        Self { wait, look_at: Time::ZERO + wait, arrived: 0 }
    }

    /// Returns whether no byte has arrived for too long at `now`. `arrived` returns the number of distinct
    /// bytes that have arrived. `arrived` visits every flow, so this function rarely calls it.
    #[inline]
    pub(crate) fn has_run_out(&mut self, now: Time, arrived: impl FnOnce() -> u64) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + self.wait;
        let arrived = arrived();
        std::mem::replace(&mut self.arrived, arrived) == arrived
    }

    pub(crate) fn wait(&self) -> Span {
        self.wait
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_model::scenario::bundled::{bundled, variant_tables};
    use evenkeel_model::scenario::parse;

    use super::*;
    use crate::error::SimulationError;
    use crate::host::Simulation;
    use crate::parameters::Parameters;
    use crate::settings::Settings;
    use crate::time::{MICROSECOND, MILLISECOND, SECOND};

    #[test]
    fn events_without_a_packet_are_limited() {
        let mut limit = EventLimit::of_events(3);
        let due: Vec<bool> = (0..3).map(|_| limit.count()).collect();
        assert_eq!(due, [false, false, true]);
        // The first check has no baseline. Before the second check a packet has left, before the third
        // check none.
        assert!(!limit.is_stuck(0));
        assert_eq!((0..3).filter(|_| limit.count()).count(), 1);
        assert!(!limit.is_stuck(1));
        assert_eq!((0..3).filter(|_| limit.count()).count(), 1);
        assert!(limit.is_stuck(1));
    }

    #[test]
    fn the_limit_grows_with_the_sources() {
        assert_eq!(EventLimit::new(10).events(), 1_000_000);
        assert_eq!(EventLimit::new(20_000).events(), 20_000_000);
    }

    #[test]
    fn patience_runs_out_without_new_bytes() {
        let mut patience = Patience::new(SECOND);
        let at = |seconds: u64| Time(seconds * SECOND);
        assert_eq!(patience.wait(), 1_240 * SECOND);
        let not_called = || u64::MAX;
        assert!(!patience.has_run_out(at(1_239), not_called));
        assert!(!patience.has_run_out(at(1_240), || 1));
        assert!(!patience.has_run_out(at(2_479), not_called));
        assert!(!patience.has_run_out(at(2_480), || 2));
        assert!(patience.has_run_out(at(3_720), || 2));
    }

    /// Runs three flows on a line of 1 bit/s. The first packet takes hours, so only the flows' timers
    /// fire.
    fn creeping(limit: EventLimit) -> Result<(), SimulationError> {
        let (_, text) = bundled().iter().find(|(name, _)| *name == "titan-3-flows").unwrap();
        let scenario = parse(text, "test", variant_tables()).unwrap();
        let parameters = Parameters::default();
        let variant = scenario.variant("cmax").unwrap();
        let settings =
            Settings { rate: 1, ..Settings::new(&scenario, variant, scenario.link.rate, &parameters) };
        let mut simulation = Simulation::new(settings, parameters, 1, Time::ZERO, MILLISECOND, 1)?;
        simulation.engine.limit = limit;
        simulation.start(1, MICROSECOND);
        simulation.run(Time(10_000 * SECOND))
    }

    #[test]
    fn a_simulation_ends_with_an_error_where_nothing_leaves() {
        assert!(matches!(
            creeping(EventLimit::of_events(10)),
            Err(SimulationError::Livelock { events: 10, .. })
        ));
        // The timers of three flows are not a livelock.
        assert_eq!(creeping(EventLimit::new(100)), Ok(()));
    }
}
