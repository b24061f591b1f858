//! Reads the service that each flow has received, and moves a flow to another queue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use libbpf_rs::Object;

use crate::error::DatapathError;
use crate::hook::HookKind;
use crate::mapped::Mapped;
use crate::monotonic_ns;
use crate::object::{self, Hook, Order};
use crate::raw;

const HOLD_BACK: &str = "hold_back";
const READ_SERVICE: &str = "read_service";
/// Programs that are loaded only with `SelectOptions::movable`.
pub(crate) const PROGRAMS: [&str; 2] = [HOLD_BACK, READ_SERVICE];

/// Number of attempts if another scan is running, which takes microseconds.
const TRIES_TO_READ: usize = 3;

/// A flow with data outstanding, and the service that it has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowService {
    /// The socket's cookie, unique since boot. For a flow without a socket in this network namespace,
    /// the cookie is derived from the addresses.
    pub cookie: u64,
    /// The queue that the kernel has recorded for the TCP socket (`sk_tx_queue_mapping`). Without such a
    /// record, the queue to which the flow is charged.
    pub queue: u32,
    pub weight: u32,
    /// Bytes that the peer has acknowledged since the start of the connection (`bytes_acked` of `struct
    /// tcp_sock`, RFC 4898 `tcpEStatsAppHCThruOctetsAcked`). `None` unless the flow is TCP and has a socket
    /// in this network namespace that could be read.
    pub acknowledged_bytes: Option<u64>,
    /// Whether the socket has unsent data; true if unknown.
    pub backlogged: bool,
    pub movable: bool,
    socket: u64,
    slot: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    None,
    /// The program holds the flow back, or will do so from the next acknowledgement.
    Waiting,
    /// A segment has used the requested queue.
    Done {
        /// Time since the flow was first held back, ns; 0 if it was not held back.
        held_ns: u64,
    },
    /// The time limit has passed, and the flow is on its old queue. It is no longer held back, but may still
    /// move until [`FlowMover::end`].
    Expired,
}

/// Moves flows of one device to other queues, one flow at a time. If this value is dropped or the
/// process ends, a flow that is held back is released.
#[derive(Debug)]
pub struct FlowMover {
    device: Mapped<raw::ek_device>,
    details: Mapped<raw::ek_flow_detail>,
    services: Mapped<raw::ek_service>,
    read: OwnedFd,
    _link: Option<OwnedFd>,
    program: u32,
    descriptor: OwnedFd,
}

impl FlowMover {
    pub(crate) fn attach(object: &Object, hook: HookKind, ifindex: i32) -> Result<Self, DatapathError> {
        Ok(Self {
            device: Mapped::new(object::map(object, ".data.device")?.as_fd(), 1)?,
            details: Mapped::new(object::map(object, "details")?.as_fd(), raw::EK_SLOTS as usize)?,
            services: Mapped::new(object::map(object, "services")?.as_fd(), raw::EK_MAX_SERVICES as usize)?,
            read: object::program_descriptor(object, READ_SERVICE)?,
            _link: match hook {
                HookKind::Tcx => {
                    Some(object::attach_tcx(object, HOLD_BACK, Hook::Ingress, Order::Last, ifindex)?)
                }
                HookKind::Clsact => None,
            },
            program: object::program_id(object, HOLD_BACK)?,
            descriptor: object::program_descriptor(object, HOLD_BACK)?,
        })
    }

    #[must_use]
    pub fn program_id(&self) -> u32 {
        self.program
    }

    /// Returns the program that holds flows back, for a filter at ingress.
    #[must_use]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns the flows with data outstanding. Returns `None` if there are 4096 or more flows, or if
    /// other scans hold the lock.
    pub fn flows(&self) -> Result<Option<Vec<FlowService>>, DatapathError> {
        for _ in 0..TRIES_TO_READ {
            if object::run_descriptor(self.read.as_fd())? == 0 {
                let device = self.device.pointer(0);
                // SAFETY: a pointer into the mapping, which is as large as the structure.
                let count = unsafe { std::ptr::read_volatile(&raw const (*device).services) } as usize;
                if count >= self.services.length() {
                    return Ok(None);
                }
                let flows = (0..count).map(|index| self.services.read(index));
                return Ok(Some(flows.map(FlowService::from_raw).collect()));
            }
        }
        Ok(None)
    }

    /// Starts to move a flow that [`Self::flows`] has returned. The flow is held back until it may change its
    /// queue, for at most `limit_ns`. Cancels a move in progress.
    pub fn begin(&self, flow: &FlowService, queue: u32, limit_ns: u64) {
        self.end();
        let own = self.details.read(flow.slot as usize).tuple;
        let request = raw::ek_move {
            cookie: flow.cookie,
            socket: flow.socket,
            deadline_ns: monotonic_ns().saturating_add(limit_ns),
            reply: raw::ek_tuple {
                source: own.destination,
                destination: own.source,
                source_port: own.destination_port,
                destination_port: own.source_port,
                ..own
            },
            queue,
            state: raw::ek_move_state::EK_MOVE_NONE.0,
            ..raw::ek_move::default()
        };
        let device = self.device.pointer(0);
        // SAFETY: pointers into the mapping. The state is written last: until then the program ignores the
        // other fields.
        unsafe { std::ptr::write_volatile(&raw mut (*device).flow_move, request) };
        self.set_state(raw::ek_move_state::EK_MOVE_WANTED);
    }

    /// Returns the progress of the last move.
    #[must_use]
    pub fn state(&self) -> MoveState {
        let device = self.device.pointer(0);
        // SAFETY: a pointer into the mapping, which is as large as the structure.
        let found = unsafe { std::ptr::read_volatile(&raw const (*device).flow_move) };
        match raw::ek_move_state(found.state) {
            raw::ek_move_state::EK_MOVE_WANTED if monotonic_ns() > found.deadline_ns => MoveState::Expired,
            raw::ek_move_state::EK_MOVE_WANTED => MoveState::Waiting,
            raw::ek_move_state::EK_MOVE_DONE => MoveState::Done {
                held_ns: if found.first_ns == 0 { 0 } else { found.done_ns.saturating_sub(found.first_ns) },
            },
            _ => MoveState::None,
        }
    }

    /// Ends a move in any state, and releases the flow.
    pub fn end(&self) {
        self.set_state(raw::ek_move_state::EK_MOVE_NONE);
    }

    fn set_state(&self, state: raw::ek_move_state) {
        let device = self.device.pointer(0);
        fence(Ordering::SeqCst);
        // SAFETY: a pointer into the mapping, which is as large as the structure.
        unsafe { std::ptr::write_volatile(&raw mut (*device).flow_move.state, state.0) };
        fence(Ordering::SeqCst);
    }
}

impl Drop for FlowMover {
    fn drop(&mut self) {
        self.end();
    }
}

impl FlowService {
    fn from_raw(service: raw::ek_service) -> Self {
        let has = |flag: raw::ek_service_flag| service.flags & flag.0 != 0;
        Self {
            cookie: service.cookie,
            queue: service.queue,
            weight: service.weight,
            acknowledged_bytes: has(raw::ek_service_flag::EK_SERVICE_KNOWN)
                .then_some(service.acknowledged_bytes),
            backlogged: has(raw::ek_service_flag::EK_SERVICE_BACKLOGGED),
            movable: has(raw::ek_service_flag::EK_SERVICE_MOVABLE),
            socket: service.socket,
            slot: service.slot,
        }
    }
}
