//! `evenkeel service` and `evenkeel status`.

mod client;
mod configuration;
mod show;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_apply::printed_command;
use evenkeel_fair::give_up_privileges;
use evenkeel_files::{Kind, read_regular, shown};
use evenkeel_host::{Capability, SERVICE_NAME, SocketName, service_socket};
use evenkeel_service::{
    Configuration, Control, ControlError, DEFAULT_SOCKET, Kind as WorkerKind, Managed, Notifier, Outside,
    Priority, Supervisor, client_command,
};
use nix::sys::stat::fstat;
use nix::unistd::geteuid;

use crate::arguments::{ServiceCommand, ServiceOptions};
use crate::exit::{Exit, Failure};
use crate::live::{require, say};
use crate::output;
use crate::signals::Signals;

pub use client::status;

pub fn service(options: &ServiceOptions) -> Result<Exit, Failure> {
    match &options.command {
        Some(ServiceCommand::Pause { interface, place }) => client::pause(place, interface.as_deref()),
        Some(ServiceCommand::Resume { interface, place }) => client::resume(place, interface.as_deref()),
        Some(ServiceCommand::Reload { place }) => client::reload(place),
        None => match &options.check {
            Some(file) => configuration::check(file),
            None => run(&options.config),
        },
    }
}

fn failure(error: &ControlError) -> Failure {
    let exit = match error {
        ControlError::NoGroup(_) | ControlError::Path { .. } | ControlError::NoDirectory { .. } => {
            Exit::Usage
        }
        ControlError::System { .. } | ControlError::Answer(_) | ControlError::Silent { .. } => Exit::Failed,
        ControlError::Taken { .. }
        | ControlError::NotASocket { .. }
        | ControlError::NoSocket { .. }
        | ControlError::NoService { .. }
        | ControlError::Busy { .. }
        | ControlError::Denied { .. } => Exit::Unable,
    };
    Failure::with_causes(exit, error)
}

struct Service<'a> {
    file: &'a Path,
    signals: Signals,
    reload: Arc<AtomicBool>,
    socket: PathBuf,
    /// Whether standard error is the systemd journal, which reads priorities (sd-daemon(3)).
    has_journal: bool,
}

impl Outside for Service<'_> {
    fn is_ended(&self) -> bool {
        self.signals.came()
    }

    fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    fn configuration(&self) -> Result<Configuration, String> {
        let text = read_regular(self.file, Kind::Service).map_err(|error| error.to_string())?;
        configuration::parse_again(&text).map_err(|error| error.to_string())
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    fn worker(&self) -> Command {
        // Run this binary, even if another file has replaced its file.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("evenkeel");
        command
    }

    fn left(&self, of: &Managed<'_>) -> Option<String> {
        match of.kind {
            WorkerKind::Tune => crate::tune::left_by_service(of),
            WorkerKind::Fair | WorkerKind::Steer => crate::revert::left(of.index, of.name),
        }
    }

    fn log(&self, priority: Priority, text: &str) {
        let prefix = if self.has_journal { format!("<{}>", priority as u8) } else { String::new() };
        say(&format!("{prefix}{text}"));
    }
}

/// Returns whether standard error is the socket of the systemd journal, which `JOURNAL_STREAM` names
/// (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let place =
        stream.split_once(':').and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    let own = fstat(std::io::stderr()).map(|file| (file.st_dev, file.st_ino));
    own.is_ok_and(|own| place == Some(own))
}

fn run(file: &Path) -> Result<Exit, Failure> {
    let configuration = configuration::read_regular(file)?;
    require(&[Capability::NetAdmin, Capability::Bpf, Capability::Perfmon], "a service")?;
    let reload = Arc::new(AtomicBool::new(false));
    let signals = Signals::catch_for_service(&reload)?;
    output::detach();
    let socket = configuration.socket.clone();
    let service = Service { file, signals, reload, socket, has_journal: is_journal() };
    let _name = reserve_name(&service)?;
    let listens = Control::listen(&configuration.socket, configuration.group.as_deref());
    let (control, remark) = listens.map_err(|error| failure(&error))?;
    if let Some(remark) = remark {
        service.log(Priority::Info, &remark);
    }
    let supervisor = Supervisor::new(&service, configuration, shown(file), Notifier::from_environment());
    let failed = |error| Failure::with_causes(Exit::Failed, &error);
    let supervisor = supervisor.map_err(failed)?;
    // A user other than root passes capabilities to the workers in sets that this call would clear.
    if geteuid().is_root() {
        give_up_privileges().map_err(|error| Failure::with_causes(Exit::Failed, &error))?;
    }
    let unsettled = supervisor.run(control).map_err(failed)?;
    if !unsettled.is_empty() {
        let message = format!(
            "some settings of {} could not be restored; remove the causes above, then run `{}`, which restores \
             settings with a journal; for settings without a journal, run the commands above",
            unsettled.join(", "),
            printed_command("evenkeel revert", &[])
        );
        return Err(Failure::new(Exit::Failed, message));
    }
    Ok(if service.signals.interrupted() { Exit::Interrupted } else { Exit::Done })
}

/// Reserves the name of the service in this network namespace. Refuses to run next to another service.
/// Returns `None` if another user has reserved the name.
fn reserve_name(service: &Service<'_>) -> Result<Option<SocketName>, Failure> {
    let failed = |error| Failure::with_causes(Exit::Failed, &error);
    let taken = SocketName::take(SERVICE_NAME).map_err(failed)?;
    if taken.is_some() {
        return Ok(taken);
    }
    match SocketName::holder(SERVICE_NAME).map_err(failed)? {
        Some(holder) if holder.is_trusted() => {
            let socket = service_socket().unwrap_or_else(|| DEFAULT_SOCKET.into());
            let message = format!(
                "another service (process {}) runs in this network namespace; stop that service first, or query it \
                 with `{}`",
                holder.process,
                client_command("evenkeel status", &socket)
            );
            Err(Failure::new(Exit::Unable, message))
        }
        // Any user may bind this name. The socket of the configuration also excludes another service.
        _ => {
            service.log(
                Priority::Warning,
                &format!(
                    "another user has reserved the socket name @{SERVICE_NAME}; evenkeel ignores this socket"
                ),
            );
            Ok(None)
        }
    }
}
