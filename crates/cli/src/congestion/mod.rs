//! `evenkeel congestion`.

mod show;

use std::time::{Duration, Instant};

use evenkeel_apply::{StateDirectory, printed_command};
use evenkeel_congestion::{
    CongestionError, Controls, Request, Session, Settings, is_default, lingers, loaded, unload,
};
use evenkeel_model::text::path_text;

use crate::arguments::{CongestionCommand, Format, LoadOptions, UnloadOptions};
use crate::exit::{Exit, Failure, print};
use crate::live::{End, guardian, interrupted, keep_going, restored, say, stop_if_interrupted, unsettled};
use crate::output;
use crate::revert::tell_leftover;
use crate::signals::Signals;

const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The interface whose journal holds the default congestion control of the network namespace.
const LOOPBACK: &str = "lo";

pub fn congestion(command: &CongestionCommand) -> Result<Exit, Failure> {
    match command {
        CongestionCommand::List { format } => list(*format),
        CongestionCommand::Load(options) => load(options),
        CongestionCommand::Unload(options) => end_pinned(options),
    }
}

fn failure(error: CongestionError) -> Failure {
    Failure::with_causes(error.cause().into(), &error)
}

fn list(format: Format) -> Result<Exit, Failure> {
    let controls = Controls::read().map_err(failure)?;
    let loaded = loaded().map_err(failure)?;
    match format {
        Format::Table => print(&show::list(&controls, loaded.as_deref()))?,
        Format::Json => print(&format!("{:#}\n", show::list_json(&controls, loaded.as_deref())))?,
    }
    Ok(Exit::Done)
}

fn end_pinned(options: &UnloadOptions) -> Result<Exit, Failure> {
    unload(&options.name).map_err(failure)?;
    if is_default(&options.name).map_err(failure)? {
        return Err(still_default(&options.name));
    }
    print(&format!("{} is unloaded; flows that use it keep it until they end\n", options.name))?;
    tell_lingering(&options.name)?;
    Ok(Exit::Done)
}

/// Creates the error for a congestion control that was unloaded while another program had made it the
/// default.
fn still_default(name: &str) -> Failure {
    Failure::new(
        Exit::Failed,
        format!(
            "{name} is unloaded, but new connections of this network namespace still use it: another program \
             made it the default; set another default: `sysctl -w net.ipv4.tcp_congestion_control=reno`"
        ),
    )
}

/// Reports a congestion control that stays in the kernel without flows.
fn tell_lingering(name: &str) -> Result<(), Failure> {
    if lingers(name).map_err(failure)? {
        say(&format!(
            "{name} stays in the kernel without flows: another network namespace may have it as default, or a \
             listening socket has chosen it, and new connections there still use it; `sysctl \
             net.ipv4.tcp_congestion_control` in each network namespace shows the default"
        ));
    }
    Ok(())
}

pub fn settings(options: &LoadOptions) -> Settings {
    Settings {
        target_us: options.target,
        balance_us: options.balance,
        slow_start_us: options.slow_start,
        hold_us: options.hold,
        window_us: options.window,
        window_samples: options.samples,
        curve: options.curve,
        base_decreases: options.base_decreases,
        gamma: options.gamma,
        beta: options.beta,
        cubic: options.cubic,
        loss_reaction: !options.no_loss_reaction,
    }
}

fn load(options: &LoadOptions) -> Result<Exit, Failure> {
    let request = Request {
        name: options.name.clone(),
        settings: settings(options),
        default: options.default,
        pin: options.pin,
    };
    // Catch signals before a change, so that no signal leaves a change behind.
    let signals = Signals::catch()?;
    output::detach();
    stop_if_interrupted(&signals)?;
    let (mut session, leftover) =
        Session::start(&request, &StateDirectory::from_environment(), guardian()).map_err(failure)?;
    leftover.iter().for_each(tell_leftover);
    if options.pin {
        let file = session.pin().map_err(failure)?;
        session.finish().map_err(failure)?;
        match options.format {
            Format::Table => print(&format!(
                "{} is loaded and pinned as {}; `{}` unloads it\n",
                options.name,
                path_text(&file),
                printed_command("evenkeel congestion unload {}", &[&options.name])
            ))?,
            Format::Json => {
                print(&format!("{:#}\n", show::pinned_json(&options.name, &request.settings, &file)))?;
            }
        }
        return Ok(Exit::Done);
    }
    if signals.came() {
        let ended = session.finish().map_err(failure)?;
        let devices: Vec<_> = ended.report.into_iter().map(|report| (LOOPBACK.to_owned(), report)).collect();
        return Err(interrupted(&devices));
    }
    manage(session, options, &signals)
}

fn manage(mut session: Session, options: &LoadOptions, signals: &Signals) -> Result<Exit, Failure> {
    let began = Instant::now();
    say(&show::started(&options.name, &session.settings(), options.default));
    say("loaded now; Ctrl-C or SIGTERM unloads it");
    let end = watch(&mut session, options, signals);
    let settings = session.settings();
    // Restore the default before any error ends this function.
    let ended = session.finish().map_err(failure)?;
    let report = ended.report.as_ref();
    report.iter().flat_map(|report| report.remarks(LOOPBACK)).for_each(|remark| say(&remark));
    let unsettled = report
        .and_then(|report| unsettled(LOOPBACK, report))
        .or_else(|| ended.is_default.then(|| still_default(&options.name)));
    let end = match (end, &unsettled) {
        (Ok(end), _) => end,
        (Err(error), unsettled) => {
            // Report a default that was not restored, too.
            if let Some(unsettled) = unsettled {
                unsettled.tell();
            }
            return Err(failure(error));
        }
    };
    match options.format {
        Format::Table => print(&show::ended(&options.name, &ended))?,
        Format::Json => {
            let json = show::ended_json(&options.name, &settings, &ended, &end, began.elapsed());
            print(&format!("{json:#}\n"))?;
        }
    }
    if !ended.is_default {
        tell_lingering(&options.name)?;
    }
    end.conclude(unsettled, "", restored(report))
}

fn watch(session: &mut Session, options: &LoadOptions, signals: &Signals) -> Result<End, CongestionError> {
    let tick = |session: &mut Session| {
        let change = session.check()?;
        session.take_remarks().iter().for_each(|remark| say(remark));
        Ok(change)
    };
    keep_going(session, CHECK_INTERVAL, options.time, signals, tick, |session| {
        show::status(&options.name, &session.counters(), &session.flows().unwrap_or_default())
    })
}
