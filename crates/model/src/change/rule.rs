//! N-tuple rules in the kernel's format (`struct ethtool_rx_flow_spec`,
//! `include/uapi/linux/ethtool.h`). The offsets are the same on all 64-bit architectures.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::byte_fields::{array, put, word};

/// Length of `struct ethtool_rx_flow_spec`, bytes.
pub const RULE_LENGTH: usize = 168;
/// Offset of the header fields to match, after the flow type.
const HEADER: usize = 4;
/// Offset of the masks for the header fields.
const MASK: usize = 76;
/// Offset of the extension's mask.
const MASK_EXTENSION: usize = 128;
const COOKIE: usize = 152;
const LOCATION: usize = 160;

/// `TCP_V4_FLOW`. The next constants are `UDP_V4_FLOW`, `TCP_V6_FLOW` and `UDP_V6_FLOW`.
const FLOW_TCP4: u32 = 1;
const FLOW_UDP4: u32 = 2;
const FLOW_TCP6: u32 = 5;
const FLOW_UDP6: u32 = 6;
/// `FLOW_RSS`, a bit of the flow type: the rule distributes packets over an RSS context.
const FLOW_RSS: u32 = 0x2000_0000;
/// `RX_CLS_FLOW_DISC`: the rule drops packets.
const DISCARD: u64 = u64::MAX;
const TCP: u8 = 6;

/// A match on TCP or UDP headers for one IP version. A mask of 0 matches any value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    /// IP protocol number: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// Address of the sender.
    pub source: IpAddr,
    /// For IPv4, the low 32 bits are used.
    pub source_mask: u128,
    /// This host's address, of the same IP version as the source.
    pub destination: IpAddr,
    pub destination_mask: u128,
    pub source_port: u16,
    pub source_port_mask: u16,
    pub destination_port: u16,
    pub destination_port_mask: u16,
}

/// An n-tuple rule (`struct ethtool_rx_flow_spec`), byte for byte, so that other programs' rules can be
/// restored. The second field is the RSS context, which the kernel stores separately (`rss_context` of
/// `struct ethtool_rxnfc`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rule([u8; RULE_LENGTH], u32);

impl Rule {
    /// Returns a rule that sends matching packets to a queue. Both addresses must have the same IP version.
    #[must_use]
    pub fn steer(location: u32, matches: &RuleMatch, queue: u32) -> Self {
        let mut bytes = [0; RULE_LENGTH];
        let is_ipv4 = matches.source.is_ipv4();
        let tcp = matches.protocol == TCP;
        let flow_type = match (is_ipv4, tcp) {
            (true, true) => FLOW_TCP4,
            (true, false) => FLOW_UDP4,
            (false, true) => FLOW_TCP6,
            (false, false) => FLOW_UDP6,
        };
        put(&mut bytes, 0, &flow_type.to_ne_bytes());
        let mut fill = |at: usize, source: u128, destination: u128, ports: [u16; 2]| {
            let length = if is_ipv4 { 4 } else { 16 };
            // Addresses come first, then ports, in network byte order (struct ethtool_tcpip4_spec,
            // ethtool_tcpip6_spec).
            put(&mut bytes, at, &source.to_be_bytes()[16 - length..]);
            put(&mut bytes, at + length, &destination.to_be_bytes()[16 - length..]);
            put(&mut bytes, at + 2 * length, &ports[0].to_be_bytes());
            put(&mut bytes, at + 2 * length + 2, &ports[1].to_be_bytes());
        };
        let (source_mask, destination_mask) = (matches.source_mask, matches.destination_mask);
        fill(
            HEADER,
            bits(matches.source) & source_mask,
            bits(matches.destination) & destination_mask,
            [
                matches.source_port & matches.source_port_mask,
                matches.destination_port & matches.destination_port_mask,
            ],
        );
        let ports = [matches.source_port_mask, matches.destination_port_mask];
        fill(MASK, source_mask, destination_mask, ports);
        put(&mut bytes, COOKIE, &u64::from(queue).to_ne_bytes());
        put(&mut bytes, LOCATION, &location.to_ne_bytes());
        Self(bytes, 0)
    }

    /// Returns the rule changed to distribute packets over an RSS context. A device whose driver sets
    /// `cap_rss_rxnfc_adds` adds the rule's queue number to the queue number in each table entry. For other
    /// devices, newer kernels accept only queue 0.
    #[must_use]
    pub fn over(self, context: u32) -> Self {
        let mut bytes = self.0;
        put(&mut bytes, 0, &(self.flow_type() | FLOW_RSS).to_ne_bytes());
        Self(bytes, context)
    }

    #[must_use]
    pub fn from_bytes(bytes: [u8; RULE_LENGTH], context: u32) -> Self {
        let spreads = word(&bytes, 0) & FLOW_RSS != 0;
        Self(bytes, if spreads { context } else { 0 })
    }

    /// Returns the rule's RSS context; `None` if the rule has no context.
    #[must_use]
    pub fn context(&self) -> Option<u32> {
        (word(&self.0, 0) & FLOW_RSS != 0).then_some(self.1)
    }

    fn flow_type(&self) -> u32 {
        word(&self.0, 0) & !FLOW_RSS
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; RULE_LENGTH] {
        &self.0
    }

    /// Returns the rule's location. If several rules match, the device uses the rule with the lowest
    /// location.
    #[must_use]
    pub fn location(&self) -> u32 {
        word(&self.0, LOCATION)
    }

    /// Returns the rule's queue; `None` if the rule drops packets, sends them to a virtual function, or is a
    /// wake-on-LAN filter (`RX_CLS_FLOW_WAKE`).
    #[must_use]
    pub fn queue(&self) -> Option<u32> {
        // Bits 32 to 39 name a virtual function (`ethtool_get_flow_spec_ring_vf`). `RX_CLS_FLOW_WAKE` is 2⁶⁴
        // - 2.
        let cookie = u64::from_ne_bytes(array(&self.0, COOKIE));
        u32::try_from(cookie).ok().filter(|_| cookie != DISCARD)
    }

    /// Returns the rule's match. Returns `None` if the rule uses fields that this crate does not parse:
    /// other flow types, type of service, extensions.
    #[must_use]
    pub fn matches(&self) -> Option<RuleMatch> {
        let (protocol, is_ipv4) = match self.flow_type() {
            FLOW_TCP4 => (6, true),
            FLOW_UDP4 => (17, true),
            FLOW_TCP6 => (6, false),
            FLOW_UDP6 => (17, false),
            _ => return None,
        };
        let length = if is_ipv4 { 4 } else { 16 };
        let class = self.0[MASK + 2 * length + 4];
        if class != 0 || self.0[MASK_EXTENSION..MASK_EXTENSION + 20].iter().any(|byte| *byte != 0) {
            return None;
        }
        let number = |at: usize| {
            self.0[at..at + length].iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
        };
        let address = |at: usize| {
            if is_ipv4 {
                IpAddr::V4(Ipv4Addr::from_bits(number(at) as u32))
            } else {
                IpAddr::V6(Ipv6Addr::from_bits(number(at)))
            }
        };
        let port = |at: usize| u16::from_be_bytes(array(&self.0, at + 2 * length));
        Some(RuleMatch {
            protocol,
            source: address(HEADER),
            source_mask: number(MASK),
            destination: address(HEADER + length),
            destination_mask: number(MASK + length),
            source_port: port(HEADER),
            source_port_mask: port(MASK),
            destination_port: port(HEADER + 2),
            destination_port_mask: port(MASK + 2),
        })
    }

    /// Returns the rule's bytes in hexadecimal for a journal, followed by the bytes of its context, if
    /// any.
    #[must_use]
    pub fn to_hex(&self) -> String {
        let context = self.context().map(u32::to_ne_bytes);
        self.0.iter().chain(context.iter().flatten()).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the text of [`Self::to_hex`]; `None` if the text is invalid.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        const WITH_CONTEXT: usize = RULE_LENGTH + 4;
        if !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; WITH_CONTEXT];
        for (at, byte) in bytes.iter_mut().enumerate().take(text.len() / 2) {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        let rule = Self::from_bytes(array(&bytes, 0), word(&bytes, RULE_LENGTH));
        let length = if rule.context().is_some() { WITH_CONTEXT } else { RULE_LENGTH };
        (text.len() == 2 * length).then_some(rule)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Rule({self})")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.matches() {
            Some(matches) => {
                let protocol = if matches.protocol == 6 { "tcp" } else { "udp" };
                let version = if matches.source.is_ipv4() { 4 } else { 6 };
                write!(formatter, "{protocol}{version}")?;
                if matches.source_mask != 0 {
                    write!(formatter, " src-ip {} m {:x}", matches.source, matches.source_mask)?;
                }
                if matches.destination_mask != 0 {
                    write!(formatter, " dst-ip {} m {:x}", matches.destination, matches.destination_mask)?;
                }
                if matches.source_port_mask != 0 {
                    write!(formatter, " src-port {} m {:x}", matches.source_port, matches.source_port_mask)?;
                }
                if matches.destination_port_mask != 0 {
                    let (port, mask) = (matches.destination_port, matches.destination_port_mask);
                    write!(formatter, " dst-port {port} m {mask:x}")?;
                }
            }
            None => write!(formatter, "a rule of flow type {:#x}", word(&self.0, 0))?,
        }
        match (self.context(), self.queue()) {
            (Some(context), _) => write!(formatter, " to RSS context {context}"),
            (None, Some(queue)) => write!(formatter, " to queue {queue}"),
            (None, None) => formatter.write_str(" to no queue"),
        }
    }
}

/// An n-tuple rule, byte for byte, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleBytes(String);

impl RuleBytes {
    /// Returns the rule; `None` if the text is not a rule, for example in a damaged journal.
    #[must_use]
    pub fn rule(&self) -> Option<Rule> {
        Rule::from_hex(&self.0)
    }
}

impl From<&Rule> for RuleBytes {
    fn from(rule: &Rule) -> Self {
        Self(rule.to_hex())
    }
}

impl fmt::Display for RuleBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule() {
            Some(rule) => rule.fmt(formatter),
            None => write!(formatter, "'{}'", self.0),
        }
    }
}
