//! Rules about TCP's counters and connections: slow readers, the peer's windows, buffers that applications
//! set.

use evenkeel_model::host::{SocketFacts, TcpFacts};

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{Direction, bytes, count, milliseconds, per_cent, power_of_two};

const MAX_ORPHANS: &str = "/proc/sys/net/ipv4/tcp_max_orphans";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "windows-closed",
        looks_at: "zero windows that TCP advertised or wanted to (TCPToZeroWindowAdv, TCPWantZeroWindowAdv), and \
                   connections with unread bytes",
        fires_when: "low: from 1,000 closed windows and one in 100,000 received segments; medium: from one in \
                     10,000, or at least 1 MB of unread bytes fills 40 % of a connection's buffer",
        why: "The application reads more slowly than the sender sends, and the sender waits. No network setting \
              changes that.",
        fix: "a faster reader: more threads, other processors; a larger buffer only for bursts",
        source: "Documentation/networking/snmp_counter.rst (TCPToZeroWindowAdv, TCPWantZeroWindowAdv); RFC 9293, section 3.8.6",
        needs: &[needs::NETSTAT, needs::SNMP, needs::SOCKETS],
        check: windows_closed,
    },
    Rule {
        name: "peer-window",
        looks_at: "how long connections that sent 10 MB waited for the receiver's window (rwnd_limited of tcp_info)",
        fires_when: "low: from a tenth of their busy time; medium: from half, if a round trip carried more than an \
                     unscaled window (70 kB); if tcp_window_scaling is 0, the finding names it as the cause",
        why: "The peer's window is too small for the path, or its application reads too slowly: this host could send \
              more.",
        fix: "the receiver's tcp_rmem, or its application",
        source: "tcp_info, tcpi_rwnd_limited (include/uapi/linux/tcp.h); ss(8)",
        needs: &[needs::SOCKETS],
        check: peer_window,
    },
    Rule {
        name: "socket-buffer-set",
        looks_at: "buffers of connections that carried 10 MB, against tcp_rmem, tcp_wmem, rmem_max, wmem_max and the \
                   bandwidth-delay product",
        fires_when: "medium: the buffer is at most half of the last value of tcp_wmem or tcp_rmem, and either a \
                     connection waited a tenth of its time for a send buffer of half the others' or of twice \
                     wmem_max, or a receive buffer of twice rmem_max is too small for that product",
        why: "SO_SNDBUF or SO_RCVBUF switches off TCP's autotuning: the buffer keeps its size, whatever the path \
              needs.",
        fix: "the program without that option, or with a larger value; rmem_max or wmem_max only if the buffer has \
              twice its size: then the kernel cut the request",
        source: "tcp(7); socket(7), SO_RCVBUF; tcp_rcv_space_adjust, net/ipv4/tcp_input.c",
        needs: &[
            needs::SOCKETS,
            "/proc/sys/net/core/rmem_max",
            "/proc/sys/net/core/wmem_max",
            "/proc/sys/net/ipv4/tcp_rmem",
            "/proc/sys/net/ipv4/tcp_wmem",
        ],
        check: buffer_set,
    },
    Rule {
        name: "orphans-many",
        looks_at: "connections without a process (sockstat, orphan) against tcp_max_orphans, and aborted ones \
                   (TCPAbortOnMemory)",
        fires_when: "low: from 50 % of the limit; medium: from 90 %, or from 100 connections aborted without memory \
                     pressure",
        why: "When a process closes a socket, the kernel sends the rest of its data. Above the limit it resets these \
              connections, and their last bytes are lost.",
        fix: "a larger tcp_max_orphans (64 KB each at most), a smaller tcp_orphan_retries",
        source: "Documentation/networking/ip-sysctl.rst (tcp_max_orphans, tcp_orphan_retries)",
        needs: &[needs::SOCKSTAT, needs::NETSTAT, MAX_ORPHANS],
        check: orphans,
    },
    Rule {
        name: "connects-repeated",
        looks_at: "SYNs and answers that were retransmitted (TCPSynRetrans), against the connections opened",
        fires_when: "low: from 1,000 and one in 100 connections; medium: from one in ten",
        why: "Each retransmission delays a connection by a second or more: the other side is down, its accept queue \
              is full, or a firewall drops the request.",
        fix: "check the destinations (`ss -tn state syn-sent`), their accept queues and firewalls",
        source: "Documentation/networking/snmp_counter.rst (TCPSynRetrans); RFC 6298",
        needs: &[needs::NETSTAT, needs::SNMP],
        check: connects_repeated,
    },
    Rule {
        name: "reordering",
        looks_at: "packets that arrived or were acknowledged out of order (TCPOFOQueue, TCPSACKReorder, \
                   TCPTSReorder, TCPRenoReorder), on hosts without balance-rr",
        fires_when: "low: from 10,000 reordered acknowledgements and one in 1,000 segments sent, or 10,000 and one \
                     in 20 segments received; medium: from one in 100 sent",
        why: "TCP takes reordered packets for lost ones and slows down. Causes are paths that spread single packets, \
              and NICs whose filters move flows.",
        fix: "paths and bonds that hash by flow; no flow director of the NIC",
        source: "Documentation/networking/snmp_counter.rst (TCPSACKReorder, TCPTSReorder); Documentation/networking/scaling.rst (RSS)",
        needs: &[needs::NETSTAT, needs::SNMP, needs::BONDING],
        check: reordering,
    },
    Rule {
        name: "timestamps-refused",
        looks_at: "segments dropped for an old timestamp (PAWSActive, PAWSEstab, TSEcrRejected), and connection \
                   requests that tcp_tw_recycle rejected (PAWSPassive)",
        fires_when: "low: from 1,000 and one in 100,000 segments; medium: from one in 10,000, or, with \
                     tcp_tw_recycle, 1,000 and one in 100,000 connection requests; high: one in 1,000 requests",
        why: "Clients behind one translated address (NAT) have different clocks: if they share ports, the host \
              rejects segments with older timestamps, and clients hang.",
        fix: "a NAT that does not reuse ports at once; tcp_tw_recycle 0",
        source: "RFC 7323, section 5 (PAWS); Documentation/networking/snmp_counter.rst (PAWSEstab); tcp(7), tcp_tw_recycle (until Linux 4.12); \
                 tcp_v4_conn_request, net/ipv4/tcp_ipv4.c",
        needs: &[needs::NETSTAT, needs::SNMP],
        check: timestamps_refused,
    },
];

const FEWEST: u64 = 1000;

fn is_one_in(limit: u64, lost: u64, of: u64) -> bool {
    lost.saturating_mul(limit) >= of
}

fn name_of(view: &View<'_>, socket: &SocketFacts) -> String {
    let process = socket.process.and_then(|number| view.facts.process(number));
    let process = process.map(|process| format!(" of {} (process {})", process.name, process.number));
    format!("{} to {}{}", socket.local, socket.remote, process.unwrap_or_default())
}

fn windows_closed(view: &View<'_>) -> Vec<Found> {
    const FULL_BYTES: u64 = 1_000_000;
    let counter = |name: &str| view.facts.counter(name);
    let closed = counter("TcpExt.TCPToZeroWindowAdv").max(counter("TcpExt.TCPWantZeroWindowAdv"));
    let segments = counter("Tcp.InSegs");
    let mut full: Vec<&SocketFacts> =
        view.facts.sockets.iter().filter(|socket| socket.tcp.is_some()).collect();
    // About half of a buffer is overhead, because packets take more memory than their payload. So a buffer
    // counts as full from 40 %.
    full.retain(|socket| {
        socket.receive_queue >= FULL_BYTES
            && socket
                .receive_buffer
                .is_some_and(|buffer| socket.receive_queue.saturating_mul(5) >= buffer.saturating_mul(2))
    });
    full.sort_by_key(|socket| std::cmp::Reverse(socket.receive_queue));
    let is_many = closed >= FEWEST && is_one_in(100_000, closed, segments);
    if !is_many && full.is_empty() {
        return Vec::new();
    }
    let mut parts = Vec::new();
    if closed > 0 {
        parts.push(format!(
            "TCP closed its receive window {} times ({} of {} segments received{})",
            count(closed),
            per_cent(closed as f64 / segments.max(1) as f64),
            count(segments),
            view.rate_words(closed)
        ));
    }
    let unread = |socket: &&SocketFacts| {
        format!("{} has {} unread", name_of(view, socket), bytes(socket.receive_queue))
    };
    parts.extend(full.iter().take(2).map(unread));
    let text = parts.join("; ");
    let severity = if is_one_in(10_000, closed, segments) || !full.is_empty() { Medium } else { Low };
    let process = full.first().and_then(|socket| view.facts.process(socket.process?));
    let subject = process.map_or("host", |process| process.name.as_str());
    vec![Found::measured(severity, subject, text, "an application of this host reads too slowly, and senders wait").advice(
        "the application has to read faster: more threads or processors for it, larger reads (`ss -tmp` shows full Recv-Q); a larger tcp_rmem \
         bridges bursts only",
    )]
}

fn peer_window(view: &View<'_>) -> Vec<Found> {
    const PART: u64 = 10;
    /// About the largest window without scaling, bytes.
    const UNSCALED: u128 = 70_000;
    // Data that one round trip carried.
    let in_flight = |socket: &SocketFacts, tcp: &TcpFacts| {
        u128::from(tcp.bytes_acked) * u128::from(View::round_trip_of(socket).unwrap_or(0))
            / u128::from(tcp.busy_us.max(1))
    };
    let limited = |socket: &&SocketFacts| {
        socket
            .tcp
            .as_ref()
            .is_some_and(|tcp| tcp.busy_us > 0 && tcp.receiver_limited_us.saturating_mul(PART) >= tcp.busy_us)
    };
    let mut found = Vec::new();
    for nic in view.nics() {
        let waits: Vec<&SocketFacts> = view.bulk(nic, Direction::Send).into_iter().filter(limited).collect();
        let share = |tcp: &TcpFacts| tcp.receiver_limited_us as f64 / tcp.busy_us.max(1) as f64;
        let worst = waits.iter().copied().filter_map(|socket| Some((socket, socket.tcp.as_ref()?)));
        let Some((socket, tcp)) = worst.max_by(|one, other| share(one.1).total_cmp(&share(other.1))) else {
            continue;
        };
        let text = format!(
            "{} connection{} waited for the receiver's window; {} for {} of {} s with data to send (round trip {}, {} sent)",
            waits.len(),
            if waits.len() == 1 { "" } else { "s" },
            name_of(view, socket),
            per_cent(share(tcp)),
            count(tcp.busy_us / 1_000_000),
            milliseconds(View::round_trip_of(socket).unwrap_or(0)),
            bytes(tcp.bytes_acked)
        );
        let severity = if share(tcp) >= 0.5 && in_flight(socket, tcp) > UNSCALED { Medium } else { Low };
        // Without window scaling, this host is the cause of an unscaled window.
        let is_own_fault = super::tcp::is_scaling_off(view) && in_flight(socket, tcp) <= UNSCALED;
        if is_own_fault {
            let effect = "no peer can offer a window above 64 KB: window scaling is off on this host";
            found.push(Found::measured(severity, &nic.name, text, effect).advice(
                "first the cause (window-scaling-off): `sysctl -w net.ipv4.tcp_window_scaling=1`, for new connections",
            ));
            continue;
        }
        found.push(Found::measured(severity, &nic.name, text, "the peer's window limits this host").advice(
            "raise net.ipv4.tcp_rmem (last figure) and net.core.rmem_max on the receiver, or let its application read faster; no setting of this \
             host helps",
        ));
    }
    found
}

fn buffer_set(view: &View<'_>) -> Vec<Found> {
    const PART: u64 = 10;
    let facts = view.facts;
    let number = |path: &str| facts.sysctl_number(path).and_then(|value| u64::try_from(value).ok());
    let mut found = Vec::new();
    for nic in view.nics() {
        let product = |socket: &SocketFacts| {
            Some(u128::from(nic.speed_bps?) * u128::from(View::round_trip_of(socket)?) / 8_000_000)
        };
        for (direction, path, limit, option) in [
            (Direction::Send, "net/ipv4/tcp_wmem", "net/core/wmem_max", "SO_SNDBUF"),
            (Direction::Receive, "net/ipv4/tcp_rmem", "net/core/rmem_max", "SO_RCVBUF"),
        ] {
            let Some(most) = facts.sysctl_field(path, 2) else { continue };
            let buffer = |socket: &SocketFacts| match direction {
                Direction::Send => socket.send_buffer,
                Direction::Receive => socket.receive_buffer,
            };
            // The kernel cuts the requested size to `limit`, and then doubles it (socket(7), SO_SNDBUF).
            let is_cut = |buffer: u64| number(limit).is_some_and(|limit| buffer == limit.saturating_mul(2));
            let largest = view.bulk(nic, direction).into_iter().filter_map(buffer).max().unwrap_or(0);
            let is_set = |socket: &&SocketFacts| {
                let Some(buffer) =
                    buffer(socket).filter(|buffer| *buffer > 0 && buffer.saturating_mul(2) <= most)
                else {
                    return false;
                };
                let is_short = product(socket).is_some_and(|product| u128::from(buffer / 2) < product);
                let waits = socket.tcp.as_ref().is_some_and(|tcp| {
                    tcp.busy_us > 0 && tcp.sender_limited_us.saturating_mul(PART) >= tcp.busy_us
                });
                let is_limit = is_cut(buffer);
                match direction {
                    // If other buffers have grown further, neither tcp_wmem nor its previous value was the
                    // limit.
                    Direction::Send => waits && (is_limit || buffer.saturating_mul(2) <= largest),
                    Direction::Receive => is_short && is_limit,
                }
            };
            let set: Vec<&SocketFacts> = view.bulk(nic, direction).into_iter().filter(is_set).collect();
            let Some(socket) = set.iter().copied().max_by_key(|socket| direction.bytes(socket)) else {
                continue;
            };
            let size = buffer(socket).unwrap_or(0);
            let mut text = format!(
                "{} connection{} with a buffer that the program set ({option}): {} has {size} bytes, {} allows {most}",
                set.len(),
                if set.len() == 1 { "" } else { "s" },
                name_of(view, socket),
                path.replace('/', ".")
            );
            if let (Direction::Send, Some(tcp)) = (direction, &socket.tcp) {
                let share = tcp.sender_limited_us as f64 / tcp.busy_us.max(1) as f64;
                text += &format!("; it waited {} of its busy time for that buffer", per_cent(share));
            }
            let process = socket.process.and_then(|number| facts.process(number));
            let entry = Found::measured(
                Medium,
                process.map_or("host", |process| &process.name),
                text,
                "the buffer cannot grow to the size that the path needs",
            );
            let wanted = product(socket)
                .and_then(|product| u64::try_from(product).ok())
                .map(|product| power_of_two(product.saturating_mul(2)));
            let wanted = wanted.unwrap_or(most).min(2_147_483_647);
            let is_short = number(limit).is_some_and(|now| now < wanted);
            let (entry, after) = match is_short {
                true if is_cut(size) => (entry.sysctl(limit, wanted), String::new()),
                true => (entry, format!(", after {} is at least that size", limit.replace('/', "."))),
                false => (entry, String::new()),
            };
            found.push(entry.advice(format!("remove {option} from the program's configuration, then TCP grows the buffer itself; or ask for {wanted} bytes{after}")));
        }
    }
    found
}

fn orphans(view: &View<'_>) -> Vec<Found> {
    const PATH: &str = "net/ipv4/tcp_max_orphans";
    const CUT: u64 = 100;
    let Some(most) = view.facts.sysctl_field(PATH, 0).filter(|most| *most > 0) else { return Vec::new() };
    let now = view.facts.counter("Sockstat.TCP.orphan");
    let cut = view.facts.counter("TcpExt.TCPAbortOnMemory");
    let is_cut = cut >= CUT && !super::tcp::lacks_memory(view);
    let share = now as f64 / most as f64;
    if share < 0.5 && !is_cut {
        return Vec::new();
    }
    let text = format!(
        "{} orphaned connections of {} (tcp_max_orphans, {}); {} were aborted (TCPAbortOnMemory{})",
        count(now),
        count(most),
        per_cent(share),
        count(cut),
        view.rate_words(cut)
    );
    let severity = if is_cut || share >= 0.9 { Medium } else { Low };
    // Counters from before a raise must not cause another raise.
    let wanted = power_of_two(now.saturating_mul(4)).max(262_144);
    let entry = Found::measured(
        severity,
        "host",
        text,
        "connections that are closing are reset, and their last bytes are lost",
    );
    let entry = if most < wanted { entry.sysctl(PATH, wanted) } else { entry };
    vec![entry.advice("net.ipv4.tcp_orphan_retries=2 ends them sooner; look for peers that do not read their last bytes (`ss -to state fin-wait-1`)")]
}

fn connects_repeated(view: &View<'_>) -> Vec<Found> {
    let counter = |name: &str| view.facts.counter(name);
    let again = counter("TcpExt.TCPSynRetrans");
    let opened = counter("Tcp.ActiveOpens").saturating_add(counter("Tcp.PassiveOpens"));
    if again < FEWEST || !is_one_in(100, again, opened) {
        return Vec::new();
    }
    let text = format!(
        "{} connection requests or answers to them were retransmitted (TCPSynRetrans, {} of {} connections{}); {} attempts failed",
        count(again),
        per_cent(again as f64 / opened.max(1) as f64),
        count(opened),
        view.rate_words(again),
        count(counter("Tcp.AttemptFails"))
    );
    let severity = if is_one_in(10, again, opened) { Medium } else { Low };
    vec![Found::measured(severity, "host", text, "connections open a second or more late, or not at all").advice(
        "find the destinations that do not answer (`ss -tn state syn-sent`, `ss -tn state syn-recv` for clients): a server that is down, its full \
         accept queue, a firewall or a security group in between",
    )]
}

fn reordering(view: &View<'_>) -> Vec<Found> {
    const FEWEST: u64 = 10_000;
    let alternates = |bond: &evenkeel_model::host::BondFacts| bond.mode == "balance-rr";
    if view.facts.interfaces.iter().filter_map(|interface| interface.bond.as_ref()).any(alternates) {
        return Vec::new();
    }
    let counter = |name: &str| view.facts.counter(name);
    let kinds = ["TCPSACKReorder", "TCPTSReorder", "TCPRenoReorder", "TCPFACKReorder"];
    let acknowledged =
        kinds.iter().map(|name| counter(&format!("TcpExt.{name}"))).fold(0, u64::saturating_add);
    let arrived = counter("TcpExt.TCPOFOQueue");
    let (sent, received) = (view.sent_segments(), counter("Tcp.InSegs"));
    let out = acknowledged >= FEWEST && is_one_in(1000, acknowledged, sent);
    let back = arrived >= FEWEST && is_one_in(20, arrived, received);
    if !out && !back {
        return Vec::new();
    }
    let text = format!(
        "{} of {} segments received were out of order (TCPOFOQueue, {}), and {} acknowledgements showed reordering of \
         sent segments ({} of {} segments sent); {} segments were retransmitted unnecessarily (TCPDSACKRecv)",
        count(arrived),
        count(received),
        per_cent(arrived as f64 / received.max(1) as f64),
        count(acknowledged),
        per_cent(acknowledged as f64 / sent.max(1) as f64),
        count(sent),
        count(counter("TcpExt.TCPDSACKRecv"))
    );
    let severity = if out && is_one_in(100, acknowledged, sent) { Medium } else { Low };
    let steers = view.nics().find(|nic| nic.private_flags.get("flow-director-atr") == Some(&true));
    let advice = steers
        .map(|nic| format!("`ethtool --set-priv-flags {} flow-director-atr off`; ", nic.name))
        .unwrap_or_default();
    vec![Found::measured(severity, "host", text, "TCP takes reordered packets for lost ones, retransmits and slows down").advice(format!(
        "{advice}find the device that spreads single packets: balance-rr at a bond of the peer, per-packet load balancing of a router, several tunnels"
    ))]
}

fn timestamps_refused(view: &View<'_>) -> Vec<Found> {
    const RECYCLE: &str = "net/ipv4/tcp_tw_recycle";
    let kinds = ["PAWSPassive", "PAWSActive", "PAWSEstab", "TSEcrRejected"];
    let parts: Vec<(&str, u64)> = kinds
        .into_iter()
        .map(|name| (name, view.facts.counter(&format!("TcpExt.{name}"))))
        .filter(|(_, refused)| *refused > 0)
        .collect();
    let refused = parts.iter().map(|(_, refused)| *refused).fold(0, u64::saturating_add);
    let segments = view.facts.counter("Tcp.InSegs");
    let recycles = view.facts.sysctl_number(RECYCLE) == Some(1);
    let rejected = view.facts.counter("TcpExt.PAWSPassive");
    let requests = view.facts.counter("Tcp.PassiveOpens").saturating_add(rejected);
    // A rejected request keeps a client away, however many segments the server receives from other
    // clients.
    let keeps_away = recycles && rejected >= FEWEST && is_one_in(100_000, rejected, requests);
    if !keeps_away && (refused < FEWEST || !is_one_in(100_000, refused, segments)) {
        return Vec::new();
    }
    let names: Vec<String> =
        parts.iter().map(|(name, refused)| format!("{name} {}", count(*refused))).collect();
    let mut text = format!(
        "{} of {} segments were dropped for an old timestamp ({}{})",
        count(refused),
        count(segments),
        names.join(", "),
        view.rate_words(refused)
    );
    if keeps_away {
        text += &format!(
            "; net.ipv4.tcp_tw_recycle is 1 and rejected {} of {} connection requests ({})",
            count(rejected),
            count(requests),
            per_cent(rejected as f64 / requests as f64)
        );
    }
    let severity = match keeps_away {
        true if is_one_in(1000, rejected, requests) => High,
        true => Medium,
        false if is_one_in(10_000, refused, segments) => Medium,
        false => Low,
    };
    let entry =
        Found::measured(severity, "host", text, "clients behind one address hang while they connect or send");
    let entry = if recycles { entry.sysctl(RECYCLE, 0) } else { entry };
    vec![entry.advice("find the address whose segments are refused (`nstat -az TcpExtPAWS*`, tcpdump): a NAT or load balancer that reuses ports early")]
}
