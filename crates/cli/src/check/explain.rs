//! Describes the rules of `evenkeel check`.

use std::collections::BTreeSet;
use std::fmt::Write;

use evenkeel_model::host::HostFacts;
use evenkeel_model::text::{counted, printable};
use evenkeel_placement::{Finding, Judgement, Rule, find_rule, rules};
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

/// The paper that texts of rules call "the paper".
const PAPER: &str = "Hock, Veit, Neumeister, Bless, Zitterbart: TCP at 100 Gbit/s - Tuning, Limitations, Congestion \
                     Control (LCN 2019)";

/// Returns the texts of a rule that may name the paper.
fn text_of(rule: &Rule) -> impl Iterator<Item = &'static str> {
    [rule.looks_at, rule.fires_when, rule.why, rule.fix, rule.source].into_iter()
}

/// Shows a rule, and the findings of this rule on a host. `only` contains the named interface, and the
/// findings about other interfaces.
pub fn one(
    page: &mut Page,
    rule: &Rule,
    facts: &HostFacts,
    judgement: &Judgement,
    only: Option<(&str, &[Finding])>,
) {
    let own: Vec<&Finding> = judgement.findings.iter().filter(|finding| finding.rule == rule.name).collect();
    let missed = judgement.incomplete().find(|missed| missed.rule == rule.name);
    let name = only.map(|(name, _)| name);
    let not_nics = judgement
        .not_applicable
        .contains(&rule.name)
        .then(|| show::not_nics(facts, name, || format!("{}, a rule about NICs, does", rule.name)))
        .flatten();
    let place = name.map_or("on this host".to_owned(), |name| {
        format!("about {} and the host's settings", printable(name))
    });
    let mut answer = not_nics.unwrap_or_else(|| match (own.len(), missed) {
        (0, Some(missed)) => format!("{} could not be judged on this host: {}", rule.name, missed.why),
        (0, None) => format!("{} finds nothing {place}.", rule.name),
        (number, missed) => {
            let findings = format!("{} has {} {place}", rule.name, counted(number, "finding"));
            missed.map_or(format!("{findings}."), |missed| {
                format!("{findings}, and could be judged only in part: {}", missed.why)
            })
        }
    });
    let others = only.into_iter().flat_map(|(_, others)| others);
    let others: BTreeSet<&str> =
        others.filter(|finding| finding.rule == rule.name).map(|finding| finding.subject.as_str()).collect();
    if !others.is_empty() {
        let others: Vec<&str> = others.into_iter().collect();
        let end = if answer.ends_with('.') { "" } else { "." };
        let _ = write!(answer, "{end} It has findings about {}.", printable(&others.join(", ")));
    }
    page.answer(&answer);
    page.gap();
    for (label, text) in [
        ("reads", rule.looks_at),
        ("fires", rule.fires_when),
        ("why", rule.why),
        ("fix", rule.fix),
        ("needs", rule.needs.join(", ").as_str()),
        ("source", rule.source),
        ("paper", if text_of(rule).any(|text| text.contains("the paper")) { PAPER } else { "" }),
    ] {
        if !text.is_empty() {
            page.labelled(&format!("  {label:<10}"), text);
        }
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
