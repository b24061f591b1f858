//! Tests of the n-tuple back end, with a driver and a kernel in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_apply::{Entry, JournalError, KnobError};
use evenkeel_receive::flows::{ObservedFlow, generate};
use evenkeel_receive::policy::{PolicyFile, Queues};
use evenkeel_receive::search::Search;

/// A device with 64 rule locations and an RSS table of 128 entries over 4 queues, and a journal.
#[derive(Clone, Default)]
struct Machine(Rc<RefCell<Inside>>);

#[derive(Default)]
struct Inside {
    rules: BTreeMap<u32, Rule>,
    table: Vec<u32>,
    contexts: BTreeMap<u32, Vec<u32>>,
    has_contexts: bool,
    journal: String,
    changes: usize,
}

const LOCATIONS: u32 = 64;

impl Machine {
    fn new(foreign: &[Rule]) -> Self {
        let machine = Self::default();
        machine.0.borrow_mut().rules = foreign.iter().map(|rule| (rule.location(), *rule)).collect();
        machine.0.borrow_mut().table = (0..128).map(|entry| entry % 4).collect();
        machine
    }

    fn backend(&self) -> NtupleBackend<Self, Self> {
        let model = NicModel::built_in("ntuple").unwrap();
        let run = Run::with(self.clone(), self.clone(), "eth0");
        NtupleBackend::new(run, &ReceiveRules::new(self.clone(), "eth0"), &model, &[0, 1, 2, 3]).unwrap()
    }
}

#[test]
fn the_command_that_turns_rules_on_names_the_interface() {
    let error = no_rules("eth0").to_string();
    assert!(error.contains("`ethtool -K eth0 ntuple on`"), "{error}");
}

/// The loopback interface has index 1 and the name `lo` in every network namespace.
#[test]
fn a_renamed_interface_ends_the_session() {
    let mut backend = Machine::new(&[]).backend();
    assert_eq!(backend.check().unwrap(), None);
    let named = |name| Interface { index: 1, ..Interface::of_model(Some(name)) };
    backend.interface = Some(named("lo"));
    assert_eq!(backend.check().unwrap(), None);
    backend.interface = Some(named("eth0"));
    assert_eq!(backend.check().unwrap().as_deref(), Some("another program renamed the interface to lo"));
}

fn put(data: &mut [u8], at: usize, value: &[u8]) {
    data[at..at + value.len()].copy_from_slice(value);
}

/// The part of ethtool's interface that reads from the device.
impl EthtoolCalls for Machine {
    fn call(&self, _: &str, data: &mut [u8]) -> io::Result<()> {
        let inside = self.0.borrow();
        let word = |at: usize| u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
        match word(0) {
            // Commands ETHTOOL_GRXCLSRLCNT, GRXCLSRLALL, GRXCLSRULE and GRSSH.
            0x2e => put(data, 184, &(inside.rules.len() as u32).to_ne_bytes()),
            0x30 => {
                put(data, 8, &u64::from(LOCATIONS).to_ne_bytes());
                for (at, location) in inside.rules.keys().enumerate() {
                    put(data, 188 + 4 * at, &location.to_ne_bytes());
                }
            }
            0x2f => {
                let rule = inside.rules[&word(16 + 160)];
                let hex = rule.to_hex();
                for at in 0..168 {
                    data[16 + at] = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
                }
                put(data, 184, &rule.context().unwrap_or(0).to_ne_bytes());
            }
            0x46 if word(4) != 0 => {
                assert!(!inside.contexts.contains_key(&word(4)));
                // ENOENT, EOPNOTSUPP.
                let code = if inside.has_contexts { 2 } else { 95 };
                return Err(io::Error::from_raw_os_error(code));
            }
            0x46 if word(8) == 0 => {
                put(data, 8, &128_u32.to_ne_bytes());
                put(data, 12, &40_u32.to_ne_bytes());
            }
            0x46 => {
                for (entry, queue) in inside.table.iter().enumerate() {
                    put(data, 24 + 4 * entry, &queue.to_ne_bytes());
                }
                put(data, 24 + 4 * 128, &evenkeel_datapath::DEFAULT_RSS_KEY);
            }
            command => panic!("command {command:#x}"),
        }
        Ok(())
    }
}

impl Kernel for Machine {
    fn read(&mut self, knob: &Knob) -> Result<Value, KnobError> {
        let inside = self.0.borrow();
        Ok(match knob {
            Knob::NtupleRule(location) => Value::Rule(inside.rules.get(location).map(RuleBytes::from)),
            Knob::RssTable => Value::Table(inside.table.clone()),
            Knob::RssContext(context) => Value::Context(inside.contexts.get(context).cloned()),
            other => panic!("{other:?}"),
        })
    }

    fn write(&mut self, knob: &Knob, value: &Value) -> Result<(), KnobError> {
        let mut inside = self.0.borrow_mut();
        inside.changes += 1;
        match (knob, value) {
            (Knob::NtupleRule(location), Value::Rule(None)) => {
                inside.rules.remove(location);
            }
            (Knob::NtupleRule(location), Value::Rule(Some(rule))) => {
                assert!(*location < LOCATIONS, "beyond the budget");
                let context = rule.rule().unwrap().context();
                assert!(context.is_none_or(|context| inside.contexts.contains_key(&context)), "no context");
                // The journal must contain the undo record before the change.
                assert!(inside.journal.contains(&format!("NtupleRule({location});")), "{}", inside.journal);
                inside.rules.insert(*location, rule.rule().unwrap());
            }
            (Knob::RssTable, Value::Table(table)) => inside.table.clone_from(table),
            (Knob::RssContext(context), Value::Context(None)) => {
                assert!(inside.rules.values().all(|rule| rule.context() != Some(*context)), "it is busy");
                inside.contexts.remove(context);
            }
            (Knob::RssContext(context), Value::Context(Some(table))) => {
                assert!(inside.journal.contains(&format!("RssContext({context});")), "{}", inside.journal);
                inside.contexts.insert(*context, table.clone());
            }
            other => panic!("{other:?}"),
        }
        Ok(())
    }
}

impl Storage for Machine {
    fn append(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.0.borrow_mut().journal.push_str(&format!("{:?};", entry.knob));
        Ok(())
    }

    fn remove(self) -> Result<(), JournalError> {
        self.0.borrow_mut().journal.clear();
        Ok(())
    }
}

fn flows(count: u32) -> Vec<ObservedFlow> {
    generate(0, count).collect()
}

fn search(backend: &mut NtupleBackend<Machine, Machine>, policy: &str) -> Search {
    let policy = PolicyFile::parse(policy, "test").unwrap().bind(&Arc::new(Queues::new(4))).unwrap();
    Search::new(backend.nic().unwrap(), policy).unwrap()
}

fn apply(backend: &mut NtupleBackend<Machine, Machine>, search: &Search) -> Result<Applied, SteerError> {
    backend.apply(&Placement { nic: search.nic(), flows: &[], classes: &[] })
}

/// Returns the queue of the first rule that matches a flow; `None` if no rule matches.
fn ruled(machine: &Machine, flow: &FlowTuple) -> Option<u32> {
    let inside = machine.0.borrow();
    let matching = |rule: &&Rule| {
        rule.matches().as_ref().and_then(filter_match).is_some_and(|matches| matches.matches(flow))
    };
    inside.rules.values().find(matching).and_then(Rule::queue)
}

fn foreign() -> Rule {
    let filter = FilterMatch::to(Transport::Tcp, [10, 200, 0, 1].into(), 22);
    rule_of(1, &Filter::new(TableId(0), 1, filter, QueueId(2))).unwrap()
}

#[test]
fn the_device_does_what_the_search_found_and_is_put_back() {
    let machine = Machine::new(&[foreign()]);
    let before = (machine.0.borrow().rules.clone(), machine.0.borrow().table.clone());
    let mut backend = machine.backend();
    let mut search = search(&mut backend, "policy = \"balance\"\n");
    let flows = flows(60);
    search.solve(&flows).unwrap();
    let tuples: Vec<FlowTuple> = flows.iter().map(|flow| flow.tuple).collect();
    let applied = apply(&mut backend, &search).unwrap();
    assert!(applied.inserted > 0, "{applied:?}");
    for flow in &tuples {
        let wanted = search.map().queue(search.find(flow).unwrap()).unwrap();
        // Without a matching rule, the device's RSS key and table decide.
        let found =
            ruled(&machine, flow).unwrap_or_else(|| u32::from(search.nic().unfiltered_queue_of(flow).0));
        assert_eq!(found, u32::from(wanted.0), "{flow}");
    }
    assert_eq!(machine.0.borrow().rules[&1], foreign(), "the rule of others is where it was");
    // Applying the same configuration again changes nothing.
    let changes = machine.0.borrow().changes;
    assert!(!apply(&mut backend, &search).unwrap().is_some());
    assert_eq!(machine.0.borrow().changes, changes);
    assert_eq!(backend.check().unwrap(), None);
    drop(backend);
    assert_eq!((machine.0.borrow().rules.clone(), machine.0.borrow().table.clone()), before);
    assert_eq!(machine.0.borrow().journal, "");
}

#[test]
fn a_class_with_several_queues_has_one_rule_and_a_context_that_goes_with_it() {
    const CLASS: &str = "policy = \"balance\"\n[[class]]\nname = \"web\"\nprotocol = \"udp\"\nsource = \"10.0.0.1\"\nqueues = 2\n";
    let with = Machine::new(&[foreign()]);
    with.0.borrow_mut().has_contexts = true;
    // The first context belongs to another program.
    with.0.borrow_mut().contexts = BTreeMap::from([(1, vec![0; 128])]);
    let seen = || {
        let inside = with.0.borrow();
        (inside.rules.clone(), inside.table.clone(), inside.contexts.clone())
    };
    let before = seen();
    let mut backend = with.backend();
    let mut found = search(&mut backend, CLASS);
    let flows = flows(48);
    found.solve(&flows).unwrap();
    assert!(found.cost().is_accepted(), "{:?}", found.unmet());
    apply(&mut backend, &found).unwrap();
    let spreading: Vec<Rule> =
        with.0.borrow().rules.values().filter(|rule| rule.context().is_some()).copied().collect();
    assert_eq!(spreading.iter().map(Rule::context).collect::<Vec<_>>(), [Some(2)]);
    let table = with.0.borrow().contexts[&2].clone();
    assert!(table.len() == 128 && table.iter().zip([2, 3].iter().cycle()).all(|(found, own)| found == own));
    let shell = backend.shell(found.nic()).unwrap();
    assert!(shell.contains("ethtool -X eth0 context new start 2 equal 2\n"), "{shell}");
    assert!(shell.contains(" src-ip 10.0.0.1 context 1 loc 63\n"), "{shell}");
    // Without contexts there are more rules. Each flow of the class needs a rule, unless the flow is on
    // the queue of the class's rule.
    let without = Machine::new(&[foreign()]);
    let mut other = without.backend();
    let mut plain = search(&mut other, CLASS);
    plain.solve(&flows).unwrap();
    apply(&mut other, &plain).unwrap();
    assert!(with.0.borrow().rules.len() < without.0.borrow().rules.len());
    assert_eq!(without.0.borrow().contexts, BTreeMap::new());
    // Applying the same configuration again changes nothing. With another policy, the back end deletes
    // the context after its rule.
    assert!(!apply(&mut backend, &found).unwrap().is_some());
    let mut even = search(&mut backend, "policy = \"balance\"\n");
    even.solve(&flows).unwrap();
    apply(&mut backend, &even).unwrap();
    assert_eq!(with.0.borrow().contexts.keys().collect::<Vec<_>>(), [&1]);
    apply(&mut backend, &found).unwrap();
    assert_eq!(with.0.borrow().contexts.keys().collect::<Vec<_>>(), [&1, &2]);
    drop(backend);
    assert_eq!(seen(), before);
    assert_eq!(with.0.borrow().journal, "");
}

#[test]
fn the_budget_is_never_exceeded_and_a_change_is_the_least() {
    let taken: Vec<Rule> = (0..60)
        .map(|location| {
            let filter = FilterMatch::to(Transport::Tcp, [10, 200, 0, 1].into(), 1000 + location as u16);
            rule_of(location, &Filter::new(TableId(0), location, filter, QueueId(0))).unwrap()
        })
        .collect();
    let machine = Machine::new(&taken);
    let mut backend = machine.backend();
    let mut search = search(&mut backend, "policy = \"balance\"\n");
    let flows = flows(100);
    let indices = search.solve(&flows).unwrap();
    apply(&mut backend, &search).unwrap();
    assert!(machine.0.borrow().rules.len() <= LOCATIONS as usize);
    assert!(
        backend.remarks()[0].contains("60 n-tuple rules of other programs stay in place"),
        "{:?}",
        backend.remarks()
    );
    search.remove(&indices[..50]);
    let changes = machine.0.borrow().changes;
    apply(&mut backend, &search).unwrap();
    // Removal is lazy: a filter stays until the back end needs its location.
    assert_eq!(machine.0.borrow().changes, changes);
}

#[test]
fn another_programs_change_is_seen_and_left_alone() {
    let machine = Machine::new(&[]);
    let mut backend = machine.backend();
    let mut search = search(&mut backend, "policy = \"balance\"\n");
    search.solve(&flows(40)).unwrap();
    apply(&mut backend, &search).unwrap();
    let location = *backend.rules.keys().next().unwrap();
    let theirs = Rule::from_hex(&foreign().to_hex()).unwrap();
    let theirs =
        rule_of(location, &Filter::new(TableId(0), location, nothing(), QueueId(3))).unwrap_or(theirs);
    machine.0.borrow_mut().rules.insert(location, theirs);
    let told = backend.check().unwrap().unwrap();
    assert!(told.contains(&format!("the n-tuple rule at location {location} of eth0")), "{told}");
    drop(backend);
    assert_eq!(machine.0.borrow().rules.values().copied().collect::<Vec<_>>(), [theirs]);
}
