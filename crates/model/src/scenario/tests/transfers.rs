//! Scenarios with transfers: the bundled ones, and broken texts with their positions.

use super::broken::{Case, assert_refused};
use super::*;

const VALID_TRANSFERS: &str = r#"schema = 1
name = "valid"
title = "Transfers to break"
variant-table = "tcp100g"
variants = ["own", "tuned"]

[link]
rate = "100gbit"

[workload]
kind = "transfers"

[measure]
duration = "4s"

[variant.own]
base = "tuned"
summary = "Two hosts."
flows = 4
senders = 2
ports = ["100gbit", "40gbit"]
switch-buffer = "16MiB"
interrupts = "apart"
"#;

#[rustfmt::skip]
const TRANSFERS: &[Case] = &[
    ("rate = \"100gbit\"", "rate = \"100gbit\"\nmtu = \"9000B\"", (9, 1), ": link.mtu: only with workload.kind = bulk, shuffle, fetch, requests or tenants;"),
    ("kind = \"transfers\"", "kind = \"transfers\"\nflows = 3", (12, 1), ": workload.flows: only with workload.kind = bulk;"),
    ("\"tcp100g\"", "\"titan\"", (4, 17), ": variant-table: the table 'titan' has settings of another kind of workload"),
    ("flows = 4", "flows = 1", (19, 9), ": variant.own.flows: one side has 2 hosts, but the variant has only 1 flows; use at least one flow for each host"),
    ("[\"100gbit\", \"40gbit\"]", "[]", (21, 9), ": variant.own.ports: 0 ports; state 1 to 8 rates"),
    ("\"40gbit\"", "40", (21, 21), ": variant.own.ports[1]: a bare number; units are needed"),
    ("\"16MiB\"", "\"deep\"", (22, 17), ": variant.own.switch-buffer: 'deep' is not a value of this key; write \"off\" or a value such as \"16MiB\""),
    ("\"apart\"", "\"elsewhere\"", (23, 14), ": variant.own.interrupts: 'elsewhere' is not a value of this key;"),
    ("flows = 4", "flows = 4\nstart-interval = \"2s\"", (20, 18), ": variant.own.start-interval: the last of 4 flows would start after 6s, and a repeat with its warm-up takes 5s;"),
    ("switch-buffer = \"16MiB\"\n", "", (21, 9), ": variant.own.ports: the ports in use carry 280gbit, and without a switch link.rate must be the same, not 100gbit;"),
    ("rate = \"100gbit\"", "rate = \"40gbit\"", (5, 20), ": variants[1]: variant 'tuned' does not fit the link: the ports in use carry 100gbit"),
    ("kind = \"transfers\"", "kind = \"transfers\"\ncongestion-control = \"vegas\"", (12, 22), ": workload.congestion-control: 'vegas' is not a value of this key; known: cubic, reno, bbr, bbr-4.15, bbr3, dctcp, lola, lola-no-loss"),
    ("flows = 4", "flows = 4\ncongestion-control = \"bbr9\"", (20, 22), ": variant.own.congestion-control: 'bbr9' is not a value of this key; did you mean 'bbr'? known: cubic, reno, bbr, bbr-4.15, bbr3, dctcp, lola, lola-no-loss"),
    ("flows = 4", "flows = 4\ncongestion-control = []", (20, 22), ": variant.own.congestion-control: an empty list; name at least one"),
    ("flows = 4", "flows = 4\ncongestion-control = 3", (20, 22), ": variant.own.congestion-control: "),
    ("flows = 4", "flows = 2\ncongestion-control = [\"cubic\", \"lola\", \"bbr\"]", (20, 22), ": variant.own.congestion-control: 2 flows cannot use 3 congestion controls; use at least one flow for each"),
    ("flows = 4", "flows = 4\ncongestion-control = [\"cubic\", \"vegas\"]", (20, 32), ": variant.own.congestion-control[1]: 'vegas' is not a value"),
    ("flows = 4", "flows = 4\necn-threshold = \"32MiB\"", (20, 17), ": variant.own.ecn-threshold: the switch drops packets from 16MiB on, and would never mark; state a switch-buffer above"),
    ("flows = 4", "flows = 4\nreverse-delay = \"1s\"", (20, 17), ": variant.own.reverse-delay: 1s is out of range"),
    ("flows = 4", "flows = 4\ntcp-series = 1", (20, 14), ": variant.own.tcp-series: "),
    ("duration = \"4s\"", "windows = { 1s = \"1s\" }", (14, 1), ": measure.windows: only with workload.kind = bulk or tenants;"),
];

#[test]
fn every_broken_scenario_of_transfers_is_refused_at_its_place() {
    let scenario = parse_text(VALID_TRANSFERS).unwrap();
    let knobs = scenario.variant("own").unwrap().transfers().unwrap();
    assert_eq!((knobs.flows, knobs.senders, knobs.receivers, knobs.ring), (4, 2, 1, 8192));
    let settings = knobs.settings();
    assert!(settings.contains(&("ports", "100gbit+40gbit".to_owned())), "{settings:?}");
    assert!(settings.contains(&("switch-buffer", "16MiB".to_owned())), "{settings:?}");
    assert_refused(VALID_TRANSFERS, TRANSFERS.iter());
}

#[test]
fn no_rate_is_advised_that_a_link_cannot_have() {
    let text = VALID_TRANSFERS.replace("switch-buffer = \"16MiB\"\n", "");
    let advice = |text: &str| parse_text(text).unwrap_err().advice;
    assert_eq!(advice(&text), "state link.rate = \"280gbit\", other ports, or a switch-buffer");
    let fast = text.replace("flows = 4\nsenders = 2", "flows = 64\nsenders = 64");
    let told = advice(&fast.replace("[\"100gbit\", \"40gbit\"]", "[\"100gbit\"]"));
    assert!(told.starts_with("link.rate is at most 1.6tbit: use fewer senders"), "{told}");
}

#[test]
fn knobs_newer_than_records_are_written_if_set() {
    let newer = ["reverse-delay", "congestion-control", "ecn-threshold", "tcp-series"];
    let written = |text: &str| {
        let scenario = parse_text(text).unwrap();
        let settings = scenario.variant("own").unwrap().transfers().unwrap().settings();
        settings.into_iter().filter(|(key, _)| newer.contains(key)).collect::<Vec<_>>()
    };
    assert_eq!(written(VALID_TRANSFERS), []);
    let set = "flows = 4\nreverse-delay = \"20ms\"\ncongestion-control = [\"lola\", \"bbr\"]\necn-threshold = \"1MiB\"\ntcp-series = true";
    let values = ["20ms", "lola+bbr", "1MiB", "true"].map(str::to_owned);
    let expected: Vec<_> = newer.into_iter().zip(values).collect();
    assert_eq!(written(&VALID_TRANSFERS.replace("flows = 4", set)), expected);
}

/// The parser refuses a metric that the workload does not measure, and lists the metrics that it
/// measures.
#[test]
fn expectations_are_about_metrics_that_the_workload_has() {
    let expect = |text: &str, variant: &str, metric: &str| {
        let table = format!(
            "\n[[expect]]\nvariant = \"{variant}\"\nmetric = \"{metric}\"\nstatistic = \"mean\"\nat-least = 0\n"
        );
        parse_text(&format!("{text}{table}")).map_err(|error| error.to_string())
    };
    for metric in ["cpu_share.copy", "drops.ring", "retransmission_events_per_s", "jain_bytes", "retransmits"]
    {
        expect(VALID_TRANSFERS, "own", metric).unwrap();
    }
    for metric in ["fct_s.p50", "out_of_order", "qdisc.drops", "cores.busy", "response_us.all.p50"] {
        let error = expect(VALID_TRANSFERS, "own", metric).unwrap_err();
        let problem = format!(
            ": expect[0].metric: this workload does not measure '{metric}'; it has cpu_pct, cpu_share,"
        );
        assert!(error.contains(&problem) && error.contains("retransmission_events_per_s"), "{error}");
    }
    let misspelt = expect(VALID_TRANSFERS, "own", "drops.rings").unwrap_err();
    assert!(misspelt.contains("unknown metric 'drops.rings'; did you mean 'drops.ring'?"), "{misspelt}");
    let text = |name: &str| bundled().iter().find(|(known, _)| *known == name).unwrap().1;
    for (scenario, variant, metric) in [
        ("titan-6-flows", "dqa", "fct_s.p50"),
        ("titan-6-flows", "dqa", "drops.ring"),
        ("shuffle-6", "dqa", "requests_per_s.all.total"),
        ("memcached-hol", "dqa", "jain_bytes"),
        ("dragonet-echo", "balance", "retransmits"),
        ("dragonet-echo", "balance", "fct_s.p50"),
        ("tc-latency", "htb probes=1 message=64B", "fct_s.p50"),
    ] {
        let error = expect(text(scenario), variant, metric).unwrap_err();
        assert!(error.contains("this workload does not measure"), "{scenario}: {error}");
    }
}

/// For each line of Table I, one variant adds the line to the defaults, and one variant removes the
/// line from the tuned host. No other setting differs.
#[test]
fn the_tuning_scenario_changes_one_line_at_a_time() {
    let scenario = parse_bundled("tcp100g-tuning");
    let settings = |name: &str| scenario.variant(name).unwrap().settings();
    let differing = |one: &str, other: &str| {
        let (one, other) = (settings(one), settings(other));
        one.iter().zip(&other).filter(|(one, other)| one != other).map(|(one, _)| one.0).collect::<Vec<_>>()
    };
    const LINES: [(&str, &[&str]); 9] = [
        ("mtu", &["mtu"]),
        ("rx-ring", &["ring"]),
        ("socket-memory", &["receive-buffer", "send-buffer"]),
        ("tcp-memory", &["other-tuning"]),
        ("backlog", &["other-tuning"]),
        ("mtu-probing", &["other-tuning"]),
        ("qdisc", &["pacing"]),
        ("governor", &["highest-clock"]),
        ("irqbalance", &["other-tuning"]),
    ];
    let mut all: Vec<&str> = Vec::new();
    for (line, knobs) in LINES {
        for base in ["default", "tuned"] {
            let name = format!("{base}{}{line}", if base == "default" { '+' } else { '-' });
            assert_eq!(differing(base, &name), knobs, "{name}");
        }
        let lacking = knobs == ["other-tuning"];
        all.extend(knobs.iter().filter(|_| !lacking));
        let added = settings(&format!("default+{line}"));
        let tuned = settings("tuned");
        assert!(lacking || added.iter().all(|one| !knobs.contains(&one.0) || tuned.contains(one)), "{line}");
    }
    let mut changed = differing("default", "tuned");
    changed.sort_unstable();
    all.sort_unstable();
    assert_eq!(all, changed);
}

#[test]
fn variants_have_the_names_that_scripts_rely_on() {
    let names = |scenario: &str| {
        let scenario = parse_bundled(scenario);
        scenario.variants.iter().map(|variant| variant.name.clone()).collect::<Vec<_>>().join(" ")
    };
    for (scenario, expected) in [
        ("tcp100g-ramp", "1-flow 2-flows 3-flows"),
        ("tcp100g-fan", "1-to-1 3-to-1 1-to-3 2-to-2"),
        ("tcp100g-mtu", "mtu-1500 mtu-9000"),
        ("tcp100g-placement", "case-1 case-2 case-3 case-4"),
        ("tcp100g-cores", "distribution-1 distribution-2 distribution-3"),
        ("tcp100g-two-cores", "same apart same-short-ring apart-short-ring"),
        ("tcp100g-cubic", "loss-free lossy lossy-apps lossy-apps-20ms"),
        ("tcp100g-bbr", "lan 20ms lan-4.15 lan-4.15-1-flow lan-4.15-12-flows 20ms-4.15 lan-v3 20ms-v3"),
        ("tcp100g-lola", "lan 20ms 20ms-lossy 20ms-lossy-no-loss"),
        (
            "congestion-coexist",
            "cubic-bbr cubic-bbr3 cubic-lola bbr-lola cubic-dctcp cubic-lola-20ms cubic-bbr-20ms cubic-bbr3-20ms",
        ),
        (
            "congestion-shallow",
            "cubic-0.02 cubic-0.1 cubic-0.5 cubic-2 lola-0.02 lola-0.1 lola-0.5 lola-2 bbr-0.02 bbr-0.1 bbr-0.5 bbr-2 \
             bbr3-0.02 bbr3-0.1 bbr3-0.5 bbr3-2",
        ),
        (
            "host-stack",
            "none tso-gro jumbo tso-gro+jumbo none+arfs tso-gro+arfs jumbo+arfs tso-gro+jumbo+arfs",
        ),
    ] {
        assert_eq!(names(scenario), expected, "{scenario}");
    }
    let lines = "mtu rx-ring socket-memory tcp-memory backlog mtu-probing qdisc governor irqbalance";
    let with =
        |base: &str| lines.split(' ').map(|line| format!("{base}{line}")).collect::<Vec<_>>().join(" ");
    assert_eq!(names("tcp100g-tuning"), format!("default {} tuned {}", with("default+"), with("tuned-")));
}
