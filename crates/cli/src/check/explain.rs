//! Rules in words.

use std::fmt::Write;

use evenkeel_model::host::HostFacts;
use evenkeel_placement::{Finding, Judgement, Rule, find_rule, rules};

use super::show;
use crate::exit::Failure;

/// A rule by its name; of a mistyped one the nearest is named.
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

/// A rule, and what it finds on a host.
pub fn one(rule: &Rule, facts: &HostFacts, judgement: &Judgement) -> String {
    let mut text = format!(
        "{}\n\n  looks at  {}\n  speaks    {}\n  why       {}\n  mends     {}\n  needs     {}\n  source    {}\n\n",
        rule.name,
        rule.looks_at,
        rule.speaks,
        rule.why,
        rule.mends,
        rule.needs.join(", "),
        rule.source
    );
    let own: Vec<&Finding> = judgement.findings.iter().filter(|finding| finding.rule == rule.name).collect();
    match judgement.not_judged.iter().find(|missed| missed.rule == rule.name) {
        Some(missed) => {
            let _ = writeln!(text, "It could not be judged on this host: {}", missed.why);
        }
        None if own.is_empty() => text.push_str("It finds nothing on this host.\n"),
        None => {}
    }
    for finding in own {
        text.push_str(&show::finding(facts, finding, show::Lines::All));
    }
    text
}

/// Every rule as Markdown, for the documentation.
pub fn all() -> String {
    let mut text = String::new();
    for rule in rules() {
        let _ = write!(
            text,
            "### {}\n\n{}\n\n- **Looks at** {}.\n- **Speaks** {}.\n- **Mends** {}.\n- **Needs** {}.\n\
             - **Source** {}.\n\n",
            rule.name,
            rule.why,
            rule.looks_at,
            rule.speaks,
            rule.mends,
            rule.needs.iter().map(|need| format!("`{need}`")).collect::<Vec<_>>().join(", "),
            rule.source
        );
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
