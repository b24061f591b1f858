//! The cost of waking a thread, and of switching to it.
//!
//! The measuring thread writes to an eventfd on which a partner waits, and waits for the partner's answer. On
//! the same processor, the partner has the policy SCHED_BATCH, so it does not preempt the measuring thread:
//! the write then has the cost of the wakeup alone. A sleep before each exchange lets the partner wait again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

use crate::CalibrateError;
use crate::place::pin;

const PAUSE: Duration = Duration::from_micros(20);

fn failed(error: Errno) -> CalibrateError {
    CalibrateError::system("use an eventfd")(error.into())
}

/// A thread that answers each write of the measuring thread.
pub(crate) struct Partner {
    asks: Arc<EventFd>,
    answers: Arc<EventFd>,
    ends: Arc<AtomicBool>,
    /// The reason why the thread cannot run. The thread sets it before it answers [`END`].
    failure: Arc<Mutex<Option<CalibrateError>>>,
    thread: Option<JoinHandle<()>>,
}

/// Times of an exchange, ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// The write, with the wakeup of the partner.
    pub(crate) write: f64,
    /// From the write to the answer.
    pub(crate) whole: f64,
}

impl Partner {
    /// Starts a partner on a processor. `yields`: whether this is the processor of the measuring thread.
    pub(crate) fn start(processor: u32, yields: bool) -> Result<Self, CalibrateError> {
        let (asks, answers) =
            (Arc::new(EventFd::new().map_err(failed)?), Arc::new(EventFd::new().map_err(failed)?));
        let ends = Arc::new(AtomicBool::new(false));
        let failure = Arc::new(Mutex::new(None));
        let (own_asks, own_answers, own_ends) = (Arc::clone(&asks), Arc::clone(&answers), Arc::clone(&ends));
        let own_failure = Arc::clone(&failure);
        let answer = move || {
            let ready = pin(processor).and_then(|()| if yields { yield_to_others() } else { Ok(()) });
            // If the thread cannot run as required, it answers [`END`], and the first exchange reports the
            // error.
            if let Err(error) = ready {
                *own_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                let _ = own_answers.write(END);
                return;
            }
            while own_asks.read().is_ok() && !own_ends.load(Ordering::Relaxed) {
                if own_answers.write(1).is_err() {
                    return;
                }
            }
        };
        let thread =
            thread::Builder::new().spawn(answer).map_err(CalibrateError::system("start a thread"))?;
        Ok(Self { asks, answers, ends, failure, thread: Some(thread) })
    }

    /// Wakes the partner, and waits for its answer.
    pub(crate) fn exchange(&self) -> Result<Exchange, CalibrateError> {
        thread::sleep(PAUSE);
        let began = Instant::now();
        self.asks.write(1).map_err(failed)?;
        let written = Instant::now();
        let answer = self.answers.read().map_err(failed)?;
        let ended = Instant::now();
        if answer >= END {
            let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Err(failure.unwrap_or_else(|| failed(Errno::ESRCH)));
        }
        let ns = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as f64;
        Ok(Exchange { write: ns(began, written), whole: ns(began, ended) })
    }
}

/// Answer of a partner that cannot run.
const END: u64 = 1 << 32;

impl Drop for Partner {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.asks.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread the policy SCHED_BATCH.
fn yield_to_others() -> Result<(), CalibrateError> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the parameters live until the call returns.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
    let failed = CalibrateError::system("give a thread the policy SCHED_BATCH");
    Errno::result(result).map(drop).map_err(|error| failed(error.into()))
}

/// The calls of an exchange, without a partner.
pub(crate) struct Alone(EventFd);

impl Alone {
    pub(crate) fn new() -> Result<Self, CalibrateError> {
        EventFd::new().map(Self).map_err(failed)
    }

    /// Returns the time of a write that wakes no thread, and of a write with a read, ns. The write is
    /// measured as in an exchange.
    pub(crate) fn times(&self) -> Result<(f64, f64), CalibrateError> {
        const CALLS: u32 = 100;
        thread::sleep(PAUSE);
        let began = Instant::now();
        self.0.write(1).map_err(failed)?;
        let write = began.elapsed().as_nanos() as f64;
        self.0.read().map_err(failed)?;
        let began = Instant::now();
        for _ in 0..CALLS {
            self.0.write(1).map_err(failed)?;
            self.0.read().map_err(failed)?;
        }
        Ok((write, began.elapsed().as_nanos() as f64 / f64::from(CALLS)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::place::allowed;

    #[test]
    fn a_partner_on_a_processor_that_is_not_there_says_so() {
        let partner = Partner::start(1023, false).unwrap();
        // Set the error number of this thread: the reported number must be that of the partner.
        assert!(std::fs::File::open("/nonexistent").is_err());
        let CalibrateError::System { action, source } = partner.exchange().unwrap_err() else {
            unreachable!()
        };
        assert_eq!(
            (action, source.raw_os_error()),
            ("pin a thread to a processor", Some(Errno::EINVAL as i32))
        );
        let own = allowed().unwrap()[0];
        assert!(Partner::start(own, true).unwrap().exchange().unwrap().whole > 0.0);
    }
}
