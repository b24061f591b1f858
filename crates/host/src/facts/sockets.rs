//! Sockets. TCP sockets come from the kernel or, in a recorded tree, from `evenkeel/sockets.json`. UDP and
//! raw sockets come from `/proc/net/udp`, `udp6`, `raw` and `raw6`, which count each socket's drops.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_model::host::{
    Interface, PortUse, ProcessFacts, SocketFacts, SocketKind, TcpFacts, parse_processor_list,
};
use evenkeel_model::text::excerpt;
use evenkeel_netlink::sock_diag::{SocketDetail, SocketDiagnosis, SocketProtocol, SocketRecord, SocketState};
use evenkeel_netlink::{AddressOwner, LocalAddresses};

use super::distinct::{repeated, second};
use super::protocols::has_ipv6;
use super::ranges::{CONNECTIONS, OF_CONNECTION, PATH_MTU, ROUND_TRIP_US};
use super::tree::{Bits, Tree, unreadable};
use crate::owner::Owners;
use crate::{Host, HostError};

/// Name of the source for rules that need TCP sockets.
const SOURCE: &str = "netlink/sockets";
/// Name of the source for rules that need the destination with the most connections.
const PORTS: &str = "netlink/ports";
/// Name of the source for rules that need the owners of sockets.
const OWNERS: &str = "/proc/PID/fd";
/// Names of processes that affect interrupts; read even without sockets.
const SERVICES: &[&str] = &["irqbalance"];
/// Maximum number of sockets in the facts. The facts keep the sockets with the most drops, then those with
/// the most bytes, because no rule needs more.
const MOST_SOCKETS: usize = 4096;

pub(super) struct Sockets {
    pub(super) sockets: Vec<SocketFacts>,
    pub(super) processes: Vec<ProcessFacts>,
    pub(super) ports: Option<PortUse>,
}

/// Returns the sockets of the namespace, their owners, and the destination with the most connections.
pub(super) fn sockets(
    tree: &Tree,
    interfaces: &BTreeMap<u32, String>,
    known: &[Interface],
) -> Result<Sockets, HostError> {
    let mut numbers: BTreeSet<u32> = BTreeSet::new();
    let mut found: Vec<SocketFacts> = Vec::new();
    let datagrams = datagram_sockets(tree);
    let ports;
    if tree.is_live() {
        let mut inodes: HashMap<u32, usize> = HashMap::new();
        let records = tcp_sockets();
        let is_listed = records.is_ok();
        match records {
            Ok(records) => {
                let addresses = LocalAddresses::read().inspect_err(|error| {
                    tree.note(SOURCE, format!("the interfaces of TCP connections: {error}"));
                });
                let addresses = addresses.unwrap_or_default();
                for (record, detail) in records {
                    inodes.insert(record.inode, found.len());
                    let interface = interface_of(tree, &record, &addresses, interfaces);
                    found.push(tcp_facts(&record, detail, interface));
                }
            }
            Err(error) => {
                for source in [SOURCE, PORTS] {
                    tree.note(source, format!("TCP sockets: {error}"));
                }
            }
        }
        for (inode, socket) in datagrams {
            inodes.insert(inode, found.len());
            found.push(socket);
        }
        let owned = Owners::default().of(&Host::live(), inodes.keys().copied()).unwrap_or_default();
        for (inode, owner) in owned {
            if let Some(socket) = inodes.get(&inode).and_then(|at| found.get_mut(*at)) {
                socket.process = Some(owner.process);
                numbers.insert(owner.process);
            }
        }
        // SAFETY: takes no arguments.
        let is_root = unsafe { libc::geteuid() } == 0;
        if !is_root && found.iter().any(|socket| socket.process.is_none()) {
            tree.note(OWNERS, "owners of sockets of other users are shown to root only");
        }
        // Compute the port use before sockets are omitted, because omitted sockets also use ports.
        ports = port_use(&found);
        found.sort_by_key(|socket| std::cmp::Reverse((socket.drops, socket.bytes())));
        found.truncate(MOST_SOCKETS);
        let tcp: Vec<&SocketFacts> = found.iter().filter(|socket| is_tcp(socket)).collect();
        if is_listed {
            tree.keep_answers("ports.json", &ports);
        }
        // Do not record an incomplete list: in a recording, a connection without an interface belongs to the
        // fastest NIC.
        if !tree.is_noted(SOURCE) {
            tree.keep_answers("sockets.json", &tcp);
        }
        // `/proc/net/udp` and `/proc/net/raw` alone do not identify the owners of their sockets.
        let owners: BTreeMap<u32, u32> =
            inodes.iter().filter_map(|(inode, at)| Some((*inode, found.get(*at)?.process?))).collect();
        tree.keep_answers("owners.json", &owners);
    } else {
        found = match tree.answers::<Vec<SocketFacts>>("sockets.json")? {
            Some(mut sockets) => {
                check_ends(tree, &sockets)?;
                forget_impossible(tree, &mut sockets, known);
                note_unknown_interface(tree, &sockets, interfaces);
                sockets
            }
            None => {
                tree.note(SOURCE, "the recording has no evenkeel/sockets.json");
                Vec::new()
            }
        };
        ports = match tree.answers::<Option<PortUse>>("ports.json")? {
            Some(ports) => ports,
            // The list may lack sockets (`MOST_SOCKETS`), so the result is a lower limit.
            None => {
                tree.note(PORTS, "the recording has no evenkeel/ports.json");
                port_use(&found)
            }
        };
        if let Some((field, reason)) = ports.as_ref().and_then(refused_ports) {
            let path = tree.name("/evenkeel/ports.json");
            return Err(HostError::Field { path, field: field.to_owned(), reason });
        }
        let owners: BTreeMap<u32, u32> = match tree.answers("owners.json")? {
            Some(owners) => owners,
            // A tree that was copied or written by hand may have the links in `/proc/PID/fd` of a running
            // kernel.
            None => Owners::default()
                .of(&Host::at(tree.name("/")), datagrams.iter().map(|(inode, _)| *inode))
                .map(|found| found.into_iter().map(|(inode, owner)| (inode, owner.process)).collect())
                .unwrap_or_default(),
        };
        found.extend(
            datagrams
                .into_iter()
                .map(|(inode, socket)| SocketFacts { process: owners.get(&inode).copied(), ..socket }),
        );
        numbers.extend(found.iter().filter_map(|socket| socket.process));
    }
    numbers.extend(services(tree));
    let processes = numbers.into_iter().filter_map(|number| process(tree, number)).collect();
    Ok(Sockets { sockets: found, processes, ports })
}

/// Removes the TCP state of recorded connections with an impossible figure, and notes the removal.
fn forget_impossible(tree: &Tree, sockets: &mut [SocketFacts], interfaces: &[Interface]) {
    let limits = Limits {
        uptime_s: tree.parse("/proc/uptime", super::uptime_s),
        received: carried(interfaces, "rx_bytes"),
        sent: carried(interfaces, "tx_bytes"),
    };
    for (number, socket) in sockets.iter_mut().enumerate() {
        let Some((field, why)) = socket.tcp.as_ref().and_then(|tcp| limits.impossible(tcp)) else { continue };
        tree.note(SOURCE, format!("evenkeel/sockets.json: [{number}].tcp.{field}: {why}"));
        socket.tcp = None;
    }
}

/// Returns the sum of a counter of all interfaces; `None` if an interface lacks it.
fn carried(interfaces: &[Interface], counter: &str) -> Option<u64> {
    let counters = interfaces.iter().map(|interface| interface.statistics.get(counter).copied());
    counters.sum::<Option<u64>>()
}

/// Limits of the figures of each connection of a host.
struct Limits {
    uptime_s: Option<u64>,
    /// Bytes that all interfaces received and sent.
    received: Option<u64>,
    sent: Option<u64>,
}

impl Limits {
    /// Returns the first impossible figure of a connection, and the reason.
    fn impossible(&self, tcp: &TcpFacts) -> Option<(&'static str, String)> {
        /// The sockets are read after the counters of the interfaces: eight seconds at 100 Gbit/s.
        const LATER_BYTES: u64 = 100_000_000_000;
        /// Bytes of the headers of IPv4 and TCP without options, and the smallest segment size
        /// (`tcp_mtu_to_mss`, net/ipv4/tcp_output.c; `TCP_MIN_SND_MSS`, include/net/tcp.h).
        const HEADERS: u64 = 40;
        const LEAST_MSS: u64 = 48;
        let times = [("rtt_us", tcp.rtt_us), ("min_rtt_us", tcp.min_rtt_us)];
        if let Some((field, time)) = times.into_iter().find(|(_, time)| !ROUND_TRIP_US.has(*time)) {
            return Some((field, ROUND_TRIP_US.refusal(time)));
        }
        // A flow is limited only while it has data to send (`tcp_get_info_chrono_stats`, net/ipv4/tcp.c).
        let limited =
            [("receiver_limited_us", tcp.receiver_limited_us), ("sender_limited_us", tcp.sender_limited_us)];
        if let Some((field, time)) = limited.into_iter().find(|(_, time)| *time > tcp.busy_us) {
            return Some((field, format!("{time} is impossible: busy_us is {}", tcp.busy_us)));
        }
        let uptime = self.uptime_s.filter(|uptime| tcp.busy_us / 1_000_000 > *uptime);
        if let Some(uptime) = uptime {
            return Some(("busy_us", format!("{} is impossible: /proc/uptime is {uptime} s", tcp.busy_us)));
        }
        let figures = [("cwnd", tcp.cwnd), ("mss", tcp.mss), ("pmtu", tcp.pmtu)];
        if let Some((field, figure)) = figures.into_iter().find(|(_, figure)| !OF_CONNECTION.has(*figure)) {
            return Some((field, OF_CONNECTION.refusal(figure)));
        }
        // The kernel does not know the path MTU of each connection.
        if tcp.pmtu > 0 && !PATH_MTU.has(tcp.pmtu) {
            return Some(("pmtu", PATH_MTU.refusal(tcp.pmtu)));
        }
        if tcp.pmtu > 0 && tcp.mss > tcp.pmtu.saturating_sub(HEADERS).max(LEAST_MSS) {
            let (pmtu, mss) = (tcp.pmtu, tcp.mss);
            let why = format!("{pmtu} is impossible: mss is {mss}, and the headers have {HEADERS} bytes");
            return Some(("pmtu", why));
        }
        let bytes = [
            ("bytes_received", tcp.bytes_received, self.received, "received"),
            ("bytes_acked", tcp.bytes_acked, self.sent, "sent"),
        ];
        bytes.into_iter().find_map(|(field, bytes, most, verb)| {
            let most = most.filter(|most| bytes > most.saturating_add(LATER_BYTES))?;
            Some((field, format!("{bytes} is impossible: all interfaces {verb} {most} bytes")))
        })
    }
}

/// Notes the first recorded socket whose interface is not in the tree. This is no error, because an
/// interface may be deleted during a recording.
fn note_unknown_interface(tree: &Tree, sockets: &[SocketFacts], interfaces: &BTreeMap<u32, String>) {
    let known: BTreeSet<&str> = interfaces.values().map(String::as_str).collect();
    let mut named = sockets
        .iter()
        .enumerate()
        .filter_map(|(number, socket)| Some((number, socket.interface.as_deref()?)));
    if let Some((number, name)) = named.find(|(_, name)| !known.contains(name)) {
        let name = excerpt(name);
        tree.note(
            SOURCE,
            format!("evenkeel/sockets.json: [{number}].interface: the recording has no interface {name}"),
        );
    }
}

/// Checks recorded sockets.
///
/// # Errors
/// Returns an error for an invalid or missing local address, an invalid remote address, addresses of
/// different families, a connection without `tcp_info` values or another socket with such values, or a
/// connection that is listed twice.
fn check_ends(tree: &Tree, sockets: &[SocketFacts]) -> Result<(), HostError> {
    for (number, socket) in sockets.iter().enumerate() {
        for (end, text) in [("local", &socket.local), ("remote", &socket.remote)] {
            let is_absent = end == "remote" && text.is_empty();
            // ss(8) writes a listener of all addresses as *:443.
            let is_of_all = text.strip_prefix("*:").is_some_and(|port| port.parse::<u16>().is_ok());
            if !is_absent && !is_of_all && text.parse::<SocketAddr>().is_err() {
                let path = tree.name("/evenkeel/sockets.json");
                let reason = format!(
                    "'{}' is not an address with a port, such as 192.0.2.1:443 or [2001:db8::1]:443",
                    excerpt(text)
                );
                return Err(HostError::Field { path, field: format!("[{number}].{end}"), reason });
            }
        }
    }
    let is_mixed = |socket: &SocketFacts| {
        let ends = socket.local.parse().ok().zip(socket.remote.parse().ok());
        ends.is_some_and(|(local, remote): (SocketAddr, SocketAddr)| local.is_ipv4() != remote.is_ipv4())
    };
    let has_foreign_state = |socket: &SocketFacts| socket.kind != SocketKind::Tcp && socket.tcp.is_some();
    let is_bare = |socket: &SocketFacts| socket.kind == SocketKind::Tcp && socket.tcp.is_none();
    let refusal = |field: String, reason: &str| {
        Err(HostError::Field { path: tree.name("/evenkeel/sockets.json"), field, reason: reason.to_owned() })
    };
    if let Some(number) = sockets.iter().position(has_foreign_state) {
        return refusal(format!("[{number}].tcp"), "only a connection (kind \"tcp\") has tcp_info values");
    }
    if let Some(number) = sockets.iter().position(is_mixed) {
        return refusal(format!("[{number}].remote"), "an IPv4 address has no connection to an IPv6 address");
    }
    if let Some(number) = sockets.iter().position(is_bare) {
        return refusal(
            format!("[{number}].tcp"),
            "missing: a connection (kind \"tcp\") needs its tcp_info values (ss -i)",
        );
    }
    let connections = sockets.iter().enumerate().filter(|(_, socket)| socket.kind == SocketKind::Tcp);
    let connections: Vec<(usize, &SocketFacts)> = connections.collect();
    match repeated(connections.iter().map(|(_, socket)| (&socket.local, &socket.remote))) {
        Some((at, _)) => refusal(format!("[{}]", connections[at].0), "this connection is listed before"),
        None => Ok(()),
    }
}

/// Returns the first invalid field of a recorded destination, and the reason; `None` if all are valid.
fn refused_ports(ports: &PortUse) -> Option<(&'static str, String)> {
    let refusal = |text: &str, form: &str| format!("'{}' is not {form}", excerpt(text));
    if ports.local.parse::<IpAddr>().is_err() {
        return Some(("local", refusal(&ports.local, "an address, such as 192.0.2.1 or 2001:db8::1")));
    }
    if ports.remote.parse::<SocketAddr>().is_err() {
        let form = "an address with a port, such as 192.0.2.1:443 or [2001:db8::1]:443";
        return Some(("remote", refusal(&ports.remote, form)));
    }
    let is_refused = !CONNECTIONS.has(ports.connections);
    is_refused.then(|| ("connections", CONNECTIONS.refusal(ports.connections)))
}

/// Returns the destination to which this host opened the most connections from one local address. If the
/// local port of a connection has a listener, the peer opened the connection.
fn port_use(sockets: &[SocketFacts]) -> Option<PortUse> {
    let split = |end: &str| {
        let end: SocketAddr = end.parse().ok()?;
        Some((end.ip().to_canonical(), end.port()))
    };
    let listens: BTreeSet<u16> = sockets
        .iter()
        .filter(|socket| socket.kind == SocketKind::TcpListen)
        .filter_map(|socket| Some(split(&socket.local)?.1))
        .collect();
    let mut destinations: HashMap<(IpAddr, &str), u64> = HashMap::new();
    for socket in sockets.iter().filter(|socket| socket.kind == SocketKind::Tcp) {
        let Some((local, port)) = split(&socket.local) else { continue };
        if !listens.contains(&port) {
            *destinations.entry((local, &socket.remote)).or_insert(0) += 1;
        }
    }
    let most = destinations.into_iter().max_by_key(|((local, remote), count)| (*count, *remote, *local))?;
    let ((local, remote), connections) = most;
    Some(PortUse { local: local.to_string(), remote: remote.to_owned(), connections })
}

fn tcp_sockets() -> Result<Vec<(SocketRecord, SocketDetail)>, HostError> {
    let states = [SocketState::ESTABLISHED, SocketState::LISTEN];
    let mut found = SocketDiagnosis::open()?.sockets_in_detail(SocketProtocol::Tcp, &states)?;
    // The kernel may list a connection twice if other connections begin or end between two parts of its
    // answer (inet_diag_dump).
    let mut seen = BTreeSet::new();
    found.retain(|(record, _)| {
        record.state == SocketState::LISTEN || seen.insert((record.local, record.remote))
    });
    Ok(found)
}

/// Returns the interface of a socket; `None` if it is unknown. Notes a connection whose local address several
/// interfaces have.
fn interface_of(
    tree: &Tree,
    record: &SocketRecord,
    addresses: &LocalAddresses,
    interfaces: &BTreeMap<u32, String>,
) -> Option<String> {
    let address = record.local.ip();
    match addresses.owner(address, record.interface) {
        AddressOwner::Interface(index) => interfaces.get(&index).cloned(),
        AddressOwner::Several if record.state != SocketState::LISTEN => {
            let why = format!(
                "the interface of TCP connections from {address}: several interfaces have this address"
            );
            tree.note(SOURCE, why);
            None
        }
        AddressOwner::Several | AddressOwner::Nowhere => None,
    }
}

fn tcp_facts(record: &SocketRecord, detail: SocketDetail, interface: Option<String>) -> SocketFacts {
    let listens = record.state == SocketState::LISTEN;
    let counters = record.counters.unwrap_or_default();
    SocketFacts {
        kind: if listens { SocketKind::TcpListen } else { SocketKind::Tcp },
        local: record.local.to_string(),
        remote: if listens { String::new() } else { record.remote.to_string() },
        interface,
        process: None,
        receive_queue: record.receive_queue.into(),
        send_queue: detail.send_queue.into(),
        receive_buffer: detail.receive_buffer.map(u64::from),
        send_buffer: detail.send_buffer.map(u64::from),
        drops: detail.drops.into(),
        tcp: (!listens).then(|| TcpFacts {
            rtt_us: detail.rtt_us.into(),
            min_rtt_us: if detail.min_rtt_us == u32::MAX { 0 } else { detail.min_rtt_us.into() },
            cwnd: detail.cwnd.into(),
            mss: detail.mss.into(),
            pmtu: detail.pmtu.into(),
            bytes_acked: counters.bytes_acked,
            bytes_received: counters.bytes_received,
            segments_out: counters.segments_out.into(),
            segments_in: counters.segments_in.into(),
            retransmitted: detail.retransmitted.into(),
            congestion: detail.congestion.unwrap_or_default(),
            receiver_limited_us: detail.receiver_limited_us,
            sender_limited_us: detail.sender_limited_us,
            busy_us: detail.busy_us,
        }),
    }
}

const fn is_tcp(socket: &SocketFacts) -> bool {
    matches!(socket.kind, SocketKind::Tcp | SocketKind::TcpListen)
}

/// Returns the UDP and raw sockets, and their inodes. The tables have the same columns (`udp4_seq_show`,
/// net/ipv4/udp.c; `raw_seq_show`, net/ipv4/raw.c).
pub(super) fn datagram_sockets(tree: &Tree) -> Vec<(u32, SocketFacts)> {
    const TABLES: [(&str, SocketKind); 4] = [
        ("/proc/net/udp", SocketKind::Udp),
        ("/proc/net/udp6", SocketKind::Udp),
        ("/proc/net/raw", SocketKind::Raw),
        ("/proc/net/raw6", SocketKind::Raw),
    ];
    let mut found = Vec::new();
    let mut inodes = BTreeSet::new();
    for (file, kind) in TABLES {
        // A kernel without IPv6 lacks `/proc/net/udp6`. Recordings of earlier versions lack the tables of raw
        // sockets.
        let is_required = kind == SocketKind::Udp && (file == "/proc/net/udp" || has_ipv6(tree));
        let text = if is_required { tree.required_table(file) } else { tree.table(file) };
        let Some(text) = text else { continue };
        let header = text.lines().next().unwrap_or_default();
        if !header.contains("local_address") || !header.trim_end().ends_with("drops") {
            tree.note_line(file, 1, &unreadable(header));
        }
        for (at, line) in text.lines().enumerate().skip(1) {
            match socket_line(line, kind) {
                // All sockets without an owner have inode 0, so this inode may repeat.
                Some((inode, socket)) if inode == 0 || inodes.insert(inode) => found.push((inode, socket)),
                // A socket that is bound again while the kernel writes the table may have two rows.
                Some(_) if tree.is_live() => {}
                Some((inode, _)) => tree.note_line(file, at + 1, &second(&format!("socket {inode}"))),
                None => tree.note_line(file, at + 1, &unreadable(line)),
            }
        }
    }
    found
}

/// Parses a line `sl local rem st tx:rx tr:when retrnsmt uid timeout inode ref pointer drops`
/// (`udp4_format_sock`, net/ipv4/udp.c).
fn socket_line(line: &str, kind: SocketKind) -> Option<(u32, SocketFacts)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (sent, received) = fields.get(4)?.split_once(':')?;
    let queue = |text| u64::from_str_radix(text, 16).ok();
    let remote = hexadecimal_address(fields.get(2)?)?;
    Some((
        fields.get(9)?.parse().ok()?,
        SocketFacts {
            kind,
            local: hexadecimal_address(fields.get(1)?)?.to_string(),
            remote: if remote.port() == 0 { String::new() } else { remote.to_string() },
            receive_queue: queue(received)?,
            send_queue: queue(sent)?,
            drops: fields.get(12)?.parse().ok()?,
            ..SocketFacts::default()
        },
    ))
}

/// Parses an address and a port. The address has the byte order of the recorded machine, which is assumed to
/// be little endian.
pub(super) fn hexadecimal_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if !address.is_ascii() {
        return None;
    }
    let words: Option<Vec<[u8; 4]>> = address
        .as_bytes()
        .chunks(8)
        .map(|word| Some(u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?.to_le_bytes()))
        .collect();
    let bytes = words?.concat();
    let address = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

fn services(tree: &Tree) -> Vec<u32> {
    let mut found = Vec::new();
    if tree.is_live() && are_hidden(tree) {
        let why = "/proc does not list the kernel's threads: it hides processes (its mount option hidepid, or a PID \
                   namespace, as in a container)";
        tree.note("/proc/PID/comm", why);
    }
    for number in tree.numbers("/proc", "") {
        // Record only the names in `SERVICES`, because the names of other processes are private.
        let path = format!("/proc/{number}/comm");
        let Some(name) = tree.read_quietly(&path) else {
            require_files(tree, number, &["comm"]);
            continue;
        };
        if name.is_empty() || name.contains(char::is_control) {
            tree.note_line(&path, 1, &unreadable(&name));
        }
        if SERVICES.contains(&name.as_str()) {
            found.push(number);
        }
    }
    found
}

/// Returns whether `/proc` hides processes. Every user can read the name of process 2, the kernel's kthreadd,
/// except with the mount option `hidepid`, or in a PID namespace other than the initial namespace.
fn are_hidden(tree: &Tree) -> bool {
    tree.read_quietly("/proc/2/comm").as_deref() != Some("kthreadd")
}

/// Notes that a recorded tree lacks files of a process. If a process ended between two reads, the
/// recording states the missing files.
fn require_files(tree: &Tree, number: u32, names: &[&str]) {
    let path = |name: &str| format!("/proc/{number}/{name}");
    if tree.is_live() {
        tree.state_without_value([path("comm")]);
    } else if !tree.has(&path("comm")) {
        names.iter().for_each(|name| tree.require(&path(name)));
    }
}

fn process(tree: &Tree, number: u32) -> Option<ProcessFacts> {
    let file = |name: &str| tree.read(&format!("/proc/{number}/{name}"));
    let Some(name) = file("comm") else {
        require_files(tree, number, &["comm", "stat", "status"]);
        return None;
    };
    let path = |name: &str| format!("/proc/{number}/{name}");
    // A process has both files until it ends.
    for name in ["stat", "status"] {
        tree.require(&path(name));
    }
    // The name in field 2 may contain any character, even a closing parenthesis. Field 39 is the CPU.
    let processor = tree.parse(&path("stat"), |text| {
        text.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse::<i64>().ok()
    });
    let processor = processor.and_then(|processor| u32::try_from(processor).ok());
    let list = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        parse_processor_list(line.trim()).filter(|list| !list.is_empty())
    };
    let allowed =
        tree.processors(&path("status"), Bits::AnyWithOnePossible, |text| list(text, "Cpus_allowed_list:"));
    let allowed = allowed.unwrap_or_default();
    // A kernel without cpusets has no such line.
    const MEMORY: &str = "Mems_allowed_list:";
    let memory_nodes = tree.parse(&path("status"), |text| {
        if text.contains(MEMORY) { list(text, MEMORY) } else { Some(Vec::new()) }
    });
    let memory_nodes = memory_nodes.unwrap_or_default();
    // Arguments may contain secrets, so read only the arguments of services.
    let arguments =
        if SERVICES.contains(&name.as_str()) { file("cmdline").unwrap_or_default() } else { String::new() };
    let arguments =
        arguments.split('\0').skip(1).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    Some(ProcessFacts { number, name, arguments, processor, allowed, memory_nodes })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_line_trips_the_parser(line in "([0-9A-F]{1,33}|[: ]|é|-){0,40}") {
            socket_line(&line, SocketKind::Udp);
            hexadecimal_address(&line);
        }
    }

    #[test]
    fn a_line_of_proc_net_udp_is_a_socket() {
        let line = "  512: 0100007F:0035 00000000:0000 07 00000000:00034A80 00:00000000 00000000   101        0 20345 2 \
                    0000000000000000 48211";
        let (inode, socket) = socket_line(line, SocketKind::Udp).unwrap();
        assert_eq!((inode, socket.local.as_str(), socket.remote.as_str()), (20345, "127.0.0.1:53", ""));
        assert_eq!((socket.drops, socket.receive_queue), (48211, 0x34a80));
        let ipv6 = hexadecimal_address("00000000000000000000000001000000:1F90").unwrap();
        assert_eq!(ipv6.to_string(), "[::1]:8080");
        for end in 0..line.len() - 5 {
            let _ = socket_line(&line[..end], SocketKind::Udp);
        }
        // A raw socket has its protocol in place of the port.
        let line = "   17: 00000000:0011 00000000:0000 07 00000000:00000900 00:00000000 00000000     0        0 20346 2 \
                    0000000000000000 70123";
        let (_, socket) = socket_line(line, SocketKind::Raw).unwrap();
        assert_eq!(
            (socket.kind, socket.local.as_str(), socket.drops),
            (SocketKind::Raw, "0.0.0.0:17", 70_123)
        );
    }
}
