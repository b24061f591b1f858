//! Flows as they are observed: what is known of each besides its addresses and ports. Read from a list, or made up.
//!
//! The list is CSV with one flow a line, the fields in this order, and `#` before remarks:
//!
//! ```text
//! protocol,src,src_port,dst,dst_port,class,rate_bps,reader,process,cgroup,queue
//! udp,10.0.0.1,1000,10.0.0.100,11211,high,5000000
//! tcp,10.0.0.2,41000,10.0.0.100,443,,,3,nginx,/system.slice/nginx.service,0
//! ```
//!
//! The first five are needed; the others may be empty or left out. The source is the peer, as in the packets that are
//! received. A first line with these names is skipped. `reader` is the processor of the thread that reads the flow,
//! `queue` where the flow lies now.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::{FlowTuple, QueueId, Transport};

/// Flows that a list may have.
pub const MOST_FLOWS: usize = 1_000_000;

/// A flow and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedFlow {
    /// Addresses and ports.
    pub tuple: FlowTuple,
    /// Name of its class, when whoever observed it knows.
    pub class: Option<String>,
    /// What it receives, bit/s; 0 if unknown.
    pub rate_bps: u64,
    /// Processor of the thread that reads it.
    pub reader: Option<u32>,
    /// Name of the process that owns its socket (`/proc/PID/comm`).
    pub process: Option<String>,
    /// Version-2 cgroup of its socket, from the root on.
    pub cgroup: Option<String>,
    /// The queue on which it lies now.
    pub queue: Option<QueueId>,
}

impl ObservedFlow {
    /// A flow of which nothing else is known.
    #[must_use]
    pub const fn new(tuple: FlowTuple) -> Self {
        Self { tuple, class: None, rate_bps: 0, reader: None, process: None, cgroup: None, queue: None }
    }
}

/// Why a text is no list of flows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}:{column}: {problem}")]
pub struct FlowListError {
    /// Name of the file, as the caller gave it.
    pub origin: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub problem: String,
}

/// The fields of a line, in their order.
const FIELDS: [&str; 11] = [
    "protocol", "src", "src_port", "dst", "dst_port", "class", "rate_bps", "reader", "process", "cgroup",
    "queue",
];
/// Fields that must be there.
const NEEDED: usize = 5;

/// Reads a list of flows.
///
/// # Errors
/// The first mistake, with line and column.
pub fn parse(text: &str, origin: &str) -> Result<Vec<ObservedFlow>, FlowListError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut flows = Vec::new();
    let mut seen = rustc_hash::FxHashMap::default();
    let mut headed = false;
    for (line, number) in text.lines().zip(1..) {
        let fails = |(column, problem): (usize, String)| FlowListError {
            origin: origin.to_owned(),
            line: number,
            column,
            problem,
        };
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let reader = LineReader::new(line);
        if !headed && flows.is_empty() && reader.is_header() {
            headed = true;
            continue;
        }
        let flow = reader.flow().map_err(fails)?;
        if let Some(first) = seen.insert(flow.tuple, number) {
            return Err(fails((1, format!("the flow of line {first} once more"))));
        }
        if flows.len() == MOST_FLOWS {
            return Err(fails((1, format!("more than {MOST_FLOWS} flows"))));
        }
        flows.push(flow);
    }
    Ok(flows)
}

/// The fields of a line, each with its column.
struct LineReader<'l> {
    fields: Vec<(usize, &'l str)>,
    length: usize,
}

impl<'l> LineReader<'l> {
    fn new(line: &'l str) -> Self {
        let mut column = 1;
        let fields = line
            .split(',')
            .map(|field| {
                let lead = field.chars().take_while(|character| character.is_whitespace()).count();
                let at = column + lead;
                column += field.chars().count() + 1;
                (at, field.trim())
            })
            .collect();
        Self { fields, length: line.chars().count() }
    }

    fn is_header(&self) -> bool {
        self.fields.iter().zip(FIELDS).all(|((_, field), name)| field.eq_ignore_ascii_case(name))
    }

    fn field(&self, index: usize) -> Option<(usize, &'l str)> {
        self.fields.get(index).copied().filter(|(_, field)| !field.is_empty())
    }

    fn needed(&self, index: usize) -> Result<(usize, &'l str), (usize, String)> {
        self.field(index).ok_or_else(|| {
            let column = self.fields.get(index).map_or(self.length + 1, |(column, _)| *column);
            (column, format!("{} is missing; a line has {}", FIELDS[index], FIELDS[..NEEDED].join(",")))
        })
    }

    fn parsed<T: FromStr>(&self, index: usize, what: &str) -> Result<Option<T>, (usize, String)> {
        self.field(index).map(|(column, field)| value(index, column, field, what)).transpose()
    }

    fn flow(&self) -> Result<ObservedFlow, (usize, String)> {
        if let Some((column, _)) = self.fields.get(FIELDS.len()) {
            return Err((*column, format!("more than the {} fields that a line has", FIELDS.len())));
        }
        let (column, protocol) = self.needed(0)?;
        let transport = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            _ => return Err((column, format!("protocol '{}' is neither tcp nor udp", excerpt(protocol)))),
        };
        let address = |index| {
            let (column, field) = self.needed(index)?;
            value::<IpAddr>(index, column, field, "no IP address")
                .map(|address| (column, address.to_canonical()))
        };
        let port = |index| {
            let (column, field) = self.needed(index)?;
            value::<u16>(index, column, field, "no port from 0 to 65535")
        };
        let ((_, source), source_port) = (address(1)?, port(2)?);
        let ((column, destination), destination_port) = (address(3)?, port(4)?);
        if source.is_ipv4() != destination.is_ipv4() {
            return Err((column, "dst is of another IP version than src".to_owned()));
        }
        let text = |index| self.field(index).map(|(_, field)| field.to_owned());
        Ok(ObservedFlow {
            tuple: FlowTuple { transport, source, source_port, destination, destination_port },
            class: text(5),
            rate_bps: self.parsed(6, "no whole number of bit/s")?.unwrap_or(0),
            reader: self.parsed(7, "no number of a processor")?,
            process: text(8),
            cgroup: text(9),
            queue: self.parsed(10, "no number of a queue")?.map(QueueId),
        })
    }
}

fn value<T: FromStr>(index: usize, column: usize, field: &str, what: &str) -> Result<T, (usize, String)> {
    // A sign is no part of any of these, though Rust reads one.
    let plain = !field.starts_with('+');
    let value = field.parse().ok().filter(|_| plain);
    value.ok_or_else(|| (column, format!("{} '{}' is {what}", FIELDS[index], excerpt(field))))
}

fn excerpt(text: &str) -> String {
    const LONGEST: usize = 48;
    text.chars().take(LONGEST).flat_map(char::escape_debug).collect()
}

/// Writes a list of flows, as [`parse`] reads it.
#[must_use]
pub fn to_csv(flows: &[ObservedFlow]) -> String {
    let mut text = FIELDS.join(",");
    text.push('\n');
    for flow in flows {
        let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        let tuple = &flow.tuple;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{}",
            tuple.transport,
            tuple.source,
            tuple.source_port,
            tuple.destination,
            tuple.destination_port,
            flow.class.as_deref().unwrap_or_default(),
            number(Some(flow.rate_bps).filter(|rate| *rate > 0)),
            number(flow.reader.map(u64::from)),
            flow.process.as_deref().unwrap_or_default(),
            flow.cgroup.as_deref().unwrap_or_default(),
            number(flow.queue.map(|queue| u64::from(queue.0))),
        );
    }
    text
}

/// Made-up flows: UDP to one address and port, as in Dragonet's experiments (section 4.3), from clients with 16 flows
/// each, at 1 to 512 Mbit/s. The same flows for the same arguments, all different; `first` numbers the first one.
pub fn generate(first: u32, count: u32) -> impl Iterator<Item = ObservedFlow> {
    const FLOWS_OF_A_CLIENT: u32 = 16;
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
    const MEMCACHED: u16 = 11211;
    (first..first.saturating_add(count)).map(|number| {
        let client = number / FLOWS_OF_A_CLIENT;
        // Ports as a client's kernel hands them out: scattered over the range of ephemeral ones, and different for
        // the flows of a client, since the step and the range have no common divisor.
        let step = (u64::from(number) * 7919 + u64::from(client) * 104_729) % 28_231;
        let source = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + client % (1 << 23));
        let tuple = FlowTuple {
            transport: Transport::Udp,
            source: IpAddr::V4(source),
            source_port: 32_768 + step as u16,
            destination: IpAddr::V4(SERVER),
            destination_port: MEMCACHED,
        };
        ObservedFlow { rate_bps: 1_000_000 << (number.wrapping_mul(7) % 10), ..ObservedFlow::new(tuple) }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn fails(text: &str) -> String {
        parse(text, "f.csv").unwrap_err().to_string()
    }

    #[test]
    fn names_remarks_and_blanks_are_passed_over() {
        let text =
            "\u{feff}# clients\n\nPROTOCOL,src,src_port,dst,dst_port\n tcp , 10.0.0.1,1,10.0.0.2,2,,\r\n";
        let flows = parse(text, "f.csv").unwrap();
        assert_eq!((flows.len(), flows[0].class.as_deref(), flows[0].rate_bps), (1, None, 0));
        assert_eq!(flows[0].tuple.to_string(), "tcp 10.0.0.1:1 > 10.0.0.2:2");
        assert_eq!(parse("", "f.csv"), Ok(Vec::new()));
        // An IPv4 address in IPv6 notation is what the NIC sees: IPv4.
        let mapped = parse("udp,::ffff:10.0.0.1,1,10.0.0.2,2", "f.csv").unwrap();
        assert!(mapped[0].tuple.source.is_ipv4());
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let flow = "udp,10.0.0.1,1,10.0.0.2,2";
        assert!(
            fails(&format!("{flow},a,1,2,p,/c,0,more")).starts_with("f.csv:1:40: more than the 11 fields")
        );
        assert!(fails(&format!("{flow},a,-1")).starts_with("f.csv:1:29: rate_bps '-1'"));
        assert!(fails(&format!("{flow},a,+1")).starts_with("f.csv:1:29: rate_bps '+1'"));
        assert!(fails(&format!("{flow},µ,x")).starts_with("f.csv:1:29: rate_bps 'x'"));
        assert!(fails(&format!("{flow},,,,,,65536")).starts_with("f.csv:1:32: queue '65536'"));
        assert!(fails("udp,10.0.0.1\x1b[2J,1,10.0.0.2,2").contains("\\u{1b}"));
        // The line of names may come once, and first.
        assert!(
            fails(&format!("{flow}\nprotocol,src,src_port,dst,dst_port")).starts_with("f.csv:2:1: protocol")
        );
    }

    #[test]
    fn made_up_flows_are_different_and_the_same_each_time() {
        let flows: Vec<ObservedFlow> = generate(0, 100_000).collect();
        let tuples: std::collections::HashSet<FlowTuple> = flows.iter().map(|flow| flow.tuple).collect();
        assert_eq!(tuples.len(), flows.len());
        assert!(generate(500, 20).eq(flows[500..520].iter().cloned()));
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_is_written(first in 0_u32..1_000_000, count in 0_u32..40, seed: u16) {
            let known = |flow: ObservedFlow| ObservedFlow {
                class: (seed % 2 == 0).then(|| "high".to_owned()),
                reader: (seed % 3 == 0).then_some(u32::from(seed)),
                process: (seed % 5 == 0).then(|| "memcached".to_owned()),
                cgroup: (seed % 7 == 0).then(|| "/a/b".to_owned()),
                queue: (seed % 11 == 0).then_some(QueueId(seed)),
                ..flow
            };
            let flows: Vec<ObservedFlow> = generate(first, count).map(known).collect();
            prop_assert_eq!(parse(&to_csv(&flows), "f.csv"), Ok(flows));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "(udp|tcp|,|[0-9.:]|\n|#|µ| ){0,60}") {
            drop(parse(&text, "f.csv"));
        }
    }
}
