//! The signals that end a command. All commands install their handlers here.
//!
//! - The first signal asks a command to restore its settings and end. It also ends the wait for a
//!   reader of the command's output. After a session, a further signal ends this wait
//!   ([`await_another`]).
//! - A second signal ends the command at once with code 130: the kernel detaches its programs with its
//!   descriptors, and its guardian restores its settings. `revert` and `tune --apply` have no guardian,
//!   so a second signal does not end them.
//! - A signal that was ignored at the start (`nohup`, a shell's background jobs) stays ignored.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::libc::{POLLOUT, SIGXFSZ, STDERR_FILENO, poll, pollfd};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{Exit, Failure};

/// A signal within this time after the first signal belongs to the same request: `timeout` sends a
/// signal to the process and another to its process group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// Whether any signal of [`Signals`] was received.
static CAME: AtomicBool = AtomicBool::new(false);

/// Whether the command has restored its settings and only waits for the reader of its result.
static AWAITS: AtomicBool = AtomicBool::new(false);

/// Whether a signal has ended the wait that [`AWAITS`] records.
static WAIT_ENDED: AtomicBool = AtomicBool::new(false);

static CAUGHT: AtomicBool = AtomicBool::new(false);

static ENDING: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

static AT_END: OnceLock<fn()> = OnceLock::new();

/// Sets a function that restores the terminal before a signal handler ends the process. The function
/// must be async-signal-safe. Only the first call has an effect.
pub fn at_end(restore: fn()) {
    let _ = AT_END.set(restore);
}

fn end_process() -> ! {
    if let Some(restore) = AT_END.get() {
        restore();
    }
    signal_hook::low_level::exit(Exit::Interrupted as i32)
}

/// Returns a flag that becomes true when the signal arrives. The signal then has no other effect. An ignored
/// signal stays ignored.
pub fn flag(signal: i32) -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    register(signal, move || set.store(true, Ordering::Relaxed))?;
    Ok(flag)
}

/// Returns whether any signal of [`Signals`] was received.
pub fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}

/// Returns whether signals do not end the command directly, because [`Signals::catch`] has installed
/// its handlers.
pub fn are_caught() -> bool {
    CAUGHT.load(Ordering::Relaxed)
}

/// Makes the next signal end the wait for the reader of the result, instead of the process.
pub fn await_another() {
    AWAITS.store(true, Ordering::Relaxed);
}

/// Returns whether a signal has ended the wait that [`await_another`] began.
pub fn has_ended_wait() -> bool {
    WAIT_ENDED.load(Ordering::Relaxed)
}

#[derive(Clone, Default)]
pub struct Signals {
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
    held: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers, which replace the handlers of [`end_at_once`].
    pub fn catch() -> Result<Self, Failure> {
        Self::catch_all(None)
    }

    /// Installs the handlers of a service: SIGHUP sets `reload` and ends nothing.
    pub fn catch_for_service(reload: &Arc<AtomicBool>) -> Result<Self, Failure> {
        Self::catch_all(Some(reload))
    }

    fn catch_all(reload: Option<&Arc<AtomicBool>>) -> Result<Self, Failure> {
        let signals = Self::default();
        let began = Instant::now();
        // Milliseconds from `began` to the first signal, plus 1; 0 without a signal.
        let first = Arc::new(AtomicU64::new(0));
        let flags =
            [(SIGINT, &signals.interrupted), (SIGHUP, &signals.interrupted), (SIGTERM, &signals.terminated)];
        for (signal, flag) in flags {
            if let Some(reload) = reload.filter(|_| signal == SIGHUP) {
                let reload = Arc::clone(reload);
                register(signal, move || reload.store(true, Ordering::Relaxed))?;
                continue;
            }
            let (flag, first, held) = (Arc::clone(flag), Arc::clone(&first), Arc::clone(&signals.held));
            register(signal, move || {
                flag.store(true, Ordering::Relaxed);
                CAME.store(true, Ordering::Relaxed);
                let now = began.elapsed().as_millis() as u64 + 1;
                let asked = first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
                // A closing terminal may send several SIGHUPs, which are not a second request.
                let is_later = |first| signal != SIGHUP && now - first > SAME_REQUEST.as_millis() as u64;
                let again = asked.is_err_and(is_later);
                if AWAITS.load(Ordering::Relaxed) {
                    WAIT_ENDED.fetch_or(asked.is_ok() || again, Ordering::Relaxed);
                } else if again && !held.load(Ordering::Relaxed) {
                    end_process();
                }
            })?;
        }
        let ending = std::mem::take(&mut *ENDING.lock().unwrap_or_else(PoisonError::into_inner));
        for handler in ending {
            signal_hook::low_level::unregister(handler);
        }
        CAUGHT.store(true, Ordering::Relaxed);
        Ok(signals)
    }

    /// Prevents a second signal from ending the process. Use this function in a command without a guardian:
    /// otherwise the settings would stay changed.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    /// Asks the command to end, as SIGTERM does.
    pub fn terminate(&self) {
        self.terminated.store(true, Ordering::Relaxed);
    }

    /// Returns whether Ctrl-C or a closed terminal interrupted the command.
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Returns whether SIGTERM asked the command to end, for example from a service manager.
    pub fn terminated(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }

    pub fn came(&self) -> bool {
        self.interrupted() || self.terminated()
    }
}

/// Lets the first signal end the command with a message and the documented code, until
/// [`Signals::catch`]. Use this function only in commands that have changed nothing yet and hold no
/// resources.
pub fn end_at_once() -> Result<(), Failure> {
    for signal in [SIGINT, SIGHUP, SIGTERM] {
        let handler = register(signal, || {
            tell_interrupted();
            signal_hook::low_level::exit(Exit::Interrupted as i32);
        })?;
        ENDING.lock().unwrap_or_else(PoisonError::into_inner).extend(handler);
    }
    Ok(())
}

/// Writes the message of [`end_at_once`], unless the write would block, as on a full pipe. Uses only
/// system calls, without a buffer or lock (signal-safety(7)).
fn tell_interrupted() {
    let mut errors = pollfd { fd: STDERR_FILENO, events: POLLOUT, revents: 0 };
    // SAFETY: poll fills the structure, which lives until it returns.
    let is_ready = unsafe { poll(&raw mut errors, 1, 0) } == 1 && errors.revents & POLLOUT != 0;
    if is_ready {
        let _ = nix::unistd::write(std::io::stderr(), b"evenkeel: interrupted\n");
    }
}

/// Makes a write beyond the limit of the file size (`ulimit -f`) fail with EFBIG, as on a full disk. By
/// default the kernel kills the process. Installs a handler instead of `SIG_IGN`, which child processes
/// would inherit.
pub fn survive_file_size_limit() -> Result<(), Failure> {
    register(SIGXFSZ, || {}).map(drop)
}

/// Installs a handler, unless the signal is ignored.
fn register(signal: i32, action: impl Fn() + Send + Sync + 'static) -> Result<Option<SigId>, Failure> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status, signal) {
        return Ok(None);
    }
    // SAFETY: the actions store to atomics, read the clock, write to a descriptor or end the process.
    // All of these are async-signal-safe.
    unsafe { signal_hook::low_level::register(signal, action) }
        .map(Some)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot catch signals: {error}")))
}

/// Returns whether a process with this `/proc/PID/status` ignores a signal: bit n - 1 of `SigIgn` (proc(5)).
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_found_in_the_status() {
        // The mask 0x1003 includes SIGHUP, which is 1, and SIGINT, which is 2.
        let status = "Name:\tevenkeel\nSigIgn:\t0000000000001003\nSigCgt:\t0000000000000000\n";
        assert!(is_ignored(status, SIGHUP) && is_ignored(status, SIGINT));
        assert!(!is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGHUP));
    }
}
