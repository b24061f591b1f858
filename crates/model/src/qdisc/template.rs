//! Steps as written in a file: handles with a flow or queue number, rates as shares, sizes in segments.

use crate::change::Handle;
use crate::units::{BitRate, ByteSize, Nanoseconds};

use super::{Attribute, Classifier, Surroundings};

/// The objects for which a step is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    /// Flows; bulk flows come first.
    Flow,
    Queue,
}

/// The major or minor number of a handle: a number, or a number plus a counter from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) base: u16,
    pub(super) counter: Option<Counter>,
}

/// A handle; the minor number of a qdisc's handle is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandleTemplate {
    pub(super) major: Number,
    pub(super) minor: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Divisor {
    One,
    Flows,
    Queues,
    Number(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateTerm {
    Fixed(BitRate),
    /// Millionths of the link's rate, divided by the divisor.
    Share(u32, Divisor),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// The largest segment with the length that qdiscs use for it.
    Segment,
    /// The layer-3 MTU.
    Mtu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeTerm {
    Fixed(ByteSize),
    Times(u32, Measure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CurveTerm {
    /// A constant slope.
    Straight(RateTerm),
    /// A slope for some time, then another slope.
    Bent { m1: RateTerm, first: Nanoseconds, m2: RateTerm },
    /// A number of bytes within a time, then a rate.
    Delay { umax: SizeTerm, dmax: Nanoseconds, rate: RateTerm },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    Count(u64),
    Rate(RateTerm),
    Size(SizeTerm),
    Time(Nanoseconds),
    Seconds(u32),
    Minor(u16),
    Bands(Vec<u8>),
    Sizes(Vec<SizeTerm>),
    Curve(CurveTerm),
    Flag,
    Attribute(Attribute),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SettingTemplate {
    pub(super) name: String,
    pub(super) value: Term,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeTemplate {
    /// `None`: the device.
    pub(super) parent: Option<HandleTemplate>,
    /// `None`: an unused handle.
    pub(super) handle: Option<HandleTemplate>,
    pub(super) kind: String,
    pub(super) settings: Vec<SettingTemplate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortTerm {
    Fixed(u16),
    OfFlow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterTemplate {
    PerFlow { class: HandleTemplate, modulo: Option<u32>, rest: Option<HandleTemplate> },
    ByRole { probes: HandleTemplate, bulk: HandleTemplate },
    Port { classifier: Classifier, port: PortTerm, class: HandleTemplate },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepTemplate {
    Qdisc(NodeTemplate),
    Class(NodeTemplate),
    Filter { parent: HandleTemplate, filter: FilterTemplate },
}

impl Number {
    pub(super) const fn fixed(base: u16) -> Self {
        Self { base, counter: None }
    }

    /// Returns the number for the `nth` repetition, from 1; `None` if the number does not fit 16 bits.
    fn at(self, nth: u32) -> Option<u16> {
        match self.counter {
            None => Some(self.base),
            Some(_) => u16::try_from(u32::from(self.base).checked_add(nth)?).ok(),
        }
    }
}

impl HandleTemplate {
    pub(super) const fn fixed(handle: Handle) -> Self {
        Self { major: Number::fixed(handle.major), minor: Number::fixed(handle.minor) }
    }

    /// Returns the handle for the `nth` repetition, from 1; `None` if a number does not fit 16 bits.
    pub(super) fn at(self, nth: u32) -> Option<Handle> {
        Some(Handle::new(self.major.at(nth)?, self.minor.at(nth)?))
    }

    pub(super) fn counters(self) -> impl Iterator<Item = Counter> + use<> {
        [self.major.counter, self.minor.counter].into_iter().flatten()
    }
}

impl StepTemplate {
    /// Returns the objects for which the step is repeated; `None` if the step is not repeated.
    pub(super) fn counter(&self) -> Option<Counter> {
        self.counters().next()
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = Counter> + use<> {
        let handles: [Option<HandleTemplate>; 3] = match self {
            Self::Qdisc(node) | Self::Class(node) => [node.parent, node.handle, None],
            Self::Filter { parent, filter } => match filter {
                // One filter is enough for all flows.
                FilterTemplate::PerFlow { rest, .. } => [Some(*parent), *rest, None],
                FilterTemplate::ByRole { probes, bulk } => [Some(*parent), Some(*probes), Some(*bulk)],
                FilterTemplate::Port { class, .. } => [Some(*parent), Some(*class), None],
            },
        };
        let of_port = match self {
            Self::Filter { filter: FilterTemplate::Port { port: PortTerm::OfFlow, .. }, .. } => {
                Some(Counter::Flow)
            }
            _ => None,
        };
        handles.into_iter().flatten().flat_map(HandleTemplate::counters).chain(of_port)
    }
}

/// A share of 100 %, in millionths.
pub(super) const WHOLE: u32 = 1_000_000;

impl RateTerm {
    /// Returns the rate on a link. A share is at least one byte per second.
    pub(super) fn on(self, on: &Surroundings) -> BitRate {
        let Self::Share(millionths, divisor) = self else {
            let Self::Fixed(rate) = self else { return on.rate };
            return rate;
        };
        let parts = match divisor {
            Divisor::One => 1,
            Divisor::Flows => on.flows(),
            Divisor::Queues => on.queues,
            Divisor::Number(number) => number,
        };
        let share = u128::from(on.rate.bits_per_second()) * u128::from(millionths)
            / (u128::from(WHOLE) * u128::from(parts.max(1)));
        BitRate::from_bits_per_second(u64::try_from(share).unwrap_or(u64::MAX).max(8))
    }
}

impl SizeTerm {
    pub(super) fn on(self, on: &Surroundings) -> ByteSize {
        match self {
            Self::Fixed(size) => size,
            Self::Times(times, measure) => {
                let one = match measure {
                    Measure::Segment => on.counted_segment(),
                    Measure::Mtu => on.mtu,
                };
                ByteSize::from_bytes(one.bytes().saturating_mul(u64::from(times)))
            }
        }
    }
}

impl Surroundings {
    /// Returns the number of bulk flows and probes.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.bulk_flows.saturating_add(self.probes)
    }

    /// Returns the length that qdiscs use for the largest segment. The length includes the headers of
    /// all its packets (`qdisc_pkt_len_init`, `net/core/dev.c`).
    #[must_use]
    pub fn counted_segment(&self) -> ByteSize {
        /// Length of the headers of Ethernet, IPv4, and TCP with time stamps, bytes.
        const HEADERS: u64 = 14 + 20 + 32;
        let whole = self.largest_segment.bytes();
        let payload = (self.mtu.bytes() + 14).saturating_sub(HEADERS).max(1);
        let packets = whole.saturating_sub(HEADERS).div_ceil(payload).max(1);
        ByteSize::from_bytes(whole.saturating_add((packets - 1).saturating_mul(HEADERS)))
    }
}
