//! The Toeplitz hash of receive side scaling, computed with tables: one look-up per byte.
//!
//! For each set bit of the input, the hash XORs the 32 key bits that start at the bit's position (Microsoft,
//! "RSS hashing functions"). So the contribution of a byte depends only on its position and value.

use crate::raw;

/// Length of the longest input (IPv6 addresses and ports) plus 32 bits, in bytes.
pub const RSS_KEY_LENGTH: usize = 40;

/// The key of Microsoft's verification suite, which many drivers use.
pub const DEFAULT_RSS_KEY: [u8; RSS_KEY_LENGTH] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const INPUT: usize = raw::EK_STEER_HASH_INPUT as usize;

/// XOR contribution of each byte, by position and value.
pub(crate) type Tables = [[u32; 256]; INPUT];

/// Returns the 32 key bits that start at `bit`.
fn window(key: &[u8; RSS_KEY_LENGTH], bit: usize) -> u32 {
    let byte = |at: usize| u64::from(key.get(bit / 8 + at).copied().unwrap_or(0));
    let five = (0..5).fold(0, |bits, at| bits << 8 | byte(at));
    (five >> (8 - bit % 8)) as u32
}

pub(crate) fn fill(key: &[u8; RSS_KEY_LENGTH], tables: &mut Tables) {
    for (place, table) in tables.iter_mut().enumerate() {
        for (value, entry) in table.iter_mut().enumerate() {
            // The most significant bit comes first.
            let set = (0..8).filter(|bit| value & (0x80 >> bit) != 0);
            *entry = set.fold(0, |hash, bit| hash ^ window(key, place * 8 + bit));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn hash(input: &[u8]) -> u32 {
        let mut tables = Box::new([[0; 256]; INPUT]);
        fill(&DEFAULT_RSS_KEY, &mut tables);
        input.iter().zip(tables.iter()).fold(0, |hash, (byte, table)| hash ^ table[usize::from(*byte)])
    }

    /// Checks the examples of Microsoft, "Verifying the RSS hash calculation", with ports.
    #[test]
    fn the_published_examples_come_out() {
        let ipv4 = |source: &str, source_port: u16, destination: &str, destination_port: u16| {
            let address = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets();
            hash(
                &[
                    &address(source)[..],
                    &address(destination)[..],
                    &source_port.to_be_bytes()[..],
                    &destination_port.to_be_bytes()[..],
                ]
                .concat(),
            )
        };
        assert_eq!(ipv4("66.9.149.187", 2794, "161.142.100.80", 1766), 0x51cc_c178);
        assert_eq!(ipv4("199.92.111.2", 14230, "65.69.140.83", 4739), 0xc626_b0ea);
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let ipv6 = hash(
            &[
                &address("3ffe:2501:200:1fff::7")[..],
                &address("3ffe:2501:200:3::1")[..],
                &2794_u16.to_be_bytes()[..],
                &1766_u16.to_be_bytes()[..],
            ]
            .concat(),
        );
        assert_eq!(ipv6, 0x4020_7d3d);
    }
}
