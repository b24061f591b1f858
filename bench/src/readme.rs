//! Generates parts of the documentation from the records of `./dev demo`: the result of its last
//! scenario in `docs/explanation/fidelity.md`, and the summary and picture in the README.
//!
//! `readme` generates these parts from the records in `docs/demo`. `readme RECORD RECORD` replaces the
//! records first. A test compares the pages with the records, so that text, picture and figures come
//! from the same run.

mod svg;

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_model::record::{Record, VariantRecord};
use evenkeel_report::store;
use evenkeel_report::table::{self, TableOptions};

use svg::root;

const SCENARIOS: [&str; 2] = ["titan-6-flows", "titan-12-flows"];
/// Marks around the generated text on both pages.
const MARKS: [&str; 2] = ["<!-- demo output: begin -->\n", "<!-- demo output: end -->\n"];
const PICTURE: &str = "docs/images/titan-6-flows.svg";

fn main() -> Result<(), Box<dyn Error>> {
    let root = root();
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        take(&root, store::read(&path)?)?;
    }
    let records = records(&root)?;
    for (page, generated) in pages(&records) {
        let path = root.join(page);
        let text = fs::read_to_string(&path)?;
        let text = with_generated(&text, &generated).ok_or_else(|| format!("{page} lacks the marks"))?;
        fs::write(path, text)?;
    }
    fs::write(root.join(PICTURE), picture(&records[0]))?;
    Ok(())
}

fn kept(root: &Path, scenario: &str) -> PathBuf {
    root.join("docs/demo").join(format!("{scenario}.json"))
}

/// Stores a record, without the version of the machine's kernel.
fn take(root: &Path, mut record: Record) -> Result<(), Box<dyn Error>> {
    if !SCENARIOS.contains(&record.scenario.as_str()) {
        return Err(format!("{} is not a scenario of the demo", record.scenario).into());
    }
    record.host.retain(|name, _| name != "kernel");
    let path = kept(root, &record.scenario);
    fs::create_dir_all(path.parent().unwrap_or(root))?;
    Ok(fs::write(path, serde_json::to_string_pretty(&record)? + "\n")?)
}

fn records(root: &Path) -> Result<Vec<Record>, Box<dyn Error>> {
    SCENARIOS.iter().map(|scenario| Ok(store::read(&kept(root, scenario))?)).collect()
}

/// Returns the generated text of each page: the result of the last scenario, and the answers of all
/// scenarios.
fn pages(records: &[Record]) -> [(&'static str, String); 2] {
    let options = TableOptions { width: Some(120), colour: false };
    let tables: Vec<String> = records.iter().map(|record| table::render(record, options)).collect();
    let last = tables.last().and_then(|table| table.split("\nCost").next()).unwrap_or_default();
    let answers = records.iter().zip(&tables).map(|(record, table)| {
        let answer: Vec<&str> = table.lines().take_while(|line| !line.is_empty()).collect();
        format!("{}\n  {}\n", record.scenario, answer.join("\n  "))
    });
    let answers = format!("```text\n{}```\n", answers.collect::<String>());
    [("docs/explanation/fidelity.md", format!("```text\n{last}```\n")), ("README.md", answers)]
}

fn with_generated(page: &str, generated: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some([before, MARKS[0], generated, MARKS[1], after].concat())
}

/// Height of the area for bars, and the position of its bottom, pixels.
const HEIGHT: f64 = 172.0;
const FLOOR: f64 = 236.0;

/// Draws a bar for each flow in the last repeat of `cmax` and of `dqa`, as SVG.
fn picture(record: &Record) -> String {
    let mut svg = svg::open(
        300,
        "Throughput of each flow: unequal under hashing, equal under dynamic queue assignment",
    );
    let rates =
        |variant: &VariantRecord| flows(record, variant).iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let largest = record.variants.iter().map(rates).fold(0.0, f64::max);
    let top = (largest / 100.0).ceil().max(1.0) * 100.0;
    let titles =
        [("cmax", "hash per socket (cmax)", "#b5533c"), ("dqa", "dynamic queue assignment (dqa)", "#3b6ea5")];
    for (number, (name, title, colour)) in titles.into_iter().enumerate() {
        let Some(variant) = record.variants.iter().find(|variant| variant.name == name) else { continue };
        panel(&mut svg, 60 + 360 * number, title, colour, &flows(record, variant), top);
    }
    let (repeats, seconds) =
        (record.variants.first().map_or(0, |variant| variant.repeats.len()), record.duration_s);
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<text x=\"14\" y=\"28\" fill=\"#555\" font-size=\"12\">Mbit/s</text>\n\
         <text x=\"60\" y=\"272\" fill=\"#555\" font-size=\"12\">Payload of each TCP flow over {seconds:.0} s, and the \
         transmit queue (q) that it is on.</text>\n\
         <text x=\"60\" y=\"289\" fill=\"#555\" font-size=\"12\">{}, repeat {repeats} of {repeats}: {:.0} Gbit/s, Linux {}, \
         {}.</text>\n</svg>\n",
        record.scenario,
        record.rate_bps as f64 / 1e9,
        record.kernel,
        record.started.get(..10).unwrap_or_default(),
    );
    svg
}

/// Returns queue and throughput (Mbit/s) of each flow in the last repeat, sorted by queue.
fn flows(record: &Record, variant: &VariantRecord) -> Vec<(u32, f64)> {
    let Some(last) = variant.repeats.last() else { return Vec::new() };
    let mut flows: Vec<(u32, f64)> = last
        .flows
        .iter()
        .map(|flow| (flow.queue.unwrap_or(0), flow.payload_bytes as f64 * 8.0 / record.duration_s / 1e6))
        .collect();
    flows.sort_by_key(|(queue, _)| *queue);
    flows
}

fn panel(svg: &mut String, left: usize, title: &str, colour: &str, flows: &[(u32, f64)], top: f64) {
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"28\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{title}</text>"
    );
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let y = FLOOR - HEIGHT * value / top;
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            left + 318
        );
        if left < 100 {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{value:.0}</text>",
                left - 8,
                y + 4.0
            );
        }
    }
    for (number, (queue, rate)) in flows.iter().enumerate() {
        let (x, height) = (left + 10 + 52 * number, HEIGHT * rate / top);
        let (y, middle) = (FLOOR - height, x + 19);
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"38\" height=\"{height:.1}\" fill=\"{colour}\"/>\n\
             <text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#222\">{rate:.0}</text>\n\
             <text x=\"{middle}\" y=\"253\" text-anchor=\"middle\" fill=\"#555\">q{queue}</text>\n",
            y - 5.0
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn pages_and_picture_show_the_recorded_run() {
        let root = root();
        let records = records(&root).unwrap();
        let run = "run cargo run -p evenkeel-bench --bin readme";
        for (page, generated) in pages(&records) {
            let text = fs::read_to_string(root.join(page)).unwrap();
            assert!(with_generated(&text, &generated).unwrap() == text, "{page} is stale: {run}");
        }
        let drawn = fs::read_to_string(root.join(PICTURE)).unwrap();
        assert!(picture(&records[0]) == drawn, "{PICTURE} is stale: {run}");
    }
}
