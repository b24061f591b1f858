//! Receive side scaling: a hash over addresses and ports, and a table of queues that it indexes
//! (Microsoft, "RSS hashing types"; Linux, Documentation/networking/scaling.rst).

use std::net::IpAddr;

use crate::flow::FlowTuple;

/// Secret of the Toeplitz hash, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RssKey(pub [u8; 40]);

impl RssKey {
    /// The key of the test vectors in Microsoft's "Verifying the RSS hash calculation", which many drivers
    /// set by default.
    pub const MICROSOFT: Self = Self([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// The Toeplitz hash of these bytes: of every bit that is set, the 32 bits of the key that begin at its
    /// place.
    #[must_use]
    pub fn hash(&self, input: impl IntoIterator<Item = u8>) -> u32 {
        let word = |at: usize| {
            let byte = |offset: usize| u64::from(self.0.get(at + offset).copied().unwrap_or(0));
            byte(0) << 32 | byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4)
        };
        input.into_iter().enumerate().fold(0, |hash, (at, byte)| {
            let window = word(at);
            (0..8).filter(|bit| byte & 0x80 >> bit != 0).fold(hash, |hash, bit| {
                // The low 32 bits are what is wanted.
                hash ^ (window >> (8 - bit)) as u32
            })
        })
    }
}

/// The bytes that RSS hashes of a flow: addresses, and with `ports` the ports, in network order.
pub(crate) fn hash_input(flow: &FlowTuple, ports: bool) -> impl Iterator<Item = u8> {
    let address = |address: IpAddr| {
        let (bytes, skipped) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped().octets(), 12),
            IpAddr::V6(address) => (address.octets(), 0),
        };
        bytes.into_iter().skip(skipped)
    };
    let port_bytes = flow.source_port.to_be_bytes().into_iter().chain(flow.destination_port.to_be_bytes());
    address(flow.source).chain(address(flow.destination)).chain(port_bytes.take(if ports { 4 } else { 0 }))
}

/// What a model says of RSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rss {
    /// Entries of the indirection table; a power of two.
    pub entries: usize,
    /// Queues that an entry can name: 16 for entries of 4 bits.
    pub queues: u16,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::flow::Transport;

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
        }
    }
}
