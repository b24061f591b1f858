//! The table of rules.
//!
//! A rule is one [`Rule`]: its texts, its source, the facts that it needs, and a function from the
//! facts to its findings. Each rule is in the list of its topic. The documentation and `--explain` use
//! the same entry. A rule whose facts could not be read is listed as not judged, because a missing
//! finding does not mean that there is no fault.

mod applications;
mod bond;
mod cloud;
mod connections;
mod datagrams;
mod devices;
mod interrupts;
mod ip;
mod judge;
mod link;
mod memory;
mod msi;
mod mtu;
mod napi;
pub mod needs;
mod nic;
mod offloads;
mod one_interface;
mod pci;
mod power;
mod qdisc;
mod queues;
mod rdma;
mod settings;
mod sockets;
mod spread;
mod stack_drops;
mod tcp;
mod transmit;

pub use interrupts::running_balancer;
pub(crate) use queues::mask;
pub(crate) use stack_drops::receive_queue_drops;

use evenkeel_model::change::{Change, Knob, Value};

pub(crate) use judge::Alternative;
use judge::reported;
pub use judge::{Judgement, NotJudged, check, check_with, judge, judge_with, rules_about_nics};
pub use one_interface::OF_ONE_INTERFACE;

use crate::{Basis, Remedy, Severity, View};

#[derive(Debug)]
pub struct Rule {
    /// The name, as `--explain` takes it.
    pub name: &'static str,
    /// The settings and counters that the rule reads.
    pub looks_at: &'static str,
    /// The condition of a finding, with its limits.
    pub fires_when: &'static str,
    pub why: &'static str,
    pub fix: &'static str,
    pub source: &'static str,
    /// The sources without which the rule cannot judge ([`needs`]). A fact that does not exist on a host is
    /// not a gap: a driver without `ethtool -g` has no rings to judge.
    pub needs: &'static [&'static str],
    pub check: fn(&View<'_>) -> Vec<Found>,
}

/// A single result of a rule, without the texts that all of its findings share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    basis: Basis,
    severity: Severity,
    subject: String,
    evidence: String,
    effect: String,
    remedy: Remedy,
}

impl Found {
    /// Creates a finding that counters of load or loss show: any severity.
    pub fn measured(
        severity: Severity,
        subject: &str,
        evidence: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self::on_basis(Basis::Measured, severity, subject, evidence, effect)
    }

    /// Creates a finding about a limit that is certainly below the link's requirement: any severity.
    pub fn limit(
        severity: Severity,
        subject: &str,
        evidence: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self::on_basis(Basis::Limit, severity, subject, evidence, effect)
    }

    /// Creates a finding about a setting whose cost no counter shows: at most medium.
    pub fn setting(
        severity: Severity,
        subject: &str,
        evidence: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self::on_basis(Basis::Setting, severity, subject, evidence, effect)
    }

    /// Creates a finding that depends on an assumption, which the evidence names: low.
    pub fn assumed(subject: &str, evidence: impl Into<String>, effect: impl Into<String>) -> Self {
        Self::on_basis(Basis::Assumed, Severity::Low, subject, evidence, effect)
    }

    /// Creates a finding on a basis that the rule computed, which caps the severity.
    pub fn on_basis(
        basis: Basis,
        severity: Severity,
        subject: &str,
        evidence: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self {
            basis,
            severity: severity.min(basis.cap()),
            subject: subject.to_owned(),
            evidence: evidence.into(),
            effect: effect.into(),
            remedy: Remedy::default(),
        }
    }

    #[must_use]
    pub fn on(mut self, interface: &str) -> Self {
        self.remedy.interface = Some(interface.to_owned());
        self
    }

    #[must_use]
    pub fn change(mut self, knob: Knob, to: Value) -> Self {
        self.remedy.changes.push(Change::new(knob, to));
        self
    }

    /// Adds a sysctl to the fix, by its path below `/proc/sys`.
    #[must_use]
    pub fn sysctl(self, path: &str, value: impl std::fmt::Display) -> Self {
        self.change(Knob::Sysctl(path.to_owned()), Value::Text(value.to_string()))
    }

    #[must_use]
    pub fn advice(mut self, text: impl Into<String>) -> Self {
        self.remedy.advice = Some(text.into());
        self
    }
}

/// Returns the rules of all topics, in the order of the documentation.
pub fn rules() -> impl Iterator<Item = &'static Rule> + Clone {
    [
        interrupts::RULES,
        msi::RULES,
        applications::RULES,
        nic::RULES,
        cloud::RULES,
        pci::RULES,
        link::RULES,
        mtu::RULES,
        rdma::RULES,
        devices::RULES,
        queues::RULES,
        napi::RULES,
        spread::RULES,
        transmit::RULES,
        offloads::RULES,
        qdisc::RULES,
        bond::RULES,
        stack_drops::RULES,
        datagrams::RULES,
        ip::RULES,
        connections::RULES,
        tcp::RULES,
        sockets::RULES,
        settings::RULES,
        power::RULES,
        memory::RULES,
    ]
    .into_iter()
    .flatten()
}

#[must_use]
pub fn find_rule(name: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.name == name)
}

/// Returns `fast` for a NIC of at least 10 Gbit/s, else `slow`.
fn by_speed(nic: &evenkeel_model::host::Interface, fast: Severity, slow: Severity) -> Severity {
    if nic.speed_bps.is_some_and(|speed| speed >= FAST) { fast } else { slow }
}

/// Smallest speed of a fast NIC, bit/s: one processor may be too slow for such a NIC.
const FAST: u64 = 10_000_000_000;
