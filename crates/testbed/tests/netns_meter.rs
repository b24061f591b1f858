//! Compares the meter with the sockets, the NIC's counters and the protocol.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::IpAddr;

use evenkeel_datapath::{MeterOptions, monotonic_ns};
use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions, RECEIVER_ADDRESS, RECEIVER_ADDRESS_V6};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions};
use support::{assert_weightless, metered, options, retransmitted};

/// Length of Ethernet and TCP headers with timestamps. A SYN has eight more bytes of options.
const HEADERS_BESIDES_IP: u64 = 14 + 32;
const SYN_EXTRA: u64 = 8;
/// Capacity of a GSO packet, which is the largest difference that one retransmission can cause.
const LARGEST_SEGMENT: u64 = 65_536;

/// The kernel refuses IPv6 addresses on a link with an MTU below 1280.
#[test]
fn a_link_below_the_least_mtu_of_ipv6_is_built() {
    Bed::build(&BedOptions { mtu: 576, ..options(Topology::SoftNic, Policy::Dqa) }).unwrap();
}

#[test]
fn bytes_packets_and_bins_are_exact() {
    const BYTES: u64 = 6_000_000;
    const FLOWS: usize = 3;
    let families: [(IpAddr, u64); 2] = [(RECEIVER_ADDRESS.into(), 20), (RECEIVER_ADDRESS_V6.into(), 40)];
    for ((destination, ip_header), topology) in
        families.into_iter().flat_map(|family| [Topology::SoftNic, Topology::Mq].map(|t| (family, t)))
    {
        let mut bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
        let meter = bed.meter.as_ref().unwrap();
        meter.start(monotonic_ns());
        let bulk = Bulk::start(
            &bed,
            // Send each flow from one CPU, so that packets are not reordered.
            BulkOptions {
                flows: FLOWS,
                destination,
                cpu: Some(0),
                bytes: Some(BYTES),
                ..BulkOptions::default()
            },
        );
        let transferred = bulk.finish();
        assert_weightless(&bed);
        let repeated = retransmitted(&bed);
        let mtu_payload = 1_500 - ip_header - 32;
        let mut total = 0;
        for flow in &transferred {
            assert_eq!((flow.sent, flow.received), (BYTES, BYTES));
            let sample = metered(&bed, &flow.ends).unwrap();
            total += sample.bytes;
            let excess = sample.payload_bytes - BYTES;
            assert!(
                excess <= repeated * LARGEST_SEGMENT,
                "{excess} bytes too many, {repeated} retransmissions"
            );
            assert!(repeated > 0 || sample.out_of_order == 0, "{sample:?}");
            assert!(sample.packets >= BYTES.div_ceil(mtu_payload), "{sample:?}");
            assert_eq!(
                sample.bytes,
                sample.payload_bytes + sample.packets * (HEADERS_BESIDES_IP + ip_header) + SYN_EXTRA,
                "{sample:?}"
            );
            assert!(sample.first_ns < sample.last_ns);

            let (bytes, packets) = bed.meter.as_ref().unwrap().bins(&sample);
            assert_eq!((bytes.len(), packets.len()), (300, 300));
            assert_eq!(bytes.iter().sum::<u64>(), sample.bytes, "started before the first byte");
            assert_eq!(packets.iter().sum::<u64>(), sample.packets);
            assert!(bytes.iter().filter(|bytes| **bytes > 0).count() > 1, "the flow lasted several bins");
        }
        assert_eq!(bed.meter.as_ref().unwrap().overflow(), 0);

        // The sender's NIC sent the same bytes, plus ARP and IPv6 control packets.
        let carried: u64 = bed.queue_statistics().unwrap().iter().map(|queue| queue.bytes).sum();
        assert!(
            (total..total + 10_000).contains(&carried),
            "{topology:?}: the queues carried {carried} bytes, the meter counted {total}"
        );
    }
}

#[test]
fn bins_begin_with_the_start() {
    let bed = Bed::build(&options(Topology::SoftNic, Policy::Dqa)).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions::default());
    bulk.wait_for_each(2_000_000);
    let meter = bed.meter.as_ref().unwrap();
    let ends = bulk.ends()[0];
    let before = metered(&bed, &ends).unwrap();
    assert!(meter.bins(&before).0.iter().all(|bytes| *bytes == 0), "not started yet");
    meter.start(monotonic_ns());
    bulk.wait_for_each(6_000_000);
    bulk.finish();
    let sample = metered(&bed, &ends).unwrap();
    let binned: u64 = meter.bins(&sample).0.iter().sum();
    // The last segments of the connection may arrive after `sample` was read.
    let after = metered(&bed, &ends).unwrap();
    assert!(binned > 0 && binned <= after.bytes - before.bytes, "{binned} of {}", after.bytes - before.bytes);
    // The bins do not include the bytes between `before` and the start of the bins.
    assert!(after.bytes - before.bytes - binned < 2_000_000, "{binned} of {}", after.bytes - before.bytes);
}

#[test]
fn flows_without_a_row_are_counted_as_overflow_and_pass() {
    let meter = MeterOptions { flows: 2, bins: 10, bin_ns: 100_000_000 };
    let bed =
        Bed::build(&BedOptions { meter: Some(meter), ..options(Topology::SoftNic, Policy::Dqa) }).unwrap();
    let bulk = Bulk::start(&bed, BulkOptions { flows: 5, bytes: Some(300_000), ..BulkOptions::default() });
    for flow in bulk.finish() {
        assert_eq!(flow.received, 300_000);
    }
    let meter = bed.meter.as_ref().unwrap();
    assert_eq!(meter.flows().len(), 2);
    // Three flows have no row. Each flow has at least 200 packets of at most 1500 bytes. The meter sees
    // fewer, longer GSO segments, and counts the packets of each GSO segment.
    assert!(meter.overflow() >= 600, "{}", meter.overflow());
}
