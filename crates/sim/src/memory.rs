//! Estimates the memory of a repeat, and limits it.

use evenkeel_model::scenario::{Scenario, Variant};
use evenkeel_model::units::Nanoseconds;

use crate::error::SimError;
use crate::observation::BIN_BYTES;
use crate::transfers::TCP_BIN_BYTES;

/// Limit of the estimated memory of a repeat in bytes.
const MOST: u64 = 400_000_000;
/// Bytes per simulated flow with its results. Measured on x86_64: 2.6 kB for each of 100,000 flows
/// between two hosts, and 2.4 to 3.0 kB per flow of a shuffle of 128 to 512 hosts.
const FLOW: u64 = 3_000;
/// Bytes per host of a shuffle, without its flows. Measured with 64 to 512 hosts: 120 kB per host.
const HOST: u64 = 150_000;
/// Bytes per flow in a record.
const RECORDED_FLOW: u64 = 170;
/// Bytes for each second of a client that sends requests.
const SECOND: u64 = 24;

/// Estimated memory of a repeat in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// While the repeat runs and its metrics are computed.
    pub running: u64,
    /// Until the record is written.
    pub kept: u64,
}

struct Extent {
    flows: u64,
    hosts: u64,
    /// Number of bins of each flow, converted to bins of [`BIN_BYTES`].
    bins: u64,
    clients: u64,
    seconds: u64,
}

impl Extent {
    fn of(scenario: &Scenario, variant: &Variant, duration: Nanoseconds, bin: Nanoseconds) -> Self {
        let workload = &scenario.workload;
        let bins = duration.as_u64() / bin.as_u64().max(1);
        let none = Self { flows: 0, hosts: 0, bins: 0, clients: 0, seconds: 0 };
        if let Some(requests) = workload.requests() {
            let clients = requests.clients_with(&variant.name).map(|group| u64::from(group.count)).sum();
            return Self { clients, seconds: duration.as_u64().div_ceil(1_000_000_000), ..none };
        }
        if let Some(point) = variant.tenants() {
            // The line also has bins.
            return Self { flows: u64::from(point.bulk_flows() + point.probe_count()) + 1, bins, ..none };
        }
        if let Some(transfers) = variant.transfers() {
            let hosts = u64::from(transfers.senders + transfers.receivers);
            // A bin of the TCP series takes more memory. Convert it to bins of `BIN_BYTES`.
            let per_bin = if transfers.tcp_series { 1 + TCP_BIN_BYTES / BIN_BYTES } else { 1 };
            let bins = bins.saturating_mul(per_bin);
            return Self { flows: u64::from(transfers.flows), bins, hosts, ..none };
        }
        if workload.shuffled_bytes().is_some() {
            let hosts = u64::from(scenario.hosts.count);
            return Self { flows: hosts * hosts.saturating_sub(1), hosts, ..none };
        }
        // Clients that fetch values have latencies as results, so their flows have no bins.
        let bins = if workload.clients().is_empty() { bins } else { 0 };
        Self { flows: u64::from(workload.flows), bins, ..none }
    }

    fn memory(&self) -> Memory {
        let of_clients = self.clients.saturating_mul(self.seconds).saturating_mul(SECOND);
        let of_flows = self.flows.saturating_mul(self.bins.saturating_mul(BIN_BYTES).saturating_add(FLOW));
        Memory {
            running: of_flows.saturating_add(self.hosts * HOST).saturating_add(of_clients),
            kept: self.flows.saturating_mul(RECORDED_FLOW).saturating_add(of_clients),
        }
    }
}

/// Estimates the memory of a repeat of length `duration`, with bins of length `bin`.
#[must_use]
pub fn of_repeat(scenario: &Scenario, variant: &Variant, duration: Nanoseconds, bin: Nanoseconds) -> Memory {
    Extent::of(scenario, variant, duration, bin).memory()
}

/// Returns an error if a repeat would take more memory than allowed.
///
/// # Errors
/// The error names the key of the scenario that determines the memory.
pub fn check_memory(
    scenario: &Scenario,
    variant: &Variant,
    duration: Nanoseconds,
    bin: Nanoseconds,
) -> Result<(), SimError> {
    let extent = Extent::of(scenario, variant, duration, bin);
    let needed = extent.memory().running;
    if needed <= MOST {
        return Ok(());
    }
    let Extent { flows, hosts, bins, clients, .. } = extent;
    let (key, work, advice) = if clients > 0 {
        (
            "measure.duration",
            format!("{clients} clients in {duration}"),
            "measure for a shorter time, or use fewer clients",
        )
    } else if variant.transfers().is_none() && hosts > 0 {
        ("hosts.count", format!("{flows} flows between {hosts} hosts"), "use fewer hosts")
    } else if variant.tenants().is_some() {
        let work = format!("{flows} flows in {bins} bins of {bin}");
        ("measure.duration", work, "measure for a shorter time, in whole milliseconds, or use fewer clients")
    } else {
        let work = format!("{flows} flows in {bins} bins of {bin}");
        ("measure.windows", work, "use a longer shortest window, a shorter repeat or fewer flows")
    };
    let (needed, most) = (needed.div_ceil(1_000_000), MOST / 1_000_000);
    let problem = format!(
        "{key}: {work} need about {needed} MB of memory in each repeat, above the limit of {most} MB; {advice}"
    );
    Err(SimError::Input { key: key.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_model::scenario::bundled::{bundled, variant_tables};
    use evenkeel_model::scenario::parse;

    use super::*;

    /// Checks a variant of a bundled scenario in which `to` replaces the text `from`. The run lasts
    /// `seconds` and has bins of 10 µs.
    fn check((name, variant): (&str, &str), (from, to): (&str, &str), seconds: u64) -> Result<(), String> {
        let scenarios = bundled();
        let (_, text) = scenarios.iter().find(|(known, _)| *known == name).unwrap();
        assert!(text.contains(from), "{name}: {from}");
        let scenario = parse(&text.replace(from, to), name, variant_tables()).unwrap();
        let variant = scenario.select(&[variant.to_owned()]).unwrap()[0];
        let times = (Nanoseconds::from_secs(seconds), Nanoseconds::from_micros(10));
        check_memory(&scenario, variant, times.0, times.1).map_err(|error| {
            assert!(error.key().is_some_and(|key| error.to_string().starts_with(key)), "{error}");
            error.to_string()
        })
    }

    #[test]
    fn repeats_that_fill_the_memory_are_refused() {
        let flows = "flows = 192";
        assert_eq!(check(("titan-192-flows", "cmax"), (flows, flows), 1), Ok(()));
        let error = check(("titan-192-flows", "cmax"), (flows, flows), 5).unwrap_err();
        let expected = "measure.windows: 192 flows in 500000 bins of 10us need about 1537 MB";
        assert!(error.starts_with(expected), "{error}");
        let hosts = "count = 6";
        assert_eq!(check(("shuffle-6", "cmax"), (hosts, "count = 320"), 5), Ok(()));
    }
}
