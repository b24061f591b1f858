//! Tests `evenkeel metrics` in a network namespace with real traffic and a real loss.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::time::Duration;

use evenkeel_testbed::TestbedError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::managed::{Managed, NAME, wait_for};
use support::running::Running;
use support::{end, full_pipe};

/// Returns the value of a series; `None` if the series is absent.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn of_interface(metric: &str) -> String {
    format!("{metric}{{interface=\"{NAME}\"}}")
}

/// Returns the response to a request at this address in the namespace of the interface.
fn scrape(managed: &Managed, address: &str) -> String {
    let ask = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        Ok::<_, TestbedError>(text)
    };
    managed.host.run(ask).unwrap()
}

#[test]
fn one_exposition_has_the_flows_and_losses_of_a_second() {
    let managed = Managed::new();
    let load = managed.load(6, "20M", 8);
    // Wait, so that the flows begin before the first window.
    std::thread::sleep(Duration::from_secs(1));
    let ended = end(managed.command(&["metrics", NAME]));
    drop(load);
    assert_eq!(ended.code, 0, "{ended:?}");
    let text = &ended.stdout;
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(value(text, &of_interface("evenkeel_interface_busy_flows")), Some(6.0), "{text}");
    assert!(value(text, &of_interface("evenkeel_interface_colliding_flows")).unwrap() >= 3.0, "{text}");
    assert!(value(text, &of_interface("evenkeel_interface_transmit_bytes_total")).unwrap() > 1e6);
    assert_eq!(value(text, &of_interface("evenkeel_interface_queues")), Some(4.0));
    let largest = value(text, &of_interface("evenkeel_interface_queue_largest_ratio")).unwrap();
    assert!((0.25..=1.0).contains(&largest), "{largest}");
    assert!(text.contains("evenkeel_lost_packets_total{place=\"qdisc\"} "), "{text}");
    assert!(value(text, "evenkeel_rules_not_judged").is_some(), "{text}");
    let unknown = end(managed.command(&["metrics", "never0"]));
    assert!(
        unknown.code == 2 && unknown.stderr.contains("never0") && unknown.stderr.contains(NAME),
        "{unknown:?}"
    );
}

#[test]
fn a_server_counts_on_and_ends_by_a_signal() {
    let managed = Managed::new();
    managed.shell(&["ip", "link", "set", "lo", "up"]);
    let address = "127.0.0.1:19836";
    let mut running = Running::start(managed.command(&["metrics", NAME, "--listen", address]));
    running.wait_for_activity("serving http://127.0.0.1:19836/metrics");
    let second = end(managed.command(&["metrics", "--listen", address]));
    assert!(second.code == 3 && second.stderr.contains("another process uses this address"), "{second:?}");
    let lost = "evenkeel_lost_packets_total{place=\"qdisc\"}";
    let before = scrape(&managed, address);
    assert!(before.starts_with("HTTP/1.1 200 OK\r\n"), "{before}");
    assert_eq!(value(&before, lost), Some(0.0), "{before}");
    // Give the qdisc a low rate and a limit of a few packets.
    managed.shell(&[
        "tc", "qdisc", "replace", "dev", NAME, "root", "handle", "9:", "tbf", "rate", "1mbit", "burst", "4k",
        "limit", "5k",
    ]);
    let load = managed.load(2, "20M", 3);
    wait_for("a loss", Duration::from_secs(20), || value(&scrape(&managed, address), lost).unwrap() > 0.0);
    drop(load);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, 0);
    let mut running = Running::start(managed.command(&["metrics", NAME, "--listen", address, "--no-flows"]));
    running.wait_for_activity("serving");
    let text = scrape(&managed, address);
    assert!(text.contains("200 OK") && !text.contains("evenkeel_interface_busy_flows"), "{text}");
    running.wait_for_activity("without queues and fairness");
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().code, 130);
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    let managed = Managed::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.sock");
    drop(UnixListener::bind(&path).unwrap());
    let endpoint = format!("unix:{}", path.display());
    let mut running = Running::start(managed.command(&["metrics", NAME, "--listen", &endpoint]));
    running.wait_for_activity("serving unix:");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, 0);
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    let refused = end(managed.command(&["metrics", NAME, "--listen", &endpoint]));
    assert!(refused.code == 2 && refused.stderr.contains("is not a socket"), "{refused:?}");
}

#[test]
fn messages_that_nobody_reads_delay_no_scrape() {
    let managed = Managed::new();
    managed.shell(&["ip", "link", "set", "lo", "up"]);
    let address = "127.0.0.1:19838";
    let (_reader, writer) = full_pipe();
    let mut command = managed.command(&["metrics", NAME, "--listen", address, "--no-flows"]);
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    let listens = || Ok::<_, TestbedError>(TcpStream::connect(address).is_ok());
    wait_for("the server", Duration::from_secs(20), || managed.host.run(listens).unwrap());
    for _ in 0..3 {
        let text = scrape(&managed, address);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_textfile_is_replaced_whole() {
    let managed = Managed::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evenkeel.prom");
    let file = path.to_str().unwrap();
    let ended = end(managed.command(&["metrics", NAME, "--textfile", file, "--once"]));
    assert!(ended.code == 0 && ended.stdout.is_empty(), "{ended:?}");
    let read = || std::fs::read_to_string(&path).unwrap();
    let text = read();
    assert!(text.contains("# TYPE evenkeel_interface_transmit_bytes_total counter\n"), "{text}");
    assert!(!text.contains("# EOF"), "{text}");
    let mut running =
        Running::start(managed.command(&["metrics", NAME, "--textfile", file, "--interval", "1s"]));
    let cpu = |text: &str| value(text, "evenkeel_collector_cpu_seconds_total").unwrap();
    wait_for("two writes", Duration::from_secs(20), || {
        let now = read();
        assert!(now.starts_with("# HELP") && now.ends_with('\n'), "{now}");
        now != text && {
            let first = cpu(&now);
            std::thread::sleep(Duration::from_millis(1200));
            cpu(&read()) > first
        }
    });
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, 0);
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        0,
        "node_exporter would serve an old file"
    );
    // Other programs' pipes and links are not replaced.
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other.prom");
    nix::unistd::mkfifo(&other, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let link = directory.path().join("link.prom");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for (path, what) in [(&other, "is a pipe"), (&link, "is a symbolic link")] {
        let refused = end(managed.command(&["metrics", "--textfile", path.to_str().unwrap(), "--once"]));
        assert!(refused.code == 2 && refused.stderr.contains(what), "{refused:?}");
        assert!(!std::fs::symlink_metadata(path).unwrap().is_file());
    }
    let no_directory = format!("unix:{}/none/metrics.sock", directory.path().display());
    let refused = end(managed.command(&["metrics", "--listen", &no_directory]));
    assert!(refused.code == 3 && refused.stderr.contains("No such file or directory"), "{refused:?}");
    let refused = end(managed.command(&["metrics", "--textfile", "/a/evenkeel.txt"]));
    assert!(refused.code == 2 && refused.stderr.contains(".prom"), "{refused:?}");
}

#[test]
fn an_error_removes_the_textfile() {
    let managed = Managed::new();
    let directory = tempfile::tempdir().unwrap();
    // After the first file, the filesystem fills up.
    let script = "mount -t tmpfs -o size=256k none \"$1\" && cd \"$1\" || exit 9; shift
        \"$@\" & process=$!
        while kill -0 $process && [ ! -e evenkeel.prom ]; do sleep 0.1; done
        head -c 1M /dev/zero > ballast 2>&-
        wait $process; code=$?; ls -A; exit $code";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(directory.path());
    command.args([env!("CARGO_BIN_EXE_evenkeel"), "metrics", NAME]);
    command.args(["--textfile", "evenkeel.prom", "--interval", "1s"]);
    command.env("EVENKEEL_STATE_DIR", directory.path().join("state"));
    let ended = end(managed.enter(command));
    assert!(ended.code == 4 && ended.stderr.contains("No space left"), "{ended:?}");
    assert_eq!(ended.stdout, "ballast\n", "node_exporter would serve an old file: {ended:?}");
}
