//! Tests with many sequential and concurrent connections: the weights return to zero, the flow table empties,
//! and the memory of the process does not grow.
//!
//! `EVENKEEL_SOAK_CONNECTIONS` sets the number of connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions};
use evenkeel_transmit::Policy;

use support::{PATIENCE, assert_weightless, options, wait_for};

/// Number of addresses of the receiving host. Each address allows 28,000 connections before ports are
/// reused.
const ADDRESSES: u8 = 16;
const CLIENTS: usize = 8;
/// Time limit for freeing a slot. Freeing takes ten seconds of silence, and a walk that runs once per
/// second.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(30);

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a whole number"))
}

/// Returns the resident memory of this process, bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Accepts connections until `stop` is set. Reads each connection to its end and closes it.
fn serve(listener: &TcpListener, stop: &AtomicBool, served: &AtomicU64) {
    let mut buffer = vec![0; 4096];
    while !stop.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        while stream.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
        served.fetch_add(1, Ordering::Relaxed);
    }
}

/// Opens connections with one segment of data each, as fast as possible. Returns the number of failures.
fn connect_many(count: u64, addresses: &[SocketAddr]) -> u64 {
    let mut failed = 0;
    for index in 0..count {
        let address = addresses[index as usize % addresses.len()];
        let sent = TcpStream::connect_timeout(&address, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(&[0x5a; 1000])?;
            stream.shutdown(Shutdown::Write)?;
            // The server closes the connection after reading all data.
            stream.read(&mut [0; 1])
        });
        failed += u64::from(!matches!(sent, Ok(0)));
    }
    failed
}

#[test]
fn many_connections_leave_nothing_behind() {
    let count = number("EVENKEEL_SOAK_CONNECTIONS", 300_000);
    let bed = Bed::build(&BedOptions { meter: None, ..options(Topology::SoftNic, Policy::Dqa) }).unwrap();
    let mut netlink = bed.receiver.netlink().unwrap();
    let interface = netlink.link_index("evk1").unwrap();
    let addresses: Vec<Ipv4Addr> = (0..ADDRESSES).map(|last| Ipv4Addr::new(198, 18, 0, 100 + last)).collect();
    for address in &addresses {
        netlink.add_address(interface, IpAddr::V4(*address), 24).unwrap();
    }
    let listeners: Vec<TcpListener> = addresses
        .iter()
        .map(|address| bed.receiver.run(|| Ok(TcpListener::bind((*address, 0)).unwrap())).unwrap())
        .collect();
    let targets: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let mut memory = Vec::new();
    let failed: u64 = std::thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| serve(listener, &stop, &served));
        }
        // Run five parts, and record the memory after each part.
        let failed = (0..5)
            .map(|_| {
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|client| {
                        let (bed, mut targets) = (&bed, targets.clone());
                        targets.rotate_left(client * 2);
                        scope.spawn(move || {
                            bed.sender.run(|| Ok(connect_many(count / 5 / CLIENTS as u64, &targets))).unwrap()
                        })
                    })
                    .collect();
                let failed: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
                memory.push(resident());
                failed
            })
            .sum();
        stop.store(true, Ordering::Relaxed);
        // Wake the threads that wait in accept.
        for target in &targets {
            let _ = bed.sender.run(|| Ok(TcpStream::connect_timeout(target, PATIENCE).map(drop).is_ok()));
        }
        failed
    });
    let made = count / 5 / CLIENTS as u64 * 5 * CLIENTS as u64;
    eprintln!(
        "{made} connections in {:.1} s ({:.0} a second), {failed} failed; resident memory {} KB after a fifth, {} KB at \
         the end",
        begun.elapsed().as_secs_f64(),
        made as f64 / begun.elapsed().as_secs_f64(),
        memory[0] / 1024,
        memory[4] / 1024
    );
    assert_eq!(failed, 0);
    assert!(served.load(Ordering::Relaxed) >= made);
    assert_weightless(&bed);
    wait_for("every flow is forgotten", FORGOTTEN_WITHIN, || (bed.select.flow_count() == 0).then_some(()));
    let counters = bed.select.counters();
    assert_eq!((counters.false_releases, counters.contended), (0, 0), "{counters:?}");
    assert!(memory[4] < memory[0] + (2 << 20), "resident memory grew: {memory:?}");
}
