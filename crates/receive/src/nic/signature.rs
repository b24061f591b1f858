//! The hash by which the Intel 82599 remembers a flow in the signature mode of its flow director
//! (`ixgbe_atr_compute_sig_hash_82599`, drivers/net/ethernet/intel/ixgbe/ixgbe_82599.c).

use crate::filter::FilterMatch;
use crate::flow::{FlowTuple, Transport};
use crate::key::{Key, PROTOCOL_SHIFT, Pattern, bits};

/// `IXGBE_ATR_BUCKET_HASH_KEY`.
const BUCKET_KEY: u32 = 0x3dad_14e2;
/// `IXGBE_ATR_SIGNATURE_HASH_KEY`.
const SIGNATURE_KEY: u32 = 0x174d_3614;
/// Bits of the bucket and of the signature (`IXGBE_ATR_HASH_MASK`).
const MASK: u32 = 0x7fff;
/// Types of flows (`IXGBE_ATR_L4TYPE_UDP`, `_TCP`, `_IPV6_MASK`).
const UDP: u32 = 1;
const TCP: u32 = 2;
const IPV6: u32 = 4;

/// A flow's bucket and, above it, its signature: 15 bits each.
pub(crate) fn signature(flow: &FlowTuple) -> u32 {
    let (source, ether_type) = bits(flow.source);
    let (destination, _) = bits(flow.destination);
    // Addresses are folded to 32 bits by XOR, as `ixgbe_atr` does with IPv6.
    let fold = |bits: u128| (bits >> 96) as u32 ^ (bits >> 64) as u32 ^ (bits >> 32) as u32 ^ bits as u32;
    let protocol = match flow.transport {
        Transport::Tcp => TCP,
        Transport::Udp => UDP,
    };
    let version = if ether_type == crate::key::ETHER_TYPE_IPV6 { IPV6 } else { 0 };
    // The type stands in the second byte of the dword, behind the pool; there is no VLAN.
    let flow_type = (protocol | version) << 16;
    // The flexible bytes, which are the Ethernet type, are folded into the source port.
    let source_port = u32::from(flow.source_port ^ ether_type);
    let common = fold(source) ^ fold(destination) ^ (source_port << 16 | u32::from(flow.destination_port));
    hash(flow_type, common)
}

/// The hash of the flow type with VLAN, and of all else folded together.
fn hash(flow_type: u32, common: u32) -> u32 {
    let (mut shared, mut bucket, mut signature) = (0_u32, 0_u32, 0_u32);
    let mut add = |bit: u32, value: u32, shift: u32| {
        let both = BUCKET_KEY & SIGNATURE_KEY;
        if both >> bit & 1 == 1 {
            shared ^= value >> shift;
        } else if BUCKET_KEY >> bit & 1 == 1 {
            bucket ^= value >> shift;
        } else if SIGNATURE_KEY >> bit & 1 == 1 {
            signature ^= value << (16 - shift);
        }
    };
    let high = common ^ flow_type ^ flow_type >> 16;
    // The flow type is no part of bit 0.
    let plain = common.rotate_left(16);
    let low = plain ^ flow_type ^ flow_type << 16;
    for bit in 0..16 {
        add(bit, if bit == 0 { plain } else { low }, bit);
        add(bit + 16, high, bit);
    }
    bucket ^= shared;
    signature ^= shared << 16;
    signature & MASK << 16 | bucket & MASK
}

/// What a table of signatures stores of a filter; none unless the filter holds a whole five-tuple.
pub(crate) fn stored(matches: &FilterMatch) -> Option<Pattern> {
    let flow = matches.as_flow()?;
    Some(Pattern { value: reduced(&flow), mask: WHOLE })
}

/// All that is compared: the signature and what the flow director tells apart beside it.
pub(crate) const WHOLE: Key = Key { source: 0, destination: 0, link: u16::MAX as u64, transport: u64::MAX };

/// A flow's signature, as what is compared.
pub(crate) fn reduced(flow: &FlowTuple) -> Key {
    let key = Key::of(flow);
    Key {
        source: 0,
        destination: 0,
        link: key.link,
        transport: u64::from(signature(flow)) | key.transport >> PROTOCOL_SHIFT << PROTOCOL_SHIFT,
    }
}
