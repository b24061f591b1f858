//! Runs commands that a test can interrupt or kill, and scenarios on this machine's kernel.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::leftovers::Holdings;
use super::{Ended, ended, evenkeel, file};

/// Time limit of a command on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(5);

/// Six flows for a second, at a rate that two busy cores can carry.
pub const SCENARIO: &str = r#"schema = 1
name = "small"
title = "Six slow flows on eight queues"
variant-table = "titan"
variants = ["cmax", "dqa"]

[link]
rate = "200mbit"
queues = 8

[hosts]
sending-cores = 4

[workload]
flows = 6

[measure]
warmup = "300ms"
long-windows = 1
repeats = 1

[measure.windows]
10ms = "10ms"
1s = "1s"
"#;

pub const PROBE: &str = "\n[workload.latency]\nduration = \"1s\"\n";

pub struct Place {
    directory: tempfile::TempDir,
    scenario: PathBuf,
}

impl Place {
    pub fn new(scenario: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("tmp")).unwrap();
        let scenario = file(directory.path(), "small.toml", scenario);
        Self { directory, scenario }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a command that runs the scenario in this directory, with additional arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = evenkeel(&["run"]);
        command.arg(&self.scenario).args(["--on", "netns"]).args(arguments);
        command.current_dir(self.path()).env("TMPDIR", self.path().join("tmp"));
        command
    }

    /// Returns the names of files in this directory. Leaves out files of the test and the empty
    /// directory that a killed run creates for its record.
    pub fn written(&self) -> Vec<String> {
        let list = |path: &Path| {
            let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            entries.map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        let mut found = list(self.path());
        let records = self.path().join("evenkeel-records");
        let is_filled = |place: &Path| std::fs::read_dir(place).is_ok_and(|mut found| found.next().is_some());
        let has_record = std::fs::read_dir(&records)
            .is_ok_and(|found| found.flatten().any(|entry| is_filled(&entry.path())));
        found.retain(|name| !["tmp", "small.toml"].contains(&name.as_str()));
        found.retain(|name| has_record || name != "evenkeel-records");
        found.extend(list(&self.path().join("tmp")).iter().map(|name| format!("tmp/{name}")));
        found
    }
}

/// A running command. Dropping the value kills the command.
pub struct Running {
    child: Option<Child>,
    stderr: Arc<Mutex<String>>,
    readers: Option<(JoinHandle<Vec<u8>>, JoinHandle<()>)>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stdout, errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let stderr = Arc::new(Mutex::new(String::new()));
        let collected = Arc::clone(&stderr);
        let readers = (
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stdout.read_to_end(&mut bytes).unwrap();
                bytes
            }),
            std::thread::spawn(move || {
                for line in BufReader::new(errors).lines() {
                    let mut text = collected.lock().unwrap();
                    text.push_str(&line.unwrap());
                    text.push('\n');
                }
            }),
        );
        Self { child: Some(child), stderr, readers: Some(readers) }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    pub fn id(&mut self) -> u32 {
        self.child().id()
    }

    pub fn said(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits until standard error contains these words. Panics if the command ends before that.
    pub fn wait_for_activity(&mut self, words: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = self.stderr.lock().unwrap().clone();
            if said.contains(words) {
                return;
            }
            let status = self.child().try_wait().unwrap();
            assert!(status.is_none(), "it ended with {status:?} before {words:?}: {said}");
            assert!(Instant::now() < deadline, "not within {LIMIT:?}: {words:?}; it said: {said}");
            std::thread::sleep(POLL);
        }
    }

    /// Waits until the run holds at least two namespaces, a child process, and the programs of the
    /// queue choice and the meter. Returns all kernel objects that the run holds.
    pub fn full_holdings(&mut self) -> Holdings {
        let deadline = Instant::now() + LIMIT;
        loop {
            let held = self.holdings();
            if held.namespaces.len() >= 2
                && !held.children.is_empty()
                && held.programs.len() >= 3
                && held.links.len() >= 2
            {
                return held;
            }
            assert!(Instant::now() < deadline, "{held:?}");
            std::thread::sleep(POLL);
        }
    }

    /// Returns all kernel objects that the run holds.
    pub fn holdings(&mut self) -> Holdings {
        Holdings::of(self.child().id())
    }

    /// Returns all kernel objects that the run holds except namespaces, for a run in a namespace of the
    /// test.
    pub fn holdings_but_namespaces(&mut self) -> Holdings {
        Holdings { namespaces: Default::default(), ..self.holdings() }
    }

    pub fn signal(&mut self, signal: Signal) {
        let process = Pid::from_raw(self.child().id().try_into().unwrap());
        kill(process, signal).unwrap();
    }

    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        let status = self.child().wait().unwrap();
        assert_eq!(status.code(), None, "it had ended by itself: {status:?}");
    }

    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child().try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it did not end within {LIMIT:?}: {:?}", self.stderr);
            std::thread::sleep(POLL);
        };
        let (stdout, stderr) = self.readers.take().unwrap();
        let stdout = stdout.join().unwrap();
        stderr.join().unwrap();
        let stderr = self.stderr.lock().unwrap().clone().into_bytes();
        ended(Output { status, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Ignore errors: both calls fail only if the run has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
