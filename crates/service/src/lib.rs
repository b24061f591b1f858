//! The service: runs `fair`, `steer` and changes of `tune` on the interfaces that a file lists.
//!
//! ```text
//!   evenkeel.toml ──▶ supervisor ──starts──▶ worker (`evenkeel fair eth0 --format jsonl`) ──▶ its guardian
//!                      │  ▲  ▲                  │
//!   sd_notify ◀────────┘  │  └──pipes: status───┘
//!                         └── control socket ◀── evenkeel status, service pause, resume, reload
//! ```
//!
//! - The supervisor changes no setting. An interface has a worker process for each [`Kind`] that its rule
//!   wants, with its own journal and privileges, so that the failure of one does not affect another.
//! - The kernel sends a worker SIGTERM when the supervisor dies (`PR_SET_PDEATHSIG`), and its pipe closes.
//!   Both end the worker, which restores its settings.
//! - Decisions are pure: [`Configuration`] determines the options of each interface, and [`Course`]
//!   determines when a worker starts again.

mod configuration;
mod control;
mod course;
mod device_reset;
mod effect;
mod interfaces;
mod kind;
mod log_limit;
mod notify;
mod pattern;
mod status;
mod supervisor;
mod unit;
mod worker;

pub use configuration::{Configuration, DEFAULT_GROUP, FAIR_KEYS, OptionError, Rule, STEER_KEYS};
pub use control::{Command, Control, ControlError, Request, ask};
pub use course::{Course, Ending, Next};
pub use device_reset::{DeviceState, reset_of};
pub use evenkeel_host::DEFAULT_SOCKET;
pub use interfaces::{Interface, Interfaces};
pub use kind::Kind;
pub use notify::Notifier;
pub use pattern::{Match, Pattern};
pub use status::{InterfaceStatus, Phase, ServiceStatus, Unrestored, WorkerStatus, client_command};
pub use supervisor::{Managed, Outside, Priority, Supervisor};
