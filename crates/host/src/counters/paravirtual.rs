//! NICs of hypervisors: virtio_net, vmxnet3, netvsc.

use super::Driver;
use super::Meaning::{Driver as InDriver, Part, Received, Ring, Sent, Stop, Transmit, Wire};

pub(super) const DRIVERS: &[Driver] = &[VIRTIO, VMXNET3, NETVSC];

/// `drivers/net/virtio_net.c`. Only netlink's `qstats` count the device's drops for lack of a free
/// descriptor.
const VIRTIO: Driver = Driver {
    names: &["virtio_net"],
    kernel: &[],
    counters: &[&[
        // Name before Linux 6.10.
        ("rx_queue_#_drops", InDriver),
        ("rx#_drops", InDriver),
        ("rx_drops", Part("rx#_drops")),
    ]],
};

/// `drivers/net/vmxnet3/vmxnet3_ethtool.c`, with `vmxnet3_get_stats64`. Each name occurs once for each
/// queue; `distinct` numbers the names.
const VMXNET3: Driver = Driver {
    names: &["vmxnet3"],
    kernel: &[],
    counters: &[&[
        ("pkts rx OOB", Ring),
        ("pkts rx err", Wire),
        ("drv dropped rx total", InDriver),
        ("err", Part("drv dropped rx total")),
        ("fcs", Part("drv dropped rx total")),
        ("drv dropped tx total", Transmit),
        ("too many frags", Part("drv dropped tx total")),
        ("hdr err", Part("drv dropped tx total")),
        ("tso", Part("drv dropped tx total")),
        ("pkts tx discard", Transmit),
        ("pkts tx err", Transmit),
        ("ring full", Stop),
        ("ucast pkts rx", Received),
        ("ucast pkts tx", Sent),
    ]],
};

/// `drivers/net/hyperv/netvsc_drv.c`, with `netvsc_xmit` and `netvsc_recv_callback`.
const NETVSC: Driver = Driver {
    names: &["hv_netvsc", "netvsc"],
    kernel: &[],
    counters: &[&[
        ("rx_no_memory", InDriver),
        ("tx_no_memory", Transmit),
        ("tx_no_space", Transmit),
        ("tx_too_big", Transmit),
        ("vlan_error", Transmit),
        ("vf_tx_dropped", Transmit),
        ("stop_queue", Stop),
    ]],
};
