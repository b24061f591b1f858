//! Tests `evenkeel scenario list | show | check`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::PathBuf;

use support::{Ended, end, evenkeel, file, run};

const VALID: &str = r#"schema = 1
name = "uplink"
title = "Five flows on four queues"
variant-table = "titan"
variants = ["cmax", "dqa", "small"]

[link]
rate = "2.5gbit"
queues = 4

[hosts]
sending-cores = 4

[workload]
flows = 5

[workload.latency]
duration = "1s"

[measure]
repeats = 3

[measure.windows]
10ms = "10ms"
1s = "1s"

[variant.small]
base = "cmax"
summary = "Hashing, with segments of 16 KiB."
gso-size = "16KiB"

[groups]
both = ["cmax", "dqa"]

[paper]
source = "Nowhere"

[paper.variants.dqa]
nfm = { 1s = 0.78 }

[[expect]]
variant = "dqa"
metric = "nfm.1s"
statistic = "mean"
at-most = 0.65
"#;

/// A part of VALID, its replacement, and a part of the expected message. `»` marks the position that
/// the message must name. The mark is not part of the file.
const BROKEN: &[(&str, &str, &str)] = &[
    // Invalid TOML.
    ("schema = 1", "schema = »", "not TOML"),
    ("[link]", "[link»", "not TOML"),
    ("queues = 4", "queues = 4\n»queues = 5", "duplicate key"),
    ("title = \"Five", "title = »Five", "not TOML"),
    // Keys.
    ("queues = 4", "»queuess = 4", "did you mean 'queues'?"),
    ("[workload]", "[»worklaod]", "did you mean 'workload'?"),
    ("repeats = 3", "repeats = 3\n»colour = \"blue\"", "unknown key"),
    ("gso-size =", "»gso-sise =", "did you mean 'gso-size'?"),
    ("rate = \"2.5gbit\"\n", "", "link.rate: missing"),
    ("name = \"uplink\"\n", "", "name: missing"),
    // Versions and types.
    ("schema = 1", "schema = »2", "reads schema 1; convert"),
    ("flows = 5", "flows = »\"5\"", "expected"),
    ("flows = 5", "flows = »5.5", "expected"),
    ("variants = [\"cmax\", \"dqa\", \"small\"]", "variants = »\"cmax\"", "expected"),
    ("title = \"Five flows on four queues\"", "title = »5", "expected"),
    // Units.
    ("rate = \"2.5gbit\"", "rate = »2500000000", "units are needed"),
    ("rate = \"2.5gbit\"", "rate = »\"2500000000\"", "link.rate"),
    ("rate = \"2.5gbit\"", "rate = »\"2.5gb\"", "link.rate"),
    ("duration = \"1s\"", "duration = »\"1 parsec\"", "workload.latency.duration"),
    ("duration = \"1s\"", "duration = »\"-1s\"", "workload.latency.duration"),
    ("gso-size = \"16KiB\"", "gso-size = »16384", "units are needed"),
    // Impossible values.
    ("queues = 4", "queues = »0", "link.queues"),
    ("queues = 4", "queues = »257", "link.queues"),
    ("queues = 4", "queues = »-4", "link.queues"),
    ("flows = 5", "flows = »0", "workload.flows"),
    ("sending-cores = 4", "sending-cores = »0", "hosts.sending-cores"),
    ("repeats = 3", "repeats = »0", "measure.repeats"),
    ("rate = \"2.5gbit\"", "rate = »\"0gbit\"", "link.rate"),
    ("10ms = \"10ms\"", "10ms = »\"20ms\"", "measure.windows.10ms"),
    ("1s = 0.78", "1s = »nan", "not a finite number"),
    ("at-most = 0.65", "at-least = »0.9\nat-most = 0.65", "above at-most"),
    // Names.
    ("name = \"uplink\"", "name = »\"Up link\"", "name"),
    ("\"dqa\", \"small\"]", "»\"dpa\", \"small\"]", "unknown variant 'dpa'"),
    ("base = \"cmax\"", "base = »\"cmaxx\"", "did you mean 'cmax'?"),
    ("base = \"cmax\"", "base = »\"small\"", "form a loop"),
    ("[groups]", "[variant.»dqa]\nbase = \"cmax\"\nsummary = \"Again.\"\n\n[groups]", "variant.dqa"),
    ("variant-table = \"titan\"", "variant-table = »\"titanic\"", "did you mean 'titan'?"),
    ("both = [\"cmax\"", "both = [»\"cvanila\"", "did you mean 'cvanilla'?"),
    ("metric = \"nfm.1s\"", "metric = »\"nfm.2s\"", "unknown metric 'nfm.2s'"),
    ("statistic = \"mean\"", "statistic = »\"average\"", "statistic"),
];

fn with(command: &[&str], paths: &[&PathBuf]) -> Ended {
    let mut command = evenkeel(command);
    command.args(paths);
    end(command)
}

/// Removes the mark. Returns the text, and the line and column of the mark, both counted from 1; `None`
/// without a mark.
fn take_mark(text: &str) -> (String, Option<(usize, usize)>) {
    let Some((before, after)) = text.split_once('»') else { return (text.to_owned(), None) };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
    (format!("{before}{after}"), Some((line, column)))
}

/// A shell reads the command on the last line as intended.
#[test]
fn the_command_for_the_file_is_quoted() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["my scenario.toml", "-x.toml"] {
        file(directory.path(), name, VALID);
        let mut command = evenkeel(&["scenario", "show", "--"]);
        command.arg(name).current_dir(directory.path());
        let shown = end(command);
        let last = shown.stdout.lines().last().unwrap_or_default();
        let words = last.split('`').nth(1).unwrap_or_default().replacen("evenkeel", "\"$0\"", 1);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &words, env!("CARGO_BIN_EXE_evenkeel")]).current_dir(directory.path());
        let printed = end(shell);
        assert_eq!((printed.code, printed.stdout.trim_end()), (0, VALID.trim_end()), "{shown:?} {printed:?}");
    }
}

#[test]
fn the_base_of_the_broken_files_is_valid() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "uplink.toml", VALID);
    let ended = with(&["scenario", "check"], &[&path]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert!(
        ended.stdout.starts_with(&format!("{}: uplink is a valid scenario", path.display())),
        "{ended:?}"
    );
}

#[test]
fn broken_files_are_refused_by_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (number, (from, to, words)) in BROKEN.iter().enumerate() {
        let text = VALID.replacen(from, to, 1);
        assert_ne!(text, VALID, "{from:?} is not in the text");
        let (text, place) = take_mark(&text);
        let path = file(directory.path(), &format!("{number}.toml"), text);
        let ended = with(&["scenario", "check"], &[&path]);
        let start = match place {
            Some((line, column)) => format!("evenkeel: {}:{line}:{column}: ", path.display()),
            None => format!("evenkeel: {}:", path.display()),
        };
        let fits = ended.code == 2
            && ended.stdout.is_empty()
            && ended.stderr.starts_with(&start)
            && names_a_place(ended.stderr.strip_prefix(&format!("evenkeel: {}", path.display())))
            && ended.stderr.contains(words);
        if !fits {
            wrong.push(format!("{from:?} -> {to:?}: wanted {start}...{words}\n  got {ended:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), BROKEN.len(), wrong.join("\n"));
}

/// Returns whether a text begins with `:LINE:COLUMN: `.
fn names_a_place(text: Option<&str>) -> bool {
    let mut parts = text.unwrap_or_default().splitn(4, ':').skip(1);
    let mut number = || parts.next().is_some_and(|part| part.parse::<usize>().is_ok_and(|number| number > 0));
    number() && number()
}

#[test]
fn files_that_are_no_text_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let check = |name: &str, content: &[u8]| {
        let path = file(directory.path(), name, content);
        let ended = with(&["scenario", "check"], &[&path]);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{name}: {ended:?}");
        assert!(ended.stderr.contains(name), "{ended:?}");
        ended.stderr
    };
    let latin1 = VALID.replace("Five", "F\u{fc}nf").chars().map(|c| c as u8).collect::<Vec<u8>>();
    let message = check("latin1.toml", &latin1);
    assert!(message.contains("latin1.toml:3:"), "{message}");
    check("empty.toml", b"");
    check("binary.toml", &[0, 159, 146, 150, 0, 0, 255]);
    check("large.toml", &vec![b'#'; (1 << 20) + 1]);
    check("nul.toml", format!("{VALID}\0").as_bytes());
    check("deep.toml", format!("x = {}", "[".repeat(100_000)).as_bytes());
}

#[test]
fn files_that_are_not_there_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (name, words) in [("missing.toml", "No such file"), (".", "not a file")] {
        let path = directory.path().join(name);
        for command in [vec!["scenario", "check"], vec!["scenario", "show"], vec!["run"]] {
            let ended = with(&command, &[&path]);
            assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{command:?}: {ended:?}");
            assert!(ended.stderr.contains(words), "{command:?}: {ended:?}");
        }
    }
}

#[test]
fn a_missing_file_with_the_name_of_a_bundled_scenario_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [["scenario", "check", "titan-12-flows"], ["scenario", "show", "titan-12-flows.toml"]] {
        let mut command = evenkeel(&arguments);
        command.current_dir(directory.path());
        let ended = end(command);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains("the bundled scenario is named titan-12-flows"), "{ended:?}");
    }
}

#[test]
fn check_goes_on_after_a_broken_file() {
    let directory = tempfile::tempdir().unwrap();
    let good = file(directory.path(), "good.toml", VALID);
    let bad = file(directory.path(), "bad.toml", VALID.replace("queues = 4", "queues = 0"));
    let ended = with(&["scenario", "check"], &[&bad, &good, &bad]);
    assert_eq!(ended.code, 2);
    assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 2, "{ended:?}");
}

#[test]
fn bundled_scenarios_are_listed_shown_and_valid() {
    let list = run(&["scenario", "list"]);
    assert_eq!((list.code, list.stderr.as_str()), (0, ""));
    assert!(list.stdout.contains("bundled scenarios: "), "{list:?}");
    let first_word = |line: &'_ str| line.split_whitespace().next().map(str::to_owned);
    let names: Vec<String> =
        list.stdout.lines().skip(2).filter(|line| !line.starts_with(' ')).filter_map(first_word).collect();
    for flows in [3, 6, 12, 24, 48, 192] {
        assert!(names.contains(&format!("titan-{flows}-flows")), "{names:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    for name in &names {
        let shown = run(&["scenario", "show", name]);
        assert_eq!((shown.code, shown.stderr.as_str()), (0, ""), "{name}");
        assert!(shown.stdout.starts_with(&format!("{name}: ")), "{name}");
        let settings = if name.starts_with("dragonet-") {
            [("rss (base: balance)", "policy = none"), ("balance", "policy")]
        } else if name.starts_with("tc-") {
            [("htb", "class parent 1: "), ("htb", "qdisc root handle 1: htb")]
        } else if name == "host-stack" {
            [("tso-gro+arfs (base: tso-gro)", "interrupts = with-reader"), ("none", "machine")]
        } else if name == "tcp100g-two-cores" {
            [("apart (base: same)", "interrupts = apart"), ("same (base: default)", "reader-work = 3ms")]
        } else if name.starts_with("tcp100g-") || name.starts_with("congestion-") {
            [("tuned (base: default)", "ring"), ("default", "machine")]
        } else {
            [("dqa (base: cmax)", "queue-choice = dqa"), ("cmax", "queue-choice = hash")]
        };
        for (variant, setting) in settings {
            assert!(
                shown.stdout.contains(variant) && shown.stdout.contains(setting),
                "{name}: {variant}: {setting}\n{}",
                shown.stdout
            );
        }
        let toml = run(&["scenario", "show", name, "--toml"]);
        assert!(toml.stdout.contains(&format!("name = \"{name}\"")), "{name}");
        let path = file(directory.path(), &format!("{name}.toml"), &toml.stdout);
        let checked = with(&["scenario", "check"], &[&path]);
        assert_eq!(checked.code, 0, "{checked:?}");
    }
}

#[test]
fn the_traffic_is_shown_with_its_numbers() {
    let scenarios: [(&str, &[&str]); 6] = [
        (
            "titan-12-flows",
            &[
                "12 flows from 8 cores of one host to another",
                "requests of 64B for",
                "TCP cubic",
                "fairness over",
            ],
        ),
        ("shuffle-24", &["each of 24 hosts sends 1GB to every other host"]),
        ("memcached-hol", &["6 clients, values of 512KiB; not timed", "1 client, values of 2KiB, 4KiB"]),
        ("dragonet-echo", &["20 clients", "1 flow each, 16 outstanding per flow"]),
        (
            "tc-fairness-mixed",
            &[
                "50% of the clients (2, 4, 8, 12, 16, 20, 24, 32, 40, 48), writes of 4KiB",
                "25% of the clients (1, 2, 4,",
                "writes of 8KiB",
            ],
        ),
        (
            "tc-priority",
            &[
                "all clients, writes of",
                "1 probe, requests of",
                "SLO 500us",
                "192 variants, with these values; a run without --variant takes 20 of them:",
            ],
        ),
    ];
    for (name, parts) in scenarios {
        let shown = run(&["scenario", "show", name]);
        // `show` wraps lines at the width of the terminal.
        let text = shown.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(text.contains(part), "{name}: {part:?} in {}", shown.stdout);
        }
        assert!(!text.contains("warm-up 0ns"), "{}", shown.stdout);
    }
}

#[test]
fn a_file_is_shown_with_its_own_variants() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "uplink.toml", VALID);
    let shown = with(&["scenario", "show"], &[&path]);
    assert_eq!(shown.code, 0, "{shown:?}");
    let own = shown.stdout.split("  small (base: cmax): ").nth(1).expect("the file's own variant");
    assert!(own.lines().nth(1).unwrap().contains("gso-size = 16"), "{own}");
    let toml = with(&["scenario", "show", "--toml"], &[&path]);
    assert_eq!(toml.stdout.trim_end(), VALID.trim_end());
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    for command in [["scenario", "show", "titan-7-flows"].as_slice(), &["run", "titan-7-flows"]] {
        let ended = run(command);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        assert!(
            ended.stderr.contains("'titan-7-flows'") && ended.stderr.contains("titan-6-flows"),
            "{ended:?}"
        );
    }
}

#[test]
fn the_reference_states_the_range_of_line_rates() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "uplink.toml", VALID.replace("2.5gbit", "0gbit"));
    let refused = with(&["scenario", "check"], &[&path]).stderr;
    let range = refused.trim_end().split("write a value from ").nth(1).unwrap();
    let reference = include_str!("../../../docs/reference/scenarios.md");
    let row = reference.lines().find(|line| line.starts_with("| `rate` |")).unwrap();
    assert!(row.replace(" mbit", "mbit").replace(" tbit", "tbit").contains(range), "{range} is not in {row}");
}

#[test]
fn a_scenario_without_variants_of_its_own_is_pointed_to_a_table_of_them() {
    let shown = run(&["scenario", "show", "titan-3-flows", "--toml"]).stdout;
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "own.toml", shown.replace("variant-table = \"titan\"\n", ""));
    let refused = with(&["scenario", "check"], &[&path]);
    let advice = "the file has no variant: write a [variant.NAME] table, or name a variant-table";
    assert!(refused.code == 2 && refused.stderr.contains(advice), "{refused:?}");
}
