//! The samples of this host or of a recording.

use std::io;
use std::time::Duration;

use evenkeel_model::text::counted;
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
    /// Number of samples that could not be taken since the last sample.
    missed: usize,
}

/// The effect of [`Source::advance`].
#[derive(Debug, PartialEq, Eq)]
pub enum Advance {
    /// The next sample is shown.
    Next,
    /// The shown sample has not changed: it is frozen, or the last of a recording.
    Same,
    /// The sample could not be taken, for this reason; the next one may succeed.
    Missed(String),
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
        Ok(Self::Live(Box::new(Live {
            collector,
            recorder,
            history: History::default(),
            interval,
            newest: None,
            newer: 0,
            missed: 0,
        })))
    }

    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    pub fn first(&mut self) -> Result<Sample, Failure> {
        match self {
            Self::Live(live) => {
                let sample = live.collector.sample().map_err(|error| failed(&error))?;
                live.keep(sample)
            }
            Self::Replay { recording, .. } => Ok(recording.sample(0)),
        }
    }

    /// Puts the next sample into `shown`, unless `shown` is frozen. If the sample cannot be taken, adds the
    /// reason to `shown`. Freezing stops the replay of a recording, but not the sampling of this host.
    pub fn advance(&mut self, is_frozen: bool, shown: &mut Sample) -> Result<Advance, Failure> {
        match self {
            Self::Live(live) => {
                let taken = live.collector.sample();
                live.advance(taken, is_frozen, shown)
            }
            Self::Replay { .. } => {
                Ok(if !is_frozen && self.step(1, shown) { Advance::Next } else { Advance::Same })
            }
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
    fn advance(
        &mut self,
        taken: Result<Sample, MonitorError>,
        is_frozen: bool,
        shown: &mut Sample,
    ) -> Result<Advance, Failure> {
        let sample = match taken {
            Err(error) if error.may_pass() => {
                self.missed += 1;
                let why = format!("the next sample is missing: {error}");
                if !is_frozen && !shown.not_read.contains(&why) {
                    shown.not_read.insert(0, why.clone());
                }
                return Ok(Advance::Missed(why));
            }
            taken => self.keep(taken.map_err(|error| failed(&error))?)?,
        };
        if is_frozen {
            self.newest = Some(sample);
            self.newer += 1;
            return Ok(Advance::Same);
        }
        (self.newest, self.newer) = (None, 0);
        *shown = sample;
        Ok(Advance::Next)
    }

    /// Records a sample, and adds it to the history. A sample after missing ones has a longer interval, and
    /// says why.
    fn keep(&mut self, mut sample: Sample) -> Result<Sample, Failure> {
        if self.missed > 0 {
            let missed = counted(self.missed, "sample");
            let verb = if self.missed == 1 { "is" } else { "are" };
            sample.not_read.push(format!(
                "{missed} before this one {verb} missing: interfaces or qdiscs changed during each reading of \
                 their list"
            ));
            self.missed = 0;
        }
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

fn failed(error: &MonitorError) -> Failure {
    Failure::with_causes(Exit::Failed, error)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use evenkeel_host::HostError;
    use evenkeel_netlink::NetlinkError;

    use super::*;

    fn live() -> Live {
        let options = Options { interfaces: vec!["lo".to_owned()], observe: false, ..Options::default() };
        Live {
            collector: Collector::open(&options).unwrap(),
            recorder: None,
            history: History::default(),
            interval: Duration::from_secs(1),
            newest: None,
            newer: 0,
            missed: 0,
        }
    }

    #[test]
    fn a_sample_that_cannot_be_taken_is_named_and_the_next_one_is_shown() {
        let unsteady = || {
            let action = "list the qdiscs".to_owned();
            Err(MonitorError::Host(HostError::Netlink(NetlinkError::Unsteady { action })))
        };
        let sample = |seconds| Sample { seconds, ..Sample::default() };
        let (mut live, mut shown) = (live(), sample(1.0));
        for _ in 0..2 {
            let Advance::Missed(why) = live.advance(unsteady(), false, &mut shown).unwrap() else {
                panic!("the sample is not missing");
            };
            assert!(why.starts_with("the next sample is missing: netlink: cannot list the qdiscs"), "{why}");
            assert_eq!((shown.seconds, &shown.not_read), (1.0, &vec![why]));
        }
        assert_eq!(live.advance(Ok(sample(3.0)), false, &mut shown).unwrap(), Advance::Next);
        assert_eq!(shown.seconds, 3.0);
        assert_eq!(shown.not_read.len(), 1);
        assert!(
            shown.not_read[0].starts_with("2 samples before this one are missing"),
            "{:?}",
            shown.not_read
        );
        assert_eq!(live.advance(Ok(sample(1.0)), false, &mut shown).unwrap(), Advance::Next);
        assert!(shown.not_read.is_empty());
        // Another error ends the command.
        let unmounted = Err(MonitorError::Host(HostError::NotMounted { mount: "/proc" }));
        assert!(live.advance(unmounted, false, &mut shown).is_err());
    }
}
