//! Errors while reading a host.

use std::io;
use std::path::PathBuf;

use evenkeel_model::text::path_text;

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot read {path}: {source}", path = path_text(.path))]
    Read { path: PathBuf, source: io::Error },
    /// A recorded answer of the kernel could not be read.
    #[error(
        "cannot read {path}: {source}; put a readable file in its place, or record the host again with `evenkeel \
         check --save`", path = path_text(.path)
    )]
    Answer { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}", path = path_text(.path))]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Output(#[from] evenkeel_files::OutputError),
    /// A file does not have the kernel's format.
    #[error("{path}:{line}: {reason}", path = path_text(.path))]
    Format {
        path: PathBuf,
        /// From 1.
        line: usize,
        reason: String,
    },
    /// A recorded answer has a field that the kernel does not provide.
    #[error("{path}: {field}: {reason}", path = path_text(.path))]
    Field {
        path: PathBuf,
        /// For example `[0].local`.
        field: String,
        reason: String,
    },
    /// The recorded tree has no interface, not even a loopback.
    #[error("cannot use the tree as a recorded host: {path} has no interface; name a directory that `evenkeel check --save` wrote", path = path_text(.path))]
    NoHost {
        /// The directory of the interfaces.
        path: PathBuf,
    },
    /// `/proc` or `/sys` of the running machine is not mounted.
    #[error("{mount} is not mounted; mount it, or run evenkeel outside the chroot or container")]
    NotMounted { mount: &'static str },
    #[error("cannot enter {namespace}: {source}")]
    Namespace { namespace: String, source: io::Error },
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
    #[error("cannot use the abstract socket @{name}: {source}")]
    SocketName { name: String, source: io::Error },
    #[error(transparent)]
    Netlink(#[from] evenkeel_netlink::NetlinkError),
}
