//! Detects whether standard input, output and error were open when the process started.
//!
//! Before `main`, Rust's runtime opens /dev/null in place of a closed descriptor
//! (`std::sys::pal::unix::init`). Without this check, a write to a closed standard output would seem to
//! succeed.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

const STANDARD: std::ops::Range<RawFd> = 0..3;

/// One bit for each descriptor that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

#[must_use]
pub fn was_closed(descriptor: &impl AsRawFd) -> bool {
    let number = descriptor.as_raw_fd();
    STANDARD.contains(&number) && CLOSED.load(Ordering::Relaxed) >> number & 1 == 1
}

// SAFETY: the C library calls the functions of this section before `main` (gABI, "Initialization and
// Termination Functions"). This function does not use Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in STANDARD {
        // SAFETY: F_GETFD has no argument, and a closed descriptor is an error (fcntl(2)).
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}
