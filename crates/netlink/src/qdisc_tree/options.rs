//! Settings of qdiscs and classes in the kernel's format.
//!
//! Most kinds have an attribute per option, listed in [`evenkeel_model::qdisc::kinds`]. Older kinds have a
//! structure (`include/uapi/linux/pkt_sched.h`), which this module encodes.

use evenkeel_model::qdisc::kinds::{KnownOption, Place, Width, kind, option_named};
use evenkeel_model::qdisc::{Attribute, AttributeValue, Curve, Node, SettingValue};

use crate::tc::{TCA_HTB_CEIL64, TCA_HTB_INIT, TCA_HTB_PARMS, TCA_HTB_RATE64};
use crate::tc::{TCA_TBF_BURST, TCA_TBF_PARMS, TCA_TBF_RATE64, rate_specification, ticks, words};
use crate::tc_options::is_strictly_nested;
use crate::tc_state::{NESTED, push_attribute};

const TCA_TBF_PRATE64: u16 = 5;
const TCA_TBF_PBURST: u16 = 7;
const TCA_HFSC_RSC: u16 = 1;
const TCA_HFSC_FSC: u16 = 2;
const TCA_HFSC_USC: u16 = 3;
const TCA_ETS_NBANDS: u16 = 1;
const TCA_ETS_NSTRICT: u16 = 2;
const TCA_ETS_QUANTA: u16 = 3;
const TCA_ETS_QUANTA_BAND: u16 = 4;
const TCA_ETS_PRIOMAP: u16 = 5;
const TCA_ETS_PRIOMAP_BAND: u16 = 6;
/// Default `rate2quantum` of `tc`.
const HTB_R2Q: u32 = 10;
const NANOSECONDS_PER_MICROSECOND: u64 = 1000;

/// `TCA_OPTIONS`: type with flags, and payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) flags: u16,
    pub(super) payload: Vec<u8>,
}

/// Returns a qdisc's options, or `None` if no option is set and the kind requires no options.
pub(super) fn of_qdisc(node: &Node) -> Option<Options> {
    let values = Values { node, options: kind(&node.kind).map_or(&[], |kind| kind.options) };
    let payload = match node.kind.as_str() {
        "pfifo" => values.is_set("limit").then(|| words(&[values.count("limit")])),
        "bfifo" => values.is_set("limit").then(|| words(&[values.size("limit")])),
        "sfq" => values.any().then(|| sfq(&values)),
        "tbf" => Some(tbf(&values)),
        "htb" => Some(htb(&values)),
        // struct tc_hfsc_qopt
        "hfsc" => Some(values.class_minor("default").to_ne_bytes().to_vec()),
        "prio" => Some(prio(&values)),
        "ets" => Some(ets(&values)),
        _ => values.any().then(|| values.attributes()),
    };
    payload.map(|payload| Options { flags: nesting(&node.kind), payload })
}

/// Returns a class's options. The result includes empty options, because `drr` and `qfq` require the
/// attribute.
pub(super) fn of_class(node: &Node) -> Options {
    let values = Values { node, options: kind(&node.kind).map_or(&[], |kind| kind.class_options) };
    let payload = match node.kind.as_str() {
        "htb" => htb_class(&values),
        "hfsc" => hfsc_class(&values),
        _ => values.attributes(),
    };
    Options { flags: nesting(&node.kind), payload }
}

/// Returns the flag `NLA_F_NESTED` if the kind requires the flag. Unknown kinds are new, and new kinds
/// require the flag.
fn nesting(of: &str) -> u16 {
    if is_strictly_nested(of) || kind(of).is_none() { NESTED } else { 0 }
}

struct Values<'n> {
    node: &'n Node,
    options: &'static [KnownOption],
}

impl Values<'_> {
    fn any(&self) -> bool {
        !self.node.settings.is_empty()
    }

    fn is_set(&self, name: &str) -> bool {
        self.node.setting(name).is_some()
    }

    fn count(&self, name: &str) -> u32 {
        match self.node.setting(name) {
            Some(SettingValue::Count(count)) => u32::try_from(*count).unwrap_or(u32::MAX),
            _ => 0,
        }
    }

    fn size(&self, name: &str) -> u32 {
        match self.node.setting(name) {
            Some(SettingValue::Size(size)) => u32::try_from(size.bytes()).unwrap_or(u32::MAX),
            _ => 0,
        }
    }

    fn rate(&self, name: &str) -> u64 {
        match self.node.setting(name) {
            Some(SettingValue::Rate(rate)) => rate.bits_per_second(),
            _ => 0,
        }
    }

    fn seconds(&self, name: &str) -> u32 {
        match self.node.setting(name) {
            Some(SettingValue::Time(time)) => {
                u32::try_from(time.as_u64() / 1_000_000_000).unwrap_or(u32::MAX)
            }
            _ => 0,
        }
    }

    fn class_minor(&self, name: &str) -> u16 {
        match self.node.setting(name) {
            Some(SettingValue::Class(class)) => class.minor,
            _ => 0,
        }
    }

    fn list(&self, name: &str) -> &[u64] {
        match self.node.setting(name) {
            Some(SettingValue::List(list)) => list,
            _ => &[],
        }
    }

    fn curve(&self, name: &str) -> Option<Curve> {
        match self.node.setting(name) {
            Some(SettingValue::Curve(curve)) => Some(*curve),
            _ => None,
        }
    }

    /// Returns all options that have an attribute, in the order of the settings.
    fn attributes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for setting in &self.node.settings {
            if let SettingValue::Attribute(attribute) = &setting.value {
                push_own(&mut bytes, attribute);
                continue;
            }
            let Some(option) = option_named(self.options, &setting.name) else { continue };
            match option.place {
                Place::Attribute(number, width) => {
                    push_number(&mut bytes, number, width, number_of(&setting.value))
                }
                Place::Nanoseconds(number) => {
                    let time = match setting.value {
                        SettingValue::Time(time) => time.as_u64(),
                        _ => 0,
                    };
                    push_number(&mut bytes, number, Width::Word, time);
                }
                Place::Logarithm(number) => {
                    let logarithm = number_of(&setting.value).max(1).ilog2();
                    push_number(&mut bytes, number, Width::Word, u64::from(logarithm));
                }
                Place::Value(number, width, value) => {
                    push_number(&mut bytes, number, width, u64::from(value))
                }
                Place::Structure => {}
            }
        }
        bytes
    }
}

/// Returns a value as a count, bytes, bytes per second, or microseconds; 0 for other values.
fn number_of(value: &SettingValue) -> u64 {
    match value {
        SettingValue::Count(count) => *count,
        SettingValue::Size(size) => size.bytes(),
        SettingValue::Rate(rate) => rate.bits_per_second() / 8,
        SettingValue::Time(time) => time.as_u64() / NANOSECONDS_PER_MICROSECOND,
        _ => 0,
    }
}

fn push_number(bytes: &mut Vec<u8>, number: u16, width: Width, value: u64) {
    let word = u32::try_from(value).unwrap_or(u32::MAX);
    match width {
        Width::Byte => push_attribute(bytes, number, &[u8::try_from(value).unwrap_or(u8::MAX)]),
        Width::Word => push_attribute(bytes, number, &word.to_ne_bytes()),
        Width::Long => push_attribute(bytes, number, &value.to_ne_bytes()),
    }
}

fn push_own(bytes: &mut Vec<u8>, attribute: &Attribute) {
    let value = match &attribute.value {
        AttributeValue::Flag => Vec::new(),
        AttributeValue::U8(value) => vec![*value],
        AttributeValue::U16(value) => value.to_ne_bytes().to_vec(),
        AttributeValue::U32(value) => value.to_ne_bytes().to_vec(),
        AttributeValue::U64(value) => value.to_ne_bytes().to_vec(),
        AttributeValue::Text(text) => [text.as_bytes(), &[0]].concat(),
        AttributeValue::Bytes(bytes) => bytes.clone(),
    };
    push_attribute(bytes, attribute.number, &value);
}

/// Encodes `struct tc_sfq_qopt_v1`: quantum, perturb_period, limit, divisor, flows; depth, headdrop. The
/// other fields are for RED and counters. 0 selects the kernel's default.
fn sfq(values: &Values<'_>) -> Vec<u8> {
    const OF_RED: usize = 44;
    let mut bytes = words(&[
        values.size("quantum"),
        values.seconds("perturb"),
        values.count("limit"),
        values.count("divisor"),
        values.count("flows"),
        values.count("depth"),
        u32::from(values.is_set("headdrop")),
    ]);
    bytes.resize(bytes.len() + OF_RED, 0);
    bytes
}

/// Encodes `struct tc_tbf_qopt`: rate, peakrate, limit, buffer, mtu. The bucket sizes are also sent in bytes,
/// which the kernel uses without rounding.
fn tbf(values: &Values<'_>) -> Vec<u8> {
    let (rate, peak) = (values.rate("rate"), values.rate("peakrate"));
    let (burst, mtu) = (values.size("burst"), values.size("mtu"));
    let mut parameters = rate_specification(rate);
    parameters.extend(if peak > 0 { rate_specification(peak) } else { vec![0; 12] });
    let of_peak = if peak > 0 { ticks(mtu, peak) } else { 0 };
    parameters.extend(words(&[values.size("limit"), ticks(burst, rate), of_peak]));
    let mut bytes = Vec::new();
    push_attribute(&mut bytes, TCA_TBF_PARMS, &parameters);
    push_attribute(&mut bytes, TCA_TBF_BURST, &words(&[burst]));
    push_long_rate(&mut bytes, TCA_TBF_RATE64, rate);
    if peak > 0 {
        push_long_rate(&mut bytes, TCA_TBF_PRATE64, peak);
        push_attribute(&mut bytes, TCA_TBF_PBURST, &words(&[mtu]));
    }
    bytes
}

/// Adds a rate as an attribute if it is too large for the 32 bits of `struct tc_ratespec`.
fn push_long_rate(bytes: &mut Vec<u8>, number: u16, rate: u64) {
    if rate / 8 > u64::from(u32::MAX) {
        push_attribute(bytes, number, &(rate / 8).to_ne_bytes());
    }
}

/// Encodes `struct tc_htb_glob`: version, rate2quantum, defcls, debug, direct_pkts.
fn htb(values: &Values<'_>) -> Vec<u8> {
    let quantum = if values.is_set("r2q") { values.count("r2q") } else { HTB_R2Q };
    let global = words(&[3, quantum, u32::from(values.class_minor("default")), 0, 0]);
    let mut bytes = Vec::new();
    push_attribute(&mut bytes, TCA_HTB_INIT, &global);
    bytes.extend(values.attributes());
    bytes
}

/// Encodes `struct tc_htb_opt`: rate, ceil, buffer, cbuffer, quantum, level, prio.
fn htb_class(values: &Values<'_>) -> Vec<u8> {
    let (rate, ceil) = (values.rate("rate"), values.rate("ceil"));
    let mut parameters = rate_specification(rate);
    parameters.extend(rate_specification(ceil));
    parameters.extend(words(&[
        ticks(values.size("burst"), rate),
        ticks(values.size("cburst"), ceil),
        values.size("quantum"),
        0,
        values.count("prio"),
    ]));
    let mut bytes = Vec::new();
    push_long_rate(&mut bytes, TCA_HTB_RATE64, rate);
    push_long_rate(&mut bytes, TCA_HTB_CEIL64, ceil);
    push_attribute(&mut bytes, TCA_HTB_PARMS, &parameters);
    bytes
}

/// Encodes `struct tc_service_curve`: m1, d, m2.
fn hfsc_class(values: &Values<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, number) in [("rt", TCA_HFSC_RSC), ("ls", TCA_HFSC_FSC), ("ul", TCA_HFSC_USC)] {
        let Some(curve) = values.curve(name) else { continue };
        let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let slope = |rate: u64| word(rate / 8);
        let value = words(&[
            slope(curve.m1.bits_per_second()),
            word(curve.first.as_u64() / NANOSECONDS_PER_MICROSECOND),
            slope(curve.m2.bits_per_second()),
        ]);
        push_attribute(&mut bytes, number, &value);
    }
    bytes
}

/// Encodes `struct tc_prio_qopt`: bands, priomap. Priorities missing in the map use band 0.
fn prio(values: &Values<'_>) -> Vec<u8> {
    const PRIORITIES: usize = 16;
    let mut bytes = words(&[values.count("bands")]);
    let mut map: Vec<u8> =
        values.list("priomap").iter().map(|band| u8::try_from(*band).unwrap_or(u8::MAX)).collect();
    map.resize(PRIORITIES, 0);
    bytes.extend(map);
    bytes
}

fn ets(values: &Values<'_>) -> Vec<u8> {
    let byte = |number: u64| [u8::try_from(number).unwrap_or(u8::MAX)];
    let mut bytes = Vec::new();
    push_attribute(&mut bytes, TCA_ETS_NBANDS, &byte(u64::from(values.count("bands"))));
    if values.is_set("strict") {
        push_attribute(&mut bytes, TCA_ETS_NSTRICT, &byte(u64::from(values.count("strict"))));
    }
    let mut push_list = |name: &str, number: u16, push: &dyn Fn(&mut Vec<u8>, u64)| {
        if values.is_set(name) {
            let mut list = Vec::new();
            values.list(name).iter().for_each(|value| push(&mut list, *value));
            push_attribute(&mut bytes, number | NESTED, &list);
        }
    };
    push_list("quanta", TCA_ETS_QUANTA, &|list, quantum| {
        push_number(list, TCA_ETS_QUANTA_BAND, Width::Word, quantum);
    });
    push_list("priomap", TCA_ETS_PRIOMAP, &|list, band| {
        push_attribute(list, TCA_ETS_PRIOMAP_BAND, &byte(band));
    });
    bytes
}
