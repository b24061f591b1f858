//! What drivers count, under common names.
//!
//! A driver is added in one place: [`DRIVERS`]. Sources: `Documentation/networking/statistics.rst`, each driver's
//! `ethtool.c`; for mlx5 `Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst`, for ena
//! `Documentation/networking/device_drivers/ethernet/amazon/ena.rst`.

use std::collections::BTreeMap;

use evenkeel_model::host::{LossCounters, QueueCounters};

/// Names of one driver; the first that it has counts, as several often show the same packets.
struct Driver {
    /// The driver; empty: any other.
    name: &'static str,
    ring: &'static [&'static str],
    card: &'static [&'static str],
    transmit_stops: &'static [&'static str],
    pause_sent: &'static [&'static str],
    pause_received: &'static [&'static str],
}

const DRIVERS: &[Driver] = &[
    Driver {
        name: "mlx5_core",
        ring: &["rx_out_of_buffer"],
        card: &["rx_discards_phy", "rx_prio0_discards"],
        transmit_stops: &["tx_queue_stopped"],
        pause_sent: &["tx_pause_ctrl_phy"],
        pause_received: &["rx_pause_ctrl_phy"],
    },
    Driver {
        name: "mlx4_en",
        ring: &["rx_dropped"],
        card: &["rx_fifo_errors", "rx_over_errors"],
        transmit_stops: &["queue_stopped"],
        pause_sent: &["tx_pause"],
        pause_received: &["rx_pause"],
    },
    Driver {
        name: "ixgbe",
        ring: &["rx_no_dma_resources", "rx_no_buffer_count"],
        card: &["rx_missed_errors", "rx_fifo_errors"],
        transmit_stops: &["tx_restart_queue"],
        pause_sent: &["tx_flow_control_xoff"],
        pause_received: &["rx_flow_control_xoff"],
    },
    Driver {
        name: "igb",
        ring: &["rx_no_buffer_count"],
        card: &["rx_missed_errors", "rx_fifo_errors"],
        transmit_stops: &["tx_restart_queue"],
        pause_sent: &["tx_flow_control_xoff"],
        pause_received: &["rx_flow_control_xoff"],
    },
    Driver {
        name: "i40e",
        ring: &["rx_dropped", "port.rx_dropped"],
        card: &["port.rx_discards", "rx_missed_errors"],
        transmit_stops: &["tx_restart", "tx_stopped"],
        pause_sent: &["port.link_xoff_tx", "link_xoff_tx"],
        pause_received: &["port.link_xoff_rx", "link_xoff_rx"],
    },
    Driver {
        name: "ice",
        ring: &["rx_dropped", "rx_dropped.nic"],
        card: &["rx_discards.nic", "rx_missed_errors"],
        transmit_stops: &["tx_restart"],
        pause_sent: &["link_xoff_tx.nic"],
        pause_received: &["link_xoff_rx.nic"],
    },
    Driver {
        name: "bnxt_en",
        ring: &["rx_total_discard_pkts", "rx_stat_discard"],
        card: &["rx_fifo_overrun", "rx_missed_errors"],
        transmit_stops: &[],
        pause_sent: &["tx_pause_frames"],
        pause_received: &["rx_pause_frames"],
    },
    Driver {
        name: "ena",
        ring: &["rx_drops"],
        card: &["rx_overruns"],
        transmit_stops: &["tx_queue_stop"],
        pause_sent: &[],
        pause_received: &[],
    },
    Driver {
        name: "vmxnet3",
        ring: &["pkts rx OOB", "rx buf alloc fail"],
        card: &[],
        transmit_stops: &["ring full"],
        pause_sent: &[],
        pause_received: &[],
    },
    Driver {
        name: "",
        ring: &[
            "rx_no_buffer_count",
            "rx_no_dma_resources",
            "rx_out_of_buffer",
            "rx_discards",
            "rx_no_bufs",
            "rx_nobuf",
        ],
        card: &["rx_missed_errors", "rx_fifo_errors", "rx_missed", "rx_overrun", "rx_fifo_overrun"],
        transmit_stops: &["tx_queue_stopped", "tx_restart_queue", "tx_queue_stop", "queue_stopped"],
        pause_sent: &["tx_pause", "tx_pause_frames", "tx_flow_control_xoff"],
        pause_received: &["rx_pause", "rx_pause_frames", "rx_flow_control_xoff"],
    },
];

/// Endings of per-queue counters of packets that found no descriptor or buffer, as virtio-net, igb and ena have them.
const QUEUE_DROPS: &[&str] = &["drops", "alloc_failed", "no_buffer", "nobuf"];
/// What a cloud holds back of a machine's traffic (ena).
const ALLOWANCES: &[&str] = &[
    "bw_in_allowance_exceeded",
    "bw_out_allowance_exceeded",
    "pps_allowance_exceeded",
    "conntrack_allowance_exceeded",
    "linklocal_allowance_exceeded",
];

/// What was lost at a card: the driver's counters under common names, and the kernel's own beside them
/// (`struct rtnl_link_stats64`), of which the larger counts, as drivers feed theirs into the kernel's.
pub(super) fn losses(
    driver: Option<&str>,
    driver_statistics: &BTreeMap<String, u64>,
    kernel: &BTreeMap<String, u64>,
) -> LossCounters {
    let Some(names) = DRIVERS.iter().find(|entry| Some(entry.name) == driver).or_else(|| DRIVERS.last())
    else {
        return LossCounters::default();
    };
    let own = |list: &[&str]| list.iter().find_map(|name| driver_statistics.get(*name).copied());
    let most = |one: Option<u64>, other: Option<u64>| one.max(other);
    let kernel_sum = |list: &[&str]| {
        let found: Vec<u64> = list.iter().filter_map(|name| kernel.get(*name).copied()).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    };
    let queue_drops = queue_sum(driver_statistics, true, |name| QUEUE_DROPS.contains(&name));
    let allowances: Vec<u64> =
        ALLOWANCES.iter().filter_map(|name| driver_statistics.get(*name).copied()).collect();
    let ring = most(most(own(names.ring), queue_drops), None);
    let card = most(
        own(names.card),
        kernel_sum(&["rx_missed_errors"]).max(kernel_sum(&["rx_fifo_errors", "rx_over_errors"])),
    );
    LossCounters {
        ring,
        card,
        wire: most(
            kernel_sum(&["rx_crc_errors", "rx_frame_errors", "rx_length_errors"]),
            own(&[
                "rx_crc_errors_phy",
                "rx_crc_errors",
                "port.rx_crc_errors",
                "rx_crc_errors.nic",
                "rx_symbol_err_phy",
            ]),
        ),
        other: kernel.get("rx_dropped").copied(),
        transmit: kernel_sum(&["tx_dropped"]),
        transmit_stops: most(
            own(names.transmit_stops),
            queue_sum(driver_statistics, false, |name| matches!(name, "stopped" | "restart" | "queue_stop")),
        ),
        pause_sent: own(names.pause_sent),
        pause_received: own(names.pause_received),
        allowance: (!allowances.is_empty()).then(|| allowances.iter().sum()),
    }
}

/// A per-queue counter's direction, queue and name: `rx_queue_3_packets`, `rx3_packets`, `rx-3.packets`, `rx-3.rx_packets`,
/// `queue_3_rx_cnt`, `[3]: rx_ucast_packets`.
fn queue_counter(name: &str) -> Option<(bool, usize, &str)> {
    /// More queues than any card has.
    const MOST: usize = 4096;
    let number = |text: &str| -> Option<(usize, usize)> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        Some((text.get(..digits)?.parse().ok().filter(|queue| *queue < MOST)?, digits))
    };
    let direction = |text: &str| match text.get(..2) {
        Some("rx") => Some(true),
        Some("tx") => Some(false),
        _ => None,
    };
    if let Some(rest) = name.strip_prefix("queue_") {
        // ena and mlx4 styles differ in nothing but what stands behind the number.
        let (queue, digits) = number(rest)?;
        let rest = rest.get(digits..)?.strip_prefix('_')?;
        return Some((direction(rest)?, queue, rest.get(3..)?));
    }
    if let Some(rest) = name.strip_prefix('[') {
        let (queue, digits) = number(rest)?;
        let rest = rest.get(digits..)?.strip_prefix("]: ")?;
        return Some((direction(rest)?, queue, rest.get(3..)?));
    }
    let receive = direction(name)?;
    let rest = name.get(2..)?;
    let rest = ["_queue_", "-queue-", "-", "_", ""].iter().find_map(|joint| {
        let rest = rest.strip_prefix(joint)?;
        rest.starts_with(|first: char| first.is_ascii_digit()).then_some(rest)
    })?;
    let (queue, digits) = number(rest)?;
    let rest = rest.get(digits..)?.trim_start_matches(['_', '.', '-']);
    let rest = rest.strip_prefix("rx_").or_else(|| rest.strip_prefix("tx_")).unwrap_or(rest);
    Some((receive, queue, rest))
}

fn queue_sum(
    statistics: &BTreeMap<String, u64>,
    receive: bool,
    is_wanted: impl Fn(&str) -> bool,
) -> Option<u64> {
    let values: Vec<u64> = statistics
        .iter()
        .filter(|(name, _)| {
            queue_counter(name).is_some_and(|(found, _, rest)| found == receive && is_wanted(rest))
        })
        .map(|(_, value)| *value)
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Packets of each queue.
pub(super) fn queues(statistics: &BTreeMap<String, u64>) -> QueueCounters {
    let mut counters = QueueCounters::default();
    for (name, value) in statistics {
        let Some((receive, queue, rest)) = queue_counter(name) else { continue };
        if !matches!(rest, "packets" | "cnt" | "ucast_packets" | "pkts" | "ucast pkts") {
            continue;
        }
        let list = if receive { &mut counters.receive } else { &mut counters.transmit };
        if list.len() <= queue {
            list.resize(queue + 1, 0);
        }
        list[queue] = list[queue].saturating_add(*value);
    }
    counters
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn map(entries: &[(&str, u64)]) -> BTreeMap<String, u64> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn queues_are_found_under_every_drivers_names() {
        for (name, expected) in [
            ("rx_queue_3_packets", Some((true, 3, "packets"))),
            ("tx_queue_12_packets", Some((false, 12, "packets"))),
            ("rx3_packets", Some((true, 3, "packets"))),
            ("tx0_packets", Some((false, 0, "packets"))),
            ("rx-3.packets", Some((true, 3, "packets"))),
            ("tx-5.tx_packets", Some((false, 5, "packets"))),
            ("queue_3_rx_cnt", Some((true, 3, "cnt"))),
            ("[3]: rx_ucast_packets", Some((true, 3, "ucast_packets"))),
            ("rx_queue_0_drops", Some((true, 0, "drops"))),
            ("rx_packets", None),
            ("rx", None),
            ("queue_99999999999_rx_cnt", None),
            ("rx_1024_to_1518_bytes_phy", Some((true, 1024, "to_1518_bytes_phy"))),
        ] {
            assert_eq!(queue_counter(name), expected, "{name}");
        }
        let counters =
            queues(&map(&[("rx1_packets", 5), ("rx0_packets", 7), ("tx0_packets", 1), ("rx_2_bytes", 9)]));
        assert_eq!((counters.receive, counters.transmit), (vec![7, 5], vec![1]));
    }

    proptest::proptest! {
        #[test]
        fn no_name_trips_the_parser(name in "(rx|tx|queue_|\\[|\\]: |_|-|[.]|[0-9]|é|packets){0,9}", value: u64) {
            let _ = queue_counter(&name);
            let statistics = map(&[(name.as_str(), value), ("rx0_packets", u64::MAX)]);
            queues(&statistics);
            losses(None, &statistics, &statistics);
        }
    }

    #[test]
    fn the_same_loss_has_one_name() {
        let mlx5 =
            losses(Some("mlx5_core"), &map(&[("rx_out_of_buffer", 9), ("rx_discards_phy", 4)]), &map(&[]));
        assert_eq!((mlx5.ring, mlx5.card), (Some(9), Some(4)));
        let virtio =
            losses(Some("virtio_net"), &map(&[("rx_queue_0_drops", 2), ("rx_queue_1_drops", 3)]), &map(&[]));
        assert_eq!(virtio.ring, Some(5));
        let unknown = losses(
            None,
            &map(&[]),
            &map(&[("rx_missed_errors", 3), ("rx_fifo_errors", 3), ("rx_crc_errors", 2)]),
        );
        assert_eq!((unknown.ring, unknown.card, unknown.wire), (None, Some(3), Some(2)));
    }
}
