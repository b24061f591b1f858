//! `evenkeel fair`.

mod show;

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_apply::{Change, Header, StateDirectory, printed_command};
use evenkeel_fair::{
    BalanceMode, BatchingMode, FairError, ForeignChange, Observation, Observer, Preflight, QueueWeights,
    Refreshed, Request, SegmentMode, Session, Status, WeightsError, WeightsFile, XpsMode, check_unmanaged,
    give_up_privileges, leftovers, put_back_leftovers,
};

use crate::arguments::{
    BalanceChoice, BatchingChoice, FairOptions, QueueWeightsChoice, Segments, SessionFormat, XpsChoice,
};
use crate::exit::{Exit, Failure, print, print_page};
use crate::live::{self, guardian, interrupted, keep_going, restored, say, stop_if_interrupted, unsettled};
use crate::output;
use crate::progress::page;
use crate::revert::{stray, tell_leftover, tell_unfinished};
use crate::signals::Signals;

use crate::stream::Stream;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const WEIGHTS_STAY: &str = "the previous weights stay in force";

pub type End = live::End<ForeignChange>;

/// Returns the request of a command line. Refuses options that exclude each other.
pub fn request(options: &FairOptions) -> Result<Request, Failure> {
    let request = Request {
        observe: options.observe,
        filters: options.filters,
        flow_weights: options.weights.is_some(),
        balance: match options.balance {
            BalanceChoice::Off => BalanceMode::Off,
            BalanceChoice::Auto => BalanceMode::Auto,
            BalanceChoice::On => BalanceMode::On,
        },
        batching: match options.batching {
            BatchingChoice::Off => BatchingMode::Off,
            BatchingChoice::On => BatchingMode::On,
        },
        xps: match options.xps {
            XpsChoice::Auto => XpsMode::Auto,
            XpsChoice::Respect => XpsMode::Respect,
            XpsChoice::Off => XpsMode::Off,
            XpsChoice::Pools => XpsMode::Pools,
        },
        weights: match (options.queue_weights, options.rate) {
            (QueueWeightsChoice::Htb, Some(rate)) => QueueWeights::Htb(rate),
            (QueueWeightsChoice::MaxRate, rate) => QueueWeights::MaxRate(rate),
            (QueueWeightsChoice::Off | QueueWeightsChoice::Auto | QueueWeightsChoice::NetShaper, Some(_)) => {
                return Err(Failure::new(
                    Exit::Usage,
                    "--rate is for --queue-weights htb and max-rate; use one of the two, or leave out --rate",
                ));
            }
            (QueueWeightsChoice::Auto, None) => QueueWeights::Auto,
            (QueueWeightsChoice::NetShaper, None) => QueueWeights::NetShaper,
            // The command line refuses `htb` without a rate.
            (QueueWeightsChoice::Off | QueueWeightsChoice::Htb, None) => QueueWeights::Off,
        },
        segments: match options.segments {
            Segments::Off => SegmentMode::Off,
            Segments::Auto => SegmentMode::Auto,
            // The command line limits the size to 64 KiB, so it fits into 32 bits.
            Segments::Fixed(size) => SegmentMode::Fixed(u32::try_from(size.bytes()).unwrap_or(u32::MAX)),
        },
    };
    request.check().map_err(failure)?;
    Ok(request)
}

pub fn open_weights(path: &Path) -> Result<WeightsFile, Failure> {
    WeightsFile::open(path).map_err(|error| match error {
        WeightsError::Input(error) => error.into(),
        error @ WeightsError::Wrong(_) => Failure::with_causes(Exit::Usage, &error),
        error @ WeightsError::Cgroup { .. } => Failure::with_causes(Exit::Unable, &error),
    })
}

pub fn fair(options: &FairOptions) -> Result<Exit, Failure> {
    let request = request(options)?;
    let weights = options.weights.as_deref().map(open_weights).transpose()?;
    // Catch signals before attaching anything, so that no signal leaves a change behind.
    let signals = Signals::catch()?;
    let state = StateDirectory::from_environment();
    if options.plan {
        check_unmanaged(&options.interface, &state).map_err(failure)?;
    } else {
        output::detach();
    }
    stop_if_interrupted(&signals)?;
    // Roll back first, so that the preflight sees the administrator's settings.
    let dead = settle_leftovers(options, &state).map_err(failure)?;
    // An observation uses the current settings.
    let restored = if options.plan { &dead[..] } else { &[] };
    let mut preflight = Preflight::after(&options.interface, request, restored).map_err(failure)?;
    if options.plan {
        preflight.remarks.splice(..0, restored_first(&dead));
        let mut page = page();
        page.script(&preflight.plan().map_err(failure)?);
        print_page(page)?;
        return Ok(Exit::Done);
    }
    let mut stream = Stream::of(options.format);
    stream.remarks(&preflight.remarks);
    stop_if_interrupted(&signals)?;
    if options.observe {
        observe(&preflight, options, &state, stream, &signals)
    } else {
        manage(&preflight, options, &state, weights, stream, &signals)
    }
}

/// Rolls back killed runs. With `--plan` or `--observe`, reports the killed runs instead, and returns them
/// with the changes that would restore their settings. Returns an error if a killed run left a root qdisc
/// without a journal, unless the command only observes.
fn settle_leftovers(
    options: &FairOptions,
    state: &StateDirectory,
) -> Result<Vec<(Header, Vec<Change>)>, FairError> {
    let mut dead = Vec::new();
    if options.plan || options.observe {
        dead = leftovers(&options.interface, state)?;
        dead.iter().for_each(|(header, _)| tell_unfinished(header));
    } else {
        put_back_leftovers(&options.interface, state)?.iter().for_each(tell_leftover);
    }
    for stray in stray(Some(&options.interface))? {
        if !options.observe {
            return Err(stray.into());
        }
        say(&stray.to_string());
    }
    Ok(dead)
}

/// Returns remarks for a plan: the changes with which a run would first roll back killed runs.
fn restored_first(dead: &[(Header, Vec<Change>)]) -> Vec<String> {
    let mut remarks = Vec::new();
    for (header, changes) in dead {
        let name = &header.interface.name;
        remarks.extend(changes.iter().map(|change| format!("a run first restores: {}", change.shell(name))));
        remarks.push(format!(
            "this plan uses the values from before the killed run; `{}` restores these values, too",
            printed_command("evenkeel revert {}", &[name])
        ));
    }
    remarks
}

fn failure(error: FairError) -> Failure {
    if let FairError::Interrupted(devices) = &error {
        return interrupted(devices);
    }
    Failure::with_causes(error.cause().into(), &error)
}

fn observe(
    preflight: &Preflight,
    options: &FairOptions,
    state: &StateDirectory,
    mut stream: Stream,
    signals: &Signals,
) -> Result<Exit, Failure> {
    let (mut observer, leftovers) = Observer::start(preflight, state, &guardian).map_err(failure)?;
    leftovers.iter().for_each(tell_leftover);
    give_up_privileges().map_err(failure)?;
    stop_if_interrupted(signals)?;
    let changes = match observer.uses_filters() {
        true => {
            "evenkeel adds only a filter that counts, and a clsact qdisc if there is none, and removes them at the end"
        }
        false => "evenkeel changes nothing",
    };
    say(&format!("observing {}: {changes}; Ctrl-C ends it", options.interface));
    let tick = |observer: &mut Observer| {
        let ended = observer.tick();
        stream.remarks(&observer.take_remarks());
        stream.status(signals, |seconds| show::observing_json(&observer.observation(), seconds));
        ended
    };
    let end = keep_going(&mut observer, SAMPLE_INTERVAL, options.time, signals, tick, |observer| {
        show::observation(&observer.observation())
    })
    .map_err(failure)?;
    let seen: Observation = observer.observation();
    let detached = observer.finish().map_err(failure)?;
    for (name, report) in &detached {
        stream.remarks(&report.remarks(name));
    }
    let unsettled = detached.iter().find_map(|(name, report)| unsettled(name, report));
    match options.format {
        SessionFormat::Table => print(&show::observation(&seen))?,
        SessionFormat::Json => print(&format!("{:#}\n", show::observation_json(&seen, &end)))?,
        SessionFormat::Jsonl => stream.end(&show::observation_json(&seen, &end))?,
    }
    end.conclude(unsettled, "", "evenkeel observed until the change")
}

fn manage(
    preflight: &Preflight,
    options: &FairOptions,
    state: &StateDirectory,
    weights: Option<WeightsFile>,
    mut stream: Stream,
    signals: &Signals,
) -> Result<Exit, Failure> {
    let began = Instant::now();
    let started = Session::start(preflight, state, Box::new(guardian), &|| signals.came());
    let (mut session, leftovers) = started.map_err(failure)?;
    for leftover in &leftovers {
        tell_leftover(leftover);
    }
    give_up_privileges().and_then(|()| session.start_loops()).map_err(failure)?;
    let mut weights = weights;
    if let Some(weights) = &mut weights {
        stream.remarks(&weights.take_remarks());
        session.set_flow_weights(weights.rules()).map_err(failure)?;
    }
    // A signal during the start ends the session at once. The session counts as interrupted.
    let is_early = signals.came();
    if !is_early {
        session.status().iter().for_each(|status| say(&show::started(status)));
        say("managed now; Ctrl-C or SIGTERM restores everything");
        stream.started(&options.interface, &serde_json::json!(statuses(&session, weights.as_ref())));
    }
    let tick = |session: &mut Session| {
        if let Some(weights) = &mut weights {
            stream.remarks(&follow_weights(session, weights)?);
        }
        let ended = session.tick();
        stream.remarks(&session.take_remarks());
        stream.status(signals, |seconds| show::status_json(&statuses(session, weights.as_ref()), seconds));
        ended
    };
    let interval = session.interval();
    let end = keep_going(&mut session, interval, options.time, signals, tick, |session| {
        let status: Vec<Status> = session.status();
        show::status(&status)
    });
    // Restore the settings before any error ends this function.
    let ended = session.finish().map_err(failure)?;
    for device in &ended {
        stream.remarks(&device.report.remarks(&device.status.name));
    }
    let unsettled = ended.iter().find_map(|device| unsettled(&device.status.name, &device.report));
    let lost = ended.iter().find_map(|device| device.lost.clone());
    let end = match (end, &unsettled) {
        (Ok(End::Terminated), _) if is_early => End::Interrupted,
        (Ok(end @ End::ForeignChange(_)), _) => end,
        (Ok(end), _) => lost.map_or(end, End::ForeignChange),
        (Err(error), None) => return Err(failure(error)),
        // Report settings that were not restored, too.
        (Err(error), Some(unsettled)) => {
            unsettled.tell();
            return Err(failure(error));
        }
    };
    match options.format {
        SessionFormat::Table => print(&show::ended(&ended))?,
        SessionFormat::Json => {
            print(&format!("{:#}\n", show::ended_json(&options.interface, began.elapsed(), &ended, &end)))?;
        }
        SessionFormat::Jsonl => {
            stream.end(&show::ended_json(&options.interface, began.elapsed(), &ended, &end))?;
        }
    }
    end.conclude(unsettled, "", restored(ended.iter().map(|device| &device.report)))
}

/// Returns the status of the devices, with the error of a changed file of flow weights.
fn statuses(session: &Session, weights: Option<&WeightsFile>) -> Vec<Status> {
    let mut statuses = session.status();
    if let (Some(error), Some(first)) = (weights.and_then(WeightsFile::error), statuses.first_mut()) {
        let unmet = first.unmet.take().into_iter().chain([format!("{error}; {WEIGHTS_STAY}")]);
        first.unmet = Some(unmet.collect::<Vec<_>>().join("; "));
    }
    statuses
}

/// Reloads a changed file of flow weights, and sets the weights again if a cgroup has changed. Returns
/// remarks. While the file is invalid, the previous weights stay.
fn follow_weights(session: &Session, weights: &mut WeightsFile) -> Result<Vec<String>, FairError> {
    let mut remarks = Vec::new();
    match weights.refresh() {
        Ok(None) => {}
        Ok(Some(why)) => {
            session.set_flow_weights(weights.rules())?;
            remarks.push(match why {
                Refreshed::File => "flow weights: read again, as the file has changed".to_owned(),
                Refreshed::Cgroups => "flow weights: set again, as a cgroup has changed".to_owned(),
            });
        }
        Err(error) => remarks.push(format!("{error}; {WEIGHTS_STAY}")),
    }
    remarks.extend(weights.take_remarks());
    Ok(remarks)
}
