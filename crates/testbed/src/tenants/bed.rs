//! The bed of tenants: two hosts, a wire, one tree of qdiscs.

use evenkeel_datapath::{Meter, MeterOptions};
use evenkeel_model::change::{Channels, Handle};
use evenkeel_model::qdisc::{FilterRules, QdiscTree};
use evenkeel_model::scenario::Offloads;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::ethtool::EthtoolError;
use evenkeel_netlink::qdisc_tree::{QdiscCounters, install, install_rules, qdisc_counters};
use evenkeel_netlink::settings::{Device, Setting, Settings};

use crate::error::TestbedError;
use crate::namespace::Namespace;
use crate::wire::{self, RECEIVER_INTERFACE, SENDER_INTERFACE, Wire};

/// The largest segment that TCP hands down, headers included.
const LARGEST_SEGMENT_BYTES: u32 = 61_440;

/// What the bed consists of.
#[derive(Clone, Debug)]
pub(super) struct TenantBedOptions {
    /// Transmit queues of the sender's device.
    pub(super) queues: u32,
    /// Layer-3 MTU, bytes.
    pub(super) mtu: u32,
    /// Offloads of both devices.
    pub(super) offloads: Offloads,
    /// Sysctls of the sender.
    pub(super) sender_sysctls: Vec<(String, String)>,
    /// The meter at the receiver.
    pub(super) meter: MeterOptions,
}

/// A bed that stands. Dropping it takes everything away.
pub(super) struct TenantBed {
    pub(super) meter: Meter,
    pub(super) sender: Namespace,
    pub(super) receiver: Namespace,
    netlink: Netlink,
    index: u32,
}

impl TenantBed {
    /// Builds it, without a tree yet: flows connect faster, and alike in front of any qdisc.
    pub(super) fn build(options: &TenantBedOptions) -> Result<Self, TestbedError> {
        // `mq` stands on a device with one queue only if that was made with more (`netif_is_multiqueue`).
        let made = options.queues.max(2);
        let mut wire = Wire::lay(made, options.mtu, &options.sender_sysctls)?;
        if options.queues < made {
            set_transmit_queues(&wire, options.queues)?;
        }
        set_offloads(&mut wire, options.offloads)?;
        let Wire { sender, receiver, sender_netlink, receiver_netlink, sender_index, receiver_index } = wire;
        let (mut netlink, mut receiver_netlink) = (sender_netlink, receiver_netlink);
        netlink.set_up(sender_index)?;
        receiver_netlink.set_up(receiver_index)?;
        wire::steer_receives_by_flow(&receiver, options.queues)?;
        let meter = receiver.run(|| Ok(Meter::attach(&options.meter, receiver_index.cast_signed())?))?;
        Ok(Self { meter, sender, receiver, netlink, index: sender_index })
    }

    /// Puts the tree in front of the wire, and the rules in front of the filters of the qdisc that is studied.
    pub(super) fn install(
        &mut self,
        tree: &QdiscTree,
        rules: Option<(Handle, FilterRules)>,
    ) -> Result<(), TestbedError> {
        let refused = |error: &dyn std::error::Error| TestbedError::Qdisc(error.to_string());
        install(&mut self.netlink, self.index, tree).map_err(|error| refused(&error))?;
        if let Some((parent, rules)) = rules {
            install_rules(&mut self.netlink, self.index, parent, &rules).map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    /// Takes the tree away, with all that waits in it, so that what waited does not hold up the end.
    pub(super) fn clear(&mut self) -> Result<(), TestbedError> {
        match self.netlink.delete_qdisc(self.index, Handle::ROOT) {
            Err(error) if error.refusal_code() == Some(libc::ENOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    /// What every qdisc has done.
    pub(super) fn qdiscs(&mut self) -> Result<Vec<QdiscCounters>, TestbedError> {
        Ok(qdisc_counters(&mut self.netlink, self.index)?)
    }

    /// A socket for questions about the sender's device, and the device.
    pub(super) fn asker(&self) -> Result<(Netlink, u32), TestbedError> {
        Ok((self.sender.netlink()?, self.index))
    }
}

impl Drop for TenantBed {
    fn drop(&mut self) {
        // At once, instead of whenever the kernel gets to cleaning up the namespaces.
        let _ = self.netlink.delete_link(self.index);
    }
}

/// Leaves so many of the sender's transmit queues in use.
fn set_transmit_queues(wire: &Wire, queues: u32) -> Result<(), TestbedError> {
    let device = Device { index: wire.sender_index, name: SENDER_INTERFACE };
    wire.sender.run(|| {
        let mut settings = Settings::open().map_err(refused)?;
        settings.set(device, Setting::Channels(Channels::Tx), queues).map_err(refused)
    })
}

fn refused(error: EthtoolError) -> TestbedError {
    TestbedError::Qdisc(error.to_string())
}

/// Offloads as on two hosts with NICs, on a pair of devices without hardware:
///
/// | TSO and GSO at the sender | GRO and LRO at the receiver | here |
/// |---|---|---|
/// | on | on | segments pass whole |
/// | on | off | TSO of the sender's device is off: segments are cut behind the qdisc, as a NIC cuts them, and arrive as packets |
/// | off | on | TCP sends packets (`gso_max_segs` 1), and the receiver's device merges those that come together |
/// | off | off | TCP sends packets, and they arrive as they are |
fn set_offloads(wire: &mut Wire, offloads: Offloads) -> Result<(), TestbedError> {
    let Offloads { segmentation, aggregation } = offloads;
    // QFQ drops what it counts as more than 64 KiB (`QFQ_MAX_LMAX`, net/sched/sch_qfq.c), and a full segment counts with the
    // headers of all its packets. Every point has the same largest segment, so that they can be compared.
    wire.sender_netlink.set_gso_max_size(wire.sender_index, LARGEST_SEGMENT_BYTES)?;
    if !segmentation {
        // Turning TSO and GSO of the device off would not do: TCP has built GSO packets all the
        // same since Linux 4.17, and they would be cut behind the queues.
        wire.sender_netlink.set_gso_max_segments(wire.sender_index, 1)?;
    }
    let switch = |host: &Namespace, index: u32, name: &str, features: &[&str], on: bool| {
        host.run(|| {
            let mut settings = Settings::open().map_err(refused)?;
            features.iter().try_for_each(|feature| {
                settings.set_feature(Device { index, name }, feature, on).map_err(refused)
            })
        })
    };
    if !(segmentation && aggregation) {
        // A veth hands packets to GRO only if the other end cuts none (`veth_skb_is_eligible_for_gro`).
        switch(&wire.sender, wire.sender_index, SENDER_INTERFACE, &TSO, false)?;
    }
    // It merges only when it is told to; segments that come whole need no merging.
    let merges = aggregation && !segmentation;
    switch(&wire.receiver, wire.receiver_index, RECEIVER_INTERFACE, &["rx-gro"], merges)
}

/// `NETIF_F_ALL_TSO`.
const TSO: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
];
