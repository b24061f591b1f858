//! Flows that an interface receives: new and ended flows, and their rates.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use evenkeel_host::{FlowReader, Host, HostError, Listener, Owner, Reading, Scope};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::sock_diag::SocketProtocol;
use evenkeel_receive::flows::ObservedFlow;
use evenkeel_receive::{FlowTuple, Transport};

use crate::backend::Traffic;
use crate::error::SteerError;
use crate::interface::Interface;

pub enum FlowSource {
    Observed(Box<Observer>),
    /// Flows from a trace or a generator, for a plan. Only the first `look` returns them.
    Listed(Vec<ObservedFlow>),
}

impl FlowSource {
    /// Returns the active flows; see [`Observer::look`].
    pub(crate) fn look(
        &mut self,
        traffic: &HashMap<FlowTuple, Traffic>,
    ) -> Result<Vec<ObservedFlow>, SteerError> {
        match self {
            Self::Observed(observer) => observer.look(traffic),
            Self::Listed(flows) => Ok(std::mem::take(flows)),
        }
    }

    /// Returns the remarks for the user that were added since the last call.
    pub(crate) fn take_remarks(&mut self) -> Vec<String> {
        match self {
            Self::Observed(observer) => std::mem::take(&mut observer.remarks),
            Self::Listed(_) => Vec::new(),
        }
    }
}

/// Options that select the flows to observe, and the idle time.
#[derive(Clone, Debug)]
pub struct ObserveOptions {
    /// Network namespaces whose sockets are read, in addition to the namespace of the interface.
    pub scope: Scope,
    /// A flow that receives no data for this time loses its filter.
    pub idle: Duration,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        Self { scope: Scope::Own, idle: Duration::from_secs(10) }
    }
}

struct Known {
    packets: u64,
    bytes: u64,
    looked: Instant,
    active: Instant,
    rate_bps: Option<u64>,
}

pub struct Observer {
    interface: Interface,
    host: Host,
    reader: FlowReader,
    options: ObserveOptions,
    known: HashMap<FlowTuple, Known>,
    scope_read: Instant,
    remarks: Vec<String>,
}

/// Interval at which the network namespaces are listed again, because programs create and delete
/// namespaces.
const SCOPE_INTERVAL: Duration = Duration::from_secs(5);

impl Observer {
    pub fn open(interface: &Interface, options: ObserveOptions) -> Result<Self, SteerError> {
        let host = Host::live();
        Ok(Self {
            interface: interface.clone(),
            reader: FlowReader::open(&host, &options.scope)
                .map_err(|error| scope_error(&options.scope, error))?,
            host,
            options,
            known: HashMap::new(),
            scope_read: Instant::now(),
            remarks: Vec::new(),
        })
    }

    /// Returns the active flows. `traffic` has the back end's counters of flows, with or without a
    /// local socket.
    pub fn look(&mut self, traffic: &HashMap<FlowTuple, Traffic>) -> Result<Vec<ObservedFlow>, SteerError> {
        if self.options.scope != Scope::Own && self.scope_read.elapsed() >= SCOPE_INTERVAL {
            let gone = self.reader.follow(&self.options.scope)?;
            self.remarks.extend(gone.iter().map(|name| {
                format!(
                    "the network namespace {name} of --netns no longer exists; the session continues with \
                     the other network namespaces"
                )
            }));
            self.scope_read = Instant::now();
        }
        let addresses = self.interface.addresses()?;
        // No packet from an address of this namespace arrives at the interface.
        let own = match self.options.scope {
            Scope::Own => BTreeSet::new(),
            _ => local_addresses()?,
        };
        let reading = self.reader.read()?;
        let now = Instant::now();
        let mut flows = Vec::new();
        let mut seen = HashSet::new();
        for flow in &reading.flows {
            let tuple = tuple_of(flow);
            let comes_in = self.comes_in(flow.namespace, tuple.destination, &addresses);
            if !comes_in || own.contains(&tuple.source) || !seen.insert(tuple) {
                continue;
            }
            let counted = traffic.get(&tuple).copied();
            let rate = flow.rate_bps.map(|rate| (rate, flow.packets_per_second.unwrap_or(0.0)));
            let mut observed = ObservedFlow::new(tuple);
            if let Some(rate_bps) = self.activity(tuple, counted, rate, now) {
                observed.rate_bps = rate_bps;
                self.owned(&mut observed, flow.owner.as_ref(), flow.is_unowned);
                flows.push(observed);
            }
        }
        for (tuple, counted) in traffic {
            if seen.contains(tuple) {
                continue;
            }
            seen.insert(*tuple);
            if let Some(rate_bps) = self.activity(*tuple, Some(*counted), None, now) {
                let mut observed = ObservedFlow::new(*tuple);
                observed.rate_bps = rate_bps;
                let listener = listener_of(&reading, tuple);
                let is_unowned = listener.is_none_or(|listener| listener.is_unowned);
                let owner = listener.and_then(|listener| listener.owner.as_ref());
                self.owned(&mut observed, owner, is_unowned);
                flows.push(observed);
            }
        }
        self.known.retain(|tuple, _| seen.contains(tuple));
        flows.sort_by_key(|flow| flow.tuple);
        Ok(flows)
    }

    /// Returns whether a flow enters through the interface. In the interface's own namespace, the
    /// address decides. In other namespaces, which are behind a bridge or a route, every flow counts.
    fn comes_in(&self, namespace: u64, address: IpAddr, addresses: &BTreeSet<IpAddr>) -> bool {
        namespace != self.interface.namespace || addresses.contains(&address)
    }

    /// Returns `None` if a flow is idle, otherwise the flow's rate, bit/s, if it is known. Prefers the back
    /// end's count to the socket's count, because the back end's count is closer to the rate on the wire.
    fn activity(
        &mut self,
        tuple: FlowTuple,
        counted: Option<Traffic>,
        socket: Option<(f64, f64)>,
        now: Instant,
    ) -> Option<Option<u64>> {
        let (idle, is_new) = (self.options.idle, !self.known.contains_key(&tuple));
        let known = self.known.entry(tuple).or_insert(Known {
            packets: 0,
            bytes: 0,
            looked: now,
            active: now,
            rate_bps: None,
        });
        let elapsed = now.duration_since(known.looked).as_secs_f64();
        if let Some(counted) = counted {
            // A smaller count means that the counter was reset.
            let gained = |now: u64, before: u64| if now >= before { now - before } else { now };
            let (packets, bytes) =
                (gained(counted.packets, known.packets), gained(counted.bytes, known.bytes));
            if packets > 0 {
                known.active = now;
            }
            if elapsed > 0.0 && !is_new {
                known.rate_bps = Some((bytes as f64 * 8.0 / elapsed) as u64);
            }
            (known.packets, known.bytes) = (counted.packets, counted.bytes);
        } else if let Some((rate_bps, packets)) = socket {
            if packets > 0.0 {
                known.active = now;
            }
            known.rate_bps = Some(rate_bps as u64);
        }
        known.looked = now;
        (now.duration_since(known.active) < idle).then_some(known.rate_bps)
    }

    fn owned(&self, flow: &mut ObservedFlow, owner: Option<&Owner>, is_unowned: bool) {
        flow.is_unowned = is_unowned;
        let Some(owner) = owner else { return };
        flow.reader = owner.processor;
        flow.process = Some(owner.name.clone());
        flow.cgroup = self.host.cgroup_of(owner.process);
    }
}

/// Returns the addresses of the calling thread's network namespace.
fn local_addresses() -> Result<BTreeSet<IpAddr>, SteerError> {
    let mut netlink = Netlink::open()?;
    let mut found = BTreeSet::new();
    for link in netlink.links()? {
        found.extend(netlink.addresses(link.index)?);
    }
    Ok(found)
}

fn tuple_of(flow: &evenkeel_host::Flow) -> FlowTuple {
    let (source, destination) = (flow.tuple.source, flow.tuple.destination);
    FlowTuple {
        transport: match flow.tuple.protocol {
            SocketProtocol::Tcp => Transport::Tcp,
            SocketProtocol::Udp => Transport::Udp,
        },
        source: source.ip(),
        source_port: source.port(),
        destination: destination.ip(),
        destination_port: destination.port(),
    }
}

/// Returns the listener of a flow without a socket. A listener on the flow's address takes precedence
/// over a listener on any address.
fn listener_of<'a>(reading: &'a Reading, tuple: &FlowTuple) -> Option<&'a Listener> {
    let wanted = match tuple.transport {
        Transport::Tcp => SocketProtocol::Tcp,
        Transport::Udp => SocketProtocol::Udp,
    };
    let at_port =
        |listener: &&Listener| listener.protocol == wanted && listener.local.port() == tuple.destination_port;
    let exact = |listener: &&Listener| listener.local.ip() == tuple.destination;
    let any = |listener: &&Listener| listener.local.ip().is_unspecified();
    let listeners = || reading.listeners.iter().filter(at_port);
    listeners().find(exact).or_else(|| listeners().find(any))
}

fn scope_error(scope: &Scope, error: HostError) -> SteerError {
    let is_denied = match &error {
        HostError::Read { source, .. } | HostError::Namespace { source, .. } => {
            source.kind() == std::io::ErrorKind::PermissionDenied
        }
        _ => false,
    };
    match scope {
        Scope::Named(_) if is_denied => {
            SteerError::unable(error.to_string(), "run the command as root in the initial user namespace")
        }
        // The named namespace does not exist.
        Scope::Named(_) => SteerError::Usage(error.to_string()),
        Scope::Own | Scope::All => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_apply::Cause;

    #[test]
    fn a_namespace_that_exists_and_cannot_be_read_is_no_wrong_name() {
        let cause = |kind: std::io::ErrorKind| {
            let error = HostError::Read { path: "/proc/1/ns/net".into(), source: kind.into() };
            scope_error(&Scope::Named(vec!["1".to_owned()]), error).cause()
        };
        assert_eq!(cause(std::io::ErrorKind::PermissionDenied), Cause::Unable);
        assert_eq!(cause(std::io::ErrorKind::NotFound), Cause::Usage);
    }
}
