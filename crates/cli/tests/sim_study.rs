//! Tests `evenkeel study tc`, end to end in the simulator. No privileges are needed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A short scenario whose name the findings recognise.
const CONSERVATION: &str = r#"schema = 1
name = "tc-work-conservation"
title = "Who lets the link idle, in short"

[link]
rate = "100mbit"
queues = 1

[workload]
kind = "tenants"
line = true

[[workload.bulk]]
share = "50%"

[[workload.bulk]]
share = "50%"
on = "250ms"
off = "250ms"

[[sweep]]
qdiscs = ["pfifo", "tbf", "htb-capped", "htb"]
clients = [4]
length = ["64KiB", "4KiB"]
quick = { length = ["64KiB"] }

[measure]
warmup = "200ms"
duration = "1s"
repeats = 5
quick = { warmup = "100ms", duration = "1s", repeats = 5 }

[[plot]]
name = "lost"
title = "What is lost"
metric = "lost_capacity"
across = "length"
"#;

/// A user's setup: a shaper at 30 % of the line rate.
const OWN: &str = r#"schema = 1

[setup.third]
summary = "a third of the line"
claims = ["work-conservation"]
steps = ["qdisc root handle 1: tbf rate 30% burst 2*segment limit 1000*mtu"]
"#;

struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("short.toml"), CONSERVATION).unwrap();
        fs::write(directory.path().join("own.toml"), OWN).unwrap();
        Self { directory }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.current_dir(self.directory.path()).args(["study", "tc"]).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const SHORT: [&str; 6] = ["--on", "sim", "--scenario", "short.toml", "--quick", "--quiet"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    SHORT.iter().chain(more).copied().collect()
}

fn conserves(result: &Value) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let list = result["work_conservation"].as_array().unwrap();
    list.iter().map(|own| (word(&own["qdisc"]), word(&own["conserves"]))).collect()
}

#[test]
fn a_users_own_qdisc_takes_part_and_every_verdict_has_its_trace() {
    let files = Files::new();
    let result = json(&files.run(&with(&["--qdiscs", "own.toml", "--format", "json", "--out", "study"])));
    let verdicts = conserves(&result);
    let of = |name: &str| verdicts.iter().find(|(own, _)| own == name).map(|(_, verdict)| verdict.as_str());
    assert_eq!(
        (of("third"), of("tbf"), of("htb-capped")),
        (Some("no"), Some("no"), Some("no")),
        "{verdicts:?}"
    );
    assert_eq!((of("pfifo"), of("htb")), (Some("yes"), Some("yes")), "{verdicts:?}");
    let claim = result["claims"].as_array().unwrap().iter().find(|claim| claim["qdisc"] == "third").unwrap();
    assert_eq!((claim["claim"].as_str(), claim["kept"].as_str()), (Some("work-conservation"), Some("no")));
    for own in result["work_conservation"].as_array().unwrap() {
        let trace = files.path("study").join(own["trace"].as_str().unwrap());
        // One line per millisecond, after two header lines.
        assert_eq!(fs::read_to_string(trace).unwrap().lines().count(), 1002);
    }
    assert_eq!(result["points"].as_array().unwrap().len(), 5);
    assert_eq!((result["effort"].as_str(), result["world"].as_str()), (Some("quick"), Some("sim")));
    let page = fs::read_to_string(files.path("study/study.md")).unwrap();
    assert!(page.contains("| third | no |"), "{page}");
    assert_eq!(
        serde_json::from_slice::<Value>(&fs::read(files.path("study/study-result.json")).unwrap()).unwrap(),
        result
    );
}

fn repeats(directory: &Path) -> usize {
    let text = fs::read_to_string(directory.join("repeats.jsonl")).unwrap_or_default();
    text.lines().filter(|line| line.contains("\"what\":\"repeat\"")).count()
}

#[test]
fn a_study_that_was_killed_goes_on_with_the_same_command() {
    let files = Files::new();
    // Run the full sweep with more repeats, so that some remain when the process is killed.
    let arguments =
        ["--on", "sim", "--scenario", "short.toml", "--repeats", "6", "--quiet", "--format", "json"];
    let mut child = files.command(&arguments).stdout(Stdio::null()).spawn().unwrap();
    let directory = files.path("evenkeel-records/study-tc-sim-full");
    let deadline = Instant::now() + Duration::from_secs(120);
    while repeats(&directory) < 3 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = repeats(&directory);
    assert!((3..48).contains(&before), "{before}");
    // Append a truncated line, as a kill during a write does.
    let file = directory.join("repeats.jsonl");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, [&whole[..], b"{\"what\":\"repeat\",\"scen"].concat()).unwrap();

    let resumed = files.command(&arguments[..6]).args(["--format", "json"]).output().unwrap();
    let result = json(&resumed);
    assert!(
        text(&resumed.stderr).contains("the last line of the study was damaged"),
        "{}",
        text(&resumed.stderr)
    );
    assert_eq!((repeats(&directory), result["runs"]["all"].as_u64()), (48, Some(48)));
    // The previous lines are unchanged.
    assert!(fs::read(&file).unwrap().starts_with(&whole));

    // The study has ended. The same command begins another study, and --resume only prints the result
    // again.
    let again = json(
        &files.command(&["--resume"]).arg(&directory).args(["--quiet", "--format", "json"]).output().unwrap(),
    );
    assert_eq!(again["points"], result["points"]);
    let next = files
        .command(&["--on", "sim", "--scenario", "short.toml", "--repeats", "2", "--quiet"])
        .output()
        .unwrap();
    assert!(next.status.success() && files.path("evenkeel-records/study-tc-sim-full-2/study.md").exists());
}

#[test]
fn two_studies_with_different_seeds_agree() {
    let files = Files::new();
    for (seed, directory) in [("1", "first"), ("100", "second")] {
        let output = files
            .command(&SHORT)
            .args(["--seed", seed, "--repeats", "5", "--out", directory])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let compare = |format: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.arg("compare").arg(files.path("first")).arg(files.path("second")).args(["--format", format]);
        command.output().unwrap()
    };
    let result = json(&compare("json"));
    assert_eq!(result["schema"], 1, "{result}");
    assert!(result["answer"].as_str().unwrap().ends_with('.'), "{result}");
    assert!(result["judged"].as_u64().unwrap() >= 12, "{result}");
    assert!(result["share"].as_f64().unwrap() >= 0.9, "{result}");
    let table = text(&compare("table").stdout);
    assert!(
        table.contains("seed differs: 1 and 100") && table.contains("The intervals are simultaneous"),
        "{table}"
    );
    // A single repeat cannot decide a finding.
    let output = files.command(&SHORT).args(["--repeats", "1", "--out", "single"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let single = files.path("single");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let refused = command.arg("compare").args([&single, &single]).output().unwrap();
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(2), ""));
    assert!(text(&refused.stderr).contains("nothing to compare"));
    for option in [&["--within", "5%"][..], &["--metric", "throughput_bps"], &["--all"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let refused = command.arg("compare").args([&single, &single]).args(option).output().unwrap();
        assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(2), ""), "{option:?}");
        assert!(text(&refused.stderr).contains("are for records, not for studies"), "{option:?}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(["compare", "--help"]).output().unwrap();
    let help = text(&help.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["this metric of two records", "two records are equal within", "every figure of two records"]
    {
        assert!(help.contains(words), "{words}: {help}");
    }
}

/// Copies the study `whole`, with a change in one of its files. If `change` returns `None`, the copy lacks
/// the file.
fn damaged(files: &Files, name: &str, file: &str, change: impl Fn(&str) -> Option<String>) {
    let directory = files.path(name);
    fs::create_dir(&directory).unwrap();
    for part in ["study.json", "repeats.jsonl"] {
        let text = fs::read_to_string(files.path("whole").join(part)).unwrap();
        let text = if part == file { change(&text) } else { Some(text) };
        text.into_iter().for_each(|text| fs::write(directory.join(part), text).unwrap());
    }
}

fn without_a_repeat(text: &str) -> Option<String> {
    let at = text.find("{\"what\":\"repeat\"")?;
    let end = at + text[at..].find('\n')? + 1;
    Some(format!("{}{}", &text[..at], &text[end..]))
}

#[test]
fn a_damaged_study_is_named() {
    let files = Files::new();
    let setups = ["--qdisc", "pfifo", "--qdisc", "tbf", "--repeats", "5", "--out", "whole"];
    assert!(files.command(&SHORT).args(setups).output().unwrap().status.success());
    let replaced = |from: &'static str, to: &'static str| {
        move |text: &str| {
            assert!(text.contains(from), "{from}");
            Some(text.replacen(from, to, 1))
        }
    };
    let (settings, log) = ("study.json", "repeats.jsonl");
    damaged(&files, "gap", log, without_a_repeat);
    damaged(&files, "cut", log, |text| Some(text[..text.len() - 30].to_owned()));
    damaged(&files, "empty", log, |_| Some(String::new()));
    damaged(&files, "missing", log, |_| None);
    damaged(&files, "point", log, replaced("\"point\":\"pfifo", "\"point\":\"nosuch"));
    damaged(&files, "number", log, replaced("\"repeat\":0", "\"repeat\":99"));
    damaged(&files, "negative", log, replaced("\"repeat\":0", "\"repeat\":-1"));
    damaged(&files, "huge", log, replaced("\"throughput_bps\":", "\"throughput_bps\":1e308,\"x\":"));
    damaged(&files, "rate", log, |text| {
        let (start, end) = text.split_once("\"rate_bps\":")?;
        Some(format!("{start}\"rate_bps\":1{}", end.trim_start_matches(|c: char| c.is_ascii_digit())))
    });
    damaged(&files, "longer", settings, replaced("[measure]\\n", "[measure]\\n# for longer\\n"));
    damaged(&files, "garbage", settings, replaced("schema = 1\\n", "schema 1\\n"));
    damaged(&files, "broken", log, |text| Some(format!("<{text}")));
    damaged(&files, "future", settings, replaced("\"schema\": 1", "\"schema\": 9"));
    damaged(&files, "moon", settings, replaced("\"world\": \"sim\"", "\"world\": \"moon\""));
    damaged(&files, "kernel", settings, replaced("\"kernel\": \"", "\"kernel\": \"x"));
    damaged(&files, "nothing", settings, |_| Some(String::new()));
    damaged(&files, "bare", settings, |_| None);

    let compare = |second: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["compare", "whole", second]).args(more).env("COLUMNS", "60");
        command.current_dir(files.directory.path()).output().unwrap()
    };
    let whole = text(&compare("whole", &[]).stdout);
    assert!(whole.lines().all(|line| line.chars().count() <= 60), "{whole}");
    for (second, words) in [
        ("gap", &["gap: repeats are missing: tc-work-conservation", "(4 of 5)", "not compared"][..]),
        ("cut", &["cut: line ", "is cut short and not read", "cut: it is not finished"]),
        ("longer", &["the text of tc-work-conservation differs"]),
        ("point", &["only in the second study: tc-work-conservation nosuch"]),
    ] {
        let warnings = json(&compare(second, &["--format", "json"]))["warnings"].to_string();
        let table = text(&compare(second, &[]).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            assert!(warnings.contains(word) && table.contains(word), "{second}: {word}: {warnings}\n{table}");
        }
    }
    let refused = |output: &Output, words: &str| {
        let message = text(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(words), "{words}: {message}");
        assert!(output.stdout.is_empty() && !message.contains("u32"), "{message}");
    };
    for (second, words) in [
        ("empty", "empty: repeats.jsonl is empty"),
        ("missing", "missing: repeats.jsonl is missing"),
        ("future", "study.json has schema 9, but this evenkeel reads schema 1"),
        ("nothing", "study.json is empty"),
        ("bare", "bare is not a study: it has no study.json"),
        ("negative", ": -1 in place of a whole number from 0 to 4294967295;"),
        ("huge", " is 1e308, which cannot have been measured"),
        ("rate", "rate/repeats.jsonl:1: rate_bps is 1 bit/s, which cannot be the rate of a line"),
        ("garbage", "garbage/study.json: scenarios.tc-work-conservation:1:"),
        ("broken", "repeats.jsonl:1:1: no JSON;"),
        ("short.toml", "whole is a study, and short.toml is a file; name two records, or the directories"),
        ("whole/study-result.json", "whole/study-result.json is a file of a study; name two"),
        ("nowhere", "nowhere does not exist"),
    ] {
        refused(&compare(second, &[]), words);
    }
    for (directory, words) in [
        ("point", ": the study has no point 'nosuch"),
        ("number", ": the study has no repeat 99 of tc-work-conservation "),
        ("negative", ": -1 in place of a whole number from 0 to 4294967295;"),
        ("future", "study.json has schema 9"),
        ("moon", "no world 'moon'"),
        ("kernel", "cannot resume kernel here: its kernel is x"),
        ("nothing", "study.json is empty"),
    ] {
        refused(&files.run(&["--resume", directory]), words);
    }
    let before = repeats(&files.path("whole"));
    assert_eq!(repeats(&files.path("gap")), before - 1);
    let resumed = files.run(&["--resume", "gap"]);
    let said = text(&resumed.stderr);
    assert!(
        resumed.status.success() && said.contains("lacks 1 repeat: running these repeats again"),
        "{said}"
    );
    assert_eq!(repeats(&files.path("gap")), before);
    assert!(!text(&compare("gap", &[]).stdout).contains("missing"));
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let files = Files::new();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = files.run(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(output.stdout.is_empty());
        for word in words {
            assert!(message.contains(word), "{arguments:?}: {word:?} is not in {message}");
        }
    };
    refused(&["--on", "sim", "--scenario", "titan-6-flows"], 2, &["titan-6-flows does not compare qdiscs"]);
    refused(&["--on", "sim", "--scenario", "tc-x"], 2, &["no scenario 'tc-x'", "tc-clients"]);
    refused(&["--on", "sim", "--qdisc", "pfifoo"], 2, &["'pfifoo'", "pfifo_fast", "--qdiscs FILE"]);
    refused(&["--on", "sim", "--qdiscs", "absent.toml"], 2, &["absent.toml"]);
    fs::write(files.path("broken.toml"), OWN.replace("tbf rate", "tbf rat")).unwrap();
    refused(&["--on", "sim", "--qdiscs", "broken.toml"], 2, &["broken.toml:6:"]);
    refused(
        &["--on", "sim", "--quick", "--scenario", "tc-filter-cost", "--qdisc", "drr"],
        2,
        &["drr is not among the quick points of tc-filter-cost; leave out --quick, or choose from htb"],
    );
    refused(&["--resume", "nowhere"], 2, &["nowhere is not a study"]);
    // A refused command leaves no directory that would obstruct the correct command.
    let alone = "schema = 1\n[setup.a]\nsummary = 'x'\nsteps = ['qdisc root handle 1: codel']\n";
    fs::write(files.path("alone.toml"), alone).unwrap();
    let command = with(&["--qdiscs", "alone.toml", "--qdisc", "a", "--out", "left/st"]);
    refused(&command, 3, &["the simulator has no codel"]);
    assert!(!files.path("left").exists());
    refused(&["--rate", "5"], 2, &["--rate"]);
    fs::create_dir(files.path("full")).unwrap();
    fs::write(files.path("full/thesis.txt"), "mine").unwrap();
    refused(&with(&["--out", "full"]), 2, &["full contains files that do not belong to a study"]);

    assert!(files.run(&with(&["--out", "done", "--repeats", "1", "--qdisc", "pfifo"])).status.success());
    refused(
        &with(&["--out", "done", "--repeats", "2", "--qdisc", "pfifo"]),
        2,
        &["another study", "its number of repeats is 1, not 2"],
    );
    // A resumed study uses its own settings, so the command refuses these options.
    let settings: [&[&str]; 5] =
        [&["--quick"], &["--seed", "7"], &["--on", "sim"], &["--rate", "1gbit"], &["--qdisc", "pfifo"]];
    for setting in settings {
        refused(&[&["--resume", "done"], setting].concat(), 2, &["--resume <DIR>", "cannot be used with"]);
    }
}

#[test]
fn the_table_of_setups_is_markdown() {
    let files = Files::new();
    let output = files.run(&with(&["--qdisc-table", "--out", "table"]));
    let table = text(&output.stdout);
    assert!(output.status.success() && table.starts_with("Measured on 20"), "{table}");
    assert!(table.contains("| htb-capped |") && table.contains("| no |"), "{table}");
    let shown = text(&files.run(&["--resume", "table", "--quiet"]).stdout);
    let again = files.run(&with(&["--out", "table"]));
    assert_eq!(text(&again.stdout), shown);
    let first: Vec<&str> = shown.lines().take(2).collect();
    assert!(first[0].starts_with("table holds a finished study of 20"), "{shown}");
    assert!(first[0].ends_with(": this run measured nothing") && first[1].contains("--out DIR"), "{shown}");
    // The bare command would begin another study, of every scenario on the kernel.
    assert!(first[1].contains("the options of this study") && !first[1].contains("study tc"), "{shown}");
    let json = files.run(&["--resume", "table", "--format", "json"]);
    assert!(text(&json.stdout).starts_with('{'));
    assert!(text(&json.stderr).contains("table holds a finished study of 20"), "{json:?}");
    assert!(shown.contains("Work conservation") && !shown.contains("KF12 not measurable"), "{shown}");
    let missed = shown.lines().find(|line| line.starts_with("Not measurable in this study: "));
    assert!(missed.is_some_and(|line| line.contains("KF12")), "{shown}");
}

/// The kernel decides which kinds exist. So only the world of a study (the kernel or the simulator) refuses a
/// misspelt kind, with the reason.
#[test]
fn a_misspelt_kind_is_named_with_the_nearest() {
    let files = Files::new();
    let own = OWN.replace("tbf rate 30% burst 2*segment limit 1000*mtu", "fq_codl");
    fs::write(files.directory.path().join("own.toml"), own).unwrap();
    let output = files.run(&with(&["--qdiscs", "own.toml", "--out", "study"]));
    let shown = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    let expected =
        "Not measured: third (1 point): the simulator has no fq_codl (1:0) (did you mean 'fq_codel'?)";
    assert!(output.status.success() && shown.contains(expected), "{shown}");
}

/// A study refuses a bundled setup that its scenarios do not use. The error differs from the error about an
/// unknown setup.
#[test]
fn a_setup_that_the_scenarios_do_not_use_is_named_as_such() {
    let files = Files::new();
    let output = files.run(&with(&["--qdisc", "drr", "--out", "study"]));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("do not use the qdisc setup drr; they use htb, htb-capped, pfifo, tbf;"),
        "{error}"
    );
    let error = text(&files.run(&with(&["--qdisc", "nonesuch", "--out", "study"])).stderr);
    assert!(error.contains("no qdisc setup 'nonesuch'"), "{error}");
}

/// The study keeps the texts of the scenario's `qdisc-files`: another file is another study, and a resumption
/// and a report need neither the file nor its directory.
#[test]
fn a_study_keeps_the_setups_of_its_scenario() {
    let files = Files::new();
    let scenario = CONSERVATION.replacen("[link]", "qdisc-files = [\"own.toml\"]\n\n[link]", 1);
    let scenario = scenario.replacen("\"tbf\", \"htb-capped\", \"htb\"", "\"third\"", 1);
    fs::write(files.path("short.toml"), scenario).unwrap();
    let run = || files.run(&with(&["--out", "study"]));
    let first = run();
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(files.run(&with(&["--out", "other", "--seed", "9"])).status.success());
    fs::write(files.path("own.toml"), OWN.replace("30%", "50%")).unwrap();
    let changed = run();
    let message = text(&changed.stderr);
    assert_eq!(changed.status.code(), Some(2), "{message}");
    assert!(message.contains("its file own.toml (qdisc-files of tc-work-conservation) differs"), "{message}");
    assert!(files.run(&with(&["--out", "half", "--seed", "9"])).status.success());

    fs::remove_file(files.path("own.toml")).unwrap();
    let elsewhere = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.current_dir("/").args(arguments).output().unwrap()
    };
    let path = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let resumed = elsewhere(&["study", "tc", "--resume", &path("study"), "--quiet"]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    let page = elsewhere(&["report", &path("study"), "--out", &path("page.html")]);
    assert!(page.status.success(), "{}", text(&page.stderr));
    let compared = |second: &str| {
        let output = elsewhere(&["compare", &path("study"), &path(second), "--format", "json"]);
        json(&output)["warnings"].to_string()
    };
    let differs = "the text of own.toml (qdisc-files of tc-work-conservation) differs";
    assert!(compared("half").contains(differs) && !compared("other").contains(differs));
}
