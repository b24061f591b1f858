//! What can go wrong between this process and the kernel's BPF.

use std::io;

/// A BPF object could not be loaded, attached or read.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The kernel, or libbpf, refused an object.
    #[error("cannot load the BPF object {object}: {source}{}", details(.log))]
    Load {
        /// Object's name.
        object: &'static str,
        /// What the kernel answered.
        source: io::Error,
        /// libbpf's own words, the last few lines.
        log: String,
    },
    /// A program could not be attached.
    #[error("cannot attach the BPF program {program} to interface {ifindex} ({hook}): {source}")]
    Attach {
        /// Program's name.
        program: &'static str,
        /// The hook, such as `tcx egress`.
        hook: &'static str,
        /// Interface index.
        ifindex: i32,
        /// What the kernel answered.
        source: io::Error,
    },
    /// Something that the object should hold is not there.
    #[error("the BPF object has no {kind} named {name}: it was built from other sources")]
    Missing {
        /// `map` or `program`.
        kind: &'static str,
        /// Name.
        name: &'static str,
    },
    /// A system call on a map, a program or a link failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A caller asked for more than the programs hold.
    #[error("{0}")]
    Limit(String),
}

fn details(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

impl DatapathError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |error| Self::System { action, source: io_error(&error) }
    }

    /// Whether something of that name is registered already.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::AlreadyExists)
    }

    /// Whether the kernel refused for want of a privilege or a feature, not because of a fault.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Load { source, .. } | Self::Attach { source, .. } | Self::System { source, .. } => {
                // Of a system call: EPERM and EACCES, EINVAL, ENOENT, EOPNOTSUPP and ENOSYS.
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

/// libbpf-rs keeps the system's error to itself: its kind and its words are left.
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
    // With the chain of its causes.
    io::Error::new(kind, format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use libbpf_rs::ErrorExt;

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
