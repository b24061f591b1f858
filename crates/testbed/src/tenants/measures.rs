//! Computes the results from the readings before and after the measured time.

use std::ops::Range;

use evenkeel_datapath::{FlowSample, Meter};
use evenkeel_model::qdisc::{BULK_PORT, is_line};
use evenkeel_model::record::QueueRecord;
use evenkeel_model::scenario::TenantPoint;
use evenkeel_model::world::{Job, RawFlow, RawLine, RawQdisc, RawRepeat};
use evenkeel_netlink::qdisc_tree::QdiscCounters;

use super::line::{self, Sample};
use super::sources::{FlowReport, each_bulk};
use crate::error::TestbedError;
use crate::traffic::on_off::Schedule;
use crate::traffic::request_response::Exchange;

/// Relative difference between the meter's count and the counts of sender and receiver above which the repeat
/// gets a note.
const LARGEST_METER_ERROR: f64 = 0.02;

/// Readings of the meter: before and after the measured time, and at the end of the flows.
pub(super) struct Metered {
    pub(super) before: Vec<FlowSample>,
    pub(super) after: Vec<FlowSample>,
    /// Before the test bed stops the senders.
    pub(super) before_end: Vec<FlowSample>,
    /// After all senders have ended.
    pub(super) at_end: Vec<FlowSample>,
}

fn ports(sample: &FlowSample) -> (u16, u16) {
    (sample.tuple.source_port, sample.tuple.destination_port)
}

/// Returns the data flow to a port. Of iperf3's two connections, this is the later connection; the
/// first is the control connection.
pub(super) fn flow_to(samples: &[FlowSample], port: u16) -> Option<&FlowSample> {
    let to_port = samples.iter().filter(|sample| sample.tuple.destination_port == port);
    to_port.max_by_key(|sample| sample.first_ns)
}

fn find(samples: &[FlowSample], wanted: (u16, u16)) -> Option<&FlowSample> {
    samples.iter().find(|sample| ports(sample) == wanted)
}

/// Adds the results of the bulk flows, in the order of their tenants.
///
/// `retransmitted` returns the retransmits of a flow in the measured time, by source port.
pub(super) fn flows(
    raw: &mut RawRepeat,
    job: &Job<'_>,
    point: &TenantPoint,
    meter: &Meter,
    metered: &Metered,
    reports: &[Option<FlowReport>],
    retransmitted: impl Fn(u16) -> Option<u64>,
) -> Result<(), TestbedError> {
    let bins = usize::try_from(job.duration.as_u64() / job.bin.as_u64().max(1)).unwrap_or(usize::MAX);
    let (mut worst, mut worst_flow, mut silent) = (0.0_f64, None, 0);
    for (number, (report, tenants)) in reports.iter().zip(each_bulk(point)).enumerate() {
        let port = BULK_PORT.saturating_add(u16::try_from(number).unwrap_or(u16::MAX));
        let flow = flow_to(&metered.after, port);
        let wanted = flow.map_or((0, port), ports);
        let (Some(end), Some(last)) = (flow, find(&metered.at_end, wanted)) else {
            return Err(TestbedError::Traffic(format!("the meter did not see the flow to port {port}")));
        };
        let start = find(&metered.before, wanted);
        let since = |value: fn(&FlowSample) -> u64| value(end).saturating_sub(start.map_or(0, value));
        let (bytes, packets) = meter.bins(end);
        let early = find(&metered.before_end, wanted).map_or(0, |flow| flow.payload_bytes);
        match report {
            None => silent += 1,
            Some(report) => {
                let unexplained = unexplained(early..last.payload_bytes, report);
                if unexplained > worst {
                    (worst, worst_flow) = (unexplained, Some(wanted));
                }
            }
        }
        raw.flows.push(RawFlow {
            tcp: Vec::new(),
            name: format!("{}-{}", wanted.0, wanted.1),
            weight: 1.0,
            queue: Some(end.queue_mapping),
            backlogged: backlogged(tenants.on_off.map_or_else(
                || std::iter::once(0..bins).collect(),
                |times| Schedule::sending_bins(times, job.bin.as_u64(), bins),
            )),
            // The readings were taken before and after the bins, so scale their difference to the bytes
            // in the bins.
            payload_bytes: share_of(
                since(|flow| flow.payload_bytes),
                bytes.iter().sum(),
                since(|flow| flow.bytes),
            ),
            bytes,
            packets,
            retransmits: retransmitted(wanted.0),
            out_of_order: Some(since(|flow| flow.out_of_order)),
            completion_s: None,
        });
    }
    raw.counters.insert("meter_vs_iperf3_max_error".to_owned(), worst);
    if silent > 0 {
        raw.notes.push(format!(
            "no iperf3 report for {silent} of the bulk flows: only the meter counted these flows"
        ));
    }
    if let Some((source, destination)) = worst_flow.filter(|_| worst > LARGEST_METER_ERROR) {
        raw.notes.push(format!(
            "the meter and the sender's and receiver's own counts differ by {:.1} % for the flow {source}-{destination}",
            worst * 100.0
        ));
    }
    let queues = raw.flows.iter().filter_map(|flow| flow.queue).max().map_or(0, |queue| queue + 1);
    raw.queues = (0..queues)
        .map(|queue| {
            let on_it = raw.flows.iter().filter(|flow| flow.queue == Some(queue));
            QueueRecord {
                flows: on_it.clone().count() as u32,
                bytes: on_it.map(|flow| flow.bytes.iter().sum::<u64>()).sum(),
            }
        })
        .collect();
    Ok(())
}

/// Bytes that the receiver may leave unread: two of the largest segments. iperf3's server stops reading when
/// its control connection reports the end.
const LEFT_UNREAD_BYTES: u64 = 2 * 61_440;

/// Returns the difference between the meter and the two ends of a flow, as a share.
///
/// - The receiver stopped reading between the two readings of the meter. Its count must be between the
///   readings, except for unread bytes.
/// - The last reading of the meter must not exceed the sent bytes.
fn unexplained(metered: Range<u64>, report: &FlowReport) -> f64 {
    let beyond = |more: u64, less: u64| more.saturating_sub(less) as f64 / more.max(1) as f64;
    let unread = beyond(metered.start.saturating_sub(LEFT_UNREAD_BYTES), report.received_bytes);
    unread.max(beyond(report.received_bytes, metered.end)).max(beyond(metered.end, report.sent_bytes))
}

fn share_of(value: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(value) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn backlogged(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.into_iter().filter(|range| !range.is_empty()).collect()
}

/// Returns half of the round-trip time of each request that was sent in the measured time, µs. For a request
/// without an answer, this is half of its waiting time.
pub(super) fn latencies_us(exchanges: &[Vec<Exchange>], measured: Range<u64>) -> Vec<f64> {
    let in_time = exchanges.iter().flatten().filter(|exchange| measured.contains(&exchange.sent_ns));
    in_time.map(|exchange| exchange.took_ns as f64 / 2_000.0).collect()
}

/// Returns each qdisc's counters in the measured time. Omits the qdiscs of the test bed's line.
pub(super) fn qdiscs(before: &[QdiscCounters], after: &[QdiscCounters]) -> Vec<RawQdisc> {
    after
        .iter()
        .filter(|qdisc| !is_line(qdisc.handle))
        .map(|now| {
            let then = before.iter().find(|then| (then.handle, then.parent) == (now.handle, now.parent));
            let since = |value: fn(&QdiscCounters) -> u64| value(now).saturating_sub(then.map_or(0, value));
            RawQdisc {
                handle: format!("{:x}:", now.handle.major),
                kind: now.kind.clone(),
                bytes: since(|qdisc| qdisc.bytes),
                packets: since(|qdisc| qdisc.packets),
                drops: since(|qdisc| qdisc.drops),
                overlimits: since(|qdisc| qdisc.overlimits),
                requeues: since(|qdisc| qdisc.requeues),
                backlog_bytes: now.backlog_bytes,
            }
        })
        .collect()
}

/// Adds the results of the line: the bytes that all flows sent in each bin, and the backlog.
pub(super) fn line(
    raw: &mut RawRepeat,
    job: &Job<'_>,
    meter: &Meter,
    flows: &[FlowSample],
    samples: &[Sample],
    start_ns: u64,
) -> RawLine {
    let mut bytes: Vec<u64> = Vec::new();
    for flow in flows {
        let (of_flow, _) = meter.bins(flow);
        bytes.resize(of_flow.len().max(bytes.len()), 0);
        bytes.iter_mut().zip(&of_flow).for_each(|(sum, bytes)| *sum += bytes);
    }
    let bin_ns = job.bin.as_u64();
    let (backlog_bytes, sampled) = line::least_by_bin(samples, start_ns, bin_ns, bytes.len());
    let end_ns = start_ns.saturating_add(job.duration.as_u64());
    let in_time = samples.iter().filter(|sample| (start_ns..end_ns).contains(&sample.at_ns)).count();
    raw.counters.insert("line_samples".to_owned(), in_time as f64);
    raw.counters.insert("line_bins_sampled".to_owned(), sampled as f64);
    RawLine {
        bin: job.bin,
        capacity_bytes: job.rate.bits_per_second() as f64 / 8.0 * job.bin.as_secs_f64(),
        bytes,
        backlog_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_model::change::Handle;

    #[test]
    fn only_requests_of_the_measured_time_count() {
        let exchange = |sent_ns, took_ns| Exchange { sent_ns, took_ns };
        let exchanges =
            [vec![exchange(99, 9), exchange(100, 4_000)], vec![exchange(199, 90_000), exchange(200, 1)]];
        assert_eq!(latencies_us(&exchanges, 100..200), [2.0, 45.0]);
    }

    #[test]
    fn counters_are_of_the_measured_time_and_the_line_is_left_out() {
        let qdisc = |major, packets, backlog_bytes| QdiscCounters {
            handle: Handle::new(major, 0),
            parent: Handle::ROOT,
            kind: "htb".to_owned(),
            bytes: 0,
            packets,
            drops: 0,
            overlimits: 0,
            requeues: 0,
            queue_length: 0,
            backlog_bytes,
        };
        let before = [qdisc(0xfff0, 7, 0), qdisc(1, 10, 500)];
        let after = [qdisc(0xfff0, 9, 0), qdisc(1, 25, 300), qdisc(2, 4, 0)];
        let found = qdiscs(&before, &after);
        let brief: Vec<_> =
            found.iter().map(|qdisc| (qdisc.handle.as_str(), qdisc.packets, qdisc.backlog_bytes)).collect();
        assert_eq!(brief, [("1:", 15, 300), ("2:", 4, 0)]);
    }

    #[test]
    fn what_lies_between_two_readings_is_explained() {
        let report = FlowReport { sent_bytes: 10_000_000, received_bytes: 9_000_000 };
        let explained = [9_000_000..9_000_000, 8_500_000..10_000_000, 0..9_500_000, 9_100_000..9_200_000];
        assert_eq!(explained.map(|metered| unexplained(metered, &report)), [0.0; 4]);
        let early = 10_000_000 + LEFT_UNREAD_BYTES;
        assert_eq!(unexplained(early..early, &report), 0.1, "more arrived before the end than was ever read");
        assert_eq!(unexplained(0..4_500_000, &report), 0.5, "more was read than has arrived");
        assert_eq!(unexplained(9_000_000..12_500_000, &report), 0.2, "more arrived than was sent");
        assert_eq!(share_of(1000, 90, 100), 900);
        assert_eq!(share_of(1000, 0, 0), 0);
    }
}
