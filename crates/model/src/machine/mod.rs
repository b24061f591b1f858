//! Machine profiles: cores, clocks, links and the cycles of each operation of a modelled host.
//!
//! A profile is a TOML file (see `docs/reference/machine-profiles.md`). The two built-in profiles are the
//! files of `crates/model/machines`. A figure that was measured on a host has its 95 % interval and the
//! number of repeats.

use std::sync::LazyLock;

use crate::scenario::ScenarioError;
use crate::units::{BitRate, ByteSize, Frequency, Nanoseconds};

mod read;
#[cfg(test)]
mod tests;
mod write;

/// The parts of the stack to which the cycles of an operation are charged. Records use the same names.
pub const SHARES: [&str; 8] = ["copy", "tcp-ip", "netdev", "memory", "skb", "lock", "sched", "other"];

/// Smallest number of repeats of a measured figure. Fewer repeats give no interval.
pub const LEAST_REPEATS: u32 = 5;

/// A figure, and its uncertainty if it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    pub value: f64,
    pub measured: Option<Measured>,
}

/// The 95 % interval of a measured figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub low: f64,
    pub high: f64,
    /// Number of repeats, at least [`LEAST_REPEATS`].
    pub n: u32,
}

impl Figure {
    #[must_use]
    pub const fn stated(value: f64) -> Self {
        Self { value, measured: None }
    }

    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        let scale = |value: f64| value * factor;
        let measured =
            self.measured.map(|found| Measured { low: scale(found.low), high: scale(found.high), ..found });
        Self { value: scale(self.value), measured }
    }

    /// Returns the value moved by `deviations` standard deviations, limited to ±3. Half of a 95 % interval is
    /// 1.96 standard deviations. The logarithm is taken as normal, so no cost becomes negative. A figure
    /// stays unchanged without an interval, or with an interval that begins at 0.
    #[must_use]
    pub fn drawn(self, deviations: f64) -> f64 {
        const HALF_INTERVAL: f64 = 1.96;
        let Some(Measured { low, high, .. }) = self.measured else { return self.value };
        if !(low > 0.0 && high >= low) {
            return self.value;
        }
        self.value * ((high / low).ln() / (2.0 * HALF_INTERVAL) * deviations.clamp(-3.0, 3.0)).exp()
    }
}

/// The cycles of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Cycles, in the order of [`SHARES`].
    pub shares: [f64; SHARES.len()],
    /// The sum, if the profile states it separately. Then the shares only give the proportions.
    pub total: Option<Figure>,
}

impl Cost {
    /// Returns the cycles of each share, in the order of [`SHARES`].
    #[must_use]
    pub fn by_share(&self) -> [f64; SHARES.len()] {
        let sum: f64 = self.shares.iter().sum();
        match self.total {
            Some(total) if sum > 0.0 => {
                let factor = total.value / sum;
                self.shares.map(|share| share * factor)
            }
            _ => self.shares,
        }
    }

    /// Returns the cycles of the operation.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.total.map_or_else(|| self.shares.iter().sum(), |total| total.value)
    }
}

/// An operation of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Packet,
    Buffer,
    Defer,
    ReadPacket,
    ReadBuffer,
    Segment,
    Acknowledgement,
    Interrupt,
    Wake,
    Switch,
}

impl Operation {
    pub const ALL: [Self; 10] = [
        Self::Packet,
        Self::Buffer,
        Self::Defer,
        Self::ReadPacket,
        Self::ReadBuffer,
        Self::Segment,
        Self::Acknowledgement,
        Self::Interrupt,
        Self::Wake,
        Self::Switch,
    ];

    /// Returns the name of the operation's table in a profile file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Buffer => "buffer",
            Self::Defer => "defer",
            Self::ReadPacket => "read-packet",
            Self::ReadBuffer => "read-buffer",
            Self::Segment => "segment",
            Self::Acknowledgement => "acknowledgement",
            Self::Interrupt => "interrupt",
            Self::Wake => "wake",
            Self::Switch => "switch",
        }
    }
}

/// Cycles to copy a byte, by where the data is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CopyCosts {
    /// In the last-level cache.
    pub cached: Figure,
    /// In the memory of the reader's node.
    pub local: Figure,
    /// In the memory of another node.
    pub remote: Figure,
}

/// A modelled machine with one NIC.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineProfile {
    pub name: String,
    /// May be empty.
    pub description: String,
    /// The built-in profile from which the figures come that were not measured.
    pub based_on: Option<String>,
    pub nodes: u32,
    pub cores_per_node: u32,
    /// Clock of a core with at most two active cores in its package, Hz.
    pub turbo_hz: Figure,
    /// Clock with all cores active, Hz.
    pub all_cores_hz: Figure,
    /// Nominal clock, Hz.
    pub base_hz: Figure,
    pub copy: CopyCosts,
    /// Cycles of a memory access that misses the caches.
    pub miss: Figure,
    /// Cycles by operation, in the order of [`Operation::ALL`].
    pub cycles: [Cost; Operation::ALL.len()],
    /// Part of the last-level cache into which the NIC writes (DDIO).
    pub ddio: ByteSize,
    /// Capacity of the interconnect in each direction.
    pub interconnect: BitRate,
    /// Load on the other direction of the interconnect, as a share of the data.
    pub reverse_share: f64,
    /// Capacity of the NIC's slot.
    pub pcie: BitRate,
    /// Packet buffer of the NIC in front of the slot.
    pub nic_buffer: ByteSize,
    /// Time between the first packet and its interrupt.
    pub interrupt_delay: Nanoseconds,
    pub nic_node: u32,
}

const KIT_2014: &str = "kit-2014";
const XEON_6128: &str = "xeon-6128";
const BUILT_IN: [(&str, &str); 2] = [
    (KIT_2014, include_str!("../../machines/kit-2014.toml")),
    (XEON_6128, include_str!("../../machines/xeon-6128.toml")),
];

impl MachineProfile {
    /// Parses a profile; errors name it `origin`.
    ///
    /// # Errors
    /// Returns the first error in the text.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        read::read(text, origin)
    }

    /// Returns the names and texts of the built-in profiles.
    #[must_use]
    pub const fn built_in_texts() -> &'static [(&'static str, &'static str)] {
        &BUILT_IN
    }

    /// Returns the built-in profile of this name; `None` if the name is unknown.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        // A test checks that the files are valid.
        static PARSED: LazyLock<[MachineProfile; BUILT_IN.len()]> = LazyLock::new(|| {
            BUILT_IN.map(|(name, text)| MachineProfile::parse(text, name).unwrap_or_default())
        });
        let at = BUILT_IN.iter().position(|(known, _)| *known == name)?;
        PARSED.get(at).cloned()
    }

    /// Returns the profile of the servers in *TCP at 100 Gbit/s*.
    #[must_use]
    pub fn kit_2014() -> Self {
        Self::built_in(KIT_2014).unwrap_or_default()
    }

    /// Returns the profile of the servers in *Understanding Host Network Stack Overheads*.
    #[must_use]
    pub fn xeon_6128() -> Self {
        Self::built_in(XEON_6128).unwrap_or_default()
    }

    /// Returns the built-in profile that is nearest to a processor with this name: `kit-2014` for Xeon E5 and
    /// E7, because of the same interconnect (QPI), otherwise `xeon-6128`.
    #[must_use]
    pub fn nearest(processor: &str) -> Self {
        let is_old = ["E5-", "E7-"].iter().any(|name| processor.contains(name));
        if is_old { Self::kit_2014() } else { Self::xeon_6128() }
    }

    #[must_use]
    pub fn cost(&self, operation: Operation) -> &Cost {
        &self.cycles[operation as usize]
    }

    /// Returns the figures that can be measured, each with its key in the file.
    #[must_use]
    pub fn figures(&self) -> Vec<(String, Figure)> {
        let single = [
            ("processor.turbo-clock", self.turbo_hz),
            ("processor.all-cores-clock", self.all_cores_hz),
            ("processor.base-clock", self.base_hz),
            ("copy.cached", self.copy.cached),
            ("copy.local", self.copy.local),
            ("copy.remote", self.copy.remote),
            ("memory.miss", self.miss),
        ];
        let of_operation = |operation: Operation| {
            let cost = self.cost(operation);
            let total = cost.total.unwrap_or(Figure::stated(cost.sum()));
            (format!("cycles.{}.total", operation.name()), total)
        };
        let single = single.into_iter().map(|(key, figure)| (key.to_owned(), figure));
        single.chain(Operation::ALL.map(of_operation)).collect()
    }

    /// Returns the measured figures, each with its key in the file.
    #[must_use]
    pub fn measured(&self) -> Vec<(String, Figure)> {
        let mut found = self.figures();
        found.retain(|(_, figure)| figure.measured.is_some());
        found
    }

    /// Returns the profile with each measured figure, except for the clocks, drawn from its uncertainty:
    /// `normal` returns a number from the standard normal distribution. All operations share one number,
    /// because most of their totals come from one measurement.
    #[must_use]
    pub fn drawn(&self, mut normal: impl FnMut() -> f64) -> Self {
        let mut draw = |figure: Figure| Figure::stated(figure.drawn(normal()));
        let copy = CopyCosts {
            cached: draw(self.copy.cached),
            local: draw(self.copy.local),
            remote: draw(self.copy.remote),
        };
        let miss = draw(self.miss);
        let deviations = normal();
        let cycles = self.cycles.map(|cost| {
            let total = cost.total.map(|total| Figure::stated(total.drawn(deviations)));
            Cost { total, ..cost }
        });
        Self { copy, miss, cycles, ..self.clone() }
    }
}
