//! Parses arbitrary input as the journal of a run. The parser must not panic. A valid journal with
//! overwritten bytes must not yield an entry that was never written.

#![no_main]

use evenkeel_apply::{Entry, Header, InterfaceIdentity, JournalWriter, Knob, Value, parse};
use libfuzzer_sys::fuzz_target;

const FILE: &str = "1-3.journal";

fn entry(queue: u32) -> Entry {
    Entry {
        knob: Knob::QueueWeight(queue),
        from: Value::Weight(None),
        ours: Vec::new(),
        theirs: false,
        with_channels: false,
        service: false,
    }
}

fn journal() -> Vec<u8> {
    let interface = InterfaceIdentity {
        boot: "b".to_owned(),
        namespace: 1,
        namespace_cookie: Some(2),
        namespace_handle: None,
        index: 3,
        name: "eth0".to_owned(),
        device: Some(4),
    };
    let (mut writer, mut bytes) = JournalWriter::begin(&Header::new(interface, "fair"), FILE);
    for queue in 0..4 {
        bytes.extend(writer.entry(&entry(queue)));
    }
    let count = writer.count();
    bytes[..count.len()].copy_from_slice(&count);
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    let _ = parse(bytes, FILE);
    let mut whole = journal();
    if let [at @ .., value] = bytes
        && !whole.is_empty()
    {
        // Each pair of bytes is a position. The last byte is the value to write there.
        for place in at.chunks(2) {
            let place = place.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            let length = whole.len();
            whole[place % length] = *value;
        }
    }
    for entry in parse(&whole, FILE).entries {
        assert!((0..4).any(|queue| entry == self::entry(queue)));
    }
});
