//! NICs of hypervisors: virtio_net, vmxnet3, netvsc.

use super::Driver;
use super::Meaning::{Driver as InDriver, Event, Nic, Part, Received, Ring, Sent, Stop, Transmit, Wire};

pub(super) const DRIVERS: &[Driver] = &[
    Driver {
        names: &["virtio_net"],
        source: "drivers/net/virtio_net.c",
        kernel: &[],
        counters: &[
            ("rx_queue_#_drops", InDriver),
            ("rx#_drops", InDriver),
            // Reported by the device: all drops, and those of them for want of a descriptor.
            ("rx_queue_#_hw_drops", Nic),
            ("rx#_hw_drops", Nic),
            ("rx_queue_#_hw_drop_overruns", Part("rx_queue_#_hw_drops")),
            ("rx#_hw_drop_overruns", Part("rx#_hw_drops")),
            ("rx_queue_#_xdp_drops", Event),
            ("tx_queue_#_stop", Stop),
            ("tx_queue_#_timeouts", Event),
            ("tx_queue_#_tx_timeouts", Event),
        ],
    },
    Driver {
        names: &["vmxnet3"],
        source: "drivers/net/vmxnet3/vmxnet3_ethtool.c",
        kernel: &[],
        // Each name once for each queue: `distinct` numbers them.
        counters: &[
            ("pkts rx OOB", Ring),
            ("pkts rx err", Wire),
            ("drv dropped rx total", InDriver),
            ("err", Part("drv dropped rx total")),
            ("fcs", Part("drv dropped rx total")),
            ("rx buf alloc fail", Event),
            ("drv dropped tx total", Transmit),
            ("too many frags", Part("drv dropped tx total")),
            ("hdr err", Part("drv dropped tx total")),
            ("tso", Part("drv dropped tx total")),
            ("pkts tx discard", Transmit),
            ("pkts tx err", Transmit),
            ("ring full", Stop),
            ("tx timeout count", Event),
            ("ucast pkts rx", Received),
            ("ucast pkts tx", Sent),
        ],
    },
    Driver {
        names: &["hv_netvsc", "netvsc"],
        source: "drivers/net/hyperv/netvsc_drv.c",
        kernel: &[],
        counters: &[
            ("rx_no_memory", InDriver),
            ("rx_comp_busy", Event),
            ("tx_no_memory", Transmit),
            ("tx_no_space", Event),
            ("tx_too_big", Transmit),
            ("tx_busy", Event),
            ("tx_send_full", Event),
            ("vlan_error", Transmit),
            ("stop_queue", Stop),
            ("wake_queue", Event),
            ("rx_queue_#_xdp_drop", Event),
        ],
    },
];
