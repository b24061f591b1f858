//! Kinds of qdiscs and their options: name, type, and place in the kernel's format.
//!
//! Attribute numbers are from `include/uapi/linux/pkt_sched.h`, and names are from `tc`. Other kinds
//! can be used without options, or with numbered attributes.

use crate::text::nearest;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionType {
    /// A whole number between the two given numbers.
    Count(u64, u64),
    /// A rate, or a share of the link's rate.
    Rate,
    /// A size, or a multiple of segments or MTUs.
    Size,
    Time,
    /// A time in whole seconds, written without a unit.
    Seconds,
    /// A class of this qdisc, by its minor number in hexadecimal.
    Minor,
    /// Up to 16 numbers, each below 16.
    Bands,
    /// Up to 16 sizes.
    Sizes,
    Curve,
    /// A keyword without a value.
    Flag,
}

/// Width of an attribute: 8, 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Byte,
    Word,
    Long,
}

/// Position of an option inside `TCA_OPTIONS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An attribute: a plain number, a size in bytes, a rate in bytes per second, a time in
    /// microseconds.
    Attribute(u16, Width),
    /// An attribute with a time in nanoseconds.
    Nanoseconds(u16),
    /// An attribute with the logarithm of the number to base 2.
    Logarithm(u16),
    /// A keyword that selects this value of an attribute.
    Value(u16, Width, u32),
    /// A field of the kind's structure, or an attribute in a format of the kind.
    Structure,
}

#[derive(Clone, Copy, Debug)]
pub struct KnownOption {
    pub name: &'static str,
    /// `tc`'s other names for the option.
    pub aliases: &'static [&'static str],
    pub of: OptionType,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classes {
    None,
    /// Classes that the user creates.
    Made,
    /// One class per band, from 1.
    Bands,
    /// One class per transmit queue of the device, from 1.
    Queues,
    /// A single class, which may have any number.
    One,
}

#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The kernel's name of the kind.
    pub name: &'static str,
    pub options: &'static [KnownOption],
    pub classes: Classes,
    pub class_options: &'static [KnownOption],
    /// Groups of options; the qdisc needs at least one option of each group.
    pub required: &'static [&'static [&'static str]],
    /// Groups of class options; a class needs at least one option of each group.
    pub class_required: &'static [&'static [&'static str]],
}

impl Kind {
    /// Returns whether the qdisc accepts filter rules that match no packet, and still sends all packets.
    ///
    /// - The kernel attaches filters only to a qdisc with a `tcf_block` (`tcf_block_find` in
    ///   net/sched/cls_api.c). `tbf` and `mq` have no block.
    /// - `fq_codel` and `sfq` use a block for their internal flows, and drop a packet that matches no
    ///   rule.
    /// - `cake` hashes such a packet.
    #[must_use]
    pub fn takes_rules(&self) -> bool {
        matches!(self.classes, Made | Bands) || self.name == "cake"
    }
}

use Classes::{Bands, Made, Queues};
use OptionType::{Count, Curve, Flag, Minor, Rate, Seconds, Size, Sizes, Time};
use Place::{Attribute, Logarithm, Nanoseconds, Structure, Value};
use Width::{Byte, Long, Word};

const NUMBER: OptionType = Count(0, u32::MAX as u64);
const POSITIVE: OptionType = Count(1, u32::MAX as u64);
/// Maximum number of bands of `prio` and `ets` (`TCQ_PRIO_BANDS`, `TCQ_ETS_MAX_BANDS`).
pub const MOST_BANDS: u64 = 16;

const fn option(name: &'static str, of: OptionType, place: Place) -> KnownOption {
    KnownOption { name, aliases: &[], of, place }
}

const fn word(name: &'static str, attribute: u16, value: u32) -> KnownOption {
    option(name, Flag, Value(attribute, Word, value))
}

const fn plain(name: &'static str, options: &'static [KnownOption]) -> Kind {
    Kind { name, options, classes: Classes::None, class_options: &[], required: &[], class_required: &[] }
}

const PFIFO: &[KnownOption] = &[option("limit", NUMBER, Structure)];
const BFIFO: &[KnownOption] = &[option("limit", Size, Structure)];

/// `TCA_FQ_*`.
const FQ: &[KnownOption] = &[
    option("limit", NUMBER, Attribute(1, Word)),
    option("flow_limit", NUMBER, Attribute(2, Word)),
    option("quantum", Size, Attribute(3, Word)),
    option("initial_quantum", Size, Attribute(4, Word)),
    word("pacing", 5, 1),
    word("nopacing", 5, 0),
    option("maxrate", Rate, Attribute(7, Word)),
    option("buckets", Count(1, 1 << 18), Logarithm(8)),
    option("refill_delay", Time, Attribute(9, Word)),
    option("orphan_mask", NUMBER, Attribute(10, Word)),
    option("low_rate_threshold", Rate, Attribute(11, Word)),
    option("ce_threshold", Time, Attribute(12, Word)),
    option("timer_slack", Time, Nanoseconds(13)),
    option("horizon", Time, Attribute(14, Word)),
    option("horizon_cap", Flag, Value(15, Byte, 0)),
    option("horizon_drop", Flag, Value(15, Byte, 1)),
];

/// `TCA_FQ_CODEL_*`.
const FQ_CODEL: &[KnownOption] = &[
    option("target", Time, Attribute(1, Word)),
    option("limit", NUMBER, Attribute(2, Word)),
    option("interval", Time, Attribute(3, Word)),
    word("ecn", 4, 1),
    word("noecn", 4, 0),
    option("flows", Count(1, 65_536), Attribute(5, Word)),
    option("quantum", Size, Attribute(6, Word)),
    option("ce_threshold", Time, Attribute(7, Word)),
    option("drop_batch", POSITIVE, Attribute(8, Word)),
    option("memory_limit", Size, Attribute(9, Word)),
];

/// `TCA_CODEL_*`.
const CODEL: &[KnownOption] = &[
    option("target", Time, Attribute(1, Word)),
    option("limit", NUMBER, Attribute(2, Word)),
    option("interval", Time, Attribute(3, Word)),
    word("ecn", 4, 1),
    word("noecn", 4, 0),
    option("ce_threshold", Time, Attribute(5, Word)),
];

/// `TCA_PIE_*`.
const PIE: &[KnownOption] = &[
    option("target", Time, Attribute(1, Word)),
    option("limit", NUMBER, Attribute(2, Word)),
    option("tupdate", Time, Attribute(3, Word)),
    option("alpha", Count(0, 32), Attribute(4, Word)),
    option("beta", Count(0, 32), Attribute(5, Word)),
    word("ecn", 6, 1),
    word("noecn", 6, 0),
    word("bytemode", 7, 1),
    word("nobytemode", 7, 0),
    word("dq_rate_estimator", 8, 1),
    word("no_dq_rate_estimator", 8, 0),
];

/// `struct tc_sfq_qopt_v1`.
const SFQ: &[KnownOption] = &[
    option("limit", NUMBER, Structure),
    option("perturb", Seconds, Structure),
    option("quantum", Size, Structure),
    option("divisor", Count(1, 65_536), Structure),
    option("flows", Count(1, 65_408), Structure),
    option("depth", Count(1, 127), Structure),
    option("headdrop", Flag, Structure),
];

/// `TCA_CAKE_*`.
const CAKE: &[KnownOption] = &[
    option("bandwidth", Rate, Attribute(2, Long)),
    option("unlimited", Flag, Value(2, Long, 0)),
    word("diffserv3", 3, 0),
    word("diffserv4", 3, 1),
    word("diffserv8", 3, 2),
    word("besteffort", 3, 3),
    word("precedence", 3, 4),
    word("flowblind", 5, 0),
    word("srchost", 5, 1),
    word("dsthost", 5, 2),
    word("hosts", 5, 3),
    word("flows", 5, 4),
    word("dual-srchost", 5, 5),
    word("dual-dsthost", 5, 6),
    word("triple-isolate", 5, 7),
    option("overhead", Count(0, 256), Attribute(6, Word)),
    option("rtt", Time, Attribute(7, Word)),
    option("memlimit", Size, Attribute(10, Word)),
    word("nat", 11, 1),
    word("nonat", 11, 0),
    word("wash", 13, 1),
    word("nowash", 13, 0),
    option("mpu", Count(0, 256), Attribute(14, Word)),
    word("ingress", 15, 1),
    word("egress", 15, 0),
    word("no-ack-filter", 16, 0),
    word("ack-filter", 16, 1),
    word("ack-filter-aggressive", 16, 2),
    word("split-gso", 17, 1),
    word("no-split-gso", 17, 0),
];

const BURST: &[&str] = &["buffer", "maxburst"];
const CEIL_BURST: &[&str] = &["cbuffer", "cmaxburst"];

/// `struct tc_tbf_qopt`; `latency` becomes a limit.
const TBF: &[KnownOption] = &[
    option("rate", Rate, Structure),
    KnownOption { name: "burst", aliases: BURST, of: Size, place: Structure },
    option("limit", Size, Structure),
    option("latency", Time, Structure),
    option("peakrate", Rate, Structure),
    KnownOption { name: "mtu", aliases: &["minburst"], of: Size, place: Structure },
];

/// `struct tc_htb_glob`, `TCA_HTB_DIRECT_QLEN`.
const HTB: &[KnownOption] = &[
    option("default", Minor, Structure),
    option("r2q", POSITIVE, Structure),
    option("direct_qlen", NUMBER, Attribute(5, Word)),
];

/// `struct tc_htb_opt`.
const HTB_CLASS: &[KnownOption] = &[
    option("rate", Rate, Structure),
    option("ceil", Rate, Structure),
    KnownOption { name: "burst", aliases: BURST, of: Size, place: Structure },
    KnownOption { name: "cburst", aliases: CEIL_BURST, of: Size, place: Structure },
    option("quantum", Size, Structure),
    option("prio", Count(0, 7), Structure),
];

/// `struct tc_hfsc_qopt`.
const HFSC: &[KnownOption] = &[option("default", Minor, Structure)];

/// `TCA_HFSC_RSC`, `_FSC`, `_USC`; `sc` stands for `rt` and `ls`.
const HFSC_CLASS: &[KnownOption] = &[
    option("sc", Curve, Structure),
    option("rt", Curve, Structure),
    option("ls", Curve, Structure),
    option("ul", Curve, Structure),
];

const DRR_CLASS: &[KnownOption] = &[option("quantum", Size, Attribute(1, Word))];

/// `TCA_QFQ_WEIGHT`, `TCA_QFQ_LMAX`. The kernel accepts weights up to 1024 (`qfq_change_class`,
/// net/sched/sch_qfq.c).
const QFQ_CLASS: &[KnownOption] =
    &[option("weight", Count(1, 1024), Attribute(1, Word)), option("maxpkt", Size, Attribute(2, Word))];

/// `struct tc_prio_qopt`.
const PRIO: &[KnownOption] =
    &[option("bands", Count(2, MOST_BANDS), Structure), option("priomap", OptionType::Bands, Structure)];

/// `TCA_ETS_*`.
const ETS: &[KnownOption] = &[
    option("bands", Count(1, MOST_BANDS), Structure),
    option("strict", Count(0, MOST_BANDS), Structure),
    option("quanta", Sizes, Structure),
    option("priomap", OptionType::Bands, Structure),
];

const RATE: &[&[&str]] = &[&["rate"]];

pub const KINDS: &[Kind] = &[
    plain("pfifo", PFIFO),
    plain("bfifo", BFIFO),
    plain("pfifo_fast", &[]),
    plain("fq", FQ),
    plain("fq_codel", FQ_CODEL),
    plain("codel", CODEL),
    plain("pie", PIE),
    plain("sfq", SFQ),
    plain("cake", CAKE),
    Kind {
        classes: Classes::One,
        required: &[&["rate"], &["burst"], &["limit", "latency"]],
        ..plain("tbf", TBF)
    },
    Kind { classes: Made, class_options: HTB_CLASS, class_required: RATE, ..plain("htb", HTB) },
    Kind {
        classes: Made,
        class_options: HFSC_CLASS,
        class_required: &[&["sc", "rt", "ls"]],
        ..plain("hfsc", HFSC)
    },
    Kind { classes: Made, class_options: DRR_CLASS, ..plain("drr", &[]) },
    Kind { classes: Made, class_options: QFQ_CLASS, ..plain("qfq", &[]) },
    Kind { classes: Bands, ..plain("prio", PRIO) },
    Kind { classes: Bands, required: &[&["bands", "strict", "quanta"]], ..plain("ets", ETS) },
    Kind { classes: Queues, ..plain("mq", &[]) },
];

#[must_use]
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// Returns a hint about the known kind that resembles a misspelt name: ` (did you mean 'fq'?)`. Returns
/// an empty text if no kind resembles the name.
#[must_use]
pub fn hint(name: &str) -> String {
    let near = nearest(name, KINDS.iter().map(|kind| kind.name)).filter(|near| *near != name);
    near.map_or_else(String::new, |near| format!(" (did you mean '{near}'?)"))
}

#[must_use]
pub fn option_named(options: &'static [KnownOption], name: &str) -> Option<&'static KnownOption> {
    options.iter().find(|option| option.name == name || option.aliases.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_once() {
        for kind in KINDS {
            for options in [kind.options, kind.class_options] {
                let names: Vec<&str> = options
                    .iter()
                    .flat_map(|option| std::iter::once(option.name).chain(option.aliases.iter().copied()))
                    .collect();
                for (at, name) in names.iter().enumerate() {
                    assert!(!names[..at].contains(name), "{} {name}", kind.name);
                }
            }
        }
        assert!(
            KINDS.iter().enumerate().all(|(at, one)| KINDS[..at].iter().all(|other| other.name != one.name))
        );
    }
}
