//! Turns a report into a machine profile.

use evenkeel_metrics::LEAST_REPEATS;
use evenkeel_model::machine::{Cost, Figure, MachineProfile, Measured, Operation};

use crate::rounds::{Quantity, Report, name};

/// Acknowledgements per packet: one for two packets (RFC 9293, section 3.8.6.3).
const ACKNOWLEDGEMENTS: f64 = 0.5;
/// Operations whose costs scale with the measured packet. The driver's part (`packet`) is not measured
/// without a NIC. The sender's cost per segment is not measured, because TCP sends segments whole.
const SCALED: [Operation; 5] = [
    Operation::Buffer,
    Operation::Defer,
    Operation::ReadPacket,
    Operation::ReadBuffer,
    Operation::Acknowledgement,
];

/// The cost of a packet that GSO splits off and that GRO does not merge, cycles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packets {
    pub measured: Figure,
    /// The cost of this packet in the base profile, cycles.
    pub base: f64,
}

/// Returns a quantity with its uncertainty, times a factor; `None` with too few repeats or without a usable
/// interval.
fn figure(quantity: Option<&Quantity>, factor: f64) -> Option<Figure> {
    let quantity = quantity.filter(|quantity| quantity.n >= LEAST_REPEATS)?;
    let interval = quantity.usable()?;
    let measured = Measured { low: interval.low, high: interval.high, n: quantity.n as u32 };
    Some(Figure { value: quantity.median, measured: Some(measured) }.times(factor))
}

/// Rounds a figure to five digits for a profile file. A measurement resolves fewer digits.
fn rounded(figure: Figure) -> Figure {
    let round = |value: f64| {
        let digits = value.abs().log10().floor();
        if !digits.is_finite() {
            return value;
        }
        let scale = 10_f64.powi(4 - digits as i32);
        (value * scale).round() / scale
    };
    let measured =
        figure.measured.map(|found| Measured { low: round(found.low), high: round(found.high), ..found });
    Figure { value: round(figure.value), measured }
}

/// Rounds a clock rate to whole MHz. A clock rate varies by more than this.
fn to_mhz(clock: Figure) -> Figure {
    let whole = |hz: f64| (hz / 1e6).round() * 1e6;
    let measured =
        clock.measured.map(|found| Measured { low: whole(found.low), high: whole(found.high), ..found });
    Figure { value: whole(clock.value), measured }
}

/// Returns the total cost of one more received packet in a profile, including its share of an
/// acknowledgement.
fn packet_of(profile: &MachineProfile) -> f64 {
    let sum = |operation| profile.cost(operation).sum();
    let receiver = sum(Operation::Packet)
        + sum(Operation::Buffer)
        + sum(Operation::ReadPacket)
        + sum(Operation::ReadBuffer);
    let acknowledgement = sum(Operation::Packet) + sum(Operation::Acknowledgement);
    receiver + ACKNOWLEDGEMENTS * acknowledgement
}

/// Returns the profile of this host: the measured figures, and the figures of `base` for the rest. Scales the
/// clocks and the remote copy of `base` to the measured clock and copy. `nodes` and `cores_per_node` describe
/// the host. Also returns the cost of a packet over veth, if measured. This cost becomes a part of the
/// profile only if `with_packets` is set, because its measurement has warm caches and no driver.
#[must_use]
pub fn profile(
    report: &Report,
    base: &MachineProfile,
    name: &str,
    (nodes, cores_per_node): (u32, u32),
    with_packets: bool,
) -> (MachineProfile, Option<Packets>) {
    let clock = figure(report.get(name::CLOCK), 1.0);
    let counter = figure(report.get(name::COUNTER), 1.0);
    let hz = clock.map_or(base.turbo_hz.value, |clock| clock.value);
    let cycles = |name: &str| figure(report.get(name), hz / 1e9).map(rounded);
    let remote = report.quantities.iter().filter(|quantity| quantity.name.starts_with(name::REMOTE));
    let farthest = remote.max_by(|first, second| first.median.total_cmp(&second.median));
    let mut profile = MachineProfile {
        name: name.to_owned(),
        description: String::new(),
        based_on: Some(base.name.clone()),
        nodes,
        cores_per_node,
        nic_node: base.nic_node.min(nodes.saturating_sub(1)),
        ..base.clone()
    };
    if let Some(clock) = clock {
        let scale = |figure: Figure| to_mhz(Figure::stated(figure.value * clock.value / base.turbo_hz.value));
        profile.turbo_hz = to_mhz(clock);
        profile.all_cores_hz = scale(base.all_cores_hz);
        profile.base_hz = counter.map_or_else(|| scale(base.base_hz), to_mhz);
    }
    if let Some(cached) = cycles(name::CACHED) {
        profile.copy.cached = cached;
    }
    if let Some(local) = cycles(name::LOCAL) {
        // Without another node, use the ratio of remote to local copies in the base profile.
        profile.copy.remote =
            rounded(Figure::stated(base.copy.remote.value / base.copy.local.value * local.value));
        profile.copy.local = local;
    }
    if let Some(remote) = figure(farthest, hz / 1e9).map(rounded) {
        profile.copy.remote = remote;
    }
    let mut set = |operation: Operation, total: Figure| {
        let cost = &mut profile.cycles[operation as usize];
        *cost = Cost { total: Some(total), ..*cost };
    };
    // A wakeup on the same processor costs less, so use it only if the process may use no other processor.
    let wake = if report.get(name::WAKE).is_some() { name::WAKE } else { name::WAKE_HERE };
    if let Some(wake) = cycles(wake) {
        set(Operation::Wake, wake);
    }
    if let Some(switch) = cycles(name::SWITCH) {
        set(Operation::Switch, switch);
    }
    let packets = figure(report.get(name::PACKET), hz / 1e9)
        .map(|measured| Packets { measured: rounded(measured), base: packet_of(base) });
    if let Some(Packets { measured, base: sum }) = packets.filter(|_| with_packets) {
        for operation in SCALED {
            set(operation, rounded(measured.times(base.cost(operation).sum() / sum)));
        }
    }
    (profile, packets)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_metrics::Interval;

    use super::*;

    fn quantity(name: &str, median: f64, spread: f64) -> Quantity {
        let (low, high) = (median * (1.0 - spread), median * (1.0 + spread));
        let name = name.to_owned();
        Quantity {
            name,
            unit: "ns",
            median,
            interval: Some(Interval { low, high }),
            min: low,
            max: high,
            n: 15,
        }
    }

    #[test]
    fn a_wakeup_that_is_not_usable_keeps_the_figure_of_the_base() {
        let mut report = Report {
            quantities: vec![quantity(name::CLOCK, 3e9, 0.01), quantity(name::WAKE_HERE, 500.0, 0.1)],
            gaps: Vec::new(),
        };
        let base = MachineProfile::kit_2014();
        let wake =
            |report: &Report| profile(report, &base, "mine", (1, 4), false).0.cost(Operation::Wake).sum();
        assert_eq!(wake(&report), 1500.0);
        report.quantities.push(quantity(name::WAKE, 1000.0, 0.1));
        assert_eq!(wake(&report), 3000.0);
        report.quantities.pop();
        report.quantities.push(quantity(name::WAKE, 1000.0, 0.9));
        assert_eq!(wake(&report), base.cost(Operation::Wake).sum());
    }

    #[test]
    fn nanoseconds_become_cycles_of_the_measured_clock() {
        let report = Report {
            quantities: vec![
                quantity(name::CLOCK, 3e9, 0.01),
                quantity(name::COUNTER, 2.5e9, 0.0),
                quantity(name::LOCAL, 0.2, 0.1),
                quantity("byte copied from the memory of node 1", 0.3, 0.1),
                quantity("byte copied from the memory of node 2", 0.4, 0.1),
                quantity(name::WAKE_HERE, 500.0, 0.1),
                quantity(name::PACKET, 1000.0, 0.2),
            ],
            gaps: Vec::new(),
        };
        let base = MachineProfile::kit_2014();
        let (found, packets) = profile(&report, &base, "mine", (1, 4), true);
        assert_eq!(
            (found.turbo_hz.value, found.all_cores_hz.value, found.base_hz.value),
            (3e9, 2.438e9, 2.5e9)
        );
        assert!((found.copy.local.value - 0.6).abs() < 1e-9 && (found.copy.remote.value - 1.2).abs() < 1e-9);
        assert_eq!((found.copy.cached, found.nic_node), (base.copy.cached, 0));
        assert_eq!(
            (found.cost(Operation::Wake).sum(), found.cost(Operation::Switch)),
            (1500.0, base.cost(Operation::Switch))
        );
        // Without a NIC, the costs of the driver and the interrupt are not measured.
        assert_eq!(found.cost(Operation::Packet), base.cost(Operation::Packet));
        assert_eq!(found.cost(Operation::Interrupt), base.cost(Operation::Interrupt));
        let Packets { measured, base: sum } = packets.unwrap();
        assert_eq!(measured.value, 3000.0);
        assert_eq!(found.cost(Operation::Segment), base.cost(Operation::Segment));
        let ratio = found.cost(Operation::Buffer).sum() / base.cost(Operation::Buffer).sum();
        assert!((ratio - 3000.0 / sum).abs() < 1e-3, "{ratio}");
        let total = found.cost(Operation::Buffer).total.unwrap();
        assert!((total.measured.unwrap().high / total.value - 1.2).abs() < 1e-3);
        // The parser returns the same profile from the file.
        let text = found.to_string();
        assert!(text.contains("base-clock = { value = \"2.5GHz\", low = \"2.5GHz\""), "{text}");
        assert!(
            text.contains("all-cores-clock = \"2.438GHz\" # not measured: in proportion to kit-2014\n"),
            "{text}"
        );
        assert!(text.contains("miss = 290 # not measured: kit-2014\n"), "{text}");
        assert_eq!(MachineProfile::parse(&text, "mine.toml"), Ok(found));
        let (without, packets) = profile(&report, &base, "mine", (1, 4), false);
        assert_eq!(without.cost(Operation::Buffer), base.cost(Operation::Buffer));
        assert!(packets.is_some());
    }

    #[test]
    fn too_few_rounds_and_wide_intervals_leave_the_base() {
        let few = Quantity { interval: None, n: 4, ..quantity(name::LOCAL, 0.2, 0.1) };
        let negative = quantity(name::SWITCH, -5.0, 0.1);
        let busy = quantity(name::WAKE, 5.0, 0.6);
        let report = Report { quantities: vec![few, negative, busy], gaps: Vec::new() };
        let base = MachineProfile::xeon_6128();
        let (found, packets) = profile(&report, &base, "mine", (4, 6), true);
        assert_eq!((found.measured(), packets), (Vec::new(), None));
        assert_eq!((found.copy, found.cycles, found.turbo_hz), (base.copy, base.cycles, base.turbo_hz));
    }

    #[test]
    fn figures_have_five_digits() {
        let of = |value| rounded(Figure::stated(value)).value;
        assert_eq!((of(0.123_456_78), of(123_456.78), of(0.0)), (0.12346, 123_460.0, 0.0));
    }
}
