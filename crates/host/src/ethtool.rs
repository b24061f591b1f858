//! A driver's information about itself and its channels (`include/uapi/linux/ethtool.h`).

use std::io;

use evenkeel_netlink::ethtool::{EthtoolCalls, EthtoolSocket};

/// Current and maximum numbers of a device's channels (`struct ethtool_channels`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Transmit-only channels in use.
    pub transmit: u32,
    /// Maximum of transmit-only channels.
    pub transmit_most: u32,
    /// Channels that transmit and receive, in use.
    pub combined: u32,
    /// Maximum of channels that transmit and receive.
    pub combined_most: u32,
}

impl Channels {
    #[must_use]
    pub fn transmit_queues_most(&self) -> u32 {
        self.transmit_most.max(self.combined_most)
    }
}

/// Size of a device's table of n-tuple rules (`struct ethtool_rxnfc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleTable {
    pub rules: u32,
    /// Number of locations for rules, if the driver reports it.
    pub places: Option<u32>,
}

/// Queries drivers through a socket of the network namespace in which the socket was opened.
#[derive(Debug)]
pub struct Ethtool(EthtoolSocket);

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_GRSSH: u32 = 0x46;
/// `ETH_FLAG_NTUPLE`.
const FLAG_NTUPLE: u32 = 1 << 27;
/// `RX_CLS_LOC_SPECIAL`, a flag that drivers set in the number of locations.
const LOCATION_SPECIAL: u64 = 0x8000_0000;
/// Size of `struct ethtool_rxnfc` without rule locations, bytes: command, type of flow, data, a rule of 168
/// bytes, number of rules.
const RULES_LENGTH: usize = 192;
const RULES_DATA: std::ops::Range<usize> = 8..16;
const RULES_COUNT: std::ops::Range<usize> = 184..188;
/// Size of `struct ethtool_rxfh` without table and key, bytes: command, context, length of the table,
/// length of the key, and more.
const HASH_LENGTH: usize = 24;
/// Size of `struct ethtool_drvinfo`, bytes. The driver's name follows the command.
const DRIVER_INFORMATION_LENGTH: usize = 196;
const DRIVER_NAME: std::ops::Range<usize> = 4..36;
/// Size of `struct ethtool_channels`, in words of 32 bits: command, four maxima (rx, tx, other, combined),
/// four counts.
const CHANNELS_WORDS: usize = 9;

impl Ethtool {
    pub fn open() -> io::Result<Self> {
        EthtoolSocket::open().map(Self)
    }

    /// Returns the name of an interface's driver, if the driver reports a name.
    #[must_use]
    pub fn driver(&self, interface: &str) -> Option<String> {
        let mut information = [0_u8; DRIVER_INFORMATION_LENGTH];
        information[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
        self.ask(interface, &mut information).ok()?;
        let name = information[DRIVER_NAME].split(|byte| *byte == 0).next()?;
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// Returns an interface's channels; `None` if the driver does not report them.
    #[must_use]
    pub fn channels(&self, interface: &str) -> Option<Channels> {
        let mut bytes = [0_u8; CHANNELS_WORDS * 4];
        bytes[..4].copy_from_slice(&ETHTOOL_GCHANNELS.to_ne_bytes());
        self.ask(interface, &mut bytes).ok()?;
        let word = |at: usize| bytes.get(at * 4..at * 4 + 4)?.try_into().ok().map(u32::from_ne_bytes);
        Some(Channels {
            transmit_most: word(2)?,
            combined_most: word(4)?,
            transmit: word(6)?,
            combined: word(8)?,
        })
    }

    /// Returns the number of entries in an interface's RSS indirection table; `None` if the driver reports
    /// none.
    #[must_use]
    pub fn indirection_entries(&self, interface: &str) -> Option<u32> {
        let mut bytes = [0_u8; HASH_LENGTH];
        bytes[..4].copy_from_slice(&ETHTOOL_GRSSH.to_ne_bytes());
        // The kernel fills in the lengths if they are 0.
        self.ask(interface, &mut bytes).ok()?;
        let entries = u32::from_ne_bytes(bytes[8..12].try_into().ok()?);
        (entries > 0).then_some(entries)
    }

    /// Returns whether an interface's n-tuple filters are on (`ethtool -K IFACE ntuple on`).
    #[must_use]
    pub fn ntuple_is_on(&self, interface: &str) -> bool {
        let mut bytes = [0_u8; 8];
        bytes[..4].copy_from_slice(&ETHTOOL_GFLAGS.to_ne_bytes());
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
        self.ask(interface, &mut bytes).is_ok()
            && word(&bytes[4..]).is_some_and(|flags| flags & FLAG_NTUPLE != 0)
    }

    /// Returns the size of an interface's table of n-tuple rules; `None` if the driver does not support
    /// n-tuple rules.
    #[must_use]
    pub fn rule_table(&self, interface: &str) -> Option<RuleTable> {
        let (rules, places) = self.rules(interface, ETHTOOL_GRXCLSRLCNT, 0).ok()?;
        // Some drivers report the number of locations only when they return all rules. So the buffer
        // needs space for the rules.
        let places = if places > 0 {
            places
        } else {
            self.rules(interface, ETHTOOL_GRXCLSRLALL, rules).map_or(0, |(_, places)| places)
        };
        Some(RuleTable { rules, places: (places > 0).then_some(places) })
    }

    /// Returns the number of rules and of rule locations. The command's buffer has space for `room`
    /// locations.
    fn rules(&self, interface: &str, command: u32, room: u32) -> io::Result<(u32, u32)> {
        /// Limits the allocation, because the driver's number is not trusted. No device has this number
        /// of rules.
        const MOST: u32 = 1 << 20;
        let mut bytes = vec![0_u8; RULES_LENGTH + room.min(MOST) as usize * 4];
        bytes[..4].copy_from_slice(&command.to_ne_bytes());
        bytes[RULES_COUNT].copy_from_slice(&room.min(MOST).to_ne_bytes());
        self.ask(interface, &mut bytes)?;
        let damaged = |_| io::Error::from(io::ErrorKind::InvalidData);
        let data = u64::from_ne_bytes(bytes[RULES_DATA].try_into().map_err(damaged)?);
        let rules = u32::from_ne_bytes(bytes[RULES_COUNT].try_into().map_err(damaged)?);
        Ok((rules, u32::try_from(data & !LOCATION_SPECIAL).unwrap_or(0)))
    }

    /// Calls `SIOCETHTOOL` with a structure that the kernel reads and fills.
    fn ask(&self, interface: &str, data: &mut [u8]) -> io::Result<()> {
        self.0.call(interface, data)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn what_is_not_there_has_no_driver() {
        let ethtool = Ethtool::open().unwrap();
        assert_eq!(ethtool.driver("evk-not-here"), None);
        assert_eq!(ethtool.driver("a-name-that-no-interface-can-have"), None);
        assert_eq!(ethtool.channels("lo"), None);
        assert_eq!(ethtool.indirection_entries("lo"), None);
        assert_eq!(ethtool.rule_table("lo"), None);
        assert!(!ethtool.ntuple_is_on("lo"));
    }
}
