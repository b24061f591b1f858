//! What can be wrong with a record directory.

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_files::{InputError, OutputError};

use super::plausible::Implausible;

/// Why a record cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The record's file cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The directory for a new record cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// There is no such file.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The file that was looked for.
        path: PathBuf,
    },
    /// The record ends in the middle.
    #[error("{} is cut short: it ends in the middle of the record", path.display())]
    Truncated {
        /// The record's file.
        path: PathBuf,
    },
    /// The file is not a record; the source names line, column and field.
    #[error("{} is not a record", path.display())]
    Malformed {
        /// The record's file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// The record has a version that this code does not know.
    #[error("{} has schema {found}, this evenkeel reads schema {supported}", path.display())]
    Schema {
        /// The record's file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The schema that can be read.
        supported: u32,
    },
    /// A figure cannot have been measured.
    #[error("{} is not a record of a run: {source}", path.display())]
    Implausible {
        /// The record's file.
        path: PathBuf,
        /// Which figure.
        source: Implausible,
    },
    /// A figure is not a finite number, so JSON cannot hold it.
    #[error("{field} is {value}; only finite numbers can be recorded")]
    NotFinite {
        /// Which figure.
        field: String,
        /// Its value.
        value: f64,
    },
    /// A series was given or asked for of a repeat that the record does not have.
    #[error("the record has no repeat {repeat} of variant {variant:?}")]
    NoSuchRepeat {
        /// The variant.
        variant: String,
        /// The repeat, counted from 0.
        repeat: usize,
    },
    /// The record names a file that is not a plain file inside its directory.
    #[error("the record in {} names {file:?}, which is not a file within it", directory.display())]
    OutsideRecord {
        /// The record's directory.
        directory: PathBuf,
        /// The file it names.
        file: String,
    },
    /// A series' file does not unpack.
    #[error("{} is damaged", path.display())]
    DamagedSeries {
        /// The series' file.
        path: PathBuf,
        /// What the decompressor found.
        source: io::Error,
    },
    /// A series' file unpacks to something else than a series.
    #[error("{}, line {line} (unpacked): {reason}", path.display())]
    MalformedSeries {
        /// The series' file.
        path: PathBuf,
        /// Line of the unpacked text, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A series to be written is not one: see the reason.
    #[error("series of {variant}, repeat {repeat}: {reason}")]
    UnsuitableSeries {
        /// The variant.
        variant: String,
        /// The repeat, counted from 0.
        repeat: usize,
        /// What is wrong with it.
        reason: String,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}
