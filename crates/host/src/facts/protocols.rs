//! Protocol counters: drops and retransmissions from the softirq to the sockets.
//!
//! Sources: proc_net(5), `Documentation/networking/snmp_counter.rst`, `softnet_seq_show`
//! (net/core/net-procfs.c).

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::Softnet;
use evenkeel_model::text::counted;

use super::distinct::{repeated, second};
use super::ranges;
use super::tree::{Tree, unreadable};

/// Lines of `/proc/vmstat` that rules use.
const VMSTAT: &[&str] = &[
    "allocstall_dma",
    "allocstall_dma32",
    "allocstall_movable",
    "allocstall_normal",
    "compact_stall",
    "numa_hint_faults",
    "numa_pages_migrated",
    "oom_kill",
    "pswpin",
    "pswpout",
    "zone_reclaim_failed",
];

/// Files with pairs of lines: names, then values.
const PAIRED: [&str; 2] = ["/proc/net/netstat", "/proc/net/snmp"];

const IPV6: &str = "/proc/net/snmp6";

/// Counters that rules use and that every Linux since 4.18 has, by file. A missing counter does not
/// count as 0. Sources: `snmp4_net_list` and the other lists in net/ipv4/proc.c, `vmstat_text`
/// (mm/vmstat.c).
pub const EVERY_LINUX: [(&str, &str, &[&str]); 9] = [
    (
        "/proc/net/netstat",
        "TcpExt",
        &[
            "IPReversePathFilter",
            "ListenDrops",
            "ListenOverflows",
            "OfoPruned",
            "PAWSActive",
            "PAWSEstab",
            "PFMemallocDrop",
            "PruneCalled",
            "RcvPruned",
            "SyncookiesSent",
            "TCPAbortOnMemory",
            "TCPBacklogDrop",
            "TCPDSACKRecv",
            "TCPMemoryPressures",
            "TCPMemoryPressuresChrono",
            "TCPOFODrop",
            "TCPOFOQueue",
            "TCPRcvCollapsed",
            "TCPRenoRecovery",
            "TCPRenoReorder",
            "TCPReqQFullDoCookies",
            "TCPReqQFullDrop",
            "TCPRetransFail",
            "TCPSACKReorder",
            "TCPSackRecovery",
            "TCPSynRetrans",
            "TCPTSReorder",
            "TCPTimeWaitOverflow",
            "TCPTimeouts",
            "TCPToZeroWindowAdv",
            "TCPWantZeroWindowAdv",
        ],
    ),
    ("/proc/net/netstat", "IpExt", &["InCsumErrors", "InNoRoutes", "InTruncatedPkts"]),
    (
        "/proc/net/snmp",
        "Ip",
        &[
            "ForwDatagrams",
            "FragCreates",
            "FragFails",
            "FragOKs",
            "InDiscards",
            "InHdrErrors",
            "InReceives",
            "OutDiscards",
            "OutNoRoutes",
            "OutRequests",
            "ReasmFails",
            "ReasmReqds",
            "ReasmTimeout",
        ],
    ),
    ("/proc/net/snmp", "Icmp", &["InDestUnreachs", "OutTimeExcds"]),
    (
        "/proc/net/snmp",
        "Tcp",
        &["ActiveOpens", "AttemptFails", "InCsumErrors", "InSegs", "OutSegs", "PassiveOpens", "RetransSegs"],
    ),
    (
        "/proc/net/snmp",
        "Udp",
        &[
            "InCsumErrors",
            "InDatagrams",
            "InErrors",
            "NoPorts",
            "OutDatagrams",
            "RcvbufErrors",
            "SndbufErrors",
        ],
    ),
    (
        IPV6,
        "Snmp6",
        &[
            "Ip6FragCreates",
            "Ip6FragFails",
            "Ip6InDiscards",
            "Ip6InHdrErrors",
            "Ip6InNoRoutes",
            "Ip6InReceives",
            "Ip6InTooBigErrors",
            "Ip6InTruncatedPkts",
            "Ip6OutDiscards",
            "Ip6OutForwDatagrams",
            "Ip6OutNoRoutes",
            "Ip6OutRequests",
            "Ip6ReasmFails",
            "Ip6ReasmReqds",
            "Ip6ReasmTimeout",
            "Udp6InCsumErrors",
            "Udp6InDatagrams",
            "Udp6InErrors",
            "Udp6NoPorts",
            "Udp6OutDatagrams",
            "Udp6RcvbufErrors",
            "Udp6SndbufErrors",
        ],
    ),
    ("/proc/vmstat", "Vmstat", &["allocstall_normal", "oom_kill", "pswpin", "pswpout"]),
    ("/proc/net/sockstat", "Sockstat.TCP", &["mem", "orphan", "tw"]),
];

pub(super) fn counters(tree: &Tree) -> BTreeMap<String, u64> {
    let mut counters = packet_counters(tree);
    let memory = "/proc/vmstat";
    note(tree, memory, tree.required_table(memory).map(|text| memory_lines(&text, &mut counters)));
    let sockets = "/proc/net/sockstat";
    note(tree, sockets, tree.required_table(sockets).map(|text| socket_lines(&text, &mut counters)));
    note_missing(tree, &[memory, sockets], &counters);
    add_tables(tree, &mut counters);
    counters
}

/// Returns the counters of [`counters`] without the counters of memory and of sockets in use.
pub(super) fn loss_counters(tree: &Tree) -> BTreeMap<String, u64> {
    let mut counters = packet_counters(tree);
    add_tables(tree, &mut counters);
    counters
}

/// Returns the counters of `/proc/net/netstat`, `/proc/net/snmp` and `/proc/net/snmp6` (snmp_counter.rst).
pub(super) fn packet_counters(tree: &Tree) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for file in PAIRED {
        let Some(text) = tree.required_table(file) else { continue };
        let mut impossible = Vec::new();
        note(tree, file, Some(paired_lines(&text, &mut counters, &mut impossible)));
        for (counter, why) in impossible {
            counters.remove(&counter);
            tree.note(&format!("{file}/{counter}"), format!("{file}: {counter} is {why}"));
        }
    }
    note_missing(tree, &PAIRED, &counters);
    if has_ipv6(tree) {
        note(tree, IPV6, tree.required_table(IPV6).map(|text| named_lines(&text, &mut counters)));
        note_missing(tree, &[IPV6], &counters);
    }
    counters
}

/// Returns whether the host has IPv6. A kernel without IPv6, or with `ipv6.disable=1`, has none of the files
/// of IPv6.
pub(super) fn has_ipv6(tree: &Tree) -> bool {
    ["/proc/net/snmp6", "/proc/net/udp6", "/proc/net/tcp6", "/proc/sys/net/ipv6"]
        .into_iter()
        .any(|path| tree.exists(path))
}

fn note_missing(tree: &Tree, files: &[&str], counters: &BTreeMap<String, u64>) {
    for (file, group, names) in EVERY_LINUX {
        if !files.contains(&file) || tree.is_noted(file) {
            continue;
        }
        let names: Vec<String> = names.iter().map(|name| format!("{group}.{name}")).collect();
        let missing: Vec<&String> = names.iter().filter(|name| !counters.contains_key(*name)).collect();
        let is_group = missing.len() == names.len();
        for counter in missing {
            let lost = if is_group { format!("{group}.* counters") } else { format!("counter {counter}") };
            tree.note(&format!("{file}/{counter}"), format!("{file} has no {lost}"));
        }
    }
}

/// Adds the counters of tables with a row for each CPU.
fn add_tables(tree: &Tree, counters: &mut BTreeMap<String, u64>) {
    for (file, group) in [("nf_conntrack", "Conntrack"), ("arp_cache", "Arp"), ("ndisc_cache", "Ndisc")] {
        // Connection tracking is a module, and IPv6 is an option of the kernel, so these tables may be
        // missing.
        let is_required = match file {
            "nf_conntrack" => tree.exists("/proc/sys/net/netfilter/nf_conntrack_max"),
            "ndisc_cache" => has_ipv6(tree),
            _ => true,
        };
        let file = format!("/proc/net/stat/{file}");
        // `neigh_table_init` (net/core/neighbour.c) creates these files only in the initial network
        // namespace.
        if is_required && tree.is_live() && file.ends_with("_cache") && !tree.exists(&file) {
            tree.note(
                &file,
                format!("{file} exists only in the initial network namespace (run evenkeel there)"),
            );
        }
        let text = if is_required { tree.required_table(&file) } else { tree.table(&file) };
        let Some(text) = text else { continue };
        let (columns, damage) = table(&text);
        note(tree, &file, Some(damage));
        // The kernel writes one row for each possible CPU (`neigh_stat_seq_start`, `ct_cpu_seq_start`). The
        // rows do not name their CPU.
        let rows = text.lines().count().saturating_sub(1);
        if let Some(processors) = tree.possible_processors().map(BTreeSet::len)
            && rows != processors
            && !tree.is_noted(&file)
        {
            tree.note(&file, format!("{file} has {} for {processors} processors", counted(rows, "row")));
        }
        for (name, value) in columns {
            let sum = counters.entry(format!("{group}.{name}")).or_insert(0_u64);
            *sum = sum.saturating_add(value);
        }
    }
}

/// Number and problem of the first unreadable line, if any.
type Damage = Option<(usize, String)>;

fn note(tree: &Tree, file: &str, damage: Option<Damage>) {
    if let Some(Some((line, reason))) = damage {
        tree.note_line(file, line, &reason);
    }
}

/// Parses pairs of lines that start with the name of a group: the first line has names, and the second
/// has values (`TcpExt: A B` and `TcpExt: 1 2`). Adds the names of counters that are negative or listed
/// twice to `impossible`.
fn paired_lines(
    text: &str,
    counters: &mut BTreeMap<String, u64>,
    impossible: &mut Vec<(String, &'static str)>,
) -> Damage {
    let mut columns: Option<(&str, Vec<&str>)> = None;
    let mut groups = BTreeSet::new();
    let mut damage = None;
    let mut wrong = |at: usize, reason: String| damage = damage.take().or(Some((at + 1, reason)));
    let mut last = 0;
    for (at, line) in text.lines().enumerate() {
        last = at;
        let Some((group, rest)) = line.split_once(':') else {
            wrong(at, unreadable(line));
            continue;
        };
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let Some((named, names)) = columns.take() else {
            columns = Some((group, words));
            continue;
        };
        if named != group {
            wrong(at, format!("no values of {named}"));
            columns = Some((group, words));
            continue;
        }
        // A value may be signed, and has at most 64 bits.
        let is_wrong = |word: &&str| word.parse::<u64>().is_err() && word.parse::<i64>().is_err();
        if names.len() != words.len() || words.iter().any(is_wrong) {
            wrong(at, format!("not the values of the {} counters of {group}", names.len()));
        }
        if !groups.insert(group) {
            wrong(at, second(group));
            continue;
        }
        if let Some((_, name)) = repeated(names.iter().copied()) {
            impossible.push((format!("{group}.{name}"), "listed twice"));
        }
        for (name, word) in names.iter().zip(&words) {
            let key = format!("{group}.{name}");
            // Only the limit of connections may be negative (RFC 4022, tcpMaxConn).
            match word.parse() {
                Ok(value) if ranges::COUNT.has(value) => drop(counters.insert(key, value)),
                // The kernel prints a sum over CPUs as unsigned, so a negative sum appears as a number near
                // 2^64.
                Ok(_) => impossible.push((key, "negative")),
                Err(_) if *name != "MaxConn" && word.starts_with('-') => {
                    impossible.push((key, "negative"));
                }
                Err(_) => {}
            }
        }
    }
    if text.is_empty() {
        wrong(0, unreadable(text));
    } else if let Some((group, _)) = columns {
        wrong(last, format!("no values of {group}"));
    }
    damage
}

/// Parses lines such as `numa_hint_faults 12`, and keeps only the counters that rules use.
fn memory_lines(text: &str, counters: &mut BTreeMap<String, u64>) -> Damage {
    let mut damage = text.is_empty().then(|| (1, unreadable(text)));
    for (at, line) in text.lines().enumerate() {
        match line.split_once(' ').map(|(name, value)| (name, value.trim().parse())) {
            Some((name, Ok(value))) if VMSTAT.contains(&name) && ranges::COUNT.has(value) => {
                if counters.insert(format!("Vmstat.{name}"), value).is_some() {
                    damage = damage.or(Some((at + 1, second(name))));
                }
            }
            Some((name, Ok(_))) if !VMSTAT.contains(&name) => {}
            _ => damage = damage.or(Some((at + 1, unreadable(line)))),
        }
    }
    damage
}

/// Parses lines like `Udp6RcvbufErrors 12`.
fn named_lines(text: &str, counters: &mut BTreeMap<String, u64>) -> Damage {
    let mut damage = text.is_empty().then(|| (1, unreadable(text)));
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        let value =
            words.clone().nth(1).and_then(|word| word.parse().ok()).filter(|value| ranges::COUNT.has(*value));
        if let (Some(name), Some(value)) = (words.next(), value) {
            if counters.insert(format!("Snmp6.{name}"), value).is_some() {
                damage = damage.or(Some((at + 1, second(name))));
            }
        } else {
            damage = damage.or(Some((at + 1, unreadable(line))));
        }
    }
    damage
}

/// Parses lines like `TCP: inuse 10 orphan 0 tw 0 alloc 12 mem 3`.
fn socket_lines(text: &str, counters: &mut BTreeMap<String, u64>) -> Damage {
    let mut damage = text.is_empty().then(|| (1, unreadable(text)));
    for (at, line) in text.lines().enumerate() {
        let (group, rest) = line.split_once(':').unwrap_or_default();
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let mut sound = !words.is_empty() && words.len().is_multiple_of(2);
        for pair in words.chunks_exact(2) {
            // If a sum over CPUs is temporarily below 0, the kernel writes 0 (sock_prot_inuse_get).
            sound &= pair[1].parse::<u64>().is_ok();
            if let Ok(value) = pair[1].parse() {
                let is_new = counters.insert(format!("Sockstat.{group}.{}", pair[0]), value).is_none();
                if !is_new {
                    damage = damage.or(Some((at + 1, second(&format!("{group}: {}", pair[0])))));
                }
            }
        }
        if !sound {
            damage = damage.or(Some((at + 1, unreadable(line))));
        }
    }
    damage
}

/// Sums columns of hexadecimal numbers with names in the first line, one line per CPU. The first
/// column, the number of entries, is the same in each line, so it is counted once.
fn table(text: &str) -> (Vec<(String, u64)>, Damage) {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let mut sums = vec![0_u64; names.len()];
    // Each such table starts with the number of entries (net/core/neighbour.c,
    // nf_conntrack_standalone.c).
    let is_header = names.first() == Some(&"entries");
    let mut damage = (!is_header).then(|| (1, unreadable(text.lines().next().unwrap_or_default())));
    if is_header && text.lines().nth(1).is_none() {
        damage = Some((1, "no row of a processor".to_owned()));
    }
    for (at, line) in lines.enumerate() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let mut sound = words.len() == names.len();
        for (at, (sum, word)) in sums.iter_mut().zip(&words).enumerate() {
            let value = u64::from_str_radix(word, 16);
            sound &= value.is_ok();
            let value = value.unwrap_or(0);
            *sum = if at == 0 { value.max(*sum) } else { sum.saturating_add(value) };
        }
        if !sound {
            damage = damage.or(Some((at + 2, unreadable(line))));
        }
    }
    (names.into_iter().map(str::to_owned).zip(sums).collect(), damage)
}

/// Returns the lines of `/proc/net/softnet_stat`. Before Linux 5.10, a line does not name its CPU: the
/// lines belong to the online CPUs, in order. Each field has 32 bits (`softnet_seq_show`).
pub(super) fn softnet(tree: &Tree, online: &[u32]) -> Vec<Softnet> {
    const FILE: &str = "/proc/net/softnet_stat";
    let Some(text) = tree.required_table(FILE) else { return Vec::new() };
    let line = |(at, line): (usize, &str)| {
        let fields: Option<Vec<u64>> = line
            .split_ascii_whitespace()
            .map(|word| u32::from_str_radix(word, 16).ok().map(u64::from))
            .collect();
        let fields = fields.filter(|fields| fields.len() >= 3);
        let named =
            fields.as_ref().and_then(|fields| fields.get(12)).map(|number| u32::try_from(*number).ok());
        let Some((fields, processor)) = fields.zip(named.unwrap_or_else(|| online.get(at).copied())) else {
            tree.note_line(FILE, at + 1, &unreadable(line));
            return None;
        };
        let field = |at: usize| fields.get(at).copied().unwrap_or(0);
        Some(Softnet {
            processor,
            processed: field(0),
            dropped: field(1),
            squeezed: field(2),
            steered: field(9),
            flow_limited: field(10),
        })
    };
    if text.is_empty() {
        tree.note_line(FILE, 1, &unreadable(&text));
    }
    let mut found: Vec<Softnet> = text.lines().enumerate().filter_map(line).collect();
    if let Some((at, processor)) = repeated(found.iter().map(|line| line.processor)) {
        tree.note(FILE, format!("{FILE}: {}", second(&format!("processor {processor}"))));
        found.truncate(at);
    }
    // The kernel writes a row for each online CPU. All rows have the same columns.
    tree.note_columns(FILE, &text, 1);
    if let Some(missing) = online.iter().find(|number| found.iter().all(|line| line.processor != **number)) {
        let rows = counted(text.lines().count(), "row");
        tree.note(FILE, format!("{FILE} has {rows}, and none of processor {missing}"));
    }
    if let Some(line) = found.iter().find(|line| !online.contains(&line.processor)) {
        tree.note(FILE, format!("{FILE} has a row of processor {}, which is not online", line.processor));
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn pairs_of_lines_are_counters() {
        let mut counters = BTreeMap::new();
        let damage = paired_lines(
            "TcpExt: A B\nTcpExt: 1 2\nTcp: C MaxConn\nTcp: 3 -1\nUdp: X",
            &mut counters,
            &mut Vec::new(),
        );
        assert_eq!(damage, Some((5, "no values of Udp".to_owned())));
        let expected = [("Tcp.C", 3), ("TcpExt.A", 1), ("TcpExt.B", 2)];
        assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn a_value_beyond_64_bits_is_unreadable() {
        let damage = paired_lines("Udp: A\nUdp: 99999999999999999999", &mut BTreeMap::new(), &mut Vec::new());
        assert_eq!(damage, Some((2, "not the values of the 1 counters of Udp".to_owned())));
    }

    proptest::proptest! {
        #[test]
        fn no_text_trips_the_parsers(text in "([A-Za-z]{1,3}: |[0-9a-f]{1,20}|-1|[ \\n:]|é){0,40}") {
            paired_lines(&text, &mut BTreeMap::new(), &mut Vec::new());
            named_lines(&text, &mut BTreeMap::new());
            socket_lines(&text, &mut BTreeMap::new());
            table(&text);
        }
    }

    #[test]
    fn tables_are_summed_over_processors() {
        let text = "entries  drop early_drop\n0000000a  00000001 00000000\n0000000a  0000000f 00000002\n";
        let sums = [("entries", 10), ("drop", 16), ("early_drop", 2)];
        let sums = sums.map(|(name, sum)| (name.to_owned(), sum)).to_vec();
        assert_eq!(table(text), (sums, None));
        assert_eq!(table(&text[..60]).1.unwrap().0, 3, "the third line is cut off");
    }

    #[test]
    fn damaged_lines_are_named() {
        let damage =
            |text: &str| paired_lines(text, &mut BTreeMap::new(), &mut Vec::new()).map(|(line, _)| line);
        assert_eq!(damage("Tcp: A B\nTcp: 1 2"), None);
        assert_eq!(damage(""), Some(1));
        assert_eq!(damage("Tcp: A B\nTcp: 1"), Some(2), "a value is missing");
        assert_eq!(damage("Tcp: A B\nTcp: 1 x\nUdp: A\nUdp: 1"), Some(2));
        assert_eq!(damage("Tcp: A\nTcp: 1\n\x01\x02"), Some(3));
        assert_eq!(socket_lines("TCP: inuse 10 mem", &mut BTreeMap::new()).map(|(line, _)| line), Some(1));
        assert_eq!(named_lines("Ip6InReceives 1\nIp6", &mut BTreeMap::new()).map(|(line, _)| line), Some(2));
    }
}
