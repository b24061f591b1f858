//! Expectations about metrics that other scenarios of the same kind can measure, but the tested scenario
//! cannot.

use super::*;

const TITLE: &str = "schema = 1\nname = \"valid\"\ntitle = \"Metrics to miss\"\n";
const LINK: &str = "[link]\nrate = \"10gbit\"\nqueues = 4\n";
const MEASURE: &str = "[measure]\nduration = \"1s\"\n";

fn transmit(workload: &str, measure: &str) -> String {
    let variants = "variant-table = \"titan\"\nvariants = [\"cmax\", \"dqa\"]\n";
    format!("{TITLE}{variants}{LINK}{workload}\n{measure}\n")
}

fn bulk(workload: &str) -> String {
    transmit(&format!("[workload]\n{workload}"), "[measure]\nwindows = { 1ms = \"1ms\" }")
}

fn fetch(clients: &str) -> String {
    transmit(&format!("[workload]\nkind = \"fetch\"\n{clients}"), MEASURE)
}

fn shuffle() -> String {
    let rest = "[hosts]\ncount = 3\nsending-cores = 4\n[switch]\nbuffer = \"12MB\"";
    transmit("[workload]\nkind = \"shuffle\"\nbytes-per-flow = \"1MB\"", rest)
}

fn tenants(workload: &str, axes: &str) -> String {
    let windows = if workload.contains("line = true") { "windows = { 100ms = \"100ms\" }" } else { "" };
    let workload = format!("[workload]\nkind = \"tenants\"\n{workload}\n");
    format!("{TITLE}{LINK}{workload}[[sweep]]\nqdiscs = [\"drr\"]\n{axes}\n{MEASURE}{windows}\n")
}

fn requests() -> String {
    let clients = |more: &str| format!("[[workload.clients]]\ncount = 2\n{more}\n");
    let clients = clients("name = \"a\"") + &clients("name = \"b\"\nvariants = [\"rss\"]");
    let variants = "[variant.even]\nsummary = \"e\"\nnic = \"sfc9020\"\npolicy = \"balance\"\n\
                    isolated-queues = 1\nmessage = \"64B\"\nreaction = \"1ms\"\n\
                    [variant.rss]\nbase = \"even\"\nsummary = \"r\"\npolicy = \"none\"\n";
    let workload = "[workload]\nkind = \"requests\"\nserver = \"echo\"\nclient-hosts = 2\n";
    format!("{TITLE}variants = [\"even\", \"rss\"]\n{LINK}{workload}{clients}{MEASURE}{variants}")
}

fn transfers() -> String {
    let variants = "variant-table = \"tcp100g\"\nvariants = [\"tuned\"]\n";
    let link = "[link]\nrate = \"100gbit\"\n[workload]\nkind = \"transfers\"\n";
    let own = "[variant.switched]\nbase = \"tuned\"\nsummary = \"s\"\nswitch-buffer = \"16MiB\"\n";
    format!("{TITLE}{variants}{link}{MEASURE}{own}")
}

/// Returns the error of a scenario with one expectation at its end, if any.
fn error(scenario: &str, variant: &str, metric: &str, more: &str) -> Option<ScenarioError> {
    let text = format!(
        "{scenario}\n[[expect]]\nvariant = \"{variant}\"\nmetric = \"{metric}\"\nstatistic = \"mean\"\n\
         at-least = 0\n{more}"
    );
    parse(&text, "x.toml", variant_tables()).err()
}

#[test]
fn expectations_are_about_metrics_that_the_variant_can_have() {
    let line = "line = true\n[[workload.bulk]]\nlength = \"64KiB\"";
    let no_line = "line = false\n[[workload.bulk]]\nlength = \"64KiB\"";
    let probes = "line = true\n[[workload.bulk]]\nlength = \"64KiB\"\n[workload.probes]\nmessage = \"64B\"";
    let counted = format!("{probes}\ncount = 1");
    let clients = "clients = [0, 1, 2]";
    let both = "clients = [2]\nprobes = [0, 1]";
    let few = "[[workload.clients]]\ncount = 2\nsizes = [\"2KiB\"]\ntimed = false";
    // The scenario, a variant that lacks the metric, the metric, and a part of the error; last, a variant
    // that has the metric, if the scenario has one.
    let cases = [
        (bulk("flows = 1"), "dqa", "nfm.1ms", "fairness needs at least two flows", ""),
        (bulk("flows = 1"), "dqa", "nfm_max.1ms", "fairness needs at least two flows", ""),
        (bulk("flows = 4"), "dqa", "latency_us.p99", "no latency is measured", ""),
        (fetch(few), "dqa", "fct_s.mean", "no group of clients has a measured completion time", ""),
        (shuffle(), "dqa", "jain_bytes", "this workload does not measure", ""),
        (requests(), "even", "requests_per_s.b.total", "the clients 'b' do not run in even", "rss"),
        (requests(), "even", "response_us.b.p99", "the clients 'b' do not run in even", "rss"),
        (transfers(), "tuned", "drops.switch", "tuned has no switch", "switched"),
        (tenants(line, "clients = [2]"), "drr clients=2", "latency_us.mean", "no latency is measured", ""),
        (
            tenants(no_line, "clients = [2]"),
            "drr clients=2",
            "lost_capacity",
            "no line limits the senders",
            "",
        ),
        (
            tenants(no_line, "clients = [2]"),
            "drr clients=2",
            "idle_while_backlogged",
            "no line limits the senders",
            "",
        ),
        (tenants(line, "clients = [1, 2]"), "drr clients=1", "nfm.100ms", "a single bulk", "drr clients=2"),
        (tenants(&counted, clients), "drr clients=0", "throughput_bps", "no bulk sender", "drr clients=1"),
        (tenants(&counted, clients), "drr clients=0", "jain_bytes", "no bulk sender", "drr clients=1"),
        (
            tenants(&counted, clients),
            "drr clients=2",
            "slo_violation_share",
            "no service level objective",
            "",
        ),
        (
            tenants(probes, both),
            "drr clients=2 probes=0",
            "transactions_per_s",
            "has no probe",
            "drr clients=2 probes=1",
        ),
    ];
    for (scenario, variant, metric, told, other) in &cases {
        let found = error(scenario, variant, metric, "").unwrap_or_else(|| panic!("{variant} {metric}"));
        assert_eq!((found.kind, found.key.as_str()), (ScenarioErrorKind::BadValue, "expect[0].metric"));
        assert!(found.problem.contains(told) && !found.advice.is_empty(), "{found}");
        if other.is_empty() {
            continue;
        }
        assert_eq!(error(scenario, other, metric, ""), None);
        // The variant of `relative-to` must also have the metric.
        let found = error(scenario, other, metric, &format!("relative-to = \"{variant}\"\n")).unwrap();
        assert_eq!(found.key, "expect[0].relative-to");
    }
}
