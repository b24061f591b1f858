//! Runs `evenkeel check` on the hosts in `tests/hosts`: machines of operators, some healthy, some with
//! faults.
//!
//! The test unpacks `NAME.host` into a tree of files (`support/recorded.rs`). `NAME.expect.toml`
//! contains an operator's expectations:
//!
//! - `healthy`, and `story`: the machine and its load;
//! - `silent`: rules without a finding on this host;
//! - `looks_odd_and_is_fine`: facts that look like faults and are none (not tested);
//! - `[[fault]]`: an expected finding, with these keys.
//!
//! | key | meaning |
//! |---|---|
//! | `what` | the fault |
//! | `number` | the figure that a correct finding contains, with each lost packet counted once |
//! | `cause`, `fix` | the cause, the remedy |
//! | `severity` | the severity to an operator (optional) |
//! | `counter` | the counter or file that shows the fault |
//! | `rule` | the rule that reports it |
//! | `says`, `never` | texts that a correct finding contains, or must not contain |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/parallel.rs"]
mod parallel;
#[path = "support/recorded.rs"]
mod recorded;
mod support;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parallel::on_all_processors;
use serde_json::Value;
use support::run;

struct Host {
    name: String,
    expected: toml::Table,
    report: Value,
}

/// Returns all hosts. Each host is checked only once.
fn hosts() -> &'static [Host] {
    static HOSTS: OnceLock<Vec<Host>> = OnceLock::new();
    HOSTS.get_or_init(read_hosts)
}

fn read_hosts() -> Vec<Host> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "host"))
        .collect();
    files.sort();
    on_all_processors(&files, |path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        Host {
            report: report(&name, &std::fs::read_to_string(path).unwrap()),
            name,
            expected: std::fs::read_to_string(path.with_extension("expect.toml")).unwrap().parse().unwrap(),
        }
    })
}

fn report(name: &str, text: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    recorded::unpack(text, directory.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let ended = run(&["check", "--from", directory.path().to_str().unwrap(), "--format", "json"]);
    assert!(matches!(ended.code, 0 | 1), "{name}: {ended:?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{name}: {error}"))
}

impl Host {
    fn is_healthy(&self) -> bool {
        self.expected["healthy"].as_bool().unwrap()
    }

    fn faults(&self) -> Vec<&toml::Value> {
        self.expected.get("fault").and_then(toml::Value::as_array).into_iter().flatten().collect()
    }
}

#[test]
fn expectations_are_complete() {
    let hosts = hosts();
    let healthy = hosts.iter().filter(|host| host.is_healthy()).count();
    let faults: usize = hosts.iter().map(|host| host.faults().len()).sum();
    assert!(hosts.len() >= 112 && healthy >= 32 && faults >= 326, "{} {healthy} {faults}", hosts.len());
    for host in hosts {
        assert!(!host.expected["story"].as_str().unwrap().is_empty(), "{}", host.name);
        assert_eq!(host.is_healthy(), host.faults().is_empty(), "{}", host.name);
        for fault in host.faults() {
            for key in ["what", "number", "cause", "fix", "counter", "rule"] {
                let text = fault.get(key).and_then(toml::Value::as_str);
                assert!(text.is_some_and(|text| key == "rule" || !text.is_empty()), "{}: {key}", host.name);
            }
            let severity = fault.get("severity").map_or("low", |severity| severity.as_str().unwrap());
            assert!(matches!(severity, "high" | "medium" | "low"), "{}: {severity}", host.name);
        }
    }
}

#[test]
fn hosts_are_read_and_healthy_ones_have_no_serious_finding() {
    let mut failures = Vec::new();
    for host in hosts() {
        let report = &host.report;
        let findings = report["findings"].as_array().unwrap();
        // Check the facts first: a host without CPUs or NICs would have no finding.
        assert!(report["host"]["processors"].as_u64().unwrap() > 1, "{}", host.name);
        let of = |severity: &str| findings.iter().filter(|finding| finding["severity"] == severity).count();
        if host.is_healthy() && (of("high") > 0 || of("medium") > 1) {
            failures.push((host.name.clone(), findings.clone()));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The named rule finds each fault. For almost all faults, the evidence contains the number, if it has at
/// least four digits.
#[test]
fn planted_faults_are_found() {
    /// Minimum share of all faults for which the evidence must contain the number, percent.
    const LEAST: usize = 99;
    let (mut total, mut found) = (0, 0);
    let mut missing = Vec::new();
    for host in hosts().iter().filter(|host| !host.is_healthy()) {
        let report = &host.report;
        for fault in host.faults() {
            total += 1;
            let text = |key: &str| fault[key].as_str().unwrap().to_owned();
            let (rule, number) = (text("rule"), text("number"));
            if rule.is_empty() {
                continue;
            }
            let findings = report["findings"].as_array().unwrap();
            let evidence: Vec<String> = findings
                .iter()
                .filter(|finding| finding["rule"] == rule.as_str())
                .map(|finding| finding["evidence"].as_str().unwrap().replace(',', ""))
                .collect();
            if evidence.is_empty() {
                missing.push(format!("{}: {rule}: {}", host.name, text("what")));
            }
            let is_figure = number.len() >= 4 && number.bytes().all(|byte| byte.is_ascii_digit());
            if !evidence.is_empty() && is_figure && !evidence.iter().any(|text| text.contains(&number)) {
                println!("{}: {rule}: {number} is not in {evidence:?}", host.name);
            }
            found += usize::from(
                !evidence.is_empty() && (!is_figure || evidence.iter().any(|text| text.contains(&number))),
            );
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(found * 100 >= LEAST * total, "{found} of {total}");
    println!("{found} of {total} planted faults are found with their number");
}

/// For each fault that a recorded host lists with texts, a finding of the fault's rule has these texts, the
/// listed severity, and no forbidden text. A rule that the host lists as silent has no finding.
#[test]
fn findings_say_what_operators_need() {
    let texts = |table: &toml::Value, key: &str| -> Vec<String> {
        let list = table.get(key).and_then(toml::Value::as_array).into_iter().flatten();
        list.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut failures = Vec::new();
    for host in hosts() {
        let expected = toml::Value::Table(host.expected.clone());
        let faults: Vec<_> = host.faults().into_iter().filter(|fault| fault.get("says").is_some()).collect();
        let silent = texts(&expected, "silent");
        if faults.is_empty() && silent.is_empty() {
            continue;
        }
        let report = &host.report;
        let of_rule = |rule: &str| -> Vec<&Value> {
            report["findings"].as_array().unwrap().iter().filter(|finding| finding["rule"] == rule).collect()
        };
        for rule in silent.iter().filter(|rule| !of_rule(rule).is_empty()) {
            failures.push(format!("{}: {rule} is not silent", host.name));
        }
        for fault in faults {
            let rule = fault["rule"].as_str().unwrap();
            let (says, never) = (texts(fault, "says"), texts(fault, "never"));
            let severity = fault.get("severity").map(|severity| severity.as_str().unwrap());
            let is_right = |finding: &&&Value| {
                let keys = ["evidence", "effect", "fix", "advice"];
                let text = keys.map(|key| finding[key].as_str().unwrap_or_default()).join("\n");
                says.iter().all(|says| text.contains(says.as_str()))
                    && !never.iter().any(|never| text.contains(never.as_str()))
                    && severity.is_none_or(|severity| finding["severity"] == severity)
            };
            if of_rule(rule).iter().find(is_right).is_none() {
                failures.push(format!("{}: {says:?} in {:#?}", host.name, of_rule(rule)));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_setting_of_another_interface_is_left_with_the_command_that_changes_it() {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/border-router-mlx4-rpf.host");
    let directory = tempfile::tempdir().unwrap();
    recorded::unpack(&std::fs::read_to_string(host).unwrap(), directory.path()).unwrap();
    let from = directory.path().to_str().unwrap();
    let mut command = support::evenkeel(&["tune", "enp65s0", "--from", from, "--format", "json"]);
    command.env("EVENKEEL_STATE_DIR", "/run/other");
    let plan: Value = serde_json::from_str(&support::end(command).stdout).unwrap();
    let left = plan["left"].as_array().unwrap();
    let why = left.iter().find(|left| left["rule"] == "reverse-path-drops").unwrap()["why"].as_str().unwrap();
    let command = "EVENKEEL_STATE_DIR=/run/other evenkeel tune enp65s0d1 --apply reverse-path-drops";
    assert_eq!(why, format!("the setting belongs to enp65s0d1: `{command}` changes it"));
}

/// The rules do not know the directories of this process, but their advice names commands.
#[test]
fn a_command_in_an_advice_names_the_state_directory() {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/k8s-one-tx-queue-bond.host");
    let directory = tempfile::tempdir().unwrap();
    recorded::unpack(&std::fs::read_to_string(host).unwrap(), directory.path()).unwrap();
    let from = directory.path().to_str().unwrap();
    for words in [&["check"][..], &["tune", "enp65s0f0"]] {
        let mut command = support::evenkeel(words);
        command.args(["--from", from, "--format", "json"]).env("EVENKEEL_STATE_DIR", "/run/other");
        let ended = support::end(command);
        assert!(ended.stdout.contains("`EVENKEEL_STATE_DIR=/run/other evenkeel fair "), "{ended:?}");
    }
}

#[test]
fn a_host_is_unpacked_into_files() {
    let text = "# a comment\n\
                == sys/devices/system/cpu/*\nfor 0-3: cpu<i>/topology/core_id = <i/2>\n\
                == sys/class/net/eth0/*\nmtu = 1500\nqueues/rx-0/rps_cpus = <33:mask>\n\
                == proc/net/netstat pairs\nTcpExt.ListenDrops 12\nTcpExt.TW 3\nIpExt.InOctets 9\n\
                == proc/net/softnet_stat\nfor 0-1 p=16,32: <p:x> 00000000 <i+1:x>\n\
                == proc/interrupts sparse\nprocessors: 3\nfor 0-1 n=7,8: <150+i>: <i+1>=<n> | PCI-MSI 1-edge eth0-rx-<i>\n\
                == evenkeel/table\n[<0-3: i%2>]\n\
                == sys/class/net/eth0/device -> ../../../virtio1\n";
    let directory = tempfile::tempdir().unwrap();
    recorded::unpack(text, directory.path()).unwrap();
    let read = |path: &str| std::fs::read_to_string(directory.path().join(path)).unwrap();
    assert_eq!(read("sys/devices/system/cpu/cpu3/topology/core_id"), "1\n");
    assert_eq!(read("sys/class/net/eth0/queues/rx-0/rps_cpus"), "00000002,00000000\n");
    assert_eq!(
        read("proc/net/netstat").trim(),
        "TcpExt: ListenDrops TW\nTcpExt: 12 3\nIpExt: InOctets\nIpExt: 9"
    );
    assert_eq!(read("proc/net/softnet_stat"), "00000010 00000000 00000001\n00000020 00000000 00000002\n");
    assert_eq!(read("evenkeel/table"), "[0, 1, 0, 1]\n");
    let interrupts = read("proc/interrupts");
    let words: Vec<&str> = interrupts.lines().nth(2).unwrap().split_ascii_whitespace().collect();
    assert_eq!(words, ["151:", "0", "0", "8", "PCI-MSI", "1-edge", "eth0-rx-1"]);
    assert_eq!(
        std::fs::read_link(directory.path().join("sys/class/net/eth0/device")).unwrap(),
        Path::new("../../../virtio1")
    );
    for (wrong, words) in [
        ("mtu\n", "in front of the first section"),
        ("== a\n<j>\n", "'j' is unknown"),
        ("== a\n1\n== a\n2\n", "written twice"),
        ("== a\nfor 0-2 n=1,2: <n>\n", "2 members for 3 lines"),
        ("== a sparse\nprocessors: 1\n1: 1=4 | x\n", "there is no CPU1"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let message = recorded::unpack(wrong, directory.path()).unwrap_err();
        assert!(message.contains(words), "{message}");
    }
}
