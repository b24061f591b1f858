//! The threads of a transfer: one that always writes, and one that reads and then works on the data.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_datapath::monotonic_ns;

use crate::traffic::stall::StallingBuffer;
use crate::traffic::worker::{Ends, Worker, set_congestion_control};

/// Bytes of a read or write, as in iperf3.
const CALL_BYTES: usize = 128 << 10;

/// The bins in which the readers count bytes, and the work of their applications.
#[derive(Debug)]
pub(super) struct Count {
    /// Start of the measurement, `CLOCK_MONOTONIC` ns; `u64::MAX` before it is known.
    pub(super) begin_ns: AtomicU64,
    pub(super) bin_ns: u64,
    pub(super) bins: usize,
    /// Processor time of the application's work per MiB.
    pub(super) work: Duration,
    /// Time that the application sleeps in each read.
    pub(super) stall: Duration,
}

pub(super) struct Transfer {
    pub(super) writer: Worker<()>,
    pub(super) reader: Worker<Vec<u64>>,
    /// The sender's socket.
    socket: TcpStream,
}

impl Transfer {
    /// Starts a transfer on a connection. It sends nothing until `released`.
    pub(super) fn start(
        (client, server): Ends,
        congestion_control: &str,
        (sender, reader): (usize, usize),
        count: &Arc<Count>,
        released: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        set_congestion_control(&client, congestion_control)?;
        let (socket, count, released) = (client.try_clone()?, Arc::clone(count), Arc::clone(released));
        Ok(Self {
            reader: Worker::start(server, Some(reader), move |stream, stop| read(stream, stop, &count))?,
            writer: Worker::start(client, Some(sender), move |stream, stop| write(stream, stop, &released))?,
            socket,
        })
    }

    /// Returns the retransmitted packets since the connection was opened.
    pub(super) fn retransmitted(&self) -> io::Result<u64> {
        // SAFETY: all zeroes is a valid value of a structure of integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the structure has the given length.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from(info.tcpi_total_retrans)) }
    }

    /// Ends the writer. Data in flight can still arrive.
    pub(super) fn end_of_data(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Write)
    }

    /// Ends both threads. Returns the payload that the application read in each bin.
    pub(super) fn finish(self) -> io::Result<Vec<u64>> {
        self.writer.finish()?;
        self.reader.finish()
    }
}

fn write(stream: &mut TcpStream, stop: &AtomicBool, released: &AtomicBool) -> io::Result<()> {
    let data = vec![0x5a; CALL_BYTES];
    while !released.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    loop {
        match stream.write(&data) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The test bed has shut the connection down.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn read(stream: &mut TcpStream, stop: &AtomicBool, count: &Count) -> io::Result<Vec<u64>> {
    let mut plain = vec![0; CALL_BYTES];
    let mut stalling = match count.stall {
        Duration::ZERO => None,
        stall => Some(StallingBuffer::new(CALL_BYTES, stall)?),
    };
    let mut bins = vec![0; count.bins];
    // Work that is due, in units of 2^-20 ns.
    let mut due = 0;
    loop {
        let buffer = match &mut stalling {
            Some(stalling) => stalling.missing()?,
            None => &mut plain[..],
        };
        let bytes = match stream.read(buffer) {
            Ok(0) => return Ok(bins),
            Ok(bytes) => bytes as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if stop.load(Ordering::Relaxed) || error.kind() == ErrorKind::ConnectionReset => {
                return Ok(bins);
            }
            Err(error) => return Err(error),
        };
        let since = monotonic_ns().checked_sub(count.begin_ns.load(Ordering::Relaxed));
        if let Some(bin) = since.and_then(|since| bins.get_mut((since / count.bin_ns.max(1)) as usize)) {
            *bin += bytes;
        }
        due += u128::from(bytes) * count.work.as_nanos();
        due -= u128::from(work((due >> 20) as u64)) << 20;
    }
}

/// Uses the processor for `time` ns. Returns the time used: `time`, or 0 if `time` is below a microsecond.
/// The caller keeps unused time for the next call.
fn work(time: u64) -> u64 {
    const LEAST: u64 = 1_000;
    if time < LEAST {
        return 0;
    }
    let end = thread_ns() + time;
    while thread_ns() < end {
        (0..64).for_each(|_| std::hint::spin_loop());
    }
    time
}

/// Returns the processor time of the calling thread, ns.
fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
