//! Record directories: `record.json` and the raw series.
//!
//! ```text
//! DIRECTORY/
//!   record.json               the record, readable by people
//!   series/VARIANT-REPEAT.csv.gz   bytes and packets of each flow in each bin, repeats from 0
//! ```
//!
//! A record is written atomically: `record.json` comes last. A record may come from another host, so it is not trusted. A
//! series file is read only from inside its record's directory, and damage is an error that names the file.

mod error;
mod plausible;
mod series;

use std::fs;
use std::path::{Component, Path, PathBuf};

use evenkeel_files::{Fault, Kind, OutputDirectory};
use evenkeel_model::record::{Record, SCHEMA, VariantRecord};
use evenkeel_model::text::name_field;
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use error::StoreError;
pub use plausible::{Implausible, check_repeat};
pub use series::{Series, SeriesFlow};

/// Name of the record within its directory.
pub const RECORD_FILE: &str = "record.json";

/// Directory of the raw series within a record's directory.
const SERIES_DIRECTORY: &str = "series";

/// Writes `record` and its raw `series` to a new or empty `directory`; see [`write_into`].
///
/// # Errors
/// As [`write_into`], and if the directory cannot be claimed.
pub fn write(directory: &Path, record: &Record, series: &[Series]) -> Result<Record, StoreError> {
    write_into(OutputDirectory::claim(directory)?, record, series, &mut |_| true)
}

/// Writes `record` and its raw `series` to a claimed directory. Returns the record with the file of each
/// series. Calls `goes_on` with the share that is written; false ends it.
///
/// # Errors
/// Returns an error if a series belongs to no repeat or has flows of different lengths, a figure is not
/// finite (JSON cannot represent it), the disk fails, or `goes_on` ends it. It then leaves no files.
pub fn write_into(
    directory: OutputDirectory,
    record: &Record,
    series: &[Series],
    goes_on: &mut dyn FnMut(f64) -> bool,
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
            for (number, one) in series.iter().enumerate() {
                let mut goes_on = |share: f64| goes_on((number as f64 + share) / series.len() as f64);
                series::write(&path.join(series::file_name(&one.variant, one.repeat)), one, &mut goes_on)?;
            }
        }
        write_record(&place.join(RECORD_FILE), &record)
    })?;
    Ok(record)
}

/// Reads a record from its directory or its `record.json`.
///
/// # Errors
/// If it does not exist, is truncated or invalid, was written by a newer Evenkeel, or has an impossible figure.
pub fn read(path: &Path) -> Result<Record, StoreError> {
    // The user named the directory, not the file in it.
    let (path, read): (_, fn(&_, _) -> _) = if path.is_dir() {
        (path.join(RECORD_FILE), evenkeel_files::read_regular)
    } else {
        (path.to_owned(), evenkeel_files::read)
    };
    let text = read(&path, Kind::Record).map_err(|error| match error.fault {
        _ if error.is_missing() => StoreError::Missing { path: path.clone() },
        Fault::NotUtf8 { .. } | Fault::Nul { .. } => StoreError::NotText { path: path.clone() },
        _ => error.into(),
    })?;
    let text = text.text.as_bytes();
    let damaged = |source: serde_json::Error| {
        if source.is_eof() || (source.is_syntax() && ends_within_number(text)) {
            StoreError::Truncated { path: path.clone() }
        } else {
            StoreError::Malformed {
                path: path.clone(),
                source: name_field((source.line(), source.column()), source, text),
            }
        }
    };
    // Check the schema first: a newer record's fields would look like damage.
    let version: Version = serde_json::from_slice(text).map_err(damaged)?;
    if version.schema != SCHEMA {
        return Err(StoreError::Schema { path, found: version.schema, supported: SCHEMA });
    }
    let record: Record = serde_json::from_slice(text).map_err(damaged)?;
    plausible::check(&record).map_err(|source| StoreError::Implausible { path: path.clone(), source })?;
    Ok(record)
}

/// Reads the raw series of a variant's repeat, from 0; `None` if the record has none. `directory` is the
/// record's.
///
/// # Errors
/// Returns an error if the record has no such repeat, or the file is outside the directory, missing, damaged
/// or not a series.
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

/// Whether `text` is truncated within a number, which the parser reports like a malformed number.
fn ends_within_number(text: &[u8]) -> bool {
    let longer = [text, b"0"].concat();
    serde_json::from_slice::<IgnoredAny>(&longer).is_err_and(|error| error.is_eof())
}

/// The part of a record that has its version.
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

/// Returns the path of a file in a record, if it is inside the record's directory: as text, and with symbolic
/// links resolved.
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
    // Reading a pipe or a device could block or never end.
    if found.starts_with(find(directory)?) && found.is_file() { Ok(found) } else { Err(outside()) }
}

/// JSON has no NaN and no infinity: they would be written as `null` and could not be read.
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
