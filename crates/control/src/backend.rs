//! The traits through which the controller accesses a device.

use evenkeel_transmit::service::{Move, ServiceSample};

use crate::error::ControlError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Number of queues whose setting changed.
    pub queues: u32,
    /// Whether a weight exceeded the device's maximum and was reduced to the maximum.
    pub cut: bool,
}

pub trait WeightBackend: Send {
    fn name(&self) -> String;

    /// Makes the device serve its queues in proportion to `weights`. A weight of 0 means that the queue
    /// has no flows. `segment_bytes` is the size of the largest segment without headers. Writes only the
    /// changed weights, in the order of the queues, and reads them back.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the setting, or keeps another value.
    fn apply(&mut self, weights: &[u32], segment_bytes: u32) -> Result<Applied, ControlError>;

    fn restore(&mut self) -> Result<(), ControlError>;
}

pub trait SegmentBackend: Send {
    fn name(&self) -> String;

    /// Sets the maximum segment size of new flows, bytes.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the setting, or keeps another value.
    fn set(&mut self, bytes: u32) -> Result<(), ControlError>;

    /// Makes running flows adopt the size of [`Self::set`]. May affect every flow of the network namespace.
    fn refresh(&mut self) -> Result<(), ControlError>;

    /// Restores the original size for new and running flows.
    fn restore(&mut self) -> Result<(), ControlError>;
}

/// Limits the data that each flow queues below its socket.
pub trait BacklogBackend: Send {
    fn name(&self) -> String;

    /// Sets the limit, bytes, but never above the original limit. `None` restores the original limit.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the setting, or keeps another value.
    fn limit(&mut self, bytes: Option<u64>) -> Result<(), ControlError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveProgress {
    Waiting,
    Done {
        /// Time for which the program held the flow back.
        held_ns: u64,
    },
    /// The flow did not move within the time limit.
    Expired,
}

/// Reports the service that flows received, and moves flows to other queues.
pub trait MoveBackend: Send {
    /// Returns a description for users, such as `held back by the window`.
    fn name(&self) -> String;

    /// Returns the flows with data outstanding. Returns `None` if there are too many flows, or if they
    /// cannot be read at the moment.
    fn flows(&mut self) -> Result<Option<Vec<ServiceSample>>, ControlError>;

    /// Begins to move a flow of the last [`Self::flows`]. Returns whether the move has begun.
    fn begin(&mut self, wanted: &Move) -> Result<bool, ControlError>;

    fn progress(&mut self) -> MoveProgress;

    /// Releases the flow, whether or not it has moved.
    fn end(&mut self);
}
