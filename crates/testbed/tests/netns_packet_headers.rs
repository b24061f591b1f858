//! Tests of the headers that the BPF programs parse: VLAN tags, IPv4 options, IPv6 extension headers,
//! fragments and truncated frames. The queue choice, the meter and receive steering get all frames by
//! `BPF_PROG_TEST_RUN`. The drop counter gets them through an interface, except frames with three tags.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use evenkeel_datapath::{
    DropReasons, INDIRECTION_LENGTH, Meter, MeterOptions, QueueSelect, ReceiveSteering, SelectOptions,
    SteerTarget, SteeringOptions, Tuple,
};
use evenkeel_netlink::VethOptions;
use evenkeel_testbed::Namespace;

use support::PATIENCE;

const TCP: u8 = 6;
const UDP: u8 = 17;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const PAYLOAD: usize = 21;
const XDP_REDIRECT: u32 = 4;

/// A frame, and the result that the programs should read from it.
struct Case {
    name: String,
    frame: Vec<u8>,
    tuple: Tuple,
    /// Offset of the TCP or UDP header, if its ports are readable.
    transport: Option<usize>,
    steered: bool,
}

/// Kind of an extension header, and its bytes after the next-header field.
type Extension<'a> = (u8, &'a [u8]);

/// Headers of a case. By default, a frame is an IPv4 TCP packet without tags, options, fragments or
/// extension headers.
#[derive(Clone, Default)]
struct Headers<'a> {
    tags: &'a [u16],
    ipv6: bool,
    udp: bool,
    fragment: u16,
    /// Length of IPv4 options, bytes.
    options: usize,
    extensions: &'a [Extension<'a>],
}

/// Returns the one's complement sum of 16-bit words, as for a checksum (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    let total: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    let folded = (total & 0xffff) + (total >> 16);
    (folded & 0xffff) + (folded >> 16)
}

fn pseudo(tuple: &Tuple, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [tuple.source, tuple.destination] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend(u32::from(tuple.protocol).to_be_bytes());
    bytes
}

/// Returns a TCP or UDP header with a payload. The checksum is only the sum of the pseudo header, as if the
/// rest were left to the device.
fn transport(tuple: &Tuple) -> Vec<u8> {
    let mut bytes = [tuple.source_port.to_be_bytes(), tuple.destination_port.to_be_bytes()].concat();
    let check = if tuple.protocol == TCP { 16 } else { 6 };
    bytes.resize(if tuple.protocol == TCP { 20 } else { 8 }, 0);
    if tuple.protocol == TCP {
        bytes[12] = 5 << 4;
    } else {
        bytes[4..6].copy_from_slice(&((8 + PAYLOAD) as u16).to_be_bytes());
    }
    bytes.extend((0..PAYLOAD).map(|byte| byte as u8));
    let partial = sum(&pseudo(tuple, bytes.len())) as u16;
    bytes[check..check + 2].copy_from_slice(&partial.to_be_bytes());
    bytes
}

impl Headers<'_> {
    /// Returns the frame of flow `number`, its five-tuple, and the offset of its TCP or UDP header.
    fn frame(&self, number: u8) -> (Vec<u8>, Tuple, usize) {
        let network = |host: u16| -> IpAddr {
            if self.ipv6 {
                Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0x1234, 0, 0, host).into()
            } else {
                Ipv4Addr::new(198, 18, 77, host as u8).into()
            }
        };
        let tuple = Tuple {
            source: network(u16::from(number)),
            destination: network(250),
            source_port: 40_000 + u16::from(number),
            destination_port: 443,
            protocol: if self.udp { UDP } else { TCP },
        };
        let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1];
        for tag in self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        frame.extend(if self.ipv6 { [0x86, 0xdd] } else { [8, 0] });
        let segment = transport(&tuple);
        let addresses = pseudo(&tuple, 0);
        if self.ipv6 {
            let kinds: Vec<u8> =
                self.extensions.iter().map(|(kind, _)| *kind).chain([tuple.protocol]).collect();
            let extensions: usize = self.extensions.iter().map(|(_, rest)| 1 + rest.len()).sum();
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(((extensions + segment.len()) as u16).to_be_bytes());
            frame.extend([kinds[0], 64]);
            frame.extend(&addresses[..32]);
            for ((_, rest), next) in self.extensions.iter().zip(&kinds[1..]) {
                frame.push(*next);
                frame.extend(*rest);
            }
        } else {
            let length = 20 + self.options;
            frame.extend([0x40 | (length / 4) as u8, 0]);
            frame.extend(((length + segment.len()) as u16).to_be_bytes());
            frame.extend([0, 0]);
            frame.extend(self.fragment.to_be_bytes());
            frame.extend([64, tuple.protocol, 0, 0]);
            frame.extend(&addresses[..8]);
            frame.extend(vec![1; self.options]);
        }
        let transport = frame.len();
        frame.extend(segment);
        (frame, tuple, transport)
    }
}

/// Extension headers without their first byte, the next-header field.
const OPTIONS: &[u8] = &[0, 1, 4, 0, 0, 0, 0];
const LONG_OPTIONS: &[u8] = &[2, 1, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const ROUTED: &[u8] = &[0, 253, 0, 0, 0, 0, 0];
const ONE_MORE_HOP: &[u8] = &[0, 253, 1, 0, 0, 0, 0];
const WHOLE: &[u8] = &[0, 0, 0, 0, 0, 0, 9];
const FIRST: &[u8] = &[0, 0, 1, 0, 0, 0, 9];
const LATER: &[u8] = &[0, 0x05, 0xa9, 0, 0, 0, 9];

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut add = |name: String, headers: &Headers, parsed: bool, steered: bool, lost: usize| {
        let (mut frame, tuple, transport) = headers.frame(cases.len() as u8 + 1);
        frame.truncate(frame.len() - lost);
        cases.push(Case { name, frame, tuple, transport: parsed.then_some(transport), steered });
    };
    for (ipv6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let plain = Headers { ipv6, udp, ..Headers::default() };
        let of = format!("IPv{} {}", if ipv6 { 6 } else { 4 }, if udp { "UDP" } else { "TCP" });
        for tags in [&[][..], &[VLAN], &[SERVICE_VLAN], &[SERVICE_VLAN, VLAN], &[VLAN, VLAN]] {
            add(format!("{of}, tags {tags:x?}"), &Headers { tags, ..plain.clone() }, true, true, 0);
        }
        add(format!("{of}, three tags"), &Headers { tags: &[VLAN; 3], ..plain.clone() }, false, false, 0);
        // The frame lacks one byte of the transport header.
        add(format!("{of}, truncated"), &plain, false, false, PAYLOAD + 1);
    }
    for options in [4, 40] {
        let with = Headers { options, tags: &[VLAN], ..Headers::default() };
        add(format!("{options} bytes of IPv4 options"), &with, true, true, 0);
        add(format!("{options} bytes of IPv4 options, truncated"), &with, false, false, PAYLOAD + 20);
    }
    for (name, fragment, parsed, steered) in [
        ("not to be fragmented", 0x4000, true, true),
        ("first IPv4 fragment", 0x2000, true, false),
        ("later IPv4 fragment", 0x20b9, false, false),
        ("last IPv4 fragment", 0x00b9, false, false),
    ] {
        add(name.to_owned(), &Headers { fragment, ..Headers::default() }, parsed, steered, 0);
    }
    let five = [(HOP_BY_HOP, OPTIONS), (DESTINATION, OPTIONS), (ROUTING, ROUTED), (FRAGMENT, WHOLE)];
    let five = [&five[..], &[(DESTINATION, LONG_OPTIONS)]].concat();
    let six = [&five[..], &[(DESTINATION, OPTIONS)]].concat();
    let extensions: [(&str, &[Extension], bool, bool); 11] = [
        ("hop-by-hop options", &[(HOP_BY_HOP, OPTIONS)], true, true),
        ("long hop-by-hop options", &[(HOP_BY_HOP, LONG_OPTIONS)], true, true),
        ("destination options", &[(DESTINATION, OPTIONS)], true, true),
        ("routing header at its end", &[(ROUTING, ROUTED)], true, true),
        ("routing header with a further hop", &[(ROUTING, ONE_MORE_HOP)], true, false),
        ("whole packet with a fragment header", &[(FRAGMENT, WHOLE)], true, true),
        ("first IPv6 fragment", &[(FRAGMENT, FIRST)], true, false),
        ("later IPv6 fragment", &[(FRAGMENT, LATER)], false, false),
        ("five extension headers", &five, true, true),
        ("six extension headers", &six, false, false),
        ("unknown header", &[(135, OPTIONS)], false, false),
    ];
    for (name, extensions, parsed, steered) in extensions {
        for udp in [false, true] {
            let headers = Headers { ipv6: true, udp, extensions, tags: &[VLAN], ..Headers::default() };
            add(format!("{name}, udp: {udp}"), &headers, parsed, steered, 0);
        }
    }
    let cut = Headers { ipv6: true, extensions: &[(HOP_BY_HOP, OPTIONS)], ..Headers::default() };
    add("truncated extension header".to_owned(), &cut, false, false, PAYLOAD + 20 + 1);
    cases
}

/// Runs a loaded program on a frame. Returns the program's result and the resulting frame.
fn test_run(program: u32, frame: &[u8]) -> (u32, Vec<u8>) {
    // SAFETY: takes an id and returns a new descriptor, or a negative error.
    let descriptor = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(program) };
    assert!(descriptor >= 0, "{}", io::Error::from_raw_os_error(-descriptor));
    // SAFETY: the descriptor is open and has no other owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut after = vec![0; 4096];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: after.as_mut_ptr().cast(),
        data_size_out: after.len() as u32,
        ..Default::default()
    };
    // SAFETY: the descriptor is open, and both buffers have the declared lengths.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(descriptor.as_raw_fd(), &raw mut options) };
    assert_eq!(result, 0, "{}", io::Error::from_raw_os_error(-result));
    after.truncate(options.data_size_out as usize);
    (options.retval, after)
}

#[test]
fn the_queue_choice_reads_the_flow() {
    let select = QueueSelect::load(&SelectOptions { queues: 8, ..SelectOptions::default() }).unwrap();
    let cases = cases();
    for case in &cases {
        select.choose_for(&case.frame).unwrap();
    }
    let flows = select.flows();
    for case in &cases {
        let tracked = flows.iter().filter(|flow| flow.tuple == case.tuple).count();
        assert_eq!(tracked, usize::from(case.transport.is_some()), "{}: {:?}", case.name, case.tuple);
    }
    assert_eq!(flows.len(), cases.iter().filter(|case| case.transport.is_some()).count());
}

#[test]
fn the_meter_reads_flow_and_payload() {
    let namespace = Namespace::new().unwrap();
    let options = MeterOptions { flows: 256, bins: 1, bin_ns: 1_000_000 };
    let meter = namespace.run(|| Ok(Meter::attach(&options, 1).unwrap())).unwrap();
    let cases = cases();
    for case in &cases {
        test_run(meter.program_id().unwrap(), &case.frame);
    }
    let flows = meter.flows();
    for case in &cases {
        let payload = flows.iter().find(|flow| flow.tuple == case.tuple).map(|flow| flow.payload_bytes);
        assert_eq!(payload, case.transport.map(|_| PAYLOAD as u64), "{}: {:?}", case.name, case.tuple);
    }
    assert_eq!(flows.len(), cases.iter().filter(|case| case.transport.is_some()).count());
}

/// Steering must read the flow of each steered packet and complete its checksum, for any headers before the
/// ports. It must not change other packets.
#[test]
fn steering_reads_the_flow_and_completes_its_checksum() {
    let mut steering =
        ReceiveSteering::load(&SteeringOptions { cpus: vec![0], ..SteeringOptions::default() }).unwrap();
    steering.set_rules(&[], &[SteerTarget::Cpu(0); INDIRECTION_LENGTH]).unwrap();
    let program = steering.program_id().unwrap();
    for case in cases() {
        let (verdict, after) = test_run(program, &case.frame);
        assert_eq!(verdict == XDP_REDIRECT, case.steered, "{}", case.name);
        let seen: Vec<Tuple> = steering.take_seen().unwrap().into_iter().map(|flow| flow.tuple).collect();
        if let Some(transport) = case.transport.filter(|_| case.steered) {
            assert_eq!(seen, [case.tuple], "{}", case.name);
            let mut covered = pseudo(&case.tuple, after.len() - transport);
            covered.extend(&after[transport..]);
            assert_eq!(sum(&covered), 0xffff, "{}: checksum", case.name);
        } else {
            assert_eq!(seen, [], "{}", case.name);
            assert_eq!(after, case.frame, "{}", case.name);
        }
    }
    let cases = cases();
    let counted: Vec<_> = steering.counters();
    let other: u64 = counted.iter().map(|cpu| cpu.other).sum();
    let partial: u64 = counted.iter().map(|cpu| cpu.partial).sum();
    assert_eq!(other, cases.iter().filter(|case| !case.steered).count() as u64);
    assert_eq!(partial, cases.iter().filter(|case| case.steered).count() as u64);
}

#[test]
fn steering_hashes_a_flow_alike_with_any_headers() {
    let mut steering =
        ReceiveSteering::load(&SteeringOptions { cpus: vec![0], ..SteeringOptions::default() }).unwrap();
    let program = steering.program_id().unwrap();
    let plain = Headers { ipv6: true, ..Headers::default() };
    let extensions = [(HOP_BY_HOP, OPTIONS), (ROUTING, ROUTED), (DESTINATION, LONG_OPTIONS)];
    let tagged = Headers { tags: &[SERVICE_VLAN, VLAN], extensions: &extensions, ..plain.clone() };
    let mut steered = 0;
    for bit in 0..7 {
        let rules = std::array::from_fn(|entry| match entry >> bit & 1 {
            0 => SteerTarget::Stay,
            _ => SteerTarget::Cpu(0),
        });
        steering.set_rules(&[], &rules).unwrap();
        for number in 1..=20 {
            let verdicts = [&plain, &tagged].map(|headers| test_run(program, &headers.frame(number).0).0);
            assert_eq!(verdicts[0], verdicts[1], "bit {bit} of the hash of flow {number}");
            steered += usize::from(verdicts[0] == XDP_REDIRECT);
        }
    }
    // Half of 140 frames, with a tolerance of five standard deviations.
    assert!((40..=100).contains(&steered), "{steered}");
}

fn packet_socket(index: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; the descriptor is checked before it is owned.
    let descriptor = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = index.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: an address of this length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// The host drops every frame, because no frame is for its address.
#[test]
fn the_drop_counter_reads_the_flow() {
    let (host, client) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let mut netlink = host.netlink().unwrap();
    netlink
        .add_veth(&VethOptions {
            name: "host0",
            peer_name: "client0",
            peer_namespace: client.as_fd(),
            queues: 1,
            mtu: 1500,
        })
        .unwrap();
    let index = netlink.link_index("host0").unwrap();
    netlink.set_up(index).unwrap();
    let mut netlink = client.netlink().unwrap();
    let index = netlink.link_index("client0").unwrap();
    netlink.set_up(index).unwrap();
    let socket = client.run(|| Ok(packet_socket(index).unwrap())).unwrap();
    // Count in all namespaces, because a frame on a veth pair still has its sender's socket.
    let drops = DropReasons::attach(0).unwrap();

    // The kernel removes the outer tag first, so the program would see only two of three tags here.
    let cases = cases().into_iter().filter(|case| !case.name.contains("three tags"));
    // A tracepoint program may miss a packet, so send the packet again until it is counted.
    let deadline = Instant::now() + PATIENCE;
    let counted = |case: &Case| {
        let counts = drops.counts().unwrap();
        counts.into_iter().filter_map(|count| count.flow).find(|flow| flow.source == case.tuple.source)
    };
    for case in cases {
        let found = loop {
            // SAFETY: the descriptor is open and the frame has this length.
            let sent =
                unsafe { libc::send(socket.as_raw_fd(), case.frame.as_ptr().cast(), case.frame.len(), 0) };
            assert_eq!(sent, case.frame.len() as isize, "{}: {}", case.name, io::Error::last_os_error());
            std::thread::sleep(Duration::from_millis(2));
            match counted(&case) {
                Some(found) => break found,
                None => assert!(Instant::now() < deadline, "{}: no drop counted", case.name),
            }
        };
        assert_eq!(found.destination, case.tuple.destination, "{}", case.name);
        let ports = case.transport.map_or((0, 0), |_| (case.tuple.source_port, case.tuple.destination_port));
        assert_eq!((found.source_port, found.destination_port), ports, "{}", case.name);
        if case.transport.is_some() {
            assert_eq!(found.protocol, case.tuple.protocol, "{}", case.name);
        }
    }
}

/// TCP's receive path clears the device of a packet that it drops. The drop counter must therefore find the
/// namespace by the socket that the tracepoint reports.
#[test]
fn drops_of_tcp_belong_to_the_namespace_of_their_socket() {
    let inode = |namespace: &Namespace| {
        let descriptor = namespace.as_fd().as_raw_fd();
        std::fs::metadata(format!("/proc/self/fd/{descriptor}")).unwrap().ino() as u32
    };
    let (own, other) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let mut netlink = other.netlink().unwrap();
    let index = netlink.link_index("lo").unwrap();
    netlink.set_up(index).unwrap();
    let [in_own, in_other] = [&own, &other].map(|namespace| DropReasons::attach(inode(namespace)).unwrap());
    let deadline = Instant::now() + PATIENCE;
    while in_other.counts().unwrap().iter().all(|count| count.reason != "TCP_ABORT_ON_DATA") {
        assert!(Instant::now() < deadline, "{:?}", in_other.counts().unwrap());
        other
            .run(|| {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                drop(listener.accept().unwrap());
                client.write_all(b"data for a socket that is closed").unwrap();
                std::thread::sleep(Duration::from_millis(5));
                Ok(())
            })
            .unwrap();
    }
    let found = in_own.counts().unwrap();
    assert!(found.is_empty(), "{found:?}");
}
