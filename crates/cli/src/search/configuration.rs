//! The configuration that a search has found: all settings that determine the queues of the flows.

use evenkeel_model::shell::Line;
use evenkeel_receive::policy::queue_ranges;
use evenkeel_receive::search::Search;
use evenkeel_receive::{AddressMatch, ConfiguredNic, Filter, PortMatch, QueueId, Transport};
use evenkeel_report::page::Page;
use serde::Serialize;

use crate::progress::page;

#[derive(Serialize)]
pub struct Configuration<'n> {
    pub filters: Vec<FilterView<'n>>,
    /// RSS, if it decides for a flow or its table differs from the default.
    pub rss: Option<RssView>,
    /// Indirection tables of the RSS contexts. An empty list is left out of the JSON, because replaying
    /// filters without contexts does not need it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<Vec<u16>>,
}

#[derive(Serialize)]
pub struct FilterView<'n> {
    table: &'n str,
    priority: u32,
    protocol: Option<&'static str>,
    src: Option<String>,
    src_port: Option<PortView>,
    dst: Option<String>,
    dst_port: Option<PortView>,
    queue: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<u16>,
}

/// A port as a number. A port with a mask is text.
#[derive(Serialize)]
#[serde(untagged)]
enum PortView {
    Exact(u16),
    Masked(String),
}

#[derive(Serialize)]
pub struct RssView {
    hash: &'static str,
    key: String,
    /// Kinds of flows whose ports are hashed.
    ports: Vec<String>,
    indirection: Vec<u16>,
    /// Whether the table is the default of Linux drivers.
    default: bool,
}

impl<'n> Configuration<'n> {
    pub fn of(search: &'n Search) -> Self {
        let nic = search.nic();
        Self {
            filters: nic.filters().map(|(_, filter)| FilterView::of(nic, filter)).collect(),
            rss: RssView::of(search),
            contexts: nic.contexts().iter().map(|table| numbers(table)).collect(),
        }
    }
}

impl<'n> FilterView<'n> {
    fn of(nic: &'n ConfiguredNic, filter: &Filter) -> Self {
        let matches = &filter.matches;
        let address = |matched: Option<AddressMatch>| matched.map(|address| address.to_string());
        let port = |matched: Option<PortMatch>| match matched? {
            port if port.is_exact() => Some(PortView::Exact(port.port())),
            port => Some(PortView::Masked(port.to_string())),
        };
        Self {
            table: &nic.model().tables()[filter.table.index()].name,
            priority: filter.priority,
            protocol: matches.transport.map(Transport::name),
            src: address(matches.source),
            src_port: port(matches.source_port),
            dst: address(matches.destination),
            dst_port: port(matches.destination_port),
            queue: Some(filter.queue.0).filter(|_| !filter.spread),
            context: filter.context.map(|context| context.0),
        }
    }
}

impl RssView {
    fn of(search: &Search) -> Option<Self> {
        let (nic, map) = (search.nic(), search.map());
        let is_hashed = |filter: Option<&Filter>| filter.is_none_or(|filter| filter.spread);
        let decides = map
            .flows()
            .any(|(index, _, _)| is_hashed(map.deciding_filter(index).and_then(|filter| nic.filter(filter))));
        let default = nic.indirection() == nic.default_indirection();
        if nic.indirection().is_empty() || (default && !decides) {
            return None;
        }
        let ports = nic.hashed_ports();
        let kinds = [Transport::Tcp, Transport::Udp].map(|transport| [(transport, false), (transport, true)]);
        let hashed =
            kinds.as_flattened().iter().filter(|(transport, is_ipv6)| ports.of(*transport, *is_ipv6));
        let kind = |(transport, is_ipv6): &(Transport, bool)| {
            format!("{transport}-{}", if *is_ipv6 { "ipv6" } else { "ipv4" })
        };
        Some(Self {
            hash: "toeplitz",
            key: nic.rss_key().0.iter().map(|byte| format!("{byte:02x}")).collect(),
            ports: hashed.map(kind).collect(),
            indirection: numbers(nic.indirection()),
            default,
        })
    }
}

fn numbers(queues: &[QueueId]) -> Vec<u16> {
    queues.iter().map(|queue| queue.0).collect()
}

/// Returns the indirection tables of the RSS contexts and, if [`Configuration::rss`] is set, the RSS
/// settings. If `device` is given, too, adds the command that sets its RSS key.
pub fn hash_page(search: &Search, device: Option<&str>) -> Page {
    let mut page = page();
    for (number, table) in search.nic().contexts().iter().enumerate() {
        page.labelled(&format!("RSS context {number}: "), &entries(&numbers(table)));
    }
    let Some(rss) = RssView::of(search) else { return page };
    let note = if rss.default { "the default" } else { "not the default" };
    let ports = if rss.ports.is_empty() { "none".to_owned() } else { rss.ports.join(", ") };
    page.labelled("RSS table: ", &format!("{note}, {}", entries(&rss.indirection)));
    page.labelled("RSS hashes ports of: ", &ports);
    if let Some(device) = device {
        page.line("RSS key:");
        page.shell(6, &Line::new("ethtool -X {} hkey {}", &[&device, &colons(&rss.key)]).to_string());
    }
    page
}

/// Returns a key as `ethtool -x` prints it.
fn colons(key: &str) -> String {
    let mut text = String::new();
    for (at, digit) in key.chars().enumerate() {
        if at > 0 && at.is_multiple_of(2) {
            text.push(':');
        }
        text.push(digit);
    }
    text
}

/// Formats the entries of an indirection table. Shows a repeated part once.
fn entries(table: &[u16]) -> String {
    let repeats = |length: &usize| table.iter().eq(table[..*length].iter().cycle().take(table.len()));
    let length = (1..=table.len() / 2).find(repeats).unwrap_or(table.len());
    let part = &table[..length];
    let is_ascending = part.windows(2).all(|pair| pair[0] < pair[1]);
    let queues = if is_ascending {
        queue_ranges(&part.iter().copied().map(QueueId).collect::<Vec<_>>())
    } else {
        part.iter().map(u16::to_string).collect::<Vec<_>>().join(" ")
    };
    let turn = if length < table.len() && length > 1 { " round robin" } else { "" };
    format!("{} entries: {queues}{turn}", table.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_entries_are_written_once() {
        for (table, text) in [
            (&[1, 2, 3, 1, 2, 3, 1, 2][..], "8 entries: 1-3 round robin"),
            (&[0, 0, 0, 0], "4 entries: 0"),
            (&[0, 2, 1, 0], "4 entries: 0 2 1 0"),
            (&[0, 1, 2, 3], "4 entries: 0-3"),
        ] {
            assert_eq!(entries(table), text);
        }
        assert_eq!(colons("6d5a56"), "6d:5a:56");
    }
}
