//! `evenkeel search bench`: measures the search's time, and compares it with Table 1 of the Dragonet
//! paper (TRIOS 2015).

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_metrics::Summary;
use evenkeel_model::text::counted;
use evenkeel_receive::flows::ObservedFlow;
use evenkeel_receive::policy::PolicyFile;
use evenkeel_receive::search::{Progress, Search, SearchError, Verdict};
use evenkeel_receive::{ConfiguredNic, FlowIndex, NicModel, QueueId};
use evenkeel_report::page::{Heading, Page};
use serde_json::{Map, Value, json};

use super::{bind, configure, load_policy, require_memory, room};
use crate::arguments::{BenchOptions, Format};
use crate::exit::{Exit, Failure, print, print_page};
use crate::listed_flows::generate;
use crate::nic;
use crate::progress::{page, with_progress};

/// A row of Dragonet's Table 1 (TRIOS 2015): Intel i82599, 10 queues, balance.
struct PaperRow {
    flows: u32,
    /// Figures in the order and units of [`COLUMNS`].
    figures: [f64; 6],
}

/// The columns, with the paper's headings. Incremental searches are in µs here; the paper gives ms for
/// new flows.
const COLUMNS: [(&str, &str, &str); 6] = [
    ("basic_full_ms", "basic, full", "ms"),
    ("full_ms", "full", "ms"),
    ("add_1_us", "+1 flow", "µs"),
    ("add_10_us", "+10 flows", "µs"),
    ("remove_1_us", "-1 flow", "µs"),
    ("remove_10_us", "-10 flows", "µs"),
];
/// Indices in [`COLUMNS`].
const BASIC: usize = 0;
const FULL: usize = 1;
const ORDER: [usize; 6] = [FULL, BASIC, 2, 3, 4, 5];

const TABLE_1: [PaperRow; 4] = [
    PaperRow { flows: 10, figures: [11.0, 17.0, 2_000.0, 22_000.0, 9.0, 23.7] },
    PaperRow { flows: 100, figures: [1_200.0, 600.0, 9_000.0, 94_000.0, 74.0, 117.0] },
    PaperRow { flows: 250, figures: [13_000.0, 4_000.0, 21_000.0, 219_000.0, 190.0, 277.0] },
    PaperRow { flows: 500, figures: [76_000.0, 17_000.0, 43_000.0, 484_000.0, 382.0, 548.0] },
];

/// Maximum number of flows for which the basic search is measured: its time is quadratic in this
/// number.
const MOST_BASIC_FLOWS: u32 = 2_000;
/// Time after which no further repeat of a figure begins.
const LONGEST: Duration = Duration::from_secs(5);
/// Minimum number of repeats, regardless of their time.
const LEAST_REPEATS: u32 = 3;

pub fn bench(options: &BenchOptions) -> Result<Exit, Failure> {
    let stage = Mutex::new(Stage::default());
    let bench = Bench {
        options,
        policy: load_policy(&options.policy)?,
        model: nic::load(&options.nic, &options.source)?,
        stage: &stage,
    };
    let sizes = options.flows.map_or_else(|| TABLE_1.map(|row| row.flows).to_vec(), |flows| vec![flows]);
    let state = || stage.lock().unwrap_or_else(PoisonError::into_inner).state();
    let rows = with_progress(state, || bench.rows(&sizes))?;
    match options.format {
        Format::Table => print_page(bench.page(&rows))?,
        Format::Json => {
            let mut objects: Vec<Value> = rows.iter().map(|row| bench.json(row)).collect();
            let value = match (options.flows, objects.pop()) {
                (Some(_), Some(only)) => only,
                (_, last) => objects.into_iter().chain(last).collect(),
            };
            print(&format!("{value:#}\n"))?;
        }
    }
    Ok(Exit::Done)
}

struct Bench<'o> {
    options: &'o BenchOptions,
    policy: PolicyFile,
    model: NicModel,
    stage: &'o Mutex<Stage>,
}

#[derive(Default)]
struct Stage {
    /// Start and size of the row's share of the whole work.
    row: (f64, f64),
    flows: usize,
    /// Index of the figure in [`COLUMNS`].
    figure: usize,
    begun: Option<Instant>,
    /// Number of finished repeats of the figure, and the maximum number of repeats.
    repeat: (u32, u32),
    search: Option<Arc<Progress>>,
}

impl Stage {
    /// Returns the finished share of the work, and the activity.
    fn state(&self) -> (f64, String) {
        let search = self.search.as_ref().map_or(0.0, |search| search.fraction());
        let (done, most) = (f64::from(self.repeat.0) + search, f64::from(self.repeat.1.max(1)));
        // Apply the same rule as `Clock`.
        let spent = self.begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64() / LONGEST.as_secs_f64());
        let of_figure = (done / most).max((done / f64::from(LEAST_REPEATS)).min(spent)).min(1.0);
        let (begin, share) = self.row;
        let place = ORDER.iter().position(|figure| *figure == self.figure).unwrap_or(0);
        let fraction = begin + share * (place as f64 + of_figure) / ORDER.len() as f64;
        (fraction, format!("{}: {}", counted(self.flows, "flow"), COLUMNS[self.figure].1))
    }
}

struct Row {
    flows: u32,
    /// Figures in the order of [`COLUMNS`]; `None` if not measured.
    figures: [Option<Summary>; 6],
    cost: f64,
    verdict: Verdict,
    filters: usize,
    /// Minimum and maximum number of flows per queue.
    spread: (usize, usize),
    /// The table that was enlarged so that each flow can have a filter, and its new size.
    raised: Option<(String, usize)>,
}

impl Bench<'_> {
    fn rows(&self, sizes: &[u32]) -> Result<Vec<Row>, Failure> {
        // The time grows about quadratically with the number of flows.
        let work = |flows: u32| f64::from(flows).powi(2);
        let all: f64 = sizes.iter().copied().map(work).sum();
        let mut done = 0.0;
        let mut rows = Vec::with_capacity(sizes.len());
        for &flows in sizes {
            // Check that the memory suffices for a filter per flow.
            require_memory(flows as usize, flows as usize, 0)?;
            let share = work(flows) / all;
            self.at(|stage| *stage = Stage { row: (done, share), flows: flows as usize, ..Stage::default() });
            rows.push(self.row(flows)?);
            done += share;
        }
        Ok(rows)
    }

    fn at(&self, change: impl FnOnce(&mut Stage)) {
        change(&mut self.stage.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn begin(&self, figure: usize, repeat: u32, search: Option<Arc<Progress>>) {
        self.at(|stage| {
            if repeat == 0 {
                stage.begun = Some(Instant::now());
            }
            (stage.figure, stage.repeat, stage.search) = (figure, (repeat, self.options.repeat), search);
        });
    }

    fn row(&self, count: u32) -> Result<Row, Failure> {
        let flows = generate(&self.policy, 0, count);
        let further = generate(&self.policy, count, 10 * self.options.repeat.min(100));
        let (nic, raised) = self.nic(flows.len() + further.len())?;
        let start = || {
            let policy = bind(&self.policy, self.options.queues)?;
            Search::new(nic.clone(), policy).map_err(fail)
        };
        let solve = |search: &mut Search| search.solve(&flows).map(drop).map_err(fail);
        // The first search warms up the caches. The last search is the start of the incremental
        // searches. Keep only one search in memory: with many flows, each takes hundreds of megabytes.
        let mut first = start()?;
        solve(&mut first)?;
        let last = Cell::new(Some(first));
        let prepare = || {
            last.set(None);
            start()
        };
        let keep = |search| {
            last.set(Some(search));
            Ok(())
        };
        let full = self.repeat(FULL, prepare, solve, keep)?;
        let basic = match count {
            0..=MOST_BASIC_FLOWS => Some(self.repeat(BASIC, || Ok(start()?.basic()), solve, |_| Ok(()))?),
            _ => None,
        };
        let Some(solved) = last.take() else {
            return Err(Failure::new(
                Exit::Failed,
                "no full search finished, so there is nothing to measure; report this as a bug",
            ));
        };
        let indices = flows.iter().filter_map(|flow| solved.find(&flow.tuple)).collect();
        let filters = solved.nic().filters().count();
        let mut running = Running { search: solved, flows: &flows, further: &further, indices };
        let incremental = [
            running.add(1, ORDER[2], self)?,
            running.add(10, ORDER[3], self)?,
            running.remove(1, ORDER[4], self)?,
            running.remove(10, ORDER[5], self)?,
        ];
        let [add_1, add_10, remove_1, remove_10] = incremental.map(|times| summary(&times, 1e6));
        let basic = basic.and_then(|times| summary(&times, 1e3));
        let summaries = [basic, summary(&full, 1e3), add_1, add_10, remove_1, remove_10];
        let solved = running.search;
        let loads = || (0..self.options.queues).map(|queue| solved.map().flows_on(QueueId(queue)).len());
        Ok(Row {
            flows: count,
            figures: summaries,
            cost: solved.cost().value(),
            verdict: solved.verdict().0,
            filters,
            spread: (loads().min().unwrap_or(0), loads().max().unwrap_or(0)),
            raised,
        })
    }

    /// Returns the NIC. If it has no room for a filter per flow, enlarges the largest table, and also
    /// returns the table's name and its new size.
    fn nic(&self, flows: usize) -> Result<(ConfiguredNic, Option<(String, usize)>), Failure> {
        let tables = self.model.tables().iter().filter(|table| table.fields.take_flows());
        let largest = tables.max_by_key(|table| table.capacity);
        let raised = largest.filter(|_| room(&self.model) < flows).map(|table| (table.name.clone(), flows));
        let sizes: Vec<_> = raised
            .iter()
            .map(|(table, capacity)| crate::arguments::TableSize {
                table: table.clone(),
                capacity: *capacity,
            })
            .collect();
        let mut nic = configure(self.model.clone(), &sizes, self.options.queues)?;
        if self.options.no_rss {
            let unset = nic.set_indirection(Vec::new());
            unset.map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", self.model.name())))?;
        }
        Ok((nic, raised))
    }

    /// Measures `work` repeatedly, in seconds. The time excludes set-up and clean-up.
    fn repeat(
        &self,
        figure: usize,
        mut prepare: impl FnMut() -> Result<Search, Failure>,
        mut work: impl FnMut(&mut Search) -> Result<(), Failure>,
        mut clear: impl FnMut(Search) -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let mut clock = Clock::start();
        let mut times = Vec::new();
        for repeat in 0..self.options.repeat {
            if clock.is_over() {
                break;
            }
            let mut subject = prepare()?;
            self.begin(figure, repeat, Some(subject.progress()));
            let start = Instant::now();
            let done = work(&mut subject);
            times.push(start.elapsed().as_secs_f64());
            done?;
            clear(subject)?;
        }
        Ok(times)
    }

    fn json(&self, row: &Row) -> Value {
        let mut object = Map::new();
        object.insert("nic".to_owned(), self.model.name().into());
        object.insert("policy".to_owned(), self.policy.name.clone().into());
        object.insert("flows".to_owned(), row.flows.into());
        object.insert("queues".to_owned(), self.options.queues.into());
        for ((name, _, _), figure) in COLUMNS.iter().zip(&row.figures) {
            if let Some(figure) = figure {
                object.insert((*name).to_owned(), summary_json(figure));
            }
        }
        object.insert("rss".to_owned(), (!self.options.no_rss).into());
        object.insert("accepted".to_owned(), row.verdict.is_accepted().into());
        object.insert("met".to_owned(), row.verdict.is_met().into());
        object.insert("cost".to_owned(), row.cost.into());
        object.insert("filters".to_owned(), row.filters.into());
        object.insert("flows_per_queue".to_owned(), json!({"min": row.spread.0, "max": row.spread.1}));
        if let Some((table, capacity)) = &row.raised {
            object.insert("raised".to_owned(), json!({"table": table, "capacity": capacity}));
        }
        if let Some(paper) = self.paper(row) {
            let figures = COLUMNS.iter().zip(paper.figures).map(|((name, _, _), figure)| (*name, figure));
            let figures: Map<String, Value> =
                figures.map(|(name, figure)| (name.to_owned(), figure.into())).collect();
            object.insert("paper".to_owned(), figures.into());
        }
        object.into()
    }

    /// Returns the paper's row for the same case, if the paper has such a row.
    fn paper(&self, row: &Row) -> Option<&'static PaperRow> {
        let same =
            self.model.name() == "i82599" && self.options.queues == 10 && self.policy.name == "balance";
        TABLE_1.iter().find(|paper| same && paper.flows == row.flows)
    }

    fn page(&self, rows: &[Row]) -> Page {
        let mut page = page();
        let (nic, queues, policy) = (self.model.name(), self.options.queues, &self.policy.name);
        page.answer(&self.answer(rows));
        page.gap();
        let rss = if self.options.no_rss { ", RSS off" } else { "" };
        page.line(&format!(
            "{nic} with {}{rss}, policy {policy}; median, minimum and maximum of the repeats:",
            counted(usize::from(queues), "queue")
        ));
        let columns = [
            Heading::number("flows"),
            Heading::text("search"),
            Heading::text("unit"),
            Heading::number("Evenkeel"),
            Heading::number("min to max").dropped(2),
            Heading::number("Dragonet"),
            Heading::number("times faster").dropped(1),
        ];
        let shown: Vec<Vec<String>> = rows.iter().flat_map(|row| self.lines_of(row)).collect();
        page.table(&columns, &shown);
        page.gap();
        for row in rows {
            let (least, most) = row.spread;
            let spread = if least == most {
                counted(most, "flow")
            } else {
                format!("{least} to {}", counted(most, "flow"))
            };
            page.line(&format!(
                "{}: policy {}; cost {:.3}, {spread} on each queue, {}",
                counted(row.flows as usize, "flow"),
                row.verdict,
                row.cost,
                counted(row.filters, "filter")
            ));
            if let Some((table, capacity)) = &row.raised {
                page.line(&format!(
                    "  table {table} raised to {}, so that each flow can have a filter",
                    counted(*capacity, "filter")
                ));
            }
        }
        page.gap();
        page.line(
            "Dragonet: TRIOS 2015, Table 1 (i82599, 10 queues, balance), on a 20-core Ivy Bridge server: another \
             machine.",
        );
        page
    }

    /// Returns a sentence about the search's speed. Adds the paper's time if the paper has the same
    /// case.
    fn answer(&self, rows: &[Row]) -> String {
        let Some(row) = rows.last() else { return String::new() };
        let flows = counted(row.flows as usize, "flow");
        let Some(full) = &row.figures[1] else { return format!("{flows}: the search was not measured.") };
        let took = format!("{flows}: the full search takes {} ms", digits(full.median));
        let incremental =
            row.figures[2].as_ref().map(|one| format!(", one more flow {} µs", digits(one.median)));
        let against = self.paper(row).map(|paper| {
            format!(
                "; Dragonet's took {} s, {} times as long",
                digits(paper.figures[1] / 1e3),
                digits(paper.figures[1] / full.median)
            )
        });
        format!("{took}{}{}.", incremental.unwrap_or_default(), against.unwrap_or_default())
    }

    fn lines_of(&self, row: &Row) -> Vec<Vec<String>> {
        let paper = self.paper(row);
        let line = |at: usize| {
            let ((_, head, unit), figure) = (&COLUMNS[at], &row.figures[at]);
            let none = || "–".to_owned();
            let of_paper = paper.map(|paper| paper.figures[at]);
            let faster = figure.as_ref().zip(of_paper).map(|(own, paper)| digits(paper / own.median));
            vec![
                if at == 0 { row.flows.to_string() } else { String::new() },
                (*head).to_owned(),
                (*unit).to_owned(),
                figure.as_ref().map_or_else(none, |own| digits(own.median)),
                figure
                    .as_ref()
                    .map_or_else(none, |own| format!("{} to {}", digits(own.min), digits(own.max))),
                of_paper.map_or_else(none, digits),
                faster.unwrap_or_else(none),
            ]
        };
        (0..COLUMNS.len()).map(line).collect()
    }
}

/// The time and number of a figure's repeats. They determine when the figure has enough repeats.
struct Clock {
    begin: Instant,
    begun: u32,
}

impl Clock {
    fn start() -> Self {
        Self { begin: Instant::now(), begun: 0 }
    }

    /// Counts a repeat. Returns true if the repeat must not begin.
    fn is_over(&mut self) -> bool {
        self.begun += 1;
        self.begun > LEAST_REPEATS && self.begin.elapsed() > LONGEST
    }
}

/// A running search. Each measurement adds or removes flows, then restores the search's state.
struct Running<'f> {
    search: Search,
    flows: &'f [ObservedFlow],
    further: &'f [ObservedFlow],
    indices: Vec<FlowIndex>,
}

impl Running<'_> {
    /// Measures adding `size` flows. The first 100 repeats add different flows.
    fn add(&mut self, size: usize, figure: usize, bench: &Bench<'_>) -> Result<Vec<f64>, Failure> {
        let (mut times, mut clock) = (Vec::new(), Clock::start());
        for repeat in 0..bench.options.repeat {
            if clock.is_over() {
                break;
            }
            bench.begin(figure, repeat, None);
            let repeat = repeat as usize;
            let at = repeat * size % (self.further.len() + 1 - size);
            let start = Instant::now();
            let added = self.search.add(&self.further[at..at + size]);
            times.push(start.elapsed().as_secs_f64());
            self.search.remove(&added.map_err(fail)?);
            self.search.compact().map_err(fail)?;
        }
        Ok(times)
    }

    /// Measures removing the `size` flows that [`spread`] chooses for each repeat.
    fn remove(&mut self, size: usize, figure: usize, bench: &Bench<'_>) -> Result<Vec<f64>, Failure> {
        let (mut times, mut clock) = (Vec::new(), Clock::start());
        let count = self.indices.len();
        let size = size.min(count);
        for repeat in 0..bench.options.repeat {
            if clock.is_over() {
                break;
            }
            bench.begin(figure, repeat, None);
            let repeat = repeat as usize;
            let chosen = spread(repeat, size, count);
            let gone: Vec<FlowIndex> = chosen.iter().map(|at| self.indices[*at]).collect();
            let start = Instant::now();
            self.search.remove(&gone);
            times.push(start.elapsed().as_secs_f64());
            for at in chosen {
                let back = self.search.add(std::slice::from_ref(&self.flows[at])).map_err(fail)?;
                self.indices[at] = back.first().copied().unwrap_or(self.indices[at]);
            }
        }
        Ok(times)
    }
}

/// Returns `size` different places of `count`, spread over them. Repeats share no place until all are used.
fn spread(repeat: usize, size: usize, count: usize) -> Vec<usize> {
    // Primes: the places repeat only after `count`, if the stride does not divide it.
    let stride = if count.is_multiple_of(7919) { 7907 } else { 7919 };
    (0..size).map(|place| (repeat * size + place) * stride % count).collect()
}

fn fail(error: SearchError) -> Failure {
    Failure::new(Exit::Usage, error)
}

fn summary(times: &[f64], unit: f64) -> Option<Summary> {
    let scaled: Vec<f64> = times.iter().map(|time| time * unit).collect();
    Summary::of(&scaled)
}

fn summary_json(summary: &Summary) -> Value {
    json!({
        "mean": summary.mean,
        "median": summary.median,
        "min": summary.min,
        "max": summary.max,
        "n": summary.n,
    })
}

/// Formats a number with three significant digits, but with at most three decimals and with all digits
/// before the decimal point.
fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    use crate::arguments::{Arguments, Command, SearchCommand};

    #[test]
    fn removed_flows_differ_within_a_repeat_and_between_repeats() {
        for (size, count) in [(10, 20), (10, 31), (10, 310), (10, 7919), (10, 15_838), (1, 1), (5, 5)] {
            let chosen = (0..count / size).flat_map(|repeat| spread(repeat, size, count));
            let different: std::collections::BTreeSet<usize> = chosen.collect();
            assert_eq!(different.len(), count / size * size, "{size} of {count}");
        }
    }

    #[test]
    fn progress_of_a_single_size_follows_the_figures() {
        let arguments = ["evenkeel", "search", "bench", "--flows", "20", "--repeat", "2"];
        let Command::Search(SearchCommand::Bench(options)) = Arguments::parse_from(arguments).command else {
            unreachable!()
        };
        let stage = Mutex::new(Stage::default());
        let (policy, model) =
            (load_policy("balance").unwrap(), nic::load("i82599", &options.source).unwrap());
        let bench = Bench { options: &options, policy, model, stage: &stage };
        bench.rows(&[20]).unwrap();
        let (fraction, activity) = stage.lock().unwrap().state();
        assert!(fraction > 0.9 && fraction <= 1.0, "{fraction}");
        assert_eq!(activity, "20 flows: -10 flows");
        let mut before = -1.0;
        for (place, figure) in ORDER.into_iter().enumerate() {
            bench.begin(figure, 1, None);
            let (fraction, activity) = stage.lock().unwrap().state();
            assert!(fraction > before && fraction <= (place + 1) as f64 / 6.0, "{activity}: {fraction}");
            before = fraction;
        }
    }
}
