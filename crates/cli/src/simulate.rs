//! `--simulate` of `check` and `tune`: runs forecasts with progress, and shows them.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_forecast::{
    Effect, Forecast, Interrupted, Modelled, PlanForecast, SEEDS, Simulated, Verdict, of_findings, of_plan,
};
use evenkeel_model::host::HostFacts;
use evenkeel_model::machine::MachineProfile;
use evenkeel_model::text::{counted, printable};
use evenkeel_model::world::Observer;
use evenkeel_placement::Finding;
use evenkeel_placement::tune::Step;
use evenkeel_report::page::Page;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::progress::with_progress;
use crate::signals;

#[derive(Default)]
struct Watch {
    /// Finished share of the work, millionths.
    finished: AtomicU64,
}

const WHOLE: f64 = 1e6;

impl Observer for Watch {
    fn progress(&self, fraction: f64, _activity: &str) {
        self.finished.fetch_max((fraction * WHOLE) as u64, Ordering::Relaxed);
    }

    fn remark(&self, _text: &str) {}

    fn interrupted(&self) -> bool {
        signals::came()
    }
}

fn with_watch<T>(work: impl FnOnce(&Watch) -> Result<T, Interrupted>) -> Result<T, Failure> {
    let watch = Watch::default();
    let state = || (watch.finished.load(Ordering::Relaxed) as f64 / WHOLE, "simulating".to_owned());
    with_progress(state, || work(&watch))
        .map_err(|Interrupted| Failure::new(Exit::Interrupted, "interrupted; nothing was changed"))
}

pub fn findings(
    facts: &HostFacts,
    only: Option<&str>,
    findings: &[Finding],
    machine: Option<&MachineProfile>,
) -> Result<Forecast, Failure> {
    with_watch(|watch| of_findings(facts, only, findings, machine, watch))
}

pub fn plan(
    facts: &HostFacts,
    interface: &str,
    steps: &[Step],
    machine: Option<&MachineProfile>,
) -> Result<PlanForecast, Failure> {
    with_watch(|watch| of_plan(facts, interface, steps, machine, watch))
}

fn per_cent(ratio: f64) -> String {
    let change = (ratio - 1.0) * 100.0;
    // Omit the sign of a change that rounds to 0.
    if change.abs() < 0.05 {
        "0.0".to_owned()
    } else if change.abs() < 10.0 {
        format!("{change:+.1}")
    } else {
        format!("{change:+.0}")
    }
}

fn drops(per_second: f64) -> String {
    match per_second {
        none if none < 0.05 => "0".to_owned(),
        few if few < 10.0 => format!("{few:.1}"),
        many => format!("{many:.0}"),
    }
}

fn throughput(bps: f64, drops_per_s: f64) -> String {
    let (unit, scale) = unit(bps);
    format!("{:.1} {unit} (drops/s {})", bps / scale, drops(drops_per_s))
}

fn unit(bps: f64) -> (&'static str, f64) {
    if bps < 1e9 { ("Mbit/s", 1e6) } else { ("Gbit/s", 1e9) }
}

pub fn words(effect: &Effect) -> String {
    let ((first, scale), (second, to_second)) = (unit(effect.before_bps), unit(effect.after_bps));
    let shown = if first == second { String::new() } else { format!(" {first}") };
    let (before, after) = (effect.before_bps / scale, effect.after_bps / to_second);
    let rates = format!("{before:.1}{shown} → {after:.1} {second}");
    let seeds = counted(effect.seeds, "seed");
    let change = match (effect.ratio, effect.interval) {
        (Some(ratio), Some(interval)) => {
            let interval =
                format!("95 % interval {} to {}, {seeds}", per_cent(interval.low), per_cent(interval.high));
            if effect.is_shown() {
                format!(" ({} %, {interval})", per_cent(ratio))
            } else {
                format!(", no difference shown ({interval})")
            }
        }
        _ => format!(" ({seeds}, some without throughput)"),
    };
    let (before, after) = (drops(effect.drops_before_per_s), drops(effect.drops_after_per_s));
    format!("{rates}{change}; drops/s {before} → {after}")
}

/// Returns a verdict as JSON; null if there is no simulated effect.
fn verdict_json(verdict: &Verdict) -> Value {
    let Some(effect) = verdict.effect() else { return Value::Null };
    json!({
        "before": effect.before_bps,
        "after": effect.after_bps,
        "unit": "bit/s",
        "ratio": effect.ratio,
        "interval": effect.interval.map(|interval| [interval.low, interval.high]),
        "shown": effect.is_shown(),
        "seeds": effect.seeds,
        "drops_before_per_s": effect.drops_before_per_s,
        "drops_after_per_s": effect.drops_after_per_s,
    })
}

fn nic_json(nic: &Modelled) -> Value {
    json!({ "interface": nic.interface, "traffic": nic.traffic, "assumptions": nic.assumptions })
}

fn simulated_json(Simulated { modelled, effect }: &Simulated) -> Value {
    let mut json = nic_json(modelled);
    if let Some(object) = json.as_object_mut() {
        object.insert("now".to_owned(), json!(effect.before_bps));
        object.insert("unit".to_owned(), json!("bit/s"));
        object.insert("drops_per_s".to_owned(), json!(effect.drops_before_per_s));
    }
    json
}

fn assumed(nic: &Modelled) -> [String; 2] {
    [
        format!("Simulated: {}; {} each.", printable(&nic.traffic), counted(SEEDS as usize, "seed")),
        format!("Assumed: {}.", printable(&nic.assumptions.join("; "))),
    ]
}

const fn is(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

fn missing(forecast: &Forecast) -> Vec<String> {
    let of = |kind: Verdict| forecast.verdicts.iter().filter(|verdict| **verdict == kind).count();
    let (outside, late) = (of(Verdict::Outside), of(Verdict::NoTime));
    let mut lines: Vec<String> =
        forecast.obstacles.iter().map(|why| format!("Not simulated: {}.", printable(why))).collect();
    if outside > 0 && !forecast.nics.is_empty() {
        lines.push(format!("{} {} not covered by the model.", counted(outside, "finding"), is(outside)));
    }
    if late > 0 {
        let text = format!(
            "{} {} not simulated: the simulation would take too long.",
            counted(late, "finding"),
            is(late)
        );
        lines.push(text);
    }
    lines
}

pub fn show_finding(page: &mut Page, label: &str, verdict: Option<&Verdict>) {
    if let Some(effect) = verdict.and_then(Verdict::effect) {
        page.labelled(label, &words(effect));
    }
}

/// Shows the throughput without changes, the assumptions of the simulations, and why effects are missing.
pub fn show_assumptions(page: &mut Page, forecast: &Forecast) {
    page.gap();
    for Simulated { modelled, effect } in &forecast.nics {
        let now = throughput(effect.before_bps, effect.drops_before_per_s);
        page.line(&format!(
            "Without changes, this host receives {now} through {}.",
            printable(&modelled.interface)
        ));
        assumed(modelled).iter().for_each(|line| page.line(line));
    }
    missing(forecast).iter().for_each(|line| page.line(line));
}

pub fn add_to(json: &mut Value, forecast: &Forecast) {
    let of = |kind: Verdict| forecast.verdicts.iter().filter(|verdict| **verdict == kind).count();
    let simulation = json!({
        "interfaces": forecast.nics.iter().map(simulated_json).collect::<Vec<_>>(),
        "obstacles": forecast.obstacles,
        "outside": of(Verdict::Outside),
        "no_time": of(Verdict::NoTime),
    });
    if let Some(findings) = json.get_mut("findings").and_then(Value::as_array_mut) {
        for (finding, verdict) in findings.iter_mut().zip(&forecast.verdicts) {
            if let Some(finding) = finding.as_object_mut() {
                finding.insert("simulated".to_owned(), verdict_json(verdict));
            }
        }
    }
    if let Some(object) = json.as_object_mut() {
        object.insert("simulation".to_owned(), simulation);
    }
}

pub fn plan_lines(forecast: &PlanForecast) -> Vec<String> {
    let nic = match &forecast.nic {
        Ok(nic) => nic,
        Err(why) => return vec![format!("Not simulated: {}.", printable(why))],
    };
    let text = |verdict: &Verdict| match verdict {
        Verdict::Effect(effect) => Some(words(effect)),
        Verdict::Outside => None,
        Verdict::NoTime => Some("not simulated: the simulation would take too long".to_owned()),
    };
    let Some(all) = text(&forecast.all) else {
        return vec!["Simulated: the plan changes nothing that the model has.".to_owned()];
    };
    let mut lines = assumed(nic).to_vec();
    lines.push(format!("the whole plan: {all}"));
    for (rule, alone, without) in &forecast.rules {
        lines.extend(text(alone).map(|text| format!("{rule} alone: {text}")));
        lines.extend(text(without).map(|text| format!("all but {rule}: {text}")));
    }
    let outside = forecast.rules.iter().filter(|(_, alone, _)| *alone == Verdict::Outside).count();
    if outside > 0 {
        lines.push(format!(
            "{} of the plan {} not covered by the model",
            counted(outside, "rule"),
            is(outside)
        ));
    }
    lines
}

pub fn plan_json(forecast: &PlanForecast) -> Value {
    let rule = |(rule, alone, without): &(&'static str, Verdict, Verdict)| json!({ "rule": rule, "alone": verdict_json(alone), "without": verdict_json(without) });
    json!({
        "interfaces": forecast.nic.iter().map(nic_json).collect::<Vec<_>>(),
        "obstacles": forecast.nic.as_ref().err().into_iter().collect::<Vec<_>>(),
        "plan": verdict_json(&forecast.all),
        "rules": forecast.rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(before_bps: f64, after_bps: f64, ratio: Option<f64>) -> Effect {
        Effect {
            before_bps,
            after_bps,
            ratio,
            interval: None,
            drops_before_per_s: 4433.4,
            drops_after_per_s: 0.12,
            seeds: 10,
        }
    }

    #[test]
    fn an_effect_is_one_line() {
        let line = words(&effect(43e9, 98.9e9, None));
        assert_eq!(line, "43.0 → 98.9 Gbit/s (10 seeds, some without throughput); drops/s 4433 → 0.1");
        assert!(words(&effect(25.1e6, 1.3e9, Some(52.0))).starts_with("25.1 Mbit/s → 1.3 Gbit/s"));
    }

    #[test]
    fn changes_have_a_sign_unless_they_round_to_0() {
        let shown = [1.0, 0.9999, 1.012, 0.95, 2.3, 0.5].map(per_cent);
        assert_eq!(shown, ["0.0", "0.0", "+1.2", "-5.0", "+130", "-50"]);
    }
}
