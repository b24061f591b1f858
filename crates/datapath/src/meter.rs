//! Counts bytes and packets per flow and time bin.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use libbpf_rs::Object;

use crate::error::DatapathError;
use crate::mapped::Mapped;
use crate::object::{self, Hook, Order};
use crate::queue_select::Tuple;
use crate::raw;
use crate::statistics::RunTime;

const OBJECT: &str = "meter";
const PROBED_OBJECT: &str = "meter_probed";
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/meter.bpf.o"));
static PROBED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/meter_probed.bpf.o"));
/// Maximum number of bins of all flows together: 1 GiB of memory.
const MAX_BINS: u64 = 1 << 27;

/// Value for a socket that has no recorded transmit queue (`NO_QUEUE_MAPPING`, include/net/sock.h).
pub const NO_QUEUE: u32 = 0xffff;

#[derive(Clone, Copy, Debug)]
pub struct MeterOptions {
    /// Maximum number of flows that are counted.
    pub flows: u32,
    /// Number of bins per flow.
    pub bins: u32,
    /// Length of a bin, ns. At most 300 ms, so that the counter of a 100 Gbit/s flow does not overflow.
    pub bin_ns: u64,
}

#[derive(Clone, Debug)]
pub struct FlowSample {
    pub tuple: Tuple,
    /// First packet, `CLOCK_MONOTONIC`, ns.
    pub first_ns: u64,
    /// Last packet, `CLOCK_MONOTONIC`, ns.
    pub last_ns: u64,
    /// Bytes on the wire since the meter was attached.
    pub bytes: u64,
    /// Packets on the wire since the meter was attached.
    pub packets: u64,
    /// TCP or UDP payload since the meter was attached.
    pub payload_bytes: u64,
    /// Data packets that arrived after a packet with a higher sequence number.
    pub out_of_order: u64,
    /// On ingress: `skb->queue_mapping` of the last packet. Behind a veth, this is the transmit queue of the
    /// sender's device. On egress: the last transmit queue of the flow's socket, or [`NO_QUEUE`].
    pub queue_mapping: u32,
    row: u32,
}

/// The values of a row that change from sample to sample.
#[derive(Clone, Copy, Debug)]
pub struct RowCounts {
    /// Bytes on the wire since the meter was attached.
    pub bytes: u64,
    /// TCP or UDP payload since the meter was attached.
    pub payload_bytes: u64,
    /// See [`FlowSample::queue_mapping`].
    pub queue_mapping: u32,
}

/// Counts the packets of an interface. Dropping this value detaches the program from tcx.
pub struct Meter {
    meter: Mapped<raw::ek_meter>,
    rows: Mapped<raw::ek_metered_flow>,
    names: Mapped<raw::ek_tuple>,
    bins: Mapped<raw::ek_bin>,
    options: MeterOptions,
    link: Option<OwnedFd>,
    program: &'static str,
    /// Listening socket that is open until this value is dropped. A session that finds an unknown
    /// program looks for this socket.
    name: UnixListener,
    object: Object,
}

/// Returns the name of the abstract socket (unix(7)) that marks a program as a meter, which changes no
/// packet. The name of the program itself can only be read with `CAP_SYS_ADMIN`.
#[must_use]
pub fn meter_socket(program: u32) -> String {
    format!("evenkeel/meter/{program}")
}

fn announce(program: u32) -> Result<UnixListener, DatapathError> {
    SocketAddr::from_abstract_name(meter_socket(program))
        .and_then(|address| UnixListener::bind_addr(&address))
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .map_err(|source| DatapathError::System {
            action: "announce the meter by an abstract socket",
            source,
        })
}

impl Meter {
    /// Loads the meter, and attaches it at ingress of an interface in the current network namespace, in front
    /// of the other programs.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses, or the meter would need too much memory.
    pub fn attach(options: &MeterOptions, ifindex: i32) -> Result<Self, DatapathError> {
        Self::load(options, OBJECT, BYTES, Hook::Ingress)?.attached(ifindex, Hook::Ingress)
    }

    /// Attaches the meter at egress, before the device's queues. It counts a GSO packet as the packets on the
    /// wire into which the packet will be segmented.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses, or the meter would need too much memory.
    pub fn attach_egress(options: &MeterOptions, ifindex: i32) -> Result<Self, DatapathError> {
        Self::load(options, OBJECT, BYTES, Hook::Egress)?.attached(ifindex, Hook::Egress)
    }

    /// Loads the meter for a filter at egress of a clsact qdisc, which the caller attaches
    /// ([`Self::program`]).
    ///
    /// # Errors
    /// Returns an error if the kernel refuses, or the meter would need too much memory.
    pub fn load_for_filter(options: &MeterOptions) -> Result<Self, DatapathError> {
        Self::load(options, PROBED_OBJECT, PROBED, Hook::Egress)
    }

    fn attached(mut self, ifindex: i32, hook: Hook) -> Result<Self, DatapathError> {
        self.link = Some(object::attach_tcx(&self.object, self.program, hook, Order::First, ifindex)?);
        Ok(self)
    }

    /// Detaches the meter from tcx. Its counts stay readable.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Returns the program, for a filter.
    pub fn program(&self) -> Result<BorrowedFd<'_>, DatapathError> {
        object::program_fd(&self.object, self.program)
    }

    fn load(
        options: &MeterOptions,
        object: &'static str,
        bytes: &[u8],
        hook: Hook,
    ) -> Result<Self, DatapathError> {
        let cells = u64::from(options.flows) * u64::from(options.bins);
        if cells == 0 || cells > MAX_BINS || !(1..=300_000_000).contains(&options.bin_ns) {
            return Err(DatapathError::Limit(format!(
                "the meter cannot hold {} flows with {} bins of {} ns each: it has {MAX_BINS} bins for all flows, \
                 and a bin lasts at most 300 ms; measure for a shorter time, or fewer flows",
                options.flows, options.bins, options.bin_ns
            )));
        }
        let mut opened = object::open(object, bytes)?;
        let program = match hook {
            Hook::Ingress => "count",
            Hook::Egress => "count_sent",
        };
        for mut other in opened.progs_mut() {
            let wanted = other.name() == program;
            other.set_autoload(wanted);
        }
        for mut map in opened.maps_mut() {
            let entries = match map.name().to_str() {
                Some("metered" | "rows" | "names") => options.flows,
                Some("bins") => cells as u32,
                _ => continue,
            };
            map.set_max_entries(entries)
                .map_err(DatapathError::system("set the sizes of the meter's BPF maps"))?;
        }
        let object = object::load(object, opened)?;
        let meter: Mapped<raw::ek_meter> = Mapped::new(object::map(&object, ".data.meter")?.as_fd(), 1)?;
        let flows = options.flows as usize;
        let rows = Mapped::new(object::map(&object, "rows")?.as_fd(), flows)?;
        let names = Mapped::new(object::map(&object, "names")?.as_fd(), flows)?;
        let bins = Mapped::new(object::map(&object, "bins")?.as_fd(), cells as usize)?;
        let settings = raw::ek_meter {
            bin_ns: options.bin_ns,
            bins: options.bins,
            flows: options.flows,
            ..raw::ek_meter::default()
        };
        // SAFETY: a pointer into the mapping, which is as large as the structure.
        unsafe { std::ptr::write_volatile(meter.pointer(0), settings) };
        let name = announce(object::program_id(&object, program)?)?;
        Ok(Self { meter, rows, names, bins, options: *options, link: None, program, name, object })
    }

    pub fn program_id(&self) -> Result<u32, DatapathError> {
        object::program_id(&self.object, self.program)
    }

    /// Returns the run time of the program; 0 unless the kernel measures it
    /// (`kernel.bpf_stats_enabled`).
    pub fn run_time(&self) -> Result<RunTime, DatapathError> {
        object::run_time(&self.object, self.program)
    }

    /// Accepts and closes pending connections to the socket that marks the meter. A session does not
    /// trust a socket whose queue is full. Call this function regularly if the meter stays attached for
    /// days.
    pub fn answer(&self) {
        const MOST: usize = 64;
        let _ = self.name.incoming().take(MOST).take_while(Result::is_ok).count();
    }

    /// Starts the bins at a time of `CLOCK_MONOTONIC`, which may be in the future.
    pub fn start(&self, at_ns: u64) {
        let meter = self.meter.pointer(0);
        // SAFETY: a pointer into the mapping.
        unsafe { std::ptr::write_volatile(&raw mut (*meter).start_ns, at_ns) };
    }

    /// Returns the number of packets that were not counted, because no row was free for their flow. If it is
    /// not 0, the figures are incomplete.
    #[must_use]
    pub fn overflow(&self) -> u64 {
        self.meter.read(0).overflow
    }

    /// Returns every flow, in the order in which the flows began.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowSample> {
        let flow = |row: usize| {
            let (flow, tuple) = (self.rows.read(row), self.tuple(row)?);
            (flow.packets > 0).then_some(FlowSample {
                tuple,
                first_ns: flow.first_ns,
                last_ns: flow.last_ns,
                bytes: flow.bytes,
                packets: flow.packets,
                payload_bytes: flow.payload_bytes,
                out_of_order: flow.out_of_order,
                queue_mapping: flow.queue_mapping,
                row: row as u32,
            })
        };
        (0..self.row_count()).filter_map(flow).collect()
    }

    /// Returns the number of rows in use, with or without packets. A flow keeps its row.
    #[must_use]
    pub fn row_count(&self) -> usize {
        (self.meter.read(0).next_index as usize).min(self.rows.length())
    }

    /// Returns the flow of a row; `None` if the program has not written it yet.
    #[must_use]
    pub fn tuple(&self, row: usize) -> Option<Tuple> {
        let is_named = self.rows.read(row).is_named != 0;
        // The program writes the tuple before it marks the row.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        is_named.then(|| Tuple::from_raw(&self.names.read(row)))
    }

    #[must_use]
    pub fn counts(&self, row: usize) -> RowCounts {
        let flow = self.rows.read(row);
        RowCounts { bytes: flow.bytes, payload_bytes: flow.payload_bytes, queue_mapping: flow.queue_mapping }
    }

    /// Returns a flow's bytes and packets on the wire, per bin.
    #[must_use]
    pub fn bins(&self, flow: &FlowSample) -> (Vec<u64>, Vec<u64>) {
        if flow.row >= self.options.flows {
            return (Vec::new(), Vec::new());
        }
        let first = flow.row as usize * self.options.bins as usize;
        (first..first + self.options.bins as usize)
            .map(|index| self.bins.read(index))
            .map(|bin| (u64::from(bin.bytes), u64::from(bin.packets)))
            .unzip()
    }
}
