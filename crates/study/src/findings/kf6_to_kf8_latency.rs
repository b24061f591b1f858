//! Key findings KF6 to KF8, from the experiments of sections 5.3 and 6.2: latency without load and under
//! load.

use evenkeel_model::record::metric;

use super::{
    ALL, DEFAULT, Draft, Finding, HTB, THESIS, against_bound, shown, undecided, unmeasured, with_whom,
};
use crate::effect::{Effect, effect};
use crate::results::{Point, Results};

const LATENCY: &str = "tc-latency";
const PRIORITY: &str = "tc-priority";
const KIB: f64 = 1024.0;

fn mean_latency() -> String {
    metric::part(metric::LATENCY, "mean")
}

fn cores() -> String {
    metric::part(metric::CORES, "busy")
}

pub(super) fn kf6(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KF6",
        "mq+fq_codel takes 4 % less processor time with messages of more than 192 KB between request and response.",
        "One client, messages above 192 KiB: busy processors with mq-fq_codel over those with the others; the interval of \
         the paired ratio lies below 0.98.",
    );
    let large = |point: &Point| {
        point.number("message").is_some_and(|message| message > 192.0 * KIB)
            && point.number("probes") == Some(1.0)
    };
    let others = ["pfifo", "pfifo_fast", "drr", "qfq", HTB];
    let found = match effect(results, LATENCY, &cores(), &[DEFAULT], &others, large) {
        Ok(found) => found,
        Err(lack) => return draft.missing(results, LATENCY, &[DEFAULT, "pfifo"], lack),
    };
    draft.ratio("busy_cores_ratio", &found);
    if let Ok(latency) = effect(results, LATENCY, &mean_latency(), &[DEFAULT], &others, large) {
        draft.ratio("latency_ratio", &latency);
    }
    let reason = format!(
        "{}: {} times the busy processors; {}",
        with_whom(&found, &ALL),
        shown(&found.mean),
        against_bound(&found, 0.98)
    );
    draft.judged(found.is_below(0.98), reason, &unmeasured(results, LATENCY, &THESIS, large))
}

pub(super) fn kf7(results: &Results) -> Finding {
    const MARGIN: f64 = 0.1;
    let mut draft = Draft::new(
        "KF7",
        "With messages of 1 KB and 4 KB qdiscs do not differ in latency or processor time.",
        "Messages of 1 and 4 KiB, every number of clients: mean latency, and busy processors, with each qdisc over those \
         with pfifo; the intervals of all paired ratios lie within 10 % of 1.",
    );
    let small =
        |point: &Point| point.number("message").is_some_and(|message| message == KIB || message == 4.0 * KIB);
    let mut found: Vec<(String, Effect)> = Vec::new();
    for setup in ALL.iter().filter(|setup| **setup != "pfifo") {
        for (name, key) in [("latency", mean_latency()), ("cores", cores())] {
            match effect(results, LATENCY, &key, &[setup], &["pfifo"], small) {
                Ok(ratio) => {
                    draft.ratio(&format!("{name}_ratio.{setup}"), &ratio);
                    found.push((format!("{name} of {setup}"), ratio));
                }
                Err(None) => {}
                Err(lack) => return draft.missing(results, LATENCY, &["pfifo", HTB], lack),
            }
        }
    }
    if found.is_empty() {
        return draft.missing(results, LATENCY, &["pfifo", HTB], None);
    }
    let parts: Vec<String> =
        found.iter().map(|(name, ratio)| format!("{name} {}", shown(&ratio.mean))).collect();
    let apart = found.iter().find(|(_, ratio)| ratio.is_above(1.0 + MARGIN) || ratio.is_below(1.0 - MARGIN));
    let confirmed = found.iter().all(|(_, ratio)| ratio.is_near_one(MARGIN));
    let end = match (confirmed, apart) {
        (true, _) => "alike".to_owned(),
        (_, Some((name, _))) => format!("{name} differs from pfifo"),
        _ => undecided(
            found.iter().map(|(_, ratio)| &ratio.mean),
            "the intervals are too wide to show that they are alike",
        ),
    };
    let reason = format!("over pfifo: {}; {end}", parts.join(", "));
    draft.judged(confirmed, reason, &unmeasured(results, LATENCY, &THESIS, small))
}

pub(super) fn kf8(results: &Results) -> Finding {
    let mut draft = Draft::new(
        "KF8",
        "From 40 bulk clients on, the sensitive client's latency with HTB is 10 % to 350 % higher without priority (P0) than \
         with strict priority (P1).",
        "40 bulk clients and more: mean latency with htb-priority over that with htb-two-classes; the interval of the \
         paired ratio lies below 0.95.",
    );
    let crowded = |point: &Point| point.number("clients").is_some_and(|clients| clients >= 40.0);
    let (with, without) = (["htb-priority"], ["htb-two-classes"]);
    let found = match effect(results, PRIORITY, &mean_latency(), &with, &without, crowded) {
        Ok(found) => found,
        Err(lack) => return draft.missing(results, PRIORITY, &["htb-priority", "htb-two-classes"], lack),
    };
    draft.ratio("latency_ratio", &found);
    let tail = metric::part(metric::LATENCY, "p99");
    if let Ok(tail) = effect(results, PRIORITY, &tail, &with, &without, crowded) {
        draft.ratio("tail_latency_ratio", &tail);
    }
    if let Ok(bandwidth) = effect(results, PRIORITY, metric::THROUGHPUT, &with, &without, crowded) {
        draft.ratio("throughput_ratio", &bandwidth);
    }
    // Also report the ratio for fewer clients than the finding covers.
    if let Ok(any) = effect(results, PRIORITY, &mean_latency(), &with, &without, |point| {
        point.number("clients").is_some_and(|clients| clients > 0.0 && clients < 40.0)
    }) {
        draft.ratio("latency_ratio_below_40_clients", &any);
    }
    let half = if found.is_below(0.5) { ", and at most half" } else { "" };
    let reason = format!(
        "P1 over P0: {} times the latency{half}; {}",
        shown(&found.mean),
        against_bound(&found, 0.95)
    );
    let setups = [with, without].concat();
    draft.judged(found.is_below(0.95), reason, &unmeasured(results, PRIORITY, &setups, crowded))
}
