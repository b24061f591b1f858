//! Priorities of data-centre bridging: each priority has its own queues, and its flows use only these
//! queues.

use evenkeel_model::scenario::ClientGroup;
use evenkeel_model::units::ByteSize;
use evenkeel_sim::host::Simulation;
use evenkeel_sim::parameters::Parameters;
use evenkeel_sim::settings::Settings;
use evenkeel_sim::time::{MICROSECOND, MILLISECOND, Time};
use evenkeel_transmit::{Policy, Pool};
use proptest::prelude::*;

use crate::settings::{GIGABIT, STARTS_WITHIN, base};

fn pool(first: u32, count: u32) -> Pool {
    Pool { first, count }
}

#[test]
fn pools_are_those_of_priority_and_processor() {
    let all = Settings { queues: 8, ..base() };
    assert_eq!(all.pool(0, 3), pool(0, 8));
    let two = Settings { priorities: vec![2, 6], ..all.clone() };
    assert_eq!((two.pool(0, 5), two.pool(1, 5)), (pool(0, 2), pool(2, 6)));
    let steered = Settings { xps_pool: Some(2), ..two };
    assert_eq!((steered.pool(0, 0), steered.pool(0, 1)), (pool(0, 2), pool(0, 2)));
    let pools: Vec<Pool> = (0..4).map(|processor| steered.pool(1, processor)).collect();
    assert_eq!(pools, [pool(2, 2), pool(4, 2), pool(6, 2), pool(2, 2)]);
}

#[test]
fn flows_have_the_priority_of_their_group() {
    let group = |count, priority| ClientGroup { count, sizes: Vec::new(), timed: true, priority };
    let bulk = Settings { flows: 3, priority: 1, priorities: vec![2, 2], ..base() };
    assert_eq!(bulk.flow_priorities(), [1, 1, 1]);
    let clients = Settings { clients: vec![group(2, 1), group(1, 0)], ..bulk };
    assert_eq!(clients.flow_priorities(), [1, 1, 0]);
}

fn refusal(settings: Settings) -> String {
    match Simulation::new(settings, Parameters::default(), 1, Time::ZERO, MILLISECOND, 1) {
        Ok(_) => "none".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn priorities_that_do_not_fit_are_refused() {
    let with = |priorities: &[u32]| Settings { priorities: priorities.to_vec(), ..base() };
    assert_eq!(refusal(with(&[1, 3])), "none");
    assert_eq!(
        refusal(with(&[1, 2])),
        "the sum of the queues of all priorities must be the number of queues, not 3"
    );
    assert_eq!(refusal(with(&[0, 4])), "the number of a priority's queues must be at least 1, not 0");
    let unknown = Settings { priority: 2, ..with(&[1, 3]) };
    assert_eq!(refusal(unknown), "a priority must be an existing one, not 2");
    let unknown = Settings { probe_priority: 1, ..base() };
    assert_eq!(refusal(unknown), "a priority must be an existing one, not 1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks with each queue policy that a flow uses only the queues of its priority. The simulation also
    /// asserts this for every segment.
    #[test]
    fn a_flow_never_leaves_its_pool(
        own in prop::collection::vec(1_u32..4, 1..4),
        dqa in any::<bool>(),
        one_each in any::<bool>(),
        fetching in any::<bool>(),
        flows in 1_u32..12,
        seed in any::<u64>(),
    ) {
        let priorities = own.len() as u32;
        let group = |priority| ClientGroup {
            count: flows,
            sizes: vec![ByteSize::from_kib(3), ByteSize::from_kib(40)],
            timed: true,
            priority,
        };
        let clients: Vec<ClientGroup> = if fetching { (0..priorities).map(group).collect() } else { vec![] };
        let settings = Settings {
            rate: 10 * GIGABIT,
            queues: own.iter().sum(),
            policy: if dqa { Policy::Dqa } else { Policy::Hash },
            xps_pool: one_each.then_some(1),
            flows: if fetching { flows * priorities } else { flows },
            priority: priorities - 1,
            probe_bytes: Some(64),
            clients,
            priorities: own.clone(),
            ..base()
        };
        let first = |priority: u32| own[..priority as usize].iter().sum::<u32>();
        let mut simulation =
            Simulation::new(settings.clone(), Parameters::default(), seed, Time::ZERO, MILLISECOND, 5).unwrap();
        if fetching {
            simulation.start_fetches(seed, STARTS_WITHIN);
        } else {
            simulation.start(seed, STARTS_WITHIN);
        }
        simulation.start_probe();
        let mut sent = 0;
        for step in 1..=50 {
            simulation.run(Time(step * 100 * MICROSECOND)).unwrap();
            for (account, priority) in simulation.accounts().iter().zip(settings.flow_priorities()) {
                let queues = first(priority)..first(priority) + own[priority as usize];
                prop_assert!(account.sent == 0 || queues.contains(&account.queue), "{account:?} {queues:?}");
                sent += account.sent;
            }
            // The probe has the first priority. The bulk flows have the last priority.
            if !fetching {
                let beside: u32 = (own[0]..first(priorities - 1)).map(|queue| simulation.queue_weight(queue)).sum();
                prop_assert_eq!(beside, 0);
            }
        }
        prop_assert!(sent > 0);
    }
}
