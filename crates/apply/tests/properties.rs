//! Tests that rollback leaves each setting as the administrator last set it, wherever a run is
//! interrupted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use evenkeel_apply::{
    Change, Entry, Header, InterfaceIdentity, JournalError, JournalWriter, Kernel, Knob, KnobError, Ours,
    RuleBytes, Run, Storage, Value, parse, roll_back,
};
use evenkeel_model::change::Channels;
use evenkeel_netlink::ethtool::{Rule, RuleMatch};
use proptest::prelude::*;

/// A machine with knobs and a disk. Its power fails after a number of steps.
#[derive(Default)]
struct Machine {
    knobs: BTreeMap<Knob, Value>,
    disk: Option<Vec<u8>>,
    writer: Option<JournalWriter>,
    /// Steps until the power fails; `None` if it does not fail.
    steps: Option<usize>,
    /// Odd if the step during which the power fails still takes effect. For a disk write that can be torn,
    /// the number of bytes written, modulo the length plus 1.
    last_gasp: usize,
    dead: bool,
    /// The XPS map that the driver gives a new queue, and whether the driver also gives this map to the
    /// other queues.
    driver: (&'static str, bool),
    /// A value that another program sets during the next write of the journal.
    meanwhile: Option<(Knob, Value)>,
}

impl Machine {
    /// Removes or adds queues with their maps, to match a number of channels.
    fn renew_queues(&mut self, count: u32) {
        let (map, resets) = self.driver;
        for queue in 0..QUEUES {
            let knob = map_of(queue);
            if queue >= count {
                self.knobs.remove(&knob);
            } else if resets || !self.knobs.contains_key(&knob) {
                self.knobs.insert(knob, Value::Text(map.to_owned()));
            }
        }
    }

    /// Takes a step. Returns false if the power fails during this step or has failed before.
    fn step(&mut self) -> bool {
        match &mut self.steps {
            _ if self.dead => false,
            None => true,
            Some(0) => {
                self.dead = true;
                false
            }
            Some(steps) => {
                *steps -= 1;
                true
            }
        }
    }
}

#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Machine>>);

fn power_cut() -> io::Error {
    io::Error::other("power cut")
}

impl Kernel for Shared {
    fn read(&mut self, knob: &Knob) -> Result<Value, KnobError> {
        let machine = self.0.borrow();
        if machine.dead {
            return Err(KnobError::File { action: "read".to_owned(), source: power_cut() });
        }
        machine.knobs.get(knob).cloned().ok_or(KnobError::Gone { what: format!("{knob:?}") })
    }

    fn write(&mut self, knob: &Knob, value: &Value) -> Result<(), KnobError> {
        let mut machine = self.0.borrow_mut();
        let was_dead = machine.dead;
        let whole = machine.step();
        if whole || !was_dead && machine.last_gasp % 2 == 1 {
            machine.knobs.insert(knob.clone(), value.clone());
            if let (Knob::Channels(_), Value::Number(count)) = (knob, value) {
                machine.renew_queues(*count);
            }
        }
        if whole { Ok(()) } else { Err(KnobError::File { action: "write".to_owned(), source: power_cut() }) }
    }
}

impl Machine {
    /// Writes to the disk at the position `at`. If the power fails, writes any part of the bytes (`is_torn`),
    /// or all or none of them. Returns whether the power is still on.
    fn write(&mut self, at: usize, bytes: &[u8], is_torn: bool) -> bool {
        let was_dead = self.dead;
        let whole = self.step();
        let kept = match (whole, was_dead) {
            (true, _) => bytes.len(),
            (false, false) if is_torn => self.last_gasp % (bytes.len() + 1),
            (false, false) => bytes.len() * (self.last_gasp % 2),
            (false, true) => 0,
        };
        let disk = self.disk.get_or_insert_default();
        let end = (at + kept).max(disk.len().min(at));
        disk.resize(disk.len().max(end), 0);
        disk[at..at + kept].copy_from_slice(&bytes[..kept]);
        whole
    }
}

impl Storage for Shared {
    fn append(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let mut machine = self.0.borrow_mut();
        let mut writer = machine.writer.clone().unwrap();
        let at = usize::try_from(writer.bytes()).unwrap();
        let line = writer.entry(entry);
        // The count is smaller than a sector, which a disk writes atomically.
        let whole = machine.write(at, &line, true) && machine.write(0, &writer.count(), false);
        machine.writer = Some(writer);
        if let Some((knob, value)) = machine.meanwhile.take() {
            machine.knobs.insert(knob, value);
        }
        let failed = JournalError::File { action: "write to", path: PathBuf::from("j"), source: power_cut() };
        if whole { Ok(()) } else { Err(failed) }
    }

    fn remove(self) -> Result<(), JournalError> {
        let mut machine = self.0.borrow_mut();
        if machine.step() {
            machine.disk = None;
        }
        Ok(())
    }
}

fn knob(number: usize) -> Knob {
    match number {
        0 => Knob::GsoSizes,
        1 => Knob::Sysctl("net/ipv4/tcp_tso_rtt_log".to_owned()),
        2 => Knob::InterfaceFile("queues/tx-0/xps_cpus".to_owned()),
        3 => Knob::QueueWeight(2),
        4 => Knob::NtupleRule(7),
        _ => Knob::GroSizes,
    }
}

const KNOBS: usize = 6;

/// Returns value number `number` of a knob. The values that the run sets differ from the values that the
/// administrator sets.
fn value(knob: &Knob, number: u32) -> Value {
    match knob {
        Knob::GsoSizes | Knob::GroSizes => Value::Sizes { all: number, ipv4: number / 2 },
        Knob::InterfaceFile(_) => Value::Text(format!("{number:x}")),
        // Originally, the queue has no shaper.
        Knob::QueueWeight(_) => Value::Weight((number != ORIGINAL).then_some(number)),
        // Originally, the location is free.
        Knob::NtupleRule(location) => Value::Rule((number != ORIGINAL).then(|| rule(*location, number))),
        _ => Value::Text(number.to_string()),
    }
}

fn rule(location: u32, queue: u32) -> RuleBytes {
    let matches = RuleMatch {
        protocol: 17,
        source: [10, 0, 0, 1].into(),
        source_mask: u128::from(u32::MAX),
        destination: [10, 0, 0, 2].into(),
        destination_mask: u128::from(u32::MAX),
        source_port: 1000,
        source_port_mask: u16::MAX,
        destination_port: 11211,
        destination_port_mask: u16::MAX,
    };
    RuleBytes::from(&Rule::steer(location, &matches, queue))
}

const ORIGINAL: u32 = 100;
const ADMINISTRATORS: u32 = 200;

#[derive(Clone, Debug)]
enum Step {
    Change(usize, u32),
    Allow(usize, u32, u32),
    Set(usize, u32),
    ByHand(usize, u32),
    BackByHand(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let knob = 0..KNOBS;
    prop_oneof![
        3 => (knob.clone(), 1..6_u32).prop_map(|(knob, to)| Step::Change(knob, to)),
        2 => (knob.clone(), 1..6_u32, 1..6_u32).prop_map(|(knob, one, other)| Step::Allow(knob, one, other)),
        3 => (knob.clone(), 1..6_u32).prop_map(|(knob, to)| Step::Set(knob, to)),
        1 => (knob.clone(), 0..3_u32).prop_map(|(knob, to)| Step::ByHand(knob, to)),
        1 => knob.prop_map(Step::BackByHand),
    ]
}

/// Runs steps until the power fails. Returns the run, or `None` if the power fails before the journal exists.
/// Also returns the values that rollback must restore: the original values, or the administrator's later
/// values.
fn play(machine: &Shared, steps: &[Step]) -> (Option<Run<Shared, Shared>>, BTreeMap<Knob, Value>) {
    let mut wanted: BTreeMap<Knob, Value> =
        (0..KNOBS).map(knob).map(|knob| (knob.clone(), value(&knob, ORIGINAL))).collect();
    machine.0.borrow_mut().knobs.clone_from(&wanted);
    let interface = InterfaceIdentity {
        boot: String::new(),
        namespace: 1,
        namespace_cookie: None,
        namespace_handle: None,
        index: 1,
        name: "x".to_owned(),
        device: None,
    };
    let (writer, bytes) = JournalWriter::begin(&Header::new(interface, "test"), "j");
    {
        let mut machine = machine.0.borrow_mut();
        machine.writer = Some(writer);
        // The file gets its name after its header is written.
        if !machine.step() {
            return (None, wanted);
        }
        machine.disk = Some(bytes);
    }
    let mut run = Run::with(machine.clone(), machine.clone(), "x");
    for step in steps {
        match step {
            Step::Change(number, to) => {
                let knob = knob(*number);
                // Ignore the error: the run refuses the change if the administrator has changed the
                // knob.
                let _ = run.change(&Change::new(knob.clone(), value(&knob, *to)));
            }
            Step::Allow(number, one, other) => {
                let knob = knob(*number);
                let ours = Ours::These(vec![value(&knob, *one), value(&knob, *other)]);
                let _ = run.allow(&knob, ours);
            }
            Step::Set(number, to) => {
                let knob = knob(*number);
                // A session checks for disturbances before it continues.
                let disturbed = run.disturbances().unwrap_or_default();
                if !disturbed.iter().any(|disturbance| disturbance.knob == knob) {
                    let _ = run.set(&knob, &value(&knob, *to));
                }
            }
            Step::ByHand(..) | Step::BackByHand(_) => {
                let (number, to) = match step {
                    Step::ByHand(number, to) => (*number, ADMINISTRATORS + to),
                    Step::BackByHand(number) => (*number, ORIGINAL),
                    _ => unreachable!(),
                };
                let knob = knob(number);
                let mut machine = machine.0.borrow_mut();
                if !machine.dead {
                    machine.knobs.insert(knob.clone(), value(&knob, to));
                    wanted.insert(knob.clone(), value(&knob, to));
                }
            }
        }
        if machine.0.borrow().dead {
            break;
        }
    }
    (Some(run), wanted)
}

/// Reads the journal from the disk and rolls back, as the guardian and `evenkeel revert` do. Returns whether
/// the rollback is complete; true without a journal.
fn recover(machine: &Shared) -> bool {
    let disk = machine.0.borrow().disk.clone();
    let Some(disk) = disk else { return true };
    let contents = parse(&disk, "j");
    assert_eq!(contents.damage, [], "a crash does not look like damage");
    machine.0.borrow_mut().writer = contents.writer;
    let report = roll_back(&mut machine.clone(), &contents.entries, &mut |entries| {
        let _ = machine.clone().append_all(entries);
    });
    report.is_settled()
}

fn power_on(machine: &Shared, steps: Option<usize>) {
    let mut machine = machine.0.borrow_mut();
    machine.dead = false;
    machine.steps = steps;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_run_cut_short_anywhere_is_undone(
        steps in prop::collection::vec(step(), 0..12),
        power in 0_usize..40,
        again in 0_usize..6,
        last_gasp in 0_usize..10_000,
    ) {
        let machine = Shared::default();
        machine.0.borrow_mut().steps = Some(power);
        machine.0.borrow_mut().last_gasp = last_gasp;
        let (run, wanted) = play(&machine, &steps);
        // After a power failure the process must write nothing.
        machine.0.borrow_mut().dead = true;
        drop(run);
        // The first recovery may be interrupted, too.
        power_on(&machine, Some(again));
        let _ = recover(&machine);
        power_on(&machine, None);
        prop_assert!(recover(&machine));
        prop_assert_eq!(&machine.0.borrow().knobs, &wanted);
    }

    #[test]
    fn a_run_that_ends_undoes_itself(steps in prop::collection::vec(step(), 0..12), dropped in any::<bool>()) {
        let machine = Shared::default();
        let (run, wanted) = play(&machine, &steps);
        let run = run.unwrap();
        if dropped {
            drop(run);
        } else {
            prop_assert!(run.finish().unwrap().is_settled());
        }
        prop_assert_eq!(&machine.0.borrow().knobs, &wanted);
        prop_assert_eq!(&machine.0.borrow().disk, &None);
    }
}

const QUEUES: u32 = 4;
const CHANNELS: Knob = Knob::Channels(Channels::Tx);

fn map_of(queue: u32) -> Knob {
    Knob::InterfaceFile(format!("queues/tx-{queue}/xps_cpus"))
}

fn map(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// Creates a run on four queues, each with an XPS map.
fn run_with_queues(machine: &Shared, driver: (&'static str, bool)) -> Option<Run<Shared, Shared>> {
    let (run, _) = play(machine, &[]);
    let mut queues: BTreeMap<Knob, Value> =
        (0..QUEUES).map(|queue| (map_of(queue), map(&format!("{}", 1 << queue)))).collect();
    queues.insert(CHANNELS, Value::Number(QUEUES));
    let mut machine = machine.0.borrow_mut();
    machine.knobs = queues;
    machine.driver = driver;
    run
}

/// The driver may set the maps to any value. The run and the first rollback may each be interrupted
/// anywhere.
#[test]
fn maps_that_went_with_their_channels_are_restored() {
    for driver in [("0", false), ("f", false), ("0", true), ("f", true)] {
        for (power, again, last_gasp) in
            (0..40).flat_map(|power| (0..30).map(move |again| (power, again, again + power / 2)))
        {
            let machine = Shared::default();
            machine.0.borrow_mut().last_gasp = last_gasp;
            machine.0.borrow_mut().steps = Some(power);
            let run = run_with_queues(&machine, driver);
            let before = machine.0.borrow().knobs.clone();
            let mut run = run;
            if let Some(run) = &mut run {
                let _ = run.change(&Change::new(CHANNELS, Value::Number(2))).and_then(|()| {
                    run.change(&Change::new(map_of(1), map("3")))?;
                    run.change(&Change::new(CHANNELS, Value::Number(3)))
                });
            }
            machine.0.borrow_mut().dead = true;
            drop(run);
            power_on(&machine, Some(again));
            let _ = recover(&machine);
            power_on(&machine, None);
            assert!(recover(&machine));
            assert_eq!(machine.0.borrow().knobs, before, "{driver:?} {power} {again} {last_gasp}");
        }
    }
}

#[test]
fn maps_are_back_when_the_run_itself_restores_the_channels() {
    let machine = Shared::default();
    let mut run = run_with_queues(&machine, ("f", true)).unwrap();
    let before = machine.0.borrow().knobs.clone();
    run.change(&Change::new(CHANNELS, Value::Number(2))).unwrap();
    run.change(&Change::new(CHANNELS, Value::Number(QUEUES))).unwrap();
    assert_eq!(machine.0.borrow().knobs, before);
    assert_eq!(run.finish().unwrap().to_string(), "0 settings restored, 1 already as before");
}

#[test]
fn maps_that_another_program_set_since_stay() {
    let machine = Shared::default();
    let mut run = run_with_queues(&machine, ("0", false)).unwrap();
    run.change(&Change::new(CHANNELS, Value::Number(2))).unwrap();
    machine.0.borrow_mut().knobs.insert(map_of(0), map("5"));
    let report = run.finish().unwrap();
    assert_eq!(report.to_string(), "3 settings restored, 1 left as set by another program");
    assert_eq!(
        report.remarks("x"),
        [
            "/sys/class/net/x/queues/tx-0/xps_cpus is left as another program set it: '5'; the old value was '1'"
        ]
    );
    assert_eq!(
        (0..QUEUES).map(|queue| machine.0.borrow().knobs[&map_of(queue)].clone()).collect::<Vec<_>>(),
        ["5", "2", "4", "8"].map(map)
    );

    // Other programs set the channels, and the map of a queue that was added again.
    let machine = Shared::default();
    let mut run = run_with_queues(&machine, ("0", false)).unwrap();
    run.change(&Change::new(CHANNELS, Value::Number(2))).unwrap();
    machine.0.borrow_mut().knobs.insert(CHANNELS, Value::Number(QUEUES));
    machine.0.borrow_mut().renew_queues(QUEUES);
    machine.0.borrow_mut().knobs.insert(map_of(2), map("7"));
    assert_eq!(run.restore().left_alone.len(), 1);
    assert_eq!(
        (0..QUEUES).map(|queue| machine.0.borrow().knobs[&map_of(queue)].clone()).collect::<Vec<_>>(),
        ["1", "2", "7", "8"].map(map)
    );
}

#[test]
fn a_value_that_another_program_sets_during_a_journal_write_stays() {
    let knob = map_of(0);
    for theirs in ["7", "2"] {
        let machine = Shared::default();
        let mut run = run_with_queues(&machine, ("0", false)).unwrap();
        machine.0.borrow_mut().meanwhile = Some((knob.clone(), map(theirs)));
        let error = run.change(&Change::new(knob.clone(), map("2"))).unwrap_err().to_string();
        assert!(
            error.starts_with("another program set ") && error.ends_with(&format!("to '{theirs}'")),
            "{error}"
        );
        let report = run.finish().unwrap();
        assert_eq!((report.restored.len(), report.left_alone.len()), (0, 1), "{theirs}");
        assert_eq!(machine.0.borrow().knobs[&knob], map(theirs));
    }
}

#[test]
fn what_another_program_set_is_named_with_what_it_was() {
    let machine = Shared::default();
    let (run, _) = play(&machine, &[Step::Change(0, 3), Step::ByHand(0, 1)]);
    let mut run = run.unwrap();
    let disturbances = run.disturbances().unwrap();
    assert_eq!(
        disturbances.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "another program set gso_max_size of x to 201 bytes (IPv4: 100) (evenkeel had set 3 bytes (IPv4: 1))"
        ]
    );
    let report = run.finish().unwrap();
    assert_eq!(report.to_string(), "0 settings restored, 1 left as set by another program");
    let remarks = report.remarks("x");
    assert!(
        remarks[0].contains("201 bytes") && remarks[0].contains("the old value was 100 bytes"),
        "{}",
        remarks[0]
    );
}

#[test]
fn a_value_that_the_journal_does_not_have_is_not_set() {
    let machine = Shared::default();
    let (run, _) = play(&machine, &[Step::Allow(0, 1, 2)]);
    let mut run = run.unwrap();
    assert!(run.set(&knob(0), &value(&knob(0), 3)).is_err());
    assert!(run.set(&knob(1), &value(&knob(1), 1)).is_err());
    run.set(&knob(0), &value(&knob(0), 2)).unwrap();
    run.set(&knob(0), &value(&knob(0), ORIGINAL)).unwrap();
}

#[test]
fn a_knob_that_is_gone_is_no_failure() {
    let machine = Shared::default();
    let (run, _) = play(&machine, &[Step::Change(0, 3), Step::Change(1, 3)]);
    machine.0.borrow_mut().knobs.remove(&knob(0));
    let report = run.unwrap().finish().unwrap();
    assert_eq!((report.gone.as_slice(), report.restored.len()), (&[knob(0)][..], 1));
    assert_eq!(machine.0.borrow().disk, None);
}

/// The journal allows the value. Only the run's memory of its last write shows that another program set
/// the value.
#[test]
fn what_another_program_set_stays_even_if_the_run_might_have_set_it() {
    let machine = Shared::default();
    let (run, _) = play(&machine, &[Step::Allow(0, 1, 2)]);
    let mut run = run.unwrap();
    machine.0.borrow_mut().knobs.insert(knob(0), value(&knob(0), 1));
    run.has_set(&knob(0), Some(value(&knob(0), 1)));
    assert!(run.disturbances().unwrap().is_empty());
    machine.0.borrow_mut().knobs.insert(knob(0), value(&knob(0), 2));
    assert_eq!(run.disturbances().unwrap().len(), 1);
    assert_eq!(run.restore().left_alone.len(), 1);
    // A recovery after a crash finds the same journal on the disk.
    let disk = machine.0.borrow().disk.clone().unwrap();
    let entries = parse(&disk, "j").entries;
    assert!(entries[0].theirs, "{entries:?}");
    assert_eq!(run.finish().unwrap().to_string(), "0 settings restored, 1 left as set by another program");
    assert_eq!(machine.0.borrow().knobs[&knob(0)], value(&knob(0), 2));
}

/// If the run does not know which value it set last, the journal decides, as after a crash.
#[test]
fn a_value_that_the_run_does_not_vouch_for_is_put_back_if_it_may_be_its_own() {
    let machine = Shared::default();
    let (run, _) = play(&machine, &[Step::Allow(0, 1, 2)]);
    let mut run = run.unwrap();
    run.has_set(&knob(0), Some(value(&knob(0), 1)));
    run.has_set(&knob(0), None);
    machine.0.borrow_mut().knobs.insert(knob(0), value(&knob(0), 2));
    assert_eq!(run.finish().unwrap().to_string(), "1 setting restored");
}
