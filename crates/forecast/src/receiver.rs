//! Translates the facts of a host into a receiving host of the simulator.

use std::collections::BTreeMap;

use evenkeel_model::host::{HostFacts, Interface, InterfaceKind, Interrupt, SocketFacts, processor_list};
use evenkeel_model::machine::MachineProfile;
use evenkeel_model::scenario::{HostNode, InterruptCores};
use evenkeel_model::text::counted;
use evenkeel_model::units::ByteSize;
use evenkeel_placement::View;
use evenkeel_placement::rules::running_balancer;
use evenkeel_placement::view::{Direction, gigabits, milliseconds};
use evenkeel_sim::random::{Component, Generator};
use evenkeel_sim::segment::mss_of;
use evenkeel_sim::tcp::{CongestionControl, Profile};
use evenkeel_sim::time::{MICROSECOND, Span};
use evenkeel_sim::transfers::machine::Machine;
use evenkeel_sim::transfers::settings::{ReceiverCores, Settings};

use crate::topology::Topology;

/// Maximum numbers of simulated cores and receive queues; they limit the time of a run.
const MOST_CORES: u32 = 256;
const MOST_QUEUES: usize = 256;
/// Maximum number of simulated connections; limits the time of a run.
const MOST_FLOWS: usize = 16;
/// Number of connections if no connection of the host received much. In *TCP at 100 Gbit/s*, this
/// number filled 100 Gbit/s.
const FLOWS: usize = 3;
/// Ranges of the simulated link speeds and round trips, bit/s and µs.
const LEAST_BPS: u64 = 100_000_000;
const MOST_BPS: u64 = 400_000_000_000;
const LEAST_RTT_US: u64 = 5;
const MOST_RTT_US: u64 = 100_000;
/// Values for settings that the host does not show: the MTU of Ethernet, a common ring size, and the default
/// maximum of `tcp_rmem`, bytes.
const MTU: u32 = 1500;
const RING: u32 = 1024;
const RECEIVE_BUFFER: u64 = 6_291_456;
/// Send buffer of an unlimited sender, bytes: the Linux maximum.
const SEND_BUFFER: u64 = (1 << 31) - 1;

/// A receiving host and its traffic, as the simulator runs them.
#[derive(Clone, Debug, PartialEq)]
pub struct Receiver {
    machine: Machine,
    /// The profile of the machine's costs, if some of them were measured: each seed draws them from their
    /// intervals.
    measured: Option<Box<MachineProfile>>,
    performance: bool,
    cores: ReceiverCores,
    flows: u32,
    pub speed_bps: u64,
    round_trip_us: u64,
    mtu: u32,
    ring: u32,
    merges: bool,
    receive_buffer: u64,
}

/// A receiver, and the assumptions that replace facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Modelled {
    pub interface: String,
    pub receiver: Receiver,
    /// One sentence about the traffic.
    pub traffic: String,
    /// The assumptions that `traffic` does not state.
    pub assumptions: Vec<String>,
}

/// Returns the NIC for the simulated traffic: the first of these names that is a NIC, otherwise the
/// fastest NIC that is up.
#[must_use]
pub fn nic_of<'f>(facts: &'f HostFacts, names: &[Option<&str>]) -> Option<&'f Interface> {
    let is_nic = |nic: &&Interface| nic.kind == InterfaceKind::Device;
    let named = names.iter().flatten().filter_map(|name| facts.interface(name)).find(is_nic);
    let all = || facts.interfaces.iter().filter(is_nic).filter(|nic| nic.up);
    named.or_else(|| all().max_by_key(|nic| (nic.speed_bps, std::cmp::Reverse(&nic.name))))
}

impl Modelled {
    /// Translates a host with the traffic through one NIC. Without a stated profile, uses the costs of the
    /// nearest built-in profile.
    ///
    /// # Errors
    /// Returns the reason if the model does not support the host or the NIC, or if a required fact is
    /// unknown.
    pub fn of(facts: &HostFacts, nic: &Interface, stated: Option<&MachineProfile>) -> Result<Self, String> {
        let name = &nic.name;
        if facts.virtual_machine {
            return Err("this host is a virtual machine, but the model is of a physical host".to_owned());
        }
        if !nic.up {
            return Err(format!("{name} is down"));
        }
        let speed_bps = nic
            .speed_bps
            .ok_or_else(|| format!("the speed of {name} is unknown: state it with --speed {name}=RATE"))?;
        if !(LEAST_BPS..=MOST_BPS).contains(&speed_bps) {
            let (least, most) = (gigabits(LEAST_BPS as f64), gigabits(MOST_BPS as f64));
            return Err(format!(
                "{name} has {}, but the model supports {least} to {most}",
                gigabits(speed_bps as f64)
            ));
        }
        let topology = Topology::of(facts);
        if !(1..=MOST_CORES).contains(&topology.cores()) {
            return Err(format!(
                "the host has {} cores, but the model supports 1 to {MOST_CORES}",
                topology.cores()
            ));
        }
        let view = View::new(facts);
        let mut assumptions = Vec::new();
        let (queues, indirection) = queues(&view, nic, &topology, &mut assumptions)?;
        let round_trip = view.round_trip(nic);
        if round_trip.us > MOST_RTT_US {
            return Err(format!(
                "the round trip takes {}, but the model supports up to {}",
                milliseconds(round_trip.us),
                milliseconds(MOST_RTT_US)
            ));
        }
        let profile = match stated {
            Some(profile) => profile.clone(),
            None => MachineProfile::nearest(facts.processor_model.as_deref().unwrap_or_default()),
        };
        let machine = machine(facts, nic, &topology, &profile, &mut assumptions);
        let measured = (!profile.measured().is_empty()).then(|| Box::new(profile));
        let applications = Applications::of(&view, nic, &topology, machine.nic_node);
        let readers: Vec<u32> =
            applications.readers.iter().filter_map(|reader| topology.core(*reader)).collect();
        if readers.len() < applications.flows && applications.are_known {
            assumptions.push(format!(
                "the applications of {} run where those of the others run (unknown)",
                counted(applications.flows - readers.len(), "connection")
            ));
        }
        let traffic = format!(
            "{} from an unlimited sender through {name} ({}, round trip {}); {}",
            match applications.flows {
                1 => "one bulk TCP connection receives".to_owned(),
                flows => format!("{flows} bulk TCP connections receive"),
            },
            gigabits(speed_bps as f64),
            round_trip.words(),
            applications.place
        );
        let receiver = Receiver {
            performance: highest_clock(facts, nic, &topology, &mut assumptions),
            cores: ReceiverCores { queues, indirection, readers },
            flows: applications.flows as u32,
            speed_bps,
            round_trip_us: round_trip.us.max(LEAST_RTT_US),
            mtu: known(nic.mtu.filter(|mtu| (68..=65_535).contains(mtu)), MTU, "MTU", &mut assumptions),
            ring: known(
                nic.rings.map(|rings| rings.rx).filter(|ring| *ring > 0),
                RING,
                "descriptors of the receive ring",
                &mut assumptions,
            ),
            merges: merges(nic, &mut assumptions),
            receive_buffer: receive_buffer(facts, &mut assumptions),
            machine,
            measured,
        };
        ignored(facts, nic, &mut assumptions);
        Ok(Self { interface: name.clone(), receiver, traffic, assumptions })
    }
}

impl Receiver {
    /// Returns the settings of the simulator for a seed.
    #[must_use]
    pub fn settings(&self, seed: u64) -> Settings {
        /// Clock of the senders. It is so high that their CPU time never limits the connections.
        const FAST_HZ: f64 = 1e12;
        /// Maximum of the one-way time from the senders: the serialisation time of the largest segment at
        /// 100 Gbit/s. The acknowledgements take the rest of the round trip.
        const FORWARD: Span = 5 * MICROSECOND;
        let profile = Machine::xeon_6128();
        let sender = Machine {
            turbo_hz: FAST_HZ,
            all_cores_hz: FAST_HZ,
            base_hz: FAST_HZ,
            interrupt_delay: profile.interrupt_delay,
            pcie_bps: profile.pcie_bps,
            ..self.machine.clone()
        };
        Settings {
            machine: self.machine(seed),
            sender: Some(sender),
            senders: 1,
            receivers: 1,
            flows: self.flows,
            start_interval: 0,
            ports: vec![self.speed_bps],
            switch: None,
            ecn_threshold: None,
            round_trip: self.round_trip(),
            forward: FORWARD.min(self.round_trip() / 2),
            mss: mss_of(ByteSize::from_bytes(self.mtu.into())),
            descriptors: self.ring,
            segmentation: true,
            aggregation: self.merges,
            pacing: true,
            congestion: vec![CongestionControl::Cubic],
            tcp_series: false,
            profile: Profile::Linux6_18,
            receive_buffer: self.receive_buffer,
            send_buffer: SEND_BUFFER,
            reader_work: 0,
            reader_stall: 0,
            interrupts: InterruptCores::EveryCore,
            interrupt_node: HostNode::Nic,
            application_node: HostNode::Nic,
            receiver_cores: Some(self.cores.clone()),
            performance: self.performance,
        }
    }

    /// Returns the machine for a seed. Each seed draws the measured costs, so that the interval of the effect
    /// includes their uncertainty. Both sides of a comparison draw the same costs.
    fn machine(&self, seed: u64) -> Machine {
        let Some(profile) = &self.measured else { return self.machine.clone() };
        let mut random = Generator::new(seed, Component::MachineCosts);
        let Machine { cycles, copy, miss, .. } = Machine::from(&profile.drawn(|| random.normal()));
        Machine { cycles, copy, miss, ..self.machine.clone() }
    }

    #[must_use]
    pub fn round_trip(&self) -> Span {
        self.round_trip_us * MICROSECOND
    }
}

/// Returns a known value. Otherwise returns the default, and adds it to the assumptions.
fn known<T: Copy + std::fmt::Display>(
    value: Option<T>,
    default: T,
    what: &str,
    assumptions: &mut Vec<String>,
) -> T {
    value.unwrap_or_else(|| {
        assumptions.push(format!("{default} {what} (unknown)"));
        default
    })
}

/// Returns the core of each receive queue, and the queue of each entry of the indirection table.
fn queues(
    view: &View<'_>,
    nic: &Interface,
    topology: &Topology,
    assumptions: &mut Vec<String>,
) -> Result<(Vec<u32>, Vec<u32>), String> {
    let mut cores: BTreeMap<u32, u32> = BTreeMap::new();
    for interrupt in view.receive_interrupts(nic) {
        if let (Some(queue), Some(core)) = (interrupt.queue, core_of(interrupt, topology)) {
            cores.entry(queue).or_insert(core);
        }
    }
    if cores.is_empty() {
        return Err(format!("the processors of the receive interrupts of {} are unknown", nic.name));
    }
    // Use only the order of the interrupts' queue numbers: with some drivers, they do not start at 0.
    let queues = match nic.receive_queue_count() as usize {
        0 => {
            assumptions.push("a receive queue for each interrupt (their number is unknown)".to_owned());
            cores.len()
        }
        queues => queues,
    };
    let cores: Vec<u32> = cores.into_values().take(queues).collect();
    if cores.len() < queues {
        assumptions.push(format!(
            "packets arrive at {} of {queues} receive queues (the processors of the other interrupts are unknown)",
            cores.len()
        ));
    }
    if cores.len() > MOST_QUEUES {
        return Err(format!(
            "{} has {} receive queues, but the model supports up to {MOST_QUEUES}",
            nic.name,
            cores.len()
        ));
    }
    let table = nic.rss.as_ref().map(|rss| rss.indirection.clone()).unwrap_or_default();
    let table: Vec<u32> = table.into_iter().filter(|queue| (*queue as usize) < cores.len()).collect();
    if !table.is_empty() {
        return Ok((cores, table));
    }
    if cores.len() > 1 {
        assumptions.push("RSS spreads flows evenly over the queues (its table is unknown)".to_owned());
    }
    let even = (0..cores.len() as u32).collect();
    Ok((cores, even))
}

/// Returns the core that serves an interrupt. Of the allowed CPUs, it is the core of the CPU that
/// served the interrupt most, otherwise of the first CPU.
fn core_of(interrupt: &Interrupt, topology: &Topology) -> Option<u32> {
    let allowed = interrupt.target();
    let served = interrupt.served.iter().filter(|(processor, _)| allowed.contains(processor));
    let most = served.max_by_key(|(processor, count)| (*count, std::cmp::Reverse(*processor)));
    let processor = most.map(|(processor, _)| *processor).or_else(|| allowed.first().copied())?;
    topology.core(processor)
}

struct Applications {
    flows: usize,
    /// CPUs on which the applications read.
    readers: Vec<u32>,
    /// Whether the readers are those of the host's connections.
    are_known: bool,
    place: String,
}

impl Applications {
    /// Returns the applications of the busiest receiving connections. A pinned process reads on its
    /// CPUs; any other process reads on the CPU where it ran last. If the CPUs of all these applications are
    /// unknown, the first cores of the NIC's package are assumed.
    fn of(view: &View<'_>, nic: &Interface, topology: &Topology, package: u32) -> Self {
        let mut busy: Vec<&SocketFacts> = view.bulk(nic, Direction::Receive);
        busy.sort_by_key(|socket| std::cmp::Reverse(Direction::Receive.bytes(socket)));
        busy.truncate(MOST_FLOWS);
        let mut turns: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
        let (mut readers, mut is_pinned) = (Vec::new(), true);
        for socket in &busy {
            let Some(process) = socket.process.and_then(|number| view.facts.process(number)) else {
                continue;
            };
            let online = |processor: &u32| topology.core(*processor).is_some();
            let pinned = view
                .pinned(process.number)
                .map(|allowed| allowed.into_iter().filter(online).collect::<Vec<u32>>());
            let allowed = match pinned {
                Some(allowed) if !allowed.is_empty() => allowed,
                _ => {
                    let Some(last) = process.processor.filter(online) else { continue };
                    is_pinned = false;
                    vec![last]
                }
            };
            let turn = turns.entry(allowed.clone()).or_insert(0);
            readers.extend(allowed.get(*turn % allowed.len()));
            *turn += 1;
        }
        let flows = if busy.is_empty() { FLOWS } else { busy.len() };
        if !readers.is_empty() {
            let list = processor_list(&readers);
            let how = if is_pinned { "as they are pinned" } else { "as they are pinned, or ran last" };
            return Self {
                flows,
                readers,
                are_known: true,
                place: format!("their applications run on processors {list}, {how}"),
            };
        }
        let first = package * topology.cores_per_package;
        let cores = (first..first + topology.cores_per_package).take(flows);
        let readers: Vec<u32> = cores.filter_map(|core| topology.processor(core)).collect();
        let place = format!(
            "their applications are assumed on processors {}, the first cores of the NIC's package",
            processor_list(&readers)
        );
        Self { flows, readers, are_known: false, place }
    }
}

/// Returns the machine: the host's cores, slot and moderation with the costs of a profile. The clock is the
/// profile's if it was measured. Otherwise it is the nominal clock in the processor's name, or the profile's
/// if the name has none.
fn machine(
    facts: &HostFacts,
    nic: &Interface,
    topology: &Topology,
    stated: &MachineProfile,
    assumptions: &mut Vec<String>,
) -> Machine {
    let profile = Machine::from(stated);
    let measured = stated.measured();
    let has_packets = measured.iter().any(|(figure, _)| figure.contains("packet"));
    let packets =
        if has_packets { "as measured over veth, without the driver of a NIC" } else { "not measured" };
    let from = match &stated.based_on {
        Some(name) if !measured.is_empty() => format!(
            " ({} measured, the others of {name}; packets {packets})",
            counted(measured.len(), "figure")
        ),
        _ => String::new(),
    };
    assumptions.push(format!("cycles, caches and interconnect of the profile {}{from}", profile.name));
    let named = nominal_hz(facts.processor_model.as_deref().unwrap_or_default());
    let nominal = if stated.turbo_hz.measured.is_some() { Some(profile.base_hz) } else { named };
    let hz = nominal.unwrap_or(profile.base_hz);
    if nominal.is_none() {
        assumptions
            .push(format!("clock of {:.1} GHz (the processor's name has none from 0.5 to 10 GHz)", hz / 1e9));
    }
    let unknown = facts.unknown.iter().find(|gap| gap.concerns("/sys/devices/system/cpu/cpu*/topology"));
    assumptions.extend(
        unknown
            .map(|gap| format!("a core of its own for each processor whose core is unknown ({})", gap.why)),
    );
    let nic_node = nic.node.and_then(|node| topology.package(node));
    if nic_node.is_none() && topology.packages > 1 {
        assumptions.push(format!(
            "{} is attached to the first processor package (its NUMA node is unknown)",
            nic.name
        ));
    }
    let delay =
        nic.coalescing.filter(|coalescing| !coalescing.adaptive_rx).map(|coalescing| coalescing.rx_usecs);
    if delay.is_none() {
        assumptions.push(format!(
            "interrupts after {} µs (adaptive or unknown)",
            profile.interrupt_delay / MICROSECOND
        ));
    }
    let slot = nic.pcie.map(|link| link.current_bps()).filter(|bps| *bps > 0.0);
    if slot.is_none() {
        assumptions.push(format!("PCIe with {} (unknown)", gigabits(profile.pcie_bps)));
    }
    let is_same = |clock: f64| hz * clock / profile.base_hz;
    Machine {
        nodes: topology.packages,
        cores_per_node: topology.cores_per_package,
        turbo_hz: is_same(profile.turbo_hz),
        all_cores_hz: is_same(profile.all_cores_hz),
        base_hz: hz,
        pcie_bps: slot.unwrap_or(profile.pcie_bps),
        interrupt_delay: delay.map_or(profile.interrupt_delay, |us| Span::from(us.min(10_000)) * MICROSECOND),
        nic_node: nic_node.unwrap_or(0),
        ..profile
    }
}

/// Returns the nominal clock in the name of an Intel CPU, such as `Xeon(R) Gold 6128 CPU @ 3.40GHz`.
fn nominal_hz(model: &str) -> Option<f64> {
    let (_, clock) = model.rsplit_once("@ ")?;
    let ghz: f64 = clock.trim().strip_suffix("GHz")?.parse().ok()?;
    (0.5..10.0).contains(&ghz).then_some(ghz * 1e9)
}

/// Returns whether the cores of the NIC's package keep their highest clock.
fn highest_clock(
    facts: &HostFacts,
    nic: &Interface,
    topology: &Topology,
    assumptions: &mut Vec<String>,
) -> bool {
    let package = nic.node.and_then(|node| topology.package(node)).unwrap_or(0);
    let is_near = |number: u32| {
        topology.core(number).is_some_and(|core| core / topology.cores_per_package.max(1) == package)
    };
    let near = || facts.processors.iter().filter(|processor| is_near(processor.number));
    let processors = near().count();
    let governors: Vec<_> = near()
        .filter_map(|processor| {
            let governor = processor.governor.as_deref()?;
            Some(governor == "performance" || processor.energy_preference.as_deref() == Some("performance"))
        })
        .collect();
    if governors.is_empty() {
        assumptions.push("highest clock (no governor is recorded)".to_owned());
    } else if governors.len() < processors {
        assumptions.push(format!(
            "the clock does not depend on the governors of {} (unknown)",
            counted(processors - governors.len(), "processor")
        ));
    }
    governors.iter().all(|highest| *highest)
}

/// Returns whether GRO or the NIC merges packets.
fn merges(nic: &Interface, assumptions: &mut Vec<String>) -> bool {
    if nic.features.is_empty() {
        assumptions.push("GRO on (unknown)".to_owned());
        return true;
    }
    nic.feature("rx-gro").is_some_and(|feature| feature.on) || nic.merges_itself().is_some()
}

/// Returns the limit of a receive buffer, bytes. Without autotuning, it is the default size. Without window
/// scaling, it is at most twice the largest 16-bit window, because the window is half of the buffer.
fn receive_buffer(facts: &HostFacts, assumptions: &mut Vec<String>) -> u64 {
    const UNSCALED: u64 = 2 * 65_535;
    let mut is_off = |sysctl: &str, what: &str| match facts.sysctl_number(sysctl) {
        Some(value) => value == 0,
        None => {
            assumptions.push(format!("{what} on (unknown)"));
            false
        }
    };
    let field = if is_off("net/ipv4/tcp_moderate_rcvbuf", "tcp_moderate_rcvbuf") { 1 } else { 2 };
    let most = if is_off("net/ipv4/tcp_window_scaling", "window scaling") { UNSCALED } else { u64::MAX };
    let limit = facts.sysctl_field("net/ipv4/tcp_rmem", field).filter(|bytes| (1..1 << 31).contains(bytes));
    known(limit, RECEIVE_BUFFER.min(most), "bytes in tcp_rmem", assumptions).min(most)
}

/// Adds the host's features that the model ignores to the assumptions.
fn ignored(facts: &HostFacts, nic: &Interface, assumptions: &mut Vec<String>) {
    if facts.processors.iter().any(|processor| processor.siblings.len() > 1) {
        assumptions.push("the threads of a core count as one".to_owned());
    }
    if running_balancer(facts).is_some() {
        assumptions.push("interrupts stay where they are (irqbalance may move them)".to_owned());
    }
    match facts.sysctl_number("net/ipv4/tcp_sack") {
        Some(0) => assumptions.push("selective acknowledgements (off on this host)".to_owned()),
        Some(_) => {}
        None => assumptions.push("selective acknowledgements on (unknown)".to_owned()),
    }
    if nic.receive_queues.is_empty() {
        assumptions.push("no RPS (unknown)".to_owned());
    } else if nic.receive_queues.iter().any(|queue| !queue.rps.is_empty()) {
        assumptions.push("no RPS (the model has none)".to_owned());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_model::host::{
        Coalescing, Feature, PcieLink, ProcessFacts, Processor, Rings, Rss, SocketKind, TcpFacts, Unknown,
    };
    use evenkeel_model::machine::Measured;

    use super::*;

    /// Returns a host with two packages of four cores, and a NIC with two queues in the second package.
    fn host() -> HostFacts {
        let processor = |number| Processor {
            number,
            node: number / 4,
            package: number / 4,
            core: number % 4,
            governor: Some("performance".to_owned()),
            ..Processor::default()
        };
        let interrupt = |queue| Interrupt {
            number: 40 + queue,
            interface: "eth0".to_owned(),
            queue: Some(queue),
            receives: true,
            affinity: vec![4 + queue],
            ..Interrupt::default()
        };
        let nic = Interface {
            name: "eth0".to_owned(),
            kind: InterfaceKind::Device,
            up: true,
            node: Some(1),
            speed_bps: Some(10_000_000_000),
            coalescing: Some(Coalescing { rx_usecs: 20, ..Coalescing::default() }),
            features: [("rx-gro".to_owned(), Feature { on: false, fixed: false })].into(),
            rss: Some(Rss { indirection: vec![1, 0, 9, 1], ..Rss::default() }),
            receive_queues: vec![Default::default(); 2],
            ..Interface::default()
        };
        HostFacts {
            processor_model: Some("Intel(R) Xeon(R) CPU E5-2640 v4 @ 2.40GHz".to_owned()),
            processors: (0..8).map(processor).collect(),
            interrupts: vec![interrupt(0), interrupt(1)],
            interfaces: vec![nic],
            sysctls: [("net/ipv4/tcp_rmem".to_owned(), "4096 131072 1048576".to_owned())].into(),
            ..HostFacts::default()
        }
    }

    fn modelled(facts: &HostFacts) -> Modelled {
        Modelled::of(facts, nic_of(facts, &[None]).unwrap(), None).unwrap()
    }

    #[test]
    fn facts_become_settings_and_the_rest_assumptions() {
        let found = modelled(&host());
        let receiver = &found.receiver;
        assert_eq!((receiver.machine.name.as_str(), receiver.machine.base_hz), ("kit-2014", 2.4e9));
        assert_eq!((receiver.machine.nodes, receiver.machine.cores_per_node), (2, 4));
        assert_eq!((receiver.machine.nic_node, receiver.machine.interrupt_delay), (1, 20 * MICROSECOND));
        assert_eq!((receiver.receive_buffer, receiver.merges, receiver.performance), (1 << 20, false, true));
        // The table names a queue that does not exist. The host shows no application, so the first
        // cores are assumed.
        let cores = ReceiverCores { queues: vec![4, 5], indirection: vec![1, 0, 1], readers: vec![4, 5, 6] };
        assert_eq!((&receiver.cores, receiver.flows), (&cores, 3));
        assert!(found.traffic.contains("assumed on processors 4-6"), "{}", found.traffic);
        for assumed in ["kit-2014", "1500 MTU", "1024 descriptors"] {
            assert!(found.assumptions.iter().any(|line| line.contains(assumed)), "{:?}", found.assumptions);
        }
        let gap = Unknown::new("/sys/devices/system/cpu/cpu3/topology/core_id", "core_id is missing");
        let found = modelled(&HostFacts { unknown: vec![gap], ..host() });
        let assumed = "a core of its own for each processor whose core is unknown (core_id is missing)";
        assert!(found.assumptions.iter().any(|line| line == assumed), "{:?}", found.assumptions);
    }

    /// Each case removes a fact from a host with all facts, and gives the assumption that replaces the fact.
    #[test]
    fn each_default_is_named() {
        let mut whole = host();
        for name in ["tcp_moderate_rcvbuf", "tcp_window_scaling", "tcp_sack"] {
            whole.sysctls.insert(format!("net/ipv4/{name}"), "1".to_owned());
        }
        let nic = &mut whole.interfaces[0];
        (nic.mtu, nic.rings) = (Some(9000), Some(Rings { rx: 512, ..Rings::default() }));
        nic.pcie = Some(PcieLink { speed_gts: 8.0, width: 8, max_speed_gts: None, max_width: None });
        let named = modelled(&whole).assumptions;
        assert_eq!(named, ["cycles, caches and interconnect of the profile kit-2014"]);
        type Removal = fn(&mut HostFacts);
        let cases: &[(Removal, &str)] = &[
            (|facts| facts.interfaces[0].pcie = None, "PCIe with"),
            (|facts| facts.interfaces[0].rss = None, "RSS spreads flows evenly"),
            (|facts| facts.interfaces[0].mtu = None, "1500 MTU"),
            (|facts| facts.interfaces[0].rings = None, "1024 descriptors"),
            (|facts| facts.interfaces[0].coalescing = None, "interrupts after"),
            (|facts| facts.interfaces[0].features.clear(), "GRO on"),
            (|facts| facts.interfaces[0].receive_queues.clear(), "a receive queue for each interrupt"),
            (|facts| facts.interfaces[0].receive_queues.clear(), "no RPS"),
            (|facts| facts.interrupts[1].affinity.clear(), "packets arrive at 1 of 2 receive queues"),
            (|facts| facts.processors[5].governor = None, "the governors of 1 processor"),
            (|facts| _ = facts.sysctls.remove("net/ipv4/tcp_moderate_rcvbuf"), "tcp_moderate_rcvbuf on"),
            (|facts| _ = facts.sysctls.remove("net/ipv4/tcp_window_scaling"), "window scaling on"),
            (|facts| _ = facts.sysctls.remove("net/ipv4/tcp_rmem"), "bytes in tcp_rmem"),
            (|facts| _ = facts.sysctls.remove("net/ipv4/tcp_sack"), "selective acknowledgements on"),
        ];
        for (remove, words) in cases {
            let mut facts = whole.clone();
            remove(&mut facts);
            let found = modelled(&facts).assumptions;
            assert!(found.iter().any(|line| line.contains(words)), "{words}: {found:?}");
        }
    }

    #[test]
    fn settings_that_limit_the_receiver_are_known() {
        let changed = |change: fn(&mut HostFacts)| {
            let mut facts = host();
            change(&mut facts);
            modelled(&facts).receiver
        };
        let fixed = changed(|facts| {
            facts.sysctls.insert("net/ipv4/tcp_moderate_rcvbuf".to_owned(), "0".to_owned());
        });
        assert_eq!(fixed.receive_buffer, 131_072);
        let unscaled = changed(|facts| {
            facts.sysctls.insert("net/ipv4/tcp_window_scaling".to_owned(), "0".to_owned());
        });
        assert_eq!(unscaled.receive_buffer, 131_070);
        let slow = changed(|facts| facts.processors[5].governor = Some("powersave".to_owned()));
        assert!(!slow.performance);
        let elsewhere = changed(|facts| facts.processors[0].governor = Some("powersave".to_owned()));
        assert!(elsewhere.performance);
        let merged = changed(|facts| {
            let lro = Feature { on: true, fixed: false };
            facts.interfaces[0].features.insert("rx-lro".to_owned(), lro);
        });
        assert!(merged.merges);
    }

    /// Each seed draws measured costs, and the measured clock replaces that of the processor's name.
    #[test]
    fn a_measured_profile_has_other_costs_for_each_seed() {
        let facts = host();
        let nic = nic_of(&facts, &[None]).unwrap();
        let mut profile = MachineProfile { name: "mine".to_owned(), ..MachineProfile::xeon_6128() };
        let of = |profile: &MachineProfile| Modelled::of(&facts, nic, Some(profile)).unwrap();
        let stated = of(&profile);
        assert_eq!(
            (stated.receiver.machine.base_hz, stated.receiver.settings(1).machine.name.as_str()),
            (2.4e9, "mine")
        );
        assert_eq!(stated.receiver.settings(1).machine, stated.receiver.settings(2).machine);
        profile.based_on = Some("xeon-6128".to_owned());
        profile.copy.local.measured = Some(Measured { low: 0.3, high: 0.45, n: 9 });
        profile.turbo_hz.measured = Some(Measured { low: 3.3e9, high: 3.5e9, n: 9 });
        let found = of(&profile);
        let receiver = &found.receiver;
        assert_eq!(receiver.machine.base_hz, 3.4e9);
        let words = "mine (2 figures measured, the others of xeon-6128; packets not measured)";
        assert!(found.assumptions[0].contains(words), "{:?}", found.assumptions);
        let local = |seed| receiver.settings(seed).machine.copy.local;
        assert_eq!(local(1), local(1));
        assert_ne!(local(1), local(2));
        let mean = (1..=1000).map(|seed| local(seed).ln()).sum::<f64>() / 1000.0;
        assert!((mean.exp() / 0.379 - 1.0).abs() < 0.02, "{mean}");
    }

    /// A pinned process reads on its CPUs round robin; any other process reads where it ran last.
    #[test]
    fn applications_read_where_the_facts_place_them() {
        let mut facts = host();
        for (number, allowed) in [(7, vec![2, 3]), (8, (0..8).collect())] {
            let process = ProcessFacts { number, allowed, processor: Some(6), ..ProcessFacts::default() };
            facts.processes.push(process);
        }
        for (at, process) in [7, 7, 7, 8].into_iter().enumerate() {
            facts.sockets.push(SocketFacts {
                kind: SocketKind::Tcp,
                local: "10.0.0.1:1".to_owned(),
                process: Some(process),
                tcp: Some(TcpFacts {
                    min_rtt_us: 100,
                    bytes_received: 1_000_000_000 - at as u64,
                    ..TcpFacts::default()
                }),
                ..SocketFacts::default()
            });
        }
        let found = modelled(&facts);
        assert_eq!(found.receiver.cores.readers, [2, 3, 2, 6]);
        assert_eq!((found.receiver.flows, found.receiver.round_trip_us), (4, 100));
        assert!(found.traffic.contains("as they are pinned, or ran last"), "{}", found.traffic);
    }

    #[test]
    fn other_hosts_are_refused_with_a_reason() {
        let refused = |change: fn(&mut HostFacts)| {
            let mut facts = host();
            change(&mut facts);
            Modelled::of(&facts, &facts.interfaces[0], None).unwrap_err()
        };
        assert!(refused(|facts| facts.virtual_machine = true).contains("virtual machine"));
        assert_eq!(refused(|facts| facts.interfaces[0].up = false), "eth0 is down");
        assert!(refused(|facts| facts.interfaces[0].speed_bps = None).contains("--speed eth0="));
        assert!(refused(|facts| facts.interrupts.clear()).contains("receive interrupts of eth0"));
        assert!(refused(|facts| facts.processors.clear()).contains("0 cores"));
    }

    #[test]
    fn the_nominal_clock_is_in_the_name() {
        assert_eq!(nominal_hz("Intel(R) Xeon(R) Gold 6128 CPU @ 3.40GHz"), Some(3.4e9));
        for name in ["AMD EPYC 9554 64-Core Processor", "x @ NaNGHz", "x @ 99GHz", ""] {
            assert_eq!(nominal_hz(name), None, "{name}");
        }
    }
}
