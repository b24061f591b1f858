use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_datapath::{QueueView, monotonic_ns};
use evenkeel_host::{CpuTimes, Host};
use evenkeel_transmit::segments::{SegmentOptions, SegmentSizer, equal_backlog};
use evenkeel_transmit::weights::WeightFilter;

use crate::backend::{BacklogBackend, SegmentBackend, WeightBackend};
use crate::balance::{Balance, BalanceControl, BalanceCounts};
use crate::error::ControlError;

pub struct WeightControl {
    pub backend: Box<dyn WeightBackend>,
    /// Time constant of the averaged queue weights, which smooths starts and ends of flows.
    pub smoothing: Duration,
    /// Minimum time between two updates of the device.
    pub least_interval: Duration,
}

pub struct SegmentControl {
    pub backend: Box<dyn SegmentBackend>,
    pub options: SegmentOptions,
}

pub struct BacklogControl {
    pub backend: Box<dyn BacklogBackend>,
    /// `None` if the rate is unknown.
    pub rate_bps: Option<u64>,
}

pub struct ControlOptions {
    pub view: QueueView,
    /// Time between two reads of the queues.
    pub interval: Duration,
    pub weights: Option<WeightControl>,
    pub segments: Option<SegmentControl>,
    pub backlog: Option<BacklogControl>,
    pub balance: Option<BalanceControl>,
    /// Segment size of the device at the start, bytes.
    pub segment_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of updates of queue weights. Each update changes one or more queues.
    pub weight_updates: u64,
    pub weights_set: u64,
    /// Number of updates in which a weight was reduced to the back end's maximum.
    pub weights_cut: u64,
    pub segment_changes: u64,
    pub route_refreshes: u64,
    /// Number of moves begun.
    pub moves_wanted: u64,
    /// Number of finished moves, including the overruled moves.
    pub moves_done: u64,
    /// Number of moves that expired before the kernel allowed a change of queue.
    pub moves_expired: u64,
    /// Number of finished moves after which the kernel kept the flow on its old queue.
    pub moves_overruled: u64,
    /// Total time for which moved flows were held back, ns.
    pub held_ns: u64,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    weight_updates: AtomicU64,
    weights_set: AtomicU64,
    weights_cut: AtomicU64,
    segment_changes: AtomicU64,
    route_refreshes: AtomicU64,
    moves_wanted: AtomicU64,
    moves_done: AtomicU64,
    moves_expired: AtomicU64,
    moves_overruled: AtomicU64,
    held_ns: AtomicU64,
    failure: Mutex<Option<ControlError>>,
}

impl Shared {
    fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    fn add_moves(&self, counts: &BalanceCounts) {
        Self::add(&self.moves_wanted, counts.wanted);
        Self::add(&self.moves_done, counts.done);
        Self::add(&self.moves_expired, counts.expired);
        Self::add(&self.moves_overruled, counts.overruled);
        Self::add(&self.held_ns, counts.held_ns);
    }
}

/// A running control loop. Stopping or dropping it restores the settings that its back ends changed.
pub struct Controller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), ControlError>>>,
}

/// Time after a refresh until running flows have adopted a smaller size, with a margin, ns. A socket
/// checks its route at its next send, and segments that are already built stay unchanged. Until then
/// weights must suit the larger size.
const FLOWS_FOLLOW_AFTER_NS: u64 = 1_500_000_000;
/// Interval for counting flows, ns. Counting reads every flow.
const COUNT_INTERVAL_NS: u64 = 50_000_000;
/// Interval for reading CPU times. The kernel counts them in ticks of 10 ms, and the file is long on a
/// large host.
const PROCESSOR_INTERVAL: Duration = Duration::from_millis(500);

impl Controller {
    /// Starts the loop on a separate thread.
    pub fn start(options: ControlOptions) -> Result<Self, ControlError> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("evenkeel-control".to_owned())
            .spawn(move || run(options, &theirs))
            .map_err(|source| ControlError::System { action: "start a thread".to_owned(), source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            weight_updates: read(&self.shared.weight_updates),
            weights_set: read(&self.shared.weights_set),
            weights_cut: read(&self.shared.weights_cut),
            segment_changes: read(&self.shared.segment_changes),
            route_refreshes: read(&self.shared.route_refreshes),
            moves_wanted: read(&self.shared.moves_wanted),
            moves_done: read(&self.shared.moves_done),
            moves_expired: read(&self.shared.moves_expired),
            moves_overruled: read(&self.shared.moves_overruled),
            held_ns: read(&self.shared.held_ns),
        }
    }

    /// Returns and clears the error that ended the loop, if any. For example, another program changed a
    /// setting, or the device no longer exists.
    #[must_use]
    pub fn failure(&self) -> Option<ControlError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stops the loop and restores every setting.
    pub fn stop(mut self) -> Result<(), ControlError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ControlError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.thread().unpark();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn run(options: ControlOptions, shared: &Shared) -> Result<(), ControlError> {
    let interval = options.interval;
    let mut keeper = Keeper::new(options);
    while !shared.stop.load(Ordering::Relaxed) {
        if let Err(error) = keeper.tick(monotonic_ns(), shared) {
            *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            break;
        }
        std::thread::park_timeout(interval);
    }
    keeper.restore()
}

struct Keeper {
    view: QueueView,
    weights: Option<Weights>,
    segments: Option<Segments>,
    backlog: Option<Backlog>,
    balance: Option<Balance>,
    counted_ns: u64,
    /// Segment size for which the weights are computed.
    weighed_size: u32,
    /// The next size, and the monotonic time (ns) at which flows will have adopted it.
    next_size: Option<(u32, u64)>,
}

struct Weights {
    control: WeightControl,
    filter: WeightFilter,
    updated_ns: Option<u64>,
    stale: bool,
}

struct Segments {
    control: SegmentControl,
    sizer: SegmentSizer,
    /// Previous CPU times; `None` while flows share no queue.
    processors: Option<(CpuTimes, Instant)>,
}

impl Segments {
    /// Returns the new size if the size changes now.
    fn size(&mut self, now_ns: u64, flows: &[u32]) -> Result<Option<u32>, ControlError> {
        let size = self.sizer.sample(now_ns, flows);
        if flows.iter().all(|flows| *flows <= 1) {
            self.processors = None;
            return Ok(size);
        }
        let larger = match self.busy()? {
            Some(busy) => self.sizer.sample_processors(now_ns, busy, FLOWS_FOLLOW_AFTER_NS),
            None => None,
        };
        Ok(larger.or(size))
    }

    /// Returns the busy share of all CPUs since the last measurement. Returns `None` if the last measurement
    /// was too recent, and for the first measurement.
    fn busy(&mut self) -> Result<Option<f64>, ControlError> {
        let asked = Instant::now();
        let Some((before, then)) = &self.processors else {
            self.processors = Some((Host::live().cpu_times()?, asked));
            return Ok(None);
        };
        let elapsed = asked.duration_since(*then);
        if elapsed < PROCESSOR_INTERVAL {
            return Ok(None);
        }
        let now = Host::live().cpu_times()?;
        let busy = now.busy_since(before, elapsed).map(|busy| busy / now.cpus().max(1) as f64);
        self.processors = Some((now, asked));
        Ok(busy)
    }
}

struct Backlog {
    control: BacklogControl,
    limit: Option<u64>,
}

impl Keeper {
    fn new(options: ControlOptions) -> Self {
        let queues = options.view.queues() as usize;
        Self {
            weights: options.weights.map(|control| Weights {
                filter: WeightFilter::new(queues, control.smoothing.as_nanos() as u64),
                updated_ns: None,
                stale: true,
                control,
            }),
            segments: options.segments.map(|control| Segments {
                sizer: SegmentSizer::new(control.options),
                processors: None,
                control,
            }),
            backlog: options.backlog.map(|control| Backlog { control, limit: None }),
            balance: options.balance.map(|control| Balance::new(queues as u32, control)),
            counted_ns: 0,
            view: options.view,
            weighed_size: options.segment_bytes,
            next_size: None,
        }
    }

    fn tick(&mut self, now_ns: u64, shared: &Shared) -> Result<(), ControlError> {
        if let Some((size, _)) = self.next_size.filter(|(_, at)| now_ns >= *at) {
            self.next_size = None;
            self.weigh_for(size);
        }
        let counts = self.segments.is_some() || self.backlog.is_some();
        if counts && now_ns.saturating_sub(self.counted_ns) >= COUNT_INTERVAL_NS {
            self.counted_ns = now_ns;
            let flows = self.view.charged_flows();
            let size = match &mut self.segments {
                Some(segments) => segments.size(now_ns, &flows)?,
                None => None,
            };
            if let Some(size) = size {
                self.resize(now_ns, size, shared)?;
            }
            if let Some(backlog) = &mut self.backlog {
                let size = self.next_size.map_or(self.weighed_size, |(size, _)| size);
                backlog.follow(equal_backlog(&flows, size, backlog.control.rate_bps))?;
            }
        }
        if let Some(balance) = &mut self.balance {
            shared.add_moves(&balance.tick(now_ns)?);
        }
        match &mut self.weights {
            Some(weights) => weights.tick(now_ns, &self.view.busy_weights()?, self.weighed_size, shared),
            None => Ok(()),
        }
    }

    /// Changes the segment size. Weights change before segments become larger, and after segments
    /// become smaller: a queue whose quantum is smaller than its segments builds up a deficit.
    fn resize(&mut self, now_ns: u64, size: u32, shared: &Shared) -> Result<(), ControlError> {
        if size > self.weighed_size {
            self.next_size = None;
            self.weigh_for(size);
            if let Some(weights) = &mut self.weights {
                weights.update(now_ns, size, shared)?;
            }
        } else {
            self.next_size = Some((size, now_ns + FLOWS_FOLLOW_AFTER_NS));
        }
        if let Some(segments) = &mut self.segments {
            segments.control.backend.set(size)?;
            segments.control.backend.refresh()?;
            Shared::add(&shared.segment_changes, 1);
            Shared::add(&shared.route_refreshes, 1);
        }
        Ok(())
    }

    fn weigh_for(&mut self, size: u32) {
        self.weighed_size = size;
        if let Some(weights) = &mut self.weights {
            weights.stale = true;
        }
    }

    /// Restores all settings. Returns the first error.
    fn restore(&mut self) -> Result<(), ControlError> {
        if let Some(balance) = &mut self.balance {
            balance.end();
        }
        let segments = self.segments.as_mut().map_or(Ok(()), |segments| segments.control.backend.restore());
        let weights = self.weights.as_mut().map_or(Ok(()), |weights| weights.control.backend.restore());
        let backlog = self.backlog.as_mut().map_or(Ok(()), |backlog| backlog.control.backend.limit(None));
        segments.and(weights).and(backlog)
    }
}

impl Backlog {
    /// Sets the wanted limit, unless it differs from the current limit by at most a quarter.
    fn follow(&mut self, wanted: Option<u64>) -> Result<(), ControlError> {
        let near = match (self.limit, wanted) {
            (Some(now), Some(wanted)) => now.abs_diff(wanted) <= now / 4,
            (now, wanted) => now == wanted,
        };
        if !near {
            self.control.backend.limit(wanted)?;
            self.limit = wanted;
        }
        Ok(())
    }
}

impl Weights {
    fn tick(
        &mut self,
        now_ns: u64,
        sums: &[u32],
        segment_bytes: u32,
        shared: &Shared,
    ) -> Result<(), ControlError> {
        self.stale |= self.filter.sample(now_ns, sums);
        let least = self.control.least_interval.as_nanos() as u64;
        let due = self.updated_ns.is_none_or(|before| now_ns.saturating_sub(before) >= least);
        if self.stale && due { self.update(now_ns, segment_bytes, shared) } else { Ok(()) }
    }

    fn update(&mut self, now_ns: u64, segment_bytes: u32, shared: &Shared) -> Result<(), ControlError> {
        self.stale = false;
        let applied = self.control.backend.apply(self.filter.settled(), segment_bytes)?;
        if applied.queues > 0 {
            self.updated_ns = Some(now_ns);
            Shared::add(&shared.weight_updates, 1);
            Shared::add(&shared.weights_set, u64::from(applied.queues));
            Shared::add(&shared.weights_cut, u64::from(applied.cut));
        }
        Ok(())
    }
}
