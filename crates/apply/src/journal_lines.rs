//! The byte format of a journal.
//!
//! ```text
//! evenkeel-journal 2 00000003 000008fa open 5b1f02cc      synced lines and bytes; rewritten in place
//! 0a3d91e2 {"line":0,"after":0,"run":{…}}                 the header
//! 77c0154f {"line":1,"after":171807202,"run":{…},"entry":{…}}
//! 30b8ae11 {"line":2,"after":2009077071,"run":{…},"entry":{…}}
//! ```
//!
//! The order of writes is: the line, sync, the new count in the first line, sync, and then the change.
//! So:
//! - a line beyond the count belongs to a change that was not made, because of a crash;
//! - a counted line that is missing or unreadable is damage;
//! - each line has its own CRC-32 and that of the previous line: a reader detects flipped bits and
//!   removed, reordered or repeated lines, and can use all intact lines;
//! - each line has the header with the file's name: one intact line identifies the run, and a reader
//!   detects lines of another journal;
//! - a journal is never empty: the file gets its name only after its header is written.
//!
//! Evenkeel marks a finished journal as `shut` before it removes the file. A process that has the file
//! open can distinguish this from a removal by another program.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::journal::{Entry, Header, VERSION, fold};

const MAGIC: &str = "evenkeel-journal";
const OPEN: &str = "open";
const SHUT: &str = "shut";

/// Any line except the first.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    line: u32,
    after: u32,
    run: Header,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalWriter {
    header: Header,
    lines: u32,
    bytes: u64,
    last: u32,
}

impl JournalWriter {
    /// Begins a journal. Returns the writer and the file's first bytes.
    #[must_use]
    pub fn begin(header: &Header, file: &str) -> (Self, Vec<u8>) {
        let header = Header { evenkeel_journal: VERSION, file: file.to_owned(), ..header.clone() };
        let mut writer = Self { header, lines: 0, bytes: 0, last: 0 };
        writer.bytes = writer.count().len() as u64;
        let line = writer.line(None);
        let whole = [writer.count(), line].concat();
        (writer, whole)
    }

    pub(crate) fn whole(header: &Header, file: &str, entries: &[Entry]) -> (Self, Vec<u8>) {
        let (mut writer, mut bytes) = Self::begin(header, file);
        bytes.extend(entries.iter().flat_map(|entry| writer.entry(entry)).collect::<Vec<_>>());
        let count = writer.count();
        bytes.splice(..count.len(), count);
        (writer, bytes)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the line of an entry. Write it at the previous [`Self::bytes`] and sync, then write
    /// [`Self::count`] at the start of the file.
    #[must_use]
    pub fn entry(&mut self, entry: &Entry) -> Vec<u8> {
        self.line(Some(entry.clone()))
    }

    fn line(&mut self, entry: Option<Entry>) -> Vec<u8> {
        let line = Line { line: self.lines, after: self.last, run: self.header.clone(), entry };
        // Serializing fails only for a map key that is not a string; these types have none.
        let text = serde_json::to_string(&line).unwrap_or_default();
        self.last = crc32fast::hash(text.as_bytes());
        let line = format!("{:08x} {text}\n", self.last).into_bytes();
        self.lines += 1;
        self.bytes += line.len() as u64;
        line
    }

    /// Returns the first line, with the count. Its length never changes.
    #[must_use]
    pub fn count(&self) -> Vec<u8> {
        self.first_line(OPEN)
    }

    #[must_use]
    pub fn shut(&self) -> Vec<u8> {
        self.first_line(SHUT)
    }

    fn first_line(&self, state: &str) -> Vec<u8> {
        let text = format!("{MAGIC} {VERSION} {:08x} {:08x} {state}", self.lines, self.bytes);
        format!("{text} {}\n", checksum(&text)).into_bytes()
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Line number in the file, from 1.
    pub line: usize,
    pub reason: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.reason)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The run's header; `None` if no line of this journal can be read.
    pub header: Option<Header>,
    /// One entry per knob in the order of the first change, merged from all intact lines about the knob.
    pub entries: Vec<Entry>,
    /// Whether the journal is finished, so that nothing is left to restore.
    pub shut: bool,
    /// The damaged parts of the journal. Their settings may be unknown.
    pub damage: Vec<Damage>,
    /// The writer for further lines; `None` in a finished or damaged journal, and in format version 1.
    pub writer: Option<JournalWriter>,
}

fn checksum(text: &str) -> String {
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}

/// Parses the first line. Returns the number of lines and bytes, and whether the journal is finished.
fn parse_first_line(text: &str) -> Option<(u32, u64, bool)> {
    let (text, sum) = text.rsplit_once(' ')?;
    if sum != checksum(text) {
        return None;
    }
    let [magic, version, lines, bytes, state] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
    if magic != MAGIC || version != VERSION.to_string() {
        return None;
    }
    let bytes = u64::from_str_radix(bytes, 16).ok()?;
    Some((u32::from_str_radix(lines, 16).ok()?, bytes, state == SHUT))
}

fn parse_line(text: &str) -> Option<(u32, Line)> {
    let (sum, text) = text.split_once(' ')?;
    // Compare as text: a flipped bit can turn the hexadecimal digit `a` into `A`, which has the same value.
    (sum == checksum(text))
        .then(|| serde_json::from_str(text).ok())?
        .map(|line| (crc32fast::hash(text.as_bytes()), line))
}

/// Returns whether a file begins like a journal of any version.
pub(crate) fn begins_like_journal(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC.as_bytes()) || bytes.starts_with(b"{\"evenkeel_journal\"")
}

/// Returns the header of the first intact line, regardless of the file's name.
pub(crate) fn run_of(bytes: &[u8]) -> Option<Header> {
    if bytes.first() == Some(&b'{') {
        return parse_version_1(bytes).header;
    }
    let mut texts = bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    texts.find_map(|text| Some(parse_line(text)?.1.run))
}

/// Parses any bytes as a journal. `file` is the name of the journal's file.
#[must_use]
pub fn parse(bytes: &[u8], file: &str) -> Contents {
    if bytes.first() == Some(&b'{') {
        return parse_version_1(bytes);
    }
    let mut texts =
        bytes.split(|byte| *byte == b'\n').map(|line| std::str::from_utf8(line).unwrap_or_default());
    let count = texts.next().and_then(parse_first_line);
    if count.is_some_and(|(.., shut)| shut) {
        // Damage in the other lines does not matter: the run restored everything before it wrote the
        // mark.
        let header = texts.filter_map(parse_line).map(|(_, line)| line.run).find(|run| run.file == file);
        return Contents { header, shut: true, ..Contents::default() };
    }
    let mut damage = Vec::new();
    let mut report = |line: usize, reason| damage.push(Damage { line, reason });
    match count {
        _ if bytes.is_empty() => report(1, "the file is empty"),
        None => report(1, "the number of lines cannot be read"),
        Some((_, length, _)) if length > bytes.len() as u64 => report(1, "the end of the file is missing"),
        Some(_) => {}
    }
    // Without a count, read every line, except the empty text after the last newline.
    let counted = count.map(|(lines, ..)| lines as usize);
    let mut lines: BTreeMap<usize, (u32, Line)> = BTreeMap::new();
    let mut positions = 0;
    for (position, text) in texts.enumerate() {
        positions = position + 1;
        let is_counted = counted.map_or(!text.is_empty(), |counted| position < counted);
        match parse_line(text) {
            Some((_, line)) if line.run.file != file => report(position + 2, "it belongs to another journal"),
            Some((sum, line)) => {
                let number = line.line as usize;
                if counted.is_some_and(|counted| number >= counted) {
                    continue;
                }
                if number != position {
                    report(position + 2, "it is out of order");
                }
                lines.entry(number).or_insert((sum, line));
            }
            None if is_counted => report(position + 2, "it cannot be read"),
            // A crash truncated the line, or it is the empty text after the last newline.
            None => {}
        }
    }
    if positions < counted.unwrap_or(0) {
        report(positions + 2, "this line and all later lines are missing");
    }
    let run = most_frequent(lines.values().map(|(_, line)| &line.run));
    let mut entries = Vec::new();
    let mut before: Option<(usize, u32)> = None;
    for (number, (sum, line)) in &lines {
        if Some(&line.run) != run.as_ref() {
            report(number + 2, "it belongs to another run");
            continue;
        }
        if before.is_some_and(|(earlier, sum)| earlier + 1 == *number && sum != line.after) {
            report(number + 2, "its checksum does not match the previous line");
        }
        before = Some((*number, *sum));
        if let Some(entry) = &line.entry {
            fold(&mut entries, entry.clone());
        }
    }
    let writer = match (count, before, &run) {
        (Some((lines, bytes, _)), Some((_, last)), Some(header)) if damage.is_empty() => {
            Some(JournalWriter { header: header.clone(), lines, bytes, last })
        }
        _ => None,
    };
    Contents { header: run, entries, shut: false, damage, writer }
}

fn most_frequent<'a>(runs: impl Iterator<Item = &'a Header>) -> Option<Header> {
    let mut counts: BTreeMap<String, (usize, &Header)> = BTreeMap::new();
    for run in runs {
        counts.entry(serde_json::to_string(run).unwrap_or_default()).or_insert((0, run)).0 += 1;
    }
    counts.into_values().max_by_key(|(count, _)| *count).map(|(_, run)| run.clone())
}

/// Parses format version 1: one JSON line for the header and for each entry, without checksums.
fn parse_version_1(bytes: &[u8]) -> Contents {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut contents = Contents::default();
    for (line, number) in
        bytes[..whole].split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !line.is_empty())
    {
        let read = match number {
            1 => match serde_json::from_slice::<Header>(line) {
                Ok(header) if header.evenkeel_journal == 1 => {
                    contents.header = Some(header);
                    true
                }
                _ => false,
            },
            _ => serde_json::from_slice(line).map(|entry| fold(&mut contents.entries, entry)).is_ok(),
        };
        if !read {
            contents.damage.push(Damage { line: number, reason: "it cannot be read" });
        }
    }
    if whole == 0 {
        contents.damage.push(Damage { line: 1, reason: "it is cut short" });
    }
    contents
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::identity::InterfaceIdentity;
    use crate::ours::Ours;
    use evenkeel_model::change::{Knob, Value};
    use proptest::prelude::*;

    const FILE: &str = "1-3.journal";

    fn header() -> Header {
        let interface = InterfaceIdentity {
            boot: "b".to_owned(),
            namespace: 1,
            namespace_cookie: Some(2),
            namespace_handle: None,
            index: 3,
            name: "eth0".to_owned(),
            device: Some(4),
        };
        Header::new(interface, "fair")
    }

    fn sizes(all: u32) -> Value {
        Value::Sizes { all, ipv4: all }
    }

    fn entry(queue: u32, ours: u32) -> Entry {
        let ours = vec![Ours::These(vec![sizes(ours)])];
        Entry {
            knob: Knob::QueueWeight(queue),
            from: sizes(65536),
            ours,
            theirs: false,
            with_channels: false,
            service: false,
        }
    }

    fn written() -> Vec<Entry> {
        (0..6).map(|queue| entry(queue, 1000 + queue)).collect()
    }

    fn journal(file: &str, entries: &[Entry]) -> Vec<u8> {
        let (mut writer, mut bytes) = JournalWriter::begin(&header(), file);
        for entry in entries {
            append(&mut bytes, &mut writer, entry);
        }
        bytes
    }

    fn append(bytes: &mut Vec<u8>, writer: &mut JournalWriter, entry: &Entry) {
        bytes.truncate(usize::try_from(writer.bytes()).unwrap());
        bytes.extend(writer.entry(entry));
        let count = writer.count();
        bytes[..count.len()].copy_from_slice(&count);
    }

    fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
        bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn what_is_written_is_read_and_folded() {
        let contents = parse(&journal(FILE, &[entry(0, 16384), entry(1, 5), entry(0, 32768)]), FILE);
        assert_eq!(contents.damage, []);
        let read = contents.header.unwrap();
        assert_eq!(Header { file: String::new(), ..read }, header());
        assert_eq!(contents.entries.len(), 2);
        assert!(contents.entries[0].is_ours(&sizes(32768)) && contents.entries[0].is_ours(&sizes(16384)));
        // The run can still append to the journal.
        let mut bytes = journal(FILE, &written());
        let mut writer = parse(&bytes, FILE).writer.unwrap();
        append(&mut bytes, &mut writer, &entry(7, 7));
        let contents = parse(&bytes, FILE);
        assert_eq!((contents.damage.len(), contents.entries.len()), (0, 7));
    }

    /// The run makes a change only after the count includes the change's line.
    #[test]
    fn a_line_that_a_crash_cut_short_is_no_damage_and_is_written_over() {
        let before = journal(FILE, &written());
        let mut writer = parse(&before, FILE).writer.unwrap();
        let line = writer.entry(&entry(7, 7));
        for length in 0..=line.len() {
            let mut bytes = [&before[..], &line[..length]].concat();
            let contents = parse(&bytes, FILE);
            assert_eq!((contents.damage.as_slice(), contents.entries), (&[][..], written()), "{length}");
            append(&mut bytes, &mut contents.writer.unwrap(), &entry(8, 8));
            let contents = parse(&bytes, FILE);
            assert_eq!((contents.damage.len(), contents.entries.len()), (0, 7), "{length}");
        }
    }

    #[test]
    fn a_cut_at_any_byte_is_seen_and_every_line_before_it_is_good() {
        let whole = journal(FILE, &written());
        let ends: Vec<usize> = lines(&whole)
            .iter()
            .scan(0, |end, line| Some((*end, *end += line.len()).0 + line.len()))
            .collect();
        for length in 0..whole.len() {
            let contents = parse(&whole[..length], FILE);
            assert!(!contents.damage.is_empty(), "{length}");
            assert!(contents.writer.is_none());
            let good = ends[2..].iter().filter(|end| **end <= length + 1).count();
            assert_eq!(contents.entries, written()[..good], "{length}");
        }
    }

    #[test]
    fn lines_that_are_removed_reordered_repeated_or_of_another_journal_are_seen() {
        let own = lines(&journal(FILE, &written()));
        let other = lines(&journal("1-4.journal", &written()));
        let earlier = {
            let mut header = header();
            header.started = "2001-01-01T00:00:00Z".to_owned();
            let (mut writer, mut bytes) = JournalWriter::begin(&header, FILE);
            written().iter().for_each(|entry| append(&mut bytes, &mut writer, entry));
            lines(&bytes)
        };
        for at in 1..own.len() {
            let mut tried: Vec<(&str, Vec<Vec<u8>>)> = Vec::new();
            let mut change = |what, change: &dyn Fn(&mut Vec<Vec<u8>>)| {
                let mut lines = own.clone();
                change(&mut lines);
                tried.push((what, lines));
            };
            change("removed", &|lines| drop(lines.remove(at)));
            change("repeated", &|lines| lines.insert(at, lines[at].clone()));
            change("other", &|lines| lines[at].clone_from(&other[at]));
            change("earlier", &|lines| lines[at].clone_from(&earlier[at]));
            if at + 1 < own.len() {
                change("reordered", &|lines| lines.swap(at, at + 1));
            }
            for (what, lines) in tried {
                let contents = parse(&lines.concat(), FILE);
                assert!(!contents.damage.is_empty(), "{what} {at}");
                assert!(contents.header.is_some_and(|header| header.file == FILE), "{what} {at}");
                let lost = usize::from(!["repeated", "reordered"].contains(&what) && at > 1);
                assert_eq!(contents.entries.len(), written().len() - lost, "{what} {at}");
            }
        }
        let contents = parse(&own.concat(), "1-4.journal");
        assert!(contents.entries.is_empty() && !contents.damage.is_empty(), "{contents:?}");
    }

    #[test]
    fn a_journal_that_is_shut_has_nothing_to_put_back() {
        let mut bytes = journal(FILE, &written());
        let shut = parse(&bytes, FILE).writer.unwrap().shut();
        bytes[..shut.len()].copy_from_slice(&shut);
        let contents = parse(&bytes, FILE);
        assert!(contents.shut && contents.entries.is_empty() && contents.header.is_some());
    }

    #[test]
    fn journals_of_version_1_are_read() {
        let header = concat!(
            r#"{"evenkeel_journal":1,"interface":{"boot":"b","namespace":1,"namespace_cookie":2,"index":3,"name":"eth0"},"#,
            r#""process":{"id":7,"start_ticks":8},"started":"2025-01-01T00:00:00Z","command":"fair"}"#
        );
        let entry = r#"{"knob":"mtu","from":{"bytes":1500},"ours":[{"these":[{"bytes":9000}]}]}"#;
        let contents = parse(format!("{header}\n{entry}\n{entry}").as_bytes(), FILE);
        assert_eq!((contents.damage.len(), contents.entries.len()), (0, 1), "the last line has no end");
        assert_eq!(contents.header.unwrap().interface.device, None);
        assert!(contents.entries[0].is_ours(&Value::Bytes(9000)));
        let contents = parse(format!("{header}\n{{\"knob\":5}}\n{entry}\n").as_bytes(), FILE);
        assert_eq!(contents.damage, [Damage { line: 2, reason: "it cannot be read" }]);
        assert_eq!(contents.entries.len(), 1, "one bad line does not keep the others from being restored");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        /// Kinds of damage: flipped bits, overwritten bytes, and removed, cut off or repeated parts.
        #[test]
        fn damage_is_seen_and_nothing_is_read_that_was_not_written(
            edits in prop::collection::vec((0_u8..5, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let whole = journal(FILE, &written());
            let mut bytes = whole.clone();
            for (kind, at, to, value) in edits {
                if bytes.is_empty() {
                    break;
                }
                let (at, to) = (at.index(bytes.len()), to.index(bytes.len()));
                let (first, last) = (at.min(to), at.max(to));
                match kind {
                    0 => bytes[at] ^= 1 << (value % 8),
                    1 => bytes[at] = value,
                    2 => drop(bytes.drain(first..last.min(first + 400))),
                    3 => bytes.truncate(at),
                    _ => {
                        let piece = bytes[first..last.min(first + 400)].to_vec();
                        bytes.splice(to..to, piece);
                    }
                }
            }
            let contents = parse(&bytes, FILE);
            prop_assert!(bytes == whole || !contents.damage.is_empty() || bytes.starts_with(&whole));
            for entry in &contents.entries {
                prop_assert!(written().contains(entry));
            }
            prop_assert!(!contents.shut);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let contents = parse(&bytes, FILE);
            prop_assert!(contents.entries.is_empty() && !contents.damage.is_empty());
        }
    }
}
