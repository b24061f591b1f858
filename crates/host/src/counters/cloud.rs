//! NICs of cloud providers: ena (AWS), gve (Google), mana (Azure), ionic (AMD Pensando), hns3 (HiSilicon).

use super::Driver;
use super::Meaning::{
    Allowance, Driver as InDriver, Nic, Overlaps, Part, PauseReceived, PauseSent, PriorityPauseReceived,
    PriorityPauseSent, Received, Ring, Sent, Stop, Transmit, Wire, Xdp,
};

pub(super) const DRIVERS: &[Driver] = &[ENA, GVE, MANA, IONIC, HNS3];

/// `drivers/net/ethernet/amazon/ena/ena_ethtool.c`; `ena_get_stats64` and `ena_start_xmit` of `ena_netdev.c`.
const ENA: Driver = Driver {
    names: &["ena"],
    // The device reports its drops in keep-alive messages, and only ena_get_stats64 shows them.
    kernel: &[("rx_dropped", Ring), ("tx_dropped", Transmit)],
    counters: &[&[
        // ena_get_stats64 adds the XDP drops to the device's drops.
        ("queue_#_rx_xdp_drop", Xdp("rx_dropped")),
        ("bw_in_allowance_exceeded", Allowance),
        ("bw_out_allowance_exceeded", Allowance),
        ("pps_allowance_exceeded", Allowance),
        ("conntrack_allowance_exceeded", Allowance),
        ("linklocal_allowance_exceeded", Allowance),
        ("queue_#_rx_skb_alloc_fail", InDriver),
        ("queue_#_tx_dma_mapping_err", Transmit),
        ("queue_#_tx_linearize_failed", Transmit),
        ("queue_#_tx_prepare_ctx_err", Transmit),
        ("queue_#_tx_queue_stop", Stop),
    ]],
};

/// `drivers/net/ethernet/google/gve/gve_ethtool.c`.
const GVE: Driver = Driver {
    names: &["gve"],
    kernel: &[],
    counters: &[&[
        ("rx_queue_drop_cnt[#]", Ring),
        ("rx_drops_packet_over_mru[#]", Wire),
        ("rx_drops_invalid_checksum[#]", Wire),
        // Sum of the next four counters, see gve_get_ethtool_stats.
        ("rx_dropped", InDriver),
        ("rx_skb_alloc_fail", Part("rx_dropped")),
        ("rx_desc_err_dropped_pkt", Part("rx_dropped")),
        ("rx_xdp_tx_errors[#]", Part("rx_dropped")),
        ("rx_xdp_redirect_errors[#]", Part("rx_dropped")),
        ("rx_dropped_pkt[#]", Part("rx_dropped")),
        ("tx_dropped", Transmit),
        ("tx_dma_mapping_error[#]", Part("tx_dropped")),
        ("tx_stop[#]", Stop),
    ]],
};

/// `drivers/net/ethernet/microsoft/mana/mana_ethtool.c`; `mana_get_stats64` and `mana_start_xmit` of
/// `mana_en.c`.
const MANA: Driver = Driver {
    names: &["mana"],
    kernel: &[],
    counters: &[&[
        ("hc_rx_discards_no_wqe", Ring),
        ("hc_rx_pkt_drop_phy", Nic),
        ("hc_tx_pkt_drop_phy", Transmit),
        ("hc_tx_err_inval_vportoffset_pkt", Transmit),
        ("hc_tx_err_vlan_enforcement", Transmit),
        ("hc_tx_err_eth_type_enforcement", Transmit),
        ("hc_tx_err_sa_enforcement", Transmit),
        ("hc_tx_err_sqpdid_enforcement", Transmit),
        ("hc_tx_err_cqpdid_enforcement", Transmit),
        ("hc_tx_err_mtu_violation", Transmit),
        ("hc_tx_err_inval_oob", Transmit),
        ("hc_tx_err_gdma", Transmit),
        ("tx_#_mana_map_err", Transmit),
        ("stop_queue", Stop),
        ("hc_tc#_tx_pause_phy", PriorityPauseSent),
        ("hc_tc#_rx_pause_phy", PriorityPauseReceived),
    ]],
};

/// `drivers/net/ethernet/pensando/ionic/ionic_stats.c`; `ionic_get_stats64` of `ionic_lif.c`;
/// `struct ionic_lif_stats` of `ionic_if.h`.
const IONIC: Driver = Driver {
    names: &["ionic"],
    kernel: &[],
    counters: &[&[
        // The device's rx_queue_empty.
        ("hw_rx_over_errors", Ring),
        // Sum of rx_dma_error, rx_queue_disabled, rx_desc_fetch_error and rx_desc_data_error.
        ("hw_rx_missed_errors", Nic),
        // Drops of unicast, multicast and broadcast packets, which the previous counters exclude.
        // DPDK's driver also adds these drops.
        ("hw_rx_dropped", Nic),
        ("frames_rx_dropped", Nic),
        ("rx_#_dropped", InDriver),
        ("rx_#_alloc_err", Part("rx_#_dropped")),
        ("frames_rx_bad_all", Wire),
        ("frames_rx_bad_fcs", Part("frames_rx_bad_all")),
        ("frames_rx_bad_length", Part("frames_rx_bad_all")),
        ("frames_rx_undersized", Overlaps("frames_rx_bad_all")),
        ("frames_rx_fragments", Overlaps("frames_rx_bad_all")),
        ("frames_rx_jabber", Overlaps("frames_rx_bad_all")),
        ("hw_tx_dropped", Transmit),
        ("hw_tx_aborted_errors", Transmit),
        ("tx_#_dma_map_err", Transmit),
        ("frames_tx_pause", PauseSent),
        ("frames_rx_pause", PauseReceived),
        ("frames_tx_pripause", PriorityPauseSent),
        ("frames_rx_pripause", PriorityPauseReceived),
    ]],
};

/// `drivers/net/ethernet/hisilicon/hns3/hns3_ethtool.c` and `hns3pf/hclge_main.c`; `hns3_fetch_stats` of
/// `hns3_enet.c`.
const HNS3: Driver = Driver {
    names: &["hns3"],
    kernel: &[],
    counters: &[&[
        ("mac_rx_fcs_err_pkt_num", Wire),
        ("mac_rx_undersize_pkt_num", Wire),
        // Frames with a wrong FCS (RFC 2819).
        ("mac_rx_fragment_pkt_num", Overlaps("mac_rx_fcs_err_pkt_num")),
        ("mac_rx_jabber_pkt_num", Overlaps("mac_rx_fcs_err_pkt_num")),
        // The driver reports l2_err as the kernel's rx_crc_errors. A virtual function has no MAC counters,
        // so l2_err counts there.
        ("rxq#_l2_err", Part("mac_rx_fcs_err_pkt_num")),
        ("rxq#_err_pkt_len", Wire),
        ("rxq#_errors", InDriver),
        ("txq#_dropped", Transmit),
        ("txq#_vlan_err", Transmit),
        ("txq#_l4_proto_err", Transmit),
        ("txq#_l2l3l4_err", Transmit),
        ("txq#_tso_err", Transmit),
        ("txq#_over_max_recursion", Transmit),
        ("txq#_hw_limitation", Transmit),
        ("txq#_copy_bits_err", Transmit),
        ("txq#_skb2sgl_err", Transmit),
        ("txq#_map_sg_err", Transmit),
        ("txq#_wake", Stop),
        ("mac_tx_mac_pause_num", PauseSent),
        ("mac_rx_mac_pause_num", PauseReceived),
        ("mac_tx_pfc_pri#_pkt_num", PriorityPauseSent),
        ("mac_rx_pfc_pri#_pkt_num", PriorityPauseReceived),
        ("rxq#_packets", Received),
        ("txq#_packets", Sent),
    ]],
};
