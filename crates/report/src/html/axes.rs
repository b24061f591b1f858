//! The scale of an axis, its ticks and their labels.

use crate::format::short;

/// An axis of times is logarithmic if the largest value exceeds the smallest by more than this factor.
const WIDE: f64 = 50.0;
/// Limits of the values on a logarithmic axis.
const LEAST: f64 = 1e-12;
const MOST: f64 = 1e15;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    Linear { low: f64, high: f64 },
    Logarithmic { low: f64, high: f64 },
}

impl Scale {
    /// Returns the scale for values with a unit: linear and including 0, or logarithmic for times that span
    /// more than a factor of [`WIDE`].
    pub(super) fn of(values: impl IntoIterator<Item = f64>, unit: &str) -> Self {
        let (low, high) = ends(values);
        let is_time = ["s", "ms", "µs"].contains(&unit);
        if is_time && low > 0.0 && high / low > WIDE {
            Self::logarithmic(low, high)
        } else {
            Self::from_zero(low, high)
        }
    }

    pub(super) fn from_zero(low: f64, high: f64) -> Self {
        let high = if high > 0.0 { high * 1.04 } else { 0.0 };
        let low = low.min(0.0) * 1.04;
        Self::Linear { low, high: if high > low { high } else { low + 1.0 } }
    }

    pub(super) fn logarithmic(low: f64, high: f64) -> Self {
        // A record can contain any value. Clamp the values to the limits of an axis.
        let (low, high) = (low.clamp(LEAST, MOST), high.clamp(LEAST, MOST));
        let (low, high) = if high > low { (low, high) } else { (low / 2.0, high * 2.0) };
        // Leave space for a marker at each end.
        let room = (high / low).powf(0.04);
        Self::Logarithmic { low: low / room, high: high * room }
    }

    /// Returns the position of a value on the axis, from 0 to 1.
    pub(super) fn place(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Logarithmic { low, high } => {
                (value.max(f64::MIN_POSITIVE).ln() - low.ln()) / (high.ln() - low.ln())
            }
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    pub(super) fn is_logarithmic(self) -> bool {
        matches!(self, Self::Logarithmic { .. })
    }

    /// Returns the tick values, about `most` of them.
    pub(super) fn ticks(self, most: usize) -> Vec<f64> {
        match self {
            Self::Linear { low, high } => linear(low, high, most),
            Self::Logarithmic { low, high } => logarithmic(low, high, most),
        }
    }
}

/// Returns the smallest and the largest finite value, or 0 and 0 if no value is finite.
pub(super) fn ends(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|value| value.is_finite());
    let (low, high) = finite
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low <= high { (low, high) } else { (0.0, 0.0) }
}

fn linear(low: f64, high: f64, most: usize) -> Vec<f64> {
    let rough = (high - low) / most.max(1) as f64;
    if !(rough > 0.0 && rough.is_finite()) {
        return vec![low];
    }
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil();
    (0..=most * 2).map(|index| (first + index as f64) * step).take_while(|tick| *tick <= high).collect()
}

fn logarithmic(low: f64, high: f64, most: usize) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let ticks = |steps: &[f64], every: usize| -> Vec<f64> {
        let of_decade = |decade: i32| steps.iter().map(move |step| step * 10_f64.powi(decade));
        let all = decades.clone().step_by(every).flat_map(of_decade);
        all.filter(|tick| (low..=high).contains(tick)).collect()
    };
    let dense: [&[f64]; 3] = [&[1.0, 2.0, 3.0, 5.0, 7.0], &[1.0, 2.0, 5.0], &[1.0, 3.0]];
    let found = dense.iter().map(|steps| ticks(steps, 1)).find(|ticks| ticks.len() <= most);
    found.unwrap_or_else(|| {
        let number = decades.clone().count();
        ticks(&[1.0], number.div_ceil(most.max(1)).max(1))
    })
}

/// Returns the label of a tick: 0.05, 20, 15k, 20M.
pub(super) fn label(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => format!("{}G", short(value / 1e9)),
        size if size >= 1e6 => format!("{}M", short(value / 1e6)),
        size if size >= 1e4 => format!("{}k", short(value / 1e3)),
        size if size >= 1e-3 || size == 0.0 => short(value),
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_intermediate() {
        assert_eq!(Scale::Linear { low: 0.0, high: 1.62 }.ticks(5), [0.0, 0.5, 1.0, 1.5]);
        assert_eq!(Scale::Logarithmic { low: 0.9, high: 60.0 }.ticks(8), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(Scale::Logarithmic { low: 1e-3, high: 1e6 }.ticks(5).len(), 5);
        for scale in [
            Scale::of([0.0], ""),
            Scale::of([], ""),
            Scale::of([f64::NAN, -3.0], "s"),
            Scale::of([5e-324, 1e308], "s"),
        ] {
            let ticks = scale.ticks(5);
            assert!(!ticks.is_empty() && ticks.len() <= 11, "{scale:?} {ticks:?}");
            assert!(
                ticks.iter().all(|tick| (0.0..=1.0).contains(&scale.place(*tick))),
                "{scale:?} {ticks:?}"
            );
        }
    }

    #[test]
    fn a_wide_range_of_times_is_logarithmic_unless_it_has_a_zero() {
        assert!(!Scale::of([1.0, 100.0], "Gbit/s").is_logarithmic());
        assert!(Scale::of([1.0, 100.0], "ms").is_logarithmic());
        assert!(!Scale::of([0.0, 100.0], "ms").is_logarithmic());
        assert!((Scale::of([1.0, 100.0], "ms").place(10.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([0.0, 0.05, 20.0, 15_946.0, 2e9].map(label), ["0", "0.05", "20", "15.9k", "2G"]);
    }
}
