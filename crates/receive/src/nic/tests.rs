#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::{AddressMatch, Filter, FilterMatch, FlowTuple, PortMatch, QueueId, Transport};

fn flow(transport: Transport) -> FlowTuple {
    FlowTuple {
        transport,
        source: "10.0.0.1".parse().unwrap(),
        source_port: 1000,
        destination: "10.0.0.2".parse().unwrap(),
        destination_port: 80,
    }
}

fn nic(name: &str, queues: u16) -> ConfiguredNic {
    ConfiguredNic::new(&NicModel::built_in(name).unwrap(), queues).unwrap()
}

fn to_port_80() -> FilterMatch {
    FilterMatch { destination_port: Some(PortMatch::exact(80)), ..FilterMatch::ANY }
}

#[test]
fn the_built_in_models_are_sound() {
    for name in NicModel::built_in_names() {
        let text = NicModel::built_in_text(name).unwrap();
        let model = NicModel::parse(text, name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.name(), name);
        let least = model.queues_least();
        assert!(ConfiguredNic::new(&model, least).is_ok(), "{name}");
    }
}

#[test]
fn the_higher_priority_decides_and_of_equal_ones_the_first() {
    let mut nic = nic("i82599", 8);
    let table = nic.model().table("five-tuple").unwrap();
    let flow = flow(Transport::Udp);
    let from = FilterMatch { source: Some(AddressMatch::exact(flow.source)), ..FilterMatch::ANY };
    let first = nic.insert(Filter::new(table, 2, from, QueueId(1))).unwrap();
    let second = nic.insert(Filter::new(table, 2, to_port_80(), QueueId(2))).unwrap();
    assert_eq!((first.location, second.location), (0, 1));
    assert_eq!(nic.queue_of(&flow), QueueId(1));
    let third = nic.insert(Filter::new(table, 7, FilterMatch::exact(&flow), QueueId(3))).unwrap();
    assert_eq!(nic.queue_of(&flow), QueueId(3));
    assert_eq!(nic.deciding_filter(&flow), Some(third));
    nic.remove(first);
    nic.remove(third);
    assert_eq!(nic.queue_of(&flow), QueueId(2));
    // The lowest free location is used first.
    let again = nic.insert(Filter::new(table, 2, FilterMatch::exact(&flow), QueueId(4))).unwrap();
    assert_eq!((again.location, nic.queue_of(&flow)), (0, QueueId(4)));
    for priority in [0, 8] {
        let wrong = nic.insert(Filter::new(table, priority, to_port_80(), QueueId(1)));
        assert_eq!(wrong, Err(InsertError::Priority { found: priority, least: 1, most: 7 }));
    }
}

#[test]
fn the_lowest_location_decides() {
    let mut nic = nic("ntuple", 8);
    let table = nic.model().table("rules").unwrap();
    let flow = flow(Transport::Tcp);
    let any = AddressMatch::prefix(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    let matches = FilterMatch { transport: Some(Transport::Tcp), source: Some(any), ..to_port_80() };
    nic.insert(Filter::new(table, 9, FilterMatch::exact(&flow), QueueId(1))).unwrap();
    nic.insert(Filter::new(table, 3, matches, QueueId(2))).unwrap();
    assert_eq!(nic.queue_of(&flow), QueueId(2));
    assert_eq!(nic.free_location(table), Some(0));
    assert_eq!(nic.insert(Filter::new(table, 3, matches, QueueId(2))), Err(InsertError::Taken));
    let beyond = nic.insert(Filter::new(table, 1024, matches, QueueId(2)));
    assert_eq!(beyond, Err(InsertError::Priority { found: 1024, least: 0, most: 1023 }));
}

#[test]
fn the_more_specific_filter_wins_and_both_kinds_share_their_rows() {
    let model = NicModel::built_in("sfc9020").unwrap().with_table_size("wildcard", 2).unwrap();
    let mut nic = ConfiguredNic::new(&model, 8).unwrap();
    let (full, wildcard) = (model.table("full").unwrap(), model.table("wildcard").unwrap());
    let flow = flow(Transport::Udp);
    let to = FilterMatch::to(flow.transport, flow.destination, flow.destination_port);
    nic.insert(Filter::new(wildcard, 0, to, QueueId(1))).unwrap();
    assert_eq!(nic.queue_of(&flow), QueueId(1));
    nic.insert(Filter::new(full, 0, FilterMatch::exact(&flow), QueueId(2))).unwrap();
    assert_eq!(nic.queue_of(&flow), QueueId(2));
    assert_eq!((nic.free(full), nic.free(wildcard)), (0, 0));
    let other = FlowTuple { source_port: 1, ..flow };
    assert_eq!(
        nic.insert(Filter::new(full, 0, FilterMatch::exact(&other), QueueId(2))),
        Err(InsertError::Full)
    );
}

#[test]
fn a_filter_can_leave_the_queue_to_rss() {
    let mut nic = nic("sfc9020", 8);
    let wildcard = nic.model().table("wildcard").unwrap();
    nic.set_indirection((0..128).map(|entry| QueueId(entry % 2)).collect()).unwrap();
    let flows: Vec<FlowTuple> =
        (0..64).map(|port| FlowTuple { source_port: port, ..flow(Transport::Tcp) }).collect();
    let plain: Vec<QueueId> = flows.iter().map(|flow| nic.queue_of(flow)).collect();
    let to = FilterMatch::to(Transport::Tcp, flows[0].destination, 80);
    nic.insert(Filter { spread: true, ..Filter::new(wildcard, 0, to, QueueId(4)) }).unwrap();
    for (flow, plain) in flows.iter().zip(plain) {
        assert_eq!(nic.queue_of(flow), QueueId(plain.0 + 4));
    }
    assert_eq!(nic.queues_of(&to).iter().collect::<Vec<_>>(), [QueueId(4), QueueId(5)]);
}

#[test]
fn one_mask_holds_for_all_filters_of_the_flow_director() {
    let mut nic = nic("i82599", 8);
    let table = nic.model().table("flow-director").unwrap();
    let flow = flow(Transport::Tcp);
    let exact = nic.insert(Filter::new(table, 0, FilterMatch::exact(&flow), QueueId(1))).unwrap();
    let to = FilterMatch::to(flow.transport, flow.destination, 80);
    assert_eq!(nic.insert(Filter::new(table, 0, to, QueueId(1))), Err(InsertError::OtherMask));
    let twice = Filter::new(table, 0, FilterMatch::exact(&flow), QueueId(2));
    assert_eq!(nic.insert(twice), Err(InsertError::Taken));
    // The mask may change if the table has no other filter.
    nic.replace(exact, Filter::new(table, 0, to, QueueId(2))).unwrap();
    assert_eq!(nic.queue_of(&FlowTuple { source_port: 9, ..flow }), QueueId(2));
}

#[test]
fn the_flow_director_has_one_mode_at_a_time_and_signatures_collide() {
    let mut nic = nic("i82599", 8);
    let perfect = nic.model().table("flow-director").unwrap();
    let signatures = nic.model().table("flow-director-signature").unwrap();
    let flow = flow(Transport::Tcp);
    let id = nic.insert(Filter::new(signatures, 0, FilterMatch::exact(&flow), QueueId(5))).unwrap();
    assert_eq!(
        nic.insert(Filter::new(perfect, 0, FilterMatch::exact(&flow), QueueId(1))),
        Err(InsertError::OtherMode)
    );
    // The hash XORs the two addresses, so the reverse direction with the same ports has the same signature.
    let back = FlowTuple { source: flow.destination, destination: flow.source, ..flow };
    assert_eq!((nic.queue_of(&flow), nic.queue_of(&back)), (QueueId(5), QueueId(5)));
    let other = FlowTuple { source_port: 1001, ..flow };
    assert_eq!(nic.deciding_filter(&other), None);
    nic.remove(id);
    assert!(nic.insert(Filter::new(perfect, 0, FilterMatch::exact(&flow), QueueId(1))).is_ok());
}

#[test]
fn a_table_holds_only_what_comes_to_it() {
    let nic = nic("i82599", 8);
    let five_tuple = nic.model().table("five-tuple").unwrap();
    let to = |address: &str| FilterMatch::to(Transport::Tcp, address.parse().unwrap(), 80);
    assert!(nic.supports(five_tuple, &to("10.0.0.1")));
    assert!(!nic.supports(five_tuple, &to("fd00::1")), "it knows IPv4 only");
    let ether_type = nic.model().table("ether-type").unwrap();
    let of_type = |number| FilterMatch { ether_type: Some(number), ..FilterMatch::ANY };
    assert!(nic.supports(ether_type, &of_type(0x8906)));
    assert!(!nic.supports(ether_type, &of_type(0x0800)), "it is not for IP");
    let mixed =
        FilterMatch { source: Some(AddressMatch::exact("fd00::1".parse().unwrap())), ..to("10.0.0.1") };
    assert!(!nic.supports(five_tuple, &mixed));
}

#[test]
fn queues_are_those_that_the_hardware_can_name() {
    let mut nic = nic("i82599", 64);
    assert_eq!(nic.rss_queues(), 16);
    assert!(nic.indirection().iter().all(|queue| queue.0 < 16));
    assert_eq!(nic.redirect(0, QueueId(16)), Err(InsertError::Indirection));
    assert!(nic.set_indirection(vec![QueueId(0); 64]).is_err());
    let pools = nic.model().table("mac-pools").unwrap();
    let mac = FilterMatch { mac_destination: Some([2, 0, 0, 0, 0, 1]), ..FilterMatch::ANY };
    assert_eq!(nic.insert(Filter::new(pools, 0, mac, QueueId(3))), Err(InsertError::NoQueue));
    assert!(nic.insert(Filter::new(pools, 0, mac, QueueId(4))).is_ok());
    assert!(ConfiguredNic::new(nic.model(), 129).is_err() && ConfiguredNic::new(nic.model(), 0).is_err());
}
