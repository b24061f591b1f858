//! TCP LoLa as a congestion control of this host.
//!
//! ```text
//!   Session::start ─▶ preflight ─▶ register (BPF struct_ops) ─▶ sysctl tcp_congestion_control, if wanted
//!        │                                                        │ journal and guardian of `apply`
//!   Session::finish ◀─ restores the default, then unregisters ◀───┘
//! ```
//!
//! The process owns the registration. If the process dies, the kernel unregisters the congestion
//! control, unless the registration is pinned, and the guardian restores the default. Existing flows of
//! the congestion control keep it until they end.

#![forbid(unsafe_code)]

mod error;
mod loaded;
mod session;

pub use error::CongestionError;
pub use evenkeel_datapath::{LolaCounters as Counters, LolaFlow as Flow};
pub use evenkeel_transmit::lola::{Phase, Settings};
pub use loaded::{Controls, Loaded, lingers, loaded, unload};
pub use session::{Ended, Request, Session, is_default};
