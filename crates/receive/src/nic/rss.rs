//! Receive side scaling: a hash over addresses and ports selects an entry of a table of queues (Microsoft,
//! "RSS hashing types"; Linux, Documentation/networking/scaling.rst).

use std::net::IpAddr;

use crate::flow::{FlowTuple, Transport};
use crate::key::is_ip;
use crate::packet::Packet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RssKey(pub [u8; 40]);

impl RssKey {
    /// The key of the test vectors in Microsoft's "Verifying the RSS hash calculation". Some drivers use it
    /// by default (DPDK's driver for the Intel 82599). Most Linux drivers use a random key, which the kernel
    /// chooses once per boot (`netdev_rss_key_fill`).
    pub const MICROSOFT: Self = Self([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// Parses a key as printed by `ethtool --show-rxfh-indir`: hexadecimal bytes separated by colons.
    /// Only the first 40 bytes are used. Returns `None` for fewer bytes or another format.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        hexadecimal_bytes(text.trim())?.first_chunk().copied().map(Self)
    }

    /// Returns the Toeplitz hash of these bytes: for each set bit of the input, XOR the 32 key bits that
    /// start at the bit's position.
    #[must_use]
    pub fn hash(&self, input: impl IntoIterator<Item = u8>) -> u32 {
        input.into_iter().enumerate().fold(0, |hash, (at, byte)| {
            let set = (0..8).filter(|bit| byte & 0x80 >> bit != 0);
            set.fold(hash, |hash, bit| hash ^ self.window(at * 8 + bit))
        })
    }

    /// Returns the 32 key bits that start at `bit`; bits after the end of the key are 0.
    pub(crate) fn window(&self, bit: usize) -> u32 {
        let byte = |offset: usize| u64::from(self.0.get(bit / 8 + offset).copied().unwrap_or(0));
        let five = byte(0) << 32 | byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
        (five >> (8 - bit % 8)) as u32
    }
}

/// Parses hexadecimal bytes of two digits, separated by colons.
pub(crate) fn hexadecimal_bytes(text: &str) -> Option<Vec<u8>> {
    let is_byte = |text: &str| text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |text: &str| is_byte(text).then(|| u8::from_str_radix(text, 16).ok()).flatten();
    text.split(':').map(byte).collect()
}

/// XOR contribution of each value of each input byte: the hash is linear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toeplitz {
    key: RssKey,
    tables: Vec<[u32; 256]>,
}

/// Longest input, bytes: two IPv6 addresses and two ports.
const LONGEST_INPUT: usize = 36;

impl Toeplitz {
    pub(crate) fn new(key: RssKey) -> Self {
        let table = |at: usize| {
            let mut table = [0; 256];
            for value in 1..256_usize {
                // XOR the entry without the lowest set bit with the contribution of that bit. Bit positions
                // count from the highest bit.
                let bit = 7 - value.trailing_zeros() as usize;
                table[value] = table[value & (value - 1)] ^ key.window(at * 8 + bit);
            }
            table
        };
        Self { key, tables: (0..LONGEST_INPUT).map(table).collect() }
    }

    pub(crate) fn key(&self) -> &RssKey {
        &self.key
    }

    pub(crate) fn hash(&self, input: impl Iterator<Item = u8>) -> u32 {
        self.tables.iter().zip(input).fold(0, |hash, (table, byte)| hash ^ table[usize::from(byte)])
    }

    /// Returns the hash of a packet; 0 if it is not IP.
    pub(crate) fn of_packet(&self, packet: &Packet, ports: HashedPorts) -> u32 {
        if !is_ip(packet.header.ether_type) {
            return 0;
        }
        let ports = packet.flow().is_some_and(|flow| ports.of(flow.transport, flow.destination.is_ipv6()));
        self.hash(addresses_and_ports(
            packet.source,
            packet.destination,
            ports.then_some([packet.source_port, packet.destination_port]),
        ))
    }

    pub(crate) fn of(&self, flow: &FlowTuple, ports: HashedPorts) -> u32 {
        self.hash(hash_input(flow, ports.of(flow.transport, flow.destination.is_ipv6())))
    }
}

/// Returns the hashed bytes of a flow in network order: the addresses, then the ports if `ports` is true.
pub(crate) fn hash_input(flow: &FlowTuple, ports: bool) -> impl Iterator<Item = u8> {
    let ports = ports.then_some([flow.source_port, flow.destination_port]);
    addresses_and_ports(flow.source, flow.destination, ports)
}

fn addresses_and_ports(
    source: IpAddr,
    destination: IpAddr,
    ports: Option<[u16; 2]>,
) -> impl Iterator<Item = u8> {
    let address = |address: IpAddr| {
        let (bytes, skipped) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped().octets(), 12),
            IpAddr::V6(address) => (address.octets(), 0),
        };
        bytes.into_iter().skip(skipped)
    };
    let ports = ports.into_iter().flatten().flat_map(u16::to_be_bytes);
    address(source).chain(address(destination)).chain(ports)
}

/// Kinds of flows whose ports are hashed in addition to the addresses; see [`HashedPorts::of`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HashedPorts(pub(crate) [bool; 4]);

impl HashedPorts {
    pub const ALL: Self = Self([true; 4]);

    /// Returns whether ports are hashed for this transport protocol and IP version (`ethtool --config-nfc
    /// DEVICE rx-flow-hash`).
    #[must_use]
    pub const fn of(self, transport: Transport, is_ipv6: bool) -> bool {
        self.0[Self::index(transport, is_ipv6)]
    }

    /// Returns the set in which `hashed` states whether the ports of this kind of flows are hashed.
    #[must_use]
    pub const fn with(mut self, transport: Transport, is_ipv6: bool, hashed: bool) -> Self {
        self.0[Self::index(transport, is_ipv6)] = hashed;
        self
    }

    const fn index(transport: Transport, is_ipv6: bool) -> usize {
        (is_ipv6 as usize) * 2 + matches!(transport, Transport::Udp) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rss {
    /// Number of indirection table entries; a power of two.
    pub entries: usize,
    /// Number of queues that an entry can name: 16 for entries of 4 bits.
    pub queues: u16,
    pub ports: HashedPorts,
    /// Number of RSS contexts in addition to the NIC's own table.
    pub contexts: u16,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Microsoft, "Verifying the RSS hash calculation": source, destination, hash with and without ports.
    const VECTORS: [(&str, &str, u32, u32); 8] = [
        ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178, 0x323e_8fc2),
        ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea, 0xd718_262a),
        ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a, 0xd2d0_a5de),
        ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f, 0x8298_9176),
        ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2, 0x5d18_09c5),
        ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d, 0x2cc1_8cd5),
        ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf, 0x0f0c_461c),
        (
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            "[fe80::200:f8ff:fe21:67cf]:38024",
            0x02d1_feef,
            0x4b61_e985,
        ),
    ];

    #[test]
    fn a_key_is_read_as_ethtool_prints_it() {
        let printed = RssKey::MICROSOFT.0.map(|byte| format!("{byte:02x}")).join(":");
        assert_eq!(RssKey::parse(&printed), Some(RssKey::MICROSOFT));
        assert_eq!(
            RssKey::parse(&format!("{printed}:00:11")),
            Some(RssKey::MICROSOFT),
            "some NICs have longer keys"
        );
        for wrong in ["", "6d", &printed[3..], &printed.replace("6d", "6"), &printed.replace("6d", "+6")] {
            assert_eq!(RssKey::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hashes_are_those_of_the_specification() {
        for (source, destination, with_ports, without) in VECTORS {
            let (source, destination): (std::net::SocketAddr, std::net::SocketAddr) =
                (source.parse().unwrap(), destination.parse().unwrap());
            let flow = FlowTuple {
                transport: Transport::Tcp,
                source: source.ip(),
                source_port: source.port(),
                destination: destination.ip(),
                destination_port: destination.port(),
            };
            assert_eq!(RssKey::MICROSOFT.hash(hash_input(&flow, true)), with_ports, "{flow}");
            assert_eq!(RssKey::MICROSOFT.hash(hash_input(&flow, false)), without, "{flow}");
            let tables = Toeplitz::new(RssKey::MICROSOFT);
            assert_eq!(tables.of(&flow, HashedPorts::ALL), with_ports, "{flow}");
            assert_eq!(tables.of(&flow, HashedPorts::default()), without, "{flow}");
        }
    }
}
