//! The run tables of a scenario: link, hosts, switch, workload, measurement, groups.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use super::clients::read_clients;
use super::error::ScenarioErrorKind::{BadValue, Duplicate};
use super::knobs::spelled;
use super::requests::read_requests;
use super::toml_table::{Field, Located, Table};
use super::transfer_knobs::transfer_control;
use super::value::Spelling;
use super::variants::NAME_MARKS;
use super::{
    Effort, Hosts, LatencyProbe, Link, MAX_QUEUES, Measure, Switch, Topology, Window, Workload, WorkloadKind,
};
use crate::text::excerpt;
use crate::units::{BitRate, ByteSize, Nanoseconds};

/// Allowed link rates, in scenarios and on the command line: 1 Mbit/s to 1.6 Tbit/s (IEEE P802.3dj).
pub const LINE_RATES: RangeInclusive<BitRate> =
    BitRate::from_bits_per_second(1_000_000)..=BitRate::from_bits_per_second(1_600_000_000_000);
/// Allowed MTUs: from the size that every IPv4 host must accept (RFC 791) to the longest IPv4 packet.
pub(super) const MTUS: RangeInclusive<ByteSize> = ByteSize::from_bytes(576)..=ByteSize::from_bytes(65_535);
const DEFAULT_MTU: ByteSize = ByteSize::from_bytes(1500);
const SENDING_CORES: RangeInclusive<u32> = 1..=1024;
pub(super) const FLOWS: RangeInclusive<u32> = 1..=100_000;
/// Maximum number of priorities of data-centre bridging: IEEE 802.1Q has eight code points.
const MOST_PRIORITIES: usize = 8;
/// Number of hosts in every workload except a shuffle.
const TWO_HOSTS: u32 = 2;
/// Allowed numbers of hosts in a shuffle. The flows of 320 hosts (ten racks) fit into the memory of a repeat.
const SHUFFLE_HOSTS: RangeInclusive<u32> = 2..=320;
const SHUFFLE_BYTES: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(1 << 30);
/// Bytes of a packet on the wire beyond the MTU: preamble, header, checksum and gap (IEEE 802.3).
const ON_THE_WIRE: u64 = 38;
const SWITCH_BUFFERS: RangeInclusive<ByteSize> = ByteSize::from_kib(1)..=ByteSize::from_kib(16 << 20);
/// Longest name of a congestion control: `TCP_CA_NAME_MAX` minus the final zero (include/net/tcp.h).
const LONGEST_CONGESTION_CONTROL: usize = 15;
const DEFAULT_CONGESTION_CONTROL: &str = "cubic";
const MESSAGES: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(64);
const DEFAULT_MESSAGE: ByteSize = ByteSize::from_bytes(64);
const PROBE_DURATIONS: RangeInclusive<Nanoseconds> = Nanoseconds::from_millis(1)..=LONGEST_REPEAT;
const WARMUPS: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(600);
const DEFAULT_WARMUP: Nanoseconds = Nanoseconds::from_secs(1);
const WINDOWS: RangeInclusive<Nanoseconds> = Nanoseconds::from_micros(10)..=Nanoseconds::from_secs(600);
const MOST_WINDOWS: usize = 8;
const LONGEST_WINDOW_NAME: usize = 16;
const LONG_WINDOWS: RangeInclusive<u32> = 1..=1000;
const DEFAULT_LONG_WINDOWS: u32 = 4;
pub(super) const REPEATS: RangeInclusive<u32> = 1..=1000;
const DEFAULT_REPEATS: u32 = 5;
/// Allowed values of `measure.duration`.
const DURATIONS: RangeInclusive<Nanoseconds> = Nanoseconds::from_millis(1)..=LONGEST_REPEAT;
const LONGEST_REPEAT: Nanoseconds = Nanoseconds::from_secs(24 * 3600);
/// Maximum number of windows of the shortest length in a repeat. The meter has one bin per flow for each of
/// these windows.
const MOST_SHORT_WINDOWS: u64 = 1_000_000;

const TOPOLOGIES: [Spelling<Topology>; 2] = [("soft-nic", Topology::SoftNic), ("mq", Topology::Mq)];

/// The kind of a workload, which is read before the other keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bulk,
    Shuffle,
    Fetch,
    Requests,
    Tenants,
    Transfers,
}

pub(super) const KINDS: [Spelling<Kind>; 6] = [
    ("bulk", Kind::Bulk),
    ("shuffle", Kind::Shuffle),
    ("fetch", Kind::Fetch),
    ("requests", Kind::Requests),
    ("tenants", Kind::Tenants),
    ("transfers", Kind::Transfers),
];

// Names of kinds, for errors about keys that only these kinds have.
pub(super) const BULK: &str = "bulk";
pub(super) const SHUFFLE: &str = "shuffle";
pub(super) const TENANTS: &str = "tenants";
const NOT_TRANSFERS: &str = "bulk, shuffle, fetch, requests or tenants";
pub(super) const NOT_TENANTS: &str = "bulk, shuffle, fetch, requests or transfers";
/// Keys of `[workload]` that only some kinds have, each with the names of these kinds.
const WORKLOAD_KEYS: [(&str, &str); 5] = [
    ("flows", BULK),
    ("latency", BULK),
    ("priority", "bulk or shuffle"),
    ("bytes-per-flow", SHUFFLE),
    ("clients", "fetch or requests"),
];
const WITH_WINDOWS: &str = "bulk or tenants";
const WITH_DURATION: &str = "fetch, requests, tenants or transfers";

/// Returns the kind of a workload, on which other tables depend, or `None` if the kind is invalid.
pub(super) fn kind_of(workload: Option<Field<'_>>) -> Option<Kind> {
    or_default(workload, Kind::Bulk, |field| {
        or_default(field.table()?.take("kind"), Kind::Bulk, |kind| kind.one_of(&KINDS))
    })
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &TOPOLOGIES))
    }
}

/// Returns the value of an optional key: `default` if the key is missing, `None` if the value is invalid.
pub(super) fn or_default<'t, T>(
    field: Option<Field<'t>>,
    default: T,
    read: impl FnOnce(&Field<'t>) -> Option<T>,
) -> Option<T> {
    field.map_or(Some(default), |field| read(&field))
}

pub(super) fn read_link(mut table: Table<'_>, kind: Kind) -> Option<Link> {
    if kind == Kind::Transfers {
        return read_link_of_transfers(table);
    }
    let rate = table.require("rate", "for example rate = \"10gbit\"");
    let rate = rate.and_then(|field| field.quantity(LINE_RATES, "10gbit"));
    let mtu = or_default(table.take("mtu"), DEFAULT_MTU, |field| field.quantity(MTUS, "1500B"));
    let queues =
        table.require("queues", "for example queues = 8").and_then(|field| field.integer(1..=MAX_QUEUES));
    let topology = or_default(table.take("topology"), Topology::SoftNic, |field| field.one_of(&TOPOLOGIES));
    let priorities = or_default(table.take("priorities"), Vec::new(), |field| read_priorities(field, queues));
    let receive_queues = match kind {
        Kind::Bulk | Kind::Shuffle | Kind::Fetch => {
            or_default(table.take("receive-queues"), None, |field| field.integer(1..=MAX_QUEUES).map(Some))
        }
        // The link's queues receive the requests. Tenants and transfers do not use this value.
        Kind::Requests | Kind::Tenants | Kind::Transfers => Some(None),
    };
    table.finish_except(&[("receive-queues", "bulk, shuffle or fetch")]);
    Some(Link {
        rate: rate?,
        mtu: mtu?,
        queues: queues?,
        topology: topology?,
        priorities: priorities?,
        receive_queues: receive_queues?,
    })
}

/// Reads `[link]` of transfers, which has only a rate. The variants set the MTU, and transfers do not use the
/// other fields.
fn read_link_of_transfers(mut table: Table<'_>) -> Option<Link> {
    let rate = table.require("rate", "for example rate = \"100gbit\"");
    let rate = rate.and_then(|field| field.quantity(LINE_RATES, "100gbit"));
    table.finish_except(&[("mtu", NOT_TRANSFERS), ("queues", NOT_TRANSFERS), ("topology", NOT_TRANSFERS)]);
    Some(Link {
        rate: rate?,
        mtu: DEFAULT_MTU,
        queues: 1,
        topology: Topology::SoftNic,
        priorities: Vec::new(),
        receive_queues: None,
    })
}

/// Reads `link.priorities`; together, the priorities must have all of the link's queues.
fn read_priorities(field: &Field<'_>, queues: Option<u32>) -> Option<Vec<u32>> {
    let elements = field.list("tables, each { queues = N }")?;
    if elements.is_empty() || elements.len() > MOST_PRIORITIES {
        let problem = format!("the link has {} priorities", elements.len());
        field.complain(BadValue, problem, format!("state 1 to {MOST_PRIORITIES}, or leave the key out"));
        return None;
    }
    let mut priorities = Vec::with_capacity(elements.len());
    for element in &elements {
        let mut table = element.table()?;
        let own = table.require("queues", "for example { queues = 2 }");
        let own = own.and_then(|field| field.integer(1..=MAX_QUEUES));
        table.finish();
        priorities.push(own?);
    }
    let sum: u32 = priorities.iter().sum();
    if let Some(queues) = queues.filter(|queues| *queues != sum) {
        let problem = format!("the priorities have {sum} queues in all, and the link has {queues}");
        field.complain(BadValue, problem, "give every queue to one priority");
        return None;
    }
    Some(priorities)
}

/// Reads the `priority` of flows: an index into `link.priorities`. `link` is `None` if `[link]` is invalid.
pub(super) fn read_priority(field: Option<Field<'_>>, link: Option<&Link>) -> Option<u32> {
    or_default(field, 0, |field| {
        let Some(link) = link else { return field.integer(0..=MAX_QUEUES) };
        let Some(last) = link.priorities.len().checked_sub(1) else {
            field.complain(
                BadValue,
                "the link has no priorities",
                "add link.priorities, or leave the key out",
            );
            return None;
        };
        field.integer(0..=last as u32)
    })
}

pub(super) fn read_hosts(mut table: Table<'_>, kind: Kind) -> Option<Hosts> {
    let count = match kind {
        Kind::Bulk | Kind::Fetch | Kind::Requests | Kind::Tenants | Kind::Transfers => Some(TWO_HOSTS),
        Kind::Shuffle => {
            table.require("count", "for example count = 24").and_then(|field| field.integer(SHUFFLE_HOSTS))
        }
    };
    let cores = table.require("sending-cores", "for example sending-cores = 8");
    let sending_cores = cores.and_then(|field| field.integer(SENDING_CORES));
    table.finish_except(&[("count", SHUFFLE)]);
    Some(Hosts { count: count?, sending_cores: sending_cores? })
}

/// Returns the default hosts: two hosts, with one sending core per queue.
pub(super) fn default_hosts(link: &Link) -> Hosts {
    Hosts { count: TWO_HOSTS, sending_cores: link.queues }
}

/// Reads `[switch]`, whose buffer must hold at least one packet of the link's MTU.
pub(super) fn read_switch(mut table: Table<'_>, link: Option<&Link>) -> Option<Switch> {
    let buffer = table.require("buffer", "for example buffer = \"12MB\"");
    let buffer = buffer.and_then(|field| {
        let buffer: ByteSize = field.quantity(SWITCH_BUFFERS, "12MB")?;
        let packet = link.map_or(0, |link| link.mtu.bytes() + ON_THE_WIRE);
        if buffer.bytes() < packet {
            let problem = format!("a packet takes {packet} bytes, and the buffer has {}", buffer.bytes());
            field.complain(BadValue, problem, "state a larger buffer, or a smaller link.mtu");
        }
        Some(buffer)
    });
    table.finish();
    Some(Switch { buffer: buffer? })
}

/// Reads `[workload]`. `link` has the priorities. `measure` (if valid) limits the latency probe and the times
/// of request clients. `hosts` are the hosts of a shuffle. `variants` are the names of the variants, or
/// `None` if they could not be read.
pub(super) fn read_workload(
    mut table: Table<'_>,
    link: Option<&Link>,
    measure: Option<&Measure>,
    hosts: Option<&Hosts>,
    variants: Option<&BTreeSet<&str>>,
) -> Option<Workload> {
    let kind = or_default(table.take("kind"), Kind::Bulk, |field| field.one_of(&KINDS));
    let (kind, flows) = match kind {
        Some(Kind::Shuffle) => {
            let bytes = table.require("bytes-per-flow", "for example bytes-per-flow = \"1GB\"");
            let bytes = bytes.and_then(|field| field.quantity(SHUFFLE_BYTES, "1GB"));
            let kind = bytes.map(|bytes_per_flow| WorkloadKind::Shuffle { bytes_per_flow });
            (kind, hosts.map(|hosts| hosts.count - 1))
        }
        Some(Kind::Fetch) => {
            let clients = table.require("clients", "add for example [[workload.clients]] with count = 6");
            let clients = clients.and_then(|field| read_clients(&field, link));
            let flows = clients.as_ref().map(|clients| clients.iter().map(|group| group.count).sum());
            (clients.map(|clients| WorkloadKind::Fetch { clients }), flows)
        }
        Some(Kind::Requests) => {
            let requests = read_requests(&mut table, measure, variants);
            table.finish_except(&WORKLOAD_KEYS);
            return requests.map(|requests| Workload {
                flows: requests.clients.iter().map(|group| group.count * group.flows).sum(),
                kind: WorkloadKind::Requests(requests),
                // Requests use UDP, so this value has no effect.
                congestion_control: DEFAULT_CONGESTION_CONTROL.to_owned(),
                priority: 0,
                latency: None,
            });
        }
        // The variants set the number of flows of transfers.
        Some(Kind::Transfers) => (Some(WorkloadKind::Transfers), Some(0)),
        // Tenants do not occur here: `sweep.rs` reads their scenarios.
        Some(Kind::Bulk | Kind::Tenants) => {
            let flows = table.require("flows", "for example flows = 12");
            (Some(WorkloadKind::Bulk), flows.and_then(|field| field.integer(FLOWS)))
        }
        None => (None, table.take("flows").and_then(|field| field.integer(FLOWS))),
    };
    let congestion_control = or_default(
        table.take("congestion-control"),
        DEFAULT_CONGESTION_CONTROL.to_owned(),
        |field| match kind {
            Some(WorkloadKind::Transfers) => transfer_control(field).map(|control| control.to_string()),
            _ => congestion_control(field),
        },
    );
    let priority = match kind {
        Some(WorkloadKind::Fetch { .. } | WorkloadKind::Transfers) => Some(0),
        _ => read_priority(table.take("priority"), link),
    };
    let latency = match kind {
        Some(WorkloadKind::Shuffle { .. } | WorkloadKind::Fetch { .. } | WorkloadKind::Transfers) => {
            Some(None)
        }
        _ => or_default(table.take("latency"), None, |field| {
            read_probe(field.table()?, link, measure).map(Some)
        }),
    };
    table.finish_except(&WORKLOAD_KEYS);
    Some(Workload {
        kind: kind?,
        flows: flows?,
        congestion_control: congestion_control?,
        priority: priority?,
        latency: latency?,
    })
}

pub(super) fn congestion_control(field: &Field<'_>) -> Option<String> {
    let name = field.string("the name of a congestion control")?;
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !name.is_empty() && name.len() <= LONGEST_CONGESTION_CONTROL && name.chars().all(good) {
        return Some(name.to_owned());
    }
    let problem = format!("'{}' cannot name a congestion control", excerpt(name));
    let advice = format!("use 1 to {LONGEST_CONGESTION_CONTROL} of a-z, 0-9 and '_', for example \"cubic\"");
    field.complain(BadValue, problem, advice);
    None
}

fn read_probe(mut table: Table<'_>, link: Option<&Link>, measure: Option<&Measure>) -> Option<LatencyProbe> {
    let message = or_default(table.take("message"), DEFAULT_MESSAGE, |field| field.quantity(MESSAGES, "64B"));
    let duration = table.require("duration", "for example duration = \"2s\"").and_then(|field| {
        let duration = field.quantity(PROBE_DURATIONS, "2s")?;
        let repeat = measure.map(Measure::duration).filter(|repeat| duration > *repeat);
        if let Some(repeat) = repeat {
            let problem = format!("a probe of {duration} outlasts the measurement of {repeat}");
            field.complain(BadValue, problem, "shorten it, or raise measure.long-windows");
        }
        Some(duration)
    });
    let priority = read_priority(table.take("priority"), link);
    table.finish();
    Some(LatencyProbe { message: message?, duration: duration?, priority: priority? })
}

impl Measure {
    /// Returns the length of a repeat at the link's nominal rate, with its warm-up; 0 for a shuffle.
    #[must_use]
    pub fn whole(&self) -> Nanoseconds {
        Nanoseconds::new(self.warmup.as_u64().saturating_add(self.duration().as_u64()))
    }

    /// Returns the length of a repeat at the link's nominal rate, without its warm-up; 0 for a shuffle.
    #[must_use]
    pub fn duration(&self) -> Nanoseconds {
        if let Some(length) = self.length {
            return length;
        }
        let longest = self.windows.iter().map(|window| window.length).max().unwrap_or_default();
        longest.saturating_mul(u64::from(self.long_windows))
    }
}

/// Reads `[measure]` of a shuffle, which lasts from the start of its first flow to the end of its last flow.
pub(super) fn read_shuffle_measure(table: Option<Table<'_>>) -> Option<Measure> {
    let mut repeats = Some(DEFAULT_REPEATS);
    if let Some(mut table) = table {
        repeats = or_default(table.take("repeats"), DEFAULT_REPEATS, |field| field.integer(REPEATS));
        table.finish_except(&[
            ("warmup", "bulk, fetch, requests, tenants or transfers"),
            ("windows", WITH_WINDOWS),
            ("long-windows", BULK),
            ("duration", WITH_DURATION),
            ("quick", TENANTS),
        ]);
    }
    Some(Measure {
        warmup: Nanoseconds::new(0),
        windows: Vec::new(),
        length: None,
        long_windows: 1,
        repeats: repeats?,
    })
}

/// Reads `[measure]` of fetches, requests or transfers. There are no windows, because flows do not always
/// have a backlog.
pub(super) fn read_fetch_measure(mut table: Table<'_>) -> Option<Measure> {
    let warmup = or_default(table.take("warmup"), DEFAULT_WARMUP, |field| field.quantity(WARMUPS, "1s"));
    let length = table.require("duration", "for example duration = \"4s\"");
    let length = length.and_then(|field| field.quantity(DURATIONS, "4s"));
    let repeats = or_default(table.take("repeats"), DEFAULT_REPEATS, |field| field.integer(REPEATS));
    table.finish_except(&[("windows", WITH_WINDOWS), ("long-windows", BULK), ("quick", TENANTS)]);
    Some(Measure {
        warmup: warmup?,
        windows: Vec::new(),
        length: Some(length?),
        long_windows: 1,
        repeats: repeats?,
    })
}

/// Reads `[measure]` of tenants with its values for quick runs. Windows are optional, and require
/// `workload.line`.
pub(super) fn read_tenants_measure(mut table: Table<'_>, has_line: bool) -> Option<(Measure, Effort)> {
    let full = read_effort(&mut table, None);
    let quick = match table.take("quick") {
        Some(field) => field.table().and_then(|mut table| {
            let quick = read_effort(&mut table, full);
            table.finish();
            quick
        }),
        None => full,
    };
    let windows = table.take("windows");
    if let Some(windows) = windows.as_ref().filter(|_| !has_line) {
        let problem = "fairness is measured only with workload.line = true";
        windows.at_key().complain(BadValue, problem, "remove the windows, or set workload.line = true");
    }
    let lengths = or_default(windows.clone(), Vec::new(), read_windows);
    table.finish_except(&[("long-windows", BULK)]);
    let (full, quick, lengths) = (full?, quick?, lengths?);
    let longest = lengths.last().filter(|window| window.length > full.duration.min(quick.duration));
    if let Some((window, field)) = longest.zip(windows) {
        let problem = format!("the window '{}' does not fit into a repeat", excerpt(&window.name));
        field.complain(
            BadValue,
            problem,
            "raise the duration of full and quick repeats, or remove the window",
        );
    }
    let measure = Measure {
        warmup: full.warmup,
        windows: lengths,
        length: Some(full.duration),
        long_windows: 1,
        repeats: full.repeats,
    };
    Some((measure, quick))
}

/// Reads the times and repeats of `[measure]` or `[measure.quick]`. `otherwise` has the defaults. Without it,
/// `duration` is required.
fn read_effort(table: &mut Table<'_>, otherwise: Option<Effort>) -> Option<Effort> {
    let warmup = otherwise.map_or(DEFAULT_WARMUP, |effort| effort.warmup);
    let warmup = or_default(table.take("warmup"), warmup, |field| field.quantity(WARMUPS, "1s"));
    let duration = match (table.take("duration"), otherwise) {
        (Some(field), _) => field.quantity(DURATIONS, "4s"),
        (None, Some(otherwise)) => Some(otherwise.duration),
        (None, None) => {
            table.missing("duration", "for example duration = \"4s\"");
            None
        }
    };
    let repeats = otherwise.map_or(DEFAULT_REPEATS, |effort| effort.repeats);
    let repeats = or_default(table.take("repeats"), repeats, |field| field.integer(REPEATS));
    Some(Effort { warmup: warmup?, duration: duration?, repeats: repeats? })
}

pub(super) fn read_measure(mut table: Table<'_>) -> Option<Measure> {
    let warmup = or_default(table.take("warmup"), DEFAULT_WARMUP, |field| field.quantity(WARMUPS, "1s"));
    let windows_field = table.require("windows", "add for example [measure.windows] with 1s = \"1s\"");
    let windows = windows_field.as_ref().and_then(read_windows);
    if let (Some(field), Some(windows)) = (&windows_field, &windows) {
        check_multiples(field, windows);
    }
    let long_windows =
        or_default(table.take("long-windows"), DEFAULT_LONG_WINDOWS, |field| field.integer(LONG_WINDOWS));
    let repeats = or_default(table.take("repeats"), DEFAULT_REPEATS, |field| field.integer(REPEATS));
    table.finish_except(&[("duration", WITH_DURATION), ("quick", TENANTS)]);
    let measure = Measure {
        warmup: warmup?,
        windows: windows?,
        length: None,
        long_windows: long_windows?,
        repeats: repeats?,
    };
    check_extent(&measure, windows_field.as_ref()?);
    Some(measure)
}

/// Reports a repeat that would last too long or need too many bins.
fn check_extent(measure: &Measure, windows: &Field<'_>) {
    let duration = measure.duration();
    let shortest = measure.windows.first().map_or(1, |window| window.length.as_u64().max(1));
    let bins = duration.as_u64() / shortest;
    if duration > LONGEST_REPEAT {
        let problem = format!("a repeat of {} longest windows takes {duration}", measure.long_windows);
        let advice = format!(
            "lower measure.long-windows or shorten the longest window: a repeat takes at most {LONGEST_REPEAT}"
        );
        windows.complain(BadValue, problem, advice);
    } else if bins > MOST_SHORT_WINDOWS {
        let problem = format!("a repeat of {duration} has {bins} windows of the shortest length");
        windows.complain(
            BadValue,
            problem,
            format!("use a shorter repeat or a longer shortest window: at most {MOST_SHORT_WINDOWS} fit"),
        );
    }
}

/// Reports windows whose length is not a multiple of the shortest length, because a bin is as long as the
/// shortest window.
fn check_multiples(field: &Field<'_>, windows: &[Window]) {
    let (Some(table), Some(shortest)) = (field.table(), windows.first()) else { return };
    let shortest_ns = shortest.length.as_u64().max(1);
    for (name, field) in table.entries() {
        let Some(window) = windows.iter().find(|window| window.name == name) else { continue };
        let length = window.length.as_u64();
        if !length.is_multiple_of(shortest_ns) {
            let below = length / shortest_ns * shortest_ns;
            let (lower, upper) = (Nanoseconds::new(below), Nanoseconds::new(below + shortest_ns));
            let shortest = format!("'{}' of {}", excerpt(&shortest.name), shortest.length);
            let problem = format!("{} is not a multiple of the shortest window, {shortest}", window.length);
            let nearest =
                if lower.as_u64() == shortest_ns { upper.to_string() } else { format!("{lower} or {upper}") };
            field.complain(BadValue, problem, format!("use {nearest}, or another shortest window"));
        }
    }
}

/// Reads the windows, sorted by length. Returns `None` for a wrong type, without a window, or with an invalid
/// length, because dependent values cannot be checked then.
fn read_windows(field: &Field<'_>) -> Option<Vec<Window>> {
    let table = field.table()?;
    if table.is_empty() {
        field.complain(BadValue, "empty", "state at least one window, for example 1s = \"1s\"");
        return None;
    }
    let mut windows: Vec<Window> = Vec::new();
    let mut complete = true;
    for (number, (name, field)) in table.entries().enumerate() {
        if number == MOST_WINDOWS {
            field.at_key().complain(BadValue, format!("more than {MOST_WINDOWS} windows"), "leave some out");
            break;
        }
        check_window_name(name, &field.at_key());
        let Some(length) = field.quantity(WINDOWS, "1ms") else {
            complete = false;
            continue;
        };
        // A name that does not match the length of the window would mislead in every table of results.
        if name.parse::<Nanoseconds>().is_ok_and(|named| named != length) {
            let problem = format!("the window '{}' is {length} long", excerpt(name));
            field.complain(BadValue, problem, "write the length of the window as its name, or use a word");
        }
        if let Some(same) = windows.iter().find(|window| window.length == length) {
            let problem = format!("the window '{}' has the same length", excerpt(&same.name));
            field.complain(Duplicate, problem, "remove one of the two windows");
        }
        windows.push(Window { name: name.to_owned(), length });
    }
    windows.sort_by_key(|window| window.length);
    complete.then_some(windows)
}

fn check_window_name(name: &str, key: &Field<'_>) {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > LONGEST_WINDOW_NAME || !name.chars().all(good) {
        let problem = format!("'{}' cannot name a window", excerpt(name));
        let advice = format!("use 1 to {LONGEST_WINDOW_NAME} letters, digits, '-' and '_', for example 1ms");
        key.complain(BadValue, problem, advice);
    }
}

pub(super) fn read_groups(
    table: &Table<'_>,
    variants: Option<&BTreeSet<&str>>,
) -> BTreeMap<String, Vec<Located<String>>> {
    let read_one = |(name, field): (&str, Field<'_>)| {
        let key = field.at_key();
        // The command line accepts groups and variants in the same argument.
        if key.check_name(name, NAME_MARKS) && variants.is_some_and(|variants| variants.contains(name)) {
            let problem = format!("'{}' is a variant already", excerpt(name));
            key.complain(Duplicate, problem, "give the group another name");
        }
        Some((name.to_owned(), field.names("variant", variants)?))
    };
    table.entries().filter_map(read_one).collect()
}
