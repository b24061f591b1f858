//! NVIDIA (Mellanox): mlx5, mlx4.

use super::Driver;
use super::Meaning::{
    Driver as InDriver, Nic, NicAndRing, Overlaps, Part, PauseReceived, PauseSent, PriorityPauseReceived,
    PriorityPauseSent, Ring, Stop, Transmit, Wire,
};

pub(super) const DRIVERS: &[Driver] = &[MLX5, MLX4];

/// `drivers/net/ethernet/mellanox/mlx5/core/en_stats.c`; `mlx5e_get_stats` of `en_main.c`;
/// `Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst`.
const MLX5: Driver = Driver {
    names: &["mlx5_core", "mlx5e_rep"],
    kernel: &[],
    counters: &[&[
        ("rx_out_of_buffer", Ring),
        ("rx_discards_phy", Nic),
        ("dev_internal_queue_oob", Nic),
        ("rx_prio#_discards", Part("rx_discards_phy")),
        ("rx_prio#_buf_discard", Part("rx_discards_phy")),
        ("rx_prio#_cong_discard", Part("rx_discards_phy")),
        ("outbound_pci_buffer_overflow", Part("rx_discards_phy")),
        ("rx_oversize_pkts_sw_drop", InDriver),
        ("rx_xsk_oversize_pkts_sw_drop", InDriver),
        ("rx#_oversize_pkts_sw_drop", Part("rx_oversize_pkts_sw_drop")),
        ("ptp_rq0_oversize_pkts_sw_drop", Part("rx_oversize_pkts_sw_drop")),
        ("rx#_xsk_oversize_pkts_sw_drop", Part("rx_xsk_oversize_pkts_sw_drop")),
        ("rx_crc_errors_phy", Wire),
        // counters.rst: these frames are dropped. Frames with a symbol error, and fragments and jabbers, also
        // fail the FCS check, which rx_crc_errors_phy counts (IEEE 802.3 30.3.1.1.6, RFC 2819).
        ("rx_symbol_err_phy", Overlaps("rx_crc_errors_phy")),
        ("rx_fragments_phy", Overlaps("rx_crc_errors_phy")),
        ("rx_jabbers_phy", Overlaps("rx_crc_errors_phy")),
        ("rx_undersize_pkts_phy", Wire),
        ("rx_in_range_len_errors_phy", Wire),
        ("rx_out_of_range_len_phy", Wire),
        ("rx_oversize_pkts_phy", Wire),
        // The device's eth_wqe_too_small.
        ("rx_oversize_pkts_buffer", Wire),
        ("tx_queue_dropped", Transmit),
        ("tx#_dropped", Part("tx_queue_dropped")),
        ("ptp_tx#_dropped", Part("tx_queue_dropped")),
        ("qos_tx#_dropped", Part("tx_queue_dropped")),
        ("tx_discards_phy", Transmit),
        ("tx_errors_phy", Transmit),
        // See Documentation/networking/tls-offload.rst.
        ("tx_tls_drop_no_sync_data", Transmit),
        ("tx#_tls_drop_no_sync_data", Part("tx_tls_drop_no_sync_data")),
        ("qos_tx#_tls_drop_no_sync_data", Part("tx_tls_drop_no_sync_data")),
        ("tx_tls_drop_bypass_req", Transmit),
        ("tx#_tls_drop_bypass_req", Part("tx_tls_drop_bypass_req")),
        ("qos_tx#_tls_drop_bypass_req", Part("tx_tls_drop_bypass_req")),
        ("tx_queue_stopped", Stop),
        ("tx#_stopped", Part("tx_queue_stopped")),
        ("tx_pause_ctrl_phy", PauseSent),
        ("rx_pause_ctrl_phy", PauseReceived),
        ("tx_global_pause", Part("tx_pause_ctrl_phy")),
        ("rx_global_pause", Part("rx_pause_ctrl_phy")),
        ("tx_prio#_pause", PriorityPauseSent),
        ("rx_prio#_pause", PriorityPauseReceived),
    ]],
};

/// `drivers/net/ethernet/mellanox/mlx4/en_ethtool.c`; `mlx4_en_DUMP_ETH_STATS` of `en_port.c`.
const MLX4: Driver = Driver {
    names: &["mlx4_en", "mlx4_core"],
    kernel: &[],
    counters: &[&[
        // RDROP: the port's total, which includes the drops of the rings.
        ("rx_dropped", NicAndRing),
        ("rx#_dropped", Ring),
        // RdropOvflw and RdropLength.
        ("rx_fifo_errors", Part("rx_dropped")),
        ("rx_length_errors", Part("rx_dropped")),
        ("rx_errors", Wire),
        ("rx_crc_errors", Part("rx_errors")),
        ("rx_jabbers", Part("rx_errors")),
        ("rx_in_range_length_error", Part("rx_errors")),
        ("rx_out_range_length_error", Part("rx_errors")),
        ("tx_dropped", Transmit),
        ("queue_stopped", Stop),
        ("tx_pause", PauseSent),
        ("rx_pause", PauseReceived),
        ("tx_pause_prio_#", PriorityPauseSent),
        ("rx_pause_prio_#", PriorityPauseReceived),
    ]],
};
