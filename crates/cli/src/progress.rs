//! What a person at the terminal sees while a run goes on, and how Ctrl-C reaches it.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_model::world::Observer;
use evenkeel_report::table::TableOptions;
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Exit, Failure};

const STEPS: u64 = 1000;

/// Shows progress as a bar on a terminal, as a line for each new activity elsewhere.
pub struct Progress {
    interrupted: Arc<AtomicBool>,
    shown: Shown,
}

enum Shown {
    Nothing,
    Bar(ProgressBar),
    /// What has been said already: several repeats at a time take turns.
    Lines(Mutex<BTreeSet<String>>),
}

impl Progress {
    /// Takes over Ctrl-C and SIGTERM, and shows progress unless `quiet`.
    pub fn new(quiet: bool) -> Result<Self, Failure> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .map_err(|error| Failure::new(Exit::Failed, format!("cannot catch signals: {error}")))?;
        }
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(STEPS);
            let template = "{wide_bar:.cyan/blue} {percent:>3} %  {msg}  (about {eta} left)";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(500));
            Shown::Bar(bar)
        } else {
            Shown::Lines(Mutex::new(BTreeSet::new()))
        };
        Ok(Self { interrupted, shown })
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Progress {
    fn progress(&self, fraction: f64, activity: &str) {
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                // Of several repeats at a time each tells its own part.
                let position = (fraction.clamp(0.0, 1.0) * STEPS as f64) as u64;
                bar.set_position(position.max(bar.position()));
                bar.set_message(activity.to_owned());
            }
            Shown::Lines(said) => {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                if !said.contains(activity) {
                    said.insert(activity.to_owned());
                    say(&format!("{:3.0} %  {activity}", fraction * 100.0));
                }
            }
        }
    }

    fn remark(&self, text: &str) {
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => bar.println(text),
            Shown::Lines(_) => say(text),
        }
    }

    fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// A line on standard error. That nobody reads it any more (`2>&1 | head`) is no reason to end a run.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Width of a table that goes to a file or a pipe, unless COLUMNS says otherwise.
const FILE_WIDTH: usize = 120;

/// Width and colour of the terminal that standard output is, if it is one.
pub fn table_options() -> TableOptions {
    if !std::io::stdout().is_terminal() {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        return TableOptions { width: Some(columns.unwrap_or(FILE_WIDTH)), colour: false };
    }
    TableOptions {
        width: terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)),
        colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}
