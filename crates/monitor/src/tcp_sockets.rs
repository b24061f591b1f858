//! The TCP sockets of the network namespace, by one dump per sample, and the processes that have them open.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evenkeel_host::{Host, Owner, Owners};
use evenkeel_netlink::sock_diag::{self, SocketDiagnosis, SocketProtocol, SocketState};

use crate::sample::{Interval, SocketDetail};

/// Minimum time between two searches for owners, because a search reads the open files of every process.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// `TCP_ESTABLISHED`, `TCP_FIN_WAIT1`, `TCP_FIN_WAIT2`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`
/// (include/net/tcp_states.h): sockets that may have data to send.
const STATES: [SocketState; 6] =
    [SocketState(1), SocketState(4), SocketState(5), SocketState(8), SocketState(9), SocketState(11)];

/// A connection at the time of a sample.
#[derive(Clone, Debug)]
pub(crate) struct TcpSocket {
    pub(crate) inode: u32,
    /// Payload that the peer has acknowledged, bytes.
    pub(crate) acknowledged: Interval,
    retransmitted: Interval,
    detail: sock_diag::SocketDetail,
}

impl TcpSocket {
    pub(crate) fn detail(&self, owner: Option<&Owner>) -> SocketDetail {
        let detail = &self.detail;
        SocketDetail {
            process: owner.map(|owner| owner.name.clone()),
            process_id: owner.map(|owner| owner.process),
            rtt_us: detail.rtt_us,
            // The kernel has no measurement yet.
            min_rtt_us: if detail.min_rtt_us == u32::MAX { 0 } else { detail.min_rtt_us },
            cwnd: detail.cwnd,
            congestion: detail.congestion.clone(),
            retransmitted: self.retransmitted,
        }
    }
}

#[derive(Default)]
pub(crate) struct TcpSockets {
    diagnosis: Option<SocketDiagnosis>,
    /// Acknowledged bytes and retransmitted segments in the sample before, by cookie; none before the first sample.
    before: Option<HashMap<u64, (u64, u64)>>,
    owners: Owners,
    /// The owners of the listed sockets, by inode.
    known: HashMap<u32, Option<Owner>>,
    searched: Option<Instant>,
}

impl TcpSockets {
    /// Returns the connections, by local and remote address.
    pub(crate) fn read(&mut self) -> Result<HashMap<(SocketAddr, SocketAddr), TcpSocket>, String> {
        let asked = match &mut self.diagnosis {
            Some(diagnosis) => Ok(diagnosis),
            none => SocketDiagnosis::open().map(|diagnosis| none.insert(diagnosis)),
        };
        let found = asked.and_then(|diagnosis| diagnosis.sockets_in_detail(SocketProtocol::Tcp, &STATES));
        let found = found.map_err(|error| {
            // The next sample begins with a new socket: this one may have answers left.
            self.diagnosis = None;
            format!("TCP sockets: {error}")
        })?;
        let mut counts = HashMap::with_capacity(found.len());
        let mut sockets = HashMap::with_capacity(found.len());
        for (record, detail) in found {
            let acknowledged = record.counters.unwrap_or_default().bytes_acked;
            let retransmitted = u64::from(detail.retransmitted);
            counts.insert(record.cookie, (acknowledged, retransmitted));
            // A socket that is new since the last sample has counted from 0.
            let before = self.before.as_ref();
            let before = before.map(|before| before.get(&record.cookie).copied().unwrap_or_default());
            let socket = TcpSocket {
                inode: record.inode,
                acknowledged: Interval::since(before.map(|before| before.0), acknowledged),
                retransmitted: Interval::since(before.map(|before| before.1), retransmitted),
                detail,
            };
            sockets.insert((record.local, record.remote), socket);
        }
        self.before = Some(counts);
        Ok(sockets)
    }

    /// Returns the owners of sockets, by inode; `None` for a socket whose process may not be read.
    pub(crate) fn owners(&mut self, host: &Host, inodes: &HashSet<u32>) -> &HashMap<u32, Option<Owner>> {
        self.known.retain(|inode, _| inodes.contains(inode));
        let is_due = self.searched.is_none_or(|searched| searched.elapsed() >= SEARCH_INTERVAL);
        if is_due && inodes.iter().any(|inode| !self.known.contains_key(inode)) {
            let found = self.owners.of(host, inodes.iter().copied()).unwrap_or_default();
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
        let mut sockets = TcpSockets::default();
        send(1000);
        let first = sockets.read().unwrap()[&key].clone();
        assert_eq!(first.acknowledged.delta, 0);
        send(500);
        let second = sockets.read().unwrap()[&key].clone();
        assert_eq!(second.acknowledged.delta, second.acknowledged.total - first.acknowledged.total);
        assert!((500..=1501).contains(&second.acknowledged.delta), "{second:?}");
        let owners = sockets.owners(&Host::live(), &[second.inode].into());
        let owner = owners[&second.inode].clone().unwrap();
        assert_eq!(owner.process, std::process::id());
        let detail = second.detail(Some(&owner));
        assert!(detail.rtt_us > 0 && detail.cwnd > 0 && detail.congestion.is_some(), "{detail:?}");
    }
}
