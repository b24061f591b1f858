//! Ranges of figures. A figure outside its range is impossible, so it counts as unreadable.

use std::collections::BTreeMap;

use evenkeel_model::host::Interface;

use super::tree::Tree;

/// The possible values of a figure, and their source.
pub(super) struct Range {
    least: u64,
    most: u64,
    source: &'static str,
}

pub(super) const MTU: Range =
    Range { least: 68, most: 65_535, source: "ETH_MIN_MTU and ETH_MAX_MTU, include/uapi/linux/if_ether.h" };

/// MTU of an interface that is not a NIC, bytes. Some interfaces have no maximum (`dev_validate_mtu`).
pub(super) const ANY_MTU: Range =
    Range { least: 1, most: i32::MAX as u64, source: "dev_validate_mtu, net/core/dev.c" };

/// Link speed, Mbit/s.
pub(super) const SPEED: Range =
    Range { least: 1, most: 10_000_000, source: "SPEED_800000 is the fastest, include/uapi/linux/ethtool.h" };

/// Counters of events since boot.
pub(super) const COUNT: Range =
    Range { least: 0, most: i64::MAX as u64, source: "a counter below 0 reads as 2^64 - n" };

pub(super) const COUNT_OF_32_BITS: Range = Range {
    least: 0,
    most: u32::MAX as u64,
    source: "struct gnet_stats_queue, include/uapi/linux/gen_stats.h",
};

/// Window and sizes of a TCP connection.
pub(super) const OF_CONNECTION: Range =
    Range { least: 0, most: u32::MAX as u64, source: "struct tcp_info, include/uapi/linux/tcp.h" };

/// Path MTU of a connection, bytes.
pub(super) const PATH_MTU: Range =
    Range { least: 68, most: u32::MAX as u64, source: "IPV4_MIN_MTU, include/net/ip.h" };

/// Largest packet that a driver or GRO can build, bytes.
pub(super) const PACKET_BYTES: Range =
    Range { least: 1, most: 524_280, source: "GSO_MAX_SIZE and GRO_MAX_SIZE, include/linux/netdevice.h" };

/// Round-trip time, µs. TCP retransmits a segment that is not acknowledged for this time, and does not
/// measure its round trip.
pub(super) const ROUND_TRIP_US: Range =
    Range { least: 0, most: 120_000_000, source: "TCP_RTO_MAX is 120 s, include/net/tcp.h" };

/// Number of connections from one address to one destination. Each connection has its own port.
pub(super) const CONNECTIONS: Range =
    Range { least: 0, most: 65_535, source: "16 bits of a port, RFC 9293, section 3.1" };

pub(super) const READ_REQUEST: Range =
    Range { least: 128, most: 4096, source: "PCI_EXP_DEVCTL_READRQ, include/uapi/linux/pci_regs.h" };

/// Queues of one direction.
const QUEUES: Range = Range { least: 1, most: 65_535, source: "ethtool_set_channels, net/ethtool/ioctl.c" };

impl Range {
    pub(super) fn has(&self, value: u64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    pub(super) fn refusal(&self, value: u64) -> String {
        let Self { least, most, source } = self;
        format!("{value} is impossible: from {least} to {most} ({source})")
    }

    /// Returns the value if it is in the range. Otherwise notes it as unreadable, and returns `None`.
    pub(super) fn of_file(&self, tree: &Tree, path: &str, value: u64) -> Option<u64> {
        if !self.has(value) {
            tree.note_line(path, 1, &self.refusal(value));
        }
        self.has(value).then_some(value)
    }
}

/// Removes the counts of packets and bytes of a direction that contradict each other. Returns each removed
/// counter with the reason. The kernel reads the counters one after the other, so a small difference is
/// possible.
pub(super) fn forget_unlike_bytes(
    counters: &mut BTreeMap<String, u64>,
    is_ethernet: bool,
) -> Vec<(String, String)> {
    /// Bytes of a packet: an Ethernet header (`ETH_HLEN`), and the largest GSO packet of the kernel
    /// (`GSO_MAX_SIZE`, include/linux/netdevice.h).
    const HEADER: u64 = 14;
    const LARGEST: u64 = 8 * 65_536;
    /// More bytes than an interface carries between the reads of two counters.
    const BETWEEN_READS: u64 = 1 << 30;
    /// The kernel's own counters of bytes have 32 bits on a 32-bit kernel, and wrap.
    const WRAP: u64 = 1 << 32;
    let mut found = Vec::new();
    for direction in ["rx", "tx"] {
        let [packets_name, bytes_name] = ["packets", "bytes"].map(|unit| format!("{direction}_{unit}"));
        let (Some(packets), Some(bytes)) = (counters.get(&packets_name), counters.get(&bytes_name)) else {
            continue;
        };
        let most = packets.saturating_mul(LARGEST).saturating_add(BETWEEN_READS);
        let least = packets.saturating_mul(HEADER).saturating_sub(BETWEEN_READS);
        let may_have_wrapped = *bytes < WRAP && *bytes > 0;
        let limit = if *bytes > most {
            format!("at most {LARGEST} (GSO_MAX_SIZE, include/linux/netdevice.h)")
        } else if *bytes < least && is_ethernet && !may_have_wrapped {
            format!("at least {HEADER} (ETH_HLEN, include/uapi/linux/if_ether.h)")
        } else {
            continue;
        };
        let why = format!(
            "{packets_name}: {packets} packets of {bytes} bytes are impossible: a packet has {limit}"
        );
        for name in [packets_name, bytes_name] {
            counters.remove(&name);
            found.push((name, why.clone()));
        }
    }
    found
}

/// Words in the names of driver counters that count events, such as losses. Other figures of a driver, such
/// as a temperature, may be negative.
const OF_EVENTS: [&str; 24] = [
    "alloc", "crc", "discard", "drop", "err", "exceeded", "fail", "fault", "fcs", "fec_", "giant", "lost",
    "miss", "no_buf", "no_mem", "nobuf", "oversize", "ovrsz", "packets", "pause", "recovery", "reset",
    "stalled", "timeout",
];

/// Returns whether a driver's counter counts events, by its name.
pub(super) fn counts_events(counter: &str) -> bool {
    let name = counter.to_ascii_lowercase();
    OF_EVENTS.iter().any(|word| name.contains(word))
}

/// Removes values that are impossible for a NIC that is up: ethtool answers, and the maximum PCI read
/// request. Returns the removed parts, with the field and the reason.
pub(super) fn forget_impossible(nic: &mut Interface) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if let Some(channels) = nic.channels {
        let transmit_max = channels.tx_max.max(channels.combined_max);
        let directions = [
            ("receive", channels.receive(), channels.receive_max()),
            ("transmit", channels.transmit(), transmit_max),
        ];
        let is_odd = |(_, now, most): &(&str, u32, u32)| *most > 0 && !QUEUES.has((*now).into());
        let beyond = |(_, now, _): &(&str, u32, u32)| u64::from(*now) > QUEUES.most;
        let odd = directions.into_iter().find(|each| is_odd(each) || beyond(each));
        let odd = odd.map(|(name, now, most)| {
            format!("channels: {now} {name} queues of {most}: {}", QUEUES.refusal(now.into()))
        });
        // Some drivers report no maximum.
        let kinds = [
            ("combined", channels.combined, channels.combined_max),
            ("rx", channels.rx, channels.rx_max),
            ("tx", channels.tx, channels.tx_max),
            ("other", channels.other, channels.other_max),
        ];
        let excess = kinds.into_iter().find(|(_, now, most)| *most > 0 && now > most);
        let excess = excess.map(|(name, now, most)| {
            format!("channels.{name}: {now} is impossible: at most {most} ({})", QUEUES.source)
        });
        if let Some(text) = odd.or(excess) {
            found.push(("channels", text));
            nic.channels = None;
        }
    }
    if let Some(rings) = nic.rings {
        let directions = [("rx", rings.rx, rings.rx_max), ("tx", rings.tx, rings.tx_max)];
        if let Some((name, now, most)) =
            directions.into_iter().find(|(_, now, most)| *most > 0 && !(1..=*most).contains(now))
        {
            let source = "ethtool_set_ringparam, net/ethtool/ioctl.c";
            found.push(("rings", format!("rings.{name}: {now} is impossible: from 1 to {most} ({source})")));
            nic.rings = None;
        }
    }
    if let Some(rss) = &nic.rss {
        let queues = nic.receive_queue_count();
        let source = "ethtool_set_rxfh, net/ethtool/ioctl.c";
        let most = queues.saturating_sub(1);
        let beyond = rss.indirection.iter().find(|queue| **queue > most && queues > 0);
        let text = match beyond {
            Some(queue) => {
                Some(format!("rss.indirection: queue {queue} is impossible: from 0 to {most} ({source})"))
            }
            // A NIC without an indirection table also has no key.
            None => (queues > 1 && rss.indirection.is_empty() && !rss.key.is_empty()).then(|| {
                format!("rss.indirection: an empty table is impossible with a key and {queues} queues")
            }),
        };
        if let Some(text) = text {
            found.push(("rss", text));
            nic.rss = None;
        }
    }
    if let Some(bytes) = nic.max_read_request
        && !(READ_REQUEST.has(bytes.into()) && bytes.is_power_of_two())
    {
        found.push(("max_read_request", format!("max_read_request: {}", READ_REQUEST.refusal(bytes.into()))));
        nic.max_read_request = None;
    }
    if let Some(mbps) = nic.supported_bps.map(|bps| bps / 1_000_000)
        && !SPEED.has(mbps)
    {
        found.push(("supported_mbps", format!("supported_mbps: {}", SPEED.refusal(mbps))));
        nic.supported_bps = None;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_without_a_possible_size_are_forgotten() {
        let kept = |packets: u64, bytes: u64, is_ethernet: bool| {
            let counters =
                [("tx_packets", packets), ("tx_bytes", bytes), ("rx_packets", 1), ("rx_bytes", 60)];
            let mut counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
            let found = forget_unlike_bytes(&mut counters, is_ethernet);
            assert_eq!(found.len() + counters.len(), 4);
            found.is_empty()
        };
        assert!(kept(0, 0, true) && kept(1_000_000_000, 60_000_000_000, true));
        assert!(!kept(0, 24_000_000_000_000, true));
        assert!(!kept(3_000_000, 24_000_000_000_000, true));
        assert!(!kept(1_000_000_000, 0, true));
        assert!(!kept(10_000_000_000, 100_000_000_000, true));
        // A device other than Ethernet, such as CAN, may send packets without bytes.
        assert!(kept(1_000_000_000, 0, false));
        // Packets of TSO, packets between two reads, and a counter of 32 bits.
        assert!(kept(1_000_000, 400_000_000_000, true) && kept(0, 1_000_000, true));
        assert!(kept(1_000_000_000, 4_000_000_000, true));
    }
}
