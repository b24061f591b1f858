//! Compares two studies point by point, with regard to the spread of their repeats.

use std::collections::BTreeMap;

use evenkeel_metrics::{Change, Confidence, LEAST_REPEATS, changes};
use evenkeel_model::record::NOTHING_MEASURED;
use evenkeel_model::text::counted;
use evenkeel_model::units::BitRate;

use crate::journal::points_list;
use crate::results::{Point, Results, ScenarioFacts};

/// The compared metrics. Most other metrics follow from these metrics or count rare events.
const COMPARED: [&str; 8] = [
    "throughput_bps",
    "cores.busy",
    "latency_us.mean",
    "latency_us.p99",
    "jain_bytes",
    "jain_packets",
    "lost_capacity",
    "slo_violation_share",
];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    pub warnings: Vec<String>,
    pub compared: Vec<Compared>,
    /// Number of points that only one study measured.
    pub only_in_one: usize,
    /// Number of figures of common points that only one study has.
    pub missing_figures: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Scenario and point.
    pub point: String,
    pub metric: &'static str,
    /// The change from the first to the second study, with simultaneous confidence intervals.
    pub change: Change,
    /// Whether the figures show no change; `None` if there are too few repeats for an interval.
    pub agrees: Option<bool>,
}

impl Agreement {
    /// Returns the number of comparisons without a change, and the number of all comparisons with an
    /// interval.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let judged = || self.compared.iter().filter_map(|compared| compared.agrees);
        (judged().filter(|agrees| *agrees).count(), judged().count())
    }

    /// Returns the share of comparisons without a change, of all comparisons with an interval; `None` if no
    /// comparison has an interval.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let (agree, all) = self.counts();
        (all > 0).then(|| agree as f64 / all as f64)
    }
}

#[must_use]
pub fn agreement(first: &Results, second: &Results) -> Agreement {
    let mut agreement = Agreement { warnings: differences(first, second), ..Agreement::default() };
    let measured =
        |results: &Results| results.points.iter().filter(|point| !point.repeats.is_empty()).count();
    let mut both = 0;
    let (mut named, mut pairs) = (Vec::new(), Vec::new());
    let mut gaps: BTreeMap<String, usize> = BTreeMap::new();
    for point in first.points.iter().filter(|point| !point.repeats.is_empty()) {
        let other = second.points.iter().find(|other| {
            other.scenario == point.scenario && other.name == point.name && !other.repeats.is_empty()
        });
        let Some(other) = other else { continue };
        both += 1;
        for metric in COMPARED {
            let values = |point: &Point| point.values(metric).into_values().collect::<Vec<f64>>();
            let pair = (values(point), values(other));
            agreement.missing_figures += usize::from(pair.0.is_empty() != pair.1.is_empty());
            for (which, own, has, other) in
                [("first", &pair.0, point, &pair.1), ("second", &pair.1, other, &pair.0)]
            {
                let is_gap = own.len() < has.repeats.len() && !(own.is_empty() && other.is_empty());
                if is_gap {
                    *gaps.entry(format!("{metric} in the {which} study")).or_default() += 1;
                }
            }
            named.push((format!("{} {}", point.scenario, point.name), metric));
            pairs.push(pair);
        }
    }
    agreement.compared = named
        .into_iter()
        .zip(changes(&pairs, Confidence::Together))
        .filter_map(|((point, metric), change)| {
            let change = change?;
            Some(Compared { point, metric, change, agrees: change.interval.map(|_| !change.is_shown()) })
        })
        .collect();
    agreement.only_in_one = measured(first) + measured(second) - 2 * both;
    agreement.warnings.extend(left_out(first, second));
    for (which, own, other) in [("first", first, second), ("second", second, first)] {
        if own.runs.left_disturbed > 0 {
            let repeats = counted(own.runs.left_disturbed, "repeat");
            agreement.warnings.push(format!("without an undisturbed run: {repeats} of the {which} study"));
        }
        agreement.warnings.extend(notes(own, other, which));
    }
    let gap = |(what, points): (String, usize)| {
        format!("missing in some repeats: {what}, at {}", counted(points, "point"))
    };
    agreement.warnings.extend(gaps.into_iter().map(gap));
    agreement
}

/// Returns the notes about a study's points that the other study does not have for the same points, and the
/// notes that nothing was measured.
fn notes(own: &Results, other: &Results, which: &str) -> Vec<String> {
    let mut points: BTreeMap<&str, usize> = BTreeMap::new();
    for point in &own.points {
        let is_same = |other: &&Point| other.scenario == point.scenario && other.name == point.name;
        let others = other.points.iter().find(is_same).map_or(&[][..], |other| &other.notes);
        let is_told = |note: &&String| note.starts_with(NOTHING_MEASURED) || !others.contains(note);
        for note in point.notes.iter().filter(is_told) {
            *points.entry(note).or_default() += 1;
        }
    }
    let text =
        |(note, count): (&str, usize)| format!("{} of the {which} study: {note}", counted(count, "point"));
    points.into_iter().map(text).collect()
}

/// Names the points that only one study measured, and the common points with too few repeats in a study.
fn left_out(first: &Results, second: &Results) -> Vec<String> {
    let repeats = |results: &Results| -> BTreeMap<String, usize> {
        let named = |point: &Point| (format!("{} {}", point.scenario, point.name), point.repeats.len());
        results.points.iter().map(named).filter(|(_, repeats)| *repeats > 0).collect()
    };
    let (first, second) = (repeats(first), repeats(second));
    let mut found = Vec::new();
    let mut say = |what: &str, names: Vec<String>| {
        if !names.is_empty() {
            found.push(format!("{what}: {}", points_list(&names)));
        }
    };
    let only = |one: &BTreeMap<String, usize>, other: &BTreeMap<String, usize>| {
        one.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
    };
    say("only in the first study", only(&first, &second));
    say("only in the second study", only(&second, &first));
    let few = |(name, repeats): (&String, &usize)| {
        let other = second.get(name)?;
        let is_few = *repeats.min(other) < LEAST_REPEATS;
        is_few.then(|| format!("{name} ({repeats} and {other} repeats)"))
    };
    let why = format!("not compared, because an interval needs {LEAST_REPEATS} repeats");
    say(&why, first.iter().filter_map(few).collect());
    found
}

fn differences(first: &Results, second: &Results) -> Vec<String> {
    let mut found = Vec::new();
    let mut differs = |what: &str, first: &str, second: &str| {
        if first != second {
            found.push(format!("{what} differs: {first} and {second}"));
        }
    };
    let effort = |results: &Results| if results.quick { "quick" } else { "full" };
    differs("world", &first.world, &second.world);
    differs("kernel", &first.kernel, &second.kernel);
    differs("version", &first.evenkeel, &second.evenkeel);
    differs("effort", effort(first), effort(second));
    differs("seed", &first.seed.to_string(), &second.seed.to_string());
    for facts in &first.scenarios {
        let name = &facts.name;
        let Some(other) = second.scenarios.iter().find(|other| other.name == *name) else { continue };
        if let Some((first, second)) = facts.rate_bps.zip(other.rate_bps) {
            let rate = |rate| BitRate::from_bits_per_second(rate).to_string();
            differs(&format!("rate of {name}"), &rate(first), &rate(second));
        }
        let seconds = |facts: &ScenarioFacts| format!("{} s", facts.duration_s);
        differs(&format!("length of a repeat of {name}"), &seconds(facts), &seconds(other));
    }
    if first.world == "sim" && second.world == "sim" && first.seed == second.seed {
        found.push(format!("both studies have seed {}, so they are not independent", first.seed));
    }
    let texts =
        first.texts.iter().filter(|(name, text)| second.texts.get(*name).is_some_and(|other| other != *text));
    found.extend(texts.map(|(name, _)| format!("the text of {name} differs")));
    if first.setups_text != second.setups_text {
        found.push("the file of setups differs".to_owned());
    }
    let facts = first.host.keys().chain(second.host.keys());
    let changed: std::collections::BTreeSet<&String> =
        facts.filter(|fact| first.host.get(*fact) != second.host.get(*fact)).collect();
    if !changed.is_empty() {
        let changed: Vec<&str> = changed.into_iter().map(String::as_str).collect();
        found.push(format!("facts about the host differ: {}", changed.join(", ")));
    }
    found
}
