//! Queueing disciplines: hold segments between TCP and the device's ring.
//!
//! | [`Kind`] | kernel source | description |
//! |---|---|---|
//! | `Pfifo`, `Bfifo` | `net/sched/sch_fifo.c` | a queue with a limit |
//! | `PfifoFast` | `net/sched/sch_generic.c` | three strict bands |
//! | `Prio` | `net/sched/sch_prio.c` | strict bands of other disciplines |
//! | `Sfq` | `net/sched/sch_sfq.c` | hashed flows in rounds |
//! | `FqCodel` | `net/sched/sch_fq_codel.c` | hashed flows in rounds, controlled delay |
//! | `Fq` | `net/sched/sch_fq.c` | sockets in rounds |
//! | `Drr`, `Ets` | `net/sched/sch_drr.c`, `sch_ets.c` | classes in rounds; `ets` with strict bands before them |
//! | `Qfq` | `net/sched/sch_qfq.c` | weighted classes by virtual time |
//! | `Htb` | `net/sched/sch_htb.c` | a tree of classes that borrow rate |
//! | `Hfsc` | `net/sched/sch_hfsc.c` | a tree of classes with service curves |
//! | `Cake` | `net/sched/sch_cake.c` | hashed flows in rounds in tins, packet by packet |
//! | `Tbf` | `net/sched/sch_tbf.c` | a shaper |
//!
//! [`tree`] builds the disciplines from the description that also configures the kernel. Each file
//! lists the features that it omits. The disciplines handle GSO segments like the kernel's disciplines.
//! They count a segment as the frames of all its packets ([`Segment::frame_bytes`], the kernel's
//! `qdisc_pkt_len`).
//!
//! Segments are in slabs and rings that grow to the largest backlog and then allocate no more. Dispatch
//! is by enumeration.

mod cake;
mod codel;
mod drr;
mod fifo;
mod fq;
mod fq_codel;
mod hfsc;
mod htb;
mod prio;
mod qfq;
mod queue;
mod rate;
mod rounds;
mod sfq;
mod tbf;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tree;

use std::fmt;
use std::sync::Arc;

use crate::segment::Segment;
use crate::time::Time;

pub use cake::CakeConfig;
pub use drr::{DrrConfig, EtsConfig};
pub use fq::FqConfig;
pub use fq_codel::FqCodelConfig;
pub use hfsc::{HfscClass, HfscConfig, HfscContent, ServiceCurve};
pub use htb::{HtbClass, HtbConfig, HtbContent};
pub use qfq::{QfqClass, QfqConfig};
pub use sfq::SfqConfig;
pub use tbf::{TbfConfig, TbfPeak};

/// The default limit of queues in segments: the usual `txqueuelen` of a device.
pub const DEFAULT_LIMIT: u32 = 1000;
/// A full Ethernet frame in bytes: 1500 and the header. This is the kernel's `psched_mtu`, the default
/// of most quanta.
pub const ETHERNET_FRAME_BYTES: u32 = 1514;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// First in, first out, with a limit in segments.
    Pfifo {
        limit: u32,
    },
    /// First in, first out, with a limit in bytes.
    Bfifo {
        limit: u64,
    },
    /// Three strict bands with a common limit in segments.
    PfifoFast {
        limit: u32,
    },
    /// Strict bands, each with its own discipline.
    Prio {
        classifier: Classifier,
        /// The bands. The first band is served first.
        bands: Vec<Kind>,
    },
    Sfq(SfqConfig),
    FqCodel(FqCodelConfig),
    Fq(FqConfig),
    Drr(DrrConfig),
    Ets(EtsConfig),
    Qfq(QfqConfig),
    Htb(HtbConfig),
    Hfsc(HfscConfig),
    Cake(CakeConfig),
    Tbf(TbfConfig),
}

impl Kind {
    /// Creates a `prio` with a `pfifo` for the segments of band 0 and an `sfq` for all other segments.
    /// This is the best qdisc for plain Linux in Stephens et al., *Titan*, USENIX ATC 2017, section 4.
    #[must_use]
    pub fn sfq_prio(sfq: SfqConfig, limit: u32) -> Self {
        Self::Prio { classifier: Classifier::Band, bands: vec![Self::Pfifo { limit }, Self::Sfq(sfq)] }
    }
}

/// How to select the class of a segment. The flow number ([`Self::Flow`]) and the hash ([`Self::Hash`]) are
/// taken modulo the number of classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Classifier {
    #[default]
    Flow,
    Hash,
    /// The segment's band. Bands beyond the last class select the last class.
    Band,
    /// The class of each flow, by flow number. A flow without a valid entry has no class.
    Table(Arc<[u32]>),
}

impl Classifier {
    /// Returns the class of a segment, or `None` if the table has no valid entry for its flow. `classes` must
    /// be at least 1.
    #[inline]
    fn class(&self, segment: &Segment, classes: usize) -> Option<usize> {
        match self {
            Self::Flow => Some(segment.flow as usize % classes),
            Self::Hash => Some(segment.hash as usize % classes),
            Self::Band => Some(usize::from(segment.band).min(classes - 1)),
            Self::Table(table) => {
                table.get(segment.flow as usize).map(|class| *class as usize).filter(|class| *class < classes)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{qdisc}: {parameter} must be {range}, not {value}")]
pub struct KindError {
    pub qdisc: &'static str,
    pub parameter: &'static str,
    pub range: &'static str,
    pub value: u64,
}

fn require(
    qdisc: &'static str,
    parameter: &'static str,
    range: &'static str,
    value: u64,
    holds: bool,
) -> Result<(), KindError> {
    if holds { Ok(()) } else { Err(KindError { qdisc, parameter, range, value }) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dequeued {
    Segment(Segment),
    Empty,
    /// No segment is available before this time, unless one is enqueued.
    Wait(Time),
}

/// A user-defined queueing discipline, like the kernel's `Qdisc_ops`. [`Qdisc::with`] installs it.
///
/// Successive calls pass times that never decrease. `examples/qdisc.rs` of `evenkeel-sim` has an
/// example.
pub trait Discipline: fmt::Debug + Send {
    /// Enqueues a segment. Adds dropped segments to `dropped`: the new segment or other segments.
    fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>);

    /// Returns the next segment to send at this time, or the reason why there is none. Adds dropped segments
    /// to `dropped`.
    fn dequeue(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Dequeued;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the frame bytes of all packets in the queue ([`Segment::frame_bytes`] of each segment).
    fn backlog_bytes(&self) -> u64;

    /// If this discipline is a shaper, appends to `found` how often it had segments but was not allowed to
    /// send one ([`Qdisc::overlimits`]).
    fn overlimits(&self, _found: &mut Vec<u64>) {}

    /// Returns `Box::new(self.clone())`.
    fn boxed_clone(&self) -> Box<dyn Discipline>;
}

impl Clone for Box<dyn Discipline> {
    fn clone(&self) -> Self {
        self.as_ref().boxed_clone()
    }
}

/// An instance of a queueing discipline.
///
/// Successive calls pass times that never decrease.
#[derive(Clone, Debug)]
pub struct Qdisc {
    discipline: AnyDiscipline,
    /// Dropped segments that the caller has not fetched.
    dropped: Vec<Segment>,
}

impl Qdisc {
    /// Creates an empty qdisc. In `sfq`, the seed determines which flows share a bucket. Disciplines with
    /// classes pass seeds derived from it to the disciplines below them.
    ///
    /// # Errors
    /// Returns an error if a parameter is outside its range.
    pub fn new(kind: &Kind, seed: u64) -> Result<Self, KindError> {
        Ok(Self { discipline: AnyDiscipline::new(kind, seed)?, dropped: Vec::new() })
    }

    #[must_use]
    pub fn with(discipline: Box<dyn Discipline>) -> Self {
        Self { discipline: AnyDiscipline::Other(discipline), dropped: Vec::new() }
    }

    /// Enqueues a segment. Returns a dropped segment, if any: the new segment or another segment.
    ///
    /// A discipline may drop several segments: see [`Self::pop_dropped`].
    #[inline]
    pub fn enqueue(&mut self, now: Time, segment: Segment) -> Option<Segment> {
        self.discipline.enqueue(now, segment, &mut self.dropped);
        self.dropped.pop()
    }

    /// Returns the next segment to send at this time, or the reason why there is none.
    ///
    /// A discipline may also drop segments in this call: see [`Self::pop_dropped`].
    #[inline]
    pub fn dequeue(&mut self, now: Time) -> Dequeued {
        self.discipline.dequeue(now, &mut self.dropped)
    }

    /// Returns a segment that [`Self::enqueue`] or [`Self::dequeue`] dropped and did not return, if any.
    ///
    /// `fq_codel` and `cake` may drop segments at dequeue, and several segments in one enqueue. `tbf` may
    /// drop several packets of a segment that it splits. With disciplines that are or contain one of these,
    /// call this function until it returns `None`.
    #[inline]
    pub fn pop_dropped(&mut self) -> Option<Segment> {
        self.dropped.pop()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.discipline.len()
    }

    #[must_use]
    pub fn backlog_bytes(&self) -> u64 {
        self.discipline.backlog_bytes()
    }

    /// Returns how often each shaper (`htb`, `hfsc`, `tbf`) had segments and was not allowed to send one
    /// (`overlimits`). A parent precedes its children, and the children are in order of definition.
    #[must_use]
    pub fn overlimits(&self) -> Vec<u64> {
        let mut found = Vec::new();
        self.discipline.overlimits(&mut found);
        found
    }
}

#[derive(Clone, Debug)]
enum AnyDiscipline {
    Fifo(fifo::Fifo),
    PfifoFast(fifo::PfifoFast),
    Prio(prio::Prio),
    Sfq(Box<sfq::Sfq>),
    FqCodel(Box<fq_codel::FqCodel>),
    Fq(Box<fq::Fq>),
    Drr(Box<drr::Drr>),
    Qfq(Box<qfq::Qfq>),
    Htb(Box<htb::Htb>),
    Hfsc(Box<hfsc::Hfsc>),
    Cake(Box<cake::Cake>),
    Tbf(Box<tbf::Tbf>),
    Other(Box<dyn Discipline>),
}

impl AnyDiscipline {
    fn new(kind: &Kind, seed: u64) -> Result<Self, KindError> {
        Ok(match kind {
            Kind::Pfifo { limit } => Self::Fifo(fifo::Fifo::with_segments(*limit)),
            Kind::Bfifo { limit } => Self::Fifo(fifo::Fifo::with_bytes(*limit)),
            Kind::PfifoFast { limit } => Self::PfifoFast(fifo::PfifoFast::new(*limit)),
            Kind::Prio { classifier, bands } => {
                // `TCQ_PRIO_BANDS`.
                let count = bands.len() as u64;
                require("prio", "number of bands", "1 to 16", count, (1..=16).contains(&count))?;
                let seeded = (seed..=u64::MAX).chain(0..seed);
                let bands = bands.iter().zip(seeded).map(|(band, seed)| Self::new(band, seed));
                Self::Prio(prio::Prio::new(classifier.clone(), bands.collect::<Result<_, _>>()?))
            }
            Kind::Sfq(config) => {
                config.check()?;
                Self::Sfq(Box::new(sfq::Sfq::new(config, seed)))
            }
            Kind::FqCodel(config) => {
                config.check()?;
                Self::FqCodel(Box::new(fq_codel::FqCodel::new(config)))
            }
            Kind::Fq(config) => {
                config.check()?;
                Self::Fq(Box::new(fq::Fq::new(config)))
            }
            Kind::Drr(config) => {
                config.check()?;
                Self::Drr(Box::new(drr::Drr::new(config)))
            }
            Kind::Ets(config) => {
                config.check()?;
                Self::Drr(Box::new(drr::Drr::ets(config)))
            }
            Kind::Qfq(config) => {
                config.check()?;
                Self::Qfq(Box::new(qfq::Qfq::new(config)))
            }
            Kind::Htb(config) => Self::Htb(Box::new(htb::Htb::new(config, seed)?)),
            Kind::Hfsc(config) => Self::Hfsc(Box::new(hfsc::Hfsc::new(config)?)),
            Kind::Cake(config) => {
                config.check()?;
                Self::Cake(Box::new(cake::Cake::new(config)))
            }
            Kind::Tbf(config) => {
                config.check()?;
                Self::Tbf(Box::new(tbf::Tbf::new(config, Self::new(&config.inner, seed)?)))
            }
        })
    }

    #[inline]
    fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        match self {
            Self::Fifo(fifo) => fifo.enqueue(segment, dropped),
            Self::PfifoFast(fifo) => fifo.enqueue(segment, dropped),
            Self::Prio(prio) => prio.enqueue(now, segment, dropped),
            Self::Sfq(sfq) => sfq.enqueue(segment, dropped),
            Self::FqCodel(fq_codel) => fq_codel.enqueue(now, segment, dropped),
            Self::Fq(fq) => fq.enqueue(now, segment, dropped),
            Self::Drr(drr) => drr.enqueue(segment, dropped),
            Self::Qfq(qfq) => qfq.enqueue(segment, dropped),
            Self::Htb(htb) => htb.enqueue(now, segment, dropped),
            Self::Hfsc(hfsc) => hfsc.enqueue(now, segment, dropped),
            Self::Cake(cake) => cake.enqueue(now, segment, dropped),
            Self::Tbf(tbf) => tbf.enqueue(now, segment, dropped),
            Self::Other(other) => other.enqueue(now, segment, dropped),
        }
    }

    #[inline]
    fn dequeue(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Dequeued {
        match self {
            Self::Fifo(fifo) => fifo.dequeue(),
            Self::PfifoFast(fifo) => fifo.dequeue(),
            Self::Prio(prio) => prio.dequeue(now, dropped),
            Self::Sfq(sfq) => sfq.dequeue(),
            Self::FqCodel(fq_codel) => fq_codel.dequeue(now, dropped),
            Self::Fq(fq) => fq.dequeue(now),
            Self::Drr(drr) => drr.dequeue(),
            Self::Qfq(qfq) => qfq.dequeue(),
            Self::Htb(htb) => htb.dequeue(now, dropped),
            Self::Hfsc(hfsc) => hfsc.dequeue(now),
            Self::Cake(cake) => cake.dequeue(now, dropped),
            Self::Tbf(tbf) => tbf.dequeue(now, dropped),
            Self::Other(other) => other.dequeue(now, dropped),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Fifo(fifo) => fifo.len(),
            Self::PfifoFast(fifo) => fifo.len(),
            Self::Prio(prio) => prio.len(),
            Self::Sfq(sfq) => sfq.len(),
            Self::FqCodel(fq_codel) => fq_codel.len(),
            Self::Fq(fq) => fq.len(),
            Self::Drr(drr) => drr.len(),
            Self::Qfq(qfq) => qfq.len(),
            Self::Htb(htb) => htb.len(),
            Self::Hfsc(hfsc) => hfsc.len(),
            Self::Cake(cake) => cake.len(),
            Self::Tbf(tbf) => tbf.len(),
            Self::Other(other) => other.len(),
        }
    }

    fn backlog_bytes(&self) -> u64 {
        match self {
            Self::Fifo(fifo) => fifo.backlog_bytes(),
            Self::PfifoFast(fifo) => fifo.backlog_bytes(),
            Self::Prio(prio) => prio.backlog_bytes(),
            Self::Sfq(sfq) => sfq.backlog_bytes(),
            Self::FqCodel(fq_codel) => fq_codel.backlog_bytes(),
            Self::Fq(fq) => fq.backlog_bytes(),
            Self::Drr(drr) => drr.backlog_bytes(),
            Self::Qfq(qfq) => qfq.backlog_bytes(),
            Self::Htb(htb) => htb.backlog_bytes(),
            Self::Hfsc(hfsc) => hfsc.backlog_bytes(),
            Self::Cake(cake) => cake.backlog_bytes(),
            Self::Tbf(tbf) => tbf.backlog_bytes(),
            Self::Other(other) => other.backlog_bytes(),
        }
    }

    /// Collects [`Qdisc::overlimits`] of this qdisc and of the qdiscs below it.
    fn overlimits(&self, found: &mut Vec<u64>) {
        match self {
            Self::Prio(prio) => prio.overlimits(found),
            Self::Htb(htb) => htb.overlimits(found),
            Self::Hfsc(hfsc) => found.push(hfsc.overlimits()),
            Self::Tbf(tbf) => tbf.overlimits(found),
            Self::Other(other) => other.overlimits(found),
            Self::Fifo(_)
            | Self::PfifoFast(_)
            | Self::Sfq(_)
            | Self::FqCodel(_)
            | Self::Fq(_)
            | Self::Drr(_)
            | Self::Qfq(_)
            | Self::Cake(_) => {}
        }
    }
}
