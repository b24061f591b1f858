//! Reads the files that users name, and writes results.
//!
//! - [`read`] reads a regular file, a pipe or standard input (`-`). Each [`Kind`] of file has a size
//!   limit. [`read`] refuses paths of directories, devices (except `/dev/null`) and sockets. SIGINT, SIGTERM
//!   and SIGHUP end the wait for data.
//! - [`Watched`] and [`read_regular`] are for running sessions. [`read_regular`] accepts only regular files
//!   and never waits. [`Watched`] uses it after the first read.
//! - [`replace`] writes a file, and [`OutputDirectory`] a directory, atomically. The directory is
//!   claimed before the work that produces the result. [`NewFile`] is a claimed file that must not
//!   exist before.

mod directory;
mod end_signals;
mod input;
mod kind;
mod new_file;
mod output;
mod standard;
#[cfg(test)]
mod testing;
mod watched;

pub use directory::{ClaimedDirectory, OutputDirectory};
pub use input::{
    Fault, Input, InputError, Text, open, open_regular, read, read_bytes, read_regular, report_waits, shown,
};
pub use kind::Kind;
pub use new_file::NewFile;
pub use output::{OutputError, check_regular, remove_abandoned, replace, replace_all};
pub use standard::was_closed;
pub use watched::{Stamp, Watched};

/// Returns whether a system call failed because of the limit of open files (`ulimit -n`, `fs.file-max`).
#[must_use]
pub fn is_limit(error: &std::io::Error) -> bool {
    use libc::{EMFILE, ENFILE};
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}
