//! Errors of loading and using BPF objects.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    #[error("cannot load the BPF object {object}: {source}{}{}", requirement(object, .old_kernel.as_deref()), details(.log))]
    Load {
        object: &'static str,
        source: io::Error,
        /// Release of the running kernel, if it is older than [`oldest_kernel`].
        old_kernel: Option<String>,
        /// The last lines of libbpf's log.
        log: String,
    },
    /// The limit of open file descriptors is too low for the maps and programs of the object.
    #[error(
        "cannot load the BPF object {object}: it needs {needed} file descriptors, and {left} are left (ulimit -n {limit}); raise the limit"
    )]
    Descriptors { object: &'static str, needed: u64, left: u64, limit: u64 },
    #[error(
        "cannot attach the BPF program {program} to the interface with index {ifindex} ({hook}): {source}; `bpftool net` lists the \
         programs that are attached"
    )]
    Attach {
        program: &'static str,
        /// Name of the hook, such as `tcx egress`.
        hook: &'static str,
        ifindex: i32,
        source: io::Error,
    },
    #[error(
        "the BPF object has no {kind} named {name}: it belongs to another version of evenkeel; build evenkeel again"
    )]
    Missing { kind: &'static str, name: &'static str },
    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },
    /// The caller exceeded a limit of the programs.
    #[error("{0}")]
    Limit(String),
}

/// Suffix of the names of objects for kernels without `bpf_cast_to_kern_ctx`.
pub(crate) const PROBED: &str = "_probed";

/// Returns the oldest kernel version on which an object is expected to load. The probed objects need neither
/// tcx (Linux 6.6) nor `bpf_cast_to_kern_ctx` (6.2), and are tested on 6.1. Some of the other objects need a
/// newer kernel than 6.6, such as the qdisc (6.16).
fn oldest_kernel(object: &str) -> (u32, u32) {
    match object {
        // BPF qdiscs.
        "batch" => (6, 16),
        object if object.ends_with(PROBED) => (6, 1),
        _ => (6, 6),
    }
}

/// Returns the release of the running kernel, if it is older than [`oldest_kernel`].
pub(crate) fn old_kernel(object: &str) -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    is_old(&release, oldest_kernel(object)).then(|| release.trim().to_owned())
}

/// Returns whether a kernel's release, such as `6.1.0-50-amd64`, is older than a version.
fn is_old(release: &str, oldest: (u32, u32)) -> bool {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < oldest)
}

fn requirement(object: &str, old_kernel: Option<&str>) -> String {
    let (major, minor) = oldest_kernel(object);
    old_kernel
        .map(|release| {
            format!("; the object needs Linux {major}.{minor} or newer, but this kernel is {release}")
        })
        .unwrap_or_default()
}

fn details(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

impl DatapathError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |error| Self::System { action, source: io_error(&error) }
    }

    /// Returns whether the cause is a name that is already registered.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::AlreadyExists)
    }

    /// Returns whether the kernel refused because a privilege, a feature or file descriptors are missing, not
    /// because of a defect.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Descriptors { .. } => true,
            Self::Load { source, .. } | Self::Attach { source, .. } | Self::System { source, .. } => {
                // The errors of a missing privilege or feature: EPERM, EACCES, EINVAL, ENOENT,
                // EOPNOTSUPP or ENOSYS.
                matches!(
                    source.kind(),
                    io::ErrorKind::PermissionDenied
                        | io::ErrorKind::InvalidInput
                        | io::ErrorKind::NotFound
                        | io::ErrorKind::Unsupported
                )
            }
            _ => false,
        }
    }
}

/// Converts an error of libbpf-rs, which exposes only the kind and the text, not the errno.
pub(crate) fn io_error(error: &libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
        libbpf_rs::ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
        libbpf_rs::ErrorKind::Unsupported => io::ErrorKind::Unsupported,
        libbpf_rs::ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    // `#` adds the chain of causes to the text.
    io::Error::new(kind, format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use libbpf_rs::ErrorExt;

    #[test]
    fn an_old_kernel_is_named() {
        for (release, old) in [
            ("6.1.0-50-amd64\n", true),
            ("5.10.0", true),
            ("6.6.1", false),
            ("7.0", false),
            ("10.1-x", false),
            ("", false),
        ] {
            assert_eq!(is_old(release, oldest_kernel("lola")), old, "{release}");
        }
        assert!(!is_old("6.1.0-50-amd64", oldest_kernel("meter_probed")));
        assert!(is_old("5.10.0", oldest_kernel("meter_probed")));
        let error = |object, old_kernel: Option<&str>| DatapathError::Load {
            object,
            source: io::Error::from_raw_os_error(libc::EINVAL),
            old_kernel: old_kernel.map(str::to_owned),
            log: "a log".to_owned(),
        };
        let words = error("lola", Some("6.1.0-50-amd64")).to_string();
        assert!(
            words
                .ends_with("; the object needs Linux 6.6 or newer, but this kernel is 6.1.0-50-amd64\na log"),
            "{words}"
        );
        assert!(!error("lola", None).to_string().contains("newer"));
        let words = error("meter_probed", Some("5.10.0")).to_string();
        assert!(words.contains("needs Linux 6.1 or newer, but this kernel is 5.10.0"), "{words}");
    }

    #[test]
    fn what_the_kernel_refuses_is_known_below_any_context() {
        let refused = |code| {
            let error = libbpf_rs::Error::from_raw_os_error(code).context("failed to load");
            DatapathError::system("load")(error)
        };
        for code in [libc::EPERM, libc::EACCES, libc::EINVAL, libc::ENOENT, libc::EOPNOTSUPP, libc::ENOSYS] {
            assert!(refused(code).is_refusal(), "{}", refused(code));
        }
        assert!(!refused(libc::EIO).is_refusal());
        assert!(refused(libc::EEXIST).is_taken() && !refused(libc::ENOENT).is_taken());
        let words = refused(libc::EEXIST).to_string();
        assert!(words.contains("failed to load") && words.contains("os error 17"), "{words}");
    }
}
