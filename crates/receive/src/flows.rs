//! Observed flows: five-tuples and optional facts about them, read from a list or generated.
//!
//! The list is CSV (RFC 4180) with one flow per line; `#` starts a comment:
//!
//! ```text
//! protocol,src,src_port,dst,dst_port,class,rate_bps,reader,process,cgroup,queue
//! udp,10.0.0.1,1000,10.0.0.100,11211,high,5000000
//! tcp,10.0.0.2,41000,10.0.0.100,443,,,3,nginx,/system.slice/nginx.service,0
//! ```
//!
//! The first five columns are required; the other columns may be empty or missing. A header line with
//! column names may reorder the columns. The source is the peer, as in received packets. `reader` is
//! the CPU of the thread that reads the flow, `queue` is the flow's current queue.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use csv::{ReaderBuilder, StringRecord, Trim};
use evenkeel_model::text::{counted, excerpt, suggestion};

use crate::{FlowTuple, QueueId, Transport};

/// Largest receive rate of a flow, bit/s: the rate of the fastest link (IEEE P802.3dj).
pub const MOST_RATE_BPS: u64 = 1_600_000_000_000;

/// Maximum number of flows in a list. A search for this number of flows uses at most 500 MB.
pub const MOST_FLOWS: usize = 900_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedFlow {
    pub tuple: FlowTuple,
    /// Name of the flow's class, if known.
    pub class: Option<String>,
    /// Receive rate, bit/s, if known.
    pub rate_bps: Option<u64>,
    /// CPU of the thread that reads the flow.
    pub reader: Option<u32>,
    /// Name of the process that owns the socket (`/proc/PID/comm`).
    pub process: Option<String>,
    /// Path of the socket's cgroup v2, from the root.
    pub cgroup: Option<String>,
    /// Whether it is known that no process reads the flow. Otherwise a missing process, cgroup or reader is
    /// unknown.
    pub is_unowned: bool,
    pub queue: Option<QueueId>,
}

impl ObservedFlow {
    #[must_use]
    pub const fn new(tuple: FlowTuple) -> Self {
        Self {
            tuple,
            class: None,
            rate_bps: None,
            reader: None,
            process: None,
            cgroup: None,
            is_unowned: false,
            queue: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}: {problem}")]
pub struct FlowListError {
    pub origin: String,
    /// Line number, from 1.
    pub line: usize,
    pub problem: String,
}

const COLUMNS: [&str; 11] = [
    "protocol", "src", "src_port", "dst", "dst_port", "class", "rate_bps", "reader", "process", "cgroup",
    "queue",
];
const NEEDED: usize = 5;

/// Parses a list of flows. The number of a flow's current queue must be less than `queues`.
///
/// # Errors
/// Returns an error if the list has no flow, or has a mistake. The error is about the first mistake, and
/// contains the line.
pub fn parse(text: &str, origin: &str, queues: u16) -> Result<Vec<ObservedFlow>, FlowListError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .trim(Trim::All)
        // Append two comment lines, so that a quote that is never closed yields a field with a line break.
        .from_reader(text.as_bytes().chain(b"\n#\n#".as_slice()));
    let mut columns = Columns::in_order();
    let mut place = Place { text, at: 0, line: 1 };
    let mut flows = Vec::new();
    let mut seen = rustc_hash::FxHashMap::default();
    let mut record = StringRecord::new();
    loop {
        let start = reader.position().byte();
        let fails = |line, problem| FlowListError { origin: origin.to_owned(), line, problem };
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return Err(fails(place.line, error.to_string())),
        }
        let line = place.of_record(start as usize);
        let fails = |problem| fails(line, problem);
        if record.iter().all(str::is_empty) {
            continue;
        }
        if record.iter().any(|field| field.contains(['\n', '\r'])) {
            return Err(fails("a field has a line break; check for a missing closing quote".to_owned()));
        }
        if seen.is_empty() && !columns.are_named && is_header(&record) {
            columns = Columns::named(&record).map_err(fails)?;
            continue;
        }
        let flow = columns.flow(&record).map_err(fails)?;
        if let Some(queue) = flow.queue.filter(|queue| queue.0 >= queues) {
            let queues = counted(usize::from(queues), "queue");
            return Err(fails(format!(
                "queue {queue} does not exist: the NIC has {queues}, numbered from 0"
            )));
        }
        if let Some(first) = seen.insert(flow.tuple, line) {
            return Err(fails(format!("the flow is already in line {first}; remove one of the two lines")));
        }
        if flows.len() == MOST_FLOWS {
            return Err(fails(format!("the list has more than {MOST_FLOWS} flows; split the file")));
        }
        flows.push(flow);
    }
    if flows.is_empty() {
        let problem =
            "the list has no flow; write protocol,src,src_port,dst,dst_port on each line".to_owned();
        return Err(FlowListError { origin: origin.to_owned(), line: place.line, problem });
    }
    Ok(flows)
}

/// Position in the text. The type counts lines itself, because the CSV reader does not count the lines
/// that it skips.
struct Place<'t> {
    text: &'t str,
    at: usize,
    line: usize,
}

impl Place<'_> {
    /// Returns the line of the record that starts at or after this byte. `byte` must not decrease between
    /// calls.
    fn of_record(&mut self, byte: usize) -> usize {
        let lines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
        let byte = byte.clamp(self.at, self.text.len());
        self.line += lines(self.text.get(self.at..byte).unwrap_or_default());
        self.at = byte;
        let rest = self.text.get(byte..).unwrap_or_default();
        let passed = rest.split_inclusive('\n').take_while(|line| {
            let content = line.trim_end_matches(['\n', '\r']);
            content.is_empty() || content.starts_with('#')
        });
        self.line + passed.filter(|line| line.ends_with('\n')).count()
    }
}

/// Returns whether a line is the header line: unlike a flow, it has no address and does not begin with a
/// protocol.
fn is_header(record: &StringRecord) -> bool {
    !record.iter().any(|field| field.parse::<IpAddr>().is_ok())
        && !record
            .get(0)
            .is_some_and(|first| ["tcp", "udp"].iter().any(|known| first.eq_ignore_ascii_case(known)))
}

struct Columns {
    /// Field index for each of [`COLUMNS`].
    places: [Option<usize>; COLUMNS.len()],
    fields: usize,
    are_named: bool,
}

impl Columns {
    fn in_order() -> Self {
        Self { places: std::array::from_fn(Some), fields: COLUMNS.len(), are_named: false }
    }

    fn named(header: &StringRecord) -> Result<Self, String> {
        let mut places = [None; COLUMNS.len()];
        for (place, name) in header.iter().enumerate() {
            let known = COLUMNS.iter().position(|known| known.eq_ignore_ascii_case(name));
            let Some(known) = known else {
                return Err(format!(
                    "unknown column '{}'; {}",
                    excerpt(name),
                    suggestion(name, COLUMNS.into_iter())
                ));
            };
            if places[known].replace(place).is_some() {
                return Err(format!("column {} appears twice", COLUMNS[known]));
            }
        }
        match places[..NEEDED].iter().position(Option::is_none) {
            Some(missing) => Err(format!("column {} is missing", COLUMNS[missing])),
            None => Ok(Self { places, fields: header.len(), are_named: true }),
        }
    }

    fn field<'r>(&self, record: &'r StringRecord, column: usize) -> Option<&'r str> {
        record.get(self.places[column]?).filter(|field| !field.is_empty())
    }

    fn needed<'r>(&self, record: &'r StringRecord, column: usize) -> Result<&'r str, String> {
        self.field(record, column).ok_or_else(|| format!("{} is missing", COLUMNS[column]))
    }

    fn flow(&self, record: &StringRecord) -> Result<ObservedFlow, String> {
        if record.len() > self.fields {
            return Err(format!(
                "the line has {} fields, but the list has {} columns",
                record.len(),
                self.fields
            ));
        }
        let protocol = self.needed(record, 0)?;
        let transport = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            _ => return Err(format!("protocol '{}' is neither tcp nor udp", excerpt(protocol))),
        };
        let address = |column| {
            let field = self.needed(record, column)?;
            value::<IpAddr>(column, field, "not an IP address").map(|address| address.to_canonical())
        };
        let port = |column| value::<u16>(column, self.needed(record, column)?, "not a port from 0 to 65535");
        let (source, source_port) = (address(1)?, port(2)?);
        let (destination, destination_port) = (address(3)?, port(4)?);
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(
                "src and dst have different IP versions; write two IPv4 or two IPv6 addresses".to_owned()
            );
        }
        let text = |column| self.field(record, column).map(str::to_owned);
        Ok(ObservedFlow {
            tuple: FlowTuple { transport, source, source_port, destination, destination_port },
            class: text(5),
            rate_bps: self.rate(record)?,
            reader: self.parsed(record, 7, "not a processor number")?,
            process: text(8),
            cgroup: text(9),
            is_unowned: false,
            queue: self.parsed(record, 10, "not a queue number")?.map(QueueId),
        })
    }

    fn rate(&self, record: &StringRecord) -> Result<Option<u64>, String> {
        const RATE: usize = 6;
        let rate = self.parsed(record, RATE, "not a whole number of bit/s up to 1.6 Tbit/s")?;
        if let Some(rate) = rate.filter(|rate| *rate > MOST_RATE_BPS) {
            return Err(format!(
                "{} {rate} is above the speed of the fastest link, 1.6 Tbit/s",
                COLUMNS[RATE]
            ));
        }
        Ok(rate)
    }

    fn parsed<T: FromStr>(
        &self,
        record: &StringRecord,
        column: usize,
        what: &str,
    ) -> Result<Option<T>, String> {
        self.field(record, column).map(|field| value(column, field, what)).transpose()
    }
}

fn value<T: FromStr>(column: usize, field: &str, what: &str) -> Result<T, String> {
    // Rust parses a plus sign, but the format does not allow one.
    let plain = !field.starts_with('+');
    let value = field.parse().ok().filter(|_| plain);
    value.ok_or_else(|| format!("{} '{}' is {what}", COLUMNS[column], excerpt(field)))
}

/// Writes a list of flows in the format of [`parse`].
#[must_use]
pub fn to_csv(flows: &[ObservedFlow]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail, and every line has all columns.
    let _ = writer.write_record(COLUMNS);
    for flow in flows {
        let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        let tuple = &flow.tuple;
        let _ = writer.write_record([
            &tuple.transport.to_string(),
            &tuple.source.to_string(),
            &tuple.source_port.to_string(),
            &tuple.destination.to_string(),
            &tuple.destination_port.to_string(),
            flow.class.as_deref().unwrap_or_default(),
            &number(flow.rate_bps),
            &number(flow.reader.map(u64::from)),
            flow.process.as_deref().unwrap_or_default(),
            flow.cgroup.as_deref().unwrap_or_default(),
            &number(flow.queue.map(|queue| u64::from(queue.0))),
        ]);
    }
    let text = writer.into_inner().unwrap_or_default();
    String::from_utf8(text).unwrap_or_default()
}

/// Generates flows as in Dragonet's experiments (section 4.3): UDP to one address and port, from clients with
/// 16 flows each, at 1 to 512 Mbit/s. The result is deterministic and has no duplicates. `first` is the
/// number of the first flow.
pub fn generate(first: u32, count: u32) -> impl Iterator<Item = ObservedFlow> {
    const FLOWS_OF_A_CLIENT: u32 = 16;
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
    const MEMCACHED: u16 = 11211;
    (first..first.saturating_add(count)).map(|number| {
        let client = number / FLOWS_OF_A_CLIENT;
        // Choose ports as a client's kernel does: spread over the ephemeral range, and distinct for each flow
        // of a client, because step and range are coprime.
        let step = (u64::from(number) * 7919 + u64::from(client) * 104_729) % 28_231;
        let source = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + client % (1 << 23));
        let tuple = FlowTuple {
            transport: Transport::Udp,
            source: IpAddr::V4(source),
            source_port: 32_768 + step as u16,
            destination: IpAddr::V4(SERVER),
            destination_port: MEMCACHED,
        };
        let rate_bps = Some(1_000_000 << (number.wrapping_mul(7) % 10));
        ObservedFlow { rate_bps, is_unowned: true, ..ObservedFlow::new(tuple) }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn fails(text: &str) -> String {
        parse(text, "f.csv", 1000).unwrap_err().to_string()
    }

    #[test]
    fn names_remarks_and_blanks_are_passed_over() {
        let text = "\u{feff}# clients\n\nPROTOCOL,src,src_port,dst,dst_port,class\n  \n tcp , 10.0.0.1,1,10.0.0.2,2,\r\n";
        let flows = parse(text, "f.csv", u16::MAX).unwrap();
        assert_eq!((flows.len(), flows[0].class.as_deref(), flows[0].rate_bps), (1, None, None));
        assert_eq!(flows[0].tuple.to_string(), "tcp 10.0.0.1:1 > 10.0.0.2:2");
        // The NIC sees an IPv4-mapped address as IPv4.
        let mapped = parse("udp,::ffff:10.0.0.1,1,10.0.0.2,2", "f.csv", u16::MAX).unwrap();
        assert!(mapped[0].tuple.source.is_ipv4());
    }

    #[test]
    fn named_columns_have_any_order_and_quotes_hold_commas() {
        let text = "class,dst_port,dst,src_port,src,protocol\n\"a, \"\"b\"\"\",2,10.0.0.2,1,10.0.0.1,udp\n";
        let flows = parse(text, "f.csv", u16::MAX).unwrap();
        assert_eq!(flows[0].tuple.to_string(), "udp 10.0.0.1:1 > 10.0.0.2:2");
        assert_eq!(flows[0].class.as_deref(), Some("a, \"b\""));
        assert_eq!(parse(&to_csv(&flows), "f.csv", u16::MAX).unwrap(), flows);
    }

    #[test]
    fn mistakes_are_told_with_their_line_and_column() {
        let flow = "udp,10.0.0.1,1,10.0.0.2,2";
        assert_eq!(
            fails(&format!("{flow},a,1,2,p,/c,0,more")),
            "f.csv:1: the line has 12 fields, but the list has 11 columns"
        );
        assert!(fails(&format!("{flow},a,-1")).starts_with("f.csv:1: rate_bps '-1' is no"));
        assert!(fails(&format!("{flow},a,+1")).starts_with("f.csv:1: rate_bps '+1' is no"));
        assert!(fails(&format!("{flow},,,,,,65536")).starts_with("f.csv:1: queue '65536' is no"));
        assert_eq!(
            fails(&format!("{flow}\n{flow}0,,,,,,1000")),
            "f.csv:2: queue 1000 does not exist: the NIC has 1,000 queues, numbered from 0"
        );
        assert!(fails("udp,10.0.0.1\x1b[2J,1,10.0.0.2,2").contains("\\u001b"));
        assert_eq!(fails("udp,10.0.0.1,1,10.0.0.2"), "f.csv:1: dst_port is missing");
        // Comments, empty lines and quoted line breaks must not shift the reported line number.
        let before = format!("\n# a\n\nprotocol,src,src_port,dst,dst_port,class\r\n\r\n{flow},\"x\"\n#\n");
        assert_eq!(
            fails(&format!("{before}{flow}")),
            "f.csv:8: the flow is already in line 6; remove one of the two lines"
        );
        assert!(
            fails(&format!("{before}sctp,10.0.0.1,1,10.0.0.2,2")).starts_with("f.csv:8: protocol 'sctp'")
        );
        for unclosed in ["\"a\nudp,10.0.0.3,1,10.0.0.2,2\n", "\"a,5\n", "\"a,5", "\"a", "\"", "a,1,1,\"p\n"] {
            let message = fails(&format!("{flow},{unclosed}"));
            assert!(message.starts_with("f.csv:1: a field has a line break"), "{unclosed:?}: {message}");
        }
    }

    #[test]
    fn columns_that_do_not_exist_are_named() {
        let named = |names: &str| fails(&format!("{names}\nudp,10.0.0.1,1,10.0.0.2,2,a\n"));
        assert!(
            named("protocol,src,src_port,dst,dst_port,klass")
                .starts_with("f.csv:1: unknown column 'klass'; did you mean 'class'?")
        );
        assert!(
            named("proto,source,sport,destination,dport,a").starts_with("f.csv:1: unknown column 'proto'")
        );
        assert_eq!(named("protocol,src,src_port,dst,class"), "f.csv:1: column dst_port is missing");
        assert_eq!(named("protocol,src,src_port,dst,dst_port,SRC"), "f.csv:1: column src appears twice");
        // A header line is only accepted as the first line.
        let flow = "udp,10.0.0.1,1,10.0.0.2,2";
        assert!(
            fails(&format!("{flow}\nprotocol,src,src_port,dst,dst_port")).starts_with("f.csv:2: protocol")
        );
    }

    #[test]
    fn a_list_without_flows_is_a_mistake() {
        for text in ["", "\n\n", "# none\n", "protocol,src,src_port,dst,dst_port\n", "\u{feff}"] {
            assert!(fails(text).contains("the list has no flow; write "), "{text:?}");
        }
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
                is_unowned: false,
                queue: (seed % 11 == 0).then_some(QueueId(seed)),
                ..flow
            };
            let flows: Vec<ObservedFlow> = generate(first, count).map(known).collect();
            let list = parse(&to_csv(&flows), "f.csv", u16::MAX);
            prop_assert_eq!(list.ok(), Some(flows).filter(|flows| !flows.is_empty()));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "(udp|tcp|,|src|[0-9.:]|\n|\r|#|\"|µ| ){0,60}") {
            if let Ok(flows) = parse(&text, "f.csv", u16::MAX) {
                prop_assert_eq!(parse(&to_csv(&flows), "f.csv", u16::MAX), Ok(flows));
            }
        }
    }
}
