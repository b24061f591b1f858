//! The knobs of a variant: spelling, inheritance and conflicts.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use super::cursor::{Field, Located, Table};
use super::value::Spelling;
use super::{ByteQueueLimit, Knobs, Link, MAX_QUEUES, Qdisc, QueueChoice};
use crate::units::{ByteSize, Nanoseconds};

const QUEUE_CHOICES: [Spelling<QueueChoice>; 2] = [("hash", QueueChoice::Hash), ("dqa", QueueChoice::Dqa)];
const QDISCS: [Spelling<Qdisc>; 2] = [("pfifo_fast", Qdisc::PfifoFast), ("sfq+prio", Qdisc::SfqPrio)];

const ALL_QUEUES: &str = "all";
const OFF: &str = "off";
const DYNAMIC: &str = "dynamic";
const DEFAULT: &str = "default";

/// From an IPv4 host's least MTU (RFC 791) to the kernel's `GSO_MAX_SIZE` (include/linux/netdevice.h), rounded
/// up.
const SEGMENT_SIZES: RangeInclusive<ByteSize> = ByteSize::from_bytes(576)..=ByteSize::from_kib(512);
/// Limits of queued bytes: up to far more than any NIC queues.
const QUEUE_LIMITS: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(1 << 20);
/// Drivers take whole microseconds, up to a fraction of a second.
const INTERRUPT_INTERVALS: RangeInclusive<Nanoseconds> =
    Nanoseconds::from_micros(1)..=Nanoseconds::from_secs(1);

impl fmt::Display for QueueChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &QUEUE_CHOICES))
    }
}

impl fmt::Display for Qdisc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &QDISCS))
    }
}

impl fmt::Display for ByteQueueLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dynamic => formatter.pad(DYNAMIC),
            Self::Fixed(limit) => limit.fmt(formatter),
            Self::Off => formatter.pad(OFF),
        }
    }
}

/// The file's spelling of an enumeration's value.
pub(super) fn spelled<T: PartialEq>(value: T, spellings: &[Spelling<T>]) -> &'static str {
    spellings.iter().find(|(_, spelt)| *spelt == value).map_or("", |(word, _)| word)
}

/// Reads one knob of a variant, which is required if `complete`.
pub(super) fn knob<'t, T>(
    table: &mut Table<'t>,
    complete: bool,
    key: &'static str,
    read: impl Fn(&Field<'t>) -> Option<T>,
) -> Option<Located<T>> {
    const ADVICE: &str = "a variant without a 'base' sets every knob";
    let field = if complete { table.require(key, ADVICE) } else { table.take(key) }?;
    read(&field).map(|value| field.located(value))
}

impl Knobs {
    /// Every knob with its value, in the file's spelling and the reference's order.
    #[must_use]
    pub fn settings(&self) -> [(&'static str, String); 14] {
        fn or<T: fmt::Display>(value: Option<T>, word: &str) -> String {
            value.map_or_else(|| word.to_owned(), |value| value.to_string())
        }
        [
            ("queue-choice", self.queue_choice.to_string()),
            ("queues", or(self.queues, ALL_QUEUES)),
            ("xps-pool", or(self.xps_pool, OFF)),
            ("queue-weights", self.queue_weights.to_string()),
            ("service-balancing", self.service_balancing.to_string()),
            ("segment-size", or(self.segment_size, OFF)),
            ("transmit-batching", self.transmit_batching.to_string()),
            ("qdisc", self.qdisc.to_string()),
            ("tcp-small-queues", or(self.tcp_small_queues, OFF)),
            ("byte-queue-limit", self.byte_queue_limit.to_string()),
            ("interrupt-interval", or(self.interrupt_interval, DEFAULT)),
            ("gso-size", self.gso_size.to_string()),
            ("tso", self.tso.to_string()),
            ("tso-interleaving", self.tso_interleaving.to_string()),
        ]
    }
}

/// A variant's own knobs; the others come from its base.
#[derive(Clone, Debug, Default)]
pub(super) struct KnobSettings {
    queue_choice: Option<Located<QueueChoice>>,
    queues: Option<Located<Option<u32>>>,
    xps_pool: Option<Located<Option<u32>>>,
    queue_weights: Option<Located<bool>>,
    service_balancing: Option<Located<bool>>,
    segment_size: Option<Located<Option<ByteSize>>>,
    transmit_batching: Option<Located<bool>>,
    qdisc: Option<Located<Qdisc>>,
    tcp_small_queues: Option<Located<Option<ByteSize>>>,
    byte_queue_limit: Option<Located<ByteQueueLimit>>,
    interrupt_interval: Option<Located<Option<Nanoseconds>>>,
    gso_size: Option<Located<ByteSize>>,
    tso: Option<Located<bool>>,
    tso_interleaving: Option<Located<bool>>,
}

impl KnobSettings {
    /// Reads the knobs of `table`, all of which are required if `complete`.
    pub(super) fn read(table: &mut Table<'_>, complete: bool) -> Self {
        let queue_counts = 1..=MAX_QUEUES;
        Self {
            queue_choice: knob(table, complete, "queue-choice", |field| field.one_of(&QUEUE_CHOICES)),
            queues: knob(table, complete, "queues", |field| {
                field.word_or_integer(ALL_QUEUES, queue_counts.clone())
            }),
            xps_pool: knob(table, complete, "xps-pool", |field| {
                field.word_or_integer(OFF, queue_counts.clone())
            }),
            queue_weights: knob(table, complete, "queue-weights", Field::boolean),
            // Newer than the schema: off in files without it.
            service_balancing: knob(table, false, "service-balancing", Field::boolean),
            segment_size: knob(table, complete, "segment-size", |field| {
                field.word_or_quantity(&[(OFF, None)], SEGMENT_SIZES, "16KiB", Some)
            }),
            transmit_batching: knob(table, complete, "transmit-batching", Field::boolean),
            qdisc: knob(table, complete, "qdisc", |field| field.one_of(&QDISCS)),
            tcp_small_queues: knob(table, complete, "tcp-small-queues", |field| {
                field.word_or_quantity(&[(OFF, None)], QUEUE_LIMITS, "256KiB", Some)
            }),
            byte_queue_limit: knob(table, complete, "byte-queue-limit", byte_queue_limit),
            interrupt_interval: knob(table, complete, "interrupt-interval", |field| {
                field.word_or_quantity(&[(DEFAULT, None)], INTERRUPT_INTERVALS, "50us", Some)
            }),
            gso_size: knob(table, complete, "gso-size", |field| field.quantity(SEGMENT_SIZES, "64KiB")),
            tso: knob(table, complete, "tso", Field::boolean),
            tso_interleaving: knob(table, complete, "tso-interleaving", Field::boolean),
        }
    }

    /// These settings, completed by `base`'s.
    pub(super) fn over(&self, base: Self) -> Self {
        let own = self.clone();
        Self {
            queue_choice: own.queue_choice.or(base.queue_choice),
            queues: own.queues.or(base.queues),
            xps_pool: own.xps_pool.or(base.xps_pool),
            queue_weights: own.queue_weights.or(base.queue_weights),
            service_balancing: own.service_balancing.or(base.service_balancing),
            segment_size: own.segment_size.or(base.segment_size),
            transmit_batching: own.transmit_batching.or(base.transmit_batching),
            qdisc: own.qdisc.or(base.qdisc),
            tcp_small_queues: own.tcp_small_queues.or(base.tcp_small_queues),
            byte_queue_limit: own.byte_queue_limit.or(base.byte_queue_limit),
            interrupt_interval: own.interrupt_interval.or(base.interrupt_interval),
            gso_size: own.gso_size.or(base.gso_size),
            tso: own.tso.or(base.tso),
            tso_interleaving: own.tso_interleaving.or(base.tso_interleaving),
        }
    }

    /// The knobs, if all are set.
    pub(super) fn knobs(&self) -> Option<Knobs> {
        Some(Knobs {
            queue_choice: self.queue_choice.as_ref()?.value,
            queues: self.queues.as_ref()?.value,
            xps_pool: self.xps_pool.as_ref()?.value,
            queue_weights: self.queue_weights.as_ref()?.value,
            service_balancing: self.service_balancing.as_ref().is_some_and(|setting| setting.value),
            segment_size: self.segment_size.as_ref()?.value,
            transmit_batching: self.transmit_batching.as_ref()?.value,
            qdisc: self.qdisc.as_ref()?.value,
            tcp_small_queues: self.tcp_small_queues.as_ref()?.value,
            byte_queue_limit: self.byte_queue_limit.as_ref()?.value,
            interrupt_interval: self.interrupt_interval.as_ref()?.value,
            gso_size: self.gso_size.as_ref()?.value,
            tso: self.tso.as_ref()?.value,
            tso_interleaving: self.tso_interleaving.as_ref()?.value,
        })
    }

    /// Span and path of the variant's own setting of a conflicting knob.
    pub(super) fn place_of(&self, knob: ClashingKnob) -> Option<(Range<usize>, String)> {
        fn place<T>(setting: &Option<Located<T>>) -> Option<(Range<usize>, String)> {
            setting.as_ref().map(|setting| (setting.span.clone(), setting.path.clone()))
        }
        match knob {
            ClashingKnob::Queues => place(&self.queues),
            ClashingKnob::XpsPool => place(&self.xps_pool),
            ClashingKnob::SegmentSize => place(&self.segment_size),
            ClashingKnob::GsoSize => place(&self.gso_size),
        }
    }
}

fn byte_queue_limit(field: &Field<'_>) -> Option<ByteQueueLimit> {
    const WORDS: [Spelling<ByteQueueLimit>; 2] =
        [(DYNAMIC, ByteQueueLimit::Dynamic), (OFF, ByteQueueLimit::Off)];
    field.word_or_quantity(&WORDS, QUEUE_LIMITS, "256KiB", ByteQueueLimit::Fixed)
}

/// Knobs that can conflict with the link or each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClashingKnob {
    Queues,
    XpsPool,
    SegmentSize,
    GsoSize,
}

/// A conflict: its knobs, the likeliest culprit first, and the problem.
pub(super) struct Clash {
    pub(super) knobs: Vec<ClashingKnob>,
    pub(super) problem: String,
    pub(super) advice: String,
}

/// The first conflict within `knobs`, or with `link`.
pub(super) fn clash(knobs: &Knobs, link: &Link) -> Option<Clash> {
    let queues = knobs.queues.unwrap_or(link.queues);
    if queues > link.queues {
        return Some(Clash {
            knobs: vec![ClashingKnob::Queues],
            problem: format!("{queues} queues, and the link has {}", link.queues),
            advice: format!("use at most {}", link.queues),
        });
    }
    if let Some(pool) = knobs.xps_pool.filter(|pool| !queues.is_multiple_of(*pool)) {
        return Some(Clash {
            knobs: vec![ClashingKnob::XpsPool, ClashingKnob::Queues],
            problem: format!("{queues} queues cannot be divided into XPS pools of {pool}"),
            advice: "use a divisor of the number of queues".to_owned(),
        });
    }
    if !link.priorities.is_empty() && queues != link.queues {
        return Some(Clash {
            knobs: vec![ClashingKnob::Queues],
            problem: format!("{queues} queues, and the link's priorities have {}", link.queues),
            advice: "use all queues, or leave link.priorities out".to_owned(),
        });
    }
    if let Some((pool, own)) = knobs
        .xps_pool
        .and_then(|pool| Some((pool, link.priorities.iter().find(|own| !own.is_multiple_of(pool))?)))
    {
        return Some(Clash {
            knobs: vec![ClashingKnob::XpsPool],
            problem: format!("the {own} queues of a priority cannot be divided into XPS pools of {pool}"),
            advice: "use a divisor of the queues of every priority".to_owned(),
        });
    }
    let mtu = link.mtu;
    if knobs.gso_size < mtu {
        return Some(Clash {
            knobs: vec![ClashingKnob::GsoSize],
            problem: format!("a GSO size of {} is below the link's MTU of {mtu}", knobs.gso_size),
            advice: format!("use at least {mtu}"),
        });
    }
    let segment = knobs.segment_size?;
    if segment < mtu {
        return Some(Clash {
            knobs: vec![ClashingKnob::SegmentSize],
            problem: format!("a segment size of {segment} is below the link's MTU of {mtu}"),
            advice: format!("use at least {mtu}"),
        });
    }
    (segment > knobs.gso_size).then(|| Clash {
        knobs: vec![ClashingKnob::SegmentSize, ClashingKnob::GsoSize],
        problem: format!("a segment size of {segment} is above the GSO size of {}", knobs.gso_size),
        advice: format!("use at most {}", knobs.gso_size),
    })
}
