//! The cost of a packet between two network namespaces with a veth pair.
//!
//! One thread sends and receives. A veth normally delivers a packet within the call that sends it, so the
//! time of the calls includes all work at both ends, without a wakeup.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_host::{Capability, Host};
use evenkeel_netlink::settings::{Device, Settings};
use evenkeel_testbed::{Namespace, RECEIVER_ADDRESS, RECEIVER_INTERFACE, SENDER_ADDRESS, TestbedError, Wire};

use crate::CalibrateError;

const MTU: u32 = 1500;
/// Payload of a small datagram, bytes.
const SMALL: usize = 64;
/// Bytes of a write: 46 packets, in as few segments as the offloads allow.
const WRITE: usize = 64 << 10;
/// `GSO_MAX_SEGS` (include/linux/netdevice.h), the kernel's default.
const MOST_SEGMENTS: u32 = 65_535;
/// Longest wait for sent bytes to arrive.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after a change of the offloads until TCP sends whole segments again.
const WARM_UP: Duration = Duration::from_millis(40);
const LINK_EVENTS: Duration = Duration::from_millis(1100);

/// Two hosts with a connection between them.
pub(crate) struct Link {
    wire: Wire,
    datagrams: (UdpSocket, UdpSocket),
    stream: (TcpStream, TcpStream),
    payload: Vec<u8>,
    room: Vec<u8>,
}

/// Offloads of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// TSO at the sender; segments arrive whole.
    Segmentation,
    /// GRO. The kernel splits segments in software before the device (GSO).
    Aggregation,
    /// Neither TSO nor GRO: the kernel splits segments, and the receiver does not merge their packets.
    Off,
}

fn set_offloads(wire: &mut Wire, offloads: Offloads) -> Result<(), CalibrateError> {
    let segments = if offloads == Offloads::Segmentation { MOST_SEGMENTS } else { 1 };
    wire.sender_netlink.set_gso_max_segments(wire.sender_index, segments).map_err(TestbedError::from)?;
    let device = Device { index: wire.receiver_index, name: RECEIVER_INTERFACE };
    let merges = offloads == Offloads::Aggregation;
    wire.receiver.run(|| {
        let mut settings = Settings::open().map_err(|error| TestbedError::Qdisc(error.to_string()))?;
        let set = settings.set_feature(device, "rx-gro", merges);
        set.map_err(|error| TestbedError::Qdisc(error.to_string()))
    })?;
    Ok(())
}

/// The cost of a write of 64 KiB, and of reading its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) ns: f64,
    /// Buffers that reached IP at the receiver.
    pub(crate) buffers: f64,
    /// Segments that the receiver's TCP counted (`InSegs`).
    pub(crate) packets: f64,
}

/// Returns why the process cannot create a link; `None` if it can.
pub(crate) fn obstacle() -> Option<String> {
    let host = Host::live();
    let missing = match host.missing_capabilities(&[Capability::SysAdmin, Capability::NetAdmin]) {
        Ok(missing) => missing,
        Err(error) => return Some(error.to_string()),
    };
    if missing.is_empty() {
        return None;
    }
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    Some(format!(
        "they need network namespaces, but this process lacks {}; {}",
        names.join(", "),
        host.how_to_be_privileged()
    ))
}

/// Opens a socket in a namespace.
fn within<T: Send>(
    namespace: &Namespace,
    open: impl FnOnce() -> io::Result<T> + Send,
) -> Result<T, CalibrateError> {
    let opened = namespace
        .run(|| open().map_err(|source| TestbedError::System { action: "open a socket".to_owned(), source }));
    Ok(opened?)
}

impl Link {
    pub(crate) fn make() -> Result<Self, CalibrateError> {
        // Without this setting, TCP sends smaller segments at a low pacing rate (`tcp_tso_autosize`).
        let whole = ("net/ipv4/tcp_min_tso_segs".to_owned(), "45".to_owned());
        let mut wire = Wire::lay(1, MTU, &[whole]).map_err(CalibrateError::Bed)?;
        wire.receiver_netlink.set_up(wire.receiver_index).map_err(TestbedError::from)?;
        wire.sender_netlink.set_up(wire.sender_index).map_err(TestbedError::from)?;
        let bind = |address: Ipv4Addr| move || UdpSocket::bind((address, 0));
        let target = within(&wire.receiver, bind(RECEIVER_ADDRESS))?;
        let source = within(&wire.sender, bind(SENDER_ADDRESS))?;
        let listener = within(&wire.receiver, || TcpListener::bind((RECEIVER_ADDRESS, 0)))?;
        let system = CalibrateError::system;
        let address = |socket: io::Result<SocketAddr>| socket.map_err(system("read the address of a socket"));
        let (datagrams, place) = (address(target.local_addr())?, address(listener.local_addr())?);
        source.connect(datagrams).map_err(system("connect a socket"))?;
        target.set_nonblocking(true).map_err(system("set up a socket"))?;
        // A socket keeps the device's limit of segments from its route lookup. The kernel flushes routes up
        // to a second after the link is up (net/core/link_watch.c), and the lookup must not be repeated
        // later.
        thread::sleep(LINK_EVENTS);
        let sending = within(&wire.sender, || TcpStream::connect_timeout(&place, PATIENCE))?;
        let (receiving, _) = listener.accept().map_err(system("accept a connection"))?;
        for end in [&sending, &receiving] {
            end.set_nonblocking(true)
                .and_then(|()| end.set_nodelay(true))
                .map_err(system("set up a connection"))?;
        }
        Ok(Self {
            wire,
            datagrams: (source, target),
            stream: (sending, receiving),
            payload: vec![0x5a; WRITE],
            room: vec![0; WRITE],
        })
    }

    /// Sets the offloads of the veth pair, and sends data for [`WARM_UP`].
    pub(crate) fn set(&mut self, offloads: Offloads) -> Result<(), CalibrateError> {
        set_offloads(&mut self.wire, offloads)?;
        let began = Instant::now();
        while began.elapsed() < WARM_UP {
            self.write_and_read()?;
        }
        Ok(())
    }

    /// Sends and receives small datagrams. Returns the mean time per datagram, ns.
    pub(crate) fn datagram(&mut self) -> Result<f64, CalibrateError> {
        const DATAGRAMS: u32 = 100;
        let (source, target) = &self.datagrams;
        let failed = |error| CalibrateError::system("send a datagram over veth")(error);
        let began = Instant::now();
        for _ in 0..DATAGRAMS {
            source.send(&self.payload[..SMALL]).map_err(failed)?;
            let waits = Instant::now();
            while let Err(error) = target.recv(&mut self.room) {
                if error.kind() != ErrorKind::WouldBlock || waits.elapsed() > PATIENCE {
                    return Err(failed(error));
                }
            }
        }
        Ok(began.elapsed().as_nanos() as f64 / f64::from(DATAGRAMS))
    }

    /// Writes 64 KiB and reads them.
    fn write_and_read(&mut self) -> Result<(), CalibrateError> {
        let failed = |error| CalibrateError::system("send bytes over veth")(error);
        let (mut sent, mut received) = (0, 0);
        let began = Instant::now();
        while received < WRITE {
            let (sender, receiver) = &mut self.stream;
            if sent < WRITE {
                match sender.write(&self.payload[sent..]) {
                    Ok(bytes) => sent += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            match receiver.read(&mut self.room) {
                Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => received += bytes,
                // ksoftirqd may have to handle the packets on this processor, so yield the processor.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => return Err(failed(error)),
            }
            if began.elapsed() > PATIENCE {
                return Err(failed(ErrorKind::TimedOut.into()));
            }
        }
        Ok(())
    }

    /// Makes ten writes each time that `next` returns true. Returns the median cost of a write, and the mean
    /// numbers of buffers and packets per write; `None` without a write.
    pub(crate) fn transfers(
        &mut self,
        mut next: impl FnMut() -> Result<bool, CalibrateError>,
    ) -> Result<Option<Transfer>, CalibrateError> {
        let before = self.received()?;
        let mut times = Vec::new();
        while next()? {
            for _ in 0..10 {
                let began = Instant::now();
                self.write_and_read()?;
                times.push(began.elapsed().as_nanos() as f64);
            }
        }
        let after = self.received()?;
        let Some(times) = evenkeel_metrics::Summary::of(&times) else { return Ok(None) };
        let mean = |after: u64, before: u64| after.saturating_sub(before) as f64 / times.n as f64;
        Ok(Some(Transfer {
            ns: times.median,
            buffers: mean(after.0, before.0),
            packets: mean(after.1, before.1),
        }))
    }

    /// Returns the numbers of buffers (`InReceives` of IP) and of TCP segments (`InSegs`) that the receiver
    /// has counted (`/proc/net/snmp`).
    fn received(&self) -> Result<(u64, u64), CalibrateError> {
        let text = self.wire.receiver.read_proc_net("snmp")?;
        Ok((counter(&text, "Ip:", "InReceives"), counter(&text, "Tcp:", "InSegs")))
    }
}

/// Returns a counter of `/proc/net/snmp`; 0 if it is missing. Each protocol has a line of names and a line of
/// values.
fn counter(text: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let mut both = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    both.find(|(known, _)| *known == name).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::counter;

    #[test]
    fn counters_are_found_by_protocol_and_name() {
        let text = "Ip: Forwarding InReceives\nIp: 1 42\nTcp: InSegs OutSegs\nTcp: 7 8\n";
        assert_eq!((counter(text, "Ip:", "InReceives"), counter(text, "Tcp:", "InSegs")), (42, 7));
        assert_eq!((counter(text, "Udp:", "InSegs"), counter(text, "Tcp:", "None")), (0, 0));
    }
}
