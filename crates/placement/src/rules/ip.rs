//! What IP drops: fragments that never become a packet, and packets from where no route leads back.

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{bytes, count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "fragments-lost",
        looks_at: "fragments that could not be put together (Ip.ReasmFails, Ip6ReasmFails) against those that came, and the memory for them",
        fires_when: "from 100 and one in a thousand on; high from 10,000 and one in ten on",
        why: "A packet in fragments is lost with any of them. Either fragments are lost on the way, or the memory for those that wait is too \
              small: above ipfrag_high_thresh new fragments are dropped.",
        fix: "a larger ipfrag_high_thresh where its memory is in use; else datagrams that fit the path's MTU",
        source: "Documentation/networking/ip-sysctl.rst (ipfrag_high_thresh, ipfrag_time); RFC 8900; ip_frag_reasm, net/ipv4/ip_fragment.c",
        needs: &[needs::SNMP, needs::SNMP6, needs::SOCKSTAT],
        check: fragments,
    },
    Rule {
        name: "reverse-path-drops",
        looks_at: "packets that the reverse-path filter dropped (TcpExt.IPReversePathFilter), and rp_filter of the interfaces",
        fires_when: "from 100 on; medium from one in ten thousand received packets on",
        why: "With rp_filter 1 a packet is dropped if the route back to its source leads over another interface: right against forged sources, \
              wrong on hosts with several uplinks or asymmetric routes. No interface counter shows it.",
        fix: "2 (loose) on interfaces with asymmetric routes; the larger of `all` and the interface's own counts",
        source: "Documentation/networking/ip-sysctl.rst (rp_filter); RFC 3704, section 2.4",
        needs: &[needs::NETSTAT, needs::SNMP, "/proc/sys/net/ipv4/conf/all/rp_filter"],
        check: reverse_path,
    },
    Rule {
        name: "checksum-errors",
        looks_at: "segments and datagrams whose own checksum was wrong (Tcp.InCsumErrors, Udp.InCsumErrors), against the packets received",
        fires_when: "low from 100 on, medium from one in a million on",
        why: "Their frames were sound on the wire: something damaged them between two links, or in this host. TCP sends again, and one in 65,536 \
              of such errors is not noticed at all.",
        fix: "what damages them: memory of a switch or NIC, an offload of the sender or of this NIC",
        source: "Stone and Partridge, When the CRC and TCP Checksum Disagree (SIGCOMM 2000); Documentation/networking/snmp_counter.rst",
        needs: &[needs::SNMP],
        check: checksums,
    },
];

fn checksums(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 1_000_000;
    let counter = |name: &str| view.facts.counter(name);
    let (tcp, udp) = (counter("Tcp.InCsumErrors"), counter("Udp.InCsumErrors"));
    let (damaged, received) = (tcp.saturating_add(udp), counter("Ip.InReceives"));
    if damaged < FEWEST {
        return Vec::new();
    }
    let text = format!(
        "{} TCP segments and {} UDP datagrams of {} packets had a wrong checksum of their own",
        count(tcp),
        count(udp),
        count(received)
    );
    let is_much = damaged.saturating_mul(ONE_IN) >= received;
    let effect = "they are dropped, and TCP sends them again";
    vec![Found::measured(if is_much { Medium } else { Low }, "host", text, effect).advice(
        "`tcpdump -vv` shows whose packets they are: one peer's point to its offload or path, everybody's to this NIC (`ethtool -K DEV rx off` \
         for a test) or to the switch in front of it",
    )]
}

const FEWEST: u64 = 100;

fn fragments(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 1000;
    const GRAVE: u64 = 10_000;
    const FULL: f64 = 0.5;
    /// A hundredth or so of the memory, within what a burst of fragments needs.
    const MEMORY_PART: u64 = 128;
    const LEAST_BYTES: u64 = 16 << 20;
    const MOST_BYTES: u64 = 256 << 20;
    let mut found = Vec::new();
    for (version, group, sysctl, memory) in [
        ("IPv4", "Ip.", "net/ipv4/ipfrag_high_thresh", "Sockstat.FRAG.memory"),
        ("IPv6", "Snmp6.Ip6", "net/ipv6/ip6frag_high_thresh", "Sockstat.FRAG6.memory"),
    ] {
        let counter = |name: &str| view.facts.counter(&format!("{group}{name}"));
        let (failed, wanted, timeouts) =
            (counter("ReasmFails"), counter("ReasmReqds"), counter("ReasmTimeout"));
        if failed < FEWEST || failed.saturating_mul(ONE_IN) < wanted {
            continue;
        }
        let limit = view.facts.sysctl_number(sysctl).and_then(|limit| u64::try_from(limit).ok());
        let used = view.facts.counter(memory);
        let full = limit.is_some_and(|limit| used as f64 >= FULL * limit as f64);
        // What failed without waiting for its time found no memory.
        let no_memory = full || timeouts.saturating_mul(2) < failed;
        let mut text = format!(
            "{} of {} fragments over {version} could not be put together",
            count(failed),
            count(wanted)
        );
        if timeouts > 0 {
            text += &format!("; {} times the rest did not come in time", count(timeouts));
        }
        if let Some(limit) = limit {
            text += &format!("; {} of {} for them are in use", bytes(used), bytes(limit));
        }
        let severity = if failed >= GRAVE && failed.saturating_mul(10) >= wanted { High } else { Medium };
        let effect = "datagrams larger than the MTU are lost: NFS and DNS over UDP, tunnels";
        let entry = Found::measured(severity, "host", text, effect);
        let advice = "fragments are lost on the way: smaller datagrams, or a tunnel's MTU that fits the path";
        let wanted = (view.facts.memory_bytes.unwrap_or(0) / MEMORY_PART).clamp(LEAST_BYTES, MOST_BYTES);
        found.push(match limit.filter(|limit| no_memory && *limit < wanted) {
            Some(_) => entry.sysctl(sysctl, wanted).advice(format!("if it goes on, {advice}")),
            None => entry.advice(advice),
        });
    }
    found
}

fn reverse_path(view: &View<'_>) -> Vec<Found> {
    const ONE_IN: u64 = 10_000;
    let dropped =
        view.facts.counter("TcpExt.IPReversePathFilter").max(view.facts.counter("IpExt.IPReversePathFilter"));
    let received = view.facts.counter("Ip.InReceives");
    if dropped < FEWEST {
        return Vec::new();
    }
    let filter =
        |name: &str| view.facts.sysctl_number(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    let all = filter("all");
    let strict: Vec<&str> = view
        .facts
        .interfaces
        .iter()
        .filter(|interface| interface.up && interface.name != "lo")
        .map(|interface| interface.name.as_str())
        .filter(|name| all.max(filter(name)) == 1)
        .collect();
    let much = dropped.saturating_mul(ONE_IN) >= received;
    let text = format!(
        "the reverse-path filter dropped {} packets, {} of those received{}",
        count(dropped),
        per_cent(dropped as f64 / received.max(dropped) as f64),
        if strict.is_empty() { String::new() } else { format!("; it is strict on {}", strict.join(", ")) }
    );
    let effect = "packets that come in over another interface than answers go out are lost";
    let mut entry = Found::measured(if much { Medium } else { Low }, "host", text, effect);
    for name in &strict {
        entry = entry.sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), 2);
    }
    let advice = "look first whose packets they are (`sysctl -w net.ipv4.conf.all.log_martians=1`): forged sources are dropped rightly";
    vec![entry.advice(advice)]
}
