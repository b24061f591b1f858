//! Relations of figures with the counts of flows and qdiscs.

use evenkeel_model::record::{QdiscRecord, metric};

use super::{Checked, Facts, ROUNDING, against, at_most, is_part, is_whole, same};

/// Retransmissions of a flow within this time are one event. In seconds.
const EVENT: f64 = 0.1;

pub(super) fn whole(facts: &Facts<'_>) -> Checked {
    let is_count = |key: &str| {
        [metric::RETRANSMITS, metric::OUT_OF_ORDER].contains(&key)
            || [metric::DROPS, metric::QDISC].iter().any(|prefix| is_part(key, prefix))
    };
    for (key, value) in &facts.repeat.metrics {
        if is_count(key) && value.fract() != 0.0 {
            return Err(against(key, *value, "the unit: a count is a whole number"));
        }
    }
    Ok(())
}

/// Checks the answered requests of probes: the number of requests must be a positive whole number, and the
/// number of late requests a whole number. In a simulation, also checks the rate of requests against the
/// mean latency.
pub(super) fn transactions(facts: &Facts<'_>) -> Checked {
    let Some((run, rate)) = facts.timed_run().zip(facts.of(metric::TRANSACTIONS)) else { return Ok(()) };
    let count = rate * run.seconds;
    if !is_whole(count) || count.round() == 0.0 {
        let seconds = run.seconds;
        return Err(against(
            metric::TRANSACTIONS,
            rate,
            format!("the unit: {count} requests in {seconds} s are no whole number above 0"),
        ));
    }
    if let Some(share) = facts.of(metric::SLO_VIOLATIONS).filter(|share| !is_whole(share * count)) {
        return Err(against(metric::SLO_VIOLATIONS, share, format!("the number of requests, {count}")));
    }
    // A probe has one request at a time. The simulator counts a request at its answer, so the first
    // request may begin in the warm-up.
    let probes = facts.known.and_then(|(_, variant)| variant.tenants()).and_then(|point| point.probes);
    if let (true, Some(probes), Some(half_us)) =
        (facts.is_simulated(), probes, facts.part(metric::LATENCY, "mean"))
        && half_us > 0.0
    {
        let time = f64::from(probes.count) * (run.seconds + run.warmup);
        let most = time / (2.0 * half_us / 1e6) / run.seconds;
        at_most(
            metric::TRANSACTIONS,
            rate,
            most,
            ROUNDING,
            "latency_us.mean, with one request of a probe at a time",
        )?;
    }
    Ok(())
}

/// Checks the throughput against the payload of the flows. A shuffle's time ends with its last flow.
pub(super) fn throughput(facts: &Facts<'_>) -> Checked {
    let (Some(run), Some(throughput)) = (facts.run, facts.of(metric::THROUGHPUT)) else { return Ok(()) };
    // The payload of clients that send requests is recorded separately.
    if !facts.repeat.clients.is_empty() {
        return Ok(());
    }
    if facts.repeat.flows.is_empty() && throughput > 0.0 {
        return Err(against(metric::THROUGHPUT, throughput, "the record, which has no flows"));
    }
    let payload = facts.payload();
    if run.seconds > 0.0 {
        let source = format!("the payload of the flows, {payload} bytes in {} s", run.seconds);
        return same(metric::THROUGHPUT, throughput, payload * 8.0 / run.seconds, &source);
    }
    if throughput == 0.0 && payload > 0.0 {
        let source = format!("the payload of the flows, {payload} bytes");
        return Err(against(metric::THROUGHPUT, throughput, source));
    }
    let (Some(elapsed), Some(sim)) = (facts.elapsed(), &facts.repeat.sim) else { return Ok(()) };
    if elapsed > sim.simulated_s * (1.0 + ROUNDING) {
        let source = format!("the payload of the flows, {payload} bytes in at most {} s", sim.simulated_s);
        return Err(against(metric::THROUGHPUT, throughput, source));
    }
    Ok(())
}

pub(super) fn of_flows(facts: &Facts<'_>) -> Checked {
    let flows = &facts.repeat.flows;
    // The test bed reads the retransmissions of its flows separately from the retransmissions of the
    // sender's namespace, so the sum over its flows can differ.
    let is_sum = facts.is_simulated() || facts.of(metric::RETRANSMITS_PER_S).is_some();
    let retransmits: Option<u64> = flows.iter().map(|flow| flow.retransmits).sum();
    let out_of_order: Option<u64> = flows.iter().map(|flow| flow.out_of_order).sum();
    let sums = [
        (metric::RETRANSMITS, retransmits.filter(|_| is_sum)),
        (metric::OUT_OF_ORDER, out_of_order.filter(|_| !flows.is_empty())),
    ];
    for (key, sum) in sums {
        if let (Some(value), Some(sum)) = (facts.of(key), sum)
            && value != sum as f64
        {
            return Err(against(key, value, format!("the sum over the flows, {sum}")));
        }
    }
    Ok(())
}

/// Checks each counter of the qdisc against the root, whose count is the largest of the recorded
/// qdiscs.
pub(super) fn of_qdiscs(facts: &Facts<'_>) -> Checked {
    let Some(tenants) = &facts.repeat.tenants else { return Ok(()) };
    let counts: [fn(&QdiscRecord) -> u64; 4] =
        [|qdisc| qdisc.drops, |qdisc| qdisc.overlimits, |qdisc| qdisc.requeues, |qdisc| qdisc.backlog_bytes];
    for (part, count) in metric::QDISC_PARTS.into_iter().zip(counts) {
        let most = tenants.qdiscs.iter().map(count).max();
        if let (Some(value), Some(most)) = (facts.part(metric::QDISC, part), most) {
            same(
                &metric::part(metric::QDISC, part),
                value,
                most as f64,
                "the largest count of a recorded qdisc",
            )?;
        }
    }
    Ok(())
}

/// Checks retransmissions per second, and retransmission events per second, against the number of
/// retransmissions.
pub(super) fn retransmission_rates(facts: &Facts<'_>) -> Checked {
    let (Some(run), Some(retransmits)) = (facts.timed_run(), facts.of(metric::RETRANSMITS)) else {
        return Ok(());
    };
    let seconds = run.seconds;
    let count = format!("retransmits, {retransmits} in {seconds} s");
    if let Some(rate) = facts.of(metric::RETRANSMITS_PER_S) {
        same(metric::RETRANSMITS_PER_S, rate, retransmits / seconds, &count)?;
    }
    let Some(rate) = facts.of(metric::RETRANSMISSION_EVENTS_PER_S) else { return Ok(()) };
    let events = rate * seconds;
    let wrong = |what: String| Err(against(metric::RETRANSMISSION_EVENTS_PER_S, rate, what));
    if events > retransmits * (1.0 + ROUNDING) + ROUNDING {
        return wrong(count);
    }
    let flows = facts.repeat.flows.len();
    let most = flows as f64 * ((seconds / EVENT).floor() + 1.0);
    if events > most * (1.0 + ROUNDING) {
        return wrong(format!("the number of flows ({flows}): a flow has at most one event per 100 ms"));
    }
    if !is_whole(events) {
        return wrong(format!("the unit: {events} events in {seconds} s are no whole number"));
    }
    Ok(())
}
