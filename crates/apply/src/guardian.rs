//! The guardian: a small process that puts settings back when the process that changed them dies.
//!
//! It is the same binary with a hidden subcommand, which calls [`guard`]. It has a session of its own and
//! heeds neither Ctrl-C nor SIGTERM, which are for the worker: it ends with the worker. It watches the
//! worker by its pidfd (pidfd_open(2)), which cannot mean another process of the same number, holds
//! no lock and touches nothing before the worker is dead.
//!
//! ```text
//!   worker ──starts──▶ guardian ──"ready"──▶ worker makes its first change
//!   worker ──"released"──▶ guardian ends           (the worker has put everything back itself)
//!   worker dies ──pidfd──▶ guardian takes the journal's lock, rolls back, removes the journal
//! ```

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use evenkeel_host::Host;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::error::ApplyError;
use crate::journal::Process;
use crate::revert::{RevertOutcome, revert_of};

/// What the worker writes when it has put everything back itself.
const RELEASED: u8 = b'r';
/// What the guardian writes when it is at its post.
const READY: &str = "ready";

/// What a guardian watches, as its command line has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// The worker's journal.
    pub journal: PathBuf,
    /// The worker's process number.
    pub worker: u32,
    /// When the worker started, clock ticks since boot.
    pub worker_start: u64,
}

impl Post {
    fn arguments(&self) -> [OsString; 3] {
        [
            self.journal.clone().into_os_string(),
            self.worker.to_string().into(),
            self.worker_start.to_string().into(),
        ]
    }
}

/// The worker's end of a guardian.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
    line: Option<ChildStdin>,
}

impl Guardian {
    /// Starts a guardian and waits until it is at its post. `command` is this binary with the hidden
    /// subcommand; the post's three arguments are added: journal, process, start.
    pub(crate) fn start(mut command: Command, journal: &Path, worker: Process) -> io::Result<Self> {
        let post = Post { journal: journal.to_owned(), worker: worker.id, worker_start: worker.start_ticks };
        command.args(post.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: between fork and exec the closure makes one system call, which takes nothing.
        unsafe {
            command.pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) });
        }
        let mut child = command.spawn()?;
        let line = child.stdin.take();
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut said)?;
        }
        if said.trim() == READY {
            return Ok(Self { child, line });
        }
        // It ends by itself, having told why.
        drop(line);
        let status = child.wait()?;
        Err(io::Error::other(format!("it ended with {status}")))
    }

    /// Whether it is at its post.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it that there is nothing left to do, and waits for its end.
    pub(crate) fn release(mut self) {
        // It may be dead already, and then there is nobody to wait for long.
        if let Some(mut line) = self.line.take() {
            let _ = line.write_all(&[RELEASED]);
        }
        let _ = self.child.wait();
    }
}

/// How a guardian's watch ended.
#[derive(Debug)]
pub enum Watch {
    /// The worker has put everything back itself.
    Released,
    /// The worker died; what became of its settings.
    WorkerDied(Box<RevertOutcome>),
}

fn open_pidfd(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes a process number and flags.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = i32::try_from(descriptor).map_err(io::Error::other)?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The guardian's whole life: says that it is ready on standard output, then waits for the worker's word on
/// standard input or for its death.
///
/// # Errors
/// When the worker cannot be watched, or its settings not be put back.
pub fn guard(post: &Post) -> Result<Watch, ApplyError> {
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGPIPE] {
        // SAFETY: to ignore a signal runs no handler.
        unsafe { signal(ignored, SigHandler::SigIgn) }.map_err(|error| ApplyError::Guardian(error.into()))?;
    }
    let worker = Process { id: post.worker, start_ticks: post.worker_start };
    let pidfd = match open_pidfd(post.worker) {
        Ok(pidfd) => Some(pidfd),
        // Dead and gone already.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
        Err(error) => return Err(ApplyError::Guardian(error)),
    };
    // The number may have passed to another process before the descriptor was opened.
    let alive = Host::live().process(post.worker).map(Process::from) == Some(worker);
    if let Some(pidfd) = pidfd.filter(|_| alive) {
        let mut output = io::stdout();
        // A worker that does not listen any more is a worker that died.
        let _ = writeln!(output, "{READY}").and_then(|()| output.flush());
        if wait_for_end(&pidfd).map_err(ApplyError::Guardian)? {
            return Ok(Watch::Released);
        }
    }
    revert_of(&post.journal, Some(worker)).map(|outcome| Watch::WorkerDied(Box::new(outcome)))
}

/// Waits for the worker's word, and is true then, or for its death.
fn wait_for_end(pidfd: &OwnedFd) -> io::Result<bool> {
    let mut input = io::stdin();
    let mut listens = true;
    loop {
        let mut watched = vec![PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        let stdin = io::stdin();
        if listens {
            watched.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |at: usize| watched.get(at).and_then(PollFd::any).unwrap_or(false);
        let (died, said) = (happened(0), happened(1));
        if said {
            let mut word = [0];
            match input.read(&mut word)? {
                0 => listens = false,
                _ if word[0] == RELEASED => return Ok(true),
                _ => {}
            }
        } else if died {
            return Ok(false);
        }
    }
}
