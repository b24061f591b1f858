//! What commands on a live interface have in common: signals, the terminal, the guardian.

use std::io::{IsTerminal, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_model::text::terminal_output;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use crate::exit::say;
use crate::exit::{Exit, Failure};

/// How often the terminal is drawn anew.
const DRAW_INTERVAL: Duration = Duration::from_secs(1);

/// The signals that end a run.
pub struct Signals {
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
}

impl Signals {
    /// Catches them from now on.
    pub fn catch() -> Result<Self, Failure> {
        let signals = Self { interrupted: Arc::default(), terminated: Arc::default() };
        let flags =
            [(SIGINT, &signals.interrupted), (SIGHUP, &signals.interrupted), (SIGTERM, &signals.terminated)];
        for (signal, flag) in flags {
            signal_hook::flag::register(signal, Arc::clone(flag))
                .map_err(|error| Failure::new(Exit::Failed, format!("cannot catch signals: {error}")))?;
        }
        Ok(signals)
    }

    /// Whether one came that interrupts: Ctrl-C, or the terminal is gone.
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Whether the run was asked to end, as a service is.
    pub fn terminated(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }
}

/// A terminal on standard error, drawn anew in its place.
pub struct Screen {
    live: bool,
    drawn: Option<Instant>,
    lines: usize,
}

impl Screen {
    /// Nothing is drawn where nobody looks.
    pub fn new() -> Self {
        Self { live: std::io::stderr().is_terminal(), drawn: None, lines: 0 }
    }

    /// Draws, if it is time to.
    pub fn draw(&mut self, text: impl Fn() -> String) {
        if !self.live || self.drawn.is_some_and(|drawn| drawn.elapsed() < DRAW_INTERVAL) {
            return;
        }
        self.drawn = Some(Instant::now());
        let text = text();
        let mut output = std::io::stderr().lock();
        if self.lines > 0 {
            // Up to where the last drawing began, and clear from there on (ECMA-48: CPL, ED).
            let _ = write!(output, "\u{1b}[{}F\u{1b}[J", self.lines);
        }
        let _ = output.write_all(terminal_output(&text, true).as_bytes());
        let _ = output.flush();
        self.lines = text.lines().count();
    }
}

/// A guardian is this very binary, also when its file was replaced meanwhile.
pub fn guardian() -> Option<Command> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("evenkeel").arg("guard");
    Some(command)
}
