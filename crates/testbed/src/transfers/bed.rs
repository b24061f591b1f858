//! The test bed of transfers: two hosts, a shaped link, and rings that other processors read.

use evenkeel_datapath::{CpuCounters, INDIRECTION_LENGTH, ReceiveSteering, SteerTarget, SteeringOptions};
use evenkeel_host::Host;
use evenkeel_model::scenario::TransferKnobs;
use evenkeel_model::units::{BitRate, ByteSize};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::Handle;

use super::place::Places;
use crate::error::TestbedError;
use crate::kernel::KernelFeatures;
use crate::link_watch::LinkWatch;
use crate::namespace::Namespace;
use crate::nic;
use crate::repeat::{protocol_counter, retransmitted_segments};
use crate::wire::{self, RECEIVER_INTERFACE, SENDER_INTERFACE, Wire};

/// A running test bed. Dropping the test bed removes all its objects.
pub(super) struct TransferBed {
    pub(super) sender: Namespace,
    pub(super) receiver: Namespace,
    pub(super) watch: LinkWatch,
    rings: ReceiveSteering,
    netlink: Netlink,
    receiver_netlink: Netlink,
    index: u32,
}

/// Numbers of packets by place since the test bed was built. Drops at a socket are counted in buffers; GRO
/// may have merged several packets in a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packets {
    /// Packets that the sender's device sent.
    pub(super) sent: u64,
    /// Packets that the sender's device dropped. They are not in `sent` (`veth_get_stats64`,
    /// drivers/net/veth.c).
    pub(super) unsent: u64,
    /// Packets that the receiver's device dropped before the ring.
    pub(super) unreceived: u64,
    /// Packets that the program sent to a ring, including the packets that a full ring dropped.
    pub(super) enqueued: u64,
    /// Packets that the ring's thread took.
    pub(super) taken: u64,
    /// Packets that went to no ring: neither TCP nor UDP, fragments, source-routed packets, and packets that
    /// the program could not send to a ring.
    pub(super) other: u64,
    pub(super) socket_backlog: u64,
    pub(super) pruned: u64,
    pub(super) retransmitted: u64,
}

impl Packets {
    /// Returns the packets that are in a ring, or that a full ring dropped.
    pub(super) fn missing(&self) -> u64 {
        self.enqueued.saturating_sub(self.taken)
    }

    /// Returns the packets that a device dropped.
    pub(super) fn nic(&self) -> u64 {
        self.unsent + self.unreceived
    }

    /// Returns the packets whose place is unknown.
    pub(super) fn unexplained(&self) -> u64 {
        self.sent.abs_diff(self.unreceived + self.other + self.enqueued)
    }
}

impl TransferBed {
    pub(super) fn build(
        knobs: &TransferKnobs,
        rate: BitRate,
        places: &Places,
        features: KernelFeatures,
    ) -> Result<Self, TestbedError> {
        let mtu = u32::try_from(knobs.mtu.bytes()).unwrap_or(u32::MAX);
        let mut wire = Wire::lay(1, mtu, &features.steady_tcp())?;
        // Without checksum offload, the kernel also disables TSO.
        let off = ["tx-checksum-ip-generic"];
        wire::set_features(&wire.sender, wire.sender_index, SENDER_INTERFACE, &off, false)?;
        let gro = ["rx-gro"];
        wire::set_features(&wire.receiver, wire.receiver_index, RECEIVER_INTERFACE, &gro, knobs.gro)?;
        if !knobs.tso {
            wire.sender_netlink.set_gso_max_segments(wire.sender_index, 1)?;
        }
        let limits = [
            (&wire.receiver, "net/ipv4/tcp_rmem", 131_072, knobs.receive_buffer),
            (&wire.sender, "net/ipv4/tcp_wmem", 16_384, knobs.send_buffer),
        ];
        for (host, sysctl, first, last) in limits {
            let first = ByteSize::from_bytes(first).min(last);
            host.set_sysctl(sysctl, &format!("4096 {} {}", first.bytes(), last.bytes()))?;
        }
        let Wire { sender, receiver, sender_netlink, mut receiver_netlink, sender_index, receiver_index } =
            wire;
        // Load the program before the first packet, so that it counts all packets.
        let cpus: Vec<u32> = places.rings.iter().map(|cpu| *cpu as u32).collect();
        let mut rings = ReceiveSteering::load(&SteeringOptions {
            ring_packets: knobs.ring,
            cpus: cpus.clone(),
            ..SteeringOptions::default()
        })?;
        let table: [SteerTarget; INDIRECTION_LENGTH] =
            std::array::from_fn(|entry| SteerTarget::Cpu(cpus[entry % cpus.len().max(1)]));
        rings.set_rules(&[], &table)?;
        receiver.run(|| Ok(rings.attach(receiver_index.cast_signed())?))?;
        let mut netlink = sender_netlink;
        netlink.set_up(sender_index)?;
        receiver_netlink.set_up(receiver_index)?;
        // Process acknowledgements on the sender's processor. Otherwise they would take time of the processor
        // that sends them.
        wire::steer_receives(&sender, SENDER_INTERFACE, 1, &[places.sender])?;
        netlink.replace_qdisc(sender_index, Handle::ROOT, Handle::new(1, 0), &nic::shaper(rate))?;
        let watch = LinkWatch::new(&sender, &receiver)?;
        Ok(Self { sender, receiver, watch, rings, netlink, receiver_netlink, index: sender_index })
    }

    /// Returns the ids of the threads that read the rings.
    pub(super) fn ring_threads(&self, places: &Places) -> Result<Vec<u32>, TestbedError> {
        let host = Host::live();
        let names = places.rings.iter().map(|cpu| self.rings.thread_name(*cpu as u32));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let is_one =
            |id: &u32| host.read(&format!("/proc/{id}/comm")).is_ok_and(|name| names.contains(&name));
        Ok(host.process_numbers()?.into_iter().filter(is_one).collect())
    }

    pub(super) fn packets(&mut self) -> Result<Packets, TestbedError> {
        let of = |netlink: &mut Netlink, interface: &str, counters: &[&str]| {
            let links = netlink.link_statistics()?;
            let link = links.iter().find(|link| link.name == interface);
            let values = link.iter().flat_map(|link| &link.counters);
            Ok::<u64, TestbedError>(
                values.filter(|(name, _)| counters.contains(name)).map(|(_, value)| value).sum(),
            )
        };
        let sums = self.rings.counters().into_iter();
        let sum = |value: fn(&CpuCounters) -> u64| sums.clone().map(|cpu| value(&cpu)).sum();
        let extended = self.receiver.read_proc_net("netstat")?;
        let tcp =
            |names: &[&str]| names.iter().map(|name| protocol_counter(&extended, "TcpExt: ", name)).sum();
        Ok(Packets {
            sent: of(&mut self.netlink, SENDER_INTERFACE, &["tx_packets"])?,
            unsent: of(&mut self.netlink, SENDER_INTERFACE, &["tx_dropped"])?,
            unreceived: of(&mut self.receiver_netlink, RECEIVER_INTERFACE, &["rx_dropped"])?,
            enqueued: sum(|cpu| cpu.enqueued),
            taken: sum(|cpu| cpu.dequeued),
            other: sum(|cpu| cpu.other + cpu.refused) + self.rings.unmapped(),
            socket_backlog: tcp(&["TCPBacklogDrop"]),
            // `tcp_data_queue`, `tcp_data_queue_ofo`, `tcp_prune_ofo_queue` (net/ipv4/tcp_input.c)
            pruned: tcp(&["TCPRcvQDrop", "TCPOFODrop", "OfoPruned"]),
            retransmitted: retransmitted_segments(&self.sender.read_proc_net("snmp")?),
        })
    }
}

impl Drop for TransferBed {
    fn drop(&mut self) {
        // Delete the link now, because the kernel may clean up the namespaces later.
        let _ = self.netlink.delete_link(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_a_device_did_not_send_are_explained() {
        let packets = Packets {
            sent: 100,
            unsent: 7,
            unreceived: 5,
            enqueued: 90,
            taken: 80,
            other: 5,
            ..Packets::default()
        };
        assert_eq!((packets.nic(), packets.missing(), packets.unexplained()), (12, 10, 0));
        assert_eq!(Packets { enqueued: 88, ..packets }.unexplained(), 2);
    }
}
