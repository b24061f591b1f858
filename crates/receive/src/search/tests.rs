//! Tests of the search: its guarantees for every model and any sequence of flows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::flows::generate;
use crate::policy::{PolicyFile, Queues};
use crate::{Filter, FilterMatch, NicModel, TableId, Transport};

const MODELS: [&str; 5] = ["i82599", "sfc9020", "ntuple", "rss-only", "xdp-cpumap"];

fn nic(name: &str, queues: u16) -> ConfiguredNic {
    ConfiguredNic::new(&NicModel::built_in(name).unwrap(), queues).unwrap()
}

fn small_nic(name: &str, sizes: &[(&str, usize)], queues: u16) -> ConfiguredNic {
    let model = NicModel::built_in(name).unwrap();
    let model = sizes.iter().fold(model, |model, (table, size)| model.with_table_size(table, *size).unwrap());
    ConfiguredNic::new(&model, queues).unwrap()
}

fn policy(text: &str, queues: u16) -> Policy {
    PolicyFile::parse(text, "policy.toml").unwrap().bind(&Arc::new(Queues::new(queues))).unwrap()
}

fn search(model: &str, text: &str, queues: u16) -> Search {
    Search::new(nic(model, queues), policy(text, queues)).unwrap()
}

/// Generates flows. Every tenth flow is in the class `high`.
fn flows(count: u32) -> Vec<ObservedFlow> {
    let class = |number: u32| number.is_multiple_of(10).then(|| "high".to_owned());
    generate(0, count).zip(0..).map(|(flow, number)| ObservedFlow { class: class(number), ..flow }).collect()
}

fn loads(search: &Search) -> Vec<usize> {
    (0..search.nic().queues()).map(|queue| search.map().flows_on(QueueId(queue)).len()).collect()
}

fn check(search: &Search) {
    assert!(search.is_consistent(), "the flow map is the one computed from nothing");
    let mut fresh = search.policy().clone();
    let mut owned = BTreeMap::new();
    for (index, tuple, queue) in search.map().flows() {
        assert!(queue.0 < search.nic().queues());
        assert_eq!(search.nic().queue_of(tuple), queue);
        let placed = search.placed[index.index()].as_ref().expect("a flow of the map is placed");
        fresh.remove(&placed.flow, queue);
        if let Some(id) = placed.filter {
            assert_eq!(search.owner(id), Owner::Flow(index));
            assert_eq!(owned.insert(id, index), None, "two flows with one filter");
            assert_eq!(search.nic().filter(id).unwrap().matches, FilterMatch::exact(tuple));
        }
    }
    assert_eq!(fresh.cost(), Cost::ZERO, "without its flows the policy costs nothing");
    for (_, tuple, queue) in search.map().flows() {
        fresh.place(search.flow(search.find(tuple).unwrap()).unwrap(), queue);
    }
    assert_eq!(fresh.cost(), search.cost(), "the cost is the one computed from nothing");
    for (id, table) in (0..).map(TableId).zip(search.nic().model().tables()) {
        assert!(search.nic().used(id) <= table.capacity);
    }
    let stale = search.nic().filters().filter(|(id, _)| search.owner(*id) == Owner::Stale).count();
    assert_eq!(stale, search.stale());
    assert_eq!(search.placed.iter().flatten().count(), search.map().len());
}

#[test]
fn balance_is_within_one_flow_where_filters_suffice() {
    for model in ["i82599", "sfc9020", "ntuple", "xdp-cpumap"] {
        for count in [1, 9, 10, 57, 500] {
            let mut search = search(model, "policy = \"balance\"", 10);
            search.solve(&flows(count)).unwrap();
            check(&search);
            let loads = loads(&search);
            assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{model}: {loads:?}");
            assert_eq!(Some(search.cost()), search.policy().bound());
            assert_eq!(search.unmet(), []);
        }
    }
}

#[test]
fn a_flow_that_lies_well_takes_no_filter() {
    let mut search = search("i82599", "policy = \"balance\"", 10);
    let before = ConfiguredNic::clone(search.nic());
    let flows = flows(500);
    search.solve(&flows).unwrap();
    let surplus: usize = (0..10)
        .map(|queue| flows.iter().filter(|flow| before.queue_of(&flow.tuple) == QueueId(queue)).count())
        .map(|count| count.saturating_sub(50))
        .sum();
    assert_eq!(search.nic().filters().count(), surplus, "just those that lie on queues with more than 50");
}

#[test]
fn five_tuple_filters_come_before_flow_director() {
    let mut search = search("i82599", "policy = \"balance\"", 10);
    // The NIC does not hash UDP ports: all flows of a client are on one queue.
    let mut flows = flows(400);
    (0..).zip(&mut flows).for_each(|(port, flow)| {
        (flow.tuple.source, flow.tuple.source_port) = (Ipv4Addr::new(10, 0, 0, 1).into(), 1000 + port);
    });
    search.solve(&flows).unwrap();
    check(&search);
    let used = |name: &str| search.nic().used(search.nic().model().table(name).unwrap());
    assert_eq!((used("five-tuple"), used("flow-director")), (128, 360 - 128));
}

#[test]
fn signatures_take_the_place_of_perfect_matches_where_more_fit() {
    let sizes = [("five-tuple", 4), ("flow-director", 8), ("flow-director-signature", 400)];
    let mut search =
        Search::new(small_nic("i82599", &sizes, 10), policy("policy = \"balance\"", 10)).unwrap();
    search.solve(&flows(500)).unwrap();
    check(&search);
    let used = |name: &str| search.nic().used(search.nic().model().table(name).unwrap());
    assert_eq!((used("five-tuple"), used("flow-director")), (4, 0));
    assert!(used("flow-director-signature") > 8);
    let loads = loads(&search);
    assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{loads:?}");
}

#[test]
fn isolation_holds_on_every_model_with_filters() {
    for model in ["i82599", "sfc9020", "ntuple", "xdp-cpumap"] {
        let mut search = search(model, "policy = \"isolation\"", 10);
        search.solve(&flows(500)).unwrap();
        check(&search);
        assert!(search.cost().is_accepted(), "{model}: {}", search.cost());
        for (index, _, queue) in search.map().flows() {
            let is_high = search.policy().class_name(search.flow(index).unwrap().class) == "high";
            assert_eq!(is_high, queue.0 >= 6, "{model}: the last 4 of 10 queues are those of the class");
        }
        let loads = loads(&search);
        assert!(loads[6..].iter().all(|load| (12..=13).contains(load)), "{model}: {loads:?}");
    }
}

#[test]
fn a_nic_without_filters_gives_what_it_can_and_says_what_not() {
    let mut balanced = search("rss-only", "policy = \"balance\"", 10);
    balanced.solve(&flows(500)).unwrap();
    check(&balanced);
    let mut plain = FlowMap::new(nic("rss-only", 10));
    flows(500).iter().for_each(|flow| _ = plain.add_flow(flow.tuple));
    let plain: Vec<usize> = (0..10).map(|queue| plain.flows_on(QueueId(queue)).len()).collect();
    let spread = |loads: &[usize]| loads.iter().max().unwrap() - loads.iter().min().unwrap();
    assert!(spread(&loads(&balanced)) < spread(&plain) / 4, "{:?} of {plain:?}", loads(&balanced));

    let mut isolated = search("rss-only", "policy = \"isolation\"", 10);
    isolated.solve(&flows(500)).unwrap();
    check(&isolated);
    assert!(!isolated.cost().is_accepted());
    let unmet = isolated.unmet();
    assert!(unmet.iter().any(|unmet| unmet.is_violation && unmet.class == "high"), "{unmet:?}");
    assert!(unmet[0].to_string().contains("no filters for single flows"), "{}", unmet[0]);
    let misplaced: usize = unmet.iter().filter(|unmet| unmet.is_violation).map(|unmet| unmet.flows).sum();
    assert_eq!(misplaced as i64, isolated.cost().violations);
}

#[test]
fn few_filters_go_to_the_flows_that_need_them_most() {
    let nic = small_nic("ntuple", &[("rules", 50)], 10);
    let mut search = Search::new(nic, policy("policy = \"isolation\"", 10)).unwrap();
    search.solve(&flows(500)).unwrap();
    check(&search);
    assert!(
        search.cost().is_accepted(),
        "50 filters are enough for the 50 flows of the class: {}",
        search.cost()
    );

    let nic = small_nic("ntuple", &[("rules", 49)], 10);
    let mut search = Search::new(nic, policy("policy = \"isolation\"", 10)).unwrap();
    search.solve(&flows(500)).unwrap();
    check(&search);
    // The indirection entry of the last flow has other flows, too. One violation may therefore remain.
    assert!(search.cost().violations <= 1, "{}", search.cost());
}

#[test]
fn a_flow_of_the_class_takes_the_filter_of_one_that_can_do_without() {
    let nic = small_nic("ntuple", &[("rules", 60)], 10);
    let mut search = Search::new(nic, policy("policy = \"isolation\"", 10)).unwrap();
    search.solve(&flows(500)).unwrap();
    assert!(search.cost().is_accepted());
    for number in 0..9 {
        let class = Some("high".to_owned());
        let late = generate(1000 + number, 1).next().unwrap();
        search.add(&[ObservedFlow { class, ..late }]).unwrap();
        check(&search);
        assert!(search.cost().is_accepted(), "flow {number}: {}", search.cost());
    }
}

#[test]
fn flows_on_forbidden_queues_do_not_examine_all_others() {
    let progress = |rules: usize| {
        let nic = small_nic("ntuple", &[("rules", rules)], 10);
        let mut search = Search::new(nic, policy("policy = \"isolation\"", 10)).unwrap();
        assert_eq!(search.progress().fraction(), 0.0);
        search.solve(&flows(5000)).unwrap();
        check(&search);
        assert!(!search.cost().is_accepted(), "{}", search.cost());
        search.progress()
    };
    for rules in [10, 200] {
        let progress = progress(rules);
        // The search makes at most ten passes for each of two starts.
        assert!(progress.examined() < 20 * 5000, "{rules}: {}", progress.examined());
        assert!((0.3..1.0).contains(&progress.fraction()), "{rules}: {}", progress.fraction());
    }
}

#[test]
fn one_filter_does_for_a_class_with_one_queue() {
    let text = "[[class]]\nname = \"web\"\nqueues = 1\ndestination-port = 443\n";
    for model in ["i82599", "ntuple"] {
        let mut search = search(model, text, 4);
        let web: Vec<ObservedFlow> = flows(200)
            .into_iter()
            .map(|mut flow| {
                flow.tuple.destination_port = 443;
                flow.tuple.transport = Transport::Tcp;
                ObservedFlow { class: None, ..flow }
            })
            .collect();
        search.solve(&web).unwrap();
        check(&search);
        assert!(search.cost().is_accepted(), "{model}: {}", search.cost());
        assert_eq!(loads(&search), [0, 0, 0, 200], "{model}");
        // i82599 needs one filter, which matches only the destination port. ethtool rules must name
        // protocol and IP version, so ntuple needs four filters.
        assert_eq!(search.nic().filters().count(), if model == "i82599" { 1 } else { 4 }, "{model}");
        // The filter also steers a flow that the search has not placed.
        let mut late = web[0].tuple;
        late.source_port = 1;
        assert_eq!(search.nic().queue_of(&late), QueueId(3));
    }
}

#[test]
fn foreign_filters_are_left_alone_and_take_room() {
    let mut nic = small_nic("ntuple", &[("rules", 4)], 4);
    let flows = flows(40);
    let table = nic.model().table("rules").unwrap();
    let foreign = Filter::new(table, 0, FilterMatch::exact(&flows[7].tuple), QueueId(2));
    nic.insert(foreign).unwrap();
    let mut search = Search::new(nic, policy("policy = \"balance\"", 4)).unwrap();
    let indices = search.solve(&flows).unwrap();
    check(&search);
    search.remove(&indices);
    search.compact().unwrap();
    let left: Vec<Filter> = search.nic().filters().map(|(_, filter)| *filter).collect();
    assert_eq!(left, [foreign]);
}

#[test]
fn removed_flows_leave_stale_filters_that_others_take_over() {
    let nic = small_nic("xdp-cpumap", &[("flows", 30)], 4);
    let mut search = Search::new(nic, policy("policy = \"balance\"", 4)).unwrap();
    let indices = search.solve(&flows(100)).unwrap();
    check(&search);
    let filters = search.nic().filters().count();
    search.remove(&indices);
    check(&search);
    assert_eq!((search.stale(), search.nic().filters().count()), (filters, filters), "removal is lazy");
    assert!(search.map().is_empty());
    // Returning flows reuse their filters. Other flows reuse the remaining filters.
    let again = search.solve(&flows(100)).unwrap();
    check(&search);
    assert_eq!(again.len(), 100);
    search.remove(&again[..50]);
    search.compact().unwrap();
    check(&search);
    assert_eq!(search.stale(), 0);
    let loads = loads(&search);
    assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{loads:?}");
}

#[test]
fn without_a_search_since_flows_ended_no_obstacle_is_named() {
    let mut search = search("xdp-cpumap", "policy = \"balance\"", 2);
    let indices = search.solve(&flows(8)).unwrap();
    assert!(search.is_arranged() && search.unmet().is_empty());
    let ended: Vec<FlowIndex> =
        indices.into_iter().filter(|index| search.map().queue(*index) == Some(QueueId(1))).collect();
    search.remove(&ended);
    assert_eq!(loads(&search), [4, 0]);
    assert!(!search.is_arranged());
    let unmet = search.unmet();
    assert!(!unmet.is_empty() && unmet.iter().all(|unmet| unmet.reason.contains("flows ended")), "{unmet:?}");
    search.compact().unwrap();
    assert_eq!(loads(&search), [2, 2]);
    assert!(search.is_arranged() && search.unmet().is_empty());
}

#[test]
fn a_duplicate_is_the_flow_that_is_there() {
    let mut search = search("i82599", "policy = \"balance-rate\"", 4);
    let first = search.solve(&flows(20)).unwrap();
    let mut changed = flows(20)[3].clone();
    changed.rate_bps = Some(7_000_000_000);
    assert_eq!(search.add(&[changed]).unwrap(), [first[3]]);
    check(&search);
    assert_eq!(search.flow(first[3]).unwrap().rate_bps, Some(7_000_000_000));
    assert_eq!(search.map().len(), 20);
}

#[test]
fn greedy_by_rate_is_close_to_the_best_of_all_placements() {
    for (count, queues) in [(4, 2), (8, 2), (8, 3), (7, 4)] {
        let flows = flows(count);
        let policy = policy("policy = \"balance-rate\"", queues);
        let seen: Vec<Flow> = flows.iter().map(|flow| policy.classify(flow)).collect();
        let best = optimum(&policy, &seen).unwrap();
        assert!(best.is_exact);
        let mut search = Search::new(nic("xdp-cpumap", queues), policy).unwrap();
        search.solve(&flows).unwrap();
        assert!(search.cost() >= best.cost, "nothing is better than the best");
        let mean =
            seen.iter().map(|flow| flow.rate_bps.unwrap() as f64 / 1e6).sum::<f64>() / f64::from(queues);
        let gap = (search.cost() - best.cost).value().max(0.0).sqrt() / mean;
        assert!(gap < 0.1, "{count} flows on {queues} queues: {} of {}", search.cost(), best.cost);
    }
}

/// Returns the lowest cost of all placements. The function does not use symmetry.
fn least(policy: &mut Policy, flows: &[Flow]) -> Cost {
    let Some((flow, others)) = flows.split_first() else { return policy.cost() };
    let allowed = policy.allowed(flow).to_vec();
    let costs = allowed.into_iter().map(|queue| {
        policy.place(flow, queue);
        let cost = least(policy, others);
        policy.remove(flow, queue);
        cost
    });
    costs.reduce(Cost::min).unwrap()
}

#[test]
fn the_optimum_is_that_of_all_placements_with_pinned_classes() {
    let mut rests = BTreeSet::new();
    for pin in [0, 2] {
        for count in 1..7 {
            let file = format!(
                "policy = \"balance\"\n[[class]]\nname = \"a\"\ndestination-port = 53\npin = {pin}\n\
                 [[class]]\nname = \"b\"\ndestination-port = 443\nqueues = [1, 3]\n"
            );
            let policy = policy(&file, 4);
            // Add flows of the pinned class, of the pool and of neither class, in varying order.
            let mut observed = flows(count);
            for (at, flow) in observed.iter_mut().enumerate() {
                flow.tuple.destination_port = [80, 443, 53][(at + pin) % 3];
            }
            let seen: Vec<Flow> = observed.iter().map(|flow| policy.classify(flow)).collect();
            rests.extend(seen.iter().map(|flow| flow.class.index()));
            let best = optimum(&policy, &seen).unwrap();
            assert!(best.is_exact);
            assert_eq!(best.cost, least(&mut policy.clone(), &seen), "{count} flows, pin {pin}");
        }
    }
    assert_eq!(rests.len(), 3);
}

/// A flow without a choice needs no stack, and no group of queues.
#[test]
fn the_optimum_of_many_flows_without_a_choice_is_exact() {
    let policy = policy("policy = \"balance\"", 1);
    let seen: Vec<Flow> = flows(200_000).iter().map(|flow| policy.classify(flow)).collect();
    let best = optimum(&policy, &seen).unwrap();
    assert!(best.is_exact && best.cost.is_accepted(), "{best:?}");
}

#[test]
fn the_bound_is_what_the_best_placement_has() {
    for count in 0..8 {
        let policy = policy("policy = \"isolation\"", 5);
        let seen: Vec<Flow> = flows(count).iter().map(|flow| policy.classify(flow)).collect();
        let best = optimum(&policy, &seen).unwrap();
        let mut placed = policy.clone();
        seen.iter().for_each(|flow| placed.place(flow, placed.allowed(flow)[0]));
        assert_eq!(placed.bound(), Some(best.cost), "{count} flows");
    }
}

#[test]
fn the_map_is_the_one_computed_from_nothing_at_each_step() {
    // The basic search asserts consistency before each flow.
    let mut search = search("i82599", "policy = \"balance\"", 10).basic();
    let indices = search.solve(&flows(120)).unwrap();
    assert_eq!(loads(&search), [12; 10]);
    let gone: Vec<_> = indices.into_iter().step_by(3).collect();
    search.remove(&gone);
    let more: Vec<ObservedFlow> = generate(500, 30).collect();
    search.add(&more).unwrap();
    assert_eq!(loads(&search).iter().sum::<usize>(), 110);
    check(&search);
    assert!(search.map().flows().all(|(_, tuple, queue)| search.nic().queue_of(tuple) == queue));
}

#[test]
fn locality_brings_flows_to_their_readers() {
    let queues = Queues::new(4).served_by(&[0, 2, 4, 6]).with_nodes(vec![0, 0, 0, 0, 1, 1, 1, 1]);
    let policy = PolicyFile::built_in("locality").unwrap().bind(&Arc::new(queues)).unwrap();
    let mut search = Search::new(nic("xdp-cpumap", 4), policy).unwrap();
    let read_by = |reader| move |flow| ObservedFlow { reader: Some(reader), ..flow };
    let own: Vec<ObservedFlow> = generate(0, 20).map(read_by(4)).collect();
    let indices = search.solve(&own).unwrap();
    assert!(indices.iter().all(|index| search.map().queue(*index) == Some(QueueId(2))));
    // Processor 7 serves no queue. All queues of its node are equally good, so flows on these queues do
    // not move.
    let near: Vec<ObservedFlow> = generate(100, 20).map(read_by(7)).collect();
    let indices = search.add(&near).unwrap();
    assert!(indices.iter().all(|index| search.map().queue(*index).unwrap().0 >= 2));
    check(&search);
}

#[test]
fn fewest_changes_weighs_against_balance() {
    let text = |weight: f64| {
        format!("[[term]]\npolicy = \"balance\"\n[[term]]\npolicy = \"fewest-changes\"\nweight = {weight}\n")
    };
    let moved = |weight: f64| {
        let flows: Vec<ObservedFlow> =
            generate(0, 40).map(|flow| ObservedFlow { queue: Some(QueueId(1)), ..flow }).collect();
        let mut search = search("xdp-cpumap", &text(weight), 4);
        let indices = search.solve(&flows).unwrap();
        check(&search);
        indices.iter().filter(|index| search.map().queue(**index) != Some(QueueId(1))).count()
    };
    assert_eq!(moved(0.001), 30);
    assert!(moved(5.0) < 30 && moved(5.0) > 0, "{}", moved(5.0));
    assert_eq!(moved(1000.0), 0);
}

#[test]
fn pinned_flows_lie_where_they_are_pinned_and_count_for_the_others() {
    let text = "policy = \"balance\"\n[[class]]\nname = \"high\"\npin = 2\n";
    let mut search = search("xdp-cpumap", text, 4);
    search.solve(&flows(40)).unwrap();
    check(&search);
    assert!(search.cost().is_accepted());
    assert_eq!(loads(&search), [10; 4], "4 pinned ones, and 6 others");
    let high = search.policy().class_states().next().unwrap();
    assert_eq!((high.flows, high.misplaced, high.queues), (4, 0, vec![QueueId(2)]));
}

#[test]
fn a_script_that_balances_finds_what_balance_finds() {
    let text = "policy = \"script\"\nscript = 'fn queue_cost(queue) { queue.flows * queue.flows }'\n";
    let mut scripted = search("xdp-cpumap", text, 5);
    scripted.solve(&flows(52)).unwrap();
    check(&scripted);
    let loads = loads(&scripted);
    assert!(loads.iter().all(|load| (10..=11).contains(load)), "{loads:?}");
}

/// A live session removes flows and asks for the verdict long after a search.
#[test]
fn the_time_limit_of_scripts_begins_anew_after_a_search() {
    let text = "policy = \"script\"\nscript-time = \"20ms\"\nscript = 'fn queue_cost(queue) { queue.flows * queue.flows }'\n";
    let mut search = search("xdp-cpumap", text, 2);
    let found = search.solve(&flows(7)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(40));
    let (verdict, unmet) = search.verdict();
    assert!(verdict.is_met() == Some(true), "{verdict}: {unmet:?}");
    std::thread::sleep(std::time::Duration::from_millis(40));
    search.remove(&found[..1]);
    search.compact().unwrap();
    check(&search);
}

/// If the cost of a policy depends on an unknown fact, the policy is not judged: neither met nor missed.
#[test]
fn unknown_rates_and_readers_leave_the_policy_unjudged() {
    let script = |body: &str| format!("policy = 'script'\nscript = 'fn queue_cost(queue) {{ {body} }}'\n");
    let (reads, ignores) =
        (script("let rate = queue.rate / 1000000; rate * rate"), script("queue.flows * queue.flows"));
    let both = "[[term]]\npolicy = 'balance'\n[[term]]\npolicy = 'balance-rate'\n";
    for (text, told) in [
        ("policy = 'balance'", "met"),
        ("policy = 'fewest-changes'", "met"),
        ("policy = 'balance-rate'", "not judged: the rate of 1 of 3 flows is unknown"),
        (both, "not judged: the rate of 1 of 3 flows is unknown"),
        ("policy = 'locality'", "not judged: the reader of 2 of 3 flows is unknown"),
        (&reads, "not judged: the rate of 1 of 3 flows is unknown"),
        (&ignores, "met"),
    ] {
        let mut flows: Vec<ObservedFlow> = generate(0, 3).collect();
        flows[0].rate_bps = None;
        // The first flow has no reader, and the readers of the others are unknown.
        flows[1..].iter_mut().for_each(|flow| flow.is_unowned = false);
        let mut search = search("xdp-cpumap", text, 4);
        search.solve(&flows).unwrap();
        let (verdict, _) = search.verdict();
        assert_eq!(verdict.to_string(), told, "{text}");
        assert_eq!(verdict.is_met(), (told == "met").then_some(true), "{text}");
        assert_eq!(verdict.is_accepted(), Some(true), "{text}");
        // A rate of 0 is known.
        flows.iter_mut().for_each(|flow| (flow.rate_bps, flow.is_unowned) = (Some(0), true));
        search.solve(&flows).unwrap();
        assert_eq!(search.verdict().0.is_met(), Some(true), "{text}");
    }
}

#[test]
fn a_script_that_loops_ends_the_search_with_one_error() {
    let text = "policy = \"script\"\nscript = '''\nfn queue_cost(queue) {\n  if queue.flows > 3 { loop { queue.flows; } }\n  queue.flows\n}\n'''\n";
    let mut search = search("xdp-cpumap", text, 2);
    let error = search.solve(&flows(50)).unwrap_err().to_string();
    assert!(error.starts_with("policy.toml:3:1: script: ") && error.contains("endless loop"), "{error}");
}

#[test]
fn the_policy_and_the_nic_have_the_same_queues() {
    let error = Search::new(nic("i82599", 4), policy("policy = \"balance\"", 5)).unwrap_err();
    assert_eq!(error, SearchError::Queues { policy: 5, nic: 4 });
}

fn observed() -> impl Strategy<Value = ObservedFlow> {
    // Use few addresses and ports, so that flows return and share entries of the indirection table.
    (0_u8..6, 0_u16..40, any::<bool>(), prop::bool::weighted(0.15), 0_u64..5, prop::bool::weighted(0.3))
        .prop_map(|(host, port, is_tcp, is_v6, rate, is_high)| {
            let (source, destination): (IpAddr, IpAddr) = if is_v6 {
                (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)).into(), Ipv6Addr::LOCALHOST.into())
            } else {
                (Ipv4Addr::new(10, 0, 0, host).into(), Ipv4Addr::new(10, 1, 0, 1).into())
            };
            let transport = if is_tcp { Transport::Tcp } else { Transport::Udp };
            let tuple =
                FlowTuple { transport, source, source_port: 1000 + port, destination, destination_port: 80 };
            ObservedFlow {
                class: is_high.then(|| "high".to_owned()),
                rate_bps: Some(rate * 1_000_000),
                reader: Some(u32::from(host)),
                ..ObservedFlow::new(tuple)
            }
        })
}

#[derive(Clone, Debug)]
enum Event {
    Add(Vec<ObservedFlow>),
    /// Positions of existing flows.
    Remove(Vec<prop::sample::Index>),
    Compact,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop::collection::vec(observed(), 1..20).prop_map(Event::Add),
        3 => prop::collection::vec(any::<prop::sample::Index>(), 1..20).prop_map(Event::Remove),
        1 => Just(Event::Compact),
    ]
}

const POLICIES: [&str; 6] = [
    "policy = \"balance\"",
    "policy = \"isolation\"",
    "policy = \"balance-rate\"",
    "[[term]]\npolicy = \"balance\"\n[[term]]\npolicy = \"locality\"\nweight = 0.5\n",
    "[[class]]\nname = \"high\"\nqueues = 1\nsource = \"10.0.0.0/30\"\nlabel = \"other\"\n",
    "[[class]]\nname = \"high\"\npin = [1, 2]\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_comes_and_goes(
        model in prop::sample::select(MODELS.to_vec()),
        policy_text in prop::sample::select(POLICIES.to_vec()),
        is_small: bool,
        events in prop::collection::vec(event(), 1..12),
    ) {
        let sizes: &[(&str, usize)] = match (is_small, model) {
            (true, "i82599") => &[("five-tuple", 3), ("flow-director", 5)],
            (true, "sfc9020") => &[("full", 6)],
            (true, "ntuple") => &[("rules", 6)],
            (true, "xdp-cpumap") => &[("flows", 6)],
            _ => &[],
        };
        let start = || Search::new(small_nic(model, sizes, 5), policy(policy_text, 5)).unwrap();
        let (mut search, mut twin) = (start(), start());
        let mut present: BTreeMap<FlowTuple, FlowIndex> = BTreeMap::new();
        for event in events {
            match event {
                Event::Add(flows) => {
                    let indices = search.add(&flows).unwrap();
                    prop_assert_eq!(&indices, &twin.add(&flows).unwrap(), "the search is deterministic");
                    present.extend(flows.iter().map(|flow| flow.tuple).zip(indices));
                }
                Event::Remove(places) if !present.is_empty() => {
                    let tuples: Vec<FlowTuple> = present.keys().copied().collect();
                    let gone: Vec<FlowIndex> = places
                        .iter()
                        .filter_map(|place| present.remove(&tuples[place.index(tuples.len())]))
                        .collect();
                    search.remove(&gone);
                    twin.remove(&gone);
                }
                Event::Remove(_) => {}
                Event::Compact => {
                    let before = search.cost();
                    search.compact().unwrap();
                    twin.compact().unwrap();
                    prop_assert!(search.cost() <= before);
                    prop_assert_eq!(search.stale(), 0);
                }
            }
            check(&search);
            let there: Vec<FlowTuple> = search.map().flows().map(|(_, tuple, _)| *tuple).collect();
            prop_assert_eq!(there.len(), present.len());
            prop_assert!(there.iter().all(|tuple| present.contains_key(tuple)));
            prop_assert!(search.nic().filters().eq(twin.nic().filters()));
            prop_assert_eq!(search.nic().indirection(), twin.nic().indirection());
        }
    }

    #[test]
    fn count_balance_is_perfect_after_any_search_with_room(
        flows in prop::collection::vec(observed(), 0..60),
        queues in 2_u16..9,
    ) {
        let mut search = Search::new(nic("xdp-cpumap", queues), policy("policy = \"balance\"", queues)).unwrap();
        search.solve(&flows).unwrap();
        check(&search);
        prop_assert_eq!(Some(search.cost()), search.policy().bound());
    }
}

#[test]
fn a_class_with_several_queues_shares_one_rule_through_a_context() {
    let text = "policy = \"balance\"\n[[class]]\nname = \"web\"\nprotocol = \"udp\"\nsource = \"10.0.0.0/28\"\nqueues = 4\n";
    let flows: Vec<ObservedFlow> = generate(0, 480).collect();
    let solve = |contexts| {
        let mut nic = nic("ntuple", 10);
        nic.allow_contexts(contexts);
        let mut search = Search::new(nic, policy(text, 10)).unwrap();
        search.solve(&flows).unwrap();
        check(&search);
        assert!(search.cost().is_accepted());
        // Fifteen clients are in the class, and fifteen are not.
        for range in [0..6, 6..10] {
            let loads = &loads(&search)[range];
            assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{loads:?}");
        }
        search
    };
    let (without, with) = (solve(0), solve(15));
    let filters = |search: &Search| search.nic().filters().count();
    assert!(without.nic().contexts().is_empty() && filters(&without) > 150, "{}", filters(&without));
    assert_eq!(with.nic().contexts().len(), 1);
    assert!(filters(&with) * 2 < filters(&without), "{} of {}", filters(&with), filters(&without));
    // Before the next search, new flows of the class use all queues of the class, and no others.
    let class = FilterMatch {
        transport: Some(Transport::Udp),
        source: Some(crate::AddressMatch::prefix(Ipv4Addr::new(10, 0, 0, 0).into(), 28)),
        ..FilterMatch::ANY
    };
    let reached: Vec<QueueId> = with.nic().queues_of(&class).iter().collect();
    assert_eq!(reached, [6, 7, 8, 9].map(QueueId));
    // Without a free context, the filter of the class names a single queue.
    let mut nic = nic("ntuple", 10);
    nic.allow_contexts(1);
    nic.add_context(&[QueueId(0), QueueId(1)]).unwrap();
    assert_eq!(nic.add_context(&[QueueId(1)]), Err(crate::ConfigureError::Contexts { most: 1 }));
    let mut search = Search::new(nic, policy(text, 10)).unwrap();
    search.solve(&flows).unwrap();
    assert_eq!(filters(&search), filters(&without));
}

#[test]
fn a_placement_without_flows_is_not_judged() {
    let verdict = |flows| Verdict::new(flows, Cost::ZERO, &[]);
    assert_eq!((verdict(0).is_met(), verdict(0).is_accepted()), (None, None));
    assert_eq!(verdict(0).to_string(), "not judged: there is no flow");
    assert_eq!((verdict(1).is_met(), verdict(1).to_string().as_str()), (Some(true), "met"));
}
