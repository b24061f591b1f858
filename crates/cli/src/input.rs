//! Reads files that the command line names.

use std::path::Path;

use evenkeel_files::{Kind, Text};
use evenkeel_model::record::Record;
use evenkeel_report::store::{self, StoreError};

use crate::exit::{Exit, Failure};

/// Reads a regular file, a pipe, or standard input for `-`. Call this function before signals are
/// caught: it handles signals itself while it waits for a pipe.
pub fn read(path: &Path, kind: Kind) -> Result<Text, Failure> {
    Ok(evenkeel_files::read(path, kind)?)
}

/// Reads a record from its directory, a file, a pipe, or standard input for `-`.
pub fn record(path: &Path) -> Result<Record, Failure> {
    store::read(path).map_err(|error| match error {
        StoreError::Input(error) => error.into(),
        error => Failure::with_causes(Exit::Usage, &error),
    })
}

/// Returns whether an argument is a path and not a name.
pub fn is_path(argument: &str) -> bool {
    let path = Path::new(argument);
    argument == "-" || argument.contains('/') || path.extension().is_some() || path.exists()
}

/// Returns the directory of files that another file names: the directory of that file, or the current
/// directory if the file came through a pipe.
pub fn directory_of(path: &Path) -> &Path {
    let is_descriptor = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|place| path.starts_with(place));
    path.parent().filter(|_| !is_descriptor).unwrap_or(Path::new(""))
}
