//! The cost table: the processor time of every piece of work in the simulator, with its source.
//!
//! | module | work | machine profile | source |
//! |---|---|---|---|
//! | [`sender`] | a host that sends: interrupts, TCP, completions | [`sender::Costs::XEON_E5_1410`] | estimated |
//! | [`processes`] | processes that write and read, both ends on one machine | [`processes::Machine::epyc_vm`] | calibrated on the test bed |
//! | [`qdiscs`] | a segment in a qdisc and its filters | [`qdiscs::QdiscCosts::epyc_vm`] | measured, or estimated where `measured_here` is false |
//! | [`queue_pairs`] | a server's polling threads, its application and its clients | [`queue_pairs::ReceiveCosts::DRAGONET`] | Dragonet (TRIOS 2015) |
//!
//! The profile `epyc_vm` is two processors of a virtual AMD EPYC (family 25, model 17) at 2.6 GHz, Linux 6.18,
//! on 2026-11-22. `docs/explanation/tenant-simulation.md` has the commands and the spread.

/// The host that sends bulk flows.
pub mod sender {
    use crate::time::{MICROSECOND, NANOSECOND, Span};

    /// Processor time of the sender's work.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Costs {
        /// An interrupt with its poll: entry, NAPI, exit.
        pub interrupt: Span,
        /// An acknowledgement up to TCP.
        pub acknowledgement: Span,
        /// A segment from TCP to the ring.
        pub segment: Span,
        /// A piece that a segment is cut into before the qdisc (DSOS).
        pub piece: Span,
        /// A segment's completion.
        pub completion: Span,
        /// Cutting a packet off a segment in software (no segmentation offload).
        pub packet: Span,
        /// A byte that the application writes: copy and its share of the system call.
        pub byte: Span,
        /// Looking at one queue's weight in a choice by weight.
        pub queue_look: Span,
        /// Writing a queue's weight to the NIC.
        pub weight_write: Span,
        /// More, for each segment, where another processor completes it than sent it: cold caches and
        /// contended locks.
        pub remote_completion: Span,
        /// More, for each segment, when SFQ sorts it.
        pub fair_queueing: Span,
    }

    impl Costs {
        /// Titan's sender, a Xeon E5-1410 at 2.8 GHz. All estimated: the usual order on such a processor. They
        /// are neither fitted to anything nor measured.
        pub const XEON_E5_1410: Self = Self {
            interrupt: 2 * MICROSECOND,
            acknowledgement: 900 * NANOSECOND,
            segment: 2500 * NANOSECOND,
            piece: 1200 * NANOSECOND,
            completion: 500 * NANOSECOND,
            packet: 900 * NANOSECOND,
            byte: super::COPIED_BYTE,
            queue_look: 15 * NANOSECOND,
            weight_write: 400 * NANOSECOND,
            remote_completion: 1500 * NANOSECOND,
            fair_queueing: 200 * NANOSECOND,
        };
    }
}

/// A byte that is copied. Estimated: 5 GB/s, about the share of one of ten cores in four channels of DDR3-1600.
const COPIED_BYTE: crate::time::Span = crate::time::NANOSECOND / 5;

/// Processes that write and read, with both hosts on one machine.
pub mod processes {
    use super::qdiscs::QdiscCosts;
    use crate::time::{MICROSECOND, MILLISECOND, NANOSECOND, Span};

    /// A machine whose processors both hosts and all programs share.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Machine {
        /// Processors.
        pub processors: u32,
        /// Time slice of a process. Sourced: the scheduler checks at a tick, 250 per second (`CONFIG_HZ`),
        /// and its slice is shorter.
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

    /// Processor time per operation. A scenario does not change it.
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
        /// A bulk program without work: a call of select that blocks.
        pub wait: Span,
        /// A segment from TCP to the device, its qdisc apart.
        pub segment: Span,
        /// A segment from the device to TCP, its packets apart.
        pub receive: Span,
        /// A packet of a segment where packets are not merged, with its share of the acknowledgements.
        pub packet: Span,
        /// A packet that GRO merges with the previous one.
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

    impl Machine {
        /// Returns the test bed's machine with this many processors. The costs are calibrated as one set: on
        /// the test bed's bandwidth and processor time against the length of writes (`tc-packet-length` and
        /// `tc-clients` with pfifo).
        #[must_use]
        pub fn epyc_vm(processors: u32) -> Self {
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
                qdiscs: QdiscCosts::epyc_vm(),
            }
        }
    }
}

/// Qdiscs and their filters.
pub mod qdiscs {
    use std::collections::BTreeMap;

    use evenkeel_model::qdisc::{Classifier, FilterRules};

    use crate::qdisc::tree::{Disciplines, Hop};
    use crate::time::{NANOSECOND, Span};

    /// Processor time of a kind of qdisc.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QdiscCost {
        /// To enqueue a segment.
        pub enqueue: Span,
        /// To dequeue one.
        pub dequeue: Span,
        /// More, to dequeue one, for each class.
        pub class: Span,
        /// Measured; the others are estimated.
        pub measured_here: bool,
    }

    /// Costs by kind of qdisc and by classifier.
    #[derive(Clone, Debug, PartialEq)]
    pub struct QdiscCosts {
        /// By the kernel's name of the kind.
        pub kinds: BTreeMap<&'static str, QdiscCost>,
        /// A classifier call, and each rule that it checks.
        pub classifiers: BTreeMap<Classifier, (Span, Span)>,
    }

    impl QdiscCosts {
        /// Measured by `./dev bench qdisc-costs`. Those with `false` are estimated from the work that they do
        /// beside the measured ones: the machine's kernel lacks them.
        #[must_use]
        pub fn epyc_vm() -> Self {
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

        fn of(&self, kind: &str) -> QdiscCost {
            self.kinds.get(kind).or_else(|| self.kinds.get("pfifo")).copied().unwrap_or_default()
        }

        fn rules(&self, classifier: Classifier, rules: u32) -> Span {
            let (first, each) = self.classifiers.get(&classifier).copied().unwrap_or_default();
            if rules == 0 { 0 } else { first + u64::from(rules) * each }
        }

        /// The cost of a segment on its path through these qdiscs: to enqueue, to dequeue.
        pub(crate) fn of_path(
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
                let filters = hop.filters.iter();
                enqueue += filters.map(|(classifier, rules)| self.rules(*classifier, *rules)).sum::<Span>();
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
}

/// A server with one polling thread per queue pair, and its clients.
pub mod queue_pairs {
    use super::COPIED_BYTE;
    use crate::time::{MICROSECOND, NANOSECOND, Span};

    /// Payload of the echo from whose throughput the costs of a queue pair derive, bytes per direction.
    const ECHO: u64 = 1024;
    /// Payload of a transaction of memcached with values of 1024 B and 10 % sets, both ways together, bytes: the
    /// mean, as a test of the messages' lengths checks.
    pub(crate) const MEMCACHED_1024: u64 = 1190;

    /// Work, and time on the wire. `docs/explanation/receive-simulation.md` has the reasons at length.
    ///
    /// The work per message has a fixed part and a part per byte. Where an experiment gives the sum of both,
    /// the fixed part is the remainder.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReceiveCosts {
        /// Work of the thread that serves a queue pair on a request, without its bytes: from the ring to the
        /// application.
        ///
        /// Half of a transaction's work on that thread. Dragonet (TRIOS 2015), section 4.2: the median of 20 echo
        /// clients is 46.3 k transactions/s with two of them on each of 10 queues, so a queue serves 92.6 k/s,
        /// 10.8 µs each, with 1024 B either way.
        pub receive: Span,
        /// Work of the same thread on the response: from the application to the ring. The other half.
        pub transmit: Span,
        /// Work of an echo server on a request. An assumption: a system call's worth, on a core that is never the
        /// bottleneck.
        pub echo: Span,
        /// Work of memcached on a request. An assumption: parsing and one look-up, on a core that is never the
        /// bottleneck.
        pub memcached: Span,
        /// Work of a client's thread on a transaction, without its bytes: it reads a response, and makes and sends
        /// the next request.
        ///
        /// Calibrated on Dragonet, section 4.3: the largest throughput of any client is 65.6 k
        /// transactions/s, and its latency shows that the server does not spend this time. This is 15.24 µs
        /// with values of 1024 B.
        pub client: Span,
        /// Work of any thread that handles a message, per byte of payload: one copy, as at the sender. Both
        /// NICs compute checksums.
        pub byte: Span,
        /// From a NIC to the other host's NIC and into its memory, without the time on the wire: that of the
        /// transmit side's simulation ([`crate::parameters::Parameters::line_latency`]).
        pub line_latency: Span,
    }

    impl ReceiveCosts {
        /// Dragonet's server and clients.
        pub const DRAGONET: Self = Self {
            receive: 5_400 * NANOSECOND - ECHO * COPIED_BYTE,
            transmit: 5_400 * NANOSECOND - ECHO * COPIED_BYTE,
            echo: 500 * NANOSECOND,
            memcached: 2 * MICROSECOND,
            client: 15_240 * NANOSECOND - MEMCACHED_1024 * COPIED_BYTE,
            byte: COPIED_BYTE,
            line_latency: 2 * MICROSECOND,
        };
    }
}
