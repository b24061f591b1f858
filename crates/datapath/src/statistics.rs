//! The kernel's own account of what BPF programs cost.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::error::DatapathError;

/// Time spent in a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Nanoseconds in all runs.
    pub nanoseconds: u64,
    /// Number of runs.
    pub runs: u64,
}

impl std::ops::Sub for RunTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            nanoseconds: self.nanoseconds.saturating_sub(earlier.nanoseconds),
            runs: self.runs.saturating_sub(earlier.runs),
        }
    }
}

/// Run-time statistics are on while this lives (`BPF_ENABLE_STATS`); the kernel turns them off by
/// itself when the descriptor closes, so a crash leaves nothing changed.
#[derive(Debug)]
pub struct RunTimeStatistics {
    _descriptor: OwnedFd,
}

impl RunTimeStatistics {
    /// Turns the statistics on.
    ///
    /// # Errors
    /// When the kernel refuses (no privilege, or older than 5.8).
    pub fn enable() -> Result<Self, DatapathError> {
        // SAFETY: takes an enum value and returns a descriptor or a negative error.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            let source = io::Error::from_raw_os_error(-descriptor);
            return Err(DatapathError::System { action: "turn on BPF run-time statistics", source });
        }
        // SAFETY: the kernel just gave this descriptor to us alone.
        Ok(Self { _descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }
}
