//! Draws Figures 1, 4, 5, 9 and 11 of *TCP at 100 Gbit/s* from simulated results, for the
//! documentation.
//!
//! `plots` draws the results in `docs/images/overloaded-receiver.json` into `docs/images`. `plots
//! REPEATS` simulates them first. A test compares the pictures with the results.

mod svg;
mod transfer_runs;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;

use evenkeel_sim::time::{SECOND, Time};
use evenkeel_sim::transfers::simulation::Simulation;
use serde::{Deserialize, Serialize};

use svg::{DARK, GREY, LINES, MODEL, PAPER, root};
use transfer_runs::{Figure, Outcome, deviation, mean, on_every_processor, run, settings};

const RESULTS: &str = "docs/images/overloaded-receiver.json";
/// Length of Figure 1, seconds.
const RAMP_SECONDS: usize = 90;

#[derive(Debug, Serialize, Deserialize)]
struct Results {
    /// Figure 1: for each flow, the throughput in each second, Gbit/s.
    ramp: Vec<Vec<f64>>,
    /// Outcomes of the repeats, by variant.
    variants: BTreeMap<String, Vec<Outcome>>,
}

struct Bar {
    variant: &'static str,
    name: [&'static str; 2],
    value: Option<f64>,
    paper: &'static str,
}

struct Panel {
    title: &'static str,
    figure: Figure,
    /// Value at the top of the scale.
    top: f64,
    bars: &'static [Bar],
}

struct Picture {
    file: &'static str,
    label: &'static str,
    scenario: &'static str,
    panels: [Panel; 2],
    foot: &'static str,
}

const fn bar(variant: &'static str, name: [&'static str; 2], paper: &'static str) -> Bar {
    Bar { variant, name, value: None, paper }
}

const fn valued(variant: &'static str, name: [&'static str; 2], value: f64, paper: &'static str) -> Bar {
    Bar { variant, name, value: Some(value), paper }
}

const GBPS: &str = "Throughput, Gbit/s";
const RETRANSMISSIONS: &str = "Retransmissions per second";

const PICTURES: [Picture; 4] = [
    Picture {
        file: "tcp100g-fan.svg",
        label: "Figure 4: throughput and retransmission events of four flows between one to three hosts on each side",
        scenario: "tcp100g-fan",
        panels: [
            Panel {
                title: GBPS,
                figure: Figure::Throughput,
                top: 120.0,
                bars: &[
                    bar("1-to-1", ["1 sender,", "1 receiver"], "reduced"),
                    bar("3-to-1", ["3 senders,", "1 receiver"], "reduced"),
                    valued("1-to-3", ["1 sender,", "3 receivers"], 100.0, "100"),
                    valued("2-to-2", ["2 senders,", "2 receivers"], 100.0, "100, stable"),
                ],
            },
            Panel {
                title: "Retransmission events per second",
                figure: Figure::Events,
                top: 4.0,
                bars: &[
                    bar("1-to-1", ["1 sender,", "1 receiver"], "many"),
                    bar("3-to-1", ["3 senders,", "1 receiver"], "many"),
                    bar("1-to-3", ["1 sender,", "3 receivers"], "fewest"),
                    bar("2-to-2", ["2 senders,", "2 receivers"], "few"),
                ],
            },
        ],
        foot: "tcp100g-fan: four flows, MTU 9000, bottleneck of 100 Gbit/s between two switches.",
    },
    Picture {
        file: "tcp100g-mtu.svg",
        label: "Figure 5: throughput and retransmissions of one flow with an MTU of 1500 and of 9000",
        scenario: "tcp100g-mtu",
        panels: [
            Panel {
                title: GBPS,
                figure: Figure::Throughput,
                top: 60.0,
                bars: &[
                    valued("mtu-1500", ["MTU", "1500"], 25.0, "25"),
                    valued("mtu-9000", ["MTU", "9000"], 43.0, "43 (calibrated)"),
                ],
            },
            Panel {
                title: RETRANSMISSIONS,
                figure: Figure::Retransmissions,
                top: 100.0,
                bars: &[
                    bar("mtu-1500", ["MTU", "1500"], "significantly more"),
                    bar("mtu-9000", ["MTU", "9000"], "few"),
                ],
            },
        ],
        foot: "tcp100g-mtu: one flow, interrupts apart from the application.",
    },
    Picture {
        file: "tcp100g-placement.svg",
        label: "Figure 9: throughput and retransmissions with interrupts and applications on the NIC's node or on the other",
        scenario: "tcp100g-placement",
        panels: [
            Panel {
                title: GBPS,
                figure: Figure::Throughput,
                top: 120.0,
                bars: &[
                    bar("case-1", ["both on", "NIC's node"], "best, varies"),
                    bar("case-2", ["interrupts", "on other"], "lowest"),
                    bar("case-3", ["applications", "on other"], "below 68"),
                    bar("case-4", ["both on", "other"], "above case 2"),
                ],
            },
            Panel {
                title: RETRANSMISSIONS,
                figure: Figure::Retransmissions,
                top: 6000.0,
                bars: &[
                    bar("case-1", ["both on", "NIC's node"], "low"),
                    bar("case-2", ["interrupts", "on other"], "most"),
                    bar("case-3", ["applications", "on other"], "lowest"),
                    bar("case-4", ["both on", "other"], "many"),
                ],
            },
        ],
        foot: "tcp100g-placement: cases 1 to 4 from left to right, three flows, MTU 9000.",
    },
    Picture {
        file: "tcp100g-cores.svg",
        label: "Figure 11: throughput and retransmissions with interrupts on all cores, away from applications, or on their cores",
        scenario: "tcp100g-cores",
        panels: [
            Panel {
                title: GBPS,
                figure: Figure::Throughput,
                top: 120.0,
                bars: &[
                    bar("distribution-1", ["interrupts", "on all cores"], "varies"),
                    valued("distribution-2", ["away from", "applications"], 100.0, "100, stable"),
                    bar("distribution-3", ["on cores of", "applications"], "reduced"),
                ],
            },
            Panel {
                title: RETRANSMISSIONS,
                figure: Figure::Retransmissions,
                top: 80.0,
                bars: &[
                    valued("distribution-1", ["interrupts", "on all cores"], 63.0, "63"),
                    valued("distribution-2", ["away from", "applications"], 20.0, "20"),
                    bar("distribution-3", ["on cores of", "applications"], "most"),
                ],
            },
        ],
        foot: "tcp100g-cores: distributions 1 to 3 from left to right, three flows, MTU 9000.",
    },
];
const RAMP_PICTURE: &str = "tcp100g-ramp.svg";

/// Rounds a result, so that the file stays small.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Simulates Figure 1. Returns the throughput per flow and second.
fn ramp() -> Result<Vec<Vec<f64>>, Box<dyn Error>> {
    let (settings, _) = settings("tcp100g-ramp", "3-flows")?;
    let mut simulation = Simulation::new(settings, 1, Time::ZERO, SECOND, RAMP_SECONDS);
    for second in 1..=RAMP_SECONDS {
        simulation.run(Time(second as u64 * SECOND))?;
        if second.is_multiple_of(10) {
            eprintln!("ramp: {second} of {RAMP_SECONDS} s");
        }
    }
    let gbps = |bytes: u64| rounded(bytes as f64 * 8.0 / 1e9);
    Ok(simulation.take_bins().into_iter().map(|bins| bins.into_iter().map(gbps).collect()).collect())
}

fn simulate(repeats: u64) -> Result<Results, Box<dyn Error>> {
    let mut jobs = Vec::new();
    for picture in &PICTURES {
        for bar in picture.panels[0].bars {
            let (settings, times) = settings(picture.scenario, bar.variant)?;
            jobs.extend((1..=repeats).map(|seed| (bar.variant, settings.clone(), times, seed)));
        }
    }
    let outcomes = on_every_processor(jobs.len(), "plots", |job| {
        let (_, settings, times, seed) = &jobs[job];
        run(settings.clone(), *seed, *times)
    })?;
    let mut variants: BTreeMap<String, Vec<Outcome>> = BTreeMap::new();
    for ((variant, ..), outcome) in jobs.iter().zip(outcomes) {
        variants.entry((*variant).to_owned()).or_default().push(Outcome {
            throughput: rounded(outcome.throughput),
            per_core: rounded(outcome.per_core),
            retransmissions: rounded(outcome.retransmissions),
            events: rounded(outcome.events),
        });
    }
    Ok(Results { ramp: ramp()?, variants })
}

fn pictures(results: &Results) -> Vec<(&'static str, String)> {
    let mut drawn = vec![(RAMP_PICTURE, draw_ramp(&results.ramp))];
    drawn.extend(PICTURES.iter().map(|picture| (picture.file, draw(picture, results))));
    drawn
}

/// Height of the area for bars and lines, and the position of its bottom, pixels.
const HEIGHT: f64 = 180.0;
const FLOOR: f64 = 236.0;

fn scale(svg: &mut String, left: f64, width: f64, top: f64, title: &str) {
    svg::text(svg, (left, 28.0), &format!("font-size=\"15\" font-weight=\"bold\" fill=\"{DARK}\""), title);
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let y = FLOOR - HEIGHT * f64::from(step) / 4.0;
        svg::line(svg, (left, y), (left + width, y), "stroke=\"#ddd\"");
        let style = format!("text-anchor=\"end\" fill=\"{GREY}\"");
        svg::text(svg, (left - 8.0, y + 4.0), &style, &format!("{value:.0}"));
    }
}

/// Formats a value with one decimal, or without decimals if the value is 0 or at least 1000.
fn label(value: f64) -> String {
    if value == 0.0 || value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn draw(picture: &Picture, results: &Results) -> String {
    const WIDTH: f64 = 318.0;
    let mut svg = svg::open(334, picture.label);
    let mut repeats = 0;
    for (number, panel) in picture.panels.iter().enumerate() {
        let left = 60.0 + 378.0 * number as f64;
        scale(&mut svg, left, WIDTH, panel.top, panel.title);
        let step = WIDTH / panel.bars.len() as f64;
        let own = (step * 0.5).min(60.0);
        for (position, bar) in panel.bars.iter().enumerate() {
            let outcomes = results.variants.get(bar.variant).map_or(&[][..], Vec::as_slice);
            repeats = outcomes.len();
            let values: Vec<f64> = outcomes.iter().map(|outcome| outcome.get(panel.figure)).collect();
            let (mean, deviation) = (mean(&values), deviation(&values));
            let middle = left + step * (position as f64 + 0.5);
            let height = |value: f64| HEIGHT * (value / panel.top).clamp(0.0, 1.0);
            let centred = |fill: &str| format!("text-anchor=\"middle\" fill=\"{fill}\"");
            let small = |fill: &str| format!("{} font-size=\"12\"", centred(fill));
            // Writing to a string cannot fail.
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{own:.1}\" height=\"{:.1}\" fill=\"{MODEL}\"/>",
                middle - own / 2.0,
                FLOOR - height(mean),
                height(mean),
            );
            let (low, high) = (FLOOR - height(mean - deviation), FLOOR - height(mean + deviation));
            svg::line(
                &mut svg,
                (middle, low),
                (middle, high),
                &format!("stroke=\"{DARK}\" stroke-width=\"2\""),
            );
            let mut over = high;
            if let Some(value) = bar.value {
                let y = FLOOR - height(value);
                let style = format!("stroke=\"{PAPER}\" stroke-width=\"4\"");
                svg::line(&mut svg, (middle - own / 2.0 - 8.0, y), (middle + own / 2.0 + 8.0, y), &style);
                // Keep the label clear of the paper's mark if that mark is near the end of the error bar.
                if (y - over).abs() < 18.0 {
                    over = over.min(y);
                }
            }
            svg::text(&mut svg, (middle, over - 6.0), &centred(DARK), &label(mean));
            svg::text(&mut svg, (middle, 252.0), &small(GREY), bar.name[0]);
            svg::text(&mut svg, (middle, 267.0), &small(GREY), bar.name[1]);
            svg::text(&mut svg, (middle, 285.0), &small(PAPER), bar.paper);
        }
    }
    let small = format!("fill=\"{GREY}\" font-size=\"12\"");
    svg::text(
        &mut svg,
        (60.0, 308.0),
        &small,
        &format!("{} Blue: simulated, mean of {repeats}", picture.foot),
    );
    let paper = format!("fill=\"{PAPER}\" font-size=\"12\"");
    svg::text(&mut svg, (60.0, 325.0), &small, "repeats and standard deviation.");
    svg::text(&mut svg, (240.0, 325.0), &paper, "Brown, mark and text: the paper.");
    svg + "</svg>\n"
}

fn draw_ramp(flows: &[Vec<f64>]) -> String {
    const LEFT: f64 = 60.0;
    const WIDTH: f64 = 590.0;
    const TOP: f64 = 120.0;
    let mut svg = svg::open(
        312,
        "Figure 1: throughput of one, two and three flows to one host, a further flow every 30 seconds",
    );
    scale(&mut svg, LEFT, WIDTH, TOP, "Throughput, Gbit/s");
    let x = |second: f64| LEFT + WIDTH * second / RAMP_SECONDS as f64;
    let y = |value: f64| FLOOR - HEIGHT * value / TOP;
    for second in (0..=RAMP_SECONDS).step_by(15) {
        let style = format!("text-anchor=\"middle\" fill=\"{GREY}\"");
        svg::text(&mut svg, (x(second as f64), 254.0), &style, &format!("{second} s"));
    }
    let mut curve = |values: &[f64], colour: &str, width: u32| {
        let points: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(second, value)| format!("{:.1},{:.1}", x(second as f64 + 0.5), y(*value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            points.join(" ")
        );
    };
    let sum: Vec<f64> =
        (0..RAMP_SECONDS).map(|second| flows.iter().filter_map(|flow| flow.get(second)).sum()).collect();
    for (number, flow) in flows.iter().enumerate() {
        let first = flow.iter().position(|value| *value > 0.0).unwrap_or(0);
        let mut own = vec![0.0; first];
        own.extend(&flow[first..]);
        curve(&own, LINES[number % LINES.len()], 2);
    }
    curve(&sum, DARK, 3);
    // Place each label at the mean of the last five values, and the labels at least 15 pixels apart.
    let mut labels: Vec<(f64, String, &str)> = flows
        .iter()
        .enumerate()
        .map(|(number, flow)| {
            (
                y(mean(&flow[flow.len().saturating_sub(5)..])),
                format!("flow {}", number + 1),
                LINES[number % LINES.len()],
            )
        })
        .collect();
    labels.push((y(mean(&sum[sum.len() - 5..])), "all flows".to_owned(), DARK));
    labels.sort_by(|first, second| first.0.total_cmp(&second.0));
    let mut least = 0.0_f64;
    for (at, text, colour) in labels {
        least = at.max(least);
        svg::text(&mut svg, (LEFT + WIDTH + 8.0, least + 4.0), &format!("fill=\"{colour}\""), &text);
        least += 15.0;
    }
    let style = format!("stroke=\"{PAPER}\" stroke-width=\"3\" stroke-dasharray=\"8 5\"");
    let style_of_text = format!("fill=\"{PAPER}\"");
    for (value, from, to) in [(43.0, 0.0, 30.0), (100.0, 60.0, 90.0)] {
        svg::line(&mut svg, (x(from), y(value) - 4.0), (x(to), y(value) - 4.0), &style);
        svg::text(&mut svg, (x(from) + 6.0, y(value) - 11.0), &style_of_text, &format!("paper: {value:.0}"));
    }
    let small = format!("fill=\"{GREY}\" font-size=\"12\"");
    svg::text(
        &mut svg,
        (LEFT, 280.0),
        &small,
        "tcp100g-ramp, 3-flows: payload of each second, simulated, seed 1. MTU 9000, interrupts apart from applications.",
    );
    let paper = format!("fill=\"{PAPER}\" font-size=\"12\"");
    svg::text(
        &mut svg,
        (LEFT, 297.0),
        &paper,
        "Dashed: the paper, about 43 Gbit/s (calibrated) and 100 Gbit/s.",
    );
    svg + "</svg>\n"
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = root();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {}
        [repeats] => {
            let repeats = repeats.parse().ok().filter(|repeats| *repeats > 0);
            let repeats = repeats.ok_or("usage: plots [REPEATS], at least 1")?;
            fs::write(root.join(RESULTS), serde_json::to_string(&simulate(repeats)?)? + "\n")?;
        }
        _ => return Err("usage: plots [REPEATS]".into()),
    }
    let results: Results = serde_json::from_str(&fs::read_to_string(root.join(RESULTS))?)?;
    for (file, picture) in pictures(&results) {
        fs::write(root.join("docs/images").join(file), picture)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn pictures_show_the_stored_results() {
        let results: Results =
            serde_json::from_str(&fs::read_to_string(root().join(RESULTS)).unwrap()).unwrap();
        let page = fs::read_to_string(root().join("docs/explanation/overloaded-receiver.md")).unwrap();
        for (file, picture) in pictures(&results) {
            let drawn = fs::read_to_string(root().join("docs/images").join(file)).unwrap();
            assert!(picture == drawn, "{file} is stale: run cargo run -p evenkeel-bench --bin plots");
            assert!(page.contains(&format!("(../images/{file})")), "{file} is on no page");
        }
    }

    #[test]
    fn every_bar_has_results_within_its_scale() {
        let results: Results =
            serde_json::from_str(&fs::read_to_string(root().join(RESULTS)).unwrap()).unwrap();
        for panel in PICTURES.iter().flat_map(|picture| &picture.panels) {
            for bar in panel.bars {
                let values: Vec<f64> =
                    results.variants[bar.variant].iter().map(|outcome| outcome.get(panel.figure)).collect();
                assert!(!values.is_empty() && mean(&values) < panel.top, "{} {}", panel.title, bar.variant);
            }
        }
    }
}
