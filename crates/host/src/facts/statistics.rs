//! Driver counters under common names. The dictionary of [`crate::counters`] identifies them. For other
//! drivers, widely used names identify them (`Documentation/networking/statistics.rst`).

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::{LossCounters, QueueCounters};

use crate::counters::{Driver, Meaning};

/// Names for drivers without a row in the dictionary. If a driver has several of these names, only the first
/// is used, because several names often count the same packets.
const RING: &[&str] = &[
    "rx_no_dma_resources",
    "rx_out_of_buffer",
    "rx_discards",
    "rx_no_bufs",
    "rx_nobuf",
    // dpaa2 (drivers/net/ethernet/freescale/dpaa2/dpaa2-ethtool.c).
    "[hw] rx nobuffer discards",
];
const NIC: &[&str] = &["rx_missed_errors", "rx_fifo_errors", "rx_missed", "rx_overrun", "rx_fifo_overrun"];
const STOPS: &[&str] = &["tx_queue_stopped", "tx_restart_queue", "tx_queue_stop", "queue_stopped"];
const PAUSE_SENT: &[&str] = &["tx_pause", "tx_pause_frames", "tx_flow_control_xoff"];
const PAUSE_RECEIVED: &[&str] = &["rx_pause", "rx_pause_frames", "rx_flow_control_xoff"];
/// Suffixes of per-queue counters of packets that found no free descriptor or buffer.
const QUEUE_DROPS: &[&str] = &["drops", "no_buffer", "nobuf"];

/// Kinds of tunnels (`rtnl_link_ops`), which the kernel reports as the driver. They count packets that they
/// drop as errors.
const TUNNELS: [&str; 18] = [
    "amt",
    "bareudp",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "gtp",
    "ip6erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "sit",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
    "xfrm",
];

/// Returns whether an interface with this driver is a tunnel.
pub(super) fn is_tunnel(driver: &str) -> bool {
    TUNNELS.contains(&driver)
}

/// Returns the losses of a tunnel. A packet counts as an error or as dropped (`ip_tunnel_xmit`,
/// net/ipv4/ip_tunnel.c; `iptunnel_xmit_stats`, include/net/ip_tunnels.h; `wg_xmit`,
/// drivers/net/wireguard/device.c). The errors include the errors with a cause, such as `tx_carrier_errors`.
fn losses_of_tunnel(kernel: &BTreeMap<String, u64>) -> LossCounters {
    const SENT: [&str; 3] = ["tx_errors", "tx_carrier_errors", "tx_aborted_errors"];
    const RECEIVED: [&str; 7] = [
        "rx_errors",
        "rx_crc_errors",
        "rx_frame_errors",
        "rx_length_errors",
        "rx_fifo_errors",
        "rx_missed_errors",
        "rx_over_errors",
    ];
    let field = |name: &str| kernel.get(name).copied();
    let lost = |dropped: &str, errors: &[&str]| {
        let errors = errors.iter().filter_map(|name| field(name)).max();
        let all = field(dropped).unwrap_or(0).saturating_add(errors.unwrap_or(0));
        field(dropped).or(errors).map(|_| all)
    };
    LossCounters {
        other: lost("rx_dropped", &RECEIVED),
        transmit: lost("tx_dropped", &SENT),
        ..LossCounters::default()
    }
}

pub(crate) fn losses(
    driver: Option<&str>,
    driver_statistics: &BTreeMap<String, u64>,
    kernel: &BTreeMap<String, u64>,
) -> LossCounters {
    if driver.is_some_and(is_tunnel) {
        return losses_of_tunnel(kernel);
    }
    let kernel_sum = |list: &[&str]| {
        let found: Vec<u64> = list.iter().filter_map(|name| kernel.get(*name).copied()).collect();
        (!found.is_empty()).then(|| found.iter().fold(0_u64, |sum, value| sum.saturating_add(*value)))
    };
    let wire = kernel_sum(&["rx_crc_errors", "rx_frame_errors", "rx_length_errors"]);
    let transmit = kernel_sum(&["tx_dropped"]);
    let row =
        driver.and_then(Driver::of).filter(|row| !driver_statistics.is_empty() || !row.kernel.is_empty());
    if let Some(row) = row {
        let mut found = row.losses(driver_statistics, kernel);
        // An old version of a driver may report no counter that the row lists.
        if found.ring.or(found.nic).is_none() {
            found.nic = missed(&kernel_sum);
        }
        add_kernel_losses(&mut found, &lost_meanings(driver, driver_statistics), missed(&kernel_sum));
        // Some versions also report ring drops as missed.
        if found.nic == found.ring {
            found.nic = found.nic.map(|_| 0);
        }
        found.transmit_stops = found.transmit_stops.or_else(|| queue_stops(driver_statistics));
        // Drivers add wire and transmit losses to the kernel's fields, which also include losses of
        // other layers.
        return LossCounters {
            wire: found.wire.max(wire),
            transmit: found.transmit.max(transmit),
            other: kernel.get("rx_dropped").copied(),
            ..found
        };
    }
    let own = |list: &[&str]| list.iter().find_map(|name| driver_statistics.get(*name).copied());
    let ring = own(RING).max(queue_sum(driver_statistics, true, |name| QUEUE_DROPS.contains(&name)));
    let nic = own(NIC).max(missed(&kernel_sum));
    let nic = if ring.unwrap_or(0).max(nic.unwrap_or(0)) == 0 {
        nic.max(likely_drops(driver_statistics))
    } else {
        nic
    };
    LossCounters {
        ring,
        // Some drivers also report ring drops as missed.
        nic: nic.map(|nic| if ring == Some(nic) { 0 } else { nic }),
        wire: wire.max(own(&["rx_crc_errors"])),
        other: kernel.get("rx_dropped").copied(),
        transmit,
        transmit_stops: own(STOPS).max(queue_stops(driver_statistics)),
        pause_sent: own(PAUSE_SENT),
        pause_received: own(PAUSE_RECEIVED),
        ..LossCounters::default()
    }
}

/// Returns the largest counter whose name suggests dropped received packets, such as `InDroppedDma` of
/// atlantic, for a driver without a row. Ignores names that suggest another cause, such as a damaged frame,
/// a filter or an XDP program.
fn likely_drops(statistics: &BTreeMap<String, u64>) -> Option<u64> {
    const LOST: [&str; 8] =
        ["drop", "discard", "nobuf", "no_buf", "overflow", "overrun", "missed", "no_desc"];
    const OTHERS: [&str; 12] = [
        "filter", "unknown", "vlan", "mcast", "multi", "bcast", "xdp", "fcs", "crc", "csum", "invalid",
        "steer",
    ];
    let is_likely = |name: &str| {
        let name = name.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        (name.contains("rx") || name.starts_with("in") || name.contains("receive"))
            && has(&LOST)
            && !has(&OTHERS)
    };
    statistics.iter().filter(|(name, _)| is_likely(name)).map(|(_, value)| *value).max()
}

/// Returns the meanings of the loss counters that were not recorded ([`Driver::lost_counters`]).
fn lost_meanings(driver: Option<&str>, statistics: &BTreeMap<String, u64>) -> Vec<Meaning> {
    let row = driver.and_then(|name| Some((name, Driver::of(name)?)));
    let lost = row.map(|(name, row)| row.lost_counters(name, statistics)).unwrap_or_default();
    lost.into_iter().map(|(_, meaning)| meaning).collect()
}

/// Adds the packets that the kernel's fields count as missed, beyond the recorded losses, to the place whose
/// counter was not recorded.
fn add_kernel_losses(found: &mut LossCounters, lost: &[Meaning], missed: Option<u64>) {
    let recorded = found.ring.unwrap_or(0).saturating_add(found.nic.unwrap_or(0));
    let beyond = missed.unwrap_or(0).saturating_sub(recorded);
    let place = match lost.iter().find(|meaning| matches!(meaning, Meaning::Ring | Meaning::Nic)) {
        Some(Meaning::Ring) => &mut found.ring,
        Some(_) => &mut found.nic,
        None => return,
    };
    if beyond > 0 {
        *place = Some(place.unwrap_or(0).saturating_add(beyond));
    }
}

/// Returns the number of packets that a NIC missed according to the kernel's fields. Drivers set one or more
/// of these fields to the same value.
fn missed(kernel_sum: &impl Fn(&[&str]) -> Option<u64>) -> Option<u64> {
    ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"]
        .iter()
        .filter_map(|name| kernel_sum(&[name]))
        .max()
}

/// Returns the number of times that transmit queues stopped, from common counter names.
fn queue_stops(statistics: &BTreeMap<String, u64>) -> Option<u64> {
    queue_sum(statistics, false, |name| matches!(name, "stopped" | "restart" | "queue_stop"))
}

/// Splits the name of a per-queue counter into direction, queue and name: `rx_queue_3_packets`,
/// `rx3_packets`, `rx-3.packets`, `rx-3.rx_packets`, `queue_3_rx_cnt`, `[3]: rx_ucast_packets`.
fn queue_counter(name: &str) -> Option<(bool, usize, &str)> {
    /// Limit for a queue number; no NIC has this number of queues.
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
    (!values.is_empty()).then(|| values.iter().fold(0, |sum: u64, value| sum.saturating_add(*value)))
}

/// Returns the packet counters of queues: direction (true: receive), queue, value.
fn by_queue<'a>(
    driver: Option<&str>,
    statistics: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = (bool, usize, u64)> + 'a {
    /// Limit for a queue number; no NIC has this number of queues.
    const MOST: usize = 4096;
    let row = driver.and_then(Driver::of);
    let by_row = move |name: &str| match row?.meaning(name)? {
        (Meaning::Received, Some(queue)) => Some((true, queue)),
        (Meaning::Sent, Some(queue)) => Some((false, queue)),
        _ => None,
    };
    let by_form = |name: &str| {
        let (receive, queue, rest) = queue_counter(name)?;
        matches!(rest, "packets" | "cnt" | "ucast_packets" | "pkts").then_some((receive, queue))
    };
    let counter = move |(name, value): (&'a String, &u64)| {
        let (receive, queue) = by_row(name).or_else(|| by_form(name)).filter(|(_, queue)| *queue < MOST)?;
        Some((receive, queue, *value))
    };
    statistics.iter().filter_map(counter)
}

pub(super) fn queues(driver: Option<&str>, statistics: &BTreeMap<String, u64>) -> QueueCounters {
    let mut counters = QueueCounters::default();
    for (receive, queue, value) in by_queue(driver, statistics) {
        let list = if receive { &mut counters.receive } else { &mut counters.transmit };
        if list.len() <= queue {
            list.resize(queue + 1, 0);
        }
        list[queue] = list[queue].saturating_add(value);
    }
    counters
}

/// Returns the first queue of each direction without a packet counter: a queue before one with a counter, or
/// the last one of the channels (receive, transmit) if all others have a counter. The flag marks a receive
/// queue.
pub(super) fn lost_queues(
    driver: Option<&str>,
    statistics: &BTreeMap<String, u64>,
    channels: (u32, u32),
) -> Vec<(bool, usize)> {
    let lost = move |receive: bool| {
        let own = by_queue(driver, statistics).filter(|(found, ..)| *found == receive);
        let mut counted: BTreeSet<usize> = own.map(|(_, queue, _)| queue).collect();
        let count = if receive { channels.0 } else { channels.1 } as usize;
        if counted.is_empty() {
            return None;
        }
        if counted.len() + 1 == count {
            counted.insert(count);
        }
        (0..*counted.last()?).find(|queue| !counted.contains(queue)).map(|queue| (receive, queue))
    };
    [true, false].into_iter().filter_map(lost).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn map(entries: &[(&str, u64)]) -> BTreeMap<String, u64> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_driver_without_a_row_shows_its_drops_by_their_name() {
        let own =
            map(&[("InDroppedDma", 101_511_207), ("InMulticastPackets", 9), ("rx_filter_dropped", 1 << 40)]);
        let found = losses(Some("atlantic"), &own, &map(&[("rx_missed_errors", 0)]));
        assert_eq!((found.nic, found.ring), (Some(101_511_207), None));
        // If a driver has a row, only the row counts.
        assert_eq!(losses(Some("igb"), &own, &BTreeMap::new()).nic, None);
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
        let counters = queues(
            None,
            &map(&[("rx1_packets", 5), ("rx0_packets", 7), ("tx0_packets", 1), ("rx_2_bytes", 9)]),
        );
        assert_eq!((counters.receive, counters.transmit), (vec![7, 5], vec![1]));
    }

    #[test]
    fn a_gap_of_queue_counters_shows_a_lost_queue() {
        let lost = |names: &[&str], channels| {
            let statistics = names.iter().map(|name| ((*name).to_owned(), 7)).collect();
            lost_queues(None, &statistics, channels)
        };
        let (all, none) = (["rx0_packets", "rx1_packets", "tx0_packets"], (0, 0));
        assert_eq!(lost(&all, none), []);
        assert_eq!(lost(&all, (2, 1)), []);
        assert_eq!(lost(&all[1..], none), [(true, 0)]);
        assert_eq!(lost(&all, (3, 2)), [(true, 2), (false, 1)]);
        assert_eq!(lost(&all, (4, 4)), [], "the driver counts only some queues");
        assert_eq!(lost(&["rx0_packets", "rx2_packets"], (3, 3)), [(true, 1)]);
        assert_eq!(lost(&["rx_bytes"], (1, 1)), []);
    }

    /// The kernel's count includes the losses of a counter that was not recorded.
    #[test]
    fn the_kernel_shows_the_losses_of_a_lost_counter() {
        let places = |driver: &str, own: &[(&str, u64)], missed: u64| {
            let found = losses(Some(driver), &map(own), &map(&[("rx_missed_errors", missed)]));
            (found.ring, found.nic)
        };
        let i40e = [("rx_dropped", 4), ("port.rx_crc_errors", 1)];
        assert_eq!(places("i40e", &i40e, 600), (Some(4), Some(596)));
        assert_eq!(places("i40e", &[i40e[0], i40e[1], ("port.rx_dropped", 3)], 600), (Some(4), Some(3)));
        let mlx5 = [("rx_discards_phy", 2), ("rx_crc_errors_phy", 1)];
        assert_eq!(places("mlx5_core", &mlx5, 9), (Some(7), Some(2)));
        assert_eq!(places("mlx5_core", &mlx5, 0), (None, Some(2)));
    }

    proptest::proptest! {
        #[test]
        fn no_name_trips_the_parser(name in "(rx|tx|queue_|\\[|\\]: |_|-|[.]|[0-9]|é|packets){0,9}", value: u64) {
            let _ = queue_counter(&name);
            let statistics = map(&[(name.as_str(), value), ("rx0_packets", u64::MAX)]);
            queues(Some("vmxnet3"), &statistics);
            losses(None, &statistics, &statistics);
        }
    }

    #[test]
    fn a_tunnel_counts_drops_as_errors() {
        let lost = |driver, fields| {
            let found = losses(Some(driver), &map(&[]), &map(fields));
            (found.other, found.transmit, found.wire.or(found.nic))
        };
        let sent =
            [("tx_dropped", 2), ("tx_errors", 30), ("tx_carrier_errors", 20), ("tx_aborted_errors", 5)];
        assert_eq!(lost("gre", &sent), (None, Some(32), None));
        let received = [("rx_dropped", 1), ("rx_errors", 9), ("rx_crc_errors", 9), ("rx_frame_errors", 4)];
        assert_eq!(lost("wireguard", &received), (Some(10), None, None));
        assert_eq!(lost("ipip", &[("tx_carrier_errors", 7), ("tx_errors", 0)]), (None, Some(7), None));
        assert_eq!(lost("veth", &sent).1, Some(2));
    }

    #[test]
    fn the_same_loss_has_one_name() {
        // mlx5 also reports ring drops in rx_missed_errors.
        let mlx5 = losses(
            Some("mlx5_core"),
            &map(&[("rx_out_of_buffer", 9), ("rx_discards_phy", 4)]),
            &map(&[("rx_missed_errors", 9), ("rx_dropped", 13)]),
        );
        assert_eq!((mlx5.ring, mlx5.nic), (Some(9), Some(4)));
        let virtio =
            losses(Some("virtio_net"), &map(&[("rx_queue_0_drops", 2), ("rx_queue_1_drops", 3)]), &map(&[]));
        assert_eq!((virtio.ring, virtio.driver), (None, Some(5)));
        let unknown = losses(
            None,
            &map(&[]),
            &map(&[("rx_missed_errors", 3), ("rx_fifo_errors", 3), ("rx_crc_errors", 2)]),
        );
        assert_eq!((unknown.ring, unknown.nic, unknown.wire), (None, Some(3), Some(2)));
        let vmxnet3 = queues(Some("vmxnet3"), &map(&[("ucast pkts rx [0]", 7), ("ucast pkts rx [1]", 8)]));
        assert_eq!(vmxnet3.receive, [7, 8]);
    }
}
