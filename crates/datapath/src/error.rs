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

    /// Whether the kernel refused for want of a privilege or a feature, not because of a fault.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Load { source, .. } | Self::Attach { source, .. } | Self::System { source, .. } => {
                matches!(
                    source.raw_os_error(),
                    Some(
                        libc::EPERM
                            | libc::EACCES
                            | libc::EOPNOTSUPP
                            | libc::ENOSYS
                            | libc::EINVAL
                            | libc::ENOENT
                    )
                )
            }
            _ => false,
        }
    }
}

/// libbpf-rs keeps the system's error as a source; dig it out.
pub(crate) fn io_error(error: &libbpf_rs::Error) -> io::Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(found) = current.downcast_ref::<io::Error>()
            && let Some(code) = found.raw_os_error()
        {
            return io::Error::from_raw_os_error(code);
        }
        source = current.source();
    }
    io::Error::other(format!("{error:#}"))
}
