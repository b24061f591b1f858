//! Tests of a study from plan to page, in a world with known observations: order, resumption, re-runs and
//! results.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_model::scenario::bundled::variant_tables;
use evenkeel_model::scenario::{Scenario, Variant, parse};
use evenkeel_model::units::BitRate;
use evenkeel_model::world::{
    Assessment, Job, Observer, RawFlow, RawLine, RawProcessor, RawRepeat, RawTenants, World,
};
use evenkeel_study::journal::{self, Entry, EntryFault, Journal, JournalError, SCHEMA, Settings};
use evenkeel_study::plan::{Extent, StudyScenario, timed};
use evenkeel_study::results::Results;
use evenkeel_study::{
    MOST_ATTEMPTS, Request, StudyError, agreement, charts, conduct, conservation, json, markdown,
};

const SCENARIO: &str = r#"schema = 1
name = "tc-work-conservation"
title = "Three setups"

[link]
rate = "1gbit"
queues = 1

[workload]
kind = "tenants"
line = true

[[workload.bulk]]
length = "4KiB"
on = "50ms"
off = "50ms"

[[sweep]]
qdiscs = ["pfifo", "tbf", "cake"]
clients = [2, 8]

[measure]
warmup = "100ms"
duration = "300ms"
repeats = 4

[[plot]]
name = "lost"
title = "What is lost"
metric = "lost_capacity"
across = "clients"
"#;

fn scenarios() -> Vec<StudyScenario> {
    let scenario = parse(SCENARIO, "test", variant_tables()).unwrap();
    vec![StudyScenario { scenario, text: SCENARIO.to_owned(), qdisc_files: BTreeMap::new() }]
}

fn settings() -> Settings {
    Settings {
        schema: SCHEMA,
        evenkeel: "0".to_owned(),
        world: "known".to_owned(),
        kernel: "1".to_owned(),
        quick: false,
        seed: 5,
        rate_bps: None,
        repeats: None,
        setups: Vec::new(),
        setups_text: None,
        scenarios: BTreeMap::from([("tc-work-conservation".to_owned(), SCENARIO.to_owned())]),
        qdisc_files: BTreeMap::new(),
        host: BTreeMap::new(),
        started: "2026-01-01T00:00:00Z".to_owned(),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Trouble(&'static str);

/// A world whose observations depend only on the point, the repeat, the seed, and the number of earlier runs
/// of the repeat. The world logs the requested repeats.
#[derive(Default)]
struct Known {
    asked: RefCell<Vec<(String, u32, u64)>>,
    disturbed: Vec<(String, u32)>,
    always_disturbed: Vec<(String, u32)>,
    failing: Vec<(String, u32)>,
}

impl World for Known {
    type Error = Trouble;

    fn name(&self) -> &'static str {
        "known"
    }

    fn kernel(&self) -> String {
        "1".to_owned()
    }

    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn assess(&self, _: &Scenario, variant: &Variant) -> Result<Assessment, String> {
        if variant.tenants().unwrap().qdisc.name == "cake" {
            return Err("this kernel lacks the qdisc cake".to_owned());
        }
        Ok(Assessment { notes: vec!["all is known".to_owned()], ..Assessment::default() })
    }

    fn settle_rate(
        &mut self,
        scenario: &Scenario,
        wanted: Option<BitRate>,
        _: &dyn Observer,
    ) -> Result<BitRate, Trouble> {
        Ok(wanted.unwrap_or(scenario.link.rate))
    }

    fn repeat(&mut self, job: &Job<'_>, _: &dyn Observer) -> Result<RawRepeat, Trouble> {
        let asked = (job.variant.name.clone(), job.repeat);
        let before = self
            .asked
            .borrow()
            .iter()
            .filter(|(name, repeat, _)| (name, repeat) == (&asked.0, &asked.1))
            .count();
        self.asked.borrow_mut().push((asked.0.clone(), job.repeat, job.seed));
        if self.failing.contains(&asked) {
            return Err(Trouble("iperf3 ended early"));
        }
        let disturbed =
            self.always_disturbed.contains(&asked) || (before == 0 && self.disturbed.contains(&asked));
        let bins = (job.duration.as_u64() / job.bin.as_u64()) as usize;
        // The token bucket loses a fifth of the link's capacity. In addition, the bytes depend on the seed.
        let share = if job.variant.name.starts_with("tbf") { 100_000 } else { 125_000 };
        let bytes = share - job.seed % 3 * 10;
        let flows = job.variant.tenants().unwrap().bulk_flows();
        let flow = RawFlow {
            name: "5201".to_owned(),
            weight: 1.0,
            bytes: vec![bytes / u64::from(flows.max(1)); bins],
            packets: vec![80; bins],
            payload_bytes: bytes * bins as u64 / u64::from(flows.max(1)),
            backlogged: std::iter::once(0..bins).collect(),
            ..RawFlow::default()
        };
        let processor = RawProcessor { user: 0.1, system: 0.2, softirq: 0.3, wait: 0.0 };
        Ok(RawRepeat {
            flows: vec![flow; flows as usize],
            tenants: Some(RawTenants {
                processors: vec![processor; 2],
                line: Some(RawLine {
                    bin: job.bin,
                    capacity_bytes: 125_000.0,
                    bytes: vec![bytes; bins],
                    backlog_bytes: vec![60_000; bins],
                }),
                // A disturbance decreases from run to run of a repeat, but stays above the limit.
                disturbance: Some(if disturbed { 0.9 - before as f64 * 0.1 } else { 0.01 }),
                ..RawTenants::default()
            }),
            ..RawRepeat::default()
        })
    }
}

/// Interrupts the study after a number of repeats.
struct Patience {
    left: AtomicUsize,
}

impl Patience {
    fn of(repeats: usize) -> Self {
        Self { left: AtomicUsize::new(repeats) }
    }
}

impl Observer for Patience {
    fn progress(&self, fraction: f64, activity: &str) {
        assert!((0.0..=1.0).contains(&fraction) && activity.contains("left"), "{fraction} {activity}");
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }

    fn remark(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

fn run(world: &mut Known, directory: &Path, patience: &Patience) -> Result<Results, StudyError<Trouble>> {
    let (scenarios, extent) = (scenarios(), Extent::default());
    let scenarios = timed(scenarios, &extent);
    let request = Request { scenarios: &scenarios, extent: &extent, rate: None, seed: 5 };
    let mut journal = Journal::open(directory, &settings()).unwrap();
    conduct(world, &request, &mut journal, patience)?;
    Ok(Results::of(journal.settings(), journal.entries(), &request))
}

const ALL: usize = 1000;

/// Adds a copy of the first repeat as a fifth repeat, because four repeats have no interval.
fn add_a_fifth_repeat(results: &mut Results) {
    for repeats in results.points.iter_mut().map(|point| &mut point.repeats) {
        repeats.extend(repeats.get(&0).cloned().map(|first| (4, first)));
    }
}

#[test]
fn a_study_that_was_stopped_goes_on_and_ends_as_if_it_had_not_been() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    let mut world = Known::default();
    let expected = run(&mut world, &whole, &Patience::of(ALL)).unwrap();
    // The study has two setups with two numbers of clients, and four repeats each. Repeat i has the same seed
    // in all points.
    let asked = world.asked.borrow().clone();
    assert_eq!(asked.len(), 16);
    assert!(asked.iter().all(|(_, repeat, seed)| *seed == 5 + u64::from(*repeat)));
    assert!(
        asked
            .chunks(4)
            .enumerate()
            .all(|(round, chunk)| chunk.iter().all(|(_, repeat, _)| *repeat as usize == round))
    );

    let mut first = Known::default();
    assert!(matches!(run(&mut first, &parts, &Patience::of(5)), Err(StudyError::Interrupted)));
    let mut second = Known::default();
    let resumed = run(&mut second, &parts, &Patience::of(ALL)).unwrap();
    let both: Vec<_> = first.asked.borrow().iter().chain(second.asked.borrow().iter()).cloned().collect();
    assert_eq!((first.asked.borrow().len(), both), (5, asked));
    assert_eq!(resumed.points, expected.points);
    let mut third = Known::default();
    assert_eq!(run(&mut third, &parts, &Patience::of(ALL)).unwrap().points, expected.points);
    assert!(third.asked.borrow().is_empty());
}

#[test]
fn a_damaged_last_line_is_measured_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = Known::default();
    assert!(run(&mut world, directory.path(), &Patience::of(5)).is_err());
    let file = directory.path().join("repeats.jsonl");
    let text = fs::read(&file).unwrap();
    fs::write(&file, &text[..text.len() - 40]).unwrap();
    let journal = Journal::open(directory.path(), &settings()).unwrap();
    assert!(journal.dropped());
    assert_eq!(journal.entries().iter().filter(|entry| matches!(entry, Entry::Repeat(_))).count(), 4);
    drop(journal);
    let mut world = Known::default();
    run(&mut world, directory.path(), &Patience::of(ALL)).unwrap();
    assert_eq!(world.asked.borrow().len(), 12);
    let mut lines = fs::read(&file).unwrap();
    lines[20] = b'\n';
    fs::write(&file, &lines).unwrap();
    let error = Journal::open(directory.path(), &settings()).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { line: 1, .. }), "{error}");
}

#[test]
fn another_study_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    drop(Journal::open(directory.path(), &settings()).unwrap());
    let why = |settings: Settings| Journal::open(directory.path(), &settings).unwrap_err().to_string();
    for (other, words) in [
        (Settings { seed: 6, ..settings() }, "its seed is 5, not 6"),
        (Settings { evenkeel: "1".to_owned(), ..settings() }, "its version of evenkeel is 0, not 1"),
        (Settings { quick: true, ..settings() }, "its effort is full, not quick"),
        (Settings { rate_bps: Some(1_000_000_000), ..settings() }, "its rate is the default, not 1gbit"),
        (Settings { kernel: "2".to_owned(), ..settings() }, "its kernel is 1, not 2"),
        (
            Settings {
                scenarios: BTreeMap::from([("tc-work-conservation".to_owned(), String::new())]),
                ..settings()
            },
            "its scenario tc-work-conservation differs",
        ),
        (
            Settings { host: BTreeMap::from([("cpu".to_owned(), "x".to_owned())]), ..settings() },
            "its cpu is unknown, not x",
        ),
    ] {
        let text = why(other);
        assert!(text.contains(words) && text.contains("name another directory"), "{text}");
    }
    let text = why(Settings { repeats: Some(2), ..settings() });
    assert!(text.contains("its number of repeats is that of the scenarios, not 2"), "{text}");
    // The start time may differ between runs of a study.
    Journal::open(directory.path(), &Settings { started: "later".to_owned(), ..settings() }).unwrap();
    let occupied = tempfile::tempdir().unwrap();
    fs::write(occupied.path().join("thesis.txt"), "mine").unwrap();
    assert!(matches!(Journal::open(occupied.path(), &settings()), Err(JournalError::Occupied(_))));
    let first = Journal::open(directory.path(), &settings()).unwrap();
    assert!(matches!(Journal::open(directory.path(), &settings()), Err(JournalError::Busy(_))));
    drop(first);
}

#[test]
fn a_disturbed_repeat_is_run_again_and_a_disturbed_machine_is_not_run_forever() {
    let directory = tempfile::tempdir().unwrap();
    let point = |name: &str| name.to_owned();
    let mut world = Known {
        disturbed: vec![(point("pfifo clients=2"), 1)],
        always_disturbed: vec![(point("tbf clients=8"), 2)],
        ..Known::default()
    };
    let results = run(&mut world, directory.path(), &Patience::of(ALL)).unwrap();
    let asked = world.asked.borrow();
    let times = |name: &str, repeat: u32| {
        asked.iter().filter(|(own, number, _)| own == name && *number == repeat).count()
    };
    assert_eq!((times("pfifo clients=2", 1), times("tbf clients=8", 2)), (2, MOST_ATTEMPTS));
    assert_eq!((results.runs.all, results.runs.disturbed, results.runs.left_disturbed), (19, 4, 1));
    let of = |name: &str| results.points.iter().find(|point| point.name == name).unwrap();
    // The results use the undisturbed run. If all runs are disturbed, they use the least disturbed run.
    assert_eq!(of("pfifo clients=2").values("disturbance")[&1], 0.01);
    assert!((of("tbf clients=8").values("disturbance")[&2] - 0.7).abs() < 1e-9);

    let directory = tempfile::tempdir().unwrap();
    let names = ["pfifo clients=2", "pfifo clients=8", "tbf clients=2", "tbf clients=8"];
    let always = names.iter().flat_map(|name| (0..4).map(|repeat| (point(name), repeat))).collect();
    let mut world = Known { always_disturbed: always, ..Known::default() };
    let results = run(&mut world, directory.path(), &Patience::of(ALL)).unwrap();
    // 16 repeats allow 4 re-runs: a fifth of 16, rounded up.
    assert_eq!((results.runs.all, results.runs.left_disturbed), (20, 16));
}

#[test]
fn a_failing_repeat_is_told_and_failure_after_failure_ends_the_study() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = Known { failing: vec![("tbf clients=2".to_owned(), 0)], ..Known::default() };
    let results = run(&mut world, directory.path(), &Patience::of(ALL)).unwrap();
    let point = results.points.iter().find(|point| point.name == "tbf clients=2").unwrap();
    assert_eq!((point.failures.as_slice(), point.repeats.len()), (&["iperf3 ended early".to_owned()][..], 3));
    assert_eq!(results.runs.missing, 1);
    let (_, _, gaps) = journal::read_with_gaps(directory.path()).unwrap();
    assert_eq!(gaps, ["repeats are missing: tc-work-conservation tbf clients=2 (3 of 4)"]);
    let page = evenkeel_study::html(&results, &gaps);
    for words in ["The study is incomplete: repeats are missing", "failed; 1 repeat without a measurement"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    // A resumption measures the failed repeat again.
    let mut world = Known::default();
    let results = run(&mut world, directory.path(), &Patience::of(ALL)).unwrap();
    assert_eq!((results.runs.missing, world.asked.borrow().len()), (0, 1));
    assert!(journal::read_with_gaps(directory.path()).unwrap().2.is_empty());

    let directory = tempfile::tempdir().unwrap();
    let failing = ["pfifo clients=2", "pfifo clients=8", "tbf clients=2", "tbf clients=8"];
    let failing = failing.iter().flat_map(|name| (0..4).map(|repeat| ((*name).to_owned(), repeat))).collect();
    let mut world = Known { failing, ..Known::default() };
    let error = run(&mut world, directory.path(), &Patience::of(ALL)).unwrap_err();
    assert!(matches!(error, StudyError::Failing(_)), "{error}");
}

#[test]
fn the_page_has_verdicts_with_their_traces_and_what_was_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut results = run(&mut Known::default(), directory.path(), &Patience::of(ALL)).unwrap();
    add_a_fifth_repeat(&mut results);
    let judged: Vec<(String, &str)> =
        conservation(&results).into_iter().map(|own| (own.setup, own.answer.name())).collect();
    let expected = [("pfifo", "yes"), ("tbf", "no"), ("cake", "not measured")];
    assert_eq!(judged, expected.map(|(setup, answer)| (setup.to_owned(), answer)));
    let trace = conservation(&results)[1].trace.clone().unwrap();
    let text = fs::read_to_string(directory.path().join(&trace)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "# what the line can carry in a bin, bytes: 125000",
            "start_us,sent_bytes,least_backlog_bytes",
            "0,99980,60000",
            "1000,99980,60000"
        ]
    );
    assert_eq!(lines.len(), 302);

    let drawn: Vec<String> = charts(&results).into_iter().map(|(name, _)| name).collect();
    assert_eq!(drawn, ["lost"]);
    let page = markdown(&results, &[("What is lost".to_owned(), "lost.svg".to_owned())]);
    for words in [
        "| tbf | no | 20.0 %",
        &format!("[{trace}]({trace})"),
        "| cake | 2 | this kernel lacks the qdisc cake |",
        "| KF1 | not measurable | the scenario tc-packet-length did not run | 0 |",
        "![What is lost](lost.svg)",
        "- all is known",
        "tc-work-conservation 1000 Mbit/s",
    ] {
        assert!(page.contains(words), "{words}\n{page}");
    }
    let object = json(&results, &drawn);
    assert_eq!(object["findings"].as_array().unwrap().len(), 13);
    assert_eq!(object["points"].as_array().unwrap().len(), 4);
    assert_eq!(object["refused"][0]["why"], "this kernel lacks the qdisc cake");
    let point = &object["points"][2];
    assert_eq!(
        (point["name"].as_str(), point["axes"]["clients"].as_str()),
        (Some("tbf clients=2"), Some("2"))
    );
    assert_eq!(point["metrics"]["cores"]["busy"]["n"], 5);
    let lost = &point["metrics"]["lost_capacity"];
    assert!(
        (lost["mean"].as_f64().unwrap() - 0.2).abs() < 1e-3 && lost["low"].as_f64().unwrap() > 0.19,
        "{lost}"
    );
}

#[test]
fn two_runs_of_a_study_agree_and_two_studies_may_not() {
    let directory = tempfile::tempdir().unwrap();
    let of = |name: &str| {
        let path = directory.path().join(name);
        run(&mut Known::default(), &path, &Patience::of(ALL)).unwrap();
        let (settings, entries) = journal::read(&path).unwrap();
        let mut results = Results::bare(&settings, &entries, &[]);
        add_a_fifth_repeat(&mut results);
        results
    };
    let (first, second) = (of("first"), of("second"));
    let agreed = agreement(&first, &second);
    assert!(agreed.warnings.is_empty() && agreed.only_in_one == 0);
    assert_eq!(agreed.share(), Some(1.0));
    let mut changed = second.clone();
    assert!(!changed.texts.is_empty());
    changed.texts.values_mut().for_each(|text| text.push_str("# changed"));
    let warnings = agreement(&first, &changed).warnings;
    assert!(warnings.iter().all(|warning| warning.starts_with("the text of ")), "{warnings:?}");
    assert_eq!(warnings.len(), changed.texts.len());
    let mut apart = second;
    for values in apart.points.iter_mut().flat_map(|point| point.repeats.values_mut()) {
        *values.get_mut("throughput_bps").unwrap() *= 1.5;
    }
    let (agree, all) = agreement(&first, &apart).counts();
    assert_eq!(all - agree, 4);
    assert!(all > 8);

    let mut lacking = first.clone();
    for values in lacking.points.iter_mut().flat_map(|point| point.repeats.values_mut()) {
        values.remove("throughput_bps");
    }
    lacking.points[0].repeats.values_mut().next().unwrap().remove("jain_bytes");
    let agreed = agreement(&first, &lacking);
    assert_eq!(agreed.missing_figures, 4, "{:?}", agreed.warnings);
    assert_eq!(
        agreed.warnings,
        [
            "missing in some repeats: jain_bytes in the second study, at 1 point",
            "missing in some repeats: throughput_bps in the second study, at 4 points",
        ]
    );
}

#[test]
fn lines_that_are_none_do_not_bring_the_reader_down() {
    let mut text = Vec::new();
    writeln!(text, r#"{{"what":"rate","scenario":"a","rate_bps":1000000000}}"#).unwrap();
    assert_eq!(journal::parse_entries(&text[..]).unwrap().0.len(), 1);
    text.extend_from_slice(b"\xff\xfe{\"what\":");
    let (entries, good) = journal::parse_entries(&text[..]).unwrap();
    assert_eq!((entries.len(), good), (1, 53));
    text.push(b'\n');
    text.extend_from_slice(b"{\"what\":\"end\",\"ended\":\"\",\"took_s\":1.0}\n");
    let fault = journal::parse_entries(&text[..]).unwrap_err();
    assert!(matches!(fault, EntryFault::Damaged { line: 2, .. }), "{fault:?}");
}

#[test]
fn figures_that_no_run_can_give_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("study");
    run(&mut Known::default(), &path, &Patience::of(ALL)).unwrap();
    let file = path.join("repeats.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let start = text.find("\"throughput_bps\":").unwrap() + "\"throughput_bps\":".len();
    let end = start + text[start..].find([',', '}']).unwrap();
    for absurd in ["1e308", "-1.0"] {
        fs::write(&file, format!("{}{absurd}{}", &text[..start], &text[end..])).unwrap();
        let error = journal::read(&path).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            cause.contains("throughput_bps") && error.to_string().contains("repeats.jsonl"),
            "{error}: {cause}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(text: Vec<u8>) {
        let _ = journal::parse_entries(&text[..]);
    }
}

/// The figures of a repeat whose meter did not count every packet are left out, in verdicts and comparisons.
#[test]
fn a_repeat_that_lost_count_has_no_figures() {
    let directory = tempfile::tempdir().unwrap();
    run(&mut Known::default(), directory.path(), &Patience::of(ALL)).unwrap();
    let (settings, mut entries) = journal::read(directory.path()).unwrap();
    let scenarios = scenarios();
    let whole = Results::bare(&settings, &entries, &scenarios);
    let done = entries.iter_mut().find_map(|entry| match entry {
        Entry::Repeat(done) => Some(done),
        _ => None,
    });
    let done = done.unwrap();
    done.record.counters.insert("meter_overflow".to_owned(), 5.0);
    done.disturbed = true;
    let name = done.point.clone();
    let part = Results::bare(&settings, &entries, &scenarios);
    let point = part.points.iter().find(|point| point.name == name).unwrap();
    assert!(point.lacks("throughput_bps") && !whole.points.iter().any(|point| point.lacks("throughput_bps")));
    let warnings = agreement(&whole, &part).warnings.join("; ");
    for words in [
        "without an undisturbed run: 1 repeat of the second study",
        "1 point of the second study: packets were not counted",
        "missing in some repeats: throughput_bps in the second study, at 1 point",
    ] {
        assert!(warnings.contains(words), "{words}: {warnings}");
    }
}
