//! Other vendors: sfc, qede, cxgb4, nfp, enic, r8169, mvneta, stmmac.

use super::Driver;
use super::Meaning::{
    Driver as InDriver, Nic, NicAndRing, Overlaps, Part, PauseReceived, PauseSent, PriorityPauseReceived,
    PriorityPauseSent, Received, Ring, Sent, Stop, Transmit, Wire,
};

pub(super) const DRIVERS: &[Driver] = &[SFC, QEDE, CXGB4, NFP, ENIC, R8169, MVNETA, STMMAC];

/// `drivers/net/ethernet/sfc/ef10.c`, `ef100_nic.c` and `ethtool_common.c`; `efx_ef10_update_stats_common`.
const SFC: Driver = Driver {
    names: &["sfc", "sfc_ef100"],
    kernel: &[],
    counters: &[&[
        ("port_rx_nodesc_drops", Ring),
        ("rx_nodesc_trunc", Ring),
        ("port_rx_overflow", Nic),
        ("rx_overflow", Part("port_rx_overflow")),
        ("port_rx_pm_discard_bb_overflow", Nic),
        ("port_rx_pm_discard_vfifo_full", Nic),
        ("port_rx_pm_discard_qbb", Nic),
        ("port_rx_pm_discard_mapping", Nic),
        ("rx_noskb_drops", InDriver),
        ("port_rx_bad", Wire),
        ("rx_bad", Part("port_rx_bad")),
        ("rx_eth_crc_err", Part("port_rx_bad")),
        ("port_rx_align_error", Wire),
        ("port_rx_length_error", Wire),
        ("port_rx_gtjumbo", Wire),
        ("tx_bad", Transmit),
        ("tx_overflow", Transmit),
        ("port_tx_pause", PauseSent),
        ("port_rx_pause", PauseReceived),
    ]],
};

/// `drivers/net/ethernet/qlogic/qede/qede_ethtool.c`; `qede_get_stats64` of `qede_main.c`; `qede_fp.c`.
const QEDE: Driver = Driver {
    names: &["qede"],
    kernel: &[],
    counters: &[&[
        ("no_buff_discards", Ring),
        ("brb_discards", Nic),
        ("brb_truncates", Nic),
        ("#: rx_alloc_errors", InDriver),
        ("packet_too_big_discard", Wire),
        ("rx_crc_errors", Wire),
        ("rx_align_errors", Wire),
        ("rx_undersize_packets", Wire),
        // Frames with a wrong CRC (RFC 2819).
        ("rx_fragments", Overlaps("rx_crc_errors")),
        ("rx_jabbers", Overlaps("rx_crc_errors")),
        ("tx_err_drop_pkts", Transmit),
        ("#_#: tx_mem_alloc_err", Transmit),
        ("#_#: stopped_cnt", Stop),
        ("tx_pause_frames", PauseSent),
        ("rx_pause_frames", PauseReceived),
        ("tx_pfc_frames", PriorityPauseSent),
        ("rx_pfc_frames", PriorityPauseReceived),
        ("#: rcv_pkts", Received),
        ("#_#: xmit_pkts", Sent),
    ]],
};

/// `drivers/net/ethernet/chelsio/cxgb4/cxgb4_ethtool.c`; `cxgb_get_stats` of `cxgb4_main.c`.
const CXGB4: Driver = Driver {
    names: &["cxgb4"],
    kernel: &[],
    counters: &[&[
        // Drops of the port's buffer groups.
        ("rx_bg#_frames_dropped", Nic),
        ("rx_bg#_frames_trunc", Nic),
        ("rx_fcs_errors", Wire),
        ("rx_symbol_errors", Wire),
        ("rx_jabber_errors", Wire),
        ("rx_frames_too_long", Wire),
        ("rx_length_errors", Wire),
        ("rx_runt_frames", Wire),
        ("tx_frames_dropped", Transmit),
        ("tx_error_frames", Transmit),
        // See Documentation/networking/tls-offload.rst.
        ("tx_tls_drop_no_sync_data", Transmit),
        ("tx_tls_drop_bypass_req", Transmit),
        ("tx_pause_frames", PauseSent),
        ("rx_pause_frames", PauseReceived),
        ("tx_ppp#_frames", PriorityPauseSent),
        ("rx_ppp#_frames", PriorityPauseReceived),
    ]],
};

/// `drivers/net/ethernet/netronome/nfp/nfp_net_ethtool.c`; `nfp_net_stat64` of `nfp_net_common.c`;
/// `Documentation/networking/device_drivers/ethernet/netronome/nfp.rst`.
const NFP: Driver = Driver {
    names: &["nfp", "nfp_netvf"],
    kernel: &[],
    counters: &[&[
        // Sum of several drops: no free descriptor, no space in the MAC's buffer, frame too long, frame
        // filtered.
        ("dev_rx_discards", NicAndRing),
        ("mac.rx_mac_head_drop", Part("dev_rx_discards")),
        ("rx_replace_buf_alloc_fail", InDriver),
        ("dev_rx_errors", Wire),
        ("mac.rx_errors", Part("dev_rx_errors")),
        ("mac.rx_frame_check_sequence_errors", Part("dev_rx_errors")),
        ("mac.rx_alignment_errors", Part("dev_rx_errors")),
        ("mac.rx_frame_too_long_errors", Part("dev_rx_errors")),
        ("mac.rx_range_length_errors", Part("dev_rx_errors")),
        ("mac.rx_undersize_pkts", Part("dev_rx_errors")),
        ("mac.rx_oversize_pkts", Part("dev_rx_errors")),
        ("mac.rx_fragments", Part("dev_rx_errors")),
        ("mac.rx_jabbers", Part("dev_rx_errors")),
        ("dev_tx_discards", Transmit),
        ("mac.tx_queue_drop", Part("dev_tx_discards")),
        ("dev_tx_errors", Transmit),
        ("mac.tx_errors", Part("dev_tx_errors")),
        // See Documentation/networking/tls-offload.rst.
        ("tx_tls_drop_no_sync_data", Transmit),
        ("rvec_#_tx_busy", Stop),
        ("mac.tx_pause_mac_ctrl_frames", PauseSent),
        ("mac.rx_pause_mac_ctrl_frames", PauseReceived),
        ("mac.tx_pause_frames_class#", PriorityPauseSent),
        ("mac.rx_pause_frames_class#", PriorityPauseReceived),
        ("rvec_#_rx_pkts", Received),
        ("rvec_#_tx_pkts", Sent),
    ]],
};

/// `drivers/net/ethernet/cisco/enic/enic_ethtool.c`; `enic_get_stats` of `enic_main.c`; `enic_rq.c`.
const ENIC: Driver = Driver {
    names: &["enic"],
    kernel: &[],
    counters: &[&[
        ("rx_no_bufs", Ring),
        ("rx_drop", Nic),
        ("rq[#]_no_skb", InDriver),
        ("rx_errors", Wire),
        ("rx_crc_errors", Part("rx_errors")),
        ("tx_drops", Transmit),
        ("tx_errors", Transmit),
        ("wq[#]_skb_linear_fail", Transmit),
    ]],
};

/// `drivers/net/ethernet/realtek/r8169_main.c`, with `rtl8169_get_stats64`.
const R8169: Driver = Driver {
    names: &["r8169"],
    kernel: &[],
    counters: &[&[
        ("rx_missed", Nic),
        ("rx_errors", Wire),
        ("align_errors", Part("rx_errors")),
        ("tx_errors", Transmit),
        ("tx_aborted", Part("tx_errors")),
        ("tx_underrun", Part("tx_errors")),
    ]],
};

/// `drivers/net/ethernet/marvell/mvneta.c`.
const MVNETA: Driver = Driver {
    names: &["mvneta"],
    kernel: &[],
    counters: &[&[
        ("rx_discard", Ring),
        ("rx_overrun", Nic),
        ("skb_alloc_errors", InDriver),
        ("bad_crc_event", Wire),
        ("undersize_received", Wire),
        ("fragments_received", Wire),
        ("oversize_received", Wire),
        ("jabber_received", Wire),
        ("internal_mac_transmit_err", Transmit),
        ("fc_sent", PauseSent),
        ("good_fc_received", PauseReceived),
    ]],
};

/// `drivers/net/ethernet/stmicro/stmmac/stmmac_ethtool.c`; `stmmac_get_stats64` of `stmmac_main.c`.
const STMMAC: Driver = Driver {
    names: &["st_gmac", "st_xgmac", "st_mac100"],
    kernel: &[],
    counters: &[&[
        ("rx_missed_cntr", Ring),
        ("mmc_rx_fifo_overflow", Nic),
        ("rx_overflow_cntr", Part("mmc_rx_fifo_overflow")),
        ("mmc_rx_crc_error", Wire),
        // Frames with a wrong CRC, shorter than 64 bytes and longer than allowed.
        ("mmc_rx_run_error", Overlaps("mmc_rx_crc_error")),
        ("mmc_rx_jabber_error", Overlaps("mmc_rx_crc_error")),
        ("rx_crc_errors", Part("mmc_rx_crc_error")),
        ("mmc_rx_align_error", Wire),
        ("mmc_rx_align_err_frames", Part("mmc_rx_align_error")),
        ("mmc_rx_length_error", Wire),
        ("rx_length", Part("mmc_rx_length_error")),
        ("mmc_tx_pause_frame", PauseSent),
        ("mmc_rx_pause_frames", PauseReceived),
        ("q#_rx_pkt_n", Received),
        ("q#_tx_pkt_n", Sent),
    ]],
};
