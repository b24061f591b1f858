//! NICs of clouds: ena (AWS), gve (Google), mana (Azure), ionic (AMD Pensando), hns3 (HiSilicon).

use super::Driver;
use super::Meaning::{
    Allowance, Driver as InDriver, Event, Nic, NicAndRing, Part, PauseReceived, PauseSent,
    PriorityPauseReceived, PriorityPauseSent, Received, Ring, Sent, Stop, Transmit, Wire,
};

pub(super) const DRIVERS: &[Driver] = &[
    Driver {
        names: &["ena"],
        source: "drivers/net/ethernet/amazon/ena/ena_ethtool.c",
        // The device reports its drops in its keep-alive messages, which only ena_get_stats64 shows.
        kernel: &[("rx_dropped", Ring), ("tx_dropped", Transmit)],
        counters: &[
            ("bw_in_allowance_exceeded", Allowance),
            ("bw_out_allowance_exceeded", Allowance),
            ("pps_allowance_exceeded", Allowance),
            ("conntrack_allowance_exceeded", Allowance),
            ("linklocal_allowance_exceeded", Allowance),
            ("conntrack_allowance_available", Event),
            ("queue_#_rx_page_alloc_fail", Event),
            ("queue_#_rx_skb_alloc_fail", InDriver),
            ("queue_#_rx_empty_rx_ring", Event),
            ("queue_#_rx_bad_desc_num", InDriver),
            ("queue_#_rx_csum_bad", Event),
            ("queue_#_rx_bad_csum", Event),
            ("queue_#_tx_queue_stop", Stop),
            ("queue_#_tx_missed_tx", Event),
            ("queue_#_rx_cnt", Received),
            ("queue_#_tx_cnt", Sent),
        ],
    },
    Driver {
        names: &["gve"],
        source: "drivers/net/ethernet/google/gve/gve_ethtool.c",
        kernel: &[],
        counters: &[
            ("rx_queue_drop_cnt[#]", Ring),
            ("rx_no_buffers_posted[#]", Event),
            ("rx_drops_packet_over_mru[#]", Wire),
            ("rx_drops_invalid_checksum[#]", Wire),
            // rx_skb_alloc_fail and rx_desc_err_dropped_pkt together.
            ("rx_dropped", InDriver),
            ("rx_skb_alloc_fail", Part("rx_dropped")),
            ("rx_desc_err_dropped_pkt", Part("rx_dropped")),
            ("rx_buf_alloc_fail", Event),
            ("tx_dropped", Transmit),
            ("tx_stop[#]", Stop),
            ("tx_wake[#]", Event),
        ],
    },
    Driver {
        names: &["mana"],
        source: "drivers/net/ethernet/microsoft/mana/mana_ethtool.c",
        kernel: &[],
        counters: &[
            ("hc_rx_discards_no_wqe", Ring),
            ("rx_pkt_drop_phy", Nic),
            ("hc_rx_err_vport_disabled", Event),
            ("hc_tx_err_eth_type_enforcement", Transmit),
            ("hc_tx_err_inval_vportoffset_pkt", Transmit),
            ("tx_pkt_drop_phy", Transmit),
            ("stop_queue", Stop),
            ("wake_queue", Event),
            ("tx_pause_tc#_phy", PriorityPauseSent),
            ("rx_pause_tc#_phy", PriorityPauseReceived),
        ],
    },
    Driver {
        names: &["ionic"],
        source: "drivers/net/ethernet/pensando/ionic/ionic_stats.c",
        kernel: &[],
        counters: &[
            // ionic_get_stats64: rx_queue_empty.
            ("hw_rx_over_errors", Ring),
            // rx_dma_error, rx_queue_disabled, rx_desc_fetch_error, rx_desc_data_error.
            ("hw_rx_missed_errors", Nic),
            ("frames_rx_dropped", Nic),
            // Packets of each kind that were dropped, those above included.
            ("hw_rx_dropped", Part("hw_rx_over_errors")),
            ("rx_#_dropped", InDriver),
            ("rx_#_alloc_err", Event),
            ("frames_rx_bad_fcs", Wire),
            ("frames_rx_bad_length", Wire),
            ("frames_rx_bad_all", Part("frames_rx_bad_fcs")),
            ("hw_tx_dropped", Transmit),
            ("frames_tx_pause", PauseSent),
            ("frames_rx_pause", PauseReceived),
            ("frames_tx_pripause", PriorityPauseSent),
            ("frames_rx_pripause", PriorityPauseReceived),
        ],
    },
    Driver {
        names: &["hns3", "hclge", "hclgevf"],
        source: "drivers/net/ethernet/hisilicon/hns3/hns3_ethtool.c, hns3pf/hclge_main.c",
        // hns3_nic_get_stats64: what the SSU dropped for want of a buffer or a descriptor.
        kernel: &[("rx_missed_errors", NicAndRing)],
        counters: &[
            ("rxq#_l2_err", Wire),
            ("rxq#_err_pkt_len", Wire),
            ("rxq#_l3l4_csum_err", Event),
            ("rxq#_sw_err_cnt", InDriver),
            ("rxq#_reuse_pg_cnt", Event),
            ("txq#_sw_err_cnt", Transmit),
            ("txq#_wake", Stop),
            ("mac_rx_fcs_err_pkt_num", Wire),
            ("mac_tx_mac_pause_num", PauseSent),
            ("mac_rx_mac_pause_num", PauseReceived),
            ("mac_tx_pfc_pri#_pkt_num", PriorityPauseSent),
            ("mac_rx_pfc_pri#_pkt_num", PriorityPauseReceived),
            ("rxq#_packets", Received),
            ("txq#_packets", Sent),
        ],
    },
];
