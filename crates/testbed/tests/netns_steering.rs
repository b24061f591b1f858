//! Tests of receive steering with real TCP and UDP while flows change their CPUs: no loss, and order as
//! documented.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_datapath::{
    CpuCounters, INDIRECTION_LENGTH, MaskedAddress, MaskedPort, ReceiveSteering, SteerTarget, SteeredClass,
    SteeringOptions, Tuple,
};
use evenkeel_netlink::VethOptions;
use evenkeel_testbed::{Namespace, TestbedError};

const NAME: &str = "steered";
/// Addresses of the steered host and its client, with both IP versions.
const ADDRESSES: [[&str; 2]; 2] = [["10.9.0.1", "fd00:9::1"], ["10.9.0.2", "fd00:9::2"]];

/// Two hosts. `host` is steered.
struct Place {
    host: Namespace,
    client: Namespace,
    index: u32,
}

fn must<T>(work: impl FnOnce() -> std::io::Result<T>) -> Result<T, TestbedError> {
    Ok(work().unwrap())
}

impl Place {
    fn new() -> Self {
        let (host, client) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let mut netlink = host.netlink().unwrap();
        netlink
            .add_veth(&VethOptions {
                name: NAME,
                peer_name: "client",
                peer_namespace: client.as_fd(),
                queues: 2,
                mtu: 1500,
            })
            .unwrap();
        let mut index = 0;
        for (namespace, name, addresses) in [(&host, NAME, ADDRESSES[0]), (&client, "client", ADDRESSES[1])] {
            let mut netlink = namespace.netlink().unwrap();
            let link = netlink.link_index(name).unwrap();
            for (address, length) in addresses.into_iter().zip([24, 64]) {
                netlink.add_address(link, address.parse().unwrap(), length).unwrap();
            }
            netlink.set_up(link).unwrap();
            index = if name == NAME { link } else { index };
        }
        Self { host, client, index }
    }

    fn steering(&self, options: SteeringOptions) -> ReceiveSteering {
        self.host
            .run(|| {
                let mut steering = ReceiveSteering::load(&options).unwrap();
                steering.attach(self.index.cast_signed()).unwrap();
                Ok(steering)
            })
            .unwrap()
    }
}

fn options() -> SteeringOptions {
    SteeringOptions { cpus: vec![0, 1], ..SteeringOptions::default() }
}

fn sum(steering: &ReceiveSteering, count: impl Fn(&CpuCounters) -> u64) -> u64 {
    steering.counters().iter().map(count).sum()
}

fn tuple(protocol: u8, source: SocketAddr, destination: SocketAddr) -> Tuple {
    Tuple {
        source: source.ip(),
        source_port: source.port(),
        destination: destination.ip(),
        destination_port: destination.port(),
        protocol,
    }
}

/// Largest number of datagrams in flight. Every queue on the path can hold this number, even if its
/// processor is late.
const MOST_UNDER_WAY: u64 = 64;

/// Sends numbered datagrams, with a bounded number in flight. Calls `meanwhile` repeatedly. Returns the
/// number of sent datagrams, and the received numbers in the order of arrival.
fn numbered(
    place: &Place,
    version: usize,
    time: Duration,
    mut meanwhile: impl FnMut(&Tuple, u64),
) -> (u64, Vec<u64>) {
    let bind = |namespace: &Namespace, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        namespace.run(|| must(|| UdpSocket::bind((address, 0)))).unwrap()
    };
    let receiver = bind(&place.host, ADDRESSES[0][version]);
    let sender = bind(&place.client, ADDRESSES[1][version]);
    receiver.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    // The kernel charges a whole page for a datagram that arrives as an XDP frame. Fifty such datagrams
    // would fill the default buffer.
    nix::sys::socket::setsockopt(&receiver, nix::sys::socket::sockopt::RcvBufForce, &(64 << 20)).unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let flow = tuple(17, sender.local_addr().unwrap(), receiver.local_addr().unwrap());
    let (sent, received, ended) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let arrived = std::thread::scope(|scope| {
        let arriving = scope.spawn(|| {
            let mut numbers = Vec::new();
            let mut buffer = [0; 2048];
            loop {
                // On a busy machine, the sender may be preempted for longer than the timeout. So a timeout
                // ends the loop only after the sender has ended.
                let is_last = ended.load(Ordering::Acquire);
                match receiver.recv(&mut buffer) {
                    Ok(length) => {
                        assert_eq!(length, 600);
                        numbers.push(u64::from_be_bytes(buffer[..8].try_into().unwrap()));
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) if is_last => break,
                    Err(_) => {}
                }
            }
            numbers
        });
        scope.spawn(|| {
            // Send from one CPU, because a sender that migrates changes its queue and can reorder its
            // packets.
            let mut cpus = nix::sched::CpuSet::new();
            cpus.set(0).unwrap();
            nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpus).unwrap();
            let began = Instant::now();
            let mut datagram = [7; 600];
            while began.elapsed() < time {
                for _ in 0..8 {
                    if sent.load(Ordering::Relaxed) - received.load(Ordering::Relaxed) >= MOST_UNDER_WAY {
                        break;
                    }
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    datagram[..8].copy_from_slice(&number.to_be_bytes());
                    sender.send(&datagram).unwrap();
                }
                std::thread::sleep(Duration::from_micros(500));
            }
            ended.store(true, Ordering::Release);
        });
        let began = Instant::now();
        let mut round = 0;
        while began.elapsed() < time {
            meanwhile(&flow, round);
            round += 1;
            std::thread::sleep(Duration::from_millis(3));
        }
        arriving.join().unwrap()
    });
    (sent.into_inner(), arrived)
}

fn overtaken(numbers: &[u64]) -> usize {
    numbers.windows(2).filter(|pair| pair[1] < pair[0]).count()
}

#[test]
fn a_flow_that_moves_all_the_time_loses_nothing_and_stays_in_order() {
    for version in [0, 1] {
        let place = Place::new();
        // Hold packets long enough that no move is forced.
        let mut steering = place.steering(SteeringOptions { hold: Duration::from_secs(1), ..options() });
        steering.set_rules(&[], &[SteerTarget::Cpu(0); INDIRECTION_LENGTH]).unwrap();
        let mut flow = None;
        let (sent, arrived) = numbered(&place, version, Duration::from_secs(1), |tuple, round| {
            steering.set_flow(tuple, SteerTarget::Cpu((round % 2) as u32)).unwrap();
            flow = Some(*tuple);
        });
        let state = steering.flow(&flow.unwrap()).unwrap();
        let all: BTreeSet<u64> = arrived.iter().copied().collect();
        assert_eq!((arrived.len() as u64, all.len() as u64), (sent, sent), "lost");
        assert_eq!(overtaken(&arrived), 0, "{state:?}");
        assert_eq!(state.forced, 0, "{state:?}");
        assert!(state.moves > 50, "{state:?}");
        let counters = steering.counters();
        assert!(counters[0].dequeued > 100 && counters[1].dequeued > 100, "{counters:?}");
        assert_eq!(sum(&steering, |cpu| cpu.enqueued), sum(&steering, |cpu| cpu.dequeued));
        // The sender left the checksums to the device. The device does not compute them, so the program
        // completed them.
        assert!(sum(&steering, |cpu| cpu.partial) >= sent, "{counters:?}");
    }
}

/// Writes on several connections to an echo server while `meanwhile` changes the steering. Asserts that
/// every byte returns.
fn echoed(place: &Place, connections: usize, bytes: usize, mut meanwhile: impl FnMut(&[Tuple], u64)) {
    let address: IpAddr = ADDRESSES[0][0].parse().unwrap();
    let listener = place.host.run(|| must(|| TcpListener::bind((address, 0)))).unwrap();
    let destination = listener.local_addr().unwrap();
    let clients: Vec<TcpStream> = (0..connections)
        .map(|_| place.client.run(|| must(|| TcpStream::connect(destination))).unwrap())
        .collect();
    let flows: Vec<Tuple> =
        clients.iter().map(|client| tuple(6, client.local_addr().unwrap(), destination)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..connections {
            let (mut server, _) = listener.accept().unwrap();
            scope.spawn(move || {
                let mut buffer = vec![0; 65_536];
                loop {
                    match server.read(&mut buffer).unwrap() {
                        0 => break,
                        length => server.write_all(&buffer[..length]).unwrap(),
                    }
                }
            });
        }
        let work: Vec<_> = clients
            .into_iter()
            .map(|client| {
                client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                scope.spawn(move || {
                    let mut back = vec![0; 100_000];
                    let mut writer = client.try_clone().unwrap();
                    let mut reader = client;
                    for round in 0..bytes / back.len() {
                        let block = vec![round as u8; back.len()];
                        std::thread::scope(|scope| {
                            scope.spawn(|| writer.write_all(&block).unwrap());
                            reader.read_exact(&mut back).unwrap();
                        });
                        assert!(back == block, "what came back differs");
                    }
                    writer.shutdown(std::net::Shutdown::Write).unwrap();
                })
            })
            .collect();
        let done = &done;
        let watcher = scope.spawn(move || {
            work.into_iter().for_each(|thread| thread.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        let mut round = 0;
        while !done.load(Ordering::Relaxed) {
            meanwhile(&flows, round);
            round += 1;
            std::thread::sleep(Duration::from_millis(2));
            if watcher.is_finished() {
                break;
            }
        }
    });
}

#[test]
fn connections_survive_every_kind_of_change() {
    {
        let place = Place::new();
        let mut steering = place.steering(options());
        let mut rounds = 0;
        echoed(&place, 4, 20_000_000, |flows, round| {
            rounds = round;
            let other = |offset: u64| SteerTarget::Cpu(((round + offset) % 2) as u32);
            for (offset, flow) in (0..).zip(flows) {
                match (round + offset) % 5 {
                    0 => steering.remove_flow(flow).unwrap(),
                    1 => steering.set_flow(flow, SteerTarget::Stay).unwrap(),
                    2 => steering.set_flow(flow, SteerTarget::Rules).unwrap(),
                    _ => steering.set_flow(flow, other(offset)).unwrap(),
                }
            }
            let class = SteeredClass {
                protocol: Some(6),
                destination_port: Some(MaskedPort { port: flows[0].destination_port, mask: u16::MAX }),
                source: Some(MaskedAddress { address: flows[0].source, mask: u128::from(u32::MAX) }),
                targets: vec![other(0), other(1)],
                ..SteeredClass::default()
            };
            let classes = if round % 3 == 0 { vec![] } else { vec![class] };
            steering.set_rules(&classes, &[other(1); INDIRECTION_LENGTH]).unwrap();
            steering.settle_losses();
        });
        assert!(rounds > 20, "{rounds}");
        std::thread::sleep(Duration::from_millis(50));
        (0..2).for_each(|_| steering.settle_losses());
        let counters = steering.counters();
        assert_eq!(sum(&steering, |cpu| cpu.lost), 0, "{counters:?}");
        assert_eq!(sum(&steering, |cpu| cpu.refused) + steering.unmapped(), 0, "{counters:?}");
        assert!(sum(&steering, |cpu| cpu.dequeued) > 0, "{counters:?}");
    }
}

#[test]
fn the_first_class_that_matches_wins_and_a_flows_own_target_before_it() {
    let place = Place::new();
    let mut steering = place.steering(options());
    let to = |port, mask, cpu| SteeredClass {
        protocol: Some(17),
        destination_port: Some(MaskedPort { port, mask }),
        targets: vec![SteerTarget::Cpu(cpu)],
        ..SteeredClass::default()
    };
    let send = |steering: &ReceiveSteering, flow: Option<(&mut Tuple, u16)>| {
        let bind = |namespace: &Namespace, address: &str, port: u16| {
            let address: IpAddr = address.parse().unwrap();
            namespace.run(|| must(|| UdpSocket::bind((address, port)))).unwrap()
        };
        let receiver = bind(&place.host, ADDRESSES[0][0], 4242);
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = bind(&place.client, ADDRESSES[1][0], 2424);
        let before = steering.counters();
        for _ in 0..10 {
            sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
            receiver.recv(&mut [0; 8]).unwrap();
        }
        if let Some((found, _)) = flow {
            *found = tuple(17, sender.local_addr().unwrap(), receiver.local_addr().unwrap());
        }
        let after = steering.counters();
        (0..2).map(|cpu| after[cpu].dequeued - before[cpu].dequeued).collect::<Vec<_>>()
    };
    let everything_on_1 = [SteerTarget::Cpu(1); INDIRECTION_LENGTH];
    steering.set_rules(&[to(4242, 0xffff, 0), to(0, 0, 1)], &everything_on_1).unwrap();
    let mut flow = tuple(17, "1.1.1.1:1".parse().unwrap(), "1.1.1.1:1".parse().unwrap());
    assert_eq!(send(&steering, Some((&mut flow, 0))), [10, 0]);
    steering.set_rules(&[to(0, 0, 1), to(4242, 0xffff, 0)], &everything_on_1).unwrap();
    assert_eq!(send(&steering, None), [0, 10]);
    steering.set_rules(&[to(4243, 0xffff, 0)], &everything_on_1).unwrap();
    assert_eq!(send(&steering, None), [0, 10]);
    steering.set_flow(&flow, SteerTarget::Cpu(0)).unwrap();
    assert_eq!(send(&steering, None), [10, 0]);
    steering.remove_flow(&flow).unwrap();
    assert_eq!(send(&steering, None), [0, 10]);
    let seen = steering.take_seen().unwrap();
    assert_eq!(seen.iter().find(|seen| seen.tuple == flow).map(|seen| seen.packets), Some(40), "{seen:?}");
    assert!(steering.take_seen().unwrap().iter().all(|seen| seen.tuple != flow));
    // A CPU without a ring must be refused before the program can redirect a packet to it.
    let error = steering.set_flow(&flow, SteerTarget::Cpu(63)).unwrap_err().to_string();
    assert!(error.contains("cannot steer to CPU 63: the session does not use this CPU"), "{error}");
}

#[test]
fn the_hash_is_that_of_rss() {
    // Of the hash values in Microsoft's RSS verification suite, 0xc626b0ea is steered to CPU 1, and
    // 0x51ccc178 to CPU 0.
    let place = Place::new();
    let mut steering = place.steering(options());
    let mut indirection = [SteerTarget::Stay; INDIRECTION_LENGTH];
    for (entry, target) in indirection.iter_mut().enumerate() {
        // The low seven bits are 0x78 for 0x51ccc178, and 0x6a for 0xc626b0ea.
        *target = match entry {
            0x78 => SteerTarget::Cpu(0),
            0x6a => SteerTarget::Cpu(1),
            _ => SteerTarget::Stay,
        };
    }
    steering.set_rules(&[], &indirection).unwrap();
    for (source, destination, cpu) in
        [("66.9.149.187:2794", "161.142.100.80:1766", 0), ("199.92.111.2:14230", "65.69.140.83:4739", 1)]
    {
        let (source, destination): (SocketAddr, SocketAddr) =
            (source.parse().unwrap(), destination.parse().unwrap());
        let mut netlink = place.host.netlink().unwrap();
        netlink.add_address(place.index, destination.ip(), 1).unwrap();
        let mut netlink = place.client.netlink().unwrap();
        let link = netlink.link_index("client").unwrap();
        netlink.add_address(link, source.ip(), 1).unwrap();
        let add = |namespace: &Namespace, device: &str, address: IpAddr| {
            let words = ["route", "replace", &format!("{address}/32"), "dev", device];
            let run = || must(|| std::process::Command::new("ip").args(words).status());
            assert!(namespace.run(run).unwrap().success());
        };
        add(&place.client, "client", destination.ip());
        add(&place.host, NAME, source.ip());
        let receiver = place.host.run(|| must(|| UdpSocket::bind(destination))).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = place.client.run(|| must(|| UdpSocket::bind(source))).unwrap();
        let before = steering.counters();
        sender.send_to(b"x", destination).unwrap();
        receiver.recv(&mut [0; 8]).unwrap();
        let after = steering.counters();
        assert_eq!(after[cpu].dequeued - before[cpu].dequeued, 1, "{source} > {destination}: {after:?}");
    }
}

#[test]
fn its_end_leaves_nothing_and_a_second_one_is_refused() {
    let place = Place::new();
    let programs = || {
        let mut links = place.host.netlink().unwrap();
        links.link(place.index).unwrap();
        place
            .host
            .run(|| Ok(std::process::Command::new("ip").args(["link", "show", NAME]).output().unwrap()))
            .unwrap()
    };
    let before = String::from_utf8(programs().stdout).unwrap();
    let steering = place.steering(options());
    assert!(String::from_utf8(programs().stdout).unwrap().contains("xdp"), "attached");
    let refused = place.host.run(|| {
        let mut second = ReceiveSteering::load(&options()).unwrap();
        Ok(second.attach(place.index.cast_signed()).unwrap_err().to_string())
    });
    assert!(refused.unwrap().contains("cannot attach the BPF program steer_packet"));
    drop(steering);
    assert_eq!(String::from_utf8(programs().stdout).unwrap(), before);
}
