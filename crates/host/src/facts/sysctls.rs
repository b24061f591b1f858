//! Sysctls that rules use.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::change::sysctl_name;

use super::tree::{Tree, unreadable};

/// Paths below `/proc/sys`.
const SYSCTLS: &[&str] = &[
    "kernel/nmi_watchdog",
    "kernel/numa_balancing",
    "net/bridge/bridge-nf-call-iptables",
    "net/core/bpf_jit_enable",
    "net/core/busy_poll",
    "net/core/busy_read",
    "net/core/default_qdisc",
    "net/core/dev_weight",
    "net/core/flow_limit_cpu_bitmap",
    "net/core/gro_normal_batch",
    "net/core/high_order_alloc_disable",
    "net/core/netdev_budget",
    "net/core/netdev_budget_usecs",
    "net/core/netdev_max_backlog",
    "net/core/rmem_default",
    "net/core/rmem_max",
    "net/core/rps_sock_flow_entries",
    "net/core/somaxconn",
    "net/core/wmem_default",
    "net/core/wmem_max",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_no_pmtu_disc",
    "net/ipv4/ipfrag_high_thresh",
    "net/ipv4/neigh/default/gc_thresh1",
    "net/ipv4/neigh/default/gc_thresh2",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/ipv4/neigh/default/unres_qlen_bytes",
    "net/ipv4/tcp_abort_on_overflow",
    "net/ipv4/tcp_adv_win_scale",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_dsack",
    "net/ipv4/tcp_early_demux",
    "net/ipv4/tcp_early_retrans",
    "net/ipv4/tcp_frto",
    "net/ipv4/tcp_limit_output_bytes",
    "net/ipv4/tcp_max_orphans",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_max_tw_buckets",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_moderate_rcvbuf",
    "net/ipv4/tcp_mtu_probing",
    "net/ipv4/tcp_no_metrics_save",
    "net/ipv4/tcp_recovery",
    "net/ipv4/tcp_retries2",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_sack",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_tw_recycle",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv4/tcp_window_scaling",
    "net/ipv4/tcp_wmem",
    "net/ipv4/udp_early_demux",
    "net/ipv4/udp_mem",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/ip6frag_high_thresh",
    "net/ipv6/neigh/default/gc_thresh1",
    "net/ipv6/neigh/default/gc_thresh2",
    "net/ipv6/neigh/default/gc_thresh3",
    "net/ipv6/route/max_size",
    "net/netfilter/nf_conntrack_buckets",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "vm/min_free_kbytes",
    "vm/swappiness",
    "vm/zone_reclaim_mode",
];

/// Sysctls whose value is a name.
const NAMES: &[&str] = &["net/core/default_qdisc", "net/ipv4/tcp_congestion_control"];

/// Sysctls whose value is a mask, which may be empty.
const LISTS: &[&str] = &["net/core/flow_limit_cpu_bitmap"];

/// Sysctls with several numbers, and the count of numbers. All other sysctls except masks have one word.
const SEVERAL: &[(&str, usize)] = &[
    ("net/ipv4/ip_local_port_range", 2),
    ("net/ipv4/tcp_mem", 3),
    ("net/ipv4/tcp_rmem", 3),
    ("net/ipv4/tcp_wmem", 3),
    ("net/ipv4/udp_mem", 3),
];

/// Sysctls that may be negative.
const SIGNED: &[&str] = &["net/ipv4/tcp_adv_win_scale", "net/ipv6/route/max_size"];

/// Sysctls of type long (net/ipv4/sysctl_net_ipv4.c, ip_fragment.c). All other numbers have 32 bits.
const LONG: &[&str] =
    &["net/ipv4/ipfrag_high_thresh", "net/ipv4/tcp_mem", "net/ipv4/udp_mem", "net/ipv6/ip6frag_high_thresh"];

/// Prefixes of the sysctls that may be missing without a note. They depend on a module, a feature, several
/// memory nodes or the kernel's version, or no rule needs them for a verdict.
const OPTIONAL: &[&str] = &[
    "net/core/bpf_jit_enable",
    "net/core/gro_normal_batch",
    "net/core/high_order_alloc_disable",
    "net/ipv4/neigh/default/gc_thresh1",
    "net/ipv4/neigh/default/gc_thresh2",
    "net/ipv4/neigh/default/unres_qlen_bytes",
    "net/ipv4/tcp_tw_recycle",
    "vm/swappiness",
    "kernel/nmi_watchdog",
    "kernel/numa_balancing",
    "net/bridge/",
    "net/core/busy_",
    "net/core/flow_limit_cpu_bitmap",
    "net/ipv4/conf/",
    "net/ipv6/neigh/default/gc_thresh1",
    "net/ipv6/neigh/default/gc_thresh2",
    "net/netfilter/",
    "vm/zone_reclaim_mode",
];

/// Returns whether other files of the host show that it has an optional sysctl. These files are the
/// sysctls of connection tracking, the memory nodes, the counters of NUMA balancing (`vmstat_text`,
/// mm/vmstat.c), and the drops of the flow limit.
fn is_with_others(tree: &Tree, name: &str) -> bool {
    const TRACKING: [&str; 3] = [
        "net/netfilter/nf_conntrack_buckets",
        "net/netfilter/nf_conntrack_count",
        "net/netfilter/nf_conntrack_max",
    ];
    if name == "vm/zone_reclaim_mode" {
        return tree.exists("/sys/devices/system/node/node1");
    }
    if name == "kernel/numa_balancing" {
        return tree.read("/proc/vmstat").is_some_and(|text| text.contains("numa_pages_migrated"));
    }
    if name == "net/core/flow_limit_cpu_bitmap" {
        let dropped =
            |line: &str| line.split_ascii_whitespace().nth(10).is_some_and(|word| word != "00000000");
        return tree.read("/proc/net/softnet_stat").is_some_and(|text| text.lines().any(dropped));
    }
    TRACKING.contains(&name) && TRACKING.iter().any(|other| tree.exists(&format!("/proc/sys/{other}")))
}

/// Returns the readable sysctls of [`SYSCTLS`], and the reverse-path filter of each interface.
pub(super) fn sysctls<'a>(
    tree: &Tree,
    interfaces: impl Iterator<Item = &'a String>,
) -> BTreeMap<String, String> {
    let read = |name: String| {
        let path = format!("/proc/sys/{name}");
        let is_optional = OPTIONAL.iter().any(|start| name.starts_with(start))
            && !is_with_others(tree, &name)
            || name.starts_with("net/ipv6/") && !tree.exists("/proc/sys/net/ipv6");
        // Every kernel has all sysctls that are not optional, but a network namespace other than the initial
        // one shows only some of them (`net_core_table`, net/core/sysctl_net_core.c).
        if tree.is_live() && !tree.exists("/proc/sys/net") {
            tree.note(&path, "/proc/sys is not visible (mount option subset=pid of /proc?)".to_owned());
            return None;
        }
        if !is_optional && tree.is_live() && name.starts_with("net/") && !tree.exists(&path) {
            let name = name.replace('/', ".");
            tree.note(
                &path,
                format!("{name} exists only in the initial network namespace (run evenkeel there)"),
            );
            return None;
        }
        let text = if is_optional { tree.read(&path)? } else { tree.required(&path)? };
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let is_sound = |word: &&str| {
            if NAMES.contains(&name.as_str()) {
                word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
            } else if LISTS.contains(&name.as_str()) {
                word.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b',' | b'-'))
            } else {
                let most = if LONG.contains(&name.as_str()) { i64::MAX } else { u32::MAX.into() };
                let is_sign_right = |value: i64| value >= 0 || SIGNED.contains(&name.as_str());
                word.parse().is_ok_and(|value| is_sign_right(value) && value <= most)
            }
        };
        let count = SEVERAL.iter().find(|(several, _)| *several == name).map_or(1, |(_, count)| *count);
        let is_whole = words.len() == count || LISTS.contains(&name.as_str());
        // The kernel refuses a port range whose end is below its start (ipv4_local_port_range).
        let number = |word: &&str| word.parse::<i64>().ok();
        let is_reversed =
            name.ends_with("_port_range") && words.first().and_then(number) > words.last().and_then(number);
        if !is_whole || is_reversed || !words.iter().all(is_sound) {
            tree.note_line(&path, 1, &unreadable(&text));
            return None;
        }
        let value = words.join(" ");
        Some((name, value))
    };
    let filters = interfaces.map(|name| format!("net/ipv4/conf/{name}/rp_filter"));
    SYSCTLS.iter().map(|name| (*name).to_owned()).chain(filters).filter_map(read).collect()
}

/// Returns the sysctls among these that no program can set. Outside the initial network namespace, the
/// kernel shows some sysctls without write permission (`sysctl_core_net_init`,
/// net/core/sysctl_net_core.c). File modes in a recorded tree are meaningless, so `recorded` lists
/// these sysctls.
pub(super) fn read_only<'a>(
    tree: &Tree,
    sysctls: impl Iterator<Item = &'a String>,
    recorded: &[String],
) -> BTreeSet<String> {
    let is_read_only = |name: &&String| match tree.is_live() {
        true => !tree.is_writable(&format!("/proc/sys/{name}")),
        // sysctl(8) accepts both notations.
        false => recorded.iter().any(|known| known == *name || *known == sysctl_name(name)),
    };
    sysctls.filter(is_read_only).cloned().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_sysctl_is_read_once() {
        assert!(
            SYSCTLS.is_sorted_by(|one, next| one < next),
            "in the order of their names, without duplicates"
        );
    }

    #[test]
    fn a_recorded_sysctl_without_write_permission_is_known_in_both_notations() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("proc")).unwrap();
        std::fs::create_dir(place.path().join("sys")).unwrap();
        let tree = Tree::recorded(place.path()).unwrap();
        let known = ["net/core/rmem_max".to_owned(), "net/ipv4/conf/eth0.5/rp_filter".to_owned()];
        for (recorded, expected) in [
            ("net.core.rmem_max", Some(&known[0])),
            ("net/core/rmem_max", Some(&known[0])),
            ("net/ipv4/conf/eth0.5/rp_filter", Some(&known[1])),
            ("net.core.wmem_max", None),
        ] {
            let found = read_only(&tree, known.iter(), &[recorded.to_owned()]);
            assert_eq!(found.first(), expected, "{recorded}");
        }
    }
}
