//! Values of options, in the units of `tc`.

use std::str::FromStr;

use crate::text::excerpt;
use crate::units::{BitRate, ByteSize, Nanoseconds};

use super::template::{Counter, Divisor, HandleTemplate, Measure, Number, RateTerm, SizeTerm, WHOLE};
use super::{Attribute, AttributeValue};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) problem: String,
    pub(super) advice: String,
}

pub(super) fn wrong(problem: impl Into<String>, advice: impl Into<String>) -> Wrong {
    Wrong { problem: problem.into(), advice: advice.into() }
}

/// Parses a number in decimal or hexadecimal (`0x`). Unlike in `tc`, a number with a leading 0 is decimal,
/// not octal.
pub(super) fn count(text: &str, least: u64, most: u64) -> Result<u64, Wrong> {
    // `tc qdisc show` appends a `p` to a limit in packets.
    let digits = text.strip_suffix('p').unwrap_or(text);
    let number = match digits.strip_prefix("0x") {
        Some(digits) if only(digits, |c| c.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
        None if only(digits, |c| c.is_ascii_digit()) => digits.parse().ok(),
        _ => {
            return Err(wrong(
                format!("'{}' is not a whole number", excerpt(text)),
                "write for example 1000",
            ));
        }
    };
    number.filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        wrong(format!("{} is out of range", excerpt(text)), format!("write a value from {least} to {most}"))
    })
}

fn only(text: &str, allowed: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(allowed)
}

fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

fn unit_error(error: &crate::units::UnitError) -> Wrong {
    wrong(error.to_string(), "")
}

/// Parses a rate: `1gbit`, `50%`, `100%/flows`. Without a unit, the number is in bit/s, as in `tc`.
pub(super) fn rate(text: &str) -> Result<RateTerm, Wrong> {
    if let Some((percent, rest)) = text.split_once('%') {
        let millionths = percent_to_millionths(percent).ok_or_else(|| {
            wrong(
                format!("'{}%' is not a share of the line", excerpt(percent)),
                "write for example 50% or 12.5%",
            )
        })?;
        let divisor = match rest {
            "" => Divisor::One,
            "/flows" => Divisor::Flows,
            "/queues" => Divisor::Queues,
            _ => {
                let number = rest.strip_prefix('/').filter(|digits| only(digits, |c| c.is_ascii_digit()));
                let number = number.and_then(|digits| digits.parse().ok()).filter(|number| *number > 0);
                Divisor::Number(number.ok_or_else(|| {
                    wrong(
                        format!("'{}' is not a part of a share", excerpt(rest)),
                        "write for example 100%/flows, 100%/queues or 100%/3",
                    )
                })?)
            }
        };
        return Ok(RateTerm::Share(millionths, divisor));
    }
    let rate = if only(text, |c| c.is_ascii_digit()) {
        BitRate::from_str(&format!("{text}bit"))
    } else {
        BitRate::from_str(text)
    };
    rate.map(RateTerm::Fixed).map_err(|error| unit_error(&error))
}

/// Parses a share in per cent with up to four decimals. Returns the share in millionths, from 1 to 1,000,000;
/// `None` if the share is outside this range or not a number.
fn percent_to_millionths(percent: &str) -> Option<u32> {
    const DECIMALS: usize = 4;
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, "0"));
    if !only(whole, |c| c.is_ascii_digit())
        || !only(fraction, |c| c.is_ascii_digit())
        || fraction.len() > DECIMALS
    {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100)?;
    let fraction: u32 = format!("{fraction:0<DECIMALS$}").parse().ok()?;
    Some(whole * (WHOLE / 100) + fraction).filter(|millionths| (1..=WHOLE).contains(millionths))
}

pub(super) fn show_rate(rate: RateTerm) -> String {
    match rate {
        RateTerm::Fixed(rate) => rate.to_string(),
        RateTerm::Share(millionths, divisor) => {
            let (whole, fraction) = (millionths / (WHOLE / 100), millionths % (WHOLE / 100));
            let fraction = format!(".{fraction:04}");
            let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
            match divisor {
                Divisor::One => format!("{whole}{fraction}%"),
                Divisor::Flows => format!("{whole}{fraction}%/flows"),
                Divisor::Queues => format!("{whole}{fraction}%/queues"),
                Divisor::Number(number) => format!("{whole}{fraction}%/{number}"),
            }
        }
    }
}

/// Parses a size: `1514`, `1514b`, `64k`, `64KiB`, `segment`, `2*mtu`.
pub(super) fn size(text: &str) -> Result<SizeTerm, Wrong> {
    let (times, what) = match text.split_once('*') {
        Some((times, what)) => (Some(times), what),
        None => (None, text),
    };
    let measure = match what {
        "segment" => Some(Measure::Segment),
        "mtu" => Some(Measure::Mtu),
        _ => None,
    };
    if let Some(measure) = measure {
        let times = times.map_or(Ok(1), |times| count(times, 1, 100_000))?;
        return Ok(SizeTerm::Times(u32::try_from(times).unwrap_or(u32::MAX), measure));
    }
    if times.is_some() {
        let problem = format!("'{}' cannot be multiplied", excerpt(what));
        return Err(wrong(problem, "write for example 2*segment or 2*mtu"));
    }
    let (number, unit) = split_unit(text);
    let spelled = match unit {
        "" | "b" | "B" => format!("{number}B"),
        "k" | "kb" | "KiB" => format!("{number}KiB"),
        "m" | "mb" | "MiB" => format!("{number}MiB"),
        "g" | "gb" | "GiB" => format!("{number}GiB"),
        "kB" | "KB" | "K" | "Kb" | "MB" | "GB" | "Mb" => {
            let problem = format!("'{unit}' is ambiguous: some programs count 1000 bytes, others 1024");
            return Err(wrong(problem, "write for example 64KiB, or 64kb as in tc: both are 65,536 bytes"));
        }
        _ => text.to_owned(),
    };
    let size = ByteSize::from_str(&spelled).map_err(|error| unit_error(&error))?;
    if size.bytes() > u64::from(u32::MAX) {
        return Err(wrong(format!("{size} is out of range"), "write less than 4GiB"));
    }
    Ok(SizeTerm::Fixed(size))
}

/// Formats a size: in bytes with `tc`'s letter, or as a multiple such as `2*mtu`.
pub(super) fn show_size(size: SizeTerm) -> String {
    match size {
        SizeTerm::Fixed(size) => format!("{}b", size.bytes()),
        SizeTerm::Times(times, measure) => {
            let what = match measure {
                Measure::Segment => "segment",
                Measure::Mtu => "mtu",
            };
            if times == 1 { what.to_owned() } else { format!("{times}*{what}") }
        }
    }
}

/// Parses a time: `5ms`. Without a unit, the number is in microseconds, as in `tc`.
pub(super) fn time(text: &str) -> Result<Nanoseconds, Wrong> {
    let (number, unit) = split_unit(text);
    let spelled = match unit {
        "" | "usec" | "usecs" => format!("{number}us"),
        "msec" | "msecs" => format!("{number}ms"),
        "sec" | "secs" => format!("{number}s"),
        _ => text.to_owned(),
    };
    Nanoseconds::from_str(&spelled).map_err(|error| unit_error(&error))
}

/// Parses a major or minor number in hexadecimal, or a counter: `10`, `{flow}`, `{queue+100}`.
fn number(text: &str) -> Option<Number> {
    let hexadecimal = |digits: &str| {
        only(digits, |c| c.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok()).flatten()
    };
    let Some(inside) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        return hexadecimal(text).map(Number::fixed);
    };
    let (name, base) = match inside.split_once('+') {
        Some((name, base)) => (name, hexadecimal(base)?),
        None => (inside, 0),
    };
    let counter = match name {
        "flow" => Counter::Flow,
        "queue" => Counter::Queue,
        _ => return None,
    };
    Some(Number { base, counter: Some(counter) })
}

pub(super) fn show_number(number: Number) -> String {
    let name = match number.counter {
        None => return format!("{:x}", number.base),
        Some(Counter::Flow) => "flow",
        Some(Counter::Queue) => "queue",
    };
    if number.base == 0 { format!("{{{name}}}") } else { format!("{{{name}+{:x}}}", number.base) }
}

/// Parses a handle: `1:10`, `1:`, `1:{flow+100}`.
pub(super) fn handle(text: &str) -> Result<HandleTemplate, Wrong> {
    let read = || {
        let (major, minor) = text.split_once(':')?;
        let minor = if minor.is_empty() { Number::fixed(0) } else { number(minor)? };
        Some(HandleTemplate { major: number(major)?, minor })
    };
    read().ok_or_else(|| {
        wrong(
            format!("'{}' is not a handle", excerpt(text)),
            "write it in hexadecimal as tc does, for example 1: or 1:10; {flow} and {queue} count from 1, {flow+100} from 101",
        )
    })
}

pub(super) fn show_handle(handle: HandleTemplate) -> String {
    if handle.minor == Number::fixed(0) {
        format!("{}:", show_number(handle.major))
    } else {
        format!("{}:{}", show_number(handle.major), show_number(handle.minor))
    }
}

/// Parses the minor number of a class of the same qdisc, in hexadecimal.
pub(super) fn minor(text: &str) -> Result<u16, Wrong> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let read =
        only(digits, |c| c.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok()).flatten();
    read.ok_or_else(|| {
        wrong(
            format!("'{}' is not a minor number of a class", excerpt(text)),
            "write it in hexadecimal and without the qdisc's number, for example 20 for the class 1:20",
        )
    })
}

/// Returns the attribute for a number, type and value such as `3 u32 5`; a flag has no value.
pub(super) fn attribute(number: u16, of: &str, value: Option<&str>) -> Result<Attribute, Wrong> {
    let needed =
        || value.ok_or_else(|| wrong("an attribute needs a value", "write for example attribute 3 u32 5"));
    let whole = |most| count(needed()?, 0, most);
    let value = match of {
        "flag" => AttributeValue::Flag,
        "u8" => AttributeValue::U8(whole(u64::from(u8::MAX))? as u8),
        "u16" => AttributeValue::U16(whole(u64::from(u16::MAX))? as u16),
        "u32" => AttributeValue::U32(whole(u64::from(u32::MAX))? as u32),
        "u64" => AttributeValue::U64(whole(u64::MAX)?),
        "text" => AttributeValue::Text(needed()?.to_owned()),
        "bytes" => AttributeValue::Bytes(bytes(needed()?)?),
        _ => {
            let problem = format!("'{}' is not a type of an attribute", excerpt(of));
            return Err(wrong(problem, "known: u8, u16, u32, u64, text, bytes (in hexadecimal), flag"));
        }
    };
    Ok(Attribute { number, value })
}

fn bytes(text: &str) -> Result<Vec<u8>, Wrong> {
    let digits = text.as_bytes();
    let even = digits.len().is_multiple_of(2) && only(text, |c| c.is_ascii_hexdigit());
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    even.then(|| digits.chunks_exact(2).map(pair).collect::<Option<Vec<u8>>>()).flatten().ok_or_else(|| {
        wrong(
            format!("'{}' is not a string of bytes", excerpt(text)),
            "write two hexadecimal digits for each byte, for example 0a00ff",
        )
    })
}

pub(super) fn show_attribute(attribute: &Attribute) -> String {
    let number = attribute.number;
    match &attribute.value {
        AttributeValue::Flag => format!("{number} flag"),
        AttributeValue::U8(value) => format!("{number} u8 {value}"),
        AttributeValue::U16(value) => format!("{number} u16 {value}"),
        AttributeValue::U32(value) => format!("{number} u32 {value}"),
        AttributeValue::U64(value) => format!("{number} u64 {value}"),
        AttributeValue::Text(value) => format!("{number} text {value}"),
        AttributeValue::Bytes(value) => {
            let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{number} bytes {digits}")
        }
    }
}
