//! Describes the rules of `evenkeel check`.

use std::fmt::Write;

use evenkeel_model::host::HostFacts;
use evenkeel_model::text::counted;
use evenkeel_placement::{Finding, Judgement, Rule, find_rule, rules, rules_about_nics};
use evenkeel_report::page::Page;

use super::show;
use crate::exit::Failure;

/// Finds a rule by name. The error suggests the nearest name.
pub fn rule(name: &str) -> Result<&'static Rule, Failure> {
    find_rule(name).ok_or_else(|| {
        Failure::unknown(
            "rule",
            name,
            rules().map(|rule| rule.name),
            "`evenkeel check --explain all` describes every rule",
        )
    })
}

/// Shows a rule, and the findings of this rule on a host.
pub fn one(page: &mut Page, rule: &Rule, facts: &HostFacts, judgement: &Judgement, only: Option<&str>) {
    let own: Vec<&Finding> = judgement.findings.iter().filter(|finding| finding.rule == rule.name).collect();
    let missed = judgement.incomplete().find(|missed| missed.rule == rule.name);
    let not_nics = (own.is_empty() && rules_about_nics(facts).contains(&rule.name))
        .then(|| show::not_nics(facts, only, || format!("{}, a rule about NICs, does", rule.name)))
        .flatten();
    page.answer(&not_nics.unwrap_or_else(|| match (own.len(), missed) {
        (0, Some(missed)) => format!("{} could not be judged on this host: {}", rule.name, missed.why),
        (0, None) => format!("{} finds nothing on this host.", rule.name),
        (number, missed) => {
            let findings = format!("{} has {} on this host", rule.name, counted(number, "finding"));
            missed.map_or(format!("{findings}."), |missed| {
                format!("{findings}, and could be judged in part only: {}", missed.why)
            })
        }
    }));
    page.gap();
    for (label, text) in [
        ("reads", rule.looks_at),
        ("fires", rule.fires_when),
        ("why", rule.why),
        ("fix", rule.fix),
        ("needs", rule.needs.join(", ").as_str()),
        ("source", rule.source),
    ] {
        page.labelled(&format!("  {label:<10}"), text);
    }
    for finding in own {
        page.gap();
        show::finding(page, facts, finding, show::Lines::All);
    }
}

/// Returns all rules as Markdown, for the documentation.
pub fn all() -> String {
    let mut text = String::new();
    for rule in rules() {
        let _ = write!(
            text,
            "### {}\n\n{}\n\n- **Looks at** {}.\n- **Fires** {}.\n- **Fix** {}.\n- **Needs** {}.\n\
             - **Source** {}.\n\n",
            rule.name,
            rule.why,
            rule.looks_at,
            rule.fires_when,
            rule.fix,
            rule.needs.iter().map(|need| format!("`{need}`")).collect::<Vec<_>>().join(", "),
            rule.source
        );
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
