//! Flows of a trace file or a generator, for `search` and `steer --plan`.

use std::collections::BTreeSet;

use evenkeel_files::{Kind, Text};
use evenkeel_model::text::nearest;
use evenkeel_receive::flows::{self, ObservedFlow};
use evenkeel_receive::policy::PolicyFile;

use crate::arguments::ListedFlows;
use crate::exit::{Exit, Failure, say};
use crate::input;

/// Reads or generates the flows that the command line names; `None` if it names none. `fits` refuses a
/// number of flows that is too large. The listed current queues must be below `queues`. Warns about
/// classes that the policy does not have.
pub fn read(
    listed: &ListedFlows,
    policy: &PolicyFile,
    queues: u16,
    fits: impl Fn(usize) -> Result<(), Failure>,
) -> Result<Option<Vec<ObservedFlow>>, Failure> {
    if let Some(count) = listed.generate {
        fits(count as usize)?;
        return Ok(Some(generate(policy, 0, count)));
    }
    let Some(path) = &listed.flows else { return Ok(None) };
    let Text { text, origin } = input::read(path, Kind::FlowList)?;
    let flows = flows::parse(&text, &origin, queues).map_err(|error| Failure::new(Exit::Usage, error))?;
    fits(flows.len())?;
    tell_unknown_classes(policy, &flows, &origin);
    Ok(Some(flows))
}

/// Generates flows, 16 per client. If the policy has classes, every tenth client belongs to the first
/// class.
pub fn generate(policy: &PolicyFile, first: u32, count: u32) -> Vec<ObservedFlow> {
    let label = policy.classes.first().and_then(|class| class.selector.labels.first());
    let flows = flows::generate(first, count).zip(first..);
    flows
        .map(|(flow, number)| ObservedFlow {
            class: label.filter(|_| number / 16 % 10 == 0).cloned(),
            ..flow
        })
        .collect()
}

/// Class names that mean no class.
const REST: [&str; 6] = ["rest", "be", "best-effort", "best_effort", "low", "default"];

/// Warns about classes that the policy does not have: the user may have misspelt them.
fn tell_unknown_classes(policy: &PolicyFile, flows: &[ObservedFlow], origin: &str) {
    let labels: BTreeSet<String> = policy
        .classes
        .iter()
        .flat_map(|class| &class.selector.labels)
        .map(|label| label.to_lowercase())
        .collect();
    if labels.is_empty() {
        return;
    }
    let named: BTreeSet<&str> = flows.iter().filter_map(|flow| flow.class.as_deref()).collect();
    let unknown: Vec<String> = named
        .into_iter()
        .filter(|name| {
            !labels.contains(&name.to_lowercase()) && !REST.contains(&name.to_lowercase().as_str())
        })
        .map(|name| {
            let near = nearest(name, labels.iter().map(String::as_str));
            let hint = near.map(|near| format!(" (did you mean '{}'?)", near.escape_debug()));
            format!("{}{}", name.escape_debug(), hint.unwrap_or_default())
        })
        .collect();
    if !unknown.is_empty() {
        let message = format!(
            "{origin}: the policy does not have the class of some flows, so these flows belong to the class 'rest': {}",
            unknown.join(", ")
        );
        say(&format!("evenkeel: {message}"));
    }
}
