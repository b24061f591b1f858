//! The rows of the panes.

use crate::sample::{Flow, Interval, Loss, Processor, Queue};
use crate::view::figures::{
    bytes, each_second, index, microseconds, per_second, percent, quantity, ranges, rate, unknown,
};
use crate::view::table::{Cell, Column, Key, Rows, number, text};

/// A queue is marked if it has at least this many busy flows more than the emptiest queue. With a smaller
/// difference, moving a flow would not balance the queues better.
const UNEQUAL: u32 = 2;
/// A flow is marked if its rate is below this part of its fair share.
const STARVED: f64 = 0.5;
/// A processor is marked if its busy share is at least this value.
pub const OVERLOADED: f64 = 0.9;

fn optional<T>(value: Option<T>, words: impl Fn(T) -> String) -> String {
    value.map_or_else(unknown, words)
}

fn growth(interval: Option<Interval>, seconds: f64) -> Option<f64> {
    interval.and_then(|interval| per_second(interval, seconds))
}

fn lost(interval: Option<Interval>) -> bool {
    interval.is_some_and(|interval| interval.delta > 0)
}

pub struct QueueRows<'a> {
    pub queues: &'a [Queue],
    pub seconds: f64,
}

static QUEUE_COLUMNS: [Column; 9] = [
    number("queue", 5, 0),
    number("busy flows", 0, 0),
    number("rate", 10, 0),
    number("packets/s", 9, 3),
    number("waiting", 8, 0),
    number("drops/s", 0, 0),
    number("drops", 0, 4),
    text("CPUs", 4, 1),
    number("node", 0, 2),
];

impl Rows for QueueRows<'_> {
    fn columns(&self) -> &'static [Column] {
        &QUEUE_COLUMNS
    }

    fn count(&self) -> usize {
        self.queues.len()
    }

    fn key(&self, column: usize, row: usize) -> Key<'_> {
        let queue = &self.queues[row];
        match column {
            0 => Key::count(Some(queue.index)),
            1 => Key::count(queue.busy_flows),
            2 => Key::number(growth(queue.bytes, self.seconds)),
            3 => Key::number(growth(queue.packets, self.seconds)),
            4 => Key::count(queue.backlog_bytes),
            5 => Key::number(growth(queue.drops, self.seconds)),
            6 => Key::count(queue.drops.map(|drops| drops.total)),
            7 => Key::count(queue.interrupt_processors.first().copied()),
            _ => Key::count(queue.node),
        }
    }

    fn cell(&self, column: usize, row: usize) -> Cell {
        let (queue, seconds) = (&self.queues[row], self.seconds);
        match column {
            0 => Cell::plain(queue.index.to_string()),
            1 => {
                let least = || self.queues.iter().filter_map(|queue| queue.busy_flows).min().unwrap_or(0);
                let is_full =
                    queue.busy_flows.is_some_and(|flows| flows >= UNEQUAL && flows - least() >= UNEQUAL);
                Cell::alert_if(is_full, optional(queue.busy_flows, |flows| quantity(flows.into())))
            }
            2 => Cell::plain(optional(queue.bytes, |bytes| rate(bytes, seconds))),
            3 => Cell::plain(optional(queue.packets, |packets| each_second(packets, seconds))),
            4 => Cell::plain(optional(queue.backlog_bytes, bytes)),
            5 => {
                let words = optional(queue.drops, |drops| each_second(drops, seconds));
                Cell::alert_if(lost(queue.drops), words)
            }
            6 => Cell::plain(optional(queue.drops, |drops| quantity(drops.total as f64))),
            7 => {
                let processors = ranges(&queue.interrupt_processors);
                Cell::plain(if processors.is_empty() { unknown() } else { processors })
            }
            _ => Cell::plain(optional(queue.node, |node| node.to_string())),
        }
    }

    fn texts(&self, _: usize) -> Vec<&str> {
        Vec::new()
    }

    fn is_match(&self, row: usize, needle: &str) -> bool {
        let queue = &self.queues[row];
        queue.index.to_string() == needle || ranges(&queue.interrupt_processors).contains(needle)
    }

    fn noun(&self) -> &'static str {
        "queue"
    }
}

pub struct FlowRows<'a> {
    pub flows: &'a [Flow],
    pub seconds: f64,
}

static FLOW_COLUMNS: [Column; 11] = [
    text("process", 8, 0),
    text("destination", 13, 0),
    number("rate", 10, 0),
    number("share", 5, 0),
    number("queue", 0, 0),
    number("RTT", 7, 1),
    text("CC", 0, 2),
    number("retr/s", 0, 3),
    number("cwnd", 0, 5),
    text("source", 13, 4),
    number("process id", 0, 6),
];

impl FlowRows<'_> {
    fn retransmitted(&self, row: usize) -> Option<Interval> {
        self.flows[row].socket.as_ref().map(|socket| socket.retransmitted)
    }
}

impl Rows for FlowRows<'_> {
    fn columns(&self) -> &'static [Column] {
        &FLOW_COLUMNS
    }

    fn count(&self) -> usize {
        self.flows.len()
    }

    fn key(&self, column: usize, row: usize) -> Key<'_> {
        let flow = &self.flows[row];
        let socket = flow.socket.as_ref();
        match column {
            0 => Key::text(socket.and_then(|socket| socket.process.as_deref())),
            1 => Key::Text(&flow.destination),
            2 => Key::number(per_second(flow.bytes, self.seconds)),
            3 => Key::number(flow.of_fair_share),
            4 => Key::count(flow.queue),
            5 => Key::count(socket.map(|socket| socket.rtt_us)),
            6 => Key::text(socket.and_then(|socket| socket.congestion.as_deref())),
            7 => Key::number(growth(self.retransmitted(row), self.seconds)),
            8 => Key::count(socket.map(|socket| socket.cwnd)),
            9 => Key::Text(&flow.source),
            _ => Key::count(socket.and_then(|socket| socket.process_id)),
        }
    }

    fn cell(&self, column: usize, row: usize) -> Cell {
        let flow = &self.flows[row];
        let socket = flow.socket.as_ref();
        match column {
            // For a flow without a local TCP socket, such as UDP, show at least the protocol.
            0 => match socket {
                Some(socket) => Cell::foreign(socket.process.as_deref()),
                None => Cell::foreign(Some(&format!("({})", flow.protocol))),
            },
            1 => Cell::foreign(Some(&flow.destination)),
            2 => Cell::plain(rate(flow.bytes, self.seconds)),
            3 => {
                let is_starved = flow.of_fair_share.is_some_and(|share| share < STARVED);
                Cell::alert_if(is_starved, optional(flow.of_fair_share, |share| index(share) + "×"))
            }
            4 => Cell::plain(optional(flow.queue, |queue| queue.to_string())),
            5 => Cell::plain(optional(socket, |socket| microseconds(socket.rtt_us.into()))),
            6 => Cell::foreign(socket.and_then(|socket| socket.congestion.as_deref())),
            7 => {
                let interval = self.retransmitted(row);
                Cell::alert_if(
                    lost(interval),
                    optional(interval, |interval| each_second(interval, self.seconds)),
                )
            }
            8 => Cell::plain(optional(socket, |socket| quantity(socket.cwnd.into()))),
            9 => Cell::foreign(Some(&flow.source)),
            _ => Cell::plain(optional(socket.and_then(|socket| socket.process_id), |id| id.to_string())),
        }
    }

    fn texts(&self, row: usize) -> Vec<&str> {
        let flow = &self.flows[row];
        let socket = flow.socket.as_ref();
        let of_socket = [
            socket.and_then(|socket| socket.process.as_deref()),
            socket.and_then(|socket| socket.congestion.as_deref()),
        ];
        let own = [flow.protocol.as_str(), flow.source.as_str(), flow.destination.as_str()];
        own.into_iter().chain(of_socket.into_iter().flatten()).collect()
    }

    fn noun(&self) -> &'static str {
        "flow"
    }
}

pub struct ProcessorRows<'a> {
    pub processors: &'a [Processor],
    pub seconds: f64,
}

static PROCESSOR_COLUMNS: [Column; 10] = [
    number("CPU", 4, 0),
    number("busy", 5, 0),
    number("user", 5, 2),
    number("system", 6, 2),
    number("softirq", 7, 0),
    number("irqs/s", 7, 1),
    number("packets/s", 9, 0),
    number("squeezed/s", 0, 1),
    number("dropped/s", 0, 0),
    number("node", 0, 3),
];

/// Returns the share of time in which a processor was not idle; `None` if the shares are unknown, as in the
/// first sample.
pub fn busy(processor: &Processor) -> Option<f64> {
    let Processor { user, system, softirq, idle, .. } = processor;
    ([user, system, softirq, idle].iter().any(|share| **share != 0.0)).then_some(1.0 - idle)
}

impl Rows for ProcessorRows<'_> {
    fn columns(&self) -> &'static [Column] {
        &PROCESSOR_COLUMNS
    }

    fn count(&self) -> usize {
        self.processors.len()
    }

    fn key(&self, column: usize, row: usize) -> Key<'_> {
        let processor = &self.processors[row];
        let growth = |interval| Key::number(growth(interval, self.seconds));
        match column {
            0 => Key::count(Some(processor.index)),
            1 => Key::number(busy(processor)),
            2 => Key::number(Some(processor.user)),
            3 => Key::number(Some(processor.system)),
            4 => Key::number(Some(processor.softirq)),
            5 => growth(Some(processor.interrupts)),
            6 => growth(processor.packets),
            7 => growth(processor.squeezed),
            8 => growth(processor.dropped),
            _ => Key::count(processor.node),
        }
    }

    fn cell(&self, column: usize, row: usize) -> Cell {
        let processor = &self.processors[row];
        let share = |share: f64| Cell::plain(optional(busy(processor).map(|_| share), percent));
        let growth = |interval| optional(interval, |interval| each_second(interval, self.seconds));
        match column {
            0 => Cell::plain(processor.index.to_string()),
            1 => {
                let busy = busy(processor);
                Cell::alert_if(busy.is_some_and(|busy| busy >= OVERLOADED), optional(busy, percent))
            }
            2 => share(processor.user),
            3 => share(processor.system),
            4 => share(processor.softirq),
            5 => Cell::plain(growth(Some(processor.interrupts))),
            6 => Cell::plain(growth(processor.packets)),
            7 => Cell::alert_if(lost(processor.squeezed), growth(processor.squeezed)),
            8 => Cell::alert_if(lost(processor.dropped), growth(processor.dropped)),
            _ => Cell::plain(optional(processor.node, |node| node.to_string())),
        }
    }

    fn texts(&self, _: usize) -> Vec<&str> {
        Vec::new()
    }

    fn is_match(&self, row: usize, needle: &str) -> bool {
        self.processors[row].index.to_string() == needle
    }

    fn noun(&self) -> &'static str {
        "processor"
    }
}

pub struct LossRows<'a> {
    pub losses: &'a [Loss],
    pub seconds: f64,
}

static LOSS_COLUMNS: [Column; 6] = [
    text("place", 8, 0),
    text("of", 5, 0),
    number("lost/s", 7, 0),
    number("lost", 7, 0),
    text("rule", 8, 0),
    text("counter", 7, 0),
];

impl Rows for LossRows<'_> {
    fn columns(&self) -> &'static [Column] {
        &LOSS_COLUMNS
    }

    fn count(&self) -> usize {
        self.losses.len()
    }

    fn key(&self, column: usize, row: usize) -> Key<'_> {
        let loss = &self.losses[row];
        match column {
            0 => Key::Text(&loss.place),
            1 => Key::Text(&loss.subject),
            2 => Key::number(per_second(loss.packets, self.seconds)),
            3 => Key::count(Some(loss.packets.total)),
            4 => Key::Text(&loss.rule),
            _ => Key::Text(&loss.counter),
        }
    }

    fn cell(&self, column: usize, row: usize) -> Cell {
        let loss = &self.losses[row];
        match column {
            0 => Cell::foreign(Some(&loss.place)),
            1 => Cell::foreign(Some(&loss.subject)),
            2 => Cell::alert_if(loss.packets.delta > 0, each_second(loss.packets, self.seconds)),
            3 => Cell::plain(quantity(loss.packets.total as f64)),
            4 => Cell::foreign(Some(&loss.rule)),
            _ => Cell::foreign(Some(&loss.counter)),
        }
    }

    fn texts(&self, row: usize) -> Vec<&str> {
        let Loss { place, subject, counter, rule, .. } = &self.losses[row];
        vec![place, subject, counter, rule]
    }

    fn noun(&self) -> &'static str {
        "place"
    }
}
