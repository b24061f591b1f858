//! Varies each parameter of the modelled machines by 20 % in both directions, and prints how the headline
//! figures change.

use std::error::Error;
use std::fmt::Write;

use evenkeel_sim::time::SECOND;
use evenkeel_sim::transfers::machine::{Machine, Shares};

use crate::transfer_runs::{Figure, Outcome, Times, mean, on_every_processor, run, settings};

pub const REPEATS: u64 = 4;
const TIMES: Times = Times { warmup: SECOND, measured: SECOND };
const CHANGES: [f64; 2] = [0.8, 1.2];

struct Parameter {
    name: &'static str,
    basis: &'static str,
    scale: fn(&mut Machine, f64),
}

struct Headline {
    scenario: &'static str,
    variant: &'static str,
    figure: Figure,
}

const HEADLINES: [Headline; 12] = [
    headline("host-stack", "none", Figure::PerCore),
    headline("host-stack", "tso-gro", Figure::PerCore),
    headline("host-stack", "tso-gro+jumbo+arfs", Figure::PerCore),
    headline("tcp100g-mtu", "mtu-1500", Figure::Throughput),
    headline("tcp100g-mtu", "mtu-9000", Figure::Throughput),
    headline("tcp100g-cores", "distribution-2", Figure::Throughput),
    headline("tcp100g-cores", "distribution-3", Figure::Throughput),
    headline("tcp100g-placement", "case-2", Figure::Throughput),
    headline("tcp100g-placement", "case-3", Figure::Throughput),
    headline("tcp100g-placement", "case-4", Figure::Throughput),
    headline("tcp100g-placement", "case-2", Figure::Retransmissions),
    headline("tcp100g-fan", "1-to-3", Figure::Throughput),
];

const fn headline(scenario: &'static str, variant: &'static str, figure: Figure) -> Headline {
    Headline { scenario, variant, figure }
}

fn scale(shares: &mut Shares, factor: f64) {
    for share in [
        &mut shares.copy,
        &mut shares.tcp_ip,
        &mut shares.netdev,
        &mut shares.memory,
        &mut shares.skb,
        &mut shares.lock,
        &mut shares.sched,
        &mut shares.other,
    ] {
        *share *= factor;
    }
}

fn scale_copy(machine: &mut Machine, factor: f64) {
    machine.copy.cached *= factor;
    machine.copy.local *= factor;
    machine.copy.remote *= factor;
}

/// Scales one part of a sum, and adjusts the other part so that the sum stays equal.
fn shift(scaled: &mut f64, other: &mut f64, factor: f64) {
    let sum = *scaled + *other;
    *scaled *= factor;
    *other = sum - *scaled;
}

fn parameters() -> [Parameter; 17] {
    let row = |name, basis, scale| Parameter { name, basis, scale };
    [
        row("cycles per packet and buffer", "calibrated", |machine, factor| {
            let cycles = &mut machine.cycles;
            for shares in [
                &mut cycles.packet,
                &mut cycles.buffer,
                &mut cycles.defer,
                &mut cycles.read_packet,
                &mut cycles.read_buffer,
                &mut cycles.segment,
                &mut cycles.acknowledgement,
                &mut cycles.wake,
                &mut cycles.switch,
            ] {
                scale(shares, factor);
            }
        }),
        row("copying from memory", "calibrated", |machine, factor| {
            machine.copy.local *= factor;
            machine.copy.remote *= factor;
        }),
        row("copying on `kit-2014`", "calibrated", |machine, factor| {
            if machine.name == "kit-2014" {
                scale_copy(machine, factor);
            }
        }),
        row("copying from another node", "assumed", |machine, factor| machine.copy.remote *= factor),
        row("copying from the cache", "profile", |machine, factor| machine.copy.cached *= factor),
        row("share of the cache for the NIC", "assumed", |machine, factor| {
            machine.ddio_bytes = (machine.ddio_bytes as f64 * factor) as u64;
        }),
        row("TCP/IP in the read", "assumed", |machine, factor| {
            let cycles = &mut machine.cycles;
            shift(&mut cycles.read_buffer.tcp_ip, &mut cycles.buffer.tcp_ip, factor);
        }),
        row("skb, lock, other in the read", "assumed", |machine, factor| {
            let (read, soft) = (&mut machine.cycles.read_buffer, &mut machine.cycles.buffer);
            shift(&mut read.skb, &mut soft.skb, factor);
            shift(&mut read.lock, &mut soft.lock, factor);
            shift(&mut read.other, &mut soft.other, factor);
        }),
        row("memory in the read", "assumed", |machine, factor| {
            let cycles = &mut machine.cycles;
            shift(&mut cycles.read_packet.memory, &mut cycles.packet.memory, factor);
        }),
        row("sending a segment", "assumed", |machine, factor| scale(&mut machine.cycles.segment, factor)),
        row("acknowledgement", "assumed", |machine, factor| {
            scale(&mut machine.cycles.acknowledgement, factor);
        }),
        row("adding to the backlog", "assumed", |machine, factor| scale(&mut machine.cycles.defer, factor)),
        row("interrupt", "assumed", |machine, factor| scale(&mut machine.cycles.interrupt, factor)),
        row("delay of interrupts", "assumed", |machine, factor| {
            machine.interrupt_delay = (machine.interrupt_delay as f64 * factor) as u64;
        }),
        row("memory of the NIC", "assumed", |machine, factor| {
            machine.nic_buffer = (machine.nic_buffer as f64 * factor) as u64;
        }),
        row("cache miss on another node", "assumed", |machine, factor| machine.miss *= factor),
        row("protocol of the interconnect", "assumed", |machine, factor| machine.reverse_share *= factor),
    ]
}

/// Returns a list for each headline. Its first element has the outcomes of the repeats with the unchanged
/// machine. Each further element has the outcomes with one changed parameter.
fn outcomes(repeats: u64) -> Result<Vec<Vec<Vec<Outcome>>>, Box<dyn Error>> {
    let parameters = parameters();
    let mut jobs = Vec::new();
    for headline in &HEADLINES {
        let (base, _) = settings(headline.scenario, headline.variant)?;
        jobs.extend((1..=repeats).map(|seed| (base.clone(), seed)));
        for parameter in &parameters {
            for factor in CHANGES {
                let mut changed = base.clone();
                (parameter.scale)(&mut changed.machine, factor);
                jobs.extend((1..=repeats).map(|seed| (changed.clone(), seed)));
            }
        }
    }
    let found = on_every_processor(jobs.len(), "sensitivity", |job| {
        let (settings, seed) = &jobs[job];
        run(settings.clone(), *seed, TIMES)
    })?;
    let settings_of_headline = 1 + CHANGES.len() * parameters.len();
    let by_settings: Vec<Vec<Outcome>> = found.chunks(repeats as usize).map(<[Outcome]>::to_vec).collect();
    Ok(by_settings.chunks(settings_of_headline).map(<[Vec<Outcome>]>::to_vec).collect())
}

/// Formats changes in percent, such as `−20, +20`. A change below 0.5 % is `0`. If all changes are below
/// 0.5 %, the result is `·`.
fn changes(base: f64, changed: &[f64]) -> String {
    let percent = |value: &f64| {
        let percent = 100.0 * (value / base - 1.0);
        if percent.abs() < 0.5 { "0".to_owned() } else { format!("{percent:+.0}").replace('-', "−") }
    };
    let texts: Vec<String> = changed.iter().map(percent).collect();
    if texts.iter().all(|text| text == "0") { "·".to_owned() } else { texts.join(", ") }
}

fn table(found: &[Vec<Vec<Outcome>>]) -> String {
    let mut text = String::from("| parameter | basis |");
    // Writing to a string cannot fail.
    for headline in &HEADLINES {
        let unit = if headline.figure == Figure::Retransmissions { " lost" } else { "" };
        let _ = write!(text, " `{}`{unit} |", headline.variant);
    }
    let _ = write!(text, "\n|---|---|{}\n| unchanged | |", "---|".repeat(HEADLINES.len()));
    let value = |headline: usize, setting: usize| {
        let figure = HEADLINES[headline].figure;
        mean(&found[headline][setting].iter().map(|outcome| outcome.get(figure)).collect::<Vec<_>>())
    };
    for headline in 0..HEADLINES.len() {
        let base = value(headline, 0);
        let digits = usize::from(base < 1000.0);
        let _ = write!(text, " {base:.digits$} |");
    }
    for (number, parameter) in parameters().iter().enumerate() {
        let _ = write!(text, "\n| {} | {} |", parameter.name, parameter.basis);
        for headline in 0..HEADLINES.len() {
            let changed: Vec<f64> = (0..CHANGES.len())
                .map(|change| value(headline, 1 + CHANGES.len() * number + change))
                .collect();
            let _ = write!(text, " {} |", changes(value(headline, 0), &changed));
        }
    }
    text
}

pub fn vary(repeats: u64) -> Result<(), Box<dyn Error>> {
    let found = outcomes(repeats)?;
    println!(
        "Change in percent with 80 % and with 120 % of a parameter; · is below 0.5 %. Means of {repeats} repeats of 1 s,\n\
         Gbit/s (`none`, `tso-gro`, `tso-gro+jumbo+arfs`: per core; lost: retransmissions per second).\n\n{}",
        table(&found)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_parameter_changes_a_machine() {
        for parameter in parameters() {
            let mut machine = Machine::kit_2014();
            (parameter.scale)(&mut machine, 1.2);
            assert_ne!(machine, Machine::kit_2014(), "{}", parameter.name);
        }
    }

    #[test]
    fn splits_keep_the_sum() {
        let (mut read, mut soft) = (1.0, 3.0);
        shift(&mut read, &mut soft, 1.2);
        assert_eq!((read, soft), (1.2, 2.8));
    }

    #[test]
    fn changes_are_in_percent() {
        assert_eq!(changes(100.0, &[90.0, 100.1]), "−10, 0");
        assert_eq!(changes(100.0, &[100.0, 100.0]), "·");
    }
}
