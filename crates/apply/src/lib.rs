//! Changes to a host, and their undo.
//!
//! A [`Change`] is data (`evenkeel_model::change`): a [`Knob`] and its new [`Value`]. The old value is
//! always read, never assumed. Changes are made through a [`Run`] on an interface:
//!
//! ```text
//!   read the knob ─▶ write "knob, from, ours" to the journal ─▶ fsync ─▶ change it ─▶ read it back
//!                                                                 │
//!        crash anywhere here: the journal has the old value ◀─────┘
//! ```
//!
//! So no crash loses an old value. Rollback reads the journal from its end. It examines the current
//! value of each knob:
//! - The value equals *from*: nothing to do.
//! - The value is one of *ours*: rollback restores *from*.
//! - The value is neither: another program has changed the knob since. Rollback reports the knob and
//!   does not change it.
//!
//! A change of the number of channels may reset settings of queues. The run journals these settings
//! before it changes the channels, and restores the settings after it has restored the channels.
//!
//! The run journals a knob that changes often (a queue's weight every millisecond) once, with every
//! value that the run may set ([`Ours`]). [`Run::set`] then writes nothing to the disk.
//!
//! The run rolls back at its end. If the run is killed, a separate process rolls back, its
//! [`Guardian`](guardian). If both processes die, `evenkeel revert` ([`mod@revert`]) or the next run on the
//! interface rolls back.
//!
//! A journal belongs to one boot, one network namespace and one interface ([`InterfaceIdentity`]):
//! - After a reboot, the journal is void.
//! - A revert finds an interface that was renamed or moved to another namespace.
//! - A revert distinguishes the interface from another one that reuses its index.
//!
//! The journal is also the lock: the run holds it (flock(2)), and Evenkeel refuses a second run on the
//! same interface.
//!
//! Changes that must outlive their process are made through [`Lasting`], with a separate journal.

mod channel_queues;
mod damaged_journal;
mod disturbance;
mod error;
mod filters;
mod find_by_device;
mod find_damaged;
mod find_renamed;
pub mod guardian;
mod holder;
mod identity;
mod journal;
mod journal_directory;
mod journal_file;
mod journal_lines;
mod kept_entries;
mod kept_watch;
mod kernel;
mod lasting;
mod lost_with_root;
mod namespace;
mod namespace_handle;
mod ours;
mod persisted;
mod printed_command;
pub mod privileges;
mod qdisc;
mod renamed_journal;
mod revert;
mod rollback;
mod run;
mod setting_file;
mod sole_run;
mod storage;

pub use evenkeel_model::change::{
    Change, ClassHandle, Direction, FILTER_HANDLE, FilterPlace, Knob, QdiscSnapshot, RuleBytes, Value,
};
pub use evenkeel_model::shell::Line;

pub use damaged_journal::{Damaged, Obstacle};
pub use disturbance::Disturbance;
pub use error::{ApplyError, Cause, JournalError, KnobError, PersistError, how_to_enter, revert_here};
pub use find_damaged::{Absence, Remains, absence, damaged, remains};
pub use find_renamed::{check_renamed, copies, finished_copies, renamed};
pub use identity::{InterfaceIdentity, device_inode};
pub use journal::{Entry, Header, Process};
pub use journal_directory::StateDirectory;
pub use journal_file::Held;
pub use journal_lines::{Contents, Damage, JournalWriter, parse};
pub use kept_entries::{KeptJournal, in_force, kept, kept_journals};
pub use kept_watch::{KeptWatch, Lost, service_journals, unrecorded};
pub use kernel::{Kernel, LiveKernel};
pub use lasting::{Lasting, Made};
pub use namespace_handle::NamespaceHandle;
pub use ours::Ours;
pub use persisted::{Etc, Removal};
pub use printed_command::{printed_advice, printed_command};
pub use renamed_journal::Renamed;
pub use revert::{
    Leftover, RevertOutcome, check_elsewhere, forget_lost_of_service, journals_below, leftover, live_runs,
    put_back, revert, revert_of_service, run_in_roll_back, unfinished, whole_leftover,
};
pub use rollback::{LeftAlone, Report, roll_back};
pub use run::{DEFAULT_QUEUE_LENGTH, Run};
pub use sole_run::{
    check_unmanaged, check_unsteered, exclude_runs, exclude_sessions, is_managed, run_on, steer_alone,
    tune_alone, tuner_of,
};
pub use storage::{Rewritten, Storage};
