//! The controller's view of a device.

use evenkeel_transmit::service::{Move, ServiceSample};

use crate::error::ControlError;

/// Result of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Number of queues whose setting changed.
    pub queues: u32,
    /// Whether a weight exceeded the device's maximum and was reduced to it.
    pub cut: bool,
}

/// Sets queue weights.
pub trait WeightBackend: Send {
    fn name(&self) -> String;

    /// Makes the device serve its queues in proportion to `weights` (0: no flows) for segments of
    /// `segment_bytes`, without headers. Writes only the differences, in the order of the queues, and reads
    /// them back.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the setting, or keeps another value.
    fn apply(&mut self, weights: &[u32], segment_bytes: u32) -> Result<Applied, ControlError>;

    /// Restores the original setting.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    fn restore(&mut self) -> Result<(), ControlError>;
}

/// Sets segment sizes.
pub trait SegmentBackend: Send {
    fn name(&self) -> String;

    /// Sets the largest segment of new flows, bytes.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the setting, or keeps another value.
    fn set(&mut self, bytes: u32) -> Result<(), ControlError>;

    /// Makes running flows adopt the size; it may affect every flow of the network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    fn refresh(&mut self) -> Result<(), ControlError>;

    /// Restores the original size, also for running flows.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    fn restore(&mut self) -> Result<(), ControlError>;
}

/// Limits each flow's data below its socket.
pub trait BacklogBackend: Send {
    fn name(&self) -> String;

    /// Sets the limit, bytes, but never above the original one; `None` restores the original limit.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the setting, or keeps another value.
    fn limit(&mut self, bytes: Option<u64>) -> Result<(), ControlError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveProgress {
    Waiting,
    /// The flow has moved.
    Done {
        /// Time for which the flow was held back.
        held_ns: u64,
    },
    /// The flow did not move within the limit.
    Expired,
}

/// Reports the service that flows received, and moves flows to other queues.
pub trait MoveBackend: Send {
    /// Returns a description for users, such as `held back by the window`.
    fn name(&self) -> String;

    /// Returns the flows with data outstanding; `None` if they cannot be read at the moment.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    fn flows(&mut self) -> Result<Option<Vec<ServiceSample>>, ControlError>;

    /// Begins to move a flow of the last [`Self::flows`]. Returns whether the move has begun.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request.
    fn begin(&mut self, wanted: &Move) -> Result<bool, ControlError>;

    /// Returns the progress of the last move.
    fn progress(&mut self) -> MoveProgress;

    /// Releases the flow, whether it has moved or not.
    fn end(&mut self);
}
