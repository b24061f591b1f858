//! The workload of clients with a server: a closed loop over UDP.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::error::ScenarioErrorKind::{BadValue, Duplicate};
use super::knobs::spelled;
use super::sections::FLOWS;
use super::toml_table::{Field, Table};
use super::value::Spelling;
use super::{Measure, RequestClients, Requests, ServerKind};
use crate::record::metric;
use crate::text::excerpt;
use crate::units::Nanoseconds;

const SERVERS: [Spelling<ServerKind>; 2] = [("echo", ServerKind::Echo), ("memcached", ServerKind::Memcached)];
/// Maximum number of groups of clients; each group has separate figures.
const MOST_GROUPS: usize = 16;
/// Allowed flows per client; each flow uses its own UDP port.
const CLIENT_FLOWS: RangeInclusive<u32> = 1..=1024;
const OUTSTANDING: RangeInclusive<u32> = 1..=1024;
/// Maximum number of outstanding requests of all clients: more than any NIC's ring holds.
const MOST_OUTSTANDING: u64 = 1_000_000;
/// Allowed numbers of client hosts. The hosts and the server have addresses in one /24 network.
const CLIENT_HOSTS: RangeInclusive<u32> = 1..=250;
// `TIMES` are the allowed start times of clients, `STAYS` the allowed durations of their presence.
const TIMES: RangeInclusive<Nanoseconds> = Nanoseconds::new(0)..=Nanoseconds::from_secs(24 * 3600);
const STAYS: RangeInclusive<Nanoseconds> = Nanoseconds::from_millis(1)..=Nanoseconds::from_secs(24 * 3600);
/// Allowed times after which clients replace a lost request. The keyword `NEVER` disables the
/// replacement.
const TIMEOUTS: RangeInclusive<Nanoseconds> = Nanoseconds::from_micros(1)..=Nanoseconds::from_secs(24 * 3600);
const NEVER: &str = "never";
/// Default timeout with a memcached server: memaslap's (`SOCK_WAIT_TIMEOUT`, libmemcached,
/// clients/ms_conn.h). With an echo server, the default is no timeout, as in netperf's UDP_RR.
const MEMASLAP_TIMEOUT: Nanoseconds = Nanoseconds::from_secs(30);

impl fmt::Display for ServerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(spelled(*self, &SERVERS))
    }
}

impl Requests {
    /// Returns the groups of clients that run in a variant, in the order of the file.
    pub fn clients_with<'r>(&'r self, variant: &'r str) -> impl Iterator<Item = &'r RequestClients> + Clone {
        self.clients.iter().filter(move |group| {
            group.variants.as_ref().is_none_or(|variants| variants.iter().any(|name| name == variant))
        })
    }
}

/// Reads the keys of `[workload]` with requests. `measure` limits the clients' times. `variants` are
/// the known names, or `None` if the names could not be read.
pub(super) fn read_requests(
    table: &mut Table<'_>,
    measure: Option<&Measure>,
    variants: Option<&BTreeSet<&str>>,
) -> Option<Requests> {
    let server = table.require("server", "for example server = \"echo\"");
    let server = server.and_then(|field| field.one_of(&SERVERS));
    let hosts = table.require("client-hosts", "for example client-hosts = 4");
    let hosts = hosts.and_then(|field| field.integer(CLIENT_HOSTS));
    let sets = match table.take("set-percent") {
        Some(field) if server == Some(ServerKind::Echo) => {
            field.at_key().complain(BadValue, "an echo server stores no values", "remove the key");
            None
        }
        Some(field) => field.integer(0..=100),
        None if server == Some(ServerKind::Memcached) => {
            table.missing(
                "set-percent",
                "write the share of set requests in per cent, for example set-percent = 10",
            );
            None
        }
        None => Some(0),
    };
    let clients = table.require("clients", "add for example [[workload.clients]] with name = \"all\"");
    let clients = clients.and_then(|field| read_groups(&field, measure, variants));
    let timeout = match table.take("timeout") {
        Some(field) if field.text() == Some(NEVER) => Some(None),
        Some(field) => field.quantity(TIMEOUTS, "30s").map(Some),
        None => Some(server.filter(|server| *server == ServerKind::Memcached).map(|_| MEMASLAP_TIMEOUT)),
    };
    Some(Requests {
        server: server?,
        client_hosts: hosts?,
        set_percent: sets?,
        timeout: timeout?,
        clients: clients?,
    })
}

fn read_groups(
    field: &Field<'_>,
    measure: Option<&Measure>,
    variants: Option<&BTreeSet<&str>>,
) -> Option<Vec<RequestClients>> {
    let elements = field.list("tables, each [[workload.clients]]")?;
    if elements.is_empty() || elements.len() > MOST_GROUPS {
        let problem = format!("the workload has {} groups of clients", elements.len());
        field.complain(BadValue, problem, format!("write 1 to {MOST_GROUPS} groups"));
        return None;
    }
    let mut names = BTreeSet::new();
    let groups: Vec<Option<RequestClients>> =
        elements.iter().map(|element| read_group(element.table()?, measure, variants, &mut names)).collect();
    let groups: Vec<RequestClients> = groups.into_iter().collect::<Option<_>>()?;
    let flows: u64 = groups.iter().map(|group| u64::from(group.count) * u64::from(group.flows)).sum();
    if flows > u64::from(*FLOWS.end()) {
        let problem = format!("the groups have {flows} flows in total");
        field.complain(BadValue, problem, format!("use at most {}", FLOWS.end()));
        return None;
    }
    let outstanding: u64 = groups.iter().map(RequestClients::outstanding_in_all).sum();
    if outstanding > MOST_OUTSTANDING {
        let problem = format!("the groups have {outstanding} requests outstanding at a time");
        field.complain(BadValue, problem, format!("use at most {MOST_OUTSTANDING}"));
        return None;
    }
    Some(groups)
}

fn read_group(
    mut table: Table<'_>,
    measure: Option<&Measure>,
    variants: Option<&BTreeSet<&str>>,
    names: &mut BTreeSet<String>,
) -> Option<RequestClients> {
    let name = table.require("name", "for example name = \"best-effort\"").and_then(|field| {
        let name = field.name("a name", "-")?;
        if name == metric::ALL_CLIENTS {
            field.complain(
                BadValue,
                "this name is reserved for the total of all clients",
                "give the group another name",
            );
        }
        if !names.insert(name.clone()) {
            let problem = format!("'{}' appears above already", excerpt(&name));
            field.complain(Duplicate, problem, "give the group another name");
        }
        Some(name)
    });
    let count = table.require("count", "for example count = 18").and_then(|field| field.integer(FLOWS));
    let flows = table.take("flows").map_or(Some(1), |field| field.integer(CLIENT_FLOWS));
    let outstanding = table.take("outstanding").map_or(Some(1), |field| field.integer(OUTSTANDING));
    let high_priority = table.take("high-priority").map_or(Some(false), |field| field.boolean());
    let from = table.take("from");
    let length = table.take("for");
    let whole = measure.map(Measure::duration);
    let start = match &from {
        Some(field) => {
            let from = field.quantity(TIMES, "10s");
            if let Some((from, whole)) = from.zip(whole).filter(|(from, whole)| from >= whole) {
                let problem = format!("the clients start at {from}, but the measurement ends at {whole}");
                field.complain(BadValue, problem, "lower 'from', or raise measure.duration");
            }
            from
        }
        None => Some(Nanoseconds::new(0)),
    };
    let stay = match &length {
        Some(field) => field.quantity(STAYS, "52s").map(|stay| {
            let end = start.map(|start| Nanoseconds::new(start.as_u64().saturating_add(stay.as_u64())));
            if let Some((end, whole)) = end.zip(whole).filter(|(end, whole)| end > whole) {
                let problem = format!("the clients stop at {end}, but the measurement ends at {whole}");
                field.complain(BadValue, problem, "lower 'from' or 'for', or raise measure.duration");
            }
            Some(stay)
        }),
        None => Some(None),
    };
    let only = match table.take("variants") {
        Some(field) => field
            .names("variant", variants)
            .map(|names| Some(names.into_iter().map(|name| name.value).collect::<Vec<String>>())),
        None => Some(None),
    };
    table.finish();
    Some(RequestClients {
        name: name?,
        count: count?,
        flows: flows?,
        outstanding: outstanding?,
        high_priority: high_priority?,
        from: start?,
        stay: stay?,
        variants: only?,
    })
}
