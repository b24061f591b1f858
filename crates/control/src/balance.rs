//! Service balancing: flows that must share queues alternate between queues.

use evenkeel_datapath::{FlowMover, FlowService, MoveState};
use evenkeel_transmit::service::{Move, ServiceBalancer, ServiceOptions, ServiceSample};

use crate::backend::{MoveBackend, MoveProgress};
use crate::error::ControlError;

pub struct BalanceControl {
    pub backend: Box<dyn MoveBackend>,
    pub options: ServiceOptions,
}

/// Minimum time between reads, per flow, ns. A read takes up to 1 µs per flow, so reads cost at most a
/// few per cent of a CPU.
const READ_INTERVAL_PER_FLOW_NS: u64 = 20_000;
/// Time to wait after flows could not be read or were too many, ns.
const READ_AGAIN_NS: u64 = 500_000_000;

/// Number of moves in a tick, by result, and the time for which the moved flows were held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BalanceCounts {
    pub(crate) wanted: u64,
    pub(crate) done: u64,
    pub(crate) expired: u64,
    pub(crate) overruled: u64,
    pub(crate) held_ns: u64,
}

pub(crate) struct Balance {
    backend: Box<dyn MoveBackend>,
    balancer: ServiceBalancer,
    pending: Option<Move>,
    /// A finished move. The next read checks it against the flow's queue.
    unconfirmed: Option<Move>,
    read_again_ns: u64,
}

impl Balance {
    pub(crate) fn new(queues: u32, control: BalanceControl) -> Self {
        Self {
            backend: control.backend,
            balancer: ServiceBalancer::new(queues, control.options),
            pending: None,
            unconfirmed: None,
            read_again_ns: 0,
        }
    }

    /// Reads the flows, checks the current move, and begins the next one when it is due.
    pub(crate) fn tick(&mut self, now_ns: u64) -> Result<BalanceCounts, ControlError> {
        let mut counts = BalanceCounts::default();
        // The BPF program sees the move before the kernel records the queue, so check the move at the
        // next read.
        let moved = self.unconfirmed.take();
        self.follow_up(now_ns, &mut counts);
        if now_ns < self.read_again_ns {
            self.unconfirmed = self.unconfirmed.or(moved);
            return Ok(counts);
        }
        let Some(flows) = self.backend.flows()? else {
            self.read_again_ns = now_ns + READ_AGAIN_NS;
            return Ok(counts);
        };
        self.read_again_ns = now_ns + READ_INTERVAL_PER_FLOW_NS * flows.len() as u64;
        self.balancer.sample(now_ns, &flows);
        if let Some(moved) = moved
            && flows.iter().any(|flow| flow.flow == moved.flow && flow.queue == moved.from)
        {
            counts.overruled += 1;
            self.balancer.refused(now_ns, moved.flow);
        }
        if self.pending.is_none()
            && self.unconfirmed.is_none()
            && let Some(next) = self.balancer.next_move(now_ns)
            && self.backend.begin(&next)?
        {
            counts.wanted += 1;
            self.pending = Some(next);
        }
        Ok(counts)
    }

    fn follow_up(&mut self, now_ns: u64, counts: &mut BalanceCounts) {
        let Some(pending) = self.pending else { return };
        match self.backend.progress() {
            MoveProgress::Waiting => return,
            MoveProgress::Done { held_ns } => {
                counts.done += 1;
                counts.held_ns += held_ns;
                self.unconfirmed = Some(pending);
            }
            MoveProgress::Expired => {
                counts.expired += 1;
                self.balancer.refused(now_ns, pending.flow);
            }
        }
        self.backend.end();
        self.pending = None;
    }

    pub(crate) fn end(&mut self) {
        self.backend.end();
        self.pending = None;
    }
}

/// Maximum time for which a flow is held back, ns: many times the time in which a queue drains.
const LONGEST_HOLD_NS: u64 = 100_000_000;

/// Moves a flow: holds the flow back until the kernel allows a change of queue.
#[derive(Debug)]
pub struct HeldMoves {
    mover: FlowMover,
    flows: Vec<FlowService>,
}

impl HeldMoves {
    #[must_use]
    pub fn new(mover: FlowMover) -> Self {
        Self { mover, flows: Vec::new() }
    }
}

impl MoveBackend for HeldMoves {
    fn name(&self) -> String {
        "held back by the window".to_owned()
    }

    fn flows(&mut self) -> Result<Option<Vec<ServiceSample>>, ControlError> {
        let Some(flows) = self.mover.flows()? else { return Ok(None) };
        self.flows = flows;
        let samples = self.flows.iter().map(|flow| ServiceSample {
            flow: flow.cookie,
            queue: flow.queue,
            weight: flow.weight,
            served_bytes: flow.acknowledged_bytes,
            backlogged: flow.backlogged,
            movable: flow.movable,
        });
        Ok(Some(samples.collect()))
    }

    fn begin(&mut self, wanted: &Move) -> Result<bool, ControlError> {
        let Some(flow) = self.flows.iter().find(|flow| flow.cookie == wanted.flow) else { return Ok(false) };
        self.mover.begin(flow, wanted.to, LONGEST_HOLD_NS);
        Ok(true)
    }

    fn progress(&mut self) -> MoveProgress {
        match self.mover.state() {
            MoveState::Waiting => MoveProgress::Waiting,
            MoveState::Done { held_ns } => MoveProgress::Done { held_ns },
            MoveState::Expired | MoveState::None => MoveProgress::Expired,
        }
    }

    fn end(&mut self) {
        self.mover.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use super::*;

    const MS: u64 = 1_000_000;
    const OPTIONS: ServiceOptions = ServiceOptions {
        time_constant_ns: 10_000 * MS,
        least_gap_bytes: 1000,
        least_interval_ns: 10 * MS,
        patience_ns: 500 * MS,
    };

    /// A device with two queues and three flows, two of which share a queue.
    #[derive(Debug, Default)]
    struct Device {
        flows: Vec<ServiceSample>,
        begun: Vec<Move>,
        progress: Option<MoveProgress>,
        ends: u32,
    }

    struct Fake(Arc<Mutex<Device>>);

    impl MoveBackend for Fake {
        fn name(&self) -> String {
            "fake".to_owned()
        }

        fn flows(&mut self) -> Result<Option<Vec<ServiceSample>>, ControlError> {
            Ok(Some(self.0.lock().unwrap().flows.clone()))
        }

        fn begin(&mut self, wanted: &Move) -> Result<bool, ControlError> {
            self.0.lock().unwrap().begun.push(*wanted);
            Ok(true)
        }

        fn progress(&mut self) -> MoveProgress {
            self.0.lock().unwrap().progress.unwrap_or(MoveProgress::Waiting)
        }

        fn end(&mut self) {
            self.0.lock().unwrap().ends += 1;
        }
    }

    fn balance() -> (Balance, Arc<Mutex<Device>>) {
        let flow = |flow, queue| ServiceSample {
            flow,
            queue,
            weight: 1,
            served_bytes: Some(0),
            backlogged: true,
            movable: true,
        };
        let flows = vec![flow(1, 0), flow(2, 0), flow(3, 1)];
        let device = Arc::new(Mutex::new(Device { flows, ..Device::default() }));
        let control = BalanceControl { backend: Box::new(Fake(Arc::clone(&device))), options: OPTIONS };
        (Balance::new(2, control), device)
    }

    fn serve(device: &Mutex<Device>, bytes: [u64; 3]) {
        for (flow, bytes) in device.lock().unwrap().flows.iter_mut().zip(bytes) {
            flow.served_bytes = flow.served_bytes.map(|served| served + bytes);
        }
    }

    #[test]
    fn one_move_at_a_time_and_its_end_is_told() {
        let (mut balance, device) = balance();
        assert_eq!(balance.tick(0).unwrap(), BalanceCounts::default());
        serve(&device, [6000, 5000, 10_000]);
        assert_eq!(balance.tick(10 * MS).unwrap().wanted, 1);
        assert_eq!(device.lock().unwrap().begun, [Move { flow: 1, from: 0, to: 1 }]);
        // The flow is still held back, so no second move begins, although it would improve the balance.
        serve(&device, [6000, 5000, 10_000]);
        assert_eq!(balance.tick(30 * MS).unwrap(), BalanceCounts::default());
        device.lock().unwrap().progress = Some(MoveProgress::Done { held_ns: 7 });
        device.lock().unwrap().flows[0].queue = 1;
        let counts = balance.tick(40 * MS).unwrap();
        assert_eq!((counts.done, counts.held_ns, counts.overruled, counts.expired), (1, 7, 0, 0));
        assert!(device.lock().unwrap().ends > 0, "the flow is let go of");
    }

    #[test]
    fn a_flow_that_is_found_where_it_was_has_been_overruled() {
        let (mut balance, device) = balance();
        balance.tick(0).unwrap();
        serve(&device, [6000, 5000, 10_000]);
        balance.tick(10 * MS).unwrap();
        device.lock().unwrap().progress = Some(MoveProgress::Done { held_ns: 0 });
        let counts = balance.tick(20 * MS).unwrap();
        assert_eq!((counts.done, counts.overruled), (1, 0), "not on record yet");
        assert_eq!(balance.tick(30 * MS).unwrap().overruled, 1);
        let last = device.lock().unwrap().begun.last().copied().unwrap();
        assert_eq!(last.flow, 2, "the one that does not move is left alone");
    }

    #[test]
    fn a_move_whose_time_is_over_is_counted_and_the_flow_left_alone() {
        let (mut balance, device) = balance();
        balance.tick(0).unwrap();
        serve(&device, [6000, 5000, 10_000]);
        balance.tick(10 * MS).unwrap();
        device.lock().unwrap().progress = Some(MoveProgress::Expired);
        let counts = balance.tick(60 * MS).unwrap();
        assert_eq!((counts.done, counts.expired, counts.wanted), (0, 1, 1), "the next best is tried");
        assert_eq!(device.lock().unwrap().begun.last().unwrap().flow, 2);
    }
}
