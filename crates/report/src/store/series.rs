//! Raw series as compressed CSV: each flow's bytes and packets in each bin, and optional further
//! columns of a flow.
//!
//! ```text
//! # bin_ns=5000000
//! start_ns,5201-40000 bytes,5201-40000 packets
//! 0,312208,208
//! 5000000,310762,207
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use evenkeel_model::record::{Record, RepeatRecord};
use evenkeel_model::text::counted;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use super::StoreError;

/// Limit of the decompressed size in bytes, against decompression bombs.
const LARGEST_UNPACKED: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    pub variant: String,
    /// Number of the repeat, from 0.
    pub repeat: usize,
    /// Length of a bin in ns. The first bin begins at the end of the warm-up.
    pub bin_ns: u64,
    /// All flows have the same number of bins.
    pub flows: Vec<SeriesFlow>,
}

impl Series {
    /// Returns the first difference from the figures of the same repeat in the record, which the run
    /// computed from the series.
    pub(crate) fn contradiction(&self, record: &Record, repeat: &RepeatRecord) -> Option<String> {
        let (here, there) = (self.flows.len(), repeat.flows.len());
        if here != there {
            return Some(format!("{}, but the record has {there}", counted(here, "flow")));
        }
        let sum = |values: &[u64]| values.iter().map(|value| u128::from(*value)).sum::<u128>();
        for (series, flow) in self.flows.iter().zip(&repeat.flows) {
            if series.name != flow.name {
                return Some(format!("the flow {:?} is {:?} in the record", series.name, flow.name));
            }
            for (what, sum, recorded) in
                [("bytes", sum(&series.bytes), flow.bytes), ("packets", sum(&series.packets), flow.packets)]
            {
                if sum != u128::from(recorded) {
                    return Some(format!("{sum} {what} of {:?}, but the record has {recorded}", flow.name));
                }
            }
        }
        // A repeat whose length the workload determines has no duration. The last bin may be cut off.
        let (bins, bin_s) = (self.flows.first().map_or(0, |flow| flow.bytes.len()), self.bin_ns as f64 / 1e9);
        let seconds = bins as f64 * bin_s;
        let is_as_long = (record.duration_s - seconds).abs() < bin_s * 1.001;
        let is_timed = bins > 0 && record.duration_s > 0.0;
        (is_timed && !is_as_long)
            .then(|| format!("{bins} bins of {} ns, but the record has {} s", self.bin_ns, record.duration_s))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesFlow {
    pub name: String,
    pub bytes: Vec<u64>,
    pub packets: Vec<u64>,
    pub further: Vec<SeriesColumn>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesColumn {
    /// Name with a unit: letters, digits and `_`.
    pub name: String,
    pub values: Vec<u64>,
}

/// Returns a series' file name, which is unique and cannot leave the directory.
///
/// Bytes other than letters, digits, `-`, `_` and (not at the start) `.` are percent-encoded (RFC 3986,
/// section 2.1): `xps:dqa+dqwa` becomes `xps%3Adqa%2Bdqwa`.
pub(super) fn file_name(variant: &str, repeat: usize) -> String {
    let mut name = String::with_capacity(variant.len() + 12);
    for byte in variant.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if !name.is_empty() => name.push('.'),
            other => {
                let _ = write!(name, "%{other:02X}");
            }
        }
    }
    let _ = write!(name, "-{repeat}.csv.gz");
    name
}

pub(super) fn write(
    path: &Path,
    series: &Series,
    goes_on: &mut dyn FnMut(f64) -> bool,
) -> Result<(), StoreError> {
    let unsuitable = |reason: String| StoreError::UnsuitableSeries {
        variant: series.variant.clone(),
        repeat: series.repeat,
        reason,
    };
    let bins = series.flows.first().map_or(0, |flow| flow.bytes.len());
    for flow in &series.flows {
        let lengths = flow.further.iter().map(|column| column.values.len());
        if [flow.bytes.len(), flow.packets.len()].into_iter().chain(lengths).any(|length| length != bins) {
            return Err(unsuitable(format!("flow {:?} does not have {bins} bins", flow.name)));
        }
        if flow.name.chars().any(char::is_control) {
            return Err(unsuitable(format!("flow {:?} has control characters in its name", flow.name)));
        }
        if let Some(column) = flow.further.iter().find(|column| !is_column(&column.name)) {
            return Err(unsuitable(format!("flow {:?} has a column called {:?}", flow.name, column.name)));
        }
    }
    let last_start = (bins as u64).saturating_sub(1).checked_mul(series.bin_ns);
    if series.bin_ns == 0 || last_start.is_none() {
        return Err(unsuitable(format!(
            "the length of {bins} bins of {} ns is zero or exceeds 64 bits",
            series.bin_ns
        )));
    }
    File::create_new(path)
        .and_then(|file| {
            let mut out = BufWriter::new(GzEncoder::new(file, Compression::fast()));
            write_csv(&mut out, series, bins, goes_on)?;
            out.into_inner().map_err(io::IntoInnerError::into_error)?.finish().map(drop)
        })
        .map_err(|source| match source.kind() {
            io::ErrorKind::Interrupted => StoreError::Interrupted,
            _ => StoreError::io("write", path, source),
        })
}

fn write_csv(
    out: &mut impl Write,
    series: &Series,
    bins: usize,
    goes_on: &mut dyn FnMut(f64) -> bool,
) -> io::Result<()> {
    writeln!(out, "# bin_ns={}", series.bin_ns)?;
    write!(out, "start_ns")?;
    for flow in &series.flows {
        write!(
            out,
            ",{},{}",
            quoted(&format!("{} bytes", flow.name)),
            quoted(&format!("{} packets", flow.name))
        )?;
        for column in &flow.further {
            write!(out, ",{}", quoted(&format!("{} {}", flow.name, column.name)))?;
        }
    }
    writeln!(out)?;
    for bin in 0..bins {
        if !goes_on(bin as f64 / bins as f64) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        write!(out, "{}", bin as u64 * series.bin_ns)?;
        for flow in &series.flows {
            write!(out, ",{},{}", flow.bytes[bin], flow.packets[bin])?;
            for column in &flow.further {
                write!(out, ",{}", column.values[bin])?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

pub(super) fn read(path: &Path, variant: &str, repeat: usize) -> Result<Series, StoreError> {
    let file = File::open(path).map_err(|source| StoreError::io("open", path, source))?;
    let unpacked = MultiGzDecoder::new(BufReader::new(file)).take(LARGEST_UNPACKED);
    let mut lines = Lines { path, reader: BufReader::new(unpacked), number: 0, text: String::new() };

    let first = lines.next()?.unwrap_or_default();
    let bin_ns = first
        .strip_prefix("# bin_ns=")
        .and_then(|value| value.parse::<u64>().ok())
        .filter(|value| *value > 0)
        .ok_or_else(|| lines.malformed("expected \"# bin_ns=\" and the length of a bin"))?;
    let head = lines.next()?.unwrap_or_default().to_owned();
    let mut flows = flows_of_head(&head).map_err(|reason| lines.malformed(reason))?;

    let mut start_ns = Some(0_u64);
    while let Some(line) = lines.next()? {
        let mut values = line.split(',').map(str::parse::<u64>);
        let mut next = || values.next().and_then(Result::ok);
        let complete = start_ns.is_some() && next() == start_ns && {
            flows.iter_mut().all(|flow| match (next(), next()) {
                (Some(bytes), Some(packets)) => {
                    flow.bytes.push(bytes);
                    flow.packets.push(packets);
                    flow.further
                        .iter_mut()
                        .all(|column| next().map(|value| column.values.push(value)).is_some())
                }
                _ => false,
            })
        };
        if !complete || values.next().is_some() {
            let start = start_ns.map_or("a representable time".to_owned(), |start| start.to_string());
            let columns: usize = flows.iter().map(|flow| 2 + flow.further.len()).sum();
            let reason = if columns == 2 * flows.len() {
                format!("expected {start} and two numbers for each of {} flows", flows.len())
            } else {
                format!("expected {start} and {columns} numbers of {} flows", flows.len())
            };
            return Err(lines.malformed(reason));
        }
        start_ns = start_ns.and_then(|start| start.checked_add(bin_ns));
    }
    Ok(Series { variant: variant.to_owned(), repeat, bin_ns, flows })
}

struct Lines<'p, R> {
    path: &'p Path,
    reader: BufReader<io::Take<R>>,
    number: usize,
    text: String,
}

impl<R: Read> Lines<'_, R> {
    /// Returns the next line without its newline; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<&str>, StoreError> {
        self.text.clear();
        let read = self.reader.read_line(&mut self.text).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                StoreError::DamagedSeries { path: self.path.to_owned(), source }
            }
            _ => StoreError::io("read", self.path, source),
        })?;
        self.number += 1;
        if self.reader.get_ref().limit() == 0 {
            return Err(self.malformed(format!("unpacks to more than {LARGEST_UNPACKED} bytes")));
        }
        Ok((read > 0).then(|| self.text.trim_end_matches(['\n', '\r'])))
    }

    fn malformed(&self, reason: impl Into<String>) -> StoreError {
        StoreError::MalformedSeries { path: self.path.to_owned(), line: self.number, reason: reason.into() }
    }
}

fn flows_of_head(head: &str) -> Result<Vec<SeriesFlow>, String> {
    let fields = fields(head)?;
    let Some(("start_ns", columns)) = fields.split_first().map(|(first, rest)| (first.as_str(), rest)) else {
        return Err("expected \"start_ns\" and the names of columns".to_owned());
    };
    let mut flows = Vec::new();
    let mut rest = columns;
    while let Some((bytes, after)) = rest.split_first() {
        let Some((packets, after)) = after.split_first() else {
            return Err("the last flow has a single column".to_owned());
        };
        let name = match (bytes.strip_suffix(" bytes"), packets.strip_suffix(" packets")) {
            (Some(name), Some(same)) if name == same => name,
            _ => {
                return Err(format!(
                    "columns {bytes:?} and {packets:?} are not bytes and packets of one flow"
                ));
            }
        };
        // The next flow begins with its bytes, so no further column may have the name of the bytes
        // column.
        let further: Vec<SeriesColumn> = after
            .iter()
            .map_while(|field| field.strip_prefix(name)?.strip_prefix(' ').filter(|column| is_column(column)))
            .map(|column| SeriesColumn { name: column.to_owned(), values: Vec::new() })
            .collect();
        rest = &after[further.len()..];
        flows.push(SeriesFlow { name: name.to_owned(), bytes: Vec::new(), packets: Vec::new(), further });
    }
    Ok(flows)
}

fn is_column(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(good) && !["bytes", "packets"].contains(&name)
}

/// Returns a CSV field, quoted if necessary (RFC 4180, section 2).
fn quoted(field: &str) -> String {
    if field.contains([',', '"']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

/// Returns the fields of a CSV line (RFC 4180, section 2).
fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let after = if let Some(mut inner) = rest.strip_prefix('"') {
            let mut field = String::new();
            loop {
                let (text, after) = inner.split_once('"').ok_or("a quote is not closed")?;
                field.push_str(text);
                match after.strip_prefix('"') {
                    Some(more) => {
                        field.push('"');
                        inner = more;
                    }
                    None => {
                        inner = after;
                        break;
                    }
                }
            }
            fields.push(field);
            inner
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            fields.push(rest[..end].to_owned());
            &rest[end..]
        };
        if after.is_empty() {
            return Ok(fields);
        }
        rest = after.strip_prefix(',').ok_or("text follows a closing quote")?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn file_names_cannot_leave_their_directory_and_do_not_collide() {
        assert_eq!(file_name("xps:dqa+dqwa", 3), "xps%3Adqa%2Bdqwa-3.csv.gz");
        assert_eq!(file_name("../../etc/passwd", 0), "%2E.%2F..%2Fetc%2Fpasswd-0.csv.gz");
        assert_eq!(file_name("a b\0ü", 0), "a%20b%00%C3%BC-0.csv.gz");
        assert_ne!(file_name("a%3A", 0), file_name("a:", 0));
        assert_ne!(file_name("a-1", 1), file_name("a", 11));
    }

    #[test]
    fn csv_fields_survive_quoting() {
        for names in [vec!["plain"], vec!["a,b", "c\"d", "", "\"", "x"], vec!["", ""]] {
            let line = names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",");
            assert_eq!(fields(&line).unwrap(), names, "{line}");
        }
        assert!(fields("\"open").is_err());
        assert!(fields("\"a\"b,c").is_err());
    }
}
