//! Tests runs in a world with known observations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;

use evenkeel_experiment::{Request, conduct};
use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{Scenario, Variant, parse};
use evenkeel_model::units::BitRate;
use evenkeel_model::world::{Assessment, Job, Observer, RawFlow, RawRepeat, World};
use evenkeel_report::store::{Writer, read_series};

/// A world with one flow. It counts the series below a directory each time a repeat begins.
struct Counting {
    directory: PathBuf,
    found: Vec<usize>,
}

impl World for Counting {
    type Error = Infallible;

    fn name(&self) -> &'static str {
        "counting"
    }

    fn kernel(&self) -> String {
        "1".to_owned()
    }

    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn assess(&self, _: &Scenario, _: &Variant) -> Result<Assessment, String> {
        Ok(Assessment::default())
    }

    fn settle_rate(
        &mut self,
        scenario: &Scenario,
        _: Option<BitRate>,
        _: &dyn Observer,
    ) -> Result<BitRate, Infallible> {
        Ok(scenario.link.rate)
    }

    fn repeat(&mut self, job: &Job<'_>, _: &dyn Observer) -> Result<RawRepeat, Infallible> {
        // The temporary directory gets its random name when the first series is written.
        let directories = fs::read_dir(&self.directory).unwrap();
        let series = directories.filter_map(|entry| fs::read_dir(entry.unwrap().path().join("series")).ok());
        self.found.push(series.map(Iterator::count).sum());
        let bins = (job.duration.as_u64() / job.bin.as_u64()) as usize;
        let flow = RawFlow {
            name: "one".to_owned(),
            weight: 1.0,
            bytes: vec![u64::from(job.repeat); bins],
            packets: vec![1; bins],
            payload_bytes: 1,
            ..RawFlow::default()
        };
        Ok(RawRepeat { flows: vec![flow], ..RawRepeat::default() })
    }
}

struct Quiet;

impl Observer for Quiet {
    fn progress(&self, _: f64, _: &str) {}

    fn remark(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        false
    }
}

#[test]
fn a_series_is_written_when_its_repeat_ends() {
    let place = tempfile::tempdir().unwrap();
    let (_, text) = bundled().iter().find(|(name, _)| *name == "titan-3-flows").unwrap();
    let scenario = parse(text, "test", variant_tables()).unwrap();
    let request = Request {
        scenario: &scenario,
        scenario_text: text,
        variants: scenario.select(&["dqa".to_owned(), "cmax".to_owned()]).unwrap(),
        repeats: 2,
        long_windows: Some(1),
        rate: None,
        seed: 1,
        quick: false,
        version: "0",
    };
    let writer = Writer::claim(place.path()).unwrap();
    let mut world = Counting { directory: place.path().to_owned(), found: Vec::new() };
    let record = conduct(&mut world, &request, Some(&writer), &Quiet).unwrap();
    assert_eq!(world.found, [0, 1, 2, 3], "series on the disk at the beginning of each repeat");

    let record = writer.finish(&record).unwrap();
    for variant in ["dqa", "cmax"] {
        for repeat in 0..2 {
            let series = read_series(place.path(), &record, variant, repeat).unwrap().unwrap();
            assert_eq!(series.flows[0].bytes[0], repeat as u64, "{variant} {repeat}");
        }
    }
}
