use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::error::DatapathError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    pub nanoseconds: u64,
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

/// Enables the run-time statistics of BPF programs while this value lives (`BPF_ENABLE_STATS`). The
/// kernel disables them when the descriptor is closed, even after a crash.
#[derive(Debug)]
pub struct RunTimeStatistics {
    _descriptor: OwnedFd,
}

impl RunTimeStatistics {
    /// Enables the statistics.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses (no privilege, or before Linux 5.8).
    pub fn enable() -> Result<Self, DatapathError> {
        // SAFETY: takes an enum value and returns a descriptor or a negative error.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            let source = io::Error::from_raw_os_error(-descriptor);
            return Err(DatapathError::System { action: "turn on BPF run-time statistics", source });
        }
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        Ok(Self { _descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }
}
