//! Parses the profile of a machine.

use std::ops::RangeInclusive;

use crate::scenario::document::{Complaints, Field, Table, document, read_schema};
use crate::scenario::{ScenarioError, ScenarioErrorKind};
use crate::units::{BitRate, ByteSize, Frequency, Nanoseconds};

use super::{CopyCosts, Cost, Figure, LEAST_REPEATS, MachineProfile, Measured, Operation, SHARES};

const LONGEST_DESCRIPTION: usize = 4000;
const NODES: RangeInclusive<u32> = 1..=64;
const CORES_PER_NODE: RangeInclusive<u32> = 1..=256;
/// Largest number of cores, which bounds the memory of a simulated host.
const MOST_CORES: u32 = 1024;
const CLOCKS: RangeInclusive<Frequency> =
    Frequency::from_hz(100_000_000)..=Frequency::from_hz(20_000_000_000);
/// Limits for the cycles of an operation, of a byte and of a cache miss: the maximum is far beyond any
/// machine.
const CYCLES: (f64, f64) = (0.0, 10_000_000.0);
const CYCLES_PER_BYTE: (f64, f64) = (0.0, 1000.0);
const CYCLES_OF_MISS: (f64, f64) = (0.0, 100_000.0);
const SHARE: (f64, f64) = (0.0, 1.0);
const RATES: RangeInclusive<BitRate> =
    BitRate::from_bits_per_second(100_000_000)..=BitRate::from_bits_per_second(100_000_000_000_000);
const DDIO: RangeInclusive<ByteSize> = ByteSize::from_kib(64)..=ByteSize::from_kib(1 << 20);
/// At least one packet of the largest MTU.
const NIC_BUFFERS: RangeInclusive<ByteSize> = ByteSize::from_kib(64)..=ByteSize::from_kib(1 << 20);
const DELAYS: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_millis(10);

pub(super) fn read(text: &str, origin: &str) -> Result<MachineProfile, ScenarioError> {
    let tree = document(text, origin)?;
    let complaints = Complaints::new(text, origin);
    let profile = read_profile(Table::root(tree.get_ref(), &complaints));
    match (complaints.into_error(), profile) {
        (Some(error), _) => Err(error),
        (None, profile) => Ok(profile.unwrap_or_default()),
    }
}

/// Reads the document. Returns `None` after errors, which it has recorded.
fn read_profile(mut root: Table<'_>) -> Option<MachineProfile> {
    if !read_schema(&mut root) {
        return None;
    }
    let name = root.require("name", "name the machine, for example name = \"my-host\"");
    let name = name.and_then(|field| field.name("a name", "-._"));
    let description = root.take("description").and_then(|field| field.prose(LONGEST_DESCRIPTION, true));
    let based_on = root.take("based-on").and_then(|field| {
        let words = MachineProfile::built_in_texts().iter().map(|(name, _)| (*name, (*name).to_owned()));
        field.one_of(&words.collect::<Vec<_>>())
    });
    let processor = section(&mut root, "processor", read_processor);
    let copy = section(&mut root, "copy", |mut table| {
        let mut read = |key| {
            let field = table.require(key, "state the cycles to copy a byte, for example 0.4");
            field.and_then(|field| figure(&field, |field| number(field, CYCLES_PER_BYTE)))
        };
        let (cached, local, remote) = (read("cached"), read("local"), read("remote"));
        table.finish();
        Some(CopyCosts { cached: cached?, local: local?, remote: remote? })
    });
    let memory = section(&mut root, "memory", |mut table| {
        let miss = table.require("miss", "state the cycles of a cache miss, for example 300");
        let miss = miss.and_then(|field| figure(&field, |field| number(field, CYCLES_OF_MISS)));
        let ddio = table.require("ddio", "state the cache that the NIC writes to, for example \"2MiB\"");
        let ddio = ddio.and_then(|field| field.quantity(DDIO, "2MiB"));
        table.finish();
        miss.zip(ddio)
    });
    let cycles = section(&mut root, "cycles", |mut table| {
        let mut read = |operation: Operation| {
            let advice = format!("add a table [cycles.{}]; an empty one costs nothing", operation.name());
            table.require(operation.name(), &advice).and_then(|field| cost(&field))
        };
        let costs = Operation::ALL.map(&mut read);
        table.finish();
        let mut cycles = [Cost::default(); Operation::ALL.len()];
        for (place, cost) in cycles.iter_mut().zip(costs) {
            *place = cost?;
        }
        Some(cycles)
    });
    let interconnect = section(&mut root, "interconnect", |mut table| {
        let rate = table.require("rate", "state the rate of one direction, for example \"68gbit\"");
        let rate = rate.and_then(|field| field.quantity(RATES, "68gbit"));
        let share = table.require("reverse-share", "state the load on the other direction, for example 0.2");
        let share = share.and_then(|field| number(&field, SHARE));
        table.finish();
        rate.zip(share)
    });
    // The NIC's node must be one of the processor's nodes. Without a valid number of nodes, the maximum
    // number of nodes applies.
    let nodes = processor.as_ref().map_or(*NODES.end(), |processor| processor.nodes);
    let nic = section(&mut root, "nic", |mut table| read_nic(&mut table, nodes).inspect(|_| table.finish()));
    root.finish();
    let ((miss, ddio), (interconnect, reverse_share)) = memory.zip(interconnect)?;
    let (processor, nic) = processor.zip(nic)?;
    Some(MachineProfile {
        name: name?,
        description: description.unwrap_or_default(),
        based_on,
        copy: copy?,
        miss,
        cycles: cycles?,
        ddio,
        interconnect,
        reverse_share,
        pcie: nic.pcie,
        nic_buffer: nic.buffer,
        interrupt_delay: nic.interrupt_delay,
        nic_node: nic.node,
        ..processor
    })
}

/// Reads a required table.
fn section<'t, T>(
    root: &mut Table<'t>,
    key: &'static str,
    read: impl FnOnce(Table<'t>) -> Option<T>,
) -> Option<T> {
    let field = root.require(key, &format!("add a [{key}] table"));
    field.and_then(|field| read(field.table()?))
}

/// Reads cores and clocks into a profile without costs.
fn read_processor(mut table: Table<'_>) -> Option<MachineProfile> {
    let nodes = table.require("nodes", "state the number of memory nodes, for example 2");
    let nodes = nodes.and_then(|field| field.integer(NODES));
    let cores = table.require("cores-per-node", "state the cores of a node, for example 8");
    let per_node = cores.as_ref().and_then(|field| field.integer(CORES_PER_NODE));
    if let (Some(field), Some(nodes), Some(per_node)) = (&cores, nodes, per_node)
        && nodes * per_node > MOST_CORES
    {
        let problem = format!("{nodes} nodes with {per_node} cores each have {} cores", nodes * per_node);
        field.complain(
            ScenarioErrorKind::BadValue,
            problem,
            format!("state at most {MOST_CORES} cores in all"),
        );
    }
    let mut clock = |key| {
        let field = table.require(key, "state the clock, for example \"3.2GHz\"")?;
        let hertz = |field: &Field<'_>| field.quantity(CLOCKS, "3.2GHz").map(|clock| clock.hz() as f64);
        figure(&field, hertz).map(|figure| (figure, field))
    };
    let (turbo, all, base) = (clock("turbo-clock"), clock("all-cores-clock"), clock("base-clock"));
    if let (Some((turbo, _)), Some((all, field))) = (&turbo, &all)
        && all.value > turbo.value
    {
        let problem = "above turbo-clock".to_owned();
        field.complain(
            ScenarioErrorKind::BadValue,
            problem,
            "the clock with all cores active is at most turbo-clock",
        );
    }
    table.finish();
    Some(MachineProfile {
        nodes: nodes?,
        cores_per_node: per_node?,
        turbo_hz: turbo?.0,
        all_cores_hz: all?.0,
        base_hz: base?.0,
        ..MachineProfile::default()
    })
}

struct Nic {
    node: u32,
    pcie: BitRate,
    buffer: ByteSize,
    interrupt_delay: Nanoseconds,
}

fn read_nic(table: &mut Table<'_>, nodes: u32) -> Option<Nic> {
    let node = table.require("node", "state the node of the NIC's slot, from 0, for example 0");
    let node = node.and_then(|field| field.integer(0..=nodes.saturating_sub(1)));
    let pcie = table.require("pcie", "state the rate of the NIC's slot, for example \"125gbit\"");
    let pcie = pcie.and_then(|field| field.quantity(RATES, "125gbit"));
    let buffer = table.require("buffer", "state the packet buffer of the NIC, for example \"1MiB\"");
    let buffer = buffer.and_then(|field| field.quantity(NIC_BUFFERS, "1MiB"));
    let delay = table.require("interrupt-delay", "state the time before an interrupt, for example \"8us\"");
    let interrupt_delay = delay.and_then(|field| field.quantity(DELAYS, "8us"));
    Some(Nic { node: node?, pcie: pcie?, buffer: buffer?, interrupt_delay: interrupt_delay? })
}

fn number(field: &Field<'_>, (least, most): (f64, f64)) -> Option<f64> {
    let advice = format!("write a value from {least} to {most}");
    let value = field.figure_or(&advice)?;
    if !(least..=most).contains(&value) {
        field.complain(ScenarioErrorKind::BadValue, format!("{value} is out of range"), advice);
        return None;
    }
    Some(value)
}

/// Reads a figure: a value, or a table with the value, its interval and the number of repeats.
fn figure(field: &Field<'_>, value_of: impl Fn(&Field<'_>) -> Option<f64>) -> Option<Figure> {
    if !field.is_table() {
        return value_of(field).map(Figure::stated);
    }
    let mut table = field.table()?;
    let mut read = |key| {
        let advice = "a measured figure has value, low, high and n";
        let field = table.require(key, advice)?;
        value_of(&field).map(|value| (value, field))
    };
    let (value, low, high) = (read("value"), read("low"), read("high"));
    let n = table.require("n", "state the number of repeats, for example 15");
    let n = n.and_then(|field| field.integer(LEAST_REPEATS..=1_000_000));
    table.finish();
    let ((value, _), (low, low_field), (high, high_field)) = (value?, low?, high?);
    let advice = "the value lies in its 95 % interval, from low to high";
    if low > value {
        low_field.complain(ScenarioErrorKind::BadValue, "above value", advice);
    }
    if high < value {
        high_field.complain(ScenarioErrorKind::BadValue, "below value", advice);
    }
    Some(Figure { value, measured: Some(Measured { low, high, n: n? }) })
}

/// Reads the cycles of an operation: by share, and their sum if it is stated.
fn cost(field: &Field<'_>) -> Option<Cost> {
    let mut table = field.table()?;
    let mut shares = [0.0; SHARES.len()];
    let mut complete = true;
    for (share, key) in shares.iter_mut().zip(SHARES) {
        if let Some(field) = table.take(key) {
            match number(&field, CYCLES) {
                Some(cycles) => *share = cycles,
                None => complete = false,
            }
        }
    }
    let total = table.take("total");
    let figure = total.as_ref().map(|field| figure(field, |field| number(field, CYCLES)));
    table.finish();
    if let (Some(total), Some(Some(figure))) = (&total, figure)
        && complete
        && figure.value > 0.0
        && shares.iter().sum::<f64>() <= 0.0
    {
        let advice = "state at least one share, for example other = 1";
        total.complain(ScenarioErrorKind::BadValue, "a total without shares", advice);
    }
    match figure {
        Some(None) => None,
        figure => complete.then_some(Cost { shares, total: figure.flatten() }),
    }
}
