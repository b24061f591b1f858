//! `prio` (`net/sched/sch_prio.c`): bands served in strict order, each with its own discipline.

use super::{AnyDiscipline, Classifier, Dequeued};
use crate::segment::Segment;
use crate::time::Time;

#[derive(Clone, Debug)]
pub(super) struct Prio {
    classifier: Classifier,
    bands: Vec<Band>,
}

#[derive(Clone, Debug)]
struct Band {
    discipline: AnyDiscipline,
    /// Number of segments in the band. It is stored so that a scan does not call every band.
    length: usize,
}

impl Prio {
    /// Creates a `prio` with these bands. At least one band is required.
    pub(super) fn new(classifier: Classifier, bands: Vec<AnyDiscipline>) -> Self {
        let band = |discipline: AnyDiscipline| Band { length: discipline.len(), discipline };
        Self { classifier, bands: bands.into_iter().map(band).collect() }
    }

    pub(super) fn enqueue(&mut self, now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        let Some(band) = self.classifier.class(&segment, self.bands.len()) else {
            dropped.push(segment);
            return;
        };
        let band = &mut self.bands[band];
        band.discipline.enqueue(now, segment, dropped);
        band.length = band.discipline.len();
    }

    pub(super) fn dequeue(&mut self, now: Time, dropped: &mut Vec<Segment>) -> Dequeued {
        let mut earliest = None;
        for band in self.bands.iter_mut().filter(|band| band.length > 0) {
            let dequeued = band.discipline.dequeue(now, dropped);
            band.length = band.discipline.len();
            match dequeued {
                Dequeued::Segment(segment) => return Dequeued::Segment(segment),
                Dequeued::Wait(time) => {
                    earliest = Some(earliest.map_or(time, |earliest: Time| earliest.min(time)));
                }
                Dequeued::Empty => {}
            }
        }
        earliest.map_or(Dequeued::Empty, Dequeued::Wait)
    }

    pub(super) fn len(&self) -> usize {
        self.bands.iter().map(|band| band.length).sum()
    }

    pub(super) fn backlog_bytes(&self) -> u64 {
        self.bands.iter().map(|band| band.discipline.backlog_bytes()).sum()
    }

    pub(super) fn overlimits(&self, found: &mut Vec<u64>) {
        self.bands.iter().for_each(|band| band.discipline.overlimits(found));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::super::testing::{drain, segment};
    use super::super::{Kind, Qdisc, SfqConfig, TbfConfig};
    use super::*;

    #[test]
    fn the_first_band_goes_first() {
        let mut qdisc = Qdisc::new(&Kind::sfq_prio(SfqConfig::default(), 1000), 7).expect("valid");
        for sequence in 0..2 {
            assert_eq!(qdisc.enqueue(Time::ZERO, Segment { band: 1, ..segment(1, sequence, 1000) }), None);
        }
        assert_eq!(qdisc.enqueue(Time::ZERO, segment(2, 0, 1000)), None);
        assert_eq!(drain(&mut qdisc, Time::ZERO), [(2, 0), (1, 0), (1, 1)]);
    }

    #[test]
    fn of_shaped_bands_the_earlier_one_is_waited_for() {
        let shaped = |rate| Kind::Tbf(TbfConfig::new(rate, 1066, Kind::Pfifo { limit: 10 }));
        for rates in [[8_000_000, 16_000_000], [16_000_000, 8_000_000]] {
            let kind = Kind::Prio { classifier: Classifier::Band, bands: rates.map(shaped).to_vec() };
            let mut qdisc = Qdisc::new(&kind, 0).expect("valid");
            for band in [0, 0, 1, 1] {
                assert_eq!(qdisc.enqueue(Time::ZERO, Segment { band, ..segment(1, 0, 1000) }), None);
            }
            assert_eq!(drain(&mut qdisc, Time::ZERO).len(), 2);
            assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Wait(Time(533_000_000)));
        }
    }

    #[test]
    fn a_shaped_band_lets_the_next_one_pass() {
        let shaped = Kind::Tbf(TbfConfig::new(8_000_000, 1066, Kind::Bfifo { limit: 100_000 }));
        let bands = vec![shaped, Kind::Pfifo { limit: 10 }];
        let mut qdisc = Qdisc::new(&Kind::Prio { classifier: Classifier::Band, bands }, 0).expect("valid");
        for sequence in 0..2 {
            assert_eq!(qdisc.enqueue(Time::ZERO, segment(1, sequence, 1000)), None);
        }
        assert_eq!(qdisc.enqueue(Time::ZERO, Segment { band: 1, ..segment(2, 0, 1000) }), None);
        assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Segment(segment(1, 0, 1000)));
        assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Segment(Segment { band: 1, ..segment(2, 0, 1000) }));
        // 1066 bytes take 1.066 ms at 1 MB/s.
        assert_eq!(qdisc.dequeue(Time::ZERO), Dequeued::Wait(Time(1_066_000_000)));
        assert_eq!(qdisc.len(), 1);
    }
}
