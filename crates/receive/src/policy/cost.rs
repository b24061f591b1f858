//! The cost of a placement of flows, as an exact number.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

use crate::QueueId;
use crate::policy::Flow;

/// The cost of a placement, or the increase by a change.
///
/// A placement with violations is *rejected*: it is worse than any without (Dragonet, section 3.2.3: an
/// acceptable solution always has a lower cost than an unacceptable one). The number of violations leads a
/// search out of them.
///
/// The amount is a fixed-point number in steps of 1/[`Cost::UNIT`]. Sums and differences are exact, so a cost
/// that is updated over millions of changes equals a fresh computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost {
    /// Flows on forbidden queues.
    pub violations: i64,
    /// The policy's cost, times [`Cost::UNIT`].
    pub amount: i128,
}

impl Cost {
    /// No cost.
    pub const ZERO: Self = Self { violations: 0, amount: 0 };

    /// Steps in one. The square of 5040 divides it, so that a variance over up to ten queues is exact; a
    /// thousandth of it is a step of a weight.
    pub const UNIT: i128 = TERM_UNIT * WEIGHT_UNIT as i128;

    /// Only violations.
    #[must_use]
    pub const fn violations(violations: i64) -> Self {
        Self { violations, amount: 0 }
    }

    /// Whether the policy accepts it.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        self.violations <= 0
    }

    /// The policy's cost as a number.
    #[must_use]
    pub fn value(self) -> f64 {
        self.amount as f64 / Self::UNIT as f64
    }
}

/// Steps in the cost of a term, without its weight.
pub(super) const TERM_UNIT: i128 = 5040 * 5040;
/// Steps in a weight.
pub(super) const WEIGHT_UNIT: u32 = 1000;

impl fmt::Display for Cost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.violations {
            0 => write!(formatter, "{:.6}", self.value()),
            violations => write!(formatter, "rejected ({violations} flows), {:.6}", self.value()),
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { violations: self.violations + other.violations, amount: self.amount + other.amount }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Neg for Cost {
    type Output = Self;

    fn neg(self) -> Self {
        Self { violations: -self.violations, amount: -self.amount }
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::ZERO, Add::add)
    }
}

/// Weight of a term, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    /// Weight 1.
    pub const ONE: Self = Self(WEIGHT_UNIT);

    /// A weight from 0.001 to 1000, with three decimals; none outside.
    #[must_use]
    pub fn new(weight: f64) -> Option<Self> {
        const MOST: f64 = 1000.0;
        let steps = (weight * f64::from(WEIGHT_UNIT)).round();
        // In range, so nothing is truncated.
        (weight <= MOST && steps >= 1.0).then_some(Self(steps as u32))
    }
}

impl Mul<Weight> for Cost {
    type Output = Self;

    /// Multiplies a term's cost by its weight, giving steps of a cost. Violations have no weight.
    fn mul(self, weight: Weight) -> Self {
        Self { violations: self.violations, amount: self.amount * i128::from(weight.0) }
    }
}

/// A term of a policy: the cost of flows on queues, independent of the NIC.
///
/// A function keeps its own view of the placement; the search reports every change to it. Its result depends
/// only on the flows and their queues, never on the order of arrival.
pub trait CostFunction: fmt::Debug + Send {
    /// A flow was added to this queue.
    fn place(&mut self, flow: &Flow, queue: QueueId);

    /// A flow was removed from this queue.
    fn remove(&mut self, flow: &Flow, queue: QueueId);

    /// The cost of the placement, in steps of a term.
    fn cost(&self) -> Cost;

    /// The difference in cost if a flow moved between two queues.
    fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost;

    /// The queue with the least cost for a flow, if queues differ only by their load: then one search serves
    /// all. Among equals the first. None: each queue must be tried.
    fn least(&self, flow: &Flow, among: &[QueueId]) -> Option<QueueId> {
        let _ = (flow, among);
        None
    }

    /// Returns whether, without a search, no queue is better for a flow than its own.
    fn is_content(&self, flow: &Flow, queue: QueueId) -> bool {
        let _ = (flow, queue);
        false
    }

    /// Whether a queue has more load than its final share: flows of such queues move first, so that others need
    /// not move.
    fn is_overloaded(&self, queue: QueueId) -> bool {
        let _ = queue;
        true
    }

    /// Whether the function depends only on a queue's load: empty queues are then equivalent.
    fn knows_load_only(&self) -> bool {
        false
    }

    /// A lower bound for any placement of the flows, if known without trying all.
    fn bound(&self) -> Option<Cost> {
        None
    }

    /// Returns a flow's load: heavier ones are placed first. Each function has its own unit.
    fn burden(&self, flow: &Flow) -> u64 {
        let _ = flow;
        0
    }

    /// A search begins; resets time limits.
    fn begin(&mut self) {}

    /// Why the costs since the last call are unreliable, if so.
    fn fault(&mut self) -> Option<super::ScriptError> {
        None
    }

    /// The same function with the same placement.
    fn boxed(&self) -> Box<dyn CostFunction>;
}

impl Clone for Box<dyn CostFunction> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_rejected_placement_is_worse_than_any_accepted_one() {
        let dear = Cost { violations: 0, amount: i128::from(u64::MAX) };
        assert!(Cost::violations(1) > dear && dear.is_accepted() && !Cost::violations(1).is_accepted());
        assert_eq!(Cost::violations(2) - Cost::violations(2), Cost::ZERO);
    }

    #[test]
    fn weights_have_three_places_and_bounds() {
        let half = Weight::new(0.5).unwrap();
        let one = Cost { violations: 1, amount: TERM_UNIT };
        assert_eq!((one * half).value(), 0.5);
        assert_eq!((one * half).violations, 1);
        assert_eq!(Weight::new(1.0), Some(Weight::ONE));
        for wrong in [0.0, 0.0004, 1000.1, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Weight::new(wrong), None, "{wrong}");
        }
    }
}
