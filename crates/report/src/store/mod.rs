//! Record directories: `record.json` and the raw series.
//!
//! ```text
//! DIRECTORY/
//!   record.json               the record, readable by people
//!   series/VARIANT-REPEAT.csv.gz   bytes and packets of each flow in each bin, repeats from 0
//! ```
//!
//! The writer writes `record.json` last, atomically. A record may come from another host, so the reader
//! does not trust it. The reader opens a series file only inside the record's directory, and the error
//! for a damaged file names the file.

mod consistent;
mod error;
mod plausible;
mod relations;
mod series;

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_files::{Fault, Kind, OutputDirectory, OutputError};
use evenkeel_model::objects::read_json;
use evenkeel_model::record::{Record, SCHEMA, VariantRecord};
use evenkeel_model::text::name_field;
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use consistent::{Run, check_in_run};
pub use error::StoreError;
pub use plausible::{Implausible, check_rate, check_repeat};
pub use series::{Series, SeriesColumn, SeriesFlow};

pub const RECORD_FILE: &str = "record.json";

const SERIES_DIRECTORY: &str = "series";

/// Writes `record` and its raw `series` to a new or empty `directory`; see [`Writer`].
///
/// # Errors
/// Returns the errors of [`Writer::finish`], and an error if the directory cannot be claimed.
pub fn write(directory: &Path, record: &Record, series: &[Series]) -> Result<Record, StoreError> {
    let writer = Writer::claim(directory)?;
    for one in series {
        writer.add(one, &mut |_| true);
    }
    writer.finish(record)
}

/// Writes a record directory during a run. It writes a repeat's series when the repeat ends, so that a
/// long run does not keep all series in memory. It writes the record at the end.
#[derive(Debug)]
pub struct Writer {
    directory: OutputDirectory,
    /// Variant and repeat of each written series, or the error of the first write that failed.
    written: Mutex<Result<Vec<(String, usize)>, StoreError>>,
}

impl Writer {
    /// Creates the directory, or claims an existing empty one.
    ///
    /// # Errors
    /// Returns the errors of [`OutputDirectory::claim`].
    pub fn claim(directory: &Path) -> Result<Self, OutputError> {
        let directory = OutputDirectory::claim(directory)?;
        Ok(Self { directory, written: Mutex::new(Ok(Vec::new())) })
    }

    /// Writes a series. [`Self::finish`] reports an error of this function. Calls `goes_on` with the
    /// share that has been written. Stops writing if `goes_on` returns false.
    pub fn add(&self, series: &Series, goes_on: &mut dyn FnMut(f64) -> bool) {
        // Several threads may call this function at the same time, so do not hold the lock during the write.
        if self.written().is_err() {
            return;
        }
        let added = self.write_series(series, goes_on);
        let mut written = self.written();
        if let Ok(all) = &mut *written {
            match added {
                Ok(()) => all.push((series.variant.clone(), series.repeat)),
                Err(error) => *written = Err(error),
            }
        }
    }

    fn written(&self) -> MutexGuard<'_, Result<Vec<(String, usize)>, StoreError>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_series(&self, series: &Series, goes_on: &mut dyn FnMut(f64) -> bool) -> Result<(), StoreError> {
        let place = self.directory.partial()?.join(SERIES_DIRECTORY);
        match fs::create_dir(&place) {
            Err(source) if source.kind() != ErrorKind::AlreadyExists => {
                return Err(StoreError::io("create", &place, source));
            }
            _ => {}
        }
        series::write(&place.join(series::file_name(&series.variant, series.repeat)), series, goes_on)
    }

    /// Writes the record. Returns the record with the file of each series. Deletes all files if an
    /// error occurs.
    ///
    /// # Errors
    /// Returns an error in these cases:
    /// - the write of a series failed or was stopped
    /// - a series belongs to no repeat, or has flows of different lengths
    /// - a figure is not finite, which JSON cannot represent
    /// - the write of the record fails
    pub fn finish(self, record: &Record) -> Result<Record, StoreError> {
        let mut record = record.clone();
        check_finite(&record)?;
        for (variant, number) in self.written.into_inner().unwrap_or_else(PoisonError::into_inner)? {
            let file = format!("{SERIES_DIRECTORY}/{}", series::file_name(&variant, number));
            let repeat = record
                .variants
                .iter_mut()
                .find(|known| known.name == variant)
                .and_then(|known| known.repeats.get_mut(number))
                .ok_or(StoreError::NoSuchRepeat { variant, repeat: number })?;
            repeat.series = Some(file);
        }
        write_record(&self.directory.partial()?.join(RECORD_FILE), &record)?;
        self.directory.finish(RECORD_FILE)?;
        Ok(record)
    }
}

/// Reads a record from its directory or its `record.json`.
///
/// # Errors
/// Returns an error if the record does not exist, is truncated or invalid, has another schema, or has an
/// impossible figure.
pub fn read(path: &Path) -> Result<Record, StoreError> {
    // A user may name a pipe as a file. In a directory, the record must be a regular file.
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
    // Check the schema first: the fields of another schema would look like damage.
    let version: Version = read_json(text).map_err(damaged)?;
    if version.schema != SCHEMA {
        return Err(StoreError::Schema { path, found: version.schema, supported: SCHEMA });
    }
    let record: Record = read_json(text).map_err(damaged)?;
    plausible::check(&record).map_err(|source| StoreError::Implausible { path: path.clone(), source })?;
    Ok(record)
}

/// Reads the raw series of a variant's repeat, numbered from 0. Returns `None` if the record has no
/// series for the repeat. `directory` is the record's directory.
///
/// # Errors
/// Returns an error if the record has no such repeat, or the file is outside the directory, missing,
/// damaged or not a series.
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

/// Returns whether `text` ends within a number. The parser reports a truncated number like a malformed
/// number.
fn ends_within_number(text: &[u8]) -> bool {
    let longer = [text, b"0"].concat();
    serde_json::from_slice::<IgnoredAny>(&longer).is_err_and(|error| error.is_eof())
}

#[derive(Deserialize)]
struct Version {
    schema: u32,
}

fn write_record(path: &Path, record: &Record) -> Result<(), StoreError> {
    let write = || {
        let mut out = BufWriter::new(File::create_new(path)?);
        serde_json::to_writer_pretty(&mut out, record)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    write().map_err(|source| StoreError::io("write", path, source))
}

/// Returns the path of a file in a record. The file must be inside the record's directory by its name,
/// and also after symbolic links are resolved.
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
            ErrorKind::NotFound => StoreError::Missing { path: path.to_owned() },
            _ => StoreError::io("find", path, source),
        })
    };
    let found = find(&path)?;
    // Reading a pipe or a device can block or never end.
    if found.starts_with(find(directory)?) && found.is_file() { Ok(found) } else { Err(outside()) }
}

/// Checks that all figures are finite. JSON has no NaN and no infinity: the writer would write `null`,
/// and the reader would fail.
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
