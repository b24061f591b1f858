//! Queue weights as rate limits, for devices that can only limit the rate of a queue.

use std::sync::Arc;

use evenkeel_netlink::tx_maxrate::TxMaxrate;

use crate::backend::{Applied, WeightBackend};
use crate::error::ControlError;
use crate::gate::{Gate, Setting};

/// A back end that limits each queue to its share of the line.
///
/// Other queues cannot use the unused share of a queue. So the line is fully used only if every queue
/// with flows uses its share. A queue without flows has no limit. If only one queue has flows, this
/// queue has no limit either.
pub struct MaxRateWeights {
    caps: TxMaxrate,
    /// Line rate, Mbit/s.
    line: u32,
    /// Original limits by queue, Mbit/s.
    original: Vec<u32>,
    /// Current limits by queue, Mbit/s.
    current: Vec<u32>,
    gate: Arc<dyn Gate>,
}

impl MaxRateWeights {
    /// Creates a back end for the first `queues` queues on a line of `line_megabits` Mbit/s. Does not
    /// change the limits.
    pub fn new(
        caps: TxMaxrate,
        queues: u32,
        line_megabits: u32,
        gate: Arc<dyn Gate>,
    ) -> Result<Self, ControlError> {
        let original = (0..queues).map(|queue| caps.get(queue)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { caps, line: line_megabits, current: original.clone(), original, gate })
    }

    /// Writes the changed limits and returns their number. Fails at a limit that another program has changed.
    fn put(&mut self, wanted: &[u32]) -> Result<u32, ControlError> {
        let mut written = 0;
        for (queue, (current, wanted)) in (0..).zip(self.current.iter_mut().zip(wanted)) {
            if current == wanted {
                continue;
            }
            let found = self.caps.get(queue)?;
            if found != *current {
                return Err(ControlError::ReadBack {
                    what: format!("the highest rate of queue {queue} (Mbit/s)"),
                    set: u64::from(*current),
                    found: found.to_string(),
                });
            }
            let setting = Setting::HighestRate { queue, megabits: *wanted };
            self.gate.pass(setting, &mut || Ok(self.caps.set(queue, *wanted)?))?;
            *current = *wanted;
            written += 1;
        }
        Ok(written)
    }
}

/// Returns the limit of each queue, Mbit/s; 0 means no limit.
fn caps(line: u32, weights: &[u32]) -> Vec<u32> {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let cap = |weight: u32| match u64::from(weight) {
        0 => 0,
        weight if weight == total => 0,
        // Round up, because 0 would mean no limit.
        weight => (u64::from(line) * weight).div_ceil(total) as u32,
    };
    weights.iter().map(|weight| cap(*weight)).collect()
}

impl WeightBackend for MaxRateWeights {
    fn name(&self) -> String {
        "highest rates of queues".to_owned()
    }

    fn apply(&mut self, weights: &[u32], _segment_bytes: u32) -> Result<Applied, ControlError> {
        Ok(Applied { queues: self.put(&caps(self.line, weights))?, cut: false })
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        let original = self.original.clone();
        self.put(&original).map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::gate::{ClosedGate, OpenGate};

    fn file(root: &Path, queue: u32) -> std::path::PathBuf {
        root.join(format!("class/net/eth0/queues/tx-{queue}/tx_maxrate"))
    }

    fn device(found: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (queue, text) in (0..).zip(found) {
            let path = file(root.path(), queue);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn read(root: &Path) -> Vec<String> {
        (0..3).map(|queue| fs::read_to_string(file(root, queue)).unwrap().trim().to_owned()).collect()
    }

    #[test]
    fn caps_are_shares_of_the_line() {
        assert_eq!(caps(1000, &[1, 3, 0]), [250, 750, 0]);
        assert_eq!(caps(1000, &[1, 1, 1]), [334, 334, 334], "rounded up: the line stays in use");
        assert_eq!(caps(1000, &[0, 7, 0]), [0, 0, 0], "alone on the line");
        assert_eq!(caps(1000, &[0, 0]), [0, 0]);
        assert_eq!(caps(10, &[1, u32::MAX]), [1, 10], "never 0, which is no cap at all");
    }

    #[test]
    fn caps_are_set_and_put_back() {
        let root = device(&["0\n", "0\n", "600\n"]);
        let mut weights =
            MaxRateWeights::new(TxMaxrate::new(root.path(), "eth0"), 3, 1000, Arc::new(OpenGate)).unwrap();
        assert_eq!(weights.apply(&[1, 1, 2], 0).unwrap().queues, 3);
        assert_eq!(read(root.path()), ["250", "250", "500"]);
        assert_eq!(weights.apply(&[1, 1, 2], 0).unwrap().queues, 0);
        weights.restore().unwrap();
        assert_eq!(read(root.path()), ["0", "0", "600"]);
    }

    #[test]
    fn a_closed_gate_lets_no_cap_pass() {
        let root = device(&["0", "0", "0"]);
        let caps = TxMaxrate::new(root.path(), "eth0");
        let mut weights = MaxRateWeights::new(caps, 3, 1000, Arc::new(ClosedGate)).unwrap();
        let error = weights.apply(&[1, 1, 2], 0).unwrap_err();
        assert!(matches!(error, ControlError::Refused { .. }), "{error}");
        assert_eq!(read(root.path()), ["0"; 3]);
    }

    #[test]
    fn what_another_program_has_set_is_not_overwritten() {
        let root = device(&["0", "0", "0"]);
        let mut weights =
            MaxRateWeights::new(TxMaxrate::new(root.path(), "eth0"), 3, 1000, Arc::new(OpenGate)).unwrap();
        weights.apply(&[1, 1, 2], 0).unwrap();
        fs::write(file(root.path(), 1), "123").unwrap();
        let error = weights.apply(&[1, 2, 1], 0).unwrap_err().to_string();
        assert!(error.contains("queue 1") && error.contains("is 123, but evenkeel expects 250"), "{error}");
        assert_eq!(read(root.path())[1], "123");
    }
}
