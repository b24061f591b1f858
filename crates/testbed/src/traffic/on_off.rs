//! On-off sources, each on one TCP connection. iperf3 does not support on and off times.
//!
//! A source consists of a writing thread, and a reading thread at the other end. During its on time, a
//! source always has data. `SO_SNDBUF` and `TCP_NOTSENT_LOWAT` limit the data in its socket and its qdisc.
//! The source therefore stops sending soon after the end of its on time, instead of draining megabytes
//! from its buffer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_datapath::monotonic_ns;
use evenkeel_model::scenario::OnOff;

use super::worker::{Ends, Worker, set_congestion_control, set_option};

/// Number of unsent bytes at which the socket accepts no more data.
const LOW_WATER_BYTES: u32 = 32 << 10;
/// Size of the socket's send buffer, which includes data in the qdisc. The kernel doubles this size for
/// its own headers. The buffer therefore holds about two of the largest segments, as with TCP small
/// queues.
const BUFFER_BYTES: i32 = 64 << 10;
/// Size of a read, bytes. This is iperf3's default.
const READ_BYTES: usize = 128 << 10;
/// Longest wait before the source checks whether it should end.
const LOOK: Duration = Duration::from_millis(20);

/// On and off times of several sources. The start time can change.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    times: OnOff,
    /// Start of the first on time, `CLOCK_MONOTONIC`, ns.
    begin_ns: Arc<AtomicU64>,
}

impl Schedule {
    pub(crate) fn new(times: OnOff) -> Self {
        Self { times, begin_ns: Arc::new(AtomicU64::new(monotonic_ns())) }
    }

    /// Begins an on time at `at_ns`.
    pub(crate) fn begin(&self, at_ns: u64) {
        self.begin_ns.store(at_ns, Ordering::Relaxed);
    }

    /// Returns whether `now_ns` is in an on time, and the remaining length of the on or off time.
    fn phase(&self, now_ns: u64) -> (bool, Duration) {
        let (on, off) = (self.times.on.as_u64(), self.times.off.as_u64());
        let period = i128::from(on.saturating_add(off).max(1));
        let since = i128::from(now_ns) - i128::from(self.begin_ns.load(Ordering::Relaxed));
        let into = u64::try_from(since.rem_euclid(period)).unwrap_or(0);
        let (sends, left) = if into < on { (true, on - into) } else { (false, on + off - into) };
        (sends, Duration::from_nanos(left))
    }

    /// Returns the ranges of bins that are completely in on times, for a measurement that begins with an on
    /// time.
    pub(crate) fn sending_bins(times: OnOff, bin_ns: u64, bins: usize) -> Vec<std::ops::Range<usize>> {
        let (on, off, bin) = (times.on.as_u64(), times.off.as_u64(), bin_ns.max(1));
        let period = on.saturating_add(off).max(1);
        let end = bin.saturating_mul(bins as u64);
        (0..end.div_ceil(period))
            .map(|turn| {
                let from = turn * period;
                (from.div_ceil(bin) as usize)..(from.saturating_add(on).min(end) / bin) as usize
            })
            .filter(|range| range.start < range.end)
            .collect()
    }
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) client: Worker<u64>,
    pub(crate) server: Worker<u64>,
}

impl Source {
    /// Starts a source on a connection. The source sends nothing until `released`. If CPUs are given,
    /// client and server are pinned to them.
    pub(crate) fn start(
        (client, server): Ends,
        length: usize,
        congestion_control: &str,
        schedule: Schedule,
        released: Arc<AtomicBool>,
        processors: (Option<usize>, Option<usize>),
    ) -> io::Result<Self> {
        set_congestion_control(&client, congestion_control)?;
        set_option(&client, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &LOW_WATER_BYTES.to_ne_bytes())?;
        set_option(&client, libc::SOL_SOCKET, libc::SO_SNDBUF, &BUFFER_BYTES.to_ne_bytes())?;
        client.set_nonblocking(true)?;
        Ok(Self {
            server: Worker::start(server, processors.1, read_all)?,
            client: Worker::start(client, processors.0, move |stream, stop| {
                while !released.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                send(stream, stop, length, &schedule)
            })?,
        })
    }

    /// Ends the source. Returns the bytes written and read.
    pub(crate) fn finish(self) -> io::Result<(u64, u64)> {
        let written = self.client.finish()?;
        Ok((written, self.server.finish()?))
    }
}

fn send(stream: &mut TcpStream, stop: &AtomicBool, length: usize, schedule: &Schedule) -> io::Result<u64> {
    let data = vec![0x5a; length.max(1)];
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        let (sends, left) = schedule.phase(monotonic_ns());
        if !sends {
            std::thread::sleep(left.min(LOOK));
            continue;
        }
        match stream.write(&data) {
            Ok(bytes) => written += bytes as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_room(stream, left.min(LOOK))?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) if stop.load(Ordering::Relaxed) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Waits until the socket is writable, for at most `time`.
fn wait_for_room(stream: &TcpStream, time: Duration) -> io::Result<()> {
    let mut watched = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let limit = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(time.subsec_nanos()),
    };
    // SAFETY: one entry, as given, and a timeout; no signal mask.
    let result = unsafe { libc::ppoll(&raw mut watched, 1, &limit, std::ptr::null()) };
    let error = io::Error::last_os_error();
    if result < 0 && error.kind() != ErrorKind::Interrupted { Err(error) } else { Ok(()) }
}

fn read_all(stream: &mut TcpStream, stop: &AtomicBool) -> io::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut read = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(read),
            Ok(bytes) => read += bytes as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if stop.load(Ordering::Relaxed) || error.kind() == ErrorKind::ConnectionReset => {
                return Ok(read);
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use evenkeel_model::units::Nanoseconds;
    use std::net::TcpListener;

    const TIMES: OnOff = OnOff { on: Nanoseconds::from_millis(30), off: Nanoseconds::from_millis(70) };

    #[test]
    fn phases_alternate_before_and_after_the_beginning() {
        let schedule = Schedule::new(TIMES);
        let at = 1_000_000_000;
        schedule.begin(at);
        let phase = |millis: i64| schedule.phase(at.wrapping_add_signed(millis * 1_000_000));
        let ms = Duration::from_millis;
        assert_eq!(phase(0), (true, ms(30)));
        assert_eq!(phase(29), (true, ms(1)));
        assert_eq!(phase(30), (false, ms(70)));
        assert_eq!(phase(99), (false, ms(1)));
        assert_eq!(phase(100), (true, ms(30)));
        assert_eq!(phase(-1), (false, ms(1)));
        assert_eq!(phase(-100), (true, ms(30)));
    }

    #[test]
    fn bins_of_sending_are_whole_ones() {
        let bins = |bin_ms: u64, count| Schedule::sending_bins(TIMES, bin_ms * 1_000_000, count);
        assert_eq!(bins(1, 250), [0..30, 100..130, 200..230]);
        assert_eq!(bins(1, 210), [0..30, 100..130, 200..210]);
        assert_eq!(bins(20, 10), [0..1, 5..6]);
        assert_eq!(bins(40, 10), []);
    }

    fn run(times: OnOff, release: bool) -> (u64, u64) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let released = Arc::new(AtomicBool::new(false));
        let source = Source::start(
            (client, server),
            4096,
            "cubic",
            Schedule::new(times),
            Arc::clone(&released),
            (None, None),
        )
        .unwrap();
        released.store(release, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
        source.finish().unwrap()
    }

    #[test]
    fn it_sends_when_it_should_and_is_silent_otherwise() {
        let hour = Nanoseconds::from_secs(3600);
        let (always, never) =
            (OnOff { on: hour, off: Nanoseconds::new(0) }, OnOff { on: Nanoseconds::new(0), off: hour });
        assert_eq!(run(always, false), (0, 0), "held");
        assert_eq!(run(never, true), (0, 0));
        let (written, read) = run(always, true);
        assert!(written > 1_000_000 && read > 0 && read <= written, "{written} {read}");
    }
}
