//! Tests with traffic other than bulk TCP data: ACKs and UDP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{
    Bed, Namespace, RECEIVER_ADDRESS, RECEIVER_ADDRESS_V6, SENDER_ADDRESS, SENDER_ADDRESS_V6,
};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions, Ends};
use support::{PATIENCE, assert_weightless, metered, options, tracked, wait_for, weight_sum};

const UDP: u8 = 17;

#[test]
fn acknowledgements_are_never_charged() {
    for topology in [Topology::SoftNic, Topology::Mq] {
        let mut bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
        let bulk = Bulk::start(&bed, BulkOptions::reverse(4));
        let mut looks = 0_u32;
        wait_for("the data has arrived", PATIENCE, || {
            assert_eq!(weight_sum(&bed), 0, "{:?}", bed.select.flows());
            looks += 1;
            bulk.received().iter().all(|bytes| *bytes >= 20_000_000).then_some(())
        });
        assert!(looks > 1);
        bulk.finish();
        let counters = bed.select.counters();
        assert_eq!((counters.picks, counters.recharged, counters.completed), (0, 0, 0), "{counters:?}");
        assert!(bed.select.flows().is_empty(), "what sends no data is not tracked");
        // The packets were sent through the managed device.
        let packets: u64 = bed.queue_statistics().unwrap().iter().map(|queue| queue.packets).sum();
        assert!(packets > 100, "{packets} packets");
    }
}

fn udp(at: &Namespace, address: IpAddr) -> UdpSocket {
    at.run(|| Ok(UdpSocket::bind((address, 0)).unwrap())).unwrap()
}

/// Sends datagrams, and reads every datagram at the other end.
fn exchange(from: &UdpSocket, to: &UdpSocket, mut send: impl FnMut(&[u8])) {
    const DATAGRAMS: u32 = 200;
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    let source = from.local_addr().unwrap();
    let mut buffer = [0; 2_000];
    for number in 0..DATAGRAMS {
        let mut payload = [0; 1_000];
        payload[..4].copy_from_slice(&number.to_ne_bytes());
        send(&payload);
        // Send one datagram at a time, so that the receive buffer never overflows.
        let (length, sender) = to.recv_from(&mut buffer).unwrap();
        assert_eq!((length, sender, &buffer[..4]), (payload.len(), source, &payload[..4]));
    }
}

#[test]
fn udp_gets_a_queue_and_gives_it_back() {
    let families: [(IpAddr, IpAddr); 2] = [
        (SENDER_ADDRESS.into(), RECEIVER_ADDRESS.into()),
        (SENDER_ADDRESS_V6.into(), RECEIVER_ADDRESS_V6.into()),
    ];
    for topology in [Topology::SoftNic, Topology::Mq] {
        let bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
        for (source, destination) in families {
            for connected in [true, false] {
                let (from, to) = (udp(&bed.sender, source), udp(&bed.receiver, destination));
                let target: SocketAddr = to.local_addr().unwrap();
                if connected {
                    from.connect(target).unwrap();
                    exchange(&from, &to, |payload| assert_eq!(from.send(payload).unwrap(), payload.len()));
                } else {
                    exchange(&from, &to, |payload| {
                        assert_eq!(from.send_to(payload, target).unwrap(), payload.len());
                    });
                }
                let ends = Ends { source: from.local_addr().unwrap(), destination: target };
                let flow = tracked(&bed, &ends).expect("a UDP flow is tracked");
                assert_eq!(flow.tuple.protocol, UDP, "{flow:?}");
                assert!((1..=200).contains(&flow.segments), "{flow:?}");
                let queue = flow.queue.expect("it has a queue");
                assert!(queue < 8);
                assert_weightless(&bed);
                let sample = metered(&bed, &ends).unwrap();
                assert_eq!((sample.payload_bytes, sample.packets), (200 * 1_000, 200));
                if topology == Topology::Mq {
                    assert_eq!(sample.queue_mapping, queue, "connected: {connected}, {flow:?}");
                }
            }
        }
        let counters = bed.select.counters();
        assert_eq!((counters.contended, counters.untracked), (0, 0), "{counters:?}");
    }
}

#[test]
fn udp_under_load_gives_its_queue_back() {
    const SOCKETS: usize = 4;
    for topology in [Topology::SoftNic, Topology::Mq] {
        let bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
        let sink = udp(&bed.receiver, RECEIVER_ADDRESS.into());
        let target = sink.local_addr().unwrap();
        let sockets: Vec<UdpSocket> = (0..SOCKETS).map(|_| udp(&bed.sender, SENDER_ADDRESS.into())).collect();
        std::thread::scope(|scope| {
            for socket in &sockets {
                scope.spawn(move || {
                    socket.connect(target).unwrap();
                    for _ in 0..3_000 {
                        // Ignore errors: the receiver does not read, and only the path is tested.
                        let _ = socket.send(&[0; 1_400]);
                    }
                });
            }
            wait_for("queues are charged", PATIENCE, || (weight_sum(&bed) > 0).then_some(()));
        });
        let ends: Vec<Ends> = sockets
            .iter()
            .map(|socket| Ends { source: socket.local_addr().unwrap(), destination: target })
            .collect();
        assert!(ends.iter().all(|ends| tracked(&bed, ends).is_some_and(|flow| flow.queue.is_some())));
        assert_weightless(&bed);
    }
}

#[test]
fn bulk_and_udp_together_leave_no_weight() {
    let bed = Bed::build(&options(Topology::Mq, Policy::Dqa)).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 4, ..BulkOptions::default() });
    let (from, to) = (udp(&bed.sender, SENDER_ADDRESS.into()), udp(&bed.receiver, RECEIVER_ADDRESS.into()));
    let target = to.local_addr().unwrap();
    bulk.wait_for_each(200_000);
    exchange(&from, &to, |payload| assert_eq!(from.send_to(payload, target).unwrap(), payload.len()));
    bulk.finish();
    assert_weightless(&bed);
}
