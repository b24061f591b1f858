//! The guardian: a small process that puts settings back when the process that changed them dies.
//!
//! It is the same binary with a hidden subcommand, which calls [`guard`]. It has a session of its own and
//! heeds neither Ctrl-C nor SIGTERM, which are for the worker: it ends with the worker. It watches the
//! worker by its pidfd (pidfd_open(2)), which cannot mean another process of the same number, holds
//! no lock and touches nothing before the worker is dead. It has the journal open from the beginning, so that a
//! directory that is removed takes no undo along, and keeps no privilege but CAP_NET_ADMIN.
//!
//! ```text
//!   worker ──starts──▶ guardian ──"ready"──▶ worker makes its first change
//!   worker ──"p"─────▶ guardian ──"p"──────▶ worker: it is at its post; one that does not answer is replaced
//!   worker ──"r"─────▶ guardian ends           (the worker has put everything back itself)
//!   worker dies ──pidfd──▶ guardian takes the journal's lock, rolls back, removes the journal
//! ```
//!
//! The worker never waits for it without a limit: a guardian that was stopped is killed.

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
use crate::held::Watched;
use crate::journal::Process;
use crate::kernel::LiveKernel;
use crate::privileges::keep_only;
use crate::revert::{RevertOutcome, revert_watched};
use crate::state::StateDirectory;

/// What the worker writes when it has put everything back itself.
const RELEASED: u8 = b'r';
/// What the worker writes to learn whether the guardian is at its post, and the answer.
const PING: u8 = b'p';
/// What the guardian writes when it is at its post.
const READY: &str = "ready\n";

/// How long a guardian may take to begin. It is a process like any other on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long it may take to end when it was told to.
const END_LIMIT: Duration = Duration::from_secs(2);
/// How often the worker asks, and how long an answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

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

/// The worker's end of a guardian. Dropping it kills the guardian.
#[derive(Debug)]
pub struct Guardian {
    /// How another one is started: the program, its arguments, and whom it watches.
    again: (OsString, Vec<OsString>),
    post: Post,
    child: Child,
    line: Option<ChildStdin>,
    answers: ChildStdout,
    asked: Instant,
    /// The last question has no answer yet.
    waits: bool,
}

impl Guardian {
    /// Starts a guardian and waits until it is at its post. `command` is this binary with the hidden
    /// subcommand; the post's three arguments are added: journal, process, start.
    pub(crate) fn start(mut command: Command, journal: &Path, worker: Process) -> io::Result<Self> {
        let post = Post { journal: journal.to_owned(), worker: worker.id, worker_start: worker.start_ticks };
        let arguments = command.get_args().map(Into::into).collect();
        let again = (command.get_program().to_owned(), arguments);
        command.args(post.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: between fork and exec the closure makes one system call, which takes nothing.
        unsafe {
            command.pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) });
        }
        let mut child = command.spawn()?;
        let line = child.stdin.take();
        let missing = || io::Error::other("it has no output");
        let answers = child.stdout.take().ok_or_else(missing)?;
        let mut guardian = Self { again, post, child, line, answers, asked: Instant::now(), waits: false };
        set_nonblocking(&guardian.answers)?;
        guardian.line.as_ref().map(set_nonblocking).transpose()?;
        match guardian.hear(READY.len(), START_LIMIT)?.as_slice() {
            said if said == READY.as_bytes() => Ok(guardian),
            // It ends by itself, having told why.
            _ => {
                drop(guardian.line.take());
                let ended = guardian.wait(END_LIMIT);
                Err(io::Error::other(match ended {
                    Some(status) => format!("it ended with {status}"),
                    None => format!("it was not at its post within {START_LIMIT:?}"),
                }))
            }
        }
    }

    /// What it says, up to a number of bytes, its end, or a limit.
    fn hear(&mut self, most: usize, limit: Duration) -> io::Result<Vec<u8>> {
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
                    // A signal to the worker is no answer.
                    let _ = poll(&mut watched, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(said)
    }

    /// Waits for its end.
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

    /// Whether it is at its post and answers. It is asked now and then, and not waited for.
    pub(crate) fn is_alive(&mut self) -> bool {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return false;
        }
        if self.waits {
            // Before the clock is looked at: the worker itself may have been stopped.
            self.waits = !self.hear(1, Duration::ZERO).is_ok_and(|said| !said.is_empty());
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

    /// Starts another guardian in place of one that died or does not answer, if it does not; that one is killed, because it
    /// would put back the same when it is continued.
    pub(crate) fn keep_at_post(&mut self) -> io::Result<()> {
        if self.is_alive() {
            return Ok(());
        }
        let (program, arguments) = &self.again;
        let mut command = Command::new(program);
        command.arg0("evenkeel").args(arguments);
        let worker = Process { id: self.post.worker, start_ticks: self.post.worker_start };
        *self = Self::start(command, &self.post.journal, worker)?;
        Ok(())
    }

    /// Its process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it that there is nothing left to do, and waits for its end; one that does not end is killed.
    pub(crate) fn release(mut self) {
        // It may be dead already, and then there is nobody to wait for long.
        if let Some(mut line) = self.line.take() {
            let _ = line.write_all(&[RELEASED]);
        }
        let _ = self.wait(END_LIMIT);
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Both fail only when it is gone.
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
    // What takes more than CAP_NET_ADMIN comes first.
    let header = StateDirectory::read(&post.journal)?.and_then(|contents| contents.header);
    let (Some(watched), Some(header)) = (Watched::open(&post.journal)?, header) else {
        let source = io::ErrorKind::NotFound.into();
        return Err(JournalError::File { action: "watch", path: post.journal.clone(), source }.into());
    };
    let mut kernel = LiveKernel::of(&header.interface)?;
    kernel.watch_departure();
    keep_only(&[Capability::NetAdmin]).map_err(ApplyError::Guardian)?;
    // The number may have passed to another process before the descriptor was opened.
    let alive = Host::live().process(post.worker).map(Process::from) == Some(worker);
    if let Some(pidfd) = pidfd.filter(|_| alive) {
        let mut output = io::stdout();
        // A worker that does not listen any more is a worker that died.
        let _ = output.write_all(READY.as_bytes()).and_then(|()| output.flush());
        if wait_for_end(&pidfd).map_err(ApplyError::Guardian)? {
            return Ok(Watch::Released);
        }
    }
    revert_watched(watched, worker, kernel).map(|outcome| Watch::WorkerDied(Box::new(outcome)))
}

/// Waits for the worker's word, and is true then, or for its death.
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
            // Without a buffer, in which a word could lie that poll(2) knows nothing of.
            let mut words = [0; 16];
            let count = nix::unistd::read(&input, &mut words)?;
            listens = count > 0;
            for word in &words[..count] {
                match *word {
                    // A worker that died behind its word may have left its journal, marked as done with.
                    RELEASED => return Ok(!died),
                    PING => drop(nix::unistd::write(&output, &[PING])),
                    _ => {}
                }
            }
        } else if died {
            return Ok(false);
        }
    }
}
