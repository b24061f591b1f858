//! Loss counters that a driver reports together with other counters, from the tables of names in the
//! driver's sources. If `ethtool -S` shows one of the other counters, a missing loss counter was not
//! recorded, and does not count as 0.
//!
//! A loss counter follows only from a counter of the same table, or of a table that each function with the
//! first table has. So a virtual function or a representor, which lacks the counters of the port, lacks
//! nothing.

use std::collections::BTreeMap;

use super::{Driver, Meaning, matches, repetition};

pub(super) struct Implied {
    pub(super) drivers: &'static [&'static str],
    /// One of these counters is enough.
    pub(super) shown: &'static [&'static str],
    /// The counters that the driver also reports, each with the names that it has in other versions.
    pub(super) also: &'static [&'static [&'static str]],
}

const ALLOWANCES: [&str; 5] = [
    "bw_in_allowance_exceeded",
    "bw_out_allowance_exceeded",
    "pps_allowance_exceeded",
    "conntrack_allowance_exceeded",
    "linklocal_allowance_exceeded",
];

pub(super) const IMPLIED: &[Implied] = &[
    // e1000_gstrings_stats, igb_gstrings_stats, igc_gstrings_stats, ixgbe_gstrings_stats. ixgbevf has none
    // of these.
    Implied {
        drivers: &["e1000e", "igb", "igc", "ixgbe"],
        shown: &["rx_crc_errors"],
        also: &[&["rx_missed_errors"]],
    },
    Implied {
        drivers: &["ixgbe"],
        shown: &["rx_crc_errors", "rx_missed_errors"],
        also: &[&["rx_no_dma_resources"]],
    },
    // i40e_gstrings_stats.
    Implied {
        drivers: &["i40e"],
        shown: &["port.rx_crc_errors", "port.rx_length_errors", "port.link_xoff_rx"],
        also: &[&["port.rx_discards", "port.rx_dropped"]],
    },
    // Commit 5337d2949733 added both names.
    Implied { drivers: &["i40e"], shown: &["port.rx_discards"], also: &[&["rx_missed_errors"]] },
    // ice_gstrings_pf_stats and ice_gstrings_vsi_stats.
    Implied {
        drivers: &["ice"],
        shown: &["rx_crc_errors.nic", "illegal_bytes.nic"],
        also: &[&["rx_dropped"], &["rx_dropped.nic"]],
    },
    // mlx5e_nic_stats_grps and mlx5e_ul_rep_stats_grps: pport_802_3_stats_desc, pport_2863_stats_desc and
    // q_stats_desc.
    Implied {
        drivers: &["mlx5_core"],
        shown: &["rx_crc_errors_phy", "rx_discards_phy"],
        also: &[&["rx_out_of_buffer"]],
    },
    Implied { drivers: &["mlx5_core"], shown: &["rx_crc_errors_phy"], also: &[&["rx_discards_phy"]] },
    // et_stats.
    Implied {
        drivers: &["be2net"],
        shown: &["rx_crc_errors", "rx_alignment_symbol_errors"],
        also: &[&["rx_drops_no_pbuf"], &["rx_drops_no_erx_descr"], &["rx_input_fifo_overflow_drop"]],
    },
    // ena_stats_eni_strings.
    Implied {
        drivers: &["ena"],
        shown: &ALLOWANCES,
        also: &[&[ALLOWANCES[0]], &[ALLOWANCES[1]], &[ALLOWANCES[2]], &[ALLOWANCES[3]], &[ALLOWANCES[4]]],
    },
    // ionic_lif_stats_desc.
    Implied {
        drivers: &["ionic"],
        shown: &["hw_tx_dropped", "hw_tx_aborted_errors"],
        also: &[&["hw_rx_over_errors"], &["hw_rx_missed_errors"], &["hw_rx_dropped"]],
    },
    // HUNT_COMMON_STAT_MASK.
    Implied {
        drivers: &["sfc"],
        shown: &["port_rx_bad"],
        also: &[&["port_rx_nodesc_drops"], &["port_rx_overflow"]],
    },
    // qede_stats_arr.
    Implied {
        drivers: &["qede"],
        shown: &["rx_crc_errors", "rx_align_errors"],
        also: &[&["no_buff_discards"], &["brb_discards"], &["brb_truncates"]],
    },
    // stats_strings.
    Implied {
        drivers: &["cxgb4"],
        shown: &["rx_fcs_errors", "rx_symbol_errors"],
        also: &[&["rx_bg#_frames_dropped"]],
    },
    // enic_rx_stats.
    Implied {
        drivers: &["enic"],
        shown: &["rx_errors", "rx_crc_errors"],
        also: &[&["rx_no_bufs"], &["rx_drop"]],
    },
    // vmxnet3_rq_dev_stats.
    Implied { drivers: &["vmxnet3"], shown: &["pkts rx err"], also: &[&["pkts rx OOB"]] },
];

impl Driver {
    /// Returns the loss counters that `statistics` lacks, although the driver reports them together with a
    /// counter in `statistics`.
    pub fn lost_counters(
        &self,
        name: &str,
        statistics: &BTreeMap<String, u64>,
    ) -> Vec<(&'static str, Meaning)> {
        let is_shown = |pattern: &&str| {
            statistics.keys().any(|counter| matches(pattern, repetition(counter).0).is_some())
        };
        let rows = IMPLIED.iter().filter(|row| row.drivers.contains(&name));
        let lost = rows.filter(|row| row.shown.iter().any(&is_shown)).flat_map(|row| row.also);
        lost.filter(|names| !names.iter().any(&is_shown))
            .filter_map(|names| self.counters().find(|(pattern, _)| names.contains(pattern)))
            .collect()
    }
}
