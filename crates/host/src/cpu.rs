//! CPU time from `/proc/stat` (proc_stat(5)).
//!
//! With tick-based accounting (`CONFIG_TICK_CPU_ACCOUNTING`), the kernel measures only idle time, I/O wait
//! and stolen time. It samples the other columns at its tick, so they miss or count twice a load that runs
//! between ticks, such as a shaper's timer. So busy time is computed as the elapsed time minus idle time,
//! I/O wait and stolen time.

use std::time::Duration;

use crate::process_time::TICKS_PER_SECOND;
use crate::{Host, HostError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    cpus: Vec<Ticks>,
    numbers: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    user: u64,
    system: u64,
    interrupts: u64,
    /// Part of `interrupts` in soft interrupts.
    soft: u64,
    idle: u64,
    wait: u64,
    stolen: u64,
}

impl Ticks {
    /// Returns the time in which the CPU was idle, waited for I/O, or was preempted by the hypervisor.
    fn not_used(self) -> u64 {
        self.idle.saturating_add(self.wait).saturating_add(self.stolen)
    }
}

/// Shares of a CPU's time; the remainder to 1 is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuShares {
    pub user: f64,
    /// In the kernel for processes.
    pub system: f64,
    /// In interrupts and soft interrupts.
    pub interrupts: f64,
    /// The part of `interrupts` in soft interrupts.
    pub soft_interrupts: f64,
    /// Idle while a task waited for input or output.
    pub wait: f64,
    /// Taken by the hypervisor.
    pub stolen: f64,
}

impl CpuTimes {
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Returns the numbers of the CPUs, in the order of [`Self::shares_since`].
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Returns the busy time since a previous reading as a share of `elapsed`, summed over the CPUs:
    /// 1.0 is one CPU. `None` if no time has passed.
    #[must_use]
    pub fn busy_since(&self, earlier: &Self, elapsed: Duration) -> Option<f64> {
        let ticks = elapsed.as_secs_f64() * TICKS_PER_SECOND;
        if ticks <= 0.0 {
            return None;
        }
        Some(self.pairs(earlier).map(|(now, then)| busy(now, then, ticks)).sum())
    }

    /// Returns the shares of each CPU's `elapsed` time since a previous reading; empty if no time has
    /// passed. The division of the busy share into user space, kernel and interrupts is sampled at the
    /// tick, so it is imprecise over a short time.
    #[must_use]
    pub fn shares_since(&self, earlier: &Self, elapsed: Duration) -> Vec<CpuShares> {
        let ticks = elapsed.as_secs_f64() * TICKS_PER_SECOND;
        if ticks <= 0.0 {
            return Vec::new();
        }
        let shares = self.pairs(earlier).map(|(now, then)| {
            let spent = |value: fn(&Ticks) -> u64| value(now).saturating_sub(value(then)) as f64;
            let (user, system, interrupts) =
                (spent(|ticks| ticks.user), spent(|ticks| ticks.system), spent(|ticks| ticks.interrupts));
            let sampled = user + system + interrupts;
            let busy = busy(now, then, ticks);
            let part = |kind: f64| if sampled > 0.0 { busy * kind / sampled } else { 0.0 };
            CpuShares {
                user: part(user),
                // If no tick occurred in this short time, count the busy time as kernel time.
                system: if sampled > 0.0 { part(system) } else { busy },
                interrupts: part(interrupts),
                soft_interrupts: part(spent(|ticks| ticks.soft)),
                wait: (spent(|ticks| ticks.wait) / ticks).min(1.0),
                stolen: (spent(|ticks| ticks.stolen) / ticks).min(1.0),
            }
        });
        shares.collect()
    }

    fn pairs<'a>(&'a self, earlier: &'a Self) -> impl Iterator<Item = (&'a Ticks, &'a Ticks)> {
        self.cpus.iter().zip(&earlier.cpus)
    }
}

fn busy(now: &Ticks, then: &Ticks, elapsed_ticks: f64) -> f64 {
    1.0 - (now.not_used().saturating_sub(then.not_used()) as f64 / elapsed_ticks).min(1.0)
}

impl Host {
    /// Reads the current CPU time.
    ///
    /// # Errors
    /// Returns an error if `/proc/stat` cannot be read, or a CPU's line is damaged.
    pub fn cpu_times(&self) -> Result<CpuTimes, HostError> {
        let path = "/proc/stat";
        let text = self.read(path)?;
        let (mut cpus, mut numbers) = (Vec::new(), Vec::new());
        for (index, line) in text.lines().enumerate() {
            let mut fields = line.split_ascii_whitespace();
            let Some(name) = fields.next() else { continue };
            let number = name.strip_prefix("cpu").map(str::parse::<u32>);
            let Some(Ok(number)) = number else { continue };
            let damaged =
                |reason: String| HostError::Format { path: self.path(path), line: index + 1, reason };
            // The columns are: user nice system idle iowait irq softirq steal. Guest time is part of user
            // time.
            let mut ticks = [0_u64; 8];
            let mut count = 0;
            for (slot, field) in ticks.iter_mut().zip(fields) {
                *slot = field.parse().map_err(|_| damaged(format!("'{field}' is not a number of ticks")))?;
                count += 1;
            }
            if count < 4 {
                return Err(damaged(format!("{count} fields where a processor has at least 4")));
            }
            let [user, nice, system, idle, wait, irq, softirq, stolen] = ticks;
            numbers.push(number);
            cpus.push(Ticks {
                user: user.saturating_add(nice),
                system,
                interrupts: irq.saturating_add(softirq),
                soft: softirq,
                idle,
                wait,
                stolen,
            });
        }
        Ok(CpuTimes { cpus, numbers })
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
        // Within one second, cpu0 was idle for 50 ticks; cpu1 waited for 50 and lost 25 to the hypervisor.
        assert_eq!(after.busy_since(&before, Duration::from_secs(1)), Some(0.75));
        assert_eq!(after.busy_since(&before, Duration::ZERO), None);
        // A clock error of one tick must not give a negative result.
        assert_eq!(after.busy_since(&before, Duration::from_millis(490)), Some(0.0));
    }

    #[test]
    fn shares_add_up_to_the_busy_time() {
        let (_keep, before) = host("cpu0 10 0 10 80 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0\n");
        let (_keep_too, after) = host("cpu0 30 10 20 100 5 4 6 5\ncpu1 0 0 0 200 0 0 0 0\n");
        let (before, after) = (before.cpu_times().unwrap(), after.cpu_times().unwrap());
        let shares = after.shares_since(&before, Duration::from_secs(1));
        // 30 of 100 ticks are unused, so 70 are busy. The 70 ticks are divided in the ratio of the 50
        // sampled ticks: 30, 10 and 10.
        let [first, second] = shares[..] else { panic!("{shares:?}") };
        assert!((first.user - 0.42).abs() < 1e-9 && (first.system - 0.14).abs() < 1e-9, "{first:?}");
        assert!((first.interrupts - 0.14).abs() < 1e-9, "{first:?}");
        assert!((first.soft_interrupts - 0.084).abs() < 1e-9, "{first:?}");
        assert_eq!((first.wait, first.stolen), (0.05, 0.05));
        assert_eq!(second, CpuShares::default());
        assert_eq!(after.shares_since(&before, Duration::ZERO), Vec::new());
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
