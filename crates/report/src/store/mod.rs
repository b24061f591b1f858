//! Record directories: `record.json` and the raw series beside it.
//!
//! ```text
//! DIRECTORY/
//!   record.json               the record, readable by people
//!   series/VARIANT-REPEAT.csv.gz   bytes and packets of each flow in each bin, repeats from 0
//! ```
//!
//! A record appears whole or not at all: `record.json` comes last. Records travel, so nothing that one says is trusted: a
//! series file is read only from inside its record's directory, and damage is an error that names the file.

mod error;
mod plausible;
mod series;

use std::fs;
use std::path::{Component, Path, PathBuf};

use evenkeel_files::{Kind, OutputDirectory};
use evenkeel_model::record::{Record, SCHEMA, VariantRecord};
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use error::StoreError;
pub use plausible::{Implausible, check_repeat};
pub use series::{Series, SeriesFlow};

/// Name of the record within its directory.
pub const RECORD_FILE: &str = "record.json";

/// Name of the directory of the raw series within a record's directory.
const SERIES_DIRECTORY: &str = "series";

/// Writes `record` and its raw `series` to a `directory` that is new or empty, as [`write_into`] does.
///
/// # Errors
/// As [`write_into`], and if the directory cannot be claimed.
pub fn write(directory: &Path, record: &Record, series: &[Series]) -> Result<Record, StoreError> {
    write_into(OutputDirectory::claim(directory)?, record, series)
}

/// Writes `record` and its raw `series` to a directory that was claimed for it. Returns the record as written: with the
/// file of each series.
///
/// # Errors
/// If a series belongs to no repeat of the record or has flows of different lengths, if a figure is not finite (JSON
/// cannot hold it), or if the disk fails. Nothing is left behind then.
pub fn write_into(
    directory: OutputDirectory,
    record: &Record,
    series: &[Series],
) -> Result<Record, StoreError> {
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

    directory.fill(RECORD_FILE, |place| {
        if !series.is_empty() {
            let path = place.join(SERIES_DIRECTORY);
            fs::create_dir(&path).map_err(|source| StoreError::io("create", &path, source))?;
            for one in series {
                series::write(&path.join(series::file_name(&one.variant, one.repeat)), one)?;
            }
        }
        write_record(&place.join(RECORD_FILE), &record)
    })?;
    Ok(record)
}

/// Reads a record from its directory or from its `record.json`.
///
/// # Errors
/// If there is none, if it is cut short or no record, if a newer Evenkeel wrote it, or if it has figures that no run can
/// give.
pub fn read(path: &Path) -> Result<Record, StoreError> {
    let path = if path.is_dir() { path.join(RECORD_FILE) } else { path.to_owned() };
    let text = evenkeel_files::read(&path, Kind::Record).map_err(|error| {
        if error.is_missing() { StoreError::Missing { path: path.clone() } } else { error.into() }
    })?;
    let text = text.text.as_bytes();
    let damaged = |source: serde_json::Error| {
        if source.is_eof() || ends_within_number(text) {
            StoreError::Truncated { path: path.clone() }
        } else {
            StoreError::Malformed { path: path.clone(), source }
        }
    };
    // The schema first: fields of a newer one would otherwise read as damage.
    let version: Version = serde_json::from_slice(text).map_err(damaged)?;
    if version.schema != SCHEMA {
        return Err(StoreError::Schema { path, found: version.schema, supported: SCHEMA });
    }
    let record: Record = serde_json::from_slice(text).map_err(damaged)?;
    plausible::check(&record).map_err(|source| StoreError::Implausible { path: path.clone(), source })?;
    Ok(record)
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
    fs::write(path, text).map_err(|source| StoreError::io("write", path, source))
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
