//! Drivers' answers over ethtool, from the running kernel or a recorded tree.
//!
//! The crate sends only commands that read ([`COMMANDS`]). The structures are in
//! `include/uapi/linux/ethtool.h`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use evenkeel_model::host::{Channels, Coalescing, Feature, Pause, Rings, Rss};
use evenkeel_netlink::ethtool::EthtoolCalls;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::features::FeatureText;

/// Answers about one interface: `evenkeel/ethtool/INTERFACE.json` of a recorded tree. `null` means that
/// the driver does not support the part. A missing part was not recorded ([`PARTS`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceAnswers {
    /// `ethtool -i`: driver.
    pub driver: Option<String>,
    /// `ethtool -i`: bus-info.
    pub bus: Option<String>,
    /// `ethtool -i`: firmware-version.
    pub firmware: Option<String>,
    /// `lspci -vv`: MaxReadReq, bytes.
    pub max_read_request: Option<u32>,
    /// `ethtool`: the fastest of "Supported link modes", Mbit/s.
    pub supported_mbps: Option<u64>,
    /// `ethtool -l`.
    pub channels: Option<Channels>,
    /// `ethtool -g`.
    pub rings: Option<Rings>,
    /// `ethtool -c`.
    pub coalescing: Option<Coalescing>,
    /// `ethtool -a`.
    pub pause: Option<Pause>,
    /// `ethtool -k`: `on`, `off`, `on [fixed]` or `off [fixed]`, by the kernel's or ethtool's name of
    /// the feature.
    #[serde(deserialize_with = "or_empty")]
    pub features: BTreeMap<String, FeatureText>,
    /// `ethtool --show-priv-flags`.
    #[serde(deserialize_with = "or_empty")]
    pub private_flags: BTreeMap<String, bool>,
    /// `ethtool -x` and `-n INTERFACE rx-flow-hash KIND`.
    pub rss: Option<RssAnswers>,
    /// `ethtool -S`. If a driver repeats a name for each queue, the names are numbered: `pkts rx OOB
    /// [0]`.
    #[serde(deserialize_with = "counters")]
    pub statistics: BTreeMap<String, u64>,
    /// Errors by part: the driver supports the part, but failed to answer.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<String, String>,
}

/// Parts that rules need for a verdict, each with its groups of fields. The kernel answers all fields of a
/// group or none.
const PARTS: [(&str, &[&[&str]]); 10] = [
    ("firmware", &[]),
    ("supported_mbps", &[]),
    ("max_read_request", &[]),
    ("private_flags", &[]),
    (
        "channels",
        &[&["combined", "combined_max"], &["rx", "rx_max"], &["tx", "tx_max"], &["other", "other_max"]],
    ),
    ("rings", &[&["rx", "rx_max", "tx", "tx_max"]]),
    ("coalescing", &[&["rx_usecs", "rx_frames", "tx_usecs", "tx_frames"], &["adaptive_rx", "adaptive_tx"]]),
    ("features", &[]),
    ("rss", &[&["indirection", "key", "function", "hash_fields"]]),
    ("statistics", &[]),
];

/// Returns the parts that are missing in a file with answers, or that lack a field of a group, each with
/// the name of the missing part or field. `null` and an empty table are answers.
pub(super) fn missing_parts(answers: &BTreeMap<String, Value>) -> Vec<(&'static str, String)> {
    let missing = |(part, groups): &(&'static str, &[&[&'static str]])| {
        let Some(answer) = answers.get(*part) else { return Some((*part, (*part).to_owned())) };
        let table = answer.as_object().filter(|table| !table.is_empty())?;
        let is_named = |field: &&&str| table.contains_key(**field);
        // If another count is not 0, a count of 0 may be omitted, as in the output of ethtool.
        let counts = groups.iter().filter(|_| *part == "channels").filter_map(|group| group.first());
        let has_count = counts.filter_map(|field| table.get(*field)?.as_u64()).any(|count| count > 0);
        let needed = groups.iter().filter(|group| group.iter().any(|field| is_named(&field)));
        let mut needed = needed.flat_map(|group| match group {
            [count, rest @ ..] if has_count && !is_named(&count) => rest,
            group => *group,
        });
        let flows = || {
            let recorded = table.get("hash_fields")?.as_object().filter(|recorded| !recorded.is_empty())?;
            let (lost, _) = FLOWS.iter().find(|(flow, _)| !recorded.contains_key(*flow))?;
            Some(format!("hash_fields.{lost}"))
        };
        let field = needed.find(|field| !is_named(field)).map(|field| (*field).to_owned()).or_else(flows)?;
        Some((*part, format!("{part}.{field}")))
    };
    PARTS.iter().filter_map(missing).collect()
}

impl DeviceAnswers {
    /// Removes incompletely recorded channels, rings and coalescing, so that a missing field does not get a
    /// default.
    pub(super) fn forget<'a>(&mut self, parts: impl Iterator<Item = &'a str>) {
        for part in parts {
            match part {
                "channels" => self.channels = None,
                "rings" => self.rings = None,
                "coalescing" => self.coalescing = None,
                _ => {}
            }
        }
    }
}

/// Reads a part. Returns an empty part for `null`, which means that the NIC does not support the part.
fn or_empty<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// Reads the counters of a file. A file that was written by hand may repeat names, as the driver does.
fn counters<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, u64>, D::Error> {
    struct Counters;
    impl<'de> serde::de::Visitor<'de> for Counters {
        type Value = BTreeMap<String, u64>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("counters by name")
        }

        fn visit_map<M: serde::de::MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut found = Vec::new();
            // Drivers may indent names (vmxnet3), and `ethtool -S` keeps the indent.
            while let Some((name, value)) = map.next_entry::<String, u64>()? {
                found.push((name.trim().to_owned(), value));
            }
            Ok(crate::counters::distinct(found))
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }
    }
    from.deserialize_any(Counters)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RssAnswers {
    /// The queue of each entry of the indirection table.
    #[serde(deserialize_with = "or_empty")]
    pub indirection: Vec<u32>,
    /// The hash key, bytes in hexadecimal separated by colons; empty if not reported.
    #[serde(deserialize_with = "or_empty")]
    pub key: String,
    /// `toeplitz`, `xor` or `crc32`; empty if not reported.
    #[serde(deserialize_with = "or_empty")]
    pub function: String,
    /// Fields that are hashed, by flow type ([`FLOWS`]), in ethtool's letters. `None`: the driver does not
    /// report the fields of this type.
    #[serde(deserialize_with = "or_empty")]
    pub hash_fields: BTreeMap<String, Option<HashFields>>,
}

/// Flow types with `TCP_V4_FLOW` and the other numbers.
const FLOWS: [(&str, u32); 4] = [("tcp4", 1), ("udp4", 2), ("tcp6", 5), ("udp6", 6)];

/// Fields that are hashed, in ethtool's letters ([`FIELDS`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HashFields(String);

impl From<HashFields> for String {
    fn from(HashFields(letters): HashFields) -> Self {
        letters
    }
}

impl TryFrom<String> for HashFields {
    type Error = String;

    fn try_from(letters: String) -> Result<Self, String> {
        let is_known = |letter: char| FIELDS.iter().any(|(known, _)| *known == letter);
        if let Some(letter) = letters.chars().find(|letter| !is_known(*letter)) {
            let known: Vec<String> = FIELDS.iter().map(|(known, _)| known.to_string()).collect();
            return Err(format!(
                "'{letter}' in '{letters}' is not a field of a hash; known: {}",
                known.join(", ")
            ));
        }
        Ok(Self(letters))
    }
}

/// `RXH_L2DA` and the other fields (include/uapi/linux/ethtool.h), with ethtool's letters.
const FIELDS: [(char, u32); 9] =
    [('m', 1), ('v', 2), ('t', 3), ('s', 4), ('d', 5), ('f', 6), ('n', 7), ('e', 8), ('r', 31)];

impl RssAnswers {
    /// Returns the first unreadable field and its text: a key that is not hexadecimal, or an unknown
    /// function.
    pub(super) fn unreadable(&self) -> Option<(&'static str, &str)> {
        let is_byte = |byte: &str| u8::from_str_radix(byte.trim(), 16).is_ok();
        let has_key = self.key.is_empty() || self.key.split(':').all(is_byte);
        let has_function = matches!(self.function.as_str(), "" | "toeplitz" | "xor" | "crc32");
        let key = (!has_key).then_some(("key", self.key.as_str()));
        key.or((!has_function).then_some(("function", self.function.as_str())))
    }
}

/// Returns the reason why the queues of connections cannot be computed, if any. `has_ipv6` states
/// whether the host has connections over IPv6.
pub(super) fn unknown_hash(rss: &Rss, has_ipv6: bool) -> Option<String> {
    /// Minimum length of the key, bytes: a packet's addresses and ports, plus a window of 32 bits (Microsoft,
    /// "RSS hashing functions").
    const IPV4_BYTES: usize = 12 + 4;
    const IPV6_BYTES: usize = 36 + 4;
    let least = if has_ipv6 { IPV6_BYTES } else { IPV4_BYTES };
    match rss.key.len() {
        _ if !matches!(rss.function.as_str(), "toeplitz" | "") => {
            Some(format!("rss.function: the hash is {}, not Toeplitz", rss.function))
        }
        0 => Some("rss.key: the key is not known".to_owned()),
        length if length < least => {
            Some(format!("rss.key: {length} bytes are too few for the hash of a packet, which needs {least}"))
        }
        _ => None,
    }
}

impl From<&RssAnswers> for Rss {
    fn from(answers: &RssAnswers) -> Self {
        let key: Option<Vec<u8>> =
            answers.key.split(':').map(|byte| u8::from_str_radix(byte.trim(), 16).ok()).collect();
        Self {
            indirection: answers.indirection.clone(),
            key: key.unwrap_or_default(),
            function: answers.function.clone(),
            hash_fields: answers
                .hash_fields
                .iter()
                .filter_map(|(flow, fields)| Some((flow.clone(), fields.as_ref()?.0.clone())))
                .collect(),
        }
    }
}

const GDRVINFO: u32 = 0x03;
const GCOALESCE: u32 = 0x0e;
const GRINGPARAM: u32 = 0x10;
const GPAUSEPARAM: u32 = 0x12;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GPFLAGS: u32 = 0x27;
const GRXFH: u32 = 0x29;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const GRSSH: u32 = 0x46;
const GLINKSETTINGS: u32 = 0x4c;

/// The permitted commands, which only read.
pub const COMMANDS: &[u32] = &[
    GDRVINFO,
    GCOALESCE,
    GRINGPARAM,
    GPAUSEPARAM,
    GSTRINGS,
    GSTATS,
    GPFLAGS,
    GRXFH,
    GSSET_INFO,
    GFEATURES,
    GCHANNELS,
    GRSSH,
    GLINKSETTINGS,
];

/// `ETH_SS_STATS`, `ETH_SS_PRIV_FLAGS`, `ETH_SS_FEATURES`.
const STRINGS_STATISTICS: u32 = 1;
const STRINGS_PRIVATE_FLAGS: u32 = 2;
const STRINGS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`.
const STRING_LENGTH: usize = 32;
/// Limits the allocation, because the driver's length is not trusted.
const MOST_ENTRIES: u32 = 1 << 16;

struct Asker<'a, C> {
    calls: &'a C,
    interface: &'a str,
    failed: RefCell<BTreeMap<String, String>>,
}

/// Returns the part of the facts that a request reads.
fn part(request: &[u8]) -> &'static str {
    let command = word(request, 0).unwrap_or(0);
    let set = match command {
        GSTRINGS => word(request, 4),
        GSSET_INFO => word(request, 8).map(u32::trailing_zeros),
        _ => None,
    };
    match command {
        GPFLAGS => "private_flags",
        _ if set == Some(STRINGS_PRIVATE_FLAGS) => "private_flags",
        _ if set == Some(STRINGS_FEATURES) => "features",
        GDRVINFO => "driver",
        GCOALESCE => "coalescing",
        GRINGPARAM => "rings",
        GPAUSEPARAM => "pause",
        GFEATURES => "features",
        GCHANNELS => "channels",
        GRSSH | GRXFH => "rss",
        GLINKSETTINGS => "supported_mbps",
        _ => "statistics",
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).trim().to_owned()
}

impl<C: EthtoolCalls> Asker<'_, C> {
    /// Returns a structure of `length` bytes that a command filled; `None` after an error. `words` gives
    /// offsets and values to set before the call.
    fn ask(&self, command: u32, length: usize, words: &[(usize, u32)]) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        put(&mut bytes, 0, command);
        for (at, value) in words {
            put(&mut bytes, *at, *value);
        }
        self.call(&mut bytes)?;
        Some(bytes)
    }

    /// Queries the driver. Returns `None` after an error. EOPNOTSUPP means that the driver does not support
    /// the part. Some drivers return EINVAL or ENODEV instead. Other errors are recorded as failures.
    fn call(&self, bytes: &mut [u8]) -> Option<()> {
        let part = part(bytes);
        let error = match self.calls.call(self.interface, bytes) {
            Ok(()) => return Some(()),
            Err(error) => error,
        };
        if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)) {
            self.failed.borrow_mut().insert(part.to_owned(), error.to_string());
        }
        None
    }

    /// Returns the words of a structure that consists only of words.
    fn words(&self, command: u32, count: usize) -> Option<Vec<u32>> {
        let bytes = self.ask(command, count * 4, &[])?;
        (0..count).map(|at| word(&bytes, at * 4)).collect()
    }

    /// Returns the names in a set of strings (`ETHTOOL_GSSET_INFO`, then `ETHTOOL_GSTRINGS`). Returns
    /// `None` after an error, or if the set is empty or too large.
    fn names(&self, set: u32) -> Option<Vec<String>> {
        // The structure contains the command, a reserved word, a mask of 64 bits, and the length of
        // each set in the mask.
        let bytes = self.ask(GSSET_INFO, 20, &[(8, 1 << set)])?;
        let count = word(&bytes, 16)?;
        if word(&bytes, 8)? == 0 || count == 0 || count > MOST_ENTRIES {
            return None;
        }
        let bytes = self.ask(GSTRINGS, 12 + count as usize * STRING_LENGTH, &[(4, set), (8, count)])?;
        let count = word(&bytes, 8)?.min(count) as usize;
        Some(bytes[12..].chunks_exact(STRING_LENGTH).take(count).map(text).collect())
    }

    fn statistics(&self) -> Option<BTreeMap<String, u64>> {
        let names = self.names(STRINGS_STATISTICS)?;
        let count = u32::try_from(names.len()).ok()?;
        let bytes = self.ask(GSTATS, 8 + names.len() * 8, &[(4, count)])?;
        let values =
            bytes[8..].chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()));
        Some(crate::counters::distinct(names.into_iter().zip(values)))
    }

    fn features(&self) -> Option<BTreeMap<String, FeatureText>> {
        let names = self.names(STRINGS_FEATURES)?;
        let blocks = names.len().div_ceil(32);
        // The structure contains the command and the number of blocks. Each block has four words:
        // available, requested, active, never changed.
        let bytes = self.ask(GFEATURES, 8 + blocks * 16, &[(4, u32::try_from(blocks).ok()?)])?;
        let mut features = BTreeMap::new();
        for (at, name) in names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let bit = |field: usize| {
                word(&bytes, 8 + at / 32 * 16 + field * 4).is_some_and(|word| word >> (at % 32) & 1 == 1)
            };
            let (available, active, never_changed) = (bit(0), bit(2), bit(3));
            features.insert(name, FeatureText(Feature { on: active, fixed: never_changed || !available }));
        }
        Some(features)
    }

    /// Returns the driver's private flags, at most 32 (`struct ethtool_value`).
    fn private_flags(&self) -> Option<BTreeMap<String, bool>> {
        let names = self.names(STRINGS_PRIVATE_FLAGS)?;
        let flags = word(&self.ask(GPFLAGS, 8, &[])?, 4)?;
        let named = names.into_iter().zip(0..32).filter(|(name, _)| !name.is_empty());
        Some(named.map(|(name, bit)| (name, flags >> bit & 1 == 1)).collect())
    }

    fn supported_mbps(&self) -> Option<u64> {
        /// Length of `struct ethtool_link_settings` without the masks, and the offset of their word count.
        const LENGTH: usize = 48;
        const WORDS: usize = 15;
        // With 0 words, the kernel returns the required number as a negative value.
        let bytes = self.ask(GLINKSETTINGS, LENGTH, &[])?;
        let count = usize::from(i8::from_ne_bytes([*bytes.get(WORDS)?]).unsigned_abs());
        let mut bytes = vec![0; LENGTH + count * 4 * 3];
        put(&mut bytes, 0, GLINKSETTINGS);
        bytes[WORDS] = u8::try_from(count).ok()?;
        self.call(&mut bytes)?;
        let is_set =
            |bit: usize| word(&bytes, LENGTH + bit / 32 * 4).is_some_and(|word| word >> (bit % 32) & 1 == 1);
        (0..count * 32).filter(|bit| is_set(*bit)).filter_map(mode_mbps).max()
    }

    fn rss(&self) -> Option<RssAnswers> {
        const LENGTH: usize = 24;
        let bytes = self.ask(GRSSH, LENGTH, &[])?;
        let (entries, key) = (word(&bytes, 8)?, word(&bytes, 12)?);
        if entries > MOST_ENTRIES || key > 4096 {
            return None;
        }
        let table = entries as usize * 4;
        let bytes = self.ask(GRSSH, LENGTH + table + key as usize, &[(8, entries), (12, key)])?;
        let function = match bytes[16] {
            1 => "toeplitz",
            2 => "xor",
            4 => "crc32",
            _ => "",
        };
        let key: Vec<String> = bytes[LENGTH + table..].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(RssAnswers {
            indirection: (0..entries as usize).filter_map(|entry| word(&bytes, LENGTH + entry * 4)).collect(),
            key: key.join(":"),
            function: function.to_owned(),
            hash_fields: self.hash_fields(),
        })
    }

    /// Returns the fields of each flow type; empty if the driver reports none.
    fn hash_fields(&self) -> BTreeMap<String, Option<HashFields>> {
        /// Length of `struct ethtool_rxnfc`: command, flow type, fields in 64 bits, and more.
        const LENGTH: usize = 192;
        let fields_of = |flow: u32| {
            let fields = self.ask(GRXFH, LENGTH, &[(4, flow)]).and_then(|bytes| word(&bytes, 8))?;
            let letters = FIELDS.iter().filter(|(_, bit)| fields >> bit & 1 == 1).map(|(letter, _)| *letter);
            Some(HashFields(letters.collect()))
        };
        let mut found: BTreeMap<_, _> =
            FLOWS.iter().map(|(name, flow)| ((*name).to_owned(), fields_of(*flow))).collect();
        if found.values().all(Option::is_none) {
            found.clear();
        }
        found
    }
}

/// Returns the speed of a link mode, Mbit/s, by its bit (`enum ethtool_link_mode_bit_indices`); `None`
/// if the bit has no known speed.
fn mode_mbps(bit: usize) -> Option<u64> {
    Some(match bit {
        0 | 1 | 92 | 99 => 10,
        2 | 3 | 67 | 90 | 91 => 100,
        4 | 5 | 17 | 41 | 68 => 1_000,
        15 | 47 => 2_500,
        48 => 5_000,
        12 | 18..=20 | 42..=46 => 10_000,
        21 | 22 => 20_000,
        31..=33 => 25_000,
        23..=26 => 40_000,
        34 | 35 | 40 | 52..=56 => 50_000,
        27..=30 => 56_000,
        36..=39 | 57..=61 | 75..=79 => 100_000,
        62..=66 | 80..=84 | 103..=108 => 200_000,
        69..=73 | 85..=89 | 109..=114 => 400_000,
        93..=98 | 115..=120 => 800_000,
        _ => return None,
    })
}

/// Returns the driver's counters (`ethtool -S`); empty if the driver has no counters, or fails to
/// answer.
pub(super) fn ask_statistics(calls: &impl EthtoolCalls, interface: &str) -> BTreeMap<String, u64> {
    Asker { calls, interface, failed: RefCell::default() }.statistics().unwrap_or_default()
}

pub fn ask_device(calls: &impl EthtoolCalls, interface: &str) -> DeviceAnswers {
    let asker = Asker { calls, interface, failed: RefCell::default() };
    let information = asker.ask(GDRVINFO, 196, &[]);
    let field = |range: std::ops::Range<usize>| {
        let found = text(information.as_ref()?.get(range)?);
        (!found.is_empty()).then_some(found)
    };
    let channels = asker.words(GCHANNELS, 9).map(|words| Channels {
        rx_max: words[1],
        tx_max: words[2],
        other_max: words[3],
        combined_max: words[4],
        rx: words[5],
        tx: words[6],
        other: words[7],
        combined: words[8],
    });
    // `struct ethtool_ringparam` has mini and jumbo rings between rx and tx.
    let rings = asker.words(GRINGPARAM, 9).map(|words| Rings {
        rx_max: words[1],
        tx_max: words[4],
        rx: words[5],
        tx: words[8],
    });
    let coalescing = asker.words(GCOALESCE, 23).map(|words| Coalescing {
        rx_usecs: words[1],
        rx_frames: words[2],
        tx_usecs: words[5],
        tx_frames: words[6],
        adaptive_rx: words[10] != 0,
        adaptive_tx: words[11] != 0,
    });
    let pause = asker.words(GPAUSEPARAM, 4).map(|words| Pause {
        autonegotiate: words[1] != 0,
        rx: words[2] != 0,
        tx: words[3] != 0,
    });
    let mut answers = DeviceAnswers {
        driver: field(4..36),
        bus: field(100..132),
        firmware: field(68..100).filter(|version| version != "N/A"),
        max_read_request: None,
        supported_mbps: asker.supported_mbps(),
        channels,
        rings,
        coalescing,
        pause,
        features: asker.features().unwrap_or_default(),
        private_flags: asker.private_flags().unwrap_or_default(),
        rss: asker.rss(),
        statistics: asker.statistics().unwrap_or_default(),
        failed: BTreeMap::new(),
    };
    answers.failed = asker.failed.into_inner();
    answers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::io;

    /// A NIC that answers with the structures of `include/uapi/linux/ethtool.h`, and logs the queries.
    #[derive(Default)]
    struct Nic(RefCell<Vec<u32>>);

    impl EthtoolCalls for Nic {
        fn call(&self, _: &str, data: &mut [u8]) -> io::Result<()> {
            let command = word(data, 0).unwrap();
            self.0.borrow_mut().push(command);
            if command == GLINKSETTINGS && data[15] == 0 {
                data[15] = (-3_i8).to_ne_bytes()[0];
                return Ok(());
            }
            let is_statistics = word(data, 4) == Some(STRINGS_STATISTICS);
            let is_udp6 = word(data, 4) == Some(6);
            let mut fill =
                |words: &[(usize, u32)]| words.iter().for_each(|(at, value)| put(data, *at, *value));
            match command {
                GRINGPARAM => fill(&[(4, 4096), (16, 4096), (20, 512), (32, 256)]),
                GCHANNELS => fill(&[(16, 63), (32, 40)]),
                GCOALESCE => fill(&[(4, 8), (8, 128), (40, 1)]),
                GSSET_INFO => fill(&[(16, 3)]),
                GSTRINGS => {
                    let names: [&[u8]; 3] = if is_statistics {
                        [b"rx_packets", b"rx_out_of_buffer", b"rx_bytes"]
                    } else {
                        [b"rx-gro", b"rx-lro", b"tx-lockless"]
                    };
                    for (at, name) in names.iter().enumerate() {
                        data[12 + at * 32..12 + at * 32 + name.len()].copy_from_slice(name);
                    }
                }
                GSTATS => fill(&[(8, 1000), (16, 7)]),
                GFEATURES => fill(&[(8, 0b11), (16, 0b01)]),
                // 10GBASE-T and 25GBASE-CR.
                GLINKSETTINGS => fill(&[(48, 1 << 12 | 1 << 31)]),
                GRSSH => {}
                GRXFH if !is_udp6 => fill(&[(8, 1 << 4 | 1 << 5)]),
                _ => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            }
            Ok(())
        }
    }

    #[test]
    fn answers_are_read_where_the_header_has_them() {
        let nic = Nic::default();
        let answers = ask_device(&nic, "eth0");
        assert_eq!(answers.rings, Some(Rings { rx: 512, rx_max: 4096, tx: 256, tx_max: 4096 }));
        assert_eq!(answers.channels.unwrap().combined, 40);
        assert!(answers.coalescing.unwrap().adaptive_rx);
        assert_eq!(answers.statistics["rx_out_of_buffer"], 7);
        assert_eq!(answers.supported_mbps, Some(25_000));
        assert!(answers.features["rx-gro"].0.on && !answers.features["rx-lro"].0.on);
        let off = FeatureText(Feature { on: false, fixed: true });
        assert_eq!(answers.features["tx-lockless"], off, "a recording names each feature of the kernel");
        let fields = &answers.rss.as_ref().unwrap().hash_fields;
        assert_eq!(fields["tcp4"].clone().map(String::from), Some("sd".to_owned()));
        assert_eq!(fields["udp6"], None, "a recording names each kind of flow");
        assert_eq!(answers.driver, None);
        assert!(nic.0.borrow().iter().all(|command| COMMANDS.contains(command)));
        let text = serde_json::to_string(&answers).unwrap();
        assert_eq!(serde_json::from_str::<DeviceAnswers>(&text).unwrap(), answers);
    }

    #[test]
    fn a_failure_names_the_part_that_the_request_reads() {
        let request = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        for (words, expected) in [
            (&[GSSET_INFO, 0, 1 << STRINGS_PRIVATE_FLAGS, 0, 0][..], "private_flags"),
            (&[GSSET_INFO, 0, 1 << STRINGS_FEATURES, 0, 0], "features"),
            (&[GSSET_INFO, 0, 1 << STRINGS_STATISTICS, 0, 0], "statistics"),
            (&[GSTRINGS, STRINGS_PRIVATE_FLAGS, 3], "private_flags"),
            (&[GSTRINGS, STRINGS_FEATURES, 3], "features"),
            (&[GPFLAGS, 0], "private_flags"),
            (&[GSTATS, 3], "statistics"),
        ] {
            assert_eq!(part(&request(words)), expected, "{words:?}");
        }
    }

    #[test]
    fn null_is_a_part_that_the_nic_does_not_have() {
        let whole: DeviceAnswers = serde_json::from_str(
            r#"{"features": null, "private_flags": null, "statistics": null, "rings": null,
                "rss": {"indirection": null, "key": null, "function": null, "hash_fields": null}}"#,
        )
        .unwrap();
        let expected = DeviceAnswers { rss: Some(RssAnswers::default()), ..DeviceAnswers::default() };
        assert_eq!(whole, expected);
    }

    #[test]
    fn mistakes_in_a_hand_written_file_are_named() {
        for (text, words) in [
            (r#"{"features": {"rx-gro": "of"}}"#, "'of' is not a feature's state"),
            (r#"{"ring": {}}"#, "unknown field `ring`"),
            (r#"{"rings": {"rx": -1}}"#, "invalid value"),
        ] {
            let message = serde_json::from_str::<DeviceAnswers>(text).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
