//! Exit codes, and the one place that reports an error to the user.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use evenkeel_apply::Cause;
use evenkeel_files::{InputError, OutputError, was_closed};
use evenkeel_model::text::{excerpt, plain_words, suggestion, terminal_output};
use evenkeel_report::page::Page;

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// Ran, but a stated expectation did not hold, or a host has a serious finding.
    Unmet = 1,
    /// Bad usage or bad input file.
    Usage = 2,
    /// This machine cannot do it.
    Unable = 3,
    /// Failed while running; everything is restored, or the message says what is not.
    Failed = 4,
    /// Interrupted; everything is restored.
    Interrupted = 130,
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

/// An error with its exit code.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// An error that ends the command with this code.
    pub fn new(exit: Exit, message: impl Display) -> Self {
        Self { exit, message: message.to_string() }
    }

    /// An error with its causes; a cause that the text repeats is omitted.
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

    /// An unknown name of a `kind` of thing, with the nearest known one; `otherwise` lists alternatives.
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

    /// Adds the action that the user should take.
    pub fn and(mut self, next: &str) -> Self {
        self.message = format!("{}; {next}", self.message);
        self
    }

    /// Adds the reason before it.
    pub fn after(mut self, reason: &dyn Display) -> Self {
        self.message = format!("{reason}; {}", self.message);
        self
    }

    /// Prints the error on standard error.
    pub fn tell(&self) -> Exit {
        // Ignore the error: standard error may be closed as well.
        say(&format!("evenkeel: {}", plain_words(&self.message)));
        self.exit
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        let exit = if error.is_interrupted() { Exit::Interrupted } else { Exit::Usage };
        Self::new(exit, error)
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        let exit = if error.is_usage() { Exit::Usage } else { Exit::Failed };
        Self::new(exit, error)
    }
}

/// Writes a line to standard error; ignores errors, because the reader may have gone. Names from outside cannot
/// control the terminal.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", terminal_output(line, false));
}

pub fn print_page(page: Page) -> Result<(), Failure> {
    print(&page.finish())
}

/// Writes a result to standard output; only styles may control the terminal.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let text = terminal_output(text, output.is_terminal());
    written(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

/// Whether a write failed because the terminal was closed: the kernel hangs it up, and a write gives EIO.
fn hung_up(error: &io::Error) -> bool {
    use nix::libc::EIO;
    use nix::sys::stat::{SFlag, fstat};
    let is_device = || {
        fstat(io::stdout()).is_ok_and(|status| status.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits())
    };
    error.raw_os_error() == Some(EIO) && is_device()
}

/// The outcome of a write to standard output. A reader that has gone (`| head`, a closed terminal) is no error: SIGHUP
/// decides the exit code.
pub fn written(result: io::Result<()>) -> Result<(), Failure> {
    let failed = |why: &dyn Display| {
        Err(Failure::new(Exit::Failed, format!("cannot write the result to standard output: {why}")))
    };
    match result {
        _ if was_closed(&io::stdout()) => failed(&"it is closed"),
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && !hung_up(&error) => failed(&error),
        _ => Ok(()),
    }
}
