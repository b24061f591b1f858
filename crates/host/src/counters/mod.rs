//! The dictionary of drivers' counters (`ethtool -S`). It states the meaning of each counter, so that a lost
//! packet is counted once.
//!
//! There is one file per family of drivers, and one [`Driver`] per driver. It is derived from the files of
//! Linux 6.18.35 that its comment names. A counter that is not listed is not a loss: an event, a retry, a
//! frame for another host. `tests/counters` lists all names of each driver, with a reason for each loss,
//! error or pause counter that is not listed here.
//!
//! Two sources report the same losses:
//!
//! - `ethtool -S` takes precedence if the driver's row lists a loss, because it separates ring drops from NIC
//!   drops.
//! - From `struct rtnl_link_stats64` (`/sys/class/net/IF/statistics`, `ip -s link`), only the fields in the
//!   row count. Drivers add their own counters to it, and the network core adds frames of unknown protocols
//!   to `rx_dropped`.
//!
//! Netlink's `qstats` are not read: except for virtio_net, they repeat these counters.

mod broadcom;
mod cloud;
mod intel;
mod mellanox;
mod others;
mod paravirtual;

use std::collections::BTreeMap;

use evenkeel_model::host::LossCounters;

/// Meaning of a counter.
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
    /// Packets that the driver dropped: no memory, malformed.
    Driver,
    /// Packets dropped on transmit.
    Transmit,
    /// A transmit queue was full and stopped.
    Stop,
    /// Pause frames of the link that were sent (IEEE 802.3, annex 31B).
    PauseSent,
    /// Pause frames of the link that were received.
    PauseReceived,
    /// Pause frames of a priority that were sent (IEEE 802.1Qbb).
    PriorityPauseSent,
    /// Pause frames of a priority that were received.
    PriorityPauseReceived,
    /// Packets that the cloud queued or dropped at an allowance of the instance.
    Allowance,
    /// Packets received by a queue.
    Received,
    /// Packets sent by a queue.
    Sent,
    /// Also included in another counter, or in several: their pattern.
    Part(&'static str),
    /// Packets that an XDP program dropped, and that the driver adds to this field of `struct
    /// rtnl_link_stats64`.
    Xdp(&'static str),
}

/// Meanings by name; `#` is the number of a queue, a priority or a buffer.
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
    /// Returns the row of a driver, by the driver's name.
    pub fn of(name: &str) -> Option<&'static Self> {
        Self::all().find(|driver| driver.names.contains(&name))
    }

    /// Returns the rows of all drivers.
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

    /// Returns the driver's counters and their meanings.
    fn counters(&self) -> impl Iterator<Item = (&'static str, Meaning)> {
        self.counters.iter().copied().flatten().copied()
    }

    /// Returns the pattern and the meaning of a counter, and the first number in its name.
    fn entry(&self, name: &str) -> Option<(&'static str, Meaning, Option<usize>)> {
        // A name that a driver repeats for each queue has the repetition's number as its suffix.
        let (plain, repetition) = repetition(name);
        self.counters().find_map(|(pattern, meaning)| {
            let number = matches(pattern, plain)?;
            Some((pattern, meaning, number.or(repetition)))
        })
    }

    /// Returns the meaning of a counter, and the first number in its name.
    pub fn meaning(&self, name: &str) -> Option<(Meaning, Option<usize>)> {
        self.entry(name).map(|(_, meaning, number)| (meaning, number))
    }

    /// Removes counters that are listed twice, although the driver does not repeat names for each queue. Returns one of
    /// them.
    pub fn remove_copies(&self, statistics: &mut BTreeMap<String, u64>) -> Option<String> {
        if self.names.contains(&"vmxnet3") {
            return None;
        }
        let is_copy = |name: &str| repetition(name).1.is_some() && self.meaning(name).is_some();
        let copied = statistics.keys().find(|name| is_copy(name)).map(|name| repetition(name).0.to_owned());
        statistics.retain(|name, _| !is_copy(name));
        copied
    }

    /// Returns whether the driver lists losses of received packets, but these counters have none of them.
    pub fn lacks_losses(&self, statistics: &BTreeMap<String, u64>) -> bool {
        let is_loss = |meaning: Meaning| {
            matches!(meaning, Meaning::Ring | Meaning::Nic | Meaning::NicAndRing | Meaning::Driver)
        };
        let found = self.losses(statistics, &BTreeMap::new());
        self.counters().any(|(_, meaning)| is_loss(meaning))
            && !self.kernel.iter().any(|(_, meaning)| is_loss(*meaning))
            && found.ring.or(found.nic).or(found.driver).is_none()
    }

    /// Returns an interface's losses, from the counters of its driver, and from the kernel's if the row lists
    /// them.
    pub fn losses(&self, statistics: &BTreeMap<String, u64>, kernel: &BTreeMap<String, u64>) -> LossCounters {
        let mut sums = Sums::default();
        let mut wholes: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
        for (name, value) in statistics {
            match self.entry(name) {
                Some((pattern, Meaning::Part(whole), _)) => {
                    let sum = wholes.entry(whole).or_default().entry(pattern).or_insert(0);
                    *sum = sum.saturating_add(*value);
                }
                Some((_, meaning, _)) => sums.add(meaning, *value),
                None => {}
            }
        }
        // A part counts only if the driver does not report the whole. Several parts may repeat each other, so
        // the largest one counts.
        for (whole, parts) in wholes {
            let is_shown = statistics.keys().any(|name| matches(whole, repetition(name).0).is_some());
            let meaning = self.counters().find(|(pattern, _)| *pattern == whole);
            if let (false, Some((_, meaning)), Some(largest)) = (is_shown, meaning, parts.values().max()) {
                sums.add(meaning, *largest);
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

/// Sums of the counters by meaning; a driver may have no counter for a meaning.
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
        // Drops of the port in excess of those of its rings occurred before the rings.
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

/// Returns counters by unique names. A name that a driver repeats for each queue (vmxnet3) is numbered: `
/// [0]`, ` [1]`.
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

/// Returns the first number that replaces a `#` if a name matches a pattern; the outer option is none if it
/// does not match.
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
