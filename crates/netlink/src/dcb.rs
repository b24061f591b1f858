//! Shares of traffic classes: enhanced transmission selection (IEEE 802.1Qaz, ETS) through dcbnl (`net/dcb/dcbnl.c`,
//! `include/uapi/linux/dcbnl.h`).
//!
//! A traffic class is a group of transmit queues, created by [`crate::tc::Qdisc::Mqprio`]. Up to eight classes share the
//! link by per cent. The interface differs from the rest of netlink in two points:
//! - A driver reports a refusal not as an error but as a byte in its answer.
//! - A driver that cannot set shares answers with success.
//!
//! So [`Dcb::set_ets`] reads the shares back. To restore a device, set the first result of [`Dcb::ets`]: it is kept byte by
//! byte.
//!
//! Drivers with `ieee_setets` in Linux 7.2: amd-xgbe, bnxt, fm10k, hns3, i40e, ice, ixgbe, mlx4, mlx5, nfp, qede, and mlxsw
//! among switches. In some of them the firmware may own the shares unless host-managed DCBX is on.

use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::constants::NETLINK_ROUTE;

use crate::generic::Attributes;
use crate::tc::attributes;
use crate::transport::{Connection, NetlinkError};

const RTM_GETDCB: u16 = 78;
const RTM_SETDCB: u16 = 79;
const DCB_CMD_IEEE_SET: u8 = 20;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;
const DCB_ATTR_IEEE: u16 = 13;
const DCB_ATTR_IEEE_ETS: u16 = 1;
/// `struct dcbmsg`: family, command, padding.
const DCB_HEADER_LENGTH: usize = 4;
const NLA_F_NESTED: u16 = 0x8000;

/// Maximum number of traffic classes (`IEEE_8021QAZ_MAX_TCS`).
pub const MAX_CLASSES: usize = 8;

/// A class is served by its share (`IEEE_8021QAZ_TSA_ETS`); 0 is strict priority.
pub const SERVED_BY_SHARE: u8 = 2;

/// The settings of a device's traffic classes, in the driver's form (`struct ieee_ets`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ets {
    /// Whether the device adopts its neighbour's settings over LLDP (0 or 1).
    pub willing: u8,
    /// Number of traffic classes.
    pub classes: u8,
    /// Whether a credit-based shaper is supported (0 or 1).
    pub credit_based_shaper: u8,
    /// Transmit share of each class, per cent. The shares of classes served by share add up to 100.
    pub transmit_share: [u8; MAX_CLASSES],
    /// Receive share of each class, per cent.
    pub receive_share: [u8; MAX_CLASSES],
    /// Scheduling of each class ([`SERVED_BY_SHARE`]).
    pub selection: [u8; MAX_CLASSES],
    /// Class of each IEEE 802.1Q priority.
    pub class_of_priority: [u8; MAX_CLASSES],
    /// Recommendation for the neighbour: `transmit_share`, `selection` and `class_of_priority`.
    pub recommended: [[u8; MAX_CLASSES]; 3],
}

/// `sizeof(struct ieee_ets)`.
const ETS_LENGTH: usize = 3 + 7 * MAX_CLASSES;

impl Ets {
    /// The same settings with shares in proportion to weights, one class per weight (at most [`MAX_CLASSES`];
    /// further weights are ignored), all served by share. Shares are whole per cents of at least 1 and add up
    /// to 100; the largest remainders are rounded up. If all weights are 0, the shares are equal.
    #[must_use]
    pub fn with_weights(mut self, weights: &[u32]) -> Self {
        let count = weights.len().min(MAX_CLASSES);
        self.transmit_share = [0; MAX_CLASSES];
        self.transmit_share[..count].copy_from_slice(&shares(&weights[..count])[..count]);
        self.selection[..count].fill(SERVED_BY_SHARE);
        self
    }

    fn to_bytes(self) -> [u8; ETS_LENGTH] {
        let mut bytes = [0; ETS_LENGTH];
        bytes[..3].copy_from_slice(&[self.willing, self.classes, self.credit_based_shaper]);
        let tables = [self.transmit_share, self.receive_share, self.selection, self.class_of_priority];
        for (place, table) in
            bytes[3..].chunks_exact_mut(MAX_CLASSES).zip(tables.iter().chain(&self.recommended))
        {
            place.copy_from_slice(table);
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ETS_LENGTH] = bytes.try_into().ok()?;
        let mut tables = bytes[3..].chunks_exact(MAX_CLASSES);
        let mut next = || -> Option<[u8; MAX_CLASSES]> { tables.next()?.try_into().ok() };
        Some(Self {
            willing: bytes[0],
            classes: bytes[1],
            credit_based_shaper: bytes[2],
            transmit_share: next()?,
            receive_share: next()?,
            selection: next()?,
            class_of_priority: next()?,
            recommended: [next()?, next()?, next()?],
        })
    }
}

/// Whole per cents in proportion to weights: see [`Ets::with_weights`].
fn shares(weights: &[u32]) -> [u8; MAX_CLASSES] {
    let mut shares = [0_u8; MAX_CLASSES];
    let count = weights.len() as u64;
    if count == 0 {
        return shares;
    }
    let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    // Each class has at least 1 per cent; the rest is in proportion.
    let spare = 100 - count;
    let exact = |weight: u32| match sum {
        0 => (spare / count, spare % count),
        _ => (u64::from(weight) * spare / sum, u64::from(weight) * spare % sum),
    };
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|class| std::cmp::Reverse(exact(weights[*class]).1));
    let mut left = spare;
    for (share, weight) in shares.iter_mut().zip(weights) {
        let whole = exact(*weight).0;
        left -= whole;
        // At most 100, so it fits.
        *share = 1 + whole as u8;
    }
    for class in by_remainder.into_iter().take(left as usize) {
        shares[class] += 1;
    }
    shares
}

/// Traffic classes of devices in the network namespace in which this was opened.
pub struct Dcb {
    connection: Connection,
}

impl Dcb {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { connection: Connection::open(NETLINK_ROUTE)? })
    }

    /// The settings of an interface; none if the kernel or the driver has no ETS.
    ///
    /// # Errors
    /// When the interface does not exist, or the kernel refuses for another reason.
    pub fn ets(&mut self, interface: &str) -> Result<Option<Ets>, NetlinkError> {
        let action = format!("tell the shares of the traffic classes of {interface}");
        let request = DcbMessage::new(RTM_GETDCB, DCB_CMD_IEEE_GET, interface, None);
        match self.connection.exchange(request, NLM_F_REQUEST | NLM_F_ACK, &action) {
            Err(error) if error.refusal_code() == Some(libc::EOPNOTSUPP) => Ok(None),
            answers => answers?.first().map_or(Ok(None), |answer| answer.ets(&action)),
        }
    }

    /// Sets an interface's shares and reads them back.
    ///
    /// # Errors
    /// When the kernel or the driver refuses, or another value is read back: a driver without ETS accepts
    /// everything and does nothing.
    pub fn set_ets(&mut self, interface: &str, ets: &Ets) -> Result<(), NetlinkError> {
        let action = format!(
            "set the shares of the traffic classes of {interface} to {:?} per cent",
            ets.transmit_share
        );
        let request = DcbMessage::new(RTM_SETDCB, DCB_CMD_IEEE_SET, interface, Some(ets));
        let answers = self.connection.exchange(request, NLM_F_REQUEST | NLM_F_ACK, &action)?;
        for answer in &answers {
            answer.refusal(&action)?;
        }
        let found = self.ets(interface)?;
        let same = |found: &Ets| {
            (found.transmit_share, found.selection, found.class_of_priority)
                == (ets.transmit_share, ets.selection, ets.class_of_priority)
        };
        match found {
            Some(found) if same(&found) => Ok(()),
            Some(found) => Err(NetlinkError::NotInForce {
                action,
                found: format!(
                    "{:?} per cent, classes served as {:?}, classes of priorities {:?}",
                    found.transmit_share, found.selection, found.class_of_priority
                ),
            }),
            None => Err(NetlinkError::NotInForce { action, found: "none: the driver has no ETS".to_owned() }),
        }
    }
}

/// A dcbnl message; the rtnetlink crates do not know its types.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DcbMessage {
    message_type: u16,
    bytes: Vec<u8>,
}

impl DcbMessage {
    fn new(message_type: u16, command: u8, interface: &str, ets: Option<&Ets>) -> Self {
        let mut name = interface.as_bytes().to_vec();
        name.push(0);
        let mut list = vec![(DCB_ATTR_IFNAME, name)];
        if let Some(ets) = ets {
            let nested = attributes(&[(DCB_ATTR_IEEE_ETS, ets.to_bytes().to_vec())]);
            list.push((DCB_ATTR_IEEE | NLA_F_NESTED, nested));
        }
        let mut bytes = vec![libc::AF_UNSPEC as u8, command, 0, 0];
        bytes.extend(attributes(&list));
        Self { message_type, bytes }
    }

    fn attributes(&self, action: &str) -> Result<Attributes, NetlinkError> {
        let fail = |reason: String| NetlinkError::Answer { action: action.to_owned(), reason };
        let bytes = self
            .bytes
            .get(DCB_HEADER_LENGTH..)
            .ok_or_else(|| fail(format!("{} bytes are too few", self.bytes.len())))?;
        Attributes::parse(bytes).map_err(|error| fail(error.to_string()))
    }

    /// The settings in an answer; none if the driver has none.
    fn ets(&self, action: &str) -> Result<Option<Ets>, NetlinkError> {
        let Some(bytes) =
            self.attributes(action)?.nested(DCB_ATTR_IEEE).and_then(|ieee| ieee.get(DCB_ATTR_IEEE_ETS))
        else {
            return Ok(None);
        };
        let reason = format!("the shares have {} bytes and not {ETS_LENGTH}", bytes.len());
        match Ets::from_bytes(&bytes) {
            Some(ets) => Ok(Some(ets)),
            None => Err(NetlinkError::Answer { action: action.to_owned(), reason }),
        }
    }

    /// The driver's result: a negative errno, truncated to a byte.
    fn refusal(&self, action: &str) -> Result<(), NetlinkError> {
        match self.attributes(action)?.get(DCB_ATTR_IEEE).as_deref() {
            Some(&[verdict]) if verdict != 0 => Err(NetlinkError::Refused {
                action: action.to_owned(),
                source: io::Error::from_raw_os_error(i32::from(verdict.wrapping_neg())),
                kernel_says: None,
            }),
            _ => Ok(()),
        }
    }
}

impl NetlinkSerializable for DcbMessage {
    fn message_type(&self) -> u16 {
        self.message_type
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..self.bytes.len()].copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for DcbMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { message_type: header.message_type, bytes: payload.to_vec() })
    }
}

impl From<DcbMessage> for NetlinkPayload<DcbMessage> {
    fn from(message: DcbMessage) -> Self {
        Self::InnerMessage(message)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    /// An answer to `DCB_CMD_IEEE_GET`, in the layout of `dcbnl_ieee_fill`: name, IEEE 802.1Qaz table (the
    /// shares, then an empty table of applications), DCBX mode.
    fn answer(ets: &[u8]) -> DcbMessage {
        const DCB_ATTR_IEEE_APP_TABLE: u16 = 3;
        const DCB_ATTR_DCBX: u16 = 14;
        let ieee = attributes(&[(DCB_ATTR_IEEE_ETS, ets.to_vec()), (DCB_ATTR_IEEE_APP_TABLE, Vec::new())]);
        let mut bytes = vec![0, DCB_CMD_IEEE_GET, 0, 0];
        bytes.extend(attributes(&[
            (DCB_ATTR_IFNAME, b"eth0\0".to_vec()),
            (DCB_ATTR_IEEE, ieee),
            (DCB_ATTR_DCBX, vec![9]),
        ]));
        DcbMessage { message_type: RTM_GETDCB, bytes }
    }

    fn example() -> Ets {
        Ets {
            willing: 1,
            classes: 8,
            credit_based_shaper: 0,
            transmit_share: [50, 30, 20, 0, 0, 0, 0, 0],
            receive_share: [50, 30, 20, 0, 0, 0, 0, 0],
            selection: [2, 2, 2, 0, 0, 0, 0, 0],
            class_of_priority: [0, 1, 2, 3, 4, 5, 6, 7],
            recommended: [[1; 8], [2; 8], [3; 8]],
        }
    }

    #[test]
    fn reads_the_kernels_structure() {
        let mut bytes = vec![1, 8, 0];
        for table in [[50, 30, 20, 0, 0, 0, 0, 0], [50, 30, 20, 0, 0, 0, 0, 0], [2, 2, 2, 0, 0, 0, 0, 0]] {
            bytes.extend(table);
        }
        bytes.extend([0, 1, 2, 3, 4, 5, 6, 7]);
        bytes.extend([[1; 8], [2; 8], [3; 8]].concat());
        assert_eq!(bytes.len(), 59, "sizeof(struct ieee_ets)");
        assert_eq!(answer(&bytes).ets("test").unwrap(), Some(example()));
        assert_eq!(example().to_bytes().as_slice(), bytes);
    }

    #[test]
    fn a_request_is_what_an_answer_is() {
        let request = DcbMessage::new(RTM_SETDCB, DCB_CMD_IEEE_SET, "eth0", Some(&example()));
        assert_eq!(request.bytes[..4], [0, DCB_CMD_IEEE_SET, 0, 0]);
        assert_eq!(request.ets("test").unwrap(), Some(example()));
    }

    #[test]
    fn a_driver_without_shares_has_none_and_a_short_structure_is_an_error() {
        let mut bytes = vec![0, DCB_CMD_IEEE_GET, 0, 0];
        bytes.extend(attributes(&[(DCB_ATTR_IEEE, Vec::new())]));
        assert_eq!(DcbMessage { message_type: RTM_GETDCB, bytes }.ets("test").unwrap(), None);
        let error = answer(&[0; 58]).ets("tell the shares").unwrap_err().to_string();
        assert!(error.contains("58 bytes and not 59"), "{error}");
        let error = DcbMessage { message_type: RTM_GETDCB, bytes: vec![0] }.ets("test").unwrap_err();
        assert!(error.to_string().contains("too few"), "{error}");
    }

    #[test]
    fn a_drivers_refusal_is_a_byte_in_the_answer() {
        let verdict = |verdict: u8| {
            let mut bytes = vec![0, DCB_CMD_IEEE_SET, 0, 0];
            bytes.extend(attributes(&[(DCB_ATTR_IEEE, vec![verdict])]));
            DcbMessage { message_type: RTM_SETDCB, bytes }.refusal("set")
        };
        verdict(0).unwrap();
        let refused = verdict((-libc::EINVAL) as u8).unwrap_err();
        assert_eq!(refused.refusal_code(), Some(libc::EINVAL));
    }

    #[test]
    fn shares_by_hand() {
        let of = |weights: &[u32]| example().with_weights(weights).transmit_share;
        assert_eq!(of(&[1, 1]), [50, 50, 0, 0, 0, 0, 0, 0]);
        assert_eq!(of(&[0, 0, 0]), [34, 33, 33, 0, 0, 0, 0, 0]);
        // 1 + 98 and 1 + 0: each class keeps 1 per cent.
        assert_eq!(of(&[7, 0]), [99, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(of(&[]), [0; 8]);
    }

    proptest! {
        #[test]
        fn shares_are_whole_complete_and_in_order(weights in prop::collection::vec(any::<u32>(), 1..=8)) {
            let ets = example().with_weights(&weights);
            let shares = &ets.transmit_share[..weights.len()];
            prop_assert_eq!(shares.iter().map(|share| u32::from(*share)).sum::<u32>(), 100);
            let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (share, weight) in shares.iter().zip(&weights) {
                prop_assert!(*share >= 1);
                let spare = (100 - weights.len()) as f64;
                let exact = 1.0 + if sum > 0.0 { f64::from(*weight) / sum } else { 1.0 / weights.len() as f64 } * spare;
                prop_assert!((f64::from(*share) - exact).abs() < 1.0 + 1e-9, "{} of {}", share, exact);
            }
            prop_assert!(ets.selection[..weights.len()].iter().all(|served| *served == SERVED_BY_SHARE));
        }

        #[test]
        fn any_answer_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let message = DcbMessage { message_type: RTM_GETDCB, bytes };
            let _ = (message.ets("test"), message.refusal("test"));
        }
    }
}
