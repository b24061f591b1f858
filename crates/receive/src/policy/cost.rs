//! The cost of a placement of flows, as an exact number.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

use crate::QueueId;
use crate::policy::Flow;

/// The cost of a placement, or the change of the cost by a move.
///
/// A placement with violations is *rejected*: it costs more than any placement without violations (Dragonet,
/// section 3.2.3: an acceptable solution always has a lower cost than an unacceptable one). The number of
/// violations guides a search towards acceptable placements.
///
/// The amount is a fixed-point number in steps of 1/[`Cost::UNIT`]. Sums and differences are exact, so a cost
/// that is updated over millions of changes equals a cost that is computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost {
    /// Flows on forbidden queues.
    pub violations: i64,
    /// The policy's cost, in steps of 1/[`Cost::UNIT`].
    pub amount: i128,
}

impl Cost {
    pub const ZERO: Self = Self { violations: 0, amount: 0 };

    /// Number of steps in a cost of 1. The square of 5040 divides it, so a variance of flow counts over up to
    /// ten queues is exact.
    pub const UNIT: i128 = TERM_UNIT * WEIGHT_UNIT as i128;

    #[must_use]
    pub const fn violations(violations: i64) -> Self {
        Self { violations, amount: 0 }
    }

    /// Returns whether the placement has no violations.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        self.violations <= 0
    }

    #[must_use]
    pub fn value(self) -> f64 {
        self.amount as f64 / Self::UNIT as f64
    }
}

/// Number of steps in a term's cost of 1, before the weight is applied.
pub(super) const TERM_UNIT: i128 = 5040 * 5040;
/// Number of steps in a weight of 1.
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

/// Weight of a term, in steps of a thousandth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    pub const ONE: Self = Self(WEIGHT_UNIT);

    /// Creates a weight, rounded to three decimals. Returns `None` if the rounded weight is below 0.001, or
    /// `weight` is above 1000.
    #[must_use]
    pub fn new(weight: f64) -> Option<Self> {
        const MOST: f64 = 1000.0;
        let steps = (weight * f64::from(WEIGHT_UNIT)).round();
        // No truncation: the value is in range.
        (weight <= MOST && steps >= 1.0).then_some(Self(steps as u32))
    }
}

impl Mul<Weight> for Cost {
    type Output = Self;

    /// Multiplies a term's cost by its weight. Violations have no weight.
    fn mul(self, weight: Weight) -> Self {
        Self { violations: self.violations, amount: self.amount * i128::from(weight.0) }
    }
}

/// A fact about a flow that a term may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    Rate,
    Reader,
    PreviousQueue,
}

impl Fact {
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Reader => "reader",
            Self::PreviousQueue => "previous queue",
        }
    }
}

/// A term of a policy: the cost of flows on queues, independent of the NIC.
///
/// The term keeps a view of the placement, and the search reports every change to it. The cost depends only
/// on the flows and their queues, never on the order of the changes.
pub trait CostFunction: fmt::Debug + Send {
    fn place(&mut self, flow: &Flow, queue: QueueId);

    fn remove(&mut self, flow: &Flow, queue: QueueId);

    /// Returns the cost of the placement, in steps of a term.
    fn cost(&self) -> Cost;

    /// Returns the difference in cost if a flow moved between two queues.
    fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost;

    /// Returns the queue with the least cost for a flow. Of several equal queues, returns the first
    /// queue. A function can implement this method only if queues differ by nothing but their load, so
    /// that a single search is enough. Returns `None` if the caller must try each queue.
    fn least(&self, flow: &Flow, among: &[QueueId]) -> Option<QueueId> {
        let _ = (flow, among);
        None
    }

    /// Returns whether the function can exclude, without a search, that another queue is better for the flow.
    fn is_content(&self, flow: &Flow, queue: QueueId) -> bool {
        let _ = (flow, queue);
        false
    }

    /// Returns whether a queue has more load than its final share; true if the function does not know. The
    /// search moves flows of such queues first, so that other flows can stay.
    fn is_overloaded(&self, queue: QueueId) -> bool {
        let _ = queue;
        true
    }

    /// Returns whether the cost depends only on the queues' loads. Empty queues are then equivalent.
    fn knows_load_only(&self) -> bool {
        false
    }

    /// Returns a lower bound for the cost of any placement of the flows; `None` if the function knows none.
    fn bound(&self) -> Option<Cost> {
        None
    }

    /// Returns a flow's load, in a unit of the function. Flows with a higher load are placed first.
    fn burden(&self, flow: &Flow) -> u64 {
        let _ = flow;
        0
    }

    /// Returns the fact that the function needs and the flow lacks. The flow then costs nothing on any queue.
    fn lacks(&self, flow: &Flow) -> Option<Fact> {
        let _ = flow;
        None
    }

    /// Returns the fact that the function needs and that is unknown, so that the cost of the flow is
    /// unknown. The reader of a flow that no process reads does not count as unknown, nor does a missing
    /// previous queue: such a flow is new.
    fn unknown(&self, flow: &Flow) -> Option<Fact> {
        self.lacks(flow).filter(|fact| match fact {
            Fact::Rate => true,
            Fact::Reader => !flow.is_unowned,
            Fact::PreviousQueue => false,
        })
    }

    /// Resets time limits before the calls of a search.
    fn begin(&self) {}

    /// Returns the error, if any, that makes the costs since the last call unreliable.
    fn fault(&mut self) -> Option<super::ScriptError> {
        None
    }

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
