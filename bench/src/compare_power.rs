//! Measures the false alarm rate of `evenkeel compare` on equal records, and how often `evenkeel
//! compare` finds a difference of 10 %.
//!
//! For each number of repeats and variants, the program generates a thousand pairs of *alike* records and a
//! thousand pairs of *mixed* records. For each number of repeats, it generates a hundred pairs of
//! *simulated* records:
//! - *alike*: figures with independent normal noise of 3 %
//! - *mixed*: noise between 0.01 % and 30 %, with 3 % for the figure that is changed
//! - *simulated*: six flows on eight queues under `cmax` and `dqa`; every repeat has a different seed
//!
//! The program exits with 1 unless both criteria hold:
//! - At most 5 of 100 pairs of equal records show a difference in any figure. A thousand pairs suffice
//!   to distinguish a rate of 5 % from one of 2 %; a hundred pairs do not.
//! - `evenkeel compare` finds a change of 10 % in at least 90 of 100 pairs with 10 repeats. With 5
//!   repeats, this is only required of *alike* records with at most two variants. It is not required of
//!   *simulated* records.

mod simulate;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

use evenkeel_experiment::{Request, conduct};
use evenkeel_model::record::{Record, RepeatRecord, SCHEMA, VariantRecord, metric};
use evenkeel_model::scenario::bundled::variant_tables;
use evenkeel_model::scenario::{Scenario, parse};
use evenkeel_report::compare::{Question, Verdict, compare};
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::world::SimWorld;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Number of pairs of records with generated noise (`PLANTED`) and from the simulator (`SIMULATED`).
const PLANTED: u64 = 1000;
const SIMULATED: u64 = 100;
/// Maximum share of equal pairs that show a difference.
const MOST_ALARMS: f64 = 0.05;
/// Minimum share of the pairs in which the change is found.
const LEAST_FOUND: f64 = 0.9;
const CHANGE: f64 = 1.1;
const SPREAD: f64 = 0.03;
const CHANGED: &str = metric::CPU;
/// Number of figures of a variant in a record of a run.
const FIGURES: usize = 18;

const SCENARIO: &str = r#"
schema = 1
name = "small"
title = "Six flows, briefly"
variant-table = "titan"
variants = ["cmax", "dqa"]
[link]
rate = "1gbit"
queues = 8
[hosts]
sending-cores = 8
[workload]
flows = 6
[workload.latency]
duration = "50ms"
[measure]
warmup = "100ms"
long-windows = 2
[measure.windows]
1ms = "1ms"
50ms = "50ms"
"#;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("compare-power: {error}");
            ExitCode::from(4)
        }
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let mut holds = true;
    println!("                                     same thing:          10 % more CPU in one variant:");
    println!("records     repeats  variants  figures  pairs that differ, %  found, %");
    for (kind, spread) in [("alike", Spread::Alike), ("mixed", Spread::Mixed)] {
        for (n, variants) in [(5, 1), (5, 2), (5, 9), (10, 1), (10, 2), (10, 9)] {
            let (mut alarms, mut found) = (0, 0);
            for seed in 0..PLANTED {
                let mut draw = Draw(Xoshiro256PlusPlus::seed_from_u64(seed));
                let (first, second) = (draw.record(n, variants, spread), draw.record(n, variants, spread));
                alarms += u32::from(differs(&first, &second)?);
                found += u32::from(finds(&first, second)?);
            }
            let figures = variants * FIGURES;
            let (alarms, found) = (share(alarms, PLANTED), share(found, PLANTED));
            print(kind, n, variants, figures, alarms, found);
            let is_claimed = n == 10 || (spread == Spread::Alike && variants <= 2);
            holds &= alarms <= MOST_ALARMS && (found >= LEAST_FOUND || !is_claimed);
        }
    }
    let scenario = parse(SCENARIO, "small", variant_tables())?;
    for n in [5, 10] {
        let (mut alarms, mut found, mut figures) = (0, 0, 0);
        for pair in 0..SIMULATED {
            let seed = 1 + pair * u64::from(n) * 2;
            let (first, second) =
                (simulated(&scenario, n, seed)?, simulated(&scenario, n, seed + u64::from(n))?);
            figures = first.variants.iter().map(|one| one.repeats[0].metrics.len()).sum();
            alarms += u32::from(differs(&first, &second)?);
            found += u32::from(finds(&first, second)?);
        }
        let (alarms, found) = (share(alarms, SIMULATED), share(found, SIMULATED));
        print("simulated", n as usize, 2, figures, alarms, found);
        holds &= alarms <= MOST_ALARMS;
    }
    println!("{}", if holds { "the criterion holds" } else { "THE CRITERION DOES NOT HOLD" });
    Ok(holds)
}

fn share(count: u32, pairs: u64) -> f64 {
    f64::from(count) / pairs as f64
}

fn print(kind: &str, n: usize, variants: usize, figures: usize, alarms: f64, found: f64) {
    let (alarms, found) = (alarms * 100.0, found * 100.0);
    println!("{kind:10}  {n:7}  {variants:8}  {figures:7}  {alarms:20.1}  {found:8.1}");
}

fn differs(first: &Record, second: &Record) -> Result<bool, Box<dyn Error>> {
    let comparison = compare(first, second, &Question::default())?;
    Ok(comparison.variants.iter().flat_map(|one| &one.metrics).any(|metric| metric.verdict.is_difference()))
}

fn finds(first: &Record, mut second: Record) -> Result<bool, Box<dyn Error>> {
    for repeat in &mut second.variants[0].repeats {
        if let Some(value) = repeat.metrics.get_mut(CHANGED) {
            *value *= CHANGE;
        }
    }
    let comparison = compare(first, &second, &Question::default())?;
    let mut metrics = comparison.variants[0].metrics.iter();
    Ok(metrics.any(|metric| metric.key == CHANGED && metric.verdict == Verdict::Worse))
}

fn simulated(scenario: &Scenario, repeats: u32, seed: u64) -> Result<Record, Box<dyn Error>> {
    let request = Request {
        scenario,
        scenario_text: "",
        variants: scenario.select::<String>(&[])?,
        repeats,
        long_windows: None,
        rate: None,
        seed,
        quick: false,
        version: env!("CARGO_PKG_VERSION"),
    };
    Ok(conduct(&mut SimWorld::new(Profile::Linux4_4), &request, None, &simulate::Quiet)?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Spread {
    Alike,
    Mixed,
}

struct Draw(Xoshiro256PlusPlus);

impl Draw {
    /// Returns a uniformly distributed number above 0, up to 1.
    fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a normally distributed number (Box-Muller transform).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn record(&mut self, n: usize, variants: usize, spread: Spread) -> Record {
        let variants = (0..variants).map(|number| VariantRecord {
            name: format!("variant-{number}"),
            settings: BTreeMap::new(),
            notes: Vec::new(),
            repeats: (0..n).map(|_| self.repeat(spread)).collect(),
        });
        Record {
            schema: SCHEMA,
            evenkeel: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: "noise".to_owned(),
            scenario_text: String::new(),
            world: "none".to_owned(),
            kernel: "none".to_owned(),
            started: String::new(),
            host: BTreeMap::new(),
            rate_bps: 1_000_000_000,
            nominal_rate_bps: 1_000_000_000,
            seed: 1,
            quick: false,
            duration_s: 1.0,
            warmup_s: 0.0,
            windows: BTreeMap::new(),
            variants: variants.collect(),
            refused: Vec::new(),
            paper: None,
            expectations: Vec::new(),
        }
    }

    fn repeat(&mut self, spread: Spread) -> RepeatRecord {
        let mut metrics = BTreeMap::new();
        for figure in 0..FIGURES {
            let own = match (spread, figure) {
                (Spread::Alike, _) | (_, 0) => SPREAD,
                // From 0.01 % to 30 %, evenly spaced on a logarithmic scale.
                (Spread::Mixed, _) => 1e-4 * 3000_f64.powf(figure as f64 / (FIGURES - 1) as f64),
            };
            let key = if figure == 0 { CHANGED.to_owned() } else { format!("figure.{figure}") };
            metrics.insert(key, 100.0 * (own * self.normal()).exp());
        }
        RepeatRecord { metrics, ..RepeatRecord::default() }
    }
}
