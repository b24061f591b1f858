//! Tests `evenkeel fair --batching` on the running kernel. Without BPF qdiscs, the command refuses to
//! run and names a remedy. Otherwise it runs and restores everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use nix::sys::signal::Signal;

use support::end;
use support::managed::{Managed, NAME, assert_same, is_empty};

/// Returns whether the kernel has the type with which BPF qdiscs are registered. The binary uses a
/// different check.
fn has_bpf_qdiscs() -> bool {
    let types = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
    let name = b"\0bpf_struct_ops_Qdisc_ops\0";
    types.windows(name.len()).any(|window| window == name)
}

#[test]
fn it_is_refused_without_bpf_qdiscs_and_else_leaves_no_trace() {
    let managed = Managed::new();
    managed.shell(&[
        "tc", "qdisc", "replace", "dev", NAME, "parent", "7:2", "handle", "12:", "pfifo", "limit", "99",
    ]);
    let before = managed.seen();
    if !has_bpf_qdiscs() {
        for arguments in [&["--for", "1s"][..], &["--plan"]] {
            let refused = end(managed.command(&[&["fair", NAME, "--batching", "on"], arguments].concat()));
            assert_eq!((refused.code, refused.stdout.as_str()), (3, ""), "{refused:?}");
            for words in [
                "which this kernel does not support",
                "Linux 6.16 or later with CONFIG_NET_SCH_BPF",
                "--batching off",
            ] {
                assert!(refused.stderr.contains(words), "{words}: {refused:?}");
            }
        }
    } else {
        let mut running = managed.session(&["--batching", "on"]);
        let qdiscs = managed.shell(&["tc", "qdisc", "show", "dev", NAME]);
        assert_eq!(qdiscs.matches(&format!("qdisc evk_{}_", running.id())).count(), 4, "{qdiscs}");
        running.signal(Signal::SIGTERM);
        let ended = running.end();
        assert!(
            ended.code == 0 && ended.stdout.contains("held segments left with other segments"),
            "{ended:?}"
        );
    }
    assert_same(&managed.seen(), &before, "afterwards");
    assert!(is_empty(managed.state.path()));
    let off =
        end(managed.command(&["fair", NAME, "--batching", "off", "--for", "300ms", "--format", "json"]));
    assert_eq!(off.code, 0, "{off:?}");
    let seen: serde_json::Value = serde_json::from_str(&off.stdout).unwrap();
    assert!(seen["devices"][0]["status"]["batching"].is_null(), "{seen}");
    assert_same(&managed.seen(), &before, "without it");
}

/// A single root qdisc in front of all queues excludes batching with any kernel.
#[test]
fn it_is_refused_beside_a_soft_nic() {
    let managed = Managed::new();
    let before = managed.seen();
    let soft_nic = ["fair", NAME, "--queue-weights", "htb", "--rate", "200mbit"];
    let refused = end(managed.command(&[&soft_nic[..], &["--batching", "on", "--for", "1s"]].concat()));
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("--batching off, or --queue-weights off"), "{refused:?}");
    assert_same(&managed.seen(), &before, "afterwards");
    assert!(is_empty(managed.state.path()));
}
