//! Settings of a simulation, and the placement of its flows.

use evenkeel_model::scenario::{HostNode, InterruptCores, TransferKnobs};
use evenkeel_model::units::{BitRate, ByteSize};

use super::machine::Machine;
use crate::random::Generator;
use crate::segment::mss_of;
use crate::tcp::{CongestionControl, Profile};
use crate::time::{Span, span_of};

#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub machine: Machine,
}

/// Cores of a receiver's queues and applications, numbered within the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverCores {
    pub queues: Vec<u32>,
    /// Queue of each entry of the indirection table (RSS).
    pub indirection: Vec<u32>,
    /// Cores of the reading applications. Flows are assigned to these cores round robin.
    pub readers: Vec<u32>,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub machine: Machine,
    /// Machine of the senders, with as many nodes and cores as `machine`. `None` selects `machine`.
    pub sender: Option<Machine>,
    pub senders: u32,
    pub receivers: u32,
    pub flows: u32,
    pub start_interval: Span,
    /// Rates of the ports of a sending host in bit/s. Flows are assigned to the ports round robin.
    pub ports: Vec<u64>,
    /// Rate (bit/s) and buffer (bytes) of the link between the switches. `None` for a direct path.
    pub switch: Option<(u64, u64)>,
    /// Queue length in the switch's buffer in bytes. Above this length, the switch marks packets of
    /// flows with ECN.
    pub ecn_threshold: Option<u64>,
    /// Round-trip time without queues.
    pub round_trip: Span,
    /// The part of the round-trip time from the senders to the receivers. The interconnect serves
    /// transfers in the order of events, so a packet in flight delays readers that use the interconnect
    /// before the packet arrives. Keep this part short if packets cross the interconnect.
    pub forward: Span,
    pub mss: u32,
    pub descriptors: u32,
    /// `segmentation` is TSO and GSO. `aggregation` is GRO.
    pub segmentation: bool,
    pub aggregation: bool,
    /// Whether TCP's segments are paced (fq).
    pub pacing: bool,
    /// Algorithms, at least one. Flows are assigned to them round robin.
    pub congestion: Vec<CongestionControl>,
    /// Whether to record the state of each flow's TCP in each bin.
    pub tcp_series: bool,
    pub profile: Profile,
    /// Largest buffers in bytes: the last values of `tcp_rmem` and `tcp_wmem`.
    pub receive_buffer: u64,
    pub send_buffer: u64,
    /// Time that an application works on each MiB after reading it.
    pub reader_work: Span,
    /// Time that an application sleeps in each read, while it owns the socket.
    pub reader_stall: Span,
    pub interrupts: InterruptCores,
    pub interrupt_node: HostNode,
    pub application_node: HostNode,
    /// Cores of each receiver. Replaces the cores that `interrupts` and the two nodes describe.
    pub receiver_cores: Option<ReceiverCores>,
    /// Whether the governor keeps the clock at its maximum (`performance`).
    pub performance: bool,
}

/// Placement of a flow's work. Cores of all hosts are numbered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPlace {
    pub writer: u32,
    pub reader: u32,
    pub ack_core: u32,
    pub port: u32,
    pub queue: u32,
    pub receiving_host: u32,
}

#[derive(Clone, Debug)]
pub struct Placement {
    pub hosts: Vec<Host>,
    /// Rates of the ports of all sending hosts, bit/s.
    pub ports: Vec<u64>,
    pub queues: Vec<u32>,
    pub flows: Vec<FlowPlace>,
    cores_per_host: u32,
}

impl Placement {
    /// Returns the number of cores of a node that have work.
    #[must_use]
    pub fn active_cores(&self, host: u32, node: u32) -> u32 {
        let own = self.cores_per_host * host..self.cores_per_host * (host + 1);
        let per_node = self.cores_per_host / self.hosts[host as usize].machine.nodes.max(1);
        let is_here = |core: &u32| own.contains(core) && (core - own.start) / per_node == node;
        let mut cores: Vec<u32> = self
            .flows
            .iter()
            .flat_map(|flow| [flow.writer, flow.reader, flow.ack_core, self.queues[flow.queue as usize]])
            .filter(is_here)
            .collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len() as u32
    }
}

impl Settings {
    /// Derives the settings of a repeat from the scenario's knobs.
    ///
    /// # Errors
    /// Returns an error if the user's machine profile is invalid.
    pub fn new(
        knobs: &TransferKnobs,
        rate: BitRate,
        congestion: Vec<CongestionControl>,
        profile: Profile,
    ) -> Result<Self, String> {
        Ok(Self {
            machine: Machine::from(&knobs.machine.profile()?),
            sender: None,
            senders: knobs.senders,
            receivers: knobs.receivers,
            flows: knobs.flows,
            start_interval: span_of(knobs.start_interval),
            ports: knobs.ports.iter().map(|port| port.bits_per_second()).collect(),
            switch: knobs.switch_buffer.map(|buffer| (rate.bits_per_second(), buffer.bytes())),
            ecn_threshold: knobs.ecn_threshold.map(ByteSize::bytes),
            round_trip: span_of(knobs.round_trip) + span_of(knobs.reverse_delay),
            forward: span_of(knobs.round_trip) / 2,
            mss: mss_of(knobs.mtu),
            descriptors: knobs.ring,
            segmentation: knobs.tso,
            aggregation: knobs.gro,
            pacing: knobs.pacing,
            congestion,
            tcp_series: knobs.tcp_series,
            profile,
            receive_buffer: knobs.receive_buffer.bytes(),
            send_buffer: knobs.send_buffer.bytes(),
            reader_work: span_of(knobs.reader_work),
            reader_stall: span_of(knobs.reader_stall),
            interrupts: knobs.interrupts,
            interrupt_node: knobs.interrupt_node,
            application_node: knobs.application_node,
            receiver_cores: None,
            performance: knobs.highest_clock,
        })
    }

    #[must_use]
    pub fn congestion_of(&self, flow: u32) -> CongestionControl {
        self.congestion.get(flow as usize % self.congestion.len().max(1)).copied().unwrap_or_default()
    }

    /// Returns the clock of a core in Hz. Assumption: without the governor `performance`, the clock
    /// stays at its nominal value.
    #[must_use]
    pub fn clock(&self, machine: &Machine, active: u32) -> f64 {
        if self.performance { machine.clock(active) } else { machine.base_hz }
    }

    /// Returns the cores that serve the interrupts of a receiver with this many flows, numbered within
    /// their node.
    #[must_use]
    pub fn interrupt_cores(&self, flows: u32) -> Vec<u32> {
        let per_node = self.machine.cores_per_node;
        // Applications take the first cores of their node.
        let same_node = self.interrupt_node == self.application_node;
        let taken = if same_node { flows.min(per_node) } else { 0 };
        let cores = match self.interrupts {
            InterruptCores::EveryCore => 0..per_node,
            InterruptCores::Apart | InterruptCores::OwnCore => taken..per_node,
            InterruptCores::OnApplications | InterruptCores::WithReader => 0..flows.clamp(1, per_node),
        };
        if cores.is_empty() { (0..per_node).collect() } else { cores.collect() }
    }

    /// Draws the placement of all flows. Senders and receivers are assigned to flows round robin.
    #[must_use]
    pub fn place(&self, random: &mut Generator) -> Placement {
        let machine = &self.machine;
        let per_host = machine.cores();
        let per_node = machine.cores_per_node;
        let other = (machine.nic_node + 1) % machine.nodes.max(1);
        let node = |node: HostNode| if node == HostNode::Nic { machine.nic_node } else { other };
        let host = |machine: &Machine| Host { machine: machine.clone() };
        let mut hosts = vec![host(self.sender.as_ref().unwrap_or(machine)); self.senders as usize];
        hosts.resize((self.senders + self.receivers) as usize, host(machine));
        let mut ports = Vec::new();
        for _ in 0..self.senders {
            ports.extend(&self.ports);
        }
        let own_ports = self.ports.len() as u32;
        let mut queues = Vec::new();
        let mut flows = Vec::new();
        let receiver_of = |flow: u32| flow % self.receivers;
        for receiver in 0..self.receivers {
            let first = (self.senders + receiver) * per_host;
            let own = (0..self.flows).filter(|flow| receiver_of(*flow) == receiver).count() as u32;
            let cores: Vec<u32> = match &self.receiver_cores {
                Some(cores) => cores.queues.iter().map(|core| first + core % per_host).collect(),
                None => {
                    let base = first + node(self.interrupt_node) * per_node;
                    self.interrupt_cores(own).into_iter().map(|core| base + core).collect()
                }
            };
            queues.push(if cores.is_empty() { vec![first] } else { cores });
        }
        let mut first_queue = Vec::new();
        let mut all = Vec::new();
        for own in &queues {
            first_queue.push(all.len() as u32);
            all.extend(own);
        }
        let mut counts = vec![0_u32; self.receivers as usize];
        for flow in 0..self.flows {
            let (sender, receiver) = (flow % self.senders, receiver_of(flow));
            let on_sender = flow / self.senders;
            let number = counts[receiver as usize];
            counts[receiver as usize] += 1;
            let choices = queues[receiver as usize].len() as u32;
            let queue = match (&self.receiver_cores, self.interrupts) {
                (Some(cores), _) => {
                    let entry = random.below(cores.indirection.len() as u64) as usize;
                    cores.indirection.get(entry).map_or(0, |queue| queue % choices)
                }
                (None, InterruptCores::WithReader | InterruptCores::OwnCore) => number % choices,
                (
                    None,
                    InterruptCores::EveryCore | InterruptCores::Apart | InterruptCores::OnApplications,
                ) => random.below(choices.into()) as u32,
            };
            let sending = sender * per_host + machine.nic_node * per_node;
            let host = (self.senders + receiver) * per_host;
            let reader = match self.receiver_cores.as_ref().map(|cores| cores.readers.as_slice()) {
                Some(readers @ [_, ..]) => readers[number as usize % readers.len()] % per_host,
                _ => node(self.application_node) * per_node + number % per_node,
            };
            // The sender's interrupts have separate cores.
            let half = per_node / 2;
            flows.push(FlowPlace {
                writer: sending + on_sender % half.max(1),
                reader: host + reader,
                ack_core: sending + half + on_sender % (per_node - half).max(1),
                port: sender * own_ports + on_sender % own_ports,
                queue: first_queue[receiver as usize] + queue,
                receiving_host: self.senders + receiver,
            });
        }
        Placement { hosts, ports, queues: all, flows, cores_per_host: per_host }
    }
}
