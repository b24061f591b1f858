//! What each flow has been served, and bringing a flow to change its queue.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use libbpf_rs::Object;

use crate::error::DatapathError;
use crate::mapped::Mapped;
use crate::monotonic_ns;
use crate::object::{self, Hook};
use crate::raw;

const HOLD_BACK: &str = "hold_back";
const READ_SERVICE: &str = "read_service";
/// What is loaded for this only.
pub(crate) const PROGRAMS: [&str; 2] = [HOLD_BACK, READ_SERVICE];

/// Somebody looks at the flows for microseconds at a time.
const TRIES_TO_READ: usize = 3;

/// A flow with something outstanding, and what it has been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowService {
    /// Its socket's cookie, unique since boot; made from its addresses if it has no socket here.
    pub cookie: u64,
    /// The queue that its socket is on, as the kernel has it on record (`sk_tx_queue_mapping`).
    pub queue: u32,
    /// Its weight.
    pub weight: u32,
    /// Bytes that its peer has acknowledged since the connection began (`bytes_acked` of `struct tcp_sock`, RFC 4898
    /// `tcpEStatsAppHCThruOctetsAcked`); none for what is not TCP or has no socket here.
    pub acknowledged_bytes: Option<u64>,
    /// Its socket holds data that has not been sent. Always true where that is not known.
    pub backlogged: bool,
    /// It can be brought to change its queue.
    pub movable: bool,
    socket: u64,
    slot: u32,
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// None is under way.
    None,
    /// The flow is held back, or about to be.
    Waiting,
    /// A segment has taken the wanted queue, so long after the flow was first held back, ns; 0 if that was not needed.
    Done {
        /// Time for which it was held back, ns.
        held_ns: u64,
    },
    /// The time is over, and the flow is where it was.
    Expired,
}

/// Brings flows of one device to change their queue, one at a time. Dropping it lets go of a flow that it holds, and
/// so does the end of the process.
#[derive(Debug)]
pub struct FlowMover {
    device: Mapped<raw::ek_device>,
    details: Mapped<raw::ek_flow_detail>,
    services: Mapped<raw::ek_service>,
    read: OwnedFd,
    _link: OwnedFd,
}

impl FlowMover {
    pub(crate) fn attach(object: &Object, ifindex: i32) -> Result<Self, DatapathError> {
        Ok(Self {
            device: Mapped::new(object::map(object, ".data.device")?.as_fd(), 1)?,
            details: Mapped::new(object::map(object, "details")?.as_fd(), raw::EK_SLOTS as usize)?,
            services: Mapped::new(object::map(object, "services")?.as_fd(), raw::EK_MAX_SERVICES as usize)?,
            read: object::program_descriptor(object, READ_SERVICE)?,
            _link: object::attach_tcx(object, HOLD_BACK, Hook::Ingress, ifindex)?,
        })
    }

    /// The flows that have something outstanding now; none if they are 4096 or more, or somebody else kept looking at
    /// them.
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
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

    /// Begins to move a flow, as [`Self::flows`] told of it: it is held back until it may change its queue, for `limit_ns`
    /// at most. A move that is under way is given up.
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
        // SAFETY: pointers into the mapping. The state goes last: until then nobody reads the rest.
        unsafe { std::ptr::write_volatile(&raw mut (*device).flow_move, request) };
        self.set_state(raw::ek_move_state::EK_MOVE_WANTED);
    }

    /// How far the move has come.
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

    /// Lets go of the flow, wherever it is.
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
