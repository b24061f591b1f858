//! The knobs of a variant with transfers: hosts, the path between them, and the cores that do the work.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use super::error::ScenarioErrorKind::BadValue;
use super::knobs::{Clash, knob, knobs, spelled};
use super::receive_knobs::{with_text, word, word_or_own};
use super::sections::{LINE_RATES, MTUS};
use super::toml_table::{Field, Located, Table};
use super::value::Spelling;
use super::{Link, Supplied};
use crate::machine::MachineProfile;
use crate::units::{BitRate, ByteSize, Nanoseconds};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMachine {
    /// The servers of *TCP at 100 Gbit/s* (LCN 2019), with processors from 2014: two packages, each with 8
    /// cores of 2.4 GHz.
    Kit2014,
    /// The servers of *Understanding Host Network Stack Overheads* (SIGCOMM 2021): four packages, each with 6
    /// cores of 3.4 GHz.
    Xeon6128,
    /// A machine that a profile of the user describes.
    Own(Supplied),
}

impl HostMachine {
    /// Returns the user's profile; `None` for a built-in machine.
    #[must_use]
    pub fn own(&self) -> Option<&Supplied> {
        if let Self::Own(own) = self { Some(own) } else { None }
    }

    /// Returns the profile of the machine.
    ///
    /// # Errors
    /// Returns the first error in the user's profile, or an error if the caller has not read the profile
    /// ([`super::Scenario::supplied`]).
    pub fn profile(&self) -> Result<MachineProfile, String> {
        match self {
            Self::Kit2014 => Ok(MachineProfile::kit_2014()),
            Self::Xeon6128 => Ok(MachineProfile::xeon_6128()),
            Self::Own(own) => {
                let text = own.text.as_deref().ok_or_else(|| format!("{} was not read", own.origin))?;
                MachineProfile::parse(text, &own.origin).map_err(|error| error.to_string())
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNode {
    Nic,
    /// The node of another package.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptCores {
    /// A queue on each core of the node; the hash of a flow chooses one.
    EveryCore,
    /// Only cores without an application.
    Apart,
    /// Only cores with an application.
    OnApplications,
    /// The core of the flow's application (aRFS).
    WithReader,
    /// A separate core for each flow.
    OwnCore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferControl {
    Cubic,
    Reno,
    /// BBR version 1.
    Bbr,
    /// BBR version 1 as in Linux 4.15.
    Bbr415,
    Bbr3,
    /// Data Center TCP, with ECN.
    Dctcp,
    Lola,
    /// TCP LoLa without reaction to loss.
    LolaNoLoss,
}

/// A setting of hosts that no other knob sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherTuning {
    /// `tcp_mem`.
    TcpMemory,
    /// `netdev_max_backlog`.
    Backlog,
    /// `tcp_mtu_probing`.
    MtuProbing,
    Irqbalance,
}

const MACHINES: [Spelling<HostMachine>; 2] =
    [("kit-2014", HostMachine::Kit2014), ("xeon-6128", HostMachine::Xeon6128)];
const NODES: [Spelling<HostNode>; 2] = [("nic", HostNode::Nic), ("other", HostNode::Other)];
const INTERRUPT_CORES: [Spelling<InterruptCores>; 5] = [
    ("every-core", InterruptCores::EveryCore),
    ("apart", InterruptCores::Apart),
    ("on-applications", InterruptCores::OnApplications),
    ("with-reader", InterruptCores::WithReader),
    ("own-core", InterruptCores::OwnCore),
];

const CONTROLS: [Spelling<TransferControl>; 8] = [
    ("cubic", TransferControl::Cubic),
    ("reno", TransferControl::Reno),
    ("bbr", TransferControl::Bbr),
    ("bbr-4.15", TransferControl::Bbr415),
    ("bbr3", TransferControl::Bbr3),
    ("dctcp", TransferControl::Dctcp),
    ("lola", TransferControl::Lola),
    ("lola-no-loss", TransferControl::LolaNoLoss),
];

const OTHER_TUNINGS: [Spelling<Option<OtherTuning>>; 5] = [
    ("none", None),
    ("tcp-memory", Some(OtherTuning::TcpMemory)),
    ("backlog", Some(OtherTuning::Backlog)),
    ("mtu-probing", Some(OtherTuning::MtuProbing)),
    ("irqbalance", Some(OtherTuning::Irqbalance)),
];

macro_rules! spelled_as {
    ($($type:ident: $spellings:ident),*) => {
        $(impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(spelled(*self, &$spellings))
            }
        })*
    };
}
spelled_as!(HostNode: NODES, InterruptCores: INTERRUPT_CORES, TransferControl: CONTROLS);

impl fmt::Display for HostMachine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(word(self, &MACHINES, self.own()))
    }
}

const OFF: &str = "off";
/// Allowed numbers of senders, or of receivers. More hosts would only share the same bottleneck.
const HOSTS: RangeInclusive<u32> = 1..=64;
const FLOWS: RangeInclusive<u32> = 1..=1000;
const PORTS: RangeInclusive<usize> = 1..=8;
const REVERSE_DELAYS: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_millis(400);
const START_INTERVALS: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(3600);
const READER_WORK: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(1);
const READER_STALL: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(1);
/// Allowed round trips: from the host's own delay to a path around the earth.
const ROUND_TRIPS: RangeInclusive<Nanoseconds> = Nanoseconds::from_micros(5)..=Nanoseconds::from_millis(400);
const BUFFERS: RangeInclusive<ByteSize> = ByteSize::from_kib(16)..=ByteSize::from_kib(16 << 20);
/// Allowed limits of `tcp_rmem` and `tcp_wmem`, which are of type `int`.
const SOCKET_BUFFERS: RangeInclusive<ByteSize> = ByteSize::from_kib(64)..=ByteSize::from_bytes((1 << 31) - 1);
/// Allowed descriptors of a receive ring; `rx_max_pending` of mlx5 is 8192.
const RINGS: RangeInclusive<u32> = 64..=65_536;

knobs! {
    #[derive(Clone, Debug, PartialEq)]
    struct TransferKnobs, TransferSettings;

    machine: HostMachine, "machine", |field| word_or_own(field, &MACHINES, HostMachine::Own),
        |machine| with_text(machine, machine.own());
    senders: u32, "senders" or 1, |field| field.integer(HOSTS), ToString::to_string;
    /// Receiving hosts; flows are assigned to them round robin.
    receivers: u32, "receivers" or 1, |field| field.integer(HOSTS), ToString::to_string;
    /// Number of flows of all hosts together.
    flows: u32, "flows", |field| field.integer(FLOWS), ToString::to_string;
    /// Time between the starts of two consecutive flows.
    start_interval: Nanoseconds, "start-interval" or Nanoseconds::new(0),
        |field| field.quantity(START_INTERVALS, "30s"), ToString::to_string;
    /// Rate of each port of a sending host. The host's flows are assigned to the ports round robin.
    ports: Vec<BitRate>, "ports", ports, |ports| list(ports);
    /// Buffer of the switch in front of the link that all flows share; `None` if the hosts are
    /// connected directly.
    switch_buffer: Option<ByteSize>, "switch-buffer" or None,
        |field| field.word_or_quantity(&[(OFF, None)], BUFFERS, "16MiB", Some), or_off;
    /// Round-trip time with empty queues.
    round_trip: Nanoseconds, "round-trip", |field| field.quantity(ROUND_TRIPS, "40us"), ToString::to_string;
    /// Additional delay of acknowledgements, as from a delay emulator on the path from the receivers.
    reverse_delay: Nanoseconds, "reverse-delay" or Nanoseconds::new(0),
        |field| field.quantity(REVERSE_DELAYS, "20ms"), |delay| unless_default(delay, &Nanoseconds::new(0));
    /// Congestion controls, to which flows are assigned round robin. An empty list means the workload's
    /// congestion control.
    congestion_control: Vec<TransferControl>, "congestion-control" or Vec::new(),
        transfer_controls, |controls| list(controls);
    /// Backlog in front of the link above which the switch marks packets of flows with ECN.
    ecn_threshold: Option<ByteSize>, "ecn-threshold" or None,
        |field| field.word_or_quantity(&[(OFF, None)], BUFFERS, "1MiB", Some),
        |threshold| threshold.map(|it| it.to_string()).unwrap_or_default();
    /// Whether the series of a record contain the window, round-trip time, pacing rate and packets in
    /// flight of each flow.
    tcp_series: bool, "tcp-series" or false, Field::boolean, |series| unless_default(series, &false);
    mtu: ByteSize, "mtu", |field| field.quantity(MTUS, "9000B"), ToString::to_string;
    /// Descriptors of each receive ring.
    ring: u32, "ring", |field| field.integer(RINGS), ToString::to_string;
    /// Segmentation offload (TSO and GSO).
    tso: bool, "tso", Field::boolean, ToString::to_string;
    gro: bool, "gro", Field::boolean, ToString::to_string;
    /// Whether TCP's segments are paced (`fq`).
    pacing: bool, "pacing", Field::boolean, ToString::to_string;
    /// Largest receive buffer (`tcp_rmem`).
    receive_buffer: ByteSize, "receive-buffer", |field| field.quantity(SOCKET_BUFFERS, "6MiB"), ToString::to_string;
    /// Largest send buffer (`tcp_wmem`).
    send_buffer: ByteSize, "send-buffer", |field| field.quantity(SOCKET_BUFFERS, "4MiB"), ToString::to_string;
    /// Processor time that an application works on each MiB after reading it.
    reader_work: Nanoseconds, "reader-work" or Nanoseconds::new(0),
        |field| field.quantity(READER_WORK, "2ms"), |work| unless_default(work, &Nanoseconds::new(0));
    /// Time that an application sleeps within each read, while it owns the socket.
    reader_stall: Nanoseconds, "reader-stall" or Nanoseconds::new(0),
        |field| field.quantity(READER_STALL, "5ms"), |stall| unless_default(stall, &Nanoseconds::new(0));
    interrupts: InterruptCores, "interrupts", |field| field.one_of(&INTERRUPT_CORES), ToString::to_string;
    /// NUMA node of the interrupt cores.
    interrupt_node: HostNode, "interrupt-node" or HostNode::Nic, |field| field.one_of(&NODES), ToString::to_string;
    application_node: HostNode, "application-node" or HostNode::Nic,
        |field| field.one_of(&NODES), ToString::to_string;
    /// Whether the governor keeps the processors at their highest frequency (`performance`).
    highest_clock: bool, "highest-clock" or true, Field::boolean, ToString::to_string;
    /// A further setting that the variant changes; only some worlds support it.
    other_tuning: Option<OtherTuning>, "other-tuning" or None,
        |field| field.one_of(&OTHER_TUNINGS), |setting| spelled(*setting, &OTHER_TUNINGS).to_owned();
}

fn or_off(buffer: &Option<ByteSize>) -> String {
    buffer.map_or_else(|| OFF.to_owned(), |buffer| buffer.to_string())
}

/// Returns an empty text for the default, so that records without the knob keep their form.
fn unless_default<T: PartialEq + fmt::Display>(value: &T, default: &T) -> String {
    if value == default { String::new() } else { value.to_string() }
}

pub(super) fn transfer_control(field: &Field<'_>) -> Option<TransferControl> {
    field.one_of(&CONTROLS)
}

fn list(values: &[impl fmt::Display]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
}

fn transfer_controls(field: &Field<'_>) -> Option<Vec<TransferControl>> {
    if field.text().is_some() {
        return transfer_control(field).map(|control| vec![control]);
    }
    let elements = field.list("congestion controls, for example [\"cubic\", \"lola\"]")?;
    if elements.is_empty() {
        field.complain(BadValue, "an empty list", "name at least one congestion control");
        return None;
    }
    elements.iter().map(transfer_control).collect()
}

fn ports(field: &Field<'_>) -> Option<Vec<BitRate>> {
    let elements = field.list("rates, for example [\"100gbit\"]")?;
    if !PORTS.contains(&elements.len()) {
        let problem = format!("{} ports", elements.len());
        field.complain(BadValue, problem, format!("state {} to {} rates", PORTS.start(), PORTS.end()));
        return None;
    }
    elements.iter().map(|element| element.quantity(LINE_RATES, "100gbit")).collect()
}

impl TransferKnobs {
    /// Returns the rate that limits all flows together: the rate of the ports in use, and behind a switch
    /// at most the rate of the link.
    #[must_use]
    pub fn limit(&self, link: BitRate) -> BitRate {
        let of_sender = |sender: u32| {
            let flows = (self.flows + self.senders - 1 - sender) / self.senders.max(1);
            let used = self.ports.iter().take(flows as usize);
            used.map(|port| port.bits_per_second()).sum::<u64>()
        };
        let ports = BitRate::from_bits_per_second((0..self.senders).map(of_sender).sum());
        if self.switch_buffer.is_some() { ports.min(link) } else { ports }
    }
}

impl TransferSettings {
    /// Returns the first conflict within the knobs, with the link, or with the length of a repeat.
    pub(super) fn clash(&self, link: &Link, length: Nanoseconds) -> Option<Clash> {
        let knobs = self.knobs()?;
        let hosts = knobs.senders.max(knobs.receivers);
        if knobs.flows < hosts {
            return Some(Clash {
                knobs: &["flows", "senders", "receivers"],
                problem: format!(
                    "one side has {hosts} hosts, but the variant has only {} flows",
                    knobs.flows
                ),
                advice: "use at least one flow for each host".to_owned(),
            });
        }
        let last = knobs.start_interval.saturating_mul(u64::from(knobs.flows - 1));
        if last >= length {
            return Some(Clash {
                knobs: &["start-interval", "flows"],
                problem: format!(
                    "the last of {} flows would start after {last}, and a repeat with its warm-up takes {length}",
                    knobs.flows
                ),
                advice: "state a shorter interval, or a longer measure.warmup or measure.duration".to_owned(),
            });
        }
        let one_of_each = knobs.congestion_control.len();
        if one_of_each > knobs.flows as usize {
            return Some(Clash {
                knobs: &["congestion-control", "flows"],
                problem: format!("{} flows cannot use {one_of_each} congestion controls", knobs.flows),
                advice: "use at least one flow for each congestion control".to_owned(),
            });
        }
        if let Some(threshold) = knobs.ecn_threshold
            && knobs.switch_buffer.is_none_or(|buffer| buffer < threshold)
        {
            return Some(Clash {
                knobs: &["ecn-threshold", "switch-buffer"],
                problem: match knobs.switch_buffer {
                    Some(buffer) => {
                        format!("the switch drops packets from {buffer} on, and would never mark")
                    }
                    None => "ecn-threshold needs a switch, but the variant has none".to_owned(),
                },
                advice: "state a switch-buffer above the threshold".to_owned(),
            });
        }
        let ports = knobs.limit(link.rate);
        (knobs.switch_buffer.is_none() && ports != link.rate).then(|| Clash {
            knobs: &["ports", "switch-buffer", "senders", "flows"],
            problem: format!(
                "the ports in use carry {ports}, and without a switch link.rate must be the same, not {}",
                link.rate
            ),
            advice: if LINE_RATES.contains(&ports) {
                format!("state link.rate = \"{ports}\", other ports, or a switch-buffer")
            } else {
                let most = LINE_RATES.end();
                format!(
                    "link.rate is at most {most}: use fewer senders or ports, slower ports, or a \
                     switch-buffer"
                )
            },
        })
    }
}
