//! Parses arbitrary input as the repeats of a study. The parser must not panic. The complete
//! repeats, parsed again, must yield the same number of repeats.

#![no_main]

use evenkeel_study::journal::parse_entries;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((entries, good)) = parse_entries(bytes) {
        let whole = &bytes[..good as usize];
        assert!(whole.is_empty() || whole.ends_with(b"\n"));
        let (again, all) = parse_entries(whole).expect("it was whole");
        assert_eq!((again.len(), all), (entries.len(), good));
    }
});
