//! Kills processes of a service: the supervisor, its workers and their guardians. No setting may be
//! lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use support::end;
use support::leftovers::children;
use support::managed::{assert_same, kill_process, wait_for};
use support::running::Running;
use support::service::{BOTH, FIRST, OTHER, PATIENCE, Place, lose_worker, only};

#[test]
fn a_killed_worker_is_started_again() {
    let place = Place::new();
    let before = place.managed.seen();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(OTHER, "fair");
    let (first, other) = (place.process(FIRST), place.process(OTHER));
    kill_process(first);
    place.wait_for_restart(FIRST, first);
    place.wait_for_maps(true);
    assert_eq!(place.process(OTHER), other);
    let said = place.end(service);
    assert!(said.contains("evk0: fair -> waits: SIGKILL killed the worker"), "{said}");
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// A stopped worker does not manage its interface, so the service must not report the interface as fair.
#[test]
fn a_worker_without_a_status_is_shown_as_silent() {
    let place = Place::new();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(FIRST, "fair");
    let worker = place.process(FIRST);
    let process = Pid::from_raw(worker.cast_signed());
    kill(process, Signal::SIGSTOP).unwrap();
    place.wait_for(FIRST, "silent");
    let status = end(place.client(&["status"]));
    assert!(status.code == 1 && status.stdout.contains("has sent no status for 5 s"), "{status:?}");
    kill(process, Signal::SIGCONT).unwrap();
    place.wait_for(FIRST, "fair");
    assert_eq!(place.process(FIRST), worker);
    let said = place.end(service);
    assert!(said.contains("evk0: fair -> silent: ") && said.contains("evk0: silent -> fair"), "{said}");
}

/// A pause or the end does not wait until the service detects that a worker is silent.
#[test]
fn a_stopped_worker_is_killed_when_it_does_not_end() {
    let place = Place::new();
    let before = place.managed.seen();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(FIRST, "fair");
    let stop = |name| kill(Pid::from_raw(place.process(name).cast_signed()), Signal::SIGSTOP).unwrap();
    stop(FIRST);
    let paused = end(place.client(&["service", "pause", FIRST]));
    assert_eq!(paused.code, 0, "{paused:?}");
    stop(OTHER);
    let said = place.end(service);
    for name in [FIRST, OTHER] {
        let words = format!("{name}: stopping -> stopping: the worker (process ");
        assert!(said.contains(&words), "{said}");
    }
    assert_eq!(said.matches("did not end within 5 s; it is killed").count(), 2, "{said}");
    assert_same(&place.managed.seen(), &before, "afterwards");
}

#[test]
fn a_killed_supervisor_takes_its_workers_with_it_and_the_next_one_goes_on() {
    let place = Place::new();
    let before = place.managed.seen();
    place.write(BOTH);
    let service = place.start();
    place.wait_for(OTHER, "fair");
    service.kill();
    place.wait_for_maps(false);
    wait_for("no journal is left", PATIENCE, || place.managed.journals().is_empty());
    assert_same(&place.managed.seen(), &before, "after the kill");

    // The service manager starts the next service at once, while the workers of the first service still
    // restore settings.
    let service = place.start();
    place.wait_for(OTHER, "fair");
    service.kill();
    let service = place.start();
    place.wait_for(FIRST, "fair");
    place.wait_for(OTHER, "fair");
    place.wait_for_maps(true);
    place.end(service);
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// A pause and the end of the service must not report settings as restored if they could not be
/// restored.
#[test]
fn settings_that_cannot_be_restored_are_named() {
    let place = Place::new();
    let before = place.managed.seen();
    place.write(&only(FIRST));
    let mut service = place.start();
    place.wait_for(FIRST, "fair");
    let directory = place.managed.state.path();
    lose_worker(&place, &mut service, || {
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o777)).unwrap();
    });
    place.wait_for(FIRST, "refused");
    let paused = end(place.client(&["service", "pause"]));
    assert!(paused.code == 4 && paused.stderr.contains("settings are not restored"), "{paused:?}");
    let status = end(place.client(&["status"]));
    assert!(status.code == 1 && status.stdout.contains("evk0 is paused: settings are not"), "{status:?}");
    service.signal(Signal::SIGTERM);
    let ended = service.end();
    assert!(
        ended.code == 4 && ended.stderr.contains("some settings of evk0 could not be restored"),
        "{ended:?}"
    );
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(end(place.managed.command(&["revert"])).code, 0);
    assert_same(&place.managed.seen(), &before, "after revert");
}

/// After a worker has died with its guardian, only the journal is left.
#[test]
fn the_end_restores_what_a_worker_killed_with_its_guardian_left() {
    let place = Place::new();
    let before = place.managed.seen();
    let soft_nic = only(FIRST).replace("{ xps", "{ queue-weights = \"htb\", rate = \"150mbit\", xps");
    place.write(&soft_nic);
    let service = place.start();
    for pauses in [true, true, false] {
        place.wait_for(FIRST, "fair");
        let worker = place.process(FIRST);
        // Stop the worker, so that it starts no new guardian.
        let process = Pid::from_raw(worker.cast_signed());
        kill(process, Signal::SIGSTOP).unwrap();
        children(worker).iter().for_each(|guardian| kill_process(guardian.id));
        kill_process(worker);
        if pauses {
            let paused = end(place.client(&["service", "pause", FIRST]));
            assert_eq!(paused.code, 0, "{paused:?}");
            place.wait_for_maps(false);
            assert_eq!(end(place.client(&["service", "resume"])).code, 0);
        }
    }
    place.end(service);
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// Kills random processes of the service under traffic, `EVENKEEL_SERVICE_KILLS` times (default 20).
/// `EVENKEEL_SERVICE_SEED` is the seed of the choices (default 1).
#[test]
fn random_kills_lose_no_setting_and_no_connection() {
    let kills: u32 = std::env::var("EVENKEEL_SERVICE_KILLS").map_or(20, |text| text.parse().unwrap());
    let seed: u64 = std::env::var("EVENKEEL_SERVICE_SEED").map_or(1, |text| text.parse().unwrap());
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let place = Place::new();
    let before = place.managed.seen();
    place.write(BOTH);
    let mut service = place.start();
    let mut load = place.managed.load(4, "20M", 2 + kills);
    let mut killed = [0; 3];
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(u64::from(random.next_u32() % 700)));
        let workers = children(service.id());
        let guardians: Vec<u32> =
            workers.iter().flat_map(|worker| children(worker.id)).map(|guardian| guardian.id).collect();
        let pick = random.next_u32() as usize;
        match random.next_u32() % 4 {
            0 => {
                service.kill();
                service = Running::start(place.command());
                killed[0] += 1;
            }
            1 | 2 if !workers.is_empty() => {
                kill_process(workers[pick % workers.len()].id);
                killed[1] += 1;
            }
            _ if !guardians.is_empty() => {
                kill_process(guardians[pick % guardians.len()]);
                killed[2] += 1;
            }
            _ => {}
        }
    }
    println!("killed: {} supervisors, {} workers, {} guardians", killed[0], killed[1], killed[2]);
    assert!(killed.iter().all(|count| *count > 0), "{killed:?}");
    service.wait_for_activity("ready: ");
    let is_loaded = load.is_running();
    // The workers of a killed supervisor may still restore their settings. The new workers wait for the
    // old workers.
    place.wait_for(FIRST, "fair");
    place.wait_for(OTHER, "fair");
    place.end(service);
    load.finish();
    assert!(is_loaded, "the traffic lasted as long as the kills");
    assert_same(&place.managed.seen(), &before, "afterwards");
}

/// While another process has locked a dead worker's journal, no process restores the worker's changes.
#[test]
fn a_journal_that_another_process_holds_is_no_all_clear() {
    let place = Place::new();
    let before = place.managed.seen();
    place.write(&only(FIRST));
    let mut service = place.start();
    place.wait_for(FIRST, "fair");
    let mut held = None;
    lose_worker(&place, &mut service, || {
        let journal = std::fs::File::open(place.managed.state.path().join(&place.managed.journals()[0]));
        // Wait for the lock: the kernel may not have ended the killed worker yet.
        held = Some(Flock::lock(journal.unwrap(), FlockArg::LockExclusive).unwrap());
    });
    place.write(&only(OTHER));
    assert_eq!(end(place.client(&["service", "reload"])).code, 0);
    wait_for("the interface is no longer managed", PATIENCE, || place.interface(FIRST).is_null());
    let shown = end(place.client(&["status"]));
    let words = "the settings of evk0 are not restored: evenkeel fair on evk0 ";
    assert!(shown.code == 1 && shown.stdout.contains(words), "{shown:?}");
    drop(held);
    assert_eq!(end(place.managed.command(&["revert", FIRST])).code, 0);
    let paused = end(place.client(&["service", "pause"]));
    assert_eq!(paused.code, 0, "{paused:?}");
    assert_eq!(end(place.client(&["status"])).code, 0);
    place.end(service);
    assert_same(&place.managed.seen(), &before, "afterwards");
}
