//! Checks whether this kernel can run a point, and finds a rate at which the shaped line is the bottleneck.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_model::qdisc::kinds::hint;
use evenkeel_model::qdisc::{Catalogue, Classifier, Filter, Step};
use evenkeel_model::scenario::{BulkTenants, Scenario, TenantPoint, Tenants};
use evenkeel_model::units::{BitRate, Nanoseconds};
use evenkeel_model::world::{Assessment, Job, Observer, RawRepeat};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::qdisc_tree::{missing_classifiers, missing_kinds};

use super::repeat::{self, InFront};
use super::sources::each_bulk;
use crate::capacity;
use crate::error::TestbedError;
use crate::kernel::KernelFeatures;
use crate::namespace::Namespace;
use crate::traffic::iperf3;

/// Results of probing this kernel for features. Each feature is probed once.
#[derive(Debug, Default)]
pub(crate) struct Suitability {
    qdiscs: RefCell<BTreeMap<String, bool>>,
    classifiers: RefCell<Option<BTreeSet<Classifier>>>,
}

impl Suitability {
    /// Returns the test bed's settings for a point, or the reason why this kernel or iperf3 cannot run it.
    pub(crate) fn assess(
        &self,
        scenario: &Scenario,
        tenants: &Tenants,
        point: &TenantPoint,
    ) -> Result<Assessment, String> {
        let in_front = in_front(point, scenario, tenants, scenario.link.rate)?;
        let mut lacking = BTreeSet::new();
        for kind in in_front.tree.qdiscs().map(|node| node.kind.as_str()).collect::<BTreeSet<_>>() {
            if self.lacks(kind).map_err(|error| error.to_string())? {
                lacking.insert(format!("the qdisc {kind}{}", hint(kind)));
            }
        }
        let classifiers = in_front.tree.steps.iter().filter_map(classifier_of);
        let of_rules = in_front.rules.map(|(_, rules)| rules.classifier);
        for classifier in classifiers.chain(of_rules).collect::<BTreeSet<_>>() {
            if self.lacks_classifier(classifier).map_err(|error| error.to_string())? {
                lacking.insert(format!("the classifier {}", name_of(classifier)));
            }
        }
        if !lacking.is_empty() {
            let lacking: Vec<String> = lacking.into_iter().collect();
            return Err(format!(
                "this kernel lacks {}; use a kernel that has it, such as the one of the virtual machine (./dev vm)",
                lacking.join(" and ")
            ));
        }
        if let Some(tenants) = each_bulk(point).find(|tenants| {
            tenants.on_off.is_none() && tenants.length.bytes() > u64::from(iperf3::MAX_LENGTH)
        }) {
            return Err(format!("iperf3 cannot write {} at a time; use at most 1MiB", tenants.length));
        }
        Ok(Assessment { settings: point.settings(scenario, &in_front.tree), notes: Vec::new() })
    }

    fn lacks(&self, kind: &str) -> Result<bool, TestbedError> {
        if let Some(known) = self.qdiscs.borrow().get(kind) {
            return Ok(*known);
        }
        let lacks = on_scratch(|netlink, index| Ok(!missing_kinds(netlink, index, [kind])?.is_empty()))?;
        self.qdiscs.borrow_mut().insert(kind.to_owned(), lacks);
        Ok(lacks)
    }

    fn lacks_classifier(&self, classifier: Classifier) -> Result<bool, TestbedError> {
        if let Some(missing) = self.classifiers.borrow().as_ref() {
            return Ok(missing.contains(&classifier));
        }
        let missing = on_scratch(|netlink, index| Ok(missing_classifiers(netlink, index)?))?;
        let lacks = missing.contains(&classifier);
        *self.classifiers.borrow_mut() = Some(missing);
        Ok(lacks)
    }
}

/// Runs `work` on the loopback interface of a temporary namespace.
fn on_scratch<T>(work: impl FnOnce(&mut Netlink, u32) -> Result<T, TestbedError>) -> Result<T, TestbedError> {
    let namespace = Namespace::new()?;
    let mut netlink = namespace.netlink()?;
    let loopback = netlink.link_index("lo")?;
    work(&mut netlink, loopback)
}

/// Returns the classifier of a step that adds a filter; `None` for other steps.
fn classifier_of(step: &Step) -> Option<Classifier> {
    match step {
        Step::Filter { filter: Filter::Port { classifier, .. }, .. } => Some(*classifier),
        Step::Filter { .. } => Some(Classifier::Bpf),
        Step::Qdisc(_) | Step::Class(_) => None,
    }
}

fn name_of(classifier: Classifier) -> &'static str {
    match classifier {
        Classifier::U32 => "u32",
        Classifier::Flower => "flower",
        Classifier::Bpf => "bpf",
    }
}

/// Returns the qdisc tree and the idle filter rules of a point.
pub(crate) fn in_front(
    point: &TenantPoint,
    scenario: &Scenario,
    tenants: &Tenants,
    rate: BitRate,
) -> Result<InFront, String> {
    let tree = point.tree(&scenario.link, rate)?;
    let studied = tree.studied_root().map(|node| node.handle);
    Ok(InFront {
        rules: point.filter_rules.and_then(|rules| Some((studied?, rules))),
        tree: if tenants.line { tree.on_line(rate) } else { tree },
        line: tenants.line,
    })
}

/// Rates of a line for `auto`. An emulated machine has the capacity for the lowest rate.
const LINES_BPS: [u64; 10] = [
    100_000_000_000,
    40_000_000_000,
    25_000_000_000,
    10_000_000_000,
    5_000_000_000,
    2_000_000_000,
    1_000_000_000,
    500_000_000,
    200_000_000,
    100_000_000,
];
/// Headroom for `auto`: the CPUs' capacity divided by the line rate.
const LINE_HEADROOM: f64 = 2.0;
const WARMUP: Nanoseconds = Nanoseconds::from_millis(200);
const DURATION: Nanoseconds = Nanoseconds::from_millis(800);
const BIN: Nanoseconds = Nanoseconds::from_millis(100);
/// Number of flows of the capacity measurement, rounded up for each group of bulk clients. More flows would
/// take longer to start.
const TRIAL_FLOWS: u32 = 8;

/// Returns the rate of a scenario.
///
/// - Without a line, or without bulk flows, this is the requested rate, by default the nominal rate. Shares
///   refer to this rate.
/// - With a line, the rate leaves headroom for the CPUs. A trial measures the CPUs' capacity with the
///   point with the shortest writes, behind a line with one FIFO at the requested or nominal rate.
///   Returns an error if the capacity is too low for the requested rate or for every rate of `LINES_BPS`.
pub(crate) fn settle(
    scenario: &Scenario,
    tenants: &Tenants,
    wanted: Option<BitRate>,
    features: KernelFeatures,
    observer: &dyn Observer,
) -> Result<BitRate, TestbedError> {
    let nominal = scenario.link.rate;
    let hardest = scenario
        .variants
        .iter()
        .chain(&scenario.further_variants)
        .filter_map(|variant| Some((variant, variant.tenants()?)))
        .filter(|(_, point)| point.bulk_flows() > 0)
        .min_by_key(|(_, point)| (mean_length(point), std::cmp::Reverse(point.bulk_flows())));
    let Some((variant, point)) = hardest.filter(|_| tenants.line) else {
        return Ok(wanted.unwrap_or(nominal));
    };
    observer.progress(0.0, "finding the throughput limit of the processors");
    let rate = wanted.unwrap_or(nominal);
    let point = trial_of(point);
    let fifo = Catalogue::bundled().get("pfifo").unwrap_or_else(|| point.qdisc.clone());
    let tree = fifo.resolve(&point.surroundings(&scenario.link, rate));
    let tree = tree.map_err(|error| TestbedError::Qdisc(error.to_string()))?.on_line(rate);
    let in_front = InFront { tree, rules: None, line: true };
    let job =
        Job { scenario, variant, repeat: 0, seed: 0, rate, warmup: WARMUP, duration: DURATION, bin: BIN };
    let raw = repeat::run(&job, &point, &in_front, features, observer)?;
    let capacity_bps = capacity_of(&raw);
    let rate = capacity::settle(&LINES_BPS, LINE_HEADROOM, capacity_bps, nominal, wanted)?;
    observer.remark(&format!(
        "the processors would carry {:.1} Gbit/s of these flows; line rate {rate}",
        capacity_bps / 1e9
    ));
    Ok(rate)
}

/// Returns the CPUs' capacity for a trial's flows: the throughput divided by the busy share.
fn capacity_of(raw: &RawRepeat) -> f64 {
    let bytes: u64 = raw.flows.iter().map(|flow| flow.payload_bytes).sum();
    let carried_bps = bytes as f64 * 8.0 / Duration::from(DURATION).as_secs_f64();
    let processors = raw.tenants.as_ref().map_or(0, |tenants| tenants.processors.len()) as f64;
    let disturbance = raw.tenants.as_ref().and_then(|tenants| tenants.disturbance).unwrap_or(0.0);
    // Subtract the CPU use of other programs, which may not need the CPUs in the next second.
    let busy = raw.busy_cores.map_or(processors, |busy| (busy - disturbance).max(0.05 * processors));
    carried_bps * (processors / busy.max(f64::MIN_POSITIVE)).max(1.0)
}

fn mean_length(point: &TenantPoint) -> u64 {
    let sum: u64 = each_bulk(point).map(|tenants| tenants.length.bytes()).sum();
    sum / u64::from(point.bulk_flows()).max(1)
}

/// Returns the point with few flows that always send, without probes and without filter rules.
fn trial_of(point: &TenantPoint) -> TenantPoint {
    let flows = point.bulk_flows().max(1);
    let few = |tenants: &BulkTenants| BulkTenants {
        count: (tenants.count * TRIAL_FLOWS.min(flows)).div_ceil(flows),
        on_off: None,
        ..*tenants
    };
    TenantPoint {
        bulk: point.bulk.iter().map(few).collect(),
        probes: None,
        filter_rules: None,
        ..point.clone()
    }
}
