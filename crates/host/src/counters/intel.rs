//! Intel: e1000e, igb, igc, ixgbe, i40e, iavf, ice, idpf.

use super::Meaning::{
    Driver as InDriver, Nic, Overlaps, Part, PauseReceived, PauseSent, PriorityPauseReceived,
    PriorityPauseSent, Received, Ring, Sent, Stop, Transmit, Wire,
};
use super::{Counters, Driver};

pub(super) const DRIVERS: &[Driver] = &[E1000E, IGB, IGC, IXGBE, I40E, IAVF, ICE, IDPF];

/// Names that e1000e, igb, igc and ixgbe share.
const PORT: Counters = &[
    // Register MPC: packets missed because the packet buffer was full.
    ("rx_missed_errors", Nic),
    ("rx_errors", Wire),
    ("rx_crc_errors", Part("rx_errors")),
    ("rx_length_errors", Part("rx_errors")),
    ("tx_dropped", Transmit),
    ("tx_flow_control_xoff", PauseSent),
    ("rx_flow_control_xoff", PauseReceived),
];

/// Names that e1000e, igb and igc share.
const GIGABIT: Counters = &[
    ("rx_long_length_errors", Part("rx_errors")),
    ("rx_short_length_errors", Part("rx_errors")),
    ("rx_align_errors", Part("rx_errors")),
    ("rx_frame_errors", Part("rx_errors")),
];

/// Per-queue counters of igb and igc. RQDPC counts drops for lack of a free descriptor.
const QUEUES: Counters = &[("rx_queue_#_drops", Ring), ("tx_queue_#_restart", Stop)];

/// `drivers/net/ethernet/intel/e1000e/ethtool.c`; `e1000e_get_stats64` of `netdev.c`.
const E1000E: Driver =
    Driver { names: &["e1000e"], kernel: &[], counters: &[PORT, GIGABIT, &[("tx_restart_queue", Stop)]] };

/// `drivers/net/ethernet/intel/igb/igb_ethtool.c`; `igb_update_stats` of `igb_main.c`.
const IGB: Driver = Driver { names: &["igb"], kernel: &[], counters: &[PORT, GIGABIT, QUEUES] };

/// `drivers/net/ethernet/intel/igc/igc_ethtool.c`; `igc_update_stats` of `igc_main.c`.
const IGC: Driver = Driver { names: &["igc"], kernel: &[], counters: &[PORT, GIGABIT, QUEUES] };

/// `drivers/net/ethernet/intel/ixgbe/ixgbe_ethtool.c` and `ixgbevf/ethtool.c`; `ixgbe_update_stats` of
/// `ixgbe_main.c`.
const IXGBE: Driver = Driver {
    names: &["ixgbe", "ixgbevf"],
    kernel: &[],
    counters: &[
        PORT,
        &[
            // Register QPRDC, summed over the queues.
            ("rx_no_dma_resources", Ring),
            ("tx_restart_queue", Stop),
            ("tx_pb_#_pxoff", PriorityPauseSent),
            ("rx_pb_#_pxoff", PriorityPauseReceived),
        ],
    ],
};

/// `drivers/net/ethernet/intel/i40e/i40e_ethtool.c`; `i40e_update_vsi_stats` and `i40e_update_pf_stats` of
/// `i40e_main.c`.
const I40E: Driver = Driver {
    names: &["i40e"],
    kernel: &[],
    counters: &[&[
        // Register GLV_RDPC: drops of the function for lack of a free descriptor.
        ("rx_missed_errors", Ring),
        // Register GL_RXERR1. Before commit 5337d2949733, this counter contained GLV_RDPC, and
        // rx_missed_errors did not exist.
        ("rx_dropped", Part("rx_missed_errors")),
        // Register GLPRT_RDPC: drops of the port because its FIFO was full. Before commit 5337d2949733,
        // the name was port.rx_dropped.
        ("port.rx_discards", Nic),
        ("port.rx_dropped", Nic),
        ("port.rx_crc_errors", Wire),
        ("rx_crc_errors", Part("port.rx_crc_errors")),
        ("port.illegal_bytes", Wire),
        ("port.rx_length_errors", Wire),
        // Registers GLPRT_RUC, GLPRT_ROC; GLPRT_RFC and GLPRT_RJC count frames with a wrong CRC.
        ("port.rx_undersize", Wire),
        ("port.rx_oversize", Wire),
        ("port.rx_fragments", Overlaps("port.rx_crc_errors")),
        ("port.rx_jabber", Overlaps("port.rx_crc_errors")),
        ("rx_length_errors", Part("port.rx_length_errors")),
        ("rx_errors", Part("port.rx_crc_errors")),
        ("tx_dropped", Transmit),
        ("tx_errors", Transmit),
        ("tx_restart", Stop),
        ("tx_stopped", Part("tx_restart")),
        ("port.link_xoff_tx", PauseSent),
        ("port.link_xoff_rx", PauseReceived),
        ("port.tx_priority_#_xoff_tx", PriorityPauseSent),
        ("port.rx_priority_#_xoff_rx", PriorityPauseReceived),
        // Names up to Linux 4.18.
        ("port.tx_priority_#_xoff", PriorityPauseSent),
        ("port.rx_priority_#_xoff", PriorityPauseReceived),
    ]],
};

/// `drivers/net/ethernet/intel/iavf/iavf_ethtool.c`; `iavf_virtchnl_completion` of `iavf_virtchnl.c`.
const IAVF: Driver = Driver {
    names: &["iavf", "i40evf"],
    kernel: &[],
    counters: &[&[("rx_discards", Ring), ("tx_discards", Transmit), ("tx_errors", Transmit)]],
};

/// `drivers/net/ethernet/intel/ice/ice_ethtool.c`; `ice_update_vsi_stats` and `ice_update_pf_stats` of
/// `ice_main.c`.
const ICE: Driver = Driver {
    names: &["ice"],
    kernel: &[],
    counters: &[&[
        // Register GLV_RDPC of the function, and PRTRPB_RDPC of the port (the next counter).
        ("rx_dropped", Ring),
        ("rx_dropped.nic", Nic),
        ("rx_crc_errors.nic", Wire),
        ("illegal_bytes.nic", Wire),
        ("rx_undersize.nic", Wire),
        ("rx_fragments.nic", Wire),
        ("rx_oversize.nic", Wire),
        ("rx_jabber.nic", Wire),
        ("tx_errors", Transmit),
        ("tx_restart", Stop),
        ("link_xoff_tx.nic", PauseSent),
        ("link_xoff_rx.nic", PauseReceived),
        ("tx_priority_#_xoff.nic", PriorityPauseSent),
        ("rx_priority_#_xoff.nic", PriorityPauseReceived),
    ]],
};

/// `drivers/net/ethernet/intel/idpf/idpf_ethtool.c`; `idpf_send_get_stats_msg` of `idpf_virtchnl.c`.
const IDPF: Driver = Driver {
    names: &["idpf"],
    // `ethtool -S` does not show the vport's rx_discards.
    kernel: &[("rx_dropped", Ring)],
    counters: &[&[
        ("rx-bad_descs", InDriver),
        ("tx-skb_drops", Transmit),
        ("tx-dma_map_errs", Transmit),
        ("tx-busy_events", Stop),
        ("rx_q-#_pkts", Received),
        ("tx_q-#_pkts", Sent),
    ]],
};
