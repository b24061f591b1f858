//! Options of qdiscs: converts the kernel's attributes to the names that `tc -j qdisc show` prints, and
//! detects the kernel's defaults.

use std::collections::BTreeMap;

use evenkeel_netlink::tc_overview::QdiscOverview;
use serde_json::Value;

const WITHOUT_OPTIONS: [&str; 3] = ["mq", "noqueue", "pfifo_fast"];

/// Attributes of fq and fq_codel with a single number, and the value that tc omits
/// (`include/uapi/linux/pkt_sched.h`; tc/q_fq.c and tc/q_fq_codel.c of iproute2).
const NUMBERS: [(&str, u16, &str, Option<u32>); 23] = [
    ("fq", 1, "limit", None),
    ("fq", 2, "flow_limit", None),
    ("fq", 3, "quantum", None),
    ("fq", 4, "initial_quantum", None),
    ("fq", 5, "pacing", Some(1)),
    ("fq", 6, "defrate", Some(0)),
    ("fq", 7, "maxrate", Some(u32::MAX)),
    ("fq", 9, "refill_delay", None),
    ("fq", 10, "orphan_mask", None),
    ("fq", 11, "low_rate_threshold", None),
    ("fq", 12, "ce_threshold", Some(u32::MAX)),
    ("fq", 13, "timer_slack", None),
    ("fq", 14, "horizon", None),
    ("fq", 18, "offload_horizon", Some(0)),
    ("fq_codel", 1, "target", None),
    ("fq_codel", 2, "limit", None),
    ("fq_codel", 3, "interval", None),
    ("fq_codel", 5, "flows", None),
    ("fq_codel", 6, "quantum", None),
    ("fq_codel", 7, "ce_threshold", Some(u32::MAX)),
    ("fq_codel", 8, "drop_batch", None),
    ("fq_codel", 9, "memory_limit", None),
    ("fq_codel", 10, "ce_threshold_selector", Some(0)),
];

/// Returns the options of a qdisc by tc's names. An attribute of fq or fq_codel that is not decoded has the
/// name `attribute_` with its number. Other kinds have only the rate, the limit, and the mark `not_decoded`
/// if they have other options.
pub(super) fn shown(qdisc: &QdiscOverview) -> BTreeMap<String, Value> {
    let mut options = BTreeMap::new();
    options.extend(qdisc.rate.map(|rate| ("rate".to_owned(), Value::from(rate))));
    options.extend(qdisc.limit_packets.map(|limit| ("limit".to_owned(), Value::from(limit))));
    let kind = qdisc.kind.as_str();
    if WITHOUT_OPTIONS.contains(&kind) {
        return options;
    }
    if !matches!(kind, "fq" | "fq_codel") {
        if !qdisc.options.is_empty() {
            options.insert("not_decoded".to_owned(), Value::Bool(true));
        }
        return options;
    }
    for (attribute, bytes) in qdisc.attributes() {
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let number = words.first().copied().filter(|_| bytes.len() == 4);
        let known = NUMBERS.iter().find(|row| (row.0, row.1) == (kind, attribute));
        let (name, value) = match (kind, attribute, number) {
            (_, _, Some(number)) if known.is_some() => match known {
                Some((.., name, hidden)) if *hidden != Some(number) => (*name, Value::from(number)),
                _ => continue,
            },
            ("fq", 8, Some(log)) => ("buckets", Value::from(1_u64.checked_shl(log).unwrap_or(0))),
            ("fq", 15, Some(0)) => ("horizon_cap", Value::Null),
            ("fq", 15, Some(_)) => ("horizon_drop", Value::Null),
            ("fq_codel", 4, Some(0)) => continue,
            ("fq_codel", 4, Some(_)) => ("ecn", Value::Bool(true)),
            // struct tc_prio_qopt: the number of bands, then one byte for each priority.
            ("fq", 16, None) if bytes.len() == 20 => {
                options.insert("bands".to_owned(), Value::from(words[0]));
                ("priomap", Value::from(&bytes[4..]))
            }
            ("fq", 17, None) if bytes.len() == 12 => ("weights", Value::from(words)),
            _ => {
                let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                options.insert(format!("attribute_{attribute}"), Value::from(hexadecimal));
                continue;
            }
        };
        options.insert(name.to_owned(), value);
    }
    options
}

/// Options of qdiscs with the kernel's defaults that do not depend on the MTU (fq_init, fq_codel_init,
/// codel_params_init).
const DEFAULTS: [(&str, &str, u64); 15] = [
    ("fq", "limit", 10_000),
    ("fq", "flow_limit", 100),
    ("fq", "buckets", 1024),
    ("fq", "orphan_mask", 1023),
    ("fq", "bands", 3),
    ("fq", "low_rate_threshold", 68_750),
    ("fq", "refill_delay", 40_000),
    ("fq", "timer_slack", 10_000),
    ("fq", "horizon", 10_000_000),
    ("fq_codel", "limit", 10_240),
    ("fq_codel", "flows", 1024),
    ("fq_codel", "target", 4999),
    ("fq_codel", "interval", 99_999),
    ("fq_codel", "memory_limit", 33_554_432),
    ("fq_codel", "drop_batch", 64),
];

/// `sch_default_prio2band` and `fq_init` (net/sched/sch_fq.c).
const PRIORITIES: [u64; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
const WEIGHTS: [u64; 3] = [589_824, 196_608, 65_536];

/// Returns whether these options may differ from the options of a new qdisc that is created without
/// options, on an interface with this MTU.
pub(super) fn has_own_options(kind: &str, options: &BTreeMap<String, Value>, mtu: Option<u64>) -> bool {
    /// MTU of Ethernet, used if the MTU is unknown.
    const ETHERNET: u64 = 1500;
    /// `psched_mtu` adds the Ethernet header.
    const HEADER: u64 = 14;
    if WITHOUT_OPTIONS.contains(&kind) {
        return false;
    }
    let frame = mtu.unwrap_or(ETHERNET) + HEADER;
    let is_list = |value: &Value, list: &[u64]| {
        value
            .as_array()
            .is_some_and(|values| values.iter().map(Value::as_u64).eq(list.iter().copied().map(Some)))
    };
    let is_default = |name: &str, value: &Value| match (kind, name) {
        ("fq", "quantum") => value.as_u64() == Some(2 * frame),
        ("fq", "initial_quantum") => value.as_u64() == Some(10 * frame),
        ("fq_codel", "quantum") => value.as_u64() == Some(frame),
        ("fq", "priomap") => is_list(value, &PRIORITIES),
        ("fq", "weights") => is_list(value, &WEIGHTS),
        ("fq", "horizon_drop") | ("fq_codel", "ecn") => matches!(value, Value::Null | Value::Bool(true)),
        _ => DEFAULTS.iter().any(|row| (row.0, row.1) == (kind, name) && value.as_u64() == Some(row.2)),
    };
    // By default, fq_codel has ECN on, and tc prints ecn only if ECN is on.
    let lacks_ecn = kind == "fq_codel" && options.contains_key("target") && !options.contains_key("ecn");
    lacks_ecn || !options.iter().all(|(name, value)| is_default(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an fq_codel with this target, µs, and ECN, on an MTU of 1500, as the kernel dumps it.
    fn fq_codel(target: u32, ecn: u32) -> QdiscOverview {
        let values =
            [(1, target), (2, 10_240), (3, 99_999), (4, ecn), (5, 1024), (6, 1514), (8, 64), (9, 32 << 20)];
        overview("fq_codel", &values.map(|(attribute, value): (u16, u32)| (attribute, vec![value])))
    }

    /// Returns an fq on this MTU, as Linux 6.12 dumps it.
    fn fq(mtu: u32) -> QdiscOverview {
        let mut values: Vec<(u16, Vec<u32>)> = [
            (1, 10_000),
            (2, 100),
            (3, 2 * (mtu + 14)),
            (4, 10 * (mtu + 14)),
            (5, 1),
            (7, u32::MAX),
            (8, 10),
            (9, 40_000),
            (10, 1023),
            (11, 68_750),
            (12, u32::MAX),
            (13, 10_000),
            (14, 10_000_000),
            (15, 1),
            (18, 0),
        ]
        .map(|(attribute, value)| (attribute, vec![value]))
        .into();
        let map = PRIORITIES.map(|band| band as u8);
        let map = map.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap_or_default()));
        values.push((16, std::iter::once(3).chain(map).collect()));
        values.push((17, WEIGHTS.map(|weight| weight as u32).into()));
        overview("fq", &values)
    }

    fn overview(kind: &str, values: &[(u16, Vec<u32>)]) -> QdiscOverview {
        let attribute = |(number, words): &(u16, Vec<u32>)| {
            let length = (4 + 4 * words.len()) as u16;
            let words = words.iter().flat_map(|word| word.to_ne_bytes());
            [length.to_ne_bytes(), number.to_ne_bytes()]
                .into_iter()
                .flatten()
                .chain(words)
                .collect::<Vec<u8>>()
        };
        let options = values.iter().flat_map(attribute).collect();
        QdiscOverview { kind: kind.to_owned(), options, ..QdiscOverview::default() }
    }

    fn is_own(qdisc: &QdiscOverview, mtu: u64) -> bool {
        has_own_options(&qdisc.kind, &shown(qdisc), Some(mtu))
    }

    #[test]
    fn options_of_the_running_kernel_are_told_from_its_defaults() {
        assert!(!is_own(&fq_codel(4999, 1), 1500), "{:?}", shown(&fq_codel(4999, 1)));
        assert!(is_own(&fq_codel(19_999, 1), 1500));
        assert!(is_own(&fq_codel(4999, 0), 1500), "noecn");
        assert!(is_own(&fq_codel(4999, 1), 9000), "its quantum is that of another MTU");
        assert!(!is_own(&fq(1500), 1500), "{:?}", shown(&fq(1500)));
        assert!(!is_own(&fq(9000), 9000));
        assert!(is_own(&fq(1500), 9000));
        let mut later = fq(1500);
        later.options.extend(overview("fq", &[(99, vec![7])]).options);
        assert!(is_own(&later, 1500), "an option of a later kernel");
        assert!(is_own(&overview("netem", &[(1, vec![5])]), 1500));
        assert!(!is_own(&overview("mq", &[]), 1500));
    }
}
