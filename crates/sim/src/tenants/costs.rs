//! What work costs the processors of the test bed's machine, and what qdiscs cost.
//!
//! Measured and calibrated on one machine: two processors of a virtual AMD EPYC (family 25, model 17) at
//! 2.6 GHz, Linux 6.18, on 2026-11-22. `docs/simulator.md` has the commands and the spread.

use std::collections::BTreeMap;

use evenkeel_model::qdisc::{Classifier, FilterRules};

use crate::qdisc::tree::{Disciplines, Hop};
use crate::time::{MICROSECOND, MILLISECOND, NANOSECOND, Span};

/// The numbers of the test bed's machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Processors, which both hosts and all programs share.
    pub processors: u32,
    /// A process runs for so long before another one's turn. Sourced: the scheduler asks at a tick, of which
    /// this kernel has 250 a second (`CONFIG_HZ`), and its slice is shorter.
    pub slice: Span,
    /// From a timer's time until its soft interrupt runs. Measured: `./dev bench qdisc-costs`.
    pub timer_latency: Span,
    /// From the wake-up of a process until an idle processor runs it. Calibrated: on the latency of one
    /// probe without load on the test bed.
    pub wake_latency: Span,
    /// Processor time of work.
    pub costs: Costs,
    /// Processor time of qdiscs.
    pub qdiscs: QdiscCosts,
}

/// Processor time of work, with what a scenario leaves alone. Calibrated: on the test bed's bandwidth and
/// processor time against the length of writes (`tc-packet-length` and `tc-clients` with pfifo).
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// A write of a bulk client in user space, the select before it included.
    pub write_user: Span,
    /// The same in the kernel, without its bytes.
    pub write_system: Span,
    /// A read of a bulk server in user space.
    pub read_user: Span,
    /// The same in the kernel, without its bytes.
    pub read_system: Span,
    /// A kibibyte that is copied in or out.
    pub copy_kib: Span,
    /// A message of a probe in user space, at each end.
    pub message_user: Span,
    /// The same in the kernel, without its bytes: a write or a read.
    pub message_system: Span,
    /// A bulk program that finds nothing to do: a call of select that blocks.
    pub wait: Span,
    /// A segment from TCP to the device, its qdisc apart.
    pub segment: Span,
    /// A segment from the device to TCP, its packets apart.
    pub receive: Span,
    /// Each packet of it where nothing merges packets, with its share of the acknowledgements.
    pub packet: Span,
    /// A packet that GRO merges with the one before it.
    pub merge: Span,
    /// An acknowledgement, at both ends.
    pub acknowledgement: Span,
    /// Waking a process.
    pub wake: Span,
    /// Switching to another process.
    pub switch: Span,
    /// A timer's interrupt.
    pub timer: Span,
}

/// What a kind of qdisc costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QdiscCost {
    /// To put a segment in.
    pub enqueue: Span,
    /// To take one out.
    pub dequeue: Span,
    /// More, to take one out, for each class.
    pub class: Span,
    /// Measured; the others are estimated.
    pub measured_here: bool,
}

/// Costs by kind of qdisc and by classifier.
#[derive(Clone, Debug, PartialEq)]
pub struct QdiscCosts {
    /// By the kernel's name of the kind.
    pub kinds: BTreeMap<&'static str, QdiscCost>,
    /// A classifier that is asked at all, and each of its rules that is looked at.
    pub classifiers: BTreeMap<Classifier, (Span, Span)>,
}

impl QdiscCosts {
    fn of(&self, kind: &str) -> QdiscCost {
        self.kinds.get(kind).or_else(|| self.kinds.get("pfifo")).copied().unwrap_or_default()
    }

    fn rules(&self, classifier: Classifier, rules: u32) -> Span {
        let (first, each) = self.classifiers.get(&classifier).copied().unwrap_or_default();
        if rules == 0 { 0 } else { first + u64::from(rules) * each }
    }

    /// What a segment costs on its way through these qdiscs: to enqueue, to dequeue.
    pub(super) fn of_path(
        &self,
        tree: &Disciplines,
        path: &[Hop],
        ahead: Option<&FilterRules>,
    ) -> (Span, Span) {
        let (mut enqueue, mut dequeue) = (0, 0);
        for (depth, hop) in path.iter().enumerate() {
            let qdisc = &tree.qdiscs[hop.qdisc as usize];
            let cost = self.of(&qdisc.kind);
            enqueue += cost.enqueue;
            dequeue += cost.dequeue + u64::from(qdisc.classes) * cost.class;
            enqueue +=
                hop.filters.iter().map(|(classifier, rules)| self.rules(*classifier, *rules)).sum::<Span>();
            // Rules in front of the root's own filters.
            if depth == 0
                && let Some(rules) = ahead
                && qdisc.classes > 0
            {
                enqueue += self.rules(rules.classifier, rules.rules);
            }
        }
        (enqueue, dequeue)
    }
}

impl Machine {
    /// The machine that was measured, with so many processors.
    #[must_use]
    pub fn measured(processors: u32) -> Self {
        Self {
            processors: processors.max(1),
            slice: 4 * MILLISECOND,
            timer_latency: 16_800 * NANOSECOND,
            wake_latency: 15 * MICROSECOND,
            costs: Costs {
                write_user: 150 * NANOSECOND,
                write_system: 2200 * NANOSECOND,
                read_user: 250 * NANOSECOND,
                read_system: 3000 * NANOSECOND,
                copy_kib: 230 * NANOSECOND,
                message_user: 150 * NANOSECOND,
                message_system: 1500 * NANOSECOND,
                wait: 2000 * NANOSECOND,
                segment: 2250 * NANOSECOND,
                receive: 4700 * NANOSECOND,
                packet: 1070 * NANOSECOND,
                merge: 150 * NANOSECOND,
                acknowledgement: 7500 * NANOSECOND,
                wake: 1200 * NANOSECOND,
                switch: 4500 * NANOSECOND,
                timer: 1000 * NANOSECOND,
            },
            qdiscs: QdiscCosts::measured(),
        }
    }
}

impl Default for Machine {
    /// The test bed's machine.
    fn default() -> Self {
        Self::measured(2)
    }
}

impl QdiscCosts {
    /// What `./dev bench qdisc-costs` found.
    #[must_use]
    pub fn measured() -> Self {
        // To enqueue and to dequeue was measured together; half of it counts at either.
        let cost = |both: u64, measured_here| QdiscCost {
            enqueue: both * NANOSECOND / 2,
            dequeue: both * NANOSECOND / 2,
            // From 1 to 96 classes of htb make no difference beyond the spread.
            class: 0,
            measured_here,
        };
        Self {
            kinds: BTreeMap::from([
                ("pfifo", cost(149, true)),
                ("bfifo", cost(156, true)),
                ("pfifo_fast", cost(79, true)),
                ("mq", cost(0, true)),
                ("htb", cost(520, true)),
                ("tbf", cost(396, true)),
                ("prio", cost(60, false)),
                ("ets", cost(90, false)),
                ("drr", cost(90, false)),
                ("qfq", cost(220, false)),
                ("hfsc", cost(380, false)),
                ("sfq", cost(160, false)),
                ("fq", cost(220, false)),
                ("fq_codel", cost(200, false)),
                ("cake", cost(460, false)),
            ]),
            classifiers: BTreeMap::from([
                (Classifier::Bpf, (30 * NANOSECOND, 90 * NANOSECOND)),
                (Classifier::U32, (30 * NANOSECOND, 6 * NANOSECOND)),
                (Classifier::Flower, (150 * NANOSECOND, NANOSECOND)),
            ]),
        }
    }
}
