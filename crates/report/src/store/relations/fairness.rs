//! Relations of fairness metrics with the bytes of the flows.

use evenkeel_metrics::jain;
use evenkeel_model::record::{FlowRecord, metric};

use super::{Checked, Facts, ROUNDING, against, at_least, at_most, is_same};

pub(super) fn jain_of_flows(facts: &Facts<'_>) -> Checked {
    let flows = &facts.repeat.flows;
    for key in [metric::JAIN_BYTES, metric::JAIN_PACKETS] {
        let count = |flow: &FlowRecord| if key == metric::JAIN_BYTES { flow.bytes } else { flow.packets };
        let Some(value) = facts.of(key) else { continue };
        let counts: Vec<f64> = flows.iter().map(|flow| count(flow) as f64).collect();
        match jain(&counts) {
            Some(index) if (index - value).abs() <= ROUNDING => {}
            Some(index) => {
                let what = format!("the recorded flows ({}), whose index is {index}", flows.len());
                return Err(against(key, value, what));
            }
            None => return Err(against(key, value, "the recorded flows, which sent nothing")),
        }
    }
    Ok(())
}

/// Checks the NFM. A window's value is the largest difference between the bytes of two flows, divided by a
/// flow's fair share of the window.
///
/// - The difference in any window is at most the bytes of the largest flow.
/// - The largest value is at most the sum of all values.
/// - Simulated bulk flows compete in every window. The sum of the differences in all windows is then at
///   most the bytes of all flows. If the windows also fill the measured time, the mean is at least the
///   difference of the sums. The mean and the largest value over parts of windows are then at least those
///   over windows (triangle inequality).
pub(super) fn nfm(facts: &Facts<'_>) -> Checked {
    let flows = &facts.repeat.flows;
    let Some(run) = facts.timed_run() else { return Ok(()) };
    let bytes = || flows.iter().map(|flow| flow.bytes as f64);
    let (sum, most, least) =
        (bytes().sum::<f64>(), bytes().fold(0.0, f64::max), bytes().fold(f64::INFINITY, f64::min));
    // Bytes as a multiple of a flow's fair share of `seconds`.
    let share = |bytes: f64, seconds: f64| bytes * 8.0 * flows.len() as f64 / (run.rate_bps as f64 * seconds);
    let always_compete = facts.is_simulated() && facts.repeat.tenants.is_none() && flows.len() > 1;
    let fills = |length: f64| {
        let count = (run.seconds / length).round();
        count >= 1.0 && is_same(count * length, run.seconds)
    };
    for (name, length) in run.windows.iter().filter(|(_, length)| **length > 0.0) {
        let [mean_key, max_key] = [metric::NFM, metric::NFM_MAX].map(|prefix| metric::part(prefix, name));
        let (mean, max) = (facts.of(&mean_key), facts.of(&max_key));
        // Lengths are rounded to nanoseconds.
        let windows = (run.seconds / length * (1.0 + ROUNDING)).floor().max(1.0);
        if let Some(max) = max {
            at_most(&max_key, max, share(most, *length), ROUNDING, "the bytes of the largest flow")?;
        }
        if let (Some(mean), Some(max)) = (mean, max) {
            let source = format!("{mean_key}, {mean}, in {windows} windows");
            at_most(&max_key, max, mean * windows, ROUNDING, &source)?;
        }
        let Some(mean) = mean.filter(|_| always_compete) else { continue };
        at_most(&mean_key, mean, share(sum, windows * length), ROUNDING, "the bytes of the flows")?;
        if !fills(*length) {
            continue;
        }
        at_least(&mean_key, mean, share(most - least, run.seconds), ROUNDING, "the difference of the flows")?;
        for (longer_name, longer) in run.windows.iter().filter(|(_, longer)| **longer > *length) {
            let parts = (longer / length).round();
            if !fills(*longer) || !is_same(parts * length, *longer) {
                continue;
            }
            for (key, prefix) in [(&mean_key, metric::NFM), (&max_key, metric::NFM_MAX)] {
                if let (Some(value), Some(of_longer)) = (facts.of(key), facts.part(prefix, longer_name)) {
                    let source = format!(
                        "{}, whose windows consist of these shorter windows",
                        metric::part(prefix, longer_name)
                    );
                    at_least(key, value, of_longer, ROUNDING, &source)?;
                }
            }
        }
    }
    Ok(())
}
