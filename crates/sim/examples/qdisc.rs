//! Adds a qdisc that serves the shortest backlog first, so that flows with little data never wait behind bulk
//! flows, and compares it with `pfifo_fast`.
//!
//! cargo run --release --package evenkeel-sim --example qdisc

use std::collections::{BTreeMap, VecDeque};

use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::parse;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::qdisc::{DEFAULT_LIMIT, Dequeued, Discipline, Qdisc};
use evenkeel_sim::segment::Segment;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::time::{MILLISECOND, SECOND, Time};

/// One queue per flow. The flow with the fewest queued segments is served next.
#[derive(Clone, Debug, Default)]
struct ShortestBacklog {
    flows: BTreeMap<u32, VecDeque<Segment>>,
}

impl Discipline for ShortestBacklog {
    fn enqueue(&mut self, _now: Time, segment: Segment, dropped: &mut Vec<Segment>) {
        if self.len() < DEFAULT_LIMIT as usize {
            self.flows.entry(segment.flow).or_default().push_back(segment);
        } else {
            dropped.push(segment);
        }
    }

    fn dequeue(&mut self, _now: Time, _dropped: &mut Vec<Segment>) -> Dequeued {
        let waiting = self.flows.values_mut().filter(|queue| !queue.is_empty());
        let shortest = waiting.min_by_key(|queue| queue.len());
        shortest.and_then(VecDeque::pop_front).map_or(Dequeued::Empty, Dequeued::Segment)
    }

    fn len(&self) -> usize {
        self.flows.values().map(VecDeque::len).sum()
    }

    fn backlog_bytes(&self) -> u64 {
        self.flows.values().flatten().map(|segment| u64::from(segment.frame_bytes())).sum()
    }

    fn boxed_clone(&self) -> Box<dyn Discipline> {
        Box::new(self.clone())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = "titan-12-flows";
    let (_, text) = bundled().iter().find(|(other, _)| *other == name).ok_or("no such scenario")?;
    let scenario = parse(text, name, variant_tables())?;
    let variant =
        scenario.variants.iter().find(|variant| variant.name == "cvanilla").ok_or("no such variant")?;
    let parameters = Parameters::default();
    for own in [false, true] {
        let settings = Settings::new(&scenario, variant, scenario.link.rate, &parameters);
        let mut simulation =
            Simulation::new(settings, parameters.clone(), 1, Time(SECOND), MILLISECOND, 1000)?;
        for queue in (0..scenario.link.queues).filter(|_| own) {
            simulation.set_qdisc(queue, Qdisc::with(Box::new(ShortestBacklog::default())));
        }
        simulation.start(1, MILLISECOND);
        simulation.start_probe();
        simulation.run(Time(2 * SECOND))?;
        let mut latencies = simulation.take_latencies();
        latencies.sort_by(f64::total_cmp);
        let median = latencies.get(latencies.len() / 2).ok_or("no request of the probe was answered")?;
        println!("{}: median latency {median:.0} µs", if own { "shortest backlog" } else { "pfifo_fast" });
    }
    Ok(())
}
