//! The first line of the screen and of each pane: a summary in words.

use evenkeel_model::text::{counted, excerpt};

use crate::sample::{Interface, Interval, Loss, Sample};
use crate::view::figures::{bytes, index, per_second, percent, quantity, rate};
use crate::view::rows::{OVERLOADED, busy};

fn number(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Returns the losses that concern an interface: losses of the interface itself, of processors and of
/// sockets.
fn losses_of<'s>(sample: &'s Sample, interface: &'s Interface) -> impl Iterator<Item = &'s Loss> {
    let is_other = |loss: &&Loss| {
        loss.subject != interface.name && sample.interfaces.iter().any(|other| other.name == loss.subject)
    };
    sample.losses.iter().filter(move |loss| !is_other(loss))
}

/// Describes the losses in the interval, such as `120 packets lost/s at the qdisc`; `None` without losses.
fn loss_words<'l>(losses: impl Iterator<Item = &'l Loss>, seconds: f64) -> Option<String> {
    let current: Vec<&Loss> = losses.filter(|loss| loss.packets.delta > 0).collect();
    let most = current.iter().max_by_key(|loss| loss.packets.delta)?;
    let total = current.iter().fold(0, |sum: u64, loss| sum.saturating_add(loss.packets.delta));
    let rate = quantity(total as f64 / seconds);
    let noun = if rate == "1" { "packet" } else { "packets" };
    let most_of = if current.len() > 1 { ", most" } else { "" };
    Some(format!("{rate} {noun} lost/s{most_of} at the {}", excerpt(&most.place)))
}

/// Returns the summary of the whole screen for an interface.
pub fn summary(sample: &Sample, interface: Option<&Interface>) -> String {
    let Some(interface) = interface else { return "no interface".to_owned() };
    let name = excerpt(&interface.name);
    if per_second(interface.sent_bytes, sample.seconds).is_none() {
        return format!("{name}: first sample; rates follow after the first interval");
    }
    let state = if interface.up { "" } else { "is down; " };
    let sent = rate(interface.sent_bytes, sample.seconds);
    let flows = match interface.busy_flows {
        Some(0) if interface.active_flows.is_some_and(|active| active > 0) => {
            let active = interface.active_flows.unwrap_or(0);
            format!(", no busy flow, {} active", quantity(active as f64))
        }
        Some(0) => ", no busy flow".to_owned(),
        Some(flows) => format!(", {}", counted(number(flows), "busy flow")),
        None => String::new(),
    };
    let unknown = without_queue(interface);
    let collisions = match (interface.busy_flows, interface.colliding_flows) {
        (None | Some(0 | 1), _) | (_, None) => String::new(),
        (_, Some(0)) if unknown.is_some() => String::new(),
        (_, Some(0)) => ", none shares a queue".to_owned(),
        (_, Some(1)) => ", 1 shares a queue".to_owned(),
        (_, Some(flows)) => format!(", {} share a queue", quantity(flows as f64)),
    };
    let unknown = unknown.map(|flows| format!(", {flows} on unknown queues")).unwrap_or_default();
    let nfm = interface.nfm_1s.map(|nfm| format!(", NFM {}", index(nfm))).unwrap_or_default();
    let losses = loss_words(losses_of(sample, interface), sample.seconds);
    let losses = losses.unwrap_or_else(|| match sample.unread_places.as_slice() {
        _ if sample.losses_incomplete => "losses are not known".to_owned(),
        [] => "no losses".to_owned(),
        places => format!("no losses seen; losses at the {} are not known", places.join(", ")),
    });
    format!("{name}: {state}{sent} out{flows}{collisions}{unknown}{nfm}; {losses}")
}

/// Returns the number of busy flows whose transmit queue is not known; `None` if there are no such flows, the
/// interface has only one queue, or the flows or their queues are unknown.
fn without_queue(interface: &Interface) -> Option<String> {
    let known = interface.queues.iter().filter_map(|queue| queue.busy_flows);
    let known = known.map(u64::from).fold(0, u64::saturating_add);
    let unknown = interface.busy_flows?.saturating_sub(known);
    let is_seen = interface.queues.len() > 1 && interface.colliding_flows.is_some() && unknown > 0;
    is_seen.then(|| quantity(unknown as f64))
}

pub fn queues(interface: &Interface, seconds: f64) -> String {
    let queues = &interface.queues;
    if queues.is_empty() {
        return "no transmit queue is known".to_owned();
    }
    let count = counted(queues.len(), "queue");
    let mut parts = Vec::new();
    let fullest = queues.iter().filter(|queue| queue.busy_flows > Some(0)).max_by_key(|queue| {
        // Of several queues with the maximum, choose the first.
        (queue.busy_flows, u32::MAX - queue.index)
    });
    match fullest {
        Some(fullest) => {
            let flows = quantity(fullest.busy_flows.unwrap_or(0).into());
            let all = counted(number(interface.busy_flows.unwrap_or(0)), "busy flow");
            let empty = queues.iter().filter(|queue| queue.busy_flows == Some(0)).count();
            parts.push(format!("queue {} has {flows} of {all}", fullest.index));
            let (empty, of) = (quantity(empty as f64), quantity(queues.len() as f64));
            match without_queue(interface) {
                Some(unknown) => parts.push(format!("{unknown} are on unknown queues")),
                None => parts.push(format!("{empty} of {of} have none")),
            }
        }
        None if queues.iter().any(|queue| queue.busy_flows.is_some()) => {
            parts.push(format!("no busy flow on {count}"));
        }
        None => {
            let sending = queues.iter().filter_map(|queue| Some((queue.bytes?, queue.index)));
            let busiest = sending
                .filter(|(bytes, _)| bytes.delta > 0)
                .max_by_key(|(bytes, index)| (bytes.delta, u32::MAX - index));
            parts.push(match busiest {
                Some((bytes, index)) => {
                    format!("queue {index} of {count} sends most: {}", rate(bytes, seconds))
                }
                None => count,
            });
        }
    }
    let waiting = queues.iter().filter_map(|queue| queue.backlog_bytes).fold(0, u64::saturating_add);
    if waiting > 0 {
        parts.push(format!("{} wait", bytes(waiting)));
    }
    let dropped = queues.iter().filter_map(|queue| queue.drops).map(|drops| drops.delta);
    let dropped = dropped.fold(0, u64::saturating_add);
    if dropped > 0 && seconds > 0.0 {
        parts.push(format!("{} drops/s", quantity(dropped as f64 / seconds)));
    }
    parts.join(", ")
}

pub fn flows(interface: &Interface, seconds: f64) -> String {
    if seconds <= 0.0 {
        return "known after the first interval".to_owned();
    }
    let listed = interface.flows.len() as u64;
    let Some(active) = interface.active_flows.map(|active| active.max(listed)) else {
        return "not known: sockets or addresses could not be read".to_owned();
    };
    if active == 0 {
        return if interface.observed {
            "no flow sent data in the interval".to_owned()
        } else {
            "no TCP socket sent data in the interval; other flows are not observed".to_owned()
        };
    }
    let busy = interface.busy_flows.map(|busy| format!("{} busy of ", quantity(busy as f64)));
    let mut words = format!("{}{}", busy.unwrap_or_default(), counted(number(active), "active flow"));
    if listed < active {
        words += &format!(", {} listed", quantity(listed as f64));
    }
    let shares = interface.flows.iter().filter_map(|flow| flow.of_fair_share);
    let shares = shares.filter(|share| share.is_finite()).map(|share| (share, share));
    match shares.reduce(|(least, most), (share, _)| (least.min(share), most.max(share))) {
        Some((least, most)) if least < most => {
            words + &format!("; shares {} to {}", index(least), index(most))
        }
        _ => words,
    }
}

pub fn processors(sample: &Sample) -> String {
    let processors = &sample.processors;
    if processors.is_empty() {
        return "no processor is known".to_owned();
    }
    let known = processors.iter().filter_map(|processor| Some((busy(processor)?, processor)));
    let known = known.filter(|(busy, _)| busy.is_finite());
    let busiest = known.clone().reduce(|first, second| if second.0 > first.0 { second } else { first });
    let Some((share, busiest)) = busiest else {
        return format!("{}; shares follow after the first interval", counted(processors.len(), "processor"));
    };
    let mut words = format!(
        "CPU {} is busiest: {} ({} softirq)",
        busiest.index,
        percent(share),
        percent(busiest.softirq)
    );
    let overloaded = known.filter(|(busy, _)| *busy >= OVERLOADED).count();
    if overloaded > 1 {
        let (overloaded, all) = (quantity(overloaded as f64), quantity(processors.len() as f64));
        words += &format!("; {overloaded} of {all} above {}", percent(OVERLOADED));
    }
    let sum = |count: fn(&crate::Processor) -> Option<Interval>| {
        let counts = processors.iter().filter_map(count);
        counts.filter_map(|count| per_second(count, sample.seconds)).sum::<f64>()
    };
    let dropped = sum(|processor| processor.dropped);
    let squeezed = sum(|processor| processor.squeezed);
    match (dropped > 0.0, squeezed > 0.0) {
        (false, _) if processors.iter().any(|processor| processor.dropped.is_none()) => {
            words + "; drops are not known"
        }
        (true, _) => words + &format!("; {} drops/s at the backlog", quantity(dropped)),
        (false, true) => words + &format!("; {} squeezed polls/s", quantity(squeezed)),
        (false, false) => words + "; no drops",
    }
}

pub fn losses(sample: &Sample) -> String {
    if sample.seconds <= 0.0 && !sample.losses_incomplete {
        return "known after the first interval".to_owned();
    }
    let total = sample.losses.iter().map(|loss| loss.packets.total).fold(0, u64::saturating_add);
    if total == 0 {
        return match sample.unread_places.as_slice() {
            _ if sample.losses_incomplete => "not known: counters could not be read".to_owned(),
            [] => "no packet lost since the start".to_owned(),
            places => {
                format!("no packet lost since the start; losses at the {} are not known", places.join(", "))
            }
        };
    }
    let total = quantity(total as f64);
    let current = match per_second(Default::default(), sample.seconds) {
        Some(_) => loss_words(sample.losses.iter(), sample.seconds),
        None => None,
    };
    match current {
        Some(current) => format!("{current}; {total} since the start"),
        None => format!("none lost in the interval; {total} since the start"),
    }
}

pub fn fairness(interface: &Interface) -> String {
    match (interface.nfm_1s, interface.jain_1s) {
        (Some(nfm), jain) => {
            let jain = jain.map(|jain| format!("; Jain's index {}", index(jain))).unwrap_or_default();
            format!("best and worst flow differ by {} fair shares{jain}", index(nfm))
        }
        (None, Some(jain)) => format!("Jain's index {} over 1 s", index(jain)),
        (None, None) if !interface.observed => "not known: the flows are not observed".to_owned(),
        (None, None) if interface.busy_flows.is_none() => "known after the first whole second".to_owned(),
        (None, None) => "no two flows competed in the last second".to_owned(),
    }
}
