//! The knobs of a variant: spelling, inheritance and conflicts.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use super::toml_table::{Field, Located, Table};
use super::value::Spelling;
use super::{ByteQueueLimit, Link, MAX_QUEUES, Qdisc, QueueChoice};
use crate::units::{ByteSize, Nanoseconds};

const QUEUE_CHOICES: [Spelling<QueueChoice>; 2] = [("hash", QueueChoice::Hash), ("dqa", QueueChoice::Dqa)];
const QDISCS: [Spelling<Qdisc>; 2] = [("pfifo_fast", Qdisc::PfifoFast), ("sfq+prio", Qdisc::SfqPrio)];

const ALL_QUEUES: &str = "all";
const OFF: &str = "off";
const DYNAMIC: &str = "dynamic";
const DEFAULT: &str = "default";

/// Allowed segment sizes. The minimum is the datagram size that every IPv4 host must accept (RFC 791). The
/// maximum is the kernel's `GSO_MAX_SIZE` (include/linux/netdevice.h), rounded up.
const SEGMENT_SIZES: RangeInclusive<ByteSize> = ByteSize::from_bytes(576)..=ByteSize::from_kib(512);
/// Allowed limits of queued bytes. The maximum is far above the queue length of any NIC.
const QUEUE_LIMITS: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(1 << 20);
/// Allowed interrupt intervals: drivers support whole microseconds, up to a fraction of a second.
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

/// Returns the file's spelling of an enumeration's value.
pub(super) fn spelled<T: PartialEq>(value: T, spellings: &[Spelling<T>]) -> &'static str {
    spellings.iter().find(|(_, spelt)| *spelt == value).map_or("", |(word, _)| word)
}

/// Declares each knob of a kind of variant once. A declaration contains:
/// - documentation, name and type
/// - the key in the file
/// - the value for files without the key, if the knob is newer than the schema
/// - how to read and how to write the value
///
/// Defines the struct of the values, and the struct of the values that a variant sets. The variant's
/// base supplies the other values.
macro_rules! knobs {
    (
        $(#[$meta:meta])* struct $knobs:ident, $settings:ident;
        $($(#[$about:meta])* $name:ident: $type:ty, $key:literal $(or $default:expr)?, $read:expr, $write:expr;)*
    ) => {
        $(#[$meta])*
        pub struct $knobs { $($(#[$about])* pub $name: $type,)* }

        impl $knobs {
            /// Returns the knobs with their values, in the file's spelling and the reference's order.
            /// Omits knobs whose value is written as an empty text.
            #[must_use]
            pub fn settings(&self) -> Vec<(&'static str, String)> {
                fn written<T>(write: impl Fn(&T) -> String, value: &T) -> String {
                    write(value)
                }
                let mut settings = vec![$(($key, written($write, &self.$name)),)*];
                settings.retain(|(_, value)| !value.is_empty());
                settings
            }
        }

        /// The knobs that a variant sets. The other knobs come from the variant's base.
        #[derive(Clone, Debug, Default)]
        pub(super) struct $settings { $($name: Option<Located<$type>>,)* }

        impl $settings {
            /// Reads the knobs of `table`. If `complete`, all knobs without a default are required.
            pub(super) fn read(table: &mut Table<'_>, complete: bool) -> Self {
                Self { $($name: {
                    let default: Option<$type> = None $(.or(Some($default)))?;
                    knob(table, complete && default.is_none(), $key, $read)
                },)* }
            }

            /// Returns these settings, completed by the settings of `base`.
            pub(super) fn over(&self, base: Self) -> Self {
                let own = self.clone();
                Self { $($name: own.$name.or(base.$name),)* }
            }

            /// Returns the knobs; `None` if a knob is missing, which has been reported.
            pub(super) fn knobs(&self) -> Option<$knobs> {
                Some($knobs { $($name: {
                    let own = self.$name.as_ref().map(|setting| setting.value.clone());
                    own $(.or(Some($default)))?
                }?,)* })
            }

            /// Returns the position and the path of the setting with this key in its file; `None` if
            /// the variant does not set it.
            pub(super) fn place_of(&self, key: &str) -> Option<(Range<usize>, String)> {
                match key {
                    $($key => self.$name.as_ref().map(|setting| (setting.span.clone(), setting.path.clone())),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use knobs;

/// Reads one knob of a variant. If `required`, a missing knob is an error.
pub(super) fn knob<'t, T>(
    table: &mut Table<'t>,
    required: bool,
    key: &'static str,
    read: impl Fn(&Field<'t>) -> Option<T>,
) -> Option<Located<T>> {
    const ADVICE: &str = "a variant without a 'base' sets every knob";
    let field = if required { table.require(key, ADVICE) } else { table.take(key) }?;
    read(&field).map(|value| field.located(value))
}

/// Returns a formatter for an optional value. `word` stands for `None`.
fn or<T: fmt::Display>(word: &'static str) -> impl Fn(&Option<T>) -> String {
    move |value| value.as_ref().map_or_else(|| word.to_owned(), T::to_string)
}

const QUEUE_COUNTS: RangeInclusive<u32> = 1..=MAX_QUEUES;

knobs! {
    /// The knobs of the transmit side.
    #[derive(Clone, Debug, PartialEq)]
    struct Knobs, KnobSettings;

    /// Method to choose the transmit queue of a flow.
    queue_choice: QueueChoice, "queue-choice", |field| field.one_of(&QUEUE_CHOICES), ToString::to_string;
    /// Number of queues in use; `None` for all queues of the link.
    queues: Option<u32>, "queues", |field| field.word_or_integer(ALL_QUEUES, QUEUE_COUNTS), or(ALL_QUEUES);
    /// Queues per XPS pool; `None` if every core may use every queue.
    xps_pool: Option<u32>, "xps-pool", |field| field.word_or_integer(OFF, QUEUE_COUNTS), or(OFF);
    /// Dynamic queue weights (DQWA).
    queue_weights: bool, "queue-weights", Field::boolean, ToString::to_string;
    /// Service balancing: flows move between queues, so that flows on shared queues get equal shares. Only on
    /// the test bed.
    service_balancing: bool, "service-balancing" or false, Field::boolean, ToString::to_string;
    /// Dynamic segment sizing (DSOS): the segment size on shared queues; `None` if DSOS is off.
    segment_size: Option<ByteSize>, "segment-size",
        |field| field.word_or_quantity(&[(OFF, None)], SEGMENT_SIZES, "16KiB", Some), or(OFF);
    /// TCP transmit batching. In the simulator's profile `4.4`, this option also selects the TCP small queues
    /// limit of Titan's kernel (`CONFIG_TCP_XMIT_BATCH`).
    transmit_batching: bool, "transmit-batching", Field::boolean, ToString::to_string;
    /// The qdisc of each queue.
    qdisc: Qdisc, "qdisc", |field| field.one_of(&QDISCS), ToString::to_string;
    /// TCP small queues limit per socket; `None` if the limit is off.
    tcp_small_queues: Option<ByteSize>, "tcp-small-queues",
        |field| field.word_or_quantity(&[(OFF, None)], QUEUE_LIMITS, "256KiB", Some), or(OFF);
    byte_queue_limit: ByteQueueLimit, "byte-queue-limit", byte_queue_limit, ToString::to_string;
    /// Minimum time between two interrupts; `None` for the driver's default.
    interrupt_interval: Option<Nanoseconds>, "interrupt-interval",
        |field| field.word_or_quantity(&[(DEFAULT, None)], INTERRUPT_INTERVALS, "50us", Some), or(DEFAULT);
    /// Largest segment of the device.
    gso_size: ByteSize, "gso-size", |field| field.quantity(SEGMENT_SIZES, "64KiB"), ToString::to_string;
    /// Segmentation offload (TSO and GSO).
    tso: bool, "tso", Field::boolean, ToString::to_string;
    /// Whether the NIC sends one MTU per queue in round-robin order, even within a segment.
    tso_interleaving: bool, "tso-interleaving", Field::boolean, ToString::to_string;
}

impl Knobs {
    /// The defaults of a Linux kernel.
    pub const KERNEL: Self = Self {
        queue_choice: QueueChoice::Hash,
        queues: None,
        xps_pool: None,
        queue_weights: false,
        service_balancing: false,
        segment_size: None,
        transmit_batching: false,
        qdisc: Qdisc::PfifoFast,
        tcp_small_queues: Some(ByteSize::from_kib(256)),
        byte_queue_limit: ByteQueueLimit::Dynamic,
        interrupt_interval: None,
        gso_size: ByteSize::from_kib(64),
        tso: true,
        tso_interleaving: true,
    };
}

fn byte_queue_limit(field: &Field<'_>) -> Option<ByteQueueLimit> {
    const WORDS: [Spelling<ByteQueueLimit>; 2] =
        [(DYNAMIC, ByteQueueLimit::Dynamic), (OFF, ByteQueueLimit::Off)];
    field.word_or_quantity(&WORDS, QUEUE_LIMITS, "256KiB", ByteQueueLimit::Fixed)
}

/// A conflict between knobs. Contains the keys of the knobs (most likely cause first), the problem, and
/// advice.
pub(super) struct Clash {
    pub(super) knobs: &'static [&'static str],
    pub(super) problem: String,
    pub(super) advice: String,
}

/// Returns the first conflict within `knobs`, or with `link`.
pub(super) fn clash(knobs: &Knobs, link: &Link) -> Option<Clash> {
    let queues = knobs.queues.unwrap_or(link.queues);
    if queues > link.queues {
        return Some(Clash {
            knobs: &["queues"],
            problem: format!("{queues} queues, but the link has {}", link.queues),
            advice: format!("use at most {}", link.queues),
        });
    }
    if let Some(pool) = knobs.xps_pool.filter(|pool| !queues.is_multiple_of(*pool)) {
        return Some(Clash {
            knobs: &["xps-pool", "queues"],
            problem: format!("{queues} queues cannot be divided into XPS pools of {pool}"),
            advice: "let xps-pool be a divisor of queues".to_owned(),
        });
    }
    if !link.priorities.is_empty() && queues != link.queues {
        return Some(Clash {
            knobs: &["queues"],
            problem: format!("{queues} queues, but the link's priorities have {}", link.queues),
            advice: "use all queues, or leave link.priorities out".to_owned(),
        });
    }
    if let Some((pool, own)) = knobs
        .xps_pool
        .and_then(|pool| Some((pool, link.priorities.iter().find(|own| !own.is_multiple_of(pool))?)))
    {
        return Some(Clash {
            knobs: &["xps-pool"],
            problem: format!("the {own} queues of a priority cannot be divided into XPS pools of {pool}"),
            advice: "use a divisor of the queues of every priority".to_owned(),
        });
    }
    let mtu = link.mtu;
    if knobs.gso_size < mtu {
        return Some(Clash {
            knobs: &["gso-size"],
            problem: format!("a GSO size of {} is below the link's MTU of {mtu}", knobs.gso_size),
            advice: format!("use at least {mtu}"),
        });
    }
    let segment = knobs.segment_size?;
    if segment < mtu {
        return Some(Clash {
            knobs: &["segment-size"],
            problem: format!("a segment size of {segment} is below the link's MTU of {mtu}"),
            advice: format!("use at least {mtu}"),
        });
    }
    (segment > knobs.gso_size).then(|| Clash {
        knobs: &["segment-size", "gso-size"],
        problem: format!("a segment size of {segment} is above the GSO size of {}", knobs.gso_size),
        advice: format!("lower segment-size to {}, or raise gso-size to {segment}", knobs.gso_size),
    })
}
