//! One repeat: build the test bed, connect the flows, warm up, measure, empty the rings, remove the test bed.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_datapath::monotonic_ns;
use evenkeel_model::scenario::TransferKnobs;
use evenkeel_model::world::{Job, Observer, RawFlow, RawRepeat, RawTransfers};

use super::bed::{Packets, TransferBed};
use super::place::{Places, controls_of, places_of};
use super::traffic::{Count, Transfer};
use crate::accounts::{Actor, Reading};
use crate::error::TestbedError;
use crate::kernel::KernelFeatures;
use crate::phases::Phases;
use crate::process::{Prompt, own_processors, pause};
use crate::traffic::worker;
use crate::wire::RECEIVER_ADDRESS;

const FIRST_PORT: u16 = 5_201;
/// Retransmissions of a flow within this time are one event.
const EVENT: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(10);
/// Time limit for data in flight to arrive after the senders have ended.
const DRAIN: Duration = Duration::from_secs(5);
/// Headers of a TCP packet with timestamps, from Ethernet on, bytes.
const HEADERS: u64 = 66;
/// Processor use by other programs above which a repeat gets a note; 1.0 is one processor.
const DISTURBED: f64 = 0.1;

/// Retransmissions of a flow in the measured time.
#[derive(Clone, Copy, Debug, Default)]
struct Retransmitted {
    before: u64,
    now: u64,
    events: u64,
    event_until: Option<Instant>,
}

impl Retransmitted {
    fn look(&mut self, transfer: &Transfer) -> Result<(), TestbedError> {
        let now =
            transfer.retransmitted().map_err(TestbedError::system("read the state of a flow (TCP_INFO)"))?;
        if now > self.now && self.event_until.is_none_or(|until| Instant::now() >= until) {
            self.events += 1;
            self.event_until = Some(Instant::now() + EVENT);
        }
        self.now = now;
        Ok(())
    }
}

pub(crate) fn run(
    job: &Job<'_>,
    knobs: &TransferKnobs,
    features: KernelFeatures,
    observer: &dyn Observer,
) -> Result<RawRepeat, TestbedError> {
    let (warmup, duration) = (Duration::from(job.warmup), Duration::from(job.duration));
    let phases = Phases::new(warmup + duration + Duration::from_millis(500), observer);
    phases.begin(0.0, "setting up");
    let places = places_of(knobs, &own_processors()?)?;
    let mut bed = TransferBed::build(knobs, job.rate, &places, features)?;
    let measured = measure(job, knobs, &places, &mut bed, &phases, observer);
    measured.map_err(|error| bed.watch.explain(error))
}

fn measure(
    job: &Job<'_>,
    knobs: &TransferKnobs,
    places: &Places,
    bed: &mut TransferBed,
    phases: &Phases<'_>,
    observer: &dyn Observer,
) -> Result<RawRepeat, TestbedError> {
    let _prompt = Prompt::ahead();
    let count = Arc::new(Count {
        begin_ns: AtomicU64::new(u64::MAX),
        bin_ns: job.bin.as_u64(),
        bins: (job.duration.as_u64() / job.bin.as_u64().max(1)) as usize,
        work: Duration::from(knobs.reader_work),
        stall: Duration::from(knobs.reader_stall),
    });
    let released = Arc::new(AtomicBool::new(false));
    let ports: Vec<u16> = (FIRST_PORT..).take(knobs.flows as usize).collect();
    let ends = worker::connect(&bed.sender, &bed.receiver, IpAddr::V4(RECEIVER_ADDRESS), &ports)?;
    let controls = controls_of(job.scenario, knobs);
    let transfers = ends
        .into_iter()
        .zip(controls.iter().cycle())
        .zip(&places.readers)
        .map(|((ends, control), reader)| {
            Transfer::start(ends, control, (places.sender, *reader), &count, &released)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(TestbedError::system("start a thread that makes traffic"))?;
    let threads = |role: &str, id: fn(&Transfer) -> u32| -> Vec<(String, Actor)> {
        transfers.iter().map(|transfer| (role.to_owned(), Actor::Thread(id(transfer)))).collect()
    };
    let of_rings = bed.ring_threads(places)?.into_iter().map(|id| (RING.to_owned(), Actor::Process(id)));
    let (names, actors): (Vec<String>, Vec<Actor>) = threads(SENDER, |transfer| transfer.writer.thread())
        .into_iter()
        .chain(threads(READER, |transfer| transfer.reader.thread()))
        .chain(of_rings)
        .unzip();

    released.store(true, Ordering::Relaxed);
    phases.sleep("warming up", Duration::from(job.warmup))?;
    let mut retransmitted = vec![Retransmitted::default(); transfers.len()];
    for (flow, transfer) in retransmitted.iter_mut().zip(&transfers) {
        let before = transfer.retransmitted().unwrap_or_default();
        *flow = Retransmitted { before, now: before, ..Retransmitted::default() };
    }
    let before = bed.packets()?;
    let reading = Reading::take(&actors, false)?;
    let begin_ns = monotonic_ns();
    count.begin_ns.store(begin_ns, Ordering::Relaxed);
    let end_ns = begin_ns.saturating_add(job.duration.as_u64());
    loop {
        let left = Duration::from_nanos(end_ns.saturating_sub(monotonic_ns()));
        for (flow, transfer) in retransmitted.iter_mut().zip(&transfers) {
            flow.look(transfer)?;
        }
        if left.is_zero() {
            break;
        }
        phases.begin(0.0, "measuring");
        pause(left.min(LOOK), observer)?;
    }
    let end = Reading::take(&actors, true)?;
    let after = bed.packets()?;
    phases.begin(0.97, "finishing");
    for transfer in &transfers {
        transfer.end_of_data().map_err(TestbedError::system("end a flow"))?;
    }
    let last = settled(bed, observer)?;
    bed.watch.check()?;

    let payload = knobs.mtu.bytes().saturating_sub(52).max(1);
    let mut flows = Vec::new();
    for ((number, transfer), retransmitted) in transfers.into_iter().enumerate().zip(&retransmitted) {
        let bins = transfer.finish().map_err(TestbedError::system("run a flow"))?;
        let packets: Vec<u64> = bins.iter().map(|bytes| bytes.div_ceil(payload)).collect();
        flows.push(RawFlow {
            name: format!("flow-{number}"),
            weight: 1.0,
            backlogged: std::iter::once(0..bins.len()).collect(),
            payload_bytes: bins.iter().sum(),
            bytes: bins.iter().zip(&packets).map(|(bytes, packets)| bytes + packets * HEADERS).collect(),
            packets,
            retransmits: Some(retransmitted.now - retransmitted.before),
            ..RawFlow::default()
        });
    }
    let seconds = Duration::from(job.duration).as_secs_f64();
    let processes = end.processes_since(&reading, &names, Duration::from(job.duration));
    let busy = |role: &str| {
        let own = processes.iter().filter(|process| process.name == role);
        own.map(|process| process.user_s + process.system_s).sum::<f64>() / seconds
    };
    let disturbance = end.disturbance_since(&reading);
    let mut raw = RawRepeat {
        busy_cores: Some(busy(READER) + busy(RING)),
        retransmits: flows.iter().map(|flow| flow.retransmits).sum(),
        flows,
        transfers: Some(RawTransfers {
            retransmission_events: retransmitted.iter().map(|flow| flow.events).sum(),
            drops: drops(&before, &after, &last),
            cycles: [0.0; 8],
        }),
        ..RawRepeat::default()
    };
    let shared = if places.rings == places.readers { busy(RING) } else { 0.0 };
    raw.counters.insert("application_processors_pct".to_owned(), (busy(READER) + shared) * 100.0);
    raw.counters.extend([SENDER, READER, RING].map(|role| (format!("{role}_cpu_pct"), busy(role) * 100.0)));
    let processors = end.processors_since(&reading);
    for (number, processor) in processors.iter().enumerate() {
        let busy = processor.user + processor.system + processor.softirq;
        raw.counters.insert(format!("processor_{number}_pct"), busy * 100.0);
    }
    raw.counters.insert("other_programs_cpu_pct".to_owned(), disturbance * 100.0);
    // Count over the whole repeat, because the rings are empty at its end.
    raw.counters.extend(
        [
            ("repeat_sent_packets", last.sent),
            ("repeat_ring_drops", last.missing()),
            ("repeat_retransmits", last.retransmitted),
            ("unexplained_packets", last.unexplained()),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64)),
    );
    if last.unexplained() > 0 {
        raw.notes
            .push("some packets are neither received nor dropped by name (unexplained_packets)".to_owned());
    }
    if disturbance > DISTURBED {
        raw.notes.push(format!(
            "other programs used the processors (other_programs_cpu_pct above {:.0}): repeat on an idle machine",
            DISTURBED * 100.0
        ));
    }
    Ok(raw)
}

const SENDER: &str = "sender";
const READER: &str = "reader";
const RING: &str = "ring";

/// Returns the drops in the measured time, by place. The number of the rings also includes drops after the
/// measured time, until the rings are empty. Packets in a ring at the start of the measured time count as
/// earlier drops, so this number can be too small.
fn drops(before: &Packets, after: &Packets, last: &Packets) -> [Option<u64>; 5] {
    let ring = last.missing().saturating_sub(before.missing());
    [
        None,
        Some(after.nic() - before.nic()),
        Some(ring),
        Some(after.socket_backlog - before.socket_backlog),
        Some(after.pruned - before.pruned),
    ]
}

/// Waits, at most for [`DRAIN`], until the counters do not change: no packet arrives, and the rings are
/// empty. Returns the counters.
fn settled(bed: &mut TransferBed, observer: &dyn Observer) -> Result<Packets, TestbedError> {
    /// A time longer than any wait of the rings' threads for a processor.
    const QUIET: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + DRAIN;
    let mut last = bed.packets()?;
    loop {
        pause(QUIET, observer)?;
        let now = bed.packets()?;
        if now == last || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}
