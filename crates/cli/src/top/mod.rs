//! `evenkeel top`.

mod keys;
mod source;
mod terminal;

use std::io;
use std::time::{Duration, Instant};

use evenkeel_monitor::Sample;
use evenkeel_monitor::view::{Palette, Request, Scene, ViewState, draw, plain};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use crate::arguments::{TopFormat, TopOptions};
use crate::exit::{Exit, Failure, say, written};
use crate::live::End;
use crate::output;
use crate::signals::Signals;
use source::{Advance, Source};
use terminal::{Event, Terminal};

/// Maximum wait for a key. A signal that arrives just before the wait takes effect after it.
const NAP: Duration = Duration::from_millis(250);
/// Size for a terminal that reports no size.
const USUAL_AREA: Rect = Rect::new(0, 0, 80, 24);
/// Maximum size that is drawn: a terminal may report any size.
const MOST_COLUMNS: u16 = 1000;
const MOST_ROWS: u16 = 500;

pub fn top(options: &TopOptions) -> Result<Exit, Failure> {
    let source = Source::open(options)?;
    // From here on, signals end the command in order, so that the command restores the terminal.
    let signals = Signals::catch()?;
    let uses_screen = options.format == TopFormat::Table && !options.plain;
    let terminal = if uses_screen { Terminal::open()? } else { None };
    let mut session =
        Session { source, options, signals, began: Instant::now(), state: ViewState::default() };
    if let [first, ..] = options.interfaces.as_slice() {
        session.state.interface = Some(first.clone());
    }
    let end = match terminal {
        Some(mut terminal) => {
            let end = session.show(&mut terminal);
            // Restore the terminal before any message.
            drop(terminal);
            end
        }
        None => session.print(),
    };
    let finished = session.source.finish();
    let end = end?;
    finished?;
    Ok(match end {
        End::Time | End::Terminated => Exit::Done,
        End::Interrupted | End::ForeignChange(_) => Exit::Interrupted,
    })
}

struct Session<'o> {
    source: Source,
    options: &'o TopOptions,
    signals: Signals,
    began: Instant,
    state: ViewState,
}

impl Session<'_> {
    fn due(&self) -> Option<End> {
        End::due(&self.signals, self.began, self.options.time)
    }

    /// Shows samples on the screen until the viewer quits, the time is over or a signal arrives.
    fn show(&mut self, terminal: &mut Terminal) -> Result<End, Failure> {
        let palette = Palette { colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
        let mut next = Instant::now() + self.options.interval;
        let mut shown = self.source.first()?;
        self.draw(&shown, palette, terminal)?;
        loop {
            if let Some(end) = self.due() {
                return Ok(end);
            }
            let mut is_changed = false;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Skip samples whose time has passed.
                next = (next + self.options.interval).max(Instant::now());
                is_changed |= self.source.advance(self.state.frozen, &mut shown)? != Advance::Same;
            }
            let was_frozen = self.state.frozen;
            for event in terminal.wait(left.min(NAP))? {
                let request = match event {
                    Event::Key(key) => self.state.press(key, &shown),
                    Event::Redraw => Request::Draw,
                    Event::Closed => return Ok(End::Interrupted),
                };
                match request {
                    Request::Quit => return Ok(End::Time),
                    Request::Step(steps) => {
                        if self.source.step(steps, &mut shown) {
                            self.state.frozen = true;
                            is_changed = true;
                        }
                    }
                    Request::Draw => is_changed = true,
                    Request::Nothing => {}
                }
            }
            if was_frozen && !self.state.frozen {
                self.source.catch_up(&mut shown);
            }
            if is_changed {
                self.draw(&shown, palette, terminal)?;
            }
        }
    }

    fn draw(&mut self, sample: &Sample, palette: Palette, terminal: &mut Terminal) -> Result<(), Failure> {
        let area = match terminal.area() {
            Rect { width: 0, .. } | Rect { height: 0, .. } => USUAL_AREA,
            area => Rect { width: area.width.min(MOST_COLUMNS), height: area.height.min(MOST_ROWS), ..area },
        };
        let mut buffer = Buffer::empty(area);
        let origin = self.source.origin();
        let scene = Scene { sample, points: self.source.points(), origin: &origin };
        let extents = draw(&scene, &self.state, palette, &mut buffer);
        self.state.adopt(extents);
        terminal.show(buffer)
    }

    /// Prints samples as lines. Prints the samples of a recording at once, and the samples of this host
    /// as they are taken.
    fn print(&mut self) -> Result<End, Failure> {
        let interval = self.options.interval;
        if let Some(time) = self.options.time.filter(|time| self.lacks_rates_in(*time)) {
            let message = format!(
                "--for {time:?} ends before the first interval (--interval {interval:?}), so no rate would be known; use \
                 --for {interval:?} or more, or a shorter --interval"
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        let mut sample = self.source.first()?;
        // Count the time from the first sample, so that the last sample is at the end of the time.
        self.began = Instant::now();
        let mut next = self.began + self.options.interval;
        let mut is_new = true;
        loop {
            if is_new && !self.print_sample(&sample)? {
                return Ok(End::Time);
            }
            loop {
                let left = match self.source.is_live() {
                    true => next.saturating_duration_since(Instant::now()),
                    false => Duration::ZERO,
                };
                if left.is_zero() {
                    break;
                }
                if let Some(end) = self.due() {
                    return Ok(end);
                }
                let until_end = self.options.time.map(|time| time.saturating_sub(self.began.elapsed()));
                std::thread::sleep(left.min(crate::live::NAP).min(until_end.unwrap_or(Duration::MAX)));
            }
            if self.signals.came() {
                return Ok(self.due().unwrap_or(End::Interrupted));
            }
            next = (next + self.options.interval).max(Instant::now());
            is_new = match self.source.advance(false, &mut sample)? {
                Advance::Next => true,
                Advance::Same => return Ok(End::Time),
                Advance::Missed(why) => {
                    say(&format!("evenkeel: {why}"));
                    false
                }
            };
        }
    }

    /// Returns whether no block of lines would be printed in this time.
    fn lacks_rates_in(&self, time: Duration) -> bool {
        let prints_lines = self.options.format == TopFormat::Table;
        prints_lines && self.source.is_live() && time < self.options.interval
    }

    /// Prints a sample. Returns whether the output still has a reader.
    fn print_sample(&mut self, sample: &Sample) -> Result<bool, Failure> {
        if self.options.format == TopFormat::Json {
            let line = serde_json::to_string(sample)
                .map_err(|error| Failure::new(Exit::Failed, format!("cannot write a sample: {error}")))?;
            return put(&(line + "\n"));
        }
        // The first sample of this host has no rates.
        if self.source.is_live() && sample.seconds <= 0.0 {
            return Ok(true);
        }
        let origin = self.source.origin();
        let points = self.source.points();
        put(&(plain(sample, points, &origin) + "\n"))
    }
}

/// Writes lines to standard output. Returns whether standard output still has a reader.
fn put(text: &str) -> Result<bool, Failure> {
    let text = evenkeel_model::text::terminal_output(text, false);
    match output::result(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => written(result).map(|()| true),
    }
}
