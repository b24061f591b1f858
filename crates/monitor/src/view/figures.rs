//! Numbers with their units, in few characters.

use evenkeel_model::text::thousands;
use evenkeel_model::units::rate_text;

use crate::sample::Interval;

/// Text for an unknown figure.
pub const UNKNOWN: &str = "-";

/// Returns the growth of a counter per second; `None` if `seconds` is not positive, as in the first sample,
/// or not finite.
pub fn per_second(interval: Interval, seconds: f64) -> Option<f64> {
    (seconds > 0.0 && seconds.is_finite()).then(|| interval.delta as f64 / seconds)
}

/// Returns the rate of a counter of bytes, bit/s; `None` as in [`per_second`].
pub fn bits_per_second(interval: Interval, seconds: f64) -> Option<f64> {
    per_second(interval, seconds).map(|bytes| bytes * 8.0)
}

pub fn rate(interval: Interval, seconds: f64) -> String {
    bits_per_second(interval, seconds).map_or_else(unknown, rate_text)
}

pub fn unknown() -> String {
    UNKNOWN.to_owned()
}

/// Formats a number of things: `0.3`, `12`, `12,345`, `1.2 M`.
pub fn quantity(value: f64) -> String {
    let plain = |value: f64| match value.abs() {
        size if size < 1e-9 => "0".to_owned(),
        // 5.02 per second is 5 events in an interval slightly shorter than 1 s, so omit the decimal.
        size if size < 9.95 && (value - value.round()).abs() >= 0.05 => format!("{value:.1}"),
        size if size < 99_999.5 && value >= 0.0 => thousands(value.round() as usize),
        _ => format!("{value:.0}"),
    };
    if !value.is_finite() {
        return "?".to_owned();
    }
    if value.abs() < 99_999.5 {
        return plain(value);
    }
    scaled(value, &["k", "M", "G", "T", "P", "E"])
}

/// Formats a value with the first prefix that leaves at most three digits before the point, or else the last
/// prefix.
fn scaled(value: f64, prefixes: &[&str]) -> String {
    let (mut value, mut unit) = (value, "");
    for next in prefixes {
        if value.abs() < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    let decimals = if value.abs() >= 99.95 { 0 } else { 1 };
    format!("{value:.decimals$} {unit}")
}

/// Formats the growth of a counter per second; [`UNKNOWN`] if it is not known.
pub fn each_second(interval: Interval, seconds: f64) -> String {
    per_second(interval, seconds).map_or_else(unknown, quantity)
}

/// Formats a number of bytes with a decimal unit: `0 B`, `1.2 MB`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1000 {
        format!("{bytes} B")
    } else {
        scaled(bytes as f64, &["k", "M", "G", "T", "P", "E"]) + "B"
    }
}

/// Formats a time in microseconds: `850 µs`, `12.3 ms`, `4.3 s`.
pub fn microseconds(time: f64) -> String {
    match time {
        _ if !time.is_finite() => "?".to_owned(),
        _ if time < 999.5 => format!("{time:.0} µs"),
        _ if time < 99_950.0 => format!("{:.1} ms", time / 1e3),
        _ if time < 999_500.0 => format!("{:.0} ms", time / 1e3),
        _ => format!("{:.1} s", time / 1e6),
    }
}

pub fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if !percent.is_finite() => "?".to_owned(),
        // Avoid "-0 %": rounding of idle times may give a small negative number.
        percent if percent.abs() < 0.5 => "0 %".to_owned(),
        percent if percent.abs() < 9999.5 => format!("{percent:.0} %"),
        percent => format!("{percent:.0e} %"),
    }
}

pub fn index(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "?".to_owned(),
        // Avoid "-0.00".
        _ if value.abs() < 0.005 => "0.00".to_owned(),
        _ if value.abs() < 9999.5 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

/// Formats the time of day, UTC: `19:14:15`.
pub fn clock(at_ms: u64) -> String {
    let seconds = at_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Formats date and time, UTC: `2026-11-27T19:14:15Z`.
pub fn timestamp(at_ms: u64) -> String {
    // Days since 0000-03-01. The leap day is then the last day of a year (Hinnant, "chrono-compatible
    // low-level date algorithms", civil_from_days).
    let days = at_ms / 86_400_000 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{}Z", clock(at_ms))
}

/// Formats a duration, given in seconds: `35 s`, `12 min`, `3.5 h`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        _ if !seconds.is_finite() || seconds < 0.0 => "?".to_owned(),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Formats a list of numbers as ranges: `0-3,8`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<String> = Vec::new();
    for run in sorted.chunk_by(|first, next| next - first == 1) {
        match run {
            [one] => parts.push(one.to_string()),
            [first, .., last] => parts.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_units() {
        let found: Vec<String> =
            [0.0, 0.3, 1.04, 9.96, 12.4, 12_345.0, 1.2e6, 1e12, u64::MAX as f64, f64::NAN, f64::INFINITY]
                .map(quantity)
                .into();
        assert_eq!(found, ["0", "0.3", "1", "10", "12", "12,345", "1.2 M", "1.0 T", "18.4 E", "?", "?"]);
        assert_eq!(
            [0, 999, 1000, 1_234_567, u64::MAX].map(bytes),
            ["0 B", "999 B", "1.0 kB", "1.2 MB", "18.4 EB"]
        );
        assert_eq!(
            [0.0, 850.0, 12_300.0, 123_000.0, 4.3e9].map(microseconds),
            ["0 µs", "850 µs", "12.3 ms", "123 ms", "4300.0 s"]
        );
        assert_eq!([0.0, -0.001, 0.923, f64::NAN].map(percent), ["0 %", "0 %", "92 %", "?"]);
        assert_eq!([-0.001, 0.75, f64::NEG_INFINITY].map(index), ["0.00", "0.75", "?"]);
        assert_eq!([5.0, 600.0, 9000.0, f64::NAN].map(duration), ["5 s", "10 min", "2.5 h", "?"]);
    }

    #[test]
    fn the_first_sample_has_no_rates() {
        let interval = Interval { total: 5, delta: 5 };
        assert_eq!(rate(interval, 0.0), UNKNOWN);
        assert_eq!(each_second(interval, f64::NAN), UNKNOWN);
        assert_eq!(rate(interval, 1.0), "40 bit/s");
    }

    #[test]
    fn times_are_utc_and_take_every_number() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_795_806_855_999), "2026-11-27T19:14:15Z");
        assert!(timestamp(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn processors_are_ranges() {
        assert_eq!(ranges(&[3, 1, 2, 8, 2, 0]), "0-3,8");
        assert_eq!((ranges(&[]), ranges(&[u32::MAX])), (String::new(), u32::MAX.to_string()));
    }
}
