//! Tests of transmit batching with Evenkeel's qdisc, which the kernel of the virtual machine supports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use evenkeel_datapath::{BatchOptions, TransmitBatching};
use evenkeel_netlink::tc::{Handle, Qdisc};
use evenkeel_testbed::{RECEIVER_ADDRESS, SENDER_ADDRESS};

use support::nics::{Nics, QUEUES};
use support::traffic::{Bulk, BulkOptions};
use support::{PATIENCE, wait_for};

fn register(name: &str, hold: Duration, batch_packets: u32) -> TransmitBatching {
    let hold_ns = hold.as_nanos() as u64;
    let options = BatchOptions { name: name.to_owned(), hold_ns, batch_packets, ..BatchOptions::default() };
    TransmitBatching::register(&options).unwrap()
}

fn registered(batching: &TransmitBatching) -> Qdisc {
    Qdisc::Registered(batching.name().to_owned())
}

/// Returns the sender's sockets, the receiver's socket, and the receiver's address. Each of the
/// sender's sockets is a flow.
fn datagram_sockets(nics: &Nics, senders: usize) -> (Vec<UdpSocket>, UdpSocket, SocketAddr) {
    let receiving = nics.receiver.run(|| Ok(UdpSocket::bind((RECEIVER_ADDRESS, 0)).unwrap())).unwrap();
    receiving.set_nonblocking(true).unwrap();
    let to = receiving.local_addr().unwrap();
    let sending = nics
        .sender
        .run(|| Ok((0..senders).map(|_| UdpSocket::bind((SENDER_ADDRESS, 0)).unwrap()).collect::<Vec<_>>()))
        .unwrap();
    (sending, receiving, to)
}

fn received(socket: &UdpSocket) -> usize {
    let mut count = 0;
    loop {
        match socket.recv(&mut [0; 100]) {
            Ok(_) => count += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

fn waiting(nics: &mut Nics) -> u64 {
    let qdiscs = nics.netlink.qdisc_statistics(nics.index).unwrap();
    qdiscs.iter().find(|(place, _)| *place == Handle::ROOT).unwrap().1.queue_length
}

/// The first flow's segment must wait for the segments of the other flows. The qdisc sends all segments
/// when the batch is full or the hold time has passed.
#[test]
fn the_sockets_of_a_batch_enqueue_before_anything_leaves() {
    guest::require();
    const BATCH: usize = 4;
    const LONG: Duration = Duration::from_secs(100);
    let mut nics = Nics::take("virtio_net");
    let (sending, receiving, to) = datagram_sockets(&nics, BATCH);

    let full = register("evk_full", LONG, BATCH as u32);
    nics.netlink.replace_qdisc(nics.index, Handle::ROOT, Handle::new(1, 0), &registered(&full)).unwrap();
    for (sent, socket) in sending.iter().enumerate() {
        assert_eq!((waiting(&mut nics), received(&receiving)), (sent as u64, 0), "held");
        socket.send_to(b"batch", to).unwrap();
    }
    let begun = Instant::now();
    let mut arrived = 0;
    wait_for("the full batch arrives", PATIENCE, || {
        arrived += received(&receiving);
        (arrived == BATCH).then_some(())
    });
    assert!(begun.elapsed() < LONG);
    assert_eq!(waiting(&mut nics), 0);
    let counters = full.counters();
    assert_eq!((counters.held, counters.batches, counters.dropped), (1, 1, 0), "{counters:?}");

    let timed = register("evk_timed", Duration::from_millis(300), 1000);
    nics.netlink.replace_qdisc(nics.index, Handle::ROOT, Handle::new(2, 0), &registered(&timed)).unwrap();
    sending[0].send_to(b"alone", to).unwrap();
    let begun = Instant::now();
    wait_for("the segment arrives", PATIENCE, || (received(&receiving) == 1).then_some(()));
    assert!(begun.elapsed() >= Duration::from_millis(100), "held for {:?}", begun.elapsed());
    assert_eq!(timed.counters().batches, 0);
}

/// Below mq, every transmit queue must have its own instance, TCP flows must lose no segment, and no
/// object may remain.
#[test]
fn tcp_flows_pass_below_mq_and_nothing_is_left_behind() {
    guest::require();
    let mut nics = Nics::take("virtio_net");
    let batching = register("evk_mq", Duration::from_micros(200), 16);
    nics.unshaped();
    for queue in 1..=QUEUES as u16 {
        let (place, handle) = (Handle::new(1, queue), Handle::new(0x10 + queue, 0));
        nics.netlink.replace_qdisc(nics.index, place, handle, &registered(&batching)).unwrap();
    }
    let options = BulkOptions { flows: 8, bytes: Some(2_000_000), ..BulkOptions::default() };
    let transferred = Bulk::between(&nics.sender, &nics.receiver, options).finish();
    assert!(transferred.iter().all(|flow| flow.sent == 2_000_000 && flow.received == flow.sent));
    let counters = batching.counters();
    assert!(counters.held > 0 && counters.batches > 0 && counters.dropped == 0, "{counters:?}");
    // The qdisc also holds the last FINs, so wait for them.
    wait_for("nothing waits any more", PATIENCE, || {
        let left = nics.queue_statistics();
        left.iter().all(|queue| queue.queue_length == 0 && queue.backlog_bytes == 0).then_some(())
    });

    // Remove the qdisc from the device first. The name is free after the owner drops the qdisc.
    nics.unshaped();
    drop(batching);
    let gone = Qdisc::Registered("evk_mq".to_owned());
    let error = nics.netlink.replace_qdisc(nics.index, Handle::ROOT, Handle::new(3, 0), &gone).unwrap_err();
    assert_eq!(error.refusal_code(), Some(libc::ENOENT), "{error}");
    let again = register("evk_mq", Duration::ZERO, 1);
    let twice =
        TransmitBatching::register(&BatchOptions { name: "evk_mq".to_owned(), ..BatchOptions::default() });
    let error = twice.err().unwrap();
    assert!(error.is_taken() && error.to_string().contains("register the qdisc"), "{error}");
    drop(again);
}

/// Segments that the qdisc holds when it is deleted must be freed.
#[test]
fn what_is_held_is_freed_with_the_qdisc() {
    guest::require();
    let mut nics = Nics::take("virtio_net");
    let (sending, receiving, to) = datagram_sockets(&nics, 3);
    let batching = register("evk_freed", Duration::from_secs(100), 1000);
    nics.netlink.replace_qdisc(nics.index, Handle::ROOT, Handle::new(1, 0), &registered(&batching)).unwrap();
    for socket in &sending {
        socket.send_to(b"held", to).unwrap();
    }
    assert_eq!(waiting(&mut nics), sending.len() as u64);
    nics.unshaped();
    // The path works again, but the held segments do not arrive.
    sending[0].send_to(b"after", to).unwrap();
    wait_for("a later datagram arrives", PATIENCE, || (received(&receiving) == 1).then_some(()));
    assert_eq!(received(&receiving), 0);
}

/// A device's instance of the qdisc must work until it is replaced, even if the process that registered the
/// qdisc has ended.
#[test]
fn a_device_keeps_it_when_its_owner_goes() {
    guest::require();
    let mut nics = Nics::take("virtio_net");
    let (sending, receiving, to) = datagram_sockets(&nics, 1);
    let batching = register("evk_orphan", Duration::from_millis(1), 1000);
    let qdisc = registered(&batching);
    nics.netlink.replace_qdisc(nics.index, Handle::ROOT, Handle::new(1, 0), &qdisc).unwrap();
    drop(batching);
    let carried = |nics: &mut Nics| {
        let qdiscs = nics.netlink.qdisc_statistics(nics.index).unwrap();
        qdiscs.iter().find(|(place, _)| *place == Handle::ROOT).unwrap().1.packets
    };
    let before = carried(&mut nics);
    sending[0].send_to(b"orphan", to).unwrap();
    wait_for("a datagram arrives", PATIENCE, || (received(&receiving) == 1).then_some(()));
    assert!(carried(&mut nics) > before, "it went through the qdisc");
    nics.unshaped();
    let error = nics.netlink.replace_qdisc(nics.index, Handle::ROOT, Handle::new(2, 0), &qdisc).unwrap_err();
    assert_eq!(error.refusal_code(), Some(libc::ENOENT), "{error}");
    sending[0].send_to(b"after", to).unwrap();
    wait_for("a later datagram arrives", PATIENCE, || (received(&receiving) == 1).then_some(()));
}
