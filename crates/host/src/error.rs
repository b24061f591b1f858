//! Errors while reading a host.

use std::io;
use std::path::PathBuf;

use evenkeel_model::text::path_text;

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}", path = path_text(.path))]
    Read { path: PathBuf, source: io::Error },
    /// A recorded answer of the kernel could not be read.
    #[error(
        "cannot read {path}: {source}; put a readable file in its place, or record the host again with `evenkeel \
         check --save`", path = path_text(.path)
    )]
    Answer { path: PathBuf, source: io::Error },
    /// A recording could not be written.
    #[error("cannot write {path}: {source}", path = path_text(.path))]
    Write {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// A recording's directory could not be written.
    #[error(transparent)]
    Output(#[from] evenkeel_files::OutputError),
    /// A file does not have the kernel's format.
    #[error("{path}:{line}: {reason}", path = path_text(.path))]
    Format {
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Description of the problem.
        reason: String,
    },
    /// A field of an answer in a recorded tree is none that the kernel gives.
    #[error("{path}: {field}: {reason}", path = path_text(.path))]
    Field {
        path: PathBuf,
        /// Such as `[0].local`.
        field: String,
        reason: String,
    },
    /// There is no interface, not even a loopback.
    #[error("cannot use {path} as a recorded host: it has no interface; name a directory that `evenkeel check --save` wrote", path = path_text(.path))]
    NoHost {
        /// The directory of the interfaces.
        path: PathBuf,
    },
    /// The running machine's `/proc` or `/sys` is not there.
    #[error("{mount} is not mounted; mount it, or run evenkeel outside the chroot or container")]
    NotMounted { mount: &'static str },
    /// A network namespace could not be entered.
    #[error("cannot enter {namespace}: {source}")]
    Namespace { namespace: String, source: io::Error },
    /// A thread could not be started.
    #[error(
        "cannot start a thread: {0}; raise the limit on processes (`ulimit -u`, `pids.max` of the cgroup)"
    )]
    Thread(#[source] io::Error),
    /// `/sys` shows another namespace, and no sysfs of this namespace could be mounted.
    #[error(
        "/sys shows the interfaces of another network namespace, and evenkeel cannot mount a sysfs of its own namespace: \
         {source}; run evenkeel with CAP_SYS_ADMIN, or with `ip netns exec`"
    )]
    ForeignSysfs { source: io::Error },
    /// The kernel refused an abstract socket.
    #[error("cannot use the abstract socket @{name}: {source}")]
    SocketName { name: String, source: io::Error },
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] evenkeel_netlink::NetlinkError),
}
