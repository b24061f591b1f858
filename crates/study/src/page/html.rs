//! The page of a study in HTML.

use evenkeel_model::text::counted;
use evenkeel_report::html::{Study, StudyFinding};

use crate::charts::charts;
use crate::findings::{Verdict, findings};
use crate::recommend::recommendations;
use crate::results::Results;

/// Returns the page of a study as a self-contained file. `gaps` are the gaps of its journal.
#[must_use]
pub fn html(results: &Results, gaps: &[String]) -> String {
    let findings = findings(results);
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let effort = if results.quick { "quick" } else { "full" };
    let mut answer = vec![format!(
        "{} of {} findings of the thesis are confirmed, {} are not, {} cannot be measured with this study.",
        count(Verdict::Confirmed),
        findings.len(),
        count(Verdict::NotConfirmed),
        count(Verdict::NotMeasurable)
    )];
    answer.extend(gaps.iter().map(|gap| format!("The study is incomplete: {gap}.")));
    let runs = results.runs;
    if runs.failed > 0 {
        let (failed, all) = (counted(runs.failed, "run"), runs.all);
        answer.push(format!(
            "{failed} of {all} failed; {} without a measurement.",
            counted(runs.missing, "repeat")
        ));
    }
    answer.extend(results.not_measured().into_iter().map(|(why, setups, points)| {
        format!("Not measured: {} ({}): {why}.", setups.join(", "), counted(points, "point"))
    }));
    let recommended = recommendations(results);
    answer.extend(
        recommended
            .iter()
            .map(|recommendation| format!("{}: {}.", recommendation.need, recommendation.answer())),
    );
    let recommendations = recommended.iter().map(|recommendation| {
        [
            recommendation.need.to_owned(),
            recommendation.answer(),
            format!("{}: {}", recommendation.what, recommendation.figures()),
        ]
    });
    let recommendations = recommendations.collect();
    let measured = results.points.iter().filter(|point| !point.repeats.is_empty()).count();
    let repeats: usize = results.points.iter().map(|point| point.repeats.len()).sum();
    let mut facts = vec![
        ("world".to_owned(), results.world.clone()),
        ("kernel or profile".to_owned(), results.kernel.clone()),
        ("effort".to_owned(), effort.to_owned()),
        ("measured".to_owned(), format!("{measured} points, {repeats} repeats")),
        ("runs".to_owned(), runs_text(results)),
        ("time".to_owned(), format!("{} to {}", results.times.0, results.times.1)),
        ("seed".to_owned(), results.seed.to_string()),
        ("evenkeel".to_owned(), results.evenkeel.clone()),
    ];
    facts.extend(results.host.iter().map(|(key, value)| (format!("host: {key}"), value.clone())));
    evenkeel_report::html::study(&Study {
        title: format!("The qdisc study on {}, kernel {}", results.world, results.kernel),
        answer,
        findings: findings
            .iter()
            .map(|finding| StudyFinding {
                id: finding.id.to_owned(),
                statement: finding.statement.to_owned(),
                verdict: finding.verdict.name().to_owned(),
                reason: finding.reason.clone(),
                repeats: finding.n,
            })
            .collect(),
        recommendations,
        charts: charts(results).into_iter().map(|(_, chart)| chart).collect(),
        facts,
    })
}

fn runs_text(results: &Results) -> String {
    let runs = results.runs;
    let refused = results.points.iter().filter(|point| point.refused.is_some()).count();
    format!(
        "{}; {} disturbed by other load, {} without an undisturbed run; {} failed, {} without a measurement; {} refused",
        counted(runs.all, "run"),
        runs.disturbed,
        counted(runs.left_disturbed, "repeat"),
        runs.failed,
        counted(runs.missing, "repeat"),
        counted(refused, "point")
    )
}
