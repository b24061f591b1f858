//! The application of the receiver: it reads, and then works on the data.

use super::{Event, PIECE, Simulation};
use crate::time::{MICROSECOND, SECOND, Span, Time};
use crate::transfers::machine::{Shares, span_of};
use crate::transfers::socket::REQUEST;

/// Longest piece of an application's work without a softirq in between.
const WORK_PIECE: Span = 10 * MICROSECOND;
const MIB: u64 = 1 << 20;

impl Simulation {
    pub(super) fn begin_read(&mut self, core: u32, number: u32) -> Option<Time> {
        let now = self.engine.now;
        let flow = &mut self.flows[number as usize];
        let host = &mut self.hardware[flow.receiving_host as usize];
        let cycles = &host.machine.cycles;
        let (read_packet, read_buffer, buffer, switch) =
            (cycles.read_packet, cycles.read_buffer, cycles.buffer, cycles.switch);
        let hz = self.cores[core as usize].hz;
        let mut sum = 0.0;
        if std::mem::take(&mut flow.is_woken) {
            sum += self.cores[core as usize].charge(&switch, 1.0);
        }
        let flow = &mut self.flows[number as usize];
        if !flow.socket.owned && flow.work > 0 {
            flow.work_piece = flow.work.min(WORK_PIECE);
            let cycles = flow.work_piece as f64 / SECOND as f64 * hz;
            sum += self.cores[core as usize].charge(&Shares { other: cycles, ..Shares::default() }, 1.0);
            return Some(now + span_of(sum, hz));
        }
        if flow.socket.owned && (flow.socket.wanted == 0 || flow.socket.readable_bytes() == 0) {
            // The read is over: the application processes the backlog.
            flow.releasing = flow.socket.take_backlog();
            let count = flow.releasing.len() as f64;
            sum += self.cores[core as usize].charge(&buffer, count);
            return Some(now + span_of(sum, hz));
        }
        if !flow.socket.owned {
            flow.socket.owned = true;
            flow.socket.wanted = REQUEST;
        }
        let chunk = flow.socket.chunk(PIECE);
        flow.chunk = Some(chunk);
        let queue_core = self.queues[flow.queue as usize].core;
        let machine = &host.machine;
        let from = machine.node_of(queue_core % machine.cores());
        let to = machine.node_of(core % machine.cores());
        let ago = host.written[from as usize].saturating_sub(chunk.written_before);
        let copy = machine.copy;
        let per_byte = if from != to {
            copy.remote
        } else if from == machine.nic_node {
            // Each cache line that the NIC writes replaces a random line in the NIC's part of the cache.
            let cached = (-(ago as f64) / machine.ddio_bytes as f64).exp();
            copy.local + (copy.cached - copy.local) * cached
        } else {
            copy.local
        };
        let bytes = f64::from(chunk.bytes);
        let core = &mut self.cores[core as usize];
        sum += core.charge(&Shares { copy: per_byte * bytes, ..Shares::default() }, 1.0);
        sum += core.charge(&read_packet, chunk.packets.into());
        sum += core.charge(&read_buffer, chunk.buffers.into());
        let mut end = now + span_of(sum, hz);
        if from != to {
            end = end.max(Time(host.cross(now.0, from, to, bytes)));
        }
        Some(end)
    }

    pub(super) fn end_read(&mut self, core: u32, number: u32) {
        let now = self.engine.now;
        let flow = &mut self.flows[number as usize];
        if flow.work_piece > 0 {
            flow.work -= std::mem::take(&mut flow.work_piece);
            self.sleep_if_idle(number);
            return;
        }
        if let Some(chunk) = flow.chunk.take() {
            flow.work += u64::from(chunk.bytes) * self.settings.reader_work / MIB;
            let rtt = flow.sender.smoothed_rtt();
            flow.socket.read(now, chunk, rtt);
            if now >= self.begin
                && let Some(bin) =
                    self.bins[number as usize].get_mut((now.since(self.begin) / self.bin) as usize)
            {
                *bin += u64::from(chunk.bytes);
            }
            if self.settings.reader_stall > 0 && !std::mem::replace(&mut flow.has_stalled, true) {
                let (core, process) = flow.reader;
                self.cores[core as usize].processes[process].is_ready = false;
                self.engine.plan(Event::Awake(number), now + self.settings.reader_stall);
                return;
            }
            // If the backlog has buffers, the release of the socket is a separate item.
            let is_over = flow.socket.wanted == 0 || flow.socket.readable_bytes() == 0;
            if !is_over || flow.socket.backlog_len() > 0 {
                return;
            }
        } else {
            for buffer in std::mem::take(&mut flow.releasing) {
                self.receive(buffer, core);
            }
            if self.flows[number as usize].socket.backlog_len() > 0 {
                return;
            }
        }
        let flow = &mut self.flows[number as usize];
        flow.socket.owned = false;
        flow.socket.wanted = 0;
        flow.has_stalled = false;
        let is_due = flow.socket.is_update_due(self.settings.mss);
        self.sleep_if_idle(number);
        if is_due {
            self.acknowledge(number);
        }
    }

    /// Lets the reader sleep if it has neither data nor work.
    fn sleep_if_idle(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        if flow.socket.readable_bytes() == 0 && flow.work == 0 {
            flow.socket.sleeping = true;
            let (core, process) = flow.reader;
            self.cores[core as usize].processes[process].is_ready = false;
        }
    }
}
