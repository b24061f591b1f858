//! What the protocols count: drops and retransmissions from the softirq up to the sockets.
//!
//! Sources: proc_net(5), `Documentation/networking/snmp_counter.rst`, `softnet_seq_show` (net/core/net-procfs.c).

use std::collections::BTreeMap;

use evenkeel_model::host::Softnet;

use super::tree::Tree;

/// Lines of `/proc/vmstat` that are kept.
const VMSTAT: &[&str] = &["compact_stall", "numa_hint_faults", "numa_pages_migrated"];

/// Counters by group and name.
pub(super) fn counters(tree: &Tree) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for file in ["/proc/net/netstat", "/proc/net/snmp"] {
        paired_lines(&tree.read(file).unwrap_or_default(), &mut counters);
    }
    for line in tree.read("/proc/net/snmp6").unwrap_or_default().lines() {
        let mut words = line.split_ascii_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            counters.insert(format!("Snmp6.{name}"), value);
        }
    }
    // "TCP: inuse 10 orphan 0 tw 0 alloc 12 mem 3"
    for line in tree.read("/proc/net/sockstat").unwrap_or_default().lines() {
        let Some((group, rest)) = line.split_once(':') else { continue };
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        for pair in words.chunks_exact(2) {
            if let Ok(value) = pair[1].parse() {
                counters.insert(format!("Sockstat.{group}.{}", pair[0]), value);
            }
        }
    }
    // Only what rules look at: the file has some 200 lines.
    for line in tree.read("/proc/vmstat").unwrap_or_default().lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        if let (true, Ok(value)) = (VMSTAT.contains(&name), value.trim().parse()) {
            counters.insert(format!("Vmstat.{name}"), value);
        }
    }
    for (file, group) in
        [("nf_conntrack", "Conntrack"), ("arp_cache", "Neighbours"), ("ndisc_cache", "Neighbours")]
    {
        for (name, value) in table(&tree.read(&format!("/proc/net/stat/{file}")).unwrap_or_default()) {
            let sum = counters.entry(format!("{group}.{name}")).or_insert(0_u64);
            *sum = sum.saturating_add(value);
        }
    }
    counters
}

/// Pairs of lines, names and values, with their group in front: `TcpExt: A B` and `TcpExt: 1 2`.
fn paired_lines(text: &str, counters: &mut BTreeMap<String, u64>) {
    let mut names: Option<(&str, Vec<&str>)> = None;
    for line in text.lines() {
        let Some((group, rest)) = line.split_once(':') else { continue };
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        match names.take() {
            Some((named, names)) if named == group => {
                for (name, value) in names.iter().zip(&words) {
                    // Some are signed (Tcp.MaxConn is -1): those are no counters.
                    if let Ok(value) = value.parse() {
                        counters.insert(format!("{group}.{name}"), value);
                    }
                }
            }
            _ => names = Some((group, words)),
        }
    }
}

/// Columns of hexadecimal figures, a line for each processor, below their names; the first column, the number of entries,
/// is the same in each line, so sums of it mean nothing.
fn table(text: &str) -> Vec<(String, u64)> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let mut sums = vec![0_u64; names.len()];
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line.split_ascii_whitespace()) {
            *sum = sum.saturating_add(u64::from_str_radix(word, 16).unwrap_or(0));
        }
    }
    names.into_iter().map(str::to_owned).zip(sums).skip(1).collect()
}

/// The lines of `/proc/net/softnet_stat`. Before Linux 5.10 they do not name their processor: then they are those that are
/// online, in order.
pub(super) fn softnet(tree: &Tree, online: &[u32]) -> Vec<Softnet> {
    let text = tree.read("/proc/net/softnet_stat").unwrap_or_default();
    let line = |(at, line): (usize, &str)| {
        let fields: Vec<u64> =
            line.split_ascii_whitespace().map_while(|word| u64::from_str_radix(word, 16).ok()).collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or(0);
        if fields.len() < 3 {
            return None;
        }
        let named = fields.get(12).and_then(|number| u32::try_from(*number).ok());
        let processor = named.or_else(|| online.get(at).copied())?;
        Some(Softnet {
            processor,
            processed: field(0),
            dropped: field(1),
            squeezed: field(2),
            steered: field(9),
            flow_limited: field(10),
        })
    };
    text.lines().enumerate().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn pairs_of_lines_are_counters() {
        let mut counters = BTreeMap::new();
        paired_lines("TcpExt: A B\nTcpExt: 1 2\nTcp: C MaxConn\nTcp: 3 -1\nUdp: X", &mut counters);
        let expected = [("Tcp.C", 3), ("TcpExt.A", 1), ("TcpExt.B", 2)];
        assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    proptest::proptest! {
        #[test]
        fn no_text_trips_the_parsers(text in "([A-Za-z]{1,3}: |[0-9a-f]{1,20}|-1|[ \\n:]|é){0,40}") {
            paired_lines(&text, &mut BTreeMap::new());
            table(&text);
        }
    }

    #[test]
    fn tables_are_summed_over_processors() {
        let text = "entries  drop early_drop\n0000000a  00000001 00000000\n0000000a  0000000f 00000002\n";
        assert_eq!(table(text), [("drop".to_owned(), 16), ("early_drop".to_owned(), 2)]);
        assert_eq!(table(""), []);
    }
}
