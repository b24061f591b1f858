//! The Markdown page of a study: findings, recommendations and sources.

use std::fmt::Write;

use evenkeel_metrics::MeanInterval;
use evenkeel_model::text::counted;

use crate::conduct::{DISTURBANCE_LIMIT, MOST_AGAIN, MOST_ATTEMPTS};
use crate::findings::{Finding, findings, no_interval, shown};
use crate::judgements::{Answer, CONSERVING, FAIR, FIRST, claims, conservation, filter_costs};
use crate::recommend::{Recommendation, recommendations};
use crate::results::Results;

use super::THESIS;

/// Returns the page of a study. `charts` are the titles and files of the charts.
#[must_use]
pub fn markdown(results: &Results, charts: &[(String, String)]) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = head(&mut page, results);
    let _ = finding_table(&mut page, &findings(results));
    let _ = recommendation_table(&mut page, &recommendations(results));
    let _ = conservation_table(&mut page, results);
    let _ = claim_table(&mut page, results);
    let _ = filter_table(&mut page, results);
    let _ = refusals(&mut page, results);
    let _ = notes(&mut page, results);
    if !charts.is_empty() {
        page.push_str("\n## Charts\n\nBars show the least and the largest of the repeats.\n\n");
        for (title, file) in charts {
            let _ = writeln!(page, "![{}]({file})\n", cell(title));
        }
    }
    page
}

/// Escapes text for a cell of a Markdown table.
pub(super) fn cell(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn head(page: &mut String, results: &Results) -> std::fmt::Result {
    let effort = if results.quick { "quick" } else { "full" };
    writeln!(page, "# The qdisc study on {}\n", results.world)?;
    writeln!(page, "| | |\n|---|---|")?;
    writeln!(page, "| world | {}, kernel {} |", results.world, cell(&results.kernel))?;
    for fact in ["cpu", "cpus", "memory", "distribution"] {
        if let Some(value) = results.host.get(fact) {
            writeln!(page, "| {fact} | {} |", cell(value))?;
        }
    }
    writeln!(page, "| effort | {effort}, seed {}, evenkeel {} |", results.seed, results.evenkeel)?;
    let points = results.points.iter().filter(|point| !point.repeats.is_empty()).count();
    let kept: usize = results.points.iter().map(|point| point.repeats.len()).sum();
    writeln!(page, "| measured | {points} points, {kept} repeats |")?;
    writeln!(
        page,
        "| time | {} to {}, repeats took {:.0} s |",
        results.times.0, results.times.1, results.took_s
    )?;
    let runs = results.runs;
    writeln!(
        page,
        "| disturbance | {} of {} runs met other load above {DISTURBANCE_LIMIT} processors; such a repeat is run up to \
         {MOST_ATTEMPTS} times and the least disturbed counts, but at most {:.0} % of the planned repeats run again; \
         {} repeats have no undisturbed run; {} runs failed; {} have no measurement |",
        runs.disturbed,
        runs.all,
        MOST_AGAIN * 100.0,
        runs.left_disturbed,
        runs.failed,
        counted(runs.missing, "repeat")
    )?;
    let lines: Vec<String> = results
        .scenarios
        .iter()
        .filter(|facts| facts.line)
        .filter_map(|facts| Some((facts, facts.rate_bps?)))
        .map(|(facts, rate)| format!("{} {:.0} Mbit/s", facts.name, rate as f64 / 1e6))
        .collect();
    if !lines.is_empty() {
        writeln!(page, "| lines | {} |", lines.join(", "))?;
    }
    writeln!(
        page,
        "\nRatios are paired repeat by repeat and shown as mean (95 % confidence interval). Repeats of all points are \
         interleaved and their order is random."
    )
}

fn finding_table(page: &mut String, findings: &[Finding]) -> std::fmt::Result {
    writeln!(page, "\n## The findings of the thesis\n\nThe thesis: {THESIS}.\n")?;
    writeln!(page, "| | verdict | what was found | repeats |\n|---|---|---|---:|")?;
    for finding in findings {
        writeln!(
            page,
            "| {} | {} | {} | {} |",
            finding.id,
            finding.verdict.name(),
            cell(&finding.reason),
            finding.n
        )?;
    }
    writeln!(page, "\nThe statement of each finding, and the criterion that confirms it:\n")?;
    for finding in findings {
        writeln!(page, "- **{}**: {} *Criterion:* {}", finding.id, finding.statement, finding.criterion)?;
    }
    Ok(())
}

fn recommendation_table(page: &mut String, recommendations: &[Recommendation]) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Which qdisc for what\n\nA tie: the repeats cannot tell the setups apart, or the setups differ by less than 1 %.\n"
    )?;
    if recommendations.is_empty() {
        return writeln!(page, "Too few setups were measured together to compare them.");
    }
    writeln!(page, "| need | qdisc setup | figure | margin | not measured |\n|---|---|---|---|---|")?;
    for recommendation in recommendations {
        let next = recommendation.ranking.iter().find(|ranked| !ranked.tie && recommendation.is_judged());
        let margin = next.map_or_else(
            || "the repeats cannot tell them apart".to_owned(),
            |next| {
                let behind = next.behind.as_ref().map(shown).unwrap_or_default();
                let kind = if next.score.mean == next.value { "" } else { " of the mean of all" };
                format!("next is {}, behind by {behind}{kind}", next.setup)
            },
        );
        writeln!(
            page,
            "| {} | **{}** | {}: {} | {} | {} |",
            recommendation.need,
            cell(&recommendation.answer()),
            recommendation.what,
            cell(&recommendation.figures()),
            cell(&margin),
            cell(&recommendation.missing.join(", "))
        )?;
    }
    Ok(())
}

fn percent(mean: Option<&MeanInterval>) -> String {
    mean.map_or_else(String::new, |mean| match mean.interval {
        Some(interval) => format!(
            "{:.1} % ({:.1} to {:.1})",
            mean.mean * 100.0,
            interval.low * 100.0,
            interval.high * 100.0
        ),
        None => format!("{:.1} % ({})", mean.mean * 100.0, no_interval(mean.n)),
    })
}

fn conservation_table(page: &mut String, results: &Results) -> std::fmt::Result {
    let found = conservation(results);
    if found.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "\n## Work conservation\n\nA qdisc conserves work if the link does not idle while packets wait. Yes: the whole interval \
         of the lost share lies below {:.0} % of what the line could have carried. The trace has the sent bytes and the backlog of \
         each bin.\n",
        CONSERVING * 100.0
    )?;
    writeln!(page, "| qdisc | conserves work | lost | idle | trace |\n|---|---|---|---|---|")?;
    for own in &found {
        let trace = own.trace.as_ref().map(|trace| format!("[{trace}]({trace})")).unwrap_or_default();
        let why = own.why.as_ref().filter(|_| own.answer == Answer::NotMeasured);
        writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            cell(&own.setup),
            own.answer.name(),
            percent(own.lost.as_ref()),
            percent(own.idle.as_ref()),
            why.map_or(trace, |why| cell(why))
        )?;
    }
    Ok(())
}

fn claim_table(page: &mut String, results: &Results) -> std::fmt::Result {
    let judged = claims(results);
    if judged.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "\n## Claims\n\nWhat the setups promise, and whether they keep it: *fairness* with Jain's index above {FAIR} for mixed \
         lengths of writes, *priority* with at most {FIRST} times pfifo's latency under the most load, *work-conservation* as in \
         the table above.\n"
    )?;
    writeln!(page, "| qdisc | claim | kept | figure |\n|---|---|---|---|")?;
    for own in &judged {
        writeln!(
            page,
            "| {} | {} | {} | {} |",
            cell(&own.setup),
            own.claim,
            own.answer.name(),
            own.figure.as_ref().map(|figure| format!("{}: {}", own.what, shown(figure))).unwrap_or_default()
        )?;
    }
    Ok(())
}

fn filter_table(page: &mut String, results: &Results) -> std::fmt::Result {
    let costs = filter_costs(results);
    if costs.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "\n## Filters\n\n| qdisc | classifier | rules | ns for each rule and segment of 64 KiB | bandwidth with the most over \
         that with the fewest |\n|---|---|---|---|---|"
    )?;
    for cost in &costs {
        let (setup, classifier) = (cell(&cost.setup), cell(&cost.classifier));
        let why = || cell(cost.why.as_deref().unwrap_or("not measured"));
        match &cost.ns_per_rule {
            Some(ns) => writeln!(
                page,
                "| {setup} | {classifier} | {:.0} to {:.0} | {} | {} |",
                cost.rules.0,
                cost.rules.1,
                shown(ns),
                cost.bandwidth_ratio.as_ref().map_or_else(why, shown)
            )?,
            None => writeln!(page, "| {setup} | {classifier} | | {} | |", why())?,
        }
    }
    Ok(())
}

fn refusals(page: &mut String, results: &Results) -> std::fmt::Result {
    let reasons = results.not_measured();
    if reasons.is_empty() {
        return Ok(());
    }
    writeln!(page, "\n## Not measured\n\n| qdisc | points | why |\n|---|---:|---|")?;
    for (why, setups, points) in reasons {
        writeln!(page, "| {} | {points} | {} |", cell(&setups.join(", ")), cell(why))?;
    }
    Ok(())
}

fn notes(page: &mut String, results: &Results) -> std::fmt::Result {
    let mut notes: Vec<&str> = Vec::new();
    for note in results.points.iter().flat_map(|point| &point.notes) {
        if !notes.contains(&note.as_str()) {
            notes.push(note);
        }
    }
    if notes.is_empty() {
        return Ok(());
    }
    writeln!(page, "\n## Notes\n")?;
    notes.into_iter().try_for_each(|note| writeln!(page, "- {}", note.replace(['\n', '\r'], " ")))
}
