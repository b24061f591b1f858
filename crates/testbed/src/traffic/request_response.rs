//! Request-response probes over TCP: one request at a time, answered by a message of the same length. A
//! probe records the time of each exchange.
//!
//! Probes measure like sockperf's ping-pong and netperf's `TCP_RR`. However, sockperf 3.7 needs 2.4 s
//! before its first sample, which is longer than the measurement of a point in a sweep. A probe
//! consists of two threads, client and server, each with its own socket.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_datapath::monotonic_ns;

use super::worker::{Ends, Worker, set_option};

/// TOS `lowdelay` (RFC 1349): the kernel gives the packets priority `TC_PRIO_INTERACTIVE`
/// (`rt_tos2priority`).
const LOW_DELAY: i32 = 0x10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// When the client wrote the request to the socket, `CLOCK_MONOTONIC` ns.
    pub(crate) sent_ns: u64,
    /// Time until the whole answer arrived, or until the probe ended without an answer, ns.
    pub(crate) took_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) client: Worker<Vec<Exchange>>,
    pub(crate) server: Worker<()>,
}

impl Probe {
    /// Starts a probe on a connection. Each request follows the previous answer immediately. If CPUs
    /// are given, client and server are pinned to them.
    pub(crate) fn start(
        (client, server): Ends,
        message_bytes: usize,
        processors: (Option<usize>, Option<usize>),
    ) -> io::Result<Self> {
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            set_option(stream, libc::IPPROTO_IP, libc::IP_TOS, &LOW_DELAY.to_ne_bytes())?;
        }
        Ok(Self {
            server: Worker::start(server, processors.1, move |stream, stop| {
                answer(stream, stop, message_bytes)
            })?,
            client: Worker::start(client, processors.0, move |stream, stop| {
                ask(stream, stop, message_bytes)
            })?,
        })
    }

    /// Ends the probe. Returns its exchanges in order.
    pub(crate) fn finish(self) -> io::Result<Vec<Exchange>> {
        let exchanges = self.client.finish();
        // The client has shut down its end, so the server ends.
        self.server.finish()?;
        exchanges
    }
}

fn ask(stream: &mut TcpStream, stop: &AtomicBool, message_bytes: usize) -> io::Result<Vec<Exchange>> {
    let mut message = vec![0x5a; message_bytes];
    let mut exchanges = Vec::new();
    loop {
        let sent_ns = monotonic_ns();
        let result = stream.write_all(&message).and_then(|()| stream.read_exact(&mut message));
        exchanges.push(Exchange { sent_ns, took_ns: monotonic_ns().saturating_sub(sent_ns) });
        if stop.load(Ordering::Relaxed) {
            return Ok(exchanges);
        }
        result?;
    }
}

fn answer(stream: &mut TcpStream, stop: &AtomicBool, message_bytes: usize) -> io::Result<()> {
    let mut message = vec![0; message_bytes];
    loop {
        match stream.read_exact(&mut message).and_then(|()| stream.write_all(&message)) {
            Ok(()) => {}
            // The probe is stopping, or the client has closed the connection.
            Err(error)
                if stop.load(Ordering::Relaxed)
                    || matches!(
                        error.kind(),
                        io::ErrorKind::UnexpectedEof
                            | io::ErrorKind::BrokenPipe
                            | io::ErrorKind::ConnectionReset
                    ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;
    use std::time::Duration;

    fn ends() -> Ends {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn exchanges_follow_one_another() {
        for message_bytes in [1, 64, 200_000] {
            let probe = Probe::start(ends(), message_bytes, (None, None)).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let exchanges = probe.finish().unwrap();
            assert!(exchanges.len() > 10, "{message_bytes} bytes: {}", exchanges.len());
            for pair in exchanges.windows(2) {
                assert!(pair[0].took_ns > 0 && pair[1].sent_ns >= pair[0].sent_ns + pair[0].took_ns);
            }
        }
    }

    /// Checks that an unanswered request is recorded with its waiting time.
    #[test]
    fn a_request_without_an_answer_is_not_forgotten() {
        let (client, server) = ends();
        let mut probe = Worker::start(client, None, |stream, stop| ask(stream, stop, 64)).map(Some).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let exchanges = probe.take().unwrap().finish().unwrap();
        assert_eq!(exchanges.len(), 1);
        assert!(exchanges[0].took_ns >= 45_000_000, "{exchanges:?}");
        drop(server);
    }

    #[test]
    fn a_probe_ends_when_it_is_dropped() {
        let (client, server) = ends();
        let mut keep = client.try_clone().unwrap();
        drop(Probe::start((client, server), 64, (None, None)).unwrap());
        keep.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(keep.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
}
