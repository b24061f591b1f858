//! The cost table: the processor time of each operation in the simulator, with its source.
//!
//! | module | work | machine profile | source |
//! |---|---|---|---|
//! | [`sender`] | a host that sends: interrupts, TCP, completions | [`sender::Costs::XEON_E5_1410`] | estimated |
//! | [`processes`] | processes that write and read, both ends on one machine | [`processes::Machine::epyc_vm`] | calibrated on the test bed |
//! | [`qdiscs`] | a segment in a qdisc and its filters | [`qdiscs::QdiscCosts::epyc_vm`] | measured, or estimated where `measured_here` is false |
//! | [`queue_pairs`] | a server's polling threads, its application and its clients | [`queue_pairs::ReceiveCosts::DRAGONET`] | Dragonet (TRIOS 2015) |
//!
//! The profile `epyc_vm` is two processors of a virtual AMD EPYC (family 25, model 17) at 2.6 GHz,
//! Linux 6.18, on 2026-11-22. `docs/explanation/simulator.md` has the command and the spread.

pub mod sender {
    use crate::time::{MICROSECOND, NANOSECOND, Span};

    #[derive(Clone, Debug, PartialEq)]
    pub struct Costs {
        /// An interrupt with its poll: interrupt entry, NAPI, interrupt exit.
        pub interrupt: Span,
        pub acknowledgement: Span,
        pub segment: Span,
        /// One piece of a segment that is split before the qdisc (DSOS).
        pub piece: Span,
        pub completion: Span,
        /// Splitting off a packet in software (no segmentation offload).
        pub packet: Span,
        /// One byte that the application writes: the copy, and its share of the system call.
        pub byte: Span,
        /// Reading one queue's weight in a queue choice by weight.
        pub queue_look: Span,
        pub weight_write: Span,
        /// Additional cost per segment if another processor completes it: cold caches and contended locks.
        pub remote_completion: Span,
        pub fair_queueing: Span,
    }

    impl Costs {
        /// Titan's sender, a Xeon E5-1410 at 2.8 GHz. All values are estimates for such a processor.
        /// They are neither fitted nor measured.
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

/// Copying a byte. Estimated: 5 GB/s, about the share of one of ten cores in four channels of DDR3-1600.
const COPIED_BYTE: crate::time::Span = crate::time::NANOSECOND / 5;

/// Costs of processes that write and read. Both hosts run on one machine.
pub mod processes {
    use super::qdiscs::QdiscCosts;
    use crate::time::{MICROSECOND, MILLISECOND, NANOSECOND, Span};

    /// A machine. Both hosts and all programs share its processors.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Machine {
        pub processors: u32,
        /// Time slice of a process. Source: the scheduler checks at each tick, 250 times per second
        /// (`CONFIG_HZ`), and its slice is shorter than a tick.
        pub slice: Span,
        /// Time from a timer's expiry to its softirq. Measured with `./dev bench qdisc-costs`.
        pub timer_latency: Span,
        /// Time from the wake-up of a process until an idle processor runs it. Calibrated with the
        /// latency of one probe without load on the test bed.
        pub wake_latency: Span,
        pub costs: Costs,
        pub qdiscs: QdiscCosts,
    }

    /// Processor time per operation. No scenario changes these values.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Costs {
        /// A write of a bulk client in user space, including the preceding `select`.
        pub write_user: Span,
        /// A write of a bulk client in the kernel, without its bytes.
        pub write_system: Span,
        pub read_user: Span,
        /// A read of a bulk server in the kernel, without its bytes.
        pub read_system: Span,
        /// Copying 1 KiB to or from user space.
        pub copy_kib: Span,
        /// A message of a probe in user space, at each end.
        pub message_user: Span,
        /// A message of a probe in the kernel, without its bytes: a write or a read.
        pub message_system: Span,
        /// A call of `select` that blocks because a bulk program has no work.
        pub wait: Span,
        pub segment: Span,
        /// Receiving a segment from the device to TCP, without its packets.
        pub receive: Span,
        /// One packet of a segment whose packets are not merged, with its share of the
        /// acknowledgements.
        pub packet: Span,
        /// A packet that GRO merges with the previous one.
        pub merge: Span,
        /// One acknowledgement, at both ends together.
        pub acknowledgement: Span,
        pub wake: Span,
        pub switch: Span,
        pub timer: Span,
    }

    impl Machine {
        /// Returns the test bed's machine with this many processors.
        ///
        /// The costs are calibrated together, with the test bed's bandwidth and processor time against
        /// the length of writes (`tc-packet-length` and `tc-clients` with pfifo).
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

pub mod qdiscs {
    use std::collections::BTreeMap;

    use evenkeel_model::qdisc::{Classifier, FilterRules};

    use crate::qdisc::tree::{Disciplines, Hop};
    use crate::time::{NANOSECOND, Span};

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QdiscCost {
        pub enqueue: Span,
        pub dequeue: Span,
        /// Additional time to dequeue a segment, per class.
        pub class: Span,
        /// Whether the values are measured. Otherwise they are estimated.
        pub measured_here: bool,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub struct QdiscCosts {
        /// Costs of each kind of qdisc, by the kernel's name.
        pub kinds: BTreeMap<&'static str, QdiscCost>,
        /// Cost per call of a classifier, and per rule that the classifier compares.
        pub classifiers: BTreeMap<Classifier, (Span, Span)>,
    }

    impl QdiscCosts {
        /// Returns the values of `./dev bench qdisc-costs`. Values without [`QdiscCost::measured_here`] are
        /// estimates from similar qdiscs, because the machine's kernel lacks the qdisc.
        #[must_use]
        pub fn epyc_vm() -> Self {
            // The benchmark measures enqueue and dequeue together. Each gets half of the result.
            let cost = |both: u64, measured_here| QdiscCost {
                enqueue: both * NANOSECOND / 2,
                dequeue: both * NANOSECOND / 2,
                // With htb, the costs of 1 to 96 classes differ by less than the spread.
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

        /// Returns the cost of a segment on a path through these qdiscs: enqueue, dequeue.
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
                // The rules `ahead` precede the root's own filters.
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

/// Costs of a server with one polling thread per queue pair, and of the server's clients.
pub mod queue_pairs {
    use super::COPIED_BYTE;
    use crate::time::{MICROSECOND, NANOSECOND, Span};

    /// Payload of the echo benchmark in bytes per direction. The costs of a queue pair derive from this
    /// benchmark.
    const ECHO: u64 = 1024;
    /// Mean payload of a memcached transaction in bytes, both directions together, with values of 1024
    /// B and 10 % sets. A test of the message lengths checks this value.
    pub(crate) const MEMCACHED_1024: u64 = 1190;

    /// Processor time, and latency of the line. `docs/explanation/simulator.md` has the sources.
    ///
    /// The work per message has a fixed part and a part per byte. If an experiment gives only the sum,
    /// the fixed part is the remainder.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReceiveCosts {
        /// Time of a queue pair's thread for a request, without its bytes: from the ring to the
        /// application.
        ///
        /// This is half of the thread's time for a transaction. Dragonet (TRIOS 2015), section 4.2, has
        /// 20 echo clients, two on each of 10 queues. Their median is 46.3 k transactions/s. A queue
        /// therefore serves 92.6 k/s, 10.8 µs each, with 1024 B in each direction.
        pub receive: Span,
        /// Time of the same thread for the response, from the application to the ring. This is the
        /// other half of the thread's time.
        pub transmit: Span,
        /// Time of an echo server for a request. Assumption: one system call, on a core that is never
        /// the bottleneck.
        pub echo: Span,
        /// Time of memcached for a request. Assumption: parsing and one lookup, on a core that is never
        /// the bottleneck.
        pub memcached: Span,
        /// Time of a client's thread for a transaction, without its bytes: the thread reads a response,
        /// then creates and sends the next request.
        ///
        /// Calibrated with Dragonet, section 4.3. The largest throughput of any client is 65.6 k
        /// transactions/s (15.24 µs each) with values of 1024 B. The client's latency shows that the
        /// server does not spend this time.
        pub client: Span,
        /// Time per byte of payload for any thread that handles a message: one copy, as in
        /// [`super::sender::Costs::byte`]. The NICs compute the checksums.
        pub byte: Span,
        /// Latency from a NIC to the memory of the other host, without the transmission time. Equals
        /// the latency of the transmit simulation ([`crate::parameters::Parameters::line_latency`]).
        pub line_latency: Span,
    }

    impl ReceiveCosts {
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
