//! A comparison of two studies, as text and JSON.

use evenkeel_model::text::counted;
use evenkeel_report::page::Page;
use evenkeel_report::table::TableOptions;
use evenkeel_report::{change_text, describe};
use serde_json::{Value, json};

use crate::agreement::Agreement;

const SCHEMA: u32 = 1;

#[must_use]
pub fn agreement_json(agreement: &Agreement) -> Value {
    let (agree, all) = agreement.counts();
    let compared: Vec<Value> = agreement
        .compared
        .iter()
        .map(|compared| {
            let change = compared.change;
            json!({
                "point": compared.point,
                "metric": compared.metric,
                "first": change.first,
                "second": change.second,
                "scale": evenkeel_report::scale_name(change.scale),
                "change": change.change,
                "interval": change.interval.map(|interval| json!({"low": interval.low, "high": interval.high})),
                "agrees": compared.agrees,
            })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "answer": answer(agreement),
        "warnings": agreement.warnings,
        "agree": agree,
        "judged": all,
        "share": agreement.share(),
        "only_in_one": agreement.only_in_one,
        "missing_figures": agreement.missing_figures,
        "compared": compared,
    })
}

/// States the number of differing figures in a sentence.
fn answer(agreement: &Agreement) -> String {
    let (agree, all) = agreement.counts();
    let missing = match agreement.missing_figures {
        0 => String::new(),
        missing => format!("; {} only in one study", counted(missing, "figure")),
    };
    match all - agree {
        0 => format!("No difference shown: {all} figures{missing}."),
        1 => format!("1 of {all} figures differs{missing}."),
        differing => format!("{differing} of {all} figures differ{missing}."),
    }
}

/// Returns the comparison as text: the number of differing figures, the differences between the
/// set-ups, and each differing figure.
#[must_use]
pub fn agreement_table(agreement: &Agreement, names: [&str; 2], options: TableOptions) -> String {
    let mut page = Page::new(options);
    page.line(&answer(agreement));
    page.labelled("first: ", names[0]);
    page.labelled("second: ", names[1]);
    for warning in &agreement.warnings {
        page.line(warning);
    }
    if agreement.only_in_one > 0 {
        let points = if agreement.only_in_one == 1 { "point is" } else { "points are" };
        page.line(&format!("{} {points} only in one study.", agreement.only_in_one));
    }
    for compared in agreement.compared.iter().filter(|compared| compared.agrees == Some(false)) {
        let description = describe(compared.metric);
        page.labelled("  ", &format!("{}: {}", compared.point, change_text(&description, &compared.change)));
    }
    page.line(
        "The intervals are simultaneous (98 %): equal set-ups differ in at most 2 of 100 comparisons on average.",
    );
    page.finish()
}
