//! The sending hosts: acknowledgements, the writing application, segments and ports.

use super::recording::bin_at;
use super::{EVENT, Event, MOST_ACKS, PIECE, Simulation, transmission};
use crate::tcp::Blocked;
use crate::time::{Span, Time};
use crate::transfers::cores::Soft;
use crate::transfers::machine::{Shares, span_of};

impl Simulation {
    /// Returns the time between an acknowledgement and its interrupt at the sender.
    pub(super) fn ack_delay(&self) -> Span {
        self.settings.sender.as_ref().unwrap_or(&self.settings.machine).interrupt_delay
    }

    pub(super) fn begin_acks(&mut self, number: u32, flow: u32) -> Time {
        let now = self.engine.now;
        let arrived = self.flows[flow as usize].answers.iter().take_while(|answer| answer.at <= now);
        let count = arrived.take(MOST_ACKS).count() as f64;
        let core = &self.cores[number as usize];
        let cycles = &self.hardware[core.host as usize].machine.cycles;
        let (packet, acknowledgement, hz) = (cycles.packet, cycles.acknowledgement, core.hz);
        let sum = self.charge(number, &packet, count) + self.charge(number, &acknowledgement, count);
        now + span_of(sum, hz)
    }

    /// Handles at most [`MOST_ACKS`] acknowledgements of the flow `number` that have arrived. Returns the
    /// number of handled acknowledgements, and further work if more have arrived.
    pub(super) fn end_acks(&mut self, core: u32, number: u32) -> (u32, Option<Soft>) {
        let now = self.engine.now;
        let flow = &mut self.flows[number as usize];
        let mut count = 0;
        while let Some(answer) = flow.answers.front().copied().filter(|answer| answer.at <= now) {
            if count as usize >= MOST_ACKS {
                break;
            }
            flow.answers.pop_front();
            flow.sender.on_ack_with_mark(now, &answer.ack, answer.reports_mark);
            flow.sender.set_window_end(answer.window_end);
            count += 1;
            if let Some(bins) = self.tcp_bins.get_mut(number as usize)
                && let Some(bin) = bin_at(bins, now, self.begin, self.bin)
            {
                bin.record(&flow.sender);
            }
        }
        self.send(number, core);
        self.wake_writer(number);
        let delay = self.ack_delay();
        let flow = &mut self.flows[number as usize];
        match flow.answers.front().map(|answer| answer.at) {
            Some(at) if at <= now => return (count, Some(Soft::Acks(number))),
            Some(at) => {
                self.engine.plan_no_later(Event::Acks(number), at + delay);
            }
            None => {}
        }
        flow.is_raised = false;
        (count, None)
    }

    pub(super) fn acks_arrive(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        if !std::mem::replace(&mut flow.is_raised, true) {
            let core = flow.ack_core;
            let host = self.cores[core as usize].host as usize;
            let shares = self.hardware[host].machine.cycles.interrupt;
            self.add_pending(core, shares, 1.0);
            self.raise(core, Soft::Acks(number));
        }
    }

    /// Returns the limit of the send buffer in bytes: a multiple of the congestion window, but at least one
    /// write, and at most the socket's limit (`tcp_sndbuf_expand`).
    fn send_limit(&self, number: u32) -> u64 {
        let packets = self.flows[number as usize].sender.buffered_packets();
        (packets * u64::from(self.settings.mss)).max(u64::from(PIECE)).min(self.settings.send_buffer)
    }

    pub(super) fn begin_write(&mut self, core: u32, number: u32) -> Option<Time> {
        let now = self.engine.now;
        let limit = self.send_limit(number);
        let flow = &self.flows[number as usize];
        if !flow.started || flow.sender.unfinished() >= limit {
            let (core, process) = flow.writer;
            self.cores[core as usize].processes[process].is_ready = false;
            return None;
        }
        let own = &mut self.cores[core as usize];
        let machine = &self.hardware[own.host as usize].machine;
        // A program that sends the same buffer repeatedly has the buffer in its cache.
        let copy = Shares { copy: machine.copy.cached * f64::from(PIECE), ..Shares::default() };
        let call = machine.cycles.read_buffer;
        let sum = own.charge(&copy, 1.0) + own.charge(&call, 1.0);
        Some(now + span_of(sum, own.hz))
    }

    pub(super) fn end_write(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        flow.sender.write(PIECE.into());
        let core = flow.writer.0;
        self.send(number, core);
    }

    /// Wakes the writer if a third of its buffer is free (`sk_stream_write_space`).
    fn wake_writer(&mut self, number: u32) {
        let limit = self.send_limit(number);
        let flow = &self.flows[number as usize];
        let (core, process) = flow.writer;
        if flow.started
            && !self.cores[core as usize].processes[process].is_ready
            && flow.sender.unfinished() * 3 <= limit * 2
        {
            let host = self.cores[core as usize].host as usize;
            let shares = self.hardware[host].machine.cycles.switch;
            self.add_pending(core, shares, 1.0);
            self.wake((core, process));
        }
    }

    /// Passes the segments that a flow may send to the flow's port. Charges the core for the work, and plans
    /// the flow's next timer.
    pub(super) fn send(&mut self, number: u32, core: u32) {
        let now = self.engine.now;
        let mut segments = 0;
        let flow = &mut self.flows[number as usize];
        let mut next = Time::NEVER;
        let port = flow.port;
        loop {
            match flow.sender.next_segment(now) {
                Ok(segment) => {
                    segments += 1;
                    if segment.retransmit && now >= flow.event_until {
                        flow.events += 1;
                        flow.event_until = now + EVENT;
                    }
                    self.ports[port as usize].queue.push_back(segment);
                }
                Err(Blocked::Pacing(at)) => {
                    next = at;
                    break;
                }
                Err(_) => break,
            }
        }
        let at = next.min(flow.sender.deadline());
        self.engine.plan(Event::Timer(number), at);
        if segments > 0 {
            let host = self.cores[core as usize].host as usize;
            let shares = self.hardware[host].machine.cycles.segment;
            self.add_pending(core, shares, segments.into());
            self.serve_port(port);
        }
    }

    fn serve_port(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        if port.is_busy {
            return;
        }
        let Some(segment) = port.queue.front() else { return };
        port.is_busy = true;
        let took = transmission(segment, port.rate);
        self.engine.plan(Event::Departure(number), self.engine.now + took);
    }

    pub(super) fn departure(&mut self, number: u32) {
        let now = self.engine.now;
        let port = &mut self.ports[number as usize];
        port.is_busy = false;
        let Some(segment) = port.queue.pop_front() else { return };
        let rate = port.rate;
        self.serve_port(number);
        self.forward(&segment, now, rate);
        let flow = &mut self.flows[segment.flow as usize];
        if flow.sender.freed(&segment) {
            let core = flow.ack_core;
            self.send(segment.flow, core);
            self.start_core(core);
        }
    }
}
