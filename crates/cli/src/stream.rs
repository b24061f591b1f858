//! The lines of a session with `--format jsonl`, which a program reads while the session runs.

use std::time::{Duration, Instant};

use evenkeel_model::text::terminal_output;
use serde_json::{Value, json};

use crate::arguments::SessionFormat;
use crate::exit::{Failure, print};
use crate::live::say;
use crate::output;
use crate::signals::Signals;

const INTERVAL: Duration = Duration::from_secs(1);

/// The stream of a session. If the user chose another format, it has no lines.
pub struct Stream {
    is_wanted: bool,
    began: Instant,
    next: Instant,
    /// Number of lines dropped since the last written line, because the reader did not read.
    dropped: u64,
    /// Whether writing to standard output has failed, for example because its reader has exited.
    has_ended: bool,
}

impl Stream {
    pub fn of(format: SessionFormat) -> Self {
        let now = Instant::now();
        let is_wanted = format == SessionFormat::Jsonl;
        Self { is_wanted, began: now, next: now + INTERVAL, dropped: 0, has_ended: false }
    }

    fn put(&mut self, line: &Value) {
        if !self.is_wanted {
            return;
        }
        if self.dropped > 0 {
            let text = format!("{}\n", json!({"type": "dropped", "lines": self.dropped}));
            match output::stream(text.as_bytes()) {
                Ok(false) => self.dropped = 0,
                Ok(true) => {}
                Err(_) => self.has_ended = true,
            }
        }
        match output::stream(terminal_output(&format!("{line}\n"), false).as_bytes()) {
            Ok(is_dropped) => self.dropped += u64::from(is_dropped),
            Err(_) => self.has_ended = true,
        }
    }

    /// Writes messages to standard error and to the stream.
    pub fn remarks(&mut self, remarks: &[String]) {
        for remark in remarks {
            say(remark);
            self.put(&json!({"type": "remark", "text": remark}));
        }
    }

    /// Writes the line which reports that the session manages its devices. Remarks may come before this line.
    pub fn started(&mut self, interface: &str, devices: &Value) {
        self.put(&json!({
            "type": "started",
            "schema": 1,
            "interface": interface,
            "process": std::process::id(),
            "devices": devices,
        }));
    }

    /// Writes a status line once a second. If the reader has exited, ends the session as SIGTERM does:
    /// the session's supervisor has died.
    pub fn status(&mut self, signals: &Signals, line: impl FnOnce(f64) -> Value) {
        let now = Instant::now();
        if !self.is_wanted || now < self.next {
            return;
        }
        // Skip missed lines.
        self.next = (self.next + INTERVAL).max(now);
        self.put(&line(now.duration_since(self.began).as_secs_f64()));
        if self.has_ended {
            signals.terminate();
        }
    }

    /// Writes the last line: the object `result`, with its type.
    pub fn end(&self, result: &Value) -> Result<(), Failure> {
        if !self.is_wanted {
            return Ok(());
        }
        let mut line = json!({"type": "ended"});
        if let (Some(line), Some(result)) = (line.as_object_mut(), result.as_object()) {
            line.extend(result.clone());
        }
        print(&format!("{line}\n"))
    }
}
