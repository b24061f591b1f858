//! Tables of sysctls and features with values that are bad on any host.

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::Interface;

use super::{Found, Rule, needs};
use crate::Severity::{self, Low, Medium};
use crate::View;
use crate::view::per_cent;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "sysctl-harmful",
        looks_at: "sysctls with a value that is harmful on any host: bpf_jit_enable, tcp_recovery, tcp_dsack, \
                   tcp_frto, tcp_early_retrans, tcp_early_demux, udp_early_demux (0; the last two not on routers), \
                   tcp_abort_on_overflow, tcp_tw_recycle, ip_no_pmtu_disc, high_order_alloc_disable (not 0), \
                   gro_normal_batch (below 2), tcp_retries2 (below 5), tcp_limit_output_bytes (below 131,072), \
                   tcp_adv_win_scale (until Linux 6.5; outside -1 to 4)",
        fires_when: "medium: bpf_jit_enable, tcp_abort_on_overflow, tcp_tw_recycle, ip_no_pmtu_disc, \
                     tcp_limit_output_bytes or tcp_adv_win_scale has such a value; low: another has",
        why: "These values come from old tuning lists or experiments. Each switches off or restricts a function that \
              TCP, IP or the driver needs.",
        fix: "the kernel's default",
        source: "Documentation/networking/ip-sysctl.rst; Documentation/admin-guide/sysctl/net.rst",
        needs: &SYSCTLS,
        check: sysctls,
    },
    Rule {
        name: "feature-odd",
        looks_at: "features that almost all hosts leave on (highdma, tx-udp-segmentation, \
                   rx-udp_tunnel-port-offload) or off (tx-nocache-copy, loopback, rx-all, rx-fcs)",
        fires_when: "low: one that can be changed has the other state (for UDP and tunnels only if the host uses \
                     these); medium: highdma, loopback or tx-udp-segmentation, with load",
        why: "The kernel copies packets, keeps damaged frames, or does the NIC's work on the processor.",
        fix: "the driver's default",
        source: "ethtool(8), -K; Documentation/networking/netdev-features.rst; Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES, needs::SNMP],
        check: features,
    },
];

/// A kernel release: `(6, 18)` is Linux 6.18.
type Release = (u32, u32);

/// A sysctl with the range of its good values, the kernel's defaults, and the cost of a bad value.
struct Setting {
    path: &'static str,
    least: i64,
    most: i64,
    /// The defaults, each with the first release that has the default, in order.
    defaults: &'static [(Release, i64)],
    /// The first release that ignores the sysctl.
    ignored_since: Release,
    severity: Severity,
    effect: &'static str,
}

impl Setting {
    /// Returns the path below `/proc/sys`.
    fn name(&self) -> &'static str {
        self.path.trim_start_matches("/proc/sys/")
    }

    const fn ignored_since(mut self, release: Release) -> Self {
        self.ignored_since = release;
        self
    }

    /// Returns the default in a release, and text for the user about this default. For an unknown release,
    /// returns the newest default.
    fn default_of(&self, kernel: Option<Release>) -> (i64, String) {
        let is_known = |(since, _): &&(Release, i64)| kernel.is_none_or(|kernel| *since <= kernel);
        let newest = self.defaults.iter().rfind(is_known).or_else(|| self.defaults.first());
        let &(since, value) = newest.unwrap_or(&(ALWAYS, 0));
        let words = match kernel.unwrap_or(ALWAYS) >= since {
            true => format!("the kernel's default is {value}"),
            false => format!("the default since Linux {}.{} is {value}", since.0, since.1),
        };
        (value, words)
    }
}

/// The first release, for a default that never changed.
const ALWAYS: Release = (0, 0);

const fn row(
    (path, least, most, defaults): (&'static str, i64, i64, &'static [(Release, i64)]),
    severity: Severity,
    effect: &'static str,
) -> Setting {
    Setting { path, least, most, defaults, ignored_since: (u32::MAX, 0), severity, effect }
}

/// Upper limit of a setting for which no value is too large.
const ANY: i64 = i64::MAX;

const SETTINGS: &[Setting] = &[
    row(
        ("/proc/sys/net/core/bpf_jit_enable", 1, ANY, &[((5, 5), 1)]),
        Medium,
        "every BPF program (filters, XDP, tc, cgroups) runs in the interpreter",
    ),
    row(
        ("/proc/sys/net/core/high_order_alloc_disable", 0, 0, &[(ALWAYS, 0)]),
        Low,
        "each packet takes several single pages: more descriptors and allocations",
    ),
    row(
        ("/proc/sys/net/core/gro_normal_batch", 2, ANY, &[(ALWAYS, 8)]),
        Low,
        "GRO hands each packet to the stack alone",
    ),
    row(
        ("/proc/sys/net/ipv4/tcp_abort_on_overflow", 0, 0, &[(ALWAYS, 0)]),
        Medium,
        "if a burst fills the accept queue, clients are reset and do not retry",
    ),
    row(
        ("/proc/sys/net/ipv4/tcp_tw_recycle", 0, 0, &[(ALWAYS, 0)]),
        Medium,
        "clients behind one translated address (NAT) cannot connect",
    ),
    row(
        ("/proc/sys/net/ipv4/ip_no_pmtu_disc", 0, 0, &[(ALWAYS, 0)]),
        Medium,
        "packets may be cut into fragments on the way, and TCP does not learn the path's MTU",
    ),
    row(
        (
            "/proc/sys/net/ipv4/tcp_limit_output_bytes",
            131_072,
            ANY,
            &[(ALWAYS, 262_144), ((5, 0), 1_048_576), ((6, 16), 4_194_304)],
        ),
        Medium,
        "a connection has too little data in qdisc and ring to fill a fast link",
    ),
    // Since Linux 6.6, the window follows from the measured ratio of payload to memory (`scaling_ratio`,
    // net/ipv4/tcp.c).
    row(
        ("/proc/sys/net/ipv4/tcp_adv_win_scale", -1, 4, &[(ALWAYS, 1)]),
        Medium,
        "most of the receive buffer is kept for overhead: windows stay small",
    )
    .ignored_since((6, 6)),
    row(
        ("/proc/sys/net/ipv4/tcp_recovery", 1, ANY, &[(ALWAYS, 1)]),
        Low,
        "TCP detects losses only by duplicate acknowledgements (no RACK): more timeouts",
    ),
    row(
        ("/proc/sys/net/ipv4/tcp_dsack", 1, ANY, &[(ALWAYS, 1)]),
        Low,
        "the sender does not learn of unnecessary retransmissions",
    ),
    row(
        ("/proc/sys/net/ipv4/tcp_frto", 1, ANY, &[(ALWAYS, 2)]),
        Low,
        "unnecessary timeouts cost a whole window",
    ),
    row(
        ("/proc/sys/net/ipv4/tcp_early_retrans", 1, ANY, &[(ALWAYS, 3)]),
        Low,
        "no tail loss probe: a lost last segment costs a timeout",
    ),
    row(
        ("/proc/sys/net/ipv4/tcp_retries2", 5, ANY, &[(ALWAYS, 15)]),
        Low,
        "connections end after a few lost packets",
    ),
    row(
        ("/proc/sys/net/ipv4/tcp_early_demux", 1, ANY, &[(ALWAYS, 1)]),
        Low,
        "each segment needs a route lookup in addition to its socket lookup",
    ),
    row(
        ("/proc/sys/net/ipv4/udp_early_demux", 1, ANY, &[(ALWAYS, 1)]),
        Low,
        "each datagram needs a route lookup in addition to its socket lookup",
    ),
];

const SYSCTLS: [&str; SETTINGS.len()] = {
    let mut paths = [""; SETTINGS.len()];
    let mut at = 0;
    while at < SETTINGS.len() {
        paths[at] = SETTINGS[at].path;
        at += 1;
    }
    paths
};

fn sysctls(view: &View<'_>) -> Vec<Found> {
    let facts = view.facts;
    let kernel = view.kernel_version();
    let forwards = facts.sysctl_number("net/ipv4/ip_forward") != Some(0);
    let is_wrong = |row: &&Setting| {
        let value = facts.sysctl_number(row.name());
        // On a router, the early lookup finds no sockets.
        let is_router = row.path.contains("early_demux") && forwards;
        let is_ignored = kernel.is_some_and(|kernel| kernel >= row.ignored_since);
        value.is_some_and(|value| !(row.least..=row.most).contains(&value)) && !is_router && !is_ignored
    };
    let found = SETTINGS.iter().filter(is_wrong).map(|row| {
        let name = row.name().replace('/', ".");
        let (wanted, default) = row.default_of(kernel);
        let text = format!("{name} is {}, {default}", facts.sysctl(row.name()).unwrap_or_default());
        Found::setting(row.severity, "host", text, row.effect).sysctl(row.name(), wanted)
    });
    found.collect()
}

/// A feature: its name, the right state, the condition under which it matters, the severity, the cost.
type FeatureRow = (&'static str, bool, fn(&View<'_>, &Interface) -> Option<String>, Severity, &'static str);

const FEATURES: &[FeatureRow] = &[
    ("highdma", true, |_, _| Some(String::new()), Medium, "packets in high memory are copied first"),
    (
        "tx-nocache-copy",
        false,
        |_, _| Some(String::new()),
        Low,
        "sent data is copied past the caches, and read from memory again",
    ),
    ("loopback", false, |_, _| Some(String::new()), Medium, "the NIC returns packets that it should send"),
    ("rx-all", false, |_, _| Some(String::new()), Low, "damaged frames reach the stack"),
    ("rx-fcs", false, |_, _| Some(String::new()), Low, "each frame carries its checksum into the stack"),
    (
        "tx-udp-segmentation",
        true,
        |view, _| udp_share(view),
        Medium,
        "the processor segments datagrams of QUIC and tunnels, which the NIC could do",
    ),
    (
        "rx-udp_tunnel-port-offload",
        true,
        |view, _| tunnel(view),
        Low,
        "the NIC neither hashes nor checksums packets inside tunnels: one queue, more work",
    ),
];

/// Returns text about the share of UDP among the packets that this host has sent. Returns `None` if the
/// share is below a fifth, or if the host has sent less than a million datagrams.
fn udp_share(view: &View<'_>) -> Option<String> {
    let counter = |name: &str| view.facts.counter(name);
    let udp = counter("Udp.OutDatagrams").saturating_add(counter("Snmp6.Udp6OutDatagrams"));
    let all = counter("Ip.OutRequests").saturating_add(counter("Snmp6.Ip6OutRequests"));
    let share = udp as f64 / all.max(1) as f64;
    (udp >= 1_000_000 && share >= 0.2).then(|| format!("; {} of the packets sent are UDP", per_cent(share)))
}

fn tunnel(view: &View<'_>) -> Option<String> {
    let is_tunnel = |interface: &&Interface| {
        interface.up && matches!(interface.driver.as_deref(), Some("vxlan" | "geneve"))
    };
    let tunnel = view.facts.interfaces.iter().find(is_tunnel)?;
    Some(format!("; {} receives in UDP", tunnel.name))
}

fn features(view: &View<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for nic in view.nics() {
        for (name, wanted, matters, severity, effect) in FEATURES {
            let is_other = nic.feature(name).is_some_and(|feature| feature.on != *wanted && !feature.fixed);
            let Some(words) = matters(view, nic).filter(|_| is_other) else { continue };
            let severity = if view.is_loaded(nic) { *severity } else { Low };
            let text = format!("{name} is {}{words}", if *wanted { "off" } else { "on" });
            found.push(
                Found::setting(severity, &nic.name, text, *effect)
                    .on(&nic.name)
                    .change(Knob::Feature((*name).to_owned()), Value::Switch(*wanted)),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use evenkeel_model::host::HostFacts;

    use super::*;

    fn evidence(kernel: &str, sysctl: (&str, &str)) -> Vec<(String, Option<String>)> {
        let mut facts = HostFacts { kernel: Some(kernel.to_owned()), ..HostFacts::default() };
        facts.sysctls.insert(format!("net/{}", sysctl.0), sysctl.1.to_owned());
        let found = sysctls(&View::new(&facts)).into_iter();
        found.map(|found| (found.evidence, found.remedy.lines().pop())).collect()
    }

    #[test]
    fn the_default_is_that_of_the_hosts_release() {
        for (kernel, default) in [
            ("4.18.0-553.el8.x86_64", 262_144),
            ("5.14.0-427.el9.x86_64", 1_048_576),
            ("6.15.2", 1_048_576),
            ("6.18.44", 4_194_304),
        ] {
            let [(text, fix)] = &evidence(kernel, ("ipv4/tcp_limit_output_bytes", "65536"))[..] else {
                unreachable!("{kernel}")
            };
            assert!(text.ends_with(&format!("the kernel's default is {default}")), "{text}");
            assert_eq!(*fix, Some(format!("sysctl -w net.ipv4.tcp_limit_output_bytes={default}")));
        }
        let [(text, _)] = &evidence("4.18.0", ("core/bpf_jit_enable", "0"))[..] else { unreachable!() };
        assert!(text.ends_with("is 0, the default since Linux 5.5 is 1"), "{text}");
    }

    #[test]
    fn a_sysctl_that_the_kernel_ignores_does_no_harm() {
        assert_eq!(evidence("6.5.0", ("ipv4/tcp_adv_win_scale", "-2")).len(), 1);
        assert_eq!(evidence("6.6.0", ("ipv4/tcp_adv_win_scale", "-2")), []);
    }
}
