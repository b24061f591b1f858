//! `evenkeel metrics`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_files::{check_regular, replace};
use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_model::text::path_text;
use evenkeel_monitor::{
    CheckCounts, Collector, Exported, Form, MonitorError, Options, Sample, ScrapeServer, ServeError,
    exposition,
};
use nix::sys::resource::{UsageWho, getrusage};

use crate::arguments::MetricsOptions;
use crate::check::judge_beside;
use crate::exit::{Exit, Failure, print};
use crate::live::{NAP, say};
use crate::managed;
use crate::output;
use crate::signals::Signals;

/// Minimum time between two reports of `check`, which read the files of every process. This time is also the
/// maximum age of a report at a scrape.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Time between the two samples of a single exposition. It exceeds the window of fairness.
const SAMPLE_TIME: Duration = Duration::from_millis(1400);
/// Scrapes within this time get the same sample. Otherwise the interval between samples would be too
/// short for a rate.
const FRESH: Duration = Duration::from_millis(500);
/// Mode of the file: node_exporter runs as another user, and must be able to read the file.
const MODE: u32 = 0o644;

pub fn metrics(options: &MetricsOptions) -> Result<Exit, Failure> {
    match (&options.listen, &options.textfile) {
        (Some(_), _) => serve(options),
        (None, Some(path)) => write_textfile(options, path),
        (None, None) => {
            let mut exporter = Exporter::open(options)?;
            std::thread::sleep(SAMPLE_TIME);
            print(&exporter.text(Form::OpenMetrics)?)?;
            exporter.tell_unread();
            Ok(Exit::Done)
        }
    }
}

/// The collector, with the last sample and the last report of `check`.
struct Exporter {
    collector: Collector,
    last: Exported,
    sampled: Option<Instant>,
    checked: Instant,
    /// Whether a scrape has read the last report of `check` while the report was recent.
    is_scraped: bool,
    /// The messages about unreadable files that were already printed.
    told: Vec<String>,
    /// Whether a further sample follows. Then a sample that cannot be taken is no error, if the next one may
    /// succeed: the last sample is exported again, and its counters grow later.
    is_repeated: bool,
}

impl Exporter {
    fn open(options: &MetricsOptions) -> Result<Self, Failure> {
        let collected =
            Options { interfaces: options.interfaces.clone(), listed_flows: 0, observe: !options.no_flows };
        let mut collector = Collector::open(&collected).map_err(|error| failure(&error))?;
        let sample = collector.sample().map_err(|error| failure(&error))?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let last = Exported { sample, check: check(), version, ..Exported::default() };
        let checked = Instant::now();
        let is_repeated = options.listen.is_some() || (options.textfile.is_some() && !options.once);
        Ok(Self { collector, last, sampled: None, checked, is_scraped: false, told: Vec::new(), is_repeated })
    }

    fn text(&mut self, form: Form) -> Result<String, Failure> {
        if self.sampled.is_none_or(|sampled| sampled.elapsed() >= FRESH) {
            let taken = self.collector.sample();
            self.take(taken)?;
            self.sampled = Some(Instant::now());
        }
        // If scrapes are more than a minute apart, the last report is old.
        let is_old = self.checked.elapsed() >= CHECK_INTERVAL;
        if is_old {
            self.check();
        }
        self.is_scraped = !is_old;
        self.last.cpu_seconds = cpu_seconds();
        Ok(exposition(&self.last, form))
    }

    fn take(&mut self, taken: Result<Sample, MonitorError>) -> Result<(), Failure> {
        match taken {
            Ok(sample) => self.last.sample = sample,
            Err(error) if self.is_repeated && error.may_pass() => {
                let why = format!("the last sample is exported again: {error}");
                if !self.last.sample.not_read.contains(&why) {
                    self.last.sample.not_read.push(why);
                }
            }
            Err(error) => return Err(Failure::with_causes(Exit::Failed, &error)),
        }
        Ok(())
    }

    /// Makes a new report of `check` if the interval has passed and a scrape has read the last report while
    /// it was recent.
    fn check_if_due(&mut self) {
        if self.is_scraped && self.checked.elapsed() >= CHECK_INTERVAL {
            self.check();
            self.is_scraped = false;
        }
    }

    fn check(&mut self) {
        self.last.check = check();
        self.checked = Instant::now();
    }

    /// Prints each message about an unreadable file once.
    fn tell_unread(&mut self) {
        for why in &self.last.sample.not_read {
            if !self.told.contains(why) {
                say(why);
                self.told.push(why.clone());
            }
        }
    }
}

/// Returns the report of `check`; `None` if the host cannot be read.
fn check() -> Option<CheckCounts> {
    let facts = read_facts(&Tree::live()).ok()?;
    let settings = managed::settings(&managed::sessions(&facts));
    let judgement = judge_beside(&facts, &settings);
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    for finding in &judgement.findings {
        *counts.entry((finding.rule.to_owned(), finding.severity.to_string())).or_insert(0) += 1;
    }
    Some(CheckCounts {
        findings: counts.into_iter().map(|((rule, severity), count)| (rule, severity, count)).collect(),
        not_judged: judgement.not_judged.len() as u64,
    })
}

fn cpu_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

fn serve(options: &MetricsOptions) -> Result<Exit, Failure> {
    let Some(endpoint) = &options.listen else { return Ok(Exit::Done) };
    let signals = Signals::catch()?;
    // A full pipe at standard error must not delay a scrape.
    output::detach();
    let server = ScrapeServer::bind(endpoint).map_err(refused)?;
    let mut exporter = Exporter::open(options)?;
    say(&format!("serving {}; Ctrl-C or SIGTERM ends it", server.endpoint()));
    let exporter = std::cell::RefCell::new(&mut exporter);
    server
        .serve::<Ended>(
            || signals.came(),
            |form| {
                let mut exporter = exporter.borrow_mut();
                let text = exporter.text(form).map_err(Ended)?;
                exporter.tell_unread();
                Ok(text)
            },
            || {
                exporter.borrow_mut().check_if_due();
                Ok(())
            },
        )
        .map_err(|Ended(failure)| failure)?;
    Ok(ended_by(&signals))
}

/// The error that ends the server.
struct Ended(Failure);

impl From<ServeError> for Ended {
    fn from(error: ServeError) -> Self {
        Self(refused(error))
    }
}

fn ended_by(signals: &Signals) -> Exit {
    if signals.interrupted() { Exit::Interrupted } else { Exit::Done }
}

fn write_textfile(options: &MetricsOptions, path: &Path) -> Result<Exit, Failure> {
    check_regular(path)?;
    let signals = Signals::catch()?;
    output::detach();
    let mut exporter = Exporter::open(options)?;
    wait_quietly(SAMPLE_TIME, &signals);
    let mut has_written = false;
    let ended = rewrite(&mut exporter, options, path, &signals, &mut has_written);
    if options.once || !has_written {
        return ended;
    }
    // Remove the file, because node_exporter would continue to serve the last counts.
    let left = match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Some(format!(
            "cannot remove {}: {error}; node_exporter still serves this file, so remove it",
            path_text(path)
        )),
        _ => None,
    };
    match (ended, left) {
        (Err(failed), Some(left)) => Err(failed.and(&left)),
        (Ok(_), Some(left)) => Err(Failure::new(Exit::Failed, left)),
        (ended, None) => ended,
    }
}

/// Replaces the file at each interval until a signal or an error; once with `--once`.
fn rewrite(
    exporter: &mut Exporter,
    options: &MetricsOptions,
    path: &Path,
    signals: &Signals,
    has_written: &mut bool,
) -> Result<Exit, Failure> {
    let mut next = Instant::now();
    while !signals.came() {
        let text = exporter.text(Form::Prometheus)?;
        let written = check_regular(path).and_then(|()| replace(path, text.as_bytes(), MODE));
        let written = written.map_err(Failure::from);
        // After one successful write, an error is no usage error: the path was valid.
        written.map_err(
            |failed| if *has_written { Failure::new(Exit::Failed, failed.message()) } else { failed },
        )?;
        *has_written = true;
        exporter.tell_unread();
        if options.once {
            return Ok(Exit::Done);
        }
        next = (next + options.interval).max(Instant::now());
        wait_quietly(next.saturating_duration_since(Instant::now()), signals);
        exporter.check_if_due();
    }
    Ok(ended_by(signals))
}

fn failure(error: &MonitorError) -> Failure {
    let exit = match error {
        MonitorError::NoInterface { .. } => Exit::Usage,
        MonitorError::Host(_) | MonitorError::Thread { .. } => Exit::Unable,
    };
    Failure::with_causes(exit, error)
}

fn refused(error: ServeError) -> Failure {
    let exit = match &error {
        ServeError::NoSocket(_) => Exit::Usage,
        ServeError::InUse(_) | ServeError::NoAddress(_) | ServeError::Bind { .. } => Exit::Unable,
        ServeError::Accept { .. } => Exit::Failed,
    };
    Failure::with_causes(exit, &error)
}

fn wait_quietly(time: Duration, signals: &Signals) {
    let began = Instant::now();
    while !signals.came() && began.elapsed() < time {
        std::thread::sleep(NAP.min(time.saturating_sub(began.elapsed())));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_host::HostError;
    use evenkeel_netlink::NetlinkError;

    use super::*;

    #[test]
    fn a_scrape_gets_no_old_report_of_check() {
        let options = MetricsOptions {
            interfaces: vec!["lo".to_owned()],
            listen: None,
            textfile: None,
            interval: CHECK_INTERVAL,
            once: false,
            no_flows: true,
        };
        let mut exporter = Exporter::open(&options).unwrap();
        let mut is_judged_anew = |age: Duration| {
            exporter.last.check = None;
            exporter.checked = Instant::now().checked_sub(age).unwrap();
            exporter.text(Form::OpenMetrics).unwrap();
            exporter.last.check.is_some()
        };
        assert!(is_judged_anew(CHECK_INTERVAL));
        assert!(!is_judged_anew(Duration::ZERO));
    }

    #[test]
    fn a_server_exports_the_last_sample_when_the_next_cannot_be_taken() {
        let mut options = MetricsOptions {
            interfaces: vec!["lo".to_owned()],
            listen: None,
            textfile: Some("m.prom".into()),
            interval: CHECK_INTERVAL,
            once: false,
            no_flows: true,
        };
        let unsteady = || {
            let action = "list the qdiscs".to_owned();
            Err(MonitorError::Host(HostError::Netlink(NetlinkError::Unsteady { action })))
        };
        let mut exporter = Exporter::open(&options).unwrap();
        exporter.take(unsteady()).unwrap();
        exporter.take(unsteady()).unwrap();
        let sample = &exporter.last.sample;
        assert_eq!(sample.interfaces.len(), 1);
        let told = sample.not_read.iter().filter(|why| why.starts_with("the last sample is exported again"));
        assert_eq!(told.count(), 1);
        assert!(exporter.take(Err(MonitorError::Host(HostError::NotMounted { mount: "/proc" }))).is_err());
        // A single exposition has no later sample.
        options.once = true;
        assert!(Exporter::open(&options).unwrap().take(unsteady()).is_err());
    }
}
