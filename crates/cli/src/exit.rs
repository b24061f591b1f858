//! Exit codes, and the functions that report an error to the user.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use evenkeel_apply::Cause;
use evenkeel_files::{InputError, OutputError, was_closed};
use evenkeel_model::text::{excerpt, plain_words, suggestion, terminal_output};
use evenkeel_report::page::Page;

use crate::{output, signals};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// The command ran, but its result is negative: a stated expectation does not hold, `check` has a finding
    /// of high severity or finds leftovers of a killed run, `tune --apply` could not make a change or losses
    /// increased, or `status` shows an interface that is neither as configured nor paused.
    Unmet = 1,
    /// Bad usage or bad input file.
    Usage = 2,
    /// This machine lacks something that the command needs.
    Unable = 3,
    /// The command failed while running. Every setting is restored, or the message names the settings
    /// that are not restored.
    Failed = 4,
    /// A signal interrupted the command. Every setting is restored.
    Interrupted = 130,
}

impl Exit {
    /// Returns the first failure: `self` unless it is a success, else `later`.
    pub fn or(self, later: Self) -> Self {
        if self == Self::Done { later } else { self }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Cause> for Exit {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Usage => Self::Usage,
            Cause::Unable => Self::Unable,
            Cause::Failed => Self::Failed,
        }
    }
}

#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Display) -> Self {
        Self { exit, message: message.to_string() }
    }

    /// Creates an error with its causes. Leaves out causes that the text already contains.
    pub fn with_causes(exit: Exit, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Self { exit, message }
    }

    /// Creates an error about an unknown name of a `kind`. The error suggests the nearest known name;
    /// `otherwise` lists alternatives.
    pub fn unknown<'k>(
        kind: &str,
        name: &str,
        known: impl IntoIterator<Item = &'k str>,
        otherwise: &str,
    ) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let hint = suggestion(name, known.iter().copied());
        let otherwise = if otherwise.is_empty() { String::new() } else { format!("; {otherwise}") };
        Self::new(Exit::Usage, format!("no {kind} '{}'; {hint}{otherwise}", excerpt(name)))
    }

    pub fn exit(&self) -> Exit {
        self.exit
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Appends the action that the user should take.
    pub fn and(mut self, next: &str) -> Self {
        self.message = format!("{}; {next}", self.message);
        self
    }

    /// Prepends the reason.
    pub fn after(mut self, reason: &dyn Display) -> Self {
        self.message = format!("{reason}; {}", self.message);
        self
    }

    pub fn tell(&self) -> Exit {
        say(&format!("evenkeel: {}", plain_words(&self.message)));
        self.exit
    }
}

impl From<&InputError> for Exit {
    fn from(error: &InputError) -> Self {
        match error {
            _ if error.is_interrupted() => Self::Interrupted,
            _ if error.is_limit() => Self::Unable,
            _ => Self::Usage,
        }
    }
}

impl From<&OutputError> for Exit {
    fn from(error: &OutputError) -> Self {
        match error {
            _ if error.is_limit() => Self::Unable,
            _ if error.is_usage() => Self::Usage,
            _ => Self::Failed,
        }
    }
}

/// Prints help or version to standard output. A usage error ends the process with code 2.
pub fn explain(error: &clap::Error) -> Result<Exit, Failure> {
    if error.use_stderr() {
        error.exit();
    }
    written(error.print().and_then(|()| io::stdout().flush()))?;
    Ok(Exit::Done)
}

/// Waits until the result is written to standard output.
pub fn flush() -> Result<(), Failure> {
    written(output::finish())
}

/// Ends a command: waits until its output is written. If the result cannot be written, or if a signal ends
/// the wait for the reader of a detached result, the code 0 or 130 becomes 4. A terminal that does not read
/// the result is no error.
pub fn end(exit: Exit) -> Exit {
    let has_worked = [Exit::Done, Exit::Interrupted].contains(&exit);
    let is_unread = |error: &io::Error| error.kind() == io::ErrorKind::Interrupted;
    let failure = match output::finish() {
        Err(error) if is_unread(&error) => {
            let is_lost = signals::has_ended_wait() && has_worked;
            let message = "the result was not written: the reader of standard output did not read, and a signal \
                           ended the wait";
            is_lost.then(|| Failure::new(Exit::Failed, message))
        }
        result => written(result).err().filter(|_| has_worked),
    };
    let Some(failure) = failure else { return exit };
    let exit = failure.tell();
    // Ignore the error: only the message remained to be written.
    let _ = output::finish();
    exit
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        Self::new(Exit::from(&error), error)
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        Self::new(Exit::from(&error), error)
    }
}

/// Writes a line to standard error. Escapes control characters, because names in the line may come from
/// other users.
pub fn say(line: &str) {
    output::message(format!("{}\n", terminal_output(line, false)).as_bytes());
}

pub fn print_page(page: Page) -> Result<(), Failure> {
    print(&page.finish())
}

/// Writes a result to standard output. Escapes control characters; on a terminal, styles remain.
pub fn print(text: &str) -> Result<(), Failure> {
    written(output::result(terminal_output(text, io::stdout().is_terminal()).as_bytes()))
}

/// Returns whether a write failed because the terminal was closed. The kernel hangs up a closed
/// terminal, and a write then fails with EIO.
fn hung_up(error: &io::Error) -> bool {
    use nix::libc::EIO;
    use nix::sys::stat::{SFlag, fstat};
    let is_device = || {
        fstat(io::stdout()).is_ok_and(|status| status.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits())
    };
    error.raw_os_error() == Some(EIO) && is_device()
}

/// Converts the result of a write to standard output. An exited reader (`| head`) or a closed terminal is no
/// error. If the terminal was closed, SIGHUP determines the exit code.
pub fn written(result: io::Result<()>) -> Result<(), Failure> {
    let failed = |exit: Exit, why: &dyn Display| {
        Err(Failure::new(exit, format!("cannot write the result to standard output: {why}")))
    };
    match result {
        _ if was_closed(&io::stdout()) => failed(Exit::Failed, &"it is closed"),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => failed(Exit::Interrupted, &error),
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && !hung_up(&error) => {
            failed(Exit::Failed, &error)
        }
        _ => Ok(()),
    }
}
