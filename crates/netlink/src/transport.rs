//! Exchanges requests and answers with the kernel.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_ECHO, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::constants::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("the kernel refused to {action}: {source}{}", words(.kernel_says))]
    Refused {
        action: String,
        source: io::Error,
        /// The kernel's extended acknowledgement, if any.
        kernel_says: Option<String>,
    },
    #[error("netlink: cannot {action}: {source}")]
    Socket { action: &'static str, source: io::Error },
    #[error(
        "netlink: cannot parse the kernel's answer to the request to {action}: {reason}; report this with the \
         output of `uname -r`"
    )]
    Answer { action: String, reason: String },
    #[error(
        "netlink: cannot {action}: the list changed during each of {MOST_DUMPS} readings; repeat the command when \
         no program adds or removes interfaces or qdiscs"
    )]
    Unsteady { action: String },
    /// The kernel accepted a setting, but uses another value.
    #[error("the kernel accepted the request to {action}, but uses {found}")]
    NotInForce { action: String, found: String },
}

impl NetlinkError {
    #[must_use]
    pub fn refusal_code(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

fn words(kernel_says: &Option<String>) -> String {
    kernel_says.as_ref().map(|words| format!(" (the kernel says: {words})")).unwrap_or_default()
}

/// A netlink socket for links, addresses and qdiscs. The socket acts on the network namespace in which
/// it was opened.
pub struct Netlink {
    connection: Connection,
}

/// A message as raw bytes: a restore needs the original bytes, because a parser may change them.
#[derive(Clone, Debug)]
pub(crate) struct RawMessage {
    /// Message type, such as `RTM_NEWQDISC`.
    pub(crate) kind: u16,
    /// All bytes after the netlink header.
    pub(crate) payload: Vec<u8>,
}

impl NetlinkSerializable for RawMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.payload.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.payload);
    }
}

impl NetlinkDeserializable for RawMessage {
    type Error = std::convert::Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Self::Error> {
        Ok(Self { kind: header.message_type, payload: payload.to_vec() })
    }
}

/// `NLMSGERR_ATTR_MSG`: the kernel's text.
const ERROR_ATTRIBUTE_MESSAGE: u16 = 1;
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;
const MESSAGE_HEADER_LENGTH: usize = 16;
/// From include/uapi/linux/netlink.h.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Maximum number of dumps for one list. A dump of a hundred interfaces takes less than a millisecond.
const MOST_DUMPS: usize = 10;

impl Netlink {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { connection: Connection::open(NETLINK_ROUTE)? })
    }

    pub(crate) fn change(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        action: &str,
    ) -> Result<(), NetlinkError> {
        self.connection.exchange(message, NLM_F_REQUEST | NLM_F_ACK | flags, action).map(drop)
    }

    /// Sends a request with `NLM_F_ECHO`. For qdiscs, the kernel otherwise sends the answer only to
    /// listeners (`qdisc_get_notify`, net/sched/sch_api.c).
    pub(crate) fn get_echoed(
        &mut self,
        message: RouteNetlinkMessage,
        action: &str,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.connection.exchange(message, NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO, action)
    }

    pub(crate) fn dump(
        &mut self,
        message: RouteNetlinkMessage,
        action: &str,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.connection.exchange(message, NLM_F_REQUEST | NLM_F_DUMP, action)
    }

    pub(crate) fn change_raw(
        &mut self,
        message: RawMessage,
        flags: u16,
        action: &str,
    ) -> Result<(), NetlinkError> {
        self.connection.exchange(message, NLM_F_REQUEST | NLM_F_ACK | flags, action).map(drop)
    }

    pub(crate) fn get_raw(
        &mut self,
        message: RawMessage,
        action: &str,
    ) -> Result<Vec<RawMessage>, NetlinkError> {
        self.connection.exchange(message, NLM_F_REQUEST | NLM_F_ACK, action)
    }

    pub(crate) fn dump_raw(
        &mut self,
        message: RawMessage,
        action: &str,
    ) -> Result<Vec<RawMessage>, NetlinkError> {
        self.connection.exchange(message, NLM_F_REQUEST | NLM_F_DUMP, action)
    }
}

/// A socket of any netlink protocol, with its sequence numbers.
pub(crate) struct Connection {
    socket: Socket,
    sequence: u32,
}

impl Connection {
    pub(crate) fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let fail = |action| move |source| NetlinkError::Socket { action, source };
        let mut socket = Socket::new(protocol).map_err(fail("open a socket"))?;
        socket.bind_auto().map_err(fail("bind a socket"))?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(fail("connect to the kernel"))?;
        // Ignore errors: before Linux 4.12, refusals have no text.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request and collects the answers up to the acknowledgement or the end of the dump. The flags
    /// must include `NLM_F_ACK` or `NLM_F_DUMP`. Repeats a dump during which the listed objects changed.
    pub(crate) fn exchange<M>(&mut self, message: M, flags: u16, action: &str) -> Result<Vec<M>, NetlinkError>
    where
        M: NetlinkSerializable + NetlinkDeserializable + std::fmt::Debug,
    {
        let payload = NetlinkPayload::InnerMessage(message);
        let mut packet = NetlinkMessage::new(NetlinkHeader::default(), payload);
        packet.header.flags = flags;
        consistent(action, || {
            self.sequence = self.sequence.wrapping_add(1);
            packet.header.sequence_number = self.sequence;
            packet.finalize();
            self.exchange_once(&packet, action)
        })
    }

    fn exchange_once<M>(&self, packet: &NetlinkMessage<M>, action: &str) -> Result<Answers<M>, NetlinkError>
    where
        M: NetlinkSerializable + NetlinkDeserializable + std::fmt::Debug,
    {
        let mut buffer = vec![0; packet.buffer_len()];
        packet.serialize(&mut buffer);
        self.socket
            .send(&buffer, 0)
            .map_err(|source| NetlinkError::Socket { action: "send a request", source })?;
        let mut answers = Answers::default();
        loop {
            let (datagram, _) = self
                .socket
                .recv_from_full()
                .map_err(|source| NetlinkError::Socket { action: "receive an answer", source })?;
            if answers.take(&datagram, packet.header.sequence_number, action)? {
                return Ok(answers);
            }
        }
    }
}

/// Repeats a dump until no object changed while the kernel listed the objects, up to [`MOST_DUMPS`] times.
fn consistent<M>(
    action: &str,
    mut dump: impl FnMut() -> Result<Answers<M>, NetlinkError>,
) -> Result<Vec<M>, NetlinkError> {
    for _ in 0..MOST_DUMPS {
        let answers = dump()?;
        if !answers.is_interrupted {
            return Ok(answers.found);
        }
    }
    Err(NetlinkError::Unsteady { action: action.to_owned() })
}

struct Answers<M> {
    found: Vec<M>,
    /// Whether objects changed while the kernel listed them, so that the list may lack objects, or have
    /// objects twice (`nl_dump_check_consistent`, include/net/netlink.h).
    is_interrupted: bool,
}

impl<M> Default for Answers<M> {
    fn default() -> Self {
        Self { found: Vec::new(), is_interrupted: false }
    }
}

impl<M: NetlinkDeserializable + std::fmt::Debug> Answers<M> {
    /// Adds the messages of a datagram. Returns whether the answer is complete.
    fn take(&mut self, datagram: &[u8], sequence: u32, action: &str) -> Result<bool, NetlinkError> {
        let mut rest = datagram;
        while rest.len() >= MESSAGE_HEADER_LENGTH {
            let answer = NetlinkMessage::<M>::deserialize(rest).map_err(|error| NetlinkError::Answer {
                action: action.to_owned(),
                reason: error.to_string(),
            })?;
            let length = answer.header.length as usize;
            if length < MESSAGE_HEADER_LENGTH || length > rest.len() {
                return Err(NetlinkError::Answer {
                    action: action.to_owned(),
                    reason: format!("a message of {length} bytes in {} bytes", rest.len()),
                });
            }
            let is_ours = answer.header.sequence_number == sequence;
            let flags = answer.header.flags;
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
            if !is_ours {
                continue;
            }
            match answer.payload {
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
                NetlinkPayload::Error(error) => {
                    return Err(NetlinkError::Refused {
                        action: action.to_owned(),
                        source: io::Error::from_raw_os_error(error.raw_code().wrapping_neg()),
                        kernel_says: extended_acknowledgement(&error.header, flags),
                    });
                }
                // A dump that fails after its first message has its error in its end (`netlink_dump_done`,
                // net/netlink/af_netlink.c).
                NetlinkPayload::Done(end) if end.code < 0 => {
                    return Err(NetlinkError::Refused {
                        action: action.to_owned(),
                        source: io::Error::from_raw_os_error(end.code.wrapping_neg()),
                        kernel_says: match flags & NLM_F_ACK_TLVS {
                            0 => None,
                            _ => kernel_text(&end.extended_ack),
                        },
                    });
                }
                NetlinkPayload::Done(_) => {
                    self.is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
                    return Ok(true);
                }
                NetlinkPayload::InnerMessage(inner) => {
                    self.is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
                    self.found.push(inner);
                }
                _ => {}
            }
        }
        Ok(false)
    }
}

const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;

/// Returns the kernel's text in an error. The text is in attributes after the echoed request. With
/// `NETLINK_CAP_ACK`, the kernel echoes only the header of the request.
fn extended_acknowledgement(echo: &[u8], flags: u16) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let echoed = if flags & NLM_F_CAPPED != 0 {
        MESSAGE_HEADER_LENGTH
    } else {
        let length = echo.get(..4)?;
        u32::from_ne_bytes(length.try_into().ok()?) as usize
    };
    kernel_text(echo.get(echoed.next_multiple_of(4)..)?)
}

/// Returns the kernel's text in the attributes of an extended acknowledgement.
fn kernel_text(attributes: &[u8]) -> Option<String> {
    let mut rest = attributes;
    while rest.len() >= 4 {
        let length = u16::from_ne_bytes([rest[0], rest[1]]) as usize;
        let kind = u16::from_ne_bytes([rest[2], rest[3]]) & ATTRIBUTE_TYPE_MASK;
        let value = rest.get(4..length)?;
        if kind == ERROR_ATTRIBUTE_MESSAGE {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn reads_the_kernels_words() {
        let mut echo = vec![0; MESSAGE_HEADER_LENGTH];
        echo.extend(attribute(2, &7_u32.to_ne_bytes()));
        echo.extend(attribute(ERROR_ATTRIBUTE_MESSAGE, b"Specified qdisc kind is unknown\0"));
        let words = extended_acknowledgement(&echo, NLM_F_CAPPED | NLM_F_ACK_TLVS);
        assert_eq!(words.as_deref(), Some("Specified qdisc kind is unknown"));
        assert_eq!(extended_acknowledgement(&echo, NLM_F_CAPPED), None);
    }

    const SEQUENCE: u32 = 7;

    /// Returns a message of a dump: an object with a payload, or the end without one.
    fn dumped(flags: u16, sequence: u32, payload: Option<u32>) -> Vec<u8> {
        const NLMSG_DONE: u16 = 3;
        const RTM_NEWLINK: u16 = 16;
        let kind = if payload.is_some() { RTM_NEWLINK } else { NLMSG_DONE };
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend([kind, flags].map(u16::to_ne_bytes).concat());
        bytes.extend([sequence, 0, payload.unwrap_or(0)].map(u32::to_ne_bytes).concat());
        bytes
    }

    fn taken(datagrams: &[Vec<u8>]) -> (Answers<RawMessage>, bool) {
        let mut answers = Answers::default();
        let is_complete = datagrams.iter().any(|one| answers.take(one, SEQUENCE, "list links").unwrap());
        (answers, is_complete)
    }

    #[test]
    fn a_dump_ends_with_its_end_and_a_change_during_it_is_seen() {
        let (object, end) = (dumped(2, SEQUENCE, Some(1)), dumped(2, SEQUENCE, None));
        let (answers, is_complete) = taken(&[object.clone(), [object.clone(), end.clone()].concat()]);
        assert_eq!((answers.found.len(), is_complete, answers.is_interrupted), (2, true, false));
        assert!(!taken(std::slice::from_ref(&object)).1);
        for changed in [
            [dumped(2 | NLM_F_DUMP_INTR, SEQUENCE, Some(1)), end.clone()],
            [object.clone(), dumped(2 | NLM_F_DUMP_INTR, SEQUENCE, None)],
        ] {
            let (answers, is_complete) = taken(&changed);
            assert!(answers.is_interrupted && is_complete && answers.found.len() == 1);
        }
        // An answer to an earlier request.
        let other = dumped(2 | NLM_F_DUMP_INTR, SEQUENCE - 1, None);
        let (answers, is_complete) = taken(&[other, end]);
        assert!(is_complete && !answers.is_interrupted);
    }

    #[test]
    fn a_dump_that_ends_with_an_error_is_no_list() {
        const NLM_F_MULTI: u16 = 2;
        let ended = |flags: u16, errno: i32, attributes: &[u8]| {
            let mut end = dumped(flags, SEQUENCE, None);
            end[..4].copy_from_slice(&(20 + attributes.len() as u32).to_ne_bytes());
            end[16..20].copy_from_slice(&(-errno).to_ne_bytes());
            end.extend(attributes);
            let mut answers = Answers::<RawMessage>::default();
            assert!(!answers.take(&dumped(NLM_F_MULTI, SEQUENCE, Some(1)), SEQUENCE, "list links").unwrap());
            answers.take(&end, SEQUENCE, "list links")
        };
        assert!(ended(NLM_F_MULTI, 0, &[]).unwrap());
        let error = ended(NLM_F_MULTI, libc::ENOMEM, &[]).unwrap_err();
        assert_eq!(error.refusal_code(), Some(libc::ENOMEM));
        let text = attribute(ERROR_ATTRIBUTE_MESSAGE, b"no such table\0");
        let told = ended(NLM_F_MULTI | NLM_F_ACK_TLVS, libc::ENOENT, &text).unwrap_err().to_string();
        assert!(told.starts_with("the kernel refused to list links"), "{told}");
        assert!(told.ends_with("(the kernel says: no such table)"), "{told}");
    }

    #[test]
    fn a_dump_is_repeated_until_nothing_changes_and_not_forever() {
        let answers = |is_interrupted| Answers { found: vec![()], is_interrupted };
        let mut dumps = 0;
        let found = consistent("list links", || {
            dumps += 1;
            Ok(answers(dumps < 3))
        });
        assert_eq!((found.unwrap().len(), dumps), (1, 3));
        let error = consistent("list links", || {
            dumps += 1;
            Ok(answers(true))
        });
        assert_eq!(dumps, 3 + MOST_DUMPS);
        let told = error.unwrap_err().to_string();
        assert!(
            told.starts_with("netlink: cannot list links: the list changed during each of 10 readings"),
            "{told}"
        );
    }

    #[test]
    fn damaged_acknowledgements_are_silent() {
        let mut echo = vec![0; MESSAGE_HEADER_LENGTH];
        echo.extend(attribute(ERROR_ATTRIBUTE_MESSAGE, b"words\0"));
        for length in 0..echo.len() {
            let _ = extended_acknowledgement(&echo[..length], NLM_F_CAPPED | NLM_F_ACK_TLVS);
            let _ = extended_acknowledgement(&echo[..length], NLM_F_ACK_TLVS);
        }
        let mut zero_length = vec![0; MESSAGE_HEADER_LENGTH];
        zero_length.extend([0, 0, 1, 0]);
        assert_eq!(extended_acknowledgement(&zero_length, NLM_F_CAPPED | NLM_F_ACK_TLVS), None);
    }
}
