//! The queue choice of one device: loading, settings, state.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use evenkeel_transmit::{MAX_QUEUES, Policy, Pool, SeenWord};
use libbpf_rs::Object;

use crate::error::DatapathError;
use crate::mapped::Mapped;
use crate::object::{self, Hook};
use crate::raw;
use crate::rules::{MAX_RULES, Rule};
use crate::service::{self, FlowMover};
use crate::statistics::RunTime;

const OBJECT: &str = "queue_select";
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/queue_select.bpf.o"));

const COMPLETE_EXACT: &str = "complete_exact";
const COMPLETE_AT_PEER: &str = "complete_at_peer";
const LOOK: &str = "look";
const COUNT_BUSY: &str = "count_busy";
const START_TIMERS: &str = "start_timers";
/// An uncharged flow that is silent this long loses its slot; its next segment takes one again.
const FORGET_AFTER_NS: u64 = 10_000_000_000;

/// How a choice reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// `skb->priority` names an HTB class: this class id is queue 0, the next one queue 1.
    Class(u32),
    /// `skb->queue_mapping`: the device's own transmit queues, whenever the kernel re-picks.
    Queue,
}

/// Who tells that a flow's last segment has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The flows' sockets, looked at before a pick and four times a second: costs nothing per segment.
    Sockets,
    /// fentry on `tcp_wfree`: at once.
    Exact,
    /// tcx ingress on the veth peer: at once, in a test bed.
    Peer,
    /// Only ageing, the net below `Exact` and `Peer`: flows that are silent for long.
    Ageing,
}

impl std::fmt::Display for Completion {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Sockets => "the flows' sockets",
            Self::Exact => "exact (fentry tcp_wfree)",
            Self::Peer => "peer ingress",
            Self::Ageing => "ageing",
        })
    }
}

/// Settings of a device's queue choice.
#[derive(Clone, Debug)]
pub struct SelectOptions {
    /// How queues are picked.
    pub policy: Policy,
    /// How the choice reaches the device.
    pub steering: Steering,
    /// Who tells that a flow's last segment has left; where the kernel refuses, [`QueueSelect::load`]
    /// takes the next best.
    pub completion: Completion,
    /// Queues of the device, 1 to [`MAX_QUEUES`].
    pub queues: u32,
    /// XPS pools: CPU *n* uses pool *n* modulo their number. Empty: every CPU uses every queue.
    pub pools: Vec<Pool>,
    /// Line rate, bit/s: the ageing limit follows from it.
    pub rate_bps: u64,
    /// Smallest time of silence after which a flow is released by age, ns.
    pub ageing_floor_ns: u64,
    /// A flow without a socket in this network namespace (a container's, or a routed one) may change queue
    /// after so much silence, µs.
    pub gap_us: u32,
    /// Flows tracked at most, 1 to 131,072. A further one takes the place of a short flow with nothing outstanding; where
    /// there is none, it is hashed and counted.
    pub max_flows: u32,
    /// Flows may be moved by [`QueueSelect::attach_mover`].
    pub movable: bool,
}

impl Default for SelectOptions {
    fn default() -> Self {
        Self {
            policy: Policy::Dqa,
            steering: Steering::Queue,
            completion: Completion::Sockets,
            queues: 1,
            pools: Vec::new(),
            rate_bps: 0,
            ageing_floor_ns: 10_000_000,
            gap_us: 50_000,
            max_flows: raw::EK_MAX_FLOWS,
            movable: false,
        }
    }
}

/// Both ends of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Sender's address.
    pub source: IpAddr,
    /// Sender's port.
    pub source_port: u16,
    /// Receiver's address.
    pub destination: IpAddr,
    /// Receiver's port.
    pub destination_port: u16,
    /// IP protocol number: 6 TCP, 17 UDP.
    pub protocol: u8,
}

impl Tuple {
    pub(crate) fn from_raw(tuple: &raw::ek_tuple) -> Self {
        let address = |words: &[u32; 4]| {
            if i32::from(tuple.family) == libc::AF_INET6 {
                let mut octets = [0; 16];
                for (chunk, word) in octets.chunks_exact_mut(4).zip(words) {
                    chunk.copy_from_slice(&word.to_ne_bytes());
                }
                IpAddr::V6(Ipv6Addr::from(octets))
            } else {
                IpAddr::V4(Ipv4Addr::from(words[0].to_ne_bytes()))
            }
        };
        Self {
            source: address(&tuple.source),
            source_port: tuple.source_port,
            destination: address(&tuple.destination),
            destination_port: tuple.destination_port,
            protocol: tuple.protocol as u8,
        }
    }

    /// As a key of the maps.
    pub(crate) fn to_bytes(self) -> [u8; size_of::<raw::ek_tuple>()] {
        let words = |address| {
            let mut words = [0; 4];
            match address {
                IpAddr::V4(address) => words[0] = u32::from_ne_bytes(Ipv4Addr::octets(&address)),
                IpAddr::V6(address) => {
                    for (word, chunk) in words.iter_mut().zip(Ipv6Addr::octets(&address).chunks_exact(4)) {
                        *word = chunk.try_into().map_or(0, u32::from_ne_bytes);
                    }
                }
            }
            words
        };
        let family = if self.source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let tuple = raw::ek_tuple {
            source: words(self.source),
            destination: words(self.destination),
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: u16::from(self.protocol),
            family: family as u16,
        };
        // SAFETY: a plain C structure of integers without padding, as its layout test has it.
        unsafe { std::mem::transmute(tuple) }
    }
}

/// A flow as the queue choice sees it.
#[derive(Clone, Copy, Debug)]
pub struct FlowState {
    /// Both ends.
    pub tuple: Tuple,
    /// Queue of its last segment.
    pub queue: Option<u32>,
    /// Weight charged to that queue; 0 when nothing is outstanding.
    pub charged_weight: u32,
    /// Data segments for which the choice went further than "it stays", modulo 2^28; unless sockets
    /// are looked at, all data segments.
    pub segments: u64,
}

/// What the programs counted; see `struct ek_counters` in the shared header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the C header documents each
pub struct Counters {
    pub picks: u64,
    pub moves: u64,
    pub recharged: u64,
    pub completed: u64,
    pub aged: u64,
    pub false_releases: u64,
    pub no_socket: u64,
    pub untracked: u64,
    pub evicted: u64,
    pub contended: u64,
}

/// The queue choice of one device. Dropping it detaches every program.
pub struct QueueSelect {
    device: Mapped<raw::ek_device>,
    slots: Mapped<raw::ek_flow>,
    details: Mapped<raw::ek_flow_detail>,
    queues: u32,
    links: Vec<OwnedFd>,
    completion: Completion,
    /// The program of the choice.
    program: &'static str,
    /// Why the wanted completion is not in use, when it is not.
    refused: Option<String>,
    object: Object,
}

impl QueueSelect {
    /// Loads the programs with their settings; nothing is attached yet. Where the kernel refuses the
    /// wanted completion (it has no fentry, or is locked down against programs that read its memory),
    /// the next best is loaded: sockets, then ageing.
    ///
    /// # Errors
    /// When the kernel refuses the programs, or the settings do not fit them.
    pub fn load(options: &SelectOptions) -> Result<Self, DatapathError> {
        validate(options)?;
        let mut completion = options.completion;
        let mut refused = None;
        let object = loop {
            match (load_object(options, completion), completion) {
                (Ok(object), _) => break object,
                (Err(DatapathError::Load { source, .. }), Completion::Exact | Completion::Sockets) => {
                    refused.get_or_insert_with(|| source.to_string());
                    completion = match completion {
                        Completion::Exact => Completion::Sockets,
                        _ => Completion::Ageing,
                    };
                }
                (Err(error), _) => return Err(error),
            }
        };
        let device = Mapped::new(object::map(&object, ".data.device")?.as_fd(), 1)?;
        let count = raw::EK_SLOTS as usize;
        let select = Self {
            device,
            slots: Mapped::new(object::map(&object, "flows")?.as_fd(), count)?,
            details: Mapped::new(object::map(&object, "details")?.as_fd(), count)?,
            queues: options.queues,
            links: Vec::new(),
            completion,
            program: select_program(options.steering, completion),
            refused,
            object,
        };
        select.set_pools(options);
        select.free_all_slots();
        let started = object::run_once(&select.object, START_TIMERS)?;
        if started != 0 {
            return Err(DatapathError::System {
                action: "start the timers",
                source: std::io::Error::other(format!("the BPF program answered {started}")),
            });
        }
        Ok(select)
    }

    /// Marks every slot's word as nobody's; no program is attached yet.
    fn free_all_slots(&self) {
        for slot in 0..self.slots.length() {
            let slot = self.slots.pointer(slot);
            // SAFETY: a pointer to a slot in the mapping.
            unsafe {
                std::ptr::write_volatile(&raw mut (*slot).word, evenkeel_transmit::raw::EK_WORD_FORGOTTEN)
            };
        }
    }

    /// Fills in the XPS pools; no program is attached yet.
    fn set_pools(&self, options: &SelectOptions) {
        let device = self.device.pointer(0);
        for (cpu, pool) in (0..raw::EK_MAX_CPUS as usize).zip(options.pools.iter().cycle()) {
            let pool = raw::ek_pool { first: pool.first, count: pool.count };
            // SAFETY: a pointer into the mapping, which is as large as the structure; `cpu` is below
            // the array's length.
            unsafe { std::ptr::write_volatile(&raw mut (*device).pool[cpu], pool) };
        }
    }

    /// Attaches the choice to an interface of the current network namespace, and exact completion if
    /// that is in use.
    ///
    /// # Errors
    /// When the kernel refuses a hook.
    pub fn attach(&mut self, ifindex: i32) -> Result<(), DatapathError> {
        if self.completion == Completion::Exact {
            self.links.push(object::attach_trace(&self.object, COMPLETE_EXACT)?);
        }
        self.links.push(object::attach_tcx(&self.object, self.program, Hook::Egress, ifindex)?);
        Ok(())
    }

    /// Attaches completion to the veth peer, an interface of the current network namespace. Needed for
    /// [`Completion::Peer`] only; does nothing otherwise.
    ///
    /// # Errors
    /// When the kernel refuses the hook.
    pub fn attach_peer(&mut self, ifindex: i32) -> Result<(), DatapathError> {
        if self.completion == Completion::Peer {
            self.links.push(object::attach_tcx(&self.object, COMPLETE_AT_PEER, Hook::Ingress, ifindex)?);
        }
        Ok(())
    }

    /// Who tells that a flow's last segment has left.
    #[must_use]
    pub fn completion(&self) -> Completion {
        self.completion
    }

    /// Why another completion than the wanted one is in use, in the kernel's words; none if it is not.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Makes the weights true now: releases every flow whose socket has nothing outstanding. Does
    /// nothing unless [`Completion::Sockets`] is in use.
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn look(&self) -> Result<(), DatapathError> {
        object::run_once(&self.object, LOOK).map(|_| ())
    }

    /// Runs the choice on an Ethernet frame that goes nowhere, as if a new socket had sent it: a flow for each
    /// call, for tests of more flows than a machine can carry.
    ///
    /// # Errors
    /// When the kernel refuses to run the program, or the frame is shorter than an Ethernet header.
    pub fn choose_for(&self, frame: &[u8]) -> Result<(), DatapathError> {
        object::run_on_packet(&self.object, self.program, frame).map(|_| ())
    }

    /// Slots of the flow table that are in use.
    #[must_use]
    pub fn flow_count(&self) -> u32 {
        let device = self.device.pointer(0);
        // SAFETY: a pointer into the mapping.
        unsafe { std::ptr::read_volatile(&raw const (*device).flow_count) }
    }

    /// Sum of the weights of the flows charged to each queue.
    #[must_use]
    pub fn weights(&self) -> Vec<u32> {
        weights(&self.device, self.queues)
    }

    /// A view of the queues for another thread, which stays valid when this is dropped.
    ///
    /// # Errors
    /// When the kernel refuses to map the tables once more.
    pub fn view(&self) -> Result<QueueView, DatapathError> {
        Ok(QueueView {
            device: Mapped::new(object::map(&self.object, ".data.device")?.as_fd(), 1)?,
            slots: Mapped::new(object::map(&self.object, "flows")?.as_fd(), raw::EK_SLOTS as usize)?,
            queues: self.queues,
            // Where sockets are not read, weights are as true as they can be.
            count: match self.completion {
                Completion::Sockets => Some(object::program_descriptor(&self.object, COUNT_BUSY)?),
                Completion::Exact | Completion::Peer | Completion::Ageing => None,
            },
        })
    }

    /// Attaches what brings flows to change their queue, to the interface of the choice, in the current network
    /// namespace. It ends when the [`FlowMover`] is dropped, and the choice may end before.
    ///
    /// # Errors
    /// When the choice was loaded without [`SelectOptions::movable`], sockets are not looked at
    /// ([`Completion::Sockets`]), or the kernel refuses.
    pub fn attach_mover(&self, ifindex: i32) -> Result<FlowMover, DatapathError> {
        if self.completion != Completion::Sockets {
            return Err(DatapathError::Limit(format!(
                "flows are moved by what their sockets say, and completion is by {}",
                self.completion
            )));
        }
        FlowMover::attach(&self.object, ifindex)
    }

    /// Gives flows their weights: the first rule that matches decides, and a flow that none matches has weight 1.
    /// Flows that are running follow with their next segment.
    ///
    /// # Errors
    /// When there are too many rules, or a weight is out of range; then nothing changes.
    pub fn set_rules(&self, rules: &[Rule]) -> Result<(), DatapathError> {
        if rules.len() > MAX_RULES {
            return Err(DatapathError::Limit(format!("{} rules: at most {MAX_RULES}", rules.len())));
        }
        let rules: Vec<raw::ek_rule> = rules.iter().map(Rule::to_raw).collect::<Result<_, _>>()?;
        let device = self.device.pointer(0);
        // No rules while they change: a flow that asks meanwhile has weight 1, and asks again.
        // SAFETY: pointers into the mapping; the index is below the array's length, as just checked.
        unsafe {
            std::ptr::write_volatile(&raw mut (*device).rule_count, 0);
            for (index, rule) in rules.iter().enumerate() {
                std::ptr::write_volatile(&raw mut (*device).rule[index], *rule);
            }
            fence(Ordering::SeqCst);
            std::ptr::write_volatile(&raw mut (*device).rule_count, rules.len() as u32);
            fence(Ordering::SeqCst);
            let generation = std::ptr::read_volatile(&raw const (*device).rule_generation);
            std::ptr::write_volatile(&raw mut (*device).rule_generation, generation.wrapping_add(1));
        }
        // Twice: a flow that began under the old rules may have written its slot after the first time.
        for _ in 0..2 {
            fence(Ordering::SeqCst);
            for slot in (0..self.slots.length()).filter(|slot| self.slots.read(*slot).cookie != 0) {
                let slot = self.slots.pointer(slot);
                // SAFETY: a pointer to a slot in the mapping.
                unsafe { std::ptr::write_volatile(&raw mut (*slot).may_follow, 0) };
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// What the programs counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let device = self.device.pointer(0);
        // SAFETY: a pointer into the mapping; a plain structure of integers.
        let raw = unsafe { std::ptr::read_volatile(&raw const (*device).counters) };
        Counters {
            picks: raw.picks,
            moves: raw.moves,
            recharged: raw.recharged,
            completed: raw.completed,
            aged: raw.aged,
            false_releases: raw.false_releases,
            no_socket: raw.no_socket,
            untracked: raw.untracked,
            evicted: raw.evicted,
            contended: raw.contended,
        }
    }

    /// The time of silence after which a flow is released by age at present, ns.
    #[must_use]
    pub fn ageing_limit_ns(&self) -> u64 {
        let device = self.device.pointer(0);
        // SAFETY: a pointer into the mapping.
        unsafe { std::ptr::read_volatile(&raw const (*device).ageing_limit_ns) }
    }

    /// Every flow that is tracked now.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowState> {
        (0..self.slots.length())
            .map(|slot| (slot, self.slots.read(slot)))
            .filter(|(_, flow)| flow.cookie != 0)
            .map(|(slot, flow)| {
                let word = SeenWord::from(flow.word);
                FlowState {
                    tuple: Tuple::from_raw(&self.details.read(slot).tuple),
                    queue: word.queue(),
                    charged_weight: word.charged_weight(),
                    segments: word.segments(),
                }
            })
            .collect()
    }

    /// What the choice has cost (with [`crate::RunTimeStatistics`] on): a run is a segment.
    ///
    /// # Errors
    /// When the kernel refuses to tell.
    pub fn choice_run_time(&self) -> Result<RunTime, DatapathError> {
        object::run_time(&self.object, self.program)
    }

    /// What completion has cost: its program, if it has one (with [`crate::RunTimeStatistics`] on), and
    /// the timers' walks, each of which is a run. Looking before a pick is part of
    /// [`Self::choice_run_time`].
    ///
    /// # Errors
    /// When the kernel refuses to tell.
    pub fn completion_run_time(&self) -> Result<RunTime, DatapathError> {
        let program = match self.completion {
            Completion::Exact => object::run_time(&self.object, COMPLETE_EXACT)?,
            Completion::Peer => object::run_time(&self.object, COMPLETE_AT_PEER)?,
            Completion::Sockets | Completion::Ageing => RunTime::default(),
        };
        let device = self.device.pointer(0);
        // SAFETY: pointers into the mapping.
        let (nanoseconds, runs) = unsafe {
            (
                std::ptr::read_volatile(&raw const (*device).walk_ns),
                std::ptr::read_volatile(&raw const (*device).walks),
            )
        };
        Ok(RunTime { nanoseconds: program.nanoseconds + nanoseconds, runs: program.runs + runs })
    }
}

fn weights(device: &Mapped<raw::ek_device>, queues: u32) -> Vec<u32> {
    let device = device.pointer(0);
    (0..queues as usize)
        // SAFETY: a pointer into the mapping; the index is below the array's length.
        .map(|queue| unsafe { std::ptr::read_volatile(&raw const (*device).weight[queue]) })
        .collect()
}

/// Reads the state of the queues, on whatever thread, while the programs change it.
#[derive(Debug)]
pub struct QueueView {
    device: Mapped<raw::ek_device>,
    slots: Mapped<raw::ek_flow>,
    queues: u32,
    count: Option<OwnedFd>,
}

/// Somebody looks at the flows for microseconds at a time.
const TRIES_TO_COUNT: usize = 3;

impl QueueView {
    /// Number of queues.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Sum of the weights of the flows charged to each queue.
    #[must_use]
    pub fn weights(&self) -> Vec<u32> {
        weights(&self.device, self.queues)
    }

    /// Sum of the weights of the flows on each queue that have something outstanding at this moment. A flow that
    /// has ended stays charged until somebody looks; here it does not count, and nothing is released.
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn busy_weights(&self) -> Result<Vec<u32>, DatapathError> {
        let Some(count) = &self.count else { return Ok(self.weights()) };
        for _ in 0..TRIES_TO_COUNT {
            if object::run_descriptor(count.as_fd())? == 0 {
                let device = self.device.pointer(0);
                return Ok((0..self.queues as usize)
                    // SAFETY: a pointer into the mapping; the index is below the array's length.
                    .map(|queue| unsafe { std::ptr::read_volatile(&raw const (*device).busy[queue]) })
                    .collect());
            }
        }
        Ok(self.weights())
    }

    /// Number of flows charged to each queue. Goes through all slots in use: for now and then.
    #[must_use]
    pub fn charged_flows(&self) -> Vec<u32> {
        let device = self.device.pointer(0);
        let mut flows = vec![0_u32; self.queues as usize];
        for block in 0..raw::EK_MAX_BLOCKS as usize {
            // SAFETY: a pointer into the mapping; the index is below the array's length.
            if unsafe { std::ptr::read_volatile(&raw const (*device).occupied[block]) } == 0 {
                continue;
            }
            let first = block * raw::EK_SLOTS_PER_BLOCK as usize;
            for slot in first..first + raw::EK_SLOTS_PER_BLOCK as usize {
                let flow = self.slots.read(slot);
                let word = SeenWord::from(flow.word);
                let queue = word.queue().filter(|_| flow.cookie != 0 && word.charged_weight() > 0);
                if let Some(count) = queue.and_then(|queue| flows.get_mut(queue as usize)) {
                    *count += 1;
                }
            }
        }
        flows
    }
}

fn validate(options: &SelectOptions) -> Result<(), DatapathError> {
    let queues = options.queues;
    if queues == 0 || queues as usize > MAX_QUEUES {
        return Err(DatapathError::Limit(format!(
            "{queues} queues: the queue choice handles 1 to {MAX_QUEUES}"
        )));
    }
    if !(1..=raw::EK_MAX_FLOWS).contains(&options.max_flows) {
        return Err(DatapathError::Limit(format!(
            "{} flows: the queue choice tracks 1 to {}",
            options.max_flows,
            raw::EK_MAX_FLOWS
        )));
    }
    for Pool { first, count } in &options.pools {
        if *count == 0 || first.checked_add(*count).is_none_or(|end| end > queues) {
            return Err(DatapathError::Limit(format!(
                "a pool of {count} queues from {first} does not fit {queues} queues"
            )));
        }
    }
    Ok(())
}

/// The program for a way of steering and a way of completion.
fn select_program(steering: Steering, completion: Completion) -> &'static str {
    match (steering, completion) {
        (Steering::Class(_), Completion::Sockets) => "select_class",
        (Steering::Queue, Completion::Sockets) => "select_queue",
        (Steering::Class(_), _) => "select_class_aged",
        (Steering::Queue, _) => "select_queue_aged",
    }
}

fn config(options: &SelectOptions, completion: Completion) -> raw::ek_config {
    let (steering, class_base) = match options.steering {
        Steering::Class(base) => (raw::ek_steering::EK_STEER_CLASS, base),
        Steering::Queue => (raw::ek_steering::EK_STEER_QUEUE, 0),
    };
    raw::ek_config {
        policy: options.policy.raw().0,
        steering: steering.0,
        class_base,
        queue_count: options.queues,
        use_pools: u32::from(!options.pools.is_empty()),
        max_flows: options.max_flows,
        read_sockets: u32::from(completion == Completion::Sockets),
        balance: u32::from(options.movable),
        gap_us: options.gap_us,
        rate_bps: options.rate_bps,
        ageing_floor_ns: options.ageing_floor_ns,
        forget_after_ns: FORGET_AFTER_NS,
    }
}

fn load_object(options: &SelectOptions, completion: Completion) -> Result<Object, DatapathError> {
    let mut opened = object::open(OBJECT, BYTES)?;
    let config = config(options, completion);
    for mut map in opened.maps_mut() {
        match map.name().to_str() {
            Some(name) if name.ends_with(".rodata") => {
                // SAFETY: a plain structure of integers without padding, read as bytes.
                let bytes = unsafe {
                    std::slice::from_raw_parts((&raw const config).cast::<u8>(), size_of::<raw::ek_config>())
                };
                let words = map
                    .initial_value_mut()
                    .and_then(|words| words.get_mut(..bytes.len()))
                    .ok_or(DatapathError::Missing { kind: "map of settings", name: ".rodata" })?;
                words.copy_from_slice(bytes);
            }
            _ => {}
        }
    }
    for mut program in opened.progs_mut() {
        let name = program.name();
        let wanted = name == select_program(options.steering, completion)
            || name == COMPLETE_EXACT && completion == Completion::Exact
            || name == COMPLETE_AT_PEER && completion == Completion::Peer
            || service::PROGRAMS.iter().any(|program| name == *program) && options.movable;
        if wanted {
            program.set_autoload(true);
        }
    }
    object::load(OBJECT, opened)
}
