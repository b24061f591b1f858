//! The rounds of a calibration: each measures every figure.

use std::thread;
use std::time::{Duration, Instant};

use evenkeel_metrics::{Interval, Summary, median_interval};
use evenkeel_model::world::Observer;

use crate::copy::Source;
use crate::packet::{Link, Offloads, obstacle};
use crate::place::{Places, pin};
use crate::wakeup::{Alone, Exchange, Partner};
use crate::{CalibrateError, clock};

/// Number of rounds of a calibration. The 95 % interval of the median of 15 rounds ranges from the 4th to the
/// 12th smallest value.
const ROUNDS: u32 = 15;
/// Multiple of the stated time after which no further round starts. On a busy machine, rounds take longer.
const MOST_TIME: f64 = 1.5;

/// Largest usable ratio of the ends of an interval. A wider interval shows the load of other programs, not a
/// cost.
pub(crate) const WIDEST: f64 = 3.0;

/// Minimum ratio of the number of buffers without TSO to the number with TSO. Below it, TCP sent no whole
/// segments, and the round gives no cost of a packet.
const FEWER: f64 = 4.0;

/// The options of a calibration.
#[derive(Clone, Debug)]
pub struct Plan {
    pub places: Places,
    pub time: Duration,
}

/// A measured quantity over the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    pub name: String,
    /// `Hz` or `ns`; empty for a number.
    pub unit: &'static str,
    pub median: f64,
    /// 95 % interval of the median; `None` with fewer than six rounds.
    pub interval: Option<Interval>,
    pub min: f64,
    pub max: f64,
    /// Number of rounds that measured the quantity.
    pub n: usize,
}

/// The result of a calibration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub quantities: Vec<Quantity>,
    /// Names of the quantities that were not measured or are not usable, each with the reason.
    pub gaps: Vec<(String, String)>,
}

impl Quantity {
    /// Returns the interval if its ends are positive and differ by at most the factor [`WIDEST`].
    pub(crate) fn usable(&self) -> Option<Interval> {
        self.interval.filter(|interval| interval.low > 0.0 && interval.high <= WIDEST * interval.low)
    }
}

impl Report {
    /// Adds a gap for each quantity without a usable interval.
    fn note_unusable(&mut self) {
        let unusable = self.quantities.iter().filter(|quantity| quantity.usable().is_none());
        let why = |quantity: &Quantity| match quantity.interval {
            None => format!("too few rounds for an interval ({}); give more time with --for", quantity.n),
            Some(_) => {
                format!(
                    "its interval reaches 0 or spans more than a factor of {WIDEST}; measure again, on an idle host"
                )
            }
        };
        let gaps: Vec<_> = unusable.map(|quantity| (quantity.name.clone(), why(quantity))).collect();
        self.gaps.extend(gaps);
    }

    /// Adds a gap for the cost of a packet, if it was requested but no round measured it.
    fn note_packet(&mut self, is_sought: bool) {
        if is_sought && self.get(name::PACKET).is_none() {
            let why = "TCP sent no whole segments with TSO in any round; measure again, on an idle host";
            self.gaps.push((name::PACKET.to_owned(), why.to_owned()));
        }
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Quantity> {
        self.quantities.iter().find(|quantity| quantity.name == name)
    }
}

pub(crate) mod name {
    pub const CLOCK: &str = "clock of a core";
    pub const COUNTER: &str = "time stamp counter";
    pub const CACHED: &str = "byte copied from the last-level cache";
    pub const LOCAL: &str = "byte copied from local memory";
    pub const REMOTE: &str = "byte copied from the memory of node";
    pub const WAKE: &str = "wakeup of a thread on another processor";
    pub const WAKE_HERE: &str = "wakeup of a thread on the same processor";
    pub const SWITCH: &str = "switch to a thread";
    pub const LATENCY: &str = "exchange with a thread on another processor";
    pub const PACKET: &str = "TCP packet of 1500 bytes, split by GSO, no GRO";
    pub const GRO: &str = "TCP write and read of 64 KiB, GSO, GRO";
    pub const MERGED: &str = "packets that GRO merges into a buffer";
    pub const NO_OFFLOADS: &str = "TCP write and read of 64 KiB, GSO, no GRO";
    pub const TSO: &str = "TCP write and read of 64 KiB, TSO";
    pub const DATAGRAM: &str = "UDP packet with 64 bytes, sent and received";
}

/// The values of all quantities, at most one value of a quantity per round.
#[derive(Default)]
struct Values {
    all: Vec<(String, &'static str, Vec<f64>)>,
}

impl Values {
    fn add(&mut self, name: &str, unit: &'static str, value: f64) {
        match self.all.iter_mut().find(|(known, ..)| known == name) {
            Some((.., values)) => values.push(value),
            None => self.all.push((name.to_owned(), unit, vec![value])),
        }
    }

    fn quantities(self) -> Vec<Quantity> {
        let quantity = |(name, unit, values): (String, &'static str, Vec<f64>)| {
            let Summary { median, min, max, n, .. } = Summary::of(&values)?;
            Some(Quantity { name, unit, median, interval: median_interval(&values), min, max, n })
        };
        self.all.into_iter().filter_map(quantity).collect()
    }
}

/// The time of one measurement in a round.
struct Slice<'a> {
    length: Duration,
    observer: &'a dyn Observer,
}

impl Slice<'_> {
    /// Returns a function that returns true on its first call, and then until the time is over. The function
    /// returns an error if the observer interrupts the calibration.
    fn clock(&self) -> impl FnMut() -> Result<bool, CalibrateError> {
        let (began, mut is_first) = (Instant::now(), true);
        move || {
            if self.observer.interrupted() {
                return Err(CalibrateError::Interrupted);
            }
            Ok(std::mem::take(&mut is_first) || began.elapsed() < self.length)
        }
    }

    /// Calls `work` until the time is over, and returns the median of each figure over the calls.
    fn medians<const N: usize>(
        &self,
        mut work: impl FnMut() -> Result<[f64; N], CalibrateError>,
    ) -> Result<[f64; N], CalibrateError> {
        let mut found: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
        let mut goes_on = self.clock();
        while goes_on()? {
            for (values, value) in found.iter_mut().zip(work()?) {
                values.push(value);
            }
        }
        Ok(found.map(|values| Summary::of(&values).map_or(f64::NAN, |summary| summary.median)))
    }
}

/// The objects of all measurements, created once.
struct Rig {
    cached: Option<Source>,
    local: Option<Source>,
    remote: Vec<(u32, Source)>,
    here: Partner,
    there: Option<Partner>,
    alone: Alone,
    link: Option<Link>,
}

impl Rig {
    fn make(places: &Places, gaps: &mut Vec<(String, String)>) -> Result<Self, CalibrateError> {
        let mut gap = |what: &str, why: String| gaps.push((what.to_owned(), why));
        let cached = Source::cached(places.core)?;
        if cached.is_none() {
            gap(
                name::CACHED,
                "the caches of this processor have unknown sizes, or no level beyond the core's own"
                    .to_owned(),
            );
        }
        // A machine with one node may not permit mbind(2), and does not need it.
        let own_node = Some(places.node).filter(|_| !places.remote_nodes.is_empty());
        let local = Source::in_memory(own_node)?;
        let no_eviction = "the calibration can empty the caches of a processor only on x86_64";
        if local.is_none() {
            gap(name::LOCAL, no_eviction.to_owned());
        }
        let mut remote = Vec::new();
        for node in &places.remote_nodes {
            match Source::in_memory(Some(*node)) {
                Ok(Some(source)) => remote.push((*node, source)),
                Ok(None) => gap(&format!("{} {node}", name::REMOTE), no_eviction.to_owned()),
                Err(error) => gap(&format!("{} {node}", name::REMOTE), error.to_string()),
            }
        }
        if places.remote_nodes.is_empty() {
            gap("byte copied from another memory node", "this host has one memory node".to_owned());
        }
        if places.other.is_none() {
            gap(name::WAKE, "this process may use one processor only".to_owned());
        }
        let link = match obstacle() {
            None => Some(Link::make()?),
            Some(why) => {
                gap("TCP and UDP packets", why);
                None
            }
        };
        gap("interrupt, packet in the driver", "they need a NIC".to_owned());
        Ok(Self {
            cached,
            local,
            remote,
            here: Partner::start(places.core, true)?,
            there: places.other.map(|other| Partner::start(other, false)).transpose()?,
            alone: Alone::new()?,
            link,
        })
    }

    fn slices(&self) -> u32 {
        let sources =
            usize::from(self.cached.is_some()) + usize::from(self.local.is_some()) + self.remote.len();
        let threads = 2 + usize::from(self.there.is_some());
        let packets = if self.link.is_some() { 4 } else { 0 };
        (1 + sources + threads + packets) as u32
    }

    fn round(&mut self, slice: &Slice<'_>, values: &mut Values) -> Result<(), CalibrateError> {
        let mut clocks = [f64::NAN];
        let counter = clock::counter_hz(|| {
            clocks = slice.medians(|| Ok([clock::core_hz().unwrap_or(f64::NAN)])).unwrap_or([f64::NAN]);
        });
        if clocks[0].is_nan() && slice.observer.interrupted() {
            return Err(CalibrateError::Interrupted);
        }
        values.add(name::CLOCK, "Hz", clocks[0]);
        if let Some(hz) = counter {
            values.add(name::COUNTER, "Hz", hz);
        }
        let sources =
            [(name::CACHED.to_owned(), &mut self.cached), (name::LOCAL.to_owned(), &mut self.local)];
        let own = sources.into_iter().filter_map(|(name, source)| Some((name, source.as_mut()?)));
        let remote =
            self.remote.iter_mut().map(|(node, source)| (format!("{} {node}", name::REMOTE), source));
        for (name, source) in own.chain(remote) {
            let [ns] = slice.medians(|| Ok([source.copy()]))?;
            values.add(&name, "ns", ns);
        }
        self.wakeups(slice, values)?;
        self.packets(slice, values)
    }

    fn wakeups(&mut self, slice: &Slice<'_>, values: &mut Values) -> Result<(), CalibrateError> {
        let [write, both] = slice.medians(|| self.alone.times().map(|(write, both)| [write, both]))?;
        let exchange = |partner: &Partner| {
            slice.medians(|| partner.exchange().map(|Exchange { write, whole }| [write, whole]))
        };
        let [waking, whole] = exchange(&self.here)?;
        let wake = waking - write;
        values.add(name::WAKE_HERE, "ns", wake);
        // In an exchange, each of the two threads writes, wakes the other thread, switches to it, and reads.
        values.add(name::SWITCH, "ns", (whole - 2.0 * both) / 2.0 - wake);
        if let Some(partner) = &self.there {
            let [waking, whole] = exchange(partner)?;
            values.add(name::WAKE, "ns", waking - write);
            values.add(name::LATENCY, "ns", whole);
        }
        Ok(())
    }

    fn packets(&mut self, slice: &Slice<'_>, values: &mut Values) -> Result<(), CalibrateError> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let [datagram] = slice.medians(|| link.datagram().map(|ns| [ns]))?;
        values.add(name::DATAGRAM, "ns", datagram);
        let mut transfer = |offloads| {
            link.set(offloads)?;
            link.transfers(slice.clock())
        };
        let (whole, merged, single) =
            (transfer(Offloads::Segmentation)?, transfer(Offloads::Aggregation)?, transfer(Offloads::Off)?);
        if let Some(merged) = merged {
            values.add(name::GRO, "ns", merged.ns);
            values.add(name::MERGED, "", merged.packets / merged.buffers);
        }
        if let (Some(whole), Some(single)) = (whole, single) {
            values.add(name::TSO, "ns", whole.ns);
            values.add(name::NO_OFFLOADS, "ns", single.ns);
            // Both transfers move the same bytes with the same calls. If TCP sent whole segments with TSO,
            // the difference is the cost of the additional packets.
            if whole.buffers < single.buffers / FEWER {
                values.add(name::PACKET, "ns", (single.ns - whole.ns) / (single.buffers - whole.buffers));
            }
        }
        Ok(())
    }
}

/// Measures for about the plan's time.
///
/// # Errors
/// Returns an error if the observer interrupts the measurement, or the system refuses a part of it.
pub fn calibrate(plan: &Plan, observer: &dyn Observer) -> Result<Report, CalibrateError> {
    let work = || {
        pin(plan.places.core)?;
        observer.progress(0.0, "setting up");
        let mut gaps = Vec::new();
        let mut rig = Rig::make(&plan.places, &mut gaps)?;
        let slice = Slice { length: plan.time / (ROUNDS * rig.slices()), observer };
        let (began, mut values) = (Instant::now(), Values::default());
        for round in 0..ROUNDS {
            if began.elapsed().as_secs_f64() > MOST_TIME * plan.time.as_secs_f64() {
                break;
            }
            observer.progress(f64::from(round) / f64::from(ROUNDS), &format!("measuring, {ROUNDS} rounds"));
            rig.round(&slice, &mut values)?;
        }
        let mut report = Report { quantities: values.quantities(), gaps };
        report.note_unusable();
        report.note_packet(rig.link.is_some());
        Ok(report)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .spawn_scoped(scope, work)
            .map_err(CalibrateError::system("start a thread"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_that_other_work_determines_are_not_usable() {
        let mut values = Values::default();
        for round in 0..15 {
            values.add("steady", "ns", 100.0 + f64::from(round));
            values.add("busy", "ns", 10.0_f64.powi(round));
            values.add("noise", "ns", f64::from(round) - 7.0);
        }
        values.add("few", "ns", 1.0);
        let mut report = Report { quantities: values.quantities(), gaps: Vec::new() };
        report.note_unusable();
        let names: Vec<&str> = report.gaps.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["busy", "noise", "few"]);
        assert!(report.gaps[2].1.starts_with("too few rounds for an interval (1)"), "{:?}", report.gaps);
        report.note_packet(false);
        assert_eq!(report.gaps.len(), 3);
        report.note_packet(true);
        assert_eq!(report.gaps[3].0, name::PACKET);
        assert_eq!(report.get("steady").map(|steady| (steady.median, steady.n)), Some((107.0, 15)));
    }
}
