//! Parses arbitrary input as a model of a NIC and, after a line `---`, as a configuration of the NIC.
//! The parsers must not panic. With an accepted model and configuration, the graph must steer a packet
//! to exactly the queue that the NIC uses.

#![no_main]

use evenkeel_receive::{ConfiguredGraph, Drawing, FilterMatch, FlowTuple, NicModel, Packet, Transport};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (model, configuration) = text.split_once("\n---\n").unwrap_or((text, ""));
    let Ok(model) = NicModel::parse(model, "fuzzed.toml") else { return };
    let _ = Drawing::of_model(&model).to_svg();
    let Ok(nic) = model.configured(configuration, "fuzzed.toml", model.queues()) else { return };
    let graph = ConfiguredGraph::of(&nic);
    for transport in [Transport::Tcp, Transport::Udp] {
        let address = std::net::IpAddr::from([10, 0, 0, 1]);
        let flow = FlowTuple {
            transport,
            source: address,
            source_port: 1,
            destination: address,
            destination_port: 2,
        };
        assert_eq!(graph.queues_of(&Packet::of(&flow)), [nic.queue_of(&flow)]);
        assert!(nic.queues_of(&FilterMatch::ANY).contains(nic.queue_of(&flow)));
    }
});
