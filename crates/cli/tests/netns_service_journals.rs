//! Renames, removes or damages the journals of a service's workers. The service must not report the settings
//! as restored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use support::end;
use support::managed::wait_for;
use support::running::Running;
use support::service::{FIRST, PATIENCE, Place, lose_worker, only};

const SACK: &str = "/proc/sys/net/ipv4/tcp_sack";

/// Returns the path of the only journal.
fn journal(place: &Place) -> PathBuf {
    let names = place.managed.journals();
    assert_eq!(names.len(), 1, "{names:?}");
    place.managed.state.path().join(&names[0])
}

fn reason(place: &Place) -> String {
    place.interface(FIRST)["reason"].as_str().unwrap_or_default().to_owned()
}

/// Checks that `pause` and the end of the service name the settings as not restored.
fn assert_unrestored(place: &Place, mut service: Running, words: &str) {
    let paused = end(place.client(&["service", "pause"]));
    assert!(
        paused.code == 4
            && paused.stderr.contains("settings are not restored")
            && paused.stderr.contains(words),
        "{paused:?}"
    );
    let shown = end(place.client(&["status"]));
    assert_eq!(shown.code, 1, "{shown:?}");
    service.signal(Signal::SIGTERM);
    let ended = service.end();
    assert!(
        ended.code == 4 && ended.stderr.contains("some settings of evk0 could not be restored"),
        "{ended:?}"
    );
}

#[test]
fn a_renamed_journal_of_a_session_restores_nothing() {
    let place = Place::new();
    place.write(&only(FIRST));
    let mut service = place.start();
    place.wait_for(FIRST, "fair");
    let directory = place.managed.state.path();
    let journal = journal(&place);
    lose_worker(&place, &mut service, || {
        std::fs::rename(&journal, directory.join("old.journal")).unwrap();
    });
    place.wait_for(FIRST, "refused");
    assert_unrestored(&place, service, "renamed the journal");
}

/// The second worker takes the changed values as the administrator's, because it cannot read the previous
/// values.
#[test]
fn a_damaged_journal_of_a_session_is_named_while_the_next_one_runs() {
    let place = Place::new();
    place.write(&only(FIRST));
    let mut service = place.start();
    place.wait_for(FIRST, "fair");
    let journal = journal(&place);
    lose_worker(&place, &mut service, || {
        let text = std::fs::read_to_string(&journal).unwrap();
        let damaged: Vec<String> = text.lines().map(|line| line.replace("xps", "xbs")).collect();
        std::fs::write(&journal, damaged.join("\n") + "\n").unwrap();
    });
    wait_for("the next worker names the journal", PATIENCE, || {
        place.interface(FIRST)["state"] == "fair" && reason(&place).contains(".damaged")
    });
    assert_eq!(end(place.client(&["status"])).code, 1);
    // An operator who has restored the settings removes the file.
    let directory = place.managed.state.path();
    let names = support::names(directory);
    let file = names.iter().find(|name| name.ends_with(".damaged")).unwrap();
    let aside = place.file().with_file_name("aside");
    std::fs::copy(directory.join(file), &aside).unwrap();
    std::fs::remove_file(directory.join(file)).unwrap();
    wait_for("the reason is gone", PATIENCE, || reason(&place).is_empty());
    assert_eq!(end(place.client(&["status"])).code, 0);

    std::fs::copy(&aside, directory.join(file)).unwrap();
    std::fs::set_permissions(directory.join(file), PermissionsExt::from_mode(0o600)).unwrap();
    assert_unrestored(&place, service, ".damaged");
}

/// Starts a service whose `tune` changes one setting, and calls `change` with the path of the journal. Waits
/// until the worker misses the journal.
fn tuned_without_journal(change: impl FnOnce(&Path)) -> (Place, Running) {
    let place = Place::new();
    place.managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    place.write(&format!("[[interface]]\nmatch.name = \"{FIRST}\"\ntune = [\"sack-off\"]"));
    let service = place.start();
    place.wait_for(FIRST, "tuned");
    change(&journal(&place));
    wait_for("the worker misses its journal", PATIENCE, || {
        ["given-up", "refused"].map(Into::into).contains(&place.interface(FIRST)["state"])
    });
    (place, service)
}

fn sack(place: &Place) -> String {
    place.managed.host.run(|| Ok(std::fs::read_to_string(SACK).unwrap().trim().to_owned())).unwrap()
}

#[test]
fn a_removed_journal_of_tune_leaves_settings_that_the_service_names() {
    let (place, service) = tuned_without_journal(|journal| std::fs::remove_file(journal).unwrap());
    let words = "the sysctl net.ipv4.tcp_sack still has the value that tune set";
    let paused = end(place.client(&["service", "pause", FIRST]));
    assert!(paused.code == 4 && paused.stderr.contains(words), "{paused:?}");
    assert!(paused.stderr.contains("`sysctl -w net.ipv4.tcp_sack=0`"), "{paused:?}");
    // The rule has no finding now, but nothing can undo the change.
    assert_eq!(end(place.client(&["service", "resume", FIRST])).code, 0);
    place.wait_for(FIRST, "tuned");
    assert!(reason(&place).contains(words), "{}", place.status());
    assert_eq!(end(place.client(&["status"])).code, 1);
    // An operator restores the value by hand.
    end(place.client(&["service", "pause", FIRST]));
    place.managed.host.set_sysctl("net/ipv4/tcp_sack", "0").unwrap();
    wait_for("the setting is restored", PATIENCE, || reason(&place).is_empty());
    assert_eq!(end(place.client(&["status"])).code, 0);
    place.end(service);
}

#[test]
fn a_removed_journal_of_tune_is_named_at_the_end() {
    let (place, service) = tuned_without_journal(|journal| std::fs::remove_file(journal).unwrap());
    assert_unrestored(&place, service, "tcp_sack");
    assert_eq!(sack(&place), "1");
}

#[test]
fn a_renamed_journal_of_tune_is_named() {
    let (place, service) = tuned_without_journal(|journal| {
        std::fs::rename(journal, journal.with_file_name("old.journal")).unwrap();
    });
    let resumed = end(place.client(&["service", "resume", FIRST]));
    assert_eq!(resumed.code, 0, "{resumed:?}");
    assert!(resumed.stdout.replace('\n', " ").contains("renamed the journal"), "{resumed:?}");
    place.wait_for(FIRST, "refused");
    assert_unrestored(&place, service, "renamed the journal");
}

#[test]
fn an_emptied_or_damaged_journal_of_tune_is_named() {
    let empty = |journal: &Path| std::fs::write(journal, "").unwrap();
    let damage = |journal: &Path| {
        let text = std::fs::read_to_string(journal).unwrap();
        std::fs::write(journal, text.replace("tcp_sack", "tcp_sock")).unwrap();
    };
    for change in [&empty as &dyn Fn(&Path), &damage] {
        let (place, service) = tuned_without_journal(change);
        end(place.client(&["service", "resume", FIRST]));
        place.wait_for(FIRST, "refused");
        assert_unrestored(&place, service, "is damaged");
    }
}
