//! `evenkeel tune`: changes what `evenkeel check` found, and nothing else.

mod apply;
mod files;
mod show;

use std::path::{Path, PathBuf};

use evenkeel_apply::{Etc, Kernel, LiveKernel};
use evenkeel_host::facts::{Tree, read_facts};
use evenkeel_host::{HostError, Sysfs};
use evenkeel_model::change::{Change, Value};
use evenkeel_model::host::{HostFacts, Interface};
use evenkeel_placement::tune::{Keep, TuningPlan};
use evenkeel_placement::{Finding, check as find};

use crate::arguments::{Format, TuneOptions};
use crate::exit::{Exit, Failure, print};
use crate::live::Signals;

/// Where settings to keep are listed, below `/etc`.
const KEEP: &str = "evenkeel/keep.toml";

/// A change with what it changes.
#[derive(Clone, Debug)]
pub struct Ready {
    pub rule: &'static str,
    pub change: Change,
    /// What it is now; none where that cannot be known here.
    pub from: Option<Value>,
}

/// What is to be done.
pub struct Prepared {
    pub facts: HostFacts,
    pub plan: TuningPlan,
    /// The plan's steps that change something.
    pub ready: Vec<Ready>,
    /// Steps that cannot be made here, and why.
    pub unable: Vec<(&'static str, Change, String)>,
}

/// Runs `evenkeel tune`.
pub fn tune(options: &TuneOptions) -> Result<Exit, Failure> {
    // Before anything is changed, so that a signal finds somebody who takes it back.
    let signals = Signals::catch()?;
    let keep = keep(options.keep.as_deref())?;
    let only = options.apply.clone().unwrap_or_default();
    let prepared = prepare(options, &keep, &only)?;
    if options.apply.is_some() {
        return apply::apply(options, &keep, prepared, &signals);
    }
    let files = files::planned(options, &prepared)?;
    match options.format {
        Format::Table => print(&show::plan(&options.interface, &prepared, &files))?,
        Format::Json => print(&format!("{:#}\n", show::plan_json(&options.interface, &prepared)))?,
    }
    Ok(Exit::Done)
}

/// Reads the host, checks it, and plans.
pub fn prepare(options: &TuneOptions, keep: &Keep, only: &[String]) -> Result<Prepared, Failure> {
    let facts = read(options.from.as_deref())?;
    let name = &options.interface;
    let Some(interface) = facts.interface(name) else {
        let known: Vec<&str> = facts.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        let message = format!("there is no interface {name} here; there are: {}", known.join(", "));
        return Err(Failure::new(Exit::Usage, message));
    };
    let findings = find(&facts);
    plan(&facts, interface, &findings, keep, only, options.from.is_none())
}

fn plan(
    facts: &HostFacts,
    interface: &Interface,
    findings: &[Finding],
    keep: &Keep,
    only: &[String],
    live: bool,
) -> Result<Prepared, Failure> {
    let plan = TuningPlan::new(facts, findings, &interface.name, keep, only)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    let mut kernel = match (live, interface.index) {
        (true, Some(index)) => Some(look(index, &interface.name)?),
        _ => None,
    };
    let (mut ready, mut unable) = (Vec::new(), Vec::new());
    for step in &plan.steps {
        let from = match kernel.as_mut().map(|kernel| kernel.read(&step.change.knob)) {
            Some(Ok(value)) => Some(value),
            Some(Err(error)) => {
                unable.push((step.rule, step.change.clone(), error.to_string()));
                continue;
            }
            None => None,
        };
        if from.as_ref().is_some_and(|from| step.change.knob.same(from, &step.change.to)) {
            continue;
        }
        ready.push(Ready { rule: step.rule, change: step.change.clone(), from });
    }
    Ok(Prepared { facts: facts.clone(), plan, ready, unable })
}

fn read(from: Option<&Path>) -> Result<HostFacts, Failure> {
    let failure = |error: HostError| Failure::with_causes(Exit::Usage, &error);
    let tree = match from {
        Some(directory) => Tree::recorded(directory).map_err(failure)?,
        None => Tree::live(),
    };
    read_facts(&tree).map_err(failure)
}

/// The file that lists what is kept: one that is named has to be there.
fn keep(named: Option<&Path>) -> Result<Keep, Failure> {
    let path: PathBuf = named.map_or_else(|| Etc::from_environment().path(KEEP), Path::to_owned);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Keep::default());
        }
        Err(error) => {
            return Err(Failure::new(Exit::Usage, format!("cannot read {}: {error}", path.display())));
        }
    };
    Keep::parse(&text, &path.display().to_string()).map_err(|error| Failure::new(Exit::Usage, error))
}

/// To look only: whoever may not have a sysfs of the namespace looks at the one that is mounted.
fn look(index: u32, name: &str) -> Result<LiveKernel, Failure> {
    let kernel =
        LiveKernel::open(index, name).or_else(|_| LiveKernel::with_sysfs(index, name, Sysfs::at("/sys")));
    kernel.map_err(|error| Failure::with_causes(Exit::Unable, &error))
}
