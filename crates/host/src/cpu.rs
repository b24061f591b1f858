//! Processor time from `/proc/stat` (proc_stat(5)).

use crate::{Host, HostError};

/// Processor time since boot, in ticks of all processors together and of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Per processor: busy and total ticks.
    processors: Vec<(u64, u64)>,
}

impl CpuTimes {
    /// Number of processors online.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.processors.len()
    }

    /// Sum over processors of the share of time that each was not idle since an earlier reading:
    /// 1.0 is one processor's worth. Waiting for I/O is idle time. None when no time has passed.
    #[must_use]
    pub fn busy_since(&self, earlier: &Self) -> Option<f64> {
        let mut busy = 0.0;
        let mut any = false;
        for ((busy_now, total_now), (busy_then, total_then)) in self.processors.iter().zip(&earlier.processors) {
            let total = total_now.saturating_sub(*total_then);
            if total > 0 {
                busy += busy_now.saturating_sub(*busy_then) as f64 / total as f64;
                any = true;
            }
        }
        any.then_some(busy)
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
        let mut processors = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let mut fields = line.split_ascii_whitespace();
            let Some(name) = fields.next() else { continue };
            if !name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok()) {
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
            let total: u64 = ticks.iter().sum();
            processors.push((total - ticks[3] - ticks[4], total));
        }
        Ok(CpuTimes { processors })
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
        let (_keep, before) = host("cpu 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 5\n");
        let (_keep_too, after) =
            host("cpu 0 0 0 0\ncpu0 60 0 10 130 0 0 0 0 0 0\ncpu1 0 0 0 100 50 0 0 50 0 0\nintr 5\n");
        let (before, after) = (before.cpu_times().unwrap(), after.cpu_times().unwrap());
        assert_eq!(after.cpus(), 2);
        // cpu0: 50 of 100 ticks; cpu1: 50 stolen of 100, 50 waiting.
        assert_eq!(after.busy_since(&before), Some(1.0));
        assert_eq!(after.busy_since(&after), None);
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
