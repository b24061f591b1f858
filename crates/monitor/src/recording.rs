//! Recordings of samples: JSON lines, one [`Sample`] per line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_files::{InputError, Kind, read_bytes, shown};
use evenkeel_model::text::{counted, excerpt, list, plain_words};
use serde::Deserialize;

use crate::plausible;
use crate::sample::{SCHEMA, Sample};
use crate::view::Point;

#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(
        "{origin}:{line}:{column}: the line is no sample of `evenkeel top --record`, or is damaged: {why}; name a \
         recording, restore the file, or record again"
    )]
    Damaged { origin: String, line: usize, column: usize, why: String },
    #[error(
        "{origin}:{line}: the recording has an impossible figure: {why}; restore the file, or record again"
    )]
    Impossible { origin: String, line: usize, why: String },
    #[error(
        "{origin}:{line}: recorded with schema {found}, but this version reads schema {SCHEMA}; use the version of \
         evenkeel that recorded it"
    )]
    Schema { origin: String, line: usize, found: u64 },
    #[error("{origin} has no complete sample; record again with `evenkeel top --record`")]
    NoSample { origin: String },
    #[error("{origin} has no interface '{}'; it has {}", excerpt(.name), list(.known.iter().map(String::as_str)))]
    NoInterface { origin: String, name: String, known: Vec<String> },
}

/// A recording in memory. A sample is parsed when it is shown, because a parsed sample takes several
/// times the memory.
#[derive(Debug)]
pub struct Recording {
    bytes: Vec<u8>,
    lines: Vec<Range<usize>>,
    points: Vec<Point>,
    only: Vec<String>,
    origin: String,
    is_cut: bool,
    /// The samples before which the recorded host's clock was set back, by number from 0, each with the time
    /// by which it was set back, ms.
    set_back: BTreeMap<usize, u64>,
}

impl Recording {
    /// Reads and checks a recording. If `only` is not empty, the samples contain only the named
    /// interfaces.
    ///
    /// # Errors
    /// Returns an error in these cases:
    ///
    /// - The file cannot be read, or has no complete sample.
    /// - A line is damaged, or has another schema or an impossible figure. An incomplete last line is no
    ///   error, because it belongs to an interrupted recording.
    /// - A named interface is in no sample.
    pub fn read(path: &Path, only: &[String]) -> Result<Self, RecordingError> {
        let bytes = read_bytes(path, Kind::Recording)?;
        Self::parse(bytes, shown(path), only)
    }

    fn parse(bytes: Vec<u8>, origin: String, only: &[String]) -> Result<Self, RecordingError> {
        let mut recording = Self {
            bytes: Vec::new(),
            lines: Vec::new(),
            points: Vec::new(),
            only: only.to_vec(),
            origin,
            is_cut: false,
            set_back: BTreeMap::new(),
        };
        let (mut start, mut line) = (0, 0);
        let (mut names, mut before): (BTreeSet<String>, Option<u64>) = (BTreeSet::new(), None);
        while start < bytes.len() {
            line += 1;
            let end = bytes[start..].iter().position(|byte| *byte == b'\n').map(|length| start + length);
            let place = start..end.unwrap_or(bytes.len());
            match parse_line(&bytes[place.clone()]) {
                Ok(mut sample) => {
                    if let Err(why) = plausible::check(&sample, before) {
                        return Err(RecordingError::Impossible { origin: recording.origin, line, why });
                    }
                    for interface in &sample.interfaces {
                        if !names.contains(&interface.name) {
                            names.insert(interface.name.clone());
                        }
                    }
                    if let Some(before) = before.filter(|before| sample.at_ms <= *before) {
                        // The recorded interval is from the monotonic clock, which no program sets.
                        let expected = before.saturating_add((sample.seconds * 1000.0) as u64);
                        recording.set_back.insert(recording.lines.len(), expected - sample.at_ms);
                    }
                    before = Some(sample.at_ms);
                    retain(&mut sample, only);
                    recording.points.push(Point::of(&sample));
                    recording.lines.push(place.clone());
                }
                Err(Damage::Schema(found)) => {
                    return Err(RecordingError::Schema { origin: recording.origin, line, found });
                }
                Err(Damage::Json(_)) if end.is_none() => recording.is_cut = true,
                Err(Damage::Json(error)) => {
                    let why = plain_words(&error.to_string());
                    let why =
                        why.split(" at line ").next().unwrap_or_default().trim_end_matches(',').to_owned();
                    let column = error.column();
                    return Err(RecordingError::Damaged { origin: recording.origin, line, column, why });
                }
            }
            start = place.end + 1;
        }
        let origin = recording.origin.clone();
        if recording.lines.is_empty() {
            return Err(RecordingError::NoSample { origin });
        }
        if let Some(name) = only.iter().find(|name| !names.contains(*name)) {
            return Err(RecordingError::NoInterface {
                origin,
                name: name.clone(),
                known: names.into_iter().collect(),
            });
        }
        recording.bytes = bytes;
        Ok(recording)
    }

    /// Returns the number of samples, at least 1.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lines.len()
    }

    /// Returns a sample by its number from 0, or the last sample for a larger number.
    #[must_use]
    pub fn sample(&self, index: usize) -> Sample {
        let line = self.lines.get(index).or(self.lines.last()).cloned().unwrap_or_default();
        // `read` has already parsed this line without an error.
        let mut sample = parse_line(&self.bytes[line]).unwrap_or_default();
        retain(&mut sample, &self.only);
        if let Some(step_ms) = self.set_back.get(&index.min(self.count().saturating_sub(1))) {
            sample.not_read.insert(0, set_back(*step_ms));
        }
        sample
    }

    /// Returns the figures of the samples up to and including `index`.
    #[must_use]
    pub fn points(&self, index: usize) -> &[Point] {
        &self.points[..(index + 1).min(self.points.len())]
    }

    /// Returns remarks about the whole recording, each with the line of its sample.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let remark = |line: usize, why: &str| format!("{}:{line}: {why}", self.origin);
        let mut found: Vec<String> = Vec::new();
        if let Some((index, step_ms)) = self.set_back.first_key_value() {
            let more = match self.set_back.len() - 1 {
                0 => String::new(),
                more => format!("; it was set back before {} too", counted(more, "later sample")),
            };
            found.push(remark(index + 1, &(set_back(*step_ms) + &more)));
        }
        if self.is_cut {
            let why = "the last line is incomplete, because the recording was interrupted; it is left out";
            found.push(remark(self.lines.len() + 1, why));
        }
        found
    }
}

fn set_back(step_ms: u64) -> String {
    let seconds = Duration::from_millis(step_ms).as_secs_f64();
    format!(
        "the recorded host's clock was set back by {seconds} s before this sample, so earlier samples have the same \
         times; rates do not depend on this clock"
    )
}

fn retain(sample: &mut Sample, only: &[String]) {
    if !only.is_empty() {
        sample.interfaces.retain(|interface| only.contains(&interface.name));
    }
}

enum Damage {
    Schema(u64),
    Json(serde_json::Error),
}

fn parse_line(line: &[u8]) -> Result<Sample, Damage> {
    #[derive(Deserialize)]
    struct Version {
        schema: u64,
    }
    let sample: Result<Sample, serde_json::Error> = serde_json::from_slice(line);
    match sample {
        Ok(sample) if sample.schema == SCHEMA => Ok(sample),
        Ok(sample) => Err(Damage::Schema(sample.schema.into())),
        // Another schema may have other fields. If the version differs, report the version instead of the
        // error.
        Err(error) => match serde_json::from_slice::<Version>(line) {
            Ok(version) if version.schema != u64::from(SCHEMA) => Err(Damage::Schema(version.schema)),
            _ => Err(Damage::Json(error)),
        },
    }
}

/// A recording that is being written. Dropping it removes a file without a sample.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    /// Length of all complete lines, bytes.
    length: u64,
    path: PathBuf,
    name: String,
}

impl Recorder {
    /// Creates the file.
    ///
    /// # Errors
    /// Returns an error if the file exists or cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Self { file, length: 0, path: path.to_owned(), name: shown(path) })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends a sample. After an error, the function removes the incomplete line if possible.
    pub fn write(&mut self, sample: &Sample) -> io::Result<()> {
        let mut line = serde_json::to_vec(sample)?;
        line.push(b'\n');
        match self.file.write_all(&line) {
            Ok(()) => {
                self.length += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Ignore the error: a reader tolerates an incomplete last line.
                let _ = self.file.set_len(self.length);
                Err(error)
            }
        }
    }

    /// Syncs the recording to the disk.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.is_empty() {
            // Ignore the error: an empty file has no sample that could be lost.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sample::{Flow, Interface, Interval, Loss, Processor, Queue};

    fn sample(at_ms: u64) -> Sample {
        let interface = |name: &str| Interface { name: name.to_owned(), ..Interface::default() };
        let interfaces = vec![interface("eth0"), interface("lo")];
        Sample { schema: SCHEMA, at_ms, seconds: 1.0, interfaces, ..Sample::default() }
    }

    fn lines(count: u64) -> String {
        (0..count).map(|at| serde_json::to_string(&sample(at)).unwrap() + "\n").collect()
    }

    fn parse(text: impl Into<Vec<u8>>, only: &[&str]) -> Result<Recording, String> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        Recording::parse(text.into(), "r".to_owned(), &only).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_recorded_is_replayed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("r.jsonl");
        let mut recorder = Recorder::create(&path).unwrap();
        (0..3).for_each(|at| recorder.write(&sample(at)).unwrap());
        recorder.finish().unwrap();
        let recording = Recording::read(&path, &[]).unwrap();
        assert_eq!((recording.count(), recording.remarks()), (3, Vec::new()));
        assert_eq!((recording.sample(1), recording.points(1).len()), (sample(1), 2));
        assert_eq!((recording.sample(99), recording.points(99).len()), (sample(2), 3));
        let again = Recorder::create(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let empty = place.path().join("empty.jsonl");
        drop(Recorder::create(&empty).unwrap());
        assert!(!empty.exists() && path.exists());
    }

    #[test]
    fn only_the_end_may_be_incomplete() {
        let text = lines(2);
        for cut in [text.len() - 2, text.len() - 60] {
            let recording = parse(&text[..cut], &[]).unwrap();
            assert_eq!(recording.count(), 1, "{cut}");
            assert!(recording.remarks()[0].starts_with("r:2: the last line is incomplete"));
        }
        let whole = parse(&text[..text.len() - 1], &[]).unwrap();
        assert_eq!((whole.count(), whole.remarks()), (2, Vec::new()), "only the line feed is missing");
        let middle = format!("{}\n{}", &lines(1)[..50], lines(1));
        assert!(parse(middle, &[]).unwrap_err().starts_with("r:1:50: the line is no sample "));
        let error = parse(format!("{}{{}}\n", lines(1)), &[]).unwrap_err();
        assert_eq!(
            error,
            "r:2:2: the line is no sample of `evenkeel top --record`, or is damaged: the field 'schema' is missing; \
             name a recording, restore the file, or record again"
        );
        let error = parse("{\"schema\":1,\"at_ms\":-1}\n", &[]).unwrap_err();
        assert!(error.starts_with("r:1:22: the line is no sample ") && !error.contains("u64"), "{error}");
        assert_eq!(
            parse("not", &[]).unwrap_err(),
            "r has no complete sample; record again with `evenkeel top --record`"
        );
        assert!(parse(b"\xff\xfe\n".to_vec(), &[]).unwrap_err().starts_with("r:1:"));
    }

    #[test]
    fn impossible_figures_are_refused_with_their_line() {
        type Change = fn(&mut Sample);
        let base = {
            let mut sample = sample(1000);
            let interval = Interval { total: 5, delta: 5 };
            sample.interfaces[0].queues = vec![Queue { bytes: Some(interval), ..Queue::default() }];
            sample.interfaces[0].flows = vec![Flow { bytes: interval, ..Flow::default() }];
            sample.processors = vec![Processor { user: 0.6, idle: 0.4, ..Processor::default() }];
            sample.losses = vec![Loss { packets: interval, ..Loss::default() }];
            sample
        };
        let told = |samples: &[Sample]| {
            let line = |sample: &Sample| serde_json::to_string(sample).unwrap() + "\n";
            parse(samples.iter().map(line).collect::<String>(), &[]).err()
        };
        assert_eq!(told(std::slice::from_ref(&base)), None);
        let changes: [(Change, &str); 16] = [
            (|one| one.seconds = -1.0, "seconds is -1.0, but can only be from 0.001 to 1000000000"),
            (|one| one.seconds = 1e-300, "seconds is 1e-300, but can only be"),
            (
                |one| (one.at_ms, one.seconds) = (1000, 0.0),
                "at_ms is 1000, that of the sample before is 1000, and seconds is 0",
            ),
            (|one| one.interfaces[1].name = "eth0".into(), "interfaces has the interface eth0 twice"),
            (
                |one| one.interfaces[0].jain_1s = Some(1.5),
                "interfaces[0].jain_1s is 1.5, but can only be from 0 to 1",
            ),
            (
                |one| one.interfaces[1].nfm_1s = Some(-0.5),
                "interfaces[1].nfm_1s is -0.5, but can only be at least 0",
            ),
            (
                |one| one.interfaces[0].sent_bytes.delta = 1,
                "interfaces[0].sent_bytes.delta is 1, and its total 0",
            ),
            (
                |one| one.interfaces[0].queues.push(Queue::default()),
                "interfaces[0].queues has the queue 0 twice",
            ),
            (
                |one| one.interfaces[0].queues[0].bytes.as_mut().unwrap().total = 4,
                "queues, queue 0: bytes.delta is 5",
            ),
            (|one| one.interfaces[0].flows.push(Flow::default()), "interfaces[0].flows has the flow "),
            (
                |one| one.interfaces[0].flows[0].of_fair_share = Some(-1.0),
                "interfaces[0].flows[0].of_fair_share is -1.0",
            ),
            (
                |one| (one.interfaces[0].busy_flows, one.interfaces[0].colliding_flows) = (Some(1), Some(2)),
                "interfaces[0].colliding_flows is 2, and busy_flows 1",
            ),
            (
                |one| one.processors[0].softirq = -0.1,
                "processors[0].softirq is -0.1, but can only be from 0 to 1",
            ),
            (|one| one.processors[0].system = 0.5, "processors[0].user + system + softirq + idle is 1.5"),
            (|one| one.processors.push(Processor::default()), "processors has the processor 0 twice"),
            (|one| one.losses.push(Loss::default()), "losses has the loss at the "),
        ];
        for (change, words) in changes {
            let mut second = Sample { at_ms: 2000, ..base.clone() };
            assert_eq!(told(&[base.clone(), second.clone()]), None);
            change(&mut second);
            let error = told(&[base.clone(), second]).unwrap();
            assert!(error.starts_with("r:2: the recording has an impossible figure: "), "{error}");
            assert!(error.contains(words), "{error}");
        }
        let mut wrapped = Sample { at_ms: 2000, ..base.clone() };
        let interval = Interval::since_32_bits(Some(u64::from(u32::MAX) - 999), 500);
        assert!(interval.delta > interval.total);
        (wrapped.processors[0].packets, wrapped.processors[0].interrupts) = (Some(interval), interval);
        wrapped.interfaces[0].queues[0].drops = Some(interval);
        wrapped.losses[0].packets = interval;
        assert_eq!(told(&[base, wrapped]), None);
    }

    #[test]
    fn a_clock_that_was_set_back_is_named_at_its_sample() {
        let recorded = [5000, 6000, 3000, 4000, 4000].map(sample);
        let text: String = recorded.iter().map(|one| serde_json::to_string(one).unwrap() + "\n").collect();
        let recording = parse(text, &[]).unwrap();
        assert_eq!(recording.count(), 5);
        let notes = |index| recording.sample(index).not_read;
        assert_eq!([0, 1, 3].map(notes), [const { Vec::<String>::new() }; 3]);
        assert!(notes(2)[0].starts_with("the recorded host's clock was set back by 4 s"), "{:?}", notes(2));
        assert!(notes(4)[0].starts_with("the recorded host's clock was set back by 1 s"), "{:?}", notes(4));
        assert_eq!((recording.sample(2).at_ms, recording.sample(2).seconds), (3000, 1.0));
        let remarks = recording.remarks();
        assert_eq!(remarks.len(), 1);
        assert!(remarks[0].starts_with("r:3: the recorded host's clock was set back by 4 s"), "{remarks:?}");
        assert!(remarks[0].ends_with("; it was set back before 1 later sample too"), "{remarks:?}");
    }

    #[test]
    fn other_schemas_are_refused() {
        let same_fields = lines(1).replace("\"schema\":1", "\"schema\":2");
        for text in [&same_fields[..], "{\"schema\":2}\n", "{\"schema\":2,\"at\":\"noon\"}"] {
            let error = parse(text, &[]).unwrap_err();
            assert!(
                error.starts_with("r:1: recorded with schema 2, but this version reads schema 1;"),
                "{error}"
            );
        }
    }

    #[test]
    fn other_interfaces_are_left_out() {
        let recording = parse(lines(1), &["lo"]).unwrap();
        assert_eq!(recording.sample(0).interfaces.len(), 1);
        assert_eq!(parse(lines(1), &["eth9"]).unwrap_err(), "r has no interface 'eth9'; it has eth0, lo");
    }
}
