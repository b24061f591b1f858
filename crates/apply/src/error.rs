//! What can go wrong with a change.

use std::io;
use std::path::PathBuf;

use evenkeel_host::HostError;
use evenkeel_netlink::NetlinkError;
use evenkeel_netlink::ethtool::EthtoolError;

use crate::journal::Header;
use crate::journal_lines::Damage;

/// Whose matter an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The caller named something that is not there, or asked for what does not fit together.
    Usage,
    /// This machine cannot do it, or not now; the message says what to do.
    Unable,
    /// It failed under way.
    Failed,
}

/// A knob could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// The knob, or the interface that it belongs to, is not there any more.
    #[error("{what} is gone")]
    Gone {
        /// Which one.
        what: String,
    },
    /// What stands there now could not be put back later, so it is not replaced.
    #[error("{what} could not be put back exactly: {reason}")]
    NotRestorable {
        /// Which one.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The interface left its network namespace, and it is not known whether it was deleted.
    #[error(
        "{what} is no longer in its network namespace, and was not found in another one: {reason}; as root, `evenkeel revert` looks again"
    )]
    Lost {
        /// Which one.
        what: String,
        /// Why it is not known.
        reason: String,
    },
    /// The knob names a file that is no setting of Evenkeel's.
    #[error("{what} is not a setting that evenkeel changes")]
    NotPermitted {
        /// Which one.
        what: String,
    },
    /// The value is of another kind than the knob's.
    #[error("{value} is no value for {knob}")]
    WrongKind {
        /// The knob.
        knob: String,
        /// The value.
        value: String,
    },
    /// The kernel refused to read or write a file.
    #[error("cannot {action}: {source}")]
    File {
        /// What was tried.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refused over netlink.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The driver refused through ethtool's interface.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// The host could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// A file that outlives a restart could not be written or removed.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] evenkeel_files::OutputError),
    /// It was not written by evenkeel, or not as it is now.
    #[error("{path} is somebody else's, or somebody has edited it: move it away first", path = .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
}

/// The journal could not be kept or understood.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused an operation on the file.
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The journal.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory of the journals cannot be made or opened.
    #[error(
        "cannot use {path}, where journals lie: {source}; name another directory with EVENKEEL_STATE_DIR",
        path = .path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another user can have written the files in it.
    #[error("{path} is not safe to use: {reason}; root would put back what it says", path = .path.display())]
    Unsafe {
        /// The directory or journal.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A part of the file is not as this program has written it.
    #[error(
        "the journal {path} is damaged ({}): the settings of what cannot be read are not known; compare them with it and \
         put them back by hand, then remove it",
        listed(.damage),
        path = .path.display()
    )]
    Damaged {
        /// The journal, where it is kept.
        path: PathBuf,
        /// What is wrong.
        damage: Vec<Damage>,
    },
    /// A setting of the whole namespace or host that another run has changed.
    #[error("{knob} is changed by evenkeel {} on {} already (process {})", .owner.command, .owner.interface.name, .owner.process.id)]
    Owned {
        /// The setting.
        knob: String,
        /// The other run.
        owner: Box<Header>,
    },
    /// A run in another network namespace had changed settings that the interface still has.
    #[error(
        "evenkeel {} had changed settings of this interface in the network namespace net:[{}]; run `evenkeel revert` there \
         first{}", .header.command, .header.interface.namespace, how_to_enter(.path.as_deref())
    )]
    ElsewhereFirst {
        /// The other run.
        header: Box<Header>,
        /// How its namespace can be entered.
        path: Option<PathBuf>,
    },
    /// A run that died has left settings that cannot be put back now.
    #[error(
        "{knob}, which a run that died had changed, cannot be put back: {reason}; put it back by hand, then remove \
         {path}",
        path = .path.display()
    )]
    Unfinished {
        /// The journal.
        path: PathBuf,
        /// The knob.
        knob: String,
        /// Why not.
        reason: String,
    },
    /// Another run holds the interface.
    #[error("{}", busy(.holder.as_deref(), .path))]
    Busy {
        /// The journal.
        path: PathBuf,
        /// Who holds it, if that could be read.
        holder: Option<Box<Header>>,
    },
    /// The host could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The first few of what is damaged.
pub(crate) fn listed(damage: &[Damage]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = damage.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = damage.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// The command that enters a network namespace, in brackets.
#[must_use]
pub fn how_to_enter(path: Option<&std::path::Path>) -> String {
    path.map(|path| format!(" (nsenter --net={} evenkeel revert)", path.display())).unwrap_or_default()
}

fn busy(holder: Option<&Header>, path: &std::path::Path) -> String {
    match holder {
        Some(header) => format!(
            "evenkeel {} manages {} already: process {}, since {}; end that one first (kill {})",
            header.command, header.interface.name, header.process.id, header.started, header.process.id
        ),
        None => format!("another process holds {}", path.display()),
    }
}

/// A change could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The journal failed: nothing was changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The kernel took a value and shows another.
    #[error("{knob} was set to {wanted}, and the kernel shows {found}")]
    NotTaken {
        /// The knob.
        knob: String,
        /// What was set.
        wanted: String,
        /// What it shows.
        found: String,
    },
    /// A value that the journal does not allow for.
    #[error("{value} is not among the values that the journal has for {knob}")]
    NotAllowed {
        /// The knob.
        knob: String,
        /// The value.
        value: String,
    },
    /// Somebody else changed the knob meanwhile.
    #[error("{0}")]
    Disturbed(crate::run::Disturbance),
    /// The guardian could not be started.
    #[error("cannot start the guardian process: {0}")]
    Guardian(io::Error),
}

impl ApplyError {
    /// Whether another run has changed a setting of the whole namespace or host.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Owned { .. }))
    }

    /// Whose matter it is.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::Journal(
                JournalError::Busy { .. }
                | JournalError::Unfinished { .. }
                | JournalError::Directory { .. }
                | JournalError::Unsafe { .. }
                | JournalError::Owned { .. }
                | JournalError::ElsewhereFirst { .. },
            )
            | Self::Knob(KnobError::NotRestorable { .. } | KnobError::Host(HostError::ForeignSysfs { .. })) => {
                Cause::Unable
            }
            _ => Cause::Failed,
        }
    }
}
