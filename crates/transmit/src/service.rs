//! Service balancing: fair shares over a long time where a device takes no queue weights.
//!
//! With more flows than queues some flows share a queue and others have one alone, and a device that serves its
//! queues in turn gives the latter several times as much. Weights would set that right at once. Without them, what
//! is left is to take turns: whoever has had more than its share goes and shares, whoever has had less gets the
//! room.
//!
//! [`ServiceBalancer`] keeps an account for each flow, its *lead*: what it has been served beyond the average,
//! over its weight, forgotten with a time constant. A move takes a flow from a queue of *n* flows to a queue of at
//! most *n* - 1. The flow itself fares no worse; those that it leaves gain, those that it joins lose. So the best
//! move leaves the flows that lag behind and joins those that lead: one move, and only one flow has to be brought
//! to a point at which it may change queue. The flow that moves is the one on the crowded queue whose going
//! helps most.
//!
//! Queues that all hold the same number of flows are even, and nothing moves.

use std::collections::HashMap;

/// A flow as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSample {
    /// What tells the flow from all others: the cookie of its socket.
    pub flow: u64,
    /// The queue that it is on.
    pub queue: u32,
    /// Its weight, at least 1.
    pub weight: u32,
    /// Bytes that it has been served since it began, if they are known.
    pub served_bytes: Option<u64>,
    /// It has more to send than it is allowed to: its share is the queue's doing.
    pub backlogged: bool,
    /// It can be brought to change its queue.
    pub movable: bool,
}

/// A flow that should change its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// As in [`ServiceSample::flow`].
    pub flow: u64,
    /// The queue that it is on.
    pub from: u32,
    /// The queue that it should take.
    pub to: u32,
}

/// Settings of a [`ServiceBalancer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceOptions {
    /// After so much time 63 % of a lead is forgotten, ns.
    pub time_constant_ns: u64,
    /// Least difference between the mean lead of the flows to join and that of the flows to leave, bytes per
    /// unit of weight: a few of the largest segments, because a flow is served by whole segments.
    pub least_gap_bytes: u64,
    /// Least time between the beginnings of two moves, ns.
    pub least_interval_ns: u64,
    /// A flow that could not be brought to move is left alone for so long, ns.
    pub patience_ns: u64,
}

impl Default for ServiceOptions {
    /// Leads of ten seconds, two of the largest segments (64 KiB), a move in 20 ms at most, half a second of patience.
    fn default() -> Self {
        Self {
            time_constant_ns: 10_000_000_000,
            least_gap_bytes: 131_072,
            least_interval_ns: 20_000_000,
            patience_ns: 500_000_000,
        }
    }
}

/// A flow counts as backlogged for so long after it was seen to be: a sample may catch it between two writes.
const BACKLOGGED_FOR_NS: u64 = 100_000_000;
/// A flow that is not seen for so long is forgotten; when it is back, it begins anew.
const FORGOTTEN_AFTER_NS: u64 = 1_000_000_000;

/// What is known of a flow.
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

/// The flows that share a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Crowd {
    flows: u32,
    /// Their leads, added up.
    leads: f64,
}

/// What a move is worth; of two worths the greater one is the better.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Worth {
    /// Flows that crowd where one of them could have an empty queue: always worth it. Else 0.
    beside_empty: u32,
    /// Bytes per unit of weight: the difference of the mean leads, where the queues differ by one flow.
    gap: f64,
}

impl Worth {
    /// Of taking a flow with this lead from one queue to another.
    ///
    /// The sum of all squared leads changes at twice the rate of the sum of leads times changes of service. The
    /// move that makes it fall fastest is the best. On a queue of n flows each is served an n-th.
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

/// Decides which flow should go where, from what each has been served.
#[derive(Clone, Debug)]
pub struct ServiceBalancer {
    options: ServiceOptions,
    queues: u32,
    accounts: HashMap<u64, Account>,
    sampled_ns: Option<u64>,
    moved_ns: Option<u64>,
}

impl ServiceBalancer {
    /// Knows of no flow yet.
    #[must_use]
    pub fn new(queues: u32, options: ServiceOptions) -> Self {
        Self { options, queues, accounts: HashMap::new(), sampled_ns: None, moved_ns: None }
    }

    /// Takes the flows as they are at `now_ns`, of a clock that does not go back.
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
                // It does not take what it could have: nobody owes it anything.
                account.lead = account.lead.max(0.0);
            }
        }
        self.accounts.retain(|_, account| now_ns.saturating_sub(account.seen_ns) < FORGOTTEN_AFTER_NS);
    }

    /// The move that should begin at `now_ns`, the time of the last sample, if one is worth it.
    pub fn next_move(&mut self, now_ns: u64) -> Option<Move> {
        let early = |at: u64| now_ns.saturating_sub(at) < self.options.least_interval_ns;
        if self.moved_ns.is_some_and(early) {
            return None;
        }
        let chosen = self.best_move(now_ns)?;
        self.moved_ns = Some(now_ns);
        Some(chosen)
    }

    /// The flow could not be brought to move: it is left alone for a while.
    pub fn refused(&mut self, now_ns: u64, flow: u64) {
        if let Some(account) = self.accounts.get_mut(&flow) {
            account.left_alone_until_ns = now_ns.saturating_add(self.options.patience_ns);
        }
    }

    /// What a flow has been served beyond the average, bytes per unit of weight; none for a flow that is not known.
    #[must_use]
    pub fn lead(&self, flow: u64) -> Option<f64> {
        self.accounts.get(&flow).map(|account| account.lead)
    }

    /// Flows in an order that does not depend on the hash map's.
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
