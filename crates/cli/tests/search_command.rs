//! Tests `evenkeel search solve | bench`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;
use support::{Ended, file, run};

const BALANCE: &str = "policy = \"balance\"";

const MODELS: [&str; 5] = ["i82599", "sfc9020", "ntuple", "rss-only", "xdp-cpumap"];

/// Returns a CSV list of flows: ten flows per client, the first client in the class `high`.
fn flows(count: u32) -> String {
    let mut text = String::from("protocol,src,src_port,dst,dst_port,class,rate_bps\n");
    for number in 0..count {
        let class = if number < 10 { "high" } else { "" };
        let (client, port) = (number / 10 + 1, 20_000 + number * 37 % 1000);
        writeln!(text, "udp,10.0.0.{client},{port},10.9.9.9,11211,{class},{}", 1_000_000 * (number % 7))
            .unwrap();
    }
    text
}

fn solve(directory: &Path, nic: &str, queues: &str, flows: &str, policy: &str, more: &[&str]) -> Ended {
    let flows = file(directory, "flows.csv", flows);
    let policy = file(directory, "policy.toml", policy);
    let mut arguments = vec!["search", "solve", "--nic", nic, "--queues", queues];
    arguments.extend(["--flows", flows.to_str().unwrap(), "--policy", policy.to_str().unwrap()]);
    arguments.extend(more);
    run(&arguments)
}

fn solved(directory: &Path, nic: &str, flows: &str, policy: &str) -> Value {
    let ended = solve(directory, nic, "10", flows, policy, &["--format", "json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("standard output is one JSON object")
}

fn map(solved: &Value) -> Vec<u64> {
    solved["map"].as_array().unwrap().iter().map(|queue| queue.as_u64().unwrap()).collect()
}

fn loads(solved: &Value) -> Vec<usize> {
    (0..10).map(|queue| map(solved).iter().filter(|on| **on == queue).count()).collect()
}

#[test]
fn a_policy_that_has_nothing_to_judge_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let bare = "protocol,src,src_port,dst,dst_port\nudp,10.0.0.1,7,10.9.9.9,11211\n";
    let read = "protocol,src,src_port,dst,dst_port,reader\nudp,10.0.0.1,7,10.9.9.9,11211,1\n";
    for (flows, policy, remarks) in [
        (bare, "locality", &["no flow has a reader: the policy's terms about the reader have no effect"][..]),
        (bare, "balance-rate", &["no flow has a rate: the policy's terms about the rate have no effect"]),
        (read, "locality", &[]),
        (bare, "balance", &[]),
        (
            bare,
            "isolation",
            &[
                "class high has no condition, and no flow names it: it gets no flow, and its queues (6-9) stay empty; \
               give it a condition such as source or destination-port",
            ],
        ),
    ] {
        let policy = format!("policy = \"{policy}\"");
        assert_eq!(solved(directory.path(), "i82599", flows, &policy)["remarks"], serde_json::json!(remarks));
        let table = solve(directory.path(), "i82599", "10", flows, &policy, &[]).stdout;
        assert_eq!(table.matches("\nNote: ").count(), remarks.len(), "{table}");
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(remarks.iter().all(|remark| words.contains(remark)), "{table}");
    }
}

/// A flow without rate has no part in a balance of rates, so no placement is known to be balanced.
#[test]
fn an_unknown_rate_meets_no_policy_about_rates() {
    let directory = tempfile::tempdir().unwrap();
    let (known, unknown) = ("udp,10.0.0.1,7,10.9.9.9,80,,5\n", "udp,10.0.0.1,8,10.9.9.9,80,,\n");
    let list = [known, unknown].concat();
    let policy = "policy = \"balance-rate\"";
    let json = solved(directory.path(), "i82599", &list, policy);
    assert!(json["met"].is_null() && json["accepted"] == true, "{json}");
    let words = "policy balance-rate not judged: the rate of 1 of 2 flows is unknown";
    let table = solve(directory.path(), "i82599", "10", &list, policy, &[]).stdout;
    assert!(table.contains(words), "{table}");
    let flows = file(directory.path(), "flows.csv", &list);
    let plan =
        ["steer", "--plan", "--model", "ntuple", "--queues", "4", "--policy", "balance-rate", "--flows"];
    let plan = |more: &[&str]| run(&[&plan[..], &[flows.to_str().unwrap()], more].concat());
    assert!(plan(&[]).stdout.contains(words));
    let json: Value = serde_json::from_str(&plan(&["--format", "json"]).stdout).unwrap();
    assert!(json["met"].is_null(), "{json}");
    let rates: Vec<&Value> = json["flows"].as_array().unwrap().iter().map(|flow| &flow["rate_bps"]).collect();
    assert!(rates.contains(&&Value::Null) && rates.contains(&&Value::from(5)), "{json}");
    let zero = list.replace(",,\n", ",,0\n");
    assert_eq!(solved(directory.path(), "i82599", &zero, policy)["met"], true, "0 is a known rate");
}

#[test]
fn the_smallest_policy_balances_on_every_model() {
    let directory = tempfile::tempdir().unwrap();
    for model in MODELS {
        let solved = solved(directory.path(), model, &flows(100), "policy = \"balance\"");
        assert_eq!(solved["accepted"], true, "{model}");
        assert_eq!(map(&solved).len(), 100);
        assert!(solved["search_us"].as_f64().unwrap() > 0.0);
        if model != "rss-only" {
            assert_eq!(loads(&solved), [10; 10], "{model}");
            assert_eq!(solved["cost"], 0.0, "{model}");
            assert_eq!(solved["unmet"], Value::Array(Vec::new()), "{model}");
            assert_eq!(solved["optimum"]["gap"], 0.0, "{model}");
        } else {
            assert_eq!(solved["filters"], Value::Array(Vec::new()));
            let cost = solved["cost"].as_f64().unwrap();
            let loads = loads(&solved);
            let mean = loads.iter().map(|load| (*load as f64 - 10.0).powi(2)).sum::<f64>() / 10.0;
            assert!((cost - mean).abs() < 1e-6, "the cost is the variance of {loads:?}: {cost}");
        }
    }
}

/// Replays the filters from the JSON output alone: the first matching filter decides, otherwise RSS.
#[test]
fn the_filters_and_rss_of_the_answer_give_its_map() {
    let directory = tempfile::tempdir().unwrap();
    let list = flows(100);
    for policy in ["policy = \"balance\"", "policy = \"isolation\""] {
        let solved = solved(directory.path(), "i82599", &list, policy);
        let filters = solved["filters"].as_array().unwrap();
        assert!(!filters.is_empty());
        for (line, queue) in list.lines().skip(1).zip(map(&solved)) {
            let fields: Vec<&str> = line.split(',').collect();
            let port = |field: &str| Value::from(field.parse::<u16>().unwrap());
            let matching = filters.iter().find(|filter| {
                filter["protocol"] == fields[0]
                    && filter["src"] == fields[1]
                    && filter["src_port"] == port(fields[2])
                    && filter["dst"] == fields[3]
                    && filter["dst_port"] == port(fields[4])
            });
            let rss = &solved["rss"];
            let decided = matching.map_or_else(|| hashed(rss, &fields), |filter| filter["queue"].clone());
            assert_eq!(decided, queue, "{line}");
        }
    }
}

/// Returns the queue of a flow in the RSS table. Computes the Toeplitz hash independently and bit by bit
/// (Microsoft, "RSS hashing functions").
fn hashed(rss: &Value, fields: &[&str]) -> Value {
    assert_eq!(rss["hash"], "toeplitz");
    let key: Vec<u8> = rss["key"]
        .as_str()
        .unwrap()
        .as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect();
    let bit = |bytes: &[u8], at: usize| u32::from(bytes[at / 8] >> (7 - at % 8) & 1);
    let octets = |address: &str| address.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let mut input = [octets(fields[1]), octets(fields[3])].concat();
    let kind = format!("{}-ipv4", fields[0]);
    if rss["ports"].as_array().unwrap().iter().any(|hashed| *hashed == kind) {
        let port = |field: &str| field.parse::<u16>().unwrap().to_be_bytes();
        input.extend([port(fields[2]), port(fields[4])].concat());
    }
    let hash = (0..input.len() * 8)
        .filter(|at| bit(&input, *at) == 1)
        .fold(0, |hash, at| hash ^ (0..32).fold(0, |window, offset| window << 1 | bit(&key, at + offset)));
    let entries = rss["indirection"].as_array().unwrap();
    entries[hash as usize % entries.len()].clone()
}

/// For each policy and model, flows without a filter are on the queues that the printed RSS settings
/// assign.
#[test]
fn a_plan_has_all_that_its_result_needs() {
    let directory = tempfile::tempdir().unwrap();
    let high = "[[class]]\nname = \"high\"\ndestination-port = 11211\n";
    let mut list =
        String::from("protocol,src,src_port,dst,dst_port,class,rate_bps,reader,process,cgroup,queue\n");
    for number in 1..=30 {
        let (protocol, port) = (["udp", "tcp"][number % 2], [80, 80, 11211][number % 3]);
        let facts = format!("{},{},,,{}", number % 5 * 1_000_000, number % 4, number % 3);
        writeln!(list, "{protocol},10.0.0.{number},{},10.1.0.1,{port},,{facts}", 1000 + number).unwrap();
    }
    let flows = file(directory.path(), "flows.csv", &list);
    let mut fitted = 0;
    for policy in ["balance", "balance-rate", "isolation", "locality", "fewest-changes"] {
        for queues in ["", "queues = [0]\n", "pin = 0\n"] {
            if policy == "isolation" && !queues.starts_with("queues") {
                continue;
            }
            let text = format!("policy = \"{policy}\"\n{high}{queues}");
            let policy = file(directory.path(), "policy.toml", &text);
            for model in MODELS {
                let common = ["--queues", "4", "--flows", flows.to_str().unwrap()];
                let common = [&common[..], &["--policy", policy.to_str().unwrap()]].concat();
                let json = |begin: &[&str]| -> Value {
                    let ended = run(&[begin, &common, &["--format", "json"]].concat());
                    assert_eq!(ended.code, 0, "{ended:?}");
                    serde_json::from_str(&ended.stdout).unwrap()
                };
                let plan = ["steer", "eth0", "--plan", "--model", model];
                let (planned, solved) = (json(&plan), json(&["search", "solve", "--nic", model]));
                let (found, place) = (&planned["configuration"], format!("{model}: {text}"));
                assert_eq!(found["filters"], solved["filters"], "{place}");
                assert_eq!(found["rss"], solved["rss"], "{place}");
                assert_eq!(found["filters"].as_array().unwrap().len(), planned["filters"], "{place}");
                let rss = &found["rss"];
                for flow in
                    planned["flows"].as_array().unwrap().iter().filter(|flow| flow["filtered"] == false)
                {
                    let [source, destination] = ["source", "destination"]
                        .map(|end| flow[end].as_str().unwrap().split_once(':').unwrap());
                    let protocol = flow["protocol"].as_str().unwrap();
                    let fields = [protocol, source.0, source.1, destination.0, destination.1];
                    assert_eq!(hashed(rss, &fields), flow["queue"], "{place}{flow}");
                }
                let shown = run(&[&plan[..], &common].concat()).stdout;
                let (table, key) =
                    (shown.contains("\nRSS table: "), shown.contains(" ethtool -X eth0 hkey 6d:5a:56:da:"));
                assert!(table != rss.is_null() && key == (table && model != "xdp-cpumap"), "{place}{shown}");
                if !rss.is_null() {
                    assert_eq!(
                        shown.contains("\nRSS table: the default, "),
                        rss["default"] == true,
                        "{place}{shown}"
                    );
                    fitted +=
                        usize::from(rss["default"] == false && found["filters"] == serde_json::json!([]));
                }
            }
        }
    }
    assert!(fitted > 2, "some placements need only another RSS table");
}

#[test]
fn isolation_is_exclusive_where_the_nic_can_and_told_where_it_cannot() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "policy = \"isolation\"\n[[class]]\nname = \"high\"\nqueues = 3\n";
    for model in MODELS {
        let solved = solved(directory.path(), model, &flows(100), policy);
        let queues: Vec<u64> = solved["classes"][0]["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| queue.as_u64().unwrap())
            .collect();
        assert_eq!(queues, [7, 8, 9]);
        let misplaced =
            (0..).zip(map(&solved)).filter(|(flow, queue)| (*flow < 10) != queues.contains(queue)).count();
        assert_eq!(solved["accepted"], misplaced == 0, "{model}");
        assert_eq!(solved["violations"], misplaced, "{model}");
        if model == "rss-only" {
            assert!(misplaced > 0);
            let reason = solved["unmet"][0]["reason"].as_str().unwrap();
            assert!(reason.contains("no filters for single flows"), "{reason}");
        } else {
            assert_eq!(misplaced, 0, "{model}");
        }
    }
}

#[test]
fn the_answer_is_the_same_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let answer = || {
        let mut solved = solved(directory.path(), "sfc9020", &flows(200), "policy = \"balance-rate\"");
        solved["search_us"].take();
        solved
    };
    assert_eq!(answer(), answer());
}

#[test]
fn a_table_for_people() {
    let directory = tempfile::tempdir().unwrap();
    let ended = solve(directory.path(), "i82599", "4", &flows(40), BALANCE, &["--format", "table"]);
    assert_eq!(ended.code, 0);
    assert!(
        ended.stdout.starts_with("40 flows on 4 queues of i82599: policy balance met; cost 0.000"),
        "{ended:?}"
    );
    let row: Vec<&str> = ended
        .stdout
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("3 "))
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(row[..2], ["3", "10"], "{ended:?}");
}

#[test]
fn an_unknown_class_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "[[class]]\nname = \"hihg\"\nqueues = 2\n";
    let ended = solve(directory.path(), "i82599", "4", &flows(40), policy, &["--format", "json"]);
    assert_eq!(ended.code, 0);
    let words = "the policy does not have the class of some flows, so these flows belong to the class 'rest': \
                 high (did you mean 'hihg'?)";
    assert!(ended.stderr.contains(words), "{ended:?}");
}

#[test]
fn flows_can_be_made_up_and_are_those_of_the_benchmark() {
    let solve = |more: &[&str]| {
        let always = [
            "search", "solve", "--nic", "i82599", "--queues", "10", "--policy", "balance", "--format", "json",
        ];
        run(&[&always, more].concat())
    };
    let ended = solve(&["--generate", "60"]);
    let solved: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((map(&solved).len(), loads(&solved)), (60, vec![6; 10]));
    let measured = run(&["search", "bench", "--flows", "60", "--repeat", "1", "--format", "json"]);
    let measured: Value = serde_json::from_str(&measured.stdout).unwrap();
    assert_eq!(measured["filters"], solved["filters"].as_array().unwrap().len());
    assert_eq!(solve(&[]).code, 2);
    assert_eq!(solve(&["--generate", "60", "--flows", "flows.csv"]).code, 2);
    assert_eq!(solve(&["--generate", "0"]).code, 2);
    let twice = solve(&["--generate", "6", "--table-size", "five-tuple=4", "--table-size", "five-tuple=8"]);
    assert!(twice.code == 2 && twice.stderr.contains("two sizes for the table five-tuple"), "{twice:?}");
}

#[test]
fn a_script_may_have_a_file_of_its_own_beside_the_policy() {
    let directory = tempfile::tempdir().unwrap();
    let inline = "policy = \"script\"\nscript = 'fn queue_cost(queue) { queue.flows * queue.flows }'\n";
    let apart = "policy = \"script\"\nscript-file = \"even.rhai\"\n";
    let script = |text| file(directory.path(), "even.rhai", text);
    script("// Even.\nfn queue_cost(queue) { queue.flows * queue.flows }\n");
    let answer = |policy| solved(directory.path(), "i82599", &flows(50), policy)["map"].clone();
    assert_eq!(answer(apart), answer(inline));
    let fails = |policy: &str, told: &str| {
        let ended = solve(directory.path(), "i82599", "4", &flows(9), policy, &[]);
        assert_eq!((ended.code, ended.stderr.lines().count()), (2, 1), "{ended:?}");
        assert!(ended.stderr.contains(told), "{told}\n{ended:?}");
    };
    script("// Even.\nfn queue_cost(queue) {\n  let x = ;\n}\n");
    fails(apart, "policy.toml:2:15: script-file: ");
    fails(apart, "even.rhai:3:11: script: ");
    script("// Without end.\nfn queue_cost(queue) {\n  loop {}\n}\n");
    fails(apart, "even.rhai:2:1: script: a call took more than");
    fails("policy = \"script\"\nscript-file = \"odd.rhai\"\n", "odd.rhai: No such file");
    fails(
        &format!("{inline}script-file = \"even.rhai\"\n"),
        "policy.toml:3:1: script-file: 'script' and 'script-file' exclude each other",
    );
    fails(
        "policy = \"balance\"\nscript-file = \"even.rhai\"\n",
        "policy.toml:2:1: script-file: no policy uses this script",
    );
    fails("policy = \"script\"\n", "script-file = \"policy.rhai\"");
}

#[test]
fn a_class_shares_a_filter_and_a_context_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    // The class contains the first seven clients, with ten flows each.
    let policy = "[[class]]\nname = \"web\"\nprotocol = \"udp\"\nsource = \"10.0.0.0/29\"\nqueues = 4\n";
    let unlabelled = flows(200).replace(",high,", ",,");
    let answer = |more: &[&str]| -> Value {
        let ended = solve(directory.path(), "ntuple", "10", &unlabelled, policy, more);
        assert_eq!(ended.code, 0, "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let (without, with) = (answer(&["--format", "json"]), answer(&["--contexts", "--format", "json"]));
    let filters = |solved: &Value| solved["filters"].as_array().unwrap().clone();
    assert!(without.get("contexts").is_none());
    assert!(filters(&without).iter().all(|filter| filter.get("context").is_none()));
    let shared: Vec<Value> =
        filters(&with).into_iter().filter(|filter| filter.get("context").is_some()).collect();
    assert_eq!(shared.len(), 1, "{with}");
    assert_eq!(
        (&shared[0]["context"], &shared[0]["queue"], &shared[0]["src"]),
        (&Value::from(0), &Value::Null, &Value::from("10.0.0.0/29"))
    );
    let table: Vec<u64> =
        with["contexts"][0].as_array().unwrap().iter().map(|queue| queue.as_u64().unwrap()).collect();
    assert!(table.len() == 256 && (6..10).all(|queue| table.contains(&queue)), "{table:?}");
    assert!(filters(&with).len() < filters(&without).len());
    for solved in [&with, &without] {
        assert_eq!(solved["accepted"], true);
        let class = (0..).zip(map(solved)).map(|(flow, queue)| (flow < 70, queue >= 6));
        assert!(class.into_iter().all(|(is_of_class, is_its_queue)| is_of_class == is_its_queue));
    }
}

#[test]
fn bad_input_is_told_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let fails = |flows: &str, policy: &str, queues: &str, more: &[&str], told: &str| {
        let ended = solve(directory.path(), "i82599", queues, flows, policy, more);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        assert!(ended.stderr.contains(told), "{told}\n{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    };
    let flow = "udp,10.0.0.1,1,10.0.0.2,2\n";
    fails(flow, "# only a comment", "4", &[], "policy.toml:1:1: policy: missing");
    fails(flow, "policy = \"ballance\"", "4", &[], "policy.toml:1:10: policy: 'ballance' is not a value");
    let shared = "policy = \"isolation\"\n[[class]]\nname = \"a\"\ndestination-port = 2";
    fails(flow, shared, "4", &[], "policy.toml:2:1: class[0]: isolation needs queues; ");
    fails("icmp,10.0.0.1,1,10.0.0.2,2", BALANCE, "4", &[], "flows.csv:1: protocol 'icmp'");
    fails("udp,10.0.0.1,1,10.0.0.2\n", BALANCE, "4", &[], "flows.csv:1: dst_port is missing");
    fails(
        "# x\nudp, 10.0.0,1,10.0.0.2,2",
        BALANCE,
        "4",
        &[],
        "flows.csv:2: src '10.0.0' is not an IP address",
    );
    fails("udp,10.0.0.1,70000,10.0.0.2,2", BALANCE, "4", &[], "flows.csv:1: src_port '70000'");
    fails("udp,10.0.0.1,1,::1,2", BALANCE, "4", &[], "flows.csv:1: src and dst have different IP versions");
    fails("udp,10.0.0.1,1,10.0.0.2,2,,fast", BALANCE, "4", &[], "flows.csv:1: rate_bps 'fast'");
    fails("", BALANCE, "4", &[], "flows.csv is empty");
    fails("# none\n", BALANCE, "4", &[], "flows.csv:1: the list has no flow; write protocol,src");
    fails(flow, "", "4", &[], "policy.toml is empty");
    let renamed = "protocol,src,src_port,dst,dst_port,klass\n";
    fails(&format!("{renamed}{flow}"), BALANCE, "4", &[], "unknown column 'klass'; did you mean 'class'?");
    fails(&format!("{flow}{flow}"), BALANCE, "4", &[], "flows.csv:2: the flow is already in line 1");
    fails(flow, BALANCE, "129", &[], "i82599: this NIC cannot use 129 queues");
    fails(flow, "[[class]]\nname = \"a\"\nqueues = 4", "4", &[], "the classes ask for 4 of 4 queues");
    fails(flow, BALANCE, "4", &["--table-size", "full=9"], "no filter table of i82599 'full'; known: ");
    let script = "policy = \"script\"\nscript = '''\nfn queue_cost(queue) {\n  loop {}\n}\n'''";
    fails(flow, script, "4", &[], "policy.toml:3:1: script: a call took more than");
    let missing = run(&[
        "search", "solve", "--nic", "i82599", "--queues", "4", "--flows", "/none", "--policy", "balance",
    ]);
    assert_eq!(missing.code, 2);
    assert!(missing.stderr.contains("cannot read /none"), "{missing:?}");
    let unknown = run(&["search", "bench", "--flows", "5", "--policy", "fast"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("no policy 'fast'; known: balance, balance-rate"), "{unknown:?}");
}

fn assert_summary(object: &Value, key: &str) {
    let summary = &object[key];
    let value = |name: &str| summary[name].as_f64().unwrap_or_else(|| panic!("{key}.{name} in {object}"));
    assert!(
        value("min") <= value("median") && value("median") <= value("max") && value("min") > 0.0,
        "{summary}"
    );
    assert!(value("mean") > 0.0 && summary["n"].as_u64().unwrap() >= 1);
}

const FIGURES: [&str; 6] =
    ["basic_full_ms", "full_ms", "add_1_us", "add_10_us", "remove_1_us", "remove_10_us"];

#[test]
fn a_benchmark_of_one_size_is_one_object() {
    let ended = run(&[
        "search",
        "bench",
        "--flows",
        "60",
        "--repeat",
        "3",
        "--policy",
        "isolation",
        "--nic",
        "ntuple",
        "--format",
        "json",
    ]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let object: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&object["nic"], &object["policy"]), (&Value::from("ntuple"), &Value::from("isolation")));
    assert_eq!((&object["flows"], &object["queues"]), (&Value::from(60), &Value::from(10)));
    FIGURES.iter().for_each(|key| assert_summary(&object, key));
    assert!(object.get("paper").is_none(), "the paper has this for another NIC and policy");
}

#[test]
fn without_rss_every_flow_but_those_of_the_default_queue_takes_a_filter() {
    let ended = run(&["search", "bench", "--flows", "60", "--repeat", "1", "--no-rss", "--format", "json"]);
    let object: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&object["filters"], &object["rss"]), (&Value::from(54), &Value::from(false)));
    assert_eq!(object["flows_per_queue"]["max"], 6);
}

#[test]
fn a_benchmark_of_all_sizes_is_a_list_with_the_papers_figures() {
    let ended = run(&["search", "bench", "--repeat", "1", "--format", "json"]);
    assert_eq!(ended.code, 0);
    let rows: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let sizes: Vec<&Value> = rows.iter().map(|row| &row["flows"]).collect();
    assert_eq!(sizes, [10, 100, 250, 500]);
    for row in &rows {
        FIGURES.iter().for_each(|key| assert_summary(row, key));
        assert_eq!(row["accepted"], true);
        let spread = &row["flows_per_queue"];
        assert!(spread["max"].as_u64().unwrap() - spread["min"].as_u64().unwrap() <= 1);
    }
    assert_eq!(rows[3]["paper"]["full_ms"], 17000.0);
    assert_eq!(rows[0]["paper"]["remove_10_us"], 23.7);
    let table = run(&["search", "bench", "--repeat", "1", "--format", "table"]).stdout;
    assert!(table.contains("Dragonet") && table.contains("76000"), "{table}");
}

#[test]
fn a_table_that_is_too_small_is_raised_and_that_is_told() {
    let ended =
        run(&["search", "bench", "--nic", "ntuple", "--flows", "3000", "--repeat", "1", "--format", "json"]);
    assert_eq!(ended.code, 0);
    let object: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(object["raised"]["table"], "rules");
    assert!(object["raised"]["capacity"].as_u64().unwrap() >= 3000);
    assert!(object.get("basic_full_ms").is_none(), "what was not measured is absent");
}

/// A plan for another host's NIC has the cost and the queues of `search solve`. The reader CPUs in the list
/// are those of the other host: the CPUs of this machine must not matter.
#[test]
fn a_plan_for_another_hosts_nic_is_the_result_of_the_search() {
    let place = tempfile::tempdir().unwrap();
    let list = place.path().join("flows.csv");
    let lines = (0..8).map(|reader| format!("tcp,10.0.1.{reader},5000,10.0.0.1,80,{reader}\n"));
    let text = "protocol,src,src_port,dst,dst_port,reader\n".to_owned() + &lines.collect::<String>();
    std::fs::write(&list, text).unwrap();
    let (list, json) = (list.to_str().unwrap(), ["--format", "json"]);
    let parse = |arguments: &[&str]| serde_json::from_str::<Value>(&run(arguments).stdout).unwrap();
    for policy in ["locality", "balance"] {
        for model in ["ntuple", "i82599"] {
            let common = ["--queues", "8", "--flows", list, "--policy", policy];
            let solved = parse(&[&["search", "solve", "--nic", model], &common[..], &json].concat());
            let plan = [&["steer", "--plan", "--model", model], &common[..]].concat();
            let planned = parse(&[&plan[..], &json].concat());
            assert_eq!(planned["cost"], solved["cost"], "{policy} {model}");
            // The list has eight sources, 10.0.1.0 to 10.0.1.7, in this order.
            for (reader, queue) in solved["map"].as_array().unwrap().iter().enumerate() {
                let source = format!("10.0.1.{reader}:5000");
                let flows = planned["flows"].as_array().unwrap();
                let flow = flows.iter().find(|flow| flow["source"] == source.as_str()).unwrap();
                assert_eq!(flow["queue"], *queue, "{policy} {model}: {source}");
            }
            let queues = planned["queues"].as_array().unwrap();
            assert!(queues.len() == 8 && queues.iter().all(|queue| queue["processor"].is_null()));
            let table = run(&plan).stdout;
            let row = table.lines().find(|line| line.trim_start().starts_with("7 ")).unwrap();
            assert_eq!(row.split_whitespace().nth(1), Some("-"), "{table}");
        }
    }
}

/// An ethtool rule applies to one IP version. So a class that names only a port needs one rule per
/// version.
#[test]
fn a_class_by_port_has_rules_for_both_ip_versions() {
    let place = tempfile::tempdir().unwrap();
    let list = "protocol,src,src_port,dst,dst_port\ntcp,10.0.1.1,5000,10.0.0.1,5432\n\
                tcp,fd00::1,5000,fd00::2,5432\ntcp,fd00::1,5001,fd00::2,80\n";
    let list = file(place.path(), "flows.csv", list);
    let class = "[[class]]\nname = \"db\"\nprotocol = \"tcp\"\ndestination-port = 5432\npin = 3\n";
    let policy = file(place.path(), "policy.toml", class);
    let files = ["--flows", list.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
    let plan = ["steer", "eth0", "--plan", "--model", "ntuple", "--queues", "4", "--format", "json"];
    let planned: Value = serde_json::from_str(&run(&[&plan[..], &files].concat()).stdout).unwrap();
    assert_eq!(planned["met"], true, "{planned}");
    let filters = planned["configuration"]["filters"].as_array().unwrap();
    let mut to: Vec<&str> = filters.iter().map(|filter| filter["dst"].as_str().unwrap()).collect();
    to.sort_unstable();
    assert_eq!(to, ["0.0.0.0/0", "::/0"], "{planned}");
    assert!(filters.iter().all(|filter| filter["dst_port"] == 5432 && filter["queue"] == 3), "{planned}");

    // A configuration cannot contain a rule without an IP version either.
    let rule = "[[filter]]\ntable = \"rules\"\nprotocol = \"tcp\"\ndst-port = 5432\nqueue = 3\n";
    let configuration = file(place.path(), "nic.toml", rule);
    let shown = run(&["nic", "show", "ntuple", "--config", configuration.to_str().unwrap()]);
    assert!(shown.code == 2 && shown.stderr.contains("one IP version: give src or dst"), "{shown:?}");
}

#[test]
fn flows_that_the_nic_cannot_balance_are_no_policy_that_is_met() {
    let generated = ["--generate", "5000", "--policy", "balance"];
    let solve = |more: &[&str]| {
        let all = [&["search", "solve", "--nic", "rss-only", "--queues", "8"], &generated[..], more].concat();
        run(&all)
    };
    let table = solve(&[]).stdout.replace('\n', " ");
    assert!(table.contains("policy balance met in part: no flow is on a forbidden queue, but "), "{table}");
    assert!(!table.contains("balance met;") && !table.contains("not met"), "{table}");
    let json: Value = serde_json::from_str(&solve(&["--format", "json"]).stdout).unwrap();
    assert_eq!((&json["accepted"], &json["met"]), (&true.into(), &false.into()));
    assert_eq!(json["unmet"][0]["violation"], false);

    let plan = [&["steer", "--plan", "--model", "rss-only", "--queues", "8"], &generated[..]].concat();
    let shown = run(&plan).stdout.replace('\n', " ");
    assert!(shown.contains("policy balance met in part: no flow is on a forbidden queue, but "), "{shown}");
    let json = run(&[&plan[..], &["--format", "json"]].concat()).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["accepted"], &json["met"]), (&true.into(), &false.into()));

    let bench = ["search", "bench", "--flows", "100", "--repeat", "1", "--nic", "rss-only", "--no-rss"];
    let shown = run(&bench).stdout;
    assert!(shown.contains("policy met in part: no flow is on a forbidden queue, but 100 of 100"), "{shown}");
    let json: Value =
        serde_json::from_str(&run(&[&bench[..], &["--format", "json"]].concat()).stdout).unwrap();
    assert_eq!((&json["accepted"], &json["met"]), (&true.into(), &false.into()));
}

#[test]
fn a_policy_is_not_met_if_the_processes_of_its_flows_are_unknown() {
    let place = tempfile::tempdir().unwrap();
    let class = "policy = \"balance\"\n[[class]]\nname = \"high\"\nprocess = \"python3\"\nqueues = 1\n";
    let policy = file(place.path(), "policy.toml", class);
    let solved = |list: &str, command: &[&str], format: &str| {
        let list = file(place.path(), "flows.csv", list);
        let files = ["--flows", list.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
        let ended = run(&[command, &files, &["--queues", "4", "--format", format]].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stdout.replace('\n', " ")
    };
    let without = "protocol,src,src_port,dst,dst_port\ntcp,10.0.1.1,5000,10.0.0.1,80\n\
                   tcp,10.0.1.1,5001,10.0.0.1,80\n";
    let with = "protocol,src,src_port,dst,dst_port,process\ntcp,10.0.1.1,5000,10.0.0.1,80,python3\n\
                tcp,10.0.1.1,5001,10.0.0.1,80,sshd\n";
    let steer = ["steer", "--plan", "--model", "ntuple"];
    for command in [&steer[..], &["search", "solve", "--nic", "ntuple"]] {
        let table = solved(without, command, "table");
        assert!(table.contains("balance not judged: the class of 2 of 2 flows is unknown"), "{table}");
        assert!(table.contains("needs the columns process"), "{table}");
        let json: Value = serde_json::from_str(&solved(without, command, "json")).unwrap();
        assert!(json["met"].is_null() && json["accepted"].is_null(), "{json}");
        let json: Value = serde_json::from_str(&solved(with, command, "json")).unwrap();
        assert_eq!(json["met"], true, "{json}");
    }
}
