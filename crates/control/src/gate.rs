//! The gate through which every write of the loop goes.
//!
//! On a live interface a setting may be written only if a journal can put it back. So a back end does not write by
//! itself: it hands each write to its gate, which refuses a value that the journal lacks.

use std::fmt;

use evenkeel_netlink::GsoSizes;
use evenkeel_netlink::tc::Handle;

use crate::error::ControlError;

/// A setting that the loop writes, and the value that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The largest segments of the interface.
    SegmentSizes(GsoSizes),
    /// `net.ipv4.tcp_limit_output_bytes` of the network namespace.
    OutputLimit(u64),
    /// The shaper weight of a transmit queue.
    QueueWeight {
        /// The queue.
        queue: u32,
        /// Its weight; none: no weight of its own.
        weight: Option<u32>,
    },
    /// The highest rate of a transmit queue.
    HighestRate {
        /// The queue.
        queue: u32,
        /// The rate, Mbit/s; 0: no limit.
        megabits: u32,
    },
    /// The quantum of an HTB class, with the rest of its parameters.
    ClassQuantum {
        /// The class.
        class: Handle,
        /// Its quantum, bytes.
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

/// Decides over each write.
pub trait Gate: Send + Sync {
    /// Calls `write`, which writes this setting and reads it back, unless the write is refused.
    ///
    /// # Errors
    /// [`ControlError::Refused`] when nothing could put the value back; those of `write`.
    fn pass(
        &self,
        setting: Setting,
        write: &mut dyn FnMut() -> Result<(), ControlError>,
    ) -> Result<(), ControlError>;
}

/// The gate of a test bed, whose settings go with its network namespace: it is always open.
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

/// A gate that refuses every write.
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
