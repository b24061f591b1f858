//! The test bed of tenants: two hosts, a link, and a tree of qdiscs.

use evenkeel_datapath::{Meter, MeterOptions};
use evenkeel_model::change::{Channels, Handle};
use evenkeel_model::qdisc::{FilterRules, QdiscTree};
use evenkeel_model::scenario::Offloads;
use evenkeel_netlink::Netlink;
use evenkeel_netlink::qdisc_tree::{QdiscCounters, install, install_rules, qdisc_counters};
use evenkeel_netlink::settings::{Device, Setting, Settings};

use crate::error::TestbedError;
use crate::link_watch::LinkWatch;
use crate::namespace::Namespace;
use crate::wire::{self, RECEIVER_INTERFACE, SENDER_INTERFACE, TSO, Wire, refused, set_features};

/// Size of the largest TCP segment, including headers.
const LARGEST_SEGMENT_BYTES: u32 = 61_440;

#[derive(Clone, Debug)]
pub(super) struct TenantBedOptions {
    pub(super) queues: u32,
    /// Layer-3 MTU, bytes.
    pub(super) mtu: u32,
    pub(super) offloads: Offloads,
    pub(super) sender_sysctls: Vec<(String, String)>,
    pub(super) meter: MeterOptions,
}

/// A running test bed. Dropping the test bed removes all its objects.
pub(super) struct TenantBed {
    pub(super) meter: Meter,
    pub(super) sender: Namespace,
    pub(super) receiver: Namespace,
    netlink: Netlink,
    index: u32,
    /// `Some` while the tree is installed.
    watch: Option<LinkWatch>,
}

impl TenantBed {
    /// Builds the test bed without a tree of qdiscs. Flows then connect faster, and equally fast for
    /// all qdiscs.
    pub(super) fn build(options: &TenantBedOptions) -> Result<Self, TestbedError> {
        // `mq` requires a device that was created with several queues (`netif_is_multiqueue`), even if only
        // one is in use.
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
        Ok(Self { meter, sender, receiver, netlink, index: sender_index, watch: None })
    }

    /// Installs the tree, then the rules. The kernel checks the rules before the filters of the qdisc under
    /// test.
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
        self.watch = Some(LinkWatch::new(&self.sender, &self.receiver)?);
        Ok(())
    }

    /// Returns the change by another program that explains an error. Without a change, returns the
    /// error.
    pub(super) fn explain(&mut self, error: TestbedError) -> TestbedError {
        match &mut self.watch {
            Some(watch) => watch.explain(error),
            None => error,
        }
    }

    /// Deletes the tree with its backlog, because the backlog would delay the end of the flows. Returns
    /// an error if another program has changed the tree.
    pub(super) fn clear(&mut self) -> Result<(), TestbedError> {
        if let Some(mut watch) = self.watch.take() {
            watch.check()?;
        }
        match self.netlink.delete_qdisc(self.index, Handle::ROOT) {
            Err(error) if error.refusal_code() == Some(libc::ENOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    pub(super) fn qdiscs(&mut self) -> Result<Vec<QdiscCounters>, TestbedError> {
        Ok(qdisc_counters(&mut self.netlink, self.index)?)
    }

    /// Returns a netlink socket in the sender's namespace, and the index of the sender's device.
    pub(super) fn asker(&self) -> Result<(Netlink, u32), TestbedError> {
        Ok((self.sender.netlink()?, self.index))
    }
}

impl Drop for TenantBed {
    fn drop(&mut self) {
        // Delete the link now, because the kernel may clean up the namespaces later.
        let _ = self.netlink.delete_link(self.index);
    }
}

fn set_transmit_queues(wire: &Wire, queues: u32) -> Result<(), TestbedError> {
    let device = Device { index: wire.sender_index, name: SENDER_INTERFACE };
    wire.sender.run(|| {
        let mut settings = Settings::open().map_err(refused)?;
        settings.set(device, Setting::Channels(Channels::Tx), queues).map_err(refused)
    })
}

/// Emulates the offloads of two hosts with NICs on a pair of devices without hardware:
///
/// | TSO and GSO at the sender | GRO and LRO at the receiver | emulation |
/// |---|---|---|
/// | on | on | segments arrive whole |
/// | on | off | TSO of the sender's device is off: the kernel splits segments after the qdisc, as a NIC does, and packets arrive |
/// | off | on | TCP sends packets (`gso_max_segs` 1), and the receiver's device merges packets that arrive together |
/// | off | off | TCP sends packets, and packets arrive |
fn set_offloads(wire: &mut Wire, offloads: Offloads) -> Result<(), TestbedError> {
    let Offloads { segmentation, aggregation } = offloads;
    // QFQ drops GSO packets of more than 64 KiB (`QFQ_MAX_LMAX`, net/sched/sch_qfq.c), including the
    // headers of all their segments. Use the same maximum for every qdisc, so that the results are
    // comparable.
    wire.sender_netlink.set_gso_max_size(wire.sender_index, LARGEST_SEGMENT_BYTES)?;
    if !segmentation {
        // Disabling the device's TSO and GSO does not suffice. Since Linux 4.17 TCP always builds GSO
        // packets. The kernel would segment these packets after the queues.
        wire.sender_netlink.set_gso_max_segments(wire.sender_index, 1)?;
    }
    if !(segmentation && aggregation) {
        // A veth passes packets to GRO only if TSO is off on its peer (`veth_skb_is_eligible_for_gro`).
        set_features(&wire.sender, wire.sender_index, SENDER_INTERFACE, &TSO, false)?;
    }
    // GSO segments arrive unsplit and need no GRO.
    let merges = aggregation && !segmentation;
    set_features(&wire.receiver, wire.receiver_index, RECEIVER_INTERFACE, &["rx-gro"], merges)
}
