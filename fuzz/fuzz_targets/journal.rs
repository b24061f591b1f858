//! Reads anything as the journal of a run: it may not panic, and what is cut short is a shorter journal.

#![no_main]

use std::path::Path;

use evenkeel_apply::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzzed.journal");
    let Ok(whole) = parse(bytes, path) else { return };
    let entries = whole.map_or(0, |(_, entries)| entries.len());
    let cut = bytes.len().saturating_sub(1);
    if let Ok(Some((_, fewer))) = parse(&bytes[..cut], path) {
        assert!(fewer.len() <= entries);
    }
});
