//! Standard output and standard error of a command.
//!
//! A write blocks if a pipe is full or if Ctrl-S has stopped the terminal. In a command that catches
//! signals, separate threads write:
//!
//! - The command waits for each write, until a signal comes. Without a separate thread, a signal could not
//!   end a blocked write.
//! - A command that has changed settings calls [`detach`] first and does not wait for writes, so that
//!   it restores its settings in time. When all settings are restored, [`finish`] waits for the writes
//!   until a further signal comes.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_apply::privileges::keep_only;
use nix::sys::stat::{FileStat, fstat};

use crate::signals;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Errors,
}

impl Stream {
    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Output => {
                let mut output = io::stdout().lock();
                output.write_all(bytes).and_then(|()| output.flush())
            }
            Self::Errors => io::stderr().write_all(bytes),
        }
    }
}

/// Maximum size of a write, bytes. Up to this size, a write to a pipe is atomic (`PIPE_BUF`, pipe(7)).
const CHUNK: usize = 4096;
/// Maximum amount of waiting output, bytes. Further messages and lines of a stream are dropped until the
/// reader reads again.
const MOST_WAITING: usize = 1 << 16;
/// Time without progress after which a command no longer waits for a reader: after a signal, and at its end.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);

/// Whether the command waits for its writes only in [`finish`].
static DETACHED: AtomicBool = AtomicBool::new(false);
static WRITERS: OnceLock<Option<Writers>> = OnceLock::new();

struct Writers {
    output: Writer,
    /// The writer of standard error. It is the writer of standard output if both streams are one file,
    /// so that the lines stay in order.
    errors: Writer,
}

/// A thread that writes, and the bytes that it has not yet written.
#[derive(Clone)]
struct Writer {
    queue: Sender<(Stream, Vec<u8>)>,
    waiting: Arc<Waiting>,
    /// The first error on standard output.
    failed: Arc<Mutex<Option<io::Error>>>,
}

#[derive(Default)]
struct Waiting {
    output: AtomicUsize,
    errors: AtomicUsize,
}

impl Waiting {
    fn of(&self, stream: Stream) -> &AtomicUsize {
        match stream {
            Stream::Output => &self.output,
            Stream::Errors => &self.errors,
        }
    }

    fn all(&self) -> usize {
        self.output.load(Ordering::Acquire) + self.errors.load(Ordering::Acquire)
    }
}

impl Writer {
    /// Starts a thread that writes with `write`.
    fn start(write: impl Fn(Stream, &[u8]) -> io::Result<()> + Send + 'static) -> io::Result<Self> {
        let (queue, queued) = mpsc::channel::<(Stream, Vec<u8>)>();
        let writer = Self { queue, waiting: Arc::default(), failed: Arc::default() };
        let (waiting, failed) = (Arc::clone(&writer.waiting), Arc::clone(&writer.failed));
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            // Drop the capabilities here: the session drops its own later, and each thread has its own
            // set. Ignore the error: writing needs no capability.
            let _ = keep_only(&[]);
            for (stream, bytes) in queued {
                let mut left = bytes.len();
                for chunk in bytes.chunks(CHUNK) {
                    let written = write(stream, chunk);
                    let done = if written.is_ok() { chunk.len() } else { left };
                    if let (Stream::Output, Err(error)) = (stream, written) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                    waiting.of(stream).fetch_sub(done, Ordering::Release);
                    left -= done;
                    if left == 0 {
                        break;
                    }
                }
            }
        })?;
        Ok(writer)
    }

    fn put(&self, stream: Stream, bytes: &[u8]) {
        self.waiting.of(stream).fetch_add(bytes.len(), Ordering::Relaxed);
        // Ignore the error: the thread does not end before the process.
        let _ = self.queue.send((stream, bytes.to_vec()));
    }

    /// Waits until everything is written, or until no progress happens for the time that `limit` returns
    /// (`None`: without a limit).
    fn drain(&self, limit: impl Fn(&Waiting) -> Option<Duration>) {
        let (mut left, mut progress) = (usize::MAX, Instant::now());
        loop {
            let (waiting, limit) = (self.waiting.all(), limit(&self.waiting));
            if waiting != left || limit.is_none() {
                (left, progress) = (waiting, Instant::now());
            }
            if waiting == 0 || limit.is_some_and(|limit| progress.elapsed() >= limit) {
                return;
            }
            thread::sleep(POLL);
        }
    }
}

impl Writers {
    /// Returns the error of standard output. The error is of kind `Interrupted` if the reader did not
    /// read the result.
    fn outcome(&self) -> io::Result<()> {
        if let Some(error) = self.output.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        if self.output.waiting.output.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let why = if signals::came() {
            "interrupted while the reader of standard output did not read"
        } else {
            "the reader of standard output does not read"
        };
        Err(io::Error::new(io::ErrorKind::Interrupted, why))
    }
}

/// Makes the command wait for its writes only in [`finish`].
pub fn detach() {
    DETACHED.store(true, Ordering::Relaxed);
}

fn is_detached() -> bool {
    DETACHED.load(Ordering::Relaxed)
}

/// Returns the writing threads. Returns `None` if the command itself writes, for example because the
/// system allows no more threads.
fn writers() -> Option<&'static Writers> {
    if !is_detached() && !signals::are_caught() {
        return None;
    }
    let start = || {
        let place = |file: nix::Result<FileStat>| file.ok().map(|file| (file.st_dev, file.st_ino));
        let output = Writer::start(Stream::write).ok()?;
        let errors = match place(fstat(io::stdout())) == place(fstat(io::stderr())) {
            true => output.clone(),
            false => Writer::start(Stream::write).ok()?,
        };
        Some(Writers { output, errors })
    };
    WRITERS.get_or_init(start).as_ref()
}

/// Writes a result to standard output. For detached output, [`finish`] returns the error.
pub fn result(text: &[u8]) -> io::Result<()> {
    let Some(writers) = writers() else { return Stream::Output.write(text) };
    writers.output.put(Stream::Output, text);
    if is_detached() {
        return Ok(());
    }
    writers.output.drain(|_| signals::came().then_some(PATIENCE));
    writers.outcome()
}

/// Writes a line of a stream to standard output. Drops the line if too many bytes wait for the reader.
/// Returns whether the line was dropped.
///
/// # Errors
/// Returns an error if a previous line could not be written, for example because the reader has exited.
pub fn stream(line: &[u8]) -> io::Result<bool> {
    let Some(Writers { output, .. }) = writers() else { return Stream::Output.write(line).map(|()| false) };
    if let Some(error) = output.failed.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        return Err(error.kind().into());
    }
    if output.waiting.output.load(Ordering::Acquire) >= MOST_WAITING {
        return Ok(true);
    }
    output.put(Stream::Output, line);
    Ok(false)
}

/// Writes a message to standard error. Ignores errors, because the reader may have exited. Drops the message
/// if too many bytes wait. After a signal ended the wait for the reader, drops it if a previous message still
/// waits.
pub fn message(text: &[u8]) {
    let Some(Writers { errors, .. }) = writers() else { return drop(Stream::Errors.write(text)) };
    let waiting = errors.waiting.all();
    if waiting >= MOST_WAITING || (waiting > 0 && !is_detached()) {
        return;
    }
    errors.put(Stream::Errors, text);
    if !is_detached() {
        errors.drain(|_| signals::came().then_some(PATIENCE));
    }
}

/// Returns whether no message waits for the reader, so that a new status replaces the last one at once.
pub fn is_idle() -> bool {
    writers().is_none_or(|writers| writers.errors.waiting.all() == 0)
}

/// Waits until detached output is written. Returns the error of standard output. The wait for the reader of
/// a file or pipe lasts until a signal comes. The wait for a terminal is limited (`PATIENCE`). A signal
/// before the wait has ended the session, and does not end the wait.
pub fn finish() -> io::Result<()> {
    let Some(writers) = writers().filter(|_| is_detached()) else { return Ok(()) };
    signals::await_another();
    let is_terminal = io::stdout().is_terminal();
    writers.output.drain(|waiting| match waiting.output.load(Ordering::Acquire) {
        _ if signals::has_ended_wait() => Some(Duration::ZERO),
        0 => Some(PATIENCE),
        _ => is_terminal.then_some(PATIENCE),
    });
    writers.errors.drain(|_| Some(PATIENCE));
    writers.outcome()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_reader_that_does_not_read_holds_nothing_up() {
        let (read, is_read) = mpsc::channel::<()>();
        let (written, bytes) = mpsc::channel();
        let is_read = Mutex::new(is_read);
        let writer = Writer::start(move |stream, chunk| {
            is_read.lock().unwrap().recv().map_err(io::Error::other)?;
            written.send((stream, chunk.len())).map_err(io::Error::other)
        });
        let writer = writer.unwrap();
        let began = Instant::now();
        writer.put(Stream::Errors, b"managed now");
        writer.put(Stream::Output, &[b'x'; CHUNK + 1]);
        assert!(began.elapsed() < PATIENCE);
        writer.drain(|_| Some(PATIENCE));
        assert!(began.elapsed() >= PATIENCE && writer.waiting.all() == 11 + CHUNK + 1);
        // The thread writes everything in order after the reader reads again.
        (0..3).for_each(|_| read.send(()).unwrap());
        writer.drain(|_| None);
        let found: Vec<(Stream, usize)> = bytes.try_iter().collect();
        assert_eq!(found, [(Stream::Errors, 11), (Stream::Output, CHUNK), (Stream::Output, 1)]);
        assert!(writer.failed.lock().unwrap().is_none());
        // The reader has exited.
        drop(read);
        writer.put(Stream::Output, b"late");
        writer.drain(|_| None);
        assert!(writer.failed.lock().unwrap().is_some());
    }
}
