//! The figures of past samples that sparklines show.

use crate::sample::Sample;
use crate::view::figures::{bits_per_second, per_second};

/// The figures of one sample that sparklines show, in few bytes. NaN is an unknown figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    interfaces: Vec<Trend>,
    /// Lost packets per second, at all places.
    lost: f32,
}

#[derive(Clone, Debug, PartialEq)]
struct Trend {
    name: Box<str>,
    /// Sent bit/s.
    sent: f32,
    /// Received bit/s.
    received: f32,
    nfm_1s: f32,
    nfm_100ms: f32,
    jain_1s: f32,
    /// Processor time of the BPF meter per second, seconds.
    bpf: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    Sent,
    Received,
    Nfm1s,
    Nfm100ms,
    Jain1s,
    Bpf,
    Lost,
}

impl Point {
    #[must_use]
    pub fn of(sample: &Sample) -> Self {
        let seconds = sample.seconds;
        let short = |figure: Option<f64>| figure.map_or(f32::NAN, |figure| figure as f32);
        let interfaces = sample.interfaces.iter().map(|interface| Trend {
            name: interface.name.as_str().into(),
            sent: short(bits_per_second(interface.sent_bytes, seconds)),
            received: short(bits_per_second(interface.received_bytes, seconds)),
            nfm_1s: short(interface.nfm_1s),
            nfm_100ms: short(interface.nfm_100ms),
            jain_1s: short(interface.jain_1s),
            bpf: short(interface.bpf_ns.and_then(|time| per_second(time, seconds)).map(|ns| ns / 1e9)),
        });
        let lost = sample.losses.iter().map(|loss| per_second(loss.packets, seconds));
        Self {
            interfaces: interfaces.collect(),
            lost: if per_second(Default::default(), seconds).is_some() {
                lost.flatten().sum::<f64>() as f32
            } else {
                f32::NAN
            },
        }
    }

    /// Returns a figure of an interface, or the host's lost packets per second; `None` if the figure is
    /// unknown.
    #[must_use]
    pub fn figure(&self, interface: &str, figure: Figure) -> Option<f64> {
        let trend = || self.interfaces.iter().find(|trend| &*trend.name == interface);
        let value = match figure {
            Figure::Lost => self.lost,
            Figure::Sent => trend()?.sent,
            Figure::Received => trend()?.received,
            Figure::Nfm1s => trend()?.nfm_1s,
            Figure::Nfm100ms => trend()?.nfm_100ms,
            Figure::Jain1s => trend()?.jain_1s,
            Figure::Bpf => trend()?.bpf,
        };
        value.is_finite().then(|| f64::from(value))
    }
}

/// Minimum number of last points that a live view keeps: more than the characters of the widest sparkline.
const MOST: usize = 512;

/// The last points of a live view, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    points: Vec<Point>,
}

impl History {
    pub fn push(&mut self, sample: &Sample) {
        if self.points.len() >= 2 * MOST {
            self.points.drain(..MOST);
        }
        self.points.push(Point::of(sample));
    }

    /// Returns the points without the `newer` last ones.
    #[must_use]
    pub fn points(&self, newer: usize) -> &[Point] {
        &self.points[..self.points.len().saturating_sub(newer)]
    }
}

/// Draws the last values as one line of at most `width` characters, the newest at the right. A blank is
/// an unknown value. The scale ranges from 0 to the larger of `most` and the largest value. Returns the
/// line and the end of the scale.
pub fn sparkline(
    values: impl DoubleEndedIterator<Item = Option<f64>>,
    width: usize,
    most: f64,
) -> (String, f64) {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut values: Vec<Option<f64>> = values.rev().take(width).collect();
    values.reverse();
    let scale = values.iter().flatten().copied().filter(|value| value.is_finite()).fold(most, f64::max);
    let level = |value: Option<f64>| match value {
        Some(value) if value.is_finite() => {
            let share = if scale > 0.0 { value / scale } else { 0.0 };
            // The cast saturates: a negative value is 0.
            LEVELS[((share * 7.0).round() as usize).min(7)]
        }
        _ => ' ',
    };
    (values.into_iter().map(level).collect(), scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Interface, Interval};

    #[test]
    fn sparklines_show_the_newest_values_and_leave_gaps() {
        let values = [Some(9.0), Some(0.0), None, Some(0.5), Some(1.0)];
        assert_eq!(sparkline(values.into_iter(), 4, 0.0), ("▁ ▅█".to_owned(), 1.0));
        assert_eq!(sparkline(values.into_iter(), 10, 0.0).0, "█▁ ▁▂");
        assert_eq!(sparkline([Some(0.0)].into_iter(), 4, 0.0), ("▁".to_owned(), 0.0));
        let odd = [Some(f64::NAN), Some(f64::INFINITY), Some(-1.0), Some(1.0)];
        assert_eq!(sparkline(odd.into_iter(), 4, 1.0).0, "  ▁█");
    }

    #[test]
    fn a_figure_that_is_not_known_is_none() {
        let interface = Interface {
            name: "eth0".to_owned(),
            sent_bytes: Interval { total: 9, delta: 2 },
            jain_1s: Some(f64::NAN),
            nfm_1s: Some(0.5),
            ..Interface::default()
        };
        let mut sample = Sample { seconds: 2.0, interfaces: vec![interface], ..Sample::default() };
        let point = Point::of(&sample);
        assert_eq!(point.figure("eth0", Figure::Sent), Some(8.0));
        assert_eq!(
            (point.figure("eth0", Figure::Nfm1s), point.figure("eth0", Figure::Jain1s)),
            (Some(0.5), None)
        );
        assert_eq!(
            (point.figure("eth1", Figure::Sent), point.figure("eth1", Figure::Lost)),
            (None, Some(0.0))
        );
        sample.seconds = 0.0;
        assert_eq!(Point::of(&sample).figure("eth0", Figure::Sent), None);
        let mut history = History::default();
        (0..2000).for_each(|_| history.push(&sample));
        assert!((MOST..=2 * MOST).contains(&history.points(0).len()));
    }

    #[test]
    fn a_clock_that_steps_back_loses_no_point() {
        let mut history = History::default();
        for at_ms in [9000, 10_000, 1000, 2000] {
            history.push(&Sample { at_ms, seconds: 1.0, ..Sample::default() });
        }
        assert_eq!([0, 1, 3, 9].map(|newer| history.points(newer).len()), [4, 3, 1, 0]);
    }
}
