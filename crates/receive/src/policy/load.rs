//! Balance: equal load on the queues, by flows or by rate.

use std::cell::Cell;

use crate::QueueId;
use crate::flows::MOST_RATE_BPS;
use crate::policy::Flow;
use crate::policy::cost::{Cost, CostFunction, Fact, TERM_UNIT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Number of flows on a queue (Dragonet, section 3.4).
    Flows,
    /// Sum of the flows' rates, Mbit/s.
    Rate,
}

/// Number of fraction bits of a rate: rates are in 1/1024 Mbit/s.
const RATE_FRACTION: u32 = 10;

/// The variance of the loads of k queues, by rate in (Mbit/s)²: `Σ (load - mean)² / k`. The mean is the load
/// of all flows divided by k. Each other queue adds its `load² / k`, so flows on forbidden queues cost more.
#[derive(Clone, Debug)]
pub struct Balance {
    measure: Measure,
    loads: Vec<u64>,
    /// The balanced queues, and their number.
    is_own: Vec<bool>,
    among: i128,
    /// Load of all flows, and of the flows on the balanced queues.
    total: i128,
    on_own: i128,
    squares: i128,
    /// Lower bound of a balanced queue's load, from the last search over all queues.
    floor: Cell<u64>,
}

impl Balance {
    /// Creates a term without flows. The NIC has `queues` queues, of which `among` are balanced.
    #[must_use]
    pub fn new(measure: Measure, queues: u16, among: &[QueueId]) -> Self {
        let mut is_own = vec![false; usize::from(queues)];
        among.iter().for_each(|queue| is_own[queue.index()] = true);
        Self {
            measure,
            loads: vec![0; usize::from(queues)],
            is_own,
            among: (among.len() as i128).max(1),
            total: 0,
            on_own: 0,
            squares: 0,
            floor: Cell::new(0),
        }
    }

    /// Returns the load if the queue is balanced, else 0.
    fn own(&self, load: i128, queue: QueueId) -> i128 {
        if self.is_own[queue.index()] { load } else { 0 }
    }

    fn load(&self, flow: &Flow) -> i128 {
        match self.measure {
            Measure::Flows => 1,
            Measure::Rate => i128::from(rate_load(flow.rate_bps.unwrap_or(0))),
        }
    }

    /// Returns the cost for a value of `k · Σ (load - mean)²`.
    fn variance(&self, spread: i128) -> Cost {
        // Divide in two steps: the product would overflow with a million flows of 1.6 Tbit/s each.
        let whole = spread / self.among * TERM_UNIT / self.among;
        let part = spread % self.among * TERM_UNIT / (self.among * self.among);
        Cost { violations: 0, amount: (whole + part) >> self.fraction() }
    }

    /// Returns the number of fraction bits of a squared load: twice the fraction bits of a load.
    const fn fraction(&self) -> u32 {
        match self.measure {
            Measure::Flows => 0,
            Measure::Rate => 2 * RATE_FRACTION,
        }
    }
}

/// Returns a rate in 1/1024 Mbit/s, rounded. A rate above 0 yields at least 1. A measured rate is
/// capped at the rate of the fastest link.
fn rate_load(rate_bps: u64) -> u64 {
    const MBIT: u64 = 1_000_000;
    let rounded = ((rate_bps.min(MOST_RATE_BPS) << RATE_FRACTION) + MBIT / 2) / MBIT;
    rounded.max(u64::from(rate_bps > 0))
}

impl CostFunction for Balance {
    fn place(&mut self, flow: &Flow, queue: QueueId) {
        let load = self.load(flow);
        let before = self.loads[queue.index()];
        self.squares += load * (2 * i128::from(before) + load);
        self.total += load;
        self.on_own += self.own(load, queue);
        self.loads[queue.index()] = before + load as u64;
    }

    fn remove(&mut self, flow: &Flow, queue: QueueId) {
        let load = self.load(flow);
        let before = self.loads[queue.index()];
        self.squares -= load * (2 * i128::from(before) - load);
        self.total -= load;
        self.on_own -= self.own(load, queue);
        self.loads[queue.index()] = before - load as u64;
        self.floor.set(self.floor.get().min(before - load as u64));
    }

    fn cost(&self) -> Cost {
        self.variance(self.among * self.squares - 2 * self.total * self.on_own + self.total * self.total)
    }

    fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost {
        if from == to {
            return Cost::ZERO;
        }
        let load = self.load(flow);
        let (there, here) = (i128::from(self.loads[to.index()]), i128::from(self.loads[from.index()]));
        let squares = 2 * load * (there - here + load);
        // A move changes neither the total nor the mean.
        let owned = 2 * self.total * (self.own(load, to) - self.own(load, from));
        let amount = match owned {
            0 => squares * TERM_UNIT / self.among,
            owned => (self.among * squares - owned) * TERM_UNIT / (self.among * self.among),
        };
        Cost { violations: 0, amount: amount >> self.fraction() }
    }

    fn least(&self, _: &Flow, among: &[QueueId]) -> Option<QueueId> {
        let least = among.iter().copied().min_by_key(|queue| self.loads[queue.index()])?;
        if among.len() as i128 == self.among {
            self.floor.set(self.loads[least.index()]);
        }
        Some(least)
    }

    fn is_content(&self, flow: &Flow, queue: QueueId) -> bool {
        // Another queue is better only if its load with the flow is less than this queue's load.
        self.floor.get() + self.load(flow) as u64 >= self.loads[queue.index()]
    }

    fn is_overloaded(&self, queue: QueueId) -> bool {
        let load = i128::from(self.loads[queue.index()]);
        // Compare with the mean. Flow counts are integers, so round the mean up for them.
        (load - i128::from(self.measure == Measure::Flows)) * self.among >= self.total
            && load * self.among > self.total
    }

    fn knows_load_only(&self) -> bool {
        true
    }

    fn bound(&self) -> Option<Cost> {
        // Flow counts are integers, so some queues have one flow more than others.
        let more = self.total % self.among;
        (self.measure == Measure::Flows).then(|| self.variance(more * (self.among - more)))
    }

    fn burden(&self, flow: &Flow) -> u64 {
        self.load(flow) as u64
    }

    fn lacks(&self, flow: &Flow) -> Option<Fact> {
        (self.measure == Measure::Rate && flow.rate_bps.is_none()).then_some(Fact::Rate)
    }

    fn boxed(&self) -> Box<dyn CostFunction> {
        Box::new(self.clone())
    }
}
