//! Checks that the figures of a recorded sample are possible, because the view divides and compares them.

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::ops::RangeInclusive;

use evenkeel_model::text::excerpt;

use crate::sample::{Flow, Interface, Interval, Loss, Processor, Sample};

/// Tolerance of a share: rounding can raise a sum of shares above 1.
const ROUNDING: f64 = 1e-6;
const SHARE: RangeInclusive<f64> = 0.0..=1.0 + ROUNDING;
const POSITIVE: RangeInclusive<f64> = 0.0..=f64::MAX;
/// Length of an interval, seconds: `top` takes at least 200 ms between two samples.
const SECONDS: RangeInclusive<f64> = 1e-3..=1e9;

/// Returns the first impossible figure, with its field. `before` is the time of the previous sample.
pub(crate) fn check(sample: &Sample, before: Option<u64>) -> Result<(), String> {
    // The recorded host's clock may be set back between two samples. But a later sample without an interval
    // is the first sample of another recording.
    if let Some(before) = before.filter(|before| sample.seconds == 0.0 && sample.at_ms <= *before) {
        return Err(format!(
            "at_ms is {}, that of the sample before is {before}, and seconds is 0, as in the first sample of a \
             recording",
            sample.at_ms
        ));
    }
    if sample.seconds != 0.0 {
        within("seconds", sample.seconds, &SECONDS)?;
    }
    distinct("interfaces", "interface", sample.interfaces.iter().map(|interface| &interface.name))?;
    for (number, interface) in sample.interfaces.iter().enumerate() {
        of_interface(interface).map_err(|why| format!("interfaces[{number}].{why}"))?;
    }
    distinct("processors", "processor", sample.processors.iter().map(|processor| processor.index))?;
    for (number, processor) in sample.processors.iter().enumerate() {
        of_processor(processor).map_err(|why| format!("processors[{number}].{why}"))?;
    }
    let key = |loss: &Loss| format!("at the {} of {} ({})", loss.place, loss.subject, loss.counter);
    distinct("losses", "loss", sample.losses.iter().map(key))?;
    for (number, loss) in sample.losses.iter().enumerate() {
        grown_of_32_bits(&format!("losses[{number}].packets"), Some(loss.packets))?;
    }
    Ok(())
}

fn of_interface(interface: &Interface) -> Result<(), String> {
    for (field, interval) in [
        ("sent_bytes", Some(interface.sent_bytes)),
        ("sent_packets", Some(interface.sent_packets)),
        ("received_bytes", Some(interface.received_bytes)),
        ("received_packets", Some(interface.received_packets)),
        ("bpf_ns", interface.bpf_ns),
    ] {
        grown(field, interval)?;
    }
    for (field, figure, range) in [
        ("nfm_1s", interface.nfm_1s, &POSITIVE),
        ("nfm_100ms", interface.nfm_100ms, &POSITIVE),
        ("jain_1s", interface.jain_1s, &SHARE),
    ] {
        figure.map_or(Ok(()), |figure| within(field, figure, range))?;
    }
    if let (Some(colliding), Some(busy)) = (interface.colliding_flows, interface.busy_flows)
        && colliding > busy
    {
        return Err(format!("colliding_flows is {colliding}, and busy_flows {busy}"));
    }
    distinct("queues", "queue", interface.queues.iter().map(|queue| queue.index))?;
    for queue in &interface.queues {
        let field = |name: &str| format!("queues, queue {}: {name}", queue.index);
        grown(&field("bytes"), queue.bytes)?;
        grown(&field("packets"), queue.packets)?;
        grown_of_32_bits(&field("drops"), queue.drops)?;
    }
    let key = |flow: &Flow| format!("{} {} > {}", flow.protocol, flow.source, flow.destination);
    distinct("flows", "flow", interface.flows.iter().map(key))?;
    for (number, flow) in interface.flows.iter().enumerate() {
        let field = |name: &str| format!("flows[{number}].{name}");
        grown(&field("bytes"), Some(flow.bytes))?;
        grown(&field("socket.retransmitted"), flow.socket.as_ref().map(|socket| socket.retransmitted))?;
        flow.of_fair_share.map_or(Ok(()), |share| within(&field("of_fair_share"), share, &POSITIVE))?;
    }
    Ok(())
}

fn of_processor(processor: &Processor) -> Result<(), String> {
    let shares = [
        ("user", processor.user),
        ("system", processor.system),
        ("softirq", processor.softirq),
        ("idle", processor.idle),
    ];
    for (field, share) in shares {
        within(field, share, &SHARE)?;
    }
    within("user + system + softirq + idle", shares.iter().map(|(_, share)| share).sum(), &SHARE)?;
    // Do not check `interrupts`: it is a sum of counters that wrap one by one.
    grown_of_32_bits("packets", processor.packets)?;
    grown_of_32_bits("dropped", processor.dropped)?;
    grown_of_32_bits("squeezed", processor.squeezed)
}

fn within(field: &str, figure: f64, range: &RangeInclusive<f64>) -> Result<(), String> {
    if range.contains(&figure) {
        return Ok(());
    }
    let range = match (*range.start(), *range.end()) {
        (least, f64::MAX) => format!("at least {least}"),
        (least, most) => format!("from {least} to {}", if most > 1.0 && most < 2.0 { 1.0 } else { most }),
    };
    Err(format!("{field} is {figure:?}, but can only be {range}"))
}

/// Checks that a counter has not grown by more than its value. A counter that restarted has grown by its
/// value.
fn grown(field: &str, interval: Option<Interval>) -> Result<(), String> {
    match interval {
        Some(Interval { total, delta }) if delta > total => {
            Err(format!("{field}.delta is {delta}, and its total {total}"))
        }
        _ => Ok(()),
    }
}

/// Checks the growth of a counter of 32 bits. The growth of a counter that wrapped exceeds its value, but by
/// at most a quarter of its range ([`Interval::since_32_bits`]).
fn grown_of_32_bits(field: &str, interval: Option<Interval>) -> Result<(), String> {
    match interval {
        Some(Interval { total, delta }) if delta > total.saturating_add(1 << 30) => {
            Err(format!("{field}.delta is {delta}, and its total {total}"))
        }
        _ => Ok(()),
    }
}

fn distinct<K: Hash + Eq + Display>(
    list: &str,
    what: &str,
    keys: impl Iterator<Item = K>,
) -> Result<(), String> {
    let mut seen = HashSet::new();
    for key in keys {
        if seen.contains(&key) {
            return Err(format!("{list} has the {what} {} twice", excerpt(&key.to_string())));
        }
        seen.insert(key);
    }
    Ok(())
}
