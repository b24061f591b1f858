//! Takes samples of the running host.
//!
//! A sample reads counters: one dump of the interfaces and one of the qdiscs, the TCP sockets of listed flows
//! (without a BPF meter, all TCP sockets), the driver's counters, and some files of `/proc`. The settings of
//! interfaces and interrupts and the addresses are read again every ten seconds, or when an interface
//! appears.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_apply::{
    InterfaceIdentity, JournalError, StateDirectory, check_unmanaged, check_unsteered, run_on, tuner_of,
};
use evenkeel_datapath::Tuple;
use evenkeel_fair::{FlowReading, WatchedFlow, endpoints, waits_by_queue};
use evenkeel_host::facts::{Counters, Tree, read_counters, read_devices};
use evenkeel_host::{CpuTimes, Host};
use evenkeel_model::host::{HostFacts, Interface as Facts, InterfaceKind, Interrupt, Softnet};
use evenkeel_model::text::counted;
use evenkeel_netlink::{AddressOwner, LocalAddresses};
use evenkeel_placement::loss_path::{COUNTERS, Place};
use evenkeel_placement::replaced_qdiscs::replaced_qdiscs;

use crate::error::MonitorError;
use crate::flow_thread::FlowThread;
use crate::loss_totals::LossTotals;
use crate::queues::queues;
use crate::sample::{Flow, Interface, Interval, Management, Processor, SCHEMA, Sample};
use crate::tcp_sockets::{Ends, TcpSocket, TcpSockets, Wanted};

/// Time between two readings of the settings of interfaces and interrupts, and of the addresses.
const DEVICES_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two checks of the sessions that manage the interfaces.
const MANAGEMENT_INTERVAL: Duration = Duration::from_secs(2);
const TCP: u8 = 6;

/// The options of a [`Collector`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of interfaces. If empty, the collector samples all interfaces that are up and that are veths
    /// or have a device.
    pub interfaces: Vec<String>,
    pub listed_flows: usize,
    /// Whether a BPF meter observes flows. Without the meter, flows are TCP sockets without queue and
    /// fairness.
    pub observe: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { interfaces: Vec::new(), listed_flows: 20, observe: true }
    }
}

/// Samples the network namespace in which the collector was opened. Dropping the collector detaches its
/// BPF programs.
pub struct Collector {
    options: Options,
    host: Host,
    tree: Tree,
    devices: HostFacts,
    devices_read: Instant,
    /// The local addresses, or the reason why they are unknown.
    addresses: Result<LocalAddresses, String>,
    /// The sampled interfaces by index, which a rename does not change. The value is the name of the
    /// interface when it was chosen.
    followed: BTreeMap<u32, String>,
    managed: HashMap<u32, Vec<Management>>,
    managed_read: Option<Instant>,
    state: StateDirectory,
    losses: LossTotals,
    flows: Option<FlowThread>,
    sockets: TcpSockets,
    before: Option<Reading>,
    /// Time of the last sample, milliseconds since 1970 UTC.
    at_ms: u64,
}

/// The counters with which the next sample is compared.
struct Reading {
    at: Instant,
    facts: HostFacts,
    times: Option<CpuTimes>,
    /// Run time of the meter by interface, ns.
    bpf_ns: HashMap<u32, u64>,
}

type Sockets = HashMap<Ends, TcpSocket>;

impl Collector {
    /// Prepares to sample the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if a named interface does not exist, `/proc` or `/sys` cannot be read, or a thread
    /// cannot be started. A missing permission is no error: each sample names the data that it lacks.
    pub fn open(options: &Options) -> Result<Self, MonitorError> {
        let tree = Tree::live();
        let devices = read_devices(&tree)?;
        if let Some(name) = options.interfaces.iter().find(|name| devices.interface(name).is_none()) {
            let others = devices.interfaces.iter().map(|interface| interface.name.clone()).collect();
            return Err(MonitorError::NoInterface { name: name.clone(), others });
        }
        let mut collector = Self {
            options: options.clone(),
            host: Host::live(),
            tree,
            devices,
            devices_read: Instant::now(),
            addresses: addresses(),
            followed: BTreeMap::new(),
            managed: HashMap::new(),
            managed_read: None,
            state: StateDirectory::from_environment(),
            losses: LossTotals::default(),
            flows: if options.observe { Some(FlowThread::start()?) } else { None },
            sockets: TcpSockets::default(),
            before: None,
            at_ms: 0,
        };
        // The meters start to count here, so the first window ends one second later.
        let facts = read_counters(&collector.tree, &collector.devices)?.facts;
        collector.choose(&facts);
        Ok(collector)
    }

    /// Takes a sample, for example once per second. Growth counts from the previous sample.
    ///
    /// # Errors
    /// Returns an error if the kernel does not list its interfaces, or `/proc` or `/sys` cannot be read.
    pub fn sample(&mut self) -> Result<Sample, MonitorError> {
        let Counters { mut facts, has_new_interface } = read_counters(&self.tree, &self.devices)?;
        if has_new_interface || self.devices_read.elapsed() >= DEVICES_INTERVAL {
            self.devices = read_devices(&self.tree)?;
            self.devices_read = Instant::now();
            self.addresses = addresses();
            facts = read_counters(&self.tree, &self.devices)?.facts;
        }
        let at = Instant::now();
        let before = self.before.take();
        let elapsed = before.as_ref().map_or(Duration::ZERO, |before| at - before.at);
        let seconds = elapsed.as_secs_f64();
        self.at_ms = next_time(self.at_ms, elapsed, SystemTime::now());
        let mut not_read: BTreeSet<String> = BTreeSet::new();
        let is_counter = |source: &str| COUNTERS.contains(&source) || source.starts_with("/proc/net/");
        let gaps = facts
            .unknown
            .iter()
            .filter(|gap| is_counter(&gap.source) || COUNTERS.iter().any(|counter| gap.concerns(counter)));
        let (mut losses_incomplete, mut unread_places) = (false, BTreeSet::new());
        for gap in gaps {
            not_read.insert(gap.why.clone());
            // The counters of neighbour tables exist in the initial network namespace only.
            if gap.source.starts_with("/proc/net/stat/") {
                unread_places.insert(Place::Network.words().to_owned());
            } else {
                losses_incomplete = true;
            }
        }
        for gap in before.iter().flat_map(|before| replaced_qdiscs(&before.facts, &facts)) {
            not_read.insert(gap.why);
            losses_incomplete = true;
        }
        if let (Some(flows), Some(before)) = (&self.flows, &before) {
            let is_new = |interface: &&Facts| before.facts.same_interface(interface).is_none();
            facts.interfaces.iter().filter(is_new).for_each(|interface| flows.forget(index(interface)));
        }
        let chosen = self.choose(&facts);
        let sampled = |interface: &&Facts| chosen.contains(&index(interface));
        // Read the flows directly after the counters, because the bytes of flows are compared with the
        // bytes of queues.
        let readings: HashMap<u32, FlowReading> = facts
            .interfaces
            .iter()
            .filter(sampled)
            .filter_map(|interface| Some((index(interface), self.read_flows(interface, &mut not_read)?)))
            .collect();
        for name in &self.options.interfaces {
            if !self.followed.values().any(|followed| followed == name) {
                not_read.insert(format!("there is no interface {name} now"));
            }
        }
        self.read_management(&facts, &chosen);
        let is_metered =
            facts.interfaces.iter().filter(sampled).all(|interface| readings.contains_key(&index(interface)));
        let found = match is_metered {
            true => self.sockets.find(&listed_connections(&facts, &readings)),
            // Without a meter, the TCP sockets are the flows.
            false => self.sockets.read(),
        };
        if let (false, Err(why)) = (is_metered, &self.addresses) {
            not_read.insert(why.clone());
        }
        let knows_sockets = found.is_ok();
        let sockets = found.unwrap_or_else(|why| {
            not_read.insert(why);
            HashMap::new()
        });
        if let (false, Ok(addresses)) = (is_metered, &self.addresses) {
            not_read.extend(unassigned(addresses, &sockets));
        }
        let mut bpf_ns = HashMap::new();
        let mut interfaces: Vec<(Interface, Vec<u32>)> = Vec::new();
        for interface in facts.interfaces.iter().filter(sampled) {
            let reading = readings.get(&index(interface));
            let earlier = before.as_ref().and_then(|before| before.facts.same_interface(interface));
            let mut found = self.interface(interface, earlier, reading);
            let inodes = match reading {
                Some(reading) => {
                    let run =
                        before.as_ref().and_then(|before| before.bpf_ns.get(&index(interface)).copied());
                    bpf_ns.insert(index(interface), reading.run_time_ns);
                    found.bpf_ns = self.measures_bpf().then(|| Interval::since(run, reading.run_time_ns));
                    self.metered(&mut found, reading, &sockets)
                }
                None => self.unmetered(&mut found, index(interface), knows_sockets.then_some(&sockets)),
            };
            interfaces.push((found, inodes));
        }
        self.name_owners(&mut interfaces, &sockets, &mut not_read);
        let times = self
            .host
            .cpu_times()
            .inspect_err(|error| {
                not_read.insert(error.to_string());
            })
            .ok();
        let losses = match &before {
            Some(before) => self.losses.add(&before.facts, &facts),
            None => Vec::new(),
        };
        let processors = processors(&facts, times.as_ref(), before.as_ref(), at);
        self.before = Some(Reading { at, facts, times, bpf_ns });
        Ok(Sample {
            schema: SCHEMA,
            at_ms: self.at_ms,
            seconds,
            interfaces: interfaces.into_iter().map(|(interface, _)| interface).collect(),
            processors,
            losses,
            losses_incomplete,
            unread_places: unread_places.into_iter().collect(),
            not_read: not_read.into_iter().collect(),
        })
    }

    /// Returns the indexes of the sampled interfaces, and observes their flows.
    fn choose(&mut self, facts: &HostFacts) -> Vec<u32> {
        let names = &self.options.interfaces;
        if names.is_empty() {
            let is_real = |interface: &&Facts| {
                interface.up && matches!(interface.kind, InterfaceKind::Device | InterfaceKind::Veth)
            };
            let with_name = |interface: &Facts| (index(interface), interface.name.clone());
            self.followed = facts.interfaces.iter().filter(is_real).map(with_name).collect();
        } else {
            for interface in facts.interfaces.iter().filter(|interface| names.contains(&interface.name)) {
                self.followed.entry(index(interface)).or_insert_with(|| interface.name.clone());
            }
            self.followed.retain(|index, _| facts.interfaces.iter().any(|other| other.index == Some(*index)));
        }
        let chosen: Vec<u32> = self.followed.keys().copied().collect();
        if let Some(flows) = &self.flows {
            flows.want(&chosen);
        }
        chosen
    }

    fn read_flows(&self, interface: &Facts, not_read: &mut BTreeSet<String>) -> Option<FlowReading> {
        const WITHOUT: &str = "flows are TCP sockets only, without queues and fairness";
        let name = &interface.name;
        let Some(flows) = &self.flows else {
            not_read.insert(format!("{WITHOUT}: the observation of flows is off"));
            return None;
        };
        match flows.read(index(interface), self.options.listed_flows) {
            Ok(reading) => {
                if reading.incomplete {
                    not_read.insert(format!("{name} has more flows than the meter can count"));
                }
                Some(reading)
            }
            Err(why) => {
                not_read.insert(format!("{WITHOUT}: {why}"));
                None
            }
        }
    }

    fn measures_bpf(&self) -> bool {
        self.host.read("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text == "1")
    }

    fn read_management(&mut self, facts: &HostFacts, chosen: &[u32]) {
        if self.managed_read.is_some_and(|read| read.elapsed() < MANAGEMENT_INTERVAL) {
            return;
        }
        self.managed_read = Some(Instant::now());
        self.managed.clear();
        for interface in facts.interfaces.iter().filter(|interface| chosen.contains(&index(interface))) {
            let Ok(identity) = InterfaceIdentity::current(index(interface), &interface.name) else {
                continue;
            };
            self.managed.insert(index(interface), managements(&self.state, &identity));
        }
    }

    fn interface(&self, facts: &Facts, before: Option<&Facts>, reading: Option<&FlowReading>) -> Interface {
        let counter = |name: &str| {
            let value = |facts: &Facts| facts.statistics.get(name).copied();
            Interval::since(before.and_then(value), value(facts).unwrap_or(0))
        };
        let sessions = self.managed.get(&index(facts)).map(Vec::as_slice).unwrap_or_default();
        Interface {
            name: facts.name.clone(),
            driver: facts.driver.clone(),
            speed_bps: facts.speed_bps,
            up: facts.up,
            root_qdisc: facts.root_qdisc().map(|root| root.kind.clone()),
            sent_bytes: counter("tx_bytes"),
            sent_packets: counter("tx_packets"),
            received_bytes: counter("rx_bytes"),
            received_packets: counter("rx_packets"),
            management: sessions.first().cloned(),
            further: sessions.get(1..).unwrap_or_default().to_vec(),
            queues: queues(facts, before, &self.devices, reading),
            ..Interface::default()
        }
    }

    /// Fills in the flows that the meter counted. Returns the inodes of the listed flows' sockets; 0
    /// for a flow without a socket.
    fn metered(&self, interface: &mut Interface, reading: &FlowReading, sockets: &Sockets) -> Vec<u32> {
        interface.observed = true;
        interface.active_flows = Some(reading.active);
        interface.busy_flows = reading.busy.map(u64::from);
        let is_shared = interface.root_qdisc.as_deref().is_some_and(|root| !waits_by_queue(root));
        interface.colliding_flows = reading.colliding.filter(|_| !is_shared).map(u64::from);
        interface.nfm_1s = reading.nfm_1s;
        interface.nfm_100ms = reading.nfm_100ms;
        interface.jain_1s = reading.jain_1s;
        let mut inodes = Vec::new();
        for flow in &reading.flows {
            let (source, destination, protocol) = endpoints(&flow.tuple);
            let socket = (flow.tuple.protocol == TCP).then(|| sockets.get(&ends(&flow.tuple))).flatten();
            inodes.push(socket.map_or(0, |socket| socket.inode));
            interface.flows.push(Flow {
                protocol,
                source,
                destination,
                queue: flow.queue,
                bytes: Interval { total: flow.total, delta: flow.sent },
                of_fair_share: flow.of_fair_share,
                busy: flow.busy,
                socket: socket.map(|socket| socket.detail(None)),
            });
        }
        inodes
    }

    /// Fills in flows: the interface's TCP sockets whose data was acknowledged since the last sample.
    /// Returns the inodes of the listed flows' sockets.
    fn unmetered(&self, interface: &mut Interface, index: u32, sockets: Option<&Sockets>) -> Vec<u32> {
        let (Ok(addresses), Some(sockets)) = (&self.addresses, sockets) else { return Vec::new() };
        let mut own: Vec<_> = sockets
            .iter()
            .filter(|((local, _), socket)| {
                socket.acknowledged.delta > 0
                    && socket.owner(local, addresses) == AddressOwner::Interface(index)
            })
            .collect();
        own.sort_by_key(|(ends, socket)| (std::cmp::Reverse(socket.acknowledged.delta), **ends));
        interface.active_flows = Some(own.len() as u64);
        own.truncate(self.options.listed_flows);
        let flow = |((local, remote), socket): &(&Ends, &TcpSocket)| Flow {
            protocol: "tcp".to_owned(),
            source: local.to_string(),
            destination: remote.to_string(),
            bytes: socket.acknowledged,
            socket: Some(socket.detail(None)),
            ..Flow::default()
        };
        interface.flows = own.iter().map(flow).collect();
        own.iter().map(|(_, socket)| socket.inode).collect()
    }

    fn name_owners(
        &mut self,
        interfaces: &mut [(Interface, Vec<u32>)],
        sockets: &Sockets,
        not_read: &mut BTreeSet<String>,
    ) {
        if sockets.is_empty() {
            return;
        }
        let listed: HashSet<u32> =
            interfaces.iter().flat_map(|(_, inodes)| inodes).copied().filter(|inode| *inode != 0).collect();
        let owners = self.sockets.owners(&self.host, &listed);
        let mut is_hidden = false;
        for (interface, inodes) in interfaces {
            for (flow, inode) in interface.flows.iter_mut().zip(inodes) {
                let Some(socket) = flow.socket.as_mut() else { continue };
                match owners.get(inode) {
                    Some(Some(owner)) => {
                        socket.process = Some(owner.name.clone());
                        socket.process_id = Some(owner.process);
                    }
                    // A socket with inode 0 has no process: the process has closed it. For another socket,
                    // a process is expected.
                    Some(None) => is_hidden |= *inode != 0,
                    None => {}
                }
            }
        }
        if is_hidden && !is_root() {
            not_read.insert("the processes of other users' sockets are shown to root only".to_owned());
        }
    }
}

/// Returns the time of a sample, ms since 1970. If the clock was set back, returns the time of the previous
/// sample plus the elapsed time.
fn next_time(before_ms: u64, elapsed: Duration, now: SystemTime) -> u64 {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let now = ms(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    if now > before_ms { now } else { before_ms.saturating_add(ms(elapsed).max(1)) }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn index(interface: &Facts) -> u32 {
    interface.index.unwrap_or(0)
}

fn ends(tuple: &Tuple) -> Ends {
    (
        SocketAddr::new(tuple.source, tuple.source_port),
        SocketAddr::new(tuple.destination, tuple.destination_port),
    )
}

fn listed_connections(facts: &HostFacts, readings: &HashMap<u32, FlowReading>) -> Vec<Wanted> {
    let mut found = Vec::new();
    for (interface, reading) in readings {
        let interfaces = with_uppers(facts, *interface);
        let is_tcp = |flow: &&WatchedFlow| flow.tuple.protocol == TCP;
        found.extend(reading.flows.iter().filter(is_tcp).map(|flow| Wanted {
            ends: ends(&flow.tuple),
            interfaces: interfaces.clone(),
            first_sent: (flow.total == flow.sent).then_some(flow.sent),
        }));
    }
    found
}

/// Returns the interfaces to which a socket may be bound that sends over the interface `lowest`. These are
/// `lowest` itself and at most three interfaces above it, such as a bond, a VLAN or a VRF.
fn with_uppers(facts: &HostFacts, lowest: u32) -> Vec<u32> {
    const MOST: usize = 4;
    let mut found = vec![lowest];
    let mut at = 0;
    while let Some(lower) = found.get(at).copied() {
        at += 1;
        let Some(lower) = facts.interfaces.iter().find(|interface| index(interface) == lower) else {
            continue;
        };
        let uppers = facts.interfaces.iter().filter(|upper| upper.lower.contains(&lower.name)).map(index);
        found.extend(uppers.take(MOST.saturating_sub(found.len())));
    }
    found
}

fn addresses() -> Result<LocalAddresses, String> {
    LocalAddresses::read().map_err(|error| format!("cannot read addresses: {error}"))
}

/// Returns a remark if the interface of some TCP sockets that sent data is unknown.
fn unassigned(addresses: &LocalAddresses, sockets: &Sockets) -> Option<String> {
    let is_unassigned = |((local, _), socket): &(&Ends, &TcpSocket)| {
        socket.acknowledged.delta > 0 && socket.owner(local, addresses) == AddressOwner::Several
    };
    let count = sockets.iter().filter(is_unassigned).count();
    (count > 0).then(|| {
        let sockets = counted(count, "TCP socket");
        let verb = if count == 1 { "belongs" } else { "belong" };
        format!("{sockets} {verb} to no interface here: several interfaces have the local address")
    })
}

/// Returns the sessions that manage an interface.
fn managements(state: &StateDirectory, identity: &InterfaceIdentity) -> Vec<Management> {
    let steering = match check_unsteered(identity) {
        Err(JournalError::HeldElsewhere { process, .. }) => Some(process),
        _ => None,
    };
    let of = |command: &str, process| Management { command: command.to_owned(), process };
    let run = run_of(state, identity);
    // A process that sets n-tuple rules and RPS holds the name of a steering session and that of a run.
    let steering = steering.filter(|process| run.as_ref().is_none_or(|run| run.process != *process));
    let others =
        [steering.map(|process| of("steer", process)), tuner_of(identity).map(|process| of("tune", process))];
    run.into_iter().chain(others.into_iter().flatten()).collect()
}

/// Returns the run that changes settings of an interface: the holder of its journal, or of its abstract
/// socket. The command is `session` if the journal cannot be read.
fn run_of(state: &StateDirectory, identity: &InterfaceIdentity) -> Option<Management> {
    let of = |command: &str, process: u32| Some(Management { command: command.to_owned(), process });
    match check_unmanaged(state, identity) {
        Err(JournalError::Busy { holder: Some(holder), .. }) => of(&holder.0.command, holder.1),
        Err(JournalError::HeldElsewhere { process, .. }) => of("session", process),
        // Without root, the journal cannot be read.
        Err(JournalError::Busy { holder: None, .. }) => of("session", run_on(identity)?),
        _ => None,
    }
}

/// Returns the number of interrupts of network interfaces that each processor served. The kernel has a 32-bit
/// counter for each interrupt on each processor (`struct irqstat`, include/linux/irqdesc.h).
fn served(facts: &HostFacts, before: Option<&HostFacts>) -> HashMap<u32, Interval> {
    let earlier: HashMap<u32, &Interrupt> =
        before.iter().flat_map(|before| &before.interrupts).map(|one| (one.number, one)).collect();
    let mut found: HashMap<u32, Interval> = HashMap::new();
    for interrupt in &facts.interrupts {
        for (processor, count) in &interrupt.served {
            let earlier = earlier.get(&interrupt.number).and_then(|earlier| {
                earlier.served.iter().find(|(other, _)| other == processor).map(|(_, count)| *count)
            });
            let grown = Interval::since_32_bits(before.map(|_| earlier.unwrap_or(0)), *count);
            let sum = found.entry(*processor).or_default();
            sum.total = sum.total.saturating_add(grown.total);
            sum.delta = sum.delta.saturating_add(grown.delta);
        }
    }
    found
}

fn processors(
    facts: &HostFacts,
    times: Option<&CpuTimes>,
    before: Option<&Reading>,
    at: Instant,
) -> Vec<Processor> {
    let shares = times.zip(before).and_then(|(times, before)| {
        let earlier = before.times.as_ref().filter(|earlier| earlier.numbers() == times.numbers())?;
        Some(times.shares_since(earlier, at - before.at))
    });
    let shares = shares.unwrap_or_default();
    let served = served(facts, before.map(|before| &before.facts));
    let processor = |number: u32| {
        let at = times.and_then(|times| times.numbers().iter().position(|other| *other == number));
        let share = at.and_then(|at| shares.get(at)).copied();
        let line = |facts: &HostFacts| facts.softnet.iter().find(|line| line.processor == number).copied();
        let (now, earlier) = (line(facts), before.and_then(|before| line(&before.facts)));
        let softnet = |field: fn(&Softnet) -> u64| {
            now.as_ref().map(|now| Interval::since_32_bits(earlier.as_ref().map(field), field(now)))
        };
        let mut found = Processor {
            index: number,
            node: facts.node_of(number),
            interrupts: served.get(&number).copied().unwrap_or_default(),
            packets: softnet(|line| line.processed),
            dropped: softnet(|line| line.dropped),
            squeezed: softnet(|line| line.squeezed),
            ..Processor::default()
        };
        if let Some(share) = share {
            let busy = share.user + share.system + share.interrupts;
            found.user = share.user;
            found.softirq = share.soft_interrupts;
            found.system = share.system + (share.interrupts - share.soft_interrupts).max(0.0);
            found.idle = (1.0 - busy - share.stolen).clamp(0.0, 1.0);
        }
        found
    };
    facts.processors.iter().map(|one| processor(one.number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rise_although_the_clock_is_set_back() {
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        assert_eq!(next_time(0, Duration::ZERO, at(5000)), 5000);
        assert_eq!(next_time(5000, Duration::from_secs(1), at(6001)), 6001);
        assert_eq!(next_time(6001, Duration::from_secs(1), at(2000)), 7001);
        assert_eq!(next_time(7001, Duration::ZERO, at(7001)), 7002);
    }

    #[test]
    fn interrupts_of_a_processor_wrap_one_by_one() {
        let facts = |counts: &[(u32, u64)]| HostFacts {
            interrupts: counts
                .iter()
                .map(|(number, count)| Interrupt {
                    number: *number,
                    served: vec![(3, *count)],
                    ..Interrupt::default()
                })
                .collect(),
            ..HostFacts::default()
        };
        let before = facts(&[(7, u64::from(u32::MAX)), (8, 100)]);
        let now = facts(&[(7, 4), (8, 110), (9, 2)]);
        assert_eq!(served(&now, Some(&before)).get(&3), Some(&Interval { total: 116, delta: 17 }));
        assert_eq!(served(&now, None).get(&3), Some(&Interval { total: 116, delta: 0 }));
    }
}
