//! Scenarios with requests: the bundled ones, and broken texts with their positions.

use super::broken::{Case, assert_refused};
use super::*;

const VALID_REQUESTS: &str = r#"schema = 1
name = "valid"
title = "Requests to break"
variants = ["balance", "isolation"]

[link]
rate = "10gbit"
queues = 10

[workload]
kind = "requests"
server = "memcached"
set-percent = 10
client-hosts = 4

[[workload.clients]]
name = "high"
count = 2
flows = 16
high-priority = true

[[workload.clients]]
name = "added"
count = 1
outstanding = 3
from = "1s"
for = "2s"
variants = ["isolation"]

[measure]
duration = "4s"

[variant.balance]
summary = "Even."
nic = "i82599"
policy = "balance"
isolated-queues = 4
message = "1024B"
reaction = "430ms"

[variant.isolation]
base = "balance"
summary = "Apart."
policy = "isolation"

[[expect]]
variant = "isolation"
metric = "response_us.high.p99"
statistic = "mean"
relative-to = "balance"
at-most = 1.0
"#;

#[rustfmt::skip]
const REQUESTS: &[Case] = &[
    ("queues = 10", "queues = 10\nreceive-queues = 4", (9, 1), ": link.receive-queues: only with workload.kind = bulk, shuffle or fetch;"),
    ("server = \"memcached\"\n", "", (10, 1), ": workload.server: missing; for example server = \"echo\""),
    ("\"memcached\"", "\"memcache\"", (12, 10), ": workload.server: 'memcache' is not a value of this key; did you mean 'memcached'? known: echo, memcached"),
    ("\"memcached\"", "\"echo\"", (13, 1), ": workload.set-percent: an echo server stores no values; remove the key"),
    ("set-percent = 10\n", "", (10, 1), ": workload.set-percent: missing; write the share of set requests"),
    ("set-percent = 10", "set-percent = 101", (13, 15), ": workload.set-percent: 101 is out of range; write a value from 0 to 100"),
    ("client-hosts = 4\n", "", (10, 1), ": workload.client-hosts: missing"),
    ("client-hosts = 4", "flows = 4", (14, 1), ": workload.flows: only with workload.kind = bulk; known keys: kind, server, client-hosts, set-percent, clients"),
    ("name = \"high\"\n", "", (16, 1), ": workload.clients[0].name: missing"),
    ("name = \"high\"", "name = \"all\"", (17, 8), ": workload.clients[0].name: this name is reserved for the total of all clients"),
    ("name = \"added\"", "name = \"high\"", (23, 8), ": workload.clients[1].name: 'high' appears above already"),
    ("name = \"high\"", "name = \"a.b\"", (17, 8), ": workload.clients[0].name: 'a.b' cannot be a name"),
    ("count = 2", "count = 90_000\noutstanding = 1", (16, 1), ": workload.clients: the groups have 1440001 flows in total; use at most 100000"),
    ("flows = 16", "flows = 1025", (19, 9), ": workload.clients[0].flows: 1025 is out of range"),
    ("high-priority = true", "high-priority = 1", (20, 17), ": workload.clients[0].high-priority: expected true or false"),
    ("high-priority = true", "priority = 1", (20, 1), ": workload.clients[0].priority: unknown key; known keys: name, count, flows, outstanding, high-priority, from, for, variants"),
    ("from = \"1s\"", "from = 1", (26, 8), ": workload.clients[1].from: a bare number; units are needed"),
    ("from = \"1s\"", "from = \"5s\"", (26, 8), ": workload.clients[1].from: the clients start at 5s, but the measurement ends at 4s; lower 'from', or raise measure.duration"),
    ("from = \"1s\"\nfor = \"2s\"", "from = \"4s\"", (26, 8), ": workload.clients[1].from: the clients start at 4s, but the measurement ends at 4s"),
    ("for = \"2s\"", "for = \"3100ms\"", (27, 7), ": workload.clients[1].for: the clients stop at 4.1s, but the measurement ends at 4s"),
    ("[\"isolation\"]\n\n[measure]", "[\"isolated\"]\n\n[measure]", (28, 13), ": workload.clients[1].variants[0]: unknown variant 'isolated'; known: balance, isolation"),
    ("duration = \"4s\"", "windows = { 1s = \"1s\" }", (31, 1), ": measure.windows: only with workload.kind = bulk or tenants;"),
    ("[link]", "variant-table = \"titan\"\n[link]", (6, 17), ": variant-table: the table 'titan' has settings of another kind of workload; use another table"),
    ("[link]", "[hosts]\nsending-cores = 2\n[link]", (6, 2), ": hosts: only with workload.kind = bulk, shuffle or fetch;"),
    ("nic = \"i82599\"\n", "", (33, 1), ": variant.balance.nic: missing; a variant without a 'base' sets every knob"),
    ("\"i82599\"", "\"i82598\"", (35, 7), ": variant.balance.nic: 'i82598' is not a value of this key; did you mean 'i82599'?"),
    ("policy = \"balance\"", "policy = \"fair\"", (36, 10), ": variant.balance.policy: 'fair' is not a value of this key; known: none, balance, isolation"),
    ("client-hosts = 4", "client-hosts = 4\ntimeout = 30", (15, 11), ": workload.timeout: a bare number; units are needed"),
    ("client-hosts = 4", "client-hosts = 4\ntimeout = \"0s\"", (15, 11), ": workload.timeout: 0ns is out of range"),
    ("\"1024B\"", "\"1024B\"\nring = 0", (39, 8), ": variant.balance.ring: 0 is out of range; write a value from 1 to 65536"),
    ("isolated-queues = 4", "isolated-queues = 10", (37, 19), ": variant.balance.isolated-queues: 10 queues for high priority, and the link has 10"),
    ("\"1024B\"", "\"1301B\"", (38, 11), ": variant.balance.message: a message of 1301B does not fit into one packet; use at most 1300B, or raise link.mtu"),
    ("policy = \"isolation\"", "qdisc = \"pfifo_fast\"", (44, 1), ": variant.isolation.qdisc: unknown key; known keys: base, summary, nic, policy,"),
    ("response_us.high.p99", "response_us.low.p99", (48, 10), ": expect[0].metric: unknown metric 'response_us.low.p99'"),
];

#[test]
fn every_broken_scenario_of_requests_is_refused_at_its_place() {
    let scenario = parse_text(VALID_REQUESTS).unwrap();
    let requests = scenario.workload.requests().unwrap();
    assert_eq!(
        (requests.server, requests.set_percent, requests.client_hosts),
        (ServerKind::Memcached, 10, 4)
    );
    assert_eq!(requests.clients[0].outstanding_in_all(), 32);
    assert_eq!(requests.clients[1].stay, Some(Nanoseconds::from_secs(2)));
    let names = |variant| requests.clients_with(variant).map(|group| group.name.as_str()).collect::<Vec<_>>();
    assert_eq!((names("balance"), names("isolation")), (vec!["high"], vec!["high", "added"]));
    let knobs = scenario.variant("isolation").unwrap().receive().unwrap();
    assert_eq!((&knobs.policy, knobs.message), (&ReceivePolicy::Isolation, ByteSize::from_bytes(1024)));
    assert_eq!(scenario.variant("isolation").unwrap().settings()[1], ("policy", "isolation".to_owned()));
    assert_eq!((requests.timeout, knobs.ring), (Some(Nanoseconds::from_secs(30)), 512));
    assert_refused(VALID_REQUESTS, REQUESTS.iter());
}

#[test]
fn no_mtu_is_advised_that_a_link_cannot_have() {
    let error = parse_text(&VALID_REQUESTS.replace("\"1024B\"", "\"64KiB\"")).unwrap_err().to_string();
    assert!(error.ends_with("a message of 64KiB does not fit into one packet; use at most 1300B"), "{error}");
}

#[test]
fn a_policy_on_one_line_is_a_text_and_no_keyword() {
    let own = |policy: &str| {
        let text = VALID_REQUESTS.replace("policy = \"isolation\"", &format!("policy = {policy}"));
        let scenario = parse_text(&text).unwrap();
        let knobs = scenario.variant("isolation").unwrap().receive().unwrap();
        knobs.policy.own().cloned().unwrap()
    };
    for text in ["policy = \"balance-rate\"", "policy = \"balance\" # n/2"] {
        let policy = own(&format!("'{text}'"));
        assert_eq!(
            (policy.text.as_deref(), policy.origin.as_str()),
            (Some(text), "variant.isolation.policy")
        );
    }
    for path in ["runs=2/own.toml", "x=y.toml", "./own"] {
        let policy = own(&format!("'{path}'"));
        assert_eq!((policy.text, policy.origin.as_str()), (None, path));
    }
}

#[test]
fn a_variant_may_have_a_nic_and_a_policy_of_its_own() {
    let text = VALID_REQUESTS
        .replace("nic = \"i82599\"", "nic = \"models/own.toml\"\nring = 64")
        .replace("policy = \"isolation\"", "policy = '''\npolicy = \"locality\"\n'''")
        .replace("client-hosts = 4", "client-hosts = 4\ntimeout = \"never\"");
    let mut scenario = parse_text(&text).unwrap();
    assert_eq!(scenario.workload.requests().unwrap().timeout, None);
    let knobs = scenario.variant("isolation").unwrap().receive().cloned().unwrap();
    assert_eq!((knobs.nic.to_string().as_str(), knobs.ring), ("models/own.toml", 64));
    assert_eq!(knobs.policy.own().unwrap().text.as_deref(), Some("policy = \"locality\"\n"));
    let supplied: Vec<_> = scenario
        .supplied()
        .map(|(variant, supplied)| {
            supplied.text.get_or_insert_with(|| "schema = 1\n".to_owned());
            (variant.to_owned(), supplied.origin.clone())
        })
        .collect();
    let pair = |variant: &str, origin: &str| (variant.to_owned(), origin.to_owned());
    assert_eq!(
        supplied,
        [
            pair("balance", "models/own.toml"),
            pair("isolation", "models/own.toml"),
            pair("isolation", "variant.isolation.policy"),
        ]
    );
    // Records contain the complete text of the user's files.
    let settings = scenario.variant("isolation").unwrap().settings();
    assert_eq!(settings[0], ("nic", "models/own.toml = \"schema = 1\\n\"".to_owned()));
    assert!(settings[1].1.ends_with("= \"policy = \\\"locality\\\"\\n\""), "{settings:?}");
}

#[test]
fn transmit_scenarios_have_no_receive_knobs() {
    let scenario = parse_bundled("titan-12-flows");
    assert!(scenario.all_variants().all(|variant| variant.receive().is_none()));
    assert!(scenario.workload.requests().is_none());
}

#[test]
fn the_memcached_requests_are_those_of_the_paper() {
    let scenario = parse_bundled("dragonet-memcached");
    let requests = scenario.workload.requests().unwrap();
    let shape: Vec<(&str, u32, u32, bool)> = requests
        .clients
        .iter()
        .map(|group| (group.name.as_str(), group.count, group.flows, group.high_priority))
        .collect();
    assert_eq!(
        shape,
        [
            ("high", 2, 16, true),
            ("best-effort", 18, 16, false),
            ("added-best-effort", 1, 16, false),
            ("added-high", 1, 16, true)
        ]
    );
    let seconds = Nanoseconds::from_secs;
    let times: Vec<_> = requests.clients[2..].iter().map(|group| (group.from, group.stay)).collect();
    assert_eq!(times, [(seconds(10), Some(seconds(52))), (seconds(72), Some(seconds(52)))]);
    assert_eq!((scenario.link.queues, requests.set_percent), (10, 10));
    assert_eq!(scenario.measure.duration(), seconds(134));
    let paper = &scenario.paper.unwrap().variants;
    let ratio = |metric: &str| paper["isolation"][metric] / paper["balance"][metric];
    // The paper states a "27% reduction" of the response time and a "41% improvement" of the request rate.
    assert_eq!((ratio("response_us.high.client_median") * 100.0).floor(), 72.0);
    assert_eq!((ratio("requests_per_s.high.client_median") * 100.0).round(), 141.0);
}

#[test]
fn the_echo_is_that_of_the_paper() {
    let scenario = parse_bundled("dragonet-echo");
    let requests = scenario.workload.requests().unwrap();
    let clients = |variant| requests.clients_with(variant).map(|group| group.count).collect::<Vec<_>>();
    assert_eq!((clients("balance"), clients("isolation-40")), (vec![20], vec![2, 38]));
    assert!(requests.clients.iter().all(|group| (group.flows, group.outstanding) == (1, 16)));
    assert!(scenario.all_variants().all(|variant| requests.clients_with(&variant.name).next().is_some()));
}
