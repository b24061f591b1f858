//! The TCP sockets of the network namespace, either all sockets or the sockets of the listed flows, and
//! the processes that have them open.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evenkeel_host::{Host, Owner, Owners};
use evenkeel_netlink::sock_diag::{self, SocketDiagnosis, SocketProtocol, SocketRecord, SocketState};
use evenkeel_netlink::{AddressOwner, LocalAddresses, NetlinkError};

use crate::sample::{Interval, SocketDetail};

/// Minimum time between two searches for owners, because a search reads the open files of every process.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time between two searches for owners.
const LONGEST_SEARCH_INTERVAL: Duration = Duration::from_secs(30);
/// Searches take at most 1/`SEARCH_PART` of the time, within the minimum and maximum interval.
const SEARCH_PART: u32 = 1000;
/// `TCP_ESTABLISHED`, `TCP_FIN_WAIT1`, `TCP_FIN_WAIT2`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`
/// (include/net/tcp_states.h). Sockets in these states may have sent data since the previous sample.
const STATES: [SocketState; 6] =
    [SocketState(1), SocketState(4), SocketState(5), SocketState(8), SocketState(9), SocketState(11)];

#[derive(Clone, Debug)]
pub(crate) struct TcpSocket {
    pub(crate) inode: u32,
    /// Index of the interface to which the socket is bound; 0 if it is not bound.
    bound: u32,
    /// Payload that the peer has acknowledged, bytes.
    pub(crate) acknowledged: Interval,
    retransmitted: Interval,
    detail: sock_diag::SocketDetail,
}

impl TcpSocket {
    pub(crate) fn owner(&self, local: &SocketAddr, addresses: &LocalAddresses) -> AddressOwner {
        addresses.owner(local.ip(), self.bound)
    }

    pub(crate) fn detail(&self, owner: Option<&Owner>) -> SocketDetail {
        let detail = &self.detail;
        SocketDetail {
            process: owner.map(|owner| owner.name.clone()),
            process_id: owner.map(|owner| owner.process),
            rtt_us: detail.rtt_us,
            // `u32::MAX` means that the kernel has no measurement yet.
            min_rtt_us: if detail.min_rtt_us == u32::MAX { 0 } else { detail.min_rtt_us },
            cwnd: detail.cwnd,
            congestion: detail.congestion.clone(),
            retransmitted: self.retransmitted,
        }
    }
}

/// Local and remote address.
pub(crate) type Ends = (SocketAddr, SocketAddr);

#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) ends: Ends,
    /// Indexes of the interfaces to which the connection may be bound.
    pub(crate) interfaces: Vec<u32>,
    /// Bytes on the wire since the previous sample, if the meter did not see the flow before. A socket with
    /// more acknowledged bytes is older than the flow: it had only paused.
    pub(crate) first_sent: Option<u64>,
}

#[derive(Default)]
pub(crate) struct TcpSockets {
    diagnosis: Option<SocketDiagnosis>,
    /// Acknowledged bytes and retransmitted segments in the previous sample, by cookie; `None` before
    /// the first sample.
    before: Option<HashMap<u64, (u64, u64)>>,
    owners: Owners,
    known: HashMap<u32, Option<Owner>>,
    searched: Option<Instant>,
    search_interval: Duration,
}

impl TcpSockets {
    pub(crate) fn read(&mut self) -> Result<HashMap<Ends, TcpSocket>, String> {
        let found = self.ask(|diagnosis| diagnosis.sockets_in_detail(SocketProtocol::Tcp, &STATES))?;
        // A socket that is new since the previous sample has counted from 0.
        Ok(self.counted(found.into_iter().map(|socket| (socket, Some(u64::MAX))).collect()))
    }

    /// Returns the wanted connections, by local and remote address. Reads only these sockets, because the
    /// details of each socket cost the kernel a lock and some microseconds.
    pub(crate) fn find(&mut self, wanted: &[Wanted]) -> Result<HashMap<Ends, TcpSocket>, String> {
        let found = self.ask(|diagnosis| {
            let mut found = Vec::new();
            for Wanted { ends: (local, remote), interfaces, first_sent } in wanted {
                for interface in interfaces {
                    let socket = diagnosis.connection_in_detail(*local, *remote, *interface)?;
                    if let Some(socket) = socket.filter(|(record, _)| STATES.contains(&record.state)) {
                        found.push((socket, *first_sent));
                        break;
                    }
                }
            }
            Ok(found)
        })?;
        Ok(self.counted(found))
    }

    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut SocketDiagnosis) -> Result<T, NetlinkError>,
    ) -> Result<T, String> {
        let asked = match &mut self.diagnosis {
            Some(diagnosis) => Ok(diagnosis),
            none => SocketDiagnosis::open().map(|diagnosis| none.insert(diagnosis)),
        };
        asked.and_then(question).map_err(|error| {
            // The next sample opens a new netlink socket, because this socket may have unread answers.
            self.diagnosis = None;
            format!("TCP sockets: {error}")
        })
    }

    /// Returns the sockets with their growth since the previous sample. A socket that was not in the
    /// previous sample has counted from 0 if its acknowledged bytes do not exceed the given number.
    fn counted(
        &mut self,
        found: Vec<((SocketRecord, sock_diag::SocketDetail), Option<u64>)>,
    ) -> HashMap<Ends, TcpSocket> {
        let mut counts = HashMap::with_capacity(found.len());
        let mut sockets = HashMap::with_capacity(found.len());
        for ((record, detail), most) in found {
            let acknowledged = record.counters.unwrap_or_default().bytes_acked;
            let retransmitted = u64::from(detail.retransmitted);
            counts.insert(record.cookie, (acknowledged, retransmitted));
            let is_new = most.is_some_and(|most| acknowledged <= most);
            let before = self
                .before
                .as_ref()
                .and_then(|before| before.get(&record.cookie).copied().or(is_new.then_some((0, 0))));
            let socket = TcpSocket {
                inode: record.inode,
                bound: record.interface,
                acknowledged: Interval::since(before.map(|before| before.0), acknowledged),
                retransmitted: Interval::since(before.map(|before| before.1), retransmitted),
                detail,
            };
            sockets.insert((record.local, record.remote), socket);
        }
        self.before = Some(counts);
        sockets
    }

    /// Returns the owners of sockets, by inode; `None` for a socket whose process was not found. The map
    /// lacks new sockets until the next search.
    pub(crate) fn owners(&mut self, host: &Host, inodes: &HashSet<u32>) -> &HashMap<u32, Option<Owner>> {
        self.known.retain(|inode, _| inodes.contains(inode));
        let is_due = self.searched.is_none_or(|searched| searched.elapsed() >= self.search_interval);
        if is_due && inodes.iter().any(|inode| !self.known.contains_key(inode)) {
            let began = Instant::now();
            let found = self.owners.of(host, inodes.iter().copied()).unwrap_or_default();
            self.search_interval =
                (began.elapsed() * SEARCH_PART).clamp(SEARCH_INTERVAL, LONGEST_SEARCH_INTERVAL);
            self.known = inodes.iter().map(|inode| (*inode, found.get(inode).cloned())).collect();
            self.searched = Some(Instant::now());
        }
        &self.known
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_has_its_growth_and_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let key = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let mut send = |bytes: usize| {
            client.write_all(&vec![7; bytes]).unwrap();
            server.read_exact(&mut vec![0; bytes]).unwrap();
        };
        let (mut sockets, mut some) = (TcpSockets::default(), TcpSockets::default());
        let wanted = |first_sent| [Wanted { ends: key, interfaces: vec![1], first_sent }];
        send(1000);
        let first = sockets.read().unwrap()[&key].clone();
        assert_eq!(first.acknowledged.delta, 0);
        assert_eq!(some.find(&[]).unwrap().len(), 0);
        send(500);
        let second = sockets.read().unwrap()[&key].clone();
        assert_eq!(second.acknowledged.delta, second.acknowledged.total - first.acknowledged.total);
        assert!((500..=1501).contains(&second.acknowledged.delta), "{second:?}");
        // A socket that was not in the previous sample has no growth, unless the socket is new.
        let of =
            |some: &mut TcpSockets, first_sent| some.find(&wanted(first_sent)).unwrap()[&key].acknowledged;
        assert_eq!(of(&mut some, None), Interval { delta: 0, ..second.acknowledged });
        send(300);
        let grown = of(&mut some, None);
        assert!(grown.delta > 0 && grown.total == second.acknowledged.total + grown.delta, "{grown:?}");
        some.find(&[]).unwrap();
        let paused = of(&mut some, Some(400));
        assert_eq!(paused.delta, 0, "{paused:?}");
        some.find(&[]).unwrap();
        let new = of(&mut some, Some(4000));
        assert_eq!(new.delta, new.total);
        let owners = sockets.owners(&Host::live(), &[second.inode].into());
        let owner = owners[&second.inode].clone().unwrap();
        assert_eq!(owner.process, std::process::id());
        let detail = second.detail(Some(&owner));
        assert!(detail.rtt_us > 0 && detail.cwnd > 0 && detail.congestion.is_some(), "{detail:?}");
    }
}
