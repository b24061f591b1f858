//! Describes each metric key: name, displayed unit, and whether higher or lower is better.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::record::metric;
use evenkeel_model::units::ByteSize;

use crate::format::{number, trimmed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HigherIsBetter,
    LowerIsBetter,
    /// Neither direction is better, or the metric is unknown.
    Neutral,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// For example `latency`.
    pub name: String,
    /// For example `p99`; may be empty.
    pub part: String,
    /// Displayed unit. Empty for a pure number.
    pub unit: &'static str,
    /// Factor from the recorded to the displayed unit.
    pub scale: f64,
    pub decimals: usize,
    /// Whether the metric is a count. Whole numbers of a count need no decimals.
    count: bool,
    pub direction: Direction,
    order: u32,
    /// Priority when columns do not fit. The table drops the column with the highest number first, and never
    /// a column with 0.
    pub importance: u32,
}

impl Description {
    /// Returns name and part: `latency p99`.
    #[must_use]
    pub fn label(&self) -> String {
        if self.part.is_empty() { self.name.clone() } else { format!("{} {}", self.name, self.part) }
    }

    #[must_use]
    pub fn heading(&self) -> String {
        let second = [self.part.as_str(), self.unit]
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        format!("{}\n{second}", self.name)
    }

    /// Returns a recorded value in the displayed unit, without the unit.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        let text = number(value * self.scale, self.decimals);
        if self.count { trimmed(text) } else { text }
    }

    /// Returns a recorded value with its unit, without trailing zeros.
    #[must_use]
    pub fn show_with_unit(&self, value: f64) -> String {
        self.with_unit(trimmed(self.show(value)))
    }

    /// Returns a description with enough decimals to display `value` as other than 0. If 12 decimals do not
    /// suffice, returns the same description.
    #[must_use]
    pub fn resolving(&self, value: f64) -> Self {
        const MOST_DECIMALS: usize = 12;
        let with = |decimals| Self { decimals, ..self.clone() };
        let is_zero = |with: &Self| trimmed(with.show(value)) == "0";
        (self.decimals..=MOST_DECIMALS).map(with).find(|with| !is_zero(with)).unwrap_or_else(|| self.clone())
    }

    #[must_use]
    pub fn into_ratio(self) -> Self {
        Self { unit: "", scale: 1.0, decimals: 3, count: false, ..self }
    }

    /// Returns the description of differences of the metric. Differences of shares are in percentage
    /// points.
    #[must_use]
    pub fn into_difference(self) -> Self {
        let unit = if self.unit == "%" { "percentage points" } else { self.unit };
        Self { unit, ..self }
    }

    /// Returns a recorded value with its unit, rounded by at most 1 %.
    #[must_use]
    pub fn show_closely(&self, value: f64) -> String {
        let exact = value * self.scale;
        let is_close = |decimals: &usize| {
            format!("{exact:.decimals$}")
                .parse()
                .is_ok_and(|shown: f64| (shown - exact).abs() <= 0.01 * exact.abs())
        };
        let decimals = (self.decimals..=12).find(is_close).unwrap_or(12);
        Self { decimals, ..self.clone() }.show_with_unit(value)
    }

    /// Returns a recorded value with its unit, with enough digits to differ from all unequal values in
    /// `others`.
    #[must_use]
    pub fn show_distinctly(&self, value: f64, others: &[f64]) -> String {
        let others: Vec<f64> = others.iter().copied().filter(|other| *other != value).collect();
        (self.decimals..=12)
            .map(|decimals| {
                let show = |value: f64| {
                    if decimals == self.decimals {
                        trimmed(self.show(value))
                    } else {
                        trimmed(format!("{:.decimals$}", value * self.scale))
                    }
                };
                (show(value), others.iter().any(|other| show(*other) == show(value)))
            })
            .find(|(_, alike)| !alike)
            .map_or_else(|| value.to_string(), |(text, _)| self.with_unit(text))
    }

    fn with_unit(&self, text: String) -> String {
        if self.unit.is_empty() { text } else { format!("{text} {}", self.unit) }
    }
}

/// Describes a metric key. An unknown key keeps its name and is not scaled.
#[must_use]
pub fn describe(key: &str) -> Description {
    use Direction::{HigherIsBetter, LowerIsBetter, Neutral};

    let (prefix, part) = key.split_once('.').unwrap_or((key, ""));
    let describe = |name: &str, part: &str, unit, direction, order, importance| Description {
        name: name.to_owned(),
        part: part.to_owned(),
        unit,
        scale: 1.0,
        decimals: 3,
        count: false,
        direction,
        order,
        importance,
    };
    match prefix {
        metric::THROUGHPUT => {
            Description { scale: 1e-9, ..describe("throughput", part, "Gbit/s", HigherIsBetter, 0, 0) }
        }
        metric::CPU => Description { decimals: 1, ..describe("CPU", part, "%", LowerIsBetter, 1, 2) },
        metric::LATENCY => {
            let part = if part == "p999" { "p99.9" } else { part };
            let importance = match part {
                "mean" => 3,
                "p99" => 4,
                _ => 8,
            };
            describe("latency", part, "µs", LowerIsBetter, 2, importance)
        }
        metric::NFM => describe("NFM", part, "", LowerIsBetter, 3, 1),
        metric::NFM_MAX => describe("NFM max", part, "", LowerIsBetter, 4, 7),
        metric::JAIN_BYTES => {
            Description { decimals: 4, ..describe("Jain", "bytes", "", HigherIsBetter, 5, 5) }
        }
        metric::JAIN_PACKETS => {
            Description { decimals: 4, ..describe("Jain", "packets", "", HigherIsBetter, 6, 9) }
        }
        metric::RETRANSMITS => Description {
            decimals: 1,
            count: true,
            ..describe("retransmits", part, "segments", LowerIsBetter, 7, 6)
        },
        metric::OUT_OF_ORDER => Description {
            decimals: 1,
            count: true,
            ..describe("out of order", part, "packets", LowerIsBetter, 8, 10)
        },
        metric::CORES => describe(
            "busy processors",
            part_of_cores(part),
            "",
            LowerIsBetter,
            1,
            if part == "busy" { 2 } else { 10 },
        ),
        metric::CPU_PER_GB => describe(
            "CPU for each GB",
            part_of_cores(part),
            "s",
            LowerIsBetter,
            1,
            if part == "busy" { 3 } else { 11 },
        ),
        metric::TRANSACTIONS => {
            Description { decimals: 1, ..describe("transactions", part, "1/s", HigherIsBetter, 2, 7) }
        }
        metric::SLO_VIOLATIONS => {
            Description { scale: 100.0, ..describe("beyond the SLO", part, "%", LowerIsBetter, 2, 4) }
        }
        metric::IDLE_WHILE_BACKLOGGED => {
            Description { scale: 100.0, ..describe("idle while backlogged", part, "%", LowerIsBetter, 4, 3) }
        }
        metric::LOST_CAPACITY => {
            Description { scale: 100.0, ..describe("lost capacity", part, "%", LowerIsBetter, 4, 2) }
        }
        metric::QDISC => {
            let (spelt, unit) = match part {
                "backlog_bytes" => ("backlog", "bytes"),
                other => (other, ""),
            };
            Description { decimals: 1, count: true, ..describe("qdisc", spelt, unit, Neutral, 8, 9) }
        }
        metric::RETRANSMITS_PER_S => {
            Description { decimals: 1, ..describe("retransmits", part, "1/s", LowerIsBetter, 7, 5) }
        }
        metric::RETRANSMISSION_EVENTS_PER_S => {
            Description { decimals: 2, ..describe("retransmission events", part, "1/s", LowerIsBetter, 7, 3) }
        }
        metric::THROUGHPUT_PER_CORE => Description {
            scale: 1e-9,
            ..describe("throughput for each core", part, "Gbit/s", HigherIsBetter, 1, 4)
        },
        metric::DROPS => Description {
            decimals: 1,
            count: true,
            ..describe("drops", part, "packets", LowerIsBetter, 8, if part == "ring" { 6 } else { 8 })
        },
        metric::CPU_SHARE => {
            Description { scale: 100.0, decimals: 1, ..describe("cycles", part, "%", Neutral, 9, 11) }
        }
        metric::DISTURBANCE => describe("other load", part, "processors", LowerIsBetter, 12, 12),
        // In milliseconds, unlike response times: flows of a shuffle can take seconds.
        metric::COMPLETION => {
            let (part, importance) = match part.split_once('.') {
                Some((size, part)) => (format!("{size} {part}"), 12),
                None => (part.to_owned(), 5),
            };
            Description { scale: 1e3, ..describe("completion", &part, "ms", LowerIsBetter, 9, importance) }
        }
        metric::RESPONSE | metric::REQUESTS => {
            let (group, part) = part.split_once('.').unwrap_or(("", part));
            // The paper behind these scenarios reports medians over clients.
            let (spelt, importance) = match part {
                "client_median" => ("client median", 1),
                "total" => ("total", 5),
                "p999" => ("p99.9", 9),
                "p99" => ("p99", 4),
                other => (other, 8),
            };
            let part = format!("{group} {spelt}");
            if prefix == metric::REQUESTS {
                let described = describe("requests", &part, "k/s", HigherIsBetter, 10, importance);
                return Description { scale: 1e-3, ..described };
            }
            describe("response", &part, "µs", LowerIsBetter, 11, importance)
        }
        _ => describe(prefix, part, "", Neutral, 12, 11),
    }
}

fn part_of_cores(part: &str) -> &str {
    if part == "busy" { "" } else { part }
}

/// Returns `keys` in display order: by metric, then by part. Windows are in the order of their lengths, and
/// flow sizes in the order of their bytes.
pub(crate) fn in_order(keys: BTreeSet<String>, windows: &BTreeMap<String, f64>) -> Vec<String> {
    let rank = |key: &str| {
        let (prefix, part) = key.split_once('.').unwrap_or((key, ""));
        let within = match prefix {
            metric::LATENCY => metric::LATENCY_PARTS.iter().position(|known| *known == part),
            metric::COMPLETION => metric::COMPLETION_PARTS.iter().position(|known| *known == part),
            _ => None,
        };
        let size = part.split_once('.').filter(|_| prefix == metric::COMPLETION);
        let size = size.and_then(|(size, _)| size.parse::<ByteSize>().ok()).map(|size| size.bytes() as f64);
        let length = windows.get(part).copied().or(size).unwrap_or(f64::INFINITY);
        (describe(key).order, within.unwrap_or(usize::MAX), length)
    };
    let mut keys: Vec<String> = keys.into_iter().collect();
    // A stable sort keeps the set's alphabetical order for equal ranks.
    keys.sort_by(|first, second| {
        let (first, second) = (rank(first), rank(second));
        (first.0, first.1).cmp(&(second.0, second.1)).then(first.2.total_cmp(&second.2))
    });
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_stand_by_length_and_percentiles_by_rank() {
        let keys = [
            "nfm.1s",
            "nfm.10ms",
            "latency_us.p999",
            "latency_us.mean",
            "zeta",
            "nfm.unknown",
            "cpu_pct",
            "nfm.1ms",
            "alpha.beta",
            "throughput_bps",
        ];
        let windows =
            [("1s", 5.0), ("1ms", 0.005), ("10ms", 0.05)].map(|(name, length)| (name.to_owned(), length));
        let ordered = in_order(keys.map(str::to_owned).into(), &windows.into());
        assert_eq!(
            ordered,
            [
                "throughput_bps",
                "cpu_pct",
                "latency_us.mean",
                "latency_us.p999",
                "nfm.1ms",
                "nfm.10ms",
                "nfm.1s",
                "nfm.unknown",
                "alpha.beta",
                "zeta"
            ]
        );
    }

    #[test]
    fn completion_times_of_a_size_follow_those_of_all() {
        let keys = ["fct_s.64KiB.p99", "fct_s.2KiB.p99", "fct_s.2KiB.mean", "fct_s.16KiB.mean", "fct_s.p99"];
        let ordered = in_order(keys.map(str::to_owned).into(), &BTreeMap::new());
        let expected =
            ["fct_s.p99", "fct_s.2KiB.mean", "fct_s.2KiB.p99", "fct_s.16KiB.mean", "fct_s.64KiB.p99"];
        assert_eq!(ordered, expected);
        assert_eq!(describe("fct_s.2KiB.p99").label(), "completion 2KiB p99");
        assert_eq!(describe("fct_s.p99").show_with_unit(0.000_512), "0.512 ms");
    }

    #[test]
    fn values_are_shown_in_their_unit() {
        assert_eq!(describe("throughput_bps").show_with_unit(1.884e9), "1.88 Gbit/s");
        assert_eq!(describe("nfm.1s").show_with_unit(0.0021), "0.002");
        assert_eq!(describe("latency_us.p999").label(), "latency p99.9");
        assert_eq!(describe("latency_us.p999").heading(), "latency\np99.9 µs");
        assert_eq!(describe("unheard_of").show_with_unit(12.0), "12");
        assert_eq!(describe("retransmits").show(12.0), "12");
        assert_eq!(describe("retransmits").show(12.5), "12.5");
        assert_eq!(describe("cpu_pct").show(12.0), "12.0");
    }

    #[test]
    fn a_value_just_beyond_its_bound_reads_as_beyond() {
        let nfm = describe("nfm.1s");
        assert_eq!(nfm.show_distinctly(0.0204, &[0.02]), "0.0204");
        assert_eq!(nfm.show_distinctly(0.02, &[0.02]), "0.02");
        assert_eq!(nfm.show_distinctly(0.5, &[0.02]), "0.5");
        assert_eq!(describe("throughput_bps").show_distinctly(1.8396e9, &[1.84e9]), "1.8396 Gbit/s");
        assert_eq!(nfm.show_distinctly(1.0 + f64::EPSILON, &[1.0]), "1.0000000000000002");
    }
}
