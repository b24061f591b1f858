//! Parameters of `htb`, and the classes that they define.

use super::super::queue::NONE;
use super::super::rate::Rate;
use super::super::{AnyDiscipline, Classifier, DEFAULT_LIMIT, Kind, KindError, require};
use super::{Class, LEVELS, Mode, PRIORITIES};
use crate::time::Time;

/// Divisor of the rate for the default quantum. The default quantum is the bytes of a tenth of a second
/// (`rate2quantum`).
const RATE_TO_QUANTUM: u64 = 10;
/// Bounds of the default quantum in bytes.
const QUANTUM_RANGE: (u64, u64) = (1000, 200_000);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtbConfig {
    /// Selects the leaf. Leaves are numbered in order of definition. Segments without a leaf go to the
    /// direct queue, which needs no tokens and is served first.
    pub classifier: Classifier,
    pub roots: Vec<HtbClass>,
    /// Limit of the direct queue in segments (`direct_qlen`).
    pub direct_limit: u32,
    /// Delays a class's mode change by a bucket's depth (the module parameter `htb_hysteresis`). This reduces
    /// the number of mode changes, and the accuracy of the rates.
    pub hysteresis: bool,
}

impl HtbConfig {
    #[must_use]
    pub fn new(classifier: Classifier, roots: Vec<HtbClass>) -> Self {
        Self { classifier, roots, direct_limit: DEFAULT_LIMIT, hysteresis: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtbClass {
    /// Guaranteed rate in bit/s.
    pub rate: u64,
    /// Largest rate with borrowing in bit/s.
    pub ceiling: u64,
    /// Depth of the bucket of `rate` in bytes.
    pub burst: u32,
    /// Priority of a leaf: 0 borrows first, 7 borrows last. A larger value counts as 7.
    pub ceiling_burst: u32,
    /// Priority of a leaf: 0 borrows first, 7 borrows last.
    pub priority: u8,
    /// Bytes per turn of a leaf. Default: a tenth of a second at its rate, within 1000 to 200 000.
    pub quantum: Option<u32>,
    pub content: HtbContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HtbContent {
    Leaf(Kind),
    Inner(Vec<HtbClass>),
}

impl HtbClass {
    fn quantum(&self) -> i64 {
        let (low, high) = QUANTUM_RANGE;
        let by_rate = (self.rate / 8 / RATE_TO_QUANTUM).clamp(low, high);
        self.quantum.map_or(by_rate as i64, i64::from)
    }

    fn check(&self) -> Result<(), KindError> {
        require("htb", "rate", "at least 1 bit/s", 0, self.rate >= 1)?;
        require("htb", "ceiling", "at least 1 bit/s", 0, self.ceiling >= 1)?;
        require("htb", "quantum", "at least 1", 0, self.quantum != Some(0))
    }
}

/// Adds a class and the classes below it to `classes`, in order of their numbers.
pub(super) fn build(
    config: &HtbClass,
    parent: u32,
    level: usize,
    seed: u64,
    classes: &mut Vec<Class>,
) -> Result<(), KindError> {
    config.check()?;
    let (rate, ceiling) = (Rate::new(config.rate), Rate::new(config.ceiling));
    let (burst, ceiling_burst) =
        (rate.tokens(u64::from(config.burst)), ceiling.tokens(u64::from(config.ceiling_burst)));
    let index = classes.len() as u32;
    let (level, queue) = match &config.content {
        HtbContent::Leaf(kind) => (0, Some(AnyDiscipline::new(kind, seed.wrapping_add(u64::from(index)))?)),
        HtbContent::Inner(_) => (level, None),
    };
    classes.push(Class {
        parent,
        level: level as u8,
        priority: config.priority.min(PRIORITIES as u8 - 1),
        mode: Mode::Sending,
        activity: 0,
        feeds: NONE,
        rate,
        ceiling,
        burst,
        ceiling_burst,
        tokens: burst,
        ceiling_tokens: ceiling_burst,
        checkpoint: Time::ZERO,
        quantum: config.quantum(),
        deficit: [0; LEVELS],
        queue,
    });
    if let HtbContent::Inner(children) = &config.content {
        // Inner classes are at levels 7 to 1.
        require("htb", "depth of the tree", "at most 8", (LEVELS + 1) as u64, level > 0)?;
        for child in children {
            build(child, index, level - 1, seed, classes)?;
        }
    }
    Ok(())
}
