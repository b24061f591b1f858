//! Waits for a descriptor or a termination signal.
//!
//! After a handler with SA_RESTART, the kernel restarts a blocking read (signal(7)). The read would not
//! return, and the program could not check a flag that the handler sets. So this module blocks the signals
//! and reads them from a signalfd, regardless of their handlers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub(crate) struct EndSignals {
    arrivals: SignalFd,
    /// The thread's signal mask before [`Self::hold`], restored when this value is dropped.
    before: SigSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Ready,
    EndSignal,
    Timeout,
}

impl EndSignals {
    pub(crate) fn hold() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        // Leave out signals that are ignored (by `nohup` or a shell): the signalfd would deliver them.
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            if !is_ignored(signal) {
                signals.add(signal);
            }
        }
        let arrivals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { arrivals, before })
    }

    /// Waits until the descriptor is readable, a signal arrives, or the time has passed.
    pub(crate) fn wait(&self, input: BorrowedFd<'_>, limit: PollTimeout) -> io::Result<Wake> {
        loop {
            let mut descriptors = [
                PollFd::new(self.arrivals.as_fd(), PollFlags::POLLIN),
                PollFd::new(input, PollFlags::POLLIN),
            ];
            match poll(&mut descriptors, limit) {
                Ok(0) => return Ok(Wake::Timeout),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [arrivals, input] = descriptors.map(|descriptor| descriptor.any() == Some(true));
            if arrivals && self.arrivals.read_signal()?.is_some() {
                return Ok(Wake::EndSignal);
            }
            if input {
                return Ok(Wake::Ready);
            }
        }
    }
}

impl Drop for EndSignals {
    fn drop(&mut self) {
        // Cannot fail: this is the mask that the kernel returned.
        let _ = self.before.thread_set_mask();
    }
}

fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action, sigaction only fills in `action`, for which all zeroes are valid.
    let action = unsafe {
        libc::sigaction(signal as libc::c_int, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
