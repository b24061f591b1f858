//! Tests the collector of `top` and `metrics` with real traffic: its counts must agree with each other
//! and with the kernel's counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use evenkeel_monitor::{Collector, Options, Sample};
use evenkeel_netlink::Netlink;
use evenkeel_testbed::TestbedError;
use nix::sys::signal::Signal;
use support::end;
use support::foreign_program::{Hook, hide_packets};
use support::managed::{Managed, NAME};

fn within<T: Send>(managed: &Managed, work: impl FnOnce() -> T + Send) -> T {
    managed.host.run(|| Ok::<_, TestbedError>(work())).unwrap()
}

/// Runs a tool in the calling thread's network namespace.
fn tool(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let status = std::process::Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(status.success(), "{line}");
}

fn named(interfaces: &[&str]) -> Options {
    let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
    Options { interfaces, listed_flows: 50, observe: true }
}

/// Takes samples one second apart, and returns the last one.
fn sampled(collector: &mut Collector, count: usize) -> Sample {
    let mut last = collector.sample().unwrap();
    for _ in 1..count {
        std::thread::sleep(Duration::from_secs(1));
        last = collector.sample().unwrap();
    }
    last
}

/// Takes at least three samples, and more (up to 23) until a flow is busy. A flow is busy only after a
/// window of a second. On a busy machine, a late reading of the flows invalidates this window.
fn observed(collector: &mut Collector) -> Sample {
    let mut last = sampled(collector, 3);
    for _ in 0..10 {
        if last.interfaces[0].busy_flows > Some(0) {
            break;
        }
        last = sampled(collector, 2);
    }
    last
}

/// Turns segmentation off. veth counts a GSO packet with one header. The qdisc and the meter count a
/// header for each of its segments, as a NIC sends them.
fn without_segmentation(managed: &Managed) {
    managed.shell(&["ethtool", "-K", NAME, "tso", "off", "gso", "off"]);
}

fn assert_near(one: u64, other: u64, what: &str) {
    let (one, other) = (one as f64, other as f64);
    assert!((one - other).abs() <= 0.01 * one.max(other), "{what}: {one} and {other}");
}

#[test]
fn flows_queues_and_the_interface_count_the_same_bytes() {
    let managed = Managed::new();
    without_segmentation(&managed);
    let (mut collector, first) = within(&managed, || {
        let mut collector = Collector::open(&named(&[NAME])).unwrap();
        let first = collector.sample().unwrap();
        (collector, first)
    });
    assert_eq!((first.seconds, first.losses.len(), first.interfaces[0].sent_bytes.delta), (0.0, 0, 0));
    let load = managed.load(6, "20M", 6);
    let mut samples = Vec::new();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_secs(1));
        samples.push(within(&managed, || collector.sample().unwrap()));
    }
    load.finish();
    // iperf3 sends in bursts, and a sample reads its sources one after the other. So the test compares
    // the bytes over samples that begin and end without traffic.
    samples.push(within(&managed, || collector.sample().unwrap()));
    let mut sums = [0; 3];
    for interface in samples.iter().map(|sample| &sample.interfaces[0]) {
        sums[0] += interface.flows.iter().map(|flow| flow.bytes.delta).sum::<u64>();
        sums[1] += interface.queues.iter().map(|queue| queue.bytes.unwrap().delta).sum::<u64>();
        sums[2] += interface.sent_bytes.delta;
    }
    let [of_flows, of_queues, of_interface] = sums;
    assert!(of_flows > 20_000_000, "{samples:#?}");
    assert_near(of_flows, of_queues, "flows and queues");
    assert_near(of_queues, of_interface, "queues and the interface");

    let sample = &samples[3];
    assert!((0.9..5.0).contains(&sample.seconds), "{}", sample.seconds);
    let [interface] = &sample.interfaces[..] else { panic!("{sample:#?}") };
    assert_eq!((interface.name.as_str(), interface.driver.as_deref()), (NAME, Some("veth")));
    assert_eq!((interface.root_qdisc.as_deref(), interface.queues.len()), (Some("mq"), 4));

    // With six flows on four queues, at least three flows share a queue with another flow.
    let busy = interface.flows.iter().filter(|flow| flow.busy == Some(true)).count();
    let by_queue: u32 = interface.queues.iter().map(|queue| queue.busy_flows.unwrap()).sum();
    assert_eq!((busy, by_queue), (6, 6), "{interface:#?}");
    let colliding: u32 =
        interface.queues.iter().filter_map(|queue| queue.busy_flows).filter(|flows| *flows > 1).sum();
    assert_eq!(interface.colliding_flows, Some(colliding.into()));
    assert!(colliding >= 3, "{interface:#?}");
    assert!(interface.nfm_1s.is_some() && interface.nfm_100ms.is_some(), "{interface:#?}");
    assert!((0.16..=1.0).contains(&interface.jain_1s.unwrap()), "{interface:#?}");
    let share: f64 = interface.flows.iter().filter_map(|flow| flow.of_fair_share).sum();
    assert!((share - 6.0).abs() < 1e-6, "the shares of six flows add up to six: {share}");
    for flow in interface.flows.iter().filter(|flow| flow.busy == Some(true)) {
        let socket = flow.socket.as_ref().unwrap_or_else(|| panic!("{flow:?}"));
        assert_eq!(socket.process.as_deref(), Some("iperf3"), "{flow:?}");
        assert!(socket.rtt_us > 0 && socket.cwnd > 0, "{flow:?}");
        assert_eq!(socket.congestion.as_deref(), Some("cubic"));
    }
    let packets: u64 = sample.processors.iter().map(|processor| processor.packets.unwrap().delta).sum();
    assert!(packets > 0 && sample.processors.iter().any(|processor| processor.idle < 1.0), "{sample:#?}");
    assert_eq!(interface.management, None);
}

#[test]
fn a_managed_interface_shows_the_session_and_the_queues_that_it_chose() {
    let managed = Managed::new();
    without_segmentation(&managed);
    let mut session = managed.session(&[]);
    // The collector finds journals through the environment. SAFETY: no other thread of this process
    // reads the environment: tests run one after the other.
    unsafe { std::env::set_var("EVENKEEL_STATE_DIR", managed.state.path()) };
    // Give each queue a different rate, so that the bytes identify the flow of the queue. Data is then
    // always outstanding: a flow without outstanding data may move to another queue.
    for queue in 1..=4 {
        let (parent, handle, rate) = (format!("7:{queue}"), format!("1{queue}:"), format!("{queue}0mbit"));
        managed.shell(&[
            "tc", "qdisc", "replace", "dev", NAME, "parent", &parent, "handle", &handle, "tbf", "rate",
            &rate, "burst", "70k", "limit", "1m",
        ]);
    }
    let mut collector = within(&managed, || Collector::open(&named(&[NAME])).unwrap());
    let load = managed.load(4, "100M", 8);
    std::thread::sleep(Duration::from_secs(3));
    within(&managed, || collector.sample().unwrap());
    std::thread::sleep(Duration::from_secs(2));
    let sample = within(&managed, || collector.sample().unwrap());
    let process = session.id();
    load.finish();
    session.signal(Signal::SIGTERM);
    let ended = session.end();
    assert_eq!(ended.code, 0, "a second meter does not disturb the session: {ended:?}");
    let interface = &sample.interfaces[0];
    let management = interface.management.as_ref().unwrap_or_else(|| panic!("{interface:#?}"));
    assert_eq!((management.command.as_str(), management.process), ("fair", process));
    // Each of the four flows has its own queue.
    assert_eq!(interface.colliding_flows, Some(0), "{interface:#?}");
    let busy: Vec<u32> = interface.queues.iter().filter_map(|queue| queue.busy_flows).collect();
    assert_eq!(busy, [1, 1, 1, 1], "{interface:#?}");
    for queue in &interface.queues {
        let flows = interface.flows.iter().filter(|flow| flow.queue == Some(queue.index));
        let metered: u64 = flows.map(|flow| flow.bytes.delta).sum();
        let counted = queue.bytes.unwrap().delta;
        // The meter counts a packet before the qdisc. The qdisc counts a packet when the packet leaves
        // it. The rates of the queues differ by at least 25 %, so a tolerance of 12.5 % is sufficient.
        let differs = metered.abs_diff(counted) * 8 > counted;
        assert!(!differs, "queue {}: {metered} and {counted}: {interface:#?}", queue.index);
    }
}

#[test]
fn losses_are_shown_where_they_happen() {
    let managed = Managed::new();
    without_segmentation(&managed);
    managed.shell(&["ip", "link", "set", "lo", "up"]);
    for queue in 1..=4 {
        let (parent, handle) = (format!("7:{queue}"), format!("1{queue}:"));
        managed.shell(&[
            "tc", "qdisc", "replace", "dev", NAME, "parent", &parent, "handle", &handle, "tbf", "rate",
            "2mbit", "burst", "4k", "limit", "6k",
        ]);
    }
    let load = managed.load(4, "20M", 5);
    let (before, sample) = within(&managed, || {
        let mut collector = Collector::open(&named(&[NAME])).unwrap();
        let before = sampled(&mut collector, 2);
        let (receiver, sender) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        for _ in 0..3000 {
            sender.send_to(&[7; 1400], receiver.local_addr().unwrap()).unwrap();
        }
        (before, sampled(&mut collector, 1))
    });
    drop(load);
    let lost = |sample: &Sample, place: &str, subject: &str| {
        let found =
            sample.losses.iter().filter(|loss| loss.place == place && loss.subject.starts_with(subject));
        found.map(|loss| loss.packets).fold((0, 0), |sum, one| (sum.0 + one.total, sum.1 + one.delta))
    };
    let (total, delta) = lost(&before, "qdisc", NAME);
    assert!(total > 0 && total == delta, "{:#?}", before.losses);
    let of_queues: u64 =
        before.interfaces[0].queues.iter().filter_map(|queue| Some(queue.drops?.delta)).sum();
    assert_eq!(of_queues, delta, "{:#?}", before.interfaces);
    assert_eq!(lost(&before, "receive queue", "UDP"), (0, 0));
    let (datagrams, of_these) = lost(&sample, "receive queue", "UDP");
    assert!(datagrams > 100 && datagrams == of_these, "{:#?}", sample.losses);
    assert!(lost(&sample, "qdisc", NAME).0 >= total, "a sum only grows");
}

#[test]
fn without_observation_flows_are_sockets_and_the_sample_says_why() {
    let managed = Managed::new();
    let load = managed.load(2, "20M", 12);
    let sample = within(&managed, || {
        let mut collector = Collector::open(&Options { observe: false, ..named(&[NAME]) }).unwrap();
        sampled(&mut collector, 2)
    });
    let interface = &sample.interfaces[0];
    assert!(interface.flows.len() >= 2, "{interface:#?}");
    let flow = &interface.flows[0];
    assert!(flow.bytes.delta > 1_000_000 && flow.queue.is_none() && flow.busy.is_none(), "{flow:?}");
    assert_eq!((interface.nfm_1s, interface.colliding_flows), (None, None));
    assert!(interface.queues.iter().all(|queue| queue.busy_flows.is_none() && queue.bytes.is_some()));
    let says = |sample: &Sample, words: &str| sample.not_read.iter().any(|why| why.contains(words));
    assert!(says(&sample, "without queues and fairness"), "{:?}", sample.not_read);
    assert!(!says(&sample, "several interfaces"), "{:?}", sample.not_read);

    // If the loopback also has the address, the collector cannot know which interface the flows use.
    const LOOPBACK: u32 = 1;
    let shared: SocketAddr = flow.source.parse().unwrap();
    let sample = within(&managed, || {
        Netlink::open().unwrap().add_address(LOOPBACK, shared.ip(), 32).unwrap();
        let mut collector = Collector::open(&Options { observe: false, ..named(&[NAME]) }).unwrap();
        sampled(&mut collector, 2)
    });
    let place = tempfile::tempdir().unwrap();
    let saved = place.path().join("host");
    let checked = end(managed.command(&["check", "--format", "json", "--save", saved.to_str().unwrap()]));
    drop(load);
    let words = format!("TCP connections from {}: several interfaces have this address", shared.ip());
    assert!(checked.stdout.contains(&words), "{checked:?}");
    assert!(saved.join("evenkeel/ports.json").exists() && !saved.join("evenkeel/sockets.json").exists());
    assert_eq!(sample.interfaces[0].flows, [], "{:?}", sample.not_read);
    let words = " belong to no interface here: several interfaces have the local address";
    assert!(says(&sample, words), "{:?}", sample.not_read);
}

#[test]
fn flows_are_not_observed_while_another_program_hides_packets_from_the_meter() {
    let managed = Managed::new();
    let _load = managed.load(2, "20M", 40);
    let assert_unknown = |sample: &Sample| {
        let interface = &sample.interfaces[0];
        assert!(!interface.observed && interface.busy_flows.is_none(), "{interface:#?}");
        assert_eq!((interface.nfm_1s, interface.colliding_flows), (None, None));
        assert!(interface.queues.iter().all(|queue| queue.busy_flows.is_none()), "{interface:#?}");
        let why = |why: &String| why.contains("may hide packets from the meter: foreign (id ");
        assert!(sample.not_read.iter().any(why), "{:?}", sample.not_read);
    };
    let mut collector = within(&managed, || Collector::open(&named(&[NAME])).unwrap());
    let before = within(&managed, || observed(&mut collector));
    assert!(before.interfaces[0].busy_flows.is_some(), "{before:#?}");
    let _foreign = hide_packets(&managed.host, managed.index, Hook::Egress);
    assert_unknown(&within(&managed, || sampled(&mut collector, 2)));
    // A new meter is attached in front of the foreign program.
    let again = within(&managed, || observed(&mut Collector::open(&named(&[NAME])).unwrap()));
    assert!(again.interfaces[0].busy_flows > Some(0), "{again:#?}");
}

#[test]
fn interfaces_come_go_and_are_renamed() {
    let managed = Managed::new();
    within(&managed, || {
        let ip = |line: &str| tool(&format!("ip {line}"));
        let names = |sample: &Sample| {
            let mut names: Vec<String> = sample.interfaces.iter().map(|one| one.name.clone()).collect();
            names.sort();
            names
        };
        let mut all = Collector::open(&named(&[])).unwrap();
        let mut one = Collector::open(&named(&[NAME])).unwrap();
        assert_eq!(names(&all.sample().unwrap()), [NAME]);
        ip("link add come0 type veth peer name come1");
        ip("link set come0 up");
        ip("link set come1 up");
        // The carrier appears shortly after both ends are up.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(names(&all.sample().unwrap()), ["come0", "come1", NAME]);
        let mut two = Collector::open(&named(&[NAME, "come0"])).unwrap();
        ip("link del come0");
        assert_eq!(names(&all.sample().unwrap()), [NAME]);
        let left = two.sample().unwrap();
        assert_eq!(names(&left), [NAME]);
        assert!(left.not_read.iter().any(|why| why.contains("come0")), "{:?}", left.not_read);
        assert_eq!(names(&one.sample().unwrap()), [NAME]);
        ip(&format!("link set dev {NAME} name other0"));
        let renamed = one.sample().unwrap();
        assert_eq!(names(&renamed), ["other0"], "{:?}", renamed.not_read);
        ip("link del other0");
        let gone = one.sample().unwrap();
        assert!(gone.interfaces.is_empty(), "{gone:#?}");
        assert!(gone.not_read.iter().any(|why| why.contains(NAME)), "{:?}", gone.not_read);
        let Err(error) = Collector::open(&named(&["never0"])) else { panic!("it does not exist") };
        assert!(error.to_string().contains("never0"), "{error}");
    });
}

#[test]
fn a_replaced_qdisc_makes_the_losses_incomplete_once() {
    let managed = Managed::new();
    within(&managed, || {
        let mut collector = Collector::open(&Options { observe: false, ..named(&[NAME]) }).unwrap();
        let before = sampled(&mut collector, 2);
        assert!(!before.losses_incomplete, "{:?}", before.not_read);
        tool("tc qdisc replace dev evk0 root handle 8: mq");
        let replaced = collector.sample().unwrap();
        let is_named = |why: &String| why.starts_with("evk0 no longer has its qdisc ");
        assert!(replaced.losses_incomplete, "{replaced:#?}");
        assert!(replaced.not_read.iter().any(is_named), "{:?}", replaced.not_read);
        assert!(!collector.sample().unwrap().losses_incomplete);
    });
}

#[test]
fn an_interface_that_is_made_again_with_its_number_starts_again() {
    const AGAIN: &str = "evk5";
    let managed = Managed::new();
    within(&managed, || {
        let send = |packets: u32| {
            let socket = UdpSocket::bind("198.51.100.1:0").unwrap();
            for _ in 0..packets {
                socket.send_to(&[7; 100], "198.51.100.2:9").unwrap();
            }
        };
        let make_and_send = |packets: u32| {
            tool("ip link add evk5 index 77 type veth peer name evk6");
            tool("ip address add 198.51.100.1/24 dev evk5");
            tool("ip link set evk5 up");
            tool("ip link set evk6 up");
            tool("ip neighbour add 198.51.100.2 lladdr 02:00:00:00:00:01 dev evk5 nud permanent");
            send(packets);
        };
        make_and_send(3);
        let mut collector = Collector::open(&named(&[AGAIN])).unwrap();
        assert!(sampled(&mut collector, 2).interfaces[0].observed);
        tool("ip link del evk5");
        make_and_send(10);
        let sample = collector.sample().unwrap();
        let sent = sample.interfaces[0].sent_packets;
        assert!(sent.total >= 10 && sent.delta == 0, "{sample:#?}");
        assert_eq!(sample.losses.iter().filter(|loss| loss.subject == AGAIN).count(), 0, "{sample:#?}");
        // The meter counts the packets of the new interface.
        send(10);
        let sample = collector.sample().unwrap();
        assert!(sample.interfaces[0].active_flows == Some(1), "{sample:#?}");
    });
}
