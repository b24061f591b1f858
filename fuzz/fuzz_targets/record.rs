//! Parses arbitrary input as a record, and passes the record to the table, the JSON output and the
//! comparison. No figure, name or missing value may cause a panic.

#![no_main]

use evenkeel_model::record::Record;
use evenkeel_report::table::TableOptions;
use evenkeel_report::{compare, json, table};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = serde_json::from_slice::<Record>(bytes) else { return };
    let _ = json::run(&record, None);
    for width in [None, Some(80)] {
        let _ = table::render(&record, TableOptions { width, colour: true });
    }
    let question = compare::Question { metrics: Vec::new(), within: None };
    if let Ok(compared) = compare::compare(&record, &record, &question) {
        let _ = compare::json(&compared);
    }
});
