//! Configuration files of a NIC: its queues, its indirection table and its filters.
//!
//! ```toml
//! queues = 4
//! indirection = "off"     # or the queue of each entry; default: all queues round robin
//!
//! rss-key = "6d:5a:..."   # as `ethtool -x` prints it; default: the key of Microsoft's RSS specification
//! hashed-ports = ["tcp-ipv4"]  # flows for which RSS also hashes the ports; default: the model's
//!
//! [[filter]]
//! table = "five-tuple"
//! priority = 1            # default: the lowest one, or the lowest free location
//! protocol = "udp"
//! dst = "10.0.0.1"        # or "10.0.0.0/8"; src likewise
//! dst-port = 53           # or "0x35/0xff", a port and its mask; src-port likewise
//! queue = 3
//! ```

use std::net::IpAddr;

use evenkeel_model::scenario::ScenarioErrorKind::{BadValue, UnknownName};
use evenkeel_model::scenario::document::{Complaints, Field, Spelling, Table, document};

use crate::filter::{AddressMatch, Filter, FilterMatch, PortMatch, QueueId, TableId};
use crate::flow::Transport;
use crate::nic::{
    ConfiguredNic, InsertError, ModelError, NicModel, Precedence, RssKey, hexadecimal_bytes,
    read_hashed_ports,
};

const TRANSPORTS: [Spelling<Transport>; 2] = [("tcp", Transport::Tcp), ("udp", Transport::Udp)];

impl NicModel {
    /// Reads a configuration of this NIC. `origin` names the text in errors; `queues` is the default number
    /// of queues.
    ///
    /// # Errors
    /// Returns an error if the text is invalid, or the NIC refuses a filter: the first mistake, with line and
    /// column.
    pub fn configured(&self, text: &str, origin: &str, queues: u16) -> Result<ConfiguredNic, ModelError> {
        let tree = document(text, origin)?;
        let complaints = Complaints::new(text, origin);
        let mut root = Table::root(tree.get_ref(), &complaints);
        let (least, most) = (self.queues_least(), self.queues());
        let field = root.take("queues");
        let given = field.and_then(|field| field.integer(u32::from(least)..=u32::from(most)));
        let queues = given.map_or(queues.clamp(least, most), |given| u16::try_from(given).unwrap_or(most));
        // Cannot fail: the number of queues is in the range of the model.
        let mut nic =
            ConfiguredNic::new(self, queues).map_err(|error| unplaced(origin, &error.to_string()))?;
        if let Some(field) = root.take("indirection") {
            read_indirection(&field, &mut nic);
        }
        if let Some(field) = root.take("rss-key") {
            match field.string("a key, as ethtool -x prints it").map(RssKey::parse) {
                Some(Some(key)) => nic.set_rss_key(key),
                Some(None) => field.complain(
                    BadValue,
                    "not a key of at least 40 bytes",
                    "write two hexadecimal digits for each byte, as in \"6d:5a:...\"",
                ),
                None => {}
            }
        }
        if let Some(ports) = root.take("hashed-ports").and_then(|field| read_hashed_ports(&field)) {
            nic.set_hashed_ports(ports);
        }
        for field in
            root.take("filter").and_then(|field| field.list("tables, each [[filter]]")).into_iter().flatten()
        {
            let read = field.table().and_then(|table| read_filter(table, &nic));
            let Some((filter, queue)) = read else { continue };
            match nic.insert(filter) {
                Ok(_) => {}
                Err(InsertError::NoQueue) => queue.complain(
                    BadValue,
                    format!("filters of this table cannot name queue {}", filter.queue),
                    queues_of(&nic, filter.table),
                ),
                Err(InsertError::Unsupported | InsertError::NoRss) => field.complain(
                    BadValue,
                    format!("the model {} does not support this filter", self.name()),
                    unsupported(&nic, &filter),
                ),
                Err(error) => field.complain(
                    BadValue,
                    format!("the model {} cannot install this filter", self.name()),
                    error.to_string(),
                ),
            }
        }
        root.finish();
        complaints.into_error().map_or(Ok(nic), Err)
    }
}

fn unplaced(origin: &str, problem: &str) -> ModelError {
    ModelError {
        kind: BadValue,
        origin: origin.to_owned(),
        line: 1,
        column: 1,
        key: String::new(),
        problem: problem.to_owned(),
        advice: String::new(),
    }
}

/// Returns advice on the queues that filters of a table can name.
fn queues_of(nic: &ConfiguredNic, table: TableId) -> String {
    let multiple = nic.model().tables()[table.index()].queue_multiple;
    let last = (nic.queues() - 1) / multiple * multiple;
    match multiple {
        1 => format!("write a queue from 0 to {last}"),
        _ => format!("write a multiple of {multiple} from 0 to {last}"),
    }
}

fn unsupported(nic: &ConfiguredNic, filter: &Filter) -> String {
    let table = &nic.model().tables()[filter.table.index()];
    let obstacles = table.fields.obstacles(&filter.matches);
    let reason = if !obstacles.is_empty() {
        obstacles.join(", ")
    } else if nic.supports(filter.table, &filter.matches) {
        "filters of this table cannot send packets to RSS, or RSS is off".to_owned()
    } else {
        "no packet with these fields reaches this table".to_owned()
    };
    format!("table {}: {reason}; `evenkeel nic show` without --config shows the tables", table.name)
}

fn read_indirection(field: &Field<'_>, nic: &mut ConfiguredNic) {
    let indirection = if field.is_string() {
        field.one_of(&[("off", ())]).map(|()| Vec::new())
    } else {
        let queue = |field: Field<'_>| field.integer(0..=u32::from(u16::MAX)).and_then(queue_id);
        field.list("queues").and_then(|list| list.into_iter().map(queue).collect())
    };
    if field.is_list() && indirection.as_ref().is_some_and(Vec::is_empty) {
        field.complain(BadValue, "the indirection table has no entries", "write \"off\" to turn RSS off");
    } else if let Some(indirection) = indirection
        && let Err(error) = nic.set_indirection(indirection)
    {
        field.complain(BadValue, error.to_string(), "");
    }
}

fn queue_id(number: u32) -> Option<QueueId> {
    u16::try_from(number).ok().map(QueueId)
}

fn read_match(table: &mut Table<'_>) -> Option<FilterMatch> {
    // Read all fields before returning, so that the first error is reported.
    let transport = table.take("protocol").map(|field| field.one_of(&TRANSPORTS));
    let source = table.take("src").map(|field| address(&field));
    let source_port = table.take("src-port").map(|field| port(&field));
    let destination = table.take("dst").map(|field| address(&field));
    let destination_port = table.take("dst-port").map(|field| port(&field));
    let ether_type = table.take("ether-type").map(|field| field.integer(0..=u32::from(u16::MAX)));
    let mac = table.take("mac").map(|field| mac(&field));
    let request = table.take("connection-request").map(|field| field.boolean());
    Some(FilterMatch {
        transport: optional(transport)?,
        source: optional(source)?,
        source_port: optional(source_port)?,
        destination: optional(destination)?,
        destination_port: optional(destination_port)?,
        ether_type: optional(ether_type)?.and_then(|number| u16::try_from(number).ok()),
        mac_destination: optional(mac)?,
        connection_request: optional(request)?,
    })
}

/// Returns `None` for an invalid field and `Some(None)` for an absent field.
fn optional<T>(field: Option<Option<T>>) -> Option<Option<T>> {
    match field {
        Some(None) => None,
        Some(value) => Some(value),
        None => Some(None),
    }
}

/// Reads a filter. Returns it with the field of its queue, for messages about the queue.
fn read_filter<'t>(mut table: Table<'t>, nic: &ConfiguredNic) -> Option<(Filter, Field<'t>)> {
    let model = nic.model();
    let name = table.require("table", "name the filter table");
    let id = name.and_then(|field| {
        let name = field.string("the name of a filter table")?;
        let id = model.table(name);
        if id.is_none() {
            let known: Vec<&str> = model.tables().iter().map(|table| table.name.as_str()).collect();
            if known.is_empty() {
                let advice = "remove the filter, or use a model with a filter table (`evenkeel nic list`)";
                field.complain(UnknownName, format!("{} has no filter table", model.name()), advice);
            } else {
                field.unknown_name("filter table", name, known.into_iter());
            }
        }
        id
    });
    let priority = table.take("priority").map(|field| {
        let Some(id) = id else { return Some(0) };
        let description = &model.tables()[id.index()];
        let number = field.integer(0..=u32::MAX)?;
        if description.priorities().contains(&number) {
            return Some(number);
        }
        let (least, most) = description.priorities().into_inner();
        let advice = match description.precedence {
            Precedence::Unique => "this table has no priorities: remove the key".to_owned(),
            Precedence::Priority { .. } => format!("write a priority from {least} to {most}"),
            Precedence::Location => {
                format!("the priority is the filter's location: write a number from {least} to {most}")
            }
        };
        field.complain(BadValue, format!("{number} is not a priority of table {}", description.name), advice);
        None
    });
    let matches = read_match(&mut table);
    let queue = table.require("queue", "for example queue = 3");
    let number = queue.as_ref().and_then(|field| field.integer(0..=u32::from(u16::MAX)));
    let spread = table.take("spread").map(|field| field.boolean());
    table.finish();
    let id = id?;
    let description = &model.tables()[id.index()];
    let first = match description.precedence {
        Precedence::Location => nic.free_location(id).unwrap_or(0),
        _ => *description.priorities().start(),
    };
    let filter = Filter {
        table: id,
        priority: optional(priority)?.unwrap_or(first),
        matches: matches?,
        queue: queue_id(number?)?,
        spread: optional(spread)?.unwrap_or(false),
        context: None,
    };
    Some((filter, queue?))
}

/// Reads an address, or a network as `address/length`.
fn address(field: &Field<'_>) -> Option<AddressMatch> {
    let text = field.string("an address, such as \"10.0.0.1\", or a network, such as \"10.0.0.0/8\"")?;
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        field.complain(BadValue, "not an IP address", "write \"10.0.0.1\", \"fd00::1\" or \"10.0.0.0/8\"");
        return None;
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    match length.map(str::parse::<u8>) {
        None => Some(AddressMatch::exact(address)),
        Some(Ok(length)) if length <= most => Some(AddressMatch::prefix(address, length)),
        Some(_) => {
            field.complain(
                BadValue,
                "the network has an invalid prefix length",
                format!("write a length from 0 to {most}"),
            );
            None
        }
    }
}

/// Reads a port, or a port and its mask as `"0x35/0xff"`.
fn port(field: &Field<'_>) -> Option<PortMatch> {
    if !field.is_string() {
        let port = field.integer(0..=u32::from(u16::MAX))?;
        return u16::try_from(port).ok().map(PortMatch::exact);
    }
    let text = field.string("a port")?;
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let read =
        text.split_once('/').and_then(|(port, mask)| Some(PortMatch::masked(number(port)?, number(mask)?)));
    if read.is_none() {
        field.complain(
            BadValue,
            "not a port and its mask",
            "write 53 without quotes, or \"0x35/0xff\" to match some bits of the port",
        );
    }
    read
}

fn mac(field: &Field<'_>) -> Option<[u8; 6]> {
    let text = field.string("a hardware address, such as \"02:00:00:00:00:01\"")?;
    let mac = hexadecimal_bytes(text).and_then(|bytes| bytes.try_into().ok());
    if mac.is_none() {
        field.complain(BadValue, "not a hardware address", "write six bytes, as in \"02:00:00:00:00:01\"");
    }
    mac
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::FlowTuple;

    #[test]
    fn filters_behind_others_get_no_flow() {
        let model = NicModel::built_in("i82599").unwrap();
        let filter = |priority: u8, fields: &str| {
            format!("[[filter]]\ntable = 'five-tuple'\npriority = {priority}\nqueue = {priority}\n{fields}\n")
        };
        let tcp = "protocol = 'tcp'\ndst = '10.0.0.1'\n";
        let narrow = format!("{tcp}dst-port = 80");
        for (first, second, expected) in [
            (filter(1, &narrow), filter(1, &narrow), [true, false]),
            (filter(1, &narrow), filter(2, &narrow), [false, true]),
            (filter(2, tcp), filter(1, &narrow), [true, false]),
            (filter(1, tcp), filter(2, &narrow), [true, true]),
            (filter(2, &narrow), filter(1, tcp), [true, true]),
            (filter(1, "protocol = 'udp'"), filter(1, &narrow), [true, true]),
        ] {
            let nic = model.configured(&[first.as_str(), &second].concat(), "x.toml", 4).unwrap();
            let decides: Vec<bool> = nic.filters().map(|(id, filter)| nic.decides(id, filter)).collect();
            assert_eq!(decides, expected, "{first}{second}");
        }
    }

    #[test]
    fn a_configuration_is_read_as_it_says() {
        let model = NicModel::built_in("i82599").unwrap();
        let text = r#"
            queues = 4
            indirection = "off"
            [[filter]]
            table = "five-tuple"
            protocol = "udp"
            dst = "10.0.0.1"
            dst-port = 53
            queue = 3
            [[filter]]
            table = "flow-director"
            protocol = "tcp"
            src = "10.1.0.0/16"
            dst-port = "0x50/0xfff0"
            queue = 2
        "#;
        let nic = model.configured(text, "x.toml", 1).unwrap();
        let flow = |transport, source: &str, port| FlowTuple {
            transport,
            source: source.parse().unwrap(),
            source_port: 9,
            destination: "10.0.0.1".parse().unwrap(),
            destination_port: port,
        };
        assert_eq!(nic.queue_of(&flow(Transport::Udp, "10.1.2.3", 53)), QueueId(3));
        assert_eq!(nic.queue_of(&flow(Transport::Tcp, "10.1.2.3", 0x5f)), QueueId(2));
        assert_eq!(nic.queue_of(&flow(Transport::Tcp, "10.1.2.3", 0x60)), QueueId(0));
        assert_eq!(nic.queue_of(&flow(Transport::Tcp, "10.2.2.3", 0x5f)), QueueId(0));
    }

    #[test]
    fn the_hash_is_that_of_the_file() {
        let model = NicModel::built_in("i82599").unwrap();
        let key = vec!["ff"; 40].join(":");
        let text = format!("rss-key = \"{key}\"\nhashed-ports = [\"udp-ipv4\"]");
        let nic = model.configured(&text, "x.toml", 16).unwrap();
        assert_eq!(nic.rss_key(), &RssKey([0xff; 40]));
        let hashed = |transport, is_ipv6| nic.hashed_ports().of(transport, is_ipv6);
        assert!(hashed(Transport::Udp, false));
        assert!(!hashed(Transport::Udp, true) && !hashed(Transport::Tcp, false));
    }

    #[test]
    fn no_table_takes_addresses_of_two_ip_versions() {
        for model in NicModel::built_in_names().filter_map(NicModel::built_in) {
            for table in model.tables().iter().map(|table| &table.name) {
                let text = format!(
                    "[[filter]]\ntable = '{table}'\nprotocol = 'tcp'\nsrc = '10.0.0.1'\nsrc-port = 1\n\
                     dst = '2001:db8::1'\ndst-port = 3\nqueue = 0"
                );
                let error = model.configured(&text, "x.toml", 4).unwrap_err().to_string();
                let wanted = format!(
                    "filter[0]: the model {} does not support this filter; table {table}: ",
                    model.name()
                );
                assert!(error.contains(&wanted), "{error}");
                assert!(!error.contains("spread"), "{error}");
            }
        }
    }

    #[test]
    fn mistakes_have_a_place() {
        let model = NicModel::built_in("i82599").unwrap();
        let message = |text: &str| model.configured(text, "x.toml", 4).unwrap_err().to_string();
        for (text, wanted) in [
            ("queues = 129", "x.toml:1:10: queues: 129 is out of range"),
            (
                "indirection = [0, 1]",
                "x.toml:1:15: indirection: an indirection table of length 2 does not fit the NIC; write 128 \
                 entries",
            ),
            (
                "[[filter]]\ntable = 'five'\nqueue = 0",
                "x.toml:2:9: filter[0].table: unknown filter table 'five'",
            ),
            (
                "[[filter]]\ntable = 'five-tuple'\nqueue = 9",
                "x.toml:3:9: filter[0].queue: filters of this table cannot name queue 9; write a queue from 0 to 3",
            ),
            (
                "[[filter]]\ntable = 'five-tuple'\nether-type = 2048\nqueue = 3",
                "x.toml:1:1: filter[0]: the model i82599 does not support this filter; table five-tuple: it does \
                 not match on ether-type;",
            ),
            (
                "[[filter]]\ntable = 'five-tuple'\ndst-port = '0x30/0xfff0'\nqueue = 3",
                "x.toml:1:1: filter[0]: the model i82599 does not support this filter; table five-tuple: it takes \
                 dst-port only whole",
            ),
            (
                "[[filter]]\ntable = 'five-tuple'\ndst = 'fe80::1'\nqueue = 3",
                "x.toml:1:1: filter[0]: the model i82599 does not support this filter; table five-tuple: no packet \
                 with these fields",
            ),
            (
                "[[filter]]\ntable = 'five-tuple'\npriority = 9\nqueue = 3",
                "x.toml:3:12: filter[0].priority: 9 is not a priority of table five-tuple; write a priority from 1 to 7",
            ),
            (
                "[[filter]]\ntable = 'flow-director'\npriority = 1\nqueue = 3",
                "x.toml:3:12: filter[0].priority: 1 is not a priority of table flow-director; this table has no priorities: remove",
            ),
            (
                "indirection = []",
                "x.toml:1:15: indirection: the indirection table has no entries; write \"off\" to turn RSS off",
            ),
            (
                "[[filter]]\ntable = 'syn'\ndst = '10.0.0.0/33'\nqueue = 0",
                "x.toml:3:7: filter[0].dst: the network has an invalid prefix length",
            ),
            ("rss-key = '6d:5a'", "x.toml:1:11: rss-key: not a key of at least 40 bytes"),
            ("hashed-ports = ['sctp']", "x.toml:1:17: hashed-ports[0]: 'sctp' is not a value of this key"),
            (
                "[[filter]]\ntable = 'syn'\nsource = '10.0.0.1'\nqueue = 0",
                "x.toml:3:1: filter[0].source: unknown key",
            ),
            (
                "[[filter]]\ntable = 'syn'\ndst-port = '53'\nqueue = 0",
                "x.toml:3:12: filter[0].dst-port: not a port",
            ),
            (
                "[[filter]]\ntable = 'mac-pools'\nmac = '02:00'\nqueue = 0",
                "x.toml:3:7: filter[0].mac: not a hardware",
            ),
        ] {
            let message = message(text);
            assert!(message.starts_with(wanted), "{message}");
        }
    }
}
