//! Tests of transfers on this machine's kernel: placement, drops by name, conservation. The tests check
//! counters and processor time, never wall time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use evenkeel_model::scenario::bundled::variant_tables;
use evenkeel_model::scenario::{Scenario, parse};
use evenkeel_model::world::{Job, Observer, RawRepeat, World};
use evenkeel_testbed::traffic::stall::StallingBuffer;
use evenkeel_testbed::{Namespace, NetnsWorld};

struct Silent;

impl Observer for Silent {
    fn progress(&self, _: f64, _: &str) {}
    fn remark(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}

const SCENARIO: &str = include_str!("../../../scenarios/tcp100g-two-cores.toml");
const WORK_S_PER_MIB: f64 = 3e-3;

/// Returns the scenario with a short repeat.
fn scenario() -> Scenario {
    let short = SCENARIO.replace("\"1s\"", "\"500ms\"").replace("duration = \"3s\"", "duration = \"1s\"");
    parse(&short, "tcp100g-two-cores.toml", variant_tables()).unwrap()
}

fn repeat(name: &str) -> RawRepeat {
    let scenario = scenario();
    let variant = scenario.all_variants().find(|variant| variant.name == name).unwrap();
    let mut world = NetnsWorld::new(None).unwrap();
    world.assess(&scenario, variant).unwrap();
    let rate = world.settle_rate(&scenario, None, &Silent).unwrap();
    assert_eq!(rate, scenario.link.rate);
    let job = Job {
        scenario: &scenario,
        variant,
        repeat: 0,
        seed: 1,
        rate,
        warmup: scenario.measure.warmup,
        duration: scenario.measure.duration(),
        bin: evenkeel_model::units::Nanoseconds::from_millis(100),
    };
    world.repeat(&job, &Silent).unwrap()
}

const RING: usize = 2;
const SOCKET_BACKLOG: usize = 3;

fn drops(raw: &RawRepeat, place: usize) -> u64 {
    raw.transfers.as_ref().unwrap().drops[place].unwrap()
}

fn mebibytes(raw: &RawRepeat) -> f64 {
    raw.flows.iter().map(|flow| flow.payload_bytes).sum::<u64>() as f64 / f64::from(1 << 20)
}

/// Checks that every sent packet was received or dropped by name.
fn check_conservation(raw: &RawRepeat) {
    let counter = |name: &str| raw.counters[name];
    assert_eq!(counter("unexplained_packets"), 0.0, "{raw:?}");
    let (sent, dropped) = (counter("repeat_sent_packets"), counter("repeat_ring_drops"));
    assert!(sent > 100.0 && dropped < sent, "{raw:?}");
    // TCP sends each dropped packet again, and some packets twice.
    assert!(counter("repeat_retransmits") >= dropped, "{raw:?}");
    assert_eq!(raw.transfers.as_ref().unwrap().drops[0], None, "no switch");
}

/// The packets take time of the application's processor only in `same`. A second of this processor's time
/// therefore carries less data in `same` than in `apart`.
#[test]
fn packets_take_the_time_of_the_application_only_on_its_processor() {
    let carried = |name: &str| {
        let raw = repeat(name);
        check_conservation(&raw);
        assert_eq!(drops(&raw, RING), 0, "the window is shorter than the ring: {raw:?}");
        let percent = |name: &str| raw.counters[name];
        assert!(percent("ring_cpu_pct") > 0.0 && percent("sender_cpu_pct") > 0.0, "{raw:?}");
        // The measured time is one second.
        assert!(percent("reader_cpu_pct") > 0.8 * 100.0 * WORK_S_PER_MIB * mebibytes(&raw), "{raw:?}");
        let packets = percent("application_processors_pct") - percent("reader_cpu_pct");
        assert_eq!(packets > 1e-6, name == "same", "{raw:?}");
        mebibytes(&raw) / percent("application_processors_pct")
    };
    let (same, apart) = (carried("same"), carried("apart"));
    assert!(same < apart, "{same} and {apart} MiB per % of the processor");
}

#[test]
fn a_short_ring_drops_packets_by_name() {
    let raw = repeat("same-short-ring");
    check_conservation(&raw);
    assert!(raw.counters["repeat_ring_drops"] > 0.0, "{raw:?}");
    assert!(drops(&raw, RING) as f64 <= raw.counters["repeat_ring_drops"], "{raw:?}");
    assert!(mebibytes(&raw) > 0.0, "{raw:?}");
}

/// The window accounts for the memory of packets, so that a backlog does not overflow even if the
/// application sleeps with the socket locked.
#[test]
fn a_read_that_sleeps_drops_nothing() {
    let raw = repeat("stall");
    check_conservation(&raw);
    assert_eq!((drops(&raw, RING), drops(&raw, SOCKET_BACKLOG)), (0, 0), "{raw:?}");
    // At most 51 reads of 128 KiB end in a second.
    assert!((0.0..=51.0 / 8.0).contains(&mebibytes(&raw)), "{raw:?}");
}

/// Opens a window of megabytes, and then lowers the limits of the receiving socket. Returns the increase
/// of a counter when data that the window allows arrives: while the application sleeps in a read, or
/// while it does not read.
fn lowered_buffer(sleeps: bool, counter: &str) -> u64 {
    const CALL: usize = 128 << 10;
    let host = Namespace::new().unwrap();
    let read = || {
        let table = host.read_proc_net("netstat").unwrap();
        let mut lines = table.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().unwrap().split(' '), lines.next().unwrap().split(' '));
        names.zip(values).find(|(name, _)| *name == counter).unwrap().1.parse::<u64>().unwrap()
    };
    let (mut sender, mut receiver) = host
        .run(|| {
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            Ok((sender, listener.accept().unwrap().0))
        })
        .unwrap();
    let before = read();
    std::thread::scope(|scope| {
        let stopping = sender.try_clone().unwrap();
        scope.spawn(move || while sender.write(&[0; CALL]).is_ok() {});
        let mut buffer = vec![0; CALL];
        // These reads make the autotuning of the receive buffer grow the window.
        let mut bytes = 0;
        while bytes < 1 << 30 {
            bytes += receiver.read(&mut buffer).unwrap();
        }
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            let least = 4096_i32;
            let length = size_of::<i32>() as libc::socklen_t;
            // SAFETY: a number with its length.
            let result = unsafe {
                let value = (&raw const least).cast();
                libc::setsockopt(receiver.as_raw_fd(), libc::SOL_SOCKET, option, value, length)
            };
            assert_eq!(result, 0);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        if sleeps {
            let mut stalling = StallingBuffer::new(CALL, Duration::from_secs(1)).unwrap();
            assert!(receiver.read(stalling.missing().unwrap()).unwrap() > 0);
        } else {
            while read() == before && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        stopping.shutdown(std::net::Shutdown::Both).unwrap();
    });
    read() - before
}

#[test]
fn a_lowered_buffer_overflows() {
    assert!(lowered_buffer(false, "TCPRcvQDrop") > 0);
}

#[test]
fn the_backlog_of_a_lowered_buffer_overflows_while_a_read_sleeps() {
    assert!(lowered_buffer(true, "TCPBacklogDrop") > 0);
}
