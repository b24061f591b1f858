//! Serves `GET /metrics` on a TCP or Unix socket.
//!
//! Each connection has one request and time limits. So a slow or hostile client occupies a thread for less
//! than 30 seconds. The number of connections is limited: the server closes further connections at once.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use evenkeel_model::text::{excerpt, path_text};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::exposition::Form;

/// Time limit to read a request, and time limit to send its answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum time that a client waits for its sample.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a request's header, bytes. Prometheus sends a few hundred bytes.
const MOST_HEAD: usize = 8192;
const MOST_HEADERS: usize = 64;
/// Maximum number of concurrent connections. The server closes further connections.
const MOST_CONNECTIONS: usize = 16;
/// Interval at which the server polls for new connections while a connection is open, or while the process
/// lacks descriptors.
const POLL: Duration = Duration::from_millis(50);
/// Longest wait for a connection. The limit is necessary because another thread may handle a signal,
/// and the wait then does not end.
const IDLE: Duration = Duration::from_millis(200);

/// The address at which the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // Length of sun_path without the final zero, unix(7).
            const MOST: usize = 107;
            if path.is_empty() || path.len() > MOST || path.contains('\0') {
                return Err(format!("the path of a Unix socket has 1 to {MOST} bytes"));
            }
            return Ok(Self::Unix(path.into()));
        }
        let form = "give ADDRESS:PORT, such as 127.0.0.1:9836, or unix:PATH";
        text.parse()
            .map(Self::Tcp)
            .map_err(|_| format!("'{}' is not an address with a port; {form}", excerpt(text)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "http://{address}/metrics"),
            Self::Unix(path) => write!(formatter, "unix:{}", path_text(path)),
        }
    }
}

/// Reasons why an endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot serve {0}: another process uses this address; choose another address")]
    InUse(Endpoint),
    #[error("{} exists and is not a socket; choose another path", path_text(.0))]
    NoSocket(PathBuf),
    #[error("cannot serve {0}: no interface has this address; `ip address` lists the addresses")]
    NoAddress(Endpoint),
    #[error("cannot serve {endpoint}: {source}{}", next_step(.source))]
    Bind { endpoint: Endpoint, source: io::Error },
    #[error("cannot accept connections at {endpoint}: {source}")]
    Accept { endpoint: Endpoint, source: io::Error },
}

fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; create the directory of the socket",
        io::ErrorKind::PermissionDenied => {
            "; run the command as root, or choose a directory that you may write to, or a port from 1024 on"
        }
        _ => "",
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Ok(Stream::Tcp(listener.accept()?.0)),
            Self::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }
}

impl Listener {
    /// Waits at most `time` for a connection. A signal that this thread handles ends the wait.
    fn wait(&self, time: Duration) {
        let listener = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        };
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        // Ignore the result: the next accept(2) finds the connections or the error.
        let _ = poll(&mut [PollFd::new(listener, PollFlags::POLLIN)], time);
    }
}

impl Stream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        let time = Some(time.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(time).and(stream.set_write_timeout(time)),
            Self::Unix(stream) => stream.set_read_timeout(time).and(stream.set_write_timeout(time)),
        }
    }

    fn blocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(false),
            Self::Unix(stream) => stream.set_nonblocking(false),
        }
    }

    fn end_of_answer(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request for an exposition, with the channel for the answer.
type Request = (Form, SyncSender<String>);

/// Serves one endpoint. Dropping the server removes its Unix socket.
pub struct ScrapeServer {
    listener: Listener,
    endpoint: Endpoint,
    /// Path, device and inode of the Unix socket.
    socket: Option<(PathBuf, u64, u64)>,
}

impl ScrapeServer {
    /// Binds the endpoint. Replaces a Unix socket that no process serves.
    ///
    /// # Errors
    /// Returns an error if the endpoint is in use, the path exists and is not a socket, or the system refuses
    /// the address.
    pub fn bind(endpoint: &Endpoint) -> Result<Self, ServeError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::InUse(endpoint.clone()),
            io::ErrorKind::AddrNotAvailable => ServeError::NoAddress(endpoint.clone()),
            _ => ServeError::Bind { endpoint: endpoint.clone(), source },
        };
        let (listener, socket) = match endpoint {
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                (Listener::Tcp(listener), None)
            }
            Endpoint::Unix(path) => {
                remove_stale(path, endpoint)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let own = std::fs::symlink_metadata(path).map_err(failed)?;
                (Listener::Unix(listener), Some((path.clone(), own.dev(), own.ino())))
            }
        };
        Ok(Self { listener, endpoint: endpoint.clone(), socket })
    }

    /// Returns the endpoint, with the port that the kernel chose for port 0.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr().map_or(self.endpoint.clone(), Endpoint::Tcp),
            Listener::Unix(_) => self.endpoint.clone(),
        }
    }

    /// Serves until `is_over` returns true. `expose` produces an exposition in the calling thread.
    /// `tick` runs in the calling thread between requests.
    ///
    /// # Errors
    /// Returns an error if accept(2) fails, and the errors of `expose` and `tick`. A lack of descriptors is
    /// no error: connections then wait.
    pub fn serve<E: From<ServeError>>(
        &self,
        mut is_over: impl FnMut() -> bool,
        mut expose: impl FnMut(Form) -> Result<String, E>,
        mut tick: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let (requests, received) = channel::<Request>();
        let active = Arc::new(AtomicUsize::new(0));
        while !is_over() {
            let has_descriptors = self.accept_all(&requests, &active)?;
            // Without free descriptors, the listener stays readable, so `wait` would return at once.
            if active.load(Ordering::Relaxed) > 0 || !has_descriptors {
                answer(&received, &mut expose)?;
            } else {
                self.listener.wait(IDLE);
            }
            tick()?;
        }
        Ok(())
    }

    /// Starts a thread for each waiting connection, and closes connections above the limit. Returns whether
    /// the process has enough descriptors.
    fn accept_all(
        &self,
        requests: &std::sync::mpsc::Sender<Request>,
        active: &Arc<AtomicUsize>,
    ) -> Result<bool, ServeError> {
        loop {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) => {
                    return match error.kind() {
                        io::ErrorKind::WouldBlock
                        | io::ErrorKind::Interrupted
                        | io::ErrorKind::ConnectionAborted => Ok(true),
                        // Without free descriptors, connections wait in the listener's backlog.
                        _ if evenkeel_files::is_limit(&error) => Ok(false),
                        _ => Err(ServeError::Accept { endpoint: self.endpoint.clone(), source: error }),
                    };
                }
            };
            if active.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
                continue;
            }
            active.fetch_add(1, Ordering::Relaxed);
            let guard = Active(Arc::clone(active));
            let requests = requests.clone();
            let thread = std::thread::Builder::new().name("scrape".to_owned()).stack_size(128 << 10);
            // If no thread can start, the stream is dropped, which closes the connection.
            let _ = thread.spawn(move || {
                let _guard = guard;
                let _ = connection(stream, &requests);
            });
        }
    }
}

impl Drop for ScrapeServer {
    fn drop(&mut self) {
        if let Some((path, device, inode)) = &self.socket
            && std::fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (*device, *inode))
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A counted connection. Dropping this value subtracts the connection from the count.
struct Active(Arc<AtomicUsize>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removes a socket that no process serves: it refuses connections. A socket in use is an error.
fn remove_stale(path: &Path, endpoint: &Endpoint) -> Result<(), ServeError> {
    let failed = |source| ServeError::Bind { endpoint: endpoint.clone(), source };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(ServeError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // With WouldBlock, the queue of another process's listener is full.
        Ok(_) => Err(ServeError::InUse(endpoint.clone())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ServeError::InUse(endpoint.clone())),
        Err(error) => Err(failed(error)),
    }
}

/// Waits at most [`POLL`] for a request, and answers it.
fn answer<E>(
    received: &Receiver<Request>,
    expose: &mut impl FnMut(Form) -> Result<String, E>,
) -> Result<(), E> {
    match received.recv_timeout(POLL) {
        Ok((form, back)) => {
            // Ignore the error: the client may have gone.
            let _ = back.try_send(expose(form)?);
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
    }
    Ok(())
}

/// The meaning of a request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Metrics(Form),
    Refused(&'static str, &'static str),
}

fn connection(mut stream: Stream, requests: &std::sync::mpsc::Sender<Request>) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    stream.blocking()?;
    let asked = match read_head(&mut stream, deadline) {
        Ok(asked) => asked,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Asked::Refused("408 Request Timeout", "the request is incomplete")
        }
        Err(error) => return Err(error),
    };
    let answer = match asked {
        Asked::Metrics(form) => {
            let (back, text) = sync_channel(1);
            let sent = requests.send((form, back)).is_ok();
            match text.recv_timeout(PATIENCE) {
                Ok(text) if sent => response("200 OK", form.content_type(), &text),
                _ => response("503 Service Unavailable", Form::Prometheus.content_type(), "no sample\n"),
            }
        }
        Asked::Refused(status, text) => {
            response(status, Form::Prometheus.content_type(), &format!("{text}\n"))
        }
    };
    write_all(&mut stream, answer.as_bytes(), Instant::now() + DEADLINE)?;
    stream.end_of_answer();
    // If bytes of the client are unread, closing resets the connection, and the client may lose the
    // answer. So read some bytes first.
    let _ = stream.limit(Duration::from_millis(100));
    let mut rest = [0; 1024];
    for _ in 0..64 {
        if stream.read(&mut rest).map_or(0, |count| count) == 0 {
            break;
        }
    }
    Ok(())
}

/// Sets the time limit of the next call. Returns an error if the deadline has passed.
fn limit(stream: &Stream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::WouldBlock.into()) } else { stream.limit(left) }
}

fn read_head(stream: &mut Stream, deadline: Instant) -> io::Result<Asked> {
    let mut head = Vec::with_capacity(1024);
    let mut part = [0; 1024];
    loop {
        limit(stream, deadline)?;
        let count = match stream.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&part[..count]);
        if head.len() <= MOST_HEAD {
            if let Some(asked) = asked(&head) {
                return Ok(asked);
            }
        } else {
            return Ok(Asked::Refused(
                "431 Request Header Fields Too Large",
                "the head of the request is too large",
            ));
        }
    }
}

fn write_all(stream: &mut Stream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        limit(stream, deadline)?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Parses a request. Returns `None` if the request header is incomplete.
fn asked(head: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            return Some(Asked::Refused(
                "431 Request Header Fields Too Large",
                "the request has too many headers",
            ));
        }
        Err(_) => return Some(Asked::Refused("400 Bad Request", "the request is not an HTTP/1 request")),
    }
    if request.method != Some("GET") {
        return Some(Asked::Refused("405 Method Not Allowed", "only GET is answered"));
    }
    let target = request.path.unwrap_or_default();
    // Absolute form (RFC 9112, section 3.2.2), which a proxy sends.
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("", |at| &rest[at..]),
        None => target,
    };
    if path.split('?').next() != Some("/metrics") {
        return Some(Asked::Refused("404 Not Found", "the metrics are at /metrics"));
    }
    let accepts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let is_open = accepts
        .filter_map(|header| std::str::from_utf8(header.value).ok())
        .any(|value| value.contains("application/openmetrics-text"));
    Some(Asked::Metrics(if is_open { Form::OpenMetrics } else { Form::Prometheus }))
}

fn response(status: &str, content_type: &str, text: &str) -> String {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn while_serving(endpoint: &Endpoint, work: impl FnOnce(&Endpoint)) {
        let server = ScrapeServer::bind(endpoint).unwrap();
        let at = server.endpoint();
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            server.serve::<ServeError>(
                || seen.load(Ordering::Relaxed),
                |form| Ok(format!("{form:?}\n")),
                || Ok(()),
            )
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&at)));
        over.store(true, Ordering::Relaxed);
        thread.join().unwrap().unwrap();
        result.unwrap();
    }

    fn connect(endpoint: &Endpoint) -> TcpStream {
        let Endpoint::Tcp(address) = endpoint else { panic!("{endpoint}") };
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn ask(endpoint: &Endpoint, request: &[u8]) -> String {
        let mut stream = connect(endpoint);
        // The server may answer and close before it has read the whole request.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn free() -> Endpoint {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn requests_are_answered_in_the_form_that_the_client_accepts() {
        while_serving(&free(), |at| {
            let plain = ask(at, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(
                plain.starts_with("HTTP/1.1 200 OK\r\n") && plain.ends_with("\r\n\r\nPrometheus\n"),
                "{plain}"
            );
            let accept = "GET /metrics?a=b HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n";
            let open = ask(at, accept.as_bytes());
            assert!(open.contains("application/openmetrics-text; version=1.0.0"), "{open}");
            assert!(open.ends_with("OpenMetrics\n"), "{open}");
            for (request, status) in [
                ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
                ("GET / HTTP/1.1\r\n\r\n", "404"),
                ("GET http://host HTTP/1.1\r\n\r\n", "404"),
                ("GET http://host:9100/metrics HTTP/1.1\r\n\r\n", "200"),
                ("GET /metrics\r\n\r\n", "400"),
                ("\u{0}\u{1}\u{2}garbage\r\n\r\n", "400"),
            ] {
                let answer = ask(at, request.as_bytes());
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
            }
        });
    }

    #[test]
    fn hostile_clients_delay_no_other_one() {
        while_serving(&free(), |at| {
            let good = || ask(at, b"GET /metrics HTTP/1.1\r\n\r\n");
            // Idle connections: some clients send nothing, others never complete the request header.
            let _silent: Vec<TcpStream> = (0..4).map(|_| connect(at)).collect();
            let _slow: Vec<TcpStream> = (0..4)
                .map(|_| {
                    let mut stream = connect(at);
                    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
                    stream
                })
                .collect();
            assert!(good().contains("200 OK"));
            let large = ask(at, &[b"GET /metrics HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; 10 << 20]].concat());
            assert!(large.is_empty() || large.starts_with("HTTP/1.1 431 "), "{}", large.len());
            let complete = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(8300));
            let complete = ask(at, complete.as_bytes());
            assert!(complete.starts_with("HTTP/1.1 431 "), "{complete}");
            let many = "A: b\r\n".repeat(100);
            let many = ask(at, format!("GET /metrics HTTP/1.1\r\n{many}\r\n").as_bytes());
            assert!(many.starts_with("HTTP/1.1 431 "), "{many}");
            assert!(good().contains("200 OK"));
        });
    }

    #[test]
    fn connections_are_limited_and_become_free_again() {
        while_serving(&free(), |at| {
            let mut held: Vec<TcpStream> = (0..MOST_CONNECTIONS).map(|_| connect(at)).collect();
            // The server answers each silent connection after the deadline.
            let mut answer = String::new();
            held[0].read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            drop(held);
            let began = Instant::now();
            while !ask(at, b"GET /metrics HTTP/1.1\r\n\r\n").contains("200 OK") {
                assert!(began.elapsed() < Duration::from_secs(30), "no connection became free");
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }

    #[test]
    fn a_unix_socket_is_removed_at_the_end_and_a_stale_one_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.sock");
        let endpoint = Endpoint::Unix(path.clone());
        // This socket is stale: its process no longer listens.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        while_serving(&endpoint, |_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("200 OK"), "{answer}");
            assert!(matches!(ScrapeServer::bind(&endpoint), Err(ServeError::InUse(_))));
        });
        assert!(!path.exists());
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(ScrapeServer::bind(&endpoint), Err(ServeError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn a_port_in_use_is_refused() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::Tcp(holder.local_addr().unwrap());
        assert!(matches!(ScrapeServer::bind(&endpoint), Err(ServeError::InUse(_))));
    }

    #[test]
    fn an_address_of_another_host_is_refused() {
        // RFC 5737: for documentation only.
        let endpoint: Endpoint = "192.0.2.1:9836".parse().unwrap();
        assert!(matches!(ScrapeServer::bind(&endpoint), Err(ServeError::NoAddress(_))));
    }

    #[test]
    fn endpoints_are_addresses_or_paths() {
        assert_eq!("[::1]:9836".parse::<Endpoint>().unwrap().to_string(), "http://[::1]:9836/metrics");
        assert_eq!("unix:/run/a".parse::<Endpoint>(), Ok(Endpoint::Unix("/run/a".into())));
        for wrong in ["9836", "localhost", "", "unix:", "127.0.0.1", &format!("unix:/{}", "a".repeat(107))] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
