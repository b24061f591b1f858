//! Tests of user-defined congestion control, qdisc and NIC scheduler. Each duplicates a built-in model,
//! so the simulation must give the same result.

use std::collections::VecDeque;

use evenkeel_sim::host::Simulation;
use evenkeel_sim::nic::{Scheduler, Waiting};
use evenkeel_sim::qdisc::{Dequeued, Discipline, Kind, Qdisc};
use evenkeel_sim::segment::Segment;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::tcp::{CongestionAlgorithm, CongestionControl, Profile};
use evenkeel_sim::time::{MILLISECOND, Time};
use proptest::prelude::*;

use crate::settings::{STARTS_WITHIN, profiles, scenarios, simulation};

#[derive(Clone, Debug)]
struct Reno;

impl CongestionAlgorithm for Reno {
    fn packets_per_growth(&mut self, _now: Time, window: u32, _acknowledged: u32) -> u32 {
        window
    }

    fn threshold_after_loss(&mut self, window: u32) -> u32 {
        (window / 2).max(2)
    }

    fn boxed_clone(&self) -> Box<dyn CongestionAlgorithm> {
        Box::new(self.clone())
    }
}

#[derive(Clone, Debug)]
struct Fifo(VecDeque<Segment>, usize);

impl Discipline for Fifo {
    fn enqueue(&mut self, _now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        if self.0.len() < self.1 {
            self.0.push_back(segment);
        } else {
            dropped.push(segment);
        }
    }

    fn dequeue(&mut self, _now: Time, _dropped: &mut Vec<Segment>) -> Dequeued {
        self.0.pop_front().map_or(Dequeued::Empty, Dequeued::Segment)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn backlog_bytes(&self) -> u64 {
        self.0.iter().map(|segment| u64::from(segment.frame_bytes())).sum()
    }

    fn boxed_clone(&self) -> Box<dyn Discipline> {
        Box::new(self.clone())
    }
}

/// Serves the ring that has waited longest, which is the first ring in the list.
#[derive(Clone, Debug)]
struct RoundRobin;

impl Scheduler for RoundRobin {
    fn choose(&mut self, _waiting: &[Waiting]) -> usize {
        0
    }

    fn boxed_clone(&self) -> Box<dyn Scheduler> {
        Box::new(self.clone())
    }
}

/// Limit of every queue in segments. The limit is short, so that the test covers drops.
const LIMIT: u32 = 8;

fn outcome(settings: &Settings, profile: Profile, seed: u64, own: bool) -> String {
    let settings = Settings {
        congestion: if own { CongestionControl::Other(|| Box::new(Reno)) } else { CongestionControl::Reno },
        queue_weights: false,
        ..settings.clone()
    };
    let mut simulated: Simulation = simulation(&settings, profile, seed);
    for queue in 0..settings.queues {
        simulated.set_qdisc(
            queue,
            if own {
                Qdisc::with(Box::new(Fifo(VecDeque::new(), LIMIT as usize)))
            } else {
                Qdisc::new(&Kind::Pfifo { limit: LIMIT }, 0).unwrap()
            },
        );
    }
    if own {
        simulated.set_nic_scheduler(Box::new(RoundRobin));
    }
    simulated.start(seed, STARTS_WITHIN);
    simulated.run(Time(20 * MILLISECOND)).unwrap();
    format!("{:?} {:?}", simulated.accounts(), simulated.observation())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn ones_own_does_the_same(settings in scenarios(), profile in profiles(), seed in any::<u64>()) {
        prop_assume!(!settings.nic.is_soft());
        prop_assert_eq!(outcome(&settings, profile, seed, true), outcome(&settings, profile, seed, false));
    }
}
