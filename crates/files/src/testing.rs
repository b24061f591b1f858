//! Functions shared by the tests of this crate.
#![allow(clippy::unwrap_used, reason = "a test ends there")]

use std::path::Path;

pub(crate) fn names(place: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(place).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
