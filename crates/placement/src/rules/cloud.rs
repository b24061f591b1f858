//! Rules about limits that a cloud sets for a virtual machine.

use evenkeel_model::host::Interface;

use super::{Found, Rule, needs};
use crate::Severity::{High, Low, Medium};
use crate::View;
use crate::view::{count, per_cent};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "cloud-allowance",
        looks_at: "packets that the cloud queued or dropped at this machine's allowances (ena: `*_allowance_exceeded`)",
        fires_when: "medium: from 100 packets and one in a million; high: from one in 10,000, or a loss at which all \
                     busy connections together cannot reach half of the line rate; low: a loss at which one flow \
                     still reaches the line rate (with under 5 % TCP packets: only below one in 100,000)",
        why: "The machine's size determines bandwidth and packets per second. The host can only reduce tracked \
              connections (untracked rules of security groups need none) and packets to link-local services (DNS, \
              metadata, time; 1,024 per second).",
        fix: "a larger machine or less traffic; untracked connections and shorter idle timeouts; a local DNS cache",
        source: "Amazon EC2 User Guide (Monitor network performance for ENA settings; Security group connection tracking); \
             Documentation/networking/device_drivers/ethernet/amazon/ena.rst (statistics)",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: allowance,
    },
    Rule {
        name: "vf-unused",
        looks_at: "packets that the virtual function below a netvsc interface carried, of all packets of the \
                   interface",
        fires_when: "medium: it carried less than half of at least a million packets, or there is none, on a busy \
                     NIC (30 % softirq time, or 10,000 lost packets); high: it carried less than a tenth; low: none, \
                     with load",
        why: "With accelerated networking the virtual function carries the traffic, and the hypervisor's switch only \
              the start of each flow. Otherwise each packet passes the switch, at a fraction of the rate.",
        fix: "set the virtual function up; if it goes down again, update its driver and redeploy the machine",
        source: "Documentation/networking/device_drivers/ethernet/microsoft/netvsc.rst (SR-IOV support); Microsoft, How Accelerated Networking \
             works in Linux",
        needs: &[needs::STATISTICS, needs::DRIVER_STATISTICS],
        check: vf_unused,
    },
];

fn vf_unused(view: &View<'_>) -> Vec<Found> {
    const ENOUGH: u64 = 1_000_000;
    let mut found = Vec::new();
    for nic in view.nics() {
        let figure = |name: &str| nic.driver_statistics.get(name).copied();
        let (Some(received), Some(sent)) = (figure("vf_rx_packets"), figure("vf_tx_packets")) else {
            continue;
        };
        let all = nic.received_packets().saturating_add(nic.sent_packets());
        let by_function = received.saturating_add(sent);
        // The virtual function is below the NIC, or has a name with a PCI domain (`enP...`).
        let function = view.facts.interfaces.iter().find(|other| {
            nic.lower.contains(&other.name) || other.name != nic.name && other.name.starts_with("enP")
        });
        if all < ENOUGH || by_function >= all / 2 {
            continue;
        }
        if function.is_none() && by_function == 0 {
            // This size of virtual machine may include no virtual function. The lack has a cost only under
            // load: many packets, losses, or much softirq time.
            if view.is_loaded(nic) {
                let text = format!(
                    "no virtual function carries its packets (vf_rx_packets 0, vf_tx_packets 0), {} received and {} sent{}",
                    count(nic.received_packets()),
                    count(nic.sent_packets()),
                    view.work_words(nic)
                );
                let severity = if view.is_busy(nic) { Medium } else { Low };
                found.push(
                    Found::measured(severity, &nic.name, text, "packets pass the hypervisor's switch").advice(
                        "switch accelerated networking on if the machine's size supports it (`az network nic update \
                         --accelerated-networking true`, with the machine stopped), and add the function's driver to \
                         the image (mlx5_core, mana)",
                    ),
                );
            }
            continue;
        }
        let text = format!(
            "the virtual function{} carried {} packets received and {} sent, of {} and {}",
            function.map(|function| format!(" {}", function.name)).unwrap_or_default(),
            count(received),
            count(sent),
            count(nic.received_packets()),
            count(nic.sent_packets())
        );
        let severity = if by_function < all / 10 { High } else { Medium };
        let name = function.map_or("FUNCTION", |function| function.name.as_str());
        found.push(
            Found::measured(severity, &nic.name, text, "packets pass the hypervisor's switch").advice(format!(
                "`ip link set {name} up`, and look for the cause in the kernel's log; then redeploy the machine"
            )),
        );
    }
    found
}

const ALLOWANCES: &[(&str, &str)] = &[
    ("bw_in_allowance_exceeded", "incoming bandwidth: a larger machine, or traffic spread over several"),
    (
        "bw_out_allowance_exceeded",
        "outgoing bandwidth: a larger machine, or senders that pace below its limit",
    ),
    (
        "pps_allowance_exceeded",
        "packets per second: larger packets (GSO, batching, MTU 9001 within the VPC), or a larger machine",
    ),
    (
        "conntrack_allowance_exceeded",
        "tracked connections: security group rules that allow all traffic both ways are not tracked; shorter idle \
         timeouts of the network interface; persistent connections",
    ),
    (
        "linklocal_allowance_exceeded",
        "packets to DNS, metadata and time services: a DNS cache on this host (systemd-resolved, nscd, NodeLocal \
         DNSCache), cached metadata",
    ),
];

fn allowance(view: &View<'_>) -> Vec<Found> {
    view.nics().filter_map(|nic| allowance_of(view, nic)).collect()
}

fn allowance_of(view: &View<'_>, nic: &Interface) -> Option<Found> {
    let exceeded: Vec<(&str, &str, u64)> = ALLOWANCES
        .iter()
        .filter_map(|(name, advice)| {
            Some((*name, *advice, nic.driver_statistics.get(*name).copied().filter(|value| *value > 0)?))
        })
        .collect();
    let held = exceeded.iter().fold(0_u64, |sum, (.., value)| sum.saturating_add(*value));
    let packets = nic.received_packets().saturating_add(nic.sent_packets());
    let (severity, _) = view.judge_loss(nic, held, packets)?;
    let figures: Vec<String> =
        exceeded.iter().map(|(name, _, value)| format!("{name} {}", count(*value))).collect();
    let text = format!(
        "{} packets exceeded the machine's allowances: {} ({} of {} packets{})",
        count(held),
        figures.join(", "),
        per_cent(held as f64 / packets.max(held).max(1) as f64),
        count(packets),
        view.rate_words(held)
    );
    let advice: Vec<&str> = exceeded.iter().map(|(_, advice, _)| *advice).collect();
    Some(
        Found::measured(severity, &nic.name, text, "the cloud queues or drops packets above the allowance")
            .advice(advice.join("; ")),
    )
}
