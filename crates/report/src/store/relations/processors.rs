//! Relations of processor times.

use evenkeel_model::record::{ProcessorRecord, metric};

use super::{Checked, Facts, ROUNDING, against, is_part, same};

const GIGABYTE_BITS: f64 = 8e9;

/// Checks processor time against its parts, the processors and the payload.
pub(super) fn time(facts: &Facts<'_>) -> Checked {
    let throughput = facts.of(metric::THROUGHPUT);
    let cpu = facts.of(metric::CPU);
    if let (Some(per_core), Some(throughput), Some(cpu)) =
        (facts.of(metric::THROUGHPUT_PER_CORE), throughput, cpu)
    {
        let others = format!("throughput_bps, {throughput}, and cpu_pct, {cpu}");
        same(metric::THROUGHPUT_PER_CORE, per_core * cpu / 100.0, throughput, &others)
            .map_err(|_| against(metric::THROUGHPUT_PER_CORE, per_core, others))?;
    }
    let [busy_part, user, system, softirq, _] = metric::CORES_PARTS;
    for prefix in [metric::CORES, metric::CPU_PER_GB] {
        let of = |part| facts.part(prefix, part);
        if let (Some(busy), Some(user), Some(system), Some(softirq)) =
            (of(busy_part), of(user), of(system), of(softirq))
        {
            let source = "the sum of its parts user, system and softirq";
            same(&metric::part(prefix, busy_part), busy, user + system + softirq, source)?;
        }
    }
    let busy = facts.part(metric::CORES, busy_part);
    if let (Some(cpu), Some(busy)) = (cpu, busy) {
        same(metric::CPU, cpu, 100.0 * busy, "cores.busy in per cent")?;
    }
    let processors = facts.repeat.tenants.as_ref().map(|tenants| &tenants.processors[..]).unwrap_or_default();
    let times: [fn(&ProcessorRecord) -> f64; 5] =
        [|of| of.user + of.system + of.softirq, |of| of.user, |of| of.system, |of| of.softirq, |of| of.wait];
    for (part, time) in metric::CORES_PARTS.into_iter().zip(times) {
        let Some(cores) = facts.part(metric::CORES, part) else { continue };
        if !processors.is_empty() {
            let sum = processors.iter().map(time).sum();
            same(&metric::part(metric::CORES, part), cores, sum, "the sum over the recorded processors")?;
        }
        let per_gigabyte = facts.part(metric::CPU_PER_GB, part).zip(throughput.filter(|bps| *bps > 0.0));
        if let Some((seconds, throughput)) = per_gigabyte {
            let key = metric::part(metric::CPU_PER_GB, part);
            let source = format!("{} by throughput_bps", metric::part(metric::CORES, part));
            same(&key, seconds, cores * GIGABYTE_BITS / throughput, &source)?;
        }
    }
    Ok(())
}

/// Checks that the shares of the cycles add up to 1, or to at most 1 if a share is missing.
pub(super) fn shares(facts: &Facts<'_>) -> Checked {
    let shares = || facts.repeat.metrics.iter().filter(|(key, _)| is_part(key, metric::CPU_SHARE));
    let sum: f64 = shares().map(|(_, share)| share).sum();
    let is_complete = shares().count() == metric::CPU_SHARE_PARTS.len();
    let sum_field = "the sum of cpu_share";
    if sum > 1.0 + ROUNDING {
        return Err(against(sum_field, sum, "1, which is all processor time"));
    }
    if is_complete && sum < 1.0 - ROUNDING {
        return Err(against(sum_field, sum, "1, because no part is missing"));
    }
    Ok(())
}
