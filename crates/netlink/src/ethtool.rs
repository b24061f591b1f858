//! Receive steering of NICs through ethtool's ioctl (`include/uapi/linux/ethtool.h`): n-tuple rules, and the
//! indirection table and key of receive-side scaling.
//!
//! Structures are built and parsed as bytes at the header's offsets, which are the same on all 64-bit
//! architectures. All ioctls pass [`EthtoolCalls`], so that tests can replay exchanges.

mod contexts;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use evenkeel_model::byte_fields::{array, put, word};
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

/// `struct ethtool_rxnfc`: command, flow type, data, a flow specification, a count; locations follow.
pub(crate) const RXNFC_LENGTH: usize = 192;
const RXNFC_DATA: usize = 8;
const RXNFC_RULE: usize = 16;
const RXNFC_COUNT: usize = 184;
const RXNFC_LOCATIONS: usize = 188;
const RULE_LOCATION: usize = 160;
/// `struct ethtool_rxfh`; the table and the key follow.
const RXFH_LENGTH: usize = 24;
const RXFH_CONTEXT: usize = 4;

/// `RX_CLS_LOC_SPECIAL`, a flag in the `data` of the answer to `ETHTOOL_GRXCLSRLCNT`: the driver can choose
/// the locations.
const PLACES_BY_ITSELF: u64 = 0x8000_0000;
/// Maximum number of rules, and of entries of an RSS table, in a valid answer: no driver has as many.
const MOST_RULES: u32 = 1 << 20;

/// A driver refused a request or returned an invalid answer, or an exchange over netlink failed.
#[derive(Debug, thiserror::Error)]
pub enum EthtoolError {
    #[error("the driver of {interface} refused to {action}: {source}")]
    Refused { interface: String, action: String, source: io::Error },
    #[error(transparent)]
    Netlink(NetlinkError),
    #[error("{interface}: {what}")]
    Answer { interface: String, what: String },
}

impl EthtoolError {
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            Self::Netlink(error) => error.refusal_code(),
            Self::Answer { .. } => None,
        }
    }
}

/// Calls of ethtool's ioctl. The kernel or the driver reads and fills the structure.
pub trait EthtoolCalls {
    /// Calls `SIOCETHTOOL` with the structure `data`, which starts with the ethtool command.
    ///
    /// # Errors
    /// Returns the errno of the kernel or of the driver.
    fn call(&self, interface: &str, data: &mut [u8]) -> io::Result<()>;
}

/// Calls the running kernel, through a socket of the network namespace in which the socket was opened.
#[derive(Debug)]
pub struct EthtoolSocket(OwnedFd);

#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    /// Padding to at least the size of `struct ifreq`.
    rest: [u8; 16],
}

impl EthtoolSocket {
    pub fn open() -> io::Result<Self> {
        // Any address family works (netdevice(7)). The systemd unit allows only AF_UNIX and AF_NETLINK.
        // SAFETY: takes three integers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
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
        // SAFETY: the request is as long as `struct ifreq`, and its data as long as the structure of the
        // command in its first word.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTable {
    /// Number of locations; 0 if the driver does not report the number.
    pub capacity: u32,
    /// Whether the driver can choose the locations.
    pub places_by_itself: bool,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    /// Queue of each entry, which the low bits of the hash select.
    pub indirection: Vec<u32>,
    pub key: Vec<u8>,
    /// Hash function, a mask of `ETH_RSS_HASH_*` (include/linux/ethtool.h); 1 (`ETH_RSS_HASH_TOP`) is
    /// Toeplitz.
    pub function: u8,
}

pub struct ReceiveRules<C: EthtoolCalls> {
    calls: C,
    interface: String,
}

impl<C: EthtoolCalls> ReceiveRules<C> {
    pub fn new(calls: C, interface: &str) -> Self {
        Self { calls, interface: interface.to_owned() }
    }

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

    /// Returns the number of receive queues in use.
    pub fn queues(&self) -> Result<u32, EthtoolError> {
        let mut data = request(GRXRINGS, RXNFC_LENGTH);
        self.ask(&mut data, || "report its receive queues".to_owned())?;
        let queues = u64::from_ne_bytes(array(&data, RXNFC_DATA));
        u32::try_from(queues).map_err(|_| self.strange(format!("the driver reports {queues} receive queues")))
    }

    /// Returns the current rules, or `None` if the driver does not support rules.
    pub fn rules(&self) -> Result<Option<RuleTable>, EthtoolError> {
        let mut data = request(GRXCLSRLCNT, RXNFC_LENGTH);
        match self.ask(&mut data, || "count its n-tuple rules".to_owned()) {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => return Ok(None),
            other => other?,
        }
        let count = word(&data, RXNFC_COUNT);
        let places_by_itself = u64::from_ne_bytes(array(&data, RXNFC_DATA)) & PLACES_BY_ITSELF != 0;
        if count > MOST_RULES {
            return Err(self.strange(format!("the driver reports {count} n-tuple rules")));
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

    /// Returns the rule at a location, if any.
    pub fn rule(&self, location: u32) -> Result<Option<Rule>, EthtoolError> {
        let mut data = request(GRXCLSRULE, RXNFC_LENGTH);
        put(&mut data, RXNFC_RULE + RULE_LOCATION, &location.to_ne_bytes());
        match self.ask(&mut data, || format!("show the n-tuple rule at location {location}")) {
            // Drivers return different errors for an empty location.
            Err(error) if matches!(error.code(), Some(libc::ENOENT | libc::EINVAL)) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(Some(Rule::from_bytes(array(&data, RXNFC_RULE), word(&data, RXNFC_COUNT)))),
        }
    }

    /// Inserts a rule at its location, and replaces an existing rule at that location.
    ///
    /// # Errors
    /// Returns an error if the driver refuses the mask, the queue or the location.
    pub fn insert(&self, rule: &Rule) -> Result<(), EthtoolError> {
        let mut data = request(SRXCLSRLINS, RXNFC_LENGTH);
        put(&mut data, RXNFC_RULE, rule.as_bytes());
        // The context is sent in the field of the count.
        put(&mut data, RXNFC_COUNT, &rule.context().unwrap_or(0).to_ne_bytes());
        self.ask(&mut data, || format!("install the n-tuple rule {rule} at location {}", rule.location()))
    }

    pub fn delete(&self, location: u32) -> Result<(), EthtoolError> {
        let mut data = request(SRXCLSRLDEL, RXNFC_LENGTH);
        put(&mut data, RXNFC_RULE + RULE_LOCATION, &location.to_ne_bytes());
        self.ask(&mut data, || format!("delete the n-tuple rule at location {location}"))
    }

    /// Returns indirection table, key and hash function, or `None` if the driver does not support them.
    pub fn rss(&self) -> Result<Option<RssTable>, EthtoolError> {
        match self.rss_of(0) {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns table, key and hash function of a context. Context 0 is the device's default context.
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
            return Err(self.strange(format!(
                "the driver reports an RSS table of length {entries} and a key of {key} bytes"
            )));
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

    /// Restores the default table, with the queues in round-robin order. The default table follows the number
    /// of queues. But the kernel refuses to remove a queue that a table of the user contains.
    pub fn reset_indirection(&self) -> Result<(), EthtoolError> {
        // Length 0 requests the default (ethtool_set_rxfh, net/ethtool/ioctl.c).
        let mut data = request(SRSSH, RXFH_LENGTH);
        self.ask(&mut data, || "restore its own RSS table".to_owned())
    }

    /// Sets the indirection table, and keeps key and function.
    ///
    /// # Errors
    /// Returns an error if the driver refuses the length or a queue.
    pub fn set_indirection(&self, indirection: &[u32]) -> Result<(), EthtoolError> {
        let mut data = table_request(0, indirection);
        self.ask(&mut data, || "set an RSS table".to_owned())
    }
}

/// Builds a request that sets a context's table, and keeps key and function.
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
