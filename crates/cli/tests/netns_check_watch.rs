//! Tests `evenkeel check --watch` with real losses. Each test has its own network namespaces. `check` must
//! report each loss at its location.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_datapath::DropReasons;
use nix::sys::signal::Signal;
use support::evenkeel;
use support::running::Running;

/// Two anonymous network namespaces, joined by a veth pair: `left` with 10.77.0.1 and `right` with
/// 10.77.0.2. The kernel removes the namespaces when the processes that hold them end.
struct Pair {
    left: Holder,
    right: Holder,
}

/// A sleeping process that holds a network namespace.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Holder {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").stdout(Stdio::null());
        // SAFETY: unshare and prctl are system calls, which are allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::unshare(libc::CLONE_NEWNET) < 0
                    || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0
                {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        Self(command.spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn enter(&self, mut command: Command) -> Command {
        let path = std::ffi::CString::new(format!("/proc/{}/ns/net", self.id())).unwrap();
        // SAFETY: open and setns are system calls, which are allowed between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let namespace = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                if namespace < 0 || libc::setns(namespace, libc::CLONE_NEWNET) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command
    }

    fn ip(&self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        let output = self.enter(command).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn set(&self, sysctl: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/{sysctl}"), value.to_owned());
        self.within(move || std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}")));
    }

    fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let path = format!("/proc/{}/ns/net", self.id());
        std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            work()
        })
    }

    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(work).join().unwrap()
    }
}

impl Pair {
    fn new() -> Self {
        let (left, right) = (Holder::new(), Holder::new());
        // A child enters its namespace before it executes its program. Wait until both children have done so.
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        for holder in [&left, &right] {
            while std::fs::read_link(format!("/proc/{}/ns/net", holder.id())).unwrap() == own {
                assert!(Instant::now() < deadline, "no namespace");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        left.ip(&format!("ip link add evk0 type veth peer name evk1 netns {}", right.id()));
        for (holder, name, address) in [(&left, "evk0", "10.77.0.1/24"), (&right, "evk1", "10.77.0.2/24")] {
            holder.ip("ip link set lo up");
            holder.ip(&format!("ip address add {address} dev {name}"));
            holder.ip(&format!("ip link set {name} up"));
        }
        Self { left, right }
    }
}

/// Runs `evenkeel check --watch` in a namespace for this time. Returns its result, with the losses and the
/// kernel's drop reasons.
fn watch(holder: &Holder, time: &str) -> serde_json::Value {
    let command = holder.enter(evenkeel(&["check", "--watch", time, "--format", "json"]));
    let ended = support::end(command);
    assert_eq!(ended.code, 0, "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Returns the number of packets lost at a location, and the rules that explain the losses.
fn lost_at(result: &serde_json::Value, place: &str) -> (u64, Vec<String>) {
    let losses = result["losses"].as_array().unwrap();
    let at: Vec<&serde_json::Value> = losses.iter().filter(|loss| loss["place"] == place).collect();
    let packets = at.iter().map(|loss| loss["packets"].as_u64().unwrap()).sum();
    (packets, at.iter().map(|loss| loss["rule"].as_str().unwrap().to_owned()).collect())
}

/// Returns the number of packets that the kernel dropped for this reason.
fn for_reason(result: &serde_json::Value, reason: &str) -> u64 {
    assert_eq!(
        result["reasons_missing"],
        serde_json::Value::Null,
        "the tracepoint loads where these tests run"
    );
    let reasons = result["reasons"].as_array().unwrap();
    reasons.iter().filter(|drop| drop["reason"] == reason).map(|drop| drop["packets"].as_u64().unwrap()).sum()
}

/// A background thread that repeats its work until this value is dropped, for at most 60 s.
struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    fn in_namespace(holder: &Holder, mut step: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = holder.spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !seen.load(Ordering::Relaxed) && Instant::now() < deadline {
                step();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends datagrams with `bytes` bytes of payload from left to right, to `ports` ports in turn. A pause
/// of 2 ms follows every 50 datagrams.
fn datagrams(pair: &Pair, bytes: usize, ports: u16) -> Background {
    let socket = pair.left.within(|| UdpSocket::bind("10.77.0.1:0").unwrap());
    let payload = vec![7_u8; bytes];
    Background::in_namespace(&pair.left, move || {
        for at in 0..50_u16 {
            // Ignore the error: the tests do not need every datagram.
            let _ = socket.send_to(&payload, ("10.77.0.2", 9000 + at % ports));
        }
        std::thread::sleep(Duration::from_millis(2));
    })
}

#[test]
fn a_quiet_host_loses_nothing() {
    let pair = Pair::new();
    let result = watch(&pair.right, "500ms");
    assert_eq!(result["losses"].as_array().unwrap().len(), 0, "{result:#}");
}

/// Starts a watch, makes a change after the first reading, and interrupts the watch.
fn watch_change(holder: &Holder, interface: &str, change: impl FnOnce()) -> support::Ended {
    let mut watching = Running::start(holder.enter(evenkeel(&["check", interface, "--watch", "300s"])));
    watching.wait_for_activity("watching for");
    change();
    watching.signal(Signal::SIGINT);
    watching.end()
}

#[test]
fn a_qdisc_that_is_replaced_during_the_watch_is_named() {
    let pair = Pair::new();
    pair.left.ip("tc qdisc replace dev evk0 root handle 1: pfifo");
    let ended = watch_change(&pair.left, "evk0", || {
        pair.left.ip("tc qdisc replace dev evk0 root handle 2: pfifo");
    });
    let words = "evk0 no longer has its qdisc pfifo at root, whose drops since the first reading are unknown";
    assert!(ended.code == 130 && ended.stdout.replace("\n ", "").contains(words), "{ended:?}");
}

#[test]
fn an_interface_that_is_made_again_with_its_number_ends_the_watch() {
    let pair = Pair::new();
    let add = "ip link add evk5 index 77 type veth peer name evk6";
    pair.left.ip(add);
    let ended = watch_change(&pair.left, "evk5", || {
        pair.left.ip("ip link del evk5");
        pair.left.ip(add);
    });
    let words = "another program deleted evk5 and created it again during the watch";
    assert!(ended.code == 4 && ended.stderr.contains(words), "{ended:?}");
}

/// Sends datagrams to more ports than the table of flows has entries (8,192).
#[test]
fn drops_beyond_the_table_of_flows_are_counted_by_reason() {
    const PORTS: u16 = 12_000;
    let pair = Pair::new();
    let namespace = std::fs::metadata(format!("/proc/{}/ns/net", pair.right.id())).unwrap();
    let reasons = DropReasons::attach(u32::try_from(namespace.ino()).unwrap()).unwrap();
    let socket = pair.left.within(|| UdpSocket::bind("10.77.0.1:0").unwrap());
    for port in 20_000..20_000 + PORTS {
        // Ignore the error: an answer to an earlier datagram (ICMP) may make a send fail.
        while socket.send_to(b"x", ("10.77.0.2", port)).is_err() {}
        if port % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let dropped = || -> (u64, u64) {
        let counts = reasons.counts().unwrap();
        let of = |is_known: bool| {
            let own =
                counts.iter().filter(|drop| drop.reason == "NO_SOCKET" && drop.flow.is_some() == is_known);
            own.map(|drop| drop.packets).sum()
        };
        (of(true), of(false))
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while dropped().0 + dropped().1 < u64::from(PORTS) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (by_flow, without_flow) = dropped();
    assert!(by_flow > 7000 && without_flow > 3000, "{by_flow} {without_flow}");
    assert_eq!(by_flow + without_flow, u64::from(PORTS));
}

#[test]
fn a_short_queue_drops_in_the_qdisc() {
    let pair = Pair::new();
    pair.left.ip("tc qdisc replace dev evk0 root handle 1: tbf rate 1mbit burst 2000 limit 3000");
    let sink = pair.right.within(|| UdpSocket::bind("10.77.0.2:9000").unwrap());
    let _load = datagrams(&pair, 1000, 1);
    let result = watch(&pair.left, "2s");
    let (packets, rules) = lost_at(&result, "qdisc");
    assert!(packets > 100, "{result:#}");
    assert_eq!(rules, ["qdisc-drops"], "{result:#}");
    assert_eq!(lost_at(&result, "receive-queue").0, 0, "{result:#}");
    let reasons = for_reason(&result, "QDISC_DROP") + for_reason(&result, "QDISC_OVERLIMIT");
    assert!(reasons > 100, "{result:#}");
    drop(sink);
}

/// TCP retransmits the packets that the qdisc drops. The watch must count each loss only once, at the qdisc.
#[test]
fn retransmissions_after_drops_in_the_qdisc_are_not_counted_again() {
    let pair = Pair::new();
    pair.left.ip("tc qdisc replace dev evk0 root handle 1: tbf rate 8mbit burst 5000 limit 15000");
    let (port_is, port) = std::sync::mpsc::channel();
    let reader = pair.right.spawn(move || {
        let listener = TcpListener::bind("10.77.0.2:0").unwrap();
        port_is.send(listener.local_addr().unwrap().port()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        std::io::copy(&mut stream, &mut std::io::sink())
    });
    let port = port.recv().unwrap();
    let writer = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(("10.77.0.2", port)).unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until && stream.write_all(&[0; 65536]).is_ok() {}
    });
    let result = watch(&pair.left, "3s");
    let (dropped, rules) = lost_at(&result, "qdisc");
    assert!(dropped > 0 && rules == ["qdisc-drops"], "{result}");
    assert!(result["retransmissions_explained"].as_u64().unwrap() > 0, "{result}");
    assert_eq!(lost_at(&result, "path").0, 0, "{result}");
    writer.join().unwrap();
    let _ = reader.join().unwrap();
}

#[test]
fn an_unread_socket_drops_in_its_receive_queue() {
    let pair = Pair::new();
    let socket = pair.right.within(|| UdpSocket::bind("10.77.0.2:9000").unwrap());
    let _load = datagrams(&pair, 1000, 1);
    let result = watch(&pair.right, "2s");
    let (packets, rules) = lost_at(&result, "receive-queue");
    assert!(packets > 100, "{result:#}");
    assert!(rules.iter().all(|rule| rule == "udp-receive-buffer"), "{result:#}");
    let named = result["losses"].as_array().unwrap().iter().any(|loss| {
        let subject = loss["subject"].as_str().unwrap();
        subject.starts_with("UDP 10.77.0.2:9000 of ")
            && subject.contains(&format!("(process {})", std::process::id()))
    });
    assert!(named, "the socket and its process: {result:#}");
    // The program reads the UDP counters and the socket counters at different moments. A difference between
    // them must not become another loss.
    assert_eq!(rules.len(), 1, "no other socket dropped any: {result:#}");
    assert_eq!(lost_at(&result, "qdisc").0, 0, "{result:#}");
    let flow = result["reasons"]
        .as_array()
        .unwrap()
        .iter()
        .find(|drop| drop["reason"] == "SOCKET_RCVBUFF")
        .expect("a reason");
    assert!(flow["flow"].as_str().unwrap().contains("> 10.77.0.2:9000 UDP"), "{flow}");
    assert_eq!(flow["rule"], "udp-receive-buffer");
    assert!(for_reason(&result, "SOCKET_RCVBUFF") > 100, "{result:#}");
    drop(socket);
}

/// The receiving end of the veth does not take packets that are longer than its MTU.
#[test]
fn packets_longer_than_the_mtu_of_a_veth_are_lost_at_its_receiving_end() {
    let pair = Pair::new();
    pair.left.ip("ip link set evk0 mtu 9000");
    let _load = datagrams(&pair, 5000, 1);
    let result = watch(&pair.right, "2s");
    let (packets, rules) = lost_at(&result, "receive-ring");
    assert!(packets > 100, "{result:#}");
    assert_eq!(rules, ["virtual-drops"], "{result:#}");
}

/// A raw socket gets a copy of each datagram.
#[test]
fn an_unread_raw_socket_drops_in_its_receive_queue() {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let pair = Pair::new();
    let raw = pair.right.within(|| {
        // SAFETY: socket takes numbers only, and nothing else owns the new descriptor.
        let raw = unsafe {
            let number = libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_UDP);
            assert!(number >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(number)
        };
        let bytes: libc::c_int = 2304;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value has the length that `length` states.
        let set = unsafe {
            libc::setsockopt(
                raw.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw const bytes).cast(),
                length,
            )
        };
        assert_eq!(set, 0);
        raw
    });
    let _load = datagrams(&pair, 100, 1);
    let result = watch(&pair.right, "2s");
    let losses = result["losses"].as_array().unwrap();
    let loss = losses.iter().find(|loss| loss["rule"] == "raw-receive-buffer").expect("a loss");
    assert!(loss["packets"].as_u64().unwrap() > 100, "{result:#}");
    let subject = loss["subject"].as_str().unwrap();
    let process = format!("(process {})", std::process::id());
    assert!(subject.starts_with("raw socket 0.0.0.0, protocol 17 of "), "{result:#}");
    assert!(subject.contains(&process) && loss["place"] == "receive-queue", "{result:#}");
    drop(raw);
}

/// The receiver has no route to the source address of the packets, so the reverse-path filter drops them.
#[test]
fn packets_that_the_reverse_path_filter_drops_are_lost_in_the_network_layer() {
    let pair = Pair::new();
    pair.right.set("net/ipv4/conf/evk1/rp_filter", "1");
    pair.left.ip("ip address add 10.99.0.5/32 dev lo");
    // The filter would also drop an ARP request with the source 10.99.0.5, so ARP uses another address.
    pair.left.set("net/ipv4/conf/evk0/arp_announce", "2");
    let socket = pair.left.within(|| UdpSocket::bind("10.99.0.5:0").unwrap());
    let _load = Background::in_namespace(&pair.left, move || {
        let _ = socket.send_to(&[7; 100], "10.77.0.2:9000");
        std::thread::sleep(Duration::from_millis(1));
    });
    let result = watch(&pair.right, "2s");
    let (packets, rules) = lost_at(&result, "network");
    assert!(packets > 100, "{result:#}");
    assert_eq!(rules, ["reverse-path-drops"], "{result:#}");
    let reason = result["reasons"].as_array().unwrap().iter().find(|drop| drop["reason"] == "IP_RPFILTER");
    assert_eq!(reason.expect("a reason")["rule"], "reverse-path-drops", "{result:#}");
}

#[test]
fn datagrams_to_a_closed_port_are_lost_in_the_network_layer() {
    let pair = Pair::new();
    let _load = datagrams(&pair, 100, 1);
    let result = watch(&pair.right, "2s");
    let (packets, rules) = lost_at(&result, "network");
    assert!(packets > 100, "{result:#}");
    assert_eq!(rules, ["udp-no-port"], "{result:#}");
}

#[test]
fn a_listener_that_does_not_accept_overflows() {
    let pair = Pair::new();
    let listener = pair.right.within(|| {
        let listener = TcpListener::bind("10.77.0.2:9000").unwrap();
        use std::os::fd::AsRawFd;
        // SAFETY: the call takes a descriptor and a number. A second call changes the backlog.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 1) }, 0);
        listener
    });
    let mut connections = Vec::new();
    let _load = Background::in_namespace(&pair.left, move || {
        let address = "10.77.0.2:9000".parse().unwrap();
        if let Ok(connection) = TcpStream::connect_timeout(&address, Duration::from_millis(20)) {
            connections.push(connection);
        }
    });
    let result = watch(&pair.right, "3s");
    let (packets, rules) = lost_at(&result, "accept-queue");
    assert!(packets > 5, "{result:#}");
    assert_eq!(rules, ["listen-overflow"], "{result:#}");
    drop(listener);
}

/// `netdev_max_backlog` applies to the whole host, so no test changes it. Instead, RPS steers all
/// packets to one CPU. A long list of filters makes this CPU slower per packet than the sending CPUs.
#[test]
fn a_backlog_that_overflows_is_named_by_processor() {
    let pair = Pair::new();
    pair.right.within(|| {
        // /sys shows the namespace in which it was mounted, so the test opens a sysfs of this
        // namespace.
        let sysfs = evenkeel_host::Sysfs::of_namespace().unwrap();
        std::fs::write(sysfs.path("class/net/evk1/queues/rx-0/rps_cpus"), "1").unwrap();
    });
    pair.right.ip("tc qdisc add dev evk1 clsact");
    let filter = |at| {
        format!(
            "filter add dev evk1 ingress protocol ip prio 1 u32 match ip src 192.0.2.{}/32 flowid 1:1\n",
            at % 250
        )
    };
    let mut batch = tempfile::NamedTempFile::new().unwrap();
    batch.write_all((0..2000).map(filter).collect::<String>().as_bytes()).unwrap();
    pair.right.ip(&format!("tc -batch {}", batch.path().display()));
    let sink = pair.right.within(|| UdpSocket::bind("10.77.0.2:9000").unwrap());
    // Packets in the backlog count against the sender's buffer, which holds fewer than 300 packets. The
    // backlog holds 1,000 packets by default, so the test needs many senders.
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for _ in 0..12 {
        let seen = Arc::clone(&stop);
        threads.push(pair.left.spawn(move || {
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            let payload = [7_u8; 64];
            while !seen.load(Ordering::Relaxed) && Instant::now() < deadline {
                for _ in 0..100 {
                    let _ = socket.send_to(&payload, "10.77.0.2:9000");
                }
            }
        }));
    }
    // The losses of a burst depend on scheduling, so the first watch that shows losses suffices.
    let deadline = Instant::now() + Duration::from_secs(25);
    let mut seen = None;
    while seen.is_none() && Instant::now() < deadline {
        let result = watch(&pair.right, "1s");
        seen = (lost_at(&result, "softnet-backlog").0 > 0).then_some(result);
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let result = seen.expect("the backlog overflows within 25 s of small packets from twelve threads");
    let (_, rules) = lost_at(&result, "softnet-backlog");
    assert!(rules.iter().all(|rule| rule == "backlog-drops"), "{result:#}");
    let processors = result["losses"]
        .as_array()
        .unwrap()
        .iter()
        .any(|loss| loss["subject"].as_str().unwrap().starts_with("processor "));
    assert!(processors, "{result:#}");
    drop(sink);
}

/// The reader does not read, and makes its buffer smaller than the window that it has announced. Arriving
/// segments then do not fit, so TCP must prune.
#[test]
fn a_buffer_smaller_than_its_window_makes_tcp_prune() {
    use std::os::fd::AsRawFd;
    let pair = Pair::new();
    let listener = pair.right.within(|| TcpListener::bind("10.77.0.2:9000").unwrap());
    listener.set_nonblocking(true).unwrap();
    let mut readers = Vec::new();
    let _readers = Background::in_namespace(&pair.right, move || {
        let Ok((reader, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(1));
            return;
        };
        let smallest: libc::c_int = 1;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value has the length that `length` states.
        let set = unsafe {
            libc::setsockopt(
                reader.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw const smallest).cast(),
                length,
            )
        };
        assert_eq!(set, 0);
        readers.push(reader);
    });
    // In this test, TCP prunes the receive queue only at the beginning of a connection. So the test opens
    // one connection after another.
    let mut senders = Vec::new();
    let _senders = Background::in_namespace(&pair.left, move || {
        let mut sender = TcpStream::connect("10.77.0.2:9000").unwrap();
        sender.set_nodelay(true).unwrap();
        sender.set_nonblocking(true).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        for _ in 0..2000 {
            let _ = sender.write(&[7; 100]);
        }
        senders.push(sender);
        std::thread::sleep(Duration::from_millis(50));
    });
    let result = watch(&pair.right, "3s");
    let (packets, rules) = lost_at(&result, "receive-queue");
    assert!(packets > 0, "{result:#}");
    assert!(rules.iter().all(|rule| rule == "tcp-receive-pruned"), "{result:#}");
}

/// Memory whose first access blocks until the test closes the descriptor (userfaultfd(2)).
struct SlowMemory {
    start: *mut u8,
    descriptor: Option<std::os::fd::OwnedFd>,
}

// SAFETY: the mapping belongs to the struct. Only the kernel reads and writes it, on behalf of one
// call.
unsafe impl Send for SlowMemory {}

const SLOW_BYTES: usize = 1 << 16;

impl SlowMemory {
    fn new() -> Self {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        /// `UFFDIO_API` and `UFFDIO_REGISTER` (include/uapi/linux/userfaultfd.h).
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        // SAFETY: the call creates a new anonymous mapping.
        let start = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                SLOW_BYTES,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the call takes only flags.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        assert!(number >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number as i32) };
        // Fields of `uffdio_api`: api, features, ioctls. Fields of `uffdio_register`: start, length, mode
        // (missing pages), ioctls.
        let mut api = [0xaa_u64, 0, 0];
        let mut register = [start as u64, SLOW_BYTES as u64, 1, 0];
        // SAFETY: the structures have the lengths that the command numbers state.
        unsafe {
            assert_eq!(libc::ioctl(descriptor.as_raw_fd(), API as libc::Ioctl, api.as_mut_ptr()), 0);
            assert_eq!(
                libc::ioctl(descriptor.as_raw_fd(), REGISTER as libc::Ioctl, register.as_mut_ptr()),
                0
            );
        }
        Self { start: start.cast(), descriptor: Some(descriptor) }
    }
}

impl Drop for SlowMemory {
    fn drop(&mut self) {
        drop(self.descriptor.take());
        // SAFETY: the mapping belongs to the struct, and no other reference is left.
        unsafe { libc::munmap(self.start.cast(), SLOW_BYTES) };
    }
}

/// A reader that blocks while it copies holds its socket locked. Segments that arrive during this time
/// go to the backlog, which overflows.
#[test]
fn a_reader_that_holds_its_socket_overflows_the_backlog() {
    use std::os::fd::AsRawFd;
    let pair = Pair::new();
    // The receiver sends no acknowledgements while the socket is locked, so the sender's first window
    // must be large. The backlog merges segments with equal timestamps, so the sender sends one segment
    // per millisecond.
    pair.left.ip("ip route replace 10.77.0.0/24 dev evk0 src 10.77.0.1 initcwnd 4000");
    pair.left.set("net/ipv4/tcp_congestion_control", "reno");
    pair.left.set("net/ipv4/tcp_autocorking", "0");
    pair.right.set("net/ipv4/tcp_rmem", "4096 16384 16384");
    pair.right.set("net/ipv4/tcp_wmem", "4096 16384 16384");
    let listener = pair.right.within(|| TcpListener::bind("10.77.0.2:9000").unwrap());
    let mut sender = pair.left.within(|| TcpStream::connect("10.77.0.2:9000").unwrap());
    let (reader, _) = listener.accept().unwrap();
    sender.set_nodelay(true).unwrap();
    sender.set_nonblocking(true).unwrap();
    let mut memory = SlowMemory::new();
    let held = memory.descriptor.take();
    let place = memory.start as usize;
    let watched = std::thread::scope(|scope| {
        let watched = scope.spawn(|| watch(&pair.right, "4s"));
        // The watch has taken its first reading by this time.
        std::thread::sleep(Duration::from_millis(1500));
        scope.spawn(|| {
            // SAFETY: the mapping has this length, and outlives the scope.
            unsafe { libc::recv(reader.as_raw_fd(), place as *mut libc::c_void, SLOW_BYTES, 0) };
        });
        for _ in 0..1500 {
            let _ = sender.write(&[7]);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Close the descriptor. The kernel then provides the page, so the reader continues.
        drop(held);
        watched.join().unwrap()
    });
    let (packets, rules) = lost_at(&watched, "tcp-backlog");
    assert!(packets > 0, "{watched:#}");
    assert_eq!(rules, ["tcp-backlog-drops"], "{watched:#}");
    assert!(for_reason(&watched, "SOCKET_BACKLOG") > 0, "{watched:#}");
}
