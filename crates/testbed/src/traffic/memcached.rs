//! A load on memcached. With a rate, the loop is open: a request is sent when it is due, even if previous
//! requests are unanswered. A latency counts from the time at which the request was *due*. A stall of the
//! server or the network therefore increases the latency of every request that was due during the stall.
//! A closed loop would not send these requests ("coordinated omission").
//!
//! The protocol is memcached's text protocol over TCP (`doc/protocol.txt`). A request is a `get` of one
//! key or a `set` of one value. In an open loop, each connection can have many requests in flight, and
//! requests are due at the times of a Poisson process, generated from a seed. A single thread sends and
//! receives. The thread sleeps between requests to use little CPU time.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::TestbedError;
use crate::namespace::Namespace;

#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub server: SocketAddr,
    /// Number of connections. Each connection is a flow.
    pub connections: usize,
    /// Requests per second over all connections; `None`: a closed loop with one request in flight per
    /// connection.
    pub rate: Option<f64>,
    /// Time during which requests are sent.
    pub time: Duration,
    /// Length of a value, bytes.
    pub value: usize,
    /// Share of requests that set a value, per cent.
    pub sets_percent: u32,
    /// Number of keys. The load begins after all keys are set.
    pub keys: u32,
    pub seed: u64,
    pub cpu: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct LoadResult {
    /// Time from the due time of a request to its complete answer, for each answered request.
    pub latencies_ns: Vec<u64>,
    pub due: usize,
    /// Time from the first request to the end of the load. An open loop includes the wait for late answers.
    pub elapsed: Duration,
}

impl LoadResult {
    /// Returns a quantile of the latency, ns. Unanswered requests count as the slowest requests. Returns
    /// `None` without requests, or if the quantile falls on an unanswered request.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let mut sorted = self.latencies_ns.clone();
        sorted.sort_unstable();
        let rank = (share * self.due.max(sorted.len()) as f64).ceil().max(1.0) as usize - 1;
        sorted.get(rank).copied()
    }

    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.latencies_ns.len() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Time limit for the answers of an open loop, from the end of the sending time.
const DRAIN: Duration = Duration::from_secs(2);
/// Time limit for a single answer before the load begins.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pseudo-random number generator: xorshift64* (Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number in (0, 1].
    fn fraction(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

struct Pending {
    due: Instant,
    /// Length of the answer, bytes.
    answer: usize,
}

struct Connection {
    stream: TcpStream,
    pending: VecDeque<Pending>,
    unsent: VecDeque<u8>,
    /// Number of received bytes of the first pending answer.
    received: usize,
}

struct Load<'o> {
    options: &'o LoadOptions,
    connections: Vec<Connection>,
    random: Random,
    value: Vec<u8>,
    result: LoadResult,
}

/// Runs a load on a server from inside a namespace, on a separate thread.
///
/// # Errors
/// Returns an error if the thread cannot be pinned, the server cannot be reached or closes a connection, or
/// an answer is invalid.
pub fn load(namespace: &Namespace, options: &LoadOptions) -> Result<LoadResult, TestbedError> {
    namespace.run(|| {
        if let Some(cpu) = options.cpu {
            let mut pinned = CpuSet::new();
            pinned
                .set(cpu)
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &pinned))
                .map_err(|error| TestbedError::system(format!("run on processor {cpu}"))(error.into()))?;
        }
        run(options)
            .map_err(TestbedError::system(format!("send requests to memcached at {}", options.server)))
    })
}

fn run(options: &LoadOptions) -> io::Result<LoadResult> {
    // SAFETY: takes numbers. The thread's sleeps then end within a microsecond of their time.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000, 0, 0, 0) };
    let mut connections = Vec::with_capacity(options.connections);
    for _ in 0..options.connections {
        let stream = TcpStream::connect(options.server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        connections.push(Connection {
            stream,
            pending: VecDeque::new(),
            unsent: VecDeque::new(),
            received: 0,
        });
    }
    let mut load = Load {
        options,
        connections,
        random: Random(options.seed | 1),
        value: vec![b'v'; options.value],
        result: LoadResult::default(),
    };
    load.fill()?;
    for connection in &load.connections {
        connection.stream.set_nonblocking(true)?;
    }
    match options.rate {
        Some(rate) => load.open_loop(rate)?,
        None => load.closed_loop()?,
    }
    Ok(load.result)
}

fn unexpected(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

impl Load<'_> {
    fn key(number: u32) -> String {
        format!("key-{number:08}")
    }

    fn set_request(&self, key: u32) -> Vec<u8> {
        let mut request = format!("set {} 0 0 {}\r\n", Self::key(key), self.value.len()).into_bytes();
        request.extend(&self.value);
        request.extend(b"\r\n");
        request
    }

    /// Sets every key, so that the length of every later answer is known.
    fn fill(&mut self) -> io::Result<()> {
        for key in 0..self.options.keys.max(1) {
            let request = self.set_request(key);
            let Some(connection) = self.connections.first_mut() else { return Ok(()) };
            connection.stream.write_all(&request)?;
            let mut answer = [0; 8];
            connection.stream.read_exact(&mut answer)?;
            if &answer != b"STORED\r\n" {
                return Err(unexpected(format!("'{}'", String::from_utf8_lossy(&answer).escape_debug())));
            }
        }
        Ok(())
    }

    /// Returns a request, and the length of its answer.
    fn request(&mut self) -> (Vec<u8>, usize) {
        let key = (self.random.next() % u64::from(self.options.keys.max(1))) as u32;
        if self.random.next() % 100 < u64::from(self.options.sets_percent) {
            return (self.set_request(key), "STORED\r\n".len());
        }
        let name = Self::key(key);
        let head = format!("VALUE {name} 0 {}\r\n", self.value.len());
        (format!("get {name}\r\n").into_bytes(), head.len() + self.value.len() + "\r\nEND\r\n".len())
    }

    fn send(&mut self, on: usize, due: Instant) -> io::Result<()> {
        let (request, answer) = self.request();
        self.result.due += 1;
        let connection = &mut self.connections[on];
        connection.pending.push_back(Pending { due, answer });
        connection.unsent.extend(request);
        connection.flush()
    }

    fn open_loop(&mut self, rate: f64) -> io::Result<()> {
        let began = Instant::now();
        let end = began + self.options.time;
        let mut due = began;
        let mut turn = 0;
        loop {
            let now = Instant::now();
            while due <= now && due < end {
                self.send(turn, due)?;
                turn = (turn + 1) % self.connections.len().max(1);
                due += Duration::from_secs_f64(-self.random.fraction().ln() / rate);
            }
            let is_over = due >= end;
            let waiting = self.connections.iter().any(|connection| !connection.pending.is_empty());
            if is_over && (!waiting || now >= end + DRAIN) {
                self.result.elapsed = began.elapsed();
                return Ok(());
            }
            let until = if is_over { now + Duration::from_millis(10) } else { due };
            self.wait(until.saturating_duration_since(Instant::now()))?;
            self.receive(|_, _| Ok(()))?;
        }
    }

    fn closed_loop(&mut self) -> io::Result<()> {
        let began = Instant::now();
        let end = began + self.options.time;
        for connection in 0..self.connections.len() {
            self.send(connection, Instant::now())?;
        }
        while Instant::now() < end {
            self.wait(Duration::from_millis(10))?;
            self.receive(|load, connection| load.send(connection, Instant::now()))?;
        }
        self.result.elapsed = began.elapsed();
        Ok(())
    }

    /// Sleeps until a connection is readable or writable, or for at most `time`.
    fn wait(&self, time: Duration) -> io::Result<()> {
        let mut watched: Vec<libc::pollfd> = self
            .connections
            .iter()
            .map(|connection| libc::pollfd {
                fd: connection.stream.as_raw_fd(),
                events: if connection.unsent.is_empty() {
                    libc::POLLIN
                } else {
                    libc::POLLIN | libc::POLLOUT
                },
                revents: 0,
            })
            .collect();
        let limit = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(time.subsec_nanos()),
        };
        // SAFETY: an array of the given length, and a timeout; no signal mask.
        let result = unsafe {
            libc::ppoll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, &limit, std::ptr::null())
        };
        let error = io::Error::last_os_error();
        if result < 0 && error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        Ok(())
    }

    /// Sends unsent bytes and reads all available answers. Calls `answered` once per answer with the index of
    /// its connection.
    fn receive(&mut self, mut answered: impl FnMut(&mut Self, usize) -> io::Result<()>) -> io::Result<()> {
        for on in 0..self.connections.len() {
            self.connections[on].flush()?;
            let now_answered = self.connections[on].read(&mut self.result.latencies_ns)?;
            for _ in 0..now_answered {
                answered(self, on)?;
            }
        }
        Ok(())
    }
}

impl Connection {
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let (first, _) = self.unsent.as_slices();
            match self.stream.write(first) {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the available bytes. Returns the number of complete answers.
    fn read(&mut self, latencies_ns: &mut Vec<u64>) -> io::Result<usize> {
        let mut buffer = [0; 65_536];
        let mut answers = 0;
        if self.pending.is_empty() {
            return Ok(0);
        }
        loop {
            let length = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(answers),
                Err(error) => return Err(error),
            };
            let now = Instant::now();
            self.received += length;
            while let Some(first) = self.pending.front() {
                if self.received < first.answer {
                    break;
                }
                self.received -= first.answer;
                latencies_ns.push(now.saturating_duration_since(first.due).as_nanos() as u64);
                self.pending.pop_front();
                answers += 1;
            }
            if self.pending.is_empty() && self.received > 0 {
                return Err(unexpected("the server's answers are longer than the requested values"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_request_without_an_answer_is_slower_than_all_others() {
        let result = LoadResult { latencies_ns: vec![3, 1, 2], due: 4, elapsed: Duration::from_secs(1) };
        assert_eq!(result.quantile(0.5), Some(2));
        assert_eq!(result.quantile(0.75), Some(3));
        assert_eq!(result.quantile(0.99), None);
        assert_eq!(result.throughput(), 3.0);
        assert_eq!(LoadResult::default().quantile(0.5), None);
    }

    #[test]
    fn requests_are_due_as_often_as_asked_for() {
        let mut random = Random(7);
        let mean = (0..100_000).map(|_| -random.fraction().ln()).sum::<f64>() / 100_000.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }

    /// A stall of the server must increase the latency of each request that was due during the stall.
    #[test]
    fn a_stall_shows_in_every_request_that_was_due_meanwhile() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = Vec::new();
            let mut byte = [0];
            let mut answered = 0;
            while stream.read(&mut byte).unwrap() == 1 {
                line.push(byte[0]);
                if line.ends_with(b"\r\n") && !line.starts_with(b"set") {
                    let answer = match line.starts_with(b"get") {
                        true => "VALUE key-00000000 0 4\r\nvvvv\r\nEND\r\n",
                        false => "STORED\r\n",
                    };
                    answered += 1;
                    if answered == 50 {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    stream.write_all(answer.as_bytes()).unwrap();
                    line.clear();
                } else if line.ends_with(b"\r\n") && line.iter().filter(|byte| **byte == b'\n').count() == 2 {
                    stream.write_all(b"STORED\r\n").unwrap();
                    line.clear();
                }
            }
        });
        let options = LoadOptions {
            server,
            connections: 1,
            rate: Some(1_000.0),
            time: Duration::from_millis(300),
            value: 4,
            sets_percent: 0,
            keys: 1,
            seed: 1,
            cpu: None,
        };
        let result = run(&options).unwrap();
        assert_eq!(result.latencies_ns.len(), result.due);
        // About a hundred requests were due during the stall. The first request waited for the whole
        // stall; the last request had almost no wait.
        let slow = result.latencies_ns.iter().filter(|latency| **latency > 20_000_000).count();
        assert!((40..=200).contains(&slow), "{slow} of {}", result.due);
        serving.join().unwrap();
    }
}
