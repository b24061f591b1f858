//! Tests `evenkeel nic list | show | probe`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use support::{end, evenkeel, file, run};

/// The NIC of the ten steps in docs/how-to/write-a-nic-model.md.
const OWN: &str = include_str!("data/own-nic.toml");

const CONFIGURATION: &str = r#"
queues = 4
indirection = "off"

[[filter]]
table = "five-tuple"
protocol = "udp"
dst-port = 53
queue = 3
"#;

#[test]
fn the_models_are_listed_and_shown() {
    let listed = run(&["nic", "list"]);
    assert_eq!((listed.code, listed.stderr.as_str()), (0, ""));
    for name in ["i82599", "sfc9020", "ntuple", "rss-only", "xdp-cpumap"] {
        assert!(listed.stdout.lines().any(|line| line.starts_with(name)), "{}", listed.stdout);
        let shown = run(&["nic", "show", name]);
        assert_eq!(shown.code, 0, "{shown:?}");
        assert!(shown.stdout.starts_with(&format!("{name}: ")), "{shown:?}");
        assert!(
            shown.stdout.contains("\nOrder of the tables; the first match decides the queue:\n"),
            "{shown:?}"
        );
    }
    let shown = run(&["nic", "show", "i82599"]).stdout;
    assert!(shown.contains("table five-tuple: 128 filters"), "{shown}");
    assert!(shown.contains("TCP over IPv4        five-tuple > flow-director >"), "{shown}");
}

#[test]
fn graphs_are_drawn_as_they_are_and_as_they_are_configured() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), "nic.toml", CONFIGURATION);
    let config = config.to_str().unwrap();
    let dot = run(&["nic", "show", "i82599", "--dot"]);
    assert_eq!(dot.code, 0);
    assert!(dot.stdout.starts_with("digraph nic {") && dot.stdout.contains("five-tuple (128 filters)"));
    let configured = run(&["nic", "show", "i82599", "--dot", "--config", config]).stdout;
    assert!(configured.contains("five-tuple 0\\nprotocol udp dst-port 53"), "{configured}");
    assert!(configured.contains("OR:Q3") && !configured.contains("128 filters"), "{configured}");
    let svg = run(&["nic", "show", "i82599", "--svg", "--config", config]);
    assert_eq!(svg.code, 0);
    assert!(svg.stdout.starts_with("<svg ") && svg.stdout.contains("protocol udp dst-port 53"));
    let words = run(&["nic", "show", "i82599", "--config", config]).stdout;
    assert!(
        words.contains("RSS off\nfive-tuple 0, priority 1: protocol udp dst-port 53 > queue 3\n"),
        "{words}"
    );
}

#[test]
fn a_model_is_added_by_a_file_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    file(directory.path(), "own-nic.toml", OWN);
    let directory = directory.path().to_str().unwrap();
    let listed = run(&["nic", "list", "--nic-dir", directory]).stdout;
    assert!(listed.contains("own-nic     An example NIC"), "{listed}");
    let shown = run(&["nic", "show", "own-nic", "--nic-dir", directory]);
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.contains("TCP over IPv4        services > flows > hash > queue 0"), "{shown:?}");
    let mut command = evenkeel(&["nic", "show", "own-nic"]);
    command.env("EVENKEEL_NIC_DIR", directory);
    assert_eq!(end(command).stdout, shown.stdout);
    let by_path = run(&["nic", "show", &format!("{directory}/own-nic.toml")]);
    assert_eq!(by_path.stdout, shown.stdout);
    assert_eq!(run(&["nic", "show", "own-nic"]).code, 2);
}

#[test]
fn the_documentation_shows_the_file_that_is_tested() {
    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/how-to/write-a-nic-model.md"
    ))
    .unwrap();
    let mut lines = page.lines();
    // The page must contain every line of the model, in order, split among its steps.
    for line in OWN.lines().filter(|line| !line.trim().is_empty()) {
        assert!(
            lines.any(|shown| shown.trim() == line.trim()),
            "docs/how-to/write-a-nic-model.md lacks: {line}"
        );
    }
}

#[test]
fn the_picture_in_the_documentation_is_the_one_that_is_drawn() {
    let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/i82599.svg");
    let drawn = run(&["nic", "show", "i82599", "--svg"]).stdout;
    assert!(
        std::fs::read_to_string(picture).unwrap() == drawn,
        "regenerate it: evenkeel nic show i82599 --svg > docs/images/i82599.svg"
    );
}

#[test]
fn loopback_has_nothing_that_hardware_could_steer_by() {
    let probed = run(&["nic", "probe", "lo"]);
    assert_eq!(probed.code, 0, "{probed:?}");
    assert!(
        probed.stdout.starts_with("lo: no NIC model fits this interface; only RPS can steer its packets\n"),
        "{probed:?}"
    );
    assert!(probed.stdout.contains("  it takes no n-tuple rules\n"), "{probed:?}");
    for missing in ["evk-nowhere", "../lo", "", "."] {
        let ended = run(&["nic", "probe", missing]);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains("there is no interface"), "{ended:?}");
    }
}

#[test]
fn mistakes_are_told_with_their_place_and_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "own-nic.toml", OWN.replace("miss = \"flows\"", "miss = \"flow\""));
    let ended = run(&["nic", "show", path.to_str().unwrap()]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""));
    let place = format!("{}:", path.display());
    assert!(
        ended.stderr.contains(&place) && ended.stderr.contains("did you mean 'flows'?"),
        "{}",
        ended.stderr
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);

    let config = file(directory.path(), "wrong.toml", CONFIGURATION.replace("queue = 3", "queue = 4"));
    let ended = run(&["nic", "show", "i82599", "--config", config.to_str().unwrap()]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("wrong.toml:9:9: filter[0].queue: filters of this table cannot name queue 4"),
        "{ended:?}"
    );

    // The message has the path on one line, without control characters.
    let mut command = evenkeel(&["nic", "list"]);
    command.env("EVENKEEL_NIC_DIR", "/nowhere/\u{1b}[31m\n");
    let ended = end(command);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("the directory /nowhere/\\u001b[31m\\n: "), "{ended:?}");

    for arguments in [
        &["nic", "show", "i82600"][..],
        &["nic", "show", "/nowhere/x.toml"],
        &["nic", "show", "i82599", "--dot", "--svg"],
        &["nic", "list", "--nic-dir", "/nowhere"],
        &["nic", "show", "i82599", "--nic-dir", "/nowhere"],
        &["search", "bench", "--flows", "10", "--repeat", "1", "--nic-dir", "/nowhere"],
        &["nic", "show", "i82599", "--config", "/nowhere"],
        &["nic"],
    ] {
        assert_eq!(run(arguments).code, 2, "{arguments:?}");
    }
}
