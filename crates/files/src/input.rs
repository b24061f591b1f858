use std::borrow::Cow;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_model::text::path_text;
use nix::poll::PollTimeout;

use crate::Kind;
use crate::end_signals::{EndSignals, Wake};
use crate::standard::was_closed;

#[derive(Debug, thiserror::Error)]
#[error("{}", .fault.described(.origin))]
pub struct InputError {
    pub origin: String,
    pub fault: Fault,
}

#[derive(Debug)]
pub enum Fault {
    System(io::Error),
    /// The path names a directory, device or socket.
    NotAFile(&'static str),
    /// The path does not name a regular file, although one is required.
    NotRegular(&'static str),
    TooLarge(Kind),
    /// The bytes at this position are not UTF-8.
    NotUtf8 {
        line: usize,
        /// Counted in characters, from 1.
        column: usize,
    },
    /// The text contains a NUL byte, which no text file has.
    Nul {
        line: usize,
        /// Counted in characters, from 1.
        column: usize,
    },
    Empty,
    Closed,
    /// The path is relative to a directory that no longer exists.
    NoCurrentDirectory,
    /// The command line names standard input a second time.
    ReadBefore,
    /// A signal ended the wait for data.
    Interrupted,
}

impl Fault {
    fn described(&self, origin: &str) -> String {
        let why: Cow<'static, str> = match self {
            Self::NotUtf8 { line, column } => {
                return format!("{origin}:{line}:{column}: the text is not UTF-8; save the file as UTF-8");
            }
            Self::Nul { line, column } => {
                return format!("{origin}:{line}:{column}: the file contains a NUL byte; name a text file");
            }
            Self::Empty => return format!("{origin} is empty"),
            Self::Closed => "it is closed".into(),
            Self::NoCurrentDirectory => {
                "the current directory was deleted; change to another directory".into()
            }
            Self::Interrupted => return format!("interrupted while waiting for {origin}"),
            Self::System(error) => error.to_string().into(),
            Self::NotAFile(what) => {
                format!("it is {what}, not a file; name a regular file, a pipe, or - for standard input")
                    .into()
            }
            Self::NotRegular(what) => format!("it is {what}; name a regular file").into(),
            Self::TooLarge(kind) => {
                format!("the file is larger than {}, the limit for {kind}", kind.limit()).into()
            }
            Self::ReadBefore => "an earlier argument already read it; name a file".into(),
        };
        format!("cannot read {origin}: {why}")
    }
}

impl InputError {
    #[must_use]
    pub fn system(path: &Path, error: io::Error) -> Self {
        Self { origin: shown(path), fault: of_path(path, error) }
    }

    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self.fault, Fault::Interrupted)
    }

    /// Returns whether the file could not be opened because of the limit of open files (`ulimit -n`,
    /// `fs.file-max`).
    #[must_use]
    pub fn is_limit(&self) -> bool {
        matches!(&self.fault, Fault::System(error) if crate::is_limit(error))
    }

    #[must_use]
    pub fn is_missing(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound};
        matches!(&self.fault, Fault::System(error) if matches!(error.kind(), NotFound | NotADirectory))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    pub origin: String,
}

#[must_use]
pub fn shown(path: &Path) -> String {
    if is_standard_input(path) {
        return "standard input".to_owned();
    }
    path_text(path)
}

/// Time after which the user is informed that a pipe has no writer, ms.
const REPORT_WAIT_MS: u16 = 1000;
static REPORT: OnceLock<fn(&str)> = OnceLock::new();

/// Sets the function that informs the user about a wait for a pipe. Only the first call has an effect.
pub fn report_waits(show: fn(&str)) {
    let _ = REPORT.set(show);
}

/// Reads a text from a regular file, a pipe, or standard input (`-`). Waits for the writer of a pipe,
/// until SIGINT, SIGTERM or SIGHUP arrives.
///
/// # Errors
/// Returns an error if the file is of another type or too large for its kind, or if the text is not UTF-8,
/// contains a NUL byte or is empty although its kind may not be empty. Also returns an error if standard
/// input is closed or was read before, a system call fails, or a signal ends the wait.
pub fn read(path: &Path, kind: Kind) -> Result<Text, InputError> {
    let mut bytes = Vec::new();
    open(path, kind)?.read_to_end(&mut bytes).map_err(|error| failed(path, error))?;
    decoded(bytes, path, kind)
}

/// Reads bytes with the rules of [`read`], for a format that contains other data than text, or whose
/// end may be damaged.
///
/// # Errors
/// Returns the errors of [`read`], but accepts bytes that are not UTF-8, and NUL bytes.
pub fn read_bytes(path: &Path, kind: Kind) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    open(path, kind)?.read_to_end(&mut bytes).map_err(|error| failed(path, error))?;
    if bytes.is_empty() && !kind.may_be_empty() {
        return Err(InputError { origin: shown(path), fault: Fault::Empty });
    }
    Ok(bytes)
}

/// Opens a file for reading line by line, with the rules of [`read`]. If a signal ends the wait, or the data
/// exceeds the size limit, the [`io::Error`] of the read contains an [`InputError`].
///
/// # Errors
/// Returns an error if the file is of another type or too large for its kind, standard input is closed or was
/// read before, or a system call fails.
pub fn open(path: &Path, kind: Kind) -> Result<Input, InputError> {
    let fails = |fault| InputError { origin: shown(path), fault };
    let is_standard = is_standard_input(path);
    let (file, blocks) = if is_standard {
        if was_closed(&io::stdin()) {
            return Err(fails(Fault::Closed));
        }
        static IS_READ: AtomicBool = AtomicBool::new(false);
        let descriptor =
            io::stdin().as_fd().try_clone_to_owned().map_err(|error| fails(Fault::System(error)))?;
        let file = File::from(descriptor);
        let metadata = file.metadata().map_err(|error| fails(Fault::System(error)))?;
        let is_terminal = nix::unistd::isatty(&file).unwrap_or(false);
        if !is_terminal && !metadata.file_type().is_socket() {
            check(&metadata, kind).map_err(fails)?;
        }
        if IS_READ.swap(true, Ordering::Relaxed) {
            return Err(fails(Fault::ReadBefore));
        }
        // Do not set O_NONBLOCK, because another process may use the same open file description.
        let blocks = !metadata.is_file();
        (file, blocks)
    } else {
        open_named(path, kind).map_err(fails)?
    };
    let signals = blocks.then(EndSignals::hold).transpose().map_err(|error| fails(Fault::System(error)))?;
    let unreported = blocks && !is_standard;
    Ok(Input { file, blocks, unreported, signals, left: kind.most(), kind, origin: shown(path) })
}

/// Reads the text of a regular file, and never waits for a pipe. For running sessions, and for files
/// that the user did not name individually.
///
/// # Errors
/// Returns an error if the file is not regular or too large for its kind, a system call fails, or the text is
/// not UTF-8, contains a NUL byte or is empty although its kind may not be empty.
pub fn read_regular(path: &Path, kind: Kind) -> Result<Text, InputError> {
    let mut bytes = Vec::new();
    open_regular(path, kind)?.read_to_end(&mut bytes).map_err(|error| failed(path, error))?;
    decoded(bytes, path, kind)
}

/// Opens a regular file for reading line by line, with the rules of [`read_regular`].
///
/// # Errors
/// Returns an error if the file is not regular or too large for its kind, or a system call fails.
pub fn open_regular(path: &Path, kind: Kind) -> Result<Input, InputError> {
    let fails = |fault| InputError { origin: shown(path), fault };
    if is_standard_input(path) {
        return Err(fails(Fault::NotRegular("standard input")));
    }
    let (file, is_pipe) = open_named(path, kind).map_err(|fault| match fault {
        Fault::NotAFile(what) => fails(Fault::NotRegular(what)),
        other => fails(other),
    })?;
    if is_pipe {
        return Err(fails(Fault::NotRegular("a pipe")));
    }
    Ok(Input {
        file,
        blocks: false,
        unreported: false,
        signals: None,
        left: kind.most(),
        kind,
        origin: shown(path),
    })
}

pub(crate) fn is_standard_input(path: &Path) -> bool {
    ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"].iter().any(|name| path == Path::new(name))
}

/// Opens a file without waiting for a pipe's writer. Returns the file, and whether it is a pipe.
fn open_named(path: &Path, kind: Kind) -> Result<(File, bool), Fault> {
    // Check the type before opening: opening a device may have an effect, such as rewinding a tape or
    // starting a watchdog.
    check(&fs::metadata(path).map_err(|error| of_path(path, error))?, kind)?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(Fault::System)?;
    // Check again, because another file may have replaced the checked file.
    let metadata = file.metadata().map_err(Fault::System)?;
    check(&metadata, kind)?;
    Ok((file, metadata.file_type().is_fifo()))
}

fn of_path(path: &Path, error: io::Error) -> Fault {
    let is_gone = error.kind() == io::ErrorKind::NotFound && path.is_relative();
    if is_gone && std::env::current_dir().is_err() { Fault::NoCurrentDirectory } else { Fault::System(error) }
}

/// Returns an error unless the file is a pipe, /dev/null, or a regular file that is not too large.
fn check(metadata: &Metadata, kind: Kind) -> Result<(), Fault> {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        return Err(Fault::NotAFile("a directory"));
    }
    if file_type.is_socket() {
        return Err(Fault::NotAFile("a socket"));
    }
    // /dev/null is read as an empty file. Its device number is from devices.txt.
    let is_null = file_type.is_char_device() && metadata.rdev() == nix::sys::stat::makedev(1, 3);
    if (file_type.is_char_device() || file_type.is_block_device()) && !is_null {
        return Err(Fault::NotAFile("a device"));
    }
    if metadata.len() > kind.most() {
        return Err(Fault::TooLarge(kind));
    }
    Ok(())
}

/// A file that is read up to its size limit. A signal ends a wait.
pub struct Input {
    file: File,
    /// Whether reads may block: a pipe, a socket or a terminal.
    blocks: bool,
    /// Whether the file is a named pipe and its first wait has not ended. Only this wait has a time limit,
    /// after which a pipe without a writer is reported.
    unreported: bool,
    /// For a blocking file, the signals are blocked from the start, so that a signal between two reads is not
    /// lost.
    signals: Option<EndSignals>,
    /// Number of bytes until the size limit.
    left: u64,
    kind: Kind,
    origin: String,
}

impl Input {
    fn fault(&self, fault: Fault) -> io::Error {
        io::Error::other(InputError { origin: self.origin.clone(), fault })
    }

    fn wait(&mut self) -> io::Result<Wake> {
        let held = self.signals.take();
        let signals = self.signals.insert(held.map_or_else(EndSignals::hold, Ok)?);
        let limit = if self.unreported { REPORT_WAIT_MS.into() } else { PollTimeout::NONE };
        signals.wait(self.file.as_fd(), limit)
    }

    fn report_wait(&self) {
        if let Some(show) = REPORT.get() {
            show(&format!("waiting for {}: a pipe that no program has opened for writing", self.origin));
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut waits = self.blocks;
        loop {
            // A FIFO without a writer reads as end of file, so wait before the read.
            let wake = if waits { self.wait()? } else { Wake::Ready };
            if wake == Wake::EndSignal {
                return Err(self.fault(Fault::Interrupted));
            }
            self.unreported = false;
            match self.file.read(buffer) {
                Ok(0) if wake == Wake::Timeout => self.report_wait(),
                Ok(read) if read as u64 > self.left => return Err(self.fault(Fault::TooLarge(self.kind))),
                Ok(read) => {
                    self.left -= read as u64;
                    return Ok(read);
                }
                // A file below /proc may also block.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => waits = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns a read error as an [`InputError`]: with the fault that [`Input`] stored in it, or as a system
/// error.
fn failed(path: &Path, error: io::Error) -> InputError {
    let fault = match error.downcast::<InputError>() {
        Ok(own) => own.fault,
        Err(error) => Fault::System(error),
    };
    InputError { origin: shown(path), fault }
}

/// Decodes a text, and removes a byte order mark, which editors on Windows write.
fn decoded(bytes: Vec<u8>, path: &Path, kind: Kind) -> Result<Text, InputError> {
    let fails = |fault| Err(InputError { origin: shown(path), fault });
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let (line, column) = place_after(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
            return fails(Fault::NotUtf8 { line, column });
        }
    };
    if let Some(at) = text.find('\0') {
        let (line, column) = place_after(&text.as_bytes()[..at]);
        return fails(Fault::Nul { line, column });
    }
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    if text.is_empty() && !kind.may_be_empty() {
        return fails(Fault::Empty);
    }
    Ok(Text { text, origin: shown(path) })
}

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Returns line and column of the character after a text, both from 1. The column counts characters.
fn place_after(before: &[u8]) -> (usize, usize) {
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // A UTF-8 continuation byte (10xxxxxx) does not start a character.
    let column = before[start..].iter().filter(|byte| **byte & 0xc0 != 0x80).count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use proptest::prelude::*;
    use std::io::Write;

    fn fault(path: &Path) -> String {
        read(path, Kind::Scenario).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let place = tempfile::tempdir().unwrap();
        assert!(fault(place.path()).contains("a directory, not a file"));
        for device in ["/dev/zero", "/dev/full", "/dev/urandom"] {
            assert!(fault(Path::new(device)).contains("a device, not a file"), "{device}");
            let error = read_regular(Path::new(device), Kind::Weights).unwrap_err().to_string();
            assert!(error.ends_with("it is a device; name a regular file"), "{error}");
        }
        let socket = place.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(fault(&socket).contains("a socket, not a file"));
        assert!(read(&place.path().join("none"), Kind::Scenario).unwrap_err().is_missing());
        assert_eq!(read(Path::new("/dev/null"), Kind::KeepList).unwrap().text, "");
        assert!(fault(Path::new("a\x1b[2Jb")).contains("a\\u001b[2Jb"));
    }

    #[test]
    fn a_sparse_file_is_refused_by_its_length() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sparse");
        File::create(&path).unwrap().set_len(3 << 30).unwrap();
        for kind in [Kind::Scenario, Kind::Record, Kind::Repeats] {
            let error = read(&path, kind).unwrap_err().to_string();
            assert!(error.contains(&format!("larger than {}", kind.limit())), "{error}");
            assert!(matches!(read_regular(&path, kind).unwrap_err().fault, Fault::TooLarge(_)));
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_to_its_limit() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        for (length, fits) in [(0, true), (1 << 20, true), ((1 << 20) + 1, false)] {
            let to = path.clone();
            let writer = std::thread::spawn(move || {
                let mut pipe = OpenOptions::new().write(true).open(to).unwrap();
                // Ignore errors: the reader may refuse the rest.
                drop(pipe.write_all(&vec![b'x'; length]));
            });
            let read = read(&path, Kind::KeepList).map(|text| text.text.len());
            writer.join().unwrap();
            assert_eq!(read.ok(), fits.then_some(length));
        }
        let error = read_regular(&path, Kind::Weights).unwrap_err().to_string();
        assert!(error.ends_with("it is a pipe; name a regular file"), "{error}");
    }

    #[test]
    fn a_wrong_byte_is_told_with_its_place() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x.toml");
        fs::write(&path, b"a = 1\n\xc3\xa4 = \"\xff\"").unwrap();
        assert!(fault(&path).ends_with("x.toml:2:6: the text is not UTF-8; save the file as UTF-8"));
        fs::write(&path, b"a = 1\n\xc3\xa4 = \"\0\"").unwrap();
        assert!(fault(&path).ends_with("x.toml:2:6: the file contains a NUL byte; name a text file"));
    }

    #[test]
    fn an_empty_file_is_called_empty_and_a_byte_order_mark_is_no_text() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a\nb");
        for content in ["", "\u{feff}"] {
            fs::write(&path, content).unwrap();
            for kind in [
                Kind::Scenario,
                Kind::QdiscSetups,
                Kind::NicModel,
                Kind::Policy,
                Kind::Script,
                Kind::Weights,
                Kind::FlowList,
                Kind::Record,
                Kind::StudySettings,
            ] {
                let error = read(&path, kind).unwrap_err().to_string();
                assert!(error.ends_with("a\\nb is empty"), "{error}");
            }
            assert_eq!(read(&path, Kind::KeepList).unwrap().text, "");
        }
        fs::write(&path, "\u{feff}{}\u{feff}").unwrap();
        assert_eq!(read(&path, Kind::Record).unwrap().text, "{}\u{feff}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            match decoded(bytes.clone(), Path::new("x"), Kind::KeepList) {
                Ok(text) => prop_assert!(bytes.ends_with(text.text.as_bytes())),
                Err(error) => {
                    prop_assert!(str::from_utf8(&bytes).map_or(true, |text| text.contains('\0')), "{error}");
                }
            }
        }
    }
}
