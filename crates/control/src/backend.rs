//! What the controller needs of a device.

use evenkeel_transmit::service::{Move, ServiceSample};

use crate::error::ControlError;

/// What an update did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Queues whose setting changed.
    pub queues: u32,
    /// A weight was cut at what the device takes.
    pub cut: bool,
}

/// Where queue weights go.
pub trait WeightBackend: Send {
    /// What it is, for people: `HTB quantum`.
    fn name(&self) -> String;

    /// Makes the device serve its queues in proportion to these weights (0: the queue has no flows), while its
    /// segments have this size (bytes, without headers). Only what differs from before is written, in the order
    /// of the queues, and all of that is read back.
    ///
    /// # Errors
    /// When the kernel refuses, or keeps something else.
    fn apply(&mut self, weights: &[u32], segment_bytes: u32) -> Result<Applied, ControlError>;

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

/// Where the limit of what each flow has below its socket goes.
pub trait BacklogBackend: Send {
    /// What it is, for people: `tcp_limit_output_bytes`.
    fn name(&self) -> String;

    /// Sets the limit, bytes, never above what was there at first; none: that.
    ///
    /// # Errors
    /// When the kernel refuses, or keeps something else.
    fn limit(&mut self, bytes: Option<u64>) -> Result<(), ControlError>;
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveProgress {
    /// The flow has not moved yet.
    Waiting,
    /// It has, and was held back for so long, ns.
    Done {
        /// Time for which it was held back, ns.
        held_ns: u64,
    },
    /// The time for it is over.
    Expired,
}

/// Who knows what flows have been served, and brings them to change their queue.
pub trait MoveBackend: Send {
    /// What it is, for people: `held back by the window`.
    fn name(&self) -> String;

    /// The flows that have something outstanding; none if they cannot be told at this moment.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn flows(&mut self) -> Result<Option<Vec<ServiceSample>>, ControlError>;

    /// Begins a move of a flow that [`Self::flows`] told of last. Whether it has begun.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn begin(&mut self, wanted: &Move) -> Result<bool, ControlError>;

    /// How far the move has come that was begun last.
    fn progress(&mut self) -> MoveProgress;

    /// Lets go of the flow, whether it has moved or not.
    fn end(&mut self);
}
