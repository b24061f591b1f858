//! Rules about offloads: work that the NIC or the stack does for many packets at once.

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::{Interface, InterfaceKind};

use super::{Found, Rule, by_speed, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "gro-off",
        looks_at: "generic-receive-offload of each NIC",
        fires_when: "medium: it is off and can be switched on; high: from 10 Gbit/s, on a busy NIC (30 % softirq \
                     time, or 10,000 lost packets); low: an idle NIC, or one that merges packets itself (rx-gro-hw, \
                     rx-lro)",
        why: "The stack handles each packet separately: with 1,500 bytes, forty times the work of packets of 64 KB.",
        fix: "switch it on",
        source: "the paper, section III-C and Table I (TSO, GSO, GRO); Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: gro_off,
    },
    Rule {
        name: "tso-off",
        looks_at: "tcp-segmentation-offload of each NIC",
        fires_when: "medium: it is off and can be switched on; high: from 10 Gbit/s, on a busy NIC (30 % softirq \
                     time, or 10,000 lost packets); low: an idle NIC",
        why: "The processor cuts segments and computes headers, which the NIC could do.",
        fix: "switch it on",
        source: "the paper, section III-C and Table I (TSO, GSO, GRO); Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: tso_off,
    },
    Rule {
        name: "gso-off",
        looks_at: "generic-segmentation-offload of each NIC",
        fires_when: "low: it is off and can be switched on; medium: from 10 Gbit/s, on a NIC that is not idle",
        why: "Protocols and devices without TSO send each packet separately through the whole stack.",
        fix: "switch it on",
        source: "the paper, section III-C and Table I (TSO, GSO, GRO); Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "tx-generic-segmentation",
                "generic-segmentation-offload",
                Medium,
                Low,
                "packets are cut at the top of the stack",
            )
        },
    },
    Rule {
        name: "rx-checksum-off",
        looks_at: "rx-checksumming of each NIC",
        fires_when: "low: it is off and can be switched on; medium: from 10 Gbit/s, on a NIC that is not idle",
        why: "The processor reads every byte again, and GRO merges less.",
        fix: "switch it on",
        source: "Documentation/networking/checksum-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "rx-checksum",
                "rx-checksumming",
                Medium,
                Low,
                "the processor reads every received byte again",
            )
        },
    },
    Rule {
        name: "tx-checksum-off",
        looks_at: "transmit checksums of each NIC",
        fires_when: "low: all are off and one can be switched on; medium: from 10 Gbit/s, on a NIC that is not idle",
        why: "The processor sums every byte, and the kernel disables segmentation offload and scatter-gather.",
        fix: "switch it on",
        source: "Documentation/networking/checksum-offloads.rst",
        needs: &[needs::FEATURES],
        check: transmit_checksum,
    },
    Rule {
        name: "scatter-gather-off",
        looks_at: "scatter-gather of each NIC",
        fires_when: "low: it is off and can be switched on; medium: from 10 Gbit/s, on a NIC that is not idle",
        why: "The kernel copies each packet into one buffer, and segmentation offload is off as well.",
        fix: "switch it on",
        source: "Documentation/networking/segmentation-offloads.rst",
        needs: &[needs::FEATURES],
        check: |view| {
            switched_off(
                view,
                "tx-scatter-gather",
                "scatter-gather",
                Medium,
                Low,
                "packets are copied again, and TSO and GSO are off as well",
            )
        },
    },
    Rule {
        name: "tso6-off",
        looks_at: "tx-tcp6-segmentation of each NIC whose TSO for IPv4 is on",
        fires_when: "low: it is off and can be switched on; medium: a tenth of the packets sent, and a million, are \
                     IPv6",
        why: "TSO has a switch for each version of IP: over IPv6 the processor cuts segments and computes headers.",
        fix: "switch it on",
        source: "Documentation/networking/segmentation-offloads.rst; NETIF_F_TSO6, include/linux/netdev_features.h",
        needs: &[needs::FEATURES, needs::SNMP6, needs::SNMP],
        check: tso6_off,
    },
    Rule {
        name: "hardware-gro-off",
        looks_at: "rx-gro-hw of NICs whose driver switches it on by default (bnxt_en, qede, bnx2x)",
        fires_when: "low: from 25 Gbit/s, it is off and can be switched on, and GRO is on",
        why: "The NIC merges segments before it interrupts: fewer buffers and passes through the stack. Unlike with \
              LRO, the host can forward merged packets.",
        fix: "switch it on",
        source: "Documentation/networking/netdev-features.rst (rx-gro-hw)",
        needs: &[needs::FEATURES, needs::DRIVER],
        check: hardware_gro_off,
    },
    Rule {
        name: "big-tcp-off",
        looks_at: "gso_max_size and gro_max_size against the size that the driver can send (tso_max_size), from 100 \
                   Gbit/s",
        fires_when: "low: both are at most 65,536, the driver can send twice that, the kernel has BIG TCP for IPv4 \
                     (6.3), and TCP has at least 5 % of the packets",
        why: "A packet of 180 KB costs the stack as much as one of 64 KB; a single flow gains most. It is not the \
              default: programs that capture packets or parse 16-bit lengths may fail.",
        fix: "185,000 bytes for both",
        source: "LWN 884104 (Going big with TCP packets); ip-link(8), gso_max_size, gro_ipv4_max_size; include/linux/netdevice.h",
        needs: &[needs::SPEED, needs::KERNEL, "netlink/links"],
        check: big_tcp_off,
    },
    Rule {
        name: "lro-forwards",
        looks_at: "large-receive-offload of NICs of a host that forwards, or of ports of a bridge",
        fires_when: "medium: it is on",
        why: "The kernel cannot restore the packets that LRO merged: forwarding damages or drops them (GRO can be \
              undone). The kernel switches LRO off for forwarding or a bridge; if it is on, it was switched on \
              again.",
        fix: "switch it off",
        source: "Documentation/networking/segmentation-offloads.rst; dev_disable_lro, net/core/dev.c; br_add_if, net/bridge/br_if.c",
        needs: &[needs::FEATURES, "/proc/sys/net/ipv4/ip_forward"],
        check: merged_and_forwarded,
    },
    Rule {
        name: "tunnel-offload-off",
        looks_at: "tx-udp_tnl-segmentation of each NIC on a host with tunnels in UDP (vxlan, geneve, flannel, cilium_vxlan)",
        fires_when: "low: it is off and can be switched on; medium: from 10 Gbit/s, on a NIC that is not idle",
        why: "The processor segments each packet of pods and guests inside the tunnel, which the NIC could do.",
        fix: "switch it on",
        source: "Documentation/networking/segmentation-offloads.rst (UDP tunnels); NETIF_F_GSO_UDP_TUNNEL, include/linux/netdev_features.h",
        needs: &[needs::FEATURES],
        check: tunnel_offload,
    },
    Rule {
        name: "vlan-offload-off",
        looks_at: "rx-vlan-hw-parse and tx-vlan-hw-insert of NICs below a VLAN interface or a bridge",
        fires_when: "low: one is off and can be switched on; medium: from 10 Gbit/s, with load",
        why: "The processor removes and inserts the tags; many drivers then neither segment nor merge tagged \
              packets.",
        fix: "switch them on",
        source: "ethtool(8), -K rxvlan, txvlan; NETIF_F_HW_VLAN_CTAG_RX, include/linux/netdev_features.h",
        needs: &[needs::FEATURES, needs::STATISTICS],
        check: vlan_offload,
    },
];

fn vlan_offload(view: &View<'_>) -> Vec<Found> {
    const NAMES: [&str; 2] = ["rx-vlan-hw-parse", "tx-vlan-hw-insert"];
    let is_vlan = |upper: &Interface, nic: &Interface| {
        upper.kind == InterfaceKind::Virtual && upper.lower.contains(&nic.name)
    };
    let carries = |nic: &Interface| {
        bridge_above(view, &nic.name).is_some()
            || view.facts.interfaces.iter().any(|upper| is_vlan(upper, nic))
    };
    let mut found = Vec::new();
    for nic in view.nics() {
        let is_off = |name: &&str| nic.feature(name).is_some_and(|feature| !feature.on && !feature.fixed);
        let off: Vec<&str> = NAMES.into_iter().filter(is_off).collect();
        if off.is_empty() || !carries(nic) {
            continue;
        }
        let severity = if view.is_loaded(nic) { by_speed(nic, Medium, Low) } else { Low };
        let text = format!("{} {} off", off.join(" and "), if off.len() == 1 { "is" } else { "are" })
            + &view.work_words(nic);
        let effect = "the processor handles the tag of each packet, which the NIC could do";
        let entry = Found::setting(severity, &nic.name, text, effect).on(&nic.name);
        found
            .push(off.into_iter().fold(entry, |entry, name| {
                entry.change(Knob::Feature(name.to_owned()), Value::Switch(true))
            }));
    }
    found
}

fn tunnel_offload(view: &View<'_>) -> Vec<Found> {
    const TUNNELS: [&str; 5] = ["vxlan", "flannel.", "genev", "cilium_vxlan", "cilium_geneve"];
    const NAME: &str = "tx-udp_tnl-segmentation";
    const SUMMED: &str = "tx-udp_tnl-csum-segmentation";
    let is_tunnel = |interface: &&Interface| {
        let is_named = TUNNELS.iter().any(|start| interface.name.starts_with(start));
        interface.up && interface.kind == InterfaceKind::Virtual && is_named
    };
    let Some(tunnel) = view.facts.interfaces.iter().find(is_tunnel) else { return Vec::new() };
    let is_off = |nic: &&Interface| nic.feature(NAME).is_some_and(|feature| !feature.on && !feature.fixed);
    let found = view.nics().filter(is_off).map(|nic| {
        let text =
            format!("{NAME} is off, and packets of {} leave in UDP{}", tunnel.name, view.work_words(nic));
        let effect = "the processor segments inside the tunnel, which the NIC could do";
        let severity = by_speed(nic, Medium, Low);
        let entry = Found::on_basis(view.cost_basis(nic), severity, &nic.name, text, effect)
            .on(&nic.name)
            .change(Knob::Feature(NAME.to_owned()), Value::Switch(true));
        // The variant of the offload for tunnels with a checksum of their own.
        if nic.feature(SUMMED).is_some_and(|feature| !feature.on && !feature.fixed) {
            return entry.change(Knob::Feature(SUMMED.to_owned()), Value::Switch(true));
        }
        entry
    });
    found.collect()
}

use crate::Severity;

fn switched_off(
    view: &View<'_>,
    name: &str,
    called: &str,
    fast: Severity,
    slow: Severity,
    effect: &str,
) -> Vec<Found> {
    let is_off = |nic: &&Interface| nic.feature(name).is_some_and(|feature| !feature.on && !feature.fixed);
    view.nics()
        .filter(is_off)
        .map(|nic| {
            let entry = Found::on_basis(
                view.cost_basis(nic),
                by_speed(nic, fast, slow),
                &nic.name,
                format!("{called} is off{}", view.work_words(nic)),
                effect,
            )
            .on(&nic.name);
            entry.change(Knob::Feature(name.to_owned()), Value::Switch(true))
        })
        .collect()
}

/// Finds GRO that is off. A NIC that merges packets itself leaves little work for GRO.
fn gro_off(view: &View<'_>) -> Vec<Found> {
    let found = switched_off(
        view,
        "rx-gro",
        "generic-receive-offload",
        High,
        Medium,
        "every received packet passes the stack separately",
    );
    let with_hardware = |mut entry: Found| {
        let nic = view.facts.interface(&entry.subject);
        if let Some(merging) = nic.and_then(Interface::merges_itself) {
            entry.severity = Low;
            entry.evidence = format!("{}, {merging} is on", entry.evidence);
            entry.effect = "packets that the NIC does not merge pass the stack separately".to_owned();
        }
        entry
    };
    found.into_iter().map(with_hardware).collect()
}

/// Finds TCP segmentation offload that is off. If the offload is off for both IPv4 and IPv6, one
/// finding switches it on for both.
fn tso_off(view: &View<'_>) -> Vec<Found> {
    const SIX: &str = "tx-tcp6-segmentation";
    let found = switched_off(
        view,
        "tx-tcp-segmentation",
        "tcp-segmentation-offload",
        High,
        Medium,
        "the processor segments, which the NIC could do",
    );
    let with_six = |mut entry: Found| {
        let nic = view.facts.interface(&entry.subject);
        if nic.and_then(|nic| nic.feature(SIX)).is_some_and(|feature| !feature.on && !feature.fixed) {
            entry.evidence = entry.evidence.replacen(" is off", " is off, for IPv4 and IPv6", 1);
            return entry.change(Knob::Feature(SIX.to_owned()), Value::Switch(true));
        }
        entry
    };
    found.into_iter().map(with_six).collect()
}

fn transmit_checksum(view: &View<'_>) -> Vec<Found> {
    const KINDS: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
    let mut found = Vec::new();
    for nic in view.nics() {
        let kinds: Vec<_> = KINDS.iter().filter_map(|name| Some((*name, nic.feature(name)?))).collect();
        if kinds.iter().any(|(_, feature)| feature.on) {
            continue;
        }
        let able: Vec<&str> =
            kinds.iter().filter(|(_, feature)| !feature.fixed).map(|(name, _)| *name).collect();
        if able.is_empty() {
            continue;
        }
        let text = format!("transmit checksums are off{}", view.work_words(nic));
        let effect = "the processor sums every byte, and segmentation offload is off as well";
        let mut entry = Found::setting(by_speed(nic, Medium, Low), &nic.name, text, effect).on(&nic.name);
        for name in able {
            entry = entry.change(Knob::Feature(name.to_owned()), Value::Switch(true));
        }
        found.push(entry);
    }
    found
}

fn tso6_off(view: &View<'_>) -> Vec<Found> {
    const SHARE: f64 = 0.1;
    const ENOUGH: u64 = 1_000_000;
    let (four, six) = (view.facts.counter("Ip.OutRequests"), view.facts.counter("Snmp6.Ip6OutRequests"));
    let share = six as f64 / four.saturating_add(six).max(1) as f64;
    let is_used = six >= ENOUGH && share >= SHARE;
    let mut found = Vec::new();
    for nic in view.nics() {
        let is = |name: &str, on: bool| {
            nic.feature(name).is_some_and(|feature| feature.on == on && (on || !feature.fixed))
        };
        if !is("tx-tcp-segmentation", true) || !is("tx-tcp6-segmentation", false) {
            continue;
        }
        let mut text = "tx-tcp6-segmentation is off, and TSO for IPv4 is on".to_owned();
        let effect = "the processor segments over IPv6, which the NIC could do";
        let entry = if is_used {
            text += &format!("; {} of the packets sent are IPv6{}", per_cent(share), view.work_words(nic));
            Found::on_basis(view.cost_basis(nic), Medium, &nic.name, text, effect)
        } else {
            Found::setting(Low, &nic.name, text, effect)
        };
        found.push(
            entry.on(&nic.name).change(Knob::Feature("tx-tcp6-segmentation".to_owned()), Value::Switch(true)),
        );
    }
    found
}

fn hardware_gro_off(view: &View<'_>) -> Vec<Found> {
    const FROM_BPS: u64 = 25_000_000_000;
    const DRIVERS: [&str; 3] = ["bnxt_en", "qede", "bnx2x"];
    let mut found = Vec::new();
    for nic in view.nics() {
        let by_default = nic.driver.as_deref().is_some_and(|driver| DRIVERS.contains(&driver));
        // Without GRO, hardware GRO is also off.
        let gro = nic.feature("rx-gro").is_none_or(|feature| feature.on);
        let is_off = nic.feature("rx-gro-hw").is_some_and(|feature| !feature.on && !feature.fixed);
        if by_default && gro && is_off && view.needed_speed(nic).is_some_and(|speed| speed >= FROM_BPS) {
            let text = "rx-gro-hw is off";
            let effect = "the processor merges segments, which the NIC could do";
            let entry = Found::setting(Low, &nic.name, text, effect).on(&nic.name);
            found.push(entry.change(Knob::Feature("rx-gro-hw".to_owned()), Value::Switch(true)));
        }
    }
    found
}

fn big_tcp_off(view: &View<'_>) -> Vec<Found> {
    const FROM_BPS: u64 = 100_000_000_000;
    const LEGACY_BYTES: u32 = 65_536;
    /// The size with which the authors of BIG TCP measured.
    const WANTED_BYTES: u32 = 185_000;
    let mut found = Vec::new();
    if view.kernel_version().is_none_or(|kernel| kernel < (6, 3)) || !view.carries_tcp() {
        return found;
    }
    for nic in view.nics().filter(|nic| nic.speed_bps.is_some_and(|speed| speed >= FROM_BPS)) {
        let Some(sizes) = nic.packet_sizes else { continue };
        let Some(most) = sizes.tso.filter(|most| *most >= LEGACY_BYTES * 2) else { continue };
        if sizes.gso > LEGACY_BYTES || sizes.gro > LEGACY_BYTES {
            continue;
        }
        let wanted = WANTED_BYTES.min(most);
        let text = format!(
            "gso_max_size is {} and gro_max_size {}; the driver can send {most} bytes at once (BIG TCP)",
            sizes.gso, sizes.gro
        );
        let effect = "a single flow passes the stack in more and smaller packets than necessary";
        let size = Value::Sizes { all: wanted, ipv4: wanted };
        found.push(
            Found::setting(Low, &nic.name, text, effect)
                .on(&nic.name)
                .change(Knob::GsoSizes, size.clone())
                .change(Knob::GroSizes, size),
        );
    }
    found
}

/// Returns the bridge of which an interface is a port, directly or through a bond or VLAN.
fn bridge_above<'a>(view: &View<'a>, name: &str) -> Option<&'a Interface> {
    /// Largest depth of stacked interfaces: facts from a file may contain a cycle.
    const MOST: usize = 4;
    let mut names = vec![name.to_owned()];
    for _ in 0..MOST {
        let above: Vec<&Interface> = view
            .facts
            .interfaces
            .iter()
            .filter(|upper| upper.lower.iter().any(|lower| names.contains(lower)))
            .collect();
        if let Some(bridge) = above.iter().find(|upper| upper.kind == InterfaceKind::Bridge) {
            return Some(bridge);
        }
        names = above.iter().map(|upper| upper.name.clone()).collect();
    }
    None
}

fn merged_and_forwarded(view: &View<'_>) -> Vec<Found> {
    let forwards = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"]
        .iter()
        .any(|name| view.facts.sysctl_number(name) == Some(1));
    let merges = |nic: &&Interface| nic.feature("rx-lro").is_some_and(|feature| feature.on);
    let mut found = Vec::new();
    for nic in view.nics().filter(merges) {
        let text = match bridge_above(view, &nic.name) {
            Some(bridge) => {
                format!("large-receive-offload is on, and it is a port of the bridge {}", bridge.name)
            }
            None if forwards => "large-receive-offload is on, and this host forwards".to_owned(),
            None => continue,
        };
        let merged = [
            "tpa_aggregated_frames",
            "rx_lro_packets",
            "rx_lro_aggregated",
            "hw_rsc_aggregated",
            "lro_aggregated",
        ];
        let merged = merged.iter().find_map(|name| Some((*name, *nic.driver_statistics.get(*name)?)));
        let merged = merged.map(|(name, packets)| format!("; {name} {}", count(packets))).unwrap_or_default();
        let text = text + &merged + &view.softirq_words(nic);
        let effect = "forwarded packets are damaged, dropped or sent too large";
        let entry = Found::setting(Medium, &nic.name, text, effect).on(&nic.name);
        found.push(if nic.feature("rx-lro").is_some_and(|feature| feature.fixed) {
            entry.advice("its driver cannot switch it off: use another driver, or forward over another NIC")
        } else {
            entry.change(Knob::Feature("rx-lro".to_owned()), Value::Switch(false))
        });
    }
    found
}
