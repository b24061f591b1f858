//! The first screen: the compared variants, the best variant, the size of the difference and its
//! uncertainty.

use evenkeel_model::record::Record;
use maud::{Markup, html};

use super::figure::Level;
use crate::format::clean;
use crate::table::{expectation_text, expectations_title, setup};
use crate::{answer, format};

pub(super) fn title(record: &Record) -> String {
    let world = match record.world.as_str() {
        "sim" => "in the simulator".to_owned(),
        "netns" => format!("on Linux {}", format::kernel(&record.kernel)),
        other => format!("on {other}"),
    };
    clean(&format!("{} {world}", record.scenario))
}

pub(super) fn summary(record: &Record, level: Level) -> Markup {
    html! {
        div.answer { @for sentence in answer(record) { p { (sentence) } } }
        p.setup {
            @for (index, line) in setup(record).iter().enumerate() {
                @if index > 0 { br; }
                (clean(line))
            }
            @if let Some(host) = host(record) { br; (host) }
        }
        @if !record.expectations.is_empty() {
            (level.heading(&expectations_title(record)))
            ul.expectations {
                @for expectation in &record.expectations {
                    @let (class, verdict) = match expectation.met {
                        Some(true) => ("met", "met"),
                        Some(false) => ("unmet", "not met"),
                        None => ("open", "open"),
                    };
                    li { strong class=(class) { (verdict) } " " (clean(&expectation_text(expectation))) }
                }
            }
        }
    }
}

/// Returns one line about the machine. Returns `None` without facts about the machine, as for the simulator,
/// whose result does not depend on the machine.
fn host(record: &Record) -> Option<String> {
    let fact = |key: &str| record.host.get(key);
    let cpus = fact("cpus").map(|cpus| format!("{cpus} CPUs"));
    let facts = [fact("cpu").cloned(), cpus, fact("memory").cloned(), fact("distribution").cloned()];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    (!facts.is_empty()).then(|| clean(&facts.join(", ")))
}
