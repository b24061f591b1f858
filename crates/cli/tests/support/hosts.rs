//! Facts of well-tuned hosts of several kinds, in which tests plant faults.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_model::host::{
    HostFacts, Interface, InterfaceKind, ProcessFacts, SocketFacts, SocketKind, TcpFacts, TransmitQueue,
};
use evenkeel_synthetic::{HostBuilder, NicOptions};

pub type Host = (&'static str, fn() -> HostFacts);

pub const HOSTS: &[Host] = &[
    ("data transfer node, two sockets, 100 Gbit/s mlx5", transfer_node),
    ("one-socket EPYC, 100 Gbit/s ice", epyc),
    ("two sockets, 10 Gbit/s i40e", i40e),
    ("one socket, 10 Gbit/s ixgbe", ixgbe),
    ("storage, two sockets, 25 Gbit/s bnxt_en", storage),
    ("virtual machine, virtio-net with 4 queues", virtio),
    ("desktop, 1 Gbit/s igb", igb),
    ("router, two ports of 1 Gbit/s, 4 queues each", router),
];

pub fn fast() -> Vec<Host> {
    HOSTS[..5].to_vec()
}

pub fn two_nodes() -> Vec<Host> {
    vec![HOSTS[0], HOSTS[2], HOSTS[4]]
}

pub fn very_fast() -> Vec<Host> {
    HOSTS[..2].to_vec()
}

pub fn all() -> Vec<Host> {
    HOSTS.to_vec()
}

pub const MLX5: NicOptions = NicOptions {
    name: "ens2f0",
    driver: "mlx5_core",
    bus: "0000:81:00.0",
    node: Some(1),
    speed_mbps: Some(100_000),
    pcie: Some((8.0, 16)),
    queues: (16, 63),
    ring: 8192,
    mtu: 9000,
    action: "mlx5_comp{}@pci:0000:81:00.0",
};

pub const I40E: NicOptions = NicOptions {
    name: "eno1",
    driver: "i40e",
    bus: "0000:3d:00.0",
    node: Some(0),
    speed_mbps: Some(10_000),
    pcie: Some((8.0, 8)),
    queues: (8, 32),
    ring: 4096,
    mtu: 1500,
    action: "i40e-eno1-TxRx-{}",
};

pub const IXGBE: NicOptions = NicOptions {
    name: "eth2",
    driver: "ixgbe",
    bus: "0000:04:00.0",
    node: Some(0),
    speed_mbps: Some(10_000),
    pcie: Some((5.0, 8)),
    queues: (8, 63),
    ring: 4096,
    mtu: 1500,
    action: "eth2-TxRx-{}",
};

pub const VIRTIO: NicOptions = NicOptions {
    name: "eth0",
    driver: "virtio_net",
    bus: "0000:00:03.0",
    node: None,
    speed_mbps: None,
    pcie: None,
    queues: (4, 4),
    ring: 256,
    mtu: 1500,
    action: "virtio0-input.{}",
};

/// Returns the peer address for a new connection: `remote`, or the next free port if the host already
/// has a connection to `remote`.
pub fn free_peer(facts: &HostFacts, local: &str, remote: &str) -> String {
    let mut peer: std::net::SocketAddr = remote.parse().unwrap();
    let is_taken = |peer: &std::net::SocketAddr| {
        facts.sockets.iter().any(|socket| socket.local == local && socket.remote == peer.to_string())
    };
    while is_taken(&peer) {
        peer.set_port(peer.port() + 1);
    }
    peer.to_string()
}

/// Adds a TCP connection that has sent `bytes` and received `bytes`. Adds its process if the host lacks the
/// process.
pub fn connection(facts: &mut HostFacts, local: &str, remote: &str, rtt_us: u64, bytes: u64, process: u32) {
    let remote = free_peer(facts, local, remote);
    if facts.process(process).is_none() {
        self::process(facts, process, "transfer", &[]);
    }
    facts.sockets.push(SocketFacts {
        kind: SocketKind::Tcp,
        local: local.to_owned(),
        remote,
        process: Some(process),
        tcp: Some(TcpFacts {
            rtt_us: rtt_us + rtt_us / 10,
            min_rtt_us: rtt_us,
            cwnd: 1000,
            mss: 8948,
            pmtu: 9000,
            bytes_acked: bytes,
            bytes_received: bytes,
            congestion: "cubic".to_owned(),
            ..TcpFacts::default()
        }),
        ..SocketFacts::default()
    });
}

/// Adds a process that is pinned to the CPUs in `allowed`. If `allowed` is empty, the process may run
/// on all CPUs. Replaces a process with the same number.
pub fn process(facts: &mut HostFacts, number: u32, name: &str, allowed: &[u32]) {
    facts.processes.retain(|known| known.number != number);
    let every = || facts.processors.iter().map(|processor| processor.number).collect();
    facts.processes.push(ProcessFacts {
        number,
        name: name.to_owned(),
        processor: allowed.first().copied(),
        allowed: if allowed.is_empty() { every() } else { allowed.to_vec() },
        ..ProcessFacts::default()
    });
}

fn transfer_node() -> HostFacts {
    let mut facts = HostBuilder::new(2, 20, 2).power("intel_pstate", "performance").nic(&MLX5).build();
    // Three data movers on cores of the NIC's node that take no interrupts.
    for (at, core) in (36..39).enumerate() {
        let number = 4000 + at as u32;
        process(&mut facts, number, "mover", &[core]);
        connection(
            &mut facts,
            "10.9.0.1:5201",
            &format!("10.9.0.2:{}", 40_001 + at),
            4000,
            50_000_000_000 + at as u64,
            number,
        );
    }
    facts
}

fn epyc() -> HostFacts {
    HostBuilder::new(1, 32, 2)
        .power("acpi-cpufreq", "performance")
        .nic(&NicOptions {
            name: "enp65s0f0",
            driver: "ice",
            bus: "0000:41:00.0",
            node: Some(0),
            pcie: Some((16.0, 16)),
            queues: (32, 128),
            ring: 8160,
            action: "ice-enp65s0f0-TxRx-{}",
            ..MLX5
        })
        .build()
}

fn i40e() -> HostFacts {
    HostBuilder::new(2, 8, 2).power("intel_pstate", "performance").nic(&I40E).build()
}

fn ixgbe() -> HostFacts {
    HostBuilder::new(1, 8, 2).power("intel_pstate", "performance").nic(&IXGBE).build()
}

fn storage() -> HostFacts {
    HostBuilder::new(2, 16, 1)
        .power("intel_cpufreq", "performance")
        .nic(&NicOptions {
            name: "ens1f0np0",
            driver: "bnxt_en",
            bus: "0000:af:00.0",
            node: Some(1),
            speed_mbps: Some(25_000),
            pcie: Some((8.0, 8)),
            queues: (16, 74),
            ring: 2047,
            mtu: 9000,
            action: "ens1f0np0-TxRx-{}",
        })
        .build()
}

fn virtio() -> HostFacts {
    let mut facts = HostBuilder::new(1, 4, 1).virtual_machine().nic(&VIRTIO).build();
    for (path, value) in PLAIN {
        facts.sysctls.insert((*path).to_owned(), (*value).to_owned());
    }
    if let Some(nic) = nic_mut(&mut facts) {
        nic.coalescing = None;
    }
    facts
}

fn igb() -> HostFacts {
    let mut facts = HostBuilder::new(1, 4, 2)
        .power("intel_pstate", "powersave")
        .nic(&NicOptions {
            name: "enp3s0",
            driver: "igb",
            bus: "0000:03:00.0",
            node: None,
            speed_mbps: Some(1000),
            pcie: Some((5.0, 1)),
            queues: (4, 8),
            ring: 4096,
            mtu: 1500,
            action: "enp3s0-TxRx-{}",
        })
        .build();
    for (path, value) in PLAIN {
        facts.sysctls.insert((*path).to_owned(), (*value).to_owned());
    }
    // At 1 Gbit/s, the defaults of the driver and the distribution suffice.
    if let Some(nic) = nic_mut(&mut facts) {
        nic.rings = nic.rings.map(|rings| evenkeel_model::host::Rings { rx: 256, tx: 256, ..rings });
    }
    facts
}

fn router() -> HostFacts {
    let port = |name: &'static str, bus: &'static str, action: &'static str| NicOptions {
        name,
        driver: "igc",
        bus,
        node: None,
        speed_mbps: Some(1000),
        pcie: Some((5.0, 1)),
        queues: (4, 4),
        ring: 4096,
        mtu: 1500,
        action,
    };
    let mut facts = HostBuilder::new(1, 4, 1)
        .nic(&port("wan", "0000:01:00.0", "wan-TxRx-{}"))
        .nic(&port("lan1", "0000:02:00.0", "lan1-TxRx-{}"))
        .sysctl("net/ipv4/ip_forward", "1")
        .sysctl("net/netfilter/nf_conntrack_count", "4000")
        .sysctl("net/netfilter/nf_conntrack_max", "65536")
        .build();
    for (path, value) in PLAIN {
        facts.sysctls.insert((*path).to_owned(), (*value).to_owned());
    }
    facts
}

/// Defaults of a distribution that are right for slow links.
const PLAIN: &[(&str, &str)] = &[
    ("net/core/default_qdisc", "fq_codel"),
    ("net/core/netdev_max_backlog", "1000"),
    ("net/core/rmem_max", "212992"),
    ("net/core/wmem_max", "212992"),
    ("net/ipv4/tcp_mtu_probing", "0"),
    ("net/ipv4/tcp_no_metrics_save", "0"),
    ("net/ipv4/tcp_rmem", "4096 131072 6291456"),
    ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
];

pub fn nic_mut(facts: &mut HostFacts) -> Option<&mut Interface> {
    facts.interfaces.iter_mut().find(|interface| interface.kind == InterfaceKind::Device)
}

/// Returns the counters of an interface that is not a NIC.
pub fn counters() -> BTreeMap<String, u64> {
    let names = ["rx_packets", "tx_packets", "rx_dropped", "tx_dropped"];
    names.map(|name| (name.to_owned(), 0)).into()
}

pub fn veth(name: &str) -> Interface {
    Interface {
        name: name.to_owned(),
        index: Some(900 + u32::from(name.bytes().last().unwrap_or(0))),
        kind: InterfaceKind::Veth,
        driver: Some("veth".to_owned()),
        up: true,
        mtu: Some(1500),
        receive_queues: vec![evenkeel_model::host::ReceiveQueue::default()],
        transmit_queues: vec![TransmitQueue::default()],
        qdiscs: vec![evenkeel_synthetic::qdisc("noqueue", "0:", "root", 0)],
        ..Interface::default()
    }
}

pub fn files(directory: &Path) -> Vec<PathBuf> {
    let (mut directories, mut files) = (vec![directory.to_owned()], Vec::new());
    while let Some(next) = directories.pop() {
        // Symbolic links of sysfs may form a loop.
        let entries = std::fs::read_dir(next).unwrap().flatten().filter(|entry| !entry.path().is_symlink());
        for entry in entries {
            if entry.path().is_dir() { &mut directories } else { &mut files }.push(entry.path());
        }
    }
    files.sort();
    files
}

/// Returns the files of a recorded host. Of files whose paths differ only in digits, returns the first two.
pub fn files_of_each_kind(directory: &Path) -> Vec<PathBuf> {
    let mut kinds = BTreeMap::<String, usize>::new();
    let mut files = files(directory);
    files.retain(|file| {
        let kind = file.to_string_lossy().chars().filter(|letter| !letter.is_ascii_digit()).collect();
        let seen = kinds.entry(kind).or_insert(0);
        *seen += 1;
        *seen <= 2
    });
    files
}
