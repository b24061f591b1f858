//! What the controller needs of a device.

use crate::error::ControlError;

/// What a back end takes as the weight of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightLimits {
    /// What the lightest queue with flows gets.
    pub base: u32,
    /// Largest value.
    pub most: u32,
}

/// Where queue weights go.
pub trait WeightBackend: Send {
    /// What it is, for people: `HTB quantum`.
    fn name(&self) -> String;

    /// What it takes, with segments of this size (bytes, without headers).
    fn limits(&self, segment_bytes: u32) -> WeightLimits;

    /// Sets the queues of this list, in order, and reads them back.
    ///
    /// # Errors
    /// When the kernel refuses, or keeps something else.
    fn set(&mut self, values: &[(u32, u32)]) -> Result<(), ControlError>;

    /// Puts back what was there before.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn restore(&mut self) -> Result<(), ControlError>;
}

/// Where segment sizes go.
pub trait SegmentBackend: Send {
    /// What it is, for people: `gso_max_size`.
    fn name(&self) -> String;

    /// Sets the largest segment for new flows, bytes.
    ///
    /// # Errors
    /// When the kernel refuses, or keeps something else.
    fn set(&mut self, bytes: u32) -> Result<(), ControlError>;

    /// Sets how much each flow may have below its socket, bytes; none: what was there at first.
    ///
    /// # Errors
    /// When the kernel refuses, or keeps something else.
    fn limit_backlog(&mut self, bytes: Option<u64>) -> Result<(), ControlError>;

    /// Makes running flows follow, which may touch every flow of the network namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn refresh(&mut self) -> Result<(), ControlError>;

    /// Puts back what was there before; running flows follow.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn restore(&mut self) -> Result<(), ControlError>;
}
