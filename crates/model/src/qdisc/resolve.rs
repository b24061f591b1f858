//! Resolves the steps of a setup for one device.
//!
//! `tc` fills in some defaults before it calls the kernel. This module fills in the same defaults, so
//! that the kernel and the simulator use the same values:
//! - bursts and ceiling of an HTB class
//! - the limit for a latency of TBF
//! - bands and map of `prio`
//! - bands of `ets`

use std::collections::BTreeSet;

use crate::change::Handle;
use crate::units::{BitRate, ByteSize, Nanoseconds};

use super::kinds::{Place, Width, kind, option_named};
use super::template::{
    Counter, CurveTerm, FilterTemplate, HandleTemplate, NodeTemplate, PortTerm, SettingTemplate,
    StepTemplate, Term,
};
use super::values::{Wrong, wrong};
use super::{
    BULK_PORT, Curve, Filter, Node, PROBE_PORT, QdiscTree, Setting, SettingValue, Step, Surroundings,
    structure,
};

/// Maximum number of steps in a tree. It limits the work for a file, because steps repeat by queue or
/// flow.
const MOST_STEPS: usize = 20_000;
/// First major number for automatic handles. A file is unlikely to contain it.
const FREE_MAJOR: u16 = 0x7000;
/// Largest packet that `tc` assumes if no burst is given, bytes (`tc/q_htb.c`).
const TC_MTU: u64 = 1600;
/// The highest rate that fits 32 bits of bytes per second. If the kernel stores only 32 bits, this rate
/// replaces shares of a faster link.
const MOST_32_BITS: BitRate = BitRate::from_bits_per_second(u32::MAX as u64 * 8);
/// `tc`'s map of `prio` (`tc/q_prio.c`, `prio2band` of `net/sched/sch_generic.c`).
const PRIOMAP: [u64; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// An invalid step, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misfit {
    pub(super) step: usize,
    pub(super) wrong: Wrong,
}

/// Returns the tree for a device, after checking its handles and classes.
pub(super) fn resolve(templates: &[StepTemplate], on: &Surroundings) -> Result<QdiscTree, Misfit> {
    let mut steps: Vec<Step> = Vec::new();
    // Index of the template of each step.
    let mut origins: Vec<usize> = Vec::new();
    let mut free = free_majors(templates, on);
    for (at, template) in templates.iter().enumerate() {
        let misfit = |wrong| Misfit { step: at, wrong };
        let times = match template.counter() {
            None => 1,
            Some(Counter::Flow) => on.flows(),
            Some(Counter::Queue) => on.queues,
        };
        if steps.len().saturating_add(times as usize) > MOST_STEPS {
            let problem = format!("the setup has more than {MOST_STEPS} steps");
            return Err(misfit(wrong(problem, "use fewer flows or fewer steps")));
        }
        for nth in 1..=times {
            let step = step(template, nth, on, &mut free).map_err(misfit)?;
            steps.push(step);
            origins.push(at);
        }
    }
    let implied = implied_leaves(&steps, on, &mut free);
    origins.resize(origins.len() + implied.len(), templates.len().saturating_sub(1));
    steps.extend(implied);
    structure::check(&steps, on)
        .map_err(|(step, wrong)| Misfit { step: origins.get(step).copied().unwrap_or_default(), wrong })?;
    Ok(QdiscTree { steps })
}

/// Returns the major numbers for automatic handles, without the numbers that the templates use.
fn free_majors(templates: &[StepTemplate], on: &Surroundings) -> impl Iterator<Item = u16> + use<> {
    let mut taken = BTreeSet::new();
    for template in templates {
        if let StepTemplate::Qdisc(NodeTemplate { handle: Some(handle), .. }) = template {
            let times = match handle.major.counter {
                None => 1,
                Some(Counter::Flow) => on.flows(),
                Some(Counter::Queue) => on.queues,
            };
            taken.extend(
                (1..=times.min(u32::from(u16::MAX)))
                    .filter_map(|nth| handle.at(nth))
                    .map(|handle| handle.major),
            );
        }
    }
    // The kernel allocates numbers above 0x8000 (`qdisc_alloc_handle`).
    (FREE_MAJOR..0x8000).filter(move |major| !taken.contains(major))
}

/// Returns `pfifo_fast` leaves, the kernel's default without a sysctl, for the queues of an `mq` root without
/// a step.
fn implied_leaves(steps: &[Step], on: &Surroundings, free: &mut impl Iterator<Item = u16>) -> Vec<Step> {
    let nodes = || {
        steps.iter().filter_map(|step| match step {
            Step::Qdisc(node) => Some(node),
            Step::Class(_) | Step::Filter { .. } => None,
        })
    };
    let Some(root) = nodes().find(|node| node.parent == Handle::ROOT && node.kind == "mq") else {
        return Vec::new();
    };
    let queues = 1..=u16::try_from(on.queues).unwrap_or(u16::MAX);
    queues
        .map(|queue| Handle::new(root.handle.major, queue))
        .filter(|place| !nodes().any(|node| node.parent == *place))
        .zip(free)
        .map(|(parent, major)| {
            let handle = Handle::new(major, 0);
            Step::Qdisc(Node { parent, handle, kind: "pfifo_fast".to_owned(), settings: Vec::new() })
        })
        .collect()
}

fn step(
    template: &StepTemplate,
    nth: u32,
    on: &Surroundings,
    free: &mut impl Iterator<Item = u16>,
) -> Result<Step, Wrong> {
    let handle = |template: HandleTemplate| at(template, nth);
    match template {
        StepTemplate::Qdisc(node) => {
            let parent = node.parent.map_or(Ok(Handle::ROOT), handle)?;
            let handle = match node.handle {
                Some(template) => at(template, nth)?,
                None => Handle::new(
                    free.next()
                        .ok_or_else(|| wrong("all handles are in use", "write a handle for each qdisc"))?,
                    0,
                ),
            };
            let settings = with_defaults(&node.kind, settings(node, handle, on)?, Defaults::OfQdisc);
            Ok(Step::Qdisc(Node { parent, handle, kind: node.kind.clone(), settings }))
        }
        StepTemplate::Class(node) => {
            let parent = node.parent.map_or(Ok(Handle::ROOT), handle)?;
            let handle = node.handle.map_or(Ok(Handle::new(0, 0)), handle)?;
            let settings = with_defaults(&node.kind, settings(node, handle, on)?, Defaults::OfClass);
            Ok(Step::Class(Node { parent, handle, kind: node.kind.clone(), settings }))
        }
        StepTemplate::Filter { parent, filter } => {
            Ok(Step::Filter { parent: handle(*parent)?, filter: resolve_filter(*filter, nth, on)? })
        }
    }
}

fn at(template: HandleTemplate, nth: u32) -> Result<Handle, Wrong> {
    template.at(nth).ok_or_else(|| {
        wrong(
            format!(
                "number {nth} of {} is above ffff, the highest number",
                super::values::show_handle(template)
            ),
            "begin at a lower number, or use fewer flows",
        )
    })
}

fn resolve_filter(filter: FilterTemplate, nth: u32, on: &Surroundings) -> Result<Filter, Wrong> {
    Ok(match filter {
        FilterTemplate::PerFlow { class, modulo, rest } => {
            let flows = on.flows().max(1);
            let classes = modulo.unwrap_or(flows).min(flows);
            // The last class must also have a valid number.
            at(class, classes)?;
            Filter::PerFlow {
                first: at(class, 1)?,
                bulk_flows: on.bulk_flows,
                probes: on.probes,
                classes,
                rest: rest.map(|rest| at(rest, nth)).transpose()?,
            }
        }
        FilterTemplate::ByRole { probes, bulk } => {
            Filter::ByRole { probes: at(probes, nth)?, bulk: at(bulk, nth)? }
        }
        FilterTemplate::Port { classifier, port, class } => {
            let port = match port {
                PortTerm::Fixed(port) => port,
                PortTerm::OfFlow => port_of_flow(nth - 1, on)
                    .ok_or_else(|| wrong("there are more flows than ports", "use fewer flows"))?,
            };
            Filter::Port { classifier, port, class: at(class, nth)? }
        }
    })
}

/// Returns the destination port of a flow, numbered from 0. Bulk flows come first. Returns `None` if the port
/// would exceed 16 bits.
fn port_of_flow(flow: u32, on: &Surroundings) -> Option<u16> {
    let (first, number) = match flow.checked_sub(on.bulk_flows) {
        None => (BULK_PORT, flow),
        Some(probe) => (PROBE_PORT, probe),
    };
    first.checked_add(u16::try_from(number).ok()?)
}

fn settings(node: &NodeTemplate, handle: Handle, on: &Surroundings) -> Result<Vec<Setting>, Wrong> {
    let mut settings = Vec::new();
    for SettingTemplate { name, value } in &node.settings {
        let value = match value {
            Term::Count(count) => SettingValue::Count(*count),
            Term::Rate(rate) => {
                let rate = rate.on(on);
                SettingValue::Rate(if keeps_32_bits(&node.kind, name) {
                    rate.min(MOST_32_BITS)
                } else {
                    rate
                })
            }
            Term::Size(size) => SettingValue::Size(fitting(name, size.on(on))?),
            Term::Time(time) => SettingValue::Time(*time),
            Term::Seconds(seconds) => SettingValue::Time(Nanoseconds::from_secs(u64::from(*seconds))),
            Term::Minor(minor) => SettingValue::Class(Handle::new(handle.major, *minor)),
            Term::Bands(bands) => SettingValue::List(bands.iter().copied().map(u64::from).collect()),
            Term::Sizes(sizes) => {
                let sizes: Result<Vec<u64>, Wrong> =
                    sizes.iter().map(|size| fitting(name, size.on(on)).map(ByteSize::bytes)).collect();
                SettingValue::List(sizes?)
            }
            Term::Curve(curve) => {
                let curve = resolve_curve(*curve, on);
                let (m1, m2) = (curve.m1.min(MOST_32_BITS), curve.m2.min(MOST_32_BITS));
                let curve = SettingValue::Curve(Curve { m1, m2, ..curve });
                if name == "sc" {
                    // For `sc`, `tc` sets both curves.
                    settings.push(Setting { name: "rt".to_owned(), value: curve.clone() });
                    settings.push(Setting { name: "ls".to_owned(), value: curve });
                    continue;
                }
                curve
            }
            Term::Flag => SettingValue::Flag,
            Term::Attribute(attribute) => SettingValue::Attribute(attribute.clone()),
        };
        settings.push(Setting { name: name.clone(), value });
    }
    Ok(settings)
}

fn fitting(name: &str, size: ByteSize) -> Result<ByteSize, Wrong> {
    if size.bytes() <= u64::from(u32::MAX) {
        return Ok(size);
    }
    Err(wrong(
        format!("{name} is {size} in this setup, but the kernel stores it in 32 bits"),
        "write a smaller value",
    ))
}

/// Returns whether the kernel stores a rate in 32 bits of bytes per second.
fn keeps_32_bits(of: &str, name: &str) -> bool {
    let option = kind(of).and_then(|kind| option_named(kind.options, name));
    option.is_some_and(|option| matches!(option.place, Place::Attribute(_, Width::Word)))
}

/// Computes the curve like `tc` (`hfsc_get_sc2`, `tc/q_hfsc.c`).
fn resolve_curve(curve: CurveTerm, on: &Surroundings) -> Curve {
    const BITS: u128 = 8;
    const SECOND: u128 = 1_000_000_000;
    match curve {
        CurveTerm::Straight(rate) => Curve { m2: rate.on(on), ..Curve::default() },
        CurveTerm::Bent { m1, first, m2 } => Curve { m1: exact(m1, on), first, m2: m2.on(on) },
        CurveTerm::Delay { umax, dmax, rate } => {
            let rate = rate.on(on);
            let bits = u128::from(umax.on(on).bytes()) * BITS;
            let needed = (bits * SECOND).div_ceil(u128::from(dmax.as_u64()).max(1));
            if needed > u128::from(rate.bits_per_second()) {
                let m1 = BitRate::from_bits_per_second(u64::try_from(needed).unwrap_or(u64::MAX));
                return Curve { m1, first: dmax, m2: rate };
            }
            let passed = (bits * SECOND).div_ceil(u128::from(rate.bits_per_second()).max(1));
            let silent = u128::from(dmax.as_u64()).saturating_sub(passed);
            // The kernel stores this time in microseconds.
            let microseconds = u64::try_from(silent / 1000).unwrap_or(u64::MAX);
            Curve { m1: BitRate::default(), first: Nanoseconds::from_micros(microseconds), m2: rate }
        }
    }
}

fn exact(rate: super::template::RateTerm, on: &Surroundings) -> BitRate {
    match rate {
        super::template::RateTerm::Fixed(rate) => rate,
        share @ super::template::RateTerm::Share(..) => share.on(on),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Defaults {
    OfQdisc,
    OfClass,
}

/// Adds `tc`'s defaults, in `tc`'s order.
fn with_defaults(kind: &str, mut settings: Vec<Setting>, of: Defaults) -> Vec<Setting> {
    let value = |settings: &[Setting], name: &str| {
        settings.iter().find(|setting| setting.name == name).map(|setting| setting.value.clone())
    };
    let add = |settings: &mut Vec<Setting>, name: &str, default: SettingValue| {
        if value(settings, name).is_none() {
            settings.push(Setting { name: name.to_owned(), value: default });
        }
    };
    match (kind, of) {
        ("htb", Defaults::OfClass) => {
            if let Some(SettingValue::Rate(rate)) = value(&settings, "rate") {
                add(&mut settings, "ceil", SettingValue::Rate(rate));
                add(&mut settings, "burst", SettingValue::Size(default_burst(rate)));
            }
            if let Some(SettingValue::Rate(ceil)) = value(&settings, "ceil") {
                add(&mut settings, "cburst", SettingValue::Size(default_burst(ceil)));
            }
        }
        ("tbf", Defaults::OfQdisc) => {
            let parts = (value(&settings, "rate"), value(&settings, "burst"), value(&settings, "latency"));
            if let (
                Some(SettingValue::Rate(rate)),
                Some(SettingValue::Size(burst)),
                Some(SettingValue::Time(latency)),
            ) = parts
            {
                let within = |rate: BitRate, bucket: ByteSize| {
                    rate.bytes_in(latency).bytes().saturating_add(bucket.bytes())
                };
                let of_peak = match (value(&settings, "peakrate"), value(&settings, "mtu")) {
                    (Some(SettingValue::Rate(peak)), Some(SettingValue::Size(mtu))) => within(peak, mtu),
                    _ => u64::MAX,
                };
                let limit = within(rate, burst).min(of_peak);
                let limit = ByteSize::from_bytes(limit.min(u64::from(u32::MAX)));
                settings.retain(|setting| setting.name != "latency");
                add(&mut settings, "limit", SettingValue::Size(limit));
            }
        }
        ("prio", Defaults::OfQdisc) => {
            add(&mut settings, "bands", SettingValue::Count(3));
            add(&mut settings, "priomap", SettingValue::List(PRIOMAP.to_vec()));
        }
        ("ets", Defaults::OfQdisc) => {
            let strict = match value(&settings, "strict") {
                Some(SettingValue::Count(strict)) => strict,
                _ => 0,
            };
            let quanta = match value(&settings, "quanta") {
                Some(SettingValue::List(quanta)) => quanta.len() as u64,
                _ => 0,
            };
            add(&mut settings, "bands", SettingValue::Count(strict + quanta));
        }
        _ => {}
    }
    settings
}

/// Returns `tc`'s default burst: the bytes sent in a nanosecond, plus a packet.
fn default_burst(rate: BitRate) -> ByteSize {
    ByteSize::from_bytes(rate.bits_per_second() / 8 / 1_000_000_000 + TC_MTU)
}
