//! Compares the simulator with published figures: Titan's Table 3 (USENIX ATC 2017) and figures of
//! overloaded receivers.
//!
//! - `fidelity [REPEATS]` makes both comparisons, with 10 repeats for Titan and 40 for the receivers by
//!   default.
//! - `fidelity titan [REPEATS]` prints every cell of Titan's table, then checks the criteria.
//! - `fidelity receiver [REPEATS]` prints a row for each published figure and order of receiving hosts.
//! - `fidelity sensitivity [REPEATS]` varies each parameter of the receiving hosts by 20 %.
//!
//! All rows use the same parameters. The papers' figures are part of the scenarios. The program exits
//! with 1 if a criterion is missed.

mod receiver_sensitivity;
mod receiver_targets;
mod simulate;
mod transfer_runs;

use std::error::Error;
use std::process::ExitCode;

use evenkeel_model::record::Record;

/// Number of flows in each of the four blocks of Titan's Table 3.
const BLOCKS: [u32; 4] = [3, 12, 48, 192];
/// Number of repeats, as in the paper.
const REPEATS: u32 = 10;
/// Rows whose figures in the paper exceed the capacity of one queue per core. They are printed but not
/// judged.
const SUSPECT: [(u32, &str); 3] = [(3, "xps:cmax"), (12, "xps:cmax"), (192, "xps:cmax")];
/// Rows in which the result depends on chance: with three flows, hashing makes flows collide in a third of
/// the runs. They are printed but not judged.
const LUCK: [(u32, &str); 2] = [(3, "cvanilla"), (3, "cmax")];

#[derive(Clone, Debug)]
struct Cell {
    flows: u32,
    variant: String,
    metric: &'static str,
    paper: f64,
    simulated: f64,
}

impl Cell {
    fn relative_error(&self) -> f64 {
        (self.simulated / self.paper - 1.0).abs()
    }

    fn fairness(&self) -> bool {
        self.metric.starts_with("nfm")
    }

    fn judged(&self) -> bool {
        let row = |&(flows, variant): &(u32, &str)| flows == self.flows && variant == self.variant;
        !(self.fairness() && (SUSPECT.iter().any(row) || LUCK.iter().any(row)))
    }
}

/// Key of a metric in the record, and key of the paper's figure.
const METRICS: [(&str, &str); 5] = [
    ("throughput_bps", "Gbit/s"),
    ("cpu_pct", "CPU %"),
    ("latency_us.mean", "latency µs"),
    ("nfm.1ms", "NFM 1 ms"),
    ("nfm.1s", "NFM 1 s"),
];

fn cells(flows: u32, record: &Record) -> Vec<Cell> {
    let Some(paper) = &record.paper else { return Vec::new() };
    let mut cells = Vec::new();
    for variant in &record.variants {
        let Some(figures) = paper.variants.get(&variant.name) else { continue };
        for (metric, _) in METRICS {
            let values: Vec<f64> =
                variant.repeats.iter().filter_map(|repeat| repeat.metrics.get(metric).copied()).collect();
            if let (Some(&paper), false) = (figures.get(metric), values.is_empty()) {
                let simulated = values.iter().sum::<f64>() / values.len() as f64;
                cells.push(Cell { flows, variant: variant.name.clone(), metric, paper, simulated });
            }
        }
    }
    cells
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

fn show(cells: &[Cell]) {
    println!("| flows | variant | Gbit/s | CPU % | latency µs | NFM 1 ms | NFM 1 s |");
    println!("|---|---|---|---|---|---|---|");
    let mut rows: Vec<(u32, &str)> = cells.iter().map(|cell| (cell.flows, cell.variant.as_str())).collect();
    rows.dedup();
    for (flows, variant) in rows {
        let of = |metric: &str| {
            let cell = cells
                .iter()
                .find(|cell| cell.flows == flows && cell.variant == variant && cell.metric == metric);
            cell.map_or_else(String::new, |cell| {
                let (scale, digits) = match metric {
                    "throughput_bps" => (1e9, 2),
                    "cpu_pct" | "latency_us.mean" => (1.0, 0),
                    _ => (1.0, 2),
                };
                let mark = if cell.judged() { "" } else { " *" };
                format!("{:.digits$} / {:.digits$}{mark}", cell.simulated / scale, cell.paper / scale)
            })
        };
        let columns: Vec<String> = METRICS.iter().map(|(metric, _)| of(metric)).collect();
        println!("| {flows} | {variant} | {} |", columns.join(" | "));
    }
    println!("\nsimulated / paper; * shown and not judged: luck, or beyond what the set-up can give\n");
}

fn judge(text: &str, found: String, holds: bool) -> bool {
    println!("{} {text}: {found}", if holds { "holds " } else { "MISSED" });
    holds
}

fn errors(cells: &[Cell], metric: &str) -> Vec<f64> {
    cells.iter().filter(|cell| cell.metric == metric && cell.judged()).map(Cell::relative_error).collect()
}

/// Compares the order of rows, for the pairs of rows in a block that differ clearly in the paper.
/// Returns the number of pairs with the paper's order, the number of all pairs, and a text for each
/// pair with a different order.
fn order(cells: &[Cell], metric: &str) -> (usize, usize, Vec<String>) {
    let (mut alike, mut all, mut wrong) = (0, 0, Vec::new());
    let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.metric == metric && cell.judged()).collect();
    for (index, first) in cells.iter().enumerate() {
        for second in cells[index + 1..].iter().filter(|second| second.flows == first.flows) {
            let difference = (first.paper - second.paper).abs();
            let clear = difference >= 0.3 * first.paper.min(second.paper);
            if !clear || first.fairness() && difference < 0.05 {
                continue;
            }
            all += 1;
            if (first.paper > second.paper) == (first.simulated > second.simulated) {
                alike += 1;
            } else {
                wrong.push(format!("{} {} / {}", first.flows, first.variant, second.variant));
            }
        }
    }
    (alike, all, wrong)
}

fn headline(cells: &[Cell]) -> bool {
    let mut holds = true;
    for metric in ["nfm.1ms", "nfm.1s"] {
        for flows in [12, 48] {
            let of = |variant: &str| {
                cells
                    .iter()
                    .find(|cell| cell.flows == flows && cell.variant == variant && cell.metric == metric)
            };
            let best = ["dqa", "dqa+dqwa", "dqa+dqwa+dsos"]
                .into_iter()
                .filter_map(of)
                .min_by(|first, second| first.paper.total_cmp(&second.paper));
            let (Some(base), Some(best)) = (of("cmax"), best) else { continue };
            if 1.0 - best.paper / base.paper < 0.58 {
                continue;
            }
            let reduction = 1.0 - best.simulated / base.simulated;
            holds &= judge(
                &format!("{flows} flows, {metric}: {} at least 58 % below cmax", best.variant),
                format!(
                    "{:.0} % (paper {:.0} %)",
                    100.0 * reduction,
                    100.0 * (1.0 - best.paper / base.paper)
                ),
                reduction >= 0.58,
            );
        }
    }
    holds
}

fn criteria(cells: &[Cell]) -> bool {
    let mut holds = true;
    let throughput = errors(cells, "throughput_bps");
    let worst = throughput.iter().copied().fold(0.0, f64::max);
    holds &=
        judge("throughput within 2 % everywhere", format!("worst {:.1} %", 100.0 * worst), worst <= 0.02);
    let fair: Vec<&Cell> = cells.iter().filter(|cell| cell.fairness() && cell.judged()).collect();
    let large =
        median(fair.iter().filter(|cell| cell.paper >= 0.1).map(|cell| cell.relative_error()).collect());
    holds &= judge(
        "NFM: median relative error at most 20 % over cells of 0.1 and more",
        format!("{:.1} %", 100.0 * large),
        large <= 0.2,
    );
    let small = fair
        .iter()
        .filter(|cell| cell.paper < 0.1)
        .map(|cell| (cell.simulated - cell.paper).abs())
        .fold(0.0, f64::max);
    holds &= judge("NFM: absolute error at most 0.05 below 0.1", format!("worst {small:.3}"), small <= 0.05);
    for (metric, name, limit) in [("latency_us.mean", "latency", 0.25), ("cpu_pct", "CPU", 0.2)] {
        let error = median(errors(cells, metric));
        holds &= judge(
            &format!("{name}: median error at most {:.0} %", 100.0 * limit),
            format!("{:.1} %", 100.0 * error),
            error <= limit,
        );
    }
    for (metric, name) in METRICS {
        let (alike, all, wrong) = order(cells, metric);
        if all == 0 {
            continue;
        }
        let limit = if metric == "nfm.1s" { 0.95 } else { 0.9 };
        let share = alike as f64 / all as f64;
        holds &= judge(
            &format!("order, {name}: at least {:.0} % of clear pairs alike", 100.0 * limit),
            format!(
                "{alike} of {all}{}",
                if wrong.is_empty() { String::new() } else { format!(" (not: {})", wrong.join(", ")) }
            ),
            share >= limit,
        );
    }
    holds &= headline(cells);
    holds
}

fn titan(repeats: u32) -> Result<bool, Box<dyn Error>> {
    let mut all = Vec::new();
    for flows in BLOCKS {
        let scenario = simulate::scenario(&format!("titan-{flows}-flows"))?;
        eprintln!("titan-{flows}-flows, {repeats} repeats ...");
        let record = simulate::simulate(&scenario, &["main".to_owned()], repeats)?;
        all.extend(cells(flows, &record));
    }
    show(&all);
    Ok(criteria(&all))
}

const USAGE: &str = "usage: fidelity [titan|receiver|sensitivity] [REPEATS]";

fn repeats<T: std::str::FromStr + From<u8> + PartialOrd>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number >= T::from(1));
    number.ok_or_else(|| {
        format!("'{text}' is no number of repeats; usage: fidelity [titan|receiver] [REPEATS]")
    })
}

fn run() -> Result<bool, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => Ok(titan(REPEATS)? & receiver_targets::compare(receiver_targets::REPEATS)?),
        ["titan"] => titan(REPEATS),
        ["titan", number] => titan(repeats(number)?),
        ["receiver"] => receiver_targets::compare(receiver_targets::REPEATS),
        ["receiver", number] => receiver_targets::compare(repeats(number)?),
        ["sensitivity"] => receiver_sensitivity::vary(receiver_sensitivity::REPEATS).map(|()| true),
        ["sensitivity", number] => receiver_sensitivity::vary(repeats(number)?).map(|()| true),
        [number] => Ok(titan(repeats(number)?)? & receiver_targets::compare(repeats(number)?)?),
        _ => Err(USAGE.into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("fidelity: {error}");
            ExitCode::from(4)
        }
    }
}
