//! The measurements of a study: its points, with the values of their repeats.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_metrics::{MeanInterval, Summary, mean_interval};
use evenkeel_model::qdisc::Claim;
use evenkeel_model::scenario::{Plot, TenantPoint};
use evenkeel_model::units::ByteSize;

use crate::conduct::Request;
use crate::journal::{Entry, Repeated, Settings};
use crate::plan::{StudyScenario, points};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// `sim` or `netns`.
    pub world: String,
    /// Kernel release, or kernel profile of the simulator.
    pub kernel: String,
    pub evenkeel: String,
    pub quick: bool,
    pub seed: u64,
    pub host: BTreeMap<String, String>,
    pub times: (String, String),
    pub took_s: f64,
    pub scenarios: Vec<ScenarioFacts>,
    /// Text of each scenario, and of each file in its `qdisc-files`, by name.
    pub texts: BTreeMap<String, String>,
    pub setups_text: Option<String>,
    pub points: Vec<Point>,
    pub claims: BTreeMap<String, BTreeSet<Claim>>,
    pub runs: Runs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    pub all: usize,
    /// Number of runs with other load above the limit.
    pub disturbed: usize,
    pub failed: usize,
    /// Number of repeats that have no undisturbed run.
    pub left_disturbed: usize,
    /// Number of planned repeats without a measurement. Points that the world refused do not count.
    pub missing: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioFacts {
    pub name: String,
    pub title: String,
    /// Whether a link is the bottleneck.
    pub line: bool,
    /// Rate, bit/s; `None` if the scenario did not run.
    pub rate_bps: Option<u64>,
    /// Measured time of a repeat, seconds.
    pub duration_s: f64,
    pub plots: Vec<Plot>,
}

impl ScenarioFacts {
    fn of(study: &StudyScenario) -> Self {
        let scenario = &study.scenario;
        let tenants = scenario.workload.tenants();
        Self {
            name: scenario.name.clone(),
            title: scenario.title.clone(),
            line: tenants.is_some_and(|tenants| tenants.line),
            rate_bps: None,
            duration_s: scenario.measure.duration().as_secs_f64(),
            plots: tenants.map(|tenants| tenants.plots.clone()).unwrap_or_default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    pub scenario: String,
    /// Unique within the scenario.
    pub name: String,
    pub setup: String,
    /// The axes except the setup, with their values as written in the file.
    pub axes: Vec<(String, String)>,
    pub repeats: BTreeMap<u32, Values>,
    /// The reason why the world cannot run the point.
    pub refused: Option<String>,
    /// The reasons why repeats of the point failed.
    pub failures: Vec<String>,
    pub notes: Vec<String>,
    pub trace: Option<String>,
}

pub type Values = BTreeMap<String, f64>;

impl Point {
    /// Returns the value on an axis, as written in the file.
    #[must_use]
    pub fn axis(&self, name: &str) -> Option<&str> {
        self.axes.iter().find(|(axis, _)| axis == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value on an axis as a number: a count, or bytes; `None` if the value is neither, or the
    /// point has no such axis.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        number(self.axis(name)?)
    }

    #[must_use]
    pub fn values(&self, metric: &str) -> BTreeMap<u32, f64> {
        let value = |(repeat, values): (&u32, &Values)| Some((*repeat, *values.get(metric)?));
        self.repeats.iter().filter_map(value).collect()
    }

    /// Returns whether a finished repeat has no value of a metric.
    #[must_use]
    pub fn lacks(&self, metric: &str) -> bool {
        self.repeats.values().any(|values| !values.contains_key(metric))
    }

    /// Returns a metric's mean, with its confidence interval.
    #[must_use]
    pub fn mean(&self, metric: &str) -> Option<MeanInterval> {
        mean_interval(&self.values(metric).into_values().collect::<Vec<_>>())
    }

    #[must_use]
    pub fn summary(&self, metric: &str) -> Option<Summary> {
        Summary::of(&self.values(metric).into_values().collect::<Vec<_>>())
    }

    #[must_use]
    pub fn metrics(&self) -> BTreeSet<&str> {
        self.repeats.values().flat_map(|values| values.keys().map(String::as_str)).collect()
    }
}

/// States how many points have a repeat without a value of a metric, and names one of them. Returns `None` if
/// every repeat has a value. A verdict needs all figures, because a verdict over fewer points would answer
/// another question.
#[must_use]
pub fn lack(points: &[&Point], metric: &str) -> Option<String> {
    let without: Vec<&str> =
        points.iter().filter(|point| point.lacks(metric)).map(|point| point.name.as_str()).collect();
    let first = without.first()?;
    let measured = points.iter().filter(|point| !point.repeats.is_empty()).count();
    Some(format!("{metric} is missing at {} of {measured} points, such as {first}", without.len()))
}

/// Returns an axis value as a number: a count, or bytes; `None` if the value is neither.
#[must_use]
pub fn number(value: &str) -> Option<f64> {
    value.parse().ok().or_else(|| value.parse::<ByteSize>().ok().map(|size| size.bytes() as f64))
}

impl Results {
    /// Builds the results of the planned points from a journal.
    #[must_use]
    pub fn of(settings: &Settings, entries: &[Entry], request: &Request<'_>) -> Self {
        let mut results = Self {
            world: settings.world.clone(),
            kernel: settings.kernel.clone(),
            evenkeel: settings.evenkeel.clone(),
            quick: settings.quick,
            seed: settings.seed,
            host: settings.host.clone(),
            times: (settings.started.clone(), settings.started.clone()),
            ..Self::default()
        };
        results.scenarios = request.scenarios.iter().map(ScenarioFacts::of).collect();
        for planned in points(request.scenarios, request.extent) {
            let TenantPoint { qdisc, coordinates, .. } = planned.point;
            results.claims.insert(qdisc.name.clone(), qdisc.claims.clone());
            results.points.push(Point {
                scenario: request.scenarios[planned.scenario].scenario.name.clone(),
                name: planned.variant.name.clone(),
                setup: qdisc.name.clone(),
                axes: coordinates.iter().skip(1).cloned().collect(),
                ..Point::default()
            });
        }
        results.fill(entries);
        let planned = points(request.scenarios, request.extent);
        let lacking = planned.iter().zip(&results.points).filter(|(_, point)| point.refused.is_none());
        results.runs.missing = lacking
            .map(|(planned, point)| (planned.repeats as usize).saturating_sub(point.repeats.len()))
            .sum();
        results
    }

    /// Builds the results from a journal and its scenarios alone, for a comparison. The points then
    /// have no axes, and the setups have no claims.
    #[must_use]
    pub fn bare(settings: &Settings, entries: &[Entry], scenarios: &[StudyScenario]) -> Self {
        let mut results = Self {
            world: settings.world.clone(),
            kernel: settings.kernel.clone(),
            evenkeel: settings.evenkeel.clone(),
            quick: settings.quick,
            seed: settings.seed,
            host: settings.host.clone(),
            scenarios: scenarios.iter().map(ScenarioFacts::of).collect(),
            texts: texts(settings),
            setups_text: settings.setups_text.clone(),
            ..Self::default()
        };
        let mut known = BTreeSet::new();
        for entry in entries {
            if let Entry::Repeat(done) = entry
                && known.insert((&done.scenario, &done.point))
            {
                let setup = done.point.split(' ').next().unwrap_or_default().to_owned();
                let (scenario, name) = (done.scenario.clone(), done.point.clone());
                results.points.push(Point { scenario, name, setup, ..Point::default() });
            }
        }
        results.fill(entries);
        results
    }

    fn fill(&mut self, entries: &[Entry]) {
        let numbers: BTreeMap<(String, String), usize> = self
            .points
            .iter()
            .enumerate()
            .map(|(number, point)| ((point.scenario.clone(), point.name.clone()), number))
            .collect();
        let find =
            |scenario: &String, point: &String| numbers.get(&(scenario.clone(), point.clone())).copied();
        // Use the first undisturbed run of a repeat. If all runs were disturbed, use the least
        // disturbed run.
        let mut chosen: BTreeMap<(usize, u32), &Repeated> = BTreeMap::new();
        let load = |done: &Repeated| done.record.metrics.get(DISTURBANCE).copied().unwrap_or(0.0);
        for entry in entries {
            match entry {
                Entry::Rate { scenario, rate_bps } => {
                    let scenario = self.scenarios.iter_mut().find(|facts| facts.name == *scenario);
                    scenario.into_iter().for_each(|facts| facts.rate_bps = Some(*rate_bps));
                }
                Entry::Refused { scenario, point, why } => {
                    if let Some(number) = find(scenario, point) {
                        self.points[number].refused = Some(why.clone());
                    }
                }
                Entry::Note { scenario, point, note } => {
                    if let Some(number) = find(scenario, point) {
                        self.points[number].notes.push(note.clone());
                    }
                }
                Entry::Failed { scenario, point, why, .. } => {
                    self.runs.all += 1;
                    self.runs.failed += 1;
                    if let Some(number) = find(scenario, point)
                        && !self.points[number].failures.contains(why)
                    {
                        self.points[number].failures.push(why.clone());
                    }
                }
                Entry::Repeat(done) => {
                    self.runs.all += 1;
                    self.runs.disturbed += usize::from(done.disturbed);
                    self.took_s += done.took_s;
                    let Some(number) = find(&done.scenario, &done.point) else { continue };
                    if let Some(trace) = &done.trace {
                        self.points[number].trace = Some(trace.clone());
                    }
                    let best = chosen.entry((number, done.repeat)).or_insert(done);
                    if best.disturbed && (!done.disturbed || load(done) < load(best)) {
                        *best = done;
                    }
                }
                Entry::End { ended, .. } => self.times.1.clone_from(ended),
            }
        }
        for ((number, repeat), done) in chosen {
            self.runs.left_disturbed += usize::from(done.disturbed);
            let point = &mut self.points[number];
            let is_complete = !done.record.meter_overflowed();
            let metrics = if is_complete { done.record.metrics.clone() } else { Values::new() };
            point.repeats.insert(repeat, metrics);
            if !is_complete && !point.notes.iter().any(|note| note == OVERFLOW) {
                point.notes.push(OVERFLOW.to_owned());
            }
        }
    }

    /// Returns the points of a scenario that have repeats.
    pub fn measured<'r>(&'r self, scenario: &'r str) -> impl Iterator<Item = &'r Point> + Clone {
        self.points.iter().filter(move |point| point.scenario == scenario && !point.repeats.is_empty())
    }

    /// Returns the reasons why points were not measured, each with its setups and its number of points.
    #[must_use]
    pub fn not_measured(&self) -> Vec<(&str, Vec<&str>, usize)> {
        let mut reasons: Vec<(&str, Vec<&str>, usize)> = Vec::new();
        for point in &self.points {
            let why = point.refused.as_deref().or(point.failures.first().map(String::as_str));
            let Some(why) = why.filter(|_| point.repeats.is_empty()) else { continue };
            let known = reasons.iter().position(|(reason, ..)| *reason == why);
            let place = known.unwrap_or_else(|| {
                reasons.push((why, Vec::new(), 0));
                reasons.len() - 1
            });
            let (_, setups, points) = &mut reasons[place];
            *points += 1;
            if !setups.contains(&point.setup.as_str()) {
                setups.push(&point.setup);
            }
        }
        reasons
    }

    /// Returns the setups in the order of the points.
    #[must_use]
    pub fn setups(&self) -> Vec<&str> {
        let mut setups = Vec::new();
        for point in &self.points {
            if !setups.contains(&point.setup.as_str()) {
                setups.push(&point.setup);
            }
        }
        setups
    }

    /// Returns the reason why the world refused a setup. `None` if a point was measured, if the first point
    /// was not refused, or if no plan has the setup.
    #[must_use]
    pub fn why_not(&self, setup: &str) -> Option<&str> {
        let mut points = self.points.iter().filter(|point| point.setup == setup).peekable();
        let first = points.peek()?.refused.as_deref();
        if points.any(|point| !point.repeats.is_empty()) { None } else { first }
    }
}

const OVERFLOW: &str =
    "packets were not counted in some repeats (meter_overflow), so the figures of these repeats are left out";

fn texts(settings: &Settings) -> BTreeMap<String, String> {
    let files = settings.qdisc_files.iter().flat_map(|(scenario, files)| {
        files.iter().map(move |(name, text)| (format!("{name} (qdisc-files of {scenario})"), text.clone()))
    });
    settings.scenarios.clone().into_iter().chain(files).collect()
}

const DISTURBANCE: &str = evenkeel_model::record::metric::DISTURBANCE;
