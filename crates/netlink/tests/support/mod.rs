//! Two hosts in private namespaces, and trees of qdiscs between them.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_model::qdisc::{BULK_PORT, Catalogue, Filter, PROBE_PORT, QdiscTree, Step, Surroundings};
use evenkeel_model::units::{BitRate, ByteSize};
use evenkeel_netlink::qdisc_tree::{install, missing_kinds, qdisc_counters};
use evenkeel_netlink::tc::{Handle, Statistics};
use evenkeel_netlink::{Netlink, VethOptions};
use nix::sched::{CloneFlags, setns, unshare};

pub const NAME: &str = "evk0";
const PEER: &str = "evk1";
pub const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
pub const QUEUES: u32 = 4;

/// The two hosts; the sender is in the calling thread's namespace.
pub struct Hosts {
    pub netlink: Netlink,
    pub index: u32,
    receiver: File,
}

impl Hosts {
    pub fn new() -> Self {
        let own = || File::open("/proc/thread-self/ns/net").unwrap();
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let sender = own();
        without_ipv6();
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let receiver = own();
        without_ipv6();
        setns(sender.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink
            .add_veth(&VethOptions {
                name: NAME,
                peer_name: PEER,
                peer_namespace: receiver.as_fd(),
                mtu: 1500,
                queues: QUEUES,
            })
            .unwrap();
        let index = netlink.link_index(NAME).unwrap();
        let mut hosts = Self { netlink, index, receiver };
        let mut there = hosts.at_receiver(|| Netlink::open().unwrap());
        let peer = there.link_index(PEER).unwrap();
        hosts.netlink.add_address(index, IpAddr::V4(SENDER), 24).unwrap();
        there.add_address(peer, IpAddr::V4(RECEIVER), 24).unwrap();
        hosts.netlink.set_up(index).unwrap();
        there.set_up(peer).unwrap();
        hosts.know_each_other();
        hosts
    }

    /// Adds permanent neighbour entries. Otherwise the tests would also count ARP requests, and
    /// datagrams would wait for the ARP replies.
    fn know_each_other(&self) {
        let address_of = |name| {
            let shown = output("ip", &["-o", "link", "show", "dev", name]);
            let address = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
            address.expect("ip link shows no address").to_owned()
        };
        let knows = |of: Ipv4Addr, address: &str, name| {
            let (of, on) = (of.to_string(), ["dev", name, "nud", "permanent"]);
            output("ip", &[&["neigh", "replace", of.as_str(), "lladdr", address], &on[..]].concat());
        };
        let (sender, receiver) = (address_of(NAME), self.at_receiver(|| address_of(PEER)));
        knows(RECEIVER, &receiver, NAME);
        self.at_receiver(|| knows(SENDER, &sender, PEER));
    }

    /// Runs a function in the receiver's namespace, in a separate thread; sockets opened there remain in that
    /// namespace.
    pub fn at_receiver<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                setns(self.receiver.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            there.join().unwrap()
        })
    }

    pub fn surroundings(bulk_flows: u32, probes: u32) -> Surroundings {
        Surroundings {
            rate: BitRate::from_bits_per_second(200_000_000),
            bulk_flows,
            probes,
            queues: QUEUES,
            largest_segment: ByteSize::from_bytes(65_550),
            mtu: ByteSize::from_bytes(1500),
        }
    }

    pub fn install(&mut self, steps: &[&str], bulk_flows: u32, probes: u32) -> QdiscTree {
        let tree = tree(steps, &Self::surroundings(bulk_flows, probes));
        install(&mut self.netlink, self.index, &tree).unwrap();
        tree
    }

    pub fn classes(&mut self) -> BTreeMap<Handle, Statistics> {
        self.netlink.class_statistics(self.index).unwrap().into_iter().collect()
    }

    /// Sends a datagram to each port, and returns the packets of each class that were sent meanwhile.
    pub fn packets_of_classes(&mut self, ports: &[u16]) -> BTreeMap<Handle, u64> {
        let socket = self.socket();
        let (before, before_root) = (self.classes(), self.packets_of_root());
        for port in ports {
            socket.send_to(&[0; 100], (RECEIVER, *port)).unwrap();
        }
        // The kernel counts a packet at its class first, and then at the root.
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.packets_of_root() < before_root + ports.len() as u64 {
            assert!(Instant::now() < deadline, "not every datagram left");
            thread::sleep(Duration::from_millis(5));
        }
        let since = |(handle, after): (&Handle, &Statistics)| {
            (*handle, after.packets - before.get(handle).map_or(0, |before| before.packets))
        };
        self.classes().iter().map(since).filter(|(_, packets)| *packets > 0).collect()
    }

    fn packets_of_root(&mut self) -> u64 {
        let found = qdisc_counters(&mut self.netlink, self.index).unwrap();
        found.iter().filter(|qdisc| qdisc.parent == Handle::ROOT).map(|qdisc| qdisc.packets).sum()
    }

    pub fn socket(&self) -> UdpSocket {
        UdpSocket::bind((SENDER, 0)).unwrap()
    }

    /// Sends `bytes` to each port over TCP, concurrently, and returns the bytes of each class.
    pub fn bytes_of_classes(&mut self, ports: &[u16], bytes: usize) -> BTreeMap<Handle, u64> {
        let before = self.classes();
        let (ready, receivers) = mpsc::channel();
        thread::scope(|scope| {
            for port in ports {
                let ready = ready.clone();
                let receiver = &self.receiver;
                scope.spawn(move || {
                    setns(receiver.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
                    let listener = TcpListener::bind((RECEIVER, *port)).unwrap();
                    ready.send(()).unwrap();
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    let mut sink = vec![0; 65_536];
                    let mut received = 0;
                    while received < bytes {
                        match stream.read(&mut sink).unwrap() {
                            0 => break,
                            read => received += read,
                        }
                    }
                    assert_eq!(received, bytes, "port {port}");
                });
            }
            for _ in ports {
                receivers.recv_timeout(Duration::from_secs(20)).unwrap();
            }
            for port in ports {
                scope.spawn(move || {
                    let address = SocketAddr::from((RECEIVER, *port));
                    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(20)).unwrap();
                    stream.write_all(&vec![0; bytes]).unwrap();
                });
            }
        });
        let after = self.classes();
        let sent = |(handle, after): (&Handle, &Statistics)| {
            (*handle, after.bytes - before.get(handle).map_or(0, |before| before.bytes))
        };
        after.iter().map(sent).filter(|(_, bytes)| *bytes > 0).collect()
    }

    pub fn sees(&self, program: &str, arguments: &[&str]) -> String {
        output(program, arguments)
    }

    /// Installs every bundled setup, with and without a shaper for the link, and compares each tree
    /// with the kernel's list. Returns the kinds that the kernel lacks.
    pub fn install_every_bundled_setup(&mut self) -> BTreeSet<String> {
        let catalogue = Catalogue::bundled();
        let kinds: BTreeSet<&str> = catalogue.setups().flat_map(|setup| setup.kinds()).collect();
        let missing = missing_kinds(&mut self.netlink, self.index, kinds.iter().copied()).unwrap();
        let rate = BitRate::from_bits_per_second(200_000_000);
        for setup in catalogue.setups() {
            for (bulk, probes) in [(8, 2), (96, 1)] {
                let tree = setup.resolve(&Self::surroundings(bulk, probes)).unwrap();
                for tree in [tree.on_line(rate), tree] {
                    match install(&mut self.netlink, self.index, &tree) {
                        Ok(()) => self.compare(&tree),
                        Err(error) => {
                            let lacks = error.lacks().unwrap_or_else(|| panic!("{}: {error}", setup.name));
                            assert!(missing.contains(lacks), "{}: {error}", setup.name);
                            assert!(setup.kinds().contains(lacks));
                        }
                    }
                    let lacks = setup.kinds().iter().any(|kind| missing.contains(*kind));
                    let root = self.root();
                    let wanted = &tree.root().unwrap().kind;
                    assert!(lacks || root.as_ref() == Some(wanted), "{}: {root:?}", setup.name);
                }
            }
        }
        let _ = self.netlink.delete_root_qdisc(self.index);
        missing
    }

    fn root(&mut self) -> Option<String> {
        let found = qdisc_counters(&mut self.netlink, self.index).unwrap();
        found.into_iter().find(|qdisc| qdisc.parent == Handle::ROOT).map(|qdisc| qdisc.kind)
    }

    fn compare(&mut self, tree: &QdiscTree) {
        let found = qdisc_counters(&mut self.netlink, self.index).unwrap();
        let classes = self.classes();
        for step in &tree.steps {
            match step {
                Step::Qdisc(node) => {
                    let same = |qdisc: &&evenkeel_netlink::qdisc_tree::QdiscCounters| {
                        qdisc.handle == node.handle && qdisc.kind == node.kind && qdisc.parent == node.parent
                    };
                    assert!(found.iter().any(|qdisc| same(&qdisc)), "{step}\n{found:?}");
                }
                Step::Class(node) => assert!(classes.contains_key(&node.handle), "{step}\n{classes:?}"),
                Step::Filter { parent, filter } => {
                    let found = self.netlink.filters(self.index, *parent).unwrap();
                    let kind = match filter {
                        Filter::PerFlow { .. } | Filter::ByRole { .. } => "bpf",
                        Filter::Port { .. } => panic!("no bundled setup has {step}"),
                    };
                    assert!(found.iter().any(|filter| filter.kind == kind), "{step}\n{found:?}");
                }
            }
        }
    }
}

/// Turns IPv6 off, because IPv6 sends packets on a new link, and the tests would count these packets.
fn without_ipv6() {
    match std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        written => written.unwrap(),
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn ports(bulk_flows: u16, probes: u16) -> Vec<u16> {
    (0..bulk_flows).map(|flow| BULK_PORT + flow).chain((0..probes).map(|probe| PROBE_PORT + probe)).collect()
}

pub fn tree(steps: &[&str], on: &Surroundings) -> QdiscTree {
    let quoted: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
    let text = format!("schema = 1\n[setup.s]\nsummary = \"s\"\nsteps = [{}]\n", quoted.join(", "));
    Catalogue::parse(&text, "s.toml").unwrap().get("s").unwrap().resolve(on).unwrap()
}
