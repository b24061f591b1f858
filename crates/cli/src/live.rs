//! Shared functions of commands on a live interface: terminal, signals, guardian.

use std::fmt::Display;
use std::io::IsTerminal;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_apply::{Report, printed_command};
use evenkeel_host::{Capability, Host};
use evenkeel_model::text::{excerpt, terminal_output};
use nix::sys::resource::{Resource, getrlimit};

use crate::arguments::{Command as Arguments, CongestionCommand, NicCommand, Place};
pub use crate::exit::say;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::signals::{self, Signals};
use crate::study::StudyCommand;

const DRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Longest sleep of a session. It is short because a signal does not interrupt a sleep.
pub const NAP: Duration = Duration::from_millis(20);

/// A screen on standard error, redrawn in place.
pub struct Screen {
    live: bool,
    drawn: Option<Instant>,
    lines: usize,
}

impl Screen {
    /// Creates a screen that draws only if standard error is a terminal.
    pub fn new() -> Self {
        Self { live: std::io::stderr().is_terminal(), drawn: None, lines: 0 }
    }

    pub fn draw(&mut self, text: impl Fn() -> String) {
        if !self.live || self.drawn.is_some_and(|drawn| drawn.elapsed() < DRAW_INTERVAL) || !output::is_idle()
        {
            return;
        }
        self.drawn = Some(Instant::now());
        let text = text();
        // Move the cursor to the start of the last drawing, then clear the screen from there (ECMA-48:
        // CPL, ED).
        let back = if self.lines > 0 { format!("\u{1b}[{}F\u{1b}[J", self.lines) } else { String::new() };
        output::message(format!("{back}{}", terminal_output(&text, true)).as_bytes());
        self.lines = text.lines().count();
    }
}

/// The reason for the end of a session. `C` describes another program's change that ended the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End<C = String> {
    Time,
    /// The user pressed Ctrl-C, or the terminal was closed.
    Interrupted,
    /// A program such as a service manager sent SIGTERM.
    Terminated,
    /// Another program changed a setting that the session depends on.
    ForeignChange(C),
}

impl<C> End<C> {
    /// Returns the reason to end a session now, if any. The session began at `began` and lasts for
    /// `time`.
    pub fn due(signals: &Signals, began: Instant, time: Option<Duration>) -> Option<Self> {
        if signals.interrupted() {
            return Some(Self::Interrupted);
        }
        if signals.terminated() {
            return Some(Self::Terminated);
        }
        time.is_some_and(|time| began.elapsed() >= time).then_some(Self::Time)
    }

    /// Returns the word for the reason in the JSON of a session.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Interrupted => "interrupted",
            Self::Terminated => "terminated",
            Self::ForeignChange(_) => "foreign-change",
        }
    }
}

impl<C: Display> End<C> {
    /// Returns the exit code, or the error `unsettled` about settings that were not restored. Without this
    /// error, reports another program's change: `place`, the change, and `what_then`.
    pub fn conclude(
        &self,
        unsettled: Option<Failure>,
        place: &str,
        what_then: &str,
    ) -> Result<Exit, Failure> {
        match (self, unsettled) {
            (Self::ForeignChange(reason), Some(unsettled)) => Err(unsettled.after(reason)),
            (_, Some(unsettled)) => Err(unsettled),
            (Self::Time | Self::Terminated, None) => Ok(Exit::Done),
            (Self::Interrupted, None) => Ok(Exit::Interrupted),
            (Self::ForeignChange(reason), None) => {
                Ok(Failure::new(Exit::Failed, format!("{place}{reason}; {what_then}")).tell())
            }
        }
    }
}

impl End {
    /// Returns the word for the reason in the JSON of a session, and the description of another program's
    /// change, if any.
    pub fn words(&self) -> (&'static str, Option<&str>) {
        let reason = match self {
            Self::ForeignChange(reason) => Some(reason.as_str()),
            _ => None,
        };
        (self.word(), reason)
    }
}

/// Calls `tick` in each interval until the session ends or `tick` returns a change or an error. If standard
/// error is a terminal, redraws the screen, at most once per second.
pub fn keep_going<T, C, E>(
    session: &mut T,
    interval: Duration,
    time: Option<Duration>,
    signals: &Signals,
    mut tick: impl FnMut(&mut T) -> Result<Option<C>, E>,
    draw: impl Fn(&T) -> String,
) -> Result<End<C>, E> {
    let began = Instant::now();
    let mut next = began + interval;
    let mut screen = Screen::new();
    loop {
        if let Some(end) = End::due(signals, began, time) {
            return Ok(end);
        }
        let left = next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left.min(NAP));
            continue;
        }
        // Skip missed ticks.
        next = (next + interval).max(Instant::now());
        if let Some(change) = tick(session)? {
            return Ok(End::ForeignChange(change));
        }
        screen.draw(|| draw(session));
    }
}

/// Returns an error that names the missing capabilities, if any. `what` says why they are needed.
pub fn require(capabilities: &[Capability], what: &str) -> Result<(), Failure> {
    let missing = Host::live().missing_capabilities(capabilities);
    let missing = missing.map_err(|error| Failure::with_causes(Exit::Failed, &error))?;
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let message = format!(
        "this process lacks {}, which {what} needs; {}",
        names.join(", "),
        Host::live().how_to_be_privileged()
    );
    Err(Failure::new(Exit::Unable, message))
}

const RESTORED: &str = "evenkeel restored its settings";

/// Describes the end of a session after another program changed a setting.
pub fn restored<'a>(reports: impl IntoIterator<Item = &'a Report>) -> &'static str {
    let mut reports = reports.into_iter().peekable();
    let went_along = |report: &Report| report.deleted.is_some() && report.restored.is_empty();
    match reports.peek().is_some() && reports.all(went_along) {
        true => "nothing is left to restore",
        false => RESTORED,
    }
}

/// Returns an error if a session could not restore some settings.
pub fn unsettled(device: &str, report: &Report) -> Option<Failure> {
    let text = format!(
        "some settings of {device} could not be restored; remove the causes above, then run `{}`",
        printed_command("evenkeel revert {}", &[&device])
    );
    (!report.is_settled()).then(|| Failure::new(Exit::Failed, text))
}

/// Returns an error if a signal arrived before the session has begun.
pub fn stop_if_interrupted(signals: &Signals) -> Result<(), Failure> {
    if signals.came() { Err(interrupted(&[])) } else { Ok(()) }
}

/// Creates the error for a signal that ended the set-up. Prints the remarks of each device's rollback.
pub fn interrupted(devices: &[(String, Report)]) -> Failure {
    let what = "interrupted before the session began";
    for (device, report) in devices {
        report.remarks(device).iter().for_each(|remark| say(remark));
    }
    if let Some(unsettled) = devices.iter().find_map(|(device, report)| unsettled(device, report)) {
        return unsettled.after(&what);
    }
    let then = match devices.iter().all(|(_, report)| report.is_empty()) {
        true => "no setting was changed",
        false => "all changes are undone",
    };
    Failure::new(Exit::Interrupted, format!("{what}; {then}"))
}

/// Checks that a command has enough descriptors and the mounts that it needs. Lets the first signal end
/// commands that hold no resources, and sessions that have not begun. Other commands install handlers
/// before a change.
pub fn prepare(command: &Arguments) -> Result<(), Failure> {
    require_descriptors(command)?;
    require_mounts(command)?;
    match command {
        Arguments::Scenario(_)
        | Arguments::Nic(_)
        | Arguments::Search(_)
        | Arguments::Compare(_)
        | Arguments::Report(_)
        | Arguments::Generate(_)
        | Arguments::Fair(_)
        | Arguments::Service(_)
        | Arguments::Status(_)
        | Arguments::Steer(_)
        | Arguments::Congestion(_)
        | Arguments::Top(_)
        | Arguments::Tune(_) => signals::end_at_once(),
        Arguments::Check(options) if options.watch.is_none() && options.save.is_none() => {
            signals::end_at_once()
        }
        Arguments::Metrics(options) if options.listen.is_none() && options.textfile.is_none() => {
            signals::end_at_once()
        }
        _ => Ok(()),
    }
}

/// Refuses a command that needs the kernel's file systems if they are not mounted, as in a chroot. Most of
/// these commands need only `/proc`, because root can then mount a separate sysfs.
pub fn require_mounts(command: &Arguments) -> Result<(), Failure> {
    let mounts: &[&'static str] = match command {
        Arguments::Nic(NicCommand::Probe { .. }) => &["/proc", "/sys"],
        Arguments::Steer(options) if options.plan && options.model.is_some() => &[],
        Arguments::Fair(_)
        | Arguments::Service(_)
        | Arguments::Steer(_)
        | Arguments::Congestion(_)
        | Arguments::Revert(_) => &["/proc"],
        Arguments::Run(options) if options.place == Place::Netns => &["/proc"],
        Arguments::Top(options) if options.replay.is_none() => &["/proc", "/sys"],
        _ => &[],
    };
    Host::live().require_mounted(mounts).map_err(|error| crate::check::failure(&error))
}

/// Replaces an alternative name of an interface of this host (`ip link property add dev eth0 altname
/// NAME`) by its name. Files of `/sys` and journals contain only the name. Refuses a name with white
/// space, which no interface can have: line feeds in a name would reach the terminal.
pub fn resolve_names(command: &mut Arguments) -> Result<(), Failure> {
    let named = match command {
        Arguments::Fair(options) => Some(&mut options.interface),
        Arguments::Steer(options) if !options.plan || options.model.is_none() => options.interface.as_mut(),
        Arguments::Check(options) if options.from.is_none() => options.interface.as_mut(),
        Arguments::Tune(options) if options.from.is_none() => Some(&mut options.interface),
        Arguments::Revert(options) => options.interface.as_mut(),
        Arguments::Nic(NicCommand::Probe { interface, .. }) => Some(interface),
        Arguments::Top(options) if options.replay.is_none() => {
            return options.interfaces.iter_mut().try_for_each(resolve_name);
        }
        _ => None,
    };
    named.map_or(Ok(()), resolve_name)
}

fn resolve_name(name: &mut String) -> Result<(), Failure> {
    if name.contains('\0') {
        return Ok(());
    }
    if let Some(known) = evenkeel_host::name_of(name).filter(|known| known != name) {
        say(&format!("{} is an alternative name of {known}", excerpt(name)));
        *name = known;
    }
    // See `dev_valid_name`, net/core/dev.c.
    if name.contains(|character: char| character.is_ascii_whitespace()) {
        let message = format!(
            "there is no interface '{}': an interface name cannot contain white space",
            excerpt(name)
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(())
}

/// Minimum number of file descriptors of a session: for its programs and maps, its journal, and the
/// guardian. A test bed needs descriptors for its programs and namespaces. A service passes its limit
/// to the sessions.
const LEAST_DESCRIPTORS: u64 = 64;

/// Refuses a session, a service or a test bed whose limit of open files is too low. Otherwise the
/// command would fail later, when it opens a file.
pub fn require_descriptors(command: &Arguments) -> Result<(), Failure> {
    match command {
        Arguments::Fair(_) | Arguments::Congestion(CongestionCommand::Load(_)) => {}
        Arguments::Steer(options) if !options.plan || options.model.is_none() => {}
        Arguments::Service(options) if options.command.is_none() && options.check.is_none() => {}
        Arguments::Run(options) if options.place == Place::Netns => {}
        Arguments::Study(StudyCommand::Tc(options))
            if options.place != Some(Place::Sim) && options.resume.is_none() => {}
        _ => return Ok(()),
    }
    // Ignore the error: the session reports a file that it cannot open.
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if limit >= LEAST_DESCRIPTORS {
        return Ok(());
    }
    let message = format!(
        "this process may open only {limit} files, but this command needs {LEAST_DESCRIPTORS}; raise the limit \
         (ulimit -n)"
    );
    Err(Failure::new(Exit::Unable, message))
}

/// Returns the command of the guardian: this binary, even if another file has replaced its file.
pub fn guardian() -> Option<Command> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("evenkeel").arg("guard");
    Some(command)
}
