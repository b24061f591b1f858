//! The locations of all packets, to check that every lost packet is counted.

use super::Simulation;

/// The packets of all flows by location, and the bytes of TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Packets that TCP has sent, packets in the queues of ports, and packets that reached a receiving
    /// NIC.
    pub sent: u64,
    pub in_ports: u64,
    pub on_wire: u64,
    /// Packets in flight to a ring or in it, packets in a poll or held by GRO, and packets in a backlog.
    pub in_ring: u64,
    pub in_napi: u64,
    pub in_backlog: u64,
    pub received: u64,
    /// Dropped packets of [`super::Drops`] before the wire, and after the wire.
    pub dropped_before: u64,
    pub dropped: u64,
    /// Bytes that reached TCP, the duplicates among these bytes, and the bytes in TCP's out-of-order
    /// queue.
    pub received_bytes: u64,
    pub duplicate_bytes: u64,
    pub out_of_order_bytes: u64,
    /// Bytes in the receive queue, and bytes that the application has read.
    pub readable_bytes: u64,
    pub read_bytes: u64,
}

impl Simulation {
    #[must_use]
    pub fn account(&self) -> Account {
        let drops = self.snapshot().drops;
        let mut account = Account {
            on_wire: self.packets,
            dropped_before: drops.switch,
            dropped: drops.total() - drops.switch,
            ..Account::default()
        };
        for port in &self.ports {
            account.in_ports += port.queue.iter().map(|segment| u64::from(segment.packets())).sum::<u64>();
        }
        for queue in &self.queues {
            let (ring, napi) = queue.packets();
            account.in_ring += ring;
            account.in_napi += napi;
        }
        for flow in &self.flows {
            let socket = &flow.socket;
            let releasing: u64 = flow.releasing.iter().map(|buffer| u64::from(buffer.packets)).sum();
            account.sent += flow.sender.counters().packets;
            account.in_backlog += releasing + socket.backlog_packets();
            account.received += socket.received_packets;
            account.received_bytes += socket.received_bytes;
            account.duplicate_bytes += socket.receiver.duplicate_bytes();
            account.out_of_order_bytes += socket.receiver.out_of_order_bytes();
            account.readable_bytes += socket.readable_bytes();
            account.read_bytes += socket.copied;
        }
        account
    }
}
