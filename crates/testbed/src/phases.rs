use std::time::{Duration, Instant};

use evenkeel_model::world::Observer;

use crate::error::TestbedError;
use crate::process::pause;

/// Reports the progress of a repeat as a fraction of its total time.
pub(crate) struct Phases<'a> {
    observer: &'a dyn Observer,
    total: Duration,
    begun: Instant,
}

impl<'a> Phases<'a> {
    pub(crate) fn new(total: Duration, observer: &'a dyn Observer) -> Self {
        Self { observer, total, begun: Instant::now() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Reports the next activity. The progress becomes at least `at_least`.
    pub(crate) fn begin(&self, at_least: f64, activity: &str) {
        let fraction = self.begun.elapsed().as_secs_f64() / self.total.as_secs_f64();
        self.observer.progress(fraction.clamp(at_least, 1.0), activity);
    }

    pub(crate) fn sleep(&self, activity: &str, time: Duration) -> Result<(), TestbedError> {
        const STEP: Duration = Duration::from_millis(200);
        let deadline = Instant::now() + time;
        loop {
            self.begin(0.0, activity);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            pause(left.min(STEP), self.observer)?;
        }
    }
}
