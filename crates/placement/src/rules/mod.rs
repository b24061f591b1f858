//! The table of rules.
//!
//! A rule is one [`Rule`]: what it looks at, when it speaks, why, what mends it, where that is known from, and a function
//! from the facts to what it found. It is added to the list of its topic; the documentation and `--explain` are made from
//! the same entry.

mod applications;
mod card;
mod interrupts;
mod link;
mod loss;
mod offloads;
mod power;
mod qdisc;
mod queues;
mod spread;
mod tcp;
mod transmit;

pub(crate) use queues::mask;

use evenkeel_model::change::{Change, Knob, Value};
use evenkeel_model::host::HostFacts;

use crate::{Finding, Remedy, Severity, View};

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name, as `--explain` takes it.
    pub name: &'static str,
    /// What it looks at.
    pub looks_at: &'static str,
    /// When it speaks, with its limits.
    pub speaks: &'static str,
    /// Why that matters, and what it costs.
    pub why: &'static str,
    /// What mends it.
    pub mends: &'static str,
    /// Where that is known from.
    pub source: &'static str,
    /// Finds it.
    pub check: fn(&View<'_>) -> Vec<Found>,
}

/// What a rule found, without what is the same of all that it finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    severity: Severity,
    subject: String,
    evidence: String,
    effect: String,
    remedy: Remedy,
}

impl Found {
    /// Something of this severity about a subject.
    pub fn new(
        severity: Severity,
        subject: &str,
        evidence: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            subject: subject.to_owned(),
            evidence: evidence.into(),
            effect: effect.into(),
            remedy: Remedy::default(),
        }
    }

    /// The interface that changes mean.
    #[must_use]
    pub fn on(mut self, interface: &str) -> Self {
        self.remedy.interface = Some(interface.to_owned());
        self
    }

    /// A change that mends it.
    #[must_use]
    pub fn change(mut self, knob: Knob, to: Value) -> Self {
        self.remedy.changes.push(Change::new(knob, to));
        self
    }

    /// A sysctl that mends it, by its path below `/proc/sys`.
    #[must_use]
    pub fn sysctl(self, path: &str, value: impl std::fmt::Display) -> Self {
        self.change(Knob::Sysctl(path.to_owned()), Value::Text(value.to_string()))
    }

    /// What else mends it.
    #[must_use]
    pub fn advice(mut self, text: impl Into<String>) -> Self {
        self.remedy.advice = Some(text.into());
        self
    }
}

/// The rules of all topics, in the order of the documentation.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    [
        interrupts::RULES,
        applications::RULES,
        card::RULES,
        link::RULES,
        queues::RULES,
        spread::RULES,
        transmit::RULES,
        offloads::RULES,
        qdisc::RULES,
        loss::RULES,
        tcp::RULES,
        power::RULES,
    ]
    .into_iter()
    .flatten()
}

/// A rule by its name.
#[must_use]
pub fn find_rule(name: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.name == name)
}

/// What all rules find on a host, the gravest first.
#[must_use]
pub fn check(facts: &HostFacts) -> Vec<Finding> {
    check_with(facts, rules())
}

/// What some rules find on a host, the gravest first; of the same severity in the order of the rules.
pub fn check_with<'r>(facts: &HostFacts, rules: impl IntoIterator<Item = &'r Rule>) -> Vec<Finding> {
    let view = View::new(facts);
    let mut findings: Vec<Finding> = rules
        .into_iter()
        .flat_map(|rule| (rule.check)(&view).into_iter().map(|found| finding(rule, found)))
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn finding(rule: &Rule, found: Found) -> Finding {
    // Rules live as long as the program or the test that made them; only their texts are kept.
    let Rule { name, source, .. } = *rule;
    let Found { severity, subject, evidence, effect, remedy } = found;
    Finding { rule: name, severity, subject, evidence, effect, remedy, source }
}

/// Severity by a card's speed: one for fast cards, from 10 Gbit/s on, another for the others.
fn by_speed(card: &evenkeel_model::host::Interface, fast: Severity, slow: Severity) -> Severity {
    if card.speed_bps.is_some_and(|speed| speed >= FAST) { fast } else { slow }
}

/// From here on a card is fast, bit/s: one processor can be too little.
const FAST: u64 = 10_000_000_000;
