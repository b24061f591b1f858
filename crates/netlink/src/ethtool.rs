//! Receive steering of NICs through ethtool's ioctl (`include/uapi/linux/ethtool.h`): n-tuple rules, and the
//! indirection table and key of receive-side scaling.
//!
//! Structures are built and read as bytes at the offsets that the header has on all 64-bit architectures. What speaks
//! to the kernel is [`EthtoolCalls`], so that exchanges can be played back in tests.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const GRXRINGS: u32 = 0x2d;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;
const GRSSH: u32 = 0x46;
const SRSSH: u32 = 0x47;

/// `struct ethtool_rxnfc`: command, flow type, data, a flow specification, a count, and locations behind it.
const RXNFC_LENGTH: usize = 192;
const RXNFC_DATA: usize = 8;
const RXNFC_RULE: usize = 16;
const RXNFC_COUNT: usize = 184;
const RXNFC_LOCATIONS: usize = 188;
/// `struct ethtool_rx_flow_spec`: flow type, headers, their extension, masks of both, queue, location.
const RULE_LENGTH: usize = 168;
const RULE_HEADER: usize = 4;
const RULE_MASK: usize = 76;
const RULE_MASK_EXTENSION: usize = 128;
const RULE_COOKIE: usize = 152;
const RULE_LOCATION: usize = 160;
/// `struct ethtool_rxfh`, with the table and the key behind it.
const RXFH_LENGTH: usize = 24;

/// `TCP_V4_FLOW` and its like.
const FLOW_TCP4: u32 = 1;
const FLOW_UDP4: u32 = 2;
const FLOW_TCP6: u32 = 5;
const FLOW_UDP6: u32 = 6;
/// `RX_CLS_FLOW_DISC`: drop.
const DISCARD: u64 = u64::MAX;
/// `RX_CLS_LOC_SPECIAL`, in the `data` of a count: the driver places rules by itself.
const PLACES_BY_ITSELF: u64 = 0x8000_0000;
/// Rules that a driver may claim to have at most: more is nonsense.
const MOST_RULES: u32 = 1 << 20;

/// A driver refused, or its answer made no sense.
#[derive(Debug, thiserror::Error)]
pub enum EthtoolError {
    /// It refused.
    #[error("the driver of {interface} refused to {action}: {source}")]
    Refused {
        /// The interface.
        interface: String,
        /// What was asked.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// It answered what cannot be.
    #[error("the driver of {interface} says {what}")]
    Answer {
        /// The interface.
        interface: String,
        /// What.
        what: String,
    },
}

impl EthtoolError {
    /// The error number of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            Self::Answer { .. } => None,
        }
    }
}

/// Asks a driver: the structure is read and filled.
pub trait EthtoolCalls {
    /// `SIOCETHTOOL` with the structure of the command in its first word.
    ///
    /// # Errors
    /// The driver's.
    fn call(&self, interface: &str, data: &mut [u8]) -> io::Result<()>;
}

/// The running kernel, over a socket of the network namespace in which it was opened.
#[derive(Debug)]
pub struct EthtoolSocket(OwnedFd);

#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    /// `struct ifreq` is longer than what is used of it here.
    rest: [u8; 16],
}

impl EthtoolSocket {
    /// Opens a socket.
    ///
    /// # Errors
    /// When the system has none to give.
    pub fn open() -> io::Result<Self> {
        // SAFETY: takes three numbers.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(socket) }))
    }
}

impl EthtoolCalls for EthtoolSocket {
    fn call(&self, interface: &str, data: &mut [u8]) -> io::Result<()> {
        let mut request =
            Request { name: [0; libc::IFNAMSIZ], data: data.as_mut_ptr().cast(), rest: [0; 16] };
        if interface.len() >= request.name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        request.name[..interface.len()].copy_from_slice(interface.as_bytes());
        // SAFETY: the request is as long as `struct ifreq`, and its data as long as the structure that the command in
        // its first word has the kernel read and fill.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A part of the headers of TCP or UDP packets over one IP version. A mask of 0 leaves a field open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    /// IP protocol number: 6 TCP, 17 UDP.
    pub protocol: u8,
    /// The sender's address.
    pub source: IpAddr,
    /// Bits of it that count; of IPv4 the low 32.
    pub source_mask: u128,
    /// This host's address, of the same IP version.
    pub destination: IpAddr,
    /// Bits of it that count.
    pub destination_mask: u128,
    /// The sender's port.
    pub source_port: u16,
    /// Bits of it that count.
    pub source_port_mask: u16,
    /// This host's port.
    pub destination_port: u16,
    /// Bits of it that count.
    pub destination_port_mask: u16,
}

/// An n-tuple rule (`struct ethtool_rx_flow_spec`), byte for byte: rules of others are put back as they were.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rule([u8; RULE_LENGTH]);

fn array<const LENGTH: usize>(bytes: &[u8], at: usize) -> [u8; LENGTH] {
    let mut value = [0; LENGTH];
    if let Some(found) = bytes.get(at..at + LENGTH) {
        value.copy_from_slice(found);
    }
    value
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(array(bytes, at))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

impl Rule {
    /// A rule that sends what matches to a queue. Both addresses are of one IP version.
    #[must_use]
    pub fn steer(location: u32, matches: &RuleMatch, queue: u32) -> Self {
        let mut bytes = [0; RULE_LENGTH];
        let is_ipv4 = matches.source.is_ipv4();
        let tcp = i32::from(matches.protocol) == libc::IPPROTO_TCP;
        let flow_type = match (is_ipv4, tcp) {
            (true, true) => FLOW_TCP4,
            (true, false) => FLOW_UDP4,
            (false, true) => FLOW_TCP6,
            (false, false) => FLOW_UDP6,
        };
        put(&mut bytes, 0, &flow_type.to_ne_bytes());
        let mut fill = |at: usize, source: u128, destination: u128, ports: [u16; 2]| {
            let length = if is_ipv4 { 4 } else { 16 };
            // Addresses first, then ports, in network byte order (struct ethtool_tcpip4_spec, ethtool_tcpip6_spec).
            put(&mut bytes, at, &source.to_be_bytes()[16 - length..]);
            put(&mut bytes, at + length, &destination.to_be_bytes()[16 - length..]);
            put(&mut bytes, at + 2 * length, &ports[0].to_be_bytes());
            put(&mut bytes, at + 2 * length + 2, &ports[1].to_be_bytes());
        };
        let (source_mask, destination_mask) = (matches.source_mask, matches.destination_mask);
        fill(
            RULE_HEADER,
            bits(matches.source) & source_mask,
            bits(matches.destination) & destination_mask,
            [
                matches.source_port & matches.source_port_mask,
                matches.destination_port & matches.destination_port_mask,
            ],
        );
        let ports = [matches.source_port_mask, matches.destination_port_mask];
        fill(RULE_MASK, source_mask, destination_mask, ports);
        put(&mut bytes, RULE_COOKIE, &u64::from(queue).to_ne_bytes());
        put(&mut bytes, RULE_LOCATION, &location.to_ne_bytes());
        Self(bytes)
    }

    /// Its location: of rules that match the same packet, the one at the lowest decides.
    #[must_use]
    pub fn location(&self) -> u32 {
        word(&self.0, RULE_LOCATION)
    }

    /// The queue that it sends to; none if it drops packets, or sends them to a virtual function.
    #[must_use]
    pub fn queue(&self) -> Option<u32> {
        // The upper half names a virtual function (ethtool_get_flow_spec_ring_vf).
        let cookie = u64::from_ne_bytes(array(&self.0, RULE_COOKIE));
        u32::try_from(cookie).ok().filter(|_| cookie != DISCARD)
    }

    /// What it matches; none of what this crate does not read: other kinds of flows, type of service, extensions.
    #[must_use]
    pub fn matches(&self) -> Option<RuleMatch> {
        let (protocol, is_ipv4) = match word(&self.0, 0) {
            FLOW_TCP4 => (6, true),
            FLOW_UDP4 => (17, true),
            FLOW_TCP6 => (6, false),
            FLOW_UDP6 => (17, false),
            _ => return None,
        };
        let length = if is_ipv4 { 4 } else { 16 };
        let class = self.0[RULE_MASK + 2 * length + 4];
        if class != 0 || self.0[RULE_MASK_EXTENSION..RULE_MASK_EXTENSION + 20].iter().any(|byte| *byte != 0) {
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
            source: address(RULE_HEADER),
            source_mask: number(RULE_MASK),
            destination: address(RULE_HEADER + length),
            destination_mask: number(RULE_MASK + length),
            source_port: port(RULE_HEADER),
            source_port_mask: port(RULE_MASK),
            destination_port: port(RULE_HEADER + 2),
            destination_port_mask: port(RULE_MASK + 2),
        })
    }

    /// Its bytes in hexadecimal, for a journal.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The rule of such a text; none if it is none.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 2 * RULE_LENGTH || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; RULE_LENGTH];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(bytes))
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
        match self.queue() {
            Some(queue) => write!(formatter, " to queue {queue}"),
            None => formatter.write_str(" to no queue"),
        }
    }
}

/// Rules of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTable {
    /// Locations that there are; 0: the driver does not say.
    pub capacity: u32,
    /// Whether the driver chooses locations by itself.
    pub places_by_itself: bool,
    /// The rules in place, by location.
    pub rules: Vec<Rule>,
}

/// Indirection table and key of receive-side scaling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    /// The queue for each value of the hash's low bits.
    pub indirection: Vec<u32>,
    /// The key of the hash.
    pub key: Vec<u8>,
    /// The hash function (`ETH_RSS_HASH_*_BIT`): 1 Toeplitz.
    pub function: u8,
}

/// Receive steering of one device.
pub struct ReceiveRules<C: EthtoolCalls> {
    calls: C,
    interface: String,
}

impl<C: EthtoolCalls> ReceiveRules<C> {
    /// Of an interface.
    pub fn new(calls: C, interface: &str) -> Self {
        Self { calls, interface: interface.to_owned() }
    }

    /// The interface's name.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    fn ask(&self, data: &mut [u8], action: impl FnOnce() -> String) -> Result<(), EthtoolError> {
        self.calls.call(&self.interface, data).map_err(|source| EthtoolError::Refused {
            interface: self.interface.clone(),
            action: action(),
            source,
        })
    }

    fn strange(&self, what: String) -> EthtoolError {
        EthtoolError::Answer { interface: self.interface.clone(), what }
    }

    /// Receive queues in use.
    ///
    /// # Errors
    /// When the driver does not tell.
    pub fn queues(&self) -> Result<u32, EthtoolError> {
        let mut data = request(GRXRINGS, RXNFC_LENGTH);
        self.ask(&mut data, || "tell its receive queues".to_owned())?;
        let queues = u64::from_ne_bytes(array(&data, RXNFC_DATA));
        u32::try_from(queues).map_err(|_| self.strange(format!("that it has {queues} receive queues")))
    }

    /// The rules that are in place; none at all of a driver without them.
    ///
    /// # Errors
    /// When the driver refuses otherwise, or its answers make no sense.
    pub fn rules(&self) -> Result<Option<RuleTable>, EthtoolError> {
        let mut data = request(GRXCLSRLCNT, RXNFC_LENGTH);
        match self.ask(&mut data, || "count its n-tuple rules".to_owned()) {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => return Ok(None),
            other => other?,
        }
        let count = word(&data, RXNFC_COUNT);
        let places_by_itself = u64::from_ne_bytes(array(&data, RXNFC_DATA)) & PLACES_BY_ITSELF != 0;
        if count > MOST_RULES {
            return Err(self.strange(format!("that it has {count} n-tuple rules")));
        }
        let mut data = request(GRXCLSRLALL, RXNFC_LENGTH + count as usize * 4);
        put(&mut data, RXNFC_COUNT, &count.to_ne_bytes());
        self.ask(&mut data, || "list its n-tuple rules".to_owned())?;
        let capacity = u64::from_ne_bytes(array(&data, RXNFC_DATA));
        let found = word(&data, RXNFC_COUNT).min(count) as usize;
        let locations: Vec<u32> = (0..found).map(|at| word(&data, RXNFC_LOCATIONS + 4 * at)).collect();
        let mut rules = Vec::new();
        for location in locations {
            rules.extend(self.rule(location)?);
        }
        rules.sort_by_key(Rule::location);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        Ok(Some(RuleTable { capacity, places_by_itself, rules }))
    }

    /// The rule at a location; none if there is none.
    ///
    /// # Errors
    /// When the driver refuses otherwise.
    pub fn rule(&self, location: u32) -> Result<Option<Rule>, EthtoolError> {
        let mut data = request(GRXCLSRULE, RXNFC_LENGTH);
        put(&mut data, RXNFC_RULE + RULE_LOCATION, &location.to_ne_bytes());
        match self.ask(&mut data, || format!("show the n-tuple rule at location {location}")) {
            // Drivers differ in how they say that there is none.
            Err(error) if matches!(error.code(), Some(libc::ENOENT | libc::EINVAL)) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(Some(Rule(array(&data, RXNFC_RULE)))),
        }
    }

    /// Puts a rule at its location, over one that is there.
    ///
    /// # Errors
    /// When the driver refuses: the mask, the queue or the location.
    pub fn insert(&self, rule: &Rule) -> Result<(), EthtoolError> {
        let mut data = request(SRXCLSRLINS, RXNFC_LENGTH);
        put(&mut data, RXNFC_RULE, &rule.0);
        self.ask(&mut data, || format!("take the n-tuple rule {rule} at location {}", rule.location()))
    }

    /// Takes the rule at a location out.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn delete(&self, location: u32) -> Result<(), EthtoolError> {
        let mut data = request(SRXCLSRLDEL, RXNFC_LENGTH);
        put(&mut data, RXNFC_RULE + RULE_LOCATION, &location.to_ne_bytes());
        self.ask(&mut data, || format!("take out the n-tuple rule at location {location}"))
    }

    /// Indirection table and key; none of a driver without them.
    ///
    /// # Errors
    /// When the driver refuses otherwise, or its answers make no sense.
    pub fn rss(&self) -> Result<Option<RssTable>, EthtoolError> {
        const ACTION: &str = "show its RSS table";
        let mut data = request(GRSSH, RXFH_LENGTH);
        match self.ask(&mut data, || ACTION.to_owned()) {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => return Ok(None),
            other => other?,
        }
        let (entries, key) = (word(&data, 8), word(&data, 12));
        if entries > MOST_RULES || key > 4096 {
            return Err(
                self.strange(format!("that its RSS table has {entries} entries and its key {key} bytes"))
            );
        }
        let table = entries as usize * 4;
        let mut data = request(GRSSH, RXFH_LENGTH + table + key as usize);
        put(&mut data, 8, &entries.to_ne_bytes());
        put(&mut data, 12, &key.to_ne_bytes());
        self.ask(&mut data, || ACTION.to_owned())?;
        Ok(Some(RssTable {
            indirection: (0..entries as usize).map(|entry| word(&data, RXFH_LENGTH + 4 * entry)).collect(),
            key: data[RXFH_LENGTH + table..].to_vec(),
            function: data[16],
        }))
    }

    /// Sets the indirection table, and leaves key and function.
    ///
    /// # Errors
    /// When the driver refuses: the length, or a queue.
    pub fn set_indirection(&self, indirection: &[u32]) -> Result<(), EthtoolError> {
        let mut data = request(SRSSH, RXFH_LENGTH + indirection.len() * 4);
        put(&mut data, 8, &(indirection.len() as u32).to_ne_bytes());
        for (entry, queue) in indirection.iter().enumerate() {
            put(&mut data, RXFH_LENGTH + 4 * entry, &queue.to_ne_bytes());
        }
        self.ask(&mut data, || "take an RSS table".to_owned())
    }
}

fn request(command: u32, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    put(&mut data, 0, &command.to_ne_bytes());
    data
}

#[cfg(test)]
mod tests;
