//! Processor time from `/proc/stat` (proc_stat(5)).
//!
//! Of its columns, idle time and stolen time are measured; the others are sampled by the tick, and
//! load that comes and goes between ticks (a shaper's timer, for one) is missed or doubled there.
//! So busy time is what is left of the elapsed time.

use std::time::Duration;

use crate::{Host, HostError};

/// Processor time since boot, of each processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Per processor: ticks in which it was idle, waited for I/O, or was taken by the hypervisor.
    not_used: Vec<u64>,
}

/// `USER_HZ`: the tick of `/proc/stat` on every architecture that Linux has today.
const TICKS_PER_SECOND: f64 = 100.0;

impl CpuTimes {
    /// Number of processors online.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.not_used.len()
    }

    /// Sum over processors of the share of `elapsed` that each was busy since an earlier reading:
    /// 1.0 is one processor's worth. None when no time has passed.
    #[must_use]
    pub fn busy_since(&self, earlier: &Self, elapsed: Duration) -> Option<f64> {
        let ticks = elapsed.as_secs_f64() * TICKS_PER_SECOND;
        if ticks <= 0.0 {
            return None;
        }
        let not_used = self.not_used.iter().zip(&earlier.not_used);
        Some(not_used.map(|(now, then)| 1.0 - (now.saturating_sub(*then) as f64 / ticks).min(1.0)).sum())
    }
}

impl Host {
    /// Processor time as it is now.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read, or a processor's line is damaged.
    pub fn cpu_times(&self) -> Result<CpuTimes, HostError> {
        let path = "/proc/stat";
        let text = self.read(path)?;
        let mut not_used = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let mut fields = line.split_ascii_whitespace();
            let Some(name) = fields.next() else { continue };
            let number = name.strip_prefix("cpu").map(str::parse::<u32>);
            if !matches!(number, Some(Ok(_))) {
                continue;
            }
            let damaged =
                |reason: String| HostError::Format { path: self.path(path), line: index + 1, reason };
            // user nice system idle iowait irq softirq steal; guest time is part of user time.
            let mut ticks = [0_u64; 8];
            let mut count = 0;
            for (slot, field) in ticks.iter_mut().zip(fields) {
                *slot = field.parse().map_err(|_| damaged(format!("'{field}' is not a number of ticks")))?;
                count += 1;
            }
            if count < 4 {
                return Err(damaged(format!("{count} fields where a processor has at least 4")));
            }
            let [_, _, _, idle, waiting, _, _, stolen] = ticks;
            not_used.push(idle.saturating_add(waiting).saturating_add(stolen));
        }
        Ok(CpuTimes { not_used })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn host(stat: &str) -> (tempfile::TempDir, Host) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("proc")).unwrap();
        std::fs::write(directory.path().join("proc/stat"), stat).unwrap();
        let host = Host::at(directory.path());
        (directory, host)
    }

    #[test]
    fn busy_time_is_summed_over_processors() {
        let (_keep, before) =
            host("cpu 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 5\n");
        let (_keep_too, after) =
            host("cpu 0 0 0 0\ncpu0 60 0 10 130 0 0 0 0 0 0\ncpu1 0 0 0 100 50 0 0 25 0 0\nintr 5\n");
        let (before, after) = (before.cpu_times().unwrap(), after.cpu_times().unwrap());
        assert_eq!(after.cpus(), 2);
        // In a second cpu0 was idle for 50 ticks; cpu1 waited for 50 and lost 25 to others.
        assert_eq!(after.busy_since(&before, Duration::from_secs(1)), Some(0.75));
        assert_eq!(after.busy_since(&before, Duration::ZERO), None);
        // A clock that disagrees by a tick does not make it negative.
        assert_eq!(after.busy_since(&before, Duration::from_millis(490)), Some(0.0));
    }

    #[test]
    fn damage_is_named_by_line() {
        for (text, words) in [("cpu0 1 2 x 4", "'x' is not a number"), ("cpu0 1 2", "2 fields")] {
            let (_keep, host) = host(text);
            let message = host.cpu_times().unwrap_err().to_string();
            assert!(message.contains("stat:1:") && message.contains(words), "{message}");
        }
        let missing = Host::at("/nonexistent-root").cpu_times().unwrap_err().to_string();
        assert!(missing.contains("/nonexistent-root/proc/stat"), "{missing}");
    }
}
