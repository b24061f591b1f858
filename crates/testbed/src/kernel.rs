//! Checks whether this kernel can run a variant, and translates its knobs to options of the test bed.

use std::path::Path;

use evenkeel_model::scenario::{Knobs, Qdisc, QueueChoice, Topology, Variant};
use evenkeel_model::soft_nic::{self, LEAF_LIMIT_PACKETS, XPS_POOLS};
use evenkeel_model::world::Assessment;
use evenkeel_netlink::tc;
use evenkeel_transmit::{Policy, Pool};

use crate::bed::BedOptions;
use crate::error::TestbedError;
use crate::namespace::Namespace;
use crate::nic::LeafQdisc;

#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelFeatures {
    pub(crate) sfq: bool,
    /// Whether TCP sizes segments by the minimum RTT (`tcp_tso_rtt_log`, since Linux 5.18).
    pub(crate) tso_by_rtt: bool,
}

impl KernelFeatures {
    /// Probes the kernel in a private namespace.
    pub(crate) fn probe() -> Result<Self, TestbedError> {
        let namespace = Namespace::new()?;
        let mut netlink = namespace.netlink()?;
        let loopback = netlink.link_index("lo")?;
        let place = |netlink: &mut evenkeel_netlink::Netlink, kind| {
            netlink.replace_qdisc(loopback, tc::Handle::ROOT, tc::Handle::new(1, 0), &tc::Qdisc::Named(kind))
        };
        Ok(Self {
            sfq: place(&mut netlink, "sfq").is_ok(),
            tso_by_rtt: Path::new("/proc/sys/net/ipv4/tcp_tso_rtt_log").exists(),
        })
    }
}

impl KernelFeatures {
    /// Returns the sysctls that keep flows from using measurements of previous connections or of
    /// moments of high load.
    pub(crate) fn steady_tcp(self) -> Vec<(String, String)> {
        let mut sysctls = vec![("net/ipv4/tcp_no_metrics_save".to_owned(), "1".to_owned())];
        if self.tso_by_rtt {
            sysctls.push(("net/ipv4/tcp_tso_rtt_log".to_owned(), TSO_RTT_LOG.to_owned()));
        }
        sysctls
    }
}

/// Returns the test bed's settings for a variant, or the reason why this kernel cannot run it.
pub(crate) fn assess(
    variant: &Variant,
    topology: Topology,
    features: KernelFeatures,
    queues: u32,
) -> Result<Assessment, String> {
    let Knobs { queue_choice, queues: own_queues, xps_pool, qdisc, tcp_small_queues, gso_size, tso, .. } =
        variant.knobs();
    let Knobs { queue_weights, segment_size, service_balancing, .. } = variant.knobs();
    if *queue_weights && topology == Topology::Mq {
        return Err(
            "the queues of the topology mq do not support weights; run the scenario with --topology soft-nic"
                .to_owned(),
        );
    }
    if *service_balancing && topology == Topology::SoftNic {
        return Err(
            "service balancing is for devices without queue weights, but the soft NIC has queue weights; run \
             the scenario with --topology mq"
                .to_owned(),
        );
    }
    if *service_balancing && *queue_choice != QueueChoice::Dqa {
        return Err(
            "service balancing works only with dynamic queue assignment: set queue-choice to dqa".to_owned()
        );
    }

    let mut assessment = Assessment::default();
    let mut set = |name: &str, value: String| {
        assessment.settings.insert(name.to_owned(), value);
    };
    set("queue-choice", if *queue_choice == QueueChoice::Dqa { "dqa" } else { "hash" }.to_owned());
    set("queues", own_queues.unwrap_or(queues).to_string());
    set("topology", if topology == Topology::Mq { "mq" } else { "soft-nic" }.to_owned());
    let sfq = *qdisc == Qdisc::SfqPrio && features.sfq && topology == Topology::SoftNic;
    set("qdisc", if sfq { "sfq".to_owned() } else { format!("pfifo limit {LEAF_LIMIT_PACKETS}") });
    set("byte-queue-limit", "none: veth has no BQL".to_owned());
    set("interrupt-interval", "none: veth has no interrupts".to_owned());
    set("gso-size", gso_size.to_string());
    if *queue_weights {
        set("queue-weights", "HTB quantum".to_owned());
    }
    if *service_balancing {
        set("service-balancing", "flows held back by the window until the kernel lets them move".to_owned());
    }
    if let Some(bytes) = segment_size {
        set("segment-size", format!("{bytes} while queues are shared: gso_max_size"));
    }
    if *queue_weights || segment_size.is_some() {
        set("equal-backlogs", "tcp_limit_output_bytes while queues are shared".to_owned());
    }
    set("tso", if *tso { "on".to_owned() } else { "off: gso_max_segs 1".to_owned() });
    if features.tso_by_rtt {
        set("tcp-tso-rtt-log", TSO_RTT_LOG.to_owned());
    }
    match tcp_small_queues {
        Some(limit) => set("tcp-small-queues", limit.to_string()),
        None => {
            set(
                "tcp-small-queues",
                format!("{SMALL_QUEUES_OFF_BYTES} bytes, pacing ratio {PACING_RATIO_LARGEST} %"),
            );
            assessment.notes.push(
                "TCP small queues cannot be turned off in this kernel: a socket still holds back what exceeds \
                 about 10 ms at its pacing rate"
                    .to_owned(),
            );
        }
    }
    if xps_pool.is_some() {
        let pools = xps_pools(variant, queues);
        set("xps-pools", format!("{} of {} queues", pools.len(), pools.first().map_or(0, |pool| pool.count)));
        assessment.notes.push(format!(
            "XPS as {} pools of {} queues, emulated by the queue choice: processor n uses pool n modulo {}",
            pools.len(),
            pools.first().map_or(0, |pool| pool.count),
            pools.len()
        ));
    }
    if let Some(lacking) = soft_nic::lacking(variant.knobs(), sfq) {
        assessment.notes.insert(0, lacking);
    }
    if topology == Topology::Mq {
        assessment
            .notes
            .push("mq: each queue is shaped to its share of the rate; idle shares are lost".to_owned());
    }
    Ok(assessment)
}

/// Returns the pools of an `xps:` variant: the two halves of the queues. Returns no pools for other
/// variants, or if there are too few queues.
fn xps_pools(variant: &Variant, queues: u32) -> Vec<Pool> {
    let queues = variant.knobs().queues.unwrap_or(queues);
    if variant.knobs().xps_pool.is_none() || queues < XPS_POOLS {
        return Vec::new();
    }
    let count = queues / XPS_POOLS;
    (0..XPS_POOLS)
        .map(|pool| Pool {
            first: pool * count,
            count: if pool + 1 == XPS_POOLS { queues - pool * count } else { count },
        })
        .collect()
}

const SMALL_QUEUES_OFF_BYTES: u32 = 1 << 30;
const PACING_RATIO_LARGEST: u32 = 1000;
/// Value of `tcp_tso_rtt_log`. Since Linux 5.18, TCP enlarges its segments by an allowance, which halves
/// for every 2^9 µs of minimum RTT (`tcp_tso_autosize`).
///
/// In the test bed, the RTT does not depend on a distance: a handshake is slow only if the CPU was
/// busy. After a slow handshake, a flow would permanently send small segments and get less than its
/// share. With units of 2^20 µs, TCP does not reduce the allowance.
const TSO_RTT_LOG: &str = "20";

/// Translates a variant's knobs to options. The caller sets the rate, the MTU and the meter.
pub(crate) fn bed_options(
    variant: &Variant,
    features: KernelFeatures,
    queues: u32,
    topology: Topology,
) -> BedOptions {
    let knobs = variant.knobs();
    let mut sysctls = features.steady_tcp();
    match knobs.tcp_small_queues {
        Some(limit) => {
            sysctls.push(("net/ipv4/tcp_limit_output_bytes".to_owned(), limit.bytes().to_string()))
        }
        None => {
            sysctls.push(("net/ipv4/tcp_limit_output_bytes".to_owned(), SMALL_QUEUES_OFF_BYTES.to_string()));
            for ratio in ["tcp_pacing_ss_ratio", "tcp_pacing_ca_ratio"] {
                sysctls.push((format!("net/ipv4/{ratio}"), PACING_RATIO_LARGEST.to_string()));
            }
        }
    }
    let sfq = knobs.qdisc == Qdisc::SfqPrio && features.sfq;
    BedOptions {
        topology,
        queues: knobs.queues.unwrap_or(queues),
        leaf: if sfq { LeafQdisc::Sfq } else { LeafQdisc::Pfifo(LEAF_LIMIT_PACKETS) },
        policy: match knobs.queue_choice {
            QueueChoice::Hash => Policy::Hash,
            QueueChoice::Dqa => Policy::Dqa,
        },
        pools: xps_pools(variant, queues),
        gso_max_size: u32::try_from(knobs.gso_size.bytes()).ok(),
        segmentation_offload: knobs.tso,
        queue_weights: knobs.queue_weights,
        service_balancing: knobs.service_balancing,
        segment_size: knobs.segment_size.and_then(|size| u32::try_from(size.bytes()).ok()),
        sender_sysctls: sysctls,
        ..BedOptions::default()
    }
}

pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}
