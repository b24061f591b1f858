//! Judges a host with running sessions, which manage some of its settings until they end.
//!
//! The rules judge the administrator's values from before the sessions. The rules propose no change of
//! managed settings, because a session ends when another program changes them.

use evenkeel_model::change::{Knob, Value};
use evenkeel_model::host::HostFacts;

use crate::applied::set;
use crate::{Basis, Finding};

#[derive(Clone, Debug, PartialEq)]
pub struct ManagedSetting {
    pub interface: String,
    pub knob: Knob,
    /// The value before the session.
    pub from: Value,
}

/// Returns whether a session manages a setting. `interface` is the interface of the knob.
#[must_use]
pub fn is_managed(managed: &[ManagedSetting], interface: Option<&str>, knob: &Knob) -> bool {
    let is_of = |setting: &ManagedSetting| {
        setting.knob == *knob && (!knob.is_of_interface() || Some(setting.interface.as_str()) == interface)
    };
    managed.iter().any(is_of)
}

/// Gives managed settings their values from before the sessions.
pub fn restore(facts: &mut HostFacts, managed: &[ManagedSetting]) {
    for ManagedSetting { interface, knob, from } in managed {
        set(facts, Some(interface), knob, from);
    }
}

/// Removes changes of managed settings, and then the findings that lost their last change. Findings of
/// measured load and loss stay.
pub fn leave(findings: &mut Vec<Finding>, managed: &[ManagedSetting]) {
    findings.retain_mut(|finding| {
        let remedy = &mut finding.remedy;
        let count = remedy.changes.len();
        let interface = remedy.interface.as_deref();
        remedy.changes.retain(|change| !is_managed(managed, interface, &change.knob));
        let is_left = remedy.changes.len() < count;
        if is_left && remedy.advice.is_none() && finding.basis == Basis::Measured {
            remedy.advice = Some("a running session of evenkeel manages the setting of the fix".to_owned());
        }
        !is_left || finding.basis == Basis::Measured || !remedy.changes.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use evenkeel_model::change::Change;
    use evenkeel_model::host::{Interface, InterfaceKind, TransmitQueue};

    use super::*;
    use crate::{Remedy, Severity, check};

    const LIMIT: &str = "net/ipv4/tcp_limit_output_bytes";

    fn text(value: &str) -> Value {
        Value::Text(value.to_owned())
    }

    fn setting(knob: Knob, from: Value) -> ManagedSetting {
        ManagedSetting { interface: "eth0".to_owned(), knob, from }
    }

    #[test]
    fn a_setting_of_a_session_is_not_judged() {
        let mut facts = HostFacts::default();
        facts.sysctls.insert(LIMIT.to_owned(), "43008".to_owned());
        let is_found = |facts: &HostFacts| check(facts).iter().any(|found| found.rule == "sysctl-harmful");
        assert!(is_found(&facts));
        restore(&mut facts, &[setting(Knob::Sysctl(LIMIT.to_owned()), text("4194304"))]);
        assert!(!is_found(&facts));
    }

    #[test]
    fn maps_of_a_session_are_judged_as_before_it() {
        let queue = TransmitQueue { has_xps: true, ..TransmitQueue::default() };
        let nic = Interface {
            name: "eth0".to_owned(),
            kind: InterfaceKind::Device,
            transmit_queues: vec![queue],
            ..Interface::default()
        };
        let mut facts = HostFacts { interfaces: vec![nic], ..HostFacts::default() };
        restore(&mut facts, &[setting(Knob::InterfaceFile("queues/tx-0/xps_cpus".to_owned()), text("3"))]);
        assert_eq!(facts.interfaces[0].transmit_queues[0].xps_processors, [0, 1]);
    }

    #[test]
    fn no_change_of_a_managed_setting_is_proposed() {
        let knobs = [Knob::RootQdisc, Knob::Sysctl(LIMIT.to_owned())];
        let managed = knobs.clone().map(|knob| setting(knob, text("1")));
        let finding = |interface: &str, basis, knobs: &[Knob]| Finding {
            rule: "rule",
            severity: Severity::Low,
            basis,
            subject: interface.to_owned(),
            evidence: String::new(),
            effect: String::new(),
            remedy: Remedy {
                interface: Some(interface.to_owned()),
                changes: knobs.iter().map(|knob| Change::new(knob.clone(), text("2"))).collect(),
                advice: None,
            },
            source: "",
        };
        let mut findings = vec![
            finding("eth0", Basis::Setting, &knobs),
            finding("eth0", Basis::Measured, &knobs),
            finding("eth0", Basis::Setting, &[Knob::Mtu, Knob::RootQdisc]),
            // On another interface, the session manages the sysctl, but not the qdisc.
            finding("eth1", Basis::Setting, &knobs),
        ];
        leave(&mut findings, &managed);
        let left: Vec<Vec<Knob>> = findings
            .iter()
            .map(|found| found.remedy.changes.iter().map(|change| change.knob.clone()).collect())
            .collect();
        assert_eq!(left, [vec![], vec![Knob::Mtu], vec![Knob::RootQdisc]]);
        assert!(findings[0].remedy.advice.is_some());
    }
}
