//! The gate that every write of the control loop passes.
//!
//! On a live interface the loop may write a setting only if the journal can restore it. The gate
//! refuses a value that the journal does not list.

use std::fmt;

use evenkeel_netlink::GsoSizes;
use evenkeel_netlink::tc::Handle;

use crate::error::ControlError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    SegmentSizes(GsoSizes),
    /// `net.ipv4.tcp_limit_output_bytes` of the network namespace.
    OutputLimit(u64),
    QueueWeight {
        queue: u32,
        /// `None` removes the queue's weight.
        weight: Option<u32>,
    },
    HighestRate {
        queue: u32,
        /// Mbit/s; 0: no limit.
        megabits: u32,
    },
    /// The quantum of an HTB class. With guaranteed rates, the write also changes the class's rate.
    ClassQuantum {
        class: Handle,
        bytes: u32,
    },
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SegmentSizes(GsoSizes { all, ipv4 }) => {
                write!(formatter, "gso_max_size to {all} bytes (IPv4: {ipv4})")
            }
            Self::OutputLimit(bytes) => write!(formatter, "net.ipv4.tcp_limit_output_bytes to {bytes}"),
            Self::QueueWeight { queue, weight } => {
                write!(formatter, "the shaper weight of queue {queue} to {}", weight.unwrap_or(0))
            }
            Self::HighestRate { queue, megabits } => {
                write!(formatter, "the highest rate of queue {queue} to {megabits} Mbit/s")
            }
            Self::ClassQuantum { class, bytes } => {
                write!(formatter, "the quantum of class {class} to {bytes} bytes")
            }
        }
    }
}

pub trait Gate: Send + Sync {
    /// Calls `write`, which writes this setting and reads it back, unless the gate refuses the setting.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the journal could not restore the value, or an error of `write`.
    fn pass(
        &self,
        setting: Setting,
        write: &mut dyn FnMut() -> Result<(), ControlError>,
    ) -> Result<(), ControlError>;
}

/// A gate that admits all settings, for the test bed. The kernel removes the settings with the test
/// bed's network namespace.
#[derive(Clone, Copy, Debug)]
pub struct OpenGate;

impl Gate for OpenGate {
    fn pass(
        &self,
        _: Setting,
        write: &mut dyn FnMut() -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        write()
    }
}

#[cfg(test)]
pub(crate) struct ClosedGate;

#[cfg(test)]
impl Gate for ClosedGate {
    fn pass(
        &self,
        setting: Setting,
        _: &mut dyn FnMut() -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        Err(ControlError::Refused { setting })
    }
}
