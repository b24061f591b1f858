//! Forecasts of the findings of a check, and of a plan to tune an interface.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::host::HostFacts;
use evenkeel_model::machine::MachineProfile;
use evenkeel_model::world::Observer;
use evenkeel_placement::Finding;
use evenkeel_placement::applied::apply;
use evenkeel_placement::tune::Step;

use crate::effect::Effect;
use crate::receiver::{Modelled, Receiver, nic_of};
use crate::runs::{Interrupted, Run, Runs, run, work};

/// Maximum work of a forecast, bit (see [`work`]): 24 hosts with 100 Gbit/s and a short round trip, at most
/// 20 s on two cores.
const MOST_WORK: f64 = 24.0 * 100e9;

const NO_NIC: &str = "no NIC is up, but the model needs a NIC that receives";

/// The simulated effect of a change, or the reason why there is no simulated effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Effect(Effect),
    /// The change affects nothing that the model contains, or the model does not support the host, or the
    /// simulator failed.
    Outside,
    /// Too little of the permitted work is left for the simulation.
    NoTime,
}

impl Verdict {
    #[must_use]
    pub fn effect(&self) -> Option<&Effect> {
        match self {
            Self::Effect(effect) => Some(effect),
            Self::Outside | Self::NoTime => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    pub modelled: Modelled,
    /// The host without a change: before and after are the same runs.
    pub effect: Effect,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    pub nics: Vec<Simulated>,
    /// Reasons why the model does not support a NIC or the host, and failures of the simulator.
    pub obstacles: Vec<String>,
    /// The verdicts, in the order of the findings.
    pub verdicts: Vec<Verdict>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlanForecast {
    /// The NIC, or the reason why the model does not support it, or a failure of the simulator.
    pub nic: Result<Modelled, String>,
    pub all: Verdict,
    /// For each rule: the effect of its changes alone, and the effect of the changes of all other rules.
    pub rules: Vec<(&'static str, Verdict, Verdict)>,
}

/// The receivers to simulate, without duplicates.
#[derive(Default)]
struct Cases {
    receivers: Vec<Receiver>,
    work: f64,
}

impl Cases {
    /// Returns the index of a receiver's runs; `None` if the runs would exceed [`MOST_WORK`]. The first
    /// receiver has no limit.
    fn add(&mut self, receiver: &Receiver) -> Option<usize> {
        if let Some(at) = self.receivers.iter().position(|known| known == receiver) {
            return Some(at);
        }
        let work = work(receiver);
        if !self.receivers.is_empty() && self.work + work > MOST_WORK {
            return None;
        }
        self.work += work;
        self.receivers.push(receiver.clone());
        Some(self.receivers.len() - 1)
    }

    fn compare(&mut self, before: &Receiver, after: &Receiver) -> Compared {
        if before == after {
            return Compared::Same;
        }
        match (self.add(before), self.add(after)) {
            (Some(before), Some(after)) => Compared::Runs(before, after),
            _ => Compared::NoTime,
        }
    }

    fn run(&self, observer: &dyn Observer) -> Result<Vec<Runs>, Interrupted> {
        run(&self.receivers.iter().collect::<Vec<_>>(), observer)
    }
}

#[derive(Clone, Copy)]
enum Compared {
    Same,
    Runs(usize, usize),
    NoTime,
}

impl Compared {
    fn verdict(self, runs: &[Runs]) -> Verdict {
        match self {
            Self::Same => Verdict::Outside,
            Self::Runs(before, after) => match (of(runs, before), of(runs, after)) {
                (Some(before), Some(after)) => Verdict::Effect(Effect::of(before, after)),
                _ => Verdict::Outside,
            },
            Self::NoTime => Verdict::NoTime,
        }
    }
}

fn failures(runs: &[Runs]) -> impl Iterator<Item = String> {
    runs.iter().filter_map(|runs| Some(format!("the simulator failed ({})", runs.as_ref().err()?)))
}

/// Returns the runs of a receiver; `None` if the simulator failed.
fn of(runs: &[Runs], at: usize) -> Option<&[Run]> {
    runs.get(at)?.as_deref().ok()
}

/// Simulates the host without a change, and with the fix of each finding alone. If the work exceeds its
/// limit, the first findings have priority. `only` names the checked interface, if any.
///
/// # Errors
/// Returns an error if the observer interrupts the simulations.
pub fn of_findings(
    facts: &HostFacts,
    only: Option<&str>,
    findings: &[Finding],
    profile: Option<&MachineProfile>,
    observer: &dyn Observer,
) -> Result<Forecast, Interrupted> {
    let mut hosts =
        Hosts { facts, profile, now: BTreeMap::new(), obstacles: Vec::new(), cases: Cases::default() };
    if let Some(now) = hosts.now(&[only]) {
        hosts.cases.add(&now.receiver);
    }
    let compared: Vec<Compared> = findings.iter().map(|finding| hosts.compare(finding)).collect();
    let Hosts { now, mut obstacles, cases, .. } = hosts;
    let runs = cases.run(observer)?;
    obstacles.extend(failures(&runs));
    let mut seen = BTreeSet::new();
    obstacles.retain(|why| seen.insert(why.clone()));
    let verdicts = compared.into_iter().map(|compared| compared.verdict(&runs)).collect();
    // If no fix of a NIC was simulated, the NIC may have no runs.
    let nics = now.into_values().flatten().filter_map(|modelled| {
        let at = cases.receivers.iter().position(|receiver| *receiver == modelled.receiver)?;
        let own = of(&runs, at)?;
        Some(Simulated { effect: Effect::of(own, own), modelled })
    });
    Ok(Forecast { nics: nics.collect(), obstacles, verdicts })
}

/// The host, with the traffic through each of its NICs.
struct Hosts<'f> {
    facts: &'f HostFacts,
    profile: Option<&'f MachineProfile>,
    /// The unchanged host, by NIC; `None` if the model does not support the NIC.
    now: BTreeMap<String, Option<Modelled>>,
    obstacles: Vec<String>,
    cases: Cases,
}

impl Hosts<'_> {
    /// Returns the unchanged host, with the traffic through the first NIC of these names. If no name is
    /// a NIC, the traffic uses the fastest NIC. Returns `None` if no NIC is up, or the model does not support
    /// the NIC.
    fn now(&mut self, names: &[Option<&str>]) -> Option<Modelled> {
        let Some(nic) = nic_of(self.facts, names) else {
            self.obstacles.push(NO_NIC.to_owned());
            return None;
        };
        if !self.now.contains_key(&nic.name) {
            let now =
                Modelled::of(self.facts, nic, self.profile).map_err(|why| self.obstacles.push(why)).ok();
            self.now.insert(nic.name.clone(), now);
        }
        self.now.get(&nic.name)?.clone()
    }

    fn compare(&mut self, finding: &Finding) -> Compared {
        let (interface, changes) = (finding.remedy.interface.as_deref(), &finding.remedy.changes);
        if changes.is_empty() {
            return Compared::Same;
        }
        let Some(now) = self.now(&[interface, Some(&finding.subject)]) else { return Compared::Same };
        let then =
            changed(self.facts, &now.interface, self.profile, |facts| apply(facts, interface, changes));
        then.map_or(Compared::Same, |then| self.cases.compare(&now.receiver, &then.receiver))
    }
}

/// Simulates an interface's host with all steps of a plan, with the steps of each rule alone, and with
/// the steps of all other rules.
///
/// # Errors
/// Returns an error if the observer interrupts the simulations.
pub fn of_plan(
    facts: &HostFacts,
    interface: &str,
    steps: &[Step],
    profile: Option<&MachineProfile>,
    observer: &dyn Observer,
) -> Result<PlanForecast, Interrupted> {
    let outside = |nic| PlanForecast { nic, all: Verdict::Outside, rules: Vec::new() };
    let Some(nic) = nic_of(facts, &[Some(interface)]) else { return Ok(outside(Err(NO_NIC.to_owned()))) };
    let now = match Modelled::of(facts, nic, profile) {
        Ok(now) => now,
        Err(why) => return Ok(outside(Err(why))),
    };
    let with = |is_made: &dyn Fn(&Step) -> bool| {
        let changes: Vec<_> = steps.iter().filter(|step| is_made(step)).map(|step| &step.change).collect();
        // Ignore the result: without the other steps, a step may lack its object, such as the interrupt of
        // a new queue.
        let then = changed(facts, &nic.name, profile, |facts| {
            apply(facts, Some(interface), changes.iter().copied());
            true
        });
        then.map_or_else(|| now.receiver.clone(), |then| then.receiver)
    };
    let mut names: Vec<&'static str> = Vec::new();
    for step in steps {
        if !names.contains(&step.rule) {
            names.push(step.rule);
        }
    }
    let mut cases = Cases::default();
    let whole = with(&|_| true);
    let all = cases.compare(&now.receiver, &whole);
    let mut rules = Vec::new();
    for name in names {
        let alone = cases.compare(&now.receiver, &with(&|step| step.rule == name));
        rules.push((name, alone, with(&|step| step.rule != name)));
    }
    let rules: Vec<_> = rules
        .into_iter()
        .map(|(name, alone, others)| {
            let without = match alone {
                Compared::Same if others == whole => Compared::Same,
                _ if others == now.receiver => Compared::Same,
                _ => cases.compare(&now.receiver, &others),
            };
            (name, alone, without)
        })
        .collect();
    let runs = cases.run(observer)?;
    let rules = rules
        .into_iter()
        .map(|(name, alone, without)| (name, alone.verdict(&runs), without.verdict(&runs)))
        .collect();
    let nic = failures(&runs).next().map_or(Ok(now), Err);
    Ok(PlanForecast { nic, all: all.verdict(&runs), rules })
}

/// Returns the host after a change; `None` if the change is not possible or the model does not support
/// the result.
fn changed(
    facts: &HostFacts,
    nic: &str,
    profile: Option<&MachineProfile>,
    change: impl FnOnce(&mut HostFacts) -> bool,
) -> Option<Modelled> {
    let mut facts = facts.clone();
    if !change(&mut facts) {
        return None;
    }
    Modelled::of(&facts, facts.interface(nic)?, profile).ok()
}
