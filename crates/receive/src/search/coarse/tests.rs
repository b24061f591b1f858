//! Tests of the filters for classes: the first class that matches a new flow decides its queue.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::flows::ObservedFlow;
use crate::policy::{PolicyFile, Queues};
use crate::{ConfiguredNic, FlowTuple, NicModel};

const MODELS: [&str; 4] = ["i82599", "sfc9020", "ntuple", "xdp-cpumap"];
const QUEUES: u16 = 12;

fn solved(model: &str, contexts: u16, text: &str, flows: &[FlowTuple]) -> Search {
    let mut nic = ConfiguredNic::new(&NicModel::built_in(model).unwrap(), QUEUES).unwrap();
    nic.allow_contexts(contexts);
    let policy = PolicyFile::parse(text, "p.toml").unwrap().bind(&Arc::new(Queues::new(QUEUES))).unwrap();
    let mut search = Search::new(nic, policy).unwrap();
    let flows: Vec<ObservedFlow> = flows.iter().copied().map(ObservedFlow::new).collect();
    search.solve(&flows).unwrap();
    search
}

/// Returns the class filters in the order of precedence within each table: table, match, queue.
fn class_filters(search: &Search) -> Vec<(String, String, u16)> {
    let tables = search.nic().model().table_ids();
    let of_table = |(id, table): (TableId, &crate::FilterTable)| {
        let of_class = search.nic().filters_by_rank(id).filter(|(id, _)| search.owner(*id) == Owner::Class);
        of_class
            .map(|(_, filter)| (table.name.clone(), filter.matches.to_string(), filter.queue.0))
            .collect::<Vec<_>>()
    };
    tables.flat_map(of_table).collect()
}

fn flow(
    source: &str,
    source_port: u16,
    destination: &str,
    destination_port: u16,
    transport: Transport,
) -> FlowTuple {
    let [source, destination]: [IpAddr; 2] = [source, destination].map(|address| address.parse().unwrap());
    FlowTuple { transport, source, source_port, destination, destination_port }
}

/// Returns a packet for each combination of the values that the classes distinguish, and some further
/// packets.
fn packets() -> Vec<FlowTuple> {
    let ends = [
        ("10.0.0.1", "10.1.0.1"),
        ("10.0.0.1", "10.1.0.2"),
        ("10.0.0.2", "10.1.0.1"),
        ("10.0.0.9", "10.1.0.2"),
        ("10.2.0.1", "10.1.0.1"),
        ("fd00::1", "fd01::1"),
        ("fd00:1::1", "fd01::1"),
    ];
    let mut packets = Vec::new();
    for (source, destination) in ends {
        for source_port in [1000, 2000] {
            for destination_port in [50, 80, 81, 443] {
                for transport in [Transport::Tcp, Transport::Udp] {
                    packets.push(flow(source, source_port, destination, destination_port, transport));
                }
            }
        }
    }
    packets
}

fn key(name: &'static str, values: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::option::of(prop::sample::select(values))
        .prop_map(move |value| value.map_or(String::new(), |value| format!("{name} = {value}\n")))
}

fn class() -> impl Strategy<Value = String> {
    (
        key("protocol", &["'tcp'", "'udp'"]),
        key("source", &["'10.0.0.1'", "'10.0.0.0/30'", "'10.0.0.0/24'", "'fd00::/32'"]),
        key("source-port", &["1000"]),
        key("destination-port", &["80", "443", "'80-81'", "'50-80'"]),
        prop::bool::weighted(0.1),
        prop::sample::select(vec!["queues = 1", "queues = 2", "pin = [0]", ""]),
    )
        .prop_map(|(protocol, source, source_port, destination_port, is_process, queues)| {
            let process = if is_process { "process = 'nginx'\n" } else { "" };
            [protocol, source, source_port, destination_port, format!("{process}{queues}\n")].concat()
        })
}

fn text(classes: &[String]) -> String {
    let numbered = (0..).zip(classes);
    numbered.map(|(number, class): (u8, _)| format!("[[class]]\nname = 'c{number}'\n{class}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_class_filter_decides_only_for_flows_whose_first_class_is_its_own(
        model in prop::sample::select(MODELS.to_vec()),
        contexts in prop::sample::select(vec![0, 1, 15]),
        classes in prop::collection::vec(class(), 2..5),
        listed in prop::collection::vec(prop::sample::select(packets()), 0..12),
    ) {
        let text = text(&classes);
        let search = solved(model, contexts, &text, &listed);
        for tuple in packets() {
            let decides = search.nic().deciding_filter(&tuple);
            if decides.is_none_or(|id| search.owner(id) != Owner::Class) {
                continue;
            }
            let (flow, queue) = (search.policy.classify(&ObservedFlow::new(tuple)), search.nic().queue_of(&tuple));
            let class = search.policy.class_name(flow.class);
            prop_assert!(
                search.policy.allows(&flow, queue),
                "{}: {:?} of class {} is on queue {}\n{}{:?}", model, tuple, class, queue, text, class_filters(&search)
            );
        }
    }

    #[test]
    fn the_first_listed_match_is_the_class_of_a_flow(classes in prop::collection::vec(class(), 2..5)) {
        let text = text(&classes);
        let search = solved("rss-only", 0, &text, &[]);
        let listed = search.policy.classes_as_matches();
        for tuple in packets() {
            if let Some((class, _, _)) = listed.iter().find(|(_, matches, _)| matches.matches(&tuple)) {
                prop_assert_eq!(*class, search.policy.classify(&ObservedFlow::new(tuple)).class, "{}", text);
            }
        }
    }
}

#[test]
fn an_earlier_class_precedes_a_wider_one() {
    let text = "[[class]]\nname = 'a'\nsource = '10.0.0.1'\nprotocol = 'tcp'\nqueues = 1\n\
                [[class]]\nname = 'b'\nsource = '10.0.0.0/24'\nprotocol = 'tcp'\nqueues = 1\n";
    let listed = [2, 3].map(|host| flow(&format!("10.0.0.{host}"), 4000, "10.1.0.1", 443, Transport::Tcp));
    for (model, table) in [("ntuple", "rules"), ("xdp-cpumap", "classes")] {
        let search = solved(model, 0, text, &listed);
        let filter = |matches: &str, queue| (table.to_owned(), format!("protocol tcp src {matches}"), queue);
        // The class that is first in the file takes the last queue.
        assert_eq!(class_filters(&search), [filter("10.0.0.1", 11), filter("10.0.0.0/24", 10)], "{model}");
        let last = search.nic().model().tables()[search.nic().model().table(table).unwrap().index()].capacity;
        let places: Vec<usize> = search.nic().filters().map(|(id, _)| id.location as usize).collect();
        assert_eq!(places, [last - 2, last - 1], "{model}: filters of single flows go before them");
    }
}

#[test]
fn a_class_that_gets_no_flow_has_no_filter() {
    let text = "[[class]]\nname = 'a'\nsource = '10.0.0.0/24'\nqueues = 1\n\
                [[class]]\nname = 'b'\nsource = '10.0.0.1'\nqueues = 1\n";
    let listed = [1, 2].map(|host| flow(&format!("10.0.0.{host}"), 4000, "10.1.0.1", 443, Transport::Tcp));
    for model in MODELS {
        let search = solved(model, 0, text, &listed);
        let narrow = class_filters(&search).into_iter().find(|(_, matches, _)| matches.ends_with("10.0.0.1"));
        assert_eq!(narrow, None, "{model}");
    }
}

/// A class without queues of its own takes its flows out of a wider class.
#[test]
fn a_class_on_the_default_queues_has_a_filter_before_a_wider_class() {
    let text = "[[class]]\nname = 'a'\nsource = '10.0.0.1'\nprotocol = 'tcp'\n\
                [[class]]\nname = 'b'\nsource = '10.0.0.0/24'\nprotocol = 'tcp'\nqueues = 1\n";
    for model in ["ntuple", "xdp-cpumap"] {
        let search = solved(model, 0, text, &[]);
        let matches: Vec<String> =
            class_filters(&search).into_iter().map(|(_, matches, _)| matches).collect();
        assert_eq!(matches, ["protocol tcp src 10.0.0.1", "protocol tcp src 10.0.0.0/24"], "{model}");
    }
}
