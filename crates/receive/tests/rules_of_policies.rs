//! Compares the search's verdict with the rules of docs/reference/policies.md. The test rebuilds the
//! NIC from its configuration and asks the NIC for the queue of each flow. It computes costs without
//! the cost functions of the code under test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;

use evenkeel_receive::flows::ObservedFlow;
use evenkeel_receive::policy::{PolicyFile, Queues};
use evenkeel_receive::search::Search;
use evenkeel_receive::{ConfiguredNic, FlowTuple, NicModel, QueueId, Transport};
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Clone, Debug, PartialEq)]
enum Share {
    Shared,
    Number(usize),
    /// In per cent.
    Percent(usize),
    List(Vec<usize>),
    Pin(usize),
}

#[derive(Clone, Debug)]
struct Class {
    port: Option<u16>,
    /// The last octet of the only source address.
    host: Option<u8>,
    share: Share,
    policy: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Rules {
    terms: Vec<(&'static str, f64)>,
    classes: Vec<Class>,
}

impl Rules {
    fn text(&self) -> String {
        let mut text = match self.terms.as_slice() {
            [(only, _)] => format!("policy = '{only}'\n"),
            terms => terms
                .iter()
                .map(|(name, weight)| format!("[[term]]\npolicy = '{name}'\nweight = {weight}\n"))
                .collect(),
        };
        for (number, class) in self.classes.iter().enumerate() {
            write!(text, "[[class]]\nname = 'c{number}'\n").unwrap();
            class.port.iter().for_each(|port| writeln!(text, "destination-port = {port}").unwrap());
            class.host.iter().for_each(|host| writeln!(text, "source = '10.0.0.{host}'").unwrap());
            match &class.share {
                Share::Shared => {}
                Share::Number(number) => writeln!(text, "queues = {number}").unwrap(),
                Share::Percent(share) => writeln!(text, "queues = '{share}%'").unwrap(),
                Share::List(list) => writeln!(text, "queues = {list:?}").unwrap(),
                Share::Pin(queue) => writeln!(text, "pin = {queue}").unwrap(),
            }
            class.policy.iter().for_each(|policy| writeln!(text, "policy = '{policy}'").unwrap());
        }
        text
    }

    /// Returns the class of a flow; the number of classes for a flow without a class.
    fn class_of(&self, flow: &ObservedFlow) -> usize {
        let selects = |number: usize, class: &Class| match &flow.class {
            Some(name) => *name == format!("c{number}"),
            None => {
                let FlowTuple { source, destination_port, .. } = flow.tuple;
                (class.port.is_some() || class.host.is_some())
                    && class.port.is_none_or(|port| port == destination_port)
                    && class.host.is_none_or(|host| source == Ipv4Addr::new(10, 0, 0, host))
            }
        };
        (0..)
            .zip(&self.classes)
            .position(|(number, class)| selects(number, class))
            .unwrap_or(self.classes.len())
    }

    /// Returns the queues of each class, then the queues of the rest.
    fn queues(&self, count: usize) -> Vec<Vec<usize>> {
        let listed: Vec<usize> = self
            .classes
            .iter()
            .flat_map(|class| match &class.share {
                Share::List(list) => list.clone(),
                Share::Pin(queue) => vec![*queue],
                _ => Vec::new(),
            })
            .collect();
        let mut free: Vec<usize> = (0..count).filter(|queue| !listed.contains(queue)).collect();
        let mut queues: Vec<Vec<usize>> = Vec::new();
        for class in &self.classes {
            queues.push(match &class.share {
                Share::Shared => Vec::new(),
                Share::Number(number) => free.split_off(free.len() - number),
                Share::Percent(share) => free.split_off(free.len() - (count * share / 100).max(1)),
                Share::List(list) => list.clone(),
                Share::Pin(queue) => vec![*queue],
            });
        }
        let is_reserved =
            |queue: &usize| (0..).zip(&queues).any(|(class, list)| self.owns(class) && list.contains(queue));
        let rest: Vec<usize> = (0..count).filter(|queue| !is_reserved(queue)).collect();
        queues.iter_mut().filter(|list| list.is_empty()).for_each(|list| list.clone_from(&rest));
        queues.push(rest);
        queues
    }

    fn owns(&self, class: usize) -> bool {
        self.classes.get(class).is_some_and(|class| !matches!(class.share, Share::Shared | Share::Pin(_)))
    }
}

/// The flows with their classes, and the host's processors. Processor n serves queue n.
struct Placement<'r> {
    rules: &'r Rules,
    flows: &'r [(ObservedFlow, usize)],
    queues: Vec<Vec<usize>>,
    nodes: &'r [u32],
}

impl Placement<'_> {
    fn cost(&self, on: &[usize]) -> f64 {
        let rest = self.rules.classes.len();
        // The rest shares its queues with all classes that have no reserved queues.
        let pools = (0..=rest).filter(|class| *class == rest || self.rules.owns(*class));
        let cost = |pool: usize| {
            let is_of_pool = |class: usize| class == pool || pool == rest && !self.rules.owns(class);
            let flows: Vec<(&ObservedFlow, usize)> = self
                .flows
                .iter()
                .zip(on)
                .filter(|((_, class), _)| is_of_pool(*class))
                .map(|((flow, _), queue)| (flow, *queue))
                .collect();
            let own =
                self.rules.classes.get(pool).and_then(|class| class.policy).map(|policy| vec![(policy, 1.0)]);
            let terms = own.unwrap_or_else(|| self.rules.terms.clone());
            terms
                .iter()
                .map(|(name, weight)| weight * self.term(name, &flows, &self.queues[pool]))
                .sum::<f64>()
        };
        pools.map(cost).sum()
    }

    fn term(&self, name: &str, flows: &[(&ObservedFlow, usize)], queues: &[usize]) -> f64 {
        let node = |processor: usize| self.nodes[processor];
        match name {
            "locality" => {
                let distance = |(flow, queue): &(&ObservedFlow, usize)| match flow.reader {
                    Some(reader) if reader as usize == *queue => 0.0,
                    Some(reader) if node(reader as usize) == node(*queue) => 1.0,
                    Some(_) => 2.0,
                    None => 0.0,
                };
                flows.iter().map(distance).sum()
            }
            "fewest-changes" => {
                let moved = |(flow, queue): &&(&ObservedFlow, usize)| {
                    flow.queue.is_some_and(|before| before.index() != *queue)
                };
                flows.iter().filter(moved).count() as f64
            }
            _ => {
                let load = |flow: &ObservedFlow| match name {
                    "balance-rate" => flow.rate_bps.unwrap() as f64 / 1e6,
                    _ => 1.0,
                };
                let on = |queue: &usize| {
                    flows.iter().filter(|(_, on)| on == queue).map(|(flow, _)| load(flow)).sum()
                };
                let loads: Vec<f64> = queues.iter().map(on).collect();
                let mean = loads.iter().sum::<f64>() / loads.len() as f64;
                loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64
            }
        }
    }

    fn is_allowed(&self, flow: usize, queue: usize) -> bool {
        self.queues[self.flows[flow].1].contains(&queue)
    }

    /// Returns whether the cost falls if one flow moves to another queue that it may use.
    fn improves(&self, on: &[usize]) -> bool {
        let now = self.cost(on);
        (0..on.len()).any(|flow| {
            let mut moved = on.to_vec();
            self.queues[self.flows[flow].1].iter().any(|queue| {
                moved[flow] = *queue;
                self.cost(&moved) < now - TOLERANCE
            })
        })
    }
}

const TOLERANCE: f64 = 1e-5;

fn rebuilt(found: &ConfiguredNic) -> ConfiguredNic {
    let mut nic = ConfiguredNic::new(found.model(), found.queues()).unwrap();
    nic.set_rss_key(*found.rss_key());
    nic.set_hashed_ports(found.hashed_ports());
    nic.set_indirection(found.indirection().to_vec()).unwrap();
    nic.allow_contexts(u16::MAX);
    for table in found.contexts() {
        nic.add_context(table).unwrap();
    }
    for (_, filter) in found.filters() {
        nic.insert(*filter).unwrap();
    }
    nic
}

const QUEUES: std::ops::Range<usize> = 4..9;

fn flow() -> impl Strategy<Value = ObservedFlow> {
    let address = (1_u8..9, 1000_u16..1040, select(vec![80_u16, 443, 11211]), any::<bool>());
    let class = select(vec![None, None, None, Some("c0"), Some("c1"), Some("other")]);
    let facts = (class, 0_u64..50, prop::option::of(0_u32..4), prop::option::of(0_u16..4));
    (address, facts).prop_map(|((host, port, service, is_tcp), (class, rate, reader, before))| ObservedFlow {
        class: class.map(str::to_owned),
        rate_bps: Some(rate * 1_000_000),
        reader,
        is_unowned: reader.is_none(),
        queue: before.map(QueueId),
        ..ObservedFlow::new(FlowTuple {
            transport: if is_tcp { Transport::Tcp } else { Transport::Udp },
            source: Ipv4Addr::new(10, 0, 0, host).into(),
            source_port: port,
            destination: Ipv4Addr::new(10, 1, 0, 1).into(),
            destination_port: service,
        })
    })
}

fn class() -> impl Strategy<Value = Class> {
    let share = prop_oneof![
        Just(Share::Shared),
        (1_usize..3).prop_map(Share::Number),
        select(vec![25, 40]).prop_map(Share::Percent),
        select(vec![vec![0], vec![1, 3], vec![2]]).prop_map(Share::List),
        (0_usize..4).prop_map(Share::Pin),
    ];
    let port = prop::option::of(select(vec![80_u16, 443, 11211]));
    let policy = prop::option::weighted(0.3, select(vec!["balance", "balance-rate", "locality"]));
    (port, prop::option::weighted(0.3, 1_u8..9), share, policy).prop_map(|(port, host, share, policy)| {
        Class {
            port,
            host,
            policy: policy.filter(|_| !matches!(share, Share::Shared | Share::Pin(_))),
            share,
        }
    })
}

fn rules() -> impl Strategy<Value = Rules> {
    let terms = prop_oneof![
        select(vec!["balance", "isolation", "balance-rate", "locality", "fewest-changes"])
            .prop_map(|name| vec![(name, 1.0)]),
        Just(vec![("balance", 3.0), ("locality", 0.5)]),
        Just(vec![("balance-rate", 0.25), ("fewest-changes", 2.0)]),
    ];
    (terms, prop::collection::vec(class(), 0..4)).prop_map(|(terms, classes)| Rules { terms, classes })
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 100_000, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_verdict_follows_from_the_rules(
        rules in rules(),
        flows in prop::collection::vec(flow(), 1..50),
        count in QUEUES,
        model in select(NicModel::built_in_names().collect::<Vec<_>>()),
        (is_small, has_contexts) in any::<(bool, bool)>(),
    ) {
        let text = rules.text();
        let file = match PolicyFile::parse(&text, "p.toml") {
            Ok(file) => file,
            Err(error) => {
                let isolates = rules.terms[0].0 == "isolation";
                prop_assert!(isolates && error.to_string().contains("isolation needs queues"), "{text}\n{error}");
                prop_assert!((0..rules.classes.len()).any(|class| !rules.owns(class)));
                return Ok(());
            }
        };
        // Other tests check isolation without a class.
        prop_assume!(rules.terms[0].0 != "isolation" || !rules.classes.is_empty());
        let nodes: Vec<u32> = (0..count).map(|processor| u32::from(processor >= 2)).collect();
        let bound = file.bind(&Arc::new(Queues::new(count as u16).with_nodes(nodes.clone())));
        // Binding fails if a class names a queue that another class reserves, or if the rest has no queue.
        prop_assume!(bound.is_ok());
        let mut flows = flows;
        flows.sort_by_key(|flow| flow.tuple);
        flows.dedup_by_key(|flow| flow.tuple);

        let mut model = NicModel::built_in(model).unwrap();
        if is_small {
            let names: Vec<String> = model.tables().iter().map(|table| table.name.clone()).collect();
            model = names.iter().fold(model, |model, name| model.with_table_size(name, 5).unwrap());
        }
        let mut nic = ConfiguredNic::new(&model, count as u16).unwrap();
        nic.allow_contexts(if has_contexts { u16::MAX } else { 0 });
        let mut search = Search::new(nic, bound.unwrap()).unwrap();
        let indices = search.solve(&flows).unwrap();
        let (verdict, _) = search.verdict();

        let nic = rebuilt(search.nic());
        let on: Vec<usize> = flows.iter().map(|flow| nic.queue_of(&flow.tuple).index()).collect();
        for (index, queue) in indices.iter().zip(&on) {
            prop_assert_eq!(search.map().queue(*index).unwrap().index(), *queue);
        }
        let flows: Vec<(ObservedFlow, usize)> =
            flows.into_iter().map(|flow| (flow.clone(), rules.class_of(&flow))).collect();
        let placement = Placement { rules: &rules, flows: &flows, queues: rules.queues(count), nodes: &nodes };
        let states: Vec<Vec<usize>> = search
            .policy()
            .class_states()
            .map(|state| state.queues.iter().map(|queue| queue.index()).collect())
            .collect();
        prop_assert_eq!(&states, &placement.queues, "{}", text);
        let violations = (0..on.len()).filter(|flow| !placement.is_allowed(*flow, on[*flow])).count();
        prop_assert_eq!(verdict.violations, violations, "{}", text);
        prop_assert_eq!(verdict.is_accepted(), Some(violations == 0));
        if violations > 0 {
            prop_assert_ne!(verdict.is_met(), Some(true));
            return Ok(());
        }
        if rules.terms[0].0 == "isolation" {
            let pairs = || flows.iter().zip(&on).map(|((_, class), queue)| (*class, *queue));
            prop_assert!(pairs().all(|(class, queue)| pairs().all(|(other, its)| its != queue || other == class)));
        }
        let (cost, told) = (placement.cost(&on), search.cost().value());
        prop_assert!((cost - told).abs() <= TOLERANCE, "{text}\n{cost} {told}");
        prop_assert_eq!(verdict.is_met(), Some(!placement.improves(&on)), "{}\n{:?}", text, on);
    }
}
