//! Writes a profile as a file.

use std::fmt::{self, Display, Write};

use super::{Figure, Frequency, MachineProfile, Operation, SHARES};
use crate::scenario::document::SCHEMA;

/// Function that returns a figure of a profile.
type Of = fn(&MachineProfile) -> Figure;

/// Writes a figure; a measured one as a table. `written` writes a value.
fn figure<T: Display>(figure: Figure, written: impl Fn(f64) -> T) -> String {
    match figure.measured {
        None => written(figure.value).to_string(),
        Some(found) => format!(
            "{{ value = {}, low = {}, high = {}, n = {} }}",
            written(figure.value),
            written(found.low),
            written(found.high),
            found.n
        ),
    }
}

fn clock(hz: f64) -> String {
    format!("\"{}\"", Frequency::from_hz(hz.round() as u64))
}

/// Returns a text as a TOML basic string.
fn quoted(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|character| match character {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            other => other.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

/// Writes the profile as a file that [`MachineProfile::parse`] reads to the same profile, except that clocks
/// are whole Hz. If the profile is based on another one, a comment marks each figure that was not measured.
impl Display for MachineProfile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.based_on.as_ref().map(|name| format!(" # not measured: {name}")).unwrap_or_default();
        let base = self.based_on.as_deref().and_then(Self::built_in);
        let mark = |figure: Figure, of_base: Of| match (&self.based_on, &base) {
            (Some(name), Some(base)) if figure.measured.is_none() && of_base(base).value != figure.value => {
                format!(" # not measured: in proportion to {name}")
            }
            _ if figure.measured.is_some() => String::new(),
            _ => from.clone(),
        };
        writeln!(out, "schema = {SCHEMA}\nname = {}", quoted(&self.name))?;
        if !self.description.is_empty() {
            writeln!(out, "description = {}", quoted(&self.description))?;
        }
        if let Some(name) = &self.based_on {
            writeln!(out, "based-on = {}", quoted(name))?;
        }
        writeln!(out, "\n[processor]\nnodes = {}\ncores-per-node = {}", self.nodes, self.cores_per_node)?;
        let clocks: [(&str, Of); 3] = [
            ("turbo-clock", |profile| profile.turbo_hz),
            ("all-cores-clock", |profile| profile.all_cores_hz),
            ("base-clock", |profile| profile.base_hz),
        ];
        for (key, of) in clocks {
            writeln!(out, "{key} = {}{}", figure(of(self), clock), mark(of(self), of))?;
        }
        writeln!(out, "\n# Cycles to copy a byte.\n[copy]")?;
        let copies: [(&str, Of); 3] = [
            ("cached", |profile| profile.copy.cached),
            ("local", |profile| profile.copy.local),
            ("remote", |profile| profile.copy.remote),
        ];
        for (key, of) in copies {
            writeln!(out, "{key} = {}{}", figure(of(self), |value| value), mark(of(self), of))?;
        }
        let miss = mark(self.miss, |profile| profile.miss);
        writeln!(out, "\n[memory]\nmiss = {}{miss}", figure(self.miss, |value| value))?;
        writeln!(out, "ddio = \"{}\"{from}", self.ddio)?;
        writeln!(out, "\n# Cycles of each operation, by the part of the stack.")?;
        for operation in Operation::ALL {
            let cost = self.cost(operation);
            let is_measured = cost.total.is_some_and(|total| total.measured.is_some());
            writeln!(out, "[cycles.{}]{}", operation.name(), if is_measured { "" } else { &from })?;
            if let Some(total) = cost.total {
                writeln!(out, "total = {}", figure(total, |value| value))?;
            }
            for (share, key) in cost.shares.iter().zip(SHARES).filter(|(share, _)| **share > 0.0) {
                writeln!(out, "{key} = {share}")?;
            }
            out.write_char('\n')?;
        }
        writeln!(out, "[interconnect]\nrate = \"{}\"{from}", self.interconnect)?;
        writeln!(out, "reverse-share = {}{from}", self.reverse_share)?;
        writeln!(out, "\n[nic]\nnode = {}{from}\npcie = \"{}\"{from}", self.nic_node, self.pcie)?;
        writeln!(out, "buffer = \"{}\"{from}", self.nic_buffer)?;
        writeln!(out, "interrupt-delay = \"{}\"{from}", self.interrupt_delay)
    }
}
