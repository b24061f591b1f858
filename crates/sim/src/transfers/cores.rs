//! A core: softirqs, ksoftirqd, and processes.
//!
//! Softirqs precede processes (`__do_softirq`), for up to 2 ms or ten rounds, or for one round if a
//! process waits for the core (`need_resched`). A process waits if it was woken while no process ran on
//! the core. A process that the softirq interrupted does not wait.
//!
//! A round polls each queue once. A queue with more packets than the poll's 64 waits for the next round
//! (`repoll` in `net_rx_action`). `netdev_budget` therefore ends a round only with several queues.
//!
//! The thread ksoftirqd does the remaining work. It shares the core fairly with the processes until it has no
//! work left. Meanwhile, softirqs run only in ksoftirqd (`ksoftirqd_running`, Linux 4.9 to 6.4).

use std::collections::VecDeque;

use super::machine::Shares;
use crate::time::{MILLISECOND, Span, Time};

/// Maximum number of packets per round (`net.core.netdev_budget`).
pub const BUDGET: u32 = 300;
/// Maximum time of one invocation (`MAX_SOFTIRQ_TIME`, `netdev_budget_usecs`).
const LONGEST: Span = 2 * MILLISECOND;
/// Maximum number of rounds per invocation (`MAX_SOFTIRQ_RESTART`).
const ROUNDS: u32 = 10;
/// Time in which every ready entity runs once, and the minimum time of each entity (CFS:
/// `sched_latency_ns` and `sched_min_granularity_ns` with 8 or more processors,
/// `sched_proc_update_handler` in kernel/sched/fair.c).
const LATENCY: Span = 24 * MILLISECOND;
const GRANULARITY: Span = 3 * MILLISECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Soft {
    Queue(u32),
    Acks(u32),
}

/// A piece of work that a core runs without interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Soft(Soft),
    /// A piece of work of the process with this index in [`Core::processes`].
    Process(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Writes,
    Reads,
}

#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub flow: u32,
    pub end: End,
    pub is_ready: bool,
    /// Run time of the process as the scheduler counts it. A wake-up may raise it.
    run: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entity {
    Daemon,
    Process(usize),
}

#[derive(Clone, Debug)]
pub struct Core {
    pub host: u32,
    pub hz: f64,
    pub processes: Vec<Process>,
    soft: VecDeque<Soft>,
    /// Cycles of work that is not an item. The next item takes these cycles in addition.
    pub pending: f64,
    pub running: Option<(Item, Time)>,
    /// Whether ksoftirqd runs the softirqs.
    daemon: bool,
    daemon_run: Span,
    current: Option<Entity>,
    current_since: Time,
    /// Start of the present invocation of softirqs. `None` outside an invocation.
    invoked: Option<Time>,
    packets: u32,
    rounds: u32,
    /// Remaining items of the present round.
    left: usize,
    /// Number of rounds that reached [`BUDGET`] with work left (`time_squeeze`).
    pub squeezes: u64,
    pub busy: Span,
    pub cycles: [f64; 8],
}

impl Core {
    #[must_use]
    pub fn new(host: u32, hz: f64) -> Self {
        Self {
            host,
            hz,
            processes: Vec::new(),
            soft: VecDeque::new(),
            pending: 0.0,
            running: None,
            daemon: false,
            daemon_run: 0,
            current: None,
            current_since: Time::ZERO,
            invoked: None,
            packets: 0,
            rounds: 0,
            left: 0,
            squeezes: 0,
            busy: 0,
            cycles: [0.0; 8],
        }
    }

    pub fn add(&mut self, flow: u32, end: End) -> usize {
        self.processes.push(Process { flow, end, is_ready: false, run: 0 });
        self.processes.len() - 1
    }

    pub fn charge(&mut self, shares: &Shares, times: f64) -> f64 {
        for (sum, share) in self.cycles.iter_mut().zip(shares.array()) {
            *sum += share * times;
        }
        shares.sum() * times
    }

    pub fn raise(&mut self, soft: Soft) {
        self.soft.push_back(soft);
    }

    /// Makes a process ready. Sleep gives the process at most one granularity of credit over the other
    /// ready entities.
    pub fn wake(&mut self, process: usize) {
        let least = self.least_run();
        let process = &mut self.processes[process];
        if !process.is_ready {
            process.is_ready = true;
            process.run = process.run.max(least.saturating_sub(GRANULARITY));
        }
    }

    fn least_run(&self) -> Span {
        let processes = self.processes.iter().filter(|process| process.is_ready).map(|process| process.run);
        processes.chain(self.daemon.then_some(self.daemon_run)).min().unwrap_or(0)
    }

    pub fn next(&mut self, now: Time) -> Option<Item> {
        if let Some(Entity::Process(process)) = self.current
            && !self.processes[process].is_ready
        {
            self.current = None;
        }
        if self.soft.is_empty() {
            (self.daemon, self.invoked, self.packets, self.rounds) = (false, None, 0, 0);
        } else if !self.daemon {
            let began = *self.invoked.get_or_insert_with(|| {
                self.left = self.soft.len();
                now
            });
            let is_waited_for = !matches!(self.current, Some(Entity::Process(_)))
                && self.processes.iter().any(|process| process.is_ready);
            let rounds = if is_waited_for { 1 } else { ROUNDS };
            if self.rounds < rounds && now.since(began) < LONGEST {
                return self.soft.pop_front().map(Item::Soft);
            }
            self.daemon_run = self.daemon_run.max(self.least_run());
            (self.daemon, self.invoked, self.packets, self.rounds) = (true, None, 0, 0);
        }
        let entity = self.choose(now)?;
        match entity {
            Entity::Daemon => self.soft.pop_front().map(Item::Soft),
            Entity::Process(process) => Some(Item::Process(process)),
        }
    }

    fn run_of(&self, entity: Entity) -> Span {
        match entity {
            Entity::Daemon => self.daemon_run,
            Entity::Process(process) => self.processes[process].run,
        }
    }

    /// Returns the entity with the least run time. The present entity first keeps the core for its time
    /// slice.
    fn choose(&mut self, now: Time) -> Option<Entity> {
        let is_ready = |entity: Entity| match entity {
            Entity::Daemon => self.daemon,
            Entity::Process(process) => self.processes[process].is_ready,
        };
        let ready = (0..self.processes.len()).map(Entity::Process).chain([Entity::Daemon]);
        let ready = ready.filter(|entity| is_ready(*entity)).count() as u64;
        let slice = (LATENCY / ready.max(1)).max(GRANULARITY);
        if let Some(current) = self.current
            && is_ready(current)
            && now.since(self.current_since) < slice
        {
            return Some(current);
        }
        let all = (0..self.processes.len()).map(Entity::Process).chain([Entity::Daemon]);
        let chosen = all.filter(|entity| is_ready(*entity)).min_by_key(|entity| self.run_of(*entity))?;
        if self.current != Some(chosen) {
            self.current_since = now;
        }
        self.current = Some(chosen);
        Some(chosen)
    }

    /// Accounts for the end of the running item. `packets` is the number of packets of a poll. `more` is set
    /// if the polled queue has further packets. Returns the item, or `None` if no item was running.
    pub fn ended(&mut self, now: Time, packets: u32, more: Option<Soft>) -> Option<Item> {
        let (item, began) = self.running.take()?;
        let took = now.since(began);
        self.busy += took;
        match item {
            Item::Soft(_) => {
                self.packets += packets;
                self.soft.extend(more);
                self.left = self.left.saturating_sub(1);
                let is_squeezed = self.packets >= BUDGET && !self.soft.is_empty();
                self.squeezes += u64::from(is_squeezed);
                if self.left == 0 || is_squeezed {
                    self.packets = 0;
                    self.left = self.soft.len();
                    self.rounds += 1;
                }
                if self.daemon {
                    self.daemon_run += took;
                }
            }
            Item::Process(process) => self.processes[process].run += took,
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::time::MICROSECOND;

    fn shares(queues: u32, poll: Span, piece: Span, until: Time) -> (Span, Span, u64) {
        let mut core = Core::new(0, 1e9);
        let process = core.add(0, End::Reads);
        core.wake(process);
        (0..queues).for_each(|queue| core.raise(Soft::Queue(queue)));
        let (mut now, mut soft, mut own) = (Time::ZERO, 0, 0);
        while now < until {
            let item = core.next(now).unwrap();
            core.running = Some((item, now));
            match item {
                Item::Soft(queue) => {
                    now += poll;
                    soft += poll;
                    core.ended(now, 64, Some(queue));
                }
                Item::Process(_) => {
                    now += piece;
                    own += piece;
                    core.ended(now, 0, None);
                }
            }
        }
        (soft, own, core.squeezes)
    }

    #[test]
    fn queues_that_never_empty_share_the_core_with_the_process() {
        for queues in [1, 8] {
            let until = Time(1000 * MILLISECOND);
            let (soft, own, squeezes) = shares(queues, 50 * MICROSECOND, 10 * MICROSECOND, until);
            let share = soft as f64 / (soft + own) as f64;
            assert!((0.49..0.52).contains(&share), "{share}");
            // A round polls a single queue once, so the round stays within the budget.
            assert_eq!(squeezes > 100, queues > 1, "{queues} queues: {squeezes}");
        }
    }

    /// Returns the number of polls before ksoftirqd runs. The process was either interrupted, or woken
    /// on an idle core.
    fn polls_until_the_daemon(is_interrupted: bool) -> u32 {
        let mut core = Core::new(0, 1e9);
        let process = core.add(0, End::Reads);
        let mut now = Time::ZERO;
        if is_interrupted {
            core.wake(process);
            core.running = core.next(now).map(|item| (item, now));
            core.raise(Soft::Queue(0));
            core.ended(now, 0, None);
        } else {
            core.raise(Soft::Queue(0));
        }
        let mut polls = 0;
        while let Some(Item::Soft(queue)) = core.next(now)
            && !core.daemon
        {
            core.running = Some((Item::Soft(queue), now));
            core.wake(process);
            now += MICROSECOND;
            core.ended(now, 64, Some(queue));
            polls += 1;
        }
        polls
    }

    #[test]
    fn a_process_that_was_woken_ends_the_soft_interrupt_after_one_round() {
        assert_eq!(polls_until_the_daemon(false), 1);
        assert_eq!(polls_until_the_daemon(true), ROUNDS);
    }

    #[test]
    fn a_soft_interrupt_precedes_the_process() {
        let mut core = Core::new(0, 1e9);
        let process = core.add(0, End::Reads);
        core.wake(process);
        assert_eq!(core.next(Time::ZERO), Some(Item::Process(process)));
        core.running = Some((Item::Process(process), Time::ZERO));
        core.raise(Soft::Acks(3));
        core.ended(Time(5), 0, None);
        assert_eq!(core.next(Time(5)), Some(Item::Soft(Soft::Acks(3))));
        core.running = Some((Item::Soft(Soft::Acks(3)), Time(5)));
        core.ended(Time(6), 1, None);
        assert_eq!(core.next(Time(6)), Some(Item::Process(process)));
        core.processes[process].is_ready = false;
        assert_eq!(core.next(Time(6)), None);
    }
}
