//! Measures the CPUs' capacity, and chooses a line rate at which the NIC is the bottleneck.

use std::time::Duration;

use evenkeel_model::scenario::{Scenario, Topology, Variant};
use evenkeel_model::units::{BitRate, Nanoseconds};
use evenkeel_model::world::{Job, Observer};

use crate::error::TestbedError;
use crate::kernel::{KernelFeatures, bed_options};
use crate::repeat;

/// Line rates for `auto`. The rates are far apart, so that a short load does not change the choice, and
/// runs on one machine are comparable.
pub(crate) const LADDER_BPS: [u64; 5] =
    [100_000_000_000, 40_000_000_000, 10_000_000_000, 2_000_000_000, 1_000_000_000];
/// Headroom for `auto`: the CPUs' capacity divided by the line rate. A shaped line costs more per byte
/// than an unshaped line, on which the kernel processes packets in batches. A shared machine can also
/// become several times slower for seconds.
pub(crate) const AUTO_HEADROOM: f64 = 6.0;
/// Minimum headroom for a rate that the user requests.
const LEAST_HEADROOM: f64 = 1.3;
/// Rate that is too high to have an effect.
const UNSHAPED: BitRate = BitRate::from_bits_per_second(400_000_000_000);
const WARMUP: Nanoseconds = Nanoseconds::from_millis(500);
const DURATION: Nanoseconds = Nanoseconds::from_millis(1500);
const BIN: Nanoseconds = Nanoseconds::from_millis(100);

/// Returns the throughput of the scenario's flows through an unshaped test bed, payload bit/s.
pub(crate) fn measure(
    scenario: &Scenario,
    variant: &Variant,
    features: KernelFeatures,
    observer: &dyn Observer,
) -> Result<f64, TestbedError> {
    let mut scenario = scenario.clone();
    scenario.workload.latency = None;
    let job = Job {
        scenario: &scenario,
        variant,
        repeat: 0,
        seed: 0,
        rate: UNSHAPED,
        warmup: WARMUP,
        duration: DURATION,
        bin: BIN,
    };
    let mut options = bed_options(variant, features, scenario.link.queues, Topology::SoftNic);
    options.rate = UNSHAPED;
    options.mtu = u32::try_from(scenario.link.mtu.bytes()).unwrap_or(1500);
    let raw = repeat::run(&job, options, observer)?;
    let bytes: u64 = raw.flows.iter().map(|flow| flow.payload_bytes).sum();
    Ok(bytes as f64 * 8.0 / Duration::from(DURATION).as_secs_f64())
}

/// Returns the line rate for a capacity: `wanted`, or without it the highest rate of `ladder`, at most
/// `nominal`, with a headroom of at least `headroom`. Returns an error if the capacity is too low.
pub(crate) fn settle(
    ladder: &[u64],
    headroom: f64,
    capacity_bps: f64,
    nominal: BitRate,
    wanted: Option<BitRate>,
) -> Result<BitRate, TestbedError> {
    let gigabits = |bps: f64| format!("{:.1} Gbit/s", bps / 1e9);
    let possible = capacity_bps / LEAST_HEADROOM;
    let step = if possible < 1e8 { 1e6 } else { 1e8 };
    match wanted {
        Some(rate) if rate.bits_per_second() as f64 * LEAST_HEADROOM <= capacity_bps => Ok(rate),
        Some(rate) => Err(TestbedError::Unable {
            missing: format!(
                "at {rate} the processors of this machine, not the NIC, would be the bottleneck: they carry {} of \
                 these flows, and must carry {LEAST_HEADROOM} times the rate",
                gigabits(capacity_bps)
            ),
            remedy: format!(
                "use --rate {} or less, or --rate auto",
                BitRate::from_bits_per_second(((possible / step).floor() * step) as u64)
            ),
        }),
        None => ladder
            .iter()
            .map(|rate| (*rate).min(nominal.bits_per_second()))
            .find(|rate| *rate as f64 * headroom <= capacity_bps)
            .map(BitRate::from_bits_per_second)
            .ok_or_else(|| TestbedError::Unable {
                missing: format!(
                    "the processors of this machine carry only {} of these flows, so the NIC cannot be the \
                     bottleneck at {} or more",
                    gigabits(capacity_bps),
                    ladder.last().map_or(nominal, |least| BitRate::from_bits_per_second(*least))
                ),
                remedy: "stop other programs, or use a lower rate, such as --rate 100mbit".to_owned(),
            }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const NOMINAL: BitRate = BitRate::from_bits_per_second(10_000_000_000);

    #[test]
    fn auto_leaves_headroom() {
        let auto = |capacity| {
            settle(&LADDER_BPS, AUTO_HEADROOM, capacity, NOMINAL, None).map(BitRate::bits_per_second)
        };
        assert_eq!(auto(13e9).unwrap(), 2_000_000_000);
        assert_eq!(auto(50e9).unwrap(), 2_000_000_000);
        assert_eq!(auto(70e9).unwrap(), 10_000_000_000);
        assert_eq!(auto(500e9).unwrap(), 10_000_000_000, "never above the nominal rate");
        assert!(auto(5e9).unwrap_err().to_string().contains("--rate 100mbit"));
    }

    #[test]
    fn a_rate_too_high_is_refused_with_one_that_works() {
        let wanted = Some(BitRate::from_bits_per_second(10_000_000_000));
        let settle = |capacity| settle(&LADDER_BPS, AUTO_HEADROOM, capacity, NOMINAL, wanted);
        let message = settle(8e9).unwrap_err().to_string();
        assert!(message.contains("8.0 Gbit/s") && message.contains("--rate 6.1gbit"), "{message}");
        assert_eq!(settle(14e9).unwrap().bits_per_second(), 10_000_000_000);
    }
}
