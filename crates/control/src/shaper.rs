//! Queue weights in the kernel's net-shaper interface, for devices that schedule their queues by weight.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_netlink::shaper::{Shaper, Shapers};
use evenkeel_transmit::weights::{Credits, quanta};

use crate::backend::{Applied, WeightBackend};
use crate::error::ControlError;
use crate::gate::{Gate, Setting};

/// The shapers of one device's transmit queues.
pub trait QueueShapers: Send {
    /// Returns the shapers by queue. Leaves out queues without a shaper.
    fn all(&mut self) -> Result<BTreeMap<u32, Shaper>, ControlError>;

    /// Sets a queue's weight and reads it back. The other parameters of the shaper stay unchanged.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the setting, or keeps another value.
    fn set_weight(&mut self, queue: u32, weight: u32) -> Result<(), ControlError>;

    /// Restores a queue's shaper. Removes the shaper if the queue originally had none.
    fn restore(&mut self, queue: u32, shaper: Option<&Shaper>) -> Result<(), ControlError>;
}

pub struct DeviceShapers {
    shapers: Shapers,
    interface: u32,
}

impl DeviceShapers {
    #[must_use]
    pub fn new(shapers: Shapers, interface: u32) -> Self {
        Self { shapers, interface }
    }
}

impl QueueShapers for DeviceShapers {
    fn all(&mut self) -> Result<BTreeMap<u32, Shaper>, ControlError> {
        Ok(self.shapers.queues(self.interface)?)
    }

    fn set_weight(&mut self, queue: u32, weight: u32) -> Result<(), ControlError> {
        Ok(self.shapers.set_queue_weight(self.interface, queue, weight)?)
    }

    fn restore(&mut self, queue: u32, shaper: Option<&Shaper>) -> Result<(), ControlError> {
        Ok(self.shapers.restore_queue(self.interface, queue, shaper)?)
    }
}

/// A back end that sets each queue's weight to the sum of its flows' weights.
///
/// A queue without flows gets the smallest weight in use, so that its first segments are neither delayed nor
/// preferred until the next update.
pub struct ShaperWeights<D: QueueShapers = DeviceShapers> {
    device: D,
    most: u32,
    /// Original shapers, by queue; `None`: no shaper.
    original: Vec<Option<Shaper>>,
    /// Current weights, by queue; `None`: no weight.
    current: Vec<Option<u32>>,
    gate: Arc<dyn Gate>,
}

impl<D: QueueShapers> ShaperWeights<D> {
    /// Creates a back end for the first `queues` queues, and changes none of them. `apply` limits each weight
    /// to `most`, because the kernel does not report a device's maximum.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot list the shapers.
    pub fn new(mut device: D, queues: u32, most: u32, gate: Arc<dyn Gate>) -> Result<Self, ControlError> {
        let mut found = device.all()?;
        let original: Vec<_> = (0..queues).map(|queue| found.remove(&queue)).collect();
        let current = original.iter().map(|shaper| shaper.map(|shaper| shaper.weight)).collect();
        Ok(Self { device, most: most.max(1), original, current, gate })
    }

    /// Returns the weights to set, and whether a weight was reduced to the maximum.
    fn wanted(&self, weights: &[u32]) -> (Vec<u32>, bool) {
        let lightest = weights.iter().copied().filter(|weight| *weight > 0).min().unwrap_or(1);
        quanta(weights, Credits { base: lightest, most: self.most })
    }

    /// Returns an error if another program has changed a weight, or if the kernel cannot list the shapers.
    /// Changes no weight.
    fn check_undisturbed(&mut self) -> Result<(), ControlError> {
        let found = self.device.all()?;
        for (queue, expected) in (0..).zip(&self.current) {
            let weight = found.get(&queue).map(|shaper| shaper.weight);
            if weight.unwrap_or(0) != expected.unwrap_or(0) {
                return Err(ControlError::ReadBack {
                    what: format!("the shaper weight of queue {queue}"),
                    set: u64::from(expected.unwrap_or(0)),
                    found: weight.map_or_else(|| "nothing".to_owned(), |weight| weight.to_string()),
                });
            }
        }
        Ok(())
    }
}

impl<D: QueueShapers> WeightBackend for ShaperWeights<D> {
    fn name(&self) -> String {
        "net-shaper weights".to_owned()
    }

    fn apply(&mut self, weights: &[u32], _segment_bytes: u32) -> Result<Applied, ControlError> {
        let (wanted, cut) = self.wanted(weights);
        let changes: Vec<(usize, u32)> = wanted
            .into_iter()
            .take(self.current.len())
            .enumerate()
            .filter(|(queue, weight)| self.current[*queue] != Some(*weight))
            .collect();
        if changes.is_empty() {
            return Ok(Applied { queues: 0, cut });
        }
        self.check_undisturbed()?;
        let Self { device, current, gate, .. } = self;
        for (queue, weight) in &changes {
            let setting = Setting::QueueWeight { queue: *queue as u32, weight: Some(*weight) };
            gate.pass(setting, &mut || {
                // Record the weight first, so that the back end restores the queue even if the kernel
                // keeps another value.
                current[*queue] = Some(*weight);
                device.set_weight(*queue as u32, *weight)
            })?;
        }
        Ok(Applied { queues: changes.len() as u32, cut })
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        for (queue, shaper) in self.original.clone().iter().enumerate() {
            let before = shaper.map(|shaper| shaper.weight);
            let Self { device, current, gate, .. } = self;
            if current[queue] != before {
                gate.pass(Setting::QueueWeight { queue: queue as u32, weight: before }, &mut || {
                    device.restore(queue as u32, shaper.as_ref())
                })?;
                current[queue] = before;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::gate::{ClosedGate, OpenGate};

    #[derive(Default)]
    struct State {
        shapers: BTreeMap<u32, Shaper>,
        /// Queues and weights, in the order of writes.
        written: Vec<(u32, u32)>,
    }

    #[derive(Clone, Default)]
    struct Device(Arc<Mutex<State>>);

    impl Device {
        fn with(shapers: BTreeMap<u32, Shaper>) -> Self {
            Self(Arc::new(Mutex::new(State { shapers, written: Vec::new() })))
        }

        fn shapers(&self) -> BTreeMap<u32, Shaper> {
            self.0.lock().unwrap().shapers.clone()
        }

        fn written(&self) -> Vec<(u32, u32)> {
            std::mem::take(&mut self.0.lock().unwrap().written)
        }

        fn weights(&self) -> Vec<(u32, u32)> {
            self.shapers().into_iter().map(|(queue, shaper)| (queue, shaper.weight)).collect()
        }
    }

    impl QueueShapers for Device {
        fn all(&mut self) -> Result<BTreeMap<u32, Shaper>, ControlError> {
            Ok(self.shapers())
        }

        fn set_weight(&mut self, queue: u32, weight: u32) -> Result<(), ControlError> {
            let mut device = self.0.lock().unwrap();
            device.shapers.entry(queue).or_default().weight = weight;
            device.written.push((queue, weight));
            Ok(())
        }

        fn restore(&mut self, queue: u32, shaper: Option<&Shaper>) -> Result<(), ControlError> {
            let mut device = self.0.lock().unwrap();
            match shaper {
                Some(shaper) => device.shapers.insert(queue, *shaper),
                None => device.shapers.remove(&queue),
            };
            Ok(())
        }
    }

    fn limited() -> Shaper {
        Shaper { weight: 5, bandwidth_max: 1_000_000, ..Shaper::default() }
    }

    #[test]
    fn only_changes_are_written_in_the_order_of_the_queues() {
        let device = Device::with(BTreeMap::from([(2, limited())]));
        let mut weights = ShaperWeights::new(device.clone(), 4, 100, Arc::new(OpenGate)).unwrap();
        assert_eq!(weights.apply(&[3, 0, 5, 2], 0).unwrap(), Applied { queues: 3, cut: false });
        assert_eq!(device.written(), [(0, 3), (1, 2), (3, 2)], "queue 2 has its weight already");
        assert_eq!(weights.apply(&[3, 0, 5, 2], 0).unwrap().queues, 0);
        assert_eq!(weights.apply(&[3, 1, 5, 2], 0).unwrap().queues, 1);
        assert_eq!(device.written(), [(1, 1)]);
        assert_eq!(device.shapers()[&2], limited(), "the rest of a shaper stays");
        weights.restore().unwrap();
        assert_eq!(device.shapers(), BTreeMap::from([(2, limited())]));
    }

    #[test]
    fn queues_without_flows_are_served_in_turn() {
        let device = Device::default();
        let mut weights = ShaperWeights::new(device.clone(), 3, 100, Arc::new(OpenGate)).unwrap();
        weights.apply(&[0, 0, 0], 0).unwrap();
        assert_eq!(device.weights(), [(0, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn a_closed_gate_lets_no_weight_pass() {
        let device = Device::default();
        let mut weights = ShaperWeights::new(device.clone(), 2, 10, Arc::new(ClosedGate)).unwrap();
        let error = weights.apply(&[1, 2], 0).unwrap_err();
        assert!(matches!(error, ControlError::Refused { .. }), "{error}");
        assert_eq!(device.written(), []);
    }

    #[test]
    fn what_is_cut_is_told() {
        let device = Device::default();
        let mut weights = ShaperWeights::new(device.clone(), 2, 10, Arc::new(OpenGate)).unwrap();
        assert_eq!(weights.apply(&[11, 4], 0).unwrap(), Applied { queues: 2, cut: true });
        assert_eq!(device.weights(), [(0, 10), (1, 4)]);
    }

    #[test]
    fn what_another_program_has_set_is_not_overwritten() {
        let mut device = Device::default();
        let mut weights = ShaperWeights::new(device.clone(), 2, 10, Arc::new(OpenGate)).unwrap();
        weights.apply(&[1, 2], 0).unwrap();
        device.set_weight(1, 7).unwrap();
        let error = weights.apply(&[2, 2], 0).unwrap_err().to_string();
        assert!(error.contains("the shaper weight of queue 1 is 7, but evenkeel expects 2"), "{error}");
        assert_eq!(device.weights(), [(0, 1), (1, 7)]);
    }
}
