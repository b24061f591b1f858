//! Reads files that the command line names.

use std::path::Path;

use evenkeel_files::{Kind, Text};

use crate::exit::Failure;

/// Reads a regular file, a pipe, or standard input for `-`. Call it before catching signals: the reader waits
/// for a pipe, and handles signals itself.
pub fn read(path: &Path, kind: Kind) -> Result<Text, Failure> {
    Ok(evenkeel_files::read(path, kind)?)
}

/// Whether an argument is a path and not a name.
pub fn is_path(argument: &str) -> bool {
    let path = Path::new(argument);
    argument == "-" || argument.contains('/') || path.extension().is_some() || path.exists()
}

/// The directory of files that another file names: its own, or the current directory if it came through a pipe.
pub fn beside(path: &Path) -> &Path {
    let is_descriptor = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|place| path.starts_with(place));
    path.parent().filter(|_| !is_descriptor).unwrap_or(Path::new(""))
}
