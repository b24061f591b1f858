//! Tests `evenkeel calibrate` without privileges, and the profiles that commands and scenarios name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/hosts.rs"]
mod hosts;
mod support;

use evenkeel_host::facts::complete;
use evenkeel_model::machine::{Figure, MachineProfile, Measured};
use evenkeel_synthetic::write_tree;
use serde_json::Value;
use support::{end, evenkeel, file, names, run, without_capabilities};

#[test]
fn memory_and_wakeups_need_no_privileges() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("mine.toml");
    let mut command = evenkeel(&["calibrate", "--for", "2s", "--format", "json", "-o"]);
    command.arg(&path);
    without_capabilities(&mut command);
    let ended = end(command);
    assert_eq!(ended.code, 0, "{ended:?}");
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let gaps = found["not_measured"].to_string();
    assert!(
        gaps.contains("this process lacks CAP_SYS_ADMIN, CAP_NET_ADMIN; run the command as root"),
        "{gaps}"
    );
    let profile = MachineProfile::parse(&std::fs::read_to_string(&path).unwrap(), "mine.toml").unwrap();
    let measured = profile.measured();
    let figure = |key: &str| measured.iter().find(|(known, _)| known == key).map(|(_, figure)| *figure);
    // On a busy machine, calibration may find no usable figure for a switch to a thread.
    let medians = found["measurements"].as_array().unwrap();
    assert!(medians.iter().any(|quantity| quantity["name"] == "switch to a thread"), "{found:#}");
    if cfg!(target_arch = "x86_64") {
        let (clock, local) = (figure("processor.turbo-clock").unwrap(), figure("copy.local").unwrap());
        assert!((2e8..1e10).contains(&clock.value), "{clock:?}");
        // The limits are 64 bytes per cycle, and one byte per 100 cycles.
        assert!((1.0 / 64.0..100.0).contains(&local.value), "{local:?}");
    }
    for (key, Figure { value, measured }) in measured {
        let Measured { low, high, n } = measured.unwrap();
        assert!(low <= value && value <= high && n >= 6, "{key}: {value} {low} {high} {n}");
    }
    assert!(profile.based_on.is_some() && profile.description.starts_with("Measured in 2 s on "));
    assert_eq!(names(place.path()), ["mine.toml"]);
    // The file exists now: another calibration must not replace it.
    let again = run(&["calibrate", "--for", "2s", "-o", path.to_str().unwrap()]);
    assert_eq!(again.code, 2, "{again:?}");
    assert!(again.stderr.contains("already exists; name a new file"), "{again:?}");
}

#[test]
fn wrong_usage_is_refused_before_anything_is_measured() {
    for (arguments, expected) in [
        (&["--cores", "0"][..], "name two different processors, such as 2,3"),
        (&["--cores", "0,0"], "name two different processors"),
        (&["--cores", "0,99999"], "--cores: processor 99999 is not online"),
        (&["--for", "1s"], "give a time from 2s to 10min"),
        (&["--for", "30"], "a time needs a unit"),
        (&["-o", "/nowhere/mine.toml"], "/nowhere/mine.toml"),
        (&["-o", "-", "--format", "json"], "both write to standard output"),
    ] {
        let ended = run(&[&["calibrate"], arguments].concat());
        assert_eq!(ended.code, 2, "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(expected) && ended.stdout.is_empty(), "{arguments:?}: {ended:?}");
    }
}

/// Returns a profile as text. The costs of its copies are known up to a factor of 1 + `share`.
fn uncertain(share: f64) -> String {
    let mut profile = MachineProfile::xeon_6128();
    let value = profile.copy.local.value;
    let measured = Some(Measured { low: value / (1.0 + share), high: value * (1.0 + share), n: 15 });
    profile.name = "mine".to_owned();
    profile.based_on = Some("xeon-6128".to_owned());
    profile.copy.local = Figure { value, measured };
    profile.copy.remote = Figure { value: 1.5 * value, measured };
    profile.to_string()
}

/// The assumptions of a forecast name its profile. An uncertain profile changes the forecast.
#[test]
fn a_forecast_uses_the_profile_and_its_uncertainty() {
    let place = tempfile::tempdir().unwrap();
    let (_, host) = hosts::HOSTS[0];
    let mut facts = host();
    complete(&mut facts);
    let tree = place.path().join("host");
    write_tree(&facts, &tree).unwrap();
    let check = |machine: &str| {
        let tree = tree.to_str().unwrap();
        let arguments = ["check", "--simulate", "--from", tree, "--format", "json", "--machine", machine];
        let ended = run(&arguments);
        assert!(ended.code <= 1, "{ended:?}");
        let found: Value = serde_json::from_str(&ended.stdout).unwrap();
        let simulated = &found["simulation"]["interfaces"][0];
        (simulated["now"].as_f64().unwrap(), simulated["assumptions"].to_string())
    };
    let exact = file(place.path(), "exact.toml", MachineProfile::xeon_6128().to_string());
    let rough = file(place.path(), "rough.toml", uncertain(1.0));
    let (built_in, assumptions) = check("xeon-6128");
    assert!(assumptions.contains("of the profile xeon-6128\""), "{assumptions}");
    assert_eq!(check(exact.to_str().unwrap()).0, built_in);
    assert!(check("kit-2014").1.contains("of the profile kit-2014\""));
    let (drawn, assumptions) = check(rough.to_str().unwrap());
    assert!(
        assumptions.contains("of the profile mine (2 figures measured, the others of xeon-6128"),
        "{assumptions}"
    );
    assert_ne!(drawn, built_in);
}

#[test]
fn profiles_that_cannot_be_used_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let broken = MachineProfile::xeon_6128().to_string().replace("cached = ", "cached = -");
    let broken = file(place.path(), "broken.toml", broken);
    let broken = broken.to_str().unwrap();
    for (machine, expected) in [
        ("kit-2041", "no machine profile 'kit-2041'; did you mean 'kit-2014'?"),
        ("none.toml", "none.toml"),
        (broken, "broken.toml:14:10: copy.cached: a negative number; write a value from 0 to 1000"),
    ] {
        let ended = run(&["check", "--simulate", "--machine", machine]);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
    let ended = run(&["check", "--machine", "kit-2014"]);
    assert!(ended.code == 2 && ended.stderr.contains("--simulate"), "{ended:?}");
}

/// A scenario names a profile by its path, relative to the scenario's directory.
#[test]
fn a_scenario_has_a_machine_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    let listed = run(&["scenario", "show", "host-stack", "--toml"]);
    let scenario = listed.stdout.replace("machine = \"xeon-6128\"", "machine = \"mine.toml\"");
    assert!(scenario.contains("mine.toml"), "{listed:?}");
    let scenario = file(place.path(), "own.toml", scenario);
    let simulate = |profile: &str, out: &str| {
        file(place.path(), "mine.toml", profile);
        let out = place.path().join(out);
        let mut command = evenkeel(&["run", scenario.to_str().unwrap(), "--on", "sim", "--variant", "none"]);
        command.args(["--repeat", "1", "--quiet", "--format", "json", "--out"]).arg(out);
        let ended = end(command);
        assert!(ended.code <= 1, "{ended:?}");
        let found: Value = serde_json::from_str(&ended.stdout).unwrap();
        found["variants"][0]["metrics"]["throughput_bps"]["mean"].as_f64().unwrap()
    };
    let same = simulate(&MachineProfile::xeon_6128().to_string(), "same");
    let mut slow = MachineProfile::xeon_6128();
    (slow.turbo_hz, slow.all_cores_hz) = (Figure::stated(1e9), Figure::stated(1e9));
    let ratio = simulate(&slow.to_string(), "slow") / same;
    assert!((0.2..0.5).contains(&ratio), "a clock of 1 instead of 3.4 GHz: {ratio}");
    // A simulation in which operations cost no cycles ends, too.
    let free = MachineProfile { cycles: Default::default(), ..MachineProfile::xeon_6128() };
    assert!(simulate(&free.to_string(), "free") > same);
    file(place.path(), "mine.toml", "schema = 1\n");
    let ended = run(&["scenario", "check", scenario.to_str().unwrap()]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("variant.none: mine.toml:1:1: name: missing"), "{ended:?}");
    std::fs::remove_file(place.path().join("mine.toml")).unwrap();
    assert_eq!(run(&["scenario", "check", scenario.to_str().unwrap()]).code, 2);
}
