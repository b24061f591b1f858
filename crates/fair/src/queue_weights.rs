//! Queue weights from flow weights: the back end of a device, with its settings in the journal.
//!
//! The back end sets weights when flows start and end, through [`crate::gate`].

use std::sync::Arc;
use std::time::Duration;

use evenkeel_apply::{ApplyError, Change, Kernel, Knob, LiveKernel, Ours, Run, Value};
use evenkeel_control::{
    Applied, ControlError, DeviceShapers, MaxRateWeights, ShaperWeights, WeightBackend, WeightControl,
};
use evenkeel_host::Sysfs;
use evenkeel_model::shell::{Line, Script};
use evenkeel_model::units::BitRate;
use evenkeel_netlink::shaper::Shapers;
use evenkeel_netlink::tx_maxrate::TxMaxrate;

use crate::device::Device;
use crate::error::FairError;
use crate::gate::{JournalGate, max_rate_knob};

/// Method to serve queues by the weights of their flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueWeights {
    #[default]
    Off,
    /// By net-shaper if the device supports weights; otherwise not by weight.
    Auto,
    /// By a soft NIC above the device, with this rate limit.
    Htb(BitRate),
    /// By the kernel's net-shaper interface.
    NetShaper,
    /// By a maximum rate per queue, as a share of this rate; `None`: as a share of the link's speed.
    MaxRate(Option<BitRate>),
}

/// The back end that serves a device's queues by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The device's own scheduling, without weights.
    #[default]
    None,
    /// A soft NIC above the device, with this rate limit.
    SoftNic(BitRate),
    /// The device itself, through net-shaper.
    NetShaper,
    /// Maximum rates of the queues, as shares of this rate.
    MaxRate(BitRate),
}

/// Largest queue weight, equal to the largest flow weight. The interface takes 32 bits, and devices do
/// not report their maximum. So a larger value must come from another program.
const MOST: u32 = 65_535;
/// Time constant of the weights: a few rounds of all flows at 1 Gbit/s and above.
const SMOOTHING: Duration = Duration::from_millis(50);
/// Minimum time between two updates of a device's shapers; limits the number of netlink requests.
const SHAPER_INTERVAL: Duration = Duration::from_millis(1);
/// Minimum time between two updates of a device's maximum rates. In most drivers an update is a
/// firmware command.
const MAX_RATE_INTERVAL: Duration = Duration::from_millis(100);

const MEGABIT: u64 = 1_000_000;

fn megabits(rate: BitRate) -> u32 {
    u32::try_from(rate.bits_per_second() / MEGABIT).unwrap_or(u32::MAX)
}

impl QueueWeights {
    /// Returns whether a soft NIC is requested. A soft NIC does not use the device's own queues.
    pub(crate) fn is_soft_nic(self) -> bool {
        matches!(self, Self::Htb(_))
    }

    /// Returns the back end for a device, without changing the device. Adds remarks for the user to
    /// `remarks`.
    pub(crate) fn backend(
        self,
        device: &Device,
        sysfs: &Sysfs,
        remarks: &mut Vec<String>,
    ) -> Result<Backend, FairError> {
        match self {
            Self::Off => Ok(Backend::None),
            Self::Htb(rate) => Ok(Backend::SoftNic(rate)),
            Self::Auto => {
                let takes_weights = takes_weights(device)?;
                if !takes_weights {
                    remarks.push(format!(
                        "{}: the device schedules its queues without weights",
                        no_weights(device)
                    ));
                }
                Ok(if takes_weights { Backend::NetShaper } else { Backend::None })
            }
            Self::NetShaper if takes_weights(device)? => Ok(Backend::NetShaper),
            Self::NetShaper => Err(FairError::unable(
                no_weights(device),
                "use --queue-weights htb with a --rate (an HTB root in front of the device), or --queue-weights off",
            )),
            Self::MaxRate(rate) => {
                let line = line(rate, device)?;
                if !has_caps(device, sysfs)? {
                    return Err(FairError::unable(
                        format!(
                            "the driver of {} ({}) does not support a maximum rate per queue (tx_maxrate)",
                            device.name,
                            device.driver_name()
                        ),
                        "use --queue-weights htb with a --rate (an HTB root in front of the device), or \
                         --queue-weights off",
                    ));
                }
                remarks.push(format!(
                    "maximum rates of the queues of {} are caps: no other queue can use the unused part of a \
                     queue's share of {line}",
                    device.name
                ));
                Ok(Backend::MaxRate(line))
            }
        }
    }
}

fn takes_weights(device: &Device) -> Result<bool, FairError> {
    match Shapers::open()? {
        Some(mut shapers) => Ok(shapers.queue_capabilities(device.index)?.weight),
        None => Ok(false),
    }
}

fn no_weights(device: &Device) -> String {
    format!("{} (driver {}) does not support queue weights (net-shaper)", device.name, device.driver_name())
}

/// Returns the rate that is divided among the queues.
fn line(rate: Option<BitRate>, device: &Device) -> Result<BitRate, FairError> {
    let speed = device.speed_bps.filter(|speed| *speed >= MEGABIT).map(BitRate::from_bits_per_second);
    rate.or(speed).ok_or_else(|| {
        FairError::unable(
            format!(
                "{} does not report its speed, and the rates of the queues are shares of it",
                device.name
            ),
            "state the speed with --rate RATE",
        )
    })
}

fn has_caps(device: &Device, sysfs: &Sysfs) -> Result<bool, FairError> {
    let caps = TxMaxrate::new(&sysfs.path(""), &device.name);
    Ok(caps.is_supported(0).map_err(ControlError::from)?)
}

/// A back end that does not restore settings, because the journal restores them.
struct Journalled<B> {
    backend: B,
    /// Keeps the sysfs mount of the back end's files alive.
    _sysfs: Option<Sysfs>,
}

impl<B: WeightBackend> WeightBackend for Journalled<B> {
    fn name(&self) -> String {
        self.backend.name()
    }

    fn apply(&mut self, weights: &[u32], segment_bytes: u32) -> Result<Applied, ControlError> {
        self.backend.apply(weights, segment_bytes)
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        Ok(())
    }
}

impl Backend {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::SoftNic(_) => "htb",
            Self::NetShaper => "net-shaper",
            Self::MaxRate(_) => "max-rate",
        }
    }

    /// Returns the rate of the bottleneck, bit/s; `None` if the back end does not limit the rate.
    pub(crate) fn rate_bps(self) -> Option<u64> {
        match self {
            Self::None | Self::NetShaper => None,
            Self::SoftNic(rate) | Self::MaxRate(rate) => Some(rate.bits_per_second()),
        }
    }

    /// Returns the settings that the back end changes while flows start and end, with their possible values.
    fn knobs(self, queues: u32) -> Vec<(Knob, Ours)> {
        let of_each = |knob: fn(u32) -> Knob, least: u64, most: u32| -> Vec<(Knob, Ours)> {
            (0..queues)
                .map(|queue| (knob(queue), Ours::NumberBetween { least, most: u64::from(most) }))
                .collect()
        };
        match self {
            Self::None | Self::SoftNic(_) => Vec::new(),
            Self::NetShaper => of_each(Knob::QueueWeight, 1, MOST),
            Self::MaxRate(rate) => of_each(max_rate_knob, 0, megabits(rate)),
        }
    }

    /// Adds every possible value to the journal and returns the weight back end. Returns `None` without
    /// weights, and for the soft NIC (see `soft_nic`).
    pub(crate) fn weights(
        self,
        device: &Device,
        run: &mut Run,
        gate: &Arc<JournalGate>,
    ) -> Result<Option<WeightControl>, FairError> {
        for (knob, ours) in self.knobs(device.queues) {
            gate.admit(run, &knob, ours)?;
        }
        match self {
            Self::None | Self::SoftNic(_) => Ok(None),
            Self::NetShaper => {
                let shapers = Shapers::open()?.ok_or_else(|| {
                    FairError::unable(
                        "the kernel's net-shaper interface no longer exists",
                        "use --queue-weights off",
                    )
                })?;
                let shapers = DeviceShapers::new(shapers, device.index);
                let backend = ShaperWeights::new(shapers, device.queues, MOST, gate.clone())?;
                Ok(Some(WeightControl {
                    backend: Box::new(Journalled { backend, _sysfs: None }),
                    smoothing: SMOOTHING,
                    least_interval: SHAPER_INTERVAL,
                }))
            }
            Self::MaxRate(rate) => {
                let sysfs = Sysfs::of_namespace()?;
                let caps = TxMaxrate::new(&sysfs.path(""), &device.name);
                let backend = MaxRateWeights::new(caps, device.queues, megabits(rate), gate.clone())?;
                Ok(Some(WeightControl {
                    backend: Box::new(Journalled { backend, _sysfs: Some(sysfs) }),
                    smoothing: SMOOTHING,
                    least_interval: MAX_RATE_INTERVAL,
                }))
            }
        }
    }

    /// Describes the settings for equal weights as shell lines, each with its undo.
    pub(crate) fn plan(self, device: &Device) -> Result<Script, FairError> {
        let queues = u64::from(device.queues.max(1));
        let (remark, equal) = match self {
            Self::None | Self::SoftNic(_) => return Ok(Script::default()),
            Self::NetShaper => (
                format!(
                    "the shaper weight of each queue is the sum of the weights of its flows, 1 to {MOST}"
                ),
                Value::Weight(Some(1)),
            ),
            Self::MaxRate(rate) => (
                format!("the highest rate of each queue (Mbit/s) is its flows' share of {rate}"),
                Value::Text(u64::from(megabits(rate)).div_ceil(queues).to_string()),
            ),
        };
        let mut script = Script::default();
        script.comment(&format!("{remark}, and changes with the flows; with equal flows on all queues:"));
        let mut kernel = LiveKernel::open(device.index, &device.name).map_err(ApplyError::from)?;
        for (knob, _) in self.knobs(device.queues) {
            let before = match device.restored_value(&knob) {
                Some(before) => before,
                None => kernel.read(&knob).map_err(ApplyError::from)?,
            };
            script.push(Change::new(knob.clone(), equal.clone()).shell(&device.name));
            let undo = Change::new(knob, before).shell(&device.name);
            script.push(Line::comment(format_args!("  undo: {undo}")));
        }
        Ok(script)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn device(speed_bps: Option<u64>) -> Device {
        Device { speed_bps, ..Device::for_tests("eth0") }
    }

    #[test]
    fn shares_are_of_the_rate_that_was_named_or_the_devices_own() {
        let gigabit = BitRate::from_bits_per_second(1_000_000_000);
        assert_eq!(line(Some(gigabit), &device(None)).unwrap(), gigabit);
        assert_eq!(line(Some(gigabit), &device(Some(10_000_000_000))).unwrap(), gigabit);
        assert_eq!(line(None, &device(Some(1_000_000_000))).unwrap(), gigabit);
        let error = line(None, &device(None)).unwrap_err().to_string();
        assert!(error.contains("eth0 does not report its speed") && error.contains("--rate"), "{error}");
    }

    #[test]
    fn every_value_that_may_come_is_journalled() {
        let knobs = Backend::NetShaper.knobs(2);
        assert_eq!(knobs[1], (Knob::QueueWeight(1), Ours::NumberBetween { least: 1, most: 65_535 }));
        let rate = BitRate::from_bits_per_second(2_500_000_000);
        let knobs = Backend::MaxRate(rate).knobs(2);
        let file = Knob::InterfaceFile("queues/tx-0/tx_maxrate".to_owned());
        assert_eq!(knobs[0], (file, Ours::NumberBetween { least: 0, most: 2500 }));
        assert_eq!(knobs.len(), 2);
        assert!(Backend::None.knobs(2).is_empty() && Backend::SoftNic(rate).knobs(2).is_empty());
    }

    /// Shapers that accept all weights.
    #[derive(Default)]
    struct Shaping(std::collections::BTreeMap<u32, evenkeel_netlink::shaper::Shaper>);

    impl evenkeel_control::QueueShapers for Shaping {
        fn all(
            &mut self,
        ) -> Result<std::collections::BTreeMap<u32, evenkeel_netlink::shaper::Shaper>, ControlError> {
            Ok(self.0.clone())
        }

        fn set_weight(&mut self, queue: u32, weight: u32) -> Result<(), ControlError> {
            self.0.entry(queue).or_default().weight = weight;
            Ok(())
        }

        fn restore(
            &mut self,
            queue: u32,
            _: Option<&evenkeel_netlink::shaper::Shaper>,
        ) -> Result<(), ControlError> {
            self.0.remove(&queue);
            Ok(())
        }
    }

    proptest::proptest! {
        /// Checks that the journal contains every value that the back end can write.
        #[test]
        fn no_weight_is_refused_by_its_own_journal(
            updates in proptest::collection::vec(proptest::collection::vec(0_u32.., 4), 1..5),
            megabits in 1_u64..400_000,
        ) {
            let gate = |backend: Backend, from: Value| {
                JournalGate::with(backend.knobs(4).into_iter().map(|(knob, ours)| (knob, from.clone(), ours)))
            };
            let shaping = gate(Backend::NetShaper, Value::Weight(None));
            let mut shapers = ShaperWeights::new(Shaping::default(), 4, MOST, shaping).unwrap();
            let root = tempfile::tempdir().unwrap();
            for queue in 0..4 {
                let directory = root.path().join(format!("class/net/eth0/queues/tx-{queue}"));
                std::fs::create_dir_all(&directory).unwrap();
                std::fs::write(directory.join("tx_maxrate"), "0").unwrap();
            }
            let line = BitRate::from_bits_per_second(megabits * MEGABIT);
            let capping = gate(Backend::MaxRate(line), Value::Text("0".to_owned()));
            let caps = TxMaxrate::new(root.path(), "eth0");
            let mut caps = MaxRateWeights::new(caps, 4, super::megabits(line), capping).unwrap();
            for weights in updates {
                shapers.apply(&weights, 65_536).unwrap();
                caps.apply(&weights, 65_536).unwrap();
            }
            shapers.restore().unwrap();
            caps.restore().unwrap();
        }
    }

    #[test]
    fn a_queue_that_is_gone_is_no_driver_without_caps() {
        let root = tempfile::tempdir().unwrap();
        let queue = root.path().join("class/net/eth0/queues/tx-0");
        std::fs::create_dir_all(&queue).unwrap();
        let sysfs = Sysfs::at(root.path());
        let rate = Some(BitRate::from_bits_per_second(1_000_000_000));
        let found = QueueWeights::MaxRate(rate).backend(&device(None), &sysfs, &mut Vec::new());
        assert!(matches!(found, Err(FairError::Control(_))), "{found:?}");
    }
}
