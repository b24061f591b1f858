//! Compiles the fuzz targets without libFuzzer, which needs a nightly compiler. Runs each target on short
//! inputs, on its seeds, and on the first half of each seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

// The targets import `fuzz_target` from a crate of this name.
extern crate self as libfuzzer_sys;

#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/flows.rs"]
mod flows;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/journal.rs"]
mod journal;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/machine.rs"]
mod machine;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/nic.rs"]
mod nic;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/policy.rs"]
mod policy;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/qdiscs.rs"]
mod qdiscs;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/record.rs"]
mod record;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/repeats.rs"]
mod repeats;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/scenario.rs"]
mod scenario;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/service.rs"]
mod service;
#[allow(unused_attributes, reason = "no_main of the target has no effect in a module")]
#[path = "../../../fuzz/fuzz_targets/traffic.rs"]
mod traffic;

/// Turns the body of a target into a function `run`. The modules of the targets are above this macro, so it
/// is in scope there only through their imports.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &str| $body:block) => {
        pub fn run(bytes: &[u8]) {
            if let Ok($input) = std::str::from_utf8(bytes) $body
        }
    };
    (|$input:ident: &[u8]| $body:block) => {
        pub fn run($input: &[u8]) $body
    };
}

/// Name, target, and directory of seeds below the repository; empty: no seeds.
type Target = (&'static str, fn(&[u8]), &'static str);

const TARGETS: &[Target] = &[
    ("flows", flows::run, ""),
    ("journal", journal::run, ""),
    ("machine", machine::run, "crates/model/machines"),
    ("nic", nic::run, "crates/receive/models"),
    ("policy", policy::run, ""),
    ("qdiscs", qdiscs::run, "qdiscs"),
    ("record", record::run, "crates/report/tests/golden"),
    ("repeats", repeats::run, ""),
    ("scenario", scenario::run, "scenarios"),
    ("service", service::run, "contrib"),
    ("traffic", traffic::run, "crates/testbed/tests/data"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_target_is_here_and_is_a_program_of_fuzz() {
    let files = fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let found: BTreeSet<String> = files.map(|file| stem(file.unwrap().path())).collect();
    let here: BTreeSet<String> = TARGETS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(found, here);
    let manifest: toml::Table = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap().parse().unwrap();
    let programs = manifest["bin"].as_array().unwrap().iter();
    let programs: BTreeSet<String> = programs.map(|bin| bin["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(programs, here);
}

#[test]
fn targets_pass_on_their_seeds_and_on_parts_of_them() {
    for (name, target, directory) in TARGETS {
        println!("{name}");
        let mut inputs = vec![Vec::new(), vec![b'a'; 9]];
        if !directory.is_empty() {
            let files = fs::read_dir(root().join(directory)).unwrap().map(|file| file.unwrap().path());
            let seeds: Vec<_> =
                files.filter(|path| path.is_file()).map(|path| fs::read(path).unwrap()).collect();
            assert!(!seeds.is_empty(), "{directory}");
            inputs.extend(seeds.iter().map(|seed| seed[..seed.len() / 2].to_vec()));
            inputs.extend(seeds);
        }
        inputs.iter().for_each(|input| target(input));
    }
}
