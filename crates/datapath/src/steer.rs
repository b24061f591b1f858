//! Receive steering in software: an XDP program redirects packets to the CPUs that process them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, Object};

use crate::error::DatapathError;
use crate::mapped::Mapped;
use crate::object;
use crate::queue_select::Tuple;
use crate::raw;
use crate::statistics::RunTime;
use crate::toeplitz::{self, DEFAULT_RSS_KEY, RSS_KEY_LENGTH};

const OBJECT: &str = "steer";
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));
const PROGRAM: &str = "steer_packet";

pub const INDIRECTION_LENGTH: usize = raw::EK_STEER_INDIRECTION as usize;
/// Maximum number of flows with their own target: the length of the BPF program's map of slots.
pub const MAX_STEERED_FLOWS: usize = raw::EK_STEER_SLOTS as usize;
pub const MAX_STEERED_CLASSES: usize = raw::EK_STEER_CLASSES as usize;
/// Maximum number of CPUs over which a class hashes its flows: the length of an array in the BPF program.
pub const MAX_CLASS_TARGETS: usize = raw::EK_STEER_CLASS_TARGETS as usize;
/// Delay before a slot is reused. After it, no program that looked up the slot is still running, and no
/// packet of its flow is in a ring.
const SLOT_REST: Duration = Duration::from_secs(1);

/// Native mode, `XDP_FLAGS_DRV_MODE` (`include/uapi/linux/if_link.h`). Generic mode drops a packet for a CPU
/// map if it had to copy the packet. The copy lacks the length of the link header (`skb_pp_cow_data`,
/// net/core/skbuff.c, Linux 6.18).
const IN_THE_DRIVER: u32 = 1 << 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SteerTarget {
    /// The ring of this CPU.
    Cpu(u32),
    /// The CPU on which the packet arrived.
    Stay,
    /// The target that classes and the indirection table determine. Only valid for flows.
    Rules,
}

impl SteerTarget {
    fn raw(self) -> u32 {
        match self {
            Self::Cpu(cpu) => cpu,
            Self::Stay => raw::ek_steer_target::EK_STEER_STAY.0,
            Self::Rules => raw::ek_steer_target::EK_STEER_BY_DEFAULT.0,
        }
    }

    fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            _ if raw == raw::ek_steer_target::EK_STEER_STAY.0 => Some(Self::Stay),
            _ if raw == raw::ek_steer_target::EK_STEER_BY_DEFAULT.0 => Some(Self::Rules),
            _ if raw == raw::ek_steer_target::EK_STEER_NEW.0 => None,
            cpu => Some(Self::Cpu(cpu)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct SteeringOptions {
    /// Choose a target, but redirect no packet, to measure the cost of the program.
    pub pass: bool,
    /// CPUs that can be targets. Each gets a ring and a thread.
    pub cpus: Vec<u32>,
    /// Capacity of a ring in packets. A full ring drops packets, as a NIC's ring does.
    pub ring_packets: u32,
    /// Maximum time that a moving flow waits until its packets have left its old ring. After this time
    /// the flow moves, even if the ring has stalled. The flow's packets may then be reordered.
    pub hold: Duration,
    pub key: [u8; RSS_KEY_LENGTH],
}

impl Default for SteeringOptions {
    fn default() -> Self {
        Self {
            pass: false,
            cpus: Vec::new(),
            ring_packets: 2048,
            hold: Duration::from_millis(20),
            key: DEFAULT_RSS_KEY,
        }
    }
}

/// Upper bound for the number of packets in transit in addition to those in a ring: a batch of each receiver
/// and one of the ring's thread.
const BATCHES: u64 = 1024;
/// Once a ring's thread has taken all packets of a flow and the last one arrived this long ago, the thread
/// has processed them.
const SETTLE: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedAddress {
    /// Bits outside of the mask are ignored.
    pub address: IpAddr,
    /// For IPv4, the low 32 bits are used.
    pub mask: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedPort {
    /// Bits outside of the mask are ignored.
    pub port: u16,
    pub mask: u16,
}

/// A class of flows towards this host, and the CPUs over which they are hashed. A field that is `None`
/// matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SteeredClass {
    pub protocol: Option<u8>,
    pub source: Option<MaskedAddress>,
    pub source_port: Option<MaskedPort>,
    pub destination: Option<MaskedAddress>,
    pub destination_port: Option<MaskedPort>,
    /// Targets of the class's flows, selected by hash.
    pub targets: Vec<SteerTarget>,
}

/// A flow with its own target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteeredFlow {
    pub tuple: Tuple,
    pub wanted: SteerTarget,
    /// The current target; `None` before the first packet.
    pub current: Option<SteerTarget>,
    /// Packets since the flow got its own target.
    pub packets: u64,
    /// Bytes of whole frames since the flow got its own target.
    pub bytes: u64,
    /// Time of the last packet, `CLOCK_MONOTONIC` ns; 0 if there was none.
    pub last_ns: u64,
    pub moves: u32,
    /// Number of changes of CPU because the wait had expired. Such a change may have reordered packets.
    pub forced: u32,
}

/// A flow without its own target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenFlow {
    pub tuple: Tuple,
    /// Packets since the last read.
    pub packets: u64,
    /// Bytes of whole frames since the last read.
    pub bytes: u64,
}

/// Counters of one CPU since the program was loaded. Packets are frames before GRO, or whole GSO packets if
/// no device segmented them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// Packets sent to the CPU's ring.
    pub enqueued: u64,
    /// Packets taken from the CPU's ring.
    pub dequeued: u64,
    /// Packets dropped because the CPU's ring was full; an estimate (see
    /// [`ReceiveSteering::settle_losses`]).
    pub lost: u64,
    /// Packets that arrived on the CPU.
    pub received: u64,
    /// Bytes that arrived on the CPU.
    pub bytes: u64,
    /// Arrived packets that were not steered: neither TCP nor UDP, truncated headers, fragments, or IPv6 with
    /// further hops in a routing header.
    pub other: u64,
    /// Arrived packets from a sender on this host whose partial checksum the program had to complete.
    pub partial: u64,
    /// Arrived packets of flows without their own target.
    pub without_slot: u64,
    /// Arrived packets that could not be sent to their target and stayed on the CPU.
    pub refused: u64,
    /// Arrived packets kept on the old CPU of a moving flow.
    pub held: u64,
}

struct Slots {
    of: HashMap<Tuple, u32>,
    unused: u32,
    resting: VecDeque<(Instant, u32)>,
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        if self.resting.front().is_some_and(|(since, _)| since.elapsed() >= SLOT_REST) {
            return self.resting.pop_front().map(|(_, slot)| slot);
        }
        let slot = self.unused;
        ((slot as usize) < MAX_STEERED_FLOWS).then(|| {
            self.unused += 1;
            slot
        })
    }
}

/// Steers the received packets of an interface. Dropping this value detaches the program.
pub struct ReceiveSteering {
    links: Vec<OwnedFd>,
    steer: Mapped<raw::ek_steer>,
    slots: Mapped<raw::ek_steer_slot>,
    cpus: Mapped<raw::ek_steer_cpu>,
    taken: Slots,
    turned: Option<Instant>,
    /// The enqueued and dequeued counts of each CPU at the last [`Self::settle_losses`].
    looked: Vec<(u64, u64)>,
    options: SteeringOptions,
    object: Object,
}

impl ReceiveSteering {
    /// Loads the program. Every packet stays on its CPU until rules are set.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the program, or a CPU does not exist.
    pub fn load(options: &SteeringOptions) -> Result<Self, DatapathError> {
        let count = object::possible_cpus()?;
        let mut opened = object::open(OBJECT, BYTES)?;
        let mut configured = false;
        for mut map in opened.maps_mut() {
            if matches!(map.name().to_str(), Some("rings" | "cpus")) {
                map.set_max_entries(count)
                    .map_err(DatapathError::system("set the size of a BPF map to the number of CPUs"))?;
            }
            if map.name().to_str().is_some_and(|name| name.ends_with(".rodata")) {
                let config = raw::ek_steer_config {
                    pass: u32::from(options.pass),
                    unused: 0,
                    hold_ns: options.hold.as_nanos() as u64,
                    settle_ns: SETTLE.as_nanos() as u64,
                };
                // SAFETY: a structure of integers without padding.
                object::initialise(&mut map, ".rodata", 0, unsafe { object::bytes_of(&config) })?;
                configured = true;
            }
        }
        if !configured {
            return Err(DatapathError::Missing { kind: "map of settings", name: ".rodata" });
        }
        let object = object::load(OBJECT, opened)?;
        let steer: Mapped<raw::ek_steer> = Mapped::new(object::map(&object, ".data.steer")?.as_fd(), 1)?;
        let tables: Mapped<toeplitz::Tables> =
            Mapped::new(object::map(&object, ".data.toeplitz")?.as_fd(), 1)?;
        let mut filled = Box::new([[0; 256]; raw::EK_STEER_HASH_INPUT as usize]);
        toeplitz::fill(&options.key, &mut filled);
        // SAFETY: a pointer into the mapping, which is as large as the tables.
        unsafe { std::ptr::write_volatile(tables.pointer(0), *filled) };
        let slots = Mapped::new(object::map(&object, "slots")?.as_fd(), MAX_STEERED_FLOWS)?;
        let cpus = Mapped::new(object::map(&object, "cpus")?.as_fd(), count as usize)?;
        let mut steering = Self {
            links: Vec::new(),
            steer,
            slots,
            cpus,
            taken: Slots { of: HashMap::new(), unused: 0, resting: VecDeque::new() },
            turned: None,
            looked: vec![(0, 0); count as usize],
            options: options.clone(),
            object,
        };
        steering.set_rules(&[], &[SteerTarget::Stay; INDIRECTION_LENGTH])?;
        steering.make_rings()?;
        Ok(steering)
    }

    fn make_rings(&self) -> Result<(), DatapathError> {
        let rings = object::map(&self.object, "rings")?;
        let taker = object::program_descriptor(&self.object, "take_packet")?;
        for cpu in &self.options.cpus {
            // struct bpf_cpumap_val: the size of the ring, and the program that runs on its packets.
            let mut value = self.options.ring_packets.to_ne_bytes().to_vec();
            value.extend(taker.as_raw_fd().to_ne_bytes());
            rings
                .update(&cpu.to_ne_bytes(), &value, MapFlags::ANY)
                .map_err(DatapathError::system("create the ring of a CPU"))?;
        }
        Ok(())
    }

    /// Returns the name of the kernel thread that reads a CPU's ring (`__cpu_map_entry_alloc`,
    /// kernel/bpf/cpumap.c).
    ///
    /// # Errors
    /// Returns an error if the kernel does not describe the map.
    pub fn thread_name(&self, cpu: u32) -> Result<String, DatapathError> {
        let info = object::map(&self.object, "rings")?
            .info()
            .map_err(DatapathError::system("read the description of a BPF map"))?;
        Ok(format!("cpumap/{cpu}/map:{}", info.info.id))
    }

    /// Attaches the program to an interface in the current network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the attachment: `EBUSY` means that another XDP program is
    /// attached.
    pub fn attach(&mut self, ifindex: i32) -> Result<(), DatapathError> {
        let descriptor = object::program_descriptor(&self.object, PROGRAM)?;
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: IN_THE_DRIVER,
            ..Default::default()
        };
        // SAFETY: the options are initialised and outlive the call, and the descriptor is open.
        let link = unsafe {
            libbpf_sys::bpf_link_create(descriptor.as_raw_fd(), ifindex, libbpf_sys::BPF_XDP, &options)
        };
        if link < 0 {
            let source = io::Error::from_raw_os_error(-link);
            let hook = "XDP, in the driver";
            return Err(DatapathError::Attach { program: PROGRAM, hook, ifindex, source });
        }
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        self.links.push(unsafe { OwnedFd::from_raw_fd(link) });
        Ok(())
    }

    /// Detaches the program, and returns whether it was still attached to an interface. Closing the link does
    /// not suffice while another process, such as bpftool, has the link open.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to detach the program. A missing interface is no error.
    pub fn detach(&mut self) -> Result<bool, DatapathError> {
        let mut was_attached = false;
        for link in self.links.drain(..) {
            was_attached |= is_attached(&link);
            // SAFETY: takes a descriptor, which is open.
            let result = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
            // For a link whose device no longer exists, `bpf_xdp_link_detach` (net/core/dev.c) does nothing
            // and returns 0.
            if result < 0 {
                let source = io::Error::from_raw_os_error(-result);
                return Err(DatapathError::System { action: "detach the XDP program", source });
            }
        }
        Ok(was_attached)
    }

    pub fn program_id(&self) -> Result<u32, DatapathError> {
        object::program_id(&self.object, PROGRAM)
    }

    /// Returns the run time of the program (requires [`crate::RunTimeStatistics`]).
    pub fn run_time(&self) -> Result<RunTime, DatapathError> {
        object::run_time(&self.object, PROGRAM)
    }

    /// Sets the rules for flows without their own target and for flows with [`SteerTarget::Rules`]. The first
    /// matching class decides. Without a matching class, the low bits of the hash select an entry of the
    /// indirection table. All rules take effect at once.
    ///
    /// # Errors
    /// Returns an error if there are too many classes or targets, a class has no target or mixes IP versions,
    /// a target CPU has no ring or too high a number, or a target is [`SteerTarget::Rules`].
    pub fn set_rules(
        &mut self,
        classes: &[SteeredClass],
        indirection: &[SteerTarget; INDIRECTION_LENGTH],
    ) -> Result<(), DatapathError> {
        if classes.len() > MAX_STEERED_CLASSES {
            return Err(DatapathError::Limit(format!(
                "the steering program cannot hold {} classes; use at most {MAX_STEERED_CLASSES}",
                classes.len()
            )));
        }
        for target in classes.iter().flat_map(|class| &class.targets).chain(indirection) {
            self.check(*target)?;
        }
        let mut rules = Box::<raw::ek_steer_rules>::new(raw::ek_steer_rules::default());
        for (entry, class) in rules.class_.iter_mut().zip(classes) {
            *entry = raw_class(class)?;
        }
        rules.class_count = classes.len() as u32;
        for (entry, target) in rules.indirection.iter_mut().zip(indirection) {
            *entry = narrow(*target)?;
        }
        // A program that still reads the inactive half started before the last switch.
        const GRACE: Duration = Duration::from_millis(5);
        if let Some(left) = self.turned.and_then(|turned| GRACE.checked_sub(turned.elapsed())) {
            std::thread::sleep(left);
        }
        let shared = self.steer.pointer(0);
        // SAFETY: pointers into the mapping; the program does not read the half that is written, and only
        // this process uses the other fields.
        unsafe {
            let other = 1 - (std::ptr::read_volatile(&raw const (*shared).active) & 1);
            std::ptr::write_volatile(&raw mut (*shared).rules[other as usize], *rules);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            std::ptr::write_volatile(&raw mut (*shared).active, other);
        }
        self.turned = Some(Instant::now());
        Ok(())
    }

    fn check(&self, target: SteerTarget) -> Result<(), DatapathError> {
        match target {
            SteerTarget::Cpu(cpu) if !self.options.cpus.contains(&cpu) => Err(DatapathError::Limit(format!(
                "cannot steer to CPU {cpu}: the session does not use this CPU"
            ))),
            _ => Ok(()),
        }
    }

    /// Sets a flow's own target. The flow moves as soon as its old ring has none of its packets, and at the
    /// latest after [`SteeringOptions::hold`].
    ///
    /// # Errors
    /// Returns an error if the table is full, the target CPU has no ring, or the kernel refuses the entry.
    pub fn set_flow(&mut self, tuple: &Tuple, target: SteerTarget) -> Result<(), DatapathError> {
        self.check(target)?;
        if let Some(slot) = self.taken.of.get(tuple) {
            let slot = self.slots.pointer(*slot as usize);
            // SAFETY: a pointer into the mapping.
            unsafe { std::ptr::write_volatile(&raw mut (*slot).wanted, target.raw()) };
            return Ok(());
        }
        let slot = self.taken.take().ok_or_else(|| {
            DatapathError::Limit(format!(
                "too many flows with a CPU of their own; use at most {MAX_STEERED_FLOWS}"
            ))
        })?;
        let first = raw::ek_steer_slot {
            wanted: target.raw(),
            current: raw::ek_steer_target::EK_STEER_NEW.0,
            ..raw::ek_steer_slot::default()
        };
        // SAFETY: a pointer into the mapping, to a slot that no program has looked up for a second.
        unsafe { std::ptr::write_volatile(self.slots.pointer(slot as usize), first) };
        let updated =
            object::map(&self.object, "flows")?.update(&tuple.to_bytes(), &slot.to_ne_bytes(), MapFlags::ANY);
        if let Err(error) = updated {
            self.taken.resting.push_back((Instant::now(), slot));
            return Err(DatapathError::system("assign a slot to a flow")(error));
        }
        self.taken.of.insert(*tuple, slot);
        Ok(())
    }

    /// Removes a flow's own target, so that the flow follows the rules. Ignores a flow without its own
    /// target.
    pub fn remove_flow(&mut self, tuple: &Tuple) -> Result<(), DatapathError> {
        let Some(slot) = self.taken.of.remove(tuple) else { return Ok(()) };
        object::map(&self.object, "flows")?
            .delete(&tuple.to_bytes())
            .map_err(DatapathError::system("free the slot of a flow"))?;
        self.taken.resting.push_back((Instant::now(), slot));
        Ok(())
    }

    #[must_use]
    pub fn flows(&self) -> Vec<SteeredFlow> {
        self.taken.of.iter().filter_map(|(tuple, slot)| self.view(tuple, *slot)).collect()
    }

    #[must_use]
    pub fn flow(&self, tuple: &Tuple) -> Option<SteeredFlow> {
        self.view(tuple, *self.taken.of.get(tuple)?)
    }

    fn view(&self, tuple: &Tuple, slot: u32) -> Option<SteeredFlow> {
        let slot = self.slots.read(slot as usize);
        Some(SteeredFlow {
            tuple: *tuple,
            wanted: SteerTarget::from_raw(slot.wanted)?,
            current: SteerTarget::from_raw(slot.current),
            packets: slot.packets,
            bytes: slot.bytes,
            last_ns: slot.last_ns,
            moves: slot.moves,
            forced: slot.forced,
        })
    }

    /// Returns the flows without their own target that had packets since the last call. If there are
    /// too many such flows, returns the most recent ones.
    pub fn take_seen(&self) -> Result<Vec<SeenFlow>, DatapathError> {
        const AT_ONCE: u32 = 1024;
        let map = object::map(&self.object, "seen")?;
        let entries = map
            .lookup_and_delete_batch(AT_ONCE, MapFlags::ANY, MapFlags::ANY)
            .map_err(DatapathError::system("read the flows that the steering program saw"))?;
        let mut found = Vec::new();
        for (key, value) in entries {
            if key.len() < size_of::<raw::ek_tuple>() || value.len() < size_of::<raw::ek_steer_seen>() {
                continue;
            }
            // SAFETY: key and value are at least as long as the structures, whose fields are integers.
            let (tuple, seen) = unsafe {
                (
                    std::ptr::read_unaligned(key.as_ptr().cast::<raw::ek_tuple>()),
                    std::ptr::read_unaligned(value.as_ptr().cast::<raw::ek_steer_seen>()),
                )
            };
            found.push(SeenFlow { tuple: Tuple::from_raw(&tuple), packets: seen.packets, bytes: seen.bytes });
        }
        Ok(found)
    }

    #[must_use]
    pub fn counters(&self) -> Vec<CpuCounters> {
        (0..self.cpus.length())
            .map(|cpu| {
                let counted = self.cpus.read(cpu);
                // Packets may be in transit, so only missing packets beyond the ring's capacity are
                // certainly lost.
                let missing = counted.enqueued.saturating_sub(counted.dequeued);
                let beyond = missing.saturating_sub(u64::from(self.options.ring_packets) + BATCHES);
                CpuCounters {
                    enqueued: counted.enqueued,
                    dequeued: counted.dequeued,
                    lost: counted.lost.max(beyond),
                    received: counted.received,
                    bytes: counted.bytes,
                    other: counted.other,
                    partial: counted.partial,
                    without_slot: counted.without_slot,
                    refused: counted.refused,
                    held: counted.held,
                }
            })
            .collect()
    }

    /// Returns the packets that arrived on a CPU without counters. They stayed on this CPU, and are in no other
    /// count. Such a CPU exists if the numbers of the possible CPUs have gaps.
    #[must_use]
    pub fn unmapped(&self) -> u64 {
        // SAFETY: a pointer into the mapping.
        unsafe { std::ptr::read_volatile(&raw const (*self.steer.pointer(0)).unmapped) }
    }

    /// Estimates the drops of full rings. If the counts of a CPU have not changed since the last call,
    /// every packet that was enqueued but not dequeued is lost. Call this function several times a
    /// second, but at most every 10 ms, so that the thread can empty a ring between calls.
    pub fn settle_losses(&mut self) {
        for (cpu, looked) in self.looked.iter_mut().enumerate() {
            let counted = self.cpus.read(cpu);
            let now = (counted.enqueued, counted.dequeued);
            if now == *looked {
                let pointer = self.cpus.pointer(cpu);
                let lost = counted.enqueued.wrapping_sub(counted.dequeued);
                // SAFETY: a pointer into the mapping, to a field that only this process writes.
                unsafe { std::ptr::write_volatile(&raw mut (*pointer).lost, lost) };
            }
            *looked = now;
        }
    }
}

/// Returns whether a link still has its interface. After a detach or a deletion, the link's `fdinfo` shows
/// the index 0 (`bpf_xdp_link_show_fdinfo`, net/core/dev.c). Also returns true if `fdinfo` cannot be read.
fn is_attached(link: &OwnedFd) -> bool {
    let shown =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd())).unwrap_or_default();
    !shown.lines().any(|line| line == "ifindex:\t0")
}

fn narrow(target: SteerTarget) -> Result<u16, DatapathError> {
    if target == SteerTarget::Rules {
        return Err(DatapathError::Limit("a rule cannot have other rules as its target".to_owned()));
    }
    let raw = target.raw();
    u16::try_from(raw)
        .map_err(|_| DatapathError::Limit(format!("cannot steer to CPU {raw}; use CPUs below 65000")))
}

fn raw_class(class: &SteeredClass) -> Result<raw::ek_steer_class, DatapathError> {
    if class.targets.is_empty() || class.targets.len() > MAX_CLASS_TARGETS {
        return Err(DatapathError::Limit(format!(
            "a class cannot have {} targets; use 1 to {MAX_CLASS_TARGETS}",
            class.targets.len()
        )));
    }
    let versions = [class.source, class.destination].map(|end| end.map(|end| end.address.is_ipv4()));
    let ipv4 = versions[0].or(versions[1]);
    if versions.into_iter().flatten().any(|version| Some(version) != ipv4) {
        return Err(DatapathError::Limit(
            "a class has IPv4 and IPv6 addresses; use one IP version for each class".to_owned(),
        ));
    }
    let mut entry = raw::ek_steer_class {
        family: match ipv4 {
            None => 0,
            Some(true) => libc::AF_INET as u16,
            Some(false) => libc::AF_INET6 as u16,
        },
        protocol: u16::from(class.protocol.unwrap_or(0)),
        target_count: class.targets.len() as u32,
        ..raw::ek_steer_class::default()
    };
    if let Some(end) = class.source {
        (entry.source, entry.source_mask) = words(end);
    }
    if let Some(end) = class.destination {
        (entry.destination, entry.destination_mask) = words(end);
    }
    if let Some(port) = class.source_port {
        (entry.source_port, entry.source_port_mask) = (port.port & port.mask, port.mask);
    }
    if let Some(port) = class.destination_port {
        (entry.destination_port, entry.destination_port_mask) = (port.port & port.mask, port.mask);
    }
    for (slot, target) in entry.target.iter_mut().zip(&class.targets) {
        *slot = narrow(*target)?;
    }
    Ok(entry)
}

/// Returns the masked address and the mask as words in network byte order.
fn words(end: MaskedAddress) -> ([u32; 4], [u32; 4]) {
    let split = |bits: u128| {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bits.to_be_bytes().chunks_exact(4)) {
            *word = bytes.try_into().map_or(0, u32::from_ne_bytes);
        }
        words
    };
    match end.address {
        IpAddr::V6(address) => (split(address.to_bits() & end.mask), split(end.mask)),
        IpAddr::V4(address) => {
            let first = |bits: u32| [u32::from_ne_bytes(bits.to_be_bytes()), 0, 0, 0];
            let mask = end.mask as u32;
            (first(address.to_bits() & mask), first(mask))
        }
    }
}
