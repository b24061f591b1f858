//! The processors of a machine: work in soft interrupts first, processes in turn.
//!
//! Processes that wait for a processor are in one queue by the time that they have had: an ideal balance. Who has
//! had least runs next, and keeps its processor until it blocks or its slice is over (`kernel/sched/fair.c`). Whom
//! a processor wakes up runs there, in place of the process that is at work, which goes on when the other blocks
//! (`wake_affine` of a wake-up that says it is synchronous, as those of sockets do; the test bed's processes are
//! seen to share a processor so); but only one at a time, and no longer than a slice if others wait. Work that
//! comes up on a processor, such as a soft interrupt, delays the process there and runs in the order in which it
//! came.

use std::collections::{BTreeSet, VecDeque};

use crate::event::{Calendar, Slot};
use crate::time::{Span, Time};

/// Whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// A soft interrupt's.
    Softirq,
    /// The kernel's for the process that is on the processor.
    System,
    /// Nobody's: the processor wakes up.
    Idle,
}

/// Something to do on a processor, and what comes of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<T> {
    pub(super) cost: Span,
    pub(super) account: Account,
    pub(super) then: T,
}

/// A piece of a process's work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    pub(super) user: Span,
    pub(super) system: Span,
}

#[derive(Clone, Copy, Debug)]
enum Running<T> {
    Work(Work<T>),
    Piece(Piece),
}

#[derive(Clone, Debug)]
struct Processor<T> {
    queue: VecDeque<Work<T>>,
    running: Option<Running<T>>,
    /// When what runs began, and when it ends.
    began: Time,
    ends: Time,
    /// The process that is here, and what is left of its piece if work has interrupted it.
    process: Option<u32>,
    interrupted: Option<Piece>,
    /// When the process got the processor.
    since: Time,
    /// A process that was woken here and is next, and one that it has displaced.
    woken: Option<u32>,
    displaced: Option<u32>,
    /// When somebody came here from the queue.
    slice_began: Time,
    times: Times,
}

/// Time of a processor in the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) user: Span,
    pub(super) system: Span,
    pub(super) softirq: Span,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Blocked,
    Ready,
    Running,
}

/// A process.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    state: State,
    /// Time that it has had; raised when it wakes up, so that sleep does not count (`vruntime`).
    had: Span,
    user: Span,
    system: Span,
}

/// What a processor has done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done<T> {
    /// A piece of work.
    Work(T),
    /// A piece of this process.
    Piece(u32),
    /// Nothing: it has just come to another process.
    Switched,
}

/// Processors and processes.
#[derive(Clone, Debug)]
pub(super) struct Processors<T> {
    processors: Vec<Processor<T>>,
    processes: Vec<Process>,
    ready: BTreeSet<(Span, u32)>,
    /// Time that the process had which was chosen last.
    clock: Span,
    slice: Span,
    /// Time that counts.
    window: (Time, Time),
}

impl<T: Copy> Processors<T> {
    pub(super) fn new(processors: u32, processes: usize, slice: Span, window: (Time, Time)) -> Self {
        let processor = Processor {
            queue: VecDeque::new(),
            running: None,
            began: Time::ZERO,
            ends: Time::ZERO,
            process: None,
            interrupted: None,
            since: Time::ZERO,
            woken: None,
            displaced: None,
            slice_began: Time::ZERO,
            times: Times::default(),
        };
        Self {
            processors: vec![processor; processors as usize],
            processes: vec![Process::default(); processes],
            ready: BTreeSet::new(),
            clock: 0,
            slice,
            window,
        }
    }

    pub(super) fn times(&self) -> impl Iterator<Item = Times> {
        self.processors.iter().map(|processor| processor.times)
    }

    /// Time of a process in user space and in the kernel.
    pub(super) fn times_of(&self, process: u32) -> (Span, Span) {
        let process = &self.processes[process as usize];
        (process.user, process.system)
    }

    /// Work comes up on a processor.
    pub(super) fn raise(&mut self, now: Time, number: Slot, work: Work<T>, calendar: &mut Calendar) {
        let processor = &mut self.processors[number as usize];
        processor.queue.push_back(work);
        match processor.running {
            Some(Running::Work(_)) => {}
            Some(Running::Piece(piece)) => {
                // What is left of the piece comes later; of each part the same share.
                let (left, whole) = (processor.ends.since(now), processor.ends.since(processor.began));
                let part = |span: Span| match whole {
                    0 => 0,
                    _ => (u128::from(span) * u128::from(left) / u128::from(whole)) as Span,
                };
                let rest = Piece { user: part(piece.user), system: part(piece.system) };
                let done = Piece { user: piece.user - rest.user, system: piece.system - rest.system };
                self.account_piece(number, now, done);
                let processor = &mut self.processors[number as usize];
                processor.interrupted = Some(rest);
                processor.running = None;
                self.next_work(now, number, calendar);
            }
            None => self.next_work(now, number, calendar),
        }
    }

    /// A process has something to do. It comes next on the processor that woke it, if there is one and nobody
    /// else does; or else to the queue, where an idle processor takes it after `latency`, in which it wakes up.
    pub(super) fn wake(
        &mut self,
        now: Time,
        process: u32,
        waker: Option<Slot>,
        latency: Work<T>,
        calendar: &mut Calendar,
    ) {
        let state = &mut self.processes[process as usize];
        if state.state != State::Blocked {
            return;
        }
        state.state = State::Ready;
        state.had = state.had.max(self.clock);
        if let Some(number) = waker {
            let processor = &mut self.processors[number as usize];
            if processor.woken.is_none() && processor.displaced.is_none() {
                processor.woken = Some(process);
                return;
            }
        }
        self.queue(now, process, Some(latency), calendar);
    }

    /// A process waits for any processor; one that is idle comes for it.
    fn queue(&mut self, now: Time, process: u32, latency: Option<Work<T>>, calendar: &mut Calendar) {
        let state = &mut self.processes[process as usize];
        state.state = State::Ready;
        self.ready.insert((state.had, process));
        let idle = self.processors.iter().position(|processor| {
            processor.running.is_none()
                && processor.queue.is_empty()
                && processor.process.is_none()
                && processor.woken.is_none()
        });
        if let (Some(number), Some(latency)) = (idle, latency) {
            self.raise(now, number as Slot, latency, calendar);
        }
    }

    /// What ran on a processor is done. What comes next is begun by [`Self::go_on`].
    pub(super) fn finished(&mut self, now: Time, number: Slot) -> Option<Done<T>> {
        let processor = &mut self.processors[number as usize];
        match processor.running.take()? {
            Running::Work(work) => {
                self.account_work(number, now, &work);
                Some(Done::Work(work.then))
            }
            Running::Piece(piece) => {
                self.account_piece(number, now, piece);
                self.processors[number as usize].process.map(Done::Piece)
            }
        }
    }

    /// A processor goes on: with work, or with what is left of a piece. If a process is to say what it does
    /// next, it is answered: [`Self::run`] or [`Self::block`] follows.
    pub(super) fn go_on(&mut self, now: Time, number: Slot, calendar: &mut Calendar) -> Option<Done<T>> {
        let processor = &mut self.processors[number as usize];
        if processor.running.is_some() {
            return None;
        }
        if !processor.queue.is_empty() {
            self.next_work(now, number, calendar);
            return None;
        }
        if let Some(piece) = processor.interrupted.take() {
            self.run(now, number, piece, calendar);
            return None;
        }
        let over = now.since(processor.slice_began) >= self.slice;
        let (process, woken, displaced) = (processor.process, processor.woken, processor.displaced);
        if over && (displaced.is_some() || woken.is_some() || !self.ready.is_empty()) {
            // Everybody here goes to the queue, and the slice begins anew.
            self.charge(now, number);
            let processor = &mut self.processors[number as usize];
            (processor.process, processor.woken, processor.displaced) = (None, None, None);
            for process in [process, woken, displaced].into_iter().flatten() {
                self.queue(now, process, None, calendar);
            }
        } else if let Some(process) = process {
            let (Some(woken), None) = (woken, displaced) else { return Some(Done::Piece(process)) };
            self.charge(now, number);
            self.processes[process as usize].state = State::Ready;
            let processor = &mut self.processors[number as usize];
            (processor.process, processor.woken, processor.displaced) = (None, None, Some(process));
            return Some(self.switch(now, number, woken));
        } else if let Some(next) = woken.or(displaced) {
            let processor = &mut self.processors[number as usize];
            if woken.is_some() {
                processor.woken = None;
            } else {
                processor.displaced = None;
            }
            return Some(self.switch(now, number, next));
        }
        let (had, process) = self.ready.pop_first()?;
        self.clock = self.clock.max(had);
        self.processors[number as usize].slice_began = now;
        Some(self.switch(now, number, process))
    }

    fn switch(&mut self, now: Time, number: Slot, process: u32) -> Done<T> {
        self.processes[process as usize].state = State::Running;
        let processor = &mut self.processors[number as usize];
        processor.process = Some(process);
        processor.since = now;
        Done::Switched
    }

    /// What waits on a processor and has not begun.
    pub(super) fn waiting(&mut self, number: Slot) -> impl DoubleEndedIterator<Item = &mut Work<T>> {
        self.processors[number as usize].queue.iter_mut()
    }

    /// A processor that has nothing to do, where processes wait.
    pub(super) fn idle_while_waited(&self) -> Option<Slot> {
        let is_idle = |processor: &Processor<T>| {
            processor.running.is_none() && processor.queue.is_empty() && processor.process.is_none()
        };
        let idle = self.processors.iter().position(is_idle)?;
        (!self.ready.is_empty()).then_some(idle as Slot)
    }

    /// The process on a processor does this next.
    pub(super) fn run(&mut self, now: Time, number: Slot, piece: Piece, calendar: &mut Calendar) {
        let processor = &mut self.processors[number as usize];
        processor.began = now;
        processor.ends = now + (piece.user + piece.system);
        processor.running = Some(Running::Piece(piece));
        calendar.plan(number, processor.ends);
    }

    /// The process on a processor waits for something.
    pub(super) fn block(&mut self, now: Time, number: Slot) {
        self.charge(now, number);
        if let Some(process) = self.processors[number as usize].process.take() {
            self.processes[process as usize].state = State::Blocked;
        }
    }

    /// The time since the process got the processor counts as had.
    fn charge(&mut self, now: Time, number: Slot) {
        let processor = &mut self.processors[number as usize];
        if let Some(process) = processor.process {
            self.processes[process as usize].had += now.since(processor.since);
            processor.since = now;
        }
    }

    fn next_work(&mut self, now: Time, number: Slot, calendar: &mut Calendar) {
        let processor = &mut self.processors[number as usize];
        if let Some(work) = processor.queue.pop_front() {
            processor.began = now;
            processor.ends = now + work.cost;
            processor.running = Some(Running::Work(work));
            calendar.plan(number, processor.ends);
        }
    }

    /// The part of a time that ends now and lies in the measured time.
    fn counted(&self, now: Time, span: Span) -> Span {
        let (begin, end) = self.window;
        let from = Time(now.0.saturating_sub(span)).max(begin);
        now.min(end).since(from)
    }

    fn account_work(&mut self, number: Slot, now: Time, work: &Work<T>) {
        let span = self.counted(now, work.cost);
        let processor = &mut self.processors[number as usize];
        match work.account {
            Account::Idle => {}
            Account::Softirq => processor.times.softirq += span,
            Account::System => {
                processor.times.system += span;
                if let Some(process) = processor.process {
                    self.processes[process as usize].system += span;
                }
            }
        }
    }

    fn account_piece(&mut self, number: Slot, now: Time, piece: Piece) {
        // User space comes first.
        let system = self.counted(now, piece.system);
        let user = self.counted(Time(now.0.saturating_sub(piece.system)), piece.user);
        let processor = &mut self.processors[number as usize];
        processor.times.user += user;
        processor.times.system += system;
        if let Some(process) = processor.process {
            let process = &mut self.processes[process as usize];
            process.user += user;
            process.system += system;
        }
    }
}
