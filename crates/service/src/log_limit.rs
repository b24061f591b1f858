//! Limits the number of log lines of an interface, and of the service itself.

use std::time::{Duration, Instant};

use crate::supervisor::{Outside, Priority};

/// Largest number of lines per [`WINDOW`]. The service only counts further lines.
const MOST: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct LogLimit {
    window: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl LogLimit {
    /// Writes a line that begins with `about`, unless the limit is reached. First writes the number of
    /// suppressed lines, if any.
    pub(crate) fn log(
        &mut self,
        outside: &dyn Outside,
        priority: Priority,
        now: Instant,
        about: &str,
        text: &str,
    ) {
        let Some(suppressed) = self.admit(now) else { return };
        if suppressed > 0 {
            outside.log(Priority::Warning, &format!("{about}{suppressed} lines were suppressed"));
        }
        outside.log(priority, &format!("{about}{text}"));
    }

    /// Returns the number of lines suppressed before this line; `None` if this line is suppressed, too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.window.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW) {
            (self.window, self.lines) = (Some(now), 0);
        }
        if self.lines >= MOST {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted() {
        let (mut limit, now) = (LogLimit::default(), Instant::now());
        let admitted = (0..100).filter(|_| limit.admit(now).is_some()).count();
        assert_eq!(admitted, MOST as usize);
        assert_eq!(limit.admit(now + WINDOW), Some(100 - u64::from(MOST)));
        assert_eq!(limit.admit(now + WINDOW), Some(0));
    }
}
