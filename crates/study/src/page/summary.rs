//! The result of a study for a terminal: answer, recommendations and verdicts. The Markdown page has the
//! details.

use evenkeel_model::text::counted;
use evenkeel_report::page::{Page, Tone};
use evenkeel_report::table::TableOptions;

use crate::findings::{Finding, Verdict, findings};
use crate::judgements::{Answer, conservation};
use crate::recommend::recommendations;
use crate::results::Results;

use super::THESIS;

#[must_use]
pub fn summary(results: &Results, options: TableOptions) -> String {
    let mut page = Page::new(options);
    let findings = findings(results);
    let (judged, missed): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|finding| finding.verdict != Verdict::NotMeasurable);
    let of = |verdict| judged.iter().filter(|finding| finding.verdict == verdict).count();
    let points = results.points.iter().filter(|point| !point.repeats.is_empty()).count();
    page.answer(&if judged.is_empty() {
        format!("{} measured; they judge no finding of the thesis.", counted(points, "point"))
    } else {
        format!(
            "{} measured: of {} of the thesis that they judge, {} confirmed, {} not.",
            counted(points, "point"),
            counted(judged.len(), "finding"),
            of(Verdict::Confirmed),
            of(Verdict::NotConfirmed)
        )
    });
    if results.quick {
        page.line("A quick study: its measurements are too short for a claim.");
    }
    let refused = results.points.iter().filter(|point| point.refused.is_some()).count();
    page.line(&format!(
        "{}, kernel {}, seed {}, {} refused; {} of {} disturbed by other load, {} failed",
        results.world,
        results.kernel,
        results.seed,
        counted(refused, "point"),
        results.runs.disturbed,
        counted(results.runs.all, "run"),
        results.runs.failed
    ));
    for (why, setups, points) in results.not_measured() {
        page.line(&format!("Not measured: {} ({}): {why}", setups.join(", "), counted(points, "point")));
    }
    let recommended = recommendations(results);
    if !recommended.is_empty() {
        page.heading("Which qdisc for what");
        for recommendation in recommended {
            let line = format!("{}: by the {}", recommendation.answer(), recommendation.what);
            page.labelled(&format!("  {:<20}", recommendation.need), &line);
        }
    }
    show_conservation(&mut page, results);
    if !judged.is_empty() {
        page.heading("Findings of the thesis");
        page.line(&format!("  (the thesis: {THESIS})"));
        for finding in &judged {
            let tone = if finding.verdict == Verdict::Confirmed { Tone::Good } else { Tone::Warning };
            page.labelled(&format!("  {:<5}", finding.id), finding.statement);
            page.toned(&format!("       {}: ", finding.verdict.name()), tone, &finding.reason);
        }
    }
    if !missed.is_empty() {
        let ids: Vec<&str> = missed.iter().map(|finding| finding.id).collect();
        page.gap();
        page.line(&format!("Not measurable in this study: {} (study.md gives the reasons).", ids.join(", ")));
    }
    page.finish()
}

fn show_conservation(page: &mut Page, results: &Results) {
    let judged = conservation(results);
    if judged.is_empty() {
        return;
    }
    page.heading("Work conservation");
    for (answer, name) in [
        (Answer::Yes, "conserve work"),
        (Answer::No, "do not"),
        (Answer::Open, "open"),
        (Answer::NotMeasured, "not measured"),
    ] {
        let setups: Vec<&str> =
            judged.iter().filter(|own| own.answer == answer).map(|own| own.setup.as_str()).collect();
        if !setups.is_empty() {
            page.labelled(&format!("  {name:<20}"), &setups.join(", "));
        }
    }
}
