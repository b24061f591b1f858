//! The result of a study for a terminal: the verdicts and what to take; the page has the rest.

use evenkeel_report::table::TableOptions;
use evenkeel_report::wrapped;

use crate::findings::{Verdict, findings};
use crate::judgements::{Answer, conservation};
use crate::recommend::recommendations;
use crate::results::Results;

const DEFAULT_WIDTH: usize = 100;

/// The verdicts and recommendations as text.
#[must_use]
pub fn summary(results: &Results, options: TableOptions) -> String {
    let width = options.width.unwrap_or(DEFAULT_WIDTH);
    let effort = if results.quick { "quick" } else { "full" };
    let points = results.points.iter().filter(|point| !point.repeats.is_empty()).count();
    let refused = results.points.iter().filter(|point| point.refused.is_some()).count();
    let mut text = wrapped(
        "",
        &format!(
            "The qdisc study on {}, kernel {}: {effort}, seed {}, {points} points measured, {refused} refused, {} of {} runs \
             disturbed by other load, {} failed",
            results.world,
            results.kernel,
            results.seed,
            results.runs.disturbed,
            results.runs.all,
            results.runs.failed
        ),
        width,
    );
    text.push_str("\nFindings of the thesis\n");
    for finding in findings(results) {
        let mark = match finding.verdict {
            Verdict::Confirmed => "confirmed     ",
            Verdict::NotConfirmed => "not confirmed ",
            Verdict::NotMeasurable => "not measurable",
        };
        text.push_str(&wrapped(&format!("  {:<5}{mark}  ", finding.id), &finding.reason, width));
    }
    let recommended = recommendations(results);
    if !recommended.is_empty() {
        text.push_str("\nWhich qdisc for what\n");
        for recommendation in recommended {
            let tie = if recommendation.best.len() > 1 { " (a tie)" } else { "" };
            let line = format!("{}{tie}: by the {}", recommendation.best.join(", "), recommendation.what);
            text.push_str(&wrapped(&format!("  {:<20}", recommendation.need), &line, width));
        }
    }
    let judged = conservation(results);
    if !judged.is_empty() {
        text.push_str("\nWork conservation\n");
        for (answer, name) in [
            (Answer::Yes, "conserve work"),
            (Answer::No, "do not"),
            (Answer::Open, "open"),
            (Answer::NotMeasured, "not measured"),
        ] {
            let setups: Vec<&str> =
                judged.iter().filter(|own| own.answer == answer).map(|own| own.setup.as_str()).collect();
            if !setups.is_empty() {
                text.push_str(&wrapped(&format!("  {name:<20}"), &setups.join(", "), width));
            }
        }
    }
    text
}
