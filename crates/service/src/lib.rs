//! The service: runs `fair` on the interfaces of a configuration file.
//!
//! ```text
//!   evenkeel.toml ──▶ supervisor ──starts──▶ worker (`evenkeel fair eth0 --format jsonl`) ──▶ its guardian
//!                      │  ▲  ▲                  │
//!   sd_notify ◀────────┘  │  └──pipes: status───┘
//!                         └── control socket ◀── evenkeel status, service pause, resume, reload
//! ```
//!
//! - The supervisor changes no setting. Each interface has a worker process with its own journal,
//!   guardian and privileges, so that the failure of one interface does not affect another interface.
//! - If the supervisor dies, the kernel sends a worker SIGTERM (`PR_SET_PDEATHSIG`) and closes its
//!   pipe. Each of the two ends the worker, which then restores its settings.
//! - Decisions are pure. [`Configuration`] selects the options of each interface. [`Course`] decides
//!   when a worker starts again.

mod configuration;
mod control;
mod course;
mod effect;
mod interfaces;
mod log_limit;
mod notify;
mod pattern;
mod status;
mod supervisor;
mod unit;
mod worker;

pub use configuration::{Configuration, DEFAULT_GROUP, DEFAULT_SOCKET, FAIR_KEYS, OptionError, Rule};
pub use control::{Command, Control, ControlError, Request, ask};
pub use course::{Course, Ending, Next};
pub use interfaces::{Interface, Interfaces};
pub use notify::Notifier;
pub use pattern::{Match, Pattern};
pub use status::{InterfaceStatus, Phase, ServiceStatus, Unrestored};
pub use supervisor::{Outside, Priority, Supervisor};
