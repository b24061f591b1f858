//! Tests of service balancing on the real kernel: flows alternate on shared queues and keep their
//! packets in order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use evenkeel_datapath::{FlowMover, FlowService, MoveState};
use evenkeel_model::scenario::Topology;
use evenkeel_model::units::BitRate;
use evenkeel_testbed::{Bed, BedOptions, Namespace, RECEIVER_ADDRESS, RECEIVER_ADDRESS_V6};
use evenkeel_transmit::Policy;

use support::traffic::{Bulk, BulkOptions};
use support::{
    PATIENCE, assert_weightless, charged_states, metered, options, queues, retransmitted, tcp_counter_at,
    wait_for,
};

const SECOND_NS: u64 = 1_000_000_000;

fn bed(queues: u32, service_balancing: bool) -> Bed {
    Bed::build(&BedOptions {
        queues,
        service_balancing,
        rate: BitRate::from_bits_per_second(u64::from(queues) * 50_000_000),
        ..options(Topology::Mq, Policy::Dqa)
    })
    .unwrap()
}

fn out_of_order(bed: &Bed, bulk: &Bulk) -> u64 {
    bulk.ends().iter().map(|ends| metered(bed, ends).unwrap().out_of_order).sum()
}

/// Returns the largest difference between the bytes of two flows in three seconds, divided by the mean.
fn unfairness(bed: &Bed, bulk: &Bulk) -> f64 {
    let bytes = || -> Vec<u64> { bulk.ends().iter().map(|ends| metered(bed, ends).unwrap().bytes).collect() };
    let before = bytes();
    std::thread::sleep(Duration::from_secs(3));
    let sent: Vec<u64> = bytes().iter().zip(&before).map(|(now, then)| now - then).collect();
    let mean = sent.iter().sum::<u64>() as f64 / sent.len() as f64;
    (sent.iter().max().unwrap() - sent.iter().min().unwrap()) as f64 / mean
}

/// Six flows on four queues must get equal shares. Without balancing, a flow alone on its queue gets
/// twice as much as a flow that shares its queue: a difference of 75 % of the mean.
#[test]
fn six_flows_on_four_queues_get_the_same() {
    let bed = bed(4, true);
    let bulk = Bulk::start(&bed, BulkOptions { flows: 6, ..BulkOptions::default() });
    bulk.wait_for_each(2_000_000);
    // Other programs may take CPU time from a flow. Real unfairness shows in every measurement.
    let found: Vec<f64> =
        (0..4).map(|_| unfairness(&bed, &bulk)).take_while(|unfair| *unfair > 0.15).collect();
    let counts = bed.controller.as_ref().unwrap().counts();
    assert!(found.len() < 4, "unfair: {found:?}; {counts:?}");
    assert!(counts.moves_done >= 20, "{counts:?}");
    assert!(counts.moves_done * 10 >= counts.moves_wanted * 9, "{counts:?}");
    assert_eq!(counts.moves_overruled, 0, "{counts:?}");
    // On a busy machine TCP may retransmit segments that were only late. Such retransmissions arrive
    // after later segments.
    let (late, again) = (out_of_order(&bed, &bulk), retransmitted(&bed));
    assert!(late <= again, "{late} packets out of order, {again} segments sent again");
    assert!(bed.controller.as_ref().unwrap().failure().is_none());
    bulk.finish().iter().for_each(|flow| assert_eq!(flow.received, flow.sent));
    assert_weightless(&bed);
}

/// Without service balancing, shares must stay unequal. This shows the effect of service balancing.
#[test]
fn without_it_flows_stay_where_they_are() {
    let bed = bed(4, false);
    let bulk = Bulk::start(&bed, BulkOptions { flows: 6, ..BulkOptions::default() });
    bulk.wait_for_each(2_000_000);
    let found = unfairness(&bed, &bulk);
    assert!(found > 0.5, "{found}");
    bulk.finish();
}

/// Builds a test bed on which only the test moves flows.
fn bed_to_move_on() -> (Bed, FlowMover) {
    let mut bed = bed(2, true);
    drop(bed.controller.take());
    let mut netlink = bed.sender.netlink().unwrap();
    let index = netlink.link_index("evk0").unwrap();
    let mover = bed.sender.run(|| Ok(bed.select.attach_mover(index.cast_signed())?)).unwrap();
    (bed, mover)
}

fn backlogged(mover: &FlowMover) -> FlowService {
    wait_for("the flow is backlogged", PATIENCE, || {
        let flows = mover.flows().unwrap()?;
        flows.into_iter().find(|flow| flow.backlogged && flow.movable)
    })
}

/// Disables an interface's transmit checksum offload: `ethtool -K NAME tx off` (`ETHTOOL_STXCSUM` of
/// include/uapi/linux/ethtool.h). The packets then have checksums, as on a physical link.
fn compute_checksums(host: &Namespace, interface: &str) {
    #[repr(C)]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        data: *mut u32,
        rest: [u8; 16],
    }
    const SET_CHECKSUM_OFFLOAD: u32 = 0x17;
    let set = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut value = [SET_CHECKSUM_OFFLOAD, 0];
        let mut request = Request { name: [0; libc::IFNAMSIZ], data: value.as_mut_ptr(), rest: [0; 16] };
        request.name[..interface.len()].copy_from_slice(interface.as_bytes());
        // SAFETY: the request has the size of `struct ifreq`, its data that of `struct ethtool_value`.
        let result =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        Ok(())
    };
    host.run(set).unwrap();
}

/// Checks that a backlogged flow changes between two queues without reordering, over either IP version.
fn a_backlogged_flow_changes_its_queue(destination: IpAddr) {
    let (bed, mover) = bed_to_move_on();
    // With checksum offload at the host that sends the ACKs, the other host would not verify the
    // checksum of an ACK whose window the mover changed.
    compute_checksums(&bed.receiver, "evk1");
    let bulk = Bulk::start(&bed, BulkOptions { destination, ..BulkOptions::default() });
    bulk.wait_for_each(2_000_000);
    assert_eq!(mover.state(), MoveState::None);
    for _ in 0..10 {
        let flow = backlogged(&mover);
        assert_eq!(flow.queue, queues(&charged_states(&bed, &bulk))[0]);
        assert!(flow.acknowledged_bytes.unwrap() >= 1_000_000, "{flow:?}");
        let wanted = 1 - flow.queue;
        mover.begin(&flow, wanted, 5 * SECOND_NS);
        let done = wait_for("the flow has moved", PATIENCE, || {
            Some(mover.state()).filter(|state| *state != MoveState::Waiting)
        });
        assert!(matches!(done, MoveState::Done { held_ns } if held_ns < SECOND_NS), "{done:?}");
        mover.end();
        wait_for("the kernel has it on its new queue", PATIENCE, || {
            (backlogged(&mover).queue == wanted).then_some(())
        });
        assert_eq!(bed.select.weights().iter().sum::<u32>(), 1, "charged once");
    }
    assert_eq!(tcp_counter_at(&bed.sender, "InCsumErrors"), 0, "acknowledgements with a wrong checksum");
    let (late, again) = (out_of_order(&bed, &bulk), retransmitted(&bed));
    assert!(late <= again, "{late} packets out of order, {again} segments sent again");
    bulk.finish().iter().for_each(|flow| assert_eq!(flow.received, flow.sent));
    assert_weightless(&bed);
}

#[test]
fn a_backlogged_flow_changes_its_queue_over_ipv4() {
    a_backlogged_flow_changes_its_queue(RECEIVER_ADDRESS.into());
}

#[test]
fn a_backlogged_flow_changes_its_queue_over_ipv6() {
    a_backlogged_flow_changes_its_queue(RECEIVER_ADDRESS_V6.into());
}

/// A flow with an impossible target queue is held back repeatedly, but must always continue. Its mover
/// may be dropped at any time.
#[test]
fn a_flow_is_never_stuck() {
    const NO_SUCH_QUEUE: u32 = 200;
    let (bed, mover) = bed_to_move_on();
    let bulk = Bulk::start(&bed, BulkOptions::default());
    bulk.wait_for_each(1_000_000);
    let flow = backlogged(&mover);
    mover.begin(&flow, NO_SUCH_QUEUE, 60 * SECOND_NS);
    bulk.wait_for_each(4_000_000);
    assert_eq!(mover.state(), MoveState::Waiting);
    mover.begin(&flow, NO_SUCH_QUEUE, SECOND_NS / 10);
    wait_for("the time is over", PATIENCE, || (mover.state() == MoveState::Expired).then_some(()));
    mover.begin(&flow, NO_SUCH_QUEUE, 60 * SECOND_NS);
    std::thread::sleep(Duration::from_millis(30));
    // Drop the mover during a move.
    drop(mover);
    let before = bulk.received()[0];
    bulk.wait_for_each(before + 4_000_000);
    let again = retransmitted(&bed);
    bulk.finish().iter().for_each(|flow| assert_eq!(flow.received, flow.sent));
    assert!(again <= 3, "{again} segments were sent again: a flow that waited for its retransmission timer");
}
