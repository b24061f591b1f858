//! Writes facts as a tree of files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use evenkeel_model::host::{
    HostFacts, Interface, InterfaceKind, ProcessFacts, SocketFacts, SocketKind, processor_list,
};
use serde_json::json;

use evenkeel_host::facts::{DeviceAnswers, EVERY_LINUX, FeatureText, HashFields, RssAnswers};

/// Writes facts as a tree that [`read_facts`](evenkeel_host::facts::read_facts) reads.
pub fn write_tree(facts: &HostFacts, directory: &Path) -> io::Result<()> {
    let tree = Writer { directory };
    tree.file("proc/sys/kernel/osrelease", facts.kernel.as_deref().unwrap_or_default())?;
    tree.file(
        "etc/os-release",
        &format!("PRETTY_NAME=\"{}\"", facts.distribution.as_deref().unwrap_or_default()),
    )?;
    let flags = if facts.virtual_machine { "fpu hypervisor" } else { "fpu" };
    let model = facts.processor_model.as_deref().unwrap_or_default();
    tree.file("proc/cpuinfo", &format!("processor\t: 0\nmodel name\t: {model}\nflags\t\t: {flags}"))?;
    if let Some(memory) = facts.memory_bytes {
        tree.file("proc/meminfo", &format!("MemTotal:       {} kB", memory / 1024))?;
    }
    if let Some(uptime) = facts.uptime_s {
        tree.file("proc/uptime", &format!("{uptime}.00 0.00"))?;
    }
    for (name, word) in [("enabled", &facts.huge_pages), ("defrag", &facts.huge_page_defrag)] {
        if let Some(word) = word {
            tree.file(&format!("sys/kernel/mm/transparent_hugepage/{name}"), &format!("[{word}]"))?;
        }
    }
    tree.file("proc/cmdline", &facts.command_line.join(" "))?;
    for (path, value) in &facts.sysctls {
        tree.file(&format!("proc/sys/{path}"), value)?;
    }
    tree.processors(facts)?;
    tree.counters(facts)?;
    tree.interrupts(facts)?;
    let mut qdiscs = Vec::new();
    for interface in &facts.interfaces {
        tree.interface(interface)?;
        qdiscs.extend(interface.qdiscs.iter().map(|qdisc| {
            let mut line = json!({
                "kind": qdisc.kind, "handle": qdisc.handle, "dev": interface.name, "bytes": qdisc.bytes, "packets": qdisc.packets,
                "drops": qdisc.drops, "requeues": qdisc.requeues, "backlog": qdisc.backlog_bytes, "options": {}
            });
            if qdisc.is_root() { line["root"] = true.into() } else { line["parent"] = qdisc.parent.clone().into() }
            if let Some(rate) = qdisc.rate_bps {
                line["options"]["rate"] = (rate / 8).into();
            }
            if let Some(limit) = qdisc.limit_packets {
                line["options"]["limit"] = limit.into();
            }
            line
        }));
    }
    tree.answers("qdiscs.json", &qdiscs)?;
    let sizes = facts.interfaces.iter().filter_map(|interface| {
        let sizes = interface.packet_sizes?;
        Some(json!({
            "ifname": interface.name, "gso_max_size": sizes.gso, "gso_ipv4_max_size": sizes.gso_ipv4,
            "gro_max_size": sizes.gro, "gro_ipv4_max_size": sizes.gro_ipv4, "tso_max_size": sizes.tso
        }))
    });
    tree.answers("links.json", &sizes.collect::<Vec<_>>())?;
    tree.answers("ports.json", &facts.port_use)?;
    tree.sockets(facts)?;
    for process in &facts.processes {
        tree.process(process)?;
    }
    tree.answers("about.json", &json!({"format": 1, "page_bytes": facts.page_bytes}))
}

struct Writer<'a> {
    directory: &'a Path,
}

/// Returns a mask of processors in the format of sysfs.
fn mask(members: &[u32]) -> String {
    let words = members.iter().max().map_or(1, |most| *most as usize / 32 + 1);
    let word = |at: usize| {
        members
            .iter()
            .filter(|number| **number as usize / 32 == at)
            .fold(0_u32, |word, number| word | 1 << (number % 32))
    };
    (0..words).rev().map(|at| format!("{:08x}", word(at))).collect::<Vec<_>>().join(",")
}

impl Writer<'_> {
    fn file(&self, path: &str, text: &str) -> io::Result<()> {
        let place = self.directory.join(path);
        if let Some(parent) = place.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(place, format!("{text}\n"))
    }

    fn answers(&self, name: &str, answers: &impl serde::Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(answers).map_err(io::Error::other)?;
        self.file(&format!("evenkeel/{name}"), &text)
    }

    fn processors(&self, facts: &HostFacts) -> io::Result<()> {
        let root = "sys/devices/system";
        let numbers: Vec<u32> = facts.processors.iter().map(|processor| processor.number).collect();
        self.file(&format!("{root}/cpu/online"), &processor_list(&numbers))?;
        let isolated: Vec<u32> = facts
            .processors
            .iter()
            .filter(|processor| processor.isolated)
            .map(|processor| processor.number)
            .collect();
        self.file(&format!("{root}/cpu/isolated"), &processor_list(&isolated))?;
        for node in &facts.nodes {
            self.file(
                &format!("{root}/node/node{}/cpulist", node.number),
                &processor_list(&node.processors),
            )?;
            if let Some(pages) = node.allocations {
                let text = format!(
                    "numa_hit {}\nnuma_miss {}\nnuma_foreign {}\ninterleave_hit 0\nlocal_node {}\nother_node {}",
                    pages.hit, pages.miss, pages.foreign, pages.local, pages.other
                );
                self.file(&format!("{root}/node/node{}/numastat", node.number), &text)?;
            }
        }
        let mut stat = "cpu  0 0 0 0 0 0 0 0 0 0\n".to_owned();
        for processor in &facts.processors {
            let directory = format!("{root}/cpu/cpu{}", processor.number);
            self.file(&format!("{directory}/topology/physical_package_id"), &processor.package.to_string())?;
            self.file(&format!("{directory}/topology/core_id"), &processor.core.to_string())?;
            self.file(
                &format!("{directory}/topology/thread_siblings_list"),
                &processor_list(&processor.siblings),
            )?;
            for (name, value) in [
                ("scaling_governor", &processor.governor),
                ("scaling_driver", &processor.frequency_driver),
                ("energy_performance_preference", &processor.energy_preference),
            ] {
                if let Some(value) = value {
                    self.file(&format!("{directory}/cpufreq/{name}"), value)?;
                }
            }
            for state in &processor.idle_states {
                let directory = format!("{directory}/cpuidle/state{}", state.number);
                self.file(&format!("{directory}/name"), &state.name)?;
                self.file(&format!("{directory}/latency"), &state.latency_us.to_string())?;
                self.file(&format!("{directory}/disable"), &u8::from(state.disabled).to_string())?;
                self.file(&format!("{directory}/usage"), &state.usage.to_string())?;
            }
            if let Some(time) = processor.time {
                let user = time
                    .total
                    .saturating_sub(time.idle.saturating_add(time.softirq).saturating_add(time.steal));
                let _ = writeln!(
                    stat,
                    "cpu{} {user} 0 0 {} 0 0 {} {} 0 0",
                    processor.number, time.idle, time.softirq, time.steal
                );
            }
        }
        self.file("proc/stat", &stat)
    }

    fn counters(&self, facts: &HostFacts) -> io::Result<()> {
        let mut groups: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
        for (name, value) in &facts.counters {
            if let Some((group, name)) = name.split_once('.') {
                groups.entry(group).or_default().push((name, *value));
            }
        }
        let (mut netstat, mut snmp) = (String::new(), String::new());
        for (group, entries) in &groups {
            let names: Vec<&str> = entries.iter().map(|(name, _)| *name).collect();
            let words = |number: fn(u64) -> String| {
                entries.iter().map(|(_, value)| number(*value)).collect::<Vec<_>>().join(" ")
            };
            match *group {
                "Snmp6" => {
                    let required = EVERY_LINUX.iter().find(|(_, group, _)| *group == "Snmp6");
                    let required = required.into_iter().flat_map(|(.., names)| *names);
                    let mut all: BTreeMap<&str, u64> = required.map(|name| (*name, 0)).collect();
                    all.extend(entries.iter().copied());
                    let lines: Vec<String> =
                        all.iter().map(|(name, value)| format!("{name} {value}")).collect();
                    self.file("proc/net/snmp6", &lines.join("\n"))?;
                }
                "Sockstat" => {
                    let line = |(name, value): &(&str, u64)| {
                        let (group, name) = name.split_once('.').unwrap_or((name, ""));
                        format!("{group}: {name} {value}")
                    };
                    self.file("proc/net/sockstat", &entries.iter().map(line).collect::<Vec<_>>().join("\n"))?;
                }
                "Vmstat" => {
                    let lines: Vec<String> =
                        entries.iter().map(|(name, value)| format!("{name} {value}")).collect();
                    self.file("proc/vmstat", &lines.join("\n"))?;
                }
                "Conntrack" | "Arp" | "Ndisc" => {
                    let file = match *group {
                        "Conntrack" => "nf_conntrack",
                        "Arp" => "arp_cache",
                        _ => "ndisc_cache",
                    };
                    // The first column of a group is its number of entries. A group without this column
                    // has no entries.
                    let (mut names, mut values): (Vec<&str>, Vec<u64>) =
                        entries.iter().filter(|(name, _)| *name != "entries").copied().unzip();
                    names.insert(0, "entries");
                    values.insert(0, facts.counter(&format!("{group}.entries")));
                    let row = |values: &[u64]| {
                        values.iter().map(|value| format!("{value:x}")).collect::<Vec<_>>().join(" ")
                    };
                    // The first processor has all counts; the other processors have 0, except in `entries`.
                    let mut others = vec![0; values.len()];
                    others[0] = values[0];
                    let rows = facts.processors.len().max(1) - 1;
                    let lines = [names.join(" "), row(&values)].into_iter();
                    let lines: Vec<String> = lines.chain(vec![row(&others); rows]).collect();
                    let text = lines.join("\n");
                    self.file(&format!("proc/net/stat/{file}"), &text)?;
                }
                _ => {
                    let file = if group.ends_with("Ext") { &mut netstat } else { &mut snmp };
                    let _ = writeln!(
                        file,
                        "{group}: {}\n{group}: {}",
                        names.join(" "),
                        words(|value| value.to_string())
                    );
                }
            }
        }
        self.file("proc/net/netstat", &netstat)?;
        self.file("proc/net/snmp", &snmp)?;
        let line = |line: &evenkeel_model::host::Softnet| {
            format!(
                "{:08x} {:08x} {:08x} 00000000 00000000 00000000 00000000 00000000 00000000 {:08x} {:08x} 00000000 {:08x}",
                line.processed, line.dropped, line.squeezed, line.steered, line.flow_limited, line.processor
            )
        };
        self.file("proc/net/softnet_stat", &facts.softnet.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    fn interrupts(&self, facts: &HostFacts) -> io::Result<()> {
        let numbers: Vec<u32> = facts.processors.iter().map(|processor| processor.number).collect();
        let mut text = String::from("     ");
        for number in &numbers {
            let _ = write!(text, " CPU{number}");
        }
        text.push('\n');
        for interrupt in &facts.interrupts {
            let served: BTreeMap<u32, u64> = interrupt.served.iter().copied().collect();
            let _ = write!(text, "{:>4}:", interrupt.number);
            for number in &numbers {
                let _ = write!(text, " {}", served.get(number).copied().unwrap_or(0));
            }
            let chip = if interrupt.chip.is_empty() { super::MSI } else { &interrupt.chip };
            let line = if chip.contains("MSI") {
                format!("{}-edge", interrupt.number.saturating_add(524_288))
            } else {
                format!("{}-fasteoi", interrupt.number)
            };
            let _ = writeln!(text, "  {chip} {line}      {}", interrupt.action);
            let directory = format!("proc/irq/{}", interrupt.number);
            if !interrupt.affinity.is_empty() {
                self.file(&format!("{directory}/smp_affinity_list"), &processor_list(&interrupt.affinity))?;
            }
            if !interrupt.effective.is_empty() {
                self.file(
                    &format!("{directory}/effective_affinity_list"),
                    &processor_list(&interrupt.effective),
                )?;
            }
            // The NIC's list of interrupts (`msi_irqs`) identifies interrupts that their name does not
            // identify.
            if facts
                .interface(&interrupt.interface)
                .is_some_and(|interface| interface.kind == InterfaceKind::Device)
            {
                let directory = format!("sys/class/net/{}/device/msi_irqs", interrupt.interface);
                self.file(&format!("{directory}/{}", interrupt.number), "msix")?;
            }
        }
        self.file("proc/interrupts", &text)
    }

    fn interface(&self, interface: &Interface) -> io::Result<()> {
        let directory = format!("sys/class/net/{}", interface.name);
        let file = |name: &str, text: &str| self.file(&format!("{directory}/{name}"), text);
        if let Some(mtu) = interface.mtu {
            file("mtu", &mtu.to_string())?;
        }
        file("operstate", if interface.up { "up" } else { "down" })?;
        file("carrier", &u8::from(interface.up).to_string())?;
        file("type", if interface.kind == InterfaceKind::Loopback { "772" } else { "1" })?;
        if interface.threaded_napi {
            file("threaded", "1")?;
        }
        let optional = [
            ("ifindex", interface.index.map(u64::from)),
            ("tx_queue_len", interface.tx_queue_len.map(u64::from)),
            ("carrier_changes", interface.carrier_changes),
            ("napi_defer_hard_irqs", interface.napi_defer_hard_irqs),
            ("gro_flush_timeout", interface.gro_flush_timeout_ns),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                file(name, &value.to_string())?;
            }
        }
        let speed = interface.speed_bps.map_or("-1".to_owned(), |speed| (speed / 1_000_000).to_string());
        file("speed", &speed)?;
        file("duplex", interface.duplex.as_deref().unwrap_or("unknown"))?;
        for (name, value) in &interface.statistics {
            file(&format!("statistics/{name}"), &value.to_string())?;
        }
        for name in &interface.lower {
            file(&format!("lower_{name}"), "")?;
        }
        match interface.kind {
            InterfaceKind::Device => self.device(interface, &directory)?,
            InterfaceKind::Bridge => file("bridge/stp_state", "0")?,
            _ => {}
        }
        if let Some(bond) = &interface.bond {
            file("bonding/mode", &format!("{} 4", bond.mode))?;
            file("bonding/xmit_hash_policy", &format!("{} 0", bond.hash_policy))?;
        }
        for (at, queue) in interface.receive_queues.iter().enumerate() {
            file(&format!("queues/rx-{at}/rps_cpus"), &mask(&queue.rps))?;
            file(&format!("queues/rx-{at}/rps_flow_cnt"), &queue.rps_flow_count.to_string())?;
        }
        for (at, queue) in interface.transmit_queues.iter().enumerate() {
            if queue.has_xps {
                file(&format!("queues/tx-{at}/xps_cpus"), &mask(&queue.xps_processors))?;
            }
            file(&format!("queues/tx-{at}/xps_rxqs"), &mask(&queue.xps_receive_queues))?;
            file(&format!("queues/tx-{at}/tx_timeout"), &queue.timeouts.to_string())?;
            file(&format!("queues/tx-{at}/tx_maxrate"), &queue.max_rate_mbps.to_string())?;
            for (name, value) in [("limit", queue.bql_limit), ("limit_max", queue.bql_limit_max)] {
                if let Some(value) = value {
                    file(&format!("queues/tx-{at}/byte_queue_limits/{name}"), &value.to_string())?;
                }
            }
        }
        let rss = interface.rss.as_ref().map(|rss| RssAnswers {
            indirection: rss.indirection.clone(),
            key: rss.key.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"),
            function: rss.function.clone(),
            hash_fields: rss
                .hash_fields
                .iter()
                .filter_map(|(flow, fields)| {
                    Some((flow.clone(), Some(HashFields::try_from(fields.clone()).ok()?)))
                })
                .collect(),
        });
        let answers = DeviceAnswers {
            driver: interface.driver.clone(),
            bus: interface.bus.clone(),
            firmware: interface.firmware.clone(),
            max_read_request: interface.max_read_request,
            supported_mbps: interface.supported_bps.map(|speed| speed / 1_000_000),
            channels: interface.channels,
            rings: interface.rings,
            coalescing: interface.coalescing,
            pause: interface.pause,
            features: interface
                .features
                .iter()
                .map(|(name, feature)| (name.clone(), FeatureText(*feature)))
                .collect(),
            private_flags: interface.private_flags.clone(),
            rss,
            statistics: interface.driver_statistics.clone(),
            failed: BTreeMap::new(),
        };
        if answers == DeviceAnswers::default() && interface.kind != InterfaceKind::Device {
            Ok(())
        } else {
            self.answers(&format!("ethtool/{}.json", interface.name), &answers)
        }
    }

    fn device(&self, interface: &Interface, directory: &str) -> io::Result<()> {
        let file = |name: &str, text: &str| self.file(&format!("{directory}/device/{name}"), text);
        file("uevent", &format!("DRIVER={}", interface.driver.as_deref().unwrap_or_default()))?;
        file("numa_node", &interface.node.map_or("-1".to_owned(), |node| node.to_string()))?;
        if let Some(kind) = &interface.iommu {
            file("iommu_group/type", kind)?;
        }
        let Some(link) = interface.pcie else { return Ok(()) };
        let speed = |speed: f64| format!("{speed:.1} GT/s PCIe");
        file("current_link_speed", &speed(link.speed_gts))?;
        file("current_link_width", &link.width.to_string())?;
        if let (Some(speed_gts), Some(width)) = (link.max_speed_gts, link.max_width) {
            file("max_link_speed", &speed(speed_gts))?;
            file("max_link_width", &width.to_string())?;
        }
        Ok(())
    }

    fn sockets(&self, facts: &HostFacts) -> io::Result<()> {
        let is_datagram = |socket: &&SocketFacts| matches!(socket.kind, SocketKind::Udp | SocketKind::Raw);
        let tcp: Vec<&SocketFacts> = facts.sockets.iter().filter(|socket| !is_datagram(socket)).collect();
        self.answers("sockets.json", &tcp)?;
        const HEADER: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref \
                              pointer drops\n";
        let (mut udp, mut raw) = (HEADER.to_owned(), HEADER.to_owned());
        let mut owners: BTreeMap<u32, u32> = BTreeMap::new();
        for (at, socket) in (1_u32..).zip(facts.sockets.iter().filter(is_datagram)) {
            let text = if socket.kind == SocketKind::Raw { &mut raw } else { &mut udp };
            let inode = 20_000 + at;
            owners.extend(socket.process.map(|process| (inode, process)));
            let remote = if socket.remote.is_empty() { "0.0.0.0:0" } else { &socket.remote };
            let _ = writeln!(
                text,
                "{at:>5}: {} {} 07 {:08X}:{:08X} 00:00000000 00000000     0        0 {inode} 2 0000000000000000 {}",
                hexadecimal(&socket.local)?,
                hexadecimal(remote)?,
                socket.send_queue,
                socket.receive_queue,
                socket.drops
            );
        }
        self.file("proc/net/udp", &udp)?;
        self.file("proc/net/raw", &raw)?;
        self.answers("owners.json", &owners)
    }

    fn process(&self, process: &ProcessFacts) -> io::Result<()> {
        let directory = format!("proc/{}", process.number);
        self.file(&format!("{directory}/comm"), &process.name)?;
        // The processor is field 39, the 37th field after the name.
        let mut fields = vec!["S".to_owned()];
        fields.extend((0..35).map(|_| "0".to_owned()));
        fields.push(process.processor.map_or("-1".to_owned(), |processor| processor.to_string()));
        self.file(
            &format!("{directory}/stat"),
            &format!("{} ({}) {}", process.number, process.name, fields.join(" ")),
        )?;
        if !process.allowed.is_empty() || !process.memory_nodes.is_empty() {
            let mut text = format!("Name:\t{}", process.name);
            for (name, list) in [("Cpus", &process.allowed), ("Mems", &process.memory_nodes)] {
                if !list.is_empty() {
                    let _ = write!(text, "\n{name}_allowed_list:\t{}", processor_list(list));
                }
            }
            self.file(&format!("{directory}/status"), &text)?;
        }
        let arguments: String = process.arguments.iter().map(|word| format!("\0{word}")).collect();
        self.file(&format!("{directory}/cmdline"), &format!("{}{arguments}", process.name))
    }
}

fn hexadecimal(end: &str) -> io::Result<String> {
    match end.parse() {
        Ok(SocketAddr::V4(end)) => {
            Ok(format!("{:08X}:{:04X}", u32::from_le_bytes(end.ip().octets()), end.port()))
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("'{end}' is not an endpoint of a UDP socket over IPv4"),
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::{HostBuilder, NicOptions};
    use super::*;
    use evenkeel_host::facts::{Tree, read_facts};
    use evenkeel_model::host::{NodeAllocations, PortUse};

    #[test]
    fn what_is_written_is_read_again() {
        let nic = NicOptions {
            name: "ens2f0",
            driver: "mlx5_core",
            bus: "0000:81:00.0",
            node: Some(1),
            speed_mbps: Some(100_000),
            pcie: Some((8.0, 16)),
            queues: (20, 63),
            ring: 8192,
            mtu: 9000,
            action: "mlx5_comp{}@pci:0000:81:00.0",
        };
        let mut facts = HostBuilder::new(2, 20, 2).power("intel_pstate", "performance").nic(&nic).build();
        facts.processes.push(ProcessFacts {
            number: 812,
            name: "irqbalance".to_owned(),
            arguments: vec!["--foreground".to_owned()],
            processor: Some(3),
            allowed: (0..80).collect(),
            memory_nodes: vec![0, 1],
        });
        facts.sockets.push(SocketFacts {
            kind: SocketKind::Udp,
            local: "10.0.0.1:514".to_owned(),
            drops: 5,
            process: Some(812),
            ..SocketFacts::default()
        });
        facts.counters.insert("Conntrack.drop".to_owned(), 300);
        facts.counters.insert("Conntrack.entries".to_owned(), 7);
        facts.counters.insert("Vmstat.compact_stall".to_owned(), 7);
        facts.nodes[1].allocations =
            Some(NodeAllocations { hit: 9, miss: 1, foreign: 2, local: 8, other: 2 });
        facts.sysctls.insert("net/ipv4/conf/ens2f0/rp_filter".to_owned(), "1".to_owned());
        facts.port_use =
            Some(PortUse { local: "10.0.0.1".to_owned(), remote: "10.0.0.9:443".to_owned(), connections: 7 });
        let nic = facts.interfaces.iter_mut().find(|interface| interface.name == "ens2f0").unwrap();
        nic.firmware = Some("16.35.1012 (MT_0000000012)".to_owned());
        nic.max_read_request = Some(4096);
        nic.private_flags.insert("rx_cqe_compress".to_owned(), true);
        (nic.gro_flush_timeout_ns, nic.napi_defer_hard_irqs) = (Some(20_000), Some(2));
        let directory = tempfile::tempdir().unwrap();
        write_tree(&facts, directory.path()).unwrap();
        let mut read = read_facts(&Tree::recorded(directory.path()).unwrap()).unwrap();
        assert_eq!(read.interfaces, facts.interfaces);
        assert_eq!(read.interrupts, facts.interrupts);
        // The facts have only the sysctls that the builder sets.
        let missing = std::mem::take(&mut read.unknown);
        assert!(missing.iter().all(|gap| gap.why.ends_with(" is missing")), "{missing:?}");
        assert_eq!(read, facts);
        assert_eq!(read.interface("ens2f0").unwrap().queue_counters.receive.len(), 20);
    }
}
