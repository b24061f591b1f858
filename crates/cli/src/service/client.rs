//! Commands that send requests to the running service.

use std::time::{Duration, Instant};

use evenkeel_host::{SERVICE_NAME, SocketName};
use evenkeel_model::text::{list, path_text};
use evenkeel_service::{
    Command, ControlError, InterfaceStatus, Kind, Phase, Request, ServiceStatus, ask, client_command,
};
use serde_json::Value;

use super::{failure, show};
use crate::arguments::{Format, ServicePlace, StatusOptions};
use crate::exit::{Exit, Failure, print, print_page};
use crate::live::say;

/// Maximum time for a worker to restore its settings, or to begin.
const PATIENCE: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_millis(50);

/// Sends a request. Returns the answer, or the error that the service reports.
fn send(place: &ServicePlace, command: Command, interface: Option<&str>) -> Result<Value, Failure> {
    let request = Request { command, interface: interface.map(str::to_owned) };
    let answer = ask(&place.socket, &request).map_err(|error| {
        let failed = match running(&error) {
            Some(process) => Failure::new(
                Exit::Unable,
                format!(
                    "no service answers at {}, but process {process} is a service in this network namespace: name its \
                     socket (--socket), or restart it",
                    path_text(&place.socket)
                ),
            ),
            None => failure(&error),
        };
        let is_undecided = command != Command::Status && matches!(error, ControlError::Silent { .. });
        if is_undecided { failed.and("the service may still carry out the request") } else { failed }
    })?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) if command != Command::Status => Err(Failure::new(Exit::Usage, error)),
        _ => Ok(answer),
    }
}

/// Returns the process of a running service that has no socket at the requested path, if there is one.
fn running(error: &ControlError) -> Option<u32> {
    let is_missing = matches!(error, ControlError::NoService { .. });
    let holder =
        SocketName::holder(SERVICE_NAME).ok().flatten().filter(|holder| is_missing && holder.is_trusted())?;
    Some(holder.process)
}

fn current(place: &ServicePlace) -> Result<ServiceStatus, Failure> {
    let answer = send(place, Command::Status, None)?;
    // With another schema, another version of the service runs, for example from before an upgrade.
    if let Some(schema) = answer.get("schema").filter(|schema| **schema != ServiceStatus::SCHEMA) {
        let message = format!(
            "the service answers with schema {schema}, and this program reads schema {}; restart the service \
             (systemctl restart evenkeel)",
            ServiceStatus::SCHEMA
        );
        return Err(Failure::new(Exit::Failed, message));
    }
    serde_json::from_value(answer).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!(
                "the service sent no valid status: {error}; restart the service (systemctl restart evenkeel)"
            ),
        )
    })
}

fn names(answer: &Value) -> Vec<String> {
    let names = answer.get("done").and_then(Value::as_array).into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Waits until no worker of the interfaces is in one of the `transient` states. Returns the last status.
/// Returns an error if another command pauses or resumes an interface meanwhile, or after [`PATIENCE`].
fn settle(
    place: &ServicePlace,
    names: &[String],
    paused: bool,
    transient: &[Phase],
) -> Result<ServiceStatus, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = current(place)?;
        let mut named = status.interfaces.iter().filter(|interface| names.contains(&interface.name));
        if let Some(other) = named.clone().find(|interface| interface.paused != paused) {
            let other = &other.name;
            let (own, next) = if paused { ("pause", "resumed") } else { ("resume", "paused") };
            let see = client_command("evenkeel status", &place.socket);
            let message = format!("another command {next} {other} after this `{own}`; see `{see}`");
            return Err(Failure::new(Exit::Failed, message));
        }
        let is_transient = |interface: &InterfaceStatus| {
            interface.workers.iter().any(|worker| transient.contains(&worker.state))
        };
        if !named.any(is_transient) {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            let message =
                format!("the service did not finish within {} s: {}", PATIENCE.as_secs(), status.answer());
            return Err(Failure::new(Exit::Failed, message));
        }
        std::thread::sleep(POLL);
    }
}

pub fn pause(place: &ServicePlace, interface: Option<&str>) -> Result<Exit, Failure> {
    let names = names(&send(place, Command::Pause, interface)?);
    let transient = [Kind::Tune, Kind::Fair, Kind::Steer].map(Phase::of).into_iter().chain([
        Phase::Starting,
        Phase::Silent,
        Phase::Stopping,
        Phase::Waits,
        Phase::Refused,
    ]);
    let transient: Vec<Phase> = transient.collect();
    let status = settle(place, &names, true, &transient)?;
    let named = status.interfaces.iter().filter(|interface| names.contains(&interface.name));
    let left = named
        .flat_map(|interface| interface.workers.iter().map(move |worker| (&interface.name, worker)))
        .filter(|(_, worker)| worker.state == Phase::Paused)
        .filter_map(|(name, worker)| Some(format!("{name} is paused: {}", worker.reason.as_ref()?)));
    // An interface may have left in the meantime. A pause of all interfaces also concerns interfaces that
    // left earlier.
    let gone = status.unrestored.iter().filter(|left| interface.is_none() || names.contains(&left.name));
    let left: Vec<String> = left.chain(gone.map(ToString::to_string)).collect();
    if !left.is_empty() {
        return Err(Failure::new(Exit::Failed, left.join("; ")));
    }
    let what = if names.is_empty() { "all".to_owned() } else { list(names.iter().map(String::as_str)) };
    let mut resume = client_command("evenkeel service resume", &place.socket);
    if let Some(interface) = interface {
        resume = resume.on(&interface, "", &[]);
    }
    print(&format!("{what}: paused, and the settings are restored; `{resume}` ends the pause\n"))?;
    Ok(Exit::Done)
}

pub fn resume(place: &ServicePlace, interface: Option<&str>) -> Result<Exit, Failure> {
    let names = names(&send(place, Command::Resume, interface)?);
    let status = settle(place, &names, false, &[Phase::Starting, Phase::Stopping, Phase::Paused])?;
    print(&format!("resumed; {}\n", status.answer()))?;
    Ok(Exit::Done)
}

pub fn reload(place: &ServicePlace) -> Result<Exit, Failure> {
    let answer = send(place, Command::Reload, None)?;
    let remarks = answer.get("remarks").and_then(Value::as_array).into_iter().flatten();
    for remark in remarks.filter_map(Value::as_str) {
        say(remark);
    }
    print("the configuration is in force\n")?;
    Ok(Exit::Done)
}

pub fn status(options: &StatusOptions) -> Result<Exit, Failure> {
    let mut status = current(&options.place)?;
    if let Some(name) = &options.interface {
        let known: Vec<String> = status.interfaces.iter().map(|interface| interface.name.clone()).collect();
        status.interfaces.retain(|interface| interface.name == *name);
        status.unrestored.retain(|left| left.name == *name);
        status.missing.retain(|missing| missing.name == *name);
        if status.interfaces.is_empty() && status.unrestored.is_empty() && status.missing.is_empty() {
            let known = known.iter().map(String::as_str);
            return Err(Failure::unknown("managed interface", name, known, ""));
        }
    }
    match options.format {
        Format::Table => print_page(show::status(&status))?,
        Format::Json => {
            let text = serde_json::to_string_pretty(&status);
            let text = text.map_err(|error| Failure::new(Exit::Failed, error))?;
            print(&format!("{text}\n"))?;
        }
    }
    Ok(if status.is_as_wanted() { Exit::Done } else { Exit::Unmet })
}
