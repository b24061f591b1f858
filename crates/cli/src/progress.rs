//! What a person at the terminal sees while a run goes on, and how Ctrl-C reaches it.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_model::text::{printable, terminal_output};
use evenkeel_model::world::Observer;
use evenkeel_report::page::Page;
use evenkeel_report::table::TableOptions;
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Failure, say};
use crate::signals::Signals;

const STEPS: u64 = 1000;

/// Shows progress as a bar on a terminal; elsewhere as a line for each tenth of the work, and for each of the first
/// activities.
pub struct Meter {
    shown: Shown,
}

enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
}

/// Lines that a log has got.
#[derive(Default)]
struct Lines {
    /// Tenths that the next line needs at least.
    next: u64,
    /// Activities so far, the first ones only.
    activities: BTreeSet<String>,
}

/// A short run names what it does; one of hundreds of repeats does not fill the log.
const MOST_ACTIVITIES: usize = 12;

impl Lines {
    /// Whether this is worth a line.
    fn take(&mut self, fraction: f64, activity: &str) -> bool {
        let tenths = (fraction.clamp(0.0, 1.0) * 10.0) as u64;
        let is_new = self.activities.len() < MOST_ACTIVITIES && self.activities.insert(activity.to_owned());
        // Repeats that run at the same time report in any order: the largest counts.
        let is_further = self.next <= tenths;
        self.next = self.next.max(tenths + 1);
        is_new || is_further
    }
}

impl Meter {
    /// Shows nothing if `quiet`.
    pub fn new(quiet: bool) -> Self {
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(STEPS);
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

    /// Shows how much of the work is done.
    pub fn show(&self, fraction: f64, activity: &str) {
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                // Repeats that run at the same time report in any order: the largest counts.
                let position = (fraction.clamp(0.0, 1.0) * STEPS as f64) as u64;
                bar.set_position(position.max(bar.position()));
                bar.set_message(printable(activity));
            }
            Shown::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.take(fraction, activity) {
                    say(&format!("{:3.0} %  {activity}", fraction * 100.0));
                }
            }
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Waits, shows how much of the time is over, and returns early when a signal comes.
pub fn wait(time: Duration, activity: &str, signals: &Signals) {
    /// Signals wake nobody up, so naps are short.
    const NAP: Duration = Duration::from_millis(20);
    /// A shorter wait gets no lines in a log.
    const WORTH_LINES: Duration = Duration::from_secs(10);
    let meter = Meter::new(time < WORTH_LINES && !std::io::stderr().is_terminal());
    let started = Instant::now();
    while started.elapsed() < time && !signals.came() {
        meter.show(started.elapsed().as_secs_f64() / time.as_secs_f64(), activity);
        std::thread::sleep(NAP.min(time.saturating_sub(started.elapsed())));
    }
    meter.finish();
}

/// Progress of a run, and whether a signal interrupts it.
pub struct Progress {
    signals: Signals,
    meter: Meter,
}

impl Progress {
    /// Takes over Ctrl-C and SIGTERM, and shows progress unless `quiet`.
    pub fn new(quiet: bool) -> Result<Self, Failure> {
        Ok(Self { signals: Signals::catch()?, meter: Meter::new(quiet) })
    }

    /// Takes the bar away.
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

/// Width of a table that goes to a file or a pipe, unless COLUMNS says otherwise.
const FILE_WIDTH: usize = 120;
/// A table is never laid out for fewer columns: it would break every word.
const LEAST_WIDTH: usize = 40;

/// Begins a page that fits standard output.
pub fn page() -> Page {
    Page::new(table_options())
}

/// Returns the width and colour of standard output.
pub fn table_options() -> TableOptions {
    let is_set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_terminal = std::io::stdout().is_terminal();
    let terminal = || Some(usize::from(terminal_size::terminal_size()?.0.0));
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    // 0 is what a terminal without a size and some shells' COLUMNS say.
    let stated = if is_terminal { terminal().filter(|width| *width > 0).or_else(columns) } else { columns() };
    let width = stated.filter(|width| *width > 0).unwrap_or(FILE_WIDTH).max(LEAST_WIDTH);
    let plain = is_set("NO_COLOR").is_some() || is_set("TERM").is_none_or(|term| term == "dumb");
    TableOptions { width: Some(width), colour: is_terminal && !plain }
}
