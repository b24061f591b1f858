#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

/// Creates the cores of `nodes` sockets with `cores` cores each. Processors are numbered as Linux does: the
/// first threads of all cores come first.
fn host(nodes: u32, cores: u32, threads: u32) -> Vec<Core> {
    let all = nodes * cores;
    let processors = |core: u32| (0..threads).map(|thread| core + thread * all).collect();
    let core = |core: u32| Core { node: core / cores, package: core / cores, processors: processors(core) };
    (0..all).map(core).collect()
}

fn nic(name: &str, node: u32, rate_bps: u64, queues_most: u32) -> Nic {
    let need = interrupt_cores_for(rate_bps, 9000);
    Nic { name: name.to_owned(), node: Some(node), need, queues_most }
}

fn application(nic: usize, threads: u32) -> Application {
    Application { name: "iperf3".to_owned(), nic, threads, need: 1.0, pinned: Vec::new() }
}

fn cost_of(problem: &Problem, places: &[u32]) -> f64 {
    let units = problem.units();
    let slots: Vec<Slot> = places.iter().map(|processor| problem.slot_of(*processor).unwrap()).collect();
    assert_eq!(units.len(), slots.len());
    cost::of(problem, &units, &slots)
}

/// Returns the least cost of all placements, by trying each.
fn cheapest(problem: &Problem) -> f64 {
    let units = problem.units();
    let threads =
        |core: usize| (0..problem.cores[core].processors.len()).map(move |thread| Slot { core, thread });
    let slots: Vec<Slot> = (0..problem.cores.len()).flat_map(threads).collect();
    let mut least = f64::INFINITY;
    for mut number in 0..slots.len().pow(units.len() as u32) {
        let mut chosen = Vec::new();
        for _ in &units {
            chosen.push(slots[number % slots.len()]);
            number /= slots.len();
        }
        let stays = |(unit, slot): (&Unit, &Slot)| unit.fixed.is_none_or(|fixed| fixed == *slot);
        if units.iter().zip(&chosen).all(stays) {
            least = least.min(cost::of(problem, &units, &chosen));
        }
    }
    least
}

/// Checks Figures 8 to 11 of *TCP at 100 Gbit/s*: one queue on node 1. The host has two sockets with two
/// cores of two processors each.
#[test]
fn the_papers_cases_and_distributions_are_in_its_order() {
    let nics = vec![nic("ens2f0", 1, 40_000_000_000, 1)];
    let problem = Problem { cores: host(2, 2, 2), nics, applications: vec![application(0, 1)] };
    // Each pair is the processor of the interrupts and the processor of the application. Processors 0 and 1
    // are on node 0; 2, 3 and their siblings 6, 7 on node 1.
    let [one, two, three, four] = [[2, 3], [0, 2], [2, 0], [0, 1]].map(|places| cost_of(&problem, &places));
    assert!(one < three && three < four && four < two, "{one} {three} {four} {two}");
    assert_eq!(one, 0.0);
    let [apart, twins, same] = [[2, 3], [2, 6], [2, 2]].map(|places| cost_of(&problem, &places));
    assert!(apart < twins && twins < same, "{apart} {twins} {same}");
    assert_eq!(place(&problem).cost, 0.0);
}

/// Three flows at 100 Gbit/s as in the paper: interrupts and applications on the NIC's node, on separate
/// cores.
#[test]
fn the_papers_host_is_placed_as_its_best_distribution() {
    let nics = vec![nic("ens2f0", 1, 100_000_000_000, 40)];
    let problem = Problem { cores: host(2, 20, 2), nics, applications: vec![application(0, 3)] };
    let placement = place(&problem);
    assert_eq!(placement.cost, 0.0);
    let (interrupts, applications) = (&placement.interrupts[0], &placement.applications[0]);
    let core = |processor: &u32| processor % 40;
    let all: BTreeSet<u32> = interrupts.iter().chain(applications).map(core).collect();
    assert_eq!(all.len(), interrupts.len() + applications.len(), "apart and off the twins: {placement:?}");
    assert!(all.iter().all(|core| (20..40).contains(core)), "{placement:?}");
    // Three queues suffice at 43 Gbit/s each. More queues keep flows apart, and half of the node's
    // cores stay without interrupts.
    assert_eq!(placement.queues(0), 10);
}

#[test]
fn nics_share_the_cores_of_a_node_by_need() {
    let nics = vec![
        nic("fast", 0, 100_000_000_000, 64),
        nic("slow", 0, 10_000_000_000, 64),
        nic("far", 1, 1_000_000_000, 4),
    ];
    let problem = Problem { cores: host(2, 16, 1), nics, applications: Vec::new() };
    let placement = place(&problem);
    assert_eq!(placement.cost, 0.0);
    assert!(placement.queues(0) > placement.queues(1), "{placement:?}");
    assert_eq!(placement.queues(0) + placement.queues(1), 8, "half of the node: {placement:?}");
    assert_eq!(placement.queues(2), 4, "no more than it can have");
    assert!(placement.interrupts[2].iter().all(|processor| *processor >= 16));
    let mut seen: Vec<u32> = placement.interrupts.concat();
    seen.sort_unstable();
    let count = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), count, "queues share no core while cores are free: {placement:?}");
}

#[test]
fn what_an_administrator_pinned_stays_and_is_kept_clear_of() {
    let pinned = Application { pinned: vec![2, 3], ..application(0, 2) };
    let nics = vec![nic("eth0", 0, 80_000_000_000, 2)];
    let problem = Problem { cores: host(1, 4, 2), nics, applications: vec![pinned] };
    let placement = place(&problem);
    assert_eq!(placement.applications[0], [2, 3]);
    assert_eq!(placement.interrupts[0], [0, 1]);
}

/// Units that do not fit on the NIC's node are placed on another node of its package.
#[test]
fn nodes_of_a_package_are_near() {
    let mut cores = host(4, 2, 1);
    for core in &mut cores {
        core.package = core.node / 2;
    }
    let problem = Problem { cores, nics: vec![nic("eth0", 1, 160_000_000_000, 4)], applications: Vec::new() };
    let mut places = place(&problem).interrupts.concat();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2, 3]);
}

/// If the NIC's node has no usable cores (all isolated, or memory only), interrupts and application stay on
/// one other node.
#[test]
fn a_nic_whose_node_has_no_cores_keeps_both_on_one_node() {
    let nics = vec![nic("eth0", 7, 40_000_000_000, 1)];
    let problem = Problem { cores: host(2, 2, 1), nics, applications: vec![application(0, 1)] };
    let placement = place(&problem);
    assert!((placement.cost - cheapest(&problem)).abs() < 1e-9);
    assert_ne!(placement.interrupts[0], placement.applications[0]);
}

#[test]
fn nothing_is_placed_where_nothing_is() {
    assert_eq!(place(&Problem::default()), Placement::default());
    let problem = Problem { nics: vec![nic("eth0", 0, 1, 1)], ..Problem::default() };
    assert_eq!(place(&problem).interrupts, [Vec::<u32>::new()]);
    let problem =
        Problem { cores: host(1, 1, 1), applications: vec![application(3, 1)], ..Problem::default() };
    assert_eq!(place(&problem).applications, [Vec::<u32>::new()]);
}

/// A host with 128 cores, eight NICs of 100 Gbit/s and eight applications is placed fast enough for
/// interactive use.
#[test]
fn a_large_host_is_placed_at_once() {
    let nics = (0..8).map(|number| nic(&format!("eth{number}"), number / 4, 100_000_000_000, 64)).collect();
    let applications = (0..8).map(|nic| application(nic, 6)).collect();
    let problem = Problem { cores: host(2, 64, 2), nics, applications };
    let begun = std::time::Instant::now();
    let placement = place(&problem);
    assert_eq!(placement.cost, 0.0, "{placement:?}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
}

fn small_problem() -> impl Strategy<Value = Problem> {
    let nic = (0_u32..3, 1_u64..120, 1_u32..3);
    let application = (0_usize..2, 1_u32..3, 1_u32..=10, prop::option::weighted(0.2, 0_u32..4));
    (1_u32..3, 1_u32..4, 1_u32..3, prop::collection::vec(nic, 1..3), prop::collection::vec(application, 0..3))
        .prop_map(|(nodes, cores, threads, nics, applications)| Problem {
            cores: host(nodes, cores, threads),
            nics: nics
                .into_iter()
                .map(|(node, gigabits, queues_most)| Nic {
                    name: String::new(),
                    node: (node < nodes).then_some(node),
                    need: interrupt_cores_for(gigabits * 1_000_000_000, 9000),
                    queues_most,
                })
                .collect(),
            applications: applications
                .into_iter()
                .map(|(nic, threads, tenths, pinned)| Application {
                    name: String::new(),
                    nic,
                    threads,
                    need: f64::from(tenths) / 10.0,
                    pinned: pinned.into_iter().collect(),
                })
                .collect(),
        })
        .prop_filter("small enough to try everything", |problem| {
            let slots: usize = problem.cores.iter().map(|core| core.processors.len()).sum();
            (slots as f64).powi(problem.units().len() as i32) < 3e4
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_cheaper(problem in small_problem()) {
        let placement = place(&problem);
        let least = cheapest(&problem);
        prop_assert!((placement.cost - least).abs() < 1e-6, "{} and {least}: {placement:?}", placement.cost);
    }

    /// Each unit is on an existing processor. A unit that is pinned to an existing processor is on this
    /// processor.
    #[test]
    fn everything_has_a_place(problem in small_problem()) {
        let placement = place(&problem);
        let there: BTreeSet<u32> = problem.cores.iter().flat_map(|core| core.processors.clone()).collect();
        for (nic, places) in problem.nics.iter().zip(&placement.interrupts) {
            prop_assert!(!places.is_empty() && places.len() <= nic.queues_most as usize);
            prop_assert!(places.iter().all(|processor| there.contains(processor)));
        }
        for (application, places) in problem.applications.iter().zip(&placement.applications) {
            if application.nic < problem.nics.len() {
                prop_assert_eq!(places.len(), application.threads as usize);
                let pinned = application.pinned.iter().find(|processor| there.contains(processor));
                prop_assert!(pinned.is_none_or(|pinned| places.iter().all(|place| place == pinned)));
            }
        }
    }
}

/// Large hosts use the search alone. This test counts its misses on hosts where every placement can be tried.
#[test]
fn the_search_alone_rarely_misses() {
    const PROBLEMS: usize = 3000;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut missed, mut worst) = (0, 1.0_f64);
    for _ in 0..PROBLEMS {
        let problem = small_problem().new_tree(&mut runner).unwrap().current();
        let (cost, _) = search::found_by_search(&problem, &problem.units());
        let least = place(&problem).cost;
        if cost > least + 1e-6 {
            missed += 1;
            worst = worst.max(cost / least);
        }
    }
    println!("missed {missed} of {PROBLEMS}, by {worst:.2} at worst");
    assert!(missed <= PROBLEMS / 1000, "missed {missed} of {PROBLEMS}, by {worst:.2} at worst");
}
