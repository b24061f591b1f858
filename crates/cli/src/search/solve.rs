//! `evenkeel search solve`: finds the filters for a list of flows, and the queue of each flow.

use std::time::Instant;

use evenkeel_model::text::counted;
use evenkeel_receive::policy::{ClassState, Flow, queue_ranges};
use evenkeel_receive::search::{Optimum, Search, optimum};
use evenkeel_receive::{FlowIndex, QueueId, TableId};
use evenkeel_report::page::{Heading, Page};
use serde_json::{Value, json};

use super::configuration::Configuration;
use super::{bind, configure, load_policy, require_memory, room};
use crate::arguments::{Format, SolveOptions};
use crate::exit::{Exit, Failure, print, print_page};
use crate::progress::{page, with_progress};
use crate::{listed_flows, nic};

/// Memory of a filter and of a flow's queue in JSON, as a tree and as text, bytes.
const JSON_FILTER_BYTES: usize = 2_000;
const JSON_FLOW_BYTES: usize = 60;

/// Runs `evenkeel search solve`. An unmet policy is a result, not an error.
pub fn solve(options: &SolveOptions) -> Result<Exit, Failure> {
    let file = load_policy(&options.policy)?;
    let mut nic = configure(nic::load(&options.nic, &options.source)?, &options.table_sizes, options.queues)?;
    if options.contexts {
        nic.allow_contexts(u16::MAX);
    }
    let fits = |flows: usize| {
        let filters = room(nic.model()).min(flows);
        let of_json = match options.format {
            Format::Json => filters * JSON_FILTER_BYTES + flows * JSON_FLOW_BYTES,
            Format::Table => 0,
        };
        require_memory(flows, filters, of_json)
    };
    let flows = listed_flows::read(&options.listed, &file, options.queues, fits)?.unwrap_or_default();
    let policy = bind(&file, options.queues)?;
    let best = {
        let seen: Vec<Flow> = flows.iter().map(|flow| policy.classify(flow)).collect();
        optimum(&policy, &seen)
    };

    let begin = Instant::now();
    let fail = |error: evenkeel_receive::search::SearchError| Failure::new(Exit::Usage, error);
    let mut search = Search::new(nic, policy).map_err(fail)?;
    let (progress, activity) = (search.progress(), format!("search for {}", counted(flows.len(), "flow")));
    let indices =
        with_progress(|| (progress.fraction(), activity.clone()), || search.solve(&flows)).map_err(fail)?;
    let search_us = begin.elapsed().as_nanos() as f64 / 1e3;

    let solved = Solved { search, indices, search_us, best };
    match options.format {
        Format::Json => print(&format!("{:#}\n", solved.json()))?,
        Format::Table => print_page(solved.page())?,
    }
    Ok(Exit::Done)
}

struct Solved {
    search: Search,
    /// Indices of the flows, in the order of the list.
    indices: Vec<FlowIndex>,
    search_us: f64,
    best: Option<Optimum>,
}

impl Solved {
    fn queue(&self, index: FlowIndex) -> QueueId {
        self.search.map().queue(index).unwrap_or_default()
    }

    fn json(&self) -> Value {
        let cost = self.search.cost();
        let found = Configuration::of(&self.search);
        let map: Vec<u16> = self.indices.iter().map(|index| self.queue(*index).0).collect();
        let (verdict, unmet) = self.search.verdict();
        let unmet: Vec<Value> = unmet
            .into_iter()
            .map(|unmet| {
                json!({
                    "class": unmet.class,
                    "flows": unmet.flows,
                    "violation": unmet.is_violation,
                    "reason": unmet.reason,
                })
            })
            .collect();
        let classes: Vec<Value> =
            self.search.policy().class_states().map(|class| class_json(&class)).collect();
        let optimum = self.best.map(|best| {
            json!({
                "cost": best.cost.value(),
                "exact": best.is_exact,
                "gap": (cost - best.cost).value(),
            })
        });
        let mut json = json!({
            "accepted": verdict.is_accepted(),
            "met": verdict.is_met(),
            "cost": cost.value(),
            "violations": cost.violations,
            "search_us": self.search_us,
            "filters": found.filters,
            "rss": found.rss,
            "map": map,
            "classes": classes,
            "unmet": unmet,
            "optimum": optimum,
            "remarks": self.search.remarks(),
        });
        if let Some(object) = json.as_object_mut().filter(|_| !found.contexts.is_empty()) {
            object.insert("contexts".to_owned(), json!(found.contexts));
        }
        json
    }

    fn page(&self) -> Page {
        let mut page = page();
        let (nic, cost) = (self.search.nic(), self.search.cost());
        let (verdict, unmet) = self.search.verdict();
        page.answer(&format!(
            "{} on {} of {}: policy {} {verdict}; cost {:.3}, found in {}.",
            counted(self.indices.len(), "flow"),
            counted(usize::from(nic.queues()), "queue"),
            nic.model().name(),
            self.search.policy().name(),
            cost.value(),
            duration(self.search_us)
        ));
        if let Some(best) = self.best {
            let what = if best.is_exact {
                "The best of all placements costs"
            } else {
                "No placement costs less than"
            };
            page.line(&format!("{what} {:.3}.", best.cost.value()));
        }
        for unmet in unmet {
            page.line(&unmet.to_string());
        }
        for remark in self.search.remarks() {
            page.line(&format!("Note: {remark}."));
        }
        page.gap();
        let queues: Vec<Vec<String>> = (0..nic.queues())
            .map(QueueId)
            .map(|queue| {
                let flows = self.search.map().flows_on(queue);
                let rates = flows.iter().filter_map(|flow| self.search.flow(*flow)).map(|flow| flow.rate_bps);
                // The sum is unknown if any rate is unknown.
                let rate = rates.sum::<Option<u64>>();
                let rate = rate.map_or("-".to_owned(), |rate| format!("{:.1} Mbit/s", rate as f64 / 1e6));
                vec![queue.0.to_string(), flows.len().to_string(), rate]
            })
            .collect();
        page.table(&[Heading::number("queue"), Heading::number("flows"), Heading::number("rate")], &queues);
        page.gap();
        let classes: Vec<Vec<String>> = self
            .search
            .policy()
            .class_states()
            .map(|class| {
                let queues = queue_ranges(&class.queues);
                vec![class.name.clone(), class.flows.to_string(), class.misplaced.to_string(), queues]
            })
            .collect();
        let columns = [
            Heading::text("class"),
            Heading::number("flows"),
            Heading::number("on other queues"),
            Heading::text("its queues"),
        ];
        page.table(&columns, &classes);
        page.gap();
        for (id, table) in (0..).map(TableId).zip(nic.model().tables()) {
            if nic.used(id) > 0 {
                page.line(&format!(
                    "{}: {}, room for {} more",
                    table.name,
                    counted(nic.used(id), "filter"),
                    nic.free(id)
                ));
            }
        }
        if !nic.indirection().is_empty() && nic.indirection() != nic.default_indirection() {
            page.line("The indirection table of RSS differs from the default; --format json prints it.");
        }
        page.line("--format json prints the filters.");
        page
    }
}

fn duration(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

fn class_json(class: &ClassState) -> Value {
    let queues: Vec<u16> = class.queues.iter().map(|queue| queue.0).collect();
    json!({"name": class.name, "queues": queues, "flows": class.flows, "misplaced": class.misplaced})
}
