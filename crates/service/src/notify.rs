//! Messages to the service manager (sd_notify(3)): datagrams to the socket in `NOTIFY_SOCKET`.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Sends messages. Does nothing without a service manager.
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Interval of `WATCHDOG=1`: half of `WATCHDOG_USEC`.
    interval: Option<Duration>,
    fed: Option<Instant>,
    status: String,
}

impl Notifier {
    /// Uses the socket and the watchdog settings of the process's environment.
    #[must_use]
    pub fn from_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_own = number("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
        let interval =
            number("WATCHDOG_USEC").filter(|_| is_own).map(|micros| Duration::from_micros(micros / 2));
        Self::new(std::env::var_os("NOTIFY_SOCKET"), interval)
    }

    fn new(path: Option<OsString>, interval: Option<Duration>) -> Self {
        let address = path.and_then(|path| match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            _ => SocketAddr::from_pathname(&path).ok(),
        });
        let socket = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        if let Some((socket, _)) = &socket {
            // Ignore the error: a full socket then blocks the loop for a short time.
            let _ = socket.set_nonblocking(true);
        }
        Self { socket, interval, fed: None, status: String::new() }
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // Ignore the error: the service works without a manager.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports the start of a reload; [`Self::ready`] reports the end. With `Type=notify-reload`, the
    /// manager compares the time with the time of its request.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    pub fn status(&mut self, text: &str) {
        if self.status != text {
            text.clone_into(&mut self.status);
            self.send(&format!("STATUS={}", text.replace('\n', " ")));
        }
    }

    /// Sends the watchdog message when it is due.
    pub fn feed(&mut self, now: Instant) {
        let Some(interval) = self.interval else { return };
        if self.fed.is_none_or(|fed| now.saturating_duration_since(fed) >= interval) {
            self.fed = Some(now);
            self.send("WATCHDOG=1");
        }
    }

    /// Returns the longest permitted time between two calls of [`Self::feed`]; `None` without a watchdog.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_a_path_and_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("evenkeel-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, text) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}").into()),
        ] {
            let second = Duration::from_secs(1);
            let mut notifier = Notifier::new(Some(text), Some(second));
            notifier.ready();
            assert_eq!(received(&socket), "READY=1");
            notifier.status("one");
            notifier.status("one");
            notifier.status("two\nlines");
            assert_eq!([received(&socket), received(&socket)], ["STATUS=one", "STATUS=two lines"]);
            notifier.reloading();
            assert!(received(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
            let now = Instant::now();
            notifier.feed(now);
            notifier.feed(now + second / 2);
            notifier.feed(now + second);
            notifier.stopping();
            let said = [received(&socket), received(&socket), received(&socket)];
            assert_eq!(said, ["WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]);
        }
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        let mut notifier = Notifier::new(None, None);
        notifier.ready();
        notifier.feed(Instant::now());
        Notifier::new(Some("/nonexistent/notify".into()), None).ready();
    }
}
