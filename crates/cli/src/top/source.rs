//! The samples of this host or of a recording.

use std::io;
use std::time::Duration;

use evenkeel_monitor::view::{History, Origin, Point};
use evenkeel_monitor::{Collector, MonitorError, Options, Recorder, Recording, RecordingError, Sample};

use crate::arguments::TopOptions;
use crate::exit::{Exit, Failure, say};

/// Maximum number of flows in a sample. A recorded flow takes about 350 bytes.
const MOST_FLOWS: usize = 100;

pub enum Source {
    Live(Box<Live>),
    Replay { recording: Recording, file: String, index: usize },
}

pub struct Live {
    collector: Collector,
    recorder: Option<Recorder>,
    history: History,
    interval: Duration,
    /// The last sample, while the screen shows a previous sample (frozen).
    newest: Option<Sample>,
    /// Number of samples after the shown one.
    newer: usize,
}

impl Source {
    pub fn open(options: &TopOptions) -> Result<Self, Failure> {
        if let Some(path) = &options.replay {
            let recording = Recording::read(path, &options.interfaces).map_err(unreadable)?;
            for remark in recording.remarks() {
                say(&format!("evenkeel: {remark}"));
            }
            return Ok(Self::Replay { recording, file: evenkeel_files::shown(path), index: 0 });
        }
        let request = Options {
            interfaces: options.interfaces.clone(),
            listed_flows: MOST_FLOWS,
            ..Options::default()
        };
        let collector = Collector::open(&request).map_err(failure)?;
        let recorder = options.record.as_deref().map(Recorder::create).transpose();
        let recorder = recorder.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::new(
                Exit::Usage,
                format!("cannot record to {}: the file exists; name a new file", named(options)),
            ),
            _ => unwritable(&named(options), &error, Exit::Usage),
        })?;
        let interval = options.interval;
        let history = History::default();
        Ok(Self::Live(Box::new(Live { collector, recorder, history, interval, newest: None, newer: 0 })))
    }

    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    pub fn first(&mut self) -> Result<Sample, Failure> {
        match self {
            Self::Live(live) => live.sample(),
            Self::Replay { recording, .. } => Ok(recording.sample(0)),
        }
    }

    /// Puts the next sample into `shown`, unless `shown` is frozen. Returns whether `shown` changed.
    /// Freezing stops the replay of a recording, but not the sampling of this host.
    pub fn advance(&mut self, is_frozen: bool, shown: &mut Sample) -> Result<bool, Failure> {
        match self {
            Self::Live(live) => {
                let sample = live.sample()?;
                if is_frozen {
                    live.newest = Some(sample);
                    live.newer += 1;
                } else {
                    (live.newest, live.newer) = (None, 0);
                    *shown = sample;
                }
                Ok(!is_frozen)
            }
            Self::Replay { .. } => Ok(!is_frozen && self.step(1, shown)),
        }
    }

    /// Shows the sample of a recording that is `steps` after the current sample. Returns whether there is
    /// such a sample; always false for this host.
    pub fn step(&mut self, steps: i8, shown: &mut Sample) -> bool {
        let Self::Replay { recording, index, .. } = self else { return false };
        let wanted = index.checked_add_signed(steps.into()).filter(|wanted| *wanted < recording.count());
        let Some(wanted) = wanted else { return false };
        *index = wanted;
        *shown = recording.sample(wanted);
        true
    }

    /// Shows the newest sample after a freeze.
    pub fn catch_up(&mut self, shown: &mut Sample) {
        if let Self::Live(live) = self
            && let Some(newest) = live.newest.take()
        {
            live.newer = 0;
            *shown = newest;
        }
    }

    pub fn origin(&self) -> Origin {
        match self {
            Self::Live(live) => Origin::Live {
                interval: live.interval,
                recording: live.recorder.as_ref().map(|recorder| recorder.name().to_owned()),
            },
            Self::Replay { recording, file, index } => {
                Origin::Replay { file: file.clone(), index: *index, count: recording.count() }
            }
        }
    }

    /// Returns the figures up to the shown sample, which may be frozen.
    pub fn points(&self) -> &[Point] {
        match self {
            Self::Live(live) => live.history.points(live.newer),
            Self::Replay { recording, index, .. } => recording.points(*index),
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        let Self::Live(live) = self else { return Ok(()) };
        let Some(recorder) = live.recorder else { return Ok(()) };
        let name = recorder.name().to_owned();
        recorder.finish().map_err(|error| unwritable(&name, &error, Exit::Failed))
    }
}

impl Live {
    fn sample(&mut self) -> Result<Sample, Failure> {
        let failed = |error: MonitorError| Failure::with_causes(Exit::Failed, &error);
        let sample = self.collector.sample().map_err(failed)?;
        if let Some(recorder) = &mut self.recorder {
            let written = recorder.write(&sample);
            written.map_err(|error| {
                let next = match recorder.is_empty() {
                    true => "no sample was recorded, and no file is left",
                    false => "the file has the earlier samples",
                };
                unwritable(recorder.name(), &error, Exit::Failed).and(next)
            })?;
        }
        self.history.push(&sample);
        Ok(sample)
    }
}

fn named(options: &TopOptions) -> String {
    options.record.as_deref().map(evenkeel_files::shown).unwrap_or_default()
}

fn unwritable(name: &str, error: &io::Error, exit: Exit) -> Failure {
    Failure::new(exit, format!("cannot record to {name}: {error}"))
}

fn unreadable(error: RecordingError) -> Failure {
    match error {
        RecordingError::Input(error) => error.into(),
        error => Failure::new(Exit::Usage, error),
    }
}

fn failure(error: MonitorError) -> Failure {
    match &error {
        MonitorError::NoInterface { .. } => Failure::with_causes(Exit::Usage, &error),
        MonitorError::Host(error) => crate::check::failure(error),
        MonitorError::Thread { .. } => Failure::with_causes(Exit::Unable, &error),
    }
}
