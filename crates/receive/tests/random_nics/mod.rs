//! Random NICs, filters, flows and packets, generated from few values so that they interact.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use evenkeel_receive::{
    AddressMatch, ConfiguredNic, ContextId, FieldMatch, Filter, FilterId, FilterMatch, FilterTable,
    FlowTuple, Header, NicModel, Packet, PortMatch, Precedence, QueueId, TableId, Transport,
};

/// A pseudo-random number generator (SplitMix64, Steele et al., OOPSLA 2014).
pub struct Draw(pub u64);

impl Draw {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    pub fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Returns the built-in models with small tables, so that the tables fill up.
pub fn models() -> &'static [NicModel] {
    static MODELS: OnceLock<Vec<NicModel>> = OnceLock::new();
    MODELS.get_or_init(read_models)
}

fn read_models() -> Vec<NicModel> {
    NicModel::built_in_names()
        .map(|name| {
            let model = NicModel::built_in(name).expect(name);
            let tables: Vec<String> = model.tables().iter().map(|table| table.name.clone()).collect();
            tables.iter().fold(model, |model, table| {
                let capacity = model.tables()[model.table(table).unwrap().index()].capacity.min(6);
                model.with_table_size(table, capacity).unwrap()
            })
        })
        .collect()
}

const PORTS: [u16; 5] = [53, 80, 1000, 1001, 1053];
const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0x33, 0x33, 0, 0, 0, 1]];
const ETHER_TYPES: [u16; 3] = [0x0806, 0x8906, 0x0800];
const PORT_MASKS: [u16; 4] = [0xffff, 0xfff0, 0x0003, 0x00ff];

pub fn address(draw: &mut Draw, is_ipv6: bool) -> IpAddr {
    let host = draw.below(4) as u8 + 1;
    if is_ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
    }
}

pub fn flow(draw: &mut Draw) -> FlowTuple {
    let is_ipv6 = draw.chance(3);
    FlowTuple {
        transport: draw.one(&[Transport::Tcp, Transport::Udp]),
        source: address(draw, is_ipv6),
        source_port: draw.one(&PORTS),
        destination: address(draw, is_ipv6),
        destination_port: draw.one(&PORTS),
    }
}

/// Generates a consistent packet: no protocol outside of IP, no ports in a fragment or without a transport
/// protocol.
pub fn packet(draw: &mut Draw) -> Packet {
    let mut packet = Packet::of(&flow(draw));
    packet.header.multicast = draw.chance(4);
    packet.mac_destination = draw.chance(3).then(|| draw.one(&MACS));
    match draw.below(6) {
        0 => {
            let multicast = packet.header.multicast;
            let ether_type = draw.one(&[0x0806, 0x8906, 0x9999]);
            packet = Packet { mac_destination: packet.mac_destination, ..Packet::of_type(ether_type) };
            packet.header.multicast = multicast;
        }
        1 => {
            packet.header.protocol = draw.one(&[1, 47, 132]);
            (packet.source_port, packet.destination_port) = (0, 0);
        }
        2 => {
            packet.header = Header { fragment: true, ..packet.header };
            (packet.source_port, packet.destination_port) = (0, 0);
        }
        3 => packet.header.connection_request = packet.header.protocol == Transport::Tcp.number(),
        _ => {}
    }
    packet
}

fn address_match(draw: &mut Draw, field: FieldMatch, is_ipv6: bool) -> Option<AddressMatch> {
    let address = address(draw, is_ipv6);
    let prefix = if is_ipv6 { [0, 64, 126, 127] } else { [0, 8, 30, 31] };
    match field {
        FieldMatch::Ignored => None,
        FieldMatch::Exact => Some(AddressMatch::exact(address)),
        FieldMatch::Optional => draw.chance(2).then(|| AddressMatch::exact(address)),
        FieldMatch::Prefix => (!draw.chance(3)).then(|| AddressMatch::prefix(address, draw.one(&prefix))),
        FieldMatch::GlobalMask if draw.chance(3) => Some(AddressMatch::exact(address)),
        FieldMatch::Masked | FieldMatch::GlobalMask => {
            let mask = draw.one(&[u128::MAX, 0b1, 0b110, u128::MAX << 2]);
            (!draw.chance(3)).then(|| AddressMatch::masked(address, mask))
        }
    }
}

fn port_match(draw: &mut Draw, field: FieldMatch) -> Option<PortMatch> {
    let port = draw.one(&PORTS);
    match field {
        FieldMatch::Ignored => None,
        FieldMatch::Exact => Some(PortMatch::exact(port)),
        FieldMatch::Optional => draw.chance(2).then(|| PortMatch::exact(port)),
        FieldMatch::GlobalMask if draw.chance(3) => Some(PortMatch::exact(port)),
        _ => (!draw.chance(3)).then(|| PortMatch::masked(port, draw.one(&PORT_MASKS))),
    }
}

fn given<T>(draw: &mut Draw, field: FieldMatch, value: T) -> Option<T> {
    match field {
        FieldMatch::Ignored => None,
        FieldMatch::Exact => Some(value),
        _ => draw.chance(2).then_some(value),
    }
}

/// Generates a match with fields that this table supports. The table can still refuse the match.
pub fn matches_of(draw: &mut Draw, table: &FilterTable) -> FilterMatch {
    let fields = &table.fields;
    let is_ipv6 = draw.chance(4);
    let transport = draw.one(&[Transport::Tcp, Transport::Udp]);
    let (ether_type, mac) = (draw.one(&ETHER_TYPES), draw.one(&MACS));
    let request = draw.chance(2);
    FilterMatch {
        transport: given(draw, fields.transport, transport),
        source: address_match(draw, fields.source, is_ipv6),
        source_port: port_match(draw, fields.source_port),
        destination: address_match(draw, fields.destination, is_ipv6),
        destination_port: port_match(draw, fields.destination_port),
        ether_type: given(draw, fields.ether_type, ether_type),
        mac_destination: given(draw, fields.mac_destination, mac),
        connection_request: given(draw, fields.connection_request, request),
    }
}

/// Generates a filter that the NIC may accept or refuse.
pub fn filter(draw: &mut Draw, nic: &ConfiguredNic) -> Option<Filter> {
    let tables: Vec<TableId> = nic.model().table_ids().map(|(id, _)| id).collect();
    if tables.is_empty() {
        return None;
    }
    let id = draw.one(&tables);
    let table = &nic.model().tables()[id.index()];
    let matches = matches_of(draw, table);
    let multiple = usize::from(table.queue_multiple);
    let queue = draw.below(usize::from(nic.queues()).div_ceil(multiple)) * multiple;
    let priorities = table.priorities();
    let priority = match table.precedence {
        Precedence::Unique => 0,
        _ => priorities.start() + draw.below(1 + (priorities.end() - priorities.start()) as usize) as u32,
    };
    let spread = table.spread && draw.chance(3);
    let contexts = nic.contexts().len();
    let context = (spread && contexts > 0 && draw.chance(2)).then(|| ContextId(draw.below(contexts) as u16));
    Some(Filter { spread, context, ..Filter::new(id, priority, matches, QueueId(queue as u16)) })
}

pub fn installed(draw: &mut Draw, nic: &ConfiguredNic) -> Option<FilterId> {
    let ids: Vec<FilterId> = nic.filters().map(|(id, _)| id).collect();
    (!ids.is_empty()).then(|| draw.one(&ids))
}

/// Generates a valid indirection table. An empty table disables RSS.
pub fn indirection(draw: &mut Draw, nic: &ConfiguredNic) -> Vec<QueueId> {
    let entries = if draw.chance(3) { 0 } else { nic.model().rss().map_or(0, |rss| rss.entries) };
    (0..entries).map(|_| QueueId(draw.below(usize::from(nic.rss_queues())) as u16)).collect()
}

/// Generates a class of flows: a part of a flow's five-tuple.
pub fn class(draw: &mut Draw) -> FilterMatch {
    let flow = flow(draw);
    let is_ipv6 = flow.destination.is_ipv6();
    let masked = FieldMatch::Masked;
    FilterMatch {
        transport: given(draw, FieldMatch::Optional, flow.transport),
        source: address_match(draw, masked, is_ipv6),
        source_port: port_match(draw, masked),
        destination: address_match(draw, masked, is_ipv6),
        destination_port: port_match(draw, masked),
        ..FilterMatch::ANY
    }
}

pub fn configured(draw: &mut Draw, model: &NicModel, filters: usize) -> ConfiguredNic {
    let queues = model.queues_least().max(1) + draw.below(8) as u16;
    let mut nic = ConfiguredNic::new(model, queues.min(model.queues())).expect("a number of queues");
    nic.allow_contexts(2);
    for _ in 0..2 {
        let queues: Vec<QueueId> = (0..=draw.below(3))
            .map(|_| QueueId(draw.below(usize::from(nic.rss_queues().max(1))) as u16))
            .collect();
        // This call fails on a NIC without contexts.
        let _ = nic.add_context(&queues);
    }
    for _ in 0..filters {
        if let Some(filter) = filter(draw, &nic) {
            // The NIC may refuse the filter.
            let _ = nic.insert(filter);
        }
    }
    if draw.chance(2) {
        let indirection = indirection(draw, &nic);
        nic.set_indirection(indirection).expect("an indirection table");
    }
    nic
}
