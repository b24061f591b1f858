//! Record directories: `record.json` and the raw series beside it.
//!
//! ```text
//! DIRECTORY/
//!   record.json               the record, readable by people
//!   series/VARIANT-REPEAT.csv.gz   bytes and packets of each flow in each bin, repeats from 0
//! ```
//!
//! A directory appears whole or not at all: it is written under another name beside its place and
//! renamed. Records travel, so nothing that one says is trusted: a series file is read only from
//! inside its record's directory, and damage is an error that names the file.

mod error;
mod series;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use evenkeel_model::record::{Record, SCHEMA, VariantRecord};
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use error::StoreError;
pub use series::{Series, SeriesFlow};

/// Name of the record within its directory.
pub const RECORD_FILE: &str = "record.json";

/// Name of the directory of the raw series within a record's directory.
const SERIES_DIRECTORY: &str = "series";

/// What an unfinished record's directory is called, before the number of the process that writes it.
const PARTIAL_PREFIX: &str = ".evenkeel-record-";

/// Writes `record` and its raw `series` as a new `directory` (which may exist if it is empty;
/// missing parents are made). Returns the record as written: with the file of each series.
///
/// # Errors
/// If the directory has something in it, if a series belongs to no repeat of the record or has
/// flows of different lengths, if a figure is not finite (JSON cannot hold it), or if the disk
/// fails. Nothing is left behind then.
pub fn write(directory: &Path, record: &Record, series: &[Series]) -> Result<Record, StoreError> {
    let mut record = record.clone();
    check_finite(&record)?;
    for one in series {
        let repeat = record
            .variants
            .iter_mut()
            .find(|variant| variant.name == one.variant)
            .and_then(|variant| variant.repeats.get_mut(one.repeat))
            .ok_or_else(|| StoreError::NoSuchRepeat { variant: one.variant.clone(), repeat: one.repeat })?;
        repeat.series = Some(format!("{SERIES_DIRECTORY}/{}", series::file_name(&one.variant, one.repeat)));
    }

    let directory = destination(directory)?;
    let parent = directory.parent().unwrap_or(Path::new("/"));
    remove_abandoned(parent);
    // The same rights as a directory made in the ordinary way; the umask applies.
    let partial = tempfile::Builder::new()
        .prefix(&format!("{PARTIAL_PREFIX}{}-", std::process::id()))
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(parent)
        .map_err(|source| StoreError::io("create a directory in", parent, source))?;

    if !series.is_empty() {
        let path = partial.path().join(SERIES_DIRECTORY);
        fs::create_dir(&path).map_err(|source| StoreError::io("create", &path, source))?;
        for one in series {
            series::write(&path.join(series::file_name(&one.variant, one.repeat)), one)?;
        }
    }
    write_record(&partial.path().join(RECORD_FILE), &record)?;

    fs::rename(partial.path(), &directory).map_err(|source| match source.kind() {
        std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::AlreadyExists => {
            StoreError::NotEmpty { path: directory.clone() }
        }
        _ => StoreError::io("rename a directory to", &directory, source),
    })?;
    // Renamed, it is no longer ours to remove.
    let _moved_away = partial.keep();
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(|source| StoreError::io("sync", parent, source))?;
    Ok(record)
}

/// Removes what a process that was killed while it wrote has left: unfinished records whose names
/// tell of a process that no longer is. One that cannot be removed is left.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let writer = name
            .to_str()
            .and_then(|name| name.strip_prefix(PARTIAL_PREFIX)?.split_once('-')?.0.parse::<u32>().ok());
        if writer.is_some_and(|writer| !Path::new(&format!("/proc/{writer}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Reads a record from its directory or from its `record.json`.
///
/// # Errors
/// If there is none, if it is cut short or no record, or if a newer Evenkeel wrote it.
pub fn read(path: &Path) -> Result<Record, StoreError> {
    let path = if path.is_dir() { path.join(RECORD_FILE) } else { path.to_owned() };
    let text = fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => StoreError::Missing { path: path.clone() },
        _ => StoreError::io("read", &path, source),
    })?;
    let damaged = |source: serde_json::Error| {
        if source.is_eof() || ends_within_number(&text) {
            StoreError::Truncated { path: path.clone() }
        } else {
            StoreError::Malformed { path: path.clone(), source }
        }
    };
    // The schema first: fields of a newer one would otherwise read as damage.
    let version: Version = serde_json::from_slice(&text).map_err(damaged)?;
    if version.schema != SCHEMA {
        return Err(StoreError::Schema { path, found: version.schema, supported: SCHEMA });
    }
    serde_json::from_slice(&text).map_err(damaged)
}

/// Reads the raw series of one repeat (counted from 0) of a variant; `None` if the record has none.
/// `directory` is the record's.
///
/// # Errors
/// If the record has no such repeat, if its file lies outside of the directory, is missing,
/// damaged, or not a series.
pub fn read_series(
    directory: &Path,
    record: &Record,
    variant: &str,
    repeat: usize,
) -> Result<Option<Series>, StoreError> {
    let file = record
        .variants
        .iter()
        .find(|known| known.name == variant)
        .and_then(|known| known.repeats.get(repeat))
        .ok_or_else(|| StoreError::NoSuchRepeat { variant: variant.to_owned(), repeat })?
        .series
        .as_deref();
    let Some(file) = file else { return Ok(None) };
    let path = inside(directory, file)?;
    series::read(&path, variant, repeat).map(Some)
}

/// Whether `text` ends within a number, which the parser does not tell from a wrong number: with
/// one more digit it would merely end too early.
fn ends_within_number(text: &[u8]) -> bool {
    let longer = [text, b"0"].concat();
    serde_json::from_slice::<IgnoredAny>(&longer).is_err_and(|error| error.is_eof())
}

/// Just enough of a record to tell its version.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

fn write_record(path: &Path, record: &Record) -> Result<(), StoreError> {
    let mut text = serde_json::to_string_pretty(record)
        .map_err(|source| StoreError::Malformed { path: path.to_owned(), source })?;
    text.push('\n');
    File::create_new(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|source| StoreError::io("write", path, source))
}

/// Where the directory goes, without symbolic links and relative parts, once it is known to be free.
fn destination(directory: &Path) -> Result<PathBuf, StoreError> {
    match fs::read_dir(directory) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(StoreError::NotEmpty { path: directory.to_owned() });
            }
            directory.canonicalize().map_err(|source| StoreError::io("find", directory, source))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = directory.file_name().ok_or_else(|| StoreError::io("create", directory, error))?;
            // The parent of a bare name is the empty path.
            let parent = Path::new(".").join(directory.parent().unwrap_or(Path::new("")));
            fs::create_dir_all(&parent).map_err(|source| StoreError::io("create", &parent, source))?;
            let parent = parent.canonicalize().map_err(|source| StoreError::io("find", &parent, source))?;
            Ok(parent.join(name))
        }
        Err(source) => Err(StoreError::io("write to", directory, source)),
    }
}

/// Path of a file that a record names, if it lies within the record's directory: by its text, and
/// also after symbolic links.
fn inside(directory: &Path, file: &str) -> Result<PathBuf, StoreError> {
    let outside = || StoreError::OutsideRecord { directory: directory.to_owned(), file: file.to_owned() };
    let relative = Path::new(file);
    let plain = relative.components().all(|component| matches!(component, Component::Normal(_)));
    if !plain || relative.as_os_str().is_empty() {
        return Err(outside());
    }
    let path = directory.join(relative);
    let find = |path: &Path| {
        path.canonicalize().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => StoreError::Missing { path: path.to_owned() },
            _ => StoreError::io("find", path, source),
        })
    };
    let found = find(&path)?;
    // A pipe or a device would block the reader or never end.
    if found.starts_with(find(directory)?) && found.is_file() { Ok(found) } else { Err(outside()) }
}

/// JSON has no NaN and no infinity: they would be written as `null` and not be read again.
fn check_finite(record: &Record) -> Result<(), StoreError> {
    let check = |field: &dyn Fn() -> String, value: f64| {
        if value.is_finite() { Ok(()) } else { Err(StoreError::NotFinite { field: field(), value }) }
    };
    check(&|| "duration_s".to_owned(), record.duration_s)?;
    check(&|| "warmup_s".to_owned(), record.warmup_s)?;
    for (name, length) in &record.windows {
        check(&|| format!("windows.{name}"), *length)?;
    }
    for VariantRecord { name, repeats, .. } in &record.variants {
        for (index, repeat) in repeats.iter().enumerate() {
            for (key, value) in repeat.metrics.iter().chain(&repeat.counters) {
                check(&|| format!("{key} of {name}, repeat {index}"), *value)?;
            }
            if let Some(cost) = repeat.sim {
                check(&|| format!("sim.simulated_s of {name}, repeat {index}"), cost.simulated_s)?;
                check(&|| format!("sim.cpu_seconds of {name}, repeat {index}"), cost.cpu_seconds)?;
            }
        }
    }
    for (variant, figures) in record.paper.iter().flat_map(|paper| &paper.variants) {
        for (key, value) in figures {
            check(&|| format!("the paper's {key} of {variant}"), *value)?;
        }
    }
    for expectation in &record.expectations {
        for value in [expectation.at_least, expectation.at_most, expectation.value].into_iter().flatten() {
            check(&|| format!("expected {} of {}", expectation.metric, expectation.variant), value)?;
        }
    }
    Ok(())
}
