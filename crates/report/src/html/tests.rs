#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use evenkeel_model::record::{
    ClientsRecord, ExpectationRecord, FlowRecord, PaperRecord, Record, Refusal, RepeatRecord, SCHEMA,
    SecondRecord, VariantRecord,
};

use super::{Source, Study, StudyFinding, comparison, study};
use crate::chart::{Chart, ChartPoint, Line};
use crate::compare::{self, Question};
use crate::store::{self, Series, SeriesFlow};

/// If the page does not escape this name, the name ends an attribute, a script, a style and a tag.
const HOSTILE: &str = "\"'></script></style></title><img src=x onerror=alert(1)>&lt;\u{202e}\u{0}";

fn variant(name: &str, factor: f64, repeats: usize) -> VariantRecord {
    let repeat = |index: usize| {
        let value = |value: f64| value * factor * (1.0 + index as f64 / 100.0);
        let metrics = [
            ("throughput_bps", 9.4e9),
            ("nfm.1ms", value(1.2)),
            ("nfm.1s", value(0.5)),
            ("cpu_pct", value(50.0)),
            ("latency_us.mean", value(300.0)),
            ("latency_us.p50", value(250.0)),
            ("latency_us.p99", value(900.0)),
        ];
        RepeatRecord {
            metrics: metrics.map(|(key, value)| (key.to_owned(), value)).into(),
            counters: [("picks".to_owned(), value(10.0))].into(),
            ..RepeatRecord::default()
        }
    };
    VariantRecord {
        name: name.to_owned(),
        settings: [("qdisc".to_owned(), name.to_owned()), ("queues".to_owned(), "8".to_owned())].into(),
        notes: vec![format!("a remark on {name}")],
        repeats: (0..repeats).map(repeat).collect(),
    }
}

fn sample(names: &[&str]) -> Record {
    let variants: Vec<VariantRecord> =
        names.iter().enumerate().map(|(index, name)| variant(name, 1.0 + index as f64, 5)).collect();
    let text = |text: &str| format!("{text} {}", names.first().copied().unwrap_or_default());
    Record {
        schema: SCHEMA,
        evenkeel: text("0.2.0"),
        scenario: text("uplink"),
        scenario_text: text("schema = 1"),
        world: text("netns"),
        kernel: text("6.18.44"),
        started: text("2026-01-31T12:00:00Z"),
        host: [(text("cpu"), text("Example"))].into(),
        rate_bps: 10_000_000_000,
        nominal_rate_bps: 10_000_000_000,
        seed: 1,
        quick: false,
        duration_s: 2.0,
        warmup_s: 1.0,
        windows: [("1ms".to_owned(), 0.001), ("1s".to_owned(), 1.0)].into(),
        refused: vec![Refusal { name: text("refused"), why: text("why") }],
        paper: Some(PaperRecord {
            source: text("paper"),
            variants: variants
                .iter()
                .map(|variant| (variant.name.clone(), BTreeMap::from([("nfm.1s".to_owned(), 0.7)])))
                .collect(),
        }),
        expectations: vec![ExpectationRecord {
            variant: text("variant"),
            metric: text("metric"),
            statistic: text("statistic"),
            share: None,
            relative_to: Some(text("base")),
            at_least: Some(1.0),
            at_most: None,
            value: Some(2.0),
            interval: None,
            repeats: 5,
            met: Some(true),
            open: Some(text("open")),
        }],
        variants,
    }
}

fn page(record: &Record) -> String {
    super::record(&Source { record, directory: None })
}

type Tag = (String, Vec<(String, String)>);

/// Returns the start tags of a page, each with its attributes. Checks that every tag is closed in
/// order, and that every attribute has quotes.
fn tags(page: &str) -> Vec<Tag> {
    const VOID: [&str; 4] = ["meta", "br", "input", "!DOCTYPE"];
    let (mut found, mut open): (Vec<Tag>, Vec<String>) = (Vec::new(), Vec::new());
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        // `>` does not end a tag within a quoted attribute.
        let mut is_quoted = false;
        let end = rest.find(|character| {
            is_quoted ^= character == '"';
            character == '>' && !is_quoted
        });
        let (tag, after) = rest.split_at(end.expect("a tag ends"));
        rest = &after[1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "near {rest:.80}");
            continue;
        }
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let mut pairs = Vec::new();
        while let Some((before, after)) = attributes.split_once("=\"").filter(|_| name != "!DOCTYPE") {
            let (value, after) = after.split_once('"').expect("a closing quote");
            pairs.extend(before.split_whitespace().map(|name| (name.to_owned(), String::new())));
            pairs.last_mut().expect("a name").1 = value.to_owned();
            attributes = after;
        }
        pairs.extend(attributes.split_whitespace().map(|name| (name.to_owned(), String::new())));
        found.push((name.to_owned(), pairs));
        if !VOID.contains(&name) {
            open.push(name.to_owned());
        }
        // A script or style element has no tags inside.
        if ["script", "style"].contains(&name) {
            rest = &rest[rest.find(&format!("</{name}>")).expect("an end tag")..];
        }
    }
    assert_eq!(open, Vec::<String>::new());
    found
}

/// Checks that the page is well-formed, loads nothing, and runs only its own script.
fn assert_inert(page: &str) {
    let tags = tags(page);
    let count = |name: &str| tags.iter().filter(|(tag, _)| tag == name).count();
    assert_eq!((count("script"), count("style"), count("title") - count("svg")), (1, 1, 1));
    for forbidden in ["img", "link", "iframe", "object", "embed", "base", "image", "use", "a"] {
        assert_eq!(count(forbidden), 0, "{forbidden}");
    }
    for (tag, attributes) in &tags {
        for (name, value) in attributes {
            let is_load = ["src", "href", "xlink:href", "action", "srcset", "data"].contains(&name.as_str());
            assert!(!is_load && !name.starts_with("on"), "<{tag} {name}={value}>");
            assert!(!value.contains("url("), "<{tag} {name}={value}>");
        }
    }
    let style = page.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next()).unwrap();
    for load in ["url(", "@import", "http:", "https:"] {
        assert!(!style.contains(load), "{load}");
    }
    assert!(!page.contains(['\u{202e}', '\u{0}']));
}

/// Checks the page's accessibility for screen readers.
fn assert_accessible(page: &str) {
    let tags = tags(page);
    let named = |name: &'static str| tags.iter().filter(move |(tag, _)| tag == name);
    let has = |attributes: &[(String, String)], name: &str| {
        attributes.iter().any(|(known, value)| known == name && !value.is_empty())
    };
    for (_, attributes) in named("svg") {
        assert!(has(attributes, "role") && has(attributes, "aria-label"), "{attributes:?}");
    }
    assert_eq!(named("desc").count(), named("svg").count());
    assert_eq!(named("caption").count(), named("table").count());
    assert!(named("th").all(|(_, attributes)| has(attributes, "scope")));
    assert!(named("html").all(|(_, attributes)| has(attributes, "lang")));
    let levels: Vec<u32> = tags.iter().filter_map(|(tag, _)| tag.strip_prefix('h')?.parse().ok()).collect();
    assert_eq!(levels.first(), Some(&1));
    assert!(levels.windows(2).all(|two| two[1] <= two[0] + 1 && two[1] > 1), "{levels:?}");
}

#[test]
fn a_page_has_the_answer_the_plots_and_the_settings() {
    let record = sample(&["dqa", "cmax"]);
    let page = page(&record);
    assert_inert(&page);
    assert_accessible(&page);
    for words in [
        "dqa keeps NFM 1s at 0.51; cmax has 1.02",
        "dqa keeps NFM 1ms at 1.22; cmax has 2.45",
        "latency, µs",
        "The same in all variants: throughput 9.4 Gbit/s.",
        "Expectations: 1 of 1 met",
        "the record has no raw series",
        "a remark on dqa",
        "refused dqa",
        "Settings that differ between the variants",
        "Example dqa",
        "schema = 1",
    ] {
        assert!(page.contains(words), "{words}");
    }
    // A reader can hide each variant in plots and tables.
    for number in 0..2 {
        assert!(page.contains(&format!("body:has(#f{number}:not(:checked)) .v{number}{{display:none}}")));
        assert!(page.contains(&format!("<tr class=\"v{number}\">")), "{number}");
        assert!(page.contains(&format!("<g class=\"v{number} k{number}\">")), "{number}");
    }
}

#[test]
fn text_of_a_record_stays_text() {
    let other = format!("{HOSTILE}2");
    let record = sample(&[HOSTILE, &other, "a\u{1b}[31mb"]);
    let text = page(&record);
    assert_inert(&text);
    assert!(!text.contains("<img") && text.contains("&lt;img src=x onerror=alert(1)&gt;"));
    let source = Source { record: &record, directory: None };
    let compared = compare::compare(&record, &record, &Question::default()).unwrap();
    let text = comparison(&source, &source, &compared);
    assert_inert(&text);
    assert_accessible(&text);
    let text = study(&Study {
        title: HOSTILE.to_owned(),
        answer: vec![HOSTILE.to_owned()],
        findings: vec![StudyFinding { id: HOSTILE.to_owned(), ..StudyFinding::default() }],
        recommendations: vec![[HOSTILE; 3].map(str::to_owned)],
        charts: vec![Chart {
            title: HOSTILE.to_owned(),
            across: HOSTILE.to_owned(),
            metric: HOSTILE.to_owned(),
            places: vec![HOSTILE.to_owned()],
            logarithmic: true,
            lines: vec![Line {
                name: HOSTILE.to_owned(),
                points: vec![ChartPoint { place: 0, value: 1.0, range: (1.0, 1.0) }],
            }],
        }],
        facts: vec![(HOSTILE.to_owned(), HOSTILE.to_owned())],
    });
    assert_inert(&text);
    assert_accessible(&text);
}

#[test]
fn odd_figures_give_a_page_without_odd_coordinates() {
    let mut records = vec![sample(&[]), sample(&["alone"])];
    for value in [0.0, f64::MIN_POSITIVE, f64::MAX, -1.0, 1e300] {
        let mut odd = sample(&["one", "other"]);
        for repeat in odd.variants.iter_mut().flat_map(|variant| &mut variant.repeats) {
            repeat.metrics.values_mut().for_each(|known| *known = value);
        }
        records.push(odd);
    }
    let mut mixed = sample(&["one", "other"]);
    mixed.variants[0].repeats.clear();
    mixed.variants[1].repeats[0].metrics.insert("latency_us.p99".to_owned(), 1e12);
    records.push(mixed);
    for record in records {
        let page = page(&record);
        assert_inert(&page);
        for (_, attributes) in tags(&page) {
            for (name, value) in attributes
                .iter()
                .filter(|(name, _)| ["d", "x", "y", "cx", "cy", "width"].contains(&name.as_str()))
            {
                assert!(!value.contains("NaN") && !value.contains("inf"), "{name}={value}");
            }
        }
    }
}

fn with_series(record: &Record, flows: usize, bins: usize) -> (tempfile::TempDir, Record) {
    let place = tempfile::tempdir().unwrap();
    let flow = |number: usize| SeriesFlow {
        name: format!("flow-{number}"),
        bytes: (0..bins).map(|bin| ((number + 1) * 1000 + bin % 7) as u64).collect(),
        packets: vec![1; bins],
        further: Vec::new(),
    };
    let series: Vec<Series> = record
        .variants
        .iter()
        .map(|variant| Series {
            variant: variant.name.clone(),
            repeat: 0,
            bin_ns: 1_000_000,
            flows: (0..flows).map(flow).collect(),
        })
        .collect();
    let mut record = record.clone();
    record.duration_s = bins as f64 * 1e-3;
    for (variant, series) in record.variants.iter_mut().zip(&series) {
        let of_series = |flow: &SeriesFlow| FlowRecord {
            name: flow.name.clone(),
            bytes: flow.bytes.iter().sum(),
            packets: flow.packets.iter().sum(),
            ..FlowRecord::default()
        };
        variant.repeats[0].flows = series.flows.iter().map(of_series).collect();
    }
    let written = store::write(&place.path().join("record"), &record, &series).unwrap();
    (place, written)
}

#[test]
fn flows_are_drawn_over_time() {
    let (place, record) = with_series(&sample(&["dqa", "cmax"]), 4, 1000);
    let directory = place.path().join("record");
    let text = super::record(&Source { record: &record, directory: Some(&directory) });
    assert_inert(&text);
    assert!(
        text.contains("The slowest flow gets 25 % of the fastest one&#39;s rate")
            || text.contains("gets 25 % of the fastest one's rate")
    );
    assert!(text.contains("A point is a mean over 10 ms"));
    assert_eq!(text.matches("class=\"flow\"").count(), 8);

    // With many flows, the plot shows the range of the flows instead of a line for each flow.
    let (place, record) = with_series(&sample(&["dqa"]), 30, 10);
    let directory = place.path().join("record");
    let text = super::record(&Source { record: &record, directory: Some(&directory) });
    assert!(text.contains("class=\"area\"") && !text.contains("class=\"flow\""));
    assert!(text.contains("slowest flow"));
}

#[test]
fn a_series_that_contradicts_the_record_is_named_and_not_drawn() {
    let (place, record) = with_series(&sample(&["dqa", "cmax"]), 2, 10);
    let directory = place.path().join("record");
    type Change = fn(&mut Record);
    let flows = |record: &Record, change: Change| {
        let mut changed = record.clone();
        change(&mut changed);
        let text = super::record(&Source { record: &changed, directory: Some(&directory) });
        (text.matches("class=\"flow\"").count(), text)
    };
    assert_eq!(flows(&record, |_| {}).0, 4);
    let changes: [(Change, &str); 5] = [
        (|record| drop(record.variants[0].repeats[0].flows.pop()), "2 flows, but the record has 1"),
        (|record| record.variants[0].repeats[0].flows[1].bytes += 1, "20024 bytes of "),
        (|record| record.variants[0].repeats[0].flows[0].packets = 0, "10 packets of "),
        (|record| record.variants[0].repeats[0].flows.swap(0, 1), "is "),
        (|record| record.duration_s = 0.02, "10 bins of 1000000 ns, but the record has 0.02 s"),
    ];
    for (change, told) in changes {
        let (drawn, text) = flows(&record, change);
        let begin = "Not drawn: dqa, because series/dqa-0.csv.gz does not match the record: ";
        let (_, words) = text.split_once(begin).unwrap();
        let words: String = words.chars().take(100).collect();
        assert!(words.contains(told) && drawn <= 2, "{told}: {words}");
    }
}

#[test]
fn a_series_that_cannot_be_read_is_named_without_its_directory() {
    let (place, record) = with_series(&sample(&["dqa", "cmax"]), 2, 10);
    let directory = place.path().join("record");
    std::fs::remove_file(directory.join("series/dqa-0.csv.gz")).unwrap();
    std::fs::write(directory.join("series/cmax-0.csv.gz"), "damaged").unwrap();
    let text = super::record(&Source { record: &record, directory: Some(&directory) });
    for words in [
        "Not drawn: dqa, because series/dqa-0.csv.gz does not exist.",
        "Not drawn: cmax, because series/cmax-0.csv.gz cannot be decompressed.",
    ] {
        assert!(text.contains(words), "{words}");
    }
    assert!(!text.contains(place.path().to_str().unwrap()));
    let text = super::record(&Source { record: &record, directory: None });
    assert!(text.contains("the record came without its directory"));
}

#[test]
fn requests_are_drawn_over_time_without_series() {
    let mut record = sample(&["balance", "rss"]);
    for repeat in record.variants.iter_mut().flat_map(|variant| &mut variant.repeats) {
        let second = |requests| SecondRecord { requests, ..SecondRecord::default() };
        repeat.clients = vec![ClientsRecord {
            name: "high".to_owned(),
            seconds: [1000, 2000].map(second).into(),
            ..ClientsRecord::default()
        }];
    }
    let text = page(&record);
    assert!(text.contains("Requests answered over time, k/s, one repeat of each variant"));
    assert!(!text.contains("no raw series"));
}

#[test]
fn ten_lines_get_a_panel_each() {
    let names: Vec<String> = (0..12).map(|number| format!("variant-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (few, many) = (page(&sample(&names[..9])), page(&sample(&names)));
    assert!(!few.contains("class=\"context"));
    assert_eq!(many.matches("class=\"context").count(), 2 * 12 * 11);
}

#[test]
fn a_hundred_runs_give_a_page_below_5_mb() {
    let names: Vec<String> = (0..20).map(|number| format!("variant-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let record = sample(&names);
    assert_eq!(record.variants.iter().map(|variant| variant.repeats.len()).sum::<usize>(), 100);
    let (place, record) = with_series(&record, 24, 2000);
    let directory = place.path().join("record");
    let text = super::record(&Source { record: &record, directory: Some(&directory) });
    assert!(text.len() < 5_000_000, "{}", text.len());
}

#[test]
fn without_an_interval_a_message_needs_ranges_apart() {
    let mut record = sample(&["dqa", "cmax"]);
    let mut set = |variant: usize, values: [f64; 2]| {
        record.variants[variant].repeats.truncate(2);
        for (repeat, value) in record.variants[variant].repeats.iter_mut().zip(values) {
            repeat.metrics.insert("nfm.1s".to_owned(), value);
        }
    };
    set(0, [0.1, 0.5]);
    set(1, [0.4, 0.9]);
    let overlapping = "NFM 1s: 0.3 with dqa, 0.65 with cmax; their repeats overlap";
    assert!(page(&record).contains(overlapping));
    record.variants[1].repeats[0].metrics.insert("nfm.1s".to_owned(), 0.6);
    assert!(page(&record).contains("dqa keeps NFM 1s at 0.3; cmax has 0.75"));
}

/// The command to run again includes the topology of the run and a file of setups. The record cannot contain
/// this file, so a remark names it.
#[test]
fn the_command_to_run_again_has_setups_and_topology() {
    let text = |name: &str| {
        let (_, text) =
            evenkeel_model::scenario::bundled::bundled().iter().find(|(known, _)| *known == name).unwrap();
        (*text).to_owned()
    };
    let record = |scenario: &str, scenario_text: String, variant: &str| {
        let mut record = sample(&[variant]);
        (record.scenario, record.scenario_text) = (scenario.to_owned(), scenario_text);
        (record.world, record.refused) = ("netns".to_owned(), Vec::new());
        record
    };
    let point = "third clients=48";
    let own = super::rerun::Rerun::of(&record("tc-fairness-mixed", text("tc-fairness-mixed"), point));
    let command = own.command.unwrap();
    assert!(
        command.contains(" --qdiscs setups.toml") && command.contains("--variant 'third clients=48'"),
        "{command}"
    );
    assert!(own.remarks.iter().any(|remark| remark.contains("the file of setups that defines third")));

    let files = text("tc-fairness-mixed").replacen("[link]", "qdisc-files = [\"own.toml\"]\n[link]", 1);
    let with_files = super::rerun::Rerun::of(&record("mine", files, point));
    assert!(with_files.remarks.iter().any(|remark| remark.contains("save own.toml next to scenario.toml")));

    let mut bulk = record("titan-6-flows", text("titan-6-flows"), "cmax");
    for (topology, is_named) in [("soft-nic", false), ("mq", true)] {
        bulk.variants[0].settings.insert("topology".to_owned(), topology.to_owned());
        let command = super::rerun::Rerun::of(&bulk).command.unwrap();
        assert_eq!(command.contains(" --topology mq"), is_named, "{command}");
        assert!(!command.contains("--qdiscs") && !command.contains("--topology soft-nic"), "{command}");
    }
}
