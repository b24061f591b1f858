//! The control socket: a client sends one line of JSON, and receives one line.
//!
//! ```text
//! {"command":"pause","interface":"eth0"}
//! {"done":["eth0"]}                         or {"error":"..."}
//! ```

use std::fs::Metadata;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_model::text::path_text;
use nix::poll::PollFlags;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Gid, chown};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::DEFAULT_GROUP;

/// In bytes.
const LONGEST_REQUEST: usize = 4096;
/// Maximum number of concurrent clients.
const MOST_CLIENTS: usize = 32;
/// Time limit for a client to send its request and read the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for the service to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Longest answer that a client reads, in bytes. It has space for the status of 1000 interfaces.
const LONGEST_ANSWER: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    Status,
    Pause,
    Resume,
    Reload,
}

impl Command {
    const ALL: [Self; 4] = [Self::Status, Self::Pause, Self::Resume, Self::Reload];
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub command: Command,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

impl Request {
    fn parse(line: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(line).map_err(|_| {
            let names = Command::ALL.map(|command| json!(command).to_string().replace('"', ""));
            let example = Self { command: Command::Pause, interface: Some("eth0".to_owned()) };
            format!(
                "not a request: send one line of JSON such as {}; the commands are {}, and 'interface' may be left out",
                json!(example),
                names.join(", ")
            )
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("cannot {action} {}: {source}", path_text(.path))]
    System { action: &'static str, path: PathBuf, source: io::Error },
    #[error("another service (process {process}) uses the socket {}; stop it, or name another socket in the \
             configuration", path_text(.path))]
    Taken { path: PathBuf, process: i32 },
    #[error("{} is not a socket; remove the file, or name another path in the configuration", path_text(.path))]
    NotASocket { path: PathBuf },
    #[error(
        "there is no group '{0}'; create it (groupadd --system {0}), or name another one in the configuration"
    )]
    NoGroup(String),
    #[error("no service answers at {}; start it (systemctl start evenkeel), or name its socket (--socket)", path_text(.path))]
    NoService { path: PathBuf },
    #[error("{} is not a socket; name the service's socket with --socket", path_text(.path))]
    NoSocket { path: PathBuf },
    #[error(
        "only root and members of the service's group may use {}; run the command as root (sudo)",
        path_text(.path)
    )]
    Denied { path: PathBuf },
    #[error(
        "the service sent an invalid answer: {0}; if it runs another version of evenkeel, restart it (systemctl \
         restart evenkeel)"
    )]
    Answer(String),
    #[error(
        "the service at {} sent no answer within {} s: its process is stopped, or hangs; see `systemctl status evenkeel`",
        path_text(.path),
        .limit.as_secs()
    )]
    Silent { path: PathBuf, limit: Duration },
    #[error("{}: there is no directory {}; create it, or name another path in the configuration", path_text(.path), path_text(.directory))]
    NoDirectory { path: PathBuf, directory: PathBuf },
    #[error(
        "the service at {} closed the connection, because it has too many clients or is ending; try again",
        path_text(.path)
    )]
    Busy { path: PathBuf },
    /// The path does not fit into the kernel's address structure, or contains a zero byte.
    #[error("{}: {source}", path_text(.path))]
    Path { path: PathBuf, source: io::Error },
}

struct Client {
    stream: UnixStream,
    since: Instant,
    input: Vec<u8>,
    /// The answer, and the number of its bytes already sent; `None` until the request is complete or too
    /// long.
    output: Option<(Vec<u8>, usize)>,
}

/// The listening socket and its clients. Dropping this value removes the socket, and its directory if this
/// service created the directory.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket. Another program may remove or replace the file.
    file: (u64, u64),
    group: Option<Gid>,
    /// The socket's directory, if this service created the directory.
    made: Option<PathBuf>,
    clients: Vec<Client>,
}

impl Control {
    /// Listens at a path, for root and a group. The second value is a remark for the user if the default
    /// group does not exist.
    ///
    /// # Errors
    /// Returns an error if [`Self::check`] fails, another service listens at the path, or the kernel refuses.
    pub fn listen(path: &Path, group: Option<&str>) -> Result<(Self, Option<String>), ControlError> {
        let failed =
            |action| move |source: io::Error| ControlError::System { action, path: path.to_owned(), source };
        let owner = Self::check(path, group)?;
        let made = path.parent().map(make_directory).transpose();
        let made = made.map_err(failed("make the directory of"))?.flatten();
        let (listener, file) = bind(path).inspect_err(|_| remove_directory(made.as_deref()))?;
        let control = Self { listener, path: path.to_owned(), file, group: owner, made, clients: Vec::new() };
        control.admit()?;
        let remark = owner
            .is_none()
            .then(|| format!("there is no group '{DEFAULT_GROUP}': only root may use {}", path_text(path)));
        Ok((control, remark))
    }

    /// Grants root and the group access to the socket. Only root has access if there is no group, or if the
    /// kernel refuses the group.
    fn admit(&self) -> Result<(), ControlError> {
        let failed = |action| {
            move |source: io::Error| ControlError::System { action, path: self.path.clone(), source }
        };
        let given = self.group.map_or(Ok(()), |group| chown(&self.path, None, Some(group)));
        let mode = if self.group.is_some() && given.is_ok() { 0o660 } else { 0o600 };
        std::fs::set_permissions(&self.path, PermissionsExt::from_mode(mode))
            .map_err(failed("set the mode of"))?;
        given.map_err(|error| failed("set the group of")(error.into()))
    }

    fn is_in_place(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }

    /// Listens at the path again if another program removed or replaced the socket. Returns whether the
    /// socket is new.
    ///
    /// # Errors
    /// Returns an error if another file or another service's socket has the path, or the kernel refuses.
    /// Clients of the new socket may then be limited to root.
    pub(crate) fn restore(&mut self) -> Result<bool, ControlError> {
        if self.is_in_place() {
            return Ok(false);
        }
        if let Some(directory) = self.path.parent() {
            let made = make_directory(directory).map_err(|source| ControlError::System {
                action: "make the directory of",
                path: self.path.clone(),
                source,
            })?;
            self.made = made.or(self.made.take());
        }
        (self.listener, self.file) = bind(&self.path)?;
        self.admit()?;
        Ok(true)
    }

    /// Checks the requirements of [`Self::listen`]. Returns the group of the socket, or `None` if the
    /// default group does not exist.
    ///
    /// # Errors
    /// Returns an error if a named group does not exist, if the parent of the socket's directory does
    /// not exist, or if another file has the path.
    pub fn check(path: &Path, group: Option<&str>) -> Result<Option<Gid>, ControlError> {
        let groups = std::fs::read("/etc/group").unwrap_or_default();
        let find = |name: &str| group_number(&String::from_utf8_lossy(&groups), name);
        let owner = match group {
            Some(name) => Some(find(name).ok_or_else(|| ControlError::NoGroup(name.to_owned()))?),
            None => find(DEFAULT_GROUP),
        };
        // The service creates only the last directory of the path.
        if let Some(directory) = path.parent().and_then(Path::parent).filter(|directory| !directory.is_dir())
        {
            return Err(ControlError::NoDirectory { path: path.to_owned(), directory: directory.to_owned() });
        }
        refuse_other_files(path, std::fs::symlink_metadata(path))?;
        Ok(owner)
    }

    /// Returns the file descriptors to poll.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let clients = self.clients.iter().map(|client| {
            let wanted = if client.output.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            (client.stream.as_fd(), wanted)
        });
        std::iter::once((self.listener.as_fd(), PollFlags::POLLIN)).chain(clients)
    }

    /// Accepts clients, answers complete requests, and drops clients after [`PATIENCE`].
    pub(crate) fn step(&mut self, now: Instant, mut answer: impl FnMut(Request) -> Value) {
        for stream in self.listener.incoming().take(MOST_CLIENTS) {
            let Ok(stream) = stream else { break };
            // Refuse further clients above the limit: such a client reads end of file.
            if self.clients.len() < MOST_CLIENTS && stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client { stream, since: now, input: Vec::new(), output: None });
            }
        }
        self.clients.retain_mut(|client| {
            now.saturating_duration_since(client.since) < PATIENCE && client.step(&mut answer)
        });
    }

    #[cfg(test)]
    fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Ignore the error: the next service removes a stale socket.
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
        remove_directory(self.made.as_deref());
    }
}

/// Returns the number of a group, from the lines of `/etc/group` (group(5)). Do not use getgrnam(3): in a
/// static program, it loads the modules that nsswitch.conf names, and crashes in libnss_systemd.
fn group_number(groups: &str, name: &str) -> Option<Gid> {
    let mut lines = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|fields| fields.first() == Some(&name))?;
    line.get(2)?.parse().ok().map(Gid::from_raw)
}

/// Creates a directory below an existing directory. Returns the path if the directory is new.
fn make_directory(path: &Path) -> io::Result<Option<PathBuf>> {
    match std::fs::create_dir(path) {
        Ok(()) => Ok(Some(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a directory that the service created. Ignores the error: another program may have put a file
/// there.
fn remove_directory(made: Option<&Path>) {
    if let Some(made) = made {
        let _ = std::fs::remove_dir(made);
    }
}

/// Returns an error if the path belongs to a file that is not a socket.
fn refuse_other_files(path: &Path, found: io::Result<Metadata>) -> Result<(), ControlError> {
    match found {
        Ok(found) if !found.file_type().is_socket() => {
            Err(ControlError::NotASocket { path: path.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Listens at a path. Also returns the device and the inode of the socket.
fn bind(path: &Path) -> Result<(UnixListener, (u64, u64)), ControlError> {
    remove_stale(path)?;
    let listen = || {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let file = std::fs::symlink_metadata(path)?;
        Ok((listener, (file.dev(), file.ino())))
    };
    listen().map_err(|source| ControlError::System { action: "listen at", path: path.to_owned(), source })
}

/// Removes the socket that a dead service has left. Returns an error if a service still listens at the path,
/// or if the path belongs to another file.
fn remove_stale(path: &Path) -> Result<(), ControlError> {
    let failed =
        |source| ControlError::System { action: "remove the old socket", path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => refuse_other_files(path, found)?,
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let process = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
            Err(ControlError::Taken { path: path.to_owned(), process })
        }
        Err(_) => std::fs::remove_file(path).map_err(failed),
    }
}

impl Client {
    /// Reads the request, and sends the answer, as far as possible without blocking. Returns whether to keep
    /// the client.
    fn step(&mut self, answer: &mut impl FnMut(Request) -> Value) -> bool {
        if self.output.is_none() {
            let mut bytes = [0; LONGEST_REQUEST];
            let mut is_whole = false;
            match self.stream.read(&mut bytes) {
                Ok(0) if self.input.is_empty() => return false,
                // The client has closed its side. The last line may lack a line feed.
                Ok(0) => is_whole = true,
                Ok(count) => self.input.extend(&bytes[..count]),
                Err(error) => {
                    return matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                }
            }
            let end = self.input.iter().position(|byte| *byte == b'\n');
            let end = end.or(is_whole.then_some(self.input.len()));
            if end.is_none() && self.input.len() <= LONGEST_REQUEST {
                return true;
            }
            let request = end.filter(|end| *end <= LONGEST_REQUEST).map(|end| &self.input[..end]);
            let value = match request.map(Request::parse) {
                Some(Ok(request)) => answer(request),
                Some(Err(error)) => json!({"error": error}),
                None => json!({"error": format!("a request has at most {LONGEST_REQUEST} bytes")}),
            };
            self.output = Some((format!("{value}\n").into_bytes(), 0));
        }
        let Some((bytes, sent)) = &mut self.output else { return true };
        while *sent < bytes.len() {
            match self.stream.write(&bytes[*sent..]) {
                Ok(0) => return false,
                Ok(count) => *sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        // Dropping the stream ends the connection after the answer.
        false
    }
}

/// Sends a request to the service at a path. Returns the answer.
///
/// # Errors
/// Returns an error if the path is not a socket, no service listens there, or the kernel denies access. Also
/// returns an error if the service has too many clients, or its answer is late or invalid.
pub fn ask(path: &Path, request: &Request) -> Result<Value, ControlError> {
    ask_within(ANSWER_LIMIT, path, request)
}

fn ask_within(limit: Duration, path: &Path, request: &Request) -> Result<Value, ControlError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ControlError::NoService { path: path.to_owned() }
        }
        io::ErrorKind::PermissionDenied => ControlError::Denied { path: path.to_owned() },
        // Above its limit of clients, the service closes a new connection at once.
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            ControlError::Busy { path: path.to_owned() }
        }
        io::ErrorKind::InvalidInput => ControlError::Path { path: path.to_owned(), source },
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ControlError::Silent { path: path.to_owned(), limit }
        }
        _ => ControlError::System { action: "ask the service at", path: path.to_owned(), source },
    };
    if refuse_other_files(path, std::fs::metadata(path)).is_err() {
        return Err(ControlError::NoSocket { path: path.to_owned() });
    }
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(limit)).map_err(failed)?;
    stream.set_write_timeout(Some(limit)).map_err(failed)?;
    let text = serde_json::to_string(request).map_err(|error| ControlError::Answer(error.to_string()))?;
    stream.write_all(format!("{text}\n").as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut line).map_err(failed)?;
    if line.is_empty() {
        return Err(ControlError::Busy { path: path.to_owned() });
    }
    serde_json::from_str(&line).map_err(|error| ControlError::Answer(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::Shutdown;

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let groups = "root:x:0:\nevenkeel-old:x:7:\nbad:x\nevenkeel:x:987:alice,bob\n+::\nnone:x:many:\n";
        let number = |name| group_number(groups, name).map(Gid::as_raw);
        assert_eq!(
            (number("evenkeel"), number("root"), number("evenkeel-old")),
            (Some(987), Some(0), Some(7))
        );
        assert_eq!((number("even"), number("bad"), number("none"), number("")), (None, None, None, None));
    }

    fn answer(control: &mut Control, path: &Path, bytes: &[u8]) -> String {
        let mut client = UnixStream::connect(path).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut left = bytes;
        client.set_nonblocking(true).unwrap();
        for _ in 0..64 {
            if let Ok(count) = client.write(left) {
                left = &left[count..];
            }
            control.step(Instant::now(), |request| json!({"got": request.command}));
        }
        client.set_nonblocking(false).unwrap();
        if !bytes.contains(&b'\n') {
            client.shutdown(Shutdown::Write).unwrap();
            control.step(Instant::now(), |request| json!({"got": request.command}));
        }
        let mut text = String::new();
        // The unread rest of an oversized request resets the connection.
        let _ = client.read_to_string(&mut text);
        text
    }

    #[test]
    fn requests_are_answered_and_garbage_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/control.sock");
        let (mut control, _) = Control::listen(&path, None).unwrap();
        assert_eq!(answer(&mut control, &path, b"{\"command\":\"status\"}\n"), "{\"got\":\"status\"}\n");
        assert_eq!(answer(&mut control, &path, b"{\"command\":\"pause\"}"), "{\"got\":\"pause\"}\n");
        for garbage in [
            &b"\n"[..],
            b"{}\n",
            b"{\"command\":\"status\",\"other\":1}\n",
            b"{\"command\":\"explode\"}\n",
            b"\xff\xfe\0\n",
            b"status",
        ] {
            let text = answer(&mut control, &path, garbage);
            let words =
                "{\"error\":\"not a request: send one line of JSON such as {\\\"command\\\":\\\"pause\\\",";
            assert!(text.starts_with(words), "{text}");
            assert!(text.contains("the commands are status, pause, resume, reload, and"), "{text}");
        }
        let long = answer(&mut control, &path, &vec![b'x'; LONGEST_REQUEST + 1]);
        assert!(long.is_empty() || long.contains("at most 4096 bytes"), "{long}");
        assert!(!control.has_clients());
    }

    #[test]
    fn clients_are_limited_in_number_and_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (mut control, _) = Control::listen(&path, None).unwrap();
        let now = Instant::now();
        let silent: Vec<UnixStream> =
            (0..MOST_CLIENTS + 4).map(|_| UnixStream::connect(&path).unwrap()).collect();
        for _ in 0..2 {
            control.step(now, |_| json!({}));
        }
        assert_eq!(control.clients.len(), MOST_CLIENTS);
        let request = Request { command: Command::Status, interface: None };
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| ask(&path, &request));
            while !refused.is_finished() {
                control.step(now, |_| json!({}));
            }
            assert!(matches!(refused.join().unwrap(), Err(ControlError::Busy { .. })));
        });
        control.step(now + PATIENCE, |_| json!({}));
        assert!(!control.has_clients());
        drop(silent);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (first, _) = Control::listen(&path, None).unwrap();
        let taken = Control::listen(&path, None).map(|_| ());
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(taken, Err(ControlError::Taken { process, .. }) if process == own));
        // A killed service does not remove its socket.
        let copy = directory.path().join("copy");
        std::fs::hard_link(&path, &copy).unwrap();
        drop(first);
        std::fs::rename(&copy, &path).unwrap();
        drop(Control::listen(&path, None).unwrap());
        assert!(!path.exists());
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(Control::listen(&path, None).map(|_| ()), Err(ControlError::NotASocket { .. })));
        let group = Control::listen(&directory.path().join("b"), Some("evk-no-group")).map(|_| ());
        assert!(matches!(group, Err(ControlError::NoGroup(_))));
    }

    #[test]
    fn a_socket_that_another_program_removed_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/control.sock");
        let (mut control, _) = Control::listen(&path, None).unwrap();
        assert!(!control.restore().unwrap());
        std::fs::remove_dir_all(directory.path().join("run")).unwrap();
        assert!(control.restore().unwrap());
        assert_eq!(answer(&mut control, &path, b"{\"command\":\"status\"}\n"), "{\"got\":\"status\"}\n");
        // The service neither replaces nor removes the socket of another service.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        assert!(matches!(control.restore(), Err(ControlError::Taken { .. })));
        drop((control, other));
        assert!(path.exists());
    }

    #[test]
    fn a_directory_that_the_service_made_goes_with_it() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("run");
        let path = directory.join("control.sock");
        drop(Control::listen(&path, None).unwrap());
        assert!(!directory.exists());
        // A failed start leaves no directory.
        let long = directory.join("x".repeat(200));
        assert!(Control::listen(&long, None).is_err() && !directory.exists());
        assert!(Control::listen(&directory.join("deep/control.sock"), None).is_err());
        // A directory that existed before stays.
        std::fs::create_dir(&directory).unwrap();
        drop(Control::listen(&path, None).unwrap());
        assert!(directory.exists());
    }

    #[test]
    fn what_a_socket_needs_is_checked_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert!(Control::check(&path("run/control.sock"), None).is_ok());
        let error = Control::check(&path("no/such/control.sock"), None).unwrap_err();
        assert!(matches!(error, ControlError::NoDirectory { .. }), "{error}");
        let error = Control::check(&path("control.sock"), Some("no-such-group")).unwrap_err();
        assert!(matches!(error, ControlError::NoGroup(_)), "{error}");
    }

    #[test]
    fn a_client_without_a_service_gets_advice() {
        let request = Request { command: Command::Status, interface: None };
        let error = ask(Path::new("/nonexistent/control.sock"), &request).unwrap_err();
        assert!(error.to_string().contains("start it (systemctl start evenkeel)"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(ask(file.path(), &request), Err(ControlError::NoSocket { .. })));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hangs.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let error = ask_within(Duration::from_millis(50), &path, &request).unwrap_err();
        assert!(error.to_string().contains("stopped, or hangs"), "{error}");
        let long = PathBuf::from("/".to_owned() + &"x".repeat(200));
        assert!(matches!(ask(&long, &request), Err(ControlError::Path { .. })));
    }
}
