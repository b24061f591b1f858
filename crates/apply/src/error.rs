//! Errors of changes, of their journal and of the files below `/etc`.

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_host::{DEFAULT_SOCKET, Host, HostError, service_socket};
use evenkeel_model::text::path_text;
use evenkeel_netlink::NetlinkError;
use evenkeel_netlink::ethtool::EthtoolError;

use nix::unistd::geteuid;

use crate::damaged_journal::Damaged;
use crate::disturbance::Disturbance;
use crate::journal::Header;
use crate::namespace::own_namespace;
use crate::printed_command::printed_command;
use crate::renamed_journal::Renamed;

/// The kind of an error. It determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Bad usage: a name that does not exist, or options that contradict each other.
    Usage,
    /// This machine cannot perform the operation, at least not now. The message says what to do.
    Unable,
    Failed,
}

#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    #[error("{what} does not exist")]
    Gone { what: String },
    /// The current value could not be restored later, so the knob is not changed.
    #[error("{what} cannot be restored exactly: {reason}")]
    NotRestorable { what: String, reason: String },
    /// The interface left its network namespace; it may have been deleted or moved.
    #[error(
        "{what} left its network namespace, and evenkeel found the interface in no other network namespace \
         ({reason}); as root, run {} to search again",
        revert_here(.interface)
    )]
    Lost { what: String, interface: String, reason: String },
    #[error("{what} is not a setting that evenkeel changes")]
    NotPermitted { what: String },
    #[error("{value} is not a value for {knob}")]
    WrongKind { knob: String, value: String },
    #[error("cannot {action}: {source}{}", privilege(.source))]
    File { action: String, source: io::Error },
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Errors of files below `/etc` that apply settings again after a reboot.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    #[error("cannot {action} {path}: {source}", path = path_text(.path))]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Output(#[from] evenkeel_files::OutputError),
    /// The file was not written by Evenkeel, or was edited since.
    #[error(
        "{path} was edited, or written by another program; move the file away, then run the command again",
        path = path_text(.path)
    )]
    Foreign { path: PathBuf },
    #[error("{path} is not a directory; name a directory with EVENKEEL_ETC_DIR", path = path_text(.path))]
    NoDirectory { path: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {action} {path}: {source}", path = path_text(.path))]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot use the journal directory {path}: {source}; {}", access(.source), path = path_text(.path))]
    Directory { path: PathBuf, source: io::Error },
    /// The directory or a file in it cannot be trusted or used, for example because another user may have
    /// written it.
    #[error(
        "{path} is not safe to use: {reason}; {next}",
        path = path_text(.path)
    )]
    Unsafe { path: PathBuf, reason: String, next: String },
    /// A part of the journal fails its checksum or cannot be parsed, or the whole journal cannot be read.
    #[error(transparent)]
    Damaged(Box<Damaged>),
    /// Another program's file, directory or link has the journal's name. Evenkeel does not remove it.
    #[error(
        "{} has the name of the journal {path}; inspect {path}, then remove it",
        kind_of(.path),
        path = path_text(.path)
    )]
    Supplanted { path: PathBuf },
    /// Another program renamed the journal of a killed run.
    #[error(transparent)]
    Renamed(Box<Renamed>),
    /// Another run has changed this setting, which belongs to the whole namespace or host.
    #[error(
        "{knob} is already changed by evenkeel {} on {} (process {}); end that run first, or run `{}` if it was killed",
        .owner.command,
        .owner.interface.name,
        .owner.process.id,
        printed_command("evenkeel revert {}", &[&.owner.interface.name])
    )]
    Owned { knob: String, owner: Box<Header> },
    /// A run in another network namespace changed settings that the interface still has.
    #[error(
        "evenkeel {} changed settings of {} in the network namespace net:[{}]; run `{}` there first{}",
        .header.command,
        .header.interface.name,
        .header.interface.namespace,
        printed_command("evenkeel revert", &[]),
        how_to_enter(.path.as_deref())
    )]
    ElsewhereFirst {
        header: Box<Header>,
        /// A path that enters the namespace.
        path: Option<PathBuf>,
    },
    /// A killed run left a setting that cannot be restored now.
    #[error(
        "a killed run changed {knob}, and evenkeel cannot restore the old value: {reason}; restore it by hand, then \
         remove {path}",
        path = path_text(.path)
    )]
    Unfinished { path: PathBuf, knob: String, reason: String },
    #[error("{}", busy(.holder.as_deref(), .path))]
    Busy {
        path: PathBuf,
        /// The other run's header and its process id in this PID namespace, if known.
        holder: Option<Box<(Header, u32)>>,
    },
    /// Another process holds the interface, either without a journal or with its journal in another
    /// directory.
    #[error("{}", held_elsewhere(.interface, *.process, .journal.as_deref()))]
    HeldElsewhere { interface: String, process: u32, journal: Option<PathBuf> },
    #[error("another service keeps the changes of `tune` to {interface}: {}", end_first(*.process, "", .interface))]
    Tuned { interface: String, process: u32 },
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Returns the next step if the kernel refuses access to a file because of the user namespace or a read-only
/// mount; otherwise an empty text.
fn privilege(source: &io::Error) -> String {
    if source.kind() == io::ErrorKind::ReadOnlyFilesystem {
        return "; mount its file system for writing (in a container: --privileged)".to_owned();
    }
    let host = Host::live();
    match source.kind() == io::ErrorKind::PermissionDenied && host.is_in_user_namespace() {
        true => format!("; {}", host.how_to_be_privileged()),
        false => String::new(),
    }
}

fn kind_of(path: &Path) -> &'static str {
    match std::fs::symlink_metadata(path).map(|metadata| metadata.file_type()) {
        Ok(kind) if kind.is_symlink() => "a symbolic link",
        Ok(kind) if kind.is_dir() => "a directory",
        _ => "another file",
    }
}

/// Returns the next step after a failure to use the state directory.
fn access(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied if !geteuid().is_root() => "run the command as root",
        _ if matches!(source.raw_os_error(), Some(libc::EMFILE)) => "raise the limit (ulimit -n)",
        _ if matches!(source.raw_os_error(), Some(libc::EFBIG)) => {
            "raise the limit on the size of files (ulimit -f)"
        }
        _ => "name another directory with EVENKEEL_STATE_DIR",
    }
}

/// Returns the command that runs `evenkeel revert` in a network namespace, in parentheses; an empty text
/// without a path.
#[must_use]
pub fn how_to_enter(path: Option<&Path>) -> String {
    let line = |path: &Path| printed_command("nsenter --net={} evenkeel revert", &[&path.to_string_lossy()]);
    path.map(|path| format!(" ({})", line(path))).unwrap_or_default()
}

/// Returns a command that reverts an interface of the calling thread's network namespace. If this namespace
/// has a path, the command works in any namespace. Otherwise the text says in which namespace to run the
/// command, if this is known.
#[must_use]
pub fn revert_here(interface: &str) -> String {
    let line = printed_command("evenkeel revert {}", &[&interface]);
    let Some((inode, path)) = own_namespace() else { return format!("`{line}`") };
    match path {
        Some(path) => {
            let line = printed_command(
                "nsenter --net={} evenkeel revert {}",
                &[&path.to_string_lossy(), &interface],
            );
            format!("`{line}`")
        }
        None => {
            format!("`{line}` in the network namespace net:[{inode}] (`lsns -t net` lists processes in it)")
        }
    }
}

/// Describes a process that must end first. The kernel reports 0 for a process that has no id in this PID
/// namespace.
fn end_first(process: u32, since: &str, interface: &str) -> String {
    match process {
        0 => format!("a process in another PID namespace{since}; end it first"),
        process => {
            let mut pause = printed_command("evenkeel service pause", &[]);
            if let Some(socket) = service_socket().filter(|socket| socket != Path::new(DEFAULT_SOCKET)) {
                pause = pause.with(" --socket {}", &[&socket.to_string_lossy()]);
            }
            let pause = pause.on(&interface, "", &[]);
            format!(
                "process {process}{since}; end it first (kill {process}; if it belongs to the service: `{pause}`)"
            )
        }
    }
}

fn held_elsewhere(interface: &str, process: u32, journal: Option<&Path>) -> String {
    let process = end_first(process, "", interface);
    match journal {
        Some(journal) => {
            format!(
                "evenkeel manages {interface} already, but its journal is not {}: {process}",
                path_text(journal)
            )
        }
        None => format!("evenkeel steer or tune manages {interface} already: {process}"),
    }
}

fn not_removed(source: &JournalError) -> String {
    match source {
        JournalError::Supplanted { .. } => source.to_string(),
        _ => format!(
            "the journal remains: {source}; remove the cause, then run `{}`",
            printed_command("evenkeel revert", &[])
        ),
    }
}

fn busy(holder: Option<&(Header, u32)>, path: &Path) -> String {
    match holder {
        Some((Header { command, interface, started, .. }, process)) => format!(
            "evenkeel {command} manages {} already: {}",
            interface.name,
            end_first(*process, &format!(", since {started}"), &interface.name)
        ),
        None => format!(
            "another process has locked the journal {}; wait until it ends (`fuser` names it)",
            path_text(path)
        ),
    }
}

/// Returns the next step if `fork` fails with EAGAIN because a limit on processes is reached; otherwise an
/// empty text.
fn process_limit(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::WouldBlock => "; raise the limit on processes (`ulimit -u`, `pids.max` of the cgroup)",
        _ => "",
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Knob(#[from] KnobError),
    #[error("{knob} was set to {wanted}, but the kernel shows {found}")]
    NotTaken { knob: String, wanted: String, found: String },
    /// The journal does not list the value, so a rollback could not undo the change.
    #[error(
        "refused to set {knob} to {value}: the journal does not have this value, so evenkeel could not restore it; \
         report this as a bug"
    )]
    NotAllowed { knob: String, value: String },
    #[error("{0}")]
    Disturbed(Disturbance),
    /// The service leaves the settings of `evenkeel tune` to the user.
    #[error(
        "`evenkeel tune` has set {knob} to {value}; `{}` gives the setting to the service",
        printed_command("evenkeel revert {}", &[.interface])
    )]
    OfUser { knob: String, value: String, interface: String },
    #[error("cannot start the guardian process: {0}{hint}", hint = process_limit(.0))]
    Guardian(io::Error),
    #[error("the guardian process cannot wait for the end of the process that it guards: {0}")]
    Wait(io::Error),
    #[error("cannot restore the settings of {interface} that evenkeel changed: {source}; run `{}`", printed_command("evenkeel revert {}", &[.interface]))]
    StillChanged { interface: String, source: Box<ApplyError> },
    #[error("{rolled_back}, but {}", not_removed(.source))]
    JournalStays { rolled_back: String, source: Box<JournalError> },
}

impl ApplyError {
    /// Returns whether the cause is another run that has journalled a setting of the whole namespace or
    /// host.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Owned { .. }))
    }

    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::Journal(
                JournalError::Busy { .. }
                | JournalError::HeldElsewhere { .. }
                | JournalError::Tuned { .. }
                | JournalError::Unfinished { .. }
                | JournalError::Directory { .. }
                | JournalError::Unsafe { .. }
                | JournalError::Owned { .. }
                | JournalError::Renamed(_)
                | JournalError::ElsewhereFirst { .. },
            )
            | Self::Knob(KnobError::NotRestorable { .. } | KnobError::Host(HostError::ForeignSysfs { .. })) => {
                Cause::Unable
            }
            Self::Knob(KnobError::File { source, .. }) => match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Cause::Unable,
                _ => Cause::Failed,
            },
            _ => Cause::Failed,
        }
    }
}

impl From<Damaged> for JournalError {
    fn from(damaged: Damaged) -> Self {
        Self::Damaged(Box::new(damaged))
    }
}

impl From<Damaged> for ApplyError {
    fn from(damaged: Damaged) -> Self {
        JournalError::from(damaged).into()
    }
}
