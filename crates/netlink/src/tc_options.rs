//! Qdisc options whose values in a dump differ from the values that were set.
//!
//! The kernel stores some options in internal units and rounds them on input and output, or shows
//! defaults that it does not accept. If a program sets an option from a dump, the option would change
//! slightly each time. This module converts such options to values that recreate the same qdisc. Other
//! options are set as the dump shows them.

/// Attribute types of a qdisc kind whose values are times in µs.
type Times = &'static [u16];

/// `TCA_CODEL_TARGET`, `_INTERVAL`, `_CE_THRESHOLD` (`include/uapi/linux/pkt_sched.h`).
const CODEL: Times = &[1, 3, 5];
/// `TCA_FQ_CODEL_TARGET`, `_INTERVAL`, `_CE_THRESHOLD`.
const FQ_CODEL: Times = &[1, 3, 7];
/// `TCA_PIE_TARGET`.
const PIE: Times = &[1];
/// `TCA_FQ_PIE_TARGET`.
const FQ_PIE: Times = &[3];

/// Offsets in `struct tc_sfq_qopt_v1`, bytes.
mod sfq {
    pub(super) const LIMIT: usize = 8;
    pub(super) const FLOWS: usize = 16;
    pub(super) const DEPTH: usize = 20;
    /// Start of `struct tc_sfqred_stats`: all bytes from this offset on are counters.
    pub(super) const STATISTICS: usize = 48;
}

/// Returns the time to set for a time that `sch_codel` or `sch_fq_codel` shows, µs. These qdiscs store
/// units of 1024 ns and round down twice (`codel_change`, `codel_time_to_us`). The next microsecond is
/// within the unit that is shown.
fn codel_time(shown: u32) -> u32 {
    shown.saturating_add(1)
}

/// Returns the time to set for a time that `sch_pie` or `sch_fq_pie` shows, µs. These qdiscs store
/// ticks of 64 ns (`PSCHED_SHIFT`). A dump shows multiples of 8 µs as set, and any other time 1 µs too
/// low.
fn pie_time(shown: u32) -> u32 {
    if shown.is_multiple_of(8) { shown } else { shown.saturating_add(1) }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Applies `change` to the 32-bit values of the attributes whose types are in `times`.
fn change_times(options: &mut [u8], times: Times, change: fn(u32) -> u32) {
    let mut at = 0;
    while let Some(header) = options.get(at..at + 4) {
        let length = u16::from_ne_bytes([header[0], header[1]]) as usize;
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        if length == 8
            && times.contains(&kind)
            && let Some(shown) = word(options, at + 4)
        {
            set_word(options, at + 4, change(shown));
        }
        // An attribute is at least as long as its header.
        at += length.max(4).next_multiple_of(4);
    }
}

/// Resets a limit that is the kernel's default to 0, which selects the default. SFQ reduces its flows
/// to a limit that is set, and reduces a limit to the capacity of its flows (`sfq_change`). A limit
/// that cannot result from this reduction is the default.
fn uncut_limit(options: &mut [u8]) {
    let field = |at| word(options, at).map(u64::from);
    let (Some(limit), Some(flows), Some(depth)) = (field(sfq::LIMIT), field(sfq::FLOWS), field(sfq::DEPTH))
    else {
        return;
    };
    if flows > limit || limit > depth * flows {
        set_word(options, sfq::LIMIT, 0);
    }
}

/// Returns the options that recreate a qdisc whose dump shows `shown`.
pub(crate) fn to_set(kind: &str, shown: &[u8]) -> Vec<u8> {
    let mut options = shown.to_vec();
    match kind {
        "codel" => change_times(&mut options, CODEL, codel_time),
        "fq_codel" => change_times(&mut options, FQ_CODEL, codel_time),
        "pie" => change_times(&mut options, PIE, pie_time),
        "fq_pie" => change_times(&mut options, FQ_PIE, pie_time),
        "sfq" => uncut_limit(&mut options),
        _ => {}
    }
    options
}

/// Returns the options of a dump without counters.
pub(crate) fn without_counts(kind: &str, shown: &[u8]) -> Vec<u8> {
    let mut options = shown.to_vec();
    if kind == "sfq"
        && let Some(counts) = options.get_mut(sfq::STATISTICS..)
    {
        counts.fill(0);
    }
    options
}

/// Returns whether the kernel accepts a kind's options only with the flag `NLA_F_NESTED` (`fq_pie_change` and
/// `ets_qdisc_change` use the strict `nla_parse_nested`).
pub(crate) fn is_strictly_nested(kind: &str) -> bool {
    matches!(kind, "fq_pie" | "ets")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tc::{attributes, words};
    use proptest::prelude::*;

    /// Computes the time that a dump shows after `codel_change` and `codel_time_to_us`.
    fn codel_shows(set: u32) -> u32 {
        let kept = (u64::from(set) * 1000) >> 10;
        ((kept << 10) / 1000) as u32
    }

    /// Computes the time that a dump shows after `PSCHED_NS2TICKS` and `PSCHED_TICKS2NS`.
    fn pie_shows(set: u32) -> u32 {
        let kept = (u64::from(set) * 1000) >> 6;
        ((kept << 6) / 1000) as u32
    }

    /// Returns the (limit, flows, depth) that `sfq_change` stores in a new qdisc; 0 selects the default.
    fn sfq_shows([limit, flows, depth]: [u32; 3]) -> [u32; 3] {
        let own = |set: u32, own: u32| if set == 0 { own } else { set };
        let (mut flows, depth) = (own(flows, 128), own(depth, 127).min(127));
        if limit == 0 {
            return [127, flows, depth];
        }
        let limit = limit.min(depth * flows);
        flows = flows.min(limit);
        [limit, flows, depth]
    }

    fn sfq_options([limit, flows, depth]: [u32; 3]) -> Vec<u8> {
        let mut options = words(&[1514, 10, limit, 1024, flows, depth]);
        options.resize(72, 0);
        options
    }

    proptest! {
        #[test]
        fn times_of_codel_are_shown_as_before(set in 0_u32..4_000_000_000) {
            let shown = codel_shows(set);
            prop_assert_eq!(codel_shows(codel_time(shown)), shown);
        }

        #[test]
        fn times_of_pie_are_shown_as_before(set in 0_u32..4_000_000) {
            let shown = pie_shows(set);
            prop_assert_eq!(pie_shows(pie_time(shown)), shown);
        }

        #[test]
        fn limits_of_sfq_are_shown_as_before(set in [0_u32..1000, 0_u32..1000, 0_u32..200]) {
            let shown = sfq_shows(set);
            let again = to_set("sfq", &sfq_options(shown));
            let again = [sfq::LIMIT, sfq::FLOWS, sfq::DEPTH].map(|at| word(&again, at).unwrap());
            prop_assert_eq!(sfq_shows(again), shown);
        }
    }

    #[test]
    fn only_times_are_changed() {
        // Attributes of fq_codel: 1 target (us), 2 limit, 3 interval (us), 6 quantum.
        let shown = |target: u32, interval: u32| {
            attributes(&[
                (1, words(&[target])),
                (2, words(&[10_240])),
                (3, words(&[interval])),
                (6, words(&[1514])),
            ])
        };
        assert_eq!(to_set("fq_codel", &shown(4999, 99_999)), shown(5000, 100_000));
        assert_eq!(to_set("fq", &shown(4999, 99_999)), shown(4999, 99_999));
        assert_eq!(pie_time(15_000), 15_000);
    }

    #[test]
    fn options_that_are_cut_short_do_no_harm() {
        let whole = attributes(&[(1, words(&[4999]))]);
        for length in 0..whole.len() {
            assert_eq!(to_set("fq_codel", &whole[..length]), whole[..length]);
        }
        assert_eq!(to_set("fq_codel", &[0; 12]), [0; 12]);
        assert_eq!(to_set("sfq", &[1; 10]), [1; 10]);
        assert_eq!(without_counts("sfq", &[1; 50]), [[1; 48].as_slice(), &[0; 2]].concat());
        assert_eq!(without_counts("fq", &[1; 50]), [1; 50]);
    }
}
