//! Rules about RDMA over Ethernet (RoCE), whose packets bypass the kernel.

use evenkeel_model::host::Interface;

use super::{Found, Rule, needs};
use crate::Severity::{High, Medium};
use crate::View;
use crate::view::{count, per_cent};

pub(super) const RULES: &[Rule] = &[Rule {
    name: "rdma-lossy",
    looks_at: "RDMA packets (rx_vport_rdma_unicast_packets of mlx5, rx_roce_frames of be2net), flow control of link \
               and priorities, and packets discarded in front of the rings",
    fires_when: "medium: RDMA has a tenth of at least a million packets received, without flow control or pause \
                 frames, and 100 packets and one in ten million were discarded; high: one in a million",
    why: "RoCE needs a lossless network: after a lost packet the sender repeats all that followed, or waits for a \
          timeout. RDMA does not use the kernel's receive rings.",
    fix: "priority flow control (PFC) for RoCE on NIC and switch, with ECN and DCQCN, which slow senders before \
          pauses",
    source: "IEEE 802.1Qbb; dcb-pfc(8); Zhu et al., Congestion Control for Large-Scale RDMA Deployments (SIGCOMM 2015); \
             Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst",
    needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
    check: lossy,
}];

/// Returns the RDMA packets that a NIC received. The kernel's `rx_packets` does not include them. For
/// some drivers, the counter exists only in `/sys/class/infiniband` (bnxt_re, irdma, hns_roce).
pub(super) fn received(nic: &Interface) -> u64 {
    let is_rdma = |name: &str| {
        name == "rx_roce_frames" || name.starts_with("rx_vport_rdma_") && name.ends_with("_packets")
    };
    let counters = nic.driver_statistics.iter().filter(|(name, _)| is_rdma(name));
    counters.map(|(_, packets)| *packets).fold(0, u64::saturating_add)
}

pub(super) fn received_with_rdma(nic: &Interface) -> u64 {
    nic.received_packets().saturating_add(received(nic))
}

/// Returns whether flow control of the link or of a priority is on, or has paused one of the two sides.
fn has_flow_control(nic: &Interface) -> bool {
    let losses = &nic.losses;
    let frames = [
        losses.pause_sent,
        losses.pause_received,
        losses.priority_pause_sent,
        losses.priority_pause_received,
    ];
    // mlx5 has these counters only for priorities with flow control (mlx5e_grp_per_prio_pfc_fill_strings,
    // en_stats.c).
    let of_priority = |name: &String| name.starts_with("tx_prio") && name.ends_with("_pause");
    nic.pause.is_some_and(|pause| pause.rx || pause.tx)
        || frames.into_iter().flatten().any(|frames| frames > 0)
        || nic.driver_statistics.keys().any(of_priority)
}

fn lossy(view: &View<'_>) -> Vec<Found> {
    const FEWEST_PACKETS: u64 = 1_000_000;
    const SHARE: u64 = 10;
    const FEWEST: u64 = 100;
    const ONE_IN: u64 = 10_000_000;
    const GRAVE_ONE_IN: u64 = 1_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let (rdma, all) = (received(nic), received_with_rdma(nic));
        let lost = nic.losses.nic.unwrap_or(0);
        let is_rdma = all >= FEWEST_PACKETS && rdma.saturating_mul(SHARE) >= all;
        let is_lossy = lost >= FEWEST && lost.saturating_mul(ONE_IN) >= all;
        if !is_rdma || !is_lossy || has_flow_control(nic) {
            continue;
        }
        let text = format!(
            "{} of {} packets received were RDMA ({}{}), neither the link nor a priority has flow control, and the NIC discarded {} packets in \
             front of the ring ({}{})",
            count(rdma),
            count(all),
            per_cent(rdma as f64 / all as f64),
            view.rate_words(rdma),
            count(lost),
            per_cent(lost as f64 / all.saturating_add(lost) as f64),
            view.rate_words(lost)
        );
        let severity = if lost.saturating_mul(GRAVE_ONE_IN) >= all { High } else { Medium };
        let effect =
            "each lost packet makes an RDMA sender repeat all that followed it, or wait for a timeout";
        let mut advice = Vec::new();
        if let Some((rule, other)) = super::nic::slow_bus(view, nic) {
            advice.push(super::nic::first_fix(rule, &other));
        }
        let of_driver = match nic.driver.as_deref() {
            Some("mlx5_core") => {
                format!(" (or `mlnx_qos -i {} --pfc 0,0,0,1,0,0,0,0 --trust dscp`)", nic.name)
            }
            _ => String::new(),
        };
        advice.push(format!(
            "put RoCE into a priority of its own, such as 3 (DSCP 26), with flow control for it on the NIC and on the switch: `dcb pfc set dev {} \
             prio-pfc 3:on`{of_driver}; with ECN on the switch and DCQCN pauses stay rare; a longer ring does not help RDMA",
            nic.name
        ));
        found.push(Found::measured(severity, &nic.name, text, effect).advice(advice.join("; ")));
    }
    found
}
