//! Device settings of ethtool(8): rings, channels, interrupt coalescing, offload features, the fields
//! that RSS hashes.
//!
//! The module prefers generic netlink, because its errors have a text (`ethtool`, added in Linux 5.6
//! and 5.7; `Documentation/networking/ethtool-netlink.rst`). On other kernels, the module uses the
//! ioctl ([`crate::ethtool`]). Hash fields always use the ioctl, because netlink supports them only
//! since Linux 6.17.
//!
//! A parameter's netlink attribute is its word in the ioctl structure plus one, so one table serves
//! netlink and ioctl. This holds for `ETHTOOL_A_RINGS_*` and `struct ethtool_ringparam`,
//! `ETHTOOL_A_CHANNELS_*` and `struct ethtool_channels`, `ETHTOOL_A_COALESCE_*` and `struct
//! ethtool_coalesce`.

use std::collections::BTreeSet;

use evenkeel_model::change::{Channels, Coalescing, Ring};
use netlink_packet_core::DefaultNla;

use crate::ethtool::{EthtoolCalls, EthtoolError, EthtoolSocket, request};
use crate::generic::{Attributes, Family, GenericNetlink};
use crate::tc::{attributes, words};
use crate::transport::NetlinkError;

const FAMILY: &str = "ethtool";
const NLA_F_NESTED: u16 = 0x8000;

/// `ETHTOOL_A_*_HEADER` of every message, and its attributes.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;
const HEADER_FLAGS: u16 = 3;
/// `ETHTOOL_FLAG_OMIT_REPLY`: the kernel sends only the acknowledgement.
const FLAG_OMIT_REPLY: u32 = 1 << 1;

const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const FEATURES_HW: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BITSET_BITS_BIT: u16 = 1;
const BITSET_BIT_NAME: u16 = 2;
const BITSET_BIT_VALUE: u16 = 3;

const GSSET_INFO: u32 = 0x37;
const GSTRINGS: u32 = 0x1b;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const GRXFH: u32 = 0x29;
const SRXFH: u32 = 0x2a;
/// `ETH_SS_FEATURES`, and the length of a name (`ETH_GSTRING_LEN`).
const SET_OF_FEATURES: u32 = 4;
const NAME_LENGTH: usize = 32;
/// Maximum number of features in an answer. It limits the memory; no kernel has as many features.
const MOST_FEATURES: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Descriptors of a ring.
    Ring(Ring),
    Channels(Channels),
    /// A parameter of coalescing; adaptive modes are 0 or 1.
    Coalescing(Coalescing),
}

struct Place {
    what: &'static str,
    /// Generic netlink commands.
    get: u8,
    set: u8,
    ioctl_get: u32,
    ioctl_set: u32,
    /// Length of the ioctl structure in words, with the command.
    length: usize,
    /// Position of the parameter's word.
    word: u16,
    /// Position of the word with the parameter's maximum.
    most: Option<u16>,
    /// Whether netlink sends the parameter as a byte, because it is a switch.
    is_switch: bool,
}

impl Setting {
    fn place(self) -> Place {
        match self {
            Self::Ring(ring) => {
                let word = match ring {
                    Ring::Rx => 5,
                    Ring::RxMini => 6,
                    Ring::RxJumbo => 7,
                    Ring::Tx => 8,
                };
                Place {
                    what: "ring",
                    get: 15,
                    set: 16,
                    ioctl_get: 0x10,
                    ioctl_set: 0x11,
                    length: 9,
                    word,
                    most: Some(word - 4),
                    is_switch: false,
                }
            }
            Self::Channels(channels) => {
                let word = match channels {
                    Channels::Rx => 5,
                    Channels::Tx => 6,
                    Channels::Other => 7,
                    Channels::Combined => 8,
                };
                Place {
                    what: "channels",
                    get: 17,
                    set: 18,
                    ioctl_get: 0x3c,
                    ioctl_set: 0x3d,
                    length: 9,
                    word,
                    most: Some(word - 4),
                    is_switch: false,
                }
            }
            Self::Coalescing(parameter) => {
                let word = match parameter {
                    Coalescing::RxUsecs => 1,
                    Coalescing::RxFrames => 2,
                    Coalescing::TxUsecs => 5,
                    Coalescing::TxFrames => 6,
                    Coalescing::AdaptiveRx => 10,
                    Coalescing::AdaptiveTx => 11,
                };
                Place {
                    what: "coalescing",
                    get: 19,
                    set: 20,
                    ioctl_get: 0x0e,
                    ioctl_set: 0x0f,
                    length: 23,
                    word,
                    most: None,
                    is_switch: parameter.is_switch(),
                }
            }
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ring(ring) => ring.word(),
            Self::Channels(channels) => channels.word(),
            Self::Coalescing(parameter) => parameter.word(),
        }
    }
}

/// A device: netlink uses the index, the ioctl the name.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    pub index: u32,
    pub name: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    pub name: String,
    pub active: bool,
    /// Whether the feature is requested. A requested feature becomes active when all features on which
    /// it depends are active.
    pub wanted: bool,
    pub changeable: bool,
}

/// Reads and sets the settings of devices, in the network namespace in which it was opened.
pub struct Settings {
    netlink: Option<(GenericNetlink, Family)>,
    socket: EthtoolSocket,
}

impl Settings {
    /// Opens the sockets. If the kernel lacks the netlink family `ethtool`, only the ioctl is used.
    pub fn open() -> Result<Self, EthtoolError> {
        let mut netlink = GenericNetlink::open()?;
        let family = netlink.family(FAMILY)?;
        let mut settings = Self::by_ioctl()?;
        settings.netlink = family.map(|family| (netlink, family));
        Ok(settings)
    }

    /// Uses only the ioctl, as on a kernel before 5.6.
    pub fn by_ioctl() -> Result<Self, EthtoolError> {
        let socket = EthtoolSocket::open().map_err(|source| {
            EthtoolError::Netlink(NetlinkError::Socket { action: "open a socket for ethtool", source })
        })?;
        Ok(Self { netlink: None, socket })
    }

    /// Returns a parameter, or `None` if the device does not report the parameter.
    pub fn get(&mut self, device: Device<'_>, setting: Setting) -> Result<Option<u32>, EthtoolError> {
        let word = setting.place().word;
        self.read(device, setting, word)
    }

    /// Returns a parameter's maximum, or `None` if the device does not report a maximum.
    pub fn most(&mut self, device: Device<'_>, setting: Setting) -> Result<Option<u32>, EthtoolError> {
        match setting.place().most {
            Some(word) => self.read(device, setting, word),
            None => Ok(None),
        }
    }

    /// Sets one parameter, and keeps the other parameters of its kind.
    pub fn set(&mut self, device: Device<'_>, setting: Setting, value: u32) -> Result<(), EthtoolError> {
        let place = setting.place();
        let action = format!("set {} {} to {value}", place.what, setting.word());
        if let Some((netlink, family)) = &mut self.netlink {
            let bytes =
                if place.is_switch { vec![u8::from(value != 0)] } else { value.to_ne_bytes().to_vec() };
            let request = vec![header(device, FLAG_OMIT_REPLY), DefaultNla::new(place.word + 1, bytes)];
            let action = format!("{action} on {}", device.name);
            netlink.request(*family, place.set, request, &action)?;
            return Ok(());
        }
        let mut data = request(place.ioctl_get, place.length * 4);
        self.ask(device, &mut data, &action)?;
        data[..4].copy_from_slice(&place.ioctl_set.to_ne_bytes());
        let at = usize::from(place.word) * 4;
        data[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self.ask(device, &mut data, &action)
    }

    fn read(&mut self, device: Device<'_>, setting: Setting, word: u16) -> Result<Option<u32>, EthtoolError> {
        let place = setting.place();
        let action = format!("report its {} {}", place.what, setting.word());
        if let Some((netlink, family)) = &mut self.netlink {
            let request = vec![header(device, 0)];
            let action = format!("{action} of {}", device.name);
            return match netlink.request(*family, place.get, request, &action) {
                Ok(answers) => {
                    let found = answers.iter().find_map(|answer| answer.get(word + 1));
                    Ok(found.as_deref().and_then(number))
                }
                Err(error) if error.refusal_code() == Some(libc::EOPNOTSUPP) => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
        let mut data = request(place.ioctl_get, place.length * 4);
        match self.ask(device, &mut data, &action) {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(word_at(&data, usize::from(word))),
        }
    }

    /// Returns the offload features that are active, requested or changeable.
    pub fn features(&mut self, device: Device<'_>) -> Result<Vec<Feature>, EthtoolError> {
        let Some((netlink, family)) = &mut self.netlink else { return self.features_by_ioctl(device) };
        let action = format!("report the features of {}", device.name);
        let answers = netlink.request(*family, FEATURES_GET, vec![header(device, 0)], &action)?;
        // `hw` lists every feature and marks the changeable features. The other sets list only the
        // features that are set (`features_fill_reply`, net/ethtool/features.c).
        let bits = |kind: u16| -> BTreeSet<String> {
            let sets = answers.iter().filter_map(|answer| answer.nested(kind)?.nested(BITSET_BITS));
            let bits = sets.flat_map(|bits| bits.all(BITSET_BITS_BIT));
            let is_set = |bit: &Attributes| kind != FEATURES_HW || bit.has(BITSET_BIT_VALUE);
            bits.filter_map(|bit| Attributes::parse(&bit).ok().filter(is_set).as_ref().and_then(name_of))
                .collect()
        };
        let (active, wanted, changeable) = (bits(FEATURES_ACTIVE), bits(FEATURES_WANTED), bits(FEATURES_HW));
        let all: BTreeSet<&String> = active.iter().chain(&wanted).chain(&changeable).collect();
        let describe = |name: &String| Feature {
            name: name.clone(),
            active: active.contains(name),
            wanted: wanted.contains(name),
            changeable: changeable.contains(name),
        };
        Ok(all.into_iter().map(describe).collect())
    }

    pub fn set_feature(&mut self, device: Device<'_>, name: &str, on: bool) -> Result<(), EthtoolError> {
        let action = format!("switch the feature {name} {}", if on { "on" } else { "off" });
        let Some((netlink, family)) = &mut self.netlink else {
            return self.set_feature_by_ioctl(device, name, on, &action);
        };
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        let mut bit = vec![(BITSET_BIT_NAME, text)];
        if on {
            bit.push((BITSET_BIT_VALUE, Vec::new()));
        }
        let bits = attributes(&[(BITSET_BITS_BIT | NLA_F_NESTED, attributes(&bit))]);
        let bitset = attributes(&[(BITSET_BITS | NLA_F_NESTED, bits)]);
        let request =
            vec![header(device, FLAG_OMIT_REPLY), DefaultNla::new(FEATURES_WANTED | NLA_F_NESTED, bitset)];
        let action = format!("{action} on {}", device.name);
        netlink.request(*family, FEATURES_SET, request, &action)?;
        Ok(())
    }

    fn feature_names(&self, device: Device<'_>) -> Result<Vec<String>, EthtoolError> {
        const ACTION: &str = "list its features";
        // struct ethtool_sset_info: command, reserved, mask of sets, a length per requested set.
        let mut data = request(GSSET_INFO, 20);
        data[8..16].copy_from_slice(&(1_u64 << SET_OF_FEATURES).to_ne_bytes());
        self.ask(device, &mut data, ACTION)?;
        let count = word_at(&data, 4).unwrap_or(0).min(MOST_FEATURES);
        // struct ethtool_gstrings: command, set, length, names.
        let mut data = request(GSTRINGS, 12 + count as usize * NAME_LENGTH);
        data[4..8].copy_from_slice(&SET_OF_FEATURES.to_ne_bytes());
        data[8..12].copy_from_slice(&count.to_ne_bytes());
        self.ask(device, &mut data, ACTION)?;
        let name = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Ok(data[12..].chunks_exact(NAME_LENGTH).map(name).collect())
    }

    fn features_by_ioctl(&self, device: Device<'_>) -> Result<Vec<Feature>, EthtoolError> {
        let names = self.feature_names(device)?;
        let blocks = names.len().div_ceil(32);
        // struct ethtool_gfeatures: command, blocks; per block: available, requested, active, never changed.
        let mut data = request(GFEATURES, 8 + blocks * 16);
        data[4..8].copy_from_slice(&(blocks as u32).to_ne_bytes());
        self.ask(device, &mut data, "report its features")?;
        let bit = |number: usize, which: usize| {
            let word = word_at(&data, 2 + number / 32 * 4 + which).unwrap_or(0);
            word & 1 << (number % 32) != 0
        };
        let described =
            names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()).map(|(number, name)| {
                Feature { name, changeable: bit(number, 0), wanted: bit(number, 1), active: bit(number, 2) }
            });
        Ok(described.filter(|feature| feature.active || feature.wanted || feature.changeable).collect())
    }

    fn set_feature_by_ioctl(
        &self,
        device: Device<'_>,
        name: &str,
        on: bool,
        action: &str,
    ) -> Result<(), EthtoolError> {
        let names = self.feature_names(device)?;
        let number = names.iter().position(|known| known == name).ok_or_else(|| EthtoolError::Answer {
            interface: device.name.to_owned(),
            what: format!("this kernel has no feature {name}"),
        })?;
        let blocks = names.len().div_ceil(32);
        // struct ethtool_sfeatures: command, blocks; per block: valid, requested.
        let mut data = request(SFEATURES, 8 + blocks * 8);
        data[4..8].copy_from_slice(&(blocks as u32).to_ne_bytes());
        let at = 8 + number / 32 * 8;
        let mask = 1_u32 << (number % 32);
        data[at..at + 4].copy_from_slice(&mask.to_ne_bytes());
        if on {
            data[at + 4..at + 8].copy_from_slice(&mask.to_ne_bytes());
        }
        self.ask(device, &mut data, action)
    }

    /// Returns the header fields that RSS hashes for a flow type, in the letters of ethtool(8). Returns
    /// `None` if the device does not report the fields.
    ///
    /// # Errors
    /// Returns an error if this module does not know the flow type, or the kernel refuses the query for
    /// another reason.
    pub fn flow_hash(&self, device: Device<'_>, flows: &str) -> Result<Option<String>, EthtoolError> {
        let mut data = hash_request(device, GRXFH, flows)?;
        match self.ask(device, &mut data, &format!("report the hashed fields of {flows}")) {
            Err(error) if matches!(error.code(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(data
                .get(8..16)
                .and_then(|bytes| bytes.try_into().ok())
                .map(|bytes| letters(u64::from_ne_bytes(bytes)))),
        }
    }

    /// Sets the hashed fields, in ethtool's letters.
    pub fn set_flow_hash(&self, device: Device<'_>, flows: &str, fields: &str) -> Result<(), EthtoolError> {
        let mut data = hash_request(device, SRXFH, flows)?;
        let bits = hash_bits(fields).ok_or_else(|| EthtoolError::Answer {
            interface: device.name.to_owned(),
            what: format!(
                "'{fields}' is not a list of hash fields; the fields are m, v, t, s, d, f, n and r"
            ),
        })?;
        data[8..16].copy_from_slice(&bits.to_ne_bytes());
        self.ask(device, &mut data, &format!("hash {fields} of {flows}"))
    }

    fn ask(&self, device: Device<'_>, data: &mut [u8], action: &str) -> Result<(), EthtoolError> {
        self.socket.call(device.name, data).map_err(|source| EthtoolError::Refused {
            interface: device.name.to_owned(),
            action: action.to_owned(),
            source,
        })
    }
}

fn header(device: Device<'_>, flags: u32) -> DefaultNla {
    let mut list = vec![(HEADER_DEV_INDEX, words(&[device.index]))];
    if flags != 0 {
        list.push((HEADER_FLAGS, words(&[flags])));
    }
    DefaultNla::new(HEADER | NLA_F_NESTED, attributes(&list))
}

fn number(bytes: &[u8]) -> Option<u32> {
    match *bytes {
        [byte] => Some(u32::from(byte)),
        _ => Some(u32::from_ne_bytes(bytes.try_into().ok()?)),
    }
}

fn word_at(data: &[u8], word: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(word * 4..word * 4 + 4)?.try_into().ok()?))
}

fn name_of(bit: &Attributes) -> Option<String> {
    let text = bit.get(BITSET_BIT_NAME)?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    String::from_utf8(text[..end].to_vec()).ok()
}

/// Flow types by ethtool(8)'s names (`TCP_V4_FLOW` etc.).
const FLOWS: [(&str, u32); 12] = [
    ("tcp4", 0x01),
    ("udp4", 0x02),
    ("sctp4", 0x03),
    ("ah4", 0x09),
    ("esp4", 0x0a),
    ("tcp6", 0x05),
    ("udp6", 0x06),
    ("sctp6", 0x07),
    ("ah6", 0x0b),
    ("esp6", 0x0c),
    ("ip4", 0x10),
    ("ip6", 0x11),
];

/// Field letters of ethtool(8) with their bits (`RXH_*`).
const FIELDS: [(char, u64); 8] = [
    ('m', 1 << 1),
    ('v', 1 << 2),
    ('t', 1 << 3),
    ('s', 1 << 4),
    ('d', 1 << 5),
    ('f', 1 << 6),
    ('n', 1 << 7),
    ('r', 1 << 31),
];

fn letters(bits: u64) -> String {
    FIELDS.iter().filter(|(_, bit)| bits & bit != 0).map(|(letter, _)| letter).collect()
}

fn hash_bits(fields: &str) -> Option<u64> {
    fields.chars().try_fold(0, |bits, letter| {
        let (_, bit) = FIELDS.iter().find(|(known, _)| *known == letter)?;
        Some(bits | bit)
    })
}

/// Builds the `struct ethtool_rxnfc` for a flow type.
fn hash_request(device: Device<'_>, command: u32, flows: &str) -> Result<Vec<u8>, EthtoolError> {
    let (_, kind) = FLOWS.iter().find(|(name, _)| *name == flows).ok_or_else(|| EthtoolError::Answer {
        interface: device.name.to_owned(),
        what: format!(
            "'{flows}' is not a flow type; the flow types are tcp4, udp4, tcp6, udp6 and others of ethtool(8)"
        ),
    })?;
    let mut data = request(command, crate::ethtool::RXNFC_LENGTH);
    data[4..8].copy_from_slice(&kind.to_ne_bytes());
    Ok(data)
}

impl From<NetlinkError> for EthtoolError {
    fn from(error: NetlinkError) -> Self {
        Self::Netlink(error)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn hash_fields_are_read_as_they_are_written() {
        for fields in ["sd", "sdfn", "", "mvtsdfnr"] {
            assert_eq!(letters(hash_bits(fields).unwrap()), fields);
        }
        assert_eq!(hash_bits("sdx"), None);
        assert_eq!(hash_bits("sdfn"), Some(0xf0));
    }

    /// Checks that netlink and ioctl agree. Loopback has features, but neither rings nor channels.
    #[test]
    fn netlink_and_ioctl_agree_on_what_loopback_has() {
        let (mut netlink, mut ioctl) = (Settings::open().unwrap(), Settings::by_ioctl().unwrap());
        let loopback = Device { index: 1, name: "lo" };
        let features = ioctl.features(loopback).unwrap();
        let gro = features.iter().find(|feature| feature.name == "rx-gro").unwrap();
        assert!(gro.changeable);
        let mut by_name = features.clone();
        by_name.sort_by(|one, other| one.name.cmp(&other.name));
        assert_eq!(netlink.features(loopback).unwrap(), by_name);
        for setting in [Setting::Ring(Ring::Rx), Setting::Channels(Channels::Combined)] {
            assert_eq!(netlink.get(loopback, setting).unwrap(), None);
            assert_eq!(ioctl.get(loopback, setting).unwrap(), None);
        }
        for parameter in Coalescing::ALL {
            assert_eq!(netlink.get(loopback, Setting::Coalescing(parameter)).unwrap(), None);
        }
        assert_eq!(ioctl.flow_hash(loopback, "tcp4").unwrap(), None);
        let error = ioctl.flow_hash(loopback, "tcp5").unwrap_err().to_string();
        assert!(error.contains("tcp5"), "{error}");
        let missing = Device { index: 0x7fff_ffff, name: "evk-not-here" };
        assert_eq!(netlink.features(missing).unwrap_err().code(), Some(libc::ENODEV));
        assert_eq!(ioctl.features(missing).unwrap_err().code(), Some(libc::ENODEV));
    }
}
