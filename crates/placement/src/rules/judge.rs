//! Runs rules on a host, and lists the rules that lacked facts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_model::change::Knob;
use evenkeel_model::host::{HostFacts, Interface, InterfaceKind, Unknown};
use evenkeel_model::text::list;
use serde::Serialize;

use super::needs::{
    AFFINITY, FREQUENCY, IDLE_STATES, ISOLATED, NETSTAT, NOHZ_FULL, PORTS, RAW, RAW6, SNMP, SNMP6, SOCKSTAT,
    SPEED, STATISTICS, UDP, UDP6, VMSTAT,
};
use super::one_interface::OF_ONE_INTERFACE;
use super::{FAST, Found, Rule, find_rule, rules};
use crate::current::is_made;
use crate::view::Lacks;
use crate::view::gigabits;
use crate::{Basis, Finding, Severity, View};

const SYSCTLS: &str = "/proc/sys/";
/// Tables with the group of their counters.
const TABLES: [(&str, &str); 3] = [
    ("/proc/net/stat/arp_cache", "Arp."),
    ("/proc/net/stat/ndisc_cache", "Ndisc."),
    ("/proc/net/stat/nf_conntrack", "Conntrack."),
];
const UPTIME: &str = "/proc/uptime";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Findings, the highest severity first, then in the order of the rules.
    pub findings: Vec<Finding>,
    /// Number of rules that judged, including the rules in `partly_judged`.
    pub judged: usize,
    /// The rules about NICs that had no NIC to judge. [`Judgement::limit_to_nics`] fills this list.
    pub not_applicable: Vec<&'static str>,
    /// The rules that lacked facts and have no finding.
    pub not_judged: Vec<NotJudged>,
    /// The rules that lacked facts, but have findings that do not depend on the missing facts, such as
    /// findings about another interface.
    pub partly_judged: Vec<NotJudged>,
}

impl Judgement {
    /// Returns the rules that lacked facts. If such a rule has no finding, the host may still have the fault.
    pub fn incomplete(&self) -> impl Iterator<Item = &NotJudged> {
        self.not_judged.iter().chain(&self.partly_judged)
    }

    /// Keeps the findings about this interface and about the host, and the gaps that may hide such a
    /// finding. Returns the findings about other interfaces.
    pub fn limit_to(&mut self, facts: &HostFacts, interface: &str) -> Vec<Finding> {
        let is_shown = |finding: &Finding| concerns(facts, finding, interface);
        let (shown, others) = std::mem::take(&mut self.findings).into_iter().partition(is_shown);
        self.findings = shown;
        let lacks = |rule: &NotJudged| rule.interfaces.is_empty() || rule.interfaces.contains(interface);
        let before = self.not_judged.len();
        self.not_judged.retain(lacks);
        self.judged += before - self.not_judged.len();
        self.partly_judged.retain(lacks);
        let has_finding = |missed: &NotJudged| self.findings.iter().any(|found| found.rule == missed.rule);
        let partly = std::mem::take(&mut self.partly_judged);
        let (partly, not): (Vec<NotJudged>, Vec<NotJudged>) = partly.into_iter().partition(has_finding);
        self.partly_judged = partly;
        self.judged -= not.len();
        self.not_judged.extend(not);
        others
    }

    /// Lists the rules about NICs as not applicable if this interface is not a NIC, or, without an
    /// interface, if the host has no NIC. A rule with a finding, or with missing facts, stays in its list.
    pub fn limit_to_nics(&mut self, facts: &HostFacts, interface: Option<&str>) {
        let is_nic = |interface: &Interface| interface.kind == InterfaceKind::Device;
        let has_nic = match interface {
            Some(name) => facts.interface(name).is_none_or(is_nic),
            None => facts.interfaces.iter().any(is_nic),
        };
        if has_nic {
            return;
        }
        let is_shown = |finding: &&Finding| interface.is_none_or(|name| concerns(facts, finding, name));
        let found = self.findings.iter().filter(is_shown).map(|finding| finding.rule);
        let listed: BTreeSet<&str> = found.chain(self.incomplete().map(|missed| missed.rule)).collect();
        let mut rules = rules_about_nics(facts);
        rules.retain(|rule| !listed.contains(rule));
        self.judged -= rules.len();
        self.not_applicable = rules;
    }
}

/// Returns whether a finding is about this interface or about the host.
fn concerns(facts: &HostFacts, finding: &Finding, interface: &str) -> bool {
    match &finding.remedy.interface {
        Some(name) => name == interface,
        None => finding.subject == interface || facts.interface(&finding.subject).is_none(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotJudged {
    pub rule: &'static str,
    /// The files and kernel answers that could not be read, and the reason.
    pub why: String,
    /// The interfaces whose facts are missing. Empty if facts of the host are missing too, or if facts of
    /// one interface can change the findings about the host or about another interface.
    #[serde(skip)]
    pub interfaces: BTreeSet<String>,
}

#[must_use]
pub fn judge(facts: &HostFacts) -> Judgement {
    judge_with(facts, rules())
}

/// Returns the findings of all rules on a host, the highest severity first.
#[must_use]
pub fn check(facts: &HostFacts) -> Vec<Finding> {
    judge(facts).findings
}

/// Returns the findings of some rules on a host, the highest severity first.
pub fn check_with<'r>(facts: &HostFacts, rules: impl IntoIterator<Item = &'r Rule>) -> Vec<Finding> {
    judge_with(facts, rules).findings
}

/// Returns the rules that judge only NICs on this host, and so no interface of another kind.
#[must_use]
pub fn rules_about_nics(facts: &HostFacts) -> Vec<&'static str> {
    let is_about_nics = |rule: &&Rule| {
        let view = View::new(facts);
        let found = (rule.check)(&view);
        view.judges_nics() && found.iter().all(|found| is_nic_or_host(facts, &found.subject))
    };
    rules().filter(is_about_nics).map(|rule| rule.name).collect()
}

fn is_nic_or_host(facts: &HostFacts, subject: &str) -> bool {
    facts.interface(subject).is_none_or(|interface| interface.kind == InterfaceKind::Device)
}

pub fn judge_with<'r>(facts: &HostFacts, rules: impl IntoIterator<Item = &'r Rule>) -> Judgement {
    let variants_of_host = variants(facts);
    let alternatives_of_host = alternatives(&variants_of_host);
    let whole = View::new(facts).beside(&alternatives_of_host);
    let fast_facts = with_fast_links(facts);
    let fast_variants = fast_facts.as_ref().map(variants).unwrap_or_default();
    let fast_alternatives = alternatives(&fast_variants);
    let fast = fast_facts.as_ref().map(|facts| View::new(facts).beside(&fast_alternatives));
    let mut judgement = Judgement::default();
    for rule in rules {
        let (found, gaps) = found_and_gaps(rule, &whole);
        let mut found: Vec<Found> = found.into_iter().map(|found| found.on_load(&whole)).collect();
        if let Some(fast) = &fast {
            name_unknown_speeds(rule, &mut found, &whole, fast);
        }
        let judges = gaps.is_empty() || !found.is_empty();
        judgement.judged += usize::from(judges);
        if !gaps.is_empty() {
            let list = if judges { &mut judgement.partly_judged } else { &mut judgement.not_judged };
            let of_interfaces = gaps.iter().map(|gap| gap.interface().map(str::to_owned));
            let interfaces = of_interfaces
                .collect::<Option<BTreeSet<String>>>()
                .filter(|_| OF_ONE_INTERFACE.contains(&rule.name))
                .unwrap_or_default();
            list.push(NotJudged { rule: rule.name, why: reasons(&gaps), interfaces });
        }
        judgement.findings.extend(found.into_iter().map(|found| finding(rule, found)));
    }
    judgement.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    judgement
}

/// Returns the findings that [`judge`] reports for a rule. A rule may name only these findings as the
/// cause of another finding.
pub(super) fn reported(view: &View<'_>, rule: &str) -> Rc<[Found]> {
    view.reported(rule, || find_rule(rule).map(|rule| found_and_gaps(rule, view).0).unwrap_or_default())
}

/// The host with other values of facts that could not be read. A rule may use such facts for a part of
/// its verdict or fix, even if it does not list them as needs. A finding counts if every value leads to
/// the finding.
#[derive(Debug)]
pub(crate) struct Alternative<'a> {
    gaps: Vec<&'a Unknown>,
    view: View<'a>,
}

fn alternatives<'v>(variants: &'v [(Vec<&'v Unknown>, HostFacts)]) -> Vec<Alternative<'v>> {
    let alternative = |(gaps, facts): &'v (Vec<&'v Unknown>, HostFacts)| Alternative {
        gaps: gaps.clone(),
        view: View::new(facts),
    };
    variants.iter().map(alternative).collect()
}

fn has_unknown_speed(interface: &&Interface) -> bool {
    interface.kind == InterfaceKind::Device && interface.up && interface.speed_bps.is_none()
}

/// Returns the host with the speed of a fast NIC for each NIC whose speed is unknown; `None` if every speed
/// is known.
fn with_fast_links(facts: &HostFacts) -> Option<HostFacts> {
    facts.interfaces.iter().find(has_unknown_speed)?;
    let mut fast = facts.clone();
    for interface in fast.interfaces.iter_mut().filter(|interface| has_unknown_speed(&&**interface)) {
        interface.speed_bps = Some(FAST);
    }
    Some(fast)
}

/// Adds a remark to each finding that would have a higher severity if the unknown link speeds were those of
/// fast NICs.
fn name_unknown_speeds(rule: &Rule, found: &mut [Found], whole: &View<'_>, fast: &View<'_>) {
    if found.is_empty() {
        return;
    }
    let (instead, _) = found_and_gaps(rule, fast);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for found in found {
        let at = seen.entry(found.subject.clone()).or_insert(0);
        let mut alike = instead.iter().filter(|other| other.subject == found.subject);
        let other = alike.nth(*at).map(|other| other.clone().on_load(fast).severity);
        *at += 1;
        let Some(severity) = other.filter(|severity| *severity > found.severity) else { continue };
        let unknown = || whole.all_nics().filter(has_unknown_speed).map(|nic| nic.name.as_str());
        let own: Vec<&str> =
            unknown().filter(|name| found.concerns().any(|subject| subject == *name)).collect();
        let names = if own.is_empty() { list(unknown()) } else { list(own) };
        found.evidence += &format!(
            "; the link speed of {names} is unknown: from {} on, this finding would be {severity}",
            gigabits(FAST as f64)
        );
    }
}

/// Returns the host with the extreme values of facts that could not be read:
///
/// - Traffic of interfaces, and of TCP: in one variant, the interfaces have no packets and TCP has many
///   segments, so that TCP carries all traffic; in the other variant, the interfaces have many packets and
///   TCP has no segments.
/// - Isolated processors: in the variant, all processors are isolated. In the unchanged host, only those
///   are isolated that are known to be.
fn variants(facts: &HostFacts) -> Vec<(Vec<&Unknown>, HostFacts)> {
    const TRAFFIC: [&str; 4] = ["rx_bytes", "rx_packets", "tx_bytes", "tx_packets"];
    const SEGMENTS: [&str; 2] = ["Tcp.InSegs", "Tcp.OutSegs"];
    const MUCH: u64 = u64::MAX / 4;
    let of_traffic = |gap: &Unknown| {
        let is_counter = |name: &&str| gap.concerns(&format!("{STATISTICS}/{name}"));
        let lacks = |name: &&str| {
            let of_gap = gap.interface().and_then(|interface| facts.interface(interface));
            of_gap.is_some_and(|interface| !interface.statistics.contains_key(*name))
        };
        TRAFFIC.iter().any(|name| is_counter(name) && lacks(name))
    };
    let of_tcp = |gap: &Unknown| {
        SEGMENTS
            .iter()
            .any(|name| gap.concerns(&format!("{SNMP}/{name}")) && !facts.counters.contains_key(*name))
    };
    let of_isolation = |gap: &Unknown| gap.concerns(ISOLATED) || gap.concerns(NOHZ_FULL);
    let with_traffic = |traffic: u64, segments: u64, gaps: &[&Unknown]| {
        let mut facts = facts.clone();
        for interface in &mut facts.interfaces {
            let gaps = || gaps.iter().filter(|gap| gap.interface() == Some(interface.name.as_str()));
            let hidden = |name: &&str| gaps().any(|gap| gap.concerns(&format!("{STATISTICS}/{name}")));
            for name in TRAFFIC.iter().filter(|name| hidden(name)) {
                interface.statistics.entry((*name).to_owned()).or_insert(traffic);
            }
        }
        if gaps.iter().any(|gap| of_tcp(gap)) {
            for name in SEGMENTS {
                facts.counters.entry(name.to_owned()).or_insert(segments);
            }
        }
        facts
    };
    let gaps =
        |is_of: &dyn Fn(&Unknown) -> bool| facts.unknown.iter().filter(|gap| is_of(gap)).collect::<Vec<_>>();
    let mut found = Vec::new();
    let traffic = gaps(&|gap| of_traffic(gap) || of_tcp(gap));
    if !traffic.is_empty() {
        let (none, much) = (with_traffic(0, MUCH, &traffic), with_traffic(MUCH, 0, &traffic));
        found.extend([(traffic.clone(), none), (traffic, much)]);
    }
    let isolation = gaps(&of_isolation);
    if !isolation.is_empty() {
        let mut isolated = facts.clone();
        isolated.processors.iter_mut().for_each(|processor| processor.isolated = true);
        found.push((isolation, isolated));
    }
    found
}

/// Keeps the findings that a rule also has with the other values. The findings get the lower severity
/// and the common changes. Returns whether the other values lead to the same findings.
fn keep_common(found: &mut Vec<Found>, other: &[Found], gaps: &[&Unknown]) -> bool {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let before = found.len();
    found.retain_mut(|found| {
        let at = seen.entry(found.subject.clone()).or_insert(0);
        *at += 1;
        let mut alike = other.iter().filter(|other| other.subject == found.subject);
        let Some(same) = alike.nth(*at - 1) else { return false };
        found.basis = found.basis.min(same.basis);
        found.severity = found.severity.min(same.severity).min(found.basis.cap());
        let remedy = &mut found.remedy;
        let changes = remedy.changes.len();
        remedy.changes.retain(|change| same.remedy.changes.contains(change));
        if remedy.changes.len() < changes {
            let left_out = format!("changes that depend on missing facts are left out: {}", reasons(gaps));
            let advice = remedy.advice.iter().cloned().chain([left_out]);
            remedy.advice = Some(advice.collect::<Vec<_>>().join("; "));
        }
        true
    });
    found.len() == before && before == other.len()
}

fn found_and_gaps<'f>(rule: &Rule, view: &View<'f>) -> (Vec<Found>, Vec<&'f Unknown>) {
    let (mut found, mut gaps) = found_by_needs(rule, view);
    for Alternative { gaps: unread, view: other } in view.alternatives {
        let (instead, _) = found_by_needs(rule, other);
        if !keep_common(&mut found, &instead, unread) {
            gaps.extend(unread);
        }
    }
    (found.into_iter().filter_map(|found| found.with_possible_changes(view.facts)).collect(), gaps)
}

/// Returns the findings of a rule that its needs allow, and the gaps in the needs.
fn found_by_needs<'f>(rule: &Rule, view: &View<'f>) -> (Vec<Found>, Vec<&'f Unknown>) {
    let facts = view.facts;
    let gaps: Vec<&Unknown> =
        facts.unknown.iter().filter(|gap| rule.needs.iter().any(|need| gap.concerns(need))).collect();
    let ((found, mut gaps), lacks) = if gaps.is_empty() {
        let (found, lacks) = view.run(|| (rule.check)(view));
        ((found, gaps), lacks)
    } else {
        found_beside(rule, view, gaps)
    };
    // Rates need the time since boot, which the ticks of /proc/stat also show.
    if lacks.time {
        gaps.extend(facts.unknown.iter().filter(|gap| gap.source == UPTIME));
    }
    let of_speed = |gap: &&Unknown| {
        gap.concerns(SPEED) && gap.interface().is_some_and(|name| lacks.speeds.contains(name))
    };
    if !lacks.speeds.is_empty() && !rule.needs.contains(&SPEED) {
        gaps.extend(facts.unknown.iter().filter(of_speed));
    }
    (found, gaps)
}

/// Returns the findings of a rule on interfaces whose facts are complete, and the gaps that prevent a
/// verdict on the other interfaces. A gap in the facts of the whole host prevents any verdict, with
/// some exceptions:
///
/// - Sysctls: a counted loss is still a loss. Only the change of the missing sysctl is left out of the
///   fix.
/// - Affinity masks of interrupts: the counts of served interrupts show the processors.
/// - Sockets of UDP: the protocol's counters show the drops. Raw sockets: the other table shows the drops at
///   its own sockets.
/// - Ports: the listed sockets and TIME_WAIT show the minimum use.
/// - Power settings of a processor: the settings of the other processors show the cost.
/// - A missing table of neighbours or of connection tracking: the other tables and sysctls show full
///   tables.
/// - The counters of IPv6, all or some: those of IPv4 show losses.
/// - A single counter of a table: a finding counts only if every possible value of the counter leads to the
///   finding. The function checks 0 and the maximum.
fn found_beside<'f>(
    rule: &Rule,
    whole: &View<'f>,
    gaps: Vec<&'f Unknown>,
) -> ((Vec<Found>, Vec<&'f Unknown>), Lacks) {
    let facts = whole.facts;
    let hidden_sysctl = |path: &str| gaps.iter().any(|gap| gap.source == format!("{SYSCTLS}{path}"));
    let is_counter = |gap: &Unknown| {
        [NETSTAT, SNMP, SOCKSTAT, VMSTAT]
            .iter()
            .any(|table| gap.source.strip_prefix(table).is_some_and(|rest| rest.starts_with('/')))
    };
    let is_partial = |gap: &Unknown| {
        let is_datagram = [UDP, UDP6, RAW, RAW6].contains(&gap.source.as_str());
        let is_ports = gap.source == PORTS;
        let is_power = gap.concerns(FREQUENCY) || gap.concerns(IDLE_STATES);
        let is_mask = gap.source.starts_with(AFFINITY);
        let is_table = TABLES.iter().any(|(table, group)| {
            gap.source == *table && !facts.counters.keys().any(|name| name.starts_with(group))
        });
        is_table
            || gap.source.starts_with(SNMP6)
            || gap.source.starts_with(SYSCTLS)
            || is_mask
            || is_datagram
            || is_ports
            || is_power
            || is_counter(gap)
    };
    if gaps.iter().any(|gap| gap.interface().is_none() && !is_partial(gap)) {
        return ((Vec::new(), gaps), Lacks::default());
    }
    // These gaps do not hide the interface: rules handle NICs without a speed and drivers without rings
    // or channels, and other counters show the same losses.
    const LOSSES: [&str; 4] = ["_errors", "_dropped", "/multicast", "/collisions"];
    let is_absent = |gap: &&Unknown| {
        gap.source.ends_with("/speed") && gap.concerns(SPEED)
            || gap.source.contains("/ethtool/")
            || gap.concerns(STATISTICS) && LOSSES.iter().any(|name| gap.source.ends_with(name))
    };
    let hidden: BTreeSet<&str> =
        gaps.iter().filter(|gap| !is_absent(gap)).filter_map(|gap| gap.interface()).collect();
    let view = View::without(facts, hidden.clone()).beside(whole.alternatives);
    let (mut found, lacks) = view.run(|| (rule.check)(&view));
    found.retain(|found| !found.concerns().any(|subject| hidden.contains(subject)));
    let counters: Vec<&Unknown> = gaps.iter().copied().filter(|gap| is_counter(gap)).collect();
    if !counters.is_empty() {
        let mut most = facts.clone();
        let names = counters.iter().filter_map(|gap| gap.source.rsplit('/').next());
        most.counters.extend(names.map(|name| (name.to_owned(), u64::MAX / 2)));
        let with_most = (rule.check)(&View::without(&most, hidden.clone()));
        found.retain(|found| with_most.contains(found));
    }
    if gaps.iter().any(|gap| gap.source.starts_with(SYSCTLS)) {
        found.retain(|found| found.basis == Basis::Measured);
    }
    let sysctls: Vec<&Unknown> = gaps.iter().copied().filter(|gap| gap.source.starts_with(SYSCTLS)).collect();
    for found in &mut found {
        if !sysctls.is_empty() {
            let advice = found.remedy.advice.iter().cloned().chain([reasons(&sysctls)]);
            found.remedy.advice = Some(advice.collect::<Vec<_>>().join("; "));
        }
        let is_hidden = |knob: &Knob| matches!(knob, Knob::Sysctl(path) if hidden_sysctl(path));
        found.remedy.changes.retain(|change| !is_hidden(&change.knob));
    }
    let is_found = |gap: &&Unknown| match gap.interface() {
        Some(interface) => {
            is_absent(gap) && found.iter().any(|found| found.concerns().any(|subject| subject == interface))
        }
        // The loss is judged; only a figure of its fix is missing. A missing affinity mask may hide a
        // finding on another NIC, so its gap stays.
        None => gap.source.starts_with(SYSCTLS) && !found.is_empty(),
    };
    let gaps = gaps.into_iter().filter(|gap| !is_found(gap)).collect();
    ((found, gaps), lacks)
}

impl Found {
    /// Lowers the severity of a finding about a setting of an almost idle NIC: the setting costs nothing yet.
    fn on_load(mut self, view: &View<'_>) -> Self {
        let idle = view.nics().any(|nic| nic.name == self.subject && view.is_idle(nic));
        if self.basis == Basis::Setting && idle {
            self.severity = Severity::Low;
        }
        self
    }

    /// Returns the finding without changes that the host already has, and without read-only sysctls. Returns
    /// `None` if the whole fix is already made, unless the finding is measured or has advice.
    fn with_possible_changes(mut self, facts: &HostFacts) -> Option<Self> {
        let remedy = &mut self.remedy;
        if remedy.changes.is_empty() {
            return Some(self);
        }
        let interface = remedy.interface.as_deref();
        remedy.changes.retain(|change| !is_made(facts, interface, change));
        let is_whole_fix_made = remedy.changes.is_empty();
        let mut read_only = BTreeSet::new();
        remedy.changes.retain(|change| match &change.knob {
            Knob::Sysctl(path) if facts.read_only_sysctls.contains(path) => {
                read_only.insert(path.replace('/', "."));
                false
            }
            _ => true,
        });
        let reason = if !read_only.is_empty() {
            let is_of_network = read_only.iter().all(|name| name.starts_with("net."));
            let names: Vec<String> = read_only.into_iter().collect();
            let names = names.join(", ");
            Some(if is_of_network {
                format!("only the initial network namespace can set {names}: read-only here")
            } else {
                format!("the kernel lets no program set {names}: read-only here")
            })
        } else if is_whole_fix_made && remedy.advice.is_none() {
            if self.basis != Basis::Measured {
                return None;
            }
            Some("the settings of this fix have these values already".to_owned())
        } else {
            None
        };
        if reason.is_some() {
            let advice: Vec<String> = remedy.advice.iter().cloned().chain(reason).collect();
            remedy.advice = Some(advice.join("; "));
        }
        Some(self)
    }

    fn concerns(&self) -> impl Iterator<Item = &str> {
        self.subject.split(", ").chain(self.remedy.interface.as_deref())
    }
}

/// Returns the first few distinct reasons, and the number of further ones.
fn reasons(gaps: &[&Unknown]) -> String {
    const MOST: usize = 3;
    let reasons: BTreeSet<&str> = gaps.iter().map(|gap| gap.why.as_str()).collect();
    let shown: Vec<&str> = reasons.iter().take(MOST).copied().collect();
    let more = reasons.len() - shown.len();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    shown.join("; ") + &more
}

fn finding(rule: &Rule, found: Found) -> Finding {
    // A rule may be temporary, as in tests, so the finding keeps only the rule's texts.
    let Rule { name, source, .. } = *rule;
    let Found { basis, severity, subject, evidence, effect, remedy } = found;
    Finding { rule: name, severity, basis, subject, evidence, effect, remedy, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::rules::needs;
    use evenkeel_model::host::{Processor, ProcessorTime};

    const RULE: Rule = Rule {
        name: "mtu-odd",
        looks_at: "",
        fires_when: "",
        why: "",
        fix: "",
        source: "",
        needs: &[needs::MTU, SPEED, needs::SOFTNET],
        check: |view| {
            view.nics().map(|nic| Found::setting(Severity::High, &nic.name, "odd", "none")).collect()
        },
    };

    fn host(unknown: &[&str]) -> HostFacts {
        let nic = |name: &str| Interface {
            name: name.to_owned(),
            kind: InterfaceKind::Device,
            up: true,
            ..Interface::default()
        };
        HostFacts {
            interfaces: vec![nic("eth0"), nic("eth1")],
            unknown: unknown
                .iter()
                .map(|source| Unknown::new(*source, format!("{source} is missing")))
                .collect(),
            ..HostFacts::default()
        }
    }

    /// Returns the subjects of the findings, the number of rules that judged, the reasons of rules that
    /// did not judge, and the reasons of rules that judged in part.
    fn judged(unknown: &[&str]) -> (Vec<String>, usize, Vec<String>, Vec<String>) {
        let judgement = judge_with(&host(unknown), [&RULE]);
        let subjects = judgement.findings.iter().map(|finding| finding.subject.clone()).collect();
        let rules = [&judgement.not_judged, &judgement.partly_judged];
        let [not, partly] = rules.map(|rules| rules.iter().map(|rule| rule.why.clone()).collect());
        (subjects, judgement.judged, not, partly)
    }

    #[test]
    fn a_rule_without_its_facts_is_not_judged() {
        let both = vec!["eth0".to_owned(), "eth1".to_owned()];
        assert_eq!(judged(&[]), (both.clone(), 1, vec![], vec![]));
        assert_eq!(
            judged(&["/proc/net/netstat"]),
            (both.clone(), 1, vec![], vec![]),
            "it does not need that"
        );
        let softnet = "/proc/net/softnet_stat";
        assert_eq!(judged(&[softnet]), (vec![], 0, vec![format!("{softnet} is missing")], vec![]));
        let mtu = "/sys/class/net/eth0/mtu";
        assert_eq!(judged(&[mtu]), (vec!["eth1".to_owned()], 1, vec![], vec![format!("{mtu} is missing")]));
        assert_eq!(judged(&["/sys/class/net/eth0/speed"]), (both, 1, vec![], vec![]));
    }

    #[test]
    fn a_rule_that_needs_a_rate_is_not_judged_without_the_time_since_boot() {
        const RATE: Rule = Rule {
            needs: &[],
            check: |view| {
                let is_frequent = view.per_second(10_000).is_some_and(|rate| rate >= 1.0);
                is_frequent
                    .then(|| Found::measured(Severity::Low, "host", "often", "none"))
                    .into_iter()
                    .collect()
            },
            ..RULE
        };
        const WORDS: Rule = Rule {
            check: |view| vec![Found::measured(Severity::Low, "host", view.rate_words(10_000), "none")],
            ..RATE
        };
        let judged = |facts: &HostFacts, rule: &Rule| {
            let judgement = judge_with(facts, [rule]);
            (judgement.findings.len(), judgement.not_judged.len())
        };
        let mut facts = host(&[UPTIME]);
        assert_eq!((judged(&facts, &RATE), judged(&facts, &WORDS)), ((0, 1), (1, 0)));
        let time = ProcessorTime { total: 100_000, ..ProcessorTime::default() };
        facts.processors = vec![Processor { time: Some(time), ..Processor::default() }];
        assert_eq!(judged(&facts, &RATE), (1, 0), "the ticks show the time");
    }

    #[test]
    fn a_fix_has_no_change_that_is_made_or_impossible() {
        const WANTED: [(&str, u64); 2] = [("net/core/rmem_max", 5), ("net/core/wmem_max", 6)];
        const MEASURED: Rule = Rule {
            needs: &[],
            check: |_| {
                let found = Found::measured(Severity::High, "host", "lost", "none");
                vec![WANTED.iter().fold(found, |found, (path, value)| found.sysctl(path, value))]
            },
            ..RULE
        };
        const SET: Rule = Rule {
            check: |_| {
                let found = Found::setting(Severity::Low, "host", "small", "none");
                vec![WANTED.iter().fold(found, |found, (path, value)| found.sysctl(path, value))]
            },
            ..MEASURED
        };
        let fixes = |rule: &Rule, values: [&str; 2], read_only: &[&str]| {
            let sysctls =
                WANTED.iter().zip(values).map(|((path, _), now)| ((*path).to_owned(), now.to_owned()));
            let facts = HostFacts {
                sysctls: sysctls.collect(),
                read_only_sysctls: read_only.iter().map(|path| (*path).to_owned()).collect(),
                ..HostFacts::default()
            };
            let found = check_with(&facts, [rule]);
            found.first().map(|found| (found.remedy.changes.len(), found.remedy.advice.clone()))
        };
        assert_eq!(fixes(&MEASURED, ["1", "1"], &[]), Some((2, None)));
        assert_eq!(fixes(&MEASURED, ["5", "1"], &[]), Some((1, None)));
        let made = Some("the settings of this fix have these values already".to_owned());
        assert_eq!(fixes(&MEASURED, ["5", "6"], &[]), Some((0, made)));
        assert_eq!(fixes(&SET, ["5", "1"], &[]), Some((1, None)));
        assert_eq!(fixes(&SET, ["5", "6"], &[]), None, "nothing is wrong");
        let only = "only the initial network namespace can set net.core.wmem_max: read-only here";
        let only = Some(only.to_owned());
        assert_eq!(fixes(&MEASURED, ["1", "1"], &["net/core/wmem_max"]), Some((1, only.clone())));
        assert_eq!(fixes(&SET, ["5", "1"], &["net/core/wmem_max"]), Some((0, only)));
        assert_eq!(fixes(&SET, ["5", "6"], &["net/core/wmem_max"]), None);
    }

    #[test]
    fn a_finding_that_a_faster_link_would_make_graver_says_so() {
        const MEASURED: Rule = Rule {
            needs: &[SPEED],
            check: |view| {
                let severity =
                    |nic: &Interface| crate::rules::by_speed(nic, Severity::High, Severity::Medium);
                let found = |nic: &Interface| Found::measured(severity(nic), &nic.name, "odd", "none");
                view.nics().map(found).collect()
            },
            ..RULE
        };
        const SET: Rule = Rule {
            check: |view| {
                view.nics().map(|nic| Found::setting(Severity::Low, &nic.name, "odd", "")).collect()
            },
            ..MEASURED
        };
        for unread in [&[][..], &["/sys/class/net/eth0/speed"]] {
            let mut facts = host(unread);
            facts.interfaces[1].speed_bps = Some(1_000_000_000);
            let found = check_with(&facts, [&MEASURED]);
            let words =
                "odd; the link speed of eth0 is unknown: from 10 Gbit/s on, this finding would be high";
            assert_eq!((found[0].evidence.as_str(), found[0].severity), (words, Severity::Medium));
            assert_eq!(found[1].evidence, "odd");
            assert!(check_with(&facts, [&SET]).iter().all(|found| found.evidence == "odd"));
            facts.interfaces[0].speed_bps = Some(25_000_000_000);
            assert_eq!(check_with(&facts, [&MEASURED])[0].evidence, "odd");
        }
    }

    #[test]
    fn the_basis_caps_the_severity() {
        let severity = |basis| Found::on_basis(basis, Severity::High, "host", "", "").severity;
        assert_eq!(severity(Basis::Measured), Severity::High);
        assert_eq!(severity(Basis::Limit), Severity::High);
        assert_eq!(severity(Basis::Setting), Severity::Medium);
        assert_eq!(severity(Basis::Assumed), Severity::Low);
    }
}
