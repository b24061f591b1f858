//! The dictionary of drivers' counters (`ethtool -S`). It states the meaning of each counter, so that a
//! lost packet is counted once.
//!
//! Each family of drivers has a file, and each driver has a [`Driver`]. The comment of a [`Driver`]
//! names its source files in Linux 6.18.35. [`implied`] lists loss counters that are always reported with
//! other counters. A counter that is not listed is not a loss, but for example
//! an event, a retry, or a frame for another host. `tests/counters` lists all names of each driver. It
//! gives a reason for each loss, error or pause counter that is not listed here.
//!
//! Two sources report the same losses:
//!
//! - `ethtool -S` takes precedence if the driver's row lists a loss, because it separates ring drops
//!   from NIC drops.
//! - From `struct rtnl_link_stats64` (`/sys/class/net/IF/statistics`, `ip -s link`), only the fields in
//!   the row count. Drivers add their own counters to it, and the network core adds frames of unknown
//!   protocols to `rx_dropped`.
//!
//! Netlink's `qstats` are not read, because they repeat these counters for all drivers except
//! virtio_net.

mod broadcom;
mod cloud;
mod implied;
mod intel;
mod mellanox;
mod others;
mod paravirtual;

use std::collections::BTreeMap;

use evenkeel_model::host::LossCounters;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// Frames that arrived damaged: checksum, length, code errors.
    Wire,
    /// Packets lost in the NIC's memory, before the receive rings.
    Nic,
    /// Packets lost because no receive descriptor was free.
    Ring,
    /// All packets that a port lost, including those for lack of a receive descriptor.
    NicAndRing,
    /// Packets that the driver dropped, for example malformed packets, or for lack of memory.
    Driver,
    Transmit,
    /// A transmit queue was full and stopped.
    Stop,
    /// Pause frames that the port sent (IEEE 802.3, annex 31B).
    PauseSent,
    PauseReceived,
    /// Pause frames of a priority that the port sent (IEEE 802.1Qbb).
    PriorityPauseSent,
    PriorityPauseReceived,
    /// Packets that the cloud queued or dropped because the instance exceeded an allowance.
    Allowance,
    Received,
    Sent,
    /// A counter that is included in the counters that match this pattern.
    Part(&'static str),
    /// A counter of the meaning of this other counter, which may include some of its packets: its packets
    /// beyond the other counter count. Of several such counters, the largest one counts.
    Overlaps(&'static str),
    /// Packets that an XDP program dropped, and that the driver adds to this field of `struct
    /// rtnl_link_stats64`.
    Xdp(&'static str),
}

/// Pairs of name and meaning; `#` in a name is the number of a queue, a priority or a buffer.
type Counters = &'static [(&'static str, Meaning)];

#[derive(Debug)]
pub struct Driver {
    /// Names that `ethtool -i` shows.
    pub names: &'static [&'static str],
    /// Fields of `struct rtnl_link_stats64` with losses that `ethtool -S` does not report.
    pub kernel: Counters,
    /// Counters of `ethtool -S`, in tables that several drivers may share.
    pub counters: &'static [Counters],
}

impl Driver {
    pub fn of(name: &str) -> Option<&'static Self> {
        Self::all().find(|driver| driver.names.contains(&name))
    }

    pub fn all() -> impl Iterator<Item = &'static Self> {
        [
            intel::DRIVERS,
            mellanox::DRIVERS,
            broadcom::DRIVERS,
            cloud::DRIVERS,
            paravirtual::DRIVERS,
            others::DRIVERS,
        ]
        .into_iter()
        .flatten()
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, Meaning)> {
        self.counters.iter().copied().flatten().copied()
    }

    /// Returns the pattern and the meaning of a counter, and the number of its queue, priority or buffer, if
    /// its name contains one.
    fn entry(&self, name: &str) -> Option<(&'static str, Meaning, Option<usize>)> {
        // If a driver repeats a name for each queue, the suffix is the number of the repetition.
        let (plain, repetition) = repetition(name);
        self.counters().find_map(|(pattern, meaning)| {
            let number = matches(pattern, plain)?;
            Some((pattern, meaning, number.or(repetition)))
        })
    }

    /// Returns the meaning of a counter, and the number of its queue, priority or buffer, if its name
    /// contains one.
    pub fn meaning(&self, name: &str) -> Option<(Meaning, Option<usize>)> {
        self.entry(name).map(|(_, meaning, number)| (meaning, number))
    }

    /// Removes the known counters whose names occur more than once, unless the driver repeats names for each
    /// queue. Returns one of these names, without the number of its repetition.
    pub fn remove_copies(&self, statistics: &mut BTreeMap<String, u64>) -> Option<String> {
        if self.names.contains(&"vmxnet3") {
            return None;
        }
        let is_copy = |name: &str| repetition(name).1.is_some() && self.meaning(name).is_some();
        let copied = statistics.keys().find(|name| is_copy(name)).map(|name| repetition(name).0.to_owned());
        statistics.retain(|name, _| !is_copy(name));
        copied
    }

    /// Returns whether the driver's row lists losses at the rings, in the NIC or in the driver, but
    /// `statistics` contains none of these counters. `false` if `kernel` of the row also lists such losses.
    pub fn lacks_losses(&self, statistics: &BTreeMap<String, u64>) -> bool {
        let is_loss = |meaning: Meaning| {
            matches!(meaning, Meaning::Ring | Meaning::Nic | Meaning::NicAndRing | Meaning::Driver)
        };
        let found = self.losses(statistics, &BTreeMap::new());
        self.counters().any(|(_, meaning)| is_loss(meaning))
            && !self.kernel.iter().any(|(_, meaning)| is_loss(*meaning))
            && found.ring.or(found.nic).or(found.driver).is_none()
    }

    /// Returns the driver's counter of packets lost at all rings, if `statistics` contains no counter of
    /// these losses. Returns `None` if the driver has no such counter, or if `kernel` of the row lists these
    /// losses. Counters per queue do not qualify, because they depend on the number of queues.
    pub fn lacks_ring_losses(&self, statistics: &BTreeMap<String, u64>) -> Option<&'static str> {
        let is_ring = |meaning: Meaning| matches!(meaning, Meaning::Ring | Meaning::NicAndRing);
        let (name, _) = self.counters().find(|(name, meaning)| is_ring(*meaning) && !name.contains('#'))?;
        let is_shown = |name: &String| match self.entry(name) {
            Some((_, Meaning::Part(whole), _)) => {
                self.counters().any(|(pattern, meaning)| pattern == whole && is_ring(meaning))
            }
            Some((_, meaning, _)) => is_ring(meaning),
            None => false,
        };
        let of_kernel = self.kernel.iter().any(|(_, meaning)| is_ring(*meaning));
        (!of_kernel && !statistics.keys().any(is_shown)).then_some(name)
    }

    /// Returns an interface's losses, from the driver's counters, and from the kernel's counters that
    /// the row lists.
    pub fn losses(&self, statistics: &BTreeMap<String, u64>, kernel: &BTreeMap<String, u64>) -> LossCounters {
        let mut sums = Sums::default();
        let mut wholes: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
        let mut overlaps: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, value) in statistics {
            match self.entry(name) {
                Some((pattern, Meaning::Part(whole), _)) => {
                    let sum = wholes.entry(whole).or_default().entry(pattern).or_insert(0);
                    *sum = sum.saturating_add(*value);
                }
                Some((_, Meaning::Overlaps(other), _)) => {
                    let largest = overlaps.entry(other).or_insert(0);
                    *largest = (*largest).max(*value);
                }
                Some((_, meaning, _)) => sums.add(meaning, *value),
                None => {}
            }
        }
        // A part counts only if the driver does not report the whole. Several parts may include each
        // other, so only the largest part counts.
        for (whole, parts) in wholes {
            let is_shown = statistics.keys().any(|name| matches(whole, repetition(name).0).is_some());
            let meaning = self.counters().find(|(pattern, _)| *pattern == whole);
            if let (false, Some((_, meaning)), Some(largest)) = (is_shown, meaning, parts.values().max()) {
                sums.add(meaning, *largest);
            }
        }
        for (other, largest) in overlaps {
            let counted = statistics.get(other).copied().unwrap_or(0);
            if let Some((_, meaning)) = self.counters().find(|(pattern, _)| *pattern == other) {
                sums.add(meaning, largest.saturating_sub(counted));
            }
        }
        for (field, meaning) in self.kernel {
            if let Some(value) = kernel.get(*field) {
                sums.add(*meaning, value.saturating_sub(sums.of(Meaning::Xdp(field)).unwrap_or(0)));
            }
        }
        sums.losses()
    }
}

/// Sums of the counters by meaning, if the driver has a counter for the meaning.
#[derive(Debug, Default)]
struct Sums(Vec<(Meaning, u64)>);

impl Sums {
    fn add(&mut self, meaning: Meaning, value: u64) {
        match self.0.iter_mut().find(|(other, _)| *other == meaning) {
            Some((_, sum)) => *sum = sum.saturating_add(value),
            None => self.0.push((meaning, value)),
        }
    }

    fn of(&self, meaning: Meaning) -> Option<u64> {
        self.0.iter().find(|(other, _)| *other == meaning).map(|(_, sum)| *sum)
    }

    fn losses(&self) -> LossCounters {
        let ring = self.of(Meaning::Ring);
        // If the port's drops exceed the drops of its rings, the difference was dropped before the
        // rings.
        let in_front = self.of(Meaning::NicAndRing).map(|all| all.saturating_sub(ring.unwrap_or(0)));
        let nic = self.of(Meaning::Nic);
        LossCounters {
            ring,
            nic: nic.or(in_front).map(|_| nic.unwrap_or(0).saturating_add(in_front.unwrap_or(0))),
            driver: self.of(Meaning::Driver),
            wire: self.of(Meaning::Wire),
            other: None,
            transmit: self.of(Meaning::Transmit),
            transmit_stops: self.of(Meaning::Stop),
            pause_sent: self.of(Meaning::PauseSent),
            pause_received: self.of(Meaning::PauseReceived),
            priority_pause_sent: self.of(Meaning::PriorityPauseSent),
            priority_pause_received: self.of(Meaning::PriorityPauseReceived),
            allowance: self.of(Meaning::Allowance),
        }
    }
}

/// Returns counters by unique names, without counters that have no name. If a driver repeats a name for
/// each queue (vmxnet3), each repetition gets a number: ` [0]`, ` [1]`.
pub fn distinct(counters: impl IntoIterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let counters: Vec<(String, u64)> = counters.into_iter().filter(|(name, _)| !name.is_empty()).collect();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in &counters {
        *times.entry(name.clone()).or_insert(0) += 1;
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let named = |(name, value): (String, u64)| {
        if times.get(&name).is_none_or(|times| *times < 2) {
            return (name, value);
        }
        let number = seen.entry(name.clone()).or_insert(0);
        let distinct = format!("{name} [{number}]");
        *number += 1;
        (distinct, value)
    };
    counters.into_iter().map(named).collect()
}

/// Splits a name into its plain form and the number of its repetition, if any.
fn repetition(name: &str) -> (&str, Option<usize>) {
    let found = || {
        let (plain, number) = name.strip_suffix(']')?.rsplit_once(" [")?;
        Some((plain, number.parse().ok()?))
    };
    found().map_or((name, None), |(plain, number)| (plain, Some(number)))
}

/// Matches a name with a pattern. Returns the number in place of the first `#`, if any; the outer
/// option is `None` if the name does not match.
fn matches(pattern: &str, name: &str) -> Option<Option<usize>> {
    let (mut pattern, mut name, mut first) = (pattern, name, None);
    while let Some((literal, rest)) = pattern.split_once('#') {
        name = name.strip_prefix(literal)?;
        let digits = name.bytes().take_while(u8::is_ascii_digit).count();
        let number = name.get(..digits)?.parse().ok()?;
        first = first.or(Some(number));
        (name, pattern) = (name.get(digits..)?, rest);
    }
    (name == pattern).then_some(first)
}

#[cfg(test)]
mod tests;
