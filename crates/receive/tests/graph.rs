//! Compares the compiled paths with an interpreter of the configured graph, and the queues of a class with
//! those of its flows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod random_nics;

use std::collections::BTreeSet;

use evenkeel_receive::{AddressMatch, ConfiguredGraph, FilterMatch, Packet, PortMatch, QueueId, QueueSet};
use proptest::prelude::*;
use random_nics::Draw;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_packet_reaches_one_queue_and_the_compiled_way_leads_there(seed: u64, filters in 0_usize..24) {
        let mut draw = Draw(seed);
        let model = &random_nics::models()[draw.below(5)];
        let nic = random_nics::configured(&mut draw, model, filters);
        let graph = ConfiguredGraph::of(&nic);
        for _ in 0..40 {
            let packet = random_nics::packet(&mut draw);
            prop_assert_eq!(
                graph.queues_of(&packet),
                [nic.queue_of_packet(&packet)],
                "{:?} on {} with {:#?}", packet, model.name(), nic.filters().collect::<Vec<_>>()
            );
            let flow = random_nics::flow(&mut draw);
            prop_assert_eq!(graph.queues_of(&Packet::of(&flow)), [nic.queue_of(&flow)], "{}", flow);
        }
    }

    #[test]
    fn a_class_reaches_every_queue_that_one_of_its_flows_reaches(seed: u64, filters in 0_usize..24) {
        let mut draw = Draw(seed);
        let model = &random_nics::models()[draw.below(5)];
        let nic = random_nics::configured(&mut draw, model, filters);
        for _ in 0..20 {
            let class = random_nics::class(&mut draw);
            let reached = nic.queues_of(&class);
            for _ in 0..20 {
                let flow = random_nics::flow(&mut draw);
                if class.matches(&flow) {
                    prop_assert!(reached.contains(nic.queue_of(&flow)), "{class}: {flow} in {reached:?}");
                }
            }
        }
    }

    #[test]
    fn without_hashes_a_class_reaches_no_other_queue(seed: u64, filters in 0_usize..24) {
        let mut draw = Draw(seed);
        let without_signatures = ["sfc9020", "ntuple", "xdp-cpumap", "rss-only"];
        let models = random_nics::models();
        let name = draw.one(&without_signatures);
        let model = models.iter().find(|model| model.name() == name).unwrap();
        let mut nic = random_nics::configured(&mut draw, model, filters);
        nic.set_indirection(Vec::new()).unwrap();
        // Leave four bits free, few enough to try all values: two of an address and two of a port.
        let flow = random_nics::flow(&mut draw);
        let free = |address: std::net::IpAddr| {
            let low = u128::MAX << 2;
            AddressMatch::masked(address, low)
        };
        let class = FilterMatch {
            source: Some(free(flow.source)),
            destination_port: Some(PortMatch::masked(flow.destination_port, !0b11)),
            ..FilterMatch::exact(&flow)
        };
        let mut reached = BTreeSet::new();
        for low in 0..4_u8 {
            for port in 0..4_u16 {
                let mut flow = flow;
                flow.source = match flow.source {
                    std::net::IpAddr::V4(address) => {
                        std::net::Ipv4Addr::from_bits(address.to_bits() & !3 | u32::from(low)).into()
                    }
                    std::net::IpAddr::V6(address) => {
                        std::net::Ipv6Addr::from_bits(address.to_bits() & !3 | u128::from(low)).into()
                    }
                };
                flow.destination_port = flow.destination_port & !3 | port;
                reached.insert(nic.queue_of(&flow));
            }
        }
        let claimed: BTreeSet<QueueId> = nic.queues_of(&class).iter().collect();
        prop_assert_eq!(claimed, reached, "{} on {}", class, name);
    }
}

#[test]
fn rss_reaches_the_entries_of_the_free_bits_only() {
    let model = evenkeel_receive::NicModel::built_in("rss-only").unwrap();
    let nic = evenkeel_receive::ConfiguredNic::new(&model, 128).unwrap();
    let mut draw = Draw(1);
    for _ in 0..50 {
        let flow = random_nics::flow(&mut draw);
        // The three free bits select at most eight indirection entries.
        let class = FilterMatch {
            source_port: Some(PortMatch::masked(flow.source_port, !0b111)),
            ..FilterMatch::exact(&flow)
        };
        let flows = (0..8)
            .map(|low| evenkeel_receive::FlowTuple { source_port: flow.source_port & !7 | low, ..flow });
        let reached: QueueSet = flows.map(|flow| nic.queue_of(&flow)).collect();
        assert_eq!(nic.queues_of(&class), reached, "{class}");
        assert!(reached.len() <= 8);
    }
    assert_eq!(nic.queues_of(&FilterMatch::ANY).len(), 128);
}
