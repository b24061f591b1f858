//! Tests `evenkeel study tc` on the real kernel: interrupted, killed, resumed, and with a user's setup.
//! Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const SCENARIO: &str = r#"schema = 1
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
qdiscs = ["pfifo", "tbf", "fq_codel"]
clients = [4]
length = ["64KiB"]

[measure]
warmup = "300ms"
duration = "1s"
repeats = 5
"#;

/// A user's setup: a shaper at 30 % of the line rate.
const OWN: &str = r#"schema = 1

[setup.thirty-percent]
summary = "30 % of the line"
steps = ["qdisc root handle 1: tbf rate 30% burst 2*segment limit 1000*mtu"]
"#;

const DEADLINE: Duration = Duration::from_secs(60);

fn start(directory: &Path) -> Child {
    let arguments = ["study", "tc", "--on", "netns", "--scenario", "short.toml", "--qdiscs", "own.toml"];
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .current_dir(directory)
        .args(arguments)
        .args(["--rate", "100mbit", "--out", "study", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn repeats(directory: &Path) -> usize {
    let text = fs::read_to_string(directory.join("study/repeats.jsonl")).unwrap_or_default();
    text.lines().filter(|line| line.contains("\"what\":\"repeat\"")).count()
}

/// Waits until the study has at least `wanted` finished repeats.
fn until(directory: &Path, wanted: usize) {
    let deadline = Instant::now() + DEADLINE;
    while repeats(directory) < wanted {
        assert!(Instant::now() < deadline, "{} repeats", repeats(directory));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_study_on_the_kernel_goes_on_after_an_interruption_and_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("short.toml"), SCENARIO).unwrap();
    fs::write(path.join("own.toml"), OWN).unwrap();

    let interrupted = start(path);
    until(path, 2);
    kill(Pid::from_raw(interrupted.id() as i32), Signal::SIGINT).unwrap();
    let ended = interrupted.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{message}");
    assert!(message.contains("resume the study with: evenkeel study tc --resume study"), "{message}");
    let first = repeats(path);

    let mut killed = start(path);
    until(path, first + 2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let second = repeats(path);
    assert!(second >= first + 2, "{first} {second}");

    let ended = start(path).wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let result: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let runs = result["runs"]["all"].as_u64().unwrap() as usize;
    // Each setup has five repeats, the minimum for a verdict. On a busy machine, the study runs some
    // repeats again.
    let least = 5 * result["points"].as_array().unwrap().len();
    assert!((least..least + 5).contains(&runs) && repeats(path) == runs, "{runs}");
    for point in result["points"].as_array().unwrap() {
        assert_eq!(point["repeats"], 5, "{point}");
    }
    let of = |name: &str| {
        let list = result["work_conservation"].as_array().unwrap();
        list.iter().find(|own| own["qdisc"] == name).unwrap().clone()
    };
    assert_eq!(of("thirty-percent")["conserves"], "no", "{result}");
    assert!(
        (of("thirty-percent")["lost_capacity"]["mean"].as_f64().unwrap() - 0.7).abs() < 0.1,
        "{}",
        of("thirty-percent")
    );
    assert_eq!(of("tbf")["conserves"], "no", "{}", of("tbf"));
    // Either the kernel has fq_codel, or the result names it as missing. The study skips nothing
    // silently.
    let refused = result["refused"].as_array().unwrap();
    let lacks = refused.iter().any(|refusal| refusal["why"].as_str().unwrap().contains("fq_codel"));
    assert!(lacks || of("fq_codel")["conserves"] != "not measured", "{refused:?}");
}

/// A study whose repeats all failed ends with exit code 4, and a resumption measures them again.
#[test]
fn a_study_without_a_measurement_is_a_failure() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let scenario = SCENARIO.replace("[\"pfifo\", \"tbf\", \"fq_codel\"]", "[\"pfifo\"]");
    let scenario = scenario.replace("repeats = 5", "repeats = 2").replace("line = true", "line = false");
    let scenario = scenario.replace("on = \"250ms\"\noff = \"250ms\"\n", "");
    fs::write(path.join("short.toml"), scenario).unwrap();
    let places = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&places).map(|place| place.join("iperf3"));
    let iperf3 = found.into_iter().find(|file| file.is_file()).unwrap();
    let bin = path.join("bin");
    fs::create_dir(&bin).unwrap();
    let real = iperf3.to_str().unwrap();
    let wrapper = format!(
        "#!/bin/sh\ncase \"$*\" in *-c*) echo 'iperf3: error - boom' >&2; exit 1;; esac\nexec {real} \"$@\"\n"
    );
    fs::write(bin.join("iperf3"), wrapper).unwrap();
    fs::set_permissions(bin.join("iperf3"), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |is_broken: bool, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.current_dir(path).args(arguments);
        if is_broken {
            let places = [bin.clone()].into_iter().chain(std::env::split_paths(&places));
            command.env("PATH", std::env::join_paths(places).unwrap());
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let study = ["study", "tc", "--on", "netns", "--scenario", "short.toml", "--out", "study"];
    let (code, message) = run(true, &study);
    assert_eq!(code, Some(4), "{message}");
    for words in ["2 repeats without a measurement", "measure again with: evenkeel study tc --resume study"] {
        assert!(message.contains(words), "{message}");
    }
    let (code, message) = run(false, &["report", "study", "--out", "page.html"]);
    assert_eq!(code, Some(0), "{message}");
    let page = fs::read_to_string(path.join("page.html")).unwrap();
    assert!(
        page.contains("2 repeats without a measurement") && page.contains("Not measured: pfifo"),
        "{page}"
    );
    let (code, message) = run(false, &["study", "tc", "--resume", "study"]);
    assert_eq!(code, Some(0), "{message}");
    // A disturbed repeat runs again.
    assert!(repeats(path) >= 2, "{message}");
}
