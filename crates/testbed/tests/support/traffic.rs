//! TCP flows over a test bed, sent by sockets and threads of the test.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_testbed::{Bed, Namespace, RECEIVER_ADDRESS, SENDER_ADDRESS};

use super::{PATIENCE, wait_for};

const TICK: Duration = Duration::from_millis(20);
/// Time limit after which every thread ends.
const LAST_RESORT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data is sent through the managed device.
    SenderToReceiver,
    /// Only ACKs are sent through the managed device.
    ReceiverToSender,
}

#[derive(Clone, Copy, Debug)]
pub struct BulkOptions {
    pub flows: usize,
    pub destination: IpAddr,
    pub direction: Direction,
    /// CPU for both threads of every flow.
    pub cpu: Option<usize>,
    /// Bytes per flow; `None`: the flow sends until it is stopped.
    pub bytes: Option<u64>,
}

impl Default for BulkOptions {
    fn default() -> Self {
        Self {
            flows: 1,
            destination: RECEIVER_ADDRESS.into(),
            direction: Direction::SenderToReceiver,
            cpu: None,
            bytes: None,
        }
    }
}

impl BulkOptions {
    /// Returns options for data from the receiving host to the sending host.
    pub fn reverse(flows: usize) -> Self {
        Self {
            flows,
            destination: SENDER_ADDRESS.into(),
            direction: Direction::ReceiverToSender,
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Transferred {
    pub ends: Ends,
    pub sent: u64,
    pub received: u64,
}

struct Flow {
    ends: Ends,
    socket: TcpStream,
    received: Arc<AtomicU64>,
    sender: Option<JoinHandle<u64>>,
    receiver: Option<JoinHandle<()>>,
}

/// Bulk TCP flows. Dropping this value ends the flows.
pub struct Bulk {
    /// Makes the sending threads close their connections.
    stop: Arc<AtomicBool>,
    /// Makes the receiving threads stop. No more data will arrive, not even a FIN.
    abandon: Arc<AtomicBool>,
    ends_by_itself: bool,
    ends: Vec<Ends>,
    flows: Vec<Flow>,
}

impl Bulk {
    pub fn start(bed: &Bed, options: BulkOptions) -> Self {
        match options.direction {
            Direction::SenderToReceiver => Self::between(&bed.sender, &bed.receiver, options),
            Direction::ReceiverToSender => Self::between(&bed.receiver, &bed.sender, options),
        }
    }

    /// Connects all flows between two namespaces. Then starts sending.
    pub fn between(from: &Namespace, to: &Namespace, options: BulkOptions) -> Self {
        let listener = listen(to, options.destination);
        let destination = listener.local_addr().unwrap();
        let (stop, abandon) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let connections: Vec<(TcpStream, TcpStream)> = (0..options.flows)
            .map(|_| {
                let sending = connect(from, destination);
                use_cubic(&sending);
                (sending, accept(&listener))
            })
            .collect();
        let flows: Vec<Flow> = connections
            .into_iter()
            .map(|(sending, receiving)| {
                let ends = Ends { source: sending.local_addr().unwrap(), destination };
                assert_eq!(receiving.peer_addr().unwrap(), ends.source, "connections are accepted in order");
                let socket = sending.try_clone().unwrap();
                let received = Arc::new(AtomicU64::new(0));
                let (count, stopped) = (Arc::clone(&received), Arc::clone(&stop));
                let abandoned = Arc::clone(&abandon);
                Flow {
                    ends,
                    socket,
                    received,
                    receiver: Some(std::thread::spawn(move || {
                        receive(receiving, options.cpu, &count, &abandoned)
                    })),
                    sender: Some(std::thread::spawn(move || send(sending, options, &stopped))),
                }
            })
            .collect();
        let ends_by_itself = options.bytes.is_some();
        Self { stop, abandon, ends_by_itself, ends: flows.iter().map(|flow| flow.ends).collect(), flows }
    }

    pub fn ends(&self) -> &[Ends] {
        &self.ends
    }

    pub fn received(&self) -> Vec<u64> {
        self.flows.iter().map(|flow| flow.received.load(Ordering::Relaxed)).collect()
    }

    /// Waits until every flow has delivered `bytes` bytes.
    pub fn wait_for_each(&self, bytes: u64) {
        let what = format!("{bytes} bytes of every one of {} flows have arrived", self.flows.len());
        wait_for(&what, LAST_RESORT, || {
            self.received().iter().all(|received| *received >= bytes).then_some(())
        });
    }

    /// Waits until all flows together have delivered `bytes` bytes.
    pub fn wait_for_all(&self, bytes: u64) {
        wait_for(&format!("{bytes} bytes have arrived"), LAST_RESORT, || {
            (self.received().iter().sum::<u64>() >= bytes).then_some(())
        });
    }

    /// Closes the connections with a FIN, and waits until all bytes have arrived. Flows with a fixed number
    /// of bytes end on their own. Returns the sent and received bytes of each flow.
    pub fn finish(mut self) -> Vec<Transferred> {
        if !self.ends_by_itself {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.flows
            .iter_mut()
            .map(|flow| {
                let sent = flow.sender.take().unwrap().join().unwrap();
                flow.receiver.take().unwrap().join().unwrap();
                Transferred { ends: flow.ends, sent, received: flow.received.load(Ordering::Relaxed) }
            })
            .collect()
    }

    /// Resets every connection, and discards its queued data.
    pub fn reset(mut self) {
        for flow in &self.flows {
            close_by_reset(&flow.socket);
        }
        self.stop_now();
    }

    fn stop_now(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.abandon.store(true, Ordering::Relaxed);
        for mut flow in self.flows.drain(..) {
            // join() returns an error if the thread panicked. The thread has already printed the panic.
            let _ = flow.sender.take().map(JoinHandle::join);
            drop(flow.socket);
            let _ = flow.receiver.take().map(JoinHandle::join);
        }
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.stop_now();
    }
}

/// Opens a listener inside a namespace. A socket stays in the namespace in which it was created.
pub fn listen(at: &Namespace, address: IpAddr) -> TcpListener {
    at.run(|| Ok(TcpListener::bind((address, 0)).unwrap())).unwrap()
}

pub fn connect(from: &Namespace, to: SocketAddr) -> TcpStream {
    from.run(|| Ok(TcpStream::connect_timeout(&to, PATIENCE).unwrap())).unwrap()
}

pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    wait_for("a connection arrives", PATIENCE, || match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("accept: {error}"),
    })
}

fn send(mut socket: TcpStream, options: BulkOptions, stop: &AtomicBool) -> u64 {
    pin(options.cpu);
    socket.set_write_timeout(Some(TICK)).unwrap();
    let begun = Instant::now();
    let chunk = [0x5a; 65_536];
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) && begun.elapsed() < LAST_RESORT {
        let left = options.bytes.map_or(u64::MAX, |bytes| bytes - sent);
        if left == 0 {
            break;
        }
        match socket.write(&chunk[..left.min(chunk.len() as u64) as usize]) {
            Ok(bytes) => sent += bytes as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return sent,
        }
    }
    // A socket with a linger time of zero is reset on close. Other sockets send a FIN.
    if !resets_on_close(&socket) {
        let _ = socket.shutdown(Shutdown::Write);
    }
    sent
}

fn receive(mut socket: TcpStream, cpu: Option<usize>, received: &AtomicU64, abandon: &AtomicBool) {
    pin(cpu);
    socket.set_read_timeout(Some(TICK)).unwrap();
    let begun = Instant::now();
    let mut buffer = vec![0; 1 << 18];
    while !abandon.load(Ordering::Relaxed) && begun.elapsed() < LAST_RESORT {
        match socket.read(&mut buffer) {
            Ok(0) => return,
            Ok(bytes) => {
                received.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

/// Makes short connections from the sending host, `at_a_time` at a time, with a few kilobytes each.
/// Returns the number of delivered bytes after all connections have ended.
pub fn short_connections(bed: &Bed, count: usize, at_a_time: usize) -> u64 {
    let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
    let destination = listener.local_addr().unwrap();
    let to_accept = AtomicUsize::new(count);
    let to_connect = AtomicUsize::new(count);
    let received = AtomicU64::new(0);
    let next = |left: &AtomicUsize| {
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).ok()
    };
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                let mut bytes = Vec::new();
                while next(&to_accept).is_some() {
                    let mut stream = accept(&listener);
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    bytes.clear();
                    received.fetch_add(stream.read_to_end(&mut bytes).unwrap() as u64, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                bed.sender
                    .run(|| {
                        let payload = [0x5a; SHORT_LARGEST];
                        while let Some(left) = next(&to_connect) {
                            let mut stream = TcpStream::connect_timeout(&destination, PATIENCE).unwrap();
                            stream.set_read_timeout(Some(PATIENCE)).unwrap();
                            stream.write_all(&payload[..short_size(left)]).unwrap();
                            stream.shutdown(Shutdown::Write).unwrap();
                            // The receiver closes the connection after reading all data.
                            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
                        }
                        Ok(())
                    })
                    .unwrap();
            });
        }
    });
    received.into_inner()
}

const SHORT_LARGEST: usize = 9_000;

/// Returns the payload, bytes, of short connection number `number`, counted from 1. The payload is one to
/// seven segments.
pub fn short_size(number: usize) -> usize {
    1_000 + number % 5 * 2_000
}

pub fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    // SAFETY: all zeroes is the empty set, and the processor's number is far below the set's size.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    assert_eq!(result, 0, "pin a thread to processor {cpu}: {}", std::io::Error::last_os_error());
}

/// Sets the congestion control to CUBIC. Some kernels default to BBR, whose pacing keeps the queues empty.
fn use_cubic(socket: &TcpStream) {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"cubic");
}

fn close_by_reset(socket: &TcpStream) {
    set_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
}

pub fn set_option<T>(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: &T) {
    // SAFETY: the option's value outlives the call and has the given length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "setsockopt {level} {name}: {}", std::io::Error::last_os_error());
}

fn resets_on_close(socket: &TcpStream) -> bool {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut length = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the option's value outlives the call and has the length that `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw mut linger).cast(),
            &raw mut length,
        )
    };
    result == 0 && linger.l_onoff == 1 && linger.l_linger == 0
}
