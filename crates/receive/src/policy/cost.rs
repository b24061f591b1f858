//! What a policy makes of a placement of flows, as an exact number.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

use crate::QueueId;
use crate::policy::Flow;

/// How bad a placement is, or by how much a change makes it worse.
///
/// A placement with violations is *rejected*: it is worse than any without (Dragonet, section 3.2.3: an acceptable
/// solution always has a lower cost than an unacceptable one). Counting the violations lets a search work its way
/// out of them.
///
/// The amount is a fixed-point number in steps of 1/[`Cost::UNIT`]: sums and differences are exact, so that a cost
/// kept up over millions of changes is the one that is computed from nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost {
    /// Flows that lie where the policy forbids it.
    pub violations: i64,
    /// The cost as the policy states it, times [`Cost::UNIT`].
    pub amount: i128,
}

impl Cost {
    /// Nothing to complain of.
    pub const ZERO: Self = Self { violations: 0, amount: 0 };

    /// Steps in one. The square of 5040 divides it, so that a variance over up to ten queues is exact; a thousandth
    /// of it is a step of a weight.
    pub const UNIT: i128 = TERM_UNIT * WEIGHT_UNIT as i128;

    /// Violations, and nothing else.
    #[must_use]
    pub const fn violations(violations: i64) -> Self {
        Self { violations, amount: 0 }
    }

    /// Whether the policy accepts it.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        self.violations <= 0
    }

    /// The amount as the policy states it.
    #[must_use]
    pub fn value(self) -> f64 {
        self.amount as f64 / Self::UNIT as f64
    }
}

/// Steps in the cost of a term before its weight.
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

/// How much a term counts, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    /// As it is.
    pub const ONE: Self = Self(WEIGHT_UNIT);

    /// A weight from 0.001 to 1000, to three places; none beyond.
    #[must_use]
    pub fn new(weight: f64) -> Option<Self> {
        const MOST: f64 = 1000.0;
        let steps = (weight * f64::from(WEIGHT_UNIT)).round();
        // In range, so that nothing is cut off.
        (weight <= MOST && steps >= 1.0).then_some(Self(steps as u32))
    }
}

impl Mul<Weight> for Cost {
    type Output = Self;

    /// The cost of a term, which is in steps of a term, in steps of a cost. Violations do not count for more.
    fn mul(self, weight: Weight) -> Self {
        Self { violations: self.violations, amount: self.amount * i128::from(weight.0) }
    }
}

/// One term of a policy: what it costs that flows lie on queues. It knows nothing of NICs.
///
/// A function keeps what it needs to know of the placement, and is told of every change. What it returns depends on
/// the flows and their queues only, never on the order in which they came.
pub trait CostFunction: fmt::Debug + Send {
    /// A flow came, on this queue.
    fn place(&mut self, flow: &Flow, queue: QueueId);

    /// A flow is gone from this queue.
    fn remove(&mut self, flow: &Flow, queue: QueueId);

    /// The cost of the present placement. The amount is in steps of a term.
    fn cost(&self) -> Cost;

    /// By how much the cost would differ if a flow moved from one queue to another.
    fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost;

    /// The queue to which a flow goes at the least cost, when the queues differ by nothing but what lies on them:
    /// then one look at them does for all. Of equals the first. None: each has to be tried.
    fn least(&self, flow: &Flow, among: &[QueueId]) -> Option<QueueId> {
        let _ = (flow, among);
        None
    }

    /// Whether it is known without a look at the queues that none is better for a flow than the one on which it lies.
    fn is_content(&self, flow: &Flow, queue: QueueId) -> bool {
        let _ = (flow, queue);
        false
    }

    /// Whether a queue has more on it than it should have in the end: flows of such queues move first, so that those
    /// of others need not move at all.
    fn is_overloaded(&self, queue: QueueId) -> bool {
        let _ = queue;
        true
    }

    /// Whether the function sees nothing of a queue but what lies on it: empty ones are alike then.
    fn knows_load_only(&self) -> bool {
        false
    }

    /// What no placement of the present flows can be better than, if that is known without trying them all.
    fn bound(&self) -> Option<Cost> {
        None
    }

    /// How much of a burden a flow is: heavier ones are placed first. The unit is the function's own.
    fn burden(&self, flow: &Flow) -> u64 {
        let _ = flow;
        0
    }

    /// A search begins: what has a time limit begins to count.
    fn begin(&mut self) {}

    /// Why the costs since the last call cannot be relied upon, if they cannot.
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
