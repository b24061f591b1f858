//! Changes to a host, and their undo.
//!
//! A [`Change`] is data (`evenkeel_model::change`): which [`Knob`], to which [`Value`]. Where it comes *from* is read, never assumed.
//! Whoever wants to change something opens a [`Run`] on an interface:
//!
//! ```text
//!   read the knob ─▶ write "knob, from, ours" to the journal ─▶ fsync ─▶ change it ─▶ read it back
//!                                                                 │
//!        crash anywhere here: the journal says what it was  ◀─────┘
//! ```
//!
//! So there is no moment at which a crash loses what a knob was before. Roll-back goes through the journal
//! from its end, and each knob has one of three states:
//! - it has the value *from*: nothing to do;
//! - it has one of *our* values: it gets back what it had;
//! - it has another one: somebody changed it since. It is left alone, and that is said.
//!
//! A knob that is changed often (a queue's weight every millisecond) is journalled once, with every value
//! that we may set ([`Ours`]); [`Run::set`] then costs no write to the disk.
//!
//! Who rolls back: the run itself at its end; if it is killed, its [`Guardian`](guardian), a process of its own that
//! watches it; if both die, `evenkeel revert` ([`revert`]) or the next run on the interface. A
//! journal belongs to one boot, one network namespace and one interface ([`InterfaceIdentity`]): after a reboot it is void,
//! an interface that was renamed or moved to another namespace is still found, and one that has got its number is not
//! taken for it. It is also the lock: the run holds it (flock(2)), and a second run on the same interface is refused.
//!
//! What is to stay after its process has ended is changed through [`Lasting`], with a journal of its own.

mod error;
pub mod guardian;
mod held;
mod identity;
mod journal;
mod journal_lines;
mod kernel;
mod lasting;
mod namespace;
mod ours;
mod persisted;
pub mod privileges;
mod qdisc;
mod revert;
mod rollback;
mod run;
mod state;

pub use evenkeel_model::change::{Change, ClassHandle, Knob, QdiscSnapshot, RuleBytes, Value};
pub use evenkeel_model::shell::Line;

pub use error::{ApplyError, Cause, JournalError, KnobError, PersistError, how_to_enter};
pub use held::Held;
pub use identity::InterfaceIdentity;
pub use journal::{Entry, Header, Process, Storage};
pub use journal_lines::{Contents, Damage, JournalWriter, parse};
pub use kernel::{Kernel, LiveKernel};
pub use lasting::{Lasting, Made, kept};
pub use namespace::NamespaceHandle;
pub use ours::Ours;
pub use persisted::{Etc, Removal};
pub use revert::{Damaged, Leftover, RevertOutcome, leftover, revert};
pub use rollback::{LeftAlone, Report, roll_back};
pub use run::{Disturbance, Run};
pub use state::StateDirectory;
