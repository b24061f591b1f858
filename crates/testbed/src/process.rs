//! Traffic tools as child processes that end with this process.

use std::cell::Cell;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenkeel_host::find_tool;
use evenkeel_model::text::path_text;
use evenkeel_model::world::Observer;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::TestbedError;
use crate::namespace::Namespace;

const POLL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct ProcessOptions<'a> {
    pub program: &'a str,
    pub arguments: Vec<OsString>,
    pub namespace: &'a Namespace,
    /// CPU on which the program runs; `None`: any CPU.
    pub cpu: Option<usize>,
    /// An unnamed file that the program opens by [`inherited_path`].
    pub inherit: Option<&'a File>,
}

/// Returns the path by which a program opens an inherited file.
#[must_use]
pub fn inherited_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Creates a file without a name, in the directory that `TMPDIR` names, by default `/tmp`.
pub(crate) fn temporary_file() -> Result<File, TestbedError> {
    let directory = std::env::temp_dir();
    let action = format!("make a temporary file in {} (TMPDIR)", path_text(&directory));
    tempfile::tempfile_in(directory).map_err(|source| TestbedError::System { action, source })
}

/// A child process in a network namespace. Dropping this value kills the process. The kernel also kills
/// the process when the thread that started it ends.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: File,
    errors: File,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts a program. The calling thread must live longer than the program.
    pub fn start(options: ProcessOptions<'_>) -> Result<Self, TestbedError> {
        let name = options.program.to_owned();
        let file = find_tool(options.program).ok_or_else(|| TestbedError::Unable {
            missing: format!("{name} is not installed, and the test bed needs it for traffic"),
            remedy: format!("install it (Debian, Ubuntu: apt-get install {name}) or run ./dev setup"),
        })?;
        let (output, errors) = (temporary_file()?, temporary_file()?);
        let duplicate =
            |file: &File| file.try_clone().map_err(TestbedError::system("duplicate a descriptor"));

        let mut command = Command::new(file);
        command.args(&options.arguments).stdin(Stdio::null());
        command.stdout(duplicate(&output)?).stderr(duplicate(&errors)?);
        // Use a separate process group, so that Ctrl-C in the terminal reaches only this process. This
        // process then ends the child.
        command.process_group(0);

        let namespace = options.namespace.as_fd().as_raw_fd();
        let affinity = options.cpu.map(single_cpu);
        let inherited = options.inherit.map(AsRawFd::as_raw_fd);
        let nice = ordinary_nice();
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the closure runs between fork and exec and makes only system calls, on values on its own
        // stack or in memory that the fork copied.
        unsafe {
            command.pre_exec(move || {
                check(libc::setns(namespace, libc::CLONE_NEWNET))?;
                check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
                // The parent may have ended before the prctl call above.
                if libc::getppid() != parent {
                    return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
                }
                if let Some(descriptor) = inherited {
                    // The program inherits this descriptor, so exec must not close it.
                    check(libc::fcntl(descriptor, libc::F_SETFD, 0))?;
                }
                if let Some(nice) = nice {
                    check(libc::setpriority(libc::PRIO_PROCESS, 0, nice))?;
                }
                if let Some(set) = &affinity {
                    check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set))?;
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(TestbedError::system(format!("start {name}")))?;
        Ok(Self { name, child, output, errors, status: None })
    }

    /// Returns an error message if the process has ended; `None` while it runs.
    pub fn ending(&mut self) -> Result<Option<String>, TestbedError> {
        self.has_ended()?;
        Ok(self.status.map(|status| format!("{} ended early ({status}); run the scenario again", self.name)))
    }

    pub fn has_ended(&mut self) -> Result<bool, TestbedError> {
        if self.status.is_none() {
            self.status =
                self.child.try_wait().map_err(TestbedError::system(format!("wait for {}", self.name)))?;
        }
        Ok(self.status.is_some())
    }

    /// Waits for the exit of the process, for at most `limit`.
    ///
    /// # Errors
    /// Returns an error after `limit`, or if the user interrupts.
    pub fn wait(&mut self, limit: Duration, observer: &dyn Observer) -> Result<(), TestbedError> {
        let deadline = Instant::now() + limit;
        while !self.has_ended()? {
            if Instant::now() > deadline {
                let failure = format!("{} did not end within {:.0} s", self.name, limit.as_secs_f64());
                return Err(self.failed(failure));
            }
            pause(POLL, observer)?;
        }
        Ok(())
    }

    /// Returns the standard output so far.
    ///
    /// # Errors
    /// Returns an error if the text cannot be read, or is not UTF-8.
    pub fn output_text(&mut self) -> Result<String, TestbedError> {
        let mut text = String::new();
        self.output
            .rewind()
            .and_then(|()| self.output.read_to_string(&mut text))
            .map_err(TestbedError::system(format!("read the output of {}", self.name)))?;
        Ok(text)
    }

    /// Returns the standard error so far; empty if it cannot be read.
    pub fn error_text(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.errors.rewind().and_then(|()| self.errors.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Returns the error for a failure of this process, with the messages of the process, if any.
    pub(crate) fn failed(&mut self, failure: impl Display) -> TestbedError {
        let words = self.error_text();
        let said = if words.is_empty() { words } else { format!("; {} said: {words}", self.name) };
        TestbedError::Traffic(format!("{failure}{said}"))
    }

    /// Describes a process that does not listen, with its output, for an error message.
    pub fn why_silent(&mut self) -> String {
        let state = match self.status {
            Some(status) => format!("{} ended ({status})", self.name),
            None => format!("{} runs, but does not listen", self.name),
        };
        match format!("{} {}", self.error_text(), self.output_text().unwrap_or_default()).trim() {
            "" => format!("{state}, without a message"),
            text => format!("{state}: {text}"),
        }
    }

    /// Stops the process (SIGSTOP) until [`Process::go_on`].
    pub fn hold(&self) -> Result<(), TestbedError> {
        self.signal(Signal::SIGSTOP)
    }

    /// Continues the process (SIGCONT).
    pub fn go_on(&self) -> Result<(), TestbedError> {
        self.signal(Signal::SIGCONT)
    }

    pub fn terminate(&self) -> Result<(), TestbedError> {
        self.signal(Signal::SIGTERM)
    }

    /// Sends a signal. The process id stays valid until this process waits for the child.
    fn signal(&self, signal: Signal) -> Result<(), TestbedError> {
        if self.status.is_some() {
            return Err(TestbedError::Traffic(format!("{} has ended", self.name)));
        }
        kill(Pid::from_raw(self.child.id().cast_signed()), signal)
            .map_err(|error| TestbedError::system(format!("send {signal} to {}", self.name))(error.into()))
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            // Ignore errors: the process may have exited already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sleeps for `time`. Returns an error if the user interrupts.
pub(crate) fn pause(time: Duration, observer: &dyn Observer) -> Result<(), TestbedError> {
    let deadline = Instant::now() + time;
    loop {
        if observer.interrupted() {
            return Err(TestbedError::Interrupted);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(POLL));
    }
}

fn check(result: libc::c_int) -> std::io::Result<()> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the processors on which the calling thread may run.
pub(crate) fn own_processors() -> Result<Vec<usize>, TestbedError> {
    let allowed = sched_getaffinity(Pid::from_raw(0))
        .map_err(|errno| TestbedError::system("read the processor affinity of this process")(errno.into()))?;
    Ok((0..CpuSet::count()).filter(|number| allowed.is_set(*number).unwrap_or(false)).collect())
}

pub(crate) fn stay_on(processor: usize) -> std::io::Result<()> {
    let set = single_cpu(processor);
    // SAFETY: a set of the given size; 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) })
}

fn single_cpu(cpu: usize) -> libc::cpu_set_t {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu < libc::CPU_SETSIZE as usize {
        // SAFETY: the processor's number was checked above.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    set
}

/// Raises the calling thread's priority while this value lives. The thread starts many busy processes and
/// reads their counters, and these processes must not delay it. Threads that it starts inherit the priority,
/// but processes do not. Without the privilege, the priority stays unchanged.
pub(crate) struct Prompt {
    before: libc::c_int,
}

thread_local! {
    /// The thread's nice value before [`Prompt`] raised the priority.
    static ORDINARY: Cell<Option<libc::c_int>> = const { Cell::new(None) };
}

/// Returns the nice value that the calling thread had before an active [`Prompt`]; `None` without one.
/// Traffic runs with this value.
pub(crate) fn ordinary_nice() -> Option<libc::c_int> {
    ORDINARY.get()
}

impl Prompt {
    pub(crate) fn ahead() -> Self {
        const MOST_URGENT: libc::c_int = -20;
        // SAFETY: takes numbers; on Linux 0 is the calling thread.
        let before = unsafe {
            let before = libc::getpriority(libc::PRIO_PROCESS, 0);
            libc::setpriority(libc::PRIO_PROCESS, 0, MOST_URGENT);
            before
        };
        ORDINARY.set(Some(before));
        Self { before }
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        ORDINARY.set(None);
        // SAFETY: as above.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.before) };
    }
}
