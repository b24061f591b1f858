use std::io;
use std::path::{Path, PathBuf};

use evenkeel_files::{InputError, OutputError};
use evenkeel_model::text::path_text;

use super::plausible::Implausible;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {action} {}", path_text(path))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// The caller stopped a write.
    #[error("interrupted while the record was written: nothing is recorded")]
    Interrupted,
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{} does not exist; name a record's directory or its record.json", path_text(path))]
    Missing { path: PathBuf },
    #[error(
        "{} is truncated: it ends in the middle of the record; run the scenario again, or restore the file",
        path_text(path)
    )]
    Truncated { path: PathBuf },
    /// The file has another format, for example a series.
    #[error(
        "{} is not a record: it is not text; name the record's directory or its record.json",
        path_text(path)
    )]
    NotText { path: PathBuf },
    /// The file is not a record. The source error names line, column and field.
    #[error("{} is not a record: {source}; name a record's directory or its record.json", path_text(path))]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} has schema {found}, but this evenkeel reads schema {supported}; use the version of evenkeel that \
         wrote the record",
        path_text(path)
    )]
    Schema { path: PathBuf, found: u32, supported: u32 },
    #[error(
        "{} is not a record of a run: {source}; restore the file, or run the scenario again",
        path_text(path)
    )]
    Implausible { path: PathBuf, source: Implausible },
    /// A figure is not finite, and JSON has no such number.
    #[error("{field} is {value}; only finite numbers can be recorded")]
    NotFinite { field: String, value: f64 },
    #[error("the record has no repeat {repeat} of variant {variant:?}")]
    NoSuchRepeat { variant: String, repeat: usize },
    #[error(
        "the record in {} names {file:?}, which is not a file within it; restore the record",
        path_text(directory)
    )]
    OutsideRecord { directory: PathBuf, file: String },
    #[error(
        "cannot decompress the series {}: {source}; run the scenario again, or restore the file",
        path_text(path)
    )]
    DamagedSeries { path: PathBuf, source: io::Error },
    #[error(
        "cannot read the series {}: line {line} after decompression: {reason}; run the scenario again, or restore the \
         file",
        path_text(path)
    )]
    MalformedSeries { path: PathBuf, line: usize, reason: String },
    #[error("series of {variant}, repeat {repeat}: {reason}")]
    UnsuitableSeries { variant: String, repeat: usize, reason: String },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}
