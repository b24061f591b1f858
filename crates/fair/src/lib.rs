//! Fair transmission on a live interface.
//!
//! ```text
//!   preflight ──▶ plan ──▶ session: attach the choice ─▶ take over XPS if set ─▶ prove ─▶ watch ─▶ restore
//!       │                                                                       │        │
//!       └──▶ observer (`--observe`): only a meter; the kernel chooses           │        │
//!                                 the driver overrules the choice: restore, exit ┘        │
//!              another program changes the queues, qdisc or XPS maps: restore, exit ──────┘
//! ```
//!
//! [`Preflight`] finds the real devices below an interface and reports obstacles without changing a
//! setting. [`Observer`] shows flows, queues, collisions and fairness without changing a choice.
//! [`FlowWatch`] provides the same data to a monitor. A [`Session`] manages the devices until it is
//! finished or must exit.
//!
//! At the end, a session restores each setting, or keeps a value that the administrator has set since
//! the start. The process owns the links of its programs. The journal of the crate `apply` contains
//! every setting.

#![forbid(unsafe_code)]

mod balance;
mod batching;
mod control_loop;
mod device;
mod driver_xps;
mod error;
mod flow_watch;
mod flows;
mod gate;
mod hooks;
mod leftovers;
mod observe;
mod own_root;
mod preflight;
mod proof;
mod queue_weights;
mod session;
mod soft_nic;
mod stack;
mod watch;
mod weights_file;
mod windows;
pub mod xps;

pub use balance::BalanceMode;
pub use batching::BatchingMode;
pub use control_loop::SegmentMode;
pub use device::{Device, waits_by_queue};
pub use error::FairError;
pub use flow_watch::{FlowReading, FlowWatch, WatchedFlow};
pub use flows::{DeviceView, FlowView, QueueView, endpoints};
pub use leftovers::{check_unmanaged, leftovers, managed_devices, put_back_leftovers};
pub use observe::{Detached, Observation, Observer};
pub use own_root::{StrayRoot, stray_roots};
pub use preflight::{Planned, Preflight, Request};
pub use proof::Verdict;
pub use queue_weights::{Backend, QueueWeights};
pub use session::{BalanceStatus, BatchingStatus, Ended, ForeignChange, Session, Status, give_up_privileges};
pub use weights_file::{Refreshed, WeightsError, WeightsFile};
pub use xps::XpsMode;
