//! Shows progress on the terminal, and handles Ctrl-C.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_model::text::{printable, terminal_output};
use evenkeel_model::world::Observer;
use evenkeel_report::page::Page;
use evenkeel_report::table::TableOptions;
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Failure, say};
use crate::signals::Signals;

const STEPS: u64 = 1000;

/// The display of progress. On a terminal it is a bar. Elsewhere, and if the terminal cannot move the
/// cursor (`TERM=dumb`), it consists of lines. It prints a line for each tenth of the work, for each of
/// the first activities, and after a silence.
pub struct Meter {
    shown: Shown,
}

enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
}

#[derive(Default)]
struct Lines {
    /// The lowest tenth of the work that gets the next line.
    next: u64,
    /// The activities named so far, up to a maximum.
    activities: BTreeSet<String>,
    last: Option<Instant>,
}

/// Maximum time without a line. After a longer silence, a command seems to hang.
const LONGEST_SILENCE: Duration = Duration::from_secs(8);
/// Maximum number of named activities, so that hundreds of repeats do not fill the log.
const MOST_ACTIVITIES: usize = 12;

impl Lines {
    fn take(&mut self, fraction: f64, activity: &str, now: Instant) -> bool {
        let tenths = (fraction.clamp(0.0, 1.0) * 10.0) as u64;
        let is_new = self.activities.len() < MOST_ACTIVITIES && self.activities.insert(activity.to_owned());
        // Concurrent repeats report in any order: use the maximum.
        let is_further = self.next <= tenths;
        self.next = self.next.max(tenths + 1);
        let is_silent = self.last.is_some_and(|last| now.duration_since(last) >= LONGEST_SILENCE);
        let is_due = is_new || is_further || is_silent;
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

impl Meter {
    /// Creates a meter. It shows nothing if `quiet`.
    pub fn new(quiet: bool) -> Self {
        let bar = ProgressBar::new(STEPS);
        let shown = if quiet {
            Shown::Nothing
        } else if !bar.is_hidden() {
            let template = "{wide_bar:.cyan/blue} {percent:>3} %  {msg}  (about {eta} left)";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            Shown::Bar(bar)
        } else {
            Shown::Lines(Mutex::default())
        };
        Self { shown }
    }

    /// Shows the finished fraction of the work, and the activity.
    pub fn show(&self, fraction: f64, activity: &str) {
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                let position = (fraction.clamp(0.0, 1.0) * STEPS as f64) as u64;
                bar.set_position(position.max(bar.position()));
                bar.set_message(printable(activity));
            }
            Shown::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.take(fraction, activity, Instant::now()) {
                    say(&format!("{:3.0} %  {activity}", fraction * 100.0));
                }
            }
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Waits with a progress display. Returns early on a signal. A separate thread shows the progress, so that a
/// blocked terminal delays the command by at most 1 s. If the thread cannot start, shows nothing.
pub fn wait(time: Duration, activity: &'static str, signals: &Signals) {
    wait_with(time, activity, signals, || true);
}

/// Waits as [`wait`] does, and calls a function about 50 times per second. Returns early if the function
/// returns false.
pub fn wait_with(time: Duration, activity: &'static str, signals: &Signals, mut tick: impl FnMut() -> bool) {
    /// A signal does not interrupt a sleep, so each sleep must be short.
    const NAP: Duration = Duration::from_millis(20);
    /// Minimum wait that writes lines to a log.
    const WORTH_LINES: Duration = Duration::from_secs(10);
    /// Maximum time to wait for the removal of the bar.
    const PATIENCE: Duration = Duration::from_secs(1);
    let quiet = time < WORTH_LINES && ProgressBar::new(STEPS).is_hidden();
    let started = Instant::now();
    let (waiting, ended) = mpsc::channel::<()>();
    let (shown, removed) = mpsc::channel::<()>();
    let show = move || {
        let meter = Meter::new(quiet);
        while ended.recv_timeout(NAP) == Err(RecvTimeoutError::Timeout) {
            meter.show(started.elapsed().as_secs_f64() / time.as_secs_f64(), activity);
        }
        meter.finish();
        drop(shown);
    };
    let _ = thread::Builder::new().spawn(show);
    while started.elapsed() < time && !signals.came() && tick() {
        thread::sleep(NAP.min(time.saturating_sub(started.elapsed())));
    }
    drop(waiting);
    let _ = removed.recv_timeout(PATIENCE);
}

/// Does work, and shows its progress if the work takes long. `state` returns the finished fraction and
/// the activity. If the thread for the display cannot start, shows nothing.
pub fn with_progress<T>(state: impl Fn() -> (f64, String) + Send, work: impl FnOnce() -> T) -> T {
    /// Minimum time of work before its progress is shown.
    const LONG: Duration = Duration::from_secs(2);
    const INTERVAL: Duration = Duration::from_millis(100);
    let (working, ended) = mpsc::channel::<()>();
    let goes_on = move |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    let show = move || {
        if goes_on(LONG) {
            let meter = Meter::new(false);
            while goes_on(INTERVAL) {
                let (fraction, activity) = state();
                meter.show(fraction, &activity);
            }
            meter.finish();
        }
    };
    thread::scope(|scope| {
        let _ = thread::Builder::new().spawn_scoped(scope, show);
        let result = work();
        drop(working);
        result
    })
}

/// The progress of a run, and its interruption by a signal.
pub struct Progress {
    signals: Signals,
    meter: Meter,
}

impl Progress {
    /// Catches the signals that end a command, and shows progress unless `quiet`.
    pub fn new(quiet: bool) -> Result<Self, Failure> {
        Ok(Self { signals: Signals::catch()?, meter: Meter::new(quiet) })
    }

    pub fn finish(&self) {
        self.meter.finish();
    }
}

impl Observer for Progress {
    fn progress(&self, fraction: f64, activity: &str) {
        self.meter.show(fraction, activity);
    }

    fn remark(&self, text: &str) {
        match &self.meter.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => bar.println(terminal_output(text, false)),
            Shown::Lines(_) => say(text),
        }
    }

    fn interrupted(&self) -> bool {
        self.signals.came()
    }
}

/// Width of a table if neither the terminal nor COLUMNS states a width.
const FILE_WIDTH: usize = 120;
/// Minimum width of a table: a narrower table would break every word.
const LEAST_WIDTH: usize = 40;

/// Begins a page as wide as standard output.
pub fn page() -> Page {
    Page::new(table_options())
}

/// Returns the width of standard output, and whether it shows colours.
pub fn table_options() -> TableOptions {
    let is_set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_terminal = std::io::stdout().is_terminal();
    let terminal = || Some(usize::from(terminal_size::terminal_size()?.0.0));
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    // A terminal without a size reports 0. Some shells set COLUMNS to 0.
    let stated = if is_terminal { terminal().filter(|width| *width > 0).or_else(columns) } else { columns() };
    let width = stated.filter(|width| *width > 0).unwrap_or(FILE_WIDTH).max(LEAST_WIDTH);
    let plain = is_set("NO_COLOR").is_some() || is_set("TERM").is_none_or(|term| term == "dumb");
    TableOptions { width: Some(width), colour: is_terminal && !plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_ends_with_a_line() {
        let (mut lines, begin) = (Lines::default(), Instant::now());
        let mut at = |seconds, fraction| lines.take(fraction, "work", begin + Duration::from_secs(seconds));
        assert!(at(0, 0.0));
        assert!(!at(1, 0.01) && !at(7, 0.02));
        assert!(at(9, 0.03), "8 s after the last line");
        assert!(!at(10, 0.04) && at(11, 0.1), "a tenth");
        assert!(!at(18, 0.11) && at(19, 0.12), "8 s after the tenth");
    }
}
