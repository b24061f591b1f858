//! The terminal of `top`: single keys, the alternate screen, and output of changed cells only.
//!
//! The terminal is restored when [`Terminal`] is dropped, when the process panics, while the process is
//! suspended, and before a signal handler ends the process. Ctrl-C and Ctrl-Z remain signals.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use evenkeel_monitor::view::KeyPress;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::sys::termios::{
    InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use terminal_size::{Height, Width, terminal_size_of};

use super::keys::Decoder;
use crate::exit::{Exit, Failure, written};
use crate::{output, signals};

/// Enters the alternate screen, hides the cursor and clears the screen (xterm's control sequences;
/// ECMA-48: ED).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// Resets the attributes, shows the cursor and returns to the normal screen.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
const CLEAR: &[u8] = b"\x1b[0m\x1b[2J";

/// Time without a further byte after which a key is complete.
const KEY_TIME: Duration = Duration::from_millis(30);

/// The terminal's original settings, for a panic and for signal handlers.
static BEFORE: OnceLock<(RawFd, libc::termios)> = OnceLock::new();
/// Whether the terminal must be restored.
static ENTERED: AtomicBool = AtomicBool::new(false);

pub struct Terminal {
    /// The terminal for keys: standard input, or the controlling terminal.
    input: File,
    before: Termios,
    decoder: Decoder,
    /// The cells that the terminal shows.
    shown: Buffer,
    suspends: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Key(KeyPress),
    /// Everything must be drawn again.
    Redraw,
    Closed,
}

impl Terminal {
    /// Takes the terminal. Returns `None` if standard output is no terminal or supports no control
    /// sequences, or if no keys can be read.
    pub fn open() -> Result<Option<Self>, Failure> {
        if !io::stdout().is_terminal() || std::env::var_os("TERM").is_some_and(|kind| kind == "dumb") {
            return Ok(None);
        }
        let input = if io::stdin().is_terminal() {
            io::stdin().as_fd().try_clone_to_owned().map(File::from)
        } else {
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/tty")
        };
        let Ok(input) = input else { return Ok(None) };
        let before = tcgetattr(&input).map_err(failed)?;
        let mut terminal = Self {
            before: before.clone(),
            decoder: Decoder::default(),
            shown: Buffer::empty(Rect::ZERO),
            suspends: signals::flag(libc::SIGTSTP)?,
            continued: signals::flag(libc::SIGCONT)?,
            resized: signals::flag(libc::SIGWINCH)?,
            input,
        };
        let _ = BEFORE.set((terminal.input.as_raw_fd(), before.into()));
        signals::at_end(restore_at_once);
        restore_at_panic();
        terminal.enter()?;
        Ok(Some(terminal))
    }

    /// Takes the terminal. Returns [`Event::Redraw`], or [`Event::Closed`] if the terminal was closed.
    fn enter(&mut self) -> Result<Event, Failure> {
        let mut settings = self.before.clone();
        // Deliver keys one by one, without echo. Keep ISIG, so that Ctrl-C is SIGINT even if this
        // thread is busy.
        settings.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::IEXTEN);
        // Ctrl-S must not stop the output, because that would block the writer.
        settings.input_flags.remove(InputFlags::IXON);
        settings.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
        settings.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        // Ctrl-\ would end the process without restoring the terminal; 0 is _POSIX_VDISABLE.
        settings.control_chars[SpecialCharacterIndices::VQUIT as usize] = 0;
        ENTERED.store(true, Ordering::SeqCst);
        match tcsetattr(&self.input, SetArg::TCSADRAIN, &settings) {
            // The kernel sends SIGHUP and SIGCONT when the terminal is closed; SIGCONT leads here.
            Err(Errno::EIO) => return Ok(Event::Closed),
            set => set.map_err(failed)?,
        }
        self.shown = Buffer::empty(Rect::ZERO);
        written(output::result(ENTER))?;
        Ok(Event::Redraw)
    }

    /// Restores the terminal. Ignores errors, because the terminal may be closed.
    fn leave(&mut self) {
        if ENTERED.swap(false, Ordering::SeqCst) {
            let _ = output::result(LEAVE);
            let _ = tcsetattr(&self.input, SetArg::TCSADRAIN, &self.before);
        }
    }

    /// Returns the size: columns and rows. The size is 0 by 0 if the terminal reports none.
    pub fn area(&self) -> Rect {
        let size =
            terminal_size_of(io::stdout()).map_or((0, 0), |(Width(width), Height(height))| (width, height));
        Rect::new(0, 0, size.0, size.1)
    }

    /// Writes the cells that differ from the cells on the screen.
    pub fn show(&mut self, next: Buffer) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        if self.shown.area != next.area {
            bytes.extend_from_slice(CLEAR);
            self.shown = Buffer::empty(next.area);
        }
        encode(&self.shown.diff(&next), &mut bytes);
        self.shown = next;
        if bytes.is_empty() { Ok(()) } else { written(output::result(&bytes)) }
    }

    /// Waits for an event, up to a time limit. A signal ends the wait.
    pub fn wait(&mut self, limit: Duration) -> Result<Vec<Event>, Failure> {
        let limit = if self.decoder.is_incomplete() { limit.min(KEY_TIME) } else { limit };
        let mut events = self.read_keys(limit)?;
        if self.suspends.swap(false, Ordering::Relaxed) {
            events.push(self.suspend()?);
        } else if self.continued.swap(false, Ordering::Relaxed) {
            // A shell may have used the terminal after SIGSTOP.
            events.push(self.enter()?);
        }
        if self.resized.swap(false, Ordering::Relaxed) {
            events.push(Event::Redraw);
        }
        Ok(events)
    }

    fn read_keys(&mut self, limit: Duration) -> Result<Vec<Event>, Failure> {
        let timeout = PollTimeout::try_from(limit.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let mut files = [PollFd::new(self.input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, timeout) {
            Ok(0) => return Ok(self.decoder.time_out().map(Event::Key).into_iter().collect()),
            Err(Errno::EINTR) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
            Ok(_) => {}
        }
        let mut bytes = [0; 1024];
        match (&self.input).read(&mut bytes) {
            Ok(0) => Ok(vec![Event::Closed]),
            Ok(length) => Ok(self.decoder.take(&bytes[..length]).into_iter().map(Event::Key).collect()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            // For example EIO: the terminal was closed, or this process is in the background.
            Err(_) => Ok(vec![Event::Closed]),
        }
    }

    /// Stops the process as the terminal's driver would. Takes the terminal again when the process
    /// continues.
    fn suspend(&mut self) -> Result<Event, Failure> {
        self.leave();
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // Use the signal's default action instead of SIGSTOP: the kernel does not stop a process that
        // no shell could continue. SAFETY: the default action runs no code of this process.
        let own = unsafe { sigaction(Signal::SIGTSTP, &default) }.map_err(failed)?;
        let raised = raise(Signal::SIGTSTP);
        // SAFETY: the call installs the previous handler again.
        unsafe { sigaction(Signal::SIGTSTP, &own) }.map_err(failed)?;
        raised.map_err(failed)?;
        self.continued.store(false, Ordering::Relaxed);
        self.enter()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("cannot use the terminal: {error}; use --plain, or --format json"))
}

/// Restores the terminal in a signal handler, or after a panic. Uses only system calls
/// (signal-safety(7)). Writes nothing to a terminal that accepts no bytes.
fn restore_at_once() {
    if !ENTERED.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut file = libc::pollfd { fd: libc::STDOUT_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: poll fills the structure, which lives until it returns.
    let is_ready = unsafe { libc::poll(&raw mut file, 1, 0) } == 1 && file.revents & libc::POLLOUT != 0;
    if is_ready {
        // SAFETY: the call writes the bytes of a constant.
        unsafe { libc::write(libc::STDOUT_FILENO, LEAVE.as_ptr().cast(), LEAVE.len()) };
    }
    if let Some((file, before)) = BEFORE.get() {
        // SAFETY: the settings are constant. A closed descriptor only causes an error, which is
        // ignored.
        unsafe { libc::tcsetattr(*file, libc::TCSANOW, before) };
    }
}

fn restore_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            restore_at_once();
            next(what);
        }));
    });
}

/// Encodes cells: cursor movements (ECMA-48: CUP), attributes (SGR) and characters.
fn encode(cells: &[(u16, u16, &Cell)], bytes: &mut Vec<u8>) {
    let mut next = None;
    let mut style = None;
    for (x, y, cell) in cells {
        if next != Some((*x, *y)) {
            // Ignore the error: a write to memory does not fail.
            let _ = write!(bytes, "\x1b[{};{}H", y + 1, x + 1);
        }
        let wanted = (cell.modifier, cell.fg);
        if style != Some(wanted) {
            bytes.extend_from_slice(b"\x1b[0");
            for (modifier, code) in [(Modifier::BOLD, 1), (Modifier::UNDERLINED, 4), (Modifier::REVERSED, 7)]
            {
                if cell.modifier.contains(modifier) {
                    let _ = write!(bytes, ";{code}");
                }
            }
            let colour = match cell.fg {
                Color::Red => Some(31),
                Color::Green => Some(32),
                Color::Cyan => Some(36),
                _ => None,
            };
            if let Some(colour) = colour {
                let _ = write!(bytes, ";{colour}");
            }
            bytes.push(b'm');
            style = Some(wanted);
        }
        bytes.extend_from_slice(cell.symbol().as_bytes());
        // The cursor position after a wide character is uncertain, so move the cursor.
        next = (cell.symbol().chars().count() == 1 && is_narrow(cell.symbol())).then_some((x + 1, *y));
    }
    if style.is_some() {
        bytes.extend_from_slice(b"\x1b[0m");
    }
}

/// Returns whether a character certainly takes one column: ASCII, and the symbols that the views use.
fn is_narrow(symbol: &str) -> bool {
    symbol.chars().all(|character| character.is_ascii() || ('▁'..='█').contains(&character))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::process::{Command, Stdio};

    use nix::pty::openpty;

    use super::*;

    #[test]
    #[ignore = "a_panic_restores_the_terminal starts it on a terminal"]
    fn panics_on_a_terminal() {
        let _terminal = Terminal::open().unwrap().expect("a terminal");
        panic!("on purpose");
    }

    #[test]
    fn a_panic_restores_the_terminal() {
        let pair = openpty(None, None).unwrap();
        let before = tcgetattr(&pair.slave).unwrap();
        let copy = || Stdio::from(pair.slave.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "top::terminal::tests::panics_on_a_terminal"]);
        command.env("TERM", "xterm").stdin(copy()).stdout(copy()).stderr(copy());
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut emulator = File::from(pair.master);
        let (mut seen, mut bytes) = (String::new(), [0; 4096]);
        while !seen.contains("on purpose") || child.try_wait().unwrap().is_none() {
            let mut files = [PollFd::new(emulator.as_fd(), PollFlags::POLLIN)];
            if poll(&mut files, 20_u8).unwrap() > 0 {
                let length = emulator.read(&mut bytes).unwrap();
                seen.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
            assert!(seen.len() < 1 << 20, "{seen}");
        }
        let place =
            |text: &[u8]| seen.find(std::str::from_utf8(text).unwrap()).unwrap_or_else(|| panic!("{seen:?}"));
        assert!(place(ENTER) < place(LEAVE) && place(LEAVE) < place(b"on purpose"), "{seen:?}");
        assert_eq!(tcgetattr(&pair.slave).unwrap(), before);
    }

    #[test]
    fn only_changed_cells_are_written() {
        let area = Rect::new(0, 0, 4, 2);
        let mut next = Buffer::empty(area);
        next.set_string(1, 1, "ab", ratatui_core::style::Style::new().fg(Color::Red));
        next.set_string(0, 0, "日x", ratatui_core::style::Style::new());
        let mut bytes = Vec::new();
        encode(&Buffer::empty(area).diff(&next), &mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text, "\x1b[1;1H\x1b[0m日\x1b[1;3Hx\x1b[2;2H\x1b[0;31mab\x1b[0m");
        let mut bytes = Vec::new();
        encode(&next.diff(&next.clone()), &mut bytes);
        assert!(bytes.is_empty());
    }
}
