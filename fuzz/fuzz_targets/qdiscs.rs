//! Parses arbitrary input as a file of qdisc setups. The parser must not panic. An accepted file must
//! resolve or yield an error, and must be the same after writing and parsing it.

#![no_main]

use evenkeel_model::qdisc::{Catalogue, Surroundings};
use evenkeel_model::units::{BitRate, ByteSize};
use libfuzzer_sys::fuzz_target;

fn quoted(line: &str) -> String {
    let escaped: String =
        line.chars().flat_map(|c| if matches!(c, '"' | '\\') { vec!['\\', c] } else { vec![c] }).collect();
    format!("\"{escaped}\"")
}

fn file(lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<String> = lines.map(|line| quoted(&line)).collect();
    format!("schema = 1\n[setup.again]\nsummary = \"again\"\nsteps = [{}]\n", lines.join(", "))
}

fuzz_target!(|text: &str| {
    let catalogue = match Catalogue::parse(text, "fuzzed.toml") {
        Ok(catalogue) => catalogue,
        Err(error) => {
            assert!(!error.to_string().chars().any(char::is_control));
            return;
        }
    };
    let rate = BitRate::from_bits_per_second(10_000_000_000);
    for setup in catalogue.setups() {
        let again = Catalogue::parse(&file(setup.lines()), "again.toml")
            .expect("what was accepted is accepted again");
        let again = again.get("again").expect("it is there");
        for (bulk_flows, probes, queues) in [(0, 0, 1), (1, 0, 1), (96, 8, 8)] {
            let on = Surroundings {
                rate,
                bulk_flows,
                probes,
                queues,
                largest_segment: ByteSize::from_bytes(65_550),
                mtu: ByteSize::from_bytes(1500),
            };
            match setup.resolve(&on) {
                Ok(tree) => {
                    assert_eq!(again.resolve(&on).as_ref(), Ok(&tree));
                    assert!(tree.root().is_some());
                    assert!(tree.on_line(rate).studied_root().is_some());
                }
                Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
            }
        }
    }
});
