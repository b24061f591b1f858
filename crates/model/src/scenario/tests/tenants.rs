//! Scenarios of tenants: the points of their sweeps, and broken texts with their positions.

use super::broken::{Case, assert_refused};
use super::*;
use crate::qdisc::{Catalogue, Classifier, FilterRules};

const VALID: &str = r#"schema = 1
name = "valid"
title = "Tenants to break"

[link]
rate = "1gbit"
queues = 1

[workload]
kind = "tenants"
line = true
offloads = { aggregation = false }

[[workload.bulk]]
share = "50%"

[[workload.bulk]]
share = "50%"
length = "8KiB"
on = "50ms"
off = "20ms"

[workload.probes]
message = "64B"
slo = "1ms"

[[sweep]]
qdiscs = ["pfifo", "htb"]
clients = [0, 5]
probes = [1]
length = ["1KiB", "4KiB"]
quick = { qdiscs = ["htb"], clients = [5] }

[[sweep]]
qdiscs = ["htb"]
clients = [5]
probes = [1, 2]
length = ["4KiB"]
full-only = true

[measure]
duration = "4s"
repeats = 7
windows = { 100ms = "100ms" }
quick = { duration = "1s", repeats = 3 }

[[plot]]
name = "latency"
title = "Latency"
metric = "latency_us.p99"
across = "clients"
panels = "length"

[[expect]]
variant = "htb clients=5 probes=1 length=4KiB"
metric = "lost_capacity"
statistic = "mean"
at-most = 0.1
"#;

#[rustfmt::skip]
const TENANTS: &[Case] = &[
    ("line = true\n", "", (9, 1), ": workload.line: missing; write line = true if the link is the bottleneck, otherwise"),
    ("line = true", "lines = true", (11, 1), ": workload.lines: unknown key; did you mean 'line'? known keys: kind, line, congestion-control, offloads, pinned, bulk, probes"),
    ("line = true", "line = true\npinned = 1", (12, 10), ": workload.pinned: expected true or false, found an integer"),
    ("aggregation = false", "gro = false", (12, 14), ": workload.offloads.gro: unknown key; known keys: segmentation, aggregation"),
    ("share = \"50%\"", "share = \"60%\"", (14, 1), ": workload.bulk: the sum of the shares is 110%; change the shares so that the sum is 100%"),
    ("share = \"50%\"", "share = 50", (15, 9), ": workload.bulk[0].share: expected a share such as \"50%\", found an integer"),
    ("share = \"50%\"", "share = \"+50%\"", (15, 9), ": workload.bulk[0].share: '+50%' is not a share; write a whole number of per cent"),
    ("share = \"50%\"", "share = \"50%\"\ncount = 3", (15, 1), ": workload.bulk[0].share: a group cannot have both 'count' and 'share'; remove one of the two"),
    ("off = \"20ms\"\n", "", (20, 1), ": workload.bulk[1].on: 'on' and 'off' need each other"),
    ("message = \"64B\"", "message = \"13B\"", (24, 11), ": workload.probes.message: 13B is out of range"),
    ("message = \"64B\"\n", "", (26, 1), ": sweep[0].message: missing; the workload does not set this value, so the sweep must, for example message = [\"64B\"]"),
    ("\"htb\"]\nclients", "\"hbt\"]\nclients", (28, 20), ": sweep[0].qdiscs[1]: unknown qdisc setup 'hbt'; did you mean 'htb'?"),
    ("\"htb\"]\nclients", "\"pfifo\"]\nclients", (28, 20), ": sweep[0].qdiscs[1]: 'pfifo' appears twice; name it once"),
    ("clients = [0, 5]", "clients = [0, 1001]", (29, 15), ": sweep[0].clients[1]: 1001 is out of range"),
    ("clients = [0, 5]", "clients = []", (29, 11), ": sweep[0].clients: the list has 0 values; write 1 to 128 values"),
    ("clients = [0, 5]\n", "", (27, 1), ": sweep[0].clients: missing; the workload does not set this value, so the sweep must, for example clients = [1, 8, 48]"),
    ("\"4KiB\"]\nquick", "\"1024B\"]\nquick", (31, 19), ": sweep[0].length[1]: this value appears above already"),
    ("clients = [5] }", "clients = [6] }", (32, 39), ": sweep[0].quick.clients: 6 is not among the values of the sweep"),
    ("quick = { qdiscs = [\"htb\"]", "quick = { qdiscs = [\"htb\", \"fq\"]", (32, 20), ": sweep[0].quick.qdiscs: fq is not among the values of the sweep; use values of the sweep, or add this value to the sweep"),
    ("quick = { qdiscs", "quick = { qdisc", (32, 11), ": sweep[0].quick.qdisc: unknown key; did you mean 'qdiscs'?"),
    ("length = [\"4KiB\"]\nfull", "length = [\"4KiB\"]\nrules = [1]\nfull", (34, 1), ": sweep[1].classifier: missing; name the classifier of the rules"),
    ("length = [\"4KiB\"]\nfull", "length = [\"4KiB\"]\nclassifier = [\"u32\"]\nrules = [1]\nfull", (34, 1), ": sweep[1]: the axes differ from the axes of the first sweep"),
    ("full-only = true", "full-only = true\nquick = {}", (40, 1), ": sweep[1].quick: a sweep with full-only has no quick run"),
    ("full-only = true", "message = [\"64B\"]", (39, 1), ": sweep[1].message: no part of the workload depends on this axis"),
    ("duration = \"4s\"\n", "", (41, 1), ": measure.duration: missing; for example duration = \"4s\""),
    ("duration = \"1s\"", "duration = \"50ms\"", (44, 11), ": measure.windows: the window '100ms' does not fit into a repeat"),
    ("metric = \"latency_us.p99\"", "metric = \"latency_us.p98\"", (50, 10), ": plot[0].metric: unknown metric 'latency_us.p98'"),
    ("clients = [0, 5]\nprobes = [1]", "clients = [0, 5]\nprobes = [0, 1]", (27, 1), ": sweep: pfifo clients=0 probes=0 length=1KiB has no traffic; give every point a client or a probe"),
    ("panels = \"length\"", "panels = \"clients\"", (52, 10), ": plot[0].panels: 'across' has the same axis; name another axis, or remove the key"),
    ("across = \"clients\"", "across = \"client\"", (51, 10), ": plot[0].across: unknown axis 'client'; did you mean 'clients'?"),
    ("variant = \"htb clients=5", "variant = \"htb clients=6", (55, 11), ": expect[0].variant: unknown variant 'htb clients=6 probes=1 length=4KiB'"),
    ("line = true", "line = false", (44, 1), ": measure.windows: fairness is measured only with workload.line = true; remove the windows, or set workload.line = true"),
    ("share = \"50%\"\n\n", "share = \"5%\"\n\n[[workload.bulk]]\nshare = \"45%\"\nlength = \"1KiB\"\n\n", (33, 15), ": sweep[0].clients[1]: with 5 clients, the share of workload.bulk[0] is less than one client; write more clients, or change the shares"),
    ("[measure]", "variants = [\"htb\"]\n[measure]", (41, 1), ": sweep[1].variants: unknown key"),
    ("title = \"Tenants", "variants = [\"htb\"]\ntitle = \"Tenants", (3, 1), ": variants: only with workload.kind = bulk, shuffle, fetch, requests or transfers; known keys: schema, name, title, description, qdisc-files, link, measure, workload, sweep, plot, expect"),
];

#[test]
fn every_broken_scenario_of_tenants_is_refused_at_its_place() {
    assert_refused(VALID, TENANTS.iter());
}

#[test]
fn metrics_of_probes_need_probes() {
    let text = VALID.replace("[workload.probes]\nmessage = \"64B\"\nslo = \"1ms\"\n", "");
    let text = text.replace("probes = [1]\n", "").replace("probes = [1, 2]\n", "").replace(" probes=1", "");
    let text = text.replace("[0, 5]", "[2, 5]");
    for key in ["latency_us.p99", "slo_violation_share", "transactions_per_s"] {
        for (own, place) in [("jain_bytes", "plot[0].metric"), ("lost_capacity", "expect[0].metric")] {
            let text = text.replace("latency_us.p99", "jain_bytes");
            let error = parse(&text.replace(own, key), "x.toml", variant_tables()).unwrap_err().to_string();
            let told = format!("{place}: no latency is measured; add a [workload.probes] table");
            assert!(error.contains(&told), "{error}");
        }
    }
}

fn names(variants: &[Variant]) -> Vec<&str> {
    variants.iter().map(|variant| variant.name.as_str()).collect()
}

#[test]
fn points_are_every_combination_of_every_sweep() {
    let scenario = parse_text(VALID).unwrap();
    assert_eq!(
        names(&scenario.variants),
        ["htb clients=5 probes=1 length=1KiB", "htb clients=5 probes=1 length=4KiB"]
    );
    assert_eq!(
        names(&scenario.further_variants),
        [
            "pfifo clients=0 probes=1 length=1KiB",
            "pfifo clients=0 probes=1 length=4KiB",
            "pfifo clients=5 probes=1 length=1KiB",
            "pfifo clients=5 probes=1 length=4KiB",
            "htb clients=0 probes=1 length=1KiB",
            "htb clients=0 probes=1 length=4KiB",
            "htb clients=5 probes=2 length=4KiB",
        ]
    );
    assert_eq!(scenario.groups.keys().collect::<Vec<_>>(), ["full", "htb", "pfifo"]);
    assert_eq!((scenario.groups["full"].len(), scenario.groups["pfifo"].len()), (9, 4));
    let tenants = scenario.workload.tenants().unwrap();
    assert!(tenants.line);
    let axis = |name: &str| tenants.axes.iter().find(|axis| axis.name == name).unwrap();
    assert_eq!(
        (axis("qdisc").values.join(","), axis("qdisc").quick.join(",")),
        ("pfifo,htb".into(), "htb".into())
    );
    assert_eq!((axis("probes").values.join(","), axis("probes").quick.join(",")), ("1,2".into(), "1".into()));
    let seconds = Nanoseconds::from_secs;
    assert_eq!(tenants.quick, Effort { warmup: seconds(1), duration: seconds(1), repeats: 3 });
    assert_eq!((scenario.measure.duration(), scenario.measure.repeats), (seconds(4), 7));
    assert_eq!(tenants.plots[0].panels.as_deref(), Some("length"));

    let point = scenario.variant("htb clients=5 probes=2 length=4KiB").unwrap().tenants().unwrap();
    let kib = ByteSize::from_kib;
    let on_off = OnOff { on: Nanoseconds::from_millis(50), off: Nanoseconds::from_millis(20) };
    // Half of five is rounded only once, so the sum is exact.
    assert_eq!(
        point.bulk,
        [
            BulkTenants { count: 3, length: kib(4), on_off: None },
            BulkTenants { count: 2, length: kib(8), on_off: Some(on_off) }
        ]
    );
    let slo = Some(Nanoseconds::from_millis(1));
    assert_eq!(point.probes, Some(Probes { count: 2, message: ByteSize::from_bytes(64), slo }));
    assert_eq!(point.offloads, Offloads { segmentation: true, aggregation: false });
    assert_eq!((point.coordinate("qdisc"), point.coordinate("length")), (Some("htb"), Some("4KiB")));
    assert!(!point.pinned && point.processors_of(3, 2).is_none());
    let pinned = TenantPoint { pinned: true, ..point.clone() };
    let places = |processors| [0, 1, 2, 3].map(|flow| pinned.processors_of(flow, processors).unwrap());
    assert_eq!(places(1), [(0, 0); 4]);
    assert_eq!(places(2), [(0, 1), (1, 0), (0, 1), (1, 0)]);
    assert_eq!(places(4), [(0, 2), (1, 3), (2, 0), (3, 1)]);
    let none = scenario.variant("htb clients=0 probes=1 length=4KiB").unwrap().tenants().unwrap();
    assert!(none.bulk.is_empty() && none.bulk_flows() == 0);
}

#[test]
fn setups_of_a_users_take_part_in_every_sweep() {
    let catalogue = Catalogue::bundled();
    let setups = Setups { catalogue: Some(&catalogue), further: &["tbf".to_owned(), "htb".to_owned()] };
    let scenario = parse_with(VALID, "x.toml", variant_tables(), setups).unwrap();
    assert!(names(&scenario.variants).contains(&"tbf clients=5 probes=1 length=4KiB"));
    assert_eq!((scenario.groups["tbf"].len(), scenario.groups["htb"].len()), (5, 5));
    let files = qdisc_files(&VALID.replace("[link]", "qdisc-files = [\"mine.toml\"]\n[link]"));
    assert_eq!(files, ["mine.toml"]);
    assert!(qdisc_files("schema = ").is_empty());
}

#[test]
fn filter_rules_are_part_of_a_point() {
    let scenario = parse_bundled("tc-filter-cost");
    let point = scenario.variant("htb classifier=u32 rules=1000").unwrap().tenants().unwrap();
    assert_eq!(point.filter_rules, Some(FilterRules { classifier: Classifier::U32, rules: 1000 }));
}

#[test]
fn filter_rules_need_a_qdisc_with_classes() {
    let (_, text) = bundled().iter().find(|(name, _)| *name == "tc-filter-cost").unwrap();
    let with = |setup: &str| text.replace("[\"htb\", \"drr\"]", &format!("[\"htb\", \"{setup}\"]"));
    let refusal = |setup| parse(&with(setup), "own.toml", variant_tables()).unwrap_err().to_string();
    assert_eq!(
        refusal("pfifo"),
        "own.toml:24:18: sweep[0].qdiscs[1]: the qdisc setup pfifo takes no filter rules: its root, pfifo, has no \
         classes; use a classful qdisc, or rules = [0]"
    );
    for setup in ["fq", "fq_codel", "tbf"] {
        assert!(refusal(setup).contains("takes no filter rules"), "{setup}");
    }
    parse(&with("prio"), "own.toml", variant_tables()).unwrap();
    let none =
        with("pfifo").replace("[1, 3, 10, 30, 100, 300, 1000]", "[0]").replace(", rules = [1, 1000]", "");
    parse(&none, "own.toml", variant_tables()).unwrap();

    // A setup of the user has every point of a sweep. `tree` refuses points with rules for a setup without
    // classes.
    let further = ["pfifo".to_owned()];
    let setups = Setups { catalogue: None, further: &further };
    let scenario = parse_with(text, "own.toml", variant_tables(), setups).unwrap();
    let variant = scenario.variant("pfifo classifier=u32 rules=1").unwrap();
    let refused = variant.tenants().unwrap().tree(&scenario.link, scenario.link.rate).unwrap_err();
    assert!(refused.starts_with("the qdisc setup pfifo takes no filter rules"), "{refused}");
}

#[test]
fn the_bundled_scenarios_are_those_of_the_study() {
    let tenants: Vec<Scenario> = bundled()
        .iter()
        .map(|(name, _)| parse_bundled(name))
        .filter(|s| s.workload.tenants().is_some())
        .collect();
    let names: Vec<&str> = tenants.iter().map(|scenario| scenario.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "tc-packet-length",
            "tc-clients",
            "tc-latency",
            "tc-priority",
            "tc-fairness",
            "tc-fairness-mixed",
            "tc-work-conservation",
            "tc-filter-cost"
        ]
    );
    for scenario in &tenants {
        assert!(!scenario.variants.is_empty() && !scenario.further_variants.is_empty(), "{}", scenario.name);
        assert!(!scenario.workload.tenants().unwrap().plots.is_empty());
    }
    // Half of the flows write 4 KB, a quarter 1 KB, a quarter 8 KB (section 6.3).
    let mixed = parse_bundled("tc-fairness-mixed");
    let point = mixed.variant("pfifo clients=48").unwrap().tenants().unwrap();
    let counts: Vec<(u32, u64)> =
        point.bulk.iter().map(|tenants| (tenants.count, tenants.length.bytes())).collect();
    assert_eq!(counts, [(24, 4096), (12, 1024), (12, 8192)]);
}
