//! Tests the files of `evenkeel tune --persist`, in a network namespace with wrong settings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;
#[path = "support/tuned.rs"]
mod tuned;

use std::path::Path;
use std::process::Command;

use support::end;
use support::managed::{Managed, NAME, is_empty};
use tuned::{Host, OFF, WRONG};

#[test]
fn files_for_the_next_start_are_shown_written_and_removed() {
    let host = Host::new();
    let planned = host.tune(&["--persist", "sysctl,systemd"]);
    let name = format!("90-evenkeel-evk0:{}.conf", host.namespace());
    assert!(planned.stdout.contains(&format!("{name} would be written")), "{planned:?}");
    let json = |arguments: &[&str]| -> serde_json::Value {
        let ended = host.tune(arguments);
        assert_eq!(ended.code, 0, "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let shown = json(&["--persist", "sysctl", "--format", "json"]);
    assert_eq!(shown["files"].as_array().unwrap().len(), 1, "{shown}");
    assert!(shown["files"][0]["path"].as_str().unwrap().ends_with(&name), "{shown}");
    assert!(shown["files"][0]["text"].as_str().unwrap().contains("\nnet.ipv4.tcp_sack = 1\n"), "{shown}");
    assert_eq!(shown["not_kept"], serde_json::json!([]));
    assert!(!host.etc.path().join("sysctl.d").exists());
    host.tune(&["--apply", "sack-off", "--no-watch"]);
    // The files also contain the changes of previous calls.
    let arguments = ["--apply", "timestamps-off", "--no-watch", "--persist", "sysctl", "--format", "json"];
    let applied = host.tune(&arguments);
    assert!(applied.code == 0 && applied.stderr.contains("net.ipv4.tcp_sack = 1"), "{applied:?}");
    let path = host.etc.path().join("sysctl.d").join(&name);
    // Simulate a kill during the write: it leaves a draft, which does not take effect.
    let draft = host.etc.path().join("sysctl.d/90-evenkeel-evk0.evenkeel-draft");
    std::fs::write(&draft, "net.ipv4").unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("net.ipv4.tcp_sack = 1\n") && text.contains("net.ipv4.tcp_timestamps = 1\n"),
        "{text}"
    );
    let result: serde_json::Value = serde_json::from_str(&applied.stdout).unwrap();
    assert_eq!(result["files"], serde_json::json!([{ "path": path.to_str().unwrap(), "text": text }]));
    assert_eq!((&result["not_kept"], result["done"].as_array().unwrap().len()), (&serde_json::json!([]), 1));

    // Simulate a reboot: the settings are lost, and the file restores them. sysctl(8) accepts the file.
    for (name, _) in WRONG {
        host.managed.host.set_sysctl(&format!("net/ipv4/{name}"), "0").unwrap();
    }
    host.managed.shell(&["sysctl", "-p", path.to_str().unwrap()]);
    assert_eq!(host.values(), ["0", "1", "0", "1"]);
    // In another network namespace, another interface has the same name.
    let elsewhere = Managed::new();
    for arguments in [&["revert"][..], &["revert", NAME]] {
        let mut command = elsewhere.command(arguments);
        command.env("EVENKEEL_ETC_DIR", host.etc.path()).env("EVENKEEL_STATE_DIR", host.managed.state.path());
        let ended = end(command);
        assert!(ended.stderr.contains("another network namespace") && path.exists(), "{ended:?}");
        assert_eq!(host.managed.journals().len(), 1, "{ended:?}");
    }
    let reverted = host.revert();
    assert!(reverted.code == 0 && reverted.stdout.contains(&format!("{name}: removed")), "{reverted:?}");
    assert!(!path.exists() && !draft.exists());
    assert_eq!(host.values(), OFF);
}

#[test]
fn files_of_earlier_commands_have_the_settings_in_force() {
    let host = Host::new();
    let file = |kind: &str| host.etc.path().join(format!("{kind}:{}.conf", host.namespace()));
    let sysctls = file("sysctl.d/90-evenkeel-evk0");
    assert_eq!(host.tune(&["--apply", "sack-off", "--no-watch", "--persist", "sysctl"]).code, 0);
    // The file of the first command also has the change of the second command.
    let second = host.tune(&["--apply", "timestamps-off", "--no-watch", "--persist", "udev"]);
    assert!(second.code == 0 && !second.stdout.contains("lost at the next reboot"), "{second:?}");
    let text = std::fs::read_to_string(&sysctls).unwrap();
    assert!(text.contains("tcp_sack = 1\n") && text.contains("tcp_timestamps = 1\n"), "{text}");
    // The file also has the change of a command without --persist.
    assert_eq!(host.tune(&["--apply", "autotuning-off", "--no-watch"]).code, 0);
    let text = std::fs::read_to_string(&sysctls).unwrap();
    assert!(text.contains("tcp_moderate_rcvbuf = 1\n"), "{text}");
    // A plan shows the file that --apply would write.
    let plan = host.tune(&["--persist", "sysctl"]).stdout;
    let lines = ["sack", "timestamps", "window_scaling"].map(|name| format!("net.ipv4.tcp_{name} = 1\n"));
    assert!(lines.iter().all(|line| plan.contains(line)), "{plan}");

    // After the settings were changed back by hand, the file would set them at the next start.
    host.managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    host.managed.host.set_sysctl("net/ipv4/tcp_timestamps", "0").unwrap();
    host.managed.host.set_sysctl("net/ipv4/tcp_moderate_rcvbuf", "0").unwrap();
    let keep = host.etc.path().join("keep.toml");
    std::fs::write(&keep, "keep = [\"sysctl net.ipv4.tcp_*\"]\n").unwrap();
    let keep = ["--keep", keep.to_str().unwrap(), "--persist", "sysctl"];
    let planned = host.tune(&keep);
    let words = format!("{} would be removed", sysctls.display());
    assert!(planned.stdout.contains(&words) && sysctls.exists(), "{planned:?}");
    let applied = host.tune(&[&["--apply", "--no-watch"], &keep[..]].concat());
    let words = format!("removed, because none of its settings is in force: {}", sysctls.display());
    assert!(applied.stdout.contains(&words) && !sysctls.exists(), "{applied:?}");
    assert_eq!(host.values(), OFF);
}

fn rename(host: &Host, from: &str, to: &str) {
    for words in [&["down"][..], &["name", to], &["up"]] {
        let name = if words == ["up"] { to } else { from };
        host.managed.shell(&[&["ip", "link", "set", name], words].concat());
    }
}

#[test]
fn files_follow_a_rename_of_the_interface() {
    let host = Host::new();
    let rename = |from: &str, to: &str| rename(&host, from, to);
    let file =
        |name: &str| host.etc.path().join(format!("sysctl.d/90-evenkeel-{name}:{}.conf", host.namespace()));
    let persist = |name: &str, rule: &str| {
        let arguments = ["tune", name, "--apply", rule, "--no-watch", "--persist", "sysctl"];
        let ended = end(host.command(&arguments));
        assert_eq!(ended.code, 0, "{ended:?}");
        ended
    };
    persist(NAME, "sack-off");
    rename(NAME, "evk7");
    let reverted = end(host.command(&["revert", "evk7"]));
    assert!(reverted.code == 0 && !file(NAME).exists(), "{reverted:?}");
    assert_eq!(host.values(), OFF);

    // The next command writes the file under the present name.
    persist("evk7", "sack-off");
    rename("evk7", NAME);
    let again = persist(NAME, "timestamps-off");
    let words = format!("removed, because the interface has another name now: {}", file("evk7").display());
    // The path of the directory may wrap the line.
    let said = again.stdout.replace("\n  ", " ");
    assert!(said.contains(&words) && !file("evk7").exists(), "{again:?}");
    let text = std::fs::read_to_string(file(NAME)).unwrap();
    assert!(text.contains("tcp_sack = 1\n") && text.contains("tcp_timestamps = 1\n"), "{text}");
    // The journal contains the directory and the older name.
    let reverted = end(host.managed.command(&["revert"]));
    assert!(reverted.code == 0 && !file(NAME).exists(), "{reverted:?}");
    assert!(is_empty(host.managed.state.path()));
    assert_eq!(host.values(), OFF);

    // Another interface has the old name, but the journal shows that the file belongs to the renamed
    // interface.
    persist(NAME, "sack-off");
    rename(NAME, "evk7");
    host.managed.shell(&["ip", "link", "add", NAME, "type", "veth", "peer", "name", "evk9"]);
    let reverted = end(host.command(&["revert", "evk7"]));
    assert!(reverted.code == 0 && !file(NAME).exists(), "{reverted:?}");
    // The other interface has written the file of this name since.
    persist("evk7", "sack-off");
    rename("evk7", "evk8");
    rename(NAME, "evk7");
    persist("evk7", "timestamps-off");
    let reverted = end(host.command(&["revert", "evk8"]));
    assert!(reverted.code == 0 && file("evk7").exists(), "{reverted:?}");
    let reverted = end(host.command(&["revert", "evk7"]));
    assert!(reverted.code == 0 && !file("evk7").exists(), "{reverted:?}");
    assert_eq!(host.values(), OFF);
}

/// Two interfaces, each with its own directory of files, have the name `evk2` in turn.
#[test]
fn files_under_every_earlier_name_are_removed() {
    let host = Host::new();
    host.managed.shell(&["ip", "link", "add", "evk2", "type", "veth", "peer", "name", "evk3"]);
    let second = tempfile::tempdir().unwrap();
    let file =
        |etc: &Path, name: &str| etc.join(format!("sysctl.d/90-evenkeel-{name}:{}.conf", host.namespace()));
    let persist = |etc: &Path, name: &str, rule: &str| {
        let mut command =
            host.managed.command(&["tune", name, "--apply", rule, "--no-watch", "--persist", "sysctl"]);
        command.env("EVENKEEL_ETC_DIR", etc);
        let ended = end(command);
        assert!(ended.code == 0 && file(etc, name).exists(), "{ended:?}");
    };
    let (first, second) = (host.etc.path(), second.path());
    persist(first, NAME, "sack-off");
    persist(second, "evk2", "timestamps-off");
    rename(&host, "evk2", "evk6");
    rename(&host, NAME, "evk2");
    persist(first, "evk2", "window-scaling-off");
    let reverted = end(host.managed.command(&["revert", "evk6"]));
    assert!(reverted.code == 0 && !file(second, "evk2").exists(), "{reverted:?}");
    assert!(file(first, "evk2").exists(), "{reverted:?}");
    let reverted = end(host.managed.command(&["revert", "evk2"]));
    let is_left = [NAME, "evk2"].iter().any(|name| file(first, name).exists());
    assert!(reverted.code == 0 && !is_left, "{reverted:?}");

    // After two renames, the names of both files differ from the present name.
    persist(first, "evk2", "sack-off");
    rename(&host, "evk2", "evk5");
    persist(second, "evk5", "timestamps-off");
    rename(&host, "evk5", "evk4");
    let reverted = end(host.managed.command(&["revert", "evk4"]));
    let is_left = file(first, "evk2").exists() || file(second, "evk5").exists();
    assert!(reverted.code == 0 && !is_left, "{reverted:?}");
    assert!(is_empty(host.managed.state.path()));
    assert_eq!(host.values(), OFF);
}

#[test]
fn a_file_without_a_journal_is_removed_with_a_remark_about_its_settings() {
    let host = Host::new();
    assert_eq!(host.tune(&["--apply", "sack-off", "--no-watch", "--persist", "sysctl"]).code, 0);
    for journal in std::fs::read_dir(host.managed.state.path()).unwrap() {
        std::fs::remove_file(journal.unwrap().path()).unwrap();
    }
    let reverted = host.revert();
    assert!(reverted.stderr.contains("the settings keep their present values"), "{reverted:?}");
    assert_eq!(host.values(), ["0", "1", "0", "0"]);
}

#[test]
fn files_in_another_directory_are_removed_without_its_name() {
    let host = Host::new();
    let file = format!("sysctl.d/90-evenkeel-evk0:{}.conf", host.namespace());
    // Name the first directory by a relative path from its parent, and use a second directory after
    // that.
    let second = tempfile::tempdir().unwrap();
    let (above, name) = (host.etc.path().parent().unwrap(), host.etc.path().file_name().unwrap());
    for (item, etc) in [("sack-off", name), ("timestamps-off", second.path().as_os_str())] {
        let arguments = ["tune", NAME, "--apply", item, "--no-watch", "--persist", "sysctl"];
        let mut command = host.managed.command(&arguments);
        command.env("EVENKEEL_ETC_DIR", etc).current_dir(above);
        let ended = end(command);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let files = [host.etc.path(), second.path()].map(|etc| etc.join(&file));
    assert!(files.iter().all(|file| file.exists()));
    let reverted = end(host.managed.command(&["revert", NAME]));
    assert_eq!(reverted.code, 0, "{reverted:?}");
    for file in &files {
        assert!(!file.exists(), "{reverted:?}");
        assert!(reverted.stdout.contains(&format!("{}: removed", file.display())), "{reverted:?}");
    }
    assert!(is_empty(host.managed.state.path()));
}

#[test]
fn a_file_that_was_edited_is_left_and_reported_once() {
    let host = Host::new();
    let file = host.etc.path().join(format!("sysctl.d/90-evenkeel-evk0:{}.conf", host.namespace()));
    assert_eq!(host.tune(&["--apply", "--no-watch", "--persist", "sysctl"]).code, 0);
    let text = std::fs::read_to_string(&file).unwrap() + "kernel.sysrq = 0\n";
    std::fs::write(&file, &text).unwrap();
    let reverted = host.revert();
    assert_eq!(reverted.code, 0, "{reverted:?}");
    assert_eq!(reverted.stderr.matches("is not removed, because it was edited").count(), 1, "{reverted:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn later_changes_for_an_edited_file_are_reported_as_not_kept() {
    let host = Host::new();
    let file = host.etc.path().join(format!("sysctl.d/90-evenkeel-evk0:{}.conf", host.namespace()));
    let tune = |rule: &str, more: &[&str]| {
        let ended = host.tune(&[&["--apply", rule, "--no-watch"], more].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stdout
    };
    tune("sack-off", &["--persist", "sysctl"]);
    let text = std::fs::read_to_string(&file).unwrap() + "# A note.\n";
    std::fs::write(&file, &text).unwrap();
    let said = tune("timestamps-off", &[]);
    assert!(said.contains(&format!("lost at the next reboot: settings for {}", file.display())), "{said}");
    let report = tune("window-scaling-off", &["--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["not_kept"][0].as_str().unwrap().contains("was edited"), "{report}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn files_that_cannot_be_removed_are_remembered() {
    let host = Host::new();
    let mounted = |words: &[&str]| {
        let output = Command::new("mount").args(words).arg(host.etc.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    mounted(&["-t", "tmpfs", "none"]);
    let file = host.etc.path().join(format!("sysctl.d/90-evenkeel-evk0:{}.conf", host.namespace()));
    assert_eq!(host.tune(&["--apply", "--no-watch", "--persist", "sysctl"]).code, 0);
    mounted(&["-o", "remount,ro"]);
    let reverts = || end(host.managed.command(&["revert", NAME]));
    let first = reverts();
    assert_eq!(host.values(), OFF);
    host.managed.host.set_sysctl("net/ipv4/tcp_sack", "1").unwrap();
    let (second, both) = (reverts(), host.revert());
    mounted(&["-o", "remount,rw"]);
    let (last, is_removed) = (reverts(), !file.exists());
    assert!(Command::new("umount").arg(host.etc.path()).status().unwrap().success());
    for ended in [&first, &second, &both] {
        let words = format!("cannot remove {}: Read-only file system", file.display());
        assert!(ended.code == 4 && ended.stderr.matches(&words).count() == 1, "{ended:?}");
    }
    assert!(first.stdout.contains("4 settings restored"), "{first:?}");
    assert!(last.code == 0 && last.stdout == format!("{}: removed\n", file.display()), "{last:?}");
    assert!(is_removed && is_empty(host.managed.state.path()), "{:?}", host.managed.journals());
    assert_eq!(host.values(), ["0", "1", "0", "0"], "another program's value");
}
