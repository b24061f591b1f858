//! Tests of the queue choice with drivers of real multi-queue devices, and with fair queueing below the
//! queue choice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;
mod support;

use std::net::{SocketAddr, UdpSocket};

use evenkeel_datapath::QueueSelect;
use evenkeel_host::{Host, Sysfs};
use evenkeel_netlink::tc::{Handle, Qdisc, QueueRange};
use evenkeel_testbed::{Namespace, RECEIVER_ADDRESS, SENDER_ADDRESS};
use evenkeel_transmit::Policy;

use support::nics::{Nics, QUEUES};
use support::traffic::{Bulk, BulkOptions, pin, set_option};
use support::{PATIENCE, all_distinct, is_between, wait_for};

/// Rate of each of four transmit queues. The rate is well within the capacity of an emulated machine.
const RATE_PER_QUEUE_BPS: u64 = 30_000_000;

/// Sends datagrams from unconnected sockets on one CPU. The kernel picks a queue for each datagram.
fn send_datagrams(from: &Namespace, cpu: usize, sockets: usize, datagrams: usize) {
    from.run(|| {
        pin(Some(cpu));
        let sockets: Vec<UdpSocket> =
            (0..sockets).map(|_| UdpSocket::bind((SENDER_ADDRESS, 0)).unwrap()).collect();
        for _ in 0..datagrams {
            for socket in &sockets {
                socket.send_to(&[7; 1000], SocketAddr::new(RECEIVER_ADDRESS.into(), 9)).unwrap();
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Returns the packets per queue as soon as their sum has reached `wanted`.
fn packets_when_sent(nics: &mut Nics, wanted: u64) -> Vec<u64> {
    wait_for("everything is sent", PATIENCE, || {
        let packets: Vec<u64> = nics.queue_statistics().iter().map(|queue| queue.packets).collect();
        (packets.iter().sum::<u64>() >= wanted).then_some(packets)
    })
}

/// Returns the chosen queue of each bulk flow as soon as all flows are charged.
fn chosen(select: &QueueSelect, bulk: &Bulk) -> Vec<u32> {
    wait_for("every bulk flow is charged", PATIENCE, || {
        let flows = select.flows();
        let queues: Vec<u32> = bulk
            .ends()
            .iter()
            .filter_map(|ends| {
                let flow = flows.iter().find(|flow| is_between(&flow.tuple, ends))?;
                (flow.charged_weight > 0).then_some(flow.queue).flatten()
            })
            .collect();
        (queues.len() == bulk.ends().len()).then_some(queues)
    })
}

fn assert_weightless(select: &QueueSelect) {
    wait_for("no queue has weight left", PATIENCE, || {
        select.weights().iter().all(|weight| *weight == 0).then_some(())
    });
    let counters = select.counters();
    assert!(counters.completed > 0 && counters.aged == 0, "{counters:?}");
}

/// Tests the effect of XPS maps. virtio-net assigns each CPU its own queue. The kernel uses this map
/// first, so the queue choice has no effect. Without the map, the kernel follows the queue choice.
#[test]
fn the_drivers_xps_maps_win_until_they_are_cleared() {
    guest::require();
    const SOCKETS: usize = 16;
    const DATAGRAMS: usize = 20;
    const ALL: u64 = (SOCKETS * DATAGRAMS) as u64;
    let mut nics = Nics::take("virtio_net");
    assert_eq!(nics.xps, ["1", "2", "4", "8"], "one processor for each queue");
    let select = nics.select(Policy::Dqa, 0);

    for cpu in [1, 2] {
        nics.unshaped();
        send_datagrams(&nics.sender, cpu, SOCKETS, DATAGRAMS);
        let packets = packets_when_sent(&mut nics, ALL);
        assert!(packets.iter().sum::<u64>() - packets[cpu] < ALL / 10, "{packets:?}");
        let wanted: std::collections::BTreeSet<_> =
            select.flows().iter().filter_map(|flow| flow.queue).collect();
        assert!(wanted.len() > 1, "the choice wanted {wanted:?} and was not asked");
    }

    nics.clear_xps();
    nics.unshaped();
    send_datagrams(&nics.sender, 1, SOCKETS, DATAGRAMS);
    let packets = packets_when_sent(&mut nics, ALL);
    assert!(packets[1] < ALL / 2, "the map is gone: {packets:?}");
}

/// Checks that four flows get one queue each, with each of three child qdiscs. The device's queues carry the
/// chosen flows, and the bytes of each flow agree with those of its queue.
fn choices_reach_the_queues(driver: &str) {
    let mut nics = Nics::take(driver);
    nics.clear_xps();
    let select = nics.select(Policy::Dqa, u64::from(QUEUES) * RATE_PER_QUEUE_BPS);
    for leaf in ["sfq", "fq", "fq_codel"] {
        nics.shape(leaf, RATE_PER_QUEUE_BPS);
        let options = BulkOptions { flows: QUEUES as usize, ..BulkOptions::default() };
        let bulk = Bulk::between(&nics.sender, &nics.receiver, options);
        bulk.wait_for_each(1_000_000);
        let queues = chosen(&select, &bulk);
        assert!(all_distinct(&queues), "{leaf}: {queues:?}");

        let (sent_before, before) = (nics.queue_statistics(), bulk.received());
        bulk.wait_for_each(before.iter().max().unwrap() + 4_000_000);
        let (sent, after) = (nics.queue_statistics(), bulk.received());
        assert_eq!(chosen(&select, &bulk), queues, "{leaf}: no flow had a reason to move");
        let carried: Vec<f64> =
            after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
        for (queue, received) in queues.iter().zip(&carried) {
            let queue = *queue as usize;
            let on_queue = (sent[queue].bytes - sent_before[queue].bytes) as f64;
            // Headers are 5 % of a packet. The remaining difference is data in flight.
            let ratio = on_queue / received;
            assert!((0.9..1.25).contains(&ratio), "{leaf}: queue {queue} carried {ratio:.2} of its flow");
        }
        let mean = carried.iter().sum::<f64>() / f64::from(QUEUES);
        for received in &carried {
            assert!((received / mean - 1.0).abs() < 0.15, "{leaf}: {carried:?}");
        }
        bulk.finish();
        assert_weightless(&select);
    }

    // The driver reports completions for byte queue limits, so the kernel has computed a limit.
    let limits: Vec<u64> =
        nics.of_each_queue("byte_queue_limits/limit").iter().map(|limit| limit.parse().unwrap()).collect();
    assert!(limits.iter().all(|limit| *limit > 0), "{limits:?}");
    let waiting = nics.of_each_queue("byte_queue_limits/inflight");
    assert_eq!(waiting.len(), QUEUES as usize);
}

#[test]
fn choices_reach_the_queues_of_virtio_net() {
    guest::require();
    choices_reach_the_queues("virtio_net");
}

#[test]
fn choices_reach_the_queues_of_igb() {
    guest::require();
    let nics = Nics::take("igb");
    assert!(
        nics.xps.iter().all(|mask| mask.chars().all(|digit| matches!(digit, '0' | ','))),
        "{:?}",
        nics.xps
    );
    drop(nics);
    choices_reach_the_queues("igb");
}

const DATAGRAMS: u64 = 50;

fn send_with_priority(from: &Namespace, priority: u32) {
    from.run(|| {
        let socket = UdpSocket::bind((SENDER_ADDRESS, 0)).unwrap();
        set_option(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, &priority);
        for _ in 0..DATAGRAMS {
            socket.send_to(&[7; 1000], SocketAddr::new(RECEIVER_ADDRESS.into(), 9)).unwrap();
        }
        Ok(())
    })
    .unwrap();
}

/// mqprio must assign segments to a traffic class by their priority. A traffic class is a range of
/// queues.
#[test]
fn mqprio_keeps_a_priority_on_the_queues_of_its_class() {
    guest::require();
    let mut nics = Nics::take("igb");
    let qdisc = Qdisc::Mqprio {
        classes: vec![QueueRange { first: 0, count: 3 }, QueueRange { first: 3, count: 1 }],
        class_of_priority: std::array::from_fn(|priority| u8::from(priority == 5)),
        offload: false,
    };
    nics.netlink.replace_qdisc(nics.index, Handle::ROOT, Handle::new(1, 0), &qdisc).unwrap();
    send_with_priority(&nics.sender, 5);
    let packets = packets_when_sent(&mut nics, DATAGRAMS);
    assert!(packets[..3].iter().sum::<u64>() < DATAGRAMS / 5, "{packets:?}");
    send_with_priority(&nics.sender, 0);
    let after = packets_when_sent(&mut nics, 2 * DATAGRAMS);
    assert!(after[3] < packets[3] + DATAGRAMS / 5, "{after:?}");
}

/// Checks that every receive queue is paired with an interrupt on one CPU, and that the pairing follows a
/// change of the affinity.
fn queues_are_paired_with_who_takes_their_interrupts(driver: &str) {
    let nics = Nics::take(driver);
    let read = || {
        let found = nics.sender.run(|| {
            let sysfs = Sysfs::of_namespace().unwrap();
            Ok(Host::live().queue_interrupts(&sysfs, &nics.name).unwrap())
        });
        found.unwrap()
    };
    let found = read();
    let queues: Vec<u32> = found.iter().map(|found| found.queue).collect();
    assert_eq!(queues, (0..QUEUES).collect::<Vec<_>>(), "{found:?}");
    assert!(found.iter().all(|found| found.processors.len() == 1), "{found:?}");
    let file = format!("/proc/irq/{}/smp_affinity_list", found[1].number);
    let before = std::fs::read_to_string(&file).unwrap();
    // An interrupt moves when it next fires. With this number of flows, every queue gets packets.
    let _bulk =
        Bulk::between(&nics.sender, &nics.receiver, BulkOptions { flows: 32, ..BulkOptions::default() });
    for processor in [3, 0] {
        std::fs::write(&file, processor.to_string()).unwrap();
        wait_for("the interrupt has moved", PATIENCE, || (read()[1].processors == [processor]).then_some(()));
    }
    std::fs::write(&file, before).unwrap();
}

#[test]
fn igbs_queues_are_paired_with_who_takes_their_interrupts() {
    guest::require();
    queues_are_paired_with_who_takes_their_interrupts("igb");
}

#[test]
fn virtio_nets_queues_are_paired_with_who_takes_their_interrupts() {
    guest::require();
    queues_are_paired_with_who_takes_their_interrupts("virtio_net");
}
