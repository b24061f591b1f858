//! The guardian: a small process that restores settings when the process that changed them (the worker)
//! dies.
//!
//! The guardian is the same binary with a hidden subcommand, which calls [`guard`].
//!
//! - It runs in its own session and ignores SIGINT, SIGTERM and SIGHUP, which are meant for the worker. It
//!   also ignores SIGPIPE.
//! - It watches the worker by pidfd (pidfd_open(2)), which cannot refer to another process with the
//!   same id.
//! - It takes no lock and changes nothing before the worker is dead.
//! - It opens the journal at its start, so that removing the directory does not lose the undo.
//! - Of its capabilities it keeps only CAP_NET_ADMIN, and CAP_DAC_OVERRIDE if it does not run as root.
//!
//! ```text
//!   worker ──starts──▶ guardian ──"ready"──▶ worker makes its first change
//!   worker ──"p"─────▶ guardian ──"p"──────▶ worker (it replaces a guardian that does not answer)
//!   worker ──"r"─────▶ guardian ends           (the worker has restored everything itself)
//!   worker dies ──pidfd──▶ guardian locks the journal, rolls back, removes the journal
//! ```
//!
//! Every wait of the worker has a limit: the worker kills a guardian that was stopped.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenkeel_host::{Capability, Host};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::error::{ApplyError, JournalError};
use crate::journal::Process;
use crate::journal_directory::StateDirectory;
use crate::journal_file::Watched;
use crate::kernel::LiveKernel;
use crate::privileges::keep_only;
use crate::revert::{RevertOutcome, revert_watched};

/// From worker to guardian: the worker has restored everything.
const RELEASED: u8 = b'r';
/// From worker to guardian, and the guardian's answer.
const PING: u8 = b'p';
/// From guardian to worker.
const READY: &str = "ready\n";

/// Limit for the guardian's start. The limit is long because the machine may be busy.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Limit for the guardian's exit after [`RELEASED`]. After this time the worker kills the guardian.
const END_LIMIT: Duration = Duration::from_secs(2);
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Limit for an answer. After this time the worker replaces the guardian.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    pub journal: PathBuf,
    pub worker: u32,
    /// Start time of the worker, clock ticks since boot. The id and this time together identify the process.
    pub worker_start: u64,
}

impl Arguments {
    fn to_os(&self) -> [OsString; 3] {
        [
            self.journal.clone().into_os_string(),
            self.worker.to_string().into(),
            self.worker_start.to_string().into(),
        ]
    }
}

#[derive(Debug)]
pub struct Guardian {
    /// Program and arguments for starting a replacement.
    again: (OsString, Vec<OsString>),
    arguments: Arguments,
    child: Child,
    line: Option<ChildStdin>,
    answers: ChildStdout,
    asked: Instant,
    /// Whether a ping has no answer yet.
    waits: bool,
}

impl Guardian {
    /// Starts a guardian and waits for [`READY`]. `command` is this binary with the hidden subcommand.
    /// This function appends the [`Arguments`].
    pub(crate) fn start(mut command: Command, journal: &Path, worker: Process) -> io::Result<Self> {
        let own =
            Arguments { journal: journal.to_owned(), worker: worker.id, worker_start: worker.start_ticks };
        let arguments = command.get_args().map(Into::into).collect();
        let again = (command.get_program().to_owned(), arguments);
        command.args(own.to_os()).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) });
        }
        let mut child = command.spawn()?;
        let line = child.stdin.take();
        let missing = || io::Error::other("its standard output is not open");
        let answers = child.stdout.take().ok_or_else(missing)?;
        let mut guardian =
            Self { again, arguments: own, child, line, answers, asked: Instant::now(), waits: false };
        set_nonblocking(&guardian.answers)?;
        guardian.line.as_ref().map(set_nonblocking).transpose()?;
        match guardian.read_answer(READY.len(), START_LIMIT)?.as_slice() {
            said if said == READY.as_bytes() => Ok(guardian),
            // The guardian has exited, and its message says why, or it was not ready in time.
            _ => {
                drop(guardian.line.take());
                let ended = guardian.wait(END_LIMIT);
                Err(io::Error::other(match ended {
                    Some(status) => format!("the process ended with {status}"),
                    None => format!("the process was not ready within {START_LIMIT:?}"),
                }))
            }
        }
    }

    /// Reads from the guardian until `most` bytes, end of file or the time limit.
    fn read_answer(&mut self, most: usize, limit: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + limit;
        let mut said = Vec::new();
        while said.len() < most {
            let mut bytes = [0; 16];
            match self.answers.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => said.extend(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let Some(left) =
                        deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
                    else {
                        break;
                    };
                    let mut watched = [PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
                    // Ignore EINTR: the loop polls again.
                    let _ = poll(&mut watched, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(said)
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// Returns false if the guardian has exited, accepts no ping, or has not answered a ping within
    /// [`ANSWER_LIMIT`]. Sends a ping at intervals, without waiting for the answer.
    pub(crate) fn is_alive(&mut self) -> bool {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return false;
        }
        if self.waits {
            // Read answers before the clock: the worker itself may have been stopped in between.
            self.waits = !self.read_answer(1, Duration::ZERO).is_ok_and(|said| !said.is_empty());
            return !self.waits || self.asked.elapsed() < ANSWER_LIMIT;
        }
        if self.asked.elapsed() >= PING_INTERVAL
            && let Some(line) = &mut self.line
        {
            (self.asked, self.waits) = (Instant::now(), true);
            return line.write_all(&[PING]).is_ok();
        }
        true
    }

    /// Replaces a guardian that died or does not answer. Kills the old guardian: if it continued, both
    /// guardians would roll back.
    pub(crate) fn keep_alive(&mut self) -> io::Result<()> {
        if self.is_alive() { Ok(()) } else { self.replace() }
    }

    /// Starts another guardian, then kills this one.
    pub(crate) fn replace(&mut self) -> io::Result<()> {
        let (program, arguments) = &self.again;
        let mut command = Command::new(program);
        command.arg0("evenkeel").args(arguments);
        let worker = Process { id: self.arguments.worker, start_ticks: self.arguments.worker_start };
        *self = Self::start(command, &self.arguments.journal, worker)?;
        Ok(())
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells the guardian to exit, and waits. Kills the guardian after [`END_LIMIT`].
    pub(crate) fn release(mut self) {
        // Ignore the error: the guardian may be dead already.
        if let Some(mut line) = self.line.take() {
            let _ = line.write_all(&[RELEASED]);
        }
        let _ = self.wait(END_LIMIT);
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Ignore errors: the guardian may have exited since the check.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn set_nonblocking(descriptor: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

#[derive(Debug)]
pub enum Watch {
    Released,
    /// The worker died. Contains the result of the rollback.
    WorkerDied(Box<RevertOutcome>),
}

fn open_pidfd(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes a process id and flags, no pointers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = i32::try_from(descriptor).map_err(io::Error::other)?;
    // SAFETY: the kernel returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Runs the guardian: prints [`READY`] on standard output, then waits for [`RELEASED`] on standard
/// input or for the worker's death. If the worker dies, restores the worker's settings.
///
/// # Errors
/// Returns an error if the guardian cannot watch the worker or restore its settings.
pub fn guard(arguments: &Arguments) -> Result<Watch, ApplyError> {
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGPIPE] {
        // SAFETY: SIG_IGN installs no handler.
        unsafe { signal(ignored, SigHandler::SigIgn) }.map_err(|error| ApplyError::Guardian(error.into()))?;
    }
    let worker = Process { id: arguments.worker, start_ticks: arguments.worker_start };
    let pidfd = match open_pidfd(arguments.worker) {
        Ok(pidfd) => Some(pidfd),
        // The worker is dead already.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
        Err(error) => return Err(ApplyError::Guardian(error)),
    };
    // Read the journal before dropping privileges: another user's file needs more than CAP_NET_ADMIN.
    let header = StateDirectory::read(&arguments.journal)?.and_then(|contents| contents.header);
    let (Some(watched), Some(header)) = (Watched::open(&arguments.journal)?, header) else {
        let source = io::ErrorKind::NotFound.into();
        return Err(JournalError::File { action: "watch", path: arguments.journal.clone(), source }.into());
    };
    let mut kernel = LiveKernel::of(&header.interface)?;
    kernel.watch_departure();
    keep_only(&[Capability::NetAdmin]).map_err(ApplyError::Guardian)?;
    // The id may have been reused before pidfd_open.
    let alive = Host::live().process(arguments.worker).map(Process::from) == Some(worker);
    let mut failure = None;
    if let Some(pidfd) = pidfd.filter(|_| alive) {
        let mut output = io::stdout();
        // Ignore the error: a worker that closed the pipe has died.
        let _ = output.write_all(READY.as_bytes()).and_then(|()| output.flush());
        match wait_for_end(&pidfd) {
            Ok(true) => return Ok(Watch::Released),
            Ok(false) => {}
            // Continue: the lock shows whether the worker is alive.
            Err(error) => failure = Some(ApplyError::Wait(error)),
        }
    }
    free_descriptors();
    let interface = header.interface.name;
    match revert_watched(watched, worker, kernel) {
        Ok(outcome) => Ok(Watch::WorkerDied(Box::new(outcome))),
        Err(error @ ApplyError::JournalStays { .. }) => Err(error),
        Err(error @ ApplyError::Journal(JournalError::Busy { .. })) => Err(failure.unwrap_or(error)),
        Err(error) => Err(ApplyError::StillChanged { interface, source: Box::new(error) }),
    }
}

/// Closes the pipes to the dead worker. If `RLIMIT_NOFILE` allows no more descriptors, the two freed
/// descriptors serve for the files of settings.
fn free_descriptors() {
    // SAFETY: nothing reads standard input or writes to standard output after this.
    unsafe {
        libc::close(libc::STDIN_FILENO);
        libc::close(libc::STDOUT_FILENO);
    }
}

fn wait_for_end(pidfd: &OwnedFd) -> io::Result<bool> {
    let (input, output) = (io::stdin(), io::stdout());
    let mut listens = true;
    loop {
        let mut watched = vec![PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        if listens {
            watched.push(PollFd::new(input.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |at: usize| watched.get(at).and_then(PollFd::any).unwrap_or(false);
        let (died, said) = (happened(0), happened(1));
        if said {
            // Unbuffered: poll(2) does not see bytes in a buffer.
            let mut words = [0; 16];
            let count = nix::unistd::read(&input, &mut words)?;
            listens = count > 0;
            for word in &words[..count] {
                match *word {
                    // If the worker died right after it sent the byte, its journal may still exist,
                    // marked as shut.
                    RELEASED => return Ok(!died),
                    PING => drop(nix::unistd::write(&output, &[PING])),
                    _ => {}
                }
            }
        }
        if died {
            return Ok(false);
        }
    }
}
