//! The engine: one event loop for all worlds, generic over their typed events.
//!
//! A world declares its events with [`events!`]. Each kind has a block of slots in the calendar, with
//! one slot per source. The compiler generates a separate loop for each world.

use std::ops::Range;

use evenkeel_model::world::Observer;

use crate::error::{SimError, SimulationError};
use crate::event::{Calendar, Slot};
use crate::progress::EventLimit;
use crate::time::{MICROSECOND, Time};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) begin: Slot,
    pub(crate) end: Slot,
}

pub(crate) trait Event: Copy {
    type Slots: Copy;

    fn slot(self, slots: &Self::Slots) -> Slot;

    fn of_slot(slots: &Self::Slots, slot: Slot) -> Option<Self>;

    fn count(slots: &Self::Slots) -> u32;
}

/// Declares an enum of events and the struct of their slots. Its input is one list of kinds, each with
/// the field of its block. Each event carries the number of its source. The code searches a slot's kind
/// in the order of the list.
macro_rules! events {
    ($(#[$meta:meta])* enum $event:ident in $slots:ident { $($(#[$about:meta])* $kind:ident: $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum $event { $($(#[$about])* $kind(u32),)* }

        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $slots { $(pub(crate) $field: crate::engine::Block,)* }

        impl $slots {
            /// Assigns to each kind its number of slots. The numbers are in the order of the list.
            pub(crate) fn new([$($field),*]: [u32; [$(stringify!($kind)),*].len()]) -> Self {
                let end = 0;
                $(
                    let $field = crate::engine::Block { begin: end, end: end + $field };
                    let end = $field.end;
                )*
                let _ = end;
                Self { $($field,)* }
            }
        }

        impl crate::engine::Event for $event {
            type Slots = $slots;

            #[inline]
            fn slot(self, slots: &$slots) -> crate::event::Slot {
                match self { $(Self::$kind(number) => slots.$field.begin + number,)* }
            }

            #[inline]
            fn of_slot(slots: &$slots, slot: crate::event::Slot) -> Option<Self> {
                $(
                    if slot < slots.$field.end {
                        return Some(Self::$kind(slot - slots.$field.begin));
                    }
                )*
                None
            }

            fn count(slots: &$slots) -> u32 {
                [$(slots.$field.end),*].into_iter().max().unwrap_or(0)
            }
        }
    };
}
pub(crate) use events;

#[derive(Clone, Debug)]
pub(crate) struct Engine<E: Event> {
    pub(crate) now: Time,
    pub(crate) calendar: Calendar,
    pub(crate) limit: EventLimit,
    slots: E::Slots,
}

impl<E: Event> Engine<E> {
    /// Creates an engine without events. The first `frequent` slots nearly always have a pending event.
    pub(crate) fn new(slots: E::Slots, frequent: u32) -> Self {
        let count = E::count(&slots);
        Self {
            now: Time::ZERO,
            calendar: Calendar::new(frequent as usize, (count - frequent) as usize),
            limit: EventLimit::new(count as usize),
            slots,
        }
    }

    /// Schedules a source's event and replaces a pending event of the source. [`Time::NEVER`] cancels
    /// the event.
    #[inline]
    pub(crate) fn plan(&mut self, event: E, at: Time) {
        self.calendar.plan(event.slot(&self.slots), at);
    }

    /// Schedules an event, unless its source has a pending event at the same time or earlier.
    #[inline]
    pub(crate) fn plan_no_later(&mut self, event: E, at: Time) {
        self.calendar.plan_no_later(event.slot(&self.slots), at);
    }

    /// Returns the time of the next event, or [`Time::NEVER`] if no event is scheduled.
    pub(crate) fn next_time(&mut self) -> Time {
        self.calendar.next_time().unwrap_or(Time::NEVER)
    }

    /// Returns the time of the source's event, or [`Time::NEVER`] if the source has no event.
    #[inline]
    pub(crate) fn planned(&self, event: E) -> Time {
        self.calendar.planned(event.slot(&self.slots))
    }
}

/// A simulated system. [`run`] passes its events to this trait in the order of time.
pub(crate) trait Handler {
    type Event: Event;

    fn engine(&mut self) -> &mut Engine<Self::Event>;

    /// Handles an event. The engine's present is the time of the event.
    fn handle(&mut self, event: Self::Event);

    /// Returns a counter that grows with every departure of data.
    fn sent(&mut self) -> u64;

    fn has_failed(&self) -> bool {
        false
    }
}

/// Handles the events until `until`, or until the handler fails. Afterwards, the present is the time of the
/// last event. Returns an error if many events in a row send no packet.
pub(crate) fn run<H: Handler>(handler: &mut H, until: Time) -> Result<(), SimulationError> {
    let slots = handler.engine().slots;
    while let Some((time, slot)) = handler.engine().calendar.pop(until) {
        let engine = handler.engine();
        debug_assert!(time >= engine.now, "time goes back from {:?} to {time:?} in slot {slot}", engine.now);
        engine.now = time;
        let event = H::Event::of_slot(&slots, slot);
        if engine.limit.count() {
            check_progress(handler)?;
        }
        if let Some(event) = event {
            handler.handle(event);
        }
        if handler.has_failed() {
            return Ok(());
        }
    }
    Ok(())
}

const STEPS: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    WarmUp,
    Measurement,
    Probe,
}

impl Part {
    fn activity(self) -> &'static str {
        match self {
            Self::WarmUp => "warming up",
            Self::Measurement => "simulating",
            Self::Probe => "measuring latency",
        }
    }

    /// Converts the progress of this part to the progress of the repeat.
    fn progress(self, done: f64) -> f64 {
        match self {
            Self::WarmUp => 0.0,
            Self::Measurement => done,
            Self::Probe => 1.0,
        }
    }
}

/// Runs a part of a repeat in steps. Before each step, reports progress to the observer, which may
/// interrupt the run.
pub(crate) fn run_part(
    part: Part,
    time: Range<Time>,
    observer: &dyn Observer,
    mut run: impl FnMut(Time) -> Result<(), SimError>,
) -> Result<(), SimError> {
    let Range { start, end } = time;
    for step in 1..=STEPS {
        observer.progress(part.progress((step - 1) as f64 / STEPS as f64), part.activity());
        stop_if_interrupted(observer)?;
        run(start + end.since(start) / STEPS * step)?;
    }
    observer.progress(part.progress(1.0), part.activity());
    stop_if_interrupted(observer)?;
    run(end)
}

/// Reports the set-up to the observer, which may interrupt it. With many flows, the set-up takes
/// seconds.
pub(crate) fn set_up(observer: &dyn Observer) -> Result<(), SimError> {
    observer.progress(0.0, "setting up");
    stop_if_interrupted(observer)
}

fn stop_if_interrupted(observer: &dyn Observer) -> Result<(), SimError> {
    if observer.interrupted() { Err(SimError::Interrupted) } else { Ok(()) }
}

/// Returns an error if no packet has been sent since the last call.
#[cold]
fn check_progress<H: Handler>(handler: &mut H) -> Result<(), SimulationError> {
    let sent = handler.sent();
    let engine = handler.engine();
    if engine.limit.is_stuck(sent) {
        let (at_us, events) = (engine.now.0 / MICROSECOND, engine.limit.events());
        return Err(SimulationError::Livelock { at_us, events });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    events! {
        enum Tick in Ticks {
            Fast: fast,
            Slow: slow,
        }
    }

    /// Two sources with an event every `fast` picoseconds, and one with an event every `slow` picoseconds.
    struct Clock {
        engine: Engine<Tick>,
        fast: u64,
        slow: u64,
        ticks: Vec<(u64, bool, u32)>,
    }

    impl Clock {
        fn new(fast: u64, slow: u64) -> Self {
            let mut engine = Engine::new(Ticks::new([2, 1]), 2);
            engine.plan(Tick::Fast(0), Time(1));
            engine.plan(Tick::Slow(0), Time(2));
            engine.plan(Tick::Fast(1), Time(2));
            Self { engine, fast, slow, ticks: Vec::new() }
        }
    }

    impl Handler for Clock {
        type Event = Tick;

        fn engine(&mut self) -> &mut Engine<Tick> {
            &mut self.engine
        }

        fn handle(&mut self, event: Tick) {
            let (is_fast, number, period) = match event {
                Tick::Fast(number) => (true, number, self.fast),
                Tick::Slow(number) => (false, number, self.slow),
            };
            self.ticks.push((self.engine.now.0, is_fast, number));
            self.engine.plan(event, self.engine.now + period);
        }

        fn sent(&mut self) -> u64 {
            0
        }

        fn has_failed(&self) -> bool {
            self.ticks.len() == 6
        }
    }

    #[test]
    fn each_event_comes_to_its_source_at_its_time() {
        let mut clock = Clock::new(3, 4);
        assert_eq!(run(&mut clock, Time(5)), Ok(()));
        let expected = [(1, true, 0), (2, false, 0), (2, true, 1), (4, true, 0), (5, true, 1)];
        assert_eq!(clock.ticks, expected);
        assert_eq!(clock.engine.planned(Tick::Slow(0)), Time(6));
        assert_eq!(run(&mut clock, Time(5)), Ok(()));
        assert_eq!(clock.ticks.len(), 5);
        // The sixth event makes the handler fail. The engine handles no further event.
        assert_eq!(run(&mut clock, Time(50)), Ok(()));
        assert_eq!((clock.ticks.len(), clock.engine.now), (6, Time(6)));
    }

    #[test]
    fn events_that_send_nothing_are_a_livelock() {
        let mut clock = Clock::new(0, 4);
        clock.engine.limit = EventLimit::of_events(2);
        assert_eq!(run(&mut clock, Time(50)), Err(SimulationError::Livelock { at_us: 0, events: 2 }));
        assert_eq!(clock.ticks.len(), 3);
    }

    /// Interrupts the run after this many calls.
    struct Impatient(AtomicUsize);

    impl Observer for Impatient {
        fn progress(&self, _fraction: f64, _activity: &str) {}
        fn remark(&self, _text: &str) {}
        fn interrupted(&self) -> bool {
            self.0.fetch_sub(1, Ordering::Relaxed) == 0
        }
    }

    #[test]
    fn every_step_of_every_part_can_be_interrupted() {
        for part in [Part::WarmUp, Part::Measurement, Part::Probe] {
            for questions in [0, 1, 99, 100] {
                let steps = Cell::new(0);
                let run = |_| {
                    steps.set(steps.get() + 1);
                    Ok(())
                };
                let ended = run_part(part, Time(0)..Time(1000), &Impatient(questions.into()), run);
                assert_eq!((ended, steps.get()), (Err(SimError::Interrupted), questions), "{part:?}");
            }
        }
        assert_eq!(set_up(&Impatient(0.into())), Err(SimError::Interrupted));
    }

    #[test]
    fn a_part_runs_to_its_end() {
        let reached = Cell::new(Time::ZERO);
        let run = |until| {
            assert!(until >= reached.replace(until));
            Ok(())
        };
        run_part(Part::WarmUp, Time(7)..Time(1234), &Impatient(1000.into()), run).unwrap();
        assert_eq!(reached.get(), Time(1234));
    }
}
