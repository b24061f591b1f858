//! Tests of completion by fentry, which not every kernel supports. Tests of the error of the weights
//! with fentry, with reads of the sockets, and with ageing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_datapath::Completion;
use evenkeel_model::scenario::Topology;
use evenkeel_model::units::BitRate;
use evenkeel_testbed::{Bed, BedOptions, RECEIVER_ADDRESS};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions, accept, connect, listen, short_connections};
use support::{assert_weightless, options, weight_sum};

/// Number of outstanding bytes below which a socket has nothing outstanding. The truesize of any
/// segment with data is larger.
const IDLE_BELOW_BYTES: u32 = 512;
/// Index of `sk_wmem_alloc` in `SO_MEMINFO` (`SK_MEMINFO_WMEM_ALLOC`).
const WMEM_ALLOC: usize = 2;
const SO_MEMINFO: libc::c_int = 55;

fn bed(completion: Completion) -> Bed {
    let options = options(Topology::SoftNic, Policy::Dqa);
    let rate = BitRate::from_bits_per_second(100_000_000);
    Bed::build(&BedOptions { completion, rate, meter: None, ..options }).unwrap()
}

#[test]
fn exact_completion_loads_and_ends_with_no_weight() {
    guest::require();
    let bed = bed(Completion::Exact);
    assert_eq!((bed.select.completion(), bed.select.refused()), (Completion::Exact, None));
    let bulk = Bulk::start(&bed, BulkOptions { flows: 6, ..BulkOptions::default() });
    bulk.wait_for_each(1_000_000);
    short_connections(&bed, 40, 4);
    bulk.reset();
    assert_weightless(&bed);
    let counters = bed.select.counters();
    assert!(counters.completed >= 40, "{counters:?}");
    assert_eq!((counters.aged, counters.contended, counters.untracked), (0, 0, 0), "{counters:?}");
}

/// Returns the bytes that a socket has outstanding, as counted by the kernel.
fn outstanding(socket: &TcpStream) -> u32 {
    let mut memory = [0_u32; 9];
    let mut length = size_of_val(&memory) as libc::socklen_t;
    // SAFETY: the array outlives the call and has the length that `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            (&raw mut memory).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "SO_MEMINFO: {}", std::io::Error::last_os_error());
    memory[WMEM_ALLOC]
}

fn truth(sockets: &[TcpStream]) -> u64 {
    sockets.iter().filter(|socket| outstanding(socket) >= IDLE_BELOW_BYTES).count() as u64
}

/// Returns the mean difference between the sum of all weights and the number of flows with data
/// outstanding. Eight flows send a little data from time to time. If `look` is set, the sockets are
/// read before the weights.
fn mean_error(completion: Completion, look: bool) -> f64 {
    const FLOWS: usize = 8;
    const SAMPLES: usize = 300;
    let bed = bed(completion);
    assert_eq!(bed.select.completion(), completion, "{:?}", bed.select.refused());
    let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
    let destination: SocketAddr = listener.local_addr().unwrap();
    let (sending, receiving): (Vec<TcpStream>, Vec<TcpStream>) =
        (0..FLOWS).map(|_| (connect(&bed.sender, destination), accept(&listener))).unzip();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, (mut from, mut to)) in
            sending.iter().map(|socket| socket.try_clone().unwrap()).zip(receiving).enumerate()
        {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    from.write_all(&[7; 20_000]).unwrap();
                    std::thread::sleep(Duration::from_millis(40 + 7 * number as u64));
                }
                from.shutdown(std::net::Shutdown::Write).unwrap();
            });
            scope.spawn(move || while to.read(&mut [0; 65_536]).unwrap() > 0 {});
        }
        let (mut errors, mut samples) = (0_u64, 0);
        let deadline = Instant::now() + Duration::from_secs(30);
        while samples < SAMPLES && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            let before = truth(&sending);
            if look {
                bed.select.look().unwrap();
            }
            let weight = weight_sum(&bed);
            // Compare only if the number of flows with data outstanding did not change.
            if truth(&sending) == before {
                errors += weight.abs_diff(before);
                samples += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(samples, SAMPLES, "too few moments at which nothing changed");
        errors as f64 / samples as f64
    })
}

/// With exact completion or freshly read sockets, the error must be a small part of a flow, and less than
/// half of the error with ageing. With ageing, flows stay charged for some time after their completion.
#[test]
fn exact_completion_is_nearer_to_the_truth_than_ageing() {
    guest::require();
    let exact = mean_error(Completion::Exact, false);
    let looked_at = mean_error(Completion::Sockets, true);
    let sockets = mean_error(Completion::Sockets, false);
    let ageing = mean_error(Completion::Ageing, false);
    println!(
        "mean error of the sum of weights, in flows: exact {exact:.3}, sockets {looked_at:.3} when looked at \
         and {sockets:.3} when not, ageing {ageing:.3}"
    );
    for near in [exact, looked_at] {
        assert!(near < 0.2 && near < ageing / 2.0, "{near} and {ageing} of ageing");
    }
}
