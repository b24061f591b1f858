//! Cost functions that users write: scripts in Rhai, in a sandbox.
//!
//! A script defines one or more of these functions:
//!
//! ```text
//! fn queue_cost(queue) { … }          // summed over the queues; preferred: only two queues change at a time
//! fn flow_cost(flow, queue) { … }     // summed over the flows
//! fn cost(queues) { … }               // of all queues at once
//! ```
//!
//! Each returns a number, or `reject(n)` for n flows on forbidden queues, or `reject(n, cost)`.
//! - A queue has `index`, `flows`, `rate` (bit/s) and `count("class")`. In `flow_cost`, `queue` is only the
//!   number.
//! - A flow has `class`, `rate` (0 if unknown), `protocol`, `source`, `source_port`, `destination`,
//!   `destination_port` and `reader` (`()` if unknown).
//!
//! A script can only compute: it has no access to files, clock, output, modules or sleep.
//! - A call has at most [`MOST_OPERATIONS`] operations, and limits for strings, lists, maps and recursion.
//! - All calls of a search together have the policy's time limit.
//! - A script that exceeds a limit or returns an invalid value ends the search with one error that names the
//!   line.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_model::text::{counted, suggestion};
use rhai::packages::{
    ArithmeticPackage, BasicArrayPackage, BasicIteratorPackage, BasicMapPackage, BasicMathPackage,
    BasicStringPackage, LogicPackage, MoreStringPackage, Package,
};
use rhai::{AST, CallFnOptions, Dynamic, Engine, EvalAltResult, FuncArgs, Position, Scope};

use crate::QueueId;
use crate::flows::MOST_RATE_BPS;
use crate::policy::Flow;
use crate::policy::cost::{Cost, CostFunction, Fact, TERM_UNIT};

/// Maximum number of operations per call.
///
/// Together with the limits of single values, this maximum bounds a call's memory. A script that fills
/// a map with copies of the largest list needs about 200 MB.
pub const MOST_OPERATIONS: u64 = 50_000;
/// Longest string, bytes.
const LONGEST_STRING: usize = 1024;
/// Longest list and largest map, including nested elements.
const MOST_ELEMENTS: usize = 1024;
const MOST_VARIABLES: usize = 256;
const MOST_FUNCTIONS: usize = 64;
const DEEPEST_CALL: usize = 32;
const DEEPEST_EXPRESSION: usize = 64;
/// Longest script, bytes.
pub const LONGEST_SCRIPT: usize = 64 * 1024;
/// Number of operations between two checks of the clock.
const CLOCK_STRIDE: u64 = 1024;
/// Largest cost that a function may return. With this limit, sums over a million flows are exact.
const LARGEST: f64 = 1e9;
/// The functions that a script can define, and their numbers of parameters.
const HOOKS: [(&str, usize); 3] = [("queue_cost", 1), ("flow_cost", 2), ("cost", 1)];

/// The text of a script, and its position in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSource {
    pub text: String,
    pub origin: String,
    /// Number of lines in the file before the script.
    pub lines_above: usize,
    /// Number of columns in the file before the script's first line.
    pub columns_before: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}:{column}: script: {problem}")]
pub struct ScriptError {
    pub origin: String,
    pub line: usize,
    pub column: usize,
    pub problem: String,
}

impl ScriptSource {
    /// Creates the source for a script that is a whole file.
    #[must_use]
    pub fn file(text: String, origin: String) -> Self {
        Self { text, origin, lines_above: 0, columns_before: 0 }
    }

    /// Returns the position of a function, for errors without a position.
    fn function(&self, name: &str) -> Position {
        let places = self.text.lines().zip(1_u16..).filter_map(|(line, number)| {
            let at = line.find(&format!("fn {name}"))?;
            let column = line.get(..at)?.chars().count() + 1;
            Some(Position::new(number, u16::try_from(column).unwrap_or(u16::MAX)))
        });
        places.into_iter().next().unwrap_or(Position::NONE)
    }

    fn error(&self, position: Position, problem: impl Into<String>) -> ScriptError {
        let line = position.line().unwrap_or(1);
        let column = position.position().unwrap_or(1) + if line == 1 { self.columns_before } else { 0 };
        let problem = problem.into().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        ScriptError { origin: self.origin.clone(), line: line + self.lines_above, column, problem }
    }
}

#[derive(Clone, Copy, Debug)]
struct Verdict(Cost);

#[derive(Clone, Debug)]
struct QueueView {
    index: u16,
    flows: i64,
    rate: i64,
    by_class: Vec<i64>,
    classes: Arc<[String]>,
}

#[derive(Clone, Debug)]
struct FlowView {
    flow: Flow,
    class: String,
}

pub struct Script {
    engine: Engine,
    ast: AST,
    source: ScriptSource,
    has: [bool; HOOKS.len()],
    /// Whether the text of the script contains `.rate`: the script then possibly reads the rate of a flow or
    /// queue.
    reads_rates: bool,
    watch: Arc<Watch>,
}

impl fmt::Debug for Script {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Script").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Deadline for all calls of a search.
#[derive(Debug)]
struct Watch {
    start: Instant,
    /// Nanoseconds after `start`.
    deadline: AtomicU64,
    limit: Duration,
}

impl Watch {
    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wind(&self) {
        let limit = u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX);
        self.deadline.store(self.elapsed().saturating_add(limit), Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.elapsed() > self.deadline.load(Ordering::Relaxed)
    }
}

impl Script {
    /// Compiles a script whose calls may take `limit` per search.
    ///
    /// # Errors
    /// Returns an error if the script is too long or does not compile, if one of the functions has a wrong
    /// number of parameters, or if the script defines none of the functions.
    pub fn compile(source: ScriptSource, limit: Duration) -> Result<Self, ScriptError> {
        let watch = Arc::new(Watch { start: Instant::now(), deadline: AtomicU64::new(0), limit });
        watch.wind();
        let engine = sandbox(&watch);
        if source.text.len() > LONGEST_SCRIPT {
            return Err(source.error(
                Position::NONE,
                format!("the script is longer than {LONGEST_SCRIPT} bytes; shorten it"),
            ));
        }
        let ast = engine
            .compile(&source.text)
            .map_err(|error| source.error(error.position(), error.err_type().to_string()))?;
        let has = HOOKS.map(|(name, parameters)| {
            ast.iter_functions().any(|function| function.name == name && function.params.len() == parameters)
        });
        for (name, parameters) in HOOKS {
            let other = ast.iter_functions().find(|function| function.name == name);
            let Some(found) = other.map(|function| function.params.len()) else { continue };
            if found != parameters {
                let problem = format!("{name} takes {}, not {found}", counted(parameters, "parameter"));
                return Err(source.error(Position::NONE, problem));
            }
        }
        if has == [false; HOOKS.len()] {
            let problem = "the script must define queue_cost(queue), flow_cost(flow, queue) or cost(queues)";
            return Err(source.error(Position::NONE, problem));
        }
        let reads_rates = source.text.contains(".rate");
        Ok(Self { engine, ast, source, has, reads_rates, watch })
    }

    fn call(&self, function: &str, arguments: impl FuncArgs) -> Result<Cost, ScriptError> {
        let fails = |problem: String| self.source.error(self.source.function(function), problem);
        if self.watch.is_over() {
            return Err(fails(self.too_slow()));
        }
        let options = CallFnOptions::new().eval_ast(false);
        let mut scope = Scope::new();
        let returned = self
            .engine
            .call_fn_with_options::<Dynamic>(options, &mut scope, &self.ast, function, arguments)
            .map_err(|error| self.explain(function, &error))?;
        let number = match (returned.as_int(), returned.as_float()) {
            (Ok(number), _) => number as f64,
            (_, Ok(number)) => number,
            _ => {
                let what = returned.type_name().to_owned();
                let verdict = returned.try_cast::<Verdict>().map(|Verdict(cost)| cost);
                let problem = || format!("{function} returned {what}, not a number or reject(…)");
                return verdict.ok_or_else(|| fails(problem()));
            }
        };
        let problem =
            || format!("{function} returned {number}, and a cost must be between 0 and {LARGEST:.0}");
        let amount = fixed(number).ok_or_else(|| fails(problem()))?;
        Ok(Cost { violations: 0, amount })
    }

    fn too_slow(&self) -> String {
        format!(
            "the calls of the script took more than {:?} in one search; simplify the script, or raise script-time",
            self.watch.limit
        )
    }

    fn explain(&self, function: &str, error: &EvalAltResult) -> ScriptError {
        let mut inner = error;
        while let EvalAltResult::ErrorInFunctionCall(_, _, cause, _) = inner {
            inner = cause;
        }
        let position = match inner.position() {
            Position::NONE => self.source.function(function),
            position => position,
        };
        let problem = match inner {
            EvalAltResult::ErrorTooManyOperations(_) => {
                format!("a call took more than {MOST_OPERATIONS} operations; check for an endless loop")
            }
            EvalAltResult::ErrorTerminated(..) => self.too_slow(),
            EvalAltResult::ErrorDataTooLarge(what, _) => {
                format!(
                    "{what} is too large: strings hold {LONGEST_STRING} bytes, lists and maps {MOST_ELEMENTS} elements"
                )
            }
            EvalAltResult::ErrorStackOverflow(_) => {
                format!("functions call each other more than {DEEPEST_CALL} levels deep")
            }
            EvalAltResult::ErrorDotExpr(text, _) => unknown_field(text).unwrap_or_else(|| text.clone()),
            // Remove the position from the message: it is printed before the message.
            other => {
                let text = other.to_string();
                text.rfind(" (line ").map_or(text.clone(), |at| text[..at].to_owned())
            }
        };
        self.source.error(position, problem)
    }
}

/// Fields of the values that scripts see, by type.
const FIELDS: [(&str, &[&str]); 2] = [
    ("queue", &["index", "flows", "rate"]),
    (
        "flow",
        &["class", "rate", "protocol", "source", "source_port", "destination", "destination_port", "reader"],
    ),
];

/// Rewrites the engine's message about a field that is unknown or cannot be set, in the terms of the
/// documentation. Returns `None` for other messages. The engine's messages are `Unknown property 'x' - a
/// getter is not registered for type 'queue'` and `No writable property 'x' - a setter …`.
fn unknown_field(text: &str) -> Option<String> {
    let mut parts = text.split('\'');
    let (problem, name, middle, kind) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if !["Unknown property ", "No writable property "].contains(&problem) {
        return None;
    }
    let Some((kind, known)) = FIELDS.iter().find(|(known, _)| *known == kind) else {
        let hint = if kind == "i64" { "; in flow_cost a queue is only its number" } else { "" };
        return Some(format!("a value of type {kind} has no field '{name}'{hint}"));
    };
    if middle.contains("setter") && known.contains(&name) {
        return Some(format!("field '{name}' of a {kind} cannot be set"));
    }
    Some(format!("{kind} has no field '{name}'; {}", suggestion(name, known.iter().copied())))
}

/// Converts a cost to a whole number of units of 1 / [`TERM_UNIT`]. Returns `None` if the cost is negative,
/// not finite or too large.
fn fixed(number: f64) -> Option<i128> {
    (0.0..=LARGEST).contains(&number).then(|| (number * TERM_UNIT as f64).round() as i128)
}

/// Implements `reject(flows, cost)`.
fn verdict(flows: i64, cost: f64) -> Result<Verdict, Box<EvalAltResult>> {
    // As many flows as a 32-bit index can number.
    const MOST_FLOWS: i64 = 1 << 32;
    if !(0..=MOST_FLOWS).contains(&flows) {
        return Err(format!("reject({flows}): the number of flows must be between 0 and {MOST_FLOWS}").into());
    }
    let amount = fixed(cost)
        .ok_or_else(|| format!("reject({flows}, {cost}): a cost must be between 0 and {LARGEST:.0}"))?;
    Ok(Verdict(Cost { violations: flows, amount }))
}

fn sandbox(watch: &Arc<Watch>) -> Engine {
    let mut engine = Engine::new_raw();
    // The core package is left out, because it has the function `sleep`.
    for module in [
        ArithmeticPackage::new().as_shared_module(),
        LogicPackage::new().as_shared_module(),
        BasicStringPackage::new().as_shared_module(),
        MoreStringPackage::new().as_shared_module(),
        BasicIteratorPackage::new().as_shared_module(),
        BasicMathPackage::new().as_shared_module(),
        BasicArrayPackage::new().as_shared_module(),
        BasicMapPackage::new().as_shared_module(),
    ] {
        engine.register_global_module(module);
    }
    engine
        .set_max_operations(MOST_OPERATIONS)
        .set_max_call_levels(DEEPEST_CALL)
        .set_max_expr_depths(DEEPEST_EXPRESSION, DEEPEST_EXPRESSION)
        .set_max_string_size(LONGEST_STRING)
        .set_max_array_size(MOST_ELEMENTS)
        .set_max_map_size(MOST_ELEMENTS)
        .set_max_variables(MOST_VARIABLES)
        .set_max_functions(MOST_FUNCTIONS)
        .disable_symbol("eval")
        .disable_symbol("print")
        .disable_symbol("debug");
    let watch = Arc::clone(watch);
    engine.on_progress(move |operations| {
        (operations.is_multiple_of(CLOCK_STRIDE) && watch.is_over()).then_some(Dynamic::UNIT)
    });
    engine
        .register_type_with_name::<QueueView>("queue")
        .register_get("index", |queue: &mut QueueView| i64::from(queue.index))
        .register_get("flows", |queue: &mut QueueView| queue.flows)
        .register_get("rate", |queue: &mut QueueView| queue.rate)
        .register_fn("count", |queue: &mut QueueView, class: &str| -> Result<i64, Box<EvalAltResult>> {
            let place = queue.classes.iter().position(|name| name == class);
            place.and_then(|place| queue.by_class.get(place)).copied().ok_or_else(|| {
                let known = suggestion(class, queue.classes.iter().map(String::as_str));
                format!("count('{class}'): the policy has no such class; {known}").into()
            })
        });
    engine
        .register_type_with_name::<FlowView>("flow")
        .register_get("class", |view: &mut FlowView| view.class.clone())
        .register_get("rate", |view: &mut FlowView| view.flow.rate_bps.unwrap_or(0).cast_signed())
        .register_get("protocol", |view: &mut FlowView| view.flow.tuple.transport.name().to_owned())
        .register_get("source", |view: &mut FlowView| view.flow.tuple.source.to_string())
        .register_get("source_port", |view: &mut FlowView| i64::from(view.flow.tuple.source_port))
        .register_get("destination", |view: &mut FlowView| view.flow.tuple.destination.to_string())
        .register_get("destination_port", |view: &mut FlowView| i64::from(view.flow.tuple.destination_port))
        .register_get("reader", |view: &mut FlowView| {
            view.flow.reader.map_or(Dynamic::UNIT, |reader| Dynamic::from_int(i64::from(reader)))
        });
    engine
        .register_type_with_name::<Verdict>("reject")
        .register_fn("reject", || verdict(1, 0.0))
        .register_fn("reject", |flows: i64| verdict(flows, 0.0))
        .register_fn("reject", verdict)
        .register_fn("reject", |flows: i64, cost: i64| verdict(flows, cost as f64));
    engine
}

#[derive(Debug)]
pub struct Scripted {
    script: Arc<Script>,
    classes: Arc<[String]>,
    among: Vec<QueueId>,
    queues: Vec<QueueView>,
    /// Result of `queue_cost` for each queue.
    queue_costs: Vec<Cost>,
    /// Sum of the results of `flow_cost`.
    flow_costs: Cost,
    /// Result of `cost`; `None` if it must be computed again.
    whole: RefCell<Option<Cost>>,
    fault: RefCell<Option<ScriptError>>,
}

impl Clone for Scripted {
    fn clone(&self) -> Self {
        Self {
            script: Arc::clone(&self.script),
            classes: Arc::clone(&self.classes),
            among: self.among.clone(),
            queues: self.queues.clone(),
            queue_costs: self.queue_costs.clone(),
            flow_costs: self.flow_costs,
            whole: RefCell::new(*self.whole.borrow()),
            fault: RefCell::new(self.fault.borrow().clone()),
        }
    }
}

impl Scripted {
    /// Creates a cost function without flows for the queues `among`. `classes` are the names of the flows'
    /// classes.
    #[must_use]
    pub fn new(script: Arc<Script>, among: &[QueueId], classes: Arc<[String]>) -> Self {
        let count = among.iter().map(|queue| queue.index() + 1).max().unwrap_or(0);
        let view = |index| QueueView {
            index,
            flows: 0,
            rate: 0,
            by_class: vec![0; classes.len()],
            classes: Arc::clone(&classes),
        };
        let queues: Vec<QueueView> = (0..count as u16).map(view).collect();
        let mut scripted = Self {
            script,
            among: among.to_vec(),
            classes: Arc::clone(&classes),
            queue_costs: vec![Cost::ZERO; queues.len()],
            queues,
            flow_costs: Cost::ZERO,
            whole: RefCell::new(None),
            fault: RefCell::new(None),
        };
        for queue in among {
            scripted.queue_costs[queue.index()] =
                scripted.queue_cost(&scripted.queues[queue.index()].clone());
        }
        scripted
    }

    fn call(&self, hook: usize, arguments: impl FuncArgs) -> Cost {
        let (name, _) = HOOKS[hook];
        if !self.script.has[hook] || self.fault.borrow().is_some() {
            return Cost::ZERO;
        }
        self.script.call(name, arguments).unwrap_or_else(|error| {
            *self.fault.borrow_mut() = Some(error);
            Cost::ZERO
        })
    }

    fn queue_cost(&self, view: &QueueView) -> Cost {
        if self.script.has[0] { self.call(0, (view.clone(),)) } else { Cost::ZERO }
    }

    fn flow_cost(&self, flow: &Flow, queue: QueueId) -> Cost {
        if !self.script.has[1] {
            return Cost::ZERO;
        }
        let class = self.classes.get(flow.class.index()).cloned().unwrap_or_default();
        // Pass only the queue's number: the flows on the queue depend on the order of arrival.
        self.call(1, (FlowView { flow: *flow, class }, i64::from(queue.0)))
    }

    fn whole_cost(&self, queues: &[QueueView]) -> Cost {
        let of_pool = self.among.iter().filter_map(|queue| queues.get(queue.index()));
        let list: rhai::Array = of_pool.cloned().map(Dynamic::from).collect();
        self.call(2, (list,))
    }

    fn whole(&self) -> Cost {
        if !self.script.has[2] {
            return Cost::ZERO;
        }
        let known = *self.whole.borrow();
        known.unwrap_or_else(|| {
            let cost = self.whole_cost(&self.queues);
            *self.whole.borrow_mut() = Some(cost);
            cost
        })
    }

    /// Returns the view of a queue with one flow more (`sign` 1) or less (-1).
    fn changed(&self, flow: &Flow, queue: QueueId, sign: i64) -> Option<QueueView> {
        let mut view = self.queues.get(queue.index())?.clone();
        view.flows += sign;
        let rate = flow.rate_bps.unwrap_or(0).min(MOST_RATE_BPS).cast_signed();
        view.rate = view.rate.saturating_add(sign * rate);
        if let Some(count) = view.by_class.get_mut(flow.class.index()) {
            *count += sign;
        }
        Some(view)
    }

    fn update(&mut self, flow: &Flow, queue: QueueId, sign: i64) {
        let of_flow = self.flow_cost(flow, queue);
        self.flow_costs = if sign > 0 { self.flow_costs + of_flow } else { self.flow_costs - of_flow };
        let Some(view) = self.changed(flow, queue, sign) else { return };
        self.queue_costs[queue.index()] = self.queue_cost(&view);
        self.queues[queue.index()] = view;
        *self.whole.borrow_mut() = None;
    }
}

impl CostFunction for Scripted {
    fn place(&mut self, flow: &Flow, queue: QueueId) {
        self.update(flow, queue, 1);
    }

    fn remove(&mut self, flow: &Flow, queue: QueueId) {
        self.update(flow, queue, -1);
    }

    fn cost(&self) -> Cost {
        self.queue_costs.iter().copied().sum::<Cost>() + self.flow_costs + self.whole()
    }

    fn change(&self, flow: &Flow, from: QueueId, to: QueueId) -> Cost {
        // After a fault the search ends with an error: do not prepare further calls.
        if from == to || self.fault.borrow().is_some() {
            return Cost::ZERO;
        }
        let views = self.changed(flow, from, -1).zip(self.changed(flow, to, 1));
        let Some((left, joined)) = views else { return Cost::ZERO };
        let mut cost = self.flow_cost(flow, to) - self.flow_cost(flow, from);
        if self.script.has[0] {
            cost += self.queue_cost(&left) + self.queue_cost(&joined);
            cost = cost - self.queue_costs[from.index()] - self.queue_costs[to.index()];
        }
        if self.script.has[2] {
            let mut queues = self.queues.clone();
            (queues[from.index()], queues[to.index()]) = (left, joined);
            cost += self.whole_cost(&queues) - self.whole();
        }
        cost
    }

    fn unknown(&self, flow: &Flow) -> Option<Fact> {
        (self.script.reads_rates && flow.rate_bps.is_none()).then_some(Fact::Rate)
    }

    fn begin(&self) {
        self.script.watch.wind();
    }

    fn fault(&mut self) -> Option<ScriptError> {
        self.fault.borrow_mut().take()
    }

    fn boxed(&self) -> Box<dyn CostFunction> {
        Box::new(self.clone())
    }
}
