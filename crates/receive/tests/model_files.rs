//! Tests of model files: users can describe their NIC in a file, and each error names its position.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_receive::{
    ConfiguredNic, Filter, FilterMatch, FlowTuple, Header, InsertError, NicModel, QueueId, Transport,
};
use proptest::prelude::*;

/// A fictitious NIC: it tries rules by destination port before exact rules, and has a queue for ARP.
const OWN: &str = r#"schema = 1
name = "own"
title = "An example NIC"
source = "this test"
queues = 8
wire = "kind"

[function.kind]
port.ip = { when = "ether-type = ipv4 or ether-type = ipv6", to = ["is-whole", "is-tcp"] }
port.arp = { when = "ether-type = arp", to = "control" }
port.rest = { to = "default" }

[function.is-whole]
port.yes = { when = "not fragment" }
port.no = { }

[function.is-tcp]
port.yes = { when = "protocol = tcp" }
port.no = { }

[operator.filterable]
all = ["is-whole.yes", "is-tcp.yes"]
true = "ports"

[table.ports]
capacity = 2
match = { dst-port = "masked" }
precedence = "location"
miss = "exact"

[table.exact]
capacity = 4
match = { protocol = "exact", src = "exact", src-port = "exact", dst = "exact", dst-port = "exact" }
precedence = "unique"
miss = []

[operator.rest]
any = ["is-whole.no", "is-tcp.no", "exact.miss"]
true = "rss"

[rss.rss]
entries = 16
queues = 4
miss = "default"

[queue.control]
number = 7

[queue.default]
number = 0
"#;

#[test]
fn a_model_is_added_by_a_file_alone() {
    let model = NicModel::parse(OWN, "own.toml").unwrap();
    assert_eq!((model.name(), model.queues(), model.queues_least()), ("own", 8, 8));
    let arp = Header { ether_type: 0x0806, ..Header::default() };
    assert_eq!(model.way(&arp), (vec![], QueueId(7)));
    let flow = FlowTuple {
        transport: Transport::Tcp,
        source: "10.0.0.1".parse().unwrap(),
        source_port: 1000,
        destination: "10.0.0.2".parse().unwrap(),
        destination_port: 80,
    };
    assert_eq!(model.way(&Header::of(&flow)), (vec!["ports", "exact", "rss"], QueueId(0)));
    let udp = FlowTuple { transport: Transport::Udp, ..flow };
    assert_eq!(model.way(&Header::of(&udp)).0, ["rss"]);

    let mut nic = ConfiguredNic::new(&model, 8).unwrap();
    let (ports, exact) = (model.table("ports").unwrap(), model.table("exact").unwrap());
    nic.insert(Filter::new(exact, 0, FilterMatch::exact(&flow), QueueId(5))).unwrap();
    assert_eq!(nic.queue_of(&flow), QueueId(5));
    let to_80 =
        FilterMatch { destination_port: Some(evenkeel_receive::PortMatch::exact(80)), ..FilterMatch::ANY };
    nic.insert(Filter::new(ports, 1, to_80, QueueId(6))).unwrap();
    assert_eq!(nic.queue_of(&flow), QueueId(6), "the graph puts ports first");
    assert!(nic.queue_of(&udp).0 < 4, "RSS names four queues");
    assert_eq!(nic.insert(Filter::new(exact, 0, to_80, QueueId(1))), Err(InsertError::Unsupported));
}

/// Replaces `from` by `to` in the model. Asserts that the parser refuses the model with this message,
/// at the position of `at`.
fn assert_refused(from: &str, to: &str, at: &str, wanted: &str) {
    assert_eq!(OWN.matches(from).count(), 1, "{from}");
    let text = OWN.replace(from, to);
    assert_eq!(text.matches(at).count(), 1, "{at}");
    let before = &text[..text.find(at).unwrap()];
    let line = before.matches('\n').count() + 1;
    let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1;
    let wanted = format!("own.toml:{line}:{column}: {wanted}");
    let found = NicModel::parse(&text, "own.toml").unwrap_err().to_string();
    assert!(found.starts_with(&wanted), "\nfound:  {found}\nwanted: {wanted}");
}

#[test]
fn edges_lead_somewhere() {
    assert_refused(
        "wire = \"kind\"",
        "wire = \"kid\"",
        "\"kid\"",
        "wire: unknown node 'kid'; did you mean 'kind'?",
    );
    assert_refused(
        "miss = \"exact\"",
        "miss = \"exakt\"",
        "\"exakt\"",
        "table.ports.miss: unknown node 'exakt'; did you mean 'exact'?",
    );
    for (operand, wanted) in [
        ("\"exact.mess\"", "unknown port 'mess'; did you mean 'miss'?"),
        ("\"exact.hit\"", "the port \"hit\" of a table or of RSS leads to a queue"),
        ("\"exact\"]", "'exact' names no port"),
    ] {
        let to = format!("{}]", operand.trim_end_matches(']'));
        assert_refused("\"exact.miss\"]", &to, operand, &format!("operator.rest.any[2]: {wanted}"));
    }
    assert_refused(
        "miss = \"exact\"",
        "miss = \"rest\"",
        "\"rest\"",
        "table.ports.miss: 'rest' is an operator",
    );
}

#[test]
fn every_node_is_led_to_once() {
    assert_refused(
        "to = \"control\"",
        "to = \"default\"",
        "control]",
        "queue.control: nothing leads to this node",
    );
    assert_refused(
        "true = \"rss\"",
        "true = [\"rss\", \"exact\"]",
        "exact]",
        "table.exact: more than one edge leads to this node",
    );
}

#[test]
fn there_is_no_way_round() {
    assert_refused(
        "any = [\"is-whole.no\", \"is-tcp.no\", \"exact.miss\"]\ntrue = \"rss\"",
        "any = [\"loop.yes\", \"is-tcp.no\", \"exact.miss\"]\ntrue = [\"rss\", \"loop\"]\n\n\
         [function.loop]\nport.yes = { when = \"fragment\" }",
        "rest]",
        "operator.rest: these nodes form a loop: rest, loop",
    );
}

#[test]
fn every_packet_ends_in_one_queue() {
    assert_refused(
        "any = [\"is-whole.no\", \"is-tcp.no\", \"exact.miss\"]",
        "any = [\"is-tcp.no\", \"exact.miss\"]",
        "filterable]",
        "operator.filterable: a packet ends at this node, and no queue receives it: ether-type = ipv4 and protocol \
         = tcp and fragment",
    );
    // UDP packets go to the default queue and, through the operator, also to RSS.
    assert_refused(
        "port.no = { }\n\n[operator.filterable]",
        "port.no = { to = \"default\" }\n\n[operator.filterable]",
        "default]",
        "queue.default: a packet that 'rss' has already steered also reaches this node: ether-type = ipv4 and \
         protocol = udp",
    );
    assert_refused(
        "true = \"ports\"",
        "true = [\"ports\", \"default\"]",
        "default]",
        "queue.default: a packet that 'ports' has already steered also reaches this node",
    );
    assert_refused(
        "true = \"ports\"",
        "true = [\"ports\", \"control\"]",
        "default]",
        "queue.default: a packet reaches this queue and another queue",
    );
}

#[test]
fn a_function_enables_one_port() {
    assert_refused(
        "port.yes = { when = \"not fragment\" }\nport.no = { }",
        "port.yes = { when = \"not fragment\" }\nport.no = { when = \"protocol = tcp\" }",
        "is-whole]",
        "function.is-whole: not exactly one port matches this packet: ether-type = ipv4 and protocol = tcp",
    );
    assert_refused(
        "{ when = \"not fragment\" }\n",
        "{ }\n",
        "is-whole]",
        "function.is-whole: more than one port without 'when'",
    );
    assert_refused(
        "\"not fragment\"",
        "\"not fragmented\"",
        "fragmented",
        "function.is-whole.port.yes.when: 'fragmented' is not one of",
    );
}

#[test]
fn tables_are_such_as_can_be() {
    assert_refused(
        "match = { dst-port = \"masked\" }\nprecedence = \"location\"",
        "match = { dst-port = \"masked\" }\nprecedence = \"unique\"",
        "ports]",
        "table.ports: two filters could match the same packet",
    );
    assert_refused("capacity = 2", "capacity = 0", "0\nmatch", "table.ports.capacity: 0 is out of range");
    assert_refused("capacity = 2\n", "", "[table.ports]", "table.ports.capacity: missing");
    assert_refused(
        "capacity = 2\n",
        "rows-of = \"x\"\n",
        "\"x\"\n",
        "table.ports.rows-of: unknown table above this one 'x'; known: none",
    );
    assert_refused("{ dst-port =", "{ dst-prot =", "dst-prot", "table.ports.match.dst-prot: unknown key");
    assert_refused("entries = 16", "entries = 15", "15", "rss.rss.entries: 15 is not a power of two");
    assert_refused("number = 7", "number = 9", "9", "queue.control.number: 9 is out of range");
    assert_refused(
        "schema = 1",
        "schema = 2",
        "2\nname",
        "schema: the file has schema 2, and this evenkeel reads schema 1",
    );
    assert_refused(
        "function.is-tcp]",
        "function.control]",
        "control]\nnumber",
        "queue.control: another node has this name",
    );
}

proptest! {
    /// Checks that a model with added or removed characters is refused or works.
    #[test]
    fn damage_is_refused_or_harmless(cut in 0_usize..1200, length in 0_usize..30, text in "[a-z\"\\[\\]{}=., \n]{0,6}") {
        let (start, end) = (cut.min(OWN.len()), (cut + length).min(OWN.len()));
        let damaged = format!("{}{text}{}", &OWN[..start], &OWN[end..]);
        if let Ok(model) = NicModel::parse(&damaged, "own.toml") {
            prop_assert!(ConfiguredNic::new(&model, model.queues()).is_ok());
        }
    }
}
