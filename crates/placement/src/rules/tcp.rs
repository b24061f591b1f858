//! Rules about TCP's limits, compared with the needs of this host's links and round-trip times.

use evenkeel_model::host::{Interface, InterfaceKind, SocketFacts, TcpFacts};

use super::{FAST, Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::view::{Direction, RoundTrip, bytes, count, gigabits, per_cent};
use crate::{Basis, View};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "receive-window",
        looks_at: "the window that the last value of tcp_rmem allows (half of it) against the bandwidth-delay \
                   product: the link's speed and the longest round trip of connections that received 10 MB (none: 1 \
                   ms)",
        fires_when: "low: the window is below the product, and TCP has at least 5 % of the packets; medium: a \
                     connection's buffer grew to the limit, and all such windows together cannot fill the link; \
                     high: they cannot fill half of it",
        why: "If the window is smaller than the data in flight, the sender stops in each round trip. The paper's 2 \
              GB for every host let queues grow; this rule computes the need.",
        fix: "twice the product, as a power of two, at most 2 GB (the kernel's maximum)",
        source: "the paper, section III-C and Table I (net.ipv4.tcp_rmem); RFC 7323, section 1; Documentation/networking/ip-sysctl.rst",
        needs: &[
            needs::SPEED,
            needs::SOCKETS,
            "/proc/sys/net/ipv4/tcp_rmem",
            "/proc/sys/net/ipv4/tcp_adv_win_scale",
        ],
        check: |view| window(view, "net/ipv4/tcp_rmem", Direction::Receive),
    },
    Rule {
        name: "send-window",
        looks_at: "the last value of tcp_wmem against the bandwidth-delay product, as in receive-window, of \
                   connections that sent 10 MB",
        fires_when: "low: half of it is below the product, and TCP has at least 5 % of the packets; medium: a \
                     connection, with a buffer of more than half of that value, waited a tenth of its time for the \
                     buffer (sndbuf_limited); high: also all together cannot fill half of the link. A smaller \
                     buffer has another limit (socket-buffer-set)",
        why: "Data that was sent and not acknowledged stays in the send buffer.",
        fix: "twice the product, as a power of two, at most 2 GB (the kernel's maximum)",
        source: "the paper, section III-C and Table I (net.ipv4.tcp_wmem); Documentation/networking/ip-sysctl.rst",
        needs: &[needs::SPEED, needs::SOCKETS, "/proc/sys/net/ipv4/tcp_wmem"],
        check: |view| window(view, "net/ipv4/tcp_wmem", Direction::Send),
    },
    Rule {
        name: "socket-limits",
        looks_at: "rmem_max and wmem_max against the bandwidth-delay product, from 10 Gbit/s (with an assumed round \
                   trip from 40 Gbit/s)",
        fires_when: "low: one is below the product, and TCP has at least 5 % of the packets",
        why: "These limits apply to sizes that applications set (SO_RCVBUF), as UDP needs; TCP's autotuning follows \
              tcp_rmem and tcp_wmem.",
        fix: "twice the product, as a power of two, at most 2 GB (the kernel's maximum)",
        source: "the paper, Table I (net.core.rmem_max, wmem_max); socket(7)",
        needs: &[needs::SPEED, needs::SOCKETS, "/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"],
        check: socket_limits,
    },
    Rule {
        name: "tcp-memory",
        looks_at: "memory that TCP uses against tcp_mem, how often TCP was under pressure, and the need of the links",
        fires_when: "high: it is under pressure now; medium: it was ten times since boot; low: it was once, or the \
                     limit is below one bandwidth-delay product",
        why: "Under pressure TCP shrinks every window, whatever its own limit.",
        fix: "a larger tcp_mem, up to a quarter of the memory; none if tcp_mem is at least the kernel's default for \
              this memory, and TCP uses at most a quarter of it now: the pressure is from the past",
        source: "the paper, Table I (net.ipv4.tcp_mem); Documentation/networking/ip-sysctl.rst",
        needs: &[
            needs::SOCKSTAT,
            needs::NETSTAT,
            needs::MEMORY,
            needs::SPEED,
            needs::SOCKETS,
            "/proc/sys/net/ipv4/tcp_mem",
        ],
        check: memory,
    },
    Rule {
        name: "window-scaling-off",
        looks_at: "net.ipv4.tcp_window_scaling",
        fires_when: "medium: it is 0; high: also busy connections cannot fill their link with windows of 64 KB",
        why: "No window is larger than 64 KB: 0.5 Gbit/s at a round trip of 1 ms, whatever the link.",
        fix: "1",
        source: "RFC 7323, section 2",
        needs: &["/proc/sys/net/ipv4/tcp_window_scaling"],
        check: scaling_off,
    },
    Rule {
        name: "sack-off",
        looks_at: "net.ipv4.tcp_sack, and the timeouts caused by losses (TCPTimeouts, TCPRenoRecovery)",
        fires_when: "medium: it is 0",
        why: "If several packets are lost, each costs a round trip or a timeout.",
        fix: "1",
        source: "RFC 2018; RFC 6675",
        needs: &["/proc/sys/net/ipv4/tcp_sack"],
        check: sack_off,
    },
    Rule {
        name: "timestamps-off",
        looks_at: "net.ipv4.tcp_timestamps",
        fires_when: "low: it is 0; medium: from 10 Gbit/s",
        why: "Sequence numbers wrap in 3.4 s at 10 Gbit/s, 0.34 s at 100: only timestamps tell old segments from new \
              ones. Without them TCP measures round trips once a window.",
        fix: "1",
        source: "the paper, Table I (net.ipv4.tcp_timestamps); RFC 7323, sections 4 and 5 (PAWS)",
        needs: &["/proc/sys/net/ipv4/tcp_timestamps"],
        check: timestamps,
    },
    Rule {
        name: "autotuning-off",
        looks_at: "net.ipv4.tcp_moderate_rcvbuf",
        fires_when: "medium: it is 0; high: also busy connections cannot fill their link with the middle value of \
                     tcp_rmem",
        why: "Receive buffers stay at the middle value of tcp_rmem, 128 KB by default since Linux 4.20. About half \
              of that is the window: 0.5 Gbit/s at 1 ms.",
        fix: "1",
        source: "Documentation/networking/ip-sysctl.rst (tcp_moderate_rcvbuf)",
        needs: &["/proc/sys/net/ipv4/tcp_moderate_rcvbuf", "/proc/sys/net/ipv4/tcp_rmem"],
        check: |view| {
            let Some(default) = view.facts.sysctl_field("net/ipv4/tcp_rmem", 1) else { return Vec::new() };
            let severity = if is_too_small(view, window_of(view, default)) { High } else { Medium };
            must_be_on(view, "net/ipv4/tcp_moderate_rcvbuf", severity, "receive windows do not grow")
        },
    },
    Rule {
        name: "mtu-probing-off",
        looks_at: "net.ipv4.tcp_mtu_probing on hosts with jumbo frames",
        fires_when: "low: it is 0, an interface has an MTU above 1,500, and TCP had 1,000 timeouts and one \
                     for 1,000 segments sent (TcpExt.TCPTimeouts), the sign of a path that drops large \
                     packets",
        why: "If the path carries less and ICMP is filtered, connections hang when they start to carry data. With 1 \
              TCP then finds the size by itself.",
        fix: "1",
        source: "the paper, Table I (net.ipv4.tcp_mtu_probing); RFC 4821",
        needs: &[needs::MTU, needs::NETSTAT, needs::SNMP, "/proc/sys/net/ipv4/tcp_mtu_probing"],
        check: mtu_probing,
    },
    Rule {
        name: "congestion-control",
        looks_at: "net.ipv4.tcp_congestion_control against the bandwidth-delay product",
        fires_when: "medium: it is reno, and a window has at least 1,000 segments; low: the round trip is assumed (1 \
                     ms)",
        why: "After a loss, Reno needs a round trip for every two segments of the window to recover.",
        fix: "cubic",
        source: "the paper, section V; RFC 9438, section 1; tcp(7)",
        needs: &[
            needs::SPEED,
            needs::SOCKETS,
            needs::QDISCS,
            needs::KERNEL,
            needs::MTU,
            "/proc/sys/net/ipv4/tcp_congestion_control",
        ],
        check: congestion_control,
    },
    Rule {
        name: "metrics-saved",
        looks_at: "tcp_no_metrics_save on hosts of at least 10 Gbit/s that lose packets",
        fires_when: "low: it is 0, and 0.1 % of at least 100,000 segments were retransmitted",
        why: "After losses the kernel saves a connection's slow-start threshold, and the next connections to that \
              host start low. Without losses that is harmless: the paper sets 1 to separate its experiments.",
        fix: "tcp_no_metrics_save 1 (or tcp_no_ssthresh_metrics_save 1)",
        source: "the paper, section III-C and Table I (net.ipv4.tcp_no_metrics_save); Documentation/networking/ip-sysctl.rst",
        needs: &[needs::SPEED, needs::SNMP, "/proc/sys/net/ipv4/tcp_no_metrics_save"],
        check: metrics,
    },
    Rule {
        name: "slow-start-idle",
        looks_at: "tcp_slow_start_after_idle on hosts of at least 10 Gbit/s with long round trips",
        fires_when: "low: it is 1, a connection that sent 10 MB has a round trip of 50 ms, and the congestion \
                     control is not BBR, which restarts by its own model",
        why: "After a pause of one timeout a connection starts with 10 segments again, for many round trips.",
        fix: "0, with fq to pace the first window",
        source: "Documentation/networking/ip-sysctl.rst (tcp_slow_start_after_idle); RFC 5681, section 4.1",
        needs: &[
            needs::SPEED,
            needs::SOCKETS,
            needs::MTU,
            "/proc/sys/net/ipv4/tcp_slow_start_after_idle",
            "/proc/sys/net/ipv4/tcp_congestion_control",
        ],
        check: slow_start,
    },
];

use crate::Severity;

/// Returns the part of a buffer that is available as window (`tcp_win_from_space`). Until Linux 6.5,
/// `tcp_adv_win_scale` sets this part. Later kernels measure it by the received segments, and begin with
/// a quarter of the buffer or, since Linux 6.10, half. The function assumes half.
fn window_of(view: &View<'_>, buffer: u64) -> u64 {
    if view.kernel_version().is_some_and(|kernel| kernel >= (6, 6)) {
        return buffer / 2;
    }
    match view.facts.sysctl_number("net/ipv4/tcp_adv_win_scale").unwrap_or(1) {
        scale @ 1..=31 => buffer - (buffer >> scale),
        scale @ -31..=0 => buffer >> -scale,
        _ => buffer / 2,
    }
}

/// The kernel stores buffer sizes as `int`.
const LARGEST_BUFFER: u64 = 2_147_483_647;

fn power_of_two_for(product: u64) -> u64 {
    product.saturating_mul(2).checked_next_power_of_two().unwrap_or(u64::MAX).min(LARGEST_BUFFER)
}

/// Returns whether the largest buffer, `most`, limited a connection that carried much data.
fn is_held_up(view: &View<'_>, nic: &Interface, direction: Direction, most: u64) -> bool {
    const SHARE: u64 = 10;
    view.bulk(nic, direction).into_iter().any(|socket| match direction {
        // Autotuning has grown the buffer to at least 90 % of its limit.
        Direction::Receive => {
            socket.receive_buffer.is_some_and(|buffer| buffer.saturating_mul(10) >= most.saturating_mul(9))
        }
        Direction::Send => {
            grows_to(socket, most)
                && socket.tcp.as_ref().is_some_and(|tcp| {
                    tcp.busy_us > 0 && tcp.sender_limited_us.saturating_mul(SHARE) >= tcp.busy_us
                })
        }
    })
}

/// Returns whether `most`, the last value of `tcp_wmem`, may limit a connection's send buffer. A buffer of at
/// most half of `most` has another limit: the program has set the buffer (SO_SNDBUF), or `tcp_wmem` was
/// smaller at that time. The kernel does not report which buffers a program has set.
fn grows_to(socket: &SocketFacts, most: u64) -> bool {
    socket.send_buffer.is_none_or(|buffer| buffer == 0 || buffer.saturating_mul(2) > most)
}

/// Returns the total rate of the connections that carried much data, each with this window and its own
/// round-trip time, bit/s.
fn rate_of_windows(view: &View<'_>, nic: &Interface, direction: Direction, window: u64) -> f64 {
    let connections = view.bulk(nic, direction);
    let times = connections.iter().filter_map(|socket| View::round_trip_of(socket));
    times.map(|us| window as f64 * 8e6 / us as f64).sum()
}

fn window(view: &View<'_>, path: &str, direction: Direction) -> Vec<Found> {
    view.needs_nics();
    let Some((nic, product, time)) = view.largest_product(direction) else { return Vec::new() };
    let field = |at| view.facts.sysctl_field(path, at);
    let (Some(least), Some(default), Some(most)) = (field(0), field(1), field(2)) else { return Vec::new() };
    // As for receive buffers, about half of a send buffer is overhead of packets.
    let (window, what) = match direction {
        Direction::Receive => (window_of(view, most), "receive"),
        Direction::Send => (most / 2, "send"),
    };
    if window >= product || most >= LARGEST_BUFFER {
        return Vec::new();
    }
    if !view.carries_tcp() && !is_held_up(view, nic, direction, most) {
        return Vec::new();
    }
    let speed = nic.speed_bps.unwrap_or(0) as f64;
    let together = rate_of_windows(view, nic, direction, window);
    // A receiver cannot see whether its sender waits. A receive buffer at its limit does no harm if all
    // connections together fill the link.
    let held_up =
        is_held_up(view, nic, direction, most) && (direction == Direction::Send || together < speed);
    let basis = time.basis(if held_up { Basis::Measured } else { Basis::Setting });
    let severity = match basis {
        Basis::Measured if together < speed / 2.0 => High,
        Basis::Measured => Medium,
        _ => Low,
    };
    let limited = match (held_up, time.peer.is_some()) {
        (true, _) => format!("; it limited a connection{}", waited(view, nic, direction, most)),
        (false, true) if together >= speed => {
            format!(
                "; it limited no connection yet, and {} of them together fill the link",
                view.bulk(nic, direction).len()
            )
        }
        (false, true) => "; it limited no connection yet".to_owned(),
        (false, false) => String::new(),
    };
    let text = format!(
        "{} needs {} ({} × {}), and {} = {} allows a {what} window of {}{limited}",
        nic.name,
        bytes(product),
        gigabits(speed),
        time.words(),
        path.replace('/', "."),
        view.facts.sysctl(path).unwrap_or_default(),
        bytes(window)
    );
    let effect = if is_scaling_off(view) {
        // The rule window-scaling-off reports the cost.
        "this buffer is the next limit once window scaling is on".to_owned()
    } else {
        format!(
            "one connection gets at most {} of {}",
            gigabits(window as f64 * 8e6 / time.us as f64),
            gigabits(speed)
        )
    };
    let wanted = power_of_two_for(product).max(most);
    vec![
        Found::on_basis(basis, severity, "host", text, effect)
            .sysctl(path, buffer_sizes(least, default, wanted)),
    ]
}

/// Returns minimum, default and maximum of a buffer. The kernel accepts the values in any order, but
/// they must not decrease (Documentation/networking/ip-sysctl.rst). So the function lowers the minimum
/// and the default to the maximum if they exceed it.
pub(super) fn buffer_sizes(least: u64, default: u64, most: u64) -> String {
    let default = default.min(most);
    format!("{} {default} {most}", least.min(default))
}

/// Returns text such as ` for 91 % of its time with data to send`, of the connections that sent much data
/// with buffers that `most` may limit. The text is empty for the receive direction, and if no connection
/// waited.
fn waited(view: &View<'_>, nic: &Interface, direction: Direction, most: u64) -> String {
    let mut connections = view.bulk(nic, direction);
    connections.retain(|socket| grows_to(socket, most));
    let sum = |of: fn(&TcpFacts) -> u64| {
        connections.iter().filter_map(|socket| socket.tcp.as_ref()).map(of).fold(0, u64::saturating_add)
    };
    let share = sum(|tcp| tcp.sender_limited_us) as f64 / sum(|tcp| tcp.busy_us).max(1) as f64;
    if direction == Direction::Receive || share <= 0.0 {
        return String::new();
    }
    format!(" for {} of its time with data to send", per_cent(share))
}

/// Returns the larger bandwidth-delay product of the two directions. A product with a measured round-trip
/// time takes precedence over one with an assumed time.
fn either_product<'a>(view: &View<'a>) -> Option<(&'a Interface, u64, RoundTrip)> {
    let products =
        [Direction::Receive, Direction::Send].into_iter().filter_map(|way| view.largest_product(way));
    products.max_by_key(|(_, bytes, time)| (time.peer.is_some(), *bytes))
}

/// From this speed on, a link needs large buffers at any round-trip time beyond the next switch, bit/s.
const VERY_FAST: u64 = 40_000_000_000;

fn socket_limits(view: &View<'_>) -> Vec<Found> {
    view.needs_nics();
    let Some((nic, product, time)) = either_product(view) else { return Vec::new() };
    if !view.carries_tcp() {
        return Vec::new();
    }
    // A product from an assumed round-trip time counts only at speeds at which every link needs it.
    let least = if time.peer.is_some() { FAST } else { VERY_FAST };
    if nic.speed_bps.is_none_or(|speed| speed < least) {
        return Vec::new();
    }
    let mut small = Vec::new();
    for path in ["net/core/rmem_max", "net/core/wmem_max"] {
        // The kernel doubles the requested size for overhead, so the limit itself need not exceed the
        // product.
        let limit = view.facts.sysctl_number(path).and_then(|limit| u64::try_from(limit).ok());
        small.extend(limit.filter(|limit| *limit < product.min(LARGEST_BUFFER)).map(|limit| (path, limit)));
    }
    if small.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> =
        small.iter().map(|(path, limit)| format!("{} = {limit}", path.replace('/', "."))).collect();
    let text = format!(
        "{}; {} needs {} ({} × {})",
        names.join(", "),
        nic.name,
        bytes(product),
        gigabits(nic.speed_bps.unwrap_or(0) as f64),
        time.words()
    );
    let effect = "applications that set their buffers, and UDP, cannot have the size that the link needs; TCP's autotuning is not limited by it";
    let mut entry = Found::on_basis(time.basis(Basis::Setting), Low, "host", text, effect);
    for (path, _) in small {
        entry = entry.sysctl(path, power_of_two_for(product));
    }
    vec![entry]
}

fn memory(view: &View<'_>) -> Vec<Found> {
    let facts = view.facts;
    let field = |at| facts.sysctl_field("net/ipv4/tcp_mem", at);
    let (Some(low), Some(pressure), Some(high)) = (field(0), field(1), field(2)) else { return Vec::new() };
    let used = facts.counter("Sockstat.TCP.mem");
    let times = facts.counter("TcpExt.TCPMemoryPressures");
    let (product, time) = either_product(view).map_or((0, None), |(_, bytes, time)| (bytes, Some(time)));
    let high_bytes = high.saturating_mul(facts.page_bytes);
    let (severity, text) = if used >= pressure && used > 0 {
        (
            High,
            format!(
                "TCP uses {} of {} pages, above its pressure limit of {}; it was under pressure {} times (TCPMemoryPressures)",
                count(used),
                count(high),
                count(pressure),
                count(times)
            ),
        )
    } else if times > 0 {
        (
            if times >= 10 { Medium } else { Low },
            format!(
                "TCP was under memory pressure {} times (tcp_mem {low} {pressure} {high} pages)",
                count(times)
            ),
        )
    } else if high_bytes < product {
        let text = format!(
            "tcp_mem allows {} for all sockets, and one connection needs {} (round trip {})",
            bytes(high_bytes),
            bytes(product),
            time.map(|time| time.words()).unwrap_or_default()
        );
        (Low, text)
    } else {
        return Vec::new();
    };
    let mut text = text;
    for (name, words) in [
        ("TcpExt.TCPAbortOnMemory", "connections were aborted (TCPAbortOnMemory)"),
        ("TcpExt.PruneCalled", "receive queues pruned (PruneCalled)"),
        ("TcpExt.TCPMemoryPressuresChrono", "ms passed under pressure"),
    ] {
        let times = facts.counter(name);
        if times > 0 {
            text += &format!("; {} {words}", count(times));
        }
    }
    let entry = Found::measured(
        severity,
        "host",
        text,
        "windows shrink for all connections, whatever their own limits",
    );
    // At most a quarter of the memory, if its size is known.
    let most = facts.memory_bytes.map_or(u64::MAX, |bytes| bytes / 4 / facts.page_bytes.max(1));
    // The kernel's default: the pressure value is a sixteenth of the memory, and the limit is 3/2 of the
    // pressure value (tcp_init_mem, net/ipv4/tcp.c).
    let default = facts.memory_bytes.map_or(0, |bytes| bytes / facts.page_bytes.max(1) / 16 / 4 * 3 * 2);
    // After a raise, the counters still include the pressure from before. They do not justify another raise
    // if the limit is at least the kernel's default, and far above the present use.
    let is_past = facts.memory_bytes.is_some() && high >= default && used <= high / 4;
    let factor = |value: u64| {
        let larger = if is_past { value } else { value.saturating_mul(2) };
        let wanted = larger.max(product.saturating_mul(4) / facts.page_bytes.max(1));
        wanted.max(default).max(used.saturating_mul(2)).min(most.max(value))
    };
    let wanted = factor(high);
    vec![if wanted > high {
        entry.sysctl("net/ipv4/tcp_mem", format!("{} {} {wanted}", wanted / 2, wanted / 4 * 3))
    } else if is_past {
        entry.advice(format!(
            "TCP uses {} of {} pages now, so the pressure is from the past, or from short peaks: raise tcp_mem only \
             if TCPMemoryPressures still grows (`nstat -az TcpExtTCPMemoryPressures`)",
            count(used),
            count(high)
        ))
    } else {
        entry.advice(
            "tcp_mem is a quarter of the memory already: fewer or smaller connections, or more memory",
        )
    }]
}

/// Returns whether busy connections with this window certainly cannot fill their link, even together.
fn is_too_small(view: &View<'_>, window: u64) -> bool {
    [Direction::Receive, Direction::Send].into_iter().any(|direction| {
        view.largest_product(direction).is_some_and(|(nic, _, time)| {
            let speed = nic.speed_bps.unwrap_or(0) as f64;
            time.peer.is_some() && rate_of_windows(view, nic, direction, window) < speed
        })
    })
}

fn must_be_on(view: &View<'_>, path: &str, severity: Severity, effect: &str) -> Vec<Found> {
    if view.facts.sysctl_number(path) != Some(0) {
        return Vec::new();
    }
    vec![Found::limit(severity, "host", format!("{} is 0", path.replace('/', ".")), effect).sysctl(path, 1)]
}

fn sack_off(view: &View<'_>) -> Vec<Found> {
    let effect = "several losses in a window cost a round trip each, or a timeout";
    let mut found = must_be_on(view, "net/ipv4/tcp_sack", Medium, effect);
    for entry in &mut found {
        for (name, words) in [
            ("TcpExt.TCPTimeouts", "timeouts (TCPTimeouts"),
            ("TcpExt.TCPRenoRecovery", "recoveries without SACK (TCPRenoRecovery"),
            ("Tcp.RetransSegs", "segments retransmitted (RetransSegs"),
        ] {
            let times = view.facts.counter(name);
            if times > 0 {
                entry.evidence += &format!("; {} {words}{})", count(times), view.rate_words(times));
            }
        }
    }
    found
}

/// The largest window without scaling, bytes (RFC 7323, section 2.2).
const UNSCALED: u64 = 65_535;

pub(super) fn is_scaling_off(view: &View<'_>) -> bool {
    view.facts.sysctl_number("net/ipv4/tcp_window_scaling") == Some(0)
}

fn scaling_off(view: &View<'_>) -> Vec<Found> {
    const PART: u64 = 10;
    let severity = if is_too_small(view, UNSCALED) { High } else { Medium };
    let mut found =
        must_be_on(view, "net/ipv4/tcp_window_scaling", severity, "no window is larger than 64 KB");
    let products =
        [Direction::Receive, Direction::Send].into_iter().filter_map(|way| view.largest_product(way));
    let longest = products.filter(|(_, _, time)| time.peer.is_some()).max_by_key(|(_, _, time)| time.us);
    if let (Some(entry), Some((nic, _, time))) = (found.first_mut(), longest) {
        let link = nic.speed_bps.map(|speed| format!(" of {}", gigabits(speed as f64))).unwrap_or_default();
        entry.effect = format!(
            "no window is larger than 64 KB: a connection with {} gets at most {}{link}",
            time.words(),
            gigabits(UNSCALED as f64 * 8e6 / time.us as f64)
        );
        let waits: Vec<_> = view
            .bulk(nic, Direction::Send)
            .into_iter()
            .filter_map(|socket| socket.tcp.as_ref())
            .filter(|tcp| tcp.busy_us > 0 && tcp.receiver_limited_us.saturating_mul(PART) >= tcp.busy_us)
            .collect();
        let sum = |of: fn(&TcpFacts) -> u64| waits.iter().map(|tcp| of(tcp)).fold(0, u64::saturating_add);
        let (limited, busy) = (sum(|tcp| tcp.receiver_limited_us), sum(|tcp| tcp.busy_us));
        if busy > 0 {
            entry.evidence += &format!(
                "; {} connection{} waited for the receiver's window {} of their busy time",
                waits.len(),
                if waits.len() == 1 { "" } else { "s" },
                per_cent(limited as f64 / busy as f64)
            );
        }
    }
    found
}

/// Returns whether TCP's memory is at the pressure value of `tcp_mem`, or entered memory pressure at least 10
/// times since boot (`TCPMemoryPressures`).
pub(super) fn lacks_memory(view: &View<'_>) -> bool {
    const OFTEN: u64 = 10;
    let pressure = view.facts.sysctl_field("net/ipv4/tcp_mem", 1).filter(|pressure| *pressure > 0);
    pressure.is_some_and(|pressure| view.facts.counter("Sockstat.TCP.mem") >= pressure)
        || view.facts.counter("TcpExt.TCPMemoryPressures") >= OFTEN
}

fn timestamps(view: &View<'_>) -> Vec<Found> {
    let speed = view.fastest_bps().unwrap_or(0);
    let severity = if speed >= FAST { Medium } else { Low };
    let effect = if speed >= FAST {
        format!(
            "sequence numbers wrap in {:.1} s at {}, and old segments can be taken for new ones",
            4_294_967_296.0 * 8.0 / speed as f64,
            gigabits(speed as f64)
        )
    } else {
        "TCP measures round trips only once a window".to_owned()
    };
    must_be_on(view, "net/ipv4/tcp_timestamps", severity, &effect)
}

fn mtu_probing(view: &View<'_>) -> Vec<Found> {
    /// At least one timeout in this many sent segments is a sign of a path that drops full-size segments: the
    /// peer acknowledges nothing after such a segment.
    const TIMEOUTS_ONE_IN: u64 = 1000;
    const FEWEST: u64 = 1000;
    let jumbo = view.facts.interfaces.iter().find(|interface| {
        interface.up
            && interface.mtu.is_some_and(|mtu| mtu > 1500)
            && !matches!(interface.kind, InterfaceKind::Loopback | InterfaceKind::Veth)
    });
    let Some((jumbo, mtu)) = jumbo
        .and_then(|jumbo| Some((jumbo, jumbo.mtu?)))
        .filter(|_| view.facts.sysctl_number("net/ipv4/tcp_mtu_probing") == Some(0))
    else {
        return Vec::new();
    };
    let (timeouts, sent) = (view.facts.counter("TcpExt.TCPTimeouts"), view.sent_segments());
    if timeouts < FEWEST || timeouts.saturating_mul(TIMEOUTS_ONE_IN) < sent {
        return Vec::new();
    }
    let text = format!(
        "{} has an MTU of {}, net.ipv4.tcp_mtu_probing is 0, and TCP had {} timeouts for {} segments sent",
        jumbo.name,
        mtu,
        count(timeouts),
        count(sent)
    );
    let effect =
        "if the path carries less and ICMP is filtered, connections hang when they start to carry data";
    vec![Found::setting(Low, "host", text, effect).sysctl("net/ipv4/tcp_mtu_probing", 1)]
}

fn congestion_control(view: &View<'_>) -> Vec<Found> {
    const SEGMENTS: u64 = 1000;
    let Some(name) = view.facts.sysctl("net/ipv4/tcp_congestion_control") else { return Vec::new() };
    view.needs_nics();
    let Some((nic, product, time)) = view.largest_product(Direction::Send) else { return Vec::new() };
    let Some(mtu) = nic.mtu else { return Vec::new() };
    let segments = product / u64::from(mtu.saturating_sub(52).max(1));
    if name == "reno" && segments >= SEGMENTS {
        let text = format!(
            "the congestion control is reno, and a window at {} and {} has {segments} segments",
            gigabits(nic.speed_bps.unwrap_or(0) as f64),
            time.words()
        );
        let effect =
            format!("after a loss it takes about {} round trips to fill the link again", segments / 2);
        return vec![
            Found::on_basis(time.basis(Basis::Setting), Medium, "host", text, effect)
                .sysctl("net/ipv4/tcp_congestion_control", "cubic"),
        ];
    }
    Vec::new()
}

fn metrics(view: &View<'_>) -> Vec<Found> {
    let facts = view.facts;
    let fast = view.fastest_bps().is_some_and(|speed| speed >= FAST);
    let saves = facts.sysctl_number("net/ipv4/tcp_no_metrics_save") == Some(0);
    if !fast || !saves || view.sent_segments() < 100_000 || view.retransmitted_share() < 0.001 {
        return Vec::new();
    }
    let text = format!(
        "{} of all segments were retransmitted, and the kernel saves thresholds of such connections for later ones",
        per_cent(view.retransmitted_share())
    );
    let effect = "connections to hosts with a lossy past start low";
    vec![Found::setting(Low, "host", text, effect).sysctl("net/ipv4/tcp_no_metrics_save", 1)]
}

fn slow_start(view: &View<'_>) -> Vec<Found> {
    const LONG_US: u64 = 50_000;
    if view.facts.sysctl_number("net/ipv4/tcp_slow_start_after_idle") != Some(1) {
        return Vec::new();
    }
    // BBR's own model sets its rate after idle times: tcp_slow_start_after_idle_check (include/net/tcp.h)
    // does not apply.
    if view.facts.sysctl("net/ipv4/tcp_congestion_control").is_some_and(|name| name.starts_with("bbr")) {
        return Vec::new();
    }
    view.needs_nics();
    let Some((nic, product, time)) = view.largest_product(Direction::Send) else { return Vec::new() };
    if time.peer.is_none() || time.us < LONG_US || nic.speed_bps.is_none_or(|speed| speed < FAST) {
        return Vec::new();
    }
    let Some(mtu) = nic.mtu else { return Vec::new() };
    let segments = product / u64::from(mtu.saturating_sub(52).max(1));
    let trips = (segments as f64 / 10.0).max(1.0).log2().ceil();
    let text = format!(
        "round trip {}; after a pause a window of {segments} segments starts with 10 again",
        time.words()
    );
    let effect = format!(
        "{trips:.0} round trips, {:.1} s, until the link is full again",
        trips * time.us as f64 / 1e6
    );
    vec![Found::setting(Low, "host", text, effect).sysctl("net/ipv4/tcp_slow_start_after_idle", 0)]
}
