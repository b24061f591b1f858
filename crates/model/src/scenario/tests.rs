//! Tests of scenario parsing: bundled scenarios against the documented variant table, broken texts against
//! position and text of the error, and arbitrary text against panics.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod broken;
mod hostile;
mod requests;
mod tenants;
mod transfers;
mod unmeasured;

use super::bundled::{bundled, variant_tables};
use super::*;

/// A small scenario with its own variants; tests modify it to get broken texts.
const VALID: &str = include_str!("tests/valid.toml");

fn parse_bundled(name: &str) -> Scenario {
    let (_, text) = bundled().iter().find(|(known, _)| *known == name).unwrap();
    parse(text, &format!("scenarios/{name}.toml"), variant_tables()).unwrap()
}

fn parse_text(text: &str) -> Result<Scenario, ScenarioError> {
    parse(text, "x.toml", variant_tables())
}

const MAIN: [&str; 9] = [
    "cvanilla",
    "cmax",
    "dqa",
    "dqa+dqwa",
    "dqa+dqwa+dsos",
    "xps:cmax",
    "xps:dqa",
    "xps:dqa+dqwa",
    "xps:dqa+dqwa+dsos",
];

#[test]
fn every_bundled_scenario_is_the_paper_s_set_up() {
    for ((name, _), flows) in bundled().iter().zip([3, 6, 12, 24, 48, 192]) {
        let scenario = parse_bundled(name);
        assert_eq!(scenario.name, *name);
        assert_eq!(*name, format!("titan-{flows}-flows"));
        let ten_gigabit = BitRate::from_bits_per_second(10_000_000_000);
        let mtu = ByteSize::from_bytes(1500);
        assert_eq!(
            scenario.link,
            Link {
                rate: ten_gigabit,
                mtu,
                queues: 8,
                topology: Topology::SoftNic,
                priorities: vec![],
                receive_queues: None
            }
        );
        assert_eq!(scenario.hosts, Hosts { count: 2, sending_cores: 8 });
        let second = Nanoseconds::from_secs(1);
        let latency = LatencyProbe {
            message: ByteSize::from_bytes(64),
            duration: Nanoseconds::from_secs(2),
            priority: 0,
        };
        let workload = Workload {
            kind: WorkloadKind::Bulk,
            flows,
            congestion_control: "cubic".to_owned(),
            priority: 0,
            latency: Some(latency),
        };
        assert_eq!(scenario.workload, workload);
        let windows = vec![
            Window { name: "1ms".to_owned(), length: Nanoseconds::from_millis(1) },
            Window { name: "1s".to_owned(), length: second },
        ];
        assert_eq!(
            scenario.measure,
            Measure { warmup: second, windows, length: None, long_windows: 5, repeats: 5 }
        );
        assert!(scenario.variants.iter().map(|variant| variant.name.as_str()).eq(MAIN));
        assert_eq!(scenario.groups.keys().collect::<Vec<_>>(), ["main"]);
        assert_eq!(scenario.groups["main"], MAIN);
        assert_eq!(scenario.all_variants().count(), 21);
    }
}

#[test]
fn the_shuffles_are_those_of_the_paper() {
    for hosts in [6, 12, 24] {
        let scenario = parse_bundled(&format!("shuffle-{hosts}"));
        assert_eq!(scenario.name, format!("shuffle-{hosts}"));
        assert_eq!(scenario.hosts, Hosts { count: hosts, sending_cores: 20 });
        assert_eq!(scenario.switch, Some(Switch { buffer: ByteSize::from_bytes(12_000_000) }));
        let bytes_per_flow = ByteSize::from_bytes(1_000_000_000);
        assert_eq!(scenario.workload.kind, WorkloadKind::Shuffle { bytes_per_flow });
        assert_eq!(scenario.workload.shuffled_bytes(), Some(bytes_per_flow));
        assert_eq!((scenario.workload.flows, &scenario.workload.latency), (hosts - 1, &None));
        assert_eq!(scenario.measure.windows, []);
        let variants: Vec<&str> = scenario.variants.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(variants, ["cvanilla", "cmax", "dqa", "dqa+dqwa"]);
    }
}

#[test]
fn the_memcached_experiment_is_that_of_the_paper() {
    let scenario = parse_bundled("memcached-hol");
    let kib = |sizes: &[u64]| sizes.iter().map(|size| ByteSize::from_kib(*size)).collect();
    let clients = [
        ClientGroup { count: 6, sizes: kib(&[512]), timed: false, priority: 0 },
        ClientGroup { count: 1, sizes: kib(&[2, 4, 8, 16, 32, 64]), timed: true, priority: 0 },
    ];
    assert_eq!(scenario.workload.clients(), clients);
    assert_eq!((scenario.workload.flows, scenario.hosts.count, scenario.link.queues), (7, 2, 8));
    let variants: Vec<&str> = scenario.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(variants, ["cmax", "dqa", "dqa+dqwa+dsos"]);
    assert_eq!(scenario.measure.windows, []);
    assert_eq!(scenario.measure.length, Some(scenario.measure.duration()));
    assert!(
        scenario.expectations.iter().all(|expectation| expectation.relative_to.as_deref() == Some("cmax"))
    );
}

/// A link with priorities; the bulk flows have the second priority.
const PRIORITIES: &str = "queues = 4\npriorities = [{ queues = 1 }, { queues = 3 }]";

#[test]
fn priorities_divide_the_queues() {
    let text = VALID
        .replace("queues = 4", PRIORITIES)
        .replace("queues = 2\n", "")
        .replace("flows = 12", "flows = 12\npriority = 1");
    let scenario = parse_text(&text).unwrap();
    assert_eq!(scenario.link.priorities, [1, 3]);
    assert_eq!((scenario.workload.priority, scenario.workload.latency.as_ref().unwrap().priority), (1, 0));
    // One queue is too few for the priorities.
    assert!(scenario.variant("single-queue").is_none());
    assert!(scenario.variant("xps:dqa").is_some());
}

#[test]
fn the_paper_s_figures_are_those_of_table_3() {
    let paper = parse_bundled("titan-12-flows").paper.unwrap();
    assert_eq!(paper.source, "Titan (USENIX ATC 2017), Table 3");
    assert!(MAIN.iter().all(|name| paper.variants.contains_key(*name)) && paper.variants.len() == 9);
    let dqa: Vec<_> = paper.variants["dqa"].iter().map(|(key, figure)| (key.as_str(), *figure)).collect();
    let expected = [
        ("cpu_pct", 66.0),
        ("latency_us.mean", 657.0),
        ("nfm.1ms", 1.17),
        ("nfm.1s", 0.78),
        ("throughput_bps", 9.4e9),
    ];
    assert_eq!(dqa, expected);
    let slowest = &parse_bundled("titan-192-flows").paper.unwrap().variants["cvanilla"];
    assert_eq!((slowest["nfm.1ms"], slowest["latency_us.mean"]), (15.0, 3881.0));
    for (name, has_row) in [
        ("titan-3-flows", true),
        ("titan-6-flows", false),
        ("titan-24-flows", false),
        ("titan-48-flows", true),
    ] {
        assert_eq!(parse_bundled(name).paper.is_some(), has_row, "{name}");
    }
}

#[test]
fn expectations_of_the_bundled_scenarios() {
    type Stated = (String, String, String, Option<f64>, Option<f64>);
    let expectations = |name: &str| -> Vec<Stated> {
        let read = |e: Expectation| (e.variant, e.metric, e.statistic.to_string(), e.at_least, e.at_most);
        parse_bundled(name).expectations.into_iter().map(read).collect()
    };
    let long = |variant: &str, statistic: &str, at_least, at_most| {
        (variant.to_owned(), "nfm.1s".to_owned(), statistic.to_owned(), at_least, at_most)
    };
    assert_eq!(expectations("titan-3-flows"), [long("dqa", "mean", None, Some(0.02))]);
    let six = [long("cmax", "mean", Some(0.4), None), long("dqa", "mean", None, Some(0.02))];
    assert_eq!(expectations("titan-6-flows"), six);
    let twelve = [long("dqa", "mean", Some(0.7), Some(0.8)), long("dqa+balance", "mean", None, Some(0.25))];
    assert_eq!(expectations("titan-12-flows"), twelve);
    assert_eq!(expectations("titan-24-flows"), [long("dqa", "mean", None, Some(0.3))]);
    assert_eq!(expectations("titan-48-flows"), [long("dqa", "mean", None, Some(0.3))]);
    assert_eq!(expectations("titan-192-flows"), []);
}

fn cvanilla() -> Knobs {
    Knobs {
        queue_choice: QueueChoice::Hash,
        queues: None,
        xps_pool: None,
        queue_weights: false,
        service_balancing: false,
        segment_size: None,
        transmit_batching: false,
        qdisc: Qdisc::PfifoFast,
        tcp_small_queues: Some(ByteSize::from_kib(256)),
        byte_queue_limit: ByteQueueLimit::Dynamic,
        interrupt_interval: None,
        gso_size: ByteSize::from_kib(64),
        tso: true,
        tso_interleaving: true,
    }
}

#[test]
fn every_variant_of_the_titan_table_has_its_base_and_knobs() {
    let fixed = |kib| ByteQueueLimit::Fixed(ByteSize::from_kib(kib));
    let sfq_prio = Knobs { qdisc: Qdisc::SfqPrio, ..cvanilla() };
    let cmax_slow_irq = Knobs { byte_queue_limit: fixed(256), ..sfq_prio.clone() };
    let cmax = Knobs { interrupt_interval: Some(Nanoseconds::from_micros(50)), ..cmax_slow_irq.clone() };
    let dqa = Knobs { queue_choice: QueueChoice::Dqa, transmit_batching: true, ..cmax.clone() };
    let dqa_dqwa = Knobs { queue_weights: true, ..dqa.clone() };
    let titan = Knobs { segment_size: Some(ByteSize::from_kib(16)), ..dqa_dqwa.clone() };
    let with_xps = |knobs: &Knobs| Knobs { xps_pool: Some(1), ..knobs.clone() };
    let expected = [
        ("cvanilla", None, cvanilla()),
        ("no-tsq", Some("cvanilla"), Knobs { tcp_small_queues: None, ..cvanilla() }),
        ("sfq-prio", Some("cvanilla"), sfq_prio.clone()),
        ("no-bql", Some("sfq-prio"), Knobs { byte_queue_limit: ByteQueueLimit::Off, ..sfq_prio.clone() }),
        ("cmax-slow-irq", Some("sfq-prio"), cmax_slow_irq),
        ("cmax", Some("cmax-slow-irq"), cmax.clone()),
        ("bql-64k", Some("cmax"), Knobs { byte_queue_limit: fixed(64), ..cmax.clone() }),
        ("no-tso", Some("cmax"), Knobs { tso: false, ..cmax.clone() }),
        ("gso-16k", Some("cmax"), Knobs { gso_size: ByteSize::from_kib(16), ..cmax.clone() }),
        ("single-queue", Some("cmax"), Knobs { queues: Some(1), ..cmax.clone() }),
        ("hash+dqwa", Some("cmax"), Knobs { queue_weights: true, ..cmax.clone() }),
        ("dqa", Some("cmax"), dqa.clone()),
        ("dqa+balance", Some("dqa"), Knobs { service_balancing: true, ..dqa.clone() }),
        ("dqa+dqwa", Some("cmax"), dqa_dqwa.clone()),
        ("dqa+dqwa+dsos", Some("cmax"), titan.clone()),
        (
            "dqa+dqwa+dsos-32k",
            Some("dqa+dqwa"),
            Knobs { segment_size: Some(ByteSize::from_kib(32)), ..dqa_dqwa.clone() },
        ),
        ("no-batching", Some("dqa+dqwa+dsos"), Knobs { transmit_batching: false, ..titan.clone() }),
        ("xps:cmax", Some("cmax"), with_xps(&cmax)),
        ("xps:dqa", Some("dqa"), with_xps(&dqa)),
        ("xps:dqa+dqwa", Some("dqa+dqwa"), with_xps(&dqa_dqwa)),
        ("xps:dqa+dqwa+dsos", Some("dqa+dqwa+dsos"), with_xps(&titan)),
    ];
    let scenario = parse_bundled("titan-12-flows");
    for (name, base, knobs) in &expected {
        let variant = scenario.variant(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((variant.base.as_deref(), variant.knobs()), (*base, knobs), "{name}");
        assert!(variant.summary.ends_with('.'), "{name}: {}", variant.summary);
    }
    assert_eq!(scenario.all_variants().count(), expected.len());
}

#[test]
fn the_settings_of_a_variant_are_written_as_the_file_spells_them() {
    let scenario = parse_bundled("titan-12-flows");
    for variant in scenario.all_variants() {
        let mut text = String::from("summary = 's'\n");
        for (key, value) in variant.knobs().settings() {
            let bare = value == "true" || value == "false" || value.parse::<u32>().is_ok();
            text += &if bare { format!("{key} = {value}\n") } else { format!("{key} = \"{value}\"\n") };
        }
        let minimal = VALID.replace("variants = [", "variants = [\"copy\", ");
        let copied = parse_text(&format!("{minimal}\n[variant.copy]\n{text}")).unwrap();
        assert_eq!(copied.variants[0].knobs(), variant.knobs(), "{}:\n{text}", variant.name);
    }
}

#[test]
fn a_user_s_scenario_inherits_from_the_bundled_table_and_from_itself() {
    let scenario = parse_text(VALID).unwrap();
    let names: Vec<&str> = scenario.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(names, ["small", "dqa", "smaller"]);
    let smaller = scenario.variant("smaller").unwrap();
    assert_eq!(smaller.base.as_deref(), Some("small"));
    assert_eq!(smaller.knobs().gso_size, ByteSize::from_kib(8));
    assert_eq!(smaller.knobs().queues, Some(2), "from its own base");
    assert_eq!(smaller.knobs().queue_choice, QueueChoice::Dqa, "from the table");
    assert_eq!(scenario.hosts.sending_cores, 4, "as many as queues");
    assert_eq!(scenario.link.mtu, ByteSize::from_bytes(1500), "the default");
    assert_eq!(scenario.workload.congestion_control, "cubic", "the default");
    assert_eq!(scenario.measure.windows[0].name, "short", "shortest first");
    assert_eq!(scenario.measure.warmup, Nanoseconds::from_secs(1), "the default");
    let paper = &scenario.paper.unwrap().variants["dqa"];
    assert_eq!((paper["nfm.short"], paper["nfm.long"], paper["cpu_pct"]), (1.0, 0.5, 66.0));
    assert_eq!(scenario.expectations.len(), 2);
}

#[test]
fn variants_of_the_table_that_do_not_fit_the_link_are_left_out_unless_asked_for() {
    let large = "[link]\nmtu = \"20kB\"";
    let scenario = parse_text(
        &VALID
            .replace("[link]", large)
            .replace("gso-size = \"16KiB\"", "gso-size = \"32KiB\"")
            .replace("gso-size = \"8KiB\"", "gso-size = \"24KiB\""),
    )
    .unwrap();
    assert!(scenario.variant("gso-16k").is_none());
    assert!(scenario.variant("dqa+dqwa+dsos").is_none());
    assert!(scenario.variant("dqa+dqwa+dsos-32k").is_some());
    assert_eq!(scenario.variants.len(), 3);
}

#[test]
fn variants_are_chosen_by_name_and_by_group() {
    let scenario = parse_bundled("titan-12-flows");
    let select = |asked: &[&str]| -> Vec<String> {
        scenario.select(asked).unwrap().iter().map(|variant| variant.name.clone()).collect()
    };
    assert_eq!(select(&[]), MAIN);
    assert_eq!(select(&["main"]), MAIN);
    assert_eq!(select(&["no-tsq", "dqa", "no-tsq"]), ["no-tsq", "dqa"]);
    assert_eq!(select(&["dqa", "main"])[..3], ["dqa", "cvanilla", "cmax"]);
    let message = scenario.select(&["cmx"]).unwrap_err().to_string();
    assert!(
        message.starts_with(
            "scenario 'titan-12-flows' has no variant or group 'cmx'; did you mean 'cmax'? known: main, cvanilla,"
        ),
        "{message}"
    );
}

#[test]
fn a_text_that_is_too_long_is_refused() {
    let error = parse(&" ".repeat((1 << 20) + 1), "x.toml", variant_tables()).unwrap_err();
    assert_eq!(error.to_string(), "x.toml:1:1: larger than 1MiB; name a scenario file");
}

#[test]
fn the_examples_of_the_reference_are_what_the_program_says() {
    let reference = include_str!("../../../../docs/how-to/write-a-scenario.md");
    let (_, example) = reference.split_once("```toml\n").unwrap();
    let (example, rest) = example.split_once("```").unwrap();
    let scenario = parse(example, "office-uplink.toml", variant_tables()).unwrap();
    assert_eq!(scenario.select(&["segments"]).unwrap().len(), 2);
    assert_eq!(scenario.variant("smaller-segments").unwrap().knobs().qdisc, Qdisc::SfqPrio, "from cmax");
    let messages = rest.split_once("```text\n").unwrap().1.lines();
    let breakages = [("queues = 4", "queuess = 4"), ("\"2.5gbit\"", "10")];
    for (message, (from, to)) in messages.zip(breakages) {
        let broken = example.replacen(from, to, 1);
        let error = parse(&broken, "office-uplink.toml", variant_tables()).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}
