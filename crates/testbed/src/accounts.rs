//! CPU time during the measurement: of the traffic, of each CPU, and of other programs.

use std::time::{Duration, Instant};

use evenkeel_host::{CpuTimes, Host, TICKS_PER_SECOND, others_ticks};
use evenkeel_model::world::{RawProcess, RawProcessor};

use crate::error::TestbedError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    Process(u32),
    Thread(u32),
}

/// CPU time of an actor, and the time at which it was read.
#[derive(Clone, Copy, Debug)]
struct Had {
    read: Instant,
    nanoseconds: u64,
    user_ticks: u64,
    system_ticks: u64,
}

impl Had {
    /// Reads the CPU time. The total is in nanoseconds. User and system time are only available in ticks.
    /// Their ratio divides the total.
    fn read(host: &Host, actor: Actor) -> Option<Self> {
        let (time, clock) = match actor {
            Actor::Process(id) => (host.process_time(id)?, cpu_clock(id, false)),
            Actor::Thread(id) => (host.thread_time(std::process::id(), id)?, cpu_clock(id, true)),
        };
        Some(Self {
            read: Instant::now(),
            nanoseconds: nanoseconds_of(clock)?,
            user_ticks: time.user_ticks,
            system_ticks: time.system_ticks,
        })
    }
}

/// Returns the clock of the CPU time of a process or thread (`make_process_cpuclock`, `make_thread_cpuclock`,
/// include/linux/posix-timers_types.h).
fn cpu_clock(id: u32, is_thread: bool) -> libc::clockid_t {
    const MEASURED: libc::clockid_t = 2;
    const PER_THREAD: libc::clockid_t = 4;
    (!id.cast_signed() << 3) | MEASURED | if is_thread { PER_THREAD } else { 0 }
}

fn nanoseconds_of(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills one structure.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    (result == 0).then(|| seconds * 1_000_000_000 + nanoseconds)
}

pub(crate) struct Reading {
    actors: Vec<Option<Had>>,
    processors: CpuTimes,
    processors_read: Instant,
    others_ticks: u64,
    others_read: Instant,
}

impl Reading {
    /// Reads the times. At the beginning of the measurement, the CPUs' totals are read last; at the
    /// end, they are read first. The totals therefore exclude the reading itself.
    pub(crate) fn take(actors: &[Actor], is_over: bool) -> Result<Self, TestbedError> {
        let host = Host::live();
        let processors = || -> Result<_, TestbedError> { Ok((host.cpu_times()?, Instant::now())) };
        let others = || -> Result<_, TestbedError> {
            Ok((others_ticks(&host.process_times()?, std::process::id()), Instant::now()))
        };
        let early = if is_over { Some(processors()?) } else { None };
        let read = || actors.iter().map(|actor| Had::read(&host, *actor)).collect();
        let (actors, (others_ticks, others_read)) = if is_over {
            let actors = read();
            (actors, others()?)
        } else {
            let others = others()?;
            (read(), others)
        };
        let (processors, processors_read) = match early {
            Some(early) => early,
            None => processors()?,
        };
        Ok(Self { actors, processors, processors_read, others_ticks, others_read })
    }

    /// Returns the CPU time of each actor since an earlier reading, scaled to the measured time. Omits
    /// an actor that is missing in one of the readings.
    pub(crate) fn processes_since(
        &self,
        earlier: &Self,
        names: &[String],
        measured: Duration,
    ) -> Vec<RawProcess> {
        let pairs = self.actors.iter().zip(&earlier.actors).zip(names);
        pairs
            .filter_map(|((now, then), name)| {
                let (now, then) = ((*now)?, (*then)?);
                let elapsed = now.read.duration_since(then.read).as_secs_f64();
                let seconds = now.nanoseconds.saturating_sub(then.nanoseconds) as f64 / 1e9
                    * (measured.as_secs_f64() / elapsed.max(f64::MIN_POSITIVE));
                let user = now.user_ticks.saturating_sub(then.user_ticks) as f64;
                let system = now.system_ticks.saturating_sub(then.system_ticks) as f64;
                // A time without ticks cannot be divided. Count it as system time, because a sender is
                // mostly in the kernel.
                let user_share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
                Some(RawProcess {
                    name: name.clone(),
                    user_s: seconds * user_share,
                    system_s: seconds * (1.0 - user_share),
                })
            })
            .collect()
    }

    /// Returns how each CPU spent the time since an earlier reading.
    pub(crate) fn processors_since(&self, earlier: &Self) -> Vec<RawProcessor> {
        let elapsed = self.processors_read.duration_since(earlier.processors_read);
        let shares = self.processors.shares_since(&earlier.processors, elapsed);
        shares
            .into_iter()
            .map(|shares| RawProcessor {
                user: shares.user,
                system: shares.system,
                softirq: shares.interrupts,
                wait: shares.wait,
            })
            .collect()
    }

    /// Returns the sum of the busy shares of all CPUs since an earlier reading; 1.0 is one CPU. Returns
    /// `None` if no time has passed.
    pub(crate) fn busy_since(&self, earlier: &Self) -> Option<f64> {
        let elapsed = self.processors_read.duration_since(earlier.processors_read);
        self.processors.busy_since(&earlier.processors, elapsed)
    }

    /// Returns the CPU use of other programs since an earlier reading, including stolen time; 1.0 is one CPU.
    pub(crate) fn disturbance_since(&self, earlier: &Self) -> f64 {
        let elapsed = self.others_read.duration_since(earlier.others_read).as_secs_f64();
        let ticks = self.others_ticks.saturating_sub(earlier.others_ticks) as f64;
        let others = ticks / TICKS_PER_SECOND / elapsed.max(f64::MIN_POSITIVE);
        let time = self.processors_read.duration_since(earlier.processors_read);
        let stolen: f64 =
            self.processors.shares_since(&earlier.processors, time).iter().map(|shares| shares.stolen).sum();
        others + stolen
    }

    pub(crate) fn processors(&self) -> usize {
        self.processors.cpus()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::{Child, Command};

    fn busy_child() -> Child {
        Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()
    }

    #[test]
    fn a_child_that_works_has_its_time_and_disturbs_no_other() {
        let mut child = busy_child();
        // SAFETY: takes no arguments.
        let own = unsafe { libc::gettid() }.cast_unsigned();
        let actors = [Actor::Process(child.id()), Actor::Thread(own)];
        let before = Reading::take(&actors, false).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let after = Reading::take(&actors, true).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let names = ["worker".to_owned(), "idler".to_owned()];
        let found = after.processes_since(&before, &names, Duration::from_secs(1));
        let total = |process: &RawProcess| process.user_s + process.system_s;
        assert_eq!((found[0].name.as_str(), found[1].name.as_str()), ("worker", "idler"));
        // The times are scaled to one second. Other tests also use the CPUs.
        assert!((0.1..=1.1).contains(&total(&found[0])), "{found:?}");
        assert!(total(&found[1]) < 0.1, "{found:?}");
        let shares = after.processors_since(&before);
        assert_eq!(shares.len(), after.processors());
        let busy: f64 = shares.iter().map(|share| share.user + share.system + share.softirq).sum();
        assert!((busy - after.busy_since(&before).unwrap()).abs() < 1e-9, "{shares:?}");
        assert!(shares.iter().all(|share| share.wait >= 0.0));
    }

    #[test]
    fn who_is_gone_has_no_time() {
        let mut child = busy_child();
        let actors = [Actor::Process(child.id())];
        let before = Reading::take(&actors, false).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let after = Reading::take(&actors, true).unwrap();
        assert_eq!(after.processes_since(&before, &["gone".to_owned()], Duration::from_secs(1)), []);
    }
}
