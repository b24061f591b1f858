//! NVIDIA (Mellanox): mlx5, mlx4.

use super::Driver;
use super::Meaning::{
    Event, Nic, Part, PauseReceived, PauseSent, PriorityPauseReceived, PriorityPauseSent, Ring, Stop,
    Transmit, Wire,
};

pub(super) const DRIVERS: &[Driver] = &[
    Driver {
        names: &["mlx5_core", "mlx5e_rep"],
        source: "drivers/net/ethernet/mellanox/mlx5/core/en_stats.c",
        kernel: &[],
        counters: &[
            // rx_missed_errors of rtnl_link_stats64 is this counter again.
            ("rx_out_of_buffer", Ring),
            ("rx_discards_phy", Nic),
            ("rx_prio#_discards", Part("rx_discards_phy")),
            ("rx_prio#_buf_discard", Part("rx_discards_phy")),
            ("rx_buff_alloc_err", Event),
            ("rx#_buff_alloc_err", Part("rx_buff_alloc_err")),
            ("rx_wqe_err", Event),
            ("rx_steer_missed_packets", Event),
            ("rx_if_down_packets", Event),
            ("rx_crc_errors_phy", Wire),
            ("rx_in_range_len_errors_phy", Wire),
            ("rx_undersize_pkts_phy", Wire),
            ("rx_fragments_phy", Wire),
            ("rx_jabbers_phy", Wire),
            // Symbols and bits, corrected or not, and no packets.
            ("rx_symbol_err_phy", Event),
            ("rx_pcs_symbol_err_phy", Event),
            ("rx_corrected_bits_phy", Event),
            ("tx_queue_dropped", Transmit),
            ("tx#_dropped", Part("tx_queue_dropped")),
            ("tx_discards_phy", Transmit),
            ("tx_queue_stopped", Stop),
            ("tx#_stopped", Part("tx_queue_stopped")),
            ("tx_pause_ctrl_phy", PauseSent),
            ("rx_pause_ctrl_phy", PauseReceived),
            ("tx_prio#_pause", PriorityPauseSent),
            ("rx_prio#_pause", PriorityPauseReceived),
            ("tx_pause_storm_warning_events", Event),
        ],
    },
    Driver {
        names: &["mlx4_en", "mlx4_core"],
        source: "drivers/net/ethernet/mellanox/mlx4/en_ethtool.c",
        kernel: &[],
        counters: &[
            ("rx_dropped", Ring),
            ("rx#_dropped", Part("rx_dropped")),
            // RdropOvflw: the port's buffer was full.
            ("rx_over_errors", Nic),
            ("rx_crc_errors", Wire),
            ("rx_jabbers", Wire),
            ("rx_in_range_length_error", Wire),
            ("tx_dropped", Transmit),
            ("queue_stopped", Stop),
            ("tx_pause", PauseSent),
            ("rx_pause", PauseReceived),
            ("tx_pause_prio_#", PriorityPauseSent),
            ("rx_pause_prio_#", PriorityPauseReceived),
        ],
    },
];
