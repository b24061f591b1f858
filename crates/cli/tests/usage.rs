//! Tests arguments, exit codes and output. Scripts depend on them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::Stdio;

use support::{end, ended, evenkeel, run, without_capabilities};

#[test]
fn bad_usage_exits_with_2_and_says_why() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["fair"], "<INTERFACE>"),
        (&["fair", "eth0", "--for", "10"], "unit"),
        (&["fair", "eth0", "--for", "0s"], "give a time above 0"),
        (&["fair", "eth0", "--xps", "on"], "respect"),
        (&["fair", "eth0", "--queue-weights", "htb"], "--rate"),
        (&["fair", "eth0", "--rate", "1gbit"], "--queue-weights htb"),
        (&["fair", "eth0", "--queue-weights", "auto", "--rate", "1gbit"], "max-rate"),
        (&["fair", "eth0", "--queue-weights", "ets"], "net-shaper"),
        (
            &["fair", "eth0", "--plan", "--balance", "on", "--queue-weights", "htb", "--rate", "1gbit"],
            "--queue-weights off or --balance off",
        ),
        (
            &["fair", "eth0", "--batching", "on", "--queue-weights", "htb", "--rate", "1gbit"],
            "use --batching off, or --queue-weights off",
        ),
        (&["fair", "eth0", "--segments", "16384"], "unit"),
        (&["fair", "eth0", "--segments", "1MiB"], "between 4KiB and 64KiB"),
        (&["fair", "eth0", "--observe", "--plan"], "cannot be used with"),
        (&["fair", "eth0", "--observe", "--xps", "off"], "cannot be used with"),
        (&["fair", "eth0", "--observe", "--batching", "on"], "cannot be used with"),
        (&["fair", "eth0", "--batching", "auto"], "off, on"),
        (&["revert", "eth0", "eth1"], "unexpected argument"),
        (&["steer", "eth0"], "--policy"),
        (&["study"], "evenkeel study <COMMAND>"),
        (&["study", "tc", "--on", "mars"], "possible values: netns, sim"),
        (&["figures"], "unrecognized subcommand 'figures'"),
        (&["check", "--watch", "10"], "--watch"),
        (&["check", "nosuch0", "--watch", "1s"], "nosuch0"),
        (&["check", "--watch", "-1s"], "invalid value '-1s' for '--watch <TIME>'"),
        (&["check", "--speed", "-1"], "invalid value '-1' for '--speed <IFACE=RATE>'"),
        (&["compare", "a", "b", "--within", "-5%"], "invalid value '-5%' for '--within <N%>'"),
        (&["fair", "eth0", "--for", "-1s"], "invalid value '-1s' for '--for <TIME>'"),
        (&["steer", "eth0", "--interval", "-1s"], "invalid value '-1s' for '--interval <TIME>'"),
        (&["study", "tc", "--rate", "-1gbit"], "invalid value '-1gbit' for '--rate <RATE>'"),
        (&["tune", "--watch", "-1s"], "invalid value '-1s' for '--watch <TIME>'"),
        (&["check", "--watch", "1ns"], "give a time of 100ms or more"),
        (&["check", "--watch", "99ms"], "give a time of 100ms or more"),
        (&["check", "--speed", "nosuch=25gbit"], "--speed: no interface 'nosuch'; "),
        (&["check", "--speed", "lo=25gbit", "--speed", "lo=1gbit"], "--speed: 'lo' is given twice"),
        (&["check", "--watch", "1s", "--from", "."], "cannot be used with"),
        (&["check", "--watch", "1s", "--speed", "lo=25gbit"], "cannot be used with"),
        (
            &["check", "--explain", "all", "--speed", "lo=25gbit"],
            "leave out the interface, --from and --speed",
        ),
        (&["check", "--anonymise", "--from", "."], "cannot be used with"),
        (&["check", "--anonymise", "--watch", "1s"], "cannot be used with"),
        (&["check", "--anonymise", "--explain", "backlog-drops"], "cannot be used with"),
        (&["check", "--anonymise"], "--save"),
        (&["run"], "<SCENARIO>"),
        (&["run", "titan-6-flows", "--on", "simulator"], "netns"),
        (&["run", "titan-6-flows", "--on", "ssh://host"], "netns"),
        (&["run", "titan-6-flows", "--rate", "2000000000"], "unit"),
        (&["run", "titan-6-flows", "--rate", "2gb"], "--rate"),
        (&["run", "titan-6-flows", "--rate", "0gbit"], "between 1mbit and 1.6tbit"),
        (&["run", "titan-6-flows", "--rate=-1gbit"], "--rate"),
        (&["run", "titan-6-flows", "--repeat", "0"], "from 1 to 1000"),
        (&["run", "titan-6-flows", "--repeat", "many"], "a whole number from 1 to 1000"),
        (&["run", "titan-6-flows", "--repeat", "-1"], "a whole number from 1 to 1000"),
        (&["run", "titan-12-flow", "--on", "sim"], "did you mean 'titan-12-flows'?"),
        (&["nic", "show", "i8259"], "did you mean 'i82599'?"),
        (&["search", "bench", "--policy", "balnce"], "did you mean 'balance'?"),
        (&["check", "--explain", "rx-ring-drop"], "did you mean 'rx-ring-drops'?"),
        (&["run", "titan-6-flows", "--long-windows", "0"], "from 1 to 1000"),
        (&["run", "titan-6-flows", "--quick", "--long-windows", "2"], "cannot be used with"),
        (&["run", "titan-6-flows", "--seed=-1"], "--seed"),
        (&["run", "titan-6-flows", "--format", "yaml"], "json"),
        (&["run", "titan-6-flows", "--topology", "ring"], "soft-nic"),
        (&["run", "titan-6-flows", "--exact"], "use it with --on sim"),
        (&["run", "titan-6-flows", "--on", "netns", "--exact"], "use it with --on sim"),
        (&["run", "titan-6-flows", "--variant"], "--variant"),
        (&["run", "titan-6-flows", "--colour"], "--colour"),
        (&["run", "titan-6-flows", "titan-12-flows"], "titan-12-flows"),
        (&["scenario"], "Usage"),
        (&["scenario", "check"], "<FILE>"),
        (&["scenario", "list", "all"], "all"),
        (&["run", "titan-6-flows", "--nic", "e1000"], "soft"),
        (&["run", "titan-6-flows", "--processors", "0"], "from 1 to 1024"),
        (&["compare", "one"], "<SECOND>"),
        (&["compare", "one", "two", "--within", "30"], "such as 30%"),
        (&["compare", "one", "two", "--within=-1%"], "between 0% and 1000%"),
        (&["generate", "poems", "."], "poems"),
        (&["service", "--check"], "a value is required"),
        (&["service", "--check", "/nonexistent.toml"], "cannot read /nonexistent.toml"),
        (&["service", "--check", "/etc/passwd", "pause"], "cannot be used with"),
        (&["service", "stop"], "unrecognized subcommand 'stop'"),
        (&["service", "pause", "eth0", "eth1"], "unexpected argument"),
        (&["status", "--format", "yaml"], "json"),
        (&["fair", "eth0", "--format", "yaml"], "jsonl"),
        (&["tune"], "<INTERFACE>"),
        (&["tune", "e0\n"], "there is no interface 'e0\\n'"),
        (&["fair", "e0\n"], "there is no interface 'e0\\n'"),
        (&["revert", "e0\n"], "there is no interface 'e0\\n'"),
        (&["steer", "e0\n", "--policy", "balance"], "there is no interface 'e0\\n'"),
        (&["tune", "evk-not-here"], "no interface 'evk-not-here'; known: "),
        (&["tune", "lo", "--print", "--apply"], "cannot be used with"),
        (&["tune", "lo", "--from", "/tmp", "--apply"], "cannot be used with"),
        (&["tune", "lo", "--persist", "cron"], "systemd"),
        (&["tune", "lo", "--apply", "--watch", "3"], "unit"),
        (&["tune", "lo", "--no-watch"], "--apply"),
        (&["tune", "lo", "--from", "/tmp", "--watch", "1s"], "cannot be used with"),
        (&["tune", "lo", "--from", "/tmp", "--no-watch"], "cannot be used with"),
        (&["tune", "lo", "--print", "--watch", "1s"], "cannot be used with"),
        (&["tune", "lo", "--apply", "sack-of"], "no rule 'sack-of'; did you mean 'sack-off'?"),
        (&["tune", "lo", "--apply", "--no-watch", "sack-of"], "no rule 'sack-of'; did you mean 'sack-off'?"),
        (&["tune", "lo", "sack-off"], "--apply"),
        (&["fair", "lo", "--for", "5"], "a time needs a unit; write for example 30s"),
        (&["top", "lo", "--interval", "five"], "for example 30s"),
        (&["run", "shuffle-6", "--on", "sim", "--long-windows", "3"], "--long-windows has no effect"),
        (&["tune", "lo", "--keep", "/nonexistent/keep.toml"], "cannot read /nonexistent/keep.toml"),
    ];
    for (arguments, words) in cases {
        let ended = run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(words), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    let own = tempfile::tempdir().unwrap();
    let own = support::file(own.path(), "own.toml", include_str!("../../../qdiscs/setups.toml"));
    let own = own.to_str().unwrap();
    let titan = ["run", "titan-6-flows", "--on"];
    let steer = ["steer", "lo", "--policy", "balance"];
    let no_name = ["steer", "", "--policy", "balance", "--plan", "--model", "ntuple", "--generate", "9"];
    let with = |first: &[&'static str], rest: &[&str]| -> Vec<String> {
        first.iter().chain(rest).map(ToString::to_string).collect()
    };
    for (arguments, words) in [
        (with(&titan, &["netns", "--profile", "6.18"]), "--profile is for the simulator"),
        (with(&titan, &["netns", "--nic", "hardware"]), "--nic is for the simulator"),
        (with(&titan, &["netns", "--processors", "3"]), "--processors is for the simulator"),
        (with(&titan, &["sim", "--processors", "3"]), "use it with --nic soft"),
        (with(&titan, &["sim", "--nic", "hardware", "--processors", "3"]), "use it with --nic soft"),
        (with(&titan, &["sim", "--topology", "mq"]), "use it with --on netns"),
        (with(&titan, &["sim", "--qdiscs", own]), "--qdiscs is for scenarios that compare qdiscs"),
        (
            with(&["run", "tc-latency", "--on", "sim"], &["--long-windows", "3"]),
            "--long-windows has no effect",
        ),
        (with(&["run", "tc-packet-length", "--on", "sim"], &["--rate", "1gbit"]), "--rate has no effect"),
        (with(&steer, &["--generate", "20"]), "use them with --plan"),
        (with(&steer, &["--flows", own]), "use them with --plan"),
        (with(&no_name, &[]), "'' is not the name of an interface"),
        (with(&steer, &["--once", "--interval", "1s"]), "cannot be used with"),
        (with(&steer, &["--plan", "--interval", "1s"]), "cannot be used with"),
        (with(&steer, &["--plan", "--generate", "9", "--netns", "all"]), "cannot be used with"),
        (with(&steer, &["--plan", "--generate", "9", "--idle", "1s"]), "cannot be used with"),
        (with(&steer, &["--backend", "xdp", "--model", "i82599"]), "only with the model xdp-cpumap"),
        (with(&steer, &["--backend", "rps", "--model", "i82599"]), "--model has no effect with RPS"),
        (
            with(&steer, &["--plan", "--backend", "xdp", "--model", "i82599"]),
            "leave out --backend or --model",
        ),
        (
            with(&steer, &["--plan", "--backend", "ntuple", "--model", "i82599"]),
            "leave out --backend or --model",
        ),
        (with(&["check", "--explain", "all"], &["--format", "json"]), "cannot be used with"),
        (with(&["check", "--explain", "all"], &["eth0"]), "leave out the interface, --from and --speed"),
        (
            with(&["check", "--explain", "all"], &["--from", "."]),
            "leave out the interface, --from and --speed",
        ),
        (
            with(&["check", "--explain", "all"], &["--speed", "lo=25gbit"]),
            "leave out the interface, --from and --speed",
        ),
        (with(&["fair", "lo", "--plan"], &["--format", "json"]), "cannot be used with"),
        (with(&["study", "tc", "--resume", "."], &["--quick"]), "cannot be used with"),
        (with(&["metrics", "--listen", "127.0.0.1:1"], &["--once"]), "cannot be used with"),
        (with(&["metrics", "--listen", "127.0.0.1:1"], &["--interval", "5s"]), "cannot be used with"),
    ] {
        let ended = run(&arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(words), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn no_advice_is_better_than_wrong_advice() {
    let ended = run(&["check", "--explain", "nope"]);
    assert!(ended.stderr.contains("no rule 'nope'; known: "), "{ended:?}");
    let ended = run(&["run", "titan-6-flows", "--rate", "-1gbit"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(!ended.stderr.contains("-- -1"), "{ended:?}");
}

#[test]
fn unknown_variants_are_refused_before_anything_runs() {
    let ended = run(&["run", "titan-6-flows", "--variant", "dpa"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
    assert!(ended.stderr.contains("'dpa'") && ended.stderr.contains("dqa"), "{ended:?}");
}

#[test]
fn a_run_without_quick_points_is_refused_with_the_option_that_chooses_others() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../../../scenarios/tc-clients.toml");
    let (head, sweep) = text.split_once("[[sweep]]\n").unwrap();
    let sweep: String =
        sweep.lines().filter(|line| !line.starts_with("quick =")).map(|line| format!("{line}\n")).collect();
    let scenario = format!("{head}[[sweep]]\nfull-only = true\n{sweep}");
    let path = support::file(directory.path(), "own.toml", scenario);
    let path = path.to_str().unwrap();
    for quick in [&["--quick"][..], &[]] {
        let ended = run(&[&["run", path, "--on", "sim"], quick].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        let advice = "tc-clients has no point for a quick run; choose points with --variant, for example \
                      --variant full (all points)";
        assert!(ended.stderr.contains(advice), "{ended:?}");
    }
}

#[test]
fn an_occupied_record_directory_is_refused_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    support::file(directory.path(), "precious", "keep me");
    let file = directory.path().join("precious");
    for out in [directory.path(), &file] {
        let ended = run(&["run", "titan-6-flows", "--out", out.to_str().unwrap()]);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        assert!(ended.stderr.contains(out.to_str().unwrap()), "{ended:?}");
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "keep me");
}

#[test]
fn help_and_version_are_results() {
    for arguments in [["--help"].as_slice(), &["-h"], &["run", "--help"], &["scenario", "check", "--help"]] {
        let ended = run(arguments);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(ended.stdout.contains("Usage: evenkeel"), "{arguments:?}");
    }
    for words in ["Exit codes:\n    0  done", "\n  generate "] {
        assert!(run(&["--help"]).stdout.contains(words), "{words}");
    }
    let first_line = format!("evenkeel {}\n", env!("CARGO_PKG_VERSION"));
    let version = run(&["-V"]);
    assert_eq!((version.code, &version.stdout), (0, &first_line));
    let version = run(&["--version"]);
    assert!(version.code == 0 && version.stdout.starts_with(&first_line), "{}", version.stdout);
    for words in [
        "\ncommit: ",
        "\nfair: Linux 6.1 ",
        "\nsteer, ",
        ": Linux 6.6 ",
        "\nother commands: Linux 4.18 or newer\n",
    ] {
        assert!(version.stdout.contains(words), "{words}: {}", version.stdout);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in [
        ["scenario", "list"].as_slice(),
        &["scenario", "show", "titan-12-flows"],
        &["--help"],
        &["--version"],
        &["run", "--help"],
    ] {
        // Close the read end before the command starts, so that its first write fails.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = evenkeel(arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let ended = ended(output);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn an_error_without_anybody_to_tell_keeps_its_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = evenkeel(&["scenario", "show", "nothing"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    for arguments in [
        &["scenario", "list"][..],
        &["--help"],
        &["--version"],
        &["run", "--help"],
        &["check"],
        &["check", "--format", "json"],
        &["nic", "show", "i82599", "--dot"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = evenkeel(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let full = ended(output);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "exec \"$@\" >&-", "sh", env!("CARGO_BIN_EXE_evenkeel")]).args(arguments);
        let closed = end(command);
        for (ended, why) in [(full, "No space left on device"), (closed, "it is closed")] {
            let words = format!("cannot write the result to standard output: {why}");
            assert!(ended.code == 4 && ended.stderr.contains(&words), "{arguments:?}: {ended:?}");
        }
    }
}

#[test]
fn without_privileges_a_run_names_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = evenkeel(&["run", "titan-6-flows"]);
    command.current_dir(directory.path());
    without_capabilities(&mut command);
    let ended = end(command);
    assert_eq!((ended.code, ended.stdout.as_str()), (3, ""), "{ended:?}");
    for words in ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_BPF", "as root"] {
        assert!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is written");
    // More privileges would not help, so the error names the simulator instead.
    let mut command = evenkeel(&["run", "shuffle-6"]);
    command.current_dir(directory.path());
    without_capabilities(&mut command);
    let ended = end(command);
    assert!(ended.code == 3 && ended.stderr.contains("run the scenario with --on sim"), "{ended:?}");
}

#[test]
fn what_needs_no_privileges_asks_for_none() {
    let mut command = evenkeel(&["scenario", "list"]);
    without_capabilities(&mut command);
    assert_eq!(end(command).code, 0);
}

#[test]
fn man_pages_and_completions_are_generated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/share");
    let path = path.to_str().unwrap();
    for what in ["man", "completions"] {
        let ended = run(&["generate", what, path]);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{what}: {ended:?}");
    }
    let read = |name: &str| std::fs::read_to_string(format!("{path}/{name}")).unwrap();
    assert!(read("evenkeel.1").contains(".TH evenkeel 1"));
    assert!(read("evenkeel-run.1").contains("long\\-windows"));
    for completion in ["evenkeel.bash", "evenkeel.fish", "_evenkeel"] {
        assert!(read(completion).contains("scenario"), "{completion}");
    }
    let file = support::file(directory.path(), "file", "");
    let ended = run(&["generate", "man", file.to_str().unwrap()]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
}
