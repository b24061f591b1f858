//! Flows that arrive at the host, derived from its sockets, with their rates, owners and cgroups.
//!
//! A connected socket is a flow. Its rate is the increase of the socket's counters between two
//! readings, so the first reading has no rate. UDP flows have no rate, because the kernel does not
//! count their bytes. Unconnected UDP sockets and TCP listeners are [`Listener`]s: their flows have no
//! separate socket.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use evenkeel_netlink::sock_diag::{
    SocketCounters, SocketDiagnosis, SocketProtocol, SocketRecord, SocketState,
};

use crate::namespaces::{NetworkNamespace, Scope};
use crate::owner::{Owner, Owners};
use crate::{Host, HostError};

/// Both ends of a flow, as in the headers of its received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowTuple {
    pub protocol: SocketProtocol,
    /// Address and port of the other host.
    pub source: SocketAddr,
    /// Address and port of this host.
    pub destination: SocketAddr,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    pub tuple: FlowTuple,
    /// Unique since boot.
    pub cookie: u64,
    /// Payload received since the previous reading, bit/s; `None` at a flow's first reading, and for
    /// UDP.
    pub rate_bps: Option<f64>,
    /// Segments received since the previous reading, per second; `None` at a flow's first reading, and
    /// for UDP.
    pub packets_per_second: Option<f64>,
    /// The process that has the socket open, if it could be found.
    pub owner: Option<Owner>,
    /// Whether no process has the socket open; see [`Owners::is_without`].
    pub is_unowned: bool,
    /// Identifier of the socket's cgroup (version 2).
    pub cgroup: Option<u64>,
    /// Inode of the socket's network namespace.
    pub namespace: u64,
}

/// A socket that receives packets of flows that have no separate socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// TCP sockets accept connections; UDP sockets are unconnected.
    pub protocol: SocketProtocol,
    /// Local address and port; the address may be unspecified.
    pub local: SocketAddr,
    pub owner: Option<Owner>,
    pub is_unowned: bool,
    pub cgroup: Option<u64>,
    pub namespace: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Connected sockets, sorted by protocol and ends. Sockets with a local loopback address are left out,
    /// unless the reader includes them.
    pub flows: Vec<Flow>,
    pub listeners: Vec<Listener>,
}

pub struct FlowReader {
    host: Host,
    namespaces: Vec<(u64, SocketDiagnosis)>,
    /// Names of the calling thread's namespace, which stays even if these names disappear.
    own: Vec<String>,
    /// Names whose namespaces no longer exist.
    missing: Vec<String>,
    owners: Owners,
    before: HashMap<u64, SocketCounters>,
    read_at: Option<Instant>,
    /// Whether to include sockets with a local loopback address.
    loopback: bool,
}

impl FlowReader {
    /// Opens the current namespaces of a scope.
    ///
    /// # Errors
    /// Returns an error if a namespace cannot be entered, or has no `sock_diag`.
    pub fn open(host: &Host, scope: &Scope) -> Result<Self, HostError> {
        let mut namespaces = Vec::new();
        for namespace in host.network_namespaces(scope)? {
            namespaces.push((namespace.inode, open_diagnosis(&namespace)?));
        }
        Ok(Self {
            host: host.clone(),
            namespaces,
            own: host.names_of_own(scope)?,
            missing: Vec::new(),
            owners: Owners::default(),
            before: HashMap::new(),
            read_at: None,
            loopback: false,
        })
    }

    /// Adds new namespaces of the scope, and removes namespaces that do not exist any more. Returns the
    /// names of the namespaces that disappeared since the last call.
    ///
    /// # Errors
    /// Returns an error if a namespace cannot be entered.
    pub fn follow(&mut self, scope: &Scope) -> Result<Vec<String>, HostError> {
        let mut followed = Vec::new();
        let (namespaces, mut missing) = self.host.existing_namespaces(scope)?;
        for namespace in namespaces {
            let at = self.namespaces.iter().position(|(inode, _)| *inode == namespace.inode);
            followed.push(match at {
                Some(at) => self.namespaces.swap_remove(at),
                None => (namespace.inode, open_diagnosis(&namespace)?),
            });
        }
        self.namespaces = followed;
        missing.retain(|name| !self.own.contains(name));
        let before = std::mem::replace(&mut self.missing, missing);
        Ok(self.missing.iter().filter(|name| !before.contains(name)).cloned().collect())
    }

    pub fn read(&mut self) -> Result<Reading, HostError> {
        use SocketProtocol::{Tcp, Udp};
        let mut sockets: Vec<(u64, SocketRecord)> = Vec::new();
        for (inode, diagnosis) in &mut self.namespaces {
            let tcp = diagnosis.sockets(Tcp, &[SocketState::ESTABLISHED, SocketState::LISTEN])?;
            let udp = diagnosis.sockets(Udp, &[SocketState::ESTABLISHED, SocketState::CLOSE])?;
            sockets.extend(tcp.into_iter().chain(udp).map(|socket| (*inode, socket)));
        }
        sockets.retain(|(_, socket)| {
            (self.loopback || !socket.local.ip().is_loopback()) && (socket.inode != 0 || is_connected(socket))
        });
        let now = Instant::now();
        let elapsed = self.read_at.map(|before| now.duration_since(before).as_secs_f64());
        let owners = self.owners.of(&self.host, sockets.iter().map(|(_, socket)| socket.inode))?;
        let mut reading = Reading::default();
        let mut counted = HashMap::new();
        for (namespace, socket) in sockets {
            let owner = owners.get(&socket.inode).cloned();
            let is_unowned = owner.is_none() && self.owners.is_without(socket.inode);
            if !is_connected(&socket) {
                reading.listeners.push(Listener {
                    protocol: socket.protocol,
                    local: socket.local,
                    owner,
                    is_unowned,
                    cgroup: socket.cgroup,
                    namespace,
                });
                continue;
            }
            let gained = |counters: SocketCounters| {
                let (before, elapsed) =
                    (self.before.get(&socket.cookie)?, elapsed.filter(|time| *time > 0.0)?);
                let bytes = counters.bytes_received.saturating_sub(before.bytes_received);
                let segments = counters.segments_in.wrapping_sub(before.segments_in);
                Some((bytes as f64 * 8.0 / elapsed, f64::from(segments) / elapsed))
            };
            let (rate_bps, packets_per_second) = socket.counters.and_then(gained).unzip();
            counted.extend(socket.counters.map(|counters| (socket.cookie, counters)));
            let tuple =
                FlowTuple { protocol: socket.protocol, source: socket.remote, destination: socket.local };
            reading.flows.push(Flow {
                tuple,
                cookie: socket.cookie,
                rate_bps,
                packets_per_second,
                owner,
                is_unowned,
                cgroup: socket.cgroup,
                namespace,
            });
        }
        // Sort, because the kernel lists sockets in the order of its hash tables.
        reading.flows.sort_by_key(|flow| {
            (flow.tuple.protocol as u8, flow.tuple.source, flow.tuple.destination, flow.cookie)
        });
        (self.before, self.read_at) = (counted, Some(now));
        Ok(reading)
    }
}

fn is_connected(socket: &SocketRecord) -> bool {
    socket.state == SocketState::ESTABLISHED
}

fn open_diagnosis(namespace: &NetworkNamespace) -> Result<SocketDiagnosis, HostError> {
    namespace.run(|| Ok(SocketDiagnosis::open()?))
}

impl Host {
    /// Returns the path of a process's cgroup (version 2), relative to the root of the hierarchy
    /// (`/proc/PID/cgroup`, cgroups(7)). Returns `None` if the process has ended, or the hierarchy does not
    /// exist.
    #[must_use]
    pub fn cgroup_of(&self, process: u32) -> Option<String> {
        let text = self.read(&format!("/proc/{process}/cgroup")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_flow_has_a_rate_from_its_second_reading_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_server, _) = listener.accept().unwrap();
        let tuple = FlowTuple {
            protocol: SocketProtocol::Tcp,
            source: client.local_addr().unwrap(),
            destination: listener.local_addr().unwrap(),
        };
        let open = || FlowReader::open(&Host::live(), &Scope::Own).unwrap();
        assert!(open().read().unwrap().flows.iter().all(|flow| flow.tuple != tuple));
        let mut reader = FlowReader { loopback: true, ..open() };
        let first = reader.read().unwrap();
        let flow =
            |reading: &Reading| reading.flows.iter().find(|flow| flow.tuple == tuple).cloned().unwrap();
        assert_eq!(flow(&first).rate_bps, None);
        assert!(first.listeners.iter().any(|found| found.local == listener.local_addr().unwrap()));
        client.write_all(&[1; 5000]).unwrap();
        let second = flow(&reader.read().unwrap());
        assert!(second.rate_bps.unwrap() > 0.0 && second.packets_per_second.unwrap() > 0.0, "{second:?}");
        assert_eq!(second.owner.unwrap().process, std::process::id());
        let third = flow(&reader.read().unwrap());
        assert_eq!(third.rate_bps, Some(0.0));
    }
}
