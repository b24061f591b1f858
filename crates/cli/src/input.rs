//! The files that the command line names.

use std::path::Path;

use evenkeel_files::{Kind, Text};

use crate::exit::Failure;

/// Reads a file: a regular one, a pipe, or standard input for `-`. Call it before signals are caught: the reader waits for
/// a pipe, and watches for signals itself.
pub fn read(path: &Path, kind: Kind) -> Result<Text, Failure> {
    Ok(evenkeel_files::read(path, kind)?)
}

/// Whether an argument that may be a name is a path.
pub fn is_path(argument: &str) -> bool {
    let path = Path::new(argument);
    argument == "-" || argument.contains('/') || path.extension().is_some() || path.exists()
}

/// Where files lie that another file names: beside it, or in the current directory if it came through a pipe.
pub fn beside(path: &Path) -> &Path {
    let is_descriptor = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|place| path.starts_with(place));
    path.parent().filter(|_| !is_descriptor).unwrap_or(Path::new(""))
}
