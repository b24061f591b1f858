//! Tests with flows whose sockets are in another network namespace, such as a container's. Forwarding drops
//! the socket, and the queue choice identifies the flows by their five-tuples.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_model::scenario::Topology;
use evenkeel_netlink::VethOptions;
use evenkeel_testbed::{Bed, Namespace, RECEIVER_ADDRESS, SENDER_ADDRESS};
use evenkeel_transmit::Policy;

use support::traffic::{accept, connect, listen};
use support::{PATIENCE, all_distinct, assert_weightless, options, retransmitted_at, wait_for};

fn ip(at: &Namespace, arguments: &str) {
    let output = at.run(|| Ok(Command::new("ip").args(arguments.split(' ')).output().unwrap())).unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates a namespace whose packets the sending host forwards.
fn container(bed: &Bed) -> Namespace {
    let inner = Namespace::new().unwrap();
    let mut netlink = inner.netlink().unwrap();
    netlink
        .add_veth(&VethOptions {
            name: "inner0",
            peer_name: "outer0",
            peer_namespace: bed.sender.as_fd(),
            queues: 1,
            mtu: 1500,
        })
        .unwrap();
    ip(&inner, "address add 198.18.1.2/24 dev inner0");
    ip(&inner, "link set inner0 up");
    ip(&bed.sender, "address add 198.18.1.1/24 dev outer0");
    ip(&bed.sender, "link set outer0 up");
    ip(&inner, "route add default via 198.18.1.1");
    ip(&bed.receiver, &format!("route add 198.18.1.0/24 via {SENDER_ADDRESS}"));
    bed.sender.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    // Process each flow on one CPU, because a veth alone can reorder a flow that sends from two CPUs.
    let processors = std::thread::available_parallelism().unwrap().get().min(32);
    let mask = format!("{:x}", (1_u64 << processors) - 1);
    bed.sender.write_sysfs(&[("class/net/outer0/queues/rx-0/rps_cpus".to_owned(), mask)]).unwrap();
    inner
}

fn send_until(mut stream: &TcpStream, stop: &AtomicBool) {
    let deadline = Instant::now() + 2 * PATIENCE;
    stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
        let _ = stream.write(&[0x5a; 65_536]);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
}

/// Six flows of a container must use six queues, keep their order, and leave no weight.
#[test]
fn a_containers_flows_get_queues_of_their_own() {
    let bed = Bed::build(&options(Topology::SoftNic, Policy::Dqa)).unwrap();
    let inner = container(&bed);
    let listener = listen(&bed.receiver, RECEIVER_ADDRESS.into());
    let destination = listener.local_addr().unwrap();
    let pairs: Vec<(TcpStream, TcpStream)> =
        (0..6).map(|_| (connect(&inner, destination), accept(&listener))).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (sending, receiving) in &pairs {
            scope.spawn(|| send_until(sending, &stop));
            scope.spawn(move || {
                let mut receiving = receiving;
                let mut buffer = vec![0; 1 << 18];
                while receiving.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
            });
        }
        let charged = || {
            let flows = bed.select.flows();
            let queues: Vec<u32> =
                flows.iter().filter(|flow| flow.charged_weight > 0).filter_map(|flow| flow.queue).collect();
            (queues.len() == 6).then_some(queues)
        };
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("six flows on six queues", PATIENCE, || charged().filter(|queues| all_distinct(queues)));
            let bulk = wait_for("each flow has carried 5 MB", 2 * PATIENCE, || {
                let mut samples = bed.meter.as_ref().unwrap().flows();
                samples.retain(|sample| sample.payload_bytes > 5_000_000);
                (samples.len() == 6).then_some(samples)
            });
            // A change of queue with data queued can cause packets out of order. Retransmissions usually
            // count as out of order, too.
            let late = bulk.iter().map(|sample| sample.out_of_order).sum::<u64>();
            assert!(late <= retransmitted_at(&inner), "{late} packets out of order");
            wait_for("six flows are still on six queues", PATIENCE, || {
                charged().filter(|queues| all_distinct(queues))
            });
        }));
        stop.store(true, Ordering::Relaxed);
        seen.unwrap();
    });
    assert_weightless(&bed);
    let counters = bed.select.counters();
    assert!(counters.no_socket > 0, "the sockets were visible: {counters:?}");
}
