//! Generic netlink: family lookup and requests (`net/netlink/genetlink.c`).

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Nla, NlasIterator, Parseable,
    ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::constants::NETLINK_GENERIC;

use crate::transport::{Connection, NetlinkError};

/// `NLA_TYPE_MASK`: an attribute's type without its flags.
const TYPE_MASK: u16 = 0x3fff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Assigned by the kernel at registration.
    id: u16,
    version: u8,
}

/// A generic netlink socket of the network namespace in which it was opened.
pub struct GenericNetlink {
    connection: Connection,
}

impl GenericNetlink {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { connection: Connection::open(NETLINK_GENERIC)? })
    }

    /// Looks up a family, or returns `None` if the kernel lacks the family. The kernel loads a module
    /// if necessary.
    pub fn family(&mut self, name: &str) -> Result<Option<Family>, NetlinkError> {
        let request =
            GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas: vec![GenlCtrlAttrs::FamilyName(name.to_owned())] };
        let action = format!("find the generic netlink family {name}");
        let answers =
            self.connection.exchange(GenlMessage::from_payload(request), NLM_F_REQUEST | NLM_F_ACK, &action);
        let answers = match answers {
            Err(error) if error.refusal_code() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        let (mut id, mut version) = (None, None);
        for attribute in answers.iter().flat_map(|answer| &answer.payload.nlas) {
            match attribute {
                GenlCtrlAttrs::FamilyId(found) => id = Some(*found),
                GenlCtrlAttrs::Version(found) => version = u8::try_from(*found).ok(),
                _ => {}
            }
        }
        match (id, version) {
            (Some(id), Some(version)) => Ok(Some(Family { id, version })),
            _ => Err(NetlinkError::Answer { action, reason: "it has no number and version".to_owned() }),
        }
    }

    /// Sends a request and returns each answer's attributes.
    pub(crate) fn request(
        &mut self,
        family: Family,
        command: u8,
        attributes: Vec<DefaultNla>,
        action: &str,
    ) -> Result<Vec<Attributes>, NetlinkError> {
        self.exchange(family, command, attributes, NLM_F_ACK, action)
    }

    pub(crate) fn dump(
        &mut self,
        family: Family,
        command: u8,
        attributes: Vec<DefaultNla>,
        action: &str,
    ) -> Result<Vec<Attributes>, NetlinkError> {
        self.exchange(family, command, attributes, NLM_F_DUMP, action)
    }

    fn exchange(
        &mut self,
        family: Family,
        command: u8,
        attributes: Vec<DefaultNla>,
        flags: u16,
        action: &str,
    ) -> Result<Vec<Attributes>, NetlinkError> {
        let header = GenlHeader { cmd: command, version: family.version };
        let payload = Attributes { header, list: attributes };
        let answers = self.connection.exchange(
            GenlMessage::new(header, payload, family.id),
            NLM_F_REQUEST | flags,
            action,
        )?;
        Ok(answers.into_iter().map(|answer| answer.payload).collect())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    header: GenlHeader,
    list: Vec<DefaultNla>,
}

impl Attributes {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let list = NlasIterator::new(bytes)
            .map(|attribute| DefaultNla::parse(&attribute?))
            .collect::<Result<_, _>>()?;
        Ok(Self { header: GenlHeader { cmd: 0, version: 0 }, list })
    }

    pub(crate) fn get(&self, kind: u16) -> Option<Vec<u8>> {
        let attribute = self.list.iter().find(|attribute| attribute.kind() & TYPE_MASK == kind)?;
        let mut bytes = vec![0; attribute.value_len()];
        attribute.emit_value(&mut bytes);
        Some(bytes)
    }

    /// Returns the bytes of every attribute of this type, in order.
    pub(crate) fn all(&self, kind: u16) -> Vec<Vec<u8>> {
        let of_kind = self.list.iter().filter(|attribute| attribute.kind() & TYPE_MASK == kind);
        of_kind
            .map(|attribute| {
                let mut bytes = vec![0; attribute.value_len()];
                attribute.emit_value(&mut bytes);
                bytes
            })
            .collect()
    }

    pub(crate) fn has(&self, kind: u16) -> bool {
        self.list.iter().any(|attribute| attribute.kind() & TYPE_MASK == kind)
    }

    pub(crate) fn u32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// Returns a number of 32 or 64 bits; the sender chooses the length (`NLA_UINT`).
    pub(crate) fn uint(&self, kind: u16) -> Option<u64> {
        let bytes = self.get(kind)?;
        match *bytes.as_slice() {
            [a, b, c, d] => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
            _ => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
        }
    }

    pub(crate) fn nested(&self, kind: u16) -> Option<Self> {
        Self::parse(&self.get(kind)?).ok()
    }
}

impl GenlFamily for Attributes {
    /// Returns an empty name. The trait requires the function, but the message has the family's id.
    fn family_name() -> &'static str {
        ""
    }

    fn command(&self) -> u8 {
        self.header.cmd
    }

    fn version(&self) -> u8 {
        self.header.version
    }
}

impl Emitable for Attributes {
    fn buffer_len(&self) -> usize {
        self.list.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.list.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Attributes {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self { header, ..Self::parse(bytes)? })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::tc::{attributes, words};

    #[test]
    fn reads_numbers_flags_and_nests() {
        let inner = attributes(&[(7, words(&[5]))]);
        let bytes = attributes(&[
            (1, words(&[42])),
            (2, 1_u64.to_ne_bytes().to_vec()),
            (3, Vec::new()),
            (4 | 0x8000, inner),
        ]);
        let read = Attributes::parse(&bytes).unwrap();
        assert_eq!((read.u32(1), read.uint(1), read.uint(2)), (Some(42), Some(42), Some(1)));
        assert_eq!((read.u32(2), read.u32(3), read.u32(9)), (None, None, None));
        assert!(read.has(3) && !read.has(9));
        assert_eq!(read.nested(4).unwrap().u32(7), Some(5));
    }

    #[test]
    fn damaged_attributes_are_an_error_or_absent() {
        let bytes = attributes(&[(1, words(&[42])), (4, attributes(&[(7, words(&[5]))]))]);
        for length in 0..bytes.len() {
            if let Ok(read) = Attributes::parse(&bytes[..length]) {
                let _ = (read.u32(1), read.uint(1), read.nested(4));
            }
        }
    }
}
