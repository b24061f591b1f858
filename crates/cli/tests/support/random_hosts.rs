//! Hosts with random settings.

use evenkeel_host::facts::complete;
use evenkeel_model::change::{Channels as Kind, Knob, Value};
use evenkeel_model::host::{
    BondFacts, Channels, Feature, HostFacts, Interface, InterfaceKind, Node, ProcessFacts, SocketFacts,
    SocketKind,
};
use evenkeel_placement::applied::set;
use evenkeel_placement::current::current;
use evenkeel_synthetic::{HostBuilder, NicOptions, qdisc};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256StarStar;

use crate::hosts::{MLX5, connection, process};

struct Chance(Xoshiro256StarStar);

impl Chance {
    fn below(&mut self, limit: u32) -> u32 {
        self.0.next_u32() % limit.max(1)
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u32) as usize]
    }

    /// Returns true with a probability of 1 in `times`.
    fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }
}

/// Returns the host with this number for a seed.
pub fn host(seed: u64, number: u64) -> HostFacts {
    let mut chance = Chance(Xoshiro256StarStar::seed_from_u64(seed << 32 ^ number));
    let (nodes, threads) = (chance.of(&[1, 1, 2, 2, 4, 8]), chance.of(&[1, 2]));
    let cores = 1 + chance.below(16);
    let mut builder = HostBuilder::new(nodes, cores, threads);
    if chance.once_in(2) {
        let driver = chance.of(&["intel_pstate", "acpi-cpufreq"]);
        builder = builder.power(driver, chance.of(&["performance", "powersave", "schedutil"]));
    }
    if chance.once_in(5) {
        builder = builder.virtual_machine();
    }
    let one_node = chance.once_in(3).then(|| chance.below(nodes));
    for nic in 0..1 + chance.below(3) as usize {
        let most = chance.of(&[2, 8, 64]);
        let queues = 1 + chance.below(most);
        builder = builder.nic(&NicOptions {
            name: ["eth0", "eth1", "eth2"][nic],
            driver: chance.of(&["mlx5_core", "ice", "ixgbe", "ena", "gve", "virtio_net", "r8169"]),
            bus: ["0000:01:00.0", "0000:41:00.0", "0000:81:00.0"][nic],
            node: (!chance.once_in(4)).then(|| one_node.unwrap_or_else(|| chance.below(nodes))),
            speed_mbps: chance.of(&[None, Some(1000), Some(10_000), Some(25_000), Some(100_000)]),
            queues: (queues, queues.max(chance.of(&[1, 16, 64]))),
            mtu: chance.of(&[1500, 9000]),
            action: ["a-TxRx-{}", "b-TxRx-{}", "c-TxRx-{}"][nic],
            ..MLX5
        });
    }
    let mut facts = builder.build();
    disturb(&mut facts, nodes, &mut chance);
    complete(&mut facts);
    facts
}

/// Returns a host with this number for a seed. Its NICs have few queues, no XPS maps, and load or no load.
pub fn host_of_few_queues(seed: u64, number: u64) -> HostFacts {
    let mut facts = host(seed, number);
    let mut chance = Chance(Xoshiro256StarStar::seed_from_u64(seed << 32 ^ number));
    let names: Vec<String> = facts.interfaces.iter().map(|nic| nic.name.clone()).collect();
    for name in names {
        let queues = Value::Number(chance.of(&[1, 1, 2, 4]));
        for kind in [Kind::Combined, Kind::Rx, Kind::Tx] {
            let knob = Knob::Channels(kind);
            if current(&facts, Some(&name), &knob).is_some_and(|now| now != Value::Number(0)) {
                set(&mut facts, Some(&name), &knob, &queues);
            }
        }
        let nic = facts.interfaces.iter_mut().find(|nic| nic.name == name).expect("a NIC");
        for queue in &mut nic.transmit_queues {
            queue.xps_processors.clear();
            queue.xps_receive_queues.clear();
        }
        nic.driver_statistics.clear();
        let softirq_share = chance.of(&[0, 0, 10, 35, 70]);
        for interrupt in facts.interrupts.iter_mut().filter(|interrupt| interrupt.interface == name) {
            let to = interrupt.target().first().copied();
            interrupt.served = to.map(|to| (to, 50_000_000)).into_iter().collect();
            let busy = facts.processors.iter_mut().find(|processor| Some(processor.number) == to);
            if let Some(time) =
                busy.and_then(|processor| processor.time.as_mut()).filter(|_| softirq_share > 0)
            {
                time.softirq = time.total / 100 * softirq_share;
                time.idle = time.total / 100 * (90 - softirq_share);
            }
        }
    }
    // Number the interrupts without gaps, as at boot. The interrupts of queues that are added again
    // would use gaps.
    let first = facts.interrupts.iter().map(|interrupt| interrupt.number).min().unwrap_or(0);
    (first..).zip(&mut facts.interrupts).for_each(|(number, interrupt)| interrupt.number = number);
    complete(&mut facts);
    facts
}

fn disturb(facts: &mut HostFacts, nodes: u32, chance: &mut Chance) {
    let per_package = chance.of(&[1, 1, 2, 4]).min(nodes);
    let cores = facts.processors.iter().map(|processor| processor.core).max().unwrap_or(0) + 1;
    for processor in &mut facts.processors {
        processor.package = processor.node / per_package;
        processor.core += processor.node % per_package * cores;
        processor.isolated = chance.once_in(20);
    }
    if facts.processors.iter().all(|processor| processor.isolated) {
        facts.processors[0].isolated = false;
    }
    if chance.once_in(4) {
        take_offline(facts, chance);
    }
    if chance.once_in(8) {
        let node = chance.below(nodes);
        let first = facts.processors[0].number;
        let of_node = facts.processors.iter_mut().filter(|processor| processor.node == node);
        of_node.for_each(|processor| processor.isolated = processor.number != first);
    }
    if chance.once_in(12) {
        // Add a node without CPUs, and attach a NIC to it.
        facts.nodes.push(Node { number: nodes, ..Node::default() });
        let nic = facts.interfaces.iter_mut().find(|nic| nic.driver.is_some());
        nic.expect("a host has a NIC").node = Some(nodes);
    }
    let numbers: Vec<u32> = facts.processors.iter().map(|processor| processor.number).collect();
    interrupts(facts, &numbers, chance);
    nics(facts, &numbers, chance);
    if chance.once_in(8) {
        bond(facts, chance);
    }
    servers(facts, &numbers, chance);
    for (path, values) in SYSCTLS {
        if chance.once_in(4) {
            facts.sysctls.insert((*path).to_owned(), chance.of(values).to_owned());
        }
    }
    for name in COUNTERS {
        if chance.once_in(8) {
            facts.counters.insert((*name).to_owned(), u64::from(chance.below(20_000_000)));
        }
    }
    for line in &mut facts.softnet {
        if chance.once_in(30) {
            (line.dropped, line.squeezed) =
                (u64::from(chance.below(1_000_000)), u64::from(chance.below(1_000_000)));
        }
    }
    if chance.once_in(3) {
        facts.processes.push(ProcessFacts {
            number: 800,
            name: "irqbalance".to_owned(),
            ..ProcessFacts::default()
        });
    }
    for at in 0..chance.below(4) {
        let allowed: Vec<u32> = if chance.once_in(2) {
            (0..1 + chance.below(4)).map(|_| chance.of(&numbers)).collect()
        } else {
            numbers.clone()
        };
        process(facts, 4000 + at, "mover", &allowed);
        let rtt = chance.of(&[200, 4000, 80_000]);
        let bytes = u64::from(chance.0.next_u32()) * 100;
        connection(facts, "10.9.0.1:5201", &format!("10.9.0.2:{}", 40_000 + at), rtt, bytes, 4000 + at);
    }
}

/// Takes some CPUs offline. Their interrupts have moved to other CPUs.
fn take_offline(facts: &mut HostFacts, chance: &mut Chance) {
    let one_in = chance.of(&[2, 4, 16]);
    let stays = |processor: u32, chance: &mut Chance| processor == 0 || !chance.once_in(one_in);
    facts.processors.retain(|processor| stays(processor.number, chance));
    let online: Vec<u32> = facts.processors.iter().map(|processor| processor.number).collect();
    let is_online = |number: &u32| online.contains(number);
    for processor in &mut facts.processors {
        processor.siblings.retain(is_online);
        processor.isolated &= processor.number != 0;
    }
    facts.softnet.retain(|line| is_online(&line.processor));
    facts.nodes.iter_mut().for_each(|node| node.processors.retain(is_online));
    for interrupt in &mut facts.interrupts {
        let total = interrupt.total();
        let to = interrupt.affinity.first().copied().filter(is_online).unwrap_or_else(|| chance.of(&online));
        (interrupt.affinity, interrupt.effective, interrupt.served) = (vec![to], vec![to], vec![(to, total)]);
    }
}

fn bond(facts: &mut HostFacts, chance: &mut Chance) {
    let nics = facts.interfaces.iter().filter(|nic| nic.driver.is_some());
    let lower: Vec<String> = nics.map(|nic| nic.name.clone()).collect();
    facts.interfaces.push(Interface {
        name: "bond0".to_owned(),
        index: Some(99),
        kind: InterfaceKind::Bond,
        driver: Some("bonding".to_owned()),
        up: true,
        mtu: Some(chance.of(&[1500, 9000])),
        lower,
        bond: Some(BondFacts {
            mode: chance.of(&["802.3ad", "balance-xor", "active-backup"]).to_owned(),
            hash_policy: chance.of(&["layer2", "layer3+4"]).to_owned(),
        }),
        ..Interface::default()
    });
}

/// Adds programs that wait for requests, or whose sockets overflow.
fn servers(facts: &mut HostFacts, numbers: &[u32], chance: &mut Chance) {
    if chance.once_in(6) {
        process(facts, 3000, chance.of(&["redis-server", "nginx"]), &[chance.of(numbers)]);
        facts.sockets.push(SocketFacts {
            kind: SocketKind::TcpListen,
            local: "0.0.0.0:6379".to_owned(),
            process: Some(3000),
            receive_queue: u64::from(chance.below(200)),
            send_queue: chance.of(&[128, 4096]),
            ..SocketFacts::default()
        });
    }
    if chance.once_in(10) {
        process(facts, 3100, "syslog-ng", numbers);
        facts.sockets.push(SocketFacts {
            kind: SocketKind::Udp,
            local: "0.0.0.0:514".to_owned(),
            process: Some(3100),
            drops: u64::from(chance.below(20_000_000)),
            ..SocketFacts::default()
        });
    }
}

fn interrupts(facts: &mut HostFacts, numbers: &[u32], chance: &mut Chance) {
    let names: Vec<String> = facts.interfaces.iter().map(|nic| nic.name.clone()).collect();
    for name in names {
        let how = chance.below(5);
        let one = chance.of(numbers);
        for interrupt in facts.interrupts.iter_mut().filter(|interrupt| interrupt.interface == name) {
            let to = if how == 1 { one } else { chance.of(numbers) };
            match how {
                0 => continue,
                3 => (interrupt.affinity, interrupt.effective) = (numbers.to_vec(), vec![to]),
                4 if chance.once_in(2) => continue,
                _ => (interrupt.affinity, interrupt.effective) = (vec![to], vec![to]),
            }
            let total = interrupt.total();
            interrupt.served = vec![(to, total)];
        }
    }
}

fn nics(facts: &mut HostFacts, numbers: &[u32], chance: &mut Chance) {
    let is_small = facts.processors.len() < 3;
    for nic in facts.interfaces.iter_mut().filter(|nic| nic.driver.is_some()) {
        if nic.bond.is_some() {
            continue;
        }
        nic.up = !chance.once_in(30);
        if nic.driver.as_deref() == Some("gve") {
            let now = nic.channels.unwrap_or_default();
            nic.channels = Some(Channels {
                rx: now.combined,
                tx: now.combined,
                rx_max: now.combined_max,
                tx_max: now.combined_max,
                ..Channels::default()
            });
        } else if nic.driver.as_deref() == Some("r8169") {
            nic.channels = None;
        }
        let how = chance.below(5);
        for queue in &mut nic.transmit_queues {
            match how {
                0 | 1 => {}
                2 => queue.xps_processors.clear(),
                _ => queue.xps_processors = vec![chance.of(numbers)],
            }
            if how == 1 && chance.once_in(8) {
                queue.xps_receive_queues = vec![0];
            }
            if chance.once_in(40) {
                queue.max_rate_mbps = 10;
            }
            if chance.once_in(40) {
                queue.bql_limit_max = Some(3000);
            }
        }
        if chance.once_in(6) {
            for queue in &mut nic.receive_queues {
                queue.rps = (0..1 + chance.below(3)).map(|_| chance.of(numbers)).collect();
                queue.rps.sort_unstable();
                queue.rps.dedup();
                queue.rps_flow_count = chance.of(&[0, 0, 4096]);
            }
        }
        if chance.once_in(6) {
            nic.tx_queue_len = Some(chance.of(&[10, 1000]));
            nic.gro_flush_timeout_ns = Some(chance.of(&[0, 20_000, 200_000]));
            nic.napi_defer_hard_irqs = Some(chance.of(&[0, 2]));
        }
        if let Some(sizes) = nic.packet_sizes.as_mut().filter(|_| chance.once_in(6)) {
            (sizes.gso, sizes.gso_ipv4, sizes.gro, sizes.gro_ipv4) = (65_536, 65_536, 65_536, 65_536);
        }
        for (name, feature) in &mut nic.features {
            *feature = Feature { on: !chance.once_in(8) ^ (name == "rx-lro"), fixed: chance.once_in(10) };
        }
        if let Some(rings) = nic.rings.as_mut().filter(|_| chance.once_in(2)) {
            rings.rx = chance.of(&[256, 512, 1024, 4096]).min(rings.rx_max);
            rings.tx = chance.of(&[128, 512, 4096]).min(rings.tx_max);
        }
        if let Some(coalescing) = nic.coalescing.as_mut().filter(|_| chance.once_in(3)) {
            coalescing.rx_usecs = chance.of(&[0, 3, 50, 1000]);
            coalescing.rx_frames = chance.of(&[0, 1, 64]);
            coalescing.adaptive_rx = chance.once_in(2);
        }
        let queues = nic.receive_queues.len() as u32;
        if let Some(rss) = nic.rss.as_mut().filter(|_| chance.once_in(3)) {
            rss.indirection.iter_mut().for_each(|entry| *entry = chance.below(queues));
            rss.hash_fields.insert("tcp4".to_owned(), chance.of(&["sd", "sdfn", "m", ""]).to_owned());
        }
        if chance.once_in(4) {
            let kind = chance.of(&["pfifo_fast", "fq_codel", "fq", "sfq", "netem"]);
            nic.qdiscs = vec![qdisc(kind, chance.of(&["0:", "1:"]), "root", 5_000_000_000)];
        }
        if chance.once_in(4) {
            let lost = u64::from(chance.below(50_000_000));
            nic.driver_statistics
                .insert(chance.of(&["rx_out_of_buffer", "rx_no_dma_resources"]).to_owned(), lost);
            nic.statistics.insert(chance.of(&["rx_missed_errors", "rx_dropped"]).to_owned(), lost);
        }
        if chance.once_in(4) && !is_small {
            nic.driver_statistics.insert("tx_queue_stopped".to_owned(), u64::from(chance.below(100_000_000)));
        }
    }
}

const SYSCTLS: &[(&str, &[&str])] = &[
    ("net/core/rmem_max", &["212992", "4194304"]),
    ("net/core/wmem_max", &["212992", "4194304"]),
    ("net/core/rmem_default", &["212992", "65536"]),
    ("net/core/netdev_max_backlog", &["1000", "300"]),
    ("net/core/netdev_budget", &["64", "300", "600"]),
    ("net/core/somaxconn", &["128", "4096"]),
    ("net/core/default_qdisc", &["pfifo_fast", "fq_codel"]),
    ("net/core/rps_sock_flow_entries", &["0", "32768"]),
    ("net/ipv4/tcp_rmem", &["4096 87380 6291456", "4096 4096 65536"]),
    ("net/ipv4/tcp_wmem", &["4096 16384 4194304", "4096 4096 65536"]),
    ("net/ipv4/tcp_mem", &["100 200 400", "88560 118080 177120"]),
    ("net/ipv4/tcp_sack", &["0"]),
    ("net/ipv4/tcp_timestamps", &["0"]),
    ("net/ipv4/tcp_window_scaling", &["0"]),
    ("net/ipv4/tcp_moderate_rcvbuf", &["0"]),
    ("net/ipv4/tcp_mtu_probing", &["0"]),
    ("net/ipv4/tcp_congestion_control", &["reno", "bbr"]),
    ("net/ipv4/tcp_no_metrics_save", &["0"]),
    ("net/ipv4/ip_forward", &["1"]),
    ("net/core/netdev_budget_usecs", &["1000", "20000"]),
    ("net/core/busy_poll", &["50", "2000"]),
    ("net/core/busy_read", &["0", "2000"]),
    ("net/core/flow_limit_cpu_bitmap", &["0", "ff"]),
    ("net/netfilter/nf_conntrack_max", &["4096"]),
    ("net/netfilter/nf_conntrack_count", &["4000", "10"]),
    ("kernel/nmi_watchdog", &["1"]),
    ("kernel/numa_balancing", &["1"]),
    ("vm/zone_reclaim_mode", &["1"]),
];

const COUNTERS: &[&str] = &[
    "TcpExt.TCPBacklogDrop",
    "TcpExt.PruneCalled",
    "TcpExt.RcvPruned",
    "TcpExt.ListenOverflows",
    "TcpExt.TCPMemoryPressures",
    "Udp.RcvbufErrors",
    "Tcp.RetransSegs",
    "Arp.table_fulls",
    "Conntrack.drop",
    "TcpExt.IPReversePathFilter",
    "TcpExt.TCPTimeWaitOverflow",
    "TcpExt.TCPReqQFullDrop",
    "Ip.ReasmFails",
];
