//! Receive steering of NICs through ethtool's ioctl (`include/uapi/linux/ethtool.h`): n-tuple rules, and the
//! indirection table and key of receive-side scaling.
//!
//! Structures are built and read as bytes at the offsets that the header has on all 64-bit architectures. What speaks
//! to the kernel is [`EthtoolCalls`], so that exchanges can be played back in tests.

mod contexts;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub use evenkeel_model::change::{RULE_LENGTH, Rule, RuleMatch};

use crate::transport::NetlinkError;

const GRXRINGS: u32 = 0x2d;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;
const GRSSH: u32 = 0x46;
const SRSSH: u32 = 0x47;

/// `struct ethtool_rxnfc`: command, flow type, data, a flow specification, a count, and locations behind it.
pub(crate) const RXNFC_LENGTH: usize = 192;
const RXNFC_DATA: usize = 8;
const RXNFC_RULE: usize = 16;
const RXNFC_COUNT: usize = 184;
const RXNFC_LOCATIONS: usize = 188;
/// Where a rule's location stands in it.
const RULE_LOCATION: usize = 160;
/// `struct ethtool_rxfh`, with the table and the key behind it.
const RXFH_LENGTH: usize = 24;
/// The RSS context in it.
const RXFH_CONTEXT: usize = 4;

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
    /// The kernel refused over netlink.
    #[error(transparent)]
    Netlink(NetlinkError),
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
            Self::Netlink(error) => error.refusal_code(),
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
            Ok(()) => Ok(Some(Rule::from_bytes(array(&data, RXNFC_RULE), word(&data, RXNFC_COUNT)))),
        }
    }

    /// Puts a rule at its location, over one that is there.
    ///
    /// # Errors
    /// When the driver refuses: the mask, the queue or the location.
    pub fn insert(&self, rule: &Rule) -> Result<(), EthtoolError> {
        let mut data = request(SRXCLSRLINS, RXNFC_LENGTH);
        put(&mut data, RXNFC_RULE, rule.as_bytes());
        // Its place is that of the count.
        put(&mut data, RXNFC_COUNT, &rule.context().unwrap_or(0).to_ne_bytes());
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
        match self.rss_of(0) {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Indirection table and key of a context, 0 being the device's own.
    fn rss_of(&self, context: u32) -> Result<RssTable, EthtoolError> {
        let action = || match context {
            0 => "show its RSS table".to_owned(),
            context => format!("show RSS context {context}"),
        };
        let mut data = request(GRSSH, RXFH_LENGTH);
        put(&mut data, RXFH_CONTEXT, &context.to_ne_bytes());
        self.ask(&mut data, action)?;
        let (entries, key) = (word(&data, 8), word(&data, 12));
        if entries > MOST_RULES || key > 4096 {
            return Err(
                self.strange(format!("that its RSS table has {entries} entries and its key {key} bytes"))
            );
        }
        let table = entries as usize * 4;
        let mut data = request(GRSSH, RXFH_LENGTH + table + key as usize);
        put(&mut data, RXFH_CONTEXT, &context.to_ne_bytes());
        put(&mut data, 8, &entries.to_ne_bytes());
        put(&mut data, 12, &key.to_ne_bytes());
        self.ask(&mut data, action)?;
        Ok(RssTable {
            indirection: (0..entries as usize).map(|entry| word(&data, RXFH_LENGTH + 4 * entry)).collect(),
            key: data[RXFH_LENGTH + table..].to_vec(),
            function: data[16],
        })
    }

    /// Puts the kernel's own indirection table back, each queue in turn, which follows the number of queues again; one
    /// that was set forbids fewer of them.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn reset_indirection(&self) -> Result<(), EthtoolError> {
        // A table of length 0 asks for it (ethtool_set_rxfh, net/ethtool/ioctl.c).
        let mut data = request(SRSSH, RXFH_LENGTH);
        self.ask(&mut data, || "put its own RSS table back".to_owned())
    }

    /// Sets the indirection table, and leaves key and function.
    ///
    /// # Errors
    /// When the driver refuses: the length, or a queue.
    pub fn set_indirection(&self, indirection: &[u32]) -> Result<(), EthtoolError> {
        let mut data = table_request(0, indirection);
        self.ask(&mut data, || "take an RSS table".to_owned())
    }
}

/// Has a context take an indirection table, and leave key and function as they are.
fn table_request(context: u32, indirection: &[u32]) -> Vec<u8> {
    let mut data = request(SRSSH, RXFH_LENGTH + indirection.len() * 4);
    put(&mut data, RXFH_CONTEXT, &context.to_ne_bytes());
    put(&mut data, 8, &(indirection.len() as u32).to_ne_bytes());
    for (entry, queue) in indirection.iter().enumerate() {
        put(&mut data, RXFH_LENGTH + 4 * entry, &queue.to_ne_bytes());
    }
    data
}

pub(crate) fn request(command: u32, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    put(&mut data, 0, &command.to_ne_bytes());
    data
}

#[cfg(test)]
mod tests;
