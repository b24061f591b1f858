//! Broadcom and Emulex: bnxt, tg3, be2net.

use super::Driver;
use super::Meaning::{
    Driver as InDriver, Nic, NicAndRing, Overlaps, Part, PauseReceived, PauseSent, PriorityPauseReceived,
    PriorityPauseSent, Received, Ring, Sent, Stop, Transmit, Wire,
};

pub(super) const DRIVERS: &[Driver] = &[BNXT, TG3, BE2NET];

/// Sources: `drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c`; `bnxt_get_stats64` of `bnxt.c`.
const BNXT: Driver = Driver {
    names: &["bnxt_en"],
    kernel: &[],
    counters: &[&[
        ("[#]: rx_discards", Ring),
        // Sum over the rings. The driver has one of the next two names, depending on its version.
        ("rx_total_discard_pkts", Part("[#]: rx_discards")),
        ("rx_total_ring_discards", Part("[#]: rx_discards")),
        // The port's discards include those of its rings.
        ("rx_stat_discard", NicAndRing),
        ("rx_discard_packets_cos#", Part("rx_stat_discard")),
        ("rx_total_oom_discards", InDriver),
        ("rx_total_netpoll_discards", InDriver),
        ("rx_fcs_err_frames", Wire),
        ("rx_align_err_frames", Wire),
        ("rx_undrsz_frames", Wire),
        ("rx_ovrsz_frames", Wire),
        ("rx_runt_frames", Wire),
        ("rx_jbr_frames", Wire),
        ("[#]: tx_discards", Transmit),
        ("[#]: tx_errors", Transmit),
        ("tx_total_discard_pkts", Part("[#]: tx_discards")),
        ("tx_total_ring_discards", Part("[#]: tx_discards")),
        ("tx_stat_discard", Part("[#]: tx_discards")),
        ("tx_err", Transmit),
        ("tx_fcs_err_frames", Part("tx_err")),
        ("tx_fifo_underruns", Part("tx_err")),
        ("tx_pause_frames", PauseSent),
        ("rx_pause_frames", PauseReceived),
        ("tx_pfc_ena_frames_pri#", PriorityPauseSent),
        ("rx_pfc_ena_frames_pri#", PriorityPauseReceived),
        ("tx_pfc_frames", Part("tx_pfc_ena_frames_pri#")),
        ("rx_pfc_frames", Part("rx_pfc_ena_frames_pri#")),
    ]],
};

/// `drivers/net/ethernet/broadcom/tg3.c`, with `tg3_get_nstats`.
const TG3: Driver = Driver {
    names: &["tg3"],
    kernel: &[],
    counters: &[&[
        ("rx_discards", Ring),
        ("rx_fcs_errors", Wire),
        ("rx_align_errors", Wire),
        ("rx_frame_too_long_errors", Wire),
        ("rx_undersize_packets", Wire),
        // Frames with a wrong FCS (RFC 2819).
        ("rx_fragments", Overlaps("rx_fcs_errors")),
        ("rx_jabbers", Overlaps("rx_fcs_errors")),
        ("tx_discards", Transmit),
        ("tx_errors", Transmit),
        ("tx_mac_errors", Transmit),
        ("tx_carrier_sense_errors", Transmit),
        ("tx_xoff_sent", PauseSent),
        ("rx_xoff_pause_rcvd", PauseReceived),
    ]],
};

/// `drivers/net/ethernet/emulex/benet/be_ethtool.c`; `be_get_stats64` of `be_main.c`.
const BE2NET: Driver = Driver {
    names: &["be2net"],
    kernel: &[],
    counters: &[&[
        ("rxq#: rx_drops_no_frags", Ring),
        ("rxq#: rx_drops_no_skbs", InDriver),
        ("rx_drops_no_erx_descr", Nic),
        ("rx_drops_no_tpre_descr", Nic),
        ("rx_drops_no_pbuf", Nic),
        ("rx_input_fifo_overflow_drop", Nic),
        ("rxpp_fifo_overflow_drop", Nic),
        ("pmem_fifo_overflow_drop", Nic),
        ("eth_red_drops", Nic),
        ("rx_drops_too_many_frags", InDriver),
        ("rx_crc_errors", Wire),
        ("rx_alignment_symbol_errors", Wire),
        ("rx_in_range_errors", Wire),
        ("rx_out_range_errors", Wire),
        ("rx_frame_too_long", Wire),
        ("rx_drops_mtu", Wire),
        ("rx_dropped_too_small", Wire),
        ("rx_dropped_too_short", Wire),
        ("rx_dropped_header_too_small", Wire),
        ("rx_dropped_tcp_length", Wire),
        ("rx_dropped_runt", Wire),
        ("txq#: tx_drv_drops", Transmit),
        ("txq#: tx_hdr_parse_err", Transmit),
        ("txq#: tx_dma_err", Transmit),
        ("txq#: tx_spoof_check_err", Transmit),
        ("txq#: tx_tso_err", Transmit),
        ("txq#: tx_qinq_err", Transmit),
        ("txq#: tx_internal_parity_err", Transmit),
        ("txq#: tx_sge_err", Transmit),
        ("txq#: tx_stops", Stop),
        ("tx_pauseframes", PauseSent),
        ("rx_pause_frames", PauseReceived),
        ("tx_priority_pauseframes", PriorityPauseSent),
        ("rx_priority_pause_frames", PriorityPauseReceived),
        ("rxq#: rx_pkts", Received),
        ("txq#: tx_pkts", Sent),
    ]],
};
