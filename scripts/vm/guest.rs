//! The check of the `vm` tests that they run in the guest of `scripts/vm/run`. These tests change settings
//! and devices of the whole machine.

/// `scripts/vm/run` gives the guest's kernel this word, with a value.
const GUEST_WORD: &str = "evenkeel.job=";

/// Fails outside of the guest. Each `vm` test calls it first.
pub fn require() {
    let words = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    assert!(
        words.split_whitespace().any(|word| word.starts_with(GUEST_WORD)),
        "this test changes the whole machine, so it runs only in the virtual machine: ./dev test --tier vm"
    );
}
