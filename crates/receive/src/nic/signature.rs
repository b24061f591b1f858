//! The hash with which the Intel 82599's flow director stores a flow in signature mode
//! (`ixgbe_atr_compute_sig_hash_82599`, drivers/net/ethernet/intel/ixgbe/ixgbe_82599.c).

use crate::filter::FilterMatch;
use crate::flow::{FlowTuple, Transport};
use crate::key::{Key, PROTOCOL_SHIFT, Pattern, bits};

/// `IXGBE_ATR_BUCKET_HASH_KEY`.
const BUCKET_KEY: u32 = 0x3dad_14e2;
/// `IXGBE_ATR_SIGNATURE_HASH_KEY`.
const SIGNATURE_KEY: u32 = 0x174d_3614;
/// Mask of the bucket and of the signature (`IXGBE_ATR_HASH_MASK`).
const MASK: u32 = 0x7fff;
/// Flow types (`IXGBE_ATR_L4TYPE_UDP`, `_TCP`, `_IPV6_MASK`).
const UDP: u32 = 1;
const TCP: u32 = 2;
const IPV6: u32 = 4;

/// Returns a flow's bucket in the low 16 bits and its signature in the high 16 bits: 15 bits each.
pub(crate) fn signature(flow: &FlowTuple) -> u32 {
    let (source, ether_type) = bits(flow.source);
    let (destination, _) = bits(flow.destination);
    // Fold addresses to 32 bits by XOR, as `ixgbe_atr` does for IPv6.
    let fold = |bits: u128| (bits >> 96) as u32 ^ (bits >> 64) as u32 ^ (bits >> 32) as u32 ^ bits as u32;
    let protocol = match flow.transport {
        Transport::Tcp => TCP,
        Transport::Udp => UDP,
    };
    let version = if ether_type == crate::key::ETHER_TYPE_IPV6 { IPV6 } else { 0 };
    // The flow type is in the second byte of the dword, after the pool. The VLAN field is 0.
    let flow_type = (protocol | version) << 16;
    // XOR the flexible bytes, which hold the Ethernet type, into the source port.
    let source_port = u32::from(flow.source_port ^ ether_type);
    let common = fold(source) ^ fold(destination) ^ (source_port << 16 | u32::from(flow.destination_port));
    let hashed = |key| hash(key, flow_type, common) & MASK;
    hashed(SIGNATURE_KEY) << 16 | hashed(BUCKET_KEY)
}

/// Returns the hash with one key: for each set key bit, XOR the stream that starts at this bit. `common`
/// holds the folded fields without the flow type. The low half of the key selects from the low half of the
/// stream.
fn hash(key: u32, flow_type: u32, common: u32) -> u32 {
    let high = common ^ flow_type ^ flow_type >> 16;
    // The flow type is not part of the stream that starts at bit 0.
    let first = common.rotate_left(16);
    let low = first ^ flow_type ^ flow_type << 16;
    (0..16).fold(0, |hash, bit| {
        let low = if bit == 0 { first } else { low };
        let picked = |key_bit: u32, stream: u32| if key >> key_bit & 1 == 1 { stream >> bit } else { 0 };
        hash ^ picked(bit, low) ^ picked(bit + 16, high)
    })
}

/// Returns the stored pattern of a filter in a signature table; `None` unless the filter has a five-tuple.
pub(crate) fn stored(matches: &FilterMatch) -> Option<Pattern> {
    let flow = matches.as_flow()?;
    Some(Pattern { value: reduced(&flow), mask: WHOLE })
}

/// All compared bits: the signature, the Ethernet type and the transport protocol.
pub(crate) const WHOLE: Key = Key { source: 0, destination: 0, link: u16::MAX as u64, transport: u64::MAX };

/// Returns a flow's signature as a key.
pub(crate) fn reduced(flow: &FlowTuple) -> Key {
    let key = Key::of(flow);
    Key {
        source: 0,
        destination: 0,
        link: key.link,
        transport: u64::from(signature(flow)) | key.transport >> PROTOCOL_SHIFT << PROTOCOL_SHIFT,
    }
}
