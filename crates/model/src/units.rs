//! Units as types: bit/s, bytes, nanoseconds and Hz, written and read with their unit.
//!
//! All are whole numbers of their base unit, so that the sum of a million packets is exact. Text is
//! exact as well: `2.5gbit` is 2,500,000,000 bit/s. A decimal that is not a whole number of the base unit is
//! refused instead of rounded.
//!
//! | type | base unit | spellings |
//! |---|---|---|
//! | [`BitRate`] | bit/s | `bit` `kbit` `mbit` `gbit` `tbit`, powers of 1000, in any case, with or without `/s` |
//! | [`ByteSize`] | byte | `B` `kB` `MB` `GB` (powers of 1000) and `KiB` `MiB` `GiB` (powers of 1024) |
//! | [`Nanoseconds`] | ns | `ns` `us` (or `µs`) `ms` `s` `min`, in any case |
//! | [`Frequency`] | Hz | `Hz` `kHz` `MHz` `GHz`, powers of 1000, in any case |
//!
//! The spellings of rates are those of tc(8), except that tc's `bps`, which means *bytes* per second, is
//! refused. Sizes are case-sensitive because `b` is a bit, and `K` may mean 1000 or 1024.
//! [`Display`](fmt::Display) writes a form that [`FromStr`] parses to the same value.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::text::excerpt;

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
const BITS_PER_BYTE: u128 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(u64);

impl BitRate {
    #[must_use]
    pub const fn from_bits_per_second(bits_per_second: u64) -> Self {
        Self(bits_per_second)
    }

    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Returns the whole bytes that pass in `time`, rounded down; at most `u64::MAX`.
    #[must_use]
    pub const fn bytes_in(self, time: Nanoseconds) -> ByteSize {
        let bit_nanoseconds = self.0 as u128 * time.0 as u128;
        ByteSize(saturate(bit_nanoseconds / (BITS_PER_BYTE * NANOSECONDS_PER_SECOND as u128)))
    }

    /// Returns the time of `size` on the wire, rounded up, so that a sender that waits for it never exceeds
    /// the rate. Returns 0 for no bytes. Otherwise returns [`Nanoseconds::MAX`] for a rate of zero or an
    /// overflow.
    #[must_use]
    pub const fn time_to_send(self, size: ByteSize) -> Nanoseconds {
        if self.0 == 0 {
            return if size.0 == 0 { Nanoseconds(0) } else { Nanoseconds::MAX };
        }
        // At most 2^64 * 8 * 10^9, far below 2^128.
        let bit_nanoseconds = size.0 as u128 * BITS_PER_BYTE * NANOSECONDS_PER_SECOND as u128;
        Nanoseconds(saturate(bit_nanoseconds.div_ceil(self.0 as u128)))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns this many KiB (1024 bytes), at most `u64::MAX` bytes.
    #[must_use]
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1024))
    }

    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// A length of time in nanoseconds: up to 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanoseconds(u64);

impl Nanoseconds {
    pub const MAX: Self = Self(u64::MAX);

    #[must_use]
    pub const fn new(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Returns this many microseconds, at most [`Self::MAX`].
    #[must_use]
    pub const fn from_micros(microseconds: u64) -> Self {
        Self(microseconds.saturating_mul(1_000))
    }

    /// Returns this many milliseconds, at most [`Self::MAX`].
    #[must_use]
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds.saturating_mul(1_000_000))
    }

    /// Returns this many seconds, at most [`Self::MAX`].
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOSECONDS_PER_SECOND))
    }

    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns seconds, to the precision of an `f64`.
    #[must_use]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOSECONDS_PER_SECOND as f64
    }

    /// Returns the sum, at most [`Self::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the product, at most [`Self::MAX`].
    #[must_use]
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

/// A number of cycles per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frequency(u64);

impl Frequency {
    #[must_use]
    pub const fn from_hz(hz: u64) -> Self {
        Self(hz)
    }

    #[must_use]
    pub const fn hz(self) -> u64 {
        self.0
    }
}

impl From<Nanoseconds> for Duration {
    fn from(time: Nanoseconds) -> Self {
        Self::from_nanos(time.0)
    }
}

/// A duration beyond 584 years becomes [`Nanoseconds::MAX`].
impl From<Duration> for Nanoseconds {
    fn from(duration: Duration) -> Self {
        Self(saturate(duration.as_nanos()))
    }
}

const fn saturate(value: u128) -> u64 {
    if value > u64::MAX as u128 { u64::MAX } else { value as u64 }
}

/// The reason why a text is not a rate, a size, a time or a frequency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("empty; write a {quantity} with its unit, for example {example}")]
    Empty { quantity: &'static str, example: &'static str },
    #[error("a {quantity} needs a unit; write for example {example}")]
    MissingUnit { quantity: &'static str, example: &'static str },
    /// A number followed by something that is not a unit of the quantity.
    #[error("'{}' is not a unit of a {quantity}{hint}; use {units}, for example {example}", excerpt(.unit))]
    UnknownUnit {
        quantity: &'static str,
        unit: String,
        /// An explanation in parentheses, with a leading space, for a unit that is easily confused; or empty.
        hint: &'static str,
        units: &'static str,
        example: &'static str,
    },
    #[error("a {quantity} cannot be negative")]
    Negative { quantity: &'static str },
    /// The text does not begin with a plain decimal number.
    #[error("'{}' is not a {quantity}; write a number with its unit, for example {example}", excerpt(.text))]
    NotANumber { quantity: &'static str, text: String, example: &'static str },
    #[error("not a whole number of {base_unit}")]
    NotWhole { base_unit: &'static str },
    /// The number needs more than 64 bits.
    #[error("too large for a {quantity}")]
    TooLarge { quantity: &'static str },
}

impl UnitError {
    /// Returns the error with another example. An error without an example stays unchanged.
    #[must_use]
    pub fn with_example(mut self, better: &'static str) -> Self {
        match &mut self {
            Self::Empty { example, .. }
            | Self::MissingUnit { example, .. }
            | Self::UnknownUnit { example, .. }
            | Self::NotANumber { example, .. } => *example = better,
            Self::Negative { .. } | Self::NotWhole { .. } | Self::TooLarge { .. } => {}
        }
        self
    }
}

/// Formats a rate with at most three digits and a decimal unit: `9.4 Gbit/s`. A rate that is infinite or
/// NaN is `?`.
#[must_use]
pub fn rate_text(bits_per_second: f64) -> String {
    if !bits_per_second.is_finite() {
        return "?".to_owned();
    }
    let mut value = bits_per_second;
    let mut unit = "";
    for next in ["k", "M", "G", "T", "P", "E"] {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    let decimals = if unit.is_empty() || value >= 99.95 { 0 } else { 1 };
    format!("{value:.decimals$} {unit}bit/s")
}

/// Formats the mean rate of `bytes` in `seconds`, as [`rate_text`] does. The rate is 0 if `seconds` is not
/// positive.
#[must_use]
pub fn mean_rate_text(bytes: u64, seconds: f64) -> String {
    rate_text(if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 })
}

struct Quantity {
    name: &'static str,
    base_unit: &'static str,
    example: &'static str,
    units: &'static str,
    unit: fn(&str) -> Result<u64, &'static str>,
}

const RATE: Quantity = Quantity {
    name: "rate",
    base_unit: "bit/s",
    example: "10gbit",
    units: "bit, kbit, mbit, gbit or tbit",
    unit: |unit| {
        let unit = unit.to_ascii_lowercase();
        match unit.strip_suffix("/s").unwrap_or(&unit) {
            "bit" => Ok(1),
            "kbit" => Ok(1_000),
            "mbit" => Ok(1_000_000),
            "gbit" => Ok(NANOSECONDS_PER_SECOND),
            "tbit" => Ok(1_000_000_000_000),
            "bps" | "kbps" | "mbps" | "gbps" | "tbps" => {
                Err(" (tc reads it as bytes, other programs as bits)")
            }
            _ => Err(""),
        }
    },
};

const SIZE: Quantity = Quantity {
    name: "size",
    base_unit: "bytes",
    example: "64KiB",
    units: "B, kB, MB, GB, KiB, MiB or GiB",
    unit: |unit| match unit {
        "B" => Ok(1),
        "kB" => Ok(1_000),
        "MB" => Ok(1_000_000),
        "GB" => Ok(1_000_000_000),
        "KiB" => Ok(1 << 10),
        "MiB" => Ok(1 << 20),
        "GiB" => Ok(1 << 30),
        "KB" | "K" | "k" => Err(" (kB is 1000 bytes, KiB is 1024)"),
        _ if unit.ends_with('b') => Err(" (b is a bit, B is a byte)"),
        _ => Err(""),
    },
};

const TIME: Quantity = Quantity {
    name: "time",
    base_unit: "nanoseconds",
    example: "50us",
    units: "ns, us, ms, s or min",
    unit: |unit| match unit.to_lowercase().as_str() {
        "ns" => Ok(1),
        // U+00B5 (micro sign) becomes itself in lower case; U+03BC is the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => Ok(1_000),
        "ms" => Ok(1_000_000),
        "s" => Ok(NANOSECONDS_PER_SECOND),
        "min" => Ok(60 * NANOSECONDS_PER_SECOND),
        "m" => Err(" (min is a minute, ms a millisecond)"),
        _ => Err(""),
    },
};

const FREQUENCY: Quantity = Quantity {
    name: "frequency",
    base_unit: "Hz",
    example: "3.2GHz",
    units: "Hz, kHz, MHz or GHz",
    unit: |unit| match unit.to_ascii_lowercase().as_str() {
        "hz" => Ok(1),
        "khz" => Ok(1_000),
        "mhz" => Ok(1_000_000),
        "ghz" => Ok(1_000_000_000),
        _ => Err(""),
    },
};

impl Quantity {
    /// Parses `number unit`: digits, optionally a point and digits, optionally spaces, the unit.
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let (quantity, example) = (self.name, self.example);
        if text.is_empty() {
            return Err(UnitError::Empty { quantity, example });
        }
        if text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
            return Err(UnitError::Negative { quantity });
        }
        let not_a_number = || UnitError::NotANumber { quantity, text: text.to_owned(), example };
        let (whole, rest) = split_digits(text);
        if whole.is_empty() {
            return Err(not_a_number());
        }
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("0", rest),
        };
        if fraction.is_empty() {
            return Err(not_a_number());
        }
        let unit = rest.trim_start_matches(' ');
        if unit.is_empty() {
            return Err(UnitError::MissingUnit { quantity, example });
        }
        let factor = (self.unit)(unit).map_err(|hint| UnitError::UnknownUnit {
            quantity,
            unit: unit.to_owned(),
            hint,
            units: self.units,
            example,
        })?;
        self.scale(whole, fraction, factor)
    }

    /// Returns `whole.fraction` times `factor`; an error if it is not a whole number or too large.
    fn scale(&self, whole: &str, fraction: &str, factor: u64) -> Result<u64, UnitError> {
        let too_large = || UnitError::TooLarge { quantity: self.name };
        let factor = u128::from(factor);
        // Digits fail to parse only if there are too many.
        let whole =
            whole.parse::<u128>().ok().and_then(|whole| whole.checked_mul(factor)).ok_or_else(too_large)?;
        let fraction = fraction.trim_end_matches('0');
        let part = if fraction.is_empty() {
            0
        } else {
            // In lowest terms, the product is whole exactly if the denominator divides the factor. With
            // n digits, the denominator keeps a factor of 2^n or 5^n, because the last digit is not 0.
            // No factor is divisible by 2^31 or 5^13. So a fraction that is too long for 128 bits (n > 38)
            // never has a whole product.
            let not_whole = || UnitError::NotWhole { base_unit: self.base_unit };
            let denominator =
                u32::try_from(fraction.len()).ok().and_then(|digits| 10_u128.checked_pow(digits));
            let (denominator, numerator) = denominator.zip(fraction.parse().ok()).ok_or_else(not_whole)?;
            let divisor = greatest_common_divisor(numerator, denominator);
            if !factor.is_multiple_of(denominator / divisor) {
                return Err(not_whole());
            }
            numerator / divisor * (factor / (denominator / divisor))
        };
        whole.checked_add(part).and_then(|value| u64::try_from(value).ok()).ok_or_else(too_large)
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

impl FromStr for BitRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        RATE.parse(text).map(Self)
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        SIZE.parse(text).map(Self)
    }
}

impl FromStr for Nanoseconds {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        TIME.parse(text).map(Self)
    }
}

impl FromStr for Frequency {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        FREQUENCY.parse(text).map(Self)
    }
}

/// Writes `value` in the largest of `units` that needs at most three decimals.
fn write_decimal(formatter: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    for &(factor, unit) in units {
        // A factor is 1 or a multiple of 1000, so a thousandth of it is whole.
        let thousandth = (factor / 1000).max(1);
        if value >= factor && value.is_multiple_of(thousandth) {
            let thousandths = value % factor / thousandth;
            if thousandths == 0 {
                return formatter.pad(&format!("{}{unit}", value / factor));
            }
            let fraction = format!("{thousandths:03}");
            return formatter.pad(&format!("{}.{}{unit}", value / factor, fraction.trim_end_matches('0')));
        }
    }
    // Only zero is below the base unit.
    formatter.pad(&format!("{value}{}", units.last().map_or("", |(_, unit)| unit)))
}

impl fmt::Display for BitRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (1_000_000_000_000, "tbit"),
            (1_000_000_000, "gbit"),
            (1_000_000, "mbit"),
            (1_000, "kbit"),
            (1, "bit"),
        ];
        write_decimal(formatter, self.0, &UNITS)
    }
}

/// Whole numbers only: sizes are often powers of two, and `1.464KiB` is hard to read.
impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
            (1_000_000_000, "GB"),
            (1_000_000, "MB"),
            (1_000, "kB"),
        ];
        let unit = UNITS.iter().find(|(factor, _)| self.0 != 0 && self.0.is_multiple_of(*factor));
        let (factor, unit) = unit.copied().unwrap_or((1, "B"));
        formatter.pad(&format!("{}{unit}", self.0 / factor))
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(NANOSECONDS_PER_SECOND, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        write_decimal(formatter, self.0, &UNITS)
    }
}

impl fmt::Display for Frequency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1_000_000_000, "GHz"), (1_000_000, "MHz"), (1_000, "kHz"), (1, "Hz")];
        write_decimal(formatter, self.0, &UNITS)
    }
}

#[cfg(test)]
mod tests;
