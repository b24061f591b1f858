//! Threads that send or receive on connections between two namespaces.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::TestbedError;
use crate::namespace::Namespace;
use crate::process::{ordinary_nice, stay_on};

const PATIENCE: Duration = Duration::from_secs(15);

/// A thread with one connection. Dropping this value ends the thread.
#[derive(Debug)]
pub(crate) struct Worker<T> {
    thread: u32,
    stop: Arc<AtomicBool>,
    stream: TcpStream,
    handle: Option<JoinHandle<io::Result<T>>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread that calls `work` with a connection and a flag. If `processor` is given, the thread is
    /// pinned to it. `work` must return when [`Worker::stop`] sets the flag. `stop` also shuts the connection
    /// down, so that no call on the connection blocks.
    pub(crate) fn start(
        stream: TcpStream,
        processor: Option<usize>,
        work: impl FnOnce(&mut TcpStream, &AtomicBool) -> io::Result<T> + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, mut mine) = (Arc::clone(&stop), stream.try_clone()?);
        let (tell, told) = mpsc::channel();
        let nice = ordinary_nice();
        let handle = std::thread::Builder::new().name("traffic".to_owned()).spawn(move || {
            // SAFETY: takes nothing.
            let thread = unsafe { libc::gettid() };
            // Ignore the error: the starting thread may have stopped waiting.
            let _ = tell.send(thread.cast_unsigned());
            if let Some(nice) = nice {
                // SAFETY: takes numbers; on Linux 0 is the calling thread.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
            }
            // SAFETY: takes numbers. The thread's sleeps then end within a microsecond of their time.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000, 0, 0, 0) };
            if let Some(processor) = processor {
                stay_on(processor)?;
            }
            work(&mut mine, &of_thread)
        })?;
        let thread = told.recv().map_err(io::Error::other)?;
        Ok(Self { thread, stop, stream, handle: Some(handle) })
    }

    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// Sets the thread's flag and shuts its connection down.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // Ignore the error: the other end may have shut the connection down already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Ends the thread. Returns the result of `work`.
    pub(crate) fn finish(mut self) -> io::Result<T> {
        self.stop();
        match self.handle.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(io::Error::other("the thread has panicked")),
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// The client's end and the server's end of a connection.
pub(crate) type Ends = (TcpStream, TcpStream);

/// Opens one connection from the sender to each port of the receiver's address. A socket stays in the
/// namespace in which it was created, so the threads that use it need not enter the namespace.
pub(crate) fn connect(
    sender: &Namespace,
    receiver: &Namespace,
    address: IpAddr,
    ports: &[u16],
) -> Result<Vec<Ends>, TestbedError> {
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let at = |port: u16| SocketAddr::new(address, port);
    let listeners = receiver.run(|| {
        let listen = |port: &u16| {
            TcpListener::bind(at(*port)).map_err(TestbedError::system(format!("listen at port {port}")))
        };
        ports.iter().map(listen).collect::<Result<Vec<_>, _>>()
    })?;
    let clients = sender.run(|| {
        let connect = |port: &u16| {
            TcpStream::connect_timeout(&at(*port), PATIENCE)
                .map_err(TestbedError::system(format!("connect to port {port}")))
        };
        ports.iter().map(connect).collect::<Result<Vec<_>, _>>()
    })?;
    let accepted = listeners.iter().map(|listener| {
        // The client is already connected, so this call does not block.
        let (stream, _) = listener.accept().map_err(TestbedError::system("accept a connection"))?;
        Ok::<_, TestbedError>(stream)
    });
    clients.into_iter().zip(accepted).map(|(client, server)| Ok((client, server?))).collect()
}

pub(crate) fn set_congestion_control(stream: &TcpStream, name: &str) -> io::Result<()> {
    set_option(stream, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes())
}

pub(crate) fn set_option(stream: &TcpStream, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the value has the given length.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nix::sched::{CpuSet, sched_getaffinity};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_worker_stays_on_its_processor() {
        let allowed = || {
            let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
            (0..CpuSet::count()).filter(|number| set.is_set(*number).unwrap()).collect::<Vec<_>>()
        };
        let last = *allowed().last().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let worker = Worker::start(stream, Some(last), move |_, _| Ok(allowed())).unwrap();
        assert_eq!(worker.finish().unwrap(), [last]);
    }
}
