//! The traffic of tenants from `[workload]`, without the values that a sweep varies.

use std::ops::RangeInclusive;

use super::error::ScenarioErrorKind::BadValue;
use super::sections::{FLOWS, congestion_control, or_default};
use super::toml_table::{Field, Table};
use super::{BulkGroup, GroupCount, Offloads, OnOff, ProbeGroup};
use crate::text::excerpt;
use crate::units::{ByteSize, Nanoseconds};

/// Allowed numbers of clients, or of probes, on an axis; each is a process.
pub(super) const PROCESSES: RangeInclusive<u32> = 0..=1000;
/// Allowed sizes of a write to a socket.
pub(super) const LENGTHS: RangeInclusive<ByteSize> = ByteSize::from_bytes(1)..=ByteSize::from_kib(1 << 20);
/// Allowed payloads of a request; sockperf's minimum is its header of 14 B.
pub(super) const MESSAGES: RangeInclusive<ByteSize> = ByteSize::from_bytes(14)..=ByteSize::from_kib(1 << 10);
const TIMES: RangeInclusive<Nanoseconds> = Nanoseconds::from_micros(1)..=Nanoseconds::from_secs(60);
/// Maximum number of groups of bulk senders; bounds the work for a hostile file.
const MOST_GROUPS: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) line: bool,
    pub(super) congestion_control: String,
    pub(super) offloads: Offloads,
    pub(super) pinned: bool,
    pub(super) bulk: Vec<BulkGroup>,
    pub(super) probes: Option<ProbeGroup>,
}

impl Traffic {
    pub(super) fn read(mut table: Table<'_>) -> Option<Self> {
        // The caller has read this key.
        table.take("kind");
        let line =
            table.require("line", "write line = true if the link is the bottleneck, otherwise line = false");
        let line = line.and_then(|field| field.boolean());
        let control = table.take("congestion-control");
        let control = or_default(control, "cubic".to_owned(), congestion_control);
        let offloads = Offloads { segmentation: true, aggregation: true };
        let offloads = or_default(table.take("offloads"), offloads, |field| {
            let mut table = field.table()?;
            let segmentation = or_default(table.take("segmentation"), true, |field| field.boolean());
            let aggregation = or_default(table.take("aggregation"), true, |field| field.boolean());
            table.finish();
            Some(Offloads { segmentation: segmentation?, aggregation: aggregation? })
        });
        let pinned = or_default(table.take("pinned"), false, |field| field.boolean());
        let (bulk, probes) = (table.take("bulk"), table.take("probes"));
        if bulk.is_none() && probes.is_none() {
            table.missing("bulk", "add [[workload.bulk]], [workload.probes] or both: no application sends");
        }
        let bulk = or_default(bulk, Vec::new(), read_groups);
        let probes = or_default(probes, None, |field| read_probes(field.table()?).map(Some));
        table.finish();
        Some(Self {
            line: line?,
            congestion_control: control?,
            offloads: offloads?,
            pinned: pinned?,
            bulk: bulk?,
            probes: probes?,
        })
    }
}

fn read_groups(field: &Field<'_>) -> Option<Vec<BulkGroup>> {
    let elements = field.list("tables, each [[workload.bulk]]")?;
    if elements.is_empty() || elements.len() > MOST_GROUPS {
        let problem = format!("the workload has {} groups of bulk clients", elements.len());
        field.complain(BadValue, problem, format!("write 1 to {MOST_GROUPS} groups"));
        return None;
    }
    let groups: Vec<Option<BulkGroup>> =
        elements.iter().map(|element| read_group(element.table()?)).collect();
    let groups: Vec<BulkGroup> = groups.into_iter().collect::<Option<_>>()?;
    let share = |group: &BulkGroup| match group.count {
        GroupCount::Share(share) => share,
        GroupCount::Fixed(_) => 0,
    };
    let shares: u32 = groups.iter().map(share).sum();
    if shares != 0 && shares != 100 {
        field.complain(
            BadValue,
            format!("the sum of the shares is {shares}%"),
            "change the shares so that the sum is 100%",
        );
        return None;
    }
    Some(groups)
}

fn read_group(mut table: Table<'_>) -> Option<BulkGroup> {
    let count = table.take("count");
    let share = table.take("share");
    if let (Some(_), Some(share)) = (&count, &share) {
        share.at_key().complain(
            BadValue,
            "a group cannot have both 'count' and 'share'",
            "remove one of the two",
        );
    }
    let count = match (count, share) {
        (_, Some(share)) => read_share(&share).map(GroupCount::Share),
        (Some(count), None) => count.integer(FLOWS).map(GroupCount::Fixed),
        (None, None) => Some(GroupCount::Share(100)),
    };
    let length = or_default(table.take("length"), None, |field| field.quantity(LENGTHS, "4KiB").map(Some));
    let on = table.take("on");
    let off = table.take("off");
    let on_off = match (on, off) {
        (None, None) => Some(None),
        (Some(on), Some(off)) => on
            .quantity(TIMES, "50ms")
            .zip(off.quantity(TIMES, "50ms"))
            .map(|(on, off)| Some(OnOff { on, off })),
        (on, off) => {
            let problem = "'on' and 'off' need each other";
            let here = on.or(off)?;
            here.at_key().complain(BadValue, problem, "write both keys, or neither");
            None
        }
    };
    table.finish();
    Some(BulkGroup { count: count?, length: length?, on_off: on_off? })
}

fn read_share(field: &Field<'_>) -> Option<u32> {
    let text = field.string("a share such as \"50%\"")?;
    let share = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let share = share.and_then(|digits| digits.parse().ok()).filter(|share| (1..=100).contains(share));
    if share.is_none() {
        let problem = format!("'{}' is not a share", excerpt(text));
        field.complain(BadValue, problem, "write a whole number of per cent, from \"1%\" to \"100%\"");
    }
    share
}

fn read_probes(mut table: Table<'_>) -> Option<ProbeGroup> {
    let count = or_default(table.take("count"), None, |field| field.integer(1..=*PROCESSES.end()).map(Some));
    let message = or_default(table.take("message"), None, |field| field.quantity(MESSAGES, "64B").map(Some));
    let slo = or_default(table.take("slo"), None, |field| field.quantity(TIMES, "1ms").map(Some));
    table.finish();
    Some(ProbeGroup { count: count?, message: message?, slo: slo? })
}
