//! Service balancing: fair long-term shares on a device without queue weights.
//!
//! With more flows than queues, some flows share a queue while other flows have their own queue. A
//! device that serves its queues round robin gives a flow with its own queue several times the service
//! of a flow on a shared queue. Queue weights would fix this immediately. Without queue weights, flows
//! can alternate: a flow with more than its share moves to a shared queue, and a flow with less than
//! its share moves to a less crowded queue.
//!
//! [`ServiceBalancer`] maintains each flow's *lead*: its service beyond the average, divided by its
//! weight, decayed with a time constant. A move takes a flow from a queue of *n* flows to a queue of at
//! most *n* - 1 flows.
//!
//! - The moved flow loses nothing. The flows on its old queue gain, and the flows on its new queue
//!   lose. In the best move, flows that lag lose a neighbour, and flows that lead get a neighbour.
//! - Only the moved flow must reach a point at which it may change its queue.
//! - The balancer compares the moves of all movable flows, and begins the move with the largest benefit.
//!
//! If all queues have the same number of flows, no flow moves.

use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSample {
    /// The cookie of the flow's socket.
    pub flow: u64,
    pub queue: u32,
    /// The flow's weight, at least 1.
    pub weight: u32,
    /// Bytes served since the flow began, if known.
    pub served_bytes: Option<u64>,
    /// Whether the flow has more data than it may send. The flow's queue then determines its share.
    pub backlogged: bool,
    /// Whether the flow can move to another queue.
    pub movable: bool,
}

/// A flow that should change its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub flow: u64,
    pub from: u32,
    pub to: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceOptions {
    /// Time constant of the decay of leads, ns.
    pub time_constant_ns: u64,
    /// Smallest difference in mean lead between the flows on the new queue and the flows on the old
    /// queue at which a flow moves, bytes per unit of weight. A useful value is a few of the largest
    /// segments, because a flow is served in whole segments. A move to an empty queue needs no difference.
    pub least_gap_bytes: u64,
    /// Smallest time between the starts of two moves, ns.
    pub least_interval_ns: u64,
    /// Time after a failed move during which the flow is not moved again, ns.
    pub patience_ns: u64,
}

impl Default for ServiceOptions {
    /// Returns a time constant of ten seconds and a gap of two largest segments (64 KiB each). At most one
    /// move begins per 20 ms. After a failed move, the flow stays for half a second.
    fn default() -> Self {
        Self {
            time_constant_ns: 10_000_000_000,
            least_gap_bytes: 131_072,
            least_interval_ns: 20_000_000,
            patience_ns: 500_000_000,
        }
    }
}

/// Time for which a flow counts as backlogged after a sample with a backlog. A sample may be between
/// two writes.
const BACKLOGGED_FOR_NS: u64 = 100_000_000;
/// Time without a sample after which the balancer removes a flow. A flow that returns has no lead.
const FORGOTTEN_AFTER_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Account {
    sample: ServiceSample,
    /// Service beyond the average, bytes per unit of weight.
    lead: f64,
    seen_ns: u64,
    backlogged_ns: Option<u64>,
    left_alone_until_ns: u64,
}

impl Account {
    fn is_present(&self, now_ns: u64) -> bool {
        self.seen_ns == now_ns
    }

    fn is_backlogged(&self, now_ns: u64) -> bool {
        self.backlogged_ns.is_some_and(|at| now_ns.saturating_sub(at) <= BACKLOGGED_FOR_NS)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Crowd {
    flows: u32,
    leads: f64,
}

/// The benefit of a move. A larger value is better.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Worth {
    /// Number of flows on the crowded queue if the other queue is empty, otherwise 0. A move to an
    /// empty queue is always useful.
    beside_empty: u32,
    /// If the queues differ by one flow: the mean lead on the other queue minus the mean lead of the flows
    /// that stay. If the other queue is empty: the negative lead of the moved flow. Bytes per unit of weight.
    gap: f64,
}

impl Worth {
    /// Returns the benefit of moving a flow with the lead `lead`.
    ///
    /// The best move reduces the sum of all squared leads fastest. The derivative of this sum is twice
    /// the sum of each lead times the change of that flow's service. On a queue of n flows, each flow gets
    /// one n-th of the service.
    fn of(lead: f64, from: &Crowd, to: &Crowd) -> Self {
        if to.flows == 0 {
            return Self { beside_empty: from.flows, gap: -lead };
        }
        let part = |flows: u32| 1.0 / f64::from(flows);
        let left = (from.leads - lead) * (part(from.flows - 1) - part(from.flows));
        let joined = to.leads * (part(to.flows + 1) - part(to.flows));
        let own = lead * (part(to.flows + 1) - part(from.flows));
        Self { beside_empty: 0, gap: -(left + joined + own) * f64::from(from.flows) }
    }
}

#[derive(Clone, Debug)]
pub struct ServiceBalancer {
    options: ServiceOptions,
    queues: u32,
    accounts: HashMap<u64, Account>,
    sampled_ns: Option<u64>,
    moved_ns: Option<u64>,
}

impl ServiceBalancer {
    #[must_use]
    pub fn new(queues: u32, options: ServiceOptions) -> Self {
        Self { options, queues, accounts: HashMap::new(), sampled_ns: None, moved_ns: None }
    }

    /// Records the flows at `now_ns` of a monotonic clock.
    pub fn sample(&mut self, now_ns: u64, flows: &[ServiceSample]) {
        let elapsed = self.sampled_ns.replace(now_ns).map_or(0, |before| now_ns.saturating_sub(before));
        let kept = (-(elapsed as f64) / self.options.time_constant_ns.max(1) as f64).exp();
        let mut gains: Vec<(u64, f64)> = Vec::new();
        let (mut bytes, mut weights) = (0.0, 0.0);
        for sample in flows {
            let account = self.accounts.entry(sample.flow).or_insert(Account {
                sample: *sample,
                lead: 0.0,
                seen_ns: now_ns,
                backlogged_ns: None,
                left_alone_until_ns: 0,
            });
            let served = match (sample.served_bytes, account.sample.served_bytes) {
                (Some(now), Some(before)) => now.saturating_sub(before) as f64,
                _ => 0.0,
            };
            account.sample = *sample;
            account.seen_ns = now_ns;
            if sample.backlogged {
                account.backlogged_ns = Some(now_ns);
            }
            let weight = f64::from(sample.weight.max(1));
            gains.push((sample.flow, served / weight));
            if account.is_backlogged(now_ns) && sample.served_bytes.is_some() {
                bytes += served;
                weights += weight;
            }
        }
        let average = if weights > 0.0 { bytes / weights } else { 0.0 };
        for (flow, gain) in gains {
            let Some(account) = self.accounts.get_mut(&flow) else { continue };
            if account.sample.served_bytes.is_none() {
                continue;
            }
            account.lead = account.lead * kept + gain - average;
            if !account.is_backlogged(now_ns) {
                // A flow that does not use its share does not accumulate a claim.
                account.lead = account.lead.max(0.0);
            }
        }
        self.accounts.retain(|_, account| now_ns.saturating_sub(account.seen_ns) < FORGOTTEN_AFTER_NS);
    }

    /// Returns the move to begin at `now_ns`, if a move has a benefit, and the last move began at least
    /// `least_interval_ns` ago. `now_ns` is the time of the last sample.
    pub fn next_move(&mut self, now_ns: u64) -> Option<Move> {
        let early = |at: u64| now_ns.saturating_sub(at) < self.options.least_interval_ns;
        if self.moved_ns.is_some_and(early) {
            return None;
        }
        let chosen = self.best_move(now_ns)?;
        self.moved_ns = Some(now_ns);
        Some(chosen)
    }

    /// Records that the flow could not move. The balancer does not move the flow again for
    /// `patience_ns`.
    pub fn refused(&mut self, now_ns: u64, flow: u64) {
        if let Some(account) = self.accounts.get_mut(&flow) {
            account.left_alone_until_ns = now_ns.saturating_add(self.options.patience_ns);
        }
    }

    /// Returns a flow's service beyond the average, bytes per unit of weight; `None` for an unknown
    /// flow.
    #[must_use]
    pub fn lead(&self, flow: u64) -> Option<f64> {
        self.accounts.get(&flow).map(|account| account.lead)
    }

    /// Returns the backlogged flows of the sample at `now_ns`, ordered by cookie. So the order does not
    /// depend on the hash map.
    fn contenders(&self, now_ns: u64) -> Vec<Account> {
        let mut contenders: Vec<Account> = self
            .accounts
            .values()
            .filter(|account| account.is_present(now_ns) && account.sample.queue < self.queues)
            .filter(|account| account.is_backlogged(now_ns))
            .copied()
            .collect();
        contenders.sort_by_key(|account| account.sample.flow);
        contenders
    }

    fn best_move(&self, now_ns: u64) -> Option<Move> {
        let contenders = self.contenders(now_ns);
        let mut crowds = vec![Crowd::default(); self.queues as usize];
        for account in &contenders {
            let crowd = crowds.get_mut(account.sample.queue as usize)?;
            crowd.flows += 1;
            crowd.leads += account.lead;
        }
        let mut best: Option<(Worth, Move)> = None;
        let movers = contenders
            .iter()
            .filter(|account| account.sample.movable && now_ns >= account.left_alone_until_ns);
        for account in movers {
            let ServiceSample { flow, queue: from, .. } = account.sample;
            let Some(crowd) = crowds.get(from as usize).filter(|crowd| crowd.flows > 1) else { continue };
            for (to, target) in crowds.iter().enumerate().filter(|(_, target)| target.flows < crowd.flows) {
                let worth = Worth::of(account.lead, crowd, target);
                if best.is_none_or(|(most, _)| worth > most) {
                    best = Some((worth, Move { flow, from, to: to as u32 }));
                }
            }
        }
        let worthwhile =
            |worth: &Worth| worth.beside_empty > 0 || worth.gap >= self.options.least_gap_bytes as f64;
        best.filter(|(worth, _)| worthwhile(worth)).map(|(_, chosen)| chosen)
    }
}
