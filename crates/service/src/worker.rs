//! A worker process, such as `evenkeel fair IFACE --format jsonl`.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::Kind;

/// Longest line in bytes; longer lines are dropped. A status of 256 queues has about 4 kB per device.
const LONGEST_LINE: usize = 1 << 20;
/// Time limit for the guardian to end after its worker.
pub(crate) const GUARDIAN_LIMIT: Duration = Duration::from_secs(10);

/// Environment variables that the supervisor does not pass to workers.
const OWN_VARIABLES: [&str; 5] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM", "INVOCATION_ID"];

/// Reads lines from a pipe without blocking.
struct Lines<R> {
    /// `None` after the end of file or a read error.
    pipe: Option<R>,
    partial: Vec<u8>,
    /// Whether the reader is skipping the rest of a line that is too long.
    skips: bool,
}

impl<R: Read + AsFd> Lines<R> {
    fn new(pipe: R) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&pipe, FcntlArg::F_GETFL)?);
        fcntl(&pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self { pipe: Some(pipe), partial: Vec::new(), skips: false })
    }

    fn take(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut bytes = [0; 16384];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut bytes) {
                Ok(0) => self.pipe = None,
                Ok(count) => self.cut(&bytes[..count], &mut lines),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.pipe = None,
            }
        }
        lines
    }

    fn cut(&mut self, bytes: &[u8], lines: &mut Vec<String>) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.skips |= self.partial.len() + text.len() > LONGEST_LINE;
            if !self.skips {
                self.partial.extend(text);
            }
            if ends {
                if !std::mem::take(&mut self.skips) {
                    lines.push(String::from_utf8_lossy(&self.partial).into_owned());
                }
                self.partial.clear();
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The worker manages the interface. The value is the status of the devices.
    Started(Value),
    Status(Value),
    Remark(String),
    Ended {
        /// The reason in one word, such as `foreign-change`.
        by: String,
        /// Device and reason, if another program changed a setting.
        foreign: Option<(String, String)>,
        /// Whether changes remain: the worker could not restore a setting, or `tune` kept its changes.
        is_unsettled: bool,
    },
}

/// Parses a line of standard output. Returns `None` if the line has no event for the supervisor.
fn event(line: &str) -> Option<Event> {
    let value: Value = serde_json::from_str(line).ok()?;
    let devices = || value.get("devices").cloned().unwrap_or_default();
    match value.get("type")?.as_str()? {
        "started" => Some(Event::Started(devices())),
        "status" => Some(Event::Status(devices())),
        "remark" => Some(Event::Remark(value.get("text")?.as_str()?.to_owned())),
        "ended" => {
            let ended = value.get("ended")?;
            let by = ended.get("by")?.as_str()?.to_owned();
            let is_foreign = by == "foreign-change";
            let text = |key: &str| Some(ended.get(key)?.as_str()?.to_owned());
            let devices = value.get("devices").and_then(Value::as_array).into_iter().flatten();
            let settings = devices.filter_map(|device| device.get("settings"));
            // `tune` may leave its changes in effect.
            let left = settings.flat_map(|settings| ["failed", "kept"].map(|key| settings.get(key)));
            let is_unsettled = left.flatten().filter_map(Value::as_u64).sum::<u64>() > 0;
            let foreign = text("device").zip(text("reason")).filter(|_| is_foreign);
            Some(Event::Ended { by, foreign, is_unsettled })
        }
        _ => None,
    }
}

/// A running worker, or an ended worker whose guardian is still running.
pub(crate) struct Worker {
    child: Child,
    output: Lines<ChildStdout>,
    errors: Lines<ChildStderr>,
    pub(crate) arguments: Vec<String>,
    /// Name of the interface at the start.
    pub(crate) name: String,
    pub(crate) queues: Option<u32>,
    pub(crate) began: Instant,
    /// Whether this process only restores the settings that a dead worker and its guardian left changed.
    pub(crate) cleans: bool,
    asked: Option<Instant>,
    killed: bool,
    status: Option<(Instant, ExitStatus)>,
    pub(crate) error: Option<String>,
    /// Why the worker ended, in one word.
    pub(crate) by: Option<String>,
    /// The other program's change that made the worker exit.
    pub(crate) foreign: Option<String>,
    /// Whether the worker reported that it restored all settings; `None` without a report.
    pub(crate) is_settled: Option<bool>,
    events: VecDeque<Event>,
}

impl Worker {
    /// Starts a worker with the arguments of a rule, or of a process that only restores settings. `further`
    /// are arguments for this start alone.
    pub(crate) fn start(
        mut command: Command,
        kind: Kind,
        name: &str,
        arguments: &[String],
        further: &[&str],
        queues: Option<u32>,
        now: Instant,
    ) -> io::Result<Self> {
        command.args([kind.command(), "--format=jsonl"]).args(arguments).args(further).args(["--", name]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        for variable in OWN_VARIABLES {
            command.env_remove(variable);
        }
        let supervisor = nix::unistd::getpid();
        // SAFETY: the closure makes two system calls and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                let nothing: libc::c_ulong = 0;
                let term = libc::SIGTERM as libc::c_ulong;
                if libc::prctl(libc::PR_SET_PDEATHSIG, term, nothing, nothing, nothing) < 0 {
                    return Err(io::Error::last_os_error());
                }
                // The supervisor may have died before `prctl`.
                if nix::unistd::getppid() != supervisor {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let missing = || io::Error::other("it has no output");
        let output = Lines::new(child.stdout.take().ok_or_else(missing)?)?;
        let errors = Lines::new(child.stderr.take().ok_or_else(missing)?)?;
        Ok(Self {
            child,
            output,
            errors,
            arguments: arguments.to_vec(),
            name: name.to_owned(),
            queues,
            began: now,
            cleans: false,
            asked: None,
            killed: false,
            status: None,
            error: None,
            by: None,
            foreign: None,
            is_settled: None,
            events: VecDeque::new(),
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the file descriptors to poll.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let output = self.output.pipe.as_ref().map(AsFd::as_fd);
        output.into_iter().chain(self.errors.pipe.as_ref().map(AsFd::as_fd))
    }

    /// Returns whether the worker has been asked to end (SIGTERM).
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    fn send(&self, signal: Signal) {
        // The process id belongs to this child until wait(2) returns. Ignore the error: the child may
        // be a zombie.
        if self.status.is_none()
            && let Ok(id) = i32::try_from(self.child.id())
        {
            let _ = kill(Pid::from_raw(id), signal);
        }
    }

    pub(crate) fn ask(&mut self, now: Instant) {
        if self.asked.is_none() {
            self.asked = Some(now);
            self.send(Signal::SIGTERM);
        }
    }

    /// Returns whether the worker still runs at least `limit` after SIGTERM, and was not killed.
    pub(crate) fn is_late(&self, limit: Duration, now: Instant) -> bool {
        let is_asked = self.asked.is_some_and(|asked| now.duration_since(asked) >= limit);
        is_asked && !self.killed && self.status.is_none()
    }

    /// Kills a worker that may hang. Its guardian restores its settings.
    pub(crate) fn kill(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
        self.killed = true;
        self.send(Signal::SIGKILL);
    }

    /// Reads the output of the worker and its guardian. Returns the worker's events, and the lines of
    /// standard error without the error messages, the last of which goes to `error`.
    pub(crate) fn read(&mut self, now: Instant) -> (Vec<String>, Vec<Event>) {
        // Read the exit status first: afterwards, the pipe contains all of the worker's output.
        if self.status.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.status = Some((now, status));
        }
        self.events.extend(self.output.take().iter().filter_map(|line| event(line)));
        for event in &self.events {
            if let Event::Ended { by, foreign, is_unsettled } = event {
                self.by = Some(by.clone());
                // The changed device may be a device below the interface.
                self.foreign = foreign.as_ref().map(|(device, reason)| match *device == self.name {
                    true => reason.clone(),
                    false => format!("{device}: {reason}"),
                });
                self.is_settled = Some(!is_unsettled);
            }
        }
        let mut said = self.errors.take();
        said.retain(|line| match line.strip_prefix("evenkeel: ") {
            Some(error) => {
                self.error = Some(error.to_owned());
                false
            }
            None => true,
        });
        (said, self.events.drain(..).collect())
    }

    /// Returns the exit status if both the worker and its guardian have ended, or the guardian has exceeded
    /// its time limit. The guardian also holds standard error open.
    pub(crate) fn ended(&self, now: Instant) -> Option<ExitStatus> {
        let (at, status) = self.status?;
        let is_over = self.errors.pipe.is_none() || now.duration_since(at) >= GUARDIAN_LIMIT;
        is_over.then_some(status)
    }

    /// Returns whether the worker has ended and its guardian may still be running.
    pub(crate) fn is_ending(&self) -> bool {
        self.status.is_some()
    }
}

pub(crate) fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the worker ended with exit code {code}"),
        (None, Some(signal)) => {
            let name =
                Signal::try_from(signal).map_or_else(|_| signal.to_string(), |signal| signal.to_string());
            format!("{name} killed the worker")
        }
        (None, None) => "the worker ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_of_a_worker_are_events() {
        assert_eq!(
            event(r#"{"type":"started","devices":[1]}"#),
            Some(Event::Started(serde_json::json!([1])))
        );
        assert_eq!(event(r#"{"type":"remark","text":"x"}"#), Some(Event::Remark("x".to_owned())));
        let ended = r#"{"type":"ended","ended":{"by":"foreign-change","device":"a","reason":"why"},"devices":[{"settings":{"failed":1}}]}"#;
        let foreign = Some(("a".to_owned(), "why".to_owned()));
        let by = "foreign-change".to_owned();
        assert_eq!(event(ended), Some(Event::Ended { by, foreign, is_unsettled: true }));
        let ended = r#"{"type":"ended","ended":{"by":"terminated"},"devices":[{"settings":{"failed":0}}]}"#;
        assert_eq!(
            event(ended),
            Some(Event::Ended { by: "terminated".to_owned(), foreign: None, is_unsettled: false })
        );
        for nothing in ["", "{", "[]", "7", r#"{"type":"dropped"}"#, r#"{"type":7}"#, r#"{"type":"ended"}"#] {
            assert_eq!(event(nothing), None, "{nothing}");
        }
    }

    /// If another program changed a device below the interface, the reason begins with that device's
    /// name.
    #[test]
    fn a_foreign_change_names_its_device() {
        for (device, told) in [("br0", "it went"), ("port0", "port0: it went")] {
            let ended = format!(
                r#"{{"type":"ended","ended":{{"by":"foreign-change","device":"{device}","reason":"it went"}}}}"#
            );
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("echo '{ended}'")]);
            let now = Instant::now();
            let mut worker = Worker::start(shell, Kind::Fair, "br0", &[], &[], None, now).unwrap();
            while worker.ended(now).is_none() {
                worker.read(now);
            }
            assert_eq!(worker.foreign.as_deref(), Some(told));
        }
    }

    #[test]
    fn a_line_in_parts_and_one_that_is_too_long() {
        let (pipe, _writer) = io::pipe().unwrap();
        let mut lines = Lines::new(pipe).unwrap();
        let mut found = Vec::new();
        lines.cut(b"one\ntw", &mut found);
        lines.cut(b"o\n\xff\n", &mut found);
        assert_eq!(found, ["one", "two", "\u{fffd}"]);
        found.clear();
        for _ in 0..3 {
            lines.cut(&vec![b'x'; LONGEST_LINE / 2], &mut found);
        }
        assert!(lines.partial.len() <= LONGEST_LINE);
        lines.cut(b"\nthree\n", &mut found);
        assert_eq!(found, ["three"]);
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_a_panic(line in ".{0,100}", kind in "started|status|remark|ended", value in "[0-9{}\\[\\]\",:a]{0,20}") {
            let _ = event(&line);
            let _ = event(&format!("{{\"type\":\"{kind}\",\"devices\":{value},\"ended\":{value}}}"));
            let (pipe, _writer) = io::pipe().unwrap();
            let (mut lines, mut found) = (Lines::new(pipe).unwrap(), Vec::new());
            lines.cut(line.as_bytes(), &mut found);
        }
    }
}
