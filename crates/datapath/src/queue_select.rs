//! The queue choice of one device: loading, settings, flow table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use evenkeel_transmit::{MAX_QUEUES, Policy, Pool, SeenWord};
use libbpf_rs::Object;

use crate::error::DatapathError;
use crate::hook::HookKind;
use crate::mapped::Mapped;
use crate::object::{self, Hook, Order};
use crate::raw;
use crate::rules::{MAX_RULES, Rule};
use crate::service::{self, FlowMover};
use crate::statistics::RunTime;

const OBJECT: &str = "queue_select";
const PROBED_OBJECT: &str = "queue_select_probed";
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/queue_select.bpf.o"));
static PROBED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/queue_select_probed.bpf.o"));

const COMPLETE_EXACT: &str = "complete_exact";
const COMPLETE_AT_PEER: &str = "complete_at_peer";
const LOOK: &str = "look";
const COUNT_BUSY: &str = "count_busy";
const START_TIMERS: &str = "start_timers";
/// Silence after which an uncharged flow loses its slot, ns. The flow gets a slot again with its next
/// segment.
const FORGET_AFTER_NS: u64 = 10_000_000_000;

/// The way in which the chosen queue is passed to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// `skb->priority` names an HTB class. This is the class id of queue 0; the following ids belong to the
    /// following queues.
    Class(u32),
    /// `skb->queue_mapping` names a transmit queue of the device. The program chooses a queue whenever the
    /// kernel would pick a new one.
    Queue,
}

/// The way in which the programs detect that a flow's last segment has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Reads the flows' sockets before a pick and four times a second. There is no cost per segment.
    Sockets,
    /// Detects the departure immediately, by fentry on `tcp_wfree`.
    Exact,
    /// Detects the departure immediately in a test bed, by tcx ingress on the veth peer.
    Peer,
    /// Releases flows only by age, after a long silence. Ageing is also active with `Exact` and `Peer`,
    /// and releases the flows that they miss.
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

#[derive(Clone, Debug)]
pub struct SelectOptions {
    pub policy: Policy,
    pub steering: Steering,
    /// If the kernel refuses this kind of completion, [`QueueSelect::load`] uses the next best one. For
    /// [`Completion::Peer`] and [`Completion::Ageing`], it returns an error.
    pub completion: Completion,
    /// Number of queues of the device, 1 to [`MAX_QUEUES`].
    pub queues: u32,
    /// XPS pools: CPU *n* uses pool *n* modulo the number of pools. If empty, every CPU uses every queue.
    pub pools: Vec<Pool>,
    /// Line rate, bit/s; 0: unknown. It determines the ageing limit.
    pub rate_bps: u64,
    /// Minimum silence after which ageing releases a flow, ns.
    pub ageing_floor_ns: u64,
    /// Silence after which a flow without a socket in this network namespace (from a container, or routed)
    /// may change its queue, µs.
    pub gap_us: u32,
    /// Maximum number of tracked flows, 1 to 131,072. A further flow replaces a short flow that has
    /// nothing outstanding. If the program finds none, a hash chooses the queue of each segment of the
    /// further flow, and the program counts the segment.
    pub max_flows: u32,
    /// Permits [`QueueSelect::attach_mover`].
    pub movable: bool,
    /// With [`HookKind::Clsact`], the caller attaches the program ([`QueueSelect::program`]).
    pub hook: HookKind,
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
            hook: HookKind::Tcx,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    pub source: IpAddr,
    pub source_port: u16,
    pub destination: IpAddr,
    pub destination_port: u16,
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

    /// Returns the key of the flow in the BPF maps.
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
        // SAFETY: a plain C structure of integers without padding; a test checks the layout.
        unsafe { std::mem::transmute(tuple) }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct FlowState {
    pub tuple: Tuple,
    pub queue: Option<u32>,
    /// Weight that is charged to `queue`; 0 if the flow is not charged.
    pub charged_weight: u32,
    /// Number of data segments, modulo 2^28. With [`Completion::Sockets`], the program does not count most
    /// of the segments that stay on their flow's queue.
    pub segments: u64,
}

/// Counters of the programs; see `struct ek_counters` in `include/evenkeel/datapath.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// The queue choice of one device. Dropping this value detaches the programs that it attached.
pub struct QueueSelect {
    device: Mapped<raw::ek_device>,
    slots: Mapped<raw::ek_flow>,
    details: Mapped<raw::ek_flow_detail>,
    /// One entry per CPU.
    counters: Mapped<raw::ek_counters>,
    queues: u32,
    links: Vec<OwnedFd>,
    completion: Completion,
    program: &'static str,
    hook: HookKind,
    /// The kernel's reason for refusing the requested completion.
    refused: Option<String>,
    object: Object,
}

impl QueueSelect {
    /// Loads the programs with their settings, without attaching them. If the kernel refuses exact
    /// completion (no fentry, or lockdown) or completion by sockets, this function loads the next best
    /// completion: sockets, then ageing.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the programs, or a setting is out of range.
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
            counters: Mapped::new(
                object::map(&object, "counters")?.as_fd(),
                object::possible_cpus()? as usize,
            )?,
            queues: options.queues,
            links: Vec::new(),
            completion,
            program: select_program(options.steering, completion),
            hook: options.hook,
            refused,
            object,
        };
        select.set_pools(options);
        select.free_all_slots();
        let started = object::run_once(&select.object, START_TIMERS)?;
        if started != 0 {
            return Err(DatapathError::System {
                action: "start the BPF timers of the queue choice",
                source: std::io::Error::other(format!("the BPF program returned {started}")),
            });
        }
        Ok(select)
    }

    /// Marks every slot as free. No program may be attached yet.
    fn free_all_slots(&self) {
        for slot in 0..self.slots.length() {
            let slot = self.slots.pointer(slot);
            // SAFETY: a pointer to a slot in the mapping.
            unsafe {
                std::ptr::write_volatile(&raw mut (*slot).word, evenkeel_transmit::raw::EK_WORD_FORGOTTEN)
            };
        }
    }

    /// Writes the XPS pools. No program may be attached yet.
    fn set_pools(&self, options: &SelectOptions) {
        let device = self.device.pointer(0);
        for (cpu, pool) in (0..raw::EK_MAX_CPUS as usize).zip(options.pools.iter().cycle()) {
            let pool = raw::ek_pool { first: pool.first, count: pool.count };
            // SAFETY: a pointer into the mapping, which is as large as the structure; `cpu` is below the
            // array's length.
            unsafe { std::ptr::write_volatile(&raw mut (*device).pool[cpu], pool) };
        }
    }

    /// Attaches the queue choice, and exact completion if in use, to an interface in the current
    /// network namespace. With [`HookKind::Clsact`], the caller attaches the queue choice.
    pub fn attach(&mut self, ifindex: i32) -> Result<(), DatapathError> {
        if self.completion == Completion::Exact {
            self.links.push(object::attach_trace(&self.object, COMPLETE_EXACT)?);
        }
        if self.hook == HookKind::Tcx {
            self.links.push(object::attach_tcx(
                &self.object,
                self.program,
                Hook::Egress,
                Order::Last,
                ifindex,
            )?);
        }
        Ok(())
    }

    /// Returns the program that chooses the queue, for a filter at egress.
    pub fn program(&self) -> Result<BorrowedFd<'_>, DatapathError> {
        object::program_fd(&self.object, self.program)
    }

    /// Attaches completion to the veth peer in the current network namespace. Does nothing unless
    /// [`Completion::Peer`] is in use.
    pub fn attach_peer(&mut self, ifindex: i32) -> Result<(), DatapathError> {
        if self.completion == Completion::Peer {
            self.links.push(object::attach_tcx(
                &self.object,
                COMPLETE_AT_PEER,
                Hook::Ingress,
                Order::Last,
                ifindex,
            )?);
        }
        Ok(())
    }

    pub fn program_id(&self) -> Result<u32, DatapathError> {
        object::program_id(&self.object, self.program)
    }

    #[must_use]
    pub fn completion(&self) -> Completion {
        self.completion
    }

    /// Returns the kernel's reason for refusing the requested completion; `None` if the kernel accepted it.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Releases every flow whose socket has nothing outstanding. Does nothing unless
    /// [`Completion::Sockets`] is in use, and while another scan is running.
    pub fn look(&self) -> Result<(), DatapathError> {
        object::run_once(&self.object, LOOK).map(|_| ())
    }

    /// Runs the queue choice on an Ethernet frame that is not sent, as if it came from a new socket. Each
    /// call with a TCP or UDP payload adds a flow, for tests with more flows than a machine can run.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to run the program, or the frame is shorter than an Ethernet
    /// header.
    pub fn choose_for(&self, frame: &[u8]) -> Result<(), DatapathError> {
        object::run_on_packet(&self.object, self.program, frame).map(|_| ())
    }

    /// Returns the number of used slots of the flow table.
    #[must_use]
    pub fn flow_count(&self) -> u32 {
        let device = self.device.pointer(0);
        // SAFETY: a pointer into the mapping.
        unsafe { std::ptr::read_volatile(&raw const (*device).flow_count) }
    }

    /// Returns the sum of the charged flow weights for each queue.
    #[must_use]
    pub fn weights(&self) -> Vec<u32> {
        weights(&self.device, self.queues)
    }

    /// Returns a view of the queues for another thread. The view remains valid when this value is
    /// dropped.
    pub fn view(&self) -> Result<QueueView, DatapathError> {
        Ok(QueueView {
            device: Mapped::new(object::map(&self.object, ".data.device")?.as_fd(), 1)?,
            slots: Mapped::new(object::map(&self.object, "flows")?.as_fd(), raw::EK_SLOTS as usize)?,
            queues: self.queues,
            // If sockets are not read, the charged weights are the best estimate.
            count: match self.completion {
                Completion::Sockets => Some(object::program_descriptor(&self.object, COUNT_BUSY)?),
                Completion::Exact | Completion::Peer | Completion::Ageing => None,
            },
        })
    }

    /// Attaches the flow mover's program to the interface of the queue choice, in the current network
    /// namespace. With [`HookKind::Clsact`], the caller attaches the program ([`FlowMover::program`]).
    /// Dropping the [`FlowMover`] detaches the program. The [`FlowMover`] may outlive this value.
    ///
    /// # Errors
    /// Returns an error if the queue choice was loaded without [`SelectOptions::movable`] or without
    /// [`Completion::Sockets`], or the kernel refuses.
    pub fn attach_mover(&self, ifindex: i32) -> Result<FlowMover, DatapathError> {
        if self.completion != Completion::Sockets {
            return Err(DatapathError::Limit(format!(
                "service balancing needs completions from the sockets of flows, but this device uses {}",
                self.completion
            )));
        }
        FlowMover::attach(&self.object, self.hook, ifindex)
    }

    /// Sets the rules for flow weights. The first matching rule decides. A flow without a matching rule
    /// has weight 1. Existing flows get their new weight with their next segment.
    ///
    /// # Errors
    /// Returns an error if there are too many rules, or a weight is out of range. Then no rule changes.
    pub fn set_rules(&self, rules: &[Rule]) -> Result<(), DatapathError> {
        if rules.len() > MAX_RULES {
            return Err(DatapathError::Limit(format!(
                "{} rules for flow weights are too many; use at most {MAX_RULES}",
                rules.len()
            )));
        }
        let rules: Vec<raw::ek_rule> = rules.iter().map(Rule::to_raw).collect::<Result<_, _>>()?;
        let device = self.device.pointer(0);
        // Disable the rules while they change. A flow that is looked up during the change gets weight 1, and
        // is looked up again afterwards.
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
        // Two passes: a flow that was added under the old rules may write its slot after the first pass.
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

    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for raw in (0..self.counters.length()).map(|cpu| self.counters.read(cpu)) {
            sum.picks += raw.picks;
            sum.moves += raw.moves;
            sum.recharged += raw.recharged;
            sum.completed += raw.completed;
            sum.aged += raw.aged;
            sum.false_releases += raw.false_releases;
            sum.no_socket += raw.no_socket;
            sum.untracked += raw.untracked;
            sum.evicted += raw.evicted;
            sum.contended += raw.contended;
        }
        sum
    }

    /// Returns the silence after which ageing currently releases a flow, ns. With [`Completion::Sockets`],
    /// ageing releases no flow.
    #[must_use]
    pub fn ageing_limit_ns(&self) -> u64 {
        let device = self.device.pointer(0);
        // SAFETY: a pointer into the mapping.
        unsafe { std::ptr::read_volatile(&raw const (*device).ageing_limit_ns) }
    }

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

    /// Returns the run time of the queue choice (requires [`crate::RunTimeStatistics`]). The program
    /// runs once per segment.
    pub fn choice_run_time(&self) -> Result<RunTime, DatapathError> {
        object::run_time(&self.object, self.program)
    }

    /// Returns the run time of the completion program, if any (requires [`crate::RunTimeStatistics`]),
    /// and of the timers. Scans before a pick belong to [`Self::choice_run_time`].
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

/// Reads the state of the queues from any thread, while the programs change it.
#[derive(Debug)]
pub struct QueueView {
    device: Mapped<raw::ek_device>,
    slots: Mapped<raw::ek_flow>,
    queues: u32,
    count: Option<OwnedFd>,
}

/// Maximum number of attempts to count while another scan is running. A scan takes microseconds.
const TRIES_TO_COUNT: usize = 3;

impl QueueView {
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Returns the sum of the charged flow weights for each queue.
    #[must_use]
    pub fn weights(&self) -> Vec<u32> {
        weights(&self.device, self.queues)
    }

    /// Returns the sum of the weights of flows with data outstanding, for each queue. Unlike
    /// [`Self::weights`], the sum excludes finished flows that stay charged until the next scan. This
    /// function releases no flow. Returns [`Self::weights`] without [`Completion::Sockets`], and if
    /// another scan is running at every attempt.
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

    /// Returns the number of charged flows for each queue. This function reads all used slots, so call
    /// it rarely.
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
            "the queue choice cannot handle {queues} queues; use 1 to {MAX_QUEUES}"
        )));
    }
    if !(1..=raw::EK_MAX_FLOWS).contains(&options.max_flows) {
        return Err(DatapathError::Limit(format!(
            "the queue choice cannot track {} flows; use 1 to {}",
            options.max_flows,
            raw::EK_MAX_FLOWS
        )));
    }
    for Pool { first, count } in &options.pools {
        if *count == 0 || first.checked_add(*count).is_none_or(|end| end > queues) {
            return Err(DatapathError::Limit(format!(
                "a pool of {count} queues that begins at queue {first} does not fit on a device with {queues} queues"
            )));
        }
    }
    Ok(())
}

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
    let (name, bytes) = match options.hook {
        HookKind::Tcx => (OBJECT, BYTES),
        HookKind::Clsact => (PROBED_OBJECT, PROBED),
    };
    let mut opened = object::open(name, bytes)?;
    let config = config(options, completion);
    for mut map in opened.maps_mut() {
        match map.name().to_str() {
            Some(name) if name.ends_with(".rodata") => {
                // SAFETY: a structure of integers without padding.
                object::initialise(&mut map, ".rodata", 0, unsafe { object::bytes_of(&config) })?;
            }
            Some("counters") => map
                .set_max_entries(object::possible_cpus()?)
                .map_err(DatapathError::system("set the size of a BPF map to the number of CPUs"))?,
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
    object::load(name, opened)
}
