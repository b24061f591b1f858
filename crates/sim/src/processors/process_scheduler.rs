//! A scheduler of processes on the processors of one machine, below softirq work.
//!
//! Ready processes wait in one queue, ordered by run time, which models ideal load balancing. The
//! process with the smallest run time runs next, until it blocks or its slice ends
//! (`kernel/sched/fair.c`).
//!
//! A woken process runs on the waking processor and preempts the process there. The preempted process
//! resumes when the woken process blocks. This is `wake_affine` with a synchronous wake-up, as sockets
//! use it. The test bed's processes share a processor in this way.
//!
//! Each processor has at most one process that is preempted in this way. At the end of the slice, this
//! process returns to the queue. Raised work, such as a softirq, delays the process on its processor. Raised
//! work runs in order of arrival.

use std::collections::{BTreeSet, VecDeque};

use crate::event::{Calendar, Slot};
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    Softirq,
    /// The kernel, for the running process.
    System,
    /// The processor is waking up, which does not count as busy.
    Idle,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Work<T> {
    pub(crate) cost: Span,
    pub(crate) account: Account,
    pub(crate) then: T,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) user: Span,
    pub(crate) system: Span,
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
    /// The running work began at this time.
    began: Time,
    ends: Time,
    /// The process on this processor, and the rest of its piece if other work has interrupted the
    /// piece.
    process: Option<u32>,
    interrupted: Option<Piece>,
    /// Time at which the process last got the processor, or its run time was last updated.
    since: Time,
    /// A process that was woken on this processor and runs next, and a process that a woken process has
    /// preempted.
    woken: Option<u32>,
    displaced: Option<u32>,
    /// Time at which the processor last took a process from the queue.
    slice_began: Time,
    times: Times,
}

impl<T> Processor<T> {
    /// Returns whether the processor has neither work nor a process.
    fn rests(&self) -> bool {
        self.running.is_none() && self.queue.is_empty() && self.process.is_none()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) user: Span,
    pub(crate) system: Span,
    pub(crate) softirq: Span,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Blocked,
    Ready,
    Running,
}

#[derive(Clone, Copy, Debug, Default)]
struct Process {
    state: State,
    /// Run time (`vruntime`). A wake-up raises it to the scheduler's `clock`, so that a process gains no
    /// advantage from sleep.
    had: Span,
    user: Span,
    system: Span,
    /// The processor to which the process is pinned.
    home: Option<Slot>,
}

impl Process {
    fn may_run_on(&self, number: usize) -> bool {
        self.home.is_none_or(|home| home as usize == number)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Done<T> {
    Work(T),
    Piece(u32),
    /// A context switch: another process is on the processor.
    Switched,
}

#[derive(Clone, Debug)]
pub(crate) struct ProcessScheduler<T> {
    processors: Vec<Processor<T>>,
    processes: Vec<Process>,
    ready: BTreeSet<(Span, u32)>,
    /// Largest run time that a process had when it was taken from the queue.
    clock: Span,
    slice: Span,
    window: (Time, Time),
}

impl<T: Copy> ProcessScheduler<T> {
    pub(crate) fn new(processors: u32, processes: usize, slice: Span, window: (Time, Time)) -> Self {
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

    pub(crate) fn pin(&mut self, process: u32, number: Slot) {
        self.processes[process as usize].home = Some(number);
    }

    pub(crate) fn times(&self) -> impl Iterator<Item = Times> {
        self.processors.iter().map(|processor| processor.times)
    }

    /// Returns the time of a process in user space, and its time in the kernel.
    pub(crate) fn times_of(&self, process: u32) -> (Span, Span) {
        let process = &self.processes[process as usize];
        (process.user, process.system)
    }

    pub(crate) fn raise(&mut self, now: Time, number: Slot, work: Work<T>, calendar: &mut Calendar) {
        let processor = &mut self.processors[number as usize];
        processor.queue.push_back(work);
        match processor.running {
            Some(Running::Work(_)) => {}
            Some(Running::Piece(piece)) => {
                // The rest of the piece runs later, with the same ratio of user and system time.
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

    /// Wakes a blocked process. It runs next on the processor to which it is pinned, otherwise on the
    /// waking processor. It is queued if there is no waking processor, or if another woken process already
    /// waits or runs there. An idle processor takes it after `latency`, the wake-up time of the processor.
    pub(crate) fn wake(
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
        if let Some(number) = waker.map(|waker| state.home.unwrap_or(waker)) {
            let is_idle = self.is_idle(number);
            let processor = &mut self.processors[number as usize];
            if processor.woken.is_none() && processor.displaced.is_none() {
                processor.woken = Some(process);
                if is_idle && waker != Some(number) {
                    self.raise(now, number, latency, calendar);
                }
                return;
            }
        }
        self.queue(now, process, Some(latency), calendar);
    }

    /// Queues a process for any processor on which it may run. With `latency`, wakes an idle one of these
    /// processors, if there is one.
    fn queue(&mut self, now: Time, process: u32, latency: Option<Work<T>>, calendar: &mut Calendar) {
        let state = &mut self.processes[process as usize];
        state.state = State::Ready;
        self.ready.insert((state.had, process));
        let state = *state;
        let is_idle = |(number, processor): (usize, &Processor<T>)| {
            state.may_run_on(number) && processor.rests() && processor.woken.is_none()
        };
        let idle = self.processors.iter().enumerate().position(is_idle);
        if let (Some(number), Some(latency)) = (idle, latency) {
            self.raise(now, number as Slot, latency, calendar);
        }
    }

    /// Completes the work that ran on a processor. [`Self::go_on`] starts the next work.
    pub(crate) fn finished(&mut self, now: Time, number: Slot) -> Option<Done<T>> {
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

    /// Starts the next work on a processor: raised work, or the rest of a piece. Otherwise returns
    /// [`Done::Switched`] after a context switch, or [`Done::Piece`] with a process that needs its next
    /// piece. After [`Done::Piece`], [`Self::run`] or [`Self::block`] must follow. Returns `None` if the
    /// processor already works, starts work, or has nothing to run.
    pub(crate) fn go_on(&mut self, now: Time, number: Slot, calendar: &mut Calendar) -> Option<Done<T>> {
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
        if over && (displaced.is_some() || woken.is_some() || self.next_ready(number).is_some()) {
            // The slice is over: all processes of this processor return to the queue, and a new slice
            // begins.
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
        let (had, process) = self.next_ready(number)?;
        self.ready.remove(&(had, process));
        self.clock = self.clock.max(had);
        self.processors[number as usize].slice_began = now;
        Some(self.switch(now, number, process))
    }

    /// Returns the ready process with the smallest run time that may run on a processor.
    fn next_ready(&self, number: Slot) -> Option<(Span, u32)> {
        let may_run = |entry: &&(Span, u32)| self.processes[entry.1 as usize].may_run_on(number as usize);
        self.ready.iter().find(may_run).copied()
    }

    fn switch(&mut self, now: Time, number: Slot, process: u32) -> Done<T> {
        self.processes[process as usize].state = State::Running;
        let processor = &mut self.processors[number as usize];
        processor.process = Some(process);
        processor.since = now;
        Done::Switched
    }

    pub(crate) fn is_idle(&self, number: Slot) -> bool {
        let processor = &self.processors[number as usize];
        processor.rests() && processor.woken.is_none() && processor.displaced.is_none()
    }

    /// Returns a processor's work that has not begun.
    pub(crate) fn waiting(&mut self, number: Slot) -> impl DoubleEndedIterator<Item = &mut Work<T>> {
        self.processors[number as usize].queue.iter_mut()
    }

    /// Returns an idle processor on which a ready process may run, if there is one.
    pub(crate) fn idle_while_waited(&self) -> Option<Slot> {
        let takes = |(number, processor): (usize, &Processor<T>)| {
            (processor.rests() && self.next_ready(number as Slot).is_some()).then_some(number as Slot)
        };
        self.processors.iter().enumerate().find_map(takes)
    }

    /// Starts the next piece of the process on a processor.
    pub(crate) fn run(&mut self, now: Time, number: Slot, piece: Piece, calendar: &mut Calendar) {
        let processor = &mut self.processors[number as usize];
        processor.began = now;
        processor.ends = now + (piece.user + piece.system);
        processor.running = Some(Running::Piece(piece));
        calendar.plan(number, processor.ends);
    }

    pub(crate) fn block(&mut self, now: Time, number: Slot) {
        self.charge(now, number);
        if let Some(process) = self.processors[number as usize].process.take() {
            self.processes[process as usize].state = State::Blocked;
        }
    }

    /// Adds the time since the last update to the run time of the process on a processor.
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

    /// Returns the part of a span that is inside the measurement. The span ends at `now`.
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
        // User time precedes system time.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::time::{MICROSECOND, MILLISECOND};

    const END: Time = Time(100 * MILLISECOND);
    const IDLE: Work<()> = Work { cost: 10 * MICROSECOND, account: Account::Idle, then: () };

    /// Processors with processes that run pieces of 1 ms until they block.
    struct Host {
        processors: ProcessScheduler<()>,
        calendar: Calendar,
        pieces: Vec<u64>,
        /// End time and process of each completed piece.
        done: Vec<(u64, u32)>,
    }

    impl Host {
        fn new(processors: u32, pieces: &[u64]) -> Self {
            let mut host = Self {
                processors: ProcessScheduler::new(
                    processors,
                    pieces.len(),
                    4 * MILLISECOND,
                    (Time::ZERO, END),
                ),
                calendar: Calendar::new(processors as usize, 0),
                pieces: pieces.to_vec(),
                done: Vec::new(),
            };
            for process in (0..pieces.len()).filter(|process| pieces[*process] > 0) {
                host.processors.wake(Time::ZERO, process as u32, None, IDLE, &mut host.calendar);
            }
            host
        }

        fn run(&mut self, until: Time) {
            while let Some((now, number)) = self.calendar.pop(until) {
                if let Some(Done::Piece(process)) = self.processors.finished(now, number) {
                    self.done.push((now.0 / MICROSECOND, process));
                }
                self.go_on(now, number);
            }
        }

        fn go_on(&mut self, now: Time, number: Slot) {
            while let Some(done) = self.processors.go_on(now, number, &mut self.calendar) {
                let Done::Piece(process) = done else { continue };
                let left = &mut self.pieces[process as usize];
                if *left == 0 {
                    self.processors.block(now, number);
                    continue;
                }
                *left -= 1;
                let piece = Piece { user: MILLISECOND / 4, system: 3 * MILLISECOND / 4 };
                self.processors.run(now, number, piece, &mut self.calendar);
            }
            if let Some(idle) = self.processors.idle_while_waited() {
                self.processors.raise(now, idle, IDLE, &mut self.calendar);
            }
        }
    }

    #[test]
    fn processes_run_for_a_slice_each_and_all_time_is_accounted() {
        let mut host = Host::new(2, &[u64::MAX; 3]);
        host.run(END);
        let total: u64 =
            (0..3).map(|process| host.processors.times_of(process)).map(|(user, system)| user + system).sum();
        // The total is the time of two processors, minus wake-ups and unfinished pieces.
        assert!((197 * MILLISECOND..=200 * MILLISECOND).contains(&total), "{total}");
        for process in 0..3 {
            let (user, system) = host.processors.times_of(process);
            assert_eq!(system, 3 * user);
            assert!((user + system).abs_diff(total / 3) <= 5 * MILLISECOND, "{process} {user} {system}");
        }
        let of_processors: u64 = host.processors.times().map(|times| times.user + times.system).sum();
        assert_eq!(of_processors, total);
        // A slice is four pieces.
        let first: Vec<u32> = host.done.iter().take(8).map(|(_, process)| *process).collect();
        assert_eq!(first.iter().filter(|process| **process == 0).count(), 4);
    }

    #[test]
    fn work_delays_the_piece_that_it_interrupts() {
        let mut host = Host::new(1, &[1]);
        host.run(Time(500 * MICROSECOND));
        let work = Work { cost: 300 * MICROSECOND, account: Account::Softirq, then: () };
        host.processors.raise(Time(500 * MICROSECOND), 0, work, &mut host.calendar);
        host.run(END);
        assert_eq!(host.done, [(10 + 1000 + 300, 0)]);
        let times = host.processors.times().next().unwrap();
        assert_eq!((times.user, times.softirq), (MILLISECOND / 4, 300 * MICROSECOND));
        assert_eq!(times.system, 3 * MILLISECOND / 4);
    }

    #[test]
    fn a_woken_process_displaces_the_running_one_and_gives_the_processor_back() {
        let mut host = Host::new(1, &[3, 0]);
        host.run(Time(500 * MICROSECOND));
        host.pieces[1] = 1;
        host.processors.wake(Time(500 * MICROSECOND), 1, Some(0), IDLE, &mut host.calendar);
        host.run(END);
        let order: Vec<u32> = host.done.iter().map(|(_, process)| *process).collect();
        assert_eq!(order, [0, 1, 0, 0]);
    }

    #[test]
    fn a_pinned_process_waits_for_its_processor() {
        let mut host = Host::new(2, &[20, 0, 0]);
        host.processors.pin(1, 0);
        host.processors.pin(2, 0);
        host.run(Time(500 * MICROSECOND));
        for process in [1, 2] {
            host.pieces[process as usize] = 20;
            // Processor 1 wakes process 1, which runs next on processor 0. Process 2 has no waker and is
            // queued.
            let waker = (process == 1).then_some(1);
            host.processors.wake(Time(500 * MICROSECOND), process, waker, IDLE, &mut host.calendar);
        }
        let home = |host: &Host, process| host.processors.processes[process as usize].home;
        assert_eq!([0, 1, 2].map(|process| home(&host, process)), [None, Some(0), Some(0)]);
        host.run(END);
        // The unpinned process has moved to the idle processor. The two pinned processes share a
        // processor until the end.
        let last_of = |process| host.done.iter().rfind(|(_, done)| *done == process).unwrap().0;
        assert!((20_000..30_000).contains(&last_of(0)), "{:?}", host.done);
        assert!(last_of(1).max(last_of(2)) >= 40_000, "{:?}", host.done);
        assert_eq!(host.done.len(), 60);
    }

    #[test]
    fn an_idle_processor_takes_a_process_from_the_queue() {
        let mut host = Host::new(2, &[20, 0]);
        host.run(Time(500 * MICROSECOND));
        host.pieces[1] = 20;
        host.processors.wake(Time(500 * MICROSECOND), 1, Some(0), IDLE, &mut host.calendar);
        host.run(END);
        // The processes share a processor for one slice. After that, each process has its own
        // processor.
        let last = host.done.last().unwrap().0;
        assert!((22_000..28_000).contains(&last), "{last} {:?}", host.done);
    }
}
