//! Tests `evenkeel top`: recordings through the binary, and its screen on a pseudo-terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use serde_json::{Value, json};

use support::{Ended, end, evenkeel, file, full_pipe, run, without_capabilities};

/// Time limit for the reaction to a key or signal on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

fn sample(at: u64) -> Value {
    let count = |delta: u64| json!({"total": delta * at, "delta": if at == 0 { 0 } else { delta }});
    let interface = |name: &str| {
        json!({
            "name": name, "driver": "veth", "speed_bps": null, "up": true, "root_qdisc": "mq",
            "sent_bytes": count(125_000_000), "sent_packets": count(80_000), "received_bytes": count(1000),
            "received_packets": count(10), "management": null, "queues": [], "observed": false, "flows": [],
            "active_flows": 0, "busy_flows": null, "colliding_flows": null, "nfm_1s": null, "nfm_100ms": null, "jain_1s": null, "bpf_ns": null,
        })
    };
    json!({
        "schema": 1, "at_ms": 1000 * at, "seconds": if at == 0 { 0.0 } else { 1.0 },
        "interfaces": [interface("eth0"), interface("eth1")], "processors": [], "losses": [], "losses_incomplete": false, "unread_places": [], "not_read": [],
    })
}

fn lines(count: u64) -> String {
    (0..count).map(|at| format!("{}\n", sample(at))).collect()
}

fn recording(directory: &Path, count: u64) -> PathBuf {
    file(directory, "samples.jsonl", lines(count))
}

fn replay(path: &Path, options: &[&str]) -> Ended {
    run(&[&["top", "--replay", path.to_str().unwrap()], options].concat())
}

// ---- Without a terminal ----------------------------------------------------------------------------

#[test]
fn a_replay_without_a_terminal_prints_all_samples() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 4);
    let plain = replay(&path, &[]);
    assert_eq!((plain.code, plain.stderr.as_str()), (0, ""), "{plain:?}");
    assert!(!plain.stdout.contains('\x1b'), "{plain:?}");
    let blocks: Vec<&str> = plain.stdout.split("\n\n").filter(|block| !block.is_empty()).collect();
    assert_eq!(blocks.len(), 4, "{plain:?}");
    assert!(blocks[3].starts_with("1970-01-01T00:00:03Z eth0: 1.0 Gbit/s out; no losses\n"), "{plain:?}");
    assert!(blocks[3].contains("Z eth1: ") && blocks[3].contains("not known: the flows are not observed"));
    assert_eq!(replay(&path, &["--plain"]).stdout, plain.stdout);
    // Before the first interval, losses are not known.
    assert!(blocks[0].contains("losses: known after the first interval"), "{plain:?}");
    assert!(!blocks[0].contains("no packet lost") && blocks[1].contains("no packet lost"), "{plain:?}");
    let json = replay(&path, &["--format", "json"]);
    let found: Vec<Value> = json.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((json.code, found), (0, (0..4).map(sample).collect::<Vec<_>>()));
    let one = replay(&path, &["eth1", "--format", "json"]);
    let first: Value = serde_json::from_str(one.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(first["interfaces"].as_array().unwrap().len(), 1);
    assert_eq!(first["interfaces"][0]["name"], "eth1");
    let two = replay(&path, &["eth1", "eth0"]);
    assert!(two.stdout.contains("Z eth1: ") && two.stdout.contains("Z eth0: "), "{two:?}");
}

#[test]
fn a_recording_comes_through_a_pipe() {
    let mut command = evenkeel(&["top", "--replay", "-", "--format", "json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines(3).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), lines(3).into_bytes()));
}

#[test]
fn a_reader_that_has_enough_ends_it() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 3000);
    let mut command = evenkeel(&["top", "--format", "json", "--replay"]);
    let mut child = command.arg(path).stdout(Stdio::piped()).spawn().unwrap();
    let mut bytes = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut bytes).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn damaged_recordings_are_refused_in_one_line() {
    let place = tempfile::tempdir().unwrap();
    let whole = lines(3);
    let second = whole.lines().nth(1).unwrap();
    let cases: [(&str, Vec<u8>, &str); 11] = [
        ("empty", Vec::new(), "empty is empty"),
        (
            "text",
            b"hello\n".to_vec(),
            "text:1:1: the line is no sample of `evenkeel top --record`, or is damaged: no JSON",
        ),
        (
            "cut",
            whole.replacen(second, &second[..40], 1).into_bytes(),
            "cut:2:40: the line is no sample of `evenkeel top --record`, or is damaged: ",
        ),
        ("negative", whole.replacen("\"at_ms\":1000", "\"at_ms\":-5", 1).into_bytes(), "negative:2:"),
        ("missing", whole.replacen("\"up\":true,", "", 1).into_bytes(), "the field 'up' is missing"),
        (
            "schema",
            whole.replacen("\"schema\":1", "\"schema\":7", 1).into_bytes(),
            "schema:1: recorded with schema 7",
        ),
        ("bytes", [whole.as_bytes(), b"\xff\xfe\n"].concat(), "bytes:4:"),
        ("blank", format!("{whole}\n{whole}").into_bytes(), "blank:4:"),
        (
            "order",
            [second, "\n", &whole].concat().into_bytes(),
            "order:2: the recording has an impossible figure: at_ms",
        ),
        (
            "interval",
            whole.replacen("\"seconds\":1.0", "\"seconds\":-1.0", 1).into_bytes(),
            "interval:2: the recording has an impossible figure: seconds is -1.0",
        ),
        ("only-end", b"{\"schema\":1,".to_vec(), "only-end has no complete sample"),
    ];
    for (name, content, words) in cases {
        let path = file(place.path(), name, content);
        for options in [&[][..], &["--format", "json"]] {
            let ended = replay(&path, options);
            assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{name}: {ended:?}");
            assert!(ended.stderr.contains(words), "{name}: {ended:?}");
            assert_eq!(ended.stderr.lines().count(), 1, "{name}: {ended:?}");
            assert!(!ended.stderr.contains("u64") && !ended.stderr.contains("line 1"), "{name}: {ended:?}");
        }
    }
    let path = recording(place.path(), 2);
    let unknown = replay(&path, &["eth7"]);
    assert!(
        unknown.code == 2 && unknown.stderr.contains("no interface 'eth7'; it has eth0, eth1"),
        "{unknown:?}"
    );
    assert_eq!(replay(&place.path().join("none"), &[]).code, 2);
    assert_eq!(replay(place.path(), &[]).code, 2);
}

#[test]
fn an_interrupted_recording_is_shown_to_its_last_whole_line() {
    let place = tempfile::tempdir().unwrap();
    let text = lines(3);
    let path = file(place.path(), "interrupted", &text[..text.len() - 30]);
    let ended = replay(&path, &["--format", "json"]);
    assert_eq!((ended.code, ended.stdout), (0, lines(2)));
    assert!(ended.stderr.contains("interrupted:3: the last line is incomplete"), "{}", ended.stderr);
    let unterminated = file(place.path(), "unterminated", text.trim_end());
    let ended = replay(&unterminated, &["--format", "json"]);
    assert_eq!((ended.code, ended.stdout, ended.stderr), (0, text, String::new()));
}

#[test]
fn a_recording_of_a_clock_that_was_set_back_is_shown_with_a_remark() {
    let place = tempfile::tempdir().unwrap();
    let text = lines(5).replacen("\"at_ms\":3000", "\"at_ms\":500", 1);
    let ended = replay(&file(place.path(), "back", text), &["--plain"]);
    let words = "the recorded host's clock was set back by 2.5 s before this sample";
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("back:4: {words}")), "{}", ended.stderr);
    assert_eq!(ended.stdout.matches(&format!("not read: {words}")).count(), 1, "{}", ended.stdout);
}

#[test]
fn names_in_a_recording_reach_no_terminal() {
    let place = tempfile::tempdir().unwrap();
    let text = lines(2).replace("\"eth0\"", "\"\\u001b]0;x\\u0007\\u001b[2J\"");
    let ended = replay(&file(place.path(), "names", text), &[]);
    assert!(ended.code == 0 && !ended.stdout.contains(['\x1b', '\x07']), "{ended:?}");
}

#[test]
fn without_privileges_it_says_what_is_missing() {
    let mut command = evenkeel(&["top", "lo", "--for", "1s"]);
    without_capabilities(&mut command);
    let ended = end(command);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert!(ended.stdout.contains("Z lo: ") && ended.stdout.contains("  not read: flows "), "{ended:?}");
}

#[test]
fn wrong_options_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 1);
    let path = path.to_str().unwrap();
    for options in [
        &["--interval", "100ms"][..],
        &["--interval", "1"],
        &["--for", "0s"],
        &["lo", "--plain", "--for", "500ms"],
        &["lo", "--for", "4s", "--interval", "5s", "--record", "x"],
        &["--plain", "--format", "json"],
        &["--record", "x", "--replay", path],
        &["no such interface"],
        &["nosuchif0"],
    ] {
        let ended = run(&[&["top"], options].concat());
        assert!(ended.code == 2 && ended.stdout.is_empty(), "{options:?}: {ended:?}");
    }
}

// ---- On a terminal ---------------------------------------------------------------------------------

/// The binary on a pseudo-terminal, in a separate session.
struct OnTerminal {
    child: Child,
    /// The terminal emulator's side of the pseudo-terminal.
    emulator: File,
    /// The program's side, kept open so that the test can read its settings.
    device: OwnedFd,
    seen: Arc<Mutex<String>>,
}

/// Starts a command in a separate session, on a new terminal. Returns the command and both sides of the
/// terminal.
fn spawn(mut command: Command, columns: u16, rows: u16, ignores_hangup: bool) -> (Child, File, OwnedFd) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pair = openpty(&size, None).unwrap();
    if !command.get_envs().any(|(name, _)| name == "TERM") {
        command.env("TERM", "xterm-256color");
    }
    // Set close-on-exec, so that no child of another test keeps the emulator's side open.
    nix::fcntl::fcntl(&pair.master, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).unwrap();
    let copy = || Stdio::from(pair.slave.try_clone().unwrap());
    command.stdin(copy()).stdout(copy()).stderr(copy());
    // SAFETY: the closure only makes system calls, on the descriptor of standard input.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setsid()?;
            if libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            if ignores_hangup {
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    (command.spawn().unwrap(), File::from(pair.master), pair.slave)
}

/// Returns the screen after this output. Interprets the cursor movements, erasures and characters that
/// the program writes.
fn shown(output: &str) -> String {
    let mut cells = std::collections::BTreeMap::new();
    let (mut row, mut column) = (1, 1);
    let mut rest = output.chars();
    while let Some(character) = rest.next() {
        match character {
            '\x1b' => {
                let mut sequence = String::new();
                for next in rest.by_ref().skip_while(|next| *next == '[') {
                    sequence.push(next);
                    if next.is_ascii_alphabetic() {
                        break;
                    }
                }
                if let Some(place) = sequence.strip_suffix('H') {
                    let place: Vec<u16> =
                        place.split(';').map(|number| number.parse().unwrap_or(1)).collect();
                    (row, column) = (place[0], *place.last().unwrap());
                } else if sequence == "2J" || sequence.starts_with("?1049") {
                    cells.clear();
                }
            }
            '\r' => column = 1,
            '\n' => row += 1,
            character => {
                cells.insert((row, column), character);
                column += 1;
            }
        }
    }
    let mut text = String::new();
    let (mut at_row, mut at_column) = (1, 1);
    for ((row, column), character) in cells {
        while at_row < row {
            text.push('\n');
            (at_row, at_column) = (at_row + 1, 1);
        }
        text.extend(std::iter::repeat_n(' ', usize::from(column - at_column)));
        text.push(character);
        at_column = column + 1;
    }
    text
}

impl OnTerminal {
    fn start(command: Command, columns: u16, rows: u16) -> Self {
        let (child, emulator, device) = spawn(command, columns, rows, false);
        let (mut output, seen) = (emulator.try_clone().unwrap(), Arc::new(Mutex::new(String::new())));
        let collected = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // EIO: no process has the other side open.
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                collected.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { child, emulator, device, seen }
    }

    fn replay(path: &Path, options: &[&str], columns: u16, rows: u16) -> Self {
        let mut command = evenkeel(&["top", "--replay"]);
        command.arg(path).args(options);
        Self::start(command, columns, rows)
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    fn press(&mut self, keys: &str) {
        self.emulator.write_all(keys.as_bytes()).unwrap();
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            // Query the end first: the output of a program that has ended is complete soon after.
            let has_ended = self.child.try_wait().unwrap().is_some();
            let seen = self.seen();
            if is_so(&seen) {
                return;
            }
            let is_late = Instant::now() > deadline;
            assert!(!is_late, "not within {LIMIT:?}: {what}; ended: {has_ended}; screen:\n{}", shown(&seen));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_for(&mut self, words: &str) {
        self.wait_until(words, |seen| shown(seen).contains(words));
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the call reads the structure, which lives until the call returns.
        let done = unsafe { libc::ioctl(self.device.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0);
    }

    /// Returns whether the terminal echoes keys and delivers whole lines, as a shell requires.
    fn is_usual(&self) -> bool {
        let flags = tcgetattr(self.device.as_fd()).unwrap().local_flags;
        flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG | LocalFlags::IEXTEN)
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end: {:?}", self.seen());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the program ends with this exit code, and checks that the terminal has its original
    /// settings. Returns the output after the last change back to the usual screen.
    fn assert_ends_with(mut self, code: i32) -> String {
        assert_eq!(self.wait().code(), Some(code), "{:?}", self.seen());
        self.wait_until("the usual screen", |seen| seen.contains(LEAVE));
        let seen = self.seen();
        assert!(self.is_usual(), "{seen:?}");
        let (entered, left) = (seen.matches(ENTER).count(), seen.matches(LEAVE).count());
        assert_eq!(entered, left, "{seen:?}");
        assert!(seen.rfind("\x1b[?25h") > seen.rfind("\x1b[?25l"), "the cursor is visible: {seen:?}");
        let after = seen.rsplit(LEAVE).next().unwrap().to_owned();
        assert!(!after.contains('\x1b') && !after.contains("panicked"), "{after:?}");
        after
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Ignore errors: both calls fail only if the program has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An interval that is too long for a test to see the next sample.
const STILL: [&str; 2] = ["--interval", "60min"];

#[test]
fn keys_work_and_the_terminal_is_restored() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 5);
    let mut top = OnTerminal::replay(&path, &STILL, 80, 24);
    top.wait_for("sample 1 of 5");
    assert!(!top.is_usual());
    for (keys, words) in [
        ("3", "[3 processors]"),
        ("\t", "[4 losses]"),
        ("\x1b[Z", "[3 processors]"),
        ("?", "any other key: back"),
        ("x", "[3 processors]"),
        ("\x1b[C", "sample 2 of 5"),
        ("\x1b[D", "sample 1 of 5"),
        ("/eth", "filter of processors: eth_"),
        ("\x1b", "q quit"),
        ("i", "[eth1] eth0"),
    ] {
        top.press(keys);
        top.wait_for(words);
    }
    top.press("q");
    assert_eq!(top.assert_ends_with(0), "");
}

#[test]
fn a_replay_goes_on_by_itself_until_space() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 4);
    let mut top = OnTerminal::replay(&path, &["--interval", "200ms"], 80, 24);
    top.wait_for("END  sample 4 of 4");
    top.press("q");
    top.assert_ends_with(0);
    let mut top = OnTerminal::replay(&path, &STILL, 80, 24);
    top.wait_for("sample 1 of 4");
    top.press(" ");
    top.wait_for("FROZEN");
    top.press("q");
    top.assert_ends_with(0);
}

#[test]
fn each_end_restores_the_terminal() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 2);
    let start = || {
        let mut top = OnTerminal::replay(&path, &STILL, 80, 24);
        top.wait_for("sample 1 of 2");
        top
    };
    let mut top = start();
    top.press("\x03");
    top.assert_ends_with(130);
    for (signal, code) in [(Signal::SIGTERM, 0), (Signal::SIGINT, 130), (Signal::SIGHUP, 130)] {
        let top = start();
        top.signal(signal);
        top.assert_ends_with(code);
    }
    let mut top = start();
    // Ctrl-\ would end the program with a core dump.
    top.press("\x1c3");
    top.wait_for("[3 processors]");
    top.press("q");
    top.assert_ends_with(0);
    OnTerminal::replay(&path, &["--interval", "60min", "--for", "300ms"], 80, 24).assert_ends_with(0);
}

#[test]
fn a_closed_terminal_ends_it() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 2);
    // With `nohup`, only the end of the input shows that the terminal is closed.
    for ignores_hangup in [false, true] {
        let mut command = evenkeel(&["top", "--interval", "60min", "--replay"]);
        command.arg(&path);
        let (mut child, mut emulator, device) = spawn(command, 80, 24, ignores_hangup);
        drop(device);
        let mut seen = Vec::new();
        while !shown(&String::from_utf8_lossy(&seen)).contains("sample 1 of 2") {
            let mut bytes = [0; 4096];
            let length = emulator.read(&mut bytes).unwrap();
            seen.extend_from_slice(&bytes[..length]);
        }
        drop(emulator);
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    panic!("it goes on without a terminal");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert_eq!(status.code(), Some(130), "{ignores_hangup}");
    }
}

#[test]
fn ctrl_z_suspends_it_and_it_continues() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 2);
    // A shell with job control runs the program in the foreground and continues it after a suspension.
    let mut command = Command::new("bash");
    let script = "set -m; \"$0\" top --interval 60min --replay \"$1\"; stty -a; echo suspended; read -r _; \
                  fg >/dev/null; echo ended $?";
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_evenkeel")).arg(path);
    let mut shell = OnTerminal::start(command, 80, 24);
    shell.wait_for("sample 1 of 2");
    shell.press("\x1a");
    shell.wait_for("suspended");
    let seen = shell.seen();
    let after = seen.rsplit(LEAVE).next().unwrap();
    assert!(after.contains(" icanon") && after.contains(" echo ") && after.contains(" iexten"), "{seen:?}");
    shell.press("\n");
    shell.wait_for("sample 1 of 2");
    shell.press("2");
    shell.wait_for("[2 flows]");
    shell.press("q");
    shell.wait_until("ended 0", |seen| seen.contains("ended 0"));
    shell.wait();
    assert!(shell.is_usual());
}

#[test]
fn it_follows_the_size_of_the_window() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 2);
    let mut top = OnTerminal::replay(&path, &STILL, 80, 24);
    top.wait_for("sample 1 of 2");
    for (columns, rows, words, other) in [
        (20, 5, "20×5", "sample"),
        (160, 50, " 5 fairness", "20×5"),
        (1, 1, "…", "sample"),
        // Without a reported size, the program uses the default size.
        (0, 0, "[1 queues]", "20×5"),
    ] {
        top.resize(columns, rows);
        top.wait_until(words, |seen| shown(seen).contains(words) && !shown(seen).contains(other));
    }
    top.press("q");
    top.assert_ends_with(0);
}

#[test]
fn colours_are_left_out_on_request() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 2);
    for (value, coloured) in [("1", false), ("", true)] {
        let mut command = evenkeel(&["top", "--interval", "60min", "--replay"]);
        command.arg(&path).env("NO_COLOR", value);
        let mut top = OnTerminal::start(command, 80, 24);
        // The chart of the rates is coloured.
        top.press("\x1b[C");
        top.wait_for("█");
        top.press("q");
        let seen = Arc::clone(&top.seen);
        top.assert_ends_with(0);
        assert_eq!(seen.lock().unwrap().contains("\x1b[0;32m"), coloured, "NO_COLOR={value}");
    }
}

#[test]
fn a_terminal_without_control_sequences_gets_plain_lines() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 2);
    let mut command = evenkeel(&["top", "--replay"]);
    command.arg(path).env("TERM", "dumb");
    let mut top = OnTerminal::start(command, 80, 24);
    assert_eq!(top.wait().code(), Some(0));
    top.wait_for("1970-01-01T00:00:01Z eth0: 1.0 Gbit/s out");
    assert!(!top.seen().contains('\x1b'), "{:?}", top.seen());
}

/// The terminal emulator has stopped reading, the output is blocked, and no key arrives.
#[test]
fn a_terminal_that_does_not_read_holds_nothing_up() {
    let place = tempfile::tempdir().unwrap();
    let path = recording(place.path(), 2000);
    // A full pipe as standard output simulates this terminal: plain lines use the same writer.
    let (_reader, writer) = full_pipe();
    let mut command = evenkeel(&["top", "--plain", "--replay"]);
    command.arg(path).stdout(writer).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_existing_file_is_no_place_for_a_recording() {
    let place = tempfile::tempdir().unwrap();
    let path = file(place.path(), "there", "text");
    let mut command = evenkeel(&["top", "--for", "200ms", "--record"]);
    command.arg(&path);
    let ended = end(command);
    assert!(ended.code == 2 && ended.stderr.contains("the file exists; name a new file"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "text");
}
